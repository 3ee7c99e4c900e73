"""Flags of commands that let a smaller model train once more, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options, splits
from .errors import BadData
from .options import Given, other_task

if TYPE_CHECKING:
    from torch import nn

    from .runs import Run
    from .tasks import Task

PANEL = "Training afterwards"


_flag = partial(options.flag, panel=PANEL)


@dataclass(frozen=True)
class Recovery:
    """The flags, as they were given: how long, on what, and whether the whole model teaches."""

    recover: Annotated[float | None, _flag("--recover", metavar="EPOCHS", help="Train the smaller model so long.")] = (
        None
    )
    recover_data: Annotated[str | None, _flag("--recover-data", metavar="FILE", help="The data to train on.")] = None
    recover_limit: Annotated[int | None, _flag("--recover-limit", help="Examples of --recover-data.")] = None
    recover_lr: Annotated[float | None, _flag("--recover-lr", help="The highest learning rate; else 3e-5.")] = None
    distill: Annotated[
        bool | None, _flag("--distill/--no-distill", help="Learn from the whole model as well; so it does by default.")
    ] = None

    def sane(self, promised: bool, dry_run: bool) -> None:
        """What is wrong with the flags is said before any work is done."""
        if self.recover is None:
            given: dict[str, Any] = {"--recover-data": self.recover_data, "--recover-limit": self.recover_limit}
            given |= {"--recover-lr": self.recover_lr, "--distill": self.distill}
            for name in (flag for flag, value in given.items() if value is not None):
                raise typer.BadParameter(f"{name} goes with --recover EPOCHS.")
            return
        if self.recover <= 0:
            raise typer.BadParameter(f"--recover is a number of epochs above 0; I got {self.recover:g}.")
        if self.recover_data is None:
            raise typer.BadParameter("--recover needs data to train on: --recover-data FILE.")
        if promised:
            raise typer.BadParameter(
                "--max-drop is shown for the model as it is cut, and --recover changes it: say --flops, --params, --speedup "
                "or --remove, or train the model that comes out with `headcount train`."
            )
        if dry_run:
            raise typer.BadParameter("--dry-run cuts nothing that could be trained: leave --recover out.")

    def task(self, name: str, model: Any, given: Given, report: Task) -> Task | None:
        """The examples to train on, without those that are reported on."""
        if self.recover is None or self.recover_data is None:
            return None
        found = splits.without(
            other_task(name, model, given, self.recover_data, self.recover_limit), splits.marks(report)
        )
        if found is None:
            raise BadData("All examples to train on are among those to report on; give others with --recover-data.")
        return found

    def trainer(
        self, task: Task | None, teacher: nn.Module, given: Given, run: Run
    ) -> Callable[[nn.Module], dict[str, Any]] | None:
        """What trains a smaller model and says how; None where nothing is to be trained."""
        if task is None:
            return None
        from .recipes import Recipe
        from .training import train

        assert self.recover is not None
        recipe = Recipe(epochs=self.recover, lr=self.recover_lr or Recipe.lr, seed=given.seed)
        distilled = self.distill is not False

        def recovered(smaller: nn.Module) -> dict[str, Any]:
            done = train(smaller, task, recipe, teacher=teacher if distilled else None, run=run, name="recover")
            facts = {"epochs": self.recover, "examples": task.size, "distilled": distilled, "steps": done.steps}
            return {**facts, "recipe": asdict(recipe)}

        return recovered
