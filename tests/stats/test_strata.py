"""Means of strata: every stratum counts the same, in values, resamples, comparisons and promises."""

from __future__ import annotations

import numpy as np
import pytest

from headcount.stats.noninferiority import noninferiority_test
from headcount.stats.results import Result, compare
from headcount.stats.strata import named_mean

ACC = named_mean("acc", higher_is_better=True, points=100.0, strata=3)


def _rows(seed: int, share: float) -> np.ndarray:
    draw = np.random.default_rng(seed)
    strata = np.repeat([0, 1, 2], [400, 60, 40])
    return np.column_stack([draw.random(500) < share, strata]).astype(float)


def test_the_value_is_the_mean_of_the_means() -> None:
    rows = _rows(0, 0.7)
    means = [rows[rows[:, 1] == stratum, 0].mean() for stratum in range(3)]
    assert ACC.value(rows) == pytest.approx(np.mean(means))
    counts = np.random.default_rng(1).multinomial(500, [1 / 500] * 500, size=20)
    for count, value in zip(counts, ACC.resampled(rows, counts), strict=True):
        drawn = np.repeat(rows, count, axis=0)
        assert value == pytest.approx(np.mean([drawn[drawn[:, 1] == stratum, 0].mean() for stratum in range(3)]))
    assert ACC.value(rows[:460]) == pytest.approx(np.mean(means[:2])), "a stratum without examples does not count"


def test_an_interval_is_as_wide_as_that_of_independent_strata() -> None:
    rows = _rows(0, 0.7)
    low, high = Result(ACC, rows).interval()
    variances = [rows[rows[:, 1] == stratum, 0].var() / (rows[:, 1] == stratum).sum() for stratum in range(3)]
    wide = 2 * 1.96 * np.sqrt(sum(variances)) / 3
    assert high - low == pytest.approx(wide, rel=0.1)


def test_comparisons_and_promises_know_the_strata() -> None:
    before = _rows(0, 0.8)
    after = before.copy()
    lost = np.flatnonzero((before[:, 0] == 1) & (before[:, 1] == 2))[:10]  # all in the smallest stratum
    after[lost, 0] = 0
    drop = 100 * 10 / 40 / 3
    found = compare(Result(ACC, before), Result(ACC, after))
    assert found.damage == pytest.approx(drop)
    assert found.p < 0.01
    assert noninferiority_test(ACC, before, after, 2 * drop).p < 0.05
    assert noninferiority_test(ACC, before, after, drop).p > 0.3
    plain = named_mean("acc", higher_is_better=True, points=100.0)
    one = noninferiority_test(plain, before[:, :1], after[:, :1], 5.0)
    assert one.test == "exact"
    assert one.damage == pytest.approx(2.0)
