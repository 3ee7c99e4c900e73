"""Processes that tests stop or kill: forked, so that they begin at once and import nothing again."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from headcount.cli import app


def forked(work: Callable[[], object], output: Path) -> BaseProcess:
    """A process that does this and ends; what it prints is in `output`.out and .err.

    It is as good as a new one for what becomes of files, signals and exit codes. What a command prints while modules are
    imported takes an interpreter of its own (`tests/cli/test_app.py`).
    """

    def child() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.set_num_threads(1)  # the threads of the one that was forked are not there, and OpenMP would wait for them
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{output}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
        work()

    process = get_context("fork").Process(target=child)
    process.start()
    return process


def command(words: list[object], output: Path) -> BaseProcess:
    """`headcount` with these words, in a process of its own."""

    def work() -> None:
        sys.argv = ["headcount", *map(str, words)]
        app.main()

    return forked(work, output)


def wait_until(true: Callable[[], bool], process: BaseProcess, pause: float = 0.002) -> None:
    """Come back as soon as it is so, or the process has ended."""
    while process.is_alive() and not true():
        process.join(pause)
