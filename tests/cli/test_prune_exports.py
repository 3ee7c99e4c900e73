"""`prune` for other programs: what is chosen for a runtime, and exports of the smaller model that never cost the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import says
from helpers.fake_formats import FakeWriter, fake_format
from helpers.small_models import ran, ran_json
from pruning.test_pipeline import _asked, _leftovers, place, quick  # noqa: F401 (fixtures)
from safetensors.torch import load_file, save_file

import headcount as hc
from headcount.errors import BadCheckpoint, BadPlan, Refused
from headcount.exports.formats import Limit
from headcount.model.loading.number_formats import stored_format

FIVE = ("--remove", 5, "--brake", "off", "--no-report", "--quiet")


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeWriter, FakeWriter]:
    return fake_format(monkeypatch, "folders", even_groups=True, shared=True), fake_format(monkeypatch, "files", ".one")


def negate(file: Path) -> None:
    save_file({name: -tensor for name, tensor in load_file(file).items()}, file)


def test_exports_lie_beside_the_smaller_model(
    place: Path,  # noqa: F811
    writers: tuple[FakeWriter, FakeWriter],
    tmp_path: Path,
) -> None:
    found = ran_json(*_asked(place, tmp_path, *FIVE, "--export", "folders,files"))
    assert _leftovers(tmp_path) == ["smaller", "smaller-folders", "smaller.one"]
    assert [one["path"] for one in found["exports"]] == [str(tmp_path / name) for name in _leftovers(tmp_path)[1:]]
    assert found["refused"] == []
    assert all(writer.seen[0].source == str(tmp_path / "smaller") for writer in writers)
    assert hc.removed(writers[0].seen[0].model) == hc.removed(hc.load(tmp_path / "smaller"))
    assert found["removed"] == 5, "it is the document of prune, with the exports beside"


def test_an_export_that_fails_costs_neither_the_model_nor_the_other_export(
    place: Path,  # noqa: F811
    writers: tuple[FakeWriter, FakeWriter],
    tmp_path: Path,
) -> None:
    writers[0].spoil = negate
    done = ran(*_asked(place, tmp_path, *FIVE, "--export", "folders,files"))
    assert done.exit_code == 1
    assert _leftovers(tmp_path) == ["smaller", "smaller.one"]
    assert len(hc.removed(hc.load(tmp_path / "smaller"))) == 5
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "headcount: the smaller model is written, but not its export to folders, which `headcount export`"
    )
    assert ": outputs of 2 examples in fake 1.0 differ from the model's by" in last
    assert f"smaller model: {tmp_path / 'smaller'}" in done.stdout
    assert f"{tmp_path / 'smaller.one'}: files, " in done.stdout
    writers[0].spoil = lambda file: None
    again = ran("export", tmp_path / "smaller", "--to", "folders", "-o", tmp_path / "smaller-folders")
    assert again.exit_code == 0, "as the sentence of a refusal says, it can be had afterwards"


def test_what_cannot_be_exported_is_said_before_the_work(
    place: Path,  # noqa: F811
    writers: tuple[FakeWriter, FakeWriter],
    tmp_path: Path,
) -> None:
    (tmp_path / "smaller.one").write_text("an earlier one")
    with says(BadCheckpoint, about="smaller.one is there already"):
        ran(*_asked(place, tmp_path, *FIVE, "--export", "files"))
    with says(BadCheckpoint, about="There is no export format 'filse'"):
        ran(*_asked(place, tmp_path, *FIVE, "--export", "filse"))
    with says(BadPlan, about="tensor_parallel (--tensor-parallel) is for vllm"):
        ran(*_asked(place, tmp_path, *FIVE, "--for", "files", "--tensor-parallel", 2))
    done = ran("prune", place / "classifier", "--data", place / "dev.tsv", *FIVE, "--dry-run", "--export", "folders")
    assert done.exit_code == 2
    assert "--export goes with -o" in done.output
    writers[0].limited = [Limit("it is no decoder", "export to onnx")]
    for flag in ("--export", "--for"):
        with says(Refused, about="folders cannot hold this model: it is no decoder: export to onnx."):
            ran(*_asked(place, tmp_path, *FIVE, flag, "folders"))
    assert _leftovers(tmp_path) == ["smaller.one"]


def test_a_plan_for_a_runtime_leaves_what_it_can_hold(
    place: Path,  # noqa: F811
    writers: tuple[FakeWriter, FakeWriter],
    tmp_path: Path,
) -> None:
    target: tuple[Any, ...] = ("--for", "folders", "--tensor-parallel", 2)
    found = ran_json(*_asked(place, tmp_path, *FIVE, *target))
    left = hc.find(hc.load(tmp_path / "smaller")).heads
    assert {len(site) for site in left} <= {2, 4}
    assert found["removed"] == 6
    assert writers[0].seen == [], "nothing was to be exported"


def test_one_call_does_the_same(
    place: Path,  # noqa: F811
    writers: tuple[FakeWriter, FakeWriter],
    tmp_path: Path,
) -> None:
    writers[1].spoil = negate
    asked: dict[str, Any] = {"remove": 5, "brake": None, "runtime": "folders", "tensor_parallel": 2}
    model, data = place / "classifier", str(place / "dev.tsv")
    pruned = hc.prune(model, data, tmp_path / "smaller", **asked, export="folders,files")
    assert {len(site) for site in hc.find(pruned.model).heads} <= {2, 4}
    assert [one.path for one in pruned.exports.written] == [tmp_path / "smaller-folders"]
    assert [name for name, _ in pruned.exports.refused] == ["files"]
    assert str(tmp_path / "smaller-folders") in str(pruned)
    assert "not exported to files: outputs of 2 examples" in str(pruned)
    assert "not exported to files" in pruned._repr_html_()
    with says(BadCheckpoint, about="say where that goes with output"):
        hc.prune(model, data, **asked, export="folders")


def test_an_export_is_in_the_number_format_of_the_smaller_model(
    place: Path,  # noqa: F811
    writers: tuple[FakeWriter, FakeWriter],
    tmp_path: Path,
) -> None:
    ran_json(*_asked(place, tmp_path, *FIVE, "--export", "files"))
    assert hc.load(tmp_path / "smaller", dtype="auto").dtype == torch.float16
    assert stored_format(writers[1].seen[0].model) == torch.float16
