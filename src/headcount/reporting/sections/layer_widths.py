"""What pruning left of each layer, as sections of a report: widths, the budget, tuning, recovery. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from ...documents.prune import Budget, PruneDocument, Recovery, TunedDocument
from ...formatting import Column, Table, counted, fixed, flops_text, listed, percent, signed, three, with_commas
from ...plans import kind_of, type_of
from .. import charts
from ..charts import Chart, Rows, tip, values, where
from ..findings import Part
from ..model_card import amount_text, asked_text, brake_text, candidates_text
from ..run_reader import Document
from .measurements import Section
from .pruning import called_of

KWON = "Kwon et al. 2022"
SERIES = {"heads": "accent", "cross-attention heads": "accent3", "neurons": "accent2"}


class Place(NamedTuple):
    """Where a site stands: the stack of layers, the layer in it, and what its units are called."""

    stack: str  # "", "encoder", "vision.tower"
    layer: int
    series: str


class Width(NamedTuple):
    """What is left of a site."""

    place: Place
    units: int
    left: int


def place_of(name: str, layer: int | None = None) -> Place:
    """The place of a site, by its name: "decoder.3.cross" is in layer 3 of the stack "decoder"."""
    parts = name.split(".")
    first = next((n for n, part in enumerate(parts) if part.isdecimal()), len(parts))
    index = int(parts[first][:9]) if first < len(parts) else 0
    neurons, cross = kind_of(f"{name}:0") == "neuron", type_of(name) == "cross"
    series = "neurons" if neurons else "cross-attention heads" if cross else "heads"
    return Place(".".join(parts[:first]), index if layer is None else layer, series)


def _called(part: Part, document: Document[PruneDocument], section: Section) -> Section:
    """A section about one `prune`, with its folder in the title where there are several."""
    return section._replace(title=section.title + called_of(document, part.prunes))


# -- widths ----------------------------------------------------------------------------------------------------------------


def layers(part: Part) -> list[Section]:
    """How many heads and neurons each layer has left."""
    return [_called(part, document, _layers(document.data)) for document in part.prunes if document.data.structure]


def _layers(data: PruneDocument) -> Section:
    widths = [Width(place_of(site.name, site.layer), site.units, site.left) for site in data.structure]
    deleted_layers = {
        (stack.name.removesuffix("layers").rstrip("."), layer) for stack in data.layers for layer in stack.gone
    }
    touched = [series for series in SERIES if any(w.left < w.units for w in widths if w.place.series == series)]
    shown_widths = [w for w in widths if w.place.series in (touched or SERIES)]
    stacks = list(dict.fromkeys(w.place.stack for w in shown_widths))
    drawn = tuple(
        _widths_chart([w for w in shown_widths if w.place.stack == stack], deleted_layers, stack) for stack in stacks
    )
    about = "The share of each layer's units that stay, with their number where there is room."
    if deleted_layers:
        about += " × marks a layer that is gone: nothing of it is left, and the one before hands on to the one after."
    notes = []
    for series in SERIES:
        own = [w for w in widths if w.place.series == series]
        had, has = sum(w.units for w in own), sum(w.left for w in own)
        if own:
            still = (
                f"all {with_commas(had)} stay"
                if had == has
                else f"{with_commas(has)} of {with_commas(had)} stay ({percent(has / max(1, had))})"
            )
            notes.append(f"{series.capitalize()}: {still}.")
    table = _widths_table(shown_widths, deleted_layers, stacks)
    return Section("structure", "What is left of each layer", about, "", drawn, (table,), (" ".join(notes),))


def _widths_chart(widths: Sequence[Width], deleted_layers: set[tuple[str, int]], stack: str) -> Chart:
    rows = []
    for w in widths:
        share = w.left / w.units if w.units else 0.0
        deleted = (stack, w.place.layer) in deleted_layers
        amount = f"{w.place.series} {with_commas(w.left)} of {with_commas(w.units)} ({percent(share)})"
        text = f"layer {w.place.layer}: {'deleted' if deleted else amount}"
        fields = {"layer": w.place.layer, "series": w.place.series, "left": "" if deleted else _short(w.left)}
        rows.append({**fields, "share": share, "text": text})
    crosses = [
        {"layer": n, "text": f"layer {n}: deleted"}
        for n in sorted({w.place.layer for w in widths})
        if (stack, n) in deleted_layers
    ]
    title = f"units left, {stack}" if stack else "units left"
    return bars("structure", rows, crosses, title=title)


def _short(count: int) -> str:
    """A count that fits on a bar: 3072 is 3.1k."""
    return str(count) if count < 1000 else f"{count / 1000:.1f}k".replace(".0k", "k")


def bars(name: str, rows: Rows, crosses: Rows, *, title: str) -> Chart:
    """The share that is left, by layer. `rows` have layer, series, left, share and text; `crosses` layer and text."""
    import altair as alt

    series, x = _by_layer(rows)
    count = len({row["layer"] for row in rows})
    y = alt.Y(
        "share:Q",
        title=title,
        scale=alt.Scale(domain=[0, 1.08], nice=False),
        axis=alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1]),
    )
    legend = alt.Legend(symbolType="square", offset=34) if len(series) > 1 else None
    colours = alt.Scale(domain=series, range=[f"theme:{SERIES[kind]}" for kind in series])
    base_chart = alt.Chart(values(rows)).encode(
        x=x, xOffset=alt.XOffset("series:N", scale=alt.Scale(domain=series)), tooltip=tip("text")
    )
    # numbers only where a bar is wide enough for them
    bar_width = f"width / {max(1, count * len(series))}"
    layers = [
        base_chart.mark_bar(color="theme:faint").encode(y=y, y2=alt.Y2Datum(1)),
        base_chart.mark_bar().encode(y=y, color=alt.Color("series:N", scale=colours, legend=legend)),
        base_chart.mark_text(
            baseline="bottom",
            dy=-3,
            fontSize=alt.ExprRef(f"min(11, {bar_width} * 0.4)"),
            opacity=alt.ExprRef(f"{bar_width} < 24 ? 0 : 1"),
        ).encode(y=y, text="left:N"),
    ]
    if crosses:
        at = alt.Chart(values(crosses)).encode(x=x, tooltip=tip("text"))
        layers.append(
            at.mark_text(text="×", fontSize=20, fontWeight=600, color="theme:warn").encode(y=alt.Y(datum=0.5))
        )
    words = f"{title}: the share of {' and '.join(series)} that stay in each layer"
    return charts.finished(name, words, alt.layer(*layers), 250)


def _widths_table(widths: Sequence[Width], deleted_layers: set[tuple[str, int]], stacks: Sequence[str]) -> Table:
    series = [kind for kind in SERIES if any(w.place.series == kind for w in widths)]
    widths_by_place = {w.place: w for w in widths}
    rows = []
    for stack, layer in dict.fromkeys(
        (w.place.stack, w.place.layer) for w in sorted(widths, key=lambda w: stacks.index(w.place.stack))
    ):
        own = [widths_by_place.get(Place(stack, layer, kind)) for kind in series]
        cells = [value for w in own for value in ((w.left, w.units) if w else (None, None))]
        rows.append((f"{stack} {layer}".strip() + (", deleted" if (stack, layer) in deleted_layers else ""), *cells))
    columns = [Column("layer")]
    for kind in series:
        columns += [Column(f"{kind} left", with_commas, True), Column("of", with_commas, True)]
    return Table("structure", "What is left of each layer.", tuple(columns), tuple(rows))


# -- the budget ------------------------------------------------------------------------------------------------------------


def budgets(part: Part) -> list[Section]:
    """What was asked, what that allows, what the plan was reckoned to take, and what it takes."""
    return [
        _called(part, document, _budget(document.data, document.data.steps.budget))
        for document in part.prunes
        if document.data.steps.budget is not None
    ]


def _budget(data: PruneDocument, budget: Budget) -> Section:
    quantity, whole_one = budget.what, budget.whole
    amounts = [
        ("whole model", budget.whole),
        ("allowed", budget.allowed),
        ("predicted for the plan", budget.predicted),
        ("measured", None if budget.note.startswith("reckoned") else budget.measured),
    ]
    rows = [
        (label, amount, amount / whole_one if whole_one else None) for label, amount in amounts if amount is not None
    ]
    noun = {
        "flops": "FLOPs of one example",
        "params": "parameters",
        "kv-cache": "KV cache",
        "memory": "weights and cache",
        "time": "seconds of one pass",
    }.get(quantity, quantity)
    columns = (
        Column(""),
        Column(noun, partial(amount_text, quantity), True),
        Column("of the whole model", lambda share: f"{100 * share:.1f}\u00a0%", True),
    )
    about = (
        f"Asked for: {asked_text(budget)}. One choice over all kinds of units: those that matter least for what they cost go "
        "first, "
    )
    about += (
        ("by times measured here, site by site." if not budget.note else f"by seconds {budget.note}.")
        if quantity == "time"
        else "and what stays never costs more than allowed."
    )
    multiples = {kind: n for kind, n in budget.multiples.items() if n > 1}
    notes = []
    if multiples:
        multiples_text = listed([f"{kind}s by {n}" for kind, n in multiples.items()])
        notes.append(f"Widths are whole multiples, because the hardware likes them: {multiples_text}.")
    notes += [candidates_text(data.steps.candidates)] if data.steps.candidates else []
    notes += [brake_text(data.steps.brake)] if data.steps.brake else []
    if data.steps.rearranged:
        notes.append(
            f"{counted(data.steps.rearranged, 'unit')} changed places with others of the same site afterwards: what "
            "units cost together is not the sum of what each costs alone."
        )
    if data.flops is not None:
        before, after = data.flops
        less = f" ({before / after:.2f} times fewer)" if after else ""
        notes.append(f"FLOPs of one example: {flops_text(before)} → {flops_text(after)}{less}.")
    caption = "What was allowed, and what the smaller model takes."
    return Section(
        "budget", "The budget", about, f"{KWON}.", (), (Table("budget", caption, columns, tuple(rows)),), tuple(notes)
    )


# -- tuning ----------------------------------------------------------------------------------------------------------------


def tuned(part: Part) -> list[Section]:
    """How far least squares brought each site back to what the whole model writes there."""
    return [
        _called(part, document, _tuned(document.data.steps.tuned))
        for document in part.prunes
        if document.data.steps.tuned is not None
    ]


def _tuned(tuning: TunedDocument) -> Section:
    rows = [(fit.name, fit.error, fit.tuned, fit.low, fit.high, fit.used) for fit in tuning.sites]
    used = tuning.used
    about = (
        "Without any training, the units that stay are multiplied by numbers that bring what goes on from a site as near as can "
        "be to what goes on there in the whole model. The numbers are folded into the weights, so that they cost nothing. "
        "Open marks are errors as cut, filled ones tuned."
    )
    if used:
        shares = [fit.tuned / fit.error for fit in used if fit.error]
        fell = f"on average the error fell by {percent(1 - sum(shares) / len(shares))} there"
    else:
        fell = "it helped nowhere on held-out examples"
    notes = [
        f"{len(used)} of {counted(len(rows), 'site')} were tuned on {with_commas(tuning.examples)} examples "
        f"({with_commas(tuning.positions)} positions); {fell}."
        + " The others stay as they were cut."
        * (len(used) < len(rows)),
        "The error is the squared distance between what goes on from the site in the whole model and in the cut one, as a share "
        "of what the site itself writes, on positions that had no part in the fit. Errors of earlier sites are in it, so it "
        "can be more than 100 %.",
    ]
    notes += [f"Left out: {site.name}: {site.why}" for site in tuning.skipped[:3]]
    stacks: dict[str, list[dict[str, Any]]] = {}
    for name, error, fit, low, high, use in rows:
        place = place_of(name)
        span = f"numbers from {fixed(low, 2)} to {fixed(high, 2)}" if use else "left as it was cut"
        text = f"{name}: {percent(error)} as cut, {percent(fit)} tuned; {span}"
        row = {"layer": place.layer, "series": place.series, "error": error, "fit": fit, "used": use, "text": text}
        stacks.setdefault(place.stack, []).append(row)
    drawn = tuple(_tuned_chart(own, f"error, {stack}" if stack else "error") for stack, own in stacks.items())
    share = Column("error as cut", lambda value: f"{100 * value:.1f}\u00a0%", True)
    columns = (
        *(
            Column("site"),
            Column("used", lambda use: "yes" if use else "no"),
            share,
            share._replace(title="tuned"),
            Column("change", lambda value: f"{signed(100 * value, 0)}\u00a0%", True),
        ),
        *(Column(title, three, True) for title in ("smallest number", "largest")),
    )
    cells = tuple((name, use, e, t, t / e - 1 if e else None, low, high) for name, e, t, low, high, use in rows)
    table = Table("tuned", "The error after each site, as cut and tuned.", columns, cells)
    return Section("tuned", "Tuned without training", about, f"{KWON}.", drawn, (table,), tuple(notes))


def _by_layer(rows: Rows) -> tuple[list[str], Any]:
    """The series that there are, and an axis with a place for each layer."""
    import altair as alt

    order = sorted({row["layer"] for row in rows})
    scale = alt.Scale(domain=order, paddingInner=0.22, paddingOuter=0.1)
    x = alt.X("layer:O", title="layer", scale=scale, axis=alt.Axis(labelAngle=0, ticks=False))
    return [kind for kind in SERIES if any(row["series"] == kind for row in rows)], x


def _tuned_chart(rows: Rows, title: str) -> Chart:
    """The error of each site by layer, from what it was as cut (open) to what it is tuned (filled)."""
    import altair as alt

    series, x = _by_layer(rows)
    y = alt.Y("error:Q", title=title, axis=alt.Axis(format="%"), scale=alt.Scale(zero=True))
    colours = alt.Scale(domain=series, range=[f"theme:{SERIES[kind]}" for kind in series])
    colour = alt.Color(
        "series:N",
        scale=colours,
        legend=alt.Legend(symbolType="circle", symbolOpacity=1, offset=34) if len(series) > 1 else None,
    )
    base_chart = alt.Chart(values(rows)).encode(
        x=x, xOffset=alt.XOffset("series:N", scale=alt.Scale(domain=series)), color=colour, tooltip=tip("text")
    )
    layers = [
        base_chart.mark_rule(strokeWidth=2, opacity=0.7).encode(y=y, y2="fit:Q"),
        base_chart.mark_point(filled=False, size=50, strokeWidth=2, fill="theme:paper", opacity=1).encode(y=y),
        base_chart.mark_point(filled=True, size=60).encode(y=alt.Y("fit:Q", title=title), opacity=where("datum.used")),
    ]
    words = f"{title} of each site as cut and tuned, by layer"
    return charts.finished("tuned", words, alt.layer(*layers), 240)


# -- recovery --------------------------------------------------------------------------------------------------------------


def recovered(part: Part) -> list[Section]:
    """What training gave back after the cut."""
    return [
        _called(part, document, _recovered(document.data, document.data.recovered))
        for document in part.prunes
        if document.data.recovered is not None
    ]


def _recovered(data: PruneDocument, recovery: Recovery) -> Section:
    before, cut, after = data.before.value, recovery.before, data.after.value
    metric = data.before.metric
    how = "to say what the whole model says (distillation)" if recovery.distilled else "on the labels"
    about = f"After the cut the smaller model was trained {how}"
    if recovery.epochs is not None and recovery.examples is not None and recovery.steps is not None:
        about += f" for {counted(recovery.epochs, 'epoch')}: {with_commas(recovery.examples)} examples, "
        about += counted(recovery.steps, "step")
    about += "."
    format_value = partial(fixed, digits=3 if abs(before) < 10 else 1)
    columns = (
        Column("model"),
        Column(metric, format_value, True),
        Column("difference", lambda value: signed(value, 3 if abs(before) < 10 else 1), True),
    )
    rows = (("whole", before, None), ("as cut", cut, cut - before), ("recovered", after, after - before))
    caption = f"{metric} before the cut, after it, and after training."
    return Section("recovered", "Recovered by training", about, tables=(Table("recovered", caption, columns, rows),))
