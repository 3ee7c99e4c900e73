"""What the whole model has in its residual stream after each site: where that can be seen, and what it is on some examples.

Behind an attention or an MLP, most models add its output to the residual stream; the sum is what the next norm is given,
or what the layer gives. It is found by closing the site and looking, not by names: with the site masked, exactly that sum
changes by as much as the output does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import BadData, Refused
from ...evaluation.evaluator import device_of, fresh, in_parts, to_device
from ...model.anatomy import Anatomy, Site
from ...model.cutting.rules import refuse
from ...model.gates import applied
from ...model.tensor_trees import tensors
from ...plans import Plan
from ...progress import Bar

if TYPE_CHECKING:
    from ...data.tasks import Task

MEMORY = 2**30  # bytes of what the whole model had after every site
HELD_OUT = 4  # every fourth example chooses the strength of the ridge
Run = Callable[[Mapping[str, Tensor], Iterable[Any]], Any]  # one pass under gates, with hooks; stops at `Enough`


class Enough(Exception):
    """Raised by a hook that has seen what it waited for: the rest of the pass is not needed."""


@dataclass(frozen=True, eq=False)
class ResidualTarget:
    """Where the sum of a site's output and the residual stream can be seen: given to a module, or given by it."""

    module: nn.Module
    given: int | None = None  # which of the tensors that it is given; None: the first that it gives

    def hook(self, see: Callable[[Tensor], None]) -> Any:
        """A hook that hands that tensor on."""

        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            see(list(tensors((args, kwargs)))[self.given or 0])

        def after(_: nn.Module, __: Any, output: Any) -> None:
            see(next(tensors(output)))

        if self.given is None:
            return self.module.register_forward_hook(after)
        return self.module.register_forward_pre_hook(before, with_kwargs=True)


def rows_of(site: Site, value: Tensor) -> Tensor:
    """Input or output of a writer as (positions, features)."""
    conv = isinstance(site.writer, nn.Conv1d | nn.Conv2d)
    return (value.movedim(1, -1) if conv else value).flatten(0, -2)


def exactly(device: torch.device) -> torch.dtype:
    """What products are made in: twice as wide on a CPU, where it costs little."""
    return torch.float64 if device.type == "cpu" else torch.float32


def matrix_of(site: Site) -> Tensor:
    """The writer's weight as (out, in)."""
    columns = site.columns
    assert columns is not None
    weight = getattr(columns.owner, columns.weight).detach().movedim(columns.row_axis, 0)
    return weight.reshape(columns.shape).to(exactly(weight.device))


@dataclass
class _Watched:
    """One pass through the layer around a site: what its writer was given and gave, and all that came by later.

    Each as (positions, features).
    """

    x: Tensor
    y: Tensor
    later: dict[tuple[nn.Module, int | None], Tensor] = field(default_factory=dict)


def landing(run: Run, anatomy: Anatomy, site: Site) -> ResidualTarget | None:
    """Where a site's output is added to the residual stream: the first tensor that changes by as much as the output does.

    That is the output itself where there is no such place, as with norms or factors in between. None where the output
    is not the writer's matrix times what the writer is given.
    """
    around = [b for stack in anatomy.stacks for b in stack.blocks if site.writer in set(b.modules())]
    block = min(around, key=lambda b: len(list(b.modules())), default=site.writer)
    full_pass = _watch(run, site, block, {})
    closed = _watch(run, site, block, {site.name: torch.zeros(len(site))})
    change, x, weight = full_pass.y - closed.y, full_pass.x, matrix_of(site)
    if x.shape[-1] != weight.shape[-1] or not _follows(change, x.to(weight) @ weight.T, full_pass.y.dtype):
        return None
    for key, z in full_pass.later.items():
        if key in closed.later and z.shape == full_pass.y.shape == closed.later[key].shape:
            rounding = 8 * torch.finfo(z.dtype).eps * z.abs()
            handed_on = bool(((z - full_pass.y).abs() <= rounding).all())  # the output itself, by a dropout for example
            if not handed_on and _follows(z - closed.later[key], change, z.dtype, rounding):
                return ResidualTarget(*key)
    return ResidualTarget(site.writer)


def _follows(got: Tensor, change: Tensor, dtype: torch.dtype, rounding: Tensor | float = 0.0) -> bool:
    """Whether something changes by exactly as much as it should, up to rounding, and that is more than rounding."""
    got, change = got.double(), change.double()
    size, beyond = change.norm(), (change.abs() - rounding).clamp(min=0).norm()
    wrong = ((got - change).abs() - rounding).clamp(min=0).norm()
    return bool(size > 0 and beyond >= size / 2 and wrong <= max(1e-3, 4 * torch.finfo(dtype).eps) * size)


def _watch(run: Run, site: Site, block: nn.Module, gates: Mapping[str, Tensor]) -> _Watched:
    """What can be seen in a pass from the site's writer to the end of the layer around it."""
    inputs: list[Tensor] = []
    records: list[_Watched] = []

    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        inputs.append(rows_of(site, next(tensors((args, kwargs)))).clone())

    def after(_: nn.Module, __: Any, y: Tensor) -> None:
        records.append(_Watched(inputs[-1], rows_of(site, y).clone()))

    def came(module: nn.Module, args: Any, kwargs: Any) -> None:
        for number, value in enumerate(tensors((args, kwargs)) if records else ()):
            if value.dim() > 1 and rows_of(site, value).shape == records[0].y.shape:
                records[0].later.setdefault((module, number), rows_of(site, value).clone())

    def ended(_: nn.Module, __: Any, output: Any) -> None:
        if records:
            if block is not site.writer:
                records[0].later[block, None] = rows_of(site, next(tensors(output))).clone()
            raise Enough

    def hooks() -> Iterator[Any]:
        yield site.writer.register_forward_pre_hook(before, with_kwargs=True)
        yield site.writer.register_forward_hook(after)
        for module in block.modules():
            yield module.register_forward_pre_hook(came, with_kwargs=True)
        yield block.register_forward_hook(ended)

    run(gates, hooks())
    return records[0]


# -- the order in which things run, seen on two short examples -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Passes:
    """A model and a task whose examples pass through it, under gates and hooks."""

    root: nn.Module
    anatomy: Anatomy
    task: Task

    def run(self, batch: dict[str, Any], gates: Mapping[str, Tensor], hooks: Iterable[Any]) -> Tensor | None:
        """The losses of a batch under gates and hooks, or None if a hook had seen enough."""
        with ExitStack() as stack:
            stack.enter_context(applied(self.root, self.anatomy, gates))
            for handle in hooks:  # made only now, so that they see what the gates have done
                stack.callback(handle.remove)
            try:
                return self.task.loss(self.root, fresh(to_device(batch, device_of(self.root))))
            except Enough:
                return None


@dataclass(frozen=True, eq=False)
class Trace:
    """The order in which sites and layers run: names of sites as often as they ran, and the layers that ran once."""

    batch: dict[str, Any]  # the short examples on which it was seen
    order: list[str]
    blocks: list[nn.Module]
    rate: float  # positions at the widest site to each position of an example's length

    def block_of(self, site: Site) -> int:
        """The place among the layers of the one that holds a site; 0 where that is none of them."""
        return next((place for place, block in enumerate(self.blocks) if site.writer in set(block.modules())), 0)


def trace(passes: Passes) -> Trace:
    """Run the shortest two examples, and see in which order sites and layers are called."""
    order, began, rows = list[str](), list[nn.Module](), [1]
    numbers = passes.task.batches()[-1][:2]
    batch = passes.task.collate(numbers)

    def ran(site: Site, _: nn.Module, __: Any, y: Tensor) -> None:
        order.append(site.name)
        rows.append(len(rows_of(site, y)))

    def hooks() -> Iterator[Any]:
        for site in passes.anatomy:
            yield site.writer.register_forward_hook(partial(ran, site))
        for stack in passes.anatomy.stacks:
            for block in stack.blocks:
                yield block.register_forward_pre_hook(lambda module, _: began.append(module))

    passes.run(batch, {}, hooks())
    rate = max(rows) / max(1, sum(passes.task.lengths[number] for number in numbers))
    return Trace(batch, order, [block for block in began if began.count(block) == 1], rate)


def untunable(passes: Passes, site: Site, calls: int) -> str | None:
    """Why a site's numbers cannot be found, or could not be folded into its weights; None if they can."""
    if not site.calls_writer:
        return "its code uses the weights of its output projection without calling it"
    if site.columns is None or site.writer.weight.is_meta:
        return "its weights are packed, quantised or offloaded"
    rows, columns = site.columns.shape
    if "expert" in site.path.lower() or site.writer.weight.numel() != rows * columns:
        return "which positions reach an expert is not the same after the cut"
    if calls != 1:
        return f"it runs {calls} times in a pass" if calls else "it does not run in this task"
    try:
        refuse(passes.root, passes.anatomy, Plan(), {site.name: torch.ones(len(site))})
    except Refused:
        return "its weights are shared with another module"
    return None


# -- the whole model on some examples --------------------------------------------------------------------------------------


@dataclass
class Target:
    """What the whole model has after one site, at the positions that matter to the loss."""

    z: Tensor  # (positions that matter, out)
    matter: Tensor  # (positions,)
    size: float  # squares of what the site itself writes there


@dataclass
class Piece:
    """A batch, whether it is held out, and what the whole model had on it after each site."""

    batch: dict[str, Any]
    examples: int
    held: bool
    targets: dict[str, Target]


Landings = Mapping[str, ResidualTarget]  # by site


def pieces_of(
    passes: Passes, landings: Landings, rate: float, positions: int, batch_size: int | None, seed: int
) -> list[Piece]:
    """Batches of examples with so many positions in all, drawn by the seed; every fourth example is held out."""
    task = passes.task
    if task.size < 2:
        raise BadData(f"Tuning needs at least two examples, one of them to check it; {task.name} has one.")
    sites = [passes.anatomy[name] for name in landings]
    bytes_each = 0
    for site in sites:
        if site.columns:
            bytes_each += site.columns.shape[0] * site.writer.weight.element_size()
    numbers, chosen = list(range(task.size)), list[int]()
    position_budget = float(min(positions, MEMORY // bytes_each))
    random.Random(seed).shuffle(numbers)
    for number in numbers:
        if position_budget <= 0 and len(chosen) >= 2:
            break
        chosen.append(number)
        position_budget -= rate * task.lengths[number]
    held = set(chosen[1::HELD_OUT])
    pieces = list[Piece]()
    with Bar("the whole model", total=len(chosen)) as bar:
        for side in (False, True):
            part = task.subset([number for number in chosen if (number in held) == side])
            for some in part.batches(batch_size):
                pieces += _remembered(passes, landings, part, some, side)
                bar.advance(len(some))
    return pieces


def _remembered(passes: Passes, landings: Landings, task: Task, numbers: Sequence[int], held: bool) -> Iterator[Piece]:
    """The batch as a piece; as more of them where memory runs out."""

    def piece(some: Sequence[int]) -> Piece:
        batch = task.collate(some)
        return Piece(batch, len(some), held, _full_model_pass(passes, landings, batch))

    for _, part in in_parts(piece, "gradients", task, numbers):
        yield part


def _full_model_pass(passes: Passes, landings: Landings, batch: dict[str, Any]) -> dict[str, Target]:
    """One forward and one backward pass of the whole model: where it lands, and where a gradient comes back to."""
    sizes: dict[str, Tensor] = {}
    stream: dict[str, Tensor] = {}
    matter: dict[str, Tensor] = {}

    def gave(site: Site, _: nn.Module, __: Any, y: Tensor) -> Tensor:
        name = site.name
        if not y.requires_grad:  # the first thing that does; a copy, because code may add to it in place
            y = y.detach().requires_grad_().clone()
        y.register_hook(lambda gradient: matter.update({name: rows_of(site, gradient != 0).any(-1)}))
        plain = rows_of(site, y.detach())
        sizes[name] = plain.double().square().sum(-1) if y.device.type == "cpu" else plain.float().square().sum(-1)
        return y

    def landed(site: Site, z: Tensor) -> None:
        if site.name in sizes and site.name not in stream:
            stream[site.name] = rows_of(site, z.detach()).clone()

    def hooks() -> Iterator[Any]:
        for name, target in landings.items():
            site = passes.anatomy[name]
            assert isinstance(site, Site)
            yield site.writer.register_forward_hook(partial(gave, site))
            yield target.hook(partial(landed, site))

    with torch.enable_grad():
        loss = passes.run(batch, {}, hooks())
        if loss is None or not loss.requires_grad:
            raise Refused(
                f"The loss of {passes.task.name} has no gradient for any of these units: it must be computed from what "
                "the model gives out, without detach() or no_grad()."
            )
        loss.sum().backward()
    return {
        name: Target(stream[name][matter[name]], matter[name], float(sizes[name][matter[name]].sum()))
        for name in landings
        if name in matter and name in stream
    }
