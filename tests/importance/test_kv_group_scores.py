"""KV groups as units: a key-value head with its query heads, scored, chosen, closed and cut as one."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.same import close
from helpers.small_models import class_task, classifier, naive, zoo_task
from torch import nn

import headcount as hc
from headcount.documents.scores import Scores
from headcount.errors import BadPlan
from headcount.evaluation.ablation import plans_of
from headcount.importance import kv_group_scores
from headcount.pruning import choose, tradeoff

SUMMED = ("wanda", "flap", "activation", "block-influence")
GROUPED = ("llama", "mistral", "falcon-gqa")


def by_one_gate(model: nn.Module, task: hc.data.Task) -> tuple[list[hc.Plan], np.ndarray]:
    """The kv groups in their order, and the derivative (examples, groups) of the loss by one gate for all heads of a group."""
    plans = list(plans_of(hc.find(model), "kv-groups").values())
    gates = [torch.ones(1, requires_grad=True) for _ in plans]
    own = {head: gate for plan, gate in zip(plans, gates, strict=True) for head in plan}
    sites = {site.name: torch.cat([own[unit] for unit in site.units]) for site in hc.find(model).heads}
    rows = []
    for example in range(task.size):
        with hc.gated(model, sites):
            loss = task.loss(model, task.collate([example, example]))[0]
            rows.append([float(g) for g in torch.autograd.grad(loss, gates, retain_graph=True)])
    return plans, np.array(rows)


@pytest.mark.parametrize("name", GROUPED)
def test_a_kv_group_is_scored_as_one_gate(name: str) -> None:
    model, task = zoo_task(name)
    plans, derivative = by_one_gate(model, task)
    for by, want in (("taylor", np.abs(derivative)), ("fisher", 0.5 * np.square(derivative))):
        scores = hc.score(model, task, by, units="kv-groups", normalize=None)
        assert [scores.removing([unit]) for unit in scores] == [plan.units for plan in plans]
        assert scores.samples is not None
        assert scores.stderr is not None
        allowed = 1e-4 * want.max()
        assert np.abs(scores.samples - want).max() <= allowed
        assert np.abs(scores.stderr - want.std(0, ddof=1) / len(want) ** 0.5).max() <= allowed
    signed = hc.score(model, task, units="kv-groups", granularity="signed", normalize=None)
    assert np.abs(signed.raw + derivative.mean(0)).max() <= 1e-4 * np.abs(derivative).max()


def test_the_law_sees_absolute_values_that_were_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kv_group_scores.together

    def wrong(gathered: Any, parts: Any) -> Any:
        out = right(gathered, parts)
        out.absolute.update(kv_group_scores.summed(gathered.absolute, parts))
        return out

    monkeypatch.setattr("headcount.importance.criteria.together", wrong)
    with pytest.raises(AssertionError):
        test_a_kv_group_is_scored_as_one_gate("llama")


def test_ablation_closes_all_heads_of_a_group_at_once() -> None:
    model, task = zoo_task("llama")
    plans = plans_of(hc.find(model), "kv-groups")
    assert list(plans) == ["0.kv:0", "0.kv:1", "0.kv:2", "0.kv:3", "1.kv:0", "1.kv:1", "1.kv:2", "1.kv:3"]
    assert str(plans["0.kv:1"]) == "0:2-3"
    want = naive(model, task, list(plans.values())).mean(1)[:, 0] - naive(model, task, [hc.Plan()]).mean(1)[:, 0]
    scores = hc.score(model, task, "ablation", units="kv-groups")
    assert [str(unit) for unit in scores] == list(plans)
    close(scores.raw, want, np.abs(want).max())
    close(hc.ablate(model, task, "kv-groups").damage, want, np.abs(want).max())


@pytest.mark.parametrize("by", SUMMED)
def test_what_has_no_derivative_is_summed_over_the_heads(by: str) -> None:
    model, task = zoo_task("llama")
    heads = hc.score(model, task, by, normalize=None)
    groups = hc.score(model, task, by, units="kv-groups", normalize=None)
    want = [sum(heads[head] for head in groups.removing([unit])) for unit in groups]
    close(groups.raw, np.array(want), np.abs(want).max())


def test_the_size_of_a_group_counts_its_keys_and_values_once() -> None:
    model, _ = zoo.build("llama")
    scores = hc.score(model, by="magnitude", units="kv-groups")
    attention = model.model.layers[1].self_attn
    keys = slice(3 * 8, 4 * 8)  # the last kv head, and the two query heads that use it
    queries = slice(6 * 8, 8 * 8)
    parts = (
        attention.q_proj.weight[queries],
        attention.k_proj.weight[keys],
        attention.v_proj.weight[keys],
        attention.o_proj.weight[:, queries],
    )
    assert scores["1.kv:3"] == pytest.approx(sum(float(p.double().square().sum()) for p in parts) ** 0.5, rel=1e-6)


def test_where_heads_share_nothing_a_group_is_one_head() -> None:
    model, task = classifier(), class_task(5)
    heads, groups = hc.score(model, task), hc.score(model, task, units="kv-groups")
    assert close(heads.raw, groups.raw)
    assert [groups.removing([unit]) for unit in groups] == [frozenset([unit]) for unit in heads]


def test_groups_keep_their_names_when_others_are_cut() -> None:
    model, _ = zoo.build("llama")
    smaller = copy.deepcopy(model)
    hc.cut(smaller, "0:2-3 0:6")
    plans = plans_of(hc.find(smaller), "kv-groups")
    assert {name: str(plan) for name, plan in plans.items() if name[0] == "0"} == {
        "0.kv:0": "0:0-1",
        "0.kv:2": "0:4-5",
        "0.kv:3": "0:7",
    }


def test_scores_of_groups_are_written_and_read(tmp_path: Any) -> None:
    model, task = zoo_task("llama")
    scores = hc.score(model, task, units="kv-groups,neurons", by="fisher")
    scores.write(tmp_path / "scores.json")
    again = Scores.read(tmp_path / "scores.json")
    assert again.members == scores.members
    assert hc.plan(again, 60) == hc.plan(scores, 60)
    assert hc.plan(again, "25%", only="kv-groups").units == again.only("kv-group").removing(
        again.only("kv-group").order()[:2]
    )


def test_heads_share_the_score_of_their_group_in_equal_parts() -> None:
    model, task = zoo_task("llama")
    hc.cut(model, "0:2 1:0-1")  # groups of one, two and no heads
    scores = hc.score(model, task, "fisher", units="kv-groups,neurons")
    heads = scores.by_heads()
    assert heads.members == {}
    assert {unit for unit in heads if heads.kinds[unit.site] == "head"} == {
        u for s in hc.find(model).heads for u in s.units
    }
    for unit in scores:
        members = scores.removing([unit])
        assert sum(heads[head] for head in members) == pytest.approx(scores[unit], rel=1e-6)
        assert len({heads[head] for head in members}) == 1
    alone = hc.score(model, task, "fisher", units="kv-groups").by_heads()
    assert alone.samples is not None
    close(alone.samples.mean(0), alone.raw, float(alone.raw.max()))


@pytest.mark.parametrize("by", ["fisher", "wanda", "random"])
def test_a_share_of_the_groups_are_the_ones_with_the_lowest_scores(by: str) -> None:
    model, task = zoo_task("llama")
    choice = choose(model, remove=3, units="kv-groups", by=by, score=task, brake=None)
    assert choice.plan.units == hc.plan(hc.score(model, task, by, units="kv-groups"), 3).units
    assert (choice.units, choice.of, len(choice.plan)) == ("heads", 16, 6)


def test_budgets_and_rows_of_the_tradeoff_take_whole_groups() -> None:
    model, task = zoo_task("llama")
    whole = [plan.units for plan in plans_of(hc.find(model), "kv-groups").values()]
    front = tradeoff(model, task, units="kv-groups,neurons", step="20%", speeds=False)
    plans = [row.plan for row in front.rows]
    plans.append(choose(model, params="80%", units="kv-groups,neurons", score=task, brake=None).plan)
    assert any(unit.site in ("0", "1") for plan in plans for unit in plan)
    for plan in plans:
        assert all(group <= plan.units or not group & plan.units for group in whole)


def test_a_curve_goes_group_by_group() -> None:
    model, task = zoo_task("llama")
    scores = hc.score(model, task, units="kv-groups")
    line = hc.curve(model, task, scores, step=2)
    assert [point.removed for point in line] == [0, 4, 8, 12, 16]
    assert line.of == 16
    assert all(one.plan.units < two.plan.units for one, two in zip(line, list(line)[1:], strict=False))
    assert line[1].plan.units == hc.plan(scores, 2).units


def test_what_makes_no_sense_is_said() -> None:
    model, task = zoo_task("llama")
    with says(BadPlan, about="A kv group contains its heads"):
        hc.score(model, task, units="heads,kv-groups")
    with says(BadPlan, about="not seen token by token"):
        hc.score(model, task, units="kv-groups", granularity="token")
