"""What a model is trained towards: the sum of the losses of a batch's targets, and how many there are.

Sum and count are given apart, so that the mean over all targets of a step is exact however its batch was split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from ..data.encoding import IGNORED
from ..data.losses import Batch, LogitsAndTargets, count_targets
from ..errors import BadData, HeadcountError, Refused
from ..evaluation.evaluator import is_out_of_memory, to_device
from ..model.equivalence import evaluating

if TYPE_CHECKING:
    from ..data.tasks import Task


def batch_loss(
    model: nn.Module,
    task: Task,
    batch: Batch,
    smoothing: float = 0.0,
    teacher: nn.Module | None = None,
    distill: float = 0.0,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The summed loss of a batch's targets, and their number; the sum is differentiable.

    Cross entropy with label smoothing for classes and tokens, squared error for numbers, the task's own loss where it has
    no goal. With a teacher it is (1 - distill) of that, and distill of temperature² times the divergence of what the
    model says from what the teacher says, both softened by the temperature (Hinton et al. 2015); for numbers of the
    squared error between both. The teacher must be in evaluation mode; it gets no gradient.
    """
    if task.goal is None:
        if teacher is not None:
            raise Refused("A teacher needs logits, and a task of one's own has only a loss; train without a teacher.")
        losses = task.loss(model, batch)
        return _wide(losses).sum(), torch.tensor(losses.numel(), device=losses.device)
    goal = task.goal(model, batch)
    loss, count = _hard(goal, smoothing)
    if teacher is None or distill == 0:
        return loss, count
    with torch.no_grad():
        taught = task.goal(teacher, batch)
    _must_match(goal, taught)
    return (1 - distill) * loss + distill * _soft(goal, taught.logits, temperature), count


def targets_in(task: Task, batch: Batch, examples: int) -> int:
    """How many targets a batch of that many examples has: the count of `batch_loss`, known before the model runs."""
    return examples if task.goal is None else count_targets(batch)


def must_be_trainable(task: Task, smoothing: float, teacher: nn.Module | None) -> None:
    """Refuse what `batch_loss` could not do, or would do without saying that it has no effect, before any work."""
    if task.goal is None and teacher is not None:
        raise Refused("A teacher needs logits, and a task of one's own has only a loss; train without a teacher.")
    if smoothing and (task.goal is None or task.kind in ("regression", "multiple-choice")):
        raise Refused(f"Labels of a task of kind {task.kind} cannot be smoothed; leave label_smoothing at 0.")


def must_answer(teacher: nn.Module, task: Task, device: torch.device) -> None:
    """Refuse a teacher that cannot be asked about the examples of a task: one of another kind, or with other tokens."""
    assert task.goal is not None
    batch = to_device(task.collate(task.batches()[-1][:1]), device)
    try:
        with evaluating(teacher), torch.no_grad():
            task.goal(teacher, batch)
    except (HeadcountError, RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
        if is_out_of_memory(error):
            raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Refused(
            f"The teacher ({type(teacher).__name__}) cannot be asked about {task.name} ({first:.160}); take a model of the "
            "same kind, with the same tokenizer."
        ) from None


def _hard(goal: LogitsAndTargets, smoothing: float) -> tuple[Tensor, Tensor]:
    """Against the data's targets."""
    logits, targets = goal
    if targets.is_floating_point():
        return ((logits - targets) ** 2).sum(), torch.tensor(targets.numel(), device=targets.device)
    rows, wanted = _wide(logits).flatten(0, -2), targets.flatten()
    summed = cross_entropy(rows, wanted, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    return summed, (wanted != IGNORED).sum()


def _soft(goal: LogitsAndTargets, taught: Tensor, temperature: float) -> Tensor:
    """Against what the teacher says, at the same targets."""
    logits, targets = goal
    if targets.is_floating_point():
        return ((logits - taught) ** 2).sum()
    student_log_probs, teacher_log_probs = (
        log_softmax(_wide(scores) / temperature, dim=-1) for scores in (logits, taught)
    )
    divergence = kl_div(student_log_probs, teacher_log_probs, reduction="none", log_target=True).sum(-1)
    return temperature**2 * divergence.masked_fill(targets == IGNORED, 0.0).sum()


def _wide(values: Tensor) -> Tensor:
    """At least float32: sums over many targets lose too much in less."""
    return values if values.dtype == torch.float64 else values.float()


def _must_match(goal: LogitsAndTargets, taught: LogitsAndTargets) -> None:
    if taught.logits.shape != goal.logits.shape:
        raise Refused(
            f"The teacher gives out numbers of shape {tuple(taught.logits.shape)} and the model {tuple(goal.logits.shape)}; "
            "take a teacher with the same outputs."
        )
    # classes are numbered by each model's own config; tokens by the tokenizer, which both were given
    if goal.targets.dim() == 1 and not torch.equal(goal.targets, taught.targets):
        raise BadData(
            "The teacher's config has the labels in another order than the model's; give both the same order."
        )
