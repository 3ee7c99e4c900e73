"""What a constant answer is worth: no other constant is worth more, and a brake is set between it and the whole model."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from conftest import says

from headcount.errors import BadMeasure
from headcount.stats.brake import DEFAULT_BRAKE, brake_at, brake_setting
from headcount.stats.constant_answer import constant_value
from headcount.stats.metrics import metric

RNG = np.random.default_rng(0)
LABELS = np.array([0, 1, 1, 2, 1, 0, 1, 1], dtype=float)


def _rows(labels: np.ndarray) -> np.ndarray:
    return np.column_stack([labels, RNG.integers(0, 3, len(labels)), RNG.random(len(labels))]).astype(float)


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews"])
def test_no_class_that_is_always_given_is_worth_more(name: str) -> None:
    measure, rows = metric(name, labels=3), _rows(LABELS)
    always = [measure.value(np.column_stack([LABELS, np.full(len(LABELS), c), rows[:, 2]])) for c in range(3)]
    assert constant_value(measure, rows) == max(always)
    expected = {"accuracy": 5 / 8, "f1": (2 * 5 / 13) / 3, "matthews": 0.0}
    assert constant_value(measure, rows) == pytest.approx(expected[name])


def test_no_constant_has_a_smaller_loss() -> None:
    measure, rows = metric("loss", columns=("label", "prediction", "loss")), _rows(LABELS)
    best = constant_value(measure, rows)
    assert best is not None
    counts = np.bincount(LABELS.astype(int)) / len(LABELS)
    assert best == pytest.approx(np.mean([-math.log(counts[int(label)]) for label in LABELS]))
    for other in RNG.dirichlet(np.ones(3), 50):
        assert np.mean([-math.log(other[int(label)]) for label in LABELS]) >= best - 1e-12
    squared = constant_value(measure, rows, numbers=True)
    assert squared is not None
    assert squared == pytest.approx(
        min(np.mean((LABELS - guess) ** 2) for guess in [*RNG.random(50) * 2, LABELS.mean()])
    )


def test_tokens_are_guessed_by_how_often_they_come() -> None:
    tokens = [3, 3, 3, 7, 7, 1]
    rows = np.array([[6.0, 4.0], [3.0, 2.0]])
    counts = Counter(tokens)
    entropy = -sum(math.log(counts[token] / 6) for token in tokens) / 6
    assert constant_value(metric("loss", columns=("loss", "tokens")), rows, counts.values()) == pytest.approx(entropy)
    assert constant_value(metric("perplexity"), rows, counts.values()) == pytest.approx(math.exp(entropy))
    assert constant_value(metric("perplexity"), rows) is None


def test_correlations_and_translations_are_worth_nothing_and_of_a_mean_nothing_is_known() -> None:
    assert constant_value(metric("pearson"), _rows(LABELS)) == 0.0
    assert constant_value(metric("spearman"), _rows(LABELS)) == 0.0
    assert constant_value(metric("chrf"), np.zeros((2, 18))) == 0.0
    assert constant_value(metric("mean"), np.zeros((2, 1))) is None


def test_the_brake_is_half_way_to_a_constant_answer() -> None:
    accuracy, loss, perplexity = metric("accuracy"), metric("loss"), metric("perplexity")
    brake = brake_at(DEFAULT_BRAKE, accuracy, 0.9, 0.5, 100)
    assert brake is not None
    assert brake.allowed == pytest.approx(20)
    assert not brake.holds(0.71)
    assert brake.holds(0.69)
    assert brake.fall(0.92) == pytest.approx(-2)
    brake = brake_at("25%", loss, 2.0, 6.0, 100)
    assert brake is not None
    assert not brake.holds(2.9)
    assert brake.holds(3.1)
    brake = brake_at("50%", perplexity, 10.0, 1000.0, 100)
    assert brake is not None
    assert brake.whole + brake.allowed == pytest.approx(100), "half way between the losses"
    points = brake_at("5", accuracy, 0.9, None, 100)
    assert points is not None
    assert points.allowed == 5
    assert brake_at("off", accuracy, 0.9, 0.5, 100) is None
    assert brake_at(None, accuracy, 0.9, 0.5, 100) is None
    assert brake_at("50%", accuracy, 0.9, None, 100) is None, "nothing is known about the bottom"
    assert brake_at("50%", accuracy, 0.5, 0.5, 100) is None, "the model is at the bottom already"


@pytest.mark.parametrize("text", ["", "much", "0", "-3", "0%", "120%", True, float("nan")])
def test_a_brake_that_means_nothing_is_refused(text: str) -> None:
    with says(BadMeasure, about="A brake is a share"):
        brake_setting(text)
