"""What pruning came to, as sections of a report: the guarantee, speed and size, what was removed. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...formatting import (
    Column,
    Table,
    counted,
    digits_for,
    listed,
    memory_text,
    percent,
    probability,
    signed,
    speed_text,
    three,
    times,
    whole,
)
from ...stats.guarantee import least_in_words, unit_of
from .. import charts
from ..findings import Part
from ..model_card import counts, shortened
from ..run_reader import Document, checked, number
from ..summary import reference
from .measurements import MICHEL, Section

SURENESS = {"exact": "exact", "bounded": "bounded by betting", "bootstrap": "approximate, by a bootstrap"}
QUARTILES = ("lower quartile", "upper quartile")
MANNERS = {
    "slim": "all weights of the units are gone",
    "even": "all weights of the heads are gone, and every group that shares keys and values has equally many left",
    "indexed": "the heads' own weights are gone; those left find the keys and values that they share by an index",
    "padded": "the weights are gone, and zeros stand where the model's code counts on what they gave",
    "empty": "no unit is left; what remains is a constant",
    "deleted": "the whole layer is gone",
}


def guarantee(part: Part) -> list[Section]:
    """The sequence tested by each `prune` that was asked for a largest drop."""
    asked = [one for one in part.prunes if one.data.get("guarantee")]
    return [checked(one, lambda data, one=one: _guarantee(data, called_of(one, part.prunes))) for one in asked]


def called_of(document: Document, among: Sequence[Document]) -> str:
    """The folder of a document, where there are several of its kind to be told apart."""
    return f" ({document.run.folder.name})" if len(among) > 1 else ""


def _guarantee(data: Mapping[str, Any], called: str) -> Section:
    found, units = data["guarantee"], str(data.get("units", "units"))
    unit, drop = unit_of(str(found["metric"])).removeprefix("in "), number(found["drop"])
    lost = counted(drop, "point") if unit == "points" else f"{drop:g} in {unit}"
    shown = partial(signed, digits=digits_for((number(step["bound"]) for step in found["steps"]), more=1))
    rows = []
    for step in found["steps"]:
        word = "shown" if step["shown"] else "not shown"
        numbers = {key: number(step[key]) for key in ("damage", "bound", "p")}
        text = (
            f"{step['removed']} removed: {shown(-numbers['damage'])} {unit}, at most "
            f"{shown(numbers['bound']).lstrip('+')} lost, p = {probability(numbers['p'])}: {word}"
        )
        told = {"removed": int(step["removed"]), "value": number(step["value"]), "outcome": word, "text": text}
        rows.append({**told, **numbers})
    sure = percent(1 - number(found["alpha"]))
    chart = charts.guarantee("guarantee", rows, drop=drop, metric=str(found["metric"]), unit=unit, noun=units)
    columns = (
        Column("removed", whole, True),
        Column(str(found["metric"]), three, True),
        Column("points lost" if unit == "points" else f"worse by, in {unit}", shown, True),
        Column("upper bound", shown, True),
        Column("p", probability, True),
        Column("outcome"),
    )
    cells = tuple((r["removed"], r["value"], r["damage"], r["bound"], r["p"], r["outcome"]) for r in rows)
    groups = "" if found.get("groups") is None else f" in {found['groups']} groups"
    caption = f"Plans tested one after the other against a loss of {lost} (n = {found['n']}{groups}, {SURENESS[found['test']]})."
    about = (
        f"Plans are tested from the mildest on, on {found['n']} examples that had no part in choosing the order. Each must "
        f"show, with {sure} confidence, that it loses less than {lost}; the first that cannot ends the sequence. "
        "That keeps the error rate without any further correction."
    )
    stopped = f"It went on to the end: {'the one plan' if len(rows) == 1 else f'all {len(rows)} plans'} could be shown."
    if rows and rows[-1]["outcome"] == "not shown":
        stopped = f"It stopped at {rows[-1]['removed']} because a loss of {lost} could not be ruled out there."
    needed, least = found.get("needed"), found.get("least")  # an earlier version wrote no least, cap or groups
    beyond = [int(step.get("beyond", 0)) for step in found["steps"] if step["shown"]][-1:]
    notes = [
        _sentence(str(found.get("sentence") or "")),
        stopped if rows else "",
        f"About {whole(number(needed))} examples would be needed to show more." if needed else "",
        "" if least is None else _sentence(least_in_words(found["n"], number(least), str(found["metric"]))),
        _capped(found, beyond[0]) if beyond and found.get("cap") is not None else "",
        f"The interval of the difference on the {data['comparison']['n']} examples of the report is a separate, two-sided "
        "check on other, often fewer examples; it is wider than the tested bound and may reach beyond the allowed drop.",
    ]
    source = "Fixed-sequence testing: Maurer, Hothorn and Lehmacher 1995."
    table = Table("guarantee", caption, columns, cells)
    told_notes = tuple(note for note in notes if note)
    title = f"The guarantee{called}"
    return Section("guarantee", title, about, source, (chart,) if rows else (), (table,), told_notes)


def _capped(found: Mapping[str, Any], beyond: int) -> str:
    """How many examples counted for less than they changed by, in the plan that was kept."""
    whose = "example" if found.get("groups") is None else "group"
    return (
        f"In the plan kept, {counted(beyond, whose)} changed by more than {number(found['cap']):g} and counted as that."
    )


def _sentence(text: str) -> str:
    """A text that begins with a capital letter and ends with a full stop."""
    return text and text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


# -- speed and size --------------------------------------------------------------------------------------------------------


def speeds(part: Part) -> list[Section]:
    """Each `bench`, and what each `prune` measured itself."""
    benches = part.of("bench")
    out = [(one, one.data, "Speed and size" + called_of(one, benches)) for one in benches]
    for one in part.prunes:
        if one.data.get("speed"):
            title = "Speed and size, as prune measured them" if benches else "Speed and size"
            out.append((one, one.data["speed"], title + called_of(one, part.prunes)))
    return [checked(one, lambda _, data=data, title=title: _speed(data, title)) for one, data, title in out]


def _speed(data: Mapping[str, Any], title: str) -> Section:
    first = reference(data)
    rows, cells = [], []
    lengths = {row["length"] for row in data["rows"]}
    for row in data["rows"]:
        where = f"batch {row['batch']}" + (f", {row['length']}" if len(lengths) > 1 else "")
        text = f"{row['model']}, {where}: {times(number(row['ratio']))}, limit {times(number(row['limit']))}"
        span = {"ratio": number(row["ratio"]), "low": number(row["ratio_low"]), "high": number(row["ratio_high"])}
        if row["model"] != first:
            told = {"place": where, "model": str(row["model"]), "limit": number(row["limit"]), "text": text}
            rows.append({**told, **span})
        where_at = (str(row["model"]), int(row["batch"]), None if row["length"] is None else int(row["length"]))
        speed = (number(row[key]) for key in ("examples_per_second", "low", "high"))
        limit = (number(row["limit"]), row.get("arrived"), row.get("peak_memory"))
        cells.append((*where_at, *speed, *span.values(), *limit))
    columns: tuple[Column, ...] = (
        Column("model"),
        Column("batch", whole, True),
        Column("tokens", whole, True),
        *(Column(heading, speed_text, True) for heading in ("examples/s", *QUARTILES)),
        *(Column(heading, times, True) for heading in ("times as fast", *QUARTILES)),
        Column("limit", times, True),
        Column("arrived", percent, True),
        Column("peak memory", memory_text, True),
    )
    kept = [n for n in range(len(columns)) if any(row[n] is not None for row in cells)]  # what was measured at all
    compiled = ", compiled" if data.get("compile") else ""
    caption = (
        f"{data['device']}, {data['dtype']}{compiled}, torch {data['torch']}: medians and quartiles of "
        f"{counted(number(data['repeats']), 'repetition')}."
    )
    table = Table(
        "speed",
        caption,
        tuple(columns[n] for n in kept),
        tuple(tuple(row[n] for n in kept) for row in cells),
    )
    sizes = Table(
        "models",
        "The models compared.",
        (
            Column("model"),
            Column("class"),
            Column("parameters", whole, True),
            Column("weights in memory", memory_text, True),
        ),
        tuple((str(m["name"]), str(m["class"]), m["parameters"], m["bytes"]) for m in data["models"]),
    )
    about = (
        f"Bars: times as fast as {first}, the median over repetitions in which both ran in turns; it need not equal the "
        "quotient of the two medians. Lines hold the middle half of the repetitions. The orange tick is the limit, what the "
        "count of multiply-adds would allow; “arrived” is how much of that gain was measured."
    )
    chart = (charts.speed("speed", rows, reference=first),) if rows else ()
    notes = tuple(map(str, data.get("notes") or ()))
    return Section("speed", title, about, f"{MICHEL}, Table 4.", chart, (table, sizes), notes)


# -- what was removed ------------------------------------------------------------------------------------------------------


def removed(part: Part) -> list[Section]:
    """Site by site, what each `prune` took away."""

    def build(data: dict[str, Any], called: str) -> Section:
        gone: dict[str, list[str]] = {}
        for site, chosen in data["plan"]["remove"].items():
            gone[str(site)] = [str(chosen)]
        rows = [
            (
                str(s["name"]),
                "".join(gone.get(str(s["name"]), [])),
                s["units"],
                s["left"],
                str(s["manner"]),
                s["parameters"],
            )
            for s in data["sites"]
        ]
        columns = (
            Column("site"),
            Column("removed", shortened),
            Column("units", whole, True),
            Column("left", whole, True),
            Column("manner"),
            Column("parameters saved", whole, True),
        )
        gone_of = listed([f"{whole(had - has)} of {whole(had)} {noun}" for noun, had, has in counts(data)])
        caption = f"What was removed from {data['model']}: {gone_of}."
        about = (
            "The weights of these units are no longer in the checkpoint: matrices are smaller, nothing is masked. Indices are "
            "those of the original model."
        )
        gone_table = Table("removed", caption, columns, tuple(rows))
        return Section(
            "removed",
            f"What was removed{called}",
            about,
            "",
            (),
            (gone_table, _sets(data)) if data.get("sets") else (gone_table,),
            tuple(f"Manner “{name}”: {words}." for name, words in MANNERS.items() if name in {row[4] for row in rows}),
        )

    return [checked(one, lambda data, one=one: build(data, called_of(one, part.prunes))) for one in part.prunes]


def _sets(data: Mapping[str, Any]) -> Table:
    """Which examples were used for what."""
    columns = (Column("used"), Column("data"), Column("examples", whole, True))
    rows = tuple((str(one.get("what") or one["role"]), str(one["data"]), int(one["n"])) for one in data["sets"])
    note = f" Note: {data['sets_note']}." if data.get("sets_note") else ""
    return Table("sets", f"Which examples were used for what.{note}", columns, rows)
