"""`curve`: what is left of a model as more and more units go, in the order of some scores (Michel et al. 2019, section 4)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from .dialects import Dialect
from .errors import BadPlan
from .evaluation import MEMORY, measure, result_of, signature
from .plans import Plan
from .results import Comparison, Result, compare
from .scores import Scores, how_many
from .surgery import cut

if TYPE_CHECKING:
    from .runs import Run
    from .tasks import Task


@dataclass(frozen=True, eq=False)
class Point:
    """One point of a curve: what is gone, what the model is worth without it, and the difference to the whole model."""

    plan: Plan
    result: Result
    comparison: Comparison

    @property
    def removed(self) -> int:
        """How many units are gone."""
        return len(self.plan)


@dataclass(frozen=True, eq=False)
class Curve:
    """Points from the whole model on, each without more units than the one before; `of` units could go in all."""

    by: str
    of: int
    points: tuple[Point, ...]
    signature: str = ""

    @property
    def base(self) -> Result:
        """The whole model."""
        return self.points[0].result

    def safe(self, drop: float) -> Point:
        """The last point before the metric has first fallen by more than `drop` points: a description, not a guarantee."""
        best = self.points[0]
        for point in self.points:
            if point.comparison.damage > drop:
                return best
            best = point
        return best

    def __str__(self) -> str:
        lines = [f"{self.by}: {self.base}"]
        lines += [f"{p.removed:>5} of {self.of}  {p.result.value:.4f}  {p.comparison}" for p in self.points[1:]]
        return "\n".join(lines)


def counts(step: float | int | str | Sequence[int], of: int) -> list[int]:
    """Numbers of units gone at each point: 0, then steps of a count or a share up to all, or the counts as given."""
    if isinstance(step, Sequence) and not isinstance(step, str):
        wanted = sorted({0, *(how_many(n, of) for n in step)})
        return wanted
    share = _share(step, of)
    if not 0 < share <= 1:
        raise BadPlan(f'A step is a count of units (6) or a share of them ("10%"); I got {step!r:.40} of {of} units.')
    steps = round(1 / share)
    # multiples of the share, not repeated steps of a rounded one: ten steps of 10 % end at all of them. Of a billion units
    # the product is off by some ten millionths: what is nearer than that to a whole number is that number
    return sorted({min(of, int(round(share * n * of, 6))) for n in range(steps + 1)} | {of})


def _share(step: float | int | str, of: int) -> float:
    """The part of all units that one step takes; 0 for what is not a step."""
    if not isinstance(step, str):
        return step if isinstance(step, float) else step / of
    text = step.strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        return 0.0
    return number / 100 if text.endswith("%") else number if "." in text else number / of


def curve(
    model: nn.Module,
    task: Task,
    scores: Scores | Callable[[nn.Module, Plan], Scores],
    *,
    step: float | int | str | Sequence[int] = "10%",
    least: int = 0,
    only: str | Iterable[str] = (),
    until_drop: float | None = None,
    really_cut: bool = False,
    test: str = "randomization",
    seed: int = 12345,
    batch_size: int | None = None,
    memory: int = MEMORY,
    run: Run | None = None,
    name: str = "curve",
    whole: str = "whole",
    dialects: Iterable[Dialect] = (),
) -> Curve:
    """Close the least important units step by step and measure the model at each.

    `scores` are computed once (as in the paper), on other data than `task`; or a function `(model, plan) -> Scores` that
    scores the model again with the plan so far closed. Sets are nested: what is gone stays gone. `least` units of each
    site stay; `only` restricts the choice to a type ("encoder", "decoder", "cross"). `until_drop` stops after the first
    point that is worse by more than so many points. With `really_cut` a copy of the model is cut instead of closed: the
    numbers are the same, to rounding.
    """
    rows = tuple(dialects)
    again = scores if callable(scores) else None
    current = again(model, Plan()) if again is not None else scores
    assert isinstance(current, Scores)
    names = [only] if isinstance(only, str) else list(only)
    chosen = current.only(*names) if names else current
    reachable = len(chosen.order(least))
    targets = [n for n in counts(step, len(chosen)) if n <= reachable]
    if targets[-1] < reachable and (isinstance(step, str) or not isinstance(step, Sequence)):
        targets.append(reachable)
    subject = copy.deepcopy(model) if really_cut else model
    plan, points = Plan(), list[Point]()
    base: Result | None = None
    for target in targets:
        if again is not None and target:
            current = again(model, plan)
            chosen = current.only(*names) if names else current
        plan = _grown(plan, chosen, target, least)
        here = f"{name}-{target:05d}" if target else whole  # the whole model is the same in every curve of a run
        if really_cut:
            if points and len(plan) > points[-1].removed:
                cut(subject, plan - points[-1].plan, dialects=rows)
            closed = Plan()
        else:
            closed = plan
        values = measure(
            subject, task, [closed], batch_size=batch_size, memory=memory, run=run, name=here, dialects=rows
        )
        result = result_of(task, values[0], f"{chosen.signature}|without:{target}|{signature(model, task)}")
        base = base or result
        point = Point(plan, result, compare(base, result, test=test, seed=seed))
        points.append(point)
        if until_drop is not None and point.comparison.damage > until_drop:
            break
    return Curve(chosen.by, len(chosen), tuple(points), chosen.signature)


def _grown(plan: Plan, scores: Scores, target: int, least: int) -> Plan:
    """The plan with the least important of the units that are still there, until it has `target` of them."""
    missing = max(0, target - len(plan))
    units = plan.units | set(scores.order(least, gone=plan)[:missing])
    return Plan(frozenset(units), f"{len(units)} of {len(scores)} units, least {scores.by} first")


def to_json(made: Curve) -> dict[str, Any]:
    """A curve as JSON: a row per point, without the values of examples."""
    return {
        "by": made.by,
        "of": made.of,
        "signature": made.signature,
        "points": [
            {
                "removed": point.removed,
                "plan": point.plan.to_json(),
                "result": point.result.to_json(),
                "comparison": point.comparison.to_json(),
            }
            for point in made.points
        ],
    }
