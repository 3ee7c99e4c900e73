"""Making uneven groups of query heads even, exactly: by zero query heads, or by a key-value head for every query head."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..formatting import counted, listed
from ..model.anatomy import MODULE_STAMPS, STAMP, CutRecord, Site
from ..model.architectures import LAYOUTS, ModuleSpec
from ..model.cutting import rules
from ..model.cutting.kv_groups import KVGroups, layout_rows, original_kv
from ..model.cutting.per_head import per_head_tensors
from ..model.cutting.surgery import record, removed, replace_tensors, take_per_head, update_counts
from ..model.cutting.transaction import Transaction
from ..model.discovery import find, unwrap
from ..model.matrices import Matrix, Padded, index_on
from ..plans import Plan
from .formats import Limit


class Heads(NamedTuple):
    """The query heads that an attention is to have, group by group, and where each of them comes from."""

    sources: tuple[int | None, ...]  # positions among the present heads; None is a zero head
    kv_of: tuple[int, ...]
    kv_sources: tuple[int, ...]  # for each key-value head, the present one that it is a copy of
    ids: tuple[int, ...]  # original indices; a zero head has that of one which was removed


def uneven_sites(model: nn.Module) -> list[Site]:
    """The attentions whose key-value heads serve different numbers of query heads."""
    root = unwrap(model)
    return [site for site in find(root, _own_specs(root)).heads if len({*_group_sizes(site)}) > 1]


def with_even_groups(model: nn.Module, how: str) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy of the model in which all groups of each attention are of one size, and notes of what that costs.

    The outputs are the same. "pad" adds query heads with zero output weights up to the largest group, which are heads that were
    removed, masked; "repeat" gives each query head a key-value head of its own. An attention that repeated key-value heads by an
    index, or that filled up missing heads with zeros, runs as its own code does afterwards.
    """
    root = copy.deepcopy(unwrap(model))
    rows, was = _own_specs(root), {site.name: site for site in uneven_sites(root)}
    if not was:
        return root, ()
    before = _parameters(root)
    for site in was.values():
        if site.whole is not None:
            _fill_up(root, site)
    sites = [site for site in find(root, rows).heads if site.name in was and not rules.is_padded(site)]
    for site in sites:  # the code of others counts on all their heads: they keep those
        _rearrange(root, site, _heads(site, site.positions(was[site.name].ids), how))
    repeated = [was[site.name] for site in sites] if how == "repeat" else []
    _write_record(root, bool(repeated))
    return root, (_note([*was.values()], repeated, _parameters(root) / before - 1),)


def group_limits(model: nn.Module) -> list[Limit]:
    """The uneven groups of a model as limits, with what to do about them."""
    sites = uneven_sites(model)
    total = _parameters(unwrap(model))
    cost = {how: _more(sum(_added(site, how) for site in sites) / total) for how in ("pad", "repeat")}
    limits = []
    for site in sites:
        name = f"layer {site.name}" if site.name.isdecimal() else f"the attention {site.name}"
        sizes = listed([str(size) for size in sorted({*_group_sizes(site)}, reverse=True)])
        remedy = f"use --groups pad (exact, {cost['pad']})"
        if not _keeps_all(site):
            cache = cost["repeat"] if site.attention == "encoder" else f"{_times(site)} the cache of that layer"
            remedy += f" or --groups repeat (exact, {cache})"
        limits.append(Limit(f"{name} has groups of {sizes} query heads", f"{remedy}, or let prune choose with --for"))
    return limits


def without_padding(padded: Padded) -> nn.Module:
    """The ordinary matrix that a padded one stands for: zeros where rows or columns were cut."""
    axis = padded.row_axis if padded.reads else padded.column_axis
    weight = _spread(padded.weight.detach(), padded, axis)
    bias = None if padded.bias is None else padded.bias.detach()
    if bias is not None and padded.reads:
        bias = _spread(bias, padded, 0)
    rows, columns = weight.shape[padded.row_axis], weight.shape[padded.column_axis]
    module: nn.Module
    with torch.device("meta"):
        if padded.feature_axis == 1:
            kind = nn.Conv1d if weight.dim() == 3 else nn.Conv2d
            module = kind(columns, rows, 1, bias=bias is not None)
        elif padded.row_axis == 1:
            from transformers.pytorch_utils import Conv1D

            module = Conv1D(rows, columns)
        else:
            module = nn.Linear(columns, rows, bias=bias is not None)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            setattr(module, name, nn.Parameter(tensor, requires_grad=padded.weight.requires_grad))
    return module.train(padded.training)


def _spread(tensor: Tensor, padded: Padded, axis: int) -> Tensor:
    shape = list(tensor.shape)
    shape[axis] = padded.of
    return tensor.new_zeros(shape).index_copy(axis, index_on(padded.places, tensor.device), tensor)


# -- which heads there are to be ------------------------------------------------------------------------------------------


def _group_sizes(site: Site) -> list[int]:
    """How many query heads each key-value head serves, of those that serve any."""
    return [] if site.spec.layout == "per_head" else [*Counter(site.kv_of).values()]


def _heads(site: Site, keep: Sequence[int], how: str) -> Heads:
    """The heads at the positions in `keep`, in even groups."""
    ids = {position: site.ids[position] for position in keep}
    if how == "repeat":
        kv_sources = tuple(site.kv_of[position] for position in keep)
        return Heads(tuple(keep), tuple(range(len(keep))), kv_sources, tuple(ids.values()))
    groups: dict[int, list[int]] = {}
    for position in keep:
        groups.setdefault(site.kv_of[position], []).append(position)
    size = max(map(len, groups.values()))
    sources, names = list[int | None](), list[int]()
    for kv, positions in groups.items():
        spare = _removed(site, kv, {*ids.values()})[: size - len(positions)]
        group = sorted([*((ids[position], position) for position in positions), *((index, None) for index in spare)])
        names += [index for index, _ in group]
        sources += [position for _, position in group]
    kv_of = tuple(place // size for place in range(len(sources)))
    return Heads(tuple(sources), kv_of, tuple(groups), tuple(names))


def _removed(site: Site, kv: int, kept: set[int]) -> list[int]:
    """Original indices of heads that used a key-value head and are not kept, be they present as zeros or gone."""
    present = [index for index, used in zip(site.ids, site.kv_of, strict=True) if used == kv]
    if len(site) == site.of or getattr(site.module, "headcount_kv_of", None) is None:
        return [index for index in present if index not in kept]
    origins = original_kv(site)
    pairs = [(index, origins[used]) for index, used in zip(site.ids, site.kv_of, strict=True)]
    # the size that groups had: the record has it in the key-value heads that the survivors came from
    fitting = [n for n in range(1, site.of + 1) if site.of % n == 0 and all(i // n == origin for i, origin in pairs)]
    size = next((n for n in fitting if n == _config_group(site)), fitting[-1])
    return [index for index in range(origins[kv] * size, (origins[kv] + 1) * size) if index not in kept]


def _config_group(site: Site) -> int | None:
    """Query heads per key-value head, as the config of the whole model has them."""
    config = getattr(site.module, "config", None)
    config = getattr(config, "base", config)
    kv = getattr(config, "num_key_value_heads", None)
    return site.of // kv if isinstance(kv, int) and kv > 0 else None


# -- the changes ----------------------------------------------------------------------------------------------------------


def _fill_up(root: nn.Module, site: Site) -> None:
    """Put ordinary matrices in the place of padded ones, with zeros for the heads that are gone."""
    assert site.whole is not None
    parents = {id(child): (module, name) for module in root.modules() for name, child in module.named_children()}
    stamp = CutRecord(site.name, site.whole.ids, site.of, site.width)
    for module in (*site.readers, site.writer):
        assert isinstance(module, Padded)
        parent, name = parents[id(module)]
        ordinary = without_padding(module)
        setattr(parent, name, ordinary)
        if module is site.writer:
            setattr(ordinary, STAMP, stamp)
    setattr(site.module, MODULE_STAMPS["head"], stamp)


def _rearrange(root: nn.Module, site: Site, heads: Heads) -> None:
    """Give an attention other heads, made of those that it has."""
    transaction = Transaction()  # on a copy: nobody goes back
    groups = KVGroups(
        tuple(range(len(heads.ids))), heads.kv_of, tuple(original_kv(site)[kv] for kv in heads.kv_sources)
    )
    first = next(position for position in heads.sources if position is not None)
    stand_ins = [first if position is None else position for position in heads.sources]
    take_per_head(transaction, site, stand_ins, heads.kv_sources)
    for reader, rows in zip(site.matrices, _sources(site, heads, groups), strict=True):
        assert reader is not None
        replace_tensors(transaction, reader, _with_zeros(reader, reader.rows(rows.clamp(min=0)), rows, reader.row_axis))
    writer = site.columns
    assert writer is not None
    places = torch.tensor([-1 if position is None else position for position in heads.sources])
    columns = (places[:, None] * site.width + torch.arange(site.width)).flatten()
    columns[places.repeat_interleave(site.width) < 0] = -1
    tensors = _with_zeros(writer, writer.columns(columns.clamp(min=0)), columns, writer.column_axis)
    replace_tensors(transaction, writer, tensors)
    update_counts(transaction, root, site, groups, heads.ids)
    stamp = CutRecord(site.name, heads.ids, site.of, site.width, kv_ids=groups.kv_ids)
    setattr(site.writer, STAMP, stamp)
    setattr(site.module, MODULE_STAMPS["head"], stamp)


def _sources(site: Site, heads: Heads, groups: KVGroups) -> list[Tensor]:
    """For each reader, the present row that every new row is a copy of; -1 where it is zero."""
    targets = LAYOUTS[site.spec.layout](torch.tensor(heads.kv_of), len(heads.kv_sources), site.widths)
    out = []
    for present, new, count in zip(site.tables(), targets, layout_rows(site, groups), strict=True):
        source = torch.full((count,), -1)
        for table, target in zip(present, new, strict=True):
            for place, position in enumerate(heads.sources):
                if position is not None:  # keys and values of a zero head are those of its group
                    source[target[place]] = table[position]
        out.append(source)
    return out


def _with_zeros(matrix: Matrix, tensors: dict[str, Tensor], source: Tensor, axis: int) -> dict[str, Tensor]:
    """The tensors with zeros where the source is -1, along an axis of the weight and in the bias."""
    gaps = (source < 0).nonzero().flatten()
    for name, tensor in tensors.items():
        tensor.index_fill_(axis if name == matrix.weight else tensor.dim() - 1, gaps.to(tensor.device), 0)
    return tensors


def _write_record(root: nn.Module, repeated: bool) -> None:
    """What is removed now; nothing where no cut gives this model, because key-value heads are there twice."""
    config = getattr(root, "config", None)
    owner = config if hasattr(config, "to_dict") else root
    written = record(root)
    now = None if repeated else {**written, **Plan(removed(root).units, written["why"]).to_json()}
    Transaction().set(owner, "headcount", now)


def _own_specs(root: nn.Module) -> tuple[ModuleSpec, ...]:
    """The user's names of modules that the model was cut with."""
    return tuple(ModuleSpec.from_json(row) for row in record(root)["dialects"])


# -- what it costs --------------------------------------------------------------------------------------------------------


def _parameters(root: nn.Module) -> int:
    return sum(parameter.numel() for parameter in root.parameters())


def _added(site: Site, how: str) -> int:
    """Parameters that even groups add to an attention."""
    writer, heads, sizes = site.columns, len(site), _group_sizes(site)
    assert writer is not None
    kv_of = [*range(heads)] if how == "repeat" else [kv for kv in range(len(sizes)) for _ in range(max(sizes))]
    if _keeps_all(site):
        assert site.whole is not None
        kv_of = [*site.whole.kv_of]
    groups = KVGroups(tuple(range(len(kv_of))), tuple(kv_of), tuple(range(max(kv_of) + 1)))
    more = {"head": len(kv_of) - heads, "kv": len(groups.kv_ids) - site.kv_heads}
    added = more["head"] * site.width * writer.parameters_per("column")
    widths = site.widths if site.whole is None else site.whole.widths
    for reader, rows in zip(site.matrices, layout_rows(replace(site, widths=widths), groups), strict=True):
        assert reader is not None
        added += (rows - reader.shape[0]) * reader.parameters_per("row")
    return added + sum(more[one.per] * one.parameters for one in per_head_tensors(site) if site.whole is None)


def _keeps_all(site: Site) -> bool:
    """Whether an attention is padded for more than its groups, and gets all its heads back when they are made even."""
    was = site.whole
    return was is not None and rules.is_padded(
        replace(site, ids=was.ids, kv_of=was.kv_of, kv_heads=was.kv_heads, whole=None)
    )


def _more(share: float) -> str:
    percent = 100 * share
    return f"{f'{percent:.{0 if percent >= 9.5 else 1}f}' if percent >= 0.1 else 'less than 0.1'} % more parameters"


def _times(site: Site) -> str:
    """How many times the cache of a layer "repeat" takes."""
    ratio = len(site) / len(_group_sizes(site))
    return "twice" if ratio == 2 else f"{ratio:.2g} times"


def _note(sites: list[Site], repeated: list[Site], share: float) -> str:
    if not repeated:
        where = counted(len(sites), "attention")
        return f"the groups of {where} were made even with zero query heads: {_more(share)}, the same outputs"
    cache = "" if all(site.attention == "encoder" for site in repeated) else ", a larger cache in those layers"
    where = counted(len(repeated), "attention")
    return f"every query head of {where} got a key-value head of its own: {_more(share)}{cache}, the same outputs"
