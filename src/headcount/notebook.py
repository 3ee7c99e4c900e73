"""How results look in a notebook: small pieces of HTML, every text in them escaped. No torch.

Colours are shades of transparent ones, so that they can be read on a light page and on a dark one.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FONT = "font-family:ui-monospace,monospace;font-size:12px;"
CELL = "padding:1px 6px;text-align:{};white-space:nowrap;"
RED, BLUE = "214,69,65", "52,119,219"
MOST_ROWS = 60
MOST_COLUMNS = 64  # of a map: a terminal's worth of neurons says nothing
WIDTH, HEIGHT = 360, 120  # of a line


def escaped(text: object) -> str:
    """A text as HTML shows it."""
    return html.escape(str(text), quote=True)


def block(*parts: str) -> str:
    """Pieces below each other."""
    return f'<div style="{FONT}overflow-x:auto">{"".join(parts)}</div>'


def line(text: object, bold: bool = False) -> str:
    """A line of text; several where it has line breaks."""
    weight = "font-weight:600;" if bold else ""
    return f'<div style="margin:2px 0;white-space:pre-wrap;{weight}">{escaped(text)}</div>'


def table(head: Sequence[object], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A table; the first `left` columns stand to the left, numbers to the right. Of many rows the first are shown."""
    shown = [list(row) for row in rows]
    body = "".join(_row(row, left) for row in shown[:MOST_ROWS])
    more = line(f"... and {len(shown) - MOST_ROWS} more") if len(shown) > MOST_ROWS else ""
    return f'<table style="border-collapse:collapse">{_row(head, left, "th")}{body}</table>{more}'


def _row(cells: Sequence[object], left: int, tag: str = "td") -> str:
    sides = ["left" if place < left else "right" for place in range(len(cells))]
    texts = ["" if cell is None else escaped(cell) for cell in cells]
    styles = [CELL.format(side) for side in sides]
    return f"<tr>{''.join(_cell(tag, style, text) for style, text in zip(styles, texts, strict=True))}</tr>"


def _cell(tag: str, style: str, text: str) -> str:
    return f'<{tag} style="{style}">{text}</{tag}>'


def by_site(units: Iterable[Any], values: Iterable[float]) -> dict[str, dict[str, float]]:
    """Values of units by their sites and indices: a unit is written SITE:INDEX."""
    out: dict[str, dict[str, float]] = {}
    for unit, value in zip(units, values, strict=True):
        site, _, index = str(unit).rpartition(":")
        out.setdefault(site, {})[index] = float(value)
    return out


def shades(sites: Mapping[str, Mapping[str, float]], digits: int = 3) -> str:
    """A map of values: a row for each site, a column for each index, red above zero and blue below it.

    A site with many units is a row of quantiles instead.
    """
    wide = {site: row for site, row in sites.items() if len(row) > MOST_COLUMNS}
    parts = []
    narrow = {site: row for site, row in sites.items() if site not in wide}
    if narrow:
        largest = max((abs(v) for row in narrow.values() for v in row.values() if math.isfinite(v)), default=0.0)
        columns = list(dict.fromkeys(index for row in narrow.values() for index in row))
        head = _row(["", *columns], 1, "th")
        rows = [_shaded(site, row, columns, largest, digits) for site, row in list(narrow.items())[:MOST_ROWS]]
        parts.append(f'<table style="border-collapse:collapse">{head}{"".join(rows)}</table>')
        parts += [line(f"... and {len(narrow) - MOST_ROWS} more sites")] * (len(narrow) > MOST_ROWS)
    if wide:
        summary = [(site, f"{len(row):,}", *_quantiles(list(row.values()), digits)) for site, row in wide.items()]
        parts.append(table(["site", "units", "least", "median", "most"], summary))
    return "".join(parts)


def _shaded(site: str, row: Mapping[str, float], columns: Sequence[str], largest: float, digits: int) -> str:
    cells = [_cell("th", CELL.format("left"), escaped(site))]
    for index in columns:
        value = row.get(index)
        if value is None:
            cells.append("<td></td>")
            continue
        strength = min(1.0, abs(value) / largest) if largest and math.isfinite(value) else 0.0
        colour = f"background:rgba({RED if value >= 0 else BLUE},{0.85 * strength:.2f});"
        title = escaped(f"{site}:{index} {value:.{digits + 2}f}")
        style = CELL.format("right") + colour
        cells.append(f'<td title="{title}" style="{style}">{value:.{digits}f}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _quantiles(values: list[float], digits: int) -> tuple[str, ...]:
    ordered = sorted(values)
    return tuple(f"{ordered[n]:.{digits}f}" for n in (0, len(ordered) // 2, -1))


def curve(points: Sequence[tuple[float, float]], across: str, up: str) -> str:
    """A line through points, with the ends of both axes as text."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) < 2:
        return ""
    xs, ys = [x for x, _ in finite], [y for _, y in finite]
    wide, tall = (max(xs) - min(xs)) or 1.0, (max(ys) - min(ys)) or 1.0
    places = [
        f"{4 + (WIDTH - 8) * (x - min(xs)) / wide:.1f},{4 + (HEIGHT - 8) * (1 - (y - min(ys)) / tall):.1f}"
        for x, y in finite
    ]
    path = f'<polyline points="{" ".join(places)}" fill="none" stroke="rgb({BLUE})" stroke-width="2"/>'
    box = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="rgba(128,128,128,.5)"/>'
    label = f"{up} from {min(ys):.4g} to {max(ys):.4g}, {across} from {min(xs):g} to {max(xs):g}"
    svg = f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escaped(label)}">{box}{path}</svg>'
    return svg + line(label)
