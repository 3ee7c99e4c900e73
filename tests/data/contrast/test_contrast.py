"""Contrast tasks: metrics are those of a loop over prompts, prompts align, and what does not is refused with its tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers.contrasts import FAMILIES, MASKED, ROWS, alone, family, small_bert, small_gpt2, words_tokenizer
from helpers.language import byte_tokenizer, small_llama
from helpers.same import close
from helpers.small_models import ran, ran_json

import headcount as hc
from headcount.data.contrast import generate, values_of, with_reference
from headcount.errors import BadData


def listed(cell: Any) -> list[str]:
    return [cell] if isinstance(cell, str) else list(cell)


def by_hand(model: Any, tokenizer: Any, row: dict[str, Any], side: str = "clean") -> dict[str, float]:
    """Every metric of one example, from one pass over its prompt alone."""
    logits, clean = alone(model, tokenizer, row[side]), alone(model, tokenizer, row["clean"])
    right, wrong = (tokenizer.convert_tokens_to_ids(listed(row[name])) for name in ("answer", "wrong"))
    logs, wanted = logits.log_softmax(0), clean.log_softmax(0)
    shares = logs[right].exp().sum(), logs[wrong].exp().sum()
    return {
        "logit-difference": float(logits[right].mean() - logits[wrong].mean()),
        "probability-difference": float(shares[0] - shares[1]),
        "accuracy": float(logits[right].max() > logits[wrong].max()),
        "kl": float((wanted.exp() * (wanted - logs)).sum()),
        "loss": float(-torch.log(shares[0] / (shares[0] + shares[1]))),
    }


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_metrics_are_those_of_a_loop_over_prompts(name: str, batch_size: int) -> None:
    model, tokenizer, rows = family(name)
    task = hc.task("contrast", rows, tokenizer=tokenizer, batch_size=batch_size, metric="kl")
    task = with_reference(task, model)
    for side, sided in (("clean", task), ("corrupted", task.corrupted)):
        want = [by_hand(model, tokenizer, row, side) for row in rows]
        assert sided is not None
        for metric in ("logit-difference", "probability-difference", "accuracy", "kl", "loss"):
            result = hc.evaluate(model, sided.with_metric(metric))
            found = result.metric.per_example(result.rows)
            assert close(found, np.array([one[metric] for one in want]), 1e-4), (side, metric)


@pytest.mark.parametrize("name", FAMILIES)
def test_normalised_is_the_ratio_of_means_between_corrupted_and_clean(name: str) -> None:
    model, tokenizer, rows = family(name)
    task = with_reference(hc.task("contrast", rows, tokenizer=tokenizer, metric="normalised"), model)
    assert task.corrupted is not None
    assert hc.evaluate(model, task).value == pytest.approx(1, abs=1e-5)
    assert hc.evaluate(model, task.corrupted).value == pytest.approx(0, abs=1e-5)
    with hc.masked(model, "0:1"):
        result, plain = hc.evaluate(model, task), hc.evaluate(model, task.with_metric("logit-difference")).value
        assert close(
            result.rows[:, 0], np.array([by_hand(model, tokenizer, row)["logit-difference"] for row in rows]), 1e-4
        )
    clean, corrupted = (
        np.mean([by_hand(model, tokenizer, row, side)["logit-difference"] for row in rows])
        for side in ("clean", "corrupted")
    )
    assert result.value == pytest.approx((plain - corrupted) / (clean - corrupted), rel=1e-4)
    low, high = result.interval()
    draws = np.random.default_rng(12345).integers(0, len(rows), size=(1000, len(rows)))
    value, zero, one = result.rows[draws].mean(1).T
    assert np.allclose([low, high], np.quantile((value - zero) / (one - zero), [0.025, 0.975]), rtol=1e-6)


def test_the_corrupted_twin_has_the_size_and_order_of_the_task() -> None:
    task = hc.task("contrast", ROWS, tokenizer=words_tokenizer())
    some = task.subset([3, 0, 4])
    for one in (task, some):
        twin = one.corrupted
        assert twin is not None
        assert list(twin.lengths) == list(one.lengths)
        assert twin.fingerprint != one.fingerprint
        batch, other = one.collate(range(len(one))), twin.collate(range(len(one)))
        assert all(torch.equal(batch[name], other[name]) for name in batch if name != "input_ids")
        assert ((batch["input_ids"] != other["input_ids"]).sum(1) == 1).all()
    assert some.corrupted is not None
    assert torch.equal(some.corrupted.collate([0])["input_ids"][0], task.corrupted.collate([3])["input_ids"][0])  # type: ignore[union-attr]


@pytest.mark.parametrize("name", FAMILIES)
def test_values_have_the_gradient_of_the_metric(name: str) -> None:
    """A step along the gradient of the loss changes the loss by the square of its length, times the step."""
    model, tokenizer, rows = family(name)
    model = model.double()
    task = hc.task("contrast", rows, tokenizer=tokenizer, metric="loss")
    batch = task.collate(range(5))
    weight = next(p for p in model.parameters() if p.dim() > 1)
    (gradient,) = torch.autograd.grad(values_of(task, model, batch).sum(), weight)
    sides = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            weight += step * gradient
            sides.append(values_of(task, model, batch).sum())
            weight -= step * gradient
    assert float(sides[0] - sides[1]) / 2e-6 == pytest.approx(float((gradient**2).sum()), rel=1e-3)
    with says(BadData, about="has no gradient"):
        values_of(task.with_metric("accuracy"), model, batch)


def test_columns_are_guessed_or_named(tmp_path: Path) -> None:
    tokenizer = words_tokenizer()
    want = hc.task("contrast", ROWS, tokenizer=tokenizer)
    tsv = ["corrupt\tprompt\tanswers\tincorrect"]
    tsv += [
        "\t".join([r["corrupted"], r["clean"], "|".join(listed(r["answer"])), json.dumps(listed(r["wrong"]))])
        for r in ROWS
    ]
    (tmp_path / "rows.tsv").write_text("\n".join(tsv) + "\n")
    nested = [
        {
            "prompt": r["clean"],
            "choices": [*listed(r["wrong"]), *listed(r["answer"])[:1]],
            "answerKey": len(listed(r["wrong"])),
            "other_counterfactual": {"prompt": r["corrupted"], "choices": ["x"], "answerKey": 0},
        }
        for r in ROWS
    ]
    (tmp_path / "nested.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nested))
    own = [{"a": r["clean"], "b": r["corrupted"], "c": r["answer"], "d": r["wrong"]} for r in ROWS]
    names = {"text": "a", "target": "b", "label": "c", "choices": "d"}
    found = [
        hc.task("contrast", tmp_path / "rows.tsv", tokenizer=tokenizer),
        hc.task("contrast", tmp_path / "nested.jsonl", tokenizer=tokenizer),
        hc.task("clean-corrupted", own, tokenizer=tokenizer, **names),
    ]
    full = want.collate(range(5))
    for task in found:
        batch = task.collate(range(5))
        assert torch.equal(batch["input_ids"], full["input_ids"])
        assert torch.equal(batch["wrong"], full["wrong"])
    assert torch.equal(found[0].collate(range(5))["right"], full["right"])
    assert torch.equal(found[1].collate(range(5))["right"], full["right"][:, :1])
    counterfactual = [{"prompt": r["clean"], "answer": listed(r["answer"])[0], "counterfactual": {"prompt": r["corrupted"],
                       "answer": listed(r["wrong"])[0]}} for r in ROWS]  # fmt: skip
    task = hc.task("contrast", counterfactual, tokenizer=tokenizer)
    assert torch.equal(task.collate(range(5))["wrong"], full["wrong"][:, :1])
    assert "wrong ones in 'the answer of counterfactual'" in repr(task)


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"corrupted": "when mary went"},
        "have 10 and 3 tokens (when·mary·and·john·went·john·gave·a·book·to / when·mary·went)",
    ),
    ({"corrupted": ROWS[0]["clean"]}, "are the same tokens"),
    ({"wrong": ["john", "mary"]}, "both begin with the token 'mary'"),
    ({"wrong": []}, "at least one of each"),
    ({"corrupted": 3}, "is no prompt"),
]


@pytest.mark.parametrize(("change", "about"), REFUSED)
def test_what_does_not_align_is_refused_with_its_tokens(change: dict[str, Any], about: str) -> None:
    with says(BadData, about=about):
        hc.task("contrast", [{**ROWS[0], **change}, *ROWS[1:]], tokenizer=words_tokenizer())


def test_what_does_not_align_can_be_dropped_and_is_counted() -> None:
    rows = [ROWS[0], {**ROWS[1], "corrupted": "when mary"}, {**ROWS[2], "wrong": ["anna"]}, *ROWS[3:]]
    task = hc.task("contrast", rows, tokenizer=words_tokenizer(), unaligned="drop")
    assert task.size == 3
    assert task.skipped == 2
    assert any("2 of 5 examples were left out, the first because: Clean and corrupted" in note for note in task.notes)
    assert hc.task("contrast", rows, tokenizer=words_tokenizer(), unaligned="drop", limit=2).size == 2
    with says(BadData, about="No example of"):
        hc.task("contrast", rows[1:3], tokenizer=words_tokenizer(), unaligned="drop")
    with says(BadData, about="refuse or drop"):
        hc.task("contrast", rows, tokenizer=words_tokenizer(), unaligned="keep")
    with says(BadData, about="belongs to contrast"):
        hc.task("language-modelling", [{"text": "when mary"}], tokenizer=words_tokenizer(), unaligned="drop")


def test_masks_and_models_must_fit() -> None:
    tokenizer = words_tokenizer(mask=True)
    plain, masked = hc.task("contrast", ROWS, tokenizer=tokenizer), hc.task("contrast", MASKED, tokenizer=tokenizer)
    with says(BadData, about="guesses masked words"):
        hc.evaluate(small_bert(), plain)
    with says(BadData, about="does not guess masked words"):
        hc.evaluate(small_gpt2(), masked)
    with says(BadData, about="have a mask"):
        hc.task("contrast", [*ROWS[:2], *MASKED[2:]], tokenizer=tokenizer)
    with says(BadData, about="have 1 and 0 masks"):
        hc.task("contrast", [{**MASKED[0], "corrupted": ROWS[0]["corrupted"]}], tokenizer=tokenizer)


def test_only_the_first_token_of_an_answer_counts_and_that_is_said() -> None:
    """With a tokenizer of bytes: " m" and " j" are compared, and what follows is not read."""
    model, tokenizer = small_llama(), byte_tokenizer(begin=True)
    rows = [{"clean": "to john from", "corrupted": "to mary from", "answer": "mary", "wrong": "john"}]
    task = hc.task("contrast", rows, tokenizer=tokenizer)
    batch = task.collate([0])
    assert tokenizer.convert_ids_to_tokens([int(batch["right"]), int(batch["wrong"])]) == ["Ġm", "Ġj"]
    assert batch["input_ids"][0, 0] == tokenizer.bos_token_id
    assert "1 of 1 examples have answers of several tokens, of which the first is compared" in task.notes
    with torch.no_grad():
        logits = model(batch["input_ids"]).logits[0, -1]
    want = float(logits[batch["right"][0, 0]] - logits[batch["wrong"][0, 0]])
    assert hc.evaluate(model, task).value == pytest.approx(want, rel=1e-4)
    year = hc.task("contrast", [{**rows[0], "clean": "to 1743 in 17", "corrupted": "to 1702 in 17", "answer": "5", "wrong": "3"}],
                   tokenizer=tokenizer)  # fmt: skip
    assert tokenizer.convert_ids_to_tokens([int(year.collate([0])["right"])]) == ["5"]  # digits go on without a space


def test_a_metric_that_needs_the_whole_model_says_so() -> None:
    model, tokenizer = small_gpt2(), words_tokenizer()
    for name in ("kl", "normalised"):
        task = hc.task("contrast", ROWS, tokenizer=tokenizer, metric=name)
        with says(BadData, about="with_reference"):
            hc.evaluate(model, task)
    with says(BadData, about="no corrupted prompts"):
        with_reference(hc.task("language-modelling", [{"text": "when mary"}], tokenizer=tokenizer), model)


@pytest.mark.parametrize("metric", ["logit-difference", "kl", "normalised", "accuracy", "loss"])
def test_ablation_is_replayed_as_ordinary_passes(metric: str) -> None:
    model, tokenizer = small_llama(vocab_size=32), words_tokenizer()
    task = with_reference(hc.task("contrast", ROWS, tokenizer=tokenizer, metric=metric), model)
    fast, slow = (hc.ablate(model, task, replay=replay) for replay in (True, False))
    assert close(fast.rows, slow.rows, 1e-4)
    assert len(fast.comparisons(test="t" if metric not in ("normalised",) else "randomization")) == 8


def test_commands_take_them(tmp_path: Path) -> None:
    """A generated file, the same without a file, and a metric that is measured against the whole model."""
    model, tokenizer = tmp_path / "model", words_tokenizer()
    small_gpt2().save_pretrained(model)
    tokenizer.save_pretrained(model)
    done = ran("generate", "induction", model, "-o", tmp_path / "rows.jsonl", "--size", 12)
    assert "12 examples of induction" in done.stdout
    asked = ["evaluate", model, "--task", "contrast", "--data", tmp_path / "rows.jsonl", "--metric", "normalised"]
    found = ran_json(*asked, "--run", tmp_path / "a")
    assert found["value"] == pytest.approx(1, abs=1e-5)
    made = ran_json("evaluate", model, "--task", "contrast:induction", "--limit", 12, "--metric", "accuracy")
    assert made["n"] == 12
    ablated = ran_json(
        "ablate", model, "--task", "contrast:induction", "--limit", 12, "--metric", "kl", "--run", tmp_path / "b"
    )
    assert all(one["after"] > 0 for one in ablated["ablations"])


# --- generated ------------------------------------------------------------------------------------------------------

NAMES = ("ioi", "greater-than", "induction", "agreement", "colour")


@pytest.mark.parametrize("name", NAMES)
def test_generated_examples_align_under_a_tokenizer_of_bytes(name: str) -> None:
    tokenizer = byte_tokenizer(longest=256)
    rows = generate(name, tokenizer, size=30, seed=3)
    assert rows == generate(name, tokenizer, size=30, seed=3)
    assert rows != generate(name, tokenizer, size=30, seed=4)
    assert len({json.dumps(row) for row in rows}) == len(rows) == 30
    task = hc.task("contrast", rows, tokenizer=tokenizer)  # nothing is refused
    made = hc.task(f"contrast:{name}", tokenizer=tokenizer, limit=30, seed=3)
    assert task.fingerprint == made.fingerprint
    assert made.name == f"generated {name}"


def test_generated_prompts_have_the_answers_that_they_ask_for() -> None:
    tokenizer = byte_tokenizer(longest=256)
    for row in generate("ioi", tokenizer, size=20):
        clean, corrupted = (re.findall(r"\w+", row[side]) for side in ("clean", "corrupted"))
        assert clean.count(row["wrong"][0]) == clean.count(row["answer"][0]) + 1
        assert corrupted.count(row["answer"][0]) == corrupted.count(row["wrong"][0]) + 1
    for row in generate("induction", tokenizer, size=20):
        for side, answer in (("clean", "answer"), ("corrupted", "wrong")):
            *words, last = row[side].split()
            assert words[words.index(last) + 1] == row[answer][0]
        assert row["answer"] != row["wrong"]
    for row in generate("agreement", tokenizer, size=20):
        assert {"is", "are"} == {row["answer"][0], row["wrong"][0]}
    for row in generate("colour", tokenizer, size=20):
        text, _, asked = row["clean"].partition(". The colour of the ")
        assert f"{row['answer'][0]} {asked.split()[0]}" in text
    for row in generate("greater-than", tokenizer, size=20):
        start = next(word for word in row["clean"].split() if len(word) == 4 and word.isdigit())
        assert all(start[:2] + one + "0" > start for one in row["answer"])
        assert all(start[:2] + one + "9" < start for one in row["wrong"])


def test_a_tokenizer_that_knows_few_words_lends_its_own() -> None:
    tokenizer = words_tokenizer()
    rows = generate("induction", tokenizer, size=10)
    assert all(set(row["clean"].split()) <= set(tokenizer.get_vocab()) for row in rows)
    task = hc.task("contrast:induction", tokenizer=tokenizer, limit=10)
    assert any("words of its own vocabulary stand in" in note for note in task.notes)
    masked = hc.task("contrast:induction", tokenizer=words_tokenizer(mask=True), limit=4)
    with says(BadData, about="no contrast task 'circuits'"):
        generate("circuits", tokenizer)
    with says(BadData, about="leave the data"):
        hc.task("contrast:ioi", ROWS, tokenizer=tokenizer)
    assert masked.size == 4
