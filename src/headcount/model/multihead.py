"""`nn.MultiheadAttention` never calls its output projection, so hooks on it are silent: this opens it.

`OpenMultiheadAttention` computes the same thing from the same parameters, calls `out_proj` as a module, and takes its
number of heads from the shapes of its weights, so that it also runs after a cut. A module is opened by a change of its
class and closed again by changing it back: no parameter, no name in the state dict, and no other attribute changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, scaled_dot_product_attention

from ..errors import Refused
from .distributed.tensor_parallel import whole_inputs


class OpenMultiheadAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` that calls `out_proj`, batch first, as a module."""

    @property
    def _qkv_same_embed_dim(self) -> bool:
        # nn.TransformerEncoderLayer has a fused kernel that takes the weights and calls no module at all, and looks
        # at this attribute to decide; whether the weights are packed is read off `in_proj_weight` instead.
        return False

    @_qkv_same_embed_dim.setter
    def _qkv_same_embed_dim(self, value: bool) -> None:
        pass

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The same arguments and results as `nn.MultiheadAttention.forward`."""
        single = query.dim() == 2
        if single:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            key_padding_mask = key_padding_mask if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        if not len(self.in_proj_weight if self.in_proj_weight is not None else self.q_proj_weight):
            output = self.out_proj(query)  # every head is gone: what is left is the bias
            return (output.squeeze(0) if single else output if self.batch_first else output.transpose(0, 1)), None
        q, k, v = (self._project(t, n) for n, t in enumerate((query, key, value)))
        bias = self._bias(q, k, attn_mask, key_padding_mask)
        drop = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            weights = dropout((scores if bias is None else scores + bias).softmax(-1), drop)
            context = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            context = scaled_dot_product_attention(q, k, v, bias, drop)
        output = self.out_proj(context.transpose(1, 2).flatten(-2))
        if single:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return (output if self.batch_first else output.transpose(0, 1)), weights

    def _reset_parameters(self) -> None:
        """As in the base class, which looks at the attribute above to find the matrices."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def _project(self, x: Tensor, part: int) -> Tensor:
        """Query (0), key (1) or value (2) of `x`, as (batch, heads, length, width)."""
        if self.in_proj_weight is not None:
            weight = self.in_proj_weight.chunk(3)[part]
        else:
            weight = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[part]
        bias = None if self.in_proj_bias is None else self.in_proj_bias.chunk(3)[part]
        return linear(x, weight, bias).unflatten(-1, (weight.shape[0] // self.head_dim, self.head_dim)).transpose(1, 2)

    def _bias(self, q: Tensor, k: Tensor, mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
        """One additive mask from the two; a True in either means: do not look."""
        if mask is not None and mask.dim() == 3:
            # one mask per (example, head), made for the heads there once were
            mask = mask.unflatten(0, (q.shape[0], -1))
            if mask.shape[1] not in (1, q.shape[1]):
                raise Refused(
                    "This attention has lost heads, and the mask given still has one entry per original head."
                )
        parts = [mask, None if padding is None else padding[:, None, None, :]]
        added = [_additive(part, q.dtype) for part in parts if part is not None]
        return sum(added[1:], added[0]) if added else None


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


def closed_attentions(root: nn.Module) -> list[nn.MultiheadAttention]:
    """The plain `nn.MultiheadAttention` modules below `root`; `Refused` for one with options that cannot be opened."""
    attentions = [module for module in root.modules() if type(module) is nn.MultiheadAttention]
    if any(module.bias_k is not None or module.add_zero_attn for module in attentions):
        raise Refused(
            "nn.MultiheadAttention with add_bias_kv or add_zero_attn adds positions of its own: not supported."
        )
    return attentions


_open_for: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # how many contexts hold a module open
_nested: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # what use_nested_tensor of an encoder held open was


@contextmanager
def opened(root: nn.Module) -> Iterator[None]:
    """Within the block, hooks on output projections see what they are given, and all of it.

    Every `nn.MultiheadAttention` of `root` calls its projection as a module, and of a tensor-parallel model the projections
    are given the heads of all processes.
    """
    with called(root), whole_inputs(root):
        yield


@contextmanager
def called(root: nn.Module) -> Iterator[None]:
    """Within the block, every `nn.MultiheadAttention` of `root` calls its output projection as a module."""
    closed = closed_attentions(root)
    held: list[nn.Module] = [*closed, *(module for module in root.modules() if module in _open_for)]
    encoders = [module for module in root.modules() if isinstance(module, nn.TransformerEncoder)] if held else []
    for attention in closed:
        attention.__class__ = OpenMultiheadAttention
    for encoder in encoders:
        _nested.setdefault(encoder, encoder.use_nested_tensor)
        encoder.use_nested_tensor = False  # nested tensors exist for the fused kernel only
    for module in {*held, *encoders}:
        _open_for[module] = _open_for.get(module, 0) + 1
    try:
        yield
    finally:
        for module in {*held, *encoders}:  # contexts may end in any order: the last gives back
            _open_for[module] -= 1
            if _open_for[module] == 0:
                del _open_for[module]
                if isinstance(module, OpenMultiheadAttention):
                    setattr(module, "__class__", nn.MultiheadAttention)  # noqa: B010
                if isinstance(module, nn.TransformerEncoder):
                    module.use_nested_tensor = _nested.pop(module)
