"""Logit attributions, circuits and heads by name as text for a terminal. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...formatting import probability, signed
from ..tables import columns_text

if TYPE_CHECKING:
    from ...documents.circuits.logit_attribution import AttributionDocument, Component
    from ...documents.circuits.named_heads import HeadKind, HeadScore, HeadsDocument
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


def heads_text(document: HeadsDocument, top: int) -> str:
    """For every kind the heads with the highest scores, which of them are named, and how many examples are enough."""
    lines = [f"{document.model}, heads by name (* named: mean and p suffice)"]
    lines += [f"note: {note}" for note in document.notes]
    for kind in document.kinds:
        lines += _kind(kind, top)
    return "\n".join(lines)


def _kind(kind: HeadKind, top: int) -> list[str]:
    named = kind.named
    lines = ["", f"{kind.kind}: {len(named)} of {len(kind.heads)} heads", f"    {kind.score} ({kind.source})"]
    lines += [f"    {kind.read}; chance {kind.chance:.3f}; named from {kind.at_least:g} on"]
    lines += [f"    note: {note}" for note in kind.notes]
    rows = [_head(head) for head in kind.ranking[:top]]
    lines += [f"    {line}" for line in columns_text([("head", "score", "95% interval", "p (Holm)"), *rows], "<><>")]
    lines += [f"    ... and {len(named) - top} more named heads in heads.json"] * (len(named) > top)
    steps = [
        (f"{step.examples:,}", f"{step.half_width:.3f}", f"{step.same:.0%}", f"{step.overlap:.0%}")
        for step in kind.steps
    ]
    table = columns_text([("examples", "half-width", "same heads", "overlap"), *steps], ">>>>")
    return [*lines, *(f"    {line}" for line in table), f"    {_enough(kind)}"]


def _head(head: HeadScore) -> tuple[str, ...]:
    star = "*" if head.named else " "
    return f"{head.unit} {star}", f"{head.mean:.3f}", f"[{head.low:.3f}, {head.high:.3f}]", probability(head.p_holm)


def _enough(kind: HeadKind) -> str:
    more = "all that there are" if kind.kind == "successor" else "take more (--prompts)"
    if not kind.named and any(head.mean >= kind.at_least for head in kind.heads):
        return f"scores are high enough, and not beyond chance on {kind.examples:,} examples: {more}"
    if kind.enough is None:
        return f"{kind.examples:,} examples do not settle which heads are named: {more}"
    what = "the same heads" if kind.named else "none"
    return f"{kind.enough:,} examples are enough: nine in ten draws of so many name {what}"
