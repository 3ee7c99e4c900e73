"""--device-map and --tp-plan: the numbers of a model on one device, and flags that do not go together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import zoo
from helpers.same import alike
from helpers.small_models import WORDS, word_tokenizer
from helpers.spread import in_halves
from typer.testing import CliRunner, Result

import headcount as hc
from headcount.cli.app import app
from headcount.errors import BadData


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a language model, its device map, and a text."""
    folder = tmp_path_factory.mktemp("placement")
    model, _ = zoo.build("llama")
    hc.save(model, folder / "model", tokenizer=word_tokenizer([" ".join(WORDS)]))
    (folder / "map.json").write_text(json.dumps(in_halves(model)), encoding="utf-8")
    lines = [" ".join(WORDS[(row * place) % len(WORDS)] for place in range(14)) for row in range(1, 12)]
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def _asked(place: Path, command: str) -> list[object]:
    data = ["--data", place / "text.txt", "--task", "language-modelling", "--max-length", 16, "--limit", 4]
    return [command, place / "model", *data]


@pytest.mark.parametrize(
    ("command", "more", "document"),
    [
        ("evaluate", [], "result"),
        ("score", ["--units", "heads,neurons"], "scores"),
        ("score", ["--by", "wanda", "--units", "heads,neurons"], "scores"),
        ("ablate", ["--fill", "mean", "--resamples", 20], "ablation"),
    ],
)
def test_commands_find_the_same_with_a_device_map(
    command: str, more: Sequence[object], document: str, place: Path, tmp_path: Path
) -> None:
    found = []
    for number, where in enumerate(([], ["--device-map", place / "map.json"])):
        done = run(*_asked(place, command), *more, *where, "-o", tmp_path / str(number))
        assert done.exit_code == 0, done.output
        found.append(json.loads((tmp_path / str(number) / f"{document}.json").read_text()))
    assert alike(*found)


def test_a_device_map_may_be_given_as_it_is(place: Path, tmp_path: Path) -> None:
    done = run(*_asked(place, "evaluate"), "--device-map", (place / "map.json").read_text(), "-o", tmp_path / "run")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("value", ["nonsense", "{", '{"model": 0.5}', "{}"])
def test_what_is_no_device_map_is_said(value: str, place: Path) -> None:
    done = run(*_asked(place, "evaluate"), "--device-map", value)
    assert isinstance(done.exception, BadData)
    assert "--device-map is auto, balanced" in str(done.exception)


def test_one_flag_says_where_the_weights_go(place: Path) -> None:
    both = run(*_asked(place, "evaluate"), "--device-map", "auto", "--device", "cpu")
    assert (both.exit_code, "--device-map and --device" in both.output) == (2, True)
    streamed = run(*_asked(place, "score"), "--by", "wanda", "--stream", "--device-map", "auto")
    assert (streamed.exit_code, "--stream reads the weights from their files" in streamed.output) == (2, True)


def test_tensor_parallelism_in_one_process_is_refused_with_the_command_to_start(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = run(*_asked(place, "evaluate"), "--tp-plan", "auto")
    assert isinstance(alone.exception, BadData)
    assert "torchrun --nproc-per-node N --no-python headcount" in str(alone.exception)
    other = run(*_asked(place, "evaluate"), "--tp-plan", "colwise")
    assert (other.exit_code, "--tp-plan is auto" in other.output) == (2, True)
