"""Contrast tasks: clean and corrupted prompts, read or generated, and what a model prefers after each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_attributes

if TYPE_CHECKING:
    from .generation import generate
    from .measures import values_of
    from .reference import with_reference

__all__ = [
    "generate",
    "values_of",
    "with_reference",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "generate": ".generation",
        "values_of": ".measures",
        "with_reference": ".reference",
    },
)
