"""A circuit as sections of a report: faithfulness over sizes, the drawing, and the scores of units and edges. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ....documents.discovery.circuit import CircuitDocument, CircuitPoint, EdgeCircuit
from ....errors import BadPlan
from ....formatting import Column, Table, fixed, percent, three, with_commas
from ... import charts
from ...charts import Chart
from ...findings import Part
from ...pictures.circuit_graph import Picture, draw_circuit
from ...run_reader import checked
from ..measurements import MOST_ROWS, Section
from .sentences import sentence

METHODS = (
    "Wang et al. 2023; Mueller et al. 2025 (CPR, CMD); Syed et al. 2023, Hanna et al. 2024 (attribution patching)."
)
UNITS, EDGES = "heads and MLPs", "edges"
RANKED = {
    "signed": "what helps first",
    "absolute": "whatever has an effect first",
    "edges": "by the strongest edge of each",
}


def circuits(part: Part) -> list[Section]:
    """A section for every run of `circuit`."""
    return [checked(document, _section) for document in part.of(CircuitDocument)]


def _section(data: CircuitDocument) -> Section:
    about = (
        f"Heads and MLPs are ranked ({RANKED.get(data.ranked, data.ranked)}); circuits of the first ones are kept, and all "
        "others are as on the corrupted prompts. Faithfulness is how much is left of the difference that the whole model "
        f"makes: 0 is nothing kept, 1 is as the model does. {sentence(data.sets)}"
    )
    picture = _picture(data)
    return Section(
        "circuit",
        f"The circuit: {data.size} of {len(data.units):,} heads and MLPs",
        about,
        METHODS,
        (_chart(data),),
        (_sizes(data), _units(data), *([_edges(data)] if data.edges else [])),
        tuple(_notes(data)),
        pictures=() if picture is None else (picture,),
    )


def _notes(data: CircuitDocument) -> list[str]:
    notes = []
    if data.points:
        notes.append(
            f"The circuit has the fewest units with a faithfulness of {data.reach:g} where it was found; on the others it has "
            f"{_at(data.points, data.size).faithfulness}."
        )
    for what, curve in ((UNITS, data), (EDGES, data.edge_circuit)):
        if curve is not None:
            random = "" if curve.random_cpr is None else f" (random circuits {curve.random_cpr:.2f})"
            notes.append(
                f"Circuits of {what}: CPR, the area under the curve, is {curve.cpr}{random}; CMD, the area between it "
                f"and 1, is {curve.cmd}."
            )
    if data.cpr.low is None:
        notes.append(
            "These examples do not show that the model differs from nothing, so shares of that difference say nothing."
        )
    notes += [f"Scores of units: {data.check.text}."] if data.check else []
    notes += [f"Scores of edges: {data.edge_check.text}."] if data.edge_check else []
    notes += [f"No edges: {data.no_edges}"] if data.no_edges else []
    return notes


def _at(points: Sequence[CircuitPoint], size: int) -> CircuitPoint:
    """The point of a circuit of this size, or the one next to it."""
    return min(points, key=lambda point: abs(point.kept - size))


def _curves(data: CircuitDocument) -> list[tuple[str, CircuitDocument | EdgeCircuit]]:
    return [(UNITS, data), *([(EDGES, data.edge_circuit)] if data.edge_circuit else [])]


def _chart(data: CircuitDocument) -> Chart:
    """Faithfulness over the share that is kept, with the circuits that were chosen, and random ones."""
    import altair as alt

    rows, orders = list[dict[str, Any]](), list[str]()
    for what, curve in _curves(data):
        for point in curve.points:
            own = point.faithfulness
            low, high = own.span
            text = f"{point.kept:,} {what} ({point.share:.1%}): {own}"
            about = {"share": point.share, "chosen": point.kept == curve.size}
            rows.append({"order": what, "value": own.value, "low": low, "high": high, "text": text, **about})
            if point.random is not None:
                words = f"random circuits of {point.kept:,} {what}: {point.random:.2f}"
                span = dict.fromkeys(("value", "low", "high"), point.random)
                rows.append({"order": f"random {what}", "share": point.share, "chosen": False, **span, "text": words})
        orders += [what, f"random {what}"] if any(point.random is not None for point in curve.points) else [what]
    colours = {
        UNITS: "theme:accent",
        EDGES: "theme:accent2",
        f"random {UNITS}": "theme:bar",
        f"random {EDGES}": "theme:muted",
    }
    scale = alt.Scale(domain=orders, range=[colours[order] for order in orders])
    dashes = alt.Scale(domain=orders, range=[[5, 4] if order.startswith("random") else [1, 0] for order in orders])
    y = alt.Y("value:Q", title="faithfulness", scale=alt.Scale(zero=True))
    drawn = alt.Chart(charts.values(rows)).encode(
        x=alt.X(
            "share:Q",
            title="share kept (spread as square roots)",
            scale=alt.Scale(type="sqrt", domain=[0, 1], nice=False, padding=6),
            axis=alt.Axis(format="%", values=[0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1]),
        ),
        color=alt.Color(
            "order:N", scale=scale, legend=alt.Legend(symbolType="stroke", symbolStrokeWidth=3, symbolOpacity=1)
        ),
    )
    whole = alt.Chart(charts.values([{"value": 1.0}])).mark_rule(strokeDash=[4, 4], color="theme:muted").encode(y=y)
    chart = alt.layer(
        whole,
        drawn.mark_rule(strokeWidth=1.5, opacity=0.55).encode(y=alt.Y("low:Q", title="faithfulness"), y2="high:Q"),
        drawn.mark_line(strokeWidth=2.5).encode(y=y, strokeDash=alt.StrokeDash("order:N", scale=dashes, legend=None)),
        drawn.mark_point(size=46, filled=True, opacity=1).encode(y=y, tooltip=charts.tip("text")),
        drawn.mark_point(size=210, filled=False, strokeWidth=2).encode(y=y, opacity=charts.where("datum.chosen")),
    )
    kept = " and of ".join(what for what, _ in _curves(data))
    words = (
        f"Faithfulness of circuits ({data.clean.metric}) over the share of {kept} kept; rings are the circuits chosen"
    )
    return charts.finished("circuit", words, chart, 300)


def _picture(data: CircuitDocument) -> Picture | None:
    """The circuit as a graph; none where it has no edges, or units whose names do not say in which layer they are."""
    graph = data.graph()
    if not graph["edges"]:
        return None
    about = {unit.unit: f"score {three(unit.score)}, rank {unit.rank}" for unit in data.units}
    shown = f"the {len(graph['edges'])} strongest edges" if len(graph["edges"]) < len(data.edges) else "its edges"
    try:
        return draw_circuit(**graph, title=f"{data.size} heads and MLPs, {shown}", about=about)
    except BadPlan:
        return None


def _sizes(data: CircuitDocument) -> Table:
    two = partial(fixed, digits=2)
    columns = (
        Column("kept"),
        Column("number", with_commas, True),
        Column("share", lambda share: f"{100 * share:.1f}\u00a0%", True),
        Column(data.clean.metric, three, True),
        Column("faithfulness", two, True),
        *(Column(title, two, True) for title in ("low", "high")),
        Column("where found", two, True),
        Column("random", two, True),
    )
    rows = tuple(
        (what, point.kept, point.share, point.value, *point.faithfulness, point.found, point.random)
        for what, curve in _curves(data)
        for point in curve.points
    )
    return Table("circuit-sizes", "Faithfulness of circuits by their size.", columns, rows)


def _units(data: CircuitDocument) -> Table:
    ordered = sorted(data.units, key=lambda unit: unit.rank)[:MOST_ROWS]
    columns = (
        Column("rank", with_commas, True),
        Column("unit"),
        Column(f"drop of {data.clean.metric}, estimated", three, True),
        Column("standard error", three, True),
        Column("in the circuit", lambda kept: "yes" if kept else ""),
    )
    rows = tuple((unit.rank, unit.unit, unit.score, unit.stderr, unit.kept) for unit in ordered)
    return Table("circuit-units", f"Heads and MLPs by {data.by}, the first ones first.", columns, rows)


def _edges(data: CircuitDocument) -> Table:
    columns = (
        Column("writes"),
        Column("reads"),
        Column(f"drop of {data.clean.metric}, estimated", three, True),
        Column("standard error", three, True),
        Column("exact", three, True),
        Column("in the circuit of edges", lambda kept: "yes" if kept else ""),
    )
    rows = tuple(
        (edge.writer, edge.reader, edge.score, edge.stderr, edge.exact, edge.kept) for edge in data.edges[:MOST_ROWS]
    )
    share = percent(len(data.edges) / data.of_edges) if data.of_edges else "some"
    return Table("circuit-edges", f"The strongest edges, {share} of {data.of_edges:,}.", columns, rows)
