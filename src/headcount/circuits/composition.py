"""Composition of heads (Elhage et al. 2021): how much of what one head writes a later one reads, by the weights.

With W_QK = W_Q^T W_K and W_OV = W_O W_V, the Q-, K- and V-composition of a head 1 with a later head 2 are

    |W_QK2^T W_OV1|  /  (|W_QK2| |W_OV1|),      |W_QK2 W_OV1| / (...),      |W_OV2 W_OV1| / (|W_OV2| |W_OV1|)

in Frobenius norms. Random matrices have some of that too, so the mean over random ones of the same shapes is taken off. No matrix
of hidden by hidden is made: norms of products of factors are traces of products of small ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..documents.circuits.weights import KINDS, Composition
from ..errors import BadPlan
from ..model.anatomy import Anatomy, Site, Units
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..model.distributed.refusals import in_one_place
from ..progress import Bar
from .head_matrices import HeadMatrices, head_matrices, probe, small_batch

DRAWS = 20  # random heads for the baseline


def composition_scores(
    model: nn.Module,
    units: Units | None = None,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    batch: Any = None,
    specs: Iterable[ModuleSpec] = (),
) -> tuple[Composition, ...]:
    """Composition scores of heads with heads of later layers, the random baseline taken off, the largest first.

    The weights of the norms in front of attentions are folded in. Rotary embeddings turn queries and keys by their distance, and
    are left out: Q- and K-composition are those at distance zero. Pairs are within one stack; what cross-attention reads of the
    encoder is left out.

    Args:
        model: The model.
        units: Heads: only pairs with one of them, on either side; by default all pairs.
        draws: Random matrices for the baseline.
        seed: Seed of the random matrices.
        batch: What the model takes, a few tokens, to see where norms stand; by default it is made.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        A score for each pair of heads and each of Q, K and V, the one that is furthest above its baseline first.

    Examples:
        >>> model = hc.load("my-model")
        >>> found = hc.circuits.composition_scores(model, "3:7")
        >>> {one.reader for one in found} == {"3:7", *(f"{layer}:{head}" for layer in (4, 5) for head in range(8))}
        True
    """
    root = unwrap(model)
    in_one_place(root, "composition is not computed")
    anatomy = find(root, specs)
    wanted = None if units is None else {(unit.site, unit.index) for unit in anatomy.plan(units)}
    if draws < 2 or (wanted is not None and not wanted <= {(s.name, i) for s in anatomy.heads for i in s.ids}):
        raise BadPlan(
            f"Compositions are of heads, such as 3:7, and need draws of at least 2; I got {units!r:.60} and {draws}."
        )
    seen = probe(root, anatomy, small_batch(root) if batch is None else batch)
    factors = {site.name: _Factors.of(head_matrices(site, seen)) for site in anatomy.heads if len(site)}
    baselines: dict[tuple[int, ...], dict[str, tuple[float, float]]] = {}
    out = list[Composition]()
    pairs = [(one, two) for one in anatomy.heads for two in anatomy.heads if _reads(anatomy, one, two)]
    with Bar("composition", total=len(pairs)) as bar:
        for one, two in pairs:
            if wanted is None or any(name in (one.name, two.name) for name, _ in wanted):
                writer, reader = factors[one.name], factors[two.name]
                shape = (
                    *writer.matrices.outputs.shape[1:],
                    *(m.shape[1] for m in (reader.matrices.queries, reader.matrices.values)),
                )
                if shape not in baselines:
                    baselines[shape] = _baseline(shape, draws, seed)
                out += _scores(one, two, writer, reader, baselines[shape], wanted)
            bar.advance(1)
    return tuple(sorted(out, key=lambda one: -one.above))


@dataclass(frozen=True, eq=False)
class _Factors:
    """The matrices of an attention's heads, and the small products that norms are made of: (heads, width, width) each."""

    matrices: HeadMatrices
    queries: Tensor  # Q Q^T
    keys: Tensor
    values: Tensor
    outputs: Tensor  # O^T O

    @classmethod
    def of(cls, made: HeadMatrices) -> _Factors:
        q, k, v, o = made.queries, made.keys, made.values, made.outputs
        return cls(made, q @ q.mT, k @ k.mT, v @ v.mT, o.mT @ o)

    @property
    def qk(self) -> Tensor:
        """|W_QK|^2 of every head."""
        return _traces(self.queries, self.keys)

    @property
    def ov(self) -> Tensor:
        """|W_OV|^2 of every head."""
        return _traces(self.outputs, self.values)


def _traces(one: Tensor, other: Tensor) -> Tensor:
    """tr(A B) of symmetric matrices, one by one."""
    return (one * other).sum((-2, -1))


def _products(kind: str, writer: _Factors, reader: _Factors) -> Tensor:
    """Scores (readers, writers) of one kind."""
    inner = {"Q": reader.matrices.queries, "K": reader.matrices.keys, "V": reader.matrices.values}[kind]
    outer = {"Q": reader.keys, "K": reader.queries, "V": reader.outputs}[kind]
    own = reader.ov if kind == "V" else reader.qk
    middle = torch.einsum("rwd,sdv->rswv", inner, writer.matrices.outputs)  # what the reader makes of what is written
    # |A M B|^2 = tr(A^T A M B B^T M^T)
    left = torch.einsum("rwx,rsxv->rswv", outer, middle)
    square = torch.einsum("rswv,svu,rswu->rs", left, writer.values, middle)
    return (square.clamp(min=0) / (own[:, None] * writer.ov[None]).clamp(min=1e-300)).sqrt()


def _scores(
    one: Site,
    two: Site,
    writer: _Factors,
    reader: _Factors,
    baseline: dict[str, tuple[float, float]],
    wanted: set[tuple[str, int]] | None,
) -> Iterable[Composition]:
    for kind in KINDS if two.attention != "cross" else "Q":
        scores, (mean, sd) = _products(kind, writer, reader).tolist(), baseline[kind]
        for row, index in zip(scores, two.ids, strict=True):
            for score, source in zip(row, one.ids, strict=True):
                if wanted is None or {(one.name, source), (two.name, index)} & wanted:
                    yield Composition(
                        f"{one.name}:{source}", f"{two.name}:{index}", kind, score, mean, sd, score - mean
                    )


def _baseline(shape: tuple[int, ...], draws: int, seed: int) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of the scores of random matrices (normal entries) of these shapes."""
    hidden, written, asked, read = shape
    generator = torch.Generator().manual_seed(seed)

    def drawn(rows: int, columns: int) -> Tensor:
        return torch.randn(draws, rows, columns, generator=generator, dtype=torch.float64)

    site: Any = None
    writer = HeadMatrices(
        site, drawn(written, hidden), drawn(written, hidden), drawn(written, hidden), drawn(hidden, written), None
    )
    reader = HeadMatrices(
        site, drawn(asked, hidden), drawn(asked, hidden), drawn(read, hidden), drawn(hidden, read), None
    )
    scores = {kind: _products(kind, _Factors.of(writer), _Factors.of(reader)) for kind in KINDS}
    return {kind: (float(some.mean()), float(some.std())) for kind, some in scores.items()}


def _reads(anatomy: Anatomy, one: Site, two: Site) -> bool:
    """Whether what one attention writes is in the stream that another reads: they are in one stack, and it is earlier."""
    first, second = (_place(anatomy, site) for site in (one, two))
    if first is None or second is None or not len(one) or not len(two):
        return False
    return first[0] == second[0] and first[1] < second[1]


def _place(anatomy: Anatomy, site: Site) -> tuple[str, int] | None:
    """The stack that an attention is in, and which of its layers."""
    for stack in anatomy.stacks:
        for number, block in enumerate(stack.blocks):
            if any(module is site.module for module in block.modules()):
                return stack.name, number
    return None
