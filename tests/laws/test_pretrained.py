"""The laws on real weights: a pretrained sentence encoder of six layers of twelve heads, on real sentences."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import extra
import pytest
import torch
from conftest import Fingerprint
from helpers.same import close, same_weights
from torch import Tensor, nn

import headcount as hc

SENTENCES = [
    "Head seven of the third layer looks at the previous word.",
    "It can go.",
    "The committee, which had met on Tuesday, could not agree on what the minutes of the last meeting had said.",
]
CUTS = {
    "heads": "0:3 2:0-5 3:11 4:1,4,7 5:*",
    "neurons": "0.mlp:0-99 3.mlp:* 5.mlp:7,1535",
    "a layer": "layers:4",
    "all kinds": "0:3 1.mlp:0-767 2:0-10 layers:0,4 5:6-11",
}


@pytest.fixture(scope="module")
def folder() -> Path:
    found = extra.minilm()
    if found is None:
        pytest.skip("the pretrained model is not installed")
    return found


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Any:
    return hc.load(folder)


@pytest.fixture(scope="module")
def batch(folder: Path) -> dict[str, Tensor]:
    from transformers import AutoTokenizer

    batch = dict(AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt"))
    assert (batch["attention_mask"] == 0).any(), "the sentences differ in length, so that there is padding"
    return batch


def _embed(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """One vector of length one per sentence: the mean over its tokens."""
    mask = batch["attention_mask"][..., None].float()
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))


def test_all_heads_neurons_and_layers_are_found(encoder: Any) -> None:
    anatomy = hc.find(encoder)
    assert [(len(site), site.kv_heads, site.width, site.attention) for site in anatomy.heads] == [
        (12, 12, 32, "encoder")
    ] * 6
    assert [len(site) for site in anatomy.neurons] == [1536] * 6
    assert [len(stack) for stack in anatomy.stacks] == [6]


@pytest.mark.parametrize("what", CUTS.values(), ids=CUTS)
def test_cut_equals_closed_and_load_equals_save(
    encoder: Any, batch: dict[str, Tensor], folder: Path, what: str, tmp_path: Path
) -> None:
    whole, before = _embed(encoder, batch), Fingerprint(encoder)
    with hc.masked(encoder, what):
        want = _embed(encoder, batch)
    assert not before.changed()
    assert close(_embed(encoder, batch), whole)
    assert (want - whole).abs().max() > 0.01

    small = copy.deepcopy(encoder)
    promised = hc.model.parameters_removed(small, what)
    hc.cut(small, what, check=batch)
    assert close(_embed(small, batch), want)
    count = sum(p.numel() for p in encoder.parameters())
    assert count - sum(p.numel() for p in small.parameters()) == promised > 0

    again = hc.load(hc.save(small, tmp_path / "small", source=folder))
    assert same_weights(again, small)
    assert close(_embed(again, batch), _embed(small, batch))
    assert hc.removed(again) == hc.removed(small)


def test_the_tokenizer_and_the_pooling_come_along(encoder: Any, folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    small = copy.deepcopy(encoder)
    hc.cut(small, "layers:1-5")
    target = hc.save(small, tmp_path / "small", source=folder)
    own, theirs = (AutoTokenizer.from_pretrained(place)(SENTENCES)["input_ids"] for place in (target, folder))
    assert own == theirs
    for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        assert (target / name).read_bytes() == (folder / name).read_bytes()
    assert (target / "model.safetensors").stat().st_size < (folder / "model.safetensors").stat().st_size * 0.7
