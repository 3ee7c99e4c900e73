"""Gates that learn which units to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .callback import trainer_callback
    from .gates import Gates, learning
    from .pipeline import Learned, learn

__all__ = [
    "Gates",
    "Learned",
    "learn",
    "learning",
    "trainer_callback",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Gates": ".gates",
        "Learned": ".pipeline",
        "learn": ".pipeline",
        "learning": ".gates",
        "trainer_callback": ".callback",
    },
)
