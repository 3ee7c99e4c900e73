"""Claims of pieces: a file for each piece that is being computed, which one process alone can create.

A claim is never taken over by deleting it, which two could do at once, each deleting the other's: the next process claims
the next generation, `PIECE.1` after `PIECE.0`, and again only one can. When a piece is there, its claims go.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from ..errors import BadRun
from .presence import SILENCE, Present

FOLDER = ".claims"


class Claims:
    """The claims in a run folder, made by one worker."""

    def __init__(self, folder: Path, me: Present) -> None:
        self.folder, self.me = folder / FOLDER, me
        self._generations: dict[str, int] = {}  # of what is ours
        self.folder.mkdir(exist_ok=True)

    def take(self, piece: str) -> bool:
        """Whether the piece is ours now: nobody else has claimed it, or whoever did has died.

        It may have been finished before: look once more after this.
        """
        generation = 0
        while True:
            path = self.folder / f"{piece}.{generation}"
            try:
                handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                if self._held(path):
                    return False
                generation += 1
                continue
            except OSError as error:
                raise _cannot(path, error) from error
            self._generations[piece] = generation
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    stream.write(self.me.id)
            except OSError as error:  # the disk is full: nobody can tell whose it is
                self.release(piece)
                raise _cannot(path, error) from error
            return True

    def release(self, piece: str) -> None:
        """Take our claim of a piece away, and those of the dead before us."""
        for generation in range(self._generations.pop(piece, -1) + 1):
            with suppress(OSError):
                (self.folder / f"{piece}.{generation}").unlink(missing_ok=True)

    def _held(self, path: Path) -> bool:
        """Whether somebody who lives holds this claim."""
        try:
            owner, age = path.read_text(encoding="utf-8"), time.time() - path.stat().st_mtime
        except FileNotFoundError:  # let go of just now: the piece is there, or will be tried again
            return True
        except OSError as error:
            raise _cannot(path, error) from error
        return self.me.lives(owner) if owner else age < SILENCE  # without a name: created just now, or never finished


def _cannot(path: Path, error: OSError) -> BadRun:
    return BadRun(f"I cannot claim {path} ({error.strerror or error}); what is finished is safe: see to the disk.")
