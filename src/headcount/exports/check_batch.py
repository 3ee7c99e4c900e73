"""Inputs that an export is compared on: a few sentences as the model's tokenizer reads them, else made-up ones of its kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..data.encoding import loaded_tokenizer
from ..efficiency.random_inputs import has_length, main_input, random_batch
from ..errors import HeadcountError
from ..model.discovery import unwrap

TEXTS = ("Every head was measured before it was removed.", "Is what is left as good as the whole?")
LENGTH = 12


def check_batch(model: nn.Module, *, source: str | None = None, tokenizer: Any = None) -> dict[str, Any]:
    """Two examples of different lengths where the model reads text and its tokenizer is at hand, else random ones."""
    root = unwrap(model)
    if main_input(root) == "input_ids" and (tokenizer is not None or source is not None):
        try:
            return _text_batch(root, loaded_tokenizer(source if tokenizer is None else tokenizer))
        except (HeadcountError, OSError, ValueError, KeyError, TypeError):
            pass  # a model without a tokenizer, or one that does not pad: numbers do
    return random_batch(root, 2, LENGTH if has_length(root) else None)


def _text_batch(model: nn.Module, tokenizer: Any) -> dict[str, Any]:
    if tokenizer.pad_token_id is None:
        ids = [tokenizer(text)["input_ids"] for text in TEXTS]
        short = min(len(row) for row in ids)
        tokens = torch.tensor([row[:short] for row in ids])
        batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    else:
        batch = dict(tokenizer(list(TEXTS), padding=True, return_tensors="pt"))
    if int(batch["input_ids"].max()) >= model.get_input_embeddings().weight.shape[0]:
        raise ValueError("the tokenizer is another model's")
    if getattr(model.config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = batch["input_ids"][:, :4]
    return batch
