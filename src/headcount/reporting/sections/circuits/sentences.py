"""What attributions and weights came to, in a sentence each. No torch."""

from __future__ import annotations

from ....documents.circuits.logit_attribution import AttributionDocument
from ....documents.circuits.weights import CircuitsDocument, HeadCircuits
from ....formatting import listed, signed
from ...run_reader import beyond_chance


def sentence(text: str) -> str:
    """A note as a sentence."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


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
