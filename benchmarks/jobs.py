"""Many commands of headcount in several processes, for studies: each in a run folder of its own, so that a study goes on."""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Job = tuple[str, list[str]]  # a name, and the words of a command


def _work(queue: Any, done: Any) -> None:
    """Take commands from the queue until there are none."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch

    torch.set_num_threads(1)
    from headcount.cli import app

    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    while (job := queue.get()) is not None:
        name, words = job
        start = time.perf_counter()
        try:
            app(words, standalone_mode=False)
            for state in Path(words[words.index("--run") + 1]).glob("*-state.safetensors"):
                state.unlink()  # only of use while the command runs
            done.put((name, time.perf_counter() - start, ""))
        except BaseException as error:
            done.put((name, time.perf_counter() - start, f"{type(error).__name__}: {error}"))


def run_all(jobs: Sequence[Job], workers: int) -> None:
    """Run the commands, so many at a time, and say of each how long it took and what went wrong."""
    context = mp.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    for job in [*jobs, *[None] * workers]:
        queue.put(job)
    for _ in range(workers):
        context.Process(target=_work, args=(queue, done), daemon=True).start()
    start = time.perf_counter()
    for number in range(len(jobs)):
        name, seconds, problem = done.get()
        since = time.perf_counter() - start
        print(f"{number + 1}/{len(jobs)} {since:6.0f} s  {name} {seconds:.0f} s {problem}", flush=True)


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a study, and after `--` those that all of its commands share."""
    at = list(words).index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])
