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
    trace = _watch(blocks, run)
    shorter = _watch(blocks, fewer) if fewer is not None else _CallLog()
    once = [b for b in sorted(blocks, key=lambda b: trace.began.get(b, 0)) if trace.calls.get(b) == 1]
    call_order = CallOrder(once, encoder=allowed, rows=_with_rows(trace, shorter))
    for name in sites:
        site, block = anatomy[name], None
        if isinstance(site, Site):
            block = next((b for b in call_order.blocks if site.writer in set(b.modules())), None)
        if block is None or trace.calls.get(site.writer) != 1 or not site.calls_writer:
            continue
        started = trace.began[site.writer]
        attention = _returns_writer_output(site, block, trace)
        if attention is not None:
            call_order.handed_on[name], started = attention, trace.began[attention]
        call_order.inside[name] = list(_finished(block, started, trace))
    if call_order.blocks and not generates:
        call_order.reader = _last_attention(anatomy, call_order.blocks[-1], trace)
    return call_order


@dataclass
class _CallLog:
    """Order of beginnings and ends, numbers of calls, and addresses of first tensors, of the modules watched."""

    began: dict[nn.Module, int] = field(default_factory=dict)
    ended: dict[nn.Module, int] = field(default_factory=dict)
    calls: dict[nn.Module, int] = field(default_factory=dict)
    came: dict[nn.Module, Tensor] = field(default_factory=dict)
    gave: dict[nn.Module, Tensor] = field(default_factory=dict)
    shapes: dict[nn.Module, list[tuple[int, ...]]] = field(default_factory=dict)  # of all tensors given
    clock: int = 0


def _watch(blocks: Iterable[nn.Module], run: Callable[[], Any]) -> _CallLog:
    trace = _CallLog()

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        trace.clock += 1
        trace.began[module] = trace.clock
        trace.calls[module] = trace.calls.get(module, 0) + 1
        first = next(tensors((args, kwargs)), None)
        if first is not None:
            trace.came[module] = first

    def end(module: nn.Module, _: Any, output: Any) -> None:
        trace.clock += 1
        trace.ended[module] = trace.clock
        outputs = list(tensors(output))
        trace.shapes[module] = [tuple(t.shape) for t in outputs]
        if outputs:
            trace.gave[module] = outputs[0]

    with ExitStack() as stack:
        for module in {module for block in blocks for module in block.modules()}:
            stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(end).remove)
        run()
    return trace


def _with_rows(trace: _CallLog, shorter: _CallLog) -> dict[nn.Module, tuple[bool, ...]]:
    """For each module, which of the tensors it gives are shorter by a row when there is an example less."""
    return {
        module: tuple(bool(a) and bool(b) and a[0] != b[0] for a, b in zip(shapes, less, strict=True))
        for module, shapes in trace.shapes.items()
        if len(less := shorter.shapes.get(module, [])) == len(shapes)
    }


def _finished(block: nn.Module, before: int, trace: _CallLog) -> Iterator[nn.Module]:
    """The largest parts of a layer that had been called once, and had returned, when the clock showed `before`."""
    for child in block.children():
        if trace.calls.get(child) == 1 and child in trace.ended and trace.ended[child] < before and child in trace.gave:
            yield child
        else:
            yield from _finished(child, before, trace)


def _returns_writer_output(site: Site, block: nn.Module, trace: _CallLog) -> nn.Module | None:
    """The attention around a writer, if what it returns first is the writer's output and nothing else."""
    module = site.module
    if module is block or module is site.writer or site.writer not in set(module.modules()):
        return None
    if trace.calls.get(module) == 1 and module not in trace.gave:
        return None
    return module if trace.calls.get(module) == 1 and _same(trace.gave[module], trace.gave[site.writer]) else None


def _last_attention(anatomy: Anatomy, block: nn.Module, trace: _CallLog) -> tuple[nn.Module, nn.Module | None] | None:
    """The only attention of a layer and the norm it reads through, if it reads the layer's input that directly."""
    inside = set(block.modules())
    attentions = {site.module for site in anatomy.heads if site.writer in inside}
    if len(attentions) != 1 or block not in trace.came:
        return None
    module = attentions.pop()
    if trace.calls.get(module) != 1 or module is block or module not in trace.came or module not in inside:
        return None
    if _same(trace.came[module], trace.came[block]):
        return module, None
    norms = (m for m in inside if trace.calls.get(m) == 1 and m in trace.gave and m is not module)
    through = (m for m in norms if _same(trace.gave[m], trace.came[module]) and _same(trace.came[m], trace.came[block]))
    norm = next(through, None)
    return None if norm is None else (module, norm)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.data_ptr() == b.data_ptr()


def _encoder_modules(root: nn.Module) -> set[nn.Module]:
    """While text is generated only an encoder runs once; layers of the decoder also fill caches, so they always run."""
    if not getattr(getattr(root, "config", None), "is_encoder_decoder", False):
        return set()
    return set(root.get_encoder().modules())
