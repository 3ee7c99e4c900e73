"""What heads do, as `roles` found it: the roles of each head, for a layer of the map and for its card. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..documents import roles as documents
from ..documents.roles import MARKS, BestHead, Head, Interval, RolesDocument
from ..formatting import MINUS, counted, fixed, listed, percent
from .findings import Part
from .map_cells import Key, View
from .run_reader import Document

NONE = "none"
# Main roles: where such a head looks. The first one that a head has earned is its main role.
_ABOUT = (
    "at the token that is so many places away, nearly always",
    "at the word at the other end of a grammatical relation",
    "at the word of the source that is written or read there",
    "at the rarest words of the sentence",
    "at what came after this token the last time",
    "at the same token, earlier",
    "at tokens close by, at no single one of them",
    "at punctuation",
    "at special tokens or the first one, where attention goes that has nothing to do",
    "nothing that has a name here",
)
KINDS = {role: (mark, about) for (role, mark), about in zip(MARKS.items(), _ABOUT, strict=True)}
COLOURS = {role: f"role{n}" for n, role in enumerate(KINDS, 1)} | {NONE: "faint"}
_LONGER = {"rare": "rare words"}
NAMES = {role: f"{_LONGER.get(role, role)} ({mark})" if mark else "no role" for role, (mark, _) in KINDS.items()}
_SAID = {"rare": "for rare words", "alignment": "for alignment", "induction": "for induction", "copying": "for copying"}
_SAID |= {"punctuation": "for punctuation", "sink": "for sinks"}  # the others are said as they are
NOT_SPECIAL = ("first token", "punctuation")  # places of attention that are no special tokens


class Relation(NamedTuple):
    """How well heads find the other end of a relation: accuracy, gain with its interval, and Holm's p of each."""

    type: str
    relation: str
    direction: str
    offset: int | None
    baseline: float
    pairs: int
    heads: Mapping[str, tuple[float | None, ...]]
    earned: tuple[str, ...]
    fresh: BestHead | None  # chosen on every other sentence, told on the rest

    @property
    def best(self) -> str:
        """The head that gains most."""
        return self.fresh.unit if self.fresh else max(self.heads, key=lambda unit: self.heads[unit][1] or 0.0)

    @property
    def told(self) -> tuple[float | None, ...]:
        """Its accuracy, gain, the ends of the gain's interval, and p."""
        numbers = self.fresh.numbers if self.fresh else self.heads[self.best][:4]
        return (*numbers, self.heads[self.best][4])

    @property
    def beside(self) -> float:
        """What the best fixed offset gets right on the same sentences."""
        accuracy, gain = self.told[:2]
        return self.baseline if self.fresh is None or accuracy is None or gain is None else accuracy - gain


class Example(NamedTuple):
    """A sentence with the attention of every head of a type: hexadecimal weights, row by row."""

    name: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    special: tuple[bool, ...]  # of the keys
    attention: dict[str, str]


class Cast(NamedTuple):
    """All that one run of `roles` found."""

    document: Document[RolesDocument]
    called: str  # what tells it from other runs; empty where there is no other
    sets: str
    heads: dict[str, Head]
    relations: tuple[Relation, ...]
    examples: tuple[Example, ...]

    @property
    def mains(self) -> dict[str, str]:
        """The main role of each head."""
        return {unit: head.main for unit, head in self.heads.items()}


def casts(part: Part) -> list[Cast]:
    """What runs of `roles` found, in the order of the runs."""
    role_documents = [document for document in part.of(RolesDocument) if document.data.heads]
    return [_cast(document, len(role_documents) > 1) for document in role_documents]


def by_role(mains: Mapping[str, str], among: Sequence[str] | frozenset[str] | None = None) -> dict[str, int]:
    """How many heads of each main role there are (`among` some of them), for all roles that occur at all, in their order."""
    counts = {role: 0 for role in KINDS if role in mains.values()}
    for unit in mains if among is None else (unit for unit in among if unit in mains):
        counts[mains[unit]] += 1
    return counts


def told(cast: Cast) -> str:
    """How many heads have which role, in one sentence."""
    counts = by_role(cast.mains)
    none = counts.pop(NONE, 0)
    named = [f"{count} {_SAID.get(role, role)}" for role, count in counts.items()]
    no_role = [f"{none} without a role that has a name here"] if none else []
    return f"{counted(len(cast.heads), 'head')}: {listed([*named, *no_role], most=len(KINDS))}."


# -- for the map -----------------------------------------------------------------------------------------------------------


def role_views(part: Part, units: Sequence[str]) -> list[View]:
    """The roles as colours and letters of cells, a view for each run."""
    out = []
    for cast in casts(part):
        counts = by_role(cast.mains, units)
        order = list(counts)
        places = [float(order.index(cast.heads[unit].main)) if unit in cast.heads else None for unit in units]
        keys = tuple(Key(NAMES[role], KINDS[role][0], COLOURS[role], KINDS[role][1], n) for role, n in counts.items())
        about = "Colours and letters are main roles: what each head looks at. Letters and numbers are explained below."
        name = "Role: what each head looks at" + (f" ({cast.called})" if cast.called else "")
        out.append(View(name, about, False, places, [], "", "", keys))
    return out


def role_facts(part: Part) -> dict[str, dict[str, str]]:
    """What to say about each head in a few words, by what it is: texts by unit."""
    heads = _heads(part)
    sure = {unit: _span_text(head.confidence) for unit, head in heads.items()}
    nats = {unit: _span_text(head.entropy, " nats") for unit, head in heads.items()}
    most = {
        unit: ", ".join(f"{_offset(o)} ({percent(n)})" for o, n in head.offsets.items() if round(100 * n))
        for unit, head in heads.items()
    }
    mass = {
        unit: ", ".join(f"{name} {percent(n)}" for name, n in head.mass.items() if round(100 * n))
        for unit, head in heads.items()
    }
    return {"Confidence": sure, "Entropy": nats, "Looks most often": most, "Attention given to": mass}


def card(part: Part, units: Sequence[str]) -> dict[str, Any]:
    """What the page's script draws of each head: its roles in sentences, and its attention on the examples."""
    numbers = {unit: n for n, unit in enumerate(units)}
    heads = {
        str(numbers[unit]): [{"text": role.text, "sure": role.sure} for role in head.roles]
        for unit, head in _heads(part).items()
        if unit in numbers
    }
    examples = [
        {
            "name": example.name,
            "queries": example.queries,
            "keys": example.keys,
            "special": example.special,
            "attention": {str(numbers[unit]): text for unit, text in example.attention.items() if unit in numbers},
        }
        for cast in casts(part)[:1]
        for example in cast.examples
    ]
    return {"heads": heads, "examples": examples} if heads else {}


def _heads(part: Part) -> dict[str, Head]:
    """Every head, as the first run that knows it has it."""
    return {unit: head for cast in casts(part)[::-1] for unit, head in cast.heads.items()}


def _span_text(span: Interval, unit: str = "") -> str:
    value, low, high = span
    if value is None:
        return ""
    ends = "" if low is None or high is None else f" [{fixed(low, 2)}, {fixed(high, 2)}]"
    return fixed(value, 2) + ends + unit


def _offset(offset: str) -> str:
    """An offset in words."""
    away = int(offset)
    return "at itself" if not away else f"{counted(abs(away), 'token')} {'back' if away < 0 else 'ahead'}"


def offset_text(offset: int) -> str:
    """An offset as a number with its sign."""
    return f"+{offset}" if offset > 0 else str(offset).replace("-", MINUS)


# -- reading ---------------------------------------------------------------------------------------------------------------


def _cast(document: Document[RolesDocument], several: bool) -> Cast:
    data = document.data
    special = {name for head in data.heads for name in head.mass} - {*NOT_SPECIAL}
    return Cast(
        document,
        document.run.folder.name if several else "",
        data.sets,
        {head.unit: head for head in data.heads},
        tuple(map(_relation, data.relations)),
        tuple(_example(example, special) for example in data.examples),
    )


def _relation(relation: documents.Relation) -> Relation:
    fields = (
        str(relation.type),
        relation.relation,
        relation.direction,
        relation.offset,
        relation.baseline,
        relation.pairs,
    )
    return Relation(*fields, relation.heads, relation.earned, relation.best)


def _example(example: documents.Example, special: set[str]) -> Example:
    keys = example.queries if example.keys is None else example.keys
    return Example(example.name, example.queries, keys, tuple(key in special for key in keys), example.attention)
