"""Processes that tests stop or kill: forked, so that they begin at once and import nothing again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
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


def spawned(script: Sequence[str], count: int) -> None:
    """So many Python processes with these words, which know of each other as a launcher would have it; each must end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    shared |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, *script],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        for one in started:
            _, errors = one.communicate(timeout=240)
            assert one.returncode == 0, errors[-2000:]
    finally:
        for one in started:
            one.kill()
