"""What a model prefers after a prompt: logit difference, probability difference, KL divergence, accuracy; per example.

All of them read the logits at one position, (examples, vocabulary), and the first tokens of the answers. The logit difference
is the mean logit of the right answers less that of the wrong ones (Wang et al. 2023); the probability difference takes the
sum of the probabilities on either side (Hanna et al. 2023). Accuracy: the best right answer is above every wrong one. The
loss is the negative logarithm of the share that right answers have of the probability of all answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import BadData
from ...stats.metrics import CLASSIFIED, Metric, metric
from ..encoding import IGNORED
from ..losses import Batch, logits_of, next_logits
from ..tasks import Measure

if TYPE_CHECKING:
    from ..tasks import Task

INPUTS = ("input_ids", "attention_mask")
CLEAN, CORRUPTED, DISTRIBUTION = "clean_value", "corrupted_value", "clean_log_probabilities"  # of the whole model
REFERRING = ("kl", "normalised")  # metrics that compare with the whole model


def asked_logits(model: nn.Module, batch: Batch) -> Tensor:
    """The logits at the position where each example is asked, in float32 at least: (examples, vocabulary)."""
    places, where = batch["at"].unique(return_inverse=True)  # positions, and for each example which of them it is
    if bool(batch["masked"].any()):
        logits = _masked_logits(model, batch)
        logits = logits[:, places.to(logits.device)]
    elif "MaskedLM" in type(model).__name__:
        raise BadData(
            f"{type(model).__name__} guesses masked words, and the prompts have none; write [MASK] where the answer belongs, or "
            "take a causal language model."
        )
    else:
        logits = next_logits(model, batch, "contrast", places.to(batch["input_ids"].device))
    rows = torch.arange(len(logits), device=logits.device)
    asked = logits[rows, where.to(logits.device)]
    return asked if asked.dtype == torch.float64 else asked.float()


def _masked_logits(model: nn.Module, batch: Batch) -> Tensor:
    if "CausalLM" in type(model).__name__ or "LMHeadModel" in type(model).__name__:
        raise BadData(f"{type(model).__name__} does not guess masked words; give prompts that end before the answer.")
    logits = logits_of(model, {name: batch[name] for name in INPUTS})
    if logits.dim() != 3 or logits.shape[:2] != batch["input_ids"].shape:
        raise BadData(
            f"{type(model).__name__} gives out numbers of shape {tuple(logits.shape)}; a contrast task with masks needs one for "
            "every word of the vocabulary at every token: load it with AutoModelForMaskedLM."
        )
    return logits


# --- values of one example ------------------------------------------------------------------------------------------


def _picked(values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The values of some tokens of each example, and which of them there are: (examples, most answers) both."""
    tokens = tokens.to(values.device)
    there = tokens != IGNORED
    return values.gather(1, tokens.clamp(min=0)), there


def _mean(values: Tensor, tokens: Tensor) -> Tensor:
    picked, there = _picked(values, tokens)
    return (picked * there).sum(1) / there.sum(1)


def _log_sum(values: Tensor, tokens: Tensor) -> Tensor:
    picked, there = _picked(values, tokens)
    return picked.masked_fill(~there, -torch.inf).logsumexp(1)


def logit_difference(logits: Tensor, batch: Batch) -> Tensor:
    """Mean logit of the right answers less that of the wrong ones: (examples,)."""
    return _mean(logits, batch["right"]) - _mean(logits, batch["wrong"])


def probability_difference(logits: Tensor, batch: Batch) -> Tensor:
    """Probability of all right answers less that of all wrong ones: (examples,)."""
    logs = logits.log_softmax(1)
    return _log_sum(logs, batch["right"]).exp() - _log_sum(logs, batch["wrong"]).exp()


def divergence(logits: Tensor, batch: Batch) -> Tensor:
    """KL divergence of what is said now from what the whole model says about the clean prompt, in nats: (examples,)."""
    _needs(batch, DISTRIBUTION, "kl")
    wanted, given = batch[DISTRIBUTION].to(logits.device), logits.log_softmax(1)
    return (wanted.exp() * (wanted - given)).sum(1)


def answer_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Minus the logarithm of the right answers' share of the probability of all answers: (examples,)."""
    right, wrong = _log_sum(logits, batch["right"]), _log_sum(logits, batch["wrong"])
    return torch.logaddexp(right, wrong) - right


VALUES: Mapping[str, Callable[[Tensor, Batch], Tensor]] = {
    "logit-difference": logit_difference,
    "probability-difference": probability_difference,
    "kl": divergence,
    "normalised": logit_difference,  # which it is a fixed multiple of, apart from a constant
    "loss": answer_loss,
}


def values_of(task: Task, model: nn.Module, batch: Batch) -> Tensor:
    """The value of every example of a contrast task by its metric, differentiable: (examples,).

    Of `normalised` it is the logit difference, of which that is a linear function. Accuracy has no gradient and is refused.

    Args:
        task: A contrast task.
        model: The model.
        batch: A batch of the task, `task.collate(numbers)`, on the model's device.

    Returns:
        A number per example, on the model's device.

    Examples:
        >>> model = hc.load("my-decoder")
        >>> task = hc.task("contrast:induction", tokenizer="my-decoder", limit=4)
        >>> hc.data.contrast.values_of(task, model, task.collate([0, 1])).shape
        torch.Size([2])
    """
    if task.kind != "contrast" or task.metric.name not in VALUES:
        raise BadData(
            f"{task.metric.name} of a {task.kind} task has no gradient for every example; take a contrast task measured by "
            f"{', '.join(VALUES)}."
        )
    return VALUES[task.metric.name](asked_logits(model, batch), batch)


# --- rows of metrics ------------------------------------------------------------------------------------------------


def contrast_loss(model: nn.Module, batch: Batch) -> Tensor:
    """`answer_loss` of every example of a batch."""
    return answer_loss(asked_logits(model, batch), batch)


def measure_of(name: str) -> Measure:
    """A metric of contrast tasks and the function that makes its rows."""
    if name in ("accuracy", "loss"):
        return Measure(metric(name, columns=CLASSIFIED), answer_rows)
    measured: Metric = metric(name)

    def rows(model: nn.Module, batch: Batch) -> np.ndarray:
        values = VALUES[name](asked_logits(model, batch), batch)
        if name != "normalised":
            return _as_rows(values)
        _needs(batch, CLEAN, name)
        return _as_rows(values, batch[CORRUPTED], batch[CLEAN])

    return Measure(measured, rows)


def answer_rows(model: nn.Module, batch: Batch) -> np.ndarray:
    """The first right answer; the same where the best right answer is above every wrong one, else the best wrong; the loss."""
    logits = asked_logits(model, batch)
    (right, right_there), (wrong, wrong_there) = (_picked(logits, batch[side]) for side in ("right", "wrong"))
    best_right = right.masked_fill(~right_there, -torch.inf).amax(1)
    best_wrong, where = wrong.masked_fill(~wrong_there, -torch.inf).max(1)
    label = batch["right"][:, 0].to(logits.device)
    said = torch.where(best_right > best_wrong, label, batch["wrong"].to(logits.device).gather(1, where[:, None])[:, 0])
    return _as_rows(label, said, answer_loss(logits, batch))


def _as_rows(*columns: Tensor) -> np.ndarray:
    return np.stack([column.detach().double().cpu().numpy() for column in columns], axis=1)


def _needs(batch: Batch, name: str, measured: str) -> None:
    if name not in batch:
        raise BadData(
            f"{measured} compares with the whole model on the clean prompts, which this task does not know; give it with "
            "task = hc.data.contrast.with_reference(task, model), before anything is masked."
        )
