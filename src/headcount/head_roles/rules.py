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
    observations: Sequence[Observed],
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
    for observation in observations:
        estimates = _statistics(observation)
        earned = _relations(observation, estimates)
        relations += earned
        heads += [_describe_head(observation, number, estimates, earned) for number in range(len(observation.units))]
    place = {unit: number for number, unit in enumerate(order)}
    heads.sort(key=lambda head: place.get(head.unit, len(place)))
    content = (tuple(heads), tuple(relations), tuple(examples))
    return Roles(model, sentences, tokens, sets, *content, dict(RULES), versions())


class _Statistics(NamedTuple):
    """Every statistic for all heads of a type; p-values corrected over heads, and for relations over those as well."""

    of: dict[Name, Estimates]
    relations: dict[Name, np.ndarray]
    rare: np.ndarray

    def kind(self, kind: str) -> dict[str, Estimates]:
        """All statistics of one kind, such as "offset" or "mass", by the last part of their names."""
        return {name[-1]: estimates for name, estimates in self.of.items() if name[0] == kind}


def _statistics(observation: Observed) -> _Statistics:
    names = observation.tally.names
    of = {name: estimated(observation.tally.sums[:, number]) for number, name in enumerate(names)}
    if observation.probed is not None:
        of |= {name: observation.probed[name] for name in observation.probed.names}
    tested = [relation[:2] for relation in observation.tested]
    p = np.array([of["gain", *key].p for key in tested]).reshape(len(tested), len(observation.units))
    corrected = dict(zip(tested, holm(p.ravel()).reshape(p.shape), strict=True))
    return _Statistics(
        of, corrected, holm(of["two gain",].p) if ("two gain",) in of else np.ones(len(observation.units))
    )


def _relations(observation: Observed, estimates: _Statistics) -> list[Relation]:
    out = []
    for relation in observation.tested:
        key = relation[:2]
        accuracy, gain, p = estimates.of["accuracy", *key], estimates.of["gain", *key], estimates.relations[key]
        least, alpha = RULES["syntactic and alignment: gain over the best offset"], RULES["corrected p below"]
        good = (gain.value >= least) & (p < alpha)
        order = np.argsort(-gain.value, kind="stable")
        best = _best(observation, key)
        listed_heads = [h for place, h in enumerate(order) if place < MOST_HEADS or good[h] or h == best]
        heads = {observation.units[h]: (*_pointed(accuracy, gain, h), _short(p[h])) for h in listed_heads}
        earned = tuple(observation.units[h] for h in order if good[h])
        best_head = None
        if best is not None and observation.parts is not None:
            fresh = observation.parts[1]["accuracy", *key], observation.parts[1]["gain", *key]
            best_head = BestHead(observation.units[best], _pointed(*fresh, best))
        out.append(
            Relation(observation.type, *relation._replace(baseline=_round(relation.baseline)), heads, earned, best_head)
        )
    return out


def _best(observation: Observed, key: tuple[str, ...]) -> int | None:
    """The head that gains most on every other sentence, if both parts of them have the relation more than once."""
    if observation.parts is None or any((part["gain", *key].n == 0).any() for part in observation.parts):
        return None
    return (
        None
        if np.isinf(observation.parts[1]["gain", *key].high).any()
        else int(observation.parts[0]["gain", *key].value.argmax())
    )


def _pointed(accuracy: Estimates, gain: Estimates, number: int) -> tuple[float, float, float, float]:
    """Accuracy, gain, and the ends of its interval."""
    values = (accuracy.value, gain.value, gain.low, gain.high)
    right, more, low, high = (_round(np.clip(value[number], -1, 1)) for value in values)
    return right, more, low, high


def _describe_head(observation: Observed, number: int, estimates: _Statistics, relations: Sequence[Relation]) -> Head:
    """All about the head of this number."""
    unit = observation.units[number]

    def share(*name: str, most: float = 1.0) -> Interval | None:
        return _interval(estimates.of[name], number, most) if name in estimates.of else None

    offsets = estimates.kind("offset")
    mass = {name: _round(mass_estimates.value[number]) for name, mass_estimates in estimates.kind("mass").items()}
    near, uniform = share("local"), share("uniform")
    local = None if near is None or uniform is None else (*near, uniform[0])
    rare = None
    if ("two",) in estimates.of and estimates.of["two",].n[number] > 0:
        chance = share("chance")
        rare = RareWords(share("rarest"), share("two"), chance and chance[0])
    confidence, entropy = share("confidence"), share("entropy", most=np.inf)
    assert confidence is not None
    assert entropy is not None
    roles = [
        _positional(offsets, estimates.of["confidence",].n[number], number),
        *_pointing(unit, number, estimates, relations),
        _rare(estimates, number) if rare else None,
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
        observation.type,
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
    common = [offset for offset, estimates in offsets.items() if estimates.n[number] >= max(1, least * queries)]
    offset = max(common, key=lambda candidate: (offsets[candidate].value[number], -abs(int(candidate))), default=None)
    if offset is None or offsets[offset].value[number] < limit:
        return None
    interval, steps = _interval(offsets[offset], number), abs(int(offset))
    way = "back" if int(offset) < 0 else "ahead"
    where = f"{_COUNTS[steps]} token{'s' * (steps != 1)} {way}" if steps else "at the token itself"
    return _role(
        "positional", offset, interval, limit, f"looks {where} at {_percent(interval)} of tokens{_brackets(interval)}"
    )


def _pointing(unit: str, number: int, estimates: _Statistics, relations: Sequence[Relation]) -> list[Role]:
    """Syntactic roles and alignments, the one that gains most first."""
    out = []
    for relation in relations:
        if unit not in relation.earned:
            continue
        key = (relation.relation, relation.direction)
        right, gain = _interval(estimates.of["accuracy", *key], number), estimates.of["gain", *key]
        if relation.direction in DIRECTIONS:
            ends = (
                "a dependent to its governor" if relation.direction == DIRECTIONS[0] else "a governor to its dependent"
            )
            kind, detail, description = "syntactic", ", ".join(key), f"{ends} of {relation.relation}"
        else:
            ends = "that is about to be written" if relation.relation == "written" else "that was just read"
            kind, detail, description = (
                "alignment",
                relation.relation,
                f"the word {ends} to the source word that it translates",
            )
        span = f"[{100 * gain.low[number]:.0f}, {100 * gain.high[number]:.0f}]"
        points = f"{100 * gain.value[number]:.0f} points {span} above always {_offset_words(relation.offset)}"
        text = f"looks from {description}: right in {_percent(right)}{_brackets(right)}, {points}"
        sure = bool(gain.low[number] >= RULES["syntactic and alignment: gain over the best offset"])
        p = _short(estimates.relations[key][number])
        out.append((-gain.value[number], Role(kind, detail, *right, relation.baseline, p, sure, text)))
    return [role for _, role in sorted(out, key=lambda pair: pair[0])]


def _offset_words(offset: int) -> str:
    steps = abs(offset)
    many = f"{_COUNTS[steps] if steps < len(_COUNTS) else steps} word{'s' * (steps != 1)}"
    return f"{many} {'back' if offset < 0 else 'ahead'}" if offset else "the word at the same place"


def _rare(estimates: _Statistics, number: int) -> Role | None:
    two, gain, p = estimates.of["two",], estimates.of["two gain",], estimates.rare[number]
    limit, least = RULES["rare: share of words"], RULES["rare: gain over chance"]
    if not (two.value[number] >= limit and gain.value[number] >= least and p < RULES["corrected p below"]):
        return None
    share, chance = _interval(two, number), _round(estimates.of["chance",].value[number])
    sure = bool(two.low[number] >= limit and gain.low[number] >= least)
    often = f"from {_percent(share)} of words{_brackets(share)}, {100 * chance:.0f} % by chance"
    return Role("rare", "", *share, chance, _short(p), sure, f"looks at one of the two rarest words {often}")


def _share(kind: str, interval: Interval | None) -> Role | None:
    """A role that is a share alone."""
    limit = RULES["induction and copying: share of tokens"]
    if interval is None or interval[0] < limit:
        return None
    return _role(kind, "", interval, limit, _SHARES[kind].format(_percent(interval), _brackets(interval)))


def _local(local_mass: tuple[float, float | None, float | None, float] | None) -> Role | None:
    if local_mass is None or local_mass[0] < max(
        RULES["local: mass"], local_mass[3] + RULES["local: gain over uniform"]
    ):
        return None
    share, uniform = local_mass[:3], local_mass[3]
    near = f"keeps {_percent(share)} of its weight{_brackets(share)} within two tokens"
    text = f"{near}, where uniform attention has {100 * uniform:.0f} %"
    return _role("local", "", share, RULES["local: mass"], text)._replace(baseline=uniform)


def _punctuation(interval: Interval | None, uniform: Interval | None) -> Role | None:
    limit = _above("punctuation", uniform)
    if interval is None or interval[0] < limit:
        return None
    text = f"puts {_percent(interval)} of its weight{_brackets(interval)} on punctuation{_where_uniform(uniform)}"
    return _role(PUNCTUATION, "", interval, limit, text)._replace(baseline=uniform and uniform[0])


def _above(kind: str, uniform: Interval | None) -> float:
    """What a share must reach: so much, and so much more than uniform attention has there."""
    return max(RULES[f"{kind}: mass"], (uniform[0] if uniform else 0.0) + RULES[f"{kind}: gain over uniform"])


def _where_uniform(uniform: Interval | None) -> str:
    return "" if uniform is None else f", where uniform attention has {100 * uniform[0]:.0f} %"


def _sink(interval: Interval | None, uniform: Interval | None, mass: Mapping[str, float]) -> Role | None:
    tokens = {name: value for name, value in mass.items() if name != PUNCTUATION}
    limit = _above("sink", uniform)
    if interval is None or interval[0] < limit:
        return None
    name = max(tokens, key=lambda token: tokens[token])
    several = [token for token, value in tokens.items() if value >= 0.005]
    where = f"special tokens, most on {name}" if len(several) > 1 else f"the {FIRST}" if name == FIRST else name
    text = f"puts {_percent(interval)} of its weight{_brackets(interval)} on {where}{_where_uniform(uniform)}"
    return _role("sink", name, interval, limit, text)._replace(baseline=uniform and uniform[0])


def _role(kind: str, detail: str, interval: Interval, limit: float, text: str) -> Role:
    return Role(kind, detail, *interval, None, None, interval[1] is not None and interval[1] >= limit, text)


def _interval(estimates: Estimates, number: int, most: float = 1.0) -> Interval:
    """Value, low and high within [0, most]."""
    ends = [np.clip(end[number], 0.0, most) for end in (estimates.low, estimates.high)]
    low, high = (_round(end) if np.isfinite(end) else None for end in ends)
    return _round(np.clip(estimates.value[number], 0.0, most)), low, high


def _round(value: Any) -> float:
    return round(float(value), 6)


def _short(p: Any) -> float:
    return float(f"{float(p):.4g}")


def _percent(interval: Interval) -> str:
    return f"{100 * interval[0]:.0f} %"


def _brackets(interval: Interval) -> str:
    return "" if interval[1] is None or interval[2] is None else f" [{100 * interval[1]:.0f}, {100 * interval[2]:.0f}]"
