"""What heads look at, as sections of a report: heads by role, and the relations that heads find. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...formatting import Column, Table, counted, fixed, percent, probability, signed, with_commas
from .. import charts
from ..charts import Chart, Rows, finished, tip, values, where
from ..findings import Part
from ..head_roles import COLOURS, KINDS, NAMES, Cast, Relation, by_role, casts, offset_text, told
from ..map_cells import View
from .measurements import MOST_ROWS, Section

VOITA = "Voita et al. 2019"
MOST_RELATIONS = 24  # of a chart; all are in the table
EARNED = {True: "best head, earns the role", False: "best head, does not"}


def roles(part: Part) -> list[Section]:
    """Which heads have which role, and how sure they are of what they look at."""
    return [_heads(part, cast) for cast in casts(part)]


def _heads(part: Part, cast: Cast) -> Section:
    several = len({head.type for head in cast.heads.values()}) > 1
    sets = f" Looked at: {cast.sets.rstrip('.')}." if cast.sets else ""
    about = (
        "Each point is a head: how large its largest weight is on average, special tokens left out. Heads stand with their main "
        f"role; a head may have more than one.{sets}"
    )
    title = "What heads look at" + (f" ({cast.called})" if cast.called else "")
    drawn = (_confidences(cast),) if any(head.confidence[0] is not None for head in cast.heads.values()) else ()
    tables = (_roles_table(cast), _heads_table(part, cast, several), *_rules_table(cast))
    return Section("roles", title, about, f"{VOITA}; Clark et al. 2019.", drawn, tables, (told(cast),))


def _roles_table(cast: Cast) -> Table:
    rows = []
    for role, count in by_role(cast.mains).items():
        sure = [h.confidence[0] for h in cast.heads.values() if h.main == role and h.confidence[0] is not None]
        also = sum(any(own.role == role for own in h.roles) for h in cast.heads.values())
        mean = sum(sure) / len(sure) if sure else None
        rows.append((NAMES[role], count, count / len(cast.heads), also or None, mean, KINDS[role][1]))
    columns = (
        Column("main role"),
        Column("heads", with_commas, True),
        Column("share", percent, True),
        Column("with this role at all", with_commas, True),
        Column("mean confidence", lambda value: fixed(value, 2), True),
        Column("looks"),
    )
    return Table("roles", f"Main roles of {counted(len(cast.heads), 'head')}.", columns, tuple(rows))


def _heads_table(part: Part, cast: Cast, several: bool) -> Table:
    order = list(KINDS)
    rows = []
    for head in sorted(cast.heads.values(), key=lambda head: order.index(head.main)):
        texts = "; ".join(role.text for role in head.roles) or part.roles.get(head.unit)
        kind = (head.type,) if several else ()
        rows.append((head.unit, *kind, NAMES[head.main], texts or None, head.confidence[0], head.entropy[0]))
    columns = (
        Column("head"),
        *((Column("type"),) if several else ()),
        Column("main role"),
        Column("what it does"),
        Column("confidence", lambda value: fixed(value, 2), True),
        Column("entropy, nats", lambda value: fixed(value, 2), True),
    )
    extent = f"The first {MOST_ROWS:,} of {len(rows):,} heads" if len(rows) > MOST_ROWS else "All heads"
    return Table("heads", f"{extent}, by main role.", columns, tuple(rows[:MOST_ROWS]))


def _rules_table(cast: Cast) -> list[Table]:
    rules = cast.document.data.rules
    if not rules:
        return []
    rows = tuple((str(name), value if isinstance(value, int | float) else str(value)) for name, value in rules.items())
    return [Table("rules", "What earns a role.", (Column("rule"), Column("at", str, True)), rows)]


def _confidences(cast: Cast) -> Chart:
    """The confidence of every head, in a row for each role."""
    import altair as alt

    places: dict[str, int] = {}
    rows = []
    for head in cast.heads.values():
        value, low, high = head.confidence
        if value is not None:
            places[head.main] = places.get(head.main, 0) + 1
            ends = "" if low is None or high is None else f" [{fixed(low, 2)}, {fixed(high, 2)}]"
            text = f"{head.unit}, {NAMES[head.main]}: {fixed(value, 2)}{ends}"
            spot = (places[head.main] * 0.618) % 1  # points that are near each other do not hide each other
            rows.append({"unit": head.unit, "role": NAMES[head.main], "value": value, "spot": spot, "text": text})
    roles = [role for role in KINDS if role in places]
    order = [NAMES[role] for role in roles]
    fills = alt.Scale(domain=order, range=[f"theme:{COLOURS[role]}" for role in roles])
    base_chart = alt.Chart(values(rows[: charts.MOST_MARKS])).encode(
        x=alt.X("value:Q", title="confidence: mean of the largest weight", scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("role:N", title=None, scale=alt.Scale(domain=order), axis=alt.Axis(grid=True, labelLimit=150)),
        yOffset=alt.YOffset("spot:Q", scale=alt.Scale(domain=[-0.3, 1.3])),
        tooltip=tip("text"),
    )
    dot = base_chart.mark_point(filled=True, size=60, opacity=1, stroke="theme:muted", strokeWidth=1, cursor="pointer")
    ring = base_chart.mark_point(filled=False, size=190, strokeWidth=2.5, color="theme:ink", cursor="pointer")
    chart = alt.layer(
        dot.encode(fill=alt.Fill("role:N", scale=fills, legend=None)),
        ring.encode(opacity=where("datum.unit === picked")),
    ).add_params(alt.param(name="picked", value=""))
    return finished("roles", "the confidence of every head, by main role", chart, 30 + 30 * len(roles))


def role_map(name: str, view: View, cells: Rows) -> Chart:
    """A map of roles for a paper. `cells` have site, column, value (the number of its kind, or null) and gone."""
    import altair as alt

    rows = []
    for cell in cells:
        key = None if cell["value"] is None else view.keys[int(cell["value"])]
        kind = {"role": key.name, "mark": key.mark} if key else {"role": NAMES["none"], "mark": ""}
        rows.append({**cell, **kind})
    sites, columns = (list(dict.fromkeys(row[key] for row in rows)) for key in ("site", "column"))
    colours = alt.Scale(domain=[key.name for key in view.keys], range=[f"theme:{key.colour}" for key in view.keys])
    base_chart = alt.Chart(values(rows)).encode(
        x=alt.X("column:N", title="head", sort=columns, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("site:N", title=None, sort=sites),
    )
    legend = alt.Legend(orient="right", symbolType="square", symbolOpacity=1)
    chart = alt.layer(
        base_chart.mark_rect(stroke="theme:surface", strokeWidth=2).encode(
            color=alt.Color("role:N", scale=colours, legend=legend)
        ),
        base_chart.mark_text(fontWeight=600, color="theme:on-role").encode(text="mark:N"),
        base_chart.mark_text(text="×", fontSize=18, color="theme:warn").encode(opacity=where("datum.gone")),
    )
    return finished(name, "the main role of every head; those removed are crossed", chart, max(60, 24 * len(sites)))


# -- relations -------------------------------------------------------------------------------------------------------------


def relations(part: Part) -> list[Section]:
    """How well the best head finds the other end of each relation, beside the best fixed offset."""
    out = []
    for cast in casts(part):
        ranking = sorted(
            (relation for relation in cast.relations if relation.heads),
            key=lambda relation: (relation.best not in relation.earned, -(relation.told[1] or 0.0)),
        )
        if ranking:
            out.append(_relations(cast, ranking))
    return out


def _relations(cast: Cast, ranking: Sequence[Relation]) -> Section:
    types: dict[str, list[Relation]] = {}
    for relation in ranking:
        types.setdefault(relation.type, []).append(relation)
    drawn = tuple(_gains(kind if len(types) > 1 else "", own) for kind, own in types.items())
    earned = sum(bool(relation.earned) for relation in ranking)
    units = {unit for relation in ranking for unit in relation.earned}
    heads = "one head" if len(units) == 1 else f"{len(units)} heads"
    notes = [
        f"{heads} find{'s' if len(units) == 1 else ''} at least one relation; {earned} of {len(ranking)} relations and "
        "directions are found by some head."
        if units
        else "No head finds any relation better than a fixed offset by as much as the role asks for.",
        "The best head of each row was chosen on one half of the sentences; baseline, accuracy and gain are those of the other "
        "half. What is earned, and p, corrected for all heads, relations and directions, come from all sentences."
        if all(relation.fresh for relation in ranking)
        else "Where there were too few sentences to choose the best head on one part and report on another, its accuracy is a "
        "little too good; p is corrected for all heads, relations and directions.",
    ]
    more = max(map(len, types.values())) - MOST_RELATIONS
    if more > 0:
        notes.append(f"Charts show the {MOST_RELATIONS} with the largest gain; all are in the table.")
    about = (
        "For every word with a relation, the word that a head looks at most is the other end of it, or not. The tick is what the "
        "best fixed offset gets right without looking, the point the best head, and the line the interval of its gain."
    )
    title = "Relations that heads find" + (f" ({cast.called})" if cast.called else "")
    source = f"{VOITA}, the table of accuracies; Clark et al. 2019; Holm 1979."
    return Section("relations", title, about, source, drawn, (_relations_table(ranking, len(types) > 1),), tuple(notes))


def _relations_table(ranking: Sequence[Relation], several: bool) -> Table:
    def share(value: float) -> str:
        return f"{fixed(100 * value, 1)}\u00a0%"

    columns = (
        *((Column("type"),) if several else ()),
        Column("relation"),
        Column("direction"),
        Column("pairs", with_commas, True),
        Column("best offset", offset_text, True),
        Column("baseline", share, True),
        Column("best head"),
        Column("accuracy", share, True),
        Column("gain, points", lambda value: signed(100 * value, 1), True),
        *(Column(title, lambda value: signed(100 * value, 1), True) for title in ("low", "high")),
        Column("p (Holm)", probability, True),
        Column("heads that earn it", with_commas, True),
    )
    rows = tuple(
        (
            *((relation.type,) if several else ()),
            *(relation.relation, relation.direction, relation.pairs, relation.offset, relation.beside, relation.best),
            *relation.told,
            len(relation.earned),
        )
        for relation in ranking[:MOST_ROWS]
    )
    return Table(
        "relations", "The best head of each relation and direction beside the best fixed offset.", columns, rows
    )


def _gains(kind: str, ranking: Sequence[Relation]) -> Chart:
    """Baseline, best head and interval for each relation, most gain first."""
    import altair as alt

    rows = [_gain(relation) for relation in ranking[:MOST_RELATIONS]]
    names = [row["name"] for row in rows]
    title = "accuracy" + (f", {kind} attention" if kind else "")
    kinds = [EARNED[won] for won in (True, False) if any(row["kind"] == EARNED[won] for row in rows)]
    ranges = {EARNED[True]: "theme:accent", EARNED[False]: "theme:paper"}
    fill = alt.Fill(
        "kind:N",
        scale=alt.Scale(domain=kinds, range=[ranges[label] for label in kinds]),
        legend=alt.Legend(
            offset=12, symbolType="circle", symbolStrokeColor="theme:accent", symbolStrokeWidth=2, symbolOpacity=1
        ),
    )
    base_chart = alt.Chart(values(rows)).encode(
        y=alt.Y("name:N", title=None, sort=names, axis=alt.Axis(grid=True, labelLimit=220)), tooltip=tip("text")
    )
    x = alt.X("best:Q", title=title, axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    chart = alt.layer(
        base_chart.mark_rule(strokeWidth=1.5, color="theme:accent", opacity=0.6).encode(
            x=alt.X("low:Q", title=title), x2="high:Q"
        ),
        base_chart.mark_tick(color="theme:warn", thickness=3, size=13, opacity=1).encode(
            x=alt.X("baseline:Q", title=title)
        ),
        base_chart.mark_point(
            size=70, opacity=1, fillOpacity=1, stroke="theme:accent", strokeWidth=2, cursor="pointer"
        ).encode(x=x, fill=fill),
    )
    words = "accuracy of the best head for each relation, beside the best fixed offset"
    return finished("relations", words + (f", in {kind} attention" if kind else ""), chart, 40 + 21 * len(rows))


def _gain(relation: Relation) -> dict[str, Any]:
    accuracy, gain, low, high, p = (0.0 if value is None and n < 2 else value for n, value in enumerate(relation.told))
    ends = [min(max(relation.beside + end, 0.0), 1.0) if end is not None else accuracy for end in (low, high)]
    span = "" if low is None or high is None else f" [{signed(100 * low, 1)}, {signed(100 * high, 1)}]"
    beside = "" if relation.offset is None else f" at offset {offset_text(relation.offset)}"
    text = (
        f"{relation.relation}, {relation.direction}: head {relation.best} {percent(accuracy or 0.0)}, "
        f"fixed offset {percent(relation.beside)}{beside}; "
        f"{signed(100 * (gain or 0.0), 1)}{span} points" + ("" if p is None else f", p = {probability(p)}")
    )
    row: Mapping[str, Any] = {"name": f"{relation.relation}, {relation.direction}", "unit": relation.best, "text": text}
    numbers = {"best": accuracy, "baseline": relation.beside, "low": ends[0], "high": ends[1]}
    return {**row, **numbers, "kind": EARNED[relation.best in relation.earned]}
