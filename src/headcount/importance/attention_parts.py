"""What an attention computes on the way: its queries, keys, values and patterns, read off the calls of torch that it makes.

Attentions are written in a dozen ways, and all of them multiply queries by keys and weights by values. So nothing is known here
about families: while an attention runs, its matrix products and its fused kernel are watched. The last product
has the pattern on its left and the values on its right; the first product that has one number for every
query and key has the queries on its left and the keys on its right. A fused kernel is given all three, and the pattern is
computed from them as the kernel is documented to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import Refused
from ..model.anatomy import Site
from ..model.source_code import text
from ..model.tensor_trees import tensors

FUSED = "scaled_dot_product_attention"
IN_THE_OPEN = ("eager", "sdpa")  # kernels that are made of calls that can be watched


@dataclass(frozen=True, eq=False)
class AttentionParts:
    """What one attention multiplied, each (batch, heads, length, width), and the pattern (batch, heads, queries, keys).

    Queries and keys are those that are multiplied by each other: after norms and rotary embeddings. Shared keys and values are
    repeated, one for each query head. All but the pattern are None where an attention hands out nothing else.
    """

    queries: Tensor | None
    keys: Tensor | None
    values: Tensor | None
    patterns: Tensor


@dataclass(eq=False)
class _Calls:
    """The products that one attention has made so far: (left, right, result), and what a fused kernel was given."""

    site: Site
    products: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    fused: list[tuple[Any, Any]] = field(default_factory=list)


class _Watch(TorchFunctionMode):
    """While it is active, products that are made inside the innermost attention are noted down."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[_Calls] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.running:
            name = getattr(func, "__name__", "")
            if name == FUSED:
                self.running[-1].fused.append((args, kwargs))
            elif isinstance(result, Tensor) and (product := _product(name, args, kwargs, result)) is not None:
                self.running[-1].products.append(product)
        return result


def _product(name: str, args: Any, kwargs: Any, result: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """A product of batches of matrices as (left, right, result); None for any other call."""
    given = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
    plain = name.strip("_")
    if plain == "einsum":
        given = [t for t in tensors(args[1:])]
        return _einsum(args[0], given, result) if len(given) == 2 and isinstance(args[0], str) else None
    if plain in ("matmul", "bmm") and len(given) >= 2:
        left, right = given[:2]
    elif plain == "rmatmul" and len(given) >= 2:
        right, left = given[:2]
    elif plain == "baddbmm" and len(given) >= 3:
        left, right = given[1:3]
    else:
        return None
    return (left, right, result) if left.dim() > 2 and right.dim() > 2 else None


def _einsum(equation: str, given: Sequence[Tensor], result: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """An einsum that is a product of batches of matrices, with its axes in the order of one: "ibnd,jbnd->bnij"."""
    found = re.fullmatch(r"(\w+),(\w+)->(\w+)", equation.replace(" ", ""))
    if found is None:
        return None
    one, other, out = found.groups()
    batch = [axis for axis in out if axis in one and axis in other]
    rows, columns = ([axis for axis in out if axis in some and axis not in batch] for some in (one, other))
    inner = [axis for axis in one if axis in other and axis not in out]
    if not len(rows) == len(columns) == len(inner) == 1 or not batch:
        return None

    def ordered(tensor: Tensor, axes: str, wanted: Sequence[str]) -> Tensor:
        return tensor.permute([axes.index(axis) for axis in wanted])

    return (
        ordered(given[0], one, [*batch, *rows, *inner]),
        ordered(given[1], other, [*batch, *inner, *columns]),
        ordered(result, out, [*batch, *rows, *columns]),
    )


@contextmanager
def watched(root: nn.Module, sites: Sequence[Site], see: Callable[[Site, AttentionParts], None]) -> Iterator[None]:
    """Within the block, `see(site, parts)` is called whenever one of these attentions has run; `Refused` where parts cannot
    be told."""
    watch = _Watch()

    def begin(site: Site) -> Callable[..., None]:
        def before(_: nn.Module, __: Any) -> None:
            watch.running.append(_Calls(site))

        return before

    def end(_: nn.Module, __: Any, output: Any) -> None:
        if output is None:  # the pass was interrupted
            watch.running.clear()
            return
        calls = watch.running.pop()
        see(calls.site, _parts(calls, output))

    with ExitStack() as stack:
        if _kernels(root) - set(IN_THE_OPEN):
            stack.enter_context(in_the_open(root, sites))
        for site in sites:
            stack.callback(site.module.register_forward_pre_hook(begin(site)).remove)
            stack.callback(site.module.register_forward_hook(end, always_call=True).remove)
        stack.enter_context(watch)
        yield


def _kernels(root: nn.Module) -> set[str]:
    """The attention kernels that the configs of a model name."""
    configs = (getattr(module, "config", None) for module in root.modules())
    names = (getattr(config, "_attn_implementation", None) for config in configs)
    return {name for name in names if isinstance(name, str)}


def _parts(calls: _Calls, output: Any) -> AttentionParts:
    """The parts of an attention from the calls that it made."""
    site = calls.site
    if calls.fused:
        return _of_fused(site, *calls.fused[-1])
    heads = _heads(site)
    if calls.products:  # approximations multiply weights as well, and something else at last
        left, right, _ = calls.products[-1]
        pattern, values = _by_head(left, heads), _by_head(right, heads)
        if pattern is None or values is None or left.shape[:-2] != right.shape[:-2] or not _are_weights(pattern):
            raise unreadable(site)
        for query, key, scores in calls.products[:-1]:
            if scores.shape[:-1] == left.shape[:-1] and left.shape[-1] <= scores.shape[-1]:
                queries, keys = _by_head(query, heads), _by_head(key.transpose(-2, -1), heads)
                if queries is not None and keys is not None:
                    return AttentionParts(*(_present(site, part) for part in (queries, keys, values, pattern)))
        raise unreadable(site)
    pattern = handed_out(site, output)
    if pattern is None:
        raise unreadable(site)
    return AttentionParts(None, None, None, pattern)


def _are_weights(tensor: Tensor) -> bool:
    """Whether rows are weights: from zero on, and at most one together; less where a part goes to an attention sink."""
    sums = tensor.detach().float().sum(-1)
    return bool((tensor >= 0).all()) and bool((sums < 1.02).all()) and bool((sums > 0).any())


def unreadable(site: Site) -> Refused:
    """What is said of an attention without one distribution over keys for each head."""
    return Refused(
        f"{site.name} ({type(site.module).__name__}) does not weight values by one distribution over keys for each of its "
        f"{len(site)} heads in a way that can be read, as linear or blockwise attentions do not, so what it looks at cannot be "
        'told; its head outputs can be had, and scores such as "taylor" or "ablation".'
    )


def _heads(site: Site) -> int:
    """How many heads the code of an attention computes: in a padded one also those that are gone."""
    return len(site.whole.ids) if site.whole is not None else len(site)


def _by_head(tensor: Tensor, heads: int) -> Tensor | None:
    """(batch, heads, ., .) from that, or from (batch * heads, ., .); None for anything else."""
    if tensor.dim() == 3 and tensor.shape[0] % heads == 0:
        return tensor.unflatten(0, (-1, heads))
    if tensor.dim() == 4 and tensor.shape[1] in (1, heads):
        return tensor.expand(-1, heads, -1, -1)
    return None


def _present(site: Site, part: Tensor) -> Tensor:
    """The heads that are still there."""
    if site.whole is None:
        return part
    return part[:, [site.whole.ids.index(index) for index in site.ids]]


def _of_fused(site: Site, args: Any, kwargs: Any) -> AttentionParts:
    """The parts from what torch's fused kernel was given."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    heads = _heads(site)
    query = _by_head(given["query"], heads)
    if query is None:
        raise unreadable(site)
    # with enable_gqa, keys and values have a head for each group of query heads
    key, value = (
        t.repeat_interleave(heads // t.shape[1], 1) if t.dim() == 4 and t.shape[1] not in (1, heads) else t
        for t in (given["key"], given["value"])
    )
    keys, values = _by_head(key, heads), _by_head(value, heads)
    if keys is None or values is None:
        raise unreadable(site)
    scale = given.get("scale")
    scores = query @ keys.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    pattern = _softmax(scores, given.get("attn_mask"), bool(given.get("is_causal")))
    return AttentionParts(*(_present(site, part) for part in (query, keys, values, pattern)))


def _softmax(scores: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    """Weights (batch, heads, queries, keys) from scores; zeros for a query that may look at nothing."""
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1).nan_to_num(0.0)


def handed_out(site: Site, output: Any) -> Tensor | None:
    """The pattern among what an attention returns, where it hands it out."""
    return next((t for t in tensors(output) if t.dim() == 4 and t.shape[1] == len(site) and is_distribution(t)), None)


def is_distribution(tensor: Tensor) -> bool:
    """Whether the last axis sums to one, wherever anything may be looked at; position biases do not, also zeros."""
    sums = tensor.detach().float().sum(-1)
    return bool((((sums - 1).abs() < 0.02) | (sums == 0)).all()) and bool((sums > 0).any())


@contextmanager
def in_the_open(root: nn.Module, sites: Sequence[Site]) -> Iterator[None]:
    """Within the block the model computes attention in the open, and is asked for its probabilities if it wants that."""
    # attentions of the older manner look at this setting; for the others transformers would leave hooks of its own behind
    asks = any(re.search("(if|and) (not )?output_attentions", text(type(site.module))) for site in sites)
    configs = {id(m.config): m.config for m in root.modules() if hasattr(m, "config")}.values()
    before = [(config, dict(vars(config))) for config in configs]
    names = {id(config): getattr(config, "_attn_implementation", None) for config in configs}
    try:
        # each model within the model by itself: up to transformers 5.19, the whole one passes over those whose config is a
        # copy of its own, as the stacks of T5
        for module in root.modules():
            if hasattr(module, "set_attn_implementation") and module.config._attn_implementation != "eager":
                module.set_attn_implementation("eager")
        for config in configs if asks else ():
            config._output_attentions = True
        yield
    finally:
        for config, values in before:
            vars(config).clear()
            vars(config).update(values)
            if getattr(config, "_attn_implementation", None) != names[id(config)]:
                config._attn_implementation = names[id(config)]
