"""Sliding windows over a text that is longer than what a model reads: every token is guessed once, with what is before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import BadData
from ..encoding import IGNORED


class Window(NamedTuple):
    """The tokens of a window, the same with `IGNORED` for those that an earlier window asked for, and the first new one."""

    ids: list[int]
    labels: list[int]
    first: int  # in the whole text


def windows(ids: Sequence[int], begin: Sequence[int], length: int, stride: int) -> list[Window]:
    """Windows of at most `length` tokens that begin `stride` apart, each with the token that begins a text before it.

    A window guesses the tokens that no window before it has seen: the first one all of its own, the others `stride`, of which
    each is read from at least `length - stride` tokens before it.
    """
    wide = length - len(begin)
    if not 1 <= stride <= wide:
        raise BadData(
            f"stride is {stride}; it must be 1 to {wide}, the tokens of the text that fit into max_length ({length})."
        )
    found, seen = list[Window](), 0
    for start in range(0, len(ids), stride):
        end = min(start + wide, len(ids))
        row = [*begin, *ids[start:end]]
        labels = [IGNORED] * (len(begin) + seen - start) + list(ids[seen:end])
        labels[0] = IGNORED  # is read from nothing
        if any(label != IGNORED for label in labels):
            found.append(Window(row, labels, seen))
        seen = end
        if end == len(ids):
            break
    return found
