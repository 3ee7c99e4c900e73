"""Needles in a haystack: sentences with an answer that nobody can guess, hidden at some depth of a long text, and a question.

Every prompt has a needle of its own, drawn by the seed and the number of the prompt; where no text is given, the haystack is made
of plain sentences, which never say what anybody keeps anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...data.text_files import decoded, display_name, located, unpacked
from ...errors import BadData
from .vocabulary import ids_of

DEPTHS = 10  # from the beginning of the haystack to its end, evenly
LETTERS = 4_000_000  # of a file; a haystack needs no more
SEARCHED = 120  # tokens back in which the end of a sentence is looked for
PEOPLE = (
    "Amara",
    "Bodil",
    "Casimir",
    "Dagny",
    "Edvin",
    "Farida",
    "Gideon",
    "Hjalmar",
    "Ingrid",
    "Jorrit",
    "Kenji",
    "Leocadia",
)
PLACES = (
    "cellar",
    "attic",
    "boathouse",
    "greenhouse",
    "workshop",
    "lighthouse",
    "stable",
    "pantry",
    "tower",
    "library",
)
COLOURS = ("copper", "green", "silver", "purple", "yellow", "white", "crimson", "black", "golden", "blue")
THINGS = (
    "violin",
    "kettle",
    "compass",
    "umbrella",
    "trumpet",
    "carpet",
    "mirror",
    "typewriter",
    "saddle",
    "globe",
    "clock",
    "drum",
)
COUNTS = ("three", "four", "five", "six", "seven", "eight", "nine", "twelve")
MATERIALS = ("paper", "wooden", "glass", "iron", "leather", "stone", "plastic", "cotton")
SMALL = ("lanterns", "buttons", "marbles", "spoons", "feathers", "candles", "bottles", "coins", "boxes", "shells")
WHO = (
    "The baker",
    "A neighbour",
    "The old captain",
    "My sister",
    "The teacher",
    "A farmer",
    "The young doctor",
    "Their uncle",
)
DID = ("walked to", "wrote about", "talked about", "drove past", "dreamt of", "looked at", "painted", "asked about")
WHAT = (
    "the harbour",
    "the market",
    "the long bridge",
    "the river",
    "the new road",
    "the school",
    "the station",
    "the hill",
)
WHEN = (
    "in the morning",
    "after lunch",
    "on a rainy day",
    "before the winter",
    "last week",
    "at night",
    "in early spring",
)
WHY = (
    "because the weather was fine",
    "and nobody was surprised",
    "while the others slept",
    "as people often do",
    "and then went home",
)


class Needle(NamedTuple):
    """A sentence with an answer in it, the question for it, and how the answer begins."""

    before: str
    answer: str
    after: str
    question: str


class Haystack(NamedTuple):
    """A long text as tokens, and its name."""

    ids: tuple[int, ...]
    name: str


class Hidden(NamedTuple):
    """A prompt: its tokens, and where the needle's answer stands in them."""

    ids: tuple[int, ...]
    start: int
    end: int
    depth: float


def needle(seed: int, number: int) -> Needle:
    """The needle of a prompt."""
    draw = random.Random(f"needle {seed} {number}")
    who, place = draw.choice(PEOPLE), draw.choice(PLACES)
    (one, other), (colour, shade) = draw.sample(THINGS, 2), draw.sample(COLOURS, 2)
    some = f"{draw.choice(COUNTS)} {draw.choice(MATERIALS)} {draw.choice(SMALL)}"
    answer = f" a {colour} {one}, {some} and a {shade} {other}"
    question = f"\n\nQuestion: What does {who} keep in the {place}?\nAnswer: {who} keeps"
    return Needle(f" {who} keeps", answer, f" in the {place}.", question)


def made_text(seed: int, sentences: int) -> str:
    """Plain sentences, as a haystack where none is given."""
    draw = random.Random(f"haystack {seed}")
    return " ".join(" ".join(map(draw.choice, (WHO, DID, WHAT, WHEN, WHY))) + "." for _ in range(sentences))


def read_haystack(haystack: str | Path | None, tokenizer: Any, longest: int, seed: int) -> Haystack:
    """The haystack as tokens: the text of a file, or made ones."""
    if haystack is None:
        return Haystack(tuple(ids_of(tokenizer, made_text(seed, longest // 6 + 20))), "made sentences")
    path = haystack_file(haystack)
    text = decoded(path, unpacked(path).data)[:LETTERS]
    return Haystack(tuple(ids_of(tokenizer, text)), display_name(path))


def haystack_file(haystack: str | Path) -> Path:
    """The file of that name, with or without .gz or .xz."""
    path = located(haystack)
    if path is None or not path.is_file():
        raise BadData(f"There is no file {str(haystack)!r:.120}; give a text file as the haystack (--haystack).")
    return path


def hidden_needles(
    haystack: Haystack, tokenizer: Any, begin: Sequence[int], count: int, lengths: Sequence[int], seed: int
) -> list[Hidden]:
    """So many prompts, lengths in turns and, for each of them, depths in turns."""
    ends = frozenset(
        token
        for token in set(haystack.ids)
        if str(tokenizer.decode([token])).rstrip(" ").endswith((".", "!", "?", "\n"))
    )
    return [_hidden(haystack, tokenizer, begin, lengths, seed, number, ends) for number in range(count)]


def _hidden(
    haystack: Haystack,
    tokenizer: Any,
    begin: Sequence[int],
    lengths: Sequence[int],
    seed: int,
    number: int,
    ends: frozenset[int],
) -> Hidden:
    length, depth = lengths[number % len(lengths)], (number // len(lengths)) % DEPTHS / (DEPTHS - 1)
    own = needle(seed, number)
    inside, start, end = _tokens(own, tokenizer)
    question = ids_of(tokenizer, own.question)
    room = length - len(begin) - len(inside) - len(question)
    if room < 1:
        raise BadData(
            f"A needle and its question have {length - room:,} tokens, and the prompt should have {length:,}; give longer "
            "prompts (--lengths)."
        )
    if room > len(haystack.ids):
        raise BadData(
            f"The haystack, {haystack.name}, has {len(haystack.ids):,} tokens, and a prompt of {length:,} tokens needs {room:,} "
            "of them; give a longer text (--haystack) or shorter prompts (--lengths)."
        )
    first = random.Random(f"window {seed} {number}").randint(0, len(haystack.ids) - room)
    hay = haystack.ids[first : first + room]
    cut = round(depth * room)
    stops = [place for place in range(cut, max(0, cut - SEARCHED), -1) if hay[place - 1] in ends]
    cut = stops[0] if stops else cut  # behind the end of a sentence, where there is one
    ids = (*begin, *hay[:cut], *inside, *hay[cut:], *question)
    offset = len(begin) + cut
    return Hidden(ids, offset + start, offset + end, depth)


def _tokens(own: Needle, tokenizer: Any) -> tuple[list[int], int, int]:
    """The tokens of a needle, and where its answer begins and ends among them."""
    whole = ids_of(tokenizer, own.before + own.answer + own.after)
    ends = []
    for part in (own.before, own.before + own.answer):
        ids = ids_of(tokenizer, part)
        ends.append(
            next((n for n, (a, b) in enumerate(zip(ids, whole, strict=False)) if a != b), min(len(ids), len(whole)))
        )
    if ends[0] >= ends[1]:
        raise BadData(
            "The tokenizer reads the needles as next to no tokens, so there is nothing to copy; leave retrieval out of the kinds."
        )
    return whole, ends[0], ends[1]
