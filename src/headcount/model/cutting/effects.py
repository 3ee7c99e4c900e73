"""What a cut does, counted without cutting: parameters, and what a cache of keys and values holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import nn

from ..anatomy import Site, Stack, Units
from ..architectures import ModuleSpec
from ..discovery import find, unwrap
from . import layers, per_head, rules
from .kv_groups import KVGroups, layout_rows, share, survivors, used_rows


class CutEffect(NamedTuple):
    """What cutting one site, or deleting layers of one stack, does to the model."""

    name: str
    mode: str  # "slim", "even", "indexed", "padded", "empty" or "deleted": see `docs/architecture.md`
    units: int  # units before
    left: int  # units after
    parameters: int  # parameters that go
    kv_heads: int  # key-value heads per token in the cache before; 0 for what has no cache
    kv_left: int  # and after


def cut_effects(model: nn.Module, units: Units, *, specs: Iterable[ModuleSpec] = ()) -> list[CutEffect]:
    """What `cut` would do, site by site, counted without cutting: parameters, and what the cache of keys and values holds."""
    anatomy = find(model, specs)
    plan = anatomy.plan(units)
    rules.refuse(unwrap(model), anatomy, plan, {})
    inside = {id(module) for block in layers.deleted_blocks(anatomy, plan) for module in block.modules()}
    out = []
    for name, indices in plan.by_site().items():
        part = anatomy[name]
        if isinstance(part, Stack):
            out.append(_stack_effect(part, part.positions(indices)))
        elif id(part.module) not in inside:
            out.append(site_effect(part, survivors(part, part.positions(indices))))
    return out


def parameters_removed(model: nn.Module, units: Units, *, specs: Iterable[ModuleSpec] = ()) -> int:
    """How many parameters `cut` would remove."""
    return sum(price.parameters for price in cut_effects(model, units, specs=specs))


def _stack_effect(stack: Stack, drop: list[int]) -> CutEffect:
    removed_parameters = sum(p.numel() for position in drop for p in stack.blocks[position].parameters())
    removed_parameters -= layers.moved_parameters(stack, survivors(stack, drop))
    return CutEffect(stack.name, "deleted", len(stack), len(stack) - len(drop), removed_parameters, 0, 0)


def site_effect(site: Site, keep: tuple[int, ...]) -> CutEffect:
    """What cutting a site down to the units at the positions in `keep` does."""
    groups, padded = share(site, keep), rules.is_padded(site, keep)
    new_rows = [len(rows) for rows in used_rows(site, keep)] if padded else layout_rows(site, groups)
    removed_parameters = sum(
        m.parameters_per("row") * (m.shape[0] - rows) for m, rows in zip(site.matrices, new_rows, strict=True) if m
    )
    removed_parameters += (
        site.columns.parameters_per("column") * (len(site) - len(keep)) * site.width if site.columns else 0
    )
    for claim in [] if padded else per_head.per_head_tensors(site):
        had, has = (len(site), len(keep)) if claim.per == "head" else (site.kv_heads, len(groups.kv_ids))
        size = 1 if claim.name is None else getattr(claim.owner, claim.name).shape[claim.axis] // had
        removed_parameters += claim.parameters * size * (had - max(1, has))
    before = site.kv_heads if site.attention in ("decoder", "cross") else 0  # an encoder keeps no cache
    after = before if padded else max(1, len(groups.kv_ids)) if before else 0
    return CutEffect(site.name, _mode(site, groups, padded), len(site), len(keep), removed_parameters, before, after)


def _mode(site: Site, groups: KVGroups, padded: bool) -> str:
    if padded or not groups.keep:
        return "padded" if padded else "empty"
    if site.kind == "neuron" or site.kv_heads == len(site):
        return "slim"
    return "indexed" if groups.indexed else "even"
