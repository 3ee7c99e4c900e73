"""The command that ships: `prune`. A smaller checkpoint, what was shown about its cost, and a page that explains it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data.example_sets import USES, Sets, sets_of, used_text
from ..errors import BadPlan, HeadcountError
from .options import (
    SCORED_ON,
    CommonFlags,
    Only,
    ScoreData,
    ScoreLimit,
    SelectLimit,
    how_to_load,
    load_model,
    make_task,
    named_paths,
    other_task,
    out,
    question_of,
    quieten,
    running,
    specs_of,
)
from .training_options import Recovery

if TYPE_CHECKING:
    from ..data.seen_examples import Seen
    from ..data.tasks import Task
    from ..documents.prune import PruneDocument
    from ..plans import Plan
    from ..pruning.selection import Choice
    from ..runs import Run


SEVERAL = "plans are a step of the FLOPs apart, not of the units: heads and neurons are worth different numbers of them"


def prune(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a name on the hub.")],
    flags: CommonFlags,
    recovery: Recovery,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="The folder of the smaller model.")
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option("--max-drop", help="Guarantee: maximum drop of the metric, in points (non-inferiority margin)."),
    ] = None,
    remove: Annotated[
        str | None, typer.Option("--remove", help="How many units: a count, or a share such as 40%.")
    ] = None,
    flops: Annotated[
        str | None, typer.Option("--flops", help="FLOP budget, as a share of the full model, such as 50%.")
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", help="Parameter budget, as a share of the full model, such as 60%.")
    ] = None,
    speedup: Annotated[
        float | None, typer.Option("--speedup", help="Speed-up to reach on this machine, such as 1.3.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="Plan file to cut by; with --max-drop it is tested.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", help="Importance criterion of `score`.", show_default="taylor or fisher"),
    ] = None,
    units: Annotated[str, typer.Option("--units", help="heads, neurons, layers; commas for several.")] = "heads",
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Mask tuning: rearrange and rescale the units that stay by least squares, without training."
        ),
    ] = False,
    multiple: Annotated[
        int | None,
        typer.Option(
            "--multiple", help="Round the neurons of an MLP to multiples of this.", show_default="16; 64 on a GPU"
        ),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="Significance level of the guarantee.", show_default="0.05")
    ] = None,
    cap: Annotated[
        float | None,
        typer.Option(
            "--cap",
            help="Clip the loss of an example at this value, in a guarantee about a loss.",
            show_default="20 times --max-drop",
        ),
    ] = None,
    tries: Annotated[
        int | None,
        typer.Option(
            "--tries",
            min=1,
            help="Guarantees to be tested on these examples, each at alpha / tries.",
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Leave out examples of earlier guarantees instead of splitting alpha."),
    ] = False,
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            help="Step between candidate plans, in units (or FLOPs).",
            show_default="5%",
        ),
    ] = None,
    least: Annotated[int, typer.Option("--least", help="Units that every site keeps.")] = 0,
    only: Only = "",
    score_data: ScoreData = None,
    score_limit: ScoreLimit = None,
    select_data: Annotated[
        str | None,
        typer.Option("--select-data", metavar="FILE", help="Data to test the guarantee on."),
    ] = None,
    select_limit: SelectLimit = None,
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            help="Sequence length of the measured speed.",
            show_default="median",
        ),
    ] = None,
    budget_minutes: Annotated[
        float | None,
        typer.Option(
            "--budget-minutes",
            help="Take about this long at most: fewer scoring examples, coarser steps, no tuning; says what was left out.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Choose and show the plan; cut and write nothing.")
    ] = False,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write report.html beside the model.")] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output folder if it is a model and nothing else.")
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="FOLDER", help="The run folder.", show_default="a new folder in runs/"),
    ] = None,
) -> None:
    """Make a smaller model and measure what it costs: score, choose, cut, save, load again, measure again.

    Say how much in one way. --max-drop is a guarantee: plans are tested from the mildest on, on examples that had no part
    in the scores, and the last one shown to lose less is taken. --flops, --params and --speedup are budgets: heads, neurons
    and layers are weighed against each other for what they cost, and what is left never costs more; see docs/budgets.md.
    The final numbers come from examples that had no part in it. With --data alone, it is split. Promises tried before on
    the same examples, as far as run folders know, are counted and share alpha; see docs/guarantee.md.

    Examples:

        headcount prune my-model --data dev.tsv --max-drop 1.0 -o smaller

        headcount prune my-model --data test.tsv --score-data train.tsv --score-limit 2000 --remove 40% -o smaller

        headcount prune my-model --data dev.tsv --units heads,neurons --flops 50% --tune -o smaller

        headcount prune my-model --data dev.tsv --units heads,neurons,layers --speedup 1.5 --batch-size 32 -o smaller

        headcount prune my-model --data dev.tsv --units layers --by top --remove 4 --recover 1 --recover-data train.tsv -o small

        headcount prune my-model --data dev.tsv --max-drop 1.0 --dry-run

        headcount prune my-model --data dev.tsv --plan plan.json -o smaller
    """
    needed = named_paths(model, flags.data, flags.target, run, plan, score_data, select_data, recovery.recover_data)
    _sane(model, flags, output, force, dry_run, run, [max_drop, remove, flops, params, speedup, plan], needed)
    recovery.sane(max_drop is not None, dry_run)
    kinds = [word.strip() for word in units.split(",") if word.strip()]
    units = ",".join(dict.fromkeys(kinds))
    promising = {"--alpha": alpha, "--step": step, "--tries": tries, "--cap": cap, "--fresh": fresh or None}
    for name in (name for name, value in promising.items() if value is not None and max_drop is None):
        raise typer.BadParameter(f"{name} goes with --max-drop.")
    if multiple is not None and (multiple < 1 or "neurons" not in kinds):
        raise typer.BadParameter("--multiple is a number of neurons, 1 or more, and goes with --units neurons.")
    if budget_minutes is not None and not 0 < budget_minutes < float("inf"):
        raise typer.BadParameter("--budget-minutes is a number of minutes above 0.")
    data_flags = (score_data, score_limit, select_data, select_limit)
    quieten()
    from ..documents.prune import ExampleSet, PruneDocument
    from ..importance.criteria import NEED_NO_DATA
    from ..model.model_folders import claimed
    from ..pruning import ledger, pipeline, selection, time_budget
    from ..stats.guarantee import check_promise

    level = 0.05 if alpha is None else alpha
    if max_drop is not None:
        check_promise(max_drop, level)
        check_promise(max_drop, level / (tries or 1))
    needs = (tune or (plan is None and by not in NEED_NO_DATA), max_drop is not None)
    _all_used(needs, data_flags)
    selection.exactly_one_of(plan, remove=remove, max_drop=max_drop, flops=flops, params=params, speedup=speedup)
    subject = load_model(model, flags)
    rows = specs_of(flags.spec)
    wanted, chosen_on, seen_examples = _read_plan(plan, tune) if plan is not None else (None, None, {})
    sets = sets_from(model, subject, flags, needs, data_flags, chosen_on, seen_examples)
    length = length or selection.usual_length(sets.report)
    names = [word.strip() for word in only.split(",") if word.strip()]
    how_much = {"remove": remove, "max_drop": max_drop, "flops": flops, "params": params, "speedup": speedup}
    settings: dict[str, Any] = {"by": by, "units": units, "least": least, "only": names, "length": length}
    settings |= {"tune": tune, "multiple": multiple, "step": step or "5%", "alpha": level, "cap": cap}
    options = {
        **how_much,
        **settings,
        "plan": None if wanted is None else wanted.to_json(),
        "recovery": asdict(recovery),
    }
    options |= {"tries": tries, "fresh": fresh or None}
    options |= {} if budget_minutes is None else {"budget_minutes": budget_minutes}
    places = [Path("runs"), *([] if run is None else [run.parent])]  # where promises tried before are looked for
    if fresh:
        question = question_of("prune", model, subject, flags, sets.fresh(sets.select).tasks(), options)
        sets = sets.fresh(ledger.left_over(sets.select, question, places))
    lesson, left_out = recovery.task(model, subject, flags, sets.report)
    sets = sets.noting(left_out)
    tasks = sets.tasks() | ({} if lesson is None else {"recover": lesson})
    claim = claimed(None if dry_run else output, force, needed, Path(model))
    with claim, running("prune", model, subject, replace(flags, output=run), tasks, **options) as folder:

        def tried() -> ledger.Tries:
            assert sets.select is not None
            return ledger.tries(folder, sets.select, alpha=level, planned=tries or 1, places=places)

        if budget_minutes is not None:
            asked = {**settings, "speedup": speedup}
            sets, settings = time_budget.limited(subject, sets, asked, budget_minutes, folder, flags.seed, rows)
            tasks |= sets.tasks()
        choice = selection.choose(
            subject,
            **how_much,
            **settings,
            tries=lambda: tried().shared,
            dtype=pipeline.number_format(model, trust_remote_code=flags.trust_remote_code) if tune else None,
            plan=wanted,
            score=sets.score,
            select=sets.select,
            batch_size=flags.batch_size,
            seed=flags.seed,
            run=folder,
            specs=rows,
        )
        if choice.scores is not None:
            folder.write_json("scores", choice.scores.to_json(), replace=True)
        counted = None if choice.guarantee is None else tried()
        choice = replace(choice, tried="" if counted is None or counted.shared == 1 else str(counted))
        if select_data is None:  # a part of --data, drawn like the one to report on: there is nothing to compare
            choice = replace(choice, selected=None)
        # a run that came to its end before has told what its plan is worth
        told_before = (folder.folder / "prune.json").is_file()
        folder.write_json("plan", _plan_file(choice, chosen_on, seen_examples, tasks, told_before), replace=True)
        about: dict[str, Any] = {"model": model, "command": flags.command, "sets_note": sets.how or None}
        about |= {"tries": None if counted is None else counted.to_json()}
        if dry_run:
            _show_plan(subject, choice, sets, flags, folder, rows, about)
            return
        assert output is not None
        about["sets"] = tuple(
            ExampleSet(role=role, data=tasks[role].name, n=tasks[role].size, what=USES[role])
            for role in USES
            if role in tasks
        )
        missing = [name for name in ("altair", "vl_convert", "jinja2") if find_spec(name) is None]
        no_page: list[str] = []  # why there is none

        def page(draft: Path) -> None:
            from ..reporting.page import report as write_page

            folder.finish()  # all is measured; the page should not say otherwise
            try:
                write_page([folder.folder], draft / "report.html")
            except (HeadcountError, MemoryError) as error:  # the model is worth more than the page about it
                no_page.append(str(error) or "there is too little memory for it")

        pipeline.save_pruned(
            subject,
            output,
            sets.report,
            choice,
            source=model,
            force=force,
            trust_remote_code=flags.trust_remote_code,
            batch_size=flags.batch_size,
            length=length,
            seed=flags.seed,
            run=folder,
            specs=rows,
            plan_file=_plan_file(choice, chosen_on, seen_examples, tasks, True),
            about=about,
            page=page if report and not missing else None,
            recover=recovery.trainer(lesson, subject, flags, folder),
        )
        document = PruneDocument.from_json(folder.read_json("prune"), f"{folder.folder / 'prune'}.json")
        _show(document, folder.folder, choice, sets, flags, output, missing if report else None, no_page)


def _sane(
    model: str,
    flags: CommonFlags,
    output: Path | None,
    force: bool,
    dry_run: bool,
    run: Path | None,
    wishes: list[Any],
    needed: list[Path],
) -> None:
    """What is wrong with the flags is said before any work is done."""
    if flags.data is None:
        raise typer.BadParameter("say which data to measure on with --data FILE.")
    if output is None and not dry_run:
        raise typer.BadParameter("say where to write with -o FOLDER, or use --dry-run.")
    if all(wish is None for wish in wishes):
        raise typer.BadParameter(
            "say how much: --max-drop POINTS, --remove 40%, --flops 50%, --params 60%, --speedup 1.3, or --plan FILE."
        )
    if output is not None and run is not None:
        places = output.resolve(), run.resolve()
        if places[0] in (places[1], *places[1].parents) or places[1] in places[0].parents:
            raise typer.BadParameter("-o and --run must be different folders, neither inside the other.")
    if output is not None:
        from ..model.model_folders import may_be_written

        may_be_written(output, force, needed, Path(model))


def _all_used(needs: tuple[bool, bool], data_flags: tuple[Any, Any, Any, Any]) -> None:
    """Refuse flags that would say nothing here."""
    score_data, score_limit, select_data, select_limit = data_flags
    if (score_data is not None or score_limit is not None) and not needs[0]:
        raise typer.BadParameter(
            "nothing is scored on data here (--plan, or a criterion that needs none): leave --score-data out."
        )
    if (select_data is not None or select_limit is not None) and not needs[1]:
        raise typer.BadParameter("only --max-drop is shown on data of its own: leave --select-data out.")
    for limit, data, flag in ((score_limit, score_data, "--score"), (select_limit, select_data, "--select")):
        if limit is not None and data is None:
            raise typer.BadParameter(f"{flag}-limit goes with {flag}-data; use --limit for --data.")


def _read_plan(path: Path, tune: bool) -> tuple[Plan, dict[str, Any] | None, Seen]:
    """The plan in a file, and, where prune wrote it, which examples it has seen (or which part, by an older headcount)."""
    from ..data.seen_examples import read_seen
    from ..plans import Plan, read_json

    data = read_json(path)
    plan, chosen_on = Plan.from_json(data), data.get("chosen_on")
    if data.get("tuned") and not tune:
        typer.echo(
            f"note: what stays of {path} was tuned, which is not in the plan: add --tune to do it again", err=True
        )
    if chosen_on is not None and not _is_part(chosen_on):
        raise BadPlan(
            f'{path} says in a way I do not know what it was chosen on; take "chosen_on" out if you are sure.'
        )
    return plan, chosen_on, read_seen(data["seen"], path) if "seen" in data else {}


def _is_part(chosen_on: object) -> bool:
    """Whether this says which part of the examples a plan was chosen on: a seed and a share."""
    if not isinstance(chosen_on, dict):
        return False
    seed, share = chosen_on.get("seed"), chosen_on.get("share")
    return type(seed) is int and isinstance(share, float) and 0 < share < 1


def _plan_file(
    choice: Choice, chosen_on: dict[str, Any] | None, seen_examples: Seen, tasks: Mapping[str, Task], is_reported: bool
) -> dict[str, Any]:
    """What plan.json says: the plan, and what it and the plan it was made of have seen, with what was told about it or not."""
    from ..data.seen_examples import marks, to_note, union

    roles = [role for role in tasks if role != "offered" and (is_reported or role in ("score", "select"))]
    file: dict[str, Any] = choice.plan.to_json()
    file |= {"chosen_on": chosen_on} if chosen_on is not None else {}
    file |= {"tuned": True} if choice.tuned is not None else {}
    return {**file, "seen": to_note(union(seen_examples, {role: marks(tasks[role]) for role in roles}))}


def _show_plan(
    model: Any, choice: Choice, sets: Sets, flags: CommonFlags, run: Run, rows: list[Any], about: dict[str, Any]
) -> None:
    from ..documents.reading import write
    from ..evaluation.evaluator import evaluate
    from ..model.cutting.effects import cut_effects
    from ..plans import Plan
    from ..pruning.plan_tests import known_before
    from ..reporting.model_card import step_sentences
    from .text import guarantee_text

    folder, suspicion = run.folder, ""
    if choice.selected is not None:  # the whole model is measured here, never the plan
        suspicion = known_before(choice.selected, evaluate(model, sets.report, run=run), flags.seed)
    listed = cut_effects(model, choice.plan, specs=rows)
    removed, had = sum(p.parameters for p in listed), sum(p.numel() for p in model.parameters())
    if flags.as_json:
        held = None if choice.guarantee is None else choice.guarantee.to_json()
        summary = {
            "plan": choice.plan.to_json(),
            "guarantee": held,
            "parameters": [had, had - removed],
            **write(choice.told()),
        }
        summary |= {"tries": about["tries"], "suspicion": suspicion or None, "sets_note": about["sets_note"]}
        print(json.dumps({**summary, "sites": [p._asdict() for p in listed], "run": str(folder)}, indent=2))
        return
    lines = [*_warning(suspicion), *used_text(sets), ""]
    if choice.guarantee is not None:
        lines += [guarantee_text(choice.guarantee), *[choice.tried] * bool(choice.tried), ""]
    lines += [f"{price.name}: {price.units - price.left} of {price.units} go" for price in listed if price.units > 128]
    small_sites = {price.name for price in listed if price.units <= 128}
    few = Plan(frozenset(unit for unit in choice.plan.units if unit.site in small_sites))
    lines += [f"remove: {few}"] * bool(few)
    units = choice.units.replace(",", " and ")
    lines += [
        f"{len(choice.plan)} of {choice.of} {units}, {had:,} -> {had - removed:,} parameters ({-removed / had:+.1%})"
    ]
    lines += step_sentences(choice.told())
    lines += [f"left alone: {reason}" for _, reason in choice.left_alone[:3]]
    lines += [f"nothing was cut; the plan is in {folder / 'plan.json'}: edit it, and give it back with --plan"]
    out.print("\n".join(lines), soft_wrap=True, markup=False)


def _warning(suspicion: str | None) -> list[str]:
    return [f"warning: {suspicion}"] if suspicion else []


def _show(
    document: PruneDocument,
    run: Path,
    choice: Choice,
    sets: Sets,
    flags: CommonFlags,
    output: Path,
    missing: list[str] | None,
    no_page: list[str],
) -> None:
    from ..reporting.model_card import proved
    from .text import guarantee_text, pruned_text

    page = output / "report.html"
    if flags.as_json:
        where = {"run": str(run), "report": str(page) if page.is_file() else None}
        print(json.dumps({**document.to_json(), **where}, indent=2))
        return
    lines = [*_warning(document.suspicion), *used_text(sets), ""]
    if choice.guarantee is not None:
        lines += [guarantee_text(choice.guarantee), *[SEVERAL] * ("," in choice.units)]
        lines += [*[choice.tried] * bool(choice.tried), ""]
    lines += [pruned_text(document), ""]
    lines += [f"left alone: {reason}" for _, reason in choice.left_alone[:3]]
    lines += [f"smaller model: {output} · loaded again, it {proved(document)}; all numbers are measured on it"]
    lines += [how_to_load(output)]
    if missing:
        lines.append(f"no report: {missing[0]} is not installed; `headcount report {run}` writes it elsewhere")
    elif no_page:
        lines.append(f"no report: {no_page[0]}")
    elif missing is not None:
        lines.append(f"report: {page}")
    lines.append(f"run folder: {run}")
    out.print("\n".join(lines), soft_wrap=True, markup=False)


def sets_from(
    name: str,
    model: Any,
    flags: CommonFlags,
    needs: tuple[bool, bool],
    data_flags: tuple[Any, Any, Any, Any],
    chosen_on: dict[str, Any] | None = None,
    seen_examples: Seen | None = None,
) -> Sets:
    """The sets of examples that flags ask for; `data_flags` are --score-data, its limit, --select-data and its limit."""
    more = [
        None if data is None else other_task(name, model, flags, data, limit, sample=sample)
        for data, limit, sample in ((*data_flags[:2], SCORED_ON), (*data_flags[2:], None))
    ]
    return sets_of((make_task(name, model, flags), more[0], more[1]), needs, flags.seed, chosen_on, seen_examples)
