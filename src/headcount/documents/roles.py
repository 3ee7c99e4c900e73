"""What heads do, as values: sums of what was counted, and `Roles`, which `head_roles.rules` makes of them. No torch.

Everything here comes from sums over sentences. What is counted in one sentence hangs together (its tokens share words, and
the head either likes such a sentence or not), so intervals and p-values take the sentence for the unit: each statistic is
a ratio of two sums over sentences, with the linearised variance of such a ratio (Cochran 1977, section 6.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import special

from .. import notebook
from ..errors import BadPlan, BadRun
from ..plans import read_json
from ..stats.paired_tests import SMALLEST
from .reading import JsonDocument

FORMAT = 1
LARGEST_FILE = 200_000_000  # bytes; ten thousand heads with all they can say have a tenth of that
LEVEL = 0.95
RULES: dict[str, float] = {
    "positional: share of tokens": 0.90,
    "positional: tokens that have such a neighbour": 0.50,
    "positional: furthest offset": 10,
    "syntactic and alignment: gain over the best offset": 0.10,
    "syntactic and alignment: sentences": 20,
    "corrected p below": 0.05,
    "rare: share of words": 0.50,
    "rare: gain over chance": 0.10,
    "rare: most frequent words that are not rare": 500,
    "rare: words in a sentence": 6,
    "sink: mass": 0.50,
    "sink: gain over uniform": 0.10,
    "punctuation: mass": 0.50,
    "punctuation: gain over uniform": 0.10,
    "local: tokens": 2,
    "local: mass": 0.70,
    "local: gain over uniform": 0.10,
    "induction and copying: share of tokens": 0.50,
}
FURTHEST = int(RULES["positional: furthest offset"])
ORDER = ("positional", "syntactic", "alignment", "rare", "induction", "copying", "local", "punctuation", "sink", "none")
# the letters of main roles on maps; the colours there are role1, role2, ... of the palettes, in the same order
MARKS = dict(zip(ORDER, ("P", "S", "A", "R", "I", "C", "L", "Pu", "Si", ""), strict=True))
DIRECTIONS = ("dependent to governor", "governor to dependent")
FIRST = "first token"
_HEX = re.compile(r"[0-9a-fA-F]*")
PUNCTUATION = "punctuation"
Name = tuple[
    str, ...
]  # of a statistic: ("confidence",), ("offset", "-1"), ("accuracy", "nsubj", "dependent to governor")
# value, low and high: the ends are None where one sentence is all there is, and all three where nothing was found
Interval = tuple[float | None, float | None, float | None]


class Estimates(NamedTuple):
    """Ratios with their 95 % intervals and the p-values of "not above zero"; arrays of one shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    n: np.ndarray


def estimated(sums: np.ndarray) -> Estimates:
    """Ratios sum(e) / sum(n) from the sums over sentences of e, n, e e, e n, n n, and the number of sentences with n > 0.

    With z = e - ratio n in each of G sentences the variance is G / (G - 1) sum(z z) / sum(n)^2, and t has G - 1 degrees of
    freedom. Of fewer than two sentences nothing is known: the interval is the whole line, and p is 1.
    """
    e, n, ee, en, nn, sentences = np.asarray(sums, dtype=np.float64)
    value = np.divide(e, n, out=np.zeros_like(e), where=n > 0)
    squares = np.maximum(ee - 2 * value * en + value**2 * nn, 0.0)
    freedom = np.maximum(sentences - 1, 1)
    error = np.sqrt(sentences / freedom * squares) / np.where(n > 0, n, 1)
    unknown = sentences < 2
    reach = np.where(unknown, np.inf, special.stdtrit(freedom, (1 + LEVEL) / 2) * error)
    t = np.divide(value, error, out=np.where(value > 0, np.inf, -np.inf), where=error > 0)
    p = np.where(unknown, 1.0, np.clip(special.stdtr(freedom, -t), SMALLEST, 1.0))
    return Estimates(value, value - reach, value + reach, p, n)


@dataclass(frozen=True, eq=False)
class SentenceSums:
    """For each statistic and head the sums over sentences that `estimated` needs: (6, statistics, heads). Tallies add."""

    names: tuple[Name, ...]
    sums: np.ndarray

    def __add__(self, other: SentenceSums) -> SentenceSums:
        if self.names != other.names or self.sums.shape != other.sums.shape:
            raise BadPlan("These tallies count different things or are of different heads; add those of one question.")
        return SentenceSums(self.names, self.sums + other.sums)

    def __contains__(self, name: Name) -> bool:
        return name in self.names

    def __getitem__(self, name: Name) -> Estimates:
        """What one statistic is, for each head."""
        return estimated(self.sums[:, self.names.index(name)])


class Tested(NamedTuple):
    """A relation, one of its directions, and what the best fixed offset (in words) gets right; known before any model runs."""

    relation: str
    direction: str
    offset: int
    baseline: float
    pairs: int
    sentences: int


class Observed(NamedTuple):
    """What was counted for all heads of one type of attention."""

    type: str | None
    units: tuple[str, ...]
    tally: SentenceSums
    tested: tuple[Tested, ...] = ()
    probed: SentenceSums | None = None
    parts: tuple[SentenceSums, SentenceSums] | None = None  # every other sentence, and the rest


class Role(NamedTuple):
    """One thing that a head does, how much of the time, and how sure that is (`sure`: so is the interval's lower end)."""

    role: str
    what: str
    value: float
    low: float | None
    high: float | None
    baseline: float | None
    p: float | None
    sure: bool | None
    text: str

    def __str__(self) -> str:
        return f"{self.role} ({self.what})" if self.what else self.role


class RareWords(NamedTuple):
    """How often a head looks at the rarest word, and at one of the two rarest, and how often it would by chance."""

    rarest: Interval | None
    two: Interval | None
    chance: float | None


class BestHead(NamedTuple):
    """A head chosen on every other sentence, with its accuracy, gain, and the ends of the gain's interval on the rest."""

    unit: str
    numbers: tuple[float | None, float | None, float | None, float | None]


class Head(NamedTuple):
    """All that was found out about one head. `main` is the first of its roles in the order of `ORDER`, or "none"."""

    unit: str
    site: str
    type: str | None
    main: str
    confidence: Interval
    entropy: Interval
    roles: tuple[Role, ...]
    offsets: dict[str, float]
    mass: dict[str, float]
    local: tuple[float, float | None, float | None, float] | None = None
    rare: RareWords | None = None
    induction: Interval | None = None
    copying: Interval | None = None


class Relation(NamedTuple):
    """A relation in one direction: the best heads as (accuracy, gain, low and high of the gain, corrected p).

    `best` is the head that gains most on every other sentence, with its accuracy and gain on the rest: what chose it does
    not flatter it.
    """

    type: str | None
    relation: str
    direction: str
    offset: int
    baseline: float
    pairs: int
    sentences: int
    heads: dict[str, tuple[float | None, float | None, float | None, float | None, float | None]]
    earned: tuple[str, ...]
    best: BestHead | None = None


class Example(NamedTuple):
    """A sentence with the attention of every head of a type: hexadecimal weights, row by row. Keys are None: the queries."""

    name: str
    type: str | None
    queries: tuple[str, ...]
    keys: tuple[str, ...] | None
    attention: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class RolesDocument(JsonDocument):
    """roles.json: what each head does, a short text for each head with a role, and the numbers behind it."""

    NAME: ClassVar[str] = "roles"

    format: int = FORMAT
    model: str = ""
    sentences: int = 0
    tokens: int = 0
    sets: str = ""
    roles: dict[str, str]
    heads: tuple[Head, ...] = ()
    relations: tuple[Relation, ...] = ()
    examples: tuple[Example, ...] = ()
    rules: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({head.unit for head in self.heads}) < len(self.heads):
            raise ValueError("a head is there twice")
        for head in self.heads:
            if head.main not in ORDER:
                raise ValueError(f"main role {head.main!r:.30}")
        for relation in self.relations:
            if relation.best is not None and relation.best.unit not in relation.heads:
                raise ValueError(
                    f"the best head of {relation.relation:.20}, {relation.best.unit:.20}, is none of its heads"
                )
        for example in self.examples:
            self._check_attention(example)

    def _check_attention(self, example: Example) -> None:
        rows = len(example.queries)
        columns = rows if example.keys is None else len(example.keys)
        for unit, weights in example.attention.items():
            if len(weights) != 2 * rows * columns or not _HEX.fullmatch(weights):
                raise ValueError(f"the attention of {unit:.20} is not {rows} × {columns} weights")


@dataclass(frozen=True)
class Roles:
    """What each head of a model does: its roles, by the rules of Voita et al. (2019) and some more, with all numbers."""

    model: str
    sentences: int
    tokens: int
    sets: str
    heads: tuple[Head, ...]
    relations: tuple[Relation, ...]
    examples: tuple[Example, ...]
    rules: dict[str, float]
    versions: dict[str, str]

    @property
    def main(self) -> dict[str, str]:
        """The main role of every head, "none" for those without one."""
        return {head.unit: head.main for head in self.heads}

    def of(self, unit: object) -> tuple[Role, ...]:
        """The roles of a head, such as "3:7"."""
        roles = next((head.roles for head in self.heads if head.unit == str(unit)), None)
        if roles is None:
            raise BadPlan(f"{unit!s:.60} is none of the {len(self.heads)} heads that were looked at; see `.main`.")
        return roles

    def survivors(self, order: Iterable[object]) -> list[dict[str, int]]:
        """How many heads of each main role are left: before anything goes, and after each unit of `order` is gone.

        Units that are not heads count as steps and change nothing.
        """
        main = self.main
        counts = {role: count for role in ORDER if (count := list(main.values()).count(role))}
        out, removed_units = [dict(counts)], set()
        for unit in map(str, order):
            if unit in main and unit not in removed_units:
                counts[main[unit]] -= 1
                removed_units.add(unit)
            out.append(dict(counts))
        return out

    def document(self) -> RolesDocument:
        """roles.json: everything, and for each head with a role a short text of what it does."""
        texts = {head.unit: ", ".join(map(str, head.roles)) for head in self.heads if head.roles}
        return RolesDocument(roles=texts, **vars(self))

    def to_json(self) -> dict[str, Any]:
        """The document as JSON has it."""
        return self.document().to_json()

    @classmethod
    def from_json(cls, data: Any) -> Roles:
        """The roles that `to_json` wrote, or an error with what is wrong with them."""
        file_format = data.get("format") if isinstance(data, dict) else data
        if file_format != FORMAT or isinstance(file_format, bool):
            raise BadPlan(
                f"Roles are an object of format {FORMAT}; I got {file_format!r:.40}: give roles of this headcount."
            )
        missing = [name for name in cls.__dataclass_fields__ if name not in data]
        if missing:
            raise BadPlan(f"These are not roles that headcount wrote: {missing[0]} is missing; find them again.")
        try:
            document = RolesDocument.from_json(data)
        except BadRun as error:
            raise BadPlan(f"These are not roles that headcount wrote: {error}") from None
        return cls(**{name: getattr(document, name) for name in cls.__dataclass_fields__})

    @classmethod
    def read(cls, path: str | Path) -> Roles:
        """The roles in a JSON file."""
        return cls.from_json(read_json(Path(path), LARGEST_FILE))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        some = [head for head in self.heads if head.roles]
        title = f"{self.model}: {len(some)} of {len(self.heads)} heads have a role"
        rows = [(head.unit, head.main, "; ".join(role.text for role in head.roles)) for head in some]
        table = notebook.table(["head", "main role", "what it does"], rows, left=3)
        sites: dict[str, dict[str, tuple[str, str, str]]] = {}
        for head in self.heads:
            mark = MARKS.get(head.main, head.main[:2])
            colour = f"role{1 + ORDER.index(head.main)}" if head.main in ORDER[:-1] else "role9"
            said = "; ".join(role.text for role in head.roles) or "no role"
            site, _, index = head.unit.rpartition(":")
            sites.setdefault(site, {})[index] = (colour, mark, f"{head.unit}: {said}")
        seen = {head.main for head in self.heads}
        meaning = [(mark, role) for role, mark in MARKS.items() if mark and role in seen]
        drawn = notebook.lettered(sites, meaning) if sites else ""
        return notebook.block(notebook.line(title, bold=True), notebook.line(self.sets), drawn, table)

    def __str__(self) -> str:
        some = [head for head in self.heads if head.roles]
        lines = [f"{self.model}: {len(some)} of {len(self.heads)} heads have a role ({self.sets})"]
        width = max((len(head.unit) for head in some), default=0)
        lines += [f"{head.unit:<{width}}  {'; '.join(role.text for role in head.roles)}" for head in some]
        return "\n".join(lines)


def signed(offset: int) -> str:
    """An offset as it is written: -1, 0, +1."""
    return f"{offset:+d}" if offset else "0"
