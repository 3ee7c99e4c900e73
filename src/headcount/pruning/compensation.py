"""What goes back for units that are removed: the mean of what they wrote goes into a bias, or what stays is tuned.

`mean` is the last step of FLAP (An et al. 2024) and the same as mean ablation: the cut model computes what the whole one does
with the units masked to their means. `lstsq` is mask tuning by least squares (`tune`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..errors import BadPlan
from ..hashing import fingerprint
from ..importance.activations import activation_sums
from ..model.anatomy import Anatomy, Site
from ..model.cutting.layers import deleted_blocks
from ..model.discovery import unwrap
from ..plans import Plan

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

WAYS = ("mean", "lstsq")


def ways_of(compensate: str | None, tune: bool) -> tuple[bool, bool]:
    """Whether to tune, and whether to put means back."""
    if compensate is not None and compensate not in WAYS:
        raise BadPlan(f"Compensation is {' or '.join(WAYS)}; I got {compensate!r:.40}.")
    if compensate == "mean" and tune:
        raise BadPlan(
            "Tuning fits what stays to make up for all that is gone, its mean as well: take compensate mean or tune (lstsq)."
        )
    return tune or compensate == "lstsq", compensate == "mean"


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
