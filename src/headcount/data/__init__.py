"""Examples: read from files, encoded, asked about, and kept apart. Knows no anatomy of models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from . import contrast as contrast
    from .task_types import task
    from .tasks import Task, custom_task

__all__ = [
    "Task",
    "custom_task",
    "task",
]

_attribute = lazy_attributes(
    __name__,
    {
        "Task": ".tasks",
        "custom_task": ".tasks",
        "task": ".task_types",
    },
)


def __getattr__(name: str) -> Any:
    if name == "contrast":
        return import_module(".contrast", __name__)
    return _attribute(name)
