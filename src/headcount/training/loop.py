"""`train`: a model trained in place on a task, in one process or in several, alone or while gates learn.

Nothing random lives from one step to the next: the order of the data comes from the seed and the epoch, everything else
from the seed and the step. So a training that was killed and resumed ends with the weights of one that was not.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from .. import progress
from ..errors import BadCheckpoint, NotFound, Refused
from ..evaluation.evaluator import device_of
from ..model import checkpoints as folders
from ..model.discovery import unwrap
from ..model.distributed.refusals import in_one_place
from ..model.equivalence import evaluating
from ..model.matrices import is_quantised
from . import state
from .loss import must_answer, must_be_trainable
from .low_rank import low_rank
from .recipe import Recipe
from .state import TrainableGates
from .step import Work, agreed, broadcast, processes, safe_step

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

AT_LEAST_EVERY = 120.0  # seconds between two states on the disk


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of a training: `history` has an entry per epoch and about every hundredth of the steps.

    An entry has the step, the epoch, the mean loss of a target since the entry before, the learning rate, the expected
    number of open gates ("open") and the metric on the other examples ("dev", at the end of an epoch), or None.
    """

    history: tuple[dict[str, Any], ...]
    steps: int
    seconds: float


def train(
    model: nn.Module,
    task: Task,
    recipe: Recipe = Recipe(),  # noqa: B008 (a frozen value)
    *,
    dev: Task | None = None,
    teacher: nn.Module | None = None,
    gates: TrainableGates | None = None,
    freeze: Iterable[str] = (),
    run: Run | None = None,
    name: str = "train",
    checkpoints: Path | None = None,
    save_every: int | None = None,
    tokenizer: Any = None,
) -> Trained:
    """Train the model in place with AdamW, by the mean loss over all targets of a batch; returns how it went.

    `freeze` names modules whose parameters stay as they are ("decoder", "embeddings", "encoder.layer.0"), shared ones
    included. With `gates`, made by `learning`, each step of the optimiser is followed by one of theirs; where their
    weights are meant to learn alone, no parameter of the model is trained. `dev` is measured after every epoch. A
    `teacher` adds distillation (Hinton et al. 2015).

    With a run, the state is kept in `NAME-state.safetensors` in its folder, written anew every `save_every` steps and
    after every epoch (by default also every two minutes), and the same training begins where that was. `checkpoints` is
    a folder for the model after each epoch, `epoch-01` and so on, with the `tokenizer`. Under `accelerate launch` each
    process calls this with the same model and task, on its own device; the first one writes, and alone needs a run.
    The modes, `requires_grad` and the caller's random state are as they were afterwards.

    Args:
        model: The model, trained in place.
        task: The training data.
        recipe: Epochs, learning rate, schedule and so on.
        dev: Data to evaluate on after every epoch.
        teacher: A model to distill from.
        gates: Gates that learn along, from `hc.learned_gates.learning`.
        freeze: Names of modules that are not trained.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        name: Name of the results in the run folder.
        checkpoints: A folder for the model after every epoch.
        save_every: Steps between saves to resume from.
        tokenizer: The tokenizer that goes into the checkpoints.

    Returns:
        The history of the training.

    Examples:
        >>> model = hc.load("my-model", dtype="float32")
        >>> task = hc.task("classification", "train.tsv", tokenizer="my-model", limit=32)
        >>> trained = hc.train(model, task, hc.training.Recipe(steps=2, batch_size=8))
        >>> trained.steps
        2
    """
    root, device = unwrap(model), device_of(unwrap(model))
    in_one_place(root, "it cannot be trained here")
    must_be_trainable(task, recipe.label_smoothing, teacher)
    _must_fit(root, device, recipe, gates, teacher)
    if recipe.lora is not None and checkpoints is not None:
        raise Refused("With lora (--lora) the weights change when the training ends; leave checkpoints out.")
    if teacher is not None:
        must_answer(teacher, task, device)
    together = processes(device)
    with ExitStack() as stack:
        stack.enter_context(low_rank(root, recipe.lora, recipe.seed))
        trained = _trained(root, freeze, gates)
        stack.enter_context(_training(root, trained, teacher))
        stack.enter_context(_own_randomness(device))
        work = Work(root, task, recipe, together, device, trained, gates, teacher)
        if gates is not None and gates.steps is None:
            gates.steps = work.steps
        if gates is not None and gates.steps != work.steps:
            raise Refused(
                f"The gates learn for {gates.steps} steps and the training has {work.steps}; leave steps= out of learning."
            )
        keep = _Keeper(work, run, name, checkpoints, save_every, tokenizer)
        keep.begin()
        if not work.main:
            stack.enter_context(progress.quiet())
        with progress.Bar(name, work.steps - work.done) as bar:
            while work.done < work.steps:
                safe_step(work)
                if work.must_note:
                    work.note(dev)
                    bar.label = f"{name}, loss {work.history[-1]['loss']:.4g}"
                keep.after_step()
                bar.advance()
        return Trained(tuple(work.history), work.steps, work.seconds)


# --- what trains ----------------------------------------------------------------------------------------------------


def frozen_by(root: nn.Module, freeze: Iterable[str]) -> set[nn.Parameter]:
    """The parameters in parts of these names, shared ones included; a name without any is `NotFound`."""
    frozen: set[nn.Parameter] = set()
    everywhere = list(root.named_parameters(remove_duplicate=False))
    for part_name in [freeze] if isinstance(freeze, str) else freeze:
        inside = f".{part_name.strip('.')}."
        matches = {parameter for name, parameter in everywhere if inside in f".{name}."}
        if not matches:
            parts = ", ".join(dict.fromkeys(name.split(".")[0] for name, _ in everywhere))
            raise NotFound(
                f"No parameter lies in {part_name!r:.60}, which is to be frozen; the model's parts are {parts:.200}."
            )
        frozen |= matches
    return frozen


def _trained(root: nn.Module, freeze: Iterable[str], gates: TrainableGates | None) -> list[nn.Parameter]:
    """The parameters that train: those that need a gradient, without the ones that are frozen, shared ones once."""
    frozen = frozen_by(root, freeze)
    if gates is not None and gates.weights_frozen:
        return []
    trainable = [parameter for parameter in root.parameters() if parameter.requires_grad and parameter not in frozen]
    if not trainable and gates is None:
        raise Refused("Every parameter is frozen, so there is nothing to train; freeze less.")
    narrow = next(
        (parameter.dtype for parameter in trainable if parameter.dtype in (torch.float16, torch.bfloat16)), None
    )
    if narrow is not None:
        raise Refused(
            f"The weights are {str(narrow).removeprefix('torch.')}, in which small steps are lost; load the model with "
            "dtype float32 and train with precision bf16."
        )
    return trainable


def _must_fit(
    root: nn.Module, device: torch.device, recipe: Recipe, gates: TrainableGates | None, teacher: nn.Module | None
) -> None:
    if recipe.precision == "fp16" and gates is not None:
        raise Refused("Gates learn from gradients that fp16 would scale; use precision bf16, or no.")
    if recipe.precision == "fp16" and device.type == "cpu":
        raise Refused("Precision fp16 needs a GPU, and the model is on the CPU; use bf16, or no.")
    if any(is_quantised(module) for module in root.modules()):
        raise Refused(
            f"The matrices of this {type(root).__name__} are quantised, and do not train: train the checkpoint that it was made "
            "from, and quantise that."
        )
    if recipe.lora is not None and gates is not None:
        raise Refused("Gates learn with the weights themselves, or alone; leave lora (--lora) out.")
    if teacher is not None and unwrap(teacher) is root:
        raise Refused("The teacher is the model itself; give a copy of it, or another model.")
    if teacher is not None and device_of(unwrap(teacher)) != device:
        raise Refused(f"The teacher is on {device_of(unwrap(teacher))} and the model on {device}; move one of them.")


@contextmanager
def _training(root: nn.Module, trained: list[nn.Parameter], teacher: nn.Module | None) -> Iterator[None]:
    """Within the block the model is in training mode and only these need a gradient; the teacher is in evaluation mode."""
    modes = {module: module.training for module in root.modules()}
    needed = {parameter: parameter.requires_grad for parameter in root.parameters()}
    chosen = set(trained)
    try:
        root.train()
        for parameter in needed:
            parameter.requires_grad_(parameter in chosen)
            parameter.grad = None
        with evaluating(nn.Module() if teacher is None else teacher):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for parameter, need in needed.items():
            parameter.requires_grad_(need)
            parameter.grad = None


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """Within the block, seeds are ours to set; afterwards Python's, numpy's and torch's random states are as before."""
    plain, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(numbers)


# --- keeping what was done ------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Keeper:
    """Where a training is kept, so that it survives a kill: the state in the run folder, a checkpoint per epoch."""

    work: Work
    run: Run | None
    name: str
    checkpoints: Path | None
    save_every: int | None
    tokenizer: Any
    written: float = field(default_factory=monotonic)
    asked: state.Question = field(default_factory=dict)

    @property
    def path(self) -> Path | None:
        """The file of the state, where there is a run."""
        return None if self.run is None else Path(self.run.folder) / f"{self.name}-state.safetensors"

    def begin(self) -> None:
        """Go on from the state, if there is one; all processes from that of the first."""
        work = self.work
        path = agreed(work, self.path)
        notes = None
        if path is not None:
            parts = work.recipe, work.task.fingerprint, work.gates, work.teacher
            self.asked = state.question(work.root, parts[0].facts(), *parts[1:])
            notes = state.read(path, self.asked, work.root, work.optimizer, work.gates)
        broadcast(work)
        if notes is not None:
            work.done, work.history, work.before = notes["step"], notes["history"], notes["seconds"]
            work.lost, work.targets = notes["lost"], notes["targets"]
            if work.scaler is not None and notes["scaler"]:
                work.scaler.load_state_dict(notes["scaler"])
        if work.main and self.checkpoints is not None:
            old_checkpoints = [folder for folder in sorted(self.checkpoints.glob("epoch-*")) if work.done == 0]
            if old_checkpoints:
                raise BadCheckpoint(
                    f"{old_checkpoints[0]} is there, and not of this training; choose another folder, or delete it."
                )
            if work.done and work.epoch_ends:  # killed after the state, before the checkpoint
                self.write_checkpoint(self.checkpoints)

    def after_step(self) -> None:
        """Write what is due: the state before the checkpoint, so that a checkpoint without a state is another's."""
        work = self.work
        if not work.main:
            return
        every = work.done % self.save_every == 0 if self.save_every else monotonic() - self.written > AT_LEAST_EVERY
        if work.epoch_ends or every:
            self.write_state()
        if work.epoch_ends and self.checkpoints is not None:
            self.write_checkpoint(self.checkpoints)

    def write_state(self) -> None:
        """Replace the state on the disk; that of a training at its end is without the optimiser, which is done."""
        work = self.work
        if self.path is None:
            return
        scaler = work.scaler
        notes = {
            "step": work.done,
            "history": work.history,
            "seconds": work.seconds,
            "lost": work.lost,
            "targets": work.targets,
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        optimizer = work.optimizer if work.done < work.steps else None
        state.write(self.path, self.asked, notes, work.root, optimizer, work.gates)
        self.written = monotonic()

    def write_checkpoint(self, folder: Path) -> None:
        """The model after this epoch, unless it is there."""
        target = folder / f"epoch-{-(-self.work.done // self.work.per_epoch):02d}"
        if not target.exists():
            folders.save(self.work.root, target, tokenizer=self.tokenizer)
