"""The scores of every head on every example, by kind, and what they come to. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ... import notebook
from ...documents.circuits.named_heads import HeadKind, HeadScore, HeadsDocument
from ...errors import BadPlan, NotFound
from ...hashing import versions
from .kinds import KINDS
from .naming import enough, enough_at, intervals, named


class Measured(NamedTuple):
    """One kind of head: the score of every head on every example, what chance gives there, and what was read."""

    values: np.ndarray  # (examples, heads)
    chance: np.ndarray  # (examples,)
    at_least: float
    read: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class NamedHeads:
    """Scores of heads by kind, example by example. `heads` are their names; `places` the numbers of their layers and heads."""

    model: str
    heads: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    measured: Mapping[str, Measured]
    seed: int = 0
    notes: tuple[str, ...] = ()

    def named(self, kind: str) -> tuple[str, ...]:
        """The heads of a kind, the highest score first."""
        one = self[kind]
        found = named(one.values, one.chance, one.at_least)
        order = np.argsort(-found.mean, kind="stable")
        return tuple(self.heads[n] for n in order if found.named[n])

    def __getitem__(self, kind: str) -> Measured:
        """The scores of one kind."""
        if kind not in self.measured:
            raise BadPlan(f"{kind!s:.40} was not measured; there is {', '.join(self.measured)}.")
        return self.measured[kind]

    def document(self, *, resamples: int = 1000, seed: int = 12345) -> HeadsDocument:
        """heads.json: means with intervals and tests, which heads are named, and how many examples are enough."""
        kinds = tuple(self._kind(kind, one, resamples, seed) for kind, one in self.measured.items())
        return HeadsDocument(model=self.model, kinds=kinds, seed=self.seed, notes=self.notes, versions=versions())

    def _kind(self, kind: str, one: Measured, resamples: int, seed: int) -> HeadKind:
        found = named(one.values, one.chance, one.at_least)
        low, high = intervals(one.values, resamples=resamples, seed=seed)
        columns = (found.mean, low, high, found.p, found.p_holm)
        rows = zip(self.heads, *(column.tolist() for column in columns), found.named.tolist(), strict=True)
        steps = enough(one.values, one.chance, one.at_least, seed=seed)
        return HeadKind(
            kind=kind,
            score=KINDS[kind].score,
            source=KINDS[kind].source,
            read=one.read,
            examples=len(one.values),
            at_least=one.at_least,
            chance=float(one.chance.mean()),
            heads=tuple(HeadScore(*row) for row in rows),
            steps=steps,
            enough=enough_at(steps),
            notes=one.notes,
        )

    def retrieval_list(self) -> list[dict[str, Any]]:
        """The retrieval heads for tools that keep a smaller KV cache for all others: layer, head, score, the best first."""
        one = self._retrieval()
        means, order = one.values.mean(0), {name: n for n, name in enumerate(self.heads)}
        low, high = intervals(one.values, resamples=1000, seed=12345)
        return [
            {"layer": self.places[n][0], "head": self.places[n][1], "score": float(means[n])}
            | {"low": float(low[n]), "high": float(high[n]), "unit": name}
            for name in self.named("retrieval")
            for n in [order[name]]
        ]

    def head_scores(self) -> dict[str, list[float]]:
        """The retrieval scores of all heads, one for each prompt: {"layer-head": [scores]}, as published lists have them."""
        one = self._retrieval()
        return {f"{layer}-{head}": one.values[:, n].tolist() for n, (layer, head) in enumerate(self.places)}

    def _retrieval(self) -> Measured:
        if "retrieval" not in self.measured:
            raise NotFound("No retrieval heads were looked for; add retrieval to the kinds (--kind).")
        return self.measured["retrieval"]

    def __str__(self) -> str:
        found = {kind: self.named(kind) for kind in self.measured}
        return "; ".join(f"{kind}: {', '.join(units) or 'none'}" for kind, units in found.items())

    def __repr__(self) -> str:
        return f"<NamedHeads {self}>"

    def _repr_html_(self) -> str:
        rows = [
            (kind, str(len(one.values)), ", ".join(self.named(kind)) or "none") for kind, one in self.measured.items()
        ]
        return notebook.block(notebook.line(self.model, bold=True), notebook.table(["kind", "examples", "heads"], rows))
