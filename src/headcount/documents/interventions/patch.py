"""patch.json: clean and corrupted prompts, and one activation at a time from the others. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ...stats.results import Comparison
from ..reading import FLAT, SOMETIMES, JsonDocument
from ..results import ResultDocument


@dataclass(frozen=True, kw_only=True)
class PatchedUnit:
    """One patch: how far it leads from corrupted (0) to clean (1), with an interval where there is one, and its test.

    Of the residual stream, `layer` reads it and `position` says where it was patched.
    """

    patched: str
    site: str = ""
    layer: int | None = field(default=None, metadata=SOMETIMES)
    position: str | None = field(default=None, metadata=SOMETIMES)
    normalised: float
    normalised_low: float | None = field(default=None, metadata=SOMETIMES)
    normalised_high: float | None = field(default=None, metadata=SOMETIMES)
    comparison: Comparison = field(metadata=FLAT)


@dataclass(frozen=True, kw_only=True)
class PatchDocument(JsonDocument):
    """What `patch` found: the metric on both kinds of prompts, and with each patch in turn."""

    NAME: ClassVar[str] = "patch"

    direction: str
    units: str = "heads"
    at: str = "all"
    clean: ResultDocument
    corrupted: ResultDocument
    test: str = ""
    patches: tuple[PatchedUnit, ...]
