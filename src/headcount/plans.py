"""What to remove, as a value: units, plans, their text and JSON. No torch here, and no model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import notebook
from .errors import BadPlan
from .parsing import by_number
from .spelling import ALL, LARGEST_INDEX, MOST_UNITS, NAME, RANGES, spelled
from .spelling import short as _short

FORMAT = 1
LARGEST_FILE = 64_000_000  # bytes; a plan for a 70-billion-parameter model that has seen 5 million examples still fits
LONGEST_REASON = 100_000
DEEPEST = 100  # lists and objects in each other
LONGEST_REPR = 200


@dataclass(frozen=True, order=True, slots=True)
class Unit:
    """One thing that can be removed: `index` is always the original one, whatever has been cut since."""

    site: str
    index: int

    def __str__(self) -> str:
        return f"{self.site}:{self.index}"


@dataclass(frozen=True)
class Plan:
    """A set of units to remove and the reason. Plans are values: `a | b`, `a - b`, `a & b`, `a <= b`, `len(a)`."""

    units: frozenset[Unit] = frozenset()
    why: str = ""

    def __post_init__(self) -> None:
        if type(self.units) is not frozenset:  # Plan("3:7") and Plan([(3, 7)]), as people write it
            object.__setattr__(self, "units", frozenset(_units_in(self.units)))

    @classmethod
    def of(cls, *units: Any, why: str = "") -> Plan:
        """A plan from `"3:7 decoder.2.cross:0-3,6"`, `"layers:4"`, `"L3H7"`, `(3, 7)` or `{3: [7]}`.

        What only a model can tell, such as "3:*", "*:7" or "3:-1", is read by `find(model).plan(...)`.
        """
        return cls(frozenset(unit for some in units for unit in _units_in(some)), why)

    @classmethod
    def removing(cls, indices: Mapping[str | int, Iterable[int]] | Mapping[str, Iterable[int]], why: str = "") -> Plan:
        """A plan from site names (or the numbers of layers) and the original indices to remove there."""
        return cls.of(indices, why=why)

    def by_site(self) -> dict[str, tuple[int, ...]]:
        """Site name -> sorted indices; sites in the order of their names, numbers counted as numbers."""
        out: dict[str, list[int]] = {}
        for unit in self.units:
            out.setdefault(unit.site, []).append(unit.index)
        return {site: tuple(sorted(out[site])) for site in sorted(out, key=by_number)}

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form in which runs of indices are written as ranges, short enough for a config file."""
        remove = {site: ranges(indices) for site, indices in self.by_site().items()}
        return {"format": FORMAT, "remove": remove, "why": self.why}

    @classmethod
    def from_json(cls, data: object) -> Plan:
        """The plan in `data`, or `BadPlan` with the first thing that is wrong with it."""
        if not isinstance(data, dict) or not isinstance(data.get("remove"), dict):
            raise BadPlan(f'A plan is an object with "remove": {{site: "0-3,7"}}; I got {_short(data)}.')
        if type(data.get("format")) is not int or data["format"] != FORMAT:
            raise BadPlan(
                f"The plan has format {_short(data.get('format'))}; this headcount reads {FORMAT}: update it."
            )
        units: set[Unit] = set()
        if sum(_how_many(chosen) for chosen in data["remove"].values()) > MOST_UNITS:
            raise BadPlan(f"The plan names more than {MOST_UNITS:,} units, which is more than any model has: not read.")
        for site, chosen in data["remove"].items():
            units |= {Unit(_checked_name(site), index) for index in _checked_indices(site, chosen)}
        why = data.get("why", "")
        if not isinstance(why, str) or len(why) > LONGEST_REASON:
            raise BadPlan(f'The plan\'s "why" must be a short text; I got {_short(why)}.')
        return cls(frozenset(units), why)

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """The plan in a JSON file, as written by `Plan.write` or by hand."""
        return cls.from_json(read_json(Path(path)))

    def write(self, path: str | Path) -> None:
        """Write the plan as JSON that a person can edit and give back."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    def __or__(self, other: Plan) -> Plan:
        return Plan(self.units | other.units, self.why or other.why)

    def __and__(self, other: Plan) -> Plan:
        return Plan(self.units & other.units, self.why)

    def __sub__(self, other: Plan) -> Plan:
        return Plan(self.units - other.units, self.why)

    def __le__(self, other: Plan) -> bool:
        return self.units <= other.units

    def __len__(self) -> int:
        return len(self.units)

    def __iter__(self) -> Iterator[Unit]:
        return (Unit(site, index) for site, indices in self.by_site().items() for index in indices)

    def __contains__(self, unit: object) -> bool:
        return unit in self.units

    def __str__(self) -> str:
        return " ".join(f"{site}:{ranges(indices)}" for site, indices in self.by_site().items()) or "nothing"

    def __repr__(self) -> str:
        text = str(self) if self.units else ""
        if len(text) > LONGEST_REPR:
            text = f"{text[:LONGEST_REPR]}..."
        count = f", {len(self):,} units" * (len(self) > 1)
        return f"<Plan {text or 'of nothing'}{count}{f': {self.why[:LONGEST_REPR]}' if self.why else ''}>"

    def _repr_html_(self) -> str:
        rows = [(site, ranges(indices), f"{len(indices):,}") for site, indices in self.by_site().items()]
        why = [notebook.line(self.why[:LONGEST_REPR])] if self.why else []
        table = notebook.table(["site", "units", "count"], [(a, b[:LONGEST_REPR], c) for a, b, c in rows], left=2)
        return notebook.block(notebook.line(f"{len(self):,} unit{'s' * (len(self) != 1)}", bold=True), *why, table)


def legalize(plan: Plan, anatomy: Any, to: str = "even") -> Plan:
    """The largest plan within `plan` that leaves grouped-query attention regular; it only ever gives heads back.

    `to="even"`: every surviving kv group keeps equally many query heads (as many as its fullest one). `to="whole"`: kv
    groups go whole or stay whole. Uneven cuts are exact too; a regular one can be saved `portable`.
    """
    if to not in ("even", "whole"):
        raise BadPlan(f'legalize(to=...) takes "even" or "whole"; I got {_short(to)}.')
    units = set(plan.units)
    for name, indices in plan.by_site().items():
        site = anatomy[name]
        if site.kind != "head" or len(site.ids) == site.kv_heads:
            continue
        groups: dict[int, list[int]] = {}
        for index, kv in zip(site.ids, site.kv_of, strict=True):
            groups.setdefault(kv, []).append(index)
        removed_heads = {kv: [index for index in group if index in indices] for kv, group in groups.items()}
        staying = [kv for kv, group in groups.items() if len(removed_heads[kv]) < len(group)]
        most = max((len(groups[kv]) - len(removed_heads[kv]) * (to == "even") for kv in staying), default=0)
        for kv in staying:
            back = most - (len(groups[kv]) - len(removed_heads[kv]))
            units -= {Unit(name, index) for index in removed_heads[kv][:back]}
    return Plan(frozenset(units), plan.why)


def parse(text: str) -> list[Unit]:
    """`"3:0-2,7"` -> four units. A malformed text is a `BadPlan` that shows the form."""
    return _units_in(text)


def _units_in(units: Any) -> list[Unit]:
    """Units that say by themselves which they are; `BadPlan` for those that depend on a model."""
    out = []
    for site, chosen in spelled(units):
        if chosen == ALL or not NAME.fullmatch(site) or any(index < 0 for index in chosen):
            raise BadPlan(
                f"Which units {_short(f'{site}:{chosen}')} are depends on the model: use `find(model).plan(...)`, or give "
                "this to `masked`, `gated` or `cut` as it is."
            )
        out += [Unit(site, index) for index in chosen]
    return out


def ranges(indices: Iterable[int]) -> str:
    """Sorted indices as text: (0, 1, 2, 7) -> "0-2,7"."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def read_json(path: Path, largest: int = LARGEST_FILE) -> Any:
    """The JSON in a file, with every way it can be damaged turned into one sentence."""
    try:
        size = path.stat().st_size
        if size > largest:
            raise BadPlan(f"{path} has {size / 1e6:.1f} MB; such a file has at most {largest / 1e6:.0f} MB: not read.")
        data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_each_once)
        _no_deeper_than(DEEPEST, data)
        return data
    except OSError as error:
        raise BadPlan(f"I cannot read {path}: {error.strerror}.") from None
    except RecursionError:
        raise BadPlan(f"{path} is not valid JSON ({_too_deep(DEEPEST)}): it may be damaged.") from None
    except ValueError as error:
        raise BadPlan(f"{path} is not valid JSON ({str(error)[:80]}): it may be truncated or damaged.") from None


def _no_deeper_than(depth: int, data: Any) -> None:
    """`ValueError` for lists and objects in each other that whoever works on them by recursion would not get through."""
    level = [data] if isinstance(data, dict | list) else []
    for _ in range(depth):
        level = [
            value
            for part in level
            for value in (part.values() if isinstance(part, dict) else part)
            if isinstance(value, dict | list)
        ]
        if not level:
            return
    raise ValueError(_too_deep(depth))


def _too_deep(depth: int) -> str:
    return f"more than {depth} lists and objects are in each other"


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are all different; otherwise one of two entries would win unseen."""
    out = dict(pairs)
    if len(out) != len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice[:40]!r} is there twice")
    return out


def _how_many(chosen: object) -> int:
    """How many indices a text or a list stands for, counted without spelling them out."""
    if isinstance(chosen, str) and RANGES.fullmatch(chosen):
        bounds = [part.split("-") for part in chosen.split(",")]
        return sum(int(bound[-1]) - int(bound[0]) + 1 for bound in bounds)
    return len(chosen) if isinstance(chosen, list) else 0


def _checked_name(site: object) -> str:
    if not isinstance(site, str) or not NAME.fullmatch(site):
        raise BadPlan(f"{_short(site)} is not a site name; names look like 3, 3.mlp or decoder.2.cross.")
    return site


def _checked_indices(site: object, chosen: object) -> list[int]:
    """Indices from "0-3,7" or [0, 1, 2, 3, 7]; whole, in range, each once."""
    if isinstance(chosen, str) and RANGES.fullmatch(chosen):
        bounds = [tuple(map(int, part.split("-"))) for part in chosen.split(",")]
        if any(b[0] > b[-1] for b in bounds) or _how_many(chosen) > MOST_UNITS:
            raise BadPlan(f"The indices {_short(chosen)} of site {_short(site)} run backwards or are too many.")
        indices = [index for b in bounds for index in range(b[0], b[-1] + 1)]
    elif isinstance(chosen, list):
        indices = chosen
    else:
        raise BadPlan(f'Site {_short(site)} needs indices such as "0-3,7" or [0, 7]; I got {_short(chosen)}.')
    for index in indices:
        if type(index) is not int or not 0 <= index < LARGEST_INDEX:
            raise BadPlan(f"{_short(index)} is not an index of site {_short(site)}; indices are whole numbers from 0.")
    if len(set(indices)) != len(indices):
        raise BadPlan(f"Site {_short(site)} names an index twice; each unit can be removed once.")
    return indices


def site_of(unit: str) -> str:
    """The site of a unit: "decoder.3.cross:7" -> "decoder.3.cross"."""
    return unit.rpartition(":")[0]


def index_of(unit: str) -> str:
    """The part after the site: an index, a range of neurons, or * for all of it."""
    return unit.rpartition(":")[2]


def kind_of(unit: str) -> str:
    """What a unit is, by its name: heads are what is nothing else."""
    site, index = site_of(unit), index_of(unit)
    if index == "*":
        return "whole"
    if not index.isdecimal():
        return "block"
    last = site.split(".")[-1]
    return "layer" if last == "layers" else "neuron" if last == "mlp" else "head"


def type_of(site: str) -> str | None:
    """The attention type of a site, by its name; a site that does not say is None."""
    parts = site.split(".")
    if "cross" in parts:
        return "cross"
    return next((part for part in parts if part in ("encoder", "decoder")), None)


def in_order(units: list[str]) -> list[str]:
    """The units of one site, 10 after 9."""
    return sorted(units, key=lambda unit: by_number(index_of(unit)))


def by_place(sites: Iterable[str]) -> list[str]:
    """Sites in the order of the model."""
    return sorted(sites, key=by_number)
