"""`ablate`, `ablate_all_but_one`, `transfer`: against loops over `masked` written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from conftest import says
from helpers import zoo
from helpers.same import close
from helpers.small_models import class_loss, class_task, classifier, ragged_pairs, texts, zoo_task
from torch import Tensor, nn

import headcount as hc
from headcount.cli.text import transfer_text
from headcount.evaluation import ablation
from headcount.evaluation.ablation import plans_but_one, plans_of
from headcount.stats.metrics import metric


def alone(model: nn.Module, task: hc.data.Task, plan: str | list[hc.Unit]) -> float:
    """The metric with a plan masked, by `evaluate` inside `masked`."""
    with hc.masked(model, plan):
        return hc.evaluate(model, task).value


# -- each in turn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", ["heads", "neurons", "mlps", "attentions", "layers"])
def test_each_is_the_model_with_that_closed(units: str) -> None:
    model, task = classifier(), class_task(7)
    found = hc.ablate(model, task, units, block=20)
    names = {
        "heads": [f"{layer}:{head}" for layer in range(3) for head in range(4)],
        "neurons": [f"{layer}.mlp:{some}" for layer in range(3) for some in ("0-19", "20-39", "40-47")],
        "mlps": [f"{layer}.mlp:*" for layer in range(3)],
        "attentions": [f"{layer}:*" for layer in range(3)],
        "layers": [f"layers:{layer}" for layer in range(3)],
    }
    assert list(found.names) == names[units]
    batch = task.collate(range(7))
    with torch.no_grad():
        whole = class_loss(model, batch).double().numpy()
        each = []
        for name in found.names:
            with hc.masked(model, name):
                each.append(class_loss(model, batch).double().numpy())
    assert close(found.base.rows[:, 0], whole)
    assert close(found.rows[..., 0], np.stack(each))
    assert close(found.values, np.stack(each).mean(1))
    assert close(found.damage, np.stack(each).mean(1) - whole.mean())  # more loss is worse
    assert np.abs(found.damage).min() > 1e-3  # nothing is closed for nothing


def test_of_an_encoder_decoder() -> None:
    model, _ = zoo.build("bart")
    model.config.pad_token_id = 1
    task = ragged_pairs()
    found = hc.ablate(model, task)
    assert len(found.names) == 24
    for name in ("encoder.0:1", "decoder.1.self:0", "decoder.0.cross:3"):
        assert found.values[found.names.index(name)] == pytest.approx(alone(model, task, name), rel=1e-5)


def test_damage_is_positive_where_it_got_worse_whichever_way_the_metric_runs() -> None:
    def right(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return -class_loss(model, batch)

    model = classifier()
    less, more = hc.ablate(model, class_task(7)), hc.ablate(model, class_task(7, values=right, loss=class_loss))
    assert close(less.damage, more.damage)
    assert close(less.values, -more.values)


def test_a_mapping_of_plans_of_ones_own() -> None:
    model, task = classifier(), class_task(7)
    found = hc.ablate(model, task, {"two": hc.Plan.of("0:1", "2:3"), "a layer": "layers:1"})
    assert found.values.tolist() == pytest.approx(
        [alone(model, task, "0:1 2:3"), alone(model, task, "layers:1")], abs=1e-5
    )
    with says(hc.errors.BadPlan, about="Only the ablation of single units"):
        found.scores()


def test_scores_are_the_damage() -> None:
    model, task = classifier(), class_task(7)
    found = hc.ablate(model, task)
    scores = found.scores()
    assert [str(unit) for unit in scores.units] == list(found.names)
    assert np.array_equal(scores.values, found.damage)
    assert scores.kinds == dict.fromkeys(("0", "1", "2"), "head")
    assert scores.types == dict.fromkeys(("0", "1", "2"), "encoder")
    assert close(scores.raw, hc.score(model, task, "ablation").raw)


def test_comparisons_are_those_of_the_rows() -> None:
    found = hc.ablate(classifier(), class_task(12))
    made = found.comparisons("t")
    for rows, comparison in zip(found.rows[..., 0], made, strict=True):
        want = scipy.stats.ttest_rel(rows, found.base.rows[:, 0])
        assert comparison.p == pytest.approx(want.pvalue, rel=1e-6)
        assert comparison.difference == pytest.approx(rows.mean() - found.base.rows[:, 0].mean())
    assert all(one.p_holm >= one.p for one in made)


def test_neurons_go_in_twelfths_where_nothing_is_said() -> None:
    plans = plans_of(hc.find(classifier(1)), "neurons")
    assert [len(plan) for plan in plans.values()] == [4] * 12
    assert list(plans)[:2] == ["0.mlp:0-3", "0.mlp:4-7"]
    assert frozenset().union(*(plan.units for plan in plans.values())) == frozenset(
        hc.find(classifier(1))["0.mlp"].units
    )


def test_after_a_cut_only_what_is_there_is_closed() -> None:
    model = classifier()
    hc.cut(model, "0:0-2 1:1")
    assert list(plans_of(hc.find(model), "heads")) == ["0:3", "1:0", "1:2", "1:3", "2:0", "2:1", "2:2", "2:3"]
    assert [str(plan) for plan in plans_but_one(hc.find(model)).values()][:3] == ["1:2-3", "1:0,3", "1:0,2"]


def test_wrong_requests() -> None:
    with says(hc.errors.BadPlan, about="heads, neurons, mlps, attentions, layers"):
        hc.ablate(classifier(), class_task(7), "head")
    model, task = zoo_task("mixtral")
    with says(hc.errors.BadPlan, about="no mlps to close"):
        hc.ablate(model, task, "mlps")
    with says(hc.errors.BadPlan, about="9"):
        hc.ablate(classifier(), class_task(7), {"too far": hc.Plan.of("0:9")})


# -- all but one -------------------------------------------------------------------------------------------------------


def two_tasks() -> tuple[hc.data.Task, hc.data.Task]:
    """Two small sets of examples on which different heads do best."""
    select = hc.custom_task([{"input_ids": texts(5, seed=3), "labels": torch.arange(5) % 3}], loss=class_loss)
    report = hc.custom_task([{"input_ids": texts(6, seed=4), "labels": torch.arange(6) % 2}], loss=class_loss)
    return select, report


def best_heads(model: nn.Module, task: hc.data.Task) -> dict[str, int]:
    """By hand: the head of each attention that does best on the task with all the others masked."""
    best = {}
    for layer in range(3):
        losses = [
            alone(model, task, [hc.Unit(str(layer), other) for other in range(4) if other != head]) for head in range(4)
        ]
        best[str(layer)] = int(np.argmin(losses))
    return best


def law_chosen_on_one_reported_on_the_other() -> None:
    model, (select, report) = classifier(), two_tasks()
    chosen, flattered = best_heads(model, select), best_heads(model, report)
    assert chosen != flattered  # or the test could not tell
    base, rows, on_select = hc.evaluation.ablate_all_but_one(model, report, select)
    assert base.value == pytest.approx(hc.evaluate(model, report).value, abs=1e-5)
    assert {row.site: row.head.index for row in rows} == chosen
    for row in rows:
        others = [hc.Unit(row.site, head) for head in range(4) if head != row.head.index]
        assert row.chosen_on == pytest.approx(alone(model, select, others), abs=1e-5)
        assert row.comparison.after == pytest.approx(alone(model, report, others), abs=1e-5)
        assert row.comparison.before == pytest.approx(base.value, abs=1e-5)
        assert row.comparison.n == 6
        assert row.comparison.p_holm is not None
    assert len(on_select.names) == 12
    assert on_select.base.n == 5


def test_the_head_that_stays_is_chosen_on_other_examples_than_it_is_reported_on() -> None:
    law_chosen_on_one_reported_on_the_other()


@pytest.mark.parametrize("planted", [(0, 0), (1, 1), (1, 0)])
def test_the_law_sees_choosing_and_reporting_on_the_same_examples(planted: tuple[int, int], monkeypatch) -> None:
    right = ablation.ablate
    tasks: list[hc.data.Task] = []

    def same_task(model: nn.Module, task: hc.data.Task, *args: Any, name: str, **more: Any) -> Any:
        tasks.append(task)
        select, report = tasks[0], two_tasks()[1]
        use = (select, report)[planted[0] if name == "select" else planted[1]]
        return right(model, use, *args, name=name, **more)

    monkeypatch.setattr(ablation, "ablate", same_task)
    with pytest.raises(AssertionError):
        law_chosen_on_one_reported_on_the_other()


def test_attentions_with_one_head_are_not_asked() -> None:
    model = classifier(2)
    hc.cut(model, "0:0-2")
    _, rows, _ = hc.evaluation.ablate_all_but_one(model, *two_tasks())
    assert [row.site for row in rows] == ["1"]
    hc.cut(model, "1:0-2")
    with says(hc.errors.BadPlan, about="no attention with more than one head"):
        hc.evaluation.ablate_all_but_one(model, *two_tasks())


# -- transfer ----------------------------------------------------------------------------------------------------------


def test_transfer_correlates_the_damage_of_each_head() -> None:
    model, tasks = classifier(), two_tasks()
    found = hc.evaluation.transfer(model, tasks)
    damage = []
    for task in tasks:
        whole = hc.evaluate(model, task).value
        damage.append([alone(model, task, f"{layer}:{head}") - whole for layer in range(3) for head in range(4)])
    assert found.one.base.n == 5
    assert found.other.base.n == 6
    want = scipy.stats.pearsonr(*damage)
    assert found.pearson.value == pytest.approx(want.statistic, abs=1e-4)
    assert found.pearson.p == pytest.approx(want.pvalue, abs=1e-3)
    assert found.spearman.value == pytest.approx(scipy.stats.spearmanr(*damage).statistic, abs=1e-9)
    assert hc.evaluation.transfer(model, (tasks[0], tasks[0])).pearson.value == pytest.approx(1)


def test_a_run_keeps_both_halves_apart(tmp_path) -> None:
    model, tasks = classifier(), two_tasks()
    plain, found = hc.evaluation.transfer(model, tasks), []
    for _ in range(2):
        with hc.runs.Run.open(tmp_path / "run", {"what": "transfer"}) as run:
            found.append(hc.evaluation.transfer(model, tasks, run=run))
    for half in ("one", "other"):
        first, again = (getattr(each, half).rows for each in found)
        assert close(first, getattr(plain, half).rows)
        assert np.array_equal(again, first)  # read from the run, not computed again


def test_a_run_may_hold_an_ablation_besides_a_transfer(tmp_path) -> None:
    model, tasks = classifier(1), two_tasks()
    with hc.runs.Run.open(tmp_path / "run", {"what": "both"}) as run:
        first = hc.ablate(model, tasks[0], run=run)
        found = hc.evaluation.transfer(model, tasks, run=run)
    assert close(found.one.rows, first.rows)
    assert close(found.other.rows, hc.ablate(model, tasks[1]).rows)


def test_there_are_enough_draws_for_holm_to_find_something() -> None:
    """One of 144 plans breaks the model, the others do nothing: corrected for all of them, that one stands out."""
    right = np.ones((200, 1))
    rows = np.stack([right] * 144)
    rows[7, :40] = 0
    names = tuple(f"0:{n}" for n in range(144))
    plans = tuple(hc.Plan.of(name) for name in names)
    found = hc.evaluation.Ablation(
        names, plans, hc.stats.Result(metric("mean"), right), rows, {"0": ("head", "encoder")}
    )
    made = found.comparisons()
    assert [one.significant() for one in made] == [n == 7 for n in range(144)]
    assert made[7].p == pytest.approx(1 / (1 + 100 * 144)), "the least that so many draws can give"
    assert not any(one.significant() for one in found.comparisons(resamples=1000))


def _noisy(real: float, noise: float, shared: float = 0.0, seed: int = 0) -> hc.evaluation.Ablation:
    """50 heads whose damage on 400 examples has so much spread, and so much noise per example, own and shared by all."""
    draw = np.random.default_rng(seed)
    damage = draw.normal(0, real, 50)[:, None] + draw.normal(0, noise, (50, 400)) + draw.normal(0, shared, 400)
    names = tuple(f"0:{n}" for n in range(50))
    rows = np.stack([-row[:, None] for row in damage])
    whole = hc.stats.Result(metric("mean"), np.zeros((400, 1)))
    return hc.evaluation.Ablation(names, tuple(map(hc.Plan.of, names)), whole, rows, {"0": ("head", "encoder")})


def test_reliability_is_the_share_of_the_spread_that_is_not_noise() -> None:
    assert _noisy(1.0, 0.0).reliability() == pytest.approx(1)
    assert _noisy(1.0, 0.0, shared=20.0).reliability() == pytest.approx(1), "what all share does not spread them"
    assert _noisy(0.0, 0.0).reliability() == 0
    assert _noisy(0.0, 20.0).reliability() < 0.5  # 1 / 20 of 400 examples: noise of 1
    # half of the variance is noise, so that two measurements of the same damages would correlate with one half
    halves = [_noisy(1.0, 20.0, seed=seed).reliability(resamples=300) for seed in range(20)]
    assert np.mean(halves) == pytest.approx(0.5, abs=0.1)
    noisy = _noisy(1.0, 20.0)
    assert noisy.reliability() == pytest.approx(noisy.reliability(resamples=1000), rel=1e-9), "where nothing is said"


def test_a_transfer_knows_what_noise_leaves_room_for() -> None:
    found = hc.evaluation.transfer(classifier(), two_tasks())
    want = np.sqrt(found.one.reliability() * found.other.reliability())
    assert found.ceiling == pytest.approx(want)
    assert 0 <= found.ceiling_low <= found.ceiling <= found.ceiling_high <= 1
    again = hc.evaluation.transfer(classifier(), two_tasks())
    assert (again.ceiling_low, again.ceiling_high) == pytest.approx((found.ceiling_low, found.ceiling_high), abs=1e-4)
    assert f"room for {found.ceiling:.2f} [{found.ceiling_low:.2f}, {found.ceiling_high:.2f}]" in transfer_text(found)


@pytest.mark.parametrize(("real", "shared"), [(1.0, 0.0), (1.0, 20.0), (2.0, 0.0)])
def test_resamples_say_how_far_a_reliability_is_known(real: float, shared: float) -> None:
    """50 heads with noise of 1 on 400 examples: of the spread real^2 is real, and intervals should hold that share."""
    worlds, missed, wide = 60, 0, []
    for seed in range(worlds):
        damage = np.random.default_rng(seed).normal(0, real, 50)  # the first draw of _noisy: what the heads are worth
        want = np.var(damage) / (np.var(damage) + 1)
        made = _noisy(real, 20.0, shared, seed=seed)
        point, drawn = made.reliabilities(resamples=200)
        low, high = np.percentile(drawn, [2.5, 97.5])
        assert point == made.reliability(resamples=200)
        missed += not low <= want <= high
        wide.append(high - low)
    assert missed <= worlds * 0.05 + 3 * np.sqrt(worlds * 0.05 * 0.95)
    assert np.mean(wide) < (0.65 if real == 1 else 0.25), "an interval that says something"


def test_where_nothing_is_noise_or_everything_is_the_interval_says_so() -> None:
    assert np.allclose(_noisy(1.0, 0.0).reliabilities()[1], 1)
    assert np.array_equal(_noisy(0.0, 0.0).reliabilities()[1], np.zeros(1000))
    point, drawn = _noisy(0.0, 20.0).reliabilities()
    assert point < 0.5
    assert np.percentile(drawn, 2.5) == 0
