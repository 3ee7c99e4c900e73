"""What several trainings say together: a mean over seeds, and what other seeds would give. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from scipy.special import stdtrit

from ..errors import BadRun
from ..jobs import Step
from ..metrics import metric
from ..page.documents import number
from ..tables import result_text
from .experiments import Found

LEVEL = 0.95
ENOUGH = 3  # seeds below which nothing is said about a difference between trainings
LEAST = 0.5  # the share of the best seed's score below which a training has learned nothing worth pruning


class Mean(NamedTuple):
    """The mean over seeds, with Student's 95 % interval: what other seeds would give, on the same examples."""

    value: float
    low: float
    high: float
    seeds: int

    def above(self, line: float) -> bool:
        """Whether there are enough seeds to say that it lies above the line."""
        return self.seeds >= ENOUGH and self.low > line

    def below(self, line: float) -> bool:
        """Whether there are enough seeds to say that it lies below the line."""
        return self.seeds >= ENOUGH and self.high < line

    def text(self, shown: Callable[[float], str]) -> str:
        """The mean with its interval; without one if there are too few seeds for it to say anything."""
        return shown(self.value) + ("" if self.seeds < ENOUGH else f" [{shown(self.low)}, {shown(self.high)}]")

    @property
    def how(self) -> str:
        """What the numbers of `text` are."""
        if self.seeds < ENOUGH:
            return "one seed" if self.seeds == 1 else f"mean over {self.seeds} seeds"
        return f"mean over {self.seeds} seeds with its 95 % interval, on the same examples"


def mean_of(values: Iterable[float]) -> Mean:
    """The mean of one value per seed; of fewer than two seeds nothing is known, and the interval is the whole line."""
    found = list(values)
    if not found:
        raise BadRun("There is no value to take the mean of; run the experiment's commands first.")
    mean = math.fsum(found) / len(found)
    if len(found) < 2:
        return Mean(mean, -math.inf, math.inf, len(found))
    variance = math.fsum((value - mean) ** 2 for value in found) / (len(found) - 1)
    reach = float(stdtrit(len(found) - 1, (1 + LEVEL) / 2)) * math.sqrt(variance / len(found))
    return Mean(mean, mean - reach, mean + reach, len(found))


class Collapsed(NamedTuple):
    """Trainings that came to nothing: a sentence about each, and all steps that build on one of them."""

    told: dict[str, str]
    steps: frozenset[str]


def collapsed(found: Found, steps: Sequence[Step]) -> Collapsed:
    """Trainings of some epochs that reach less than half of what the best seed of the same training reached.

    What is measured on such a model says nothing about heads: every one of them can go. Where less is better, there is no such
    rule.
    """
    scores: dict[str, dict[str, dict[str, Any]]] = {}
    for step in steps:
        if step.words[0] == "train" and {"--seed", "--epochs"} <= set(step.words):  # a single step is no training
            after = found.read(step.name, "training", _more_is_better)
            if after is not None:
                scores.setdefault(step.name.rpartition("-")[0], {})[step.name] = after
    told, lost = dict[str, str](), set[str]()
    for some in scores.values():
        best = max(some.values(), key=lambda after: after["value"])
        for name, after in some.items():
            if after["value"] < LEAST * best["value"]:
                here, there = (f"{one['metric']} {result_text(one, interval=False)}" for one in (after, best))
                told[name] = (
                    f"{name} came to {here}, where another seed came to {there}: it did not learn, and what was "
                )
                told[name] += "measured on its model is left out."
    lost |= set(told)
    for step in steps:  # in the order of the list, so that what a step needs was looked at before it
        if lost & set(step.after):
            lost.add(step.name)
    return Collapsed(told, frozenset(lost))


def _more_is_better(data: dict[str, Any]) -> dict[str, Any] | None:
    """What the training reached on examples it had not seen; None where less is better."""
    after = data["after"]
    number(after["value"])
    result_text(after)
    # the number of labels is no part of the question
    return after if metric(str(after["metric"]), labels=2).higher_is_better else None
