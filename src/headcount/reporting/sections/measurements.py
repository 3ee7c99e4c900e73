"""What was measured about units, as sections of a report: curves, scores, ablations, other data. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...documents.ablation import AllButOneDocument, TransferDocument
from ...documents.curves import CurvesDocument
from ...documents.results import FillDocument
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
from ...stats.results import Comparison, difference_columns, difference_text, in_points
from .. import charts, head_map
from ..charts import Chart
from ..findings import Effect, Measured, Part
from ..pictures.circuit_graph import Picture
from ..run_reader import ALPHA, Document, beyond_chance, checked
from ..summary import noun_of_curve
from .transfer_sentences import related, room

MICHEL = "Michel, Levy and Neubig 2019"
MOST_ROWS = 1_000  # of a table; beyond it the most important ones are listed


class Section(NamedTuple):
    """A part of the page: what it shows in plain words, where it comes from, and the charts and tables themselves."""

    key: str
    title: str
    about: str
    source: str = ""
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    folded: bool = False
    pictures: tuple[Picture, ...] = ()


# -- curves ----------------------------------------------------------------------------------------------------------------


def curve_chart(part: Part, document: Document[CurvesDocument], name: str = "curve") -> Chart:
    """The curves of one run in one chart."""
    data = document.data
    line_curves = data.scored or list(data.curves[:1])
    lines = []
    for curve in line_curves:
        for point in curve.points:
            result = point.result
            text = f"{curve.by}, {point.removed} removed: {result_text(result)}; {difference_text(point.comparison)}"
            numbers = {"value": result.value, "low": result.low, "high": result.high}
            lines.append({"order": curve.by, "removed": point.removed, **numbers, "text": text})
    band = []
    for points in zip(*(curve.points for curve in data.random if curve not in line_curves), strict=False):
        values = [point.result.value for point in points]
        mean = sum(values) / len(values)
        band.append({"removed": points[0].removed, "low": min(values), "mean": mean, "high": max(values)})
    first = line_curves[0]
    return charts.curve(
        name,
        lines,
        band,
        metric=first.whole.metric,
        noun=noun_of_curve(first),
        of=first.of,
        base=first.whole.value,
        chosen=None if part.prune is None else part.prune.removed,
    )


def curve_about(document: Document[CurvesDocument]) -> str:
    """What the lines of a curve chart are."""
    alone = not document.data.scored
    band = "the grey band random orders, " if document.data.random and not alone else ""
    first = "One random order." if alone else "The least important go first."
    return f"{first} Vertical lines are 95 % intervals, {band}the dashed line the whole model. ({MICHEL}.)"


def curves(part: Part) -> list[Section]:
    """A table for each curve run; the first one's chart stands beside the map."""
    out = []
    for n, document in enumerate(part.of(CurvesDocument)):
        data = document.data
        points = [point for curve in data.curves for point in curve.points]
        compared = [point.comparison for point in points if point.removed]
        width = digits_for(point.result.high - point.result.low for point in points)
        columns = (
            Column("order"),
            Column("removed", with_commas, True),
            Column("share", percent, True),
            Column(compared[0].metric if compared else "value", partial(fixed, digits=width), True),
            *(Column(title, partial(fixed, digits=width), True) for title in ("low", "high")),
            difference_columns(compared)[0],
            Column("p", probability, True),
        )
        table = Table(
            "curve",
            f"What is left as units go, {data.sets}.",
            columns,
            tuple(checked(document, _curve_rows)[:MOST_ROWS]),
        )
        out.append(
            Section(
                "curve",
                "The pruning curve in numbers",
                "Units are removed in the order of their scores, least important first, and the model is measured at each "
                "step. Scores and measurement use different examples" + (f": {data.sets}." if data.sets else "."),
                f"{MICHEL}, section 4.",
                (curve_chart(part, document, f"curve-{n + 1}"),) if n else (),
                (table,),
                (
                    "Low and high are a 95 % interval, and for random orders the lowest and highest of them. p compares each "
                    "point with the whole model and is not corrected for the number of points.",
                    *filled(data.fill),
                ),
            )
        )
    return out


# -- scores ----------------------------------------------------------------------------------------------------------------


def _curve_rows(data: CurvesDocument) -> list[tuple[Any, ...]]:
    """A row per point of each order; random orders together, as their mean, lowest and highest value."""
    rows: list[tuple[Any, ...]] = []
    for curve in data.scored:
        for point in curve.points:
            comparison, result = point.comparison, point.result
            values = (result.value, result.low, result.high, comparison.difference * comparison.points)
            rows.append((curve.by, point.removed, point.removed / curve.of, *values, comparison.p))
    drawn = data.random
    for points in zip(*(curve.points for curve in drawn), strict=False):
        random_values = [point.result.value for point in points]
        removed = points[0].removed
        spread = (sum(random_values) / len(random_values), min(random_values), max(random_values))
        rows.append((f"random, mean of {len(drawn)}", removed, removed / drawn[0].of, *spread, None, None))
    return rows


def rankings(part: Part) -> list[Section]:
    """How sure the order is: scores with their standard errors."""
    out = []
    small = {unit for grid in part.grids if not grid.large for unit in grid.units}
    used_keys: set[tuple[str, str]] = set()
    for name, scores in zip(head_map.score_names(part), part.scores, strict=True):
        values = {unit: value for unit, value in scores.values.items() if unit in small}
        noun = head_map.noun(values, part)
        if len(values) < 2 or (scores.by, noun) in used_keys:  # one such chart is enough; the map shows all of them
            continue
        used_keys.add((scores.by, noun))
        rows = []
        for rank, unit in enumerate(sorted(values, key=lambda unit: values[unit]), 1):
            reach = 2 * scores.errors.get(unit, 0.0)
            text = f"{unit}: {three(values[unit])}" + (
                f" ± {three(scores.errors[unit])}" if unit in scores.errors else ""
            )
            span = {"low": values[unit] - reach, "high": values[unit] + reach}
            rows.append(
                {"unit": unit, "rank": rank, "score": values[unit], **span, "gone": unit in part.removed, "text": text}
            )
        chart = charts.ranking("ranking", _thinned(rows), noun=noun, by=name)
        about = f"Each point is one of the {len(rows)} {noun}; the higher, the more it matters. "
        about += (
            "Lines reach two standard errors up and down: where they overlap, the order is a toss-up."
            if any(row["low"] < row["high"] for row in rows)
            else "How sure the order is cannot be told from one run: compare seeds."
        )
        out.append(
            Section(
                "ranking",
                f"The order by {name}",
                about,
                _criterion(scores),
                (chart,),
                notes=(*_stability(scores), *filled(scores.document.data.fill)),
            )
        )
    return out


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every so manieth row where there are too many to draw."""
    return rows[:: math.ceil(len(rows) / charts.MOST_MARKS)] if len(rows) > charts.MOST_MARKS else rows


def _criterion(scores: Measured) -> str:
    sources = {
        "taylor": f"Expected sensitivity to a gate on each head: {MICHEL}, equation 2.",
        "ablation": f"The loss without the unit, measured: {MICHEL}, section 3.",
        "confidence": "Mean of the largest attention weight: Voita et al. 2019.",
        "l0": "How open a learned gate is: Voita et al. 2019, after Louizos, Welling and Kingma 2018.",
        "subset": "The logit of a learned gate: Li, Cotterell and Sachan 2021.",
        "movement": "How far training moved a gate away from zero: Sanh, Wolf and Rush 2020.",
    }
    return sources.get(scores.by, "")


def _stability(scores: Measured) -> tuple[str, ...]:
    rows = scores.document.data.stability
    if not rows:
        return ()
    last = rows[-1]
    return (
        f"Scores from two different sets of {last.n} examples have a rank correlation of {last.correlation:.2f} "
        f"[{last.low:.2f}, {last.high:.2f}] and share {percent(last.overlap)} of their lower half.",
    )


def spreads(part: Part) -> list[Section]:
    """Units that are too many for a map, summed up by site."""
    out = []
    for grid in part.grids:
        if not grid.large:
            continue
        for name, scores in zip(head_map.score_names(part), part.scores, strict=True):
            rows = []
            for site, units in grid.rows.items():
                values = sorted(scores.values[unit] for unit in units if unit in scores.values)
                if values:
                    five = {key: values[round(share * (len(values) - 1))] for key, share in _FIVE.items()}
                    text = f"{site}: {len(values):,} units, median {three(five['mid'])}, highest {three(five['high'])}"
                    rows.append({"site": site, "units": len(values), **five, "text": text})
            if not rows:
                continue
            noun = head_map.NOUNS.get(grid.kind, "units")
            columns = (Column("site"), Column("units", with_commas, True), *(Column(c, three, True) for c in _FIVE))
            table = Table(
                "spread",
                f"Scores of {noun} by {name}.",
                columns,
                tuple(tuple(row[c] for c in ("site", "units", *_FIVE)) for row in rows),
            )
            about = (
                f"{len(grid.units):,} {noun} are too many to draw one by one. Lines run from the lowest to the highest score "
                "in each site, bars hold the middle half, the tick is the median."
            )
            chart = charts.spread("spread", rows[:80], noun=noun, by=name)
            out.append(Section("spread", f"{noun.capitalize()} by site, {name}", about, "", (chart,), (table,)))
    return out


_FIVE = {"low": 0.0, "q1": 0.25, "mid": 0.5, "q3": 0.75, "high": 1.0}


# -- ablation --------------------------------------------------------------------------------------------------------------


def effects(part: Part) -> list[Section]:
    """The model without one unit at a time: Figure 1."""
    out = []
    for name, (document, effects) in zip(head_map.ablation_names(part), part.effects, strict=True):
        if not effects:
            continue
        first = effects[0].comparison
        noun = head_map.noun([e.unit for e in effects], part)
        rows = [
            {
                "unit": e.unit,
                "value": e.comparison.after,
                "kind": _verdict(e.comparison),
                "text": f"without {e.unit}: {difference_text(e.comparison)}, p = {probability(e.comparison.p)}",
            }
            for e in effects
        ]
        chart = charts.effects("effects", rows, metric=first.metric, noun=noun, base=first.before)
        called = "" if name == "ablation" else f" ({document.run.folder.name})"
        about = (
            f"Each brick is the model without one of its {len(effects)} {noun}, everything else in place; the bin around the "
            "line holds those that change next to nothing. Orange lose and green gain, as far as can be shown after Holm's "
            f"correction for {counted(len(effects), 'test')}; for the pale ones no difference could be shown."
        )
        out.append(
            Section(
                "effects",
                f"One at a time{called}",
                about,
                f"{MICHEL}, Figure 1; Holm 1979.",
                (chart,),
                notes=(_counted(effects), *filled(document.data.fill)),
            )
        )
    return out


def filled(fill: FillDocument | None) -> tuple[str, ...]:
    """What stood in for masked units, where it was not zero."""
    return () if fill is None else (f"Masked units do not write zero here: they are given {fill.words}.",)


def _verdict(comparison: Comparison) -> str:
    if not beyond_chance(comparison):
        return "chance"
    return "worse" if comparison.worse else "better"


def _counted(effects: Sequence[Effect]) -> str:
    """How many differences are significant: one by one, and corrected for so many tests."""
    first, parts = effects[0].comparison, []
    for title, field in (("one by one", "p"), ("Benjamini-Hochberg", "p_bh"), ("Holm", "p_holm")):
        if all(getattr(e.comparison, field) is None for e in effects):
            continue  # not corrected that way
        low = [e.comparison for e in effects if beyond_chance(e.comparison, field)]
        worse = sum(comparison.worse for comparison in low)
        parts.append(f"{title} {len(low)} ({worse} worse, {len(low) - worse} better)")
    return f"Significant at {ALPHA} ({first.test}, n = {first.n}): {'; '.join(parts)}."


def one_head(part: Part) -> list[Section]:
    """One head alone in each attention."""
    out = []
    for document in part.of(AllButOneDocument):
        sets, base = document.data.sets, document.data.base
        rows = []
        for row in document.data.attentions:
            comparison = row.comparison
            rows.append((row.site, row.head, row.chosen_on, *in_points(comparison), comparison.p, comparison.p_holm))
        columns = (
            Column("attention"),
            Column("head kept", str, True),
            Column("when chosen", three, True),
            *difference_columns([row.comparison for row in document.data.attentions]),
            Column("p", probability, True),
            Column("p (Holm)", probability, True),
        )
        caption = f"{base.metric} with one head per attention; whole model {result_text(base)}, n = {base.n}."
        about = (
            "Each attention in turn keeps only its best head, and all its others are masked. The head is chosen on other "
            "examples than those it is reported on" + (f": {sets}." if sets else ".")
        )
        table = Table("all-but-one", caption, columns, tuple(rows))
        notes = filled(document.data.fill)
        out.append(Section("one-head", "All heads but one", about, f"{MICHEL}, Tables 5 and 6.", (), (table,), notes))
    return out


def transfers(part: Part) -> list[Section]:
    """The same ablation on two data sets."""
    out = []
    for document in part.of(TransferDocument):
        first_data, second_data = (head_map.data_name(document, side) for side in ("one", "other"))
        out.append(_transfer(part, document.data, first_data, second_data))
    return out


def _transfer(part: Part, data: TransferDocument, first_data: str, second_data: str) -> Section:
    format_value = partial(fixed, digits=digits_for((*data.damage.one, *data.damage.other)))
    pairs = zip(data.units, data.damage.one, data.damage.other, strict=True)
    rows = [{"unit": u, "x": x, "y": y, "text": f"{u}: {format_value(x)} and {format_value(y)}"} for u, x, y in pairs]
    noun = head_map.noun(data.units, part)
    chart = charts.scatter(
        "transfer", _thinned(rows), first_data=first_data, second_data=second_data, metric=data.one.metric, noun=noun
    )
    columns = (
        Column("correlation"),
        *(Column(title, lambda value: fixed(value, 2), True) for title in ("value", "low", "high")),
        Column("p", probability, True),
        Column(noun, with_commas, True),
    )
    cells = tuple((r.name, r.value, r.low, r.high, r.p, r.n) for r in (data.pearson, data.spearman))
    caption = f"Damage of masking each unit on {first_data} and on {second_data}."
    about = (
        f"Each point is one of the {len(rows)} {noun}: what is lost without it on {first_data}, and on {second_data}. Where the "
        "points lie along a line, the same ones matter on both."
    )
    sides = ((first_data, data.one), (second_data, data.other))
    wholes = [f"{name}: {result.metric} {result_text(result)}, n = {result.n}" for name, result in sides]
    note = "Whole model on " + "; on ".join(wholes) + "."
    table = Table("transfer", caption, columns, cells)
    notes = tuple(text for text in (related(data), room(data), note, *filled(data.fill)) if text)
    return Section("transfer", "On other data", about, f"{MICHEL}, Figure 2.", (chart,), (table,), notes)


def every_unit(part: Part) -> list[Section]:
    """All that is known about every unit, as one table."""
    unit_map = head_map.build(part)
    if unit_map is None or not (part.scores or part.effects):
        return []
    columns = [Column("unit")]
    values: list[Mapping[str, Any]] = [dict(zip(unit_map.units, unit_map.units, strict=True))]
    for name, scores in zip(head_map.score_names(part), part.scores, strict=True):
        columns += [Column(f"score ({name})", three, True), Column(f"rank ({name})", with_commas, True)]
        values += [scores.values, head_map.ranks(scores)]
        if scores.errors:
            columns.append(Column(f"s.e. ({name})", three, True))
            values.append(scores.errors)
    for name, (_, effects) in zip(head_map.ablation_names(part), part.effects, strict=True):
        called = name.removeprefix("ablation")
        columns += difference_columns([e.comparison for e in effects], called)
        values += [{e.unit: in_points(e.comparison)[place] for e in effects} for place in range(3)]
        columns += [Column(f"p{called}", probability, True), Column(f"p (Holm){called}", probability, True)]
        values += [{e.unit: e.comparison.p for e in effects}, {e.unit: e.comparison.p_holm for e in effects}]
    if part.roles:
        columns.append(Column("role"))
        values.append(part.roles)
    if part.removed:
        columns.append(Column("removed"))
        values.append({unit: "yes" if unit in part.removed else "no" for unit in unit_map.units})
    rows = [tuple(column.get(unit) for column in values) for unit in unit_map.units]
    rows = [row for row in rows if any(value is not None for value in row[1:])]
    table_rows = rows
    if len(rows) > MOST_ROWS:
        table_rows = sorted(rows, key=lambda row: -(row[1] if isinstance(row[1], int | float) else 0))[:MOST_ROWS]
    caption = (
        f"All {len(rows):,} units."
        if len(table_rows) == len(rows)
        else f"The first {len(table_rows):,} of {len(rows):,} units."
    )
    table = Table("units", caption, tuple(columns), tuple(table_rows))
    return [Section("units", "Every unit", "The numbers behind the map.", "", (), (table,), folded=True)]
