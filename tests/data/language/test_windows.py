"""Sliding windows: every token is guessed once, from what a plain loop over the text gives it to read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import says
from helpers.language import byte_tokenizer, log_probabilities, saved, small_llama
from helpers.small_models import ran_json

import headcount as hc
from headcount.errors import BadData

TEXT = "the sea is wide and the land is long\nand nobody knows where either of them ends\nso it goes\n" * 2
LENGTH = 32


def _by_loop(text: str, begin: bool, stride: int) -> dict[int, float]:
    """Negative log-probabilities of the tokens of a text, each from the first window that has it, moved on token by token."""
    model, ids = small_llama(), byte_tokenizer(begin)(text, add_special_tokens=False, verbose=False)["input_ids"]
    first = [0] if begin else []
    wide, found = LENGTH - len(first), dict[int, float]()
    start = 0
    while True:
        row = [*first, *ids[start : start + wide]]
        values = [None] * (1 - len(first)) + (-log_probabilities(model, row)).tolist()
        for place, value in enumerate(values):
            if value is not None:
                found.setdefault(start + place, value)
        if start + wide >= len(ids):
            return found
        start += stride


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("stride", [1, 7, 16])
def test_windows_give_every_token_once(begin: bool, stride: int, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    text = TEXT.removesuffix("\n")
    want = _by_loop(text, begin, stride)
    task = hc.task("lm", path, tokenizer=byte_tokenizer(begin), max_length=LENGTH, stride=stride)
    result = hc.evaluate(small_llama(), task)
    assert result.rows[:, 1].sum() == len(want)
    np.testing.assert_allclose(result.rows[:, 0].sum(), sum(want.values()), rtol=1e-4)
    assert result.value == pytest.approx(np.exp(np.mean(list(want.values()))), rel=1e-3)
    sizes = result.rows[1:-1, 1]
    assert set(sizes.tolist()) <= {float(stride)}
    blocks = hc.task("lm", path, tokenizer=byte_tokenizer(begin), max_length=LENGTH)
    assert blocks.fingerprint != task.fingerprint


def test_long_documents_are_read_whole_and_stay_together() -> None:
    tokenizer = byte_tokenizer()
    texts = [f"{number} {TEXT[: 20 + 15 * number]}" for number in range(12)]
    rows = [{"text": text} for text in texts]
    cut_off = hc.task("lm", rows, tokenizer=tokenizer, max_length=LENGTH)
    assert cut_off.truncated > 5
    task = hc.task("lm", rows, tokenizer=tokenizer, max_length=LENGTH, stride=16)
    assert task.truncated == 0
    assert len(task.cluster_names) == 12
    result = hc.evaluate(small_llama(), task)
    for number, text in enumerate(texts):
        mine = result.rows[np.array(task.clusters) == number]
        want = _by_loop(text, True, 16)
        assert mine[:, 1].sum() == len(want)
        assert np.isclose(mine[:, 0].sum(), sum(want.values()), rtol=1e-4)
    few = hc.task("lm", rows[8:], tokenizer=tokenizer, max_length=LENGTH, stride=16)
    assert few.clusters is None
    assert "intervals take windows for independent" in few.notes[-1]


def test_strides_that_cannot_be_are_refused(tmp_path: Path) -> None:
    rows, tokenizer = [{"text": TEXT}], byte_tokenizer()
    for stride in (0, 32):
        with says(BadData, about="it must be 1 to 31"):
            hc.task("lm", rows, tokenizer=tokenizer, max_length=LENGTH, stride=stride)
    with says(BadData, about="belongs to language-modelling"):
        hc.task("classification", rows, tokenizer=tokenizer, stride=3)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    model = saved(tmp_path / "model", tokenizer)
    command = ["evaluate", model, "--data", tmp_path / "text.txt", "--max-length", "32", "--stride", "8"]
    assert ran_json(*command, "--run", tmp_path / "run")["value"] > 1
