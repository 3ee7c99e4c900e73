"""What is common to all exports: limits before files, a check before the name, and nothing but whole files."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.fake_formats import WEIGHTS, FakeWriter, fake_format
from helpers.processes import forked
from helpers.same import close
from helpers.small_models import word_tokenizer
from safetensors.torch import load_file, save_file
from torch import nn

import headcount as hc
from headcount.errors import BadCheckpoint, BadMeasure, CheckFailed, Refused
from headcount.exports import formats
from headcount.exports.check_batch import LENGTH, TEXTS, check_batch
from headcount.exports.formats import FORMATS, Limit
from headcount.exports.pipeline import checked_settings


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> FakeWriter:
    return fake_format(monkeypatch)


@pytest.fixture
def model() -> nn.Module:
    made, _ = zoo.build("llama")
    hc.cut(made, "0:0-1 1:2 1.mlp:0-9")
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def negate(file: Path) -> None:
    save_file({name: -tensor for name, tensor in load_file(file).items()}, file)


# -- the result ------------------------------------------------------------------------------------------------------


def test_an_export_is_written_compared_and_says_so(model: nn.Module, writer: FakeWriter, tmp_path: Path) -> None:
    exported = hc.export(model, "fake", tmp_path / "deep" / "out", groups="pad", dtype="f16")
    assert names(tmp_path / "deep" / "out") == ["export.json", WEIGHTS]
    assert exported.path == tmp_path / "deep" / "out"
    assert exported.check.difference <= exported.check.allowed
    assert exported.size == sum(path.stat().st_size for path in exported.path.iterdir())
    assert writer.seen[0].settings == formats.Settings("pad", "f16")
    lines = str(exported).splitlines()
    assert lines[0].startswith(f"{exported.path}: fake, ")
    assert lines[1].startswith("checked with fake 1.0: outputs of 2 examples differ by at most ")
    assert [line.split(" ")[0:3] for line in lines[2:]] == [
        ["note:", "the", "groups"],
        ["note:", "written", "by"],
        ["note:", "nothing", "was"],
    ]
    record = json.loads((exported.path / "export.json").read_text())
    assert record["format"] == "fake"
    assert record["check"]["runtime"] == "fake 1.0"
    assert record["files"] == {WEIGHTS: (exported.path / WEIGHTS).stat().st_size}


def test_a_folder_is_exported_as_its_model_is(model: nn.Module, writer: FakeWriter, tmp_path: Path) -> None:
    folder = hc.save(model, tmp_path / "cut")
    hc.export(folder, "fake", tmp_path / "out", groups="repeat")
    seen = writer.seen[0]
    assert seen.source == str(folder)
    assert sum(p.numel() for p in seen.model.parameters()) > sum(p.numel() for p in model.parameters())


def test_a_model_in_training_is_exported_as_it_answers_and_trains_on(
    model: nn.Module, writer: FakeWriter, tmp_path: Path
) -> None:
    model.train()
    hc.export(model, "fake", tmp_path / "out", groups="pad")
    assert not writer.seen[0].training
    assert model.training


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_a_format_cannot_hold_is_refused_with_the_nearest_thing_that_it_can(
    model: nn.Module, writer: FakeWriter, tmp_path: Path
) -> None:
    writer.limited = [Limit("layer 1 has no attention", "write a zero head")]
    with says(
        Refused, about="fake cannot hold this model: layer 1 has no attention: write a zero head (and 1 more limit)."
    ):
        hc.export(model, "fake", tmp_path / "out")
    writer.limited = []
    with says(Refused, about="layer 0 has groups of 2 and 1 query heads: use --groups pad (exact, ") as caught:
        hc.cut(model, "0:2 1:3")
        hc.export(model, "fake", tmp_path / "out")
    assert "(and" not in str(caught.value)
    assert writer.seen == []
    assert names(tmp_path) == []


def test_what_differs_is_never_written(model: nn.Module, writer: FakeWriter, tmp_path: Path) -> None:
    writer.spoil = negate
    with says(CheckFailed, about="outputs of 2 examples in fake 1.0 differ from the model's by"):
        hc.export(model, "fake", tmp_path / "deep" / "out", groups="pad")
    assert names(tmp_path) == []


def test_a_difference_that_is_not_a_number_is_one(model: nn.Module, writer: FakeWriter, tmp_path: Path) -> None:
    def spoil(file: Path) -> None:
        save_file({name: tensor * float("nan") for name, tensor in load_file(file).items()}, file)

    writer.spoil = spoil
    with says(CheckFailed, about="nan"):
        hc.export(model, "fake", tmp_path / "out", groups="pad")
    assert names(tmp_path) == []


def test_what_a_tool_of_a_format_raises_is_one_sentence(
    model: nn.Module, writer: FakeWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error: Exception) -> None:
        def spoil(file: Path) -> None:
            raise error

        writer.spoil = spoil

    fails(ValueError("no such operator\nand a long report"))
    with says(Refused, about="out was not written: fake failed (ValueError: no such operator)."):
        hc.export(model, "fake", tmp_path / "out", groups="pad")
    fails(ModuleNotFoundError("No module named 'wonder.part'", name="wonder.part"))
    with says(BadCheckpoint, about="fake needs wonder, which is not installed: pip install 'headcount[fakes]'."):
        hc.export(model, "fake", tmp_path / "out", groups="pad")
    fails(OSError(28, "No space left on device"))
    with says(BadCheckpoint, about="No space left on device"):
        hc.export(model, "fake", tmp_path / "out", groups="pad")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"groups": "paid"}, "groups (--groups) is 'paid'; it must be pad or repeat"),
        ({"multiple": 0}, "multiple (--multiple) is 0; it must be a whole number from 1 on"),
        ({"tensor_parallel": True}, "tensor_parallel (--tensor-parallel) is True; it must be a whole number from 1 on"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options: dict, about: str) -> None:
    with says(BadCheckpoint, about=about):
        checked_settings(**options)


def test_a_format_that_is_not_there_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with says(BadCheckpoint, about="There is no export format 'ggfu'; there are transformers, vllm, gguf, "):
        hc.export(tmp_path / "nowhere", "ggfu", tmp_path / "out")
    with says(BadCheckpoint, about="did you mean gguf?"):
        formats.format_named("ggfu")


def test_every_format_has_a_line_that_says_what_it_is() -> None:
    for name, row in FORMATS.items():
        assert row.name == name
        assert 20 < len(row.what) < 90


# -- what may be replaced ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".fake"])
def test_nothing_is_replaced_unless_it_is_said_and_then_whole(
    suffix: str, model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = fake_format(monkeypatch, suffix=suffix)
    target = tmp_path / f"out{suffix}"
    hc.export(model, "fake", target, groups="pad")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with says(BadCheckpoint, about="use force (--force) to replace it"):
        hc.export(tmp_path / "nowhere", "fake", target)  # said before anything is loaded
    writer.spoil = negate
    with says(CheckFailed, about=""):
        hc.export(model, "fake", target, groups="pad", force=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    writer.spoil = lambda file: None
    hc.cut(model, "1.mlp:10-20")
    hc.export(model, "fake", target, groups="pad", force=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} != before
    assert names(tmp_path) == [target.name]


def test_a_folder_with_anything_else_in_it_is_not_replaced(
    model: nn.Module, writer: FakeWriter, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    hc.export(model, "fake", out, groups="pad")
    (out / "notes.txt").write_text("mine")
    with says(BadCheckpoint, about="holds notes.txt, which is no part of a model"):
        hc.export(model, "fake", out, groups="pad", force=True)
    (out / "notes.txt").rename(out / WEIGHTS)
    with says(BadCheckpoint, about=f"holds {WEIGHTS}, which is no part of a model"):  # written by somebody else
        hc.export(model, "fake", out, groups="pad", force=True)
    assert (out / WEIGHTS).read_text() == "mine"
    (out / "export.json").write_text("[]")
    with says(BadCheckpoint, about=f"holds {WEIGHTS}"):
        hc.export(model, "fake", out, groups="pad", force=True)


def test_one_file_is_called_like_its_format_and_replaces_no_folder_and_no_source(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_format(monkeypatch, suffix=".fake")
    with says(BadCheckpoint, about="out does not end in .fake: name it like that."):
        hc.export(model, "fake", tmp_path / "out")
    (tmp_path / "a.fake").mkdir()
    with says(BadCheckpoint, about="a.fake is a folder, and this is written as one file"):
        hc.export(model, "fake", tmp_path / "a.fake", force=True)
    (tmp_path / "b.fake").write_text("a model")
    with says(BadCheckpoint, about="b.fake is still needed, or no file, so it is not replaced"):
        hc.export(model, "fake", tmp_path / "b.fake", source=tmp_path / "b.fake", force=True)


@pytest.mark.parametrize("suffix", ["", ".fake"])
def test_an_export_that_was_killed_leaves_nothing_with_the_name_and_the_next_one_tidies_up(
    suffix: str, model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = fake_format(monkeypatch, suffix=suffix)
    place = tmp_path / "place"
    target = place / f"out{suffix}"
    writer.spoil = lambda file: os.kill(os.getpid(), signal.SIGKILL)
    process = forked(lambda: hc.export(model, "fake", target, groups="pad"), tmp_path / "log")
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [name for name in names(place) if name.endswith(".unfinished")]
    assert not target.exists()
    writer.spoil = lambda file: None
    hc.export(model, "fake", target, groups="pad")
    assert names(place) == [target.name]


# -- the batch -------------------------------------------------------------------------------------------------------------


WORDS = [*dict.fromkeys(" ".join(TEXTS).split())]


def test_texts_are_read_by_the_models_own_tokenizer_and_have_different_lengths(tmp_path: Path) -> None:
    model, _ = zoo.build("bert")
    batch = check_batch(model, tokenizer=word_tokenizer(WORDS))
    assert batch["input_ids"].shape == (2, LENGTH)
    assert batch["attention_mask"].sum(1).tolist() == [LENGTH, 6]
    want = zoo.judged(model(**batch))[1, :6]
    alone = {name: tensor[1:, :6] for name, tensor in batch.items()}
    assert close(want.detach(), zoo.judged(model(**alone))[0].detach())
    word_tokenizer(WORDS).save_pretrained(tmp_path)
    from_folder = check_batch(model, source=str(tmp_path))
    assert {name: tensor.tolist() for name, tensor in from_folder.items()} == {n: t.tolist() for n, t in batch.items()}


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "t5", "marian", "vit", "whisper", "clip", "wav2vec2"])
def test_a_model_without_a_tokenizer_is_given_numbers_of_its_kind(name: str) -> None:
    model, _ = zoo.build(name)
    batch = check_batch(model, source="/nowhere/at/all")
    assert {len(tensor) for tensor in batch.values()} == {2}
    assert torch.isfinite(zoo.judged(model(**batch))).all()


def test_an_encoder_decoder_is_given_both_sides() -> None:
    model, _ = zoo.build("t5")
    batch = check_batch(model, tokenizer=word_tokenizer(WORDS))
    assert batch["decoder_input_ids"].shape == (2, 4)
    assert "token_type_ids" not in batch
    assert torch.isfinite(zoo.judged(model(**batch))).all()


def test_the_tokenizer_of_another_model_is_not_used() -> None:
    model, _ = zoo.build("gpt2")
    tokenizer = word_tokenizer([f"word{n}" for n in range(200)] + WORDS)
    batch = check_batch(model, tokenizer=tokenizer)
    assert int(batch["input_ids"].max()) < zoo.VOCAB


def test_a_model_of_no_known_kind_needs_a_batch(writer: FakeWriter, tmp_path: Path) -> None:
    model, inputs = zoo.build("bert")
    model.main_input_name = "something"
    with says(BadMeasure, about="give batch=, the model's inputs by name"):
        hc.export(model, "fake", tmp_path / "out")
    assert hc.export(model, "fake", tmp_path / "out", batch=inputs).path.is_dir()
    shutil.rmtree(tmp_path / "out")
