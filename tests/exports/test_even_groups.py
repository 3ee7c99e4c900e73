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
from headcount.model.cutting.per_head import ConfigView
from headcount.model.cutting.rules import refusal
from headcount.model.matrices import Padded

# biases (qwen2), norms of queries and keys (qwen3), one norm per head (stablelm, cohere), fused matrices (phi3), sinks
# (gpt_oss), windows (gemma3), an encoder (eurobert), grouped rows padded with zeros (falcon), alternating stacks (t5gemma)
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "stablelm", "cohere", "phi3", "gpt_oss", "gemma3_text", "eurobert"]
FAMILIES += ["granite", "mixtral", "smollm3", "t5gemma"]


def uneven(name: str) -> tuple[nn.Module, dict]:
    """A model whose first attention has groups of several sizes, the last one another width, and neurons gone as well."""
    model, inputs = zoo.build(name)
    anatomy = hc.find(model)
    sites = [s for s in anatomy.heads if s.kv_heads < len(s) and refusal(s, anatomy, model) is None]
    group = len(sites[0]) // sites[0].kv_heads
    plan = {sites[0].name: [0, *range(group, 2 * group - 1, 2)] if group > 2 else [1], sites[-1].name: [len(sites[-1]) - 1]}
    hc.cut(model, plan)
    assert uneven_sites(model)
    return model, inputs


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("how", ["pad", "repeat"])
def test_the_outputs_are_the_same_and_the_attention_is_an_ordinary_one(name: str, how: str) -> None:
    model, inputs = uneven(name)
    before, want = copy.deepcopy(model.state_dict()), zoo.output(model, inputs)
    even, notes = with_even_groups(model, how)
    assert close(zoo.output(even, inputs), want)
    assert uneven_sites(even) == []
    assert len(notes) == 1
    for site in hc.find(even).heads:
        assert getattr(site.module, "headcount_kv_of", None) is None
        config = getattr(site.module, "config", None)
        assert getattr(config, "_attn_implementation", "") != "headcount", "no kernel by index"
        assert not isinstance(config, ConfigView) or config.own.keys() <= {"num_attention_heads", "num_key_value_heads"}
        assert len(site) % site.kv_heads == 0
    assert same_weights(model, before), "the model itself is as it was"
    assert close(zoo.output(model, inputs), want)
