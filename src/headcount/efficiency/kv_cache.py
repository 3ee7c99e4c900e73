"""The cache of keys and values that a decoder fills while it writes: bytes per token, counted and measured."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import Refused
from ..evaluation.evaluator import device_of, to_device
from ..model.anatomy import Site
from ..model.architectures import ModuleSpec
from ..model.cutting.effects import site_effect
from ..model.cutting.kv_groups import kv_groups_of
from ..model.discovery import find, unwrap
from ..model.equivalence import evaluating
from .costs import Costs, homes, parameters
from .random_inputs import one_token


class Serving(NamedTuple):
    """What a decoder is to hold in memory beside its weights: the cache of a batch of texts, all of this length."""

    context: int  # tokens of a text, what was written among them
    batch: int
    number: int  # bytes of a number, of weights and cache


CACHED = ("decoder", "cross")  # types of attention whose keys and values are kept for the next tokens


def cached_tensors(model: nn.Module) -> list[Tensor]:
    """The keys and values that are in the cache after one token of one text; none for what is no decoder with a cache.

    Layers with a sliding window hold one token like the others, as long as it is within the window; states of linear
    attention have one size whatever the length, and are no keys and values.
    """
    root = unwrap(model)
    config = getattr(root, "config", None)
    if not hasattr(config, "get_text_config") or getattr(config, "is_encoder_decoder", False) or not _takes_cache(root):
        return []
    with evaluating(root), torch.no_grad():
        output = root(**to_device(one_token(root), device_of(root)), use_cache=True)
    cache = output.get("past_key_values") if hasattr(output, "get") else None
    return list(keys_and_values(cache))


def bytes_per_token(model: nn.Module) -> int | None:
    """The bytes that every token of a text takes in the cache, in the number format of the model; None without a cache."""
    tensors = cached_tensors(model)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) if tensors else None


def cache_sizes(model: nn.Module, smaller: nn.Module) -> tuple[int, int] | None:
    """The bytes per token of both, measured; None where they keep no cache, or cannot run on one token and nothing else."""
    try:
        had, has = bytes_per_token(model), bytes_per_token(smaller)
    except (
        RuntimeError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
    ):  # it is told besides, and may not cost the rest
        return None
    return None if had is None or has is None else (had, has)


def cache_costs(model: nn.Module, specs: tuple[ModuleSpec, ...] = ()) -> Costs:
    """The bytes of cache that every token takes, of each attention with so many of its heads in whole kv groups.

    Counted from the shapes, and compared with what a run of the model caches: where that is something else, such as a latent
    vector or heads repeated before they are cached, it is `Refused`.
    """
    anatomy, root, tensors = find(model, specs), unwrap(model), cached_tensors(model)
    if not tensors:
        raise Refused(
            f"{type(root).__name__} is no decoder that keeps a cache of keys and values, so that kv_cache (--kv-cache) is no "
            "budget for it; take flops or params."
        )
    number = tensors[0].element_size()
    tables = {site.name: number * _table(site) for site in anatomy}
    counted = sum(float(table[-1]) for table in tables.values())
    measured = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if counted != measured:
        raise Refused(
            f"The cache of {type(root).__name__} holds {measured:,} bytes per token, and the keys and values of its heads have "
            f"{counted:,.0f}: it keeps something else (latent vectors, or heads repeated), so that kv_cache (--kv-cache) is no "
            "budget for it; take flops or params."
        )
    layers = {unit: 0.0 for stack in anatomy.stacks for unit in stack.units}
    return Costs("kv-cache", counted, tables, layers, homes(anatomy))


def memory_costs(model: nn.Module, serving: Serving, specs: tuple[ModuleSpec, ...] = ()) -> Costs:
    """The bytes of all weights and of the cache of a batch, of each site with so many of its units in whole kv groups.

    Layers with a sliding window are counted as if they kept the whole context: a bound.
    """
    weights, cache, anatomy = parameters(model, specs), cache_costs(model, specs), find(model, specs)
    tokens = serving.context * serving.batch * serving.number / _cached_number(model)
    tables = {}
    for site in anatomy:
        table = weights.sites[site.name]
        if site.kind == "head":  # exact for whole groups, which are all that is bought
            table = _by_groups(site, partial(_weights_left, site))
            table = table - min(table[0], table[-1])
        tables[site.name] = serving.number * table + tokens * cache.sites[site.name]
    layers = {}
    for unit, besides in weights.layers.items():  # all that the layer has, less what its sites can lose
        inside = [name for name, home in weights.homes.items() if home == unit]
        moved = sum(float(weights.sites[name][-1]) for name in inside)
        own = sum(float(tables[name][-1] - tokens * cache.sites[name][-1]) for name in inside)
        layers[unit] = serving.number * (besides + moved) - own
    whole = serving.number * weights.whole + tokens * cache.whole
    return Costs("memory", whole, tables, layers, cache.homes)


def memory_of(model: nn.Module, serving: Serving) -> float:
    """The bytes of all weights and of the cache of a batch: weights counted, the cache measured."""
    weights = sum(p.numel() for p in unwrap(model).parameters())
    cache = (bytes_per_token(model) or 0) / _cached_number(model)
    return serving.number * (weights + cache * serving.context * serving.batch)


def _weights_left(site: Site, keep: tuple[int, ...]) -> float:
    return -float(site_effect(site, keep).parameters)


def _cached_number(model: nn.Module) -> int:
    """Bytes of a number of the cache, as the model runs now."""
    return next((tensor.element_size() for tensor in cached_tensors(model)), 1)


def _table(site: Site) -> np.ndarray:
    """The numbers that a token takes in the cache with 0, 1, ... all units; whole kv groups, the smallest ones first."""
    if site.attention not in CACHED:
        return np.zeros(len(site) + 1)
    # an attention without heads still caches one of zeros, also where it has lost them before
    return _by_groups(site, lambda keep: float(max(1, site_effect(site, keep).kv_left) * _width(site)))


def _by_groups(site: Site, cost: Callable[[tuple[int, ...]], float]) -> np.ndarray:
    """What 0, 1, 2, ... whole kv groups cost, the smallest first, by the number of their heads."""
    table, keep = np.full(len(site) + 1, cost(())), tuple[int, ...]()
    for group in sorted(kv_groups_of(site).values(), key=len):
        keep = tuple(sorted({*keep, *group}))
        table[len(keep) :] = cost(keep)
    return table


def _width(site: Site) -> int:
    """Numbers of one key and one value."""
    return sum(site.widths[1:]) if len(site.widths) == 3 and len(site) else 2 * site.width


def _takes_cache(root: nn.Module) -> bool:
    names = inspect.signature(root.forward).parameters
    return "past_key_values" in names and "input_ids" in names


def keys_and_values(cache: Any) -> Iterator[Tensor]:
    """The tensors of every layer of a cache, as transformers keeps them now, or as tuples."""
    for layer in getattr(cache, "layers", None) or (cache if isinstance(cache, tuple) else ()):
        pair = layer[:2] if isinstance(layer, tuple) else (getattr(layer, "keys", None), getattr(layer, "values", None))
        yield from (tensor for tensor in pair if isinstance(tensor, Tensor))
