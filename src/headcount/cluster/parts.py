"""A part of a run: one process's share of the pieces, written into the run folder that all parts share.

Parts do pieces and nothing else. What follows from the pieces, the tests and the documents, is the work of a last process
that has the folder for itself (`headcount gather`).
"""

from __future__ import annotations

import errno
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadRun
from ..formatting import counted
from ..progress import Bar
from ..runs import LOCK, Arrays, Job, Run
from . import claims, presence
from .claims import Claims
from .presence import Present, Worker, pieces_in

NOTE = "parts.json"  # says what the parts in a folder are parts of
Compute = Callable[[], Mapping[str, Any]]
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between looks for the pieces of others


@dataclass(frozen=True)
class Share:
    """The pieces whose number leaves `part` - 1 when it is divided by `of`."""

    part: int
    of: int

    @classmethod
    def read(cls, text: str) -> Share:
        """The share written as 3/16, or `BadRun`."""
        found = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", text)
        share = cls(int(found[1]), int(found[2])) if found else cls(0, 0)
        if not 1 <= share.part <= share.of:
            raise BadRun(f"A part is written as 3/16, from 1/16 to 16/16; I got {text!r:.40}.")
        return share

    def __contains__(self, number: int) -> bool:
        return number % self.of == self.part - 1

    def __str__(self) -> str:
        return f"part {self.part} of {self.of}"


class PartEnds(Exception):
    """A part has done what it can; how many pieces it computed, and how many others of this stage are missing."""

    def __init__(self, computed: int, missing: int) -> None:
        super().__init__(f"{counted(computed, 'piece')} computed, {missing} missing")
        self.computed, self.missing = computed, missing


@dataclass(frozen=True, eq=False)
class Part(Run):
    """A run folder that is open for one part of its pieces, beside other parts."""

    share: Share
    me: Present
    claims: Claims
    inside: list[str] = field(default_factory=list)  # the pieces that are being computed, outermost first

    @classmethod
    @contextmanager
    def shared(cls, folder: Path | str, question: Mapping[str, Any], share: Share) -> Iterator[Part]:
        """Within the block, a part of the run that answers `question` in `folder`; refused while a whole run has it."""
        with Run.open(folder, question, held=held_with_others) as run:
            me = Present(run.folder, Worker(str(share)))
            try:
                yield cls(**vars(run), share=share, me=me, claims=Claims(run.folder, me))
            finally:
                me.go()

    def piece(self, name: str, compute: Compute) -> Arrays:
        """The arrays of a piece that stands alone: the first part computes it."""
        return next(iter(self.independent([(name, compute)])))

    def independent(self, jobs: Iterable[Job]) -> Iterator[Arrays]:
        """The arrays of these pieces, of which this part computes its share and waits for those that others compute.

        `PartEnds` where nobody is at work on what is missing. Within a piece all is computed that it needs.
        """
        if self.inside:
            return (super(Part, self).piece(name, compute) for name, compute in jobs)
        stage = list(jobs)
        self._stage(stage)
        return (self.read(name) for name, _ in stage)

    def write(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Write what is computed; what another one has finished meanwhile stays."""
        if self.inside and not self.done(name):
            super().write(name, arrays)

    def write_json(self, name: str, data: Any, *, replace: bool = False) -> None:
        """Nothing: documents are written when all parts are there."""

    def conclude(self) -> None:
        """All pieces are there, and the rest is not a part's work."""
        raise PartEnds(self.me.worker.done, 0)

    def finish(self) -> None:
        """Nothing: a part does not end the run."""

    def discard_if_empty(self) -> None:
        """Nothing: others may be at work in the folder."""

    # -- the pieces of a stage ---------------------------------------------------------------------------------------------

    def _stage(self, stage: list[Job]) -> None:
        there = pieces_in(self.folder)  # one look at the folder, and not one for every piece
        missing = deque(name for name, _ in stage if name not in there)
        ours = {name: compute for number, (name, compute) in enumerate(stage) if number in self.share}
        left = {name: compute for name, compute in ours.items() if name not in there}
        self.me.say(state="computing", piece=None, left=len(left))
        with Bar(str(self.share), total=len(left)) as bar:
            self._until_all_are_there(missing, left, bar)

    def _until_all_are_there(self, missing: deque[str], left: dict[str, Compute], bar: Bar) -> None:
        pause = FIRST_PAUSE
        while True:
            for name, compute in list(left.items()):
                if self._computed(name, compute):
                    del left[name]
                    bar.advance()
            while missing and self.done(missing[0]):
                missing.popleft()
            if not missing:
                return
            self.me.say(state="waiting", piece=missing[0], left=len(left))
            if not self.me.others_at_work(self.done):
                there = pieces_in(self.folder)
                absent = sum(name not in there for name in missing)
                if absent:
                    raise PartEnds(self.me.worker.done, absent)
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 1.5 * pause)

    def _computed(self, name: str, compute: Compute) -> bool:
        """Whether the piece is there: computed now, unless another one does that."""
        if self.done(name):
            return True
        if not self.claims.take(name):
            return False
        try:
            if not self.done(name):
                with self.me.computing(name):
                    self.inside.append(name)
                    try:
                        self.write(name, compute())
                    finally:
                        self.inside.pop()
        finally:
            self.claims.release(name)
        return True


class _Held:
    """A folder that is held together with others, for as long as `is_locked`."""

    is_locked = True


@contextmanager
def held_with_others(folder: Path) -> Iterator[_Held]:
    """Holds the folder beside others that hold it so, against every process that wants it for itself.

    A disk without locks holds nobody out: there the claims alone keep parts from doing a piece twice.
    """
    held = _Held()
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield held
        return
    path = folder / LOCK
    try:
        stream = open(path, "ab")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise BadRun(f"I cannot use {folder}: {error.strerror or error}; choose another folder.") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise BadRun(
                    f"{folder} is in use by a process that has it for itself; wait for it, or choose another folder."
                ) from None
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise BadRun(f"I cannot use {folder}: {error.strerror or error}; choose another folder.") from error
        try:
            yield held
        finally:
            held.is_locked = False


def at_work(folder: Path) -> list[str]:
    """The workers that are alive in a run folder, as people call them and where."""
    return [f"{worker.name} on {worker.host}" for worker, age in presence.workers_in(folder) if age is not None]


def tidy(run: Run) -> None:
    """Take away what parts have left in a run folder that is finished: claims, the files of dead workers, the note."""
    for name in (claims.FOLDER, presence.FOLDER):
        shutil.rmtree(run.folder / name, ignore_errors=True)
    (run.folder / NOTE).unlink(missing_ok=True)
