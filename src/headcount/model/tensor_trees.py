"""Values that hold tensors: nested tuples, lists and mappings, as models take and give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, change) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(mapped(part, change) for part in value)
    if isinstance(value, Mapping):
        like: Any = type(value)
        return like({name: mapped(part, change) for name, part in value.items()})
    return value


def with_first(value: Any, first: Tensor) -> Any:
    """The same nest with its first tensor replaced."""
    original = next(tensors(value))
    return mapped(value, lambda t: first if t is original else t)


def tile(value: Any, times: int, rows: Sequence[bool] | None = None) -> Any:
    """The same nest with each tensor that has one row per example repeated `times` over.

    `rows` says which tensors have, in their order; without it, all of them.
    """
    if times == 1:
        return value
    row_flags = iter(rows) if rows is not None else None

    def again(t: Tensor) -> Tensor:
        return t.repeat(times, *[1] * (t.dim() - 1)) if row_flags is None or next(row_flags, False) else t

    return mapped(value, again)


def memory_of(values: Iterable[Any]) -> int:
    """Bytes that tensors hold, each storage counted once."""
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for v in values for t in tensors(v)}.values()
    )
