"""Attribution patching and EAP-IG of units: what patching each of them would do to the metric, estimated by gradients.

Exact patching takes a pass per unit. To first order it is the difference of the unit's activations, corrupted less clean, times
the gradient of the metric, summed over positions: attribution patching (Nanda 2023; Syed et al. 2023) takes the gradient of the
clean run. Where the metric bends between the two that is wrong; EAP-IG (Hanna et al. 2024) takes the mean gradient of `steps`
runs whose embeddings lie on the line from the corrupted to the clean ones (integrated gradients, Sundararajan et al. 2017). Of
its variants this is the one with interpolated inputs: step k of m begins with corrupted + k/m (clean - corrupted).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ... import runs
from ...errors import BadPlan, NotFinite
from ...evaluation.evaluator import in_parts
from ...model.anatomy import Anatomy, Site, Stack
from ...progress import Bar
from .pairs import Pair, Spot, check_parts, contrasted, gradients_times, ready, sign_of, starting_from

if TYPE_CHECKING:
    from ...data.tasks import Task
    from ...runs import Run

CHUNK = 128  # consecutive examples that are kept, and written, together
BLOCK = 32  # consecutive examples whose sum is one row of a neuron
STEPS = 5  # of EAP-IG, as in the paper
METHODS = ("attribution-patching", "eap-ig")


@dataclass(frozen=True)
class Method:
    """How the gradient is taken: in the clean run, or as the mean of `steps` runs between corrupted and clean embeddings."""

    by: str = "eap-ig"
    steps: int = STEPS

    def __post_init__(self) -> None:
        if self.by not in METHODS:
            raise BadPlan(f"Patching is estimated by {' or '.join(METHODS)}; I got {self.by!r:.40}.")
        if self.steps < 1:
            raise BadPlan(f"EAP-IG takes the mean of at least 1 step (--steps); I got {self.steps}.")

    @property
    def shares(self) -> tuple[float, ...]:
        """How much of the clean embeddings there is in each run."""
        if self.by == "attribution-patching":
            return (1.0,)
        return tuple(step / self.steps for step in range(1, self.steps + 1))

    def __str__(self) -> str:
        return self.by if self.by == "attribution-patching" else f"{self.by}({self.steps})"


def attributions(
    root: nn.Module,
    anatomy: Anatomy,
    parts: Sequence[Site | Stack],
    task: Task,
    method: Method,
    *,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "score",
    whole: bool = False,
) -> dict[str, np.ndarray]:
    """For each part (rows, units): the drop of the metric that patching would cause, estimated; the mean over rows is the score.

    A row is an example, or of neurons a block of 32 of them. Where less of the metric is better, its rise. With `whole`, MLPs are
    one unit each, and not one per neuron.
    """
    task = contrasted(task, method.by)
    check_parts(root, parts)
    pieces = []
    with ready(root), Bar(method.by, total=task.size) as bar:
        chunks = {
            start: task.subset(range(start, min(start + CHUNK, task.size))) for start in range(0, task.size, CHUNK)
        }
        jobs = [
            (
                f"{name}-{method.by}-{len(method.shares)}-{start:06d}",
                partial(_chunk, root, anatomy, parts, some, method, batch_size, whole),
            )
            for start, some in chunks.items()
        ]
        for some, arrays in zip(chunks.values(), runs.independent(run, jobs), strict=True):
            pieces.append(arrays)
            bar.advance(some.size)
    out = {}
    for part in parts:
        values = np.concatenate([piece[part.name] for piece in pieces]).astype(np.float64)
        # a row may stand for several examples: scaled so that the mean over rows is the mean over examples
        out[part.name] = sign_of(task) * values * (len(values) / task.size)
    return out


def _chunk(
    root: nn.Module,
    anatomy: Anatomy,
    parts: Sequence[Site | Stack],
    task: Task,
    method: Method,
    batch_size: int | None,
    whole: bool,
) -> dict[str, np.ndarray]:
    units = {part.name: 1 if whole and part.kind == "neuron" else len(part) for part in parts}
    found = {name: np.zeros((task.size, count), np.float32) for name, count in units.items()}
    for numbers in task.batches(batch_size):
        for some, values in in_parts(
            partial(_batch, root, anatomy, parts, task, method, units), "gradients", task, numbers
        ):
            for part in parts:
                found[part.name][list(some)] = values[part.name]
    return {part.name: _folded(found[part.name], part, whole) for part in parts}


def _folded(values: np.ndarray, part: Site | Stack, whole: bool) -> np.ndarray:
    """The rows of neurons summed over blocks of examples."""
    return (
        values if part.kind != "neuron" or whole else np.add.reduceat(values, np.arange(0, len(values), BLOCK), axis=0)
    )


def _batch(
    root: nn.Module,
    anatomy: Anatomy,
    parts: Sequence[Site | Stack],
    task: Task,
    method: Method,
    units: Mapping[str, int],
    numbers: Sequence[int],
) -> dict[str, np.ndarray]:
    """Estimated drops (examples, units) of one batch: two passes that are recorded, and one with a gradient for each step."""
    pair = Pair(task, root, tuple(numbers))
    clean, corrupted = pair.recorded(pair.clean, parts), pair.recorded(pair.corrupted, parts)
    drops = {spot: clean[spot] - corrupted[spot] for spot in clean}
    columns = {part.name: units[part.name] if isinstance(part, Site) else 1 for part in parts}
    sums = {spot: torch.zeros(len(numbers), columns[spot[0]], device=value.device) for spot, value in drops.items()}
    with gradients_times(pair, parts, drops, sums):
        for _, values in along(pair, anatomy, method):
            values.sum().backward()
    means = {spot: (value / len(method.shares)).cpu().numpy() for spot, value in sums.items()}
    _finite(task, numbers, means)
    return {
        part.name: np.concatenate([means[spot] for spot in means if spot[0] == part.name], axis=1) for part in parts
    }


def along(pair: Pair, anatomy: Anatomy, method: Method) -> Iterator[tuple[Tensor | None, Tensor]]:
    """For each run of the method, where it starts (None: as the model does) and the metric of every example."""
    if method.by == "attribution-patching":
        yield None, pair.values(pair.clean)
        return
    ends = [pair.stream(batch, anatomy) for batch in (pair.corrupted, pair.clean)]
    for share in method.shares:
        with ExitStack() as stack:
            start = stack.enter_context(starting_from(anatomy, ends[0] + share * (ends[1] - ends[0])))
            yield start, pair.values(pair.clean)


def _finite(task: Task, numbers: Sequence[int], means: Mapping[Spot, np.ndarray]) -> None:
    bad = np.flatnonzero(~np.all([np.isfinite(values).all(1) for values in means.values()], axis=0))
    if len(bad):
        raise NotFinite(
            f"The gradient of {task.metric.name} of {task.describe(numbers[int(bad[0])])} is not finite: look at that example, "
            "or use a wider dtype."
        )
