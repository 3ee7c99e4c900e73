"""training.json: how a training went, and what it came to. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..stats.results import Comparison
from .reading import JsonDocument
from .results import ResultDocument


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """An entry of a history: the step, and what was noted there."""

    step: float | None = None
    epoch: float | None = None
    loss: float | None = None
    lr: float | None = None
    open: float | None = None
    dev: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingDocument(JsonDocument):
    """What `train` did; `before` and `comparison` are None where the model was new."""

    NAME: ClassVar[str] = "training"

    history: tuple[TrainingStep, ...]
    recipe: dict[str, Any] | None = None
    before: ResultDocument | None = None
    after: ResultDocument | None = None
    comparison: Comparison | None = None
    sets: str = ""
