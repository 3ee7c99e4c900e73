"""How a report looks: its colours in light and dark, its type, and how charts are drawn with them. No torch.

A chart says `theme:ink` where it means a colour, and `theme:seq:40` for 40 % of the way from the low to the high end of
what runs in steps; `painted` puts the colours of a palette there, in Python for files and in the page for light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Spec = dict[str, Any]

# Blue against orange, never red against green; both palettes keep 4.5:1 for text. What is lost (warn) and gained (accent2)
# differ in grey, too: lost is the one that stands out. `seq` runs from the surface to the accent, so that what matters does.
# The colours of roles lie under letters, which have the colour `on-role`.
PALETTES: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#f7f5f0",
        "surface": "#fffefb",
        "ink": "#1b2430",
        "muted": "#5c6672",
        "rule": "#dedad0",
        "faint": "#ece8df",
        "accent": "#1c5d99",
        "accent2": "#12917e",
        "accent3": "#7a4fa3",
        "accent4": "#b58a00",
        "accent5": "#cc4f8d",
        "accent6": "#4aa3df",
        "accent7": "#6b7d1f",
        "warn": "#a3420d",
        "seq-low": "#eaf0f5",
        "seq-high": "#0d3b6e",
        "band": "#b9b2a3",
        "bar": "#9db7cf",
        "shade": "#1b24302e",
        "role1": "#779dc0",
        "role2": "#71bdb0",
        "role3": "#92c7ea",
        "role4": "#c88d6c",
        "role5": "#af95c6",
        "role6": "#e095b9",
        "role7": "#d3b864",
        "role8": "#a6b177",
        "role9": "#9da3a9",
        "on-role": "#1b2430",
    },
    "dark": {
        "paper": "#12161c",
        "surface": "#191f27",
        "ink": "#e9e6df",
        "muted": "#9ea8b5",
        "rule": "#303945",
        "faint": "#222933",
        "accent": "#7ab8ee",
        "accent2": "#3f9f8d",
        "accent3": "#c3a0ea",
        "accent4": "#e3c04d",
        "accent5": "#ee86b7",
        "accent6": "#4f86d9",
        "accent7": "#a9bd5a",
        "warn": "#f7ad75",
        "seq-low": "#222c38",
        "seq-high": "#a5d5ff",
        "band": "#5c6470",
        "bar": "#3d5f80",
        "shade": "#e9e6df33",
        "role1": "#7ab8ee",
        "role2": "#3f9f8d",
        "role3": "#4f86d9",
        "role4": "#f7ad75",
        "role5": "#c3a0ea",
        "role6": "#ee86b7",
        "role7": "#e3c04d",
        "role8": "#a9bd5a",
        "role9": "#9ea8b5",
        "on-role": "#191f27",
    },
}
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
