"""What sharing out costs: throughput against the ideal, overhead per piece, and a simulated cluster of 1,000 workers.

python benchmarks/cluster.py workers            # needs headcount[ray]: 1 and 2 workers, pieces that wait and pieces that compute
python benchmarks/cluster.py overhead           # pieces that take no time
python benchmarks/cluster.py simulated FOLDER   # 100,000 pieces, 1,000 workers that only answer; FOLDER: the disk to try
python benchmarks/cluster.py parts FOLDER       # the same with --part k/1000, one part after the other
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests"), str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
from helpers import counting  # noqa: E402

from headcount.cluster import serving  # noqa: E402
from headcount.cluster.crew import Crew, CrewRun  # noqa: E402
from headcount.cluster.parts import Part, PartEnds, Share  # noqa: E402
from headcount.cluster.presence import Present, Worker, workers_in  # noqa: E402
from headcount.cluster.serving import DONE, About, Answer  # noqa: E402
from headcount.runs import Run, independent, read  # noqa: E402

ROWS = {"rows": np.zeros((73, 8, 2), np.float32)}  # a piece of an ablation of 72 heads, on 8 examples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("workers", "overhead", "simulated", "parts"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--pieces", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=1000, help="workers, or parts")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        {"workers": workers, "overhead": overhead, "simulated": simulated, "parts": parts}[given.what](
            given, Path(folder)
        )


# -- a few workers, really -----------------------------------------------------------------------------------------------


def sweep(words: Sequence[str]) -> None:
    """The command of a worker: an ablation of a model of 4 layers with 8 heads, a batch a piece."""
    asker = serving.server()
    assert asker is not None
    ablation = prepared(int(words[0]))
    with asker.run({"command": "sweep", "pieces": int(words[0])}) as run:
        ablation(run)
        run.conclude()


def prepared(pieces: int) -> Any:
    import torch
    import transformers

    import headcount as hc

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 512}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=1000, **sizes)).eval()
    batch = {"input_ids": torch.randint(0, 1000, (8, 64)), "labels": torch.randint(0, 2, (8,))}
    several = 64 // 33  # batches that one file holds
    task = hc.custom_task([batch] * pieces * several, loss=lambda model, batch: model(**batch).logits[:, 0])
    return lambda run: hc.ablate(model, task, run=run)


def workers(given: argparse.Namespace, folder: Path) -> None:
    """Pieces that wait half a second, which any machine does beside each other; and an ablation, which needs processors."""
    count = 12
    with ray_here(2):
        for size in (1, 2):
            rates = []
            for repeat in range(given.repeats):
                words = counting.words(folder / "journal", 0.5, (count, 0))
                rates.append(
                    timed(folder / f"wait-{size}-{repeat}", counting.question(count, 0), counting.command, words, size)
                )
            ideal = count * 0.5 / size
            say(f"{count} pieces that wait 0.5 s, {size} workers", rates, ideal)
        alone = []
        for repeat in range(given.repeats):
            with Run.open(folder / f"alone-{repeat}", {"command": "sweep", "pieces": count}) as run:
                ablation = prepared(count)
                start = time.perf_counter()
                ablation(run)
                alone.append(time.perf_counter() - start)
        print(f"ablation, {len(read(folder / 'alone-0').pieces)} pieces, one process: {statistics.median(alone):.2f} s")
        for size in (1, 2):
            seconds = [
                timed(folder / f"sweep-{size}-{n}", {"command": "sweep", "pieces": count}, sweep, (str(count),), size)
                for n in range(given.repeats)
            ]
            say(f"ablation, {size} workers", seconds, statistics.median(alone) / size)


def say(what: str, seconds: list[float], ideal: float) -> None:
    middle = statistics.median(seconds)
    print(f"{what}: {middle:.2f} s, ideal {ideal:.2f} s: {ideal / middle:.0%} of the ideal throughput", flush=True)


@contextmanager
def ray_here(processors: int) -> Any:
    import ray

    ray.init("local", num_cpus=processors, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def timed(folder: Path, question: dict[str, Any], command: Any, words: Sequence[str], size: int) -> float:
    """The seconds from when all workers are ready until all pieces are there."""
    from headcount.cluster.on_ray import on_ray

    with Run.open(folder, question) as run, on_ray(run, command, words, size, "cpu") as shared:
        while sum(bool(member.facts.host) for member in shared.crew.members) < size:
            member, _, future = shared.crew.events.get()
            shared.crew._settled(member, future, run)
        start = time.perf_counter()
        if command is sweep:
            prepared(int(words[0]))(shared)
        else:
            counting.stages(shared, question["pieces"])
        return time.perf_counter() - start


def overhead(given: argparse.Namespace, folder: Path) -> None:
    """Milliseconds per piece that takes no time: in one process, as a part, and asked of one worker and of two."""
    count = 200
    question = counting.question(count, 0)

    def shown(what: str, work: Any) -> None:
        seconds = []
        for repeat in range(given.repeats):
            start = time.perf_counter()
            passed = work(folder / f"{what.replace(' ', '-')}-{repeat}")
            seconds.append(passed or time.perf_counter() - start)
        print(f"{what}: {1000 * statistics.median(seconds) / count:.2f} ms per piece", flush=True)

    def one(folder: Path) -> None:
        with Run.open(folder, question) as run:
            counting.stages(run, (count, 0))

    def part(folder: Path) -> None:
        with Part.shared(folder, question, Share(1, 1)) as run:
            counting.stages(run, (count, 0))

    shown("one process", one)
    shown("a part", part)
    with ray_here(2):
        for size in (1, 2):
            words = counting.words(folder / "journal", 0.0, (count, 0))
            shown(
                f"{size} on ray",
                lambda place, size=size, words=words: timed(place, question, counting.command, words, size),
            )


# -- many workers, simulated -----------------------------------------------------------------------------------------------


class Answering:
    """An engine whose workers have every piece ready as soon as they are asked: what is left is what the asking process does."""

    def __init__(self, folder: Path, shared: bool) -> None:
        from headcount.runs import _packed

        self.questions: SimpleQueue[Any] = SimpleQueue()
        self.folder, self.shared, self.pack = folder, shared, _packed
        Thread(target=self._answer, daemon=True).start()

    def start(self, number: int) -> Any:
        return object()

    def about(self, worker: Any) -> Future[About]:
        future: Future[About] = Future()
        future.set_result(About("node", 1, self.shared))
        return future

    def piece(self, worker: Any, name: str) -> Future[Answer]:
        future: Future[Answer] = Future()
        self.questions.put((name, future))
        return future

    def _answer(self) -> None:
        while True:
            name, future = self.questions.get()
            content = bytes(self.pack(name, ROWS))
            if self.shared:  # workers write on their own machines; here it costs this one a file
                (self.folder / f"{name}.npz").write_bytes(content)
            future.set_result(Answer(DONE, content=None if self.shared else content, seconds=1.0))

    def give(self, worker: Any, name: str, content: bytes) -> None:
        """Nothing."""

    def end(self, worker: Any) -> None:
        """Nothing."""


def names_of(count: int) -> list[str]:
    return [f"ablation-{number:06d}" for number in range(count)]


def nothing() -> dict[str, Any]:
    return ROWS


def simulated(given: argparse.Namespace, folder: Path) -> None:
    """The asking process with many workers: pieces a second, memory, and what looking at the folder costs."""
    for shared in (True, False):
        place = folder / ("shared" if shared else "sent")
        with Run.open(place, {"command": "simulated"}) as run:
            me = Present(run.folder, Worker("driver"))
            crew = Crew(Answering(run.folder, shared), given.size, me)
            asking = CrewRun(**vars(run), crew=crew)
            before, start = memory(), time.perf_counter()
            found = asking.independent((name, nothing) for name in names_of(given.pieces))
            seconds = time.perf_counter() - start
            print(
                f"{'written by workers' if shared else 'sent back'}: {given.pieces / seconds:,.0f} pieces a second",
                flush=True,
            )
            print(f"  memory of the asking process: {memory() - before:+.0f} MB", flush=True)
            start = time.perf_counter()
            total = sum(float(arrays["rows"].sum()) for arrays in found)
            print(f"  reading all: {1000 * (time.perf_counter() - start) / given.pieces:.2f} ms a piece ({total:.0f})")
            start = time.perf_counter()
            workers_in(run.folder)
            count = len(read(run.folder).pieces)
            print(
                f"  headcount status, {count:,} pieces and {given.size:,} workers: {time.perf_counter() - start:.2f} s"
            )
            me.go()


def parts(given: argparse.Namespace, folder: Path) -> None:
    """Parts in one folder: a share's time when the folder is empty, and as it fills; the other parts' pieces are put there."""
    from headcount.runs import _packed

    place, names = folder / "run", names_of(given.pieces)
    jobs = [(name, nothing) for name in names]
    looked_at = (1, given.size // 10, given.size // 2, given.size)
    for number in range(1, given.size + 1):
        if number not in looked_at:
            for name in names[number - 1 :: given.size]:
                (place / f"{name}.npz").write_bytes(_packed(name, ROWS))
            continue
        start = time.perf_counter()
        with Part.shared(place, {"command": "simulated"}, Share(number, given.size)) as run, suppress(PartEnds):
            independent(run, jobs)
        seconds = time.perf_counter() - start
        print(f"part {number}: {1000 * seconds * given.size / given.pieces:.2f} ms a piece", flush=True)
    print(f"{len(read(place).pieces):,} pieces; memory {memory():.0f} MB")


def memory() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
