"""Charts of what training does: learned gates, gates closing, losses, curves of checkpoints, sub-networks retrained. No torch.

As in `charts`, data never reach an expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..charts import Chart, Rows, finished, tip, values, where
from ..theme import LINES

DASHES = ([1, 0], [7, 4], [2, 3])  # whole, dashed, dotted
STROKES: Any = {"symbolType": "stroke", "symbolSize": 260, "symbolStrokeWidth": 2.5, "symbolOpacity": 1}
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
)  # not as many as colours
FEW = 6  # runs that can be told apart in whatever room
MOST_ROOM = 1.5  # for intervals on each side, in times of what values span
WORTH = ("accent", "accent4", "warn")  # good, by chance, bad
MOST_NAMED = 10  # entries of a legend; beyond it, some stand for those between them


def learned(name: str, runs: Rows, means: Rows, orders: Rows, *, metric: str, noun: str, of: int, base: float) -> Chart:
    """What is left with so many units kept: a line per learned method, thin ones for orders of removal.

    `runs` have line, track, kept, removed, value, low, high, alone (the only seed) and text; `means` have line, kept,
    value, alone and text; `orders` have line, kept, value and text.
    """
    import altair as alt

    methods = list(dict.fromkeys(row["line"] for row in means))
    thin = list(dict.fromkeys(row["line"] for row in orders))
    shapes = [SHAPES[n % len(SHAPES)] for n in range(len(methods))]
    legend = alt.Legend(columns=2, offset=34, symbolSize=80, symbolStrokeWidth=1.5, symbolOpacity=1)
    ticks = sorted({0, of, *(row["kept"] for row in means)})
    x = alt.X(
        "kept:Q",
        title=f"{noun} kept, of {of}",
        # small numbers are where methods differ, and zero must have a place too
        scale=alt.Scale(type="symlog", constant=2, domain=[0, of], nice=False, padding=8),
        axis=alt.Axis(values=ticks, grid=False, labelOverlap="greedy"),
    )
    y = alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False, nice=False, domain=_window(runs, base)))
    colour = alt.Color("line:N", scale=alt.Scale(domain=methods, range=_colours(methods)), legend=legend)
    dash = alt.StrokeDash("line:N", scale=alt.Scale(domain=methods, range=_dashes(methods)), legend=None)
    shape = alt.Shape("line:N", scale=alt.Scale(domain=methods, range=shapes), legend=legend)
    full_model = alt.Chart(values([{"value": base, "text": "whole model"}])).encode(y=y)
    run_chart = alt.Chart(values(runs)).encode(x=x, y=y, color=colour)
    mean = alt.Chart(values(means)).encode(x=x, y=y, color=colour)
    layers: list[Any] = [
        full_model.mark_rule(strokeDash=[4, 4], color="theme:ink", opacity=0.6),
        full_model.mark_text(align="left", baseline="bottom", x=4, dy=-4, color="theme:muted").encode(text="text:N"),
    ]
    if orders:
        drawn = alt.Chart(values(orders)).encode(x=x, y=y, color=alt.value("theme:muted"))
        plain = alt.StrokeDash(
            "line:N",
            scale=alt.Scale(domain=thin, range=[DASHES[n % 3] for n in range(len(thin))]),
            legend=alt.Legend(columns=3, offset=34, symbolStrokeColor="theme:muted", **STROKES),
        )
        layers.append(drawn.mark_line(strokeWidth=1.25, clip=True).encode(strokeDash=plain))
        layers.append(
            drawn.mark_point(size=14, filled=True, opacity=0.9, clip=True).encode(detail="line:N", tooltip=tip("text"))
        )
    layers += [
        run_chart.mark_rule(strokeWidth=1.5, clip=True).encode(
            y=alt.Y("low:Q", title=metric), y2="high:Q", opacity=_seen("datum.alone", 0.5)
        ),
        mean.mark_line(strokeWidth=2.5, clip=True).encode(strokeDash=dash),
        run_chart.mark_point(size=30, filled=False, strokeWidth=1.5, clip=True).encode(
            shape=shape, opacity=_seen("!datum.alone", 0.9), tooltip=tip("text")
        ),
        mean.mark_point(size=70, filled=True, opacity=1, clip=True).encode(shape=shape, tooltip=tip("text")),
        run_chart.mark_point(size=190, strokeWidth=2.5, filled=False, clip=True).encode(
            color=alt.value("theme:ink"), opacity=where("datum.removed === step && datum.track === track")
        ),
    ]
    layered_chart = alt.layer(*layers).resolve_scale(strokeDash="independent")
    layered_chart = layered_chart.add_params(alt.param(name="step", value=-1), alt.param(name="track", value=""))
    words = f"{metric} against the number of {noun} kept"
    chart = finished(name, words + (", beside orders of removal" if orders else ""), layered_chart, 360)
    below = {"layout": {"top": {"direction": "vertical", "anchor": "start", "margin": 4}}}  # one legend under the other
    chart.spec["config"]["legend"] |= below
    return chart


def _window(runs: Rows, base: float) -> list[float]:
    """The values to show: those of models that were trained; what was only cut may lie far below, and leaves the chart.

    Intervals that are drawn are in it, unless they would leave no room to tell many runs apart: then they are clipped.
    """
    trained = [row for row in runs if "not recovered" not in str(row["line"])] or list(runs)
    chart_values = [base, *(row["value"] for row in trained)]
    ends = [*chart_values, *(row[end] for row in trained if row["alone"] for end in ("low", "high"))]
    room = max(chart_values) - min(chart_values)
    beyond = MOST_ROOM * room if len(trained) > FEW else max(ends) - min(ends)
    low, high = max(min(ends), min(chart_values) - beyond), min(max(ends), max(chart_values) + beyond)
    margin = 0.08 * (high - low) or 0.01 * abs(base) or 1.0
    return [low - margin, high + margin]


def _colours(methods: Sequence[str]) -> list[str]:
    return [f"theme:{LINES[n % len(LINES)]}" for n in range(len(methods))]


def _dashes(methods: Sequence[str]) -> list[list[int]]:
    return [DASHES[n // len(LINES) % 3] for n in range(len(methods))]


def closing(name: str, rows: Rows, *, noun: str, of: int) -> Chart:
    """How many gates are expected to be open as they learn, a line per run. `rows` have line, run, step, open and text."""
    import altair as alt

    methods = list(dict.fromkeys(row["line"] for row in rows))
    colours, dashes = _colours(methods), _dashes(methods)
    legend = alt.Legend(columns=2, offset=34, **STROKES) if len(methods) > 1 else None
    chart = (
        alt.Chart(values(rows))
        .mark_line(strokeWidth=1.75, opacity=0.85)
        .encode(
            x=alt.X("step:Q", title="step", scale=alt.Scale(nice=False)),
            y=alt.Y(
                "open:Q", title=f"{noun} expected to be open, of {of}", scale=alt.Scale(domain=[0, of], nice=False)
            ),
            color=alt.Color("line:N", scale=alt.Scale(domain=methods, range=colours), legend=legend),
            strokeDash=alt.StrokeDash("line:N", scale=alt.Scale(domain=methods, range=dashes), legend=legend),
            detail="run:N",
            tooltip=tip("text"),
        )
    )
    return finished(name, f"expected number of open gates against the step, for each run, of {of} {noun}", chart, 220)


def over(name: str, rows: Rows, *, metric: str, noun: str, relative: bool) -> Chart:
    """What is left of each checkpoint as units go (Figure 5 of Michel et al.): the later it is, the stronger its line.

    `rows` have checkpoint, share, value, relative (to that checkpoint whole, or null) and text.
    """
    import altair as alt

    names = list(dict.fromkeys(row["checkpoint"] for row in rows))
    colours = [
        f"theme:seq:{100 - round(75 * (len(names) - 1 - n) / max(1, len(names) - 1))}" for n in range(len(names))
    ]
    every = -(-len(names) // MOST_NAMED)
    legend = alt.Legend(values=names[::-1][::every][::-1], columns=3, offset=34, **STROKES)
    field = "relative:Q" if relative else "value:Q"
    title = f"{metric} relative to the whole model" if relative else metric
    axis = alt.Axis(format="%") if relative else alt.Axis()
    base_chart = alt.Chart(values(rows)).encode(
        x=alt.X("share:Q", title=f"{noun} removed", axis=alt.Axis(format="%"), scale=alt.Scale(nice=False, padding=6)),
        y=alt.Y(field, title=title, axis=axis, scale=alt.Scale(zero=False)),
        color=alt.Color("checkpoint:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
    )
    chart = alt.layer(
        base_chart.mark_line(strokeWidth=2.5),
        base_chart.mark_point(filled=True, size=34, opacity=1).encode(tooltip=tip("text")),
    )
    words = f"{metric} of every checkpoint against the share of {noun} removed"
    return finished(name, words + (", relative to its whole model" if relative else ""), chart, 300)


def course(name: str, rows: Rows, *, field: str, title: str, of: str) -> Chart:
    """A number along a training. `rows` have place, value and text; `of` is what places are."""
    import altair as alt

    base_chart = alt.Chart(values(rows)).encode(
        x=alt.X("place:Q", title=of, scale=alt.Scale(nice=False, padding=6), axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
        tooltip=tip("text"),
    )
    colour = "theme:accent" if field == "loss" else "theme:accent2"
    dots = base_chart.mark_point(filled=True, size=46 if len(rows) <= 30 else 14, color=colour, opacity=1)
    chart = alt.layer(base_chart.mark_line(strokeWidth=2, color=colour), dots)
    return finished(name, f"{title} against the {of}", chart, 180)


def networks(name: str, rows: Rows, wholes: Rows, least: Rows, *, title: str, kinds: Sequence[str]) -> Chart:
    """Sub-networks of each task: a point with its deviation for each kind of them, as found beside retrained.

    `rows` have task, what (one of `kinds`), again (it was retrained), mean, low, high and text; `wholes` (full models) and
    `least` (what needs no model) have task, mean and text.
    """
    import altair as alt

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    placed = [{**row, "slot": f"{row['what']} {'again' if row['again'] else 'found'}"} for row in rows]
    slots = [f"{kind} {when}" for kind in kinds for when in ("found", "again")]
    axis = alt.Axis(labelAngle=0, labelLimit=140, ticks=False, labelPadding=8)
    bands = {"title": None, "scale": alt.Scale(domain=tasks, paddingInner=0.12, paddingOuter=0.04), "axis": axis}
    y = alt.Y("mean:Q", title=title, scale=alt.Scale(zero=False, padding=8))
    colour = alt.Color(
        "what:N",
        scale=alt.Scale(domain=list(kinds), range=[f"theme:{WORTH[n % len(WORTH)]}" for n in range(len(kinds))]),
        legend=alt.Legend(symbolType="circle", symbolOpacity=1, offset=34),
    )

    def points(point_rows: Rows) -> Any:
        places = alt.XOffset("slot:N", scale=alt.Scale(domain=slots, paddingOuter=0.5))
        chart = alt.Chart(values(point_rows)).encode(x=alt.X("task:N", **bands), xOffset=places)
        return chart.encode(color=colour, tooltip=tip("text"))

    def across(line_rows: Rows) -> Any:
        chart = alt.Chart(values(line_rows)).encode(
            x=alt.X("task:N", bandPosition=0, **bands), y=y, tooltip=tip("text")
        )
        return chart.encode(x2=alt.X2("task:N", bandPosition=1))

    found_rows, again = ([row for row in placed if row["again"] is when] for when in (False, True))
    layers = [across(wholes).mark_rule(color="theme:ink", strokeWidth=1.5)]
    layers += [across(least).mark_rule(color="theme:muted", strokeWidth=1.5, strokeDash=[2, 3])] if least else []
    layers.append(
        points(placed).mark_rule(strokeWidth=1.75, opacity=0.7).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    )
    open_mark = {"filled": False, "size": 70, "strokeWidth": 2, "fill": "theme:paper", "opacity": 1}
    layers += [points(found_rows).encode(y=y).mark_point(**open_mark)] if found_rows else []
    layers += [points(again).encode(y=y).mark_point(filled=True, size=80, opacity=1)] if again else []
    words = f"{title} of {', '.join(kinds)} sub-networks of each task, as found and retrained, beside the full model"
    return finished(name, words, alt.layer(*layers), 320)


def search(name: str, rows: Rows, *, noun: str, shares: bool, threshold: float) -> Chart:
    """The score along each search, as a share of the full model's, against what is left, and the threshold.

    `rows` have task, run, n (the step), left, share, kept (the step was not taken back) and text.
    """
    import altair as alt

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    axis = alt.Axis(format="%") if shares else alt.Axis(tickMinStep=1)
    x = alt.X("left:Q", title=noun, scale=alt.Scale(reverse=True, zero=False, nice=False, padding=8), axis=axis)
    y = alt.Y(
        "share:Q",
        title="score, as a share of the full model's",
        scale=alt.Scale(zero=False, padding=6),
        axis=alt.Axis(format="%"),
    )
    legend = alt.Legend(columns=3, offset=34, **STROKES) if len(tasks) > 1 else None
    colour = alt.Color("task:N", scale=alt.Scale(domain=tasks, range=_colours(tasks)), legend=legend)
    limit = alt.Chart(values([{"share": threshold, "text": f"threshold: {threshold:.0%}"}])).encode(y=y)
    went = alt.Chart(values([row for row in rows if row["kept"]])).encode(x=x, y=y, color=colour, detail="run:N")
    layers: list[Any] = [
        limit.mark_rule(color="theme:warn", strokeDash=[6, 4], strokeWidth=1.5),
        limit.mark_text(color="theme:warn", align="left", x=4, dy=9, fontWeight=600).encode(text="text:N"),
        went.mark_line(strokeWidth=1.75, opacity=0.8).encode(order="n:Q"),
        went.mark_point(filled=True, size=26, opacity=1).encode(tooltip=tip("text")),
    ]
    back = [row for row in rows if not row["kept"]]
    if back:
        fell = alt.Chart(values(back)).encode(x=x, y=y, color=colour, tooltip=tip("text"))
        layers.append(fell.mark_point(filled=False, size=44, strokeWidth=1.75, opacity=0.9))
    words = f"the score of every step of the search, as a share of the full model's, against {noun}"
    return finished(name, words, alt.layer(*layers), 280)


def _seen(test: str, opacity: float) -> Any:
    """As `where`, but less than wholly seen."""
    import altair as alt

    return alt.condition(test, alt.value(opacity), alt.value(0))
