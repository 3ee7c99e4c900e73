"""How to get the numbers of a report again: the command, the data, signatures and versions of every run. No torch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from ..documents.curves import CurvesDocument, OverDocument
from ..documents.prune import PruneDocument
from ..errors import HeadcountError
from ..runs import Record
from .findings import Part
from .run_reader import Document, plain


class Provenance(NamedTuple):
    """How to get the numbers of a run again."""

    folder: str
    command: str
    rebuilt: bool  # the command was put together from the question, because the run did not keep it
    facts: list[tuple[str, str]]
    finished: bool


def how(part: Part, run: Record) -> Provenance:
    """Command, signatures, data and versions of a run."""
    documents = [document for document in part.documents if document.run is run]
    inside = [
        document.data.command
        for document in documents
        if isinstance(document.data, PruneDocument) and document.data.command
    ]
    command, question = inside[0] if inside else _kept_command(run), run.question
    tasks = question.get("tasks")
    facts = [("Asked", run.signature), ("On", run.created)]
    for role, task in tasks.items() if isinstance(tasks, dict) else ():
        if isinstance(task, dict):
            facts.append(
                (f"Data ({role})", f"{task.get('data')}, n = {task.get('n')}, #{str(task.get('fingerprint'))[:8]}")
            )
    model = question.get("model")
    if isinstance(model, dict) and model.get("weights"):
        facts.append(("Weights", f"#{str(model['weights'])[:8]}"))
    facts += [(f"Signature ({name})", text) for name, text in _signatures(documents)]
    facts += [("Note", note) for note in _kept_notes(run)]
    facts.append(("Versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())))
    return Provenance(run.folder.name, command or _rebuilt(question), not command, facts, run.finished)


def _kept_command(run: Record) -> str:
    """The command, where the run came to its end and kept it."""
    try:
        content = plain(run.read_json("command"))
    except HeadcountError:
        return ""
    return str(content.get("command", "")) if isinstance(content, dict) else ""


def _kept_notes(run: Record) -> list[str]:
    """What the command said about its examples, where the run came to its end and kept it."""
    try:
        content = plain(run.read_json("notes"))
    except HeadcountError:
        return []
    notes = content.get("notes") if isinstance(content, dict) else None
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []


def _signatures(documents: Sequence[Document[Any]]) -> list[tuple[str, str]]:
    """Every signature in the documents, by where it stands; a text that stands in several places of one is told once."""
    out = []
    for document in documents:
        places = [(document.name, document.data)]
        places += [
            (f"{document.name}, {field.name}", getattr(document.data, field.name)) for field in fields(document.data)
        ]
        if isinstance(document.data, CurvesDocument):
            places += [(f"{document.name}, {curve.by}", curve.points[-1].result) for curve in document.data.curves]
        if isinstance(document.data, OverDocument):
            for stage in document.data.checkpoints:
                called = f"{document.name}, {stage.name}"
                places += [(f"{called}, {curve.by}", curve.points[-1].result) for curve in stage.curves]
        first_places: dict[str, str] = {}
        for place, holder in places:
            signature = getattr(holder, "signature", None)
            if signature:
                first_places.setdefault(signature, place)
        out += [(place, signature) for signature, place in first_places.items()]
    return out


def _rebuilt(question: Mapping[str, Any]) -> str:
    """The command, as far as the question tells it."""
    model = question.get("model")
    name = model.get("name") if isinstance(model, dict) else model
    command = str(question.get("command", ""))
    words = ["headcount", *command.replace("ablate-all-but-one", "ablate --all-but-one").split()]
    words += [str(name)] if name else []
    tasks = question.get("tasks")
    flags = {"data": "--data", "report": "--data", "one": "--data", "other": "--other-data"}
    flags["select"] = "--score-data" if command == "curve" else "--select-data"
    for role, task in tasks.items() if isinstance(tasks, dict) else ():
        if isinstance(task, dict) and role in flags:
            words += [flags[role], str(task.get("data"))]
    for key, value in {**_dict(question.get("run")), **_dict(question.get("options"))}.items():
        flag = "--" + str(key).replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, str | int | float) and not isinstance(value, bool) and value not in ("", "by paper"):
            words += [flag, str(value)]
        elif isinstance(value, list) and value and key != "dialect":
            words += [flag, ",".join(map(str, value))]
    return shlex.join(words)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
