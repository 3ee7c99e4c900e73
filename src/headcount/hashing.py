"""What tells one thing from another: hashes of data and of files, and the versions that numbers depend on. No torch."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from . import __version__
from .errors import BadRun

WHOLE = 1 << 29  # bytes up to which a fingerprint reads all of a file; of a larger one, as many, spread evenly
BLOCK = 1 << 20
PACKAGES = ("numpy", "scipy", "torch", "transformers", "sacrebleu")


def fingerprint(data: Any) -> str:
    """32 hex digits of SHA-256 over JSON-able data; the order of the names in an object does not matter."""
    text = canonical(plain_json(data, "What is fingerprinted"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def fingerprint_of_files(paths: Iterable[Path | str]) -> str:
    """32 hex digits over the files' names, sizes and contents; not over where they lie, nor their order.

    Names are taken from the deepest folder that holds all of them. Of a file of more than 512 MiB, that much is read, in
    blocks spread evenly from its beginning to its end: a change between them that keeps its size is not seen.
    """
    files = [Path(os.path.abspath(path)) for path in paths]
    if not files:
        return fingerprint([])
    top = os.path.commonpath([path.parent for path in files])
    return fingerprint(sorted([path.relative_to(top).as_posix(), *_content(path)] for path in files))


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that numbers depend on, without importing them."""
    package_versions = {"python": platform.python_version(), "headcount": __version__}
    for name in PACKAGES:
        try:
            package_versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            package_versions[name] = "not installed"
    return package_versions


def plain_json(data: Any, subject: str) -> Any:
    """The data as it comes back from JSON (tuples are lists, names are texts), or `BadRun` if it would not."""
    try:
        return json.loads(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRun(
            f"{subject} must be plain JSON without NaN; convert the rest first ({str(error)[:120]})."
        ) from None


def canonical(plain: Any) -> str:
    """Plain JSON as one text, the same for equal data."""
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _content(path: Path) -> tuple[int, str]:
    """The size and the hash of a file."""
    try:
        return _hashed(path)
    except OSError as error:
        raise BadRun(
            f"I cannot read {path}: {error.strerror or error}; check that it is there and readable."
        ) from error


def _hashed(path: Path) -> tuple[int, str]:
    with open(path, "rb") as stream:
        size, digest = os.fstat(stream.fileno()).st_size, hashlib.sha256()
        last = WHOLE // BLOCK - 1
        spread = [(size - BLOCK) * n // last for n in range(last + 1)]
        for start in range(0, size, BLOCK) if size <= WHOLE else spread:
            stream.seek(start)
            digest.update(stream.read(BLOCK))
        return size, digest.hexdigest()
