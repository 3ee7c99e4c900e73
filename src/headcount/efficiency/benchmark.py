"""How fast models are, measured side by side, and how much of the speed-up that the multiply-adds allow arrives.

`bench` is the verb, `Bench` what it gives; models run `in_turns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from ..documents.bench import Bench as Bench
from ..documents.bench import Decoding, Ratio, shape_text
from ..documents.bench import Speed as Speed
from ..documents.bench import Subject as Subject
from ..errors import BadMeasure, OutOfMemory
from ..evaluation.evaluator import device_of, is_out_of_memory
from ..formatting import counted as counted_words
from ..model.equivalence import evaluating
from ..model.tensor_trees import memory_of
from ..progress import Bar
from ..runs import Arrays, Run, piece
from . import decoding
from .contention import threads
from .flops import UNKNOWN, counted, gpu_peak
from .in_turns import FEWEST, MOST, Clock, Inputs, Shape, Work, compared, in_turns, where_it_fits
from .in_turns import Time as Time
from .in_turns import by_processor as by_processor
from .in_turns import orders_of as orders_of
from .in_turns import quartiles as quartiles
from .in_turns import timed as timed
from .launching import Launching, compiled, recorded_pass, warm
from .random_inputs import has_length, random_batch

SHORTEST = 0.05  # seconds: a timing lasts at least so long; a quicker pass is run several times over
WORK_SECONDS = 5.0  # for comparing processor time, where the clock says little
NO_GAIN = 1.005  # up to this limit there is no gain to speak of, and its share would be noise


Row = TypeVar("Row", Speed, Decoding)


class Runtime(NamedTuple):
    """What computes in the place of torch: its name and version, the number format and bytes of each model there, a function
    that makes a call for each model, which takes a batch by name and computes with torch's number of threads, and notes of what
    each model was turned into."""

    name: str
    dtype: str
    sizes: Mapping[str, int]
    calls: Callable[[], Mapping[str, Callable[..., object]]]
    notes: tuple[str, ...] = ()


def bench(
    models: Mapping[str, nn.Module],
    *,
    batch_sizes: Sequence[int] = (1, 4, 16, 64),
    lengths: Sequence[int] = (128,),
    repeats: int | None = None,
    seconds: float = 120.0,
    inputs: Inputs | None = None,
    compile: bool = False,
    cuda_graphs: bool = False,
    generate: int | None = None,
    seed: int = 0,
    run: Run | None = None,
    clock: Clock | None = None,
    runtime: Runtime | None = None,
) -> Bench:
    """The speed of models at each batch size and length, compared to the first one, and the memory that they need.

    Examples of random tokens (or pixels) are made for each model; `inputs(model, batch, length)` makes others. With
    `repeats` each model runs so often, without it as often as about `seconds` in all allow, 5 to 25 times. Dtype and
    device are the models'. With `run`, each finished batch size is kept in the run folder and not measured again. With
    `runtime`, the models run there, and torch only counts their multiply-adds. With `generate`, decoders also write so many
    tokens after each prompt, one at a time with their cache, and tokens per second are compared. With `cuda_graphs`, a GPU
    runs recorded passes and steps instead of being told each operation.
    """
    _check(models, batch_sizes, lengths, repeats, seconds)
    asked = {"inputs": inputs, "seed": seed, "repeats": repeats, "runtime": runtime}
    sizes = {} if runtime is None else runtime.sizes
    names, subjects = list(models), [_subject(name, model, sizes.get(name)) for name, model in models.items()]
    with_length = inputs is not None or any(has_length(model) for model in models.values())
    longs = sorted(set(lengths)) if with_length else [None]
    shapes = [(batch, length) for length in longs for batch in sorted(set(batch_sizes))]
    calls, launching = models if runtime is None else runtime.calls(), Launching(compile, cuda_graphs)
    work = Work(models, inputs or partial(random_batch, seed=seed), clock or timed, launching, calls)
    launching.check(work.device)
    with ExitStack() as stack:
        for model in models.values():
            stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        jobs = [
            _Job(shape, _file_part(shape), partial(_look, work, shape), partial(_measured, work, shape))
            for shape in shapes
        ]
        if generate is not None:
            _check_generate(models, longs, generate, runtime)
            jobs += [_writing(work, shape, generate) for shape in shapes]
        looks, timings, repeats = _timed_jobs(jobs, len(names), repeats, seconds, seed, run)
    rows, written = list[Speed](), list[Decoding]()
    for job, look, times in zip(jobs, looks, timings, strict=True):
        if job.tokens is None:
            rows += _rows(names, job.shape, look, times)
        else:
            written += decoding.rows(names, job.shape, job.tokens, look, times)
    if clock is None and launching.plain:
        rows, written = _with_work(rows, written, models, **asked)
    if not rows:
        raise OutOfMemory(f"Not even {shape_text(*shapes[0])} fits into memory; use a smaller batch or length.")
    return Bench(
        device=device_text(work.device),
        dtype=", ".join(dict.fromkeys(map(_dtype_text, models.values()))) if runtime is None else runtime.dtype,
        compile=compile,
        cuda_graphs=cuda_graphs,
        torch=str(torch.__version__),
        repeats=repeats,
        models=tuple(subjects),
        rows=tuple(rows),
        decoding=tuple(written),
        notes=tuple(job.left_out for job, times in zip(jobs, timings, strict=True) if not len(times["wall"])),
        by_processor=clock is by_processor,
        runtime="torch" if runtime is None else runtime.name,
    )


# -- measuring -----------------------------------------------------------------------------------------------------------


class _Job(NamedTuple):
    """What is measured of all models at one batch size and length: passes, or so many tokens that they write."""

    shape: Shape
    name: str  # of its pieces in a run folder
    look: Callable[[], Arrays]
    take: Callable[[Arrays, list[list[int]], Callable[[], None]], Arrays]
    tokens: int | None = None

    @property
    def left_out(self) -> str:
        what = "" if self.tokens is None else f"Generating {counted_words(self.tokens, 'token')} at "
        text = what + shape_text(*self.shape)
        return f"{text[0].upper()}{text[1:]} does not fit into memory and was left out."


def _writing(work: Work, shape: Shape, tokens: int) -> _Job:
    def take(_: Arrays, orders: list[list[int]], step: Callable[[], None]) -> Arrays:
        return decoding.measured(work, shape, tokens, orders, step)

    look = partial(decoding.look, work, shape, tokens)
    return _Job(shape, f"generate-{tokens:05d}-{_file_part(shape)}", look, take, tokens)


def _timed_jobs(
    jobs: Sequence[_Job], count: int, repeats: int | None, seconds: float, seed: int, run: Run | None
) -> tuple[list[Arrays], list[Arrays], int]:
    """A look at each job and its timings of so many models, and how often each was timed; none where memory ran out."""
    looks = []
    with Bar("looking at the models", len(jobs)) as bar:
        for job in jobs:
            looks.append(piece(run, f"bench-look-{job.name}", job.look))
            bar.advance()
    costs = [float(np.maximum(look["seconds"], SHORTEST).sum()) for look in looks]
    if repeats is None:
        repeats = min(MOST, max(FEWEST, int(seconds / max(sum(costs), 1e-9))))
    orders, timings = orders_of(count, repeats, seed), []
    with Bar("measuring", repeats * sum(costs)) as bar:  # its unit is the second expected
        for job, look, cost in zip(jobs, looks, costs, strict=True):
            if not look["seconds"].size:
                timings.append({"wall": np.empty((0, count))})
                continue
            bar.label = f"measuring {shape_text(*job.shape)} (seconds)"
            take = partial(job.take, look, orders, partial(bar.advance, cost / count))
            timings.append(piece(run, f"bench-{repeats}-{job.name}", take))
    return looks, timings, repeats


def _look(work: Work, shape: Shape) -> Arrays:
    """Multiply-adds, memory and about the seconds of one pass of each model; nothing where memory runs out."""

    def take() -> Arrays:
        costs, took = [], []
        for (name, model), batch in zip(work.models.items(), work.batches(shape), strict=True):
            with _explained(name):
                count, memory = counted(model, batch)
                call = work.calls[name]
                if work.device.type != "cpu" or call is not model:
                    call(**batch)  # libraries allocate and compile on their first call
                costs.append((count, memory if call is model else UNKNOWN))
                took.append(work.clock(partial(call, **batch), work.device).wall)
        flops, peak = zip(*costs, strict=True)
        return {"flops": np.array(flops), "peak": np.array(peak), "seconds": np.array(took)}

    return where_it_fits(take, {name: np.empty(0) for name in ("flops", "peak", "seconds")})


def _measured(work: Work, shape: Shape, look: Arrays, orders: list[list[int]], step: Callable[[], None]) -> Arrays:
    """Seconds of one pass of each model, a row per repetition, and the memory; no rows where memory runs out."""
    times = ceil(SHORTEST / max(float(look["seconds"].min()), 1e-6))

    def take() -> Arrays:
        batches = work.batches(shape)
        with _launched(work, batches) as (calls, peaks):

            def timing(place: int) -> Time:
                took = work.clock(partial(_several, calls[place], batches[place], times), work.device)
                step()
                return took

            timings = {name: seconds / times for name, seconds in in_turns(timing, orders).items()}
        return {**timings, "peak": look["peak"] if peaks is None else np.array(peaks)}

    nothing = np.empty((0, len(work.models)))
    return where_it_fits(take, {**dict.fromkeys(Time._fields, nothing), "peak": look["peak"]})


@contextmanager
def _launched(
    work: Work, batches: list[dict[str, Any]]
) -> Iterator[tuple[Sequence[Callable[..., object]], list[int] | None]]:
    """Within the block what runs a pass of each model, warm, and the bytes at the peak where launching changes them."""
    if work.launching.compile:
        with compiled(work.models, work.launching) as calls:
            yield calls, [_compiled_peak(call, batch) for call, batch in zip(calls, batches, strict=True)]
        return
    calls = [work.calls[name] for name in work.models]
    for call, batch in zip(calls, batches, strict=True):
        call(**batch)  # a run that was resumed has not seen this shape yet
    if work.launching.recorded:
        yield [recorded_pass(call, batch, work.device) for call, batch in zip(calls, batches, strict=True)], None
    else:
        yield calls, None


def _compiled_peak(model: Callable[..., object], batch: dict[str, Any]) -> int:
    """Bytes at the peak on a GPU, once two passes have compiled the model; on a CPU nothing sees inside compiled code."""
    warm(partial(model, **batch))
    with gpu_peak(model, batch) as peak:
        model(**batch)
    return peak[0]


def _several(model: Callable[..., object], batch: dict[str, Any], times: int) -> None:
    for _ in range(times):
        model(**batch)


def _rows(names: list[str], shape: Shape, look: Arrays, timings: Arrays) -> Iterator[Speed]:
    """The row of each model from the seconds of all of them; none if there are no seconds."""
    for place, row in enumerate(compared(timings, shape[0])):
        flops, peak = int(look["flops"][place]), int(timings["peak"][place])
        limit = int(look["flops"][0]) / flops if flops else 1.0
        arrived = (row.ratio - 1) / (limit - 1) if limit > NO_GAIN and not row.disturbed else None
        peak_memory = None if peak == UNKNOWN else peak
        yield Speed(names[place], *shape, *row[:6], flops, limit, arrived, peak_memory, *row[6:])


def _with_work(
    rows: list[Speed], written: list[Decoding], models: Mapping[str, nn.Module], **options: Any
) -> tuple[list[Speed], list[Decoding]]:
    """The rows, and where others disturbed the clock, the processor time of one thread compared, which they hardly change."""
    doubted = [(row.batch, row.length) for row in rows if row.disturbed]
    to_write = {(row.batch, row.length): row.tokens for row in written if row.disturbed}
    for shape in dict.fromkeys([*doubted, *to_write]):
        lengths = (shape[1],) if shape[1] is not None else (128,)
        sizes: dict[str, Any] = {"batch_sizes": (shape[0],), "lengths": lengths, "seconds": WORK_SECONDS}
        with threads(1):
            again = bench(models, **sizes, **options, generate=to_write.get(shape), clock=by_processor)
        if shape in doubted:
            rows = _in_work(rows, again.rows)
        written = _in_work(written, again.decoding)
    return rows, written


def _in_work(rows: list[Row], again: Sequence[Row]) -> list[Row]:
    """The rows, with the ratios of those that were measured again."""
    ratios = {
        (row.model, row.batch, row.length): Ratio(row.ratio, row.ratio_low, row.ratio_high, True) for row in again
    }
    return [replace(row, work=ratios.get(_key(row), row.work)) for row in rows]


def _key(row: Speed | Decoding) -> tuple[str, int, int | None]:
    return row.model, row.batch, row.length


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


def _check_generate(
    models: Mapping[str, nn.Module], lengths: Sequence[int | None], tokens: int, runtime: Runtime | None
) -> None:
    if runtime is not None:
        raise BadMeasure(
            f"Tokens are generated in torch, and {runtime.name} runs the models here; leave out generate (--generate) or runtime."
        )
    decoding.check(models, lengths, tokens)


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
