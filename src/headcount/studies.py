"""Experiments made of several verbs, as functions over a run folder; commands are thin around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from .criteria import score
from .curves import Curve, counts, curve
from .dialects import Dialect
from .gates import closed
from .plans import Plan
from .scores import Scores

if TYPE_CHECKING:
    from .runs import Run
    from .tasks import Task


class CurvesAsked(NamedTuple):
    """Which curves, and how; see `curve`."""

    by: tuple[str, ...] = ("taylor",)
    step: str = "10%"
    least: int = 0
    only: tuple[str, ...] = ()
    until_drop: float | None = None
    recompute: bool = False
    really_cut: bool = False
    random_seeds: int = 3
    units: str = "heads"
    test: str = "randomization"
    seed: int = 0


def curves(
    model: nn.Module,
    report: Task,
    select: Task | None,
    asked: CurvesAsked,
    *,
    fixed: Scores | None = None,
    run: Run | None = None,
    dialects: Iterable[Dialect] = (),
) -> list[Curve]:
    """A curve for each order: scores from `select` (or `fixed`), measured on `report`; "random" gives several."""
    rows = tuple(dialects)
    units = score(model, by="random", units=asked.units, dialects=rows)  # costs nothing, and shows what there is
    counts(asked.step, len(units.only(*asked.only) if asked.only else units))  # what is wrong is said before the work
    orders: list[tuple[str, Scores | Callable[[nn.Module, Plan], Scores]]] = []
    for by in asked.by:
        if fixed is not None:
            orders.append((fixed.by, fixed))
        elif by == "random":
            seeds = range(asked.seed, asked.seed + asked.random_seeds)
            orders += [(f"random-{n}", score(model, by=by, units=asked.units, seed=n, dialects=rows)) for n in seeds]
        elif asked.recompute:
            orders.append((by, _again(by, select, asked, run, rows)))
        else:
            orders.append((by, _scored(model, by, select, asked, run, f"score-{by}", rows)))
    for name, order in orders:
        if run is not None and isinstance(order, Scores):
            run.write_json(f"scores-{name}", order.to_json())
    return [
        curve(
            model,
            report,
            order,
            step=asked.step,
            least=asked.least,
            only=asked.only,
            until_drop=asked.until_drop,
            really_cut=asked.really_cut,
            test=asked.test,
            seed=asked.seed,
            run=run,
            name=f"curve-{name}",
            dialects=rows,
        )
        for name, order in orders
    ]


def name_of(made: Curve) -> str:
    """What tells a curve from the others of a run: its criterion, and the seed of a random one."""
    seed = next((part[5:] for part in made.signature.split("|") if part.startswith("seed:")), None)
    return made.by if seed is None else f"{made.by}-{seed}"


def _scored(
    model: nn.Module, by: str, select: Task | None, asked: CurvesAsked, run: Run | None, name: str, rows: Any
) -> Scores:
    return score(model, select, by, units=asked.units, seed=asked.seed, run=run, name=name, dialects=rows)


def _again(
    by: str, select: Task | None, asked: CurvesAsked, run: Run | None, rows: Any
) -> Callable[[nn.Module, Plan], Scores]:
    """Scores of the model as it is with a plan closed; what is gone scores nothing and is not chosen again."""

    def scores(model: nn.Module, plan: Plan) -> Scores:
        with closed(model, plan, dialects=rows):
            return _scored(model, by, select, asked, run, f"score-{by}-{len(plan):05d}", rows)

    return scores
