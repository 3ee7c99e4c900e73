"""Which sub-networks survive, and whether seeds and tasks agree on them (Prasanna et al. 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from ..documents.lottery_study import Lottery
    from .study import LotteryTask, lottery

__all__ = [
    "Lottery",
    "LotteryTask",
    "lottery",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Lottery": "..documents.lottery_study",
        "LotteryTask": ".study",
        "lottery": ".study",
    },
)
