"""Layer-wise relevance propagation: the rules, as gradients (Bach et al. 2015).

Relevance is written as R = x * g. Then g travels backward as a gradient does, only by other local rules, and a rule
conserves relevance if sum(x * g) is the same on both sides of it. Biases and other constants take their share, and so does
the stabiliser of the epsilon rule; a `Ledger` counts it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

Map = Callable[[Tensor], Tensor]
Book = Callable[[Tensor], None]  # takes what was absorbed
LEAST = 1e-3  # of all contributions to an output: what those of one sign must add up to, to get their whole share


@dataclass
class Ledger:
    """What constants and stabilisers absorbed, by the place that was running; `here` is the innermost last."""

    absorbed: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    here: list[str] = field(default_factory=list)

    def book(self) -> Book:
        """An account for all that is absorbed at the places where the forward pass is now."""
        return partial(self._take, tuple(self.here))

    def _take(self, places: tuple[str, ...], amount: Tensor) -> None:
        total = float(amount.detach().double().sum())
        for place in set(places):
            self.absorbed[place] += total


class Affine(NamedTuple):
    """A map of one tensor, `whole(x) + bias`; `sizes` makes the linear map whose weights are the absolute values of whole's."""

    whole: Map
    sizes: Callable[[], Map]
    bias: Tensor | None = None

    def of(self, x: Tensor) -> Tensor:
        """What it gives for x."""
        return self.whole(x) if self.bias is None else self.whole(x) + self.bias


# --- the two rules --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Epsilon:
    """R_i = sum_j x_i w_ij / (z_j + epsilon sign z_j) R_j, of Bach et al. 2015: each input by its share of the output."""

    epsilon: float = 1e-6

    def affine(self, x: Tensor, f: Affine, book: Book | None) -> Tensor:
        """f(x) with this rule."""
        return _stabilised(f.of(x), f.bias, self.epsilon, book)

    def add(self, x: Tensor, y: Tensor, book: Book | None) -> Tensor:
        """x + y with this rule: the gradient."""
        constant = y if not y.requires_grad else x if not x.requires_grad else None
        return x + y if constant is None or book is None else _stabilised(x + y, constant, 0.0, book)


@dataclass(frozen=True)
class AlphaBeta:
    """R_i = sum_j (alpha (x_i w_ij)+ / Z+_j + (1 - alpha) (x_i w_ij)- / Z-_j) R_j, of Bach et al. 2015; beta = alpha - 1.

    Z+ and Z- are the sums of the positive and of the negative contributions to an output, that of the bias included. One
    half of each is what the code of Voita et al. takes; where all have one sign, they get everything.
    """

    alpha: float = 0.5

    def affine(self, x: Tensor, f: Affine, book: Book | None) -> Tensor:
        """f(x) with this rule."""
        return _BySign.apply(x, f, self.alpha, book)  # type: ignore[no-untyped-call]

    def add(self, x: Tensor, y: Tensor, book: Book | None) -> Tensor:
        """x + y with this rule, number by number."""
        return _SumBySign.apply(x, y, self.alpha, book)  # type: ignore[no-untyped-call]


Rule = Epsilon | AlphaBeta


def _stabilised(z: Tensor, constant: Tensor | None, epsilon: float, book: Book | None) -> Tensor:
    """z, to which only its share in z + epsilon sign z comes back; booked are the rest, and what the constant in z takes."""
    if not z.requires_grad or (book is None and not epsilon):
        return z
    size = z.detach().abs()
    share = torch.where(size == 0, size, size / (size + epsilon))
    sides = None if book is None else (z.detach().clone(), constant)  # a copy: z may be changed in place

    def back(g: Tensor) -> Tensor:
        if book is not None and sides is not None:
            book(sides[0] * g * (1 - share))
            if sides[1] is not None:
                book(sides[1] * g * share)
        return g * share

    z.register_hook(back)
    return z


class _BySign(Function):
    """f(x); backward the alpha-beta rule.

    With Z = Z+ - Z- = |w||x| + |b|, the two sums are (Z + z) / 2 and (z - Z) / 2; and an input meets the positive weights
    with one share and the negative ones with the other, by its own sign: two products each way, and no division by x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Affine, alpha: float, book: Book | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.f, ctx.alpha, ctx.book = f, alpha, book
        return f.of(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        x, bias = ctx.saved_tensors[0].detach(), ctx.f.bias
        with torch.enable_grad():
            signed, unsigned = x.clone().requires_grad_(), x.abs().requires_grad_()
            z, size = ctx.f.whole(signed), ctx.f.sizes()(unsigned)
        total, spread = (z, size) if bias is None else (z + bias, size + bias.abs())
        rise, fall = _shares(g, total.detach(), spread.detach(), ctx.alpha)
        if ctx.book is not None and bias is not None:
            ctx.book(torch.where(bias > 0, rise, fall) * bias)
        (along,) = torch.autograd.grad(z, signed, (rise + fall) / 2)
        (across,) = torch.autograd.grad(size, unsigned, (rise - fall) / 2)
        return along + across * x.sign(), None, None, None


def _shares(g: Tensor, total: Tensor, spread: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """What a positive, and what a negative contribution gets for each unit of its size.

    A sign that adds up to less than `LEAST` of all gets less than its share, and nothing at zero: it may be rounding, and
    small differences in what is computed must stay small differences in relevance.
    """
    positive, negative, relevance = (spread + total) / 2, (spread - total) / 2, g * total
    least = (LEAST * spread).clamp(min=torch.finfo(spread.dtype).tiny)
    up, down = (positive / least).clamp(0, 1), (negative / least).clamp(0, 1)  # at most one of them is below 1
    share = torch.where(up < 1, alpha * up, 1 - (1 - alpha) * down)
    none = torch.zeros_like(relevance)
    return (
        torch.where(positive > 0, share * relevance / positive, none),
        torch.where(negative > 0, (share - 1) * relevance / negative, none),
    )


class _SumBySign(Function):
    """x + y; backward the alpha-beta rule: like signs share by size, of unlike ones the positive gets alpha."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, alpha: float, book: Book | None) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.alpha, ctx.book = alpha, book
        return x + y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        parts = ctx.saved_tensors
        rise, fall = _shares(g, parts[0] + parts[1], parts[0].abs() + parts[1].abs(), ctx.alpha)
        out: list[Tensor | None] = []
        for part, carries in zip(parts, ctx.needs_input_grad, strict=False):
            factor = torch.where(part > 0, rise, fall)
            if not carries and ctx.book is not None:
                ctx.book(factor * part)
            out.append(factor.sum_to_size(part.shape).to(part.dtype) if carries else None)
        return out[0], out[1], None, None


def through(x: Tensor, f: Map, book: Book | None) -> Tensor:
    """f(x), number by number, without a rule: all relevance of a number is that of the number it was made from."""
    return _Through.apply(x, f, book)  # type: ignore[no-untyped-call]


class _Through(Function):
    """f(x), number by number; backward x gets the relevance of its number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Map, book: Book | None) -> Tensor:
        output = f(x)
        zero = x == 0
        ctx.save_for_backward(torch.where(zero, torch.zeros_like(x), output / x), *([output * zero] if book else []))
        ctx.book = book
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        ratio, *at_zero = ctx.saved_tensors
        if ctx.book is not None:
            ctx.book(g * at_zero[0])
        return g * ratio, None, None
