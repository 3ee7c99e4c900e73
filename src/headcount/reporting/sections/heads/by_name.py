"""Heads by name as a section of a report: scores of every kind with intervals, and how many examples are enough. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....documents.circuits.named_heads import HeadKind, HeadsDocument
from ....formatting import Column, Table, fixed, listed, percent, probability, with_commas
from ...charts import Chart, finished, tip, values
from ...findings import Part
from ...run_reader import Document
from ..measurements import MOST_ROWS, Section

DRAWN = 60  # heads of a kind in the chart, the highest scores first
SHOWN = 12  # heads of a kind in the table, beside those that are named


def named_heads(part: Part) -> list[Section]:
    """A section for every run of `heads`."""
    return [_section(document) for document in part.of(HeadsDocument)]


def _section(document: Document[HeadsDocument]) -> Section:
    data = document.data
    about = (
        "Each point is a head: the mean of its scores on prompts made for this kind, with the 95 % interval; full points are "
        "named. The tick is the mean score from which on a head is named, if it is also above chance (one-sided t-test, Holm "
        "over heads, 5 %)."
    )
    notes = [data.sentence, *data.notes, *(f"{kind.kind}: {note}" for kind in data.kinds for note in kind.notes)]
    sources = dict.fromkeys(source for kind in data.kinds for source in kind.source.split("; "))
    drawn = (_chart(data.kinds),) if data.kinds else ()
    tables = (_kinds_table(data.kinds), _heads_table(data.kinds), _steps_table(data.kinds))
    return Section("by-name", "Heads by name", about, "; ".join(sources), drawn, tables, tuple(notes))


def _kinds_table(kinds: Sequence[HeadKind]) -> Table:
    columns = (
        Column("kind"),
        Column("heads", with_commas, True),
        Column("which"),
        Column("score"),
        Column("named from", lambda value: fixed(value, 2), True),
        Column("chance", lambda value: fixed(value, 3), True),
        Column("examples", with_commas, True),
        Column("enough of them", with_commas, True),
    )
    rows = tuple(
        (
            *(
                kind.kind,
                len(kind.named),
                listed([head.unit for head in kind.named], 8) if kind.named else "none",
                kind.score,
            ),
            *(kind.at_least, kind.chance, kind.examples, kind.enough),
        )
        for kind in kinds
    )
    return Table("kinds", "What was looked for, and how many heads of it there are.", columns, rows)


def _heads_table(kinds: Sequence[HeadKind]) -> Table:
    columns = (
        Column("kind"),
        Column("head"),
        *(Column(title, lambda value: fixed(value, 3), True) for title in ("score", "low", "high")),
        Column("p (Holm)", probability, True),
        Column("named"),
    )
    rows = [
        (kind.kind, head.unit, head.mean, head.low, head.high, head.p_holm, "yes" if head.named else "no")
        for kind in kinds
        for place, head in enumerate(kind.ranking)
        if head.named or place < SHOWN
    ]
    caption = f"The heads that are named and, of each kind, the {SHOWN} with the highest scores; all are in heads.json."
    return Table("heads", caption, columns, tuple(rows[:MOST_ROWS]))


def _steps_table(kinds: Sequence[HeadKind]) -> Table:
    columns = (
        Column("kind"),
        Column("examples", with_commas, True),
        Column("half-width", lambda value: fixed(value, 3), True),
        Column("same heads", percent, True),
        Column("overlap", percent, True),
    )
    rows = tuple(
        (kind.kind, step.examples, step.half_width, step.same, step.overlap) for kind in kinds for step in kind.steps
    )
    caption = (
        "What fewer examples would have shown, on draws with replacement: half the width of the interval of the named heads, the "
        "share of draws that name exactly the same heads, and how far the names overlap."
    )
    return Table("examples", caption, columns, rows)


def _chart(kinds: Sequence[HeadKind]) -> Chart:
    """Scores of the heads of every kind, a row for each."""
    import altair as alt

    names = [kind.kind for kind in kinds]
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        for place, head in enumerate(kind.ranking[:DRAWN]):
            span = f"[{fixed(head.low, 3)}, {fixed(head.high, 3)}]"
            text = f"{head.unit}, {kind.kind}: {fixed(head.mean, 3)} {span}, Holm p {probability(head.p_holm)}"
            spot = (place * 0.618) % 1  # points that are near each other do not hide each other
            row = {"kind": kind.kind, "unit": head.unit, "score": head.mean, "low": head.low, "high": head.high}
            rows.append({**row, "spot": spot, "named": head.named, "text": text})
    y = alt.Y("kind:N", title=None, scale=alt.Scale(domain=names), axis=alt.Axis(grid=True, labelLimit=150))
    x = alt.X("score:Q", title="score: mean over examples", scale=alt.Scale(domain=[0, 1]))
    spots = alt.YOffset("spot:Q", scale=alt.Scale(domain=[-0.3, 1.3]))
    base_chart = alt.Chart(values(rows)).encode(y=y, yOffset=spots, tooltip=tip("text"))
    levels = alt.Chart(values([{"kind": kind.kind, "at": kind.at_least} for kind in kinds])).encode(y=y)
    chart = alt.layer(
        base_chart.mark_rule(strokeWidth=1.2, color="theme:accent", opacity=0.5).encode(x=alt.X("low:Q"), x2="high:Q"),
        base_chart.mark_point(
            size=46, filled=True, opacity=1, stroke="theme:accent", strokeWidth=1.2, cursor="pointer"
        ).encode(x=x, fill=alt.condition("datum.named", alt.value("theme:accent"), alt.value("theme:surface"))),
        levels.mark_tick(color="theme:warn", thickness=3, size=26, opacity=1).encode(x=alt.X("at:Q")),
    )
    return finished("by-name", "the scores of heads, by kind", chart, 30 + 40 * len(names))
