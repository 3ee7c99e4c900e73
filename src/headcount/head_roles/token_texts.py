"""Tokens as people read them: without the marks of tokenizers, with what is special said, a piece of a letter as its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ..data.encoding import special_tokens
from ..reporting.pictures.attention_page import Token

WORD_START = "▁"  # of SentencePiece, where a space was
GOES_ON = "##"  # of WordPiece, before a piece that goes on with a word
BROKEN = "\ufffd"  # what bytes that make no letter are decoded to
BLANKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "⏎"}


def token_texts(tokenizer: Any, ids: Sequence[int]) -> tuple[Token, ...]:
    """What each token stands for, whether it is glued to the one before, and whether it is special."""
    special = special_tokens(tokenizer)
    forms = [str(form) for form in tokenizer.convert_ids_to_tokens([int(token) for token in ids])]
    pieces = _of_pieces(tuple(tokenizer.get_vocab()))
    return tuple(
        Token(form, False, True) if token in special else _read(tokenizer, int(token), form, pieces)
        for token, form in zip(ids, forms, strict=True)
    )


def _of_pieces(vocabulary: tuple[str, ...]) -> bool:
    """Whether a vocabulary marks what goes on with a word; one that marks spaces may have ## as a token like others."""
    return any(form.startswith(GOES_ON) and form != GOES_ON for form in vocabulary) and not _marks_spaces(vocabulary)


def _read(tokenizer: Any, token: int, form: str, pieces: bool) -> Token:
    if pieces:
        return Token(form.removeprefix(GOES_ON), form.startswith(GOES_ON) and form != GOES_ON)
    if form.startswith(WORD_START):
        return Token(_visible(form.replace(WORD_START, " ")[1:]), False)
    if form.startswith("<0x"):  # a byte, as SentencePiece writes it
        return Token(form, True)
    letters = _letters()
    if all(letter in letters for letter in form):  # bytes, as GPT-2 writes them
        content = bytes(letters[letter] for letter in form)
        text = content.decode("utf-8", errors="replace")
        if BROKEN in text:
            return Token(f"‹{content.hex(' ').upper()}›", True)
        return Token(_visible(text[1:] if text.startswith(" ") else text), not text.startswith(" "))
    text = str(tokenizer.decode([token])) or form
    return Token(
        _visible(text.strip() or text), _marks_spaces(tuple(tokenizer.get_vocab())) and not text.startswith(" ")
    )


def _marks_spaces(vocabulary: tuple[str, ...]) -> bool:
    """Whether a vocabulary has words that begin with the mark of a space; where it has none, each token is a word."""
    return any(form.startswith((WORD_START, "Ġ", " ")) and len(form) > 2 for form in vocabulary)


def _visible(text: str) -> str:
    """The text; the sign of a blank in the place of each, where there is nothing else to be seen."""
    return text if text.strip() else "".join(BLANKS.get(letter, letter) for letter in text) or "␣"


@cache
def _letters() -> dict[str, int]:
    """The letter that byte-level tokenizers write for each byte: itself where it can be seen, else the next free one."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + n): byte for n, byte in enumerate(others)}
