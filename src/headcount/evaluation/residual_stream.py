"""The residual stream of a model: where what an attention or an MLP writes is added to it.

Behind an attention or an MLP, most models add its output to the residual stream; the sum is what the next norm is given,
or what the layer gives. It is found by closing the site and looking, not by names: with the site masked, exactly that sum
changes by as much as the output does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..model.anatomy import Anatomy, Site
from ..model.distributed.device_maps import weights_present
from ..model.gates import applied
from ..model.multihead import opened
from ..model.tensor_trees import tensors
from .evaluator import device_of, fresh, to_device

if TYPE_CHECKING:
    from ..data.tasks import Task

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
    with weights_present(columns.owner):
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
    is not the writer's matrix times what the writer is given, or where the site does not run.
    """
    around = [b for stack in anatomy.stacks for b in stack.blocks if site.writer in set(b.modules())]
    block = min(around, key=lambda b: len(list(b.modules())), default=site.writer)
    full_pass = _watch(run, site, block, {})
    closed = _watch(run, site, block, {site.name: torch.zeros(len(site))})
    if full_pass is None or closed is None:
        return None
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


def _watch(run: Run, site: Site, block: nn.Module, gates: Mapping[str, Tensor]) -> _Watched | None:
    """What can be seen in a pass from the site's writer to the end of the layer around it; None if it does not run."""
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
    return records[0] if records else None


@dataclass(frozen=True, eq=False)
class Passes:
    """A model and a task whose examples pass through it, under gates and hooks."""

    root: nn.Module
    anatomy: Anatomy
    task: Task

    def run(self, batch: dict[str, Any], gates: Mapping[str, Tensor], hooks: Iterable[Any]) -> Tensor | None:
        """The losses of a batch under gates and hooks, or None if a hook had seen enough."""
        with ExitStack() as stack:
            stack.enter_context(opened(self.root))  # for the hooks
            stack.enter_context(applied(self.root, self.anatomy, gates))
            for handle in hooks:  # made only now, so that they see what the gates have done
                stack.callback(handle.remove)
            try:
                return self.task.loss(self.root, fresh(to_device(batch, device_of(self.root))))
            except Enough:
                return None
