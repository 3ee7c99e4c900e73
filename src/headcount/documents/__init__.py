"""Results as values and as JSON, the same for those that write run folders and those that read them. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .roles import Roles
    from .scores import Scores, plan

__all__ = [
    "Roles",
    "Scores",
    "plan",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Roles": ".roles",
        "Scores": ".scores",
        "plan": ".scores",
    },
)
