"""Whether draws agree: what survives under several seeds and on several tasks, counted, and how much of it is chance.

The statistics and figures of Prasanna, Rogers and Rumshisky 2020, as functions of which units survived where.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from scipy.special import chdtrc

from ..errors import BadRun

# -- statistics ----------------------------------------------------------------------------------------------------------


def fleiss_kappa(marks: Any) -> float | None:
    """How far raters agree beyond chance (Fleiss 1971): `marks` (subjects, raters) holds a category each.

    1 is perfect agreement, 0 what raters with the same habits would reach by chance. None where it is not defined: fewer
    than two raters, no subject, or only one category.
    """
    marks = _table(marks)
    subjects, raters = marks.shape
    categories = np.unique(marks)
    if raters < 2 or not subjects or len(categories) < 2:
        return None
    counts = (marks[:, :, None] == categories).sum(1).astype(np.float64)
    agreed = ((counts**2).sum(1) - raters) / (raters * (raters - 1))
    by_chance = ((counts.sum(0) / marks.size) ** 2).sum()
    return float((agreed.mean() - by_chance) / (1 - by_chance))


def cochran_q(marks: Any) -> tuple[float, float] | tuple[None, None]:
    """Cochran's Q and its p-value: whether raters mark equally many; `marks` (subjects, raters) holds 0 or 1.

    A small p says that some of them mark more than others. (None, None) where it is not defined: fewer than two raters, or
    no subject on which they differ.
    """
    marks = _table(marks).astype(bool).astype(np.float64)
    raters = marks.shape[1]
    by_subject, by_rater = marks.sum(1), marks.sum(0)
    below = raters * by_subject.sum() - (by_subject**2).sum()
    if raters < 2 or below == 0:
        return None, None
    q = (raters - 1) * (raters * (by_rater**2).sum() - by_rater.sum() ** 2) / below
    return float(q), float(chdtrc(raters - 1, q))


def overlap(sets: Sequence[Collection[Any]]) -> np.ndarray:
    """How many elements each two of the sets share: (sets, sets), with their sizes on the diagonal."""
    plain = [frozenset(members) for members in sets]
    return np.array([[len(first & second) for second in plain] for first in plain], dtype=np.int64).reshape(
        len(plain), -1
    )


def mean_sd(samples: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """The mean over the first axis, and the sample standard deviation, which a single sample does not have."""
    values = np.asarray(samples, dtype=np.float64)
    return values.mean(0), values.std(0, ddof=1) if len(values) > 1 else None


def in_all(sets: Sequence[Collection[Any]]) -> int:
    """How many elements are in every one of the sets."""
    return len(frozenset.intersection(*map(frozenset, sets))) if sets else 0


def _table(marks: Any) -> np.ndarray:
    table = np.asarray(marks)
    if table.ndim != 2:
        raise BadRun(f"Marks are a table (subjects, raters); I got an array of shape {table.shape}.")
    return table


def in_words(kappa: float) -> str:
    """What people call an agreement of that size (Landis and Koch 1977)."""
    names = {0.0: "none beyond chance", 0.2: "slight", 0.4: "fair", 0.6: "moderate", 0.8: "substantial"}
    return next((name for end, name in names.items() if kappa <= end), "almost perfect")
