"""Numbers for the units that stay, so that what a cut model computes is nearest to what the whole one does.

Site by site, in the order in which they run, with the sites before it already cut and tuned: least squares between what
the whole model has in its residual stream after the site and what the cut one has (Kwon et al. 2022). No
weight is trained; the numbers are folded into the weights at the cut.

The stream after a site is z = r + sum_k m_k W_k x_k + bias, so with m = 1 + d the fit is that of z_whole - z_cut by
sum_k d_k W_k x_k. Its normal equations follow from W, X^T X and X^T (z_whole - z_cut), for heads and neurons alike,
however many positions there are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..documents.prune import Fit as Fit
from ..documents.prune import Skipped, TunedDocument
from ..documents.reading import read, write
from ..errors import BadData, Refused
from ..evaluation.evaluator import device_of, fresh, in_parts, to_device
from ..model.anatomy import Anatomy, Site, Units
from ..model.cutting.layers import deleted_blocks
from ..model.cutting.rules import refuse
from ..model.discovery import find, unwrap
from ..model.equivalence import evaluating, frozen
from ..model.gates import applied, gates_of
from ..model.tensor_trees import tensors
from ..plans import Plan
from ..progress import Bar
from .residual_targets import Enough, ResidualTarget, landing, matrix_of, rows_of

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..model.architectures import ModuleSpec

MEMORY = 2**30  # bytes of what the whole model had after every site
HELD_OUT = 4  # every fourth example chooses the strength of the ridge
STRENGTHS = tuple(10.0**power for power in range(-4, 2))  # of the ridge, as shares of the mean diagonal


@dataclass(frozen=True, eq=False)
class MaskTuning:
    """What `tuned` found: `scale` maps sites to a number per unit, for `cut(model, plan, scale=tuned.scale)`.

    Units that are gone have a one there, and sites that stay at one have no entry. `skipped` are sites that could not be
    fitted, each with its reason.
    """

    scale: dict[str, Tensor]
    examples: int
    positions: int
    sites: tuple[Fit, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    def document(self) -> TunedDocument:
        """What prune.json has of it, without the numbers themselves: those are in the weights of the cut model."""
        skipped = tuple(Skipped(name, why) for name, why in self.skipped)
        return TunedDocument(self.examples, self.positions, self.sites, skipped)

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form of that."""
        return dict(write(self.document()))

    def to_keep(self) -> dict[str, Any]:
        """A JSON-able form with the numbers, from which `kept` makes the same again."""
        return {**self.to_json(), "scale": {name: values.tolist() for name, values in self.scale.items()}}

    @classmethod
    def kept(cls, data: dict[str, Any]) -> MaskTuning:
        """What `to_keep` gave."""
        scale = {name: torch.tensor(values) for name, values in data["scale"].items()}
        document: TunedDocument = read(TunedDocument, data)
        return cls(
            scale,
            document.examples,
            document.positions,
            document.sites,
            tuple((skip.name, skip.why) for skip in document.skipped),
        )


def tune_mask(
    model: nn.Module,
    units: Units,
    task: Task,
    *,
    positions: int = 8192,
    batch_size: int | None = None,
    seed: int = 0,
    specs: Iterable[ModuleSpec] = (),
) -> MaskTuning:
    """Numbers for the units that a plan leaves; the model is as it was afterwards.

    Sites that the plan does not touch are tuned as well where they run after one that it does: they make up for it. It
    looks at examples with about `positions` positions, drawn by the seed (fewer where what must be remembered of them
    would be more than a gigabyte), and counts the positions that the task's loss depends on.
    """
    root, anatomy = unwrap(model), find(model, tuple(specs))
    plan = anatomy.plan(units)
    work = _Work(root, anatomy, task, gates_of(anatomy, plan))
    with evaluating(root), frozen(root), torch.inference_mode(False), torch.no_grad():
        spots = _spots(work, plan)
        pieces = list(_pieces(work, spots, positions, batch_size, seed)) if spots else []
        scale, fits, most = {}, [], 0
        with Bar("tuning", total=len(spots) * len(pieces)) as bar:
            for spot in spots:
                sums = _sums(work, spot, pieces, bar)
                if sums is None:
                    continue
                name, most = spot.site.name, max(most, sums[0].positions + sums[1].positions)
                fit, numbers = _fitted(spot, *sums)
                fits.append(fit)
                if fit.used:
                    scale[name] = numbers
                    work.gates[name] = work.gates[name] * numbers if name in work.gates else numbers
    examples = sum(piece.examples for piece in pieces)
    return MaskTuning(scale, examples, most, tuple(fits), tuple(work.skipped))


@dataclass
class _Work:
    root: nn.Module
    anatomy: Anatomy
    task: Task
    gates: dict[str, Tensor]  # of the cut model, as far as it is tuned
    skipped: list[tuple[str, str]] = field(default_factory=list)
    rate: float = 1.0  # positions at the widest site to each position of an example's length

    def run(self, batch: dict[str, Any], gates: Mapping[str, Tensor], hooks: Iterable[Any]) -> Tensor | None:
        """The losses of a batch under gates and hooks, or None if a hook had seen enough."""
        with ExitStack() as stack:
            stack.enter_context(applied(self.root, self.anatomy, gates))
            for handle in hooks:  # made only now, so that they see what the gates have done
                stack.callback(handle.remove)
            try:
                return self.task.loss(self.root, fresh(to_device(batch, device_of(self.root))))
            except Enough:
                return None


@dataclass(frozen=True, eq=False)
class TunedSite:
    """A site, the places of the units that stay, and where what it writes is compared."""

    site: Site
    left: Tensor
    landing: ResidualTarget

    @property
    def columns(self) -> Tensor:
        """The columns of the units that stay."""
        width = self.site.width
        return (self.left[:, None] * width + torch.arange(width)).flatten()


# -- where sites write, seen on two short examples -----------------------------------------------------------------------


def _spots(work: _Work, plan: Plan) -> list[TunedSite]:
    """The sites to be tuned, in the order in which they run; those that cannot be are noted in `skipped`."""
    inside = {module for block in deleted_blocks(work.anatomy, plan) for module in block.modules()}
    chosen, order, rows = plan.by_site(), [], [1]
    numbers = work.task.batches()[-1][:2]  # the shortest
    batch = work.task.collate(numbers)

    def ran(site: Site, _: nn.Module, __: Any, y: Tensor) -> None:
        order.append(site.name)
        rows.append(len(rows_of(site, y)))

    work.run(batch, {}, (site.writer.register_forward_hook(partial(ran, site)) for site in work.anatomy))
    work.rate = max(rows) / max(1, sum(work.task.lengths[number] for number in numbers))
    touched = {site.name for site in work.anatomy if site.name in chosen or site.writer in inside}
    first = next(
        (place for place, name in enumerate(order) if name in touched), len(order)
    )  # nothing changes before it
    spots = []
    for site in work.anatomy:
        remaining = len(site) - len(chosen.get(site.name, ()))
        if site.writer in inside or not remaining or not (site.name in touched or site.name in order[first:]):
            continue
        why = _untunable(work, site, order.count(site.name))
        target = landing(partial(work.run, batch), work.anatomy, site) if why is None else None
        if target is not None:
            removed_positions = set(site.positions(chosen.get(site.name, ())))
            stay = torch.tensor([position for position in range(len(site)) if position not in removed_positions])
            spots.append(TunedSite(site, stay, target))
        elif site.name in touched:
            work.skipped.append((site.name, why or "what it writes is not its matrix times what it is given"))
    return sorted(spots, key=lambda spot: order.index(spot.site.name))


def _untunable(work: _Work, site: Site, calls: int) -> str | None:
    """Why a site's numbers cannot be found, or could not be folded into its weights; None if they can."""
    if not site.calls_writer:
        return "its code uses the weights of its output projection without calling it"
    if site.columns is None or site.writer.weight.is_meta:
        return "its weights are packed, quantised or offloaded"
    rows, columns = site.columns.shape
    if "expert" in site.path.lower() or site.writer.weight.numel() != rows * columns:
        return "which positions reach an expert is not the same after the cut"
    if calls != 1:
        return f"it runs {calls} times in a pass" if calls else "it does not run in this task"
    try:
        refuse(work.root, work.anatomy, Plan(), {site.name: torch.ones(len(site))})
    except Refused:
        return "its weights are shared with another module"
    return None


# -- the whole model: what it has after each site, at the positions that matter ------------------------------------------


@dataclass
class _Target:
    z: Tensor  # (positions that matter, out)
    matter: Tensor  # (positions,)
    size: float  # squares of what the site itself writes there


@dataclass
class _Piece:
    """A batch, whether it is held out, and what the whole model had on it."""

    batch: dict[str, Any]
    examples: int
    held: bool
    targets: dict[str, _Target]


def _pieces(work: _Work, spots: list[TunedSite], positions: int, batch_size: int | None, seed: int) -> Iterator[_Piece]:
    """Batches of examples with so many positions in all, drawn by the seed; every fourth example is held out."""
    if work.task.size < 2:
        raise BadData(f"Tuning needs at least two examples, one of them to check it; {work.task.name} has one.")
    bytes_each = sum(s.site.columns.shape[0] * s.site.writer.weight.element_size() for s in spots if s.site.columns)
    numbers, chosen = list(range(work.task.size)), list[int]()
    position_budget = float(min(positions, MEMORY // bytes_each))
    random.Random(seed).shuffle(numbers)
    for number in numbers:
        if position_budget <= 0 and len(chosen) >= 2:
            break
        chosen.append(number)
        position_budget -= work.rate * work.task.lengths[number]
    held = chosen[1::HELD_OUT]
    for part in ([number for number in chosen if number not in set(held)], held):
        task = work.task.subset(part)
        for some in task.batches(batch_size):
            yield from _remembered(work, spots, task, some, part is held)


def _remembered(
    work: _Work, spots: list[TunedSite], task: Task, numbers: Sequence[int], held: bool
) -> Iterator[_Piece]:
    """The batch as a piece; as more of them where memory runs out."""

    def piece(some: Sequence[int]) -> _Piece:
        batch = task.collate(some)
        return _Piece(batch, len(some), held, _full_model_pass(work, spots, batch))

    for _, part in in_parts(piece, "gradients", task, numbers):
        yield part


def _full_model_pass(work: _Work, spots: list[TunedSite], batch: dict[str, Any]) -> dict[str, _Target]:
    """One forward and one backward pass of the whole model: where it lands, and where a gradient comes back to."""
    sizes: dict[str, Tensor] = {}
    stream: dict[str, Tensor] = {}
    matter: dict[str, Tensor] = {}

    def gave(spot: TunedSite, _: nn.Module, __: Any, y: Tensor) -> Tensor:
        name = spot.site.name
        if not y.requires_grad:  # the first thing that does; a copy, because code may add to it in place
            y = y.detach().requires_grad_().clone()
        y.register_hook(lambda gradient: matter.update({name: rows_of(spot.site, gradient != 0).any(-1)}))
        plain = rows_of(spot.site, y.detach())
        sizes[name] = plain.double().square().sum(-1) if y.device.type == "cpu" else plain.float().square().sum(-1)
        return y

    def landed(spot: TunedSite, z: Tensor) -> None:
        if spot.site.name in sizes and spot.site.name not in stream:
            stream[spot.site.name] = rows_of(spot.site, z.detach()).clone()

    def hooks() -> Iterator[Any]:
        for spot in spots:
            yield spot.site.writer.register_forward_hook(partial(gave, spot))
            yield spot.landing.hook(partial(landed, spot))

    with torch.enable_grad():
        loss = work.run(batch, {}, hooks())
        if loss is None or not loss.requires_grad:
            raise Refused(
                f"The loss of {work.task.name} has no gradient for any of these units: it must be computed from what the "
                "model gives out, without detach() or no_grad()."
            )
        loss.sum().backward()
    out = {}
    for spot in spots:
        name = spot.site.name
        if name in matter and name in stream:
            out[name] = _Target(stream[name][matter[name]], matter[name], float(sizes[name][matter[name]].sum()))
    return out


# -- the cut model: sums over positions, and the numbers -----------------------------------------------------------------


@dataclass
class Sums:
    """All that a fit needs to know about some positions: X^T X, a number per column, and squares."""

    gram: Tensor  # (columns, columns)
    cross: Tensor  # (columns,): sums over positions of x_j times (W^T (z_whole - z_cut))_j
    error: float = 0.0  # squares of z_whole - z_cut
    size: float = 0.0  # squares of what the whole model's site writes
    positions: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def _sums(work: _Work, spot: TunedSite, pieces: list[_Piece], bar: Bar) -> tuple[Sums, Sums] | None:
    """Sums over the positions to fit and over those held out, from one pass of the cut model over all pieces."""
    name, device = spot.site.name, spot.site.writer.weight.device
    weight = matrix_of(spot.site)[:, spot.columns.to(device)]
    columns, home = spot.columns.to(device), device if device.type in ("cpu", "cuda") else torch.device("cpu")
    zeros = partial(torch.zeros, dtype=torch.float64, device=home)
    sums = tuple(Sums(zeros(len(columns), len(columns)), zeros(len(columns))) for _ in range(2))
    for piece in pieces:
        bar.advance()
        target = piece.targets.get(name)
        if target is None or not len(target.z):
            continue
        x, z = _cut(work, spot, columns, piece.batch, target)
        if x is None or z is None:
            work.skipped.append((name, "the cut model runs it on other positions than the whole one"))
            return None
        x, error = x.to(weight), target.z.to(weight) - z.to(weight)
        total = sums[piece.held]
        total.gram += (x.T @ x).to(total.gram)
        total.cross += (x * (error @ weight)).sum(0).to(total.cross)
        total.error += float(error.square().sum())
        total.size += target.size
        total.positions += len(x)
    finite = all(bool(total.gram.isfinite().all()) and math.isfinite(total.error) for total in sums)
    if not finite or not all(total.positions for total in sums):
        work.skipped.append((name, "no position of it matters to the loss" if finite else "its values are not finite"))
        return None
    return sums[0], sums[1]


def _cut(
    work: _Work, spot: TunedSite, columns: Tensor, batch: dict[str, Any], target: _Target
) -> tuple[Tensor | None, Tensor | None]:
    """What the units that stay are multiplied with, and the residual stream, at the positions that matter."""
    captures: list[Tensor | None] = []

    def here(value: Tensor) -> Tensor | None:
        rows = rows_of(spot.site, value.detach())
        return rows[target.matter] if len(rows) == len(target.matter) else None

    def given(_: nn.Module, args: Any, kwargs: Any) -> None:
        x = here(next(tensors((args, kwargs))))
        captures.append(None if x is None else x[:, columns])

    def landed(z: Tensor) -> None:
        if captures:
            captures.append(here(z))
            raise Enough

    def hooks() -> Iterator[Any]:
        yield spot.site.writer.register_forward_pre_hook(given, with_kwargs=True)
        yield spot.landing.hook(landed)

    work.run(batch, work.gates, hooks())
    return (captures[0], captures[1]) if len(captures) == 2 else (None, None)


def normal_equations(weight: Tensor, sums: Sums, width: int) -> tuple[Tensor, Tensor]:
    """A^T A and A^T b of the fit, whose column k is what unit k writes: W_k x_k at every position.

    The inner product of two columns is the sum over their entries of (W^T W) times (X^T X), element by element.
    """
    weight = weight.to(sums.gram)
    products = (weight.T @ weight) * sums.gram
    units = len(products) // width
    return products.view(units, width, units, width).sum((1, 3)), sums.cross.view(units, width).sum(1)


def ridge(square: Tensor, right: Tensor, strength: float) -> Tensor | None:
    """The d that minimises |A d - b|^2 + strength * mean(diag A^T A) * |d|^2, solved directly; None where it cannot be."""
    diagonal = square.diagonal().mean()
    shifted = square.clone()
    shifted.diagonal().add_(strength * diagonal)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    return None if failed or not diagonal > 0 else torch.cholesky_solve(right[:, None], factor)[:, 0]


def _fitted(spot: TunedSite, fitted: Sums, held: Sums) -> tuple[Fit, Tensor]:
    """The numbers of a site, of the strength that is best on held-out positions; ones if none of them does any good."""
    site, numbers = spot.site, torch.ones(len(spot.site))
    weight = matrix_of(site)[:, spot.columns.to(site.writer.weight.device)]
    square, right = normal_equations(weight, fitted, site.width)
    held_square, held_right = normal_equations(weight, held, site.width)
    errors = {}
    for strength in STRENGTHS:
        d = ridge(square, right, strength)
        if d is not None:
            errors[strength] = held.error + float(d @ (held_square @ d) - 2 * (d @ held_right))
    best = min(errors, key=errors.__getitem__, default=None)
    used = best is not None and errors[best] < held.error
    if used and best is not None:
        d = ridge(square + held_square, right + held_right, best)
        used = d is not None
        if d is not None:
            numbers[spot.left] = 1 + d.float().cpu()
    size = max(held.size, 1e-30)
    after = errors[best] if used and best is not None else held.error
    low, high = (float(end) for end in numbers[spot.left].aminmax())
    return Fit(site.name, held.error / size, after / size, low, high, used), numbers
