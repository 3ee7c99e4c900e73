"""How units are drawn on a map: a row per site, a cell per unit, and what gives it its colour. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..drawing import CELL as CELL
from ..drawing import Drawn as Drawn
from ..drawing import drawn
from .findings import Grid

TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
    "layer": "Layers",
    "block": "Blocks of neurons",
    "neuron": "Neurons",
    "whole": "Whole attentions and MLPs",
}


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
    return drawn(
        title_of(grid), grid.rows, numbers, by_index=grid.kind in ("head", "layer"), numbered=grid.kind != "whole"
    )
