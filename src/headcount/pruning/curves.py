"""`curve`: what is left of a model as more and more units go (Michel et al. 2019, section 4); and several curves at once."""

from __future__ import annotations

import copy
import gc
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from .. import notebook
from ..data import splits
from ..documents import curves as documents
from ..documents.results import ResultDocument
from ..documents.scores import Scores, how_many
from ..errors import BadPlan, BadRun
from ..evaluation.evaluator import MEMORY, filled, measure, measure_several, result_of, signature
from ..importance.criteria import NEED_NO_DATA, score
from ..model.architectures import ModuleSpec
from ..model.cutting.surgery import cut
from ..model.gates import masked
from ..model.stand_ins import Fill, data_fill
from ..parsing import by_number, share_in
from ..plans import Plan
from ..progress import track
from ..stats.results import Comparison, Result, compare
from .tuning.compensation import biases_of, of_those_left

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run


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

    def __repr__(self) -> str:
        return f"<Point {self.removed:,} removed, {self.result}: {self.comparison}>"


@dataclass(frozen=True, eq=False)
class Curve:
    """Points from the whole model on, each without more units than the one before; `of` units could go in all.

    `for point in curve`, `len(curve)` and `curve[-1]` are those of its points.
    """

    by: str
    of: int
    points: tuple[Point, ...]
    signature: str = ""

    @property
    def base(self) -> Result:
        """The whole model."""
        return self.points[0].result

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, place: int) -> Point:
        return self.points[place]

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

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        line = notebook.curve(
            [(p.removed, p.result.value) for p in self.points],
            "units removed",
            self.base.metric.name,
            [(self.base.value + p.comparison.low, self.base.value + p.comparison.high) for p in self.points],
        )
        rows = [(f"{p.removed} of {self.of}", f"{p.result.value:.4f}", str(p.comparison)) for p in self.points[1:]]
        table = notebook.table(["removed", self.base.metric.name, "difference to the whole model"], rows)
        return notebook.block(notebook.line(f"{self.by}: {self.base}", bold=True), line, table)


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
    if re.fullmatch(r"\d+", step.strip()):
        return int(step) / of
    return share_in(step) or 0.0


def curve(
    model: nn.Module,
    task: Task,
    scores: Scores | str | Callable[[nn.Module, Plan], Scores] | None = None,
    *,
    by: str | None = None,
    score_data: Task | None = None,
    units: str = "heads",
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
    base_name: str = "whole",
    fill: Fill | str | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> Curve:
    """Close the least important units step by step and measure the model at each.

    `scores` are computed once (as in the paper), on other data than `task`; or a function `(model, plan) -> Scores` that
    scores the model again with the plan so far masked; or the name of a criterion, which `by` says too: then the units are
    scored on `score_data`, or on one half of `task`, and the curve is measured on the other half. Sets are nested: what is
    gone stays gone. `least` units of each site stay; `only` restricts the choice to a type ("encoder", "decoder", "cross").
    `until_drop` stops after the first point that is worse by more than so many points. With `really_cut` a copy of the
    model is cut instead of masked: the numbers are the same, to rounding. `fill` is what stands in for units that are gone,
    taken from the whole model; scores are those that there are, or of the model with units masked to zero.

    Args:
        model: The model; it is as it was afterwards.
        task: The data to measure on: others than the scores come from.
        scores: Importance scores, or a function `(model, plan) -> Scores` for iterative pruning, or a criterion of `score`.
        by: A criterion of `score`, instead of `scores`; "taylor" if neither is there.
        score_data: With a criterion: the data to score on. By default half of `task`, which is then not measured on.
        units: With a criterion: "heads", "neurons", "layers" or "kv-groups".
        step: Units per step: a count, a share such as "10%", or the counts themselves.
        least: Units that every site keeps.
        only: Restricts the units to a type ("encoder", "decoder", "cross").
        until_drop: Stop after the first point that is worse by more points than this.
        really_cut: Cut copies of the model instead of masking.
        test: The paired test, as in `compare`.
        seed: Random seed of the test, and of halving `task`.
        batch_size: Examples per forward pass; by default that of the task.
        memory: Bytes of activations that may be cached.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        name: Name of the results in the run folder.
        base_name: Name of the full model's result in the run folder.
        fill: What stands in for masked units: zero, or an `hc.interventions.Fill`; cut, only zero or the mean.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The result at every point, with its comparison to the full model.

    Examples:
        >>> model = hc.load("my-model")
        >>> task = hc.task("classification", "dev.tsv", tokenizer="my-model", limit=64)
        >>> scores = hc.score(model, by="magnitude")
        >>> [point.removed for point in hc.curve(model, task, scores, step="50%")]
        [0, 24, 48]
        >>> by_taylor = hc.curve(model, task, by="taylor", step="50%")  # scored on one half, measured on the other
    """
    rows = tuple(specs)
    if isinstance(scores, str) or scores is None:
        criterion = _one_criterion(scores, by)
        select, task = _apart(task, score_data, seed) if criterion not in NEED_NO_DATA else (None, task)
        scores = score(model, select, criterion, units=units, seed=seed, run=run, name=f"{name}-score", specs=rows)
    elif by is not None or score_data is not None:
        raise BadPlan("Scores that are there have a criterion and data of their own: leave by and score_data out.")
    again = scores if callable(scores) else None
    current = again(model, Plan()) if again is not None else scores
    assert isinstance(current, Scores)
    names = [only] if isinstance(only, str) else list(only)
    chosen = current.only(*names) if names else current
    reachable, of = len(chosen.order(least)), len(chosen.removing(chosen))
    targets = [n for n in counts(step, len(chosen)) if n <= reachable]
    if targets[-1] < reachable and (isinstance(step, str) or not isinstance(step, Sequence)):
        targets.append(reachable)
    subject = copy.deepcopy(model) if really_cut else model
    everything = Plan(frozenset(chosen.removing(chosen)))
    written = biases_of(model, everything, data_fill(fill), rows) if really_cut else {}
    measured, stands_in = (
        (task, None)
        if really_cut
        else filled(model, task, [everything], fill, run=run, name=f"{name}-fill", specs=rows)
    )
    from_data = data_fill(fill)
    plan, points = Plan(), list[Point]()
    base: Result | None = None
    # the whole model is the same in every curve of a run
    point_names = {target: f"{name}-{target:05d}" if target else base_name for target in targets}
    options: dict[str, Any] = {"batch_size": batch_size, "memory": memory, "run": run, "fill": stands_in, "specs": rows}
    ahead: dict[str, np.ndarray] = {}
    if again is None and not really_cut and until_drop is None:  # no point waits for another one
        nested = accumulate(targets, lambda smaller, target: _grown(smaller, chosen, target, least), initial=plan)
        plans = {point_names[target]: [larger] for target, larger in zip(targets, [*nested][1:], strict=True)}
        ahead = measure_several(subject, measured, plans, **options)
    for target in track(targets, f"curve by {chosen.by}"):
        if again is not None and target:
            current = again(model, plan)
            chosen = current.only(*names) if names else current
        plan = _grown(plan, chosen, target, least)
        closed = plan
        if really_cut:
            closed = Plan()
            if points and len(plan) > points[-1].removed:
                cut(subject, plan - points[-1].plan, fill=of_those_left(model, subject, written, rows), specs=rows)
        values = ahead.get(point_names[target])
        if values is None:
            values = measure(subject, measured, [closed], name=point_names[target], **options)
        how = signature(model, task, fill=from_data.signature if from_data is not None and target else None)
        result = result_of(measured, values[0], f"{chosen.signature}|without:{target}|{how}")
        base = base or result
        point = Point(plan, result, compare(base, result, test=test, seed=seed))
        points.append(point)
        if until_drop is not None and point.comparison.damage > until_drop:
            break
    return Curve(chosen.by, of, tuple(points), chosen.signature)


def _one_criterion(scores: str | None, by: str | None) -> str:
    """The criterion that was named, in one place or the other."""
    if scores is not None and by is not None and scores != by:
        raise BadPlan(f"Which criterion? I got {scores!r:.40} and by={by!r:.40}; name one of them.")
    return scores or by or "taylor"


def _apart(task: Task, score_data: Task | None, seed: int) -> tuple[Task, Task]:
    """Examples to score on and to measure on, which share none: those that there are, or the halves of a task."""
    if score_data is not None:
        uses = splits.share_out(task, {"report": 1.0}, seed, {"score": score_data})
    else:
        uses = splits.share_out(task, {"score": 0.5, "report": 0.5}, seed)
    return uses.tasks["score"], uses.tasks["report"]


def _grown(plan: Plan, scores: Scores, target: int, least: int) -> Plan:
    """The plan with the least important of the units that are still there, until it has `target` of them."""
    gone = scores.gone(plan)
    missing = max(0, target - len(gone))
    units = plan.units | scores.removing(scores.order(least, removed_units=gone)[:missing])
    return Plan(units, f"{len(units)} of {len(scores.removing(scores))} units, least {scores.by} first")


def curve_of(measured_curve: Curve) -> documents.Curve:
    """A curve as curves.json has it: a row per point, without the values of examples."""
    points = [
        documents.CurvePoint(
            removed=point.removed,
            plan=point.plan,
            result=ResultDocument.of(point.result),
            comparison=point.comparison,
        )
        for point in measured_curve.points
    ]
    return documents.Curve(
        by=measured_curve.by, of=measured_curve.of, signature=measured_curve.signature, points=tuple(points)
    )


def checkpoint_of(stage: Stage) -> documents.Checkpoint:
    """A checkpoint with its curves as over.json has it."""
    return documents.Checkpoint(name=stage.name, place=stage.place, curves=tuple(map(curve_of, stage.curves)))


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
    request: CurvesAsked,
    *,
    fixed: Scores | None = None,
    run: Run | None = None,
    prefix: str = "",
    fill: Fill | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> list[Curve]:
    """A curve for each order: scores from `select` (or `fixed`), measured on `report`; "random" gives several.

    What is kept in the run folder has names that begin with `prefix`, the plan of every point among it.
    """
    rows = tuple(specs)
    units = score(model, by="random", units=request.units, specs=rows)  # costs nothing, and shows what there is
    # what is wrong is said before the work
    counts(request.step, len(units.only(*request.only) if request.only else units))
    orders: list[tuple[str, Scores | Callable[[nn.Module, Plan], Scores]]] = []
    for by in request.by:
        if fixed is not None:
            orders.append((fixed.by, fixed))
        elif by == "random":
            seeds = range(request.seed, request.seed + request.random_seeds)
            orders += [(f"random-{n}", score(model, by=by, units=request.units, seed=n, specs=rows)) for n in seeds]
        elif request.recompute:
            orders.append((by, _again(by, select, request, run, f"{prefix}score-{by}", rows)))
        else:
            orders.append((by, _scored(model, by, select, request, run, f"{prefix}score-{by}", rows)))
    for name, order in orders:
        if run is not None and isinstance(order, Scores):
            run.write_json(f"{prefix}scores-{name}", order.to_json())
    curve_list = [
        curve(
            model,
            report,
            order,
            step=request.step,
            least=request.least,
            only=request.only,
            until_drop=request.until_drop,
            really_cut=request.really_cut,
            test=request.test,
            seed=request.seed,
            run=run,
            name=f"{prefix}curve-{name}",
            base_name=f"{prefix}whole",
            fill=fill,
            specs=rows,
        )
        for name, order in track(orders, "curves")
    ]
    for measured_curve in curve_list if run is not None else ():
        for point in measured_curve.points[1:]:
            run.write_json(f"{prefix}plan-{name_of(measured_curve)}-{point.removed:05d}", point.plan.to_json())
    return curve_list


def name_of(measured_curve: Curve) -> str:
    """What tells a curve from the others of a run: its criterion, and the seed of a random one."""
    seed = next((part[5:] for part in measured_curve.signature.split("|") if part.startswith("seed:")), None)
    return measured_curve.by if seed is None else f"{measured_curve.by}-{seed}"


def _scored(
    model: nn.Module, by: str, select: Task | None, request: CurvesAsked, run: Run | None, name: str, rows: Any
) -> Scores:
    return score(model, select, by, units=request.units, seed=request.seed, run=run, name=name, specs=rows)


def _again(
    by: str, select: Task | None, request: CurvesAsked, run: Run | None, name: str, rows: Any
) -> Callable[[nn.Module, Plan], Scores]:
    """Scores of the model as it is with a plan masked; what is gone scores nothing and is not chosen again."""

    def scores(model: nn.Module, plan: Plan) -> Scores:
        with masked(model, plan, specs=rows):
            return _scored(model, by, select, request, run, f"{name}-{len(plan):05d}", rows)

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
    inside.sort(key=lambda path: (by_number(path.name), path.name))
    checkpoints = [path for path in inside if (path / "config.json").is_file()]
    if not checkpoints:
        raise BadRun(
            f"{folder} holds no checkpoint: none of its {len(inside)} folders has a config.json; give the folder around "
            "epoch-01, epoch-02, ... or checkpoint-500, checkpoint-1000, ..."
        )
    return checkpoints, [path.name for path in inside if path not in checkpoints]


def by_place(checkpoints: Sequence[Path], places: str) -> list[Path]:
    """Those of the checkpoints whose places, counted from 1, are listed with commas: "1,2,10"; in their own order."""
    words = [word.strip() for word in places.split(",")]
    paths_by_place = {str(place): path for place, path in enumerate(checkpoints, 1)}
    strange = next((word for word in words if word not in paths_by_place), None)
    if strange is not None:
        raise BadRun(
            f"Checkpoints are chosen by their places from 1 to {len(checkpoints)}, such as 1,2; I got {strange!r:.40}, and "
            f"the last one is {checkpoints[-1].name}."
        )
    return [path for place, path in paths_by_place.items() if place in words]


def over(
    load: Callable[[Path], nn.Module],
    checkpoints: Sequence[Path],
    report: Task,
    select: Task | None,
    request: CurvesAsked,
    *,
    run: Run | None = None,
    fill: Fill | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> list[Stage]:
    """The curves of every checkpoint on the same examples, each by its own scores: Figure 5 of Michel et al. 2019.

    `load` gives the model of a folder; each is let go before the next one is asked for.
    """
    rows, stages = tuple(specs), list[Stage]()
    for place, path in enumerate(checkpoints, 1):
        model = load(path)
        prefix = f"{place:03d}-{re.sub(r'[^A-Za-z0-9_.]+', '-', path.name)[:60]}-"
        stages.append(
            Stage(
                path.name,
                place,
                curves(model, report, select, request, run=run, prefix=prefix, fill=fill, specs=rows),
            )
        )
        del model
        gc.collect()  # modules and their hooks refer to each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return stages
