"""Sub-networks of heads and whole MLPs: what there is, what each is worth, what can go, and others of the same size."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from ..documents.lottery import LotterySite, SearchStep
from ..importance.criteria import taylor
from ..importance.gradients import contributions
from ..model.anatomy import Anatomy, Site
from ..model.architectures import ModuleSpec
from ..model.discovery import find
from ..plans import Plan, Unit

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run


@dataclass(frozen=True, eq=False)
class Field:
    """The heads and MLPs of a model: a head is a unit of its site, a whole MLP is number 0 of its own."""

    anatomy: Anatomy

    @classmethod
    def of(cls, model: nn.Module, rows: Iterable[ModuleSpec] = ()) -> Field:
        """The heads and MLPs of this model."""
        return cls(find(model, rows))

    @property
    def heads(self) -> tuple[Unit, ...]:
        """All heads."""
        return tuple(unit for site in self.anatomy.heads for unit in site.units)

    @property
    def mlps(self) -> tuple[Unit, ...]:
        """All MLPs."""
        return tuple(Unit(site.name, 0) for site in self.anatomy.neurons)

    @property
    def sites(self) -> tuple[LotterySite, ...]:
        """The sites as lottery.json has them."""
        return tuple(
            LotterySite(
                name=site.name,
                kind="head" if site.kind == "head" else "mlp",
                type=site.attention,
                layer=site.layer,
                units=len(site) if site.kind == "head" else 1,
            )
            for site in self.anatomy
        )

    def plan(self, units: Iterable[Unit]) -> Plan:
        """The plan that removes these heads, and all neurons of these MLPs."""
        out = set[Unit]()
        for unit in units:
            site = self.anatomy[unit.site]
            out |= {unit} if site.kind == "head" else set(site.units)
        return Plan(frozenset(out))

    def alive(self, removed_units: Iterable[Unit]) -> dict[str, tuple[int, ...]]:
        """Site -> the indices that survive."""
        lost = set(removed_units)
        kept_units = [unit for unit in (*self.heads, *self.mlps) if unit not in lost]
        return {site.name: tuple(unit.index for unit in kept_units if unit.site == site.name) for site in self.anatomy}


def importance(
    root: nn.Module, anatomy: Anatomy, task: Task, *, run: Run | None = None, name: str = "importance"
) -> dict[Unit, float]:
    """Of every head and every whole MLP, the mean over examples of |dL/dgate|, from one pass; heads by their layer's norm.

    Inside `masked` it is that of the model as it is with those units masked, which themselves come out as zero.
    """
    parts = [site if site.kind == "head" else whole(site) for site in anatomy]
    taylor_values = taylor(contributions(root, anatomy, parts, task, run=run, name=name))
    out: dict[Unit, float] = {}
    for part in parts:
        values = taylor_values[part.name].mean(0)
        if part.kind == "head":
            values = values / max(float(np.linalg.norm(values)), 1e-20)
        out |= {Unit(part.name, index): float(value) for index, value in zip(part.ids, values, strict=True)}
    return out


def whole(site: Site) -> Site:
    """The site as one that has a single unit: the derivative by its gate is that of everything the site writes."""
    return replace(site, width=len(site) * site.width, ids=(0,), of=1)


def search(
    heads: Sequence[Unit],
    mlps: Sequence[Unit],
    worth: Callable[[Sequence[Unit]], dict[Unit, float]],
    value: Callable[[Sequence[Unit]], float],
    floor: float,
    step: float,
) -> tuple[list[Unit], list[SearchStep]]:
    """What can go while the value is at least `floor`, in the order in which it went, and all steps that were tried.

    `worth(removed_units)` and `value(removed_units)` are the importance of units, and the score, of the model without some.
    Three phases: heads and MLPs, heads alone in half steps, MLPs alone. Units are ranked anew after every step that is
    kept, and never on one that was not.
    """
    many = max(1, math.floor(step * len(heads) + 1e-9))
    removed_units, steps = list[Unit](), list[SearchStep]()
    ranks: dict[Unit, float] | None = None
    for phase, (some, mlp_step) in enumerate([(many, 1), (max(1, many // 2), 0), (0, 1)], 1):
        while True:
            remaining = [[unit for unit in kind if unit not in set(removed_units)] for kind in (heads, mlps)]
            if not (some and remaining[0]) and not (mlp_step and remaining[1]):
                break
            ranks = worth(removed_units) if ranks is None else ranks
            tried = [
                *removed_units,
                *sorted(remaining[0], key=ranks.__getitem__)[:some],
                *sorted(remaining[1], key=ranks.__getitem__)[:mlp_step],
            ]
            score = value(tried)
            sizes = {"heads": len(heads) - count(tried, heads), "mlps": len(mlps) - count(tried, mlps)}
            steps.append(SearchStep(phase=phase, **sizes, value=score, kept=score >= floor))
            if score < floor:
                break
            removed_units, ranks = tried, None
    return removed_units, steps


def networks(
    heads: Sequence[Unit], mlps: Sequence[Unit], removed_units: Sequence[Unit], draw: random.Random
) -> dict[str, list[Unit]]:
    """What is masked in the good, the random and the bad sub-network; all keep exactly as many units of each kind.

    The bad one keeps what went first, and where too little went also units of the good one, at random.
    """
    out: dict[str, list[Unit]] = {"good": list(removed_units), "random": [], "bad": []}
    for kind in (heads, mlps):
        went = [unit for unit in removed_units if unit in set(kind)]
        stayed = [unit for unit in kind if unit not in set(went)]
        out["random"] += draw.sample(list(kind), len(went))
        bad = went[: len(stayed)]
        bad += draw.sample(stayed, len(stayed) - len(bad))
        out["bad"] += [unit for unit in kind if unit not in set(bad)]
    return out


def count(some: Iterable[Unit], kind: Sequence[Unit]) -> int:
    """How many of some units are of a kind."""
    return len(set(some) & set(kind))
