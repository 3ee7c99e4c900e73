"""What a model is made of, as values: sites (attentions, MLPs), stacks of layers, and the anatomy that holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from .. import notebook
from ..errors import BadPlan, NotFound
from ..plans import Plan, Unit
from ..spelling import ALL, Indices, is_whole, mask_rows, short, spelled
from .architectures import LAYOUTS, ModuleSpec, Tables
from .matrices import Matrix, matrix

STAMP = "headcount_kept"
# the same on the module around the writer, by the kind of site: quantising puts another module in the writer's place
MODULE_STAMPS = {"head": "headcount_kept_heads", "neuron": "headcount_kept_neurons"}
# units as people write them: "3:7 5:0-3", "*:7", "L3H7", (3, 7), {3: [7]}, a mask of layers x heads, or several of these
Units: TypeAlias = str | Unit | Plan | tuple[int | str, Any] | Mapping[Any, Any] | Iterable[Any]


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
        return _positions(self.name, self.ids, self.of, indices)

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

    def positions(self, indices: Iterable[int]) -> list[int]:
        """Where the layers with these original indices are now in `blocks`; `BadPlan` for one that never was or is gone."""
        return _positions(self.name, self.ids, self.of, indices)

    def __len__(self) -> int:
        return len(self.ids)


def _positions(name: str, ids: Sequence[int], of: int, indices: Iterable[int]) -> list[int]:
    """Original indices -> places among the units that are still there."""
    places = {index: place for place, index in enumerate(ids)}
    originals = list(indices)
    for index in originals:
        if index not in places:
            reason = "has been cut already" if 0 <= index < of else f"does not exist: they run from 0 to {of - 1}"
            raise BadPlan(f"{name}:{index} {reason}; `headcount inspect` lists what is there.")
    return [places[index] for index in originals]


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The sites and stacks of one model, in the order of its modules. Prints as a table."""

    model_name: str
    sites: tuple[Site, ...]
    stacks: tuple[Stack, ...]
    unknown: tuple[str, ...] = ()  # paths of modules that look like attention and fit no module spec
    refused: tuple[tuple[str, str], ...] = ()  # (path, reason) of parts that are recognised and not supported
    _names: dict[str, Site | Stack] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for part in self.parts:
            self._names[part.name] = part
            self._names.setdefault(part.path, part)

    @property
    def parts(self) -> tuple[Site | Stack, ...]:
        """All that has units: the sites, then the stacks."""
        return (*self.sites, *self.stacks)

    @property
    def heads(self) -> tuple[Site, ...]:
        """The attentions."""
        return tuple(site for site in self.sites if site.kind == "head")

    @property
    def neurons(self) -> tuple[Site, ...]:
        """The MLPs."""
        return tuple(site for site in self.sites if site.kind == "neuron")

    def __getitem__(self, name: str | int) -> Site | Stack:
        """The site or stack with this name (or module path, or number of a layer); `NotFound` names the nearest ones."""
        name = str(name) if is_whole(name) else name
        if not isinstance(name, str):
            raise NotFound(f"{short(name)} is not a site of {self.model_name}; sites are texts such as '3' or '3.mlp'.")
        if name in self._names:
            return self._names[name]
        of_layer = [site.name for site in self.heads if name.isdecimal() and site.layer == int(name)]
        if len(of_layer) == 1:
            return self._names[of_layer[0]]
        near = [part.name for part in self.parts if name.split(".")[0] in part.name.split(".")]
        some = ", ".join((of_layer or near or [part.name for part in self.parts if part.kind != "neuron"])[:6])
        raise NotFound(f"{self.model_name} has no site {name!r:.80}; it has {some} ...: see `headcount inspect`.")

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def plan(self, units: Units) -> Plan:
        """A plan from whatever names units here, by their original indices.

        Texts: `"3:7"`, `"3:0-4 5:1"`, `"3:7,4:2"`, `"3:*"` (all of a site), `"*:7"` (of every attention), `"*.mlp:0"`,
        `"3:-1"` (the last one), `"L3H7"`. Values: `(3, 7)`, `{3: [7]}`, `hc.Unit("3", 7)`, a plan, or a list of these. A
        tensor, array or list of lists of layers x heads is a mask as `head_mask` was: 0 removes a head, 1 keeps it.
        """
        if isinstance(units, Plan):
            plan = units
        elif (rows := mask_rows(units)) is not None:
            plan = self._masked_by(rows)
        elif isinstance(units, str) and not units.strip():
            plan = Plan()
        else:
            plan = Plan(frozenset(unit for site, chosen in spelled(units) for unit in self._units(site, chosen)))
        canonical = frozenset(Unit(self[unit.site].name, unit.index) for unit in plan.units)
        for name, indices in Plan(canonical).by_site().items():
            self[name].positions(indices)
        return Plan(canonical, plan.why)

    def _units(self, site: str, chosen: Indices) -> Iterable[Unit]:
        """The units of a site, or of all that a pattern means, that were written as these indices."""
        if "*" not in site:
            part = self[site]
            return part.units if chosen == ALL else [Unit(part.name, _from_the_end(i, part)) for i in chosen]
        parts = self._matching(site)
        wanted = [(part, {*part.ids} if chosen == ALL else {_from_the_end(i, part) for i in chosen}) for part in parts]
        units = [unit for part, indices in wanted for unit in part.units if unit.index in indices]
        if not units:
            raise BadPlan(
                f"None of {', '.join(part.name for part in parts[:6])} has {short(chosen)}: `headcount inspect`."
            )
        return units

    def _matching(self, pattern: str) -> list[Site | Stack]:
        """The sites that a pattern such as "*.mlp" means; "*" are the attentions."""
        parts = [part for part in self.parts if fnmatchcase(part.name, pattern)]
        if pattern == ALL:
            parts = [*self.heads]
        kinds = sorted({part.kind for part in parts})
        if not parts:
            raise NotFound(f"{self.model_name} has no site like {pattern!r:.80}; `headcount inspect` lists them.")
        if len(kinds) > 1:
            some = ", ".join(part.name for part in parts[:4])
            raise BadPlan(
                f"{pattern!r:.80} names units of several kinds ({some}, ...); write one pattern for each kind."
            )
        return parts

    def rows_of(self, rows: Sequence[Any], what: str) -> list[tuple[Site, Sequence[Any]]]:
        """The rows of a table of layers x heads with the attention that each belongs to; `BadPlan` where they do not fit."""
        heads = self.heads
        sizes = [len(site) for site in heads]
        if len({site.attention for site in heads}) > 1:
            raise BadPlan(
                f"{self.model_name} has attentions of several types, and {what} does not say which it means; name the sites: "
                f"{{{heads[0].name!r}: [...]}}."
            )
        widths = [len(row) for row in rows]
        if widths not in (sizes, [site.of for site in heads]):
            wanted = f"{len(sizes)} x {sizes[0]}" if len(set(sizes)) == 1 else f"rows of {sizes}"
            raise BadPlan(
                f"{what} has a row for each attention and a number for each of its heads, here {wanted}; I got "
                f"{len(widths)} rows of {short(sorted(set(widths)))}: a pair of layer and head is a tuple, (3, 7)."
            )
        present = widths == sizes
        return [(site, row if present else [row[i] for i in site.ids]) for site, row in zip(heads, rows, strict=True)]

    def _masked_by(self, rows: list[list[Any]]) -> Plan:
        """The heads where a mask is 0."""
        units = []
        for site, row in self.rows_of(rows, "A mask"):
            if any(value not in (0, 1) for value in row):
                strange = next(value for value in row if value not in (0, 1))
                raise BadPlan(
                    f"A mask has a 0 for a head that goes and a 1 for one that stays; I got {strange!r:.40}: "
                    "numbers between are for `gated`, and a pair of layer and head is a tuple, (3, 7)."
                )
            units += [unit for unit, value in zip(site.units, row, strict=True) if not value]
        return Plan(frozenset(units))

    def rows(self) -> list[tuple[str, ...]]:
        """A line for each site, or for neighbouring layers that are alike: name, type, layers, units, of, kv heads, width."""
        rows = list[tuple[str, ...]]()
        for run in alike_layers(self.sites, _alike):
            site, last = run[0], run[-1]
            layers = "" if site.layer is None else str(site.layer) + f"-{last.layer}" * (len(run) > 1)
            kv = str(site.kv_heads) if site.kind == "head" else ""
            kind = site.attention or "mlp"
            rows.append((joined_name(run), kind, layers, str(len(site)), str(site.of), kv, str(site.width)))
        return rows

    def _notes(self) -> list[str]:
        lines = [f"{stack.name}: {len(stack)} of {stack.of} layers" for stack in self.stacks]
        lines += [f"not supported: {path}: {reason}" for path, reason in self.refused]
        return lines + [f"looks like attention, built in a way not known: {path}" for path in self.unknown]

    def _title(self) -> str:
        return f"{self.model_name}: {_count(self.heads, 'attention', 'head')}, {_count(self.neurons, 'MLP', 'neuron')}"

    def __str__(self) -> str:
        rows = [COLUMNS, *self.rows()]
        widths = [max(len(row[place]) for row in rows) + 2 for place in range(len(COLUMNS))]
        cells = [
            [f"{c:{'<' if n < 2 else '>'}{w}}" for n, (c, w) in enumerate(zip(r, widths, strict=True))] for r in rows
        ]
        return "\n".join([self._title(), *("".join(row).rstrip() for row in cells), *self._notes()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        parts = [notebook.line(self._title(), bold=True), notebook.table(COLUMNS, self.rows(), left=2)]
        return notebook.block(*parts, *map(notebook.line, self._notes()), self._what_is_left())

    def _what_is_left(self) -> str:
        """A map of the heads, with an empty cell for each that was cut; nothing where all of them are there."""
        if (
            all(len(site) == site.of for site in self.heads)
            or max(site.of for site in self.heads) > notebook.MOST_COLUMNS
        ):
            return ""
        here = {site.name: set(site.ids) for site in self.heads}
        return notebook.presence(
            {site.name: {str(n): n in here[site.name] for n in range(site.of)} for site in self.heads}
        )


COLUMNS = ("site", "type", "layer", "units", "of", "kv", "width")


def alike_layers(sites: Sequence[Any], same: Callable[[Any], Any]) -> list[list[Any]]:
    """Sites in runs of neighbouring layers that differ in nothing else: `same` is what has to be equal."""
    runs = list[list[Any]]()
    latest: dict[Any, list[Any]] = {}  # the last run of each sort
    for site in sites:
        stem = site.name if site.layer is None else site.name.replace(str(site.layer), "#", 1)
        key = (stem, same(site))
        run = latest.get(key)
        if run is not None and site.layer is not None and run[-1].layer == site.layer - 1:
            run.append(site)
        else:
            latest[key] = [site]
            runs.append(latest[key])
    return runs


def joined_name(run: Sequence[Any]) -> str:
    """The name of some alike layers: "0-5.mlp"."""
    first, last = run[0], run[-1]
    return str(first.name if first is last else first.name.replace(str(first.layer), f"{first.layer}-{last.layer}", 1))


def _alike(site: Site) -> tuple[Any, ...]:
    kv = tuple(site.kv_of) if site.kind == "head" else ()
    return (site.kind, site.attention, tuple(site.ids), site.of, site.kv_heads, kv, site.width)


def _from_the_end(index: int, part: Site | Stack) -> int:
    """An original index that may be counted from the end: -1 is the last one that there ever was."""
    if index < -part.of:
        raise BadPlan(f"{part.name}:{index} does not exist: there are {part.of}, and the first one is {part.name}:0.")
    return index + part.of if index < 0 else index


def _count(sites: tuple[Site, ...], noun: str, unit: str) -> str:
    """ "6 attentions of 12 heads", or each size where they differ."""
    sizes: dict[int, int] = {}
    for site in sites:
        sizes[len(site)] = sizes.get(len(site), 0) + 1
    parts = [f"{n} {noun}{'s' * (n != 1)} of {size} {unit}{'s' * (size != 1)}" for size, n in sizes.items()]
    return ", ".join(parts) or f"no {noun}s"
