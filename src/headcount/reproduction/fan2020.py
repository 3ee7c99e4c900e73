"""Fan et al. 2020, *Reducing Transformer Depth on Demand*: a translator trained with LayerDrop, cut to any depth. No torch."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from ..documents.curves import CurvesDocument
from ..formatting import counted, fixed, signed
from ..stats.results import Comparison
from .experiment import (
    CONFIRMED,
    DIFFERS,
    NOT_CONFIRMED,
    SIZES,
    UNTOLD,
    Claim,
    Experiment,
    Found,
    Setting,
    Sheet,
    Step,
    over_seeds,
    parted,
)
from .runner import named_once
from .seeds import COVERS, ENOUGH, Estimate, mean_of

PLAIN, DROPPED = "plain", "layerdrop"
LENGTHS = ("--epochs", "--steps")
NEAR = 0.5  # BLEU: what is not further below is as good
# The paper drops every layer whose number, from 1, is a multiple of 2, 3, ...: when half are gone, that is this order's plan.
EVERY, OTHER, BLOCK, LOT = "alternate-top", "alternate", "top", "random"
ORDERS = {
    EVERY: "every other, the first stays",
    OTHER: "every other, the last stays",
    BLOCK: "from the top",
    LOT: "by lot",
}


# -- the commands ----------------------------------------------------------------------------------------------------------


def steps(setting: Setting) -> list[Step]:
    """For each seed two translators, trained alike but for LayerDrop, and what is left of both as layers go."""
    pairs = setting.material.pairs
    made: list[Step] = []
    for seed in setting.seeds if pairs is not None else ():
        assert pairs is not None
        plain, before = setting.trained(pairs, seed)
        sizes, training = parted(pairs.recipe, SIZES)
        _, pace = parted(training, LENGTHS)
        fresh, layerdrop = (f"fan-{name}-{seed}" for name in ("fresh", DROPPED))
        data = (*pairs.on("train"), "--seed", str(seed))
        # `learn` starts from a model: a new one, of the same seed and so with the same first weights, one step old
        words = ("train", "new-marian", *data, *pairs.beside("--dev-data", "val"), "--dev-limit", "100", *sizes, *pace)
        words += ("--steps", "1", "-o", setting.model(fresh), "--run", setting.run(fresh), "--force", *setting.flags)
        begun = Step(fresh, words)
        words = ("learn", setting.model(fresh), "--method", "layerdrop", "--units", "layers", *data, *training)
        words += (*pairs.beside("--report-data", "test"), *setting.limit(100, flag="--report-limit"))
        words += ("-o", setting.model(layerdrop), "--run", setting.run(layerdrop), "--force", *setting.flags)
        taught = Step(layerdrop, words, (fresh,))
        made += [*before, begun, taught]
        after = tuple(step.name for step in before)
        made += [_curve(setting, PLAIN, plain, seed, after)]
        made += [_curve(setting, DROPPED, setting.model(layerdrop), seed, (fresh, layerdrop))]
    return named_once(made)


def _curve(setting: Setting, which: str, model: str, seed: int, after: tuple[str, ...]) -> Step:
    """The command that closes layers one by one; nothing is scored, so other data to score on are only named."""
    pairs = setting.material.pairs
    assert pairs is not None
    name = name_of(which, seed)
    words = ("curve", model, "--units", "layers", "--by", ",".join(ORDERS), "--step", "1", *pairs.on("test"))
    words += (*setting.limit(100), *pairs.beside("--score-data", "val"), "--score-limit", "20")
    return Step(name, (*words, *setting.batch, "-o", setting.run(name), *setting.flags), after)


def name_of(which: str, seed: int) -> str:
    """The name of a curve's step."""
    return f"fan-curve-{which}-{seed}"


# -- what came out ---------------------------------------------------------------------------------------------------------


class Depths(NamedTuple):
    """A translator as its layers go: for each order, and number of layers gone, the mean over the curves of that order."""

    of: int
    whole: Comparison  # for its metric, and the score of the whole model
    after: dict[str, dict[int, float]]
    scores: dict[str, dict[int, Estimate]]  # the same in points, the higher the better, with the interval of the score
    gains: dict[str, dict[int, Estimate]]  # against the whole model, with the paired interval

    @property
    def counts(self) -> range:
        """Numbers of layers gone, up to half of them: beyond that little is left of any model."""
        return range(1, self.of // 2 + 1)

    def over(self, order: str, other: str, gone: int) -> Estimate:
        """How much better the model is without so many layers by one order than by another."""
        return self.gains[order][gone].minus(self.gains[other][gone])


def depths(document: CurvesDocument) -> Depths:
    """What curves.json says."""
    found: dict[str, dict[int, list[tuple[Comparison, Estimate]]]] = {order: {} for order in ORDERS}
    for curve in document.curves:
        for point in curve.points:
            compared, result = point.comparison, point.result
            sign = compared.points if compared.higher_is_better else -compared.points
            score = Estimate(result.value, result.low, result.high).times(sign)
            found[curve.by].setdefault(point.removed, []).append((compared, score))
    after = {order: {n: fmean(c.after for c, _ in some) for n, some in own.items()} for order, own in found.items()}
    scores, gains = (
        {order: {n: Estimate.average(map(what, some)) for n, some in own.items()} for order, own in found.items()}
        for what in (lambda both: both[1], lambda both: Estimate.gain(both[0]))
    )
    of, whole = document.curves[0].of, found[EVERY][0][0][0]
    made = Depths(of, whole, after, scores, gains)
    missing = [n for n in made.counts for own in after.values() if n not in own]
    if missing:
        raise ValueError(f"no point without {missing[0]} layers")
    return made


def models(found: Found, which: str) -> dict[int, Depths]:
    """The curves of one kind of translator by seed, as far as they are there."""
    read = {seed: found.read(name_of(which, seed), CurvesDocument, depths) for seed in found.setting.seeds}
    return {seed: one for seed, one in read.items() if one is not None}


class Both(NamedTuple):
    """The two translators of one seed."""

    plain: Depths
    dropped: Depths

    def ahead(self, gone: int) -> Estimate:
        """How much better the one with LayerDrop is without so many layers, every other one; or with all of them."""
        return self.dropped.scores[EVERY][gone].minus(self.plain.scores[EVERY][gone])


def pairs_of(found: Found) -> list[Both]:
    """Both translators of each seed that has both."""
    plain, dropped = models(found, PLAIN), models(found, DROPPED)
    both = [Both(plain[seed], dropped[seed]) for seed in plain if seed in dropped]
    return [one for one in both if one.plain.of == one.dropped.of and one.plain.counts]


# -- what to make of it ----------------------------------------------------------------------------------------------------


def claims(found: Found) -> list[Claim]:
    """LayerDrop makes a model robust to missing layers and costs nothing; every other layer is a good choice."""
    both, dropped = pairs_of(found), [one for one in models(found, DROPPED).values() if one.counts]
    compared = [_robust(found, both), _as_good(found, both)] if both else []
    return compared + [claim for other in (LOT, BLOCK) for claim in _choice(found, dropped, other)]


def _unit(one: Depths) -> str:
    return "BLEU" if one.whole.metric == "bleu" else one.whole.metric


def _where(found: Found, one: Depths) -> str:
    pairs = found.setting.material.pairs
    return f"{one.of} layers, {counted(one.whole.n, 'sentence')} of {pairs.name if pairs else 'pairs'}"


def _gained(value: float) -> str:
    return signed(value, 2)


def _robust(found: Found, both: list[Both]) -> Claim:
    means = {gone: mean_of(one.ahead(gone) for one in both) for gone in both[0].plain.counts}
    told = "; ".join(f"{gone} gone {mean.text(_gained)}" for gone, mean in means.items())
    ahead, behind = [mean.above(0) for mean in means.values()], [mean.below(0) for mean in means.values()]
    verdict = CONFIRMED if all(ahead) else NOT_CONFIRMED if all(behind) else UNTOLD
    if verdict == UNTOLD and any(ahead) and not any(behind):
        verdict = DIFFERS
    return Claim(
        "A model trained with LayerDrop can be cut to any depth at test time without fine-tuning, where one trained without "
        "loses much more.",
        f"Every other layer gone, with LayerDrop against without, in {_unit(both[0].plain)}, minus is worse: {told} "
        f"({means[1].how}; {_where(found, both[0].plain)}).",
        verdict,
        f"For every number of layers from one to half of them the 95 % interval of the mean difference, {COVERS}, lies above "
        f"zero, over {ENOUGH} seeds or more; it differs if that holds for some numbers and the opposite for none.",
    )


def _as_good(found: Found, both: list[Both]) -> Claim:
    mean = mean_of(one.ahead(0) for one in both)
    near = _unit(both[0].plain) == "BLEU" and mean.above(-NEAR)
    verdict = (DIFFERS if near else NOT_CONFIRMED) if mean.below(0) else CONFIRMED if near else UNTOLD
    return Claim(
        "With all layers a model trained with LayerDrop is as good or a little better: 29.3 and 29.6 BLEU (WMT, English to "
        "German), 34.4 and 34.5 (IWSLT, German to English).",
        f"With all layers, with LayerDrop against without: {mean.text(_gained)} {_unit(both[0].plain)}, minus is worse "
        f"({mean.how}; {_where(found, both[0].plain)}).",
        verdict,
        f"Over {ENOUGH} seeds or more the 95 % interval of the mean, {COVERS}, lies above {fixed(-NEAR, 1)} BLEU and not "
        "below zero; it differs if it lies between the two, and is not confirmed if it lies below zero and reaches further down.",
    )


def _choice(found: Found, models: list[Depths], other: str) -> list[Claim]:
    """Every other layer against another choice, in the model with LayerDrop; nothing where the two are the same."""
    # with one layer of each stack gone, every other one is the top one
    counts = [gone for gone in (models[0].counts if models else ()) if other != BLOCK or gone > 2]
    if not counts:
        return []
    mean = mean_of(Estimate.average(one.over(EVERY, other, n) for n in counts) for one in models)
    said, named = {
        LOT: (
            "Every other layer is a good choice of layers to drop; so it should be better than as many by lot.",
            "by lot",
        ),
        BLOCK: ("Dropping layers that follow each other is harmful.", "from the top"),
    }[other]
    return [
        Claim(
            said,
            f"In the model with LayerDrop, every other layer gone against as many {named}, mean over {counts[0]} to {counts[-1]} "
            f"layers gone: {mean.text(_gained)} {_unit(models[0])}, minus is worse ({mean.how}; {_where(found, models[0])}).",
            CONFIRMED if mean.above(0) else NOT_CONFIRMED if mean.below(0) else UNTOLD,
            f"The 95 % interval of the mean difference, {COVERS}, lies above zero, over {ENOUGH} seeds or more.",
        )
    ]


def sheets(found: Found) -> list[Sheet]:
    """What is left at each depth, and the published scores of whole models."""
    both = pairs_of(found)
    if not both:
        return []
    unit, of = _unit(both[0].plain), both[0].plain.of
    made: dict[str, dict[int, str]] = {}
    for name, some in zip(("without", "with LayerDrop"), zip(*both, strict=True), strict=True):
        for order, called in ORDERS.items():
            common = set.intersection(*(set(one.after[order]) for one in some))
            cells = {n: over_seeds([one.after[order][n] for one in some], _score) for n in common}
            made[f"{name}, {called}"] = cells
    columns = ("layers gone", *made)
    rows = [(f"{n} of {of}", *(cells.get(n, "") for cells in made.values())) for n in range(of + 1)]
    wholes = [over_seeds([one.whole.before for one in some], _score) for some in zip(*both, strict=True)]
    published = (
        ("WMT, English to German, theirs", "29.3", "29.6"),
        ("IWSLT, German to English, theirs", "34.4", "34.5"),
        (f"{_where(found, both[0].plain)}, {counted(len(both), 'seed')}, {unit}", *wholes),
    )
    return [
        Sheet("Whole models", ("data", "without LayerDrop", "with LayerDrop"), published),
        Sheet(f"{unit} as layers go, without training", columns, tuple(rows)),
    ]


def _score(value: float) -> str:
    return fixed(value, 2)


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "fan-layers",
        "Fan et al. 2020",
        "the tables of translation, and the figure of pruning at test time",
        "Does training with LayerDrop make a translator that can lose any of its layers without training again?",
        steps,
        claims,
        sheets,
    ),
)
