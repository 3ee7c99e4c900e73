"""`export`: a model in another format, compared with the original in its own runtime before it gets its name."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import BadCheckpoint, CheckFailed, HeadcountError, Refused
from ..formatting import bytes_text, counted
from ..hashing import versions
from ..model.checkpoints import load
from ..model.discovery import unwrap
from ..model.distributed.refusals import in_one_place
from ..model.equivalence import evaluating
from ..model.model_folders import appears_whole, disk_errors, file_appears_whole, file_may_be_written, may_be_written
from ..model_files import EXPORT
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
    if isinstance(model, nn.Module):
        in_one_place(model, "it cannot be exported from here")
    form = format_named(to)
    settings = checked_settings(groups, dtype, int8, multiple, tensor_parallel)
    if not isinstance(model, nn.Module):
        source = model if source is None else source
    keep = [] if source is None else [Path(source)]
    target = may_be_exported(form, output, force, keep)  # before any work is done
    if not isinstance(model, nn.Module):
        model = load(model, trust_remote_code=trust_remote_code)
    root = _on_cpu(unwrap(model))
    source = None if source is None else str(source)
    started = time.monotonic()
    with evaluating(root):
        wanted, notes = (root, ()) if groups is None else with_even_groups(root, groups)
        with _in_one_sentence(form, target):
            writer = writer_of(form)
            refuse(form, writer.limits(wanted, settings))
        inputs = check_batch(root, source=source, tokenizer=tokenizer) if batch is None else batch
        with _draft(form, target, force, keep) as draft:
            with disk_errors(target), _in_one_sentence(form, target):
                notes = (*notes, *writer.write(wanted, draft, settings, source=source, tokenizer=tokenizer))
            with _in_one_sentence(form, target):
                check = writer.check(root, draft, settings, batch=inputs)
            if not check.difference <= check.allowed:
                raise CheckFailed(
                    f"{check.compared} in {check.runtime} differ from the model's by {check.difference:.2e} (allowed: "
                    f"{check.allowed:.0e}), so {target} was not written."
                )
            if not form.suffix:
                with disk_errors(target):
                    _write_record(draft, form, check, notes)
            size = size_of(draft)
    return Exported(target, form.name, check, size, time.monotonic() - started, notes)


def must_be_held(form: Format, model: nn.Module, **settings: Any) -> None:
    """`Refused` where a format cannot hold a model, `BadCheckpoint` where it needs a package that is not there."""
    with _in_one_sentence(form, Path(form.name)):
        refuse(form, writer_of(form).limits(unwrap(model), checked_settings(**settings)))


def may_be_exported(form: Format, output: str | Path, force: bool = False, keep: Sequence[Path] = ()) -> Path:
    """The file or folder to write, if it may be written; `BadCheckpoint` says why not."""
    target = Path(output)
    if not form.suffix:
        may_be_written(target, force, keep)
        return target
    if not target.name.endswith(form.suffix):
        raise BadCheckpoint(f"{form.name} is one file, and {target} does not end in {form.suffix}: name it like that.")
    file_may_be_written(target, force, keep)
    return target


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
    more = f" (and {counted(len(limits) - 1, 'more limit')})" if len(limits) > 1 else ""
    raise Refused(f"{form.name} cannot hold this model: {limits[0]}{more}.")


def _draft(form: Format, target: Path, force: bool, keep: Sequence[Path]) -> AbstractContextManager[Path]:
    """Where an export is written, before it appears whole at the target."""
    return file_appears_whole(target, force, keep) if form.suffix else appears_whole(target, force, keep)


def _on_cpu(root: nn.Module) -> nn.Module:
    """The model on the CPU, where exports are written and compared: itself, or a copy."""
    if all(tensor.device.type == "cpu" for tensor in (*root.parameters(), *root.buffers())):
        return root
    return copy.deepcopy(root).cpu()


def _write_record(draft: Path, form: Format, check: Check, notes: Sequence[str]) -> None:
    """Say in the folder what it is, how it was checked, and which files are part of it: those may be replaced."""
    files = {
        path.relative_to(draft).as_posix(): path.stat().st_size for path in sorted(draft.rglob("*")) if path.is_file()
    }
    record = {"format": form.name, "check": check._asdict(), "notes": [*notes], "files": files, "versions": versions()}
    (draft / EXPORT).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _in_one_sentence(form: Format, target: Path) -> Iterator[None]:
    """Whatever a writer's tools raise within the block is said in one sentence."""
    try:
        yield
    except (HeadcountError, MemoryError, OSError):
        raise
    except ImportError as error:
        missing = (error.name or str(error)).split(".")[0]
        advice = f"pip install 'headcount[{form.extra}]'" if form.extra else f"install {missing}"
        raise BadCheckpoint(f"{form.name} needs {missing}, which is not installed: {advice}.") from error
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise Refused(f"{target} was not written: {form.name} failed ({type(error).__name__}: {first}).") from error
