"""The command line: one thin command per verb, errors in one sentence, exit codes 0 (done), 1 (refused or failed), 2 (usage)."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from .. import __version__
from ..errors import HeadcountError
from ..formatting import counted, short_count
from . import bench, export, lottery, measure, prune, report, reproduce, roles
from .circuits import attribute, weights
from .help import demo as walk
from .help import doctor
from .help.panels import arranged
from .interventions import circuit, generate, patch
from .options import how_to_load, named_paths, out, quieten, say_notes, specs_of, with_data
from .pruning import tradeoff
from .training import learn, train

if TYPE_CHECKING:
    from ..model.anatomy import Anatomy, Site

app = typer.Typer(
    name="headcount",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Which attention heads, neurons and layers of a transformer earn their keep, and how to remove the rest.\n\n"
    "Examples:\n\n"
    "    headcount demo                                     # everything, on embedded models, offline\n\n"
    "    headcount doctor                                   # is all installed, and exact here?\n\n"
    "    headcount prune my-model --data dev.tsv --max-drop 1.0 -o smaller   # the main job\n\n"
    "    headcount tradeoff my-model --data dev.tsv         # what can be had for what\n\n"
    "    headcount inspect my-model                         # a folder, or a name on the hub\n\n"
    "    headcount score my-model --data dev.tsv            # which heads matter\n\n"
    "    headcount ablate my-model --data dev.tsv --each    # what each head is worth, with tests\n\n"
    "    headcount curve my-model --data dev.tsv            # how many can go\n\n"
    "    headcount roles my-model --data dev.conllu         # what each head looks at\n\n"
    '    headcount look my-model --text "..." --open        # attention on one text, as a page\n\n'
    "    headcount patch my-model --task contrast:ioi       # which activations carry the answer\n\n"
    "    headcount circuit my-model --task contrast:ioi     # which heads and MLPs are enough for it\n\n"
    "    headcount attribute my-model --data prompts.tsv --right right --wrong wrong   # what each head adds to a logit\n\n"
    "    headcount weights my-model                         # which heads copy, and how heads compose, by the weights\n\n"
    "    headcount bench my-model smaller                   # is it faster?\n\n"
    "    headcount export smaller --to onnx -o graph        # for other programs: gguf, onnx, vllm, ...\n\n"
    "    headcount train smaller --data train.tsv -o better # let it recover\n\n"
    "    headcount report runs -o page.html                 # one page of all that was found\n\n"
    "    headcount reproduce michel-heads                   # an experiment of a paper, again\n\n"
    "    headcount cut my-model 3:7 5:0-3 -o smaller        # remove five heads\n\n"
    "    headcount cut my-model layers:4 3.mlp:* -o smaller # a whole layer, and all of one MLP\n\n"
    "Units are written SITE:INDICES; `inspect` lists the sites.",
)
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model folder, a GGUF file, an adapter, or a name on the hub.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that ships with the model.")]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        "--module-spec",
        metavar="JSON",
        help='Your own naming of modules: \'{"reads": ["wq","wk","wv"], "writes": ["wo"]}\'.',
    ),
]


MANNERS = ("slim", "padded", "empty")
STOPPED = 130  # the exit code after Ctrl-C
STOP_SIGNALS = (
    "SIGTERM",
    "SIGHUP",
)  # from `kill`, a scheduler or a closed terminal: they stop a command as Ctrl-C does


def _version(show: bool) -> None:
    if show:
        print(f"headcount {__version__}")
        raise typer.Exit


def do(words: Sequence[str]) -> None:
    """Do what the words after `headcount` say, in this process; whatever keeps it from being done is raised."""
    try:
        code = app(list(words), standalone_mode=False)
    except typer.Abort:  # what Ctrl-C has become
        raise KeyboardInterrupt from None
    if code == STOPPED:
        raise KeyboardInterrupt
    if code:
        raise SystemExit(code)


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    context.obj = do  # for a command that is made of others


@app.command()
def inspect(
    model: Model,
    every: Annotated[bool, typer.Option("--all", help="One line per site, also where layers are alike.")] = False,
    as_json: AsJson = False,
    spec: Rows = None,
    trust_remote_code: Trust = False,
) -> None:
    """Show the attentions, MLPs and layers of a model, their parameters, and what can be cut. Reads no weights.

    Examples:

        headcount inspect my-model

        headcount inspect google-bert/bert-base-uncased --json

        headcount inspect model.Q4_K_M.gguf
    """
    quieten()
    from ..model.checkpoints import load
    from ..model.discovery import find
    from ..model.loading.number_formats import format_in_words

    say_notes(model)
    empty = load(model, weights=False, trust_remote_code=trust_remote_code)
    anatomy = find(empty, specs_of(spec))
    rows = [_site_row(site, anatomy, empty) for site in anatomy]
    total = sum(p.numel() for p in empty.parameters())
    if as_json:
        print(json.dumps(_anatomy_json(model, anatomy, rows, total), indent=2))
        return
    out.print(f"[bold]{anatomy.model_name}[/] · {_n(total)} parameters{format_in_words(empty.config)}", soft_wrap=True)
    table_rows = rows if every else _alike(rows, anatomy)
    out.print(_site_table(table_rows, total))
    for row in table_rows:
        if row["cut"] not in MANNERS:
            out.print(f"[yellow]{row['site']} can be masked, not cut:[/] {row['cut']}")
    for stack in anatomy.stacks:
        out.print(f"{stack.name}: {len(stack)} of {stack.of} layers")
    for path, reason in anatomy.refused:
        out.print(f"[yellow]not supported:[/] {path}: {reason}")
    for path in anatomy.unknown:
        out.print(f"[yellow]looks like attention, built in a way not known:[/] {path}")


@app.command()
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
    from ..model.model_folders import claimed, may_be_written

    needed = named_paths(model, plan, scores)
    if output is not None:
        may_be_written(output, force, needed, Path(model))
    quieten()
    from ..model import checkpoints
    from ..model.cutting import surgery
    from ..model.cutting.effects import cut_effects as list_effects
    from ..model.discovery import find

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
    out.print(_price_table(cut_effects))
    out.print(
        f"{counted(len(wanted), 'unit')}, {_n(before)} -> {_n(after)} parameters ({(after - before) / before:+.1%})"
    )
    if not dry_run:
        proof = "proved equal to the masked model on a small batch" if batch is not None else "not checked on a batch"
        out.print(f"written to {output} · {proof}")
        out.print(how_to_load(output), soft_wrap=True, markup=False)


app.command()(doctor.doctor)
app.command()(arranged(bench.bench))
app.command()(export.export)
app.command()(generate.generate)
app.command()(report.report)
app.command()(arranged(reproduce.reproduce))
app.command()(arranged(with_data(prune.prune)))
app.command()(with_data(tradeoff.tradeoff))
app.command()(arranged(with_data(train.train)))
app.command()(arranged(with_data(learn.learn)))
app.command()(arranged(with_data(lottery.lottery)))
app.command()(with_data(roles.roles))
app.command()(roles.look)
app.command()(with_data(attribute.attribute))
app.command()(with_data(weights.weights))
app.command()(arranged(with_data(measure.curve)))
app.command()(arranged(with_data(circuit.circuit)))
for command in (measure.evaluate, measure.score, measure.ablate, measure.transfer, patch.patch):
    app.command()(with_data(command))


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where everything goes.")] = Path(
        "headcount-demo"
    ),
) -> None:
    """Walk through everything on two small models that are part of headcount: offline, in a few minutes.

    Every command is shown before it runs; all of them work on your own model and data too.

    Examples:

        headcount demo

        headcount demo -o somewhere-else
    """
    walk.unpack(output)
    for words in walk.walk(output):
        out.print(f"\n[bold]$ headcount {shlex.join(words)}[/]", soft_wrap=True)
        do(words)
    out.print(f"\nEverything is in {output}: open {output / 'report.html'}", soft_wrap=True, markup=False)


# -- helpers -------------------------------------------------------------------------------------------------------------


def _wanted(units: list[str] | None, file: Path | None) -> list[Any]:
    from ..plans import Plan

    return [*(units or []), *(Plan.read(file) if file is not None else ())]


def _least_important(scores: Path | None, remove: str | None, least: int) -> list[Any]:
    if scores is None or remove is None:
        return []
    from ..documents.scores import Scores, plan

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


def _n(count: int) -> str:
    return f"{count:,}"


def _site_row(site: Site, anatomy: Anatomy, model: Any) -> dict[str, Any]:
    """One site as a row: sizes, parameters of the whole site and of one unit, and whether it can be cut."""
    from ..model.cutting.effects import site_effect
    from ..model.cutting.rules import is_padded, refusal

    reason = refusal(site, anatomy, model)
    site_parameters = sum(
        p.numel() for m in {id(m): m for m in (*site.readers, site.writer)}.values() for p in m.parameters()
    )
    unit = site_effect(site, tuple(range(1, len(site)))).parameters if reason is None and len(site) else 0
    return {
        "site": site.name,
        "kind": site.kind,
        "attention": site.attention,
        "layer": site.layer,
        "path": site.path,
        "units": len(site),
        "of": site.of,
        "kv_heads": site.kv_heads if site.kind == "head" else None,
        "width": site.width,
        "parameters": site_parameters,
        "parameters_per_unit": unit,
        "cut": reason or ("padded" if is_padded(site) else "slim" if len(site) else "empty"),
    }


def _anatomy_json(name: str, anatomy: Anatomy, rows: list[dict[str, Any]], total: int) -> dict[str, Any]:
    return {
        "model": name,
        "class": anatomy.model_name,
        "parameters": total,
        "sites": rows,
        "stacks": [{"stack": s.name, "path": s.path, "layers": list(s.ids), "of": s.of} for s in anatomy.stacks],
        "refused": [{"path": path, "reason": reason} for path, reason in anatomy.refused],
        "unknown": list(anatomy.unknown),
    }


def _alike(rows: list[dict[str, Any]], anatomy: Anatomy) -> list[dict[str, Any]]:
    """Rows of neighbouring layers that differ in nothing but the layer, as one row with a range for a name."""
    from ..model.anatomy import alike_layers, joined_name

    by_name = {row["site"]: row for row in rows}
    keys = ("kind", "attention", "units", "of", "kv_heads", "width", "parameters", "cut")
    runs = alike_layers(anatomy.sites, lambda site: tuple(by_name[site.name][key] for key in keys))
    return [{**by_name[run[0].name], "site": joined_name(run), "times": len(run)} for run in runs]


def _site_table(rows: list[dict[str, Any]], total: int) -> Table:
    """One line per row; parameters and their share are those of one attention or MLP, then those of one of its units."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("site", overflow="fold")  # of the columns this one alone may be narrower than its texts
    for title in ("type", "units", "kv", "width", "params", "share", "a unit", "cut"):
        table.add_column(title, justify="left" if title in ("type", "cut") else "right", no_wrap=True)
    for row in rows:
        times, unit = row.get("times", 1), row["parameters_per_unit"]
        units = f"{row['units']} of {row['of']}" if row["units"] != row["of"] else str(row["units"])
        type_text = f"{row['attention'] or 'mlp'}" + (f" ×{times}" if times > 1 else "")
        sizes = (short_count(row["parameters"]), f"{row['parameters'] / total:.1%}", short_count(unit) if unit else "")
        cut = row["cut"] if row["cut"] in MANNERS else "refused"
        table.add_row(row["site"], type_text, units, str(row["kv_heads"] or ""), str(row["width"]), *sizes, cut)
    return table


def _price_table(cut_effects: list[Any]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("site", "units", "left", "mode", "parameters", "kv heads in the cache"):
        table.add_column(title, justify="left" if title in ("site", "mode") else "right")
    for price in cut_effects:
        cache = f"{price.kv_heads} -> {price.kv_left}" if price.kv_heads else ""
        table.add_row(price.name, str(price.units), str(price.left), price.mode, f"-{_n(price.parameters)}", cache)
    return table


def main() -> None:
    """Run the command line; every error that is ours, and every ordinary one, ends as one sentence."""
    with _stop_signals() as received:
        try:
            _run()
        except SystemExit as error:
            if received and error.code == STOPPED:
                raise SystemExit(128 + received[0]) from None
            raise


def _run() -> None:
    from ..progress import lines

    try:
        with lines():
            app(standalone_mode=True)
    except HeadcountError as error:
        sys.stderr.write(f"headcount: {error}\n")
        raise SystemExit(1) from None
    except (KeyboardInterrupt, BrokenPipeError):
        raise SystemExit(STOPPED) from None
    except Exception as error:
        if os.environ.get("HEADCOUNT_DEBUG"):
            raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        sys.stderr.write(f"headcount: {type(error).__name__}: {first} (set HEADCOUNT_DEBUG=1 to see where)\n")
        raise SystemExit(1) from None


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Within the block, signals that end a process are Ctrl-C to it; the list has those that came.

    One that is ignored stays so: `nohup` wants that.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for handle in (1, 2):
            try:
                os.write(handle, b"")
            except OSError:  # the terminal is gone, and what is still printed must not end the cleaning up
                with suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), handle)
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]
    replaced = {}
    if threading.current_thread() is threading.main_thread():
        replaced = {
            number: signal.signal(number, stop) for number in numbers if signal.getsignal(number) == signal.SIG_DFL
        }
    try:
        yield received
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
