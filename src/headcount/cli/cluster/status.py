"""The command `status`: how far a run has come, and who is at work on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import out

if TYPE_CHECKING:
    from ...cluster.presence import Worker

MOST = 40  # workers that are shown one by one


def status(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """How far a run has come: its pieces, and one line for every worker with what it does and the time left.

    Reads the run folder and locks nothing: for another terminal, or another machine that sees the folder.

    Examples:

        headcount status runs/ablate-my-model-1a2b3c4d
    """
    from ...cluster.presence import workers_in
    from ...parsing import by_number
    from ...runs import read

    record = read(folder)
    pieces = len(record.pieces)
    workers = sorted(workers_in(folder), key=lambda one: (by_number(one[0].name), one[0].pid))
    if as_json:
        rows = [{**asdict(worker), "silent": silent, "time_left": _left(worker)} for worker, silent in workers]
        print(
            json.dumps({"run": str(folder), "finished": record.finished, "pieces": pieces, "workers": rows}, indent=2)
        )
        return
    state = "finished" if record.finished else "not finished"
    lines = [f"{record.signature}: {pieces:,} {'piece is' if pieces == 1 else 'pieces are'} there; the run is {state}"]
    lines += [_line(worker, silent) for worker, silent in workers[:MOST]]
    if len(workers) > MOST:
        at_work = sum(silent is not None for _, silent in workers)
        lines.append(f"and {len(workers) - MOST:,} more workers; {at_work:,} of all {len(workers):,} are alive")
    if not workers and not record.finished:
        lines.append("no part is at work here; a process that has the folder for itself shows its own progress")
    for line in lines:
        out.print(line, soft_wrap=True, markup=False)


def _line(worker: Worker, silent: float | None) -> str:
    """Who, where, what it has done, what it does, and how long its share still takes."""
    from ...formatting import counted
    from ...progress import duration

    where = f"{worker.name} ({worker.host}, process {worker.pid})" if worker.host else worker.name
    done = f"{counted(worker.done, 'piece')} done" + ("" if worker.left is None else f", {worker.left} left")
    if silent is None:
        return f"{where}: died; {done}"
    doing = worker.state + {"computing": " ", "waiting": " for "}.get(worker.state, "") * bool(worker.piece)
    doing += worker.piece or ""
    left = _left(worker)
    return f"{where}: {doing}; {done}" + ("" if left is None else f", about {duration(left)}")


def _left(worker: Worker) -> float | None:
    """The seconds that the rest of its share takes, as fast as it was so far."""
    if not worker.done or not worker.left:
        return None
    return worker.left * worker.seconds / worker.done
