"""The docstrings of the verbs: every parameter is explained, and the example runs as a reader would type it."""

from __future__ import annotations

import doctest
import inspect
import re
import shutil
from pathlib import Path

import pytest
from helpers.contrasts import small_gpt2, words_tokenizer
from typer.testing import CliRunner

import headcount as hc
from headcount.cli.app import app
from headcount.efficiency.benchmark import bench
from headcount.embedded import EMBEDDED
from headcount.pruning import pipeline

VERBS = [name for name in hc.__all__ if inspect.isfunction(getattr(hc, name))]
SECTION = re.compile(r"^(Args|Returns|Examples):\n((?:    .*\n|\n)+)", re.MULTILINE)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the examples run: my-model, my-decoder, dev.tsv, train.tsv, smaller, and a run folder in runs."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(EMBEDDED / "classifier", folder / "my-model")
    small_gpt2().save_pretrained(folder / "my-decoder")
    words_tokenizer().save_pretrained(folder / "my-decoder")
    shutil.copy(EMBEDDED / "classifier-data" / "products.tsv", folder / "dev.tsv")
    shutil.copy(EMBEDDED / "classifier-data" / "movies.tsv", folder / "train.tsv")
    command = [
        "ablate",
        str(folder / "my-model"),
        "--data",
        str(folder / "dev.tsv"),
        "--limit",
        "16",
        "--units",
        "layers",
    ]
    done = CliRunner().invoke(app, [*command, "--quiet", "-o", str(folder / "runs" / "ablation")])
    assert done.exit_code == 0, done.output
    return folder


def _sections(name: str) -> dict[str, str]:
    text = inspect.getdoc(getattr(hc, name)) or ""
    return dict(SECTION.findall(text + "\n"))


@pytest.mark.parametrize("name", VERBS)
def test_every_parameter_of_a_verb_is_explained(name: str) -> None:
    sections = _sections(name)
    explained = re.findall(r"^    (\w+): \S", sections["Args"], re.MULTILINE)
    assert explained == list(inspect.signature(getattr(hc, name)).parameters)
    assert sections["Returns"].strip()


@pytest.mark.parametrize("name", VERBS)
def test_the_example_of_a_verb_runs(name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = inspect.cleandoc(_sections(name)["Examples"])
    assert f"hc.{name}(" in example
    monkeypatch.setattr(pipeline, "bench", lambda *models, **asked: bench(*models, **{**asked, "repeats": 1}))
    for entry in place.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(example + "\n", {"hc": hc}, name, None, None)
    failures: list[str] = []
    results = doctest.DocTestRunner().run(test, out=failures.append)
    assert results.attempted
    assert not failures, "".join(failures)


def test_there_are_verbs() -> None:
    assert {"load", "score", "prune", "cut", "masked"} <= set(VERBS)
