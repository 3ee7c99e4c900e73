"""What makes up for units that are removed: the mean of what they wrote, in a bias, or columns that are fitted anew.

`mean` is the last step of FLAP (An et al. 2024) and the same as mean ablation: the cut model computes what the whole one does
with the units masked to their means. `lstsq` fits the columns that stay by least squares (`tuning/column_refit`), as OBC and
SparseGPT (Frantar & Alistarh 2022, 2023) and SliceGPT (Ashkboos et al. 2024) make up for what they take away; both together
fit a bias with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import BadPlan, Refused
from ...hashing import fingerprint
from ...importance.activations import activation_sums
from ...model.anatomy import Anatomy, Site
from ...model.architectures import ModuleSpec
from ...model.cutting.layers import deleted_blocks
from ...model.discovery import find, unwrap
from ...model.stand_ins import Fill
from ...plans import Plan

if TYPE_CHECKING:
    from ...data.tasks import Task
    from ...runs import Run

WAYS = ("mean", "lstsq")


class Ways(NamedTuple):
    """What is done to a model beside cutting it: one number per unit, means in biases, columns fitted anew."""

    tune: bool = False
    mean: bool = False
    lstsq: bool = False

    @property
    def compensate(self) -> str | None:
        """As it is said."""
        return ",".join(name for name in WAYS if getattr(self, name)) or None


def ways_of(compensate: str | None, tune: bool) -> Ways:
    """What was asked for: "mean", "lstsq", both with a comma between them, or tuning."""
    words = [word.strip() for word in (compensate or "").split(",") if word.strip()]
    if compensate is not None and (not words or set(words) - set(WAYS)):
        raise BadPlan(f"Compensation is mean, lstsq, or both (mean,lstsq); I got {compensate!r:.40}.")
    if words and tune:
        raise BadPlan(
            f"Tuning scales what stays so that it makes up for all that is gone, as {' and '.join(words)} would: take compensate "
            "or tune."
        )
    return Ways(tune, "mean" in words, "lstsq" in words)


def unit_means(model: nn.Module, anatomy: Anatomy, plan: Plan, task: Task, run: Run | None = None) -> dict[str, Tensor]:
    """For each attention and MLP that loses units, the mean of what each column of its writer is given: `cut(fill=...)`.

    Over all positions of the examples that are not padding, in the whole model.
    """
    inside = {module for block in deleted_blocks(anatomy, plan) for module in block.modules()}
    parts = [anatomy[name] for name in plan.by_site()]
    sites = [part for part in parts if isinstance(part, Site) and part.writer not in inside]
    if not sites:
        return {}
    name = f"means-{fingerprint([site.name for site in sites])[:8]}"
    sums = activation_sums(unwrap(model), anatomy, sites, task, run=run, name=name)
    return {site.name: torch.from_numpy(sums.means(site.name)) for site in sites}


def biases_of(model: nn.Module, plan: Plan, fill: Fill | None, specs: Iterable[ModuleSpec]) -> dict[str, Tensor]:
    """What a cut puts into biases for the units of a plan, by site."""
    if fill is None:
        return {}
    if not fill.constant:
        raise Refused(
            f"Fill {fill.signature} differs from example to example or from position to position, and a bias does not: cut with "
            "fill zero or mean, or mask."
        )
    anatomy = find(model, specs)
    written = dict(fill.stand_ins(model, anatomy, plan))
    layers = next((name for name in written if name not in {site.name for site in anatomy.sites}), None)
    if layers is not None:
        raise Refused(
            f"{layers} is passed over when it is cut, and nothing can be put in its place: mask it, or cut to zero."
        )
    return written


def of_those_left(
    whole: nn.Module, subject: nn.Module, written: dict[str, Tensor], specs: Iterable[ModuleSpec]
) -> dict[str, Tensor]:
    """The numbers for the columns that a model still has, of those for all columns of the whole one."""
    if not written:
        return {}
    before, now, out = find(whole, specs), find(subject, specs), dict[str, Tensor]()
    for site in now.sites:
        if site.name in written:
            original = before[site.name]
            places = torch.tensor(original.positions(site.ids), dtype=torch.long)
            out[site.name] = written[site.name].view(-1, site.width)[places].flatten()
    return out
