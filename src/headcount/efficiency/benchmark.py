"""How fast models are, measured side by side, and how much of the speed-up that the multiply-adds allow arrives.

Machines are shared and noisy, so models are never timed one after the other: every repetition runs each of them once, and
a ratio is the median over repetitions of pairs that ran next to each other. `bench` is the verb, `Bench` what it gives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import ceil
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ..documents.bench import Bench as Bench
from ..documents.bench import Ratio, shape_text
from ..documents.bench import Speed as Speed
from ..documents.bench import Subject as Subject
from ..errors import BadMeasure, OutOfMemory
from ..evaluation.evaluator import device_of, is_out_of_memory, to_device
from ..model.equivalence import evaluating
from ..model.tensor_trees import memory_of
from ..progress import Bar
from ..runs import Arrays, Run, piece
from .contention import is_busy, threads, waited
from .flops import UNKNOWN, counted, gpu_peak
from .random_inputs import has_length, random_batch

SHORTEST = 0.05  # seconds: a timing lasts at least so long; a quicker pass is run several times over
WORK_SECONDS = 5.0  # for comparing processor time, where the clock says little
FEWEST, MOST = 5, 25  # repetitions, where the time allowed decides
NO_GAIN = 1.005  # up to this limit there is no gain to speak of, and its share would be noise


class Time(NamedTuple):
    """Seconds of one timing: on the wall, of work, which is the processor time of all threads on a CPU, and how long a
    thread waited for a processor that others used."""

    wall: float
    work: float
    waited: float = 0.0


class Runtime(NamedTuple):
    """What computes in the place of torch: its name and version, the number format and bytes of each model there, a function
    that makes a call for each model, which takes a batch by name and computes with torch's number of threads, and notes of what
    each model was turned into."""

    name: str
    dtype: str
    sizes: Mapping[str, int]
    calls: Callable[[], Mapping[str, Callable[..., object]]]
    notes: tuple[str, ...] = ()


Clock = Callable[[Callable[[], object], torch.device], Time]
Inputs = Callable[[nn.Module, int, int | None], dict[str, Any]]


def bench(
    models: Mapping[str, nn.Module],
    *,
    batch_sizes: Sequence[int] = (1, 4, 16, 64),
    lengths: Sequence[int] = (128,),
    repeats: int | None = None,
    seconds: float = 120.0,
    inputs: Inputs | None = None,
    compile: bool = False,
    seed: int = 0,
    run: Run | None = None,
    clock: Clock | None = None,
    runtime: Runtime | None = None,
) -> Bench:
    """The speed of models at each batch size and length, compared to the first one, and the memory that they need.

    Examples of random tokens (or pixels) are made for each model; `inputs(model, batch, length)` makes others. With
    `repeats` each model runs so often, without it as often as about `seconds` in all allow, 5 to 25 times. Dtype and
    device are the models'. With `run`, each finished batch size is kept in the run folder and not measured again. With
    `runtime`, the models run there, and torch only counts their multiply-adds.
    """
    _check(models, batch_sizes, lengths, repeats, seconds)
    asked_repeats = repeats
    sizes = {} if runtime is None else runtime.sizes
    names, subjects = list(models), [_subject(name, model, sizes.get(name)) for name, model in models.items()]
    with_length = inputs is not None or any(has_length(model) for model in models.values())
    longs = sorted(set(lengths)) if with_length else [None]
    shapes = [(batch, length) for length in longs for batch in sorted(set(batch_sizes))]
    calls = models if runtime is None else runtime.calls()
    work = _Work(models, inputs or partial(random_batch, seed=seed), clock or timed, compile, calls)
    with ExitStack() as stack:
        for model in models.values():
            stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        looks = {}
        with Bar("looking at the models", len(shapes)) as bar:
            for shape in shapes:
                looks[shape] = piece(run, f"bench-look-{_file_part(shape)}", partial(_look, work, shape))
                bar.advance()
        fitting = [shape for shape in shapes if looks[shape]["seconds"].size]
        cost = {shape: float(np.maximum(looks[shape]["seconds"], SHORTEST).sum()) for shape in fitting}
        if repeats is None:
            repeats = min(MOST, max(FEWEST, int(seconds / max(sum(cost.values()), 1e-9))))
        timings, orders = {}, orders_of(len(names), repeats, seed)
        with Bar("measuring", repeats * sum(cost.values())) as bar:  # its unit is the second expected
            for shape in fitting:
                bar.label = f"measuring {shape_text(*shape)} (seconds)"
                step = partial(bar.advance, cost[shape] / len(names))
                take = partial(_measured, work, shape, looks[shape], orders, step)
                timings[shape] = piece(run, f"bench-{repeats}-{_file_part(shape)}", take)
    rows = [row for shape in fitting for row in _rows(names, shape, looks[shape], timings[shape])]
    if clock is None and not compile and any(row.disturbed for row in rows):
        rows = _with_work(rows, models, inputs=inputs, seed=seed, repeats=asked_repeats, runtime=runtime)
    if not rows:
        raise OutOfMemory(f"Not even {shape_text(*shapes[0])} fits into memory; use a smaller batch or length.")
    left_out = [shape for shape in shapes if not any((row.batch, row.length) == shape for row in rows)]
    notes = [f"{shape_text(*shape).capitalize()} does not fit into memory and was left out." for shape in left_out]
    return Bench(
        device=device_text(work.device),
        dtype=", ".join(dict.fromkeys(map(_dtype_text, models.values()))) if runtime is None else runtime.dtype,
        compile=compile,
        torch=str(torch.__version__),
        repeats=repeats,
        models=tuple(subjects),
        rows=tuple(rows),
        notes=tuple(notes),
        by_processor=clock is by_processor,
        runtime="torch" if runtime is None else runtime.name,
    )


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


# -- measuring -----------------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """One call of `bench`: what is measured, on what, and with which clock."""

    models: Mapping[str, nn.Module]
    inputs: Inputs
    clock: Clock
    compile: bool
    calls: Mapping[str, Callable[..., object]]  # what is timed: the models themselves, or what a runtime makes of them

    @property
    def device(self) -> torch.device:
        return device_of(next(iter(self.models.values())))

    def batches(self, shape: tuple[int, int | None]) -> list[dict[str, Any]]:
        return [to_device(self.inputs(model, *shape), self.device) for model in self.models.values()]


def _look(work: _Work, shape: tuple[int, int | None]) -> Arrays:
    """Multiply-adds, memory and about the seconds of one pass of each model; nothing where memory runs out."""
    try:
        costs, took = [], []
        for (name, model), batch in zip(work.models.items(), work.batches(shape), strict=True):
            with _explained(name):
                count, memory = counted(model, batch)
                call = work.calls[name]
                if work.device.type != "cpu" or call is not model:
                    call(**batch)  # libraries allocate and compile on their first call
                costs.append((count, memory if call is model else UNKNOWN))
                took.append(work.clock(partial(call, **batch), work.device).wall)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return {name: np.empty(0) for name in ("flops", "peak", "seconds")}
    flops, peak = zip(*costs, strict=True)
    return {"flops": np.array(flops), "peak": np.array(peak), "seconds": np.array(took)}


def _measured(
    work: _Work, shape: tuple[int, int | None], look: Arrays, orders: list[list[int]], step: Callable[[], None]
) -> Arrays:
    """Seconds of one pass of each model, a row per repetition, and the memory; no rows where memory runs out."""
    count = len(work.models)
    times = ceil(SHORTEST / max(float(look["seconds"].min()), 1e-6))
    wall, processor, waits = (np.empty((len(orders), count)) for _ in range(3))
    peak = look["peak"]
    try:
        batches = work.batches(shape)
        with _compiled(work) if work.compile else nullcontext([work.calls[name] for name in work.models]) as models:
            if work.compile:
                peak = np.array([_warm(model, batch) for model, batch in zip(models, batches, strict=True)])
            else:
                for model, batch in zip(models, batches, strict=True):
                    model(**batch)  # a run that was resumed has not seen this shape yet
            for number, order in enumerate(orders):
                for place in order:
                    call = partial(_several, models[place], batches[place], times)
                    wall[number, place], processor[number, place], waits[number, place] = work.clock(call, work.device)
                    step()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        nothing = np.empty((0, count))
        return {"wall": nothing, "work": nothing, "waited": nothing, "peak": peak}
    return {"wall": wall / times, "work": processor / times, "waited": waits / times, "peak": peak}


def _several(model: Callable[..., object], batch: dict[str, Any], times: int) -> None:
    for _ in range(times):
        model(**batch)


def _rows(names: list[str], shape: tuple[int, int | None], look: Arrays, timings: Arrays) -> Iterator[Speed]:
    """The row of each model from the seconds of all of them; none if there are no seconds."""
    if not len(timings["wall"]):
        return
    quiet, share = _undisturbed(timings)
    wall, disturbed = timings["wall"][quiet], is_busy(share)
    for place, name in enumerate(names):
        low, middle, high = quartiles(shape[0] / wall[:, place])
        ratio_low, ratio, ratio_high = quartiles(wall[:, 0] / wall[:, place])
        if disturbed:  # quartiles look steady where all repetitions are wrong alike
            ratios = wall[:, 0] / wall[:, place]
            ratio_low, ratio_high = float(ratios.min()), float(ratios.max())
        flops, peak = int(look["flops"][place]), int(timings["peak"][place])
        limit = int(look["flops"][0]) / flops if flops else 1.0
        arrived = (ratio - 1) / (limit - 1) if limit > NO_GAIN else None
        speeds = (middle, low, high, ratio, ratio_low, ratio_high)
        peak_memory = None if peak == UNKNOWN else peak
        yield Speed(name, *shape, *speeds, flops, limit, None if disturbed else arrived, peak_memory, share, disturbed)


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


def _with_work(rows: list[Speed], models: Mapping[str, nn.Module], **options: Any) -> list[Speed]:
    """The rows, and where others disturbed the clock, the processor time of one thread compared, which they hardly change."""
    out = []
    for shape in dict.fromkeys((row.batch, row.length) for row in rows):
        members = [row for row in rows if (row.batch, row.length) == shape]
        if any(row.disturbed for row in members):
            lengths = (shape[1],) if shape[1] is not None else (128,)
            sizes: dict[str, Any] = {"batch_sizes": (shape[0],), "lengths": lengths, "seconds": WORK_SECONDS}
            with threads(1):
                work = bench(models, **sizes, **options, clock=by_processor).rows
            ratios = [Ratio(row.ratio, row.ratio_low, row.ratio_high, True) for row in work]
            members = [replace(row, work=ratio) for row, ratio in zip(members, ratios, strict=True)]
        out += members
    return out


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """A model that cannot run on its batch is refused in one sentence; memory that runs out is another matter."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        first = (str(error).strip().splitlines() or [""])[0][:120]
        raise BadMeasure(
            f"{name} fails on the batch made for it ({type(error).__name__}: {first}); give bench inputs=, "
            "a function of model, batch and length that makes one."
        ) from error


@contextmanager
def _compiled(work: _Work) -> Iterator[list[Callable[..., object]]]:
    """Within the block the models as `torch.compile` gives them, to be run on one shape.

    Models of one class share their code, and torch falls back to uncompiled code without a word when one code has been
    compiled for too many models and shapes: so each shape starts afresh, with room for uneven layers of all models.
    """
    torch.compiler.reset()
    try:
        with torch._dynamo.config.patch(recompile_limit=64 * len(work.models)):
            yield [torch.compile(model, dynamic=False) for model in work.models.values()]
    finally:
        torch.compiler.reset()


def _warm(model: Callable[..., object], batch: dict[str, Any]) -> int:
    """Bytes at the peak on a GPU, once two passes have compiled the model; on a CPU nothing sees inside compiled code."""
    try:
        for _ in range(2):
            model(**batch)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        first = (str(error).strip().splitlines() or [""])[0][:120]
        if "compiler" in first.lower() or "Compiler" in type(error).__name__:
            raise BadMeasure(f"torch.compile finds no working compiler ({first}); install one (g++).") from error
        raise BadMeasure(f"torch.compile fails ({type(error).__name__}: {first}); measure uncompiled.") from error
    with gpu_peak(model, batch) as peak:
        model(**batch)
    return peak[0]


# -- words and checks ----------------------------------------------------------------------------------------------------


def _check(
    models: Mapping[str, nn.Module],
    batch_sizes: Sequence[int],
    lengths: Sequence[int],
    repeats: int | None,
    seconds: float,
) -> None:
    if not models:
        raise BadMeasure(
            "There is no model to measure; give at least one, and the first is what others are compared to."
        )
    for label, values in (("batch size", batch_sizes), ("length", lengths)):
        wrong = [value for value in values if type(value) is not int or value < 1]
        if wrong or not values:
            got = f"{wrong[0]!r:.40}" if wrong else "none"
            raise BadMeasure(f"A {label} is a whole number from 1 on; I got {got}: give for example 16.")
    if repeats is not None and (type(repeats) is not int or repeats < 1):
        raise BadMeasure(f"Repetitions are a whole number from 1 on; I got {repeats!r:.40}: give for example 15.")
    if not seconds > 0:
        raise BadMeasure(f"The time allowed is a number of seconds above 0; I got {seconds!r:.40}.")
    devices = {str(device_of(model)) for model in models.values()}
    if len(devices) > 1:
        raise BadMeasure(f"The models are on {' and '.join(sorted(devices))}; move them to one device to compare them.")


def _subject(name: str, model: nn.Module, size: int | None = None) -> Subject:
    count = sum(parameter.numel() for parameter in model.parameters())
    memory = memory_of([*model.parameters(), *model.buffers()]) if size is None else size
    return Subject(name, type(model).__name__, count, memory)


def _file_part(shape: tuple[int, int | None]) -> str:
    return f"{shape[0]:05d}" + ("" if shape[1] is None else f"-{shape[1]:05d}")


def device_text(device: torch.device) -> str:
    """A device in a person's words."""
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return f"cpu, {threads} thread{'s' * (threads > 1)}"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _dtype_text(model: nn.Module) -> str:
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return str(kind).removeprefix("torch.")
