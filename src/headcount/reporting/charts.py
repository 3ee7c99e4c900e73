"""Charts of what was found, as Vega-Lite made with Altair: one source for the page, for SVG and for PNG. No torch.

Data never reach an expression: fields have fixed names, and texts are values. Colours and type are in `theme`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .theme import ORDERS, Spec, config

Rows = Sequence[Mapping[str, Any]]

MOST_MARKS = 2_000  # beyond it, single units are not drawn
# of colour under numbers, in percent: none on which no ink can be read
STEPS = (0, 8, 15, 22, 29, 36, 68, 76, 84, 92, 100)


class Chart(NamedTuple):
    """A chart: the name of its files, what it shows in a sentence for those who cannot see it, and its Vega-Lite."""

    name: str
    alt: str
    spec: Spec


# -- the charts -----------------------------------------------------------------------------------------------------------


def curve(
    name: str, lines: Rows, band: Rows, *, metric: str, noun: str, of: int, base: float, chosen: int | None
) -> Chart:
    """What is left as more units go: a line per order with intervals, random orders as a band, the chosen point.

    `lines` have order, removed, value, low, high, text; `band` has removed, low, mean, high.
    """
    import altair as alt

    orders = list(dict.fromkeys(row["order"] for row in lines))
    x = alt.X("removed:Q", title=f"{noun} removed, of {of}", scale=alt.Scale(domain=[0, of], nice=False, padding=6))
    y = alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False))
    legend = alt.Legend() if len(orders) > 1 else None
    colours = alt.Scale(domain=orders, range=[f"theme:{ORDERS[n % len(ORDERS)]}" for n in range(len(orders))])
    colour = alt.Color("order:N", scale=colours, legend=legend)
    drawn = alt.Chart(values(lines)).encode(x=x, color=colour)
    layers: list[Any] = []
    if band:
        random = alt.Chart(values(band)).encode(x=x)
        layers.append(
            random.mark_area(color="theme:band", opacity=0.35).encode(y=alt.Y("low:Q", title=metric), y2="high:Q")
        )
        layers.append(random.mark_line(color="theme:band", strokeWidth=1.5).encode(y=alt.Y("mean:Q", title=metric)))
    full_model = alt.Chart(values([{"value": base}])).mark_rule(strokeDash=[4, 4], color="theme:muted")
    layers.append(full_model.encode(y=y))
    layers.append(drawn.mark_rule(strokeWidth=1.5, opacity=0.55).encode(y=alt.Y("low:Q", title=metric), y2="high:Q"))
    layers.append(drawn.mark_line(strokeWidth=2.5).encode(y=y))
    layers.append(drawn.mark_point(size=46, filled=True, opacity=1).encode(y=y, tooltip=tip("text")))
    if chosen is not None:
        place = alt.Chart(values([{"removed": chosen, "text": f"chosen: {chosen}"}])).encode(x=x)
        side = {"align": "left", "dx": 6} if chosen < of * 0.7 else {"align": "right", "dx": -6}
        layers.append(place.mark_rule(color="theme:warn", strokeWidth=1.5))
        layers.append(
            place.mark_text(color="theme:warn", baseline="top", y=2, fontWeight=600, **side).encode(text="text:N")
        )
    layers.append(
        drawn.mark_point(size=190, strokeWidth=2.5, filled=False, opacity=1, color="theme:ink").encode(
            y=y, color=alt.value("theme:ink"), opacity=where("datum.removed === step && datum.order === track")
        )
    )
    chart = alt.layer(*layers).add_params(alt.param(name="step", value=-1), alt.param(name="track", value=""))
    words = f"{metric} against the number of {noun} removed" + (", with the range of random orders" if band else "")
    return finished(name, words, chart, 340)


def effects(name: str, rows: Rows, *, metric: str, noun: str, base: float, bins: int = 28) -> Chart:
    """How good the model is without each unit in turn (Figure 1 of Michel et al.): a brick per unit.

    `rows` have unit, value, kind (worse, better or chance) and text.
    """
    import altair as alt

    width = _bin_width([row["value"] for row in rows], base, bins)
    heights: dict[int, int] = {}
    bricks = []
    for row in sorted(rows, key=lambda row: (row["kind"] == "chance", row["value"])):
        place = round((row["value"] - base) / width)  # the whole model is the middle of a bin
        heights[place] = heights.get(place, 0) + 1
        span = {"x0": base + (place - 0.5) * width, "x1": base + (place + 0.5) * width}
        bricks.append({**row, **span, "y0": heights[place] - 1, "y1": heights[place]})
    kinds = {"worse": "theme:warn", "better": "theme:accent2", "chance": "theme:bar"}
    gap = {"stroke": "theme:surface", "strokeWidth": 1}
    hand = "pointer" if len(rows) <= MOST_MARKS else "default"
    if len(rows) > MOST_MARKS:
        bricks = [
            {
                "x0": base + (n - 0.5) * width,
                "x1": base + (n + 0.5) * width,
                "y0": 0,
                "y1": count,
                "kind": "chance",
                "unit": "",
                "text": f"{count} {noun}",
            }
            for n, count in sorted(heights.items())
        ]
    base_chart = alt.Chart(values(bricks)).encode(
        x=alt.X("x0:Q", title=f"{metric} without one of the {noun}", scale=alt.Scale(zero=False, nice=True)),
        x2="x1:Q",
        y=alt.Y(
            "y0:Q",
            title=f"number of {noun}",
            axis=alt.Axis(tickMinStep=1, format="d"),
            scale=alt.Scale(domain=[0, 1.14 * max(heights.values(), default=1)], nice=False),  # room for the words
        ),
        y2="y1:Q",
        tooltip=tip("text"),
    )
    colour = alt.Color("kind:N", scale=alt.Scale(domain=list(kinds), range=list(kinds.values())), legend=None)
    full_model = alt.Chart(values([{"x0": base, "text": "whole model"}])).encode(x="x0:Q")
    side = {"align": "right", "dx": -6} if max(heights) + min(heights) < 0 else {"align": "left", "dx": 6}
    chart = alt.layer(
        base_chart.mark_bar(**gap, cursor=hand).encode(color=colour),
        full_model.mark_rule(color="theme:ink", strokeWidth=2),
        full_model.mark_text(baseline="top", y=0, fontWeight=600, **side).encode(text="text:N"),
        base_chart.mark_bar(color="theme:ink", **gap, cursor=hand).encode(opacity=where("datum.unit === picked")),
    ).add_params(_picked())
    return finished(name, f"how many {noun} leave the model at which {metric} when each is closed alone", chart, 240)


def _bin_width(values: Sequence[float], base: float, bins: int) -> float:
    """A width that spans the values with about so many bins: whole steps where values go in steps, as accuracies do."""
    away = sorted({round(abs(value - base), 12) for value in values} - {0.0})
    if not away:
        return abs(base) * 0.01 or 1.0
    span = max(*values, base) - min(*values, base)
    step = min(b - a for a, b in pairwise([0.0, *away]))
    in_steps = all(abs(distance / step - round(distance / step)) < 1e-4 for distance in away)
    return (
        step * (2 * math.ceil((span / bins / step - 1) / 2) + 1) if in_steps else span / bins
    )  # odd: no value on an edge


def ranking(name: str, rows: Rows, *, noun: str, by: str) -> Chart:
    """All units from the least to the most important, with two standard errors: is the order more than chance?

    `rows` have unit, rank, score, low, high, gone and text.
    """
    import altair as alt

    base_chart = alt.Chart(values(rows)).encode(
        x=alt.X(
            "rank:Q", title=f"{noun}, least important first", scale=alt.Scale(nice=False), axis=alt.Axis(tickMinStep=1)
        ),
        tooltip=tip("text"),
    )
    colour = alt.Color(
        "gone:N", scale=alt.Scale(domain=[False, True], range=["theme:accent", "theme:warn"]), legend=None
    )
    y = alt.Y("score:Q", title=f"score by {by}")
    chart = alt.layer(
        base_chart.mark_rule(opacity=0.5, strokeWidth=1.5).encode(
            y=alt.Y("low:Q", title=f"score by {by}"), y2="high:Q", color=colour
        ),
        base_chart.mark_point(filled=True, size=34, opacity=1, cursor="pointer").encode(y=y, color=colour),
        _ring(base_chart).encode(y=y),
    ).add_params(_picked())
    return finished(name, f"scores of all {noun} in their order, with two standard errors", chart, 240)


def spread(name: str, rows: Rows, *, noun: str, by: str) -> Chart:
    """Many units summed up: per site the lowest, quartiles and highest score. `rows`: site, low, q1, mid, q3, high, text."""
    import altair as alt

    base_chart = alt.Chart(values(rows)).encode(y=alt.Y("site:N", title=None, sort=None), tooltip=tip("text"))
    title = f"score by {by}"
    chart = alt.layer(
        base_chart.mark_rule(color="theme:bar", strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2="high:Q"),
        base_chart.mark_bar(color="theme:accent", size=8).encode(x=alt.X("q1:Q", title=title), x2="q3:Q"),
        base_chart.mark_tick(color="theme:ink", thickness=2, size=14).encode(x=alt.X("mid:Q", title=title)),
    )
    return finished(name, f"the spread of scores of {noun} in each site", chart, min(900, 34 + 18 * len(rows)))


def guarantee(name: str, rows: Rows, *, drop: float, metric: str, unit: str, noun: str) -> Chart:
    """The tested sequence: the loss at each step and its upper bound, against the loss that is allowed.

    `rows` have removed, damage, bound, outcome (shown or not shown) and text.
    """
    import altair as alt

    kinds = alt.Scale(domain=["shown", "not shown"], range=["theme:accent", "theme:warn"])
    colour = alt.Color("outcome:N", scale=kinds, legend=alt.Legend())
    title = f"worse by, in {metric}" if unit == metric else f"{unit} of {metric} lost"
    base_chart = alt.Chart(values(rows)).encode(
        x=alt.X(
            "removed:Q",
            title=f"{noun} removed",
            scale=alt.Scale(domain=[0, max([row["removed"] for row in rows], default=1) * 1.06], nice=False),
            axis=alt.Axis(tickMinStep=1),
        ),
        color=colour,
        tooltip=tip("text"),
    )
    allowed = alt.Chart(values([{"bound": drop, "text": f"allowed: {drop:g}"}])).encode(y=alt.Y("bound:Q", title=title))
    chart = alt.layer(
        allowed.mark_rule(color="theme:warn", strokeDash=[6, 4], strokeWidth=1.5),
        allowed.mark_text(color="theme:warn", align="left", x=4, dy=-8, fontWeight=600).encode(text="text:N"),
        base_chart.mark_rule(strokeWidth=2, opacity=0.6).encode(y=alt.Y("damage:Q", title=title), y2="bound:Q"),
        base_chart.mark_tick(thickness=3, size=16, orient="horizontal", opacity=1).encode(
            y=alt.Y("bound:Q", title=title)
        ),
        base_chart.mark_point(filled=True, size=44, opacity=1).encode(y=alt.Y("damage:Q", title=title)),
        base_chart.mark_point(filled=False, size=190, strokeWidth=2.5).encode(
            y=alt.Y("damage:Q", title=title), color=alt.value("theme:ink"), opacity=where("datum.removed === step")
        ),
    ).add_params(alt.param(name="step", value=-1))
    words = f"measured loss and its upper bound at each step, against {drop:g} {unit} allowed"
    return finished(name, words, chart, 300)


def scatter(name: str, rows: Rows, *, first_data: str, second_data: str, metric: str, noun: str) -> Chart:
    """The damage of each unit on two data sets. `rows` have unit, x, y and text."""
    import altair as alt

    zero = alt.Chart(values([{"x": 0, "y": 0}])).mark_rule(color="theme:rule")
    lost = f"{metric} {'added' if metric in ('loss', 'perplexity') else 'lost'} on"
    base_chart = alt.Chart(values(rows)).encode(
        x=alt.X("x:Q", title=f"{lost} {first_data}"),
        y=alt.Y("y:Q", title=f"{lost} {second_data}"),
        tooltip=tip("text"),
    )
    chart = alt.layer(
        zero.encode(x="x:Q"),
        zero.encode(y="y:Q"),
        base_chart.mark_point(filled=True, size=50, opacity=0.75, color="theme:accent", cursor="pointer"),
        _ring(base_chart),
    ).add_params(_picked())
    return finished(name, f"damage of masking each of the {noun} on two data sets", chart, 320)


def speed(name: str, rows: Rows, *, reference: str) -> Chart:
    """How many times as fast, per batch size, and what the multiply-adds would allow.

    `rows` have place (batch, length), model, ratio, low, high, limit and text.
    """
    import altair as alt

    models = list(dict.fromkeys(row["model"] for row in rows))
    colours = alt.Scale(domain=models, range=[f"theme:{ORDERS[n % len(ORDERS)]}" for n in range(len(models))])
    title = f"times as fast as {reference}"
    places = len({row["place"] for row in rows})
    bands = alt.Scale(paddingInner=0.35, paddingOuter=min(1.0, max(0.3, (5 - places) / 2)))  # a single bar is no wall
    base_chart = alt.Chart(values(rows)).encode(
        x=alt.X("place:N", title=None, sort=None, axis=alt.Axis(labelAngle=0, labelLimit=90), scale=bands),
        xOffset=alt.XOffset("model:N", sort=models),
        tooltip=tip("text"),
    )
    legend = alt.Legend() if len(models) > 1 else None
    ratio = alt.Y("ratio:Q", title=title, scale=alt.Scale(zero=False, nice=True))  # bars begin at one: no change
    reference_line = alt.Chart(values([{"ratio": 1}])).mark_rule(color="theme:muted").encode(y=ratio)
    colour = alt.Color("model:N", scale=colours, legend=legend)
    chart = alt.layer(
        base_chart.mark_bar(opacity=0.85).encode(y=ratio, y2=alt.Y2Datum(1), color=colour),
        reference_line,
        base_chart.mark_rule(strokeWidth=1.5, color="theme:ink").encode(y=alt.Y("low:Q", title=title), y2="high:Q"),
        base_chart.mark_tick(thickness=3, color="theme:warn", orient="horizontal", size=44, opacity=1).encode(
            y=alt.Y("limit:Q", title=title)
        ),
    )
    return finished(name, f"measured speed relative to {reference} and the limit by multiply-adds", chart, 260)


def front(name: str, rows: Rows, *, metric: str, base: float, constant: float | None) -> Chart:
    """What a model is worth against the share of the FLOPs that is left: a point with its interval for every row.

    `rows` have row, flops, value, low, high, kind (kept or ruined) and text.
    """
    import altair as alt

    x = alt.X("flops:Q", title="FLOPs left", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1], padding=8))
    y = alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False))
    colours = alt.Scale(domain=["kept", "ruined"], range=["theme:accent", "theme:warn"])
    drawn = alt.Chart(values(rows)).encode(x=x, tooltip=tip("text"))
    colour = alt.Color("kind:N", scale=colours, legend=None)
    levels = [{"value": base, "text": "the whole model"}]
    levels += [] if constant is None else [{"value": constant, "text": "a constant answer"}]
    level = alt.Chart(values(levels)).encode(y=y)
    chart = alt.layer(
        level.mark_rule(strokeDash=[4, 4], color="theme:muted"),
        level.mark_text(align="left", dx=4, dy=-7, color="theme:muted").encode(x=alt.value(0), text="text:N"),
        drawn.mark_line(strokeWidth=2, color="theme:band").encode(y=y),
        drawn.mark_rule(strokeWidth=1.5, opacity=0.6).encode(y=alt.Y("low:Q", title=metric), y2="high:Q", color=colour),
        drawn.mark_point(size=70, filled=True, opacity=1).encode(y=y, color=colour),
        drawn.mark_text(dx=-9, dy=-10, color="theme:ink").encode(y=y, text="row:N"),
    )
    return finished(name, f"{metric} on scoring examples against the share of the FLOPs that is left", chart, 320)


def heatmap(name: str, rows: Rows, *, label: str, diverging: bool) -> Chart:
    """A map of units for a paper. `rows` have site, column, value (or null), gone."""
    import altair as alt

    sites = list(dict.fromkeys(row["site"] for row in rows))
    columns = list(dict.fromkeys(row["column"] for row in rows))
    spread = max((abs(row["value"]) for row in rows if row["value"] is not None), default=1.0) or 1.0
    scale = (
        alt.Scale(domain=[-spread, 0, spread], range=["theme:accent2", "theme:faint", "theme:warn"])
        if diverging
        else alt.Scale(range=["theme:seq-low", "theme:seq-high"])
    )
    base_chart = alt.Chart(values(rows)).encode(
        x=alt.X("column:N", title="unit", sort=columns, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("site:N", title=None, sort=sites),
    )
    chart = alt.layer(
        base_chart.mark_rect(stroke="theme:surface", strokeWidth=2).encode(
            color=alt.Color("value:Q", scale=scale, legend=alt.Legend(title=label, orient="right"))
        ),
        base_chart.mark_text(text="×", fontSize=14, color="theme:warn").encode(opacity=where("datum.gone")),
    )
    return finished(name, f"{label} of every unit; those removed are crossed", chart, max(60, 24 * len(sites)))


def numbers(name: str, rows: Rows, *, columns: Sequence[str], most: float, across: str, down: str, words: str) -> Chart:
    """A table of numbers whose cells are the stronger in colour the larger they are, up to `most`.

    `rows` have row, column, value, shown (the number), spread (its deviation, or nothing) and text. `columns` may have
    empty ones, for gaps.
    """
    import altair as alt

    down_names = list(dict.fromkeys(row["row"] for row in rows))
    cell_width = (
        f"width / {max(1, len(columns))}"  # of a cell, in pixels: numbers shrink with it, and go where none can be read
    )
    half = (most or 1) * sum(share < 50 for share in STEPS) / len(STEPS)
    base_chart = alt.Chart(values([{**row, "strong": row["value"] >= half} for row in rows])).encode(
        x=alt.X(
            "column:N",
            title=across,
            scale=alt.Scale(domain=list(columns)),
            axis=alt.Axis(labelAngle=0, ticks=False, domain=False, labelLimit=120),
        ),
        y=alt.Y("row:N", title=down, scale=alt.Scale(domain=down_names), axis=alt.Axis(labelLimit=120)),
        tooltip=tip("text"),
    )
    # steps, because a browser knows the colours of the page only when it paints them: nothing can be computed between two
    steps = alt.Scale(type="quantize", domain=[0, most or 1], range=[f"theme:seq:{share}" for share in STEPS])
    ink = alt.condition("datum.strong", alt.value("theme:surface"), alt.value("theme:ink"))
    layers = [
        base_chart.mark_rect(stroke="theme:paper", strokeWidth=2, cornerRadius=3).encode(
            color=alt.Color("value:Q", scale=steps, legend=None)
        )
    ]
    spread = any(row["spread"] for row in rows)
    for field, share, place in (("shown", 0.36, -6 if spread else 0), ("spread", 0.27, 8))[: 2 if spread else 1]:
        size = alt.ExprRef(f"min({13 if field == 'shown' else 10}, {cell_width} * {share})")
        opacity = alt.ExprRef(f"{cell_width} < 17 ? 0 : 1")
        layers.append(
            base_chart.mark_text(fontSize=size, opacity=opacity, dy=place, baseline="middle").encode(
                text=f"{field}:N", color=ink
            )
        )
    return finished(name, words, alt.layer(*layers), max(46, (38 if spread else 30) * len(down_names)))


# -- helpers --------------------------------------------------------------------------------------------------------------


def signed_map(
    name: str, rows: Rows, *, across: str, down: str | None, words: str, columns: Sequence[str] = ()
) -> Chart:
    """A map whose cells are the stronger in colour the larger they are, in one colour or, where `away`, in the other.

    `rows` have row, column, size, away, text, shown (the number in the cell) and star (what is left of it in narrow ones).
    `columns` are in the order in which they come, where no other one is given.
    """
    import altair as alt

    down_names, across_names = (list(dict.fromkeys(row[key] for row in rows)) for key in ("row", "column"))
    across_names = list(columns) or across_names
    most = max((row["size"] for row in rows), default=1.0) or 1.0
    cell_width = f"width / {max(1, len(across_names))}"
    base_chart = alt.Chart(values([{**row, "strong": row["size"] >= 0.55 * most} for row in rows])).encode(
        x=alt.X(
            "column:N",
            title=across,
            scale=alt.Scale(domain=across_names),
            axis=alt.Axis(labelAngle=0, ticks=False, domain=False, labelLimit=90),
        ),
        y=alt.Y("row:N", title=down, scale=alt.Scale(domain=down_names), axis=alt.Axis(labelLimit=160)),
        tooltip=tip("text"),
    )
    layers = [
        base_chart.mark_rect(stroke="theme:paper", strokeWidth=1.5, cornerRadius=3).encode(
            color=alt.condition("datum.away", alt.value("theme:warn"), alt.value("theme:accent")),
            fillOpacity=alt.Opacity("size:Q", scale=alt.Scale(domain=[0, most], range=[0.04, 1]), legend=None),
        )
    ]
    ink = alt.condition("datum.strong", alt.value("theme:surface"), alt.value("theme:ink"))
    for field, least, most_width in (("shown", 30, 10_000), ("star", 0, 30)):
        opacity = alt.ExprRef(f"{cell_width} >= {least} && {cell_width} < {most_width} ? 1 : 0")
        size = alt.ExprRef(f"min(12, {cell_width} * {0.3 if field == 'shown' else 0.8})")
        layers.append(
            base_chart.mark_text(fontSize=size, opacity=opacity, baseline="middle").encode(text=f"{field}:N", color=ink)
        )
    return finished(name, words, alt.layer(*layers), max(46, 22 * len(down_names)))


def values(rows: Rows) -> Any:
    """The rows as the data of a chart."""
    import altair as alt

    return alt.Data(values=[dict(row) for row in rows])


def tip(field: str) -> Any:
    """The text that is shown at the mouse."""
    import altair as alt

    return alt.Tooltip(f"{field}:N")


def _picked() -> Any:
    import altair as alt

    return alt.param(name="picked", value="")


def where(test: str) -> Any:
    """Seen where the test holds. The marks are there all the same: an empty layer would have no extent."""
    import altair as alt

    return alt.condition(test, alt.value(1), alt.value(0))


def _ring(base_chart: Any) -> Any:
    """A ring around the unit that is chosen on the map."""
    ring = base_chart.mark_point(filled=False, size=190, strokeWidth=2.5, color="theme:ink", cursor="pointer")
    return ring.encode(opacity=where("datum.unit === picked"))


def finished(name: str, alt_text: str, chart: Any, height: int) -> Chart:
    """An Altair chart as it goes into the page: as wide as there is room, and in our look."""
    # altair has checked each piece when it was made; the whole takes three times as long to check as to make
    spec = chart.properties(width="container", height=height, description=alt_text).to_dict(validate=False)
    return Chart(name, alt_text, {**spec, "config": config()})
