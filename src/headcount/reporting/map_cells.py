"""How units are drawn on a map: a row per site, a cell per unit, and what gives it its colour. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from ..plans import index_of
from .findings import Grid

CELL, GAP, TOP = 34, 4, 22  # of a map, in its own units; it scales to the width there is
SMALLEST = 22  # pixels of a cell that a finger can choose; a map that would have smaller ones is scrolled
TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
    "layer": "Layers",
    "block": "Blocks of neurons",
    "neuron": "Neurons",
    "whole": "Whole attentions and MLPs",
}


class Cell(NamedTuple):
    """A unit on the map."""

    number: int
    unit: str
    x: int
    y: int


class Drawn(NamedTuple):
    """A grid as it is drawn."""

    title: str
    width: int
    height: int
    labels: list[tuple[str, int]]  # of rows, with their heights
    columns: list[tuple[str, int]]
    rows: list[list[Cell]]
    left: int

    @property
    def least(self) -> int:
        """The width in pixels at which cells are as small as they may be."""
        return round(self.width * SMALLEST / CELL)


class Key(NamedTuple):
    """A kind of units: its name, the letters and the colour that cells of it have, what it means, how many there are."""

    name: str
    mark: str
    colour: str
    about: str
    many: int


class View(NamedTuple):
    """What the map can be coloured by: a place between 0 and 1 for each unit, or between -1 and 1 around zero.

    With `keys`, units are of several kinds, and the place of each is the number of its own.
    """

    name: str
    about: str
    diverging: bool
    places: list[float | None]
    marked: list[int]  # units whose difference survives Holm's correction
    low: str
    high: str
    keys: tuple[Key, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What the page's script needs."""
        places = [None if place is None else round(place, 3) for place in self.places]
        return {**self._asdict(), "places": places, "keys": [key._asdict() for key in self.keys]}


def title_of(grid: Grid) -> str:
    """The heading of a map."""
    return TITLES.get(str(grid.type) if grid.kind == "head" else grid.kind, "Attention heads")


def draw(grid: Grid, numbers: Mapping[str, int]) -> Drawn:
    """Rows of cells; a unit stands under its index, so rows with missing units have holes."""
    indices = sorted({index_of(unit) for unit in grid.units}, key=_as_number)
    by_index = grid.kind in ("head", "layer") and len(indices) <= 2 * max(map(len, grid.rows.values()))
    names = short_names(list(grid.rows))
    margin = 12 + 8 * max(map(len, names))
    rows, labels = [], []
    for row, (name, units) in enumerate(zip(names, grid.rows.values(), strict=True)):
        y = TOP + row * (CELL + GAP)
        labels.append((name, y + CELL // 2 + 5))
        places = [indices.index(index_of(unit)) for unit in units] if by_index else range(len(units))
        rows.append([Cell(numbers[u], u, margin + n * (CELL + GAP), y) for n, u in zip(places, units, strict=True)])
    count = len(indices) if by_index else max(map(len, grid.rows.values()))
    every = 1 if count <= 16 else 4
    columns = [
        (indices[n] if by_index else str(n), margin + n * (CELL + GAP) + CELL // 2) for n in range(0, count, every)
    ]
    width, height = margin + count * (CELL + GAP), TOP + len(rows) * (CELL + GAP)
    return Drawn(title_of(grid), width, height, labels, columns if grid.kind != "whole" else [], rows, margin)


@cache
def _as_number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() and len(text) < 12 else (1 << 60, text)


def short_names(sites: Sequence[str]) -> list[str]:
    """Names of sites without the parts that all have in common: decoder.0.cross, decoder.1.cross -> 0, 1."""
    split = [site.split(".") for site in sites]
    if len(sites) < 2 or len({len(parts) for parts in split}) > 1:
        return [site if len(site) <= 24 else site[:23] + "…" for site in sites]
    differ = [n for n in range(len(split[0])) if len({parts[n] for parts in split}) > 1]
    names = [".".join(parts[n] for n in differ) for parts in split]
    return [name if len(name) <= 24 else name[:23] + "…" for name in names]
