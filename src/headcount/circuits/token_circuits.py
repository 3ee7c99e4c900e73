"""OV and QK circuits on tokens (Elhage et al. 2021): what a head writes for each token it looks at, and what it looks at, by weights.

The full OV circuit is W_U W_O W_V norm(W_E): a matrix of vocabulary by vocabulary, which is never made. Its eigenvalues are those
of a matrix of a head's width, and its largest entries are found block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..documents.circuits import Copying, HeadCircuits, TokenPair, TokenWrites
from ..errors import BadPlan, Refused
from ..model.anatomy import Site, Units
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..progress import Bar
from .head_matrices import HeadMatrices, Probe, head_matrices, probe, projected, small_batch
from .norms import FrozenNorm, frozen_norm
from .stream import unembedding_of

BLOCK = 2**22  # entries of vocabulary x vocabulary that are held at a time
SAMPLE = 512  # tokens whose own place among what a head promotes is looked up


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What tokens are at both ends of the residual stream: embeddings (vocabulary, hidden), and directions of logits."""

    embeddings: Tensor
    unembedding: Tensor  # the weights of the final norm folded in
    notes: tuple[str, ...]


def token_circuits(
    model: nn.Module,
    units: Units | None = None,
    *,
    tokens: Sequence[int] = (),
    top: int = 10,
    permutations: int = 20,
    seed: int = 0,
    batch: Any = None,
    specs: Iterable[ModuleSpec] = (),
) -> tuple[HeadCircuits, ...]:
    """OV and QK circuits of heads on tokens, read off the weights: what each head copies, promotes and looks at.

    `copying` is the sum of the eigenvalues of the full OV circuit over the sum of their sizes, from -1 to 1: of a head that writes
    what it looks at it is near 1. The baseline is the same with the tokens of one side shuffled. `own` is the share of tokens
    (a sample) that are among the `top` tokens which the head promotes most when it looks at them.

    A token is its embedding alone, through the norm in front of the attention: positions, and what earlier layers add, are left
    out. With rotary embeddings, queries and keys are those at distance zero. Logits are before the final norm's scale.

    Args:
        model: A language model with an embedding and an unembedding.
        units: Heads, such as `"3:7 5:*"`; by default all of them, without what needs the whole vocabulary squared.
        tokens: Tokens of which to say what each head writes and looks at.
        top: How many tokens or pairs of each kind.
        permutations: Shuffles of the vocabulary for the baseline.
        seed: Seed of the shuffles and of the sample.
        batch: What the model takes, a few tokens, to see where norms stand; by default it is made.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        One value for each head, in the order of the model.

    Examples:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes))
        >>> (head,) = hc.circuits.token_circuits(model, "1:2", tokens=[5], top=3)
        >>> head.unit, len(head.writes[0].promoted)
        ('1:2', 3)
        >>> -1 <= head.copying.score <= 1
        True
    """
    root = unwrap(model)
    anatomy = find(root, specs)
    plan = anatomy.plan("*:*" if units is None else units)
    chosen = [site for site in anatomy.heads if plan.by_site().get(site.name)]
    if len(chosen) != len(plan.by_site()) or not chosen:
        raise BadPlan("Circuits are those of heads; name heads, such as 3:7 or 3:*.")
    seen = probe(root, anatomy, small_batch(root) if batch is None else batch)
    vocabulary = vocabulary_of(root, seen)
    size = len(vocabulary.unembedding)
    strange = [token for token in tokens if not 0 <= token < min(size, len(vocabulary.embeddings))]
    if strange or top < 1 or permutations < 1:
        raise BadPlan(f"Tokens are from 0 to {size - 1}, and top and permutations at least 1; I got {strange or (top, permutations)}.")
    out = []
    shuffled = _shuffled(vocabulary, permutations, seed)
    readings: dict[int, tuple[Tensor, list[Tensor]]] = {}  # by norm in front: normed embeddings, and their products with logits
    with Bar("circuits", total=len(plan)) as bar:
        for site in chosen:
            matrices = head_matrices(site, seen)
            if id(matrices.reading) not in readings:
                readings.clear()  # one at a time: each is as large as the embedding
                read = _read(matrices, vocabulary)
                readings[id(matrices.reading)] = read, [_product(read, some) for some in shuffled]
            read, products = readings[id(matrices.reading)]
            for index in sorted(plan.by_site()[site.name]):
                (position,) = site.positions([index])
                ov = _Ov(matrices, position, site, vocabulary, read)
                copying = _copying(ov, products, top, seed)
                writes = tuple(ov.writes(token, top) for token in tokens)
                pairs = () if units is None else _top_pairs(site, position, read, top)
                looks = tuple(_looks(site, position, read, token, top) for token in tokens)
                out.append(HeadCircuits(f"{site.name}:{index}", copying, writes, tuple(pairs), looks))
                bar.advance(1)
    return tuple(out)


def vocabulary_of(root: nn.Module, seen: Probe) -> Vocabulary:
    """The tokens of a model at both ends of its residual stream."""
    table = getattr(root, "get_input_embeddings", lambda: None)()
    unembedding = unembedding_of(root).weight.detach().double().cpu()  # type: ignore[operator, union-attr]
    if not isinstance(table, nn.Module) or getattr(getattr(table, "weight", None), "dim", lambda: 0)() != 2:
        raise Refused(f"{type(root).__name__} has no table of embeddings, so its circuits have no tokens.")
    with torch.no_grad():  # as the module gives them: some scale
        ids = torch.arange(table.weight.shape[0], device=table.weight.device)  # type: ignore[union-attr, index]
        embeddings = torch.cat([table(some).detach().double().cpu() for some in ids.split(8192)])
    if embeddings.shape[1] != unembedding.shape[1]:
        raise Refused(
            f"The embeddings of {type(root).__name__} have {embeddings.shape[1]} numbers and its unembedding reads {unembedding.shape[1]}: "
            "a projection stands between, so its circuits cannot be read off these two."
        )
    norm, notes = _final_norm(seen, unembedding.shape[1]), list[str]()
    if norm is not None:
        unembedding = unembedding * norm.weight
        unembedding = unembedding - unembedding.mean(1, keepdim=True) if norm.centred else unembedding
    return Vocabulary(embeddings, unembedding, tuple(notes))


def _final_norm(seen: Probe, hidden: int) -> FrozenNorm | None:
    """The norm that is given what a last layer gives."""
    lasts = [calls[0][1] for calls in seen.trace.layers.values() if calls]
    for norm, calls in reversed(list(seen.trace.norms.items())):
        for x, y in calls:
            if x.shape[-1] == hidden and lasts and x.shape == lasts[-1].shape and torch.equal(x, lasts[-1]):
                return frozen_norm(norm, x.double().cpu().flatten(0, -2), y.double().cpu().flatten(0, -2))
    return None


def _read(matrices: HeadMatrices, vocabulary: Vocabulary) -> Tensor:
    """What an attention is given for the embedding of each token alone: (vocabulary, hidden)."""
    norm = matrices.reading
    if norm is None:
        return vocabulary.embeddings
    like = next(iter(norm.parameters()), None)
    with torch.no_grad():
        rows = vocabulary.embeddings if like is None else vocabulary.embeddings.to(like)
        return torch.cat([norm(some).double().cpu() for some in rows.split(8192)])


def _unscaled(matrices: HeadMatrices, read: Tensor, site: Site) -> Tensor:
    return read


def _shuffled(vocabulary: Vocabulary, permutations: int, seed: int) -> list[Tensor]:
    """The unembedding as it is, and with its tokens shuffled."""
    draw = np.random.default_rng(seed)
    count = min(len(vocabulary.unembedding), len(vocabulary.embeddings))
    own = torch.arange(count)
    return [own, *(torch.from_numpy(draw.permutation(count)) for _ in range(permutations))]


@dataclass(frozen=True, eq=False)
class _Ov:
    """The full OV circuit of one head, in factors."""

    matrices: HeadMatrices
    position: int
    site: Site
    vocabulary: Vocabulary
    read: Tensor

    def logits(self, tokens: Tensor) -> Tensor:
        """What the head adds to every logit when it looks at each of these tokens: (tokens, vocabulary)."""
        return self._values(tokens) @ self.matrices.outputs[self.position].T @ self.vocabulary.unembedding.T

    def _values(self, tokens: Tensor) -> Tensor:
        return self.read[tokens] @ self.matrices.raw_values[self.position].T

    def writes(self, token: int, top: int) -> TokenWrites:
        """The tokens that the head promotes and demotes most when it looks at this one."""
        logits = self.logits(torch.tensor([token]))[0]
        up, down = logits.topk(min(top, len(logits))), (-logits).topk(min(top, len(logits)))
        promoted = tuple(zip(up.indices.tolist(), up.values.tolist(), strict=True))
        demoted = tuple(zip(down.indices.tolist(), (-down.values).tolist(), strict=True))
        rank = int((logits > logits[token]).sum()) + 1
        return TokenWrites(token, promoted, demoted, rank)


def _product(read: Tensor, order: Tensor) -> Tensor:
    raise NotImplementedError


def _copying(ov: _Ov, products: list[Tensor], top: int, seed: int) -> Copying:
    raise NotImplementedError


def _top_pairs(site: Site, position: int, read: Tensor, top: int) -> Iterator[TokenPair]:
    raise NotImplementedError


def _looks(site: Site, position: int, read: Tensor, token: int, top: int) -> Any:
    raise NotImplementedError
