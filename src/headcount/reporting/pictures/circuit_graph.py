"""A circuit as a graph: units in rows by layer, inputs below and logits above, edges by weight and sign. No torch.

Rows are ordered so that few edges cross (the mean place of the neighbours, swept up and down: Sugiyama et al. 1981), and an
edge over several rows has a place of its own in each, so that it passes no unit by running through it.
"""

from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import BadPlan, BadRun
from ...formatting import three
from ...plans import index_of, site_of
from ...runs import write_whole
from ..theme import FONT, PALETTES
from .attention_page import free_path

Interval = tuple[float, float]
Edge = tuple[str, str, float, Interval | None]
READS = {".q": -0.3, ".k": 0.0, ".v": 0.3}  # what of a head is read, and where at its lower side such an edge ends

BELOW = ("embeddings", "embedding", "embed", "inputs", "input", "tokens", "positions")
ABOVE = ("logits", "logit", "output", "outputs", "loss")
PARTS = {"self": 0, "cross": 1, "mlp": 2}  # of a layer, in the order in which they write
MOST = 400  # edges that are drawn: of more, the strongest
HIGH, ROW, GAP, LANE = 28, 84, 14, 8  # of a node, from row to row, between nodes, for an edge that passes a row
SWEEPS = 8
THIN, THICK = 1.2, 7.0
LETTER, TITLE_LETTER = 7.4, 8.8  # pixels


class Picture(NamedTuple):
    """A drawing as SVG text. Shows itself in a notebook; `save` writes a file."""

    svg: str
    width: float
    height: float

    def save(self, path: Path | str, *, force: bool = False) -> Path:
        """Write the SVG to a file; what is there is not overwritten without `force`."""
        path = Path(path)
        if path.suffix.lower() != ".svg":
            raise BadRun(f"{path} does not end in .svg, which is what this picture is written as; name it so.")
        free_path(path, force)
        write_whole(path, self.svg.encode())
        return path

    def __repr__(self) -> str:
        return f"<Picture of {self.width:.0f} x {self.height:.0f} pixels; .save(path.svg) writes it>"

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x:auto">{self.svg}</div>'


class Point(NamedTuple):
    """A place that an edge goes through: the middle of a node, or of the lane that it has in a row."""

    x: float
    y: float


class Layout(NamedTuple):
    """Where everything is: the middle of each node, the points of each edge, and the size of it all."""

    nodes: dict[str, Point]
    edges: list[tuple[Edge, list[Point]]]
    rows: list[tuple[str, float]]  # what each row is called, and its height
    left: float
    width: float
    height: float


def draw_circuit(
    nodes: Iterable[str],
    edges: Iterable[tuple[str, str, float] | Edge],
    *,
    title: str = "",
    layers: Mapping[str, float] | None = None,
    about: Mapping[str, str] | None = None,
) -> Picture:
    """A circuit as a layered graph: inputs at the bottom, logits on top, width by weight, colour and dashes by sign.

    Args:
        nodes: Names of units ("3:7", "5.mlp"), and "embeddings" and "logits".
        edges: (from, to, weight) or (from, to, weight, (low, high)); one whose interval includes zero is drawn faint. An
            edge may end at the queries, keys or values of a head: "3:7.q", "3:7.k", "3:7.v".
        title: What stands above it.
        layers: Heights of nodes whose names do not say them.
        about: More words for the nodes, shown when pointed at.

    Returns:
        The picture: it shows itself in a notebook, and `save("circuit.svg")` writes it.

    Examples:
        >>> edges = [("embeddings", "0:1", 0.8, (0.6, 1.0)), ("0:1", "logits", -0.2, (-0.5, 0.1))]
        >>> hc.reporting.draw_circuit(["embeddings", "0:1", "logits"], edges)
        <Picture of 360 x 324 pixels; .save(path.svg) writes it>
    """
    names = list(dict.fromkeys(map(str, nodes)))
    whole = [_edge(edge, names) for edge in edges]
    strongest = sorted(whole, key=lambda edge: -abs(edge[2]))[:MOST]
    kept = [edge for edge in whole if edge in strongest] if len(whole) > MOST else whole
    layout = arranged(names, kept, layers or {}, least=40 + TITLE_LETTER * len(title))
    return _drawn(layout, title, about or {}, len(whole) - len(kept))


def _edge(edge: Sequence[object], names: Sequence[str]) -> Edge:
    if len(edge) not in (3, 4):
        raise BadPlan(f"An edge is (from, to, weight) or (from, to, weight, (low, high)); I got {str(edge)[:80]}.")
    start, end = str(edge[0]), str(edge[1])
    for name in (start, _node_of(end)):
        if name not in names:
            raise BadPlan(
                f"An edge names {name[:60]!r}, which is none of the nodes; add it to them, or leave the edge out."
            )
    interval = edge[3] if len(edge) == 4 else None
    numbers = [edge[2], *(interval if isinstance(interval, tuple | list) else ())]
    if (interval is not None and len(numbers) != 3) or not all(
        isinstance(number, int | float) and math.isfinite(number) for number in numbers
    ):
        raise BadPlan(f"The weight of an edge and the ends of its interval are finite numbers; I got {str(edge)[:80]}.")
    weight, *ends = (float(number) for number in numbers)  # type: ignore[arg-type]
    return start, end, weight, (ends[0], ends[1]) if ends else None


def _node_of(end: str) -> str:
    """The node that an edge ends at: a head, where its queries, keys or values are named."""
    return end[:-2] if end[-2:] in READS else end


# -- the layout --------------------------------------------------------------------------------------------------------


def height_of(name: str) -> tuple[float, ...]:
    """How high a node stands, by its name: (side, layer, part of the layer); `BadPlan` where the name does not say."""
    plain = name.lower()
    side = 1.0 if plain.startswith("decoder") else 0.0
    if plain.rpartition(".")[2] in BELOW:
        return (side, -1.0, 0.0)
    if plain in ABOVE:
        return (2.0, 0.0, 0.0)
    site = site_of(plain) if ":" in plain else plain
    number = re.search(r"(?<![a-z\d])\d+(?![a-z\d])", site)
    layer = int(number.group()) if number else None
    if layer is None and site.rpartition(".")[2] == "layers" and index_of(plain).isdecimal():
        layer = int(index_of(plain))
    if layer is None:
        raise BadPlan(f"The name {name[:60]!r} does not say in which layer it is; give its height in layers=.")
    return (side, float(layer), float(PARTS.get(site.rpartition(".")[2], 0)))


def arranged(names: Sequence[str], edges: Sequence[Edge], layers: Mapping[str, float], least: float = 360.0) -> Layout:
    """Where nodes and edges go, on a sheet of at least so many pixels."""
    heights = {name: (0.0, float(layers[name]), 0.0) if name in layers else height_of(name) for name in names}
    levels = sorted(set(heights.values()))
    level = {name: levels.index(heights[name]) for name in names}
    for start, end, *_ in edges:
        if level[start] >= level[_node_of(end)]:
            raise BadPlan(f"The edge from {start[:60]} to {end[:60]} does not lead to a later layer; turn it around.")
    rows: list[list[str]] = [[name for name in names if level[name] == n] for n in range(len(levels))]
    lanes: list[list[str]] = []  # what each edge goes through, from below
    near: dict[str, list[str]] = {name: [] for name in names}
    for number, (start, end, *_) in enumerate(edges):
        passed = [f"\0{number}\0{n}" for n in range(level[start] + 1, level[_node_of(end)])]
        for n, lane in enumerate(passed, level[start] + 1):
            rows[n].append(lane)
        lanes.append([start, *passed, _node_of(end)])
        for one, other in zip(lanes[-1], lanes[-1][1:], strict=False):
            near.setdefault(one, []).append(other)
            near.setdefault(other, []).append(one)
    level |= {lane: n for n, row in enumerate(rows) for lane in row}
    _order(rows, near, level)
    x, width = _places(rows, near)
    titles = [_row_name(heights[next(name for name in row if not name.startswith("\0"))], names) for row in rows]
    left = 24 + LETTER * 0.9 * max(map(len, titles), default=0)
    top, bottom = 54.0, 74.0
    tall = top + ROW * max(0, len(rows) - 1) + HIGH + bottom
    ys = [top + HIGH / 2 + ROW * (len(rows) - 1 - n) for n in range(len(rows))]
    whole = max(360.0, least, left + width + 24)
    shift = left + max(0.0, whole - left - 24 - width) / 2
    points = {name: Point(x[name] + shift, ys[level[name]]) for row in rows for name in row}
    placed = [(edge, [points[name] for name in path]) for edge, path in zip(edges, lanes, strict=True)]
    return Layout({name: points[name] for name in names}, placed, list(zip(titles, ys, strict=True)), left, whole, tall)


def _row_name(height: tuple[float, ...], names: Sequence[str]) -> str:
    side, layer, part = height
    if side == 2.0:
        return "output"
    word = ("encoder ", "decoder ")[int(side)] if any(name.startswith("decoder") for name in names) else ""
    if layer < 0:
        return f"{word}input"
    return f"{word}{layer:g}" + ("", " cross", " MLP")[int(part)]


def _order(rows: list[list[str]], near: Mapping[str, list[str]], level: Mapping[str, int]) -> None:
    """Order each row by the mean place of the neighbours in the row before, sweeping up and down."""
    place = {name: n / max(1, len(row)) for row in rows for n, name in enumerate(row)}
    for sweep in range(SWEEPS):
        step = -1 if sweep % 2 == 0 else 1
        for n in range(len(rows)) if step < 0 else reversed(range(len(rows))):
            means = {}
            for name in rows[n]:
                sides = [place[other] for other in near[name] if (level[other] - n) * step > 0]
                means[name] = sum(sides) / len(sides) if sides else place[name]
            rows[n].sort(key=lambda name: (round(means[name], 9), name))
            place |= {name: (k + 0.5) / len(rows[n]) for k, name in enumerate(rows[n])}


def _places(rows: Sequence[Sequence[str]], near: Mapping[str, list[str]]) -> tuple[dict[str, float], float]:
    """Middles of all nodes and lanes, each as near to its neighbours as the order of its row lets it, and the width."""
    x: dict[str, float] = {}
    for row in rows:
        at = 0.0
        for name in row:
            x[name] = at + _wide(name) / 2
            at += _wide(name) + GAP
        x |= {name: x[name] - at / 2 for name in row}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [
                sum(x[other] for other in near[name]) / len(near[name]) if near[name] else x[name] for name in row
            ]
            apart = [0.0, *(_apart(a, b) for a, b in itertools.pairwise(row))]
            right, left = list(wanted), list(wanted)
            for n in range(1, len(row)):
                right[n] = max(right[n], right[n - 1] + apart[n])
            for n in reversed(range(len(row) - 1)):
                left[n] = min(left[n], left[n + 1] - apart[n + 1])
            x |= {name: (a + b) / 2 for name, a, b in zip(row, right, left, strict=True)}
    least = min((x[name] - _wide(name) / 2 for row in rows for name in row), default=0.0)
    most = max((x[name] + _wide(name) / 2 for row in rows for name in row), default=0.0)
    return {name: at - least for name, at in x.items()}, most - least


def _apart(one: str, other: str) -> float:
    """How far apart the middles of neighbours are at least; edges that pass side by side need no gap."""
    lanes = one.startswith("\0") and other.startswith("\0")
    return (_wide(one) + _wide(other)) / 2 + (0 if lanes else GAP)


def _wide(name: str) -> float:
    return LANE if name.startswith("\0") else max(46.0, 18 + LETTER * len(_label(name)))


def _label(name: str) -> str:
    return name if len(name) <= 28 else name[:27] + "…"


# -- the drawing -------------------------------------------------------------------------------------------------------


def _drawn(layout: Layout, title: str, about: Mapping[str, str], left_out: int) -> Picture:
    largest = max((abs(edge[2]) for edge, _ in layout.edges), default=0.0) or 1.0
    label = title or f"A circuit of {len(layout.nodes)} nodes and {len(layout.edges)} edges"
    width, height = math.ceil(layout.width), math.ceil(layout.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hc-circuit" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{_safe(label)}">',
        f"<style>{_style()}</style>",
        f'<rect class="sheet" width="{width}" height="{height}" rx="10"/>',
        f'<text class="title" x="20" y="30">{_safe(title)}</text>' if title else "",
    ]
    for name, y in layout.rows:
        parts.append(f'<text class="row" x="20" y="{y + 4:.1f}">{_safe(name)}</text>')
    order = sorted(layout.edges, key=lambda placed: abs(placed[0][2]))  # the strongest lie on top
    parts += [_path(edge, points, largest) for edge, points in order]
    read = {
        name: {edge[1][-2:] for edge, _ in layout.edges if edge[1] != name == _node_of(edge[1])}
        for name in layout.nodes
    }
    parts += [_node(name, point, about.get(name, ""), read[name]) for name, point in layout.nodes.items()]
    return Picture("".join([*parts, _legend(layout, largest, left_out, height), "</svg>"]), width, height)


def _path(edge: Edge, points: Sequence[Point], largest: float) -> str:
    start, end, weight, interval = edge
    steps = [f"M{points[0].x:.1f} {points[0].y - HIGH / 2:.1f}"]
    aside = READS[end[-2:]] * _wide(_node_of(end)) if end[-2:] in READS else 0.0
    points = [*points[:-1], Point(points[-1].x + aside, points[-1].y)]
    for n, (one, other) in enumerate(itertools.pairwise(points)):
        low = one.y - HIGH / 2  # out of a node, or past it, straight up
        high = other.y + HIGH / 2
        middle = (low + high) / 2
        steps.append(f"C{one.x:.1f} {middle:.1f} {other.x:.1f} {middle:.1f} {other.x:.1f} {high:.1f}")
        if n < len(points) - 2:
            steps.append(f"V{other.y - HIGH / 2:.1f}")
    unsure = interval is not None and interval[0] <= 0 <= interval[1]
    classes = " ".join(["edge", "minus" if weight < 0 else "plus", *(["unsure"] if unsure else [])])
    told = f"{start} → {end}: {_number(weight)}"
    told += f" [{_number(interval[0])}, {_number(interval[1])}]" if interval else ""
    wide = THIN + (THICK - THIN) * abs(weight) / largest
    return f'<path class="{classes}" d="{"".join(steps)}" stroke-width="{wide:.2f}"><title>{_safe(told)}</title></path>'


def _node(name: str, point: Point, about: str, read: Container[str]) -> str:
    wide = _wide(name)
    kind = "end" if name.lower().rpartition(".")[2] in (*BELOW, *ABOVE) else "mlp" if ".mlp" in name else "head"
    round_by = {"end": HIGH / 2, "mlp": 2, "head": 8}[kind]
    told = f"{name}: {about}" if about else name
    letters = "".join(
        f'<text class="read" x="{point.x + aside * wide:.1f}" y="{point.y + HIGH / 2 - 2:.1f}">{part[1:]}</text>'
        for part, aside in READS.items()
        if part in read
    )
    base = point.y + (1.5 if letters else 4.5)
    return (
        f'<g class="node {kind}"><title>{_safe(told)}</title><rect x="{point.x - wide / 2:.1f}" y="{point.y - HIGH / 2:.1f}" '
        f'width="{wide:.1f}" height="{HIGH}" rx="{round_by:g}"/><text x="{point.x:.1f}" y="{base:.1f}">'
        f"{_safe(_label(name))}</text>{letters}</g>"
    )


def _legend(layout: Layout, largest: float, left_out: int, height: float) -> str:
    """What colours, dashes and widths mean, of what there is."""
    weights = [edge[2] for edge, _ in layout.edges]
    unsure = any(edge[3] is not None and edge[3][0] <= 0 <= edge[3][1] for edge, _ in layout.edges)
    keys = [("plus", "positive")] * any(weight >= 0 for weight in weights)
    keys += [("minus", "negative")] * any(weight < 0 for weight in weights)
    keys += [("plus unsure", "interval includes 0")] * unsure
    parts, x, y = [], 20.0, height - 40
    for classes, text in keys:
        parts.append(f'<path class="edge {classes}" d="M{x} {y}H{x + 26}" stroke-width="3"/>')
        parts.append(f'<text class="key" x="{x + 33}" y="{y + 4}">{text}</text>')
        x += 33 + 6.4 * len(text) + 16
    told = f"width: up to {three(largest)}" if weights else "no edges"
    told += f"; {left_out} weaker edges are left out" if left_out else ""
    told += "; q, k, v: what of a head reads" if any(edge[1] != _node_of(edge[1]) for edge, _ in layout.edges) else ""
    return "".join([*parts, f'<text class="key" x="20" y="{y + 24}">{_safe(told)}</text>'])


def _style() -> str:
    def colours(name: str) -> str:
        return "".join(f"--{key}:{PALETTES[name][key]};" for key in KEYS)

    return (
        f".hc-circuit{{{colours('light')}font-family:{FONT}}}"
        f"@media screen and (prefers-color-scheme:dark){{.hc-circuit{{{colours('dark')}}}}}" + RULES
    )


KEYS = ("surface", "rule", "ink", "muted", "accent", "warn", "faint", "seq-low")
RULES = (
    ".hc-circuit .sheet{fill:var(--surface)}.hc-circuit text{fill:var(--ink);font-size:13px}"
    ".hc-circuit .title{font-size:15px;font-weight:600}.hc-circuit .row,.hc-circuit .key{fill:var(--muted);font-size:12px}"
    ".hc-circuit .node .read{fill:var(--muted);font-size:9px}"
    ".hc-circuit .node rect{fill:var(--seq-low);stroke:var(--accent);stroke-width:1.2}.hc-circuit .node text{text-anchor:middle}"
    ".hc-circuit .node.mlp rect{fill:var(--faint);stroke:var(--muted)}"
    ".hc-circuit .node.end rect{fill:var(--surface);stroke:var(--ink)}"
    ".hc-circuit .edge{fill:none;stroke:var(--accent);stroke-opacity:.75;stroke-linecap:butt}"
    ".hc-circuit .edge.minus{stroke:var(--warn);stroke-dasharray:7 4}.hc-circuit .edge.unsure{stroke-opacity:.28}"
    ".hc-circuit .edge:hover{stroke-opacity:1}"
)


def _number(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−")


def _safe(text: str) -> str:
    """A text as XML shows it: escaped, without letters that XML has no place for."""
    return html.escape("".join(c for c in text if c in "\t\n" or (ord(c) >= 32 and not 0xD800 <= ord(c) < 0xE000)))
