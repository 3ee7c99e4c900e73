"""What reports and notebooks draw with: colours in light and dark, and where the units of a map stand. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

CELL, GAP, TOP = 34, 4, 22  # of a map, in its own units; it scales to the width there is
SMALLEST = 22  # pixels of a cell that a finger can choose; a map that would have smaller ones is scrolled

# Blue against orange, never red against green; both palettes keep 4.5:1 for text. What is lost (warn) and gained (accent2)
# differ in grey, too: lost is the one that stands out. `seq` runs from the surface to the accent, so that what matters does.
# The colours of roles lie under letters, which have the colour `on-role`.
PALETTES: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#f7f5f0",
        "surface": "#fffefb",
        "ink": "#1b2430",
        "muted": "#5c6672",
        "rule": "#dedad0",
        "faint": "#ece8df",
        "accent": "#1c5d99",
        "accent2": "#12917e",
        "accent3": "#7a4fa3",
        "accent4": "#b58a00",
        "accent5": "#cc4f8d",
        "accent6": "#4aa3df",
        "accent7": "#6b7d1f",
        "warn": "#a3420d",
        "seq-low": "#eaf0f5",
        "seq-high": "#0d3b6e",
        "band": "#b9b2a3",
        "bar": "#9db7cf",
        "shade": "#1b24302e",
        "role1": "#779dc0",
        "role2": "#71bdb0",
        "role3": "#92c7ea",
        "role4": "#c88d6c",
        "role5": "#af95c6",
        "role6": "#e095b9",
        "role7": "#d3b864",
        "role8": "#a6b177",
        "role9": "#9da3a9",
        "on-role": "#1b2430",
    },
    "dark": {
        "paper": "#12161c",
        "surface": "#191f27",
        "ink": "#e9e6df",
        "muted": "#9ea8b5",
        "rule": "#303945",
        "faint": "#222933",
        "accent": "#7ab8ee",
        "accent2": "#3f9f8d",
        "accent3": "#c3a0ea",
        "accent4": "#e3c04d",
        "accent5": "#ee86b7",
        "accent6": "#4f86d9",
        "accent7": "#a9bd5a",
        "warn": "#f7ad75",
        "seq-low": "#222c38",
        "seq-high": "#a5d5ff",
        "band": "#5c6470",
        "bar": "#3d5f80",
        "shade": "#e9e6df33",
        "role1": "#7ab8ee",
        "role2": "#3f9f8d",
        "role3": "#4f86d9",
        "role4": "#f7ad75",
        "role5": "#c3a0ea",
        "role6": "#ee86b7",
        "role7": "#e3c04d",
        "role8": "#a9bd5a",
        "role9": "#9ea8b5",
        "on-role": "#191f27",
    },
}


class Cell(NamedTuple):
    """A unit on the map."""

    number: int
    unit: str
    x: int
    y: int


class Drawn(NamedTuple):
    """Rows of units as they are drawn."""

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


def drawn(
    title: str, sites: Mapping[str, Sequence[str]], numbers: Mapping[str, int], *, by_index: bool, numbered: bool = True
) -> Drawn:
    """Units of sites in rows of cells; `by_index` they stand under their indices, so that rows with missing ones have holes."""
    most = max(map(len, sites.values()))
    indices = sorted({_index(unit) for units in sites.values() for unit in units}, key=_as_number)
    by_index = by_index and len(indices) <= 2 * most
    names = short_names(list(sites))
    margin = 12 + 8 * max(map(len, names))
    rows, labels = [], []
    for row, (name, units) in enumerate(zip(names, sites.values(), strict=True)):
        y = TOP + row * (CELL + GAP)
        labels.append((name, y + CELL // 2 + 5))
        places = [indices.index(_index(unit)) for unit in units] if by_index else range(len(units))
        rows.append([Cell(numbers[u], u, margin + n * (CELL + GAP), y) for n, u in zip(places, units, strict=True)])
    count = len(indices) if by_index else most
    every = 1 if count <= 16 else 4
    columns = [
        (indices[n] if by_index else str(n), margin + n * (CELL + GAP) + CELL // 2) for n in range(0, count, every)
    ]
    width, height = margin + count * (CELL + GAP), TOP + len(rows) * (CELL + GAP)
    return Drawn(title, width, height, labels, columns if numbered else [], rows, margin)


def _index(unit: str) -> str:
    return unit.rpartition(":")[2]


@cache
def _as_number(text: str) -> tuple[int, str]:
    """A sort key: words before numbers, which may be negative."""
    return (int(text), "") if text.removeprefix("-").isdecimal() and len(text) < 12 else (-(1 << 60), text)


def short_names(sites: Sequence[str]) -> list[str]:
    """Names of sites without the parts that all have in common: decoder.0.cross, decoder.1.cross -> 0, 1."""
    split = [site.split(".") for site in sites]
    if len(sites) < 2 or len({len(parts) for parts in split}) > 1:
        return [site if len(site) <= 24 else site[:23] + "…" for site in sites]
    differ = [n for n in range(len(split[0])) if len({parts[n] for parts in split}) > 1]
    names = [".".join(parts[n] for n in differ) for parts in split]
    return [name if len(name) <= 24 else name[:23] + "…" for name in names]
