"""The promise of `--max-drop`: the tests behind it are what they say, and it is broken no more often than it may be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from conftest import says
from helpers import run_folders
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special, stats

import headcount as hc
from headcount.cli.text import guarantee_text
from headcount.documents.prune import PruneDocument
from headcount.pruning import plan_tests
from headcount.reporting import model_card
from headcount.reporting.sections import pruning
from headcount.stats import betting_bound, guarantee, noninferiority, paired_shares
from headcount.stats.correlation_influence import influences
from headcount.stats.guarantee import TEST_NAMES, fewest, fixed_sequence_test, noninferiority_test, rehearsed_sequence
from headcount.stats.metrics import metric
from headcount.stats.paired_shares import LEFT_OUT, TAIL, exact_p, upper_bound

ACCURACY = metric("accuracy")


def rows_of(right: np.ndarray) -> np.ndarray:
    """Rows of accuracy: label 1, prediction 1 where it is right."""
    right = np.asarray(right, dtype=float)
    return np.stack([np.ones(len(right)), right, np.zeros(len(right))], axis=1)


def counted(lost: int, won: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows before and after, with so many of n examples lost and won and the rest right."""
    was, now = np.ones(n), np.ones(n)
    now[:lost], was[lost : lost + won] = 0, 0
    return rows_of(was), rows_of(now)


@pytest.fixture
def only_p(monkeypatch: pytest.MonkeyPatch) -> None:
    """For simulations: bounds, which they do not ask for, are not looked for, and the p of the same counts is found once."""
    monkeypatch.setattr(betting_bound, "largest_open", lambda *_: 0.0)
    monkeypatch.setattr(noninferiority, "upper_bound", lambda *_: 0.0)
    monkeypatch.setattr(noninferiority, "exact_p", cache(exact_p))


# -- the exact test ------------------------------------------------------------------------------------------------------


def statistic(lost: int, won: int, n: int, margin: float) -> float:
    """The score statistic from its definition: the likelihood, maximised by search where the loss is the margin."""

    counts = np.array([lost, won, n - lost - won])

    def surprise(gained: Any) -> Any:
        shares = np.stack([gained + margin, gained, 1 - 2 * gained - margin], axis=-1)
        return -special.xlogy(counts, np.maximum(shares, 1e-300)).sum(axis=-1)

    top = (1 - margin) / 2
    grid = np.linspace(0, top, 2001)
    near = grid[surprise(grid).argmin()]
    lower, upper = max(0.0, near - top / 1000), min(top, near + top / 1000)
    gained = optimize.minimize_scalar(surprise, bounds=(lower, upper), method="bounded", options={"xatol": 1e-12}).x
    return (lost - won - n * margin) / math.sqrt(n * (2 * gained + margin * (1 - margin)))


@pytest.mark.parametrize(
    ("lost", "won", "n", "margin"),
    [
        *[(1, 2, 14, 0.2), (0, 1, 12, 0.15), (3, 3, 16, 0.3)],
        (4, 5, 12, 0.05),  # largest where the fewest are gained that those won leave open
        (0, 0, 17, 0.2),  # and where the most are
        (1, 7, 8, 0.3),  # where no example stays as it was
    ],
)
def test_the_exact_p_is_the_probability_of_all_counts_at_least_as_good(
    lost: int, won: int, n: int, margin: float
) -> None:
    seen = statistic(lost, won, n, margin)
    every = [(x, y) for x in range(n + 1) for y in range(n - x + 1)]
    as_good = np.array([(x, y, n - x - y) for x, y in every if statistic(x, y, n, margin) <= seen + 1e-5])
    low = stats.beta.ppf(LEFT_OUT / 2, won, n - won + 1) if won else 0.0
    high = min(stats.beta.ppf(1 - LEFT_OUT / 2, won + 1, n - won), (1 - margin) / 2)
    worst = max(
        stats.multinomial.pmf(as_good, n, [g + margin, g, max(0.0, 1 - 2 * g - margin)]).sum()
        for g in np.linspace(low, high, paired_shares.GRID)
    )
    assert exact_p(lost, won, n, margin) == pytest.approx(worst + LEFT_OUT + 2 * TAIL, rel=1e-6)


def test_no_count_that_matters_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are looked at as far as any of the shares searched makes them likely; what is beyond is in the tails."""
    cases = [(40, 46, 200, 0.0), (39, 33, 150, 0.001), (19, 33, 600, 0.0)]
    found = [exact_p(*case) for case in cases]
    monkeypatch.setattr(paired_shares, "_range", lambda n, share: (0, n))
    assert found == pytest.approx([exact_p(*case) for case in cases], abs=2 * TAIL)


@pytest.mark.parametrize("share", [0.0, 1e-5, 0.01, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 10, 1000, 1_000_000])
def test_the_counts_that_are_looked_at_are_few_and_leave_out_no_more_than_the_tails(n: int, share: float) -> None:
    first, last = paired_shares._range(n, share)
    count = stats.binom(n, share)
    assert max(count.cdf(first - 1), count.sf(last)) <= TAIL
    assert last - first <= 14 * count.std() + 60


def test_what_is_left_out_speaks_against_us() -> None:
    """Both tails and the shares that are not searched are added, where all else is as good as impossible."""
    assert exact_p(0, 500, 1000, 0.1) == pytest.approx(LEFT_OUT + 2 * TAIL, abs=1e-12)


@pytest.mark.parametrize(("n", "margin", "alpha"), [(30, 0.1, 0.05), (45, 0.2, 0.05), (40, 0.05, 0.2)])
def test_the_exact_test_errs_no_more_often_than_it_says_wherever_the_truth_lies(
    n: int, margin: float, alpha: float
) -> None:
    every = [(x, y) for x in range(n + 1) for y in range(n - x + 1)]
    shown = np.array([(x, y, n - x - y) for x, y in every if exact_p(x, y, n, margin) <= alpha])
    errors = []
    for gained in np.linspace(0, (1 - margin) / 2, 101):
        for more in (0.0, 0.03):  # a loss of the margin, and of more than it
            if 2 * gained + margin + more <= 1:
                share = [gained + margin + more, gained, 1 - 2 * gained - margin - more]
                errors.append(stats.multinomial.pmf(shown, n, share).sum())
    assert max(errors) <= alpha
    assert max(errors) > alpha / 2, "and it is not so careful that it never shows anything"


@pytest.mark.parametrize("margin", [0.005, 0.01, 0.03])
def test_fewer_examples_than_the_fewest_show_nothing(margin: float) -> None:
    n = fewest(margin, 0.05)
    assert exact_p(0, 0, n, margin) <= 0.05 < exact_p(0, 0, n - 1, margin)


def test_all_lost_is_never_shown() -> None:
    for n in (1, 10, 500):
        assert exact_p(n, 0, n, 0.999) > 0.5
        assert exact_p(n, 0, n, 1.0) == 1.0
    assert exact_p(0, 50, 50, 0.0) < 1e-3, "and all won is no loss"


@pytest.mark.parametrize("n", [100, 298, 299])
def test_with_nothing_changed_it_is_the_chance_that_a_loss_of_the_margin_stays_unseen(n: int) -> None:
    assert exact_p(0, 0, n, 0.01) == pytest.approx(0.99**n, abs=2 * LEFT_OUT)
    assert (exact_p(0, 0, n, 0.01) <= 0.05) == (n >= fewest(0.01, 0.05))


def test_the_bound_is_where_the_test_turns() -> None:
    for lost, won, n in [(0, 0, 200), (12, 7, 400), (30, 41, 900)]:
        bound = upper_bound(lost, won, n, 0.05)
        assert exact_p(lost, won, n, bound) <= 0.05
        assert exact_p(lost, won, n, bound - 0.02 / n) > 0.05
        shown = noninferiority_test(ACCURACY, *counted(lost, won, n), drop=100 * bound)
        assert shown.test == "exact"
        assert shown.damage == pytest.approx(100 * (lost - won) / n)
        assert shown.p <= 0.05


def test_without_a_margin_it_asks_what_mcnemar_asks() -> None:
    """z^2 is McNemar's chi-square, (lost - won)^2 / (lost + won)."""
    for lost, won in [(9, 2), (4, 4), (1, 7)]:
        z = float(paired_shares._statistic(np.array(lost), np.array(won), 50, 0.0))
        assert z == pytest.approx((lost - won) / math.sqrt(lost + won))


def test_shares_that_should_be_small_and_means_of_other_numbers() -> None:
    """An error rate is tested like an accuracy; a mean of other values is not a share of examples."""
    was, now = counted(5, 2, 300)
    errors = metric("mean", higher_is_better=False)
    exact = noninferiority_test(ACCURACY, was, now, 3.0)
    same = noninferiority_test(errors, 1 - was[:, 1:2], 1 - now[:, 1:2], 0.03)
    assert same.test == "exact"
    assert (same.p, same.damage * 100) == (exact.p, pytest.approx(exact.damage))
    assert noninferiority_test(errors, 2 - was[:, 1:2], 2 - now[:, 1:2], 0.03).test == "bounded"


# -- the bootstrap -------------------------------------------------------------------------------------------------------


def skewed(kind: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Losses that one example in twenty raises, by 1 on average: 0.05 in the mean."""
    was = rng.exponential(0.3, n)
    now = was + np.where(rng.random(n) < 0.05, rng.exponential(1.0, n), 0.0)
    if kind == "tokens":  # loss per token, over examples of all lengths
        tokens = rng.integers(5, 200, n).astype(float)
        return np.stack([was * tokens, tokens], axis=1), np.stack([now * tokens, tokens], axis=1)
    labels = np.zeros(n) if kind == "one label" else rng.normal(size=n)
    return tuple(np.stack([labels, np.zeros(n), values], axis=1) for values in (was, now))  # type: ignore[return-value]


def errors_of_the_bootstrap(kind: str, repetitions: int, n: int) -> float:
    columns = ("loss", "tokens") if kind == "tokens" else ("label", "prediction", "loss")
    rng, loss = np.random.default_rng(3), metric("loss", columns=columns)
    shown = [
        noninferiority_test(loss, *skewed(kind, n, rng), drop=0.05, resamples=300, seed=seed, cap=math.inf).p <= 0.05
        for seed in range(repetitions)
    ]
    return sum(shown) / repetitions


@pytest.mark.parametrize("kind", ["one label", "labels of their own", "tokens"])
def test_the_bootstrap_errs_no_more_often_than_it_says_on_few_skewed_examples(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    assert errors_of_the_bootstrap(kind, 400, 60) <= limit
    # without the one bad example, it takes what it has not seen for what is not there
    monkeypatch.setattr(noninferiority, "_one_bad_example", lambda measure, before, after: (before[:0], after[:0]))
    assert errors_of_the_bootstrap(kind, 400, 60) > limit


@pytest.mark.parametrize("name", ["f1", "matthews", "bleu", "loss", "loss per token", "pearson", "spearman"])
def test_no_change_at_all_shows_little_on_few_examples_and_more_on_many(name: str) -> None:
    rng = np.random.default_rng(0)

    def bound(n: int) -> float:
        labels = rng.integers(0, 2, n).astype(float)
        if name == "bleu":
            hits = rng.integers(1, 9, n)
            rows = np.stack([np.full(n, 9), np.full(n, 9), *(np.maximum(hits - k, 0) for k in range(4))], axis=1)
            rows = np.concatenate([rows, np.tile([9, 8, 7, 6], (n, 1))], axis=1).astype(float)
            measure = metric("bleu")
        else:
            guess = np.where(rng.random(n) < 0.85, labels, 1 - labels)
            if name in ("pearson", "spearman", "loss"):
                labels = rng.normal(size=n)  # no two alike
                guess = labels + rng.normal(0, 0.7, n)
            rows = np.stack([labels, guess, rng.exponential(0.4, n)], axis=1)
            measure = metric(name.split()[0], labels=2, columns=("label", "prediction", "loss"))
            if name == "loss per token":
                tokens = rng.permutation(n) + 3.0
                rows = np.stack([rng.exponential(0.4, n) * tokens, tokens], axis=1)
                measure = metric("loss")
        found = noninferiority_test(measure, rows, rows, 1.0, resamples=1000)
        assert found.damage == 0
        return found.bound

    few, many = bound(50), bound(800)
    assert few > 4 * many > 0


@pytest.mark.parametrize(("n", "resamples"), [(3, 10_000), (80_000, 2500), (100_000, 2000), (110_000, 2000)])
def test_of_few_examples_ten_thousand_resamples_are_drawn_and_of_very_many_no_fewer_than_two_thousand(
    n: int, resamples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()

    def none_is_worse(*_: Any, resamples: int, seed: int, clusters: None) -> np.ndarray:
        asked.append(resamples)
        return np.zeros((1, resamples))

    monkeypatch.setattr(noninferiority, "resampled_differences", none_is_worse)
    rows = np.linspace(0, 1, n)[:, None]
    found = noninferiority_test(metric("mean"), rows, rows, 1.0, cap=math.inf)
    assert asked == [resamples]
    assert found.p == 1 / (1 + resamples), "no p is smaller than the draws can show"


def test_a_loss_of_exactly_the_drop_is_not_shown() -> None:
    """Every example loses 1, so that every resample does: what is shown is that less is lost."""
    was, now = np.full((40, 1), 3.0), np.full((40, 1), 2.0)
    assert noninferiority_test(metric("mean"), was, now, 1.0, resamples=99).p == 1
    assert noninferiority_test(metric("mean"), was, now, 1.5, resamples=99, cap=math.inf).p == 1 / 100


# -- betting -------------------------------------------------------------------------------------------------------------


def in_turn(damages: np.ndarray, weights: np.ndarray, margin: float, bets: list[float]) -> float:
    """The most ever held, one example after the other: the definition."""
    money = most = 1.0
    for damage, weight, bet in zip(damages, weights, bets, strict=True):
        money *= 1 - bet * (damage - margin * weight)
        most = max(most, money)
    return most


def test_the_money_is_that_of_bets_placed_one_after_the_other_and_no_bet_looks_ahead() -> None:
    rng = np.random.default_rng(0)
    damages, weights = np.clip(rng.normal(0.1, 0.5, 40), -1, 1), rng.integers(1, 5, 40).astype(float)
    margin, cap, alpha = 0.2, 1.0, 0.05
    bets = list[float]()
    goal = -math.log(alpha)
    for place in range(40):  # each from what came before it alone
        over = damages[:place] - margin * weights[:place]
        log_money = np.cumsum(np.log1p(-np.array(bets) * over)) if place else np.zeros(1)
        reached = math.floor(max(0.0, log_money.max()) / goal)
        chance = float(np.clip(math.exp(log_money[-1] - goal * (1 + reached)), 1e-6, 1 - 1e-12))
        squares = float(((over - over.mean()) ** 2).sum()) if place else 0.0
        spread = math.sqrt((5 * margin * weights.mean() * cap + squares) / (place + 5) * (40 - place))
        bets.append(min(0.9 / cap, stats.norm.pdf(stats.norm.ppf(chance)) / chance / spread))
    assert min(bets) < 0.9 / cap, "some bets are not the largest"
    assert betting_bound.p_value(damages, weights, margin, cap, alpha) == pytest.approx(
        1 / in_turn(damages, weights, margin, bets), rel=1e-9
    )


def test_the_largest_margin_that_is_open_is_where_betting_turns() -> None:
    rng = np.random.default_rng(1)
    damages, ones = np.clip(rng.normal(0.02, 0.3, 400), -1, 1), np.ones(400)
    for alpha in (0.05, 0.0025):
        bound = betting_bound.largest_open(damages, ones, 1.0, alpha)
        assert betting_bound.p_value(damages, ones, bound, 1.0, alpha) <= alpha
        assert betting_bound.p_value(damages, ones, bound - 1e-3, 1.0, alpha) > alpha
        assert 0.02 < bound < 0.02 + 5 * 0.3 / 20
    nothing = betting_bound.largest_open(np.zeros(400), ones, 1.0, 0.05)
    fewest = betting_bound.fewest(nothing, 1.0, 1.0, 0.05)
    assert fewest == pytest.approx(400, rel=0.02)
    assert betting_bound.p_value(np.zeros(fewest), np.ones(fewest), nothing, 1.0, 0.05) <= 0.05 + 1e-3


SHAPES = {  # damages, and a cap at which their mean is known
    "1 % lose 20": (lambda luck: np.where(luck < 0.01, 20.0, 0.0), 20.0, 0.2),
    "1 % lose 20, capped": (lambda luck: np.where(luck < 0.01, 20.0, 0.0), 5.0, 0.05),
    "2 % lognormal": (
        lambda luck: np.where(luck < 0.02, np.exp(1.5 * special.ndtri(np.clip(luck / 0.02, 1e-12, 1))), 0.0),
        *(
            20.0,
            0.02 * (math.exp(1.125) * special.ndtr(math.log(20) / 1.5 - 1.5) + 20 * special.ndtr(-math.log(20) / 1.5)),
        ),
    ),
    "5 % exponential": (
        lambda luck: np.where(luck < 0.05, -np.log(np.clip(luck / 0.05, 1e-300, 1)), 0.0),
        *(3.0, 0.05 * (1 - math.exp(-3))),
    ),
    "normal": (lambda luck: 0.05 + 0.3 * special.ndtri(luck), 3.0, 0.05),
    "all or nothing": (lambda luck: np.where(luck < 0.5, 1.0, -1.0), 1.0, 0.0),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [100, 500])
def test_betting_errs_no_more_often_than_it_says_whatever_the_tails(shape: str, n: int) -> None:
    damages, cap, mean = SHAPES[shape]
    rng, times = np.random.default_rng(11), 1000
    middle = (np.arange(1_000_000) + 0.5) / 1_000_000
    assert np.clip(damages(middle), -cap, cap).mean() == pytest.approx(mean, rel=0.01, abs=1e-9)
    drawn = np.clip(damages(rng.random((times, n))), -cap, cap)
    for alpha in (0.05, 0.0025):
        most = betting_bound.most_held(drawn, np.ones(n), np.full(times, mean), cap, alpha)
        shown = float((most >= -math.log(alpha)).mean())
        assert shown <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / times)


def test_betting_shows_nearly_what_a_test_of_normal_examples_shows() -> None:
    """With 1000 of them and room for three standard errors, where the z-test shows nine of ten."""
    rng, times, n = np.random.default_rng(2), 200, 1000
    margin = 3 * 0.3 / math.sqrt(n)
    drawn = np.clip(rng.normal(0, 0.3, (times, n)), -1, 1)
    most = betting_bound.most_held(drawn, np.ones(n), np.full(times, margin), 1.0, 0.05)
    assert (most >= math.log(20)).mean() > 0.8


LOSS = metric("mean", higher_is_better=False)


def test_the_usual_cap_is_twenty_drops_and_what_is_beyond_it_is_counted_and_told() -> None:
    rng = np.random.default_rng(0)
    was = rng.exponential(0.3, (500, 1))
    now = was.copy()
    now[:3] += 4.0
    now[3] -= 4.0
    found = noninferiority_test(LOSS, was, now, 0.05)
    assert (found.test, found.cap, found.beyond) == ("bounded", 1.0, 4)
    assert found.damage == pytest.approx(8 / 500), "what was measured has no cap"
    held = fixed_sequence_test(LOSS, was, [(1, was), (2, now)], 0.05)
    assert (held.cap, [step.beyond for step in held.steps]) == (1.0, [0, 4])
    promise = "loses less than 0.05 in mean, no example counted for more than 1, 95 % sure, shown on 500 examples"
    assert str(held) == f"{promise}, bounded by a betting test"
    assert noninferiority_test(LOSS, was, now, 0.05, cap=5.0).beyond == 0
    tokens = np.stack([was[:, 0] * 23, np.full(500, 23.0)], axis=1)  # of 20 tokens, to one digit
    assert noninferiority_test(metric("loss"), tokens, tokens, 0.05).cap == 20.0
    assert str(fixed_sequence_test(metric("loss"), tokens, [(1, tokens)], 0.05)).count(
        "no example counted for more than 20 nats"
    )
    assert noninferiority_test(LOSS, was, now, 0.05, clusters=np.arange(500) // 5).cap == 5.0, "of a group of five"


def test_a_cap_never_makes_a_promise_easier() -> None:
    """Few examples lose much more than any cap allows: what counts for little then still counts without one."""
    was = np.random.default_rng(0).exponential(0.3, (300, 1))
    now = was.copy()
    now[:2] += 20.0
    plain = noninferiority_test(LOSS, was, now, 0.2, cap=math.inf)
    for cap in (0.1, 4.0, None):
        capped = noninferiority_test(LOSS, was, now, 0.2, cap=cap)
        assert capped.p >= plain.p > 0.05
        assert capped.bound >= plain.bound


def test_a_perplexity_is_bounded_by_its_logarithm() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(10, 60, 400).astype(float)
    before = np.stack([tokens * rng.gamma(8, 3 / 8, 400), tokens], axis=1)
    after = before + np.stack([tokens * rng.normal(0.01, 0.05, 400), np.zeros(400)], axis=1)
    loss, perplexity = metric("loss"), metric("perplexity")
    value = perplexity.value(before)
    drop = value * math.expm1(0.1)  # a tenth of a nat per token
    logs = noninferiority_test(loss, before, after, 0.1, cap=60.0)
    found = noninferiority_test(perplexity, before, after, drop, cap=60.0)
    assert found.test == "bounded"
    assert (found.cap, found.beyond) == (logs.cap, logs.beyond)
    alone = [
        noninferiority._by_betting(one, before, after, limit, 0.05, None, 1, 60.0)
        for one, limit in ((loss, 0.1), (perplexity, drop))
    ]
    assert alone[1].p == pytest.approx(alone[0].p)
    assert alone[1].bound == pytest.approx(value * math.expm1(alone[0].bound))
    assert f"in perplexity (a factor of {math.exp(0.1):.4g}), no example" in str(
        fixed_sequence_test(perplexity, before, [(1, after)], drop)
    )


@pytest.mark.usefixtures("only_p")
def test_a_promise_about_perplexity_is_broken_no_more_often_than_it_says() -> None:
    """0.05 nats per token more, for long texts more than for short ones, against the absolute rise that this is."""
    rng, times, wrong = np.random.default_rng(8), 100, 0
    lengths = np.arange(5, 200).astype(float)
    ratio = (lengths**2).mean() / lengths.mean()
    for seed in range(times):
        tokens = rng.integers(5, 200, 300).astype(float)
        was = tokens * rng.gamma(8.0, 3 / 8, 300)
        now = was + tokens**2 * rng.exponential(1.0, 300) * 0.05 / ratio
        rows = [np.stack([one, tokens], axis=1) for one in (was, now)]
        drop = math.exp(3.05) - math.exp(3.0)
        wrong += noninferiority_test(metric("perplexity"), *rows, drop, resamples=200, seed=seed).p <= 0.05
    assert wrong / times <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / times)


# -- groups --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_p")
def test_five_copies_of_each_outcome_break_a_promise_that_does_not_know_them_and_none_that_does() -> None:
    rng, times, broken_promises = np.random.default_rng(4), 100, np.zeros(2)
    groups = np.arange(1000) // 5
    for seed in range(times):
        luck = rng.random(200).repeat(5)
        was, now = rows_of(luck >= 0.02), rows_of((luck < 0.02) | (luck >= 0.06))  # two points lost
        for number, clusters in enumerate((None, groups)):
            found = noninferiority_test(ACCURACY, was, now, 2.0, seed=seed, clusters=clusters)
            assert found.test == ("exact" if clusters is None else "bounded")
            broken_promises[number] += found.p <= 0.05
    assert broken_promises[0] / times > 0.15
    assert broken_promises[1] / times <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / times)


def test_groups_of_one_are_no_groups() -> None:
    was, now = counted(5, 2, 300)
    assert noninferiority_test(ACCURACY, was, now, 3.0, clusters=np.arange(300)) == noninferiority_test(
        ACCURACY, was, now, 3.0
    )


@pytest.mark.parametrize("name", ["f1", "pearson", "spearman", "loss"])
def test_a_promise_about_groups_of_copies_is_that_about_one_of_each(name: str) -> None:
    """Three copies of each example in one group are drawn as the one example is; the bad one comes three times, too."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 80).astype(float)
    guesses = np.where(rng.random((2, 80)) < (0.9, 0.85)[0], labels, 1 - labels)
    if name in ("pearson", "spearman"):
        labels = rng.normal(size=80)
        guesses = labels + rng.normal(0, (0.5, 0.6), (80, 2)).T
    measure = metric(name, labels=2, columns=("label", "prediction", "loss"))
    rows = [np.stack([labels, guess, rng.exponential(0.5, 80)], axis=1) for guess in guesses]
    alone = noninferiority_test(measure, *rows, 5.0, resamples=300)
    copied = [one.repeat(3, axis=0) for one in rows]
    grouped = noninferiority_test(measure, *copied, 5.0, resamples=300, clusters=np.arange(240) // 3)
    for field in ("damage", "bound", "p", "spread"):
        assert getattr(grouped, field) == pytest.approx(getattr(alone, field), rel=1e-6), field


# -- correlations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize("ties", [False, True])
def test_influences_are_what_leaving_an_example_out_changes(name: str, ties: bool) -> None:
    rng = np.random.default_rng(0)
    labels = rng.normal(size=400)
    guesses = labels + rng.normal(0, 0.7, 400)
    if ties:
        labels, guesses = labels.round(0), guesses.round(1)
    rows = np.stack([labels, guesses, np.zeros(400)], axis=1)
    measure = metric(name)
    left_out = measure.resampled(rows, 1 - np.eye(400))
    jackknife = 399 * (measure.value(rows) - left_out)
    found = influences(labels, guesses, ranked=name == "spearman")
    np.testing.assert_allclose(found, jackknife, atol=0.03 * np.abs(jackknife).max())
    assert abs(found.mean()) < 0.01


def of_shape(shape: str, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.normal(size=n)
    was = labels + 0.5 * rng.normal(size=n)
    if shape == "normal":
        now = was + 0.3 * rng.normal(size=n)
    elif shape == "flipped":
        now = np.where(rng.random(n) < 0.03, -1.5 * was, was)
    else:
        now = was + 0.25 * rng.standard_t(3, size=n)
    return tuple(np.stack([labels, one, np.zeros(n)], axis=1) for one in (was, now))  # type: ignore[return-value]


# Pearson's by its formula, Spearman's from two million examples
FALLS = {"normal": (3.056, 3.26), "flipped": (8.217, 6.39), "heavy": (6.037, 5.12)}


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize("shape", FALLS)
@pytest.mark.parametrize("n", [200, *(pytest.param(n, marks=pytest.mark.slow) for n in (500, 1000))])
def test_a_promise_about_a_correlation_is_broken_no_more_often_than_it_says(name: str, shape: str, n: int) -> None:
    rng, times, measure = np.random.default_rng(6), 100, metric(name)
    fall = FALLS[shape][name == "spearman"]
    wrong = sum(
        noninferiority_test(measure, *of_shape(shape, rng, n), fall, resamples=200, seed=seed).p <= 0.05
        for seed in range(times)
    )
    assert wrong / times <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / times)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_fall_of_one_point_can_be_shown_on_as_many_examples_as_people_have(name: str) -> None:
    before, _ = of_shape("normal", np.random.default_rng(0), 675)
    found = fixed_sequence_test(metric(name), before, [(1, before)], 1.1)
    assert found.removed == 1
    assert found.least is not None
    assert 0.5 < found.least == found.steps[0].bound < 1.1
    assert noninferiority_test(metric(name), before, before, 0.9 * found.least).p > 0.05


# -- the sequence --------------------------------------------------------------------------------------------------------


class Synthetic:
    """Models without more and more units: each loses and wins examples at random with known probabilities."""

    def __init__(self, losses: list[float], wins: list[float]) -> None:
        self.losses, self.wins = losses, wins

    def true_drops(self) -> list[float]:
        """Points lost by each, on all the examples that there could be: nine of ten are right before."""
        return [100 * (0.9 * lose - 0.1 * win) for lose, win in zip(self.losses, self.wins, strict=True)]

    def measured(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, list[np.ndarray]]:
        was, luck = rng.random(n) < 0.9, rng.random((2, n))  # nested: what one plan loses the next loses too
        afters = [
            np.where(was, luck[0] >= lose, luck[1] < win) for lose, win in zip(self.losses, self.wins, strict=True)
        ]
        return rows_of(was), [rows_of(after) for after in afters]


MODELS = [
    Synthetic([0.005, 0.01, 0.035, 0.035, 0.036, 0.04], [0.0, 0.05, 0.115, 0.115, 0.12, 0.1]),  # hovers at the limit
    Synthetic([0.0225, 0.03, 0.2], [0.0, 0.05, 0.1]),  # the first plan is at the limit already
]
DROP, ALPHA, N = 2.0, 0.1, 250


def broken(model: Synthetic, choose: str, repetitions: int) -> float:
    """How often the plan that was chosen loses the largest drop or more, in truth."""
    rng, drops, count = np.random.default_rng(7), model.true_drops(), 0
    for _ in range(repetitions):
        before, afters = model.measured(N, rng)
        plans = list(enumerate(afters, 1))
        if choose == "sequence":
            removed = fixed_sequence_test(ACCURACY, before, plans, DROP, alpha=ALPHA).removed
        elif choose == "best of all":  # every plan tested, the largest that passes taken
            passed = [
                n for n, after in plans if noninferiority_test(ACCURACY, before, after, DROP, alpha=ALPHA).p <= ALPHA
            ]
            removed = max(passed, default=0)
        else:  # no test: the largest that measured well
            value = ACCURACY.value(before)
            removed = max([n for n, after in plans if 100 * (value - ACCURACY.value(after)) <= DROP], default=0)
        count += removed > 0 and drops[removed - 1] >= DROP - 1e-9
    return count / repetitions


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.usefixtures("only_p")
def test_the_promise_is_broken_in_at_most_alpha_of_the_repetitions(number: int) -> None:
    times, model = 600, MODELS[number]
    assert any(drop >= DROP - 1e-9 for drop in model.true_drops()), "there is something to be wrong about"
    kept = broken(model, "sequence", times)
    assert kept <= ALPHA + 2.5 * math.sqrt(ALPHA * (1 - ALPHA) / times)
    assert broken(model, "measured", times) > 2 * ALPHA, "and without a test it would be broken far more often"


class Independent(Synthetic):
    """Models that lose other examples each: of several tests of them, one more easily passes by chance."""

    def measured(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, list[np.ndarray]]:
        was = rng.random(n) < 0.9
        pairs = zip(self.losses, self.wins, strict=True)
        return rows_of(was), [rows_of(np.where(was, rng.random(n) >= lose, rng.random(n) < win)) for lose, win in pairs]


MANY = Synthetic([0.004, 0.008, 0.012, 0.016, 0.02, *[0.035] * 5, *[0.06] * 6], [0.0] * 5 + [0.115] * 5 + [0.1] * 6)
ALL_TOO_DEAR = Independent([0.0225] * 16, [0.0] * 16)


def broken_after_rehearsal(model: Synthetic, repetitions: int, *, apart: bool, n: int = N) -> float:
    """How often the plan chosen after a rehearsal loses too much; `apart`: on other examples than those of the test.

    Otherwise the plan is the one that bisection ends with on the very examples that should show it.
    """
    rng, drops, count = np.random.default_rng(11), model.true_drops(), 0
    for _ in range(repetitions):
        before, afters = model.measured(n, rng)
        rehearsal = model.measured(n, rng) if apart else (before, afters)

        passed = [-1]

        def holds(place: int, rehearsal: Any = rehearsal, passed: list[int] = passed) -> bool:
            shown = noninferiority_test(ACCURACY, rehearsal[0], rehearsal[1][place], DROP, alpha=ALPHA).p <= ALPHA
            passed += [place] * shown
            return shown

        places = rehearsed_sequence(len(afters), holds)
        if apart:
            plans = [(place + 1, afters[place]) for place in places]
            removed = fixed_sequence_test(ACCURACY, before, plans, DROP, alpha=ALPHA).removed
        else:
            removed = 1 + max(passed)
        count += removed > 0 and drops[removed - 1] >= DROP - 1e-9
    return count / repetitions


@pytest.mark.parametrize("model", [MANY, ALL_TOO_DEAR])
@pytest.mark.usefixtures("only_p")
def test_a_sequence_chosen_by_a_rehearsal_on_other_examples_keeps_the_promise(model: Synthetic) -> None:
    times = 400
    limit = ALPHA + 2.5 * math.sqrt(ALPHA * (1 - ALPHA) / times)
    assert broken_after_rehearsal(model, times, apart=True) <= limit


@pytest.mark.usefixtures("only_p")
def test_a_search_on_the_examples_of_the_test_would_break_it() -> None:
    many = Independent([0.0225] * 255, [0.0] * 255)
    assert broken_after_rehearsal(many, 100, apart=False, n=1000) > 2 * ALPHA


@given(st.integers(1, 300), st.integers(-1, 300))
def test_a_rehearsal_looks_at_few_plans_and_leaves_out_only_mild_ones(of: int, last: int) -> None:
    looked = list[int]()
    places = rehearsed_sequence(of, lambda place: (looked.append(place), place <= last)[1])
    assert len(looked) <= of.bit_length()
    assert places == sorted(set(places))
    assert set(places) <= set(range(of))
    assert places[0] == 0, "the mildest, or a promise that could be made might not be"
    last = min(last, of - 1)
    assert set(range(max(0, last - 3), of)) <= set(places)
    assert of <= 6 or len([place for place in places if place <= last]) <= 6


@pytest.mark.usefixtures("only_p")
def test_taking_the_largest_that_passes_would_break_it() -> None:
    """Plans that cost alike, tested again and again: one of them passes by luck. The sequence has stopped by then."""
    rng, times, count = np.random.default_rng(1), 250, {"sequence": 0, "any": 0}
    for _ in range(times):
        was = rng.random(N) < 0.9
        before = rows_of(was)
        # ten plans at the limit, each losing other examples
        afters = [rows_of(was & (rng.random(N) >= 0.0225)) for _ in range(10)]
        count["sequence"] += (
            fixed_sequence_test(ACCURACY, before, list(enumerate(afters, 1)), DROP, alpha=ALPHA).removed > 0
        )
        count["any"] += any(
            noninferiority_test(ACCURACY, before, after, DROP, alpha=ALPHA).p <= ALPHA for after in afters
        )
    assert count["sequence"] / times <= ALPHA + 2.5 * math.sqrt(ALPHA * (1 - ALPHA) / times)
    assert count["any"] / times > 2.5 * ALPHA


@pytest.mark.usefixtures("only_p")
def test_the_promise_holds_for_a_mean_also_when_it_is_read_without_its_cap() -> None:
    """Three plans whose losses rise by 0.01, 0.05 (the limit) and 0.06 per example: the second is the one not to show."""
    rng, loss, times, count = np.random.default_rng(5), metric("mean", higher_is_better=False), 100, 0
    for number in range(times):
        was = rng.exponential(0.3, (120, 1))
        hit = rng.random((120, 1))
        afters = [was + np.where(hit < share, rng.exponential(1.0, (120, 1)), 0.0) for share in (0.01, 0.05, 0.06)]
        found = fixed_sequence_test(
            loss, was, list(enumerate(afters, 1)), 0.05, alpha=ALPHA, resamples=200, seed=number
        )
        count += found.removed > 1
    assert count / times <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / times)


def test_it_stops_at_the_first_that_cannot_be_shown_and_measures_no_more() -> None:
    n, seen = 600, []

    def plans() -> Iterator[tuple[int, np.ndarray]]:
        for removed, lost in [(3, 0), (6, 2), (9, 60), (12, 0)]:  # the fourth would pass
            seen.append(removed)
            yield removed, counted(lost, 0, n)[1]

    found = fixed_sequence_test(ACCURACY, rows_of(np.ones(n)), plans(), 1.5)
    assert seen == [3, 6, 9]
    assert [step.shown for step in found.steps] == [True, True, False]
    assert (found.removed, found.kept, found.stopped) == (6, found.steps[1], found.steps[2])
    assert found.needed is None, "it costs more than is allowed: no number of examples would show that it does not"
    assert "loses less than 1.5 points, 95 % sure" in str(found)
    told = found.to_json()
    assert (told["removed"], told["sentence"], len(told["steps"])) == (6, str(found), 3)


def test_the_number_of_examples_that_would_be_needed_is_about_right() -> None:
    """With as many as it says, the same costs are shown in about four of five tries."""
    before, after = counted(4, 3, 200)  # 0.5 points lost, with 3.5 % of the examples changed
    found = fixed_sequence_test(ACCURACY, before, [(1, after)], 1.5)
    assert found.removed == 0
    assert found.needed is not None
    rng, shown = np.random.default_rng(0), 0
    for _ in range(200):
        lost, won, _ = rng.multinomial(found.needed, [0.02, 0.015, 0.965])
        shown += exact_p(int(lost), int(won), found.needed, 0.015) <= 0.05
    assert 0.75 <= shown / 200 <= 0.92
    same = rows_of(np.ones(100))
    nothing = fixed_sequence_test(ACCURACY, same, [(1, same)], 1.0)
    assert nothing.needed is not None
    assert nothing.needed >= fewest(0.01, 0.05) == 299


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (3, 0), (0, 3), (4, 3)])
def test_the_spread_of_a_difference_is_that_of_its_counts_with_half_an_example_more_on_each_side(
    lost: int, won: int
) -> None:
    """Losses are 1, gains -1 and the others 0: their standard deviation over the root of n, in points."""
    n = 50
    counts = np.array([lost + 0.5, won + 0.5, n - lost - won - 1])
    mean, square = np.average([1, -1, 0], weights=counts), np.average([1, 1, 0], weights=counts)
    spread = noninferiority_test(ACCURACY, *counted(lost, won, n), drop=1).spread
    assert spread == pytest.approx(100 * math.sqrt((square - mean**2) / n))
    assert (lost, won) != (0, 0) or spread == pytest.approx(100 / n)


def test_the_bounds_of_a_sequence_are_as_sure_as_it_is() -> None:
    before, after = counted(4, 3, 200)
    for alpha in (0.05, 0.2):
        (step,) = fixed_sequence_test(ACCURACY, before, [(1, after)], 1.5, alpha=alpha).steps
        assert step.bound == pytest.approx(100 * upper_bound(4, 3, 200, alpha))


def test_numbers_of_examples_are_told_with_two_digits_rounded_up_and_to_a_million() -> None:
    rounded = [guarantee._rounded_up(number) for number in (7.2, 48.1, 301, 1234.5, 56_000)]
    assert rounded == [8, 49, 310, 1300, 56_000]
    assert guarantee.in_words(310) == "about 310 examples"
    assert guarantee.in_words(1_000_000) == "about 1,000,000 examples"
    assert guarantee.in_words(1_000_001) == "more than a million examples"
    assert guarantee.in_words(None) == "no number of examples"


@pytest.mark.parametrize("share", [0.0, 0.05])
@pytest.mark.usefixtures("only_p")
def test_the_number_of_examples_needed_is_about_right_for_a_bounded_mean(share: float) -> None:
    def drawn(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        was = rng.exponential(0.3, (n, 1))
        hurt = np.where(rng.random((n, 1)) < share, rng.exponential(0.3, (n, 1)), 0.0)
        return was, was + 0.2 * rng.normal(size=(n, 1)) + hurt

    rng = np.random.default_rng(0)
    big = drawn(4000, rng)  # so that spread and damage are those of all
    found = noninferiority_test(LOSS, *big, 0.05, resamples=500)
    wanted = guarantee.required_sample_size(found, 4000, 0.05, 0.05, 1.0)
    assert wanted == 4100, "never fewer than there are"
    few = found._replace(spread=found.spread * math.sqrt(4000 / 60))  # the same, as of 60 examples
    wanted = guarantee.required_sample_size(few, 60, 0.05, 0.05, 1.0)
    assert wanted is not None
    shown = [
        noninferiority_test(LOSS, *drawn(wanted, rng), 0.05, resamples=300, seed=seed).p <= 0.05 for seed in range(120)
    ]
    assert 0.65 <= sum(shown) / 120 <= 0.97
    same = np.random.default_rng(0).exponential(0.3, (50, 1))
    nothing = fixed_sequence_test(LOSS, same, [(1, same)], 0.05)
    assert nothing.needed is not None
    assert nothing.needed >= betting_bound.fewest(0.05, 1.0, 1.0, 0.05) == 69


def test_every_test_says_how_sure_it_is() -> None:
    assert [
        word in TEST_NAMES[test]
        for test, word in (("exact", "exact"), ("bounded", "bounded by"), ("bootstrap", "approximate"))
    ] == [True] * 3
    rows = np.stack([np.arange(900) % 2, np.arange(900) % 2, np.zeros(900)], axis=1).astype(float)
    told = {
        name: str(fixed_sequence_test(metric(name, labels=2), rows, [(1, rows)], 3.0, resamples=200, clusters=clusters))
        for name, clusters in (("accuracy", None), ("matthews", np.arange(900) // 2))
    }
    assert told["accuracy"] == "loses less than 3 points, 95 % sure, shown on 900 examples by an exact paired test"
    assert told["matthews"].endswith("shown on 900 examples in 450 groups by an approximate paired bootstrap")
    grouped = fixed_sequence_test(ACCURACY, rows, [(1, rows)], 3.0, clusters=np.arange(900) // 2)
    assert str(grouped).endswith("shown on 900 examples in 450 groups, bounded by a betting test")
    assert (grouped.groups, grouped.cap) == (450, None)


def test_the_smallest_drop_that_could_be_shown_is_that_of_no_change_at_all() -> None:
    before, after = counted(9, 3, 400)
    held = fixed_sequence_test(ACCURACY, before, [(1, after)], 5.0)
    assert held.least == pytest.approx(100 * upper_bound(0, 0, 400, 0.05))
    assert guarantee.least_in_words(675, 0.6031, "pearson") == (
        "on 675 examples no drop below 0.6 points could be shown, even if nothing changed"
    )


def test_a_drop_of_nothing_may_be_asked_for() -> None:
    """Then only a plan that gains can be shown."""
    assert noninferiority_test(ACCURACY, *counted(0, 40, 60), drop=0).p <= 0.001
    assert noninferiority_test(ACCURACY, *counted(0, 0, 60), drop=0).p == 1


def test_bad_questions_get_a_sentence() -> None:
    before, after = counted(1, 0, 50)
    with says(hc.errors.BadMeasure, about="largest drop is a number of points"):
        noninferiority_test(ACCURACY, before, after, -1.0)
    with says(hc.errors.BadMeasure, about="largest drop is a number of points"):
        noninferiority_test(ACCURACY, before, after, float("nan"))
    for alpha in (0.0, 0.0001, 0.7):
        with says(hc.errors.BadMeasure, about="alpha is how often"):
            noninferiority_test(ACCURACY, before, after, 1.0, alpha=alpha)
    with says(hc.errors.BadMeasure, about="one example may count for"):
        noninferiority_test(LOSS, before[:, 2:] + 2, after[:, 2:] + 2, 0.0)
    with says(hc.errors.BadMeasure, about="a number above 0"):
        noninferiority_test(LOSS, before[:, 2:] + 2, after[:, 2:] + 2, 1.0, cap=0.0)
    with says(hc.errors.BadMeasure, about="a promise about matthews has none"):
        noninferiority_test(metric("matthews", labels=2), before, after, 1.0, cap=2.0)
    with says(hc.errors.BadMeasure, about="50 examples before and 49 after"):
        noninferiority_test(ACCURACY, before, after[1:], 1.0)
    with says(hc.errors.BadMeasure, about="no plan to test"):
        fixed_sequence_test(ACCURACY, before, [], 1.0)


# -- what is said --------------------------------------------------------------------------------------------------------


def capped_promise() -> guarantee.Guarantee:
    was = np.random.default_rng(0).exponential(0.3, (500, 1))
    now = was.copy()
    now[:3] += 1.5
    return fixed_sequence_test(LOSS, was, [(4, now), (8, now + 1)], 0.05)


def test_the_table_has_the_examples_beyond_the_cap_and_the_smallest_drop() -> None:
    found = capped_promise()
    lines = guarantee_text(found).splitlines()
    assert lines[0] == str(found)
    assert lines[1].split() == ["removed", "mean", "lost", "at", "most", "p", "capped", "shown"]
    assert lines[2].split()[-2:] == ["3", "yes"]
    assert lines[-2] == "capped: examples that changed by more than 1, and counted as that"
    assert lines[-1] == guarantee.least_in_words(500, found.least or 0.0, "mean")
    plain = guarantee_text(fixed_sequence_test(ACCURACY, *[rows_of(np.ones(400))], [(1, rows_of(np.ones(400)))], 2.0))
    assert "capped" not in plain
    assert plain.endswith("on 400 examples no drop below 0.75 points could be shown, even if nothing changed")


def promising(guarantee: dict[str, Any]) -> PruneDocument:
    """What `prune` wrote, with this guarantee."""
    document = run_folders.prune(run_folders.scores().order(), 4)
    return PruneDocument.from_json({**document, "guarantee": guarantee})


def test_the_card_says_how_sure_it_is_and_reads_what_earlier_versions_wrote() -> None:
    told = capped_promise().to_json()
    text = model_card._promise(promising(told))
    for words in ("(in mean), no example counted for more than 1, each", "bounded by a betting test", "in at most 5 %"):
        assert words in text
    approximate = model_card._promise(promising({**told, "test": "bootstrap", "cap": None}))
    assert "in about 5 % of the repetitions" in approximate
    old = {key: value for key, value in told.items() if key not in ("least", "cap", "groups")}
    old["steps"] = [{key: value for key, value in step.items() if key != "beyond"} for step in told["steps"]]
    for test in ("exact", "bootstrap"):
        text = model_card._promise(promising({**old, "test": test}))
        assert "counted for more" not in text
        assert "no drop below" not in text


def test_the_page_says_it_too() -> None:
    told = capped_promise().to_json()
    data = promising(told)
    section = pruning._guarantee(data, data.guarantee, "")
    assert section.tables[0].caption.endswith("(n = 500, bounded by betting).")
    assert "In the plan kept, 3 examples changed by more than 1 and counted as that." in section.notes
    assert any(note.startswith("On 500 examples no drop below ") for note in section.notes)
    many = promising({**told, "groups": 100, "test": "bootstrap"})
    grouped = pruning._guarantee(many, many.guarantee, "")
    assert grouped.tables[0].caption.endswith("(n = 500 in 100 groups, approximate, by a bootstrap).")


def test_what_cannot_be_shown_on_so_few_examples_is_said_where_it_helps() -> None:
    same = rows_of(np.ones(100))
    found = fixed_sequence_test(ACCURACY, same, [(1, same)], 1.0)
    assert (
        "; on 100 examples no drop below 3 points could be shown, even if nothing changed: about "
        in plan_tests._not_shown(found, 12)
    )
    before, after = counted(4, 3, 400)
    enough = fixed_sequence_test(ACCURACY, before, [(1, after)], 1.5)
    assert "even if nothing" not in plan_tests._not_shown(enough, 12), "these could have shown it"


def test_promises_about_differences_of_logits_are_those_about_means() -> None:
    """They have no bounds, so one example must not count for any amount: the betting test, with a cap."""
    draws = np.random.default_rng(0)
    before = draws.normal(3, 1, (400, 1))
    after = before + draws.normal(0, 0.1, (400, 1))
    shown = [
        noninferiority_test(metric(name), before, after, 0.5, resamples=200) for name in ("mean", "logit-difference")
    ]
    assert shown[0] == shown[1]
    assert shown[1].cap is not None
