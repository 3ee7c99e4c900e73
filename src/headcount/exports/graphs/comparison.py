"""A graph beside its model, on several sizes of batches: how far they are apart, and how far they may be."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ...efficiency.random_inputs import has_length, random_batch
from ...errors import BadCheckpoint, BadMeasure, CheckFailed, Refused
from ...evaluation.evaluator import to_device
from ...formatting import bytes_text
from ...model.equivalence import evaluating
from ..formats import Check
from .folder import NOTES
from .tracing import in_float32, plain_results

SHAPES = ((1, 4), (3, 9), (5, 20))  # examples and tokens of made-up batches; the graph is traced on another shape
# The largest difference, relative to the largest output. Kernels of two runtimes sum in different orders: 5e-7 for two layers,
# 1.2e-6 for six, and more for more. A graph that is wrong is off by far more: one head of a tiny model is per cents.
ALLOWED = 1e-4
# The same for int8, root mean squares: weights rounded to one of 127 steps, and inputs to one of 255, move outputs by 1 to 10 %.
# That the graph is right has been shown before it was quantised; this refuses a model that eight bits ruin.
ALLOWED_INT8 = 0.2

Run = Callable[[dict[str, Any]], dict[str, np.ndarray]]


class Difference(NamedTuple):
    """How far a graph is from its model: the largest difference over the largest output, the same of root mean squares, and how
    often the largest entry of the first output is the same one."""

    largest: float
    root_mean_square: float
    agreement: float


def compared(model: Any, run: Run, inputs: list[str], batches: list[dict[str, Any]]) -> Difference:
    """The outputs of a graph beside those of its model on batches, where nothing is padding."""
    apart, outputs, same = [], [], []
    for batch in batches:
        complete = _complete(model, inputs, to_device(batch, torch.device("cpu")))
        with torch.no_grad(), evaluating(model):
            keywords = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
            wanted = plain_results(model(**complete, **keywords))
        got = run({name: complete[name].numpy() for name in inputs})
        for number, (name, value) in enumerate(wanted.items()):
            if got[name].shape != tuple(value.shape):
                raise CheckFailed(
                    f"The graph gives {name} as {got[name].shape}, and the model as {tuple(value.shape)}."
                )
            here, there = (_unpadded(array.astype(np.float64), complete) for array in (got[name], value.numpy()))
            apart.append((here - there).ravel())
            outputs.append(there.ravel())
            if number == 0:
                same.append((here.argmax(-1) == there.argmax(-1)).ravel())
    difference, output = np.concatenate(apart), np.concatenate(outputs)
    if not np.isfinite(difference).all():
        return Difference(float("inf"), float("inf"), 0.0)
    largest = np.abs(difference).max(initial=0.0) / max(np.abs(output).max(initial=0.0), 1e-12)
    mean = np.sqrt((difference**2).mean()) / max(np.sqrt((output**2).mean()), 1e-12)
    return Difference(float(largest), float(mean), float(np.concatenate(same).mean()))


def _complete(model: Any, inputs: list[str], batch: dict[str, Any]) -> dict[str, Any]:
    """A batch with everything that the graph reads: nothing is padding and all is one sentence where it does not say."""
    unread = [name for name in batch if name not in inputs and name != "token_type_ids"]
    if unread:
        raise BadCheckpoint(
            f"The batch has {unread[0]}, and the graph reads {', '.join(inputs)}; compare on a batch of these (batch=)."
        )
    fills = {"attention_mask": torch.ones_like, "token_type_ids": torch.zeros_like}
    complete = {}
    for name in inputs:
        if name not in batch and (name not in fills or "input_ids" not in batch):
            raise BadCheckpoint(f"The batch has no {name}, which {type(model).__name__} reads; give batch= with it.")
        value = batch[name] if name in batch else fills[name](batch["input_ids"])
        complete[name] = value.float() if value.is_floating_point() else value
    return complete


def _unpadded(array: np.ndarray, batch: dict[str, Any]) -> np.ndarray:
    """The entries of an output for tokens that are no padding: what a model computes at the others means nothing."""
    mask = batch.get("attention_mask")
    if mask is None or "decoder_input_ids" in batch or array.shape[:2] != tuple(mask.shape):
        return array
    return array[mask.numpy().astype(bool)]


def other_batches(model: Any) -> list[dict[str, Any]]:
    """Made-up batches of several sizes, of which the larger ones have padding: a graph may be right on one size alone."""
    made = []
    for size, length in SHAPES:
        try:
            batch = random_batch(model, size, length if has_length(model) else None, seed=size)
        except BadMeasure:  # longer than the model's positions
            continue
        if size > 1 and "attention_mask" in batch:
            batch["attention_mask"][1, length // 2 :] = 0
        made.append(batch)
    return made


def checked(model: nn.Module, folder: Path, run: Run, runtime: str, batch: dict[str, Any]) -> Check:
    """What a graph gives beside its model: on a batch, and on made-up ones of other sizes."""
    root = in_float32(model)
    how = json.loads((folder / "config.json").read_text(encoding="utf-8"))[NOTES]
    found = compared(root, run, how["inputs"], [batch, *other_batches(root)])
    count = len(next(iter(batch.values())))
    words = f"outputs for {count} examples, and for 1, 3 and 5 made-up ones, over the largest output,"
    if not how["int8"]:
        return Check(runtime, found.largest, ALLOWED, words)
    notes = (
        f"int8: the largest difference is {found.largest:.1%} of the largest output, and the largest entry is the same one in "
        f"{found.agreement:.1%} of the cases; measure the quality on your data before you use it",
    )
    return Check(
        runtime,
        found.root_mean_square,
        ALLOWED_INT8,
        words.replace("largest output", "mean output (root mean squares)"),
        notes,
    )


def proved(model: Any, run: Run, inputs: list[str], name: str) -> None:
    """`Refused` unless a graph gives what the model gives on made-up batches, before its weights are rounded."""
    found = compared(model, run, inputs, other_batches(model))
    if not found.largest <= ALLOWED:
        raise Refused(
            f"{name} cannot hold {type(model).__name__}: its graph differs from the model by {found.largest:.1e} of the largest "
            "output, before anything is rounded; export it for transformers (--to transformers) instead."
        )


def size_note(before: int, after: int) -> str:
    """How much smaller eight bits made the weights."""
    return f"int8: {bytes_text(after)} instead of {bytes_text(before)} in float32"
