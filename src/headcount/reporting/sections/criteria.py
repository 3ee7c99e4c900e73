"""Which criterion predicts what is lost without a head: scores beside the ablation of the same units. No torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...formatting import Column, Table, fixed, listed, probability, signed, with_commas
from ...stats.paired_tests import Correlation, spearman
from ...stats.results import unit_of
from .. import head_map
from ..charts import Chart, Rows, finished, tip, values
from ..findings import Effect, Part
from ..run_reader import Document, plain
from .measurements import Section

FEWEST = 4  # units for a correlation that says anything


class Predicted(NamedTuple):
    """How well a criterion ranks units as the ablation does."""

    criterion: str
    data: str
    same: bool  # scored and measured on the same examples
    correlation: Correlation


def predictions(part: Part) -> list[Section]:
    """The rank correlation of every criterion with the measured damage, where there are several."""
    out = []
    for name, (document, effects) in zip(head_map.ablation_names(part), part.effects, strict=True):
        predictors = predicted(part, document, effects)
        if len(predictors) > 1:
            out.append(_section(part, name, document, effects, predictors))
    return out


def predicted(part: Part, document: Document[Any], effects: list[Effect]) -> list[Predicted]:
    """Every criterion with its correlation, the best first; what measures the damage itself predicts nothing."""
    damage = {effect.unit: effect.comparison.damage for effect in effects}
    out = []
    for name, scores in zip(head_map.score_names(part), part.scores, strict=True):
        units = [unit for unit in damage if unit in scores.values]
        if scores.by in ("ablation", "random") or part.lesson_of(scores.document) or len(units) < FEWEST:
            continue
        scored = _scored_on(scores.document)
        same = _same(scored, _measured_on(document))
        data_text = f"{plain(str(scored['data']))}, n = {plain(str(scored.get('n')))}" if scored.get("data") else ""
        correlation = spearman([scores.values[unit] for unit in units], [damage[unit] for unit in units])
        out.append(Predicted(name, data_text, same, correlation))
    return sorted(out, key=lambda row: -row.correlation.value)


def _same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether these are the same examples: by fingerprint, or by name and number, because a fingerprint knows the metric."""
    named = [(task.get("data"), task.get("n")) for task in (first, second)]
    alike = bool(first.get("fingerprint")) and first.get("fingerprint") == second.get("fingerprint")
    return alike or (None not in named[0] and named[0] == named[1])


def _scored_on(document: Document[Any]) -> dict[str, Any]:
    """The examples that a run scored on, as its question names them."""
    return _task(document, ("score", "select", "data"))


def _measured_on(document: Document[Any]) -> dict[str, Any]:
    return _task(document, ("report", "data"))


def _task(document: Document[Any], roles: tuple[str, ...]) -> dict[str, Any]:
    tasks = document.run.question.get("tasks")
    matches: list[Any] = [tasks[role] for role in roles if role in tasks] if isinstance(tasks, dict) else []
    return matches[0] if matches and isinstance(matches[0], dict) else {}


def _section(
    part: Part, name: str, document: Document[Any], effects: list[Effect], predictors: list[Predicted]
) -> Section:
    noun, first = head_map.noun([effect.unit for effect in effects], part), effects[0].comparison
    columns = (
        Column("criterion"),
        *(Column(title, lambda value: fixed(value, 2), True) for title in ("Spearman", "low", "high")),
        Column("p", probability, True),
        Column(noun, with_commas, True),
        Column("scored on"),
    )
    rows = tuple(
        (
            predictor.criterion,
            r.value,
            r.low,
            r.high,
            r.p,
            r.n,
            (predictor.data or "not known") + (", the same examples" if predictor.same else ""),
        )
        for predictor, r in ((predictor, predictor.correlation) for predictor in predictors)
    )
    lost = f"the points of {first.metric} lost" if unit_of(first) == "points" else f"what is lost in {first.metric}"
    on = _measured_on(document).get("data")
    where = f" on {plain(str(on))}" if on else ""
    caption = f"Rank correlation of each criterion with {lost} without each of the {noun}{where}."
    about = (
        f"A score is an estimate of what is lost without one of the {noun}; the ablation measures it. The nearer to 1, the more "
        f"alike the two orders are; 0 is no relation. Intervals (95\u00a0%) come from drawing {noun} with replacement. The "
        "criterion “ablation” measures damage itself, and is left out. Scores are taken as they were published: taylor and "
        "relevance, for instance, are divided by the norm of their layer."
    )
    same = [predictor.criterion for predictor in predictors if predictor.same]
    notes = []
    if same:
        subject = (
            "All criteria were"
            if len(same) == len(predictors)
            else f"{listed(same)} {'was' if len(same) == 1 else 'were'}"
        )
        notes.append(
            f"{subject} computed on the very examples on which the damage was measured. That flatters: what is special about "
            "these examples helps both."
        )
    if predictors[0].correlation.low <= predictors[1].correlation.value:
        notes.append(
            f"{predictors[0].criterion} is on top, but its interval holds the next one, {predictors[1].criterion}: another draw "
            f"of {noun} could turn them around."
        )
    title = "Which criterion predicts the ablation" + ("" if name == "ablation" else name.removeprefix("ablation"))
    chart = intervals(
        "predictions", [_row(predictor) for predictor in predictors], title="rank correlation with the measured damage"
    )
    source = "Spearman 1904; Efron 1979 for the intervals."
    return Section(
        "predictions", title, about, source, (chart,), (Table("predictions", caption, columns, rows),), tuple(notes)
    )


def _row(predictor: Predicted) -> dict[str, Any]:
    r = predictor.correlation
    text = f"{predictor.criterion}: {signed(r.value, 2)} [{signed(r.low, 2)}, {signed(r.high, 2)}], n = {r.n}"
    return {"name": predictor.criterion, "value": r.value, "low": r.low, "high": r.high, "text": text}


def intervals(name: str, rows: Rows, *, title: str) -> Chart:
    """A point with its interval for each name, against zero. `rows` have name, value, low, high and text."""
    import altair as alt

    names = [row["name"] for row in rows]
    base_chart = alt.Chart(values(rows)).encode(
        y=alt.Y("name:N", title=None, sort=names, axis=alt.Axis(labelLimit=180)), tooltip=tip("text")
    )
    zero = alt.Chart(values([{"value": 0}])).mark_rule(color="theme:muted", strokeDash=[4, 4])
    x = alt.X("value:Q", title=title, scale=alt.Scale(nice=True, zero=True))
    chart = alt.layer(
        zero.encode(x=x),
        base_chart.mark_rule(strokeWidth=2, color="theme:accent", opacity=0.6).encode(
            x=alt.X("low:Q", title=title), x2="high:Q"
        ),
        base_chart.mark_point(filled=True, size=70, opacity=1, color="theme:accent").encode(x=x),
    )
    return finished(name, f"{title} of each criterion, with 95 % intervals", chart, max(60, 26 * len(rows)))
