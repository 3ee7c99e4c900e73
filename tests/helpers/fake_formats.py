"""A format for tests of what is common to all exports: weights in a file, which are loaded again and compared."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import nn

from headcount.exports import formats
from headcount.exports.even_groups import group_limits
from headcount.exports.formats import Check, Limit, Settings
from headcount.model.equivalence import run

WEIGHTS = "weights.safetensors"


class FakeWriter:
    """Writes the weights to a file of its own, in a folder or alone, and fails as it is told to."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.limited: list[Limit] = []  # what it cannot hold, besides uneven groups
        self.spoil: Callable[[Path], object] = lambda file: None  # what happens to the file before it is checked
        self.seen: list[SimpleNamespace] = []  # what it was asked to write

    def limits(self, model: nn.Module, settings: Settings) -> list[Limit]:
        return [*self.limited, *group_limits(model)]

    def write(
        self, model: nn.Module, target: Path, settings: Settings, *, source: str | None, tokenizer: Any
    ) -> tuple[str, ...]:
        asked = {"settings": settings, "source": source, "tokenizer": tokenizer, "training": model.training}
        self.seen.append(SimpleNamespace(**asked, model=model))
        file = self._file(target)
        save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, file)
        self.spoil(file)
        return ("written by a test",)

    def check(self, model: nn.Module, target: Path, settings: Settings, *, batch: dict[str, Any]) -> Check:
        loaded = copy.deepcopy(self.seen[-1].model)
        loaded.load_state_dict(load_file(self._file(target)))
        want, got = run(model, batch), run(loaded, batch)
        difference = max(float((a - b).abs().max()) for a, b in zip(want, got, strict=True))
        return Check("fake 1.0", difference, 1e-4, "outputs of 2 examples", ("nothing was run outside",))

    def _file(self, target: Path) -> Path:
        return target if self.suffix else target / WEIGHTS


def fake_format(monkeypatch: pytest.MonkeyPatch, name: str = "fake", suffix: str = "", **more: bool) -> FakeWriter:
    """Make a format known by this name until the end of the test."""
    writer = FakeWriter(suffix)
    row = formats.Format(name, "a format of the tests", f".fake_{name}", "fakes", suffix, **more)
    monkeypatch.setitem(formats.FORMATS, name, row)
    monkeypatch.setitem(sys.modules, f"headcount.exports.fake_{name}", writer)  # type: ignore[arg-type]
    return writer
