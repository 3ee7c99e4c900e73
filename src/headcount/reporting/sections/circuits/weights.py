"""What heads do by their weights, as sections of a report: copying, promoted tokens, composition. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from ....documents.circuits.weights import CircuitsDocument, HeadCircuits, Scored
from ....formatting import Column, Table, fixed, signed
from ....plans import index_of, site_of
from ... import charts
from ...charts import Chart
from ...findings import MOST_CELLS, Part
from ...run_reader import checked
from ..measurements import MOST_ROWS, Section
from .sentences import by_copying, of_weights, sentence

METHOD = "Elhage et al. 2021, A Mathematical Framework for Transformer Circuits."
LISTED = 5  # tokens of a row


def weights(part: Part) -> list[Section]:
    """A section for every run of `weights`."""
    return [checked(document, _section) for document in part.of(CircuitsDocument)]


def _section(data: CircuitsDocument) -> Section:
    about = (
        "Read off the weights, with no data. Copying is the sum of the eigenvalues of a head's OV circuit on tokens over the sum "
        "of their sizes: 1 raises what it looks at, −1 lowers it; beside it stands what shuffled tokens give. Composition is "
        "how much of what one head writes another reads, beside random matrices of the same shapes."
    )
    drawn = 1 < len(data.heads) <= MOST_CELLS
    tables = [
        *([_copying(data)] if data.heads else []),
        *([_writes(data.heads)] if any(head.writes for head in data.heads) else []),
        *([_compositions(data)] if data.compositions else []),
    ]
    notes = (of_weights(data), *map(sentence, data.notes))
    title = "What heads do by their weights"
    return Section("weights", title, about, METHOD, (_chart(data.heads),) if drawn else (), tuple(tables), notes)


def _chart(heads: Iterable[HeadCircuits]) -> Chart:
    rows = []
    for head in heads:
        copying = head.copying
        star = "*" if copying.score > copying.highest else ""
        text = f"{head.unit}: copying {signed(copying.score, 2)}, shuffled {signed(copying.baseline, 2)}"
        rows.append(
            {"row": site_of(head.unit), "column": index_of(head.unit), "size": abs(copying.score), "text": text}
            | {"away": copying.score < 0, "shown": f"{signed(copying.score, 2)}{star}", "star": star}
        )
    words = "How much each head copies, by its weights; * is more than with any shuffle"
    return charts.signed_map("weights", rows, across="head", down="layer", words=words)


def _copying(data: CircuitsDocument) -> Table:
    two = partial(signed, digits=2)
    share = partial(_percent, digits=1)
    columns = (
        Column("head"),
        *(Column(title, two, True) for title in ("copying", "shuffled, mean", "shuffled, highest")),
        *(Column(title, share, True) for title in ("tokens that promote themselves", "by chance")),
    )
    rows = tuple((head.unit, *_numbers(head)) for head in by_copying(data)[:MOST_ROWS])
    return Table("copying", "Heads by copying, the most first.", columns, rows)


def _numbers(head: HeadCircuits) -> tuple[Any, ...]:
    copying = head.copying
    return copying.score, copying.baseline, copying.highest, copying.own, copying.chance


def _percent(share: float, digits: int) -> str:
    return f"{fixed(100 * share, digits)}\u00a0%"


def _writes(heads: Iterable[HeadCircuits]) -> Table:
    columns = (
        Column("head"),
        Column("looks at"),
        Column("promotes"),
        Column("demotes"),
        Column("rank of itself", numeric=True),
    )
    rows = tuple(
        (head.unit, _word(one.token), _words(one.promoted), _words(one.demoted), one.rank)
        for head in heads
        for one in head.writes
    )
    return Table("promoted", "What heads write when they look at a token.", columns, rows[:MOST_ROWS])


def _words(tokens: Iterable[Scored]) -> str:
    return ", ".join(_word(one) for one in list(tokens)[:LISTED])


def _word(one: Scored) -> str:
    return repr(one.text) if one.text else f"#{one.token}"


def _compositions(data: CircuitsDocument) -> Table:
    three = partial(fixed, digits=3)
    columns = (
        Column("writes"),
        Column("reads"),
        Column("as"),
        Column("score", three, True),
        Column("random", three, True),
        Column("above", partial(signed, digits=3), True),
    )
    rows = tuple((one.writer, one.reader, one.kind, one.score, one.baseline, one.above) for one in data.compositions)
    caption = f"The strongest compositions of {data.pairs_of_heads:,} pairs of heads."
    return Table("composition", caption, columns, rows[:MOST_ROWS])
