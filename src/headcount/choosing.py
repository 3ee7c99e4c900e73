"""`choose`: what to remove, by a count, by a promise about the metric, or by how much faster it gets."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import nn

from . import rules
from .anatomy import Anatomy
from .criteria import score as score_units
from .curves import counts
from .dialects import Dialect
from .errors import BadData, BadPlan, NotShown, Refused
from .evaluation import measure
from .finding import find, unwrap
from .guarantee import Guarantee, in_words, sequence, unit_of
from .plans import Plan, Unit
from .results import Result
from .scores import Scores
from .scores import plan as plan_by
from .speed import bench
from .splits import digests
from .surgery import cut

if TYPE_CHECKING:
    from .runs import Run
    from .tasks import Task

NEEDS_CLASSES = ("accuracy", "f1", "matthews", "pearson", "spearman")
NEEDS_VARIETY = ("f1", "matthews", "pearson", "spearman")  # undefined if the model says the same of every example


@dataclass(frozen=True, eq=False)
class Choice:
    """What to remove and why: the plan, the order it was taken from, and what could be shown about it."""

    how: tuple[str, Any]  # ("max-drop", 1.0), ("remove", "40%"), ("speedup", 1.3) or ("plan", its reason)
    plan: Plan
    of: int  # units of this kind in the model
    units: str  # their kind: "heads", or several with commas
    scores: Scores | None = None
    order: tuple[Unit, ...] = ()
    guarantee: Guarantee | None = None
    left_alone: tuple[tuple[str, str], ...] = ()  # sites that cannot be cut, and the reason
    used: frozenset[bytes] = frozenset()  # the examples that had a part in it, which nothing is to be reported on


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
    speedup: float | None = None,
    plan: Plan | str | None = None,
    score: Task | None = None,
    select: Task | None = None,
    by: str = "taylor",
    units: str = "heads",
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
    """What to remove: so many units, or so many that at most `max_drop` points are lost, or until it is so much faster.

    Units go in the order of their scores on `score`. With `max_drop`, plans along that order (every `step`) are tested on
    the examples of `select`, none of which may be in `score`, from the mildest on, and the last one shown to lose less
    is chosen: a wrong promise comes out with probability `alpha` at most (see `guarantee`); where not even the mildest
    can be shown, `NotShown` says how many examples would be needed. With `speedup`, the mildest plan that ran so much
    faster here, at this batch size and length. A `plan` of your own is taken as it is; with `max_drop` it is tested
    too. The model is as it was afterwards.
    """
    rows = tuple(dialects)
    asked = _one_wish(remove, max_drop, speedup, plan)
    anatomy = find(model, rows)
    used = _kept_apart(score, select)
    if plan is not None:
        given = anatomy.plan(plan)
        rules.refuse(unwrap(model), anatomy, given, {})
        if not given:
            raise BadPlan("The plan removes nothing; name at least one unit.")
        held = _shown(model, select, [(len(given), given)], max_drop, alpha, resamples, seed, run, rows)
        kinds = dict.fromkeys(anatomy[name].kind for name in given.by_site())
        return Choice(asked, given, _total(anatomy, kinds), ",".join(f"{k}s" for k in kinds), guarantee=held, used=used)
    allowed, left_alone = cuttable(model, units, rows)
    found = score_units(model, score, by, units=units.split(","), seed=seed, run=run, dialects=rows)
    names = [only] if isinstance(only, str) else list(only)
    usable = found.only(*names).only(*allowed) if names else found.only(*allowed)
    order = _Order(usable, tuple(usable.order(least)))
    if not order.units:
        raise BadPlan(f"With at least {least} left per site none of the {len(usable)} units can go; keep fewer.")
    common: dict[str, Any] = {"scores": found, "order": order.units, "left_alone": left_alone, "used": used}
    common |= {"of": len(found), "units": ",".join(word.strip() for word in units.split(","))}
    if remove is not None:
        wanted = plan_by(usable, remove, least=least)
        if not wanted:
            raise BadPlan(f"{remove} of {len(usable)} units is none of them; remove at least one.")
        return Choice(asked, wanted, **common)
    steps = [n for n in counts(step, len(usable)) if 0 < n <= len(order.units)]
    steps += [len(order.units)] * (not steps or steps[-1] < len(order.units))
    if speedup is not None:
        length = length or (usual_length(score) if score is not None else 128)
        chosen = _fast_enough(model, order, steps, speedup, batch_size, length, seed, rows)
        return Choice(asked, chosen, **common)
    held = _shown(
        model, select, [(n, order.plan(n)) for n in steps], max_drop, alpha, resamples, seed, run, rows, len(usable)
    )
    assert held is not None
    return Choice(asked, order.plan(held.removed), **common, guarantee=held)


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


def _one_wish(remove: Any, max_drop: Any, speedup: Any, plan: Any) -> tuple[str, Any]:
    """Which way of saying how much was used, and its value."""
    given = {"remove": remove, "max-drop": max_drop, "speedup": speedup}
    wishes = [(kind, value) for kind, value in given.items() if value is not None]
    if plan is not None and all(kind == "max-drop" for kind, _ in wishes):
        return wishes[0] if wishes else ("plan", str(getattr(plan, "why", "")))
    if plan is not None or len(wishes) != 1:
        raise BadPlan(
            "Say how much in one way: remove (how many), max_drop (points that may be lost), speedup, or a plan; "
            f"I got {' and '.join([kind for kind, _ in wishes] + ['plan'] * (plan is not None)) or 'none'}."
        )
    if speedup is not None and not 1 < speedup < 100:
        raise BadPlan(f"A speed-up is a factor above 1, such as 1.3; I got {speedup!r:.40}.")
    return wishes[0]


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


def _shown(
    model: nn.Module,
    select: Task | None,
    plans: list[tuple[int, Plan]],
    max_drop: float | None,
    alpha: float,
    resamples: int | None,
    seed: int,
    run: Run | None,
    rows: tuple[Dialect, ...],
    of: int | None = None,
) -> Guarantee | None:
    """What can be shown about the plans on the selection examples; None if no promise was asked for."""
    if max_drop is None:
        return None
    if select is None:
        raise BadPlan(
            "A largest drop is shown on examples of its own; give select=, a task that had no part in the scores."
        )
    base = measure(model, select, [Plan()], run=run, name="select-whole", dialects=rows)[0]
    defined(Result(select.metric, base), select)

    def measured() -> Iterator[tuple[int, np.ndarray]]:
        for count, plan in plans:
            name = f"select-{count:05d}"
            yield count, measure(model, select, [plan], run=run, name=name, dialects=rows)[0]

    found = sequence(select.metric, base, measured(), max_drop, alpha=alpha, resamples=resamples, seed=seed)
    if found.kept is None:
        raise NotShown(_not_shown(found, of))
    return found


def _not_shown(found: Guarantee, of: int | None) -> str:
    """Why there is nothing to promise, and what would help."""
    first, unit = found.steps[0], unit_of(found.metric, found.drop)
    what = f"{first.removed} units" if of is None else f"{first.removed} of {of} units"
    lost = f"it measured {first.damage:+.2f} and could be {first.bound:.2f} on {found.n} examples"
    seen = f"I cannot show that removing {what} loses less than {found.drop:g} {unit}: {lost}"
    if found.needed is None:
        return f"{seen}, more than allowed; allow a larger drop, or take smaller steps."
    return f"{seen}; {in_words(found.needed)} to select on would be needed, or a larger drop."


def _fast_enough(
    model: nn.Module,
    order: _Order,
    steps: list[int],
    speedup: float,
    batch_size: int,
    length: int,
    seed: int,
    rows: tuple[Dialect, ...],
) -> Plan:
    """The mildest plan of the steps that ran so much faster than the whole model: halving, each try cut for real.

    A try counts as fast enough if three of four repetitions were, so that noise on the way does not decide.
    """
    sizes: dict[str, Any] = {"batch_sizes": (batch_size,), "lengths": (length,), "seed": seed, "seconds": 10.0}

    def ratio(count: int) -> tuple[float, float]:
        smaller = copy.deepcopy(model)
        cut(smaller, order.plan(count), dialects=rows)
        row = bench({"whole": model, "smaller": smaller}, **sizes).rows[-1]
        return row.ratio_low, row.ratio

    low, high = 0, len(steps) - 1
    most = ratio(steps[high])
    if most[0] < speedup:
        raise NotShown(
            f"Removing all {steps[high]} units that may go ran {most[1]:.2f} times as fast here (batch {batch_size}, "
            f"length {length}), not {speedup:g}; ask for less, or try a larger batch, another length or more kinds of units."
        )
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if ratio(steps[middle])[0] >= speedup else (middle + 1, high)
    return order.plan(steps[high])


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
