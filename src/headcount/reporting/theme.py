"""How a report looks: its colours in light and dark, its type, and how charts are drawn with them. No torch.

A chart says `theme:ink` where it means a colour, and `theme:seq:40` for 40 % of the way from the low to the high end of
what runs in steps; `painted` puts the colours of a palette there, in Python for files and in the page for light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..drawing import PALETTES as PALETTES

Spec = dict[str, Any]

ORDERS = ("accent", "accent2", "accent3", "warn")  # colours of several orders in one chart
LINES = (*ORDERS, "accent6", "accent4", "accent5", "accent7")  # and of many methods; their points differ in shape, too
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
FIGURE_WIDTH = 560


def painted(spec: Any, palette: Mapping[str, str]) -> Any:
    """The specification with the palette's colours in the place of `theme:...`; data stay as they are."""
    if isinstance(spec, dict):
        return {key: value if key in ("values", "datasets") else painted(value, palette) for key, value in spec.items()}
    if isinstance(spec, list):
        return [painted(value, palette) for value in spec]
    if isinstance(spec, str) and spec.startswith("theme:seq:"):
        return _between(palette["seq-low"], palette["seq-high"], int(spec[10:]) / 100)
    if isinstance(spec, str) and spec.startswith("theme:"):
        return palette.get(spec[6:], spec)
    return spec


def _between(low: str, high: str, share: float) -> str:
    """A colour on the way from one to another."""
    pairs = [(int(low[n : n + 2], 16), int(high[n : n + 2], 16)) for n in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def config() -> Spec:
    """How all charts look."""
    text = {"labelColor": "theme:muted", "titleColor": "theme:muted", "labelFontSize": 12, "titleFontSize": 12}
    grid = {"gridColor": "theme:faint", "domainColor": "theme:rule", "tickColor": "theme:rule", "tickSize": 4}
    axis = {
        **text,
        **grid,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelPadding": 4,
        "labelOverlap": True,
        "labelSeparation": 8,
        "tickCount": 7,
    }
    above = {"titleAngle": 0, "titleAlign": "left", "titleBaseline": "bottom", "titleX": 0, "titleY": -10}
    legend = {**text, "orient": "top", "title": None, "symbolSize": 90, "labelLimit": 220, "offset": 34}
    return {
        "aria": False,  # the page says what a chart shows; Vega-Lite would put titles into expressions for it
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": axis,
        "axisX": {"grid": False, "labelFlush": False},  # flush, the last label is moved onto the one before
        "axisY": {"domain": False, "ticks": False, **above},
        "legend": legend,
        "text": {"color": "theme:ink", "fontSize": 12, "font": FONT},
        "rule": {"color": "theme:muted"},
        "padding": {"left": 0, "right": 8, "top": 4, "bottom": 0},
    }


def for_file(spec: Spec) -> Spec:
    """The specification of a chart as a file: of fixed width, in the light palette on white."""
    plain = {**spec, "width": FIGURE_WIDTH, "config": {**spec["config"], "background": "#ffffff"}}
    return dict(painted(plain, PALETTES["light"]))
