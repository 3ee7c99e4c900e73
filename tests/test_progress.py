"""Bars are for people who watch a terminal: nobody else sees anything, and afterwards nothing is left of them."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from headcount import progress
from headcount.progress import Bar, lines, quiet, track

CONTROL = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds that pass only when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def screen(written: str) -> list[str]:
    """The lines a terminal shows after all that was written to it; only what rich uses, anything else is an error."""
    rows, row, column = [""], 0, 0
    for numbers, letter, move, text in CONTROL.findall(written):
        if text:
            rows[row] = rows[row][:column].ljust(column) + text + rows[row][column + len(text) :]
            column += len(text)
        elif move == "\r":
            column = 0
        elif move == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        elif letter == "A":
            row -= int(numbers or 1)
        elif letter == "K":
            assert numbers == "2"
            rows[row] = ""
        else:
            assert letter == "m" or numbers == "?25"
    return [line.rstrip() for line in rows if line.strip()]


def cursor_is_shown(written: str) -> bool:
    return written.rfind("\x1b[?25h") >= written.rfind("\x1b[?25l")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(progress, "monotonic", own)
    return own


@contextmanager
def watched() -> Iterator[Terminal]:
    """Within the block, stderr is a terminal; afterwards nothing may be left on it."""
    stream = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm")
        patch.setattr(sys, "stderr", stream)
        yield stream
        assert sys.stderr is stream, "rich's stand-in for stderr is still there"
    assert not progress._display.bars
    assert progress._display.progress is None
    assert screen(stream.getvalue()) == []
    assert cursor_is_shown(stream.getvalue())


def now_shown(terminal: Terminal) -> list[str]:
    assert progress._display.progress is not None
    progress._display.progress.refresh()
    return screen(terminal.getvalue())


def test_short_work_shows_nothing(clock: Clock) -> None:
    with watched() as terminal:
        for _ in track(range(100), "short"):
            clock.now += 0.0199
        assert terminal.getvalue() == ""


def test_long_work_shows_a_bar_with_what_is_done_and_the_time_left(clock: Clock) -> None:
    with watched() as terminal, Bar("heads", 141) as bar:
        for _ in range(19):
            clock.now += 0.1
            bar.advance()
        assert terminal.getvalue() == ""
        clock.now += 0.5
        bar.advance(5)
        (line,) = now_shown(terminal)
        assert line.split()[0] == "heads"
        # 24 took 2.4 seconds, so the other 117 take 11.7
        assert line.split()[-2:] == ["24/141", "0:00:12"]


def test_a_step_that_takes_an_hour_still_gives_a_time_left(clock: Clock) -> None:
    with watched() as terminal, Bar("layers", 3) as bar:
        clock.now += 3500.2  # 7000.4 are left, which is 1:56:40.4, rounded up
        bar.advance()
        assert now_shown(terminal)[0].split()[-2:] == ["1/3", "1:56:41"]


def test_bars_within_bars_are_lines_of_one_display(clock: Clock) -> None:
    with watched() as terminal, Bar("heads", 4) as outer:
        clock.now += 1
        with Bar("batches", 7) as inner:
            inner.advance(2)
            assert terminal.getvalue() == ""
            clock.now += 1
            outer.label = "heads [decoder.2.cross:7]"  # no markup
            lines = [line.split() for line in now_shown(terminal)]
            assert [line[0] for line in lines] == ["heads", "batches"]
            assert lines[0][1] == "[decoder.2.cross:7]"
            assert [line[-2] for line in lines] == ["0/4", "2/7"]
        assert [line.split()[0] for line in now_shown(terminal)] == ["heads"]
        for _ in track(iter("ab"), "unknown length"):
            assert [line.split()[0] for line in now_shown(terminal)] == ["heads", "unknown"]
        outer.advance()
        assert now_shown(terminal)[0].split()[-2] == "1/4"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_takes_the_bars_down(clock: Clock, error: type[BaseException]) -> None:
    with watched() as terminal:

        def work() -> None:
            with Bar("outer", 2):
                for _ in track(range(3), "inner"):
                    clock.now += 3
                    with Bar("innermost"):
                        raise error

        with pytest.raises(error):
            work()
        assert "innermost" in terminal.getvalue()


def test_a_loop_that_is_left_takes_its_bar_along(clock: Clock) -> None:
    with watched() as terminal:
        for item in track(range(10), "left"):
            clock.now += 3
            if item == 2:
                break
        assert "left" in terminal.getvalue()


def test_quiet_silences_what_begins_within(clock: Clock) -> None:
    with watched() as terminal:
        with quiet():
            with quiet():
                pass
            for _ in track(range(3), "silent"):
                clock.now += 3
        assert terminal.getvalue() == ""
        with Bar("loud") as bar:
            clock.now += 3
            with quiet(), Bar("silent") as silent:
                silent.advance()
            bar.advance()
        assert "loud" in terminal.getvalue()
        assert "silent" not in terminal.getvalue()


@pytest.mark.parametrize("kind", ["a file", "none", "closed", "dumb"])
def test_nothing_is_shown_where_nobody_watches(kind: str, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    stream = Terminal() if kind == "dumb" else io.StringIO()
    monkeypatch.setenv("TERM", "dumb" if kind == "dumb" else "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    monkeypatch.setattr(sys, "stderr", None if kind == "none" else stream)
    if kind == "closed":
        stream.close()
    items = []
    for item in track(range(3), "nobody"):
        clock.now += 3
        items.append(item)
    assert items == [0, 1, 2]
    assert kind == "closed" or stream.getvalue() == ""


# -- lines, where there is no terminal -------------------------------------------------------------------------------------


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[io.StringIO]:
    """A file that stderr goes to, within a command; the clock alone decides when something is written."""
    stream = io.StringIO()
    # pytest puts a stream of its own into sys for every test, behind the back of its fixtures
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream, stdout=sys.stdout))
    monkeypatch.setattr(progress, "_lines", own := progress._Lines())
    monkeypatch.setattr(own, "thread", threading.current_thread())  # no other one looks meanwhile
    with lines():
        yield stream
    assert not own.bars


def test_a_command_without_a_terminal_says_when_work_begins_rarely_how_far_it_is_and_when_it_is_done(
    log: io.StringIO, clock: Clock
) -> None:
    with Bar("gradients", 200) as bar:
        for _ in range(200):
            clock.now += 0.5
            bar.advance()
    written = log.getvalue().splitlines()
    assert written[0] == "gradients 2 %, about 2 min left"
    assert written[1:-1] == [
        "gradients 32 %, about 1 min left",
        "gradients 62 %, about 38 s left",
        "gradients 92 %, about 8 s left",
    ]
    assert written[-1] == "gradients: done in 2 min"


def test_short_work_writes_no_line_and_neither_do_many_short_parts_of_it(log: io.StringIO, clock: Clock) -> None:
    for _ in range(100):
        with Bar("short", 2) as bar:
            clock.now += 0.9
            bar.advance(2)
    assert log.getvalue() == ""


def test_parts_of_long_work_stand_in_its_line_and_begin_once(log: io.StringIO, clock: Clock) -> None:
    with Bar("plans", 9) as outer:
        for _ in range(9):
            for _ in track(range(4), "tuning"):
                clock.now += 2.5
            outer.advance()
    written = log.getvalue().splitlines()
    assert written == [
        "plans 0 % · tuning 25 %, about 8 s left",
        "plans 33 % · tuning 25 %, about 1 min left",
        "plans 67 % · tuning 25 %, about 31 s left",
        "plans: done in 2 min",
    ]


def test_a_step_that_takes_long_is_said_before_it_is_done(log: io.StringIO, clock: Clock) -> None:
    with Bar("loading the model"):
        clock.now += 1
        progress._lines.look()
        assert log.getvalue() == ""
        clock.now += 1
        progress._lines.look()
        assert log.getvalue() == "loading the model ...\n"


def test_a_thread_says_it_while_nothing_advances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    monkeypatch.setattr(progress, "_lines", progress._Lines())
    monkeypatch.setattr(progress, "APPEARS_AFTER", 0.0)
    said = threading.Event()
    monkeypatch.setattr(stream, "flush", said.set, raising=False)
    with lines(), Bar("one long step"):
        assert said.wait(60)
    assert stream.getvalue().startswith("one long step ...\n")


def test_quiet_commands_write_no_lines(log: io.StringIO, clock: Clock) -> None:
    with quiet():
        for _ in track(range(3), "silent"):
            clock.now += 40
    assert log.getvalue() == ""


@pytest.mark.parametrize("broken", ["closed", "none", "full"])
def test_a_log_that_cannot_be_written_does_not_stop_the_work(
    broken: str, log: io.StringIO, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken == "full":
        monkeypatch.setattr(log, "write", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    elif broken == "none":
        monkeypatch.setattr(progress.sys, "stderr", None)
    else:
        monkeypatch.setattr(progress.sys, "stderr", closed := io.StringIO())
        closed.close()
    items = []
    for item in track(range(3), "work"):
        clock.now += 40
        items.append(item)
    assert items == [0, 1, 2]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (59, "59 s"), (90, "2 min"), (3600, "1 h 0 min"), (7800, "2 h 10 min")]
)
def test_times_as_people_say_them(seconds: float, words: str) -> None:
    assert progress.duration(seconds) == words


def test_a_terminal_that_goes_away_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    class Gone(Terminal):
        def write(self, _: str) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Gone())
    items = []
    with Bar("outer") as bar:
        for item in track(range(3), "inner"):
            clock.now += 3
            items.append(item)
            bar.advance()
    assert items == [0, 1, 2]
    assert progress._display.progress is None


def test_bars_of_several_threads_share_the_display(clock: Clock) -> None:
    with watched() as terminal, Bar("main", 400) as bar:
        clock.now += 3

        def work(number: int) -> None:
            for _ in track(range(100), f"thread {number}"):
                bar.advance()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [line.split()[0] for line in now_shown(terminal)] == ["main"]


def test_importing_and_silent_work_leave_rich_alone() -> None:
    code = """
import sys
from headcount.progress import track
for _ in track(range(5), "silent"): pass
print(*[name for name in ("rich", "torch", "numpy") if name in sys.modules], "done")"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


LOOPS = {
    "track": "for _ in progress.track(range(10000), 'measuring'): time.sleep(0.005)",
    "bar": "with progress.Bar('measuring', 10000) as bar:\n    while True: time.sleep(0.005); bar.advance()",
}


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_control_c_leaves_a_real_terminal_in_order(loop: str) -> None:
    sent = []

    def interrupt(child: subprocess.Popen[Any], written: str) -> None:
        if not sent and "measuring" in written and "\x1b[2K" in written:
            sent.append(child.send_signal(signal.SIGINT))

    child, written, _ = in_a_terminal(loop, interrupt)
    assert child.returncode == -signal.SIGINT
    shown = screen(written)
    assert shown[-1] == "KeyboardInterrupt"
    assert not [line for line in shown if "/10000" in line]
    assert cursor_is_shown(written)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_what_is_printed_meanwhile_goes_where_it_was_sent() -> None:
    loop = "for i in progress.track(range(20), 'measuring'):\n    print(i); print('warning', i, file=sys.stderr)"
    child, written, out = in_a_terminal(loop)
    assert child.returncode == 0
    assert out.split() == [str(i) for i in range(20)]
    assert "measuring" in written
    assert screen(written) == [f"warning {i}" for i in range(20)]


def in_a_terminal(loop: str, watch: Any = lambda child, written: None) -> tuple[subprocess.Popen[Any], str, str]:
    """Run code whose stderr is a terminal and whose stdout is not; what it wrote to either."""
    # a shell that starts the tests in the background lets them, and their children, ignore Ctrl-C
    listen = "import signal, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{listen}\nfrom headcount import progress\nprogress.APPEARS_AFTER = 0\n{loop}"
    ours, theirs = os.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm"}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    try:
        while select.select([ours], [], [], 120)[0]:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not chunk:
                break
            written += chunk
            watch(child, written.decode(errors="replace"))
        assert child.stdout is not None
        out = child.stdout.read().decode()
        child.wait(120)
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    return child, written.decode(), out
