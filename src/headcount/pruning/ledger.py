"""Promises tried before on the same examples: what run folders know of them, counted, so that alpha is shared.

Whoever tries often enough on the same examples is promised something by chance at last. Every run that tests a promise
notes on which examples, and the next one on the same examples is tested at a smaller level.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import runs
from ..data.seen_examples import SHORT, marks, unseen
from ..errors import BadData, BadRun
from ..hashing import fingerprint
from ..stats.guarantee import LEAST_ALPHA

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Record, Run

OVERLAP = 0.05  # of the examples of a promise: with fewer in common, another one was tried on other examples
PROMISE = "promise"  # the piece of a run that says which examples a promise is tested on


class Promise(NamedTuple):
    """A promise that a run has tested: what was asked, on which examples, and at which level."""

    question: Mapping[str, Any]
    examples: frozenset[bytes] | None  # None where an older headcount noted only a fingerprint of all of them
    level: float


@dataclass(frozen=True)
class Tries:
    """Which promise on its examples this one is, and the level that is left for it."""

    number: int  # 1 for the first
    planned: int  # how many were to be tried, as said beforehand
    alpha: float
    before: float = 0.0  # the levels of those before it, added up

    @property
    def shared(self) -> int:
        """What alpha is divided by."""
        return max(self.number, self.planned)

    @property
    def level(self) -> float:
        """The level at which the promise is tested."""
        return self.alpha / self.shared

    @property
    def together(self) -> float:
        """The probability that one of all these promises is wrong, at most, if none was made up after looking at another."""
        return min(1.0, self.before + self.level)

    def __str__(self) -> str:
        if self.shared == 1:
            return "the first promise tried on these examples"
        position_text = f"the {_ordinal(self.number)} of {self.planned} promises to be"
        text = position_text if self.planned > self.number else f"the {_ordinal(self.number)} promise"
        text = f"{text} tried on these examples: alpha is shared, {self.alpha:g} / {self.shared}"
        if self.together <= self.alpha * (1 + 1e-9):
            return text
        most = math.ceil(1000 * self.together - 1e-9) / 1000  # never rounded down: it is a bound
        return f"{text} (the {self.number} of them together: {most:g})"

    def to_json(self) -> dict[str, Any]:
        """All fields by name, with the level and the sentence."""
        return {**asdict(self), "level": self.level, "together": self.together, "sentence": str(self)}


def tries(run: Run, select: Task, *, alpha: float = 0.05, planned: int = 1, places: Iterable[Path] = ()) -> Tries:
    """Which promise on these examples the run makes, by what the run folders beside it and in `places` hold.

    To be asked before the first of the examples is looked at: the run notes them, so that promises count that were
    never shown, or stopped. The answer is noted too, and the same whenever the run goes on. Refused where so many were
    tried that hardly any level is left.
    """
    own = marks(select)
    # noted first and counted then: of two that begin at the same time, at least one knows of the other
    run.piece(PROMISE, lambda: {"examples": np.frombuffer(b"".join(sorted(own)), np.uint8).reshape(-1, SHORT)})

    def counted() -> dict[str, Any]:
        before = [
            promise for promise in promises([run.folder.parent, *places]) if _on_the_same(promise, run.question, own)
        ]
        return asdict(Tries(len(before) + 1, planned, alpha, sum(promise.level for promise in before)))

    result = Tries(**runs.document(run, "tries", counted))
    if result.level < LEAST_ALPHA:
        raise BadData(
            f"This would be the {_ordinal(result.number)} promise tried on these examples, and {alpha:g} / {result.shared} is "
            f"less than {LEAST_ALPHA}, below which nothing is tested; show it on examples that no promise was tried on."
        )
    return result


def promises(folders: Iterable[Path]) -> list[Promise]:
    """The promises that runs in these folders have tested, each once however often it was repeated."""
    unique_promises = dict[str, Promise]()
    for folder in dict.fromkeys(Path(path).resolve() for path in folders):
        for place in sorted(folder.iterdir()) if folder.is_dir() else ():
            try:
                record = runs.read(place) if (place / runs.RUN).is_file() else None
                promise = None if record is None else _tested(record)
            except BadRun:  # damaged, or not to be read: nobody can tell what was tried there
                continue
            if promise is not None:
                unique_promises.setdefault(_identity(promise.question), promise)
    return list(unique_promises.values())


def left_over(select: Task | None, question: Mapping[str, Any], places: Iterable[Path]) -> Task:
    """The examples that no promise about this model was tested on; those that it had before where the run goes on.

    `question` is that of a run on what is left: `select` is among its tasks as "offered".
    """
    assert select is not None
    used, all_of_it = set[bytes](), marks(select)
    for promise in promises(places):
        if _model(promise.question) != _model(question):
            continue
        if _identity(promise.question) == _identity(question) and promise.examples is not None:
            return unseen(select, all_of_it - promise.examples) or select
        used |= (
            promise.examples
            if promise.examples is not None
            else all_of_it
            if _same_set(promise.question, select)
            else set()
        )
    fresh_task = unseen(select, used)
    if fresh_task is None:
        raise BadData(
            f"All {select.size} examples of {select.name} to show the guarantee on were used for a promise before; give others, "
            "or leave --fresh out: alpha is shared then."
        )
    return fresh_task


def _tested(record: Record) -> Promise | None:
    """The promise that a run has begun to test, if it has."""
    options = _part(record.question, "options")
    if record.question.get("command") != "prune" or options.get("max_drop") is None:
        return None
    level = options.get("alpha")
    level = float(level) if isinstance(level, float | int) else 0.05
    if record.done("tries"):
        level = Tries(**json.loads(record.read("tries")["json"].tobytes())).level
    if record.done(PROMISE):
        return Promise(record.question, frozenset(map(bytes, record.read(PROMISE)["examples"])), level)
    # an older headcount measured the whole model on these examples first
    return Promise(record.question, None, level) if any(n.startswith("select-") for n in record.pieces) else None


def _on_the_same(promise: Promise, question: Mapping[str, Any], examples: frozenset[bytes]) -> bool:
    """Whether a promise is another one about the same model, on the same examples or some of them."""
    if _model(promise.question) != _model(question) or _identity(promise.question) == _identity(question):
        return False
    if promise.examples is None:
        return _task(promise.question, "select") == _task(question, "select")
    return len(promise.examples & examples) >= OVERLAP * len(examples)


def _identity(question: Mapping[str, Any]) -> str:
    """What makes two promises the same: all that was asked, but for names and for what is reported on."""
    options, roles = _part(question, "options"), set(_part(question, "tasks")) - {"report"}
    if options.get("fresh"):
        roles.discard("select")  # what is left of "offered" depends on what was tried before
    tasks = {role: _task(question, role) for role in roles}
    return fingerprint([_model(question), tasks, _part(question, "run"), options])


def _model(question: Mapping[str, Any]) -> str:
    model = question.get("model")
    return str((model.get("weights") or model.get("name")) if isinstance(model, dict) else model)


def _task(question: Mapping[str, Any], role: str) -> Any:
    return _part(_part(question, "tasks"), role).get("fingerprint")


def _same_set(question: Mapping[str, Any], select: Task) -> bool:
    return bool(_task(question, "select") == select.fingerprint)


def _part(mapping: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = mapping.get(name)
    return part if isinstance(part, dict) else {}


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
