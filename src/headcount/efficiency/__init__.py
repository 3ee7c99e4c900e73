"""What a model costs: FLOPs, parameters, memory and seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from ..documents.bench import Bench, Speed
    from .benchmark import bench

__all__ = [
    "Bench",
    "Speed",
    "bench",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Bench": "..documents.bench",
        "Speed": "..documents.bench",
        "bench": ".benchmark",
    },
)
