"""The attention kernel of a cut model: uneven kv groups and picked position biases, then the kernel that the config names.

Keys and values are in the cache once per kv head. While a prompt is read, each query head gets a copy of its own, which costs
little beside the attention itself. While one token after the other is written, copying the whole cache in every step would cost
more than the attention: there the query heads of a kv head stand side by side as if they were positions of one query, and keys
and values are read where they lie.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..matrices import index_on

KERNEL = "headcount"


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
) -> Any:
    """An attention kernel: the one the model's config names, after giving each surviving head its own key, value and bias.

    `headcount_kv_of` says which kv head each query head uses, where groups are uneven; `headcount_bias_of` picks the
    surviving heads' slices of a position bias that is made for all of them and handed on from layer to layer.
    """
    bias = kwargs.get("position_bias")
    if module.headcount_bias_of is not None and bias is not None and bias.shape[1] > 1:
        kwargs["position_bias"] = heads_at(bias, module.headcount_bias_of)
    scope = inspect.unwrap(type(module).forward).__globals__
    name = module.config.base._attn_implementation
    kernel = scope["ALL_ATTENTION_FUNCTIONS"].get_interface(name, scope["eager_attention_forward"])
    kv_of = module.headcount_kv_of
    if kv_of is None:
        return kernel(module, query, key, value, attention_mask, **kwargs)
    if name == "sdpa" and bias is None and _is_one_position(query, attention_mask):
        # a cache of Python's is passed over while compiling, with a warning
        arrange = side_by_side.__wrapped__ if torch.compiler.is_compiling() else side_by_side
        slots, places = arrange(kv_of)
        # (batch, heads, 1, width) -> (batch, kv heads, heads of the largest group, width)
        query = heads_at(query, slots).view(query.shape[0], key.shape[1], -1, query.shape[3])
        output, weights = kernel(module, query, key, value, attention_mask, **{**kwargs, "is_causal": False})
        # (batch, heads of a group, kv heads, width) -> (batch, 1, heads, width)
        return heads_at(output.flatten(1, 2), places).unsqueeze(1), weights
    return kernel(module, query, heads_at(key, kv_of), heads_at(value, kv_of), attention_mask, **kwargs)


def _is_one_position(query: Tensor, mask: Tensor | None) -> bool:
    """Whether there is one position to compute, under a mask that is the same for all heads.

    An export is for any number of positions, and does not ask.
    """
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if traced or torch.compiler.is_exporting():
        return False
    return query.shape[2] == 1 and (mask is None or (mask.dim() == 4 and mask.shape[1:3] == (1, 1)))


@lru_cache(maxsize=4096)
def side_by_side(kv_of: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The query head in each slot of a table of kv heads by heads of the largest group, and where each head is in the output.

    The output has the slots in the other order, heads of a group by kv heads. Slots that are left over hold a head of the same
    group once more, whose output nobody reads.

    Examples:
        >>> side_by_side((0, 1, 1))
        ((0, 0, 1, 2), (0, 1, 3))
    """
    groups = [[head for head, kv in enumerate(kv_of) if kv == group] for group in range(max(kv_of) + 1)]
    size = max(map(len, groups))
    slots = [head for heads in groups for head in [*heads, *heads[:1] * (size - len(heads))]]
    places = [groups[kv].index(head) * len(groups) + kv for head, kv in enumerate(kv_of)]
    return tuple(slots), tuple(places)


def heads_at(tensor: Tensor, places: Sequence[int]) -> Tensor:
    """The entries of axis 1 at these places, as `index_select` gives them.

    Compiled code is given slices: an index would be a tensor that it copies to the GPU in every pass, which CUDA graphs refuse.
    """
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        return torch.cat([tensor[:, place : place + 1] for place in places], 1)
    return tensor.index_select(1, index_on(tuple(places), tensor.device))


def register_kernel() -> None:
    """Make `attend` known to transformers under the name that `ConfigView`s give out; done by the first cut that needs it."""
    from transformers import AttentionInterface

    AttentionInterface.register(KERNEL, attend)
