"""Michel et al. 2019, section 3: a model without one head (Figure 1, Table 1), and what else they ask about single heads."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from ...documents.ablation import AblationDocument
from ...documents.results import ResultDocument
from ...formatting import counted, listed, result_text, signed, with_commas
from ...plans import site_of, type_of
from ...stats.paired_tests import benjamini_hochberg, holm
from ...stats.results import Comparison
from ..experiment import CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD, Claim, Experiment, RunDocuments, Setting, Sheet
from ..inputs import Corpus
from ..models import (
    DASH,
    MOST,
    PAPER,
    Question,
    asked,
    classifiers,
    decimals,
    difference,
    excludes,
    layer_of,
    read,
    steps_of,
    together,
    translators,
)
from .one_head import one_head_claims, one_head_sheets, one_head_steps
from .transfer import transfer_claims, transfer_sheets, transfer_steps

# Table 1: BLEU without each of 16 heads less the whole model's 36.05, for the 6 layers of the encoder
TABLE_1 = (
    (0.03, 0.07, 0.05, -0.06, 0.03, -0.53, 0.09, -0.33, 0.06, 0.03, 0.11, 0.04, 0.01, -0.04, 0.04, 0.00),
    (0.01, 0.04, 0.10, 0.20, 0.06, 0.03, 0.00, 0.09, 0.10, 0.04, 0.15, 0.03, 0.05, 0.04, 0.14, 0.04),
    (0.05, -0.01, 0.08, 0.09, 0.11, 0.02, 0.03, 0.03, -0.00, 0.13, 0.09, 0.09, -0.11, 0.24, 0.07, -0.04),
    (-0.02, 0.03, 0.13, 0.06, -0.05, 0.13, 0.14, 0.05, 0.02, 0.14, 0.05, 0.06, 0.03, -0.06, -0.10, -0.06),
    (-0.31, -0.11, -0.04, 0.12, 0.10, 0.02, 0.09, 0.08, 0.04, 0.21, -0.02, 0.02, -0.03, -0.04, 0.07, -0.02),
    (0.06, 0.07, -0.31, 0.15, -0.19, 0.15, 0.11, 0.05, 0.01, -0.08, 0.06, 0.01, 0.01, 0.02, 0.07, 0.05),
)

HALF = (0.25, 0.75)  # what passes for about half


def head_steps(setting: Setting) -> list[Question]:
    """`ablate --each` of a classifier of each corpus, and of a translator."""
    out = []
    for subject in (*classifiers(setting, setting.material.corpora), *translators(setting)):
        data = subject.source.on("dev" if isinstance(subject.source, Corpus) else "test")
        limit = setting.limit(400 if isinstance(subject.source, Corpus) else 100)
        out.append(
            asked(setting, subject, f"michel-heads-{subject.name}", ("ablate", subject.folder, *data, "--each", *limit))
        )
    return out


class OneLess(NamedTuple):
    """A model without each of its heads in turn; of a translator, `ours` are the heads of its encoder."""

    asked: Question
    base: ResultDocument
    every: dict[str, Comparison]
    ours: dict[str, Comparison]


def _one_less(question: Question, data: AblationDocument) -> OneLess:
    every = {row.closed: row.comparison for row in data.ablations}
    ours = {
        unit: comparison
        for unit, comparison in every.items()
        if question.kind == "classifier" or type_of(site_of(unit)) == "encoder"
    }
    if not ours:
        raise ValueError("no head of an encoder")
    return OneLess(question, data.base, every, ours)


def _significant(compared: Sequence[Comparison]) -> list[Comparison]:
    """Those at p < 0.01, not corrected, as in the paper."""
    return [comparison for comparison in compared if comparison.p < 0.01]


def _corrected(compared: Sequence[Comparison]) -> tuple[list[Comparison], list[Comparison]]:
    """Those at 0.05 after Benjamini-Hochberg and after Holm, each over these heads."""
    p = [comparison.p for comparison in compared]
    ways = (benjamini_hochberg(p), holm(p))
    first, second = ([comparison for comparison, q in zip(compared, way, strict=True) if q <= 0.05] for way in ways)
    return first, second


def _most_can_go(ablation: OneLess) -> str:
    compared = list(ablation.ours.values())
    if ablation.base.metric == "loss":
        return UNTOLD
    if 2 * len(_significant(compared)) >= len(compared):
        return NOT_CONFIRMED
    return CONFIRMED if 2 * sum(excludes(c, 1) for c in compared) > len(compared) else UNTOLD


def _told_of_heads(ablation: OneLess) -> str:
    compared, encoder = list(ablation.ours.values()), " of the encoder" if ablation.asked.kind == "translator" else ""
    by_bh, by_holm = _corrected(compared)
    base = ablation.base
    text = f"{ablation.asked.subject.title} ({base.metric} {result_text(base)}, n={with_commas(base.n)}): "
    text += f"{len(_significant(compared))} of {len(compared)} heads{encoder} at p < 0.01, "
    text += f"{sum(c.p <= 0.05 for c in compared)} at p ≤ 0.05, {len(by_bh)} after Benjamini-Hochberg, {len(by_holm)} after Holm"
    if ablation.base.metric == "loss":
        return text + "; measured by the loss, not by what the paper measures"
    return text + f"; for {sum(excludes(c, 1) for c in compared)} the interval excludes a loss of 1 point"


def _half_are_better(ablations: Sequence[OneLess]) -> Claim:
    """Of translators, whose Table 1 marks heads by what they do to BLEU."""
    significant = [c for ablation in ablations for c in _significant(list(ablation.ours.values()))]
    better = sum(not c.worse for c in significant)
    sure = sum(not c.worse for ablation in ablations for c in _corrected(list(ablation.ours.values()))[0])
    low, high = share_interval(better, len(significant))
    if any(ablation.base.metric == "loss" for ablation in ablations):
        verdict = UNTOLD
    elif high < HALF[0]:
        verdict = NOT_CONFIRMED
    elif low > HALF[1]:
        verdict = DIFFERS
    else:
        verdict = CONFIRMED if sure and low > HALF[0] and high < HALF[1] else UNTOLD
    heads = sum(len(ablation.ours) for ablation in ablations)
    finding = f"{listed([ablation.asked.subject.title for ablation in ablations])}: of {counted(heads, 'head')} of the encoder, "
    finding += f"{len(significant)} at p < 0.01, {better} of them better gone ({100 * low:.0f} to {100 * high:.0f} %); "
    finding += f"after Benjamini-Hochberg {sure} better gone"
    return Claim(
        "Table 1: about half of the 8 encoder heads that make a significant difference make BLEU better by leaving.",
        finding + ("; measured by the loss." if ablations[0].base.metric == "loss" else "."),
        verdict,
        f"Confirmed if the exact 95 % interval (Clopper-Pearson, heads taken as independent) of the share better gone among "
        f"those at p < 0.01 lies within {100 * HALF[0]:.0f} to {100 * HALF[1]:.0f} %, and a head is better gone after "
        "Benjamini-Hochberg at 5 %; not confirmed if it lies below that, differs if above.",
    )


def share_interval(some: int, every: int) -> tuple[float, float]:
    """The exact 95 % interval (Clopper-Pearson) of the probability of something that was seen so often."""
    from scipy.stats import binomtest  # slow to import

    if every == 0:
        return 0.0, 1.0
    interval = binomtest(some, every).proportion_ci(confidence_level=0.95, method="exact")
    return float(interval.low), float(interval.high)


def heads_claims(results: RunDocuments) -> list[Claim]:
    """Whether most heads can go one at a time, and whether some of them do harm."""
    every = read(results, head_steps, AblationDocument, _one_less)
    papers = {
        "translator": "Table 1: most heads can go: of the 96 of a large translator's encoder (36.05 BLEU) 8 make a significant "
        "difference when they are removed one at a time (p < 0.01, not corrected).",
        "classifier": "Figure 1: most heads of BERT on MNLI, too, can go one at a time without a significant difference.",
    }
    by_kind = {kind: [ablation for ablation in every if ablation.asked.kind == kind] for kind in papers}
    out = [
        Claim(
            paper,
            ". ".join(map(_told_of_heads, by_kind[kind])) + ".",
            together([_most_can_go(ablation) for ablation in by_kind[kind]]),
            "Confirmed if fewer than half of the heads differ at p < 0.01, not corrected, and for more than half the 95 % "
            "interval excludes a loss of 1 point; not confirmed if half or more differ." + MOST,
        )
        for kind, paper in papers.items()
        if by_kind[kind]
    ]
    return out + ([_half_are_better(by_kind["translator"])] if by_kind["translator"] else [])


def heads_sheets(results: RunDocuments) -> list[Sheet]:
    """How many heads make a difference, and Table 1 by layer."""
    every = read(results, head_steps, AblationDocument, _one_less)
    if not every:
        return []
    largest = signed(min(min(row) for row in TABLE_1), 2)
    theirs = (f"{PAPER}, WMT English-French", "36.05 bleu", "96, encoder", "8", "4", DASH, DASH, DASH, largest)
    rows: list[tuple[str, ...]] = [theirs]
    for ablation in every:
        rows += [_counts(ablation, "encoder", ablation.ours)] if ablation.asked.kind == "translator" else []
        rows += [_counts(ablation, "all", ablation.every)]
    columns = (
        "model",
        "whole model",
        "heads",
        "p < 0.01",
        "of these better gone",
        "p ≤ 0.05",
        "Benjamini-Hochberg",
        "Holm",
    )
    first = Sheet("Heads that make a difference, removed one at a time", (*columns, "largest loss"), tuple(rows))
    return [first, *(_table_1(ablation) for ablation in every if ablation.asked.kind == "translator")]


def _counts(ablation: OneLess, part: str, heads: dict[str, Comparison]) -> tuple[str, ...]:
    compared = list(heads.values())
    significant = _significant(compared)
    counts = (
        len(significant),
        sum(not c.worse for c in significant),
        sum(c.p <= 0.05 for c in compared),
        *map(len, _corrected(compared)),
    )
    model = (
        ablation.asked.subject.title,
        f"{result_text(ablation.base)} {ablation.base.metric}",
        f"{len(compared)}, {part}",
    )
    return (*model, *map(str, counts), difference(max(compared, key=lambda c: c.damage)))


def _table_1(ablation: OneLess) -> Sheet:
    """The least, the middle and the largest difference among the heads of a layer, on both sides."""
    ours: dict[int, list[float]] = {}
    for unit, c in ablation.ours.items():
        ours.setdefault(layer_of(site_of(unit)), []).append(c.difference * c.points)
    finer = max(map(decimals, ablation.ours.values()))
    rows = []
    for layer in range(max(len(TABLE_1), max(ours) + 1)):
        cells = []
        for side, digits in ((TABLE_1[layer] if layer < len(TABLE_1) else (), 2), (ours.get(layer, ()), finer)):
            cells += [signed(pick(side), digits) for pick in (min, median, max)] if side else [DASH] * 3
        rows.append((str(layer + 1), *cells))
    headings = [f"{side}: {statistic}" for side in ("theirs", "here") for statistic in ("lowest", "median", "highest")]
    title = f"Table 1: what removing one head of the encoder changes, in bleu, and in {ablation.base.metric} for "
    return Sheet(title + ablation.asked.subject.title, ("layer", *headings), tuple(rows))


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "michel-heads",
        PAPER,
        "Figure 1 and Table 1",
        "How many heads make a difference when one is removed?",
        steps_of(head_steps),
        heads_claims,
        heads_sheets,
    ),
    Experiment(
        "michel-one-head",
        PAPER,
        "Tables 2, 3, 5 and 6",
        "Is one head per attention enough?",
        steps_of(one_head_steps),
        one_head_claims,
        one_head_sheets,
    ),
    Experiment(
        "michel-transfer",
        PAPER,
        "Figure 2",
        "Do the same heads matter on other data?",
        steps_of(transfer_steps),
        transfer_claims,
        transfer_sheets,
    ),
)
