"""Which heads have a name, how sure that is, and how many examples are enough. No torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from ...documents.circuits.named_heads import Enough
from ...stats.paired_tests import SMALLEST, holm, resample_counts

ALPHA = 0.05
FEWEST = 4  # examples that are drawn at least, to see how many are enough
STABLE = 0.9  # the share of resamples in which the same heads are named that is enough
SHOWN = 5  # heads with the highest means, whose intervals are followed where none is named


class Named(NamedTuple):
    """Of all heads: their means, one-sided p-values against chance, these corrected, and which heads are named."""

    mean: np.ndarray
    p: np.ndarray
    p_holm: np.ndarray
    named: np.ndarray


def named(values: np.ndarray, chance: np.ndarray, at_least: float) -> Named:
    """Heads whose mean is at least that, and above chance (one-sided t-test over examples, Holm over heads)."""
    p = above(values - chance[:, None])
    corrected, mean = holm(p), values.mean(0)
    return Named(mean, p, corrected, (mean >= at_least) & (corrected <= ALPHA))


def above(gaps: np.ndarray) -> np.ndarray:
    """One-sided p-values of the t-test that means of gaps (examples, heads) are above zero; 1 where there is one example."""
    n = len(gaps)
    if n < 2:
        return np.ones(gaps.shape[1])
    mean, spread = gaps.mean(0), gaps.std(0, ddof=1)
    constant = np.ptp(gaps, axis=0) <= 1e-13 * np.abs(gaps).max(0)
    t = np.where(constant, np.copysign(np.inf, mean), mean / np.where(constant, 1.0, spread) * np.sqrt(n))
    return np.where(gaps.any(0), np.clip(special.stdtr(n - 1, -t), SMALLEST, 1.0), 1.0)


def intervals(values: np.ndarray, *, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % percentile bootstrap intervals of the means over examples, examples drawn alike for all heads."""
    n = len(values)
    means = np.concatenate([counts @ values / n for counts in resample_counts(resamples, n, seed)])
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return low, high


def enough(
    values: np.ndarray, chance: np.ndarray, at_least: float, *, resamples: int = 200, seed: int = 0
) -> tuple[Enough, ...]:
    """What fewer examples would have shown: resamples of 4, 8, 16, ... examples and of all, drawn with replacement.

    `half_width` is half the width of the 95 % interval of the mean over so many examples, averaged over the heads that are named
    on all of them (the five with the highest means where none is). `same` is the share of resamples that name exactly the heads
    that all examples name; `overlap` is how many heads both name over how many either names, averaged over resamples.
    """
    whole = named(values, chance, at_least)
    shown = whole.named if whole.named.any() else np.isin(np.arange(values.shape[1]), np.argsort(-whole.mean)[:SHOWN])
    generator, rows = np.random.default_rng(seed), list[Enough]()
    sizes = [2**power for power in range(2, 30) if FEWEST <= 2**power < len(values)]
    for size in [*sizes, len(values)]:
        means, same, overlap = [], 0, 0.0
        for _ in range(resamples):
            drawn = generator.integers(0, len(values), size)
            found = named(values[drawn], chance[drawn], at_least)
            both, either = (found.named & whole.named).sum(), (found.named | whole.named).sum()
            same += bool(both == either)
            overlap += both / either if either else 1.0
            means.append(found.mean[shown])
        low, high = np.quantile(np.array(means), [0.025, 0.975], axis=0)
        rows.append(Enough(size, float((high - low).mean() / 2), same / resamples, float(overlap) / resamples))
    return tuple(rows)


def enough_at(rows: tuple[Enough, ...]) -> int | None:
    """The number of examples from which on at least nine in ten resamples name the same heads; None where there is none."""
    found = None
    for row in reversed(rows):
        if row.same < STABLE:
            break
        found = row.examples
    return found
