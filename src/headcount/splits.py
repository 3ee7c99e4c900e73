"""Which examples are used for what: sets that share none, and an example's place that does not depend on the others.

An example's place is a number from 0 to 1 made from the example itself and the seed. So the same example falls into the same
part in every command on the same data: what a plan was chosen on can be kept apart from what it is reported on later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from .errors import BadData

if TYPE_CHECKING:
    from .tasks import Task


def place(example: bytes, seed: int, salt: str = "") -> float:
    """From 0 to 1, evenly, and always the same for the same example, seed and salt."""
    drawn = hashlib.sha256(f"{seed}|{salt}|".encode() + example).digest()
    return int.from_bytes(drawn[:8], "big") / 2**64


def distinct(task: Task) -> Task:
    """The task with every example once: copies of an example say nothing new, and tests would count them."""
    first: dict[bytes, int] = {}
    for number in range(task.size):
        first.setdefault(task.digest(number), number)
    return task if len(first) == task.size else task.subset(sorted(first.values()))


def digests(task: Task) -> frozenset[bytes]:
    """What tells the examples of a task from others."""
    return frozenset(task.digest(number) for number in range(task.size))


def without(task: Task, used: Container[bytes]) -> Task | None:
    """The task without examples that were used for something else; None if all of them were."""
    fresh = [number for number in range(task.size) if task.digest(number) not in used]
    return task if len(fresh) == task.size else task.subset(fresh) if fresh else None


def later(task: Task, seed: int, share: float, salt: str = "") -> Task | None:
    """The examples whose place is `share` or more; None if there are none."""
    there = [number for number in range(task.size) if place(task.digest(number), seed, salt) >= share]
    return task.subset(there) if there else None


def shared_out(task: Task, shares: Mapping[str, float], seed: int, salt: str = "") -> dict[str, Task]:
    """The examples by their place: the first share of them to the first name, and so on. Shares add up to one."""
    parts: dict[str, list[int]] = {name: [] for name in shares}
    for number in range(task.size):
        at = place(task.digest(number), seed, salt)
        for name, share in shares.items():
            at -= share
            if at < 0 or name == list(shares)[-1]:
                parts[name].append(number)
                break
    empty = [name for name, numbers in parts.items() if not numbers]
    if empty:
        raise BadData(
            f"{task.size} examples of {task.name} are too few to be split in {len(shares)}: none is left to {empty[0]} on; "
            "give more of them."
        )
    return {name: task.subset(numbers) for name, numbers in parts.items()}
