"""`Scores`: a number for every unit, bigger = matters more, with its spread; and `plan`: what to remove by them. No torch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .. import notebook
from ..errors import BadPlan
from ..parsing import share_in
from ..plans import Plan, Unit, read_json
from .discovery.patch_check import PatchCheck
from .reading import SOMETIMES, JsonDocument
from .results import FillDocument

FORMAT = 1
LARGEST_FILE = 500_000_000  # bytes; scores of every neuron of a 70-billion-parameter model have a tenth of that
NORMS = ("layer", "type", "global", None)
PLURALS = ("heads", "neurons", "layers", "kv-groups")
GROUPS = ".kv"  # after the name of an attention: its kv groups


class Stability(NamedTuple):
    """How well two rankings agree that were made from different examples, `n` each."""

    n: int
    correlation: float  # Spearman, mean over the resamples
    low: float
    high: float
    overlap: float  # share of the less important half of the units that both have in common


@dataclass(frozen=True, kw_only=True)
class SiteScores:
    """The scores of one site's units: as computed (`raw`), normalised (`score`), and their standard errors if known."""

    kind: str
    type: str | None
    units: tuple[int, ...]
    raw: tuple[float, ...] = ()
    score: tuple[float, ...]
    stderr: tuple[float, ...] | None = field(default=None, metadata=SOMETIMES)
    heads: tuple[tuple[int, ...], ...] | None = field(default=None, metadata=SOMETIMES)  # of each kv group

    def __post_init__(self) -> None:
        if not len(self.units) == len(self.score) == len(self.raw or self.units) == len(self.stderr or self.units):
            raise ValueError("units, raw, score and stderr are not equally many")


@dataclass(frozen=True, kw_only=True)
class ScoresDocument(JsonDocument):
    """scores.json: the scores of every site, and how stable their order is where `score` computed it."""

    NAME: ClassVar[str] = "scores"

    format: int = FORMAT
    by: str
    normalize: str | None = None
    signature: str = ""
    sites: dict[str, SiteScores]
    stability: tuple[Stability, ...] = field(default=(), metadata=SOMETIMES)
    patching: PatchCheck | None = field(default=None, metadata=SOMETIMES)  # how well it agrees with exact patching
    fill: FillDocument | None = field(default=None, metadata=SOMETIMES)  # what stood in for units, of ablation
    seen: dict[str, Any] | None = field(default=None, metadata=SOMETIMES)  # marks of the examples that were scored


@dataclass(frozen=True, eq=False)
class Scores:
    """A number per unit; bigger means that the unit matters more. Knows no model.

    `samples` (rows, units), where there are any, are values whose mean over rows is the raw score: one row per example,
    or one per block of examples. Where a score is no mean (a norm, a variance), they are it plus what the row adds to first
    order. From them come the standard errors and the stability of the ranking.
    """

    units: tuple[Unit, ...]
    raw: np.ndarray
    by: str
    kinds: Mapping[str, str]  # site -> "head", "neuron", "layer" or "kv-group"
    types: Mapping[str, str | None]  # site -> "encoder", "decoder", "cross", or None
    normalize: str | None = None  # l2 over "layer" (each attention or MLP), "type", "global"
    signature: str = ""
    samples: np.ndarray | None = None
    members: Mapping[Unit, tuple[Unit, ...]] = field(default_factory=dict)  # kv group -> its query heads
    _norms: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.normalize not in NORMS:
            raise BadPlan(f'normalize is "layer", "type", "global" or None; I got {self.normalize!r:.40}.')
        object.__setattr__(self, "_norms", self._norms_of(self.raw))

    @property
    def values(self) -> np.ndarray:
        """The scores, normalised as `normalize` says, in the order of `units`."""
        return self.raw / self._norms

    @property
    def stderr(self) -> np.ndarray | None:
        """Standard errors of the scores (the norm that divides them taken as known); None without samples."""
        if self.samples is None or len(self.samples) < 2:
            return None
        return self.samples.std(0, ddof=1) / math.sqrt(len(self.samples)) / self._norms

    def __getitem__(self, unit: Unit | str) -> float:
        place = self._places[str(unit)]
        return float(self.raw[place] / self._norms[place])

    def __len__(self) -> int:
        return len(self.units)

    def __iter__(self) -> Iterator[Unit]:
        return iter(self.units)

    def only(self, *selectors: str) -> Scores:
        """The scores of some units alone: of a kind ("head"), an attention type ("cross") or a site ("3")."""
        wanted = {word[:-1] if word in PLURALS else word for word in selectors}
        names_by_site = {site: self._names(site) for site in dict.fromkeys(unit.site for unit in self.units)}
        keep = [n for n, unit in enumerate(self.units) if wanted & names_by_site[unit.site]]
        if not keep:
            names = sorted({name for site_names in names_by_site.values() for name in site_names if name[0].islower()})
            raise BadPlan(f"No unit scored here is {' or '.join(selectors)}; there are {', '.join(names[:8])}.")
        return self._picked(keep)

    def at(self, sites: Container[str]) -> Scores:
        """The scores of the units of these sites and stacks, by their exact names."""
        return self._picked([n for n, unit in enumerate(self.units) if unit.site in sites])

    def _picked(self, keep: list[int]) -> Scores:
        samples = None if self.samples is None else self.samples[:, keep]
        return replace(self, units=tuple(self.units[n] for n in keep), raw=self.raw[keep], samples=samples)

    def normalized(self, how: str | None) -> Scores:
        """The same scores divided by the l2 norm of their layer, of their attention type, of all, or by nothing."""
        return replace(self, normalize=how)

    def order(self, least: int = 0, removed_units: Container[Unit] = ()) -> list[Unit]:
        """The units from the least important on; the best `least` of every site are left out. Ties: as they come.

        The `removed_units` are not in the order, and do not count among the best.
        """
        values = self.values
        candidates = [n for n, unit in enumerate(self.units) if unit not in removed_units]
        places: dict[str, list[int]] = {}
        for n in candidates if least else ():
            places.setdefault(self.units[n].site, []).append(n)
        staying = {n for members in places.values() for n in sorted(members, key=lambda n: (-values[n], n))[:least]}
        removable = set(candidates) - staying
        return [self.units[n] for n in np.argsort(values, kind="stable") if n in removable]

    def removing(self, units: Iterable[Unit]) -> frozenset[Unit]:
        """What goes with these units: themselves, or all query heads of a kv group."""
        return frozenset(member for unit in units for member in self.members.get(unit, (unit,)))

    def gone(self, plan: Plan) -> set[Unit]:
        """The units of which nothing is left with this plan."""
        return {unit for unit in self.units if plan.units.issuperset(self.members.get(unit, (unit,)))}

    def by_heads(self) -> Scores:
        """The same over heads, which share the score of their kv group in equal parts."""
        if not self.members:
            return self
        place = [(n, self.members.get(unit, (unit,))) for n, unit in enumerate(self.units)]
        rows = [n for n, members in place for _ in members]
        parts = np.array([len(members) for _, members in place for _ in members], float)
        sites = {unit.site: members[0].site for unit, members in self.members.items()}
        kinds = {sites.get(name, name): "head" if name in sites else kind for name, kind in self.kinds.items()}
        types = {sites.get(name, name): kind for name, kind in self.types.items()}
        units = tuple(member for _, members in place for member in members)
        samples = None if self.samples is None else self.samples[:, rows] / parts
        about = {"kinds": kinds, "types": types, "samples": samples, "members": {}}
        return replace(self, units=units, raw=self.raw[rows] / parts, **about)

    def stability(self, resamples: int = 100, seed: int = 0) -> list[Stability]:
        """Rank correlation of scores from disjoint sets of examples, for growing sets: were there enough of them?

        Up to half of the examples can be compared in this way; all of them agree better still.
        """
        if self.samples is None or len(self.samples) < 4 or len(self.units) < 2:
            return []
        rng = np.random.default_rng(seed)
        half = len(self.samples) // 2
        sizes = sorted({max(2, half >> shift) for shift in range(5)})
        return [self._agreement(size, resamples, rng) for size in sizes]

    def _agreement(self, size: int, resamples: int, rng: np.random.Generator) -> Stability:
        from scipy.stats import rankdata

        assert self.samples is not None
        correlations, overlaps = [], []
        for _ in range(resamples):
            drawn = rng.permutation(len(self.samples))[: 2 * size]
            means = [self.samples[drawn[:size]].mean(0), self.samples[drawn[size:]].mean(0)]
            ranks = np.stack([rankdata(mean / self._norms_of(mean)) for mean in means])
            constant = (ranks.std(1) == 0).any()
            correlations.append(0.0 if constant else float(np.corrcoef(ranks)[0, 1]))
            cut = len(self.units) // 2
            low = [set(np.argsort(rank, kind="stable")[:cut]) for rank in ranks]
            overlaps.append(len(low[0] & low[1]) / max(1, cut))
        a, b = np.quantile(correlations, [0.025, 0.975])
        return Stability(size, float(np.mean(correlations)), float(a), float(b), float(np.mean(overlaps)))

    def document(self, stability: Iterable[Stability] = ()) -> ScoresDocument:
        """The scores as scores.json has them, without the samples."""
        places: dict[str, list[int]] = {}
        for n, unit in enumerate(self.units):
            places.setdefault(unit.site, []).append(n)
        values, errors, sites = self.values, self.stderr, {}
        for name, own in places.items():
            sites[name] = SiteScores(
                kind=self.kinds[name],
                type=self.types[name],
                units=tuple(self.units[n].index for n in own),
                raw=tuple(self.raw[own].astype(float).tolist()),
                score=tuple(values[own].astype(float).tolist()),
                stderr=None if errors is None else tuple(errors[own].astype(float).tolist()),
                heads=self._heads(own),
            )
        about = ScoresDocument(by=self.by, normalize=self.normalize, signature=self.signature, sites=sites)
        return replace(about, stability=tuple(stability))

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form, without the samples."""
        return self.document().to_json()

    @classmethod
    def from_json(cls, data: Any) -> Scores:
        """The scores in `data`, or `BadPlan` with what is wrong."""
        try:
            if data["format"] != FORMAT:
                raise BadPlan(
                    f"The scores have format {data['format']!r:.20}; this headcount reads {FORMAT}: update it."
                )
            sites = data["sites"]
            units = tuple(Unit(str(name), int(index)) for name, site in sites.items() for index in site["units"])
            raw = np.array([float(value) for site in sites.values() for value in site["raw"]])
            kinds = {str(name): str(site["kind"]) for name, site in sites.items()}
            types = {str(name): site["type"] for name, site in sites.items()}
            complete = all(len(site["raw"]) == len(set(site["units"])) == len(site["units"]) for site in sites.values())
            if not complete or not np.isfinite(raw).all():
                raise BadPlan("The scores are damaged: numbers are missing or not finite; compute them again.")
            members = {
                Unit(str(name), int(index)): tuple(Unit(str(name).removesuffix(GROUPS), int(n)) for n in heads)
                for name, site in sites.items()
                if site.get("heads") is not None
                for index, heads in zip(site["units"], site["heads"], strict=True)
            }
            about = (str(data["by"]), kinds, types, data["normalize"], str(data["signature"]))
            return cls(units, raw, *about, members=members)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadPlan(
                f"These are not scores that headcount wrote ({type(error).__name__}: {error!s:.60})."
            ) from None

    @classmethod
    def read(cls, path: str | Path) -> Scores:
        """The scores in a JSON file."""
        return cls.from_json(read_json(Path(path), LARGEST_FILE))

    def write(self, path: str | Path) -> None:
        """Write the scores as JSON; an existing file is not replaced."""
        try:
            with Path(path).open("x", encoding="utf-8") as file:
                file.write(json.dumps(self.to_json(), indent=1) + "\n")
        except OSError as error:
            raise BadPlan(f"I cannot write the scores to {path}: {error.strerror}; give another name.") from None

    def __str__(self) -> str:
        how = f", l2 per {self.normalize}" if self.normalize else ""
        lines = [f"{self.by}{how}: {len(self.units)} units, bigger = matters more"]
        values = self.values
        sites: dict[str, list[str]] = {}
        for n, unit in enumerate(self.units):
            sites.setdefault(unit.site, []).append(f"{values[n]:.3f}")
        width = max(map(len, sites), default=0)
        room = max(
            4, (66 - width) // (1 + max((len(cell) for cells in sites.values() for cell in cells[:16]), default=1))
        )
        for name, cells in sites.items():
            more = f" ... ({len(cells)})" if len(cells) > room else ""
            lines.append(f"{name:<{width}}  {' '.join(cells[:room])}{more}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        title = f"{self.by}: {len(self.units):,} units, bigger = matters more"
        sites = notebook.by_site(self.units, self.values)
        parts = []  # scores of heads and of layers do not compare: a map for each kind, with its own scale
        for kind in dict.fromkeys((self.kinds[site], self.types[site]) for site in sites):
            own = {site: row for site, row in sites.items() if (self.kinds[site], self.types[site]) == kind}
            parts.append(notebook.line(" ".join(filter(None, reversed(kind)))) if len(own) < len(sites) else "")
            parts.append(notebook.shades(own))
        return notebook.block(notebook.line(title, bold=True), *parts)

    def _names(self, site: str) -> set[str]:
        first = site.split(".")[0]  # of an encoder-decoder; attentions have a type, which says more
        attends = self.kinds[site] in ("head", "kv-group")
        side = {first} if not attends and first in ("encoder", "decoder") else set()
        return {site, site.removesuffix(GROUPS), self.kinds[site], str(self.types[site]), *side}

    def _heads(self, places: list[int]) -> tuple[tuple[int, ...], ...] | None:
        """The query heads of the kv groups at these places; None for other units."""
        if not self.members or self.units[places[0]] not in self.members:
            return None
        return tuple(tuple(head.index for head in self.members[self.units[n]]) for n in places)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {str(unit): n for n, unit in enumerate(self.units)}

    @cached_property
    def _group_numbers(self) -> np.ndarray:
        """For every unit the number of the group whose norm it is divided by."""
        groups = {site: self._group(site) for site in dict.fromkeys(unit.site for unit in self.units)}
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups.values()))}
        number_of = {site: numbers[group] for site, group in groups.items()}
        return np.fromiter((number_of[unit.site] for unit in self.units), np.int64, len(self.units))

    def _norms_of(self, raw: np.ndarray) -> np.ndarray:
        """What each value is divided by: the l2 norm of its group, or one."""
        if self.normalize is None:
            return np.ones(len(raw))
        squares = np.bincount(self._group_numbers, np.square(np.asarray(raw, np.float64)))
        norms = np.sqrt(squares)
        norms[norms == 0] = 1.0
        return np.asarray(norms[self._group_numbers])

    def _group(self, site: str) -> str:
        kind, attention_type = self.kinds[site], self.types[site]
        if self.normalize == "layer":
            return site
        return f"{kind} {attention_type}" if self.normalize == "type" else kind


def plan(scores: Scores, remove: float | int | str, *, least: int = 0, only: str | Iterable[str] = ()) -> Plan:
    """The least important units: `remove` is how many (12), or which share of them (0.4 or "40%", rounded down).

    `least` units of every site stay; `only` restricts the choice ("encoder", "cross", "head").

    Args:
        scores: Importance scores.
        remove: How many: a count, or a share (0.4 or "40%", rounded down).
        least: Units that every site keeps.
        only: Restricts the units to types or kinds ("encoder", "cross", "head").

    Returns:
        The units with the lowest scores.

    Examples:
        >>> model = hc.load("my-model")
        >>> scores = hc.score(model, by="magnitude")
        >>> len(hc.plan(scores, "25%"))
        12
    """
    names = [only] if isinstance(only, str) else list(only)
    chosen = scores.only(*names) if names else scores
    count = how_many(remove, len(chosen))
    order = chosen.order(least)
    if count > len(order):
        raise BadPlan(
            f"I was asked to remove {count} of {len(chosen)} units, and with at least {least} left per site only "
            f"{len(order)} can go; remove fewer."
        )
    return Plan(
        chosen.removing(order[:count]), f"the {count} of {len(chosen)} units with the lowest scores by {scores.by}"
    )


def how_many(amount: float | int | str, of: int) -> int:
    """A count (12), a fraction (0.4) or a percentage ("40%") of `of`, as a count, rounded down."""
    if isinstance(amount, str):
        text = amount.strip()
        if re.fullmatch(r"\d+", text):
            amount = int(text)
        else:
            share = share_in(text)
            if share is None:
                raise BadPlan(f'How many units? I got {amount!r:.40}; write a count (12) or a share ("40%" or 0.4).')
            amount = share
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise BadPlan(f"How many units? I got {amount!r:.40}; write a count (12) or a share (0.4).")
    if isinstance(amount, int):
        return _within(amount, of, amount)
    if not 0 <= amount <= 1:
        raise BadPlan(f"A share of the units lies between 0 and 1; I got {amount}: write a whole number for a count.")
    # 29 % of 100 is 29, and floating point says 28.999999999999996
    return _within(math.floor(round(amount * of, 9)), of, amount)


def _within(count: int, of: int, amount: object) -> int:
    if not 0 <= count <= of:
        raise BadPlan(f"I was asked for {amount} units and there are {of}.")
    return count
