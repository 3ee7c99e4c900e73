"""How the heads that survive a cut share key-value heads, and which rows of each matrix that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..anatomy import STAMP, CutRecord, Site, Stack
from ..architectures import LAYOUTS
from .per_head import uses_attention_interface


class KVGroups(NamedTuple):
    """How surviving query heads share key-value heads: kv head of each, original id of each kv head, and whether the
    groups are uneven, so that key-value heads are repeated by an index while the model runs."""

    keep: tuple[int, ...]
    kv_of: tuple[int, ...]
    kv_ids: tuple[int, ...]
    indexed: bool = False


def survivors(site: Site | Stack, drop: Iterable[int]) -> tuple[int, ...]:
    """The positions that are left when those in `drop` go."""
    removed_positions = set(drop)
    return tuple(position for position in range(len(site)) if position not in removed_positions)


def share(site: Site, keep: tuple[int, ...]) -> KVGroups:
    """How the survivors share key-value heads; it depends on who survives, not on the order of cuts.

    Even groups need nothing. Uneven ones are repeated by an index after the cache, which costs no parameter and no
    cache; where the attention does not go through transformers' attention interface, the site is padded (`needs_padding`).
    """
    if site.kind == "neuron" or site.spec.layout == "per_head":
        return KVGroups(keep, tuple(range(len(keep))), tuple(range(len(keep))))
    origins = _origins(site, keep)
    order = list(dict.fromkeys(origins))
    places = {origin: place for place, origin in enumerate(order)}
    return KVGroups(keep, tuple(places[origin] for origin in origins), tuple(order), indexed=_uneven(origins))


def needs_padding(site: Site, keep: tuple[int, ...]) -> bool:
    """Whether the survivors' groups are uneven in an attention that cannot repeat key-value heads by an index."""
    indexable = site.spec.layout in ("split", "stacked") and uses_attention_interface(site.module)
    grouped = site.kind == "head" and site.spec.layout != "per_head"
    return grouped and not indexable and _uneven(_origins(site, keep))


def _origins(site: Site, keep: tuple[int, ...]) -> list[int]:
    ids = original_kv(site)
    return [ids[site.kv_of[position]] for position in keep]


def _uneven(origins: list[int]) -> bool:
    return len(set(Counter(origins).values())) > 1


def original_kv(site: Site) -> tuple[int, ...]:
    """The original kv head that each present one comes from."""
    stamp: CutRecord | None = getattr(site.writer, STAMP, None)
    return stamp.kv_ids if stamp and stamp.kv_ids is not None else tuple(range(site.kv_heads))


def kv_groups_of(site: Site) -> dict[int, tuple[int, ...]]:
    """Original key-value head -> the positions of the query heads that use it. Where heads share nothing, each is a group."""
    if site.spec.layout == "per_head":
        return {index: (position,) for position, index in enumerate(site.ids)}
    ids, groups = original_kv(site), dict[int, tuple[int, ...]]()
    for position, kv in enumerate(site.kv_of):
        groups[ids[kv]] = (*groups.get(ids[kv], ()), position)
    return groups


def layout_rows(site: Site, groups: KVGroups) -> list[int]:
    """How many rows each reader has in a layout with this sharing."""
    kv_of = torch.tensor(groups.kv_of, dtype=torch.long)
    tables = LAYOUTS[site.spec.layout](kv_of, len(groups.kv_ids), site.widths)
    return [max((int(table.max()) + 1 for table in parts if table.numel()), default=0) for parts in tables]


def used_rows(site: Site, keep: tuple[int, ...]) -> list[Tensor]:
    """The rows of each reader that the surviving units use, in order."""
    return [torch.cat([table[list(keep)].flatten() for table in tables]).unique() for tables in site.tables()]


def sources(site: Site, groups: KVGroups) -> Iterator[Tensor]:
    """For each reader, the old row that every new row comes from."""
    kv_of = torch.tensor(groups.kv_of, dtype=torch.long)
    target_tables = LAYOUTS[site.spec.layout](kv_of, len(groups.kv_ids), site.widths)
    for old_tables, new_tables, count in zip(site.tables(), target_tables, layout_rows(site, groups), strict=True):
        source = torch.empty(count, dtype=torch.long)
        for old_rows, now in zip(old_tables, new_tables, strict=True):
            source[now] = old_rows[list(groups.keep)]
        yield source
