"""prune.json: what was removed, what the model was worth before and after, and what was promised. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from ..plans import Plan
from ..stats.guarantee import Guarantee, Step
from ..stats.results import Comparison
from .bench import Bench
from .reading import FLAT, SOMETIMES, JsonDocument
from .results import ResultDocument

BUDGETS = {"flops": "FLOPs", "params": "parameters", "kv-cache": "KV cache", "memory": "memory", "time": "time"}


@dataclass(frozen=True, kw_only=True)
class GuaranteeDocument:
    """A guarantee with how many units can go under it; documents of earlier versions have no least, cap, groups or tries."""

    metric: str
    drop: float
    alpha: float
    test: str
    n: int
    base: float | None = None
    steps: tuple[Step, ...]
    needed: int | None = None
    least: float | None = None
    cap: float | None = None
    groups: int | None = None
    tries: int = 1
    removed: int | None = None
    sentence: str = ""

    @classmethod
    def of(cls, guarantee: Guarantee) -> GuaranteeDocument:
        """What is written of a guarantee."""
        return cls(**vars(guarantee), removed=guarantee.removed, sentence=str(guarantee))


@dataclass(frozen=True)
class Budget:
    """What was allowed, what the plan was reckoned to cost, and what the cut model really costs, in what the budget counts."""

    what: str  # "flops", "params", "kv-cache" (bytes per token), "memory" (bytes) or "time"
    asked: str | float
    whole: float
    allowed: float
    predicted: float
    measured: float | None = None
    multiples: dict[str, int] = field(default_factory=dict)
    note: str = ""  # why the speed was reckoned and not measured

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)

    def __str__(self) -> str:
        kept_share, room = (self.measured or 0.0) / self.whole, self.allowed / self.whole
        verb = "is" if self.what in ("kv-cache", "memory") else "are"
        text = f"{kept_share:.1%} of the {BUDGETS[self.what]} {verb} left, of {room:.1%} allowed"
        return f"{text} ({self.note.partition(',')[0]})" if self.note else text


@dataclass(frozen=True)
class Fit:
    """How well one site was tuned: squared distances from the whole model after it, on held-out examples.

    As shares of the size of what the site itself writes; more than 1 where errors of earlier sites weigh more.
    """

    name: str
    error: float  # as cut
    tuned: float
    low: float  # the smallest and the largest of its numbers
    high: float
    used: bool  # False where the numbers did no good on held-out examples: they stay at one


@dataclass(frozen=True)
class Skipped:
    """A site that could not be fitted, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class TunedDocument:
    """What tuning did to every site, without the numbers themselves: those are in the weights."""

    examples: int
    positions: int
    sites: tuple[Fit, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def used(self) -> list[Fit]:
        """The sites whose numbers did some good."""
        return [site for site in self.sites if site.used]


@dataclass(frozen=True)
class RefittedSite:
    """How well the columns of one site were fitted: squared distances from the whole model after it, on held-out examples.

    As shares of the size of what the site itself writes; more than 1 where errors of earlier sites weigh more.
    """

    name: str
    error: float  # as cut
    refitted: float
    strength: float  # of the ridge, as a share of the mean diagonal
    used: bool  # False where a fit did no good on held-out examples: its columns stay as they were


@dataclass(frozen=True)
class RefitDocument:
    """What fitting columns anew did to every site, without the columns themselves: those are in the weights."""

    examples: int
    positions: int
    bias: bool  # whether a bias was fitted as well
    sites: tuple[RefittedSite, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def used(self) -> list[RefittedSite]:
        """The sites whose fit did some good."""
        return [site for site in self.sites if site.used]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan for the budget that was measured on scoring examples: how units were weighed, and what it was worth there.

    Every attention and MLP kept at least the share `floor` of its units; `costs` says by which costs units were weighed
    ("counts", "time", "mixture"). `n` is the number of scoring examples: the best of a first round are measured on more.
    """

    by: str
    floor: float = 0.0
    costs: str = "counts"
    removed: int
    left: float  # share of what the budget counts, as reckoned
    value: float
    n: int
    chosen: bool = False

    def __str__(self) -> str:
        floor = f", at least {self.floor:.0%} of every site" if self.floor else ""
        costs = {"time": ", by measured time", "mixture": ", by time and counts"}.get(self.costs, "")
        return f"{self.by}{floor}{costs}"


@dataclass(frozen=True, kw_only=True)
class BrakeDocument:
    """How far the metric fell on scoring examples, and how far it may: both in points, of `metric`."""

    metric: str
    whole: float
    value: float
    constant: float | None = None
    allowed: float
    fell: float
    n: int


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What was done beyond choosing and cutting: the budget, tuning, exchanges within sites, promises tried before."""

    budget: Budget | None = None
    tuned: TunedDocument | None = None
    rearranged: int | None = None
    not_tuned: str | None = None
    tried: str | None = None
    candidates: tuple[Candidate, ...] = field(default=(), metadata=SOMETIMES)
    brake: BrakeDocument | None = field(default=None, metadata=SOMETIMES)
    compensated: int | None = field(
        default=None, metadata=SOMETIMES
    )  # examples that the means are over which are put back
    refitted: RefitDocument | None = field(default=None, metadata=SOMETIMES)
    groups: str | None = field(default=None, metadata=SOMETIMES)  # why groups of query heads stay even, or are not


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """How the cut model was trained once more, as far as it is known, and what it was worth `before` that."""

    before: float
    epochs: float | None = field(default=None, metadata=SOMETIMES)
    examples: int | None = field(default=None, metadata=SOMETIMES)
    distilled: bool | None = field(default=None, metadata=SOMETIMES)
    steps: int | None = field(default=None, metadata=SOMETIMES)
    recipe: dict[str, Any] | None = field(default=None, metadata=SOMETIMES)


@dataclass(frozen=True, kw_only=True)
class SiteLeft:
    """What is left of an attention or MLP."""

    name: str
    kind: str
    type: str | None = None
    layer: int | None = None
    units: int
    left: int


@dataclass(frozen=True)
class StackLeft:
    """The layers of a stack, and which of them are gone."""

    name: str
    units: int
    gone: tuple[int, ...]


@dataclass(frozen=True)
class CutSite:
    """A site that lost units: in which mode it was cut, and the parameters that this saved."""

    name: str
    units: int
    left: int
    manner: str
    parameters: int


@dataclass(frozen=True)
class LeftAlone:
    """A site that could not be cut, and why."""

    site: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ExampleSet:
    """Examples, and what they were used for."""

    role: str = ""
    data: str
    n: int
    what: str | None = None


@dataclass(frozen=True)
class How:
    """How much was to go: the kind of wish, and its value."""

    kind: str
    value: Any


@dataclass(frozen=True, kw_only=True)
class PruneDocument(JsonDocument):
    """What `prune` did: all that a model card and a report need, without the values of examples."""

    NAME: ClassVar[str] = "prune"

    how: How | None = None
    sentence: str = ""
    model: str
    class_name: str = field(default="", metadata={"key": "class"})
    by: str | None = None
    units: str = "units"
    guarantee: GuaranteeDocument | None = None
    order: tuple[str, ...] = ()
    plan: Plan
    removed: int
    of: int
    left_alone: tuple[LeftAlone, ...] = ()
    before: ResultDocument
    after: ResultDocument
    comparison: Comparison
    parameters: tuple[int, int]
    bytes: tuple[int, int]
    speed: Bench | None = None
    flops: tuple[float, float] | None = None
    kv_cache: tuple[int, int] | None = field(default=None, metadata=SOMETIMES)  # bytes per token, before and after
    steps: Steps = field(metadata=FLAT)
    suspicion: str | None = None
    recovered: Recovery | None = None
    structure: tuple[SiteLeft, ...] = ()
    layers: tuple[StackLeft, ...] = ()
    sites: tuple[CutSite, ...]
    output: str = ""
    signature: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    task: str | None = field(default=None, metadata=SOMETIMES)
    stock: bool | None = field(default=None, metadata=SOMETIMES)
    base_card: dict[str, Any] | None = field(default=None, metadata=SOMETIMES)
    command: str | None = field(default=None, metadata=SOMETIMES)
    sets_note: str | None = field(default=None, metadata=SOMETIMES)
    tries: dict[str, Any] | None = None
    sets: tuple[ExampleSet, ...] = ()

    @property
    def gone(self) -> list[str]:
        """The units that were removed."""
        return [str(unit) for unit in self.plan]
