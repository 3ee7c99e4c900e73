"""What makes up for units that are removed: the mean of what they wrote, in a bias, or columns that are fitted anew.

`mean` is the last step of FLAP (An et al. 2024) and the same as mean ablation: the cut model computes what the whole one does
with the units masked to their means. `lstsq` fits the columns that stay by least squares (`tuning/column_refit`), as OBC and
SparseGPT (Frantar & Alistarh 2022, 2023) and SliceGPT (Ashkboos et al. 2024) make up for what they take away; both together
fit a bias with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import BadPlan
from ...hashing import fingerprint
from ...importance.activations import activation_sums
from ...model.anatomy import Anatomy, Site
from ...model.cutting.layers import deleted_blocks
from ...model.discovery import unwrap
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
