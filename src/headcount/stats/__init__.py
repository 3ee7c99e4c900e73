"""Is a difference real: metrics, intervals, paired tests, corrections, non-inferiority. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .guarantee import Guarantee
    from .metrics import Metric
    from .paired_tests import holm
    from .results import Comparison, Result, compare

__all__ = [
    "Comparison",
    "Guarantee",
    "Metric",
    "Result",
    "compare",
    "holm",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Comparison": ".results",
        "Guarantee": ".guarantee",
        "Metric": ".metrics",
        "Result": ".results",
        "compare": ".results",
        "holm": ".paired_tests",
    },
)
