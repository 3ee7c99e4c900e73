"""Experiments made of several verbs, as functions over a run folder; commands are thin around them."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from .criteria import score
from .curves import Curve, counts, curve
from .dialects import Dialect
from .errors import BadRun
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
    prefix: str = "",
    dialects: Iterable[Dialect] = (),
) -> list[Curve]:
    """A curve for each order: scores from `select` (or `fixed`), measured on `report`; "random" gives several.

    What is kept in the run folder has names that begin with `prefix`, the plan of every point among it.
    """
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
            orders.append((by, _again(by, select, asked, run, f"{prefix}score-{by}", rows)))
        else:
            orders.append((by, _scored(model, by, select, asked, run, f"{prefix}score-{by}", rows)))
    for name, order in orders:
        if run is not None and isinstance(order, Scores):
            run.write_json(f"{prefix}scores-{name}", order.to_json())
    made = [
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
            name=f"{prefix}curve-{name}",
            whole=f"{prefix}whole",
            dialects=rows,
        )
        for name, order in orders
    ]
    for one in made if run is not None else ():
        for point in one.points[1:]:
            run.write_json(f"{prefix}plan-{name_of(one)}-{point.removed:05d}", point.plan.to_json())
    return made


def name_of(made: Curve) -> str:
    """What tells a curve from the others of a run: its criterion, and the seed of a random one."""
    seed = next((part[5:] for part in made.signature.split("|") if part.startswith("seed:")), None)
    return made.by if seed is None else f"{made.by}-{seed}"


def _scored(
    model: nn.Module, by: str, select: Task | None, asked: CurvesAsked, run: Run | None, name: str, rows: Any
) -> Scores:
    return score(model, select, by, units=asked.units, seed=asked.seed, run=run, name=name, dialects=rows)


def _again(
    by: str, select: Task | None, asked: CurvesAsked, run: Run | None, name: str, rows: Any
) -> Callable[[nn.Module, Plan], Scores]:
    """Scores of the model as it is with a plan closed; what is gone scores nothing and is not chosen again."""

    def scores(model: nn.Module, plan: Plan) -> Scores:
        with closed(model, plan, dialects=rows):
            return _scored(model, by, select, asked, run, f"{name}-{len(plan):05d}", rows)

    return scores


# -- over a training -------------------------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """A checkpoint of a training: its name, its place among them from 1 on, and its curves."""

    name: str
    place: int
    curves: list[Curve]


def checkpoints_in(folder: Path) -> tuple[list[Path], list[str]]:
    """The model folders inside a folder, by the numbers in their names, and the names of the other folders in it."""
    if not folder.is_dir():
        raise BadRun(f"{folder} is not a folder; give the one that holds the checkpoints, such as epoch-01, epoch-02.")
    inside = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    inside.sort(key=lambda path: (_numbered(path.name), path.name))
    found = [path for path in inside if (path / "config.json").is_file()]
    if not found:
        raise BadRun(
            f"{folder} holds no checkpoint: none of its {len(inside)} folders has a config.json; give the folder around "
            "epoch-01, epoch-02, ... or checkpoint-500, checkpoint-1000, ..."
        )
    return found, [path.name for path in inside if path not in found]


def by_place(found: Sequence[Path], places: str) -> list[Path]:
    """Those of the checkpoints whose places, counted from 1, are listed with commas: "1,2,10"; in their own order."""
    words = [word.strip() for word in places.split(",")]
    known = {str(place): path for place, path in enumerate(found, 1)}
    strange = next((word for word in words if word not in known), None)
    if strange is not None:
        raise BadRun(
            f"Checkpoints are chosen by their places from 1 to {len(found)}, such as 1,2; I got {strange!r:.40}, and "
            f"the last one is {found[-1].name}."
        )
    return [path for place, path in known.items() if place in words]


def over(
    load: Callable[[Path], nn.Module],
    checkpoints: Sequence[Path],
    report: Task,
    select: Task | None,
    asked: CurvesAsked,
    *,
    run: Run | None = None,
    dialects: Iterable[Dialect] = (),
) -> list[Stage]:
    """The curves of every checkpoint on the same examples, each by its own scores: Figure 5 of Michel et al. 2019.

    `load` gives the model of a folder; each is let go before the next one is asked for.
    """
    rows, stages = tuple(dialects), list[Stage]()
    for place, path in enumerate(checkpoints, 1):
        model = load(path)
        prefix = f"{place:03d}-{re.sub(r'[^A-Za-z0-9_.]+', '-', path.name)[:60]}-"
        stages.append(
            Stage(path.name, place, curves(model, report, select, asked, run=run, prefix=prefix, dialects=rows))
        )
        del model
        gc.collect()  # modules and their hooks refer to each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return stages


def _numbered(name: str) -> list[tuple[int, str]]:
    """A sort key under which checkpoint-1000 follows checkpoint-500, and epoch-10 follows epoch-09."""
    parts = [part.lstrip("0") if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
    return [
        (len(part), part) if place % 2 else (0, part) for place, part in enumerate(parts)
    ]  # text, digits, text, ...
