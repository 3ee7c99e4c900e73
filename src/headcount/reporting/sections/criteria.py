"""Which criterion predicts what is lost without a head: scores beside the ablation of the same units. No torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...formatting import Column, Table, fixed, listed, probability, signed, whole
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
        found = predicted(part, document, effects)
        if len(found) > 1:
            out.append(_section(part, name, document, effects, found))
    return out


def predicted(part: Part, document: Document[Any], effects: list[Effect]) -> list[Predicted]:
    """Every criterion with its correlation, the best first; what measures the damage itself predicts nothing."""
    damage = {effect.unit: effect.comparison.damage for effect in effects}
    out = []
    for name, one in zip(head_map.score_names(part), part.scores, strict=True):
        units = [unit for unit in damage if unit in one.values]
        if one.by in ("ablation", "random") or part.lesson_of(one.document) or len(units) < FEWEST:
            continue
        scored = _scored_on(one.document)
        same = _same(scored, _measured_on(document))
        told = f"{plain(str(scored['data']))}, n = {plain(str(scored.get('n')))}" if scored.get("data") else ""
        found = spearman([one.values[unit] for unit in units], [damage[unit] for unit in units])
        out.append(Predicted(name, told, same, found))
    return sorted(out, key=lambda row: -row.correlation.value)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether these are the same examples: by fingerprint, or by name and number, because a fingerprint knows the metric."""
    named = [(task.get("data"), task.get("n")) for task in (one, other)]
    alike = bool(one.get("fingerprint")) and one.get("fingerprint") == other.get("fingerprint")
    return alike or (None not in named[0] and named[0] == named[1])


def _scored_on(document: Document[Any]) -> dict[str, Any]:
    """The examples that a run scored on, as its question names them."""
    return _task(document, ("score", "select", "data"))


def _measured_on(document: Document[Any]) -> dict[str, Any]:
    return _task(document, ("report", "data"))


def _task(document: Document[Any], roles: tuple[str, ...]) -> dict[str, Any]:
    tasks = document.run.question.get("tasks")
    found: list[Any] = [tasks[role] for role in roles if role in tasks] if isinstance(tasks, dict) else []
    return found[0] if found and isinstance(found[0], dict) else {}


def _section(part: Part, name: str, document: Document[Any], effects: list[Effect], found: list[Predicted]) -> Section:
    noun, first = head_map.noun([effect.unit for effect in effects], part), effects[0].comparison
    columns = (
        Column("criterion"),
        *(Column(title, lambda value: fixed(value, 2), True) for title in ("Spearman", "low", "high")),
        Column("p", probability, True),
        Column(noun, whole, True),
        Column("scored on"),
    )
    rows = tuple(
        (
            one.criterion,
            r.value,
            r.low,
            r.high,
            r.p,
            r.n,
            (one.data or "not known") + (", the same examples" if one.same else ""),
        )
        for one, r in ((one, one.correlation) for one in found)
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
    same = [one.criterion for one in found if one.same]
    notes = []
    if same:
        which = (
            "All criteria were" if len(same) == len(found) else f"{listed(same)} {'was' if len(same) == 1 else 'were'}"
        )
        notes.append(
            f"{which} computed on the very examples on which the damage was measured. That flatters: what is special about "
            "these examples helps both."
        )
    if found[0].correlation.low <= found[1].correlation.value:
        notes.append(
            f"{found[0].criterion} is on top, but its interval holds the next one, {found[1].criterion}: another draw of "
            f"{noun} could turn them around."
        )
    title = "Which criterion predicts the ablation" + ("" if name == "ablation" else name.removeprefix("ablation"))
    chart = intervals("predictions", [_row(one) for one in found], title="rank correlation with the measured damage")
    source = "Spearman 1904; Efron 1979 for the intervals."
    return Section(
        "predictions", title, about, source, (chart,), (Table("predictions", caption, columns, rows),), tuple(notes)
    )


def _row(one: Predicted) -> dict[str, Any]:
    r = one.correlation
    text = f"{one.criterion}: {signed(r.value, 2)} [{signed(r.low, 2)}, {signed(r.high, 2)}], n = {r.n}"
    return {"name": one.criterion, "value": r.value, "low": r.low, "high": r.high, "text": text}


def intervals(name: str, rows: Rows, *, title: str) -> Chart:
    """A point with its interval for each name, against zero. `rows` have name, value, low, high and text."""
    import altair as alt

    names = [row["name"] for row in rows]
    shown = alt.Chart(values(rows)).encode(
        y=alt.Y("name:N", title=None, sort=names, axis=alt.Axis(labelLimit=180)), tooltip=tip("text")
    )
    zero = alt.Chart(values([{"value": 0}])).mark_rule(color="theme:muted", strokeDash=[4, 4])
    x = alt.X("value:Q", title=title, scale=alt.Scale(nice=True, zero=True))
    made = alt.layer(
        zero.encode(x=x),
        shown.mark_rule(strokeWidth=2, color="theme:accent", opacity=0.6).encode(
            x=alt.X("low:Q", title=title), x2="high:Q"
        ),
        shown.mark_point(filled=True, size=70, opacity=1, color="theme:accent").encode(x=x),
    )
    return finished(name, f"{title} of each criterion, with 95 % intervals", made, max(60, 26 * len(rows)))
