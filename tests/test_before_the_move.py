"""What the version before the packages were named wrote, in `before_the_move`: it loads, resumes and makes a report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers.same import close
from helpers.small_models import ran

import headcount as hc

WRITTEN = Path(__file__).parent / "before_the_move"
COMMANDS = {
    "evaluate": "evaluate model --data dev.tsv -o evaluate",
    "score": "score model --data train.tsv -o score",
    "curve": "curve model --data dev.tsv --scores score/scores.json --step 4 -o curve",
    "prune": "prune model --data dev.tsv --score-data train.tsv --remove 3 --run prune -o smaller-again",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that commands may write into; names of data have the folder's name in them."""
    copy = tmp_path / WRITTEN.name
    shutil.copytree(WRITTEN, copy)
    monkeypatch.chdir(copy)
    return copy


def test_a_cut_checkpoint_loads_and_computes_what_it_did() -> None:
    model = hc.load(WRITTEN / "smaller")
    assert str(hc.removed(model)) == "0:2 1:1-2"
    tokens = torch.tensor([[2, 4, 5, 6, 7, 3]])
    with torch.no_grad():
        logits = model(tokens, attention_mask=torch.ones_like(tokens)).logits
    assert close(logits, torch.tensor([[0.9131290, -0.3176240]]))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_goes_on_in_its_run_folder(name: str, folder: Path) -> None:
    pieces = {path: path.stat().st_mtime_ns for path in (folder / name).glob("*.npz")}
    done = ran(*COMMANDS[name].split())
    assert done.exit_code == 0, done.output
    assert pieces
    assert {path: path.stat().st_mtime_ns for path in pieces} == pieces, (
        "what was finished is read and not computed again"
    )


def test_its_run_folders_make_a_report(folder: Path) -> None:
    page = hc.report([folder / name for name in COMMANDS], folder / "report.html").read_text(encoding="utf-8")
    assert "before_the_move/dev.tsv" in page
    assert "3 of 8 heads" in page
