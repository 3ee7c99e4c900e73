"""The command `cut`: units leave a checkpoint for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ...formatting import counted, with_commas
from ..options import named_paths, out, quieten, say_notes, specs_of
from ..tables import effects_table
from ..text import how_to_load
from .inspect import AsJson, Model, Rows, Trust


def cut(
    model: Model,
    units: Annotated[
        list[str] | None, typer.Argument(metavar="[UNITS]...", help="What to remove: 3:7, 5:0-3, 2.mlp:*, layers:4.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The folder to write.")] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="A plan file (JSON), instead of or added to UNITS.")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option("--scores", help="Scores from `headcount score`, for --remove.")
    ] = None,
    remove: Annotated[
        str | None, typer.Option("--remove", help="How many of the units scored: a count, or a share such as 40%.")
    ] = None,
    least: Annotated[int, typer.Option("--least", help="With --remove: units that every site keeps.")] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed and what it saves; write nothing.")
    ] = False,
    portable: Annotated[
        bool, typer.Option("--portable", help="Write a folder that a stock from_pretrained can load.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output folder if it is a model and nothing else.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Check on a small batch that the cut model equals the masked one."),
    ] = True,
    shards: Annotated[
        bool,
        typer.Option("--shards", help="For models larger than memory: read, cut and write one tensor at a time."),
    ] = False,
    shard_size: Annotated[
        str,
        typer.Option("--shard-size", metavar="SIZE", help="With --shards: largest file of weights that is written."),
    ] = "5GB",
    as_json: AsJson = False,
    spec: Rows = None,
    trust_remote_code: Trust = False,
) -> None:
    """Remove heads, neurons or layers and save the smaller model.

    Examples:

        headcount cut my-model 3:7 5:0-3 -o smaller

        headcount cut my-model --plan plan.json --dry-run

        headcount cut my-model --scores runs/x/scores.json --remove 40% -o smaller

        headcount cut my-model layers:10-11 -o smaller --portable

        headcount cut my-large-model --scores runs/x/scores.json --remove 20% --shards -o smaller
    """
    if not units and plan is None and scores is None:
        raise typer.BadParameter("name the units to remove, or give --plan FILE, or --scores FILE and --remove.")
    if (scores is None) != (remove is None):
        raise typer.BadParameter("--scores and --remove go together: which scores, and how many units.")
    if output is None and not dry_run:
        raise typer.BadParameter("say where to write with -o FOLDER, or use --dry-run.")
    from ...model.model_folders import claimed, may_be_written

    needed = named_paths(model, plan, scores)
    if output is not None:
        may_be_written(output, force, needed, Path(model))
    quieten()
    from ...model import checkpoints
    from ...model.cutting import surgery
    from ...model.cutting.effects import cut_effects as list_effects
    from ...model.discovery import find

    rows = specs_of(spec)
    say_notes(model)
    with claimed(None if dry_run else output, force, needed, Path(model)):
        lazy = shards and not dry_run
        subject = checkpoints.load(model, weights=not dry_run, lazy=lazy, trust_remote_code=trust_remote_code)
        wanted = find(subject, rows).plan([*_wanted(units, plan), *_least_important(scores, remove, least)])
        cut_effects = list_effects(subject, wanted, specs=rows)
        before = sum(p.numel() for p in subject.parameters())
        batch = _small_batch(subject) if check and not dry_run else None
        if not dry_run:
            assert output is not None
            surgery.cut(subject, wanted, check=batch, specs=rows)
            sizes = {"max_shard_size": shard_size} if shards else {}
            checkpoints.save(subject, output, source=model, portable=portable, force=force, **sizes)
    after = before - sum(price.parameters for price in cut_effects)
    if as_json:
        listed = [price._asdict() for price in cut_effects]
        print(
            json.dumps(
                {
                    "plan": wanted.to_json(),
                    "parameters": [before, after],
                    "sites": listed,
                    "checked": batch is not None,
                    "output": None if dry_run else str(output),
                },
                indent=2,
            )
        )
        return
    out.print(effects_table(cut_effects))
    sizes_text = f"{with_commas(before)} -> {with_commas(after)} parameters ({(after - before) / before:+.1%})"
    out.print(f"{counted(len(wanted), 'unit')}, {sizes_text}")
    if not dry_run:
        proof = "proved equal to the masked model on a small batch" if batch is not None else "not checked on a batch"
        out.print(f"written to {output} · {proof}")
        out.print(how_to_load(output), soft_wrap=True, markup=False)


def _wanted(units: list[str] | None, file: Path | None) -> list[Any]:
    from ...plans import Plan

    return [*(units or []), *(Plan.read(file) if file is not None else ())]


def _least_important(scores: Path | None, remove: str | None, least: int) -> list[Any]:
    if scores is None or remove is None:
        return []
    from ...documents.scores import Scores, plan

    return list(plan(Scores.read(scores), remove, least=least))


def _small_batch(model: Any) -> dict[str, Any] | None:
    """A few tokens of the model's own making, where it is a model of text; None for other kinds."""
    import torch

    if getattr(model, "main_input_name", "") != "input_ids":
        return None
    try:
        batch = {name: value for name, value in model.dummy_inputs.items() if isinstance(value, torch.Tensor)}
        with torch.no_grad():
            model(**{name: value.to(model.device) for name, value in batch.items()})
    except Exception:  # a model whose forward needs more than its dummy inputs: there is nothing to check with
        return None
    return {name: value.to(model.device) for name, value in batch.items()}
