"""logit-attribution.json: what each component of a model adds by itself to the logits of given tokens. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ... import notebook
from ...errors import BadPlan
from ...formatting import signed
from ...stats.metrics import metric
from ...stats.results import Comparison, Result, compare_all
from ..reading import FLAT, JsonDocument

EMBEDDINGS, BIASES, REST = "embeddings", "biases", "rest"
AGAINST = ("mean", "nothing")


@dataclass(frozen=True, kw_only=True)
class Component:
    """What one component adds: `difference` is its mean over examples, with interval and p of "adds nothing"."""

    component: str
    comparison: Comparison = field(metadata=FLAT)


@dataclass(frozen=True, kw_only=True)
class AttributionDocument(JsonDocument):
    """What `attribute` found: components in the order of the model; those that are no units have no corrected p."""

    NAME: ClassVar[str] = "logit-attribution"

    logits: str
    total: float
    n: int
    test: str
    notes: tuple[str, ...] = ()
    signature: str = ""
    units: tuple[Component, ...]
    others: tuple[Component, ...]


@dataclass(frozen=True, eq=False)
class Attribution:
    """Direct logit attribution: what every component adds to the logits of every example's tokens; rows add up to `totals`.

    Components are units ("3:7", "3.mlp"), "embeddings", "biases" of all kinds, and "layers:3 rest" for what a layer writes
    besides, such as routed experts. `difference` says which logits: "right - wrong", "right - mean" (of the vocabulary), "right".
    """

    components: tuple[str, ...]
    values: np.ndarray  # (examples, components)
    totals: np.ndarray  # (examples,)
    difference: str
    notes: tuple[str, ...] = ()
    signature: str = ""
    clusters: np.ndarray | None = None

    @property
    def units(self) -> tuple[str, ...]:
        """The components that are heads, neurons, attentions or MLPs."""
        return tuple(name for name in self.components if name not in (EMBEDDINGS, BIASES) and not name.endswith(REST))

    @property
    def means(self) -> dict[str, float]:
        """What each component adds on average."""
        return dict(zip(self.components, self.values.mean(0).tolist(), strict=True))

    def __getitem__(self, component: object) -> np.ndarray:
        """What one component adds for every example: (examples,)."""
        if str(component) not in self.components:
            raise BadPlan(f"{component!s:.60} is no component; there are {', '.join(self.components[:4])}, ...")
        return np.asarray(self.values[:, self.components.index(str(component))])

    def comparisons(self, test: str = "t", *, resamples: int = 1000, seed: int = 12345) -> dict[str, Comparison]:
        """For each component its mean with an interval, tested against adding nothing; units are corrected for their number.

        The test is the t-test: with hundreds of units, a randomization test of a thousand draws could not show anything.
        """
        others = [name for name in self.components if name not in self.units]
        return {**self._tested(self.units, test, resamples, seed), **self._tested(others, test, resamples, seed)}

    def _tested(
        self, names: tuple[str, ...] | list[str], test: str, resamples: int, seed: int
    ) -> dict[str, Comparison]:
        mean = metric("mean", higher_is_better=True)
        nothing = Result(mean, np.zeros((len(self.totals), 1)), self.signature, self.clusters)
        rows = np.stack([self[name] for name in names])[:, :, None] if names else np.empty((0, len(self.totals), 1))
        compared = compare_all(nothing, rows, test=test, resamples=resamples, seed=seed)
        return dict(zip(names, compared, strict=True))

    def document(self, test: str = "t", *, resamples: int = 1000, seed: int = 12345) -> AttributionDocument:
        """logit-attribution.json: means, intervals and tests."""
        found = self.comparisons(test, resamples=resamples, seed=seed)
        listed = [Component(component=name, comparison=found[name]) for name in self.components]
        return AttributionDocument(
            logits=self.difference,
            total=float(self.totals.mean()),
            n=len(self.totals),
            test=test,
            notes=self.notes,
            signature=self.signature,
            units=tuple(one for one in listed if one.component in self.units),
            others=tuple(one for one in listed if one.component not in self.units),
        )

    def __str__(self) -> str:
        means = self.means
        largest = sorted(self.units, key=lambda name: -abs(means[name]))[:10]
        added = ", ".join(f"{name} {signed(means[name], 3)}" for name in largest)
        return f"{self.difference}: {signed(float(self.totals.mean()), 3)} (n = {len(self.totals)}); most: {added}"

    def __repr__(self) -> str:
        return f"<Attribution {self}>"

    def _repr_html_(self) -> str:
        means = self.means
        rows = [
            (name, signed(means[name], 3)) for name in sorted(self.components, key=lambda name: -abs(means[name]))[:20]
        ]
        title = f"{self.difference}: {float(self.totals.mean()):+.3f}, n = {len(self.totals)}"
        return notebook.block(notebook.line(title, bold=True), notebook.table(["component", "adds"], rows))
