"""A measured model and the difference between two: values with their intervals, as people read them and as JSON."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, overload

import numpy as np

from .. import notebook
from ..errors import BadMeasure
from ..formatting import Column, digits_for, digits_of, signed
from .constant_answer import constant_answer
from .metrics import UNFINISHED, Metric
from .paired_tests import ALTERNATIVES, TESTS, benjamini_hochberg, grouped, holm, paired
from .paired_tests import interval as bootstrap_interval

TEST_NAMES = {
    "randomization": "paired randomization",
    "bootstrap": "paired bootstrap",
    "mcnemar": "exact McNemar",
    "t": "paired t-test",
}
COMPARED = ("name", "columns", "labels", "higher_is_better", "points")  # what makes two metrics the same
LATER = ("groups",)  # fields that comparisons written by earlier versions do not have


@dataclass(frozen=True, eq=False)
class Result:
    """A model measured on a task: the metric and its rows, one per example. `signature` says how it was measured.

    `clusters` has the number of every example's group, (n,), where examples belong together; None: each is on its own.
    """

    metric: Metric
    rows: np.ndarray
    signature: str = ""
    clusters: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", self.metric.checked(self.rows))
        if self.clusters is not None:
            grouped(self.clusters, self.n)
            object.__setattr__(self, "clusters", np.asarray(self.clusters))

    @property
    def value(self) -> float:
        """The metric, in its own unit (accuracy from 0 to 1, BLEU from 0 to 100)."""
        return self.metric.value(self.rows)

    @property
    def n(self) -> int:
        """The number of examples."""
        return len(self.rows)

    @property
    def groups(self) -> int | None:
        """The number of groups of examples; None where every example is on its own."""
        return None if self.clusters is None else len(np.unique(self.clusters))

    @property
    def unfinished(self) -> int | None:
        """How many translations the length limit ended, and not the model; None where nothing was generated."""
        columns = self.metric.columns
        return int(self.rows[:, columns.index(UNFINISHED)].sum()) if UNFINISHED in columns else None

    def interval(self, level: float = 0.95, resamples: int = 1000, seed: int = 12345) -> tuple[float, float]:
        """The percentile bootstrap interval of the value: what it could have been on other examples of the same kind."""
        options: dict[str, Any] = {"level": level, "resamples": resamples, "seed": seed}
        return bootstrap_interval(self.metric, self.rows, clusters=self.clusters, **options)

    def __str__(self) -> str:
        low, high = self.interval()
        digits = digits_of(high - low, default=3)
        texts = [f"{number:.{digits}f}" for number in (self.value, low, high)]
        return f"{self.metric.name} {texts[0]} [{texts[1]}, {texts[2]}] ({sample_of(self.n, self.groups)})"

    def __repr__(self) -> str:
        return f"<Result {self}>"

    def _repr_html_(self) -> str:
        return notebook.block(notebook.line(self, bold=True), notebook.line(self.signature))

    def to_json(self) -> dict[str, Any]:
        """Metric, value, 95% interval, number of examples (groups, `unfinished`), a constant answer's value; not the rows."""
        low, high = self.interval()
        summary = {"metric": self.metric.name, "value": self.value, "low": low, "high": high, "level": 0.95}
        counts: dict[str, float | None] = {"n": self.n, "groups": self.groups, "unfinished": self.unfinished}
        counts["constant"] = constant_answer(self.metric, self.rows)
        counted = {name: count for name, count in counts.items() if count is not None}
        return {**summary, **counted, "signature": self.signature}


@dataclass(frozen=True)
class Comparison:
    """A model before and after a change, on the same examples: the difference, its interval, and how likely by chance.

    `before`, `after`, `difference` (after - before), `low` and `high` are in the metric's own unit; times `points` they
    are in points. `p` is that of the test named; `p_holm` and `p_bh` are corrected for all comparisons made together.
    `groups` is how many groups the n examples are in, None where every example is on its own.
    """

    metric: str
    before: float
    after: float
    difference: float
    low: float
    high: float
    level: float
    p: float
    test: str
    n: int
    higher_is_better: bool
    points: float
    p_holm: float | None = None
    p_bh: float | None = None
    alternative: str = "two-sided"
    groups: int | None = None

    @property
    def worse(self) -> bool:
        """Whether the model measured worse after than before; `significant` says whether that is more than chance."""
        return self.damage > 0

    @property
    def damage(self) -> float:
        """How much worse it measured, in points, whichever way the metric runs; negative when it got better."""
        down = -self.difference if self.higher_is_better else self.difference
        return down * self.points

    def significant(self, alpha: float = 0.05) -> bool:
        """Whether p is at most alpha: Holm's p where several comparisons were made together, else the test's own."""
        return (self.p if self.p_holm is None else self.p_holm) <= alpha

    @property
    def span(self) -> str:
        """The difference with its interval: "-1.9 points [-4.1, 0.0]"."""
        numbers = [number * self.points for number in (self.difference, self.low, self.high)]
        digits = digits_of(numbers[2] - numbers[1], default=1)
        texts = [_signed(number, digits) for number in numbers]
        in_points = self.points != 1 or self.metric in ("bleu", "chrf")
        unit = "points" if in_points else f"in {self.metric}"
        return f"{texts[0]} {unit} [{texts[1]}, {texts[2]}]"

    def _numbers(self) -> str:
        return f"{self.span}, p {_p(self.p, equals='= ')}"

    @property
    def brief(self) -> str:
        """The difference with its interval and p in short; `tested` says by which test."""
        corrected = "" if self.p_holm is None else f", Holm {_p(self.p_holm)}"
        return f"{self._numbers()}{corrected}"

    @property
    def tested(self) -> str:
        """The test, and on how many examples: "paired randomization, n=400"."""
        sides = "" if self.alternative == "two-sided" else f", {self.alternative}"
        return f"{TEST_NAMES[self.test]}{sides}, {sample_of(self.n, self.groups)}"

    def __str__(self) -> str:
        corrected = "" if self.p_holm is None else f"Holm {_p(self.p_holm)}, "
        return f"{self._numbers()} ({corrected}{self.tested})"

    def __repr__(self) -> str:
        return f"<Comparison {self.metric} {self.before:.4g} -> {self.after:.4g}: {self}>"

    def _repr_html_(self) -> str:
        head = ["metric", "before", "after", "difference"]
        row = [self.metric, f"{self.before:.4f}", f"{self.after:.4f}", str(self)]
        picture = notebook.interval(self.difference, self.low, self.high, worse_above=not self.higher_is_better)
        return notebook.block(notebook.table(head, [row]), picture)

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Comparison:
        """The comparison that `to_json` wrote, or an error with the first thing that is wrong with it."""
        if not isinstance(data, dict):
            raise BadMeasure(f"A comparison is an object with fields such as difference and p; I got {_short(data)}.")
        data = {**dict.fromkeys(LATER), **data}
        field_types = {field.name: str(field.type) for field in fields(cls)}
        strange = sorted(set(map(str, data)) ^ set(field_types))
        if strange:
            problem = "has no field" if strange[0] in field_types else "has a field of no meaning,"
            raise BadMeasure(f"The comparison {problem} {_short(strange[0])}; it has to be one that headcount wrote.")
        for name, kind in field_types.items():
            if not _is(data[name], kind):
                raise BadMeasure(f"The comparison's {name} is {_short(data[name])}; it should be a {kind}.")
        for name, choices in (("test", TESTS), ("alternative", ALTERNATIVES)):
            if data[name] not in choices:
                raise BadMeasure(f"The comparison's {name} is {_short(data[name])}; I know {', '.join(choices)}.")
        return cls(**data)


@overload
def compare(
    before: Result,
    after: Result,
    *,
    test: str = ...,
    level: float = ...,
    resamples: int = ...,
    seed: int = ...,
    alternative: str = ...,
) -> Comparison: ...


@overload
def compare(
    before: Result,
    after: Sequence[Result],
    *,
    test: str = ...,
    level: float = ...,
    resamples: int = ...,
    seed: int = ...,
    alternative: str = ...,
) -> tuple[Comparison, ...]: ...


def compare(
    before: Result,
    after: Result | Sequence[Result],
    *,
    test: str = "randomization",
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 12345,
    alternative: str = "two-sided",
) -> Comparison | tuple[Comparison, ...]:
    """Paired comparison of results on the same examples: difference, confidence interval and p-value (see `paired_tests.paired`).

    Groups of examples are those of `before.clusters`.

    Args:
        before: The result to compare with.
        after: A result on the same examples, or several: then p-values are corrected for their number.
        test: "randomization", "bootstrap", "mcnemar" (accuracy only) or "t".
        level: Level of the confidence interval.
        resamples: Resamples of the interval and of the test.
        seed: Random seed of the resamples.
        alternative: "two-sided", "less" or "greater".

    Returns:
        A comparison, or one for each result where several were given.

    Examples:
        >>> model = hc.load("my-model")
        >>> task = hc.task("classification", "dev.tsv", tokenizer="my-model", limit=64)
        >>> before = hc.evaluate(model, task)
        >>> with hc.masked(model, "0:* 1:*"):
        ...     after = hc.evaluate(model, task)
        >>> comparison = hc.compare(before, after)
        >>> comparison.low <= comparison.difference <= comparison.high
        True
    """
    options: dict[str, Any] = {"test": test, "level": level, "resamples": resamples, "seed": seed}
    if not isinstance(after, Result):
        return compare_all(before, after, alternative=alternative, **options)
    (comparison,) = compare_all(before, [after], alternative=alternative, **options)
    return replace(comparison, p_holm=None, p_bh=None)


def compare_all(
    before: Result,
    afters: Sequence[Result] | np.ndarray,
    *,
    test: str = "randomization",
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 12345,
    alternative: str = "two-sided",
) -> tuple[Comparison, ...]:
    """One result against many (results, or their rows as an array (m, n, columns)), p-values corrected for their number."""
    metric = before.metric
    if not isinstance(afters, np.ndarray):
        for after in afters:
            _check_same(before, after)
        afters = np.stack([after.rows for after in afters]) if afters else np.empty((0, *before.rows.shape))
    if afters.ndim == 3 and afters.shape[1:] != before.rows.shape:
        raise BadMeasure(
            f"Rows before have shape {before.rows.shape} and after {afters.shape[1:]}; a comparison needs the same "
            "examples and columns: measure both on the same data."
        )
    options: dict[str, Any] = {"test": test, "level": level, "resamples": resamples, "seed": seed}
    result = paired(metric, before.rows, afters, alternative=alternative, clusters=before.clusters, **options)
    numbers = (
        result.after,
        result.difference,
        result.low,
        result.high,
        result.p,
        holm(result.p),
        benjamini_hochberg(result.p),
    )
    return tuple(
        Comparison(
            metric=metric.name,
            before=result.before,
            after=after,
            difference=difference,
            low=low,
            high=high,
            level=level,
            p=p,
            test=test,
            n=before.n,
            higher_is_better=metric.higher_is_better,
            points=metric.points,
            p_holm=p_holm,
            p_bh=p_bh,
            alternative=alternative,
            groups=before.groups,
        )
        for after, difference, low, high, p, p_holm, p_bh in zip(*(n.tolist() for n in numbers), strict=True)
    )


def _check_same(before: Result, after: Result) -> None:
    if before.metric != after.metric:
        attribute = next(name for name in COMPARED if getattr(before.metric, name) != getattr(after.metric, name))
        before_value, after_value = getattr(before.metric, attribute), getattr(after.metric, attribute)
        raise BadMeasure(
            f"The metric's {attribute} before: {before_value}, after: {after_value}; a comparison needs one metric on one "
            "task: measure again."
        )
    if before.n != after.n:
        raise BadMeasure(
            f"There are {before.n} examples before and {after.n} after; a paired comparison needs the same ones: measure "
            "both on the same data."
        )
    fills = [stood_in(result.signature) for result in (before, after)]
    if None not in fills and fills[0] != fills[1]:
        raise BadMeasure(
            f"Masked units had {fills[0]} in their place before and {fills[1]} after, so the difference is not that of the units "
            "alone: measure both with the same fill."
        )


def stood_in(signature: str) -> str | None:
    """What stood in for masked units by the signature of a result: "zero", "mean(...)"; None where it masks none."""
    parts = dict(part.split(":", 1) for part in signature.split("|") if ":" in part)
    return parts.get("fill") or ("zero" if parts.get("without", "0") != "0" else None)


def sample_of(n: int, groups: int | None = None) -> str:
    """How many examples there are, and in how many groups where they belong together: "n=500 in 100 groups"."""
    return f"n={n}" if groups is None else f"n={n} in {groups} {'group' if groups == 1 else 'groups'}"


def _signed(number: float, digits: int) -> str:
    text = f"{number:+.{digits}f}"
    return text if float(text) else text[1:]


def _p(p: float, equals: str = "") -> str:
    return f"{equals}{p:.2g}" if p >= 0.0001 else "< 0.0001"


def _is(value: object, kind: str) -> bool:
    """Whether a JSON value is of the annotated type; numbers must be finite."""
    if value is None:
        return "None" in kind
    kind = kind.removesuffix(" | None")
    if kind in ("str", "bool", "int"):
        return type(value).__name__ == kind
    return type(value) in (int, float) and math.isfinite(value)


def _short(value: object) -> str:
    return reprlib.repr(value)


def unit_of(comparison: Comparison) -> str:
    """What differences are counted in."""
    in_points = comparison.points != 1 or comparison.metric in ("bleu", "chrf")
    return "points" if in_points else comparison.metric


def difference_text(comparison: Comparison, interval: bool = True) -> str:
    """A difference with its interval: "−0.7 [−1.4, 0.0] points"."""
    low, value, high = (
        number * comparison.points for number in (comparison.low, comparison.difference, comparison.high)
    )
    digits = digits_of(high - low, 1)
    span = f" [{signed(low, digits)}, {signed(high, digits)}]" if interval else ""
    return f"{signed(value, digits)}{span} {unit_of(comparison)}"


def difference_columns(compared: Sequence[Comparison], called: str = "") -> list[Column]:
    """Columns for differences with their intervals, in points where the metric has them, and as fine as these are."""
    digits = digits_for(((comparison.high - comparison.low) * comparison.points for comparison in compared), more=1)
    unit = unit_of(compared[0]) if compared else "points"
    titles = (f"difference, {unit}", "low", "high")
    return [Column(title + called, lambda value: signed(value, digits), True) for title in titles]


def in_points(comparison: Comparison) -> tuple[float, float, float]:
    """Difference, low and high end, as `difference_columns` have them."""
    return (
        comparison.difference * comparison.points,
        comparison.low * comparison.points,
        comparison.high * comparison.points,
    )
