"""Tensor-parallel models (`tp_plan="auto"`): every process holds some heads and neurons of every layer.

A row-wise projection is given the columns of this process alone, so a hook there sees this process's heads only: gates are
sliced. Whoever looks at what heads write from opens the projections with `whole_inputs`: there, what each is given is gathered
from all processes before any hook sees it, and sliced again behind the last one. Gradients go the same way back, so that every
process sees what a model in one piece would show, and comes to the same numbers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Share:
    """The input columns of a projection that this process holds: from `start` to `stop`, of `whole`."""

    start: int
    stop: int
    whole: int
    group: Any

    def of(self, values: Tensor) -> Tensor:
        """The columns of this process, of all of them; columns are the last axis."""
        return values[..., self.start : self.stop].contiguous()

    def gathered(self, values: Tensor) -> Tensor:
        """All columns, from those of every process."""
        full = values.new_zeros((*values.shape[:-1], self.whole))
        full[..., self.start : self.stop] = values
        torch.distributed.all_reduce(full, group=self.group)
        return full


def share_of(module: nn.Module) -> Share | None:
    """What this process holds of a projection whose columns are shared out; None for any other module."""
    weight = module._parameters.get("weight") if is_connected() else None
    if weight is None or not is_distributed(weight) or weight.dim() != 2:
        return None
    for axis, placement in enumerate(weight.placements):  # type: ignore[attr-defined]
        if placement.is_shard(dim=1) or placement.is_shard(dim=-1):
            mesh = weight.device_mesh  # type: ignore[attr-defined]
            parts = torch.arange(weight.shape[1]).chunk(
                mesh.size(axis)
            )  # as DTensor does: a part may be shorter, or missing
            rank = mesh.get_local_rank(axis)
            mine = parts[rank].tolist() if rank < len(parts) else []
            start = mine[0] if mine else weight.shape[1]
            return Share(start, start + len(mine), weight.shape[1], mesh.get_group(axis))
    return None


def is_connected() -> bool:
    """Whether this process works together with others."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def is_distributed(tensor: Tensor) -> bool:
    """Whether parts of a tensor are in other processes."""
    if not is_connected():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def is_tensor_parallel(model: nn.Module) -> bool:
    """Whether matrices of a model are shared out, so that every process must run every pass."""
    if not is_connected():
        return False
    if any(share_of(module) is not None for module in model.modules()):
        return True
    return not is_fully_sharded(model) and any(map(is_distributed, model.parameters()))


def is_fully_sharded(model: nn.Module) -> bool:
    """Whether FSDP has cut parameters of a model into parts, which come together while their layer runs."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not there: nobody has used it
    return fsdp is not None and any(
        isinstance(m, fsdp.FSDPModule | fsdp.FullyShardedDataParallel) for m in model.modules()
    )


_open: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # how many contexts hold a projection open
_closing: WeakKeyDictionary[nn.Module, tuple[Any, Any]] = WeakKeyDictionary()  # its hook, and its own `forward`


@contextmanager
def whole_inputs(root: nn.Module) -> Iterator[None]:
    """Within the block, hooks on projections whose columns are shared out see the columns of all processes."""
    shares = _shares_given(root) if is_connected() else {}
    for module, share in shares.items():
        _open[module] = _open.get(module, 0) + 1
        if _open[module] == 1:
            handle = module.register_forward_pre_hook(partial(_gather, share), prepend=True)
            _closing[module] = handle, module.forward
            setattr(module, "forward", partial(_sliced, share, module.forward))  # noqa: B010
    try:
        yield
    finally:
        for module in shares:  # contexts may end in any order: the last closes
            _open[module] -= 1
            if _open[module] == 0:
                del _open[module]
                handle, forward = _closing.pop(module)
                handle.remove()
                setattr(module, "forward", forward)  # noqa: B010


def _shares_given(root: nn.Module) -> dict[nn.Module, Share]:
    """The projections below `root` that are given the columns of this process; others get all of them and split them."""
    plan = getattr(root, "tp_plan", None) or {}
    found = {}
    for path, module in root.named_modules():
        share = share_of(module)
        if share is not None and plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", path), "rowwise") == "rowwise":
            found[module] = share
    return found


def _gather(share: Share, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    x = args[0]
    return args if x.shape[-1] == share.whole else (_gathered(x, share), *args[1:])


def _sliced(share: Share, forward: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    return forward(_sliced_from(x, share) if x.shape[-1] == share.whole else x, *args, **kwargs)


class _Gathered(torch.autograd.Function):
    """All columns; the gradient that comes back is whole in every process."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: Share) -> Tensor:  # type: ignore[override]
        ctx.share = share
        return share.gathered(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.share.of(gradient), None


class _Sliced(torch.autograd.Function):
    """The columns of this process; the gradients of all of them are gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: Share) -> Tensor:  # type: ignore[override]
        ctx.share = share
        return share.of(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.share.gathered(gradient), None


_gathered: Any = _Gathered.apply
_sliced_from: Any = _Sliced.apply
