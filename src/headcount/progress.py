"""How far long work has come: bars on stderr with the time left, for people who watch and for nobody else."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

APPEARS_AFTER = 2.0  # seconds: work that is done by then needs no bar
_Item = TypeVar("_Item")
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block, bars that begin show nothing."""
    before = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(before)


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
    also after an exception or Ctrl-C. Bars within bars are further lines of one display.
    """

    def __init__(self, label: str, total: float | None = None) -> None:
        self.total = total
        self._label = label

    def __enter__(self) -> Bar:
        if not _quiet.get() and _is_terminal(sys.stderr):
            _display.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _display.remove(self)

    @property
    def label(self) -> str:
        """What the bar says is going on."""
        return self._label

    @label.setter
    def label(self, label: str) -> None:
        self._label = label
        _display.update(self, description=label)

    def advance(self, n: float = 1) -> None:
        """Note that `n` more are done."""
        _display.update(self, advance=n)


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
