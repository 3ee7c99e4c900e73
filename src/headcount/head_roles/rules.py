"""The rules by which a head earns a role, from sums over sentences alone; and what that is in plain English. No torch.

Positional, syntactic and rare-word heads are those of Voita et al. (2019), section 5; what is counted is said in `analysis`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..documents.roles import (
    DIRECTIONS,
    FIRST,
    ORDER,
    PUNCTUATION,
    RULES,
    BestHead,
    Estimates,
    Example,
    Head,
    Interval,
    Name,
    Observed,
    RareWords,
    Relation,
    Role,
    Roles,
    estimated,
)
from ..hashing import versions
from ..stats.paired_tests import holm

MOST_HEADS = 10  # of a relation that are told about even if none of them earned it
_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_SHARES = {
    "induction": "on random tokens said twice, looks at what came after the earlier one in {} of positions{}",
    "copying": "on random tokens said twice, looks at the earlier one in {} of positions{}",
}


def named(
    seen: Sequence[Observed],
    *,
    model: str,
    sentences: int,
    tokens: int,
    sets: str,
    order: Sequence[str] = (),
    examples: Sequence[Example] = (),
) -> Roles:
    """Roles from what was counted, by the rules in `RULES`; heads in this `order` of units."""
    heads: list[Head] = []
    relations: list[Relation] = []
    for one in seen:
        found = _found(one)
        earned = _relations(one, found)
        relations += earned
        heads += [_told(one, number, found, earned) for number in range(len(one.units))]
    place = {unit: number for number, unit in enumerate(order)}
    heads.sort(key=lambda head: place.get(head.unit, len(place)))
    told = (tuple(heads), tuple(relations), tuple(examples))
    return Roles(model, sentences, tokens, sets, *told, dict(RULES), versions())


class _Found(NamedTuple):
    """Every statistic for all heads of a type; p-values corrected over heads, and for relations over those as well."""

    of: dict[Name, Estimates]
    relations: dict[Name, np.ndarray]
    rare: np.ndarray

    def kind(self, kind: str) -> dict[str, Estimates]:
        """All statistics of one kind, such as "offset" or "mass", by the last part of their names."""
        return {name[-1]: one for name, one in self.of.items() if name[0] == kind}


def _found(seen: Observed) -> _Found:
    names = seen.tally.names
    of = {name: estimated(seen.tally.sums[:, number]) for number, name in enumerate(names)}
    if seen.probed is not None:
        of |= {name: seen.probed[name] for name in seen.probed.names}
    tested = [one[:2] for one in seen.tested]
    p = np.array([of["gain", *one].p for one in tested]).reshape(len(tested), len(seen.units))
    corrected = dict(zip(tested, holm(p.ravel()).reshape(p.shape), strict=True))
    return _Found(of, corrected, holm(of["two gain",].p) if ("two gain",) in of else np.ones(len(seen.units)))


def _relations(seen: Observed, found: _Found) -> list[Relation]:
    out = []
    for one in seen.tested:
        key = one[:2]
        accuracy, gain, p = found.of["accuracy", *key], found.of["gain", *key], found.relations[key]
        least, alpha = RULES["syntactic and alignment: gain over the best offset"], RULES["corrected p below"]
        good = (gain.value >= least) & (p < alpha)
        order = np.argsort(-gain.value, kind="stable")
        best = _best(seen, key)
        kept = [h for place, h in enumerate(order) if place < MOST_HEADS or good[h] or h == best]
        heads = {seen.units[h]: (*_pointed(accuracy, gain, h), _short(p[h])) for h in kept}
        earned = tuple(seen.units[h] for h in order if good[h])
        told = None
        if best is not None and seen.parts is not None:
            fresh = seen.parts[1]["accuracy", *key], seen.parts[1]["gain", *key]
            told = BestHead(seen.units[best], _pointed(*fresh, best))
        out.append(Relation(seen.type, *one._replace(baseline=_round(one.baseline)), heads, earned, told))
    return out


def _best(seen: Observed, key: tuple[str, ...]) -> int | None:
    """The head that gains most on every other sentence, if both parts of them have the relation more than once."""
    if seen.parts is None or any((part["gain", *key].n == 0).any() for part in seen.parts):
        return None
    return None if np.isinf(seen.parts[1]["gain", *key].high).any() else int(seen.parts[0]["gain", *key].value.argmax())


def _pointed(accuracy: Estimates, gain: Estimates, number: int) -> tuple[float, float, float, float]:
    """Accuracy, gain, and the ends of its interval."""
    values = (accuracy.value, gain.value, gain.low, gain.high)
    right, more, low, high = (_round(np.clip(value[number], -1, 1)) for value in values)
    return right, more, low, high


def _told(seen: Observed, number: int, found: _Found, relations: Sequence[Relation]) -> Head:
    """All about the head of this number."""
    unit = seen.units[number]

    def share(*name: str, most: float = 1.0) -> Interval | None:
        return _interval(found.of[name], number, most) if name in found.of else None

    offsets = found.kind("offset")
    mass = {name: _round(one.value[number]) for name, one in found.kind("mass").items()}
    near, uniform = share("local"), share("uniform")
    local = None if near is None or uniform is None else (*near, uniform[0])
    rare = None
    if ("two",) in found.of and found.of["two",].n[number] > 0:
        chance = share("chance")
        rare = RareWords(share("rarest"), share("two"), chance and chance[0])
    confidence, entropy = share("confidence"), share("entropy", most=np.inf)
    assert confidence is not None
    assert entropy is not None
    roles = [
        _positional(offsets, found.of["confidence",].n[number], number),
        *_pointing(unit, number, found, relations),
        _rare(found, number) if rare else None,
        _share("induction", share("induction")),
        _share("copying", share("copying")),
        _local(local),
        _punctuation(share("mass", PUNCTUATION), share("punctuation, uniform")),
        _sink(share("sink"), share("sink, uniform"), mass),
    ]
    earned = tuple(role for role in roles if role is not None)
    largest = sorted(offsets, key=lambda offset: (-offsets[offset].value[number], abs(int(offset))))[:3]
    return Head(
        unit,
        unit.rpartition(":")[0],
        seen.type,
        min((role.role for role in earned), key=ORDER.index, default="none"),
        confidence,
        entropy,
        earned,
        {offset: _round(offsets[offset].value[number]) for offset in largest},
        mass,
        local,
        rare,
        share("induction"),
        share("copying"),
    )


def _positional(offsets: Mapping[str, Estimates], queries: float, number: int) -> Role | None:
    least, limit = RULES["positional: tokens that have such a neighbour"], RULES["positional: share of tokens"]
    common = [offset for offset, one in offsets.items() if one.n[number] >= max(1, least * queries)]
    offset = max(common, key=lambda one: (offsets[one].value[number], -abs(int(one))), default=None)
    if offset is None or offsets[offset].value[number] < limit:
        return None
    found, steps = _interval(offsets[offset], number), abs(int(offset))
    way = "back" if int(offset) < 0 else "ahead"
    where = f"{_COUNTS[steps]} token{'s' * (steps != 1)} {way}" if steps else "at the token itself"
    return _role("positional", offset, found, limit, f"looks {where} at {_percent(found)} of tokens{_brackets(found)}")


def _pointing(unit: str, number: int, found: _Found, relations: Sequence[Relation]) -> list[Role]:
    """Syntactic roles and alignments, the one that gains most first."""
    out = []
    for one in relations:
        if unit not in one.earned:
            continue
        key = (one.relation, one.direction)
        right, gain = _interval(found.of["accuracy", *key], number), found.of["gain", *key]
        if one.direction in DIRECTIONS:
            ends = "a dependent to its governor" if one.direction == DIRECTIONS[0] else "a governor to its dependent"
            kind, what, said = "syntactic", ", ".join(key), f"{ends} of {one.relation}"
        else:
            ends = "that is about to be written" if one.relation == "written" else "that was just read"
            kind, what, said = "alignment", one.relation, f"the word {ends} to the source word that it translates"
        span = f"[{100 * gain.low[number]:.0f}, {100 * gain.high[number]:.0f}]"
        points = f"{100 * gain.value[number]:.0f} points {span} above always {_offset_words(one.offset)}"
        text = f"looks from {said}: right in {_percent(right)}{_brackets(right)}, {points}"
        sure = bool(gain.low[number] >= RULES["syntactic and alignment: gain over the best offset"])
        p = _short(found.relations[key][number])
        out.append((-gain.value[number], Role(kind, what, *right, one.baseline, p, sure, text)))
    return [role for _, role in sorted(out, key=lambda pair: pair[0])]


def _offset_words(offset: int) -> str:
    steps = abs(offset)
    many = f"{_COUNTS[steps] if steps < len(_COUNTS) else steps} word{'s' * (steps != 1)}"
    return f"{many} {'back' if offset < 0 else 'ahead'}" if offset else "the word at the same place"


def _rare(found: _Found, number: int) -> Role | None:
    two, gain, p = found.of["two",], found.of["two gain",], found.rare[number]
    limit, least = RULES["rare: share of words"], RULES["rare: gain over chance"]
    if not (two.value[number] >= limit and gain.value[number] >= least and p < RULES["corrected p below"]):
        return None
    share, chance = _interval(two, number), _round(found.of["chance",].value[number])
    sure = bool(two.low[number] >= limit and gain.low[number] >= least)
    often = f"from {_percent(share)} of words{_brackets(share)}, {100 * chance:.0f} % by chance"
    return Role("rare", "", *share, chance, _short(p), sure, f"looks at one of the two rarest words {often}")


def _share(kind: str, found: Interval | None) -> Role | None:
    """A role that is a share alone."""
    limit = RULES["induction and copying: share of tokens"]
    if found is None or found[0] < limit:
        return None
    return _role(kind, "", found, limit, _SHARES[kind].format(_percent(found), _brackets(found)))


def _local(found: tuple[float, float | None, float | None, float] | None) -> Role | None:
    if found is None or found[0] < max(RULES["local: mass"], found[3] + RULES["local: gain over uniform"]):
        return None
    share, uniform = found[:3], found[3]
    near = f"keeps {_percent(share)} of its weight{_brackets(share)} within two tokens"
    text = f"{near}, where uniform attention has {100 * uniform:.0f} %"
    return _role("local", "", share, RULES["local: mass"], text)._replace(baseline=uniform)


def _punctuation(found: Interval | None, uniform: Interval | None) -> Role | None:
    limit = _above("punctuation", uniform)
    if found is None or found[0] < limit:
        return None
    text = f"puts {_percent(found)} of its weight{_brackets(found)} on punctuation{_where_uniform(uniform)}"
    return _role(PUNCTUATION, "", found, limit, text)._replace(baseline=uniform and uniform[0])


def _above(kind: str, uniform: Interval | None) -> float:
    """What a share must reach: so much, and so much more than uniform attention has there."""
    return max(RULES[f"{kind}: mass"], (uniform[0] if uniform else 0.0) + RULES[f"{kind}: gain over uniform"])


def _where_uniform(uniform: Interval | None) -> str:
    return "" if uniform is None else f", where uniform attention has {100 * uniform[0]:.0f} %"


def _sink(found: Interval | None, uniform: Interval | None, mass: Mapping[str, float]) -> Role | None:
    tokens = {name: value for name, value in mass.items() if name != PUNCTUATION}
    limit = _above("sink", uniform)
    if found is None or found[0] < limit:
        return None
    name = max(tokens, key=lambda one: tokens[one])
    several = [one for one, value in tokens.items() if value >= 0.005]
    where = f"special tokens, most on {name}" if len(several) > 1 else f"the {FIRST}" if name == FIRST else name
    text = f"puts {_percent(found)} of its weight{_brackets(found)} on {where}{_where_uniform(uniform)}"
    return _role("sink", name, found, limit, text)._replace(baseline=uniform and uniform[0])


def _role(kind: str, what: str, found: Interval, limit: float, text: str) -> Role:
    return Role(kind, what, *found, None, None, found[1] is not None and found[1] >= limit, text)


def _interval(found: Estimates, number: int, most: float = 1.0) -> Interval:
    """Value, low and high within [0, most]."""
    ends = [np.clip(end[number], 0.0, most) for end in (found.low, found.high)]
    low, high = (_round(end) if np.isfinite(end) else None for end in ends)
    return _round(np.clip(found.value[number], 0.0, most)), low, high


def _round(value: Any) -> float:
    return round(float(value), 6)


def _short(p: Any) -> float:
    return float(f"{float(p):.4g}")


def _percent(found: Interval) -> str:
    return f"{100 * found[0]:.0f} %"


def _brackets(found: Interval) -> str:
    return "" if found[1] is None or found[2] is None else f" [{100 * found[1]:.0f}, {100 * found[2]:.0f}]"
