"""lottery.json: which sub-networks of a model survive under several seeds and on several tasks. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..stats.results import Comparison
from .reading import SOMETIMES, JsonDocument

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """A task of a study: its metric, what the most frequent label would reach, which examples, and the recipe."""

    name: str
    metric: str
    higher_is_better: bool = True
    majority: float | None = None
    sets: str = ""
    recipe: dict[str, Any] | None = field(default=None, metadata=SOMETIMES)


@dataclass(frozen=True, kw_only=True)
class LotterySite:
    """An attention, or an MLP that is one unit."""

    name: str
    kind: str  # "head" or "mlp"
    type: str | None = None
    layer: int | None = None
    units: int


@dataclass(frozen=True)
class UnitCounts:
    """A number of heads and a number of MLPs."""

    heads: int
    mlps: int

    def of(self, kind: str) -> int:
        """The number of one kind, "heads" or "mlps"."""
        return self.heads if kind == "heads" else self.mlps


@dataclass(frozen=True)
class FullModel:
    """What the full model of a draw is worth on the examples to select on and to report on."""

    select: float
    report: float


@dataclass(frozen=True, kw_only=True)
class SearchStep:
    """A step of a search: what is left, what that is worth, and whether the step was kept."""

    phase: int | None = None
    heads: int
    mlps: int
    value: float
    kept: bool


@dataclass(frozen=True)
class WeightStep:
    """A step of a search among single weights: the share that is left."""

    left: float
    value: float
    kept: bool


@dataclass(frozen=True, kw_only=True)
class Network:
    """A sub-network, good, random or bad, as found or retrained: its size, its value, the difference to the full model."""

    what: str
    how: str
    heads: int | None = field(default=None, metadata=SOMETIMES)
    mlps: int | None = field(default=None, metadata=SOMETIMES)
    left: float | None = field(default=None, metadata=SOMETIMES)
    value: float
    n: int
    comparison: Comparison | None = field(default=None, metadata=SOMETIMES)


@dataclass(frozen=True)
class WeightSearch:
    """The same by the magnitude of single weights."""

    left: float
    steps: tuple[WeightStep, ...]
    networks: tuple[Network, ...]


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One seed of one task: which units survived (site -> indices), the steps of the search, and the sub-networks."""

    task: str
    seed: int
    full: FullModel
    left: UnitCounts
    of: UnitCounts
    parameters: tuple[int | None, int | None]
    alive: dict[str, tuple[int, ...]]
    steps: tuple[SearchStep, ...]
    networks: tuple[Network, ...]
    magnitude: WeightSearch | None = None


@dataclass(frozen=True)
class SiteSurvival:
    """In how many tasks each unit of a site survives: mean and deviation over seeds."""

    mean: tuple[float, ...]
    sd: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        if self.sd is not None and len(self.sd) != len(self.mean):
            raise ValueError("mean and sd are not equally many")


@dataclass(frozen=True)
class Overlap:
    """How many units each two tasks share: mean and deviation over seeds."""

    mean: tuple[tuple[float, ...], ...]
    sd: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True)
class Size:
    """A mean and the deviation over seeds; one seed has none."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True, kw_only=True)
class SeedAgreement:
    """Whether seeds keep the same units of a task: Fleiss' kappa, and Cochran's Q with its p."""

    task: str
    kind: str
    kappa: float | None
    q: float | None
    p: float | None
    in_all: int
    size: Size


@dataclass(frozen=True, kw_only=True)
class NetworkMean:
    """What sub-networks of one kind are worth over seeds."""

    task: str
    kind: str
    what: str
    how: str
    mean: float
    sd: float | None
    seeds: int


@dataclass(frozen=True, kw_only=True)
class LotteryDocument(JsonDocument):
    """What came of a lottery study: the draws, and what follows from them."""

    NAME: ClassVar[str] = "lottery"

    format: int = FORMAT
    model: str
    class_name: str = field(metadata={"key": "class"})
    threshold: float
    step: float
    seeds: tuple[int, ...]
    recipe: dict[str, Any] = field(default_factory=dict)
    tasks: tuple[TaskSettings, ...]
    sites: tuple[LotterySite, ...]
    draws: tuple[Draw, ...]
    survivors: dict[str, SiteSurvival]
    overlap: dict[str, Overlap] = field(default_factory=dict)
    agreement: tuple[SeedAgreement, ...] = ()
    table: tuple[NetworkMean, ...]
    sentence: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format!r:.20}, and this version reads {FORMAT}")
        missing = [site.name for site in self.sites if site.name not in self.survivors]
        if missing:
            raise ValueError(f"survivors.{missing[0]} is missing")
