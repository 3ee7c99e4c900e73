"""The command that ships: `prune`. A smaller checkpoint, what was shown about its cost, and a page that explains it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadPlan
from .options import (
    Checkpointing,
    CommonFlags,
    Only,
    ScoreData,
    ScoreLimit,
    SelectLimit,
    load_model,
    named_paths,
    names_examples,
    quieten,
    scoring_with,
)
from .pruning.front import FrontRequest, sets_from
from .pruning.targets import Targets
from .pruning.work import Work, carry_out, train_along
from .run_folder import question_of
from .training.options import Recovery, is_main, own_device

if TYPE_CHECKING:
    from ..data.seen_examples import Seen
    from ..plans import Plan
    from ..pruning.tuning.compensation import Ways


SIZES = ("remove", "flops", "params", "kv_cache", "memory", "speedup")


def prune(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a name on the hub.")],
    flags: CommonFlags,
    recovery: Recovery,
    targets: Targets,
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
    kv_cache: Annotated[
        str | None,
        typer.Option(
            "--kv-cache", help="KV cache budget of a decoder, as a share of its bytes per token, such as 50%."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            help="Memory budget of a decoder: weights and KV cache, in the file's number format, such as 6GiB.",
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", min=1, help="With --memory: tokens of each text in the cache.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="With --memory: texts in the cache.", show_default="1")
    ] = None,
    speedup: Annotated[
        float | None, typer.Option("--speedup", help="Speed-up to reach on this machine, such as 1.3.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="Plan file to cut by; with --max-drop it is tested.")
    ] = None,
    row: Annotated[int | None, typer.Option("--row", min=1, help="Row of the trade-off to carry out.")] = None,
    tradeoff: Annotated[
        Path | None,
        typer.Option(
            "--tradeoff",
            metavar="FOLDER",
            help="Run folder of the trade-off.",
            show_default="that of the same model and data",
        ),
    ] = None,
    brake: Annotated[
        str,
        typer.Option(
            "--brake",
            help="Largest fall of the metric on scoring examples: a share of the way to a constant answer, points, or off.",
        ),
    ] = "50%",
    by: Annotated[
        str | None,
        typer.Option(
            "--by", help="Importance criterion of `score`.", show_default="taylor or fisher; several for a budget"
        ),
    ] = None,
    units: Annotated[
        str | None,
        typer.Option(
            "--units",
            help="heads, neurons, layers, kv-groups (a kv head with its query heads); commas for several.",
            show_default="heads; heads,neurons for the trade-off; kv-groups for --kv-cache; kv-groups,neurons for --memory",
        ),
    ] = None,
    checkpointing: Checkpointing = False,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Mask tuning: rearrange and rescale the units that stay by least squares, without training."
        ),
    ] = False,
    compensate: Annotated[
        str | None,
        typer.Option(
            "--compensate",
            help="What makes up for units that go: mean (what they write on average, in a bias), lstsq (all columns that stay, "
            "fitted anew by least squares), or mean,lstsq (with a bias).",
        ),
    ] = None,
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
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads on a CPU.", show_default="as many as cores")
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
    With --max-drop beside a size both must hold. Without any size, the trade-off is shown: what can be had for what, to be
    carried out with --row. A plan that would ruin the model is refused (--brake).
    The final numbers come from examples that had no part in it. With --data alone, it is split. Promises tried before on
    the same examples, as far as run folders know, are counted and share alpha; see docs/guarantee.md.

    Examples:

        headcount prune my-model --data dev.tsv --max-drop 1.0 -o smaller

        headcount prune my-model --data test.tsv --score-data train.tsv --score-limit 2000 --remove 40% -o smaller

        headcount prune my-model --data dev.tsv --units heads,neurons --flops 50% --tune -o smaller

        headcount prune my-model --data dev.tsv --units heads,neurons,layers --speedup 1.5 --batch-size 32 -o smaller

        headcount prune my-model --data dev.tsv --units layers --by top --remove 4 --recover 1 --recover-data train.tsv -o small

        headcount prune my-model --data dev.tsv --units heads,neurons --speedup 1.5 --max-drop 1.0 -o smaller

        headcount prune my-model --data dev.tsv --score-data train.tsv

        headcount prune my-model --data dev.tsv --score-data train.tsv --row 4 -o smaller

        headcount prune my-model --data dev.tsv --max-drop 1.0 --dry-run

        headcount prune my-model --data dev.tsv --plan plan.json -o smaller

        headcount prune my-model --data dev.txt --remove 25% --for gguf --export gguf -o smaller
    """
    needed = named_paths(model, flags.data, flags.target, run, plan, score_data, select_data, recovery.recover_data)
    how_much = {"remove": remove, "max_drop": max_drop, "flops": flops, "params": params, "speedup": speedup}
    newer = {
        "kv_cache": kv_cache,
        "memory": memory,
    }  # left out where not asked for: run folders of before are found again
    how_much |= {name: value for name, value in newer.items() if value is not None}
    if (memory is None) != (context is None) or (memory is None and batch is not None):
        raise typer.BadParameter(
            "--memory is weights and cache: it goes with --context (and --batch), and they with it."
        )
    served = {} if memory is None else {"context": context, "batch": batch or 1}
    front_only = row is None and plan is None and all(value is None for value in how_much.values())
    _sane(model, flags, output, force, dry_run or front_only, run, needed)
    targets.sane()
    places_of_exports = targets.places(output, force, needed)
    usual = "heads,neurons" if front_only or row is not None else "heads"
    usual = "kv-groups,neurons" if memory is not None else usual
    units = units or ("kv-groups" if kv_cache is not None else usual)
    recovery.sane(max_drop is not None, dry_run)
    kinds = [word.strip() for word in units.split(",") if word.strip()]
    units = ",".join(dict.fromkeys(kinds))
    promising = {"--alpha": alpha, "--step": step, "--tries": tries, "--cap": cap, "--fresh": fresh or None}
    if front_only:
        promising.pop("--step")
    _go_together(how_much, row, plan, tradeoff, promising)
    if multiple is not None and (multiple < 1 or "neurons" not in kinds):
        raise typer.BadParameter("--multiple is a number of neurons, 1 or more, and goes with --units neurons.")
    if budget_minutes is not None and not 0 < budget_minutes < float("inf"):
        raise typer.BadParameter("--budget-minutes is a number of minutes above 0.")
    data_flags = (score_data, score_limit, select_data, select_limit)
    quieten()
    from ..efficiency.contention import threads as computing_with
    from ..errors import TooMuchLost
    from ..importance.criteria import NEED_NO_DATA
    from ..pruning import ledger, selection
    from ..pruning.tuning.compensation import ways_of
    from ..stats.brake import brake_setting
    from ..stats.guarantee import check_promise

    ways = ways_of(compensate, tune)
    if ways.compensate and front_only:
        raise typer.BadParameter(f"--compensate {ways.compensate} goes with a size, a plan or a row.")
    level, brake_at = 0.05 if alpha is None else alpha, brake_setting(brake)
    if max_drop is not None:
        check_promise(max_drop, level)
        check_promise(max_drop, level / (tries or 1))
    from_front = front_only or row is not None
    needs = (any(ways) or from_front or (plan is None and by not in NEED_NO_DATA), max_drop is not None)
    _all_used(needs, data_flags)
    if not from_front:
        selection.size_of(plan, **how_much)
    flags = replace(flags, device=own_device(flags))
    subject = load_model(model, flags)
    targets.check_whole(subject)
    wanted, chosen_on, seen_examples = _read_plan(plan, ways) if plan is not None else (None, None, {})
    sets = sets_from(model, subject, flags, needs, data_flags, chosen_on, seen_examples)
    length = length or selection.usual_length(sets.report)
    names = [word.strip() for word in only.split(",") if word.strip()]
    places = [Path("runs"), *([] if run is None else [run.parent])]  # where earlier runs are looked for
    front = FrontRequest(
        model,
        subject,
        flags,
        units,
        by,
        step if front_only else None,
        least,
        names,
        multiple,
        length,
        threads,
        **targets.question(),
        groups=targets.groups,
    )
    scoring = scoring_with(checkpointing, by)
    if front_only:
        with scoring:
            front.show(sets, places, run)
        return
    if row is not None:
        wanted = front.plan_of_row(row, sets, places, tradeoff)
    settings: dict[str, Any] = {"by": by, "units": units, "least": least, "only": names, "length": length}
    settings |= {"tune": ways.tune, "multiple": multiple, "step": step or "5%", "alpha": level, "cap": cap}
    settings |= ({"compensate": ways.compensate} if ways.compensate else {}) | served
    options = {
        **how_much,
        **settings,
        "plan": None if wanted is None else wanted.to_json(),
        "recovery": recovery.question(),
        "brake": None if brake == "50%" else brake,
    }
    options |= targets.question()
    in_groups = wanted is not None or kv_cache is not None or memory is not None  # as planned, or groups go as wholes
    options |= {} if in_groups else {"groups": front.options["groups"]}
    options |= {"tries": tries, "fresh": fresh or None, "row": row, "threads": threads}
    options |= {} if budget_minutes is None else {"budget_minutes": budget_minutes}
    if fresh:
        question = question_of("prune", model, subject, flags, sets.fresh(sets.select).tasks(), options)
        sets = sets.fresh(ledger.left_over(sets.select, question, places))
    lesson, left_out = recovery.task(model, subject, flags, sets.report)
    sets = sets.noting(left_out)
    tasks = sets.tasks() | ({} if lesson is None else {"recover": lesson})
    # what is trained afterwards may be ruined before, and whoever picked a row has seen what it is worth
    brake_now = None if row is not None or (lesson is not None and brake == "50%") else brake_at

    work = Work(
        name=model,
        model=subject,
        flags=flags,
        folder=run,
        sets=sets,
        tasks=tasks,
        lesson=lesson,
        recovery=recovery,
        plan=wanted,
        chosen_on=chosen_on,
        seen_examples=seen_examples,
        wanted={
            **how_much,
            **settings,
            "brake": brake_now,
            "runtime": targets.runtime or (),
            "tensor_parallel": targets.tensor_parallel,
            "groups": targets.groups,
        },
        options=options,
        places=places,
        tries=tries or 1,
        drawn_alike=select_data is None,
        output=output,
        force=force,
        dry_run=dry_run,
        report=report,
        needed=needed,
        places_of_exports=places_of_exports,
        budget_minutes=budget_minutes,
    )
    act = carry_out if is_main() else train_along  # the first process chooses, measures and writes
    try:
        with computing_with(threads), scoring:
            act(work)
    except TooMuchLost as refusal:
        front.show_instead(str(refusal), sets, places)


def _sane(
    model: str,
    flags: CommonFlags,
    output: Path | None,
    force: bool,
    dry_run: bool,
    run: Path | None,
    needed: list[Path],
) -> None:
    """What is wrong with the flags is said before any work is done."""
    if not names_examples(flags):
        raise typer.BadParameter("say which data to measure on with --data FILE.")
    if output is None and not dry_run:
        raise typer.BadParameter("say where to write with -o FOLDER, or use --dry-run.")
    if output is not None and run is not None:
        places = output.resolve(), run.resolve()
        if places[0] in (places[1], *places[1].parents) or places[1] in places[0].parents:
            raise typer.BadParameter("-o and --run must be different folders, neither inside the other.")
    if output is not None:
        from ..model.model_folders import may_be_written

        may_be_written(output, force, needed, Path(model))


def _go_together(
    how_much: dict[str, Any], row: int | None, plan: Path | None, tradeoff: Path | None, promising: dict[str, Any]
) -> None:
    """Refuse flags that say the same thing twice, and those that need another one."""
    if row is not None and (plan is not None or any(how_much.get(name) is not None for name in SIZES)):
        raise typer.BadParameter(
            "--row is a size of its own: leave --remove, --flops, --params, --kv-cache, --memory, --speedup and --plan out."
        )
    if tradeoff is not None and row is None:
        raise typer.BadParameter("--tradeoff goes with --row.")
    for name in (name for name, value in promising.items() if value is not None and how_much["max_drop"] is None):
        raise typer.BadParameter(f"{name} goes with --max-drop.")


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


def _read_plan(path: Path, ways: Ways) -> tuple[Plan, dict[str, Any] | None, Seen]:
    """The plan in a file, and, where prune wrote it, which examples it has seen (or which part, by an older headcount)."""
    from ..data.seen_examples import read_seen
    from ..plans import Plan, read_json

    data = read_json(path)
    plan, chosen_on = Plan.from_json(data), data.get("chosen_on")
    if data.get("tuned") and not ways.tune:
        typer.echo(
            f"note: what stays of {path} was tuned, which is not in the plan: add --tune to do it again", err=True
        )
    if data.get("compensated") and not (ways.mean or ways.lstsq):
        done = data["compensated"] if isinstance(data["compensated"], str) else "mean"
        typer.echo(
            f"note: {path} was compensated, which is not in the plan: add --compensate {done:.20} to do it again",
            err=True,
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
