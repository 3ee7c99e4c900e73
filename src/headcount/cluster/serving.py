"""A worker that computes the pieces it is asked for: it does the command in a thread, and stops at each of its stages.

The command is the same as that of the process that asks, so both come through the same stages; a piece of a later stage is
reached by reading those of the earlier ones, from the folder that both share, or as they are handed over.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple

from ..errors import BadRun, HeadcountError
from ..progress import quiet
from ..runs import Arrays, Job, Run, write_whole
from .presence import pieces_in

Command = Callable[[Sequence[str]], object]  # does what the words after `headcount` say, or raises
DONE, NEEDS, FAILED = "done", "needs", "failed"


class Order(NamedTuple):
    """What a worker is to serve: a command, from which folder, and the run that it belongs to."""

    words: tuple[str, ...]
    start: str  # the folder that files are named from
    folder: str  # the run folder, as an absolute path
    mark: str  # a file in it, by which a worker sees that it is the same one
    question: dict[str, Any]


class Answer(NamedTuple):
    """What becomes of a piece that was asked for."""

    kind: str  # done, needs, failed
    content: bytes | None = None  # of a piece that is done, where the folder is not shared
    names: tuple[str, ...] = ()  # pieces of others that it needs first
    error: tuple[str, str] = ("", "")  # of one that failed: the class and the sentence
    seconds: float = 0.0


class About(NamedTuple):
    """Where a worker is."""

    host: str
    pid: int
    shared: bool


_serving: ContextVar[Server | None] = ContextVar("serving", default=None)


def server() -> Server | None:
    """The server that this thread does a command for."""
    return _serving.get()


class Server:
    """A worker: a thread that does the command, and the questions that it is asked from outside."""

    def __init__(self, command: Command, order: Order) -> None:
        self.order = order
        self.shared = (Path(order.folder) / order.mark).is_file()
        self._scratch = None if self.shared else tempfile.TemporaryDirectory(prefix="headcount-")
        self.folder = Path(order.folder if self._scratch is None else self._scratch.name)
        self._asked: SimpleQueue[str] = SimpleQueue()
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._ended: Answer | None = None
        self._ready = Event()
        self._thread = Thread(target=self._work, args=(command,), daemon=True, name="headcount-command")
        self._thread.start()

    def about(self) -> About:
        """Where this is, when the model is there and pieces can be asked for."""
        self._ready.wait()
        return About(platform.node(), os.getpid(), self.shared)

    def piece(self, name: str) -> Answer:
        """Compute a piece, as soon as the command is where it is needed."""
        if self._ended is not None:
            return self._ended
        self._asked.put(name)
        return self._answers.get()

    def give(self, name: str, content: bytes) -> None:
        """Take a piece that another one has computed."""
        write_whole(self.folder / f"{name}.npz", content)

    # -- in the thread of the command ---------------------------------------------------------------------------------------

    def next(self) -> str:
        """The piece that is asked for next."""
        return self._asked.get()

    def answer(self, answer: Answer) -> None:
        """Answer the last question."""
        self._answers.put(answer)

    def back(self, name: str) -> None:
        """Put a question back, for the next stage."""
        self._asked.put(name)

    @contextmanager
    def run(self, question: Mapping[str, Any]) -> Iterator[Serving]:
        """Within the block, the run folder that a command writes its pieces to, for those that ask."""
        try:
            with Run.open(self.folder, self.order.question, held=_freely) as run:
                pass
            with Run.open(self.folder, question, held=_freely) as run:
                self._ready.set()
                yield Serving(**vars(run), server=self, inside=[])
        except BadRun as error:
            if "another question" not in str(error):
                raise
            why = str(error).partition("question: ")[2].replace(" there", " where it was started")
            raise BadRun(f"The worker on {platform.node()} would answer another question: {why}") from None

    def _work(self, command: Command) -> None:
        _serving.set(self)
        try:
            if os.path.isdir(self.order.start):
                os.chdir(self.order.start)
            with quiet():
                command(self.order.words)
            error = ("HeadcountError", "the worker came to the end of its command without this piece")
        except HeadcountError as caught:
            error = (type(caught).__name__, str(caught))
        except BaseException as caught:  # also SystemExit: whoever asks has to be told
            first = (str(caught).strip().splitlines() or [""])[0][:200]
            error = ("HeadcountError", f"A worker on {platform.node()} failed: {type(caught).__name__}: {first}")
        self._ended = Answer(FAILED, error=error)
        self._answers.put(self._ended)
        self._ready.set()


class Stopped(Exception):
    """The command of a worker has come to what is not its work."""


@dataclass(frozen=True, eq=False)
class Serving(Run):
    """A run whose pieces are computed as they are asked for."""

    server: Server
    inside: list[str]  # the pieces that are being computed, outermost first

    def piece(self, name: str, compute: Callable[[], Mapping[str, Any]]) -> Arrays:
        """The arrays of a piece, which this or another worker computes."""
        return next(iter(self.independent([(name, compute)])))

    def independent(self, jobs: Iterable[Job]) -> Iterator[Arrays]:
        """The arrays of these pieces: those that are asked for are computed, until one of a later stage is."""
        if self.inside:
            return (super(Serving, self).piece(name, compute) for name, compute in jobs)
        stage = dict(jobs)
        while True:
            name = self.server.next()
            if name in stage:
                self.server.answer(self._computed(name, stage[name]))
                continue
            there = pieces_in(self.folder)
            missing = tuple(one for one in stage if one not in there)
            if not missing:
                self.server.back(name)
                return (self.read(one) for one in stage)
            self.server.answer(Answer(NEEDS, names=missing))

    def write(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Write what is computed; what another one has finished meanwhile stays."""
        if self.inside and not self.done(name):
            super().write(name, arrays)

    def write_json(self, name: str, data: Any, *, replace: bool = False) -> None:
        """Nothing: documents are written by the process that asks."""

    def conclude(self) -> None:
        """What follows from the pieces is the work of the process that asks."""
        raise Stopped

    def finish(self) -> None:
        """Nothing: a worker does not end the run."""

    def discard_if_empty(self) -> None:
        """Nothing: the folder belongs to the process that asks."""

    def _computed(self, name: str, compute: Callable[[], Mapping[str, Any]]) -> Answer:
        start = time.monotonic()
        self.inside.append(name)
        try:
            if not self.done(name):
                self.write(name, compute())
        finally:
            self.inside.pop()
        content = None if self.server.shared else (self.folder / f"{name}.npz").read_bytes()
        return Answer(DONE, content=content, seconds=time.monotonic() - start)


class _Free:
    """Held by nobody: the process that asks has the folder's lock."""

    is_locked = True


@contextmanager
def _freely(folder: Path) -> Iterator[_Free]:
    yield _Free()
