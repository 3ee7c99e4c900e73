"""`export`: a model in another format, compared with the original in its own runtime before it gets its name."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import BadCheckpoint, CheckFailed, Refused
from ..formatting import bytes_text
from ..model.checkpoints import load
from ..model.model_folders import appears_whole, disk_errors
from .check_batch import check_batch
from .even_groups import with_even_groups
from .formats import GROUPS, Check, Format, Limit, Settings, format_named, size_of, writer_of


@dataclass(frozen=True)
class Exported:
    """An export that is on the disk: where, what compared it with the model, and how much they differ. Prints as two lines."""

    path: Path
    format: str
    check: Check
    size: int
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        check = self.check
        proof = f"{check.compared} differ by at most {check.difference:.1e} (allowed: {check.allowed:.0e})"
        lines = [
            f"{self.path}: {self.format}, {bytes_text(self.size)}, written in {self.seconds:.0f} s",
            f"checked with {check.runtime}: {proof}",
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in (*self.notes, *check.notes))])


def export(
    model: nn.Module | str | Path,
    to: str,
    output: str | Path,
    *,
    groups: str | None = None,
    dtype: str | None = None,
    int8: bool = False,
    multiple: int | None = None,
    tensor_parallel: int = 1,
    source: str | Path | None = None,
    tokenizer: Any = None,
    batch: dict[str, Any] | None = None,
    force: bool = False,
    trust_remote_code: bool = False,
) -> Exported:
    """Write a model in a format that other programs load, and compare what they get with the model itself.

    What a format cannot hold is `Refused` with the reason and the nearest thing that it can. What was written is loaded again, in
    the runtime itself where that is installed, and run on a batch; only if it gives what the model gives does it get its name.

    Args:
        model: The model, or its folder or name on the hub.
        to: The format: "transformers", "vllm", "gguf", "onnx", "openvino" or "sentence-transformers".
        output: The folder to write; for GGUF a file.
        groups: What to do with query heads in uneven groups: "pad" or "repeat"; both are exact. Without it they are refused.
        dtype: The number format of the weights: "f32", "f16", and for GGUF "q8_0" or "q4_0".
        int8: Quantise the weights to eight bits (ONNX and OpenVINO).
        multiple: Pad the widths of the MLPs with zeros to multiples of this.
        tensor_parallel: The number of devices that share each layer in vLLM.
        source: The folder or hub name that the model came from: its tokenizer comes along.
        tokenizer: The tokenizer or processor to write along.
        batch: Inputs to compare on, by default made from the tokenizer and a few sentences.
        force: Replace the output if it is there.
        trust_remote_code: Whether code that comes with the model may run.

    Returns:
        Where it is, and how it was checked. Prints as a summary.

    Examples:
        >>> exported = hc.export("my-model", "transformers", "portable")
        >>> exported.check.difference <= exported.check.allowed
        True
    """
    form = format_named(to)
    settings = checked_settings(groups, dtype, int8, multiple, tensor_parallel)
    if not isinstance(model, nn.Module):
        source = model if source is None else source
        model = load(model, trust_remote_code=trust_remote_code)
    source = None if source is None else str(source)
    started = time.monotonic()
    writer = writer_of(form)
    wanted, notes = (model, ()) if groups is None else with_even_groups(model, groups)
    refuse(form, writer.limits(wanted, settings))
    inputs = check_batch(model, source=source, tokenizer=tokenizer) if batch is None else batch
    target = Path(output)
    if form.suffix and not target.name.endswith(form.suffix):
        raise BadCheckpoint(f"{form.name} is one file, and {target} does not end in {form.suffix}: name it like that.")
    with _draft(form, target, force, [] if source is None else [Path(source)]) as draft:
        with disk_errors(target):
            notes = (*notes, *writer.write(wanted, draft, settings, source=source, tokenizer=tokenizer))
        check = writer.check(model, draft, settings, batch=inputs)
        if not check.difference <= check.allowed:
            raise CheckFailed(
                f"{check.compared} in {check.runtime} differ from the model's by {check.difference:.2e} (allowed: "
                f"{check.allowed:.0e}), so {target} was not written."
            )
        size = size_of(draft)
    return Exported(target, form.name, check, size, time.monotonic() - started, notes)


def checked_settings(
    groups: str | None = None,
    dtype: str | None = None,
    int8: bool = False,
    multiple: int | None = None,
    tensor_parallel: int = 1,
) -> Settings:
    """The settings of an export, if every value of them means something."""
    if groups not in (None, *GROUPS):
        raise BadCheckpoint(f"groups (--groups) is {groups!r:.40}; it must be {' or '.join(GROUPS)}, or left out.")
    for name, value in (("multiple (--multiple)", multiple), ("tensor_parallel (--tensor-parallel)", tensor_parallel)):
        if value is not None and (type(value) is not int or value < 1):
            raise BadCheckpoint(f"{name} is {value!r:.40}; it must be a whole number from 1 on.")
    return Settings(groups, dtype, int8, multiple, tensor_parallel)


def refuse(form: Format, limits: Sequence[Limit]) -> None:
    """`Refused` with the first thing that a format cannot hold, and how many more there are; nothing if there is none."""
    if not limits:
        return
    more = f" ({len(limits) - 1} more like it)" if len(limits) > 1 else ""
    raise Refused(f"{form.name} cannot hold this model: {limits[0]}{more}.")


@contextmanager
def _draft(form: Format, target: Path, force: bool, keep: Sequence[Path]) -> Iterator[Path]:
    """Where an export is written, before it appears whole at the target."""
    if not form.suffix:
        with appears_whole(target, force, keep) as draft:
            yield draft
        return
    with _file_appears_whole(target, force) as path:
        yield path


@contextmanager
def _file_appears_whole(target: Path, force: bool) -> Iterator[Path]:
    """A path to write a file to, which takes the target's name when the block ends well."""
    if target.is_dir() or (os.path.lexists(target) and not force):
        raise BadCheckpoint(f"{target} is there already; choose another name, or use force (--force) to replace it.")
    place = Path(os.path.realpath(target))
    with disk_errors(target):
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".unfinished", dir=place.parent))
    path = folder / place.name
    try:
        yield path
        with disk_errors(target):
            if os.path.lexists(place) and not force:
                raise BadCheckpoint(f"{target} has appeared in between and is not replaced; choose another name.")
            os.replace(path, place)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
            folder.rmdir()
