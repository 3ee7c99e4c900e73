"""Commands in parts, as a user gives them: each part its share, `gather`, `status`, and the answer of one process."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import processes
from helpers.same import close
from helpers.small_models import WORDS, word_tokenizer
from helpers.small_models import ran as _run
from transformers import BertConfig, BertForSequenceClassification
from typer.testing import CliRunner

from headcount.cli.app import app
from headcount.cluster.presence import Present, Worker, workers_in
from headcount.runs import read

EACH = ["--batch-size", "2"]
COMMANDS = {
    "ablate": ["--data", "dev.tsv", *EACH],
    "ablate, filled": ["--data", "dev.tsv", "--fill", "mean", "--reference-data", "train.tsv", *EACH],
    "ablate, all but one": ["--data", "dev.tsv", "--all-but-one", *EACH],
    "transfer": ["--data", "dev.tsv", "--other-data", "train.tsv", *EACH],
    "score": ["--data", "train.tsv", *EACH],
    "score, confidence": ["--data", "train.tsv", "--by", "confidence", *EACH],
    "curve": [
        "--data",
        "dev.tsv",
        "--score-data",
        "train.tsv",
        "--by",
        "taylor,random",
        "--random-seeds",
        "1",
        "--step",
        "4",
        *EACH,
    ],
    "curve, until a drop": [
        "--data",
        "dev.tsv",
        "--score-data",
        "train.tsv",
        "--until-drop",
        "90",
        "--step",
        "4",
        *EACH,
    ],
}


STAGES = {"ablate, filled": 2, "ablate, all but one": 2, "transfer": 2, "curve": 3, "curve, until a drop": 2}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier and data for it."""
    folder = tmp_path_factory.mktemp("place")
    torch.manual_seed(0)
    sizes = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertForSequenceClassification(
        BertConfig(**sizes, intermediate_size=24, max_position_embeddings=16, pad_token_id=0)
    )
    model.save_pretrained(folder / "classifier")
    word_tokenizer(WORDS).save_pretrained(folder / "classifier")
    draw = random.Random(0)
    for name, count in (("train", 70), ("dev", 60)):
        rows = [
            "sentence\tlabel",
            *(f"{' '.join(draw.choices(WORDS, k=5))}\t{draw.randint(0, 1)}" for _ in range(count)),
        ]
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    return folder


def _words(name: str) -> list[str]:
    return [name.partition(",")[0], "classifier", *COMMANDS[name]]


def _same(one: Any, other: Any) -> bool:
    """Whether two documents say the same, numbers within rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return close(np.array(one), np.array(other))
    return bool(one == other)


def _alike(one: Path, other: Path) -> None:
    """Whether two run folders hold the same: files, pieces and documents."""
    names = sorted(path.name for path in one.iterdir())
    assert sorted(path.name for path in other.iterdir()) == names
    for name in (name for name in names if name.endswith(".npz")):
        a, b = (read(folder).read(name.removesuffix(".npz")) for folder in (one, other))
        assert a.keys() == b.keys()
        assert all(close(a[key], b[key]) for key in a), name
    for name in (name for name in names if name.endswith(".json") and name not in ("run.json", "command.json")):
        assert _same(*(json.loads((folder / name).read_text()) for folder in (one, other))), name
    assert read(other).finished


@pytest.mark.parametrize("name", COMMANDS)
def test_parts_and_gather_find_what_one_process_finds(name: str, place: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    _run(*_words(name), "-o", whole)
    for _ in range(STAGES.get(name, 1)):  # one at a time, where nobody is at work on the other part
        for part in ("2/2", "1/2"):
            _run(*_words(name), "-o", shared, "--part", part)
    there = read(shared).pieces
    if "until" not in name:  # whose points come one after the other
        assert set(there) == set(read(whole).pieces) - {"samples"}, "nothing is left for the last process"
    assert not read(shared).finished
    monkeypatch.chdir(tmp_path)  # it goes to where the parts were
    assert "$ headcount" in _run("gather", shared).stderr
    _alike(whole, shared)


def test_parts_at_once_one_of_them_killed(place: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    words, shared = _words("ablate"), tmp_path / "shared"
    _run(*words, "-o", tmp_path / "whole")
    started = [processes.command([*words, "-o", shared, "--part", f"{n}/2"], tmp_path / str(n)) for n in (1, 1, 2)]  # type: ignore[list-item]
    processes.wait_until(lambda: (shared / "run.json").exists() and len(read(shared).pieces) > 0, started[0])
    os.kill(started[0].pid or 0, signal.SIGKILL)
    for one in started:
        one.join(60)
    assert [one.exitcode for one in started][1:] == [0, 0]
    _run("gather", shared)
    _alike(tmp_path / "whole", shared)


def test_a_part_says_what_comes_next(place: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    first = _run(*_words("ablate"), "-o", tmp_path / "run", "--part", "1/2").stderr
    assert "part 1 of 2: " in first
    assert "missing, and nobody is at work on them" in first
    last = _run(*_words("ablate"), "-o", tmp_path / "run", "--part", "2/2").stderr
    assert f"and all others are there: headcount gather {tmp_path / 'run'} finishes the run" in last


def test_a_whole_command_does_what_gather_does(place: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    _run(*_words("ablate"), "-o", tmp_path / "whole")
    _run(*_words("ablate"), "-o", tmp_path / "run", "--part", "1/2")
    _run(*_words("ablate"), "-o", tmp_path / "run")
    _alike(tmp_path / "whole", tmp_path / "run")


def _said(*words: object) -> str:
    done = CliRunner().invoke(app, list(map(str, words)))
    return f"{done.output} {done.exception or ''}"


def test_what_gather_refuses(place: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    run = tmp_path / "run"
    assert "is not a run folder" in _said("gather", tmp_path)
    _run(*_words("ablate"), "-o", run, "--part", "1/2")
    me = Present(run, Worker("part 2 of 2"))
    assert "is in use: part 2 of 2 on" in _said("gather", run)
    me.go()
    run.rename(tmp_path / "moved")
    assert "was moved" in _said("gather", tmp_path / "moved")
    (tmp_path / "moved").rename(run)
    _run("gather", run)
    assert "No part has worked" in _said("gather", run)
    assert "the run is finished" in _said("gather", run)


def test_status_has_a_line_for_every_worker(place: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    run = tmp_path / "run"
    _run(*_words("ablate"), "-o", run, "--part", "1/2")
    there = len(read(run).pieces)
    alive = Present(run, Worker("part 2 of 2"))
    alive.say(state="computing", piece="ablation-000009", done=4, left=6, seconds=8.0)
    dead = Present(run, Worker("part 3 of 2", host="elsewhere"))
    os.utime(run / ".workers" / f"{dead.id}.json", (0, 0))
    said = _run("status", run).stdout
    assert f"{there} pieces are there; the run is not finished" in said
    assert f"process {os.getpid()}): computing ablation-000009; 4 pieces done, 6 left, about 12 s" in said
    assert "part 3 of 2 (elsewhere, process" in said
    assert ": died; 0 pieces done" in said
    data = json.loads(_run("status", run, "--json").stdout)
    assert [row["time_left"] for row in sorted(data["workers"], key=lambda row: row["name"])] == [12.0, None]
    alive.go()
    dead.go()
    assert workers_in(run) == []
    assert "no part is at work here" in _run("status", run).stdout
    _run("gather", run)
    assert "the run is finished" in _run("status", run).stdout


def test_what_cannot_be_shared_out_has_no_parts(place: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    assert "No such option" in _said("evaluate", "classifier", "--data", "dev.tsv", "--part", "1/2")
    assert "cannot be shared out" in _said(
        "score", "classifier", "--data", "dev.tsv", "--by", "wanda", "--stream", "--part", "1/2"
    )
    assert "A part is written as 3/16" in _said("ablate", "classifier", "--data", "dev.tsv", "--part", "3/2")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ablate, filled", "curve", "score"])
def test_on_ray_the_same_is_found(name: str, place: Path, tmp_path: Path, monkeypatch: Any) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.chdir(place)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        _run(*_words(name), "-o", tmp_path / "whole")
        done = _run(*_words(name), "-o", tmp_path / "run", "--on", "ray", "--workers", 2, "--device", "cpu")
        assert done.exit_code == 0, done.output
    finally:
        ray.shutdown()
    _alike(tmp_path / "whole", tmp_path / "run")
    commands = [json.loads((tmp_path / run / "command.json").read_text())["command"] for run in ("whole", "run")]
    assert (
        commands[1].replace(str(tmp_path / "run"), str(tmp_path / "whole")).replace(" --device cpu", "") == commands[0]
    )


def test_flags_that_do_not_go_together(place: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    words = ("ablate", "classifier", "--data", "dev.tsv")
    assert "--on ray is what there is" in _said(*words, "--on", "dask")
    assert "choose one of them" in _said(*words, "--on", "ray", "--part", "1/2")
    assert "the number of workers of --on ray" in _said(*words, "--workers", "2")
    assert "the number of workers of --on ray" in _said(*words, "--on", "ray", "--workers", "0")


def test_without_ray_it_says_what_to_install(place: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'headcount[ray]'" in _said(*_words("ablate"), "-o", tmp_path / "run", "--on", "ray")
    assert not (tmp_path / "run").exists()
