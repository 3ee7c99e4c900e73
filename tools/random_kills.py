"""Kill workers, nodes and drivers at random moments, many times, and see whether anything is lost or done twice.

    python tools/random_kills.py ray 50      # three nodes of Ray on this machine; needs headcount[ray]
    python tools/random_kills.py parts 50    # three processes with --part

The job is pieces that are drawn by seed, in two stages. At the end every piece has the bytes of one process that nobody
killed, and pieces that were begun more than once are counted against the kills that explain them.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from helpers import counting  # noqa: E402

from headcount.cluster.on_ray import on_ray  # noqa: E402
from headcount.cluster.parts import Part, PartEnds, Share  # noqa: E402
from headcount.cluster.presence import workers_in  # noqa: E402
from headcount.runs import Run  # noqa: E402

MEMORY = 80 * 2**20  # bytes of object store per node
PARTS = ("1/2", "1/2", "2/2")


def main() -> None:
    """Do the job in a new folder, with kills, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("ray", "parts", "driver", "part"))
    parser.add_argument("words", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pieces", type=int, nargs=2, default=(900, 300))
    parser.add_argument("--pause", type=float, default=0.1, help="seconds per piece")
    given = parser.parse_args()
    if given.engine == "driver":
        driver(Path(given.words[0]), given)
    elif given.engine == "part":
        part(Path(given.words[0]), given.words[1], given)
    else:
        with tempfile.TemporaryDirectory() as folder:
            report(given, Path(folder), int(given.words[0]) if given.words else 50)


def report(given: argparse.Namespace, folder: Path, kills: int) -> None:
    """The job with so many kills, and what became of it."""
    print(f"{sum(given.pieces)} pieces in two stages, {kills} kills, seed {given.seed}", flush=True)
    with Run.open(folder / "whole", counting.question(*given.pieces)) as run:
        counting.stages(run, given.pieces)
    start = time.monotonic()
    done = (on_three_nodes if given.engine == "ray" else in_parts)(given, folder, kills)
    seconds = time.monotonic() - start
    with Run.open(folder / "run", counting.question(*given.pieces)):  # as `gather` does: drafts of the dead go
        pass
    same = counting.pieces(folder / "run") == counting.pieces(folder / "whole")
    lines = [line.split() for line in (folder / "journal").read_text().splitlines()]
    begun, ended = (Counter(name for what, name in lines if what == which) for which in ("begun", "done"))
    print(f"kills: {', '.join(f'{count} {kind}' for kind, count in sorted(done.items()))}; {seconds:.0f} s")
    print(f"pieces begun {sum(begun.values())}, of {len(begun)}; begun again {sum(begun.values()) - len(begun)}")
    print(f"pieces computed to the end more than once {sum(count > 1 for count in ended.values())}")
    print(f"begun three times or more {sum(count > 2 for count in begun.values())}")
    print(f"same bytes as one process: {'yes' if same else 'NO'}; left over: {sorted(set(left(folder / 'run')))}")
    raise SystemExit(not same)


def left(folder: Path) -> list[str]:
    """Claims and drafts that are still there."""
    return [path.name for path in [*folder.glob(".claims/*"), *folder.glob(".*.draft")]]


# -- Ray ------------------------------------------------------------------------------------------------------------------


def driver(folder: Path, given: argparse.Namespace) -> None:
    """The process that asks, which may be killed."""
    words = counting.words(folder.with_name("journal"), given.pause, given.pieces)
    with (
        Run.open(folder, counting.question(*given.pieces)) as run,
        on_ray(run, counting.command, words, 2, "cpu") as shared,
    ):
        counting.stages(shared, given.pieces)


def on_three_nodes(given: argparse.Namespace, folder: Path, kills: int) -> Counter[str]:
    """A head without workers and two nodes with one each; what was killed."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    )
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=MEMORY) for _ in range(2)]
    os.environ["RAY_ADDRESS"] = cluster.address
    draw, killed, before = random.Random(given.seed), Counter[str](), 0
    asking = again(given, "driver", folder)
    while asking.poll() != 0:
        if asking.poll() is not None:
            raise SystemExit(f"the driver failed with {asking.returncode}")
        time.sleep(draw.uniform(0.3, 2.0))
        there = len(counting.pieces(folder / "run"))
        if sum(killed.values()) == kills or there == before or asking.poll() is not None:
            continue  # a kill hits work: there is a new piece since the last one
        kind = draw.choices(["worker", "node", "driver"], [6, 2, 2])[0]
        if kind == "worker":
            alive = busy(folder / "run", asking)
            if not alive or not kill(draw.choice(alive)):
                continue
        elif kind == "node":
            cluster.remove_node(nodes.pop(draw.randrange(2)), allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=1, object_store_memory=MEMORY))
        else:
            asking.kill()
            asking.wait()
            asking = again(given, "driver", folder)
        killed[kind] += 1
        before = len(counting.pieces(folder / "run"))
        print(f"{sum(killed.values())} {kind}, {len(counting.pieces(folder / 'run'))} pieces", flush=True)
    cluster.shutdown()
    return killed


def busy(folder: Path, asking: subprocess.Popen[Any]) -> list[int]:
    """The processes of workers that compute, when there are some; none if the driver ends first."""
    while asking.poll() is None:
        found = [w.pid for w, _ in workers_in(folder) if w.host and w.piece and w.pid != asking.pid]
        if found:
            return found
        time.sleep(0.1)
    return []


# -- parts ----------------------------------------------------------------------------------------------------------------


def part(folder: Path, text: str, given: argparse.Namespace) -> None:
    """A process with a part, which may be killed."""
    did = counting.noting(folder.with_name("journal"), given.pause)
    with Part.shared(folder, counting.question(*given.pieces), Share.read(text)) as run:
        try:
            counting.stages(run, given.pieces, did)
        except PartEnds as end:
            raise SystemExit(3) from end


def in_parts(given: argparse.Namespace, folder: Path, kills: int) -> Counter[str]:
    """Three processes, two of them with the same part; what was killed."""
    draw, killed = random.Random(given.seed), Counter[str]()
    working = [again(given, "part", folder, text) for text in PARTS]
    while any(process.poll() != 0 for process in working):
        time.sleep(draw.uniform(0.2, 1.5))
        for number, process in enumerate(working):
            if process.poll() not in (None, 0):  # killed, or nobody was at work on what it needs
                working[number] = again(given, "part", folder, PARTS[number])
        alive = [process for process in working if process.poll() is None]
        if alive and sum(killed.values()) < kills:
            killed["part"] += kill(draw.choice(alive).pid)
    return killed


def again(given: argparse.Namespace, role: str, folder: Path, *more: str) -> subprocess.Popen[Any]:
    """A new process of this job."""
    sizes = ["--pieces", *map(str, given.pieces), "--pause", str(given.pause)]
    return subprocess.Popen([sys.executable, __file__, role, str(folder / "run"), *more, *sizes])


def kill(pid: int) -> bool:
    """Kill a process at once; whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
