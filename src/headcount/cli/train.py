"""The command that trains: `train`. A classifier from an encoder, a translator from nothing, a cut model recovering."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data import splits
from ..errors import BadData
from .options import Given, kind_of, make_task, other_task, out, placed, quieten, running
from .training_options import FRESH_RATE, MOST, SHARE, TrainingOptions, flag, held_out, is_main, own_device

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..documents.training import TrainingDocument, TrainingStep
    from ..runs import Run
    from ..stats.results import Result

NEW = "new-marian"
NEWS = f"Sizes of {NEW}"


@dataclass(frozen=True, eq=False)
class Lesson:
    """A model that is ready to be trained, what it is trained on and measured on, and a sentence that says so."""

    model: Any
    tokenizer: Any  # of a new model; None where the model's folder has it
    fresh: bool  # whether there is nothing to measure yet: weights, or the head, begin at random
    train: Task
    dev: Task
    sets: str


def train(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"A model folder, a name on the hub, or {NEW}.")],
    given: Given,
    regimen: TrainingOptions,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="The folder of the trained model.")
    ] = None,
    dev_data: Annotated[
        str | None, typer.Option("--dev-data", metavar="FILE", help="Data to measure on; else a tenth of --data.")
    ] = None,
    dev_limit: Annotated[int | None, typer.Option("--dev-limit", help="Examples of --dev-data.")] = None,
    scratch: Annotated[bool, flag("--scratch", help="Fresh weights: the same units, trained from nothing.")] = False,
    new_head: Annotated[bool, flag("--new-head", help="Replace the head of a classifier of other labels.")] = False,
    layers: Annotated[int | None, flag("--layers", panel=NEWS, help="Layers of the encoder; else 6.")] = None,
    decoder_layers: Annotated[
        int | None, flag("--decoder-layers", panel=NEWS, help="Layers of the decoder; else as many.")
    ] = None,
    heads: Annotated[int | None, flag("--heads", panel=NEWS, help="Heads of every attention; else 8.")] = None,
    width: Annotated[int | None, flag("--width", panel=NEWS, help="Width of the model; else 256.")] = None,
    ffn: Annotated[int | None, flag("--ffn", panel=NEWS, help="Neurons of every MLP; else 1024.")] = None,
    vocabulary: Annotated[
        int | None, flag("--vocabulary", panel=NEWS, help="Tokens of both languages; else 8000.")
    ] = None,
    dropout: Annotated[float | None, flag("--dropout", panel=NEWS, help="Share of activations; else 0.1.")] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Keep the model of every epoch, for `curve --over`.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the output folder if it exists.")] = False,
    run: Annotated[Path | None, typer.Option("--run", metavar="FOLDER", help="The run folder; else runs/....")] = None,
) -> None:
    """Train a model on --data: fine-tune a classifier, train a translator from nothing, let a cut model recover.

    MODEL may be cut, and stays cut. An encoder without a head gets one for the labels of the data (say --task
    classification or regression). What is shown is measured on examples that are never trained on: --dev-data, or a tenth
    of --data. A command that was stopped goes on where it was when it is given again, and ends with the same model.

    Examples:

        headcount train all-MiniLM-L6-v2 --task classification --data train.tsv --dev-data dev.tsv -o my-model

        headcount train smaller --data train.tsv --teacher my-model --epochs 1 -o recovered

        headcount train smaller --data train.tsv --scratch --lr 5e-4 --epochs 10 -o control

        headcount train new-marian --data train.de --target train.en --epochs 40 --batch-size 256 --lr 1e-3 -o translator
    """
    sizes = _given(
        layers=layers, decoder_layers=decoder_layers, heads=heads, width=width, ffn=ffn, vocabulary=vocabulary
    ) | _given(dropout=dropout)
    _sane(model, given, regimen, output, run, force, sizes, (scratch, new_head), dev_data, dev_limit)
    assert output is not None
    quieten()
    from ..model import checkpoints as folders
    from ..training import loop

    recipe = regimen.recipe(given.seed, FRESH_RATE if scratch or model == NEW else loop.Recipe.lr)
    given = replace(given, batch_size=regimen.batch_size, device=own_device(given))
    lesson = _lesson(model, given, sizes, dev_data, dev_limit, scratch, new_head)
    loop.frozen_by(lesson.model, regimen.frozen)  # what is wrong is said before any work is done
    tutor, about_tutor = regimen.loaded_teacher(given)
    asked = {
        "recipe": asdict(recipe),
        "freeze": regimen.frozen,
        "scratch": scratch,
        "new_head": new_head,
        "checkpoints": checkpoints,
        "sizes": sizes,
        "teacher": about_tutor,
    }
    how = {"dev": lesson.dev, "teacher": tutor, "freeze": regimen.frozen, "save_every": regimen.save_every}
    if not is_main():  # the first process opens the run folder, tells the others where it stands, and writes
        loop.train(lesson.model, lesson.train, recipe, **how)
        return
    tasks = {"train": lesson.train, "dev": lesson.dev}
    with running("train", model, lesson.model, replace(given, output=run), tasks, **asked) as folder:
        before = None if lesson.fresh else _measured(lesson.model, lesson.dev, folder, "before")
        if checkpoints:
            how |= {"checkpoints": folder.folder / "checkpoints", "tokenizer": _reader(model, lesson)}
        trained = loop.train(lesson.model, lesson.train, recipe, run=folder, **how)
        after = _measured(lesson.model, lesson.dev, folder, "after")
        told = _told(lesson, asdict(recipe), trained, before, after)
        folder.write_json(told.NAME, told.to_json(), replace=True)
        source = None if model == NEW else model
        folders.save(lesson.model, output, tokenizer=lesson.tokenizer, source=source, force=force)
        _show(told, lesson, trained, (before, after), given, output, folder.folder)


def _given(**values: Any) -> dict[str, Any]:
    """Those that were given: the library knows what the others are."""
    return {name: value for name, value in values.items() if value is not None}


def _sane(
    model: str,
    given: Given,
    regimen: TrainingOptions,
    output: Path | None,
    run: Path | None,
    force: bool,
    sizes: Mapping[str, Any],
    changes: tuple[bool, bool],
    dev_data: str | None,
    dev_limit: int | None,
) -> None:
    """What is wrong with the flags is said before any work is done."""
    regimen.sane(given, output, run)
    if output is None:
        raise typer.BadParameter("say where to write the trained model with -o FOLDER.")
    if sizes and model != NEW:
        name = next(iter(sizes)).replace("_", "-")
        raise typer.BadParameter(f"--{name} is a size of {NEW}; {model} has its own.")
    if model == NEW and (any(changes) or given.task not in (None, "translation")):
        raise typer.BadParameter(
            f"{NEW} is a translator with fresh weights: leave --scratch, --new-head and --task out."
        )
    if dev_limit is not None and dev_data is None:
        raise typer.BadParameter("--dev-limit goes with --dev-data; use --limit for --data.")
    from ..model.checkpoints import may_be_written

    kept = [Path(name) for name in (model, regimen.teacher, given.data, dev_data, run) if name is not None]
    may_be_written(output, force, kept, only_models=True)


# -- the model and the examples ------------------------------------------------------------------------------------------


def _lesson(
    name: str,
    given: Given,
    sizes: Mapping[str, Any],
    dev_data: str | None,
    dev_limit: int | None,
    scratch: bool,
    new_head: bool,
) -> Lesson:
    from ..training import new_models

    apart = None
    if name == NEW:
        subject, tokenizer, apart = _new(given, sizes, dev_data is None)
        fresh, others = True, {"tokenizer": tokenizer}
    else:
        subject, fresh = with_labels(name, given, new_head)
        tokenizer, others = None, {}
        if scratch:
            subject, fresh = new_models.reinitialized(subject, given.seed), True
    subject = placed(subject, given)
    task = make_task(name, subject, given, **others)
    if apart is not None:
        uses = splits.apart({use: task.subset(numbers) for use, numbers in apart.items()})
    else:
        own = {}
        if dev_data is not None:
            own["measure"] = other_task(name, subject, given, dev_data, dev_limit, **others)
        uses = held_out(task, "measure", given.seed, own)
    sets = splits.in_words(uses, {"train": "trained", "measure": "measured"})
    return Lesson(subject, tokenizer, fresh, uses.tasks["train"], uses.tasks["measure"], sets)


def _new(given: Given, sizes: Mapping[str, Any], split: bool) -> tuple[Any, Any, dict[str, list[int]] | None]:
    """A new translator, its tokenizer, and which examples to train and to measure on, where --data is to be split.

    The split comes first: the tokenizer learns from no example that is measured on.
    """
    from ..data.columns import read_table
    from ..data.places import group_key, parts
    from ..training.new_models import new_translator

    names = {"text": given.text, "target": given.target, "split": given.split, "group": given.group}
    table = read_table(given.data, "target", **names).drawn(given.limit, given.seed)
    pairs = list(zip(*table.texts, strict=True))
    keys = [json.dumps(pair).encode() for pair in pairs]
    if table.groups is not None:
        keys = [key if name is None else group_key(name) for key, name in zip(keys, table.groups, strict=True)]
    apart, numbers = None, list(range(len(pairs)))
    if split:
        apart = parts(keys, {"measure": SHARE, "train": 1 - SHARE}, given.seed, most=MOST)
        if not apart["measure"] or not apart["train"]:
            raise BadData(
                f"{len(pairs)} examples of {table.name} are too few to set a tenth aside; give others to measure on with "
                "--dev-data."
            )
        aside = {pairs[number] for number in apart["measure"]}
        numbers = [number for number in apart["train"] if pairs[number] not in aside]  # one pair may be in two groups
    longest = {} if given.max_length is None else {"longest": given.max_length}
    texts = (given.prefix * (side == 0) + pairs[number][side] for number in numbers for side in (0, 1))
    model, tokenizer = new_translator(texts, **sizes, **longest, seed=given.seed)
    return model, tokenizer, apart


def with_labels(name: str, given: Given, new_head: bool) -> tuple[Any, bool]:
    """The model of a folder, with a head for the labels of the data if its task has labels; and whether that is new."""
    import torch

    from ..data.columns import read_table
    from ..model.checkpoints import load
    from ..training.new_models import HEADS, ordered, with_head

    trust = given.trust_remote_code
    empty = load(name, weights=False, trust_remote_code=trust)
    kind = given.task or kind_of(empty)
    if kind not in HEADS:
        if new_head:
            raise typer.BadParameter(f"--new-head is for models with labels, and {kind} has none.")
        return load(name, dtype=torch.float32, trust_remote_code=trust), False
    wants = {"classification": "label", "regression": "number", "image-classification": "image"}[kind]
    table = read_table(given.data, wants, text=given.text, label=given.label, split=given.split, group=given.group)
    said = None if given.labels is None else [word.strip() for word in given.labels.split(",")]
    labels: Sequence[str] = said or table.class_names or ordered(table.classes)
    fresh = new_head or not type(empty).__name__.endswith(HEADS[kind][1])
    model = with_head(
        name,
        kind,
        labels,
        in_order=said is not None,
        new_head=new_head,
        seed=given.seed,
        dtype=torch.float32,
        trust_remote_code=trust,
    )
    return model, fresh


def _reader(name: str, lesson: Lesson) -> Any:
    """The tokenizer or processor that goes with the checkpoints."""
    from ..data.encoding import loaded_processor, loaded_tokenizer

    pictures = lesson.train.kind == "image-classification"
    return lesson.tokenizer or (loaded_processor if pictures else loaded_tokenizer)(name)


# -- what came out -------------------------------------------------------------------------------------------------------


def _measured(model: Any, task: Task, run: Run, name: str) -> Result:
    from ..evaluation.evaluator import measure, result_of, signature
    from ..plans import Plan

    return result_of(task, measure(model, task, [Plan()], run=run, name=name)[0], signature(model, task))


def _told(
    lesson: Lesson, recipe: dict[str, Any], trained: Any, before: Result | None, after: Result
) -> TrainingDocument:
    """training.json."""
    from ..documents.reading import read
    from ..documents.results import ResultDocument
    from ..documents.training import TrainingDocument, TrainingStep
    from ..stats.results import compare

    return TrainingDocument(
        history=read(tuple[TrainingStep, ...], list(trained.history)),
        recipe={**recipe, "steps": trained.steps},
        before=None if before is None else ResultDocument.of(before),
        after=ResultDocument.of(after),
        comparison=None if before is None else compare(before, after),
        sets=lesson.sets,
    )


def _show(
    told: TrainingDocument,
    lesson: Lesson,
    trained: Any,
    results: tuple[Result | None, Result],
    given: Given,
    output: Path,
    folder: Path,
) -> None:
    size = sum(p.numel() for p in lesson.model.parameters())
    if given.as_json:
        found = {**told.to_json(), "seconds": trained.seconds, "parameters": size}
        print(json.dumps({**found, "output": str(output), "run": str(folder)}, indent=2))
        return
    before, after = results
    lines = [lesson.sets, "", *_epochs(told.history, after.metric.name), ""]
    if before is not None:
        lines += [f"before: {before}", f"after:  {after}", f"        {told.comparison}"]
    else:
        lines.append(str(after))
    lines += [f"{size:,} parameters, {trained.steps:,} steps in {trained.seconds:,.0f} s", f"trained model: {output}"]
    out.print("\n".join([*lines, f"run folder: {folder}"]), soft_wrap=True, markup=False)


def _epochs(history: Sequence[TrainingStep], metric: str) -> list[str]:
    """A line for every time that the model was measured on the way."""
    rows = [row for row in history if row.dev is not None]
    lines = [f"{'epoch':>7}{'step':>9}{'loss':>10}{metric:>14}"] if rows else []
    return lines + [f"{row.epoch:>7.4g}{row.step:>9}{row.loss:>10.4f}{row.dev:>14.4f}" for row in rows]
