"""Li, Cotterell and Sachan 2021: quality against the exact number of heads, learned in several ways, beside earlier methods.

The numbers of their tables are not quoted here; the claims are those of the abstract, and of a survey that sums them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ..documents.learned import LearnedDocument
from ..documents.scores import how_many
from ..formatting import counted, listed, signed, three
from ..stats.results import Comparison, difference_text, unit_of
from .experiment import (
    CONFIRMED,
    DIFFERS,
    NOT_CONFIRMED,
    UNTOLD,
    Claim,
    Experiment,
    RunDocuments,
    Setting,
    Sheet,
    Step,
    over_seeds,
)
from .inputs import Corpus
from .runner import named_once
from .seeds import COVERS, ENOUGH, Estimate, Mean, mean_of

KEEPS = ("10%", "17%", "34%")  # of all heads: 7, 12 and 24 of 72
ENDS = (KEEPS[0], KEEPS[-1])
MUCH = 2.0  # points: what is lost with less is not "much"
LEVEL_WITHIN = 1.0  # points: what is behind by less is "comparable"
SEEDS_TOLD = f"mean over seeds, with its 95 % interval {COVERS} from {ENOUGH} seeds on"
LONGER = "The training of gates came on top of that model's own, and no control with all heads was trained as long."


class Way(NamedTuple):
    """A way to come to a number of heads."""

    name: str
    title: str
    flags: tuple[str, ...]
    keeps: tuple[str, ...]  # at full size; one on a laptop
    laptop: bool = False
    trains: bool = True


WAYS = (
    Way("joint", "subset, joint", ("--method", "subset"), KEEPS, laptop=True),
    Way("pipelined", "subset, pipelined", ("--method", "subset", "--pipelined"), KEEPS, laptop=True),
    Way("straight-through", "subset, straight-through", ("--method", "subset", "--form", "straight-through"), KEEPS),
    Way(
        "published",
        "subset, joint, gates and schedules of the paper's code",
        ("--method", "subset", "--published"),
        KEEPS[:1],
    ),
    Way("l0", "L0 gates (Voita et al. 2019)", ("--method", "l0"), ENDS),
    Way("taylor-trained", "taylor, then trained", ("--method", "taylor"), KEEPS[:1]),
    Way("taylor", "taylor (Michel et al. 2019)", ("--method", "taylor"), ENDS, laptop=True, trains=False),
)
SUBSETS = tuple(way.name for way in WAYS if "subset" in way.flags)
EARLIER = ("l0", "taylor")
BEYOND = (("joint", "taylor-trained"), ("joint", "pipelined"), ("joint", "straight-through"), ("pipelined", "taylor"))


def _corpus(setting: Setting) -> Corpus | None:
    """The first task of the material, if there is or can be a model of it."""
    corpora = setting.material.corpora
    return corpora[0] if corpora and (corpora[0].ready or setting.material.encoder) else None


def _keeps(setting: Setting, way: Way) -> tuple[str, ...]:
    return way.keeps if setting.full else way.keeps[: int(way.laptop)]


def _name(way: Way, keep: str, seed: int) -> str:
    return f"li-{way.name}-{keep.rstrip('%')}-{seed}"


def steps(setting: Setting) -> list[Step]:
    """A model for every seed, and from it a smaller one in each way at each number of heads."""
    corpus = _corpus(setting)
    all_steps: list[Step] = []
    if corpus is None:
        return all_steps
    for seed in setting.seeds:
        model, before = setting.classifier(corpus, seed)
        all_steps += before
        data = (*corpus.on("train"), *setting.limit(1500), *corpus.beside("--report-data", "dev"))
        data += setting.limit(400, flag="--report-limit")
        pace = setting.by_size(("--steps", "40", "--batch-size", "16"), ("--epochs", "1", "--batch-size", "64"))
        for way in WAYS:
            taught = (*pace, "--lr", "5e-5") if way.trains else ("--epochs", "0")
            for keep in _keeps(setting, way):
                name = _name(way, keep, seed)
                words = ("learn", model, *data, *way.flags, "--keep", keep, *taught, "--seed", str(seed))
                words += ("--run", setting.run(name), *setting.flags)
                all_steps.append(Step(name, words, tuple(step.name for step in before)))
    return named_once(all_steps)


# -- what was found ------------------------------------------------------------------------------------------------------


class Smaller(NamedTuple):
    """One run: the smaller model beside the model it came from."""

    way: str
    keep: str  # as it was asked for
    seed: int
    asked: int
    kept: int
    of: int
    compared: Comparison  # with the full model
    open: int | None  # gates that were open by themselves (L0)

    @property
    def gain(self) -> Estimate:
        """Against the full model, in points, with the paired interval over examples; what is lost is below zero."""
        return Estimate.gain(self.compared)

    @property
    def unit(self) -> str:
        """What gains are counted in."""
        return unit_of(self.compared)


def _smaller(way: str, keep: str, seed: int, data: LearnedDocument) -> Smaller:
    heads = (how_many(keep, data.of), data.of - len(data.plan), data.of)
    return Smaller(way, keep, seed, *heads, data.comparison, None if data.open is None else int(data.open))


def _runs(results: RunDocuments) -> list[Smaller]:
    """All runs that are there."""
    setting = results.setting
    combinations = [(way, keep, seed) for way in WAYS for keep in _keeps(setting, way) for seed in setting.seeds]
    if _corpus(setting) is None:
        return []
    loaded_runs = [
        results.read(_name(way, keep, seed), LearnedDocument, partial(_smaller, way.name, keep, seed))
        for way, keep, seed in combinations
    ]
    return [run for run in loaded_runs if run is not None]


def _of(runs: Sequence[Smaller], way: str, keep: str) -> list[Smaller]:
    return [run for run in runs if (run.way, run.keep) == (way, keep)]


def _common_sizes(runs: Sequence[Smaller], first_way: str, second_way: str) -> list[str]:
    """The numbers of heads at which there are runs of both ways."""
    return [keep for keep in KEEPS if _of(runs, first_way, keep) and _of(runs, second_way, keep)]


def _ahead(runs: Sequence[Smaller], first_way: str, second_way: str) -> Mean | None:
    """How far a way is ahead of another, in points: for each seed that has all of their runs, the mean over numbers of heads."""
    keeps = _common_sizes(runs, first_way, second_way)
    gains = {(run.way, run.keep, run.seed): run.gain for run in runs}
    differences = []
    for seed in dict.fromkeys(run.seed for run in runs):
        pairs = [(gains.get((first_way, keep, seed)), gains.get((second_way, keep, seed))) for keep in keeps]
        keep_differences = [mine.minus(theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
        if keep_differences and len(keep_differences) == len(keeps):
            differences.append(Estimate.average(keep_differences))
    return mean_of(differences) if differences else None


# -- claims --------------------------------------------------------------------------------------------------------------


def claims(results: RunDocuments) -> list[Claim]:
    """Exact numbers of heads; nine tenths of them gone; beside earlier methods."""
    runs = _runs(results)
    possible_claims = [_exact(results, runs), _most_heads(results, runs), _beside_others(results, runs)]
    return [claim for claim in possible_claims if claim is not None]


def _place(results: RunDocuments, run: Smaller) -> str:
    corpus = _corpus(results.setting)
    return f"{corpus.name if corpus else 'The task'} ({run.compared.metric}, n = {run.compared.n})"


def _exact(results: RunDocuments, runs: Sequence[Smaller]) -> Claim | None:
    subsets = [run for run in runs if run.way in SUBSETS]
    if not subsets:
        return None
    wrong = [run for run in subsets if run.kept != run.asked]
    numbers = listed([str(number) for number in sorted({run.asked for run in subsets})])
    finding = (
        f"{_place(results, subsets[0])}: {len(subsets) - len(wrong)} of {counted(len(subsets), 'run')} of subset gates "
    )
    finding += (
        f"kept exactly the {numbers} of {subsets[0].of} heads that were asked for; the K largest gates stay, so this "
    )
    finding += "holds by construction."
    steered = [run for run in runs if run.way == "l0" and run.open is not None]
    for requested_heads in sorted({run.asked for run in steered}):
        opened = sorted(int(run.open or 0) for run in steered if run.asked == requested_heads)
        finding += f" Of L0 gates that were steered to {requested_heads}, {_from_to(opened)} were open by themselves."
    paper = "Abstract: the number of heads that stay is said beforehand and kept exactly."
    rule = "Confirmed if every run of subset gates keeps exactly the number of heads that was asked for."
    return Claim(paper, finding, NOT_CONFIRMED if wrong else CONFIRMED, rule)


def _from_to(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"


def _most_heads(results: RunDocuments, runs: Sequence[Smaller]) -> Claim | None:
    fewest = _of(runs, "joint", KEEPS[0])
    if not fewest:
        return None
    unit = fewest[0].unit
    gains = {keep: mean_of(run.gain for run in mine) for keep in KEEPS if (mine := _of(runs, "joint", keep))}
    gain_texts = [
        f"{_gained(_of(runs, 'joint', keep))} with {_of(runs, 'joint', keep)[0].kept} heads" for keep in gains
    ]
    published = _of(runs, "published", KEEPS[0])
    if published:
        gain_texts.append(
            f"{_gained(published)} with {published[0].kept} heads and the gates and schedules of the paper's code"
        )
    finding = f"{_place(results, fewest[0])}; {SEEDS_TOLD}: joint training against the model it began from, with all "
    finding += f"{fewest[0].of} heads: {'; '.join(gain_texts)}. {LONGER}"
    verdict = UNTOLD
    if unit == "points" and gains[KEEPS[0]].above(-MUCH):
        verdict = CONFIRMED
    elif unit == "points" and gains[KEEPS[0]].below(-MUCH):
        verdict = DIFFERS if any(mean.above(-MUCH) for mean in gains.values()) else NOT_CONFIRMED
    paper = "A survey's summary of the paper: up to 90 % of the heads can go without much degradation."
    rule = f"Confirmed if less than {MUCH:g} points are lost with {KEEPS[0][:-1]} % of the heads, by the 95 % interval {COVERS} "
    rule += (
        f"over at least {ENOUGH} seeds; it differs if more is lost there, and less than that with one of the larger "
    )
    rule += "numbers. The model with all heads is the one that training began from, not one trained as long."
    return Claim(paper, finding, verdict, rule)


def _gained(runs: Sequence[Smaller]) -> str:
    """The difference to the full model with the number of seeds: over seeds, and over examples where there is one."""
    if len(runs) == 1:
        return f"{difference_text(runs[0].compared)} (one seed)"
    return f"{mean_of(run.gain for run in runs).text(partial(signed, digits=1))} {runs[0].unit} ({len(runs)} seeds)"


def _beside_others(results: RunDocuments, runs: Sequence[Smaller]) -> Claim | None:
    ahead = {way: mean for way in EARLIER if (mean := _ahead(runs, "joint", way)) is not None}
    if not ahead:
        return None
    comparison_texts = [_lead_text(runs, "joint", way) for way in EARLIER if way in ahead]
    more = [
        _lead_text(runs, first_way, second_way)
        for first_way, second_way in BEYOND
        if _ahead(runs, first_way, second_way) is not None
    ]
    finding = f"{_place(results, runs[0])}; in {runs[0].unit}, {SEEDS_TOLD}: {'; '.join(comparison_texts)}."
    finding += f" Asked beyond the paper's sentence: {'; '.join(more)}." if more else ""
    level = {way: mean.above(-LEVEL_WITHIN) for way, mean in ahead.items()}
    behind = {way: mean.below(0) and not level[way] for way, mean in ahead.items()}
    verdict = UNTOLD
    if runs[0].unit == "points" and len(ahead) == len(EARLIER):
        if all(level.values()):
            verdict = CONFIRMED
        elif all(level[way] or behind[way] for way in ahead):
            verdict = DIFFERS if any(level.values()) else NOT_CONFIRMED
    paper = "Abstract: as good as or better than previous work; its code compares with L0 gates and with heads by importance."
    rule = f"Confirmed if joint training is less than {LEVEL_WITHIN:g} point behind each of the two (mean over the numbers of "
    rule += (
        f"heads, 95 % interval {COVERS}, at least {ENOUGH} seeds); it differs if that holds for one, and it is behind "
    )
    rule += "the other."
    return Claim(paper, finding, verdict, rule)


def _lead_text(runs: Sequence[Smaller], first_way: str, second_way: str) -> str:
    """How far a way is ahead of another, in words."""
    mean, titles = _ahead(runs, first_way, second_way), {way.name: way.title for way in WAYS}
    head_counts = [str(_of(runs, first_way, keep)[0].kept) for keep in _common_sizes(runs, first_way, second_way)]
    ahead = "?" if mean is None else mean.text(partial(signed, digits=1))
    seeds = "" if mean is None else f"; {counted(mean.seeds, 'seed')}"
    return f"{titles[first_way]} against {titles[second_way]} {ahead} (at {listed(head_counts)} heads{seeds})"


def sheets(results: RunDocuments) -> list[Sheet]:
    """Quality against the number of heads, a row for each way."""
    runs = _runs(results)
    keeps = [keep for keep in KEEPS if any(run.keep == keep for run in runs)]
    if not keeps:
        return []
    column_names = [f"{next(run.kept for run in runs if run.keep == keep)} of {runs[0].of} heads" for keep in keeps]
    rows = [("all heads", *[_cell(list({run.seed: run.compared.before for run in runs}.values()))] * len(keeps))]
    for way in WAYS:
        mine = [[run.compared.after for run in _of(runs, way.name, keep)] for keep in keeps]
        rows += [(way.title, *map(_cell, mine))] if any(mine) else []
    title = f"{_place(results, runs[0])} by heads kept; mean of the seeds, lowest to highest; ours alone"
    return [Sheet(title, ("way", *column_names), tuple(rows))]


def _cell(values: Sequence[float]) -> str:
    return over_seeds(values, three) if values else "–"


EXPERIMENTS = (
    Experiment(
        "li-subsets",
        "Li et al. 2021",
        "quality against the number of heads",
        "How good is a model with exactly K heads, learned jointly, pipelined or straight-through, beside earlier methods?",
        steps,
        claims,
        sheets,
    ),
)
