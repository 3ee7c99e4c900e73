"""bench.json: how fast models are, measured side by side. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from .. import notebook
from ..formatting import counted, memory_text
from ..formatting import speed_text as per_second
from .reading import SOMETIMES, JsonDocument


@dataclass(frozen=True)
class Subject:
    """A model that was measured: its name, its class, its parameters, and the bytes of its weights in memory."""

    name: str
    kind: str = field(metadata={"key": "class"})
    parameters: int
    bytes: int


WIDEST = 0.25  # quartiles of a ratio further apart than this, as a share of it, decide nothing


class Ratio(NamedTuple):
    """How many times as fast: the median over pairs of timings, its quartiles, and whether processor time was compared."""

    value: float
    low: float
    high: float
    by_processor: bool = False

    @property
    def wide(self) -> bool:
        """Whether the quartiles are too far apart to decide anything."""
        return self.high - self.low > WIDEST * self.value

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class _Timed:
    """What rows of timings have in common: whether they can be believed."""

    model: str
    batch: int
    ratio: float
    ratio_low: float
    ratio_high: float
    waited: float | None
    disturbed: bool
    work: Ratio | None

    @property
    def measured(self) -> Ratio | None:
        """How many times as fast it is, where that could be measured; None where noise would decide."""
        if not self.disturbed:
            ratio = Ratio(self.ratio, self.ratio_low, self.ratio_high)
            return None if ratio.wide else ratio
        return None if self.work is None or self.work.wide else self.work

    @property
    def why_not_timed(self) -> str:
        """Why the time on the clock says little, in words; empty where it can be believed."""
        if self.disturbed:
            return f"our threads waited {self.waited or 0.0:.0%} of the time for a processor that other programs used"
        if Ratio(self.ratio, self.ratio_low, self.ratio_high).wide:
            return "repetitions differ too much"
        return ""


@dataclass(frozen=True)
class Speed(_Timed):
    """One model at one batch size and length. Medians over the repetitions; `low` and `high` are quartiles.

    `ratio` is the speed over that of the first model, `limit` what the multiply-adds allow (`flops` are two for each),
    `arrived` the share of that gain which was measured (None where there is none), `peak_memory` in bytes. Where other
    programs used the processor (`disturbed`), `waited` is the share of the time in which our threads waited for it,
    `ratio_low` and `ratio_high` are the smallest and largest ratio, and `work` compares the processor time of one thread.
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
    waited: float | None = field(default=None, metadata=SOMETIMES)
    disturbed: bool = field(default=False, metadata=SOMETIMES)
    work: Ratio | None = field(default=None, metadata=SOMETIMES)


@dataclass(frozen=True)
class Decoding(_Timed):
    """One model that wrote `tokens` tokens after each prompt of a batch, one at a time with its cache of keys and values.

    `length` is that of the prompts, whose reading is not timed here. `cache` are the bytes of keys and values after the last
    token, measured; `cache_counted` is what the shapes of the heads say (None where the cache holds something else). The rest is
    as in `Speed`.
    """

    model: str
    batch: int
    length: int
    tokens: int
    tokens_per_second: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    cache: float
    cache_counted: float | None = None
    waited: float | None = field(default=None, metadata=SOMETIMES)
    disturbed: bool = field(default=False, metadata=SOMETIMES)
    work: Ratio | None = field(default=None, metadata=SOMETIMES)


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
    by_processor: bool = field(default=False, metadata=SOMETIMES)  # times are processor times of all threads
    runtime: str = field(default="torch", metadata=SOMETIMES)  # what ran the models; bytes are then those of its files
    cuda_graphs: bool = field(default=False, metadata=SOMETIMES)  # a GPU ran recordings of passes and steps
    decoding: tuple[Decoding, ...] = field(default=(), metadata=SOMETIMES)

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

    def __str__(self) -> str:
        where = "" if self.runtime == "torch" else f"{self.runtime}, "
        how = f"{self.device}, {self.dtype}, {where}medians of {self.repeats} repetitions"
        lines = [f"{row.model}: {speed_of(row)}" for row in self.rows]
        lines += [f"{row.model}: {decoding_of(row)}" for row in self.decoding]
        return "\n".join([how, *lines, *self.sentences(), *self.notes])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [
            (
                row.model,
                row.batch,
                row.length,
                per_second(row.examples_per_second),
                per_second(row.low),
                per_second(row.high),
            )
            for row in self.rows
        ]
        head = ["model", "batch", "length", "examples/s", "lower quartile", "upper quartile"]
        tables = [notebook.table(head, rows)]
        if self.decoding:
            head[3] = "tokens/s"
            tables.append(notebook.table(head, [_decoding_cells(row) for row in self.decoding]))
        texts = map(notebook.line, (*self.sentences(), *self.notes))
        return notebook.block(notebook.line(f"{self.device}, {self.dtype}"), *tables, *texts)

    def sentences(self) -> list[str]:
        """What came out for each of the other models at the largest batch and length, in plain words."""
        rows = [self.largest(subject.name) for subject in self.models[1:]]
        sentences = [_in_words(row, self.reference) for row in rows if row is not None]
        first = {(row.batch, row.length): row for row in self.decoding if row.model == self.reference}
        others = [row for row in self.decoding if row.model != self.reference]
        return sentences + [_writing_in_words(row, first[row.batch, row.length]) for row in others]

    @property
    def launched(self) -> str:
        """How passes were launched, where it was not one operation after the other."""
        return " · ".join(["compiled"] * self.compile + ["CUDA graphs"] * self.cuda_graphs)


def speed_of(row: Speed) -> str:
    """One row in words: the speed with its quartiles, at which batch size and length."""
    speeds = [per_second(speed) for speed in (row.examples_per_second, row.low, row.high)]
    return f"{speeds[0]} examples/s ({speeds[1]} to {speeds[2]}) at {shape_text(row.batch, row.length)}"


def decoding_of(row: Decoding) -> str:
    """What a decoder writes, in words: tokens per second with their quartiles, after how long a prompt."""
    speeds = [per_second(speed) for speed in (row.tokens_per_second, row.low, row.high)]
    return f"{speeds[0]} tokens/s ({speeds[1]} to {speeds[2]}) at {writing_text(row)}"


def writing_text(row: Decoding) -> str:
    """What was written, in words."""
    return f"batch {row.batch}, {counted(row.tokens, 'token')} after {row.length:,}"


def shape_text(batch: int, length: int | None) -> str:
    """A batch size and a length in words."""
    return f"batch {batch}" + ("" if length is None else f", length {length}")


def speed_text(row: Speed) -> str:
    """How many times as fast a model is, with all that has to be said about it: never a number that noise made."""
    by_count = f"the multiply-adds allow {row.limit:.2f}"
    if not row.why_not_timed:
        return f"{Ratio(row.ratio, row.ratio_low, row.ratio_high)} times as fast (median and quartiles); {by_count}"
    ratio = row.measured
    if ratio is None:
        return f"not timed, because {row.why_not_timed}; {by_count}"
    return (
        f"{ratio} times less processor time on one thread (median and quartiles); {by_count}; time on the clock says little, "
        f"because {row.why_not_timed}"
    )


def _in_words(row: Speed, first: str) -> str:
    if row.why_not_timed:
        return (
            f"At {shape_text(row.batch, row.length)} it cannot be said how many times as fast {row.model} is as {first}: "
            f"between {row.ratio_low:.2f} and {row.ratio_high:.2f} was measured, and {row.why_not_timed}. {_instead(row)}"
        )
    sentence = f"At {shape_text(row.batch, row.length)}, {row.model} is {row.ratio:.2f} times as fast as {first}"
    if row.arrived is None:
        return f"{sentence}; by the count of multiply-adds there is no gain to expect."
    return (
        f"{sentence}, of {row.limit:.2f} that the multiply-adds allow: {max(row.arrived, 0):.0%} of the gain arrived."
    )


def _instead(row: Speed) -> str:
    """What can be said of a model that could not be timed."""
    allowed = f"the multiply-adds allow {row.limit:.2f}; on a quiet machine measure again, with another folder (--run)"
    if row.measured is None:
        return f"By count, {allowed}."
    return f"On one thread it needs {row.measured} times less processor time; {allowed}."


def _writing_in_words(row: Decoding, first: Decoding) -> str:
    cache = f"its cache then takes {_mib(row.cache)}, and that of {first.model} {_mib(first.cache)}"
    where = writing_text(row)
    if row.why_not_timed and row.measured is None:
        return f"At {where}, how fast {row.model} writes was not timed, because {row.why_not_timed}; {cache}."
    if row.why_not_timed:
        return (
            f"At {where}, {row.model} needs {row.measured} times less processor time on one thread than {first.model} to write, "
            f"and time on the clock says little, because {row.why_not_timed}; {cache}."
        )
    return f"At {where}, {row.model} writes {row.ratio:.2f} times as many tokens per second as {first.model}; {cache}."


def _decoding_cells(row: Decoding) -> tuple[object, ...]:
    speeds = (row.tokens_per_second, row.low, row.high)
    return (row.model, row.batch, f"{row.length:,} + {row.tokens:,}", *map(per_second, speeds))


def _mib(size: float) -> str:
    return memory_text(size).replace("\u00a0", " ")
