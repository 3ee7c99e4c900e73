"""Even groups: the same outputs, from attentions that run as their own code does."""

from __future__ import annotations

import copy
import re
from collections import Counter

import pytest
import torch
from helpers import zoo
from helpers.same import close, same_weights
from torch import nn

import headcount as hc
from headcount.exports import even_groups
from headcount.exports.even_groups import group_limits, uneven_sites, with_even_groups
from headcount.model.cutting import kv_groups
from headcount.model.cutting.per_head import ConfigView
from headcount.model.cutting.rules import refusal
from headcount.model.matrices import Padded

# biases (qwen2), norms of queries and keys (qwen3), one norm per head (stablelm, cohere), fused matrices (phi3), sinks
# (gpt_oss), windows (gemma3), an encoder (eurobert), rows padded with zeros (falcon-gqa and dbrx), two stacks (t5gemma)
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "stablelm", "cohere", "phi3", "gpt_oss", "gemma3_text", "eurobert"]
FAMILIES += ["granite", "mixtral", "smollm3", "t5gemma", "falcon-gqa", "dbrx"]


def uneven(name: str) -> tuple[nn.Module, dict]:
    """A model whose first attention has groups of several sizes, the last one another width, and neurons gone as well."""
    model, inputs = zoo.build(name)
    anatomy = hc.find(model)
    sites = [s for s in anatomy.heads if s.kv_heads < len(s) and refusal(s, anatomy, model) is None]
    group = len(sites[0]) // sites[0].kv_heads
    plan = {
        sites[0].name: [0, *range(group, 2 * group - 1, 2)] if group > 2 else [1],
        sites[-1].name: [len(sites[-1]) - 1],
    }
    hc.cut(model, plan)
    assert uneven_sites(model)
    return model, inputs


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("how", ["pad", "repeat"])
def test_the_outputs_are_the_same_and_the_attention_is_an_ordinary_one(name: str, how: str) -> None:
    model, inputs = uneven(name)
    assert all(isinstance(m.writer, Padded) for m in uneven_sites(model)) == (name in ("falcon-gqa", "dbrx"))
    before, want = copy.deepcopy(model.state_dict()), zoo.output(model, inputs)
    even, notes = with_even_groups(model, how)
    assert close(zoo.output(even, inputs), want)
    assert uneven_sites(even) == []
    assert len(notes) == 1
    for site in hc.find(even).heads:
        assert getattr(site.module, "headcount_kv_of", None) is None
        config = getattr(site.module, "config", None)
        assert getattr(config, "_attn_implementation", "") != "headcount", "no kernel by index"
        assert not isinstance(config, ConfigView) or "_attn_implementation" not in config.own
        assert len(site) % site.kv_heads == 0
    assert same_weights(model, before), "the model itself is as it was"
    assert close(zoo.output(model, inputs), want)
    assert not any(isinstance(module, Padded) for module in even.modules())


def test_a_model_with_even_groups_is_copied_and_nothing_is_said() -> None:
    model, _ = zoo.build("llama")
    hc.cut(model, "0:0 0:2 0:4 0:6 1:0 1:1")
    even, notes = with_even_groups(model, "pad")
    assert notes == ()
    assert even is not model
    assert same_weights(even, model)
    assert group_limits(model) == []


@pytest.mark.parametrize("units", ["0:1", "0:0-1 0:3 0:7", "0:0-2 0:7"])
def test_zero_heads_are_removed_heads_that_are_there_again_masked(units: str) -> None:
    """Also after a whole group went: the padded model is a smaller cut, with some of its heads masked, and saves as that."""
    whole, inputs = zoo.build("mistral")  # 8 heads, four to a group
    model = copy.deepcopy(whole)
    for unit in units.split():
        hc.cut(model, unit)
    even, _ = with_even_groups(model, "pad")
    back = hc.removed(model).units - hc.removed(even).units
    assert hc.removed(even).units < hc.removed(model).units
    again = copy.deepcopy(whole)
    hc.cut(again, hc.removed(even))
    with hc.masked(again, back):
        assert close(zoo.output(even, inputs), zoo.output(again, inputs))
    assert {name: t.shape for name, t in even.state_dict().items()} == {
        n: t.shape for n, t in again.state_dict().items()
    }


def test_the_padded_model_saves_loads_and_generates(tmp_path: pytest.TempPathFactory) -> None:
    model, inputs = uneven("qwen3")
    even, _ = with_even_groups(model, "pad")
    loaded = hc.load(hc.save(even, tmp_path / "even"))
    assert same_weights(loaded, even)
    assert close(zoo.output(loaded, inputs), zoo.output(model, inputs))
    options = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    want, got = (one.generate(**inputs, **options).logits for one in (model, even))
    assert close(torch.stack(got), torch.stack(want))


def test_an_attention_that_is_padded_for_its_groups_alone_gets_small_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not ask transformers for its kernel, and so cannot repeat key-value heads by an index."""
    monkeypatch.setattr(kv_groups, "uses_attention_interface", lambda module: False)
    model, inputs = uneven("mistral")
    assert any(isinstance(module, Padded) for module in model.modules())
    for how in ("pad", "repeat"):
        even, _ = with_even_groups(model, how)
        assert close(zoo.output(even, inputs), zoo.output(model, inputs))
        assert not any(isinstance(module, Padded) for module in even.modules())
        site = hc.find(even).heads[0]
        assert len(site) == {"pad": 6, "repeat": 5}[how]


@pytest.mark.parametrize("name", ["llama", "stablelm", "gpt_oss", "dbrx"])
def test_the_limits_say_what_each_way_costs(name: str) -> None:
    model, _ = uneven(name)
    (first, *_), sites = group_limits(model), uneven_sites(model)
    sizes = sorted({*Counter(sites[0].kv_of).values()}, reverse=True)
    assert first.reason == f"layer 0 has groups of {' and '.join(map(str, sizes))} query heads"
    even, _ = with_even_groups(model, "pad")
    had, has = (sum(p.numel() for p in one.parameters()) for one in (model, even))
    percent = 100 * (has / had - 1)
    said = float(re.search(r"--groups pad \(exact, ([\d.]+) % more parameters\)", first.remedy).group(1))
    assert said == pytest.approx(percent, abs=0.5 if percent > 9 else 0.051)
    assert ("--groups repeat" in first.remedy) == (name != "dbrx"), "its code counts on all its heads"
    assert str(first) == f"{first.reason}: {first.remedy}"


def test_the_cache_of_a_layer_is_said_to_grow_as_it_does() -> None:
    model, inputs = zoo.build("mistral")  # 8 heads, four to a group
    hc.cut(model, "0:1-3 0:7 1:1 1:7 1:2")
    words = {"twice": 2.0, "2.5 times": 2.5}
    for limit, (said, _) in zip(group_limits(model), words.items(), strict=True):
        assert f"--groups repeat (exact, {said} the cache of that layer)" in limit.remedy
    even, _ = with_even_groups(model, "repeat")
    with torch.no_grad():
        caches = [one(**inputs, use_cache=True).past_key_values for one in (model, even)]
    sizes = [[layer.keys.numel() for layer in cache.layers] for cache in caches]
    assert [new / old for old, new in zip(*sizes, strict=True)] == [*words.values()]


def test_limits_need_no_weights(tmp_path: pytest.TempPathFactory) -> None:
    model, _ = uneven("llama")
    empty = hc.load(hc.save(model, tmp_path / "cut"), weights=False)
    assert all(parameter.is_meta for parameter in empty.parameters())
    assert group_limits(empty) == group_limits(model)


def test_a_planted_bug_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero heads that keep the weights of another one."""
    monkeypatch.setattr(even_groups, "_with_zeros", lambda matrix, tensors, source, axis: tensors)
    model, inputs = uneven("llama")
    assert not close(zoo.output(with_even_groups(model, "pad")[0], inputs), zoo.output(model, inputs))
