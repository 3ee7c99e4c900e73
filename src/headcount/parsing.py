"""Short texts that people type: lists of words, shares, and names with numbers in them. No torch."""

from __future__ import annotations

import re
import sys

from .errors import BadData


def words_in(text: str, *, keep_empty: bool = False) -> list[str]:
    """The words between commas, without the spaces around them; those between two commas only where they are wanted."""
    words = [word.strip() for word in text.split(",")]
    return words if keep_empty else [word for word in words if word]


def share_in(text: str) -> float | None:
    """The share that "40%" or "0.4" stands for, which may lie outside of 0 to 1; None for a text that is no share."""
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?%", text):
        return float(text[:-1]) / 100
    if re.fullmatch(r"\d*\.\d+", text):
        return float(text)
    return None


def bytes_in(text: str) -> float | None:
    """A size such as "6GiB", "500 MB" or "1000", in bytes; None for other texts."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(?:([kmgt])(i?))?b?", text.strip().lower())
    if found is None:
        return None
    power = "kmgt".index(found[2]) + 1 if found[2] else 0
    return float(found[1]) * (1024 if found[3] else 1000) ** power


def by_number(text: str) -> list[tuple[int, str]]:
    """A sort key under which layer 10 follows layer 9, and epoch-10 follows epoch-09."""
    key = []
    for place, part in enumerate(re.split(r"(\d+)", text)):  # text, digits, text, ...
        digits = part.lstrip("0")
        key.append((len(digits), digits) if place % 2 else (0, part))
    return key


class AllExamples(int):
    """A limit that limits nothing, written `all`."""

    def __str__(self) -> str:
        return "all"


def count_or_all(text: str) -> int:
    """A number of examples, or all of them."""
    if text.strip().lower() == "all":
        return AllExamples(sys.maxsize)
    try:
        return int(text)
    except ValueError:
        raise BadData(f"A limit is a number of examples, or all; I got {text[:40]!r}.") from None
