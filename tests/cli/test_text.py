"""Tables fit the terminal: nothing in them is cut off, whatever does not fit comes below."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import zoo
from helpers.small_models import class_task, classifier
from typer.testing import CliRunner

import headcount as hc
from headcount import progress
from headcount.cli import app, text
from headcount.cli.tables import columns_text
from headcount.documents.bench import Bench, Speed, Subject
from headcount.documents.prune import PruneDocument
from headcount.evaluation import evaluator
from headcount.formatting import short_count
from headcount.progress import Bar
from headcount.pruning.curves import CurvesAsked, curves


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def _cells(count: int, width: int = 8) -> list[list[str]]:
    rows = [["site", *(f"column{n}"[:width] for n in range(count))]]
    return rows + [[f"row{r}", *(f"{r}.{n:05d}"[:width] for n in range(count))] for r in range(3)]


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16, 40])
def test_every_cell_is_there_and_no_line_is_wider_than_the_terminal(count: int) -> None:
    rows = _cells(count)
    lines = columns_text(rows, "<>")
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    for row in rows:
        for cell in row[1:]:
            assert words.count(cell) == 1
    tables = "\n".join(lines).split("\n\n")
    assert all([line.split()[0] for line in table.splitlines()] == [row[0] for row in rows] for table in tables)
    assert (len(tables) > 1) == (4 + 9 * count > 80)


def test_a_wide_terminal_gets_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    assert "" not in columns_text(_cells(40), "<>")


def test_a_last_column_of_text_is_wrapped_under_itself() -> None:
    rows = [["accuracy", "0.860", " ".join(["word"] * 40)], ["heads", "48", "-25%"]]
    lines = columns_text(rows, "<><")
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).split().count("word") == 40
    start = lines[0].index("word")
    assert all(line[:start].strip() == "" for line in lines[1:-1])
    assert lines[-1].split() == ["heads", "48", "-25%"]


def test_the_tables_of_results_fit() -> None:
    model, task = classifier(), class_task(16)
    ablation = hc.ablate(model, task)
    scores = hc.score(model, task)
    curves = [dataclasses.replace(hc.curve(model, task, scores, step=4), by=f"criterion-{n}") for n in range(9)]
    shown = text.ablation_text(ablation, ablation.comparisons(resamples=99)), text.curve_text(curves)
    for lines in shown:
        table = [line for line in lines.splitlines() if re.match(r"\s*[\d(]", line) and "tested" not in line]
        assert table
        assert max(map(len, table)) <= 80


def test_a_bench_of_paths_fits_and_slow_models_are_not_0() -> None:
    names = ("/a/long/path/to/some/folder/of/models/" + "x" * 60 + "/whole", "small")
    rows = [
        Speed(n, 1, 128, s, s * 0.9, s * 1.1, r, r, r, 1.0, 2.0, 0.5, 5e7)
        for n, s, r in zip(names, (0.04, 0.06), (1.0, 1.5), strict=True)
    ]
    bench = Bench("cpu", "float32", False, "2", 5, tuple(Subject(n, "M", 10**8, 4 * 10**8) for n in names), tuple(rows))
    table = text.bench_text(bench).split("\n\nAt ")[0].splitlines()[2:]
    assert max(map(len, table)) <= 80
    assert sum("x/whole" in line for line in table) >= 1
    assert "0.04 (0.04 to 0.04)" in "\n".join(table)


@pytest.mark.parametrize("name", ["t5", "llama", "swin", "clip"])
def test_inspect_cuts_no_number_off(name: str, tmp_path: Any) -> None:
    model, _ = zoo.build(name)
    model.save_pretrained(tmp_path / "model")
    shown = CliRunner().invoke(app.app, ["inspect", str(tmp_path / "model"), "--all"])
    assert shown.exit_code == 0, shown.output
    assert "…" not in shown.stdout
    table = shown.stdout.splitlines()[1:-1]
    assert max(map(len, table)) <= 80
    for site in hc.find(model):
        assert site.name in "".join(line.split()[0] for line in table if line.split()), site.name


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (513, "513"), (9_999, "9,999"), (10_000, "10.0k"), (32_864, "32.9k"), (263_168, "263k"), (999_600, "1.00M"),
     (1_050_624, "1.05M"), (134_515_008, "135M"), (7_000_000_000, "7.00B")],
)  # fmt: skip
def test_counts_in_short(count: int, shown: str) -> None:
    assert short_count(count) == shown


def test_before_and_after_of_prune_stand_side_by_side() -> None:
    kept = json.loads((Path(__file__).parents[1] / "documents" / "old" / "prune.json").read_text(encoding="utf-8"))
    shown = text.pruned_text(PruneDocument.from_json(kept, "prune.json"))
    table = shown.split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 80
    assert table[0].split() == ["before", "after"]
    for noun in ("parameters", "on disk"):
        assert sum(line.startswith(noun) and line.endswith("%") for line in table) == 1


def test_a_measurement_is_called_by_words_and_not_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = list[str]()

    class Heard(Bar):
        def __init__(self, label: str, total: float | None = None) -> None:
            labels.append(label)
            super().__init__(label, total)

    for module in (progress, evaluator):
        monkeypatch.setattr(module, "Bar", Heard)
    model, task = classifier(), class_task(16)
    curves(model, task, task, CurvesAsked(by=("magnitude", "random"), step="50%"))
    assert {"curves", "curve by magnitude", "curve by random"} <= set(labels)
    assert not [label for label in labels if any(letter.isdigit() for letter in label)]
