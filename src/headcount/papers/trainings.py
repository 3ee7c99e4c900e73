"""What several trainings say together: a mean over seeds, and what other seeds would give. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from scipy.special import stdtrit

from ..errors import BadRun

LEVEL = 0.95
ENOUGH = 3  # seeds below which nothing is said about a difference between trainings


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
