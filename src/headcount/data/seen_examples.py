"""What a plan has seen: the examples that had a part in it or that its numbers were reported on, over all generations.

A plan that was edited by someone who knows its numbers is another plan made on the same examples. So plan.json carries a mark of
every example it has seen, and none of them is used to test or report it again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadPlan
from . import splits

if TYPE_CHECKING:
    from .tasks import Task

SHORT = 8  # bytes of a digest: that two of a million examples have the same has a probability of 3e-8
Seen = Mapping[str, frozenset[bytes]]  # the marks of examples, by their role


def marks(task: Task) -> frozenset[bytes]:
    """What tells the examples of a task, and their groups, from others, cut short: plans and runs keep it of every one."""
    return frozenset(map(short, splits.marks(task)))


def unseen(task: Task, seen_marks: Container[bytes]) -> Task | None:
    """The task without the examples of these marks, and without the groups of these marks or examples; None if none is left."""
    seen_numbers = {number for number in range(task.size) if short(task.digest(number)) in seen_marks}
    fresh = [number for number in range(task.size) if number not in seen_numbers]
    if task.clusters is not None:
        groups = {task.clusters[number] for number in seen_numbers}
        groups |= {task.clusters[number] for number in fresh if short(task.split_key(number)) in seen_marks}
        fresh = [number for number in fresh if task.clusters[number] not in groups]
    return task if len(fresh) == task.size else task.subset(fresh) if fresh else None


def union(*several: Seen) -> Seen:
    """All that was seen, by role."""
    roles = sorted({role for role_marks in several for role in role_marks})
    return {role: frozenset[bytes]().union(*(role_marks.get(role, ()) for role_marks in several)) for role in roles}


def everything(role_marks: Seen) -> frozenset[bytes]:
    """All that was seen, in whatever role."""
    return frozenset[bytes]().union(*role_marks.values())


def to_note(role_marks: Seen) -> dict[str, str]:
    """What was seen, as plan.json has it: a text for each role."""
    return {role: base64.b64encode(b"".join(sorted(some))).decode() for role, some in role_marks.items() if some}


def read_seen(note: object, where: Path) -> Seen:
    """What `noted` wrote into the plan at `where`; `BadPlan` if it is damaged."""
    if isinstance(note, dict) and all(isinstance(text, str) for text in note.values()):
        try:
            decoded = {str(role): base64.b64decode(text, validate=True) for role, text in note.items()}
        except (binascii.Error, ValueError):
            decoded = {"": b"?"}
        if not any(len(content) % SHORT for content in decoded.values()):
            return {
                role: frozenset(content[n : n + SHORT] for n in range(0, len(content), SHORT))
                for role, content in decoded.items()
            }
    raise BadPlan(
        f'What {where} says it has "seen" is damaged; take the plan as headcount wrote it, or take "seen" out and give '
        "examples that had no part in it."
    )


def salt(role_marks: Seen) -> str:
    """A text that is another one for every other set of examples seen: it shares out anew what is left of a file."""
    return hashlib.sha256(b"".join(sorted(everything(role_marks)))).hexdigest()[:16]


def short(digest: bytes) -> bytes:
    """The mark of an example, from its digest."""
    return digest[:SHORT].ljust(SHORT, b"\0")
