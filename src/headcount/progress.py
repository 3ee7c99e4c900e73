"""How far long work has come: bars on stderr with the time left, for people who watch and for nobody else."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
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
        self.total, self.completed, self.since = total, 0.0, 0.0
        self._label = label

    def __enter__(self) -> Bar:
        self.since = monotonic()
        if not _quiet.get() and _is_terminal(sys.stderr):
            _display.join(self)
        return self

    def __exit__(self, *_: object) -> None:
        _display.leave(self)

    @property
    def label(self) -> str:
        """What the bar says is going on."""
        return self._label

    @label.setter
    def label(self, label: str) -> None:
        self._label = label
        _display.refresh(self)

    def advance(self, n: float = 1) -> None:
        """Note that `n` more are done."""
        self.completed += n
        _display.refresh(self)


class _Display:
    """The lines of all bars that are open, outermost first; there is one, because there is one terminal."""

    def __init__(self) -> None:
        self.bars: dict[Bar, TaskID | None] = {}  # with their lines, once they are shown
        self.progress: Progress | None = None
        self.moment: float | None = None  # a time that rich is told instead of the present one
        self.lock = RLock()

    def join(self, bar: Bar) -> None:
        with self.lock:
            self.bars[bar] = None
            self.refresh(bar)

    def leave(self, bar: Bar) -> None:
        with self.lock:
            line = self.bars.pop(bar, None)
            if self.progress is not None and line is not None:
                self.progress.remove_task(line)
            if not self.bars:
                self.stop()

    def refresh(self, bar: Bar) -> None:
        if bar in self.bars:
            with self.lock:
                try:
                    self.show(bar)
                except OSError:  # the terminal went away: the work goes on without
                    self.bars.clear()
                    self.stop()

    def show(self, bar: Bar) -> None:
        if self.progress is None:
            if monotonic() - next(iter(self.bars)).since < APPEARS_AFTER:
                return
            self.start()
        assert self.progress is not None
        for each, line in self.bars.items():
            if line is None:
                self.bars[each] = self.add_line(self.progress, each)
        self.progress.update(self.bars[bar], description=bar.label, completed=bar.completed)

    def add_line(self, progress: Progress, bar: Bar) -> TaskID:
        """A line that has been there since the bar began: what was done before it could be seen counts for the time left."""
        try:
            self.moment = bar.since
            line = progress.add_task(bar.label, total=bar.total)
            progress.update(line, completed=1e-9)  # rich measures the speed from the first progress on
        finally:
            self.moment = None
        progress.update(line, completed=bar.completed)
        return line

    def clock(self) -> float:
        return monotonic() if self.moment is None else self.moment

    def start(self) -> None:
        self.progress = _new_progress(self.clock)
        atexit.register(self.stop)  # a loop over `track` that an error ends is not closed before the error is printed
        try:
            self.progress.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        with self.lock:
            progress, self.progress = self.progress, None
            if progress is not None:
                atexit.unregister(self.stop)
                with suppress(OSError):
                    progress.stop()


_display = _Display()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _new_progress(clock: Callable[[], float]) -> Progress:
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
        get_time=clock,
    )
