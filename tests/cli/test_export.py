"""`headcount export`: one format or several, what is refused in a sentence, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import says
from helpers import zoo
from helpers.fake_formats import FakeWriter, fake_format
from helpers.processes import command
from helpers.small_models import ran, ran_json

import headcount as hc
from headcount.errors import BadCheckpoint
from headcount.exports.formats import FORMATS, Limit, Settings
from headcount.exports.several import places_beside


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama whose first attention has a group of one head beside groups of two."""
    model, _ = zoo.build("llama")
    hc.cut(model, "0:1 1.mlp:0-4")
    return hc.save(model, tmp_path_factory.mktemp("cut") / "llama")


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeWriter, FakeWriter]:
    return fake_format(monkeypatch, "folders"), fake_format(monkeypatch, "files", ".one")


def test_a_folder_is_exported_and_the_check_is_printed(
    folder: Path, writers: tuple[FakeWriter, FakeWriter], tmp_path: Path
) -> None:
    flags = ["--groups", "pad", "--dtype", "f16", "--int8", "--multiple", 8, "--tensor-parallel", 2]
    done = ran("export", folder, "--to", "files", "-o", tmp_path / "a.one", *flags)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.one").is_file()
    assert writers[1].seen[0].settings == Settings("pad", "f16", True, 8, 2)
    assert writers[1].seen[0].source == str(folder)
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'a.one'}: files, ")
    assert lines[1].startswith("checked with fake 1.0: outputs of 2 examples differ by at most ")
    with says(BadCheckpoint, about="is there already"):
        ran("export", folder, "--to", "files", "-o", tmp_path / "a.one", *flags)
    assert ran("export", folder, "--to", "files", "-o", tmp_path / "a.one", *flags, "--force").exit_code == 0


def test_several_formats_go_into_one_folder_and_one_that_is_refused_stops_no_other(
    folder: Path, writers: tuple[FakeWriter, FakeWriter], tmp_path: Path
) -> None:
    writers[0].limited = [Limit("layer 1 is too wide", "make it smaller")]
    done = ran("export", folder, "--to", "folders, files", "-o", tmp_path / "all", "--groups", "repeat")
    assert done.exit_code == 1
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["model.one"]
    assert done.stderr.splitlines()[-1] == (
        "headcount: folders cannot hold this model: layer 1 is too wide: make it smaller."
    )
    writers[0].limited = []
    done = ran("export", folder, "--to", "folders", "-o", tmp_path / "all" / "folders", "--groups", "repeat")
    assert done.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["folders", "model.one"]


def test_json_says_what_was_written_and_what_was_not(
    folder: Path, writers: tuple[FakeWriter, FakeWriter], tmp_path: Path
) -> None:
    told = ran_json("export", folder, "--to", "folders,files", "-o", tmp_path / "all", "--groups", "pad")
    assert [one["format"] for one in told["exports"]] == ["folders", "files"]
    assert told["exports"][0]["path"] == str(tmp_path / "all" / "folders")
    assert told["exports"][0]["check"]["runtime"] == "fake 1.0"
    assert told["refused"] == []
    done = ran("export", folder, "--to", "files", "-o", tmp_path / "b.one", "--json")
    assert done.exit_code == 1
    assert "layer 0 has groups of 2 and 1 query heads" in json.loads(done.stdout)["refused"][0]["reason"]


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["--to", "onxn"], "There is no export format 'onxn'; there are transformers, "),
        (["--to", " , "], "Name a format to export to; there are transformers, "),
        (["--to", "files"], "out does not end in .one: name it like that."),
        (["--to", "folders", "--groups", "both"], "groups (--groups) is 'both'; it must be pad or repeat"),
        (["--to", "folders", "--multiple", "0"], "multiple (--multiple) is 0"),
    ],
)
def test_what_is_wrong_is_said_before_the_model_is_read(
    words: list[str], about: str, writers: tuple[FakeWriter, FakeWriter], tmp_path: Path
) -> None:
    with says(BadCheckpoint, about=about):
        ran("export", tmp_path / "nowhere", *words, "-o", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_command_ends_in_one_sentence_and_not_in_a_traceback(
    folder: Path, writers: tuple[FakeWriter, FakeWriter], tmp_path: Path
) -> None:
    process = command(["export", folder, "--to", "folders", "-o", tmp_path / "out"], tmp_path / "log")
    process.join()
    assert process.exitcode == 1
    printed = (tmp_path / "log.err").read_text().splitlines()
    assert [
        line for line in printed if line.startswith("headcount: folders cannot hold this model: layer 0 has groups")
    ]
    assert not any("Traceback" in line for line in printed)


def test_beside_a_model_exports_have_its_name() -> None:
    places = places_beside("runs/small.v2", [FORMATS["gguf"], FORMATS["onnx"]])
    assert places == {"gguf": Path("runs/small.v2.gguf"), "onnx": Path("runs/small.v2-onnx")}


@pytest.mark.parametrize("name", FORMATS)
def test_the_help_names_every_format(name: str) -> None:
    assert name in ran("export", "--help").output


def test_an_ordinary_folder_loads_as_it_was(folder: Path, tmp_path: Path) -> None:
    told = ran_json("export", folder, "--to", "transformers", "-o", tmp_path / "portable", "--groups", "pad")
    check = told["exports"][0]["check"]
    assert check["runtime"].startswith("transformers ")
    assert check["difference"] <= check["allowed"]
