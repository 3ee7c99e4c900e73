"""Run a model again with units masked, without computing again what cannot have changed.

When a unit of one layer is masked, everything that ran before it stays as it was. So one ordinary pass over a batch is
remembered, and every further pass over the same batch starts where its plan begins to matter:

- layers called before answer with what they gave before;
- inside the layer, so does every module that had finished when the site's writer was called, and the pass starts from the
  remembered input of the writer;
- where only some positions of the last layer are read (a classifier reads one token), the last layer computes its MLP and
  projections for those alone.

Which modules come before which is seen in the first pass, not known about families. What was seen is proved on the first
examples against ordinary passes, and given up, part by part, where it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import HeadcountError
from ..model.anatomy import Anatomy, Site, Stack
from ..model.equivalence import differs
from ..model.gates import applied, gates_of
from ..model.stand_ins import StandIn
from ..model.tensor_trees import mapped, memory_of, tensors, tile, with_first
from ..plans import Plan
from .call_order import LAYERS, READ_POSITIONS, SITES, CallOrder

Batch = dict[str, Any]
Call = Callable[[nn.Module, Batch], Any]


class TooMuch(Exception):
    """What one pass would have to remember does not fit into the memory allowed: take fewer examples at a time."""


@dataclass(frozen=True)
class Start:
    """Where a plan begins to matter: at this place in the order of layers, and if it has one site only, at that site."""

    place: int
    site: str | None = None


@dataclass
class Memory:
    """What one ordinary pass over one batch left behind."""

    outputs: dict[nn.Module, Any]
    inputs: dict[str, Tensor]  # of writers, by site
    size: int
    positions: Tensor | None = None  # (batch, few): the positions of the last layer that anything reads

    @property
    def versions(self) -> list[int]:
        """Counters that tell whether a remembered tensor has been written to."""
        return [t._version for value in [*self.outputs.values(), *self.inputs.values()] for t in tensors(value)]


# -- remembering ---------------------------------------------------------------------------------------------------------


def remember(
    root: nn.Module, anatomy: Anatomy, call_order: CallOrder, run: Callable[[], Any], *, size: int, limit: int
) -> tuple[Memory, Any]:
    """Run once, ordinarily; gives what later passes need, and what the run gave. `TooMuch` if it is over the limit."""
    memory = Memory({}, {}, size)
    calls: dict[nn.Module, int] = {}
    wanted = set(call_order.blocks) if call_order.depth >= LAYERS else set()
    if call_order.depth >= SITES:
        wanted |= {module for modules in call_order.inside.values() for module in modules} | set(
            call_order.handed_on.values()
        )
    handed_on = {anatomy[name].writer: name for name in call_order.handed_on} if call_order.depth >= SITES else {}

    written: dict[nn.Module, list[int]] = {}

    def output(module: nn.Module, _: Any, value: Any) -> None:
        calls[module] = calls.get(module, 0) + 1
        memory.outputs[module] = value
        written[module] = [t._version for t in tensors(value)]

    def writer_input(module: nn.Module, args: Any, kwargs: Any) -> None:
        memory.inputs[handed_on[module]] = next(tensors((args, kwargs)))

    with ExitStack() as stack:
        for module in wanted:
            stack.callback(module.register_forward_hook(output).remove)
        for module in handed_on:
            stack.callback(module.register_forward_pre_hook(writer_input, with_kwargs=True).remove)
        result = run()
    for module, times in calls.items():
        if times != 1 or [t._version for t in tensors(memory.outputs[module])] != written[module]:
            del memory.outputs[module]  # it runs more than once, or what it gave was written over since
    if memory_of([*memory.outputs.values(), *memory.inputs.values()]) > limit and size > 1:
        raise TooMuch
    return memory, result


def find_positions(root: nn.Module, call_order: CallOrder, memory: Memory, loss: Call, batch: Batch) -> None:
    """See which positions of the last layer anything reads, by the gradient of the output; kept if they are few.

    The gradient is that of a random combination of the logits, because a loss that is exactly zero has no gradient. Seen
    a second time with everything moved on by one position: where what is read depends on what is there, as the largest
    of all positions does, all of them count.
    """
    if call_order.depth < READ_POSITIONS or call_order.reader is None or call_order.blocks[-1] not in memory.outputs:
        return
    last = call_order.blocks[-1]
    hidden = next(tensors(memory.outputs[last]))
    if hidden.dim() != 3 or hidden.shape[0] != memory.size:
        call_order.reader = None
        return
    answers = {b: _answer(memory.outputs[b]) for b in call_order.blocks[:-1] if b in memory.outputs}

    def read_of(hidden: Tensor) -> Tensor:
        logits: list[Any] = []
        leaf = hidden.detach().clone().requires_grad_()
        answer = _answer(with_first(memory.outputs[last], leaf.clone()))  # a clone may be written to
        grab = root.register_forward_hook(lambda _, __, output: logits.append(getattr(output, "logits", None)))
        try:
            with answering({**answers, last: answer}):
                total = loss(root, batch).sum()
        finally:
            grab.remove()
        if logits and isinstance(logits[-1], Tensor) and logits[-1].requires_grad:
            noise = torch.randn(logits[-1].shape, generator=torch.Generator().manual_seed(0))
            total = (logits[-1] * noise.to(logits[-1])).sum()
        return (torch.autograd.grad(total, leaf)[0] != 0).any(-1)

    with torch.enable_grad():
        read = read_of(hidden)
        few = int(read[0].sum())
        if few > read.shape[1] // 2 or not torch.equal(read, read_of(hidden.roll(1, dims=1))):
            call_order.reader = None  # a model that reads them all: do not ask again
        elif few and bool((read.sum(-1) == few).all()):
            memory.positions = read.nonzero()[:, 1].view(memory.size, few)


# -- running again -------------------------------------------------------------------------------------------------------


def start_of(anatomy: Anatomy, call_order: CallOrder, plan: Plan) -> Start:
    """Where a plan begins to matter; place 0 without a site is an ordinary pass."""
    sites = list(plan.by_site())
    first = min((_place(anatomy[name], plan, call_order) for name in sites), default=0)
    if len(sites) == 1 and sites[0] in call_order.inside:
        return Start(first, sites[0])
    return Start(first)


def _place(part: Site | Stack, plan: Plan, call_order: CallOrder) -> int:
    """How many of the layers seen have run before the part; none, where that is not known."""
    if isinstance(part, Stack):
        closed = [part.blocks[n] for n in part.positions(plan.by_site()[part.name])]
    else:
        closed = [b for b in call_order.blocks if part.writer in set(b.modules())] or [part.writer]
    after_all = call_order.encoder is not None and not call_order.encoder & set(closed)
    places = {block: place for place, block in enumerate(call_order.blocks)}
    return len(places) if after_all else min((places.get(block, 0) for block in closed), default=0)


@contextmanager
def replayed(
    root: nn.Module,
    anatomy: Anatomy,
    call_order: CallOrder,
    memory: Memory,
    plans: Sequence[Plan],
    start: Start,
    stand_ins: Mapping[str, Tensor | StandIn] | None = None,
) -> Iterator[None]:
    """Within the block, a batch tiled once per plan runs with the n-th plan masked in its n-th copy, from `start` on.

    All plans begin at the same place; where there are several, each site masked must see examples one by one. What stands in
    for masked units is the same in every copy.
    """
    times = len(plans)
    answers: dict[nn.Module, Callable[..., Any]] = {}
    if call_order.depth >= LAYERS:
        for block in call_order.blocks[: start.place]:
            if block in memory.outputs:
                answers[block] = _answer(memory.outputs[block], times, call_order.rows.get(block, ()))
    inner: dict[nn.Module, Callable[..., Any]] = {}
    if call_order.depth >= SITES and start.site is not None:
        inner = _inside_answers(anatomy, call_order, memory, start.site, times)
    with ExitStack() as stack:
        stack.enter_context(applied(root, anatomy, _tiled_gates(anatomy, plans, memory.size), stand_ins))
        trimmed = call_order.depth >= READ_POSITIONS and memory.positions is not None and call_order.reader is not None
        if trimmed and start.place < len(call_order.blocks):
            last = call_order.blocks[-1]
            mine = inner if start.place == len(call_order.blocks) - 1 else {}
            answers[last] = _few_positions(call_order, memory, times, last, mine)
            inner = {} if mine else inner
        stack.enter_context(answering({**answers, **inner}))
        yield


def _inside_answers(
    anatomy: Anatomy, call_order: CallOrder, memory: Memory, name: str, times: int
) -> dict[nn.Module, Callable[..., Any]]:
    answers = {
        module: _answer(memory.outputs[module], times, call_order.rows.get(module, ()))
        for module in call_order.inside[name]
        if module in memory.outputs
    }
    attention = call_order.handed_on.get(name)
    if attention is not None and attention in memory.outputs and name in memory.inputs:
        writer_input, writer, attention_output = memory.inputs[name], anatomy[name].writer, memory.outputs[attention]

        def again(*_: Any, **__: Any) -> Any:
            return with_first(
                tile(attention_output, times, call_order.rows.get(attention, ())), writer(tile(writer_input, times))
            )

        answers[attention] = again
    return answers


def _few_positions(
    call_order: CallOrder, memory: Memory, times: int, block: nn.Module, inner: Mapping[nn.Module, Callable[..., Any]]
) -> Callable[..., Any]:
    """The last layer for the positions that are read: its attention sees all of them, the rest only those."""
    assert call_order.reader is not None
    assert memory.positions is not None
    attention, norm = call_order.reader
    block_forward, attention_forward = block.forward, attention.forward
    where = memory.positions.repeat(times, 1)
    length = next(tensors(memory.outputs[block])).shape[1]

    def pick(value: Any) -> Any:
        def few(t: Tensor) -> Tensor:
            if t.dim() < 2 or t.shape[:2] != (where.shape[0], length):
                return t
            index = where.to(t.device).view(*where.shape, *[1] * (t.dim() - 2)).expand(*where.shape, *t.shape[2:])
            return t.gather(1, index)

        return mapped(value, few)

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = next(tensors((args, kwargs)))
        small = pick(hidden)

        def attend(*inner_args: Any, **inner_kwargs: Any) -> Any:
            full = hidden if norm is None else norm.forward(hidden)
            now = next(tensors((inner_args, inner_kwargs)))
            inner_args, inner_kwargs = mapped((inner_args, inner_kwargs), lambda t: full if t is now else t)
            return pick(attention_forward(*inner_args, **inner_kwargs))

        def picked(answer: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *a, **k: pick(answer(*a, **k))

        parts: dict[nn.Module, Callable[..., Any]] = {attention: attend}
        for module, answer in inner.items():
            parts[module] = picked(answer)
        if any(module is not attention and attention in set(module.modules()) for module in inner):
            del parts[attention]  # a part around it answers for it
        few_args, few_kwargs = mapped((args, kwargs), lambda t: small if t is hidden else t)
        with answering(parts):
            output = block_forward(*few_args, **few_kwargs)
        got = next(tensors(output))
        full = tile(memory.outputs[block], times, call_order.rows.get(block, ()))
        out = next(tensors(full))
        index = where.to(out.device)[..., None].expand(*where.shape, out.shape[-1])
        return with_first(full, out.scatter(1, index, got.to(out.dtype)))

    return forward


def _tiled_gates(anatomy: Anatomy, plans: Sequence[Plan], size: int) -> dict[str, Tensor]:
    """Gates that close the n-th plan in the n-th copy of the batch; plain ones where there is only one plan."""
    gates_per_plan = [gates_of(anatomy, plan) for plan in plans]
    if len(plans) == 1:
        return gates_per_plan[0]
    names = dict.fromkeys(name for gates in gates_per_plan for name in gates)
    open_ = {name: torch.ones(len(anatomy[name])) for name in names}
    return {
        name: torch.stack([gates.get(name, open_[name]) for gates in gates_per_plan]).repeat_interleave(size, 0)[
            :, None
        ]
        for name in names
    }


def _answer(value: Any, times: int = 1, rows: Sequence[bool] = ()) -> Callable[..., Any]:
    return lambda *_, **__: tile(value, times, rows)


@contextmanager
def answering(answers: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Within the block, each module answers a call with the function given instead of running its own code."""
    before = {module: module.__dict__.get("forward") for module in answers}
    try:
        for module, answer in answers.items():
            module.__dict__["forward"] = answer
        yield
    finally:
        for module, forward in before.items():
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward


def agrees(root: nn.Module, ordinary: Sequence[Callable[[], Any]], again: Callable[[], Any]) -> bool:
    """Whether one replay gives, in its first copies, what ordinary passes of the same plans give, up to rounding.

    Looks at the model's output and at the rows made of it, which need not come from that output.
    """
    outputs: list[list[Tensor]] = []

    def given(run: Callable[[], Any]) -> list[Tensor]:
        del outputs[:]
        rows = torch.as_tensor(run())
        first = outputs[0] if outputs else []
        return [*first, rows.to(first[0].dtype if first else torch.float32)]

    grab = root.register_forward_hook(
        lambda _, __, output: outputs.append([t.detach().clone() for t in _judged(output)])
    )
    try:
        results = [given(run) for run in ordinary]
        try:
            want = results[0] if len(results) == 1 else [torch.cat(copies) for copies in zip(*results, strict=True)]
            return differs(want, [t[: len(w)] for t, w in zip(given(again), want, strict=True)]) is None
        except (HeadcountError, RuntimeError, ValueError, IndexError, TypeError, AttributeError, KeyError):
            return False  # what was seen does not hold for this model: the caller replays less
    finally:
        grab.remove()


def _judged(output: Any) -> list[Tensor]:
    logits = getattr(output, "logits", None)
    return [logits] if isinstance(logits, Tensor) else [t for t in tensors(output) if t.is_floating_point()][:1]
