"""Model folders on the disk: which may be replaced, who may write one now, and how a new one appears whole or not at all.

While NAME is written, its writer holds the lock of `.NAME.claim` beside it, and the new folder is `.NAME.XXXXXXXX.unfinished`.
An old folder that has to make room is `.NAME.XXXXXXXX.unfinished.old` for a moment. A command that was killed leaves some
of them: the next one that writes NAME tidies them up, and one that writes beside it names them.
"""

from __future__ import annotations

import errno
import filecmp
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from fnmatch import fnmatchcase
from logging import getLogger
from pathlib import Path
from typing import NamedTuple

from filelock import BaseFileLock, FileLock, Timeout

from ..errors import BadCheckpoint
from ..model_files import ADAPTER, EXPORT, RECORD, exported_files
from ..runs import flush_folder

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf", ".ckpt", ".ot", ".tflite")
OWN_FILES: tuple[str, ...] = ("config.json", "generation_config.json", "README.md", "plan.json", "report.html", RECORD)
OWN_FILES += (EXPORT, ADAPTER, "modeling_headcount.py")  # the code of an exported folder is written anew with each
# what headcount and save_pretrained write besides: a folder with anything else in it is not replaced
WEIGHT_FILES: tuple[str, ...] = (
    "model*.safetensors",
    "model*.safetensors.index*.json",
    "pytorch_model*.bin",
    "pytorch_model*.index*.json",
)
WEIGHT_FILES += ("tf_model*.h5", "flax_model*.msgpack", "adapter_model.*", "adapter_config.json", "training_args.bin")
TOKENIZER_FILES: tuple[str, ...] = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
TOKENIZER_FILES += ("added_tokens.json", "vocab.txt", "vocab.json", "merges.txt", "*.spm", "spiece.model")
TOKENIZER_FILES += ("sentencepiece*.model", "bpe.codes", "normalizer.json", "entity_vocab.json", "target_vocab.json")
TOKENIZER_FILES += ("chat_template.*", "additional_chat_templates/*.jinja", "*processor_config.json")
OTHER_FILES: tuple[str, ...] = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "[0-9]_*/config.json",
)
OTHER_FILES += ("[0-9]_*/model.safetensors", "[0-9]_*/pytorch_model.bin", "modeling_*.py", "configuration_*.py")
OTHER_FILES += ("tokenization_*.py", "*processing_*.py", "LICENSE*", "NOTICE*", ".gitattributes", ".DS_Store")
MODEL_FILES = (*OWN_FILES, *WEIGHT_FILES, *TOKENIZER_FILES, *OTHER_FILES)
_LEFTOVER = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}\.unfinished(?P<old>\.old)?", re.DOTALL)
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)  # what disks without locks say
_held: ContextVar[frozenset[Path]] = ContextVar("claims that this thread holds", default=frozenset())
_log = getLogger("headcount")


# -- what may be written -------------------------------------------------------------------------------------------------


def may_be_written(target: Path, force: bool, keep: Iterable[Path] = (), source: Path | None = None) -> None:
    """Refuse a target that is not ours to write: one that is not empty, unless `force` says that it may be replaced.

    Even then it must be a model folder with nothing else in it, be none of `keep`, and hold none of them: neither the model
    nor the data nor the folder we are in. Files that would come along from `source` may be in it.
    """
    with claimed(target, force, keep, source):
        pass


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise BadCheckpoint(reason)


def _unwritable(target: Path) -> str | None:
    """Why nothing can be written at the target, whatever is there, in one sentence; None if something can."""
    for path in (target, *target.parents):
        if path.is_symlink() and not os.path.exists(path):
            return f"{path} is a link to {os.readlink(path)}, which is not there; make that folder, or choose another."
    place = Path(os.path.realpath(target))
    parent = next((folder for folder in place.parents if os.path.exists(folder)), place)
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        return f"I cannot write to {target}: {parent} is not a folder that I may write to; choose another."
    if os.path.ismount(place):
        return f"{target} is where a disk is mounted and cannot be replaced; choose a folder in it."
    current = _current_folder()
    if current is not None and place in (current, *current.parents):
        return f"{target} is or holds the folder we are in, so it is not written; choose another folder."
    return None


def _obstacle(target: Path, force: bool, keep: Iterable[Path], source: Path | None) -> str | None:
    """Why the target may not be written as it is now, in one sentence; None if it may."""
    place = Path(os.path.realpath(target))
    if not os.path.lexists(place) or _is_empty(place):
        return None
    if not force:
        return f"{target} exists and is not empty; choose another folder, or use force (--force) to replace it."
    for path in keep:
        protected = Path(os.path.realpath(path))
        if os.path.exists(protected) and place in (protected, *protected.parents):
            what = "is still needed" if place == protected else f"holds {path}, which is still needed"
            return f"{target} {what}, so it is not replaced; choose another folder."
    if not place.is_dir() or not any((place / name).is_file() for name in ("config.json", RECORD, EXPORT)):
        return f"{target} is not a model folder, so it is not replaced; choose another folder."
    foreign = _foreign(place, source)
    if foreign is None:
        return None
    return (
        f"{target} holds {foreign}, which is no part of a model, so it is not replaced; move that elsewhere, or choose "
        "another folder."
    )


def _current_folder() -> Path | None:
    try:
        return Path(os.path.realpath(os.getcwd()))
    except OSError:  # it was deleted
        return None


def _is_empty(place: Path) -> bool:
    return place.is_dir() and not any(place.iterdir())


def _foreign(place: Path, source: Path | None) -> Path | None:
    """The first entry of a folder that is no part of a model and that the source has no copy of."""
    along = set[Path]() if source is None or not source.is_dir() else set(brought_along(source))
    exported = exported_files(place)
    for folder, folders, files in os.walk(place):  # which does not follow links
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted([*files, *links]):
            path = Path(folder, name)
            inside = path.relative_to(place)
            if not path.is_symlink() and exported.get(inside.as_posix()) == path.stat().st_size:
                continue  # as it was written
            if not _is_model_file(inside) and not (source and inside in along and _equal(path, source / inside)):
                return inside
    return None


def _is_model_file(inside: Path) -> bool:
    name = inside.as_posix()
    return any(fnmatchcase(name, pattern) and name.count("/") == pattern.count("/") for pattern in MODEL_FILES)


def _equal(path: Path, other: Path) -> bool:
    try:
        return path.is_file() and filecmp.cmp(path, other, shallow=False)
    except OSError:
        return False


# -- writing -------------------------------------------------------------------------------------------------------------


@contextmanager
def appears_whole(
    target: Path, force: bool = False, keep: Iterable[Path] = (), source: Path | None = None
) -> Iterator[Path]:
    """A folder to write in, next to the target, that takes the target's name only when everything is in it.

    What may be replaced is what `may_be_written` says, at the beginning and at the end. If something else has taken the name in
    between, it stays there, and the new folder gets another name, which the error says.
    """
    keep = tuple(keep)
    with claimed(target, force, keep, source) as place:
        try:
            draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".unfinished", dir=place.parent))
            draft.chmod(0o755)
        except OSError as error:
            raise BadCheckpoint(f"I cannot write to {place.parent}: {error.strerror}; choose another.") from None
        try:
            yield draft
            with disk_errors(target):
                _flush(draft)
                if reason := _unwritable(target) or _obstacle(target, force, keep, source):
                    spare = _free_name(place)
                    os.rename(draft, spare)
                    raise BadCheckpoint(f"The new model is complete, but it is in {spare}: {reason}")
                _take_name(draft, place)
        finally:
            _clean_up(draft)


@contextmanager
def file_appears_whole(target: Path, force: bool = False, keep: Iterable[Path] = ()) -> Iterator[Path]:
    """A path to write a file to, which takes the target's name when the block ends well; an earlier one goes with `force`."""
    file_may_be_written(target, force, keep)
    place = Path(os.path.realpath(target))
    with _parents(place), _locked(_claim(place), target):
        _tidy(place)
        with disk_errors(target):
            folder = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".unfinished", dir=place.parent))
        try:
            yield folder / place.name
            with disk_errors(target):
                _flush(folder)
                file_may_be_written(target, force, keep)
                os.replace(folder / place.name, place)
                flush_folder(place.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def file_may_be_written(target: Path, force: bool = False, keep: Iterable[Path] = ()) -> None:
    """Refuse a file that cannot be written, or that is there without `force`; never replaced are `keep` and what is no file."""
    _refuse(_unwritable(target))
    place = Path(os.path.realpath(target))
    if place.is_dir():
        raise BadCheckpoint(f"{target} is a folder, and this is written as one file; choose another name.")
    if os.path.lexists(place) and not force:
        raise BadCheckpoint(f"{target} is there already; choose another name, or use force (--force) to replace it.")
    if os.path.lexists(place) and (not place.is_file() or place in {Path(os.path.realpath(path)) for path in keep}):
        raise BadCheckpoint(f"{target} is still needed, or no file, so it is not replaced; choose another name.")


@contextmanager
def claimed(
    target: Path | None, force: bool = False, keep: Iterable[Path] = (), source: Path | None = None
) -> Iterator[Path]:
    """Within the block nobody else writes the target, and what killed commands left of it is tidied up; None is nothing.

    A second process is refused. In the thread that has claimed it, the target may be claimed again.
    """
    if target is None:
        yield Path()
        return
    _refuse(_unwritable(target))
    place = Path(os.path.realpath(target))
    if place in _held.get():
        _refuse(_obstacle(target, force, keep, source))
        yield place
        return
    with _parents(place), _locked(_claim(place), target):
        _tidy(place)
        _refuse(_obstacle(target, force, keep, source))
        token = _held.set(_held.get() | {place})
        try:
            yield place
        finally:
            _held.reset(token)


@contextmanager
def disk_errors(target: Path, advice: str = "") -> Iterator[None]:
    """Whatever the disk refuses within the block is said in one sentence, with `advice` at its end."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and "safetensor" not in type(error).__name__.lower():
            raise  # (safetensors has an error of its own for a full disk)
        first = (getattr(error, "strerror", None) or str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadCheckpoint(
            f"I cannot write {target}: {first[:200]}; make room or choose another folder, and run the same again{advice}."
        ) from None


def bring_along(source: Path, draft: Path, without: Sequence[Path] = ()) -> None:
    """Copy what belongs to the model and is not the model: everything but weights, configs and the old model card.

    What lies in the folders `without` stays behind.
    """
    for inside in brought_along(source, notes=True):
        if any((source / inside).is_relative_to(folder) for folder in without):
            continue
        if not os.path.lexists(draft / inside):
            (draft / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / inside, draft / inside)


def brought_along(source: Path, notes: bool = False) -> Iterator[Path]:
    """The files that come along from a model folder, by their paths in it.

    A link is followed if it leads to a place in the folder or in its cache of the hub, or if it is named like a part of a
    model; other links stay behind, because what they lead to was never put there.
    """
    home = Path(os.path.realpath(source))
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        hidden = any(part.startswith(".") for part in inside.parts)
        own = str(inside) in OWN_FILES or path.suffix in WEIGHTS or ".index." in inside.name
        own |= any((source / folder / "plan.json").is_file() for folder in list(inside.parents)[:-1])
        if hidden or own or not (path.is_file() or path.is_symlink()):
            continue
        leads_to = Path(os.path.realpath(path))
        near = any(folder in leads_to.parents for folder in (home, home.parent.parent / "blobs"))
        if path.is_file() and (near or _is_model_file(inside)):
            yield inside
        elif notes:
            _log.warning("note: %s is a link to %s and does not come along", path, os.readlink(path))


def _flush(folder: Path) -> None:
    """All of a folder is on the disk when this returns."""
    for path, _, files in os.walk(folder):
        for name in files:
            handle = os.open(os.path.join(path, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        flush_folder(Path(path))


def _take_name(draft: Path, place: Path) -> None:
    """The finished draft gets its name; what had it is put aside first, and back if that fails."""
    aside = _aside(draft)
    if _is_empty(place):
        place.rmdir()
    try:
        if os.path.lexists(place):
            os.rename(place, aside)
        os.rename(draft, place)
    except BaseException:
        if os.path.lexists(aside) and not os.path.lexists(place):
            os.rename(aside, place)
        raise
    flush_folder(place.parent)


def _clean_up(draft: Path) -> None:
    """Delete a draft that did not become the model, or else the model that it replaced; while both are there, neither."""
    aside = _aside(draft)
    if not os.path.lexists(aside):
        shutil.rmtree(draft, ignore_errors=True)
    elif not os.path.lexists(draft):
        shutil.rmtree(aside, ignore_errors=True)


def _aside(draft: Path) -> Path:
    """Where the old folder is while the draft takes its name."""
    return draft.with_name(f"{draft.name}.old")


def _free_name(place: Path) -> Path:
    number = 2
    while os.path.lexists(place.with_name(f"{place.name}-{number}")):
        number += 1
    return place.with_name(f"{place.name}-{number}")


# -- claims and leftovers ------------------------------------------------------------------------------------------------


class Leftover(NamedTuple):
    """What a killed command left of writing a folder: its draft, or the old folder that had to make room for it."""

    path: Path
    name: str  # of the folder that was written
    old: bool


def leftovers(folder: Path) -> list[Leftover]:
    """What is in a folder of others that were being written, or still are."""
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return []
    matches = [(entry, match) for entry in entries if (match := _LEFTOVER.fullmatch(entry))]
    return [Leftover(folder / entry, match["name"], match["old"] is not None) for entry, match in matches]


def set_aside(target: Path) -> Path | None:
    """The model that was at the target until a command which replaced it was killed half way; None if there is none."""
    if os.path.lexists(target):
        return None
    place = Path(os.path.realpath(target))
    old = [left.path for left in leftovers(place.parent) if left.old and left.name == place.name]
    return next((path for path in old if os.path.lexists(path.with_suffix(""))), None)


def _tidy(place: Path) -> None:
    """Undo what a killed command left of this folder, and name what others left beside it."""
    entries = leftovers(place.parent)
    for left in entries:
        if left.name == place.name and left.old:
            _put_back(left.path, place)
    for left in entries:
        if left.name == place.name and os.path.lexists(left.path):
            shutil.rmtree(left.path, ignore_errors=True)
            _log.warning("note: deleted %s, which a command that was killed had left", left.path)
        elif left.name != place.name and not left.old and not _is_claimed(place.with_name(left.name)):
            name = place.with_name(left.name)
            _log.warning("note: %s is left of a command that was killed; delete it, or write %s again", left.path, name)


def _put_back(old: Path, place: Path) -> None:
    """Give an old folder its name back if its successor never took it, and another one if the name is taken by now."""
    if not os.path.lexists(old.with_suffix("")):
        return  # the successor is in its place: the old one was being deleted
    if _is_empty(place):
        place.rmdir()
    name = _free_name(place) if os.path.lexists(place) else place
    os.rename(old, name)
    _log.warning("note: a command that was killed was replacing %s; what was there is back as %s", place, name)


def _claim(place: Path) -> Path:
    return place.with_name(f".{place.name}.claim")


def _is_claimed(place: Path) -> bool:
    """Whether a process is writing this folder."""
    if not _claim(place).exists():
        return False
    lock = FileLock(_claim(place))
    try:
        lock.acquire(blocking=False)
    except (Timeout, OSError, NotImplementedError):
        return True
    lock.release()
    return False


@contextmanager
def _locked(path: Path, target: Path) -> Iterator[None]:
    """Holds the lock of a claim, which the system gives back however the process ends; the file goes with it."""
    lock = _acquired(path, target)
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                path.unlink()
            lock.release()


def _acquired(path: Path, target: Path) -> BaseFileLock | None:
    """The lock of a claim; None on a disk without locks, where two processes meet when they are done."""
    lock = FileLock(path)
    while True:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise BadCheckpoint(
                f"{target} is being written by another process, or elsewhere in this one; wait, or choose another folder."
            ) from None
        except NotImplementedError:
            return None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            raise BadCheckpoint(f"I cannot write to {path.parent}: {error.strerror}; choose another.") from None
        if path.exists():
            return lock
        lock.release()  # who held it before deleted the file just now: this lock keeps nobody out


@contextmanager
def _parents(place: Path) -> Iterator[None]:
    """The folders above a place, made where they are missing; those that are still empty in the end go again."""
    missing = [folder for folder in place.parents if not os.path.exists(folder)]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadCheckpoint(f"I cannot write to {place.parent}: {error.strerror}; choose another.") from None
    try:
        yield
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
