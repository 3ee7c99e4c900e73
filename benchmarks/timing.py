"""One clock and one summary for all benchmarks: times are only ever compared side by side, as ratios."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median, quantiles

import torch


def seconds(run: Callable[[], object]) -> float:
    """On a CPU the processor time of all threads, which other work disturbs less; on a GPU the time on the wall."""
    if not torch.cuda.is_available():
        start = time.process_time()
        run()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def summary(ratios: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, _, high = quantiles(ratios, n=4)
    return {"median": round(median(ratios), 3), "lower quartile": round(low, 3), "upper quartile": round(high, 3)}
