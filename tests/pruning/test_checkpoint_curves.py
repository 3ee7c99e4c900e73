"""`curve --over`: the curve of every checkpoint of a training, on the same examples, ended and resumed."""

from __future__ import annotations

import json
import random
import re
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers.same import alike
from helpers.small_models import WORDS, ran, ran_json, word_tokenizer
from transformers import BertConfig, BertForSequenceClassification

import headcount as hc
from headcount.model import checkpoints
from headcount.pruning import curves as studies
from headcount.runs import Run, read

NAMES = ("epoch 9", "epoch 10", "epoch 011")  # by name, 10 would come before 9; a space is not for the name of a piece


class Ended(BaseException):
    """The process came to its end here, as by a kill: nothing in the program may catch it."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints of one classifier, among other things, and data."""
    folder = tmp_path_factory.mktemp("place")
    sizes = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**sizes, intermediate_size=24, max_position_embeddings=16, pad_token_id=0)
    for seed, name in enumerate(NAMES):
        torch.manual_seed(seed)
        model = BertForSequenceClassification(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.4) if parameter.dim() > 1 else None
        model.save_pretrained(folder / "checkpoints" / name)
    shutil.copytree(folder / "checkpoints" / NAMES[-1], folder / "model")
    word_tokenizer(WORDS).save_pretrained(folder / "model")  # checkpoints need none of their own
    (folder / "checkpoints" / "logs").mkdir()
    (folder / "checkpoints" / "notes.txt").write_text("not a folder")
    draw = random.Random(0)
    for name, count in (("dev", 40), ("train", 32)):
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) + f"\t{n % 2}" for n in range(count)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    return folder


def asked(place: Path, *more: object) -> tuple[object, ...]:
    data = ("--data", place / "dev.tsv", "--score-data", place / "train.tsv")
    return ("curve", place / "model", "--over", place / "checkpoints", *data, *more)


@pytest.mark.parametrize(
    "more",
    [
        ("--by", "taylor,random", "--random-seeds", 2, "--step", "25%"),
        ("--by", "magnitude", "--step", 1, "--units", "layers"),
        ("--by", "ablation", "--metric", "loss", "--only", "encoder", "--recompute", "--step", "50%"),
    ],
)
def test_each_checkpoint_has_the_curve_it_would_have_alone(
    place: Path, tmp_path: Path, more: tuple[object, ...]
) -> None:
    found = ran_json(*asked(place, *more), "-o", tmp_path / "over")
    assert [(one["name"], one["place"]) for one in found["checkpoints"]] == list(zip(NAMES, (1, 2, 3), strict=True))
    whole = []
    for n, one in enumerate(found["checkpoints"]):
        alone = tmp_path / one["name"]
        shutil.copytree(place / "checkpoints" / one["name"], alone)
        word_tokenizer(WORDS).save_pretrained(alone)
        data = ("--data", place / "dev.tsv", "--score-data", place / "train.tsv")
        expected = ran_json("curve", alone, *data, *more, "-o", tmp_path / f"alone-{n}")
        assert alike(one["curves"], expected["curves"])
        assert found["sets"] == expected["sets"]
        whole.append(expected["curves"][0]["points"][0]["result"]["value"])
    assert len(set(whole)) > 1, "checkpoints that are all the same would show nothing"
    kept = read(tmp_path / "over")
    assert kept.question["options"]["checkpoints"].keys() == set(NAMES)
    assert len(set(kept.question["options"]["checkpoints"].values())) == 3
    assert {name[:4] for name in kept.pieces} == {"001-", "002-", "003-"}
    last = found["checkpoints"][1]["curves"][0]["points"][-1]
    by = found["checkpoints"][1]["curves"][0]["by"]
    assert kept.read_json(f"002-epoch-10-plan-{by}-{last['removed']:05d}") == last["plan"]


def test_the_table_has_each_checkpoint_relative_to_its_own_whole_model(place: Path, tmp_path: Path) -> None:
    more = ("--by", "taylor,random", "--random-seeds", 2, "--step", "50%", "-o", tmp_path / "run")
    found, shown = ran_json(*asked(place, *more)), ran(*asked(place, *more)).output
    first, second = (shown.index(f"{name}: accuracy without") for name in ("taylor", "random, mean of 2"))
    for text, wanted in ((shown[first:second], ["taylor"]), (shown[second:], ["random", "random"])):
        head = next(line for line in text.splitlines() if line.startswith("checkpoint"))
        assert head.split() == ["checkpoint", "accuracy", "50%", "100%"]
        for one in found["checkpoints"]:
            curves = [made for made in one["curves"] if made["by"] == wanted[0]]
            assert len(curves) == len(wanted)
            base = curves[0]["points"][0]["result"]["value"]
            means = [np.mean([made["points"][n]["result"]["value"] for made in curves]) for n in (1, 2)]
            line = next(line for line in text.splitlines() if line.startswith(one["name"] + " "))
            assert line.removeprefix(one["name"]).split() == [f"{base:.4f}", *(f"{mean / base:.1%}" for mean in means)]
    assert "note: no config.json in logs, left out" in shown
    assert found["sets"] in shown
    assert found["skipped"] == ["logs"]


def test_one_model_is_in_memory_at_a_time(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []
    counts: list[int] = []
    real = checkpoints.load

    def load(*arguments: Any, **options: Any) -> Any:
        held = [model() for model in alive]
        counts.append(sum(model is not None and model.device.type != "meta" for model in held))
        del held
        model = real(*arguments, **options)
        alive.append(weakref.ref(model))
        return model

    monkeypatch.setattr(checkpoints, "load", load)
    ran_json(*asked(place, "--step", "50%", "-o", tmp_path / "run"))
    assert counts == [0, 0, 0, 0]


def test_ended_at_any_moment_it_comes_to_the_same_end_without_doing_work_twice(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("--step", "50%", "--batch-size", 8, "--by", "taylor,random", "--random-seeds", 1)
    calm = ran_json(*asked(place, *more), "-o", tmp_path / "calm")
    folder, kept = tmp_path / "ended", dict[str, int]()
    real, ends = Run.write, len(read(tmp_path / "calm").pieces)
    for until in (ends // 2, ends - 1):  # in the second checkpoint, and before the very last piece

        def write(run: Run, name: str, arrays: Any, until: int = until) -> None:
            if len(run.pieces) == until:
                raise Ended
            real(run, name, arrays)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "write", write)
            with pytest.raises(Ended):
                ran(*asked(place, *more), "-o", folder)
        now = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
        assert len(now) == until
        assert not (folder / "over.json").exists()
        assert {name: now[name] for name in kept} == kept, "a finished piece was written again"
        kept = now
    assert ran_json(*asked(place, *more), "-o", folder) == {**calm, "run": str(folder)}
    assert (folder / "over.json").read_bytes() == (tmp_path / "calm" / "over.json").read_bytes()
    assert {name: (folder / name).stat().st_mtime_ns for name in kept} == kept


def test_another_checkpoint_makes_another_question(place: Path, tmp_path: Path) -> None:
    there = tmp_path / "checkpoints"
    shutil.copytree(place / "checkpoints", there)
    command = [*asked(place, "--by", "random", "--step", "100%", "-o", tmp_path / "run")]
    command[3] = there
    ran_json(*command)
    config = json.loads((there / NAMES[0] / "config.json").read_text())
    (there / NAMES[0] / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.1}))
    with says(hc.errors.BadRun, about="checkpoints"):
        ran(*command)


def test_checkpoints_are_ordered_by_their_numbers(tmp_path: Path) -> None:
    names = ["checkpoint-2", "checkpoint-500", "checkpoint-0501", "checkpoint-1000", "epoch=1-step=20", "final"]
    for name in [*names[::-1], ".cache", "runs", "empty"]:
        (tmp_path / name).mkdir()
        if name in names:
            (tmp_path / name / "config.json").write_text("{}")
    found, others = studies.checkpoints_in(tmp_path)
    assert [path.name for path in found] == names
    assert others == ["empty", "runs"]


def test_some_checkpoints_by_their_places(place: Path, tmp_path: Path) -> None:
    more = ("--by", "magnitude", "--step", "100%")
    every = ran_json(*asked(place, *more), "-o", tmp_path / "every")["checkpoints"]
    some = ran_json(*asked(place, *more, "--checkpoints", "3, 1"), "-o", tmp_path / "some")["checkpoints"]
    assert [one["name"] for one in some] == [NAMES[0], NAMES[2]], "in the order of the training"
    assert [one["curves"] for one in some] == [every[0]["curves"], every[2]["curves"]]
    assert read(tmp_path / "some").question["options"]["checkpoints"].keys() == {NAMES[0], NAMES[2]}
    for wrong in ("0", "4", "1,epoch 9", ""):
        with says(hc.errors.BadRun, about="from 1 to 3"):
            ran(*asked(place, "--checkpoints", wrong, "-o", tmp_path / "wrong"))
    alone = ran("curve", place / "model", "--data", place / "dev.tsv", "--checkpoints", "1", "-o", tmp_path / "wrong")
    assert alone.exit_code == 2
    assert "name it with --over" in alone.output
    assert not (tmp_path / "wrong").exists()


def test_what_cannot_be_done_is_said_in_one_sentence(place: Path, tmp_path: Path) -> None:
    wrong = [*asked(place, "-o", tmp_path / "run")]
    (tmp_path / "some" / "logs").mkdir(parents=True)
    for folder, why in ((tmp_path / "nowhere", "is not a folder"), (tmp_path / "some", "none of its 1 folders")):
        wrong[3] = folder
        with says(hc.errors.BadRun, about=why):
            ran(*wrong)
    done = ran(*asked(place, "--scores", "scores.json", "-o", tmp_path / "run"))
    assert done.exit_code == 2
    assert re.search(r"--scores belong to one model", done.output)
    assert not (tmp_path / "run").exists()
