"""The documents of run folders: found, read, and checked before anything is said about them. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadRun, HeadcountError
from ..plans import Plan
from ..runs import RUN, Record, read
from ..stats.results import Comparison

KINDS = (
    *("prune", "learned", "curves", "over", "training", "scores", "ablation", "all-but-one", "transfer", "bench"),
    *("lottery", "result", "roles", "claims"),
)
ALPHA = 0.05
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Document(NamedTuple):
    """One answer of one run."""

    kind: str
    name: str  # of the file, without its ending
    data: dict[str, Any]
    run: Record


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
    return list({one.folder.resolve(): one for folder in folders for one in records_in(Path(folder))}.values())


def is_of_a_paper(record: Record) -> bool:
    """Whether a run is an experiment of a paper, which speaks of many models and belongs to none."""
    return record.question.get("command") == "reproduce" or (record.folder / "claims.json").is_file()


def documents_of(record: Record) -> list[Document]:
    """The documents of a run that a report can show."""
    names = sorted(path.stem for path in record.folder.glob("*.json"))
    kinds = {name: name if name in KINDS else "scores" if name.startswith("scores-") else "" for name in names}
    out = []
    for name in sorted((n for n in names if kinds[n]), key=lambda n: KINDS.index(kinds[n])):
        data = plain(record.read_json(name))
        if not isinstance(data, dict):
            raise BadRun(f"{record.folder / name}.json is not what headcount writes; run its command again.")
        out.append(Document(kinds[name], name, data, record))
    return out


def checked(document: Document, build: Callable[[dict[str, Any]], Any]) -> Any:
    """`build(data)`, with everything that is not as a command writes it turned into one sentence."""
    try:
        return build(document.data)
    except HeadcountError as error:
        raise BadRun(f"{document.run.folder / document.name}.json cannot be used: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadRun(
            f"{document.run.folder / document.name}.json is not what headcount writes "
            f"({type(error).__name__}: {error!s:.60}); run its command again in a new folder."
        ) from None


def plain(value: Any) -> Any:
    """JSON data whose texts are on one line: no control characters, which neither pages nor chart expressions bear."""
    if isinstance(value, str):
        return _CONTROL.sub(" ", value)
    if isinstance(value, dict):
        return {plain(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def number(value: Any) -> float:
    """A finite number, or `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.40} is not a finite number")
    return float(value)


def units_of(plan: Any) -> list[str]:
    """The units of a plan's JSON as texts."""
    return [str(unit) for unit in Plan.from_json(plan)]


def comparison_of(data: Mapping[str, Any]) -> Comparison:
    """The comparison among the fields of a row."""
    names = Comparison.__dataclass_fields__
    return Comparison.from_json({name: value for name, value in data.items() if name in names})


def beyond_chance(one: Comparison, by: str = "p_holm") -> bool:
    """Whether a difference is significant by Holm's p, or by another one; a difference that has no such p is not."""
    p = getattr(one, by)
    return p is not None and replace(one, p_holm=p).significant(ALPHA)
