"""Tokens as people read them: without the marks of tokenizers, with what is special said, a piece of a letter as its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ..data.encoding import special_tokens
from ..reporting.pictures.attention_page import Token

WORD_START = "▁"  # of SentencePiece, where a space was
BYTE_START = "Ġ"  # of byte-level tokenizers (GPT-2's), a space before a word
GOES_ON = "##"  # of WordPiece, before a piece that goes on with a word
BROKEN = "\ufffd"  # what bytes that make no letter are decoded to
BLANKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "⏎"}


def token_texts(tokenizer: Any, ids: Sequence[int]) -> tuple[Token, ...]:
    """What each token stands for, whether it is glued to the one before, and whether it is special."""
    special = special_tokens(tokenizer)
    forms = [str(form) for form in tokenizer.convert_ids_to_tokens([int(token) for token in ids])]
    mark = _mark_of(tuple(tokenizer.get_vocab()))
    return tuple(
        Token(form, False, True) if token in special else _read(tokenizer, int(token), form, mark)
        for token, form in zip(ids, forms, strict=True)
    )


def _mark_of(vocabulary: tuple[str, ...]) -> str:
    """The mark by which a vocabulary says where words begin or go on; "" where each token is a word.

    One that marks spaces may have ## as a token like others.
    """
    for mark in (BYTE_START, WORD_START, GOES_ON):
        if any(form.startswith(mark) and len(form) > len(mark) for form in vocabulary):
            return mark
    return ""


def _read(tokenizer: Any, token: int, form: str, mark: str) -> Token:
    if mark == GOES_ON:
        return Token(form.removeprefix(GOES_ON), form.startswith(GOES_ON) and form != GOES_ON)
    if mark == WORD_START:
        if form.startswith("<0x") and form.endswith(">"):
            return Token(f"‹{form[3:-1]}›", True)
        begins = form.startswith(WORD_START)
        return Token(_visible(form.replace(WORD_START, " ")[begins:]), not begins)
    letters = _letters()
    if mark == BYTE_START and all(letter in letters for letter in form):
        content = bytes(letters[letter] for letter in form)
        text = content.decode("utf-8", errors="replace")
        if BROKEN in text:
            return Token(f"‹{content.hex(' ').upper()}›", True)
        return Token(_visible(text.removeprefix(" ")), not text.startswith(" "))
    text = str(tokenizer.decode([token])) or form
    return Token(_visible(text.strip() or text), bool(mark) and not text.startswith(" "))


def _visible(text: str) -> str:
    """The text; the sign of a blank in the place of each, where there is nothing else to be seen."""
    return text if text.strip() else "".join(BLANKS.get(letter, letter) for letter in text) or "␣"


@cache
def _letters() -> dict[str, int]:
    """The letter that byte-level tokenizers write for each byte: itself where it can be seen, else the next free one."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + n): byte for n, byte in enumerate(others)}
