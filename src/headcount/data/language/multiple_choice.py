"""Multiple choice: which of some continuations of a context the model finds the most probable.

Every choice is read after the context, and its score is the log-probability of all its tokens (Brown et al. 2020, section
2.4), for `accuracy-norm` divided by its number of characters. The loss is the cross entropy of the right choice under the
probabilities that the scores without lengths are in proportion to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...stats.metrics import CLASSIFIED, metric
from ..checks.tokenizers import counted
from ..encoding import IGNORED, loaded_tokenizer, longest_input, padded, padding_token, special_tokens
from ..kinds import metric_named
from ..losses import Batch, LogitsAndTargets, next_logits, summed_losses
from ..tasks import Measure, Task
from .continuations import continuations
from .request import Request, built

ABSENT = -1e30  # the log-probability of a choice that an example does not have: others of its batch have more


def multiple_choice(request: Request) -> Task:
    """The task: a row of a batch is one choice, and the choices of an example stand one below the other."""
    tokenizer, table = loaded_tokenizer(request.tokenizer), request.table.drawn(request.limit, request.seed)
    contexts, options = table.texts
    owners = [number for number, texts in enumerate(options) for _ in texts]
    pairs = [
        (context, text if context[-1:].isspace() else f" {text}")
        for context, texts in zip(contexts, options, strict=True)
        for text in texts
    ]
    limit = longest_input(tokenizer, request.max_length)
    read = iter(continuations(tokenizer, pairs, limit, [table.place(number) for number in owners]))
    rows = [[next(read) for _ in texts] for texts in options]
    answers, pad = list(table.labels or ()), padding_token(tokenizer)

    def collate(numbers: Sequence[int]) -> dict[str, Any]:
        most = max(len(rows[number]) for number in numbers)
        filled = [[*rows[number], *rows[number][:1] * (most - len(rows[number]))] for number in numbers]
        together = [one for some in filled for one in some]  # (examples * choices)
        characters = [[*map(len, options[number]), *[0] * (most - len(options[number]))] for number in numbers]
        return {
            "input_ids": padded([one.ids for one in together], pad),
            "attention_mask": padded([[1] * len(one.ids) for one in together], 0),
            "targets": padded([one.targets for one in together], IGNORED),
            "characters": torch.tensor(
                characters, dtype=torch.float32
            ),  # (examples, choices), 0 for a choice not there
            "labels": torch.tensor([answers[number] for number in numbers]),
        }

    def measure(name: str) -> Measure:
        name = metric_named(request.kind, name)
        return Measure(metric(name, columns=CLASSIFIED), partial(choice_rows, name == "accuracy-norm"))

    return built(
        request,
        table,
        measure,
        choice_loss,
        choice_goal,
        collate=collate,
        example=lambda number: [[(one.ids, one.start) for one in rows[number]], list(options[number]), answers[number]],
        lengths=[max(len(one.ids) for one in some) for some in rows],
        settings={},
        inputs=lambda batch: {name: batch[name] for name in ("input_ids", "attention_mask")},
        rowwise=False,  # an example is several rows
        texts=lambda number: (contexts[number], " | ".join(options[number])),
        shortened=frozenset(number for number, some in enumerate(rows) if any(one.shortened for one in some)),
        special=special_tokens(tokenizer),
        tokens=counted(tokenizer, [one.ids for some in rows for one in some], table.name),
    )


def choice_goal(model: nn.Module, batch: Batch) -> LogitsAndTargets:
    """The log-probability of every choice (examples, choices), and which of them is right (examples,)."""
    logits = next_logits(model, batch, "multiple-choice")
    targets = batch["targets"].to(logits.device)
    characters = batch["characters"].to(logits.device)
    sums = -summed_losses(logits, targets).view(characters.shape)
    return LogitsAndTargets(sums.masked_fill(characters == 0, ABSENT), batch["labels"].to(logits.device))


def choice_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of the right choice of every example."""
    scores, right = choice_goal(model, batch)
    return cross_entropy(scores, right, reduction="none")


def choice_rows(by_length: bool, model: nn.Module, batch: Batch) -> np.ndarray:
    """The right choice, the one with the largest score, and the loss; `by_length` divides scores by characters."""
    scores, right = choice_goal(model, batch)
    lengths = batch["characters"].to(scores.device).clamp(min=1)
    best = (scores / lengths if by_length else scores).argmax(1)
    columns = (right, best, cross_entropy(scores, right, reduction="none"))
    return np.stack([column.detach().double().cpu().numpy() for column in columns], axis=1)
