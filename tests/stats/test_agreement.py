"""Agreement between draws is that of statsmodels, and the statistics of a study are those one counts by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from conftest import says
from statsmodels.stats.contingency_tables import cochrans_q
from statsmodels.stats.inter_rater import aggregate_raters
from statsmodels.stats.inter_rater import fleiss_kappa as their_kappa

from headcount.documents.lottery import Draw, FullModel, LotterySite, Network, TaskSettings, UnitCounts
from headcount.documents.lottery_study import Lottery
from headcount.errors import BadRun
from headcount.stats.agreement import cochran_q, fleiss_kappa, in_all, in_words, mean_sd, overlap


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("raters", [2, 3, 5])
def test_kappa_and_q_are_those_of_statsmodels(seed: int, raters: int) -> None:
    draw = np.random.default_rng(seed)
    marks = (draw.random((30, 1)) + draw.random((30, raters)) * (0.5 + seed) > 0.3 + 0.3 * seed).astype(int)
    assert fleiss_kappa(marks) == pytest.approx(their_kappa(aggregate_raters(marks)[0]), rel=1e-9, abs=1e-12)
    theirs = cochrans_q(marks)
    assert cochran_q(marks) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_kappa_of_several_categories_is_that_of_statsmodels(seed: int) -> None:
    marks = np.random.default_rng(seed).integers(0, 4, (20, 3))
    assert fleiss_kappa(marks) == pytest.approx(their_kappa(aggregate_raters(marks)[0]), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("marks", [np.ones((4, 3)), np.zeros((4, 3)), np.array([[0], [1]]), np.zeros((0, 3))])
def test_where_nothing_can_differ_nothing_is_said(marks: np.ndarray) -> None:
    assert fleiss_kappa(marks) is None
    assert cochran_q(marks) == (None, None)


def test_seeds_that_agree_perfectly_have_kappa_one_and_no_q() -> None:
    marks = np.array([[1, 1, 1], [0, 0, 0], [1, 1, 1]])
    assert fleiss_kappa(marks) == 1.0
    assert cochran_q(marks) == (None, None)


def test_marks_that_are_no_table_are_refused() -> None:
    with says(BadRun, about="a table"):
        fleiss_kappa([0, 1])


def test_overlaps_and_intersections_are_counted() -> None:
    sets = [{1, 2, 3}, {2, 3, 4, 5}, {3}]
    assert overlap(sets).tolist() == [[3, 2, 1], [2, 4, 1], [1, 1, 1]]
    assert in_all(sets) == 1
    assert in_all([]) == 0


def test_a_single_sample_has_no_deviation() -> None:
    assert mean_sd([2.0]) == (2.0, None)
    assert mean_sd([1.0, 4.0, 4.0]) == (3.0, pytest.approx(3.0**0.5))


# --- a study --------------------------------------------------------------------------------------------------------

SITES = (
    LotterySite(name="0", kind="head", type="encoder", layer=0, units=3),
    LotterySite(name="0.mlp", kind="mlp", type=None, layer=0, units=1),
)
VALUES = {"good": (0.8, 0.9), "random": (0.6, 0.7), "bad": (0.5, 0.4)}


def made_up(task: str, alive: dict[int, tuple[list[int], list[int]]], **other: Any) -> Lottery:
    """A study whose draws keep these heads of site 0 and this MLP, by seed."""
    draws = [
        Draw(
            task=task,
            seed=seed,
            full=FullModel(1.0, 1.0),
            left=UnitCounts(len(heads), len(mlp)),
            of=UnitCounts(3, 1),
            parameters=(10, 5),
            alive={"0": tuple(heads), "0.mlp": tuple(mlp)},
            steps=(),
            networks=tuple(
                Network(what=what, how=how, value=value, n=9)
                for what, both in VALUES.items()
                for how, value in zip(("pruned", "retrained"), both, strict=True)
            ),
        )
        for seed, (heads, mlp) in alive.items()
    ]
    about = TaskSettings(name=task, metric="accuracy", recipe={"lr": 1.0, "epochs": len(task)})
    fields = {"model": "m", "kind": "C", "threshold": 0.9, "step": 0.1, "versions": {}} | other
    return Lottery(**{"tasks": (about,), "sites": SITES, "draws": tuple(draws), **fields})


def study() -> Lottery:
    one = made_up("A", {0: ([0, 1], [0]), 1: ([0], [])})
    two = made_up("BB", {1: ([0, 2], [0]), 0: ([1, 2], [0])})
    return Lottery.joined([one, two])


def test_the_statistics_of_a_study_are_those_counted_by_hand() -> None:
    told = study().to_json()
    # head 0 survives in 1 task under seed 0 and in 2 under seed 1; head 1 in 2 and 0; head 2 in 1 and 1; the MLP in 2 and 1
    assert told["survivors"]["0"]["mean"] == [1.5, 1.0, 1.0]
    assert told["survivors"]["0"]["sd"] == pytest.approx([0.5**0.5, 2**0.5, 0.0])
    assert told["survivors"]["0.mlp"]["mean"] == [1.5]
    # sizes of A: 2 and 1, of BB: 2 and 2; shared: head 1 under seed 0, head 0 under seed 1
    assert told["overlap"]["heads"]["mean"] == [[1.5, 1.0], [1.0, 2.0]]
    assert told["overlap"]["heads"]["sd"] == [[pytest.approx(0.5**0.5), 0.0], [0.0, 0.0]]
    assert told["overlap"]["mlps"]["mean"] == [[0.5, 0.5], [0.5, 1.0]]
    first, mlps, second, _ = told["agreement"]
    assert (first["task"], first["kind"], first["in_all"], first["size"]["mean"]) == ("A", "heads", 1, 1.5)
    marks = np.array([[1, 1], [1, 0], [0, 0]])
    assert first["kappa"] == pytest.approx(their_kappa(aggregate_raters(marks)[0]))
    assert (first["q"], first["p"]) == pytest.approx(tuple(cochrans_q(marks))[:2])
    assert (mlps["kind"], mlps["in_all"]) == ("mlps", 0)
    assert (second["task"], second["in_all"]) == ("BB", 1)


def test_the_table_has_means_over_seeds() -> None:
    rows = {(row["task"], row["what"], row["how"]): row for row in study().to_json()["table"]}
    assert rows["A", "full", "whole"]["mean"] == 1.0
    assert rows["BB", "good", "retrained"] | {"sd": 0} == {
        **{"task": "BB", "kind": "structured", "what": "good", "how": "retrained"},
        **{"mean": 0.9, "sd": 0, "seeds": 2},
    }
    assert len(rows) == 2 * (1 + 6)


def test_what_the_recipes_share_stands_above_the_tasks() -> None:
    told = study().to_json()
    assert told["recipe"] == {"lr": 1.0}
    assert [task["recipe"]["epochs"] for task in told["tasks"]] == [1, 2]


def test_a_study_says_what_came_out_in_one_sentence() -> None:
    said = study().sentence()
    assert "58% of the heads and 75% of the MLPs" in said  # (3/6 + 4/6) / 2 and (1/2 + 2/2) / 2
    assert "good ones 90%, random ones 70%, bad ones 40%" in said
    assert said.count(".") == 1


def test_a_study_comes_back_from_json() -> None:
    told = study().to_json()
    assert Lottery.from_json(json.loads(json.dumps(told))).to_json() == told


def test_with_one_seed_there_is_no_deviation_and_no_agreement() -> None:
    told = made_up("A", {7: ([0], [0])}).to_json()
    assert told["seeds"] == [7]
    assert told["survivors"]["0"] == {"mean": [1.0, 0.0, 0.0], "sd": None}
    assert told["overlap"]["heads"] == {"mean": [[1.0]], "sd": None}
    assert {name: told["agreement"][0][name] for name in ("kappa", "q", "p")} == {"kappa": None, "q": None, "p": None}
    assert all(row["sd"] is None for row in told["table"])


@pytest.mark.parametrize("alive", [{0: ([0, 1], []), 1: ([0], [])}, {7: ([0], [])}])
def test_a_model_without_mlps_has_a_study_of_its_heads(alive: dict[int, tuple[list[int], list[int]]]) -> None:
    told = made_up("A", alive, sites=SITES[:1]).to_json()
    assert list(told["survivors"]) == ["0"]
    assert told["survivors"]["0"]["mean"] == [1.0, 0.5 * (len(alive) - 1), 0.0]
    assert told["overlap"]["mlps"]["mean"] == [[0.0]]
    assert [one["kind"] for one in told["agreement"]] == ["heads"]


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"model": "other"}, "model of A's study is 'm'"),
        ({"kind": "Other"}, "class of A's study is 'C'"),
        ({"threshold": 0.8}, "threshold of A's study is 0.9"),
        ({"sites": SITES[:1]}, "sites of A's study"),
    ],
)
def test_studies_that_cannot_stand_side_by_side_are_not_joined(change: dict[str, Any], about: str) -> None:
    alive = {0: ([0], [0]), 1: ([0], [0])}
    with says(BadRun, about=about):
        Lottery.joined([made_up("A", alive), made_up("B", alive, **change)])


def test_studies_of_other_seeds_or_of_the_same_task_are_not_joined() -> None:
    one = made_up("A", {0: ([0], [0])})
    with says(BadRun, about="the seeds 0 and B with 1"):
        Lottery.joined([one, made_up("B", {1: ([0], [0])})])
    with says(BadRun, about="are of 'A'"):
        Lottery.joined([one, one])
    with says(BadRun, about="no study"):
        Lottery.joined([])


@pytest.mark.parametrize(
    ("damage", "about"),
    [
        (lambda told: 3, "format 1"),
        (lambda told: {**told, "format": 9}, "I got 9"),
        (lambda told: {**told, "sites": None}, "sites is None"),
        (lambda told: {**told, "draws": told["draws"][:1]}, "draws are damaged"),
        (lambda told: {**told, "draws": [{}, *told["draws"]]}, "draws[0].task is missing"),
    ],
)
def test_a_damaged_document_is_refused_in_a_sentence(damage: Any, about: str) -> None:
    with says(BadRun, about=about):
        Lottery.from_json(damage(study().to_json()))


@pytest.mark.parametrize(("kappa", "word"), [(-0.2, "none"), (0.1, "slight"), (0.25, "fair"), (0.9, "almost perfect")])
def test_agreement_has_words(kappa: float, word: str) -> None:
    assert in_words(kappa).startswith(word)
