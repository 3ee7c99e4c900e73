"""What pruning came to, as sections of a report: the guarantee, speed and size, what was removed. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...documents.bench import Bench
from ...documents.prune import GuaranteeDocument, PruneDocument
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
    with_commas,
)
from ...plans import ranges
from ...stats.guarantee import least_in_words, unit_of
from .. import charts
from ..findings import Part
from ..model_card import counts, shortened
from ..run_reader import Document
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
    return [
        _guarantee(document.data, document.data.guarantee, called_of(document, part.prunes))
        for document in part.prunes
        if document.data.guarantee is not None
    ]


def called_of(document: Document[Any], among: Sequence[Document[Any]]) -> str:
    """The folder of a document, where there are several of its kind to be told apart."""
    return f" ({document.run.folder.name})" if len(among) > 1 else ""


def _guarantee(data: PruneDocument, promise: GuaranteeDocument, called: str) -> Section:
    unit, drop = unit_of(promise.metric).removeprefix("in "), promise.drop
    lost = counted(drop, "point") if unit == "points" else f"{drop:g} in {unit}"
    format_value = partial(signed, digits=digits_for((step.bound for step in promise.steps), more=1))
    rows = []
    for step in promise.steps:
        word = "shown" if step.shown else "not shown"
        text = (
            f"{step.removed} removed: {format_value(-step.damage)} {unit}, at most "
            f"{format_value(step.bound).lstrip('+')} lost, p = {probability(step.p)}: {word}"
        )
        row = {"removed": step.removed, "value": step.value, "outcome": word, "text": text}
        rows.append({**row, "damage": step.damage, "bound": step.bound, "p": step.p})
    sure = percent(1 - promise.alpha)
    chart = charts.guarantee("guarantee", rows, drop=drop, metric=promise.metric, unit=unit, noun=data.units)
    columns = (
        Column("removed", with_commas, True),
        Column(promise.metric, three, True),
        Column("points lost" if unit == "points" else f"worse by, in {unit}", format_value, True),
        Column("upper bound", format_value, True),
        Column("p", probability, True),
        Column("outcome"),
    )
    cells = tuple((r["removed"], r["value"], r["damage"], r["bound"], r["p"], r["outcome"]) for r in rows)
    groups = "" if promise.groups is None else f" in {promise.groups} groups"
    caption = f"Plans tested one after the other against a loss of {lost} (n = {promise.n}{groups}, {SURENESS[promise.test]})."
    about = (
        f"Plans are tested from the mildest on, on {promise.n} examples that had no part in choosing the order. Each must "
        f"show, with {sure} confidence, that it loses less than {lost}; the first that cannot ends the sequence. "
        "That keeps the error rate without any further correction."
    )
    stopped = f"It went on to the end: {'the one plan' if len(rows) == 1 else f'all {len(rows)} plans'} could be shown."
    if rows and rows[-1]["outcome"] == "not shown":
        stopped = f"It stopped at {rows[-1]['removed']} because a loss of {lost} could not be ruled out there."
    beyond = [step.beyond for step in promise.steps if step.shown][-1:]
    notes = [
        _sentence(promise.sentence),
        stopped if rows else "",
        f"About {with_commas(promise.needed)} examples would be needed to show more." if promise.needed else "",
        "" if promise.least is None else _sentence(least_in_words(promise.n, promise.least, promise.metric)),
        _capped(promise, beyond[0]) if beyond and promise.cap is not None else "",
        f"The interval of the difference on the {data.comparison.n} examples of the report is a separate, two-sided "
        "check on other, often fewer examples; it is wider than the tested bound and may reach beyond the allowed drop.",
    ]
    source = "Fixed-sequence testing: Maurer, Hothorn and Lehmacher 1995."
    table = Table("guarantee", caption, columns, cells)
    told_notes = tuple(note for note in notes if note)
    title = f"The guarantee{called}"
    return Section("guarantee", title, about, source, (chart,) if rows else (), (table,), told_notes)


def _capped(promise: GuaranteeDocument, beyond: int) -> str:
    """How many examples counted for less than they changed by, in the plan that was kept."""
    whose = "example" if promise.groups is None else "group"
    return f"In the plan kept, {counted(beyond, whose)} changed by more than {promise.cap:g} and counted as that."


def _sentence(text: str) -> str:
    """A text that begins with a capital letter and ends with a full stop."""
    return text and text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


# -- speed and size --------------------------------------------------------------------------------------------------------


def speeds(part: Part) -> list[Section]:
    """Each `bench`, and what each `prune` measured itself."""
    benches = part.of(Bench)
    out = [_speed(document.data, "Speed and size" + called_of(document, benches)) for document in benches]
    for document in part.prunes:
        if document.data.speed is not None:
            title = "Speed and size, as prune measured them" if benches else "Speed and size"
            out.append(_speed(document.data.speed, title + called_of(document, part.prunes)))
    return out


def _speed(data: Bench, title: str) -> Section:
    first = data.reference
    rows, cells = [], []
    lengths = {row.length for row in data.rows}
    for row in data.rows:
        where = f"batch {row.batch}" + (f", {row.length}" if len(lengths) > 1 else "")
        text = f"{row.model}, {where}: {times(row.ratio)}, limit {times(row.limit)}"
        span = {"ratio": row.ratio, "low": row.ratio_low, "high": row.ratio_high}
        if row.model != first:
            fields = {"place": where, "model": row.model, "limit": row.limit, "text": text}
            rows.append({**fields, **span})
        where_at = (row.model, row.batch, row.length)
        speed = (row.examples_per_second, row.low, row.high)
        limit = (row.limit, row.arrived, row.peak_memory)
        cells.append((*where_at, *speed, *span.values(), *limit))
    columns: tuple[Column, ...] = (
        Column("model"),
        Column("batch", with_commas, True),
        Column("tokens", with_commas, True),
        *(Column(heading, speed_text, True) for heading in ("examples/s", *QUARTILES)),
        *(Column(heading, times, True) for heading in ("times as fast", *QUARTILES)),
        Column("limit", times, True),
        Column("arrived", percent, True),
        Column("peak memory", memory_text, True),
    )
    indices = [n for n in range(len(columns)) if any(row[n] is not None for row in cells)]  # what was measured at all
    compiled = f", {data.launched}" if data.launched else ""
    caption = (
        f"{data.device}, {data.dtype}{compiled}, torch {data.torch}: medians and quartiles of "
        f"{counted(data.repeats, 'repetition')}."
    )
    table = Table(
        "speed",
        caption,
        tuple(columns[n] for n in indices),
        tuple(tuple(row[n] for n in indices) for row in cells),
    )
    sizes = Table(
        "models",
        "The models compared.",
        (
            Column("model"),
            Column("class"),
            Column("parameters", with_commas, True),
            Column("weights in memory", memory_text, True),
        ),
        tuple((model.name, model.kind, model.parameters, model.bytes) for model in data.models),
    )
    about = (
        f"Bars: times as fast as {first}, the median over repetitions in which both ran in turns; it need not equal the "
        "quotient of the two medians. Lines hold the middle half of the repetitions (all of them where others used the "
        "processor). The orange tick is the limit, what the "
        "count of multiply-adds would allow; “arrived” is how much of that gain was measured."
    )
    chart = (charts.speed("speed", rows, reference=first),) if rows else ()
    doubts = [
        sentence for sentence in data.sentences() if any(row.why_not_timed for row in (*data.rows, *data.decoding))
    ]
    tables = (table, _writing(data), sizes) if data.decoding else (table, sizes)
    return Section("speed", title, about, f"{MICHEL}, Table 4.", chart, tables, (*data.notes, *doubts))


def _writing(data: Bench) -> Table:
    """How fast decoders write, and what their caches hold then."""
    columns = (
        Column("model"),
        Column("batch", with_commas, True),
        Column("tokens of the prompt", with_commas, True),
        Column("tokens written", with_commas, True),
        *(Column(heading, speed_text, True) for heading in ("tokens/s", *QUARTILES)),
        *(Column(heading, times, True) for heading in ("times as fast", *QUARTILES)),
        Column("KV cache", memory_text, True),
    )
    rows = [
        (
            *(row.model, row.batch, row.length, row.tokens),
            row.tokens_per_second,
            row.low,
            row.high,
            row.ratio,
            row.ratio_low,
            row.ratio_high,
            row.cache,
        )
        for row in data.decoding
    ]
    caption = (
        "Tokens written one at a time after prompts of random tokens, whose reading is not in it: medians and quartiles, and the "
        "bytes of keys and values after the last token."
    )
    return Table("decoding", caption, columns, tuple(rows))


# -- what was removed ------------------------------------------------------------------------------------------------------


def removed(part: Part) -> list[Section]:
    """Site by site, what each `prune` took away."""

    def build(data: PruneDocument, called: str) -> Section:
        removed_ranges = {site: ranges(indices) for site, indices in data.plan.by_site().items()}
        rows = [
            (site.name, removed_ranges.get(site.name, ""), site.units, site.left, site.manner, site.parameters)
            for site in data.sites
        ]
        columns = (
            Column("site"),
            Column("removed", shortened),
            Column("units", with_commas, True),
            Column("left", with_commas, True),
            Column("manner"),
            Column("parameters saved", with_commas, True),
        )
        gone_of = listed([f"{with_commas(had - has)} of {with_commas(had)} {noun}" for noun, had, has in counts(data)])
        caption = f"What was removed from {data.model}: {gone_of}."
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
            (gone_table, _sets(data)) if data.sets else (gone_table,),
            tuple(f"Manner “{name}”: {words}." for name, words in MANNERS.items() if name in {row[4] for row in rows}),
        )

    return [build(document.data, called_of(document, part.prunes)) for document in part.prunes]


def _sets(data: PruneDocument) -> Table:
    """Which examples were used for what."""
    columns = (Column("used"), Column("data"), Column("examples", with_commas, True))
    rows = tuple((data_set.what or data_set.role, data_set.data, data_set.n) for data_set in data.sets)
    note = f" Note: {data.sets_note}." if data.sets_note else ""
    return Table("sets", f"Which examples were used for what.{note}", columns, rows)
