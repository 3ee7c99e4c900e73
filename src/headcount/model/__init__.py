"""Where the heads, MLPs and layers of a model are; how to mask, cut, save and load them. Knows no data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .anatomy import Anatomy, Site, Stack
    from .architectures import ModuleSpec
    from .checkpoints import load, save
    from .cutting.effects import CutEffect, cut_effects, parameters_removed
    from .cutting.surgery import cut, removed
    from .discovery import find
    from .gates import gated, masked

__all__ = [
    "Anatomy",
    "CutEffect",
    "ModuleSpec",
    "Site",
    "Stack",
    "cut",
    "cut_effects",
    "find",
    "gated",
    "load",
    "masked",
    "parameters_removed",
    "removed",
    "save",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Anatomy": ".anatomy",
        "CutEffect": ".cutting.effects",
        "ModuleSpec": ".architectures",
        "Site": ".anatomy",
        "Stack": ".anatomy",
        "cut": ".cutting.surgery",
        "cut_effects": ".cutting.effects",
        "find": ".discovery",
        "gated": ".gates",
        "load": ".checkpoints",
        "masked": ".gates",
        "parameters_removed": ".cutting.effects",
        "removed": ".cutting.surgery",
        "save": ".checkpoints",
    },
)
