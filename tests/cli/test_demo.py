"""The demo: everything on the embedded models, from one command, and a folder that is only ever its own."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import says
from typer.testing import CliRunner

import headcount as hc
from headcount.cli import app
from headcount.cli.help import demo
from headcount.efficiency import benchmark
from headcount.pruning import pipeline
from headcount.runs import read


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same walk on fewer examples, timed twice."""
    fewer = {"--limit": "12", "--seconds": "0.1", "--steps": "2"}

    def short(folder: Path, walk: Any = demo.walk) -> list[list[str]]:
        out = []
        for words in walk(folder):
            kept = [fewer.get(before, word) for before, word in zip(["", *words], words, strict=False)]
            if kept[0] in ("prune", "learn"):
                kept += ["--limit", "60" if "--tune" in kept else "120"]
            elif kept[0] == "score" and "--limit" not in kept:
                kept += ["--limit", "12"]
            if "--max-drop" in kept:  # too few examples for the real promise
                kept += ["--step", "25%"]
                kept[kept.index("--max-drop") + 1] = "60"
            if kept[0] == "curve":
                kept += ["--random-seeds", "1", "--step", "50%"]
            out.append(kept)
        return out

    monkeypatch.setattr(demo, "walk", short)
    monkeypatch.setattr(pipeline, "bench", lambda *models, **asked: benchmark.bench(*models, **{**asked, "repeats": 2}))


def test_one_command_runs_everything_and_ends_with_a_page(small: None, tmp_path: Path) -> None:
    folder = tmp_path / "a demo"
    done = CliRunner().invoke(app.app, ["demo", "-o", str(folder)])
    assert done.exit_code == 0, done.output
    runs = {path.name: read(path) for path in (folder / "runs").iterdir()}
    assert set(runs) == {
        *("score", "ablate", "all-but-one", "transfer", "curve", "roles", "prune", "prune-half", "learn"),
        *("bench", "translator-score", "translator-ablate", "translator-roles"),
    }
    assert all(run.finished for run in runs.values())
    page = (folder / "report.html").read_text(encoding="utf-8")
    told = runs["prune"].read_json("prune")
    assert told["sentence"].split("(")[0] in page
    assert len(hc.removed(hc.load(folder / "smaller"))) == told["removed"] > 0
    roles = {
        name: {head["type"] for head in runs[name].read_json("roles")["heads"]}
        for name in ("roles", "translator-roles")
    }
    assert roles == {"roles": {"encoder"}, "translator-roles": {"encoder", "decoder", "cross"}}
    types = {site["type"] for site in runs["translator-score"].read_json("scores")["sites"].values()}
    assert types == {"encoder", "decoder", "cross"}
    assert str(folder / "report.html") in done.output.replace("\n", "")
    for name, run in runs.items():  # what was typed is kept, and is what was shown
        plain = name.removeprefix("translator-").removesuffix("-half").replace("all-but-one", "ablate")
        assert run.read_json("command")["command"].split()[1] == plain
    demo.unpack(folder)  # a demo may be repeated in its folder


def test_every_command_of_the_walk_is_written_down(tmp_path: Path) -> None:
    demo.unpack(tmp_path / "x")
    lines = (tmp_path / "x" / demo.COMMANDS).read_text().splitlines()
    assert [shlex.split(line)[1:] for line in lines] == demo.walk(tmp_path / "x")
    assert json.loads((tmp_path / "x" / "classifier" / "config.json").read_text())["num_hidden_layers"] == 6


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("three years of work")
    with says(hc.errors.BadRun, about="not an earlier demo"):
        demo.unpack(tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    with says(hc.errors.BadRun, about="not an earlier demo"):
        demo.unpack(tmp_path / "file")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
