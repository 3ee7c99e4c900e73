"""Whether a tokenizer belongs to the model and knows the words of the data.

Any tokenizer gives numbers that a model computes something from. transformers makes one up, of a few special tokens, where a
folder has no tokenizer files; a model measured with it is at chance, without an error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import BadData

MOSTLY = 0.5  # share of unknown words from which a tokenizer is refused
MANY = 0.1  # share from which it is said
FEWEST = 20  # words below which a share says nothing
FAR_TOO_SMALL = 20  # times smaller than the embedding: embeddings are filled up and reused, but not by so much
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")
OWN = "put the model's own tokenizer (tokenizer.json, or vocab.txt and the like) into its folder"


class TokenCounts(NamedTuple):
    """What a tokenizer made of the data: its size, the largest token, the words (no special tokens), those unknown to it."""

    vocabulary: int | None
    largest: int
    words: int
    unknown: int

    def note(self, name: str) -> str:
        """A sentence about unknown words; empty where they are few."""
        if self.words < FEWEST or self.unknown <= MANY * self.words:
            return ""
        share = self.unknown / self.words
        return f"{share:.0%} of the words of {name} are unknown to the tokenizer: the model reads one token for all of them"


def counted(tokenizer: Any, lists: Sequence[Sequence[int]], name: str) -> TokenCounts:
    """The counts of some token lists of the data of this name; refused where most of the words are unknown."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    marks = {getattr(tokenizer, f"{mark}_token_id", None) for mark in ("bos", "eos", "pad", "cls", "sep")}
    special = frozenset(tokenizer.all_special_ids) - {unknown} | {token for token in marks if token is not None}
    words = [token for token in chain.from_iterable(lists) if token not in special]
    unknown_count = 0 if unknown in marks else words.count(unknown)
    largest = max(map(max, filter(None, lists)), default=0)
    if len(words) >= FEWEST and unknown_count > MOSTLY * len(words):
        raise BadData(
            f"{unknown_count / len(words):.0%} of the words of {name} are unknown to the tokenizer: it is not the model's, or "
            f"does not know this language; {OWN}, or take a model that reads such texts."
        )
    return TokenCounts(size_of(tokenizer), largest, len(words), unknown_count)


def size_of(tokenizer: Any) -> int | None:
    """How many tokens a tokenizer has, where it says so."""
    try:
        return len(tokenizer)
    except TypeError:
        return None


def check_vocabulary(vocabulary: int | None, largest: int, rows: int, model: str) -> None:
    """Refuse a tokenizer that gives tokens without a row in the embedding, or that has next to none of its rows."""
    if largest >= rows:
        raise BadData(
            f"The tokenizer does not belong to the model: it gave token {largest}, and {model} knows {rows:,}; {OWN}."
        )
    if vocabulary is not None and vocabulary * FAR_TOO_SMALL < rows:
        raise BadData(
            f"The tokenizer does not belong to the model: it has {vocabulary:,} tokens, and {model} knows {rows:,}; {OWN}, or "
            "if this is its own, cut the embedding to it (model.resize_token_embeddings(len(tokenizer)))."
        )


def check_loaded(tokenizer: Any, folder: str | Path) -> None:
    """Refuse a tokenizer of special tokens alone, and one that does not fit the config that lies beside it."""
    vocabulary, special = size_of(tokenizer), set(getattr(tokenizer, "all_special_ids", ()))
    if vocabulary is not None and vocabulary <= len(special):
        raise BadData(
            f"There is no tokenizer in {str(folder)!r}: what transformers makes up without its files has {vocabulary} special "
            f"tokens and no words; {OWN}, or give the object as tokenizer=."
        )
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return  # a name on the hub, or a folder with a tokenizer alone
    inner = [config, config.get("text_config")] if isinstance(config, dict) else []
    sizes = [part.get("vocab_size") for part in inner if isinstance(part, dict)]
    rows = next((size for size in sizes if isinstance(size, int) and size > 0), None)
    if rows is not None:
        check_vocabulary(vocabulary, 0, rows, f"the model in {str(folder)!r}")


def damaged_file(folder: Any) -> str:
    """The name of the first tokenizer file in a folder that is no JSON; empty where all are."""
    for path in (Path(folder) / name for name in FILES):
        try:
            if path.is_file():
                json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return path.name
    return ""
