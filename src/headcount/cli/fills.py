"""Flags that say what stands in for masked units, and the fill that they describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data import splits
from ..parsing import count_or_all
from .options import SCORED_ON, CommonFlags, flag, make_task, other_task

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..interventions import Fill

PANEL = "What stands in for masked units"
SHARE = 0.25  # of --data, where no reference data are named


@dataclass(frozen=True)
class FillFlags:
    """What stands in for masked units."""

    fill: Annotated[
        str,
        flag(
            "--fill",
            panel=PANEL,
            metavar="KIND",
            help="zero, mean, mean-per-position, resample (another example), counterfactual (its counterpart) or noise.",
        ),
    ] = "zero"
    reference_data: Annotated[
        str | None,
        flag(
            "--reference-data",
            panel=PANEL,
            metavar="FILE",
            help="Examples that it comes from; for counterfactual, the counterparts of --data, line by line.",
            show_default="the scoring or selecting examples, else a quarter of --data",
        ),
    ] = None
    reference_limit: Annotated[
        int | None,
        typer.Option(
            "--reference-limit",
            rich_help_panel=PANEL,
            parser=count_or_all,
            metavar="N",
            help="Examples of --reference-data, or all.",
            show_default=f"a sample of {SCORED_ON}",
        ),
    ] = None
    draws: Annotated[
        int,
        flag("--draws", panel=PANEL, help="Draws of resample and noise, by --seed; values are means over them."),
    ] = 1
    at: Annotated[
        str | None,
        flag(
            "--at",
            panel=PANEL,
            metavar="POSITIONS",
            help='Mask at these positions only: last, first, 3, "0:5", "-3:".',
            show_default="all positions",
        ),
    ] = None


def fill_of(
    asked: FillFlags, name: str, model: Any, flags: CommonFlags, task: Task, known: Task | None = None
) -> tuple[Task, Fill | None]:
    """The examples to report on, and what stands in for units; nothing for zero at all positions.

    `known` are examples that are there already to be learned from: the reference set, if no other is named. Without them it is
    a part of the task, which is then not reported on.
    """
    from ..interventions import Fill

    fewer = [
        option
        for option, value in (("--draws", asked.draws != 1), ("--reference-limit", asked.reference_limit))
        if value
    ]
    if asked.fill in ("zero", "counterfactual") and fewer:
        raise typer.BadParameter(f"{fewer[0]} says nothing about fill {asked.fill}: leave it out.")
    if asked.fill == "zero":
        if asked.reference_data is not None:
            raise typer.BadParameter("zero comes from no data: choose another --fill, or leave --reference-data out.")
        return task, None if asked.at is None else Fill("zero", at=asked.at)
    if asked.fill == "counterfactual":
        return task, _counterfactual(asked, name, model, flags, task)
    Fill(asked.fill, known or task, draws=asked.draws, at=asked.at)  # what is wrong is said before the data are read
    if asked.reference_data is not None:
        reference = other_task(name, model, flags, asked.reference_data, asked.reference_limit, sample=SCORED_ON)
        reference = splits.share_out(task, {"report": 1.0}, flags.seed, {"reference": reference}).tasks["reference"]
    elif known is not None:
        reference = known
    else:
        uses = splits.share_out(task, {"reference": SHARE, "report": 1 - SHARE}, flags.seed)
        reference, task = uses.tasks["reference"], uses.tasks["report"]
    return task, Fill(asked.fill, reference, draws=asked.draws, seed=flags.seed, at=asked.at)


def _counterfactual(asked: FillFlags, name: str, model: Any, flags: CommonFlags, task: Task) -> Fill:
    """The counterparts of --data, line by line."""
    from ..interventions import Fill

    if asked.reference_data is None:
        raise typer.BadParameter(
            "counterfactual needs the counterparts of --data, line by line: name them with --reference-data FILE."
        )
    counterparts = other_task(name, model, flags, asked.reference_data, flags.limit)
    return Fill("counterfactual", counterparts, make_task(name, model, flags), at=asked.at)


def option_of(fill: Fill | None) -> dict[str, Any] | None:
    """A fill as the question of a run folder has it; nothing where it is zero."""
    from ..documents.reading import write

    return None if fill is None else dict(write(fill.document))
