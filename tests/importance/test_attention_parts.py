"""Attention is read where it is computed: the model computes what it does anyway; weights times values are what heads hand on."""

from __future__ import annotations

import pytest
import torch
from conftest import Fingerprint
from helpers import zoo
from helpers.same import close
from helpers.small_models import zoo_task

import headcount as hc
from headcount.importance import attention, attention_parts

# Falcon's attention in the open has no causal mask; latent attentions and those with sinks hand nothing out
ONCE_WRONG = ("falcon", "falcon-mqa", "falcon-gqa", "minicpm3", "deepseek_v3", "gpt_oss")


@pytest.mark.parametrize("name", [*ONCE_WRONG, "gpt2", "llama", "bert"])
def test_weights_times_values_are_what_the_writer_is_given(name: str) -> None:
    model, inputs = zoo.build(name)
    sites, before, plain = hc.find(model).heads, Fingerprint(model), zoo.output(model, inputs)
    made: dict[str, torch.Tensor] = {}
    given: dict[str, torch.Tensor] = {}

    def see(site: hc.model.Site, parts: attention_parts.AttentionParts) -> None:
        assert parts.values is not None
        made[site.name] = (parts.patterns @ parts.values).transpose(1, 2).flatten(2)
        if site.attention == "decoder":
            assert not parts.patterns.triu(1).any(), "nothing looks ahead"
        if name != "gpt_oss":  # a part of its attention goes to a sink of its own
            assert close(parts.patterns.sum(-1), torch.ones_like(parts.patterns[..., 0]))

    hooks = [
        site.writer.register_forward_pre_hook(lambda _, args, name=site.name: given.__setitem__(name, args[0].detach()))
        for site in sites
    ]
    with attention_parts.watched(model, sites, see):
        seen = zoo.output(model, inputs)
    for hook in hooks:
        hook.remove()
    assert close(seen, plain)
    assert made.keys() == given.keys() == {site.name for site in sites}
    assert all(close(made[site], given[site]) for site in made)
    assert before.changed() == []


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_confidence_is_that_of_the_attention_that_the_model_computes(name: str) -> None:
    """The largest weight of every token's row, by each head on each text; nothing is padding or special here."""
    model, task = zoo_task(name)
    batch = task.collate(range(task.size))
    surest: dict[str, torch.Tensor] = {}

    def see(site: hc.model.Site, parts: attention_parts.AttentionParts) -> None:
        queries, keys = parts.queries, parts.keys
        assert queries is not None
        assert keys is not None
        surest[site.name] = parts.patterns.amax(-1).mean((0, 2))

    outputs = []
    hook = model.lm_head.register_forward_hook(lambda _, __, output: outputs.append(output.detach()))
    with torch.no_grad(), attention_parts.watched(model, hc.find(model).heads, see):
        model(**{key: value for key, value in batch.items() if key == "input_ids"})
    found = hc.score(model, task, "confidence")
    hook.remove()
    assert close(found.raw, torch.cat([surest[site.name] for site in hc.find(model).heads]).numpy())
    assert all(close(outputs[0][: len(output)], output) for output in outputs[1:]), "logits are those of every day"


def test_patterns_alone_are_handed_on() -> None:
    model, inputs = zoo.build("llama")
    sites = hc.find(model).heads
    whole: dict[str, torch.Tensor] = {}
    seen: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        with attention_parts.watched(model, sites, lambda site, parts: whole.update({site.name: parts.patterns})):
            model(**inputs)
        with attention.watched(model, sites, lambda site, weights: seen.update({site.name: weights})):
            model(**inputs)
    assert seen.keys() == whole.keys()
    assert all(close(seen[site], whole[site]) for site in seen)
