"""A look at a few examples before the work begins: labels in another order than the outputs, padding that is read.

Both give numbers without an error. They show in what a model says of a batch, so a batch is asked.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import binom
from torch import Tensor, nn

from ..tasks import device_of

if TYPE_CHECKING:
    from ..tasks import Task

FIRST, MOST = 16, 64  # examples that are looked at, and looked at where the first look like a wrong order
TOKENS = 1024  # of the first examples together
MOST_LABELS = 10  # beyond which so few examples cannot tell one order from another
BETTER = (
    0.2  # of the way from chance to certainty: a model that is better than that on the first examples is not looked at
)
IMPROBABLE = 1e-4  # probability, over all orders, at which another order is believed to be meant
ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-3}  # of a loss that padding should not change; others: 0.1


def warnings(model: nn.Module, task: Task, seed: int) -> list[str]:
    """Sentences about what is wrong between this model and this task; none for tasks of the user's own functions."""
    if task.goal is None or next(model.parameters(), None) is None or device_of(model).type == "meta":
        return []
    numbers = random.Random(seed).sample(range(task.size), min(MOST, task.size))
    few = _short(task, numbers[:FIRST])
    with torch.no_grad():
        sentences = [_padding(model, task, few), _label_order(model, task, few, numbers)]
    return [sentence for sentence in sentences if sentence]


def _short(task: Task, numbers: Sequence[int]) -> list[int]:
    """The shortest of some examples, as many as have `TOKENS` tokens together, and one at least."""
    by_length = sorted(numbers, key=lambda number: task.lengths[number])
    together = np.cumsum([task.lengths[number] for number in by_length])
    return by_length[: max(1, int((together <= TOKENS).sum()))]


def _batch(model: nn.Module, task: Task, numbers: Sequence[int]) -> dict[str, Any]:
    device = device_of(model)
    batch = task.collate(numbers)
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}


def _padding(model: nn.Module, task: Task, few: Sequence[int]) -> str:
    """Whether the loss of the shortest example is another one beside a longer one, as it is where padding is read."""
    if task.batch_size == 1 or task.lengths[few[0]] == task.lengths[few[-1]]:
        return ""
    pair = [few[0], few[-1]]
    alone = float(task.loss(model, _batch(model, task, pair[:1]))[0])
    beside = float(task.loss(model, _batch(model, task, pair))[0])
    tolerance = ROUNDING.get(next(model.parameters()).dtype, 0.1)
    if not math.isfinite(alone + beside) or abs(alone - beside) <= tolerance * (1 + abs(alone)):
        return ""
    return (
        f"padding changes what the model says: the loss of {task.describe(few[0])} is {alone:.4g} alone and {beside:.4g} "
        "beside a longer example; the model reads padding, so its numbers depend on the batch: use --batch-size 1"
    )


def _label_order(model: nn.Module, task: Task, few: Sequence[int], numbers: Sequence[int]) -> str:
    """Whether the labels fit the outputs far better in another order than in the one that they were taken in."""
    if not 2 <= len(task.label_names) <= MOST_LABELS:
        return ""
    predicted, meant, codes = _answers(model, task, few)
    chance = 1 / len(task.label_names)
    if (predicted == meant).mean() > chance + BETTER * (1 - chance):
        return ""
    rest = [number for number in numbers if number not in set(few)]
    more = [_answers(model, task, rest[start : start + FIRST]) for start in range(0, len(rest), FIRST)]
    predicted, meant, codes = (np.concatenate(parts) for parts in zip((predicted, meant, codes), *more, strict=True))
    order, right = better_order(predicted, meant, codes, len(task.label_names))
    if not order:
        return ""
    outputs = {output: task.label_names[code] for code, output in order.items()}
    complete = sorted(outputs) == list(range(len(task.label_names)))
    labels = f"--labels {','.join(outputs[output] for output in sorted(outputs))}" if complete else "--labels"
    return (
        f"the labels seem to be in another order than the model's outputs: of {len(meant)} examples {(predicted == meant).sum()} "
        f"are classified as {task.name} says, and {right} would be in another order; if that is so, pass {labels}"
    )


def _answers(model: nn.Module, task: Task, numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The output with the largest logit, the output that the label was taken for, and the label's code, per example."""
    batch = _batch(model, task, numbers)
    assert task.goal is not None
    logits, targets = task.goal(model, batch)
    return logits.argmax(1).cpu().numpy(), targets.cpu().numpy(), batch["labels"].cpu().numpy()


def better_order(
    predicted: np.ndarray, meant: np.ndarray, codes: np.ndarray, labels: int
) -> tuple[dict[int, int], int]:
    """Label -> output in the order that fits best, and how many examples are right in it; nothing where it is not sure.

    Sure is an order in which so many more are right that chance would not bring it about in any of all orders, and more than
    a model that always says the same gets right.
    """
    table = np.zeros((labels, max(labels, int(predicted.max()) + 1)))
    np.add.at(table, (codes, predicted), 1)
    rows, columns = linear_sum_assignment(-table)
    order = {int(code): int(output) for code, output in zip(rows, columns, strict=True)}
    fits = predicted == np.array([order[int(code)] for code in codes])
    right, gained, lost = (
        int(fits.sum()),
        int((fits & (predicted != meant)).sum()),
        int(((predicted == meant) & ~fits).sum()),
    )
    by_chance = binom.sf(gained - 1, gained + lost, 0.5) * math.factorial(labels) if gained else 1.0
    constant = np.bincount(codes).max() / len(codes)
    sure = by_chance < IMPROBABLE and binom.sf(right - 1, len(codes), constant) < IMPROBABLE
    return (order, right) if sure else ({}, right)
