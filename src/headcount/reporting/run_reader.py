"""The documents of run folders: found, read, and checked before anything is said about them. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from ..documents.kinds import KINDS
from ..documents.reading import JsonDocument
from ..errors import BadRun, HeadcountError
from ..runs import RUN, Record, read
from ..stats.results import Comparison

ALPHA = 0.05
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
Data = TypeVar("Data", bound=JsonDocument)


class Document(NamedTuple, Generic[Data]):
    """One answer of one run."""

    name: str  # of the file, without its ending
    data: Data
    run: Record

    @property
    def file(self) -> str:
        """The file."""
        return f"{self.run.folder / self.name}.json"


def records_in(folder: Path) -> list[Record]:
    """The run folder itself, or the run folders in it."""
    if (folder / RUN).is_file():
        return [read(folder)]
    try:
        inside = sorted(entry for entry in folder.iterdir() if (entry / RUN).is_file())
    except OSError as error:
        raise BadRun(f"I cannot read {folder}: {error.strerror or error}; give a run folder.") from None
    if not inside:
        raise BadRun(f"{folder} is not a run folder and holds none: there is no {RUN}; give a folder a command wrote.")
    return [read(entry) for entry in inside]


def records_of(folders: Sequence[Path]) -> list[Record]:
    """The run folders of all these, each once."""
    return list({record.folder.resolve(): record for folder in folders for record in records_in(Path(folder))}.values())


def is_of_a_paper(record: Record) -> bool:
    """Whether a run is an experiment of a paper, which speaks of many models and belongs to none."""
    return record.question.get("command") == "reproduce" or (record.folder / "claims.json").is_file()


def documents_of(record: Record) -> list[Document[Any]]:
    """The documents of a run that a report can show."""
    names = sorted(path.stem for path in record.folder.glob("*.json"))
    kinds = {name: "scores" if name.startswith("scores-") else name for name in names}
    out = []
    for kind, of_kind in KINDS.items():
        for name in (name for name in names if kinds[name] == kind):
            data = of_kind.from_json(plain(record.read_json(name)), f"{record.folder / name}.json")
            out.append(Document(name, data, record))
    return out


def checked(document: Document[Data], build: Callable[[Data], Any]) -> Any:
    """`build(data)`, with everything about the numbers that no section can show turned into one sentence."""
    try:
        return build(document.data)
    except HeadcountError as error:
        raise BadRun(f"{document.file} cannot be used: {error}") from None
    except (KeyError, ValueError, IndexError, ZeroDivisionError) as error:
        raise BadRun(
            f"{document.file} is not what headcount writes ({type(error).__name__}: {error!s:.60}); "
            "run its command again in a new folder."
        ) from None


def plain(value: Any) -> Any:
    """JSON data whose texts are on one line: no control characters, which neither pages nor chart expressions bear."""
    if isinstance(value, str):
        return _CONTROL.sub(" ", value)
    if isinstance(value, dict):
        return {plain(key): plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list) else value


def beyond_chance(comparison: Comparison, by: str = "p_holm") -> bool:
    """Whether a difference is significant by Holm's p, or by another one; a difference that has no such p is not."""
    p = getattr(comparison, by)
    return p is not None and replace(comparison, p_holm=p).significant(ALPHA)
