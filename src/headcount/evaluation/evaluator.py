"""`evaluate`: a model on a task, with the values of every example; and `measure`: the same for many plans at once.

Everything that asks "how good is the model without these units" comes through `measure`: single heads, all heads but one,
points of a curve. It runs one batch at a time through all plans, so what is remembered for replay is one batch's.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from .. import __version__, runs
from ..data.tasks import device_of as device_of
from ..documents.results import FillDocument
from ..errors import HeadcountError, NotFinite, OutOfMemory
from ..model.anatomy import Anatomy, Site
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..model.equivalence import evaluating
from ..model.stand_ins import Fill, StandIns, data_fill
from ..model.tensor_trees import mapped, tensors, tile
from ..plans import Plan
from ..progress import Bar
from ..stats.metrics import averaged
from ..stats.results import Result
from . import replay as replaying
from .call_order import NOTHING, CallOrder, learn
from .replay import Memory, Start

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

MEMORY = 2 * 2**30  # bytes of remembered activations
Found = TypeVar("Found")
TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 65536}  # small batches are tiled up to this many; more gains nothing


def evaluate(
    model: nn.Module, task: Task, *, batch_size: int | None = None, run: Run | None = None, name: str = "evaluation"
) -> Result:
    """The model's result on the task: the metric, its interval, and the values of every example.

    Inside `masked(model, ...)` it is the result with those units masked. The model is as it was afterwards.

    Args:
        model: The model.
        task: The data and the metric.
        batch_size: Examples per forward pass; by default that of the task.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        name: Name of the results in the run folder; of several evaluations in one folder each has its own.

    Returns:
        The metric with its confidence interval, and the values of every example.

    Examples:
        >>> model = hc.load("my-model")
        >>> task = hc.task("classification", "dev.tsv", tokenizer="my-model", limit=64)
        >>> result = hc.evaluate(model, task)
        >>> result.metric.name
        'accuracy'
        >>> len(result.rows)
        64
    """
    rows = measure(model, task, [Plan()], batch_size=batch_size, run=run, name=name)
    return result_of(task, rows[0], signature(model, task))


def result_of(task: Task, rows: np.ndarray, signature: str = "") -> Result:
    """The result that these values of every example are, with the groups that the examples belong to."""
    return Result(task.metric, rows, signature, None if task.clusters is None else np.array(task.clusters))


def signature(model: nn.Module, task: Task, **more: object) -> str:
    """One line that says how a number was made, in the manner of sacreBLEU: what, on which data, by which version."""
    root = unwrap(model)
    name = str(getattr(getattr(root, "config", None), "name_or_path", "") or type(root).__name__)
    parts = {
        "model": name.rstrip("/").rpartition("/")[2],
        "task": task.kind,
        "data": f"{task.name}#{task.fingerprint[:8]}",
        "n": task.size,
        "metric": task.metric.name,
        **(task.decoding if task.generates and "metric" not in more else {}),
        **{key: value for key, value in more.items() if value is not None},
        "headcount": __version__,
    }
    return "|".join(f"{key}:{value}" for key, value in parts.items())


def measure(
    model: nn.Module,
    task: Task,
    plans: Sequence[Plan],
    *,
    batch_size: int | None = None,
    replay: bool = True,
    memory: int = MEMORY,
    run: Run | None = None,
    name: str = "measure",
    fill: Filled | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> np.ndarray:
    """Values of every example with each plan masked in turn: an array (plans, examples, columns of the metric).

    An empty plan is the model as it is. With `replay` (the default) nothing is computed twice that cannot have changed;
    without it every plan is an ordinary pass. Both give the same values. `memory` bounds what is remembered, in bytes.
    With a run, each batch is written as soon as it is done, and read back instead of computed the next time. `fill` is what
    stands in for masked units (see `filled`); with several draws the values of an example are means over them.
    """
    root = unwrap(model)
    work = _Work(root, find(model, specs), task, list(plans), replay, memory, fill)
    batches = task.batches(batch_size)
    out = np.empty((len(plans), task.size, len(task.metric.columns)))
    if not len(plans):
        return out
    batches_per_file = max(1, 64 // len(plans))  # a file per batch of a plain evaluation would be a flood
    # in a caller's inference mode nothing could tell that a remembered tensor was written to
    with ExitStack() as stack:
        for context in (evaluating(root), torch.inference_mode(False), torch.no_grad()):
            stack.enter_context(context)
        label = name if name.isalpha() else "evaluation"  # others are names of files, and no words
        bar = stack.enter_context(Bar(label, total=len(batches) * len(plans)))
        for start in range(0, len(batches), batches_per_file):
            some = batches[start : start + batches_per_file]

            def compute(some: Sequence[Sequence[int]] = some) -> dict[str, np.ndarray]:
                return {"rows": np.concatenate([_rows(work, numbers) for numbers in some], axis=1)}

            numbers = [number for batch in some for number in batch]
            out[:, numbers] = runs.piece(run, f"{name}-{start:06d}", compute)["rows"]
            bar.advance(len(some) * len(plans))
    return out


class Filled(NamedTuple):
    """What stands in for masked units in some measurements: prepared, drawn so many times, and how it was made."""

    stand_ins: StandIns
    document: FillDocument
    draws: int = 1
    constant: bool = True  # whether it is the same at every position of every example


def filled(
    model: nn.Module,
    task: Task,
    plans: Iterable[Plan],
    fill: Fill | str | None,
    *,
    run: Run | None = None,
    name: str = "fill",
    specs: Iterable[ModuleSpec] = (),
) -> tuple[Task, Filled | None]:
    """What stands in for the units of these plans, ready for `measure`; and the task to measure, whose rows may be averaged.

    Nothing for `"zero"`.
    """
    from_data = data_fill(fill)
    if from_data is None:
        return task, None
    anatomy, units = find(model, specs), Plan(frozenset(unit for plan in plans for unit in plan.units))
    stand_ins = from_data.prepare(unwrap(model), anatomy, task, units, run=run, name=name)
    ready = Filled(stand_ins, from_data.document, from_data.draws, from_data.constant)
    if from_data.draws == 1:
        return task, ready
    metric, rows = averaged(task.metric), task.rows

    def statistics(model: nn.Module, batch: dict[str, Any]) -> np.ndarray:
        assert task.metric.statistics is not None
        return np.asarray(task.metric.statistics(rows(model, batch)), dtype=np.float64)

    return replace(task, metric=metric, rows=statistics), ready


@dataclass
class _Work:
    """One call of `measure`: what was asked, what was learnt about the model, and how much fits into its memory."""

    root: nn.Module
    anatomy: Anatomy
    task: Task
    plans: list[Plan]
    replay: bool
    memory: int
    fill: Filled | None = None
    call_order: CallOrder | None = None
    most_copies: int = 64
    copies: int = 1  # of the last batch

    def batch(self, numbers: Sequence[int]) -> dict[str, Any]:
        return to_device(self.task.collate(numbers), device_of(self.root))

    def rows(self, batch: dict[str, Any]) -> np.ndarray:
        return self.task.rows(self.root, fresh(batch))

    def stand_ins(self, numbers: Sequence[int], batch: dict[str, Any], draw: int = 0) -> Mapping[str, Any]:
        """What stands in for masked units on these examples."""
        return {} if self.fill is None else self.fill.stand_ins.of(numbers, batch, draw)

    @property
    def draws(self) -> int:
        return 1 if self.fill is None else self.fill.draws


def to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """A batch with its tensors on the device."""
    return {name: mapped(value, lambda t: t.to(device)) for name, value in batch.items()}


def fresh(batch: dict[str, Any]) -> dict[str, Any]:
    """A copy of a batch: some models write into what they are given, and the next pass needs it as it was."""
    return {name: mapped(value, torch.clone) for name, value in batch.items()}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def in_parts(
    compute: Callable[[Sequence[int]], Found], label: str, task: Task, numbers: Sequence[int]
) -> Iterator[tuple[Sequence[int], Found]]:
    """What `compute` gives for the examples of a batch, in halves of halves where memory runs out: each part with its result.

    `OutOfMemory` says so where one example alone is too much. A part is computed when the one before was taken.
    """
    result = _unless_out_of_memory(compute, label, task, numbers)
    if result is not None:
        yield numbers, result
        return
    half = (len(numbers) + 1) // 2
    yield from in_parts(compute, label, task, numbers[:half])
    yield from in_parts(compute, label, task, numbers[half:])


def _unless_out_of_memory(
    compute: Callable[[Sequence[int]], Found], label: str, task: Task, numbers: Sequence[int]
) -> Found | None:
    """What `compute` gives for a batch; None where memory ran out, and half of the batch should be tried."""
    try:
        return compute(numbers)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(numbers) == 1:
            raise OutOfMemory(
                f"There is no memory for the {label} of one example alone ({task.describe(numbers[0])}): use a shorter "
                "max_length, a smaller dtype or a larger device."
            ) from None
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def _rows(work: _Work, numbers: Sequence[int]) -> np.ndarray:
    """Values of these examples with each plan masked; fewer at a time where memory runs out."""
    try:
        return _checked(work, numbers, _all_plans(work, numbers))
    except replaying.TooMuch:
        halve = True
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        halve = work.copies == 1
        work.most_copies = max(1, work.copies // 2)
        if halve and len(numbers) == 1:
            raise OutOfMemory(
                f"One example alone does not fit into memory ({work.task.describe(numbers[0])}): use a shorter "
                "max_length, a smaller dtype or a larger device."
            ) from None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if not halve:
        return _rows(work, numbers)
    half = (len(numbers) + 1) // 2
    return np.concatenate([_rows(work, numbers[:half]), _rows(work, numbers[half:])], axis=1)


def _checked(work: _Work, numbers: Sequence[int], rows: np.ndarray) -> np.ndarray:
    """The same rows, or an error that names the first example with a value that is not a number."""
    if not np.isfinite(rows).all():
        plan, example, column = np.argwhere(~np.isfinite(rows))[0]
        closed = f" with {work.plans[plan]} closed" if len(work.plans[plan]) else ""
        raise NotFinite(
            f"The {work.task.metric.columns[column]} of {work.task.describe(numbers[example])} is "
            f"{rows[plan, example, column]}{closed}: look at that example, or use a wider dtype."
        )
    return rows


def _all_plans(work: _Work, numbers: Sequence[int]) -> np.ndarray:
    """Values (plans, examples, columns) of one batch: one ordinary pass, then each plan from where it matters."""
    batch, size = work.batch(numbers), len(numbers)
    if work.call_order is None:
        work.call_order = _learn(work, numbers)
    call_order = work.call_order
    if call_order.depth == NOTHING and not call_order.rows:  # each on its own, the whole model only if it was asked for
        return _mean_of_draws(work, numbers, batch, lambda stand_ins: _one_by_one(work, batch, size, stand_ins))
    run = partial(work.rows, batch)
    memory, base = replaying.remember(work.root, work.anatomy, call_order, run, size=size, limit=work.memory)
    _find_positions(work, call_order, memory, batch)
    before = memory.versions

    def replay(stand_ins: Mapping[str, Any]) -> np.ndarray:
        out = np.full((len(work.plans), *base.shape), base, dtype=np.float64)  # plans that close nothing stay so
        for start, members in _groups(work, call_order):
            for some in _chunks(members, _copies(work, call_order, batch, members)):
                plans = [work.plans[number] for number in some]
                rows = _again(work, call_order, memory, batch, plans, start, stand_ins)
                out[some] = rows.reshape(len(some), *base.shape)
        return out

    out = _mean_of_draws(work, numbers, batch, replay)
    if memory.versions != before:  # the model writes into tensors that it was given: nothing can be remembered
        call_order.depth = NOTHING
        return _all_plans(work, numbers)
    return out


def _mean_of_draws(
    work: _Work, numbers: Sequence[int], batch: dict[str, Any], measured: Callable[[Mapping[str, Any]], np.ndarray]
) -> np.ndarray:
    """The mean of what is measured with each draw of what stands in."""
    draws = [measured(work.stand_ins(numbers, batch, draw)) for draw in range(work.draws)]
    return draws[0] if len(draws) == 1 else np.mean(draws, axis=0)


def _one_by_one(work: _Work, batch: dict[str, Any], size: int, stand_ins: Mapping[str, Any]) -> np.ndarray:
    """Values with each plan masked, from ordinary passes."""
    nothing, plain = Memory({}, {}, size), CallOrder(depth=NOTHING)
    alone = partial(_again, work, plain, nothing, batch, start=Start(0), stand_ins=stand_ins)
    return np.stack([alone([plan]) if len(plan) else work.rows(batch) for plan in work.plans])


def _learn(work: _Work, numbers: Sequence[int]) -> CallOrder:
    """The order in which the model's parts run, seen and proved on a few examples; nothing, if nothing is replayed."""
    if not work.replay or len(work.plans) == 1 or not any(map(len, work.plans)):
        return CallOrder(depth=NOTHING)
    # the shortest will do; of different lengths, so that some are padded; no more than fit into memory
    batch = next((batch for batch in reversed(work.task.batches()) if len(batch) > 2), numbers)
    chosen = tuple(dict.fromkeys((batch[0], batch[len(batch) // 2], batch[-1])))[: len(numbers)]
    last = chosen[1:] if len(chosen) > 2 else None
    few, two = work.batch(chosen), None if last is None else work.batch(last)
    fewer = None if two is None else partial(work.rows, two)
    sites = dict.fromkeys(name for plan in work.plans for name in plan.by_site())
    call_order = learn(work.root, work.anatomy, sites, partial(work.rows, few), fewer, work.task.generates)
    _prove(work, call_order, few if two is None else two, last or chosen)
    return call_order


def _groups(work: _Work, call_order: CallOrder) -> list[tuple[Start, list[int]]]:
    """Numbers of the plans that begin at one place, so that they can run together."""
    groups: dict[Start, list[int]] = {}
    for number, plan in enumerate(work.plans):
        if len(plan):
            groups.setdefault(replaying.start_of(work.anatomy, call_order, plan), []).append(number)
    return list(groups.items())


def _copies(work: _Work, call_order: CallOrder, batch: dict[str, Any], members: list[int]) -> int:
    """How many plans to run in one pass: as many copies of the batch as still make it faster, and fit."""
    parts = [work.anatomy[name] for name in {name for n in members for name in work.plans[n].by_site()}]
    together = all(p.per_example and (not isinstance(p, Site) or p.calls_writer) for p in parts)
    if call_order.depth == NOTHING or not together or not work.task.rowwise or not call_order.rows:
        work.copies = 1
    else:
        token_limit = TOKENS_AT_ONCE.get(device_of(work.root).type, TOKENS_AT_ONCE["cpu"])
        work.copies = max(1, min(work.most_copies, len(members), token_limit // max(1, _tokens(batch))))
    return work.copies


def _tokens(batch: dict[str, Any]) -> int:
    """About how many positions a batch has: those of its longest text; a picture counts as a few hundred."""
    sizes = [t.shape[0] * (t.shape[1] if t.dim() == 2 else 256) for t in tensors(batch) if t.dim() >= 2]
    return max(sizes, default=1)


def _chunks(members: list[int], size: int) -> list[list[int]]:
    return [members[start : start + size] for start in range(0, len(members), size)]


def _again(
    work: _Work,
    call_order: CallOrder,
    memory: Memory,
    batch: dict[str, Any],
    plans: list[Plan],
    start: Start,
    stand_ins: Mapping[str, Any],
) -> np.ndarray:
    with replaying.replayed(work.root, work.anatomy, call_order, memory, plans, start, stand_ins):
        return work.rows(tiled(batch, memory.size, len(plans)))


def tiled(batch: dict[str, Any], size: int, times: int) -> dict[str, Any]:
    """The batch `times` over: its tensors and lists with one entry per example; constants as they are."""
    if times == 1:
        return batch

    def one(value: Any) -> Any:
        if isinstance(value, list) and len(value) == size:
            return value * times
        return tile(value, times) if isinstance(value, Tensor) and value.dim() and len(value) == size else value

    return {name: one(value) for name, value in batch.items()}


def _find_positions(work: _Work, call_order: CallOrder, memory: Memory, batch: dict[str, Any]) -> None:
    if work.fill is not None and not work.fill.constant:
        call_order.reader = None  # what stands in is there for all positions
    try:
        replaying.find_positions(work.root, call_order, memory, work.task.loss, fresh(batch))
    except (HeadcountError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        call_order.reader = None  # a task or a model without gradients: the last layer computes all positions


def _prove(work: _Work, call_order: CallOrder, batch: dict[str, Any], numbers: Sequence[int]) -> None:
    """Run plans of each place both ways; believe less of the script until they agree.

    At the first place two plans run side by side, and both are looked at, to see whether copies of the batch disturb each
    other; at the others the first of the two.
    """
    run, stand_ins = partial(work.rows, batch), work.stand_ins(numbers, batch)
    memory, _ = replaying.remember(work.root, work.anatomy, call_order, run, size=len(numbers), limit=sys.maxsize)
    _find_positions(work, call_order, memory, batch)
    first = True
    for start, members in dict(_groups(work, call_order)).items():
        plans = [work.plans[number] for number in members[: min(2, _copies(work, call_order, batch, members))]]

        looked_at = len(plans) if first else 1
        first = False

        def agrees(plans: list[Plan], start: Start = start, looked_at: int = looked_at) -> bool:
            plain = CallOrder(depth=NOTHING)
            again = partial(_again, work, stand_ins=stand_ins)
            ordinary = [partial(again, plain, memory, batch, [plan], Start(0)) for plan in plans[:looked_at]]
            return replaying.agrees(work.root, ordinary, partial(again, call_order, memory, batch, plans, start))

        while (call_order.depth > NOTHING or len(plans) > 1) and not agrees(plans):
            if len(plans) > 1 and (call_order.depth == NOTHING or agrees(plans[:1])):
                plans, call_order.rows = plans[:1], {}  # examples see each other: one plan at a time
            else:
                call_order.depth -= 1
