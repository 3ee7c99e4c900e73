"""LoRA: what training adds has the rank that was asked for, ends in the weights, and a kill changes nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import says
from helpers.same import close_weights, same_weights
from helpers.small_models import word_tokenizer
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import headcount as hc
from headcount.cli.training.options import Recovery
from headcount.errors import NotFound, Refused
from headcount.learned_gates.gates import learning
from headcount.runs import Run
from headcount.training import loop
from headcount.training import low_rank as low_rank_module
from headcount.training.low_rank import adapted_matrices, low_rank
from headcount.training.recipe import Recipe

pytest.importorskip("peft")
TEXTS = [
    "a good film",
    "dull",
    "it is long and dull and nobody laughs",
    "good and long",
    "nobody laughs at it",
    "a film",
]
SIZES: dict[str, Any] = {"vocab_size": 30, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
RECIPE = Recipe(epochs=2, batch_size=2, lr=0.01, lora=2)


def _model(family: str) -> Any:
    kinds: dict[str, Any] = {
        "bert": (BertForSequenceClassification, BertConfig(**SIZES, **TINY, max_position_embeddings=40)),
        "gpt2": (GPT2LMHeadModel, GPT2Config(**SIZES, n_embd=16, n_layer=2, n_head=4, n_positions=40)),
        "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, **TINY, num_key_value_heads=2, max_position_embeddings=40)),
    }
    make, config = kinds[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(config).eval()


def _task(family: str) -> hc.data.Task:
    kind = "classification" if family == "bert" else "language-modelling"
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(TEXTS)]
    return hc.task(kind, rows, tokenizer=word_tokenizer(TEXTS))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_of_a_cut_model_only_linear_layers_change_and_by_the_rank(family: str) -> None:
    model = _model(family)
    hc.cut(model, "0:1 1:0-1 1.mlp:0-6" if family != "llama" else "0:0-1 1.mlp:0-6")
    before, modules, removed = copy.deepcopy(model), [type(one) for one in model.modules()], hc.removed(model).units
    adapted = {f"{name}.weight" for name in adapted_matrices(model)}
    needed = [parameter.requires_grad for parameter in model.parameters()]
    trained = hc.train(model, _task(family), replace(RECIPE, epochs=12))
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]
    assert [type(one) for one in model.modules()] == modules
    assert [parameter.requires_grad for parameter in model.parameters()] == needed
    assert hc.removed(model).units == removed
    old = before.state_dict()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, old[name])}
    assert changed == adapted
    for name in changed:
        singular = torch.linalg.svdvals((model.state_dict()[name] - old[name]).double())
        assert float(singular[2:].max() if len(singular) > 2 else 0) < 1e-5 * float(singular[0]), name  # float32


def test_what_it_computed_last_is_what_the_merged_weights_compute() -> None:
    model, batch = _model("llama"), {"input_ids": torch.tensor([[3, 4, 5, 6]])}
    with torch.no_grad():
        whole = model(**batch).logits
        with low_rank(model, 2, 0):
            assert torch.allclose(model(**batch).logits, whole, atol=1e-6), "B begins at zero"
            for name, parameter in model.named_parameters():
                assert parameter.requires_grad == ("lora_" in name)
                if "lora_B" in name:
                    parameter.fill_(0.05)
            added = model(**batch).logits
        assert not torch.allclose(added, whole, atol=1e-3)
        assert torch.allclose(model(**batch).logits, added, atol=1e-5)
    assert not any("lora" in name for name in model.state_dict())


STEP = loop.safe_step


def _stops(work: Any) -> None:
    """Four steps, and then Ctrl-C."""
    if work.done == 4:
        raise KeyboardInterrupt
    STEP(work)


def test_where_training_stops_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model("bert")
    before = copy.deepcopy(model)
    monkeypatch.setattr(loop, "safe_step", _stops)
    with pytest.raises(KeyboardInterrupt):
        hc.train(model, _task("bert"), RECIPE)
    assert same_weights(model, before)


def test_resumed_is_as_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stopped, task = _model("bert"), _model("bert"), _task("bert")
    hc.train(whole, task, RECIPE)
    with monkeypatch.context() as patch, Run.open(tmp_path, {}) as run:
        patch.setattr(loop, "safe_step", _stops)
        with pytest.raises(KeyboardInterrupt):
            hc.train(stopped, task, RECIPE, run=run, save_every=1)
    assert same_weights(stopped, _model("bert")), "what was not finished is not in the weights"
    with Run.open(tmp_path, {}) as run:
        assert hc.train(stopped, task, RECIPE, run=run).steps == 6
    assert close_weights(stopped, whole, 1e-6)


def test_saved_it_is_an_ordinary_model(tmp_path: Path) -> None:
    model = _model("gpt2")
    hc.cut(model, "0:1")
    hc.train(model, _task("gpt2"), RECIPE)
    hc.save(model, tmp_path / "saved")
    assert same_weights(hc.load(tmp_path / "saved"), model)
    assert not list((tmp_path / "saved").glob("adapter*"))


def test_half_precision_weights_take_additions_in_float32() -> None:
    model = _model("llama").to(torch.bfloat16)
    hc.train(model, _task("llama"), RECIPE)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_what_cannot_be_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = _model("bert"), _task("bert")
    with says(Refused, about="lora"):
        Recipe(lora=0)
    with says(Refused, about="checkpoints"):
        hc.train(model, task, RECIPE, checkpoints=tmp_path / "epochs")
    with says(Refused, about="Gates"), learning(model, "l0", l0=0.1) as gates:
        hc.train(model, task, RECIPE, gates=gates)
    with says(NotFound, about="no linear layer"):
        adapted_matrices(nn.Sequential(nn.LayerNorm(3)))
    monkeypatch.setattr(low_rank_module, "find_spec", lambda _: None)
    with says(Refused, about="pip install"):
        hc.train(model, task, RECIPE)


def test_without_it_a_question_is_the_one_of_earlier_versions() -> None:
    """So that their run folders and states are found again."""
    assert "lora" not in Recipe().facts()
    assert Recipe(lora=4).facts()["lora"] == 4
    assert "lora" not in Recovery(recover="1").question()
    assert Recovery(recover="1").question()["recover"] == 1.0
    assert Recovery(recover="200steps", lora=4).question() == {
        **Recovery().question(),
        "recover": "200steps",
        "lora": 4,
    }
