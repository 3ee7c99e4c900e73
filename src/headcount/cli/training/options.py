"""Flags of commands that train, and what they stand for: a recipe, what stays frozen, a teacher, a recovery."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...data import splits
from .. import options
from ..options import CommonFlags, load_model, names_examples, other_task
from ..run_folder import weights_of

if TYPE_CHECKING:
    from torch import nn

    from ...data.splits import Uses
    from ...data.tasks import Task
    from ...runs import Run
    from ...training.recipe import Recipe

HOW, WITH = "How to train", "With a teacher"
LORA_RATE = 2e-4  # low-rank additions begin at zero, and take larger steps
FRESH_RATE = 5e-4  # a learning rate for weights that begin at random; Recipe's is for pretrained ones
SHARE, MOST = 0.1, 2000  # of --data, set aside to measure on where no other data are given


flag = partial(options.flag, panel=HOW)  # in one of the panels of commands that train


@dataclass(frozen=True)
class TrainingOptions:
    """The flags, as they were given. No flag without a library argument of the same name."""

    epochs: Annotated[float, flag("--epochs", help="Epochs of training.")] = 3.0
    steps: Annotated[int | None, flag("--steps", help="Optimizer steps, instead of --epochs.")] = None
    lr: Annotated[
        float | None,
        flag(
            "--lr",
            help="Peak learning rate.",
            show_default=f"3e-5; {FRESH_RATE:g} for random weights, {LORA_RATE:g} with --lora",
        ),
    ] = None
    batch_size: Annotated[int, flag("--batch-size", help="Examples per step, over all processes.")] = 32
    schedule: Annotated[str, flag("--schedule", help="Learning rate schedule: linear, inverse-sqrt or constant.")] = (
        "linear"
    )
    warmup: Annotated[float, flag("--warmup", help="Warm-up, as a fraction of the steps.")] = 0.1
    weight_decay: Annotated[float, flag("--weight-decay", help="AdamW weight decay.")] = 0.01
    label_smoothing: Annotated[
        float, flag("--label-smoothing", help="Label smoothing; 0.1 is usual for translation.")
    ] = 0.0
    accumulate: Annotated[int, flag("--accumulate", help="Gradient accumulation steps.")] = 1
    precision: Annotated[str, flag("--precision", help="Mixed precision: no, bf16 or fp16.")] = "no"
    max_grad_norm: Annotated[float, flag("--max-grad-norm", help="Clip the gradient norm at this value.")] = 1.0
    lora: Annotated[
        int | None,
        flag("--lora", metavar="RANK", help="Train low-rank additions only (LoRA), and merge them in the end."),
    ] = None
    freeze: Annotated[
        str, flag("--freeze", help="Modules to freeze, such as decoder; several separated by commas.")
    ] = ""
    save_every: Annotated[
        int | None, flag("--save-every", help="Steps between saves to resume from.", show_default="every two minutes")
    ] = None
    teacher: Annotated[
        str | None, flag("--teacher", panel=WITH, metavar="FOLDER", help="Teacher model, for distillation.")
    ] = None
    distill: Annotated[
        float | None, flag("--distill", panel=WITH, help="Weight of the distillation loss.", show_default="0.9")
    ] = None
    temperature: Annotated[
        float | None, flag("--temperature", panel=WITH, help="Distillation temperature.", show_default="2")
    ] = None

    def recipe(self, seed: int, lr: float, **overrides: Any) -> Recipe:
        """The recipe; `lr` where none was given, keywords in the place of single flags."""
        from ...training.recipe import Recipe

        plain = ["epochs", "steps", "batch_size", "schedule", "warmup", "weight_decay", "label_smoothing"]
        plain += ["accumulate", "precision", "max_grad_norm", "lora"]
        values = {name: getattr(self, name) for name in plain}
        if self.lora is not None:
            lr = LORA_RATE
        values |= {"lr": lr if self.lr is None else self.lr}
        softness = {"distill": self.distill, "temperature": self.temperature}
        distillation = {name: value for name, value in softness.items() if value is not None}
        return Recipe(**{**values, **distillation, "seed": seed, **overrides})

    @property
    def frozen(self) -> list[str]:
        """The parts that stay as they are."""
        return [word.strip() for word in self.freeze.split(",") if word.strip()]

    def loaded_teacher(self, flags: CommonFlags) -> tuple[Any, dict[str, str] | None]:
        """The teacher and what tells it from others, or nothing."""
        if self.teacher is None:
            return None, None
        model = load_model(self.teacher, flags)
        return model, {"name": self.teacher, "weights": weights_of(self.teacher, model)}

    def sane(self, flags: CommonFlags, output: Path | None, run: Path | None) -> None:
        """What is wrong with the flags is said before any work is done."""
        if names_examples(flags) and flags.data is None:
            raise typer.BadParameter(
                f"{flags.task} gives no gradient to train by; train on text with --data FILE, and measure with evaluate --task."
            )
        if flags.data is None:
            raise typer.BadParameter("say which data to train on with --data FILE.")
        if self.teacher is None and (self.distill is not None or self.temperature is not None):
            raise typer.BadParameter(
                f"--{'distill' if self.distill is not None else 'temperature'} goes with --teacher."
            )
        if flags.dtype != "float32":
            raise typer.BadParameter("weights are trained in float32; --precision bf16 computes in less.")
        if run is not None and output is not None:
            places = output.resolve(), run.resolve()
            if places[0] in (places[1], *places[1].parents) or places[1] in places[0].parents:
                raise typer.BadParameter("-o and --run must be different folders, neither inside the other.")


def held_out(task: Task, use: str, seed: int, own: Mapping[str, Task]) -> Uses:
    """Examples to train on, and for `use` its `own`, or else a tenth of the task, at most 2000; none is used twice."""
    if use in own:
        return splits.share_out(task, {"train": 1.0}, seed, own)
    return splits.share_out(task, {use: SHARE, "train": 1 - SHARE}, seed, own, most=MOST)


def is_main() -> bool:
    """Whether this is the first of the processes that `accelerate launch` started, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def is_launched() -> bool:
    """Whether a launcher started several processes."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def own_device(flags: CommonFlags) -> str | None:
    """The device of this process, where `accelerate launch` started several."""
    import torch

    several = is_launched() and torch.cuda.is_available()
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if several and flags.device is None else flags.device


PANEL = "Training afterwards"


_flag = partial(options.flag, panel=PANEL)


@dataclass(frozen=True)
class Recovery:
    """The flags, as they were given: how long, on what, and whether the whole model teaches."""

    recover: Annotated[
        str | None,
        _flag("--recover", metavar="EPOCHS", help="Train after the cut: epochs such as 1 or 0.5, or 200steps."),
    ] = None
    lora: Annotated[
        int | None,
        _flag("--lora", metavar="RANK", help="Recover by low-rank additions only (LoRA), merged before saving."),
    ] = None
    recover_data: Annotated[str | None, _flag("--recover-data", metavar="FILE", help="The data to train on.")] = None
    recover_limit: Annotated[int | None, _flag("--recover-limit", help="Examples of --recover-data.")] = None
    recover_lr: Annotated[
        float | None, _flag("--recover-lr", help="Peak learning rate.", show_default="3e-5; 2e-4 with --lora")
    ] = None
    recover_precision: Annotated[
        str | None,
        _flag("--recover-precision", help="Mixed precision of the recovery: no, bf16 or fp16.", show_default="no"),
    ] = None
    distill: Annotated[
        bool | None,
        _flag("--distill/--no-distill", help="Distill from the full model while recovering.", show_default="--distill"),
    ] = None

    def sane(self, promised: bool, dry_run: bool) -> None:
        """What is wrong with the flags is said before any work is done."""
        if self.recover is None and is_launched():
            raise typer.BadParameter(
                "several processes were started, and prune uses them for the training after the cut: say --recover, or start it "
                "without a launcher."
            )
        if self.recover is None:
            recovery_flags: dict[str, Any] = {
                "--recover-data": self.recover_data,
                "--recover-limit": self.recover_limit,
            }
            recovery_flags |= {"--recover-lr": self.recover_lr, "--distill": self.distill, "--lora": self.lora}
            recovery_flags |= {"--recover-precision": self.recover_precision}
            for name in (flag for flag, value in recovery_flags.items() if value is not None):
                raise typer.BadParameter(f"{name} goes with --recover EPOCHS.")
            return
        self.length()
        if self.lora is not None and self.lora < 1:
            raise typer.BadParameter(f"--lora is a rank, a whole number from 1 on; I got {self.lora}.")
        if self.recover_precision not in (None, "no", "bf16", "fp16"):
            raise typer.BadParameter(f"--recover-precision is no, bf16 or fp16; I got {self.recover_precision:.40}.")
        if self.recover_data is None:
            raise typer.BadParameter("--recover needs data to train on: --recover-data FILE.")
        if promised:
            raise typer.BadParameter(
                "--max-drop is shown for the model as it is cut, and --recover changes it: say --flops, --params, --speedup "
                "or --remove, or train the model that comes out with `headcount train`."
            )
        if dry_run:
            raise typer.BadParameter("--dry-run cuts nothing that could be trained: leave --recover out.")

    def question(self) -> dict[str, Any]:
        """What was asked, as run folders of earlier versions have it."""
        values = asdict(self)
        for name in ("lora", "recover_precision"):
            if values[name] is None:
                del values[name]
        return {**values, "recover": None if self.recover is None else self.length().get("epochs", self.recover)}

    def length(self) -> dict[str, Any]:
        """How long to train, as a recipe has it: `epochs`, or `steps`."""
        text = str(self.recover).strip()
        number = text.removesuffix("steps").removesuffix("step").strip()
        try:
            if number != text:
                steps = int(number)
                if steps > 0:
                    return {"steps": steps}
            elif 0 < float(number) < float("inf"):
                return {"epochs": float(number)}
        except ValueError:
            pass
        raise typer.BadParameter(
            f"--recover is a number of epochs above 0, or steps such as 200steps; I got {text:.40}."
        )

    def task(self, name: str, model: Any, flags: CommonFlags, report: Task) -> tuple[Task | None, str]:
        """The examples to train on, without those that are reported on, and a sentence about what was left out."""
        if self.recover is None or self.recover_data is None:
            return None, ""
        task = other_task(name, model, flags, self.recover_data, self.recover_limit)
        uses = splits.share_out(task, {"train": 1.0}, flags.seed, {"report": report})
        return uses.tasks["train"], uses.left_out

    def trainer(
        self, task: Task | None, teacher: nn.Module, flags: CommonFlags, run: Run | None
    ) -> Callable[[nn.Module], dict[str, Any]] | None:
        """What trains a smaller model and says how; None where nothing is to be trained."""
        if task is None:
            return None
        from ...training.followers import hand_out
        from ...training.loop import train
        from ...training.recipe import Recipe

        lr = self.recover_lr or (Recipe.lr if self.lora is None else LORA_RATE)
        recipe = Recipe(
            **self.length(),
            lr=lr,
            lora=self.lora,
            seed=flags.seed,
            precision=self.recover_precision or Recipe.precision,
        )
        distilled = self.distill is not False

        def recovered(smaller: nn.Module) -> dict[str, Any]:
            if is_main():
                hand_out(teacher, smaller)
            training = train(smaller, task, recipe, teacher=teacher if distilled else None, run=run, name="recover")
            facts = {"epochs": training.steps * recipe.batch_size / task.size if recipe.steps else recipe.epochs}
            facts |= {"examples": task.size, "distilled": distilled, "steps": training.steps}
            return {**facts, "recipe": recipe.facts()}

        return recovered
