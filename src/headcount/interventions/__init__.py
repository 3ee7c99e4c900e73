"""What models compute when activations are not their own: what stands in for masked units, and activations of other prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .fills import Fill
    from .patching import patch
    from .references import activations, means
    from .results import Patching

__all__ = ["Fill", "Patching", "activations", "means", "patch"]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Fill": ".fills",
        "Patching": ".results",
        "activations": ".references",
        "means": ".references",
        "patch": ".patching",
    },
)
