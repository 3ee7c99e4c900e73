"""A second device that is not there: its tensors lie in memory, and mixing them with others is the error that it would be.

It is registered with torch for the whole process and cannot be taken away again, and gradients do not go through it: this file is
run in a process of its own, and writes what it finds on the models of the zoo that are named.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "fake"
REGISTER = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)  # of torch 2.10 and later
COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
PICKS = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}  # by indices on the CPU, which torch allows


class OnFake(Tensor):
    """A tensor that says it is on the device, and what it holds in memory."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnFake:
        """A tensor on the device, of this one in memory."""
        shape = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made: OnFake = Tensor._make_wrapper_subclass(cls, held.shape, **shape, device=f"{NAME}:0")
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:
        return f"OnFake({self.held})"

    def untyped_storage(self) -> Any:
        """The memory that it lies in."""
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        """Where it lies."""
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation, of tensors on one device only; single numbers may come from the CPU."""
        kwargs = dict(kwargs or {})
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        apart = {isinstance(one, OnFake) for one in given if one.dim() or isinstance(one, OnFake)}
        if len(apart) > 1 and func not in COPIES | PICKS:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {func} got some on cpu, some on {NAME}:0"
            )
        there = any(isinstance(one, OnFake) for one in given)
        if kwargs.get("device") is not None:
            there = torch.device(kwargs["device"]).type == NAME
            kwargs["device"] = "cpu"
        elif func is torch.ops.aten.copy_.default:
            there = isinstance(args[0], OnFake)
        result = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        known = {id(_held(one)): one for one in given}
        return tree_map(lambda one: known.get(id(one), _on(one, there)) if isinstance(one, Tensor) else one, result)


@contextmanager
def fake() -> Iterator[None]:
    """Within the block, tensors are made on the device where they are asked for there."""
    with _Made(), _Given():
        yield


class _Given(TorchFunctionMode):
    """`torch.tensor`, which no dispatch mode sees, makes its tensor in memory and moves it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One function."""
        kwargs = kwargs or {}
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == NAME:
            return func(*args, **{**kwargs, "device": "cpu"}).to(f"{NAME}:0")
        return func(*args, **kwargs)


class _Made(TorchDispatchMode):
    """`torch.zeros` and its like."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation."""
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is None or torch.device(device).type != NAME or any(isinstance(t, OnFake) for t in tree_leaves(args)):
            return func(*args, **kwargs)
        made = func(*args, **{**kwargs, "device": "cpu"})
        return tree_map(lambda one: _on(one, True) if isinstance(one, Tensor) else one, made)


class _Goes(ModelHook):
    """accelerate's hook, but for what it does to weights: inputs go to the device that the module is on."""

    def __init__(self, device: str) -> None:
        self.execution_device = device

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Before the module runs."""
        return send_to_device(args, self.execution_device), send_to_device(kwargs, self.execution_device)


def dispatched(model: Any, device_map: dict[str, str]) -> Any:
    """The model with its parts on the devices of the map, as accelerate would have it."""
    for path, device in device_map.items():
        for module in model.get_submodule(path).modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(parameter.detach().to(device))
            for name, buffer in list(module._buffers.items()):
                if buffer is not None:
                    module._buffers[name] = buffer.to(device)
        add_hook_to_module(model.get_submodule(path), _Goes(device))
    return model


def _held(one: Any) -> Any:
    return one.held if isinstance(one, OnFake) else one


def _on(one: Tensor, there: bool) -> Tensor:
    return OnFake(one) if there and not isinstance(one, OnFake) else one


def main(folder: Path, families: Sequence[str]) -> None:
    """Models with every other layer on the CPU: what the verbs say about each."""
    from helpers import zoo
    from helpers.spread import in_halves, in_passes

    REGISTER(NAME)
    for family in families:
        model, inputs = zoo.build(family)
        with fake():
            spread = dispatched(model, in_halves(model, "cpu", NAME))
            assert {p.device.type for p in spread.parameters()} == {"cpu", NAME}
            np.savez(folder / f"{family}.npz", **in_passes(spread, inputs))


if __name__ == "__main__":
    TESTS = Path(__file__).parents[1]
    sys.path[:0] = [str(TESTS), str(TESTS.parent / "tools")]
    main(Path(sys.argv[1]), sys.argv[2:])
