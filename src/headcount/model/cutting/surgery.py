"""Removing units for real: `cut`. Everything is checked before the first change, and every change can be taken back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import BadPlan, CheckFailed
from ...plans import Plan, Unit
from ..anatomy import MODULE_STAMPS, STAMP, Anatomy, CutRecord, OriginalShape, Site, Stack, Units
from ..architectures import ModuleSpec
from ..discovery import find, unwrap
from ..equivalence import block_outputs, differs, first_difference, run
from ..gates import applied, gates_of
from ..matrices import Bypass, Matrix, Padded, features, take
from ..multihead import OpenMultiheadAttention, closed_attentions
from . import biases, layers, per_head, refits, rules
from .attention_kernel import KERNEL, register_kernel
from .kv_groups import KVGroups, layout_rows, original_kv, share, sources, survivors, used_rows
from .per_head import ConfigView, Counts
from .transaction import Transaction


def cut(
    model: nn.Module,
    units: Units,
    *,
    check: Any = None,
    scale: Mapping[str, Tensor] | None = None,
    fill: Mapping[str, Tensor] | None = None,
    columns: Mapping[str, Tensor] | None = None,
    bias: Mapping[str, Tensor] | None = None,
    dry_run: bool = False,
    specs: Iterable[ModuleSpec] = (),
) -> Plan:
    """Remove units from the model, in place; returns the plan that was carried out.

    The cut model computes what the model computes with these units masked. `check` is a batch on which this is proved
    on the spot: on any difference the model is put back bit for bit and `CheckFailed` says where they part. `scale`
    maps site names to gates `(units,)`, folded into the writers of the units that stay. `fill` maps site names to a number
    per column of the writer: what stands in for the units that are gone, as in `masked(fill=...)`, goes into the bias of the
    writer, which gets one where it has none. `columns` are other numbers for the columns that stay, and `bias` is added to the
    bias in the same way: the cut model then computes what the masked one does with these columns swapped in. What cannot be
    cut exactly is `Refused` with its reason, before anything is changed.

    Args:
        model: The model, which is changed in place.
        units: Units such as `"3:7 5:0-3"`, `(3, 7)` or `{3: [7]}`, a plan, or a mask of layers x heads (see `Anatomy.plan`).
        check: A batch on which the cut model is compared with the masked one.
        scale: Gates `(units,)` by site name, folded into the weights that stay.
        fill: What stands in for units that go, by site name: a number per column, folded into the bias (their means).
        columns: Refitted columns by site name: (rows of the writer, columns that stay).
        bias: What is added to the biases of writers, by site name: (rows of the writer,).
        dry_run: Look for reasons to refuse, and change nothing.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The plan that was carried out.

    Examples:
        >>> model = hc.load("my-model")
        >>> plan = hc.cut(model, "0:1 2:0-3 4.mlp:0-99")
        >>> len(plan)
        105
        >>> model.bert.encoder.layer[0].attention.output.dense.weight.shape
        torch.Size([192, 168])
    """
    root, rows = unwrap(model), tuple(specs)
    anatomy = find(root, rows)
    plan = anatomy.plan(units)
    scales = _checked_scales(anatomy, scale or {})
    changes = Changes(
        scales,
        biases.checked_fill(anatomy, fill or {}),
        refits.checked_columns(anatomy, plan, columns or {}),
        refits.checked_bias(anatomy, bias or {}),
    )
    if both := sorted(set(scales) & set(changes.columns)):
        raise BadPlan(f"{both[0]} is given a scale and columns: multiply the columns by the scale, and leave it out.")
    rules.refuse(root, anatomy, plan, (*scales, *changes.columns, *changes.bias))
    biases.refuse_biases(anatomy, plan, changes.fill, changes.bias)
    if dry_run:
        return plan
    gates = gates_of(anatomy, plan)
    for name, values in scales.items():
        gates[name] = values * gates.get(name, torch.ones(len(values)))

    def masked_model() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(applied(root, anatomy, gates, changes.fill))
        stack.enter_context(refits.refitted(anatomy, plan, changes.columns, changes.bias))
        return stack

    want = None
    if check is not None:
        with masked_model():
            want = run(model, check)
    transaction = Transaction()
    try:
        with torch.device("cpu"):  # indices are made here, also while a model is being born on no device at all
            _carry_out(transaction, root, anatomy, plan, changes, rows)
        if want is not None and (difference := differs(want, run(model, check))):
            places = block_outputs(model, check, rows)
            transaction.undo()
            with masked_model():
                where = first_difference(block_outputs(model, check, rows), places)
            raise CheckFailed(f"The cut model differs from the masked one by {difference}, {where}; nothing was cut.")
    except BaseException:
        transaction.undo()
        raise
    return plan


def removed(model: nn.Module) -> Plan:
    """Everything that has been cut from this model so far, by original names; an empty plan if nothing has.

    Args:
        model: A model, cut or not.

    Returns:
        The plan of all cuts so far.

    Examples:
        >>> model = hc.load("my-model")
        >>> plan = hc.cut(model, "0:1 0:5")
        >>> sorted(str(unit) for unit in hc.removed(model))
        ['0:1', '0:5']
    """
    units: set[Unit] = set()
    for module in unwrap(model).modules():
        for name in (STAMP, *MODULE_STAMPS.values()):
            stamp: CutRecord | None = getattr(module, name, None)
            if stamp is not None:
                units |= {Unit(stamp.name, index) for index in set(range(stamp.of)) - set(stamp.ids)}
    return Plan(frozenset(units))


# -- before the first change ---------------------------------------------------------------------------------------------


class Changes(NamedTuple):
    """What a cut changes beside taking units away, by site name: numbers that fold into weights and biases."""

    scale: Mapping[str, Tensor]  # a number per unit
    fill: Mapping[str, Tensor]  # a number per column
    columns: Mapping[str, Tensor]  # (rows, columns that stay)
    bias: Mapping[str, Tensor]  # a number per row

    def at(self, name: str) -> bool:
        """Whether a site changes though it may lose nothing."""
        return name in self.scale or name in self.columns or name in self.bias

    def of_bias(self, site: Site, gone: Sequence[int]) -> Tensor | None:
        """What is added to the bias of a site's writer, if anything."""
        change = biases.written(site, gone, self.fill[site.name]) if gone and site.name in self.fill else None
        own = self.bias.get(site.name)
        if own is None or change is None:
            return change if own is None else own.to(site.writer.weight.device)
        return change + own.to(change)


def _checked_scales(anatomy: Anatomy, scale: Mapping[str, Tensor]) -> dict[str, Tensor]:
    out = {}
    for name, values in scale.items():
        site, values = anatomy[name], torch.as_tensor(values).detach().float().cpu()
        if isinstance(site, Stack) or values.shape != (len(site),):
            raise BadPlan(f"A scale for {name} is one number for each of its {len(site)} units; layers have none.")
        out[site.name] = values
    return out


# -- the changes --------------------------------------------------------------------------------------------------------


def _carry_out(
    transaction: Transaction,
    root: nn.Module,
    anatomy: Anatomy,
    plan: Plan,
    changes: Changes,
    rows: tuple[ModuleSpec, ...],
) -> None:
    _stamp_all(transaction, anatomy)
    if any(site.kind == "head" and isinstance(site.module, nn.MultiheadAttention) for site in anatomy):
        for attention in closed_attentions(root):
            transaction.set_class(attention, OpenMultiheadAttention)
        for module in root.modules():
            if isinstance(module, nn.TransformerEncoder):
                transaction.set(module, "use_nested_tensor", False)
    inside = {id(module) for block in layers.deleted_blocks(anatomy, plan) for module in block.modules()}
    chosen = plan.by_site()
    parents = {id(child): (module, name) for module in root.modules() for name, child in module.named_children()}
    given = list[str]()  # the sites whose writers get a bias
    for site in anatomy:
        if (site.name in chosen or changes.at(site.name)) and id(site.module) not in inside:
            gone = site.positions(chosen.get(site.name, ()))
            change = changes.of_bias(site, gone)
            keep = survivors(site, gone)
            _cut_site(transaction, root, site, keep, changes, parents)
            if change is not None:
                parent, name = parents.get(id(site.writer), (None, ""))
                writer = site.writer if parent is None else getattr(parent, name)
                given += [site.name] * biases.add_to_bias(transaction, writer, change)
    left = {site.name for site in anatomy if id(site.module) not in inside}
    for site in anatomy:
        transaction.set(site.module, MODULE_STAMPS[site.kind], getattr(site.writer, STAMP))
    before = _config_values(root)
    for stack in anatomy.stacks:
        if stack.name in chosen:
            drop = set(stack.positions(chosen[stack.name]))
            ids = tuple(index for position, index in enumerate(stack.ids) if position not in drop)
            layers.delete(transaction, root, stack, drop)
            transaction.set(stack.container, STAMP, CutRecord(stack.name, ids, stack.of))
    _write_record(transaction, root, plan.why, rows, before, given, left)


def _stamp_all(transaction: Transaction, anatomy: Anatomy) -> None:
    """Write every site's name and original indices on it, because paths and counts are about to change."""
    for site in anatomy:
        if not hasattr(site.writer, STAMP):
            transaction.set(site.writer, STAMP, CutRecord(site.name, site.ids, site.of, site.width))
    for stack in anatomy.stacks:
        if not hasattr(stack.container, STAMP):
            transaction.set(stack.container, STAMP, CutRecord(stack.name, stack.ids, stack.of))


def _cut_site(
    transaction: Transaction,
    root: nn.Module,
    site: Site,
    keep: tuple[int, ...],
    changes: Changes,
    parents: dict[int, tuple[nn.Module, str]],
) -> None:
    """Cut one site down to the units at the positions in `keep`, in its cut mode, and write on it what it was."""
    writer = site.columns
    assert writer is not None
    index = torch.tensor(keep, dtype=torch.long)
    columns = torch.arange(len(site) * site.width).view(-1, site.width)[index].flatten()
    scale, refitted = changes.scale.get(site.name), changes.columns.get(site.name)
    tensors = writer.columns(columns, None if scale is None else scale[index].repeat_interleave(site.width))
    if refitted is not None:
        tensors = writer.with_numbers(tensors, refitted)
    stamp = CutRecord(site.name, tuple(site.ids[position] for position in keep), site.of, site.width)
    home = site.writer
    if len(keep) == len(site):
        replace_tensors(transaction, writer, tensors)
        return
    if rules.is_padded(site, keep):
        home = _pad(transaction, site, keep, columns, tensors, parents)
        full_shape = OriginalShape(tuple(site.ids), tuple(site.kv_of), site.kv_heads, site.widths)
        transaction.set(home, STAMP, replace(stamp, whole=site.whole or full_shape))
        return
    groups = share(site, keep)
    ids = original_kv(site)
    places = {origin: place for place, origin in enumerate(ids)}
    # an empty attention runs one phantom head
    take_per_head(transaction, site, groups.keep or (0,), tuple(places[kv] for kv in groups.kv_ids) or (0,))
    if keep:
        for reader, source in zip(site.matrices, sources(site, groups), strict=True):
            assert reader is not None
            replace_tensors(transaction, reader, reader.rows(source))
        replace_tensors(transaction, writer, tensors)
    else:
        home = _empty(transaction, site, writer, parents)
    if site.kind == "head":
        update_counts(transaction, root, site, groups, tuple(site.ids[position] for position in keep) or (0,))
    for name in per_head.NEURON_COUNTS if site.kind == "neuron" else ():
        if type(site.module.__dict__.get(name)) is int and site.module.__dict__[name] == len(site):
            transaction.set(site.module, name, max(1, len(keep)))
    kv_of = groups.kv_of if groups.indexed else None
    transaction.set(home, STAMP, replace(stamp, kv_of=kv_of, kv_ids=groups.kv_ids))


def take_per_head(transaction: Transaction, site: Site, heads: Sequence[int], kv_heads: Sequence[int]) -> None:
    """Make what the attention has per head, or per kv head, besides its matrices that of the heads at these positions."""
    for claim in per_head.per_head_tensors(site):
        chosen, had = (heads, len(site)) if claim.per == "head" else (kv_heads, site.kv_heads)
        if claim.name is None:
            children, first = list(claim.owner.children()), {p: n for n, p in reversed([*enumerate(chosen)])}
            own = {
                str(n): children[p] if first[p] == n else copy.deepcopy(children[p])  # one each, where one comes twice
                for n, p in enumerate(chosen)
            }
            transaction.set_children(claim.owner, own)
            continue
        tensor = getattr(claim.owner, claim.name).detach()
        entries = torch.arange(tensor.shape[claim.axis]).view(had, -1)[list(chosen)].flatten()
        transaction.set_tensor(claim.owner, claim.name, take(tensor, entries, claim.axis))
        _write_features(transaction, claim.owner)


def _pad(
    transaction: Transaction,
    site: Site,
    keep: tuple[int, ...],
    columns: Tensor,
    tensors: dict[str, Tensor],
    parents: dict[int, tuple[nn.Module, str]],
) -> nn.Module:
    """Replace the matrices of a site by padded ones; returns the new writer."""
    for reader, rows in zip(site.matrices, used_rows(site, keep), strict=True):
        assert reader is not None
        parent, name = parents[id(reader.owner)]
        transaction.set(
            parent, name, Padded(reader, reader.rows(rows), *_places(reader.owner, rows, reader.shape[0]), True)
        )
    writer = site.columns
    assert writer is not None
    parent, name = parents[id(site.writer)]
    padded = Padded(writer, tensors, *_places(site.writer, columns, writer.shape[1]), False)
    transaction.set(parent, name, padded)
    return padded


def _places(module: nn.Module, chosen: Tensor, of: int) -> tuple[tuple[int, ...], int]:
    """Where the chosen rows or columns are in the original matrix, and how large that was."""
    if not isinstance(module, Padded):
        return tuple(chosen.tolist()), of
    return tuple(module.places[position] for position in chosen.tolist()), module.of


def replace_tensors(transaction: Transaction, matrix: Matrix, tensors: dict[str, Tensor]) -> None:
    """Other tensors for a matrix, and what its module says about its size."""
    for name, tensor in tensors.items():
        transaction.set_tensor(matrix.owner, name, tensor)
    _write_features(transaction, matrix.owner)


def _write_features(transaction: Transaction, module: nn.Module) -> None:
    for name, size in features(module).items():
        transaction.set(module, name, size)


def _empty(
    transaction: Transaction, site: Site, writer: Matrix, parents: dict[int, tuple[nn.Module, str]]
) -> nn.Module:
    """Replace the matrices of a site that loses every unit; returns the new writer."""
    none = torch.zeros(0, dtype=torch.long)
    single_group = KVGroups((0,), (0,), (0,))
    for reader, rows in zip(site.matrices, layout_rows(site, single_group), strict=True):
        assert reader is not None
        if reader.owner is site.module:
            replace_tensors(transaction, reader, reader.rows(none))
        else:
            parent, name = parents[id(reader.owner)]
            transaction.set(parent, name, Bypass(reader, reader.rows(none), rows))
    parent, name = parents[id(site.writer)]
    bypass = Bypass(writer, writer.columns(none), writer.shape[0])
    transaction.set(parent, name, bypass)
    return bypass


def update_counts(
    transaction: Transaction, root: nn.Module, site: Site, groups: KVGroups, keep: tuple[int, ...]
) -> None:
    """Make true what the attention and its parts say about heads, and filter what reaches it from outside per head.

    `site` is what the attention was, `groups` how its heads share key-value heads now; `keep` are their original indices.
    """
    module = site.module
    heads, kv = max(1, len(groups.keep)), max(1, len(groups.kv_ids))
    makes_bias = per_head.makes_bias_for_all(module)
    outside = per_head.outside_biases(module, root)
    if outside and not makes_bias:
        _filter_bias(transaction, site, outside, keep)
    counts = Counts(heads, kv, site.width, 1 if groups.indexed else heads // kv)
    for owner, name, value in per_head.stale_numbers(site, counts):
        # an attention that makes the bias for the layers above makes it for all heads; `attend` picks its own
        if not (makes_bias and owner is module and name in per_head.HEAD_COUNTS):
            transaction.set(owner, name, value)
    own: dict[str, Any] = {}
    config = getattr(module, "config", None)
    base = config.base if isinstance(config, ConfigView) else config
    if per_head.reads_counts_from_config(module):
        own |= {name: n for name, n in counts.named().items() if name in per_head.CONFIG_COUNTS and hasattr(base, name)}
    if groups.indexed or makes_bias:
        register_kernel()
        own["_attn_implementation"] = KERNEL
        transaction.set(module, "headcount_kv_of", groups.kv_of if groups.indexed else None)
        transaction.set(module, "headcount_bias_of", keep if makes_bias else None)
    elif getattr(module, "headcount_kv_of", None) is not None:
        transaction.set(module, "headcount_kv_of", None)  # uneven before, and even again: its own code repeats them
    if own or isinstance(config, ConfigView):
        transaction.set(module, "config", ConfigView(base, **own) if own else base)


def _filter_bias(
    transaction: Transaction, site: Site, arguments: tuple[per_head.Outside, ...], keep: tuple[int, ...]
) -> None:
    hooks = site.module._forward_pre_hooks
    earlier = [key for key, hook in hooks.items() if isinstance(hook, partial) and hook.func is per_head.slice_bias]
    if earlier:  # an earlier cut's filter: this one replaces it
        transaction.set(
            site.module, "_forward_pre_hooks", type(hooks)((k, v) for k, v in hooks.items() if k not in earlier)
        )
    hook = partial(per_head.slice_bias, arguments, keep, site.of)
    transaction.add_hook(site.module.register_forward_pre_hook(hook, with_kwargs=True))


# -- the record in the config -------------------------------------------------------------------------------------------


def _config_values(root: nn.Module) -> dict[str, Any]:
    config = getattr(root, "config", None)
    return _flat(config) if hasattr(config, "to_dict") else {}


def _flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every plain value of a config and of the configs inside it, by dotted name."""
    out: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name.startswith("_") or name == "headcount":
            continue
        if hasattr(value, "to_dict"):
            out |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | list | tuple) and not isinstance(value, bool):
            out[prefix + name] = list(value) if isinstance(value, tuple) else value
    return out


def _write_record(
    transaction: Transaction,
    root: nn.Module,
    why: str,
    rows: tuple[ModuleSpec, ...],
    before: dict[str, Any],
    given: list[str],
    left: set[str],
) -> None:
    """Write down what has been removed, in the config where there is one: any folder saved from the model can be loaded."""
    previous_record = record(root)
    after = _config_values(root)
    changed = {name: value for name, value in before.items() if after.get(name) != value}
    new_record = {
        **Plan(removed(root).units, why or previous_record["why"]).to_json(),
        "dialects": previous_record["dialects"] or [row.to_json() for row in rows],
        "config": {**changed, **previous_record["config"]},
    }
    with_bias = [name for name in (*biases.recorded(previous_record), *given) if name in left]
    if with_bias:
        new_record[biases.RECORDED] = with_bias
    config = getattr(root, "config", None)
    transaction.set(config if hasattr(config, "to_dict") else root, "headcount", new_record)


def record(model: nn.Module) -> dict[str, Any]:
    """What has been done to this model, as it is written into its config: the plan, its rows, the config's old counts."""
    root = unwrap(model)
    config = getattr(root, "config", None)
    written = getattr(config if hasattr(config, "to_dict") else root, "headcount", None)
    return written or {**Plan().to_json(), "dialects": [], "config": {}}
