"""Commands that measure: evaluate, score, ablate, transfer. Each is the verb of the same name and a table."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data import seen_examples, splits
from .distributed.flags import Placement
from .fills import FillFlags, fill_of, option_of
from .options import (
    SCORED_ON,
    Check,
    Checkpointing,
    CommonFlags,
    Criterion,
    Running,
    SelectLimit,
    Steps,
    load_model,
    make_task,
    names_examples,
    other_task,
    out,
    own_groups,
    quieten,
    specs_of,
)
from .run_folder import running
from .text import (
    ablation_text,
    fill_line,
    limit_notes,
    one_head_table,
    scores_text,
    transfer_text,
)

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..documents.reading import JsonDocument
    from ..runs import Run

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a name on the hub.")]
Units = Annotated[str, typer.Option("--units", help="heads, neurons, mlps, attentions, layers or kv-groups.")]
Test = Annotated[str, typer.Option("--test", help="randomization, bootstrap, mcnemar (accuracy) or t.")]
Draws = Annotated[
    int | None, typer.Option("--resamples", help="Resamples of a test.", show_default="100 per test, at least 1000")
]
Memory = Annotated[float, typer.Option("--memory", help="Memory for cached activations, in GiB.")]


def evaluate(model: Model, flags: CommonFlags, *, where: Placement) -> None:
    """Measure a model: the metric with its interval.

    Examples:

        headcount evaluate my-model --task classification --data dev.tsv

        headcount evaluate my-translator --data test.de --target test.en --num-beams 5
    """
    subject, task = model_and_task(model, flags, where)
    from ..documents.results import ResultDocument
    from ..evaluation import evaluator

    with running("evaluate", model, subject, flags, {"data": task}) as run:
        result = evaluator.evaluate(subject, task, run=run)
        text = f"{result}\n{result.signature}{limit_notes({'': result.unfinished}, result.n)}"
        keep(run, ResultDocument.of(result), flags, text)


def score(
    model: Model,
    flags: CommonFlags,
    by: Criterion = "taylor",
    granularity: Annotated[
        str,
        typer.Option(
            "--granularity",
            help="taylor: where absolute values are taken: example (the paper), token (its code), batch, signed.",
        ),
    ] = "example",
    normalize: Annotated[
        str,
        typer.Option(
            "--normalize",
            help="L2 normalization of the scores: layer, type, global, none.",
            show_default="as the criterion was published",
        ),
    ] = "by paper",
    units: Annotated[
        str,
        typer.Option(
            "--units", help="heads, neurons, layers, kv-groups (a kv head with its query heads); several with commas."
        ),
    ] = "heads",
    checkpointing: Checkpointing = False,
    steps: Steps = None,
    check: Check = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="For models larger than memory: read one layer at a time (wanda, flap, activation, block-influence).",
        ),
    ] = False,
    *,
    stands_in: FillFlags,
    where: Placement,
) -> None:
    """Score units: a number for each, bigger = matters more, with its standard error and the ranking's stability.

    attribution-patching and eap-ig estimate, on contrast tasks, what activation patching does; some units are patched exactly to
    see how well they do.

    Examples:

        headcount score my-model --data train.tsv --limit 1000

        headcount score my-model --data train.tsv --by ablation --run runs/ablation

        headcount score my-model --data train.tsv --units heads,neurons,layers --by fisher

        headcount score my-model --data dev.tsv --by ablation --fill mean --reference-data train.tsv

        headcount score my-decoder --task contrast:ioi --limit 100 --by eap-ig

        headcount score my-large-model --data text.txt --by wanda --units heads,neurons --stream
    """
    from ..importance import criteria
    from ..importance.attribution.exact import patch_check
    from ..importance.attribution.units import METHODS

    if check is not None and by not in METHODS:
        raise typer.BadParameter(
            f"--check compares {' and '.join(METHODS)} with exact patches; {by} has none: leave it out."
        )

    if by != "ablation" and stands_in != FillFlags():
        raise typer.BadParameter(
            f"--fill, --reference-data, --draws and --at are for --by ablation; {by} masks nothing: leave them out."
        )
    subject, task = model_and_task(model, flags, where, optional=by in criteria.NEED_NO_DATA, lazy=stream)
    fill = None
    if by == "ablation":
        task, fill = fill_of(stands_in, model, subject, flags, task)
    tasks = {} if task is None else {"data": task}
    options = {
        "by": by,
        "granularity": granularity,
        "normalize": normalize,
        "units": units,
        "steps": steps,
        "check": check,
        "stream": stream or None,
        "fill": option_of(fill),
    }
    with running("score", model, subject, flags, tasks, **options) as run:
        scores = criteria.score(
            subject,
            task,
            by,
            units=units.split(","),
            granularity=granularity,
            normalize=None if normalize == "none" else normalize,
            seed=flags.seed,
            checkpointing=checkpointing,
            steps=steps,
            fill=fill,
            run=run,
            specs=specs_of(flags.spec),
        )
        stability = scores.stability(seed=flags.seed)
        if scores.samples is not None and len(scores) <= 100_000:
            run.write("samples", {"samples": scores.samples.astype("float32")})
        document = scores.document(stability)
        if task is not None:  # a curve by these scores is not reported on them
            looked_at = [task] if fill is None or fill.reference is None else [task, fill.reference]
            marks = frozenset[bytes]().union(*map(seen_examples.marks, looked_at))
            document = replace(document, seen=seen_examples.to_note({"score": marks}))
        stood_in = None if fill is None else fill.document
        document, text = replace(document, fill=stood_in), fill_line(stood_in) + scores_text(scores, stability)
        if by in METHODS and check != 0:
            how = {"seed": flags.seed, "run": run, "specs": specs_of(flags.spec)}
            patching = patch_check(subject, task, scores, check, **how)
            document, text = replace(document, patching=patching), f"{text}\n\n{patching.text}"
        keep(run, document, flags, text)


def ablate(
    model: Model,
    flags: CommonFlags,
    each: Annotated[bool, typer.Option("--each", help="Mask one unit at a time (the default).")] = False,
    all_but_one: Annotated[
        bool, typer.Option("--all-but-one", help="Mask all heads of an attention but the best one.")
    ] = False,
    units: Units = "heads",
    block: Annotated[
        int | None, typer.Option("--block", help="Neurons masked together.", show_default="a twelfth of the MLP")
    ] = None,
    select_data: Annotated[
        str | None, typer.Option("--select-data", help="Data to select the head on.", show_default="half of --data")
    ] = None,
    select_limit: SelectLimit = None,
    test: Test = "randomization",
    resamples: Draws = None,
    memory: Memory = 2.0,
    *,
    stands_in: FillFlags,
    where: Placement,
) -> None:
    """Mask units one at a time, or all heads but one, and test each difference.

    With --all-but-one the head is chosen on other examples than those it is reported on. Masked units write nothing (zero
    ablation), or what --fill says: their mean, or what they are on other examples.

    Examples:

        headcount ablate my-model --data dev.tsv --each

        headcount ablate my-model --data dev.tsv --each --units layers --test mcnemar

        headcount ablate my-model --data dev.tsv --each --fill mean --reference-data train.tsv

        headcount ablate my-model --data dev.tsv --all-but-one --select-data train.tsv --select-limit 5000
    """
    if each and all_but_one:
        raise typer.BadParameter("choose one of --each and --all-but-one.")
    subject, task = model_and_task(model, flags, where)
    from ..documents.ablation import AblationDocument, AllButOneDocument, ClosedUnit, OneHeadLeft
    from ..documents.results import ResultDocument
    from ..evaluation import ablation

    limit = int(memory * 2**30)
    if not all_but_one:
        task, fill = fill_of(stands_in, model, subject, flags, task)
        options: dict[str, Any] = {"units": units, "block": block, "fill": option_of(fill)}
        with running("ablate", model, subject, flags, {"data": task}, **options) as run:
            result = ablation.ablate(
                subject, task, units, block=block, memory=limit, run=run, fill=fill, specs=specs_of(flags.spec)
            )
            comparisons = result.comparisons(test, resamples=resamples, seed=flags.seed)
            counts: list[int | None] = [*result.unfinished] or [None] * len(result.names)
            listed = zip(result.names, comparisons, counts, strict=True)
            closed = tuple(ClosedUnit(closed=name, comparison=one, unfinished=count) for name, one, count in listed)
            whole = ResultDocument.of(result.base)
            document = AblationDocument(base=whole, test=test, fill=result.fill, ablations=closed)
            keep(run, document, flags, ablation_text(result, comparisons))
        return
    select, report, how = two_sets(model, subject, flags, task, "select", select_data, select_limit)
    report, fill = fill_of(stands_in, model, subject, flags, report, select)
    sets = {"select": select, "report": report}
    with running("ablate-all-but-one", model, subject, flags, sets, fill=option_of(fill)) as run:
        base, rows, chosen = ablation.ablate_all_but_one(
            subject,
            report,
            select,
            test=test,
            resamples=resamples,
            seed=flags.seed,
            memory=limit,
            run=run,
            fill=fill,
            specs=specs_of(flags.spec),
        )
        attentions = tuple(
            OneHeadLeft(site=r.site, head=r.head.index, chosen_on=r.chosen_on, comparison=r.comparison) for r in rows
        )
        one_head_document = AllButOneDocument(
            base=ResultDocument.of(base),
            select=ResultDocument.of(chosen.base),
            test=test,
            sets=how,
            fill=chosen.fill,
            attentions=attentions,
        )
        ended = limit_notes({" of the whole model": base.unfinished}, base.n)
        keep(run, one_head_document, flags, f"{base}\n{how}\n{fill_line(chosen.fill)}" + one_head_table(rows) + ended)


def transfer(
    model: Model,
    flags: CommonFlags,
    other_data: Annotated[str, typer.Option("--other-data", metavar="FILE", help="The other data set.")],
    other_target: Annotated[
        str | None, typer.Option("--other-target", help="The other side of parallel text, for --other-data.")
    ] = None,
    units: Units = "heads",
    *,
    stands_in: FillFlags,
    where: Placement,
) -> None:
    """Do the same heads matter on other data? The same ablation on two data sets, and how well they agree.

    Examples:

        headcount transfer my-model --data mnli/dev_matched.tsv --other-data mnli/dev_mismatched.tsv
    """
    subject, task = model_and_task(model, flags, where)
    from ..documents.ablation import Damages, TransferDocument
    from ..documents.results import ResultDocument
    from ..evaluation import ablation

    other_data, group = own_groups(flags, other_data)
    target = {"target": other_target} if other_target else {}
    second_task = make_task(model, subject, flags, other_data, group=group, **target)
    uses = splits.share_out(task, {"measure": 1.0}, flags.seed, {"compare": second_task})
    task, second_task = uses.tasks["measure"], uses.tasks["compare"]
    note = f"note: {uses.left_out}\n" if uses.left_out else ""
    if stands_in.fill == "counterfactual":
        raise typer.BadParameter(
            "counterparts belong to one data set, and transfer measures two: choose another --fill."
        )
    task, fill = fill_of(stands_in, model, subject, flags, task)
    options = {"units": units, "fill": option_of(fill)}
    with running("transfer", model, subject, flags, {"one": task, "other": second_task}, **options) as run:
        result = ablation.transfer(
            subject, (task, second_task), units, run=run, seed=flags.seed, fill=fill, specs=specs_of(flags.spec)
        )
        document = TransferDocument(
            sets=splits.in_words(uses, {"measure": "measured", "compare": "compared"}),
            fill=result.one.fill,
            one=ResultDocument.of(result.one.base),
            other=ResultDocument.of(result.other.base),
            pearson=result.pearson,
            spearman=result.spearman,
            ceiling=result.ceiling,
            ceiling_low=result.ceiling_low,
            ceiling_high=result.ceiling_high,
            units=result.one.names,
            damage=Damages(one=tuple(result.one.damage.tolist()), other=tuple(result.other.damage.tolist())),
        )
        keep(run, document, flags, note + transfer_text(result))


def model_and_task(
    name: str, flags: CommonFlags, where: Placement | None = None, *, optional: bool = False, lazy: bool = False
) -> tuple[Any, Any]:
    """The model and its task, or none where a criterion needs no data."""
    if not names_examples(flags) and not optional:
        raise typer.BadParameter("say which data to measure on with --data FILE.")
    quieten()
    spread = {} if where is None else where.keywords(flags, lazy=lazy)
    model = load_model(name, flags, lazy=lazy, spread=spread)
    return model, make_task(name, model, flags) if names_examples(flags) else None


def two_sets(
    name: str, model: Any, flags: CommonFlags, task: Task, use: str, other_data: str | None, limit: int | None = None
) -> tuple[Task, Task, str]:
    """Examples to choose on (`use`) and examples to report on, which share none, and a sentence that says which they are."""
    if other_data is None:
        uses = splits.share_out(task, {use: 0.5, "report": 0.5}, flags.seed)
    else:
        sample = SCORED_ON if use == "score" else None
        own = {use: other_task(name, model, flags, other_data, limit, sample=sample)}
        uses = splits.share_out(task, {"report": 1.0}, flags.seed, own)
    how = splits.in_words(uses, {use: "chosen", "report": "reported"})
    return uses.tasks[use], uses.tasks["report"], how


def keep(run: Run, document: JsonDocument, flags: Running, text: str) -> None:
    """Write what was found into the run folder, and show it: as a text for people, or as JSON."""
    data = document.to_json()
    run.write_json(document.NAME, data, replace=True)  # it follows from the pieces; an earlier version wrote fewer keys
    if flags.as_json:
        print(json.dumps({**data, "run": str(run.folder)}, indent=2))
    else:
        out.print(text, soft_wrap=True, markup=False)
        out.print(f"run folder: {run.folder}", soft_wrap=True, markup=False)
