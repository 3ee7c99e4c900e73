"""What decoders do with what they have read before: random tokens, said twice (induction heads: Olsson et al. 2022).

Nothing but the repetition tells what to look at, and its period is drawn for each sequence, so that no fixed offset fits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..data.encoding import padded
from ..data.sentences.passages import Side
from ..documents.roles import Name
from ..errors import Refused
from ..evaluation.evaluator import device_of, to_device
from ..importance.attention import watched
from ..model.anatomy import Site
from .counts import must_fit, run_on, summed, tallied

if TYPE_CHECKING:
    from ..data.sentences.passages import Passages

SEQUENCES = 32
PERIODS = (12, 24)  # tokens before the repetition, from and to
STATISTICS: tuple[Name, ...] = (("induction",), ("copying",))


class Repeated(NamedTuple):
    """Tokens that a decoder reads: `begin` special ones, then `period` different ones, then the same once more."""

    ids: list[int]
    begin: int
    period: int


def repetitions(side: Side, seed: int, longest: int | None = None) -> list[Repeated]:
    """Sequences of ordinary tokens of the data; none where it has too few, or where the model reads too few at once."""
    marked = {
        token
        for ids, marks in zip(side.ids, side.special, strict=True)
        for token, m in zip(ids, marks, strict=True)
        if m
    }
    ordinary = sorted({token for ids in side.ids for token in ids} - marked)
    begins = all(marks[0] for marks in side.special)
    begin = [side.ids[0][0]] if begins else []
    least, most = PERIODS
    most = min([most, len(ordinary), *([] if longest is None else [(longest - len(begin)) // 2])])
    if most < least:
        return []
    draw = random.Random(f"repeated {seed}")
    periods = [draw.randint(least, most) for _ in range(SEQUENCES)]
    chosen = [draw.sample(ordinary, period) for period in periods]
    return [Repeated([*begin, *tokens, *tokens], len(begin), len(tokens)) for tokens in chosen]


def probe(
    root: nn.Module, sites: Sequence[Site], passages: Passages, *, seed: int = 0, batch_size: int | None = None
) -> dict[str, np.ndarray]:
    """How often each head looks at the token after the earlier copy, and at that copy, at positions of the second one.

    Sums for a `Tally` of `STATISTICS`, by site; nothing where there are no sequences.
    """
    side = passages.source if passages.read is None else passages.read
    sequences = repetitions(side, seed, getattr(getattr(root, "config", None), "max_position_embeddings", None))
    size = passages.batch_size if batch_size is None else batch_size
    total: dict[str, np.ndarray] = {}
    for start in range(0, len(sequences), size):
        numbers = range(start, min(start + size, len(sequences)))
        sums = summed(partial(_some, root, sites, passages, sequences), passages, numbers)
        total = {name: total[name] + sums[name] if total else sums[name] for name in sums}
    return total


def _some(
    root: nn.Module, sites: Sequence[Site], passages: Passages, sequences: Sequence[Repeated], numbers: Sequence[int]
) -> dict[str, np.ndarray]:
    some = [sequences[number] for number in numbers]
    device = device_of(root)
    places = [
        (row, sequence.begin + sequence.period + step, sequence.begin + step)
        for row, sequence in enumerate(some)
        for step in range(sequence.period)
    ]
    row, query, earlier = torch.tensor(places, device=device).T
    n = torch.tensor([[sequence.period] * 2 for sequence in some], dtype=torch.float64, device=device)
    length = max(len(sequence.ids) for sequence in some)
    sums: dict[str, list[Tensor]] = {}

    def see(site: Site, weights: Tensor) -> None:
        must_fit(site, weights, len(some), length, length)
        best = weights.detach().argmax(-1).transpose(1, 2)[row, query]
        e = torch.zeros(len(some), 2, len(site), dtype=torch.float64, device=device)
        for place, right in enumerate((earlier + 1, earlier)):
            e[:, place].index_add_(0, row, (best == right[:, None]).double())
        before = sums.get(site.name, [torch.zeros_like(e), torch.zeros_like(n)])
        sums[site.name] = [before[0] + e, before[1] + n]

    inputs = to_device(_inputs(passages, some, numbers), device)
    with watched(root, sites, see):
        run_on(root, inputs, passages)
    if silent := [site.name for site in sites if site.name not in sums]:
        raise Refused(f"{silent[0]} does not run on texts, so there is nothing that it looks at; ask with probe=False.")
    return {name: tallied(*totals) for name, totals in sums.items()}


def _inputs(passages: Passages, some: Sequence[Repeated], numbers: Sequence[int]) -> dict[str, Tensor]:
    """What makes the model's decoder read these sequences; an encoder reads the first sentences."""
    if passages.read is None:
        fill = passages.source.fill.get("input_ids", 0)
        ids = [sequence.ids for sequence in some]
        return {"input_ids": padded(ids, fill), "attention_mask": padded([[1] * len(tokens) for tokens in ids], 0)}
    inputs = passages.source.inputs([number % passages.size for number in numbers])
    return {
        **inputs,
        "decoder_input_ids": padded([sequence.ids for sequence in some], passages.read.fill.get("input_ids", 0)),
    }
