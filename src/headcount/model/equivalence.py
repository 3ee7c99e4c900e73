"""Running a model on a batch and comparing what comes out: the proof that a cut model equals the masked one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadPlan
from .architectures import ModuleSpec
from .discovery import find

# Of the largest entry. A pretrained encoder of six layers differs from itself in float64 by 1e-5 of it, and deeper ones by more.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
NOT_COMPARED = ("past_key_values", "attentions", "cache")  # they have one entry per head, so a cut changes their shape


def run(model: nn.Module, batch: Any) -> list[Tensor]:
    """The floating-point outputs of the model on a batch, in evaluation mode and without gradients."""
    with evaluating(model), torch.no_grad():
        if isinstance(batch, Mapping):
            output = model(**batch)
        else:
            output = model(*batch) if isinstance(batch, tuple | list) else model(batch)
    outputs = list(_tensors(output))
    if not outputs:
        raise BadPlan("The model gave no floating-point output for this batch, so there is nothing to compare.")
    return outputs


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the block the model is in evaluation mode; afterwards each module is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Within the block no parameter asks for a gradient; afterwards each asks as it did.

    By the places of parameters, because offloaded ones are other tensors after every pass.
    """
    asking = [
        (m, name) for m in model.modules() for name, p in m._parameters.items() if p is not None and p.requires_grad
    ]
    try:
        for module, name in asking:
            module.get_parameter(name).requires_grad_(False)
        yield
    finally:
        for module, name in asking:
            module.get_parameter(name).requires_grad_(True)


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output.detach().clone()
    elif isinstance(output, Mapping):
        for name, value in output.items():
            if not any(word in name for word in NOT_COMPARED):
                yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)


def differs(want: list[Tensor], got: list[Tensor]) -> str | None:
    """By how much two outputs differ, if more than rounding explains; None if they are equal."""
    if [t.shape for t in want] != [t.shape for t in got]:
        return "the shape of its output"
    for a, b in zip(want, got, strict=True):
        expected = a if a.dtype == torch.float64 else a.float()  # float64 as it is: some devices have none
        actual = b.to(expected.dtype)
        limit = TOLERANCE.get(a.dtype, 1e-2) * max(1.0, float(expected.nan_to_num().abs().max()) if a.numel() else 1.0)
        if not torch.allclose(expected, actual, rtol=0, atol=limit, equal_nan=True):
            return f"{float((expected - actual).abs().max()):.2e} (allowed: {limit:.2e})"
    return None


def block_outputs(model: nn.Module, batch: Any, rows: tuple[ModuleSpec, ...]) -> dict[str, list[Tensor]]:
    """The output of every layer on a batch, by the layer's unit name."""
    outputs: dict[str, list[Tensor]] = {}
    handles = []
    for stack in find(model, rows).stacks:
        for unit, block in zip(stack.units, stack.blocks, strict=True):

            def keep(_: nn.Module, __: Any, output: Any, name: str = str(unit)) -> None:
                outputs[name] = list(_tensors(output))[:1]

            handles.append(block.register_forward_hook(keep))
    try:
        run(model, batch)
    except Exception:  # the outputs up to the failure are what is asked for
        pass
    finally:
        for handle in handles:
            handle.remove()
    return outputs


def first_difference(want: dict[str, list[Tensor]], got: dict[str, list[Tensor]]) -> str:
    """Where two runs part: the first layer whose outputs differ, in words."""
    for name, value in want.items():
        if name in got and differs(value, got[name]):
            return f"first at {name}"
    return "first after the last layer"
