"""Random tokens, said twice: attention to the token before, the earlier copy, the one after it and the first; and copying.

Nothing but the repetition tells what to look at, and its period is drawn for each prompt, so that no fixed offset fits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...data.encoding import padded
from ...errors import Refused
from ...evaluation.evaluator import device_of
from ...importance.attention_parts import AttentionParts, unreadable, watched
from ...model.anatomy import Site
from ..counts import must_fit
from ..induction import Repeated
from .kinds import PATTERNS
from .written import Directions

PERIODS = (24, 48)  # tokens before the repetition, from and to


class Scores(NamedTuple):
    """Of one kind of head on some examples: the score of every head, and what chance would give."""

    values: Tensor  # (examples, heads)
    chance: Tensor  # (examples,)


def repeated_prompts(
    ordinary: Sequence[int], begin: Sequence[int], count: int, seed: int, longest: int | None
) -> list[Repeated]:
    """So many prompts; each is drawn by the seed and its own number, so that more of them begin with the same ones."""
    least, most = PERIODS
    most = min([most, len(ordinary), *([] if longest is None else [(longest - len(begin)) // 2])])
    if most < 4:
        raise Refused(
            f"Prompts are 4 to {PERIODS[1]} different tokens said twice, and this model has {len(ordinary)} tokens and "
            f"{longest} positions; give a model with more."
        )
    prompts = []
    for number in range(count):
        draw = random.Random(f"heads repeated {seed} {number}")
        tokens = draw.sample(ordinary, draw.randint(min(least, most), most))
        prompts.append(Repeated([*begin, *tokens, *tokens], len(begin), len(tokens)))
    return prompts


def repeated_scores(
    root: nn.Module,
    sites: Sequence[Site],
    prompts: Sequence[Repeated],
    kinds: Sequence[str],
    directions: Directions | None,
    fill: int = 0,
) -> dict[str, Scores]:
    """The scores of all heads on these prompts, by kind, from one pass; `directions` for copying alone."""
    device = device_of(root)
    ids = [prompt.ids for prompt in prompts]
    inputs = {"input_ids": padded(ids, fill), "attention_mask": padded([[1] * len(tokens) for tokens in ids], 0)}
    length = inputs["input_ids"].shape[1]
    places = {kind: torch.tensor(_places(prompts, kind), device=device).T for kind in kinds if kind in PATTERNS}
    found: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}

    def see(site: Site, parts: AttentionParts) -> None:
        must_fit(site, parts.patterns, len(prompts), length, length)
        for kind, (row, query, key) in places.items():
            found[kind][site.name] = _mean(parts.patterns[row, :, query, key].double(), row, len(prompts)).cpu()
        if directions is not None:
            found["copying"][site.name] = _copied(site, parts, prompts, directions).cpu()

    with torch.no_grad(), watched(root, sites, see):
        root(**{name: tensor.to(device) for name, tensor in inputs.items()})
    out = {}
    for kind in kinds:
        must_have_run(sites, found[kind])
        if kind in PATTERNS:
            row, query, _ = places[kind]
            chance = _mean(1 / (query.double() + 1)[:, None], row, len(prompts))[:, 0].cpu()
        else:
            chance = torch.tensor([1 / prompt.period for prompt in prompts], dtype=torch.float64)
        out[kind] = Scores(torch.cat([found[kind][site.name] for site in sites], 1), chance)
    return out


def must_have_run(sites: Sequence[Site], found: dict[str, Tensor]) -> None:
    """Refuse a model some of whose attentions did not run on the prompts."""
    silent = [site.name for site in sites if site.name not in found]
    if silent:
        raise Refused(f"{silent[0]} does not run on texts, so there is nothing that it looks at.")


def _places(prompts: Sequence[Repeated], kind: str) -> list[tuple[int, int, int]]:
    """(prompt, query, key) of all pairs whose attention is the score."""
    out = []
    for row, prompt in enumerate(prompts):
        begin, period, length = prompt.begin, prompt.period, len(prompt.ids)
        if kind == "previous-token":  # not of the second token: what it looks at may be the first for being the first
            out += [(row, query, query - 1) for query in range(2, length)]
        elif kind == "sink":
            out += [(row, query, 0) for query in range(1, length)]
        else:
            after = kind == "induction"
            out += [(row, begin + period + step, begin + step + after) for step in range(period)]
    return out


def _mean(values: Tensor, row: Tensor, count: int) -> Tensor:
    """The mean over the pairs of each prompt: (prompts, heads)."""
    total = torch.zeros(count, values.shape[1], dtype=torch.float64, device=values.device).index_add_(0, row, values)
    return total / torch.bincount(row, minlength=count)[:, None]


def _copied(site: Site, parts: AttentionParts, prompts: Sequence[Repeated], directions: Directions) -> Tensor:
    """The share of each prompt's tokens, at their first copies, that the head promotes above all others: (prompts, heads)."""
    if parts.values is None:
        raise unreadable(site)
    rows = []
    for values, prompt in zip(parts.values, prompts, strict=True):
        first = slice(prompt.begin, prompt.begin + prompt.period)
        logits = directions.logits(site, values[:, first], prompt.ids[first])  # (heads, positions, tokens)
        own = logits.diagonal(dim1=1, dim2=2)[:, :, None]
        rows.append(((logits >= own).sum(-1) == 1).double().mean(1))
    return torch.stack(rows)
