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

from ...errors import HeadcountError
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
    on: Annotated[
        str | None,
        flag(
            "--on",
            panel=SEVERAL,
            metavar="ray",
            help="Have the pieces computed on Ray: on the cluster of RAY_ADDRESS, or else on this machine.",
        ),
    ] = None
    actors: Annotated[
        int | None,
        flag(
            "--workers",
            panel=SEVERAL,
            metavar="N",
            help="With --on ray: workers, each with the model.",
            show_default="one per GPU, or per processor where there are none",
        ),
    ] = None

    do: Any = None  # not a flag: does the words after `headcount`, as workers do

    def __post_init__(self) -> None:
        """Refuse flags that do not go together, before any work."""
        from ...cluster.parts import Share

        if self.on is not None and self.on != "ray":
            raise typer.BadParameter(f"--on ray is what there is; I got {self.on!r:.40}.")
        if self.on is not None and self.part is not None:
            raise typer.BadParameter("--on ray shares out all pieces, and --part does one share: choose one of them.")
        if self.actors is not None and (self.on is None or self.actors < 1):
            raise typer.BadParameter("--workers is the number of workers of --on ray, at least 1.")
        if self.part is not None:
            Share.read(self.part)


def only_pieces(flags: Running) -> bool:
    """Whether this process does pieces, and leaves what follows from them to another one."""
    from ...cluster.serving import server

    return getattr(flags, "part", None) is not None or server() is not None


@contextmanager
def opened(model: Any, flags: Running, question: Mapping[str, Any]) -> Iterator[Run]:
    """Within the block, the run folder of this question: for this process alone, with workers, or as one of them."""
    from torch import nn

    from ...cluster.serving import server
    from ...model.distributed.refusals import not_tensor_parallel
    from ...runs import default_folder
    from ..distributed.shared_runs import run_of

    if isinstance(model, nn.Module) and (getattr(flags, "part", None) or getattr(flags, "on", None)):
        not_tensor_parallel(model, "its pieces cannot be shared out (--part, --on)")

    folder, asker = flags.output or default_folder(question), server()
    if asker is not None:
        with asker.run(question) as served:
            yield served
    elif getattr(flags, "part", None) is not None:
        with _part(flags, folder, question) as part:
            yield part
    else:
        from ...cluster.parts import tidy

        with run_of(model, folder, question) as run:
            with _with_workers(run, flags) as working:
                yield working
            if run.finished:
                tidy(run)


@contextmanager
def _with_workers(run: Run, flags: Running) -> Iterator[Run]:
    """The run, or where that was asked for, the run with workers that compute its pieces."""
    if getattr(flags, "on", None) is None:
        yield run
        return
    assert isinstance(flags, SharedFlags)
    from ...cluster.on_ray import on_ray
    from ...cluster.parts import tidy

    try:
        with on_ray(run, flags.do, shlex.split(flags.command)[1:], flags.actors, flags.device) as shared:
            yield shared
    except HeadcountError:
        tidy(run)
        run.discard_if_empty()
        raise


@contextmanager
def _part(flags: Running, folder: Path, question: Mapping[str, Any]) -> Iterator[Run]:
    from ...cluster.parts import Part, PartEnds, Share

    assert isinstance(flags, SharedFlags)
    with Part.shared(folder, question, Share.read(str(flags.part))) as part:
        _note(part, flags)
        try:
            yield part
        except PartEnds as end:
            _say(end, part)
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
