"""What training came to, as sections of a report: learned gates, how they closed, checkpoints, the training itself. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...documents.curves import Curve, CurvesDocument, OverDocument
from ...documents.training import TrainingDocument
from ...formatting import (
    Column,
    Table,
    counted,
    digits_for,
    fixed,
    percent,
    probability,
    result_text,
    three,
    with_commas,
)
from ...stats.results import difference_columns, difference_text, in_points
from .. import charts, head_map
from ..charts import Chart
from ..findings import Lesson, Part, report_set
from ..run_labels import Place, place_names
from ..run_reader import Document, checked
from ..summary import lesson_groups, noun_of_curve
from . import training_charts
from .measurements import MICHEL, MOST_ROWS, Section, filled

SOURCES = {
    "l0": "Voita et al. 2019; Louizos, Welling and Kingma 2018",
    "subset": "Li, Cotterell and Sachan 2021",
    "movement": "Sanh, Wolf and Rush 2020",
    "layerdrop": "Fan, Grave and Joulin 2020",
}


# -- learned gates ---------------------------------------------------------------------------------------------------------


def learned(part: Part) -> list[Section]:
    """Every set of runs that can be compared: the same units of the model, measured on the same examples."""
    out = []
    for place, lessons in part.places.items():
        sets = lessons[0].document.data.sets
        gated, chosen = any(lesson.gated for lesson in lessons), any(not lesson.gated for lesson in lessons)
        about = (
            f"Gates that learn which {place.units} to keep" if gated else f"Which {place.units} to keep, chosen first"
        )
        about += ", beside runs that chose them first" if gated and chosen else ""
        about += f": the {'higher' if lessons[0].comparison.higher_is_better else 'lower'}, the better. {how_to_read(lessons)}"
        about += (
            " Thin lines are curves without any training; they, and what was not recovered, may leave the chart."
            if _curves(part, lessons)
            else ""
        )
        about += f" {sets[:1].upper()}{sets[1:]}." if sets else ""
        methods = dict.fromkeys(lesson.document.data.method for lesson in lessons)
        source = "; ".join(SOURCES[name] for name in methods if name in SOURCES)
        table = Table(
            "learned",
            f"{place.metric} by {place.units} kept, n = {place.n}; whole model {result_text(lessons[0].full)}.",
            _columns(lessons),
            tuple(_row(group) for group in _ordered(lessons)),
        )
        notes = (
            "Low and high are a 95 % interval where there is one seed, and the lowest and highest of several seeds. p compares "
            "a single run with the whole model and is not corrected for the number of runs.",
        )
        chart = learned_chart(part, lessons)
        title = f"{'Learned gates' if gated else 'Chosen first'}: {part.place_names[place]}"
        out.append(Section("learned", title, about, source and f"{source}.", (chart,), (table,), notes))
    return out


def how_to_read(lessons: Sequence[Lesson]) -> str:
    """What points, lines and axes of the chart mean."""
    if _several(lessons):
        points = "Lines go through the mean of the seeds, and open marks are the seeds."
    else:
        points = "A point is one run, with its 95 % interval; lines join runs of the same training."
    return f"{points} The dashed line is the whole model. The axis of {lessons[0].units} is stretched at small numbers."


def _several(lessons: Sequence[Lesson]) -> bool:
    """Whether there are several seeds of anything: then they show the spread, and intervals would hide it."""
    return any(len(group) > 1 for group in lesson_groups(lessons))


def learned_chart(part: Part, lessons: Sequence[Lesson]) -> Chart:
    """Learned runs and the curves of the same units on the same examples, in one chart."""
    runs, means = [], []
    several = _several(lessons)
    for group in _ordered(lessons):
        alone = len(group) == 1 and not several
        for lesson in group:
            text = f"{lesson.label}, {lesson.kept} kept, seed {lesson.seed}: {result_text(lesson.result)}; {_difference(lesson)}"
            place = {"line": lesson.label, "kept": lesson.kept, "alone": alone, "text": text}
            span = {"value": lesson.result.value, "low": lesson.result.low, "high": lesson.result.high}
            runs.append(
                {**place, **span, "removed": lesson.of - lesson.kept, "track": head_map.track_name(lesson, part)}
            )
        run_values = [lesson.result.value for lesson in group]
        mean = sum(run_values) / len(run_values)
        if len(group) > 1:
            seeds = f"mean of {len(group)} seeds, {three(min(run_values))} to {three(max(run_values))}"
            text = f"{group[0].label}, {group[0].kept} kept: {three(mean)}, {seeds}"
        means.append({"line": group[0].label, "kept": group[0].kept, "value": mean, "alone": alone, "text": text})
    first = lessons[0]
    return training_charts.learned(
        "learned",
        runs,
        means,
        _curves(part, lessons),
        metric=first.full.metric,
        noun=first.units,
        of=first.of,
        base=first.full.value,
    )


def _curves(part: Part, lessons: Sequence[Lesson]) -> list[dict[str, Any]]:
    """The points of all curves that belong into the chart of these runs."""
    return [row for document in part.of(CurvesDocument) for row in _orders(document, part, lessons)]


def _orders(document: Document[CurvesDocument], part: Part, lessons: Sequence[Lesson]) -> list[dict[str, Any]]:
    """The points of a run's curves, if they are about the same units and examples; random orders as their mean."""
    first = lessons[0]
    if report_set(document) != report_set(first.document):
        return []
    removed_units = {unit for lesson in lessons for unit in lesson.gone}
    curves = [curve for curve in document.data.curves if curve.of == first.of and _fits(curve, first, removed_units)]
    several = len(part.of(CurvesDocument)) > 1
    called = f" ({document.run.folder.name})" if several else ""
    rows = []
    for curve in curves:
        for point in curve.points if curve.by != "random" else ():
            kept_count = curve.of - point.removed
            text = f"{curve.by}{called}, {kept_count} kept: {result_text(point.result)}"
            rows.append({"line": f"{curve.by}{called}", "kept": kept_count, "value": point.result.value, "text": text})
    drawn = [curve for curve in curves if curve.by == "random"]
    name = f"random, mean of {len(drawn)}{called}" if len(drawn) > 1 else f"random{called}"
    for points in zip(*(curve.points for curve in drawn), strict=False):
        kept_count = drawn[0].of - points[0].removed
        mean = sum(point.result.value for point in points) / len(points)
        text = f"{name}, {kept_count} kept: {three(mean)}"
        rows.append({"line": name, "kept": kept_count, "value": mean, "text": text})
    return rows


def _fits(curve: Curve, lesson: Lesson, removed_units: set[str]) -> bool:
    """Whether a curve removes units of the same kind, and the same ones where it comes to its end."""
    last = curve.points[-1]
    same = last.result.metric == lesson.full.metric and noun_of_curve(curve) == lesson.units
    return same and (last.removed < curve.of or removed_units <= set(last.units))


def _ordered(lessons: Sequence[Lesson]) -> list[list[Lesson]]:
    """Runs that differ in their seeds alone, by method and then from few units kept to many."""
    places = {label: n for n, label in enumerate(dict.fromkeys(lesson.label for lesson in lessons))}
    return sorted(lesson_groups(lessons), key=lambda group: (places[group[0].label], group[0].kept))


def _difference(lesson: Lesson) -> str:
    return f"{difference_text(lesson.comparison)}, p = {probability(lesson.comparison.p)}"


def _columns(lessons: Sequence[Lesson]) -> tuple[Column, ...]:
    digits = digits_for(lesson.result.high - lesson.result.low for lesson in lessons)
    return (
        Column("method"),
        Column("kept", with_commas, True),
        Column("share", percent, True),
        Column("seeds", with_commas, True),
        Column(lessons[0].full.metric, partial(fixed, digits=digits), True),
        *(Column(title, partial(fixed, digits=digits), True) for title in ("low", "high")),
        *difference_columns([lesson.comparison for lesson in lessons]),
        Column("p", probability, True),
    )


def _row(group: Sequence[Lesson]) -> tuple[Any, ...]:
    """A run, or the mean, lowest and highest of several that differ in their seeds."""
    first = group[0]
    labels = (first.label, first.kept, first.kept / first.of, len(group))
    if len(group) == 1:
        span = (first.result.value, first.result.low, first.result.high)
        return (*labels, *span, *in_points(first.comparison), first.comparison.p)
    run_values = [lesson.result.value for lesson in group]
    changes = [lesson.comparison.difference * lesson.comparison.points for lesson in group]
    return (*labels, *_spread(run_values), *_spread(changes), None)


def _spread(numbers: Sequence[float]) -> tuple[float, float, float]:
    return sum(numbers) / len(numbers), min(numbers), max(numbers)


def gates(part: Part) -> list[Section]:
    """How the gates of every run closed while they learned, and what each run came to."""
    out = []
    groups: dict[Place, list[Lesson]] = {}
    for lesson in part.lessons:  # on whichever examples
        groups.setdefault(lesson.place._replace(examples="", n=0), []).append(lesson)
    names = place_names(dict.fromkeys(groups, ""))
    for place, lessons in groups.items():
        rows = []
        for lesson in lessons:
            rows += _history(lesson, charts.MOST_MARKS // len(lessons))
        noun, of = place.units, place.of
        chart = (training_charts.closing("gates", rows, noun=noun, of=of),) if rows else ()
        digits = digits_for(lesson.result.high - lesson.result.low for lesson in lessons)
        columns = (
            *(
                Column("method"),
                Column("kept", with_commas, True),
                Column("seed", str, True),
                Column("examples", with_commas, True),
            ),
            Column(place.metric, partial(fixed, digits=digits), True),
            *difference_columns([lesson.comparison for lesson in lessons]),
            *(Column("p", probability, True), Column("steps", with_commas, True), Column("penalty", three, True)),
            *(Column("open before the end", partial(fixed, digits=0), True), Column("run")),
        )
        cells = [_run_row(lesson) for group in _ordered(lessons) for lesson in group]
        table = Table("runs", f"Every run on {of} {noun}.", columns, tuple(cells[:MOST_ROWS]))
        about = (
            f"How many of the {of} {noun} are expected to be open at each step, a line per run. "
            "“Open before the end” is how many gates were open before the number was made exact: far from what is kept, and "
            "the choice had not settled; “penalty” is the price of an open gate at the end."
            if rows
            else "What each run came to."
        )
        title = f"{'How the gates closed' if rows else 'Every run'}: {names[place]}"
        out.append(Section("gates", title, about, "", chart, (table,)))
    return out


def _history(lesson: Lesson, most: int) -> list[dict[str, Any]]:
    noted = [(row.step or 0, row.open) for row in lesson.document.data.history if row.open is not None]
    noted = _thinned(sorted(noted), most)
    text = f"{lesson.label}, {lesson.kept} kept, seed {lesson.seed}"
    labels = {"line": lesson.label, "run": lesson.document.run.folder.name, "text": text}
    return [{**labels, "step": step, "open": still} for step, still in noted]


def _run_row(lesson: Lesson) -> tuple[Any, ...]:
    data = lesson.document.data
    steps = (data.trained or {}).get("steps")
    cells = (
        lesson.label,
        lesson.kept,
        lesson.seed,
        lesson.place.n,
        lesson.result.value,
        *in_points(lesson.comparison),
        lesson.comparison.p,
    )
    return (*cells, steps, data.penalty, data.open, lesson.document.run.folder.name)


def _thinned(rows: list[Any], most: int) -> list[Any]:
    """Every so manieth row where there are too many, and the last one."""
    every = max(1, math.ceil(len(rows) / max(2, most)))
    return [*rows[::every], *(rows[-1:] if every > 1 and (len(rows) - 1) % every else [])]


# -- checkpoints -----------------------------------------------------------------------------------------------------------


def over(part: Part) -> list[Section]:
    """The curve of every checkpoint, a section per order."""
    out = []
    for document in part.of(OverDocument):
        curves = [curve for stage in document.data.checkpoints for curve in stage.curves]
        orders = list(dict.fromkeys(curve.by for curve in curves))
        called = f" ({document.run.folder.name})" if len(part.of(OverDocument)) > 1 else ""
        for by in orders:
            only = len(orders) == 1
            out.append(checked(document, partial(_over, by, only, called if only else f", by {by}{called}")))
    return out


def _over(by: str, only: bool, called: str, data: OverDocument) -> Section:
    stages = [(stage.name, [curve for curve in stage.curves if curve.by == by]) for stage in data.checkpoints]
    first = stages[0][1][0]
    noun, metric = noun_of_curve(first), first.whole.metric
    rows = [row for name, curves in stages for row in _stage(name, curves)]
    shares = sorted({row["share"] for row in rows})
    places = {(row["checkpoint"], row["share"]): row["relative"] for row in rows}
    bases = {row["checkpoint"]: row["value"] for row in rows if not row["share"]}
    digits = digits_for(point.result.high - point.result.low for point in first.points)
    short = partial(fixed, digits=digits)
    shares_table = Table(
        "over-relative",
        f"{metric} relative to the whole model of each checkpoint, by the share of {noun} removed.",
        (Column("checkpoint"), Column(metric, short, True), *(Column(percent(s), _share, True) for s in shares if s)),
        tuple((name, base, *(places.get((name, s)) for s in shares if s)) for name, base in bases.items()),
    )
    columns = (
        *(Column("checkpoint"), Column("removed", with_commas, True), Column("share", percent, True)),
        *(Column(title, short, True) for title in (metric, "low", "high")),
        *(Column("of the whole model", _share, True), Column("p", probability, True)),
    )
    keys = ("checkpoint", "removed", "share", "value", "low", "high", "relative", "p")
    long = Table(
        "over",
        f"What is left of each checkpoint as units go, {data.sets}.",
        columns,
        tuple(tuple(row[key] for key in keys) for row in rows[:MOST_ROWS]),
    )
    about = (
        f"The pruning curve of {counted(len(stages), 'checkpoint')} of one training, the later the stronger; each is scored on "
        f"its own, and all are measured on the same examples. Where a later line stays up for longer, {noun} have become "
        "unimportant by then. "
    )
    ways = [True, False] if any(row["relative"] is not None for row in rows) else [False]
    if by == "random" and not only:
        ways = ways[:1]  # there to be compared with; the numbers are in the table
    about += {2: "Above, each line is relative to its own whole model; below, as measured.", 1: ""}[len(ways)]
    drawn = tuple(training_charts.over("over", rows, metric=metric, noun=noun, relative=relative) for relative in ways)
    title = f"When {noun} became unimportant{called}"
    spread = "Low and high are a 95 % interval" + (
        ", and for random orders the lowest and highest." if by == "random" else "."
    )
    notes = (f"{spread} p compares each point with the whole model of its checkpoint.", *filled(data.fill))
    return Section("over", title, about, f"{MICHEL}, Figure 5.", drawn, (shares_table, long), notes)


def _stage(name: str, curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """The points of a checkpoint's curve; of several random orders, the mean, lowest and highest."""
    rows = []
    base = curves[0].whole.value
    for points in zip(*(curve.points for curve in curves), strict=False):
        result, removed = points[0].result, points[0].removed
        value, low, high = result.value, result.low, result.high
        value_text, p = result_text(result), points[0].comparison.p if removed else None
        if len(curves) > 1:
            value, low, high = _spread([point.result.value for point in points])
            value_text, p = f"{three(value)} [{three(low)}, {three(high)}]", None
        relative = value / base if base > 0 else None
        share = removed / curves[0].of
        text = f"{name}, {removed} removed: {value_text}" + (
            "" if relative is None else f", {_share(relative)} of its whole model"
        )
        place = {"checkpoint": name, "removed": removed, "share": share, "relative": relative, "p": p, "text": text}
        rows.append({**place, "value": value, "low": low, "high": high})
    return rows


def _share(value: float) -> str:
    return f"{fixed(100 * value, 1)}\u00a0%"


# -- training --------------------------------------------------------------------------------------------------------------


def training(part: Part) -> list[Section]:
    """How a training went, and what it came to."""
    documents = part.of(TrainingDocument)
    names = [f" ({document.run.folder.name})" if len(documents) > 1 else "" for document in documents]
    return [_training(name, document.data) for document, name in zip(documents, names, strict=True)]


def _training(called: str, data: TrainingDocument) -> Section:
    ends = [(name, result) for name, result in (("before", data.before), ("after", data.after)) if result is not None]
    metric = ends[-1][1].metric if ends else "metric"
    losses = [(row.step, row.loss) for row in data.history]
    devs = [(row.epoch, row.dev) for row in data.history]
    drawn = []
    for field, pairs, of, title in (
        ("loss", losses, "step", "training loss"),
        ("dev", devs, "epoch", f"{metric} on held-out examples"),
    ):
        rows = [
            {"place": place, "value": value, "text": f"{of} {place:g}: {three(value)}"}
            for place, value in pairs
            if place is not None and value is not None
        ]
        if len(rows) > 1:
            rows = _thinned(rows, 400)
            drawn.append(training_charts.course(f"training-{field}", rows, field=field, title=title, of=of))
    tables = []
    if ends:
        comparison = data.comparison
        digits = digits_for(result.high - result.low for _, result in ends)
        columns = (
            Column(""),
            *(Column(title, partial(fixed, digits=digits), True) for title in (metric, "low", "high")),
            Column("examples", with_commas, True),
            *(difference_columns([comparison]) if comparison else ()),
            *((Column("p", probability, True),) if comparison else ()),
        )
        cells = []
        for name, result in ends:
            labels = (f"{name} training", result.value, result.low, result.high, result.n)
            compared = (
                (*in_points(comparison), comparison.p)
                if comparison and name == "after"
                else (None,) * 4
                if comparison
                else ()
            )
            cells.append((*labels, *compared))
        tables.append(Table("training", f"The model before and after training, {data.sets}.", columns, tuple(cells)))
    recipe = tuple((key, str(value)) for key, value in (data.recipe or {}).items())
    if recipe:
        tables.append(Table("recipe", "How it was trained.", (Column("setting"), Column("value")), recipe))
    about = "The loss at the steps that were noted, and the metric on held-out examples after each epoch."
    return Section("training", f"Training{called}", about, "", tuple(drawn), tuple(tables))
