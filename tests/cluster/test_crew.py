"""A crew of workers: the same bytes as one process, whoever dies, whether or not they share the folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import counting
from helpers.counting import FIRST, SECOND, pieces, stages

from headcount.cluster import crew as crews
from headcount.cluster import serving
from headcount.cluster.crew import Crew, CrewRun, Dead
from headcount.cluster.presence import Present, Worker, workers_in
from headcount.cluster.serving import Answer, Order, Server
from headcount.errors import BadRun, NotFinite, Refused
from headcount.runs import Run

NAMES = [f"first-{n:06d}" for n in range(FIRST)] + [f"second-{n:06d}" for n in range(SECOND)]


class Threads:
    """An engine whose workers are threads of this process; `dies` says which of them die when they are asked for a piece."""

    def __init__(self, command: serving.Command, order: Order, dies: Callable[[int, str], bool]) -> None:
        self.command, self.order, self.dies = command, order, dies
        self.asked: list[tuple[int, str]] = []
        self.begin = True

    def start(self, number: int) -> Any:
        server = Server(self.command, self.order) if self.begin else None
        return number, server, ThreadPoolExecutor(1)

    def about(self, worker: Any) -> Future[Any]:
        return worker[2].submit(self._about, worker[1])  # type: ignore[no-any-return]

    def _about(self, server: Server | None) -> Any:
        if server is None:
            raise Dead("ModuleNotFoundError: No module named 'headcount'")
        return server.about()

    def piece(self, worker: Any, name: str) -> Future[Answer]:
        number, server, pool = worker
        self.asked.append((number, name))

        def ask() -> Answer:
            if self.dies(number, name):
                raise Dead("killed")
            return server.piece(name)  # type: ignore[no-any-return]

        return pool.submit(ask)  # type: ignore[no-any-return]

    def give(self, worker: Any, name: str, content: bytes) -> None:
        worker[2].submit(worker[1].give, name, content).result()

    def end(self, worker: Any) -> None:
        worker[2].shutdown(wait=False)


@pytest.fixture
def whole(tmp_path: Path) -> tuple[int, dict[str, bytes]]:
    """What one process finds."""
    with Run.open(tmp_path / "whole", counting.question()) as run:
        return stages(run, (FIRST, SECOND)), pieces(tmp_path / "whole")


@contextmanager
def a_crew(
    folder: Path,
    size: int = 3,
    shared: bool = True,
    dies: Callable[[int, str], bool] = lambda number, name: False,
    command: serving.Command = counting.command,
) -> Iterator[CrewRun]:
    with Run.open(folder, counting.question()) as run:
        (run.folder / ".here").touch()
        words = counting.words(folder.with_name("journal"))
        order = Order(words, str(folder.parent), str(folder), ".here" if shared else ".not", dict(run.question))
        me = Present(run.folder, Worker("driver"))
        crew = Crew(Threads(command, order, dies), size, me)
        try:
            yield CrewRun(**vars(run), crew=crew)
        finally:
            crew.end()
            me.go()


def _begun(folder: Path) -> list[str]:
    lines = folder.with_name("journal").read_text().split("\n")
    return [line.split()[1] for line in lines if line.startswith("begun")]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "sent back"])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_crew_finds_what_one_process_finds(size: int, shared: bool, whole: Any, tmp_path: Path) -> None:
    with a_crew(tmp_path / "run", size, shared) as run:
        assert (stages(run, (FIRST, SECOND)), pieces(tmp_path / "run")) == whole
    begun = _begun(tmp_path / "run")
    assert len(begun) == len(set(begun)) == FIRST + SECOND


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "sent back"])
def test_a_worker_that_dies_costs_its_piece(shared: bool, whole: Any, tmp_path: Path) -> None:
    """Also in the second stage, which a new worker reaches by what others have done."""
    deaths = {NAMES[3], NAMES[8], NAMES[FIRST + 2], NAMES[FIRST + 5]}

    def dies(number: int, name: str) -> bool:
        if name in deaths:
            deaths.remove(name)
            return True
        return False

    with a_crew(tmp_path / "run", 2, shared, dies) as run:
        assert (stages(run, (FIRST, SECOND)), pieces(tmp_path / "run")) == whole
        asked = [name for _, name in run.crew.engine.asked]  # type: ignore[attr-defined]
    assert not deaths
    assert len(_begun(tmp_path / "run")) == FIRST + SECOND
    if shared:
        assert len(asked) == FIRST + SECOND + 4


def test_what_is_there_is_not_asked_for(whole: Any, tmp_path: Path) -> None:
    for name, content in list(whole[1].items())[:13]:
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "later").mkdir(exist_ok=True)
        (tmp_path / "later" / name).write_bytes(content)
    (tmp_path / "run").rmdir()
    with a_crew(tmp_path / "run") as run:
        for path in (tmp_path / "later").iterdir():
            path.rename(tmp_path / "run" / path.name)
        assert stages(run, (FIRST, SECOND)) == whole[0]
    assert len(_begun(tmp_path / "run")) == FIRST + SECOND - 13


def test_a_piece_that_ends_every_worker_is_named(tmp_path: Path) -> None:
    with a_crew(tmp_path / "run", dies=lambda number, name: name == NAMES[4]) as run, pytest.raises(BadRun) as error:
        stages(run, (FIRST, SECOND))
    assert f"3 workers died while they computed {NAMES[4]} (killed)" in str(error.value)


def test_workers_that_never_begin_are_not_started_for_ever(tmp_path: Path) -> None:
    with a_crew(tmp_path / "run", 2) as run:
        run.crew.engine.begin = False  # type: ignore[attr-defined]
        for member in run.crew.members:
            run.crew._hire(member)
        with pytest.raises(BadRun, match=r"Workers die before they begin .*No module named"):
            stages(run, (FIRST, SECOND))


def _failing(error: Exception) -> serving.Command:
    def command(words: Sequence[str]) -> None:
        asker = serving.server()
        assert asker is not None
        with asker.run(counting.question()) as run:
            list(run.independent((name, lambda: (_ for _ in ()).throw(error)) for name in NAMES[:FIRST]))

    return command


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (NotFinite("The loss of example 3 is nan"), NotFinite, "The loss of example 3 is nan"),
        (Refused("no"), Refused, "no"),
        (KeyError("x"), Exception, "failed: KeyError: 'x'"),
        (SystemExit(2), Exception, "failed: SystemExit: 2"),
    ],
)
def test_what_fails_in_a_worker_fails_here(error: Any, kind: type[Exception], words: str, tmp_path: Path) -> None:
    with a_crew(tmp_path / "run", command=_failing(error)) as run, pytest.raises(kind, match=words):
        stages(run, (FIRST, SECOND))


def test_a_command_that_ends_before_its_pieces_says_so(tmp_path: Path) -> None:
    with a_crew(tmp_path / "run", command=lambda words: None) as run, pytest.raises(Exception, match="came to the end"):
        stages(run, (FIRST, SECOND))


def test_a_worker_with_another_question_is_refused(tmp_path: Path) -> None:
    """Other weights, say, or another version of the data on its machine."""

    def command(words: Sequence[str]) -> None:
        asker = serving.server()
        assert asker is not None
        with asker.run({**counting.question(), "pieces": [1, 1]}):
            raise AssertionError

    with a_crew(tmp_path / "run", command=command) as run, pytest.raises(BadRun) as error:
        stages(run, (FIRST, SECOND))
    assert "would answer another question: pieces.0 is 20 where it was started and 1 here" in str(error.value)


def test_a_second_process_with_the_folder_is_refused(tmp_path: Path) -> None:
    with a_crew(tmp_path / "run"), pytest.raises(BadRun, match="in use"), a_crew(tmp_path / "run"):
        pass


def test_status_shows_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "SEEN", 0.0)
    with a_crew(tmp_path / "run", 2) as run:
        stages(run, (FIRST, SECOND))
        shown = workers_in(tmp_path / "run")
    assert [worker.name for worker, _ in shown] == ["driver", "worker 1", "worker 2"]
    assert [silent is None for _, silent in shown] == [False] * 3
    assert sum(worker.done for worker, _ in shown[1:]) == shown[0][0].done == FIRST + SECOND


def test_a_piece_that_its_writer_alone_sees_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "SEEN", 0.0)
    monkeypatch.setattr(serving.Serving, "write", lambda *rest: None)
    with a_crew(tmp_path / "run") as run, pytest.raises(BadRun, match="does not show it"):
        stages(run, (FIRST, SECOND))
