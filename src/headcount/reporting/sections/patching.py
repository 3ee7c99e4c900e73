"""Activation patching as a section of a report: a map of layers and heads, or of layers and positions. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...documents.interventions.patch import PatchDocument, PatchedUnit
from ...formatting import Column, Table, counted, fixed, probability, result_text
from ...plans import index_of, site_of
from ...stats.results import difference_columns, in_points
from .. import charts
from ..charts import Chart
from ..findings import Part
from ..run_reader import Document, beyond_chance, checked
from .measurements import MOST_ROWS, Section

MOST_CELLS = 6_000  # of a map
RESIDUAL = "residual"
METHOD = "Meng et al. 2022; Heimersheim and Nanda 2024"
QUESTIONS = {
    "denoising": "Corrupted prompts run with one activation from the clean ones: 0 is the corrupted prompt, 1 is the clean one, "
    "and what is near 1 is enough to bring the clean answer back.",
    "noising": "Clean prompts run with one activation from the corrupted ones: 1 is the clean prompt, 0 is the corrupted one, "
    "and what is near 0 is needed for the clean answer.",
}
COLOURS = "Blue leads away from no patch towards the other prompt, orange the other way; * is significant (Holm, 5 %)."


def patchings(part: Part) -> list[Section]:
    """A section for every run of `patch`."""
    return [_section(document) for document in part.of(PatchDocument)]


def _section(document: Document[PatchDocument]) -> Section:
    data = document.data
    what = "residual stream, before layer x at position" if data.units == RESIDUAL else data.units
    rows = checked(document, _rows)
    found = sum(beyond_chance(one.comparison) for one in data.patches)
    sides = " and ".join(
        f"{result_text(result)} on {side} prompts"
        for side, result in (("clean", data.clean), ("corrupted", data.corrupted))
    )
    about = f"{QUESTIONS.get(data.direction, '')} {COLOURS} The {data.clean.metric} is {sides} (n={data.clean.n})."
    where = "" if data.at in ("all", "") else f", at positions {data.at}"
    notes = [
        f"{counted(found, 'patch', 'patches')} of {len(data.patches):,} differ from no patch beyond chance (Holm, 5 %)."
    ]
    if not any(one.normalised_low is not None for one in data.patches):
        notes.append(
            "These examples do not show that clean and corrupted prompts differ, so the scale from 0 to 1 says nothing."
        )
    return Section(
        "patching",
        f"Activation patching, {data.direction}: {what}{where}",
        about,
        METHOD,
        (_chart(data, rows),) if 0 < len(rows) <= MOST_CELLS else (),
        (_table(data),),
        tuple(notes),
    )


def _rows(data: PatchDocument) -> list[dict[str, Any]]:
    """The cells of the map."""
    base = 0.0 if data.direction == "denoising" else 1.0
    places = _places(data.patches, data.units)
    rows = []
    for one in data.patches:
        row, column = places[one.patched]
        moved = one.normalised - base if base == 0 else base - one.normalised
        star = "*" if beyond_chance(one.comparison) else ""
        span = (
            ""
            if one.normalised_low is None or one.normalised_high is None
            else (f" [{one.normalised_low:.2f}, {one.normalised_high:.2f}]")
        )
        text = f"{one.patched}: {one.normalised:.2f}{span}, Holm p {probability(one.comparison.p_holm or one.comparison.p)}"
        rows.append(
            {"row": row, "column": column, "size": abs(moved), "away": moved < 0, "text": text}
            | {"shown": f"{one.normalised:.2f}{star}", "star": star}
        )
    return rows


def _places(patches: Sequence[PatchedUnit], units: str) -> Mapping[str, tuple[str, str]]:
    """Row and column of every patch: layer and position, site and unit, or one row of sites."""
    if units == RESIDUAL:
        stacks = {one.site for one in patches}
        named = {one.patched: str(one.layer) if len(stacks) == 1 else f"{one.site}:{one.layer}" for one in patches}
        return {one.patched: (named[one.patched], one.position or "") for one in patches}
    sites: dict[str, list[str]] = {}
    for one in patches:
        sites.setdefault(one.site or site_of(one.patched), []).append(one.patched)
    if all(len(names) == 1 for names in sites.values()):
        return {names[0]: (units, site) for site, names in sites.items()}
    return {name: (site, _index(name, number)) for site, names in sites.items() for number, name in enumerate(names)}


def _index(name: str, number: int) -> str:
    last = name.rpartition(":")[2]
    return str(index_of(name)) if last.isdecimal() else str(number)


def _chart(data: PatchDocument, rows: Sequence[Mapping[str, Any]]) -> Chart:
    """The map: a cell is the stronger in colour the further it leads from no patch."""
    titles = ("position", "before layer") if data.units == RESIDUAL else ("unit", None)
    words = f"Normalised {data.clean.metric} of every patch ({data.direction}), {data.units}"
    return charts.signed_map("patching", rows, across=titles[0], down=titles[1], words=words)


def _table(data: PatchDocument) -> Table:
    """Patches by how far they lead from no patch."""
    base = 0.0 if data.direction == "denoising" else 1.0
    ordered = sorted(data.patches, key=lambda one: -abs(one.normalised - base))[:MOST_ROWS]
    two = [
        Column(title, lambda value: "" if value is None else fixed(value, 3), True)
        for title in ("normalised", "from", "to")
    ]
    columns = (
        Column("patched"),
        *two,
        *difference_columns([one.comparison for one in ordered]),
        Column("p", probability, True),
        Column("p (Holm)", probability, True),
    )
    cells = tuple(
        (
            *(one.patched, one.normalised, one.normalised_low, one.normalised_high),
            *in_points(one.comparison),
            *(one.comparison.p, one.comparison.p if one.comparison.p_holm is None else one.comparison.p_holm),
        )
        for one in ordered
    )
    caption = f"{data.units} patched ({data.direction}), the furthest from no patch first; differences in {data.clean.metric}."
    return Table("patching", caption, columns, cells)
