"""Faithfulness of circuits: how much of what a model does is left where all else is corrupted, and areas over sizes. No torch.

Of a circuit C, with the metric m: (m(C) - m(nothing)) / (m(model) - m(nothing)), where nothing is the model with every unit as on
the corrupted prompts. Over the share k of units that are kept this is a curve f(k); CPR, the circuit performance ratio, is the
area under it, and CMD, the circuit-model distance, the area between it and 1 (Mueller et al. 2025, MIB). Means are over examples,
before the ratio is taken.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import BadMeasure
from .paired_tests import grouped, resample_counts


class Estimate(NamedTuple):
    """A value with its 95 % interval; no interval where a ratio has none."""

    value: float
    low: float | None
    high: float | None

    @property
    def span(self) -> tuple[float, float]:
        """The interval; the value twice where there is none."""
        return (self.value if self.low is None else self.low, self.value if self.high is None else self.high)

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Faithfulness(NamedTuple):
    """The faithfulness at each size, and the areas over all of them."""

    points: tuple[Estimate, ...]
    cpr: Estimate
    cmd: Estimate


def faithfulness(clean: Any, nothing: Any, values: Any) -> np.ndarray:
    """(m(C) - m(nothing)) / (m(model) - m(nothing)) from means, or rows of means: values (..., sizes), the others (..., 1)."""
    gap = np.asarray(clean, float) - nothing
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((np.asarray(values, float) - nothing) / gap) + 0.0  # no minus zero


def areas(shares: Any, curve: Any) -> tuple[np.ndarray, np.ndarray]:
    """CPR and CMD of curves (..., sizes) over the shares of units kept, which run from 0 to 1: areas of straight lines."""
    shares, curve = np.asarray(shares, float), np.asarray(curve, float)
    if len(shares) < 2 or shares[0] != 0 or shares[-1] != 1 or (np.diff(shares) <= 0).any():
        raise BadMeasure(f"Sizes of circuits rise from 0 to 1; I got {shares.tolist()!r:.80}.")
    steps, gaps = np.diff(shares), curve - 1
    one, other = gaps[..., :-1], gaps[..., 1:]
    # a line that crosses 1 makes two triangles
    crosses = one * other < 0
    total = np.abs(one) + np.abs(other)
    with np.errstate(divide="ignore", invalid="ignore"):
        between = np.where(crosses, (one**2 + other**2) / (2 * total), total / 2)
    return ((curve[..., :-1] + curve[..., 1:]) / 2 * steps).sum(-1), (between * steps).sum(-1)


def over_sizes(
    shares: Any,
    clean: np.ndarray,
    nothing: np.ndarray,
    values: np.ndarray,
    *,
    clusters: Any = None,
    resamples: int = 1000,
    seed: int = 12345,
) -> Faithfulness:
    """Faithfulness at every size with bootstrap intervals over the examples, and CPR and CMD with theirs.

    `clean` and `nothing` (examples,) and `values` (examples, sizes) are drawn together. There are no intervals where the
    examples do not show that the model and nothing differ: a ratio has none then.
    """
    curve = faithfulness(clean.mean(), nothing.mean(), values.mean(0))
    if not np.isfinite(curve).all():
        raise BadMeasure(
            "The metric is the same with all units as on the corrupted prompts, so there is nothing that a circuit could "
            "explain: look at the prompts and at the metric."
        )
    drawn, gaps = [], []
    for counts in resample_counts(resamples, len(clean), seed, grouped(clusters, len(clean))):
        weights = counts / counts.sum(1, keepdims=True)
        whole, none = (weights @ side for side in (clean, nothing))
        gaps.append(whole - none)
        drawn.append(faithfulness(whole[:, None], none[:, None], weights @ values))
    curves, gap = np.concatenate(drawn), np.concatenate(gaps)
    low, high = np.quantile(gap, [0.025, 0.975])
    sure = len(clean) > 1 and bool(low > 0 or high < 0) and bool(np.isfinite(curves).all())
    ours, theirs = areas(shares, curve), areas(shares, curves if sure else curve[None])
    points = tuple(_estimate(value, curves[:, n] if sure else None) for n, value in enumerate(curve))
    return Faithfulness(points, *(_estimate(a, b if sure else None) for a, b in zip(ours, theirs, strict=True)))


def _estimate(value: Any, drawn: np.ndarray | None) -> Estimate:
    if drawn is None:
        return Estimate(float(value), None, None)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(float(value), float(low), float(high))
