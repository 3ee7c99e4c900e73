"""What patching found: values of every example, normalised between corrupted and clean, with intervals and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .. import notebook
from ..documents.interventions.patch import PatchDocument, PatchedUnit
from ..documents.results import ResultDocument
from ..stats.metrics import CLASSIFIED, Metric, metric
from ..stats.paired_tests import resample_counts
from ..stats.results import Comparison, Result, compare_all
from .patches import Patch

DIRECTIONS = ("denoising", "noising")
TOP = 10


class PatchedRow(NamedTuple):
    """One patch: how far it leads from corrupted (0) to clean (1), the interval of that, and the test of the difference."""

    name: str
    normalised: float
    low: float | None
    high: float | None
    comparison: Comparison


@dataclass(frozen=True, eq=False)
class Patching:
    """A metric on clean and on corrupted prompts, (examples,), and under each patch, (patches, examples)."""

    patches: tuple[Patch, ...]
    units: str
    at: str
    direction: str
    metric: Metric
    clean: np.ndarray
    corrupted: np.ndarray
    values: np.ndarray
    signature: str = ""
    clusters: np.ndarray | None = None
    kinds: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """What was patched, in order."""
        return tuple(patch.name for patch in self.patches)

    @cached_property
    def base(self) -> Result:
        """The metric without a patch: on corrupted prompts where denoising, on clean ones where noising."""
        return self._result(self.corrupted if self.direction == DIRECTIONS[0] else self.clean)

    def _result(self, values: np.ndarray) -> Result:
        return Result(self._mean, self._as_rows(values), self.signature, self.clusters)

    @property
    def _mean(self) -> Metric:
        """The metric as the mean of a value per example."""
        name = self.metric.name
        if name == "accuracy":
            return metric("accuracy", columns=CLASSIFIED[:2])
        return metric(name, columns=("loss",)) if name == "loss" else metric(name)

    def _as_rows(self, values: np.ndarray) -> np.ndarray:
        """Values (..., examples) as the rows of `_mean`."""
        if self.metric.name == "accuracy":  # right or wrong: the label is 1
            return np.stack([np.ones_like(values), values], axis=-1)
        return values[..., None]

    @cached_property
    def normalised(self) -> np.ndarray:
        """How far each patch leads from corrupted (0) to clean (1): a ratio of means over the examples, (patches,)."""
        gap = float(self.clean.mean() - self.corrupted.mean())
        moved = self.values.mean(axis=1) - self.corrupted.mean()
        return moved / gap if gap else np.zeros(len(moved))

    @cached_property
    def normalised_by_example(self) -> np.ndarray:
        """The same for every example on its own, (patches, examples); nan where its clean and corrupted values are equal."""
        gap = self.clean - self.corrupted
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(gap != 0, (self.values - self.corrupted) / gap, np.nan)

    def intervals(self, level: float = 0.95, resamples: int = 1000, seed: int = 12345) -> np.ndarray | None:
        """Bootstrap intervals over the examples of the normalised values, (patches, 2); clean and corrupted are drawn along.

        None where the examples do not show that clean and corrupted differ at all: a ratio has no interval then.
        """
        groups = None if self.clusters is None else np.unique(self.clusters, return_inverse=True)[1]
        along = []
        for counts in resample_counts(resamples, len(self.clean), seed, groups):
            gap = counts @ (self.clean - self.corrupted)  # (resamples,)
            along.append(np.stack([gap, *((self.values - self.corrupted) @ counts.T)]))
        drawn = np.concatenate(along, axis=1)  # (1 + patches, resamples)
        ends = [(1 - level) / 2, (1 + level) / 2]
        low, high = np.quantile(drawn[0], ends)
        if low <= 0 <= high:
            return None
        return np.quantile(drawn[1:] / drawn[0], ends, axis=1).T

    def comparisons(
        self, test: str = "randomization", *, resamples: int | None = None, seed: int = 12345
    ) -> tuple[Comparison, ...]:
        """Each patch against no patch: difference, interval, p; p also corrected over all of them together (Holm)."""
        draws = max(1000, 100 * len(self.patches)) if resamples is None else resamples
        return compare_all(self.base, self._as_rows(self.values), test=test, resamples=draws, seed=seed)

    def rows(
        self, test: str = "randomization", *, resamples: int | None = None, seed: int = 12345
    ) -> tuple[PatchedRow, ...]:
        """Every patch with its normalised value, the interval of that, and the test of its difference."""
        ends = self.intervals(seed=seed)
        spans = [(None, None)] * len(self.patches) if ends is None else [(float(a), float(b)) for a, b in ends]
        compared = self.comparisons(test, resamples=resamples, seed=seed)
        return tuple(
            PatchedRow(name, float(value), *span, comparison)
            for name, value, span, comparison in zip(self.names, self.normalised, spans, compared, strict=True)
        )

    def document(
        self, test: str = "randomization", *, resamples: int | None = None, seed: int = 12345
    ) -> PatchDocument:
        """What `patch.json` keeps."""
        patched = [
            PatchedUnit(
                patched=row.name,
                site=patch.stack or next(iter(patch.plan.by_site()), ""),
                layer=patch.layer,
                position=patch.at.name if patch.block is not None else None,
                normalised=row.normalised,
                normalised_low=row.low,
                normalised_high=row.high,
                comparison=row.comparison,
            )
            for row, patch in zip(self.rows(test, resamples=resamples, seed=seed), self.patches, strict=True)
        ]
        return PatchDocument(
            direction=self.direction,
            units=self.units,
            at=self.at,
            clean=ResultDocument.of(self._result(self.clean)),
            corrupted=ResultDocument.of(self._result(self.corrupted)),
            test=test,
            patches=tuple(patched),
        )

    def effects(self) -> np.ndarray:
        """How far each patch leads away from no patch, on the normalised scale: towards clean, or if noising away from it."""
        return self.normalised if self.direction == DIRECTIONS[0] else 1 - self.normalised

    def __str__(self) -> str:
        order = np.argsort(-np.abs(self.effects()), kind="stable")[:TOP]
        largest = ", ".join(f"{self.names[n]} {self.normalised[n]:+.2f}" for n in order)
        return (
            f"{len(self.patches)} patches, {self.direction}; {self.metric.name} {self.clean.mean():.3g} on clean prompts, "
            f"{self.corrupted.mean():.3g} on corrupted ones\nfurthest on the way from corrupted (0) to clean (1): {largest}\n"
            "`.rows()` has intervals and tests"
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        sites = notebook.by_site(self.names, self.normalised)
        if all(
            patch.block is not None for patch in self.patches
        ):  # the stream: a row for each layer, columns are positions
            sites = {}
            for patch, value in zip(self.patches, self.normalised, strict=True):
                sites.setdefault(f"{patch.stack}:{patch.layer}", {})[patch.at.name] = float(value)
        said = f"from corrupted (0) to clean (1), {'no patch is 0' if self.direction == DIRECTIONS[0] else 'no patch is 1'}"
        if self.units == "residual":
            said += "; rows are layers that read the stream, columns positions"
        head = notebook.line(str(self).splitlines()[0], bold=True)
        return notebook.block(head, notebook.shades(sites, 2, notebook.SCORES._replace(said=said)))
