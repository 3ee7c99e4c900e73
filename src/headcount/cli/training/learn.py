"""The command that learns which units to keep: `learn`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...data.splits import in_words
from ...errors import BadPlan
from ..options import (
    CommonFlags,
    Only,
    load_model,
    make_task,
    named_paths,
    other_task,
    out,
    quieten,
    specs_of,
)
from ..run_folder import running
from ..text import how_to_load
from .options import FRESH_RATE, TrainingOptions, flag, held_out, is_main, own_device

if TYPE_CHECKING:
    from ...data.splits import Uses
    from ...data.tasks import Task
    from ...documents.learned import LearnedDocument
    from ...learned_gates.pipeline import Learned
    from ...stats.results import Comparison, Result

GATES, AFTER = "How gates learn", "After that"
MOST_SHOWN = 600  # characters of a plan


def learn(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a name on the hub.")],
    flags: CommonFlags,
    regimen: TrainingOptions,
    method: Annotated[
        str,
        typer.Option("--method", help="l0, subset, movement, layerdrop; or taylor, random, ..., plan, to recover."),
    ] = "subset",
    keep: Annotated[
        str | None, typer.Option("--keep", help="Units that stay: a count, or a share such as 25%.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="The folder of the smaller model.")
    ] = None,
    report_data: Annotated[
        str | None,
        typer.Option("--report-data", metavar="FILE", help="Data to report on.", show_default="a tenth of --data"),
    ] = None,
    report_limit: Annotated[int | None, typer.Option("--report-limit", help="Examples of --report-data.")] = None,
    units: Annotated[
        str, typer.Option("--units", help="heads, neurons, layers; mlps or attentions, which go whole.")
    ] = "heads",
    only: Only = "",
    plan: Annotated[Path | None, typer.Option("--plan", help="With --method plan: a plan file.")] = None,
    pipelined: Annotated[
        bool, flag("--pipelined", panel=GATES, help="Train the gates only; the weights are frozen.")
    ] = False,
    settle: Annotated[
        float | None,
        flag(
            "--settle",
            panel=GATES,
            help="Fraction of the steps at the end, with the gates fixed at 0 or 1.",
            show_default="0.2",
        ),
    ] = None,
    l0: Annotated[
        float | None, flag("--l0", panel=GATES, help="l0: weight of the L0 penalty, instead of --keep.")
    ] = None,
    form: Annotated[
        str | None,
        flag("--form", panel=GATES, help="subset: relaxation of the gates: bounded, published or straight-through."),
    ] = None,
    rate: Annotated[
        float | None, flag("--rate", panel=GATES, help="layerdrop: drop rate during training.", show_default="0.2")
    ] = None,
    choose: Annotated[
        str | None,
        flag(
            "--choose",
            panel=GATES,
            help="layerdrop: importance criterion that selects what stays.",
            show_default="evenly spaced units",
        ),
    ] = None,
    gate_lr: Annotated[
        float | None,
        flag("--gate-lr", panel=GATES, help="Learning rate of the gates.", show_default="that of the method"),
    ] = None,
    setting: Annotated[
        list[str] | None,
        flag("--setting", panel=GATES, metavar="NAME=NUMBER", help="Another setting of the method: first=2, start=1."),
    ] = None,
    published: Annotated[
        bool,
        flag(
            "--published",
            panel=GATES,
            help="As in the paper's code: of l0 the start and the scale of the penalty; of subset the gates, start, "
            "temperatures, learning rate with its decay and Adam's beta2. No hard phase (--settle 0).",
        ),
    ] = False,
    scratch: Annotated[
        bool, flag("--scratch", panel=AFTER, help="Reinitialize the weights after the selection, as a control.")
    ] = False,
    recover_epochs: Annotated[
        float, flag("--recover-epochs", panel=AFTER, help="Epochs of training after the cut.")
    ] = 0.0,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output folder if it is a model and nothing else.")
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="FOLDER", help="The run folder.", show_default="a new folder in runs/"),
    ] = None,
) -> None:
    """Train a model so that a few of its units are enough, and cut the others.

    Methods that learn gates: l0 (Voita et al. 2019), subset (Li et al. 2021), movement (Sanh et al. 2020), layerdrop (Fan
    et al. 2020). Their controls choose first and train afterwards: any criterion of `score`, random, or --method plan;
    --epochs 0 trains nothing. Everything is learned on --data; the numbers come from --report-data, or a tenth of --data
    that is never trained on. `headcount report runs` puts all methods on one chart.

    Examples:

        headcount learn my-model --data train.tsv --report-data dev.tsv --keep 12 --epochs 1 -o smaller

        headcount learn my-model --data train.tsv --method l0 --keep 25% --teacher my-model

        headcount learn my-translator --data train.de --target train.en --only encoder --freeze decoder --method l0 --keep 10

        headcount learn my-model --data train.tsv --method random --keep 12 --epochs 1

        headcount learn my-model --data train.tsv --method layerdrop --units layers --keep 3
    """
    regimen.sane(flags, output, run)
    if report_limit is not None and report_data is None:
        raise typer.BadParameter("--report-limit goes with --report-data; use --limit for --data.")
    from ...model.model_folders import claimed, may_be_written

    needed = named_paths(model, regimen.teacher, flags.data, flags.target, report_data, run, plan)
    if output is not None and is_main():
        may_be_written(output, force, needed, Path(model))
    quieten()
    from ...evaluation.evaluator import evaluate
    from ...learned_gates import pipeline
    from ...learned_gates.methods import METHODS, PUBLISHED
    from ...model import checkpoints
    from ...plans import Plan
    from ...training.loop import frozen_by
    from ...training.recipe import Recipe

    flags = replace(flags, batch_size=regimen.batch_size, device=own_device(flags))
    subject = load_model(model, flags, fresh=True)
    uses = _two_sets(model, subject, flags, report_data, report_limit)
    train, report = uses.tasks["train"], uses.tasks["report"]
    trains = bool(regimen.epochs) or regimen.steps is not None
    verb = "learned"
    if method not in METHODS:
        verb = "chosen and trained" if trains or recover_epochs else "chosen"
    sets = in_words(uses, {"train": verb, "report": "reported"})
    usual = FRESH_RATE if scratch else Recipe.lr
    recipe = regimen.recipe(flags.seed, usual) if trains else None
    again = regimen.recipe(flags.seed, usual, epochs=recover_epochs, steps=None) if recover_epochs else None
    wanted = None if plan is None else Plan.read(plan)
    if published and method not in PUBLISHED:
        raise typer.BadParameter(
            f"--published is for {' and '.join(PUBLISHED)}; {method} has no settings of a paper's code."
        )
    settings: dict[str, Any] = dict(PUBLISHED[method]) if published else {}
    if published and settle is None:
        settle = 0.0  # neither code has a phase in which the choice stands
    named = {"l0": l0, "form": form, "rate": rate, "lr": gate_lr, **_settings(setting or [])}
    settings |= {name: value for name, value in named.items() if value is not None}
    known_settings = {field.name for field in fields(METHODS[method])} if method in METHODS else set(settings)
    unknown = [name for name in settings if name not in known_settings]
    if unknown:
        raise BadPlan(f"{method} has no setting {unknown[0]!r:.40}; `headcount learn --help` lists what there is.")
    names = [word.strip() for word in only.split(",") if word.strip()]
    rows = specs_of(flags.spec)
    wish = pipeline.LearnRequest(method, keep, units, names, pipelined, settle, wanted, choose, scratch)
    pipeline.prepared(subject, wish, recipe, again, tuple(rows), settings)  # before any work is done
    frozen_by(subject, regimen.frozen)
    tutor, told_teacher = regimen.loaded_teacher(flags)
    how = {
        "method": method,
        "keep": keep,
        "units": units,
        "only": names,
        "pipelined": pipelined,
        "settle": settle,
        "choose": choose,
        "scratch": scratch,
        "freeze": regimen.frozen,
    }
    options = {**how, **settings, "plan": None if wanted is None else wanted.to_json(), "teacher": told_teacher}
    options |= {
        "recipe": None if recipe is None else recipe.facts(),
        "recover": None if again is None else again.facts(),
    }
    options |= {"scored_on": pipeline.scored_on(wish, train, flags.seed)}
    work = {
        **how,
        **settings,
        "plan": wanted,
        "recipe": recipe,
        "recover": again,
        "teacher": tutor,
        "save_every": regimen.save_every,
        "seed": flags.seed,
        "specs": rows,
    }
    if not is_main():  # the first process opens the run folder, tells the others where it stands, and writes
        pipeline.learn(subject, train, **work)
        return
    tasks = {"train": train, "report": report}
    claim = claimed(output, force, needed, Path(model))
    with claim, running("learn", model, subject, replace(flags, output=run), tasks, **options) as folder:
        full = evaluate(subject, report, run=folder)
        outcome = pipeline.learn(subject, train, **work, run=folder)
        after, compared = _measured(outcome, report, full, folder, flags)
        extra = {**settings, "pipelined": pipelined, "settle": settle, "choose": choose, "scratch": scratch}
        extra |= {"teacher": regimen.teacher, "only": names, "freeze": regimen.frozen, "recover_epochs": recover_epochs}
        document = learned_document(outcome, method, flags, (full, after, compared), (recipe, extra), sets)
        if outcome.scores is not None:
            folder.write_json("scores", outcome.scores.to_json(), replace=True)
        folder.write_json("plan", outcome.plan.to_json(), replace=True)
        folder.write_json(document.NAME, document.to_json(), replace=True)
        if output is not None:
            checkpoints.save(outcome.model, output, source=model, force=force)
        _show(document, outcome, (full, after, compared), flags, output, folder.folder)


def _settings(texts: list[str]) -> dict[str, float]:
    """Settings of a method from texts such as first=2."""
    settings = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            settings[name.strip()] = float(number)
        except ValueError:
            raise typer.BadParameter(f"--setting wants NAME=NUMBER, such as first=2; I got {text[:40]!r}.") from None
    return settings


def _two_sets(name: str, model: Any, flags: CommonFlags, report_data: str | None, limit: int | None) -> Uses:
    """Examples to learn from and examples to report on, which share none."""
    own = {} if report_data is None else {"report": other_task(name, model, flags, report_data, limit)}
    return held_out(make_task(name, model, flags), "report", flags.seed, own)


def _measured(
    outcome: Learned, report: Task, full: Result, folder: Any, flags: CommonFlags
) -> tuple[Result, Comparison]:
    """The smaller model on the examples to report on, and the difference to the full one."""
    from ...evaluation.evaluator import measure, result_of
    from ...plans import Plan
    from ...stats.results import compare

    rows = measure(outcome.model, report, [Plan()], run=folder, name="learned", specs=specs_of(flags.spec))[0]
    after = result_of(report, rows, f"{full.signature}|{outcome.label.replace(', ', '-')}|kept:{outcome.kept}")
    return after, compare(full, after, seed=flags.seed)


def learned_document(
    outcome: Learned,
    method: str,
    flags: CommonFlags,
    results: tuple[Result, Result, Comparison],
    how: tuple[Any, dict[str, Any]],
    sets: str,
) -> LearnedDocument:
    """learned.json."""
    from ...documents.learned import LearnedDocument, RecoveryTraining
    from ...documents.reading import read
    from ...documents.results import ResultDocument
    from ...documents.training import TrainingStep

    (full, after, compared), (recipe, extra) = results, how
    history: Sequence[Any] = () if outcome.trained is None else outcome.trained.history
    trained = None if recipe is None or outcome.trained is None else {**recipe.facts(), "steps": outcome.trained.steps}
    if trained is not None:  # what had no say is left out
        silent = ["epochs"] * (recipe.steps is not None) + ["distill", "temperature"] * (extra["teacher"] is None)
        trained = {name: value for name, value in trained.items() if name not in silent}
    return LearnedDocument(
        label=outcome.label,
        method=method,
        units=outcome.units,
        settings={name: value for name, value in extra.items() if value not in (None, False, [], 0.0)},
        keep=outcome.kept,
        of=outcome.of,
        seed=flags.seed,
        trained=trained,
        recovered=None if outcome.recovered is None else RecoveryTraining(steps=outcome.recovered.steps),
        plan=outcome.plan,
        full=ResultDocument.of(full),
        learned=ResultDocument.of(after),
        comparison=compared,
        history=read(tuple[TrainingStep, ...], list(history)),
        sets=sets,
        penalty=outcome.price,
        open=outcome.open,
    )


def _show(
    document: LearnedDocument,
    outcome: Learned,
    results: tuple[Result, Result, Comparison],
    flags: CommonFlags,
    output: Path | None,
    folder: Path,
) -> None:
    if flags.as_json:
        print(
            json.dumps(
                {**document.to_json(), "output": None if output is None else str(output), "run": str(folder)}, indent=2
            )
        )
        return
    full, after, compared = results
    lines = [document.sets, "", f"{outcome.label}: {outcome.kept} of {outcome.of} {document.units} stay"]
    if outcome.price is not None:
        lines.append(f"an open gate cost {outcome.price:.3g} in the end; {outcome.open} were open by themselves")
        if "l0" not in (document.settings or {}) and abs((outcome.open or 0) - outcome.kept) > 0.1 * outcome.of:
            lines.append(
                "note: that is far from what was asked for, so which ones stay is uncertain; give it more steps"
            )
    plan_text = str(outcome.plan)
    if len(plan_text) > MOST_SHOWN:
        plan_text = f"{len(outcome.plan):,} units of {len(outcome.plan.by_site())} sites"
    lines += [f"full:    {full}", f"smaller: {after}", f"         {compared}", f"gone: {plan_text}"]
    lines += [f"left alone: {reason}" for _, reason in outcome.left_alone[:3]]
    if outcome.trained is not None:
        steps = outcome.trained.steps
        lines.append(f"{steps:,} step{'s' * (steps != 1)} in {outcome.trained.seconds:,.0f} s")
    if output is not None:
        lines += [f"smaller model: {output}", how_to_load(output)]
    out.print("\n".join([*lines, f"run folder: {folder}"]), soft_wrap=True, markup=False)
