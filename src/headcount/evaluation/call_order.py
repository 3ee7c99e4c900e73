"""In which order the layers of a model and the parts inside them run: seen in one pass, not known about families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..model.anatomy import Anatomy, Site
from ..model.tensor_trees import tensors

READ_POSITIONS, SITES, LAYERS, NOTHING = 3, 2, 1, 0  # how much of what was seen is believed


@dataclass
class CallOrder:
    """What the first pass taught about the order in which things run; `depth` is how much of it is believed."""

    blocks: list[nn.Module] = field(default_factory=list)  # called once each, in this order
    inside: dict[str, list[nn.Module]] = field(default_factory=dict)  # site -> what had finished before its writer ran
    handed_on: dict[str, nn.Module] = field(default_factory=dict)  # site -> the module that returns its writer's output
    reader: tuple[nn.Module, nn.Module | None] | None = None  # last layer: its attention, and the norm before it
    encoder: set[nn.Module] | None = None  # while text is generated: what runs once; everything else runs after it
    rows: dict[nn.Module, tuple[bool, ...]] = field(default_factory=dict)  # which outputs have a row per example
    depth: int = READ_POSITIONS


def learn(
    root: nn.Module,
    anatomy: Anatomy,
    sites: Iterable[str],
    run: Callable[[], Any],
    fewer: Callable[[], Any] | None,
    generates: bool,
) -> CallOrder:
    """Run once, and see in which order layers and their parts are called; `sites` are those that will be masked.

    `fewer` runs on one example less: what is then one row shorter has a row per example, and can be tiled.
    """
    allowed = _encoder_modules(root) if generates else None
    blocks = {block: stack for stack in anatomy.stacks for block in stack.blocks}
    if allowed is not None:
        blocks = {block: stack for block, stack in blocks.items() if block in allowed}
    seen = _watch(blocks, run)
    shorter = _watch(blocks, fewer) if fewer is not None else _Seen()
    once = [b for b in sorted(blocks, key=lambda b: seen.began.get(b, 0)) if seen.calls.get(b) == 1]
    call_order = CallOrder(once, encoder=allowed, rows=_with_rows(seen, shorter))
    for name in sites:
        site, block = anatomy[name], None
        if isinstance(site, Site):
            block = next((b for b in call_order.blocks if site.writer in set(b.modules())), None)
        if block is None or seen.calls.get(site.writer) != 1 or not site.calls_writer:
            continue
        started = seen.began[site.writer]
        whole = _returns_writer_output(site, block, seen)
        if whole is not None:
            call_order.handed_on[name], started = whole, seen.began[whole]
        call_order.inside[name] = list(_finished(block, started, seen))
    if call_order.blocks and not generates:
        call_order.reader = _last_attention(anatomy, call_order.blocks[-1], seen)
    return call_order


@dataclass
class _Seen:
    """Order of beginnings and ends, numbers of calls, and addresses of first tensors, of the modules watched."""

    began: dict[nn.Module, int] = field(default_factory=dict)
    ended: dict[nn.Module, int] = field(default_factory=dict)
    calls: dict[nn.Module, int] = field(default_factory=dict)
    came: dict[nn.Module, Tensor] = field(default_factory=dict)
    gave: dict[nn.Module, Tensor] = field(default_factory=dict)
    shapes: dict[nn.Module, list[tuple[int, ...]]] = field(default_factory=dict)  # of all tensors given
    clock: int = 0


def _watch(blocks: Iterable[nn.Module], run: Callable[[], Any]) -> _Seen:
    seen = _Seen()

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.clock += 1
        seen.began[module] = seen.clock
        seen.calls[module] = seen.calls.get(module, 0) + 1
        first = next(tensors((args, kwargs)), None)
        if first is not None:
            seen.came[module] = first

    def end(module: nn.Module, _: Any, output: Any) -> None:
        seen.clock += 1
        seen.ended[module] = seen.clock
        given = list(tensors(output))
        seen.shapes[module] = [tuple(t.shape) for t in given]
        if given:
            seen.gave[module] = given[0]

    with ExitStack() as stack:
        for module in {module for block in blocks for module in block.modules()}:
            stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(end).remove)
        run()
    return seen


def _with_rows(seen: _Seen, shorter: _Seen) -> dict[nn.Module, tuple[bool, ...]]:
    """For each module, which of the tensors it gives are shorter by a row when there is an example less."""
    return {
        module: tuple(bool(a) and bool(b) and a[0] != b[0] for a, b in zip(shapes, less, strict=True))
        for module, shapes in seen.shapes.items()
        if len(less := shorter.shapes.get(module, [])) == len(shapes)
    }


def _finished(block: nn.Module, before: int, seen: _Seen) -> Iterator[nn.Module]:
    """The largest parts of a layer that had been called once, and had returned, when the clock showed `before`."""
    for child in block.children():
        if seen.calls.get(child) == 1 and child in seen.ended and seen.ended[child] < before and child in seen.gave:
            yield child
        else:
            yield from _finished(child, before, seen)


def _returns_writer_output(site: Site, block: nn.Module, seen: _Seen) -> nn.Module | None:
    """The attention around a writer, if what it returns first is the writer's output and nothing else."""
    module = site.module
    if module is block or module is site.writer or site.writer not in set(module.modules()):
        return None
    if seen.calls.get(module) == 1 and module not in seen.gave:
        return None
    return module if seen.calls.get(module) == 1 and _same(seen.gave[module], seen.gave[site.writer]) else None


def _last_attention(anatomy: Anatomy, block: nn.Module, seen: _Seen) -> tuple[nn.Module, nn.Module | None] | None:
    """The only attention of a layer and the norm it reads through, if it reads the layer's input that directly."""
    inside = set(block.modules())
    found = {site.module for site in anatomy.heads if site.writer in inside}
    if len(found) != 1 or block not in seen.came:
        return None
    module = found.pop()
    if seen.calls.get(module) != 1 or module is block or module not in seen.came or module not in inside:
        return None
    if _same(seen.came[module], seen.came[block]):
        return module, None
    norms = (m for m in inside if seen.calls.get(m) == 1 and m in seen.gave and m is not module)
    through = (m for m in norms if _same(seen.gave[m], seen.came[module]) and _same(seen.came[m], seen.came[block]))
    norm = next(through, None)
    return None if norm is None else (module, norm)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.data_ptr() == b.data_ptr()


def _encoder_modules(root: nn.Module) -> set[nn.Module]:
    """While text is generated only an encoder runs once; layers of the decoder also fill caches, so they always run."""
    if not getattr(getattr(root, "config", None), "is_encoder_decoder", False):
        return set()
    return set(root.get_encoder().modules())
