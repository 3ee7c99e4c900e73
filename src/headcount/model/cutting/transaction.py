"""Changes to a model that can be taken back: every write goes through here, and `undo` restores the very same objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

_MISSING = object()


class Transaction:
    """A list of changes, newest last, each with the way back."""

    def __init__(self) -> None:
        self._back: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute (a plain one, a parameter, a buffer or a submodule)."""
        previous_value = getattr(owner, name, _MISSING) if _has_own(owner, name) else _MISSING
        self._back.append(
            lambda: delattr(owner, name) if previous_value is _MISSING else setattr(owner, name, previous_value)
        )
        setattr(owner, name, value)

    def set_tensor(self, owner: nn.Module, name: str, value: Tensor) -> None:
        """Replace a parameter (or a buffer) by another tensor of its kind; the old object is kept for the way back."""
        previous_tensor = getattr(owner, name)
        new_tensor = (
            nn.Parameter(value, requires_grad=previous_tensor.requires_grad)
            if isinstance(previous_tensor, nn.Parameter)
            else value
        )
        self.set(owner, name, new_tensor)

    def set_class(self, owner: nn.Module, new_class: type) -> None:
        """Change the class of a module."""
        previous_class = type(owner)
        self._back.append(lambda: setattr(owner, "__class__", previous_class))
        owner.__class__ = new_class

    def set_children(self, owner: nn.Module, children: dict[str, nn.Module]) -> None:
        """Replace all children of a container."""
        previous_children = dict(owner._modules)

        def fill(modules: dict[str, Any]) -> None:
            owner._modules.clear()
            owner._modules.update(modules)

        self._back.append(lambda: fill(previous_children))
        fill(children)

    def add_hook(self, handle: Any) -> None:
        """Remember a hook that has been registered, so that it goes on the way back."""
        self._back.append(handle.remove)

    def undo(self) -> None:
        """Take everything back, newest first."""
        while self._back:
            self._back.pop()()


def _has_own(owner: Any, name: str) -> bool:
    if isinstance(owner, nn.Module):
        return any(name in getattr(owner, store) for store in ("__dict__", "_parameters", "_buffers", "_modules"))
    return hasattr(owner, name)
