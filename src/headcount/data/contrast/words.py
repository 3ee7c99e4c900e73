"""Words of generated prompts, and which of them a tokenizer can take the place of one another in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Any


def _listed(words: str) -> list[str]:
    return words.split()


NAMES = _listed(
    "Mary John Anna Paul Sarah James Laura Peter Emma David Alice Robert Julia Thomas Kate Mark Lucy Henry Maria Daniel Sophie "
    "Frank Helen George Rachel Simon Clara Martin Nina Adam Eva Jack Rose Ben Grace Tom Amy Sam Linda Max Ruth Alex Jane Carl"
)
PLACES = _listed("store park school garden office market station library hospital museum restaurant beach")
GIFTS = _listed("book ring letter drink key box ball basket flower card ticket map")
NOUNS = _listed(
    "key:keys car:cars dog:dogs book:books door:doors tree:trees boy:boys girl:girls doctor:doctors teacher:teachers "
    "student:students house:houses table:tables picture:pictures letter:letters road:roads river:rivers farmer:farmers "
    "king:kings bird:birds child:children man:men woman:women friend:friends driver:drivers window:windows garden:gardens"
)
COLOURS = _listed("red blue green black white yellow brown pink orange grey")
THINGS = _listed("car hat cup ball box door chair book bag coat table shirt lamp boat")
EVENTS = _listed("war journey siege project reign drought trial expedition strike voyage")
NUMERALS = [f"{number:02}" for number in range(2, 99)]
MARK = "the"  # a word before the one looked at, so that it stands inside a sentence


class Vocabulary:
    """What a tokenizer makes of words inside a sentence; `notes` say where other words than usual had to be taken."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.notes: list[str] = []
        self._own: list[str] | None = None

    def tokens(self, word: str, before: str = MARK, gap: str = " ") -> tuple[int, ...]:
        """The tokens of a word behind another; none where they cannot be told from those before, or are unknown."""
        first, whole = (self._ids(text) for text in (before, f"{before}{gap}{word}"))
        tokens = whole[len(first) :]
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        return tokens if whole[: len(first)] == first and unknown not in tokens else ()

    def alike(self, words: Sequence[str], least: int, what: str) -> list[str]:
        """Those of the words that are one token each; if there are fewer than `least`, the next best.

        That is the most words of one length in tokens whose first tokens differ, or else words of the tokenizer's own
        vocabulary. A sentence in `notes` says so.
        """
        groups = self._groups(words)
        if len(groups.get(1, ())) >= least:
            return groups[1]
        length = max(groups, key=lambda size: (len(groups[size]), -size), default=0)
        if len(groups.get(length, ())) >= least:
            self._note(f"too few {what} are single tokens of this tokenizer, so those of {length} tokens are taken")
            return groups[length]
        own = self._vocabulary()
        if len(own) >= least:
            self._note(f"too few {what} are known to this tokenizer, so words of its own vocabulary stand in for them")
        return own

    def _groups(self, words: Sequence[str]) -> dict[int, list[str]]:
        """Words by their number of tokens, no two of a group beginning with the same one."""
        groups: dict[int, dict[int, str]] = defaultdict(dict)
        for word in words:
            tokens = self.tokens(word)
            if tokens:
                groups[len(tokens)].setdefault(tokens[0], word)
        return {length: list(by_first.values()) for length, by_first in groups.items()}

    def _vocabulary(self) -> list[str]:
        """Up to 60 words of letters that are single tokens."""
        if self._own is None:
            ids = sorted(self.tokenizer.get_vocab().values())
            words = (str(self.tokenizer.decode([number])).strip() for number in ids)
            fitting = (word for word in words if word.isalpha() and word.isascii() and len(self.tokens(word)) == 1)
            self._own = list(islice(dict.fromkeys(fitting), 60))
        return self._own

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
