"""Examples that say nearly the same: the same words, or one text inside the other. Tests take them for new evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..tasks import Task

FEWEST_WORDS = 4  # shorter texts stand inside others by chance
MOST = 0.01  # share of the examples up to which nothing is said
WORD = re.compile(r"\w+")
LEARNED_FROM = ("train", "recover", "score")  # what is said about these has no interval
USED_FOR = ("train", "recover", "score", "select", "report", "dev")  # in this order: what comes later is to be new
JUDGED = ("select", "report", "dev")
WORDS = {"train": "train on", "recover": "train on", "score": "score on", "select": "select on"}
WORDS |= {"report": "report on", "dev": "measure on"}


def near_copies(sets: Sequence[Sequence[tuple[str, ...]]]) -> list[list[int]]:
    """For every text of every set, in which of the sets a near copy of it stands: bit `n` of a number for the set `n`.

    A text is one string, or two. Near copies have the same words in the same order, whatever the case and the punctuation
    (of pairs, both texts); or one of them, of four words or more, stands whole inside the other (not of pairs). Time and
    memory grow as the texts do.
    """
    normalized_sets = [
        [tuple(" ".join(WORD.findall(text.casefold())) for text in example) for example in texts] for texts in sets
    ]
    holders: dict[tuple[str, ...], list[int]] = {}  # of the same words: how many examples each set has
    for number, texts in enumerate(normalized_sets):
        for words in texts:
            holders.setdefault(words, [0] * len(sets))[number] += 1
    where = {
        words: sum(1 << number for number, count in enumerate(counts) if count) for words, counts in holders.items()
    }
    near = dict.fromkeys(holders, 0)
    for outer, inner in _inside([words[0] for words in holders if len(words) == 1]):
        near[outer,] |= where[inner,]
        near[inner,] |= where[outer,]
    set_bits = []
    for number, texts in enumerate(normalized_sets):
        # itself is no copy of itself
        again = {
            words: where[words] if holders[words][number] > 1 else where[words] & ~(1 << number) for words in texts
        }
        set_bits.append([near[words] | again[words] for words in texts])
    return set_bits


def _inside(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of texts of which the first holds the second, word by word; no text is there twice."""
    # what may stand inside another is looked up by its first four words, then by its length, then by all of it
    starts: dict[str, dict[int, set[str]]] = {}
    ends = [_ends(text) for text in texts]
    for text, stops in zip(texts, ends, strict=True):
        if len(stops) >= FEWEST_WORDS:
            starts.setdefault(text[: stops[FEWEST_WORDS - 1]], {}).setdefault(len(stops), set()).add(text)
    pairs = []
    for text, stops in zip(texts, ends, strict=True):
        begin = 0
        for place in range(len(stops) - FEWEST_WORDS + 1):
            candidates = starts.get(text[begin : stops[place + FEWEST_WORDS - 1]])
            for length, inner in () if candidates is None else candidates.items():
                if length < len(stops) and place + length <= len(stops):
                    piece = text[begin : stops[place + length - 1]]
                    if piece in inner:
                        pairs.append((text, piece))
            begin = stops[place] + 1
    return pairs


def _ends(text: str) -> list[int]:
    """Where each word ends in a text with one space between them."""
    return [end - 1 for end in accumulate(len(word) + 1 for word in text.split(" "))]


def notes(tasks: Mapping[str, Task]) -> list[str]:
    """What ought to be said about near copies among the examples of these roles, in one sentence each; nothing of groups.

    Nothing either where they are few, and of sets that are only learned from.
    """
    if any(task.clusters is not None for task in tasks.values()):
        return []
    text_tasks = {role: task for role, task in tasks.items() if task.texts is not None}
    sets = [
        [task.texts(number) for number in range(task.size)] for task in text_tasks.values() if task.texts is not None
    ]
    set_bits = dict(zip(text_tasks, near_copies(sets), strict=True))
    bit = {role: 1 << number for number, role in enumerate(text_tasks)}
    measured = [role for role in text_tasks if role not in LEARNED_FROM]
    size = sum(text_tasks[role].size for role in measured)
    within = sum(bool(near & bit[role]) for role in measured for near in set_bits[role])
    sentences = []
    if within > MOST * size:
        sentences.append(
            f"{within:,} of {size:,} examples are near copies of others (the same words, or one inside the other): intervals "
            "take them for independent; name what belongs together with --group"
        )
    for role in (role for role in JUDGED if role in text_tasks):
        before = [earlier_role for earlier_role in USED_FOR[: USED_FOR.index(role)] if earlier_role in text_tasks]
        earlier_bits = sum(bit[earlier_role] for earlier_role in before)
        copies = sum(bool(near & earlier_bits) for near in set_bits[role])
        if copies > MOST * text_tasks[role].size:
            sentences.append(
                f"{copies:,} of {text_tasks[role].size:,} examples to {WORDS[role]} are near copies of examples to "
                f"{' or '.join(dict.fromkeys(WORDS[earlier_role] for earlier_role in before))}: they are not quite new; "
                "keep what belongs together in one set with --group"
            )
    return sentences
