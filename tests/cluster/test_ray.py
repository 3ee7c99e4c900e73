"""Ray computes the pieces: the same bytes as one process, whatever is killed. Skipped where Ray is not installed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from helpers import counting
from helpers.counting import FIRST, SECOND, pieces, stages

from headcount.cluster.on_ray import on_ray
from headcount.cluster.presence import workers_in
from headcount.cluster.ray_tasks import tasks_on_ray
from headcount.errors import BadRun
from headcount.reproduction import runner
from headcount.reproduction.runner import Step, logged
from headcount.runs import Run, read

ray = pytest.importorskip("ray")
TESTS = str(Path(__file__).parents[1])
SMALL = {"object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def importable() -> Iterator[None]:
    """Workers are processes of their own: they import this folder's helpers from where we do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([TESTS, *filter(None, sys.path)]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_DEDUP_LOGS", "0")
        yield


@pytest.fixture(scope="module")
def one_machine(importable: None) -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", **SMALL)
    yield
    ray.shutdown()


@pytest.fixture
def whole(tmp_path: Path) -> tuple[int, dict[str, bytes]]:
    """What one process finds."""
    with Run.open(tmp_path / "whole", counting.question()) as run:
        return stages(run, (FIRST, SECOND)), pieces(tmp_path / "whole")


def done(folder: Path, size: int | None = None, pause: float = 0.0) -> int:
    """The job in this folder, on Ray."""
    words = counting.words(folder.with_name("journal"), pause)
    with (
        Run.open(folder, counting.question()) as run,
        on_ray(run, counting.command, words, size, "cpu") as shared,
    ):
        return stages(shared, (FIRST, SECOND))


def journal(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """How often each piece was begun, and done."""
    lines = [line.split() for line in folder.with_name("journal").read_text().splitlines()]
    begun, ended = (Counter(name for what, name in lines if what == which) for which in ("begun", "done"))
    return begun, ended


@contextmanager
def meanwhile(folder: Path, act: Callable[[], object], after: int = 5) -> Iterator[None]:
    """Within the block, something happens when so many pieces are there."""

    def wait() -> None:
        while sum(path.suffix == ".npz" for path in folder.glob("*")) < after:
            time.sleep(0.02)
        act()

    thread = Thread(target=wait, daemon=True)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()


def test_ray_finds_what_one_process_finds_though_a_worker_is_killed(
    one_machine: None, whole: Any, tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 20
        while not killed and time.monotonic() < deadline:
            for worker, _ in workers_in(tmp_path / "run"):
                if worker.host and worker.piece and worker.pid != os.getpid():
                    os.kill(worker.pid, signal.SIGKILL)
                    killed.append(worker.pid)
                    return
            time.sleep(0.05)

    with meanwhile(tmp_path / "run", kill):
        assert (done(tmp_path / "run", 2, 0.1), pieces(tmp_path / "run")) == whole
    assert len(killed) == 1
    begun, _ = journal(tmp_path / "run")
    assert sum(begun.values()) <= FIRST + SECOND + 1, "nothing is done twice but the piece of the dead worker"
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")) == [
        ".lock",
        ".workers",
    ]


# -- three nodes ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(importable: None) -> Iterator[Any]:
    """Three nodes on this machine, the first of them without a processor for workers."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **SMALL})
    for _ in range(2):
        made.add_node(num_cpus=1, **SMALL)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def connected(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    return cluster


@pytest.mark.slow
def test_a_node_that_is_lost_costs_the_pieces_of_its_workers(connected: Any, whole: Any, tmp_path: Path) -> None:
    lost = sorted(connected.worker_nodes, key=str)[0]

    def lose() -> None:
        connected.remove_node(lost, allow_graceful=False)
        connected.add_node(num_cpus=1, **SMALL)

    with meanwhile(tmp_path / "run", lose):
        assert (done(tmp_path / "run", 2, 0.2), pieces(tmp_path / "run")) == whole
    begun, _ = journal(tmp_path / "run")
    assert sum(begun.values()) <= FIRST + SECOND + 1


DRIVER = """
import sys
from pathlib import Path
from cluster.test_ray import done
print(done(Path(sys.argv[1]), 2, float(sys.argv[2])))
"""


def _driver(folder: Path, pause: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), str(pause)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_killed_driver_leaves_a_run_that_the_next_one_ends(connected: Any, whole: Any, tmp_path: Path) -> None:
    driver = _driver(tmp_path / "run", 0.2)
    with meanwhile(tmp_path / "run", driver.kill):
        driver.wait()
    there = len(read(tmp_path / "run").pieces)
    assert 5 <= there < FIRST + SECOND
    assert (done(tmp_path / "run", 2), pieces(tmp_path / "run")) == whole
    begun, _ = journal(tmp_path / "run")
    assert sum(begun.values()) <= FIRST + SECOND + 2


@pytest.mark.slow
def test_of_two_drivers_on_one_folder_one_is_refused(connected: Any, whole: Any, tmp_path: Path) -> None:
    refused: list[str] = []

    def second() -> None:
        other = _driver(tmp_path / "run", 0.0)
        refused.append(other.communicate()[1])

    with meanwhile(tmp_path / "run", second):
        assert (done(tmp_path / "run", 2, 0.4), pieces(tmp_path / "run")) == whole
    assert "is in use" in refused[0]
    begun, ended = journal(tmp_path / "run")
    assert set(begun.values()) == set(ended.values()) == {1}


@pytest.mark.slow
def test_a_full_disk_is_said_and_nothing_is_lost(one_machine: None, whole: Any, tmp_path: Path) -> None:
    """A file system of 256 kB, where this machine lets us make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (tmp_path / "disk" / "filler").write_bytes(bytes(60_000))
        words = counting.words(tmp_path / "journal")
        with (
            Run.open(disk / "run", counting.question()) as run,
            pytest.raises(BadRun) as error,
            on_ray(run, counting.command, words, 2, "cpu") as shared,
        ):
            stages(shared, (FIRST, SECOND))
        assert os.strerror(errno.ENOSPC) in str(error.value)
        (disk / "filler").unlink()
        with (
            Run.open(disk / "run", counting.question()) as run,
            on_ray(run, counting.command, words, 2, "cpu") as shared,
        ):
            assert stages(shared, (FIRST, SECOND)) == whole[0]
        assert pieces(disk / "run") == whole[1]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# -- whole commands ---------------------------------------------------------------------------------------------------------


def act(words: Sequence[str]) -> None:
    """A command that leaves a file beside the one that it needs, or fails."""
    needed, made = map(Path, words)
    if needed.name and not needed.exists():
        raise BadRun(f"{needed.name} is not there; make it first.")
    print("made by", os.getpid())
    made.touch()


@pytest.mark.slow
def test_commands_of_a_reproduction_run_on_ray_after_what_they_need(one_machine: None, tmp_path: Path) -> None:
    a, b, c, d = (str(tmp_path / name) for name in "abcd")
    steps = [Step("b", (a, b), ("a",)), Step("a", ("", a)), Step("d", (c, d)), Step("late", (d, b), ("d",))]
    with tasks_on_ray(lambda words, log: logged(act, Step("", tuple(words)), log), tmp_path, "cpu") as (size, begin):
        outcome = runner.run(
            steps,
            tmp_path / "out",
            act,
            workers=size,
            say=lambda text: None,
            start=lambda step, log: begin(step.words, step.name, log),
        )
    assert size == 2
    assert outcome.done == ("b", "a")
    assert outcome.failed == {"d": "c is not there; make it first."}
    assert outcome.waiting == {"late": "d"}
    logs = [(tmp_path / "out" / "logs" / f"{name}.txt").read_text().splitlines() for name in "ab"]
    assert [lines[0] for lines in logs] == [f"$ headcount '' {a}", f"$ headcount {a} {b}"]
    assert len({lines[1] for lines in logs} | {f"made by {os.getpid()}"}) == 3, "each in a process of its own"
