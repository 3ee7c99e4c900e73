"""How far long work has come, and how long it still takes: bars on a terminal, and for commands without one, lines.

A log file of an hour of work should say what is going on, and not be filled with it: a line when something begins that
takes longer than two seconds, one every half minute, and one when it is done.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Event, RLock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

APPEARS_AFTER = 2.0  # seconds: work that is done by then needs no bar
EVERY = 30.0  # seconds between lines, where there is no terminal
_Item = TypeVar("_Item")
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_in_lines: ContextVar[bool] = ContextVar("in_lines", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block, bars that begin show nothing."""
    before = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(before)


@contextmanager
def lines() -> Iterator[None]:
    """Within the block, bars that begin where there is no terminal write lines to stderr: for commands, not for libraries."""
    before = _in_lines.set(True)
    try:
        yield
    finally:
        _in_lines.reset(before)


def on_terminal() -> bool:
    """Whether bars are drawn and redrawn, so that one may say what changes every second."""
    return not _quiet.get() and _is_terminal(sys.stderr)


def track(iterable: Iterable[_Item], label: str, total: int | None = None) -> Iterator[_Item]:
    """The items of `iterable`, with a bar that counts those that are done with; `total` if it has no length."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Bar(label, total) as bar:
        for item in iterable:
            yield item
            bar.advance()


class Bar:
    """A bar for the time of a `with` block: `advance` it as work gets done, and set `label` to say what is going on.

    It appears only if stderr is a terminal and the outermost work lasts longer than two seconds, and is gone afterwards,
    also after an exception or Ctrl-C. Bars within bars are further lines of one display. Without a terminal it is
    silent, or within `lines` writes a line now and then.
    """

    _shown_by: _Display | _Lines | None = None

    def __init__(self, label: str, total: float | None = None) -> None:
        self.total = total
        self._label = label

    def __enter__(self) -> Bar:
        if not _quiet.get():
            self._shown_by = _display if _is_terminal(sys.stderr) else _lines if _in_lines.get() else None
        if self._shown_by is not None:
            self._shown_by.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown_by is not None:
            self._shown_by.remove(self)

    @property
    def label(self) -> str:
        """What the bar says is going on."""
        return self._label

    @label.setter
    def label(self, label: str) -> None:
        self._label = label
        if self._shown_by is not None:
            self._shown_by.update(self, description=label)

    def advance(self, n: float = 1) -> None:
        """Note that `n` more are done."""
        if self._shown_by is not None:
            self._shown_by.update(self, advance=n)


class _Display:
    """The lines of all bars that are open, outermost first; there is one, because there is one terminal.

    Rich counts from the first bar on and draws nothing before it is started, so that what was done before the bars
    appeared counts for the time left.
    """

    def __init__(self) -> None:
        self.bars: dict[Bar, TaskID] = {}
        self.progress: Progress | None = None
        self.since = 0.0
        self.lock = RLock()
        atexit.register(self.stop)  # a loop over `track` that an error ends is not closed before the error is printed

    def add(self, bar: Bar) -> None:
        with self.lock:
            if self.progress is None:
                self.progress = _new_progress()
                self.since = monotonic()
            try:
                self.bars[bar] = self.progress.add_task(bar.label, total=bar.total)
            except OSError:  # the terminal went away: the work goes on without
                self.stop()
            self.update(bar, completed=1e-9)  # rich measures the speed from the first progress on

    def update(self, bar: Bar, **changes: Any) -> None:
        if bar not in self.bars:  # a silent bar, which waits for no lock
            return
        with self.lock:
            line = self.bars.get(bar)
            if self.progress is None or line is None:
                return
            self.progress.update(line, **changes)
            if monotonic() - self.since < APPEARS_AFTER:
                return
            try:
                self.progress.start()
            except OSError:
                self.stop()

    def remove(self, bar: Bar) -> None:
        with self.lock:
            line = self.bars.pop(bar, None)
            if self.progress is not None and line is not None:
                self.progress.remove_task(line)
            if not self.bars:
                self.stop()

    def stop(self) -> None:
        with self.lock:
            self.bars.clear()
            progress = self.progress
            self.progress = None
            if progress is not None:
                with suppress(OSError):
                    progress.stop()


_display = _Display()


@dataclass
class _Phase:
    """A bar that is open where there is no terminal."""

    since: float
    done: float = 0.0
    announced: bool = False


class _Lines:
    """What is going on, as lines: all open bars in one, outermost first, with the time left for the outermost.

    A thread looks every second, because a single step may take many minutes.
    """

    def __init__(self) -> None:
        self.bars: dict[Bar, _Phase] = {}
        self.announced: set[str] = set()  # labels: what comes again for every plan begins only once
        self.last = 0.0
        self.lock = RLock()
        self.work = Event()  # set while a bar is open
        self.thread: Thread | None = None

    def add(self, bar: Bar) -> None:
        with self.lock:
            self.bars[bar] = _Phase(monotonic())
            self.work.set()
            if self.thread is None:
                self.thread = Thread(target=self._watch, daemon=True, name="headcount-progress")
                self.thread.start()

    def update(self, bar: Bar, advance: float = 0, description: str | None = None) -> None:
        with self.lock:
            if bar in self.bars:
                self.bars[bar].done += advance
                self.look()

    def remove(self, bar: Bar) -> None:
        with self.lock:
            phase = self.bars.pop(bar, None)
            if not self.bars:
                self.work.clear()
                if phase is not None and phase.announced:
                    self._write(f"{bar.label}: done in {duration(monotonic() - phase.since)}")
                self.announced.clear()

    def look(self) -> None:
        """Write a line where something has begun that lasts, or nothing was written for long."""
        with self.lock:
            now = monotonic()
            lasting = {bar: phase for bar, phase in self.bars.items() if now - phase.since >= APPEARS_AFTER}
            new = {bar.label for bar in lasting} - self.announced
            if lasting and (new or now - self.last >= EVERY):
                self.announced |= new
                self.last = now
                for phase in lasting.values():
                    phase.announced = True
                self._write(_summary(lasting, now))

    def _watch(self) -> None:
        while True:
            self.work.wait()
            self.look()
            Event().wait(1.0)

    def _write(self, line: str) -> None:
        with suppress(OSError, ValueError, AttributeError):  # there is no stderr, or it went away: the work goes on
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


_lines = _Lines()


def _summary(bars: dict[Bar, _Phase], now: float) -> str:
    """ "gradients 25 %, about 3 min left", of bars within bars "plans 2 of 9 · tuning 40 %, about 12 min left"."""
    parts, left = [], ""
    for bar, phase in bars.items():
        share = min(1.0, phase.done / bar.total) if bar.total else None
        parts.append(bar.label if share is None else f"{bar.label} {100 * share:.0f} %")
        if not left and share:
            left = f", about {duration((now - phase.since) * (1 - share) / share)} left"
    return " · ".join(parts) + (left or " ...")


def duration(seconds: float) -> str:
    """A time as people say it: 40 s, 3 min, 2 h 10 min."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _new_progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,  # a terminal that cannot move its cursor
        # What is printed meanwhile goes above the bars; but rich sends it to stderr, so not what is meant for a file.
        redirect_stdout=_is_terminal(sys.stdout),
        speed_estimate_period=3600,  # seconds: a single step may take many minutes
        get_time=monotonic,
    )
