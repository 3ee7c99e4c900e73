"""The command of the lottery study: `lottery`. One task at a time, and studies of several tasks joined."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadRun
from ..parsing import share_in
from .cluster.flags import SharedFlags
from .options import CommonFlags, make_task, other_task, out, placed, quieten, specs_of
from .run_folder import running
from .training.options import TrainingOptions, flag, held_out
from .training.train import with_labels

if TYPE_CHECKING:
    from ..documents.lottery import Draw, LotteryDocument, NetworkMean, SeedAgreement, TaskSettings
    from ..documents.lottery_study import Lottery
    from ..lottery_ticket.study import LotteryTask

DRAWS = "The lottery"
NAMES = {"structured": "", "magnitude": "weights, "}  # before the name of a sub-network
FEW = 200  # examples to select on, below which chance has a large part


def lottery(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="A model folder, or a name on the hub; with --join, run folders."),
    ],
    flags: SharedFlags,
    regimen: TrainingOptions,
    dev_data: Annotated[
        str | None,
        typer.Option("--dev-data", metavar="FILE", help="Data to report on; --data is for training and selection."),
    ] = None,
    dev_limit: Annotated[int | None, typer.Option("--dev-limit", help="Examples of --dev-data.")] = None,
    seeds: Annotated[
        str, flag("--seeds", panel=DRAWS, help="Random seeds, separated by commas; one lottery ticket for each.")
    ] = "0,1,2",
    threshold: Annotated[
        float,
        flag("--threshold", panel=DRAWS, help="Fraction of the full model's score that a good sub-network keeps."),
    ] = 0.9,
    step: Annotated[str, flag("--step", panel=DRAWS, help="Heads removed per step, as a share of all.")] = "10%",
    magnitude: Annotated[
        bool, flag("--magnitude", panel=DRAWS, help="Also run magnitude pruning of single weights.")
    ] = False,
    retrain: Annotated[
        bool,
        flag(
            "--retrain/--no-retrain", panel=DRAWS, help="Also fine-tune the sub-networks from the pretrained weights."
        ),
    ] = True,
    name: Annotated[
        str | None, flag("--name", panel=DRAWS, help="Name of the task.", show_default="the name of --data")
    ] = None,
    join: Annotated[bool, flag("--join", panel=DRAWS, help="Join finished studies of several tasks into one.")] = False,
    new_head: Annotated[
        bool, flag("--new-head", help="Replace the classification head if its labels are others.")
    ] = False,
    teacher: Annotated[str | None, typer.Option("--teacher", hidden=True)] = None,
    distill: Annotated[float | None, typer.Option("--distill", hidden=True)] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", hidden=True)] = None,
) -> None:
    """Find sub-networks that keep most of a fine-tuned model's score, and ask whether others would do as well.

    For every seed, MODEL (pretrained; an encoder gets a head for the labels of the data) is fine-tuned on --data, heads and
    whole MLPs go while --threshold of its score is left on a tenth of --data set aside, and what is left (good) is
    measured on --dev-data beside as many units taken at random, and as many of those that went first (bad): as found,
    and cut out of MODEL and fine-tuned anew (Prasanna, Rogers and Rumshisky 2020). A command that was stopped goes on
    where it was when it is given again.

    Examples:

        headcount lottery all-MiniLM-L6-v2 --task classification --data SST-2/train.tsv --dev-data SST-2/dev.tsv

        headcount lottery my-encoder --task classification --data train.tsv --dev-data dev.tsv --seeds 0,1,2,3,4 --magnitude

        headcount lottery my-encoder --task classification --data train.tsv --dev-data dev.tsv --no-retrain --step 20%

        headcount lottery --join runs/lottery-sst2 runs/lottery-mrpc runs/lottery-qnli
    """
    if join:
        _joined(models, flags, dev_data)
        return
    drawn, share = _seeds(seeds), _share(step)
    _sane(models, flags, regimen, dev_data, (teacher, distill, temperature))
    quieten()
    from ..lottery_ticket import study
    from ..training.recipe import Recipe

    flags = replace(flags, batch_size=regimen.batch_size)
    recipe = regimen.recipe(flags.seed, Recipe.lr)

    def build(seed: int) -> Any:
        return placed(with_labels(models[0], replace(flags, seed=seed), new_head)[0], flags)

    subject = build(drawn[0])
    lot = _lot(models[0], subject, flags, str(dev_data), dev_limit, name)
    options = {
        "seeds": drawn,
        "threshold": threshold,
        "step": share,
        "magnitude": magnitude,
        "retrain": retrain,
        "recipe": {key: value for key, value in recipe.facts().items() if key != "seed"},
        "freeze": regimen.frozen,
        "new_head": new_head,
        "lot": lot.name,
        "scored_on": study.scored_on(lot),
    }
    how = {key: options[key] for key in ("seeds", "threshold", "step", "magnitude", "retrain", "freeze")}
    tasks = {"train": lot.train, "select": lot.select, "report": lot.report}
    with running("lottery", models[0], subject, flags, tasks, **options) as run:
        del subject
        run_options = {"run": run, "save_every": regimen.save_every, "specs": specs_of(flags.spec)}
        result = study.lottery(build, lot, recipe=recipe, **how, **run_options)
        run.conclude()
        result = replace(result, model=models[0].rstrip("/\\").replace("\\", "/").rpartition("/")[2])
        run.write_json("lottery", result.to_json(), replace=True)
        _show(result, flags, run.folder)


# -- what was asked ------------------------------------------------------------------------------------------------------


def _sane(
    models: Sequence[str], flags: CommonFlags, regimen: TrainingOptions, dev_data: str | None, taught: Sequence[object]
) -> None:
    """What is wrong with the flags is said before any work is done."""
    if len(models) != 1:
        raise typer.BadParameter(f"a study is of one MODEL, and I got {len(models)}; --join is for run folders.")
    if any(option is not None for option in taught):
        raise typer.BadParameter(
            "the study fine-tunes on labels alone; leave --teacher, --distill and --temperature out."
        )
    regimen.sane(flags, None, None)
    if dev_data is None:
        raise typer.BadParameter("say which data to report on with --dev-data FILE; --data trains and selects.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise typer.BadParameter("the study runs in one process; start one for every task, without accelerate launch.")


def _seeds(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--seeds wants whole numbers such as 0,1,2; I got {text[:40]!r}.") from None


def _share(text: str) -> float:
    share = share_in(text)
    if share is None:
        raise typer.BadParameter(f"--step wants a share such as 10% or 0.1; I got {text[:40]!r}.")
    return share


def _lot(
    model: str, subject: Any, flags: CommonFlags, dev_data: str, dev_limit: int | None, name: str | None
) -> LotteryTask:
    """Examples to train on, to select on and to report on, which share none."""
    from ..lottery_ticket.study import LotteryTask

    report = other_task(model, subject, flags, dev_data, dev_limit)
    task = make_task(model, subject, flags)
    uses = held_out(task, "select", flags.seed, {"report": report})
    train, select, report = (uses.tasks[use] for use in ("train", "select", "report"))
    if select.size < FEW:
        typer.echo(f"note: {select.size} examples to select on are few; what survives will be partly chance", err=True)
    return LotteryTask(name or _called(str(flags.data)), train, select, report, uses.left_out)


def _called(data: str) -> str:
    """The name of a task after its file: SST-2/train.tsv is SST-2, reviews.csv is reviews."""
    path = Path(data)
    stem = path.name.partition(".")[0]
    return path.parent.name if stem in ("train", "training") and path.parent.name else stem or data


# -- several tasks -------------------------------------------------------------------------------------------------------


def _joined(folders: Sequence[str], flags: CommonFlags, dev_data: str | None) -> None:
    """Join finished studies into a run folder of their own."""
    if flags.data is not None or dev_data is not None:
        raise typer.BadParameter("--join reads finished studies and nothing else; leave --data and --dev-data out.")
    from ..documents.lottery_study import Lottery
    from ..hashing import fingerprint
    from ..runs import Run, default_folder, read

    if len(folders) < 2:
        raise typer.BadParameter("--join puts two or more run folders together; give all of them.")
    documents = [_document(folder) for folder in folders]
    result = Lottery.joined([Lottery.from_json(document) for document in documents])
    _same_weights(folders)
    joined = [fingerprint(document) for document in documents]
    question = {"command": "lottery", "model": read(folders[0]).question["model"], "options": {"join": joined}}
    with Run.open(flags.output or default_folder(question), question) as run:
        run.write_json("lottery", result.to_json(), replace=True)
        if flags.command:
            run.write_json("command", {"command": flags.command}, replace=True)
        run.finish()
        _show(result, flags, run.folder)


def _same_weights(folders: Sequence[str]) -> None:
    """Two models may have one name; refuse to join studies of different ones."""
    from ..runs import read

    weights = [read(folder).question.get("model") for folder in folders]
    weight_hashes = [model.get("weights") for model in weights if isinstance(model, dict)]
    if len(set(weight_hashes)) > 1:
        different_folder = next(
            folder
            for folder, weight_hash in zip(folders, weight_hashes, strict=False)
            if weight_hash != weight_hashes[0]
        )
        raise BadRun(
            f"{folders[0]} and {different_folder} are studies of models with different weights; join those of one model."
        )


def _document(folder: str) -> Any:
    from ..runs import read

    record = read(folder)
    if record.question.get("command") != "lottery":
        raise BadRun(
            f"{folder} holds no lottery study but {record.question.get('command')!r:.40}; give another folder."
        )
    if not record.finished:
        raise BadRun(f"The study in {folder} is not finished; give its command again, and join it then.")
    return record.read_json("lottery")


# -- what came out -------------------------------------------------------------------------------------------------------


def _show(result: Lottery, flags: CommonFlags, folder: Path) -> None:
    document = result.document()
    if flags.as_json:
        print(json.dumps({**document.to_json(), "run": str(folder)}, indent=2))
        return
    lines = [line for task in document.tasks for line in [*_of_task(task, document), ""]]
    out.print("\n".join([*lines, document.sentence, f"run folder: {folder}"]), soft_wrap=True, markup=False)


def _of_task(task: TaskSettings, document: LotteryDocument) -> list[str]:
    """The lines of one task: its table, how many survive, and whether the seeds agree."""
    rows = {(row.kind, row.what, row.how): row for row in document.table if row.task == task.name}
    draws = [draw for draw in document.draws if draw.task == task.name]
    seeds = f"mean ± deviation over {len(draws)} seeds" if len(draws) > 1 else f"seed {draws[0].seed}"
    lines = [f"{task.name}: {task.metric}, {seeds}", task.sets, ""]
    anew = "fine-tuned anew" if any(how == "retrained" for _, _, how in rows) else ""
    lines.append(f"{'':<18}{'as found':>16}{anew:>18}".rstrip())
    lines.append(f"{'full model':<18}{_number(rows['structured', 'full', 'whole']):>16}")
    for kind, word in NAMES.items():
        for network in ("good", "random", "bad"):
            means = [rows.get((kind, network, how)) for how in ("pruned", "retrained")]
            if means[0] is not None:
                lines.append(f"{word + network:<18}{_number(means[0]):>16}{_number(means[1]):>18}".rstrip())
    if task.majority is not None:
        lines.append(f"{'majority class':<18}{task.majority:>16.3f}")
    lines.append("")
    lines += [_agreed(agreement, draws) for agreement in document.agreement if agreement.task == task.name]
    shares = [draw.magnitude.left for draw in draws if draw.magnitude is not None]
    if shares:
        lines.append(f"weights: {sum(shares) / len(shares):.0%} stay, by magnitude")
    return lines


def _number(row: NetworkMean | None) -> str:
    if row is None:
        return ""
    return f"{row.mean:.3f}" + ("" if row.sd is None else f" ± {row.sd:.3f}")


def _agreed(agreement: SeedAgreement, draws: Sequence[Draw]) -> str:
    """How many of a kind survive, and whether the seeds agree, in words."""
    from ..stats.agreement import in_words

    size, of = agreement.size, draws[0].of.of(agreement.kind)
    word = "MLPs" if agreement.kind == "mlps" else agreement.kind
    spread = "" if size.sd is None else f" ± {size.sd:.1f}"
    phrases = [f"{word}: {size.mean:.1f}{spread} of {of} stay" if spread else f"{word}: {size.mean:.0f} of {of} stay"]
    if len(draws) > 1:
        phrases.append(f"{agreement.in_all} under every seed")
    if agreement.kappa is not None:
        phrases.append(
            f"agreement of the seeds on which: {in_words(agreement.kappa)} (Fleiss' kappa {agreement.kappa:.2f})"
        )
    if agreement.p is not None:
        differ = "seeds keep different numbers" if agreement.p <= 0.05 else "no sign that seeds keep different numbers"
        phrases.append(f"{differ} (Cochran's Q = {agreement.q:.1f}, p = {agreement.p:.2g})")
    return "; ".join(phrases)
