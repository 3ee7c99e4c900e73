"""The hooks of `cached`: what heads, neurons and layers compute in one pass, noted down as it comes by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Refused
from ..evaluation.evaluator import device_of
from ..importance.attention_parts import AttentionParts, unreadable, watched
from ..model.anatomy import Anatomy, Site, Stack
from ..model.distributed.device_maps import weights_present
from ..model.distributed.refusals import not_tensor_parallel
from ..model.equivalence import evaluating
from ..model.gates import applied
from ..model.matrices import Padded, index_on
from ..model.tensor_trees import mapped, tensors

INSIDE = ("patterns", "value_weighted_patterns", "queries", "keys", "values")  # what `watched` sees
PROJECTED = {"projected_queries": 0, "projected_keys": 1}  # and which of the readers' tables they are
SHARED = ("keys", "values", "projected_keys")  # one for all query heads of a group
WRITTEN = ("head_outputs", "attention_outputs", "neurons", "mlp_outputs")  # what is seen at writers
Chosen = dict[str, dict[str, tuple[int, ...]]]  # by kind of unit: site or stack -> original indices


@dataclass(eq=False)
class _Notes:
    """What has come by: for each kind and site (or layer) a tensor for every run of it."""

    kinds: frozenset[str]
    seen: dict[tuple[str, str], list[Tensor]] = field(default_factory=dict)
    parts: dict[str, list[AttentionParts]] = field(default_factory=dict)
    inputs: dict[str, list[Tensor]] = field(default_factory=dict)  # of the writers of attentions

    def note(self, kind: str, name: str, tensor: Tensor) -> None:
        self.seen.setdefault((kind, name), []).append(tensor.detach().clone())


def recorded(
    root: nn.Module, anatomy: Anatomy, batch: Any, kinds: Iterable[str], chosen: Chosen
) -> dict[tuple[str, str], list[Tensor]]:
    """One pass with hooks: tensors by kind and site (or layer), one for every run of it."""
    not_tensor_parallel(root, "activations are not recorded")
    notes = _Notes(frozenset(kinds))
    with ExitStack() as stack:
        stack.enter_context(evaluating(root))
        stack.enter_context(torch.no_grad())
        stack.enter_context(applied(root, anatomy, {}))
        for name, indices in (chosen["head"] | chosen["neuron"]).items():
            site = anatomy[name]
            assert isinstance(site, Site)
            for handle in _hooks(notes, site, indices):
                stack.callback(handle.remove)
        for name, indices in chosen["layer"].items():
            layers = anatomy[name]
            assert isinstance(layers, Stack)
            for handle in _layer_hooks(notes, layers, indices):
                stack.callback(handle.remove)
        if notes.kinds & set(INSIDE):
            sites = [site for site in anatomy.heads if site.name in chosen["head"]]

            def see(site: Site, parts: AttentionParts) -> None:
                notes.parts.setdefault(site.name, []).append(parts)

            stack.enter_context(watched(root, sites, see))
        run(root, batch)
    if "head_outputs" in notes.kinds:
        for name, given in notes.inputs.items():
            site = anatomy[name]
            assert isinstance(site, Site)
            outputs = [head_outputs(site, x, site.positions(chosen["head"][name])) for x in given]
            notes.seen["head_outputs", name] = outputs
    for name, runs in notes.parts.items():
        site = anatomy[name]
        assert isinstance(site, Site)
        for number, parts in enumerate(runs):
            _inside(notes, site, chosen["head"][name], parts, number)
    return notes.seen


def run(root: nn.Module, batch: Any) -> Any:
    """What the model gives for a dictionary, a tuple or a tensor, on its own device."""
    batch = mapped(batch, lambda tensor: tensor.to(device_of(root)).clone())
    if isinstance(batch, Mapping):
        return root(**batch)
    return root(*batch) if isinstance(batch, tuple | list) else root(batch)


def groups_of(site: Site, indices: Iterable[int]) -> list[int]:
    """The key-value heads that query heads with these original indices use, in order."""
    return sorted({site.kv_of[position] for position in site.positions(indices)})


def writer_input(site: Site, args: Any, kwargs: Any) -> Tensor:
    """What a writer is given for the units that are there, with the columns last."""
    x = args[0] if args else next(iter(kwargs.values()))
    x = x.movedim(1, -1) if isinstance(site.writer, nn.Conv1d | nn.Conv2d) else x
    if isinstance(site.writer, Padded):  # it picks its inputs itself
        x = x.index_select(-1, index_on(site.writer.places, x.device))
    return x


def writer_weight(site: Site) -> Tensor:
    """The weight of a writer as (out, in), in its own number format; `Refused` where it is packed or there are several."""
    columns, weight = site.columns, None
    if columns is not None:
        with weights_present(columns.owner):
            weight = getattr(columns.owner, columns.weight).detach()
    if columns is None or weight is None or weight.numel() != columns.shape[0] * columns.shape[1]:
        raise Refused(
            f"The output matrix of {site.name} ({type(site.writer).__name__}) is packed, quantised or one of several that a "
            "router picks, so what each unit writes cannot be told."
        )
    return weight.movedim(columns.row_axis, 0).reshape(columns.shape)


def head_outputs(site: Site, x: Tensor, positions: Sequence[int]) -> Tensor:
    """What heads write, (..., heads, length, hidden), from what their writer is given, (..., length, columns)."""
    weight = writer_weight(site).to(x.dtype)
    blocks = weight.unflatten(1, (len(site), site.width))[:, list(positions)]  # (hidden, heads, width)
    given = x.unflatten(-1, (len(site), site.width))[..., list(positions), :].transpose(
        -3, -2
    )  # (..., heads, length, width)
    return given @ blocks.permute(1, 2, 0)


def _hooks(notes: _Notes, site: Site, indices: Sequence[int]) -> Iterable[Any]:
    """Hooks on the writer and the readers of a site."""
    positions = site.positions(indices)

    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        x = writer_input(site, args, kwargs).detach()
        if site.kind == "neuron" and "neurons" in notes.kinds:
            notes.note("neurons", site.name, x[..., positions])
        if site.kind == "head" and notes.kinds & {"head_outputs", *INSIDE}:
            notes.inputs.setdefault(site.name, []).append(x.clone())  # multiplied later: here it would be watched

    def after(_: nn.Module, __: Any, output: Tensor) -> None:
        y = output.movedim(1, -1) if isinstance(site.writer, nn.Conv1d | nn.Conv2d) else output
        kind = "attention_outputs" if site.kind == "head" else "mlp_outputs"
        if kind in notes.kinds:
            notes.note(kind, site.name, y)

    if site.calls_writer:
        yield site.writer.register_forward_pre_hook(before, with_kwargs=True)
        yield site.writer.register_forward_hook(after)
    elif notes.kinds & set(WRITTEN):
        raise Refused(
            f"{site.name} takes the weights of its output projection without calling it, so what it writes cannot be seen."
        )
    if site.kind == "head":
        for kind in sorted(notes.kinds & set(PROJECTED)):
            yield _projection_hook(notes, site, indices, kind)


def _projection_hook(notes: _Notes, site: Site, indices: Sequence[int], kind: str) -> Any:
    """A hook on the matrix that makes queries or keys."""
    reader, table = projection(site, PROJECTED[kind])
    positions = site.positions(indices)
    if kind in SHARED:  # the first query head of each group has the rows of its key head
        positions = [list(site.kv_of).index(kv) for kv in groups_of(site, indices)]
    rows = table[positions]  # (heads, width)

    def after(_: nn.Module, __: Any, output: Tensor) -> None:
        y = output.movedim(1, -1) if isinstance(reader, nn.Conv1d | nn.Conv2d) else output
        if isinstance(reader, Padded):
            y = y.index_select(-1, index_on(reader.places, y.device))
        notes.note(kind, site.name, y[..., rows.to(y.device)].movedim(-2, -3))

    return reader.register_forward_hook(after)


def projection(site: Site, which: int) -> tuple[nn.Module, Tensor]:
    """The matrix that makes queries (0), keys (1) or values (2), and its rows for every query head, (heads, width)."""
    tables = site.tables()
    made = [(reader, table) for reader, parts in zip(site.readers, tables, strict=True) for table in parts]
    if site.spec.layout == "per_head" or len(made) != 3:
        raise Refused(
            f"{site.name} ({type(site.module).__name__}) makes queries, keys and values in several steps, as multi-head latent "
            "attention does: it has no one matrix for them."
        )
    if isinstance(site.module, nn.MultiheadAttention):
        raise Refused(
            f"{site.name} is an nn.MultiheadAttention, which never calls its input projection; ask for its queries and keys "
            "instead, which are the same: it rotates nothing."
        )
    return made[which]


def _inside(notes: _Notes, site: Site, indices: Sequence[int], parts: AttentionParts, number: int) -> None:
    """Note down what was asked for of the parts of an attention."""
    positions = site.positions(indices)
    if parts.values is None:
        if notes.kinds & set(INSIDE) != {"patterns"}:
            raise Refused(
                f"{site.name} ({type(site.module).__name__}) hands out its patterns and nothing else of what it multiplies."
            )
        notes.note("patterns", site.name, parts.patterns[:, positions])
        return
    inputs = notes.inputs.get(site.name, [])
    weighted = (parts.patterns @ parts.values).transpose(1, 2)  # (batch, queries, heads, width)
    x = inputs[number] if number < len(inputs) else None
    if x is not None and (x.numel() != weighted.numel() or parts.values.shape[-1] != site.width):
        raise unreadable(site)  # what was seen is a piece of it: windows, streams, pictures one by one
    shared = [list(site.kv_of).index(kv) for kv in groups_of(site, indices)]
    for kind in sorted(notes.kinds & set(INSIDE)):
        if kind == "value_weighted_patterns":
            notes.note(kind, site.name, _value_weighted(site, parts, weighted, x)[:, positions])
        else:
            notes.note(kind, site.name, getattr(parts, kind)[:, shared if kind in SHARED else positions])


def _value_weighted(site: Site, parts: AttentionParts, weighted: Tensor, x: Tensor | None) -> Tensor:
    """Patterns times the norm of what a head would write from each key alone: (batch, heads, queries, keys)."""
    if x is None:
        raise Refused(
            f"{site.name} never calls its output projection, so what is written of each value cannot be seen."
        )
    orders = (weighted, weighted.transpose(0, 1))  # some have the time first
    close = 1e-3 * float(x.abs().max())
    if not any(torch.allclose(w.reshape(-1), x.reshape(-1), rtol=1e-3, atol=close) for w in orders):
        raise Refused(
            f"Between the weighted values of {site.name} and its output matrix stands something else, such as a gate or a norm, "
            "so the weight of a value in what is written cannot be told."
        )
    blocks = writer_weight(site).to(parts.values.dtype).unflatten(1, (len(site), site.width))  # (hidden, heads, width)
    gram = torch.einsum("ohv,ohw->hvw", blocks, blocks)
    squares = torch.einsum("bhkv,hvw,bhkw->bhk", parts.values, gram, parts.values)
    return parts.patterns * squares.clamp(min=0).sqrt()[:, :, None]


def _layer_hooks(notes: _Notes, stack: Stack, indices: Sequence[int]) -> Iterable[Any]:
    """Hooks on layers: what they take and what they give."""

    def before(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        notes.note("residual_before", name, stream_of(args, kwargs))

    def after(name: str, _: nn.Module, __: Any, output: Any) -> None:
        notes.note("residual_after", name, next(tensors(output)))

    for index, position in zip(indices, stack.positions(indices), strict=True):
        block, name = stack.blocks[position], f"{stack.name}:{index}"
        if "residual_before" in notes.kinds:
            yield block.register_forward_pre_hook(partial(before, name), with_kwargs=True)
        if "residual_after" in notes.kinds:
            yield block.register_forward_hook(partial(after, name))


def stream_of(args: Any, kwargs: Mapping[str, Any]) -> Tensor:
    """The residual stream among the arguments of a layer."""
    given = args if args else (kwargs.get("hidden_states", next(iter(kwargs.values()), None)),)
    return next(tensors(given))
