"""Norms with their scale frozen: at each position an affine map, so that what a sum of parts gives is a sum of what they give."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

SLACK = 1e-3  # of the largest entry
ROUNDED = {torch.bfloat16: 2e-2, torch.float16: 4e-3}  # the same where norms compute in half precision


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """LayerNorm or RMSNorm at some positions: y = scale * weight * (x - mean x, or x) + bias."""

    scale: Tensor  # (positions, 1)
    weight: Tensor  # (hidden,)
    bias: Tensor | None
    centred: bool

    def back(self, direction: Tensor) -> Tensor:
        """The direction of x whose product with x is that of `direction` with y, the bias apart."""
        direction = direction * self.weight * self.scale
        return direction - direction.mean(-1, keepdim=True) if self.centred else direction

    def of_bias(self, direction: Tensor) -> Tensor:
        """What the bias of the norm gives in a direction of y: (positions,)."""
        return torch.zeros_like(direction[:, 0]) if self.bias is None else (direction * self.bias).sum(-1)


def is_norm(module: nn.Module) -> bool:
    """Whether a module calls itself a norm."""
    return "norm" in type(module).__name__.lower()


def frozen_norm(norm: nn.Module, x: Tensor, y: Tensor) -> FrozenNorm | None:
    """The norm as it was at these positions, from what it was given and gave; None if it is of another kind.

    Of the ways in which norms use their weights (as they are, or added to one; the mean taken off or not), it is the one that
    gives what the norm gave.
    """
    own = getattr(norm, "weight", None)
    slack = SLACK if own is None else ROUNDED.get(own.dtype, SLACK)
    weights = [torch.ones_like(x[0])] if own is None else [own.detach().to(x), 1 + own.detach().to(x)]
    if any(weight.shape != x[0].shape for weight in weights):
        return None
    bias = getattr(norm, "bias", None)
    bias = None if bias is None else bias.detach().to(x)
    wanted = y if bias is None else y - bias
    for centred in (False, True):
        inner = x - x.mean(-1, keepdim=True) if centred else x
        for weight in weights:
            direction = weight * inner
            scale = (wanted * direction).sum(-1, keepdim=True) / (direction * direction).sum(-1, keepdim=True).clamp(
                min=1e-30
            )
            if is_close(scale * direction, wanted, slack):
                return FrozenNorm(scale, weight, bias, centred)
    return None


def is_close(got: Tensor, wanted: Tensor, slack: float = SLACK) -> bool:
    """Whether computed tensors are equal up to rounding: of single precision, unless said otherwise."""
    size = float(wanted.abs().max()) if wanted.numel() else 0.0
    return (
        got.shape == wanted.shape and bool((got - wanted).abs().max() <= slack * size + 1e-12)
        if wanted.numel()
        else True
    )


def factor(got: Tensor, of: Tensor) -> float | None:
    """The number c with got = c * of, up to rounding; None where there is none."""
    square = float((of * of).sum())
    if got.shape != of.shape or not square:
        return None
    c = float((got * of).sum()) / square
    c = 1.0 if abs(c - 1) < 1e-4 else c
    return c if c and is_close(c * of, got) else None
