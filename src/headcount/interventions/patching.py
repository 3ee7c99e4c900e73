"""`patch`: activations of clean prompts put into corrupted ones, or the other way round, one unit at a time.

Denoising runs the corrupted prompts with one activation from the clean ones: it asks what is enough to bring the clean answer
back. Noising runs the clean prompts with one activation from the corrupted ones: it asks what is needed (Meng et al. 2022;
Wang et al. 2023; Heimersheim and Nanda 2024). Both are given in the metric, and on the scale from 0 (corrupted) to 1 (clean).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..data.contrast.measures import DISTRIBUTION
from ..data.contrast.reference import with_reference
from ..errors import BadData, BadPlan, NotFinite
from ..evaluation import replay as replaying
from ..evaluation.ablation import plans_of
from ..evaluation.call_order import NOTHING, SITES, CallOrder, learn
from ..evaluation.evaluator import MEMORY, TOKENS_AT_ONCE, device_of, fresh, in_parts, signature, tiled, to_device
from ..evaluation.replay import Memory, Start
from ..hashing import fingerprint
from ..model.anatomy import Anatomy, Units
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..model.distributed.refusals import not_tensor_parallel
from ..model.equivalence import evaluating
from ..plans import Plan
from ..progress import Bar
from .patches import Activations, At, Patch, at_named, check_parts, patched, recording, residual_patches
from .results import DIRECTIONS, Patching

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

RESIDUAL = "residual"


def patch(
    model: nn.Module,
    task: Task,
    units: str | Mapping[str, Units] = "heads",
    *,
    direction: str = "denoising",
    at: str | int | None = None,
    block: int | None = None,
    batch_size: int | None = None,
    replay: bool = True,
    memory: int = MEMORY,
    run: Run | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> Patching:
    """Activation patching: each unit in turn takes its activations from the other prompt of a contrast task.

    Every patch is an exact pass, not an approximation. Of heads, neurons, attentions and MLPs it is what they hand to the
    output projection, of layers what they add to the residual stream; of `residual` it is the stream itself, before each
    layer at each position.

    Args:
        model: The model; it is as it was afterwards.
        task: A contrast task, which knows its corrupted prompts.
        units: "heads", "neurons", "mlps", "attentions", "layers", "kv-groups", "residual", or plans of your own by name.
        direction: "denoising" (clean activations into corrupted prompts) or "noising" (the other way round).
        at: Positions that are patched: "all", "last" (where the answer is asked), "differing", a number, "2:7", "-3:".
        block: Neurons that are patched together; by default a twelfth of the MLP.
        batch_size: Examples per forward pass; by default that of the task.
        replay: Whether layers below a patch are computed once only; the values are the same.
        memory: Bytes of activations that may be cached.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The values of every example under every patch; `rows()` has their normalised values with intervals and tests.

    Examples:
        >>> model = hc.load("my-decoder")
        >>> task = hc.task("contrast:induction", tokenizer="my-decoder", limit=16)
        >>> patching = hc.patch(model, task, units="layers")
        >>> patching.names
        ('layers:0', 'layers:1')
    """
    not_tensor_parallel(model, "activations are not patched")
    task = _prepared(task, model, direction)
    root, rows = unwrap(model), tuple(specs)
    anatomy = find(model, rows)
    patches = _patches(anatomy, task, units, at, block)
    check_parts(anatomy, patches)
    values = _measured(_Sweep(root, anatomy, task, patches, direction, replay, memory), batch_size, run)
    clusters = None if task.clusters is None else np.array(task.clusters)
    return Patching(
        patches=tuple(patches),
        units=units if isinstance(units, str) else "plans",
        at=at_named(at).name,
        direction=direction,
        metric=task.metric,
        clean=values["clean"],
        corrupted=values["corrupted"],
        values=values["patched"],
        signature=signature(model, task, patch=direction, units=units if isinstance(units, str) else "plans"),
        clusters=clusters,
        kinds={part.name: (part.kind, getattr(part, "attention", None)) for part in anatomy.parts},
    )


def _prepared(task: Task, model: nn.Module, direction: str) -> Task:
    """The task with a metric that has a value for every example, and what that is measured against."""
    if task.corrupted is None:
        raise BadData(
            f"Patching needs clean and corrupted prompts, and this is a {task.kind} task; make a contrast task "
            "(hc.task('contrast', ...), --task contrast)."
        )
    if direction not in DIRECTIONS:
        raise BadPlan(f"The direction is {' or '.join(DIRECTIONS)}; I got {direction!r:.40}.")
    task = task.with_metric("logit-difference") if task.metric.name == "normalised" else task
    if task.metric.name == "kl" and DISTRIBUTION not in task.collate([0]):
        return with_reference(task, model)
    return task


def _patches(
    anatomy: Anatomy, task: Task, units: str | Mapping[str, Units], at: str | int | None, block: int | None
) -> list[Patch]:
    if units == RESIDUAL:
        if at is not None:
            raise BadPlan("The residual stream is patched position by position; leave at= (--at) out.")
        return residual_patches(anatomy, task.lengths)
    where = at_named(at)
    plans = plans_of(anatomy, units, block=block) if isinstance(units, str) else dict(units)
    if not plans:
        raise BadPlan(f"{anatomy.model_name} has no {units} to patch; `headcount inspect` lists what is there.")
    return [Patch(name, where, anatomy.plan(plan)) for name, plan in plans.items()]


# --- the sweep ------------------------------------------------------------------------------------------------------


@dataclass
class _Sweep:
    """One call of `patch`: what was asked, and what was learnt about the order in which the model runs."""

    root: nn.Module
    anatomy: Anatomy
    task: Task
    patches: list[Patch]
    direction: str
    replay: bool
    memory: int
    call_order: CallOrder | None = None

    def sides(self) -> tuple[Task, Task]:
        """The task that is run, and the one whose activations are put in."""
        assert self.task.corrupted is not None
        both = (self.task.corrupted, self.task)
        return both if self.direction == DIRECTIONS[0] else both[::-1]

    def values(self, batch: dict[str, Any]) -> np.ndarray:
        """The metric of every example (or copy of one) of a batch."""
        values = self.task.metric.per_example(self.task.rows(self.root, fresh(batch)))
        if values is None:
            raise BadData(f"{self.task.metric.name} has no value for a single example; choose another metric.")
        return values


def _measured(sweep: _Sweep, batch_size: int | None, run: Run | None) -> dict[str, np.ndarray]:
    """Values of every example: clean and corrupted (examples,), patched (patches, examples)."""
    task, batches = sweep.task, sweep.task.batches(batch_size)
    out = {"clean": np.empty(task.size), "corrupted": np.empty(task.size)}
    out["patched"] = np.empty((len(sweep.patches), task.size))
    with ExitStack() as stack:
        for context in (evaluating(sweep.root), torch.inference_mode(False), torch.no_grad()):
            stack.enter_context(context)
        bar = stack.enter_context(Bar("patching", total=len(batches)))
        mark = _mark(sweep, batches)
        for number, numbers in enumerate(batches):

            def compute(numbers: Sequence[int] = numbers) -> dict[str, np.ndarray]:
                parts = [part for _, part in in_parts(partial(_batch, sweep), "patching", task, numbers)]
                return {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}

            found = runs.piece(run, f"patch-{mark}-{number:06d}", compute)
            for name, values in found.items():
                out[name][..., list(numbers)] = values
            bar.advance()
    return out


def _mark(sweep: _Sweep, batches: Sequence[Sequence[int]]) -> str:
    """What tells the pieces of one call from those of another in the same run folder."""
    patches = [
        [patch.name, patch.at.name, patch.plan.to_json()["remove"], patch.stack, patch.layer] for patch in sweep.patches
    ]
    task = [sweep.task.fingerprint, sweep.task.metric.name, [list(numbers) for numbers in batches]]
    return fingerprint([patches, sweep.direction, task])[:8]


@dataclass(frozen=True, eq=False)
class _Batch:
    """Some examples ready to be patched: the batch that is run, the activations to put in, and where positions are."""

    batch: dict[str, Any]
    size: int
    source: Activations
    masks: dict[At, Tensor]


def _ready(sweep: _Sweep, numbers: Sequence[int]) -> tuple[_Batch, np.ndarray]:
    """The examples of these numbers, and the values of those whose activations are put in."""
    device, (into, out_of) = device_of(sweep.root), sweep.sides()
    batch, other = (to_device(one.collate(numbers), device) for one in (into, out_of))
    with recording(sweep.anatomy, sweep.patches) as source:
        values = sweep.values(other)
    differing = batch["input_ids"] != other["input_ids"]
    masks = {at: at.mask(batch, differing) for at in dict.fromkeys(patch.at for patch in sweep.patches)}
    return _Batch(batch, len(numbers), source, masks), values


def _batch(sweep: _Sweep, numbers: Sequence[int]) -> dict[str, np.ndarray]:
    """All patches of one batch, each from where it begins to matter."""
    if sweep.call_order is None:
        sweep.call_order = _learn(sweep, numbers)
    ready, source_values = _ready(sweep, numbers)
    call_order, run = sweep.call_order, partial(sweep.values, ready.batch)
    memory, base = Memory({}, {}, ready.size), None
    if call_order.depth > NOTHING:
        try:
            memory, base = replaying.remember(
                sweep.root, sweep.anatomy, call_order, run, size=ready.size, limit=sweep.memory
            )
        except replaying.TooMuch:
            raise MemoryError from None  # `in_parts` takes half of the batch
    base = run() if base is None else base
    versions = memory.versions
    out = np.empty((len(sweep.patches), ready.size))
    for start, members in _groups(sweep, call_order).items():
        for some in _chunks(members, _copies(sweep, call_order, ready)):
            patches = [sweep.patches[number] for number in some]
            out[some] = _again(sweep, call_order, memory, ready, patches, start).reshape(len(some), -1)
    if memory.versions != versions:  # the model writes into tensors that it was given: nothing can be remembered
        call_order.depth = NOTHING
        return _batch(sweep, numbers)
    _check_finite(sweep, numbers, out)
    sides = dict(zip(("corrupted", "clean") if sweep.direction == DIRECTIONS[0] else ("clean", "corrupted"),
                     (base, source_values), strict=True))  # fmt: skip
    return {**sides, "patched": out}


def _again(
    sweep: _Sweep, call_order: CallOrder, memory: Memory, ready: _Batch, patches: list[Patch], start: Start
) -> np.ndarray:
    """Values of a batch tiled once per patch."""
    nothing = [Plan()] * len(patches)  # as many copies as there are patches, with nothing masked in any
    with (
        replaying.replayed(sweep.root, sweep.anatomy, call_order, memory, nothing, start),
        patched(sweep.root, sweep.anatomy, patches, ready.source, ready.masks),
    ):
        return sweep.values(tiled(ready.batch, ready.size, len(patches)))


def _check_finite(sweep: _Sweep, numbers: Sequence[int], values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        place, example = np.argwhere(~np.isfinite(values))[0]
        raise NotFinite(
            f"The {sweep.task.metric.name} of {sweep.task.describe(numbers[example])} is {values[place, example]} with "
            f"{sweep.patches[place].name} patched: look at that example, or use a wider dtype."
        )


# --- replay ---------------------------------------------------------------------------------------------------------


def _learn(sweep: _Sweep, numbers: Sequence[int]) -> CallOrder:
    """In which order the parts of the model run, seen and proved on a few examples; nothing where nothing is replayed."""
    if not sweep.replay:
        return CallOrder(depth=NOTHING)
    few = tuple(dict.fromkeys((numbers[0], numbers[len(numbers) // 2], numbers[-1])))
    ready, _ = _ready(sweep, few)
    fewer = partial(sweep.values, _ready(sweep, few[1:])[0].batch) if len(few) > 1 else None
    sites = dict.fromkeys(name for patch in sweep.patches for name in patch.plan.by_site())
    call_order = learn(sweep.root, sweep.anatomy, sites, partial(sweep.values, ready.batch), fewer, False)
    call_order.depth, call_order.reader = SITES, None  # a patch reads and writes at all positions
    _prove(sweep, call_order, ready)
    return call_order


def _prove(sweep: _Sweep, call_order: CallOrder, ready: _Batch) -> None:
    """Run patches of each place both ways, and believe less of what was seen until they agree."""
    memory, _ = replaying.remember(
        sweep.root, sweep.anatomy, call_order, partial(sweep.values, ready.batch), size=ready.size, limit=sys.maxsize
    )
    plain = CallOrder(depth=NOTHING)
    for start, members in _groups(sweep, call_order).items():
        patches = [sweep.patches[number] for number in members[:: max(1, len(members) - 1)][:2]]
        patches = patches if call_order.rows else patches[:1]

        def agrees(patches: list[Patch], start: Start = start) -> bool:
            ordinary: list[Callable[[], Any]] = [
                partial(_again, sweep, plain, memory, ready, [patch], Start(0)) for patch in patches
            ]
            return replaying.agrees(
                sweep.root, ordinary, partial(_again, sweep, call_order, memory, ready, patches, start)
            )

        while (call_order.depth > NOTHING or len(patches) > 1) and not agrees(patches):
            if len(patches) > 1 and (call_order.depth == NOTHING or agrees(patches[:1])):
                patches, call_order.rows = patches[:1], {}  # examples see each other: one patch at a time
            else:
                call_order.depth -= 1


def _groups(sweep: _Sweep, call_order: CallOrder) -> dict[Start, list[int]]:
    """Numbers of the patches that begin at one place, so that they can run together."""
    places = {block: place for place, block in enumerate(call_order.blocks)}
    groups: dict[Start, list[int]] = {}
    for number, one in enumerate(sweep.patches):
        at_layer = None if one.block is None else Start(places.get(one.block, 0))
        groups.setdefault(at_layer or replaying.start_of(sweep.anatomy, call_order, one.plan), []).append(number)
    return groups


def _copies(sweep: _Sweep, call_order: CallOrder, ready: _Batch) -> int:
    """How many patches to run in one pass: as many copies of the batch as still make it faster."""
    if not call_order.rows or not sweep.task.rowwise:
        return 1
    most = TOKENS_AT_ONCE.get(device_of(sweep.root).type, TOKENS_AT_ONCE["cpu"])
    return max(1, min(64, most // max(1, ready.batch["input_ids"].numel())))


def _chunks(members: list[int], size: int) -> list[list[int]]:
    return [members[start : start + size] for start in range(0, len(members), size)]
