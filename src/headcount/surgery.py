"""Removing units for real: `cut`. Everything is checked before the first change, and every change can be taken back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import companions, layers, rules
from .anatomy import STAMP, Anatomy, Kept, Site, Stack, find, unwrap
from .companions import KERNEL, ConfigView, Counts
from .dialects import LAYOUTS, Dialect
from .errors import BadPlan, CheckFailed, Refused
from .gates import gated, gates_of
from .journal import Journal
from .linear import Bypass, Matrix, Padded, features, take
from .multihead import OpenMultiheadAttention, closed_attentions
from .plans import Plan, Unit

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
NOT_COMPARED = ("past_key_values", "attentions", "cache")  # they have one entry per head, so a cut changes their shape


def cut(
    model: nn.Module,
    what: str | Unit | Plan | Iterable[str | Unit],
    *,
    check: Any = None,
    scale: Mapping[str, Tensor] | None = None,
    dialects: Iterable[Dialect] = (),
) -> Plan:
    """Remove units from the model, in place; returns the plan that was carried out.

    The cut model computes what the model computes with these units closed. `check` is a batch on which this is proved
    on the spot: on any difference the model is put back bit for bit and `CheckFailed` says where they part. `scale`
    maps site names to gates `(units,)`, folded into the writers of the units that stay. What cannot be cut exactly
    is `Refused` with its reason, before anything is changed.
    """
    root, rows = unwrap(model), tuple(dialects)
    anatomy = find(root, rows)
    plan = anatomy.plan(what)
    scales = _checked_scales(anatomy, scale or {})
    _refuse(root, anatomy, plan, scales)
    gates = gates_of(anatomy, plan)
    for name, values in scales.items():
        gates[name] = values * gates.get(name, torch.ones(len(values)))
    want = None
    if check is not None:
        with gated(model, gates, dialects=rows):
            want = run(model, check)
    journal = Journal()
    try:
        with torch.device("cpu"):  # indices are made here, also while a model is being born on no device at all
            _carry_out(journal, root, anatomy, plan, scales, rows)
        if want is not None and (difference := _differs(want, run(model, check))):
            places = _block_outputs(model, check, rows)
            journal.undo()
            with gated(model, gates, dialects=rows):
                where = _first_difference(_block_outputs(model, check, rows), places)
            raise CheckFailed(f"The cut model differs from the closed one by {difference}, {where}; nothing was cut.")
    except BaseException:
        journal.undo()
        raise
    return plan


def removed(model: nn.Module) -> Plan:
    """Everything that has been cut from this model so far, by original names; an empty plan if nothing has."""
    units: set[Unit] = set()
    for module in unwrap(model).modules():
        kept: Kept | None = getattr(module, STAMP, None)
        if kept is not None:
            units |= {Unit(kept.name, index) for index in set(range(kept.of)) - set(kept.ids)}
    return Plan(frozenset(units))


class Price(NamedTuple):
    """What cutting one site, or deleting layers of one stack, does to the model."""

    name: str
    manner: str  # "slim", "even", "indexed", "written out", "padded", "empty" or "deleted": see `docs/architecture.md`
    units: int  # units before
    left: int  # units after
    parameters: int  # parameters that go
    kv_heads: int  # key-value heads per token in the cache before; 0 for what has no cache
    kv_left: int  # and after


def prices(
    model: nn.Module, what: str | Unit | Plan | Iterable[str | Unit], *, dialects: Iterable[Dialect] = ()
) -> list[Price]:
    """What `cut` would do, site by site, counted without cutting: parameters, and what the cache of keys and values holds."""
    anatomy = find(model, dialects)
    plan = anatomy.plan(what)
    _refuse(unwrap(model), anatomy, plan, {})
    inside = {id(module) for block in _deleted_blocks(anatomy, plan) for module in block.modules()}
    out = []
    for name, indices in plan.by_site().items():
        part = anatomy[name]
        if isinstance(part, Stack):
            out.append(_stack_price(part, part.positions(indices)))
        elif id(part.module) not in inside:
            out.append(_site_price(part, _survivors(part, part.positions(indices))))
    return out


def parameters_removed(
    model: nn.Module, what: str | Unit | Plan | Iterable[str | Unit], *, dialects: Iterable[Dialect] = ()
) -> int:
    """How many parameters `cut` would remove."""
    return sum(price.parameters for price in prices(model, what, dialects=dialects))


def _stack_price(stack: Stack, drop: list[int]) -> Price:
    gone = sum(p.numel() for position in drop for p in stack.blocks[position].parameters())
    gone -= layers.moved_parameters(stack, _survivors(stack, drop))
    return Price(stack.name, "deleted", len(stack), len(stack) - len(drop), gone, 0, 0)


def _site_price(site: Site, keep: tuple[int, ...]) -> Price:
    sharing, padded = _sharing(site, keep), rules.is_padded(site)
    new_rows = [len(rows) for rows in _used_rows(site, keep)] if padded else _layout_rows(site, sharing)
    gone = sum(
        m.parameters_per("row") * (m.shape[0] - rows) for m, rows in zip(site.matrices, new_rows, strict=True) if m
    )
    gone += site.columns.parameters_per("column") * (len(site) - len(keep)) * site.width if site.columns else 0
    for claim in [] if padded else companions.claims(site):
        had, has = (len(site), len(keep)) if claim.per == "head" else (site.kv_heads, len(sharing.kv_ids))
        size = 1 if claim.name is None else getattr(claim.owner, claim.name).shape[claim.axis] // had
        gone += claim.parameters * size * (had - max(1, has))
    before = site.kv_heads if site.kind == "head" else 0
    after = before if padded else max(1, len(sharing.kv_ids)) if before else 0
    return Price(site.name, _manner(site, sharing, padded), len(site), len(keep), gone, before, after)


def _manner(site: Site, sharing: Sharing, padded: bool) -> str:
    if padded or not sharing.keep:
        return "padded" if padded else "empty"
    if site.kind == "neuron" or site.kv_heads == len(site):
        return "slim"
    return "indexed" if sharing.indexed else "written out" if len(set(sharing.kv_ids)) < len(sharing.kv_ids) else "even"


# -- before the first change ---------------------------------------------------------------------------------------------


def _checked_scales(anatomy: Anatomy, scale: Mapping[str, Tensor]) -> dict[str, Tensor]:
    out = {}
    for name, values in scale.items():
        site, values = anatomy[name], torch.as_tensor(values).detach().float().cpu()
        if isinstance(site, Stack) or values.shape != (len(site),):
            raise BadPlan(f"A scale for {name} is one number for each of its {len(site)} units; layers have none.")
        out[site.name] = values
    return out


def _refuse(root: nn.Module, anatomy: Anatomy, plan: Plan, scales: Mapping[str, Tensor]) -> None:
    """Raise `Refused` for the first thing in the plan that cannot be done exactly."""
    shared = Counter(id(p) for _, p in root.named_parameters(remove_duplicate=False))
    for name in (*plan.by_site(), *scales):
        part = anatomy[name]
        reason = rules.refusal(part, anatomy, root) if name in plan.by_site() else None
        if isinstance(part, Stack):
            if layers.last_attention_goes(part, anatomy.sites, set(part.positions(plan.by_site()[name]))):
                reason = "at least one layer with attention must stay"
        elif part.columns is not None:
            held = [p for m in (*part.readers, part.writer) for p in m.parameters(recurse=False)]
            if any(shared[id(p)] > 1 for p in held):
                reason = "one of its matrices is tied to another module"
            if any(p.is_meta for p in held) and hasattr(part.writer, "_hf_hook"):
                reason = "its weights are offloaded; load the model without offloading to cut it"
        if reason is not None:
            raise Refused(f"{name} cannot be cut exactly: {reason}; it can still be closed.")


# -- the changes --------------------------------------------------------------------------------------------------------


def _carry_out(
    journal: Journal,
    root: nn.Module,
    anatomy: Anatomy,
    plan: Plan,
    scales: Mapping[str, Tensor],
    rows: tuple[Dialect, ...],
) -> None:
    _stamp_all(journal, anatomy)
    if any(site.kind == "head" and isinstance(site.module, nn.MultiheadAttention) for site in anatomy):
        for attention in closed_attentions(root):
            journal.set_class(attention, OpenMultiheadAttention)
        for module in root.modules():
            if isinstance(module, nn.TransformerEncoder):
                journal.set(module, "use_nested_tensor", False)
    inside = {id(module) for block in _deleted_blocks(anatomy, plan) for module in block.modules()}
    chosen = plan.by_site()
    parents = {id(child): (module, name) for module in root.modules() for name, child in module.named_children()}
    for site in anatomy:
        if (site.name in chosen or site.name in scales) and id(site.module) not in inside:
            keep = _survivors(site, site.positions(chosen.get(site.name, ())))
            _cut_site(journal, root, site, keep, scales.get(site.name), parents)
    before = _config_values(root)
    for stack in anatomy.stacks:
        if stack.name in chosen:
            drop = set(stack.positions(chosen[stack.name]))
            ids = tuple(index for position, index in enumerate(stack.ids) if position not in drop)
            layers.delete(journal, root, stack, drop)
            journal.set(stack.container, STAMP, Kept(stack.name, ids, stack.of))
    _write_record(journal, root, plan.why, rows, before)


def _stamp_all(journal: Journal, anatomy: Anatomy) -> None:
    """Write every site's name and original indices on it, because paths and counts are about to change."""
    for site in anatomy:
        if not hasattr(site.writer, STAMP):
            journal.set(site.writer, STAMP, Kept(site.name, site.ids, site.of, site.width))
    for stack in anatomy.stacks:
        if not hasattr(stack.container, STAMP):
            journal.set(stack.container, STAMP, Kept(stack.name, stack.ids, stack.of))


class Sharing(NamedTuple):
    """How surviving query heads share key-value heads: kv head of each, original id of each kv head, and whether the
    groups are uneven, so that key-value heads are repeated by an index while the model runs."""

    keep: tuple[int, ...]
    kv_of: tuple[int, ...]
    kv_ids: tuple[int, ...]
    indexed: bool = False


def _survivors(site: Site | Stack, drop: Iterable[int]) -> tuple[int, ...]:
    gone = set(drop)
    return tuple(position for position in range(len(site)) if position not in gone)


def _sharing(site: Site, keep: tuple[int, ...]) -> Sharing:
    """The cheapest exact way for the survivors to share key-value heads; it depends on who survives, not on the order of cuts.

    Even groups need nothing. Uneven ones are repeated by an index after the cache, which costs no parameter and no
    cache; where the attention does not go through transformers' attention interface, key and value rows are written
    out once for every `g` query heads, `g` being the largest number that divides all groups.
    """
    ids = _kv_ids(site)
    origins = [ids[site.kv_of[position]] for position in keep]
    sizes = Counter(origins)
    if site.kind == "neuron" or site.dialect.layout == "per_head":
        return Sharing(keep, tuple(range(len(keep))), tuple(range(len(keep))))
    group = gcd(*sizes.values()) if sizes else 1
    if len(set(sizes.values())) > 1 and _can_index(site):
        order = list(sizes)
        return Sharing(keep, tuple(order.index(origin) for origin in origins), tuple(order), indexed=True)
    kv_ids = tuple(origin for origin, size in sizes.items() for _ in range(size // group))
    return Sharing(keep, tuple(n // group for n in range(len(keep))), kv_ids)


def _kv_ids(site: Site) -> tuple[int, ...]:
    """The original kv head that each present one comes from."""
    kept: Kept | None = getattr(site.writer, STAMP, None)
    return kept.kv_ids if kept and kept.kv_ids is not None else tuple(range(site.kv_heads))


def _can_index(site: Site) -> bool:
    return site.dialect.layout in ("split", "stacked") and companions.uses_attention_interface(site.module)


def _layout_rows(site: Site, sharing: Sharing) -> list[int]:
    """How many rows each reader has in a layout with this sharing."""
    kv_of = torch.tensor(sharing.kv_of, dtype=torch.long)
    tables = LAYOUTS[site.dialect.layout](kv_of, len(sharing.kv_ids), site.widths)
    return [max((int(table.max()) + 1 for table in parts if table.numel()), default=0) for parts in tables]


def _used_rows(site: Site, keep: tuple[int, ...]) -> list[Tensor]:
    """The rows of each reader that the surviving units use, in order."""
    return [torch.cat([table[list(keep)].flatten() for table in tables]).unique() for tables in site.tables()]


def _cut_site(
    journal: Journal,
    root: nn.Module,
    site: Site,
    keep: tuple[int, ...],
    scale: Tensor | None,
    parents: dict[int, tuple[nn.Module, str]],
) -> None:
    """Cut one site down to the units at the positions in `keep`, in its manner, and write on it what it was."""
    writer = site.columns
    assert writer is not None
    index = torch.tensor(keep, dtype=torch.long)
    columns = torch.arange(len(site) * site.width).view(-1, site.width)[index].flatten()
    tensors = writer.columns(columns, None if scale is None else scale[index].repeat_interleave(site.width))
    stamp = Kept(site.name, tuple(site.ids[position] for position in keep), site.of, site.width)
    home = site.writer
    if len(keep) == len(site):
        _replace(journal, writer, tensors)
        return
    if rules.is_padded(site):
        home = _pad(journal, site, keep, columns, tensors, parents)
        journal.set(home, STAMP, replace(stamp, padded=(site.kv_heads, site.widths)))
        return
    sharing = _sharing(site, keep)
    _cut_claims(journal, site, sharing)
    if keep:
        for reader, source in zip(site.matrices, _sources(site, sharing), strict=True):
            assert reader is not None
            _replace(journal, reader, reader.rows(source))
        _replace(journal, writer, tensors)
    else:
        home = _empty(journal, site, writer, parents)
    if site.kind == "head":
        _tell_companions(journal, root, site, sharing)
    kv_of = sharing.kv_of if sharing.indexed else None
    journal.set(home, STAMP, replace(stamp, kv_of=kv_of, kv_ids=sharing.kv_ids))


def _cut_claims(journal: Journal, site: Site, sharing: Sharing) -> None:
    """Cut what the attention has per head, or per kv head, besides its matrices."""
    heads = sharing.keep or (0,)  # an empty attention runs one phantom head
    ids = _kv_ids(site)
    kv = tuple(ids.index(origin) for origin in sharing.kv_ids) or (0,)
    for claim in companions.claims(site):
        chosen, had = (heads, len(site)) if claim.per == "head" else (kv, site.kv_heads)
        if claim.name is None:
            children = list(claim.owner.children())
            journal.set_children(claim.owner, {str(n): children[position] for n, position in enumerate(chosen)})
            continue
        tensor = getattr(claim.owner, claim.name).detach()
        entries = torch.arange(tensor.shape[claim.axis]).view(had, -1)[list(chosen)].flatten()
        journal.set_tensor(claim.owner, claim.name, take(tensor, entries, claim.axis))
        _write_features(journal, claim.owner)


def _pad(
    journal: Journal,
    site: Site,
    keep: tuple[int, ...],
    columns: Tensor,
    tensors: dict[str, Tensor],
    parents: dict[int, tuple[nn.Module, str]],
) -> nn.Module:
    """Replace the matrices of a site by padded ones; returns the new writer."""
    for reader, rows in zip(site.matrices, _used_rows(site, keep), strict=True):
        assert reader is not None
        parent, name = parents[id(reader.owner)]
        journal.set(
            parent, name, Padded(reader, reader.rows(rows), *_places(reader.owner, rows, reader.shape[0]), True)
        )
    writer = site.columns
    assert writer is not None
    parent, name = parents[id(site.writer)]
    padded = Padded(writer, tensors, *_places(site.writer, columns, writer.shape[1]), False)
    journal.set(parent, name, padded)
    return padded


def _places(module: nn.Module, chosen: Tensor, of: int) -> tuple[tuple[int, ...], int]:
    """Where the chosen rows or columns are in the original matrix, and how large that was."""
    if not isinstance(module, Padded):
        return tuple(chosen.tolist()), of
    return tuple(module.places[position] for position in chosen.tolist()), module.of


def _sources(site: Site, sharing: Sharing) -> Iterator[Tensor]:
    """For each reader, the old row that every new row comes from."""
    kv_of = torch.tensor(sharing.kv_of, dtype=torch.long)
    new = LAYOUTS[site.dialect.layout](kv_of, len(sharing.kv_ids), site.widths)
    for old_tables, new_tables, count in zip(site.tables(), new, _layout_rows(site, sharing), strict=True):
        source = torch.empty(count, dtype=torch.long)
        for old, now in zip(old_tables, new_tables, strict=True):
            source[now] = old[list(sharing.keep)]
        yield source


def _replace(journal: Journal, matrix: Matrix, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        journal.set_tensor(matrix.owner, name, tensor)
    _write_features(journal, matrix.owner)


def _write_features(journal: Journal, module: nn.Module) -> None:
    for name, size in features(module).items():
        journal.set(module, name, size)


def _empty(journal: Journal, site: Site, writer: Matrix, parents: dict[int, tuple[nn.Module, str]]) -> nn.Module:
    """Replace the matrices of a site that loses every unit; returns the new writer."""
    none = torch.zeros(0, dtype=torch.long)
    one = Sharing((0,), (0,), (0,))
    for reader, rows in zip(site.matrices, _layout_rows(site, one), strict=True):
        assert reader is not None
        if reader.owner is site.module:
            _replace(journal, reader, reader.rows(none))
        else:
            parent, name = parents[id(reader.owner)]
            journal.set(parent, name, Bypass(reader, reader.rows(none), rows))
    parent, name = parents[id(site.writer)]
    bypass = Bypass(writer, writer.columns(none), writer.shape[0])
    journal.set(parent, name, bypass)
    return bypass


def _tell_companions(journal: Journal, root: nn.Module, site: Site, sharing: Sharing) -> None:
    """Make true what the attention and its parts say about heads, and filter what reaches it from outside per head."""
    module = site.module
    heads, kv = max(1, len(sharing.keep)), max(1, len(sharing.kv_ids))
    keep = tuple(site.ids[position] for position in sharing.keep) or (0,)
    makes_bias = companions.makes_bias_for_all(module)
    outside = companions.outside_biases(module, root)
    if outside and not makes_bias:
        _filter_bias(journal, site, outside, keep)
    counts = Counts(heads, kv, site.width, 1 if sharing.indexed else heads // kv)
    for owner, name, value in companions.stale_numbers(site, counts):
        # an attention that makes the bias for the layers above makes it for all heads; `attend` picks its own
        if not (makes_bias and owner is module and name in companions.HEAD_COUNTS):
            journal.set(owner, name, value)
    own: dict[str, Any] = {}
    config = getattr(module, "config", None)
    base = config.base if isinstance(config, ConfigView) else config
    if companions.reads_counts_from_config(module):
        own |= {
            name: n for name, n in counts.named().items() if name in companions.CONFIG_COUNTS and hasattr(base, name)
        }
    if sharing.indexed or makes_bias:
        companions.register_kernel()
        own["_attn_implementation"] = KERNEL
        journal.set(module, "headcount_kv_of", sharing.kv_of if sharing.indexed else None)
        journal.set(module, "headcount_bias_of", keep if makes_bias else None)
    if own or isinstance(config, ConfigView):
        journal.set(module, "config", ConfigView(base, **own) if own else base)


def _filter_bias(
    journal: Journal, site: Site, arguments: tuple[companions.Outside, ...], keep: tuple[int, ...]
) -> None:
    hooks = site.module._forward_pre_hooks
    earlier = [key for key, hook in hooks.items() if isinstance(hook, partial) and hook.func is companions.slice_bias]
    if earlier:  # an earlier cut's filter: this one replaces it
        journal.set(
            site.module, "_forward_pre_hooks", type(hooks)((k, v) for k, v in hooks.items() if k not in earlier)
        )
    hook = partial(companions.slice_bias, arguments, keep, site.of)
    journal.add_hook(site.module.register_forward_pre_hook(hook, with_kwargs=True))


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
    journal: Journal, root: nn.Module, why: str, rows: tuple[Dialect, ...], before: dict[str, Any]
) -> None:
    """Write down what has been removed, in the config where there is one: any folder saved from the model can be loaded."""
    old = record(root)
    after = _config_values(root)
    changed = {name: value for name, value in before.items() if after.get(name) != value}
    new = {
        **Plan(removed(root).units, why or old["why"]).to_json(),
        "dialects": old["dialects"] or [row.to_json() for row in rows],
        "config": {**changed, **old["config"]},
    }
    config = getattr(root, "config", None)
    journal.set(config if hasattr(config, "to_dict") else root, "headcount", new)


def record(model: nn.Module) -> dict[str, Any]:
    """What has been done to this model, as it is written into its config: the plan, its rows, the config's old counts."""
    root = unwrap(model)
    config = getattr(root, "config", None)
    written = getattr(config if hasattr(config, "to_dict") else root, "headcount", None)
    return written or {**Plan().to_json(), "dialects": [], "config": {}}


def _deleted_blocks(anatomy: Anatomy, plan: Plan) -> list[nn.Module]:
    chosen = plan.by_site()
    return [
        stack.blocks[position] for stack in anatomy.stacks for position in stack.positions(chosen.get(stack.name, ()))
    ]


# -- the proof ----------------------------------------------------------------------------------------------------------


def run(model: nn.Module, batch: Any) -> list[Tensor]:
    """The floating-point outputs of the model on a batch, in evaluation mode and without gradients."""
    with _evaluating(model), torch.no_grad():
        if isinstance(batch, Mapping):
            output = model(**batch)
        else:
            output = model(*batch) if isinstance(batch, tuple | list) else model(batch)
    found = list(_tensors(output))
    if not found:
        raise BadPlan("The model gave no floating-point output for this batch, so there is nothing to compare.")
    return found


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output.detach().clone()
    elif isinstance(output, Mapping):
        for name, value in output.items():
            if not any(word in name for word in NOT_COMPARED):
                yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)


def _differs(want: list[Tensor], got: list[Tensor]) -> str | None:
    """By how much two outputs differ, if more than rounding explains; None if they are equal."""
    if [t.shape for t in want] != [t.shape for t in got]:
        return "the shape of its output"
    for a, b in zip(want, got, strict=True):
        limit = TOLERANCE.get(a.dtype, 1e-2) * max(1.0, float(a.float().nan_to_num().abs().max()) if a.numel() else 1.0)
        if not torch.allclose(a.float(), b.float(), rtol=0, atol=limit, equal_nan=True):
            return f"{float((a.float() - b.float()).abs().max()):.1e} (allowed: {limit:.0e})"
    return None


def _block_outputs(model: nn.Module, batch: Any, rows: tuple[Dialect, ...]) -> dict[str, list[Tensor]]:
    """The output of every layer on a batch, by the layer's unit name."""
    seen: dict[str, list[Tensor]] = {}
    handles = []
    for stack in find(model, rows).stacks:
        for unit, block in zip(stack.units, stack.blocks, strict=True):

            def keep(_: nn.Module, __: Any, output: Any, name: str = str(unit)) -> None:
                seen[name] = list(_tensors(output))[:1]

            handles.append(block.register_forward_hook(keep))
    try:
        run(model, batch)
    except Exception:  # the outputs up to the failure are what is asked for
        pass
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _first_difference(want: dict[str, list[Tensor]], got: dict[str, list[Tensor]]) -> str:
    for name, value in want.items():
        if name in got and _differs(value, got[name]):
            return f"first at {name}"
    return "first after the last layer"
