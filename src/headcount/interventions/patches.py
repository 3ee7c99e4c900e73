"""What is patched: units or the residual stream, at which positions; and the hooks that put the activations there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadPlan, Refused
from ..model.anatomy import Anatomy, Site, Stack
from ..model.gates import applied
from ..model.tensor_trees import tensors, with_first
from ..plans import Plan

SPAN = re.compile(r"(-?\d+)?:(-?\d+)?")
EARLIER = "earlier"  # positions before those that every prompt has, counted from the end


@dataclass(frozen=True)
class At:
    """Some positions of every prompt: all, the asked one, those where the prompts differ, a number or a range of them.

    Numbers count from 0, or from the end where they are negative, in each prompt without its padding.
    """

    name: str = "all"
    start: int | None = None
    stop: int | None = None

    def mask(self, batch: Mapping[str, Tensor], differing: Tensor) -> Tensor:
        """Which positions of a batch they are: (examples, tokens), bool."""
        real = batch["attention_mask"].bool()
        if self.name == "all":
            return real
        if self.name == "differing":
            return differing & real
        place = torch.arange(real.shape[1], device=real.device)[None]  # (1, tokens)
        if self.name == "asked":
            return place == batch["at"].to(real.device)[:, None]
        lengths = real.sum(1, keepdim=True)
        start, stop = (None if end is None else end + (lengths if end < 0 else 0) for end in (self.start, self.stop))
        inside = real if start is None else real & (place >= start)
        return inside if stop is None else inside & (place < stop)


def at_named(text: str | int | At | None) -> At:
    """The positions that a text names: all, last (the asked one), differing, 5, -1, 2:7, -3:."""
    if isinstance(text, At):
        return text
    name = "all" if text is None else str(text).strip().lower()
    if name in ("all", "differing", "asked"):
        return At(name)
    if name == "last":
        return At("asked")
    span = SPAN.fullmatch(name)
    if span and (span[1] or span[2]):
        return At(name, *(None if end is None else int(end) for end in span.groups()))
    try:
        number = int(name)
    except ValueError:
        raise BadPlan(
            f"Positions (at=, --at) are all, last, differing, a number, or a range such as 2:7 or -3:; I got {text!r:.40}."
        ) from None
    return At(name, number, None if number == -1 else number + 1)


@dataclass(frozen=True, eq=False)
class Patch:
    """Units of a plan, or the stream that a layer reads (`block`), at some positions."""

    name: str
    at: At
    plan: Plan = field(default_factory=Plan)
    block: nn.Module | None = None
    stack: str = ""
    layer: int | None = None


def residual_patches(anatomy: Anatomy, lengths: Sequence[int]) -> list[Patch]:
    """The residual stream before each layer at each position: one patch for each pair of them.

    Where prompts differ in length, positions are counted from the end, and those that not all have are one: `earlier`.
    """
    shortest = min(lengths)
    if shortest == max(lengths):
        spots = [At(str(place), place, place + 1) for place in range(shortest)]
    else:
        spots = [At(EARLIER, None, -shortest)]
        spots += [At(str(place), place, place + 1 if place < -1 else None) for place in range(-shortest, 0)]
    return [
        Patch(f"{stack.name}:{layer}@{at.name}", at, block=block, stack=stack.name, layer=layer)
        for stack in anatomy.stacks
        for layer, block in zip(stack.ids, stack.blocks, strict=True)
        for at in spots
    ]


def check_parts(anatomy: Anatomy, patches: Sequence[Patch]) -> None:
    """`Refused` where a part cannot be patched example by example, in one sentence with the reason."""
    for name in dict.fromkeys(name for patch in patches for name in patch.plan.by_site()):
        part = anatomy[name]
        if isinstance(part, Site) and not part.calls_writer:
            raise Refused(
                f"{name} never calls its output projection, so nothing can be put before it; patch layers instead."
            )
        if not part.per_example:
            raise Refused(f"{name} does not see examples one by one, so it cannot be patched; patch layers instead.")


# --- activations of the other prompts -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Activations:
    """What parts of a model were given in one pass: inputs of writers by site, inputs and outputs of layers."""

    writers: dict[str, Tensor]  # (examples, tokens, columns)
    blocks: dict[nn.Module, tuple[Tensor, Tensor]]  # both (examples, tokens, features)


@contextmanager
def recording(anatomy: Anatomy, patches: Sequence[Patch]) -> Iterator[Activations]:
    """Within the block, one pass of the model fills the activations that the patches need."""
    found = Activations({}, {})
    sites, blocks = _parts(anatomy, patches)

    def given(name: str) -> Any:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            if name in found.writers:
                raise Refused(
                    f"{name} runs more than once in a pass, so it is not plain what to patch; patch layers instead."
                )
            found.writers[name] = next(tensors((args, kwargs))).detach().clone()

        return before

    def passed(block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        found.blocks[block] = tuple(next(tensors(x)).detach().clone() for x in ((args, kwargs), output))  # type: ignore[assignment]

    with ExitStack() as stack:
        for site in sites:
            stack.callback(site.writer.register_forward_pre_hook(given(site.name), with_kwargs=True).remove)
        for block in blocks:
            stack.callback(block.register_forward_hook(passed, with_kwargs=True).remove)
        yield found


def _parts(anatomy: Anatomy, patches: Sequence[Patch]) -> tuple[list[Site], list[nn.Module]]:
    """The sites whose writers are patched, and the layers that are, or whose input is."""
    names = dict.fromkeys(name for patch in patches for name in patch.plan.by_site())
    parts = [anatomy[name] for name in names]
    blocks = [patch.block for patch in patches if patch.block is not None]
    for part in parts:
        if isinstance(part, Stack):
            wanted = {unit.index for patch in patches for unit in patch.plan if unit.site == part.name}
            blocks += [part.blocks[place] for place in part.positions(sorted(wanted))]
    return [part for part in parts if isinstance(part, Site)], list(dict.fromkeys(blocks))


# --- putting them there ---------------------------------------------------------------------------------------------


@contextmanager
def patched(
    root: nn.Module,
    anatomy: Anatomy,
    patches: Sequence[Patch],
    source: Activations,
    masks: Mapping[At, Tensor],
) -> Iterator[None]:
    """Within the block, a batch tiled once per patch runs with the n-th patch in its n-th copy.

    `masks` has, for the positions of every patch, which they are in the batch: (examples, tokens), bool.
    """
    sites, blocks = _parts(anatomy, patches)
    streams = {patch.block for patch in patches if patch.block is not None}
    with ExitStack() as stack:
        stack.enter_context(applied(root, anatomy, {}))  # compiled code steps aside
        for site in sites:
            hook = _at_writer(site, source.writers.get(site.name), _columns(site, patches, masks))
            stack.callback(site.writer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for block in blocks:
            where = torch.cat([masks[patch.at] & (patch.block is block) for patch in patches])
            if block in streams:
                hook = _at_input(source.blocks[block][0], where)
                stack.callback(block.register_forward_pre_hook(hook, with_kwargs=True).remove)
            else:
                where = torch.cat([masks[patch.at] & _holds(anatomy, patch, block) for patch in patches])
                layer = _at_layer(source.blocks[block], where)
                stack.callback(block.register_forward_hook(layer, with_kwargs=True, prepend=True).remove)
        yield


def _holds(anatomy: Anatomy, patch: Patch, block: nn.Module) -> bool:
    """Whether a layer is among the units of a patch."""
    for name, indices in patch.plan.by_site().items():
        part = anatomy[name]
        if isinstance(part, Stack) and block in {part.blocks[place] for place in part.positions(indices)}:
            return True
    return False


def _columns(site: Site, patches: Sequence[Patch], masks: Mapping[At, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """For each patch, its positions (examples, tokens) and which columns of the writer's input its units are (columns,)."""
    out = []
    for patch in patches:
        units = torch.zeros(len(site), dtype=torch.bool)
        units[site.positions(patch.plan.by_site().get(site.name, ()))] = True
        out.append((masks[patch.at], units.repeat_interleave(site.width)))
    return out


def _at_writer(site: Site, source: Tensor | None, columns: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """Pre-hook of a writer: the columns of patched units come from the source, copy by copy of the batch."""

    def hook(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        x = next(tensors((args, kwargs)))
        if (
            source is None
            or x.dim() != 3
            or x.shape[0] != len(columns) * source.shape[0]
            or x.shape[1:] != source.shape[1:]
        ):
            seen = None if source is None else tuple(source.shape)
            raise Refused(
                f"{site.name} is given numbers of shape {tuple(x.shape)} and not {seen} for each copy of a batch, (examples, "
                "tokens, columns), so it cannot be patched; patch layers instead."
            )
        parts = [
            torch.where(where[..., None].to(x.device) & units.to(x.device), source.to(x.dtype), own)
            for own, (where, units) in zip(x.split(source.shape[0]), columns, strict=True)
        ]
        return with_first((args, kwargs), torch.cat(parts))  # type: ignore[no-any-return]

    return hook


def _at_input(source: Tensor, where: Tensor) -> Any:
    """Pre-hook of a layer: the stream that it reads comes from the source at some positions."""

    def hook(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        x = next(tensors((args, kwargs)))
        times = x.shape[0] // source.shape[0]
        return with_first(
            (args, kwargs), torch.where(where[..., None].to(x.device), source.repeat(times, 1, 1).to(x.dtype), x)
        )  # type: ignore[no-any-return]

    return hook


def _at_layer(source: tuple[Tensor, Tensor], where: Tensor) -> Any:
    """Forward hook of a layer: what it adds to the stream is what it added for the source."""
    added = source[1] - source[0]

    def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        x, y = next(tensors((args, kwargs))), next(tensors(output))
        times = x.shape[0] // added.shape[0]
        return with_first(
            output, torch.where(where[..., None].to(y.device), x + added.repeat(times, 1, 1).to(y.dtype), y)
        )

    return hook
