"""What `cached` keeps, family by family: against what attentions hand out, and against plain sums."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
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
