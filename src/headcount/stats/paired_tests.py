"""Whether a difference is more than chance: intervals, paired tests, corrections for many tests, correlations.

All of it works on rows of values per example (see `metrics`). Before and after are measured on the same examples, so
every test is paired. Many alternatives to one baseline share their random draws: these are made once per call, a
chunk at a time, and each chunk meets all alternatives in matrix products. A seed gives the same draws however the
work is chunked; they are also the draws that sacreBLEU and `scipy.stats.bootstrap` make from that seed.

Examples that belong together (questions about one text, sentences of one document) are not new evidence each. `clusters`
gives every example the number of its group: groups are then drawn whole, and change sides whole. Without it every
example is on its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from ..errors import BadMeasure
from .metrics import AVERAGED, DIFFERENCES, Metric, metric

TESTS = ("randomization", "bootstrap", "mcnemar", "t")
ALTERNATIVES = ("two-sided", "less", "greater")
CHUNK = 4_000_000  # numbers per array: 32 MB, whatever the number of examples, resamples and alternatives
TOGETHER = 32  # resamples come in such lots, so that the stream of random bits does not depend on the chunks
ROUNDING = 1e-12  # relative: differences closer than this are the same difference, added up in another order
SMALLEST = float(np.finfo(np.float64).tiny)  # a p-value is never zero
MEANS = ("accuracy", "accuracy-norm", "loss", "mean", *DIFFERENCES)
SAME_FOR_ALL = (
    "label",
    "tokens",
    "stratum",
    "corrupted",
    "clean",
)  # columns that belong to the example, not to the model


@dataclass(frozen=True, eq=False)
class Paired:
    """One baseline against m alternatives: values, intervals of after - before, and p-values, (m,) each."""

    before: float
    after: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray

    @property
    def difference(self) -> np.ndarray:
        """After minus before."""
        return self.after - self.before


def interval(
    measure: Metric,
    rows: np.ndarray,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 12345,
    clusters: np.ndarray | None = None,
) -> tuple[float, float]:
    """The percentile bootstrap interval (Efron, 1979) of a metric: examples are drawn with replacement, n out of n.

    With `clusters` it is the cluster bootstrap: whole groups are drawn, as many as there are.
    """
    rows = measure.checked(rows)
    _check_options(level=level, resamples=resamples)
    groups = grouped(clusters, len(rows))
    values = [measure.resampled(rows, counts) for counts in resample_counts(resamples, len(rows), seed, groups)]
    low, high = _percentiles(np.concatenate(values), level)
    return float(low), float(high)


def paired(
    measure: Metric,
    before: np.ndarray,
    afters: np.ndarray,
    *,
    test: str = "randomization",
    alternative: str = "two-sided",
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 12345,
    clusters: np.ndarray | None = None,
) -> Paired:
    """Test each of m alternatives (m, n, columns) against the baseline (n, columns) on the same n examples.

    The tests, each against the hypothesis that before and after are equally good:

    - `randomization`: approximate randomization (Noreen, 1989; Riezler and Maxwell, 2005). Each draw swaps the two
      models' values on a random half of the examples. p = (1 + draws whose difference is at least as large as the one
      seen) / (1 + draws), which is valid at any sample size (Phipson and Smyth, 2010).
    - `bootstrap`: paired bootstrap (Koehn, 2004), as a test by shifting (Noreen, 1989; Riezler and Maxwell, 2005).
      With d the difference seen, d* that of a resample of n examples and m the mean of all d*,
      p = (1 + number of |d* - m| >= |d|) / (1 + resamples). sacreBLEU takes |d*| before it subtracts the mean: its p is
      about half of this one for a clear difference, and at 5% it rejects equal models about one time in ten.
    - `mcnemar`: the exact binomial test on examples that only one of the two gets right (McNemar, 1947); accuracy only.
    - `t`: the paired t-test on values per example; accuracy, loss and mean only. For a loss per token the values are
      the summed losses of the examples, as both models are measured on the same tokens.

    `alternative="less"` tests whether the metric is less after than before, `"greater"` whether it is greater; "at
    least as large" then counts one side only. The interval is always the two-sided percentile bootstrap interval of
    the difference, examples resampled in pairs.

    With `clusters`, the number of every example's group (n,), groups are swapped and resampled whole, and the t-test is
    on the sums over the groups. McNemar's test knows no groups and is refused.
    """
    _check_options(level=level, resamples=resamples, test=test, alternative=alternative)
    before = measure.checked(before, "The values before")
    afters = np.asarray(afters, dtype=np.float64)
    if afters.ndim != 3:
        raise BadMeasure(f"Alternatives are an array (alternatives, examples, columns); I got shape {afters.shape}.")
    for number, after in enumerate(afters):
        _check_pair(measure, before, measure.checked(after, f"The values of alternative {number}"), number)
    _check_fits(measure, test, clusters)
    groups = grouped(clusters, len(before))
    value = measure.value(before)
    values = np.array([measure.value(after) for after in afters])
    options: dict[str, Any] = {"resamples": resamples, "seed": seed, "clusters": clusters}
    drawn = resampled_differences(measure, before, afters, **options)
    low, high = _percentiles(drawn, level)
    observed, size = values - value, np.maximum(np.abs(values), abs(value))
    if test == "bootstrap":
        p = _tail(drawn - drawn.mean(axis=1, keepdims=True), observed, size, alternative)
    elif test == "randomization":
        p = _tail(swapped_differences(measure, before, afters, **options), observed, size, alternative)
    elif test == "mcnemar":
        p = np.array([_mcnemar(measure, before, after, alternative) for after in afters])
    else:
        p = np.array([_t(measure, before, after, alternative, groups) for after in afters])
    return Paired(value, values, low, high, np.clip(p, SMALLEST, 1.0))


def resampled_differences(
    measure: Metric,
    before: np.ndarray,
    afters: np.ndarray,
    *,
    resamples: int = 1000,
    seed: int = 12345,
    clusters: np.ndarray | None = None,
) -> np.ndarray:
    """After minus before on resamples of the examples, drawn with replacement, the same for all: (m, resamples).

    With `clusters`, the number of every example's group (n,), whole groups are drawn.
    """
    chunks = []
    for counts in resample_counts(resamples, len(before), seed, grouped(clusters, len(before))):
        if measure.statistics is None or measure.of_totals is None:
            chunks.append(measure.resampled(afters, counts) - measure.resampled(before, counts))
            continue
        # the totals of an alternative are the baseline's plus those of the gaps: no gap, then no difference at all
        base = measure.statistics(before)
        totals, gaps = counts @ base, _totals(measure, afters, counts, minus=base)
        values = [measure.of_totals(totals + gap) for gap in gaps]
        chunks.append(np.reshape(values, (len(afters), len(counts))) - measure.of_totals(totals))
    return np.concatenate(chunks, axis=1)


def swapped_differences(
    measure: Metric,
    before: np.ndarray,
    afters: np.ndarray,
    *,
    resamples: int = 1000,
    seed: int = 12345,
    clusters: np.ndarray | None = None,
) -> np.ndarray:
    """After minus before when each example's values change sides or not, half and half: (m, resamples).

    With `clusters`, the number of every example's group (n,), the examples of a group change sides together.
    """
    chunks, groups = [], grouped(clusters, len(before))
    if measure.statistics is None:
        pools = np.concatenate([np.broadcast_to(before, afters.shape), afters], axis=1)
        for swaps in _swaps(resamples, len(before), seed, groups):
            stay, move = np.hstack([1 - swaps, swaps]), np.hstack([swaps, 1 - swaps])
            chunks.append(measure.resampled(pools, move) - measure.resampled(pools, stay))
        return np.concatenate(chunks, axis=1)
    assert measure.of_totals is not None  # it comes with the statistics
    base = measure.statistics(before)
    first, seconds = base.sum(axis=0), [measure.statistics(after).sum(axis=0) for after in afters]
    for swaps in _swaps(resamples, len(before), seed, groups):
        pairs = zip(seconds, _totals(measure, afters, swaps, minus=base), strict=True)
        values = [measure.of_totals(second - moved) - measure.of_totals(first + moved) for second, moved in pairs]
        chunks.append(np.reshape(values, (len(afters), len(swaps))))
    return np.concatenate(chunks, axis=1)


def holm(p: Any) -> np.ndarray:
    """P-values adjusted so that rejecting those below alpha errs at all with probability alpha at most (Holm, 1979)."""
    p = _checked_p(p)
    order = np.argsort(p, kind="stable")
    steps = p[order] * np.arange(len(p), 0, -1)
    return _put_back(np.minimum(np.maximum.accumulate(steps), 1.0), order)


def benjamini_hochberg(p: Any) -> np.ndarray:
    """P-values adjusted so that of those below alpha a share of alpha is false on average (Benjamini, Hochberg, 1995)."""
    p = _checked_p(p)
    order = np.argsort(p, kind="stable")
    steps = p[order] * len(p) / np.arange(1, len(p) + 1)
    return _put_back(np.minimum(np.minimum.accumulate(steps[::-1])[::-1], 1.0), order)


@dataclass(frozen=True)
class Correlation:
    """How far two lists of numbers go together, with an interval and the p-value of no correlation."""

    name: str
    value: float
    low: float
    high: float
    level: float
    p: float
    n: int

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} [{self.low:.2f}, {self.high:.2f}] (n={self.n})"


def pearson(x: Any, y: Any, *, level: float = 0.95) -> Correlation:
    """Pearson's correlation; interval by Fisher's z, p by the t distribution. 0.0, [-1, 1] and 1 if one is constant."""
    x, y = _checked_lists(x, y, level)
    n = len(x)
    value = 0.0 if _constant(x) or _constant(y) else float(np.clip(np.corrcoef(x, y)[0, 1], -1.0, 1.0))
    low, high = -1.0, 1.0
    if n > 3 and not _constant(x) and not _constant(y):
        with np.errstate(divide="ignore"):  # a perfect correlation has an interval of one point
            reach = special.ndtri((1 + level) / 2) / np.sqrt(n - 3)
            low, high = np.tanh(np.arctanh(value) - reach), np.tanh(np.arctanh(value) + reach)
    return Correlation("pearson", value, float(low), float(high), level, _p_of_correlation(value, n), n)


def spearman(x: Any, y: Any, *, level: float = 0.95, resamples: int = 1000, seed: int = 12345) -> Correlation:
    """Spearman's rank correlation; interval by the percentile bootstrap over pairs, p by the t distribution."""
    x, y = _checked_lists(x, y, level)
    measure, rows = metric("spearman", columns=("label", "prediction")), np.stack([x, y], axis=1)
    value = measure.value(rows)
    low, high = -1.0, 1.0
    if not _constant(x) and not _constant(y):
        low, high = interval(measure, rows, level=level, resamples=resamples, seed=seed)
    return Correlation("spearman", value, low, high, level, _p_of_correlation(value, len(x)), len(x))


# --- draws ----------------------------------------------------------------------------------------------------------


def grouped(clusters: Any, n: int) -> np.ndarray | None:
    """The group of each of n examples, (n,), counted from 0 as they first occur; None for None.

    So that what the groups are called makes no difference to what is drawn.
    """
    if clusters is None:
        return None
    labels = np.asarray(clusters)
    if labels.shape != (n,) or not np.issubdtype(labels.dtype, np.integer):
        raise BadMeasure(
            f"Clusters are the number of every example's group, {n} whole numbers here; I got {labels.dtype} of shape "
            f"{labels.shape}: give one for each example."
        )
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[inverse]


def _sizes(resamples: int, n: int) -> Iterator[int]:
    lot = max(TOGETHER, CHUNK // n // TOGETHER * TOGETHER)
    for start in range(0, resamples, lot):
        yield min(lot, resamples - start)


def resample_counts(resamples: int, n: int, seed: int, groups: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """How often each of n examples is drawn, (some of the resamples, n) at a time, float64 for exact matrix products.

    With the group of each example, groups are drawn, and an example is there as often as its group is.
    """
    generator = np.random.default_rng(seed)
    many = n if groups is None else int(groups.max()) + 1
    for size in _sizes(resamples, n):
        drawn = generator.integers(0, many, size=(size, many))
        drawn += many * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * many).reshape(size, many).astype(np.float64)
        yield counts if groups is None else counts[:, groups]


def _swaps(resamples: int, n: int, seed: int, groups: np.ndarray | None) -> Iterator[np.ndarray]:
    """Which examples change sides, (some of the draws, n) at a time, as 0.0 and 1.0; a group does so together."""
    generator = np.random.default_rng(seed)
    many = n if groups is None else int(groups.max()) + 1
    for size in _sizes(resamples, n):
        swaps = generator.integers(2, size=(size, many), dtype=bool).astype(np.float64)
        yield swaps if groups is None else swaps[:, groups]


def _totals(measure: Metric, afters: np.ndarray, weights: np.ndarray, minus: np.ndarray) -> Iterator[np.ndarray]:
    """Weighted sums of each alternative's statistics less `minus`, (len(weights), k) each, many per matrix product."""
    if not len(afters):
        return
    statistics = measure.statistics
    assert statistics is not None  # callers have looked
    first = statistics(afters[0])
    lot = max(1, CHUNK // max(first.size, first.shape[1] * len(weights)))
    for start in range(0, len(afters), lot):
        block = np.concatenate([statistics(after) - minus for after in afters[start : start + lot]], axis=1)
        yield from np.split(weights @ block, block.shape[1] // first.shape[1], axis=1)


def _percentiles(values: np.ndarray, level: float) -> np.ndarray:
    return np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=-1)


# --- p-values -------------------------------------------------------------------------------------------------------


def _tail(drawn: np.ndarray, observed: np.ndarray, size: np.ndarray, alternative: str) -> np.ndarray:
    """(1 + draws at least as extreme as what was seen) / (1 + draws), for each row of draws.

    Equal differences must count as equal although sums of losses round differently in another order. Rounding is
    relative to the values that were subtracted, and `size` is theirs.
    """
    slack = ROUNDING * np.maximum(size, np.abs(drawn).max(axis=1))
    if alternative == "two-sided":
        drawn, observed = np.abs(drawn), np.abs(observed)
    elif alternative == "less":
        drawn, observed = -drawn, -observed
    extreme = (drawn >= (observed - slack)[:, None]).sum(axis=1)
    return (1 + extreme) / (1 + drawn.shape[1])


def _mcnemar(measure: Metric, before: np.ndarray, after: np.ndarray, alternative: str) -> float:
    was, now = measure.per_example(before), measure.per_example(after)
    lost, won = int(((was == 1) & (now == 0)).sum()), int(((was == 0) & (now == 1)).sum())
    less = special.bdtr(won, lost + won, 0.5)  # so few won, if either were as likely
    greater = special.bdtr(lost, lost + won, 0.5)
    return float({"less": less, "greater": greater, "two-sided": 2 * min(less, greater)}[alternative])


def _t(
    measure: Metric, before: np.ndarray, after: np.ndarray, alternative: str, groups: np.ndarray | None = None
) -> float:
    gaps = measure.per_example(after) - measure.per_example(before)
    if groups is not None:
        gaps = np.bincount(groups, weights=gaps)
    n = len(gaps)
    if n < 2 or not gaps.any():
        return 1.0  # one example proves nothing, and neither does no difference at all
    gaps = gaps / np.abs(gaps).max()  # t is the same, and the squares of tiny gaps are not lost
    mean, spread = gaps.mean(), gaps.std(ddof=1)
    t = mean / (spread / np.sqrt(n)) if not _constant(gaps) else np.copysign(np.inf, mean)
    less = special.stdtr(n - 1, t)
    greater = special.stdtr(n - 1, -t)
    return float({"less": less, "greater": greater, "two-sided": 2 * min(less, greater)}[alternative])


def _p_of_correlation(value: float, n: int) -> float:
    if n < 3:
        return 1.0
    if abs(value) == 1.0:
        return SMALLEST
    t = value * np.sqrt((n - 2) / ((1 + value) * (1 - value)))
    return float(np.clip(2 * special.stdtr(n - 2, -abs(t)), SMALLEST, 1.0))


def _constant(values: np.ndarray) -> bool:
    return bool(np.ptp(values) <= 1e-13 * np.abs(values).max())


def _put_back(adjusted: np.ndarray, order: np.ndarray) -> np.ndarray:
    out = np.empty_like(adjusted)
    out[order] = adjusted
    return out


# --- what is asked for ----------------------------------------------------------------------------------------------


def _check_options(
    *, level: float, resamples: int = 1, test: str = "randomization", alternative: str = "two-sided"
) -> None:
    if not 0 < level < 1:
        raise BadMeasure(f"The level of an interval lies between 0 and 1, such as 0.95; I got {level!r:.60}.")
    if not isinstance(resamples, int | np.integer) or resamples < 1:
        raise BadMeasure(f"The number of resamples is a whole number from 1 up, such as 1000; I got {resamples!r:.60}.")
    if test not in TESTS:
        raise BadMeasure(f"There is no test {test!r:.60}; choose one of {', '.join(TESTS)}.")
    if alternative not in ALTERNATIVES:
        raise BadMeasure(f"There is no alternative {alternative!r:.60}; choose one of {', '.join(ALTERNATIVES)}.")


def _check_pair(measure: Metric, before: np.ndarray, after: np.ndarray, number: int) -> None:
    if len(before) != len(after):
        raise BadMeasure(
            f"There are {len(before)} examples before and {len(after)} in alternative {number}; a paired comparison "
            "needs the same ones: measure both on the same data."
        )
    for column in (name for name in SAME_FOR_ALL if name in measure.columns):
        where = measure.columns.index(column)
        differing_rows = np.flatnonzero(before[:, where] != after[:, where])
        if len(differing_rows):
            raise BadMeasure(
                f"Example {differing_rows[0]} has {column} {before[differing_rows[0], where]:g} before and "
                f"{after[differing_rows[0], where]:g} in alternative {number}; a paired comparison "
                "needs the same examples in the same order."
            )


def _check_fits(measure: Metric, test: str, clusters: Any) -> None:
    if test == "mcnemar" and clusters is not None:
        raise BadMeasure(
            "McNemar's test takes every example for itself, and these are in groups; use test='randomization', which "
            "swaps whole groups."
        )
    if test == "mcnemar" and measure.columns[0].startswith(AVERAGED):
        raise BadMeasure(
            "McNemar's test counts right and wrong, and means over several draws are neither; use test='randomization'."
        )
    if test == "mcnemar" and not measure.name.startswith("accuracy"):
        raise BadMeasure(f"McNemar's test counts right and wrong; for {measure.name} use test='randomization'.")
    if test == "t" and (measure.statistics is None or measure.name not in MEANS):
        raise BadMeasure(
            f"The t-test needs a metric that is a mean over examples; for {measure.name} use test='randomization'."
        )


def _checked_p(p: Any) -> np.ndarray:
    p = np.asarray(p, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise BadMeasure(f"P-values are a list of numbers from 0 to 1; I got {p!r:.80}.")
    return p


def _checked_lists(x: Any, y: Any, level: float) -> tuple[np.ndarray, np.ndarray]:
    _check_options(level=level)
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2 or not np.isfinite([x, y]).all():
        raise BadMeasure(
            f"A correlation needs two lists of as many finite numbers, at least 2; I got shapes {x.shape} and {y.shape}."
        )
    return x, y
