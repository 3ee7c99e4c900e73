"""Voita et al. 2019, the figure of BLEU against encoder heads: how few are enough, and does it matter which? No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...documents.learned import LearnedDocument
from ...formatting import counted, fixed, listed, signed
from ...stats.results import Comparison
from ..experiment import (
    CONFIRMED,
    DIFFERS,
    NOT_CONFIRMED,
    UNTOLD,
    Claim,
    RunDocuments,
    Setting,
    Sheet,
    Step,
    over_seeds,
)
from ..runner import named_once
from ..seeds import COVERS, ENOUGH, Estimate, Mean, mean_of

PREFIX = "voita-encoder"
HALF, TENTH, FEW, ALL = "50%", "21%", "8.4%", "100%"  # of 48 heads: 24, 10, 4 and all of them
PART = ("--only", "encoder", "--freeze", "decoder")  # so that nothing can move to the decoder
WIDE = 1.0  # BLEU: what is lost beyond this is no longer "a little more than in the paper"
CONTROLS = (("taylor", TENTH), ("random", TENTH), ("taylor", ALL))  # trained as long; the last one loses nothing


# -- the commands ----------------------------------------------------------------------------------------------------------


def steps(setting: Setting, seeds: Sequence[int] | None = None, controls: bool = True) -> list[Step]:
    """For each seed gates on the encoder of its translator at several numbers of heads, and controls trained as long."""
    pairs = setting.material.pairs
    all_steps: list[Step] = []
    for seed in (setting.seeds if seeds is None else seeds) if pairs is not None else ():
        assert pairs is not None
        model, before = setting.translator(pairs, seed)
        arms = [("l0", share) for share in shares(setting)] + list(CONTROLS if controls else ())
        all_steps += [*before, *(learning(setting, PREFIX, model, before, arm, PART, seed) for arm in arms)]
    return named_once(all_steps)


def shares(setting: Setting) -> tuple[str, ...]:
    """How many heads gates are to keep."""
    return (HALF, TENTH, FEW) if setting.full else (TENTH,)


def learning(
    setting: Setting,
    prefix: str,
    model: str,
    before: Sequence[Step],
    arm: tuple[str, str],
    part: Sequence[str],
    seed: int,
) -> Step:
    """The command that learns, or chooses, which heads of a translator stay, and trains it."""
    method, share = arm
    name = name_of(prefix, method, share, seed)
    words = ("learn", model, "--method", method, "--keep", share, *part, *data(setting), *setting.limit(600))
    # in a step gates move by their learning rate at most, so in few steps they close only with a larger one
    words += ("--gate-lr", "0.3") if method == "l0" and not setting.full else ()
    words += setting.by_size(("--steps", "40", "--batch-size", "16"), ("--epochs", "4", "--batch-size", "256"))
    words += ("--lr", "2e-4", "--label-smoothing", "0.1", "--seed", str(seed), "--run", setting.run(name))
    return Step(name, (*words, *setting.flags), tuple(step.name for step in before))


def data(setting: Setting) -> tuple[str, ...]:
    """Flags for pairs to learn on, and others to report on."""
    pairs = setting.material.pairs
    assert pairs is not None
    return (*pairs.on("train"), *pairs.beside("--report-data", "test"), *setting.limit(100, flag="--report-limit"))


def name_of(prefix: str, method: str, share: str, seed: int) -> str:
    """The name of a step."""
    return f"{prefix}-{method}-{share.rstrip('%')}-{seed}"


# -- what came out ---------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """A translator that was trained with fewer heads, beside the one it came from."""

    kept: int
    of: int
    gone: frozenset[str]
    compared: Comparison

    @property
    def gain(self) -> Estimate:
        """How much better than the whole model it is, in points, with the paired interval; negative where it is worse."""
        return Estimate.gain(self.compared)

    def over(self, reference: Outcome) -> Estimate:
        """How much better than another one it is, in points: both were compared with the same translator."""
        return self.gain.minus(reference.gain)


Runs = Mapping[int, Outcome]  # by seed; never empty where they are told about


def outcome(document: LearnedDocument) -> Outcome:
    """What learned.json says."""
    return Outcome(document.kept, document.of, frozenset(map(str, document.plan)), document.comparison)


def runs_of(results: RunDocuments, method: str, share: str, prefix: str = PREFIX) -> dict[int, Outcome]:
    """The outcome under each seed, as far as it is there."""
    read = {
        seed: results.read(name_of(prefix, method, share, seed), LearnedDocument, outcome)
        for seed in results.setting.seeds
    }
    return {seed: run for seed, run in read.items() if run is not None}


def differences(candidate_runs: Runs, reference_runs: Runs) -> list[Estimate]:
    """How much better the one is than the other, for seeds that have both."""
    return [candidate_runs[seed].over(reference_runs[seed]) for seed in candidate_runs if seed in reference_runs]


def metric_of(runs: Runs) -> str:
    """What differences are counted in."""
    metric = next(iter(runs.values())).compared.metric
    return "BLEU" if metric == "bleu" else metric


def heads_text(runs: Runs) -> str:
    """How many heads stay."""
    first_run = next(iter(runs.values()))
    return f"{first_run.kept} of {first_run.of} heads"


def where(results: RunDocuments, runs: Runs) -> str:
    """On which data, and how many sentences of them."""
    pairs, n = results.setting.material.pairs, next(iter(runs.values())).compared.n
    return f"{counted(n, 'sentence')} of {pairs.name if pairs else 'pairs'}"


def gained(value: float) -> str:
    """A difference in BLEU, or in what else is measured; minus is worse."""
    return signed(value, 2)


def score(value: float) -> str:
    """BLEU, or what else is measured."""
    return fixed(value, 2)


def intervals(runs: Runs) -> str:
    """The paired interval of each seed."""
    texts = [f"[{gained(run.gain.low)}, {gained(run.gain.high)}]" for run in runs.values()]
    return listed(texts, most=len(texts))


def better(mean: Mean) -> str:
    """Confirmed where the mean over seeds is above zero beyond chance, not confirmed where it is below."""
    return CONFIRMED if mean.above(0) else NOT_CONFIRMED if mean.below(0) else UNTOLD


# -- what to make of it ----------------------------------------------------------------------------------------------------


def claims(results: RunDocuments) -> list[Claim]:
    """A few encoder heads are nearly enough, and it matters which."""
    published = (
        (
            TENTH,
            0.15,
            "Pruning encoder heads: with 10 of 48 the model is within 0.15 BLEU of the full one (WMT).",
        ),
        (
            FEW,
            0.25,
            "Pruning encoder heads: with 4 of 48 the model loses 0.25 BLEU (OpenSubtitles).",
        ),
    )
    all_claims = [
        _enough(results, share, most, statement)
        for share, most, statement in published
        if runs_of(results, "l0", share)
    ]
    learned, lot = runs_of(results, "l0", TENTH), runs_of(results, "random", TENTH)
    if gains := differences(learned, lot):
        mean = mean_of(gains)
        finding = (
            f"{heads_text(learned)} that gates found against as many by lot, trained as long: {mean.text(gained)} "
            f"{metric_of(learned)}, minus is worse ({mean.how}; {where(results, learned)})."
        )
        statement = (
            "Title: specialised heads do the heavy lifting and the rest can be pruned; so it should matter which ones "
        )
        statement += "stay."
        all_claims.append(
            Claim(
                statement,
                finding,
                better(mean),
                f"The 95 % interval of the mean, {COVERS}, lies above zero, over {ENOUGH} seeds or more.",
            )
        )
    return all_claims


def _enough(results: RunDocuments, share: str, most: float, statement: str) -> Claim:
    runs = runs_of(results, "l0", share)
    beside = differences(runs, runs_of(results, "taylor", ALL))
    fair = mean_of(beside) if beside else None
    longer = (
        "there is no control with all heads" if fair is None else f"{fair.text(gained)} {metric_of(runs)} ({fair.how})"
    )
    finding = (
        f"{heads_text(runs)}, minus is worse. Against all heads trained as long: {longer}. Against the whole translator, which "
        f"was trained less long: {over_seeds([run.gain.value for run in runs.values()], gained)} {metric_of(runs)}, with "
        f"paired 95 % intervals {intervals(runs)} ({where(results, runs)}, {counted(len(runs), 'seed')})."
    )
    rule = (
        f"Confirmed if the mean loss against all heads trained as long is less than {most} BLEU, by its 95 % interval {COVERS} "
        f"over {ENOUGH} seeds or more; it differs if that lies beyond {most}, and is not confirmed if it lies beyond {WIDE:g}."
    )
    return Claim(statement, finding, UNTOLD if fair is None or metric_of(runs) != "BLEU" else within(fair, most), rule)


def within(gain: Mean, most: float) -> str:
    """Whether no more than so many BLEU are lost, as far as these seeds can tell."""
    if gain.above(-most):
        return CONFIRMED
    return NOT_CONFIRMED if gain.below(-WIDE) else DIFFERS if gain.below(-most) else UNTOLD


def sheets(results: RunDocuments) -> list[Sheet]:
    """The figure as a table, with its controls."""
    theirs = {TENTH: ("at most 0.15 lost", ""), FEW: ("", "0.25 lost")}
    names = {"l0": "gates (L0)", "taylor": "by taylor, then trained", "random": "by lot, then trained"}
    rows: list[tuple[str, ...]] = []
    unit = ""
    for method, share in (*(("l0", share) for share in (HALF, TENTH, FEW)), *CONTROLS):
        runs = runs_of(results, method, share)
        if not runs:
            continue
        unit = metric_of(runs)
        choice = "none chosen, trained as long" if share == ALL else names[method]
        published = theirs.get(share, ("", "")) if method == "l0" else ("", "")
        after = over_seeds([run.compared.after for run in runs.values()], score)
        gain = over_seeds([run.gain.value for run in runs.values()], gained)
        rows.append((choice, heads_text(runs), *published, after, gain, intervals(runs)))
    columns = (
        "which heads",
        "kept",
        "WMT, theirs",
        "OpenSubtitles, theirs",
        unit,
        "better than the whole one by",
        "intervals",
    )
    return [Sheet("What is left with fewer encoder heads", columns, tuple(rows))] if rows else []
