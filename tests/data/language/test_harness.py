"""Tasks of lm-eval: our values per document are its own, whatever the batch, on one task and on the mean over tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import says
from helpers.language import byte_tokenizer, saved, small_llama
from helpers.same import close
from helpers.small_models import naive, ran, ran_json

import headcount as hc
from headcount.errors import BadData

pytest.importorskip("lm_eval")

WORDS = ["sun", "ice", "sea", "fog", "elm", "cat", "day", "dog"]


def _tasks(folder: Path, count: int = 31) -> tuple[Path, Path]:
    """Two multiple choice tasks as files with their data beside them: the second has other questions, and one more choice."""
    paths = []
    for name, size, choices in (("first", count, 2), ("second", count // 2, 3)):
        rows = []
        for n in range(size):
            lengths = [1 + (c if n % 3 == 0 else 0) for c in range(choices)]  # of most the choices are equally long
            texts = [" ".join(WORDS[(n * c + 3 * k + c) % 8] for k in range(lengths[c])) for c in range(choices)]
            rows.append({"question": f"{name} {n}: {WORDS[n % 8]}?", "choices": texts, "answer": n % choices})
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        path = folder / f"{name}.yaml"
        lines = [
            f"task: {name}",
            "dataset_path: json",
            "dataset_kwargs:",
            "  data_files:",
            f"    test: {data}",
            "test_split: test",
            "output_type: multiple_choice",
            'doc_to_text: "Question: {{question}}\\nAnswer:"',
            "doc_to_choice: choices",
            "doc_to_target: answer",
            "metric_list:",
            *(f"  - metric: {one}\n    aggregation: mean\n    higher_is_better: true" for one in ("acc", "acc_norm")),
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        paths.append(path)
    return paths[0], paths[1]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def _by_harness(model: Any, tokenizer: Any, *paths: Path) -> dict[str, Any]:
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=3)
    options = {"task_manager": TaskManager(include_defaults=False), "bootstrap_iters": 0, "log_samples": True}
    return simple_evaluate(wrapped, tasks=[str(path) for path in paths], **options)


def test_values_are_those_of_the_harness_for_every_document(tmp_path: Path) -> None:
    model, (first, second) = small_llama(), _tasks(tmp_path)
    want = _by_harness(model, byte_tokenizer(), first, second)
    for name in ("acc", "acc_norm"):
        task = hc.task(f"lm-eval:{first}", tokenizer=byte_tokenizer(), metric=name, batch_size=7)
        result = hc.evaluate(model, task)
        assert result.metric.name == name
        assert result.rows[:, 0].tolist() == [one[name] for one in want["samples"]["first"]]
        assert result.value == pytest.approx(want["results"]["first"][f"{name},none"])
        both = hc.task(f"lm-eval:{first},{second}", tokenizer=byte_tokenizer(), metric=name, batch_size=4)
        mean = np.mean([want["results"][one][f"{name},none"] for one in ("first", "second")])
        together = hc.evaluate(model, both)
        assert together.value == pytest.approx(mean)
        assert together.value != pytest.approx(together.rows[:, 0].mean())
        assert together.rows[:, 1].tolist() == [0.0] * 31 + [1.0] * 15


def test_our_multiple_choice_gives_the_same_as_the_harness(tmp_path: Path) -> None:
    model, (_, path) = small_llama(), _tasks(tmp_path)
    tokenizer = byte_tokenizer()
    for ours, theirs in (("accuracy", "acc"), ("accuracy-norm", "acc_norm")):
        own = hc.evaluate(
            model, hc.task("multiple-choice", tmp_path / "second.jsonl", tokenizer=tokenizer, metric=ours)
        )
        task = hc.task(f"lm-eval:{path}", tokenizer=tokenizer, metric=theirs)
        assert (own.rows[:, 0] == own.rows[:, 1]).tolist() == (hc.evaluate(model, task).rows[:, 0] == 1).tolist()


def test_plans_are_masked_and_subsets_and_splits_keep_their_documents(tmp_path: Path) -> None:
    model, (first, second) = small_llama(), _tasks(tmp_path)
    task = hc.task(f"lm-eval:{first},{second}", tokenizer=byte_tokenizer(), batch_size=8, limit=20)
    assert task.size == 35
    anatomy = hc.find(model)
    plans = [hc.Plan(), *(hc.Plan(frozenset(site.units)) for site in (*anatomy.heads, *anatomy.neurons))]
    rows = hc.evaluation.measure(model, task, plans)
    assert close(naive(model, task, plans, alone=True), rows)
    assert (rows[1:] != rows[0]).any(), "a plan must do something"
    one, other = task.split(0.5, 0.5)
    assert {one.digest(n) for n in range(one.size)}.isdisjoint(other.digest(n) for n in range(other.size))
    again = hc.evaluate(model, one).rows.tolist()
    places = {task.digest(n): n for n in range(task.size)}
    assert again == [rows[0][places[one.digest(n)]].tolist() for n in range(one.size)]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    hc.evaluate(model, task)
    assert all((weights[name] == value).all() for name, value in model.state_dict().items())
    assert "tie_weights" not in model.__dict__


def test_commands_take_them(tmp_path: Path) -> None:
    first, second = _tasks(tmp_path, 60)
    model = saved(tmp_path / "model", byte_tokenizer())
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{' '.join(WORDS[n % 8 :])} {n}" for n in range(80)) + "\n", encoding="utf-8")
    both = ["--task", f"lm-eval:{first},{second}", "--run"]
    found = ran_json("evaluate", model, *both, tmp_path / "evaluate")
    assert (found["metric"], found["n"]) == ("acc", 90)
    scored = ["--score-data", text, "--max-length", "64"]
    curve = ran_json("curve", model, *both, tmp_path / "curve", *scored, "--step", "50%", "--random-seeds", "1")
    assert curve["curves"]
    small = ["--max-drop", "60", "--step", "50%", "--brake", "off", "--dry-run"]
    pruned = ran_json("prune", model, *both, tmp_path / "prune", *scored, *small)
    assert pruned["guarantee"]["metric"] == "acc"
    with says(BadData, about="give no gradient"):
        ran("score", model, *both, tmp_path / "score")
    refused = ran("train", model, *both[:2], "--output", tmp_path / "trained")
    assert refused.exit_code == 2
    assert "gives no gradient to train by" in " ".join(refused.output.replace("│", " ").split())
    with says(BadData, about="leave --select-data out"):
        ran(
            "prune",
            model,
            *both,
            tmp_path / "p2",
            *scored,
            "--select-data",
            text,
            "--max-drop",
            "1",
            "--output",
            tmp_path / "s2",
        )


def test_what_the_harness_cannot_do_is_said_in_a_sentence(tmp_path: Path) -> None:
    path, _ = _tasks(tmp_path)
    tokenizer = byte_tokenizer()
    with says(BadData, about="bring their own documents"):
        hc.task(f"lm-eval:{path}", tmp_path / "first.jsonl", tokenizer=tokenizer)
    with says(BadData, about="no metric 'perplexity'"):
        hc.task(f"lm-eval:{path}", tokenizer=tokenizer, metric="perplexity")
    with says(BadData, about="There is no file"):
        hc.task(f"lm-eval:{tmp_path / 'none.yaml'}", tokenizer=tokenizer)
    with says(BadData, about="Name at least one"):
        hc.task("lm-eval:", tokenizer=tokenizer)
    (tmp_path / "second.jsonl").unlink()
    with says(BadData, about="cannot load"):
        hc.task(f"lm-eval:{tmp_path / 'second.yaml'}", tokenizer=tokenizer)
    broken = path.read_text(encoding="utf-8").replace("doc_to_choice: choices", 'doc_to_choice: "{{nothing.there}}"')
    (tmp_path / "broken.yaml").write_text(broken, encoding="utf-8")
    with says(BadData, about="lm-eval cannot"):
        hc.task(f"lm-eval:{tmp_path / 'broken.yaml'}", tokenizer=tokenizer)
