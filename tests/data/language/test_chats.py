"""Conversations: the loss is that of the assistant's tokens in the text of the chat template, and of no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import says
from helpers.language import CHAT, byte_tokenizer, log_probabilities, saved, small_llama
from helpers.small_models import ran, ran_json

import headcount as hc
from headcount.errors import BadData

TALKS: list[list[tuple[str, str]]] = [
    [("user", "hello"), ("assistant", "good day")],
    [("system", "be short"), ("user", "why"), ("assistant", "so"), ("user", "really"), ("assistant", "yes it is")],
    [("assistant", "may I help"), ("user", "no")],
    [("user", "nobody answers")],
]


def _rows() -> list[dict[str, Any]]:
    return [{"messages": [{"role": role, "content": text} for role, text in talk]} for talk in TALKS]


def _by_loop(model: Any, tokenizer: Any) -> list[tuple[float, int]]:
    """The text piece by piece, as the template has it, with those pieces that count."""
    found = []
    for talk in TALKS[:3]:
        ids, counts = list[int](), list[bool]()
        for role, text in talk:
            header, body = f"<{role}>\n", f"{text}</s>"
            if not ids and role == "assistant":  # nothing asks for the first message: all of it is an answer
                header, body = "", header + body
            for piece, counted in ((header, False), (body, role == "assistant")):
                new = tokenizer(piece, add_special_tokens=False)["input_ids"] if piece else []
                ids += new
                counts += [counted] * len(new)
        whole = tokenizer("".join(f"<{role}>\n{text}</s>" for role, text in talk), add_special_tokens=False)[
            "input_ids"
        ]
        assert ids == whole
        chosen = log_probabilities(model, ids)[np.array(counts[1:])]
        found.append((-float(chosen.sum()), len(chosen)))
    return found


@pytest.mark.parametrize("batch_size", [1, 3])
def test_only_answers_count(batch_size: int) -> None:
    model, tokenizer = small_llama(), byte_tokenizer(template=CHAT)
    task = hc.task("language-modelling", _rows(), tokenizer=tokenizer, batch_size=batch_size)
    assert task.size == 3
    assert task.skipped == 1
    want = _by_loop(model, tokenizer)
    np.testing.assert_allclose(hc.evaluate(model, task).rows, want, rtol=1e-4)
    shared = [{"conversations": [{"from": r, "value": t} for r, t in talk]} for talk in TALKS]
    for row in shared:
        for message in row["conversations"]:
            message["from"] = {"user": "human", "assistant": "gpt"}.get(message["from"], message["from"])
    again = hc.task("language-modelling", shared, tokenizer=tokenizer)
    assert [again.digest(n) for n in range(3)] == [task.digest(n) for n in range(3)]
    seam = byte_tokenizer(template=CHAT.replace("\n", " "))  # " g" of "good" is one token, and an answer's
    spaced = hc.task("language-modelling", _rows(), tokenizer=seam)
    assert hc.evaluate(model, spaced).rows[:2, 1].tolist() == [count for _, count in want[:2]]
    short = hc.task("language-modelling", _rows(), tokenizer=tokenizer, max_length=25)
    assert short.truncated == 1, short
    assert short.skipped == 3
    assert (short.collate([0])["labels"] != -100).sum() > 0


def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path) -> None:
    rows = _rows()
    with says(BadData, about="no chat template"):
        hc.task("language-modelling", rows, tokenizer=byte_tokenizer())
    tokenizer = byte_tokenizer(template=CHAT)
    with says(BadData, about="row 1 of"):
        hc.task("lm", [{"messages": [{"role": "user", "text": "a"}]}], tokenizer=tokenizer)
    with says(BadData, about="no conversation with an answer"):
        hc.task("lm", rows[3:], tokenizer=tokenizer)
    with says(BadData, about="these are conversations"):
        hc.task("lm", rows, tokenizer=tokenizer, stride=3)
    strict = byte_tokenizer(template="{{ raise_exception('Roles must alternate') }}")
    with says(BadData, about="Roles must alternate"):
        hc.task("lm", rows, tokenizer=strict)
    data = tmp_path / "chats.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    bare, whole = saved(tmp_path / "bare", byte_tokenizer()), saved(tmp_path / "whole", tokenizer)
    with says(BadData, about="no chat template"):
        ran("evaluate", bare, "--data", data)
    assert ran_json("evaluate", whole, "--data", data, "--run", tmp_path / "run")["n"] == 3
