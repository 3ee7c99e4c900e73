"""The command `tradeoff`: what can be had for what, from one scoring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import (
    Checkpointing,
    CommonFlags,
    Only,
    ScoreData,
    ScoreLimit,
    load_model,
    names_examples,
    quieten,
    scoring_with,
)
from .front import FrontRequest, sets_from
from .targets import Groups


def tradeoff(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a name on the hub.")],
    flags: CommonFlags,
    units: Annotated[
        str, typer.Option("--units", help="heads, neurons, layers, kv-groups; commas for several.")
    ] = "heads,neurons",
    by: Annotated[
        str | None,
        typer.Option("--by", help="Importance criterion of `score`.", show_default="several, the best for every row"),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            "--step", help="Share of the FLOPs between rows, such as 5%.", show_default="for about eight rows"
        ),
    ] = None,
    least: Annotated[int, typer.Option("--least", help="Units that every site keeps.")] = 0,
    only: Only = "",
    multiple: Annotated[
        int | None,
        typer.Option(
            "--multiple",
            min=1,
            help="Round the neurons of an MLP to multiples of this.",
            show_default="16; 64 on a GPU",
        ),
    ] = None,
    groups: Groups = None,
    score_data: ScoreData = None,
    score_limit: ScoreLimit = None,
    length: Annotated[
        int | None,
        typer.Option("--length", min=1, help="Sequence length of the measured speed.", show_default="median"),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads on a CPU.", show_default="as many as cores")
    ] = None,
    checkpointing: Checkpointing = False,
) -> None:
    """Show what can be had for what: plans of many sizes from one scoring, each measured, to pick one of.

    For every share of the FLOPs several plans are made, by several criteria, and measured on scoring examples; the best is
    the row. Rows that a smaller model beats are left out. Plans are picked by these numbers, so they are a little too good:
    `headcount prune --row N` carries a row out and measures it on examples that had no part in it.

    Examples:

        headcount tradeoff my-model --data dev.tsv

        headcount tradeoff my-model --data dev.tsv --score-data train.tsv --score-limit 2048

        headcount prune my-model --data dev.tsv --score-data train.tsv --score-limit 2048 --row 4 -o smaller
    """
    if not names_examples(flags):
        raise typer.BadParameter("say which data the model is for with --data FILE.")
    if score_limit is not None and score_data is None:
        raise typer.BadParameter("--score-limit goes with --score-data; use --limit for --data.")
    quieten()
    from ...importance.criteria import NEED_NO_DATA
    from ...pruning.legal_plans import rule_of
    from ...pruning.selection import usual_length

    rule_of(groups=groups)  # what is wrong with the word is said before any work is done
    if by in NEED_NO_DATA:
        raise typer.BadParameter(f"{by} needs no data, and the trade-off is measured on data: take another --by.")
    subject = load_model(model, flags)
    sets = sets_from(model, subject, flags, (True, False), (score_data, score_limit, None, None))
    names = [word.strip() for word in only.split(",") if word.strip()]
    kinds = ",".join(dict.fromkeys(word.strip() for word in units.split(",") if word.strip()))
    length = length or usual_length(sets.report)
    request = FrontRequest(
        model, subject, flags, kinds, by, step, least, names, multiple, length, threads, groups=groups
    )
    places = [Path("runs"), *([] if flags.output is None else [flags.output.parent])]
    with scoring_with(checkpointing, by):
        request.show(sets, places, flags.output)
