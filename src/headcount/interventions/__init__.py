"""Models whose activations are changed while they run: activations of other prompts put in the place of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .patching import patch
    from .results import Patching

__all__ = [
    "Patching",
    "patch",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Patching": ".results",
        "patch": ".patching",
    },
)
