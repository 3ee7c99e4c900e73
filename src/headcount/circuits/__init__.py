"""What heads write and read: activations by the names of units, direct logit attribution, and circuits read off the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from ..documents.circuits.logit_attribution import Attribution
    from ..documents.circuits.weights import Composition, HeadCircuits, TokenCircuits
    from .activations import ByUnit, Cache, cached
    from .composition import composition_scores
    from .logit_attribution import direct_logit_attribution
    from .ov_qk import token_circuits
    from .prompts import prompt_pairs, read_prompts

__all__ = [
    "Attribution",
    "ByUnit",
    "Cache",
    "Composition",
    "HeadCircuits",
    "TokenCircuits",
    "cached",
    "composition_scores",
    "direct_logit_attribution",
    "prompt_pairs",
    "read_prompts",
    "token_circuits",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "ByUnit": ".activations",
        "Cache": ".activations",
        "cached": ".activations",
        "Attribution": "..documents.circuits.logit_attribution",
        "direct_logit_attribution": ".logit_attribution",
        "prompt_pairs": ".prompts",
        "read_prompts": ".prompts",
        "Composition": "..documents.circuits.weights",
        "HeadCircuits": "..documents.circuits.weights",
        "TokenCircuits": "..documents.circuits.weights",
        "composition_scores": ".composition",
        "token_circuits": ".ov_qk",
    },
)
