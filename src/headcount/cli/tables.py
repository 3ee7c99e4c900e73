"""Tables that fit into a terminal: columns side by side, or one group of them below the other. No torch."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from rich.table import Table


def columns_text(rows: Sequence[Sequence[str]], sides: str, *, keys: int = 1, gap: int = 2) -> list[str]:
    """Lines of a table that is no wider than the terminal.

    `sides` has < or > for each column, the last of them for all further ones. A last column of text is wrapped; of others,
    those that do not fit come in a second table below, after the first `keys` columns, which are in both.
    """
    room, count = terminal_width(), len(rows[0])
    side = [sides[min(column, len(sides) - 1)] for column in range(count)]
    widths = [max(len(row[column]) for row in rows) for column in range(count)]
    taken = sum(widths[:-1]) + gap * (count - 1)
    if side[-1] == "<" and taken + 20 <= room:
        return _wrapped(rows, side, widths, room - taken, gap)
    out = list[str]()
    for group in _groups(widths, keys, gap, room):
        out += [""] * bool(out)
        out += [_joined(row, side, widths, group, gap) for row in rows]
    return out


def _groups(widths: Sequence[int], keys: int, gap: int, room: int) -> list[list[int]]:
    """Which columns stand side by side: the keys, and as many as there is room for, about equally many in each group."""
    first = list(range(keys))
    rest = [widths[column] + gap for column in range(keys, len(widths))]
    left = max(room - sum(widths[:keys]) - gap * (keys - 1), max(rest, default=0))
    if sum(rest) <= left:
        return [[*first, *range(keys, len(widths))]]
    most = left
    if len(set(rest)) == 1:  # as in a map: equally many in each
        count = -(-len(rest) // (left // rest[0]))
        most = -(-len(rest) // count) * rest[0]
    groups, used = [[*first]], 0
    for column, width in enumerate(rest, keys):
        if used and used + width > most:
            groups.append([*first])
            used = 0
        groups[-1].append(column)
        used += width
    return groups


def end_of(text: str, most: int) -> str:
    """The last characters of a text, at most so many."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _joined(row: Sequence[str], side: Sequence[str], widths: Sequence[int], columns: Sequence[int], gap: int) -> str:
    return (" " * gap).join(f"{row[n]:{side[n]}{widths[n]}}" for n in columns).rstrip()


def _wrapped(
    rows: Sequence[Sequence[str]], side: Sequence[str], widths: Sequence[int], room: int, gap: int
) -> list[str]:
    """The lines of a table whose last column is a text."""
    out = []
    columns = range(len(widths))
    for row in rows:
        parts = textwrap.wrap(row[-1], room) or [""]
        out.append(_joined([*row[:-1], parts[0]], side, widths, columns, gap))
        out += [_joined([*[""] * (len(row) - 1), part], side, widths, columns, gap) for part in parts[1:]]
    return out


def terminal_width() -> int:
    """The columns of the terminal; 80 where there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def effects_table(effects: Sequence[Any]) -> Table:
    """What a cut does to each site: units, the cut mode, parameters, kv heads."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("site", "units", "left", "mode", "parameters", "kv heads in the cache"):
        table.add_column(title, justify="left" if title in ("site", "mode") else "right")
    for one in effects:
        cache = f"{one.kv_heads} -> {one.kv_left}" if one.kv_heads else ""
        table.add_row(one.name, str(one.units), str(one.left), one.mode, f"-{one.parameters:,}", cache)
    return table
