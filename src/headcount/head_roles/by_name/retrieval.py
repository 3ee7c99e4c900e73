"""Retrieval heads (Wu et al. 2024): while the model answers from a long text, which heads look at what it is copying.

A head copies a token of the needle if the model generates that token and the head, at the position that generates it, looks most
at it there. The long text is read once; then one token after the other is generated, and one row of attention seen for each.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import OutOfMemory
from ...evaluation.evaluator import device_of, is_out_of_memory
from ...importance.attention_parts import AttentionParts, watched
from ...model.anatomy import Site
from .needles import Hidden
from .repeated import must_have_run

SPARE = 4  # tokens that are generated beyond the length of the answer


class Retrieved(NamedTuple):
    """Of one prompt: the retrieval score of every head, that of looking anywhere, and how much of the answer was generated."""

    scores: Tensor  # (heads,)
    chance: float
    answered: float


def retrieval_scores(root: nn.Module, sites: Sequence[Site], prompt: Hidden, ends: frozenset[int]) -> Retrieved:
    """The score of every head on one prompt: the share of the answer's tokens in the needle that it copies."""
    try:
        return _scores(root, sites, prompt, ends)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"There is no memory for a prompt of {len(prompt.ids):,} tokens; use shorter ones (--lengths), a smaller dtype or a "
            "larger device."
        ) from None


def _scores(root: nn.Module, sites: Sequence[Site], prompt: Hidden, ends: frozenset[int]) -> Retrieved:
    span = range(prompt.start, prompt.end)
    copied = torch.zeros(sum(map(len, sites)), len(span), dtype=torch.bool)
    generated, chance = list[int](), 0.0
    reader = _Reader(root, sites, prompt.ids[:-1])
    token = prompt.ids[-1]
    for _ in range(len(span) + SPARE):
        token, looked, keys = reader.next(token)
        if token in ends:
            break
        generated.append(token)
        right = [place for place in span if prompt.ids[place] == token]
        chance += len(right) / keys
        for place in right:
            copied[:, place - prompt.start] |= looked == place
    said = sum(prompt.ids[place] in generated for place in span) / len(span)
    return Retrieved(copied.double().mean(1), chance / len(span), said)


class _Reader:
    """A model that has read some tokens and reads on one at a time, greedily."""

    def __init__(self, root: nn.Module, sites: Sequence[Site], ids: Sequence[int]) -> None:
        self.root, self.sites, self.ids = root, sites, list(ids)
        self.fewer = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(root.forward).parameters else {}
        self.cache = getattr(self._run(self.ids, None), "past_key_values", None)

    def next(self, token: int) -> tuple[int, Tensor, int]:
        """Read a token: the one that follows, the position that every head looks at most, and how many it looks at."""
        self.ids.append(token)
        looked: dict[str, Tensor] = {}
        keys = [0]

        def see(site: Site, parts: AttentionParts) -> None:
            row = parts.patterns[0, :, -1]  # (heads, keys)
            keys[0] = max(keys[0], row.shape[1])
            # a cache of a sliding window has the last keys alone
            looked[site.name] = (row.argmax(-1) + len(self.ids) - row.shape[1]).cpu()

        with watched(self.root, self.sites, see):
            output = self._run(self.ids if self.cache is None else [token], self.cache)
        must_have_run(self.sites, looked)
        self.cache = None if self.cache is None else output.past_key_values
        following = int(output.logits[0, -1].argmax())
        return following, torch.cat([looked[site.name] for site in self.sites]), keys[0]

    def _run(self, ids: Sequence[int], cache: Any) -> Any:
        inputs = {"input_ids": torch.tensor([list(ids)], device=device_of(self.root)), **self.fewer}
        if cache is not None:
            inputs["past_key_values"] = cache
        with torch.no_grad():
            return self.root(**inputs, use_cache=True)
