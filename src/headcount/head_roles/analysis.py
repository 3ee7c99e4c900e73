"""`roles`: what each head does, seen on sentences (Voita et al. 2019, section 5; Clark et al. 2019). Only sums are kept.

Attention is read where the model computes it. Each batch's probabilities are counted where they are (`counts`) and
forgotten; what is kept is one small table of sums per attention, however many sentences there are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..documents.reading import read
from ..documents.roles import Example, Observed, Roles, SentenceSums
from ..errors import BadData, Refused
from ..evaluation.evaluator import device_of, to_device
from ..importance.attention import watched
from ..model.anatomy import Site
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..model.distributed.refusals import not_tensor_parallel
from ..model.equivalence import evaluating
from ..progress import Bar
from .counts import AttentionSides, BatchIndex, must_fit, run_on, summed, tallied
from .induction import STATISTICS
from .induction import probe as probe_repetitions
from .rules import named

if TYPE_CHECKING:
    from ..data.sentences.passages import Passages, Side
    from ..runs import Run

CHUNK = 1024  # sentences to a finished piece of a run
LONGEST_EXAMPLE = 14  # tokens
TELLING = 7  # tokens that an example should have, if there are such sentences
HEADS_WITH_EXAMPLES = (400, 1500)  # beyond the first there is one sentence, beyond the second none
_FROM = {"first": "that of its first token", "mean": "the mean over its tokens"}


def roles(
    model: nn.Module,
    passages: Passages,
    *,
    words: str = "first",
    batch_size: int | None = None,
    seed: int = 0,
    examples: int = 2,
    probe: bool = True,
    run: Run | None = None,
    name: str = "roles",
    specs: Iterable[ModuleSpec] = (),
) -> Roles:
    """What each head of the model does on these passages: its roles, with intervals, and all numbers behind them.

    Attention to a word is the sum over its tokens; attention from a word is that of its "first" token, or the "mean" over
    them (`words`). `examples` short sentences, drawn by `seed`, are kept with the attention of every head. With `probe`,
    decoders also read random tokens twice. Of an encoder-decoder without translations, the encoder alone is looked at.
    With a run, every thousand sentences are written as they are done and read back the next time. The model is as it was
    afterwards.

    Args:
        model: The model; it is as it was afterwards.
        passages: Sentences, perhaps parsed, from `hc.head_roles.passages`.
        words: Attention from a word of several tokens: that of the "first", or the "mean".
        batch_size: Examples per forward pass; by default that of the task.
        seed: Random seed of the examples and of the probe.
        examples: Short sentences that are kept with their attention.
        probe: Whether decoders are probed with repeated random tokens.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        name: Name of the results in the run folder.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The roles of every head, with intervals.

    Examples:
        >>> model = hc.load("my-model")
        >>> passages = hc.head_roles.passages("dev.tsv", tokenizer="my-model", limit=16)
        >>> roles = hc.roles(model, passages)
        >>> len(roles.heads)
        48
    """
    not_tensor_parallel(model, "roles cannot be told")
    watch = _Watch(unwrap(model), find(model, specs).heads, passages, words)
    order = [number for some in passages.batches(batch_size) for number in some]
    size = passages.batch_size if batch_size is None else batch_size
    total: dict[str, np.ndarray] = {}
    with evaluating(watch.root), torch.no_grad(), Bar("attention", total=passages.size) as bar:
        with watch.on():
            for start in range(0, len(order), CHUNK):
                some = order[start : start + CHUNK]
                sums = runs.piece(run, f"{name}-{start:07d}", partial(watch.chunk, some, size, bar))
                total = {site: total[site] + sums[site] if total else sums[site] for site in sums}
            example_document = runs.document(run, f"{name}-examples", partial(watch.examples, examples, seed))
        probed: dict[str, np.ndarray] = {}
        decoders = [site for site in watch.sites if site.attention == "decoder"]
        if probe and decoders:
            reading = partial(probe_repetitions, watch.root, decoders, watch.passages, seed=seed, batch_size=batch_size)
            probed = runs.piece(run, f"{name}-repetitions", reading)
    marks = (mark for sentence_marks in passages.source.special for mark in sentence_marks)
    return named(
        watch.seen(total, probed),
        model=type(watch.root).__name__,
        sentences=passages.size,
        tokens=sum(not mark for mark in marks),
        sets=watch.told(words),
        order=[str(unit) for site in watch.sites for unit in site.units],
        examples=read(tuple[Example, ...], example_document),
    )


class _Watch:
    """A model, the attentions that are looked at, and on what ground each type of them stands."""

    def __init__(self, root: nn.Module, sites: Sequence[Site], passages: Passages, words: str) -> None:
        self.root, config = root, getattr(root, "config", None)
        self.pairs = bool(getattr(config, "is_encoder_decoder", False))
        if passages.read is not None and not self.pairs:
            raise BadData(
                f"{type(root).__name__} has no decoder that could read translations; leave target (--target) out."
            )
        # the model knows which token its decoder begins with
        self.passages = passages.begun(getattr(config, "decoder_start_token_id", None))
        passages = self.passages
        self.sites = tuple(site for site in sites if len(site) and self._runs(site))
        self.runner = root.get_encoder() if self.pairs and passages.read is None else root
        self.grounds: dict[str | None, AttentionSides] = {}
        for site in self.sites:
            if site.attention not in self.grounds:
                self.grounds[site.attention] = self._ground(site.attention, words)
        self._see: Callable[[Site, Tensor], None] = lambda site, weights: None

    def _runs(self, site: Site) -> bool:
        return not (self.pairs and self.passages.read is None) or site.attention in ("encoder", None)

    def _ground(self, kind: str | None, words: str) -> AttentionSides:
        passages = self.passages
        if not self.pairs or passages.read is None or kind not in ("decoder", "cross"):
            return AttentionSides(kind, passages.source, passages.source, words=words)
        if kind == "decoder":
            return AttentionSides(kind, passages.read, passages.read, words=words)
        return AttentionSides(kind, passages.read, passages.source, passages.written, passages.links, words)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Within the block attention is watched; hooks are set once, not for every batch."""
        with watched(self.root, self.sites, lambda site, weights: self._see(site, weights)):
            yield

    def passed(self, numbers: Sequence[int], see: Callable[[Site, Tensor], None]) -> None:
        """Run the model on these sentences; every attention must have been seen."""
        seen_sites = set()

        def both(site: Site, weights: Tensor) -> None:
            ground = self.grounds[site.attention]
            lengths = [max(len(side.ids[number]) for number in numbers) for side in (ground.query, ground.key)]
            must_fit(site, weights, len(numbers), *lengths)
            see(site, weights)
            seen_sites.add(site.name)

        self._see = both
        run_on(self.runner, to_device(self.passages.inputs(numbers), device_of(self.root)), self.passages)
        if silent := [site.name for site in self.sites if site.name not in seen_sites]:
            raise Refused(
                f"{silent[0]} does not run on {self.passages.name}, so there is nothing that it looks at; give a model "
                "of which every attention reads these texts."
            )

    def told(self, words: str) -> str:
        """One sentence: what was read, with which parses and alignments, and what counts as attention of words."""
        passages = self.passages
        parts = [f"{passages.size:,} sentences of {passages.name} with {_parses(passages)}"]
        parts += [passages.aligned] if passages.aligned and passages.read is not None else []
        parts += (
            ["the encoder alone, because there are no translations"] if self.pairs and passages.read is None else []
        )
        return "; ".join([*parts, f"attention to a word is the sum over its tokens, from a word {_FROM[words]}"])

    def chunk(self, numbers: Sequence[int], size: int, bar: Bar) -> dict[str, np.ndarray]:
        """The sums of all statistics over these sentences, (2, 6, statistics, heads) by site: every other one, and the rest."""
        total: dict[str, np.ndarray] = {}
        for start in range(0, len(numbers), size):
            some = numbers[start : start + size]
            sums = summed(self.batch, self.passages, some)
            total = {site: total[site] + sums[site] if total else sums[site] for site in sums}
            bar.advance(len(some))
        return total

    def batch(self, numbers: Sequence[int]) -> dict[str, np.ndarray]:
        """The sums of all statistics over one batch."""
        device = device_of(self.root)
        laid: dict[str | None, BatchIndex] = {kind: sides.laid(numbers, device) for kind, sides in self.grounds.items()}
        sums: dict[
            str, tuple[Tensor, int]
        ] = {}  # with the number of times that the attention ran (ALBERT's: each layer)

        def see(site: Site, weights: Tensor) -> None:
            counted = self.grounds[site.attention].counted(laid[site.attention], weights)
            before, times = sums.get(site.name, (torch.zeros_like(counted), 0))
            sums[site.name] = before + counted, times + 1

        self.passed(numbers, see)
        rows = [
            [row for row, number in enumerate(numbers) if part_of(self.passages, number) == part] for part in (0, 1)
        ]
        out = {}
        for site in self.sites:
            e, times = sums[site.name]
            n = laid[site.attention].n * times
            out[site.name] = np.stack([tallied(e[some], n[some]) for some in rows])
        return out

    def seen(self, total: dict[str, np.ndarray], probed: dict[str, np.ndarray]) -> list[Observed]:
        """The sums by type of attention instead of by site."""
        out = []
        for kind, ground in self.grounds.items():
            sites = [site for site in self.sites if site.attention == kind]
            units = tuple(str(unit) for site in sites for unit in site.units)
            first_half, second_half = (
                SentenceSums(ground.names, sums)
                for sums in np.concatenate([total[site.name] for site in sites], axis=3)
            )
            tally = first_half + second_half
            if not tally[("confidence",)].n.any():
                raise BadData(f"There is no token in {self.passages.name} that is not special; give sentences.")
            twice = None
            if probed and kind == "decoder":
                twice = SentenceSums(STATISTICS, np.concatenate([probed[site.name] for site in sites], axis=2))
            out.append(Observed(kind, units, tally, ground.tested, twice, (first_half, second_half)))
        return out

    def examples(self, count: int, seed: int) -> list[dict[str, Any]]:
        """A few short sentences with the attention of every head on them, two letters to a weight."""
        heads = sum(map(len, self.sites))
        count = 0 if heads > HEADS_WITH_EXAMPLES[1] else min(count, 1) if heads > HEADS_WITH_EXAMPLES[0] else count
        out = []
        for kind, ground in self.grounds.items():
            sizes = [max(len(q), len(k)) for q, k in zip(ground.query.ids, ground.key.ids, strict=True)]
            short = [number for number, size in enumerate(sizes) if size <= LONGEST_EXAMPLE]
            short = [number for number in short if sizes[number] >= TELLING] or short
            chosen = random.Random(f"examples {kind} {seed}").sample(short, min(count, len(short)))
            out += [self._example(ground, number) for number in sorted(chosen)]
        return out

    def _example(self, ground: AttentionSides, number: int) -> dict[str, Any]:
        sums: dict[str, list[Tensor]] = {}

        def see(site: Site, weights: Tensor) -> None:
            if site.attention == ground.type:
                sums.setdefault(site.name, []).append(weights[0].detach().float().cpu())

        self.passed([number], see)
        attention: dict[str, str] = {}
        for site in self.sites:
            if site.attention == ground.type:
                mean = torch.stack(sums[site.name]).mean(0).clamp(0, 1)
                rows = (mean * 255).round().to(torch.uint8).flatten(1).numpy()
                attention |= {str(unit): row.tobytes().hex() for unit, row in zip(site.units, rows, strict=True)}
        return {
            "name": ground.query.sentences[number].name,
            "type": ground.type,
            "queries": _texts(ground.query, number),
            "keys": None if ground.own else _texts(ground.key, number),
            "attention": attention,
        }


def part_of(passages: Passages, number: int) -> int:
    """Which half of the sentences this one is in, 0 or 1: by its tokens, so that neither order nor repetition matters."""
    return crc32(repr(list(passages.source.ids[number])).encode()) % 2


def _parses(passages: Passages) -> str:
    return passages.parsed.removesuffix(f" of {passages.name}") or "no parses"


def _texts(side: Side, number: int) -> list[str]:
    return [side.texts.get(token) or side.names.get(token) or str(token) for token in side.ids[number]]
