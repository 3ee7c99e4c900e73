"""What heads do, as values: sums of what was counted, and `Roles`, which `head_roles.rules` makes of them. No torch.

Everything here comes from sums over sentences. What is counted in one sentence hangs together (its tokens share words, and
the head either likes such a sentence or not), so intervals and p-values take the sentence for the unit: each statistic is
a ratio of two sums over sentences, with the linearised variance of such a ratio (Cochran 1977, section 6.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from ..errors import BadPlan
from ..plans import read_json
from ..stats.paired_tests import SMALLEST

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
DIRECTIONS = ("dependent to governor", "governor to dependent")
FIRST = "first token"
PUNCTUATION = "punctuation"
Name = tuple[
    str, ...
]  # of a statistic: ("confidence",), ("offset", "-1"), ("accuracy", "nsubj", "dependent to governor")
Interval = tuple[
    float, float | None, float | None
]  # value, low and high, which are None where one sentence is all there is


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
    local: tuple[float, float | None, float | None, float] | None
    rare: dict[str, Any] | None
    induction: Interval | None
    copying: Interval | None


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
    heads: dict[str, tuple[float, ...]]
    earned: tuple[str, ...]
    best: dict[str, Any] | None = None


@dataclass(frozen=True)
class Roles:
    """What each head of a model does: its roles, by the rules of Voita et al. (2019) and some more, with all numbers."""

    model: str
    sentences: int
    tokens: int
    sets: str
    heads: tuple[Head, ...]
    relations: tuple[Relation, ...]
    examples: tuple[dict[str, Any], ...]
    rules: Mapping[str, float]
    versions: Mapping[str, str]

    @property
    def main(self) -> dict[str, str]:
        """The main role of every head, "none" for those without one."""
        return {head.unit: head.main for head in self.heads}

    def of(self, unit: object) -> tuple[Role, ...]:
        """The roles of a head, such as "3:7"."""
        found = next((head.roles for head in self.heads if head.unit == str(unit)), None)
        if found is None:
            raise BadPlan(f"{unit!s:.60} is none of the {len(self.heads)} heads that were looked at; see `.main`.")
        return found

    def survivors(self, order: Iterable[object]) -> list[dict[str, int]]:
        """How many heads of each main role are left: before anything goes, and after each unit of `order` is gone.

        Units that are not heads count as steps and change nothing.
        """
        main = self.main
        left = {role: count for role in ORDER if (count := list(main.values()).count(role))}
        out, gone = [dict(left)], set()
        for unit in map(str, order):
            if unit in main and unit not in gone:
                left[main[unit]] -= 1
                gone.add(unit)
            out.append(dict(left))
        return out

    def to_json(self) -> dict[str, Any]:
        """roles.json: everything, and for each head with a role a short text of what it does."""
        heads = [{**head._asdict(), "roles": [role._asdict() for role in head.roles]} for head in self.heads]
        return {
            "format": FORMAT,
            "model": self.model,
            "sentences": self.sentences,
            "tokens": self.tokens,
            "sets": self.sets,
            "roles": {head.unit: ", ".join(map(str, head.roles)) for head in self.heads if head.roles},
            "heads": [{name: _plain(value) for name, value in head.items()} for head in heads],
            "relations": [{name: _plain(value) for name, value in one._asdict().items()} for one in self.relations],
            "examples": [dict(example) for example in self.examples],
            "rules": dict(self.rules),
            "versions": dict(self.versions),
        }

    @classmethod
    def from_json(cls, data: Any) -> Roles:
        """The roles that `to_json` wrote, or an error with what is wrong with them."""
        seen = data.get("format") if isinstance(data, dict) else data
        if seen != FORMAT or isinstance(seen, bool):
            raise BadPlan(f"Roles are an object of format {FORMAT}; I got {seen!r:.40}: give roles of this headcount.")
        try:
            heads = tuple(_head(one) for one in data["heads"])
            relations = tuple(map(_relation, data["relations"]))
            wrong = [head for head in heads if head.main not in ORDER]
            if wrong or len({head.unit for head in heads}) != len(heads):
                raise ValueError(f"main role {wrong[0].main!r:.30}" if wrong else "a head is there twice")
            return cls(
                str(data["model"]),
                int(data["sentences"]),
                int(data["tokens"]),
                str(data["sets"]),
                heads,
                relations,
                tuple(map(dict, data["examples"])),
                dict(data["rules"]),
                dict(data["versions"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"{type(error).__name__}: {error!s:.60}"
            raise BadPlan(f"These are not roles that headcount wrote ({why}); find them again.") from None

    @classmethod
    def read(cls, path: str | Path) -> Roles:
        """The roles in a JSON file."""
        return cls.from_json(read_json(Path(path), LARGEST_FILE))

    def __str__(self) -> str:
        some = [head for head in self.heads if head.roles]
        lines = [f"{self.model}: {len(some)} of {len(self.heads)} heads have a role ({self.sets})"]
        width = max((len(head.unit) for head in some), default=0)
        lines += [f"{head.unit:<{width}}  {'; '.join(role.text for role in head.roles)}" for head in some]
        return "\n".join(lines)


def signed(offset: int) -> str:
    """An offset as it is written: -1, 0, +1."""
    return f"{offset:+d}" if offset else "0"


def _plain(value: Any) -> Any:
    """Tuples as lists, as they come back from JSON."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value


def _relation(data: Mapping[str, Any]) -> Relation:
    best = data.get("best") and {**data["best"], "numbers": tuple(data["best"]["numbers"])}
    heads = {unit: tuple(values) for unit, values in data["heads"].items()}
    return Relation(**{**data, "heads": heads, "earned": tuple(data["earned"]), "best": best})


def _head(data: Mapping[str, Any]) -> Head:
    def pair(value: Any) -> Any:
        return None if value is None else tuple(value)

    roles = tuple(Role(**role) for role in data["roles"])
    rare = data["rare"] and {name: pair(v) if isinstance(v, list) else v for name, v in data["rare"].items()}
    tuples = {name: pair(data[name]) for name in ("confidence", "entropy", "local", "induction", "copying")}
    return Head(**{**data, **tuples, "roles": roles, "rare": rare})
