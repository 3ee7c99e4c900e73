"""circuit.json: the circuit that was found, its faithfulness over sizes, scores of units and edges. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ... import notebook
from ...plans import Plan
from ...stats.faithfulness import Estimate
from ..reading import SOMETIMES, JsonDocument
from ..results import ResultDocument
from .patch_check import PatchCheck

MOST_DRAWN = 40  # edges of a picture
SHOWN = 24  # units in a text


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
    kept: bool = field(default=False, metadata=SOMETIMES)  # in the circuit of edges


@dataclass(frozen=True, kw_only=True)
class EdgeCircuit:
    """Circuits of edges over sizes, every other edge carrying what it carries on the corrupted prompt; `kept` counts edges.

    `size` is that of the smallest one that reaches the faithfulness asked for where it was found. With no edge kept the model
    does what it does on the corrupted prompts, embeddings included.
    """

    points: tuple[CircuitPoint, ...]
    cpr: Estimate
    cmd: Estimate
    random_cpr: float | None = None
    size: int
    of: int

    @property
    def point(self) -> CircuitPoint:
        """The point of the circuit itself."""
        return next(point for point in self.points if point.kept == self.size)


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
    edge_circuit: EdgeCircuit | None = field(default=None, metadata=SOMETIMES)
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

    @property
    def sentence(self) -> str:
        """What was found, in a sentence; where the model's own difference is not shown, that and no share of it."""
        if self.points and self.cpr.low is None:
            return (
                f"{self.clean.n} examples do not show that {self.clean.metric} of the model is another on clean prompts than on "
                "corrupted ones, so no circuit for it can be told from them."
            )
        told = f"{self.size} of {len(self.units):,} heads and MLPs are the circuit"
        faithful = next((point.faithfulness for point in self.points if point.kept == self.size), None)
        if faithful is not None:
            told += f": with all others as on corrupted prompts, a faithfulness of {faithful} to {self.clean.metric}"
            told += f" on {self.clean.n} examples that it was not found on"
        return f"{told}."

    def __str__(self) -> str:
        kept = " ".join(self.kept[:SHOWN]) + (" ..." if len(self.kept) > SHOWN else "")
        lines = [self.sentence, f"  {kept or 'no unit'}", f"CPR {self.cpr}, CMD {self.cmd}"]
        if self.edge_circuit is not None:
            edges = self.edge_circuit
            lines.append(f"the circuit of edges has {edges.size:,} of {edges.of:,}; CPR {edges.cpr}, CMD {edges.cmd}")
        return "\n".join([*lines, "`.points` has all sizes, `.graph()` what `hc.reporting.draw_circuit` draws"])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        first, *rest = str(self).splitlines()[:-1]
        curves = [("heads and MLPs", self.points)]
        curves += [] if self.edge_circuit is None else [("edges", self.edge_circuit.points)]
        drawn = [
            notebook.curve(
                [(100 * point.share, point.faithfulness.value) for point in points],
                f"% of {what} kept",
                "faithfulness",
                [point.faithfulness.span for point in points],
            )
            for what, points in curves
        ]
        return notebook.block(notebook.line(first, bold=True), *map(notebook.line, rest), *drawn)

    def graph(self, most: int = MOST_DRAWN) -> dict[str, Any]:
        """Nodes and the strongest edges between units of the circuit, for `hc.reporting.draw_circuit(**found.graph())`.

        An edge ends at the queries, keys or values of a head; keys and values of a group at those of all its heads. Intervals
        are two standard errors wide on either side.
        """
        nodes, edges = ["embeddings", *self.kept, "logits"], []
        for edge in sorted(self.edges, key=lambda edge: -abs(edge.score)):
            part = edge.reader[-2:] if edge.reader[-2:] in (".q", ".k", ".v") else ""
            reach = None if edge.stderr is None else 2 * edge.stderr
            span = () if reach is None else ((edge.score - reach, edge.score + reach),)
            ends = [unit for unit in edge.units if edge.writer in nodes and unit in nodes]
            edges += [(edge.writer, unit + part, edge.score, *span) for unit in ends]
        edges = edges[:most]
        joined = {
            name
            for edge in edges
            for name in (edge[0], edge[1][:-2] if edge[1][-2:] in (".q", ".k", ".v") else edge[1])
        }
        return {"nodes": [node for node in nodes if node in joined or not edges], "edges": edges}
