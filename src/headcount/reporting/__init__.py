"""Run folders as one page that explains itself; pictures of attention and circuits; the card of a checkpoint. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .page import report
    from .pictures.attention_page import AttentionView
    from .pictures.circuit_graph import Picture, draw_circuit

__all__ = [
    "AttentionView",
    "Picture",
    "draw_circuit",
    "report",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "AttentionView": ".pictures.attention_page",
        "Picture": ".pictures.circuit_graph",
        "draw_circuit": ".pictures.circuit_graph",
        "report": ".page",
    },
)
