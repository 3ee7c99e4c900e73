"""result.json: a model measured on a task, without the values of examples. No torch."""

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
