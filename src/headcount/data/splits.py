"""Which examples are used for what: sets that share none, and an example's place that does not depend on the others.

An example's place is a number from 0 to 1 made from the example itself and the seed, or from the name of its group where there
are groups. So the same example falls into the same part in every command on the same data, and all examples of a group go the
same way: what a plan was chosen on can be kept apart from what it is reported on later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from ..errors import BadData

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


def marks(task: Task) -> frozenset[bytes]:
    """What tells the examples of a task and the groups they belong to from others."""
    return digests(task) if task.clusters is None else digests(task) | frozenset(keys(task))


def keys(task: Task) -> list[bytes]:
    """What decides the place of every example of a task: its group, or itself."""
    return [task.split_key(number) for number in range(task.size)]


def without(task: Task, used: Container[bytes]) -> Task | None:
    """The task without examples that were used for something else, or whose group was; None if all of them were."""
    fresh = [
        number
        for number in range(task.size)
        if task.digest(number) not in used and (task.clusters is None or task.split_key(number) not in used)
    ]
    return task if len(fresh) == task.size else task.subset(fresh) if fresh else None


def shared(task: Task, used: Container[bytes]) -> int:
    """How many examples of a task were used for something else, or belong to a group that was."""
    fresh = without(task, used)
    return task.size - (0 if fresh is None else fresh.size)


def later(task: Task, seed: int, share: float, salt: str = "") -> Task | None:
    """The examples whose own place is `share` or more; None if there are none.

    Nothing is left of a group of which an example came before.
    """
    there = [number for number in range(task.size) if place(task.digest(number), seed, salt) >= share]
    if not there:
        return None
    rest = task.subset(there)
    if task.clusters is None or len(there) == task.size:
        return rest
    before = task.subset(sorted(set(range(task.size)) - set(there)))
    return without(rest, marks(before))


def shared_out(task: Task, shares: Mapping[str, float], seed: int, salt: str = "") -> dict[str, Task]:
    """The examples by their place: the first share of them to the first name, and so on. Shares add up to one."""
    parts: dict[str, list[int]] = {name: [] for name in shares}
    for number in range(task.size):
        at = place(task.split_key(number), seed, salt)
        for name, share in shares.items():
            at -= share
            if at < 0 or name == list(shares)[-1]:
                parts[name].append(number)
                break
    empty = [name for name, numbers in parts.items() if not numbers]
    if empty:
        some = "" if task.clusters is None else f" in {len(task.cluster_names)} groups"
        raise BadData(
            f"{task.size} examples{some} of {task.name} are too few to be split in {len(shares)}: none is left to {empty[0]} on; "
            "give more of them."
        )
    return {name: task.subset(numbers) for name, numbers in parts.items()}
