"""What a constant answer is worth: the same label, number or distribution for every example. A model below it knows nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from .metrics import UNFINISHED, Metric

NOTHING = ("matthews", "pearson", "spearman", "bleu", "chrf")  # 0 for a constant answer, by definition or nearly
MOST_LABELS = 100  # of an F1, to try one by one


def constant_answer(metric: Metric, rows: np.ndarray) -> float | None:
    """The metric of the best constant answer on the examples of these rows; None where the rows do not tell.

    Of labels it is the best one, of squared distances their variance. Rows of losses over tokens do not have the tokens:
    see `entropy`.
    """
    if metric.name in NOTHING:
        return 0.0
    columns = [column for column in metric.columns if column != UNFINISHED]
    if not {"label", "prediction"} <= set(columns):
        return None
    label, prediction = rows[:, metric.columns.index("label")], rows[:, metric.columns.index("prediction")]
    labels, counts = np.unique(label, return_counts=True)
    if metric.name == "loss":
        loss = rows[:, metric.columns.index("loss")] if "loss" in columns else None
        if loss is not None and np.allclose(loss, (label - prediction) ** 2, rtol=1e-3, atol=1e-6):
            return float(label.var())
        return None  # of a classifier: one that is too sure of itself may be right far more often than this tells
    if metric.name.startswith("accuracy"):
        return float(counts.max() / counts.sum())
    if metric.name != "f1" or len(labels) > MOST_LABELS:
        return None
    values = []
    for candidate in labels:
        always = np.array(rows)
        always[:, metric.columns.index("prediction")] = candidate
        values.append(metric.value(always))
    return max(values)


def constant_value(
    metric: Metric, rows: np.ndarray, targets: Iterable[int] = (), *, numbers: bool = False
) -> float | None:
    """The metric of the best constant answer, also where more is needed than rows; None where nothing says what that is.

    For a loss per token and its perplexity it is the frequencies of the target tokens (`targets` counts each of them), for the
    loss of a classifier those of its labels, for a squared error (`numbers`) the mean label.
    """
    known = constant_answer(metric, rows)
    if known is not None:
        return known
    if "tokens" in metric.columns:
        counts = np.asarray(list(targets), dtype=np.float64)
        if not counts.sum():
            return None
        return math.exp(entropy(counts)) if metric.name == "perplexity" else entropy(counts)
    if metric.name == "loss" and "label" in metric.columns:
        labels = rows[:, metric.columns.index("label")]
        return float(labels.var()) if numbers else entropy(np.unique(labels, return_counts=True)[1])
    return None


def entropy(counts: np.ndarray) -> float:
    """The loss in nats of always answering with the distribution of these counts, of tokens."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def share_lost(metric: str, before: float, after: float, constant: float) -> float | None:
    """How much of the way from a model to a constant answer is lost; None where the model was no better than that.

    Of a perplexity, the way is that of its logarithm.
    """
    if metric == "perplexity":
        if min(before, after, constant) <= 0:
            return None
        before, after, constant = (math.log(value) for value in (before, after, constant))
    worse = after - before if metric in ("loss", "perplexity") else before - after
    way = constant - before if metric in ("loss", "perplexity") else before - constant
    return worse / way if way > 0 else None
