"""Folders for SentenceTransformer(...): the embeddings are those of the cut model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import small_models, zoo
from helpers.same import close, same_weights
from torch import nn

import headcount as hc
from headcount.errors import CheckFailed, Refused
from headcount.exports import sentence_transformers as format_of_sentences
from headcount.exports.pipeline import export

library = pytest.importorskip("sentence_transformers")

TEXTS = ["the film is good", "nobody is dull and long", "love"]
UNEVEN = "0:1 1:0-1 2:* 0.mlp:4-9 2.mlp:*"


@pytest.fixture(scope="module", autouse=True)
def modules_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where transformers copies the code of folders before it runs it, for these tests alone."""
    from transformers import dynamic_module_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        patch.syspath_prepend(dynamic_module_utils.HF_MODULES_CACHE)
        yield


def tokenizer() -> Any:
    return small_models.word_tokenizer([" ".join(small_models.WORDS)])


def sentence_model(folder: Path, kind: str, pooling: str) -> Path:
    """A folder that sentence-transformers wrote: an encoder, its pooling, and vectors of length one."""
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    model: Any = zoo.build(kind)[0]
    model.base_model.save_pretrained(folder / "encoder")
    tokenizer().save_pretrained(folder / "encoder")
    parts = [Transformer(str(folder / "encoder")), Pooling(32, pooling_mode=pooling), Normalize()]
    library.SentenceTransformer(modules=parts, prompts={"query": "about "}, device="cpu").save(str(folder / "whole"))
    return folder / "whole"


def embeddings(folder: Path, texts: list[str] = TEXTS, **options: Any) -> np.ndarray:
    model = library.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu", local_files_only=True)
    return model.encode(texts, batch_size=2, **options)


def with_model(folder: Path, model: nn.Module) -> np.ndarray:
    """The embeddings of a folder of sentence-transformers whose encoder is this model."""
    embedder = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    embedder[0].model = model
    return embedder.encode(TEXTS, batch_size=2)


@pytest.mark.parametrize(
    ("kind", "pooling", "units"),
    [
        ("bert", "cls", "0:1 1:* 0.mlp:4-9 1.mlp:*"),
        ("mpnet", "mean", "0:1-2 1:* 0.mlp:4-9"),
        ("xlm-roberta", "max", "0:* 1:3 1.mlp:*"),
        ("distilbert", "mean", "0:1 layers:1"),
        ("modernbert", "mean", "0:1 1:0-1 1.mlp:*"),
    ],
)
def test_pooling_comes_along_and_the_embeddings_are_those_of_the_cut_model(
    kind: str, pooling: str, units: str, tmp_path: Path
) -> None:
    source = sentence_model(tmp_path, kind, pooling)
    model = hc.load(source)
    hc.cut(model, units)
    written = export(model, "sentence-transformers", tmp_path / "out", source=source)
    assert written.check.runtime.startswith("sentence-transformers")
    assert close(embeddings(tmp_path / "out"), with_model(source, model))
    assert not close(embeddings(tmp_path / "out"), embeddings(source))
    settings = json.loads((tmp_path / "out" / "config_sentence_transformers.json").read_text())
    assert settings["prompts"]["query"] == "about "
    assert same_weights(hc.load(tmp_path / "out"), model)


def test_a_plain_encoder_gets_the_mean_over_its_tokens(tmp_path: Path) -> None:
    model: Any = small_models.classifier()
    hc.cut(model, UNEVEN)
    words = tokenizer()
    written = export(model, "sentence-transformers", tmp_path / "out", tokenizer=words)
    assert any("the mean over its tokens" in note for note in written.notes)
    assert any("BertModel in the BertForSequenceClassification" in note for note in written.notes)
    for text, got in zip(TEXTS, embeddings(tmp_path / "out"), strict=True):
        with torch.no_grad():
            hidden = model.bert(**words(text, return_tensors="pt")).last_hidden_state[0]
        assert close(torch.tensor(got), hidden.mean(0))


@pytest.mark.parametrize(
    "units", ["0:1 1:* 0.mlp:4-9", "0.mlp:0-3"]
)  # by the code in the folder, and by a stock config
def test_a_model_of_masked_words_gives_the_embeddings_of_its_encoder(units: str, tmp_path: Path) -> None:
    model: Any = zoo.build("bert")[0]
    hc.cut(model, units)
    words = tokenizer()
    export(model, "sentence-transformers", tmp_path / "out", tokenizer=words)
    with torch.no_grad():
        hidden = model.bert(**words(TEXTS[0], return_tensors="pt")).last_hidden_state[0]
    assert close(torch.tensor(embeddings(tmp_path / "out")[0]), hidden.mean(0))
    assert same_weights(hc.load(tmp_path / "out"), model)


def test_what_sentence_transformers_saves_again_loads_again(tmp_path: Path) -> None:
    source = sentence_model(tmp_path, "bert", "mean")
    model = hc.load(source)
    hc.cut(model, "0:1 1:* 0.mlp:4-9")
    export(model, "sentence-transformers", tmp_path / "out", source=source)
    loaded = library.SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")
    loaded.save(str(tmp_path / "again"))
    assert close(embeddings(tmp_path / "again"), embeddings(tmp_path / "out"))
    assert same_weights(hc.load(tmp_path / "again"), model)


def test_where_a_stock_config_says_the_cut_no_code_runs(tmp_path: Path) -> None:
    source = sentence_model(tmp_path, "bert", "mean")
    model = hc.load(source)
    hc.cut(model, "0.mlp:4-9 1.mlp:0-5")
    export(model, "sentence-transformers", tmp_path / "out", source=source)
    plain = library.SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    assert close(plain.encode(TEXTS), with_model(source, model))


def test_without_trust_it_says_what_to_pass(tmp_path: Path) -> None:
    model = small_models.classifier()
    hc.cut(model, UNEVEN)
    export(model, "sentence-transformers", tmp_path / "out", tokenizer=tokenizer())
    with pytest.raises(Exception, match="pass trust_remote_code=True"):
        library.SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)


@pytest.mark.parametrize(
    ("name", "units", "reason"),
    [
        ("vit", "0:0", "does not read text"),
        ("t5", "encoder.0:0", "it has a decoder"),
        ("torch-encoder", "0:0", "not a class"),
    ],
)
def test_what_makes_no_embeddings_of_texts_is_refused(name: str, units: str, reason: str, tmp_path: Path) -> None:
    model, inputs = zoo.build(name)
    hc.cut(model, units)
    with pytest.raises(Refused, match=reason):
        export(model, "sentence-transformers", tmp_path / "out", batch=inputs)


def test_without_a_tokenizer_it_is_refused(tmp_path: Path) -> None:
    model = small_models.classifier()
    hc.cut(model, UNEVEN)
    with pytest.raises(Refused, match="no tokenizer came along"):
        export(model, "sentence-transformers", tmp_path / "out", batch=zoo.text())
    assert not (tmp_path / "out").exists()


def test_the_check_finds_embeddings_that_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_models.classifier()
    hc.cut(model, UNEVEN)
    really = format_of_sentences.write

    def shaken(encoder: nn.Module, target: Path, *rest: Any, **options: Any) -> Any:
        notes = really(encoder, target, *rest, **options)
        from safetensors.torch import load_file, save_file

        weights = load_file(target / "model.safetensors")
        save_file({name: -tensor for name, tensor in weights.items()}, target / "model.safetensors", {"format": "pt"})
        return notes

    monkeypatch.setattr(format_of_sentences, "write", shaken)
    with pytest.raises(CheckFailed, match="embeddings of 2 texts"):
        export(model, "sentence-transformers", tmp_path / "out", tokenizer=tokenizer())
