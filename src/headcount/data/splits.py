"""Which examples are used for what: each for one thing.

`share_out` gives every use its examples: a part of a file by the places of its examples (`places`), or a set of its own.
Copies of an example go the same way, and so do all examples of a group. What two sets have in common is left out of the
less important use (`IMPORTANCE`), counted, and said in a sentence. What is reported on loses nothing to other uses.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..errors import BadData
from . import places

if TYPE_CHECKING:
    from .tasks import Task

# Uses, the most important first. To score and to train are one use, learning from examples: no command keeps those two apart.
IMPORTANCE = ("report", "measure", "compare", "select", "score", "reference", "train")


class Uses(NamedTuple):
    """The examples of every use, none of which is in two of them, and a sentence about what was left out for that."""

    tasks: dict[str, Task]
    left_out: str = ""  # empty where nothing was


def share_out(
    task: Task,
    shares: Mapping[str, float],
    seed: int,
    own: Mapping[str, Task] | None = None,
    *,
    salt: str = "",
    most: int | None = None,
) -> Uses:
    """The examples of every use: `shares` of the task, by their places, and the `own` examples of other uses.

    Shares add up to one, and a single use gets the whole task. The first gets at most `most` examples. Uses are words of
    `IMPORTANCE`.
    """
    parted = {next(iter(shares)): task} if len(shares) == 1 else _parted(task, shares, seed, salt, most)
    return apart({**parted, **(own or {})})


def apart(sets: Mapping[str, Task]) -> Uses:
    """The sets without what they have in common, which stays in the most important use alone.

    An example of a group that another set has examples of is in common, too.
    """
    tasks, used, before, notes = dict(sets), frozenset[bytes](), list[str](), list[str]()
    for use in sorted(sets, key=IMPORTANCE.index):
        task = sets[use]
        fresh = without(task, used)
        if fresh is None:
            raise BadData(
                f"All {task.size} examples of {task.name} to {use} on are also among those to {' or '.join(before)} on; "
                "never choose and report on the same ones: give others."
            )
        if fresh.size < task.size:
            notes.append(_left_out(task, task.size - fresh.size, use, before))
        tasks[use] = fresh
        used |= marks(fresh)
        before.append(use)
    return Uses(tasks, "; ".join(notes))


def in_words(uses: Uses, verbs: Mapping[str, str]) -> str:
    """Which examples were used for what, in a sentence: `trained on 90 examples of a.tsv, measured on 10 others of it`."""
    phrases, previous = list[str](), ""
    for use, verb in verbs.items():
        task = uses.tasks[use]
        if not phrases:
            phrases.append(f"{verb} on {task.size} examples of {task.name}")
        elif task.name == previous:
            phrases.append(f"{verb} on {task.size} others of it")
        else:
            phrases.append(f"{verb} on {task.size} of {task.name}")
        previous = task.name
    sentence = ", ".join(phrases)
    return f"{sentence}; {uses.left_out}" if uses.left_out else sentence


def drawn(task: Task, count: int, seed: int) -> Task:
    """At most so many examples of a task, those with the first places."""
    if task.size <= count:
        return task
    first = sorted(range(task.size), key=lambda number: places.place(task.digest(number), seed))
    return task.subset(sorted(first[:count]))


# -- what tells examples from others -------------------------------------------------------------------------------------


def distinct(task: Task) -> Task:
    """The task with every example once: copies of an example say nothing new, and tests would count them."""
    first: dict[bytes, int] = {}
    for number in range(task.size):
        first.setdefault(task.digest(number), number)
    return task if len(first) == task.size else task.subset(sorted(first.values()))


def copies_left_out(task: Task, once: Task) -> str:
    """A sentence about the copies that `distinct` has left out; empty where there were none."""
    copies = task.size - once.size
    if not copies:
        return ""
    return f"{copies} of {task.size} examples of {task.name} were there before and count once"


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


def later(task: Task, seed: int, share: float, salt: str = "") -> Task | None:
    """The examples whose own place is `share` or more; None if there are none.

    Nothing is left of a group of which an example came before.
    """
    later_numbers = [number for number in range(task.size) if places.place(task.digest(number), seed, salt) >= share]
    if not later_numbers:
        return None
    later_task = task.subset(later_numbers)
    if task.clusters is None or len(later_numbers) == task.size:
        return later_task
    before = task.subset(sorted(set(range(task.size)) - set(later_numbers)))
    return without(later_task, marks(before))


# -- the parts of one file -----------------------------------------------------------------------------------------------


def _parted(task: Task, shares: Mapping[str, float], seed: int, salt: str, most: int | None) -> dict[str, Task]:
    numbers = places.parts(keys(task), shares, seed, salt, most)
    for use in numbers:
        if not numbers[use]:
            groups = "" if task.clusters is None else f" in {len(task.cluster_names)} groups"
            raise BadData(
                f"{task.size} examples{groups} of {task.name} are too few to be split in {len(shares)}: none is left to "
                f"{use} on; give more of them, or other data to {use} on."
            )
    return {use: task.subset(some) for use, some in numbers.items()}


def _left_out(task: Task, count: int, use: str, before: list[str]) -> str:
    were = "example {} was left out" if count == 1 else "examples {} were left out"
    group = "" if task.clusters is None else ", or of a group that is"
    phrase = were.format(f"of {task.name} to {use} on")
    return f"{count} {phrase}, being among those to {' or '.join(before)} on{group}"
