"""`hc.prune`: one call does what the command does, on the same examples and with the same outcome."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from conftest import says
from helpers.same import same_weights
from typer.testing import CliRunner

import headcount as hc
from headcount.cli.app import app
from headcount.documents.prune import PruneDocument
from headcount.embedded import EMBEDDED
from headcount.errors import BadCheckpoint, BadData, BadPlan, NotShown
from headcount.plans import read_json
from headcount.pruning import pipeline

MODEL = str(EMBEDDED / "classifier")
MOVIES, PRODUCTS = (str(EMBEDDED / "classifier-data" / f"{name}.tsv") for name in ("movies", "products"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed is not what is tested here."""
    bench = pipeline.bench
    monkeypatch.setattr(pipeline, "bench", lambda *args, **options: bench(*args, **{**options, "seconds": 0.01}))


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        pytest.param(["--remove", "25%", "--limit", "60"], {"remove": "25%", "limit": 60}, marks=pytest.mark.slow),
        (["--flops", "70%", "--units", "heads,neurons", "--limit", "60", "--metric", "loss"],
         {"flops": "70%", "units": "heads,neurons", "limit": 60, "metric": "loss"}),
        (["--remove", "6", "--score-data", PRODUCTS, "--score-limit", "24", "--limit", "40", "--seed", "3"],
         {"remove": 6, "score_data": PRODUCTS, "score_limit": 24, "limit": 40, "seed": 3}),
    ],
    ids=["remove", "flops", "score-data"],
)  # fmt: skip
def test_it_is_the_command(flags: list[str], arguments: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["prune", MODEL, "--data", MOVIES, *flags, "-o", "smaller", "--run", "run", "--quiet", "--no-report"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    document = PruneDocument.from_json(read_json(tmp_path / "run" / "prune.json"), "prune.json")
    pruned = hc.prune(MODEL, MOVIES, "again", **arguments)
    assert pruned.choice.plan == document.plan
    assert (pruned.before.n, pruned.parameters) == (document.before.n, document.parameters)
    assert pruned.after.value == pytest.approx(document.after.value, abs=1e-5)
    assert same_weights(hc.load(tmp_path / "again"), hc.load(tmp_path / "smaller"))
    for line in pruned.examples:
        assert line in done.stdout
    assert pruned.choice.plan == hc.Plan.read(tmp_path / "again" / "plan.json")


def test_a_model_in_memory_stays_as_it_was_and_the_smaller_one_comes_back(tmp_path: Path) -> None:
    model, whole = hc.load(MODEL, dtype=torch.float32), hc.load(MODEL, dtype=torch.float32)
    pruned = hc.prune(model, MOVIES, remove=12, limit=40)
    assert same_weights(model, whole)
    assert hc.removed(pruned.model).units == pruned.choice.plan.units
    assert pruned.output is None
    batch = hc.task("classification", PRODUCTS, tokenizer=MODEL, limit=4).batch()
    with torch.no_grad(), hc.masked(model, pruned.choice.plan):
        want = model(**batch).logits
    with torch.no_grad():
        assert torch.allclose(pruned.model(**batch).logits, want, atol=1e-5)


def test_a_task_is_data_too_and_the_examples_are_shared_out() -> None:
    task = hc.task("classification", MOVIES, tokenizer=MODEL, limit=80)
    pruned = hc.prune(MODEL, task, remove=6)
    assert sum(int(line.split()[0]) for line in pruned.examples if "examples of" in line) == pruned.before.n + len(
        pruned.choice.used
    )
    assert 0 < pruned.before.n < task.size


def test_a_plan_of_your_own_is_taken_as_it_is_written() -> None:
    pruned = hc.prune(MODEL, MOVIES, plan=[(0, 1), "2:-1"], limit=30)
    assert hc.removed(pruned.model) == pruned.choice.plan == hc.Plan("0:1 2:7")
    assert "2 of 48 heads" in str(pruned)


def test_a_guarantee_that_cannot_be_shown_is_not_given() -> None:
    with says(NotShown, about="--select-data FILE") as refusal:
        hc.prune(MODEL, MOVIES, max_drop=0.5, limit=60)
    least = re.search(r"--max-drop ([\d.]+)", str(refusal.value))
    assert least is not None
    pruned = hc.prune(MODEL, MOVIES, max_drop=float(least[1]), limit=60)
    assert len(pruned.choice.plan) >= 2, "that much could be shown, as was said"
    with says(NotShown, about=f"--max-drop {least[1]} is"):
        hc.prune(MODEL, MOVIES, max_drop=float(least[1]) - 0.2, limit=60)


def test_what_is_wrong_is_said_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with says(BadCheckpoint):
        hc.prune(MODEL, MOVIES, tmp_path / "thesis", remove=1)
    with says(BadPlan, about="how many"):
        hc.prune(MODEL, MOVIES)
    model = hc.load(MODEL)
    model.config.name_or_path = ""
    model.name_or_path = ""
    with says(BadData, about="tokenizer="):
        hc.prune(model, MOVIES, remove=1)
    assert (tmp_path / "thesis" / "thesis.tex").read_text() == "years of work"
