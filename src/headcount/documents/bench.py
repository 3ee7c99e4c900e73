"""bench.json: how fast models are, measured side by side. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from .reading import SOMETIMES, JsonDocument


@dataclass(frozen=True)
class Subject:
    """A model that was measured: its name, its class, its parameters, and the bytes of its weights in memory."""

    name: str
    kind: str = field(metadata={"key": "class"})
    parameters: int
    bytes: int


@dataclass(frozen=True)
class Speed:
    """One model at one batch size and length. Medians over the repetitions; `low` and `high` are quartiles.

    `ratio` is the speed over that of the first model, `limit` what the multiply-adds allow (`flops` are two for each),
    `arrived` the share of that gain which was measured (None where there is none), `peak_memory` in bytes.
    """

    model: str
    batch: int
    length: int | None
    examples_per_second: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    flops: float
    limit: float
    arrived: float | None = None
    peak_memory: float | None = None


@dataclass(frozen=True)
class Bench(JsonDocument):
    """Models measured side by side, the first being the one that the others are compared to; `notes` say what is missing."""

    NAME: ClassVar[str] = "bench"

    device: str
    dtype: str
    compile: bool
    torch: str
    repeats: int
    models: tuple[Subject, ...]
    rows: tuple[Speed, ...]
    notes: tuple[str, ...] = ()
    busy: float | None = field(
        default=None, metadata=SOMETIMES
    )  # share of the time in which programs waited for a processor

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("models is empty")

    @property
    def reference(self) -> str:
        """The model that the others were timed against."""
        return self.models[0].name

    def largest(self, model: str) -> Speed | None:
        """A model at the largest batch and length; None where it was not measured."""
        rows = [row for row in self.rows if row.model == model]
        return max(rows, key=lambda row: (row.batch, row.length or 0), default=None)

    def sentences(self) -> list[str]:
        """What came out for each of the other models at the largest batch and length, in plain words."""
        rows = [self.largest(subject.name) for subject in self.models[1:]]
        return [_in_words(row, self.reference) for row in rows if row is not None]


def shape_text(batch: int, length: int | None) -> str:
    """A batch size and a length in words."""
    return f"batch {batch}" + ("" if length is None else f", length {length}")


def _in_words(row: Speed, first: str) -> str:
    sentence = f"At {shape_text(row.batch, row.length)}, {row.model} is {row.ratio:.2f} times as fast as {first}"
    if row.arrived is None:
        return f"{sentence}; by the count of multiply-adds there is no gain to expect."
    return (
        f"{sentence}, of {row.limit:.2f} that the multiply-adds allow: {max(row.arrived, 0):.0%} of the gain arrived."
    )
