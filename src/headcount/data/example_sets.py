"""Which examples a command uses for what: some to score on, some to show a guarantee on, some to report on, none twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import BadData
from . import seen_examples as seeing
from . import splits
from .seen_examples import Seen

if TYPE_CHECKING:
    from .tasks import Task

# Shares of one file: what the guarantee is shown on needs the most examples. A role that is not needed, or has data of its own,
# leaves its share to the other one, so that the part to report on is always the same.
THREE_WAYS = {"score": 0.25, "select": 0.45, "report": 0.3}
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
    offered: Task | None = None  # those of which some were left out to select on, being used before

    def tasks(self) -> dict[str, Task]:
        """Those that there are, by role."""
        role_tasks = {"score": self.score, "select": self.select, "report": self.report, "offered": self.offered}
        return {role: task for role, task in role_tasks.items() if task is not None}

    def fresh(self, fresh_task: Task | None) -> Sets:
        """The sets with what is left to show the guarantee on after promises tried before; all there was is `offered`."""
        assert self.select is not None
        assert fresh_task is not None
        used_count = self.select.size - fresh_task.size
        note = f"{used_count} examples that a promise was tested on before were left out"
        return self.noting(note if used_count else "")._replace(select=fresh_task, offered=self.select)

    def noting(self, note: str) -> Sets:
        """The sets, with one more sentence about them, which may be empty."""
        return self._replace(how="; ".join(text for text in (self.how, note) if text))


def sets_of(
    tasks: tuple[Task, Task | None, Task | None],
    needs: tuple[bool, bool],
    seed: int,
    chosen_on: dict[str, Any] | None = None,
    plan_marks: Seen | None = None,
) -> Sets:
    """Examples to score on, to show the guarantee on and to report on: three sets that share no example.

    `tasks` are the examples of --data, --score-data and --select-data; a set without data of its own is a part of the first.
    The examples of `plan_marks`, which a plan has seen, are left out, in whatever role; only what it was scored on may be tuned
    on again. Of a plan that an older headcount noted to be `chosen_on` a part of a file, that part is left out.
    """
    full_task, to_score, to_select = tasks
    needed = [role for role, wanted in zip(("score", "select"), needs, strict=True) if wanted]
    notes, role_marks = list[str](), plan_marks or {}
    seen_marks = seeing.everything(role_marks)
    own: dict[str, Task] = {}
    full_task = _once(full_task, notes)
    task = _unseen(full_task, seen_marks, "--data", chosen_on)
    left_out = full_task.size - task.size
    if to_score is not None:
        full_task = _once(to_score, notes)
        own["score"] = _unseen(full_task, seeing.everything({**role_marks, "score": frozenset()}), "--score-data")
        left_out += full_task.size - own["score"].size
    if to_select is not None:
        full_task = _once(to_select, notes)
        own["select"] = _unseen(full_task, seen_marks, "--select-data")
        left_out += full_task.size - own["select"].size
    notes += [f"{left_out} examples that the plan has seen were left out"] * bool(left_out)
    missing = [role for role in needed if role not in own]
    shares, salt = {"report": 1.0}, ""
    if missing:
        joint_share = THREE_WAYS["score"] + THREE_WAYS["select"]
        shares = THREE_WAYS if len(missing) == 2 else {missing[0]: joint_share, "report": 1 - joint_share}
        salt = f"a plan {seeing.salt(role_marks)}" if seen_marks else "a plan" if chosen_on is not None else ""
        notes.append(f"{task.name} was split in {len(shares)}, no example in two of them")
    parts, note = splits.share_out(task, shares, seed, own, salt=salt)
    notes += [note] * bool(note)
    return Sets(parts.get("score"), parts.get("select"), parts["report"], "; ".join(notes))


def _unseen(task: Task, seen_marks: frozenset[bytes], flag: str, chosen_on: dict[str, Any] | None = None) -> Task:
    """The task without examples that a plan has seen."""
    later = task if chosen_on is None else splits.later(task, chosen_on["seed"], chosen_on["share"])
    fresh_task = None if later is None else seeing.unseen(later, seen_marks)
    if fresh_task is None:
        raise BadData(
            f"The plan has seen all {task.size} examples of {task.name}: it was chosen on them, or its numbers were reported on "
            f"them; give others with {flag}."
        )
    return fresh_task


def _once(task: Task, notes: list[str]) -> Task:
    once = splits.distinct(task)
    notes += [note for note in [splits.copies_left_out(task, once)] if note]
    return once


def used_text(sets: Sets) -> list[str]:
    """Lines that say which examples were used for what."""
    used_tasks = {role: task for role, task in sets.tasks().items() if role in USES}
    lines = [f"{task.size:>7} examples of {task.name} {USES[role]}" for role, task in used_tasks.items()]
    return lines + ([f"note: {sets.how}"] if sets.how else [])
