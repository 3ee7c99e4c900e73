"""Run folders as one page that explains itself, and the card of a smaller checkpoint. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .page import report

__all__ = [
    "report",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "report": ".page",
    },
)
