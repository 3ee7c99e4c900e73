"""Ray as the place where whole commands are done: one task for each, on whichever node has a device free."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import BadRun
from .on_ray import connected, last_line, places

Done = Callable[[Sequence[str], Path], str]  # does the words, with what they print in a file, and gives what went wrong
RETRIES = 2  # of a command whose node was lost


@contextmanager
def tasks_on_ray(
    done: Done, folder: Path, device: str | None = None
) -> Iterator[tuple[int, Callable[[Sequence[str], str, Path], Future[str]]]]:
    """Within the block, how many commands the cluster has devices for, and what starts one: its words, its name, its log.

    Commands read what others have written, so all nodes must see `folder`; each runs in a process of its own.
    """
    with connected() as resources:
        import ray

        kind, size = places(resources, device)
        start, here = os.getcwd(), str(folder.resolve())

        def command(words: Sequence[str], log: str) -> str:
            if not os.path.isdir(here) or not os.path.isdir(start):
                return f"its node does not see {start if os.path.isdir(here) else here}: give a folder that all nodes share"
            os.chdir(start)
            return done(words, Path(log))

        needs = {"num_cpus": 1, "num_gpus": int(kind == "GPU"), "max_calls": 1, "max_retries": RETRIES}
        remote: Any = ray.remote(**needs)(command)  # type: ignore[call-overload]

        def begin(words: Sequence[str], name: str, log: Path) -> Future[str]:
            out: Future[str] = Future()

            def settle(found: Future[str]) -> None:
                error = found.exception()
                out.set_result(found.result() if error is None else f"its process died ({last_line(error)})")

            task = remote.options(name=name).remote(list(words), str(log.resolve()))
            task.future().add_done_callback(settle)
            return out

        if size < 1:
            raise BadRun(f"The cluster has no {kind} for a command; see `ray status`, or choose another --device.")
        yield size, begin
