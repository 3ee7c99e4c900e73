"""All columns that stay are fitted anew, so that what a cut model computes is nearest to what the whole one does.

Site by site, in the order in which they run, with the sites before it already cut and refitted: ridge regression of what the
residual stream of the whole model has after the site and that of the cut one lacks, on what the columns that stay are given
(as OBC and SparseGPT update the weights that stay, here against what the whole model has with its own inputs). Mask tuning
(Kwon et al. 2022) has one number per unit, this has one per weight, and so needs many more positions than there are columns.

Two streams of all examples are kept, the whole model's and the cut one's, each as the last layer gave it: nothing grows with
the number of layers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ... import runs
from ...documents.prune import RefitDocument, RefittedSite, Skipped
from ...errors import BadData, HeadcountError
from ...evaluation.evaluator import in_parts
from ...evaluation.replay import answering
from ...evaluation.residual_stream import Enough, Passes, ResidualTarget, landing, rows_of
from ...model.anatomy import Anatomy, Site, Units
from ...model.cutting.biases import has_bias, may_have_bias
from ...model.cutting.refits import adding, column_change, kept_columns
from ...model.discovery import find, unwrap
from ...model.distributed.refusals import in_one_process
from ...model.equivalence import differs, evaluating, frozen
from ...model.gates import gates_of
from ...model.tensor_trees import tensors, with_first
from ...plans import Plan
from ...progress import Bar, track
from .least_squares import STRENGTHS, CrossSums, best_ridge
from .mask_tuning import sites_to_tune
from .residual_targets import HELD_OUT, Trace, trace, untunable

if TYPE_CHECKING:
    from ...data.tasks import Task
    from ...model.architectures import ModuleSpec
    from ...runs import Run

POSITIONS = 2**17  # to fit on: ten for each column and more, up to wide MLPs
ON_GPU = 2**13  # positions of a batch on a GPU, where few large batches are faster than many small ones


@dataclass(frozen=True, eq=False)
class ColumnRefit:
    """What `refit_columns` found, for `cut(model, plan, columns=found.columns, bias=found.bias)`.

    Sites that stay as they were have no entry. `skipped` are sites that could not be fitted, each with its reason.
    """

    columns: dict[str, Tensor]  # (rows of the writer, columns that stay)
    bias: dict[str, Tensor]  # (rows of the writer,), added to the bias
    intercept: bool  # whether biases were asked for, also where a writer has none
    examples: int
    positions: int
    sites: tuple[RefittedSite, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    def document(self) -> RefitDocument:
        """What prune.json has of it, without the columns themselves: those are in the weights of the cut model."""
        skipped = tuple(Skipped(name, why) for name, why in self.skipped)
        return RefitDocument(self.examples, self.positions, self.intercept, self.sites, skipped)


class Piece(NamedTuple):
    """A batch, whether it is held out, and the positions of each site that the loss depends on."""

    batch: dict[str, Any]
    examples: int
    held: bool
    matter: dict[str, Tensor]  # (positions,)


@dataclass(frozen=True, eq=False)
class Basis:
    """The examples to fit on and where sites write, the same for every plan."""

    passes: Passes
    trace: Trace
    landings: dict[str, ResidualTarget]  # of the sites that can be fitted
    reasons: dict[str, str]  # why the others cannot be
    pieces: list[Piece]
    replayed: bool  # whether layers that are done with may answer from memory


def observe(
    model: nn.Module,
    task: Task,
    *,
    positions: int = POSITIONS,
    batch_size: int | None = None,
    seed: int = 0,
    specs: Iterable[ModuleSpec] = (),
) -> Basis:
    """What `refit_columns` needs to know of the whole model, for any plan; the model is as it was afterwards.

    It looks at examples with about so many positions, drawn by the seed.
    """
    root, anatomy = unwrap(model), find(model, tuple(specs))
    in_one_process(root, "its columns are not fitted here")
    passes = Passes(root, anatomy, task)
    landings, reasons = dict[str, ResidualTarget](), dict[str, str]()
    with evaluating(root), frozen(root), torch.inference_mode(False), torch.no_grad():
        seen = trace(passes)
        for site in track([site for site in anatomy if len(site)], "where sites write"):
            why = untunable(passes, site, seen.order.count(site.name))
            target = landing(partial(passes.run, seen.batch), anatomy, site) if why is None else None
            if target is None:
                reasons[site.name] = why or "what it writes is not its matrix times what it is given"
            else:
                landings[site.name] = target
        pieces = _pieces(passes, landings, seen.rate, positions, batch_size, seed) if landings else []
        basis = Basis(passes, seen, landings, reasons, pieces, True)
        return replace(basis, replayed=_may_replay(basis))


def refit_columns(
    model: nn.Module,
    units: Units,
    task: Task,
    *,
    intercept: bool = False,
    positions: int = POSITIONS,
    batch_size: int | None = None,
    seed: int = 0,
    specs: Iterable[ModuleSpec] = (),
    basis: Basis | None = None,
    run: Run | None = None,
    name: str = "refit",
) -> ColumnRefit:
    """Columns for the units that a plan leaves, and with an `intercept` biases; the model is as it was afterwards.

    Sites that the plan does not touch are fitted as well where they run after one that it does: they make up for it. Each
    site is a piece of the run, called by the `name`.
    """
    root, anatomy = unwrap(model), find(model, tuple(specs))
    plan = anatomy.plan(units)
    options: dict[str, Any] = {"positions": positions, "batch_size": batch_size, "seed": seed, "specs": specs}
    basis = basis or observe(model, task, **options)
    whole, smaller = Stream(basis, {}), Stream(basis, gates_of(anatomy, plan))
    columns, bias, fits, skipped, most = {}, {}, [], list[tuple[str, str]](), 0
    with evaluating(root), frozen(root), torch.inference_mode(False), torch.no_grad():
        names, skipped = _to_fit(basis, plan)
        with Bar("refitting", total=len(names) * len(basis.pieces)) as bar:
            for number, site_name in enumerate(names):
                site = anatomy[site_name]
                assert isinstance(site, Site)
                compute = partial(_fit, basis, whole, smaller, site, plan, intercept, bar)
                found = runs.piece(run, f"{name}-{number:04d}", compute)
                if "why" in found:
                    skipped.append((site_name, str(found["why"])))
                    continue
                error, left, strength, used, count = found["facts"].tolist()
                fits.append(RefittedSite(site_name, error, left, strength, bool(used)))
                most = max(most, int(count))
                if used:
                    columns[site_name] = torch.from_numpy(found["columns"])
                    if "bias" in found:
                        bias[site_name] = torch.from_numpy(found["bias"])
                    smaller.changes[site_name] = (
                        column_change(site, plan, columns[site_name]) if columns[site_name].numel() else None,
                        bias.get(site_name),
                    )
    examples = sum(piece.examples for piece in basis.pieces) if names else 0
    return ColumnRefit(columns, bias, intercept, examples, most, tuple(fits), tuple(skipped))


def _to_fit(basis: Basis, plan: Plan) -> tuple[list[str], list[tuple[str, str]]]:
    """The sites to fit, in the order in which they run, and those that lose units and cannot be, with the reasons."""
    anatomy = basis.passes.anatomy
    order = {name: place for place, name in reversed(list(enumerate(basis.trace.order)))}
    names = sorted((n for n in sites_to_tune(anatomy, basis.trace, plan) if n in basis.landings), key=order.__getitem__)
    skipped = [(name, basis.reasons[name]) for name in plan.by_site() if name in basis.reasons]
    return names, skipped


def _fit(
    basis: Basis, whole: Stream, smaller: Stream, site: Site, plan: Plan, intercept: bool, bar: Bar
) -> dict[str, Any]:
    """The piece of one site: facts about its fit and the columns, or why there is none."""
    sums = _sums(basis, whole, smaller, site, plan, bar)
    if isinstance(sums, str):
        return {"why": sums}
    fitted, held = sums
    # a bias that is there anyway costs nothing; one that would have to be added is asked for
    with_bias = has_bias(site) or (intercept and may_have_bias(site))
    best = best_ridge(fitted, held, with_bias, STRENGTHS)
    size, most = max(held.size, 1e-300), fitted.positions + held.positions
    if best is None:
        return {"facts": np.array([held.error / size, held.error / size, 0.0, 0.0, most])}
    weight = site.columns.owner.weight
    kept = kept_columns(site, plan)
    old = _matrix(site)[:, kept.to(weight.device)].to(best.solution.change)
    wide = torch.promote_types(weight.dtype, torch.float32)
    new = (old + best.solution.change.T).to(wide).cpu().numpy()
    facts = np.array([held.error / size, best.left / size, best.strength, 1.0, most])
    own = {"bias": best.solution.bias.to(wide).cpu().numpy()} if with_bias else {}
    return {"facts": facts, "columns": new, **own}


def _matrix(site: Site) -> Tensor:
    columns = site.columns
    assert columns is not None
    return getattr(columns.owner, columns.weight).detach().movedim(columns.row_axis, 0).reshape(columns.shape)


def _sums(
    basis: Basis, whole: Stream, smaller: Stream, site: Site, plan: Plan, bar: Bar
) -> tuple[CrossSums, CrossSums] | str:
    """Sums over the positions to fit and over those held out, from one pass of both models over all pieces; or why not."""
    device = site.writer.weight.device
    home = device if device.type in ("cpu", "cuda") else torch.device("cpu")
    kept, rows = kept_columns(site, plan).to(device), _matrix(site).shape[0]
    sums = tuple(CrossSums.zeros(len(kept), rows, home) for _ in range(2))
    wide = torch.promote_types(site.writer.weight.dtype, torch.float32)
    for number, piece in enumerate(basis.pieces):
        bar.advance()
        matter = piece.matter.get(site.name)
        if matter is None or not bool(matter.any()):
            continue
        before, after = (stream.at(site, number, piece.batch, matter) for stream in (whole, smaller))
        if before is None or after is None:
            return "the cut model runs it on other positions than the whole one"
        lengths = before.z.to(wide).square().mean(-1).clamp(min=torch.finfo(wide).tiny)
        # What is missing of the residual stream, with all that earlier sites left: better than what this site alone lacks.
        missing = before.z.to(wide) - after.z.to(wide)
        sums[piece.held].add(after.x[:, kept].to(wide), missing, before.y.to(wide), 1 / lengths)
    if not all(one.finite for one in sums):
        return "its values are not finite"
    if not all(one.positions for one in sums):
        return "no position of it matters to the loss"
    return sums[0], sums[1]


# -- two streams of examples -----------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """At some positions: what a site's writer is given, what it gives, and what the residual stream is then."""

    x: Tensor
    y: Tensor
    z: Tensor


@dataclass(eq=False)
class Stream:
    """One model's passes over all pieces: what its layers gave that are done with is remembered, the last of each stack."""

    basis: Basis
    gates: Mapping[str, Tensor]
    changes: dict[str, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)  # of columns, and of biases
    done: dict[int, dict[nn.Module, Any]] = field(default_factory=dict)  # for each piece

    def at(self, site: Site, number: int, batch: dict[str, Any], matter: Tensor | None) -> Seen | None:
        """What is there at the positions that matter (None: at all); None where they are not the whole model's."""
        passes, done = self.basis.passes, self.done.setdefault(number, {})
        before = self.basis.trace.blocks[: self.basis.trace.block_of(site)] if self.basis.replayed else []
        answers, found = _answers(passes.anatomy, before, done), _Captured()

        def ended(block: nn.Module, _: Any, output: Any) -> None:
            done[block] = _copied(output)

        def hooks() -> Iterator[Any]:
            for name, (change, bias) in self.changes.items():
                yield adding(passes.anatomy[name], change, bias)
            yield site.writer.register_forward_pre_hook(found.given, with_kwargs=True)
            yield site.writer.register_forward_hook(found.gave)
            yield self.basis.landings[site.name].hook(found.landed)
            for block in before:
                if block not in answers:
                    yield block.register_forward_hook(ended)

        with answering(answers):
            passes.run(batch, self.gates, hooks())
        _forget(passes.anatomy, before, done)
        return found.at(site, matter)


class _Captured(list[Tensor]):
    """What a site's writer is given and gives in a pass, and the residual stream after it, where the pass ends."""

    def given(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self.append(next(tensors((args, kwargs))).detach())

    def gave(self, _: nn.Module, __: Any, y: Tensor) -> None:
        self.append(y.detach())

    def landed(self, z: Tensor) -> None:
        if len(self) == 2:
            self.append(z.detach())
            raise Enough

    def at(self, site: Site, matter: Tensor | None) -> Seen | None:
        """The positions that matter; None where they are others, or nothing was seen."""
        rows = [rows_of(site, value) for value in self]
        if len(rows) < 3 or (matter is not None and any(len(value) != len(matter) for value in rows)):
            return None
        return Seen(*(rows if matter is None else [value[matter] for value in rows]))


def _stacks(anatomy: Anatomy, blocks: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """The blocks of each stack, as far as they are among these."""
    own = [[block for block in blocks if block in set(stack.blocks)] for stack in anatomy.stacks]
    return [some for some in own if some]


def _answers(
    anatomy: Anatomy, before: Sequence[nn.Module], done: Mapping[nn.Module, Any]
) -> dict[nn.Module, Callable[..., Any]]:
    """What layers that are done with answer: of each stack the last of them matters, and the others say the same."""
    answers = dict[nn.Module, Callable[..., Any]]()
    for blocks in _stacks(anatomy, before):
        last = None
        for block in reversed(blocks):
            last = block if block in done else last
            if last is not None:
                answers[block] = partial(_again, done[last])
    return answers


def _forget(anatomy: Anatomy, before: Sequence[nn.Module], done: dict[nn.Module, Any]) -> None:
    for blocks in _stacks(anatomy, before):
        known = [block for block in blocks if block in done]
        for block in known[:-1]:
            del done[block]


def _copied(output: Any) -> Any:
    """The output of a layer with a copy of its first tensor, which code behind the layer may write to."""
    return with_first(output, next(tensors(output)).clone())


def _again(output: Any, *_: Any, **__: Any) -> Any:
    return _copied(output)


def _may_replay(basis: Basis) -> bool:
    """Whether what layers gave can stand for running them again: tried in every layer on two examples, half of it masked."""
    anatomy, batch = basis.passes.anatomy, basis.trace.batch
    gates = {name: (torch.arange(len(anatomy[name])) % 2).float() for name in basis.landings}
    order = {name: place for place, name in reversed(list(enumerate(basis.trace.order)))}
    streams = Stream(basis, gates), Stream(replace(basis, replayed=False), gates)
    try:
        sites = [anatomy[name] for name in sorted(basis.landings, key=order.__getitem__)]
        first = {basis.trace.block_of(site): site for site in reversed(sites) if isinstance(site, Site)}
        for _, site in sorted(first.items()):
            both = [stream.at(site, 0, batch, None) for stream in streams]
            if any(seen is None for seen in both) or differs(*([*seen] for seen in both if seen is not None)):
                return False
    except (HeadcountError, RuntimeError, ValueError, IndexError, TypeError, AttributeError, KeyError, StopIteration):
        return False  # what was seen does not hold for this model: every pass is an ordinary one
    return True


# -- the examples ----------------------------------------------------------------------------------------------------------


def _pieces(
    passes: Passes,
    landings: Mapping[str, ResidualTarget],
    rate: float,
    positions: int,
    batch_size: int | None,
    seed: int,
) -> list[Piece]:
    """Batches of examples with so many positions in all, drawn by the seed; every fourth example is held out."""
    task = passes.task
    if task.size < 2:
        raise BadData(f"Refitting needs at least two examples, one of them to check it; {task.name} has one.")
    numbers, chosen, budget = list(range(task.size)), list[int](), float(positions)
    random.Random(seed).shuffle(numbers)
    for number in numbers:
        if budget <= 0 and len(chosen) >= 2:
            break
        chosen.append(number)
        budget -= rate * task.lengths[number]
    held, pieces = set(chosen[1::HELD_OUT]), list[Piece]()
    if batch_size is None and next(passes.root.parameters()).device.type == "cuda":
        batch_size = max(task.batch_size, int(ON_GPU / max(1.0, rate * max(task.lengths))))
    sites = [passes.anatomy[name] for name in landings]
    with Bar("positions that matter", total=len(chosen)) as bar:
        for side in (False, True):
            part = task.subset([number for number in chosen if (number in held) == side])

            def piece(some: Sequence[int], part: Task = part, side: bool = side) -> Piece:
                batch = part.collate(some)
                return Piece(batch, len(some), side, matter_of(passes, sites, batch))

            for some in part.batches(batch_size):
                pieces += [found for _, found in in_parts(piece, "gradients", part, some)]
                bar.advance(len(some))
    return pieces


def matter_of(passes: Passes, sites: Sequence[Any], batch: dict[str, Any]) -> dict[str, Tensor]:
    """For each site the positions whose output the loss has a gradient for: (positions,), bools."""
    matter: dict[str, Tensor] = {}

    def gave(site: Site, _: nn.Module, __: Any, y: Tensor) -> Tensor:
        if not y.requires_grad:  # the first thing that does; a copy, because code may add to it in place
            y = y.detach().requires_grad_().clone()
        y.register_hook(lambda gradient: matter.update({site.name: rows_of(site, gradient != 0).any(-1)}))
        return y

    with torch.enable_grad():
        loss = passes.run(batch, {}, [site.writer.register_forward_hook(partial(gave, site)) for site in sites])
        if loss is not None and loss.requires_grad:
            loss.sum().backward()
    return matter
