"""circuit.json: the circuit that was found, its faithfulness over sizes, scores of units and edges. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...plans import Plan
from ...stats.faithfulness import Estimate
from ..reading import SOMETIMES, JsonDocument
from ..results import ResultDocument
from .patch_check import PatchCheck


@dataclass(frozen=True, kw_only=True)
class CircuitPoint:
    """The best `kept` units, all others as on the corrupted prompts; random circuits of that size, the mean over seeds.

    `found` is the faithfulness on the examples that the circuit was found on.
    """

    kept: int
    share: float
    value: float
    faithfulness: Estimate
    found: float
    random: float | None = None


@dataclass(frozen=True, kw_only=True)
class CircuitUnit:
    """A head or MLP: its score, the standard error of it, its rank from 1 on, and whether it is in the circuit."""

    unit: str
    score: float
    stderr: float | None = None
    rank: int
    kept: bool


@dataclass(frozen=True, kw_only=True)
class CircuitEdge:
    """An edge: who writes, who reads, the nodes that the reader belongs to, and the estimated and the exact effect."""

    writer: str
    reader: str
    units: tuple[str, ...]
    score: float
    stderr: float | None = None
    exact: float | None = field(default=None, metadata=SOMETIMES)


@dataclass(frozen=True, kw_only=True)
class CircuitDocument(JsonDocument):
    """What `circuit` found: on some examples, and how faithful it is on others.

    `plan` has the units that are not in the circuit: masked with their counterfactuals, the circuit is left. `nothing` is the
    metric with every unit masked like that.
    """

    NAME: ClassVar[str] = "circuit"

    by: str
    ranked: str  # "signed", "absolute" or "edges"
    sets: str = ""
    signature: str = ""
    clean: ResultDocument
    corrupted: ResultDocument
    nothing: ResultDocument
    points: tuple[CircuitPoint, ...]
    cpr: Estimate
    cmd: Estimate
    random_cpr: float | None = None
    reach: float
    size: int  # units in the circuit
    plan: Plan
    units: tuple[CircuitUnit, ...]
    edges: tuple[CircuitEdge, ...] = ()
    of_edges: int = 0
    check: PatchCheck | None = field(default=None, metadata=SOMETIMES)
    edge_check: PatchCheck | None = field(default=None, metadata=SOMETIMES)
    no_edges: str = field(default="", metadata=SOMETIMES)  # why there are none

    @property
    def kept(self) -> tuple[str, ...]:
        """The heads and MLPs of the circuit, the most important first."""
        return tuple(unit.unit for unit in sorted(self.units, key=lambda unit: unit.rank) if unit.kept)

    @property
    def point(self) -> CircuitPoint:
        """The point of the circuit itself."""
        return next(point for point in self.points if point.kept == self.size)

    def graph(self) -> dict[str, Any]:
        """Nodes and edges between units of the circuit, for `draw_circuit`: edges of one pair of nodes are added up."""
        nodes = ["embeddings", *self.kept, "logits"]
        weights: dict[tuple[str, str], float] = {}
        for edge in self.edges:
            for unit in edge.units:
                if edge.writer in nodes and unit in nodes:
                    weights[edge.writer, unit] = weights.get((edge.writer, unit), 0.0) + edge.score
        joined = {name for pair in weights for name in pair}
        return {
            "nodes": [node for node in nodes if node in joined or not weights],
            "edges": [(writer, unit, weight) for (writer, unit), weight in weights.items()],
        }
