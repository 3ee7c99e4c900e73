"""Budgets: what a plan costs is known before it is cut, and what is cut is never over the budget."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.small_models import classifier, closable, texts, zoo_task

import headcount as hc
from headcount.documents.bench import Speed
from headcount.efficiency import costs, latency
from headcount.plans import Unit
from headcount.pruning import budget as budgets
from headcount.pruning import candidates

ROUTED = ("switch_transformers", "nllb_moe")  # what an expert is given changes with what stands before it
BOUNDED = ("deberta", "deberta-v2")  # tables of positions go through the readers too: a bound, not an equality


def speed_row(ratio: float, **more: Any) -> Speed:
    """A row of `bench`, of a model so many times as fast as the whole one."""
    return Speed("smaller", 16, 128, 16.0, 16.0, 16.0, ratio, ratio, ratio, 1.0, ratio, **more)


def _mix(model: Any, seed: int) -> hc.Plan:
    """Some units of every kind, by chance."""
    draw, anatomy, units = random.Random(seed), hc.find(model), list[Unit]()
    for site in anatomy:
        if len(site) and draw.random() < 0.7:
            units += draw.sample(list(site.units), draw.randint(0, len(site)))
    for stack in closable(model, anatomy):
        if len(stack) > 1 and draw.random() < 0.4:
            units.append(draw.choice(stack.units))
    return hc.Plan(frozenset(units))


def _shares_keys(model: Any) -> bool:
    return any(len(site) != site.kv_heads for site in hc.find(model).heads)


@pytest.mark.parametrize("name", sorted(zoo.ZOO))
def test_operations_and_parameters_are_those_of_the_cut_model(name: str) -> None:
    model, inputs = zoo.build(name)
    work, weights = costs.operations(model, batch=inputs), costs.parameters(model)
    assert work.whole == costs.operations_of(model, inputs)
    assert weights.whole == sum(p.numel() for p in model.parameters())
    for seed in range(8):
        plan, smaller = _mix(model, seed), copy.deepcopy(model)
        try:
            hc.cut(smaller, plan)
        except hc.errors.Refused:
            continue
        real = costs.operations_of(smaller, inputs), sum(p.numel() for p in smaller.parameters())
        reckoned = work.of(plan), weights.of(plan)
        exact = not _shares_keys(model) and name not in (*ROUTED, *BOUNDED)
        if exact:
            assert reckoned[0] == pytest.approx(real[0], rel=1e-9)
            assert reckoned[1] == real[1] or any(stack.name in plan.by_site() for stack in hc.find(model).stacks)
        if name not in ROUTED:
            assert real[0] <= reckoned[0] * (1 + 1e-9)
        break


def test_counting_keeps_nothing_for_a_backward_pass() -> None:
    """Also where the batch itself asks for gradients; what is counted is the same as for ids."""
    model, recorded = classifier(), list[bool]()
    model.register_forward_hook(lambda _, __, output: recorded.append(output.logits.requires_grad))
    asking = {"inputs_embeds": torch.zeros(1, 9, model.config.hidden_size, requires_grad=True)}
    ids = {"input_ids": texts(1, 9)}
    assert costs.operations(model, batch=asking).whole == costs.operations(model, batch=ids).whole
    assert costs.operations_of(model, asking) == costs.operations_of(model, ids)
    assert recorded == [False] * 4


# another decoder, another encoder-decoder and another model with shared keys: what each costs is tested above
MORE = [pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "bart", "gemma2")]


@pytest.mark.parametrize("name", ["bert", "t5", "vit", "llama", *MORE])
@pytest.mark.parametrize("what", ["flops", "params"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_random_budgets_are_never_exceeded(name: str, what: str, seed: int) -> None:
    model, task = zoo_task(name)
    kept, draw = Fingerprint(model), random.Random(f"{name} {what} {seed}")
    inputs = zoo.build(name)[1]
    for units in ("heads,neurons", "heads,neurons,layers", "neurons"):
        scores = hc.score(model, task, "fisher", units=units)
        purse = budgets.purse(model, scores, what, length=8, multiple=draw.choice([1, 4, 16]))
        if what == "flops":  # of the family's own batch: dummies have other positions
            purse = budgets.BudgetProblem(model, scores, costs.operations(model, 8), multiple=purse.multiple, length=8)
        least = purse.cheapest() / purse.costs.whole
        for _ in range(2):
            share = draw.uniform(least, 1)
            try:
                plan, budget = budgets.within(purse, share)
            except hc.HeadcountError as error:
                if "nothing to remove" not in str(error) and share >= least + 0.05:
                    raise
                continue
            smaller = copy.deepcopy(model)
            hc.cut(smaller, plan, check=inputs)
            if what == "params":
                real = sum(p.numel() for p in smaller.parameters())
            else:
                real = costs.operations_of(smaller, costs.one_example(model, 8))
            assert real <= share * purse.costs.whole
            assert budget.measured == real
            assert budget.allowed == share * purse.costs.whole
            if not _shares_keys(model) and "layers" not in units:
                assert budget.predicted == pytest.approx(real, rel=1e-9)
    assert not kept.changed()


def test_what_stays_has_widths_in_multiples_and_the_best_units() -> None:
    model, _ = zoo.build("bert")
    anatomy = hc.find(model)
    size = len(anatomy["0.mlp"])
    units = tuple(unit for site in anatomy.neurons for unit in site.units)
    raw = np.random.default_rng(0).random(len(units))
    scores = hc.documents.Scores(
        units, raw, "made", {s.name: "neuron" for s in anatomy.neurons}, {s.name: None for s in anatomy.neurons}
    )
    step = max(1, size // budgets.PARTS)
    for multiple in (1, step):
        purse = budgets.BudgetProblem(model, scores, costs.parameters(model), multiple=multiple)
        plan, _ = budgets.within(purse, 0.5 + purse.cheapest() / purse.costs.whole / 2)
        worth = dict(zip(units, raw, strict=True))
        for site in anatomy.neurons:
            gone = [unit for unit in site.units if unit in plan]
            assert (size - len(gone)) % multiple == 0
            stay = [worth[unit] for unit in site.units if unit not in plan]
            assert not gone or not stay or max(worth[unit] for unit in gone) < min(stay)


def test_at_least_so_many_stay_and_one_layer_always() -> None:
    model, task = zoo_task("bert")
    scores = hc.score(model, task, "fisher", units="heads,neurons,layers")
    purse = budgets.purse(model, scores, "params", least=1)
    plan = purse.buy(purse.cheapest())
    anatomy = hc.find(model)
    assert len([unit for unit in plan if unit.site == "layers"]) == len(anatomy["layers"]) - 1
    purse = budgets.purse(model, scores.only("head", "neuron"), "params", least=2)
    plan = purse.buy(purse.cheapest())
    assert {len(site) - len(plan.by_site().get(site.name, ())) for site in anatomy} == {2}


def test_where_nothing_may_go_the_least_is_the_whole() -> None:
    model, _ = zoo.build("bert")
    purse = budgets.BudgetProblem(model, hc.documents.Scores((), np.zeros(0), "made", {}, {}), costs.parameters(model))
    assert purse.cheapest() == purse.costs.whole
    assert not purse.buy(purse.costs.whole)
    with says(hc.errors.BadPlan, about="without all 0 units 100 % are left"):
        budgets.within(purse, 0.5)


def test_what_is_lost_without_a_unit_is_its_score_from_zero_on() -> None:
    units = tuple(Unit("0", number) for number in range(3))
    for raw, lost in (([0.5, 2.0, 1.0], [0.5, 2.0, 1.0]), ([0.5, -2.0, 1.0], [2.5, 0.0, 3.0])):
        scores = hc.documents.Scores(units, np.array(raw), "made", {"0": "head"}, {"0": None})
        assert budgets.worth_of(scores) == dict(zip(units, lost, strict=True))


def test_a_budget_that_cannot_be_kept_says_what_could_be() -> None:
    model, task = zoo_task("bert")
    with says(hc.errors.BadPlan, about="cannot be reached: without all"):
        hc.pruning.choose(model, params="1%", score=task, units="heads,neurons")
    with says(hc.errors.BadPlan, about="above 0 and below 1"):
        hc.pruning.choose(model, flops="150%", score=task)
    with says(hc.errors.BadPlan, about="above 0 and below 1"):
        hc.pruning.choose(model, params=60, score=task)
    with says(hc.errors.BadPlan, about="in one way"):
        hc.pruning.choose(model, params="60%", flops="60%", score=task)
    with says(hc.errors.BadPlan, about="looks at examples"):
        hc.pruning.choose(model, remove=1, by="magnitude", tune=True)


# -- seconds -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[hc.Plan]:
    """A machine on which a pass takes a second for the rest, and for every head and neuron what is said here."""
    measured: list[hc.Plan] = []

    def takes(model: Any) -> float:
        heads = sum(0.3 + 0.2 * len(site) for site in hc.find(model).heads if len(site))
        return 1.0 + heads + sum(0.05 * len(site) for site in hc.find(model).neurons)

    def bench(models: dict[str, Any], **_: Any) -> Any:
        whole, smaller = takes(models["whole"]), takes(models["smaller"])
        measured.append(hc.removed(models["smaller"]))
        first = SimpleNamespace(examples_per_second=16 / whole)
        return SimpleNamespace(rows=[first, speed_row(whole / smaller)])

    monkeypatch.setattr(latency, "bench", bench)
    monkeypatch.setattr(budgets, "bench", bench)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return measured


def test_tables_hold_what_was_measured_and_are_measured_once(clock: list[hc.Plan], tmp_path: Path) -> None:
    model, _ = zoo.build("bert")
    found = latency.seconds(model, ("head", "neuron"))
    heads, neurons = found.sites["0"], found.sites["0.mlp"]
    assert heads == pytest.approx(
        [0.0, *(0.3 + 0.2 * np.arange(1, len(heads)))]
    )  # a step at the first head, then a line
    assert np.diff(neurons) == pytest.approx(0.05)
    often = len(clock)
    again = latency.seconds(model, ("head", "neuron"))
    assert len(clock) == often, "read from the cache"
    assert all((again.sites[name] == found.sites[name]).all() for name in found.sites)
    latency.seconds(model, ("head", "neuron"), batch_size=1)
    assert len(clock) == 2 * often, "another batch size is another question"
    (file, _) = sorted((tmp_path / "cache" / "headcount").iterdir())
    for damaged in ("", "{", json.dumps({"about": None})):
        file.write_text(damaged)
        latency.seconds(model, ("head", "neuron"))
        latency.seconds(model, ("head", "neuron"), batch_size=1)
    assert len(clock) == 5 * often, "a damaged file is measured anew, and replaced"


def test_noise_never_makes_fewer_units_dearer(clock: list[hc.Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    draw, really = random.Random(0), latency.bench

    def noisy(models: dict[str, Any], **asked: Any) -> Any:
        rows = really(models, **asked).rows
        ratio = rows[1].ratio * draw.uniform(0.95, 1.05)
        rows[1] = replace(rows[1], ratio=ratio, ratio_low=0.9 * ratio, ratio_high=1.1 * ratio)
        return SimpleNamespace(rows=rows)

    monkeypatch.setattr(latency, "bench", noisy)
    found = latency.seconds(zoo.build("bert")[0], ("head", "neuron", "layer"))
    assert found.clock == "wall", "a table that is monotone within its quartiles is repaired and used"
    assert all((np.diff(table) >= 0).all() for table in found.sites.values())
    assert all(cost >= 0 for cost in found.layers.values())


def noisy_clock(monkeypatch: pytest.MonkeyPatch, bad: str, kind: str) -> list[str]:
    """Timings that others disturb, that scatter, or in which fewer units take longer: by one clock or by both."""
    asked, really = list[str](), latency.bench

    def noisy(models: dict[str, Any], **options: Any) -> Any:
        clock = "processor" if options.get("clock") is latency.by_processor else "wall"
        asked.append(clock)
        rows = really(models, **options).rows if "smaller" in models else [speed_row(1.0)]
        if bad in (clock, "both") and len(rows) > 1:
            if kind == "busy":  # steady, and wrong: all timings are slow alike
                rows[1] = replace(rows[1], ratio=1.03, ratio_low=1.03, ratio_high=1.06, disturbed=True, waited=0.45)
            elif kind == "wide":
                rows[1] = replace(rows[1], ratio_low=0.8 * rows[1].ratio, ratio_high=1.3 * rows[1].ratio)
            else:  # the fewer heads and neurons are left, the slower it seems
                rows[1] = replace(rows[1], **dict.fromkeys(("ratio", "ratio_low", "ratio_high"), 2 / rows[1].ratio))
        return SimpleNamespace(rows=rows)

    monkeypatch.setattr(latency, "bench", noisy)
    return asked


@pytest.mark.parametrize(
    ("kind", "why"), [("busy", "that other programs used"), ("wide", "differ too much"), ("order", "longer")]
)
def test_noise_is_said_and_never_kept(
    kind: str, why: str, clock: list[hc.Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, kinds = zoo.build("bert")[0], ("head", "neuron")
    true, quiet = latency.seconds(model, kinds, length=9), latency.bench
    files = sorted((tmp_path / "cache" / "headcount").iterdir())
    noisy_clock(monkeypatch, "wall", kind)
    by_work = latency.seconds(model, kinds, length=8)
    assert by_work.clock == "processor"
    assert "processor time of one thread" in by_work.note
    assert why in by_work.note
    assert all(by_work.sites[name] == pytest.approx(true.sites[name]) for name in true.sites)
    monkeypatch.setattr(latency, "bench", quiet)
    noisy_clock(monkeypatch, "both", kind)
    by_count, counts = latency.seconds(model, kinds, length=7), costs.operations(model, 7)
    assert by_count.clock == "counts"
    assert "multiply-adds" in by_count.note
    assert why in by_count.note
    shares = counts.sites["0"] / counts.whole
    assert by_count.sites["0"] / by_count.whole == pytest.approx(shares)
    kept = [json.loads(path.read_text())["about"] for path in sorted((tmp_path / "cache" / "headcount").iterdir())]
    assert [(about["length"], about["clock"]) for about in kept if about["length"] != 9] == [(8, "processor")]
    monkeypatch.setattr(latency, "bench", quiet)
    for length in (7, 8):
        assert latency.seconds(model, kinds, length=length).clock == "wall", "a quiet machine measures anew"
    assert len(files) == 1


def test_a_table_that_is_not_monotone_is_not_read_back(clock: list[hc.Plan], tmp_path: Path) -> None:
    model = zoo.build("bert")[0]
    true = latency.seconds(model, ("head", "neuron"))
    (file,) = (tmp_path / "cache" / "headcount").iterdir()
    kept, often = json.loads(file.read_text()), len(clock)
    for table in kept["saved"]:
        counts, spans = sorted(table, key=int), [table[count] for count in sorted(table, key=int)]
        table.update(zip(counts, spans[::-1], strict=True))
    file.write_text(json.dumps(kept))
    again = latency.seconds(model, ("head", "neuron"))
    assert len(clock) == 2 * often, "measured anew"
    assert all((again.sites[name] == true.sites[name]).all() for name in true.sites)


@pytest.mark.parametrize("units", ["heads,neurons", "heads,neurons,layers", "layers"])
def test_a_speedup_is_measured_on_the_cut_model_and_just_reached(units: str, clock: list[hc.Plan]) -> None:
    model, task = zoo_task("bert")
    kept = Fingerprint(model)
    choice = hc.pruning.choose(model, speedup=1.2, score=task, units=units, multiple=1)
    assert choice.budget is not None
    assert choice.budget.whole / choice.budget.measured >= 1.2
    if units == "heads,neurons":
        assert choice.budget.measured >= 0.9 * choice.budget.allowed, "and not much faster than asked"
    assert choice.plan.units in [plan.units for plan in clock]
    assert not kept.changed()
    with says(hc.errors.NotShown, about="times as fast here"):
        hc.pruning.choose(model, speedup=50.0, score=task, units=units)


# -- the loop of the published search ------------------------------------------------------------------------------------


def test_every_budget_begins_afresh() -> None:
    """The published latency search takes what one combination costs from the next; here a purse can be used again."""
    model, task = zoo_task("bert")
    purse = budgets.purse(model, hc.score(model, task, "fisher", units="heads,neurons"), "flops", length=8)
    first = [purse.buy(share * purse.costs.whole) for share in (0.9, 0.7, 0.5)]
    again = [purse.buy(share * purse.costs.whole) for share in (0.5, 0.7, 0.9)]
    assert first == again[::-1]


def test_plans_for_a_promise_get_cheaper_one_by_one() -> None:
    model, task = zoo_task("bert")
    purse = budgets.purse(model, hc.score(model, task, "fisher", units="heads,neurons"), "flops", length=8)
    plans = list(budgets.courses(purse, 0.1))
    spent = [purse.costs.of(plan) for plan in plans]
    assert spent == sorted(spent, reverse=True)
    assert len(set(plans)) == len(plans) > 4
    assert spent[0] <= 0.9 * purse.costs.whole
    assert spent[-1] == pytest.approx(purse.cheapest())


# -- scores of all sorts, models of all sorts ----------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["entropy", "ablation", "confidence", "magnitude", "random"])
def test_scores_below_zero_say_which_units_go_and_not_how_many(by: str) -> None:
    model, task = zoo_task("bert")
    some, of = hc.score(model, task, by, units="heads"), costs.parameters(model)
    one = of.whole - min(of.of(hc.Plan(frozenset([unit]))) for unit in some)
    choice = hc.pruning.choose(model, params=0.95, units="heads", by=by, score=task)
    assert choice.budget is not None
    assert choice.budget.allowed - one < choice.budget.measured <= choice.budget.allowed
    assert set(choice.plan) == set(some.order()[: len(choice.plan)])


@pytest.mark.parametrize("seed", range(20))
def test_the_least_that_can_be_kept_can_always_be_bought(seed: int) -> None:
    model, _ = zoo.build("bert")
    anatomy, rng = hc.find(model), np.random.default_rng(seed)
    units = tuple(unit for site in anatomy for unit in site.units)
    kinds, types = {s.name: s.kind for s in anatomy}, {s.name: s.attention for s in anatomy}
    scores = hc.documents.Scores(units, rng.random(len(units)), "made", kinds, types)
    tables = {site.name: np.cumsum(rng.random(len(site) + 1)) / 7 for site in anatomy}
    whole = sum(float(table[-1]) for table in tables.values()) + 0.3
    seconds = costs.Costs("time", whole, tables, {}, costs.homes(anatomy))
    purse = budgets.BudgetProblem(model, scores, seconds, least=1, multiple=1)
    plan = purse.buy(purse.cheapest())
    assert {len(site) - len(plan.by_site()[site.name]) for site in anatomy} == {1}


def test_a_layer_with_attention_stays_where_some_have_none() -> None:
    model, task = zoo_task("lfm2")
    scores = hc.score(model, task, "fisher", units="heads,neurons,layers")
    attending = {costs.homes(hc.find(model))[site.name] for site in hc.find(model).heads}
    worst = [0.0 if unit in attending else value for unit, value in zip(scores.units, scores.raw, strict=True)]
    purse = budgets.purse(model, replace(scores, raw=np.array(worst)), "params")
    for share in (0.9, 0.5, 0.0):
        plan = purse.buy(max(share * purse.costs.whole, purse.cheapest()))
        assert attending - set(plan)
        hc.cut(copy.deepcopy(model), plan)


def test_a_multiple_that_was_asked_for_is_kept_and_the_default_fits_the_width() -> None:
    model, task = zoo_task("bert")
    scores = hc.score(model, task, "fisher", units="neurons")
    size = len(hc.find(model)["0.mlp"])
    asked = budgets.purse(model, scores, "params", multiple=size // 2)
    plan = asked.buy((asked.costs.whole + asked.cheapest()) / 2)
    assert {len(indices) for indices in plan.by_site().values()} <= {size // 2, size}
    assert asked.multiples["neuron"] == size // 2
    assert budgets.purse(model, scores, "params").multiples["neuron"] <= max(1, size // budgets.PARTS)


def test_another_kind_of_attention_is_measured_by_itself(clock: list[hc.Plan]) -> None:
    model, _ = zoo.build("bert")
    latency.seconds(model, ("head",))
    often = len(clock)
    model.config._attn_implementation = "eager"
    latency.seconds(model, ("head",))
    assert len(clock) == 2 * often


def test_a_side_of_the_model_has_its_neurons_and_layers_too() -> None:
    model, task = zoo_task("bart")
    choice = hc.pruning.choose(model, params=0.9, units="heads,neurons", only="encoder", score=task, multiple=1)
    assert {name.split(".")[0] for name in choice.plan.by_site()} == {"encoder"}
    assert any(name.endswith("mlp") for name in choice.plan.by_site())
    assert set(hc.pruning.choose(model, remove=1, units="layers", by="top", only="decoder").plan.by_site()) == {
        "decoder.layers"
    }
    model, task = zoo_task("bert")
    with says(hc.errors.BadPlan, about="leaves no neurons"):
        hc.pruning.choose(model, params=0.9, units="heads,neurons", only="encoder", score=task)


def test_steps_of_several_kinds_are_shares(clock: list[hc.Plan]) -> None:
    model, task = zoo_task("bert")
    score, select = task.subset([0]), task.subset([1])
    with says(hc.errors.BadPlan, about="share of the FLOPs apart"):
        hc.pruning.choose(model, max_drop=1.0, units="heads,neurons", score=score, select=select, step=10)


def test_two_budgets_in_one_run_are_two_plans(tmp_path: Path) -> None:
    model, task = zoo_task("bert")
    with hc.runs.Run.open(tmp_path / "run", {"command": "test"}) as run:
        found = [
            hc.pruning.choose(model, params=share, units="heads,neurons", score=task, run=run)
            for share in (0.9, 0.8, 0.9)
        ]
    assert found[0].plan == found[2].plan
    assert found[0].budget is not None
    assert found[1].budget is not None
    assert found[0].budget.measured > 0.8 * found[0].budget.whole >= found[1].budget.measured


def test_what_cannot_be_reached_is_said_before_anything_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = zoo_task("bert")
    really = candidates.score_units

    def watched(model: Any, task: Any, by: str, **how: Any) -> Any:
        assert task is None, "nothing looks at data"
        return really(model, task, by, **how)

    monkeypatch.setattr(candidates, "score_units", watched)
    for wish in ({"params": "1%"}, {"flops": "1%"}):
        with says(hc.errors.BadPlan, about="cannot be reached"):
            hc.pruning.choose(model, **wish, units="heads", score=task)
