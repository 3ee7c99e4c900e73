"""What becomes of a plan before it is cut: units change places, those that stay are tuned, and a promise is tested.

Everything that is found is kept in the run under a name that holds the plan, so that a command that was stopped goes on with the
very plan, numbers and rows that it had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from . import runs
from .dialects import Dialect
from .errors import BadData, BadPlan, NotShown
from .evaluation import measure
from .finding import find, unwrap
from .gates import applied
from .gradients import contributions
from .guarantee import Guarantee, in_words, sequence, unit_of
from .plans import Plan
from .rearranging import rearranged
from .results import Result
from .scores import Scores
from .tuning import Tuned, tuned

if TYPE_CHECKING:
    from .tasks import Task

NEEDS_CLASSES = ("accuracy", "f1", "matthews", "pearson", "spearman")
NEEDS_VARIETY = ("f1", "matthews", "pearson", "spearman")  # undefined if the model says the same of every example


@dataclass(frozen=True, eq=False)
class Tried:
    """A plan as it will be cut: rearranged and tuned, where that was asked for."""

    plan: Plan
    tuned: Tuned | None = None
    exchanged: int | None = None  # units that changed places


@dataclass(frozen=True, eq=False)
class Workshop:
    """What plans are made ready and tested with."""

    model: nn.Module
    score: Task | None  # examples to tune on
    select: Task | None  # examples to show a promise on
    tune: bool
    max_drop: float | None
    alpha: float
    resamples: int | None
    seed: int
    run: Any  # a Run, or pieces in memory
    dialects: tuple[Dialect, ...]
    scores: Scores | None = None  # of the units that may change places

    def ready(self, plan: Plan) -> Tried:
        """The plan with units of each site exchanged where that loses less, and numbers for those that stay; or as it is."""
        if not self.tune:
            return Tried(plan)
        if self.score is None:
            raise BadPlan("Tuning looks at examples; give score=, a task that is not reported on.")
        better, exchanged = plan, None
        if self.scores is not None:
            names = {unit.site for unit in self.scores}
            anatomy, root = find(self.model, self.dialects), unwrap(self.model)
            parts = [site for site in anatomy.sites if site.name in names]
            if parts:
                gathered = contributions(root, anatomy, parts, self.score, run=self.run, name="score")
                better = rearranged(plan, parts, gathered)
                exchanged = len(better - plan)
                better = Plan(better.units, f"{plan.why}, rearranged" if exchanged else plan.why)
        found = runs.document(self.run, f"tuned-{mark(better)}", lambda: self._tuned(better))
        return Tried(better, Tuned.kept(found), exchanged)

    def _tuned(self, plan: Plan) -> dict[str, Any]:
        assert self.score is not None
        return tuned(self.model, plan, self.score, seed=self.seed, dialects=self.dialects).to_keep()

    def shown(self, plans: Iterable[Plan], of: int | None = None) -> tuple[Guarantee | None, Tried | None]:
        """What can be shown about the plans on the selection examples, and the last that was; None without a promise."""
        if self.max_drop is None:
            return None, None
        if self.select is None:
            raise BadPlan(
                "A largest drop is shown on examples of its own; give select=, a task that had no part in the scores."
            )
        how: dict[str, Any] = {"run": self.run, "dialects": self.dialects}
        base = measure(self.model, self.select, [Plan()], name="select-whole", **how)[0]
        defined(Result(self.select.metric, base), self.select)
        tried = list[Tried]()

        def measured() -> Iterator[tuple[int, np.ndarray]]:
            assert self.select is not None
            anatomy, root = find(self.model, self.dialects), unwrap(self.model)
            for plan in plans:
                tried.append(self.ready(plan))
                one = tried[-1]
                with nullcontext() if one.tuned is None else applied(root, anatomy, one.tuned.scale):
                    name = f"select-{len(one.plan):05d}-{mark(one.plan)}"
                    yield len(one.plan), measure(self.model, self.select, [one.plan], name=name, **how)[0]

        test = {"alpha": self.alpha, "resamples": self.resamples, "seed": self.seed}
        found = sequence(self.select.metric, base, measured(), self.max_drop, **test)
        if found.kept is None:
            raise NotShown(_not_shown(found, of))
        return found, tried[sum(step.shown for step in found.steps) - 1]


def mark(plan: Plan) -> str:
    """A few letters that tell a plan from others, for the names of pieces."""
    return hashlib.sha256(str(plan).encode()).hexdigest()[:8]


def _not_shown(found: Guarantee, of: int | None) -> str:
    """Why there is nothing to promise, and what would help."""
    first, unit = found.steps[0], unit_of(found.metric, found.drop)
    what = f"{first.removed} units" if of is None else f"{first.removed} of {of} units"
    lost = f"it measured {first.damage:+.2f} and could be {first.bound:.2f} on {found.n} examples"
    seen = f"I cannot show that removing {what} loses less than {found.drop:g} {unit}: {lost}"
    if found.needed is None:
        return f"{seen}, more than allowed; allow a larger drop, or take smaller steps."
    return f"{seen}; {in_words(found.needed)} to select on would be needed, or a larger drop."


def defined(result: Result, task: Task) -> None:
    """Refuse numbers that would mean nothing: one class only, or a metric that is not defined."""
    columns, name = result.metric.columns, result.metric.name
    if name not in NEEDS_CLASSES or "label" not in columns:
        return
    labels, guesses = (result.rows[:, columns.index(column)] for column in ("label", "prediction"))
    if len(set(labels)) == 1:
        raise BadData(
            f"All {task.size} examples of {task.name} to measure {name} on have the same label; give data with more than one."
        )
    if name in NEEDS_VARIETY and len(set(guesses)) == 1:
        raise BadData(
            f"{name} is not defined on {task.name}: the model says the same of all {task.size} examples; "
            "check that the model was made for this task, or measure accuracy or loss."
        )
