"""Activation patching estimated by gradients: attribution patching, EAP-IG, and how well they agree with exact patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_attributes

if TYPE_CHECKING:
    from .exact import patch_check

__all__ = ["patch_check"]

__getattr__ = lazy_attributes(__name__, {"patch_check": ".exact"})
