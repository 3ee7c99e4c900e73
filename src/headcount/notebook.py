"""How results look in a notebook: small pieces of HTML and SVG, every text in them escaped. No torch, no scripts.

Notebooks are light or dark by their own settings, which no style sheet can ask for: so text has the colour of what is around
it, and colours are shades of transparent ones, which can be read on both. Maps are laid out as those of the report.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from . import drawing
from .drawing import PALETTES, drawn

FONT = "font-family:ui-monospace,monospace;font-size:12px;"
CELL = "padding:1px 6px;text-align:{};white-space:nowrap;"
BLUE, ORANGE, TEAL = "42,116,190", "214,110,40", "24,155,134"
LINE, FAINT = "rgba(128,128,128,.55)", "rgba(128,128,128,.25)"
MOST_ROWS = 60
MOST_COLUMNS = 64  # of a map: a terminal's worth of neurons says nothing
MOST_WRITTEN = 16  # columns of a map with numbers in its cells; of a larger one they are shown when pointed at
SCALE, WIDE_SCALE = 0.82, 0.5  # of a map, in pixels for each of its units, and of one with no numbers in its cells
WIDTH, HEIGHT = 520, 210  # of a line


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
    return f'<table style="border-collapse:collapse;color:inherit;font:inherit">{_row(head, left, "th")}{body}</table>{more}'


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


# -- maps --------------------------------------------------------------------------------------------------------------


class Shade(NamedTuple):
    """How a unit is drawn on a map: its colour, what stands in it, what is said when it is pointed at."""

    fill: str
    text: str
    title: str
    ink: str = ""  # the colour of the text, where it is not that of the page


class Colours(NamedTuple):
    """The colours of values above and below zero, and what they mean."""

    above: str
    below: str
    said: str


SCORES = Colours(BLUE, ORANGE, "the stronger the colour, the more a unit matters; orange is below zero")
LOSSES = Colours(ORANGE, TEAL, "orange: worse without it; green: better")


def unit_map(sites: Mapping[str, Mapping[str, Shade]], label: str) -> str:
    """Units as cells: a row for each site, a column for each index, holes where there is none."""
    units = {site: [f"{site}:{index}" for index in row] for site, row in sites.items()}
    shades_of = {f"{site}:{index}": shade for site, row in sites.items() for index, shade in row.items()}
    numbers = {unit: n for n, unit in enumerate(shades_of)}
    grid, size = drawn(label, units, numbers, by_index=True), drawing.CELL
    scale = SCALE if max(map(len, sites.values())) <= MOST_WRITTEN else WIDE_SCALE
    parts = [
        f'<svg viewBox="-8 -6 {grid.width + 8} {grid.height + 6}" width="{(grid.width + 8) * scale:.0f}" '
        f'height="{(grid.height + 6) * scale:.0f}" role="img" aria-label="{escaped(label)}" '
        f'style="font:{9 / scale:.0f}px system-ui,sans-serif;fill:currentColor">'
    ]
    parts += [
        f'<text x="{x}" y="14" text-anchor="middle" opacity=".65">{escaped(text)}</text>' for text, x in grid.columns
    ]
    parts += [
        f'<text x="{grid.left - 8}" y="{y}" text-anchor="end" opacity=".65">{escaped(text)}</text>'
        for text, y in grid.labels
    ]
    for row in grid.rows:
        for cell in row:
            shade = shades_of[cell.unit]
            parts.append(
                f'<rect x="{cell.x}" y="{cell.y}" width="{size}" height="{size}" rx="4" fill="{shade.fill}">'
                f"<title>{escaped(shade.title)}</title></rect>"
            )
            if shade.text:
                ink = f' fill="{shade.ink}"' if shade.ink else ""
                x, y = cell.x + size // 2, cell.y + size // 2 + 4
                parts.append(
                    f'<text x="{x}" y="{y}" font-size="11" text-anchor="middle" pointer-events="none"{ink}>'
                    f"{escaped(shade.text)}</text>"
                )
    return "".join([*parts, "</svg>"])


def shades(sites: Mapping[str, Mapping[str, float]], digits: int = 3, colours: Colours = SCORES) -> str:
    """A map of values, whose colours are as strong as the values are large; sites with many units are rows of quantiles."""
    wide = {site: row for site, row in sites.items() if len(row) > MOST_COLUMNS}
    narrow = {site: row for site, row in sites.items() if site not in wide}
    parts = []
    if narrow:
        largest = max((abs(v) for row in narrow.values() for v in row.values() if math.isfinite(v)), default=0.0)
        some = dict(list(narrow.items())[:MOST_ROWS])
        written = max(map(len, some.values())) <= MOST_WRITTEN
        made = {
            site: {
                index: _shade(f"{site}:{index}", value, largest, digits, colours, written)
                for index, value in row.items()
            }
            for site, row in some.items()
        }
        parts += [unit_map(made, f"{len(some)} rows of units"), line(colours.said)]
        parts += [line(f"... and {len(narrow) - MOST_ROWS} more sites")] * (len(narrow) > MOST_ROWS)
    if wide:
        summary = [(site, f"{len(row):,}", *_quantiles(list(row.values()), digits)) for site, row in wide.items()]
        parts.append(table(["site", "units", "least", "median", "most"], summary))
    return "".join(parts)


def _shade(unit: str, value: float, largest: float, digits: int, colours: Colours, written: bool) -> Shade:
    strength = min(1.0, abs(value) / largest) if largest and math.isfinite(value) else 0.0
    fill = f"rgba({colours.above if value >= 0 else colours.below},{0.06 + 0.62 * strength:.2f})"
    short = _in_a_cell(value, largest) if written else ""
    return Shade(fill, short, f"{unit} {value:.{digits + 2}f}")


def _in_a_cell(value: float, largest: float) -> str:
    """A number of at most five letters, with as many digits as the largest of its map has room for."""
    if not math.isfinite(value):
        return str(value)
    digits = 3 if largest < 1 else max(0, 2 - math.floor(math.log10(largest)))
    text = f"{value:.{digits}f}"
    text = text.replace("0.", ".", 1) if abs(value) < 1 and digits and float(text) else text
    return text if len(text) <= 6 else f"{value:.0e}"


def lettered(sites: Mapping[str, Mapping[str, tuple[str, str, str]]], meaning: Sequence[tuple[str, str]]) -> str:
    """A map of kinds: for each unit a colour of the palette, letters and a title; below it, what the letters mean."""
    light = PALETTES["light"]
    made = {
        site: {
            index: Shade(light[colour] if letters else FAINT, letters, title, light["on-role"] if letters else "")
            for index, (colour, letters, title) in row.items()
        }
        for site, row in list(sites.items())[:MOST_ROWS]
    }
    keys = " · ".join(f"{letters} {name}" for letters, name in meaning)
    return unit_map(made, f"{len(made)} rows of heads, by what they do") + (line(keys) if keys else "")


def presence(sites: Mapping[str, Mapping[str, bool]]) -> str:
    """A map of what is there (filled) and what was cut (empty)."""
    made = {
        site: {
            index: Shade(
                f"rgba({BLUE},.55)" if here else "none",
                "" if here else "×",
                f"{site}:{index}{'' if here else ' was cut'}",
            )
            for index, here in row.items()
        }
        for site, row in list(sites.items())[:MOST_ROWS]
    }
    return unit_map(made, "the heads that are there; a cross for each that was cut") + line("×: cut")


def _quantiles(values: list[float], digits: int) -> tuple[str, ...]:
    ordered = sorted(values)
    return tuple(f"{ordered[n]:.{digits}f}" for n in (0, len(ordered) // 2, -1))


# -- lines -------------------------------------------------------------------------------------------------------------


def curve(points: Sequence[tuple[float, float]], across: str, up: str, band: Sequence[tuple[float, float]] = ()) -> str:
    """A line through points, with ticks at both axes; with `band`, the interval of each point."""
    ends = list(band) if band else [(y, y) for _, y in points]
    finite = [
        (x, y, low, high)
        for (x, y), (low, high) in zip(points, ends, strict=True)
        if all(map(math.isfinite, (x, y, low, high)))
    ]
    if len(finite) < 2:
        return ""
    xs, ys = [p[0] for p in finite], [number for p in finite for number in p[1:]]
    left, right, top, bottom = 58, WIDTH - 12, 12, HEIGHT - 42
    wide, tall = (max(xs) - min(xs)) or 1.0, (max(ys) - min(ys)) or 1.0

    def at(x: float, y: float) -> str:
        return (
            f"{left + (right - left) * (x - min(xs)) / wide:.1f},{bottom - (bottom - top) * (y - min(ys)) / tall:.1f}"
        )

    measured = [p[1] for p in finite]
    label = f"{up} from {min(measured):.4g} to {max(measured):.4g}, {across} from {min(xs):g} to {max(xs):g}"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escaped(label)}" '
        'style="font:12px system-ui,sans-serif;fill:currentColor">'
    ]
    for share in (0.0, 0.5, 1.0):
        y, value = bottom - (bottom - top) * share, min(ys) + tall * share
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="{FAINT}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" opacity=".75">{value:.3g}</text>')
    for share in (0.0, 0.5, 1.0):
        x, value = left + (right - left) * share, min(xs) + wide * share
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle" opacity=".75">{value:.4g}</text>')
    if band:
        around = [at(x, high) for x, _, _, high in finite] + [at(x, low) for x, _, low, _ in reversed(finite)]
        parts.append(f'<polygon points="{" ".join(around)}" fill="rgba({BLUE},.22)"/>')
    parts.append(
        f'<polyline points="{" ".join(at(x, y) for x, y, *_ in finite)}" fill="none" stroke="rgb({BLUE})" stroke-width="2"/>'
    )
    for x, y, *_ in finite:
        cx, cy = at(x, y).split(",")
        parts.append(
            f'<circle cx="{cx}" cy="{cy}" r="3" fill="rgb({BLUE})"><title>{escaped(f"{x:g}: {y:.4g}")}</title></circle>'
        )
    parts.append(
        f'<text x="{(left + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle" opacity=".75">{escaped(across)}</text>'
    )
    return "".join([*parts, "</svg>", line(label)])


def interval(value: float, low: float, high: float, worse_above: bool) -> str:
    """A difference with its interval beside zero: orange where all of it is worse, green where all of it is better."""
    if not all(map(math.isfinite, (value, low, high))):
        return ""
    reach = max(map(abs, (value, low, high))) or 1.0
    middle, half = 150.0, 130.0

    def at(number: float) -> float:
        return middle + half * number / reach

    sure = low > 0 or high < 0
    colour = "128,128,128" if not sure else ORANGE if (value > 0) == worse_above else TEAL
    return (
        '<svg viewBox="0 0 300 34" width="300" height="34" role="img" aria-label="the difference and its interval, beside zero" '
        'style="font:11px system-ui,sans-serif;fill:currentColor">'
        f'<path d="M{middle} 2V22" stroke="{LINE}"/><text x="{middle}" y="33" text-anchor="middle" opacity=".75">0</text>'
        f'<path d="M{at(low):.1f} 12H{at(high):.1f}" stroke="rgb({colour})" stroke-width="3"/>'
        f'<circle cx="{at(value):.1f}" cy="12" r="5" fill="rgb({colour})"/></svg>'
    )
