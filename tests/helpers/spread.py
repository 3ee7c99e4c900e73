"""Models that do not lie in one piece: device maps, and two processes that hold a model together."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import headcount as hc
from headcount.data.tasks import Task
from headcount.errors import HeadcountError
from headcount.importance.checkpointing import checkpointing
from headcount.interventions import Fill
from helpers import zoo
from helpers.processes import forked
from helpers.small_models import loss_of, spread

GRADIENTS = ("taylor", "fisher")
WRITTEN = ("wanda", "flap", "activation", "magnitude")


def in_halves(model: nn.Module, first: str = "cpu", second: str = "disk") -> dict[str, str]:
    """A device map: every other layer on the first device, all else on the second, where tied weights are together."""
    layers = [f"{stack.path}.{n}" for stack in hc.find(model).stacks for n in range(len(stack))]
    above = {path[:end] for path in layers for end in range(len(path)) if path[end] == "."}
    tops = [path for path, _ in model.named_modules() if path and path not in above]
    tops = [path for path in tops if path.rpartition(".")[0] in ("", *above)]
    return {path: first if path in layers and layers.index(path) % 2 == 0 else second for path in tops}


def doubled(inputs: dict[str, Tensor]) -> Task:
    """A task of four examples: those of a batch, and the same turned around."""
    rows = {name: torch.cat([value, value.flip(0)]) for name, value in inputs.items()}
    return hc.custom_task([rows], loss=loss_of)


def measured(model: nn.Module, inputs: dict[str, Tensor], criteria: bool = True) -> dict[str, np.ndarray]:
    """What the verbs that change nothing say about a model of the zoo."""
    return {**in_passes(model, inputs, criteria), **by_gradients(model, inputs, criteria)}


def in_passes(model: nn.Module, inputs: dict[str, Tensor], criteria: bool = True) -> dict[str, np.ndarray]:
    """What they say without a gradient."""
    task, anatomy = doubled(inputs), hc.find(model)
    attention, stack = anatomy.heads[-1], anatomy.stacks[-1]
    both = {site.name: [0, len(site) - 1] for site in (attention, *anatomy.neurons[-1:])}
    out: dict[str, np.ndarray] = {"whole": zoo.output(model, inputs).float().cpu().numpy()}

    def masked(name: str, units: Any, **how: Any) -> None:
        with hc.masked(model, units, **how):
            out[name] = zoo.output(model, inputs).float().cpu().numpy()

    masked("masked", both)
    masked("masked layer", f"{stack.name}:{stack.ids[-1]}")
    masked("filled", both, fill={attention.name: torch.linspace(0, 1, len(attention) * attention.width)})
    out["ablated one by one"] = hc.ablate(model, task, replay=False).rows
    means = Fill("mean", task)
    out["ablated, means instead"] = hc.ablate(model, task, "attentions", fill=means, replay=False).rows
    out["size of layers"] = np.asarray(hc.score(model, task, by="magnitude", units="layers").values)
    for by in WRITTEN if criteria else ("wanda",):
        out[by] = np.asarray(hc.score(model, task, by=by, units=_kinds(model)).values)
    if criteria:
        for by in ("confidence", "entropy"):
            out[by] = np.asarray(hc.score(model, task, by=by).values)
        influence = hc.score(model, task, by="block-influence", units=f"{_kinds(model)},layers")
        out["block-influence"] = np.asarray(influence.values)
    return out


def by_gradients(model: nn.Module, inputs: dict[str, Tensor], criteria: bool = True) -> dict[str, np.ndarray]:
    """What they say with gradients, by which replay sees which positions are read."""
    task, anatomy = doubled(inputs), hc.find(model)
    sites = (anatomy.heads[-1], *anatomy.neurons[-1:])
    gates = {site.name: torch.linspace(0.2, 1, len(site)).requires_grad_() for site in sites}
    with hc.gated(model, gates):
        spread(zoo.judged(model(**inputs)).cpu()).sum().backward()
    out = {"gradients of gates": np.concatenate([gate.grad.numpy() for gate in gates.values()])}
    model.zero_grad(set_to_none=True)
    out["ablated"] = hc.ablate(model, task).rows
    out["layers"] = np.asarray(hc.score(model, task, units="layers").values)
    for by in GRADIENTS if criteria else GRADIENTS[:1]:
        out[by] = np.asarray(hc.score(model, task, by=by, units=_kinds(model)).values)
    if criteria:
        with checkpointing():
            out["checkpointed"] = np.asarray(hc.score(model, task, units=_kinds(model)).values)
    return out


def _kinds(model: nn.Module) -> str:
    return "heads,neurons" if hc.find(model).neurons else "heads"


def refused(work: dict[str, Callable[[], object]]) -> dict[str, str]:
    """What each of these says when it is refused; empty where it is not."""
    out = {}
    for name, one in work.items():
        try:
            one()
            out[name] = ""
        except HeadcountError as error:
            out[name] = f"{type(error).__name__}: {error}"
    return out


def together(work: Callable[[int], object], folder: Path, count: int = 2) -> None:
    """So many forked processes that know of each other as a launcher would have it do this, each with its rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def mine(rank: int) -> Callable[[], None]:
        def run() -> None:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            work(rank)
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
            sys.stdout.flush()

        return run

    started = [forked(mine(rank), folder / f"rank-{rank}") for rank in range(count)]
    try:
        for rank, process in enumerate(started):
            process.join(240)
            assert process.exitcode == 0, (folder / f"rank-{rank}.err").read_text()[-3000:]
    finally:
        for process in started:
            process.kill()


def kept(folder: Path, name: str, rank: int, values: dict[str, np.ndarray], said: dict[str, str]) -> None:
    """Write what a process found."""
    np.savez(folder / f"{name}-{rank}.npz", **values)
    (folder / f"{name}-{rank}.json").write_text(json.dumps(said))
