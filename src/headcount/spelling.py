"""How people write units: "3:7,4:2", "L3H7", (3, 7), {3: [7]}, a mask of layers x heads. No torch, and no model.

Here they become pairs of a site as it was written and of indices as they were written, which may count from the end;
`Anatomy.plan` says which units of a model those are.
"""

from __future__ import annotations

import operator
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from .errors import BadPlan

LARGEST_INDEX = 10_000_000
MOST_UNITS = 5_000_000  # so that a few letters ("0-9999999") cannot fill the memory
ALL = "*"
NAME = re.compile(r"[A-Za-z0-9_.\-]{1,200}")
PATTERN = re.compile(r"[A-Za-z0-9_.\-*]{1,200}")
RANGES = re.compile(r"\d{1,8}(-\d{1,8})?(,\d{1,8}(-\d{1,8})?)*")
_ENDS = re.compile(r"(-\d{1,8}|\d{1,8}(-\d{1,8})?)(,(-\d{1,8}|\d{1,8}(-\d{1,8})?))*")  # with -1 for the last one
_LAYER_AND_HEAD = re.compile(r"[lL](\d{1,8})[.,]?[hH](\d{1,8})")
FORMS = "write SITE:INDICES, for example 3:7, 3:0-4,9 or layers:2, or (3, 7), or {3: [7]}"
Indices: TypeAlias = "list[int] | str"  # original indices, from the end below zero; or "*"


def spelled(units: Any) -> Iterator[tuple[str, Indices]]:
    """The pairs of a site and of indices that `units` name, in their order; `BadPlan` for what names none."""
    if isinstance(units, str):
        yield from _texts(units)
    elif hasattr(units, "site") and hasattr(units, "index"):
        yield str(units.site), [units.index]
    elif isinstance(units, Mapping):
        for site, chosen in units.items():
            yield site_name(site), _indices(site, chosen)
    elif is_pair(units):
        yield site_name(units[0]), _indices(*units)
    elif mask_rows(units) is not None:
        raise BadPlan(f"A mask of layers x heads needs a model to say which units it means; {FORMS}.")
    elif is_whole(units) or not isinstance(units, Iterable):
        raise BadPlan(f"I cannot read {short(units)} as units: a number alone does not say of which site; {FORMS}.")
    else:
        for part in plain(units):
            yield from spelled(part)


def site_name(site: object) -> str:
    """The name of a site that was written as a text or as the number of a layer."""
    if is_whole(site):
        return str(operator.index(site))  # type: ignore[arg-type]
    if not isinstance(site, str) or not PATTERN.fullmatch(site):
        raise BadPlan(f"{short(site)} is not a site name; names look like 3, 3.mlp or decoder.2.cross.")
    return site


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, of Python, numpy or torch; True and False are none."""
    if isinstance(value, bool) or (getattr(value, "dtype", None) is not None and "bool" in str(value.dtype)):  # type: ignore[attr-defined]
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return not getattr(value, "shape", ())


def is_pair(units: Any) -> bool:
    """Whether this is (site, index) or (site, indices): a tuple, so that a list of two is never taken for one."""
    if not isinstance(units, tuple) or len(units) != 2:
        return False
    site, chosen = units
    named = is_whole(site) or (isinstance(site, str) and ":" not in site and not _LAYER_AND_HEAD.fullmatch(site))
    return named and (is_whole(chosen) or isinstance(chosen, str) or _holds_whole(chosen))


def _holds_whole(chosen: Any) -> bool:
    return isinstance(chosen, Iterable) and not isinstance(chosen, Mapping) and all(map(is_whole, plain(chosen)))


def plain(values: Any) -> list[Any]:
    """The elements of a list, an array or a tensor."""
    return list(values.tolist()) if hasattr(values, "tolist") else list(values)


def mask_rows(units: Any) -> list[list[Any]] | None:
    """The rows of what is written like a mask: a table of numbers, or a list of lists or arrays of them; else None."""
    if hasattr(units, "tolist"):
        return units.tolist() if len(getattr(units, "shape", ())) == 2 else None
    if not isinstance(units, list) or not units:
        return None
    rows = [plain(row) if isinstance(row, list) or (hasattr(row, "tolist") and row.shape) else None for row in units]
    if any(row is None or any(not isinstance(value, int | float) for value in row) for row in rows):
        return None
    return rows  # type: ignore[return-value]


def _indices(site: object, chosen: Any) -> Indices:
    """Indices as a pair or a dictionary gives them: a number, several, or a text such as "0-3,7" or "*"."""
    if isinstance(chosen, str):
        return indices_in(site, chosen)
    if is_whole(chosen):
        return [operator.index(chosen)]
    if not _holds_whole(chosen):
        raise BadPlan(
            f'Site {short(site)} needs indices such as 7, [0, 7] or "0-3,7"; I got {short(chosen)}: numbers that '
            "multiply units are for `gated`."
        )
    return [operator.index(index) for index in plain(chosen)]


def _texts(text: str) -> Iterator[tuple[str, Indices]]:
    """The pairs in a text: units between spaces, or between commas where a new site begins."""
    words = re.sub(r"\s*,\s*(?=[^\s,]*:|[lL]\d)", " ", text).split() or [text]
    for word in words:
        part = word.strip(",") if len(words) > 1 else word
        match = _LAYER_AND_HEAD.fullmatch(part)
        if match:
            yield match[1], [int(match[2])]
            continue
        site, colon, chosen = part.rpartition(":")
        if not colon or not PATTERN.fullmatch(site):
            raise BadPlan(f"I cannot read {short(part)} as units; {FORMS}.")
        yield site, indices_in(site, chosen, part)


def indices_in(site: object, text: str, whole: str = "") -> Indices:
    """The indices in a text: "0-3,7", "-1" for the last one, "*" for all."""
    if text.strip() == ALL:
        return ALL
    if not _ENDS.fullmatch(text):
        raise BadPlan(f"I cannot read {short(whole or text)} as units; {FORMS}.")
    bounds = [((int(part),) if part.startswith("-") else tuple(map(int, part.split("-")))) for part in text.split(",")]
    if any(b[0] > b[-1] for b in bounds) or sum(b[-1] - b[0] + 1 for b in bounds) > MOST_UNITS:
        raise BadPlan(f"The indices {short(text)} of site {short(site)} run backwards or are too many.")
    indices = [index for b in bounds for index in range(b[0], b[-1] + 1)]
    if len(set(indices)) != len(indices):
        raise BadPlan(f"Site {short(site)} names an index twice; each unit can be removed once.")
    if max(indices) >= LARGEST_INDEX:
        raise BadPlan(f"{max(indices)} is not an index of site {short(site)}; indices are whole numbers from 0.")
    return indices


def short(value: object) -> str:
    """A value in a sentence."""
    return reprlib.repr(value)  # never builds the text of a huge or deep value
