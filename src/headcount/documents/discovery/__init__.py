"""Circuits and the checks of what finds them, as values and as JSON. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_attributes

if TYPE_CHECKING:
    from .circuit import CircuitDocument
    from .patch_check import PatchCheck

__all__ = ["CircuitDocument", "PatchCheck"]

__getattr__ = lazy_attributes(__name__, {"CircuitDocument": ".circuit", "PatchCheck": ".patch_check"})
