"""curves.json, over.json and tradeoff.json: what is left of a model as units go, of one or of every checkpoint. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..errors import BadPlan
from ..plans import Plan
from ..stats.results import Comparison
from .bench import Ratio
from .prune import ExampleSet
from .reading import SOMETIMES, JsonDocument
from .results import FillDocument, ResultDocument


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
    fill: FillDocument | None = field(default=None, metadata=SOMETIMES)
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
    fill: FillDocument | None = field(default=None, metadata=SOMETIMES)
    checkpoints: tuple[Checkpoint, ...]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TradeoffRow:
    """One size: the plan that was best on scoring examples, what is left of the model, and what it is worth there.

    `flops` is the share that is left, and so is `parameters`; `speed` is None where it could not be measured.
    """

    number: int  # what `prune --row` takes, from 1 on
    plan: Plan
    removed: int
    flops: float
    parameters: float
    speed: Ratio | None = None
    result: ResultDocument
    comparison: Comparison
    by: str = ""  # how its units were weighed
    ruined: bool = False  # nearer to a constant answer than the brake allows


@dataclass(frozen=True, kw_only=True)
class TradeoffDocument(JsonDocument):
    """What `tradeoff` found: plans for smaller and smaller shares of the FLOPs, without those that a smaller one beats.

    Plans were chosen and measured on the same `n` scoring examples: numbers to report come from others.
    """

    NAME: ClassVar[str] = "tradeoff"

    model: str
    units: str
    of: int
    base: ResultDocument
    constant: float | None = None
    rows: tuple[TradeoffRow, ...]
    measured: int = 0  # plans that were measured in all
    n: int
    flops: float
    parameters: int
    batch: int
    length: int | None = None
    speed_note: str = ""  # what the speeds are, where they are not time on the clock
    device: str = ""
    left_out: str = field(default="", metadata=SOMETIMES)
    groups: str = field(default="", metadata=SOMETIMES)  # why groups of query heads stay even
    sets: tuple[ExampleSet, ...] = ()
    command: str | None = field(default=None, metadata=SOMETIMES)

    def row(self, number: int) -> TradeoffRow:
        """The row of this number, or `BadPlan`."""
        for row in self.rows:
            if row.number == number:
                return row
        raise BadPlan(f"The trade-off has rows 1 to {len(self.rows)}; I got row {number}.")
