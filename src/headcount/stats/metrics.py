"""What a model is worth, as a function of values per example: accuracy, F1, Matthews, correlations, BLEU, chrF, losses.

A row of numbers is kept for every example, so that a metric can be computed again on any resample of the examples.
Every metric but Spearman is a function of sums over the examples (`statistics`, `of_totals`): a thousand resamples are
one matrix product. Where a metric is not defined the value is 0.0, so that no resample is ever lost to a NaN: F1 of a
class that nobody predicted or meant, Matthews or a correlation when one side is constant, a loss over no tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadMeasure
from .translation_scores import BLEU_COLUMNS, bleu, chrf, chrf_columns, divided

Statistics = Callable[[np.ndarray], np.ndarray]
OfTotals = Callable[[np.ndarray], np.ndarray]

CLASSIFIED = ("label", "prediction", "loss")
TOKENS = ("loss", "tokens")
NORMALISED = ("value", "corrupted", "clean")
# means of a value per example that has no bounds known here
DIFFERENCES = ("logit-difference", "probability-difference", "kl")
UNFINISHED = (
    "unfinished"  # a column that is counted and not scored: 1 where a translation was ended by the length limit
)
LARGEST_EXPONENT = 700.0  # e to that is still finite: a ruined model gets a huge perplexity, never an infinite one
IN_CACHE = 100_000  # numbers per array where several passes are made over it
AVERAGED = "statistic"  # columns of rows that are means over draws
CONSTANT = 1e-12  # variance over mean square below which a column counts as constant, being rounding error


@dataclass(frozen=True)
class Metric:
    """A metric: its name, the columns of a row of values per example, and how to compute it on any resample.

    A difference times `points` is a difference in points. `labels` is the number of classes where that matters.
    `statistics(rows)` gives an array (n, k) and `of_totals` the value from the sums of its columns, over any leading
    axes; both are None for Spearman, whose ranks change with every resample.
    """

    name: str
    columns: tuple[str, ...]
    higher_is_better: bool
    points: float
    labels: int | None = None
    statistics: Statistics | None = field(default=None, compare=False, repr=False)
    of_totals: OfTotals | None = field(default=None, compare=False, repr=False)

    def checked(self, rows: Any, whose: str = "The values") -> np.ndarray:
        """The rows as float64 (n, columns), or an error that says what is wrong with them."""
        rows = np.asarray(rows, dtype=np.float64)
        width = len(self.columns)
        if rows.ndim != 2 or rows.shape[1] != width or not len(rows):
            raise BadMeasure(
                f"{whose} have shape {rows.shape}; {self.name} needs (examples, {width}), at least one example: "
                f"give the columns {', '.join(self.columns)}."
            )
        if not np.isfinite(rows).all():
            example, column = np.argwhere(~np.isfinite(rows))[0]
            raise BadMeasure(
                f"{whose} hold {rows[example, column]} as {self.columns[column]} of example {example}; {self.name} needs "
                "finite numbers: look at that example, or run the model in a wider number format."
            )
        return rows

    def value(self, rows: np.ndarray) -> float:
        """The metric on these rows, whatever their order."""
        rows = self.checked(rows)
        if self.statistics is None or self.of_totals is None:
            return float(_spearman(self.columns, rows[None], np.ones((1, len(rows))))[0, 0])
        return float(self.of_totals(self.statistics(rows).sum(axis=0)))

    def resampled(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The metric on each resample: `counts` (resamples, n) says how often each row is in it; gives (resamples,).

        Rows of m models on the same examples, (m, n, columns), give (m, resamples). Two models' rows put one after the
        other, with counts that add up to one for each pair, are the swaps of a randomization test.
        """
        counts, rows = np.asarray(counts, dtype=np.float64), np.asarray(rows)
        stack = [self.checked(model_rows) for model_rows in (rows if rows.ndim == 3 else [rows])]
        if not stack:
            return np.empty((0, len(counts)))
        if self.statistics is None or self.of_totals is None:
            values = _spearman(self.columns, stack, counts)
        else:
            values = np.array([self.of_totals(counts @ self.statistics(model_rows)) for model_rows in stack])
        return values if rows.ndim == 3 else values[0]

    def per_example(self, rows: np.ndarray) -> np.ndarray | None:
        """What one example adds to the sum that is averaged (accuracy, loss, mean); None for other metrics."""
        return self.statistics(rows)[:, 0] if self.statistics and self.of_totals is _ratio else None


def averaged(of: Metric) -> Metric:
    """The same metric of rows that are means over draws: its columns are the numbers that the metric adds up.

    Predictions of several draws have no mean, but what each adds to the sums has.
    """
    if of.statistics is None or of.of_totals is None or of.name == "pearson":
        raise BadMeasure(
            f"{of.name} is no function of sums over single examples, so draws have no mean: take one draw."
        )
    width = of.statistics(np.zeros((1, len(of.columns)))).shape[1]
    return replace(of, columns=tuple(f"{AVERAGED} {n}" for n in range(width)), statistics=np.asarray)


def metric(
    name: str,
    *,
    labels: int | None = None,
    columns: Sequence[str] | None = None,
    higher_is_better: bool | None = None,
) -> Metric:
    """The metric of that name (one of `METRICS`).

    accuracy, f1, matthews and loss read the columns label, prediction, loss (as does accuracy-norm, the accuracy of a
    prediction that the rows took by scores per character), as do pearson and spearman, whose labels
    are numbers. f1 and matthews must know how many `labels` there are: F1 is that of class 1 when there are two, else
    the mean over the classes that occur among labels or predictions, as in scikit-learn; matthews with more than two
    is R_K (Gorodkin, 2004). perplexity and loss over the columns loss, tokens are per token (loss with a column tokens
    is a sum over the example, in nats). logit-difference, probability-difference and kl are means of the column value, and
    normalised is the part of the way from corrupted to clean: a ratio of means of value, corrupted and clean. bleu and chrf
    read what `translation_rows` makes; a last column unfinished may be beside it, and is not scored. mean reads the column value.
    """
    if name not in _KINDS:
        raise BadMeasure(f"There is no metric {name!r:.60}; choose one of {', '.join(METRICS)}.")
    kind = _KINDS[name]
    columns = kind.columns if columns is None else tuple(columns)
    missing = [column for column in kind.needs if column not in columns]
    if missing:
        raise BadMeasure(f"{name} reads the column {missing[0]}; I got {', '.join(columns)}: choose another metric.")
    if kind.by_label and (type(labels) is not int or labels < 2):
        raise BadMeasure(f"{name} needs the number of labels, at least 2; I got {labels!r:.60}: give labels=.")
    scored = _scored(columns)
    if name == "bleu" and scored != BLEU_COLUMNS:
        raise BadMeasure(f"bleu reads sacreBLEU's {len(BLEU_COLUMNS)} columns and no others: leave columns= out.")
    if name == "chrf" and (not scored or len(scored) % 3):
        raise BadMeasure(f"chrf reads three columns per order; I got {len(columns)}: take them from chrf_columns().")
    better = kind.higher_is_better if higher_is_better is None else higher_is_better
    statistics, of_totals = kind.build(columns, labels)
    return Metric(name, columns, better, kind.points, labels, statistics, of_totals)


# --- averages -------------------------------------------------------------------------------------------------------


def _ratio(totals: np.ndarray) -> np.ndarray:
    return divided(totals[..., 0], totals[..., 1])


def _per_one(column: int, rows: np.ndarray) -> np.ndarray:
    return np.stack([rows[:, column], np.ones(len(rows))], axis=1)


def _per_token(columns: tuple[int, int], rows: np.ndarray) -> np.ndarray:
    return rows[:, columns]


def _correct(columns: tuple[int, int], rows: np.ndarray) -> np.ndarray:
    label, prediction = columns
    return np.stack([(rows[:, label] == rows[:, prediction]).astype(np.float64), np.ones(len(rows))], axis=1)


def _along(columns: tuple[int, ...], rows: np.ndarray) -> np.ndarray:
    """How far each value is from the corrupted one, and how far the clean one is: their sums are in the ratio wanted."""
    value, corrupted, clean = rows[:, columns].T
    return np.stack([value - corrupted, clean - corrupted], axis=1)


def _perplexity(totals: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(_ratio(totals), LARGEST_EXPONENT))


# --- classes --------------------------------------------------------------------------------------------------------


def _classes(columns: tuple[int, int], labels: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One-hot labels and predictions, (n, labels) each."""
    pair = rows[:, columns]
    strange = pair[(pair != np.floor(pair)) | (pair < 0) | (pair >= labels)]
    if len(strange):
        raise BadMeasure(
            f"A label or prediction is {strange[0]:g}; with {labels} labels they are the whole numbers 0 to {labels - 1}: "
            "number them so, or give the right number of labels."
        )
    meant, predicted = (pair[:, side, None] == np.arange(labels) for side in (0, 1))
    return meant.astype(np.float64), predicted.astype(np.float64)


def _f1_statistics(columns: tuple[int, int], labels: int, rows: np.ndarray) -> np.ndarray:
    meant, predicted = _classes(columns, labels, rows)
    if labels == 2:
        meant, predicted = meant[:, 1:], predicted[:, 1:]
    return np.concatenate([meant * predicted, meant + predicted], axis=1)


def _f1(totals: np.ndarray) -> np.ndarray:
    hits, sizes = np.split(totals, 2, axis=-1)
    scores = divided(2 * hits, sizes)
    return divided(scores.sum(axis=-1), (sizes > 0).sum(axis=-1))


def _matthews_statistics(columns: tuple[int, int], labels: int, rows: np.ndarray) -> np.ndarray:
    meant, predicted = _classes(columns, labels, rows)
    hits = (meant * predicted).sum(axis=1, keepdims=True)
    return np.concatenate([hits, np.ones((len(rows), 1)), meant, predicted], axis=1)


def _matthews(totals: np.ndarray) -> np.ndarray:
    hits, size = totals[..., 0], totals[..., 1]
    meant, predicted = np.split(totals[..., 2:], 2, axis=-1)
    together = hits * size - (meant * predicted).sum(axis=-1)
    apart = (size**2 - (meant**2).sum(axis=-1)) * (size**2 - (predicted**2).sum(axis=-1))
    return divided(together, np.sqrt(apart))


# --- correlations ---------------------------------------------------------------------------------------------------


def _pearson_statistics(columns: tuple[int, int], rows: np.ndarray) -> np.ndarray:
    # Both sides are shifted by the mean label, which all models share: sums stay comparable, squares stay small.
    x, y = (rows[:, columns] - rows[:, columns[0]].mean()).T
    return np.stack([np.ones(len(rows)), x, y, x * x, y * y, x * y], axis=1)


def _pearson(totals: np.ndarray) -> np.ndarray:
    n, x, y, xx, yy, xy = np.moveaxis(totals, -1, 0)
    spread_x, spread_y = n * xx - x * x, n * yy - y * y
    varies = (spread_x > CONSTANT * n * xx) & (spread_y > CONSTANT * n * yy)
    below = np.sqrt(np.where(varies, spread_x, 0.0)) * np.sqrt(np.where(varies, spread_y, 0.0))
    return np.clip(divided(n * xy - x * y, below), -1.0, 1.0)


def _spearman(columns: Sequence[str], stack: Sequence[np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each model on each resample, ranked anew (models, resamples): ties share a mean rank.

    The models share their labels, which are ranked once for all.
    """
    label, prediction = columns.index("label"), columns.index("prediction")
    if any((rows[:, label] != stack[0][:, label]).any() for rows in stack):
        raise BadMeasure(
            "Models resampled together have different labels; give rows on the same examples in one order."
        )
    truth, guesses = _ordered(stack[0][:, label]), [_ordered(rows[:, prediction]) for rows in stack]
    out = np.empty((len(stack), len(counts)))
    lot = max(8, IN_CACHE // counts.shape[1])
    for start in range(0, len(counts), lot):
        weights = np.ascontiguousarray(counts[start : start + lot].T)  # an example's counts lie together
        x, spread_x = _ranks(truth, weights)
        weighted = weights * x.take(truth[2], axis=0)
        for number, guess in enumerate(guesses):
            y, spread_y = _ranks(guess, weights)
            together = np.einsum("nr,nr->r", weighted, y.take(guess[2], axis=0))
            out[number, start : start + lot] = divided(together, np.sqrt(spread_x) * np.sqrt(spread_y))
    return np.clip(out, -1.0, 1.0)


def _ordered(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The order of the values, where in it each distinct value starts, and which distinct value each one is."""
    order = np.argsort(values, kind="stable")
    _, starts, places = np.unique(values[order], return_index=True, return_inverse=True)
    group = np.empty(len(values), dtype=np.intp)
    group[order] = places
    return order, starts, group


def _ranks(ordered: tuple[np.ndarray, ...], weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Twice (rank - mean rank) of every distinct value in every resample, and the sum of its squares over examples.

    Twice, because mean ranks of ties are halves: whole numbers add up exactly, so that no spread is exactly zero.
    """
    order, starts, _ = ordered
    sizes = weights.take(order, axis=0)
    if len(starts) < len(order):
        sizes = np.add.reduceat(sizes, starts, axis=0)
    ranks = np.cumsum(sizes, axis=0)
    n = ranks[-1].copy()
    ranks *= 2  # twice the ranks of a group run from 2(sum - size + 1) to 2 sum, and the mean of all is n + 1
    ranks -= sizes
    ranks -= n
    sizes *= ranks
    return ranks, np.einsum("gr,gr->r", sizes, ranks)


def generated_columns(name: str) -> tuple[str, ...]:
    """The columns of bleu or chrf with one more, which says of every translation whether it had to be ended."""
    return (*_KINDS[name].columns, UNFINISHED)


def _scored(columns: tuple[str, ...]) -> tuple[str, ...]:
    return columns[:-1] if columns[-1:] == (UNFINISHED,) else columns


def _first(width: int, rows: np.ndarray) -> np.ndarray:
    return rows[:, :width]


# --- the table ------------------------------------------------------------------------------------------------------

Build = Callable[[tuple[str, ...], int | None], tuple[Statistics | None, OfTotals | None]]


class _Kind(NamedTuple):
    """A row of the table: default columns, those it cannot do without, and how its two functions are made."""

    columns: tuple[str, ...]
    needs: tuple[str, ...]
    higher_is_better: bool
    points: float
    build: Build
    by_label: bool = False


def _pair(columns: tuple[str, ...], *names: str) -> tuple[int, int]:
    first, second = names or ("label", "prediction")
    return columns.index(first), columns.index(second)


def _build_loss(columns: tuple[str, ...], _: int | None) -> tuple[Statistics, OfTotals]:
    if "tokens" in columns:
        return partial(_per_token, _pair(columns, *TOKENS)), _ratio
    return partial(_per_one, columns.index("loss")), _ratio


def _build_mean(columns: tuple[str, ...]) -> tuple[Statistics, OfTotals]:
    return partial(_per_one, columns.index("value")), _ratio


_BOTH = ("label", "prediction")
_KINDS = {
    "accuracy": _Kind(CLASSIFIED, _BOTH, True, 100.0, lambda columns, _: (partial(_correct, _pair(columns)), _ratio)),
    "accuracy-norm": _Kind(
        CLASSIFIED, _BOTH, True, 100.0, lambda columns, _: (partial(_correct, _pair(columns)), _ratio)
    ),
    "f1": _Kind(
        CLASSIFIED, _BOTH, True, 100.0, lambda columns, k: (partial(_f1_statistics, _pair(columns), k), _f1), True
    ),
    "matthews": _Kind(
        CLASSIFIED,
        _BOTH,
        True,
        100.0,
        lambda columns, k: (partial(_matthews_statistics, _pair(columns), k), _matthews),
        True,
    ),
    "pearson": _Kind(
        CLASSIFIED, _BOTH, True, 100.0, lambda columns, _: (partial(_pearson_statistics, _pair(columns)), _pearson)
    ),
    "spearman": _Kind(CLASSIFIED, _BOTH, True, 100.0, lambda columns, _: (None, None)),
    "bleu": _Kind(
        BLEU_COLUMNS, BLEU_COLUMNS, True, 1.0, lambda columns, _: (partial(_first, len(_scored(columns))), bleu)
    ),
    "chrf": _Kind(chrf_columns(), (), True, 1.0, lambda columns, _: (partial(_first, len(_scored(columns))), chrf)),
    "perplexity": _Kind(
        TOKENS, TOKENS, False, 1.0, lambda columns, _: (partial(_per_token, _pair(columns, *TOKENS)), _perplexity)
    ),
    "loss": _Kind(TOKENS, ("loss",), False, 1.0, _build_loss),
    **{
        name: _Kind(("value",), ("value",), name != "kl", 1.0, lambda columns, _: _build_mean(columns))
        for name in DIFFERENCES
    },
    "normalised": _Kind(
        NORMALISED,
        NORMALISED,
        True,
        1.0,
        lambda columns, _: (partial(_along, tuple(map(columns.index, NORMALISED))), _ratio),
    ),
    "mean": _Kind(("value",), ("value",), True, 1.0, lambda columns, _: _build_mean(columns)),
}
METRICS = tuple(_KINDS)
