"""Faithfulness over sizes: the size of a circuit is chosen where it was found, the curve is of other examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from ..documents.discovery.circuit import CircuitPoint
from ..stats.faithfulness import Estimate, areas, faithfulness, over_sizes

if TYPE_CHECKING:
    from ..data.tasks import Task

Part = TypeVar("Part")  # a unit, or an edge
Given = TypeVar("Given", contravariant=True)


class Measure(Protocol[Given]):
    """The metric of every example of a task: "clean", "corrupted", and for each order the circuits of its first parts."""

    def __call__(self, task: Task, orders: Mapping[str, Sequence[Given]], name: str) -> dict[str, np.ndarray]:
        """Arrays (examples,), and for each order (examples, sizes)."""


@dataclass(frozen=True, eq=False)
class OverSizes:
    """The curve of circuits of the first parts of an order, and the smallest that is faithful where it was found."""

    size: int
    points: tuple[CircuitPoint, ...]
    cpr: Estimate
    cmd: Estimate
    random_cpr: float | None
    values: Mapping[str, np.ndarray]  # of the reported examples: "clean", "corrupted", "nothing"


@dataclass(frozen=True)
class Halves:
    """Examples to find a circuit on and examples to report it on, and how random circuits are drawn."""

    find_on: Task
    report_on: Task
    reach: float
    random_seeds: int
    seed: int


def sizes_of(shares: Iterable[float], count: int) -> list[int]:
    """How many parts there are in the circuits, from none to all."""
    return sorted({round(share * count) for share in shares} | {0, count})


def over(
    measure: Measure[Part], order: Sequence[Part], parts: Sequence[Part], sizes: Sequence[int], halves: Halves
) -> OverSizes:
    """Faithfulness at all sizes of circuits along an order of the parts."""
    here = measure(halves.find_on, {"order": order}, "found")
    found = faithfulness(here["clean"].mean(), here["order"][:, 0].mean(), here["order"].mean(0))
    draws = [np.random.default_rng([halves.seed, number]) for number in range(halves.random_seeds)]
    orders = {str(n): [parts[k] for k in rng.permutation(len(parts))] for n, rng in enumerate(draws)}
    there = measure(halves.report_on, {"order": order, **orders}, "reported")
    shares = [size / len(parts) for size in sizes]
    nothing, clusters = there["order"][:, 0], halves.report_on.clusters
    curve = over_sizes(shares, there["clean"], nothing, there["order"], clusters=clusters, seed=halves.seed)
    ends = there["clean"].mean(), nothing.mean()
    random = np.array([faithfulness(*ends, there[name].mean(0)) for name in orders])
    reached = [size for size, value in zip(sizes, found, strict=True) if value >= halves.reach]
    points = [
        CircuitPoint(
            kept=size,
            share=shares[n],
            value=float(there["order"][:, n].mean()),
            faithfulness=curve.points[n],
            found=float(found[n]),
            random=float(random[:, n].mean()) if len(random) else None,
        )
        for n, size in enumerate(sizes)
    ]
    return OverSizes(
        size=min(reached, default=len(parts)),
        points=tuple(points),
        cpr=curve.cpr,
        cmd=curve.cmd,
        random_cpr=float(areas(shares, random)[0].mean()) if len(random) else None,
        values={"clean": there["clean"], "corrupted": there["corrupted"], "nothing": nothing},
    )
