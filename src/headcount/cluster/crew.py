"""A run whose pieces are computed by a crew of workers, given out one at a time as they get free.

This process has the run folder for itself. It asks workers for pieces and computes none; a worker that dies costs the piece
that it computed, which the next one gets.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from .. import errors
from ..errors import BadRun, HeadcountError
from ..progress import Bar, on_terminal
from ..runs import Arrays, Job, Run, write_whole
from .presence import Present, Worker, pieces_in
from .serving import DONE, NEEDS, About, Answer

DEATHS = 3  # of workers with the same piece, after which the piece is to blame
SEEN = 60.0  # seconds in which a file that another machine has written must appear
SHOWN = 16  # workers with a line of their own on the screen


class Dead(Exception):
    """A worker is gone."""


class Engine(Protocol):
    """What starts workers and speaks with them; a future fails with `Dead` if its worker died."""

    def start(self, number: int) -> Any:
        """A new worker, which may have to wait for a place."""
        ...

    def about(self, worker: Any) -> Future[About]:
        """Where the worker is, as soon as it has begun."""
        ...

    def piece(self, worker: Any, name: str) -> Future[Answer]:
        """Ask for a piece."""
        ...

    def give(self, worker: Any, name: str, content: bytes) -> None:
        """Hand over a piece of another one."""
        ...

    def end(self, worker: Any) -> None:
        """End a worker, if it is still there."""
        ...


@dataclass(eq=False)
class Member:
    """A place in the crew: the worker that has it now, and what it does."""

    number: int
    handle: Any
    facts: Worker
    piece: str | None = None
    bar: Bar | None = None


class Crew:
    """Workers, and the pieces that they compute; `do` a stage after the other."""

    def __init__(self, engine: Engine, size: int, me: Present) -> None:
        self.engine, self.me = engine, me
        self.events: SimpleQueue[tuple[Member, Any, Future[Any]]] = SimpleQueue()
        self.free: deque[Member] = deque()
        self.deaths: Counter[str] = Counter()
        self.never_began = 0  # workers that died before they began, one after the other
        self.said = 0.0
        self.members: list[Member] = []
        for number in range(1, size + 1):
            member = Member(number, None, Worker(f"worker {number}", host="", pid=0))
            self.members.append(member)
            self._hire(member)

    def do(self, names: Sequence[str], run: Run) -> None:
        """Have these pieces computed, and write or see them in the run folder."""
        waiting, left = deque(names), len(names)
        with ExitStack() as stack:
            bar = stack.enter_context(Bar(f"{len(self.members)} workers", total=left))
            for member in self.members[:SHOWN] if on_terminal() else ():
                member.bar = stack.enter_context(Bar(_line(member)))
            while left:
                while waiting and self.free:
                    self._ask(self.free.popleft(), waiting.popleft())
                self._report(left)
                try:
                    member, handle, future = self.events.get(timeout=1.0)
                except Empty:
                    continue
                if handle is not member.handle:  # of a worker that was given up
                    continue
                finished = self._settled(member, future, run)
                if finished:
                    left -= 1
                    bar.advance()
                elif finished is False:
                    waiting.appendleft(self._again(member, future))
        self._report(left, at_once=True)

    def end(self) -> None:
        """End all workers."""
        for member in self.members:
            self.engine.end(member.handle)

    # -- what happens ------------------------------------------------------------------------------------------------------

    def _hire(self, member: Member) -> None:
        member.piece = None
        member.handle = self.engine.start(member.number)
        self._say(member, state="starting", piece=None, host="", pid=0)
        self._when_done(member, self.engine.about(member.handle))

    def _ask(self, member: Member, name: str) -> None:
        member.piece = name
        self._say(member, state="computing", piece=name, since=time.time())
        self._when_done(member, self.engine.piece(member.handle, name))

    def _when_done(self, member: Member, future: Future[Any]) -> None:
        future.add_done_callback(partial(self._event, member, member.handle))

    def _event(self, member: Member, handle: Any, future: Future[Any]) -> None:
        self.events.put((member, handle, future))

    def _settled(self, member: Member, future: Future[Any], run: Run) -> bool | None:
        """True if a piece is finished, False if it has to be asked for again, None if it was not about a piece."""
        name = member.piece
        if future.exception() is not None:
            if name is not None:
                return False
            self.never_began += 1
            if self.never_began > DEATHS * len(self.members):
                raise BadRun(
                    f"Workers die before they begin ({_first_line(future)}): is headcount installed on all nodes?"
                )
            self._lost(member, future)
            return None
        found = future.result()
        if isinstance(found, About):
            self.never_began = 0
            self._say(member, host=found.host, pid=found.pid, state="waiting")
            self.free.append(member)
            return None
        assert name is not None
        if found.kind == NEEDS:
            for needed in found.names:
                self.engine.give(member.handle, needed, (run.folder / f"{needed}.npz").read_bytes())
            self._ask(member, name)
            return None
        if found.kind != DONE:
            kind = getattr(errors, found.error[0], HeadcountError)
            raise kind(found.error[1])
        if found.content is not None:
            write_whole(run.folder / f"{name}.npz", found.content)
        elif not _appears(run, name):
            raise BadRun(
                f"A worker says that it has written {name}, and {run.folder} does not show it: see to the disk they share."
            )
        facts = member.facts
        self._say(member, state="waiting", piece=None, done=facts.done + 1, seconds=facts.seconds + found.seconds)
        member.piece = None
        self.free.append(member)
        return True

    def _again(self, member: Member, future: Future[Any]) -> str:
        """The piece whose worker died; its place gets a new one."""
        name = member.piece
        assert name is not None
        self.deaths[name] += 1
        self._lost(member, future)
        if self.deaths[name] >= DEATHS:
            raise BadRun(
                f"{DEATHS} workers died while they computed {name} ({_first_line(future)}): is there enough memory for a "
                "worker? What is finished is safe."
            )
        return name

    def _lost(self, member: Member, future: Future[Any]) -> None:
        error = future.exception()
        if not isinstance(error, Dead):
            assert error is not None
            raise error
        self.engine.end(member.handle)
        self._hire(member)

    # -- what is said ------------------------------------------------------------------------------------------------------

    def _say(self, member: Member, **changes: Any) -> None:
        member.facts = replace(member.facts, **changes)
        if member.bar is not None:
            member.bar.label = _line(member)

    def _report(self, left: int, at_once: bool = False) -> None:
        """For `headcount status`: at most once a second, because a crew may be large."""
        now = time.monotonic()
        if at_once or now - self.said >= 1.0:
            self.said = now
            done = sum(member.facts.done for member in self.members)
            seconds = sum(member.facts.seconds for member in self.members) / max(1, len(self.members))
            facts = tuple(asdict(member.facts) for member in self.members)
            self.me.say(state="computing", done=done, left=left, seconds=seconds, crew=facts)


@dataclass(frozen=True, eq=False)
class CrewRun(Run):
    """A run folder that this process has for itself, and whose pieces a crew computes."""

    crew: Crew

    def piece(self, name: str, compute: Callable[[], Mapping[str, Any]]) -> Arrays:
        """The arrays of a piece, computed by a worker unless it is there."""
        return next(iter(self.independent([(name, compute)])))

    def independent(self, jobs: Iterable[Job]) -> Iterator[Arrays]:
        """The arrays of these pieces, computed by the crew unless they are there."""
        names = [name for name, _ in jobs]
        there = pieces_in(self.folder)
        missing = [name for name in names if name not in there]
        if missing:
            self.crew.do(missing, self)
        return (self.read(name) for name in names)

    def conclude(self) -> None:
        """No more pieces: the workers may go while the result is made."""
        self.crew.end()


def _line(member: Member) -> str:
    facts = member.facts
    where = f"{facts.name} ({facts.host})" if facts.host else facts.name
    return f"{where}: {facts.piece or facts.state}, {facts.done} done"


def _appears(run: Run, name: str) -> bool:
    """Whether a piece is seen here; a network disk may show it late."""
    end = time.monotonic() + SEEN
    while not run.done(name):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _first_line(future: Future[Any]) -> str:
    return (str(future.exception()).strip().splitlines() or ["no reason is known"])[0][:120]
