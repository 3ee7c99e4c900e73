"""`curve`: which units are gone at each point, and what the model is worth there."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import close
from helpers.small_models import class_loss, class_task, classifier, ragged_pairs
from model.test_discovery import HEADS, MLP, Stranger, X
from torch import Tensor, nn

import headcount as hc
from headcount.data import splits
from headcount.documents.curves import CurvesDocument
from headcount.pruning import curves
from headcount.pruning.curves import counts

# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "of", "want"),
    [
        ("10%", 144, [0, 14, 28, 43, 57, 72, 86, 100, 115, 129, 144]),
        (0.1, 144, [0, 14, 28, 43, 57, 72, 86, 100, 115, 129, 144]),
        ("0.1", 144, [0, 14, 28, 43, 57, 72, 86, 100, 115, 129, 144]),
        (" 25 %".replace(" %", "%"), 12, [0, 3, 6, 9, 12]),
        ("30%", 100, [0, 30, 60, 90, 100]),
        ("40%", 100, [0, 40, 80, 100]),
        ("29%", 100, [0, 29, 58, 87, 100]),
        (5, 12, [0, 5, 10, 12]),
        ("5", 12, [0, 5, 10, 12]),
        (1, 4, [0, 1, 2, 3, 4]),
        (12, 12, [0, 12]),
        (1.0, 12, [0, 12]),
        ("1%", 12, list(range(13))),
        ([3, 1, 7], 12, [0, 1, 3, 7]),
        ((2, "50%"), 12, [0, 2, 6]),
        (range(0, 13, 4), 12, [0, 4, 8, 12]),
    ],
)
def test_steps(step: Any, of: int, want: list[int]) -> None:
    assert counts(step, of) == want


@pytest.mark.parametrize("of", [32 * 11008, 126 * 53248])
@pytest.mark.parametrize("step", [5000, 60_000])
def test_steps_of_a_count_are_its_multiples_however_many_units_there_are(step: int, of: int) -> None:
    """The neurons of Llama-7B and of Llama-405B."""
    assert counts(step, of) == [*range(0, of, step), of]


def test_steps_of_one_percent_of_almost_a_billion_units_are_whole() -> None:
    assert counts("1%", 900_000_000) == list(range(0, 900_000_001, 9_000_000))


@pytest.mark.parametrize("step", [0, -1, 13, 0.0, 1.5, "0%", "101%", "ten", "", "%", float("nan")])
def test_not_a_step(step: Any) -> None:
    with says(hc.errors.BadPlan, about="A step is a count of units"):
        counts(step, 12)
    with says(hc.errors.BadPlan):
        counts([13], 12)


# -- points ------------------------------------------------------------------------------------------------------------


def scored(model: nn.Module, seed: int = 0) -> hc.documents.Scores:
    return hc.score(model, by="random", seed=seed)


def value_without(model: nn.Module, task: hc.data.Task, plan: hc.Plan) -> float:
    with hc.masked(model, plan):
        return hc.evaluate(model, task).value


def test_each_point_is_the_model_with_the_least_important_closed() -> None:
    model, task = classifier(), class_task(7)
    scores = scored(model)
    made = hc.curve(model, task, scores, step="25%")
    assert [point.removed for point in made.points] == [0, 3, 6, 9, 12]
    for point in made.points:
        assert set(point.plan) == set(scores.order()[: point.removed])
        assert point.result.value == pytest.approx(value_without(model, task, point.plan), abs=1e-5)
        assert point.comparison.difference == pytest.approx(point.result.value - made.base.value)
    assert all(a.plan <= b.plan for a, b in pairwise(made.points))
    assert made.of == 12
    assert np.diff(sorted(point.result.value for point in made.points)).min() > 1e-3  # five different models
    assert "|without:9|" in made.points[3].result.signature


def test_some_heads_of_every_layer_stay() -> None:
    model, task = classifier(), class_task(7)
    made = hc.curve(model, task, scored(model), step=4, least=1)
    assert [point.removed for point in made.points] == [0, 4, 8, 9]
    assert all(len(gone) == 3 for gone in made.points[-1].plan.by_site().values())
    kept = {max((scored(model)[f"{site}:{head}"], head) for head in range(4))[1] for site in ("0",)}
    assert hc.Unit("0", kept.pop()) not in made.points[-1].plan
    made = hc.curve(model, task, scored(model), step=[4, 10], least=1)  # as they were asked for, as far as it goes
    assert [point.removed for point in made.points] == [0, 4]
    made = hc.curve(model, task, scored(model), step=range(0, 10, 4), least=1)
    assert [point.removed for point in made.points] == [0, 4, 8]


def test_one_type_of_attention_only() -> None:
    model, _ = zoo.build("bart")
    model.config.pad_token_id = 1
    made = hc.curve(model, ragged_pairs(), scored(model), step="50%", only="cross")
    assert [point.removed for point in made.points] == [0, 4, 8]
    assert made.of == 8
    assert str(made.points[-1].plan) == "decoder.0.cross:0-3 decoder.1.cross:0-3"
    both = hc.curve(model, ragged_pairs(), scored(model), step=[16], only=["encoder", "decoder"])
    assert both.points[-1].plan.units.isdisjoint(made.points[-1].plan.units)


def test_it_stops_when_enough_is_lost() -> None:
    model, task = classifier(), class_task(7)
    whole = hc.curve(model, task, scored(model), step=1)
    damage = [point.comparison.damage for point in whole.points]
    below, above = sorted(damage)[len(damage) // 2 :][:2]
    assert above - below > 1e-2
    drop = (below + above) / 2  # as far from any point as it can be: the second curve is computed anew
    first = next(n for n, one in enumerate(damage) if one > drop)
    assert 0 < first < 12
    made = hc.curve(model, task, scored(model), step=1, until_drop=drop)
    assert [point.plan for point in made.points] == [point.plan for point in whole.points[: first + 1]]
    assert whole.safe(drop).plan == whole.points[first - 1].plan
    assert whole.safe(damage[first]).removed >= whole.points[first].removed  # so much is not more than so much
    assert whole.safe(max(damage)) is whole.points[-1]
    assert hc.curve(model, task, scored(model), step=1, until_drop=1e9).points[-1].removed == 12


@pytest.mark.parametrize("least", [0, 1])
def test_really_cut_gives_the_same_numbers(least: int) -> None:
    model, task = classifier(), class_task(7)
    before = Fingerprint(model)
    closed = hc.curve(model, task, scored(model), step=3, least=least)
    cut = hc.curve(model, task, scored(model), step=3, least=least, really_cut=True)
    assert before.changed() == []
    assert [point.plan for point in cut.points] == [point.plan for point in closed.points]
    values = [[point.result.value for point in made.points] for made in (closed, cut)]
    assert values[0] == pytest.approx(values[1], abs=1e-5)


@pytest.mark.parametrize("really_cut", [False, True])
def test_rows_of_ones_own_reach_every_point(really_cut: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Stranger().eval()
    task = hc.custom_task([{"x": X}], loss=lambda m, b: m(b["x"]).square().mean((1, 2)))
    scores = hc.score(model, by="random", specs=[HEADS, MLP])
    made = hc.curve(model, task, scores, step=[3], really_cut=really_cut, specs=iter((HEADS, MLP)))
    assert [point.removed for point in made.points] == [0, 3]
    with hc.masked(model, made.points[1].plan, specs=[HEADS, MLP]), torch.no_grad():
        want = float(model(X).square().mean())
    assert made.points[1].result.value == pytest.approx(want, abs=1e-5)
    assert abs(made.base.value - want) > 1e-3


def test_really_cut_measures_a_smaller_model() -> None:
    sizes: list[int] = []

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
        return class_loss(model, batch)

    model = classifier()
    hc.curve(model, class_task(7, loss=loss), scored(model), step=6, really_cut=True)
    assert sizes[0] > sizes[1] > sizes[2]


# -- scores that are computed again ------------------------------------------------------------------------------------


def test_scores_computed_again_see_what_is_gone() -> None:
    model, task = classifier(), class_task(7)
    asked: list[hc.Plan] = []

    def again(model: nn.Module, plan: hc.Plan) -> hc.documents.Scores:
        asked.append(plan)
        return hc.score(model, by="random", seed=len(plan))  # units that are gone are among them

    made = hc.curve(model, task, again, step=4)
    assert [len(plan) for plan in asked] == [0, 0, 4, 8]
    assert [point.removed for point in made.points] == [0, 4, 8, 12]
    gone: set[hc.Unit] = set()
    for point, seed in zip(made.points[1:], (0, 4, 8), strict=True):
        order = [unit for unit in hc.score(model, by="random", seed=seed).order() if unit not in gone]
        gone |= set(order[:4])
        assert set(point.plan) == gone


def test_heads_that_are_gone_do_not_count_among_those_that_stay() -> None:
    """Scores of magnitude stay as large as they were when a unit is gone."""
    model, task = classifier(), class_task(7)

    def backwards(model: nn.Module, plan: hc.Plan) -> hc.documents.Scores:
        """What was least at first is best as soon as it is gone."""
        raw = np.array([100.0 if unit in plan else unit.index for unit in scored(model).units])
        return hc.documents.Scores(scored(model).units, raw, "own", scored(model).kinds, scored(model).types)

    made = hc.curve(model, task, backwards, step=3, least=1)
    assert made.points[-1].removed == 9
    assert [len(gone) for gone in made.points[-1].plan.by_site().values()] == [3, 3, 3]


def test_the_model_is_scored_with_the_plan_closed() -> None:
    model, task = classifier(), class_task(7)

    def again(model: nn.Module, plan: hc.Plan) -> hc.documents.Scores:
        with hc.masked(model, plan):
            return hc.score(model, task)

    made = hc.curve(model, task, again, step=4)
    once = hc.curve(model, task, hc.score(model, task), step=4)
    assert made.points[1].plan == once.points[1].plan
    with hc.masked(model, made.points[1].plan):
        second = [unit for unit in hc.score(model, task).order() if unit not in made.points[1].plan][:4]
    assert set(made.points[2].plan) == set(made.points[1].plan) | set(second)


# -- random orders, runs, JSON -------------------------------------------------------------------------------------------------


def test_random_orders_begin_and_end_at_the_same_model() -> None:
    model, task = classifier(), class_task(7)
    made = [hc.curve(model, task, scored(model, seed), step=4) for seed in (1, 2, 3, 1)]
    assert {tuple(point.removed for point in one.points) for one in made} == {(0, 4, 8, 12)}
    values = np.array([[point.result.value for point in one.points] for one in made])
    assert np.ptp(values, axis=0)[[0, 3]] == pytest.approx(0, abs=1e-5)
    assert np.ptp(values, axis=0)[1] > 1e-2
    assert [point.plan for point in made[0].points] == [point.plan for point in made[3].points]
    assert close(values[0], values[3])  # the same seed, the same curve


def test_a_run_goes_on_where_it_stopped(tmp_path) -> None:
    passes: list[int] = []

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        if len(passes) == stop:
            raise KeyboardInterrupt
        passes.append(1)
        return class_loss(model, batch)

    model, task, stop = classifier(), class_task(7, loss=loss), 2
    with pytest.raises(KeyboardInterrupt), hc.runs.Run.open(tmp_path / "run", {"what": "curve"}) as run:
        hc.curve(model, task, scored(model), step=4, run=run)
    stop = 99
    with hc.runs.Run.open(tmp_path / "run", {"what": "curve"}) as run:
        made = hc.curve(model, task, scored(model), step=4, run=run)
    assert len(passes) == 4  # one for each point, also over the interruption
    plain = hc.curve(model, class_task(7), scored(model), step=4)
    assert [point.plan for point in made.points] == [point.plan for point in plain.points]
    values = [[point.result.value for point in one.points] for one in (made, plain)]
    assert values[0] == pytest.approx(values[1], abs=1e-5)


def test_json_and_text() -> None:
    model, task = classifier(), class_task(7)
    made = hc.curve(model, task, scored(model), step=6)
    document = CurvesDocument(curves=(curves.curve_of(made),))
    assert CurvesDocument.from_json(document.to_json()) == document
    points = document.curves[0].points
    assert [point.removed for point in points] == [0, 6, 12]
    assert points[1].plan == made.points[1].plan
    assert points[2].comparison == made.points[2].comparison
    assert points[1].result.value == made.points[1].result.value
    lines = str(made).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("    6 of 12  ")


def test_gradients_do_not_leak_into_a_curve() -> None:
    model = classifier()
    hc.curve(model, class_task(7), scored(model), step=6)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert torch.is_grad_enabled()


# -- as people write it ----------------------------------------------------------------------------------------------


def test_a_curve_is_its_points() -> None:
    model = classifier()
    made = hc.curve(model, class_task(7), scored(model), step=4)
    assert list(made) == list(made.points)
    assert len(made) == len(made.points) == 4
    assert made[-1] is made.points[-1]
    assert [point.removed for point in made] == [0, 4, 8, 12]


@pytest.mark.parametrize(
    "say", [{"by": "taylor"}, {"scores": "taylor"}, {}, {"scores": "taylor", "by": "taylor"}], ids=repr
)
def test_a_criterion_is_scored_on_one_half_and_measured_on_the_other(say: dict[str, Any]) -> None:
    model, task = classifier(), class_task(16)
    made = hc.curve(model, task, step=4, seed=1, **say)
    halves = splits.share_out(task, {"score": 0.5, "report": 0.5}, 1).tasks
    assert 0 < made.base.n == halves["report"].size < task.size
    want = hc.curve(model, halves["report"], hc.score(model, halves["score"], "taylor"), step=4, seed=1)
    assert [point.plan for point in made] == [point.plan for point in want]
    assert [point.result.value for point in made] == pytest.approx([point.result.value for point in want], abs=1e-5)


def test_data_of_their_own_for_scores_leave_the_whole_task_to_be_measured_on() -> None:
    model, task = classifier(), class_task(16)
    parts = splits.share_out(task, {"score": 0.5, "report": 0.5}, 1).tasks
    made = hc.curve(model, parts["report"], by="taylor", score_data=parts["score"], step=4)
    assert made.base.n == parts["report"].size
    with says(hc.errors.BadData, about="never choose and report"):
        hc.curve(model, task, by="taylor", score_data=task)


def test_what_needs_no_data_splits_none() -> None:
    model = classifier()
    assert hc.curve(model, class_task(7), by="magnitude", step=12).base.n == 7


def test_scores_and_a_criterion_are_two_answers() -> None:
    model = classifier()
    for wrong in ({"scores": scored(model), "by": "taylor"}, {"scores": "taylor", "by": "random"}):
        with says(hc.errors.BadPlan):
            hc.curve(model, class_task(7), **wrong)
