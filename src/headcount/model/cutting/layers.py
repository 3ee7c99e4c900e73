"""Deleting whole layers: the list gets shorter, the layers that stay are renumbered, the config stays true."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from ...plans import Plan
from .. import source_code
from ..anatomy import Anatomy, Site, Stack
from .transaction import Transaction

POSITION_NAMES = ("layer_idx", "layer_id")
COUNT_NAMES = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth")
ENCODER_COUNTS = ("encoder_layers", "num_encoder_layers", "encoder_num_layers", "encoder_num_hidden_layers")
DECODER_COUNTS = ("decoder_layers", "num_decoder_layers", "decoder_num_layers", "decoder_num_hidden_layers")
PER_STAGE = ("depths", "num_layers", "depth")
PICKED_LAYERS = r"feature_layers?$|intermediate_(layer|hidden_state|hook)|out_hidden_states|_layer_ind|select_layers?$"
SIDE_STREAMS = ("residual_trend", "prev_attn_output")  # what some layers return besides the hidden states, and add up
PER_LAYER = ("attention_window",)  # lists with an entry per layer whose names do not say so
INDEX_LISTS = (
    "mlp_only_layers",
    "cross_attention_layers",
    "attn_layer_indices",
    "full_attn_idxs",
    "global_attn_indexes",
)


def refusal(stack: Stack, anatomy: Anatomy, root: nn.Module) -> str | None:
    """Why layers of this stack cannot be deleted, or None if they can.

    Deleting a layer is exact if the code around treats layers alike: it may not use their numbers, keep something for
    each of them elsewhere, or hand on more than one thing from layer to layer.
    """
    owner = root.get_submodule(stack.path.rpartition(".")[0])
    return (
        _layers_depend_on_each_other(stack, anatomy.sites)
        or _owner_counts_layers(stack, owner)
        or _model_picks_layers(stack, root)
        or _config_is_shared(stack, anatomy.stacks, root)
    )


def _layers_depend_on_each_other(stack: Stack, sites: tuple[Site, ...]) -> str | None:
    block = type(stack.blocks[0])
    if source_code.streams(block) > 1 or any(word in source_code.text(block) for word in SIDE_STREAMS):
        return f"{block.__name__} hands on more than one thing from layer to layer"
    for site in _inside(stack, sites):
        if getattr(getattr(site.module, "config", None), "num_kv_shared_layers", 0):
            return "its layers lend keys and values to later ones"
        if site.columns is None or None in site.matrices or site.spec.layout == "per_head":
            continue
        input_width, output_width = site.matrices[0].shape[1], site.columns.shape[0]
        if input_width != output_width and site.attention != "cross":
            return f"its layers change the width of what they take in ({input_width} to {output_width})"
    first = {name for name, _ in stack.blocks[0].named_parameters()}
    later_names = {name for block in stack.blocks[1:] for name, _ in block.named_parameters()}
    alone = next((name for name in sorted(first - later_names) if "rel_attn_embed" in name), None)
    return None if alone is None else f"its first layer has {alone}, which the others depend on"


def _owner_counts_layers(stack: Stack, owner: nn.Module) -> str | None:
    for name, tensor in owner.named_parameters():
        direct = "." not in name and tensor.dim() > 1 and tensor.shape[0] > 1
        if (direct and tensor.shape[0] in (len(stack), len(stack) - 1)) or re.search(r"(^|\.)mid_", name):
            return f"{name} of shape {tuple(tensor.shape)} has entries per layer"
    for name, child in owner.named_children():
        if (
            isinstance(child, nn.ModuleList)
            and child is not stack.container
            and 0 <= len(stack) - len(child) <= 1 < len(child)
        ):
            return f"{name} has a module for each of its layers"
    index = source_code.layer_number_used(type(owner), stack.path.rpartition(".")[2])
    return None if index is None else f"{type(owner).__name__} uses the numbers of its layers ({index} in its loop)"


def _model_picks_layers(stack: Stack, root: nn.Module) -> str | None:
    name = stack.path.rpartition(".")[2]
    above = [type(root.get_submodule(path)) for path in _ancestors(stack.path)]
    for kind in above:
        code = source_code.text(kind, "forward", "get_")
        if kind is not above[-1] and re.search(rf"\w\.{name}\[(?!-1\])", code):
            return f"{kind.__name__} takes its layers one by one"
        if re.search(r"torch\.stack\(\w*(hidden|intermediate)|intermediate_embeddings", code):
            return f"{kind.__name__} gives out what every layer makes, stacked"
        if kind.__name__.endswith("Backbone"):
            return f"{kind.__name__} gives out layers by number"
        if re.search(r"vision|visual|image|audio", stack.path) and re.search(
            r"\.hidden_states\[(?!:)|hidden_states\[self\.", code
        ):
            return f"{kind.__name__} picks what one of its layers makes"
    config = getattr(root, "config", None)
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        return "its layers scale their attention by their own number"
    picked = [value for config, _ in _configs(root, stack) for value in _picks(config, inside=False)]
    if re.search(r"vision|visual|image|audio|encoder", stack.path):
        picked += _picks(config)
    first = next((name for name, value in picked if value is not None and value != []), None)
    return None if first is None else f"the model picks layers by number ({first} in its config)"


def _config_is_shared(stack: Stack, stacks: tuple[Stack, ...], root: nn.Module) -> str | None:
    """Whether another stack takes its number of layers from the same entry of a config, which cannot be true for both."""
    mine = _single_entries(stack, root)
    for other_stack in stacks:
        if other_stack is not stack and mine & _single_entries(other_stack, root):
            return f"{other_stack.name} takes its number of layers from the same entry of the config"
    return None


def _single_entries(stack: Stack, root: nn.Module) -> set[tuple[int, str]]:
    return {(id(config), name) for config, name, value in _true_config(root, stack, [0]) if type(value) is int}


def _picks(config: Any, inside: bool = True) -> Iterator[tuple[str, Any]]:
    """The values in a config, and in the configs inside it, that name layers by number."""
    for name, value in vars(config).items() if config is not None else ():
        if hasattr(value, "to_dict"):
            yield from _picks(value) if inside else ()
        elif re.search(PICKED_LAYERS, name):
            yield name, value


def _ancestors(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts))]


def last_attention_goes(root: nn.Module, stack: Stack, sites: tuple[Site, ...], drop: set[int]) -> bool:
    """Whether a hybrid stack would be left without any full attention, on which its cache counts."""
    names = list(stack.container._modules)
    holding = {names.index(site.path[len(stack.path) + 1 :].split(".")[0]) for site in _inside(stack, sites)}
    for config, _ in _configs(root, stack):
        types = getattr(config, "layer_types", None)
        if isinstance(types, list) and len(types) == len(stack):
            holding &= {n for n, kind in enumerate(types) if "linear" not in kind and "conv" not in kind} or holding
    return holding <= drop


def _inside(stack: Stack, sites: tuple[Site, ...]) -> list[Site]:
    return [site for site in sites if site.kind == "head" and site.path.startswith(stack.path + ".")]


def delete(transaction: Transaction, root: nn.Module, stack: Stack, drop: set[int]) -> None:
    """Delete the layers at the positions in `drop`, renumber the rest, and write the new numbers into the config."""
    keep = [position for position in range(len(stack)) if position not in drop]
    names = list(stack.container._modules)
    numbered = all(name.isdigit() for name in names)
    _move_position_bias(transaction, stack, keep)
    children = {str(n) if numbered else names[p]: stack.blocks[p] for n, p in enumerate(keep)}
    transaction.set_children(stack.container, children)
    for new_position, old_position in enumerate(keep):
        for module in stack.blocks[old_position].modules():
            for name in POSITION_NAMES:
                if type(module.__dict__.get(name)) is int and module.__dict__[name] == old_position != new_position:
                    transaction.set(module, name, new_position)
    for config, name, value in _true_config(root, stack, keep):
        transaction.set(config, name, value)


def _move_position_bias(transaction: Transaction, stack: Stack, keep: list[int]) -> None:
    """T5: the first layer makes the position bias for all; if it goes, the next one to stay takes the table over."""
    for maker, taker in _bias_heirs(stack, keep):
        transaction.set(taker, "relative_attention_bias", maker.relative_attention_bias)
        transaction.set(taker, "has_relative_attention_bias", True)


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
        stage = _staged(stack, values)
        names = [] if stage else [name for name in _count_names(stack, config, is_root) if values.get(name) == count]
        if not names and stage is None:
            continue
        for name in names:
            yield config, name, len(keep)
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
    """The config of the module that owns the stack; the model's own too where that is not part of it (T5 copies it)."""
    top = owner = getattr(root, "config", None)
    for prefix in (*_ancestors(stack.path), stack.path):
        own = getattr(root.get_submodule(prefix), "config", None)
        owner = own if own is not None and hasattr(own, "to_dict") else owner
    if owner is None:
        return
    if owner is not top:
        yield owner, False
    if owner is top or not _holds(top, owner):
        yield top, True


def _holds(config: Any, part: Any) -> bool:
    return any(value is part or (hasattr(value, "to_dict") and _holds(value, part)) for value in vars(config).values())


def _count_names(stack: Stack, config: Any, is_root: bool) -> list[str]:
    """The attributes of a config that may hold the number of layers of this stack."""
    renamed = getattr(config, "attribute_map", {})
    own, opposite_names = (
        (DECODER_COUNTS, ENCODER_COUNTS) if "decoder" in stack.path else (ENCODER_COUNTS, DECODER_COUNTS)
    )
    sided = [name for name in own if hasattr(config, name)]
    if is_root and sided and "decoder" in stack.path:
        return sided
    return [name for name in (*sided, *(renamed.get(n, n) for n in COUNT_NAMES)) if name not in opposite_names]


def _staged(stack: Stack, values: dict[str, Any]) -> tuple[str, int] | None:
    """(attribute, stage) where the config lists the number of layers stage by stage and this stack is one stage."""
    numbers = [int(part) for part in stack.path.split(".") if part.isdigit()]
    for name in PER_STAGE if numbers else ():
        counts = values.get(name)
        if isinstance(counts, list | tuple) and numbers[-1] < len(counts) and counts[numbers[-1]] == len(stack):
            return name, numbers[-1]
    return None


def is_about_layers(name: str) -> bool:
    """Whether an attribute of a config is one that deleting layers changes."""
    counts = (*COUNT_NAMES, *ENCODER_COUNTS, *DECODER_COUNTS, *PER_STAGE, *PER_LAYER, *INDEX_LISTS)
    return name in (*counts, "stage_names", "attention_types") or (not name.startswith("_") and "layer" in name)


def may_have_been(name: str, value: object, now: object, removed: int) -> bool:
    """Whether an attribute of a config may have had this value before so many layers were removed."""
    if type(value) is int:
        return type(now) is int and 0 < value <= now + removed
    if not isinstance(value, list) or not isinstance(now, list | tuple) or len(value) > len(now) + removed:
        return False
    if name in PER_STAGE:
        counts = all(type(entry) is int and entry > 0 for entry in value)
        return counts and len(value) == len(now) and sum(value) <= sum(now) + removed
    return all(_is_plain(entry, 3) for entry in value)


def _is_plain(entry: object, depth: int) -> bool:
    """Whether an entry of a config's list is a number, a short text, or a short list of such."""
    if isinstance(entry, list):
        return depth > 0 and len(entry) <= 10_000 and all(_is_plain(part, depth - 1) for part in entry)
    if isinstance(entry, int | float):
        return math.isfinite(entry) and abs(entry) < 10_000_000
    return entry is None or (isinstance(entry, str) and len(entry) <= 200)


def deleted_blocks(anatomy: Anatomy, plan: Plan) -> list[nn.Module]:
    """The layers that a plan deletes."""
    chosen = plan.by_site()
    return [
        stack.blocks[position] for stack in anatomy.stacks for position in stack.positions(chosen.get(stack.name, ()))
    ]
