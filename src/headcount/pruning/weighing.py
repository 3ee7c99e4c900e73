"""What is lost without units, in several ways: criteria of single units, their mixture, and units of a site together.

A sum over single units says that all of an attention may go where each head alone matters little. The block-diagonal Fisher
looks at the units of a site together: where their derivatives point the same way, what is lost grows with the square of how
many go (Kwon et al. 2022).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from ..documents.scores import Scores
from ..importance.criteria import parts_of
from ..importance.criteria import score as score_units
from ..importance.gradients import Contributions, contributions
from ..model.anatomy import Site
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from .budget import SiteOrder
from .tuning.mask_rearrangement import SHRINKAGE

if TYPE_CHECKING:
    from ..data.tasks import Task

SEVERAL = ("fisher", "taylor")  # the criteria that are mixed: one pass gives both
MIXTURE, BLOCK = "fisher and taylor", "block-diagonal fisher"
ACTIVATIONS = ("wanda", "flap")  # made for language models, and one forward pass gives both
STEPS = 1024  # in which the units of a site go at most: of more units, several go at a time


@dataclass(frozen=True, eq=False)
class Weighing:
    """A way of saying what is lost without units: their scores, and for sites whose units are looked at together, an order."""

    name: str
    scores: Scores
    orders: Mapping[str, SiteOrder] = field(default_factory=dict)
    floors: bool = True  # whether plans are made with several floors; else with one


def weighings(
    model: nn.Module,
    task: Task | None,
    by: str | None,
    kinds: list[str],
    *,
    seed: int,
    notes: Any,
    specs: tuple[ModuleSpec, ...],
) -> list[Weighing]:
    """Every way: by one criterion alone where one is asked for, else Fisher, Taylor, both, and units of a site together.

    For language models what activations say as well (`by_activations`).
    """
    options: dict[str, Any] = {"units": kinds, "seed": seed, "run": notes, "specs": specs}
    if by is not None and by != "fisher":
        return [Weighing(by, score_units(model, task, by, **options).by_heads())]
    fisher = score_units(model, task, "fisher", **options).by_heads()
    out = [Weighing("fisher", fisher)]
    assert task is not None
    anatomy = find(model, specs)
    parts = parts_of(anatomy, kinds)
    gathered = contributions(unwrap(model), anatomy, parts, task, run=notes, name="score")
    orders = {part.name: block_order(part, gathered) for part in parts if isinstance(part, Site)}
    if by is None:
        taylor = score_units(model, task, "taylor", **options).by_heads()
        out += [Weighing("taylor", taylor), Weighing(MIXTURE, _mixed([fisher, taylor]))]
        for name in by_activations(task, kinds):
            out.append(Weighing(name, score_units(model, task, name, **options).by_heads(), floors=False))
    return [*out, Weighing(BLOCK, fisher, orders)]


def by_activations(task: Task | None, kinds: Iterable[str]) -> tuple[str, ...]:
    """The criteria of activations that are worth trying: those made for language models, on their heads and neurons."""
    language = task is not None and task.kind == "language-modelling"
    return ACTIVATIONS if language and "layers" not in kinds else ()


def _mixed(several: list[Scores]) -> Scores:
    """The mean of scores, each as a share of its sum."""
    raw = [scores.raw / max(float(scores.raw.sum()), 1e-300) for scores in several]
    signature = several[0].signature.replace(f"by:{several[0].by}", f"by:{MIXTURE}", 1)
    return replace(several[0], raw=np.mean(raw, axis=0), by=MIXTURE, normalize=None, samples=None, signature=signature)


def block_order(site: Site, gathered: Contributions) -> SiteOrder:
    """The units of a site in the order in which they go, so that the block-diagonal Fisher grows as slowly as it can.

    Rows of neurons are sums over blocks of examples; they are scaled so that every unit alone has its own Fisher.
    """
    signed, squared = gathered.signed[site.name], gathered.squared[site.name].sum(0)
    examples = float(gathered.examples[site.name].sum())
    along = np.square(np.asarray(signed, np.float64)).sum(0)
    scale = np.sqrt(np.divide(squared, along, out=np.zeros(len(along)), where=along > 0))
    order, lost = removal_order(np.asarray(signed, np.float64) * scale)
    return SiteOrder(tuple(site.units[place] for place in order), 0.5 * lost / max(examples, 1.0))


def removal_order(rows: np.ndarray, shrinkage: float = SHRINKAGE) -> tuple[list[int], np.ndarray]:
    """Units in the order in which they go, and what is lost with the first 0, 1, 2, ...: from derivatives (rows, units).

    What is lost with a set is the sum over rows of (the sum of its derivatives) squared, drawn by `shrinkage` towards the sum
    of squares (1: units by themselves). The next to go is the unit with which it grows least.
    """
    gradients = np.ascontiguousarray(rows.T)  # (units, rows)
    squares = np.einsum("ur,ur->u", gradients, gradients)
    along, remaining = np.zeros(len(squares)), np.ones(len(squares), dtype=bool)
    order, growths = list[int](), [0.0]
    together = max(1, len(squares) // STEPS)
    while remaining.any():
        growth = np.where(remaining, squares + 2 * (1 - shrinkage) * along, np.inf)
        chosen = np.argsort(growth, kind="stable")[: min(together, int(remaining.sum()))]
        order += chosen.tolist()
        growths += growth[chosen].tolist()
        remaining[chosen] = False
        along += gradients @ gradients[chosen].sum(0)
    # fewer units never lose less: where derivatives cancel, what was lost before stays lost
    return order, np.maximum.accumulate(np.cumsum(growths))
