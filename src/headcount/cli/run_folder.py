"""The run folder of a command: its question, its notes, and what is said when it is stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .. import progress
from ..errors import BadCheckpoint, HeadcountError
from ..model_files import model_files
from .cluster.flags import only_pieces, opened
from .options import Running

if TYPE_CHECKING:
    from ..data.sentences.passages import Passages
    from ..data.tasks import Task
    from ..runs import Run


@contextmanager
def running(
    command: str, name: str, model: Any, flags: Running, tasks: Mapping[str, Task | Passages], **options: Any
) -> Iterator[Run]:
    """Within the block, the run folder of this question, locked; progress bars as asked for."""
    question = question_of(command, name, model, flags, tasks, options)
    with ExitStack() as stack:
        if flags.quiet or flags.as_json:
            stack.enter_context(progress.quiet())
        run = stack.enter_context(opened(model, flags, question))
        first, notes = list[str](), list[str]()
        if not only_pieces(flags):  # which the last process will say
            first = _first_notes(command, model, flags, tasks, run)
            with progress.Bar("comparing the sets of examples"):
                notes = first + data_notes(tasks)
        for note in notes:
            typer.echo(f"note: {note}", err=True)
        try:
            yield run
        except HeadcountError:
            run.discard_if_empty()
            raise
        except KeyboardInterrupt:
            say_stopped(run.folder)
            raise
        if flags.command:
            run.write_json("command", {"command": flags.command}, replace=True)
        run.write_json("notes", {"notes": notes, "first_batch": first}, replace=True)
        run.finish()


def _first_notes(command: str, model: Any, flags: Running, tasks: Mapping[str, Task | Passages], run: Run) -> list[str]:
    """What a few examples show before the work begins; nothing of models that have not learned their labels yet.

    Nor of those whose weights are in files, which would all be read for it, again and again.
    """
    from ..data.checks import first_batch
    from ..data.tasks import Task
    from ..model.checkpoints import missing_weights
    from ..model.loading.lazy_tensors import is_lazy
    from .distributed.shared_runs import has_document

    task = next((tasks[role] for role in ("report", "data", *tasks) if role in tasks), None)
    if not isinstance(task, Task) or command in ("train", "lottery") or missing_weights(model) or is_lazy(model):
        return []
    if has_document(run, "notes"):  # looked at before
        notes = run.read_json("notes")
        return [str(note) for note in notes.get("first_batch", ())] if isinstance(notes, dict) else []
    return first_batch.warnings(model, task, flags.seed)


def say_stopped(folder: Path) -> None:
    """Say where the work of a stopped command is; if nobody listens any more, it ends all the same."""
    with suppress(OSError):
        sys.stderr.write(f"headcount: stopped; {folder} keeps what is done: the same command goes on from there.\n")
        sys.stderr.flush()


def data_notes(tasks: Mapping[str, Task | Passages]) -> list[str]:
    """What ought to be said about the examples of a command before it measures."""
    from ..data.checks import lengths, near_copies
    from ..data.tasks import Task

    read = {role: task for role, task in tasks.items() if isinstance(task, Task)}
    of_tasks = dict.fromkeys(note for task in read.values() for note in task.notes)
    return [*lengths.notes(read), *of_tasks, *near_copies.notes(read)]


def question_of(
    command: str,
    name: str,
    model: Any,
    flags: Running,
    tasks: Mapping[str, Task | Passages],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """All that the answer of a command depends on, as its run folder keeps it."""
    return {
        "command": command,
        "model": {"name": name, "weights": weights_of(name, model)},
        "tasks": {role: {"data": t.name, "n": t.size, "fingerprint": t.fingerprint} for role, t in tasks.items()},
        "run": {
            "dtype": flags.dtype,
            "batch_size": flags.batch_size,
            "seed": flags.seed,
            "dialect": flags.spec or [],
        },
        "options": {key: value for key, value in options.items() if value is not None},
    }


def weights_of(name: str, model: Any) -> str:
    """What tells a model's weights from others: its files, or the commit on the hub."""
    from ..hashing import fingerprint_of_files

    try:
        files = model_files(name).fingerprinted()
    except BadCheckpoint:  # the name of a model that was made here
        files = []
    if files:
        return fingerprint_of_files(files)
    return str(getattr(model.config, "_commit_hash", None) or "")
