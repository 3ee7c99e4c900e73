"""The command `gather`: what follows from the pieces that parts of a run have done."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from ...errors import BadRun
from ...formatting import listed
from .flags import noted


def gather(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder in which parts (--part) have worked.")],
) -> None:
    """Finish a run that was done in parts: compute what is missing, and write its results.

    Does the command of the parts once more, for the whole run: finished pieces are read, so it takes little time where all
    parts came to their ends.

    Examples:

        headcount gather runs/ablate-my-model-1a2b3c4d
    """
    from ...cluster.parts import at_work
    from ...runs import read

    record, note = read(folder), noted(folder)
    if note is None:
        state = (
            "is finished" if record.finished else "is not finished: give its command again, which goes on from there"
        )
        raise BadRun(f"No part has worked in {folder} since it was gathered; the run {state}.")
    workers = at_work(folder)
    if workers:
        raise BadRun(f"{folder} is in use: {listed(workers, 4)}; wait until they are done (headcount status {folder}).")
    start, here = Path(note["from"]), folder.resolve()
    if not start.is_dir() or (start / note["folder"]).resolve() != here:
        words = shlex.join(["headcount", *note["words"]])
        raise BadRun(f"{folder} was moved, or belongs to another machine; give its command there: {words:.400}")
    os.chdir(start)  # files are named from there
    typer.echo(f"$ {shlex.join(['headcount', *note['words']])}", err=True)
    context.obj(note["words"])
