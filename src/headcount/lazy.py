"""Lazy imports: names of a package that are looked up on first use, so that importing it costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: `homes` says in which module, seen from the package, each public name is defined."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name], package)
        return getattr(module, name)

    return get
