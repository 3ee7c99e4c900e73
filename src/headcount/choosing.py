"""`choose`: what to remove, by a count, by a budget, by a promise about the metric, or by how much faster it gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from . import budgeting, rules, strategies
from .anatomy import Anatomy
from .budgeting import Budget
from .criteria import score as score_units
from .curves import counts
from .dialects import Dialect
from .errors import BadData, BadPlan, NotShown, Refused
from .evaluation import measure
from .finding import find, unwrap
from .gates import applied
from .gradients import contributions
from .guarantee import Guarantee, in_words, sequence, unit_of
from .plans import Plan, Unit
from .rearranging import rearranged
from .results import Result
from .runs import InMemory
from .scores import Scores, how_many
from .scores import plan as plan_by
from .splits import digests
from .tuning import Tuned, tuned

if TYPE_CHECKING:
    from .runs import Run
    from .tasks import Task

NEEDS_CLASSES = ("accuracy", "f1", "matthews", "pearson", "spearman")
NEEDS_VARIETY = ("f1", "matthews", "pearson", "spearman")  # undefined if the model says the same of every example


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
    tuned: Tuned | None = None
    exchanged: int | None = None  # units that changed places when they were rearranged

    @property
    def scale(self) -> Mapping[str, Tensor]:
        """Numbers for the units that stay, by site, to be folded into the weights; empty where nothing was tuned."""
        return {} if self.tuned is None else self.tuned.scale


class _Order(NamedTuple):
    scores: Scores
    units: tuple[Unit, ...]

    def plan(self, count: int) -> Plan:
        why = f"the {count} of {len(self.scores)} units with the lowest scores by {self.scores.by}"
        return Plan(frozenset(self.units[:count]), why)


def choose(
    model: nn.Module,
    *,
    remove: float | int | str | None = None,
    max_drop: float | None = None,
    flops: float | str | None = None,
    params: float | str | None = None,
    speedup: float | None = None,
    plan: Plan | str | None = None,
    score: Task | None = None,
    select: Task | None = None,
    by: str | None = None,
    units: str = "heads",
    tune: bool = False,
    multiple: int | None = None,
    step: float | int | str = "5%",
    least: int = 0,
    only: str | Iterable[str] = (),
    alpha: float = 0.05,
    batch_size: int = 16,
    length: int | None = None,
    resamples: int | None = None,
    seed: int = 0,
    run: Run | None = None,
    dialects: Iterable[Dialect] = (),
) -> Choice:
    """What to remove: so many units, what a budget cannot keep, or so many that at most `max_drop` points are lost.

    `remove` units go in the order of their scores on `score`. `flops` and `params` are the shares that may be left
    ("50%"), and `speedup` is how many times as fast the model must run here, at this batch size and length: units of
    all kinds are weighed against each other by what is lost without them for what they cost, and the cut model is never
    over the budget. Neurons stay in multiples of `multiple`. With `max_drop`, plans from the mildest on (every `step`,
    of the units or, for several kinds, of the FLOPs) are tested on the examples of `select`, none of which may be in
    `score`, and the last one shown to lose less is chosen: a wrong promise comes out with probability `alpha` at most
    (see `guarantee`); where not even the mildest can be shown, `NotShown` says how many examples would be needed. A
    `plan` of your own is taken as it is; with `max_drop` it is tested too.

    With `tune`, units of a site change places where together they matter less than by themselves, and those that stay
    are scaled so that each site writes what it wrote before, as nearly as they can (Kwon et al. 2022): no training,
    and `Choice.scale` is folded into the weights by the cut. Both look at the examples of `score`. `by` is `fisher`
    for several kinds of units or with `tune`, else `taylor`. The model is as it was afterwards.
    """
    rows = tuple(dialects)
    asked = _one_wish(plan, remove=remove, max_drop=max_drop, flops=flops, params=params, speedup=speedup)
    kinds = [word.strip() for word in units.split(",") if word.strip()]
    notes: Any = run or InMemory()  # gradients are looked at twice where units are rearranged
    work = _Work(model, select, score, max_drop, alpha, resamples, seed, notes, rows, tune)
    if tune and score is None:
        raise BadPlan("Tuning looks at examples; give score=, a task that is not reported on.")
    anatomy = find(model, rows)
    used = _kept_apart(score, select)
    if plan is not None:
        given = anatomy.plan(plan)
        rules.refuse(unwrap(model), anatomy, given, {})
        if not given:
            raise BadPlan("The plan removes nothing; name at least one unit.")
        held, fitted = _shown(work, [given])
        of = dict.fromkeys(anatomy[name].kind for name in given.by_site())
        choice = Choice(asked, given, _total(anatomy, of), ",".join(f"{k}s" for k in of), guarantee=held, used=used)
        return replace(choice, tuned=fitted[given] if held else work.fitted(given))
    allowed, left_alone = cuttable(model, units, rows)
    by = by or ("fisher" if tune or len(kinds) > 1 else "taylor")
    names = [only] if isinstance(only, str) else list(only)
    if by == strategies.EVERY_OTHER:
        return work.finished(replace(_evenly(anatomy, asked, units, names, allowed, left_alone), used=used))
    found = score_units(model, score, by, units=kinds, seed=seed, run=notes, dialects=rows)
    usable = (found.only(*names) if names else found).at(allowed)
    usable = usable if len(kinds) == 1 else usable.normalized(None)  # norms per site hide what a site is worth
    if not len(usable):
        raise Refused(f"No {units} of {' or '.join(names)} can be cut: {left_alone[0][1]}")
    order = _Order(usable, tuple(usable.order(least)))
    if not order.units:
        raise BadPlan(f"With at least {least} left per site none of the {len(usable)} units can go; keep fewer.")
    common: dict[str, Any] = {"scores": found, "order": order.units, "left_alone": left_alone, "used": used}
    common |= {"of": len(found), "units": ",".join(kinds)}
    work = replace(work, scores=usable, of=len(usable))
    if remove is not None:
        wanted = plan_by(usable, remove, least=least)
        if not wanted:
            raise BadPlan(f"{remove} of {len(usable)} units is none of them; remove at least one.")
        return work.finished(Choice(asked, wanted, **common))
    length = length or (usual_length(score) if score is not None else 128)
    settings: dict[str, Any] = {"least": least, "multiple": multiple, "length": length, "batch_size": batch_size}
    settings |= {"seed": seed, "dialects": rows}
    if max_drop is None:
        what = {"flops": "flops", "params": "params", "speedup": "time"}[asked[0]]
        chosen, budget = budgeting.within(budgeting.purse(model, usable, what, **settings), asked[1])
        return work.finished(Choice(asked, chosen, **{**common, "order": ()}, budget=budget))
    steps = [n for n in counts(step, len(usable)) if 0 < n <= len(order.units)]
    steps += [len(order.units)] * (not steps or steps[-1] < len(order.units))
    plans: Iterable[Plan] = (order.plan(count) for count in steps)
    if len(kinds) > 1:
        common["order"] = ()  # of several kinds, plans are not nested
        plans = budgeting.courses(budgeting.purse(model, usable, "flops", **settings), how_many(step, 1000) / 1000)
    held, fitted = _shown(work, plans)
    assert held is not None
    best = list(fitted)[len([one for one in held.steps if one.shown]) - 1]
    return work.finished(Choice(asked, best, **common, guarantee=held), fitted[best])


@dataclass(frozen=True, eq=False)
class _Work:
    """One call of `choose`: what plans are tuned and tested with."""

    model: nn.Module
    select: Task | None
    score: Task | None
    max_drop: float | None
    alpha: float
    resamples: int | None
    seed: int
    run: Run | None
    rows: tuple[Dialect, ...]
    tune: bool
    scores: Scores | None = None
    of: int | None = None
    exchanged: dict[Plan, int] = field(default_factory=dict)

    def arranged(self, plan: Plan) -> Plan:
        """The plan with units of each site exchanged where that loses less; the same without tuning or scores."""
        if not self.tune or self.scores is None:
            return plan
        assert self.score is not None
        anatomy, root = find(self.model, self.rows), unwrap(self.model)
        names = {unit.site for unit in self.scores}
        parts = [part for part in anatomy.sites if part.name in names]
        if not parts:
            return plan
        gathered = contributions(root, anatomy, parts, self.score, run=self.run, name="score")
        better = rearranged(plan, parts, gathered)
        self.exchanged[better] = len(better - plan)
        return better

    def fitted(self, plan: Plan) -> Tuned | None:
        """The numbers for the units that stay; None without tuning."""
        if not self.tune:
            return None
        assert self.score is not None
        return tuned(self.model, plan, self.score, seed=self.seed, dialects=self.rows)

    def finished(self, choice: Choice, fit: Tuned | None = None) -> Choice:
        """The choice, rearranged and tuned where that was asked for and not done yet."""
        if not self.tune:
            return choice
        plan = choice.plan if fit is not None else self.arranged(choice.plan)
        return replace(choice, plan=plan, tuned=fit or self.fitted(plan), exchanged=self.exchanged.get(plan))


def _evenly(
    anatomy: Anatomy,
    asked: tuple[str, Any],
    units: str,
    only: list[str],
    allowed: list[str],
    left_alone: tuple[tuple[str, str], ...],
) -> Choice:
    """Every other layer (Fan et al. 2020): the plan depends on how many go, so that there is no order to test along."""
    kind, remove = asked
    if units.strip() != "layers" or kind != "remove":
        raise BadPlan(f"{strategies.EVERY_OTHER} is for layers and a number of them: say units layers and remove.")
    stacks = [
        s for s in anatomy.stacks if s.name in allowed and (not only or {s.name, s.name.split(".")[0]} & set(only))
    ]
    of = sum(len(stack) for stack in stacks)
    gone = strategies.spaced(anatomy, how_many(remove, of), only=[stack.name for stack in stacks])
    if not gone:
        raise BadPlan(f"{remove} of {of} layers is none of them; remove at least one.")
    return Choice(asked, gone, of, "layers", left_alone=left_alone)


def _kept_apart(score: Task | None, select: Task | None) -> frozenset[bytes]:
    """The examples of both; refused if the guarantee would be shown on what was scored, or on one example twice."""
    scored, selected = (frozenset() if task is None else digests(task) for task in (score, select))
    if scored & selected:
        raise BadData(
            f"{len(scored & selected)} examples to show the guarantee on were also scored on; a promise needs examples "
            "that had no part in the order: split them, or give others."
        )
    if select is not None and len(selected) < select.size:
        raise BadData(
            f"{select.size - len(selected)} of the {select.size} examples to show the guarantee on are there twice; a test "
            "would count them as new ones: give each once."
        )
    return scored | selected


def _total(anatomy: Anatomy, kinds: Iterable[str]) -> int:
    return sum(len(part) for part in (*anatomy.sites, *anatomy.stacks) if part.kind in kinds)


def _one_wish(plan: Any, **wishes: Any) -> tuple[str, Any]:
    """Which way of saying how much was used, and its value."""
    given = [(name.replace("_", "-"), value) for name, value in wishes.items() if value is not None]
    if plan is not None and all(kind == "max-drop" for kind, _ in given):
        return given[0] if given else ("plan", str(getattr(plan, "why", "")))
    if plan is not None or len(given) != 1:
        named = " and ".join([kind for kind, _ in given] + ["plan"] * (plan is not None)) or "none"
        raise BadPlan(
            "Say how much in one way: remove (how many), max_drop (points that may be lost), flops or params (the share that "
            f"may be left), speedup, or a plan; I got {named}."
        )
    kind, value = given[0]
    if kind == "speedup":
        budgeting.speedup_of(value)
    if kind in ("flops", "params"):
        budgeting.share_of(value)
    return kind, value


def cuttable(model: nn.Module, units: str, rows: tuple[Dialect, ...]) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Names of the sites that can be cut, and of those that cannot with the reason; none at all is `Refused`."""
    anatomy, root = find(model, rows), unwrap(model)
    kinds = {word.strip().rstrip("s") for word in units.split(",")}
    good, bad = [], []
    for part in (*anatomy.sites, *anatomy.stacks):
        if part.kind in kinds and len(part):
            try:
                rules.refuse(root, anatomy, Plan(frozenset({part.units[0]})), {})
                good.append(part.name)
            except Refused as reason:
                bad.append((part.name, str(reason)))
    if not good and bad:
        raise Refused(f"No {units} of {type(root).__name__} can be cut: {bad[0][1]}")
    return good, tuple(bad)


def _shown(work: _Work, plans: Iterable[Plan]) -> tuple[Guarantee | None, dict[Plan, Tuned | None]]:
    """What can be shown about the plans on the selection examples, and the plans as tested; None if no promise was asked for."""
    tried: dict[Plan, Tuned | None] = {}
    if work.max_drop is None:
        return None, tried
    model, select, rows = work.model, work.select, work.rows
    if select is None:
        raise BadPlan(
            "A largest drop is shown on examples of its own; give select=, a task that had no part in the scores."
        )
    base = measure(model, select, [Plan()], run=work.run, name="select-whole", dialects=rows)[0]
    defined(Result(select.metric, base), select)

    def measured() -> Iterator[tuple[int, np.ndarray]]:
        anatomy, root = find(model, rows), unwrap(model)
        for plan in plans:
            better = work.arranged(plan)
            tried[better] = work.fitted(better)
            scaled = applied(root, anatomy, tried[better].scale) if tried[better] is not None else nullcontext()
            with scaled:
                name = f"select-{len(tried):03d}-{len(better):05d}"  # plans of several kinds may be of one size
                yield len(better), measure(model, select, [better], run=work.run, name=name, dialects=rows)[0]

    found = sequence(
        select.metric, base, measured(), work.max_drop, alpha=work.alpha, resamples=work.resamples, seed=work.seed
    )
    if found.kept is None:
        raise NotShown(_not_shown(found, work.of))
    return found, tried


def _not_shown(found: Guarantee, of: int | None) -> str:
    """Why there is nothing to promise, and what would help."""
    first, unit = found.steps[0], unit_of(found.metric, found.drop)
    what = f"{first.removed} units" if of is None else f"{first.removed} of {of} units"
    lost = f"it measured {first.damage:+.2f} and could be {first.bound:.2f} on {found.n} examples"
    seen = f"I cannot show that removing {what} loses less than {found.drop:g} {unit}: {lost}"
    if found.needed is None:
        return f"{seen}, more than allowed; allow a larger drop, or take smaller steps."
    return f"{seen}; {in_words(found.needed)} to select on would be needed, or a larger drop."


def usual_length(task: Task) -> int:
    """The median length of the examples: what speed is measured at where nothing else is said."""
    return sorted(task.lengths)[task.size // 2]


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
