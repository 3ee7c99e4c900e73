"""The flags of commands whose pieces can be shared out, and the run folder as they say."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import CommonFlags, Running, flag

if TYPE_CHECKING:
    from ...cluster.parts import Part
    from ...runs import Run

SEVERAL = "On several machines"


@dataclass(frozen=True)
class SharedFlags(CommonFlags):
    """The shared flags of a command whose pieces do not need each other."""

    part: Annotated[
        str | None,
        flag(
            "--part",
            panel=SEVERAL,
            metavar="K/N",
            help="Do the K-th of N shares of the pieces only, as 3/16; `headcount gather` finishes the run.",
        ),
    ] = None


def only_pieces(flags: Running) -> bool:
    """Whether this process does pieces, and leaves what follows from them to another one."""
    return getattr(flags, "part", None) is not None


@contextmanager
def opened(flags: Running, question: Mapping[str, Any]) -> Iterator[Run]:
    """Within the block, the run folder of this question: for this process alone, or for its part of the pieces."""
    from ...runs import Run, default_folder

    folder, part = flags.output or default_folder(question), getattr(flags, "part", None)
    if part is None:
        from ...cluster.parts import tidy

        with Run.open(folder, question) as run:
            yield run
            if run.finished:
                tidy(run)
        return
    from ...cluster.parts import Part, PartEnds, Share

    share = Share.read(part)
    with Part.shared(folder, question, share) as piecewise:
        _note(piecewise, flags)
        try:
            yield piecewise
        except PartEnds as end:
            _say(end, piecewise)
            raise typer.Exit(0) from None


def _note(run: Part, flags: Running) -> None:
    """Write down what the last process has to do when all pieces are there."""
    from ...cluster.parts import NOTE
    from ...runs import write_whole

    words = shlex.split(flags.command)[1:]
    path = run.folder / NOTE
    if words and not path.is_file():
        import json

        note = {"words": words, "from": os.getcwd(), "folder": str(run.folder)}
        write_whole(path, (json.dumps(note, indent=2) + "\n").encode())


def _say(end: Any, run: Part) -> None:
    """Say what a part has done, and what comes next."""
    from ...formatting import counted

    done = f"{run.share}: {counted(end.computed, 'piece')} computed"
    if end.missing:
        text = (
            f"{done}; {counted(end.missing, 'piece')} of other parts missing, and nobody is at work on them: start those "
            f"parts, or let headcount gather {shlex.quote(str(run.folder))} do what is missing"
        )
    else:
        text = f"{done}, and all others are there: headcount gather {shlex.quote(str(run.folder))} finishes the run"
    typer.echo(text, err=True)


def noted(folder: Path) -> dict[str, Any] | None:
    """What the parts in a folder are parts of; None if there were none, or what they wrote cannot be read."""
    import json

    from ...cluster.parts import NOTE

    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        words = [str(word) for word in note["words"]]
        return {"words": words, "from": str(note["from"]), "folder": str(note["folder"])}
    except (OSError, ValueError, TypeError, KeyError):
        return None
