"""learned.json: what a run of learned gates, or of one of their controls, came to. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..plans import Plan
from ..stats.results import Comparison
from .reading import JsonDocument
from .results import ResultDocument
from .training import TrainingStep


@dataclass(frozen=True, kw_only=True)
class RecoveryTraining:
    """How long the smaller model was trained after the choice stood."""

    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class LearnedDocument(JsonDocument):
    """The units that a method kept, and the model without the others beside the whole one.

    `settings` and `trained` are the method's settings and the recipe, as far as they had a say; documents of earlier
    versions have no settings.
    """

    NAME: ClassVar[str] = "learned"

    label: str
    method: str = ""
    units: str
    settings: dict[str, Any] | None = None
    keep: int | None = None
    of: int
    seed: int | None = None
    trained: dict[str, Any] | None = None
    recovered: RecoveryTraining | None = None
    plan: Plan
    full: ResultDocument
    learned: ResultDocument
    comparison: Comparison
    history: tuple[TrainingStep, ...]
    sets: str = ""
    penalty: float | None = None
    open: float | None = None

    @property
    def kept(self) -> int:
        """How many units stay."""
        return self.of - len(self.plan) if self.keep is None else self.keep
