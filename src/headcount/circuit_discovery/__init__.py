"""Circuits: which units matter for what a model does on contrasting prompts, through which edges, and how faithful they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .edges import EdgeScores, score_edges
    from .pipeline import circuit

__all__ = ["EdgeScores", "circuit", "score_edges"]

__getattr__ = lazy_attributes(__name__, {"EdgeScores": ".edges", "circuit": ".pipeline", "score_edges": ".edges"})
