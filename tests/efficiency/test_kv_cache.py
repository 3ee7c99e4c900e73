"""The KV cache: what is counted is what a run of the cut model caches, and a budget is never exceeded."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.small_models import classifier, loss_of, zoo_task

import headcount as hc
from headcount.cli.text import pruned_text
from headcount.documents.prune import PruneDocument
from headcount.efficiency import kv_cache
from headcount.efficiency.kv_cache import Serving, bytes_per_token, cache_costs, memory_costs, memory_of
from headcount.errors import BadPlan, Refused
from headcount.evaluation.ablation import plans_of
from headcount.model.cutting.effects import cut_effects
from headcount.parsing import bytes_in
from headcount.plans import Unit
from headcount.pruning import choose, save_pruned
from headcount.pruning.budget import purse, within
from headcount.pruning.legal_plans import RuntimeRule
from headcount.pruning.pipeline import document_of
from headcount.reporting.model_card import card

DECODERS = ("llama", "qwen2", "gpt2", "mistral")
OTHERS = ("phi3", "gpt_bigcode", "codegen", "bloom", "jetmoe", "gemma3_text", "gpt_oss", "llava")
SOMETHING_ELSE = ("deepseek_v2", "falcon-gqa")  # latent vectors, and heads that are repeated before they are cached


def some_groups(model: Any, seed: int, layers: bool = True) -> hc.Plan:
    """Some kv groups by chance, all of one attention among them, and perhaps a layer."""
    draw, plans = random.Random(seed), plans_of(hc.find(model), "kv-groups")
    chosen = [plan for plan in plans.values() if draw.random() < 0.5]
    chosen += [plan for name, plan in plans.items() if seed % 2 and name.startswith("1.kv")]
    units = {unit for plan in chosen for unit in plan}
    return hc.Plan(frozenset(units | {Unit("layers", 0)} if layers and seed % 3 == 0 else units))


def cut_copy(model: Any, plan: hc.Plan) -> Any:
    smaller = copy.deepcopy(model)
    hc.cut(smaller, plan)
    return smaller


def by_generation(model: Any, tokens: int = 3) -> float:
    """Bytes per token of the cache after so many tokens, one after the other, as `generate` fills it."""
    cache, ids = None, torch.tensor([[5]])
    with torch.no_grad():
        for _ in range(tokens):
            output = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)
    both = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.numel() * tensor.element_size() for tensor in both) / tokens


@pytest.mark.parametrize("name", [*DECODERS, *OTHERS])
def test_what_is_counted_is_what_the_cut_model_caches(name: str) -> None:
    model, _ = zoo.build(name)
    costs = cache_costs(model)
    assert costs.whole == bytes_per_token(model)
    if name in DECODERS:
        assert costs.whole == by_generation(model)
    for seed in range(4):
        plan = some_groups(model, seed, layers=name in DECODERS)
        smaller = cut_copy(model, plan)
        assert costs.of(plan) == bytes_per_token(smaller)
        if name in DECODERS and seed != 1:
            assert bytes_per_token(smaller) == by_generation(smaller)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("seed", range(3))
def test_cuts_of_single_heads_cache_what_their_effects_say(name: str, seed: int) -> None:
    """Also in indexed groups, and after a second cut: a kv head stays in the cache as long as one query head uses it."""
    model, _ = zoo.build(name)
    draw = random.Random(seed)
    for _ in range(2):
        heads = [unit for site in hc.find(model).heads for unit in site.units]
        plan = hc.Plan(frozenset(draw.sample(heads, len(heads) // 3)))
        effects = {effect.name: effect for effect in cut_effects(model, plan)}
        sites = hc.find(model).heads
        left = sum(effects[site.name].kv_left if site.name in effects else site.kv_heads for site in sites)
        hc.cut(model, plan)
        assert bytes_per_token(model) == left * 2 * sites[0].width * 4


@pytest.mark.parametrize("name", DECODERS)
def test_a_budget_is_kept_with_whole_groups_and_measured(name: str) -> None:
    model, task = zoo_task(name)
    whole = bytes_per_token(model)
    assert whole is not None
    for units in ("kv-groups", "heads", "kv-groups,neurons,layers"):
        choice = choose(model, kv_cache="50%", units=units, score=task, by="fisher", brake=None)
        budget = choice.budget
        assert budget is not None
        assert (budget.what, budget.whole) == ("kv-cache", whole)
        assert budget.measured == budget.predicted == bytes_per_token(cut_copy(model, choice.plan)) <= whole / 2
        groups = [plan.units for plan in plans_of(hc.find(model), "kv-groups").values()]
        heads = {unit for unit in choice.plan if "." not in unit.site and unit.site != "layers"}
        assert all(group <= heads or not group & heads for group in groups)
        assert not any(unit.site.endswith("mlp") for unit in choice.plan), "neurons cost no cache"
        assert "of the KV cache is left" in str(budget)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_a_budget_takes_the_groups_that_lose_least(seed: int, share: float) -> None:
    """Of all sets of groups; an attention without any still caches one head of zeros."""
    model, _ = zoo.build("llama")
    scores = hc.score(model, by="random", units="kv-groups", seed=seed)
    rule = RuntimeRule(whole_groups=True)
    plan, counted = within(purse(model, scores.by_heads(), "kv-cache", rule=rule), share)
    assert counted.measured is not None
    best = sum(scores.raw)
    for gone in chain.from_iterable(combinations(scores, count) for count in range(9)):
        kept = [max(1, 4 - sum(unit.site == site for unit in gone)) for site in ("0.kv", "1.kv")]
        if sum(kept) / 8 <= share:
            best = min(best, sum(scores[unit] for unit in gone))
    assert sum(scores[unit] for unit in scores.gone(plan)) == pytest.approx(best)
    assert scores.removing(scores.gone(plan)) == plan.units


def test_a_budget_goes_with_a_largest_drop_and_with_a_runtime() -> None:
    model, task = zoo_task("llama")
    settings: dict[str, Any] = {"units": "kv-groups", "by": "random", "step": "25%", "brake": None}
    ids = torch.randint(0, zoo.VOCAB, (120, 7), generator=torch.Generator().manual_seed(0))
    enough = hc.custom_task([{"input_ids": ids}], loss=loss_of)
    choice = choose(model, kv_cache="50%", max_drop=1e6, select=enough, **settings)
    assert choice.guarantee is not None
    assert bytes_per_token(cut_copy(model, choice.plan)) == (bytes_per_token(model) or 0) / 2
    held = choose(model, kv_cache="25%", score=task, runtime="vllm", **settings).plan
    assert sorted(len(site) for site in hc.find(cut_copy(model, held)).heads) == [2, 2]


@pytest.mark.parametrize("gone", ["0:0 0:2-3", "0:7 1:0-4", "0:0-7"])
def test_a_budget_is_kept_where_groups_are_uneven_already(gone: str) -> None:
    """What is reckoned is a bound then, and what is measured decides."""
    model, _ = zoo.build("llama")
    hc.cut(model, gone)
    costs = cache_costs(model)
    for seed in range(4):
        plan = some_groups(model, seed, layers=False)
        assert costs.of(plan) >= (bytes_per_token(cut_copy(model, plan)) or 0)
    choice = choose(model, kv_cache="70%", units="kv-groups", by="random")
    assert choice.budget is not None
    assert choice.budget.measured == bytes_per_token(cut_copy(model, choice.plan))
    assert choice.budget.measured <= 0.7 * costs.whole


def test_half_of_the_heads_at_random_free_little_of_the_cache() -> None:
    """Why budgets take whole groups: a kv head stays for the last of its queries."""
    model, task = zoo_task("llama")
    whole = bytes_per_token(model)
    assert whole is not None
    single = hc.plan(hc.score(model, by="random", seed=1), "50%")
    kept = bytes_per_token(cut_copy(model, single))
    grouped = choose(model, kv_cache="50%", units="kv-groups", by="random", score=task, brake=None).plan
    assert kept is not None
    assert len(grouped) == len(single)
    assert kept > 0.5 * whole == bytes_per_token(cut_copy(model, grouped))


def test_the_checkpoint_and_its_documents_say_what_is_cached(tmp_path: Path) -> None:
    model, task = zoo_task("llama")
    choice = choose(model, kv_cache="50%", units="kv-groups", score=task, by="fisher", brake=None)
    pruned = save_pruned(model, tmp_path / "smaller", replace(task), replace(choice, used=frozenset()))
    whole = bytes_per_token(model)
    assert whole is not None
    assert pruned.kv_cache == (whole, whole // 2) == (whole, bytes_per_token(hc.load(tmp_path / "smaller")))
    assert f"{whole:,} B/token -> {whole // 2:,} B/token" in " ".join(str(pruned).split())
    document = document_of(pruned, model, {})
    assert PruneDocument.from_json(document.to_json()).kv_cache == pruned.kv_cache
    assert "| KV cache of one token | 512 B | 256 B |" in card(document)
    assert "KV cache of one token" in pruned_text(document)


@pytest.mark.parametrize("name", SOMETHING_ELSE)
def test_a_cache_of_something_else_is_refused_by_name(name: str) -> None:
    model, _ = zoo.build(name)
    with says(Refused, about=f"The cache of {type(model).__name__} holds"):
        cache_costs(model)


def test_models_without_a_cache_are_refused() -> None:
    model = classifier()
    assert bytes_per_token(model) is None
    with says(Refused, about="is no decoder that keeps a cache"):
        choose(model, kv_cache="50%", by="random")
    for name in ("bart", "t5", "openai-gpt"):
        assert bytes_per_token(zoo.build(name)[0]) is None


def test_what_cannot_be_reached_is_said() -> None:
    model, task = zoo_task("llama")
    with says(BadPlan, about="of the KV cache cannot be reached"):
        choose(model, kv_cache="10%", units="kv-groups", score=task)
    with says(BadPlan, about="of the KV cache cannot be reached"):
        choose(model, kv_cache="50%", units="neurons", score=task)
    with says(BadPlan, about="above 0 and below 1"):
        choose(model, kv_cache="150%", units="kv-groups", score=task)


def test_the_law_sees_a_count_of_query_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kv_cache._table
    monkeypatch.setattr(kv_cache, "_table", lambda site: right(site) * len(site) / max(1, site.kv_heads))
    with pytest.raises(Refused):
        cache_costs(zoo.build("llama")[0])


# -- weights and cache -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DECODERS)
def test_memory_is_the_weights_and_the_cache_of_the_cut_model(name: str) -> None:
    model, _ = zoo.build(name)
    serving = Serving(context=50, batch=3, number=2)
    costs = memory_costs(model, serving)
    draw = random.Random(1)
    for seed in range(4):
        plan = some_groups(model, seed)
        mlp = [unit for site in hc.find(model).neurons for unit in draw.sample(list(site.units), 10)]
        plan = hc.Plan(plan.units | set(mlp))
        smaller = cut_copy(model, plan)
        cache = bytes_per_token(smaller)
        assert cache is not None
        want = 2 * (sum(p.numel() for p in smaller.parameters()) + 50 * 3 * cache / 4)
        assert memory_of(smaller, serving) == want
        assert costs.of(plan) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("name", DECODERS)
def test_a_size_in_memory_is_kept_in_the_format_of_the_checkpoint(name: str) -> None:
    model, task = zoo_task(name)
    whole = memory_costs(model, Serving(64, 2, 2)).whole
    asked = f"{0.7 * whole / 1024:.3f}KiB"
    settings: dict[str, Any] = {
        "units": "kv-groups,neurons",
        "score": task,
        "by": "fisher",
        "brake": None,
        "multiple": 1,
    }
    choice = choose(model, memory=asked, context=64, batch=2, dtype=torch.bfloat16, **settings)
    budget = choice.budget
    assert budget is not None
    assert budget.whole == whole
    assert 0.6 * whole < (budget.measured or 0) <= budget.allowed == pytest.approx(0.7 * whole, rel=1e-3)
    assert budget.measured == memory_of(cut_copy(model, choice.plan), Serving(64, 2, 2))
    longer = choose(model, memory=asked, context=80, batch=2, dtype=torch.bfloat16, **settings)
    assert longer.budget is not None
    assert longer.budget.whole > whole


def test_what_memory_needs_is_said() -> None:
    model, task = zoo_task("llama")
    for wishes, about in (
        ({"memory": "6GiB"}, "context (--context) must be a whole number"),
        ({"memory": "6GiB", "context": 8, "batch": 0}, "batch (--batch) must be a whole number"),
        ({"memory": "much", "context": 8}, "How much memory? I got 'much'"),
        ({"memory": "6GiB", "context": 8}, "is within 6GiB already: nothing has to go"),
        ({"memory": 100, "context": 8}, "of the memory cannot be reached"),
    ):
        with says(BadPlan, about=about):
            choose(model, units="kv-groups,neurons", score=task, **wishes)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6GiB", 6 * 2**30),
        ("500 MB", 5e8),
        ("1000", 1000),
        ("1.5kib", 1536),
        ("GiB", None),
        ("50%", None),
        ("-1", None),
    ],
)
def test_sizes_as_people_write_them(text: str, size: float | None) -> None:
    assert bytes_in(text) == size
