"""What the whole model says: the values that `kl` and `normalised` are measured against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import BadData
from ..tasks import device_of
from .measures import CLEAN, CORRUPTED, DISTRIBUTION, asked_logits, logit_difference

if TYPE_CHECKING:
    from ..tasks import Task

LARGEST = 4 * 2**30  # bytes of log-probabilities that are kept


def with_reference(task: Task, model: nn.Module) -> Task:
    """A contrast task that knows what the model says about its prompts as it is: `kl` and `normalised` compare with that.

    Logit differences of the clean and of the corrupted prompts are kept, and for `kl` the distribution over the vocabulary
    after every clean prompt. Call it before anything is masked or cut.

    Args:
        task: A contrast task.
        model: The whole model.

    Returns:
        The same task; so is its `corrupted` one.

    Examples:
        >>> model = hc.load("my-decoder")
        >>> task = hc.task("contrast:induction", tokenizer="my-decoder", limit=16, metric="normalised")
        >>> task = hc.data.contrast.with_reference(task, model)
        >>> round(hc.evaluate(model, task).value, 3)
        1.0
    """
    corrupted = task.corrupted
    if corrupted is None:
        raise BadData(f"A {task.kind} task has no corrupted prompts; only a contrast task takes a reference.")
    keep = task.metric.name == "kl"
    known = {CLEAN: _said(task, model, keep), CORRUPTED: _said(corrupted, model, False)}
    columns = {name: values["values"] for name, values in known.items()}
    if keep:
        columns[DISTRIBUTION] = known[CLEAN]["distributions"]

    def knowing(one: Task) -> Task:
        def collate(numbers: Sequence[int]) -> dict[str, Any]:
            return {**one.collate(numbers), **{name: values[list(numbers)] for name, values in columns.items()}}

        return replace(one, collate=collate)

    return replace(knowing(task), corrupted=knowing(corrupted))


def _said(task: Task, model: nn.Module, distributions: bool) -> dict[str, Tensor]:
    """Logit differences of all examples (n,), and if asked for log-probabilities of the vocabulary (n, vocabulary)."""
    device = device_of(model)
    values, kept = torch.zeros(task.size), None
    with _evaluating(model), torch.no_grad():
        for numbers in task.batches():
            batch = {name: value.to(device) for name, value in task.collate(numbers).items()}
            logits = asked_logits(model, batch)
            values[list(numbers)] = logit_difference(logits, batch).cpu()
            if distributions:
                if kept is None:
                    kept = _room(task, logits.shape[1])
                kept[list(numbers)] = logits.log_softmax(1).cpu()
    return {"values": values} if kept is None else {"values": values, "distributions": kept}


def _room(task: Task, words: int) -> Tensor:
    if task.size * words * 4 > LARGEST:
        raise BadData(
            f"What the model says about {task.size:,} prompts, {words:,} probabilities each, would take "
            f"{task.size * words * 4 / 2**30:.1f} GiB; kl needs all of it at once: give a smaller limit (--limit)."
        )
    return torch.zeros(task.size, words)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        yield
    finally:
        for module in training:
            module.training = True
