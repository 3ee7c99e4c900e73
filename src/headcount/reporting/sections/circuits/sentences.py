"""What circuits, attributions and weights came to, in a sentence each. No torch."""

from __future__ import annotations

from ....documents.circuits.logit_attribution import AttributionDocument
from ....documents.circuits.weights import CircuitsDocument, HeadCircuits
from ....documents.discovery.circuit import CircuitDocument
from ....formatting import listed, signed
from ....stats.faithfulness import Estimate
from ...run_reader import beyond_chance


def estimate(value: Estimate, digits: int = 2) -> str:
    """A value with its interval, where it has one: "0.93 [0.88, 0.97]"."""
    if value.low is None or value.high is None:
        return f"{value.value:.{digits}f}"
    return f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def of_circuit(data: CircuitDocument) -> str:
    """How few units are enough."""
    ends = f"The heads and MLPs of a circuit are {data.size} of {len(data.units):,}"
    faithful = next((point.faithfulness for point in data.points if point.kept == data.size), None)
    if faithful is None:
        return f"{ends}."
    edges = (
        ""
        if data.edge_circuit is None
        else f"; of edges, {data.edge_circuit.size:,} of {data.edge_circuit.of:,} are one"
    )
    return (
        f"{ends}: with all others as on corrupted prompts they have a faithfulness of {estimate(faithful)} to the whole "
        f"model's {data.clean.metric}, on {data.clean.n} examples that they were not found on{edges}."
    )


def of_attribution(data: AttributionDocument) -> str:
    """Which units add most to the logits."""
    sure = [one for one in data.units if beyond_chance(one.comparison)]
    most = sorted(sure, key=lambda one: -abs(one.comparison.difference))[:3]
    names = listed([f"{one.component} ({signed(one.comparison.difference, 2)})" for one in most]) if most else ""
    told = f"; most do {names}" if names else ""
    return (
        f"{len(sure)} of {len(data.units):,} units add something to the logits ({data.logits}) beyond chance "
        f"(n\u00a0=\u00a0{data.n}, Holm's correction){told}."
    )


def of_weights(data: CircuitsDocument) -> str:
    """Which heads copy, or compose."""
    if not data.heads:
        first = data.compositions[:1]
        pair = f": most does {first[0].writer} with {first[0].reader} ({first[0].kind})" if first else ""
        return f"By their weights, heads compose in {data.pairs_of_heads:,} pairs{pair}."
    copying = [head for head in by_copying(data) if head.copying.score > head.copying.highest]
    named = f": {listed([head.unit for head in copying])}" if copying else ""
    return f"By their weights, {len(copying)} of {len(data.heads):,} heads copy more than with the tokens of any shuffle{named}."


def by_copying(data: CircuitsDocument) -> list[HeadCircuits]:
    """The heads, those that copy most first."""
    return sorted(data.heads, key=lambda head: -head.copying.score)
