"""Which layers go, before anything is measured: from the top, from the bottom, every second one, from the middle outward.

Sajjad et al. 2020 drop layers by such rules and then fine-tune; Fan et al. 2020 drop evenly spaced ones. `contributions` is
the rule of the former that looks at data: how far each layer turns what goes into it. No rule looks at the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from .. import runs
from ..errors import BadPlan, NotFinite, Refused
from ..evaluation.evaluator import device_of, to_device
from ..model.anatomy import Anatomy, Site, Stack
from ..model.equivalence import evaluating
from ..model.tensor_trees import tensors
from ..plans import Plan, Unit
from ..progress import Bar
from .attention import halved, tokens

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run


def top(layers: int) -> list[int]:
    """The last layer goes first."""
    return list(range(layers))[::-1]


def bottom(layers: int) -> list[int]:
    """The first layer goes first."""
    return list(range(layers))


def alternate(layers: int) -> list[int]:
    """Every second layer, from the one below the top down ("odd alternate" of 12); then the others, from the top down."""
    return [*range(layers - 2, -1, -2), *range(layers - 1, -1, -2)]


def alternate_top(layers: int) -> list[int]:
    """Every second layer, from the top down ("even alternate" of 12); then the others, from the top down."""
    return [*range(layers - 1, -1, -2), *range(layers - 2, -1, -2)]


def symmetric(layers: int) -> list[int]:
    """The middle goes first, then its neighbours outward, of two the upper one first."""
    return sorted(range(layers), key=lambda place: (abs(2 * place - (layers - 1)), -place))


ORDERS: dict[str, Callable[[int], list[int]]] = {
    "top": top,
    "bottom": bottom,
    "alternate": alternate,
    "alternate-top": alternate_top,
    "symmetric": symmetric,
}


EVERY_OTHER = "every-other"  # the name of `spaced`, which is a plan for a number of layers and not an order


def ranks(name: str, layers: int) -> np.ndarray:
    """A number between 0 and 1 for each layer of a stack, the smaller the earlier it goes.

    Stacks of different sizes compare: the first so many of all of them are of each its share (Sainte-Laguë's rule).
    """
    out = np.empty(layers)
    out[ORDERS[name](layers)] = (np.arange(layers) + 0.5) / layers
    return out


def spaced(anatomy: Anatomy, count: int, only: str | Iterable[str] = ()) -> Plan:
    """The plan that removes `count` layers so that those that stay are evenly spaced, the first among them (LayerDrop).

    Stacks lose in proportion to their sizes and keep one layer at least. `only` names stacks, or what they are part of
    ("decoder"). Fan et al. 2020 call it "every other". Plans for more layers do not contain those for fewer.
    """
    wanted = [only] if isinstance(only, str) else list(only)
    stacks = [stack for stack in anatomy.stacks if len(stack) and _is_among(stack, wanted)]
    if not stacks:
        raise BadPlan(f"No stack of layers of {anatomy.model_name} is {' or '.join(wanted) or 'there'}.")
    total = sum(len(stack) for stack in stacks)
    if not 0 <= count <= total - len(stacks):
        raise BadPlan(
            f"I was asked to remove {count} of {total} layers, and one of each of {len(stacks)} stacks must stay; "
            f"remove 0 to {total - len(stacks)}."
        )
    removed_units = set[Unit]()
    for stack, share in zip(stacks, _shares(count, [len(stack) for stack in stacks]), strict=True):
        stay = every_other(len(stack), len(stack) - share)
        removed_units |= {unit for place, unit in enumerate(stack.units) if place not in stay}
    return Plan(frozenset(removed_units), f"{count} of {total} layers, so that those that stay are evenly spaced")


def _is_among(stack: Stack, wanted: list[str]) -> bool:
    return not wanted or stack.name in wanted or bool(set(stack.name.split(".")[:-1]) & set(wanted))


def _shares(count: int, sizes: Sequence[int]) -> list[int]:
    """`count` shared out in proportion to the sizes by largest remainders, to none all of its size."""
    total = sum(sizes)
    out = [count * size // total for size in sizes]
    order = sorted(range(len(sizes)), key=lambda place: -(count * sizes[place] % total))
    while sum(out) < count:
        for place in order:
            out[place] += sum(out) < count and out[place] < sizes[place] - 1
    return out


# -- how far layers turn what goes into them -----------------------------------------------------------------------------


def contributions(
    root: nn.Module,
    anatomy: Anatomy,
    stacks: Sequence[Stack],
    task: Task,
    *,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "score",
) -> dict[str, np.ndarray]:
    """For each layer and example: 1 - the cosine of what goes into the layer and what comes out, mean over positions.

    Padding is left out. Arrays (examples, layers) by stack; one forward pass.
    """
    out = {stack.name: np.zeros((task.size, len(stack))) for stack in stacks}
    size = batch_size if all(stack.per_example for stack in stacks) else 1
    with evaluating(root), torch.no_grad(), Bar("layers", total=task.size) as bar:
        batches, batch = task.batches(size), partial(_batch, root, anatomy, stacks, task)
        jobs = [
            (f"{name}-layers-{number:06d}", partial(halved, batch, "layers", task, numbers))
            for number, numbers in enumerate(batches)
        ]
        for numbers, arrays in zip(batches, runs.independent(run, jobs), strict=True):
            for stack in stacks:
                out[stack.name][list(numbers)] = arrays[stack.name]
            bar.advance(len(numbers))
    return out


def _batch(
    root: nn.Module, anatomy: Anatomy, stacks: Sequence[Stack], task: Task, numbers: Sequence[int]
) -> dict[str, np.ndarray]:
    device, size = device_of(root), len(numbers)
    batch = to_device(task.collate(numbers), device)
    sums = {stack.name: torch.zeros(2, size, len(stack), dtype=torch.float64) for stack in stacks}
    handles = []
    try:
        for stack in stacks:
            site = _attention_of(stack, anatomy)
            for place, block in enumerate(stack.blocks):
                see = partial(_see, stack, site, batch, sums[stack.name][:, :, place])
                handles.append(block.register_forward_hook(see, with_kwargs=True))
        task.loss(root, dict(batch))
    finally:
        for handle in handles:
            handle.remove()
    out = {}
    for stack in stacks:
        turned, count = sums[stack.name]
        if not (count > 0).any(0).all():
            raise Refused(
                f"A layer of {stack.name} does not run on {task.name}, so there is nothing to say about it; score it on "
                "data that it sees."
            )
        bad = (~torch.isfinite(turned)).any(1).nonzero()
        if len(bad):
            raise NotFinite(
                f"What a layer of {stack.name} makes of {task.describe(numbers[int(bad[0])])} is not finite: look at that "
                "example, or use a wider dtype."
            )
        out[stack.name] = (turned / count.clamp(min=1)).numpy()
    return out


def _attention_of(stack: Stack, anatomy: Anatomy) -> Site | None:
    """An attention of the stack over its own positions, which tells whose padding theirs is; None if there is none."""
    inside = [site for site in anatomy.heads if site.path.startswith(f"{stack.path}.") and site.attention != "cross"]
    return inside[0] if inside else None


def _see(
    stack: Stack,
    site: Site | None,
    batch: dict[str, Any],
    sums: Tensor,
    block: nn.Module,
    args: Any,
    kwargs: Any,
    output: Any,
) -> None:
    """Forward hook of a layer: adds what each example's positions were turned by, and how many there were."""
    before, after = next(tensors((args, kwargs))), next(tensors(output))
    if before.shape != after.shape:
        raise Refused(
            f"A layer of {stack.name} ({type(block).__name__}) does not hand on what it takes in: what it contributes "
            "cannot be measured; score its heads."
        )
    # half the squared distance of unit vectors is 1 - their cosine, and exact also where they are nearly the same
    input_direction, output_direction = (normalize(x.to(after.device).float(), dim=-1) for x in (before, after))
    turned = (input_direction - output_direction).square().sum(-1) / 2
    real = tokens(batch, site, after[:, None]) if site is not None and after.dim() == 3 else torch.ones_like(turned)
    turned = torch.where(real > 0, turned, 0)
    for place, values in enumerate((turned, real)):
        sums[place] += values.double().cpu().reshape(len(sums[place]), -1).sum(1)


def every_other(units: int, keep: int) -> list[int]:
    """`keep` numbers of `units`, evenly spaced, the first among them (Fan et al. 2020: every other layer goes)."""
    return [place * units // keep for place in range(keep)]
