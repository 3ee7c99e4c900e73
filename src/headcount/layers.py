"""Deleting whole layers: the list gets shorter, the layers that stay are renumbered, the config stays true."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from .anatomy import Site, Stack
from .journal import Journal

POSITION_NAMES = ("layer_idx", "layer_id")
COUNT_NAMES = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth")
ENCODER_COUNTS = ("encoder_layers", "num_encoder_layers", "encoder_num_layers", "encoder_num_hidden_layers")
DECODER_COUNTS = ("decoder_layers", "num_decoder_layers", "decoder_num_layers", "decoder_num_hidden_layers")
PER_STAGE = ("depths", "num_layers", "depth")
PICKED_LAYERS = ("vision_feature_layer", "vision_feature_select_strategy", "audio_feature_layer")
PER_LAYER = ("attention_window",)  # lists with an entry per layer whose names do not say so
INDEX_LISTS = ("mlp_only_layers", "cross_attention_layers", "attn_layer_indices", "full_attn_idxs")


def refusal(stack: Stack, sites: tuple[Site, ...], root: nn.Module) -> str | None:
    """Why layers of this stack cannot be deleted, or None if they can."""
    for site in sites:
        if site.kind != "head" or not site.path.startswith(stack.path + "."):
            continue
        if any(hasattr(site.module, name) for name in ("kv_shared_layer_index", "is_kv_shared_layer")):
            return "its layers lend keys and values to later ones"
        if site.columns is None or None in site.matrices or site.dialect.layout == "per_head":
            continue
        taken, given = site.matrices[0].shape[1], site.columns.shape[0]  # type: ignore[union-attr]
        if taken != given and site.attention != "cross":
            return f"its layers change the width of what they take in ({taken} to {given})"
    owner = root.get_submodule(stack.path.rpartition(".")[0])
    for name, tensor in owner.named_parameters():
        direct = "." not in name and tensor.dim() > 1 and tensor.shape[0] > 1
        if (direct and tensor.shape[0] in (len(stack), len(stack) - 1)) or re.search(r"(^|\.)mid_", name):
            return f"{name} of shape {tuple(tensor.shape)} has entries per layer"
    first = {name for name, _ in stack.blocks[0].named_parameters()}
    others = {name for block in stack.blocks[1:] for name, _ in block.named_parameters()}
    alone = next((name for name in sorted(first - others) if re.search("rel_attn_embed", name)), None)
    if alone is not None:
        return f"its first layer has {alone}, which the others depend on"
    config = getattr(root, "config", None)
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        return "its layers scale their attention by their own number"
    chooses = any(getattr(config, name, None) is not None for name in PICKED_LAYERS)
    if chooses and re.search(r"vision|audio|encoder", stack.path):
        return "the model picks layers of it by number"
    return None


def last_attention_goes(stack: Stack, sites: tuple[Site, ...], drop: set[int]) -> bool:
    """Whether a hybrid stack would be left without any attention, on which its cache counts."""
    names = list(stack.container._modules)
    holding = {names.index(site.path[len(stack.path) + 1 :].split(".")[0]) for site in _inside(stack, sites)}
    return holding <= drop


def _inside(stack: Stack, sites: tuple[Site, ...]) -> list[Site]:
    return [site for site in sites if site.kind == "head" and site.path.startswith(stack.path + ".")]


def delete(journal: Journal, root: nn.Module, stack: Stack, drop: set[int]) -> None:
    """Delete the layers at the positions in `drop`, renumber the rest, and write the new numbers into the config."""
    keep = [position for position in range(len(stack)) if position not in drop]
    names = list(stack.container._modules)
    numbered = all(name.isdigit() for name in names)
    _move_position_bias(journal, stack, keep)
    children = {str(n) if numbered else names[p]: stack.blocks[p] for n, p in enumerate(keep)}
    journal.set_children(stack.container, children)
    for new, old in enumerate(keep):
        for module in stack.blocks[old].modules():
            for name in POSITION_NAMES:
                if type(module.__dict__.get(name)) is int and module.__dict__[name] == old != new:
                    journal.set(module, name, new)
    for config, name, value in _true_config(root, stack, keep):
        journal.set(config, name, value)


def _move_position_bias(journal: Journal, stack: Stack, keep: list[int]) -> None:
    """T5: the first layer makes the position bias for all; if it goes, the next one to stay takes the table over."""
    for maker, taker in _bias_heirs(stack, keep):
        journal.set(taker, "relative_attention_bias", maker.relative_attention_bias)
        journal.set(taker, "has_relative_attention_bias", True)


def moved_parameters(stack: Stack, keep: Sequence[int]) -> int:
    """How many parameters of a deleted first layer stay in the model because the next one takes them over."""
    return sum(p.numel() for maker, _ in _bias_heirs(stack, keep) for p in maker.relative_attention_bias.parameters())


def _bias_heirs(stack: Stack, keep: Sequence[int]) -> list[tuple[Any, Any]]:
    if not keep or keep[0] == 0:
        return []
    after = dict(stack.blocks[keep[0]].named_modules())
    return [
        (maker, after[path])
        for path, maker in stack.blocks[0].named_modules()
        if "relative_attention_bias" in maker._modules
        and getattr(after.get(path), "has_relative_attention_bias", None) is False
    ]


def _true_config(root: nn.Module, stack: Stack, keep: list[int]) -> Iterator[tuple[Any, str, Any]]:
    """(config, attribute, value) of everything a config says about the number and the kinds of layers of this stack."""
    count = len(stack)
    for config, is_root in _configs(root, stack):
        values = dict(vars(config))
        names = _count_names(stack, config, is_root)
        if not any(values.get(name) == count for name in names) and not _staged(stack, values):
            continue
        for name in names:
            if type(values.get(name)) is int and values[name] == count:
                yield config, name, len(keep)
        stage = _staged(stack, values)
        if stage is not None:
            name, index = stage
            counts = list(values[name])
            yield config, name, [*counts[:index], len(keep), *counts[index + 1 :]]
        for name, value in values.items():
            if not isinstance(value, list | tuple) or name in PER_STAGE or not ("layer" in name or name in PER_LAYER):
                continue
            if name in INDEX_LISTS:
                yield config, name, [keep.index(index) for index in value if index in keep]
            elif len(value) == count:
                yield config, name, type(value)(value[position] for position in keep)
        if len(values.get("stage_names") or ()) == count + 1:  # a backbone calls every layer a stage
            yield config, "stage_names", values["stage_names"][: len(keep) + 1]
            yield config, "_out_features", [values["stage_names"][len(keep)]]
            yield config, "_out_indices", [len(keep)]
        if isinstance(values.get("attention_types"), list) and len(values.get("attention_layers", ())) == count:
            yield config, "attention_types", [[[values["attention_layers"][position] for position in keep], 1]]


def _configs(root: nn.Module, stack: Stack) -> Iterator[tuple[Any, bool]]:
    """The config of the module that owns the stack, and the model's own where that is another object."""
    owner: Any = getattr(root, "config", None)
    module: Any = root
    for name in stack.path.split("."):
        module = getattr(module, name, None) if not name.isdigit() else module[int(name)]
        own = getattr(module, "config", None)
        owner = own if own is not None and hasattr(own, "to_dict") else owner
    top = getattr(root, "config", None)
    if owner is not None and owner is not top:
        yield owner, False
    if top is not None:
        yield top, True


def _count_names(stack: Stack, config: Any, is_root: bool) -> list[str]:
    """The attributes of a config that may hold the number of layers of this stack."""
    renamed = getattr(config, "attribute_map", {})
    own, other = (DECODER_COUNTS, ENCODER_COUNTS) if "decoder" in stack.path else (ENCODER_COUNTS, DECODER_COUNTS)
    sided = [name for name in own if hasattr(config, name)]
    if is_root and sided and "decoder" in stack.path:
        return sided
    return [name for name in (*sided, *(renamed.get(n, n) for n in COUNT_NAMES)) if name not in other]


def _staged(stack: Stack, values: dict[str, Any]) -> tuple[str, int] | None:
    """(attribute, stage) where the config lists the number of layers stage by stage and this stack is one stage."""
    numbers = [int(part) for part in stack.path.split(".") if part.isdigit()]
    for name in PER_STAGE if numbers else ():
        counts = values.get(name)
        if isinstance(counts, list | tuple) and numbers[-1] < len(counts) and counts[numbers[-1]] == len(stack):
            return name, numbers[-1]
    return None
