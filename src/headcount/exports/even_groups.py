"""Making uneven groups of query heads even, exactly: by zero query heads, or by a key-value head for every query head."""

from __future__ import annotations

from torch import nn

from ..model.anatomy import Site
from .formats import Limit


def uneven_sites(model: nn.Module) -> list[Site]:
    """The attentions whose key-value heads serve different numbers of query heads."""
    raise NotImplementedError


def with_even_groups(model: nn.Module, how: str) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy of the model in which all groups of each attention are of one size, and notes of what that costs.

    The outputs are the same. "pad" adds query heads with zero output weights up to the largest group; "repeat" gives each query
    head a key-value head of its own.
    """
    raise NotImplementedError


def group_limits(model: nn.Module) -> list[Limit]:
    """The uneven groups of a model as limits, with what to do about them."""
    raise NotImplementedError
