"""An example that is in both files of a command is used for one thing, and the output and the document say so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers.small_models import WEATHER, ran, weather, word_tokenizer
from transformers import BertConfig, BertForSequenceClassification

import headcount as hc
from headcount.cli import run_folder
from headcount.efficiency import benchmark
from headcount.pruning import pipeline


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier, examples to report on, others, and others with an example to report on, twice."""
    folder = tmp_path_factory.mktemp("once")
    tokenizer = word_tokenizer(WEATHER)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    names = {"id2label": {0: "cold", 1: "warm"}, "label2id": {"cold": 0, "warm": 1}}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **sizes, **names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder / "classifier")
    tokenizer.save_pretrained(folder / "classifier")
    rows = list(dict.fromkeys(weather(140, 0)))
    report, train, other = rows[:30], rows[30:90], rows[90:120]
    planted = [report[3], report[3]]
    for name, some in (("report", report), ("both", train + planted), ("other", other), ("planted", planted[:1])):
        lines = [f"{text}\t{label}" for text, label in some]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return folder


class Case(NamedTuple):
    """A command whose files share an example: the words of its uses, and what is left of the less important one."""

    words: str
    document: str
    key: str  # where the document has the sentence
    use: str  # that loses the example
    role: str  # what the run folder calls that use
    before: str  # the uses that keep it
    count: int = 2
    left: int | None = 60


CASES = {
    "curve": Case("curve --data report --score-data both --step 50%", "curves", "sets", "score", "select", "report"),
    "ablate": Case(
        "ablate --all-but-one --data report --select-data both", "all-but-one", "sets", "select", "select", "report"
    ),
    "transfer": Case("transfer --data report --other-data both", "transfer", "sets", "compare", "other", "measure"),
    "prune": Case(
        "prune --remove 1 --data report --score-data both --no-report -o smaller",
        *("prune", "sets_note", "score", "score", "report"),
        count=1,  # copies count once there
    ),
    "learn": Case(
        "learn --method taylor --keep 2 --epochs 0 --data both --report-data report",
        *("learned", "sets", "train", "train", "report"),
    ),
    "train": Case(
        "train --steps 1 --data both --dev-data report -o trained", "training", "sets", "train", "train", "measure"
    ),
    "lottery": Case(
        "lottery --steps 1 --seeds 0 --no-retrain --threshold 0.1 --data both --dev-data report",
        *("lottery", "sets", "train", "train", "report or select"),
        left=None,  # some are set aside to select on
    ),
    "recovery": Case(
        "prune --remove 1 --data report --score-data other --recover 0.5 --recover-data both --no-report -o smaller",
        *("prune", "sets_note", "train", "recover", "report"),
    ),
}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[str, hc.data.Task]:
    """The examples of a command, by what its run folder calls their use."""
    tasks: dict[str, hc.data.Task] = {}
    really = run_folder.question_of

    def to_note(command: str, name: str, model: Any, given: Any, asked: Mapping[str, Any], settings: Any) -> Any:
        tasks.update(asked)
        return really(command, name, model, given, asked, settings)

    monkeypatch.setattr(run_folder, "question_of", to_note)
    monkeypatch.setattr(pipeline, "bench", lambda *models, **how: benchmark.bench(*models, **{**how, "repeats": 2}))
    return tasks


@pytest.mark.parametrize("name", CASES)
def test_an_example_in_both_files_is_used_once_and_that_is_said(
    name: str, place: Path, tmp_path: Path, used: dict[str, hc.data.Task]
) -> None:
    case = CASES[name]
    command, *words = case.words.split()
    files = {"report", "both", "other"}
    asked: list[object] = [place / f"{word}.tsv" if word in files else word for word in words]
    asked = [tmp_path / word if word in ("smaller", "trained") else word for word in asked]
    run = "-o" if command in ("curve", "ablate", "transfer", "lottery") else "--run"
    done = ran(command, place / "classifier", *asked, run, tmp_path / "run", "--quiet")
    assert done.exit_code == 0, done.output

    planted = hc.task("classification", place / "planted.tsv", tokenizer=str(place / "classifier")).digest(0)
    uses = [role for role, task in used.items() if planted in map(task.digest, range(task.size))]
    assert len(uses) == 1
    assert uses[0] != case.role
    reported = used[uses[0]]
    assert reported.size == 30, "what is reported on loses nothing"
    assert case.left is None or used[case.role].size == case.left
    every = [digest for task in used.values() for digest in {*map(task.digest, range(task.size))}]
    assert len(every) == len(set(every))

    many, were = ("example", "was") if case.count == 1 else ("examples", "were")
    which = f"to {case.use} on {were} left out, being among those to {case.before} on"
    document = json.loads((tmp_path / "run" / f"{case.document}.json").read_text())
    sentence = (document["tasks"][0] if name == "lottery" else document)[case.key]
    for text in (done.output, sentence):
        assert f"{case.count} {many} of" in text
        assert which in text
