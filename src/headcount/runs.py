"""Run folders: what was asked and the finished pieces of the answer, so that a killed command goes on where it was.

`run.json` holds the question; each finished piece is an `.npz` beside it, each document a `.json`. Every file is written
under another name, flushed to the disk and renamed, so it is there whole or not at all; one process at a time may write.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import secrets
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from filelock import BaseFileLock, FileLock, Timeout

from .errors import BadRun
from .hashing import canonical, fingerprint, plain_json, versions
from .parsing import by_number

FORMAT = 1
RUN = "run.json"
LOCK = ".lock"
_DRAFT = re.compile(r"\.[0-9a-f]{16}\.draft")  # a file that is being written; one left behind was never finished
_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]{0,199}")
_ABSENT = object()
_ADVICE = {"read": "check that it is there and readable", "use": "choose another folder"}
_ADVICE["write to"] = "choose another place"
_ADVICE["write"] = "what is finished is safe, so see to the disk and run the same again"
Arrays = dict[str, np.ndarray]
Job = tuple[str, Callable[[], Mapping[str, Any]]]  # the name of a piece, and what computes it


class Lock(Protocol):
    """What holds a folder, for as long as `is_locked`."""

    is_locked: Any


@dataclass(frozen=True, eq=False)
class Record:
    """What a run folder holds, to be read only: the question, when and with which versions it was asked, the pieces."""

    folder: Path
    question: dict[str, Any]
    signature: str
    versions: dict[str, str]
    created: str

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return bool(_written(self.folder)["finished"])

    @property
    def pieces(self) -> tuple[str, ...]:
        """The names of the finished pieces, numbers counted as numbers."""
        with _sentences("read", self.folder):
            names = [entry.removesuffix(".npz") for entry in os.listdir(self.folder) if entry.endswith(".npz")]
        return tuple(sorted(filter(_NAME.fullmatch, names), key=lambda name: (by_number(name), name)))

    def done(self, name: str) -> bool:
        """Whether the piece is finished."""
        with _sentences("read", self.folder):
            return _file(self.folder, name, ".npz").is_file()

    def read(self, name: str) -> Arrays:
        """The arrays of a finished piece."""
        path = _file(self.folder, name, ".npz")
        if not self.done(name):
            raise BadRun(f"{self.folder} has no finished piece {name}; run its command again to compute it.")
        with _sentences("read", path):
            content = path.read_bytes()
        try:
            return _unpacked(name, content)
        except MemoryError:
            raise
        except Exception as error:  # whatever zipfile, zlib and numpy say about bytes that are not what was written
            raise _damaged(path, error) from error

    def read_json(self, name: str) -> Any:
        """The data of a document written by `Run.write_json`."""
        path = _file(self.folder, name, ".json")
        try:
            with _sentences("read", path):
                return json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise _damaged(path, error) from None


@dataclass(frozen=True, eq=False)
class Run(Record):
    """A run folder that is open for writing, and locked against everybody else for as long as it is."""

    lock: Lock = field(repr=False)

    @classmethod
    @contextmanager
    def open(
        cls,
        folder: Path | str,
        question: Mapping[str, Any],
        *,
        held: Callable[[Path], AbstractContextManager[Lock]] | None = None,
    ) -> Iterator[Run]:
        """Within the block, the run that answers `question` in `folder`: a new one, or the one begun there before.

        The question is plain JSON: the command, the model and the data with their fingerprints, the options; two runs
        with equal questions must have equal answers. Refused in one sentence, with nothing touched: a folder with
        another question, a folder that holds something else, and one that is open already. `held` is another way of
        holding the folder, together with others that hold it so.
        """
        folder, plain_question = Path(folder), _plain_json(question)
        _same_question(folder, plain_question)  # before anything is touched
        with _sentences("write", folder):
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                flush_folder(folder.parent)
        with (held or locked)(folder) as lock:
            _same_question(folder, plain_question)  # another process may have been here in between
            with _sentences("write", folder):
                for entry in os.listdir(folder) if held is None else ():  # with others, a draft may be one of theirs
                    if _DRAFT.fullmatch(entry):
                        (folder / entry).unlink(missing_ok=True)
            if _document(folder) is None:
                _begin(folder, plain_question)
            yield cls(**vars(read(folder)), lock=lock)

    def piece(self, name: str, compute: Callable[[], Mapping[str, Any]]) -> Arrays:
        """The arrays of the piece: read back if it was finished before, otherwise computed and written.

        A fresh piece is read back too, so what comes out does not depend on whether the run was interrupted.
        """
        self._must_be_open()
        if not self.done(name):
            self.write(name, compute())
        return self.read(name)

    def independent(self, jobs: Iterable[Job]) -> Iterator[Arrays]:
        """The arrays of pieces that do not need each other, in the order of `jobs`: what several processes can share out."""
        for name, compute in jobs:
            yield self.piece(name, compute)

    def conclude(self) -> None:
        """Said by a command when all pieces are there and its result begins: whoever only does pieces stops here."""

    def write(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Write a piece; it is finished when this returns. A finished piece is never replaced by another one."""
        self._must_be_open()
        path, checked = _file(self.folder, name, ".npz"), _checked(name, arrays)
        if not self.done(name):
            write_whole(path, _packed(name, checked))
        elif _packed(name, self.read(name)) != _packed(name, checked):
            raise BadRun(f"{path} is finished and holds other arrays; delete it first if it should be replaced.")

    def write_json(self, name: str, data: Any, *, replace: bool = False) -> None:
        """Write a document for people and reports; another one of that name is replaced only with `replace`."""
        self._must_be_open()
        path, plain = _file(self.folder, name, ".json"), plain_json(data, f"The document {name}")
        if replace or not os.path.lexists(path):
            write_whole(path, _text(plain))
        elif canonical(self.read_json(name)) != canonical(plain):
            raise BadRun(f"{path} is there and holds other data; delete it first, or write with replace=True.")

    def finish(self) -> None:
        """Note that the run came to its end."""
        self._must_be_open()
        document = _written(self.folder)
        if not document["finished"]:
            write_whole(self.folder / RUN, _text({**document, "finished": True}))

    def discard_if_empty(self) -> None:
        """Take the folder away again if nothing has been written to it: a command that failed at once leaves nothing."""
        self._must_be_open()
        if set(os.listdir(self.folder)) <= {RUN, LOCK}:
            with _sentences("write", self.folder):
                (self.folder / RUN).unlink()
                (self.folder / LOCK).unlink(missing_ok=True)
                self.folder.rmdir()

    def _must_be_open(self) -> None:
        if not self.lock.is_locked:
            raise BadRun(f"The run in {self.folder} is closed; open it again with Run.open to write to it.")


def read(folder: Path | str) -> Record:
    """What a run folder holds; also while another process writes to it, because nothing is locked or changed."""
    document = _written(Path(folder))
    return Record(Path(folder), *(document[name] for name in ("question", "signature", "versions", "created")))


class InMemory:
    """Pieces that are kept for as long as this object is, where there is no folder for them: nothing is computed twice."""

    def __init__(self) -> None:
        self._pieces: dict[str, Arrays] = {}

    def piece(self, name: str, compute: Callable[[], Mapping[str, Any]]) -> Arrays:
        """The arrays of the piece, computed the first time."""
        if name not in self._pieces:
            self._pieces[name] = piece(None, name, compute)
        return self._pieces[name]

    def independent(self, jobs: Iterable[Job]) -> Iterator[Arrays]:
        """The arrays of these pieces, in this order."""
        return (self.piece(name, compute) for name, compute in jobs)


def piece(run: Run | None, name: str, compute: Callable[[], Mapping[str, Any]]) -> Arrays:
    """`run.piece(name, compute)`, or without a run just what `compute` gives, under the same rules for arrays."""
    if run is not None:
        return run.piece(name, compute)
    _file(Path(), name, ".npz")
    return _checked(name, compute())


def independent(run: Run | None, jobs: Iterable[Job]) -> Iterator[Arrays]:
    """`run.independent(jobs)`, or without a run what they compute, one after the other."""
    if run is not None:
        return run.independent(jobs)
    return (piece(None, name, compute) for name, compute in jobs)


def document(run: Run | None, name: str, compute: Callable[[], Any]) -> Any:
    """A JSON value that is kept as a piece: what was computed once is read back, also by a later process."""

    return json_in(piece(run, name, lambda: json_as_arrays(compute(), name)))


def json_as_arrays(value: Any, subject: str) -> Arrays:
    """A JSON value as a piece holds it."""
    return {"json": np.frombuffer(_text(plain_json(value, subject)), np.uint8)}


def json_in(arrays: Arrays) -> Any:
    """The JSON value in such a piece."""
    return json.loads(arrays["json"].tobytes())


def default_folder(question: Mapping[str, Any]) -> Path:
    """`runs/COMMAND-MODEL-HASH`: the same for the same question, so that repeating a command resumes it.

    COMMAND is `question["command"]`, MODEL the last part of `question["model"]` or of its "name".
    """
    plain_question = _plain_json(question)
    return Path("runs", "-".join([*_words(plain_question), fingerprint(plain_question)[:8]]))


def _plain_json(question: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(question, Mapping):
        raise BadRun(f"A question maps names to what was asked; I got {type(question).__name__}: give a dict.")
    return plain_json(dict(question), "A question")


def _begin(folder: Path, question: dict[str, Any]) -> None:
    document = {
        "format": FORMAT,
        "question": question,
        "signature": " ".join([fingerprint(question)[:8], *_words(question)]),
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": False,
    }
    write_whole(folder / RUN, _text(document))


def _document(folder: Path) -> dict[str, Any] | None:
    """The folder's run.json, None if there is none, or `BadRun` for what is wrong with it."""
    path = folder / RUN
    try:
        with _sentences("read", path, passed=(FileNotFoundError, NotADirectoryError)):
            document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise BadRun(f"{path} is damaged ({str(error)[:80]}); start again in another folder.") from None
    kinds = {"format": int, "question": dict, "signature": str, "versions": dict, "created": str, "finished": bool}
    if not isinstance(document, dict) or "format" not in document:
        raise BadRun(f"{path} was not written by headcount; choose another folder.")
    if document["format"] != FORMAT:
        raise BadRun(f"{path} has format {document['format']!r:.40}; this headcount reads {FORMAT}: update it.")
    wrong = [name for name, kind in kinds.items() if type(document.get(name)) is not kind]
    if wrong or document["signature"][:8] != fingerprint(document["question"])[:8]:
        part = wrong[0] if wrong else "question or signature"
        raise BadRun(f"{path} is damaged: its {part} is not what was written; start again in another folder.")
    return document


def _written(folder: Path) -> dict[str, Any]:
    document = _document(folder)
    if document is None:
        raise BadRun(f"{folder} is not a run folder: there is no {RUN} in it; give a folder that a command wrote.")
    return document


def _same_question(folder: Path, question: dict[str, Any]) -> None:
    """Refuse a folder that holds something else, or the answer to another question."""
    document = _document(folder)
    if document is None:
        with _sentences("use", folder):
            entries = os.listdir(folder) if os.path.lexists(folder) else []
        foreign_entries = [entry for entry in entries if entry != LOCK and not _DRAFT.fullmatch(entry)]
        if foreign_entries and (document := _document(folder)) is None:  # else another process has begun it in between
            raise BadRun(
                f"{folder} holds {min(foreign_entries):.80} and is not a run folder; choose another one, or a new one."
            )
    if document is not None and (difference := _first_difference(document["question"], question)):
        raise BadRun(f"{folder} holds the answer to another question: {difference}; choose another folder.")


def _first_difference(stored_value: Any, current_value: Any, path: str = "") -> str | None:
    """The first thing in which two questions differ, with both values; None if they are equal."""
    if isinstance(stored_value, list) and isinstance(current_value, list):
        stored_value, current_value = dict(enumerate(stored_value)), dict(enumerate(current_value))
    if isinstance(stored_value, dict) and isinstance(current_value, dict):
        pairs = (
            (name, stored_value.get(name, _ABSENT), current_value.get(name, _ABSENT))
            for name in {**stored_value, **current_value}
        )
        differences = (
            _first_difference(stored_part, current_part, f"{path}.{name}".lstrip("."))
            for name, stored_part, current_part in pairs
        )
        return next(filter(None, differences), None)
    stored_text, current_text = (
        "not given" if value is _ABSENT else canonical(value) for value in (stored_value, current_value)
    )
    return (
        None
        if stored_text == current_text
        else f"{path} is {_part(stored_text, current_text)} there and {_part(current_text, stored_text)} here"
    )


def _part(text: str, reference: str) -> str:
    """A text, or of a long one 80 characters from shortly before the place where it parts from the other."""
    start = max(0, next(at for at, (a, b) in enumerate(zip_longest(text, reference)) if a != b) - 20)
    return text if len(text) <= 80 else f"…{text[start : start + 80]}…"


def _words(question: Mapping[str, Any]) -> list[str]:
    """The command and the last part of the model's name, as far as they are given, fit for the name of a folder."""
    model = question.get("model")
    model = model.get("name") if isinstance(model, dict) else model
    names = [question.get("command"), re.split(r"[/\\]", model.rstrip("/\\"))[-1] if isinstance(model, str) else None]
    words = [re.sub(r"[^A-Za-z0-9_.]+", "-", word).strip("-.")[:60] for word in names if isinstance(word, str)]
    return [word for word in words if word]


def _text(plain: Any) -> bytes:
    return (json.dumps(plain, indent=2) + "\n").encode()


def _file(folder: Path, name: str, ending: str) -> Path:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name + ending == RUN:
        raise BadRun(f"{name!r:.80} cannot be a name here; use letters, digits, _ . - (not . first, and not run).")
    return folder / (name + ending)


def _checked(name: str, arrays: Mapping[str, Any]) -> Arrays:
    """The arrays as they will be read back: plain numbers or texts, no objects, nothing that needs pickle."""
    if not isinstance(arrays, Mapping):
        raise BadRun(f"Piece {name} must be a dict of arrays; I got {type(arrays).__name__}: give each array a name.")
    out = {}
    for key, value in arrays.items():
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            raise BadRun(f"{key!r:.80} cannot name an array of piece {name}; use letters, digits, '_', '.' and '-'.")
        try:
            array = np.asarray(value)
        except Exception as error:  # ragged lists, tensors on a device, whatever else cannot become an array
            raise BadRun(f"{key} of piece {name} is not an array ({str(error)[:120]}); convert it first.") from None
        if array.dtype.kind not in "biufcSUmM" or isinstance(value, np.ma.MaskedArray):
            kind = f"{type(value).__name__} of {array.dtype}"
            raise BadRun(f"{key} of piece {name} is {kind}; only plain numbers and texts are kept, so convert it.")
        out[key] = array
    return out


def _packed(name: str, arrays: Arrays) -> memoryview:
    """The bytes of an `.npz` that `numpy.load` reads; equal arrays give equal bytes, because no time is noted in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.comment = _checksum(name, arrays)
        for key, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return buffer.getbuffer()


def _unpacked(name: str, content: bytes) -> Arrays:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {entry.filename.removesuffix(".npy"): archive.read(entry) for entry in archive.infolist()}
        arrays = {key: np.lib.format.read_array(io.BytesIO(x), allow_pickle=False) for key, x in entries.items()}
        if archive.comment != _checksum(name, arrays):
            raise ValueError("its checksum is not that of this piece")
        return arrays


def _checksum(name: str, arrays: Arrays) -> bytes:
    """Over the name and all arrays: those of a zip are over each file, and do not see that one of them is missing."""
    digest = hashlib.sha256(name.encode())
    for key, array in arrays.items():
        digest.update(f"\n{key} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest().encode()


@contextmanager
def locked(folder: Path) -> Iterator[BaseFileLock]:
    """Holds the folder's lock, which the system gives back however the process ends."""
    lock = FileLock(folder / LOCK, thread_local=False)
    with _sentences("use", folder):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise BadRun(f"{folder} is in use, by another process or by this one; wait, or choose another.") from None
        except NotImplementedError as error:  # a disk without locks
            raise OSError(str(error)) from error
    try:
        yield lock
    finally:
        lock.release()


@contextmanager
def _sentences(verb: str, path: Path, passed: tuple[type[OSError], ...] = ()) -> Iterator[None]:
    """Whatever the disk refuses within the block is said in one sentence."""
    try:
        yield
    except passed:
        raise
    except OSError as error:
        raise BadRun(f"I cannot {verb} {path}: {error.strerror or error}; {_ADVICE[verb]}.") from error


def _damaged(path: Path, error: Exception) -> BadRun:
    why = (str(error).splitlines() or [type(error).__name__])[0][:120]
    return BadRun(f"{path} is damaged ({why}); delete this file and run the command again to have it anew.")


def write_whole(path: Path, content: bytes | memoryview, verb: str = "write") -> None:
    """The file appears whole or not at all, and is on the disk when this returns."""
    draft = path.with_name(f".{secrets.token_hex(8)}.draft")
    with _sentences(verb, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(draft, "xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(draft, path)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """The names in a folder are on the disk when this returns, on systems where folders can be flushed."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks flush files only
            raise
    finally:
        os.close(handle)
