"""Means over examples in strata, such as the documents of several tasks: every stratum counts the same, whatever its size."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from .metrics import Metric, metric

STRATUM = "stratum"  # the column with the number of the stratum that an example belongs to, from 0 on


def named_mean(name: str, *, higher_is_better: bool, points: float, strata: int = 1) -> Metric:
    """The mean of a value per example, under a name of its own; of several `strata` the mean of their means.

    Resamples draw examples of all strata together, and each stratum's mean is that of the examples drawn of it (what surveys
    call post-stratification), so that it does not matter how many of each are drawn.
    """
    plain = metric("mean", higher_is_better=higher_is_better)
    if strata == 1:
        return replace(plain, name=name, points=points)
    statistics = partial(_per_stratum, strata)
    columns = (*plain.columns, STRATUM)
    return Metric(name, columns, higher_is_better, points, None, statistics, _mean_of_means)


def _per_stratum(strata: int, rows: np.ndarray) -> np.ndarray:
    """Values (n, strata), then ones (n, strata), 0 in the columns of other strata."""
    own = (rows[:, 1:2] == np.arange(strata)).astype(np.float64)
    return np.concatenate([own * rows[:, :1], own], axis=1)


def _mean_of_means(totals: np.ndarray) -> np.ndarray:
    """The mean of the means of those strata that there are examples of."""
    sums, counts = np.split(totals, 2, axis=-1)
    means = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    present = (counts > 0).sum(axis=-1)
    return means.sum(axis=-1) / np.maximum(present, 1)
