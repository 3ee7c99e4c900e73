"""What writers are given, summed over the positions of each example: one forward pass and no gradient.

From these sums come the criteria that look at activations alone (`wanda`, `flap`, `activation`), and the means that are put
back for units that are gone. Padding is left out, so that the numbers do not depend on how examples lie in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..errors import NotFinite, Refused
from ..evaluation.evaluator import device_of, fresh, to_device
from ..evaluation.layer_by_layer import Streamed, check_inside, layer_by_layer
from ..evaluation.residual_stream import Enough, matrix_of
from ..model.anatomy import Anatomy, Site
from ..model.equivalence import evaluating
from ..model.loading.lazy_tensors import is_lazy
from ..model.loading.quantised import matrix_seen
from ..model.matrices import Padded, index_on, is_quantised
from ..model.multihead import opened
from ..model.positions import Unclear, in_decoder, real_positions
from ..progress import Bar
from .attention import halved, per_token

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

ROWS = 128  # at most so many rows are kept; of more examples, a row is a block of consecutive ones
CHUNK = 128  # about so many consecutive examples are written together
WIDE = 2**22  # numbers that are in double precision at a time
KINDS = ("positions", "sums", "squares", "norms")


@dataclass(frozen=True, eq=False)
class ActivationSums:
    """Sums over positions of what each writer is given. A row is one example; of more than 128, a block of them.

    Each is a dict by site name. `positions` (rows, 1) counts positions that are not padding; `sums` and `squares`
    (rows, columns) are of the writer's input, column by column; `norms` (rows, units) are of the l2 norm of each unit's
    columns at each position, which of a neuron is its absolute value.
    """

    positions: dict[str, np.ndarray]
    sums: dict[str, np.ndarray]
    squares: dict[str, np.ndarray]
    norms: dict[str, np.ndarray]

    def means(self, name: str) -> np.ndarray:
        """The mean over all positions of each column of what a site's writer is given: (columns,)."""
        return np.asarray(self.sums[name].sum(0) / max(1.0, self.positions[name].sum()))


def activation_sums(
    root: nn.Module,
    anatomy: Anatomy,
    sites: Sequence[Site],
    task: Task,
    *,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "score",
) -> ActivationSums:
    """The sums of these attentions and MLPs over the examples of a task; the model is as it was afterwards."""
    for site in sites:
        if not site.calls_writer:
            raise Refused(
                f"{site.name} takes the weights of its output projection without calling it, so what it writes from cannot be "
                "seen; score it by taylor."
            )
    size = batch_size if all(site.per_example for site in sites) else 1
    per_row = -(-task.size // ROWS)
    chunk = per_row * max(1, CHUNK // per_row)
    if is_lazy(root):
        streamed = _layer_by_layer(root, anatomy, sites, task, per_row, chunk, size, run, name)
        return ActivationSums(
            **{kind: {site.name: streamed[f"{kind}.{site.name}"] for site in sites} for kind in KINDS}
        )
    with evaluating(root), torch.no_grad(), opened(root), Bar("activations", total=task.size) as bar:
        jobs = []
        for start in range(0, task.size, chunk):
            some = range(start, min(start + chunk, task.size))
            compute = partial(_chunk, root, anatomy, sites, task.subset(some), per_row, size, bar)
            jobs.append((f"{name}-activations-{start:06d}", compute))
        pieces = list(runs.independent(run, jobs))
    joined = {
        kind: {site.name: np.concatenate([piece[f"{kind}.{site.name}"] for piece in pieces]) for site in sites}
        for kind in KINDS
    }
    return ActivationSums(**joined)


def _layer_by_layer(
    root: nn.Module,
    anatomy: Anatomy,
    sites: Sequence[Site],
    task: Task,
    per_row: int,
    chunk: int,
    size: int | None,
    run: Run | None,
    name: str,
) -> dict[str, np.ndarray]:
    """The sums of a model whose weights are in files, in the same rows: every example through one layer after the other."""
    check_inside(anatomy, sites)

    def look(layer: nn.Module, numbers: Sequence[int]) -> dict[str, np.ndarray]:
        inside = set(layer.modules())
        return _pass(root, anatomy, [site for site in sites if site.writer in inside], task, numbers)

    def gathered(size: int | None, name: str) -> dict[str, np.ndarray]:
        starts = range(0, task.size, chunk)
        subsets = ((start, task.subset(range(start, min(start + chunk, task.size)))) for start in starts)
        batches = [[start + n for n in numbers] for start, some in subsets for numbers in some.batches(size)]
        return layer_by_layer(Streamed(root, anatomy, task, batches), look, per_row=per_row, run=run, name=name)

    with evaluating(root), torch.no_grad(), opened(root):
        out = alone_where_unclear(gathered, size, f"{name}-activations")
    for site in sites:
        if f"sums.{site.name}" not in out:
            raise _does_not_run(site, task)
    return out


def alone_where_unclear(
    compute: Callable[[int | None, str], dict[str, np.ndarray]], size: int | None, name: str
) -> dict[str, np.ndarray]:
    """What `compute` gives for a batch size and a name; for examples one by one where padding cannot be told in batches."""
    try:
        return compute(size, name)
    except Unclear as unclear:
        if size == 1:
            raise Refused(str(unclear)) from None
    try:
        return compute(1, f"{name}-alone")
    except Unclear as unclear:
        raise Refused(str(unclear)) from None


def _chunk(
    root: nn.Module, anatomy: Anatomy, sites: Sequence[Site], task: Task, per_row: int, size: int | None, bar: Bar
) -> dict[str, np.ndarray]:
    """The sums of some consecutive examples, folded into rows."""
    rows = -(-task.size // per_row)
    out: dict[str, np.ndarray] = {}
    for numbers in task.batches(size):
        arrays = halved(partial(_batch, root, anatomy, sites, task), "activations", task, numbers)
        for key, values in arrays.items():
            into = out.setdefault(key, np.zeros((rows, values.shape[1])))
            places = [number // per_row for number in numbers]
            if len(set(places)) == len(places):
                into[places] += values
            else:
                np.add.at(into, places, values)
        bar.advance(len(numbers))
    return out


def _batch(
    root: nn.Module, anatomy: Anatomy, sites: Sequence[Site], task: Task, numbers: Sequence[int]
) -> dict[str, np.ndarray]:
    """Arrays (examples, columns) of one batch."""
    return each_alone_where_unclear(partial(_pass, root, anatomy, sites, task), numbers)


def each_alone_where_unclear(
    compute: Callable[[Sequence[int]], dict[str, np.ndarray]], numbers: Sequence[int]
) -> dict[str, np.ndarray]:
    """What `compute` gives for a batch; for its examples one by one where padding cannot be told in the batch."""
    try:
        return compute(numbers)
    except Unclear as unclear:
        if len(numbers) == 1:
            raise Refused(str(unclear)) from None
    parts = [each_alone_where_unclear(compute, [number]) for number in numbers]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _pass(
    root: nn.Module, anatomy: Anatomy, sites: Sequence[Site], task: Task, numbers: Sequence[int]
) -> dict[str, np.ndarray]:
    device, size = device_of(root), len(numbers)
    batch = to_device(task.collate(numbers), device)
    # as wide as the device has: variances are differences of sums
    wide = torch.float32 if device.type == "mps" else torch.float64
    sums: dict[str, dict[str, Tensor]] = {}
    with ExitStack() as stack:
        for site in sites:
            see = partial(_see, site, partial(real_positions, batch, in_decoder(root, anatomy, site)), sums, size, wide)
            stack.callback(site.writer.register_forward_pre_hook(see, with_kwargs=True).remove)
        with suppress(Enough):  # where one layer is run alone, what comes after it does not
            task.loss(root, fresh(batch))
    out = {}
    for site in sites:
        if site.name not in sums:
            raise _does_not_run(site, task)
        for kind, values in sums[site.name].items():
            out[f"{kind}.{site.name}"] = values.double().cpu().numpy()
        finite_rows(out[f"squares.{site.name}"], f"What {site.name} writes from", task, numbers)
    return out


def _does_not_run(site: Site, task: Task) -> Refused:
    return Refused(
        f"{site.name} does not run on {task.name}, so there is nothing that it writes; score it on data that it sees."
    )


def finite_rows(values: np.ndarray, what: str, task: Task, numbers: Sequence[int]) -> None:
    """`NotFinite` for the first example of a batch with a value that is not a number."""
    bad = np.flatnonzero(~np.isfinite(values).all(1))
    if len(bad):
        raise NotFinite(
            f"{what} is not finite for {task.describe(numbers[int(bad[0])])}: look at that example, or use a wider dtype."
        )


def _see(
    site: Site,
    real: Callable[[Tensor, int], Tensor],
    sums: dict[str, dict[str, Tensor]],
    size: int,
    wide: torch.dtype,
    _: nn.Module,
    args: Any,
    kwargs: Any,
) -> None:
    """Pre-hook of a writer: adds what each example's positions are given, to what earlier calls of it were."""
    x = (args[0] if args else next(iter(kwargs.values()))).detach()
    x = x.movedim(1, -1) if isinstance(site.writer, nn.Conv1d | nn.Conv2d) else x
    if isinstance(site.writer, Padded):  # it picks its inputs itself
        x = x.index_select(-1, index_on(site.writer.places, x.device))
    mask = real(x, size)
    x = x.reshape(size, -1, x.shape[-1]).masked_fill(~mask[..., None], 0)
    each = []
    few = max(1, WIDE // max(1, x[0].numel()))  # examples at a time: a wide copy of a whole batch may not fit
    for some, own in zip(x.split(few), mask.split(few), strict=True):
        values = some.to(wide)  # (examples, positions, columns)
        norms = values.unflatten(-1, (len(site), site.width)).norm(dim=-1)
        each.append((own.sum(1, keepdim=True).to(wide), values.sum(1), values.square().sum(1), norms.sum(1)))
    for kind, rows in zip(KINDS, zip(*each, strict=True), strict=True):
        total = torch.cat(rows)
        own_sums = sums.setdefault(site.name, {})
        own_sums[kind] = own_sums[kind] + total if kind in own_sums else total


# -- the criteria ----------------------------------------------------------------------------------------------------------

# Each gives for every site samples (rows, units) whose mean over rows is the score. Where the score is no mean over
# positions, but a function of such means, a sample is the score plus what its row adds to it to first order.


def wanda(gathered: ActivationSums, sites: Sequence[Site]) -> dict[str, np.ndarray]:
    """Weights times the norm of what they multiply (Sun et al. 2024), summed over the columns that a unit writes with.

    S_u = sum over columns j of u of ||X_j|| sum_i |W_ij|. ||X_j|| is the root of the mean square over positions, which is
    their l2 norm but for a factor that all columns share.
    """
    out = {}
    for site in sites:
        mean = per_token(gathered.squares[site.name], gathered.positions[site.name])
        square = mean.mean(0)
        norm = np.sqrt(square)
        first_order = norm + (mean - square) / np.maximum(2 * norm, np.finfo(float).tiny)
        out[site.name] = _units(site, np.where(norm > 0, first_order, 0) * _weights(site).abs().sum(0).cpu().numpy())
    return out


def flap(gathered: ActivationSums, sites: Sequence[Site]) -> dict[str, np.ndarray]:
    """The fluctuation of what a unit writes (An et al. 2024), standardised over the columns of its site.

    M_j = Var(x_j) ||W_j||^2 for a column j, with the variance over positions; S_u is the mean of (M_j - mean M) / std M over
    the columns of the unit, mean and std over all columns of the site.
    """
    out = {}
    for site in sites:
        positions = gathered.positions[site.name]
        x, square = (per_token(values[site.name], positions) for values in (gathered.sums, gathered.squares))
        mean = x.mean(0)
        variance = square - mean**2 - 2 * mean * (x - mean)
        columns = variance * _weights(site).square().sum(0).cpu().numpy()
        out[site.name] = _units(site, _standardised(columns)) / site.width
    return out


def _standardised(columns: np.ndarray) -> np.ndarray:
    """Samples (rows, columns) of means, as samples of (mean - their mean) / their standard deviation, to first order."""
    level = columns.mean(0)
    spread = (level.std(ddof=1) if len(level) > 1 else 0.0) or 1.0
    scores = (level - level.mean()) / spread
    change = (columns - level) / spread
    change = change - change.mean(1, keepdims=True)
    wider = change @ scores / max(1, len(level) - 1)  # what each row adds to the standard deviation, as a share of it
    return np.asarray(scores + change - wider[:, None] * scores)


def magnitudes(gathered: ActivationSums, sites: Sequence[Site]) -> dict[str, np.ndarray]:
    """How large what a unit writes from is (Muralidharan et al. 2024): a head's l2 norm, a neuron's absolute value.

    The mean over all positions of all examples.
    """
    return {site.name: per_token(gathered.norms[site.name], gathered.positions[site.name]) for site in sites}


def _weights(site: Site) -> Tensor:
    if site.columns is None and is_quantised(site.writer) and hasattr(site.writer, "in_features"):
        return matrix_seen(site.writer)
    if site.columns is None:
        raise Refused(f"The weights of {site.name} are packed or quantised, so their size cannot be read off per unit.")
    weight = matrix_of(site)
    return weight.double() if weight.device.type != "mps" else weight


def _units(site: Site, columns: np.ndarray) -> np.ndarray:
    """Sums over the columns of each unit: (rows, units) from (rows, columns)."""
    return np.asarray(columns.reshape(len(columns), len(site), site.width).sum(-1))
