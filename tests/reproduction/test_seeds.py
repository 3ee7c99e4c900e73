"""Trainings that came to nothing are found by comparing seeds, and nothing that builds on them is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import says
from helpers import run_folders

from headcount.documents.training import TrainingDocument
from headcount.errors import BadRun
from headcount.reproduction.experiment import RunDocuments, Setting, Step
from headcount.reproduction.inputs import Material
from headcount.reproduction.seeds import collapsed


@pytest.fixture
def found(tmp_path: Path) -> RunDocuments:
    return RunDocuments(Setting(Material("planted", "Planted."), tmp_path, full=True, seeds=(0, 1, 2)))


def _trained(found: RunDocuments, name: str, value: float, metric: str = "bleu", after: tuple[str, ...] = ()) -> Step:
    folder = Path(found.setting.run(name))
    folder.mkdir(parents=True)
    (folder / "training.json").write_text(
        json.dumps(
            {
                "history": [],
                "after": {**run_folders.result(value, metric=metric), "low": value - 0.5, "high": value + 0.5},
            }
        )
    )
    return Step(name, ("train", "new-marian", "--epochs", "3", "--seed", name[-1], "--run", str(folder)), after)


def test_a_training_below_half_of_the_best_seeds_score_is_passed_over_with_all_that_builds_on_it(
    found: RunDocuments,
) -> None:
    steps = [_trained(found, f"train-x-{seed}", value) for seed, value in enumerate((19.9, 40.0, 20.0))]
    steps += [Step(f"curve-{seed}", ("curve",), (f"train-x-{seed}",)) for seed in range(3)]
    steps += [Step("of-curve-0", ("cut",), ("curve-0",)), Step("both", ("bench",), ("curve-1", "of-curve-0"))]
    failed = collapsed(found, steps)
    assert failed.steps == {"train-x-0", "curve-0", "of-curve-0", "both"}
    assert failed.told.keys() == {"train-x-0"}
    assert "train-x-0 came to bleu 19.9, where another seed came to bleu 40.0: it did" in failed.told["train-x-0"]
    read = replace(found, without=failed.steps)
    assert read.document("train-x-0", TrainingDocument) is None
    assert read.document("train-x-2", TrainingDocument) is not None


def test_other_trainings_are_no_measure_and_neither_is_a_loss(found: RunDocuments) -> None:
    steps = [_trained(found, "train-x-0", 4.0), _trained(found, "train-y-1", 40.0)]
    steps += [_trained(found, "train-z-0", 1.0, "loss"), _trained(found, "train-z-1", 9.0, "loss")]
    steps += [Step("train-x-1", ("train", "new-marian", "--seed", "1"))]  # not run yet
    fresh = [_trained(found, f"fresh-{seed}", 0.01 * 10**seed) for seed in (0, 1)]
    steps += [step._replace(words=("train", "new-marian", "--steps", "1", "--seed", "0")) for step in fresh]
    assert collapsed(found, steps) == ({}, frozenset())


def test_a_document_that_no_command_wrote_is_named(found: RunDocuments) -> None:
    step = _trained(found, "train-x-0", 4.0)
    (Path(found.setting.run("train-x-0")) / "training.json").write_text("{}")
    with says(BadRun, about="train-x-0/training.json is not what headcount writes"):
        collapsed(found, [step])
