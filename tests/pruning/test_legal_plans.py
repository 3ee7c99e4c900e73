"""Plans for a runtime: what is chosen can be held by it, and is the best of what can."""

from __future__ import annotations

import copy
import random
from collections import Counter
from importlib import import_module
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.same import close
from helpers.small_models import class_loss, texts
from torch import nn

import headcount as hc
from headcount.errors import BadPlan, Refused
from headcount.exports.even_groups import group_limits
from headcount.exports.formats import FORMATS, Settings
from headcount.plans import Plan, Unit, parse
from headcount.pruning import budget, choose, tradeoff
from headcount.pruning.legal_plans import (
    ANY,
    STAY_EVEN,
    RuntimeRule,
    legal,
    legal_order,
    must_be_legal,
    removing,
    rule_of,
)

GGUF, VLLM, TWO = rule_of("gguf"), rule_of("vllm"), rule_of("vllm", 2)


def holds(model: nn.Module, rule: RuntimeRule) -> bool:
    """Whether a cut model is within a rule, by its shapes."""
    for site in hc.find(model):
        sizes = {*Counter(site.kv_of).values()}
        if site.kind == "head" and (len(sizes) > 1 or len(site) % rule.parallel or site.kv_heads % rule.parallel):
            return False
        if (site.kind == "head" and rule.attention and not len(site)) or len(site) % rule.parallel:
            return False
    return not group_limits(model)


def planned(text: str) -> Plan:
    return Plan(frozenset(parse(text)))


def cut_copy(model: nn.Module, plan: Plan) -> nn.Module:
    smaller = copy.deepcopy(model)
    hc.cut(smaller, plan)
    return smaller


# -- a plan made legal ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [GGUF, VLLM, TWO], ids=str)
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_any_plan_becomes_one_that_can_be_held_by_giving_units_back(name: str, rule: RuntimeRule) -> None:
    model, _ = zoo.build(name)
    anatomy, draw = hc.find(model), random.Random(0)
    every = [unit for site in anatomy for unit in site.units]
    for share in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
        for _ in range(3):
            plan = Plan(frozenset(draw.sample(every, int(share * len(every)))), "drawn")
            fitting = legal(plan, anatomy, rule)
            assert fitting <= plan
            assert fitting.why == "drawn"
            assert legal(fitting, anatomy, rule) == fitting
            assert holds(cut_copy(model, fitting), rule)
            must_be_legal(fitting, anatomy, rule)
    assert legal(plan, anatomy, ANY) == plan


def test_what_is_worth_most_comes_back() -> None:
    anatomy = hc.find(zoo.build("mistral")[0])  # 8 heads, four to a group
    plan = anatomy.plan("0:0-2 0:4")
    worth = {Unit("0", n): float(n == 1) for n in range(8)} | {Unit("0", 2): 0.5}
    assert legal(plan, anatomy, GGUF, worth.__getitem__) == anatomy.plan("0:0 0:4")
    assert legal(plan, anatomy, GGUF, lambda unit: -worth[unit]).units >= anatomy.plan("0:1 0:4").units


def test_layers_that_go_are_left_as_they_are() -> None:
    anatomy = hc.find(zoo.build("mistral")[0])
    plan = anatomy.plan("layers:0 0:0-2 1:4")
    assert legal(plan, anatomy, GGUF) == anatomy.plan("layers:0 0:0-2")


# -- the best of what can be held --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [GGUF, VLLM, TWO], ids=str)
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_every_number_of_heads_loses_least_of_all_legal_plans_of_that_number(name: str, rule: RuntimeRule) -> None:
    anatomy = hc.find(zoo.build(name)[0])
    site = anatomy.heads[0]
    worth = dict(zip(site.units, np.random.default_rng(0).random(len(site)), strict=True))
    order = legal_order(site, budget.order_of(site.units, worth), rule)
    best: dict[int, float] = {}
    for count in range(len(site) + 1):  # by looking at all of them
        for staying in combinations(site.units, count):
            plan = Plan(frozenset(site.units) - set(staying))
            if legal(plan, anatomy, rule) == plan:
                loss = sum(worth[unit] for unit in plan.units)
                best[count] = min(best.get(count, np.inf), loss)
    assert order.gone is not None
    assert order.gone.keys() == best.keys()
    for count, loss in best.items():
        gone = order.without(count)
        assert len(gone) == len(site) - count
        assert legal(Plan(frozenset(gone)), anatomy, rule) == Plan(frozenset(gone))
        assert order.lost[len(site) - count] == pytest.approx(loss)
    assert legal_order(site, order, rule) is order


# -- choosing ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> tuple[nn.Module, Any, Any]:
    """A llama that sorts texts into three classes, and examples to score and to select on."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForSequenceClassification(LlamaConfig(**zoo.GQA4, num_labels=3)).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.2)
    batches = [{"input_ids": texts(80, seed=seed), "labels": torch.arange(80) % 3} for seed in (1, 2)]
    return model, *(hc.custom_task([batch], loss=class_loss) for batch in batches)


ASKED: dict[str, dict[str, Any]] = {
    "remove": {"remove": "40%", "by": "magnitude"},
    "remove several kinds": {"remove": 30, "by": "magnitude", "units": "heads,neurons"},
    "flops": {"flops": "60%", "units": "heads,neurons"},
    "params": {"params": "80%", "units": "heads,neurons,layers"},
    "max_drop": {"max_drop": 1000.0, "step": "20%"},
    "max_drop of several kinds": {"max_drop": 1000.0, "step": "20%", "units": "heads,neurons"},
    "tuned": {"remove": "40%", "tune": True},
}


@pytest.mark.parametrize(("runtime", "devices"), [("gguf", 1), ("vllm", 2), ("gguf,vllm", 1)])
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_what_is_chosen_for_a_runtime_has_no_limits_for_it(
    asked: dict[str, Any], runtime: str, devices: int, small: tuple[nn.Module, Any, Any]
) -> None:
    model, score, select = small
    data = {"score": score} | ({"select": select} if "max_drop" in asked else {})
    choice = choose(model, **asked, **data, brake=None, runtime=runtime, tensor_parallel=devices)
    assert choice.plan
    assert holds(cut_copy(model, choice.plan), rule_of(runtime, devices))
    if "flops" in asked:
        assert choice.budget is not None
        assert choice.budget.measured <= choice.budget.allowed


def test_without_a_runtime_groups_become_uneven(small: tuple[nn.Module, Any, Any]) -> None:
    model, score, _ = small
    choice = choose(model, remove="40%", by="magnitude", score=score, brake=None)
    assert group_limits(cut_copy(model, choice.plan))
    for runtime in ("onnx", "transformers", ""):
        assert choose(model, remove="40%", by="magnitude", brake=None, runtime=runtime).plan == choice.plan


@pytest.mark.parametrize("rule", [GGUF, TWO], ids=str)
def test_as_many_units_go_as_are_asked_for_or_the_fewest_beyond_that(rule: RuntimeRule) -> None:
    model, _ = zoo.build("llama")  # two attentions of 8 heads, two to a group
    anatomy = hc.find(model)
    scores = hc.score(model, by="magnitude")
    heads = {len(gone) for site in anatomy.heads for gone in _legal_sets(site, anatomy, rule)}
    possible = {a + b for a in heads for b in heads}
    for count in range(1, 17):
        plan = removing(count, scores, anatomy, rule)
        assert legal(plan, anatomy, rule) == plan
        assert len(plan) == min((n for n in possible if n >= count), default=max(possible))
    assert len(removing(1, scores, anatomy, rule)) > 1


def _legal_sets(site: hc.model.Site, anatomy: hc.model.Anatomy, rule: RuntimeRule) -> list[tuple[Unit, ...]]:
    sets = [gone for count in range(len(site) + 1) for gone in combinations(site.units, count)]
    return [gone for gone in sets if legal(Plan(frozenset(gone)), anatomy, rule).units == {*gone}]


def test_every_site_keeps_its_least() -> None:
    model, _ = zoo.build("mistral")
    scores = hc.score(model, by="magnitude")
    plan = removing(16, scores, hc.find(model), GGUF, least=5)
    assert [len(units) for units in plan.by_site().values()] == [2, 2], "six of eight stay: five cannot"


def test_a_plan_of_ones_own_is_refused_with_what_is_missing(small: tuple[nn.Module, Any, Any]) -> None:
    model, *_ = small
    with says(
        Refused, about="gguf cannot hold what this plan leaves of 1: it needs groups of one size, so 1:2 would have"
    ):
        choose(model, plan=planned("0:0-3 1:2"), runtime="gguf")
    with says(Refused, about="vllm on 2 devices cannot hold what this plan leaves of 0: "):
        choose(model, plan=planned("0:0-3"), runtime="vllm", tensor_parallel=2)
    assert choose(model, plan=planned("0:0-3"), runtime="gguf").plan == planned("0:0-3")


# -- models that write text ---------------------------------------------------------------------------------------------


def is_even(plan: Plan, model: nn.Module) -> bool:
    return holds(cut_copy(model, plan), GGUF)


@pytest.fixture(scope="module")
def writer() -> tuple[nn.Module, Any, dict[str, Any]]:
    """A llama that writes (two attentions of 8 heads, two to a group), texts to score it on, and a batch of them."""
    model, inputs = zoo.build("llama")
    ids = texts(80, seed=3)
    return model, hc.custom_task([{"input_ids": ids}], loss=_text_loss), inputs


def _text_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
    return nn.functional.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none").mean(1)


WRITERS = {name: asked for name, asked in ASKED.items() if name not in ("tuned", "remove several kinds")}


@pytest.mark.parametrize("asked", WRITERS.values(), ids=WRITERS)
def test_groups_of_a_model_that_writes_stay_even_unless_they_may_not(
    asked: dict[str, Any], writer: tuple[nn.Module, Any, dict[str, Any]]
) -> None:
    model, task, inputs = writer
    asked = {**asked, "by": "magnitude", "brake": None, "score": task, "length": 8}
    if "max_drop" in asked:
        asked |= {"select": hc.custom_task([{"input_ids": texts(80, seed=4)}], loss=_text_loss)}
    choice = choose(model, **asked)
    assert choice.plan
    assert is_even(choice.plan, model)
    assert choice.groups.startswith(STAY_EVEN)
    assert STAY_EVEN in str(choice)
    assert choice.told().groups == choice.groups
    free = choose(model, **asked, groups="uneven")
    assert free.groups == ""
    with hc.masked(model, choice.plan), torch.no_grad():
        masked = model(**inputs).logits
    with torch.no_grad():
        assert close(cut_copy(model, choice.plan)(**inputs).logits, masked)


def test_one_head_becomes_a_head_of_every_group_or_a_group(writer: tuple[nn.Module, Any, dict[str, Any]]) -> None:
    model, *_ = writer
    assert len(choose(model, remove=1, by="magnitude", groups="uneven").plan) == 1
    assert not is_even(choose(model, remove=1, by="magnitude", groups="uneven").plan, model)
    choice = choose(model, remove=1, by="magnitude")
    assert len(choice.plan) == 2
    assert choice.groups == f"{STAY_EVEN} 2 units go instead of 1."
    assert choice.plan.why.endswith("as even groups can hold it")
    assert choose(model, remove=2, by="magnitude").groups == STAY_EVEN
    assert choose(model, remove=1, by="magnitude", groups="even").plan == choice.plan
    assert choose(model, remove=1, by="magnitude", runtime="onnx").plan.units == choice.plan.units
    assert choose(model, remove=1, by="magnitude", runtime="gguf").groups == "", "asked for by the runtime"


def test_a_plan_of_ones_own_is_taken_as_it_is_and_its_groups_are_told(
    writer: tuple[nn.Module, Any, dict[str, Any]],
) -> None:
    model, *_ = writer
    choice = choose(model, plan=planned("0:0 1:3"))
    assert choice.plan == planned("0:0 1:3")
    assert "of different sizes in 2 attentions" in choice.groups
    assert "--groups pad" in choice.groups
    assert choose(model, plan=planned("0:0-1 1:0,2,4,6 1.mlp:3")).groups == ""
    assert choose(model, plan=planned("0:0 1:3"), groups="uneven").groups == ""
    with says(Refused, about="even groups cannot hold what this plan leaves of 0: it needs groups of one size, so 0:0"):
        choose(model, plan=planned("0:0"), groups="even")


@pytest.mark.parametrize("name", ["gpt2", "gpt_bigcode", "bert"])
def test_models_without_grouped_queries_are_left_alone(name: str) -> None:
    model, _ = zoo.build(name)
    choice = choose(model, remove=1, by="magnitude")
    assert (len(choice.plan), choice.groups) == (1, "")
    assert choose(model, remove=1, by="magnitude", groups="even").plan.units == choice.plan.units


def test_units_that_leave_groups_even_and_models_that_are_uneven_already(
    writer: tuple[nn.Module, Any, dict[str, Any]],
) -> None:
    model, *_ = writer
    for units in ("neurons", "layers", "kv-groups"):
        assert choose(model, remove=1, by="magnitude", units=units).groups == ""
    smaller = cut_copy(model, planned("0:0"))
    assert len(choose(smaller, remove=1, by="magnitude").plan) == 1
    even = choose(smaller, remove=1, by="magnitude", groups="even").plan
    assert is_even(even, smaller)


def test_the_rows_of_a_trade_off_of_a_model_that_writes(writer: tuple[nn.Module, Any, dict[str, Any]]) -> None:
    model, task, _ = writer
    asked: dict[str, Any] = {"step": "25%", "by": "magnitude", "speeds": False, "brake": None, "length": 8}
    front = tradeoff(model, task, **asked)
    assert front.rows
    assert all(is_even(row.plan, model) for row in front.rows)
    assert front.groups == STAY_EVEN
    assert type(front).from_json(front.to_json()).groups == STAY_EVEN
    assert tradeoff(model, task, **asked, groups="uneven").groups == ""


def test_what_is_asked_of_groups_must_be_possible() -> None:
    with says(BadPlan, about="gguf holds even groups of query heads alone"):
        rule_of("gguf", groups="uneven")
    with says(BadPlan, about='groups (--groups) is \'odd\'; it must be "even" or "uneven"'):
        rule_of(groups="odd")


def test_what_a_rule_is_made_of() -> None:
    assert rule_of("onnx,openvino").binds is False
    assert str(rule_of("gguf, vllm", 4)) == "gguf and vllm on 4 devices"
    with says(BadPlan, about="tensor_parallel (--tensor-parallel) is for vllm"):
        rule_of("gguf", 2)
    with says(BadPlan, about="tensor_parallel (--tensor-parallel) is 0"):
        rule_of("vllm", 0)


@pytest.mark.parametrize("runtime", [name for name, row in FORMATS.items() if row.even_groups])
def test_the_writer_of_the_format_agrees(runtime: str) -> None:
    module = f"headcount.exports{FORMATS[runtime].module}"
    model, _ = zoo.build("llama")
    devices = 2 if runtime == "vllm" else 1
    for asked in ({"remove": "60%", "units": "heads,neurons"}, {"flops": "50%", "units": "heads,neurons"}):
        choice = choose(model, **asked, by="magnitude", length=8, runtime=runtime, tensor_parallel=devices)
        limits = import_module(module).limits(cut_copy(model, choice.plan), Settings(tensor_parallel=devices))
        assert [*limits] == []


def test_the_rows_of_a_trade_off_for_a_runtime_can_be_held(small: tuple[nn.Module, Any, Any]) -> None:
    model, score, _ = small
    asked: dict[str, Any] = {"step": "25%", "by": "magnitude", "speeds": False, "brake": None}
    rows = tradeoff(model, score, **asked, runtime="vllm", tensor_parallel=2).rows
    assert rows
    assert all(holds(cut_copy(model, row.plan), TWO) for row in rows)
    assert not all(holds(cut_copy(model, row.plan), TWO) for row in tradeoff(model, score, **asked).rows)
