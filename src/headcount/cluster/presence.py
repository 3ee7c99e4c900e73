"""Who is at work in a run folder: a file for each worker, which it touches for as long as it lives.

Whether a worker lives is seen by the process where it is on this machine, and elsewhere by the age of its file, in the time of
the disk that both see: clocks of machines differ.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

from ..errors import BadRun

FOLDER = ".workers"
BEAT = 5.0  # seconds between signs of life
SILENCE = 60.0  # seconds without one after which a worker of another machine is dead


@dataclass(frozen=True)
class Worker:
    """What a worker says about itself: who and where it is, which share it does, and how far it has come."""

    name: str  # as people call it: "part 3 of 16"
    host: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    state: str = "starting"  # until the model is loaded, then "computing" or "waiting"
    piece: str | None = None  # that it computes, or waits for
    since: float = 0.0  # when it began with that, in seconds of its own clock
    done: int = 0  # pieces that it has computed
    left: int | None = None  # pieces of its share that are missing
    seconds: float = 0.0  # that its pieces have taken
    crew: tuple[dict[str, Any], ...] = ()  # workers elsewhere that it speaks for


class Present:
    """A worker that is at work here: its file, touched by a thread of its own until it goes."""

    def __init__(self, folder: Path, worker: Worker) -> None:
        self.folder, self.worker = folder / FOLDER, worker
        self.id = f"{worker.host}-{worker.pid}-{secrets.token_hex(4)}"
        self._gone = Event()
        self.folder.mkdir(exist_ok=True)
        self.say()
        self._thread = Thread(target=self._beat, daemon=True, name="headcount-sign-of-life")
        self._thread.start()

    def say(self, **changes: Any) -> None:
        """Write down what has changed; that a disk is full is seen where results are written."""
        before, self.worker = self.worker, replace(self.worker, **changes)
        if changes and self.worker == before:
            return
        draft = self.folder / f".{self.id}.draft"
        with suppress(OSError):
            draft.write_text(json.dumps(asdict(self.worker)), encoding="utf-8")
            os.replace(draft, self._file)

    @contextmanager
    def computing(self, piece: str) -> Iterator[None]:
        """Within the block, the worker computes this piece, which is done when it ends well."""
        start = time.monotonic()
        self.say(state="computing", piece=piece, since=time.time())
        try:
            yield
        except BaseException:
            self.say(piece=None)
            raise
        left = None if self.worker.left is None else self.worker.left - 1
        spent = self.worker.seconds + time.monotonic() - start
        self.say(piece=None, done=self.worker.done + 1, left=left, seconds=spent)

    def lives(self, identity: str) -> bool:
        """Whether the worker of this name is still at work, as far as can be seen from here."""
        if identity == self.id:
            return True
        found = _read(self.folder / f"{identity}.json")
        return found is not None and _lives(*found, self._now())

    def others_at_work(self, there: Callable[[str], bool]) -> bool:
        """Whether any other worker lives and does not wait in vain, as this one does: `there` says whether a piece is."""
        now, names = self._now(), os.listdir(self.folder)
        secrets.SystemRandom().shuffle(names)  # many that wait should not all read the same files
        for name in names:
            if name.endswith(".json") and name != self._file.name:
                found = _read(self.folder / name)
                if found is None or not _lives(*found, now):
                    continue
                worker = found[0]
                if worker.state != "waiting" or worker.piece is None or there(worker.piece):  # it goes on at once
                    return True
        return False

    def go(self) -> None:
        """Go: the file is taken away."""
        self._gone.set()
        self._thread.join()
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    @property
    def _file(self) -> Path:
        return self.folder / f"{self.id}.json"

    def _now(self) -> float:
        """The time as the disk counts it, which may be that of another machine."""
        try:
            os.utime(self._file)
            return self._file.stat().st_mtime
        except OSError:
            return time.time()

    def _beat(self) -> None:
        while not self._gone.wait(BEAT):
            try:
                os.utime(self._file)
            except FileNotFoundError:  # somebody tidied up: this one lives
                self.say()
            except OSError:
                pass


def workers_in(folder: Path) -> list[tuple[Worker, float | None]]:
    """The workers that have a file in a run folder, each with the seconds since its last sign of life; None for the dead."""
    out = []
    with suppress(OSError):
        for name in sorted(os.listdir(folder / FOLDER)):
            found = _read(folder / FOLDER / name) if name.endswith(".json") else None
            if found is not None:
                worker, now = found[0], time.time()
                silent = max(0.0, now - found[1]) if _lives(*found, now) else None
                out += [(one, silent) for one in (worker, *(Worker(**about) for about in worker.crew))]
    return out


def pieces_in(folder: Path) -> set[str]:
    """The names of the pieces in a run folder, in no order: one look, which sorting would make ten times as long."""
    try:
        return {name[:-4] for name in os.listdir(folder) if name.endswith(".npz")}
    except OSError as error:
        raise BadRun(
            f"I cannot read {folder}: {error.strerror or error}; check that it is there and readable."
        ) from error


def _read(path: Path) -> tuple[Worker, float] | None:
    """What a worker says, and when it last gave a sign of life; None if it has gone, or says nothing that can be read."""
    try:
        seen = path.stat().st_mtime
        return Worker(**json.loads(path.read_text(encoding="utf-8"))), seen
    except (OSError, ValueError, TypeError):
        return None


def _lives(worker: Worker, seen: float, now: float) -> bool:
    if worker.host == platform.node() and not _runs(worker.pid):
        return False
    return now - seen < SILENCE


def _runs(pid: int) -> bool:
    """Whether there is a process of this number on this machine."""
    if os.name != "posix":  # elsewhere the signal 0 would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
