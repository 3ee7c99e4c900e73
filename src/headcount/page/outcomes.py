"""What pruning came to, as sections of a report: the guarantee, speed and size, what was removed. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import charts
from .answers import reference
from .findings import Part, checked, number
from .sections import MICHEL, Section
from .tables import Column, Table, bytes_text, fixed, percent, probability, signed, three, times, whole


def guarantee(part: Part) -> list[Section]:
    """The tested sequence, if `prune` was asked for a largest drop."""
    found = (part.prune or {}).get("guarantee")
    if not found:
        return []
    units = str((part.prune or {}).get("units", "units"))

    def build(_: dict[str, Any]) -> Section:
        rows = []
        for step in found["steps"]:
            word = "shown" if step["shown"] else "not shown"
            numbers = {key: number(step[key]) for key in ("damage", "bound", "p")}
            text = (
                f"{step['removed']} removed: {signed(-numbers['damage'])} points, at most "
                f"{fixed(numbers['bound'], 2)} lost, p = {probability(numbers['p'])}: {word}"
            )
            rows.append(
                {
                    "removed": int(step["removed"]),
                    **numbers,
                    "value": number(step["value"]),
                    "outcome": word,
                    "text": text,
                }
            )
        drop, sure = number(found["drop"]), percent(1 - number(found["alpha"]))
        chart = charts.guarantee("guarantee", rows, drop=drop, metric=str(found["metric"]), noun=units)
        columns = (
            Column("removed", whole, True),
            Column(str(found["metric"]), three, True),
            Column("points lost", lambda value: signed(value, 2), True),
            Column("upper bound", lambda value: signed(value, 2), True),
            Column("p", probability, True),
            Column("outcome"),
        )
        cells = tuple((r["removed"], r["value"], r["damage"], r["bound"], r["p"], r["outcome"]) for r in rows)
        caption = (
            f"Plans tested one after the other against a loss of {drop:g} points (n = {found['n']}, {found['test']})."
        )
        last = rows[-1] if rows else None
        stopped = (
            ""
            if last is None
            else (
                f"It stopped at {last['removed']} because a loss of {drop:g} points could not be ruled out there."
                if last["outcome"] == "not shown"
                else f"It went on to the end: all {len(rows)} plans could be shown."
            )
        )
        needed = found.get("needed")
        more = f"About {whole(number(needed))} examples would be needed to show more." if needed else ""
        about = (
            f"Plans are tested from the mildest on, on {found['n']} examples that had no part in choosing the order. Each must "
            f"show, with {sure} confidence, that at most {drop:g} points are lost; the first that cannot ends the sequence. "
            "That keeps the error rate without any further correction."
        )
        source = "Fixed-sequence testing: Maurer, Hothorn and Lehmacher 1995."
        notes = tuple(note for note in (str(found.get("sentence") or ""), stopped, more) if note)
        table = Table("guarantee", caption, columns, cells)
        return Section("guarantee", "The guarantee", about, source, (chart,) if rows else (), (table,), notes)

    return [checked(part.of("prune")[0], build)]


def speeds(part: Part) -> list[Section]:
    """Each `bench`, or the one that `prune` made."""
    found = [(document, document.data) for document in part.of("bench")]
    if not found and part.prune is not None and part.prune.get("speed"):
        found = [(part.of("prune")[0], part.prune["speed"])]
    return [checked(document, lambda _, data=data: _speed(data)) for document, data in found]


def _speed(data: Mapping[str, Any]) -> Section:
    first = reference(data)
    rows, cells = [], []
    several = len({row["length"] for row in data["rows"]}) > 1
    for row in data["rows"]:
        where = f"batch {row['batch']}" + (f", {row['length']}" if several else "")
        text = f"{row['model']}, {where}: {times(number(row['ratio']))}, limit {times(number(row['limit']))}"
        span = {"ratio": number(row["ratio"]), "low": number(row["ratio_low"]), "high": number(row["ratio_high"])}
        if row["model"] != first:
            rows.append(
                {"place": where, "model": str(row["model"]), **span, "limit": number(row["limit"]), "text": text}
            )
        cells.append(
            (
                str(row["model"]),
                int(row["batch"]),
                int(row["length"]),
                number(row["examples_per_second"]),
                *span.values(),
                number(row["limit"]),
                row.get("arrived"),
                row.get("peak_memory"),
            )
        )
    columns: tuple[Column, ...] = (
        Column("model"),
        Column("batch", whole, True),
        Column("length", whole, True),
        Column("examples / s", lambda value: f"{value:,.1f}" if value < 100 else whole(value), True),
        *(Column(title, times, True) for title in ("ratio", "q25", "q75", "limit")),
        Column("arrived", percent, True),
        Column("peak memory", bytes_text, True),
    )
    if all(row[-1] is None for row in cells):  # memory is measured on GPUs only
        columns, cells = columns[:-1], [row[:-1] for row in cells]
    compiled = ", compiled" if data.get("compile") else ""
    caption = (
        f"{data['device']}, {data['dtype']}{compiled}, torch {data['torch']}, median of {data['repeats']} repetitions."
    )
    sizes = Table(
        "models",
        "The models compared.",
        (Column("model"), Column("class"), Column("parameters", whole, True), Column("weights", bytes_text, True)),
        tuple((str(m["name"]), str(m["class"]), m["parameters"], m["bytes"]) for m in data["models"]),
    )
    about = (
        f"Bars: how many times as fast as {first}, measured in turns on the same machine; lines hold the middle half of the "
        "repetitions. The orange tick is the limit, what the count of multiply-adds would allow."
    )
    chart = (charts.speed("speed", rows, reference=first),) if rows else ()
    return Section(
        "speed",
        "Speed and size",
        about,
        f"{MICHEL}, Table 4.",
        chart,
        (Table("speed", caption, columns, tuple(cells)), sizes),
    )


def removed(part: Part) -> list[Section]:
    """Site by site, what is gone."""
    if part.prune is None:
        return []

    def build(data: dict[str, Any]) -> Section:
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
            Column("removed", _shortened),
            Column("units", whole, True),
            Column("left", whole, True),
            Column("manner"),
            Column("parameters saved", whole, True),
        )
        caption = f"What was removed from {data['model']}: {data['removed']} of {data['of']} {data['units']}."
        about = (
            "The weights of these units are no longer in the checkpoint: matrices are smaller, nothing is masked. Indices are "
            "those of the original model."
        )
        gone_table = Table("removed", caption, columns, tuple(rows))
        return Section(
            "removed",
            "What was removed",
            about,
            "",
            (),
            (gone_table, _sets(data)) if data.get("sets") else (gone_table,),
        )

    return [checked(part.of("prune")[0], build)]


def _shortened(indices: str) -> str:
    """Many indices with the end left out; CSV has all of them."""
    return indices if len(indices) <= 120 else indices[:117].rpartition(",")[0] + ", …"


def _sets(data: Mapping[str, Any]) -> Table:
    """Which examples were used for what."""
    columns = (Column("used"), Column("data"), Column("examples", whole, True))
    rows = tuple((str(one.get("what") or one["role"]), str(one["data"]), int(one["n"])) for one in data["sets"])
    return Table("sets", "Which examples were used for what.", columns, rows)
