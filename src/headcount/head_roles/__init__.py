"""What each head looks at, and which role it earns by that (Voita et al. 2019, section 5; Clark et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from ..data.sentences.passages import Passages, passages
    from ..documents.roles import Roles
    from .analysis import roles
    from .by_name.pipeline import heads
    from .by_name.results import NamedHeads

__all__ = [
    "NamedHeads",
    "Passages",
    "Roles",
    "heads",
    "passages",
    "roles",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Passages": "..data.sentences.passages",
        "Roles": "..documents.roles",
        "NamedHeads": ".by_name.results",
        "heads": ".by_name.pipeline",
        "passages": "..data.sentences.passages",
        "roles": ".analysis",
    },
)
