"""Multiple choice: scores are those of a plain loop over choices, whatever the batch, and usual columns are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers.language import byte_tokenizer, log_probabilities, saved, small_llama
from helpers.same import close
from helpers.small_models import by_gates, naive, parts_of, ran_json

import headcount as hc
from headcount.errors import BadData
from headcount.importance.gradients import contributions

QUESTIONS = [
    ("What is warm?", ["the sun", "a stone in the snow at night"], 0),
    ("Who laughs", ["nobody at all", "he", "she does", "it"], 2),
    ("When?", ["now", "in a very long while", "then"], 1),
    ("Where is the war", ["here", "there", "far away and long ago"], 0),
    ("Why", ["so", "because"], 1),
    ("How long is the film?", ["an hour", "two", "too long", "x"], 3),
]


def _rows() -> list[dict[str, Any]]:
    return [{"question": q, "choices": c, "answer": a} for q, c, a in QUESTIONS]


def _by_loop(model: Any, tokenizer: Any) -> list[tuple[list[float], list[float]]]:
    """Per question the summed log-probabilities of the choices, and the same per character."""
    found = []
    for question, choices, _ in QUESTIONS:
        context = tokenizer(f"Question: {question}\nAnswer:")["input_ids"]
        sums = []
        for choice in choices:
            whole = tokenizer(f"Question: {question}\nAnswer: {choice}")["input_ids"]
            assert whole[: len(context)] == context
            sums.append(float(log_probabilities(model, whole)[len(context) - 1 :].sum()))
        found.append((sums, [one / len(choice) for one, choice in zip(sums, choices, strict=True)]))
    return found


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_values_are_those_of_a_loop_over_the_choices(begin: bool, batch_size: int) -> None:
    model, tokenizer = small_llama(), byte_tokenizer(begin)
    task = hc.task("multiple-choice", _rows(), tokenizer=tokenizer, batch_size=batch_size)
    found = _by_loop(model, tokenizer)
    answers = [answer for _, _, answer in QUESTIONS]
    losses = [-torch.tensor(sums).log_softmax(0)[right] for (sums, _), right in zip(found, answers, strict=True)]
    best = [int(np.argmax(sums)) for sums, _ in found]
    by_length = [int(np.argmax(means)) for _, means in found]
    assert best != by_length, "the example must tell the two metrics apart"
    result = hc.evaluate(model, task)
    np.testing.assert_array_equal(result.rows[:, :2], np.array([answers, best]).T)
    np.testing.assert_allclose(result.rows[:, 2], losses, rtol=1e-4, atol=1e-4)
    assert result.value == np.mean(np.array(best) == answers)
    longer = hc.evaluate(model, task.with_metric("acc_norm"))
    assert longer.metric.name == "accuracy-norm"
    assert longer.value == np.mean(np.array(by_length) == answers)


def test_ablation_and_gradients_are_those_of_one_example_at_a_time() -> None:
    model, tokenizer = small_llama(), byte_tokenizer()
    task = hc.task("multiple-choice", _rows(), tokenizer=tokenizer, batch_size=4, metric="loss")
    plans = [hc.Plan(), *(hc.Plan(frozenset([unit])) for unit in hc.find(model).heads[0].units)]
    plans.append(hc.Plan(frozenset(hc.find(model).heads[1].units)))
    assert close(naive(model, task, plans, alone=True), hc.evaluation.measure(model, task, plans))
    parts = parts_of(model)
    found = contributions(model, hc.find(model), parts, task)
    want = [by_gates(model, task, example) for example in range(task.size)]
    for part in parts:
        if part.kind != "neuron":
            each = np.stack([one[part.name] for one in want])
            assert close(found.signed[part.name], each, 1e-4 * float(np.abs(each).max()))


def _same(one: hc.Task, other: hc.Task) -> bool:
    return [one.digest(n) for n in range(one.size)] == [other.digest(n) for n in range(other.size)]


def _written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_columns_of_known_data_sets_are_found(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    plain = hc.task("multiple-choice", _rows(), tokenizer=tokenizer)
    arc = [
        {"question": q, "choices": {"text": c, "label": list("12345")[: len(c)]}, "answerKey": str(a + 1)}
        for q, c, a in QUESTIONS
    ]
    assert _same(plain, hc.task("multiple-choice", _written(tmp_path / "arc.jsonl", arc), tokenizer=tokenizer))
    piqa = [{"goal": q, "sol1": c[0], "sol2": c[1]} for q, c, _ in QUESTIONS]
    path = _written(tmp_path / "valid.jsonl", piqa)
    with says(BadData, about="no column of answers"):
        hc.task("multiple-choice", path, tokenizer=tokenizer)
    (tmp_path / "valid-labels.lst").write_text("".join(f"{n % 2}\n" for n in range(6)), encoding="utf-8")
    two = [{"question": q, "choices": c[:2], "answer": "AB"[n % 2]} for n, (q, c, _) in enumerate(QUESTIONS)]
    found = hc.task("multiple-choice", path, tokenizer=tokenizer)
    assert _same(found, hc.task("multiple-choice", two, tokenizer=tokenizer))
    assert "'sol1', 'sol2'" in found.notes[0]
    assert "valid-labels.lst" in found.notes[0]
    named = hc.task(
        "multiple-choice", path, tokenizer=tokenizer, label=str(tmp_path / "valid-labels.lst"), choices="sol2,sol1"
    )
    assert not _same(found, named)
    swag = [{"ctx": q, "activity_label": "Talk", "endings": c, "label": str(a)} for q, c, a in QUESTIONS]
    swag.append({"ctx": "no answer", "activity_label": "Talk", "endings": ["a", "b"], "label": ""})
    prompt = "{activity_label}: {ctx}"
    hella = hc.task("multiple-choice", swag, tokenizer=tokenizer)
    assert hella.skipped == 1
    assert _same(hella, hc.task("multiple-choice", swag, tokenizer=tokenizer, prompt=prompt))
    assert hella.texts is not None
    assert hella.texts(0)[0] == "Talk: What is warm?"
    table = "question;a;b;answer\n" + "".join(
        f"{q};{c[0]};{c[1]};{c[n % 2]}\n" for n, (q, c, _) in enumerate(QUESTIONS)
    )
    (tmp_path / "t.csv").write_text(table, encoding="utf-8")
    assert _same(found, hc.task("multiple-choice", tmp_path / "t.csv", tokenizer=tokenizer))


def test_answers_that_count_from_one_are_said_and_strange_ones_are_refused() -> None:
    tokenizer = byte_tokenizer()
    ones = [{**row, "answer": row["answer"] + 1} for row in _rows()]
    counted = hc.task("multiple-choice", ones, tokenizer=tokenizer)
    assert "numbered from 1" in counted.notes[-1]
    assert _same(counted, hc.task("multiple-choice", _rows(), tokenizer=tokenizer))
    for wrong, about in (
        ({"answer": 9}, "names '9' as the answer"),
        ({"answer": "F"}, "names 'F' as the answer"),
        ({"choices": ["one"]}, "two or more"),
        ({"choices": ["one", " "]}, "none of them empty"),
        ({"question": 3}, "not text"),
        ({"question": "when " * 10, "choices": ["a", "b" * 200]}, "200 tokens long"),
    ):
        with says(BadData, about=about):
            hc.task("multiple-choice", [*_rows(), {**_rows()[0], **wrong}], tokenizer=tokenizer)
    with says(BadData, about="which columns of"):
        hc.task("multiple-choice", [{"question": "a", "answer": "b"}], tokenizer=tokenizer)
    with says(BadData, about="names no column"):
        hc.task("multiple-choice", _rows(), tokenizer=tokenizer, prompt="Question:")
    with says(BadData, about="belong to multiple-choice"):
        hc.task("language-modelling", [{"text": "a b"}], tokenizer=tokenizer, prompt="{text}")


def test_a_long_context_loses_its_start_and_is_counted() -> None:
    model, tokenizer = small_llama(), byte_tokenizer()
    rows = [{**_rows()[0], "question": "long ago " * 30 + "and so on"}, _rows()[1]]
    task = hc.task("multiple-choice", rows, tokenizer=tokenizer)
    assert task.truncated == 1
    whole = tokenizer(f"Question: {rows[0]['question']}\nAnswer: the sun", verbose=False)["input_ids"]
    kept = [whole[0], *whole[-127:]]
    first = task.collate([0])["input_ids"][0]
    assert first[: len(kept)].tolist() == kept
    assert len(hc.evaluate(model, task).rows) == 2


def test_a_plan_is_pruned_to_a_promise_on_the_command_line(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", byte_tokenizer())
    rows = [{**row, "question": f"{row['question']} {n}"} for n in range(25) for row in _rows()]
    data = _written(tmp_path / "mc.jsonl", rows)
    common = ["--task", "multiple-choice", "--data", data, "--run"]
    found = ran_json("evaluate", model, *common, tmp_path / "run", "--metric", "acc_norm")
    assert found["metric"] == "accuracy-norm"
    assert found["n"] == 150
    size = ["--max-drop", "60", "--step", "50%", "--brake", "off", "--dry-run"]
    pruned = ran_json("prune", model, *common, tmp_path / "prune", *size)
    assert pruned["guarantee"]["metric"] == "accuracy"
    assert pruned["guarantee"]["test"] == "exact"
