"""Many commands, each once, in one process or in several: what depends on what, what failed, and where to go on. No torch."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import redirect_stderr, redirect_stdout, suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from ..errors import HeadcountError
from ..formatting import seconds_text
from ..runs import RUN, write_whole

# Before torch is there: it asks when it is imported. Several processes with many threads each are slower than with one.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
GRACE = 5.0  # seconds that a process has to end by itself
Command = Callable[[Sequence[str]], object]  # does what the words after `headcount` say, or raises


class Step(NamedTuple):
    """One command: its name, the words after `headcount`, and the steps that must be done before it."""

    name: str
    words: tuple[str, ...]
    after: tuple[str, ...] = ()
    alone: bool = False  # it measures time: nothing else may run beside it

    @property
    def text(self) -> str:
        """The command as one types it."""
        return f"headcount {shlex.join(self.words)}"


Start = Callable[[Step, Path], Future[str]]  # begins a step, with what it prints in a file; gives what went wrong


class Outcome(NamedTuple):
    """What became of the steps: done now or before, failed with a sentence, or not begun because of another one."""

    done: tuple[str, ...]
    failed: dict[str, str]
    waiting: dict[str, str]  # with the step that they would have needed

    @property
    def complete(self) -> bool:
        """Whether everything is done."""
        return not self.failed and not self.waiting


def run(
    steps: Sequence[Step],
    folder: Path,
    command: Command,
    *,
    workers: int = 1,
    show: bool = False,
    say: Callable[[str], None] = print,
    start: Start | None = None,
) -> Outcome:
    """Do the steps that are not done yet, in the order of the list as far as they can begin, so many at a time.

    A finished step is noted in `folder`/done, and one that is noted with the same words is not done again. What a command
    prints goes to `folder`/logs, or with `show` and one worker to the screen. With several workers every step is a process
    with one thread that imports `command` by its name, and a step that measures time runs when no other does. `start` does
    steps elsewhere. `say` gets a line for each step.
    """
    agenda = _Agenda(steps, folder, say)
    if workers == 1 and start is None:
        while (step := agenda.next(0, patient=False)) is not None:
            agenda.begin(step)
            if show:
                say(f"\n$ {step.text}")
            agenda.end(step, *_run_in_process(step, command, None if show else agenda.log(step)))
    elif start is not None:
        _elsewhere(agenda, start, workers)
    elif agenda.left:
        processes = _Processes(command)
        try:
            _elsewhere(agenda, processes, workers)
        finally:
            processes.stop()
    return agenda.outcome()


def named_once(steps: Sequence[Step]) -> list[Step]:
    """The steps without those that are there already; two of one name are one step, with one command."""
    by_name: dict[str, Step] = {}
    for step in steps:
        before = by_name.setdefault(step.name, step)
        assert before.words == step.words, f"two commands are called {step.name}: {before.text} and {step.text}"
    return list(by_name.values())


class _Agenda:
    """What is left to do, what runs, and what became of the rest."""

    def __init__(self, steps: Sequence[Step], folder: Path, say: Callable[[str], None]) -> None:
        self.steps, self.folder, self.say = list(steps), folder, say
        self.failed: dict[str, str] = {}
        self.running: dict[str, Step] = {}
        self.done: set[str] = set()
        for step in self.steps:  # what comes after a step that has to be done again has to be done again, too
            if self._noted(step) and all(name in self.done for name in step.after):
                self.done.add(step.name)
        self.left = [step for step in self.steps if step.name not in self.done]
        self.total, self.ended = len(self.left), 0
        for step in self.steps:
            if step.name in self.done:
                _sweep(step)  # the process may have been killed before it could
        if self.done and self.left:
            say(f"{len(self.done)} of {len(self.steps)} commands were done before")

    def next(self, busy: int, patient: bool = True) -> Step | None:
        """The first step that can begin beside `busy` others; if `patient`, one that must be alone waits for all others."""
        ready = [step for step in self.left if all(name in self.done for name in step.after)]
        if not patient:
            return next(iter(ready), None)
        together = next((step for step in ready if not step.alone), None)
        return together or next(iter(ready), None) if not busy else together

    def begin(self, step: Step) -> None:
        """Note that the step is being done."""
        self.left.remove(step)
        self.running[step.name] = step

    def end(self, step: Step, seconds: float, problem: str) -> None:
        """Note what became of the step."""
        del self.running[step.name]
        self.ended += 1
        if problem:
            self.failed[step.name] = problem
        else:
            write_whole(self._note(step), (json.dumps({"words": list(step.words)}) + "\n").encode())
            self.done.add(step.name)
            _sweep(step)
        status = f"failed: {problem}" if problem else seconds_text(seconds)
        self.say(f"{self.ended} of {self.total} · {step.name} · {status}")

    def outcome(self) -> Outcome:
        """What became of all steps, when nothing runs any more."""
        done_names = tuple(step.name for step in self.steps if step.name in self.done)
        return Outcome(done_names, self.failed, {step.name: self._cause(step) for step in self.left})

    def log(self, step: Step) -> Path:
        """Where what the command prints goes."""
        return self.folder / "logs" / f"{step.name}.txt"

    def _cause(self, step: Step) -> str:
        """The failed step that keeps this one from beginning, however far back, or the name of one that is not there."""
        missing = next(name for name in step.after if name not in self.done)
        before = next((waiting_step for waiting_step in self.left if waiting_step.name == missing), None)
        return missing if before is None or before is step else self._cause(before)

    def _note(self, step: Step) -> Path:
        return self.folder / "done" / f"{step.name}.json"

    def _noted(self, step: Step) -> bool:
        try:
            noted = json.loads(self._note(step).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        same = isinstance(noted, dict) and noted.get("words") == list(step.words)
        return same and all(Path(place).exists() for place in _places(step.words))


def _places(words: Sequence[str]) -> list[str]:
    """The folders that a command writes to."""
    return [word for flag, word in pairwise(words) if flag in ("--run", "-o", "--output")]


def _sweep(step: Step) -> None:
    """Delete the states of trainings that have ended: they are large, and of use only while the command runs."""
    for place in _places(step.words):
        for state in Path(place).glob("*-state.safetensors") if (Path(place) / RUN).is_file() else ():
            with suppress(OSError):
                state.unlink()


def _try(command: Command, words: Sequence[str]) -> str:
    """Do what the words say; what went wrong in one sentence, and on stderr at length."""
    try:
        command(words)
    except KeyboardInterrupt:
        raise
    except HeadcountError as error:
        sys.stderr.write(f"headcount: {error}\n")
        return str(error)
    except SystemExit as error:
        return f"it ended with exit code {error.code}" if error.code else ""
    except BaseException as error:  # a bug must not end what else is to be done
        traceback.print_exc()
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return ""


def _run_in_process(step: Step, command: Command, log: Path | None) -> tuple[float, str]:
    """The seconds that a step took in this process, and what went wrong."""
    start = time.perf_counter()
    if log is None:
        problem = _try(command, step.words)
    else:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "w", encoding="utf-8", buffering=1) as stream, redirect_stdout(stream), redirect_stderr(stream):
            print(f"$ {step.text}")
            problem = _try(command, step.words)
    return time.perf_counter() - start, problem


# -- elsewhere ------------------------------------------------------------------------------------------------------------


def _elsewhere(agenda: _Agenda, start: Start, workers: int) -> None:
    """Steps done by whoever `start` gives them to, so many at a time."""
    busy: dict[Future[str], tuple[Step, float]] = {}
    (agenda.folder / "logs").mkdir(parents=True, exist_ok=True)
    while True:
        while len(busy) < workers and (step := agenda.next(len(busy))) is not None:
            agenda.begin(step)
            busy[start(step, agenda.log(step))] = (step, time.perf_counter())
        if not busy:
            return
        for future in wait(busy, return_when=FIRST_COMPLETED).done:
            step, began = busy.pop(future)
            agenda.end(step, time.perf_counter() - began, future.result())


class _Processes:
    """A process for every step, which ends with it."""

    def __init__(self, command: Command) -> None:
        # where there is one, a server that has imported the command forks them: they begin at once, and without our threads
        served = "forkserver" in mp.get_all_start_methods()
        self.context: Any = mp.get_context("forkserver" if served else "spawn")
        if served:
            self.context.set_forkserver_preload([command.__module__])
        self.command, self.started = command, list[Any]()

    def __call__(self, step: Step, log: Path) -> Future[str]:
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_in_own_process, args=(theirs, self.command, step, log), daemon=True)
        process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        self.started.append(process)
        future: Future[str] = Future()
        Thread(target=lambda: future.set_result(_problem(process, ours)), daemon=True).start()
        return future

    def stop(self) -> None:
        """End those that are still at work."""
        for process in self.started:
            process.terminate()
        end = time.monotonic() + GRACE
        for process in self.started:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _problem(process: Any, pipe: Connection) -> str:
    """What a process says went wrong, if anything; or that it died, which it cannot say."""
    with suppress(EOFError, OSError):
        return str(pipe.recv())
    process.join(GRACE)
    code = process.exitcode
    why = f"by signal {-code}, perhaps for want of memory" if code is not None and code < 0 else f"exit code {code}"
    return f"its process died ({why})"


def _in_own_process(pipe: Connection, command: Command, step: Step, log: Path) -> None:
    """Do a step in a process that was started for it, and say through the pipe what went wrong."""
    os.environ.update(ONE_THREAD)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gives out the work
    Thread(target=_end_with_parent, daemon=True).start()
    pipe.send(logged(command, step, log))


def logged(command: Command, step: Step, log: Path) -> str:
    """Do a step with all that this process prints in a file, and give what went wrong."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False) for n in (1, 2))  # noqa: SIM115
    print(f"$ {step.text}")
    problem = _try(command, step.words)
    for written in (sys.stdout, sys.stderr):
        written.flush()
    return problem


def _end_with_parent() -> None:
    """End this process when the one that gives out the work was killed: nobody waits for what it does."""
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
