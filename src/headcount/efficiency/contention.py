"""How long our threads waited for a processor: whether a timing on a CPU can be believed.

Quartiles do not show it. Beside other programs every repetition is slow alike, and where several threads wait for each other,
time goes by the number of matrix products and no longer by their size: a model of half the work then looks nearly as slow as
the whole one, steadily. What one thread works, in processor time, hardly changes: that is what is measured instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..errors import BadMeasure

BUSY = 0.1  # share of a timing; a quiet machine has about 0.01, one other busy program on two cores about 0.3
TASKS = Path("/proc/self/task")  # Linux counts there how long each thread was ready to run and had no processor


def waited() -> float:
    """Seconds that a thread of this process has waited for a processor, on average over those that compute.

    Only differences mean something. Where the operating system does not count it, the time in which the calling thread did
    not run stands for it.
    """
    try:
        lines = [(task / "schedstat").read_text(encoding="ascii") for task in TASKS.iterdir()]
        return sum(int(line.split()[1]) for line in lines) / 1e9 / torch.get_num_threads()
    except (OSError, ValueError, IndexError):
        return time.perf_counter() - time.thread_time()


def is_busy(share: float | None) -> bool:
    """Whether threads waited so long that timings say little."""
    return share is not None and share > BUSY


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Within the block torch computes with so many threads; None leaves their number alone."""
    if count is None:
        yield
        return
    if type(count) is not int or count < 1:
        raise BadMeasure(f"Threads are a whole number from 1 on; I got {count!r:.40}.")
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
