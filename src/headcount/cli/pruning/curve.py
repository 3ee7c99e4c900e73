"""The command `curve`: what a model is worth as more and more units go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...data import seen_examples
from ...errors import BadPlan
from ...hashing import fingerprint
from ..cluster.flags import SharedFlags
from ..fills import FillFlags, fill_of, option_of
from ..measure import Model, Test, keep, model_and_task, two_sets
from ..options import (
    Checkpointing,
    Only,
    ScoreData,
    ScoreLimit,
    load_model,
    scoring_with,
    specs_of,
)
from ..run_folder import running, weights_of
from ..text import (
    curve_text,
    fill_line,
    over_text,
)

if TYPE_CHECKING:
    from ...data.tasks import Task


def curve(
    model: Model,
    flags: SharedFlags,
    by: Annotated[
        str,
        typer.Option(
            "--by", help="Importance criteria that order the units, separated by commas: taylor, ablation, random, ..."
        ),
    ] = "taylor",
    scores: Annotated[
        str | None, typer.Option("--scores", metavar="FILE", help="Scores from `headcount score`, instead of --by.")
    ] = None,
    score_data: ScoreData = None,
    score_limit: ScoreLimit = None,
    step: Annotated[str, typer.Option("--step", help="Units per step: a count, or a share such as 5%.")] = "10%",
    least: Annotated[int, typer.Option("--least", help="Heads that every attention keeps.")] = 0,
    only: Only = "",
    until_drop: Annotated[
        float | None,
        typer.Option("--until-drop", help="Stop at the first point that is worse by this many points of the metric."),
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Score again after every step (iterative pruning).")
    ] = False,
    really_cut: Annotated[
        bool, typer.Option("--really-cut", help="Cut copies of the model instead of masking.")
    ] = False,
    random_seeds: Annotated[int, typer.Option("--random-seeds", help="Random orders, for the band of chance.")] = 3,
    units: Annotated[str, typer.Option("--units", help="heads, neurons, layers or kv-groups.")] = "heads",
    test: Test = "randomization",
    over: Annotated[
        Path | None,
        typer.Option(
            "--over",
            metavar="CHECKPOINTS",
            help="A curve for every model folder in this folder (epoch-01, checkpoint-500, ...) instead of MODEL's own.",
        ),
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option("--checkpoints", help="With --over: only these, by their places, such as 1,2,5,10.")
    ] = None,
    checkpointing: Checkpointing = False,
    *,
    stands_in: FillFlags,
) -> None:
    """Remove units in the order of their scores, step by step, and measure what is left at each.

    Scores and curve never share examples: give --score-data, or --data is split in two. The plan of every point is in
    the run folder, for `headcount cut --plan`.

    With --over, the curve of every checkpoint of a training, each by its own scores and all on the same examples. MODEL
    is then what the training came to (or any of the checkpoints): it gives the tokenizer and the kind of task.

    Examples:

        headcount curve my-model --data dev.tsv --score-data train.tsv --score-limit 1000

        headcount curve my-model --data dev.tsv --by taylor,ablation,random

        headcount curve my-translator --data val.de --target val.en --only cross --until-drop 1.0

        headcount curve my-model --over runs/training/checkpoints --data dev.tsv --score-data train.tsv
    """
    if over is not None and scores is not None:
        raise typer.BadParameter(
            "--scores belong to one model, and --over scores every checkpoint: choose one of them."
        )
    if over is None and checkpoints is not None:
        raise typer.BadParameter("--checkpoints chooses among those of a folder: name it with --over.")
    from ...data.kinds import KINDS
    from ...documents.curves import CurvesDocument, OverDocument
    from ...documents.scores import Scores
    from ...pruning import curves

    stored, skipped = curves.checkpoints_in(over) if over is not None else ([], [])
    if checkpoints is not None:
        stored = curves.by_place(stored, checkpoints)
    subject, task = model_and_task(model, flags)
    fixed = Scores.read(scores) if scores else None
    if fixed is not None:
        metrics = (task.with_metric(metric) for metric in KINDS.get(task.kind, (task.metric.name,)))
        if any(f"#{same.fingerprint[:8]}|" in fixed.signature for same in metrics):
            raise BadPlan(
                f"{scores} was computed on the very examples of {task.name}; report on other data, or score anew."
            )
        assert scores is not None
        report, left_out = _not_scored_on(task, Path(scores))
        select, how = None, f"scores from {scores}{left_out}"
    else:
        select, report, how = two_sets(model, subject, flags, task, "score", score_data, score_limit)
    request = curves.CurvesAsked(
        by=("file",) if fixed is not None else tuple(word.strip() for word in by.split(",")),
        step=step,
        least=least,
        only=tuple(word.strip() for word in only.split(",") if word.strip()),
        until_drop=until_drop,
        recompute=recompute,
        really_cut=really_cut,
        random_seeds=random_seeds,
        units=units,
        test=test,
        seed=flags.seed,
    )
    report, fill = fill_of(stands_in, model, subject, flags, report, select)
    tasks = {"report": report} if select is None else {"select": select, "report": report}
    how_filled = None if fill is None else fill.document
    options = {**request._asdict(), "by": list(request.by), "only": list(request.only)}
    options |= {"scores": None, "fill": option_of(fill)}
    if fixed is not None:
        options["scores"] = fingerprint(fixed.to_json())
    rows = specs_of(flags.spec)
    scoring = scoring_with(checkpointing, *request.by)
    if over is not None:
        from ...formatting import listed

        subject = subject.to("meta")  # one model in memory at a time
        options |= {"over": str(over), "checkpoints": {path.name: weights_of(str(path), None) for path in stored}}
        note = f"\nnote: no config.json in {listed(skipped)}, left out" if skipped else ""
        with scoring, running("curve", model, subject, flags, tasks, **options) as run:
            stages = curves.over(
                lambda path: load_model(str(path), flags),
                stored,
                report,
                select,
                request,
                run=run,
                fill=fill,
                specs=rows,
            )
            run.conclude()
            found, others = tuple(map(curves.checkpoint_of, stages)), tuple(skipped)
            every = OverDocument(sets=how, fill=how_filled, checkpoints=found, skipped=others)
            keep(run, every, flags, f"{how}\n{fill_line(how_filled)}" + over_text(stages) + note)
        return
    with scoring, running("curve", model, subject, flags, tasks, **options) as run:
        curve_list = curves.curves(subject, report, select, request, fixed=fixed, run=run, fill=fill, specs=rows)
        run.conclude()
        document = CurvesDocument(sets=how, fill=how_filled, curves=tuple(map(curves.curve_of, curve_list)))
        keep(run, document, flags, f"{how}\n{fill_line(how_filled)}" + curve_text(curve_list))


# -- helpers -------------------------------------------------------------------------------------------------------------


def _not_scored_on(task: Task, path: Path) -> tuple[Task, str]:
    """The examples that scores in a file were not computed on, as far as the file says; and how many were left out."""
    from ...documents.scores import LARGEST_FILE
    from ...plans import read_json

    note = read_json(path, LARGEST_FILE).get("seen")
    if note is None:
        return task, ""
    scored = seen_examples.everything(seen_examples.read_seen(note, path))
    unseen = seen_examples.unseen(task, scored)
    if unseen is None:
        raise BadPlan(
            f"{path} was computed on all {task.size} examples of {task.name}; never choose and report on the same ones: "
            "report on other data, or score anew."
        )
    left_out = task.size - unseen.size
    return unseen, f"; {left_out} examples of {task.name} that they were computed on were left out" if left_out else ""
