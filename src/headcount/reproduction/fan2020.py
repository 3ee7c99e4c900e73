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
    RunDocuments,
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
    all_steps: list[Step] = []
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
        all_steps += [*before, begun, taught]
        after = tuple(step.name for step in before)
        all_steps += [_curve(setting, PLAIN, plain, seed, after)]
        all_steps += [_curve(setting, DROPPED, setting.model(layerdrop), seed, (fresh, layerdrop))]
    return named_once(all_steps)


def _curve(setting: Setting, variant: str, model: str, seed: int, after: tuple[str, ...]) -> Step:
    """The command that masks layers one by one; nothing is scored, so other data to score on are only named."""
    pairs = setting.material.pairs
    assert pairs is not None
    name = name_of(variant, seed)
    words = ("curve", model, "--units", "layers", "--by", ",".join(ORDERS), "--step", "1", *pairs.on("test"))
    words += (*setting.limit(100), *pairs.beside("--score-data", "val"), "--score-limit", "20")
    return Step(name, (*words, *setting.batch, "-o", setting.run(name), *setting.flags), after)


def name_of(variant: str, seed: int) -> str:
    """The name of a curve's step."""
    return f"fan-curve-{variant}-{seed}"


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

    def over(self, order: str, other_order: str, layers_removed: int) -> Estimate:
        """How much better the model is without so many layers by one order than by another."""
        return self.gains[order][layers_removed].minus(self.gains[other_order][layers_removed])


def depths(document: CurvesDocument) -> Depths:
    """What curves.json says."""
    points_by_order: dict[str, dict[int, list[tuple[Comparison, Estimate]]]] = {order: {} for order in ORDERS}
    for curve in document.curves:
        for point in curve.points:
            compared, result = point.comparison, point.result
            sign = compared.points if compared.higher_is_better else -compared.points
            score = Estimate(result.value, result.low, result.high).times(sign)
            points_by_order[curve.by].setdefault(point.removed, []).append((compared, score))
    after = {
        order: {n: fmean(c.after for c, _ in some) for n, some in own.items()} for order, own in points_by_order.items()
    }
    scores, gains = (
        {
            order: {n: Estimate.average(map(measure, some)) for n, some in own.items()}
            for order, own in points_by_order.items()
        }
        for measure in (lambda pair: pair[1], lambda pair: Estimate.gain(pair[0]))
    )
    of, full_comparison = document.curves[0].of, points_by_order[EVERY][0][0][0]
    translator = Depths(of, full_comparison, after, scores, gains)
    missing = [n for n in translator.counts for own in after.values() if n not in own]
    if missing:
        raise ValueError(f"no point without {missing[0]} layers")
    return translator


def models(results: RunDocuments, variant: str) -> dict[int, Depths]:
    """The curves of one kind of translator by seed, as far as they are there."""
    read = {seed: results.read(name_of(variant, seed), CurvesDocument, depths) for seed in results.setting.seeds}
    return {seed: translator for seed, translator in read.items() if translator is not None}


class SeedPair(NamedTuple):
    """The two translators of one seed."""

    plain: Depths
    dropped: Depths

    def ahead(self, layers_removed: int) -> Estimate:
        """How much better the one with LayerDrop is without so many layers, every other one; or with all of them."""
        return self.dropped.scores[EVERY][layers_removed].minus(self.plain.scores[EVERY][layers_removed])


def pairs_of(results: RunDocuments) -> list[SeedPair]:
    """Both translators of each seed that has both."""
    plain, dropped = models(results, PLAIN), models(results, DROPPED)
    translator_pairs = [SeedPair(plain[seed], dropped[seed]) for seed in plain if seed in dropped]
    return [pair for pair in translator_pairs if pair.plain.of == pair.dropped.of and pair.plain.counts]


# -- what to make of it ----------------------------------------------------------------------------------------------------


def claims(results: RunDocuments) -> list[Claim]:
    """LayerDrop makes a model robust to missing layers and costs nothing; every other layer is a good choice."""
    translator_pairs = pairs_of(results)
    dropped = [translator for translator in models(results, DROPPED).values() if translator.counts]
    compared = [_robust(results, translator_pairs), _as_good(results, translator_pairs)] if translator_pairs else []
    return compared + [claim for order in (LOT, BLOCK) for claim in _choice(results, dropped, order)]


def _unit(translator: Depths) -> str:
    return "BLEU" if translator.whole.metric == "bleu" else translator.whole.metric


def _where(results: RunDocuments, translator: Depths) -> str:
    pairs = results.setting.material.pairs
    return f"{translator.of} layers, {counted(translator.whole.n, 'sentence')} of {pairs.name if pairs else 'pairs'}"


def _gained(value: float) -> str:
    return signed(value, 2)


def _robust(results: RunDocuments, translator_pairs: list[SeedPair]) -> Claim:
    means = {
        layers_removed: mean_of(pair.ahead(layers_removed) for pair in translator_pairs)
        for layers_removed in translator_pairs[0].plain.counts
    }
    gains_text = "; ".join(f"{layers_removed} gone {mean.text(_gained)}" for layers_removed, mean in means.items())
    ahead, behind = [mean.above(0) for mean in means.values()], [mean.below(0) for mean in means.values()]
    verdict = CONFIRMED if all(ahead) else NOT_CONFIRMED if all(behind) else UNTOLD
    if verdict == UNTOLD and any(ahead) and not any(behind):
        verdict = DIFFERS
    return Claim(
        "A model trained with LayerDrop can be cut to any depth at test time without fine-tuning, where one trained without "
        "loses much more.",
        f"Every other layer gone, with LayerDrop against without, in {_unit(translator_pairs[0].plain)}, minus is worse: "
        f"{gains_text} ({means[1].how}; {_where(results, translator_pairs[0].plain)}).",
        verdict,
        f"For every number of layers from one to half of them the 95 % interval of the mean difference, {COVERS}, lies above "
        f"zero, over {ENOUGH} seeds or more; it differs if that holds for some numbers and the opposite for none.",
    )


def _as_good(results: RunDocuments, translator_pairs: list[SeedPair]) -> Claim:
    mean = mean_of(pair.ahead(0) for pair in translator_pairs)
    near = _unit(translator_pairs[0].plain) == "BLEU" and mean.above(-NEAR)
    verdict = (DIFFERS if near else NOT_CONFIRMED) if mean.below(0) else CONFIRMED if near else UNTOLD
    return Claim(
        "With all layers a model trained with LayerDrop is as good or a little better: 29.3 and 29.6 BLEU (WMT, English to "
        "German), 34.4 and 34.5 (IWSLT, German to English).",
        f"With all layers, with LayerDrop against without: {mean.text(_gained)} {_unit(translator_pairs[0].plain)}, minus is "
        f"worse ({mean.how}; {_where(results, translator_pairs[0].plain)}).",
        verdict,
        f"Over {ENOUGH} seeds or more the 95 % interval of the mean, {COVERS}, lies above {fixed(-NEAR, 1)} BLEU and not "
        "below zero; it differs if it lies between the two, and is not confirmed if it lies below zero and reaches further down.",
    )


def _choice(results: RunDocuments, models: list[Depths], other_order: str) -> list[Claim]:
    """Every other layer against another choice, in the model with LayerDrop; nothing where the two are the same."""
    # with one layer of each stack gone, every other one is the top one
    counts = [
        layers_removed
        for layers_removed in (models[0].counts if models else ())
        if other_order != BLOCK or layers_removed > 2
    ]
    if not counts:
        return []
    mean = mean_of(Estimate.average(translator.over(EVERY, other_order, n) for n in counts) for translator in models)
    statement, named = {
        LOT: (
            "Every other layer is a good choice of layers to drop; so it should be better than as many by lot.",
            "by lot",
        ),
        BLOCK: ("Dropping layers that follow each other is harmful.", "from the top"),
    }[other_order]
    return [
        Claim(
            statement,
            f"In the model with LayerDrop, every other layer gone against as many {named}, mean over {counts[0]} to {counts[-1]} "
            f"layers gone: {mean.text(_gained)} {_unit(models[0])}, minus is worse ({mean.how}; {_where(results, models[0])}).",
            CONFIRMED if mean.above(0) else NOT_CONFIRMED if mean.below(0) else UNTOLD,
            f"The 95 % interval of the mean difference, {COVERS}, lies above zero, over {ENOUGH} seeds or more.",
        )
    ]


def sheets(results: RunDocuments) -> list[Sheet]:
    """What is left at each depth, and the published scores of whole models."""
    translator_pairs = pairs_of(results)
    if not translator_pairs:
        return []
    unit, of = _unit(translator_pairs[0].plain), translator_pairs[0].plain.of
    cells_by_column: dict[str, dict[int, str]] = {}
    for name, some in zip(("without", "with LayerDrop"), zip(*translator_pairs, strict=True), strict=True):
        for order, called in ORDERS.items():
            common = set.intersection(*(set(translator.after[order]) for translator in some))
            cells = {n: over_seeds([translator.after[order][n] for translator in some], _score) for n in common}
            cells_by_column[f"{name}, {called}"] = cells
    columns = ("layers gone", *cells_by_column)
    rows = [(f"{n} of {of}", *(cells.get(n, "") for cells in cells_by_column.values())) for n in range(of + 1)]
    wholes = [
        over_seeds([translator.whole.before for translator in some], _score)
        for some in zip(*translator_pairs, strict=True)
    ]
    published = (
        ("WMT, English to German, theirs", "29.3", "29.6"),
        ("IWSLT, German to English, theirs", "34.4", "34.5"),
        (f"{_where(results, translator_pairs[0].plain)}, {counted(len(translator_pairs), 'seed')}, {unit}", *wholes),
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
