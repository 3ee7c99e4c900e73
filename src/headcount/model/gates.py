"""Numbers that multiply units while a model runs: `gated` and `masked`. Nothing is changed and nothing is left behind.

A forward pre-hook on the writer multiplies its input, unit by unit, whatever kernel computed it; a layer's gate mixes
what went into the layer with what came out. A gate of one changes nothing, a gate of zero is a masked unit. Gates that
change from step to step while the writer's weight trains are multiplied into a copy of the weight instead, where that is
less work; what comes out is the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadPlan, Refused
from ..plans import Plan
from ..spelling import mask_rows, short
from .anatomy import Anatomy, Site, Stack, Units
from .architectures import ModuleSpec
from .discovery import find, unwrap
from .distributed.tensor_parallel import is_distributed, share_of
from .matrices import Padded, index_on
from .multihead import called, opened
from .positions import At, Examples, batch_of
from .stand_ins import Fill, StandIn, checked_stand_ins, data_fill, placed


@contextmanager
def masked(
    model: nn.Module,
    units: Units,
    *,
    fill: str | Mapping[str, Tensor] | Fill | None = None,
    at: At | Tensor | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> Iterator[Plan]:
    """Zero ablation: within the block, these `units` contribute nothing; gives the plan that they make.

    With `fill`, what their columns of the output matrix are given is not zero but something else: its mean over a reference
    set with `hc.interventions.Fill("mean", reference)`, or numbers of one's own by site: (columns,) for every position,
    (positions, columns), or (examples, positions, columns) for one batch. A layer ("layers:3") is passed over, and numbers
    for it are added there: they take the place of its contribution, output minus input.

    `masked(model, "3:7")` masks head 7 of layer 3, `"3:*"` that whole attention, `"*:7"` head 7 of every attention,
    `"3:-1"` the last head, `"3.mlp:0-99"` a hundred neurons, `"layers:3"` the whole layer. `(3, 7)`, `{3: [7]}`, `"L3H7"`
    and a mask of layers x heads (0 masks a head, as in `head_mask`) are read too. The model is as it was afterwards, also
    after an exception.

    Args:
        model: The model; it is as it was after the block.
        units: Units such as `"3:7 5:0-3"`, `(3, 7)` or `{3: [7]}`, a plan, or a mask of layers x heads (see `Anatomy.plan`).
        fill: What stands in for units: "zero", tensors by site name, or an `hc.interventions.Fill`; sites that are not there
            have zeros.
        at: Positions at which they are masked: "last", "0:5", "-3:", a number, one of these for each example of a batch, or
            a mask (examples, positions). Padding does not count; by default all positions.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The plan, as a context manager.

    Examples:
        >>> model = hc.load("my-model")
        >>> task = hc.task("classification", "dev.tsv", tokenizer="my-model", limit=64)
        >>> with hc.masked(model, "3:7"):
        ...     without_head = hc.evaluate(model, task)
    """
    anatomy = find(model, specs)
    plan = anatomy.plan(units)
    examples = Examples(unwrap(model), anatomy)
    if not isinstance(fill, Mapping):
        from_data = data_fill(fill)
        fill = {} if from_data is None else from_data.stand_ins(model, anatomy, plan)
    stand_ins = checked_stand_ins(anatomy, plan, fill, at, examples)
    with ExitStack() as stack:
        if any(isinstance(one, StandIn) for one in stand_ins.values()):
            stack.enter_context(_watched(examples))
        stack.enter_context(applied(unwrap(model), anatomy, gates_of(anatomy, plan), stand_ins))
        yield plan


@contextmanager
def _watched(examples: Examples) -> Iterator[None]:
    """Within the block, `examples` are those that the model was called with last."""

    def called(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        examples.batch, examples.size = batch_of(args, kwargs)

    handle = examples.root.register_forward_pre_hook(called, with_kwargs=True, prepend=True)
    try:
        yield
    finally:
        handle.remove()


def gates_of(anatomy: Anatomy, plan: Plan) -> dict[str, Tensor]:
    """Site name -> gates that are zero for the units of the plan and one for the rest."""
    gates = {}
    for name, indices in plan.by_site().items():
        gate = torch.ones(len(anatomy[name]))
        gate[anatomy[name].positions(indices)] = 0
        gates[name] = gate
    return gates


@contextmanager
def gated(
    model: nn.Module, gates: Mapping[Any, Any] | Tensor | Any, *, specs: Iterable[ModuleSpec] = ()
) -> Iterator[dict[str, Tensor]]:
    """Within the block, the units of each named site are multiplied by its gates; gives the gates back.

    A gate has shape `(units,)`, or `(batch, 1, units)` for gates that differ from example to example; gradients flow
    into it. Lists and arrays are taken too, and a whole table of layers x heads, as `head_mask` was. Sites are those of
    `find`, stacks of layers included; the number of a layer stands for its attention. Contexts may be nested: gates
    multiply. With gradient checkpointing, call `backward` inside the block, because the forward pass is run again there.
    Code that went through `torch.compile` runs eagerly inside the block, because compiled code does not see new hooks.

    Args:
        model: The model.
        gates: Gates by site name or number of the layer: `(units,)`, or `(batch, 1, units)` per example; or layers x heads.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The gates, as a context manager.

    Examples:
        >>> model = hc.load("my-model")
        >>> import torch
        >>> gates = {"0": torch.full((8,), 0.5, requires_grad=True)}
        >>> tokens = torch.tensor([[2, 9, 8, 3]])
        >>> with hc.gated(model, gates):
        ...     model(tokens).logits.sum().backward()
        >>> gates["0"].grad.shape
        torch.Size([8])
    """
    anatomy = find(model, specs)
    by_site = _by_site(anatomy, gates)
    with applied(unwrap(model), anatomy, by_site):
        yield by_site


def _by_site(anatomy: Anatomy, gates: Any) -> dict[str, Any]:
    """Gates as tensors by the names of their sites, from a dictionary or from a table of layers x heads."""
    if not isinstance(gates, Mapping):
        if mask_rows(gates) is None:
            raise BadPlan(
                f"Gates are a dictionary {{site: numbers}}, or a table of layers x heads; I got {short(gates)}: units to "
                "mask are for `masked`."
            )
        rows = gates if isinstance(gates, Tensor) else [_as_gate("this table", row) for row in gates]
        return {
            site.name: row if isinstance(row, Tensor) else torch.stack(row)
            for site, row in anatomy.rows_of(rows, "A table of gates")
        }
    out: dict[str, Any] = {}
    for name, gate in gates.items():
        site = anatomy[name].name
        if site in out:
            raise BadPlan(f"The gates name {site} twice, the second time as {short(name)}; give each site once.")
        out[site] = _as_gate(site, gate)
    return out


def _as_gate(name: str, gate: Any) -> Any:
    """A tensor from a list or an array; tensors and functions as they are."""
    if isinstance(gate, Tensor) or callable(gate) or not (isinstance(gate, list | tuple) or hasattr(gate, "tolist")):
        return gate
    try:
        return torch.as_tensor(gate, dtype=torch.get_default_dtype())
    except (TypeError, ValueError, RuntimeError):
        raise BadPlan(f"Gates of {name} are numbers, one for each unit; I got {short(gate)}.") from None


SHADOWED = "headcount_shadowed"
Live = Callable[[], Tensor]  # gates that change while the block is open: asked for whenever they are needed


@contextmanager
def applied(
    root: nn.Module,
    anatomy: Anatomy,
    gates: Mapping[str, Tensor | Live],
    fill: Mapping[str, Tensor | StandIn] | None = None,
) -> Iterator[None]:
    """`gated` for a model whose anatomy is at hand: loops need not find it anew for each of their turns.

    A gate may be a function that gives the tensor of the moment: a number per unit, or per input column of the writer. `fill`
    has, by site, what a gate of zero lets in instead: a number per input column of the writer, or a stand-in; by layer
    ("layers:3"), what is added to what goes into it.
    """
    fill = fill or {}
    with ExitStack() as stack:
        stack.enter_context(_compiled_code_steps_aside())
        # gates of a tensor-parallel model are sliced; all else is made of the heads of all processes
        learnt = any(callable(gate) or getattr(gate, "requires_grad", False) for gate in gates.values())
        sliced = bool(gates) and not fill and not learnt
        stack.enter_context(called(root) if sliced else opened(root))
        for name, gate in gates.items():
            part = anatomy[name]
            _check_shape(part, gate)
            if isinstance(part, Stack):
                for position, block in enumerate(part.blocks):
                    own_fill = _Counted(fill.get(f"{part.name}:{part.ids[position]}"))
                    hook = partial(_mix, part, gate, position, own_fill)
                    # before the hooks by which transformers records hidden states: they should see what goes on
                    handle = block.register_forward_hook(hook, with_kwargs=True, prepend=True)
                    stack.callback(handle.remove)
            elif not part.calls_writer:
                module = part.module
                fresh = partial(_unshadow, part)  # an interrupted pass may have left its shadow
                stack.callback(module.register_forward_pre_hook(fresh, prepend=True).remove)
                stack.callback(module.register_forward_pre_hook(partial(_shadow, part, gate)).remove)
                stack.callback(module.register_forward_hook(partial(_unshadow, part), always_call=True).remove)
                stack.callback(_unshadow, part)  # an interrupt in the middle skips the hook
            else:
                if callable(gate):
                    fresh = partial(_unshadow, part)
                    stack.callback(part.writer.register_forward_pre_hook(fresh, prepend=True).remove)
                    stack.callback(part.writer.register_forward_hook(fresh, always_call=True).remove)
                    stack.callback(_unshadow, part)
                hook = partial(_multiply, part, gate, fill=_Counted(fill.get(name)))
                stack.callback(part.writer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


class _Counted:
    """A fill, and how often the part that it stands in for was called on the same batch."""

    def __init__(self, source: Tensor | StandIn | None) -> None:
        self.source, self._batch, self._calls = source, object(), 0

    def call(self) -> int:
        """How often it was called before."""
        assert isinstance(self.source, StandIn)
        batch = self.source.examples.batch
        self._batch, self._calls = batch, self._calls + 1 if batch is self._batch else 0
        return self._calls


def _now(gate: Tensor | Live) -> Any:
    return gate() if callable(gate) else gate


_inside = 0  # how many contexts are open: they may end in any order
_eager = ExitStack()  # holds compiled code back while any is open, and gives the user's own setting back afterwards
_held_back = False
_compiler_is_new = False  # whether nothing could have been compiled before the first of them


@contextmanager
def _compiled_code_steps_aside() -> Iterator[None]:
    """Compiled graphs do not look for hooks added or removed since: run eagerly, and forget graphs that were made here."""
    global _inside, _eager, _held_back, _compiler_is_new
    if _inside == 0:
        _eager, _compiler_is_new = ExitStack(), "torch._dynamo" not in sys.modules
    if "torch._dynamo" in sys.modules and not _held_back:
        _eager.enter_context(torch.compiler.set_stance("force_eager"))
        _held_back = True
    _inside += 1
    try:
        yield
    finally:
        _inside -= 1
        if _inside == 0:
            _eager.close()
            _held_back = False
            if _compiler_is_new and "torch._dynamo" in sys.modules:
                torch.compiler.reset()


def _check_shape(part: Site | Stack, gate: Any) -> None:
    units = len(part)
    if callable(gate):
        return
    if not isinstance(gate, Tensor):
        raise BadPlan(
            f"Gates of {part.name} are a tensor of shape ({units},) or (batch, 1, {units}); I got {gate!r:.60}."
        )
    if gate.shape != (units,) and not (gate.dim() == 3 and gate.shape[1:] == (1, units)):
        raise BadPlan(f"Gates of {part.name} have shape ({units},) or (batch, 1, {units}); I got {tuple(gate.shape)}.")
    called = isinstance(part, Stack) or part.calls_writer
    if gate.dim() == 3 and not (part.per_example and called):
        why = "does not see examples one by one" if called else "never calls its output projection"
        raise Refused(f"{part.name} {why}: its gates cannot differ from example to example; give one per unit.")


def _multiply(
    site: Site,
    gate_source: Tensor | Live,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    fill: _Counted,
) -> tuple[Any, Any]:
    """Pre-hook of a writer: its input, with each unit's columns multiplied by the unit's gate, and the rest from the fill."""
    gate = _now(gate_source)
    name = "" if args else next(iter(kwargs))
    x = args[0] if args else kwargs[name]
    # a copy of the module, as DataParallel makes for every device, has a weight of its own
    if callable(gate_source) and fill.source is None and module is site.writer and _folds(site, x):
        _shadow(site, gate_source)
        return args, kwargs
    axis = column_axis(site.writer, x)
    whole, chosen = x, index_on(module.places, x.device) if isinstance(module, Padded) else None
    x = x if chosen is None else x.index_select(axis, chosen)  # it picks its inputs itself
    columns = _columns(site, gate.to(x.device, x.dtype))
    if x.shape[axis] != columns.shape[-1] and (share := share_of(module)) is not None:
        columns = share.of(columns)
    if isinstance(fill.source, StandIn):
        last = x.movedim(axis, -1)
        values, kept = placed(fill.source, last, columns, fill.call())
        x = (last * kept + (1 - kept) * values).movedim(-1, axis)
    else:
        x = _scaled(site, x, axis, columns, fill.source)
    x = x if chosen is None else whole.index_copy(axis, chosen, x)
    return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, name: x})


def _scaled(site: Site, x: Tensor, axis: int, columns: Tensor, fill: Tensor | None) -> Tensor:
    """What a writer is given, times a number per column, or per example and column, and the rest from the fill."""
    if columns.dim() == 3 or axis != x.dim() - 1:
        shape = [1] * x.dim()
        shape[axis] = columns.shape[-1]
        if columns.dim() == 3:
            columns = per_row(columns[:, 0], x, site.name)
            shape[0] = x.shape[0]
        columns = columns.view(shape)
    if fill is None:
        return x * columns
    shape = [1] * x.dim()
    shape[axis] = -1
    return x * columns + (1 - columns) * fill.to(x.device, x.dtype).view(shape)


def column_axis(writer: nn.Module, x: Tensor) -> int:
    """Which axis of what a writer is given has its columns."""
    if isinstance(writer, Padded):
        return int(writer.feature_axis) % x.dim()
    return 1 if isinstance(writer, nn.Conv1d | nn.Conv2d) else x.dim() - 1


def _folds(site: Site, x: Tensor) -> bool:
    """Whether it is cheaper to gate the columns of the weight than the activations: it trains, and is the smaller one.

    The gradient of the weight is computed anyway then, and that of the gates comes from it.
    """
    weight = site.writer._parameters.get("weight") if type(site.writer) is nn.Linear else None
    if weight is None or is_distributed(weight):
        return False
    return weight.requires_grad and torch.is_grad_enabled() and x.numel() > weight.numel()


def _columns(site: Site, gate: Tensor) -> Tensor:
    """A number per input column of the writer, from one per unit, or as it is."""
    return gate if gate.shape[-1] == len(site) * site.width else gate.repeat_interleave(site.width, -1)


def _shadow(site: Site, gate_source: Tensor | Live, *_: Any) -> None:
    """Pre-hook of an attention that takes its writer's weight without calling it: gate the columns of the weight instead."""
    weight, gate = site.writer.weight, _now(gate_source)
    columns = _columns(site, gate.to(weight.device, weight.dtype))
    own = site.writer.__dict__
    own.setdefault(SHADOWED, own.get("weight"))  # what stood there before us, as old weight norms have it
    own["weight"] = weight * columns  # found before the parameter of the same name, which stays


def _unshadow(site: Site, *_: Any) -> None:
    own = site.writer.__dict__
    if SHADOWED in own:
        before = own.pop(SHADOWED)
        own.pop("weight", None)
        if before is not None:
            own["weight"] = before


def per_row(gates: Tensor, x: Tensor, name: str) -> Tensor:
    """Gates per example -> gates per row of `x`, which may hold several rows (windows, beams, tokens) per example."""
    rows, remainder = divmod(x.shape[0], gates.shape[0])
    if remainder or not rows:
        raise BadPlan(
            f"{name} runs on {x.shape[0]} rows, which gates for {gates.shape[0]} examples do not divide evenly."
        )
    return gates.repeat_interleave(rows, 0)


def _mix(
    stack: Stack,
    gate_source: Tensor | Live,
    position: int,
    fill: _Counted,
    block: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: Any,
) -> Any:
    """Forward hook of a layer: between its input (gate 0) and its output (gate 1), exactly at both ends."""
    gate = _now(gate_source)[..., position]
    before, after = handed_on(stack, block, args, kwargs, output)
    weight = gate.to(after.device, after.dtype)
    if isinstance(fill.source, StandIn):
        per_copy = weight[..., None] if gate.dim() == 2 else weight.view(1)  # (copies, 1, 1) or (1,)
        values, weight = placed(fill.source, after - before, per_copy, fill.call())
    elif gate.dim() == 2:
        weight = per_row(weight, after, stack.name).view(-1, *[1] * (after.dim() - 1))
    mixed = torch.lerp(before, after, weight.expand_as(after) if weight.dim() else weight)
    if isinstance(fill.source, Tensor):
        values = fill.source.to(after.device, after.dtype)
    if fill.source is not None:
        mixed = mixed + (1 - weight) * values
    return mixed if isinstance(output, Tensor) else type(output)((mixed, *output[1:]))


def handed_on(
    stack: Stack, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> tuple[Tensor, Tensor]:
    """The residual stream before and after a layer; `Refused` where it does not hand on what it takes in."""
    before = args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values())))
    after = output if isinstance(output, Tensor) else output[0] if isinstance(output, tuple | list) else None
    if type(output) not in (tuple, list):
        after = output if isinstance(output, Tensor) else None
    if not isinstance(before, Tensor) or not isinstance(after, Tensor) or before.shape != after.shape:
        raise Refused(
            f"A layer of {stack.name} ({type(block).__name__}) does not hand on what it takes in: it cannot be masked."
        )
    return before.to(after.device), after  # a layer may be on another device than the one before it
