"""What every unit contributes to the loss, to first order: one forward and one backward pass give all of them at once.

With a gate on each unit, the derivative of the loss by the gate is the inner product of what the unit writes and the
gradient that comes back to it (Michel et al. 2019, section 4.1). Summed over the positions of one example it is that
example's own derivative, because examples do not see each other: no pass per example is needed, and the batch size does
not matter. Parameters are frozen meanwhile, so the backward pass goes through activations only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..errors import NotFinite, Refused
from ..evaluation.evaluator import device_of, in_parts, is_out_of_memory, to_device
from ..model.anatomy import Anatomy, Site, Stack
from ..model.equivalence import evaluating, frozen
from ..model.gates import applied
from ..model.loading.quantised import must_give_gradients
from ..model.matrices import has_int8_of_torch
from ..model.multihead import opened
from ..model.tensor_trees import tensors, with_first
from ..progress import Bar
from .checkpointing import Checkpoints, checkpointed, is_asked

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

CHUNK = 128  # consecutive examples that are kept, and written, together
BLOCK = 32  # consecutive examples whose sum is one sample of a neuron, and one "batch" of granularity "batch"
PARTS = ("signed", "absolute", "squared", "token", "positions", "examples")


@dataclass(frozen=True, eq=False)
class Contributions:
    """First-order contributions of the units of each part. A row is one example, or for neurons a block of examples.

    Each is a dict by part name of arrays (rows, units), summed over the examples of the row:
    `signed` is the derivative by the unit's gate, `absolute` its absolute value, `squared` its square, and `token` the
    absolute values summed position by position; `positions` (rows, 1; for layers rows, units) counts the positions that
    a gradient came back to, and `examples` (rows, 1) the examples.
    """

    signed: dict[str, np.ndarray]
    absolute: dict[str, np.ndarray]
    squared: dict[str, np.ndarray]
    token: dict[str, np.ndarray]
    positions: dict[str, np.ndarray]
    examples: dict[str, np.ndarray]

    def blocks(self, name: str) -> np.ndarray:
        """Signed sums of each block of consecutive examples: (blocks, units)."""
        signed, examples = self.signed[name], self.examples[name]
        if not len(signed) or examples.max() > 1:
            return signed
        starts = np.arange(0, len(signed), BLOCK)
        return np.add.reduceat(signed, starts, axis=0)


def contributions(
    root: nn.Module,
    anatomy: Anatomy,
    parts: Sequence[Site | Stack],
    task: Task,
    *,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "score",
) -> Contributions:
    """The contributions of every unit of these parts (attentions, MLPs, stacks of layers) to the task's loss.

    Within `checkpointing()`, layers are run twice and their activations are not kept.
    """
    if has_int8_of_torch(root):  # gradients would come back around its matrices, and look like small ones
        raise Refused(
            f"{type(root).__name__} is quantised to int8 by torch, whose matrices have no gradients: score it before it is "
            "quantised (the units have the same names), or score by ablation."
        )
    must_give_gradients(root)
    one_by_one = any(not p.per_example or (isinstance(p, Site) and not p.calls_writer) for p in parts)
    one_by_one = one_by_one or not _independent(root, task)
    work = _Work(root, anatomy, parts, task, 1 if one_by_one else batch_size)
    chunks = [range(start, min(start + CHUNK, task.size)) for start in range(0, task.size, CHUNK)]
    with ExitStack() as stack:
        for context in (evaluating(root), frozen(root), torch.inference_mode(False)):
            stack.enter_context(context)
        if is_asked():
            before = _loss_of_shortest(root, task)
            work.checkpoints = stack.enter_context(checkpointed(root, anatomy))
            _same_without_cache(root, before, _loss_of_shortest(root, task), anatomy)
        bar = stack.enter_context(Bar("gradients", total=task.size))
        jobs = [(f"{name}-gradients-{chunk.start:06d}", partial(_chunk, work, chunk, bar)) for chunk in chunks]
        pieces = list(runs.independent(run, jobs))
    joined = {
        kind: {p.name: np.concatenate([piece[f"{kind}.{p.name}"] for piece in pieces]) for p in parts} for kind in PARTS
    }
    return Contributions(**joined)


@dataclass
class _Work:
    root: nn.Module
    anatomy: Anatomy
    parts: Sequence[Site | Stack]
    task: Task
    batch_size: int | None
    sums: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # of the batch being run
    checkpoints: Checkpoints | None = None


def _wide(part: Site | Stack, kind: str) -> int:
    """Columns of an array: one per unit; positions are those of the whole part, unless its units are layers."""
    single_column = kind == "examples" or (kind == "positions" and isinstance(part, Site))
    return 1 if single_column else len(part)


def _chunk(work: _Work, chunk: range, bar: Bar) -> dict[str, np.ndarray]:
    """The arrays of some consecutive examples; for neurons folded into blocks."""
    chunk_task, device = work.task.subset(chunk), device_of(work.root)
    rows = {part.name: -(-len(chunk) // _per_row(part)) for part in work.parts}
    out = {
        f"{kind}.{p.name}": torch.zeros(rows[p.name], _wide(p, kind), device=device)
        for p in work.parts
        for kind in PARTS
    }
    for numbers in chunk_task.batches(work.batch_size):
        _fill(work, chunk_task, numbers, out)
        bar.advance(len(numbers))
    return {name: values.cpu().numpy() for name, values in out.items()}


def _per_row(part: Site | Stack) -> int:
    """Consecutive examples that make one row."""
    return BLOCK if part.kind == "neuron" else 1


def _fill(work: _Work, task: Task, numbers: Sequence[int], out: dict[str, Tensor]) -> None:
    """Run one batch and write its values into the rows of its examples; half of it at a time where memory runs out."""
    for some, sums in in_parts(partial(_batch, work, task), "gradients", task, numbers):
        _write(work, task, some, sums, out)


def _write(
    work: _Work,
    task: Task,
    numbers: Sequence[int],
    sums: Mapping[str, dict[str, Tensor]],
    out: dict[str, Tensor],
) -> None:
    """Write what a batch gave into the rows of its examples; `NotFinite` names an example whose gradient is none."""
    bad = (~torch.stack([torch.isfinite(part_sums["signed"]).all(1) for part_sums in sums.values()]).all(0)).nonzero()
    if len(bad):
        raise NotFinite(
            f"The gradient of the loss of {task.describe(numbers[int(bad[0])])} is not finite: look at that example, or "
            "use a wider dtype."
        )
    for part in work.parts:
        signed = sums[part.name]["signed"]
        ones = torch.ones(len(numbers), 1, device=signed.device)
        values = {"signed": signed, "absolute": signed.abs(), "squared": signed.square(), "examples": ones}
        values |= sums[part.name]
        rows = torch.tensor([number // _per_row(part) for number in numbers], device=signed.device)
        # a product, and not a sum at indices, whose order GPUs do not promise
        to_rows = (torch.arange(len(out[f"signed.{part.name}"]), device=signed.device)[:, None] == rows).double()
        for kind, value in values.items():
            if _per_row(part) == 1:
                out[f"{kind}.{part.name}"][rows] = value
            else:
                out[f"{kind}.{part.name}"] += (to_rows @ value.double()).float()


def _batch(work: _Work, task: Task, numbers: Sequence[int]) -> dict[str, dict[str, Tensor]]:
    """One forward and one backward pass: for each part the sums (batch, units) over the positions of each example."""
    size, device = len(numbers), device_of(work.root)
    work.sums = {
        p.name: {
            "signed": torch.zeros(size, len(p), device=device),
            "token": torch.zeros(size, len(p), device=device),
            "positions": torch.zeros(size, _wide(p, "positions"), device=device),
        }
        for p in work.parts
    }
    shadowed = {
        p.name: torch.ones(len(p), device=device, requires_grad=True)
        for p in work.parts
        if isinstance(p, Site) and not p.calls_writer
    }
    with ExitStack() as stack, torch.enable_grad():
        stack.enter_context(opened(work.root))
        for part in work.parts:
            if part.name not in shadowed:
                for handle in _listen(part, work.sums[part.name], size, work.checkpoints):
                    stack.callback(handle.remove)
        stack.enter_context(applied(work.root, work.anatomy, shadowed))
        loss = task.loss(work.root, to_device(task.collate(numbers), device))
        _finite(task, numbers, loss)
        if not loss.requires_grad:
            raise Refused(
                f"The loss of {task.name} has no gradient for any of these units: it must be computed from what the model "
                "gives out, without detach() or no_grad()."
            )
        loss.sum().backward()
    for name, gate in shadowed.items():
        gradient = gate.grad if gate.grad is not None else torch.zeros_like(gate)
        work.sums[name]["signed"] += gradient
        work.sums[name]["token"] += torch.nan  # such a module never shows its positions
    return work.sums


def _independent(root: nn.Module, task: Task) -> bool:
    """Whether the loss of an example is the same alone and beside another; contrastive losses are not."""
    numbers = task.batches()[-1][:2]  # the shortest
    if len(numbers) < 2 or not task.rowwise:
        return True
    device = device_of(root)
    with evaluating(root), torch.no_grad():
        try:
            beside = task.loss(root, to_device(task.collate(numbers), device))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        _finite(task, numbers, beside)
        alone = task.loss(root, to_device(task.collate(numbers[:1]), device))
    rough = 1e-3 if beside.dtype == torch.float32 and next(root.parameters()).dtype == torch.float32 else 0.1
    return torch.allclose(beside[:1].float(), alone.float(), rtol=rough, atol=rough, equal_nan=True)


def _loss_of_shortest(root: nn.Module, task: Task) -> Tensor:
    numbers = task.batches()[-1][:1]
    with torch.no_grad():
        return task.loss(root, to_device(task.collate(numbers), device_of(root)))


def _same_without_cache(root: nn.Module, before: Tensor, after: Tensor, anatomy: Anatomy) -> None:
    """`Refused` for a model that computes something else where it keeps no keys and values for later tokens."""
    rtol, atol = (1e-2, 1e-3) if next(root.parameters()).dtype == torch.float32 else (0.1, 0.1)
    if not torch.allclose(before.float(), after.float(), rtol=rtol, atol=atol, equal_nan=True):
        raise Refused(
            f"{anatomy.model_name} computes something else without its cache, and with it layers cannot run a second time: "
            "leave checkpointing out."
        )


def _finite(task: Task, numbers: Sequence[int], loss: Tensor) -> None:
    if loss.shape != (len(numbers),):
        raise Refused(
            f"The loss of {task.name} has shape {tuple(loss.shape)} for {len(numbers)} examples; it must be one number "
            "per example."
        )
    bad = (~torch.isfinite(loss)).nonzero()
    if len(bad):
        number = int(bad[0])
        raise NotFinite(
            f"The loss of {task.describe(numbers[number])} is {float(loss[number])}: look at that example, or use a "
            "wider dtype."
        )


def _listen(part: Site | Stack, sums: dict[str, Tensor], size: int, checkpoints: Checkpoints | None) -> Iterator[Any]:
    """Hooks that add to `sums` when the gradient comes back to a writer's input, or to a layer's output."""
    if isinstance(part, Stack):
        for place, block in enumerate(part.blocks):
            yield block.register_forward_hook(partial(_see_layer, place, sums, size), with_kwargs=True, prepend=True)
    else:
        yield part.writer.register_forward_pre_hook(
            partial(_see_writer, part, sums, size, checkpoints), with_kwargs=True
        )


def _see_writer(
    site: Site,
    sums: dict[str, Tensor],
    size: int,
    checkpoints: Checkpoints | None,
    _: nn.Module,
    args: Any,
    kwargs: Any,
) -> Any:
    name = None if args else next(iter(kwargs))
    writer_input = args[0] if args else kwargs[name]
    if not torch.is_grad_enabled():
        return None
    # the first thing that asks for a gradient: with frozen parameters nothing below it is in the graph; and a view of its
    # own otherwise, because others may read the same tensor, and their gradient is not the writer's
    x = writer_input.view_as(writer_input) if writer_input.requires_grad else writer_input.detach().requires_grad_()
    axis = 1 if isinstance(site.writer, nn.Conv1d | nn.Conv2d) else x.dim() - 1
    call = None if checkpoints is None else checkpoints.current
    key = None if call is None else call.key(site.name)
    if call is not None and key is not None:
        call.note(key, x.detach())
    if call is None or not call.again:
        # within a checkpointed layer nothing is held: its second run, before the gradient comes here, brings it
        held = x.detach() if call is None else None

        def back(gradient: Tensor) -> None:
            activations = held if call is None or key is None else call.taken(key)
            assert activations is not None
            product = (activations.float() * gradient.float()).movedim(axis, -1)
            _add(sums, product.unflatten(-1, (-1, site.width)).sum(-1), size, slice(None))

        x.register_hook(back)
    return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, name: x})


def _see_layer(
    place: int, sums: dict[str, Tensor], size: int, _: nn.Module, args: Any, kwargs: Any, output: Any
) -> Any:
    if not torch.is_grad_enabled():
        return None
    before, after = next(tensors((args, kwargs))), next(tensors(output))
    if before.shape != after.shape:
        raise Refused("A layer does not hand on what it takes in: it cannot be scored as a whole; score its heads.")
    fresh = not after.requires_grad
    after = after.detach().requires_grad_() if fresh else after
    change = (after - before.to(after.device)).detach()

    def back(gradient: Tensor) -> None:
        _add(sums, (change.float() * gradient.float()).sum(-1, keepdim=True), size, slice(place, place + 1))

    after.register_hook(back)
    return with_first(output, after) if fresh else None


def _add(sums: dict[str, Tensor], products: Tensor, size: int, columns: slice) -> None:
    """Add contributions per position (rows, ..., units) to those of the examples that the rows belong to."""
    products = products.reshape(size, -1, products.shape[-1])
    sums["signed"][:, columns] += products.sum(1).to(sums["signed"].device)
    sums["token"][:, columns] += products.abs().sum(1).to(sums["token"].device)
    read = (products != 0).any(-1).sum(1, keepdim=True)
    sums["positions"][:, columns if sums["positions"].shape[1] > 1 else slice(None)] += read.to(sums["positions"])
