"""Michel et al. 2019, Tables 2, 3, 5 and 6: a model with one head alone in an attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...documents.ablation import AllButOneDocument
from ...formatting import signed, with_commas
from ...plans import type_of
from ...reporting.run_reader import beyond_chance
from ...stats.results import Comparison, difference_text, unit_of
from ..experiment import CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD, Claim, RunDocuments, Setting, Sheet
from ..inputs import Corpus
from ..models import (
    DASH,
    MOST,
    Question,
    asked,
    beyond,
    classifiers,
    decimals,
    difference,
    excludes,
    layer_of,
    read,
    together,
    translators,
)
from ..seeds import COVERS, ENOUGH, Estimate, mean_of

# Tables 2 and 5: BLEU with one head left in an attention; chosen on the sentences it is reported on, and on other ones
TABLE_2 = {
    "encoder": (-1.31, -0.16, 0.12, -0.15, 0.02, -0.36),
    "cross": (0.24, 0.06, 0.05, -0.24, -1.55, -13.56),
    "decoder": (-0.03, 0.12, 0.18, 0.17, -0.04, 0.24),
}
TABLE_5 = {
    "encoder": (-1.96, -0.57, -0.45, -0.30, -0.32, -0.67),
    "cross": (0.02, 0.09, -0.42, -0.60, -2.75, -18.89),
    "decoder": (0.03, -0.13, 0.00, -0.31, -0.66, -0.03),
}
# Tables 3 and 6: the same for BERT's 12 layers on MNLI, in points of accuracy
TABLE_3 = (-0.01, 0.10, -0.14, -0.53, -0.29, -0.52, 0.05, -0.72, -0.96, 0.07, -0.19, -0.12)
TABLE_6 = (-0.01, -0.02, -0.26, -0.53, -0.29, -0.52, 0.05, -0.72, -0.96, 0.07, -0.19, -0.15)
WORST = -min(TABLE_6)  # points
TYPES = {"encoder": "encoder", "cross": "cross", "decoder": "decoder self"}


def one_head_steps(setting: Setting) -> list[Question]:
    """`ablate --all-but-one`: chosen on training examples, or on the validation set of a translator."""
    out = []
    for subject in (*classifiers(setting, setting.material.corpora, None), *translators(setting, None)):
        if isinstance(subject.source, Corpus):
            data = (*subject.source.on("dev"), *subject.source.beside("--select-data", "train"))
            limits = (*setting.limit(300), *setting.limit(300, 5000, "--select-limit"))
        else:
            data = (*subject.source.on("test"), *subject.source.beside("--select-data", "val"))
            limits = (*setting.limit(100), *setting.limit(100, flag="--select-limit"))
        words = ("ablate", subject.folder, *data, "--all-but-one", *limits)
        out.append(asked(setting, subject, f"michel-one-head-{subject.name}", words))
    return out


class OneHead(NamedTuple):
    """A model with one head left in each attention in turn: measured on other examples than it was chosen on, and on those."""

    asked: Question
    n: int
    left: dict[str, Comparison]  # by site, in the order of the model
    same: dict[str, float]  # the difference on the examples it was chosen on, in points
    chosen_on: int  # how many examples that are

    @property
    def in_points(self) -> bool:
        """Whether a loss of one point means something in this metric."""
        return all(unit_of(comparison) == "points" for comparison in self.left.values())

    @property
    def worst(self) -> str:
        """The attention that loses most."""
        return max(self.left, key=lambda site: self.left[site].damage)


def _one_head(question: Question, data: AllButOneDocument) -> OneHead:
    comparisons = {row.site: row.comparison for row in data.attentions}
    chosen = {row.site: row.chosen_on for row in data.attentions}
    if data.select is None:
        raise ValueError("select is missing")
    if not comparisons or (question.kind == "translator" and not any(type_of(site) == "cross" for site in comparisons)):
        raise ValueError("there should be attentions, and of a translator such that look at the source")
    before = data.select.value
    same = {site: (value - before) * comparisons[site].points for site, value in chosen.items()}
    ordered = {site: comparisons[site] for site in sorted(comparisons, key=layer_of)}
    return OneHead(question, data.base.n, ordered, same, data.select.n)


def _named(site: str) -> str:
    """An attention for people, layers counted from 1 as in the paper."""
    kind = type_of(site)
    return f"layer {layer_of(site) + 1}" + (f" ({TYPES[kind]})" if kind else "")


def _worst_text(ablation: OneHead) -> str:
    most = f"most in {_named(ablation.worst)}, {difference_text(ablation.left[ablation.worst])}"
    return f"{ablation.asked.subject.title}: {most} (n={with_commas(ablation.n)})"


def _cheap_everywhere(ablation: OneHead) -> str:
    """Table 6: no layer of BERT loses more than 0.96 points."""
    if not ablation.in_points:
        return UNTOLD
    compared = list(ablation.left.values())
    lost = sum(beyond(c, WORST) and beyond_chance(c) for c in compared)
    if lost:
        return NOT_CONFIRMED if 2 * lost > len(compared) else DIFFERS
    return CONFIRMED if all(c.damage <= WORST and excludes(c, 2) for c in compared) else UNTOLD


def _cheap_mostly(ablation: OneHead) -> str:
    """Table 5: most attentions of a translator lose less than 1 BLEU."""
    compared = list(ablation.left.values())
    if 2 * sum(excludes(c, 1) for c in compared) > len(compared):
        return CONFIRMED
    return NOT_CONFIRMED if 2 * sum(beyond(c, 1) for c in compared) >= len(compared) else UNTOLD


def _last_cross(ablation: OneHead) -> str:
    return max((site for site in ablation.left if type_of(site) == "cross"), key=layer_of)


def _last_collapses(ablation: OneHead) -> str:
    """Table 5: the last cross-attention loses most, and by far."""
    worst, last = ablation.left[ablation.worst], ablation.left[_last_cross(ablation)]
    quarter = abs(last.before * last.points) / 4
    if not ablation.in_points:
        return UNTOLD
    if beyond_chance(worst) and type_of(ablation.worst) == "cross":
        if beyond(last, quarter) and all(c is last or last.high < c.low for c in ablation.left.values()):
            return CONFIRMED
        return DIFFERS if excludes(last, quarter) or worst.high < last.low else UNTOLD
    return NOT_CONFIRMED if beyond_chance(worst) or excludes(last, quarter) else UNTOLD


def _enough(ablations: Sequence[OneHead]) -> Claim:
    return Claim(
        f"Table 6: with one head left in any one layer, chosen on other examples, BERT on MNLI loses at most {WORST} points.",
        ". ".join(map(_worst_text, ablations)) + ".",
        together([_cheap_everywhere(ablation) for ablation in ablations]),
        f"Confirmed if every layer measures a loss of at most {WORST} points and its 95 % interval excludes a loss of 2; differs "
        f"if the interval of a layer that is significant after Holm lies beyond {WORST}, not confirmed if that is so in most "
        "layers." + MOST,
    )


def _cheap_text(ablation: OneHead) -> str:
    title, compared = ablation.asked.subject.title, list(ablation.left.values())
    if not ablation.in_points:
        return f"{title}: measured by the {compared[0].metric}, of which a loss of 1 BLEU cannot be told"
    cheap, dear = sum(excludes(c, 1) for c in compared), sum(beyond(c, 1) for c in compared)
    return f"{title}: in {cheap} of {len(compared)} attentions the interval excludes a loss of 1 point, in {dear} it lies beyond"


def _mostly_enough(ablations: Sequence[OneHead]) -> Claim:
    theirs = [value for row in TABLE_5.values() for value in row]
    return Claim(
        f"Table 5: {sum(value > -1 for value in theirs)} of the {len(theirs)} attentions of a translator lose less than 1 BLEU "
        "with one head left, chosen on other sentences.",
        ". ".join(map(_cheap_text, ablations)) + ".",
        together([_cheap_mostly(ablation) for ablation in ablations]),
        "Confirmed if for more than half of the attentions the 95 % interval excludes a loss of 1 BLEU; not confirmed if for "
        "half of them or more it lies beyond that." + MOST,
    )


def _collapse(ablations: Sequence[OneHead]) -> Claim:
    findings = [
        f"{_worst_text(ablation)}; the last cross-attention {difference(ablation.left[_last_cross(ablation)])}"
        for ablation in ablations
    ]
    return Claim(
        "Table 5: with one head left the last encoder-decoder attention collapses, by 18.89 BLEU (13.56 in Table 2).",
        ". ".join(findings) + ".",
        together([_last_collapses(ablation) for ablation in ablations]),
        "Confirmed if the last cross-attention loses most, significantly after Holm, and its 95 % interval lies beyond those of "
        "all other attentions and beyond a quarter of the BLEU; differs if a cross-attention loses most, significantly, but the "
        "interval of the last one excludes a quarter, or that of another lies beyond it; not confirmed if one that is no "
        "cross-attention loses most, significantly, or a loss of a quarter is excluded and nothing is significant."
        + MOST,
    )


def _gap(ablation: OneHead, site: str) -> Estimate:
    """How much better one head looks on the examples it was chosen on than on the others, in points."""
    gain = Estimate.gain(ablation.left[site])
    same = ablation.same[site] if ablation.left[site].higher_is_better else -ablation.same[site]
    # what is kept of the examples that were chosen on is a number alone: so many of the others would reach as far
    wider = math.sqrt(ablation.n / ablation.chosen_on)
    down, up = (wider * reach for reach in (gain.value - gain.low, gain.high - gain.value))
    return Estimate(same, same - down, same + up).minus(gain)


def _flattered(ablations: Sequence[OneHead]) -> Claim:
    """Of translators only: a classifier chooses on examples that it was trained on, where everything is different."""
    gaps = [[_gap(ablation, site) for site in ablation.left] for ablation in ablations]
    more = sum(gap.value > 0 for some in gaps for gap in some)
    mean = mean_of(map(Estimate.average, gaps))  # the attentions of a model share its scores: it counts once
    theirs = [same > held_out for kind in TABLE_2 for same, held_out in zip(TABLE_2[kind], TABLE_5[kind], strict=True)]
    first = next(iter(ablations[0].left.values()))
    return Claim(
        "Tables 2 and 5: one head that was chosen on the very sentences looks better than one that was chosen elsewhere, in "
        f"{sum(theirs)} of {len(theirs)} attentions (the sentences of the two tables differ, too).",
        f"{ablations[0].asked.subject.source.name}: it looks better in {more} of {sum(map(len, gaps))} attentions, on average by "
        f"{mean.text(lambda value: signed(value, decimals(first)))} {unit_of(first)} ({mean.how}), validation against test set.",
        CONFIRMED if mean.above(0) else NOT_CONFIRMED if mean.below(0) else UNTOLD,
        f"Confirmed if the 95 % interval {COVERS} ({ENOUGH} or more trainings) of each one's mean gap between the two lies "
        "above 0; not confirmed if below. That of the sentences that were chosen on is taken to be as wide as that of as many "
        "of the others.",
    )


def one_head_claims(results: RunDocuments) -> list[Claim]:
    """Whether one head is enough, where it is not, and what choosing on the same examples hides."""
    every = read(results, one_head_steps, AllButOneDocument, _one_head)
    claim_makers = {"classifier": (_enough,), "translator": (_mostly_enough, _collapse, _flattered)}
    by_kind = {kind: [ablation for ablation in every if ablation.asked.kind == kind] for kind in claim_makers}
    return [make(by_kind[kind]) for kind, makers in claim_makers.items() if by_kind[kind] for make in makers]


def one_head_sheets(results: RunDocuments) -> list[Sheet]:
    """Tables 3 and 6 beside each corpus, Tables 2 and 5 beside the translators."""
    groups: dict[str, list[OneHead]] = {}
    for ablation in read(results, one_head_steps, AllButOneDocument, _one_head):
        groups.setdefault(ablation.asked.subject.source.name, []).append(ablation)
    out = []
    for name, ablations in groups.items():
        classifies = ablations[0].asked.kind == "classifier"
        whose, same_table, other_table = ("BERT on MNLI", 3, 6) if classifies else ("WMT English-French", 2, 5)
        columns = ["layer", f"Table {same_table}: same examples", f"Table {other_table}: other examples"]
        example_sets = ("same (train)", "other (dev)") if classifies else ("same (val)", "other (test)")
        columns += [
            f"{ablation.asked.subject.title}: {example_set}" for ablation in ablations for example_set in example_sets
        ]
        title = f"Tables {same_table} and {other_table} ({whose}), and {name} here: what one head left in an attention changes, "
        title += f"in {unit_of(next(iter(ablations[0].left.values())))}"
        theirs = {"": (TABLE_3, TABLE_6)} if classifies else {kind: (TABLE_2[kind], TABLE_5[kind]) for kind in TYPES}
        out.append(Sheet(title, tuple(columns), _rows(theirs, ablations)))
    return out


def _rows(
    theirs: Mapping[str, tuple[tuple[float, ...], ...]], ablations: Sequence[OneHead]
) -> tuple[tuple[str, ...], ...]:
    """A row per attention of either side, layers counted from 1; a dash where one side has none."""
    ours = [
        {(type_of(site) if len(theirs) > 1 else "", layer_of(site)): site for site in ablation.left}
        for ablation in ablations
    ]
    rows = []
    for kind, published in theirs.items():
        depths = [len(published[0]), *(layer + 1 for sites in ours for of, layer in sites if of == kind)]
        for layer in range(max(depths)):
            cells = [signed(side[layer], 2) if layer < len(side) else DASH for side in published]
            for ablation, sites in zip(ablations, ours, strict=True):
                site = sites.get((kind, layer))
                cells += [DASH, DASH] if site is None else _cells(ablation, site)
            rows.append((f"{layer + 1}" + (f", {TYPES[kind]}" if kind else ""), *cells))
    return tuple(rows)


def _cells(ablation: OneHead, site: str) -> list[str]:
    return [signed(ablation.same[site], decimals(ablation.left[site])), difference(ablation.left[site])]
