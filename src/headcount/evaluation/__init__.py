"""Models on tasks, with any number of plans masked, and the values of every example."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .ablation import Ablation, OneHead, Transfer, ablate, ablate_all_but_one, transfer
    from .evaluator import evaluate, measure

__all__ = [
    "Ablation",
    "OneHead",
    "Transfer",
    "ablate",
    "ablate_all_but_one",
    "evaluate",
    "measure",
    "transfer",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Ablation": ".ablation",
        "OneHead": ".ablation",
        "Transfer": ".ablation",
        "ablate": ".ablation",
        "ablate_all_but_one": ".ablation",
        "evaluate": ".evaluator",
        "measure": ".evaluator",
        "transfer": ".ablation",
    },
)
