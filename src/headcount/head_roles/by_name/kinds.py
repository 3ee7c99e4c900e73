"""The kinds of heads that have a name: what the score of a prompt is, and from which mean score on a head is named. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...errors import BadPlan


class Kind(NamedTuple):
    """A kind of head: the mean score from which on a head is named, what is scored on one example, and who described it."""

    at_least: float
    score: str
    source: str


KINDS: dict[str, Kind] = {
    "previous-token": Kind(
        0.4, "attention to the token before, mean over the tokens of a prompt", "Elhage et al. 2021; Olsson et al. 2022"
    ),
    "duplicate-token": Kind(
        0.4, "attention from a token to its earlier copy, mean over the second copies of a prompt", "Wang et al. 2023"
    ),
    "induction": Kind(
        0.4,
        "attention from a token to the one after its earlier copy, mean over the second copies of a prompt",
        "Elhage et al. 2021; Olsson et al. 2022",
    ),
    "copying": Kind(
        0.5,
        "share of a prompt's tokens that the head, where it looks at them, promotes above all others of the prompt",
        "Elhage et al. 2021; Olsson et al. 2022",
    ),
    "successor": Kind(
        0.5,
        "whether the head, where it looks at a word such as Monday, promotes the next one above all others of its sequence",
        "Gould et al. 2023",
    ),
    "sink": Kind(
        0.3, "attention to the first token, mean over all others of a prompt", "Xiao et al. 2024; Gu et al. 2025"
    ),
    "retrieval": Kind(
        0.1,
        "share of the needle's tokens that the model copies while the head looks most at them",
        "Wu et al. 2024",
    ),
}
PATTERNS = ("previous-token", "duplicate-token", "induction", "sink")  # read off attention alone


def chosen_kinds(kinds: str | Sequence[str] | None) -> tuple[str, ...]:
    """The kinds that are asked for, in the order of the table; all where none is named."""
    names = [*KINDS] if kinds is None else kinds.split(",") if isinstance(kinds, str) else list(kinds)
    names = [str(name).strip() for name in names]
    strange = next((name for name in names if name not in KINDS), None)
    if strange is not None or not names:
        raise BadPlan(f"{strange or 'Nothing'!r:.40} is no kind of head that I know; choose from {', '.join(KINDS)}.")
    return tuple(name for name in KINDS if name in names)


def thresholds(kinds: Sequence[str], at_least: Mapping[str, float] | None) -> dict[str, float]:
    """The mean score from which on a head is named, by kind: that of the table, or what the user says."""
    own = dict(at_least or {})
    for name, value in own.items():
        if name not in KINDS or not 0 <= value <= 1:
            raise BadPlan(f"A least score is from 0 to 1 for one of {', '.join(KINDS)}; I got {name}={value!s:.20}.")
    return {name: float(own.get(name, KINDS[name].at_least)) for name in kinds}
