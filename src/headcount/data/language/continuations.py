"""Texts of two parts, of which a model reads the first and is asked for the second: tokens and their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import BadData
from ..encoding import IGNORED, beginning, padding_token


class Continuation(NamedTuple):
    """The tokens of a context and what follows it, and where that begins; `shortened` if the context lost its start."""

    ids: list[int]
    start: int
    shortened: bool = False

    @property
    def targets(self) -> list[int]:
        """At every position the token that is asked for there: the next one, from the one before `start` on."""
        return [IGNORED] * (self.start - 1) + self.ids[self.start :] + [IGNORED]


def continuations(
    tokenizer: Any, pairs: Sequence[tuple[str, str]], limit: int, places: Sequence[str]
) -> list[Continuation]:
    """Contexts and what follows them as tokens, cut off at the start of the context after `limit` tokens.

    Both are read as one text, so that the words at the seam are those of the text. Spaces at the end of a context belong to
    what follows. A text begins as the tokenizer begins texts; an empty context is the token that ends or begins texts.
    `places` says where each pair is from, for messages.
    """
    moved = [(context.rstrip(), context[len(context.rstrip()) :] + rest) for context, rest in pairs]
    contexts = list(dict.fromkeys(context for context, _ in moved))
    lengths = dict(zip(contexts, map(len, _ids(tokenizer, contexts)), strict=True))
    wholes = _ids(tokenizer, [context + rest for context, rest in moved])
    begin = beginning(tokenizer)
    found = []
    for (context, _), whole, place in zip(moved, wholes, places, strict=True):
        first = begin or ([] if lengths[context] else _empty(tokenizer))
        asked = len(whole) - min(lengths[context], len(whole) - 1)  # a token at the seam is asked for
        if not whole or asked + max(1, len(first)) > limit:
            raise BadData(
                f"What follows the context in {place} is {asked if whole else 0} tokens long, and it must be 1 to "
                f"{limit - max(1, len(first))}; mend that row, or give a larger max_length."
            )
        kept = whole[-(limit - len(first)) :]
        ids = [*first, *kept]
        found.append(Continuation(ids, len(ids) - asked, len(kept) < len(whole)))
    return found


def _ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    filled = [text for text in texts if text]
    read = iter(tokenizer(filled, add_special_tokens=False, verbose=False)["input_ids"] if filled else [])
    return [list(next(read)) if text else [] for text in texts]


def _empty(tokenizer: Any) -> list[int]:
    """A token to read first where there is no context."""
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return [next((token for token in ids if token is not None), padding_token(tokenizer))]
