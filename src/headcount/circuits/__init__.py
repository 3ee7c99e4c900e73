"""What heads write and read: activations by the names of units, direct logit attribution, and circuits read off the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from ..documents.attribution import Attribution
    from .activations import ByUnit, Cache, cached
    from .logit_attribution import direct_logit_attribution, prompt_pairs

__all__ = [
    "Attribution",
    "ByUnit",
    "Cache",
    "cached",
    "direct_logit_attribution",
    "prompt_pairs",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "ByUnit": ".activations",
        "Cache": ".activations",
        "cached": ".activations",
        "Attribution": "..documents.attribution",
        "direct_logit_attribution": ".logit_attribution",
        "prompt_pairs": ".logit_attribution",
    },
)
