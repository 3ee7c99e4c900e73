"""What the whole model has in its residual stream after each site, on some examples, and which sites can be tuned."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import BadData, Refused
from ...evaluation.evaluator import in_parts
from ...evaluation.residual_stream import Passes, ResidualTarget, rows_of
from ...model.anatomy import Site
from ...model.cutting.rules import refuse
from ...plans import Plan
from ...progress import Bar

if TYPE_CHECKING:
    from ...data.tasks import Task

MEMORY = 2**30  # bytes of what the whole model had after every site
HELD_OUT = 4  # every fourth example chooses the strength of the ridge


# -- the order in which things run, seen on two short examples -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trace:
    """The order in which sites and layers run: names of sites as often as they ran, and the layers that ran once."""

    batch: dict[str, Any]  # the short examples on which it was seen
    order: list[str]
    blocks: list[nn.Module]
    rate: float  # positions at the widest site to each position of an example's length

    def block_of(self, site: Site) -> int:
        """The place among the layers of the one that holds a site; 0 where that is none of them."""
        return next((place for place, block in enumerate(self.blocks) if site.writer in set(block.modules())), 0)


def trace(passes: Passes) -> Trace:
    """Run the shortest two examples, and see in which order sites and layers are called."""
    order, began, rows = list[str](), list[nn.Module](), [1]
    numbers = passes.task.batches()[-1][:2]
    batch = passes.task.collate(numbers)

    def ran(site: Site, _: nn.Module, __: Any, y: Tensor) -> None:
        order.append(site.name)
        rows.append(len(rows_of(site, y)))

    def hooks() -> Iterator[Any]:
        for site in passes.anatomy:
            yield site.writer.register_forward_hook(partial(ran, site))
        for stack in passes.anatomy.stacks:
            for block in stack.blocks:
                yield block.register_forward_pre_hook(lambda module, _: began.append(module))

    passes.run(batch, {}, hooks())
    rate = max(rows) / max(1, sum(passes.task.lengths[number] for number in numbers))
    return Trace(batch, order, [block for block in began if began.count(block) == 1], rate)


def untunable(passes: Passes, site: Site, calls: int) -> str | None:
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
        refuse(passes.root, passes.anatomy, Plan(), {site.name: torch.ones(len(site))})
    except Refused:
        return "its weights are shared with another module"
    return None


# -- the whole model on some examples --------------------------------------------------------------------------------------


@dataclass
class Target:
    """What the whole model has after one site, at the positions that matter to the loss."""

    z: Tensor  # (positions that matter, out)
    matter: Tensor  # (positions,)
    size: float  # squares of what the site itself writes there


@dataclass
class Piece:
    """A batch, whether it is held out, and what the whole model had on it after each site."""

    batch: dict[str, Any]
    examples: int
    held: bool
    targets: dict[str, Target]


Landings = Mapping[str, ResidualTarget]  # by site


def pieces_of(
    passes: Passes, landings: Landings, rate: float, positions: int, batch_size: int | None, seed: int
) -> list[Piece]:
    """Batches of examples with so many positions in all, drawn by the seed; every fourth example is held out."""
    task = passes.task
    if task.size < 2:
        raise BadData(f"Tuning needs at least two examples, one of them to check it; {task.name} has one.")
    sites = [passes.anatomy[name] for name in landings]
    bytes_each = 0
    for site in sites:
        if site.columns:
            bytes_each += site.columns.shape[0] * site.writer.weight.element_size()
    numbers, chosen = list(range(task.size)), list[int]()
    position_budget = float(min(positions, MEMORY // bytes_each))
    random.Random(seed).shuffle(numbers)
    for number in numbers:
        if position_budget <= 0 and len(chosen) >= 2:
            break
        chosen.append(number)
        position_budget -= rate * task.lengths[number]
    held = set(chosen[1::HELD_OUT])
    pieces = list[Piece]()
    with Bar("the whole model", total=len(chosen)) as bar:
        for side in (False, True):
            part = task.subset([number for number in chosen if (number in held) == side])
            for some in part.batches(batch_size):
                pieces += _remembered(passes, landings, part, some, side)
                bar.advance(len(some))
    return pieces


def _remembered(passes: Passes, landings: Landings, task: Task, numbers: Sequence[int], held: bool) -> Iterator[Piece]:
    """The batch as a piece; as more of them where memory runs out."""

    def piece(some: Sequence[int]) -> Piece:
        batch = task.collate(some)
        return Piece(batch, len(some), held, _full_model_pass(passes, landings, batch))

    for _, part in in_parts(piece, "gradients", task, numbers):
        yield part


def _full_model_pass(passes: Passes, landings: Landings, batch: dict[str, Any]) -> dict[str, Target]:
    """One forward and one backward pass of the whole model: where it lands, and where a gradient comes back to."""
    sizes: dict[str, Tensor] = {}
    stream: dict[str, Tensor] = {}
    matter: dict[str, Tensor] = {}

    def gave(site: Site, _: nn.Module, __: Any, y: Tensor) -> Tensor:
        name = site.name
        if not y.requires_grad:  # the first thing that does; a copy, because code may add to it in place
            y = y.detach().requires_grad_().clone()
        y.register_hook(lambda gradient: matter.update({name: rows_of(site, gradient != 0).any(-1)}))
        plain = rows_of(site, y.detach())
        sizes[name] = plain.double().square().sum(-1) if y.device.type == "cpu" else plain.float().square().sum(-1)
        return y

    def landed(site: Site, z: Tensor) -> None:
        if site.name in sizes and site.name not in stream:
            stream[site.name] = rows_of(site, z.detach()).clone()

    def hooks() -> Iterator[Any]:
        for name, target in landings.items():
            site = passes.anatomy[name]
            assert isinstance(site, Site)
            yield site.writer.register_forward_hook(partial(gave, site))
            yield target.hook(partial(landed, site))

    with torch.enable_grad():
        loss = passes.run(batch, {}, hooks())
        if loss is None or not loss.requires_grad:
            raise Refused(
                f"The loss of {passes.task.name} has no gradient for any of these units: it must be computed from what "
                "the model gives out, without detach() or no_grad()."
            )
        loss.sum().backward()
    return {
        name: Target(stream[name][matter[name]], matter[name], float(sizes[name][matter[name]].sum()))
        for name in landings
        if name in matter and name in stream
    }
