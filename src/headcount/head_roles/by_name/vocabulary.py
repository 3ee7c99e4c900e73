"""Tokens for prompts of no text: which are ordinary, which one a prompt begins with, and which words are one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ...data.checks.tokenizers import check_vocabulary
from ...data.encoding import beginning, special_tokens
from ...errors import BadData, Refused


def rows_of(root: nn.Module) -> int:
    """How many tokens the model has embeddings for; `Refused` for one that reads none."""
    table = getattr(root, "get_input_embeddings", lambda: None)()
    weight = getattr(table, "weight", None)
    if weight is None or weight.dim() != 2:
        raise Refused(f"{type(root).__name__} has no table of embeddings, so there are no tokens that it could read.")
    return int(weight.shape[0])


def ordinary_tokens(root: nn.Module, tokenizer: Any = None) -> list[int]:
    """Tokens that stand for pieces of texts, of the tokenizer or, without one, of the embeddings."""
    rows = rows_of(root)
    if tokenizer is None:
        config = getattr(root, "config", None)
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        listed = [getattr(config, name, None) for name in names]
        special = {token for one in listed for token in (one if isinstance(one, list) else [one])}
        return [token for token in range(rows) if token not in special]
    vocabulary = tokenizer.get_vocab()
    check_vocabulary(len(tokenizer), max(vocabulary.values(), default=0), rows, type(root).__name__)
    added = set(getattr(tokenizer, "added_tokens_decoder", {})) | special_tokens(tokenizer)
    return sorted(set(vocabulary.values()) - added)


def begin_of(root: nn.Module, tokenizer: Any = None) -> list[int]:
    """What every prompt begins with: the token that begins texts or, where there is none, the one that ends them.

    Without it the first word of a prompt would be where attention that goes nowhere ends up.
    """
    if tokenizer is not None:
        own = beginning(tokenizer)
        marks = [tokenizer.bos_token_id, tokenizer.eos_token_id]
        return own or [token for token in marks if token is not None][:1]
    config = getattr(root, "config", None)
    marks = [getattr(config, name, None) for name in ("bos_token_id", "eos_token_id")]
    return [token for token in marks if isinstance(token, int) and 0 <= token < rows_of(root)][:1]


def ids_of(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a piece of text, nothing put around it."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def single_tokens(tokenizer: Any, words: Sequence[str]) -> dict[str, int]:
    """The words that are one token each: after a space or without one, whichever more of them are."""
    forms = []
    for space in (" ", ""):
        read = {word: ids_of(tokenizer, space + word) for word in words}
        forms.append({word: ids[0] for word, ids in read.items() if len(ids) == 1 and ids[0] != tokenizer.unk_token_id})
    best = max(forms, key=len)
    return best if len(set(best.values())) == len(best) else {}


def needs_tokenizer(tokenizer: Any, kind: str) -> None:
    """Refuse to look for heads of a kind whose prompts are texts where there is no tokenizer."""
    if tokenizer is None:
        raise BadData(f"Prompts for {kind} heads are texts; give tokenizer=, the object or the folder of the model.")
