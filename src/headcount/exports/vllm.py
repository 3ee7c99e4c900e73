"""Folders for vLLM: those for transformers, within what vLLM's Transformers backend can hold.

It builds the model by the code in the folder and puts its own matrices and attention into it. Every attention has heads there,
and all sizes divide by the number of devices that share a layer. So what has no units left gets some back, as zeros.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..formatting import counted
from ..model.anatomy import Anatomy, Site
from ..model.checkpoints import read_record, restore_config
from ..model.cutting.biases import RECORDED, give_biases, recorded
from ..model.cutting.per_head import uses_attention_interface
from ..model.cutting.surgery import cut, record, removed
from ..model.discovery import find, unwrap
from ..model.loading.number_formats import STORED, stored_format
from ..model.portable import empty_model
from ..plans import Plan, Unit
from . import transformers_folder
from .even_groups import group_limits
from .formats import Check, Limit, Settings

COMMAND = "vllm serve FOLDER --model-impl transformers --trust-remote-code"


def limits(model: nn.Module, settings: Settings) -> list[Limit]:
    """What of a model vLLM cannot hold."""
    root = unwrap(model)
    out = transformers_folder.limits(root, replace(settings, multiple=None))
    if out:
        return out
    anatomy = find(root)
    if len(anatomy.stacks) != 1 or any(site.attention != "decoder" for site in anatomy.heads):
        return [Limit("it is no decoder", "export it for transformers (--to transformers), or as a graph (--to onnx)")]
    strange = [type(site.module).__name__ for site in anatomy.heads if not uses_attention_interface(site.module)]
    if strange:
        return [Limit(f"{strange[0]} does not ask transformers for its attention kernel", "use --to transformers")]
    out = group_limits(root) + _indivisible(anatomy, settings.tensor_parallel)
    lacking = [site for site in anatomy if _missing(site, settings)]
    if out or not lacking:
        return out
    if removed(root).units != Plan.from_json(record(root)).units:
        name = lacking[0].name
        return [Limit(f"{name} needs units as zeros, and key-value heads were repeated", "use --groups pad instead")]
    return _too_few(root, lacking, settings)


def write(
    model: nn.Module, target: Path, settings: Settings, *, source: str | None, tokenizer: Any = None
) -> tuple[str, ...]:
    """Write the folder; returns notes for the user, among them the command that serves it."""
    root: Any = unwrap(model)
    units = zero_units(root, settings)
    filled = with_zeros(root, units) if units else root
    asked = replace(settings, multiple=None)
    notes = transformers_folder.write(filled, target, asked, source=source, tokenizer=tokenizer, sign=False)
    if units:
        kinds = {site.name: site.kind for site in find(root)}
        heads = sum(kinds[unit.site] == "head" for unit in units)
        counts = [counted(n, kind) for n, kind in ((heads, "head"), (len(units) - heads, "neuron")) if n]
        notes += (f"{' and '.join(counts)} that had been removed are there as zeros, the same outputs",)
    devices = f" --tensor-parallel-size {settings.tensor_parallel}" if settings.tensor_parallel > 1 else ""
    return (*notes, f"serve it: {COMMAND}{devices}")


def check(model: nn.Module, target: Path, settings: Settings, *, batch: Mapping[str, Any]) -> Check:
    """Compare what transformers loads with the model: vLLM builds it by the same code, and takes minutes to start."""
    done = transformers_folder.check(model, target, settings, batch=batch)
    try:
        installed = f"vLLM {version('vllm')} was not started"
    except PackageNotFoundError:
        installed = "vLLM is not installed"
    return done._replace(notes=(f"{installed}: its rules were checked, and the outputs in transformers",))


# -- rules ---------------------------------------------------------------------------------------------------------------


def _indivisible(anatomy: Anatomy, devices: int) -> list[Limit]:
    """The attentions whose heads a number of devices cannot share."""
    out = []
    for site in anatomy.heads:
        if len(site) and (len(site) % devices or site.kv_heads % devices):
            has = f"layer {site.name} has {counted(len(site), 'head')} and {counted(site.kv_heads, 'key-value head')}"
            remedy = f"prune with --for vllm --tensor-parallel {devices}, or share it among fewer"
            out.append(Limit(f"{has}, which {devices} devices cannot share", remedy))
    return out


def _too_few(root: nn.Module, lacking: list[Site], settings: Settings) -> list[Limit]:
    """The sites that cannot get as many units back as they need."""
    whole = find(_whole(root))
    out = []
    for site in lacking:
        have = len({*whole_site(whole, site).kv_of}) if site.kind == "head" else site.of
        needed = _missing(site, settings) if site.kind == "head" else len(site) + _missing(site, settings)
        if have < needed:
            what = "key-value heads" if site.kind == "head" else "neurons"
            reason = f"{site.name} would need {needed} {what} and never had more than {have}"
            out.append(Limit(reason, "choose a smaller --tensor-parallel or --multiple"))
    return out


def _missing(site: Site, settings: Settings) -> int:
    """How many units vLLM needs beside those that a site has."""
    if site.kind == "head":
        return 0 if len(site) else settings.tensor_parallel
    step = math.lcm(settings.multiple or 1, settings.tensor_parallel)
    return max(1, math.ceil(len(site) / step)) * step - len(site)


def whole_site(anatomy: Anatomy, site: Site) -> Site:
    """The site of this name in another anatomy."""
    found = anatomy[site.name]
    assert isinstance(found, Site)
    return found


# -- units as zeros --------------------------------------------------------------------------------------------------------


def zero_units(root: nn.Module, settings: Settings) -> frozenset[Unit]:
    """The removed units that vLLM needs back: heads of different key-value heads, and the first neurons that are gone."""
    lacking = [site for site in find(root) if _missing(site, settings)]
    if not lacking:
        return frozenset()
    whole = find(_whole(root))
    out: set[Unit] = set()
    for site in lacking:
        if site.kind == "head":
            first: dict[int, int] = {}
            for index, kv in enumerate(whole_site(whole, site).kv_of):
                first.setdefault(kv, index)
            indices = [*first.values()]
        else:
            indices = sorted({*range(site.of)} - {*site.ids})
        out |= {Unit(site.name, index) for index in indices[: _missing(site, settings)]}
    return frozenset(out)


def with_zeros(root: Any, units: frozenset[Unit]) -> nn.Module:
    """The same model with some of the units that were removed back in their places, as zeros; weights are shared with it.

    The record of the new model says that they are there, so that headcount loads it as it is.
    """
    plan, specs = read_record(record(root))
    model: Any = _whole(root)
    cut(model, Plan(plan.units - units, plan.why), specs=specs)
    names = recorded(record(root))
    if names:
        give_biases(model, names, specs)
        model.config.headcount = {**record(model), RECORDED: names}
    _fill(model, root)
    model.generation_config = getattr(root, "generation_config", None)
    setattr(model, STORED, stored_format(root))
    return model.train(root.training)


def _whole(root: Any) -> nn.Module:
    """The model that a cut one was, without weights."""
    config = copy.deepcopy(root.config)
    if getattr(config, "headcount", None) is not None:
        restore_config(config, record(root))
    return empty_model(type(root), config)


def _fill(model: nn.Module, root: nn.Module) -> None:
    """Give an empty model the weights of another: as they are where they fit, else unit by unit among zeros."""
    have = {**dict(root.named_parameters(remove_duplicate=False)), **dict(root.named_buffers(remove_duplicate=False))}
    for path, module in model.named_modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            old = have.get(f"{path}.{name}".lstrip("."))
            if tensor is None or (old is not None and old.shape == tensor.shape):
                new = old
            else:
                new = torch.zeros(tensor.shape, dtype=tensor.dtype if old is None else old.dtype)
            if name in module._buffers:
                module._buffers[name] = new
            elif new is not None:
                module._parameters[name] = new if isinstance(new, nn.Parameter) else nn.Parameter(new)
    theirs = find(root)
    for site in find(model):
        old_site = whole_site(theirs, site)
        if len(old_site) and len(site) != len(old_site):
            _copy_units(site, old_site)


def _copy_units(site: Site, old: Site) -> None:
    """Copy the units that a site had into one that has more, which is zeros."""
    places = [site.ids.index(index) for index in old.ids]
    readers = zip(site.matrices, old.matrices, site.tables(), old.tables(), strict=True)
    for matrix, source, tables, were in readers:
        assert matrix is not None
        assert source is not None
        rows = torch.cat([table[places].flatten() for table in tables])
        given = source.rows(torch.cat([table.flatten() for table in were]))
        for name, tensor in given.items():
            axis = matrix.row_axis if name == matrix.weight else tensor.dim() - 1
            _put(getattr(matrix.owner, name), axis, rows, tensor)
    writer, was = site.columns, old.columns
    assert writer is not None
    assert was is not None
    columns = (torch.tensor(places)[:, None] * site.width + torch.arange(site.width)).flatten()
    tensor = was.columns(torch.arange(was.shape[1]))[was.weight]
    _put(getattr(writer.owner, writer.weight), writer.column_axis, columns, tensor)


def _put(target: Tensor, axis: int, places: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        target.index_copy_(axis, places.to(target.device), values)
