"""What can be done with quantised weights: units are masked and scored, not cut, and nothing trains."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import Refused
from ..matrices import is_quantised

AT_ONCE = 1024  # unit vectors
LOOKED_AT = 8  # columns of a matrix whose gradient is looked at
ROUGHLY = 0.05  # of the largest: gradients may be made in half precision
ADVICE = "its weights are quantised: to cut, take the checkpoint that it was made from, and quantise the smaller one"


def quantisation(config: Any) -> str | None:
    """How the weights that a config describes are quantised ("gptq, 4 bits"); None where they are not."""
    for owner in (config, getattr(config, "text_config", None)):
        settings = getattr(owner, "quantization_config", None)
        if settings is None:
            continue
        values = settings if isinstance(settings, dict) else vars(settings)
        method = values.get("quant_method", "a method that is not named")
        bits = values.get("bits") or values.get("w_bit") or (values.get("load_in_4bit") and 4)
        return str(getattr(method, "value", method))[:40] + (f", {bits} bits" if bits else "")
    return None


def is_to_be_quantised(model: nn.Module) -> bool:
    """Whether a model without weights stands for a quantised checkpoint, whose matrices have other shapes than its own."""
    empty = any(parameter.is_meta for parameter in model.parameters())
    return empty and quantisation(getattr(model, "config", None)) is not None


def matrix_seen(module: Any, columns: Iterable[int] | None = None) -> Tensor:
    """What a quantised matrix multiplies with, (out, in) in float32: seen from outside, from what it makes of unit vectors.

    So it is the same for every way of packing numbers. With `columns`, these columns of it alone.
    """
    chosen = torch.arange(module.in_features) if columns is None else torch.tensor(list(columns))
    like = _an_input(module)
    parts = []
    with torch.no_grad():
        bias = module.forward(like).float()  # without hooks: gates may be on it
        for some in chosen.split(AT_ONCE):
            units = torch.zeros(len(some), module.in_features, dtype=like.dtype, device=like.device)
            units[torch.arange(len(some)), some.to(units.device)] = 1
            parts.append(module.forward(units).float() - bias)
    return torch.cat(parts).T


def must_give_gradients(root: nn.Module) -> None:
    """`Refused` where the gradient does not come back through quantised matrices: what comes around them looks like small ones.

    One of each kind is asked: kernels for inference leave it out without a word, on some processors and not on others.
    """
    kinds = {
        type(module): module for module in root.modules() if is_quantised(module) and hasattr(module, "in_features")
    }
    for kind, module in kinds.items():
        if not _gives_gradients(module):
            raise Refused(
                f"The quantised matrices of {type(root).__name__} ({kind.__name__}) give no right gradient on this device, so "
                "nothing that is made of gradients would be right: score by ablation, wanda, flap or activation, or score the "
                "model before it is quantised (the units have the same names)."
            )


def _gives_gradients(module: Any) -> bool:
    few = range(min(LOOKED_AT, module.in_features))
    want = matrix_seen(module, few).sum(0)  # and kernels for inference are chosen
    x = _an_input(module).expand(2, 3, -1).clone().requires_grad_()  # of a single token another kernel may be taken
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says in other words what is said here
        y = module.forward(x)
        if not y.requires_grad:
            return False
        got = torch.autograd.grad(y.float().sum(), x, allow_unused=True)[0]
    if got is None:
        return False
    wrong = (got[..., : len(want)].float() - want).abs().max()
    return bool(wrong <= ROUGHLY * want.abs().max())


def _an_input(module: Any) -> Tensor:
    """Zeros that the module takes: (1, in)."""
    held = next((t for t in (*module.parameters(), *module.buffers())), None)
    bias = getattr(module, "bias", None)
    dtype = (
        bias.dtype if isinstance(bias, Tensor) and bias.is_floating_point() else getattr(module, "compute_dtype", None)
    )
    device = torch.device("cpu") if held is None else held.device
    return torch.zeros(1, module.in_features, dtype=dtype or torch.float32, device=device)
