"""The positions of examples: which of them are no padding, and which are meant by "last", "0:5" or a number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..errors import BadPlan, Refused
from ..spelling import short
from .anatomy import Anatomy, Site, Stack
from .tensor_trees import tensors

# "last", "first", "3", "-1", "0:5", "-3:" or a number; or, for every example of a batch, one of these or a list of numbers
At: TypeAlias = str | int | Sequence[Any]


class Unclear(Exception):
    """Raised where padding cannot be told from text in a batch: each of its examples is then run alone."""


def in_decoder(root: nn.Module, anatomy: Anatomy, part: Site | Stack) -> bool:
    """Whether the positions of a part are those of the targets: in the decoder of an encoder-decoder."""
    if not getattr(getattr(root, "config", None), "is_encoder_decoder", False):
        return False
    if isinstance(part, Site) and part.attention is not None:
        return part.attention in ("decoder", "cross")
    around = [stack.path for stack in anatomy.stacks if f"{part.path}.".startswith(f"{stack.path}.")]
    inner = max(around, key=len, default="")
    return any(site.attention in ("decoder", "cross") for site in anatomy.heads if site.path.startswith(f"{inner}."))


def real_positions(batch: Mapping[str, Any], of_targets: bool, x: Tensor, size: int) -> Tensor:
    """Which positions of a tensor (rows, ..., features) are no padding: (examples, positions), bools.

    All of them where the batch does not say. `Unclear` where it says so of other positions than these.
    """
    count = x[..., 0].numel()
    mask = batch.get("attention_mask")
    if of_targets:
        labels = batch.get("labels")
        mask = batch.get("decoder_attention_mask")
        if mask is None and isinstance(labels, Tensor) and not labels.is_floating_point():
            mask = labels != -100
    known = isinstance(mask, Tensor) and mask.dim() in (2, 3)
    if known and mask.numel() == count and not count % size:
        return (mask > 0).reshape(size, -1).to(x.device)
    if count % size or (known and not bool((mask > 0).all())):
        raise Unclear(
            "Which of the positions that a part of the model runs on are padding cannot be told: score on examples without "
            "padding."
        )
    return torch.ones(size, count // size, dtype=torch.bool, device=x.device)


@dataclass
class Examples:
    """The examples that a model runs on just now: what it was given, and how many of them there are."""

    root: nn.Module
    anatomy: Anatomy
    batch: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0

    def real(self, part: Site | Stack, x: Tensor) -> Tensor:
        """Which positions of what a part is given, (examples, positions, columns), are no padding; each example is one row."""
        of_targets = in_decoder(self.root, self.anatomy, part)
        mask = self.batch.get("decoder_attention_mask" if of_targets else "attention_mask")
        if isinstance(mask, Tensor) and mask.shape[0] != self.size:
            raise Refused(
                f"An example is {mask.shape[0] // max(1, self.size)} rows of a batch here, as in multiple choice, so its "
                "positions have no order: take a fill that is the same at every position (zero or mean)."
            )
        try:
            return real_positions(self.batch, of_targets, x, self.size)
        except Unclear:
            raise Refused(
                f"Which of the positions that {part.name} runs on are padding cannot be told: take a batch size of 1."
            ) from None


def places(real: Tensor) -> Tensor:
    """For every position its number among those of its example that are no padding, from 0 on: (examples, positions)."""
    return (real.cumsum(1) - 1).clamp(min=0)


def checked_at(at: object) -> At:
    """What names positions, or `BadPlan`: "last", "first", a number, a slice such as "0:5", or a list of these per example."""
    if isinstance(at, str | int) and not isinstance(at, bool):
        _bounds(at)
        return at
    if isinstance(at, str | bytes | bool) or not isinstance(at, Sequence) or not len(at):
        raise BadPlan(
            'Positions are "last", "first", a number, a slice such as "0:5" or "-3:", or a list with one of these (or a list of '
            f"numbers) for every example; I got {short(at)}."
        )
    for one in at:
        for each in [one] if isinstance(one, str | int) else one:
            _bounds(each)
    return at


def chosen(at: At, real: Tensor) -> Tensor:
    """The positions that `at` means, of those that are no padding: (examples, positions), bools.

    A slice may reach beyond an example, as in Python; a single position has to be there.
    """
    each = [at] * len(real) if isinstance(at, str | int) else list(at)
    if len(each) != len(real):
        raise BadPlan(
            f"Positions are named for {len(each)} examples, and there are {len(real)}; name them for every one."
        )
    out = torch.zeros_like(real)
    for row, (own, one) in enumerate(zip(real, each, strict=True)):
        there = own.nonzero()[:, 0]
        for each_of in [one] if isinstance(one, str | int) else one:
            meant = there[_bounds(each_of)]
            if not len(meant) and ":" not in str(each_of):
                raise BadPlan(
                    f"Position {each_of} is not there in an example of {len(there)} positions: name another one."
                )
            out[row, meant] = True
    return out


def _bounds(one: object) -> slice:
    """A name of positions as a slice of those that are there."""
    text = {"last": "-1", "first": "0"}.get(str(one), str(one)).strip()
    if re.fullmatch(r"-?\d{1,9}", text) and not isinstance(one, bool):
        number = int(text)
        return slice(number, None if number == -1 else number + 1)
    found = re.fullmatch(r"(-?\d{1,9})?:(-?\d{1,9})?", text)
    if found is None:
        raise BadPlan(
            f'A position is "last", "first", a number such as 3 or -1, or a slice such as "0:5"; I got {short(one)}.'
        )
    start, stop = (None if bound is None else int(bound) for bound in found.groups())
    return slice(start, stop)


def batch_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """What a model was called with, by name, and for how many examples: the rows of its first tensor."""
    first = next(tensors((args, dict(kwargs))), None)
    return dict(kwargs), 0 if first is None or not first.dim() else first.shape[0]
