"""What several trainings say together: a mean over seeds, and what other seeds and examples would give. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from scipy.special import stdtrit

from ..documents.results import ResultDocument
from ..documents.training import TrainingDocument
from ..errors import BadRun
from ..formatting import result_text
from ..stats.metrics import metric
from ..stats.results import Comparison
from .experiment import RunDocuments
from .runner import Step

LEVEL = 0.95
ENOUGH = 3  # seeds below which nothing is said about a difference between trainings
COVERS = "for other seeds and other examples"
SEEDS_ALONE = "for other seeds alone"
LEAST = 0.5  # the share of the best seed's score below which a training has learned nothing worth pruning


class Estimate(NamedTuple):
    """A number measured on one model, with its 95 % interval: what it could have been on other examples."""

    value: float
    low: float
    high: float

    def minus(self, other: Estimate) -> Estimate:
        """The difference to another one, measured on the same examples or on others.

        Its reach is the root of the sum of their squares. That is exact where the two do not go together over examples, and
        too wide where they do, as two models that were asked about the same examples and compared with the same one should.
        """
        value = self.value - other.value
        down = math.hypot(self.value - self.low, other.high - other.value)
        up = math.hypot(self.high - self.value, other.value - other.low)
        return Estimate(value, value - down, value + up)

    def times(self, factor: float) -> Estimate:
        """The same in another unit; a negative factor turns it round."""
        low, high = sorted((factor * self.low, factor * self.high))
        return Estimate(factor * self.value, low, high)

    @classmethod
    def gain(cls, comparison: Comparison) -> Estimate:
        """How much better a model is after a change than before, in points; below zero where it is worse."""
        sign = comparison.points if comparison.higher_is_better else -comparison.points
        return cls(comparison.difference, comparison.low, comparison.high).times(sign)

    @classmethod
    def average(cls, some: Iterable[Estimate]) -> Estimate:
        """The mean of several numbers from the same examples, and of their ends: as wide as if all went together."""
        return cls(*(math.fsum(ends) / len(ends) for ends in zip(*some, strict=True)))


class Mean(NamedTuple):
    """The mean over seeds, with a 95 % interval: what other seeds would give, and other examples where it covers them."""

    value: float
    low: float
    high: float
    seeds: int
    examples: bool  # whether the interval covers other examples, too

    def above(self, line: float) -> bool:
        """Whether there are enough seeds to say that it lies above the line."""
        return self.seeds >= ENOUGH and self.low > line

    def below(self, line: float) -> bool:
        """Whether there are enough seeds to say that it lies below the line."""
        return self.seeds >= ENOUGH and self.high < line

    @property
    def _told(self) -> bool:
        """Whether the interval says anything: from three seeds on, or of one seed over its examples."""
        return self.seeds >= ENOUGH or (self.seeds == 1 and self.examples)

    def text(self, format_value: Callable[[float], str]) -> str:
        """The mean with its interval; without one if there are too few seeds for it to say anything."""
        return format_value(self.value) + (
            f" [{format_value(self.low)}, {format_value(self.high)}]" if self._told else ""
        )

    @property
    def how(self) -> str:
        """What the numbers of `text` are."""
        if self.seeds == 1:
            return "one seed, with its 95 % interval over examples" if self.examples else "one seed"
        if self.seeds < ENOUGH:
            return f"mean over {self.seeds} seeds"
        return f"mean over {self.seeds} seeds with its 95 % interval, {COVERS if self.examples else SEEDS_ALONE}"


def mean_of(estimates: Iterable[Estimate]) -> Mean:
    """The mean of one number per seed, all from the same examples, with an interval for other seeds and other examples.

    Seeds are few, so theirs is Student's reach. What the examples do to all seeds alike it cannot see, and that does not
    shrink with the number of seeds: the mean reach over examples of one seed is added, as the root of the sum of squares.
    Of one seed there is the interval over examples alone, and of fewer than three nothing is above or below a line.
    """
    seed_estimates = list(estimates)
    alone = mean_over_seeds(estimate.value for estimate in seed_estimates)
    average = Estimate.average(seed_estimates)
    down, up = alone.value - average.low, average.high - alone.value
    if alone.seeds > 1:
        down, up = (math.hypot(alone.high - alone.value, reach) for reach in (down, up))
    return Mean(alone.value, alone.value - down, alone.value + up, alone.seeds, examples=True)


def mean_over_seeds(values: Iterable[float]) -> Mean:
    """The mean of one value per seed with Student's interval over seeds: for what is not measured on examples.

    Of fewer than two seeds nothing is known, and the interval is the whole line.
    """
    seed_values = list(values)
    if not seed_values:
        raise BadRun("There is no value to take the mean of; run the experiment's commands first.")
    mean = math.fsum(seed_values) / len(seed_values)
    if len(seed_values) < 2:
        return Mean(mean, -math.inf, math.inf, len(seed_values), examples=False)
    variance = math.fsum((value - mean) ** 2 for value in seed_values) / (len(seed_values) - 1)
    reach = float(stdtrit(len(seed_values) - 1, (1 + LEVEL) / 2)) * math.sqrt(variance / len(seed_values))
    return Mean(mean, mean - reach, mean + reach, len(seed_values), examples=False)


class Collapsed(NamedTuple):
    """Trainings that came to nothing: a sentence about each, and all steps that build on one of them."""

    told: dict[str, str]
    steps: frozenset[str]


def collapsed(results: RunDocuments, steps: Sequence[Step]) -> Collapsed:
    """Trainings of some epochs that reach less than half of what the best seed of the same training reached.

    What is measured on such a model says nothing about heads: every one of them can go. Where less is better, there is no such
    rule.
    """
    scores: dict[str, dict[str, ResultDocument]] = {}
    for step in steps:
        if step.words[0] == "train" and {"--seed", "--epochs"} <= set(step.words):  # a single step is no training
            after = results.read(step.name, TrainingDocument, _more_is_better)
            if after is not None:
                scores.setdefault(step.name.rpartition("-")[0], {})[step.name] = after
    sentences, lost = dict[str, str](), set[str]()
    for some in scores.values():
        best = max(some.values(), key=lambda after: after.value)
        for name, after in some.items():
            if after.value < LEAST * best.value:
                score_text, best_text = (
                    f"{result.metric} {result_text(result, interval=False)}" for result in (after, best)
                )
                sentences[name] = (
                    f"{name} came to {score_text}, where another seed came to {best_text}: it did not learn, and what was "
                )
                sentences[name] += "measured on its model is left out."
    lost |= set(sentences)
    for step in steps:  # in the order of the list, so that what a step needs was looked at before it
        if lost & set(step.after):
            lost.add(step.name)
    return Collapsed(sentences, frozenset(lost))


def _more_is_better(data: TrainingDocument) -> ResultDocument | None:
    """What the training reached on examples it had not seen; None where less is better."""
    if data.after is None:
        raise ValueError("after is missing")
    # the number of labels is no part of the question
    return data.after if metric(data.after.metric, labels=2).higher_is_better else None
