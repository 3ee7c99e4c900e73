"""The command that trains: `train`. A classifier from an encoder, a translator from nothing, a cut model recovering."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...data import splits
from ...errors import BadData
from ..options import (
    CommonFlags,
    kind_of,
    make_task,
    named_paths,
    other_task,
    out,
    placed,
    quieten,
    say_notes,
)
from ..run_folder import running
from ..text import how_to_load
from .options import FRESH_RATE, MOST, SHARE, TrainingOptions, flag, held_out, is_main, own_device

if TYPE_CHECKING:
    from ...data.tasks import Task
    from ...documents.training import TrainingDocument, TrainingStep
    from ...runs import Run
    from ...stats.results import Result

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
    flags: CommonFlags,
    regimen: TrainingOptions,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="The folder of the trained model.")
    ] = None,
    dev_data: Annotated[
        str | None,
        typer.Option("--dev-data", metavar="FILE", help="Data to evaluate on.", show_default="a tenth of --data"),
    ] = None,
    dev_limit: Annotated[int | None, typer.Option("--dev-limit", help="Examples of --dev-data.")] = None,
    scratch: Annotated[
        bool, flag("--scratch", help="Reinitialize the weights: the same architecture, trained from scratch.")
    ] = False,
    new_head: Annotated[
        bool, flag("--new-head", help="Replace the classification head if its labels are others.")
    ] = False,
    layers: Annotated[int | None, flag("--layers", panel=NEWS, help="Layers of the encoder.", show_default="6")] = None,
    decoder_layers: Annotated[
        int | None,
        flag("--decoder-layers", panel=NEWS, help="Layers of the decoder.", show_default="as many as the encoder"),
    ] = None,
    heads: Annotated[
        int | None, flag("--heads", panel=NEWS, help="Heads of every attention.", show_default="8")
    ] = None,
    width: Annotated[
        int | None, flag("--width", panel=NEWS, help="Hidden size of the model.", show_default="256")
    ] = None,
    ffn: Annotated[int | None, flag("--ffn", panel=NEWS, help="Neurons of every MLP.", show_default="1024")] = None,
    vocabulary: Annotated[
        int | None,
        flag("--vocabulary", panel=NEWS, help="Vocabulary size, shared by both languages.", show_default="8000"),
    ] = None,
    dropout: Annotated[float | None, flag("--dropout", panel=NEWS, help="Dropout rate.", show_default="0.1")] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Save a checkpoint after every epoch, for `curve --over`.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output folder if it is a model and nothing else.")
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="FOLDER", help="The run folder.", show_default="a new folder in runs/"),
    ] = None,
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
    sizes = _set_options(
        layers=layers, decoder_layers=decoder_layers, heads=heads, width=width, ffn=ffn, vocabulary=vocabulary
    ) | _set_options(dropout=dropout)
    needed = named_paths(model, regimen.teacher, flags.data, flags.target, dev_data, run)
    _sane(model, flags, regimen, output, run, sizes, (scratch, new_head), dev_data, dev_limit)
    assert output is not None
    from ...model.model_folders import claimed, may_be_written

    if is_main():
        may_be_written(output, force, needed, Path(model))
    quieten()
    from ...model import checkpoints as folders
    from ...training import loop
    from ...training.recipe import Recipe

    recipe = regimen.recipe(flags.seed, FRESH_RATE if scratch or model == NEW else Recipe.lr)
    flags = replace(flags, batch_size=regimen.batch_size, device=own_device(flags))
    lesson = _lesson(model, flags, sizes, dev_data, dev_limit, scratch, new_head)
    loop.frozen_by(lesson.model, regimen.frozen)  # what is wrong is said before any work is done
    tutor, about_tutor = regimen.loaded_teacher(flags)
    options = {
        "recipe": recipe.facts(),
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
    claim = claimed(output, force, needed, Path(model))
    with claim, running("train", model, lesson.model, replace(flags, output=run), tasks, **options) as folder:
        before = None if lesson.fresh else _measured(lesson.model, lesson.dev, folder, "before")
        if checkpoints:
            how |= {"checkpoints": folder.folder / "checkpoints", "tokenizer": _reader(model, lesson)}
        trained = loop.train(lesson.model, lesson.train, recipe, run=folder, **how)
        after = _measured(lesson.model, lesson.dev, folder, "after")
        document = training_document(lesson, recipe.facts(), trained, before, after)
        folder.write_json(document.NAME, document.to_json(), replace=True)
        source = None if model == NEW else model
        folders.save(lesson.model, output, tokenizer=lesson.tokenizer, source=source, force=force)
        _show(document, lesson, trained, (before, after), flags, output, folder.folder)


def _set_options(**values: Any) -> dict[str, Any]:
    """Those that were given: the library knows what the others are."""
    return {name: value for name, value in values.items() if value is not None}


def _sane(
    model: str,
    flags: CommonFlags,
    regimen: TrainingOptions,
    output: Path | None,
    run: Path | None,
    sizes: Mapping[str, Any],
    changes: tuple[bool, bool],
    dev_data: str | None,
    dev_limit: int | None,
) -> None:
    """What is wrong with the flags is said before any work is done."""
    from ...data.kinds import kind_named

    regimen.sane(flags, output, run)
    if output is None:
        raise typer.BadParameter("say where to write the trained model with -o FOLDER.")
    if sizes and model != NEW:
        name = next(iter(sizes)).replace("_", "-")
        raise typer.BadParameter(f"--{name} is a size of {NEW}; {model} has its own.")
    if model == NEW and (any(changes) or kind_named(flags.task or "translation") != "translation"):
        raise typer.BadParameter(
            f"{NEW} is a translator with fresh weights: leave --scratch, --new-head and --task out."
        )
    if dev_limit is not None and dev_data is None:
        raise typer.BadParameter("--dev-limit goes with --dev-data; use --limit for --data.")


# -- the model and the examples ------------------------------------------------------------------------------------------


def _lesson(
    name: str,
    flags: CommonFlags,
    sizes: Mapping[str, Any],
    dev_data: str | None,
    dev_limit: int | None,
    scratch: bool,
    new_head: bool,
) -> Lesson:
    from ...training import new_models

    apart = None
    if name == NEW:
        subject, tokenizer, apart = _new(flags, sizes, dev_data is None)
        fresh, overrides = True, {"tokenizer": tokenizer}
    else:
        subject, fresh = with_labels(name, flags, new_head)
        tokenizer, overrides = None, {}
        if scratch:
            subject, fresh = new_models.reinitialized(subject, flags.seed), True
    subject = placed(subject, flags)
    task = make_task(name, subject, flags, **overrides)
    if apart is not None:
        uses = splits.apart({use: task.subset(numbers) for use, numbers in apart.items()})
    else:
        own = {}
        if dev_data is not None:
            own["measure"] = other_task(name, subject, flags, dev_data, dev_limit, **overrides)
        uses = held_out(task, "measure", flags.seed, own)
    sets = splits.in_words(uses, {"train": "trained", "measure": "measured"})
    return Lesson(subject, tokenizer, fresh, uses.tasks["train"], uses.tasks["measure"], sets)


def _new(flags: CommonFlags, sizes: Mapping[str, Any], split: bool) -> tuple[Any, Any, dict[str, list[int]] | None]:
    """A new translator, its tokenizer, and which examples to train and to measure on, where --data is to be split.

    The split comes first: the tokenizer learns from no example that is measured on.
    """
    from ...data.columns import read_table
    from ...data.places import group_key, parts
    from ...training.new_models import new_translator

    names = {"text": flags.text, "target": flags.target, "split": flags.split, "group": flags.group}
    table = read_table(flags.data, "target", **names).drawn(flags.limit, flags.seed)
    pairs = list(zip(*table.texts, strict=True))
    keys = [json.dumps(pair).encode() for pair in pairs]
    if table.groups is not None:
        keys = [key if name is None else group_key(name) for key, name in zip(keys, table.groups, strict=True)]
    apart, numbers = None, list(range(len(pairs)))
    if split:
        apart = parts(keys, {"measure": SHARE, "train": 1 - SHARE}, flags.seed, most=MOST)
        if not apart["measure"] or not apart["train"]:
            raise BadData(
                f"{len(pairs)} examples of {table.name} are too few to set a tenth aside; give others to measure on with "
                "--dev-data."
            )
        aside = {pairs[number] for number in apart["measure"]}
        numbers = [number for number in apart["train"] if pairs[number] not in aside]  # one pair may be in two groups
    longest = {} if flags.max_length is None else {"longest": flags.max_length}
    texts = (flags.prefix * (side == 0) + pairs[number][side] for number in numbers for side in (0, 1))
    model, tokenizer = new_translator(texts, **sizes, **longest, seed=flags.seed)
    return model, tokenizer, apart


def with_labels(name: str, flags: CommonFlags, new_head: bool) -> tuple[Any, bool]:
    """The model of a folder, with a head for the labels of the data if its task has labels; and whether that is new."""
    import torch

    from ...data.columns import read_table
    from ...data.kinds import kind_named
    from ...model.checkpoints import load
    from ...training.new_models import HEADS, ordered, with_head

    trust = flags.trust_remote_code
    say_notes(name)
    empty = load(name, weights=False, trust_remote_code=trust)
    kind = kind_named(flags.task) if flags.task else kind_of(empty)
    if kind not in HEADS:
        if new_head:
            raise typer.BadParameter(f"--new-head is for models with labels, and {kind} has none.")
        return load(name, dtype=torch.float32, trust_remote_code=trust), False
    wants = {"classification": "label", "regression": "number", "image-classification": "image"}[kind]
    table = read_table(flags.data, wants, text=flags.text, label=flags.label, split=flags.split, group=flags.group)
    flag_labels = None if flags.labels is None else [word.strip() for word in flags.labels.split(",")]
    labels: Sequence[str] = flag_labels or table.class_names or ordered(table.classes)
    fresh = new_head or not type(empty).__name__.endswith(HEADS[kind][1])
    model = with_head(
        name,
        kind,
        labels,
        in_order=flag_labels is not None,
        new_head=new_head,
        seed=flags.seed,
        dtype=torch.float32,
        trust_remote_code=trust,
    )
    return model, fresh


def _reader(name: str, lesson: Lesson) -> Any:
    """The tokenizer or processor that goes with the checkpoints."""
    from ...data.encoding import loaded_processor, loaded_tokenizer

    pictures = lesson.train.kind == "image-classification"
    return lesson.tokenizer or (loaded_processor if pictures else loaded_tokenizer)(name)


# -- what came out -------------------------------------------------------------------------------------------------------


def _measured(model: Any, task: Task, run: Run, name: str) -> Result:
    from ...evaluation.evaluator import measure, result_of, signature
    from ...plans import Plan

    return result_of(task, measure(model, task, [Plan()], run=run, name=name)[0], signature(model, task))


def training_document(
    lesson: Lesson, recipe: dict[str, Any], trained: Any, before: Result | None, after: Result
) -> TrainingDocument:
    """training.json."""
    from ...documents.reading import read
    from ...documents.results import ResultDocument
    from ...documents.training import TrainingDocument, TrainingStep
    from ...stats.results import compare

    return TrainingDocument(
        history=read(tuple[TrainingStep, ...], list(trained.history)),
        recipe={**recipe, "steps": trained.steps},
        before=None if before is None else ResultDocument.of(before),
        after=ResultDocument.of(after),
        comparison=None if before is None else compare(before, after),
        sets=lesson.sets,
    )


def _show(
    document: TrainingDocument,
    lesson: Lesson,
    trained: Any,
    results: tuple[Result | None, Result],
    flags: CommonFlags,
    output: Path,
    folder: Path,
) -> None:
    size = sum(p.numel() for p in lesson.model.parameters())
    if flags.as_json:
        summary = {**document.to_json(), "seconds": trained.seconds, "parameters": size}
        print(json.dumps({**summary, "output": str(output), "run": str(folder)}, indent=2))
        return
    before, after = results
    lines = [lesson.sets, "", *_epochs(document.history, after.metric.name), ""]
    if before is not None:
        lines += [f"before: {before}", f"after:  {after}", f"        {document.comparison}"]
    else:
        lines.append(str(after))
    lines += [f"{size:,} parameters, {trained.steps:,} steps in {trained.seconds:,.0f} s", f"trained model: {output}"]
    lines.append(how_to_load(output))
    out.print("\n".join([*lines, f"run folder: {folder}"]), soft_wrap=True, markup=False)


def _epochs(history: Sequence[TrainingStep], metric: str) -> list[str]:
    """A line for every time that the model was measured on the way."""
    rows = [row for row in history if row.dev is not None]
    lines = [f"{'epoch':>7}{'step':>9}{'loss':>10}{metric:>14}"] if rows else []
    return lines + [f"{row.epoch:>7.4g}{row.step:>9}{row.loss:>10.4f}{row.dev:>14.4f}" for row in rows]
