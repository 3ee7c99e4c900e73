"""OV and QK circuits on tokens (Elhage et al. 2021): what a head writes for each token, and what it looks at, by the weights.

The full OV circuit is W_U W_O W_V norm(W_E): a matrix of vocabulary by vocabulary, which is never made. Its eigenvalues are those
of a matrix of a head's width, and its largest entries are found block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..documents.circuits.weights import Copying, HeadCircuits, Scored, TokenCircuits, TokenPair, TokenWrites
from ..errors import BadPlan, Refused
from ..hashing import fingerprint
from ..model.anatomy import Site, Units
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..model.distributed.refusals import in_one_place
from ..progress import Bar
from .head_matrices import HeadMatrices, Probe, head_matrices, probe, projected, small_batch
from .norms import FrozenNorm, frozen_norm, is_close
from .stream import unembedding_of

if TYPE_CHECKING:
    from ..runs import Run

BLOCK = 2**24  # entries of vocabulary x vocabulary that are held at a time
SAMPLE = 256  # tokens whose own place among what a head promotes is looked up
ROWS = 8192  # tokens that go through a norm at a time
NOTES = (
    "a token is its embedding alone, through the norm in front of the attention: positions and what layers add are left out",
    "logits are relative to their mean over the vocabulary and before the final norm's scale; biases of values are left out",
)
ROTATED = "queries and keys are not rotated: scores are those of a token with one at distance zero, before scaling"


def token_circuits(
    model: nn.Module,
    units: Units | None = None,
    *,
    tokens: Sequence[int] = (),
    top: int = 10,
    permutations: int = 10,
    seed: int = 0,
    batch: Any = None,
    run: Run | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> TokenCircuits:
    """OV and QK circuits of heads on tokens, read off the weights: what each head copies, promotes and looks at.

    The copying score is the sum of the eigenvalues of the full OV circuit over the sum of their sizes, from -1 to 1: of a head
    that writes what it looks at it is near 1. The baseline is the same with the tokens of one side shuffled. A second measure is
    the share of tokens that are themselves among the `top` tokens which the head promotes most when it looks at them.

    A token is its embedding alone, through the norm in front of the attention: positions, and what earlier layers add, are left
    out. With rotary embeddings, queries and keys are those at distance zero. Logits are relative to their mean over the
    vocabulary, and before the final norm's scale, whose weights are folded in.

    Args:
        model: A language model with an embedding and an unembedding.
        units: Heads, such as `"3:7 5:*"`; by default all of them, without the top pairs of queries and keys.
        tokens: Tokens of which to say what each head writes when it looks at them, and what they look at.
        top: How many tokens or pairs of each kind.
        permutations: Shuffles of the vocabulary for the baseline.
        seed: Seed of the shuffles and of the sample of tokens.
        batch: What the model takes, a few tokens, to see where norms stand; by default it is made.
        run: A run folder (`headcount.runs.Run`), in which attentions are kept as they come and found again.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The circuits of every head, and notes on what they leave out.

    Examples:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes))
        >>> found = hc.circuits.token_circuits(model, "1:2", tokens=[5], top=3)
        >>> len(found["1:2"].writes[0].promoted)
        3
        >>> -1 <= found["1:2"].copying.score <= 1
        True
    """
    root = unwrap(model)
    in_one_place(root, "circuits are not read off them")
    anatomy = find(root, specs)
    chosen = anatomy.plan("*:*" if units is None else units).by_site()
    sites = [site for site in anatomy.heads if site.name in chosen]
    if len(sites) != len(chosen) or not sites:
        raise BadPlan("Circuits are those of heads; name heads, such as 3:7 or 3:*.")
    decodes = bool(getattr(getattr(root, "config", None), "is_encoder_decoder", False))
    outside = [site for site in sites if site.attention == "cross" or (decodes and site.attention != "decoder")]
    if outside and units is not None:
        raise Refused(
            f"{outside[0].name} reads or writes the encoder's stream, which no logits are read from: its circuits are not on "
            "tokens; name heads of the decoder's self-attention."
        )
    sites = [site for site in sites if site not in outside]
    seen = probe(root, anatomy, small_batch(root) if batch is None else batch)
    words = vocabulary_of(root, seen)
    strange = next((token for token in tokens if not 0 <= token < words.size), None)
    if strange is not None or top < 1 or permutations < 1:
        raise BadPlan(
            f"Tokens are from 0 to {words.size - 1}, top and permutations at least 1; I got {strange or (top, permutations)}."
        )
    asked = _Asked(words, _Products(words, permutations, seed), tuple(tokens), top, seed, units is not None)
    heads, notes = list[HeadCircuits](), dict.fromkeys(NOTES)
    about = [[int(token) for token in tokens], top, permutations, seed, asked.pairs]
    with Bar("circuits", total=len(sites)) as bar:
        for number, site in enumerate(sites):
            indices = sorted(chosen[site.name])
            name = f"token-circuits-{fingerprint([*about, site.name, indices])[:8]}-{number:04d}"
            found = TokenCircuits.from_json(runs.document(run, name, partial(_site, asked, site, seen, indices)))
            heads += found.heads
            notes |= dict.fromkeys(found.notes)
            bar.advance(1)
    return TokenCircuits(heads=tuple(heads), notes=tuple(notes))


@dataclass(frozen=True, eq=False)
class _Asked:
    """What is asked about every head."""

    words: Vocabulary
    products: _Products
    tokens: tuple[int, ...]
    top: int
    seed: int
    pairs: bool


def _site(asked: _Asked, site: Site, seen: Probe, indices: Sequence[int]) -> dict[str, Any]:
    """The circuits of heads of one attention, as JSON."""
    matrices = head_matrices(site, seen, matching=False)
    normed = _normed(matrices, asked.words)
    heads, notes = list[HeadCircuits](), dict[str, None]()
    for index, position in zip(indices, site.positions(indices), strict=True):
        head = _Head(site, matrices, position, asked.words, normed)
        copying = head.copying(asked.products.of(normed), asked.top, asked.seed)
        writes = tuple(head.writes(token, asked.top) for token in asked.tokens)
        pairs: tuple[TokenPair, ...] = ()
        matching = _matching(head, notes) if asked.pairs or asked.tokens else None
        if matching is not None:
            notes[ROTATED] = None
            pairs = top_pairs(*matching, asked.top) if asked.pairs else ()
            writes = tuple(_with_looks(one, *matching, asked.top) for one in writes)
        heads.append(HeadCircuits(f"{site.name}:{index}", copying, writes, pairs))
    return TokenCircuits(heads=tuple(heads), notes=tuple(notes)).to_json()


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What tokens are at both ends of the residual stream: embeddings, and directions of logits, both (vocabulary, hidden)."""

    embeddings: Tensor
    unembedding: Tensor  # the weights of the final norm folded in

    @property
    def size(self) -> int:
        """The number of tokens that are at both ends."""
        return min(len(self.embeddings), len(self.unembedding))


def vocabulary_of(root: nn.Module, seen: Probe) -> Vocabulary:
    """The tokens of a model at both ends of its residual stream."""
    table = getattr(root, "get_input_embeddings", lambda: None)()
    weight = getattr(table, "weight", None)
    end: Any = unembedding_of(root).weight
    wide = torch.float64 if end.dtype == torch.float64 else torch.float32
    unembedding = end.detach().cpu().to(wide)
    if not isinstance(table, nn.Module) or not isinstance(weight, Tensor) or weight.dim() != 2:
        raise Refused(f"{type(root).__name__} has no table of embeddings, so its circuits have no tokens.")
    with torch.no_grad():  # as the module gives them: some scale
        ids = torch.arange(len(weight), device=weight.device)
        embeddings = torch.cat([table(some).detach().cpu().to(wide) for some in ids.split(ROWS)])
    if embeddings.shape[1] != unembedding.shape[1]:
        raise Refused(
            f"The embeddings of {type(root).__name__} have {embeddings.shape[1]} numbers and its unembedding reads "
            f"{unembedding.shape[1]}: a projection stands between, so its circuits cannot be read off these two."
        )
    norm = final_norm(seen, unembedding.shape[1])
    if norm is not None:
        unembedding = unembedding * norm.weight.to(wide)
        unembedding = unembedding - unembedding.mean(1, keepdim=True) if norm.centred else unembedding
    count = min(len(embeddings), len(unembedding))
    # a number that is added to all logits changes nothing, so their mean is taken off: without it, what embeddings and
    # directions of logits have in common would pass for copying
    return Vocabulary(embeddings[:count], unembedding[:count] - unembedding[:count].mean(0))


def final_norm(seen: Probe, hidden: int) -> FrozenNorm | None:
    """The norm that is given what the last layer gives."""
    lasts = [calls[-1][1] for calls in seen.trace.layers.values() if calls]
    for norm, calls in reversed(list(seen.trace.norms.items())):
        for x, y in calls:
            if x.shape[-1] == hidden and lasts and x.shape == lasts[-1].shape and torch.equal(x, lasts[-1]):
                return frozen_norm(norm, x.double().cpu().flatten(0, -2), y.double().cpu().flatten(0, -2))
    return None


@dataclass(frozen=True, eq=False)
class _Normed:
    """Embeddings through a norm, its weights apart, and how it goes on: x * weight + bias is what an attention is given."""

    x: Tensor  # (vocabulary, hidden)
    weight: Tensor
    bias: Tensor | None

    def given(self) -> Tensor:
        out = self.x * self.weight
        return out if self.bias is None else out + self.bias


def _normed(matrices: HeadMatrices, words: Vocabulary) -> _Normed:
    """The embeddings through the norm in front of an attention."""
    e, norm = words.embeddings, matrices.reading
    if norm is None:
        return _Normed(e, torch.ones_like(e[0]), None)
    like = next(iter(norm.parameters()), e)
    with torch.no_grad():
        gave = torch.cat([norm(some.to(like)).to(e).cpu() for some in e.split(ROWS)])
    frozen = frozen_norm(norm, e, gave)
    if frozen is None:
        raise Refused(
            f"The norm in front of {matrices.site.name} ({type(norm).__name__}) is neither a LayerNorm nor an RMSNorm."
        )
    x = (e - e.mean(-1, keepdim=True) if frozen.centred else e) * frozen.scale
    return _Normed(x, frozen.weight, frozen.bias)


class _Products:
    """Sums over tokens of (normed embedding)(direction of its logit), as tokens are and shuffled: (hidden, hidden) each.

    Norms of all layers differ in their weights alone, which come later, so these are made once.
    """

    def __init__(self, words: Vocabulary, permutations: int, seed: int) -> None:
        self.words, self.permutations, self.seed = words, permutations, seed
        self.x: Tensor | None = None
        self.made: list[Tensor] = []

    def of(self, normed: _Normed) -> list[Tensor]:
        if self.x is None or not (self.x is normed.x or is_close(self.x, normed.x)):
            draw, size = np.random.default_rng(self.seed), self.words.size
            orders = [torch.arange(size), *(torch.from_numpy(draw.permutation(size)) for _ in range(self.permutations))]
            self.x, self.made = normed.x, [(normed.x.T @ self.words.unembedding[order]).double() for order in orders]
        return self.made


@dataclass(frozen=True, eq=False)
class _Head:
    """One head, with the tokens at both ends of its stream."""

    site: Site
    matrices: HeadMatrices
    position: int
    words: Vocabulary
    normed: _Normed

    def copying(self, products: Sequence[Tensor], top: int, seed: int) -> Copying:
        """The copying score with its baseline, and the share of tokens that promote themselves."""
        values, outputs = self.matrices.values[self.position], self.matrices.outputs[self.position]
        scores = [copying_score(values @ product @ outputs) for product in products]
        size = self.words.size
        draw = np.random.default_rng(seed)
        sample = torch.from_numpy(np.sort(draw.permutation(size)[:SAMPLE]))
        logits = self.logits(sample)
        rank = (logits > logits.gather(1, sample[:, None])).sum(1)
        own, chance = float((rank < top).double().mean()), min(1.0, top / size)
        return Copying(scores[0], float(np.mean(scores[1:])), max(scores[1:]), len(scores) - 1, own, chance, top)

    def logits(self, tokens: Tensor) -> Tensor:
        """What the head adds to every logit when it looks at each of these tokens: (tokens, vocabulary)."""
        wide = self.normed.x.dtype
        values = self.normed.x[tokens] @ self.matrices.values[self.position].T.to(wide)  # (tokens, width)
        return values @ (self.words.unembedding @ self.matrices.outputs[self.position].to(wide)).T

    def writes(self, token: int, top: int) -> TokenWrites:
        """The logits that the head raises and lowers most when it looks at this token."""
        logits = self.logits(torch.tensor([token]))[0]
        rank = int((logits > logits[token]).sum()) + 1
        return TokenWrites(Scored(token, float(logits[token])), _most(logits, top), _most(logits, top, -1), rank, ())

    def queries_and_keys(self) -> tuple[Tensor, Tensor]:
        """Queries and keys of all tokens, not rotated: (vocabulary, width) each."""
        given = self.normed.given()
        return projected(self.site, 0, given, self.position), projected(self.site, 1, given, self.position)


def copying_score(product: Tensor) -> float:
    """The sum of the eigenvalues over the sum of their sizes."""
    values = torch.linalg.eigvals(product)
    size = float(values.abs().sum())
    return float(values.real.sum()) / size if size else 0.0


def top_pairs(queries: Tensor, keys: Tensor, top: int) -> tuple[TokenPair, ...]:
    """The pairs of tokens with the largest products, block by block."""
    best = torch.full((0,), 0.0, dtype=queries.dtype)
    places = torch.zeros(0, dtype=torch.long)
    rows = max(1, BLOCK // len(keys))
    for start in range(0, len(queries), rows):
        scores = (queries[start : start + rows] @ keys.T).flatten()
        most = scores.topk(min(top, len(scores)))
        best = torch.cat([best, most.values])
        places = torch.cat([places, most.indices + start * len(keys)])
        order = best.topk(min(top, len(best))).indices
        best, places = best[order], places[order]
    found = zip(places.tolist(), best.tolist(), strict=True)
    return tuple(TokenPair(Scored(p // len(keys), s), Scored(p % len(keys), s), s) for p, s in found)


def _with_looks(writes: TokenWrites, queries: Tensor, keys: Tensor, top: int) -> TokenWrites:
    """The same with the keys that the token, as a query, matches best."""
    return writes._replace(looks_at=_most(keys @ queries[writes.token.token], top))


def _most(numbers: Tensor, top: int, sign: int = 1) -> tuple[Scored, ...]:
    most = (sign * numbers).topk(min(top, len(numbers)))
    return tuple(Scored(n, sign * value) for n, value in zip(most.indices.tolist(), most.values.tolist(), strict=True))


def _matching(head: _Head, notes: dict[str, None]) -> tuple[Tensor, Tensor] | None:
    """Queries and keys of all tokens; None, with a note that says why, where they cannot be read off the weights."""
    try:
        return head.queries_and_keys()
    except Refused as error:
        notes[str(error)] = None
        return None


def said(found: TokenCircuits, texts: Sequence[str]) -> TokenCircuits:
    """The same with what every token says; `texts` by token."""

    def one(scored: Scored) -> Scored:
        return scored._replace(text=texts[scored.token]) if scored.token < len(texts) else scored

    def some(listed: Iterable[Scored]) -> tuple[Scored, ...]:
        return tuple(map(one, listed))

    heads = []
    for head in found.heads:
        writes = tuple(
            TokenWrites(one(w.token), some(w.promoted), some(w.demoted), w.rank, some(w.looks_at)) for w in head.writes
        )
        pairs = tuple(TokenPair(one(pair.query), one(pair.key), pair.score) for pair in head.pairs)
        heads.append(head._replace(writes=writes, pairs=pairs))
    return replace(found, heads=tuple(heads))
