"""Ray as the engine of a crew: one actor per device, on a running cluster or on this machine.

Ray is asked for places and starts, watches and ends processes; which pieces there are and where they are kept is ours.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import BadRun
from ..runs import Run
from .crew import Crew, CrewRun, Dead
from .presence import Present, Worker
from .serving import About, Answer, Command, Order, Server

MARK = ".here-"  # begins the name of the file by which workers see that they share the folder


class HeadcountWorker(Server):
    """A server as Ray shows it."""


class Ray:
    """Actors that serve an order, each with a processor, or a GPU where that is asked for."""

    def __init__(self, command: Command, order: Order, gpus: int, title: str) -> None:
        import ray

        self._ray, self._made = ray, 0
        self._order, self._command = ray.put(order), command
        self._title, self._token = title, secrets.token_hex(3)
        resources = {"num_cpus": 1, "num_gpus": gpus}
        self._actor = ray.remote(**resources)(HeadcountWorker)  # type: ignore[call-overload]

    def start(self, number: int) -> Any:
        """A new actor; it waits until a node has a place for it."""
        self._made += 1
        name = f"{self._title}, worker {number} ({self._token}-{self._made})"
        return self._actor.options(name=name, max_restarts=0).remote(self._command, self._order)

    def about(self, worker: Any) -> Future[About]:
        """Where the actor is."""
        return self._future(worker.about.remote())

    def piece(self, worker: Any, name: str) -> Future[Answer]:
        """Ask for a piece, under its name on the dashboard."""
        return self._future(worker.piece.options(name=name).remote(name))

    def give(self, worker: Any, name: str, content: bytes) -> None:
        """Hand over a piece."""
        worker.give.remote(name, content)

    def end(self, worker: Any) -> None:
        """End an actor."""
        with suppress(Exception):  # it is dead, or all of Ray is
            self._ray.kill(worker)

    def _future(self, reference: Any) -> Future[Any]:
        """What a call gives, or `Dead` where Ray lost the actor or its answer."""
        out: Future[Any] = Future()
        errors = self._ray.exceptions

        def settle(found: Future[Any]) -> None:
            error = found.exception()
            if error is None:
                out.set_result(found.result())
            elif isinstance(error, errors.RayTaskError) or not isinstance(error, errors.RayError):
                out.set_exception(error)
            else:
                out.set_exception(Dead(last_line(error)))

        reference.future().add_done_callback(settle)
        return out


@contextmanager
def on_ray(
    run: Run, command: Command, words: Sequence[str], size: int | None = None, device: str | None = None
) -> Iterator[CrewRun]:
    """Within the block, the run with a crew of actors that do the same command, one for each device of the cluster."""
    mark = run.folder / f"{MARK}{secrets.token_hex(8)}"
    order = Order(tuple(words), os.getcwd(), str(run.folder.resolve()), mark.name, dict(run.question))
    with connected() as resources:
        kind, room = places(resources, device)
        if room < 1:
            raise BadRun(f"The cluster has no {kind} for a worker; see `ray status`, or choose another --device.")
        size = size or room
        engine = Ray(command, order, int(kind == "GPU"), f"headcount {_title(run.question)}")
        me = Present(run.folder, Worker(f"the process that asks {size} workers on Ray", state="computing"))
        try:
            mark.touch()
            crew = Crew(engine, size, me)
            try:
                yield CrewRun(**vars(run), crew=crew)
            finally:
                crew.end()
        finally:
            mark.unlink(missing_ok=True)
            me.go()


@contextmanager
def connected() -> Iterator[Mapping[str, float]]:
    """Within the block, a connection to Ray, and what its nodes have: the cluster of RAY_ADDRESS, or one of this machine."""
    try:
        import ray
    except ImportError:
        raise BadRun("Ray is not installed here: pip install 'headcount[ray]' (on all nodes of a cluster).") from None
    if ray.is_initialized():  # by whoever calls us
        yield ray.cluster_resources()
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address, namespace="headcount", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise BadRun(f"I cannot reach the Ray cluster {address} ({str(error)[:160]}); see `ray status`.") from None
    try:
        yield ray.cluster_resources()
    finally:
        ray.shutdown()


def places(resources: Mapping[str, float], device: str | None) -> tuple[str, int]:
    """What a worker takes, a GPU where there are some and no other device was asked for, and how many a cluster has."""
    kind = "CPU" if device == "cpu" or (device is None and resources.get("GPU", 0) < 1) else "GPU"
    return kind, int(resources.get(kind, 0))


def _title(question: Mapping[str, Any]) -> str:
    """What people call the run: its command and its model."""
    model = question.get("model")
    name = model.get("name") if isinstance(model, dict) else model
    return " ".join(str(word) for word in (question.get("command"), Path(str(name or "")).name) if word)


def last_line(error: BaseException) -> str:
    """The last line of what Ray says, which names the cause."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:160]
