"""What a model is made of, as values: sites (attentions, MLPs), stacks of layers, and the anatomy that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import nn

from ..errors import BadPlan, NotFound
from ..plans import Plan, Unit, parse
from .architectures import LAYOUTS, ModuleSpec, Tables
from .matrices import Matrix, matrix

STAMP = "headcount_kept"


class OriginalShape(NamedTuple):
    """What a padded site was when it was padded: the units, key-value heads and widths that its code still counts on."""

    ids: tuple[int, ...]
    kv_of: tuple[int, ...]
    kv_heads: int
    widths: tuple[int, ...]


@dataclass(frozen=True)
class CutRecord:
    """What a cut writes on a module it changed, so that survivors keep their names: see `find`."""

    name: str
    ids: tuple[int, ...]
    of: int
    width: int = 1
    kv_of: tuple[int, ...] | None = None  # set where kv groups are uneven and repeated by an index
    kv_ids: tuple[int, ...] | None = None  # the original kv head that each present one comes from
    whole: OriginalShape | None = None  # set where the matrices are `Padded`


@dataclass(frozen=True, eq=False)
class Site:
    """One attention or one MLP: a writer whose input columns are its units side by side, and the readers that fill them.

    `ids` are the original indices of the units that are still there, in the order of the columns; `of` is how many
    there were. `kv_of` says, for each of them, which of the `kv_heads` key-value heads it uses.
    """

    name: str
    kind: str  # "head" or "neuron"
    path: str
    module: nn.Module
    writer: nn.Module
    readers: tuple[nn.Module, ...]
    spec: ModuleSpec
    width: int  # columns of the writer per unit
    widths: tuple[int, ...]  # rows of each reader per unit
    kv_heads: int
    kv_of: Sequence[int]
    ids: Sequence[int]
    of: int
    attention: str | None = None  # "encoder", "decoder" or "cross"
    layer: int | None = None  # original index of its block, None outside any stack
    whole: OriginalShape | None = None  # set where the code around it still counts the units that are gone
    calls_writer: bool = True  # False where the code takes the writer's weight and never calls the module
    per_example: bool = True  # whether axis 0 of the writer's input is the batch, so that gates may differ per example

    @property
    def matrices(self) -> tuple[Matrix | None, ...]:
        """The readers as matrices; None for one that cannot be sliced (quantised, grouped convolution)."""
        if isinstance(self.module, nn.MultiheadAttention):
            packed = self.module.in_proj_weight is not None
            return (Matrix(self.module, "in_proj_weight", "in_proj_bias") if packed else None,)
        return tuple(matrix(reader) for reader in self.readers)

    @property
    def columns(self) -> Matrix | None:
        """The writer as a matrix, or None if it cannot be sliced."""
        return matrix(self.writer)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The units that are still there, by their original indices."""
        return tuple(Unit(self.name, index) for index in self.ids)

    def tables(self) -> Tables:
        """For each reader, the rows that fill each unit."""
        layout = LAYOUTS[self.spec.layout]
        if self.whole is None:
            return layout(torch.tensor(self.kv_of, dtype=torch.long), self.kv_heads, self.widths)
        was = self.whole
        tables = layout(torch.tensor(was.kv_of, dtype=torch.long), was.kv_heads, was.widths)
        where = {index: position for position, index in enumerate(was.ids)}
        kept_positions = [where[index] for index in self.ids]
        places = [torch.tensor(reader.places, dtype=torch.long) for reader in self.readers]
        return [
            [torch.searchsorted(p, t[kept_positions]) for t in part] for p, part in zip(places, tables, strict=True)
        ]

    def positions(self, indices: Iterable[int]) -> list[int]:
        """Where the units with these original indices are now; `BadPlan` for one that never was or is gone."""
        where = {index: position for position, index in enumerate(self.ids)}
        for index in indices:
            if index not in where:
                reason = (
                    "has been cut already"
                    if 0 <= index < self.of
                    else f"does not exist: they run from 0 to {self.of - 1}"
                )
                raise BadPlan(f"{self.name}:{index} {reason}; `headcount inspect` lists what is there.")
        return [where[index] for index in indices]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Stack:
    """A list of layers. `ids` are the original indices of the layers that are still there."""

    name: str  # "layers", "decoder.layers": its units are layers
    path: str
    container: nn.Module
    blocks: tuple[nn.Module, ...]
    ids: tuple[int, ...]
    of: int
    kind: str = "layer"
    per_example: bool = True

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The layers that are still there, by their original indices."""
        return tuple(Unit(self.name, index) for index in self.ids)

    positions = Site.positions  # same meaning: original indices -> places in `blocks`

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The sites and stacks of one model, in the order of its modules. Prints as a table."""

    model_name: str
    sites: tuple[Site, ...]
    stacks: tuple[Stack, ...]
    unknown: tuple[str, ...] = ()  # paths of modules that look like attention and fit no dialect
    refused: tuple[tuple[str, str], ...] = ()  # (path, reason) of parts that are recognised and not supported
    _names: dict[str, Site | Stack] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        parts: list[Site | Stack] = [*self.sites, *self.stacks]
        for part in parts:
            self._names[part.name] = part
            self._names.setdefault(part.path, part)

    @property
    def heads(self) -> tuple[Site, ...]:
        """The attentions."""
        return tuple(site for site in self.sites if site.kind == "head")

    @property
    def neurons(self) -> tuple[Site, ...]:
        """The MLPs."""
        return tuple(site for site in self.sites if site.kind == "neuron")

    def __getitem__(self, name: str) -> Site | Stack:
        """The site or stack with this name (or module path); `NotFound` names the nearest ones."""
        try:
            return self._names[name]
        except KeyError:
            near = [part.name for part in (*self.sites, *self.stacks) if name.split(".")[0] in part.name.split(".")]
            some = ", ".join((near or [part.name for part in (*self.heads, *self.stacks)])[:6])
            raise NotFound(
                f"{self.model_name} has no site {name!r}; it has {some} ...: see `headcount inspect`."
            ) from None

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def plan(self, units: str | Unit | Plan | Iterable[str | Unit]) -> Plan:
        """A plan from whatever names units here: "3:7", "3:0-4 decoder.2.cross:*", a unit, a plan, or several."""
        if isinstance(units, Plan):
            plan = units
        else:
            names = units.split() if isinstance(units, str) else [units] if isinstance(units, Unit) else list(units)
            plan = Plan(frozenset(unit for text in names for unit in self._units(text)))
        canonical = frozenset(Unit(self[unit.site].name, unit.index) for unit in plan.units)
        for name, indices in Plan(canonical).by_site().items():
            self[name].positions(indices)
        return Plan(canonical, plan.why)

    def _units(self, text: str | Unit) -> Iterable[Unit]:
        if isinstance(text, Unit):
            return [text]
        if text.endswith(":*"):
            return self[text[:-2]].units
        return parse(text)

    def __str__(self) -> str:
        lines = [
            f"{self.model_name}: {_count(self.heads, 'attention', 'head')}, {_count(self.neurons, 'MLP', 'neuron')}"
        ]
        lines.append(f"{'site':<24}{'type':<10}{'layer':>6}{'units':>8}{'of':>7}{'kv':>5}{'width':>7}")
        for site in self.sites:
            kv = str(site.kv_heads) if site.kind == "head" else ""
            layer = "" if site.layer is None else str(site.layer)
            kind = site.attention or "mlp"
            lines.append(f"{site.name:<24}{kind:<10}{layer:>6}{len(site):>8}{site.of:>7}{kv:>5}{site.width:>7}")
        lines += [f"{stack.name}: {len(stack)} of {stack.of} layers" for stack in self.stacks]
        lines += [f"not supported: {path}: {reason}" for path, reason in self.refused]
        lines += [f"looks like attention, built in a way not known: {path}" for path in self.unknown]
        return "\n".join(lines)


def _count(sites: tuple[Site, ...], noun: str, unit: str) -> str:
    """ "6 attentions of 12 heads", or each size where they differ."""
    sizes: dict[int, int] = {}
    for site in sites:
        sizes[len(site)] = sizes.get(len(site), 0) + 1
    parts = [f"{n} {noun}{'s' * (n != 1)} of {size} {unit}{'s' * (size != 1)}" for size, n in sizes.items()]
    return ", ".join(parts) or f"no {noun}s"
