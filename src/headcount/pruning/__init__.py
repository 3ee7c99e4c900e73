"""Which units go, under which budget or promise, and the smaller checkpoint that is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from ..documents.prune import Budget
    from .choices import Choice
    from .curves import Curve, Point, curve
    from .front import tradeoff
    from .one_call import prune
    from .pipeline import Pruned, save_pruned
    from .selection import choose

__all__ = [
    "Budget",
    "Choice",
    "Curve",
    "Point",
    "Pruned",
    "choose",
    "curve",
    "prune",
    "save_pruned",
    "tradeoff",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Budget": "..documents.prune",
        "Choice": ".choices",
        "Curve": ".curves",
        "Point": ".curves",
        "Pruned": ".pipeline",
        "choose": ".selection",
        "curve": ".curves",
        "prune": ".one_call",
        "save_pruned": ".pipeline",
        "tradeoff": ".front",
    },
)
