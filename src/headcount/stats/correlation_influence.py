"""What every example does to a correlation, and a test that the correlation falls by less than so much. No torch."""

from __future__ import annotations

import math

import numpy as np

from .paired_tests import resample_counts

TURNED = 0.25  # of a turned example that every spread of a correlation is taken to hold
WORST = (
    3  # copies of the example with the largest influence: with one, 8 to 10 % of promises on 200 examples were wrong
)


def fall(
    labels: np.ndarray,
    was: np.ndarray,
    now: np.ndarray,
    drop: float,
    *,
    ranked: bool,
    groups: np.ndarray | None,
    alpha: float,
    resamples: int,
    seed: int,
) -> tuple[float, float, float]:
    """P-value of "the correlation falls by at least `drop`" (Spearman's if ranked), upper bound and standard error.

    The bootstrap of Student's t over influences. The influence of an example is by how much the fall would grow if it
    were there a little more often: the fall on a resample is that of the sample plus the mean influence drawn. A few
    examples with large ones make that mean skewed, which Student's t of every resample corrects (Efron and Tibshirani
    1993, chapter 12). Examples are added for what was not seen: the one with the largest influence three times, and a
    turned one, whose label and prediction before lie one standard deviation from the mean on the same side, and its
    prediction after on the other side. The spread of every resample holds a quarter of a turned example too, or a
    resample without a change would seem to be certain. Where examples are in groups (n,), groups of the usual size are
    added, drawn and summed.
    """
    size = 1 if groups is None else round(len(groups) / (groups.max() + 1))
    worst = (influences(labels, was, ranked) - influences(labels, now, ranked)).argmax()
    turned = _turned(labels, was, now, ranked)
    added = np.array([turned] * size + [(labels[worst], was[worst], now[worst])] * size * WORST)
    labels, was, now = (np.append(values, more) for values, more in zip((labels, was, now), added.T, strict=True))
    example_influences = influences(labels, was, ranked) - influences(labels, now, ranked)
    observed_fall = _correlation(labels, was, ranked) - _correlation(labels, now, ranked)
    members = np.arange(len(labels))
    if groups is not None:
        members = np.concatenate([groups, groups.max() + 1 + np.repeat(np.arange(1 + WORST), size)])
    sums = np.bincount(members, weights=example_influences)
    n = len(sums)
    sums *= n / len(members)  # their mean is that over the examples
    sums -= sums.mean()
    floor = TURNED * sums[-1 - WORST] ** 2 / n
    pair = np.stack([sums, sums**2], axis=1)
    drawn, squares = np.concatenate([counts @ pair for counts in resample_counts(resamples, n, seed)]).T / n
    ratios = drawn / np.sqrt((np.maximum(squares - drawn**2, 0.0) + floor) / n)
    spread = math.sqrt((sums.var() + floor) / n)
    p = (1 + int((ratios <= (observed_fall - drop) / spread).sum())) / (1 + resamples)
    return p, float(observed_fall - np.quantile(ratios, alpha) * spread), spread


def influences(labels: np.ndarray, guesses: np.ndarray, ranked: bool = False) -> np.ndarray:
    """By how much a correlation would grow if one example were there a little more often, times n; Spearman's if ranked."""
    x, y = (_middle_ranks(values) if ranked else values for values in (labels, guesses))
    if not x.std() or not y.std():
        return np.zeros(len(x))
    x, y = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
    r = (x * y).mean()
    own = x * y - r * (x**2 + y**2) / 2
    if not ranked:
        return own
    # one more example moves the ranks of all above it, too
    moved = _moved(labels, y - r * x) / _middle_ranks(labels).std()
    return own + moved + _moved(guesses, x - r * y) / _middle_ranks(guesses).std()


def _middle_ranks(values: np.ndarray) -> np.ndarray:
    """The share of examples below each, those with the same value by half."""
    _, inverse, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return ((sizes.cumsum() - sizes / 2) / len(values))[inverse]


def _moved(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean of `weights` over the examples above every example, those with the same value by half."""
    _, inverse = np.unique(values, return_inverse=True)
    sums = np.bincount(inverse, weights=weights)
    above = sums.sum() - sums.cumsum() + sums / 2
    return above[inverse] / len(values)


def _turned(labels: np.ndarray, was: np.ndarray, now: np.ndarray, ranked: bool) -> tuple[float, float, float]:
    """An ordinary example that turns around: all one standard deviation (in ranks, if ranked) from the mean."""
    places = _middle_ranks(labels) if ranked else labels
    away = places - places.mean()
    at = np.abs(np.abs(away) - away.std()).argmin()
    side = 1 if away[at] > 0 else -1
    if ranked:
        reach = side * math.sqrt(1 / 12)
        return float(labels[at]), float(np.quantile(was, 0.5 + reach)), float(np.quantile(now, 0.5 - reach))
    return float(labels[at]), float(was.mean() + side * was.std()), float(now.mean() - side * now.std())


def _correlation(labels: np.ndarray, guesses: np.ndarray, ranked: bool) -> float:
    x, y = (_middle_ranks(values) if ranked else values for values in (labels, guesses))
    return float(np.corrcoef(x, y)[0, 1]) if x.std() and y.std() else 0.0
