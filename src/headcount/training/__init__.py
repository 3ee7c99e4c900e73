"""Training: a recipe, the loss, the loop, its state in one file, and new models to train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .loop import Trained, train
    from .new_models import new_translator, reinitialized
    from .recipe import Recipe

__all__ = [
    "Recipe",
    "Trained",
    "new_translator",
    "reinitialized",
    "train",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Recipe": ".recipe",
        "Trained": ".loop",
        "new_translator": ".new_models",
        "reinitialized": ".new_models",
        "train": ".loop",
    },
)
