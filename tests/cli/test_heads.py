"""The command `heads`: what it writes can be read again, a list is not overwritten unasked, and mistakes get one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.language import byte_tokenizer, saved, small_llama
from typer.testing import CliRunner

from headcount.cli.app import app
from headcount.documents.circuits.named_heads import HeadsDocument

SIZE = 900  # positions


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model") / "llama", byte_tokenizer(), max_position_embeddings=SIZE)


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["heads", *map(str, words), "--device", "cpu"])
    return result.exit_code, f"{result.output}{result.exception or ''}"


def test_all_kinds_end_to_end(model: Path, tmp_path: Path) -> None:
    words = [
        model,
        "--prompts",
        3,
        "--lengths",
        "400,450",
        "-o",
        tmp_path / "run",
        "--retrieval-list",
        tmp_path / "list.json",
    ]
    code, text = run(*words)
    assert code == 0, text
    for kind in ("previous-token", "induction", "successor", "retrieval"):
        assert f"\n{kind}: " in text
    document = HeadsDocument.from_json(json.loads((tmp_path / "run" / "heads.json").read_text()))
    assert [kind.examples for kind in document.kinds if kind.kind != "successor"] == [3] * 6
    listed = json.loads((tmp_path / "list.json").read_text())
    scores = json.loads((tmp_path / "list-scores.json").read_text())
    assert [*scores] == [f"{layer}-{head}" for layer in range(2) for head in range(4)]
    retrieval = document.kinds[-1]
    assert [one["unit"] for one in listed] == [head.unit for head in retrieval.named]
    for head in retrieval.heads:
        row = scores[head.unit.replace(":", "-")]
        assert sum(row) / len(row) == pytest.approx(head.mean)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.npz")}
    code, text = run(*words)  # the same again: nothing is computed, nothing changes, and the list is as it was
    assert code == 0, text
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.npz")} == before
    (tmp_path / "list.json").write_text("mine")
    code, text = run(*words)
    assert code == 1
    assert "write over it with --force" in text
    assert (tmp_path / "list.json").read_text() == "mine"
    assert run(*words, "--force")[0] == 0
    assert json.loads((tmp_path / "list.json").read_text()) == listed


def test_json_and_thresholds(model: Path, tmp_path: Path) -> None:
    words = [
        model,
        "--kind",
        "sink, induction",
        "--prompts",
        3,
        "--at-least",
        "sink=0,induction=1",
        "-o",
        tmp_path / "run",
    ]
    code, text = run(*words, "--json", "--quiet")
    assert code == 0, text
    data = json.loads(text[text.index("{") :])
    assert [(kind["kind"], kind["at_least"]) for kind in data["kinds"]] == [("induction", 1.0), ("sink", 0.0)]


def test_a_model_without_a_tokenizer_has_kinds_that_need_none(tmp_path: Path) -> None:
    small_llama().save_pretrained(tmp_path / "plain")
    code, text = run(tmp_path / "plain", "--prompts", 2, "-o", tmp_path / "run")
    assert code == 0, text
    assert "note: successor heads were left out" in text
    assert run(tmp_path / "plain", "--kind", "retrieval", "-o", tmp_path / "other")[0] == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["--kind", "famous"], "is no kind of head"),
        (["--kind", "sink", "--retrieval-list", "list.json"], "add retrieval to --kind"),
        (["--lengths", "many"], "numbers of tokens"),
        (["--at-least", "sink"], "such as induction=0.5"),
        (["--at-least", "famous=0.5"], "from 0 to 1 for one of"),
        (["--kind", "retrieval", "--haystack", "nowhere.txt"], "There is no file"),
        (["--kind", "retrieval", "--lengths", "5000"], "positions"),
        (["--retrieval-list", "."], "is a folder"),
    ],
)
def test_mistakes_get_one_sentence(words: list[str], about: str, model: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = run(model, "--prompts", 2, *words)
    assert code
    assert about in " ".join(text.split())
    assert "Traceback" not in text
    assert not (tmp_path / "list.json").exists()
