"""What stands in for units that are masked: means, other examples, counterparts, noise, or activations of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .fills import Fill
    from .references import activations, means

__all__ = ["Fill", "activations", "means"]

__getattr__ = lazy_attributes(__name__, {"Fill": ".fills", "activations": ".references", "means": ".references"})
