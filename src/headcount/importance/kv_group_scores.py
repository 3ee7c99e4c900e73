"""Scores of kv groups, a key-value head with its query heads: what its heads contribute to each example, added up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..documents.scores import GROUPS
from ..model.anatomy import Site, Stack
from ..model.cutting.kv_groups import kv_groups_of
from ..plans import Unit
from .gradients import Contributions


def group_unit(site: Site | Stack, kv_head: int) -> Unit:
    """The name of a kv group: "3.kv:1" is the second original key-value head of "3", with its query heads."""
    return Unit(f"{site.name}{GROUPS}", kv_head)


def group_members(site: Site) -> dict[Unit, tuple[Unit, ...]]:
    """The kv groups of an attention, and the heads of each."""
    groups = kv_groups_of(site)
    return {group_unit(site, kv): tuple(site.units[position] for position in groups[kv]) for kv in groups}


def summed(values: dict[str, np.ndarray], parts: Sequence[Site | Stack], mean: bool = False) -> dict[str, np.ndarray]:
    """Values (rows, heads) added up over the heads of each kv group, or their mean; those of other parts as they are."""
    out = dict(values)
    for part in parts:
        if isinstance(part, Site) and part.kind == "head":
            columns = [values[part.name][:, list(group)] for group in kv_groups_of(part).values()]
            sums = [some.mean(1) if mean else some.sum(1) for some in columns]
            out[part.name] = np.stack(sums, axis=1)
    return out


def together(gathered: Contributions, parts: Sequence[Site | Stack]) -> Contributions:
    """The contributions with one gate for all heads of a kv group: its derivative is the sum of theirs, example by example.

    What the heads contribute position by position is not known with its sign, so that `token` is none here.
    """
    heads = [part.name for part in parts if isinstance(part, Site) and part.kind == "head"]
    signed = summed(gathered.signed, parts)
    absolute = {**gathered.absolute, **{name: np.abs(signed[name]) for name in heads}}
    squared = {**gathered.squared, **{name: np.square(signed[name]) for name in heads}}
    token = {**gathered.token, **{name: np.full_like(signed[name], np.nan) for name in heads}}
    return Contributions(signed, absolute, squared, token, gathered.positions, gathered.examples)
