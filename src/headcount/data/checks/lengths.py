"""Examples that are longer than what the model is given of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..tasks import Task

MANY = 0.05  # share of examples cut off above which it is said first


def notes(tasks: Mapping[str, Task]) -> list[str]:
    """Sentences about examples that were cut off or left out, those first of which there are many."""
    sentences = dict[str, bool]()
    for task in tasks.values():
        if task.truncated:
            text = (
                f"{task.truncated:,} of {task.size:,} examples of {task.name} are longer than {max(task.lengths):,} tokens, and "
                "what follows was cut off; --max-length sets the limit"
            )
            sentences[text] = task.truncated > MANY * task.size
        if task.skipped:
            what = "two tokens (or an answer)" if task.kind == "language-modelling" else "a label or a text"
            sentences[f"{task.skipped:,} rows of {task.name} without {what} were skipped"] = False
    return sorted(sentences, key=lambda text: not sentences[text])
