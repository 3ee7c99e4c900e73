"""Clean and corrupted prompts, batch by batch: what parts of a model are given on either, and the stream they begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...data.contrast.measures import VALUES, values_of
from ...errors import BadPlan, NotFinite, Refused
from ...evaluation.evaluator import device_of, fresh, to_device
from ...model.anatomy import Anatomy, Site, Stack
from ...model.equivalence import evaluating, frozen
from ...model.loading.quantised import must_give_gradients
from ...model.matrices import has_int8_of_torch
from ...model.multihead import opened
from ...model.tensor_trees import tensors, with_first

if TYPE_CHECKING:
    from ...data.tasks import Task

Batch = dict[str, Any]
Spot = tuple[str, int]  # the name of a site and 0, or of a stack and the place of a layer in it


def contrasted(task: Task | None, what: str) -> Task:
    """A contrast task whose metric has a gradient; `BadPlan` for others. `what` is what needs it."""
    if task is None or task.corrupted is None:
        kind = "no task" if task is None else f"a {task.kind} task"
        raise BadPlan(
            f"{what} compares clean prompts with corrupted ones, and I got {kind}: give a contrast task "
            "(--task contrast:ioi, or --task contrast --data FILE)."
        )
    if task.metric.name not in VALUES:
        raise BadPlan(
            f"{what} needs the gradient of the metric for every example, and {task.metric.name} has none; take one of "
            f"{', '.join(VALUES)} (--metric)."
        )
    return task


def sign_of(task: Task) -> int:
    """1 where more of the metric is better, else -1: what a drop is multiplied by, so that bigger = matters more."""
    return 1 if task.metric.name == "normalised" or task.metric.higher_is_better else -1


def check_parts(root: nn.Module, parts: Sequence[Site | Stack]) -> None:
    """`Refused` where a part cannot be seen or patched example by example, in one sentence with the reason."""
    if has_int8_of_torch(root):
        raise Refused(
            f"{type(root).__name__} is quantised to int8 by torch, whose matrices have no gradients: take it before it is "
            "quantised."
        )
    must_give_gradients(root)
    for part in parts:
        if isinstance(part, Site) and not part.calls_writer:
            raise Refused(
                f"{part.name} never calls its output projection, so nothing can be put before it; score it by taylor."
            )
        if not part.per_example:
            raise Refused(
                f"{part.name} does not see examples one by one, so it cannot be patched; score it by ablation."
            )


@dataclass(frozen=True, eq=False)
class Pair:
    """A batch of clean prompts and the same of corrupted ones, token by token, on the model's device."""

    task: Task
    root: nn.Module
    numbers: tuple[int, ...]
    clean: Batch = field(init=False)
    corrupted: Batch = field(init=False)

    def __post_init__(self) -> None:
        assert self.task.corrupted is not None
        device = device_of(self.root)
        for side, task in (("clean", self.task), ("corrupted", self.task.corrupted)):
            object.__setattr__(self, side, to_device(task.collate(self.numbers), device))

    def values(self, batch: Batch) -> Tensor:
        """The metric of every example, differentiable: (examples,); `NotFinite` names an example that has none."""
        values = values_of(self.task, self.root, fresh(batch))
        bad = (~torch.isfinite(values)).nonzero()
        if len(bad):
            number = self.numbers[int(bad[0])]
            raise NotFinite(
                f"{self.task.metric.name} of {self.task.describe(number)} is {float(values[int(bad[0])].detach())}: look at "
                "that example, or use a wider dtype."
            )
        return values

    def recorded(self, batch: Batch, parts: Sequence[Site | Stack]) -> dict[Spot, Tensor]:
        """What parts are given in one pass: inputs of writers, contributions of layers; (examples, tokens, columns) each."""
        found: dict[Spot, Tensor] = {}

        def keep(spot: Spot, value: Tensor) -> None:
            if spot in found:
                raise Refused(f"{spot[0]} runs more than once in a pass, so it is not plain what to patch there.")
            found[spot] = value.detach()

        with torch.no_grad(), _watching(self, parts, keep):
            self.values(batch)
        missing = next((part.name for part in parts if not any(spot[0] == part.name for spot in found)), None)
        if missing is not None:
            raise Refused(f"{missing} does not run on {self.task.name}, so it cannot be patched there; leave it out.")
        return found

    def stream(self, batch: Batch, anatomy: Anatomy) -> Tensor:
        """The stream that the first layer reads, the embeddings with all that was done to them: (examples, tokens, features)."""
        found: list[Tensor] = []

        def see(_: nn.Module, args: Any, kwargs: Any) -> None:
            found.append(next(tensors((args, kwargs))).detach().clone())

        handle = first_layer(anatomy).register_forward_pre_hook(see, with_kwargs=True)
        try:
            with torch.no_grad():
                self.values(batch)
        finally:
            handle.remove()
        return found[0]


def first_layer(anatomy: Anatomy) -> nn.Module:
    """The first layer of the only stack; `Refused` for models that have none, or several."""
    if len(anatomy.stacks) != 1 or not anatomy.stacks[0].blocks:
        count = len(anatomy.stacks)
        raise Refused(
            f"{anatomy.model_name} has {count} stacks of layers, and embeddings are taken where the only one begins: score by "
            "attribution-patching, which needs none."
        )
    return anatomy.stacks[0].blocks[0]


@contextmanager
def starting_from(anatomy: Anatomy, stream: Tensor) -> Iterator[Tensor]:
    """Within the block, the first layer reads this stream in each pass; gives the tensor that has its gradient."""
    start = stream.detach().clone().requires_grad_()
    runs = 0

    def put(_: nn.Module, args: Any, kwargs: Any) -> Any:
        nonlocal runs
        runs += 1  # a layer may be run again, where layers share their weights
        return with_first((args, kwargs), start) if runs == 1 else None

    handle = first_layer(anatomy).register_forward_pre_hook(put, with_kwargs=True)
    try:
        yield start
    finally:
        handle.remove()


@contextmanager
def ready(root: nn.Module) -> Iterator[None]:
    """Within the block a model runs without dropout, no parameter asks for a gradient, and graphs can be made."""
    with evaluating(root), frozen(root), torch.inference_mode(False), torch.enable_grad(), opened(root):
        yield


# --- hooks ----------------------------------------------------------------------------------------------------------


@contextmanager
def _watching(pair: Pair, parts: Sequence[Site | Stack], keep: Callable[[Spot, Tensor], None]) -> Iterator[None]:
    with ExitStack() as stack:
        for part in parts:
            if isinstance(part, Stack):
                for place, block in enumerate(part.blocks):
                    hook = _contribution((part.name, place), keep)
                    stack.callback(block.register_forward_hook(hook, with_kwargs=True, prepend=True).remove)
            else:
                hook = _given(part, len(pair.numbers), keep)
                stack.callback(part.writer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def _given(site: Site, size: int, keep: Callable[[Spot, Tensor], None]) -> Any:
    def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
        keep((site.name, 0), seen_at(site, next(tensors((args, kwargs))), size))

    return hook


def seen_at(site: Site, x: Tensor, size: int) -> Tensor:
    """What a writer is given, if it is what was expected: (examples, tokens, columns of all units side by side)."""
    if x.dim() != 3 or x.shape[0] != size or x.shape[-1] != len(site) * site.width:
        raise Refused(
            f"{site.name} is given numbers of shape {tuple(x.shape)}, and not (examples, tokens, {len(site) * site.width}), so "
            "its units cannot be patched; score layers instead."
        )
    return x


def _contribution(spot: Spot, keep: Callable[[Spot, Tensor], None]) -> Any:
    def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        before, after = ends_of(spot[0], args, kwargs, output)
        keep(spot, after - before)

    return hook


def ends_of(name: str, args: Any, kwargs: Any, output: Any) -> tuple[Tensor, Tensor]:
    """What a layer takes in and hands on; `Refused` where that are not streams of one shape."""
    before, after = next(tensors((args, kwargs))), next(tensors(output))
    if before.shape != after.shape:
        raise Refused(
            f"A layer of {name} does not hand on what it takes in: it cannot be patched; score heads instead."
        )
    return before, after


@contextmanager
def gradients_times(
    pair: Pair, parts: Sequence[Site | Stack], factors: Mapping[Spot, Tensor], sums: Mapping[Spot, Tensor]
) -> Iterator[None]:
    """Within the block, backward passes add (factor * gradient) to `sums` (examples, units), summed over each unit's columns."""

    def add(spot: Spot, gradient: Tensor) -> None:
        product = (factors[spot].to(gradient.device).float() * gradient.float()).sum(1)  # (examples, columns)
        units = sums[spot].shape[1]
        sums[spot].add_(product.unflatten(-1, (units, -1)).sum(-1).to(sums[spot]))

    with ExitStack() as stack:
        for part in parts:
            if isinstance(part, Stack):
                for place, block in enumerate(part.blocks):
                    hook = _behind((part.name, place), add)
                    stack.callback(block.register_forward_hook(hook, with_kwargs=True, prepend=True).remove)
            else:
                hook = _before((part.name, 0), add)
                stack.callback(part.writer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def _before(spot: Spot, add: Callable[[Spot, Tensor], None]) -> Any:
    def hook(_: nn.Module, args: Any, kwargs: Any) -> Any:
        x = next(tensors((args, kwargs)))
        # a view of its own: others may read the same tensor, and their gradient is not the writer's
        x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        x.register_hook(lambda gradient: add(spot, gradient))
        return with_first((args, kwargs), x)

    return hook


def _behind(spot: Spot, add: Callable[[Spot, Tensor], None]) -> Any:
    def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        after = next(tensors(output))
        after = after.view_as(after) if after.requires_grad else after.detach().requires_grad_()
        after.register_hook(lambda gradient: add(spot, gradient))
        return with_first(output, after)

    return hook
