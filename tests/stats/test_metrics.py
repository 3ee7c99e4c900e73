"""Metrics equal those of scikit-learn, scipy and sacreBLEU, on all examples and on every resample of them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import sacrebleu
import scipy.stats
import sklearn.metrics
from conftest import says
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headcount.errors import BadMeasure
from headcount.stats.metrics import (
    METRICS,
    generated_columns,
    metric,
)
from headcount.stats.translation_scores import chrf_columns, translation_rows, translation_signature

HYPOTHESES = [
    "A man rides a horse.",
    "Two dogs run , run !",
    "",
    "the",
    "Ein Haus am See",
    "A man rides a horse today .",
]
REFERENCES = [
    "A man is riding a horse.",
    "Two dogs run.",
    "Something else.",
    "the cat",
    "Ein Haus an dem See",
    "A man.",
]


def classified(labels: int, n: int = 60, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    label = draw.integers(0, labels, n)
    prediction = np.where(draw.random(n) < 0.6, label, draw.integers(0, labels, n))
    return np.stack([label, prediction, draw.exponential(size=n)], axis=1).astype(np.float64)


def scored(n: int = 60, seed: int = 0, ties: bool = False) -> np.ndarray:
    draw = np.random.default_rng(seed)
    label = draw.uniform(0, 5, n)
    prediction = label + draw.normal(0, 1.5, n)
    if ties:
        label, prediction = label.round(), prediction.round()
    return np.stack([label, prediction, (label - prediction) ** 2], axis=1)


def outside(name: str, labels: int | None, rows: np.ndarray) -> float:
    """The metric as other libraries compute it."""
    label, prediction, loss = rows.T
    average = "binary" if labels == 2 else "macro"
    values = {
        "accuracy": lambda: sklearn.metrics.accuracy_score(label, prediction),
        "f1": lambda: sklearn.metrics.f1_score(label, prediction, average=average, zero_division=0.0),
        "matthews": lambda: sklearn.metrics.matthews_corrcoef(label, prediction),
        "pearson": lambda: scipy.stats.pearsonr(label, prediction).statistic,
        "spearman": lambda: scipy.stats.spearmanr(label, prediction).statistic,
        "loss": lambda: loss.mean(),
    }
    return float(values[name]())


CASES: list[tuple[str, int | None, np.ndarray]] = [
    *(
        (name, labels, classified(labels, seed=labels))
        for name in ("accuracy", "f1", "matthews")
        for labels in (2, 3, 7)
    ),
    *((name, None, scored(ties=ties)) for name in ("pearson", "spearman") for ties in (False, True)),
    ("loss", None, scored()),
]
COLUMNS = ("label", "prediction", "loss")


@pytest.mark.parametrize(("name", "labels", "rows"), CASES)
def test_the_value_is_that_of_scikit_learn_and_scipy(name: str, labels: int | None, rows: np.ndarray) -> None:
    measure = metric(name, labels=labels, columns=COLUMNS)
    assert measure.value(rows) == pytest.approx(outside(name, labels, rows), rel=1e-12)
    shuffled = np.random.default_rng(1).permutation(rows)
    assert measure.value(shuffled) == pytest.approx(measure.value(rows), rel=1e-12)


@pytest.mark.parametrize(("name", "labels", "rows"), CASES)
def test_a_resample_by_counts_is_the_metric_of_the_drawn_examples(
    name: str, labels: int | None, rows: np.ndarray
) -> None:
    measure = metric(name, labels=labels, columns=COLUMNS)
    drawn = np.random.default_rng(2).integers(0, len(rows), (25, len(rows)))
    counts = np.stack([np.bincount(one, minlength=len(rows)) for one in drawn])
    expected = [outside(name, labels, rows[one]) for one in drawn]
    np.testing.assert_allclose(measure.resampled(rows, counts), expected, rtol=1e-11)
    np.testing.assert_allclose(measure.resampled(rows, np.ones((1, len(rows)))), [measure.value(rows)], rtol=1e-12)
    models = np.stack([rows, np.where([False, True, True], rows[::-1], rows)])
    together = measure.resampled(models, counts)
    np.testing.assert_allclose(together, [measure.resampled(one, counts) for one in models], rtol=1e-12, atol=1e-15)


def test_loss_of_a_classifier_is_the_log_loss_of_scikit_learn() -> None:
    rows = classified(3)
    probabilities = np.random.default_rng(5).dirichlet(np.ones(3), len(rows))
    rows[:, 2] = -np.log(probabilities[np.arange(len(rows)), rows[:, 0].astype(int)])
    expected = sklearn.metrics.log_loss(rows[:, 0], probabilities, labels=[0, 1, 2])
    assert metric("loss", columns=COLUMNS).value(rows) == pytest.approx(expected, rel=1e-12)


def test_loss_and_perplexity_of_a_language_model_are_per_token() -> None:
    rows = np.array([[4.0, 2], [9.0, 3], [0.0, 0]])
    assert metric("loss").value(rows) == pytest.approx(13 / 5)
    assert metric("perplexity").value(rows) == pytest.approx(np.exp(13 / 5))
    np.testing.assert_allclose(metric("loss").resampled(rows, [[2, 0, 1], [0, 0, 3], [1, 1, 1]]), [2.0, 0.0, 2.6])
    assert np.isfinite(metric("perplexity").value(np.array([[1e6, 1.0]])))


def test_the_mean_of_own_values_runs_the_way_it_is_told() -> None:
    assert metric("mean").value(np.array([[1.0], [2.0], [6.0]])) == 3.0
    assert metric("mean").higher_is_better
    assert not metric("mean", higher_is_better=False).higher_is_better


@pytest.mark.parametrize(
    ("name", "labels", "label", "prediction"),
    [
        ("f1", 2, [0, 0, 0], [0, 0, 0]),
        ("matthews", 2, [0, 1, 1], [1, 1, 1]),
        ("matthews", 3, [2, 2, 2], [0, 1, 2]),
        ("pearson", None, [0.1, 0.2, 0.3], [0.7, 0.7, 0.7]),
        ("pearson", None, [1e7 + 0.1] * 3, [0.1, 0.2, 0.4]),
        ("spearman", None, [1.0, 2.0, 3.0], [0.7, 0.7, 0.7]),
    ],
)
def test_what_is_not_defined_is_zero(
    name: str, labels: int | None, label: list[float], prediction: list[float]
) -> None:
    rows = np.array([label, prediction, [0.0] * 3]).T
    assert metric(name, labels=labels).value(rows) == 0.0


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("n", [12, 600])  # the error of a sum grows with its terms
def test_a_resample_in_which_one_side_is_constant_is_zero_and_not_rounding_error(name: str, side: int, n: int) -> None:
    rows = np.random.default_rng(0).uniform(size=(n, 3))
    same = n * 2 // 3
    rows[:same, side] = 0.1
    counts = np.zeros((200, n))
    counts[:, :same] = np.random.default_rng(1).multinomial(n, np.ones(same) / same, 200)
    assert not metric(name).resampled(rows, counts).any()


@given(rows=arrays(np.float64, (9, 3), elements=st.integers(0, 2).map(float)), seed=st.integers(0, 9))
def test_no_resample_is_ever_nan_and_all_lie_in_range(rows: np.ndarray, seed: int) -> None:
    counts = np.random.default_rng(seed).multinomial(9, np.ones(9) / 9, 20)
    for name, lowest in [("accuracy", 0), ("f1", 0), ("matthews", -1), ("pearson", -1), ("spearman", -1)]:
        values = metric(name, labels=3).resampled(rows, counts)
        assert np.isfinite(values).all()
        assert ((values >= lowest - 1e-12) & (values <= 1 + 1e-12)).all()


def test_macro_f1_leaves_out_classes_that_do_not_occur_as_scikit_learn_does() -> None:
    rows = classified(3)
    expected = sklearn.metrics.f1_score(rows[:, 0], rows[:, 1], average="macro")
    assert metric("f1", labels=5).value(rows) == pytest.approx(expected, rel=1e-12)


def test_pearson_survives_an_offset_that_dwarfs_the_spread() -> None:
    rows = scored()
    rows[:, :2] += 1e6
    rows[:, 1] += 1e3
    assert metric("pearson").value(rows) == pytest.approx(outside("pearson", None, rows), abs=1e-8)


def sacre(name: str, hypotheses: list[str], references: list[str], **options: Any) -> float:
    score = sacrebleu.corpus_bleu if name == "bleu" else sacrebleu.corpus_chrf
    return score(hypotheses, [references], **options).score


CORPORA = {
    "all": (HYPOTHESES, REFERENCES),
    "one": (HYPOTHESES[:1], REFERENCES[:1]),
    "one empty": ([""], ["Something else."]),
    "only empty": (["", ""], ["a b c d", "e f"]),
    "empty reference": (["a b", "c d e f g"], ["", "c d e f g"]),
    "short": (["the cat"], ["the cat"]),
    "no four in common": (["a b c d e"], ["a b c x e"]),
    "nothing in common": (["a b c d e"], ["v w x y z"]),
    "too long": (["a b c d e f g h"], ["a b c d"]),
    "same": (REFERENCES, REFERENCES),
}


@pytest.mark.parametrize("name", ["bleu", "chrf"])
@pytest.mark.parametrize("corpus", CORPORA)
def test_bleu_and_chrf_are_those_of_sacrebleu_to_the_last_bit(name: str, corpus: str) -> None:
    hypotheses, references = CORPORA[corpus]
    assert metric(name).value(translation_rows(name, hypotheses, references)) == sacre(name, hypotheses, references)


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_whether_a_translation_was_ended_is_counted_and_not_scored(name: str) -> None:
    rows, plain = translation_rows(name, HYPOTHESES, REFERENCES), metric(name)
    more = metric(name, columns=generated_columns(name))
    assert more.columns == (*plain.columns, "unfinished")
    with_it = np.column_stack([rows, np.arange(len(rows)) % 2])
    assert more.value(with_it) == plain.value(rows) == sacre(name, HYPOTHESES, REFERENCES)
    counts = np.random.default_rng(0).integers(0, 3, (5, len(rows)))
    assert more.resampled(with_it, counts).tolist() == plain.resampled(rows, counts).tolist()


@given(
    pairs=st.lists(
        st.tuples(*[st.lists(st.sampled_from(["a", "b", "c", "dd", "e."]), max_size=9).map(" ".join)] * 2),
        min_size=1,
        max_size=6,
    )
)
def test_bleu_and_chrf_equal_sacrebleu_on_any_words(pairs: list[tuple[str, str]]) -> None:
    hypotheses, references = ([pair[side] for pair in pairs] for side in (0, 1))
    for name in ("bleu", "chrf"):
        rows = translation_rows(name, hypotheses, references)
        assert metric(name).value(rows) == sacre(name, hypotheses, references)
        counts = np.random.default_rng(0).integers(0, 3, (5, len(pairs)))
        counts[:, 0] += 1
        for value, count in zip(metric(name).resampled(rows, counts), counts, strict=True):
            again = [
                [text for text, times in zip(side, count, strict=True) for _ in range(times)]
                for side in zip(*pairs, strict=True)
            ]
            assert value == sacre(name, *again)


def test_options_of_sacrebleu_that_change_what_is_counted_are_passed_on() -> None:
    rows = translation_rows("bleu", HYPOTHESES, REFERENCES, tokenize="char", lowercase=True)
    expected = sacre("bleu", HYPOTHESES, REFERENCES, tokenize="char", lowercase=True)
    assert metric("bleu").value(rows) == expected
    assert expected != sacre("bleu", HYPOTHESES, REFERENCES)
    rows = translation_rows("chrf", HYPOTHESES, REFERENCES, word_order=2)
    plus = metric("chrf", columns=chrf_columns(word_order=2))
    assert plus.value(rows) == sacre("chrf", HYPOTHESES, REFERENCES, word_order=2)
    assert len(plus.columns) == rows.shape[1] == 24


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_an_example_may_have_several_references(name: str) -> None:
    several = [[one, "Two dogs run away, a man rides."] for one in REFERENCES[:-1]] + [[REFERENCES[-1]]]
    streams = [REFERENCES, ["Two dogs run away, a man rides."] * 5 + [None]]
    score = sacrebleu.corpus_bleu if name == "bleu" else sacrebleu.corpus_chrf
    expected = score(HYPOTHESES, streams).score
    assert metric(name).value(translation_rows(name, HYPOTHESES, several)) == expected
    parts = [
        translation_rows(name, HYPOTHESES[part], several[part]) for part in (slice(0, 2), slice(2, 6), slice(6, 6))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), translation_rows(name, HYPOTHESES, several))


def test_the_signature_is_that_of_sacrebleu() -> None:
    scorer = sacrebleu.BLEU(lowercase=True)
    scorer.corpus_score(HYPOTHESES, [REFERENCES])
    assert translation_signature("bleu", lowercase=True) == str(scorer.get_signature())


def test_metrics_are_values_that_can_be_compared_and_sent_to_another_process() -> None:
    for name in METRICS:
        measure = metric(name, labels=3)
        assert measure == metric(name, labels=3)
        assert measure.name == name
        assert pickle.loads(pickle.dumps(measure)) == measure
    assert metric("f1", labels=2) != metric("f1", labels=3)
    assert {name for name in METRICS if not metric(name, labels=2).higher_is_better} == {"loss", "perplexity", "kl"}
    assert {name: metric(name, labels=2).points for name in ("accuracy", "bleu", "loss")} == {
        "accuracy": 100,
        "bleu": 1,
        "loss": 1,
    }


@pytest.mark.parametrize(
    ("ask", "about"),
    [
        (lambda: metric("auc"), "'auc'"),
        (lambda: metric("f1"), "number of labels"),
        (lambda: metric("matthews", labels=1), "number of labels"),
        (lambda: metric("accuracy", columns=("loss", "tokens")), "label"),
        (lambda: metric("bleu", columns=(*metric("bleu").columns, "loss")), "bleu"),
        (lambda: metric("chrf", columns=("a", "b")), "chrf"),
        (lambda: metric("accuracy").value(np.zeros((0, 3))), "(0, 3)"),
        (lambda: metric("accuracy").value(np.zeros((4, 2))), "(4, 2)"),
        (lambda: metric("accuracy").value(np.array([[0, 0, 1], [0, 0, np.nan]])), "loss of example 1"),
        (lambda: metric("f1", labels=2).value(np.array([[0, 2, 1.0]])), "is 2"),
        (lambda: metric("f1", labels=2).value(np.array([[0, 0.5, 1.0]])), "0.5"),
        (lambda: metric("spearman").resampled(np.stack([scored(), scored(seed=1)]), np.ones((2, 60))), "labels"),
        (lambda: translation_rows("ter", ["a"], ["a"]), "'ter'"),
        (lambda: translation_rows("bleu", ["a"], ["a"], smooth_method="floor"), "smooth_method"),
        (lambda: translation_rows("bleu", ["a"], ["a"], tokenize="words"), "'words'"),
        (lambda: translation_rows("bleu", ["a"], []), "1 translations and 0"),
        (lambda: translation_rows("bleu", ["a", "b"], [["a"], []]), "Example 1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(ask: Any, about: str) -> None:
    with says(BadMeasure, about=about):
        ask()
