"""claims.json: the statements of a paper beside what runs show, and the commands that ran them. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .reading import JsonDocument

FORMAT = 1
CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD = "confirmed", "differs", "not confirmed", "cannot be told"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, what is seen here, and whether they agree."""

    paper: str  # what the paper says, with its numbers and where they stand
    here: str  # what was measured, with intervals
    verdict: str  # one of the four above
    rule: str  # when the verdict would have been "confirmed", so that a reader can check it

    def __post_init__(self) -> None:
        if self.verdict not in (CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD):
            raise ValueError(f"{self.verdict!r:.40} is no verdict")


@dataclass(frozen=True)
class Sheet:
    """A published table with ours beside it; everything is text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row of {self.title!r:.40} has another number of cells than it has columns")


@dataclass(frozen=True)
class MaterialNames:
    """What an experiment was run on."""

    name: str
    about: str


@dataclass(frozen=True, kw_only=True)
class ClaimsDocument(JsonDocument):
    """What became of an experiment of a paper."""

    NAME: ClassVar[str] = "claims"

    format: int
    experiment: str
    paper: str
    shows: str
    asks: str
    material: MaterialNames
    full: bool
    seeds: tuple[int, ...]
    claims: tuple[Claim, ...]
    sheets: tuple[Sheet, ...]
    commands: tuple[str, ...]
    left_out: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format!r:.20}, and this version reads {FORMAT}")
