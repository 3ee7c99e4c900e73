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
from .evaluation import measure, result_of
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

JUDGED = 1024  # examples on which it is decided whether tuning does good
NEEDS_CLASSES = ("accuracy", "f1", "matthews", "pearson", "spearman")
NEEDS_VARIETY = ("f1", "matthews", "pearson", "spearman")  # undefined if the model says the same of every example


@dataclass(frozen=True, eq=False)
class Tried:
    """A plan as it will be cut: rearranged and tuned, where that was asked for."""

    plan: Plan
    tuned: Tuned | None = None
    exchanged: int | None = None  # units that changed places
    note: str = ""  # why it was not tuned after all


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
        """The plan with units of each site exchanged where that loses less, and numbers for those that stay; or as it is.

        Least squares bring every site nearer to what it was, which as a rule makes the model better, and where very little
        is left can make it worse: so both are measured on some of the examples, and the better one is taken.
        """
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
        fit = Tuned.kept(runs.document(self.run, f"tuned-{mark(better)}", lambda: self._tuned(better)))
        judge = _judge(self.score)
        metric, both = judge.metric, (Tried(plan), Tried(better, fit))
        before, after = (metric.value(self._rows(judge, one, "judged")) for one in both)
        if (after >= before) if metric.higher_is_better else (after <= before):
            return Tried(better, fit, exchanged)
        note = (
            f"Not tuned: on {judge.size} of the examples that were scored on, {metric.name} is {before:.4f} as cut and "
        )
        return Tried(plan, note=f"{note}{after:.4f} rearranged and tuned.")

    def _rows(self, task: Task, one: Tried, name: str) -> np.ndarray:
        """The values of every example of the task with a plan closed, and what stays scaled."""
        anatomy, root = find(self.model, self.dialects), unwrap(self.model)
        name = f"{name}-{len(one.plan):05d}-{mark(one.plan)}{'-tuned' * (one.tuned is not None)}"
        with nullcontext() if one.tuned is None else applied(root, anatomy, one.tuned.scale):
            return measure(self.model, task, [one.plan], name=name, run=self.run, dialects=self.dialects)[0]

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
        base = measure(self.model, self.select, [Plan()], name="select-whole", run=self.run, dialects=self.dialects)[0]
        whole = result_of(self.select, base)
        defined(whole, self.select)
        tried = list[Tried]()

        def measured() -> Iterator[tuple[int, np.ndarray]]:
            assert self.select is not None
            for plan in plans:
                tried.append(self.ready(plan))
                yield len(tried[-1].plan), self._rows(self.select, tried[-1], "select")

        test = {"alpha": self.alpha, "resamples": self.resamples, "seed": self.seed}
        found = sequence(self.select.metric, base, measured(), self.max_drop, clusters=whole.clusters, **test)
        if found.kept is None:
            raise NotShown(_not_shown(found, of))
        return found, tried[sum(step.shown for step in found.steps) - 1]


def _judge(task: Task) -> Task:
    """Some of the examples, and what to measure on them: the metric, or where that means to write text, the loss."""
    some = task if task.size <= JUDGED else task.subset(range(JUDGED))
    return some.with_metric("loss") if task.generates else some


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
