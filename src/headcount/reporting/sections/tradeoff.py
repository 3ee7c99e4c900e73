"""What can be had for what, as a section of a report: the front of a model, a point for every size. No torch."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...documents.curves import TradeoffDocument, TradeoffRow
from ...formatting import Column, Table, digits_for, fixed, percent, times, with_commas
from ...stats.results import difference_columns, difference_text, in_points
from .. import charts
from ..findings import Part
from .measurements import Section
from .pruning import called_of


def tradeoffs(part: Part) -> list[Section]:
    """The front of each `tradeoff`."""
    documents = part.of(TradeoffDocument)
    return [_front(document.data, called_of(document, documents)) for document in documents]


def _front(data: TradeoffDocument, called: str) -> Section:
    base = data.base
    value = partial(fixed, digits=digits_for(row.result.high - row.result.low for row in data.rows))
    marks = []
    for row in data.rows:
        text = f"row {row.number}: {percent(row.flops)} of the FLOPs, {base.metric} {value(row.result.value)}; "
        text += difference_text(row.comparison) + (", ruined" if row.ruined else "")
        place = {"row": str(row.number), "flops": row.flops, "kind": "ruined" if row.ruined else "kept", "text": text}
        marks.append({**place, "value": row.result.value, "low": row.result.low, "high": row.result.high})
    chart = charts.front("tradeoff", marks, metric=base.metric, base=base.value, constant=data.constant)
    columns = (
        Column("row", with_commas, True),
        Column("removed", with_commas, True),
        Column("FLOPs left", percent, True),
        Column("parameters left", percent, True),
        Column("times as fast", times, True),
        Column(base.metric, value, True),
        *(Column(title, value, True) for title in ("low", "high")),
        *difference_columns([row.comparison for row in data.rows]),
        Column("weighed by"),
    )
    caption = (
        f"What can be had, of {with_commas(data.of)} {data.units.replace(',', ' and ')}, on {data.n} scoring examples "
        f"({data.measured} plans measured)."
    )
    table = Table("tradeoff", caption, columns, tuple(_cells(row) for row in data.rows))
    about = (
        "Each point is the best of several plans for its share of the FLOPs; those that a smaller model beats are left out. "
        "Vertical lines are 95 % intervals, dashed lines the whole model and a constant answer. Plans were picked by these very "
        "numbers, on scoring examples, so they are a little too good: what `prune --row` reports comes from other examples."
    )
    at = f"batch {data.batch}" + ("" if data.length is None else f", length {data.length}")
    notes = [f"Speeds: {at}, {data.device}{', ' if data.speed_note else ''}{data.speed_note}."]
    if any(row.ruined for row in data.rows):
        notes.append(
            "Orange points are ruined models: nearer to a constant answer than prune would write without being told to."
        )
    return Section("tradeoff", f"What can be had for what{called}", about, "", (chart,), (table,), tuple(notes))


def _cells(row: TradeoffRow) -> tuple[Any, ...]:
    speed = None if row.speed is None else row.speed.value
    result = (row.result.value, row.result.low, row.result.high)
    return (row.number, row.removed, row.flops, row.parameters, speed, *result, *in_points(row.comparison), row.by)
