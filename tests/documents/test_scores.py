"""`Scores`: normalisation, order, stability, JSON; and `plan`: the units that go first."""

from __future__ import annotations

import copy
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from conftest import says
from scipy.stats import spearmanr

import headcount as hc
from headcount.documents.scores import Scores, how_many

Unit = hc.Unit


def made(raw: dict[str, list[float]], normalize: str | None = None, samples: np.ndarray | None = None) -> Scores:
    """Scores of sites such as "encoder.0", "decoder.0.cross", "0.mlp": kind and type are read off the name."""
    units = tuple(Unit(site, index) for site, values in raw.items() for index in range(len(values)))
    kinds = {site: "neuron" if site.endswith("mlp") else "head" for site in raw}
    types = {
        site: None if site.endswith("mlp") else "cross" if site.endswith("cross") else site.partition(".")[0]
        for site in raw
    }
    flat = np.array([value for values in raw.values() for value in values], dtype=float)
    return Scores(units, flat, "test", kinds, types, normalize, "signature", samples)


BOTH = {"encoder.0": [3.0, 4.0], "encoder.1": [6.0, 8.0], "decoder.0.cross": [1.0, 0.0], "0.mlp": [2.0, 0.0, 0.0]}


# -- normalisation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "norms"),
    [
        (None, [1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("layer", [5, 5, 10, 10, 1, 1, 2, 2, 2]),
        ("type", [math.sqrt(125)] * 4 + [1, 1, 2, 2, 2]),
        ("global", [math.sqrt(126)] * 6 + [2, 2, 2]),  # heads and neurons are not weighed against each other
    ],
)
def test_normalisation(how: str | None, norms: list[float]) -> None:
    scores = made(BOTH, how)
    assert np.allclose(scores.values, scores.raw / np.array(norms), rtol=1e-12)
    assert np.allclose(made(BOTH).normalized(how).values, scores.values)
    assert scores["encoder.1:1"] == scores[Unit("encoder.1", 1)] == pytest.approx(8 / norms[3])


def test_looking_up_every_unit_goes_through_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = made({"0.mlp": list(range(500)), "1.mlp": list(range(500))}, "layer")
    written, right = [], Unit.__str__
    monkeypatch.setattr(Unit, "__str__", lambda unit: (written.append(unit), right(unit))[1])
    assert [scores[unit] for unit in scores] == scores.values.tolist()
    assert len(written) <= 2 * len(scores), "each unit's name is written for the table, and for the look-up"


def test_norms_are_found_by_site_and_not_by_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, asked, right = made({"0.mlp": list(range(500)), "1": [1.0]}), [], Scores._group
    monkeypatch.setattr(Scores, "_group", lambda self, site: (asked.append(site), right(self, site))[1])
    names, right_names = [], Scores._names
    monkeypatch.setattr(Scores, "_names", lambda self, site: (names.append(site), right_names(self, site))[1])
    assert len(scores.normalized("type").only("head")) == 1
    assert len(asked) <= 3
    assert names == ["0.mlp", "1"]


def test_a_layer_of_zeros_stays_zero() -> None:
    assert made({"0": [0.0, 0.0], "1": [1.0, 1.0]}, "layer").values.tolist()[:2] == [0.0, 0.0]


def test_an_unknown_normalisation() -> None:
    with says(hc.errors.BadPlan, about="'head'"):
        made(BOTH, "head")


def test_only() -> None:
    scores = made(BOTH, samples=np.arange(18.0).reshape(2, 9))
    assert [str(unit) for unit in scores.only("cross")] == ["decoder.0.cross:0", "decoder.0.cross:1"]
    assert len(scores.only("encoder")) == 4
    assert len(scores.only("heads")) == len(scores.only("head")) == 6
    assert len(scores.only("neurons", "cross")) == 5
    assert scores.only("encoder.1").raw.tolist() == [6.0, 8.0]
    assert scores.only("encoder.1").samples.tolist() == [[2.0, 3.0], [11.0, 12.0]]
    with says(hc.errors.BadPlan, about="cross, decoder.0.cross, encoder"):
        scores.only("decoder")


# -- order -------------------------------------------------------------------------------------------------------------


def names(units: list[Unit]) -> str:
    return " ".join(map(str, units))


def test_order_is_least_first_and_ties_stay_as_they_come() -> None:
    scores = made({"0": [2.0, 1.0, 1.0], "1": [1.0, 0.5, 2.0]})
    assert names(scores.order()) == "1:1 0:1 0:2 1:0 0:0 1:2"


def test_order_goes_by_the_normalised_scores() -> None:
    raw = {"0": [3.0, 4.0], "1": [60.0, 1.0]}
    assert names(made(raw).order()) == "1:1 0:0 0:1 1:0"
    assert names(made(raw, "layer").order()) == "1:1 0:0 0:1 1:0"
    assert names(made({"0": [3.0, 4.0], "1": [6.0, 60.0]}, "layer").order()) == "1:0 0:0 0:1 1:1"


def test_the_best_of_every_site_stay() -> None:
    scores = made({"0": [2.0, 1.0, 1.0], "1": [0.1, 0.2, 0.3], "2": [0.0]})
    assert names(scores.order(1)) == "1:0 1:1 0:1 0:2"
    assert names(scores.order(2)) == "1:0 0:2"  # of two equal ones the first stays
    assert names(scores.order(3)) == ""


def test_what_is_gone_is_not_among_the_best() -> None:
    scores = made({"0": [2.0, 1.0, 1.5], "1": [0.1, 0.2, 0.3]})
    gone = hc.Plan.of("0:0", "1:2")
    assert names(scores.order(removed_units=gone)) == "1:0 1:1 0:1 0:2"
    assert names(scores.order(1, removed_units=gone)) == "1:0 0:1"


def test_plans_are_nested() -> None:
    scores = made({str(site): list(np.random.default_rng(site).random(12)) for site in range(12)}, "layer")
    for least in (0, 1):
        plans = [hc.plan(scores, count, least=least) for count in range(0, 133, 7)]
        assert [len(plan) for plan in plans] == list(range(0, 133, 7))
        assert all(a <= b for a, b in pairwise(plans))
    assert all(len(indices) <= 11 for indices in hc.plan(scores, 132, least=1).by_site().values())


def test_plan_takes_the_least_important() -> None:
    scores = made(BOTH)
    assert str(hc.plan(scores, 2, only="encoder")) == "encoder.0:0-1"
    assert str(hc.plan(scores, "50%", only=["cross", "encoder"])) == "decoder.0.cross:0-1 encoder.0:0"
    assert hc.plan(scores, 0.5, only="encoder").why == "the 2 of 4 units with the lowest scores by test"
    with says(hc.errors.BadPlan, about="only 2 can go"):
        hc.plan(scores, 3, only="encoder", least=1)


@pytest.mark.parametrize(
    ("amount", "of", "count"),
    [
        ("29%", 100, 29),
        (0.29, 100, 29),  # 28.999999999999996
        (".29", 100, 29),
        ("57%", 100, 57),
        (0.57, 100, 57),
        ("10%", 144, 14),
        ("12.5%", 144, 18),
        ("99.9%", 144, 143),
        ("100%", 144, 144),
        (1.0, 144, 144),
        (1, 144, 1),
        ("12", 144, 12),
        (0, 144, 0),
        (144, 144, 144),
    ],
)
def test_how_many(amount: float | int | str, of: int, count: int) -> None:
    assert how_many(amount, of) == count


def test_every_percentage_is_what_integers_say() -> None:
    for percent in range(101):
        for of in (7, 100, 144, 384):
            assert how_many(f"{percent}%", of) == how_many(percent / 100, of) == percent * of // 100


@pytest.mark.parametrize("amount", [-1, 145, "101%", 1.5, -0.1, "many", "-3", "", True, None, [3], math.nan, "1e2%"])
def test_not_a_number_of_units(amount: object) -> None:
    with says(hc.errors.BadPlan):
        how_many(amount, 144)


# -- spread ------------------------------------------------------------------------------------------------------------


def noisy(n: int, noise: float, units: int = 12, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    samples = np.arange(units) / units + noise * rng.standard_normal((n, units))
    means = samples.mean(0)
    raw = {"0": list(means[: units // 2]), "1": list(means[units // 2 :])}
    return made(raw, samples=samples)


def test_standard_errors() -> None:
    scores = noisy(50, 1.0).normalized("layer")
    samples, half = scores.samples, np.linalg.norm(scores.raw.reshape(2, 6), axis=1).repeat(6)
    deviation = np.sqrt(((samples - samples.mean(0)) ** 2).sum(0) / 49)
    assert np.allclose(scores.stderr, deviation / np.sqrt(50) / half, rtol=1e-12)
    assert made(BOTH).stderr is None
    assert noisy(1, 1.0).stderr is None


def test_standard_errors_are_the_spread_of_repeated_measurements() -> None:
    raws = np.stack([noisy(40, 0.7, seed=seed).raw for seed in range(300)])
    assert np.allclose(noisy(40, 0.7).stderr.mean(), raws.std(0).mean(), rtol=0.1)


def test_stability_against_a_direct_computation() -> None:
    scores = noisy(20, 0.5).normalized("layer")
    (row,) = [row for row in scores.stability(resamples=7, seed=3) if row.n == 10]
    rng = np.random.default_rng(3)
    for size in (2, 5):
        [rng.permutation(20) for _ in range(7)]  # those of the smaller sizes
        assert size in {row.n for row in scores.stability(resamples=7, seed=3)}
    correlations, overlaps = [], []
    for _ in range(7):
        drawn = rng.permutation(20)
        halves = [scores.samples[drawn[:10]].mean(0), scores.samples[drawn[10:]].mean(0)]
        halves = [half / np.linalg.norm(half.reshape(2, 6), axis=1).repeat(6) for half in halves]
        correlations.append(spearmanr(*halves).statistic)
        least = [set(np.argsort(half)[:6]) for half in halves]
        overlaps.append(len(least[0] & least[1]) / 6)
    assert row.correlation == pytest.approx(np.mean(correlations))
    assert (row.low, row.high) == pytest.approx(tuple(np.quantile(correlations, [0.025, 0.975])))
    assert row.overlap == pytest.approx(np.mean(overlaps))


def test_stability_grows_with_examples_and_falls_with_noise() -> None:
    rows = noisy(256, 1.0).stability(resamples=60)
    assert [row.n for row in rows] == [8, 16, 32, 64, 128]
    correlations = [row.correlation for row in rows]
    assert correlations == sorted(correlations)
    assert correlations[-1] > correlations[0] + 0.3
    assert rows[-1].overlap > rows[0].overlap
    assert all(row.low <= row.correlation <= row.high for row in rows)
    assert noisy(256, 4.0).stability(resamples=60)[-1].correlation < correlations[-1] - 0.2
    assert noisy(64, 0.0).stability(resamples=5)[-1][1:] == pytest.approx((1.0, 1.0, 1.0, 1.0))


def test_stability_of_constants_is_none_and_of_too_few_is_not_given() -> None:
    same = made({"0": [1.0, 1.0, 1.0]}, samples=np.ones((8, 3)))
    assert {row.correlation for row in same.stability(resamples=3)} == {0.0}
    assert noisy(3, 1.0).stability() == []
    assert [row.n for row in noisy(4, 1.0).stability(resamples=3)] == [2]  # two sets of two
    assert made(BOTH).stability() == []


# -- JSON --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [None, "layer", "global"])
def test_written_and_read_again(how: str | None, tmp_path) -> None:
    scores = noisy(9, 1.0).normalized(how)
    scores.write(tmp_path / "scores.json")
    again = Scores.read(tmp_path / "scores.json")
    assert again.units == scores.units
    assert np.array_equal(again.raw, scores.raw)
    assert np.allclose(again.values, scores.values, rtol=1e-12, atol=0)  # normalised anew
    assert (again.by, again.kinds, again.types, again.normalize, again.signature) == (
        scores.by,
        scores.kinds,
        scores.types,
        how,
        "signature",
    )
    written = json.loads((tmp_path / "scores.json").read_text())["sites"]["1"]
    assert written["score"] == scores.values[6:].tolist()
    assert written["stderr"] == scores.stderr[6:].tolist()
    with says(hc.errors.BadPlan, about="File exists"):
        scores.write(tmp_path / "scores.json")
    with says(hc.errors.BadPlan, about="No such file"):
        scores.write(tmp_path / "nowhere" / "scores.json")


def test_scores_of_many_neurons_can_be_read_again(tmp_path) -> None:
    scores = made({f"{layer}.mlp": [0.123456789012345] * 4096 for layer in range(40)})
    scores.write(tmp_path / "scores.json")
    assert (tmp_path / "scores.json").stat().st_size > 8_000_000
    assert np.array_equal(Scores.read(tmp_path / "scores.json").raw, scores.raw)


DAMAGE = {
    "a list": lambda data: [data],
    "nothing": lambda data: None,
    "another format": lambda data: {**data, "format": 2},
    "no sites": lambda data: {k: v for k, v in data.items() if k != "sites"},
    "sites in a list": lambda data: {**data, "sites": [1]},
    "a number less": lambda data: _site(data, raw=[1.0]),
    "text for a number": lambda data: _site(data, raw=["x", "y"]),
    "not a number": lambda data: _site(data, raw=[math.nan, 1.0]),
    "infinite": lambda data: _site(data, raw=[math.inf, 1.0]),
    "a unit twice": lambda data: _site(data, units=[1, 1]),
    "no kind": lambda data: _site(data, kind=...),
    "no norm": lambda data: {**data, "normalize": "sometimes"},
    "numbers of another site": lambda data: _site(_site(data, raw=[1.0]), site="encoder.1", raw=[1.0, 2.0, 3.0]),
}


def _site(data: dict, site: str = "encoder.0", **new: object) -> dict:
    data["sites"][site].update(new)
    data["sites"][site] = {key: value for key, value in data["sites"][site].items() if value is not ...}
    return data


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_scores_give_one_sentence(how: str) -> None:
    data = made(BOTH).to_json()
    Scores.from_json(copy.deepcopy(data))
    with says(hc.errors.BadPlan):
        Scores.from_json(DAMAGE[how](copy.deepcopy(data)))


def test_text() -> None:
    text = str(made({"0": [3.0, 4.0], "10": [0.0] * 20}, "layer"))
    assert text.splitlines() == [
        "test, l2 per layer: 22 units, bigger = matters more",
        "0   0.600 0.800",
        f"10  {' '.join(['0.000'] * 10)} ... (20)",
    ]
