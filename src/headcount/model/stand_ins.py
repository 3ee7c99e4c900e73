"""What stands in for masked units: numbers for each column, the same everywhere or other ones at every position.

A head or a neuron writes with columns of the output projection: what these columns are given is replaced. That is not what
zeroing a slice of the projection's *output* does: the projection mixes the heads, and a slice of it belongs to none of them.
A layer adds to the residual stream: what stands in for it takes the place of that contribution, output minus input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from ..errors import BadPlan, Refused
from ..plans import Plan
from ..spelling import short
from .anatomy import Anatomy, Site, Stack
from .cutting.biases import checked_fill
from .positions import At, Examples, checked_at, chosen, places

# (examples, positions, columns) that a part is given, and how often it was called before -> values that stand in, which
# broadcast to that shape, and the positions that they stand in at, (examples, positions); None: at all of them
Make: TypeAlias = Callable[[Tensor, int], tuple[Tensor, Tensor | None]]


@dataclass(eq=False)
class StandIn:
    """What stands in for the units of a part, made when it is seen what the part is given; kept for the same batch."""

    examples: Examples
    make: Make
    _made: dict[int, tuple[Any, Tensor, Tensor | None]] = field(default_factory=dict)

    def of(self, x: Tensor, call: int) -> tuple[Tensor, Tensor | None]:
        """Values and positions for what the part is given the `call`-th time."""
        batch, values, where = self._made.get(call, (None, x, None))
        if batch is not self.examples.batch:
            values, where = self.make(x, call)
            values = values.to(x.device, x.dtype)
            self._made[call] = self.examples.batch, values, where
        return values, where


class StandIns(Protocol):
    """What stands in for the units of some parts, batch by batch."""

    def of(self, numbers: Sequence[int], batch: Mapping[str, Any], draw: int) -> Mapping[str, Tensor | StandIn]:
        """What stands in on the examples of these numbers, by the names of `parts_masked`."""


@runtime_checkable
class Fill(Protocol):
    """What stands in for units, where it comes from data: see `headcount.interventions.Fill`."""

    draws: int  # how many times it is drawn anew; what is measured is the mean over the draws
    document: Any  # how it was made, as JSON documents have it
    signature: str
    constant: bool  # whether it is the same everywhere

    def stand_ins(self, model: Any, anatomy: Anatomy, plan: Plan) -> Mapping[str, Tensor]:
        """What stands in for the units of a plan, whatever the model is given."""

    def prepare(
        self, root: nn.Module, anatomy: Anatomy, task: Any, plan: Plan, *, run: Any = None, name: str = "fill"
    ) -> StandIns:
        """What stands in for the units of a plan on the examples of a task; what it takes is measured here."""


def data_fill(fill: object) -> Fill | None:
    """A fill that comes from data, or None for zero; `BadPlan` for what is neither."""
    if fill is None or fill == "zero":
        return None
    if isinstance(fill, Fill):
        return fill
    if isinstance(fill, str):
        raise BadPlan(
            f'{short(fill)} comes from data: give fill=hc.interventions.Fill({short(fill)}, reference), or "zero".'
        )
    raise BadPlan(
        f'What stands in is "zero" or an hc.interventions.Fill here; I got {short(fill)}: tensors are for `masked`.'
    )


def parts_masked(anatomy: Anatomy, plan: Plan) -> dict[str, Site | Stack]:
    """The names by which stand-ins are known, with their parts: a site's own name, and "layers:3" of each layer."""
    out: dict[str, Site | Stack] = {}
    for name, indices in plan.by_site().items():
        part = anatomy[name]
        names = [f"{part.name}:{index}" for index in indices] if isinstance(part, Stack) else [part.name]
        out |= dict.fromkeys(names, part)
    return out


def checked_stand_ins(
    anatomy: Anatomy, plan: Plan, fill: Mapping[Any, Any], at: At | None, examples: Examples
) -> dict[str, Tensor | StandIn]:
    """What stands in for units by the names of `parts_masked`, from tensors of one's own; `BadPlan` for what does not fit."""
    names = {_name(anatomy, name): value for name, value in fill.items()}
    constant = {name: value for name, value in names.items() if torch.as_tensor(value).dim() < 2 and ":" not in name}
    out: dict[str, Tensor | StandIn] = {**checked_fill(anatomy, constant)}
    for name, value in names.items():
        numbers, part = torch.as_tensor(value).detach(), anatomy[name.partition(":")[0]]
        if name not in out:
            out[name] = _checked(name, part, numbers, examples)
    if at is None:
        return out
    for name, part in parts_masked(anatomy, plan).items():
        refuse_positions(part)
        columns = 1 if isinstance(part, Stack) else len(part) * part.width
        out[name] = limited(part, out.get(name, torch.zeros(columns)), at, examples)
    return out


def limited(part: Site | Stack, stand_in: Tensor | StandIn, at: Any, examples: Examples) -> StandIn:
    """A stand-in at some positions only: `at` names them, or is a mask (rows, positions) of bools."""
    whole = stand_in if isinstance(stand_in, StandIn) else everywhere(stand_in, examples)
    mask = at if isinstance(at, Tensor) else None
    if mask is None:
        checked_at(at)

    def make(x: Tensor, call: int) -> tuple[Tensor, Tensor | None]:
        values, where = whole.make(x, call)
        if mask is not None and mask.shape != x.shape[:2]:
            raise BadPlan(
                f"The mask of positions has shape {tuple(mask.shape)}, and {part.name} runs on {x.shape[0]} examples of "
                f"{x.shape[1]} positions: give (examples, positions)."
            )
        own = mask.to(x.device) > 0 if mask is not None else chosen(at, examples.real(part, x))
        return values, own if where is None else own & where

    return StandIn(examples, make)


def everywhere(values: Tensor, examples: Examples) -> StandIn:
    """The same numbers at every position."""
    return StandIn(examples, lambda x, _: (values.to(x.device, x.dtype), None))


def by_position(part: Site | Stack, table: Tensor, beyond: Tensor | None, examples: Examples) -> StandIn:
    """A row of numbers for each position of an example, (positions, columns), and others for positions `beyond` them."""

    def make(x: Tensor, _: int) -> tuple[Tensor, Tensor | None]:
        place = places(examples.real(part, x))
        longest = int(place.max()) + 1
        if beyond is None and longest > len(table):
            raise BadPlan(
                f"The fill of {part.name} has {len(table)} positions, and an example has {longest}: give a row for each."
            )
        rows = table.to(x.device, x.dtype)
        values = rows[place.clamp(max=len(table) - 1)]
        if beyond is not None:
            values = torch.where((place < len(table))[..., None], values, beyond.to(x.device, x.dtype))
        return values, None

    return StandIn(examples, make)


def as_recorded(name: str, calls: list[Tensor], examples: Examples) -> StandIn:
    """What a part was given in another pass over examples of the same shape, call by call: (examples, positions, columns)."""

    def make(x: Tensor, call: int) -> tuple[Tensor, Tensor | None]:
        if call >= len(calls) or calls[call].shape != x.shape:
            other = "is not called so often there" if call >= len(calls) else f"has {tuple(calls[call].shape)} there"
            raise BadPlan(
                f"What stands in for {name} needs a number for each of its (examples, positions, columns), "
                f"{tuple(x.shape)}; it {other}: give examples that are aligned position by position."
            )
        return calls[call], None

    return StandIn(examples, make)


def placed(stand_in: StandIn, x: Tensor, kept: Tensor, call: int) -> tuple[Tensor, Tensor]:
    """What goes into `x`, (rows, ..., columns), and how much of `x` stays, for gates `kept`: (columns,) or (copies, 1, columns).

    Gates per row are those of several copies of the batch, one below the other.
    """
    size = stand_in.examples.size
    examples = kept.shape[0] if kept.dim() == 3 else size
    if not size or x.shape[0] % size or examples % size:
        raise BadPlan(
            f"A fill for {size} examples does not fit {x.shape[0]} rows: run the model on whole batches, and generate no text "
            "with fills that differ from position to position."
        )
    rows = x.reshape(examples, -1, x.shape[-1])  # (examples, positions, columns)
    values, where = stand_in.of(rows[:size], call)
    copies = examples // size
    if values.dim() == 3 and values.shape[0] == size:
        values = values.repeat(copies, 1, 1)
    if where is not None:
        kept = torch.where(where.repeat(copies, 1)[..., None], kept, torch.ones_like(kept))
    return values.expand_as(rows).reshape(x.shape), kept.expand_as(rows).reshape(x.shape)


def refuse_positions(part: Site | Stack) -> None:
    """`Refused` for a part that has no row for each example, or never calls its output projection."""
    if not part.per_example:
        raise Refused(
            f"{part.name} does not see examples one by one, so what stands in for it cannot differ from position to position: "
            "take zero or mean, at all positions."
        )
    if isinstance(part, Site) and not part.calls_writer:
        raise Refused(
            f"{part.name} takes the weights of its output projection without calling it, so nothing can stand in for its "
            "units: mask them to zero, at all positions."
        )


def _name(anatomy: Anatomy, name: Any) -> str:
    """The name of a stand-in as `parts_masked` has it."""
    site, colon, index = str(name).partition(":")
    part = anatomy[site]
    if isinstance(part, Stack) and not colon:
        raise BadPlan(f"{part.name} are several layers, which have no fill together: name each, as in {part.name}:0.")
    if isinstance(part, Site) and colon:
        raise BadPlan(f"A fill is for all columns of {part.name}, whichever units are masked; I got {short(name)}.")
    if isinstance(part, Stack):
        part.positions([int(index) if index.isdecimal() else -1])
    return f"{part.name}{colon}{index}"


def _checked(name: str, part: Site | Stack, numbers: Tensor, examples: Examples) -> Tensor | StandIn:
    """A tensor of the user's own as a stand-in: (columns,), (positions, columns) or (rows, positions, columns)."""
    columns = None if isinstance(part, Stack) else len(part) * part.width
    fits = numbers.dim() in (1, 2, 3) and (columns is None or numbers.shape[-1] == columns)
    if not fits or not bool(torch.isfinite(numbers).all()):
        raise BadPlan(
            f"A fill of {name} is finite numbers of shape (columns,), (positions, columns) or (examples, positions, columns)"
            f"{'' if columns is None else f', with {columns} columns'}; I got shape {tuple(numbers.shape)}."
        )
    if numbers.dim() == 1:
        return numbers
    refuse_positions(part)
    if numbers.dim() == 2:
        return by_position(part, numbers, None, examples)
    return as_recorded(name, [numbers], examples)
