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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...documents.prune import Fit as Fit
from ...documents.prune import Skipped, TunedDocument
from ...documents.reading import read, write
from ...errors import HeadcountError
from ...evaluation.replay import answering
from ...evaluation.residual_stream import Enough, Passes, ResidualTarget, landing, matrix_of, rows_of
from ...model.anatomy import Anatomy, Site, Units
from ...model.cutting.layers import deleted_blocks
from ...model.discovery import find, unwrap
from ...model.distributed.refusals import in_one_process
from ...model.equivalence import differs, evaluating, frozen
from ...model.gates import gates_of
from ...model.tensor_trees import tensors, with_first
from ...plans import Plan
from ...progress import Bar, track
from .residual_targets import Piece, Trace, pieces_of, trace, untunable

if TYPE_CHECKING:
    from ...data.tasks import Task
    from ...model.architectures import ModuleSpec

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


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the whole model computes on some examples, which every plan is compared with: made once for many plans."""

    passes: Passes
    trace: Trace
    landings: dict[str, ResidualTarget]  # of the sites that can be tuned
    reasons: dict[str, str]  # why the other sites cannot be
    pieces: list[Piece]
    replayed: bool  # whether layers that are done with may answer from memory


def calibrate(
    model: nn.Module,
    task: Task,
    plans: Iterable[Plan] | None = None,
    *,
    positions: int = 8192,
    batch_size: int | None = None,
    seed: int = 0,
    specs: Iterable[ModuleSpec] = (),
) -> Calibration:
    """What `tune_mask` needs of the whole model, for these plans or for any; the model is as it was afterwards.

    It looks at examples with about `positions` positions, drawn by the seed (fewer where what must be remembered of them
    would be more than a gigabyte), and counts the positions that the task's loss depends on.
    """
    root, anatomy = unwrap(model), find(model, tuple(specs))
    in_one_process(root, "its columns are not fitted here")
    passes = Passes(root, anatomy, task)
    with evaluating(root), frozen(root), torch.inference_mode(False), torch.no_grad():
        seen = trace(passes)
        names = [site.name for site in anatomy if len(site)]
        if plans is not None:
            needed = set[str]().union(*(sites_to_tune(anatomy, seen, plan) for plan in plans))
            names = [name for name in names if name in needed]
        landings, reasons = dict[str, ResidualTarget](), dict[str, str]()
        for name in track(names, "where sites write"):
            site = anatomy[name]
            assert isinstance(site, Site)
            why = untunable(passes, site, seen.order.count(name))
            target = landing(partial(passes.run, seen.batch), anatomy, site) if why is None else None
            if target is None:
                reasons[name] = why or "what it writes is not its matrix times what it is given"
            else:
                landings[name] = target
        pieces = pieces_of(passes, landings, seen.rate, positions, batch_size, seed) if landings else []
        return Calibration(passes, seen, landings, reasons, pieces, _replays(passes, seen, landings))


def tune_mask(
    model: nn.Module,
    units: Units,
    task: Task,
    *,
    positions: int = 8192,
    batch_size: int | None = None,
    seed: int = 0,
    specs: Iterable[ModuleSpec] = (),
    calibration: Calibration | None = None,
) -> MaskTuning:
    """Numbers for the units that a plan leaves; the model is as it was afterwards.

    Sites that the plan does not touch are tuned as well where they run after one that it does: they make up for it. It
    looks at examples with about `positions` positions, drawn by the seed, as `calibrate` does; for several plans that is
    done once, and given as `calibration`.
    """
    root, anatomy = unwrap(model), find(model, tuple(specs))
    plan = anatomy.plan(units)
    options: dict[str, Any] = {"positions": positions, "batch_size": batch_size, "seed": seed, "specs": specs}
    basis = calibration or calibrate(model, task, [plan], **options)
    work = _Work(basis, gates_of(anatomy, plan), [{} for _ in basis.pieces])
    scale, fits, most = {}, [], 0
    with evaluating(root), frozen(root), torch.inference_mode(False), torch.no_grad():
        spots = _spots(work, anatomy, plan)
        with Bar("tuning", total=len(spots) * len(basis.pieces)) as bar:
            for spot in spots:
                sums = _sums(work, spot, bar)
                if sums is None:
                    continue
                name, most = spot.site.name, max(most, sums[0].positions + sums[1].positions)
                fit, numbers = _fitted(spot, *sums)
                fits.append(fit)
                if fit.used:
                    scale[name] = numbers
                    work.gates[name] = work.gates[name] * numbers if name in work.gates else numbers
    examples = sum(piece.examples for piece in basis.pieces) if spots else 0
    return MaskTuning(scale, examples, most, tuple(fits), tuple(work.skipped))


@dataclass
class _Work:
    basis: Calibration
    gates: dict[str, Tensor]  # of the cut model, as far as it is tuned
    done: list[dict[nn.Module, Any]]  # for each piece, what the layers gave that are done with
    skipped: list[tuple[str, str]] = field(default_factory=list)


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


def sites_to_tune(anatomy: Anatomy, seen: Trace, plan: Plan) -> list[str]:
    """The sites that a plan leaves something of, from the first on that it touches: nothing changes before that."""
    inside = {module for block in deleted_blocks(anatomy, plan) for module in block.modules()}
    chosen = plan.by_site()
    touched = {site.name for site in anatomy if site.name in chosen or site.writer in inside}
    first = next((place for place, name in enumerate(seen.order) if name in touched), len(seen.order))
    changed = touched | set(seen.order[first:])
    staying = (site for site in anatomy if site.writer not in inside and len(site) > len(chosen.get(site.name, ())))
    return [site.name for site in staying if site.name in changed]


def _spots(work: _Work, anatomy: Anatomy, plan: Plan) -> list[TunedSite]:
    """The sites to be tuned, in the order in which they run; those that are cut and cannot be are noted in `skipped`."""
    basis, chosen, spots = work.basis, plan.by_site(), list[TunedSite]()
    for name in sites_to_tune(anatomy, basis.trace, plan):
        site = anatomy[name]
        assert isinstance(site, Site)
        if name in basis.landings:
            removed_positions = set(site.positions(chosen.get(name, ())))
            stay = torch.tensor([position for position in range(len(site)) if position not in removed_positions])
            spots.append(TunedSite(site, stay, basis.landings[name]))
        elif name in chosen:
            work.skipped.append((name, basis.reasons[name]))
    order = {name: place for place, name in reversed(list(enumerate(basis.trace.order)))}
    return sorted(spots, key=lambda spot: order[spot.site.name])


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


def _sums(work: _Work, spot: TunedSite, bar: Bar) -> tuple[Sums, Sums] | None:
    """Sums over the positions to fit and over those held out, from one pass of the cut model over all pieces."""
    name, device = spot.site.name, spot.site.writer.weight.device
    weight = matrix_of(spot.site)[:, spot.columns.to(device)]
    columns, home = spot.columns.to(device), device if device.type in ("cpu", "cuda") else torch.device("cpu")
    zeros = partial(torch.zeros, dtype=torch.float64, device=home)
    sums = tuple(Sums(zeros(len(columns), len(columns)), zeros(len(columns))) for _ in range(2))
    for number, piece in enumerate(work.basis.pieces):
        bar.advance()
        target = piece.targets.get(name)
        if target is None or not len(target.z):
            continue
        x, z = _cut(work.basis, spot, columns, piece.batch, target.matter, work.gates, work.done[number])
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
    basis: Calibration,
    spot: TunedSite,
    columns: Tensor,
    batch: dict[str, Any],
    matter: Tensor | None,
    gates: Mapping[str, Tensor],
    done: dict[nn.Module, Any],
) -> tuple[Tensor | None, Tensor | None]:
    """What the units that stay are multiplied with, and the residual stream, at the positions that matter (None: at all).

    All sites before this one have their last numbers. So the layers before its own need not run a second time for the
    same batch: what they give is remembered in `done`.
    """
    captures: list[Tensor | None] = []

    def here(value: Tensor) -> Tensor | None:
        rows = rows_of(spot.site, value.detach())
        if matter is None:
            return rows
        return rows[matter] if len(rows) == len(matter) else None

    def given(_: nn.Module, args: Any, kwargs: Any) -> None:
        x = here(next(tensors((args, kwargs))))
        captures.append(None if x is None else x[:, columns])

    def landed(z: Tensor) -> None:
        if captures:
            captures.append(here(z))
            raise Enough

    def gave(block: nn.Module, _: Any, output: Any) -> None:
        done[block] = _copied(output)

    before = basis.trace.blocks[: basis.trace.block_of(spot.site)] if basis.replayed else []
    answers = {block: partial(_again, done[block]) for block in before if block in done}

    def hooks() -> Iterator[Any]:
        yield spot.site.writer.register_forward_pre_hook(given, with_kwargs=True)
        yield spot.landing.hook(landed)
        for block in before:
            if block not in answers:
                yield block.register_forward_hook(gave)

    with answering(answers):
        basis.passes.run(batch, gates, hooks())
    return (captures[0], captures[1]) if len(captures) == 2 else (None, None)


def _copied(output: Any) -> Any:
    """The output of a layer with a copy of its first tensor, which code behind the layer may write to."""
    return with_first(output, next(tensors(output)).clone())


def _again(output: Any, *_: Any, **__: Any) -> Any:
    return _copied(output)


def _replays(passes: Passes, seen: Trace, landings: Mapping[str, ResidualTarget]) -> bool:
    """Whether what layers gave can stand for running them again: tried at every site on two examples, half of it masked."""
    gates = {name: (torch.arange(len(passes.anatomy[name])) % 2).float() for name in landings}
    basis = Calibration(passes, seen, dict(landings), {}, [], True)
    done: dict[nn.Module, Any] = {}
    order = {name: place for place, name in reversed(list(enumerate(seen.order)))}
    try:
        for name in sorted(landings, key=order.__getitem__):
            site = passes.anatomy[name]
            assert isinstance(site, Site)
            spot = TunedSite(site, torch.arange(len(site)), landings[name])
            columns = spot.columns.to(site.writer.weight.device)
            run = partial(_cut, columns=columns, batch=seen.batch, matter=None, gates=gates)
            run(basis, spot, done=done)  # fills `done` up to the layer of this site
            plain, remembered = run(replace(basis, replayed=False), spot, done={}), run(basis, spot, done=done)
            pairs = zip(plain, remembered, strict=True)
            if any(a is None or b is None or differs([a], [b]) is not None for a, b in pairs):
                return False
    except (HeadcountError, RuntimeError, ValueError, IndexError, TypeError, AttributeError, KeyError, StopIteration):
        return False  # what was seen does not hold for this model: every pass is an ordinary one
    return True


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
