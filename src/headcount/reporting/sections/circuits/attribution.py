"""Direct logit attribution as sections of a report: a map of what heads and MLPs add to the logits. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ....documents.circuits.logit_attribution import AttributionDocument, Component
from ....formatting import Column, Table, probability, signed
from ....plans import by_place, index_of, kind_of, site_of
from ....stats.results import Comparison
from ... import charts
from ...charts import Chart
from ...findings import MOST_CELLS, Part
from ...run_reader import beyond_chance, checked
from ..measurements import MOST_ROWS, Section
from .sentences import of_attribution, sentence

METHOD = "Elhage et al. 2021, A Mathematical Framework for Transformer Circuits."
MEANS = {
    "right - wrong": "the logit of the right token less that of the wrong one",
    "right - mean": "the logit of the right token or class less the mean over all",
    "right": "the logit of the right token or class",
}
WHOLE = {"mlp": "MLP"}  # the column of units that are a part as a whole


def attributions(part: Part) -> list[Section]:
    """A section for every run of `attribute`."""
    return [checked(document, _section) for document in part.of(AttributionDocument)]


def _section(data: AttributionDocument) -> Section:
    rows = _rows(data.units)
    drawn = 0 < len(rows) <= MOST_CELLS and not any(
        kind_of(row["name"]) == "neuron" for row in rows if ":" in row["name"]
    )
    about = (
        f"What each unit adds by itself to {MEANS.get(data.logits, data.logits)}, straight through the final norm with its scale "
        f"frozen: {signed(data.total, 2)} in all, on average over {data.n} examples. What later layers make of it counts for "
        "those. Blue adds, orange takes away; * is significant (Holm, 5 %)."
    )
    return Section(
        "attribution",
        f"Direct logit attribution: {data.logits}",
        about,
        METHOD,
        (_chart(data, rows),) if drawn else (),
        (_table(data),),
        (of_attribution(data), *map(sentence, data.notes)),
    )


def _rows(units: Sequence[Component]) -> list[dict[str, Any]]:
    """The cells of the map: a row for each layer's attention, with its MLP beside it."""
    out = []
    for one in units:
        site, column = site_of(one.component), index_of(one.component)
        if ":" not in one.component:
            layer, _, last = one.component.rpartition(".")
            site, column = (layer, WHOLE[last]) if last in WHOLE else (one.component, "attention")
        out.append({"row": site, "column": column, "name": one.component, **_cell(one.component, one.comparison)})
    places = {site: place for place, site in enumerate(by_place({row["row"] for row in out}))}
    return sorted(out, key=lambda row: places[row["row"]])


def _cell(name: str, comparison: Comparison) -> dict[str, Any]:
    value, star = comparison.difference, "*" if beyond_chance(comparison) else ""
    p = comparison.p if comparison.p_holm is None else comparison.p_holm
    text = f"{name}: {signed(value, 3)} [{signed(comparison.low, 3)}, {signed(comparison.high, 3)}], Holm p {probability(p)}"
    return {"size": abs(value), "away": value < 0, "text": text, "shown": f"{signed(value, 2)}{star}", "star": star}


def _chart(data: AttributionDocument, rows: Sequence[dict[str, Any]]) -> Chart:
    found = dict.fromkeys(row["column"] for row in rows)
    columns = sorted((name for name in found if name.isdecimal()), key=int)
    columns += [name for name in found if not name.isdecimal()]
    words = f"What each head and MLP adds to the logits ({data.logits}), a row for each layer"
    return charts.signed_map("attribution", rows, across="unit", down="layer", words=words, columns=columns)


def _table(data: AttributionDocument) -> Table:
    ordered = sorted(data.units, key=lambda one: -abs(one.comparison.difference))[:MOST_ROWS]
    three = partial(signed, digits=3)
    columns = (
        Column("component"),
        *(Column(title, three, True) for title in ("adds", "low", "high")),
        Column("p", probability, True),
        Column("p (Holm)", probability, True),
    )
    rows = tuple((one.component, *_numbers(one.comparison)) for one in (*ordered, *data.others))
    caption = (
        f"What components add to the logits ({data.logits}), the most first; embeddings, biases and the rest last."
    )
    return Table("attribution", caption, columns, rows)


def _numbers(comparison: Comparison) -> tuple[Any, ...]:
    return comparison.difference, comparison.low, comparison.high, comparison.p, comparison.p_holm
