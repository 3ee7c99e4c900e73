"""Many commands of headcount in several processes, for studies: each in a run folder of its own, so that a study goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from headcount.cli.app import do
from headcount.reproduction import runner

Job = tuple[str, list[str]]  # a name, and the words of a command


def run_all(given: Sequence[Job], folder: Path | str, workers: int) -> None:
    """Run the commands, so many at a time, and say of each how long it took and what went wrong."""
    start = time.perf_counter()
    steps = [runner.Step(name, tuple(words)) for name, words in given]
    say = lambda text: print(f"{time.perf_counter() - start:6.0f} s  {text}", flush=True)  # noqa: E731
    runner.run(steps, Path(folder), do, workers=workers, say=say)


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a study, and after `--` those that all of its commands share."""
    at = list(words).index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])
