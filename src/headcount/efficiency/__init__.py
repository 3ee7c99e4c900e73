"""What a model costs: FLOPs, parameters, memory and seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .benchmark import Bench, Speed, bench

__all__ = [
    "Bench",
    "Speed",
    "bench",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Bench": ".benchmark",
        "Speed": ".benchmark",
        "bench": ".benchmark",
    },
)
