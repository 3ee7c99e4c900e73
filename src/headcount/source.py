"""What the code of a module class says: the names it uses and its text, `__init__` left out. Nothing is executed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from types import FunctionType

from torch import nn


@cache
def names_used(kind: type) -> frozenset[str]:
    """The global names and attributes that the methods of a class use."""
    return frozenset(name for function in _methods(kind) for name in function.__code__.co_names)


@cache
def text(kind: type) -> str:
    """The source of the methods of a class; empty where there is none to read."""
    parts = []
    for function in _methods(kind):
        try:
            parts.append(inspect.getsource(function))
        except (OSError, TypeError):
            continue
    return "\n".join(parts)


def _methods(kind: type) -> Iterator[FunctionType]:
    for base in kind.__mro__:
        if base is nn.Module:
            return
        for name, value in vars(base).items():
            function = inspect.unwrap(value) if callable(value) else value
            if name != "__init__" and inspect.isfunction(function):
                yield function
