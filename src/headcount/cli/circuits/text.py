"""Logit attributions and circuits as text for a terminal. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...formatting import probability, signed
from ..tables import columns_text

if TYPE_CHECKING:
    from ...documents.circuits.logit_attribution import AttributionDocument, Component
    from ...documents.circuits.weights import CircuitsDocument, HeadCircuits, Scored

MOST = 20  # components in the table


def attribution_text(document: AttributionDocument) -> str:
    """The units that add most, what embeddings and biases add, and how many units differ from nothing."""
    lines = [
        document.signature,
        "",
        f"logit: {document.logits}, {document.total:+.3f} on average over {document.n} examples",
    ]
    lines += [f"note: {note}" for note in document.notes]
    ordered = sorted(document.units, key=lambda one: -abs(one.comparison.difference))
    header = ("component", "adds", "95% interval", "p (Holm)")
    lines += ["", *columns_text([header, *map(_row, ordered[:MOST])], "<>><")]
    others = [one for one in document.others if one.comparison.low or one.comparison.high]  # no biases: nothing to show
    lines += ["", *columns_text([("besides", *header[1:]), *map(_row, others)], "<>><")]
    sure = sum((one.comparison.p_holm or 1.0) < 0.05 for one in document.units)
    lines += ["", f"{sure} of {len(document.units)} units add something beyond chance (p < 0.05, Holm)"]
    if len(ordered) > MOST:
        lines.append(f"{len(ordered) - MOST} more units are in logit-attribution.json")
    return "\n".join(lines)


def _row(one: Component) -> tuple[str, ...]:
    c = one.comparison
    p = "" if c.p_holm is None else probability(c.p_holm)
    return one.component, signed(c.difference, 3), f"[{signed(c.low, 3)}, {signed(c.high, 3)}]", p


def circuits_text(document: CircuitsDocument, top: int) -> str:
    """Copying of heads, what the named ones write and look at, and the strongest compositions."""
    lines = [document.model, *(f"note: {note}" for note in document.notes)]
    if document.heads:
        lines += [
            "",
            "copying: eigenvalues of the OV circuit on tokens; shuffled: mean (highest); own: tokens that promote themselves",
        ]
        ordered = sorted(document.heads, key=lambda head: -head.copying.score)
        shown = ordered if len(ordered) <= 2 * top else [*ordered[:top], *ordered[-top:]]
        lines += columns_text([("head", "copying", "shuffled", "own", "chance"), *map(_copying, shown)], "<>>>>")
        if len(shown) < len(ordered):
            lines.append(f"the {top} that copy most and least of {len(ordered)} heads")
    for head in document.heads:
        lines += _detail(head)
    if document.compositions:
        lines += [
            "",
            f"composition of {document.pairs_of_heads:,} pairs of heads, and how far it is above that of random matrices",
        ]
        rows = [
            (f"{one.writer} -> {one.reader}", one.kind, f"{one.score:.3f}", f"{one.baseline:.3f}", signed(one.above, 3))
            for one in document.compositions[:top]
        ]
        lines += columns_text([("heads", "as", "score", "random", "above"), *rows], "<<>>>")
    return "\n".join(lines)


def _copying(head: HeadCircuits) -> tuple[str, ...]:
    c = head.copying
    shuffled = f"{signed(c.baseline, 3)} ({signed(c.highest, 3)})"
    return head.unit, signed(c.score, 3), shuffled, f"{c.own:.1%}", f"{c.chance:.2%}"


def _detail(head: HeadCircuits) -> list[str]:
    lines = list[str]()
    for writes in head.writes:
        lines += ["", f"{head.unit} when it looks at {_word(writes.token)}: itself in place {writes.rank:,}"]
        lines += [f"  promotes  {_words(writes.promoted)}", f"  demotes   {_words(writes.demoted)}"]
        lines += [f"  and {_word(writes.token)} looks at  {_words(writes.looks_at)}"] if writes.looks_at else []
    if head.pairs:
        pairs = ", ".join(f"{_word(pair.query)} -> {_word(pair.key)} {pair.score:.1f}" for pair in head.pairs)
        lines += ["", f"{head.unit} looks, by weights, most from -> at: {pairs}"]
    return lines


def _words(listed: Sequence[Scored]) -> str:
    return ", ".join(f"{_word(one)} {signed(one.score, 2)}" for one in listed)


def _word(one: Scored) -> str:
    return repr(one.text) if one.text else f"#{one.token}"
