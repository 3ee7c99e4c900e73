"""Per-head things outside the query, key, value and output matrices, and the rule that keeps each true after a cut.

Three kinds: tensors and modules of the attention with an entry per head (`claims`), numbers that modules keep about
themselves (`Counts`, `ConfigView`), and biases that come from outside with one slice per head (`slice_bias`, `attend`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..anatomy import Site
from ..architectures import COUNT_NAMES
from ..matrices import index_on
from ..source_code import names_used

# -- tensors with one entry per head -------------------------------------------------------------------------------------
# End of the tensor's path below the attention module -> the axis on which heads lie side by side. An axis of `units * n`
# entries holds n for each head. To teach headcount a new one, add its name here.

PER_HEAD: dict[str, int] = {
    "sinks": 0,
    "logit_scale": 0,
    "pos_bias_u": 0,
    "pos_bias_v": 0,
    "bias_u": 0,
    "bias_v": 0,
    "r_w_bias": 0,
    "r_r_bias": 0,
    "r_s_bias": 0,
    "r_kernel": 1,
    "seg_embed": 1,
    "sampling_offsets.weight": 0,
    "sampling_offsets.bias": 0,
    "attention_weights.weight": 0,
    "attention_weights.bias": 0,
    "q_bias": 0,
    "v_bias": 0,
    "relative_position_bias_table": 1,
    "relative_attention_bias.weight": 1,
    "continuous_position_bias_mlp.2.weight": 0,
    "linear_pos.weight": 0,
    "pos_key_proj.weight": 0,
    "pos_key_proj.bias": 0,
    "pos_query_proj.weight": 0,
    "pos_query_proj.bias": 0,
    "pos_proj.weight": 0,
    "pos_q_proj.weight": 0,
    "pos_q_proj.bias": 0,
    "relative_k_proj.weight": 0,
    "gate_proj.weight": 0,
    "gate_proj.bias": 0,
    "g_proj.weight": 0,
    "g_proj.bias": 0,
}


@dataclass(frozen=True, eq=False)
class PerHeadTensor:
    """A tensor, or a list of modules (`name` is None), with an entry per query head or per kv head."""

    owner: nn.Module
    name: str | None
    axis: int = 0
    per: str = "head"  # or "kv"

    @property
    def parameters(self) -> int:
        """How many parameters one head has in it."""
        if self.name is not None:
            tensor = getattr(self.owner, self.name)
            return tensor.numel() // tensor.shape[self.axis] if tensor.shape[self.axis] else 0
        return sum(p.numel() for p in self.owner.parameters()) // max(1, len(self.owner._modules))


def per_head_tensors(site: Site) -> list[PerHeadTensor]:
    """What a head site has per head besides its readers and its writer, and a rule knows how to cut."""
    if site.kind != "head" or not len(site):
        return []
    counts = {"head": len(site), "kv": site.kv_heads}
    claims = []
    for _, owner in site.module.named_modules():
        if isinstance(owner, nn.ModuleList):
            per = next((per for per, count in counts.items() if len(owner) == count), None)
            if per is not None:
                claims.append(PerHeadTensor(owner, None, 0, per))
    shared_bias = makes_bias_for_all(site.module)
    for path, owner, name, tensor in other_tensors(site):
        where = f"{path}.{name}".lstrip(".")
        if shared_bias and where == "relative_attention_bias.weight":
            continue  # stays whole: layers above are given all of it
        axis = next((axis for end, axis in PER_HEAD.items() if where == end or where.endswith("." + end)), None)
        if axis is not None and axis < tensor.dim() and tensor.shape[axis] % len(site) == 0:
            claims.append(PerHeadTensor(owner, name, axis))
        elif "norm" in type(owner).__name__.lower() and tensor.dim() == 2:
            per = next((per for per, count in counts.items() if tensor.shape[0] == count), None)
            if per is not None:  # a norm with weights of its own for every head
                claims.append(PerHeadTensor(owner, name, 0, per))
    return claims


def other_tensors(site: Site) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """(path, owner, name, tensor) of the parameters below the site's module that are no reader's and not the writer's."""
    skip = {id(module) for module in (*site.readers, site.writer)}
    packed = isinstance(site.module, nn.MultiheadAttention)
    for path, owner in site.module.named_modules():
        if id(owner) in skip and not (packed and owner is site.module):
            continue
        if site.kind == "neuron" and _other_part(site, path):
            continue
        for name, tensor in owner.named_parameters(recurse=False):
            if not (packed and name.startswith("in_proj")):
                yield path, owner, name, tensor


def _other_part(site: Site, path: str) -> bool:
    """Whether `path`, below an MLP's module, belongs to something else: in some architectures that module is the whole layer."""
    inner = {name.split(".")[0] for name in (*site.spec.reads, *site.spec.writes)}
    whole_layer = any("." in name for name in site.spec.reads)
    return bool(path) and whole_layer and path.split(".")[0] not in inner


def makes_bias_for_all(module: nn.Module) -> bool:
    """Whether an attention is handed a position bias for all heads, or makes it, and gives it to the attention interface."""
    handed = "position_bias" in inspect.signature(type(module).forward).parameters
    return hasattr(module, "compute_bias") and handed and uses_attention_interface(module)


# -- numbers that modules keep about themselves ---------------------------------------------------------------------------

HEAD_COUNTS = COUNT_NAMES
KV_COUNTS = ("num_key_value_heads", "num_kv_heads", "kv_heads")
GROUP_SIZES = ("num_key_value_groups", "n_rep", "num_kv_groups")
TOTAL_WIDTHS = (
    "all_head_size",
    "inner_dim",
    "attn_dim",
    "split_size",
    "attention_dim",
    "total_head_dim",
    "embed_dim",
    "hidden_size_output",
    "head_size",
)
KV_WIDTHS = ("kv_dim", "kv_size", "kv_hidden_size")
NEURON_COUNTS = ("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "n_inner", "dim_feedforward", "ffn_hidden_size")
CONFIG_COUNTS = (*HEAD_COUNTS, *KV_COUNTS)


@dataclass(frozen=True)
class Counts:
    """How many query heads and kv heads an attention has, their width, and query heads per kv head."""

    heads: int
    kv: int
    width: int
    group: int

    def named(self) -> dict[str, int]:
        """Attribute name -> value, for every name under which modules keep one of these numbers."""
        out: dict[str, int] = dict.fromkeys(HEAD_COUNTS, self.heads) | dict.fromkeys(KV_COUNTS, self.kv)
        out |= dict.fromkeys(GROUP_SIZES, self.group) | dict.fromkeys(KV_WIDTHS, self.kv * self.width)
        return out | dict.fromkeys(TOTAL_WIDTHS, self.heads * self.width)


def stale_numbers(site: Site, new_counts: Counts) -> Iterator[tuple[nn.Module, str, int]]:
    """(module, attribute, value) of every number about heads, in the attention and below it, that the cut makes untrue."""
    group = 1 if getattr(site.module, "headcount_kv_of", None) is not None else len(site) // max(1, site.kv_heads)
    old_values, now = Counts(len(site), site.kv_heads, site.width, group).named(), new_counts.named()
    for module in site.module.modules():
        for name, value in now.items():
            if type(module.__dict__.get(name)) is int and module.__dict__[name] == old_values[name] != value:
                yield module, name, value
        if hasattr(module, "input_linear") and getattr(module, "hidden_size", None) == old_values["inner_dim"]:
            yield module, "hidden_size", now["inner_dim"]  # mixture of attention heads: what its experts write


class ConfigView:
    """A config as one cut attention should see it: the model's own, with a few values of its own on top.

    Some attentions read head counts from the config while they run, and all that go through the attention interface
    read the name of the kernel there. Everything else is passed on live, so a later change of the model's config shows.
    """

    def __init__(self, base: Any, **own: Any) -> None:
        self.__dict__.update(base=base, own=own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "base" not in self.__dict__:
            raise AttributeError(name)
        own = self.__dict__["own"]
        return own[name] if name in own else getattr(self.__dict__["base"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["base"], name, value)


def reads_counts_from_config(module: nn.Module) -> bool:
    """Whether the module's code, outside `__init__`, looks up a head count in a config."""
    return "config" in names_used(type(module)) and not names_used(type(module)).isdisjoint(CONFIG_COUNTS)


def uses_attention_interface(module: nn.Module) -> bool:
    """Whether the module asks transformers' attention interface for its kernel."""
    return "ALL_ATTENTION_FUNCTIONS" in names_used(type(module)) and hasattr(module, "config")


# -- biases that come from outside, one slice per head --------------------------------------------------------------------


@dataclass(frozen=True)
class Outside:
    """An argument by which an attention is handed something with one slice per head."""

    name: str
    position: int
    axis: int  # 1 for (batch, heads, query, key); 0 for (heads, ...) or (batch * heads, ...)


def outside_biases(module: nn.Module, root: nn.Module) -> tuple[Outside, ...]:
    """The arguments of this attention's `forward` that hold one slice per head of the model."""
    names = list(inspect.signature(type(module).forward).parameters)[1:]
    alibi = any("alibi" in name for kind in {type(part) for part in root.modules()} for name in names_used(kind))
    made_outside = not _has_bias_maker(module) and _has_bias_maker(root)
    axes = {"attention_mask": 1} if alibi or made_outside else {}
    axes |= {"position_bias": 0 if alibi else 1, "alibi": 0}
    axes |= dict.fromkeys(("relative_position_bias", "rel_pos", "rel_2d_pos"), 1)
    return tuple(Outside(name, names.index(name), axis) for name, axis in axes.items() if name in names)


def _has_bias_maker(module: nn.Module) -> bool:
    """Whether something below makes a bias per head from relative positions."""
    return any(
        "RelativePositionBias" in type(part).__name__ or "rpb" in path.lower() for path, part in module.named_modules()
    )


def slice_bias(
    arguments: tuple[Outside, ...],
    keep: tuple[int, ...],
    of: int,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pre-hook of an attention: its bias arguments with only the slices of the heads that are left."""
    for argument in arguments:
        if argument.name in kwargs:
            kwargs = {**kwargs, argument.name: _slices(kwargs[argument.name], argument.axis, keep, of)}
        elif len(args) > argument.position:
            sliced = _slices(args[argument.position], argument.axis, keep, of)
            args = (*args[: argument.position], sliced, *args[argument.position + 1 :])
    return args, kwargs


def _slices(bias: Any, axis: int, keep: tuple[int, ...], of: int) -> Any:
    """The slices of the heads in `keep`; a bias of another rank, or one that all heads share, as it is."""
    if not isinstance(bias, Tensor) or bias.dim() != 3 + axis or bias.shape[axis] % of:
        return bias
    index = index_on(keep, bias.device)
    if axis == 1:
        return bias.index_select(1, index)
    return bias.unflatten(0, (-1, of)).index_select(1, index).flatten(0, 1)
