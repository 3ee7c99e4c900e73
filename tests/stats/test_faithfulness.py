"""Faithfulness of circuits is a ratio of means; its areas are those of straight lines, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import says
from helpers.same import close

from headcount.errors import BadMeasure
from headcount.stats.faithfulness import areas, faithfulness, over_sizes


def test_it_is_one_for_the_model_and_zero_for_nothing() -> None:
    assert faithfulness(3.0, 1.0, [1.0, 2.0, 3.0, 4.0]).tolist() == [0.0, 0.5, 1.0, 1.5]
    assert faithfulness(-1.0, 1.0, [1.0, -1.0]).tolist() == [0.0, 1.0]  # where less is better


def test_areas_are_those_of_triangles() -> None:
    cpr, cmd = areas([0, 0.5, 1], [0.0, 2.0, 1.0])
    # below the line: 0.5 * 1 + 0.5 * 1.5; around 1: two triangles of 1/4 x 1 and one of 1/2 x 1
    assert close(np.array([cpr, cmd]), np.array([1.25, 0.125 + 0.125 + 0.25]))
    assert close(np.array(areas([0, 1], [0.0, 1.0])), np.array([0.5, 0.5]))
    assert close(np.array(areas([0, 0.2, 1], [1.0, 1.0, 1.0])), np.array([1.0, 0.0]))


def test_the_area_around_one_is_that_of_a_fine_sum() -> None:
    rng = np.random.default_rng(0)
    shares = np.array([0, 0.1, 0.15, 0.6, 1])
    curve = rng.normal(1, 1, 5)
    fine = np.linspace(0, 1, 400_001)
    line = np.interp(fine, shares, curve)
    middle = (line[1:] + line[:-1]) / 2
    assert close(np.array(areas(shares, curve)), np.array([middle.mean(), np.abs(middle - 1).mean()]), 1e-4)


def test_intervals_are_a_bootstrap_of_examples_drawn_together() -> None:
    rng = np.random.default_rng(1)
    clean = rng.normal(3, 0.5, 60)
    nothing = rng.normal(0, 0.5, 60)
    values = np.stack([nothing, (clean + nothing) / 2, clean], axis=1)
    found = over_sizes([0, 0.5, 1], clean, nothing, values)
    assert close(np.array([point.value for point in found.points[::2]]), np.array([0.0, 1.0]))
    for point in found.points:  # half of both is half in every resample
        assert point.low is not None
        assert point.high is not None
        assert close(np.array([point.low, point.high]), np.array([point.value] * 2))
    noisy = over_sizes([0, 0.5, 1], clean, nothing, np.stack([nothing, rng.normal(2, 1, 60), clean], axis=1))
    assert noisy.points[1].low < noisy.points[1].value < noisy.points[1].high  # type: ignore[operator]
    assert noisy.cpr.low < noisy.cpr.value < noisy.cpr.high  # type: ignore[operator]
    groups = over_sizes([0, 1], clean, nothing, values[:, ::2], clusters=np.repeat(np.arange(6), 10))
    assert groups.cpr.low is not None


def test_a_difference_that_is_not_shown_has_no_interval_and_none_at_all_is_refused() -> None:
    one = np.array([1.0, -1.0, 0.5, -0.4])
    found = over_sizes([0, 1], one, np.zeros(4), np.stack([np.zeros(4), one], axis=1))
    assert found.cpr.low is None
    assert found.points[1].value == pytest.approx(1.0)
    with says(BadMeasure, about="nothing that a circuit could explain"):
        over_sizes([0, 1], one, one, np.stack([one, one], axis=1))
    with says(BadMeasure, about="rise from 0 to 1"):
        areas([0.1, 1], [0.0, 1.0])
