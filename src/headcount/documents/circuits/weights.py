"""circuits.json: what heads copy, promote and look at, and how they compose, read off the weights. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..reading import JsonDocument

KINDS = ("Q", "K", "V")


class Scored(NamedTuple):
    """A token, what it says where a tokenizer is known, and its logit or score."""

    token: int
    score: float
    text: str = ""


class Copying(NamedTuple):
    """Whether a head writes what it looks at: eigenvalues of its OV circuit on tokens, and tokens that promote themselves.

    `score` is the sum of the eigenvalues over the sum of their sizes; `baseline` and `highest` are the mean and the largest of
    scores with the tokens of one side shuffled. `own` is the share of tokens that are among the `top` that they promote; `chance`
    is that share of a random order.
    """

    score: float
    baseline: float
    highest: float
    permutations: int
    own: float
    chance: float
    top: int


class TokenWrites(NamedTuple):
    """What a head writes when it looks at a token: the logits it raises and lowers most, and the place of the token itself."""

    token: Scored
    promoted: tuple[Scored, ...]
    demoted: tuple[Scored, ...]
    rank: int
    looks_at: tuple[Scored, ...]  # keys that the token, as a query, matches best


class TokenPair(NamedTuple):
    """A query and a key that match, by the score of one with the other."""

    query: Scored
    key: Scored
    score: float


class HeadCircuits(NamedTuple):
    """What one head does with tokens, by its weights. `pairs` is empty where it was not asked for or cannot be had."""

    unit: str
    copying: Copying
    writes: tuple[TokenWrites, ...] = ()
    pairs: tuple[TokenPair, ...] = ()


class Composition(NamedTuple):
    """How much of what one head writes another reads, as its queries (Q), keys (K) or values (V).

    `score` is the Frobenius norm of the product over the product of the norms; `baseline` and `sd` are those of random matrices
    of the same shapes, and `above` is the difference.
    """

    writer: str
    reader: str
    kind: str
    score: float
    baseline: float
    sd: float
    above: float


@dataclass(frozen=True, kw_only=True)
class TokenCircuits(JsonDocument):
    """OV and QK circuits on tokens of some heads."""

    NAME: ClassVar[str] = "token-circuits"

    heads: tuple[HeadCircuits, ...]
    notes: tuple[str, ...] = ()

    def __getitem__(self, unit: object) -> HeadCircuits:
        """The circuits of one head."""
        return {head.unit: head for head in self.heads}[str(unit)]


@dataclass(frozen=True, kw_only=True)
class CircuitsDocument(JsonDocument):
    """What `circuits` found in the weights of a model."""

    NAME: ClassVar[str] = "circuits"

    model: str
    heads: tuple[HeadCircuits, ...] = ()
    compositions: tuple[Composition, ...] = ()
    pairs_of_heads: int = 0
    notes: tuple[str, ...] = ()
