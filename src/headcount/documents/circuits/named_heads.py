"""heads.json: which heads are induction, previous-token, ... heads, by scores on prompts made for it. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from ...formatting import listed
from ..reading import JsonDocument


class HeadScore(NamedTuple):
    """One head: the mean of its scores with a 95 % interval, p of "no more than chance" (and Holm's), whether it is named."""

    unit: str
    mean: float
    low: float
    high: float
    p: float
    p_holm: float
    named: bool


class Enough(NamedTuple):
    """What so many examples would have shown: how wide intervals are, and how often the same heads are named."""

    examples: int
    half_width: float
    same: float
    overlap: float


@dataclass(frozen=True, kw_only=True)
class HeadKind:
    """One kind of head: what was scored on which examples, all heads in the order of the model, and how many examples suffice."""

    kind: str
    score: str
    source: str
    read: str
    examples: int
    at_least: float
    chance: float
    heads: tuple[HeadScore, ...]
    steps: tuple[Enough, ...]
    enough: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[HeadScore, ...]:
        """The heads of this kind, the highest score first."""
        return tuple(head for head in self.ranking if head.named)

    @property
    def ranking(self) -> tuple[HeadScore, ...]:
        """All heads, the highest score first."""
        return tuple(sorted(self.heads, key=lambda head: -head.mean))


@dataclass(frozen=True, kw_only=True)
class HeadsDocument(JsonDocument):
    """What `heads` found, kind by kind."""

    NAME: ClassVar[str] = "heads"

    model: str
    kinds: tuple[HeadKind, ...]
    seed: int = 0
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """How many heads there are of each kind, and the first of them."""
        of = len(self.kinds[0].heads) if self.kinds else 0
        found = [f"{len(kind.named)} {kind.kind} ({kind.named[0].unit} first)" for kind in self.kinds if kind.named]
        if not found:
            return f"None of {of:,} heads has one of the names looked for."
        return f"Of {of:,} heads, by name: {listed(found, 9)}."
