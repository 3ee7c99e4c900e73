"""Logits of classes as those of tokens: where a classifier reads the end of the residual stream at one position, linearly.

A classifier on GPT-2 or Llama reads the last token, a ViT the first one, through the final norm alone: what each unit adds to a
class is told as for tokens. A pooler with a nonlinearity (BERT, RoBERTa) or a mean over tokens stands between; that is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..data.encoding import IGNORED
from ..errors import Refused
from .norms import is_close
from .stream import Trace, ending_of


def at_positions(root: nn.Module, trace: Trace, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (examples, tokens, classes) and targets (examples, tokens) for logits (examples, classes) and labels (examples,).

    The targets are ignored but at the position that the classifier reads, which `trace` shows.
    """
    head = ending_of(root)
    if len(trace.unembedding) == 1:
        given, own = trace.unembedding[0]
        for stream in _streams(trace, given) if own.dim() == 2 else [given]:
            found = (stream == given[:, None]).all(-1) if own.dim() == 2 else (own == logits[:, None]).all(-1)
            if not bool(found.any(1).all()):
                continue
            # the last of several that are the same
            place = found.shape[1] - 1 - found.flip(1).int().argmax(1)
            full = head(stream.to(next(head.parameters()))) if own.dim() == 2 else own
            rows = torch.arange(len(labels), device=full.device)
            if not is_close(full[rows, place], logits):
                continue
            trace.unembedding[0] = stream, full
            targets = torch.full(full.shape[:2], IGNORED, device=full.device)
            targets[rows, place] = labels.to(full.device)
            return full, targets
    raise Refused(
        f"The classifier of {type(root).__name__} does not read the end of the residual stream at one position, through a norm "
        "at most (a pooler with a nonlinearity, or a mean over tokens, stands between), so what each unit adds to a class "
        "cannot be told."
    )


def _streams(trace: Trace, given: Tensor) -> Iterator[Tensor]:
    """What norms and layers gave that a row of it may have been taken from, the last ones first."""
    for calls in [*reversed(list(trace.norms.values())), *reversed(list(trace.layers.values()))]:
        for _, gave in calls:
            if gave.dim() == 3 and gave.shape[0] == given.shape[0] and gave.shape[-1] == given.shape[-1]:
                yield gave
