"""What becomes of a plan before it is cut: units change places, those that stay are tuned, and a promise is tested.

Everything that is found is kept in the run under a name that holds the plan, so that a command that was stopped goes on with the
very plan, numbers and rows that it had.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..data import splits
from ..documents.scores import Scores
from ..errors import BadData, BadPlan, NotShown
from ..evaluation.evaluator import measure, result_of
from ..importance.gradients import contributions
from ..model.architectures import ModuleSpec
from ..model.cutting.surgery import cut
from ..model.discovery import find, unwrap
from ..model.gates import applied
from ..plans import Plan
from ..progress import Bar
from ..stats.guarantee import Guarantee, fixed_sequence_test, in_words, least_in_words, rehearsed_sequence, unit_of
from ..stats.noninferiority import check_cap, noninferiority_test
from ..stats.results import Result
from .tuning.column_refit import Basis, ColumnRefit, observe, refit_columns
from .tuning.compensation import unit_means
from .tuning.mask_rearrangement import rearrange_mask
from .tuning.mask_tuning import Calibration, MaskTuning, calibrate, tune_mask

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..importance.gradients import Contributions
    from ..model.anatomy import Anatomy, Site
    from ..stats.metrics import Metric

JUDGED = 512  # examples on which it is decided whether tuning does good
NEEDS_CLASSES = ("accuracy", "accuracy-norm", "f1", "matthews", "pearson", "spearman")
DRAWS = 999  # of the test whether the model knows the selection examples
SUSPICIOUS = 0.01  # its level
NEEDS_VARIETY = ("f1", "matthews", "pearson", "spearman")  # undefined if the model says the same of every example


@dataclass(frozen=True, eq=False)
class PreparedPlan:
    """A plan as it will be cut: rearranged and tuned, where that was asked for."""

    plan: Plan
    tuned: MaskTuning | None = None
    exchanged: int | None = None  # units that changed places
    note: str = ""  # why it was not tuned after all
    judged: np.ndarray | None = None  # the values of the examples on which that was decided
    fill: Mapping[str, Tensor] = field(default_factory=dict)  # what goes into biases for units that are gone, by site
    refit: ColumnRefit | None = None  # columns that were fitted anew

    @property
    def changes(self) -> dict[str, Mapping[str, Tensor]]:
        """What `cut` is given beside the plan."""
        return changes_of(self.tuned, self.fill, self.refit)


@dataclass(frozen=True, eq=False)
class PlanTester:
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
    specs: tuple[ModuleSpec, ...]
    scores: Scores | None = None  # of the units that may change places
    tries: Callable[[], int] = lambda: (
        1
    )  # promises that share alpha, asked before the first selection example is tested
    dtype: torch.dtype | None = None  # the number format that what is tuned will be saved in; None: the model's own
    cap: float | None = None  # what one example may count for in a promise about a mean; None: 20 times the drop
    mean: bool = False  # whether the mean of what is gone is put back
    lstsq: bool = False  # whether columns that stay are fitted anew
    prepared: dict[Plan, PreparedPlan] = field(default_factory=dict, repr=False)  # nothing is made ready twice

    @cached_property
    def _anatomy(self) -> Anatomy:
        return find(self.model, self.specs)

    @cached_property
    def _calibration(self) -> Calibration:
        """What the whole model computes on the examples to tune on: the same for every plan."""
        assert self.score is not None
        return calibrate(self.model, self.score, seed=self.seed, specs=self.specs)

    @cached_property
    def _parts(self) -> tuple[Task, Task]:
        """Of the examples that were scored on, those to fit columns on, and others on which it is decided whether that did good.

        So many numbers fit the examples that they were fitted on in any case.
        """
        assert self.score is not None
        share = partial(
            splits.share_out, shares={"measure": 0.25, "score": 0.75}, seed=self.seed, salt="refit", most=JUDGED
        )
        try:
            parts = share(self.score).tasks
        except BadData:  # too few documents to keep them whole
            parts = share(replace(self.score, clusters=None, cluster_names=())).tasks
        return parts["score"], parts["measure"]

    @cached_property
    def _basis(self) -> Basis:
        """The positions to fit columns on, and where sites write: the same for every plan."""
        return observe(self.model, self._parts[0], seed=self.seed, specs=self.specs)

    @cached_property
    def _judge(self) -> Task:
        """The scoring examples on which prepared plans are compared."""
        assert self.score is not None
        return _judge(self._parts[1] if self.lstsq else self.score)

    @cached_property
    def _gradients(self) -> tuple[list[Site], Contributions | None]:
        """The sites whose units may change places, and their gradients: the same for every plan."""
        names = set() if self.scores is None else {unit.site for unit in self.scores}
        sites = [site for site in self._anatomy.sites if site.name in names]
        if not sites or self.score is None:
            return [], None
        root = unwrap(self.model)
        return sites, contributions(root, self._anatomy, sites, self.score, run=self.run, name="score")

    def check(self) -> None:
        """Refuse what cannot be done, before hours of scoring."""
        if (self.tune or self.mean or self.lstsq) and self.score is None:
            what = "Tuning" if self.tune else "Compensation"
            raise BadPlan(f"{what} looks at examples; give score=, a task that is not reported on.")
        if self.select is not None:
            check_cap(self.select.metric, self.cap)

    def prepare(self, plan: Plan) -> PreparedPlan:
        """The plan with units of each site exchanged where that loses less, and numbers for those that stay; or as it is.

        Least squares bring every site nearer to what it was, which as a rule makes the model better, and where very little
        is left can make it worse: so both are measured on some of the examples, and the better one is taken.
        """
        if not self.tune and not self.mean and not self.lstsq:
            return PreparedPlan(plan)
        if plan not in self.prepared:
            way = self._tuned_or_not if self.tune else self._refitted_or_not if self.lstsq else self._filled
            self.prepared[plan] = way(plan)
        return self.prepared[plan]

    def _refitted_or_not(self, plan: Plan) -> PreparedPlan:
        """The plan with columns fitted anew, or as it is (with means put back), whichever is better on examples beside those."""
        plain = self._filled(plan) if self.mean else PreparedPlan(plan)
        name = f"refit-{'bias-' * self.mean}{mark(plan)}"
        how: dict[str, Any] = {"specs": self.specs, "basis": self._basis, "run": self.run, "name": name}
        fit = refit_columns(self.model, plan, self._parts[0], intercept=self.mean, **how)
        judge = self._judge
        candidates = (plain, PreparedPlan(plan, refit=fit))
        rows = [self._rows(judge, candidate, f"refit-judged{judge.size}") for candidate in candidates]
        before, after = (judge.metric.value(values) for values in rows)
        if _is_no_worse(judge.metric, before, after):
            return replace(candidates[1], judged=rows[1])
        note = (
            f"Not refitted: on {judge.size} of the examples that were scored on, which columns were not fitted to, "
            f"{judge.metric.name} is {before:.4f} without and {after:.4f} with it."
        )
        return replace(plain, note=note, judged=rows[0])

    def _filled(self, plan: Plan) -> PreparedPlan:
        assert self.score is not None
        return PreparedPlan(plan, fill=unit_means(self.model, self._anatomy, plan, self.score, self.run))

    def _tuned_or_not(self, plan: Plan) -> PreparedPlan:
        assert self.score is not None
        better, exchanged = plan, None
        sites, gradients = self._gradients
        if gradients is not None:
            better = rearrange_mask(plan, sites, gradients)
            exchanged = len(better - plan)
            better = Plan(better.units, f"{plan.why}, rearranged" if exchanged else plan.why)
        fit = MaskTuning.kept(runs.document(self.run, f"tuned-{mark(better)}", lambda: self._tuned(better)))
        judge = _judge(self.score)
        metric, candidates = judge.metric, (PreparedPlan(plan), PreparedPlan(better, fit))
        rows = [self._rows(judge, candidate, f"judged{judge.size}") for candidate in candidates]
        before, after = (metric.value(values) for values in rows)
        if _is_no_worse(metric, before, after):
            return PreparedPlan(better, fit, exchanged, judged=rows[1])
        note = (
            f"Not tuned: on {judge.size} of the examples that were scored on, {metric.name} is {before:.4f} as cut and "
        )
        return PreparedPlan(plan, note=f"{note}{after:.4f} rearranged and tuned.", judged=rows[0])

    def _rows(self, task: Task, candidate: PreparedPlan, name: str) -> np.ndarray:
        """The values of every example of the task with a plan masked, and what stays scaled."""
        anatomy, root = self._anatomy, unwrap(self.model)
        name = f"{name}-{len(candidate.plan):05d}-{mark(candidate.plan)}{'-tuned' * (candidate.tuned is not None)}"
        if candidate.fill or candidate.refit is not None:
            saved = as_saved(self.model, candidate.plan, candidate.changes, self.dtype, self.specs)
            name = f"{name}{'-mean' * self.mean}{'-refit' * (candidate.refit is not None)}"
            name = f"{name}-{str(self.dtype or format_of(self.model)).removeprefix('torch.')}"
            return measure(saved, task, [Plan()], name=name, run=self.run, specs=self.specs)[0]
        if candidate.tuned is not None and self.dtype not in (None, format_of(self.model)):
            saved = as_saved(self.model, candidate.plan, candidate.changes, self.dtype, self.specs)
            name = f"{name}-{str(self.dtype).removeprefix('torch.')}"
            return measure(saved, task, [Plan()], name=name, run=self.run, specs=self.specs)[0]
        with nullcontext() if candidate.tuned is None else applied(root, anatomy, candidate.tuned.scale):
            return measure(self.model, task, [candidate.plan], name=name, run=self.run, specs=self.specs)[0]

    def _tuned(self, plan: Plan) -> dict[str, Any]:
        assert self.score is not None
        how: dict[str, Any] = {"seed": self.seed, "specs": self.specs, "calibration": self._calibration}
        return tune_mask(self.model, plan, self.score, **how).to_keep()

    def test(
        self, plans: Iterable[Plan], of: int | None = None
    ) -> tuple[Guarantee | None, PreparedPlan | None, Result | None]:
        """What can be shown about the plans on the selection examples, the last that was, and the whole model on them.

        All of it is None without a promise.
        """
        if self.max_drop is None:
            return None, None, None
        if self.select is None:
            raise BadPlan(
                "A largest drop is shown on examples of its own; give select=, a task that had no part in the scores."
            )
        tries = self.tries()
        base = measure(self.model, self.select, [Plan()], name="select-whole", run=self.run, specs=self.specs)[0]
        full_result = result_of(self.select, base)
        defined(full_result, self.select)
        candidates, tried = self._sequence(list(plans), self.alpha / tries), list[PreparedPlan]()

        def measured() -> Iterator[tuple[int, np.ndarray]]:
            assert self.select is not None
            with Bar("plans to test, at most", total=len(candidates)) as bar:
                for plan in candidates:
                    tried.append(self.prepare(plan))
                    yield len(tried[-1].plan), self._rows(self.select, tried[-1], "select")
                    bar.advance()

        test: dict[str, Any] = {"alpha": self.alpha, "resamples": self.resamples, "seed": self.seed, "tries": tries}
        test |= {"clusters": full_result.clusters, "cap": self.cap}
        guarantee = fixed_sequence_test(self.select.metric, base, measured(), self.max_drop, **test)
        if guarantee.kept is None:
            raise NotShown(_not_shown(guarantee, of))
        return guarantee, tried[sum(step.shown for step in guarantee.steps) - 1], full_result

    def _sequence(self, plans: Sequence[Plan], level: float) -> Sequence[Plan]:
        """The plans to test, the mildest first: all of them, or where each must be tuned, few, by a rehearsal.

        The rehearsal is the same test on examples that were scored on. The selection examples have no part in it.
        """
        assert self.max_drop is not None
        assert self.select is not None
        if (
            not (self.tune or self.lstsq)
            or self.score is None
            or self.score.metric.name != self.select.metric.name
            or self.score.generates
        ):
            return plans
        judge, max_drop = self._judge, self.max_drop
        n = min(judge.size, self.select.size)
        options: dict[str, Any] = {"alpha": level, "resamples": self.resamples, "seed": self.seed, "cap": self.cap}
        options["clusters"] = None if judge.clusters is None else np.array(judge.clusters[:n])
        whole = PreparedPlan(Plan())
        before = self._rows(judge, whole, f"judged{judge.size}")[:n]

        def holds(place: int) -> bool:
            rows = self.prepare(plans[place]).judged
            bar.advance()
            return (
                rows is not None and noninferiority_test(judge.metric, before, rows[:n], max_drop, **options).p <= level
            )

        with Bar("rehearsing on scoring examples", total=len(plans).bit_length()) as bar:
            return [plans[place] for place in rehearsed_sequence(len(plans), holds)]


def changes_of(
    tuned: MaskTuning | None, fill: Mapping[str, Tensor], refit: ColumnRefit | None
) -> dict[str, Mapping[str, Tensor]]:
    """The arguments of `cut` that fold what was found into weights and biases; none where nothing was."""
    found = {
        "scale": {} if tuned is None else tuned.scale,
        "fill": fill,
        "columns": {} if refit is None else refit.columns,
        "bias": {} if refit is None else refit.bias,
    }
    return {name: values for name, values in found.items() if values}


def _is_no_worse(metric: Metric, before: float, after: float) -> bool:
    """Whether what was tuned measures at least as well as what was only cut."""
    return after >= before if metric.higher_is_better else after <= before


def as_saved(
    model: nn.Module,
    plan: Plan,
    changes: Mapping[str, Mapping[str, Tensor]],
    dtype: torch.dtype | None,
    specs: tuple[ModuleSpec, ...] = (),
) -> nn.Module:
    """A copy of the model, cut, with all that `cut` is to change beside that (`changes_of`).

    It has no more digits than a checkpoint of this number format has, and still computes in the format of the model. Tables
    that the model makes anew are in no checkpoint, and keep their digits.
    """
    saved_model = copy.deepcopy(model)
    cut(saved_model, plan, specs=specs, **changes)
    anew = getattr(unwrap(saved_model), "_keys_to_ignore_on_save", None) or ()
    for name, parameter in unwrap(saved_model).named_parameters():
        if dtype is not None and parameter.is_floating_point() and name not in anew:
            parameter.data = parameter.data.to(dtype).to(parameter.dtype)
    return saved_model


def format_of(model: nn.Module) -> torch.dtype:
    """The number format of a model's weights."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def known_before(selected: Result, report: Result, seed: int = 0) -> str:
    """A sentence where the whole model is better on the selection examples than chance explains, else nothing.

    A permutation test, one-sided at level 0.01: if the examples to select on and to report on were drawn alike, any of
    them (any group of them, where there are groups) could have been in the other set.
    """
    metric, sign = selected.metric, 1 if selected.metric.higher_is_better else -1
    difference = sign * (selected.value - report.value)
    if difference <= 0:
        return ""
    rows, drawn, rng = np.vstack([selected.rows, report.rows]), 0, np.random.default_rng(seed)
    groups = np.concatenate([_groups(selected), selected.n + _groups(report)])  # no group is in both
    _, first, groups = np.unique(groups, return_index=True, return_inverse=True)
    side, remaining_draws = first < selected.n, DRAWS  # (groups,)
    while remaining_draws:
        some = min(remaining_draws, max(1, 4_000_000 // len(rows)))  # (some, rows) numbers at a time
        assignments = rng.permuted(np.tile(side, (some, 1)), axis=1)[:, groups]
        values = metric.resampled(rows, assignments) - metric.resampled(rows, ~assignments)
        drawn, remaining_draws = drawn + int((sign * values >= difference - 1e-12).sum()), remaining_draws - some
    p = (1 + drawn) / (1 + DRAWS)
    if p > SUSPICIOUS:
        return ""
    return (
        f"The model has probably been trained on the examples that the promise was shown on: {metric.name} is "
        f"{selected.value:.3f} on those {selected.n} and {report.value:.3f} on the {report.n} to report on, more than chance "
        f"explains (p = {p:.2g}), so that the promise may not hold on new examples."
    )


def _groups(result: Result) -> np.ndarray:
    """The group of every example, each on its own where there are no groups, as numbers below their number."""
    if result.clusters is None:
        return np.arange(result.n)
    return np.unique(result.clusters, return_inverse=True)[1]


def _judge(task: Task) -> Task:
    """Some of the examples, and what to measure on them: the metric, or where that means to write text, the loss."""
    some = task if task.size <= JUDGED else task.subset(range(JUDGED))
    return some.with_metric("loss") if task.generates else some


def mark(plan: Plan) -> str:
    """A few letters that tell a plan from others, for the names of pieces."""
    return hashlib.sha256(str(plan).encode()).hexdigest()[:8]


def _not_shown(guarantee: Guarantee, of: int | None) -> str:
    """Why there is nothing to promise, and what would help."""
    first, unit = guarantee.steps[0], unit_of(guarantee.metric, guarantee.drop)
    units_text = f"{first.removed} units" if of is None else f"{first.removed} of {of} units"
    lost = f"it measured {first.damage:+.2f} and could be {first.bound:.2f} on {guarantee.n} examples"
    lost += (
        f" (at level {guarantee.alpha:g} / {guarantee.tries}, for so many promises share them)"
        if guarantee.tries > 1
        else ""
    )
    message = f"I cannot show that removing {units_text} loses less than {guarantee.drop:g} {unit}: {lost}"
    larger = f"a larger drop (--max-drop {_rounded_up(first.bound)} is the least that these examples could show of it)"
    if guarantee.needed is None:
        return f"{message}, more than allowed; allow {larger}, or take smaller steps (--step 1)."
    more = f"{in_words(guarantee.needed)} to select on would be needed (--select-data FILE, or --data with more), or {larger}"
    if guarantee.least is not None and guarantee.least >= guarantee.drop:
        more = f"{least_in_words(guarantee.n, guarantee.least, guarantee.metric)}: {more}"
    return f"{message}; {more}."


def _rounded_up(bound: float) -> str:
    """A number above a bound, with two digits: 9.52 -> "9.6"."""
    step = 10.0 ** (math.floor(math.log10(bound)) - 1) if bound > 0 else 0.01
    return f"{(math.floor(bound / step) + 1) * step:.6g}"


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
