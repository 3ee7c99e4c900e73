"""One step of training, exactly the same in one process or in several, whole or in parts.

A step is the gradient of the mean loss over all targets of its batch, wherever they are computed, the optimiser's step,
and the gates' step after it. It depends on the weights, the seed and its number, and on nothing else.
"""

from __future__ import annotations

import atexit
import hashlib
import math
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import BadData, BadMeasure, NotFinite, OutOfMemory, Refused
from ..evaluation.evaluator import evaluate, is_out_of_memory, to_device
from .loss import batch_loss, targets_in
from .recipe import Recipe, batches
from .state import TrainableGates

if TYPE_CHECKING:
    from ..data.tasks import Task

TOGETHER = 2**25  # numbers of gradients that are sent to the other processes at a time

SPLITTING = ("DEEPSPEED", "FSDP", "MEGATRON_LM")  # what launchers can do to a model besides copying it
# where launchers say how many processes there are
COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
PATIENCE = timedelta(hours=6)  # of processes that wait while the first one measures


class Processes(NamedTuple):
    """The processes that train together: how many they are, and which of them this one is."""

    world: int
    rank: int


def processes(device: torch.device) -> Processes:
    """The processes that a launcher started, connected to each other; where it started none, this one alone.

    accelerate's `PartialState` knows the launchers and connects the processes. Its `Accelerator` does not fit: it holds one
    precision for the whole process, which is the caller's, and averages gradients by a wrapper around the model.
    """
    for kind in SPLITTING:
        if os.environ.get(f"ACCELERATE_USE_{kind}", "false").lower() == "true":
            raise Refused(f"Training under {kind} would split the model; launch with plain multi-GPU or multi-CPU.")
    launched = any(int(os.environ.get(name, "1")) > 1 for name in COUNTS)
    if not launched and not torch.distributed.is_initialized():
        return Processes(1, 0)
    from accelerate import PartialState

    connected = torch.distributed.is_initialized()
    state = PartialState(cpu=device.type == "cpu", timeout=PATIENCE)
    if not connected and torch.distributed.is_initialized():
        atexit.register(_disconnect)
    if state.num_processes > 1 and device.type != "cpu" and device != state.device:
        raise Refused(
            f"This process was given {state.device} and the model is on {device}; move the model there first."
        )
    return Processes(state.num_processes, state.process_index)


def _disconnect() -> None:
    """End the connection while Python still runs: threads of gloo that outlive it may abort the process at its very end."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@dataclass(eq=False)
class Work:
    """One call of `train`: what was asked, and how far it has come."""

    root: nn.Module
    task: Task
    recipe: Recipe
    processes: Processes
    device: torch.device
    trained: list[nn.Parameter]
    gates: TrainableGates | None
    teacher: nn.Module | None
    done: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    lost: float = 0.0  # summed over the targets since the last entry of the history
    targets: int = 0
    before: float = 0.0  # seconds of the trainings that this one goes on from
    since: float = field(default_factory=monotonic)
    order: tuple[int, list[tuple[int, ...]]] = (-1, [])

    def __post_init__(self) -> None:
        size = self.recipe.batch_size
        groups = [self.task.size] if self.task.groups is None else [len(group) for group in self.task.groups]
        self.per_epoch = sum(math.ceil(group_size / size) for group_size in groups)
        self.steps = self.recipe.steps or math.ceil(self.recipe.epochs * self.per_epoch)
        self.world, self.rank = self.processes
        self.main = self.rank == 0
        self.scaler = torch.amp.GradScaler(self.device.type) if self.recipe.precision == "fp16" else None

    @cached_property
    def optimizer(self) -> torch.optim.AdamW | None:
        """AdamW; biases and norms do not decay."""
        matrices = [parameter for parameter in self.trained if parameter.dim() > 1]
        vectors = [parameter for parameter in self.trained if parameter.dim() <= 1]
        groups = [
            {"params": some, "weight_decay": decay}
            for some, decay in ((matrices, self.recipe.weight_decay), (vectors, 0.0))
            if some
        ]
        if not groups:
            return None
        return torch.optim.AdamW(groups, lr=self.recipe.lr, betas=self.recipe.betas, fused=self.device.type == "cuda")

    def autocast(self) -> AbstractContextManager[Any]:
        """The block in which matrices are multiplied in the precision of the recipe."""
        dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        if self.recipe.precision == "no":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=dtypes[self.recipe.precision])

    @property
    def epoch_ends(self) -> bool:
        """Whether the last step was that of an epoch, or of all."""
        return self.done % self.per_epoch == 0 or self.done == self.steps

    @property
    def must_note(self) -> bool:
        """Whether the history gets an entry after this step."""
        return self.epoch_ends or self.done % max(1, self.steps // 100) == 0

    @property
    def seconds(self) -> float:
        """How long it has taken, with what was done before it was resumed."""
        return self.before + monotonic() - self.since

    def share(self) -> list[tuple[int, ...]]:
        """The examples of this step that this process takes, in the parts that it takes one after the other."""
        epoch, place = divmod(self.done, self.per_epoch)
        if self.order[0] != epoch:
            self.order = (epoch, batches(self.task, self.recipe.batch_size, self.recipe.seed, epoch))
        mine = self.order[1][place][self.rank :: self.world]
        size = max(1, math.ceil(len(mine) / self.recipe.accumulate))
        return [mine[start : start + size] for start in range(0, len(mine), size)]

    def note(self, dev: Task | None) -> None:
        """Add an entry to the history."""
        measured = None
        if dev is not None and self.epoch_ends:
            measured = agreed(self, _value(self.root, dev) if self.main else None)
        entry = {
            "step": self.done,
            "epoch": round(self.done / self.per_epoch, 4),
            "loss": self.lost / max(1, self.targets),
            "lr": self.recipe.lr_at(self.done - 1, self.steps),
            "open": None if self.gates is None else self.gates.expected(),
            "dev": measured,
        }
        self.history.append(entry)
        self.lost, self.targets = 0.0, 0


def _value(root: nn.Module, dev: Task) -> float | None:
    """The metric on other examples; None where it has no value, as a correlation of a model that says one thing only."""
    try:
        value = evaluate(root, dev).value
    except BadMeasure:
        return None
    return value if math.isfinite(value) else None


def agreed(work: Work, value: Any) -> Any:
    """What the first process has, in all of them."""
    if work.world == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def broadcast(work: Work) -> None:
    """Parameters and buffers as the first process has them, in all of them: new heads are drawn anew in each."""
    if work.world > 1:
        for tensor in (*work.root.parameters(), *work.root.buffers()):
            torch.distributed.broadcast(tensor.data, 0)


def safe_step(work: Work) -> None:
    """One step; where it does not fit into memory, that is said in a sentence."""
    try:
        _step(work)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        size, parts = work.recipe.batch_size, work.recipe.accumulate
        raise OutOfMemory(
            f"Training on a batch of {size} in {parts} part{'s' * (parts > 1)} does not fit into memory: use a smaller "
            f"batch size (--batch-size), or take it in more parts (--accumulate {2 * parts})."
        ) from None


def _step(work: Work) -> None:
    """One step of the optimiser, and of the gates; the mean over all targets is exact, however they are spread."""
    recipe, task, scaler = work.recipe, work.task, work.scaler
    parts = [(task.collate(numbers), len(numbers)) for numbers in work.share()]
    count = sum(targets_in(task, batch, examples) for batch, examples in parts)
    total = count if work.world == 1 else int(_summed(work, torch.tensor([float(count)], device=work.device)))
    _seed(recipe.seed, work.done, work.rank)
    lost = torch.zeros(2, device=work.device)  # the loss, and the targets it was summed over
    for batch, _ in parts:
        with work.autocast():
            loss, targets = batch_loss(
                work.root,
                task,
                to_device(batch, work.device),
                recipe.label_smoothing,
                work.teacher,
                recipe.distill,
                recipe.temperature,
            )
        lost += torch.stack([loss.detach(), targets.to(loss)])
        if loss.requires_grad:  # weights that are frozen, and gates that have settled, leave nothing to learn
            # gradients are averaged over the processes, and must be those of a mean over all targets
            mean = loss * (work.world / max(1, total))
            (mean if scaler is None else scaler.scale(mean)).backward()
        elif work.gates is None:
            raise Refused("The loss does not depend on anything that trains; look at freeze and at the task's loss.")
    norm = _averaged_and_clipped(work)
    lost = _summed(work, lost)
    loss_sum, target_count, length = torch.cat([lost, norm]).tolist()
    if not math.isfinite(loss_sum) or (scaler is None and not math.isfinite(length)):
        quantity = "loss" if not math.isfinite(loss_sum) else "gradient"
        wider = "" if recipe.precision == "no" else f", or a wider precision than {recipe.precision}"
        raise NotFinite(
            f"The {quantity} of step {work.done + 1} is not a number: use a lower learning rate than {recipe.lr:g}{wider}."
        )
    if int(target_count) != total:
        raise BadData(
            f"The task's goal has {int(target_count)} targets where its batch has {total} labels; it must have as many."
        )
    if work.optimizer is not None:
        for group in work.optimizer.param_groups:
            group["lr"] = recipe.lr_at(work.done, work.steps)
        if scaler is None:
            work.optimizer.step()
        else:
            scaler.step(work.optimizer)  # not, if a gradient overflowed
            scaler.update()
        work.optimizer.zero_grad(set_to_none=True)
    if work.gates is not None:
        work.gates.step()
    work.done += 1
    work.lost += loss_sum
    work.targets += total


def _summed(work: Work, values: Tensor) -> Tensor:
    if work.world > 1:
        torch.distributed.all_reduce(values)
    return values


def _averaged_and_clipped(work: Work) -> Tensor:
    """Average the gradients over the processes, clip them, and give their length.

    By hand and not by `DistributedDataParallel`, which `Accelerator.prepare` wraps around the model: a process may have no
    examples in a step, for which all others would wait for ever, and a layer that is dropped or masked no gradient. A
    parameter that has none anywhere keeps none, so that its optimiser leaves it alone.
    """
    if work.optimizer is None:
        return torch.zeros(1, device=work.device)
    if work.world > 1:
        has = _summed(
            work, torch.tensor([float(parameter.grad is not None) for parameter in work.trained], device=work.device)
        )
        some = [parameter for parameter, count in zip(work.trained, has.tolist(), strict=True) if count]
        for parameter in some:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for together in _bundles([parameter.grad for parameter in some if parameter.grad is not None]):
            flat = _summed(work, torch.cat([grad.flatten() for grad in together])) / work.world
            for grad, mean in zip(together, flat.split([grad.numel() for grad in together]), strict=True):
                grad.copy_(mean.view_as(grad))
    if work.scaler is not None:
        work.scaler.unscale_(work.optimizer)
    most = work.recipe.max_grad_norm or math.inf
    return nn.utils.clip_grad_norm_(work.trained, most).detach().to(work.device, torch.float32).view(1)


def _bundles(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients in bundles of some size, to be sent at once."""
    bundle: list[Tensor] = []
    for gradient in gradients:
        if bundle and sum(member.numel() for member in bundle) + gradient.numel() > TOGETHER:
            yield bundle
            bundle = []
        bundle.append(gradient)
    if bundle:
        yield bundle


def _seed(*numbers: int) -> None:
    """All random numbers from here on depend on these numbers alone."""
    drawn = int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:8]) >> 1
    torch.manual_seed(drawn)
    random.seed(drawn)
    np.random.seed(drawn % 2**32)
