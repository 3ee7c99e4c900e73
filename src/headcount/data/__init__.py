"""Examples: read from files, encoded, asked about, and kept apart. Knows no anatomy of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .task_types import task
    from .tasks import Task, custom_task

__all__ = [
    "Task",
    "custom_task",
    "task",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Task": ".tasks",
        "custom_task": ".tasks",
        "task": ".task_types",
    },
)
