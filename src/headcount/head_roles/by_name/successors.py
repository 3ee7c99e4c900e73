"""Words in a row (days, months, numbers, letters) whose successor a head may promote (Gould et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import BadData
from ...evaluation.evaluator import device_of
from ...importance.attention_parts import AttentionParts, unreadable, watched
from ...model.anatomy import Site
from .repeated import Scores, must_have_run
from .vocabulary import needs_tokenizer, single_tokens
from .written import Directions

SEQUENCES: dict[str, tuple[str, ...]] = {
    "days": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "short days": ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    "months": (
        *("January", "February", "March", "April", "May", "June", "July"),
        *("August", "September", "October", "November", "December"),
    ),
    "short months": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    "digits": tuple(str(number) for number in range(1, 21)),
    "numbers": (
        *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
        *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
    ),
    "ordinals": ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
    "letters": tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}
LEAST = 3  # words of a sequence, below which there is nothing to tell the next one from


class Successor(NamedTuple):
    """A word and the next one, as tokens, among all words of their sequence."""

    word: int
    following: int
    among: tuple[int, ...]


def successors(tokenizer: Any) -> tuple[list[Successor], list[str]]:
    """All pairs of neighbours that are one token each, and the names of the sequences that have some."""
    needs_tokenizer(tokenizer, "successor")
    pairs, names = list[Successor](), list[str]()
    for name, words in SEQUENCES.items():
        found = single_tokens(tokenizer, words)
        if len(found) < LEAST:
            continue
        among = tuple(found.values())
        own = [Successor(found[a], found[b], among) for a, b in pairwise(words) if {a, b} <= {*found}]
        pairs += own
        names += [name] if own else []
    if not pairs:
        raise BadData(
            "This tokenizer has no days, months, numbers or letters that are one token each, so there is nothing to look for "
            "successor heads with; leave successor out of the kinds."
        )
    return pairs, names


def successor_scores(
    root: nn.Module, sites: Sequence[Site], pairs: Sequence[Successor], begin: Sequence[int], directions: Directions
) -> Scores:
    """Whether each head, where it looks at the word of a pair, promotes the next one above all others of the sequence."""
    ids = torch.tensor([[*begin, pair.word] for pair in pairs], device=device_of(root))
    found: dict[str, Tensor] = {}

    def see(site: Site, parts: AttentionParts) -> None:
        if parts.values is None:
            raise unreadable(site)
        rows = []
        for values, pair in zip(parts.values, pairs, strict=True):
            logits = directions.logits(site, values[:, -1:], pair.among)[:, 0]  # (heads, words)
            right = logits[:, pair.among.index(pair.following), None]
            rows.append(((logits >= right).sum(-1) == 1).double())
        found[site.name] = torch.stack(rows).cpu()

    with torch.no_grad(), watched(root, sites, see):
        root(input_ids=ids)
    must_have_run(sites, found)
    chance = torch.tensor([1 / len(pair.among) for pair in pairs], dtype=torch.float64)
    return Scores(torch.cat([found[site.name] for site in sites], 1), chance)
