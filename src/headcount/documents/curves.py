"""curves.json and over.json: what is left of a model as units go, of one model or of every checkpoint. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..plans import Plan
from ..stats.results import Comparison
from .reading import JsonDocument
from .results import ResultDocument


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The model without the units of a plan, and the difference to the whole model."""

    removed: int
    plan: Plan
    result: ResultDocument
    comparison: Comparison

    @property
    def units(self) -> list[str]:
        """The units that are gone."""
        return [str(unit) for unit in self.plan]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The points along one order of removal, the whole model first; `by` is the criterion, `of` the number of units."""

    by: str
    of: int
    signature: str = ""
    points: tuple[CurvePoint, ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a curve has no points")

    @property
    def whole(self) -> ResultDocument:
        """The whole model."""
        return self.points[0].result


@dataclass(frozen=True, kw_only=True)
class CurvesDocument(JsonDocument):
    """What `curve` found: a curve for each order, on which examples."""

    NAME: ClassVar[str] = "curves"

    sets: str = ""
    curves: tuple[Curve, ...]

    @property
    def scored(self) -> list[Curve]:
        """The curves that follow scores."""
        return [curve for curve in self.curves if curve.by != "random"]

    @property
    def random(self) -> list[Curve]:
        """The curves that follow random orders."""
        return [curve for curve in self.curves if curve.by == "random"]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint of a training: its name, its place among them from 1 on, and its curves."""

    name: str
    place: int = 0
    curves: tuple[Curve, ...]


@dataclass(frozen=True, kw_only=True)
class OverDocument(JsonDocument):
    """What `curve --over` found: the curves of every checkpoint."""

    NAME: ClassVar[str] = "over"

    sets: str = ""
    checkpoints: tuple[Checkpoint, ...]
    skipped: tuple[str, ...] = ()
