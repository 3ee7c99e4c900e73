"""What frames a report: what to do next with the model, and all runs where not all are shown in detail. No torch."""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import Any, NamedTuple

from ...documents.ablation import AblationDocument
from ...documents.bench import Bench
from ...documents.curves import CurvesDocument
from ...documents.learned import LearnedDocument
from ...documents.prune import PruneDocument
from ...documents.scores import ScoresDocument
from ...formatting import Column, Table
from .. import provenance, summary
from ..findings import Part
from ..run_reader import Document, plain
from .measurements import MOST_ROWS, Section


class Step(NamedTuple):
    """Something to do next, and the command for it."""

    text: str
    command: str = ""


def next_steps(part: Part, warned: bool) -> list[Step]:
    """What a reader is likely to want next: at most four steps."""
    if part.prune is not None:
        return _after_pruning(part, part.prune, warned)[:4]
    data = _data(part)
    model = shlex.quote(part.model) if part.model else "MODEL"
    out = []
    if part.of(LearnedDocument):
        out.append(Step("See whether it is faster:", f"headcount bench {model} SMALLER"))
    if (part.of(ScoresDocument) or part.of(AblationDocument)) and not part.of(CurvesDocument):
        out.append(Step("See how many can go:", f"headcount curve {model} --data {data}"))
    if part.of(CurvesDocument):
        out.append(
            Step(
                "Make a smaller model, with a promise about what it costs:",
                f"headcount prune {model} --data {data} --max-drop 1 -o smaller",
            )
        )
    return out[:3]


def _after_pruning(part: Part, data: PruneDocument, warned: bool) -> list[Step]:
    model, examples = shlex.quote(data.model), _data(part)
    folder = _flag(data.command or "", "-o", "--output") or data.output or "smaller"
    smaller = shlex.quote(folder)
    out = []
    if warned:
        out.append(
            Step(
                "Take less away, and have it tested before it is written:",
                f"headcount prune {model} --data {examples} --max-drop 1 -o gentler",
            )
        )
    else:
        out.append(Step("Use it in Python:", f"import headcount; model = headcount.load({folder!r})"))
        out.append(
            Step(
                "Write it for programs that do not have headcount (transformers, gguf, onnx, ...):",
                f"headcount export {smaller} --to transformers -o exported",
            )
        )
        if data.guarantee is None:
            out.append(
                Step(
                    "This describes one cut; for a promise about other examples, test it:",
                    f"headcount prune {model} --data {examples} --max-drop 1 -o promised",
                )
            )
    if data.recovered is None and data.comparison.damage > 0:
        out.append(
            Step("Win back some of what was lost by training:", f"headcount train {smaller} --data TRAIN -o better")
        )
    if not part.of(Bench):
        out.append(Step("Measure its speed on your machine:", f"headcount bench {model} {smaller}"))
    return out


def _data(part: Part) -> str:
    """The data that a command of a part was given, as it was written there."""
    for run in part.runs[::-1]:
        if data := _flag(provenance.how(part, run).command, "--data"):
            return shlex.quote(data)
    return "DATA"


def _flag(command: str, *names: str) -> str:
    """What a command was given for a flag; nothing where it was not."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that does not end
        return ""
    return next((value for flag, value in pairwise(words) if flag in names), "")


def all_runs(part: Part) -> list[Section]:
    """A table of all runs of a model, where some are left out of the rest of the page."""
    whole = part.whole
    if whole is None:
        return []
    shown = {run.folder for run in part.runs}
    documents: dict[int, list[Document[Any]]] = {}
    for document in whole.documents:
        documents.setdefault(id(document.run), []).append(document)
    runs = sorted(whole.runs, key=lambda run: (run.created, str(run.folder)))[::-1]
    rows = []
    for run in runs[:MOST_ROWS]:
        alone = Part(part.model, (run,), tuple(documents.get(id(run), ())))
        name, command = str(plain(run.folder.name)), provenance.how(alone, run).command
        rows.append((name, run.created, summary.answer(alone), "yes" if run.folder in shown else "no", command))
    columns = (Column("run"), Column("made"), Column("what it came to"), Column("in detail"), Column("command"))
    table = Table("all-runs", f"All {len(runs):,} runs of this model, the last first.", columns, tuple(rows))
    about = (
        f"{len(part.runs)} of {len(runs):,} runs are shown in detail, the last ones of each command, so that the page stays "
        "small enough to open. Give the folders of others to headcount report for a page about them."
    )
    return [Section("all-runs", "All runs", about, "", (), (table,), folded=True)]
