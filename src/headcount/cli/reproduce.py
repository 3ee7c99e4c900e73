"""The command `reproduce`: experiments of the founding papers, run again, and what they said beside what is seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ..errors import BadRun
from .options import HOW, WHERE, command_line, flag, out
from .run_folder import say_stopped

if TYPE_CHECKING:
    from ..documents.claims import ClaimsDocument
    from ..reproduction import runner
    from ..reproduction.experiment import Setting
    from ..reproduction.inputs import Material
    from ..reproduction.registry import Planned
    from ..reproduction.runner import Outcome
    from ..runs import Run

SETTING = "setting.json"  # what all of a folder's experiments were run on; a folder with it is ours to write to
WHICH = "Models and data, instead of the embedded ones"
COLOURS = {"confirmed": "green", "not confirmed": "red", "differs": "yellow", "cannot be told": "dim"}
# A flag says more about what another one brings.
NEEDS = {
    "--tasks": "--glue",
    "--encoder": "--glue",
    "--classifier": "--glue",
    "--translator": "--pairs",
    "--languages": "--pairs",
}


def reproduce(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAMES]...", help="Experiments, papers (michel, voita, ...), all, or list."),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="All data and the papers' settings, for a GPU.", show_default="a size for laptops"),
    ] = False,
    encoder: Annotated[
        str | None, flag("--encoder", panel=WHICH, metavar="MODEL", help="A pretrained encoder, to be fine-tuned.")
    ] = None,
    glue: Annotated[
        Path | None, flag("--glue", panel=WHICH, metavar="FOLDER", help="Tasks: SST-2/train.tsv, SST-2/dev.tsv, ...")
    ] = None,
    tasks: Annotated[
        str | None,
        flag("--tasks", panel=WHICH, help="Tasks to use, separated by commas: SST-2,CoLA.", show_default="all"),
    ] = None,
    classifier: Annotated[
        str | None, flag("--classifier", panel=WHICH, metavar="MODEL", help="Fine-tuned on the first of the tasks.")
    ] = None,
    translator: Annotated[
        str | None,
        flag(
            "--translator",
            panel=WHICH,
            metavar="MODEL",
            help="Translation model for the parallel text.",
            show_default="one is trained",
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        flag("--pairs", panel=WHICH, metavar="FOLDER", help="Parallel text: train.de, train.en, val.de, ..."),
    ] = None,
    languages: Annotated[
        str | None, flag("--languages", panel=WHICH, help="Source and target language: de,en.")
    ] = None,
    parses: Annotated[
        Path | None, flag("--parses", panel=WHICH, metavar="FILE", help="Sentences with gold parses (CoNLL-U).")
    ] = None,
    seeds: Annotated[
        str | None,
        flag(
            "--seeds",
            panel=HOW,
            help="Random seeds of training, separated by commas.",
            show_default="0; 0,1,2 with --full",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        flag(
            "--workers",
            panel=HOW,
            help="Commands that run at a time, each in its own process.",
            show_default="1; with --on ray one per device",
        ),
    ] = None,
    on: Annotated[
        str | None,
        flag("--on", panel=HOW, metavar="ray", help="Run the commands on Ray, on nodes that share FOLDER."),
    ] = None,
    device: Annotated[
        str | None, flag("--device", panel=HOW, help="cpu, cuda, ...", show_default="a GPU if there is one, or the CPU")
    ] = None,
    output: Annotated[
        Path, flag("-o", "--output", panel=WHERE, metavar="FOLDER", help="Where everything goes.")
    ] = Path("papers"),
    dry_run: Annotated[bool, flag("--dry-run", panel=WHERE, help="Print the commands and do nothing.")] = False,
    as_json: Annotated[bool, flag("--json", panel=WHERE, help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[
        bool,
        flag("--quiet", "-q", panel=WHERE, help="Print the results only; output of the commands is in FOLDER/logs."),
    ] = False,
) -> None:
    """Run the experiments of the founding papers again, and see which of their statements hold here.

    Each is a list of ordinary commands in run folders of their own, then a verdict for each statement of the paper, and a
    page. Without models and data the embedded ones are used, offline; with --full those of the papers, by name. Started
    again, it goes on where it was.

    Examples:

        headcount reproduce list

        headcount reproduce michel-heads

        headcount reproduce michel voita --dry-run

        headcount reproduce all --full --workers 4 --device cuda -o papers-full

        headcount reproduce all --full --on ray -o papers-full

        headcount reproduce michel-curves --glue glue --tasks SST-2 --classifier my-model -o mine

        headcount reproduce voita-encoder --pairs multi30k --languages de,en --seeds 0,1,2 --full
    """
    _together(
        {"--tasks": tasks, "--encoder": encoder, "--classifier": classifier, "--glue": glue}
        | {"--translator": translator, "--languages": languages, "--pairs": pairs}
    )
    if on not in (None, "ray"):
        raise typer.BadParameter(f"--on ray is what there is; I got {on!r:.40}.")
    if workers is not None and workers < 1:
        raise typer.BadParameter(f"--workers is a number of processes, at least 1; I got {workers}.")
    from ..reproduction import inputs, registry, verdicts
    from ..reproduction.experiment import RunDocuments, Setting
    from ..reproduction.seeds import collapsed

    own = {"encoder": encoder, "glue": glue, "tasks": _words(tasks), "classifier": classifier}
    own |= {"translator": translator, "pairs": pairs, "languages": _words(languages), "parses": parses and str(parses)}
    own = {name: value for name, value in own.items() if value is not None}
    material = inputs.given(output, **own) if own else inputs.by_name() if full else inputs.embedded(output)
    flags = () if device is None else ("--device", device)
    setting = Setting(material, output, full, _seeds(seeds, full), flags)
    if not names or "list" in names:
        _show_list([registry.plan(experiment, setting) for experiment in registry.EXPERIMENTS], setting, as_json)
        return
    planned = _possible(names, setting)
    if dry_run:
        _show_commands(planned, as_json)
        return
    if on is None:
        _usable(device)
    with _owned(setting), _opened(context, planned, setting) as runs:
        if own or not full:
            inputs.unpack(output)
        with _elsewhere(on, setting.folder, device, context.obj) as (size, start):
            outcome = _carried_out(planned, setting, context.obj, (workers or size, start), quiet=quiet or as_json)
        failed = collapsed(RunDocuments(setting), [step for plan in planned for step in plan.steps])
        documents, problems = verdicts.judged(planned, setting, outcome, runs, failed)
        if as_json:
            print(
                json.dumps(
                    {
                        "folder": str(output),
                        "experiments": [document.to_json() for document in documents],
                        "failed": outcome.failed,
                    },
                    indent=2,
                )
            )
        for document in () if as_json else documents:
            _show_claims(document)
        for plan in planned:
            page = verdicts.page(plan, setting, failed)
            if not as_json:
                out.print(page, soft_wrap=True, markup=False)
    if problems or not outcome.complete:
        _show_failures(outcome, problems, setting)
        raise typer.Exit(1)


# -- what is to be done ---------------------------------------------------------------------------------------------------


def _together(flags: dict[str, Any]) -> None:
    """Refuse a flag without the one that it says more about."""
    for name, needed in NEEDS.items():
        if flags[name] is not None and flags[needed] is None:
            raise typer.BadParameter(f"{name} goes together with {needed}, which says where the data are.")


def _usable(device: str | None) -> None:
    """Refuse a device that is not there before the first of many commands does."""
    if device is not None:
        import torch

        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            first = (str(error).strip().splitlines() or [""])[0][:120]
            raise BadRun(f"Nothing can be run on {device!r:.40} ({first}); choose another --device.") from None


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(","))


def _seeds(text: str | None, full: bool) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(word) for word in (text or ("0,1,2" if full else "0")).split(",")))
    except ValueError:
        raise typer.BadParameter(f"--seeds are whole numbers with commas, such as 0,1,2; I got {text!r:.40}.") from None


def _possible(names: Sequence[str], setting: Setting) -> list[Planned]:
    """The experiments of these names; one that the material has nothing for is refused, or left out of a paper's."""
    from ..reproduction import registry

    planned = [registry.plan(experiment, setting) for experiment in registry.experiments_named(names)]
    runnable_plans = [plan for plan in planned if plan.steps]
    for plan in planned:
        if not plan.steps:
            why = f"{plan.experiment.name} cannot be run on {setting.material.name}: {' '.join(plan.left_out)}"
            if plan.experiment.name in names or not runnable_plans:
                raise BadRun(why)
            sys.stderr.write(f"headcount: {why}\n")
    return runnable_plans


def _material_json(material: Material) -> dict[str, Any]:
    """What tells one material from another: its name and where everything is."""
    return {
        "name": material.name,
        "encoder": material.encoder,
        "corpora": [corpus._asdict() for corpus in material.corpora],
        "pairs": None if material.pairs is None else material.pairs._asdict(),
        "parses": material.parses,
    }


# -- doing it -------------------------------------------------------------------------------------------------------------


@contextmanager
def _owned(setting: Setting) -> Iterator[None]:
    """Within the block, nobody else works in the folder; refused if it holds something else, or another material."""
    from ..runs import LOCK, locked, write_whole

    folder, path = setting.folder, setting.folder / SETTING
    mine = {"material": _material_json(setting.material), "full": setting.full}
    try:
        entry_names = sorted(entry.name for entry in folder.iterdir() if entry.name != LOCK) if folder.exists() else []
        previous_setting = json.loads(path.read_text(encoding="utf-8")) if SETTING in entry_names else None
        if previous_setting is None and entry_names:
            raise BadRun(
                f"{folder} holds {entry_names[0]:.60} and no earlier reproduction; choose another folder with -o."
            )
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise BadRun(f"I cannot use {folder} ({error!s:.120}); choose another folder with -o.") from None
    if previous_setting is not None and previous_setting != json.loads(json.dumps(mine)):
        raise BadRun(
            f"{folder} holds a reproduction {_size(previous_setting)}, and this one is {_size(mine)}; choose another -o."
        )
    with locked(folder):
        write_whole(path, (json.dumps(mine, indent=2) + "\n").encode())
        yield


def _size(settings: dict[str, Any]) -> str:
    return f"{'at full size' if settings['full'] else 'for a laptop'} with {settings['material']['name']}"


@contextmanager
def _opened(context: typer.Context, planned: Sequence[Planned], setting: Setting) -> Iterator[dict[str, Run]]:
    """The run folders of the experiments; opened before anything is done, because some may be refused."""
    from ..runs import Run

    options = {"material": _material_json(setting.material), "full": setting.full, "seeds": list(setting.seeds)}
    with ExitStack() as stack:
        runs = {}
        for name in (plan.experiment.name for plan in planned):
            question = {"command": "reproduce", "experiment": name, **options}
            runs[name] = stack.enter_context(Run.open(setting.folder / name, question))
            runs[name].write_json("command", {"command": command_line(context)}, replace=True)
        yield runs


@contextmanager
def _elsewhere(
    on: str | None, folder: Path, device: str | None, command: Any
) -> Iterator[tuple[int, runner.Start | None]]:
    """Within the block, how many commands run at a time by themselves, and what starts them elsewhere."""
    if on is None:
        yield 1, None
        return
    from ..cluster.ray_tasks import tasks_on_ray
    from ..reproduction.runner import Step, logged

    def done(words: Sequence[str], log: Path) -> str:
        return logged(command, Step("", tuple(words)), log)

    with tasks_on_ray(done, folder, device) as (size, begin):
        yield size, lambda step, log: begin(step.words, step.name, log)


def _carried_out(
    planned: Sequence[Planned], setting: Setting, command: Any, how: tuple[int, runner.Start | None], quiet: bool
) -> Outcome:
    """Run the commands of all experiments, those that they share once."""
    from .. import progress
    from ..reproduction import runner

    def say(text: str) -> None:
        if not quiet:
            out.print(text, soft_wrap=True, markup=False)

    steps = runner.named_once([step for plan in planned for step in plan.steps])
    try:
        with progress.quiet() if quiet else nullcontext():
            return runner.run(steps, setting.folder, command, workers=how[0], start=how[1], show=not quiet, say=say)
    except KeyboardInterrupt:
        say_stopped(setting.folder)
        raise


# -- showing it -----------------------------------------------------------------------------------------------------------


def _show_list(planned: Sequence[Planned], setting: Setting, as_json: bool) -> None:
    """All experiments: what each shows and asks, and how much of it the material allows."""
    from ..formatting import counted

    listed = [
        {**{key: getattr(plan.experiment, key) for key in ("name", "paper", "shows", "asks")}}
        | {"commands": len(plan.steps), "left_out": plan.left_out}
        for plan in planned
    ]
    if as_json:
        print(json.dumps({"material": setting.material.name, "experiments": listed}, indent=2))
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for experiment in listed:
        count = counted(experiment["commands"], "command") if experiment["commands"] else "not with this material"
        about = Text(f"{experiment['paper']}, {experiment['shows']} · {count}\n").append(experiment["asks"])
        table.add_row(
            Text(experiment["name"], style="bold"),
            about.append("".join(f"\n{t}" for t in experiment["left_out"]), "dim"),
        )
    out.print(table)
    out.print(f"\nCounted for {setting.material.name}. {setting.material.about}", markup=False)


def _show_commands(planned: Sequence[Planned], as_json: bool) -> None:
    from ..reproduction.runner import named_once

    commands = [step.text for step in named_once([step for plan in planned for step in plan.steps])]
    print(json.dumps({"commands": commands}, indent=2) if as_json else "\n".join(commands))


def _show_claims(document: ClaimsDocument) -> None:
    out.print(Text(f"\n{document.experiment} · {document.paper}, {document.shows}", style="bold"))
    out.print(Text(document.asks))
    for claim in document.claims:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for key, text in (("paper", claim.paper), ("here", claim.here), ("rule", claim.rule)):
            table.add_row(Text(f"  {key}", style="dim"), Text(text))
        out.print(Text(f"\n{claim.verdict}", style=COLOURS.get(claim.verdict, "")), table, sep="\n")
    if not document.claims:
        out.print("No statement of the paper can be judged by what is there.")
    for sentence in document.left_out:
        out.print(Text(sentence, style="dim"))


def _show_failures(outcome: Outcome, problems: Sequence[str], setting: Setting) -> None:
    """On stderr, what failed and what did not begin for that; what failed alike in one sentence."""
    from ..formatting import listed

    for problem in problems:
        sys.stderr.write(f"headcount: {problem}\n")
    alike: dict[str, list[str]] = {}
    for name, problem in outcome.failed.items():
        alike.setdefault(problem, []).append(name)
    for problem, names in alike.items():
        behind = [step_name for step_name, cause in outcome.waiting.items() if cause in names]
        waiting_text = f"; not begun for that: {listed(behind, 6)}" if behind else ""
        log = setting.folder / "logs" / f"{names[0]}.txt"
        where = f" (log: {log})" if log.is_file() else ""
        sys.stderr.write(f"headcount: {listed(names, 6)} failed: {problem}{where}{waiting_text}\n")
    sys.stderr.write("headcount: what is done is kept; the same command goes on from there.\n")
