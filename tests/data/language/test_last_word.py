"""The last word: right where greedy writing would say it, and its loss is that of a loop over its tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import says
from helpers.language import byte_tokenizer, log_probabilities, small_llama

import headcount as hc
from headcount.errors import BadData

TEXTS = ["she went to the sea", "a dog saw a dog ", "who is\n\nthere", "one two three four five", "to be or not to be"]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_last_word_is_read_from_the_words_before_it(batch_size: int) -> None:
    model, tokenizer = small_llama(), byte_tokenizer()
    rows = [{"text": text} for text in [*TEXTS, "alone"]]
    task = hc.task("last-word", rows, tokenizer=tokenizer, batch_size=batch_size)
    assert task.size == len(TEXTS)
    assert task.skipped == 1
    found = hc.evaluate(model, task)
    for row, text in zip(found.rows, TEXTS, strict=True):
        words = text.rstrip()
        before = words[: words.rindex(words.split()[-1])].rstrip()
        context, whole = tokenizer(before)["input_ids"], tokenizer(words)["input_ids"]
        want = log_probabilities(model, whole)[len(context) - 1 :]
        assert np.isclose(row[2], -want.sum(), rtol=1e-4)
        with torch.no_grad():
            best = model(torch.tensor([whole])).logits[0].argmax(-1)[len(context) - 1 : -1]
        right = best.tolist() == whole[len(context) :]
        assert (row[1] == row[0]) == right
    assert hc.evaluate(model, task.with_metric("loss")).value == pytest.approx(found.rows[:, 2].mean())


def test_a_model_that_copies_is_right() -> None:
    """With the right answer made the most probable one: the only token that the output knows."""
    model, tokenizer = small_llama(), byte_tokenizer()
    rows = [{"text": "here is a"}, {"text": "here is b"}, {"text": "here is a b"}]
    token = tokenizer("x a", add_special_tokens=False)["input_ids"][-1]
    bias = torch.zeros(290)
    bias[token] = 1e4
    model.lm_head.bias = torch.nn.Parameter(bias)
    task = hc.task("lambada", rows, tokenizer=tokenizer)
    result = hc.evaluate(model, task)
    assert (result.rows[:, 0] == result.rows[:, 1]).tolist() == [True, False, False]
    assert result.value == pytest.approx(1 / 3)
    assert "lambada is the kind of task last-word" in task.notes


def test_texts_of_one_word_are_refused() -> None:
    with says(BadData, about="two words"):
        hc.task("last-word", [{"text": "alone"}], tokenizer=byte_tokenizer())
