"""`headcount doctor`: what it says is so, and what is wrong makes it fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import headcount as hc
from headcount.cli.app import app
from headcount.cli.help import doctor
from headcount.model import gates


def _run(*flags: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["doctor", *flags])
    assert done.exit_code == code, done.output
    return done.stdout


def test_a_sound_installation_is_said_to_be_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = json.loads(_run("--json"))
    assert found["headcount"] == hc.__version__
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["threads"] == torch.get_num_threads()
    assert found["law"]["holds"]
    assert found["cache"] == {"folder": str(tmp_path / "headcount"), "writable": True}
    assert found["problems"] == []
    assert _run().splitlines()[-1] == "all is well"
    assert not list(tmp_path.iterdir()), "looking changes nothing"


def test_a_mask_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nothing(*_: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(gates, "masked", nothing)
    assert "problem: the cut model is not the masked one: they differ by" in _run(code=1)
    assert not json.loads(_run("--json", code=1))["law"]["holds"]


@pytest.mark.parametrize(("name", "code"), [("torch", 1), ("datasets", 0), ("altair", 0)])
def test_what_is_missing_is_named_with_how_to_get_it(name: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without(package: str) -> str:
        if package == name:
            raise metadata.PackageNotFoundError
        return version(package)

    monkeypatch.setattr(doctor.metadata, "version", without)
    lines = [line for line in _run(code=code).splitlines() if name in line and "pip install" in line]
    assert lines
    assert ("problem" in lines[-1]) == (code == 1)


def test_a_cache_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "XDG_CACHE_HOME" in _run(code=1)
