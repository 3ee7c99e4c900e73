"""Which examples a command uses for what: some to score on, some to show a guarantee on, some to report on, none twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from . import splits
from .errors import BadData
from .options import Given, make_task, other_task

if TYPE_CHECKING:
    from .tasks import Task

# Shares of one file: what the guarantee is shown on needs the most examples. Without a promise, its share goes to the scores.
THREE_WAYS = {"score": 0.25, "select": 0.45, "report": 0.3}
TWO_WAYS = {"score": 0.36, "select": 0.64}
USES = {
    "score": "to score the units",
    "select": "to show the guarantee",
    "report": "to measure before and after, never to choose",
}


class Sets(NamedTuple):
    """The examples of each role, which share none, and in words where they come from."""

    score: Task | None
    select: Task | None
    report: Task
    how: str
    own: dict[str, Any] | None  # which part of --data was chosen on, if it was a part of it: goes into plan.json

    def tasks(self) -> dict[str, Task]:
        """Those that there are, by role."""
        given = {"score": self.score, "select": self.select, "report": self.report}
        return {role: task for role, task in given.items() if task is not None}


def sets_of(
    name: str,
    model: Any,
    given: Given,
    needs: tuple[bool, bool],
    others: tuple[Any, Any, Any, Any],
    chosen_on: dict[str, Any] | None = None,
) -> Sets:
    """Examples to score on, to show the guarantee on and to report on: three sets that share no example.

    A set without data of its own is a part of the data to choose on where there is some, else of --data. Of a plan that
    was chosen on a part of a file, that part is left out.
    """
    score_data, score_limit, select_data, select_limit = others
    needed = [role for role, wanted in zip(("score", "select"), needs, strict=True) if wanted]
    notes: list[str] = []
    task, found = _once(make_task(name, model, given), notes), dict[str, Any]()
    if chosen_on is not None:
        grouped = chosen_on.get("groups", False)
        unseen = splits.later(task, chosen_on["seed"], chosen_on["share"], by_group=grouped)
        if unseen is None:
            raise BadData(f"The plan was chosen on all of these examples of {task.name}; give others with --data.")
        notes += [f"{task.size - unseen.size} examples that the plan was chosen on were left out"] * (
            unseen.size < task.size
        )
        task = unseen
    if score_data is not None:
        found["score"] = _once(other_task(name, model, given, score_data, score_limit), notes)
    if select_data is not None:
        found["select"] = _once(other_task(name, model, given, select_data, select_limit), notes)
    missing, own = [role for role in needed if role not in found], None
    if missing and found:  # one of the two was given: it is shared out
        (whole,) = found.values()
        found |= splits.shared_out(whole, TWO_WAYS, given.seed)
        notes.append(f"{whole.name} was split in two")
    elif missing:
        both = THREE_WAYS["score"] + THREE_WAYS["select"]
        shares = THREE_WAYS if len(missing) == 2 else {missing[0]: both, "report": 1 - both}
        found |= splits.shared_out(task, shares, given.seed, "a plan" if chosen_on is not None else "")
        here = {"seed": given.seed, "share": both} | ({} if task.clusters is None else {"groups": True})
        own = here if chosen_on is None else chosen_on
        notes.append(f"{task.name} was split in {len(shares)}, no example in two of them")
    report, used = found.pop("report", task), frozenset[bytes]()
    for role in needed:
        found[role] = _apart(found[role], used, role, notes)
        used |= splits.marks(found[role])
    report = _apart(report, used, "report", notes)
    return Sets(found.get("score"), found.get("select"), report, "; ".join(notes), own)


def _once(task: Task, notes: list[str]) -> Task:
    alone = splits.distinct(task)
    if alone.size < task.size:
        notes.append(
            f"{task.size - alone.size} of {task.size} examples of {task.name} were there before and count once"
        )
    return alone


def _apart(task: Task, used: frozenset[bytes], role: str, notes: list[str]) -> Task:
    """The task without examples that were used before."""
    fresh = splits.without(task, used)
    if fresh is None:
        raise BadData(
            f"All {task.size} examples of {task.name} to {role} on are also among those to choose on; never choose and "
            "report on the same ones: give other data, or --data alone to have it split."
        )
    if fresh.size < task.size:
        notes.append(f"{task.size - fresh.size} examples to {role} on were left out, being among those to choose on")
    return fresh


def used_text(sets: Sets) -> list[str]:
    """Lines that say which examples were used for what."""
    lines = [f"{task.size:>7} examples of {task.name} {USES[role]}" for role, task in sets.tasks().items()]
    return lines + ([f"note: {sets.how}"] if sets.how else [])
