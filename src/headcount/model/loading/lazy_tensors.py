"""Tensors that stay in their files: they know their shape, and are read when something is computed with them.

What only rearranges a tensor (a cast, a choice of rows, a concatenation) is written down and carried out when the numbers
are needed, so that a whole model can be loaded, renamed, cut and saved while one tensor at a time is in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...errors import Refused

_aten: Any = torch.ops.aten
# what gives a tensor that lies in the same memory, and what gives a new one; everything else is computed at once
VIEWS = {
    _aten.alias.default,
    _aten.detach.default,
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten._reshape_alias.default,
    _aten.expand.default,
    _aten.permute.default,
    _aten.transpose.int,
    _aten.t.default,
    _aten.unsqueeze.default,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.slice.Tensor,
    _aten.select.int,
    _aten.split.Tensor,
    _aten.split_with_sizes.default,
    _aten.unbind.int,
}
PARTS = {_aten.split.Tensor, _aten.split_with_sizes.default, _aten.unbind.int}
WHOLES = 4  # of the experts of a layer: their gates and ups in one, each of these, and their downs
COPIES = {
    _aten._to_copy.default,
    _aten.clone.default,
    _aten.index_select.default,
    _aten.cat.default,
    _aten.stack.default,
    _aten.constant_pad_nd.default,
}
_addresses = itertools.count(1)
_recent: dict[Recipe, Tensor] | None = None  # what parts were last taken of, while `wholes_kept` says so
APART = 2**42  # bytes between the addresses that lazy tensors claim, so that no two of them seem to overlap


@dataclass(eq=False)
class Recipe:
    """How to come by a tensor: what reads it or computes it, and a tensor without memory that has its shape."""

    compute: Callable[[], Tensor]
    like: Tensor  # on the meta device
    device: torch.device
    address: int  # where it claims to lie: the same for all that shares memory
    whole: int  # bytes of the memory that it lies in
    keep: bool = False  # once computed, it stays in `kept`
    kept: Tensor | None = None

    def value(self) -> Tensor:
        """The tensor itself."""
        if self.kept is not None:
            return self.kept
        value = self.compute()
        if self.keep:
            self.kept = value
        return value


class _Memory:
    """What libraries ask of a tensor's memory to see which tensors share it."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def data_ptr(self) -> int:
        return self._recipe.address if self._recipe.whole else 0  # as of every tensor without numbers

    def nbytes(self) -> int:
        return self._recipe.whole


class Lazy(Tensor):
    """A tensor that is read or computed whenever something needs its numbers, and not before."""

    recipe: Recipe

    @staticmethod
    def __new__(cls, recipe: Recipe) -> Lazy:
        """A tensor of this recipe."""
        like = recipe.like
        made: Lazy = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            like.shape,
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=recipe.device,
        )
        made.recipe = recipe
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch calls: results keep their own class, and another `.data` is another recipe."""
        with torch._C.DisableTorchFunctionSubclass():
            if func == Tensor.data.__set__:  # type: ignore[attr-defined]
                return _give(args[0], args[1])
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """One operation: written down where it only rearranges lazy tensors, else carried out on what they stand for."""
        kwargs = kwargs or {}
        if func in VIEWS or func in COPIES:
            given = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            indices = func is _aten.index_select.default and isinstance(args[0], Lazy)
            to_meta = torch.device(kwargs.get("device") or "cpu").type == "meta"
            if (indices or all(isinstance(t, Lazy) for t in given)) and not to_meta:
                return _written_down(func, args, kwargs)
        schema = zip(func._schema.arguments, args, strict=False)
        if any(a.alias_info is not None and a.alias_info.is_write and isinstance(t, Lazy) for a, t in schema):
            raise Refused(
                "The weights of this model stay in their files and cannot be written to: load it without lazy to change them."
            )
        return func(*tree_map(_real, args), **tree_map(_real, kwargs))

    def untyped_storage(self) -> Any:
        """The memory that it claims to lie in."""
        return _Memory(self.recipe)

    def data_ptr(self) -> int:
        """Where it claims to lie."""
        return 0 if not self.numel() else self.recipe.address + int(self.storage_offset()) * self.element_size()

    def numpy(self, **options: Any) -> Any:
        """The numbers."""
        return self.recipe.value().numpy(**options)

    def tolist(self) -> Any:
        """The numbers."""
        return self.recipe.value().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        twin: Tensor = Lazy(self.recipe)
        if isinstance(self, nn.Parameter):
            twin = nn.Parameter(twin, self.requires_grad)
        memo[id(self)] = twin
        return twin

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Lazy({tuple(self.shape)}, {self.dtype}, {self.device})"


def lazy(read: Callable[[], Tensor], shape: Iterable[int], dtype: torch.dtype) -> Lazy:
    """The tensor of this shape that `read` gives, on the CPU."""
    return Lazy(_new_memory(read, torch.empty(tuple(shape), dtype=dtype, device="meta"), torch.device("cpu")))


def is_lazy(model: nn.Module) -> bool:
    """Whether some of a model's weights are still in their files."""
    return any(isinstance(p, Lazy) for p in model.parameters())


def real(tensor: Tensor) -> Tensor:
    """The tensor with its numbers: read from its file if that is where it is."""
    return tensor.recipe.value() if isinstance(tensor, Lazy) else tensor


@contextmanager
def wholes_kept() -> Iterator[None]:
    """Within the block, the last tensors that parts were taken of stay in memory: the experts of a layer, written one by one."""
    global _recent
    before, _recent = _recent, dict[Recipe, Tensor]()
    try:
        yield
    finally:
        _recent = before


@contextmanager
def kept(weights: Iterable[Tensor]) -> Iterator[None]:
    """Within the block, those of these weights that are in files stay in memory once they have been read."""
    recipes = [weight.recipe for weight in weights if isinstance(weight, Lazy) and not weight.recipe.keep]
    try:
        for recipe in recipes:
            recipe.keep = True
        yield
    finally:
        for recipe in recipes:
            recipe.keep, recipe.kept = False, None


def _give(tensor: Tensor, data: Tensor) -> None:
    """`tensor.data = data`, where one of them is lazy."""
    if not isinstance(tensor, Lazy):
        tensor.data = real(data)
        return
    if not isinstance(data, Lazy):
        data = Lazy(_new_memory(partial(_same, data), torch.empty_like(data, device="meta"), data.device))
    tensor.data, tensor.recipe = data, data.recipe


def _same(value: Tensor) -> Tensor:
    return value


def _real(value: Any) -> Any:
    return value.recipe.value() if isinstance(value, Lazy) else value


def _new_memory(compute: Callable[[], Tensor], like: Tensor, device: torch.device) -> Recipe:
    return Recipe(compute, like, device, next(_addresses) * APART, like.numel() * like.element_size())


def _written_down(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The lazy result, or results, of an operation on lazy tensors."""
    first = next(t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, Lazy))
    shapes = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory", "non_blocking")}
    like = func(*tree_map(_shape_of, args), **tree_map(_shape_of, shapes))
    device = torch.device(kwargs.get("device") or first.device)

    # recipes are held, and not the tensors: a parameter may be given another recipe later
    args, kwargs = tree_map(_recipe_of, (args, kwargs))

    of = _whole_of if func in PARTS else _value_of

    def compute() -> Any:
        return func(*tree_map(of, args), **tree_map(of, kwargs))

    def result(shape: Tensor, pick: Callable[[], Tensor]) -> Lazy:
        if func in VIEWS:
            return Lazy(Recipe(pick, shape, device, first.recipe.address, first.recipe.whole))
        return Lazy(_new_memory(pick, shape, device))

    if isinstance(like, Tensor):
        if func is _aten.detach.default or func is _aten.alias.default:
            return Lazy(first.recipe)  # the very same: what is kept of one is kept of both
        return result(like, compute)
    return type(like)(result(shape, partial(_one_of, compute, n)) for n, shape in enumerate(like))


def _one_of(compute: Callable[[], Any], number: int) -> Tensor:
    tensor: Tensor = compute()[number]
    return tensor


def _shape_of(value: Any) -> Any:
    if isinstance(value, Lazy):
        return value.recipe.like
    return value.to("meta") if isinstance(value, Tensor) else value


def _recipe_of(value: Any) -> Any:
    return value.recipe if isinstance(value, Lazy) else value


def _value_of(value: Any) -> Any:
    return value.value() if isinstance(value, Recipe) else value


def _whole_of(value: Any) -> Any:
    """What a part is taken of, which the next part may be taken of as well."""
    if (
        _recent is None
        or not isinstance(value, Recipe)
        or value.like.numel() * value.like.element_size() != value.whole
    ):
        return _value_of(value)
    whole = _recent.pop(value) if value in _recent else value.value()
    while len(_recent) >= WHOLES:
        _recent.pop(next(iter(_recent)))
    _recent[value] = whole  # the newest is last
    return whole
