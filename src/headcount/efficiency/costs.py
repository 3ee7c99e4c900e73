"""What each site costs with any number of its units: parameters, multiply-adds, or seconds measured on this machine.

A table per site and a number per layer, so that the cost of a plan is a sum. Where heads share keys and values, what a number
of heads costs depends on which they are; the tables then hold the dearest case, and the sum is an upper bound.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import HeadcountError
from ..evaluation.evaluator import device_of, to_device
from ..model.anatomy import Anatomy, Site
from ..model.architectures import ModuleSpec
from ..model.cutting import rules
from ..model.cutting.effects import site_effect
from ..model.cutting.kv_groups import layout_rows, share, survivors, used_rows
from ..model.cutting.layers import moved_parameters
from ..model.cutting.surgery import cut
from ..model.discovery import find, unwrap
from ..model.equivalence import evaluating
from ..plans import Plan, Unit
from .flops import counting
from .random_inputs import has_length, random_batch

MATRIX_PRODUCTS = (
    "mm",
    "addmm",
    "convolution",
    "_convolution",
    "cudnn_convolution",
)  # of modules; the rest is attention


@dataclass(frozen=True, eq=False)
class Costs:
    """What a model costs in all, each site with 0, 1, 2, ... of its units, and each layer besides its sites."""

    what: str  # "params", "flops", "kv-cache" or "time"
    whole: float
    sites: Mapping[str, np.ndarray]
    layers: Mapping[Unit, float]
    homes: Mapping[str, Unit]  # the layer that a site goes with
    clock: str = "wall"  # of seconds: "wall", "processor" (of one thread), or "counts", where neither could be measured
    note: str = ""  # why it is not time on the wall

    def of(self, plan: Plan) -> float:
        """What the model should cost after the plan; it may cost less, where heads share keys and values."""
        total = self.whole
        for name, indices in plan.by_site().items():
            if name in self.sites and self.homes.get(name) not in plan:
                total -= float(self.sites[name][-1] - self.sites[name][len(self.sites[name]) - 1 - len(indices)])
        for unit in set(plan) & set(self.layers):
            inside = sum(float(self.sites[name][-1]) for name, home in self.homes.items() if home == unit)
            total -= self.layers[unit] + inside
        return total


def shared_out(counts: Costs, like: Costs, weight: float = 1.0) -> Costs:
    """Seconds of which so much (1: all) is shared out among sites and layers by counts, and the rest as it was measured."""
    scale = weight * like.whole / counts.whole
    sites = {name: scale * table + (1 - weight) * like.sites[name] for name, table in counts.sites.items()}
    layers = {unit: scale * cost + (1 - weight) * like.layers.get(unit, 0.0) for unit, cost in counts.layers.items()}
    return replace(like, sites=sites, layers=layers)


def homes(anatomy: Anatomy) -> dict[str, Unit]:
    """For each site inside a stack, the layer that it goes with."""
    layer_of: dict[str, Unit] = {}
    for stack in anatomy.stacks:
        for unit, block in zip(stack.units, stack.blocks, strict=True):
            inside = {id(module) for module in block.modules()}
            layer_of |= {site.name: unit for site in anatomy if id(site.writer) in inside}
    return layer_of


def parameters(model: nn.Module, specs: tuple[ModuleSpec, ...] = ()) -> Costs:
    """The parameters of the model, of its sites and of its layers."""
    anatomy = find(model, specs)
    tables = {site.name: _by_number(site, partial(_parameters_left, site)) for site in anatomy}
    where = homes(anatomy)
    layers = {}
    for stack in anatomy.stacks:
        for position, (unit, block) in enumerate(zip(stack.units, stack.blocks, strict=True)):
            inside = sum(float(tables[name][-1]) for name, home in where.items() if home == unit)
            moved = moved_parameters(stack, survivors(stack, [position]))  # they stay, with the next layer
            layers[unit] = sum(p.numel() for p in block.parameters()) - moved - inside
    return Costs("params", sum(p.numel() for p in unwrap(model).parameters()), tables, layers, where)


def operations(
    model: nn.Module,
    length: int | None = None,
    *,
    batch: dict[str, Any] | None = None,
    specs: tuple[ModuleSpec, ...] = (),
) -> Costs:
    """The floating-point operations of one pass, two per multiply-add, of one example of this length or of `batch`."""
    root, anatomy = unwrap(model), find(model, specs)
    batch = batch or one_example(root, length)
    ticks = _watched(root, anatomy, batch)
    tables = {}
    for site in anatomy:
        table = _table(site, ticks)
        tables[site.name] = _probed(root, site, batch, specs) if table is None else table
    where = homes(anatomy)
    layers = {}
    for stack in anatomy.stacks:
        for unit, block in zip(stack.units, stack.blocks, strict=True):
            inside = sum(float(tables[name][-1]) for name, home in where.items() if home == unit)
            layers[unit] = sum(ticks[id(block)].values()) - inside
    return Costs("flops", sum(ticks[id(root)].values()), tables, layers, where)


def one_example(root: nn.Module, length: int | None) -> dict[str, Any]:
    """A made-up example of this length, where the model's kind of input has one."""
    batch = random_batch(root, 1, length if has_length(root) else None)
    return to_device(batch, device_of(root))


def operations_of(model: nn.Module, batch: dict[str, Any]) -> int:
    """The floating-point operations of one pass, two per multiply-add."""
    root = unwrap(model)
    with evaluating(root), torch.no_grad(), counting(root) as now:
        root(**batch)
        return sum(now().values())


def operations_of_both(model: nn.Module, smaller: nn.Module, length: int) -> tuple[int, int] | None:
    """Operations of one example before and after; None where no example can be made up."""
    try:
        batch = one_example(unwrap(model), length)
        return operations_of(model, batch), operations_of(smaller, batch)
    except HeadcountError:
        return None


def widest(site: Site, count: int) -> tuple[int, ...]:
    """Positions of so many units that cost no less than any others: heads that share as few keys and values as they can."""
    kv_counts, ranked = Counter[int](), []
    for position, kv in enumerate(site.kv_of if site.kind == "head" else range(len(site))):
        ranked.append((kv_counts[kv], position))
        kv_counts[kv] += 1
    return tuple(sorted(position for _, position in sorted(ranked)[:count]))


def _parameters_left(site: Site, keep: tuple[int, ...]) -> float:
    return -site_effect(site, keep).parameters


def _by_number(site: Site, cost: Callable[[tuple[int, ...]], float]) -> np.ndarray:
    """Costs with 0, 1, ... all units, the first being 0. Neurons all cost the same, so four numbers of them are enough."""
    units = len(site)
    counts = range(units + 1) if site.kind == "head" else sorted({0, 1, units // 2, units} & set(range(units + 1)))
    costs = {count: float(cost(widest(site, count))) for count in counts}
    table = np.interp(np.arange(units + 1), list(costs), list(costs.values()))
    return table - min(table[0], table[-1])


def _watched(root: nn.Module, anatomy: Anatomy, batch: dict[str, Any]) -> dict[int, Counter[str]]:
    """Operations by their kind that were counted while each module ran: the parts of sites, the layers, the model."""
    parts = [module for site in anatomy for module in (site.module, site.writer, *site.readers)]
    blocks = [block for stack in anatomy.stacks for block in stack.blocks]
    ticks: dict[int, Counter[str]] = {id(module): Counter() for module in (*parts, *blocks, root)}
    with ExitStack() as stack:
        stack.enter_context(evaluating(root))
        stack.enter_context(torch.no_grad())
        now = stack.enter_context(counting(root))

        def begin(module: nn.Module, *_: Any) -> None:
            ticks[id(module)].subtract(now())

        def end(module: nn.Module, *_: Any) -> None:
            ticks[id(module)].update(now())

        for module in dict.fromkeys((*parts, *blocks, root)):
            stack.callback(module.register_forward_pre_hook(begin, prepend=True).remove)
            stack.callback(module.register_forward_hook(end).remove)
        root(**batch)
    return ticks


def _table(site: Site, ticks: Mapping[int, Counter[str]]) -> np.ndarray | None:
    """What the site costs by the number of its units; None where its matrices are not modules that are called."""
    inside = set(map(id, site.module.modules()))
    readers = [sum(ticks[id(reader)].values()) for reader in site.readers]
    writer = sum(ticks[id(site.writer)].values())
    if not site.readers or not all(readers) or not writer or None in site.matrices or site.columns is None:
        return None
    core = 0
    if site.kind == "head":
        own = Counter(ticks[id(site.module)])
        for module in {id(m): m for m in (*site.readers, site.writer)}.values():
            if id(module) in inside and module is not site.module:
                own.subtract(ticks[id(module)])
        core = sum(count for kind, count in own.items() if kind not in MATRIX_PRODUCTS)

    def cost(keep: tuple[int, ...]) -> float:
        padded = rules.is_padded(site, keep)
        sharing = share(site, keep)
        rows = [len(r) for r in used_rows(site, keep)] if padded else layout_rows(site, sharing)
        total = writer * len(keep) / len(site)
        for spent, matrix, row_count in zip(readers, site.matrices, rows, strict=True):
            assert matrix is not None
            total += spent * row_count / matrix.shape[0]
        # code that counts on all heads attends with all of them; an attention without heads runs one of zeros
        return total + core * (1 if padded else max(1, len(keep)) / len(site))

    return _by_number(site, cost)


def _probed(root: nn.Module, site: Site, batch: dict[str, Any], specs: tuple[ModuleSpec, ...]) -> np.ndarray:
    """The same, found out by cutting a copy: for attentions that do not call their matrices as modules."""
    if rules.refusal(site, find(root, specs), root) is not None or len(site) < 2:
        return np.zeros(len(site) + 1)
    smaller = copy.deepcopy(root)
    cut(
        smaller,
        Plan(frozenset(site.units[position] for position in set(range(len(site))) - set(widest(site, len(site) - 1)))),
    )
    saved = operations_of(root, batch) - operations_of(smaller, batch)
    return float(saved) * np.arange(len(site) + 1)
