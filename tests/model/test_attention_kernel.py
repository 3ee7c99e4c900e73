"""Uneven kv groups one token at a time: what the masked whole model says, without a copy of the cache."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.same import close
from torch import Tensor

import headcount as hc
from headcount.model.cutting import attention_kernel
from headcount.model.cutting.attention_kernel import heads_at, side_by_side

UNEVEN = {"llama": "0:0 1:0-2,7", "qwen2": "0:1,6 1:3", "mistral": "0:0-2 1:7", "ministral": "0:0 1:0-2"}


def dictated(model: Any, ids: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
    """The logits of the last tokens of texts, given one at a time with a cache after the first three."""
    out, length = [], ids.shape[1]
    with torch.no_grad():
        for start, end in [(0, 3), *((n, n + 1) for n in range(3, length))]:
            given = None if mask is None else mask[:, :end]
            output = model(input_ids=ids[:, start:end], attention_mask=given, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            out.append(output.logits[:, -1])
    return torch.stack(out, 1)


def texts() -> tuple[Tensor, Tensor]:
    """Three texts, and which tokens of them are no padding on the left."""
    ids = torch.randint(1, zoo.VOCAB, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    return ids, mask


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", UNEVEN)
def test_a_dictated_text_has_the_logits_of_the_masked_model(name: str, padded: bool) -> None:
    model, _ = zoo.build(name)
    smaller, (ids, mask) = copy.deepcopy(model), texts()
    hc.cut(smaller, UNEVEN[name])
    with hc.masked(model, UNEVEN[name]):
        want = dictated(model, ids, mask if padded else None)
    assert close(dictated(smaller, ids, mask if padded else None), want)
    assert not close(dictated(model, ids, mask if padded else None), want), "the heads make a difference"


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_keys_and_values_are_copied_while_a_prompt_is_read_and_not_while_tokens_are_written(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = zoo.build("llama")
    model.set_attn_implementation(kernel)
    hc.cut(model, UNEVEN["llama"])
    taken: list[tuple[int, ...]] = []

    def spy(tensor: Tensor, places: Any) -> Tensor:
        taken.append(tuple(tensor.shape))
        return heads_at(tensor, places)

    monkeypatch.setattr(attention_kernel, "heads_at", spy)
    ids, _ = texts()
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
        assert {shape[2] for shape in taken} == {9}
        taken.clear()
        model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)
    copied = any(shape[2] == 10 for shape in taken if len(shape) == 4)
    assert copied == (kernel == "eager"), "torch's kernel takes several positions of one query; others are not asked to"


def test_a_mask_with_entries_per_head_goes_the_long_way() -> None:
    model, _ = zoo.build("llama")
    hc.cut(model, UNEVEN["llama"])
    attention = model.model.layers[1].self_attn
    heads, kv = len(attention.headcount_kv_of), max(attention.headcount_kv_of) + 1
    draw = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, heads, 1, 8, generator=draw), torch.randn(2, kv, 5, 8, generator=draw)
    bias = torch.randn(2, heads, 1, 5, generator=draw)
    got, _ = attention_kernel.attend(attention, query, key, key, bias)
    own = key[:, list(attention.headcount_kv_of)]
    want = torch.softmax(query @ own.transpose(2, 3) / 8**0.5 + bias, -1) @ own
    assert close(got, want.transpose(1, 2))
    got, _ = attention_kernel.attend(attention, query, key, key, bias[:, :1])
    want = torch.softmax(query @ own.transpose(2, 3) / 8**0.5 + bias[:, :1], -1) @ own
    assert close(got, want.transpose(1, 2))


@pytest.mark.parametrize("kv_of", [(0, 1, 1), (0, 0, 0, 1), (0, 1, 0, 1, 1), (0, 0, 0, 0, 0, 1, 2, 2)])
def test_every_head_is_found_again(kv_of: tuple[int, ...]) -> None:
    slots, places = side_by_side(kv_of)
    kv = max(kv_of) + 1
    table = torch.tensor(slots).view(kv, -1)
    assert table.T.flatten()[list(places)].tolist() == list(range(len(kv_of)))
    assert all(kv_of[head] == row for row in range(kv) for head in table[row].tolist())


def test_compiled_code_writes_the_same_without_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as for CUDA graphs: one graph, no index that would be copied to the GPU, and a cache of a fixed size."""
    from transformers import StaticCache

    model, _ = zoo.build("llama")
    hc.cut(model, UNEVEN["llama"])
    ids, _ = texts()
    want = dictated(model, ids)
    compiled = torch.compile(model, backend="eager", dynamic=False)
    index_on = attention_kernel.index_on

    def none_compiled(*given: Any) -> Tensor:
        assert not torch.compiler.is_compiling()
        return index_on(*given)

    monkeypatch.setattr(attention_kernel, "index_on", none_compiled)
    try:
        assert close(dictated(compiled, ids, cache=StaticCache(config=model.config, max_cache_len=9)), want)
    finally:
        torch.compiler.reset()
