"""The mean over seeds: its interval covers other seeds and other examples, which a simulation knows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.stats
from conftest import says

from headcount.errors import BadRun
from headcount.reproduction.seeds import COVERS, SEEDS_ALONE, Estimate, mean_of, mean_over_seeds
from headcount.stats.metrics import metric
from headcount.stats.results import Comparison, Result, compare

WORLDS = 2000
AT_MOST = 0.025 + 3 * math.sqrt(0.025 * 0.975 / WORLDS)
NOISE = {"seeds": (1.0, 0.0), "examples": (0.1, 1.0), "both": (1.0, 1.0), "mostly seeds": (1.0, 0.5)}


def _worlds(seeds: int, n: int, noise: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Means over n examples of a difference that is 0 in truth, and their standard errors, (worlds, seeds) each.

    What a seed adds, and what an example adds under every seed, have these deviations in units of an example's own noise
    over sqrt(n); a third part is of this seed and example alone.
    """
    rng = np.random.default_rng(seeds * 10_000 + n)
    by_seed, by_example = noise
    shift = by_seed * rng.normal(size=(WORLDS, seeds, 1)) / math.sqrt(n)
    values = shift + by_example * rng.normal(size=(WORLDS, 1, n)) + 0.5 * rng.normal(size=(WORLDS, seeds, n))
    return values.mean(-1), values.std(-1, ddof=1) / math.sqrt(n)


def _estimates(values: Sequence[float], errors: Sequence[float]) -> list[Estimate]:
    return [Estimate(v, v - 1.96 * e, v + 1.96 * e) for v, e in zip(values, errors, strict=True)]


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
@pytest.mark.parametrize(("seeds", "n"), [(3, 200), (5, 200), (3, 1000)])
def test_it_errs_no_more_often_than_it_says(seeds: int, n: int, noise: tuple[float, float]) -> None:
    values, errors = _worlds(seeds, n, noise)
    joint = [mean_of(_estimates(*world)) for world in zip(values.tolist(), errors.tolist(), strict=True)]
    assert np.mean([mean.above(0) for mean in joint]) <= AT_MOST
    assert np.mean([mean.below(0) for mean in joint]) <= AT_MOST
    if noise[1] == 1.0:
        alone = [mean_over_seeds(world).above(0) for world in values.tolist()]
        assert np.mean(alone) > 0.05, "the spread over seeds alone does not see what all of them share"


def test_two_models_beside_the_same_one_on_the_same_examples() -> None:
    """Of two paired comparisons with one baseline the difference of the two is known well enough."""
    rng, worlds, n, wrong = np.random.default_rng(5), 300, 300, 0
    for _ in range(worlds):
        ease = rng.normal(size=n)  # of an example, for all models
        right = [(ease + rng.normal(size=n) > -0.5).astype(float) for _ in range(3)]  # three equally good models
        rows = [np.stack([np.ones(n), one, np.zeros(n)], axis=1) for one in right]
        whole, one, other = (Result(metric("accuracy"), each) for each in rows)
        gains = [Estimate.gain(compare(whole, each, resamples=200)) for each in (one, other)]
        between = gains[0].minus(gains[1])
        assert between.value == pytest.approx(100 * (one.value - other.value))
        wrong += between.low > 0
    assert wrong / worlds <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / worlds)


def test_the_interval_over_seeds_is_students() -> None:
    values = [1.0, 2.0, 4.5]
    mean = mean_over_seeds(values)
    low, high = scipy.stats.t.interval(0.95, 2, sum(values) / 3, scipy.stats.sem(values))
    assert mean == pytest.approx((2.5, low, high, 3, False))
    assert mean_over_seeds([1.0, 1.0, 1.0]) == (1.0, 1.0, 1.0, 3, False)
    assert mean.text(str) == f"2.5 [{mean.low}, {mean.high}]"
    assert mean.how == f"mean over 3 seeds with its 95 % interval, {SEEDS_ALONE}"


def test_examples_widen_it_by_the_root_of_the_squares_and_seeds_that_agree_do_not_narrow_it() -> None:
    values = [1.0, 2.0, 4.5]
    alone, both = mean_over_seeds(values), mean_of(Estimate(v, v - 3, v + 4) for v in values)
    reach = alone.high - 2.5
    assert both == pytest.approx((2.5, 2.5 - math.hypot(reach, 3), 2.5 + math.hypot(reach, 4), 3, True))
    assert both.how == f"mean over 3 seeds with its 95 % interval, {COVERS}"
    for seeds in (3, 30):
        same = mean_of([Estimate(1.0, 0.5, 1.5)] * seeds)
        assert same == pytest.approx((1.0, 0.5, 1.5, seeds, True))
        assert same.above(0.4)
        assert not same.above(0.6)


def test_one_seed_has_the_interval_over_its_examples_and_proves_nothing() -> None:
    mean = mean_of([Estimate(1.0, 0.5, 1.5)])
    assert mean == (1.0, 0.5, 1.5, 1, True)
    assert mean.text(str) == "1.0 [0.5, 1.5]"
    assert mean.how == "one seed, with its 95 % interval over examples"
    assert mean_over_seeds([1.0]).how == "one seed"
    for few in (mean, mean_over_seeds([1.0]), mean_of([Estimate(1.0, 0.9, 1.1)] * 2)):
        assert not few.above(-100)
        assert not few.below(100)
    for few in (mean_over_seeds([1.0]), mean_of([Estimate(1.0, 0.9, 1.1)] * 2)):
        assert "[" not in few.text(str)
    for mean_ in (mean_of, mean_over_seeds):
        with says(BadRun, about="no value"):
            mean_([])


def test_estimates_are_turned_subtracted_and_averaged() -> None:
    loss = Comparison("loss", 2.0, 2.5, 0.5, 0.4, 0.8, 0.95, 0.1, "randomization", 9, False, 1.0)
    assert Estimate.gain(loss) == (-0.5, -0.8, -0.4)
    one, other = Estimate(5.0, 2.0, 9.0), Estimate(1.0, -2.0, 5.0)
    assert one.minus(other) == pytest.approx((4.0, 4 - math.hypot(3, 4), 4 + math.hypot(4, 3)))
    assert Estimate.average([one, other]) == (3.0, 0.0, 7.0)
