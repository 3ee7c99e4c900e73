"""`Choice`: what is to go, why, and what was found for what stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import notebook
from ..documents.prune import BrakeDocument, Candidate, Steps
from ..documents.scores import Scores
from ..plans import Plan, Unit
from ..stats.guarantee import Guarantee
from ..stats.results import Result
from .budget import Budget
from .plan_tests import changes_of
from .tuning.column_refit import ColumnRefit
from .tuning.mask_tuning import MaskTuning


@dataclass(frozen=True, eq=False)
class Choice:
    """What to remove and why: the plan, the order it was taken from, and what could be shown about it."""

    how: tuple[
        str, Any
    ]  # ("max-drop", 1.0), ("remove", "40%"), ("flops", "50%"), ("speedup", 1.3), ("plan", its reason)
    plan: Plan
    of: int  # units of this kind in the model
    units: str  # their kind: "heads", or several with commas
    scores: Scores | None = None
    order: tuple[Unit, ...] = ()
    guarantee: Guarantee | None = None
    left_alone: tuple[tuple[str, str], ...] = ()  # sites that cannot be cut, and the reason
    used: frozenset[bytes] = frozenset()  # the examples that had a part in it, which nothing is to be reported on
    budget: Budget | None = None
    tuned: MaskTuning | None = None
    exchanged: int | None = None  # units that changed places when they were rearranged
    note: str = ""  # why what stays was not tuned after all
    fill: Mapping[str, Tensor] = field(default_factory=dict)  # means that go into biases for what is gone, by site
    compensated: int | None = None  # the examples that these are over
    refit: ColumnRefit | None = None  # columns that stay, fitted anew
    selected: Result | None = None  # the whole model on the examples that the guarantee was shown on
    dtype: torch.dtype | None = None  # the number format that it was tested for, where what stays was tuned
    tried: str = ""  # which promise on these examples it is, where it is not the only one
    left_out: str = ""  # which examples had no part in it because they were given for two things, or twice
    candidates: tuple[Candidate, ...] = ()  # plans that were measured on scoring examples, of which the best was taken
    brake: BrakeDocument | None = None  # how far the metric fell on scoring examples, and how far it may
    groups: str = ""  # why groups of query heads stay even, or what a plan of one's own means that leaves uneven ones

    @property
    def scale(self) -> Mapping[str, Tensor]:
        """Numbers for the units that stay, by site, to be folded into the weights; empty where nothing was tuned."""
        return {} if self.tuned is None else self.tuned.scale

    @property
    def columns(self) -> Mapping[str, Tensor]:
        """Columns for the units that stay, by site: (rows of the writer, columns); empty where nothing was refitted."""
        return {} if self.refit is None else self.refit.columns

    @property
    def bias(self) -> Mapping[str, Tensor]:
        """What is added to the biases of writers, by site, because it was fitted with the columns."""
        return {} if self.refit is None else self.refit.bias

    @property
    def changes(self) -> dict[str, Mapping[str, Tensor]]:
        """What the cut changes beside taking units away: `hc.cut(model, choice.plan, **choice.changes)`."""
        return changes_of(self.tuned, self.fill, self.refit)

    def __str__(self) -> str:
        kind, value = self.how
        asked = f"{kind} {value}" if value else kind
        lines = [f"{len(self.plan)} of {self.of} {self.units.replace(',', ' and ')} are to go ({asked}): {self.plan!r}"]
        lines += [
            str(fact)
            for fact in (self.guarantee, self.budget, self.tried, self.note, self.groups, self.left_out)
            if fact
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return notebook.block(*map(notebook.line, str(self).splitlines()), self.plan._repr_html_())

    def told(self) -> Steps:
        """The budget, and what rearranging and tuning did, as prune.json has them."""
        return Steps(
            budget=self.budget,
            tuned=None if self.tuned is None else self.tuned.document(),
            rearranged=self.exchanged,
            not_tuned=self.note or None,
            tried=self.tried or None,
            candidates=self.candidates,
            brake=self.brake,
            compensated=self.compensated,
            refitted=None if self.refit is None else self.refit.document(),
            groups=self.groups or None,
        )
