"""What a model is asked in each kind of task: the loss of every example, and the values that its metric is made of.

Losses are in float32, summed over an example's tokens, and do not depend on the padding or on the rest of the batch.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.functional import pad as filled

from ..errors import BadData
from ..stats.translation_scores import translation_rows
from .encoding import IGNORED
from .labels import Labels

Batch = Mapping[str, Any]
AT_ONCE = (
    2**27
)  # logits that are turned into losses at a time: float32 copies of all would not fit for large vocabularies
KEPT = "logits_to_keep"  # what transformers calls the positions that logits are computed for
NOT_INPUTS = ("labels", "references", "limits")


class LogitsAndTargets(NamedTuple):
    """What a model said, and what it should have said: its logits and the targets, in the numbers of its outputs.

    Classes: (examples, classes) and (examples,); tokens: (examples, tokens, vocabulary) and (examples, tokens), -100 where
    there is nothing to guess; numbers: (examples,) and (examples,), both floating point.
    """

    logits: Tensor
    targets: Tensor


# --- calling the model ----------------------------------------------------------------------------------------------


def model_inputs(batch: Batch) -> dict[str, Any]:
    """The part of a batch that the model takes."""
    return {name: value for name, value in batch.items() if name not in NOT_INPUTS}


def fitting_inputs(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs that the model's forward takes, with positions where padding on the left would shift them."""
    config = getattr(model, "config", None)
    ids = inputs.get("input_ids")
    positions = getattr(config, "max_position_embeddings", None)
    if ids is not None and isinstance(positions, int) and ids.shape[1] > positions > 0:
        raise BadData(
            f"A text has {ids.shape[1]} tokens and the model has {positions} positions; give the task max_length={positions}."
        )
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT wraps the model it adapts
    parameters = inspect.signature(inner.forward).parameters
    if all(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters.values()):
        return inputs
    if "token_type_ids" not in parameters:
        inputs = {name: value for name, value in inputs.items() if name != "token_type_ids"}
    mask = inputs.get("attention_mask")
    if mask is not None and "position_ids" in parameters and not bool(mask[:, 0].all()) and _counts_from_zero(inner):
        inputs = {**inputs, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    return inputs


def _counts_from_zero(model: nn.Module) -> bool:
    """Whether positions are 0, 1, 2, ...: RoBERTa's begin after its padding token, and it counts them itself."""
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    return all(getattr(table, "padding_idx", None) is None for table in tables)


@contextmanager
def _padding_known(model: nn.Module, pad: int | None) -> Iterator[None]:
    """Within the block the config names the token that fills the batch: by it decoders find the last token of a text."""
    config = getattr(model, "config", None)
    if pad is None or config is None or getattr(config, "is_encoder_decoder", False):
        yield
        return
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    before = [
        (subconfig, getattr(subconfig, "pad_token_id", None))
        for subconfig in {id(subconfig): subconfig for subconfig in (config, text)}.values()
    ]
    try:
        for subconfig, _ in before:
            subconfig.pad_token_id = pad
        yield
    finally:
        for subconfig, token in before:
            subconfig.pad_token_id = token


def _beyond_embedding(model: nn.Module, inputs: dict[str, Any]) -> BadData | None:
    """What to say where the tokenizer gave a token that the model has no embedding for; nothing where it did not."""
    ids = inputs.get("input_ids")
    table = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    rows = getattr(table, "num_embeddings", None)
    if ids is None or rows is None or int(ids.max()) < rows:
        return None
    return BadData(
        f"The tokenizer does not belong to the model: it gave token {int(ids.max())}, and {type(model).__name__} knows "
        f"{rows:,}; make the task with the model's own tokenizer."
    )


def logits_of(model: nn.Module, inputs: dict[str, Any], pad: int | None = None) -> Tensor:
    """The first thing that the model gives out, or what it calls logits, as it is."""
    with _padding_known(model, pad):
        try:
            output = model(**fitting_inputs(model, inputs))
        except IndexError as error:
            raise _beyond_embedding(model, inputs) or error from None
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    elif isinstance(output, tuple | list):
        output = output[0]
    if not isinstance(output, Tensor):
        raise BadData(
            f"{type(model).__name__} gives out {type(output).__name__} without logits; load the model with the head of this "
            "task (AutoModelForSequenceClassification, AutoModelForSeq2SeqLM, AutoModelForCausalLM, ...)."
        )
    return output


def _as_rows(*columns: Tensor) -> np.ndarray:
    return np.stack([column.detach().double().cpu().numpy() for column in columns], axis=1)


def count_targets(batch: Batch) -> int:
    """How many targets the goal of a batch has, without asking a model."""
    labels = batch.get("labels")
    if labels is None:  # language modelling: every token but the first
        return int(batch["attention_mask"][:, 1:].sum())
    return labels.numel() if labels.is_floating_point() else int((labels != IGNORED).sum())


# --- classes and numbers --------------------------------------------------------------------------------------------


def class_goal(
    labels: Labels, pad: int | None, model: nn.Module, batch: Batch, outputs: int | None = None
) -> LogitsAndTargets:
    """A row of logits and a class per example; `outputs` is how many there must be, where something depends on it."""
    logits = logits_of(model, model_inputs(batch), pad)
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise BadData(
            f"{type(model).__name__} gives out numbers of shape {tuple(logits.shape)}; classification needs one row of two or "
            "more per example: load it with AutoModelForSequenceClassification, or use the kind that fits it."
        )
    places = labels.outputs_for(getattr(model, "config", None), logits.shape[1])
    if outputs is not None and logits.shape[1] != outputs:
        raise BadData(
            f"{labels.source} has {outputs} labels and the model has {logits.shape[1]} outputs, which this metric must know; "
            "pass labels=[...] (--labels), one for each of the model's outputs in their order, or use accuracy."
        )
    return LogitsAndTargets(logits, torch.tensor(places, device=logits.device)[batch["labels"].to(logits.device)])


def classified(goal: LogitsAndTargets) -> tuple[Tensor, Tensor, Tensor]:
    """Label, prediction and cross entropy of every example, in the numbers of the model's outputs."""
    logits, meant = goal
    return meant, logits.argmax(1), cross_entropy(logits.float(), meant, reduction="none")


def class_loss(labels: Labels, pad: int | None, model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of every example."""
    return classified(class_goal(labels, pad, model, batch))[2]


def class_rows(labels: Labels, pad: int | None, outputs: int | None, model: nn.Module, batch: Batch) -> np.ndarray:
    """Label, prediction, loss; `outputs` is how many the model must have, where the metric depends on it."""
    return _as_rows(*classified(class_goal(labels, pad, model, batch, outputs)))


def number_goal(pad: int | None, model: nn.Module, batch: Batch) -> LogitsAndTargets:
    """A number and what it should be, per example."""
    logits = logits_of(model, model_inputs(batch), pad)
    if logits.dim() != 2 or logits.shape[1] != 1:
        raise BadData(
            f"{type(model).__name__} gives out numbers of shape {tuple(logits.shape)}; regression needs one per example: "
            "take a model with num_labels=1, or use classification."
        )
    return LogitsAndTargets(logits[:, 0].float(), batch["labels"].to(logits.device).float())


def number_loss(pad: int | None, model: nn.Module, batch: Batch) -> Tensor:
    """Squared error of every example."""
    guess, meant = number_goal(pad, model, batch)
    return (guess - meant) ** 2


def number_rows(pad: int | None, model: nn.Module, batch: Batch) -> np.ndarray:
    """Label, prediction, squared error."""
    guess, meant = number_goal(pad, model, batch)
    return _as_rows(meant, guess, (guess - meant) ** 2)


# --- tokens ---------------------------------------------------------------------------------------------------------


def summed_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy summed over each row's labels, those that are -100 left out: (rows, tokens, words) -> (rows,)."""
    together = max(1, AT_ONCE // max(1, logits[0].numel()))
    losses = [
        cross_entropy(part.float().flatten(0, 1), goal.flatten(), ignore_index=IGNORED, reduction="none")
        .view(goal.shape)
        .sum(1)
        for part, goal in zip(logits.split(together), labels.split(together), strict=True)
    ]
    return torch.cat(losses)


def _matching(model: nn.Module, logits: Tensor, labels: Tensor, auto: str) -> LogitsAndTargets:
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise BadData(
            f"{type(model).__name__} gives out numbers of shape {tuple(logits.shape)} for {tuple(labels.shape)} tokens; "
            f"this task needs one for every word of the vocabulary at every token: load it with {auto}."
        )
    return LogitsAndTargets(logits, labels)


Guessed = Callable[[nn.Module, Batch], LogitsAndTargets]


def next_tokens(model: nn.Module, batch: Batch) -> LogitsAndTargets:
    """The tokens after the first, each read from those before it."""
    logits = next_logits(model, batch, "language-modelling")
    goals = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED).to(logits.device)
    return LogitsAndTargets(logits, filled(goals[:, 1:], (0, 1), value=IGNORED))


def labelled_tokens(model: nn.Module, batch: Batch) -> LogitsAndTargets:
    """The tokens that a batch of texts has labels for, each read from all tokens before it."""
    logits = next_logits(model, batch, "language-modelling")
    return LogitsAndTargets(logits, filled(batch["labels"][:, 1:], (0, 1), value=IGNORED).to(logits.device))


def next_logits(model: nn.Module, batch: Batch, kind: str, only: Tensor | None = None) -> Tensor:
    """What a language model says comes after every token of a batch: (rows, tokens, vocabulary).

    With `only`, some positions of the tokens: after those alone, which models compute that can leave the others out.
    """
    _needs(model, encoder_decoder=False, kind=kind)
    if "MaskedLM" in type(model).__name__:
        raise BadData(f"{type(model).__name__} sees the words it would guess; use the kind masked-language-modelling.")
    inputs, tokens = {name: batch[name] for name in ("input_ids", "attention_mask")}, batch["input_ids"]
    if only is None or not _takes(model, KEPT):
        logits = _matching(model, logits_of(model, inputs), tokens, "AutoModelForCausalLM").logits
        return logits if only is None else logits[:, only.to(logits.device)]
    return _matching(model, logits_of(model, {**inputs, KEPT: only}), tokens[:, only], "AutoModelForCausalLM").logits


def _takes(model: nn.Module, argument: str) -> bool:
    """Whether the model's forward has an argument of that name."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return argument in inspect.signature(inner.forward).parameters


def hidden_tokens(model: nn.Module, batch: Batch) -> LogitsAndTargets:
    """The masked tokens."""
    logits = logits_of(model, model_inputs(batch))
    return _matching(model, logits, batch["labels"].to(logits.device), "AutoModelForMaskedLM")


def target_tokens(model: nn.Module, batch: Batch) -> LogitsAndTargets:
    """The target's tokens, each read from the source and the target before it."""
    _needs(model, encoder_decoder=True, kind="translation")
    labels = batch["labels"]
    logits = logits_of(model, {**model_inputs(batch), "labels": labels})  # the model shifts them its own way
    return _matching(model, logits, labels.to(logits.device), "AutoModelForSeq2SeqLM")


def asked_tokens(batch: Batch) -> Tensor:
    """The tokens that a batch of texts asks for, in one row: what a constant answer is counted from."""
    if "labels" in batch:
        return batch["labels"][batch["labels"] != IGNORED]
    return batch["input_ids"][:, 1:][batch["attention_mask"][:, 1:] != 0]


def token_loss(guessed: Guessed, model: nn.Module, batch: Batch) -> Tensor:
    """The summed loss of every example."""
    return summed_losses(*guessed(model, batch))


def token_rows(guessed: Guessed, model: nn.Module, batch: Batch) -> np.ndarray:
    """Summed loss, tokens."""
    logits, targets = guessed(model, batch)
    return _as_rows(summed_losses(logits, targets), (targets != IGNORED).sum(1))


def _needs(model: nn.Module, *, encoder_decoder: bool, kind: str) -> None:
    config = getattr(model, "config", None)
    if config is None or bool(getattr(config, "is_encoder_decoder", False)) == encoder_decoder:
        return
    if encoder_decoder:
        raise BadData(
            f"{type(model).__name__} is no encoder-decoder, which {kind} needs; use the kind language-modelling."
        )
    raise BadData(f"{type(model).__name__} is an encoder-decoder, which {kind} cannot use; use the kind translation.")


# --- generation -----------------------------------------------------------------------------------------------------


class Translations(NamedTuple):
    """What a model made of some sources, and which of them it had not ended when they were as long as they may get."""

    texts: list[str]
    unfinished: np.ndarray  # (examples,), bool


def translated(tokenizer: Any, beams: int, model: nn.Module, batch: Batch) -> Translations:
    """What the model makes of every source: greedy or by beam search, as many tokens as the batch's `limits` at most.

    Each is what it would be if it were alone: no limit counts but its own. The end token is not counted. Penalties and the
    like are the model's own generation settings; sampling is switched off.
    """
    _needs(model, encoder_decoder=True, kind="translation")
    if not hasattr(model, "generate"):
        raise BadData(
            f"{type(model).__name__} cannot generate; load it with AutoModelForSeq2SeqLM, or use metric='loss'."
        )
    positions = getattr(model.config, "max_position_embeddings", None)
    limits = batch["limits"]  # (examples,)
    limits = limits.clamp(max=positions - 1) if isinstance(positions, int) and positions > 1 else limits
    own, longest = model.generation_config, int(limits.max()) + 1  # with the end token
    ends = [] if own.eos_token_id is None else torch.as_tensor(own.eos_token_id).reshape(-1).tolist()
    # without an end token anything will do: what comes after the limit is cut off below
    end = ends[0] if ends else own.pad_token_id or 0
    # max_length counts the start token as well; max_new_tokens next to the model's own max_length is a warning per batch
    length = {"max_length": longest + 1} if own.max_new_tokens is None else {"max_new_tokens": longest}
    settings = {"num_beams": beams, "do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
    ending = [_ending(limits.repeat_interleave(beams), end)]
    ids = model.generate(**fitting_inputs(model, model_inputs(batch)), **length, **settings, logits_processor=ending)
    new_tokens = ids[:, 1:]  # (examples, tokens), without the start token
    within = torch.arange(new_tokens.shape[1], device=ids.device) < limits[:, None]
    ended = (within & torch.isin(new_tokens, torch.tensor(ends, dtype=ids.dtype, device=ids.device))).any(1)
    kept_ids = [row[: 1 + limit] for row, limit in zip(ids.tolist(), limits.tolist(), strict=True)]
    return Translations(tokenizer.batch_decode(kept_ids, skip_special_tokens=True), (~ended).cpu().numpy())


def _ending(limits: Tensor, end: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A logits processor that leaves a row nothing but the end token when it has as many new tokens as its limit.

    `limits` (rows,) has one for every beam of every example. Forced so, the beams of an example keep their order.
    """
    first = int(limits.min())

    def processed(ids: Tensor, scores: Tensor) -> Tensor:  # (rows, start token and new ones), (rows, words)
        token_count = ids.shape[1] - 1
        if token_count < first:
            return scores
        only = torch.full_like(scores, -math.inf)
        only[:, end] = 0.0
        return torch.where((limits <= token_count)[:, None], only, scores)

    return processed


def translation_scores(name: str, tokenizer: Any, beams: int, model: nn.Module, batch: Batch) -> np.ndarray:
    """What bleu or chrf needs of every translation, and whether it had to be ended."""
    texts, unfinished = translated(tokenizer, beams, model, batch)
    return np.column_stack([translation_rows(name, texts, batch["references"]), unfinished])
