"""The last word of a text, read from all words before it, as LAMBADA asks for it (Paperno et al. 2016).

A model is right about a text if every token of the last word is the most probable one after the tokens before it. This is what
a model that writes greedily would say, as far as that word goes. The loss is the negative log-probability of the whole word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import BadData
from ...stats.metrics import CLASSIFIED, metric
from ..checks.tokenizers import counted
from ..encoding import IGNORED, loaded_tokenizer, longest_input, padded, padding_token, special_tokens
from ..kinds import metric_named
from ..losses import Batch, LogitsAndTargets, next_logits, summed_losses, token_loss
from ..tasks import Measure, Task
from .continuations import continuations
from .request import Request, built

LAST = re.compile(r"(.*\S)(\s+\S+)\s*", re.DOTALL)
WRONG = -1.0  # what stands for any other word


def last_words(request: Request) -> Task:
    """The task: labels are the words, by their numbers in this data."""
    tokenizer, table = loaded_tokenizer(request.tokenizer), request.table
    matches = [LAST.fullmatch(text) for text in table.texts[0]]
    skipped = matches.count(None)
    table = table.chosen([number for number, match in enumerate(matches) if match]).drawn(request.limit, request.seed)
    if not len(table):
        raise BadData(f"{table.name} has no text of two words or more; the last word is read from those before it.")
    pairs = [match.groups() for match in map(LAST.fullmatch, table.texts[0]) if match]
    words = [word.strip() for _, word in pairs]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    limit, pad = longest_input(tokenizer, request.max_length), padding_token(tokenizer)
    rows = continuations(tokenizer, pairs, limit, [table.place(number) for number in range(len(pairs))])

    def collate(chosen: Sequence[int]) -> dict[str, Any]:
        return {
            "input_ids": padded([rows[number].ids for number in chosen], pad),
            "attention_mask": padded([[1] * len(rows[number].ids) for number in chosen], 0),
            "labels": padded([rows[number].targets for number in chosen], IGNORED),
            "words": torch.tensor([numbers[words[number]] for number in chosen]),
        }

    def measure(name: str) -> Measure:
        return Measure(metric(metric_named(request.kind, name), columns=CLASSIFIED), word_rows)

    return built(
        request,
        table,
        measure,
        partial(token_loss, word_goal),
        word_goal,
        collate=collate,
        example=lambda number: [rows[number].ids, rows[number].start],
        lengths=[len(row.ids) for row in rows],
        settings={},
        inputs=lambda batch: {name: batch[name] for name in ("input_ids", "attention_mask")},
        skipped=skipped,
        shortened=frozenset(number for number, row in enumerate(rows) if row.shortened),
        special=special_tokens(tokenizer),
        tokens=counted(tokenizer, [row.ids for row in rows], table.name),
    )


def word_goal(model: nn.Module, batch: Batch) -> LogitsAndTargets:
    """The tokens of the last word, each read from all tokens before it."""
    logits = next_logits(model, batch, "last-word")
    return LogitsAndTargets(logits, batch["labels"].to(logits.device))


def word_rows(model: nn.Module, batch: Batch) -> np.ndarray:
    """The word, the same or `WRONG` for what the model says, and the loss of the word."""
    logits, targets = word_goal(model, batch)
    right = ((logits.argmax(-1) == targets) | (targets == IGNORED)).all(1)
    words = batch["words"].to(right.device).double()
    columns = (words, words.where(right, torch.full_like(words, WRONG)), summed_losses(logits, targets))
    return np.stack([column.detach().double().cpu().numpy() for column in columns], axis=1)
