"""What `cached` keeps, family by family: against what attentions hand out, and against plain sums."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import close
from torch import Tensor, nn

import headcount as hc
from headcount.circuits.recording import writer_input
from headcount.importance.attention import watched
from headcount.model.gates import applied

INSIDE = ["patterns", "queries", "keys", "values"]
# no one distribution over keys for each head: windows in pieces, routed heads, streams, packed pictures
NO_PATTERNS = {"longformer", "jetmoe", "longt5", "prophetnet", "hiera", "qwen2_vl"}
ONLY_PATTERNS = {"wavlm"}
# something else stands before the output matrix: a gate, a norm, a convolution that is added
NOT_THE_VALUES_ALONE = {"qwen3_next", "bitnet", "nystromformer"}
NEVER_CALL_THEIR_WRITER = {"wavlm", "torchvision-swin"}
ROUTED = {"jetmoe"}
# hands out under the eager kernel what it computes without its causal mask, in this version of transformers
OTHERWISE_UNDER_EAGER = {"falcon", "falcon-mqa", "falcon-gqa"}


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def handed_out(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The patterns that attentions return under the eager kernel; none where they return none."""
    out: dict[str, Tensor] = {}

    def see(site: hc.model.Site, weights: Tensor) -> None:
        out.setdefault(site.name, weights.clone())

    try:
        with torch.no_grad(), watched(model, hc.find(model).heads, see):
            model(**inputs)
    except (hc.errors.Refused, RuntimeError):  # eager code of some latent attentions fails without its own kernel
        pass
    return out


def at_writers(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """What the output matrix of every attention is given and gives in the first run of it."""
    anatomy, seen = hc.find(model), dict[str, tuple[Tensor, Tensor]]()

    def keep(site: hc.model.Site, _: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        seen.setdefault(site.name, (writer_input(site, args, kwargs).clone(), output.clone()))

    with torch.no_grad(), applied(model, anatomy, {}):
        for site in anatomy.heads:
            site.writer.register_forward_hook(partial(keep, site), with_kwargs=True)
        model(**inputs)
        for site in anatomy.heads:
            site.writer._forward_hooks.clear()
            site.writer._forward_hooks_with_kwargs.clear()
    return seen


@pytest.mark.parametrize("name", sorted(set(zoo.ZOO) - NO_PATTERNS - ONLY_PATTERNS))
def test_patterns_are_those_that_are_handed_out_and_weigh_the_values_that_the_writer_is_given(name: str) -> None:
    model, inputs = zoo.build(name)
    model(**inputs)  # some leave hooks of their own behind at first
    before = hooks(model)
    cache = hc.cached(model, inputs, INSIDE, call=0)
    assert hooks(model) == before
    given = at_writers(model, inputs)
    for site in hc.find(model).heads:
        patterns = cache["patterns"][site.name]
        if name not in NOT_THE_VALUES_ALONE | NEVER_CALL_THEIR_WRITER:
            x = given[site.name][0]
            heads = [patterns[:, n] @ cache["values"][f"{site.name}:{index}"] for n, index in enumerate(site.ids)]
            z = torch.cat(heads, -1)
            assert close((z.transpose(0, 1) if name == "fsmt" else z).reshape(-1), x.reshape(-1))
        assert cache["queries"][site.name].shape[:3] == patterns.shape[:3]
        assert cache["keys"][site.name].shape[-2] == patterns.shape[-1]
    eager = handed_out(model, inputs) if name not in OTHERWISE_UNDER_EAGER else {}
    for site_name, weights in eager.items():
        assert close(cache["patterns"][site_name], weights)


@pytest.mark.parametrize("name", sorted(NO_PATTERNS))
def test_attention_without_one_pattern_for_each_head_is_refused(name: str) -> None:
    model, inputs = zoo.build(name)
    with pytest.raises(hc.errors.Refused, match="does not weight values by one distribution over keys"):
        hc.cached(model, inputs, "patterns", call=0)


@pytest.mark.parametrize("name", sorted(set(zoo.ZOO) - NEVER_CALL_THEIR_WRITER - ROUTED))
def test_head_outputs_and_the_bias_add_up_to_what_attention_writes(name: str) -> None:
    model, inputs = zoo.build(name)
    cache = hc.cached(model, inputs, ["head_outputs", "attention_outputs"], call=0)
    given = at_writers(model, inputs)
    assert set(given) == set(cache["attention_outputs"])
    for site in hc.find(model).heads:
        bias = site.writer.bias if getattr(site.writer, "bias", None) is not None else 0
        total = sum(cache["head_outputs"][f"{site.name}:{index}"] for index in site.ids) + bias
        own = given[site.name][1]
        assert close(total.detach(), own.movedim(1, -1) if isinstance(site.writer, nn.Conv1d | nn.Conv2d) else own)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bert", "falcon-gqa", "torch-decoder"])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_only_what_is_asked_for_is_kept_and_the_kernel_does_not_matter(name: str, kernel: str) -> None:
    model, inputs = zoo.build(name)
    last = hc.find(model).heads[-1]
    want = hc.cached(model, inputs, "patterns")["patterns"][f"{last.name}:1"]
    if hasattr(model, "set_attn_implementation") and not name.startswith("falcon"):
        model.set_attn_implementation(kernel)
    cache = hc.cached(model, inputs, ["patterns", "head_outputs"], units=f"{last.name}:1-2")
    assert list(cache["patterns"]) == list(cache["head_outputs"]) == [f"{last.name}:1", f"{last.name}:2"]
    assert close(cache["patterns"][f"{last.name}:1"], want)
    with says(hc.errors.NotFound, about="No patterns of"):
        cache["patterns"][f"{last.name}:0"]
    with says(hc.errors.NotFound, about="was not asked for"):
        cache["keys"]


def test_keys_and_values_are_kept_once_for_each_group_and_rotation_is_what_it_says() -> None:
    model, inputs = zoo.build("llama")  # 8 heads, 4 of keys and values
    cache = hc.cached(model, inputs, ["queries", "keys", "projected_queries", "projected_keys"])
    attention = model.model.layers[1].self_attn
    assert cache["keys"]["1"].shape[1] == 4
    assert cache["keys"]["1:6"] is not cache["keys"]["1:7"]
    assert torch.equal(cache["keys"]["1:6"], cache["keys"]["1:7"])
    hidden = hc.cached(model, inputs, "residual_before")["residual_before"]["layers:1"]
    with torch.no_grad():
        given = model.model.layers[1].input_layernorm(hidden)
        queries = attention.q_proj(given).unflatten(-1, (8, 8)).transpose(1, 2)
        assert close(cache["projected_queries"]["1"], queries)
        cos, sin = model.model.rotary_emb(given, torch.arange(7)[None])
        half = torch.cat([-queries[..., 4:], queries[..., :4]], -1)
        assert close(cache["queries"]["1"], queries * cos[:, None] + half * sin[:, None])
    assert not close(cache["queries"]["1:3"], cache["projected_queries"]["1:3"])
    assert close(cache["queries"]["1:3"].norm(dim=-1), cache["projected_queries"]["1:3"].norm(dim=-1))


def test_value_weighted_patterns_are_norms_of_what_would_be_written() -> None:
    model, inputs = zoo.build("gpt2")
    cache = hc.cached(model, inputs, ["value_weighted_patterns", "patterns", "values"])
    weight = model.transformer.h[1].attn.c_proj.weight.detach()  # (in, out)
    for head in range(4):
        patterns, values = cache["patterns"][f"1:{head}"], cache["values"][f"1:{head}"]
        want = torch.zeros_like(patterns)
        for example, query, key in torch.cartesian_prod(*map(torch.arange, patterns.shape)).tolist():
            written = patterns[example, query, key] * values[example, key] @ weight[8 * head : 8 * head + 8]
            want[example, query, key] = written.norm()
        assert close(cache["value_weighted_patterns"][f"1:{head}"], want)
    gated, inputs = zoo.build("qwen3_next")
    with says(hc.errors.Refused, about="a gate or a norm"):
        hc.cached(gated, inputs, "value_weighted_patterns")


@pytest.mark.parametrize("name", ["gpt2", "llama", "phi", "gptj", "bloom", "qwen3"])
def test_what_layers_write_adds_up_along_the_residual_stream(name: str) -> None:
    model, inputs = zoo.build(name)
    cache = hc.cached(
        model, inputs, ["attention_outputs", "mlp_outputs", "residual_before", "residual_after", "neurons"]
    )
    stream = cache["residual_before"]["layers:0"]
    for layer in range(2):
        stream = stream + cache["attention_outputs"][str(layer)] + cache["mlp_outputs"][f"{layer}.mlp"]
        assert close(stream, cache["residual_after"][f"layers:{layer}"])
    assert cache["neurons"]["1.mlp:5"].shape == inputs["input_ids"].shape
    last, site = cache["mlp_outputs"]["1.mlp"], hc.find(model)["1.mlp"]
    with torch.no_grad():
        assert close(site.writer(cache["neurons"]["1.mlp"]), last)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "mt5", "falcon-gqa", "clip", "gemma2"])
def test_a_cut_model_names_heads_by_their_original_numbers_and_they_look_where_they_looked_masked(name: str) -> None:
    model, inputs = zoo.build(name)
    heads = [site for site in hc.find(model).heads if site.attention != "cross"]
    plan = hc.find(model).plan({heads[0].name: [0], heads[-1].name: [1, 2]})
    kinds = ["patterns", "head_outputs", "values", "keys"]
    with hc.masked(model, plan):
        want = hc.cached(model, inputs, kinds)
    hc.cut(model, plan)
    got = hc.cached(model, inputs, kinds)
    gone = set(map(str, plan))
    for kind in kinds:
        assert set(got[kind]) == set(want[kind]) - gone
        assert all(close(got[kind][unit], want[kind][unit]) for unit in got[kind])


def test_a_mask_around_it_counts() -> None:
    model, inputs = zoo.build("llama")
    with hc.masked(model, "1:3"):
        outputs = hc.cached(model, inputs, "head_outputs", units="1:2-3")["head_outputs"]
    assert not outputs["1:3"].any()
    assert outputs["1:2"].any()


def test_what_cannot_be_kept_is_said_in_one_sentence() -> None:
    model, inputs = zoo.build("gpt2")
    with says(hc.errors.BadPlan, about="choose from"):
        hc.cached(model, inputs, "pattern")
    with says(hc.errors.BadPlan, about="names no neurons"):
        hc.cached(model, inputs, ["patterns", "neurons"], units="0:*")
    with says(hc.errors.BadPlan, about="no call=3"):
        hc.cached(model, inputs, "patterns", call=3)
    albert, inputs = zoo.build("albert")
    with says(hc.errors.Refused, about="runs 2 times"):
        hc.cached(albert, inputs, "patterns")
    first, second = (hc.cached(albert, inputs, "patterns", call=call)["patterns"]["0:0"] for call in (0, 1))
    assert not close(first, second)
    latent, inputs = zoo.build("deepseek_v2")
    with says(hc.errors.Refused, about="multi-head latent attention"):
        hc.cached(latent, inputs, "projected_queries")
    jet, inputs = zoo.build("jetmoe")
    with says(hc.errors.Refused, about="a router picks"):
        hc.cached(jet, inputs, "head_outputs")
    swin, inputs = zoo.build("torchvision-swin")
    with says(hc.errors.Refused, about="without calling it"):
        hc.cached(swin, inputs, "head_outputs")


def test_tuples_and_tensors_are_batches_too_and_the_model_is_as_it_was() -> None:
    model, inputs = zoo.build("llama")
    model.train()
    before = Fingerprint(model)
    one = hc.cached(model, inputs["input_ids"], "residual_after", units="layers:1")["residual_after"]["layers:1"]
    two = hc.cached(model, (inputs["input_ids"],), "residual_after")["residual_after"]["layers:1"]
    assert before.changed() == []
    assert close(one, two)


def test_another_fused_kernel_is_switched_for_the_pass_and_back() -> None:
    model, inputs = zoo.build("llama")
    want = hc.cached(model, inputs, "patterns")["patterns"]["1"]
    model.set_attn_implementation("flex_attention")
    assert close(hc.cached(model, inputs, "patterns")["patterns"]["1"], want)
    assert model.config._attn_implementation == "flex_attention"


def test_patterns_that_an_attention_hands_out_are_had_where_nothing_else_can_be_seen() -> None:
    model, inputs = zoo.build("wavlm")
    assert close(hc.cached(model, inputs, "patterns")["patterns"]["1"], handed_out(model, inputs)["1"])
    with says(hc.errors.Refused, about="nothing else"):
        hc.cached(model, inputs, "queries")
