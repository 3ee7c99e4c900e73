"""Intervals and tests equal those of scipy, statsmodels and sacreBLEU, and err as often as they say."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import sacrebleu
import scipy.stats
import statsmodels.stats.contingency_tables
import statsmodels.stats.multitest
from conftest import says
from helpers.same import close
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sacrebleu.significance import PairedTest

from headcount.errors import BadMeasure
from headcount.stats import paired_tests
from headcount.stats.metrics import Metric, metric
from headcount.stats.paired_tests import (
    ALTERNATIVES,
    TESTS,
    benjamini_hochberg,
    holm,
    interval,
    paired,
    pearson,
    resampled_differences,
    spearman,
    swapped_differences,
)
from headcount.stats.translation_scores import translation_rows

WORDS = [
    "man",
    "rides",
    "brown",
    "horse",
    "over",
    "that",
    "green",
    "hill",
    "while",
    "dogs",
    "run",
    "after",
    "it",
    "and",
]


def classified(models: int, n: int, right: float = 0.8, labels: int = 2, seed: int = 0) -> np.ndarray:
    """Rows of several classifiers on the same examples, (models, n, 3)."""
    draw = np.random.default_rng(seed)
    label = np.broadcast_to(draw.integers(0, labels, n), (models, n))
    prediction = np.where(draw.random((models, n)) < right, label, draw.integers(0, labels, (models, n)))
    return np.stack([label, prediction, draw.exponential(size=(models, n))], axis=2).astype(np.float64)


def means(*lists: Any) -> np.ndarray:
    return np.array(lists, dtype=np.float64)[:, :, None]


def corpus(n: int = 40, seed: int = 0) -> tuple[list[str], list[str], list[str]]:
    """References, and two systems that get words wrong at different rates."""
    draw = np.random.default_rng(seed)
    references = [list(draw.choice(WORDS, draw.integers(6, 15))) for _ in range(n)]
    noisy = [
        [[word if draw.random() > wrong else str(draw.choice(WORDS)) for word in words] for words in references]
        for wrong in (0.2, 0.23)
    ]
    return tuple([" ".join(words) for words in texts] for texts in (references, *noisy))  # type: ignore[return-value]


# --- intervals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 4_000_000])
def test_the_interval_is_the_percentile_bootstrap_of_scipy(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_tests, "CHUNK", chunk)
    values = np.random.default_rng(3).gamma(2.0, size=37)
    expected = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=500, confidence_level=0.9, method="percentile", rng=np.random.default_rng(7)
    ).confidence_interval
    got = interval(metric("mean"), values[:, None], level=0.9, resamples=500, seed=7)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_the_interval_of_a_difference_is_the_paired_bootstrap_of_scipy() -> None:
    draw = np.random.default_rng(4)
    rows = np.stack([scored := draw.normal(size=50), scored + draw.normal(size=50), np.zeros(50)], axis=1)
    after = rows + np.stack([np.zeros(50), draw.normal(size=50), np.zeros(50)], axis=1)
    expected = scipy.stats.bootstrap(
        (rows[:, 0], rows[:, 1], after[:, 1]),
        lambda label, one, two: scipy.stats.pearsonr(label, two)[0] - scipy.stats.pearsonr(label, one)[0],
        n_resamples=300,
        paired=True,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(5),
    ).confidence_interval
    found = paired(metric("pearson"), rows, after[None], resamples=300, seed=5)
    np.testing.assert_allclose([found.low[0], found.high[0]], expected, rtol=1e-10)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(6)
    caught = 0
    for seed in range(400):
        label = np.zeros(100)
        before, after = draw.random(100) < 0.3, draw.random(100) < 0.4  # wrong, that often
        rows = [np.stack([label, wrong, label], axis=1) for wrong in (before, after)]
        found = paired(metric("accuracy"), rows[0], rows[1][None], test="mcnemar", level=0.9, resamples=200, seed=seed)
        caught += bool(found.low[0] <= -0.1 <= found.high[0])
    assert scipy.stats.binomtest(caught, 400, 0.9).pvalue > 0.001
    assert 0.86 < caught / 400 < 0.94


# --- tests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 4_000_000])
@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_randomization_is_that_of_sacrebleu_draw_for_draw(
    name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paired_tests, "CHUNK", chunk)
    references, one, two = corpus()
    scorer = sacrebleu.BLEU() if name == "bleu" else sacrebleu.CHRF()
    _, scores = PairedTest([("one", one), ("two", two)], {name: scorer}, [references], "ar", n_samples=1000)()
    (expected,) = [found[1].p_value for key, found in scores.items() if key != "System"]
    before, after = (translation_rows(name, texts, references) for texts in (one, two))
    assert paired(metric(name), before, after[None]).p[0] == expected
    assert 0.002 < expected < 0.9


def test_bootstrap_resamples_are_those_of_sacrebleu_and_p_is_as_defined() -> None:
    references, one, two = corpus(seed=1)
    named = {"bleu": sacrebleu.BLEU()}
    _, scores = PairedTest([("one", one), ("two", two)], named, [references], "bs", n_samples=1000)()
    theirs = scores["BLEU"][1].p_value
    before, after = (translation_rows("bleu", texts, references) for texts in (one, two))
    drawn = resampled_differences(metric("bleu"), before, after[None])[0]
    seen = metric("bleu").value(after) - metric("bleu").value(before)
    sizes = np.abs(drawn)
    assert theirs == (1 + (sizes - sizes.mean() > abs(seen)).sum()) / 1001
    ours = paired(metric("bleu"), before, after[None], test="bootstrap").p[0]
    assert ours == (1 + (np.abs(drawn - drawn.mean()) >= abs(seen)).sum()) / 1001
    assert 0.01 < theirs < ours < 0.6


def test_shifting_before_taking_sizes_is_what_makes_the_bootstrap_a_test_of_its_level() -> None:
    draw = np.random.default_rng(0)
    ours, theirs = [], []
    for seed in range(500):
        before, after = means(*draw.normal(size=(2, 60)))
        drawn = resampled_differences(metric("mean"), before, after[None], resamples=199, seed=seed)[0]
        theirs.append((1 + (np.abs(drawn) - np.abs(drawn).mean() > abs(after.mean() - before.mean())).sum()) / 200)
        ours.append(paired(metric("mean"), before, after[None], test="bootstrap", resamples=199, seed=seed).p[0])
    assert (np.array(ours) <= 0.05).mean() < 0.08
    assert (np.array(theirs) <= 0.05).mean() > 0.085  # sacreBLEU's p, about half of a two-sided one


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("seed", range(4))
def test_mcnemar_is_that_of_statsmodels_and_the_binomial_test_of_scipy(seed: int, alternative: Any) -> None:
    before, after = classified(2, 200, right=0.75, labels=4, seed=seed)
    was, now = (rows[:, 0] == rows[:, 1] for rows in (before, after))
    lost, won = int((was & ~now).sum()), int((~was & now).sum())
    found = paired(metric("accuracy"), before, after[None], test="mcnemar", alternative=alternative, resamples=9).p[0]
    assert found == pytest.approx(scipy.stats.binomtest(won, won + lost, alternative=alternative).pvalue, rel=1e-9)
    if alternative == "two-sided":
        table = [[(was & now).sum(), lost], [won, (~was & ~now).sum()]]
        expected = statsmodels.stats.contingency_tables.mcnemar(table, exact=True).pvalue
        assert found == pytest.approx(expected, rel=1e-9)


def test_as_many_won_as_lost_is_a_p_of_one_by_mcnemar() -> None:
    """Twice the smaller tail would be more than 1: the even split belongs to both."""
    before, after = (np.array([[1.0, guess, 0.0] for guess in guesses]) for guesses in ([1, 0, 1], [0, 1, 1]))
    assert paired(metric("accuracy"), before, after[None], test="mcnemar", resamples=9).p[0] == 1


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize(("name", "column"), [("loss", 2), ("accuracy", None)])
def test_t_is_the_paired_t_test_of_scipy(name: str, column: int | None, alternative: Any) -> None:
    before, after = classified(2, 80)
    values = [rows[:, column] if column else (rows[:, 0] == rows[:, 1]).astype(float) for rows in (before, after)]
    expected = scipy.stats.ttest_rel(values[1], values[0], alternative=alternative).pvalue
    measure = metric(name, columns=("label", "prediction", "loss"))
    found = paired(measure, before, after[None], test="t", alternative=alternative, resamples=9)
    assert found.p[0] == pytest.approx(expected, rel=1e-9)


def test_t_of_a_loss_per_token_tests_the_summed_losses_of_examples() -> None:
    draw = np.random.default_rng(0)
    tokens = draw.integers(1, 30, 60)
    losses = draw.exponential(size=(2, 60)) * tokens
    before, after = (np.stack([loss, tokens], axis=1) for loss in losses)
    found = paired(metric("loss"), before, after[None], test="t", resamples=9)
    assert found.p[0] == pytest.approx(scipy.stats.ttest_rel(*losses).pvalue, rel=1e-9)
    assert found.difference[0] == pytest.approx((losses[1] - losses[0]).sum() / tokens.sum())


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.3, 0.4, 0.7, 0.1, 0.2, 0.3], [1, 1, 1, -1, 1, 0, 1, 1]])
@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_randomization_counts_ties_as_the_exact_test_over_all_swaps_does(values: list[float], alternative: Any) -> None:
    gaps = np.array(values)
    signs = np.array(list(product([1, -1], repeat=len(gaps))))
    drawn, seen = (signs @ gaps).round(9), gaps.sum().round(9)
    tails = {"two-sided": np.abs(drawn) >= abs(seen), "less": drawn <= seen, "greater": drawn >= seen}
    exact = tails[alternative].mean()
    start = np.random.default_rng(1).normal(size=len(gaps))
    before, after = means(start, start + gaps)
    found = paired(metric("mean"), before, after[None], alternative=alternative, resamples=20_000).p[0]
    assert found == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000) + 1e-4)


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews", "pearson", "spearman", "loss"])
def test_swaps_are_the_metric_of_the_mixed_examples(name: str) -> None:
    measure = metric(name, labels=2, columns=("label", "prediction", "loss"))
    rows = classified(3, 30)
    drawn = swapped_differences(measure, rows[0], rows[1:], resamples=20, seed=3)
    swaps = np.random.default_rng(3).integers(2, size=(20, 30), dtype=bool)
    for number, after in enumerate(rows[1:]):
        for draw, swap in enumerate(swaps[:, :, None]):
            mixed = [np.where(swap, after, rows[0]), np.where(swap, rows[0], after)]
            assert drawn[number, draw] == pytest.approx(measure.value(mixed[1]) - measure.value(mixed[0]), abs=1e-12)


@pytest.mark.parametrize("name", ["accuracy", "f1", "spearman", "loss"])
@pytest.mark.parametrize("test", ["randomization", "bootstrap"])
def test_many_alternatives_at_once_give_what_each_gives_alone_however_chunked(
    name: str, test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = metric(name, labels=3, columns=("label", "prediction", "loss"))
    rows = classified(8, 50, labels=3)
    rows[3] = rows[0]
    whole = paired(measure, rows[0], rows[1:], test=test, resamples=100)
    monkeypatch.setattr(paired_tests, "CHUNK", 700)  # two alternatives per product, 32 resamples per draw
    chunked = paired(measure, rows[0], rows[1:], test=test, resamples=100)
    alone = [paired(measure, rows[0], after[None], test=test, resamples=100) for after in rows[1:]]
    for field in ("after", "low", "high", "p"):
        np.testing.assert_allclose(getattr(chunked, field), getattr(whole, field), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose([getattr(one, field)[0] for one in alone], getattr(whole, field), atol=1e-14)
    assert whole.p[2] == 1.0
    assert whole.low[2] == whole.high[2] == 0.0


def _type_one_errors(test: str, alternative: str, rounds: int = 60, models: int = 10) -> np.ndarray:
    """P-values where nothing differs: pairs of models that are right equally often."""
    found = []
    for seed in range(rounds):
        rows = classified(2 * models, 60, right=0.6, labels=5, seed=seed)
        for number in range(models):
            pair = rows[2 * number : 2 * number + 2]
            one = paired(
                metric("accuracy"), pair[0], pair[1:], test=test, alternative=alternative, resamples=99, seed=seed
            )
            found.append(one.p[0])
    return np.array(found)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("alternative", ["two-sided", "less"])
def test_tests_reject_the_truth_as_rarely_as_they_say(test: str, alternative: str) -> None:
    p = _type_one_errors(test, alternative)
    for alpha in (0.05, 0.2):
        wrong = int((p <= alpha).sum())
        assert scipy.stats.binomtest(wrong, len(p), alpha, alternative="greater").pvalue > 0.001
    assert (p <= 0.2).mean() > 0.08, "a test that never rejects would pass as well"


def test_tests_find_a_clear_difference_and_its_direction() -> None:
    rows = classified(2, 400)
    rows[1, :, 1] = np.where(np.random.default_rng(9).random(400) < 0.2, 1 - rows[0, :, 0], rows[0, :, 1])
    for test in TESTS:
        p = {
            side: paired(metric("accuracy"), rows[0], rows[1:], test=test, alternative=side).p[0]
            for side in ALTERNATIVES
        }
        assert p["less"] <= p["two-sided"] <= 0.002
        assert p["greater"] > 0.95


@given(
    values=arrays(np.float64, (2, 12), elements=st.floats(-1e6, 1e6, allow_subnormal=False)),
    test=st.sampled_from(["randomization", "bootstrap", "t"]),
    alternative=st.sampled_from(ALTERNATIVES),
)
def test_p_lies_in_range_whatever_the_values_and_is_one_for_the_same_model(
    values: np.ndarray, test: str, alternative: str
) -> None:
    before, after = means(*values)
    found = paired(metric("mean"), before, np.stack([after, before]), test=test, alternative=alternative, resamples=50)
    assert 0 < found.p[0] <= 1
    assert found.p[1] == 1
    assert found.low[1] == found.high[1] == found.difference[1] == 0
    assert found.low[0] <= found.high[0]


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews", "pearson", "spearman"])
def test_the_interval_holds_the_difference_and_the_value(name: str) -> None:
    measure = metric(name, labels=3)
    rows = classified(6, 120, labels=3)
    found = paired(measure, rows[0], rows[1:], resamples=200)
    assert (found.low < found.difference).all()
    assert (found.difference < found.high).all()
    low, high = interval(measure, rows[0], resamples=200)
    assert low < measure.value(rows[0]) < high


def test_perfect_separation_and_one_example_still_give_a_p() -> None:
    before, after = means([0.0] * 5, [1.0] * 5)
    assert 0 < paired(metric("mean"), before, after[None], test="t").p[0] < 1e-300
    assert paired(metric("mean"), before[:1], after[None, :1], test="t").p[0] == 1.0
    assert paired(metric("mean"), before[:1], after[None, :1]).p[0] == 1.0


def test_the_t_test_of_tiny_gaps_is_that_of_the_same_gaps_made_larger() -> None:
    gaps = np.array([0.3, -0.1, 0.4, 0.2, -0.2, 0.5])
    for size in (1.0, 1e-200, 1e200):  # the squares of the last two are beyond float64
        before, after = means(0 * gaps, size * gaps)
        found = paired(metric("mean"), before, after[None], test="t", resamples=9).p[0]
        assert found == pytest.approx(scipy.stats.ttest_1samp(gaps, 0).pvalue, rel=1e-9)


# --- groups of examples ---------------------------------------------------------------------------------------------


GROUPS = np.array([7, 7, 2, 9, 2, 7, 4, 4, 4, 4, 0, 9] * 3) + np.repeat([0, 20, 40], 12)  # of one to four, mixed up


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews", "pearson", "spearman", "loss"])
def test_groups_are_resampled_and_swapped_whole(name: str) -> None:
    """Each draw is the metric of rows put together by hand: all examples of the groups that were drawn or swapped."""
    measure = metric(name, labels=2, columns=("label", "prediction", "loss"))
    rows = classified(3, len(GROUPS))
    names = list(dict.fromkeys(GROUPS.tolist()))  # in the order in which they occur
    options: dict[str, Any] = {"resamples": 20, "seed": 3, "clusters": GROUPS}
    drawn = resampled_differences(measure, rows[0], rows[1:], **options)
    swapped = swapped_differences(measure, rows[0], rows[1:], **options)
    picks = np.random.default_rng(3).integers(0, len(names), (20, len(names)))
    swaps = np.random.default_rng(3).integers(2, size=(20, len(names)), dtype=bool)
    values = []
    for draw in range(20):
        some = np.concatenate([np.flatnonzero(names[pick] == GROUPS) for pick in picks[draw]])
        moved = np.isin(GROUPS, [one for one, swap in zip(names, swaps[draw], strict=True) if swap])[:, None]
        values.append(measure.value(rows[0][some]))
        for number, after in enumerate(rows[1:]):
            assert drawn[number, draw] == pytest.approx(measure.value(after[some]) - values[-1], abs=1e-12)
            mixed = [np.where(moved, after, rows[0]), np.where(moved, rows[0], after)]
            assert swapped[number, draw] == pytest.approx(measure.value(mixed[1]) - measure.value(mixed[0]), abs=1e-12)
    found = interval(measure, rows[0], **options)
    assert found == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])), abs=1e-12)


@pytest.mark.parametrize("name", ["accuracy", "spearman"])
@pytest.mark.parametrize("test", ["randomization", "bootstrap"])
def test_a_group_for_every_example_changes_nothing_and_neither_do_other_names(name: str, test: str) -> None:
    measure, rows = metric(name), classified(3, len(GROUPS))
    plain = paired(measure, rows[0], rows[1:], test=test, resamples=64)
    each = paired(measure, rows[0], rows[1:], test=test, resamples=64, clusters=1000 - np.arange(len(GROUPS)))
    some = [paired(measure, rows[0], rows[1:], test=test, resamples=64, clusters=one) for one in (GROUPS, -3 * GROUPS)]
    for field in ("after", "low", "high", "p"):
        assert close(getattr(plain, field), getattr(each, field))
        assert close(getattr(some[0], field), getattr(some[1], field))
    assert not close(plain.low, some[0].low)
    alone = interval(measure, rows[0], clusters=np.arange(len(GROUPS)))
    assert close(np.array(interval(measure, rows[0])), np.array(alone))


def test_draws_of_groups_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = classified(3, len(GROUPS))
    whole = swapped_differences(metric("accuracy"), rows[0], rows[1:], resamples=100, clusters=GROUPS)
    monkeypatch.setattr(paired_tests, "CHUNK", 100)
    parts = swapped_differences(metric("accuracy"), rows[0], rows[1:], resamples=100, clusters=GROUPS)
    np.testing.assert_allclose(parts, whole, atol=1e-14)


def test_the_t_test_of_groups_is_that_of_their_sums() -> None:
    before, after = classified(2, len(GROUPS))
    sums = [[rows[one == GROUPS, 2].sum() for one in np.unique(GROUPS)] for rows in (before, after)]
    measure = metric("loss", columns=("label", "prediction", "loss"))
    found = paired(measure, before, after[None], test="t", resamples=9, clusters=GROUPS)
    assert found.p[0] == pytest.approx(scipy.stats.ttest_rel(*sums).pvalue, rel=1e-9)


@pytest.mark.parametrize("test", ["randomization", "bootstrap", "t"])
def test_five_copies_of_each_outcome_deceive_a_test_without_groups_and_no_test_with_them(test: str) -> None:
    """Forty outcomes, each there five times: 200 examples that are worth 40."""
    times, copies = 300, np.repeat(np.arange(40), 5)
    wrong, missed = np.zeros(2), np.zeros(2)
    for seed in range(times):
        rows = classified(2, 40, right=0.6, labels=5, seed=seed)[:, copies]
        for number, clusters in enumerate((None, copies)):
            options: dict[str, Any] = {"resamples": 99, "seed": seed, "clusters": clusters}
            found = paired(metric("accuracy"), rows[0], rows[1:], test=test, **options)
            wrong[number] += found.p[0] <= 0.05
            missed[number] += not found.low[0] <= 0 <= found.high[0]
    limit = 0.05 + 3 * np.sqrt(0.05 * 0.95 / times)
    assert wrong[0] / times > 0.2
    assert wrong[1] / times <= limit
    assert missed[0] / times > 0.2
    # a percentile interval of forty outcomes is a little short, with groups or without
    assert missed[1] / times <= limit + 0.03


# --- many tests and correlations ------------------------------------------------------------------------------------


@given(p=st.lists(st.floats(0, 1) | st.sampled_from([0.01, 0.02, 0.05]), min_size=1, max_size=20))
def test_the_false_discovery_rate_is_that_of_statsmodels(p: list[float]) -> None:
    expected = statsmodels.stats.multitest.multipletests(p, method="fdr_bh")[1]
    tiny = np.finfo(np.float64).tiny  # below it, numbers have fewer digits than a relative tolerance asks for
    np.testing.assert_allclose(benjamini_hochberg(p), expected, rtol=1e-12, atol=tiny)


@pytest.mark.parametrize("n", [1, 3, 20])  # a call of statsmodels' takes a tenth of a second
def test_holms_correction_is_that_of_statsmodels(n: int) -> None:
    p = np.random.default_rng(n).uniform(size=n).round(1)  # with ties
    np.testing.assert_allclose(holm(p), statsmodels.stats.multitest.multipletests(p, method="holm")[1], rtol=1e-12)
    assert len(holm([])) == len(benjamini_hochberg([])) == 0


def test_holms_correction_never_puts_a_greater_p_value_below_a_smaller_one() -> None:
    """3 * 0.03 = 0.09, and the steps after it, 2 * 0.031 and 0.032, would be less."""
    assert holm([0.03, 0.031, 0.032]).tolist() == pytest.approx([0.09, 0.09, 0.09], rel=1e-12)
    assert holm([0.032, 0.5, 0.03, 0.031]).tolist() == pytest.approx([0.12, 0.5, 0.12, 0.12], rel=1e-12)
    p = np.random.default_rng(0).uniform(0.01, 0.02, 50)
    assert (np.diff(holm(p)[np.argsort(p)]) >= 0).all()


@pytest.mark.parametrize("n", [4, 12, 144])
def test_correlations_are_those_of_scipy(n: int) -> None:
    draw = np.random.default_rng(n)
    x = draw.normal(size=n)
    y = (x + draw.normal(size=n)).round(1)
    expected = scipy.stats.pearsonr(x, y)
    found = pearson(x, y, level=0.9)
    assert (found.value, found.p, found.n) == (
        pytest.approx(expected.statistic, rel=1e-12),
        pytest.approx(expected.pvalue, rel=1e-9),
        n,
    )
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.9)), rel=1e-9)
    ranked = spearman(x, y, resamples=200)
    assert ranked.value == pytest.approx(scipy.stats.spearmanr(x, y).statistic, rel=1e-12)
    assert ranked.p == pytest.approx(scipy.stats.spearmanr(x, y).pvalue, rel=1e-9)
    assert -1 <= ranked.low <= ranked.value <= ranked.high <= 1


def test_the_interval_of_a_rank_correlation_is_the_bootstrap_of_scipy_over_pairs() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=40)
    y = x + draw.normal(size=40)
    expected = scipy.stats.bootstrap(
        (x, y),
        lambda a, b: scipy.stats.spearmanr(a, b).statistic,
        n_resamples=200,
        paired=True,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(3),
    ).confidence_interval
    found = spearman(x, y, resamples=200, seed=3)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-10)


def test_correlations_at_their_edges() -> None:
    for found in (pearson([0.1] * 6, range(6)), spearman([0.1] * 6, range(6))):
        assert (found.value, found.low, found.high, found.p) == (0.0, -1.0, 1.0, 1.0)
    for found in (pearson(range(9), range(9)), spearman(range(9), range(9))):
        assert (found.value, found.high) == (pytest.approx(1), pytest.approx(1))
        assert 0 < found.p < 1e-6
    assert str(pearson(range(4), [0, 2, 1, 3])).startswith("pearson 0.80 [-0.")


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.filterwarnings("error")
def test_a_perfect_correlation_has_an_interval_of_one_point_and_no_warning(sign: int) -> None:
    x = np.array([-2, -2, 0, 2, 2])  # whole numbers with a standard deviation of 2: nothing is rounded
    found = pearson(x, sign * x)
    assert (found.value, found.low, found.high) == (sign, sign, sign)


# --- refusals -------------------------------------------------------------------------------------------------------


ROWS = classified(2, 10)


def _ask(measure: Metric | None = None, after: np.ndarray | None = None, **options: Any) -> Any:
    after = ROWS[1:] if after is None else after
    return lambda: paired(measure or metric("accuracy"), ROWS[0], after, **options)


@pytest.mark.parametrize(
    ("ask", "about"),
    [
        (_ask(test="wilcoxon"), "'wilcoxon'"),
        (_ask(alternative="larger"), "'larger'"),
        (_ask(level=95), "95"),
        (_ask(resamples=0), "resamples"),
        (_ask(resamples=10.5), "10.5"),
        (_ask(metric("f1", labels=2), test="mcnemar"), "McNemar"),
        (_ask(metric("spearman"), test="t"), "spearman"),
        (_ask(test="mcnemar", clusters=np.arange(10)), "test='randomization'"),
        (_ask(clusters=np.arange(9)), "10 whole numbers"),
        (_ask(clusters=np.linspace(0, 1, 10)), "float64"),
        (_ask(clusters=np.ones((10, 1), int)), "(10, 1)"),
        (_ask(metric("matthews", labels=2), test="t"), "matthews"),
        (_ask(after=ROWS[1]), "(10, 3)"),
        (_ask(after=ROWS[1:, :9]), "10 examples before and 9"),
        (_ask(after=ROWS[1:, ::-1]), "label"),
        (_ask(after=np.where(ROWS[1:] == ROWS[1, 4, 2], np.inf, ROWS[1:])), "alternative 0"),
        (lambda: interval(metric("mean"), np.ones((5, 1)), level=1.0), "level"),
        (lambda: holm([0.5, 1.5]), "1.5"),
        (lambda: benjamini_hochberg([[0.5]]), "0.5"),
        (lambda: pearson([1, 2], [1, 2, 3]), "(2,) and (3,)"),
        (lambda: spearman([1, np.nan, 2], [1, 2, 3]), "finite"),
        (lambda: pearson([1, 2, 4, 3], [1, 2, 3, 4], level=95), "95"),
        (lambda: spearman([1, 1, 1], [1, 2, 3], level=0.0), "level"),
    ],
)
def test_what_cannot_be_tested_is_refused_in_one_sentence(ask: Any, about: str) -> None:
    with says(BadMeasure, about=about):
        ask()
