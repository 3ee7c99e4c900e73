"""result.json: a model measured on a task, without the values of examples; and what stood in for masked units. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..stats.results import Result
from .reading import SOMETIMES, JsonDocument


@dataclass(frozen=True, kw_only=True)
class ResultDocument(JsonDocument):
    """A measured value with its 95 % interval; `groups`, `unfinished` and `constant` are there only where known.

    `constant` is what the best constant answer is worth on the same examples.
    """

    NAME: ClassVar[str] = "result"

    metric: str
    value: float
    low: float
    high: float
    level: float = 0.95
    n: int
    groups: int | None = field(default=None, metadata=SOMETIMES)
    unfinished: int | None = field(default=None, metadata=SOMETIMES)
    constant: float | None = field(default=None, metadata=SOMETIMES)
    signature: str = ""

    @classmethod
    def of(cls, result: Result) -> ResultDocument:
        """The summary of a result."""
        return cls(**result.to_json())


# What stands in, in words; {of} is the reference set
KINDS = {
    "zero": "zero",
    "mean": "their mean over {of}",
    "mean-per-position": "their mean at each position over {of}",
    "resample": "what they are at the same position of another of {of}",
    "counterfactual": "what they are on the counterpart of each example among {of}",
    "noise": "Gaussian noise with their mean and standard deviation over {of}",
}
DRAWN = ("resample", "noise")


@dataclass(frozen=True, kw_only=True)
class FillDocument:
    """What stood in for masked units: the kind, the `n` examples of the reference set that it came from, draws and positions."""

    kind: str
    reference: str = field(default="", metadata=SOMETIMES)
    fingerprint: str = field(default="", metadata=SOMETIMES)
    n: int = field(default=0, metadata=SOMETIMES)
    draws: int = field(default=1, metadata=SOMETIMES)
    seed: int | None = field(default=None, metadata=SOMETIMES)
    at: str = field(default="", metadata=SOMETIMES)

    @property
    def signature(self) -> str:
        """How it was made, in one word: "resample(train.tsv#1a2b3c4d,draws:10,seed:0)"."""
        parts = [f"{self.reference}#{self.fingerprint[:8]}"] if self.reference else []
        parts += [f"draws:{self.draws}", f"seed:{self.seed}"] if self.kind in DRAWN else []
        parts += [f"at:{self.at}"] if self.at else []
        return f"{self.kind}({','.join(parts)})" if parts else self.kind

    @property
    def words(self) -> str:
        """What stood in, in words: "their mean over 200 examples of train.tsv"."""
        drawn = f", mean of {self.draws} draws" if self.draws > 1 else ""
        stood_in = KINDS.get(self.kind, self.kind).replace("{of}", f"{self.n} examples of {self.reference}")
        return f"{stood_in}{drawn}{self.where}"

    @property
    def where(self) -> str:
        """At which positions, in words; empty where at all of them."""
        if not self.at:
            return ""
        if self.at in ("last", "first"):
            return f", at the {self.at} position only"
        own = "x" in self.at
        return (
            ", at positions that each example names" if own else f", at position{'s' * (':' in self.at)} {self.at} only"
        )

    @property
    def sentence(self) -> str:
        """The sentence below results."""
        return f"masked units are given {self.words}"
