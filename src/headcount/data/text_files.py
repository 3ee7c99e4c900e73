"""Files as bytes and as text: found with or without .gz and .xz, unpacked no further than is needed, decoded, in lines."""

from __future__ import annotations

import gzip
import lzma
import zlib
from pathlib import Path
from typing import IO, NamedTuple

from ..errors import BadData

PACKINGS = (".gz", ".xz")
MOST_UNPACKED = 2**30  # bytes of one compressed file: a file of some megabytes may unpack to more than any memory holds
ENOUGH_TO_DRAW = 2**24  # bytes of a compressed file from which a limited number of examples is drawn
PIECE = 2**20  # bytes that are unpacked at a time


class Content(NamedTuple):
    """The bytes of a file, unpacked, and whether there is more of it that was not read."""

    data: bytes
    more: bool = False


def located(data: str | Path) -> Path | None:
    """The file or folder of that name, with or without .gz or .xz; None where there is none."""
    path = Path(data).expanduser()
    return next(
        (candidate for candidate in (path, *(Path(f"{path}{end}") for end in PACKINGS)) if candidate.exists()), None
    )


def ending(path: Path) -> str:
    """The ending that says what a file holds: that of `dev.tsv.gz` is `.tsv`."""
    return (path.with_suffix("") if path.suffix.lower() in PACKINGS else path).suffix.lower()


def display_name(path: Path) -> str:
    """A file's name for people: with the folder it lies in, `SST-2/dev.tsv`."""
    parent = path.absolute().parent.name
    return f"{parent}/{path.name}" if parent else path.name


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, unpacked, without the newlines that end them."""
    return lines_of(decoded(path, unpacked(path).data))


def unpacked(path: Path, limit: int | None = None) -> Content:
    """What is in a file, unpacked. Of a compressed one no more than `MOST_UNPACKED` bytes, beyond which it is refused.

    With `limit`, a number of lines that is needed, a compressed file is read as far as there are that many, and
    `ENOUGH_TO_DRAW` bytes at least; what is left out is left out by whole lines.
    """
    try:
        with path.open("rb") as file:
            start = file.read(6)
            file.seek(0)
            if start[:2] == b"\x1f\x8b":
                return _opened(path, gzip.GzipFile(fileobj=file), limit)
            return _opened(path, lzma.LZMAFile(file), limit) if start == b"\xfd7zXZ\x00" else Content(file.read())
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise BadData(f"{path} is compressed and damaged ({error}); fetch or compress it again.") from error
    except OSError as error:
        raise BadData(f"{path} cannot be read ({error.strerror}); look at its permissions.") from error


def _opened(path: Path, stream: IO[bytes] | gzip.GzipFile | lzma.LZMAFile, limit: int | None) -> Content:
    pieces, size, lines = list[bytes](), 0, 0
    while piece := stream.read(PIECE):
        pieces.append(piece)
        size += len(piece)
        lines += piece.count(b"\n")
        if limit is not None and size >= ENOUGH_TO_DRAW and lines > limit and not _is_parquet(pieces):
            data = b"".join(pieces)
            return Content(data[: data.rindex(b"\n") + 1], more=bool(stream.read(1)))
        if size > MOST_UNPACKED:
            raise BadData(
                f"{path} has {path.stat().st_size / 2**20:,.1f} MiB and unpacks to more than {MOST_UNPACKED >> 20:,} MiB; "
                "if that is meant, unpack it yourself and give the file that comes out, or draw some lines of it with "
                "limit= (--limit)."
            )
    return Content(b"".join(pieces))


def _is_parquet(pieces: list[bytes]) -> bool:
    """Whether this is the start of a table that can only be read whole."""
    return pieces[0][:4] == b"PAR1"


def decoded(path: Path, content: bytes) -> str:
    """The text of a file in UTF-8."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise BadData(f"{path} is in UTF-16; convert it to UTF-8: iconv -f utf-16 -t utf-8.")
    if b"\0" in content:
        raise BadData(
            f"{path} is a binary file; give text: TSV, CSV, JSON, JSON Lines, Parquet or one sentence a line."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadData(
            f"{path} is not in UTF-8: line {line} has the byte 0x{content[error.start]:02x}; "
            "convert it, for example with iconv -f latin1 -t utf-8."
        ) from error


def lines_of(text: str) -> list[str]:
    """The lines of a text, which end with a newline and with nothing else: str.splitlines breaks inside sentences."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
