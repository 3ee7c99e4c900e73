"""Whether a stock config can express a cut model: build the stock model it describes, empty, and compare part by part."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from .anatomy import STAMP, Site
from .cutting.per_head import HEAD_COUNTS, KV_COUNTS, NEURON_COUNTS, ConfigView
from .discovery import find

SIDED_HEADS = {
    "encoder": ("encoder_attention_heads",),
    "decoder": ("decoder_attention_heads",),
    "cross": ("decoder_attention_heads",),
}
SIDED_NEURONS = {"encoder": ("encoder_ffn_dim",), "decoder": ("decoder_ffn_dim",)}
IGNORED = ("training", "gradient_checkpointing", "name_or_path", "warnings_issued", STAMP)


class Difference(NamedTuple):
    """One way in which a cut model is not the stock model of a config."""

    text: str
    shape: bool  # whether a stock loader would refuse, because a tensor has another shape


def stock_differences(model: Any, config: Any) -> list[Difference]:
    """How the model differs from what its class builds from this config, beyond the values of its weights."""
    try:
        stock = empty_model(type(model), _without_record(config))
    except Exception as error:  # whatever a constructor raises on a config it was not written for
        return [Difference(f"it cannot be built from the config ({type(error).__name__}: {str(error)[:100]})", False)]
    ours, theirs = dict(model.named_modules()), dict(stock.named_modules())
    out: list[Difference] = []
    for path in dict.fromkeys((*ours, *theirs)):
        if path not in ours or path not in theirs:
            out.append(Difference(f"{path} is {'gone' if path not in ours else 'not in the stock model'}", False))
        else:
            out += _module_differences(path or type(model).__name__, ours[path], theirs[path])
    return sorted(out, key=lambda difference: not difference.shape)


def _module_differences(path: str, ours: nn.Module, theirs: nn.Module) -> Iterator[Difference]:
    mine, stock = _shapes(ours), _shapes(theirs)
    for name in dict.fromkeys((*mine, *stock)):
        if mine.get(name) != stock.get(name):
            in_both = name in mine and name in stock  # a stock loader makes up what is missing, and says so in passing
            yield Difference(
                f"{path}.{name} has shape {mine.get(name)} and the stock model's {stock.get(name)}", in_both
            )
    if type(ours) is not type(theirs):
        yield Difference(f"{path} is a {type(ours).__name__} and the stock model's a {type(theirs).__name__}", False)
        return
    if isinstance(getattr(ours, "config", None), ConfigView) or any(
        isinstance(h, partial) for h in ours._forward_pre_hooks.values()
    ):
        yield Difference(f"{path} picks slices of what it is given, head by head", False)
    mine, stock = plain_values(ours), plain_values(theirs)
    for name in dict.fromkeys((*mine, *stock)):
        if mine.get(name) != stock.get(name):
            yield Difference(f"{path}.{name} is {mine.get(name)} and the stock model's {stock.get(name)}", False)


def _shapes(module: nn.Module) -> dict[str, Any]:
    return {name: tuple(tensor.shape) for name, tensor in module.named_parameters(recurse=False)}


def plain_values(module: nn.Module) -> dict[str, Any]:
    """The plain values a module keeps about itself."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str) and not name.startswith("_") and name not in IGNORED
    }


def _without_record(config: Any) -> Any:
    config = copy.deepcopy(config)
    config.headcount = None
    return config


def empty_model(kind: Any, config: Any) -> nn.Module:
    """A model of this class and config without weights; on the CPU where its constructor cannot run on no device."""
    from transformers import initialization

    try:
        with torch.device("meta"), initialization.no_init_weights():
            model = kind(config)
    except (RuntimeError, NotImplementedError):
        with initialization.no_init_weights():
            model = kind(config)
    model.tie_weights()  # left out together with the initialisation
    return model


def portable_config(model: Any) -> Any:
    """The model's config, with the numbers of heads and neurons that all its layers have after the cut."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "headcount"):
        del config.headcount
    for owner, sites in _by_config(model, config):
        for kind in ("head", "neuron"):
            for attention in ("encoder", "decoder", "cross", None):
                some = [
                    site for site in sites if site.kind == kind and (kind == "neuron" or site.attention == attention)
                ]
                _write_counts(owner, some, kind, attention)
    return config


def _by_config(model: Any, config: Any) -> Iterator[tuple[Any, list[Site]]]:
    """(config, its sites): sites under a tower with a config of its own go with that one."""
    parts = {name: value for name, value in vars(config).items() if hasattr(value, "to_dict")}
    own = {name: id(getattr(model.config, name)) for name in parts}
    groups: dict[str, list[Site]] = {}
    for site in find(model):
        owner, module = "", model
        for name in site.path.split("."):
            module = getattr(module, name, None) if not name.isdigit() else module[int(name)]
            held = getattr(module, "config", None)
            held = held.base if isinstance(held, ConfigView) else held
            owner = next((part for part, key in own.items() if key == id(held)), owner)
        groups.setdefault(owner, []).append(site)
    for owner, sites in groups.items():
        yield parts.get(owner, config), sites


def _write_counts(config: Any, sites: list[Site], kind: str, attention: str | None) -> None:
    """Set the counts of one kind of site, if all of them have the same number left."""
    if len({(len(site), site.of, site.kv_heads) for site in sites}) != 1 or len(sites[0]) == sites[0].of:
        return
    site = sites[0]
    renamed = getattr(config, "attribute_map", {})
    if kind == "neuron":
        sided = SIDED_NEURONS["decoder" if "decoder" in site.path else "encoder"]
        names, value = (*NEURON_COUNTS, *sided), {site.of: len(site)}
        for name in names:
            actual = renamed.get(name, name)
            if getattr(config, actual, None) in value:
                setattr(config, actual, value[getattr(config, actual)])
        return
    for name in (*HEAD_COUNTS, *SIDED_HEADS.get(attention or "", ())):
        if getattr(config, renamed.get(name, name), None) == site.of:
            setattr(config, renamed.get(name, name), len(site))
    for name in KV_COUNTS:
        if type(getattr(config, name, None)) is int:
            setattr(config, name, site.kv_heads)
    if hasattr(config, "head_dim"):
        config.head_dim = site.width
