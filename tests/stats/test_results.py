"""Results and comparisons: what they say, their JSON, and what cannot be compared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import says

from headcount.errors import BadMeasure
from headcount.stats.metrics import metric
from headcount.stats.paired_tests import benjamini_hochberg, holm, interval, paired
from headcount.stats.results import Comparison, Result, compare, compare_all


def classified(models: int = 5, n: int = 200, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    label = np.broadcast_to(draw.integers(0, 2, n), (models, n))
    prediction = np.where(draw.random((models, n)) < 0.85, label, 1 - label)
    return np.stack([label, prediction, draw.exponential(size=(models, n))], axis=2).astype(np.float64)


ROWS = classified()
ACCURACY = metric("accuracy")
BEFORE, *AFTERS = (Result(ACCURACY, rows, "some model") for rows in ROWS)
MADE = Comparison("accuracy", 0.9, 0.897, -0.003, -0.011, 0.006, 0.95, 0.5234, "randomization", 872, True, 100.0)


def right(n: int, of: int) -> Result:
    return Result(ACCURACY, np.stack([np.ones(of), np.arange(of) < n, np.zeros(of)], axis=1))


def test_a_result_knows_its_value_its_size_and_its_interval() -> None:
    assert BEFORE.value == np.mean(ROWS[0, :, 0] == ROWS[0, :, 1])
    assert BEFORE.n == 200
    assert BEFORE.interval() == interval(ACCURACY, ROWS[0])
    assert BEFORE.interval(0.5, 100, 3) == interval(ACCURACY, ROWS[0], level=0.5, resamples=100, seed=3)


def test_a_result_reads_as_people_write_it() -> None:
    result = right(778, 872)
    low, high = result.interval()
    assert str(result) == f"accuracy 0.892 [{low:.3f}, {high:.3f}] (n=872)"
    assert (0.865 < low < 0.878, 0.905 < high < 0.918) == (True, True)
    assert str(right(5, 5)) == "accuracy 1.000 [1.000, 1.000] (n=5)"


def test_a_result_as_json_has_the_numbers_and_not_the_rows() -> None:
    data = json.loads(json.dumps(BEFORE.to_json()))
    low, high = BEFORE.interval()
    assert data == {
        "metric": "accuracy",
        "value": BEFORE.value,
        "low": low,
        "high": high,
        "level": 0.95,
        "n": 200,
        "constant": max(np.bincount(ROWS[0][:, 0].astype(int))) / 200,
        "signature": "some model",
    }


def test_a_result_in_groups_passes_them_on_and_says_so() -> None:
    groups = np.arange(200) // 4
    before, after = Result(ACCURACY, ROWS[0], "m", groups), Result(ACCURACY, ROWS[1], "m", groups)
    assert (before.groups, BEFORE.groups) == (50, None)
    assert before.interval() == interval(ACCURACY, ROWS[0], clusters=groups) != BEFORE.interval()
    assert str(before).endswith(" (n=200 in 50 groups)")
    assert before.to_json()["groups"] == 50
    made = compare(before, after, test="bootstrap")
    found = paired(ACCURACY, ROWS[0], ROWS[1:2], test="bootstrap", clusters=groups)
    assert (made.low, made.high, made.p, made.groups) == (found.low[0], found.high[0], found.p[0], 50)
    assert made.p != compare(BEFORE, AFTERS[0], test="bootstrap").p
    assert str(made).endswith("(paired bootstrap, n=200 in 50 groups)")
    assert Comparison.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert compare_all(before, ROWS[1:])[0].groups == 50
    for clusters, about in [(groups[1:], "(199,)"), (groups + 0.5, "float64")]:
        with says(BadMeasure, about=about):
            Result(ACCURACY, ROWS[0], clusters=clusters)


def test_a_comparison_written_before_there_were_groups_is_read() -> None:
    old = MADE.to_json()
    del old["groups"]
    assert Comparison.from_json(old) == MADE


def test_a_comparison_holds_what_the_test_found() -> None:
    options: dict[str, Any] = {"test": "bootstrap", "level": 0.8, "resamples": 150, "seed": 4, "alternative": "less"}
    found = paired(ACCURACY, ROWS[0], ROWS[1:2], **options)
    made = compare(BEFORE, AFTERS[0], **options)
    assert made == Comparison(
        metric="accuracy",
        before=BEFORE.value,
        after=AFTERS[0].value,
        difference=AFTERS[0].value - BEFORE.value,
        low=found.low[0],
        high=found.high[0],
        level=0.8,
        p=found.p[0],
        test="bootstrap",
        n=200,
        higher_is_better=True,
        points=100.0,
        alternative="less",
    )
    assert compare(BEFORE, AFTERS[0]) != compare(BEFORE, AFTERS[0], seed=1)
    assert compare(BEFORE, AFTERS[0]) == compare(BEFORE, AFTERS[0])


@pytest.mark.parametrize("test", ["randomization", "mcnemar"])
def test_many_comparisons_are_single_ones_with_corrected_p_values(test: str) -> None:
    together = compare(BEFORE, AFTERS, test=test)
    assert together == compare_all(BEFORE, ROWS[1:], test=test)
    alone = [compare(BEFORE, after, test=test) for after in AFTERS]
    assert [replace(one, p_holm=None, p_bh=None) for one in together] == alone
    p = [one.p for one in alone]
    assert [one.p_holm for one in together] == holm(p).tolist()
    assert [one.p_bh for one in together] == benjamini_hochberg(p).tolist()
    assert len(set(p)) > 1
    assert compare_all(BEFORE, []) == ()
    assert compare_all(Result(metric("spearman"), ROWS[0]), ROWS[:0]) == ()


def test_a_comparison_reads_as_people_write_it() -> None:
    assert str(MADE) == "-0.3 points [-1.1, +0.6], p = 0.52 (paired randomization, n=872)"
    corrected = replace(MADE, p=0.00099, p_holm=0.144, p_bh=0.2, test="mcnemar", alternative="less")
    assert str(corrected) == "-0.3 points [-1.1, +0.6], p = 0.00099 (Holm 0.14, exact McNemar, less, n=872)"
    assert str(replace(MADE, p=1e-9, test="t")) == "-0.3 points [-1.1, +0.6], p < 0.0001 (paired t-test, n=872)"
    narrow = replace(MADE, difference=-0.0001, low=-0.0003, high=0.00002)
    assert str(narrow).startswith("-0.010 points [-0.030, +0.002], ")
    perplexity = replace(MADE, metric="perplexity", points=1.0, difference=1.25, low=0.5, high=2.0, test="bootstrap")
    assert str(perplexity) == "+1.2 in perplexity [+0.5, +2.0], p = 0.52 (paired bootstrap, n=872)"
    bleu = replace(MADE, metric="bleu", points=1.0, difference=-0.04, low=-1.0, high=1.0)
    assert str(bleu).startswith("0.0 points [-1.0, +1.0], ")
    same = compare(BEFORE, Result(ACCURACY, ROWS[0]))
    assert str(same) == "0.0 points [0.0, 0.0], p = 1 (paired randomization, n=200)"


@pytest.mark.parametrize(
    ("higher", "difference", "damage"), [(True, -0.5, 50), (True, 0.5, -50), (False, 0.5, 50), (False, -0.5, -50)]
)
def test_worse_means_worse_whichever_way_the_metric_runs(higher: bool, difference: float, damage: float) -> None:
    one = replace(MADE, higher_is_better=higher, difference=difference)
    assert one.damage == damage
    assert one.worse == (damage > 0)
    assert not replace(one, difference=0.0).worse


def test_significance_is_by_holm_where_many_were_compared() -> None:
    assert replace(MADE, p=0.01).significant()
    assert not replace(MADE, p=0.01).significant(0.005)
    assert not replace(MADE, p=0.01, p_holm=0.3, p_bh=0.04).significant()


def test_a_comparison_survives_json() -> None:
    for one in (MADE, *compare_all(BEFORE, AFTERS, alternative="greater")):
        assert Comparison.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"p": "0.5"}, "'0.5'"),
        ({"p": float("nan")}, "nan"),
        ({"n": 1.5}, "1.5"),
        ({"n": True}, "True"),
        ({"groups": 1.5}, "1.5"),
        ({"higher_is_better": 1}, "higher_is_better"),
        ({"test": "sign"}, "'sign'"),
        ({"alternative": "more"}, "'more'"),
        ({"level": None}, "None"),
        ({"extra": 1}, "'extra'"),
        ({"p": ...}, "'p'"),
    ],
)
def test_damaged_json_is_refused_with_the_first_thing_wrong(change: dict[str, Any], about: str) -> None:
    data = {name: value for name, value in {**MADE.to_json(), **change}.items() if value is not ...}
    with says(BadMeasure, about=about):
        Comparison.from_json(data)
    with says(BadMeasure, about="[1, 2]"):
        Comparison.from_json([1, 2])


@pytest.mark.parametrize(
    ("after", "about"),
    [
        (Result(ACCURACY, ROWS[1, :150]), "200 examples before and 150"),
        (Result(ACCURACY, ROWS[1, ::-1]), "label"),
        (Result(metric("loss", columns=ACCURACY.columns), ROWS[1]), "loss"),
        (Result(metric("accuracy", columns=("label", "prediction")), ROWS[1, :, :2]), "columns"),
        (Result(replace(ACCURACY, labels=3), ROWS[1]), "labels"),
    ],
)
def test_results_on_other_examples_or_of_another_metric_are_not_compared(after: Result, about: str) -> None:
    with says(BadMeasure, about=about):
        compare(BEFORE, after)
    with says(BadMeasure, about=about):
        compare_all(BEFORE, [AFTERS[0], after])


def test_rows_that_do_not_fit_are_refused() -> None:
    with says(BadMeasure, about="(3, 200, 3)"):
        Result(ACCURACY, ROWS[:3])
    with says(BadMeasure, about="(150, 3)"):
        compare_all(BEFORE, ROWS[1:, :150])
    with says(BadMeasure, about="(200, 3)"):
        compare_all(BEFORE, ROWS[1])
    with says(BadMeasure, about="prediction of example 3"):
        Result(ACCURACY, np.where(np.arange(600).reshape(200, 3) == 10, np.nan, ROWS[0]))
