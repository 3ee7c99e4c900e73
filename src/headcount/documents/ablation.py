"""ablation.json, all-but-one.json and transfer.json: a model without one unit, with one head, on two data sets. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..stats.paired_tests import Correlation
from ..stats.results import Comparison
from .reading import FLAT, SOMETIMES, JsonDocument
from .results import FillDocument, ResultDocument


@dataclass(frozen=True, kw_only=True)
class ClosedUnit:
    """The model without one unit: the difference, and how many translations the length limit ended."""

    closed: str
    comparison: Comparison = field(metadata=FLAT)
    unfinished: int | None = field(default=None, metadata=SOMETIMES)


@dataclass(frozen=True, kw_only=True)
class AblationDocument(JsonDocument):
    """What `ablate` found: the whole model, and the model without each unit in turn; `fill` is what stood in, None: zero."""

    NAME: ClassVar[str] = "ablation"

    base: ResultDocument
    test: str = ""
    fill: FillDocument | None = field(default=None, metadata=SOMETIMES)
    ablations: tuple[ClosedUnit, ...]


@dataclass(frozen=True, kw_only=True)
class OneHeadLeft:
    """An attention with its best head alone: `chosen_on` is the metric on the examples that it was chosen by."""

    site: str
    head: int
    chosen_on: float
    comparison: Comparison = field(metadata=FLAT)


@dataclass(frozen=True, kw_only=True)
class AllButOneDocument(JsonDocument):
    """What `ablate --all-but-one` found: each attention in turn with one head left."""

    NAME: ClassVar[str] = "all-but-one"

    base: ResultDocument
    select: ResultDocument | None = field(default=None, metadata=SOMETIMES)
    test: str = ""
    sets: str = ""
    fill: FillDocument | None = field(default=None, metadata=SOMETIMES)
    attentions: tuple[OneHeadLeft, ...]


@dataclass(frozen=True, kw_only=True)
class Damages:
    """What is lost without each unit on two data sets."""

    one: tuple[float, ...]
    other: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class TransferDocument(JsonDocument):
    """What `transfer` found: the damage of each unit on two data sets, and how far it agrees.

    Documents of earlier versions have no ceiling, or one without its interval.
    """

    NAME: ClassVar[str] = "transfer"

    one: ResultDocument
    other: ResultDocument
    pearson: Correlation
    spearman: Correlation
    ceiling: float | None = field(default=None, metadata=SOMETIMES)
    ceiling_low: float | None = field(default=None, metadata=SOMETIMES)
    ceiling_high: float | None = field(default=None, metadata=SOMETIMES)
    sets: str | None = field(default=None, metadata=SOMETIMES)
    fill: FillDocument | None = field(default=None, metadata=SOMETIMES)
    units: tuple[str, ...]
    damage: Damages

    def __post_init__(self) -> None:
        if not len(self.units) == len(self.damage.one) == len(self.damage.other):
            raise ValueError("damage has not as many numbers as there are units")
