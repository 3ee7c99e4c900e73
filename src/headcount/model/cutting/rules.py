"""Whether a site can be cut exactly, and in which cut mode: `slim`, `padded`, or refused with the reason.

*Slim* is the ordinary way: every matrix gets smaller and the attention runs on fewer heads. *Padded* is for code that
counts on the original number of units (it reshapes by a fixed size, or has per-head parts that no companion rule
knows): the matrices get just as small, and zeros stand in for the missing units between reading and writing. That is
exact as long as units do not see each other in between, and saves the projections but not the attention itself.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

from torch import Tensor, nn

from ...errors import Refused
from ...plans import Plan
from .. import source_code
from ..anatomy import Anatomy, Site, Stack
from ..distributed.refusals import FROM_FILES, in_one_process
from ..loading.quantised import ADVICE, is_to_be_quantised
from ..matrices import is_quantised
from . import layers
from .kv_groups import needs_padding
from .per_head import makes_bias_for_all, other_tensors, per_head_tensors

# Modules inside an attention that work on what comes in, before the readers: they see no heads.
INPUT_SIDE = (
    "q_a_layernorm",
    "kv_a_layernorm",
    "q_a_proj",
    "kv_a_proj_with_mqa",
    "sequence_reduction",
    "spatial_reduction",
    "sr",
    "convolution_projection",
    "router",
    "gate",
)
# Arithmetic on sizes that a cut makes untrue: a local variable or a fixed attribute where the width of all heads is meant.
# Attributes of attentions whose code lets heads see each other without any parameter that would show it.
MIXING = {
    "autocorrelation_factor": "it averages its autocorrelations over all heads",
    "conv_out_layer": "part of what its output projection reads are convolutions, not heads",
    "lambda_q1": "it subtracts heads from each other in pairs",
    "dt_proj": "it makes the mask of every head from the values of all",
    "layout_query": "its heads add their scores to those of the layout's attention",
    "gate_up_proj_adapter_list": "adapters add to what its neurons read",
    "fsmn": "its values also reach the output past the output projection",
}
_WIDTHS = r"(embed_dim|hidden_size|hidden_dim|d_model|channels?|num_channels|C|c|dim|all_head_dim)\b(?!\s*=)"
_FIXED = r"self\.(hidden_size|hidden_dim|d_model|dim|embedding_size|q_dim|kv_dim|q_size|k_size)\b(?!\s*=)"
_INSIDE = r"\.(?:view|reshape|split)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*?"
_RESHAPE = re.compile(f"{_INSIDE}(?:(?<![\\w.]){_WIDTHS}|{_FIXED})")
_MASKS = re.compile(r"mask[^=\n]*\.expand\([^)]*config\.num_attention_heads")
_DIVISION = re.compile(_WIDTHS + r"\s*//\s*(self\.)?(num_heads|num_attention_heads|n_heads|n_head|heads)\b")


def refuse(root: nn.Module, anatomy: Anatomy, plan: Plan, changed: Iterable[str]) -> None:
    """Raise `Refused` for the first thing in the plan, or site that gets other numbers, that cannot be done exactly."""
    in_one_process(root, "it cannot be cut here", FROM_FILES)
    shared = Counter(id(p) for _, p in root.named_parameters(remove_duplicate=False))
    chosen = plan.by_site()
    for name in (*chosen, *changed):
        part = anatomy[name]
        reason = refusal(part, anatomy, root) if name in chosen else None
        if isinstance(part, Stack):
            drop = set(part.positions(chosen[name]))
            if layers.last_attention_goes(root, part, anatomy.sites, drop):
                reason = "at least one layer with attention must stay"
            if any(shared[id(p)] > 1 for position in drop for p in part.blocks[position].parameters()):
                reason = "its layers are tied to other parts of the model"
        elif part.columns is not None:
            matrices = (*part.readers, part.writer)
            held = [p for m in matrices for p in m.parameters(recurse=False)]
            if any(shared[id(p)] > 1 for p in held):
                reason = "one of its matrices is tied to another module"
            if any(p.is_meta for p in held) and any(hasattr(m, "_hf_hook") for m in matrices):
                reason = f"its weights are offloaded ({FROM_FILES})"
        else:
            reason = reason or "a scale cannot be folded into its output weights, which are packed or grouped"
        if reason is not None:
            raise Refused(f"{name} cannot be cut exactly: {reason}; it can still be masked.")


def refusal(part: Site | Stack, anatomy: Anatomy, root: nn.Module) -> str | None:
    """Why units of this site cannot be removed exactly (they can still be masked), or None if they can."""
    if isinstance(part, Stack):
        return layers.refusal(part, anatomy, root)
    if not part.calls_writer:
        return f"{type(part.module).__name__} uses the weights of its output projection without calling it"
    if is_to_be_quantised(root) or any(is_quantised(module) for module in (*part.readers, part.writer)):
        return ADVICE
    if part.columns is None or None in part.matrices:
        return "its weights are quantised, grouped or packed in a way that cannot be sliced unit by unit"
    if _keys_and_values_differ(part):
        return "its keys and its values have different numbers of heads"
    if part.kind == "head" and masks_every_head(type(root)):
        return f"{type(root).__name__} makes attention masks for as many heads as its config names"
    return mixes_units(part)


@cache
def masks_every_head(kind: type) -> bool:
    """Whether the code of a model spreads its attention mask over a fixed number of heads (EoMT)."""
    return bool(_MASKS.search(source_code.text(kind)))


def _keys_and_values_differ(site: Site) -> bool:
    """Whether the key's rows per kv head, counted by the value's heads, are not what the module says a head has."""
    split = site.kind == "head" and site.spec.layout == "split" and len(site.widths) == 3 and site.whole is None
    return split and len(site) > 0 and getattr(site.module, "head_dim", None) == site.width != site.widths[1]


def mixes_units(site: Site) -> str | None:
    """The name of something between the readers and the writer that lets units see each other, or None."""
    columns = len(site) * site.width
    hidden = site.columns.shape[0] if site.columns else 0
    if getattr(getattr(site.module, "config", None), "num_kv_shared_layers", 0) and site.kind == "head":
        return "its layers share keys and values with each other"
    for name, reason in MIXING.items():
        if getattr(site.module, name, None) is not None:
            return reason
    for path, owner, name, tensor in _between(site):
        where = f"{path}.{name}".lstrip(".")
        if "norm" in type(owner).__name__.lower():
            over_all = tensor.shape[-1] in (columns, site.kv_heads * site.width) and tensor.shape[-1] != site.width
            if over_all and (columns != hidden or _stands_between(where)):
                return (
                    f"{where} normalises over all {len(site)} {site.kind}s at once, so removing one changes the others"
                )
        elif (
            tensor.dim() >= 2 and all(size in (len(site), columns) for size in tensor.shape[:2]) and columns != hidden
        ) or (tensor.dim() >= 2 and tuple(tensor.shape[:2]) == (len(site), len(site))):
            return f"{where} of shape {tuple(tensor.shape)} mixes {site.kind}s"
    return None


def _between(site: Site) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """The parameters that may stand between the readers and the writer and that no companion rule claims."""
    claimed = {(id(claim.owner), claim.name) for claim in per_head_tensors(site)}
    for path, owner, name, tensor in other_tensors(site):
        if (id(owner), name) not in claimed and set(path.split(".")).isdisjoint(INPUT_SIDE):
            yield path, owner, name, tensor


def _stands_between(where: str) -> bool:
    """Whether a norm's name says that it stands between the readers and the writer."""
    last = where.split(".")[-2] if "." in where else where
    between = ("q_", "k_", "v_", "query", "key", "value", "inner", "sub", "ffn", "attn_sub", "scale")
    return last.startswith(between) or last.endswith(("_q", "_k", "_v", "sub_norm"))


def is_padded(site: Site, keep: tuple[int, ...] | None = None) -> bool:
    """Whether this site is cut in the padded mode (down to the units at the positions in `keep`)."""
    if site.whole is not None or site.spec.layout == "sharded" or (keep is not None and needs_padding(site, keep)):
        return True
    if site.kind == "head" and (counts_on_width(type(site.module)) or _hands_bias_on(site)):
        return True
    return per_unit_without_rule(site) is not None


def per_unit_without_rule(site: Site) -> str | None:
    """The name of a parameter that has an entry per unit and that no companion rule claims, or None."""
    columns = len(site) * site.width
    hidden = site.columns.shape[0] if site.columns else 0
    if site.kind == "head" and makes_bias_for_all(site.module):
        return None  # its table has an entry per head and stays whole
    for path, owner, name, tensor in _between(site):
        if isinstance(owner, nn.Conv1d | nn.Conv2d) and owner.groups > 1 and owner.in_channels % len(site) == 0:
            return f"{path}.{name}"  # a convolution within each unit
        if tensor.dim() and _per_unit(tensor, site, columns, hidden):
            return f"{path}.{name}".lstrip(".")
    return None


def _per_unit(tensor: Tensor, site: Site, columns: int, hidden: int) -> bool:
    sizes = {len(site)} | ({columns} if columns != hidden else set())
    if site.kind == "neuron":
        return len(site) != hidden and any(size in sizes for size in tensor.shape)
    if tensor.dim() == 1:
        return tensor.shape[0] in sizes and tensor.shape[0] != site.width
    return tensor.shape[0] in sizes or tensor.shape[-1] == len(site) != site.width


def _hands_bias_on(site: Site) -> bool:
    """Whether the attention makes a position bias for all heads that later layers are given (LongT5 and its kin).

    Those that use the attention interface pick their own slices there (T5); the others are padded.
    """
    handed = "position_bias" in inspect.signature(type(site.module).forward).parameters
    return hasattr(site.module, "compute_bias") and handed and not makes_bias_for_all(site.module)


@cache
def counts_on_width(kind: type) -> bool:
    """Whether the code of an attention reshapes by the model's width where it means all heads together."""
    text = source_code.text(kind)
    return bool(_RESHAPE.search(text) or _DIVISION.search(text))
