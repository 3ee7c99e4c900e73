"""A command whose pieces are drawn by seed, the same bytes on every machine, in two stages; and where it is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headcount.cluster import serving
from headcount.runs import Arrays, Job, Run, independent

FIRST, SECOND = 20, 10  # pieces of the two stages


def question(first: int = FIRST, second: int = SECOND) -> dict[str, Any]:
    return {"command": "count", "pieces": [first, second]}


def stages(run: Run | None, sizes: Sequence[int], did: Callable[[str], object] = lambda name: None) -> int:
    """Both stages: each piece of the second is made of all of the first. Gives a number made of all."""

    def drawn(number: int, more: int = 0) -> Arrays:
        did(f"{'second' if more else 'first'}-{number}")
        return {"rows": np.random.default_rng(number).integers(0, 1 << 30, 50) + more}

    def jobs(stage: str, count: int, more: int) -> list[Job]:
        return [(f"{stage}-{n:06d}", lambda n=n: drawn(n, more)) for n in range(count)]  # type: ignore[misc]

    total = sum(int(arrays["rows"].sum()) for arrays in independent(run, jobs("first", sizes[0], 0)))
    return sum(int(arrays["rows"].sum()) % 1009 for arrays in independent(run, jobs("second", sizes[1], total)))


def command(words: Sequence[str]) -> None:
    """Serve both stages: SIZES, JOURNAL, seconds per piece; what is begun and done is noted in the journal."""
    sizes, did = [int(word) for word in words[0].split(",")], noting(Path(words[1]), float(words[2]))
    asker = serving.server()
    assert asker is not None
    with asker.run(question(*sizes)) as run:
        stages(run, sizes, did)
        run.conclude()


def noting(journal: Path, pause: float) -> Callable[[str], None]:
    """Takes so long for a piece, and notes when it begins and ends."""

    def did(name: str) -> None:
        for what in ("begun", "done"):
            with open(journal, "a", encoding="utf-8") as stream:
                stream.write(f"{what} {name}\n")
            time.sleep(pause if what == "begun" else 0)

    return did


def words(journal: Path, pause: float = 0.0, sizes: Sequence[int] = (FIRST, SECOND)) -> tuple[str, ...]:
    return (",".join(map(str, sizes)), str(journal), str(pause))


def pieces(folder: Path) -> dict[str, bytes]:
    """The pieces of a run folder, as they are on the disk."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.npz"))}
