"""What each unit is worth: one number per unit, by many criteria."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .criteria import score

__all__ = [
    "score",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "score": ".criteria",
    },
)
