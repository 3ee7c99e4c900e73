"""Timings in turns: clocks, the order in which models run, and ratios of pairs that ran next to each other.

Machines are shared and noisy, so models are never timed one after the other: every repetition runs each of them once, and
a ratio is the median over repetitions of pairs that ran next to each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ..evaluation.evaluator import device_of, is_out_of_memory, to_device
from ..runs import Arrays
from .contention import is_busy, waited
from .launching import Launching

FEWEST, MOST = 5, 25  # repetitions, where the time allowed decides


class Time(NamedTuple):
    """Seconds of one timing: on the wall, of work, which is the processor time of all threads on a CPU, and how long a
    thread waited for a processor that others used."""

    wall: float
    work: float
    waited: float = 0.0


Clock = Callable[[Callable[[], object], torch.device], Time]
Inputs = Callable[[nn.Module, int, int | None], dict[str, Any]]
Shape = tuple[int, int | None]  # batch size and length


class Work(NamedTuple):
    """One call of `bench`: what is measured, on what, with which clock, and how it is launched."""

    models: Mapping[str, nn.Module]
    inputs: Inputs
    clock: Clock
    launching: Launching
    calls: Mapping[str, Callable[..., object]]  # what is timed: the models themselves, or what a runtime makes of them

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return device_of(next(iter(self.models.values())))

    def batches(self, shape: Shape) -> list[dict[str, Any]]:
        """A batch for each model."""
        return [to_device(self.inputs(model, *shape), self.device) for model in self.models.values()]


def timed(run: Callable[[], object], device: torch.device) -> Time:
    """The clock. On a CPU wall time and processor time; on a GPU both are the time between two events on the device.

    `bench` is about wall time, which is what people wait for. Processor time is steadier on a machine with other work on
    it: `by_processor` is a clock for that. Threads that spin while they wait for others count as working there, unless
    OMP_WAIT_POLICY is passive.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            run()
            end.record()
            end.synchronize()
            took = start.elapsed_time(end) / 1000
        return Time(took, took)
    synchronize = getattr(getattr(torch, device.type), "synchronize", None)  # of other accelerators
    if synchronize is not None:
        synchronize()
    waited_before, wall, processor = waited(), time.perf_counter(), time.process_time()
    run()
    if synchronize is not None:
        synchronize()
    took, worked = time.perf_counter() - wall, time.process_time() - processor
    if device.type != "cpu":
        return Time(took, took)
    return Time(took, worked, max(0.0, waited() - waited_before))


def by_processor(run: Callable[[], object], device: torch.device) -> Time:
    """A clock for `bench` that tells processor time only: for ratios on machines with other work on them."""
    work = timed(run, device).work
    return Time(work, work)


def orders_of(count: int, repeats: int, seed: int = 0) -> list[list[int]]:
    """In which order the models run in each repetition: drawn, then the same backwards, so that a drift cancels out."""
    draw = Random(seed)
    orders: list[list[int]] = []
    for number in range(repeats):
        orders.append(orders[-1][::-1] if number % 2 else draw.sample(range(count), count))
    return orders


def quartiles(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile."""
    low, middle, high = np.quantile(np.asarray(values, dtype=float), [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


def in_turns(timing: Callable[[int], Time], orders: Sequence[Sequence[int]]) -> Arrays:
    """The times of all models, a row per repetition and a column per model; `timing(place)` takes one of them."""
    times = {name: np.empty((len(orders), len(orders[0]))) for name in Time._fields}
    for number, order in enumerate(orders):
        for place in order:
            for name, value in timing(place)._asdict().items():
                times[name][number, place] = value
    return times


def where_it_fits(take: Callable[[], Arrays], otherwise: Arrays) -> Arrays:
    """What `take` gives, or something else where memory runs out."""
    try:
        return take()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return otherwise


class Compared(NamedTuple):
    """What a second holds of a model, its speed over that of the first one, medians with quartiles, and whether others
    used the processor: `Speed` and `Decoding` have the same fields."""

    speed: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    waited: float | None
    disturbed: bool


def compared(timings: Arrays, amount: float) -> Iterator[Compared]:
    """For each model, from the seconds that it took for so many examples or tokens; nothing without timings."""
    if not len(timings["wall"]):
        return
    quiet, share = _undisturbed(timings)
    wall, disturbed = timings["wall"][quiet], is_busy(share)
    for place in range(wall.shape[1]):
        low, middle, high = quartiles(amount / wall[:, place])
        ratios = wall[:, 0] / wall[:, place]
        ratio_low, ratio, ratio_high = quartiles(ratios)
        if disturbed:  # quartiles look steady where all repetitions are wrong alike
            ratio_low, ratio_high = float(ratios.min()), float(ratios.max())
        yield Compared(middle, low, high, ratio, ratio_low, ratio_high, share, disturbed)


def _undisturbed(timings: Arrays) -> tuple[np.ndarray, float | None]:
    """The repetitions in which hardly any thread waited, where they are enough, else all; and the share of time waited in them.

    None where the clock does not tell, as in run folders of earlier versions.
    """
    everything = np.arange(len(timings["wall"]))
    if "waited" not in timings:
        return everything, None
    share = timings["waited"].sum(1) / np.maximum(timings["wall"].sum(1), 1e-12)
    quiet = everything[[not is_busy(float(part)) for part in share]]
    chosen = quiet if len(quiet) >= min(FEWEST, len(everything)) else everything
    total = float(timings["waited"][chosen].sum() / max(timings["wall"][chosen].sum(), 1e-12))
    return chosen, min(1.0, total)
