"""Inputs that an export is compared on: two short texts as the model's tokenizer reads them, else made-up ones of its kind."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ..data.encoding import loaded_tokenizer, padded
from ..efficiency.random_inputs import has_length, main_input, random_batch
from ..errors import BadMeasure, HeadcountError
from ..model.discovery import unwrap

TEXTS = ("Every head was measured before it was removed, and so was every layer of the model.", "Is it as good?")
LENGTH = 12  # tokens of the longest
TARGET = 4  # tokens that a decoder beside an encoder is given


def check_batch(model: nn.Module, *, source: str | None = None, tokenizer: Any = None) -> dict[str, Any]:
    """Two examples of different lengths where the model reads text and its tokenizer is at hand, else random ones of one length.

    Texts are filled up on the right, and `attention_mask` says where: what a model gives there means nothing.
    """
    root = unwrap(model)
    if _reads_text_alone(root) and (tokenizer is not None or source is not None):
        try:
            return _text_batch(root, loaded_tokenizer(source if tokenizer is None else tokenizer))
        except (HeadcountError, OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # no tokenizer there, or one of another model: numbers do
    try:
        return random_batch(root, 2, _length(root) if has_length(root) else None)
    except BadMeasure:
        raise BadMeasure(
            f"I do not know what a batch for {type(root).__name__} looks like, and nothing is exported that was not compared; "
            "give batch=, the model's inputs by name."
        ) from None


def _reads_text_alone(root: nn.Module) -> bool:
    return main_input(root) == "input_ids" and "pixel_values" not in inspect.signature(root.forward).parameters


def _length(root: nn.Module) -> int:
    """Tokens of the longest example: few, and no more than the model has positions."""
    config = getattr(root, "config", None)
    positions = [getattr(config, name, None) for name in ("max_position_embeddings", "max_target_positions")]
    return min([LENGTH, *(most - 2 for most in positions if isinstance(most, int) and most > 2)])  # RoBERTa skips two


def _text_batch(root: Any, tokenizer: Any) -> dict[str, Any]:
    rows = [dict(tokenizer(text, truncation=True, max_length=_length(root))) for text in TEXTS]
    most = max(max(row["input_ids"]) for row in rows)
    if most >= root.get_input_embeddings().weight.shape[0]:
        raise ValueError("the tokenizer is another model's")
    fill = {"input_ids": _filler(root, tokenizer), "attention_mask": 0}
    known = inspect.signature(root.forward).parameters
    batch = {
        name: padded([row[name] for row in rows], fill.get(name, 0))
        for name in rows[0]
        if name in fill or (name in known and name != "labels")
    }
    if getattr(root.config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = batch["input_ids"][:, :TARGET]
    return batch


def _filler(root: Any, tokenizer: Any) -> int:
    """A token to fill up with: that of the tokenizer or the config, else any, as it is masked."""
    for owner in (tokenizer, root.config):
        token = getattr(owner, "pad_token_id", None)
        if isinstance(token, int) and 0 <= token < root.get_input_embeddings().weight.shape[0]:
            return token
    return 0
