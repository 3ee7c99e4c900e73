"""Curves of models, for claims about them: the commands that measure them, and what is left of a score as heads go."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from statistics import fmean
from typing import NamedTuple

from ..documents.curves import Curve, CurvesDocument
from ..formatting import fixed, listed, three
from ..reporting.run_reader import ALPHA
from ..stats.paired_tests import holm
from ..stats.results import Comparison, difference_text
from .experiment import RunDocuments, Setting, Step, over_seeds
from .inputs import Corpus, Pairs
from .seeds import ENOUGH, Estimate, mean_of

VISIBLE = 0.98  # of the whole model's score: less would be seen in a figure


# -- the commands ----------------------------------------------------------------------------------------------------------


def corpora_of(setting: Setting) -> list[Corpus]:
    """The tasks that there is a model of, or that one can be trained on; a laptop takes the first."""
    able = [
        corpus
        for corpus in setting.material.corpora
        if corpus.ready is not None or setting.material.encoder is not None
    ]
    return able if setting.full else able[:1]


def chosen_on(setting: Setting, data: Corpus | Pairs, report: str, score: str, laptop: int, full: int) -> list[str]:
    """Flags for the data to report on, and for other data to score on; where both are one file, it is split in two."""
    same = getattr(data, report) == getattr(data, score)
    words = [*data.on(report), *setting.limit(2 * laptop if same else laptop)]
    if not same:
        words += [*data.beside("--score-data", score), *setting.limit(laptop, full, "--score-limit")]
    return words


def curve_step(setting: Setting, name: str, model: str, before: Sequence[Step], *words: str) -> Step:
    """A `curve` of a model that the steps before it make."""
    command = ("curve", model, *words, *setting.batch, "-o", setting.run(name), *setting.flags)
    return Step(name, command, tuple(step.name for step in before))


# -- what came out ---------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A curve of one model: the model without so many percent of its heads, against the whole one."""

    by: str
    points: dict[int, Comparison]

    @property
    def whole(self) -> Comparison:
        """Any point; all have the same `before`, metric and n."""
        return next(iter(self.points.values()))

    def nearest(self, share: int) -> int:
        """The share measured that is nearest to another: steps of 10 % of 48 heads end at 8, 19, 29, ... percent."""
        return min(self.points, key=lambda candidate: abs(candidate - share))

    def at(self, share: int) -> Comparison:
        """The point nearest to a share."""
        return self.points[self.nearest(share)]

    @property
    def lost(self) -> set[int]:
        """Shares at which the model is worse beyond chance: a paired test, Holm over the points of the curve."""
        corrected = holm([comparison.p for comparison in self.points.values()])
        tested_points = zip(self.points.items(), corrected, strict=True)
        return {share for (share, comparison), p in tested_points if comparison.worse and p <= ALPHA}

    @property
    def shown(self) -> int:
        """The largest share before the first at which a loss is beyond chance."""
        first = min(self.lost, default=101)
        return max((share for share in self.points if share < first), default=0)


def line_of(curve: Curve) -> Line:
    """A curve as its document has it."""
    of = max(1, curve.of)
    points = {round(100 * point.removed / of): point.comparison for point in curve.points[1:]}
    if not points:
        raise ValueError("a curve of one point")
    return Line(curve.by, dict(sorted(points.items())))


def lines_of(results: RunDocuments, name: str) -> list[Line]:
    """The curves of a run; none where it is not there (yet)."""
    return results.read(name, CurvesDocument, lambda data: [line_of(curve) for curve in data.curves]) or []


def able(lines: Sequence[Line]) -> list[Line]:
    """Those of models with a score above 0: of any other no share can be left."""
    return [line for line in lines if line.whole.before > 0]


def left(lines: Sequence[Line], share: int) -> float:
    """The mean of what each of these models (all of them able) keeps at a share, relative to its own whole score."""
    return fmean(line.at(share).after / line.whole.before for line in lines)


def share_left(line: Line, share: int) -> Estimate:
    """What an able model keeps at a share, in percent of its own whole score, with the paired interval over examples."""
    comparison = line.at(share)
    low, high = (100 * (1 + end / comparison.before) for end in (comparison.low, comparison.high))
    return Estimate(100 * comparison.after / comparison.before, low, high)


class RemainingScore(NamedTuple):
    """What is left of a score, in percent, with a 95 % interval; of two models it is the whole line."""

    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """With the interval, where there is one."""
        ends = f" [{fixed(self.low, 1)}, {fixed(self.high, 1)}]" if isfinite(self.low) else ""
        return f"{fixed(self.value, 1)}{ends} %"


def kept(lines: Sequence[Line], share: int) -> RemainingScore:
    """What able models keep at a share: for other models and examples from three models on, of one over its examples."""
    mean = mean_of(share_left(line, share) for line in lines)
    return (
        RemainingScore(*mean[:3]) if mean.seeds == 1 or mean.seeds >= ENOUGH else RemainingScore(mean.value, -inf, inf)
    )


def free(lines: Sequence[Line]) -> int:
    """The largest share such that there, and at every smaller one, 98 % is left on average."""
    best = 0
    for share in lines[0].points:
        if left(lines, share) < VISIBLE:
            break
        best = share
    return best


def unclear(lines: Sequence[Line]) -> str:
    """Why nothing can be said about what is left of a score, or nothing."""
    comparison, end = lines[0].whole, max(lines[0].points)
    if not comparison.higher_is_better:
        differences = [f"{difference_text(lines[0].at(share))} without {share} %" for share in (20, 40, 60)]
        return f"measured by {comparison.metric}, of which no share can be left: {listed(differences)}"
    if not able(lines) or left(able(lines), end) >= VISIBLE:
        ends = f"{score_text(lines, None)} with all heads and {score_text(lines, end)} with none"
        return f"the heads do nothing that {comparison.metric} could show: {ends}"
    return ""


def score_text(lines: Sequence[Line], share: int | None) -> str:
    """Mean of the models, lowest to highest; of the whole models where there is no share."""
    values = [line.whole.before if share is None else line.at(share).after for line in lines]
    in_points = lines[0].whole.metric in ("bleu", "chrf")
    return over_seeds(values, lambda value: fixed(value, 1) if in_points else three(value))


def percents_text(values: Sequence[float]) -> str:
    """As `over_seeds`, of numbers of percent."""
    return over_seeds(values, lambda value: f"{value:.0f}") + " %"
