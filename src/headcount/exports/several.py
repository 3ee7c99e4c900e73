"""One model in several formats: what each export is called, and what came of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import BadCheckpoint, HeadcountError
from .formats import FORMATS, Format, format_named
from .pipeline import Exported, export, may_be_exported, must_be_held


@dataclass(frozen=True)
class Exports:
    """Exports of one model: those that are on the disk, and for every other format the reason why it is not."""

    written: tuple[Exported, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()  # format, reason

    def lines(self) -> list[str]:
        """A few lines for each export, a line for each that is missing."""
        lines = [line for exported in self.written for line in str(exported).splitlines()]
        return lines + [f"not exported to {name}: {reason}" for name, reason in self.refused]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON."""
        written = [
            {
                "format": one.format,
                "path": str(one.path),
                "bytes": one.size,
                "seconds": one.seconds,
                "check": one.check._asdict(),
                "notes": [*one.notes],
            }
            for one in self.written
        ]
        return {"exports": written, "refused": [{"format": name, "reason": why} for name, why in self.refused]}


NONE = Exports()


def formats_named(names: str | Iterable[str]) -> list[Format]:
    """The formats of these names (a text has them with commas), each once."""
    words = names.split(",") if isinstance(names, str) else [*names]
    chosen = list(dict.fromkeys(word.strip() for word in words if word.strip()))
    if not chosen:
        raise BadCheckpoint(f"Name a format to export to; there are {', '.join(FORMATS)}.")
    return [format_named(name) for name in chosen]


def places_in(folder: str | Path, formats: Iterable[Format]) -> dict[str, Path]:
    """A place for each format in a folder: `onnx`, `model.gguf`."""
    return {form.name: Path(folder) / (f"model{form.suffix}" if form.suffix else form.name) for form in formats}


def places_beside(folder: str | Path, formats: Iterable[Format]) -> dict[str, Path]:
    """A place for each format beside a model folder, in which nothing but the model may be: `smaller-onnx`, `smaller.gguf`."""
    own = Path(folder)
    return {form.name: own.with_name(f"{own.name}{form.suffix or f'-{form.name}'}") for form in formats}


def may_all_be_exported(places: Mapping[str, Path], force: bool = False, keep: Iterable[Path] = ()) -> None:
    """`BadCheckpoint` for the first place that may not be written."""
    for name, place in places.items():
        may_be_exported(format_named(name), place, force, [*keep])


def must_hold(model: nn.Module, names: str | Iterable[str], *, tensor_parallel: int = 1) -> None:
    """`Refused` where one of these formats cannot hold a model, `BadCheckpoint` where it needs a package that is not there."""
    for form in formats_named(names) if names else []:
        must_be_held(form, model, tensor_parallel=tensor_parallel if form.shared else 1)


def export_each(model: Any, places: Mapping[str, Path], **options: Any) -> Exports:
    """Export a model to each of these places; one that fails does not keep the others from being written."""
    written, refused = list[Exported](), list[tuple[str, str]]()
    for name, place in places.items():
        try:
            written.append(export(model, name, place, **options))
        except HeadcountError as error:
            refused.append((name, str(error)))
    return Exports(tuple(written), tuple(refused))
