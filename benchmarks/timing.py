"""One clock and one summary for all benchmarks: times are only ever compared side by side, as ratios."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headcount.efficiency.benchmark import quartiles, timed


def seconds(run: Callable[[], object]) -> float:
    """On a CPU the processor time of all threads, which other work disturbs less; on a GPU the time between two events."""
    return timed(run, torch.device("cuda" if torch.cuda.is_available() else "cpu")).work


def summary(ratios: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = (round(value, 3) for value in quartiles(ratios))
    return {"median": middle, "lower quartile": low, "upper quartile": high}
