"""What a reader has to know before a good-looking number: a model at chance, half of its worth lost, a role gone. No torch.

The page, the model card and `prune` say it in the same sentences, which are made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ..documents.prune import PruneDocument
from ..formatting import counted, percent, result_text
from ..stats.constant_answer import share_lost

HALF = 0.5  # of the way from the whole model to a constant answer
FEWEST = 2  # heads of a role that can be said to be gone
ZERO = (
    "matthews",
    "pearson",
    "spearman",
    "bleu",
    "chrf",
)  # where a constant answer is worth 0, and older documents say nothing
FALLING = ("loss", "perplexity")  # the lower, the better
CONSTANT = {
    "accuracy": "always the most frequent label",
    "accuracy-norm": "always the choice in the same place",
    "f1": "always the same label",
    "loss": "the same distribution every time",
    "perplexity": "the same distribution every time",
}


class Value(Protocol):
    """A measured value with its interval, and what a constant answer is worth on the same examples, where that is known."""

    @property
    def metric(self) -> str:
        """The name of the metric."""

    @property
    def value(self) -> float:
        """The value."""

    @property
    def low(self) -> float:
        """The lower end of the interval."""

    @property
    def high(self) -> float:
        """The upper end of the interval."""

    @property
    def constant(self) -> float | None:
        """What a constant answer is worth."""


class RoleLoss(NamedTuple):
    """The heads of a role, and how many of them are gone."""

    role: str
    heads: int
    gone: int


def of_prune(document: PruneDocument) -> list[str]:
    """What has to be said about a smaller model: nothing where it is well."""
    return of_results(document.before, document.after)


def of_results(before: Value, after: Value) -> list[str]:
    """Whether a model is at chance, or more than half of the way there from what it was; a sentence or none."""
    constant = constant_of(after if after.constant is not None else before)
    if constant is None:
        return []
    metric, name = after.metric, CONSTANT.get(after.metric, "the same every time")
    text = result_text(_Point(constant, after.low, after.high), interval=False)
    whole = f"the whole model had {result_text(before, interval=False)}"
    if _no_better(after, constant):
        if _no_better(before, constant):
            return [
                f"At chance from the start: neither the whole model ({metric} {result_text(before)}) nor this one "
                f"({result_text(after)}) is shown to be better than a constant answer, {text} ({name}). What was removed cost "
                "nothing, because there was nothing to lose."
            ]
        return [
            f"At chance: {metric} {result_text(after)} is not shown to be better than a constant answer, {text} ({name}); "
            f"{whole}. This model is ruined: take less away."
        ]
    lost = share_lost(metric, before.value, after.value, constant)
    if lost is None or lost <= HALF:
        return []
    return [
        f"Most of it is lost: a constant answer ({name}) has {metric} {text}, {whole}, and {percent(lost)} of what lay "
        f"between them is gone ({result_text(after)} is left). Take less away."
    ]


def constant_of(result: Value) -> float | None:
    """What a constant answer is worth on the examples of a result; documents of earlier versions do not say it."""
    if result.constant is not None:
        return result.constant
    return 0.0 if result.metric in ZERO else None


def role_losses(mains: Mapping[str, str], gone: frozenset[str]) -> list[RoleLoss]:
    """Roles that lost all of their heads, or at least half of them and twice as many as their share."""
    removed = sum(unit in gone for unit in mains)
    out = []
    for role in dict.fromkeys(mains.values()):
        heads = [unit for unit in mains if mains[unit] == role]
        lost = sum(unit in gone for unit in heads)
        beyond_share = lost == len(heads) or lost >= 2 * len(heads) * removed / len(mains)
        if len(heads) >= FEWEST and lost >= HALF * len(heads) and beyond_share:
            out.append(RoleLoss(role, len(heads), lost))
    return out


def of_roles(losses: list[RoleLoss], removed: int, of: int) -> list[str]:
    """A sentence about roles that are lost; none where there are none."""
    if not losses:
        return []
    parts = [f"{loss.gone} of {counted(loss.heads, f'{loss.role} head')}" for loss in losses]
    text = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + f" and {parts[-1]}"
    return [
        f"{text} are gone, of all heads {percent(removed / max(1, of))}: what they do may be lost where the data of this "
        "report does not ask for it. Measure it before the model is used."
    ]


class _Point(NamedTuple):
    value: float
    low: float
    high: float


def _no_better(result: Value, constant: float) -> bool:
    """Whether the interval covers the constant answer, or lies on its wrong side."""
    return result.high >= constant if result.metric in FALLING else result.low <= constant
