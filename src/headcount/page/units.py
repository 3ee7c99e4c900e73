"""What the names of units say: the site, what kind of unit it is, and what comes before what. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable


def site_of(unit: str) -> str:
    """The site of a unit: "decoder.3.cross:7" -> "decoder.3.cross"."""
    return unit.rpartition(":")[0]


def index_of(unit: str) -> str:
    """The part after the site: an index, a range of neurons, or * for all of it."""
    return unit.rpartition(":")[2]


def kind_of(unit: str) -> str:
    """What a unit is, by its name: heads are what is nothing else."""
    site, index = site_of(unit), index_of(unit)
    if index == "*":
        return "whole"
    if not index.isdecimal():
        return "block"
    last = site.split(".")[-1]
    return "layer" if last == "layers" else "neuron" if last == "mlp" else "head"


def type_of(site: str) -> str | None:
    """The attention type of a site, by its name; a site that does not say is None."""
    parts = site.split(".")
    if "cross" in parts:
        return "cross"
    return next((part for part in parts if part in ("encoder", "decoder")), None)


def _natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key under which 10 follows 9."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d{1,9})", text)]


def in_order(units: list[str]) -> list[str]:
    """The units of one site, 10 after 9."""
    return sorted(units, key=lambda unit: _natural(index_of(unit)))


def by_place(sites: Iterable[str]) -> list[str]:
    """Sites in the order of the model."""
    return sorted(sites, key=_natural)
