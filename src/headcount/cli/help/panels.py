"""The order of flags in `--help`: what most people need first, the rest in groups; and presets that set several flags.

A command declares its flags where it is written. Which group a flag is shown in is said here, for all large commands in one
table, so that a flag that means the same stands in the same place everywhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from functools import wraps
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import typer

FIRST = ""  # the group on top, which typer calls "Options"
MORE = "More"
Groups = Mapping[str, str]  # title of a group -> the parameters in it, separated by spaces

DATA = (
    "task text label target labels split limit metric max_length num_beams max_new_tokens prefix choices prompt stride "
)
DATA += "unaligned group"
RUNS = "threads device dtype seed spec trust_remote_code"
SAVED = "force run report as_json quiet"
TRAINING = (
    "epochs steps lr batch_size schedule warmup weight_decay label_smoothing accumulate precision max_grad_norm lora"
)
TAUGHT = "teacher distill temperature"
MEASURED, RUN_AS, WRITTEN = "What to measure on", "How to run", "Where the results go"

GROUPS: dict[str, Groups] = {
    "prune": {
        FIRST: "data output max_drop speedup units dry_run",
        "Presets": "fast careful",
        "How much goes": "remove flops params kv_cache memory context batch row tradeoff brake plan",
        "Which units go": "by tune compensate only least groups multiple length checkpointing",
        "The guarantee of --max-drop": "alpha step tries fresh cap",
        "Examples for each use": "score_data score_limit select_data select_limit",
        "Training afterwards": "recover recover_data recover_limit recover_lr recover_precision lora distill",
        "For other programs": "runtime tensor_parallel export",
        MEASURED: DATA,
        RUN_AS: f"batch_size {RUNS} budget_minutes",
        WRITTEN: SAVED,
    },
    "learn": {
        FIRST: "data report_data output keep method epochs",
        "Which units stay": "units only plan",
        "How gates learn": "pipelined settle l0 form rate choose gate_lr setting published",
        "After that": "scratch recover_epochs",
        "How to train": TRAINING.removeprefix("epochs ") + " freeze save_every",
        "With a teacher": TAUGHT,
        MEASURED: f"report_limit {DATA}",
        RUN_AS: RUNS,
        WRITTEN: SAVED,
    },
    "train": {
        FIRST: "data dev_data output task epochs lr",
        "Where the weights begin": "scratch new_head",
        "How to train": TRAINING.replace("epochs ", "").replace("lr ", "") + " freeze save_every",
        "With a teacher": TAUGHT,
        "Sizes of new-marian": "layers decoder_layers heads width ffn vocabulary dropout",
        MEASURED: f"dev_limit {DATA.removeprefix('task ')}",
        RUN_AS: RUNS,
        WRITTEN: f"checkpoints {SAVED}",
    },
    "curve": {
        FIRST: "data score_data by step units output",
        "Which units go, and how far": "only least until_drop recompute random_seeds",
        "Examples and scores": "scores score_limit checkpointing",
        "How it is measured": "really_cut test",
        "What stands in for units": "fill reference_data reference_limit draws at",
        "Over a training": "over checkpoints",
        MEASURED: DATA,
        RUN_AS: f"batch_size {RUNS}",
        WRITTEN: SAVED,
    },
    "circuit": {
        FIRST: "data task by ranked metric output",
        "How big": "sizes edge_sizes reach",
        "How units and edges are scored": "steps edges check",
        "Examples": "select_data select_limit random_seeds",
        MEASURED: DATA.replace("task ", "").replace("metric ", ""),
        RUN_AS: f"batch_size {RUNS}",
        WRITTEN: SAVED,
    },
    "lottery": {
        FIRST: "data dev_data task seeds epochs output",
        "The lottery": "threshold step magnitude retrain name join",
        "How to train": "new_head " + TRAINING.removeprefix("epochs ") + " freeze save_every",
        MEASURED: f"dev_limit {DATA.removeprefix('task ')}",
        RUN_AS: RUNS,
        WRITTEN: SAVED,
    },
    "bench": {
        FIRST: "batch_size length generate runtime repeats output",
        RUN_AS: "int8 seconds compile cuda_graphs threads device dtype seed trust_remote_code",
        WRITTEN: "as_json quiet",
    },
    "reproduce": {
        FIRST: "full output workers device dry_run seeds",
        "Models and data, instead of the embedded ones": "encoder glue tasks classifier translator pairs languages parses",
        "What is printed": "as_json quiet",
    },
}


class Preset(NamedTuple):
    """Values for flags that are not given; a flag in `with_flag` is set only where the other one is given."""

    help: str
    values: Mapping[str, Any]
    with_flag: Mapping[str, str]


PRESETS: dict[str, dict[str, Preset]] = {
    "prune": {
        "fast": Preset(
            "An answer soon: fewer examples to score on, larger steps.",
            {"limit": 2000, "score_limit": 500, "step": "10%"},
            {"limit": "!max_drop", "score_limit": "score_data", "step": "max_drop"},  # a guarantee needs its examples
        ),
        "careful": Preset(
            "A better model, later: more examples to score on, smaller steps, mask tuning.",
            {"score_limit": 5000, "step": "2.5%", "tune": True},
            {"score_limit": "score_data", "step": "max_drop"},
        ),
    }
}


def arranged(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its flags in the groups of the table, and with its presets."""
    name = command.__name__
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    presets = PRESETS.get(name, {})
    parameters = {key: p.replace(annotation=hints[key]) for key, p in signature.parameters.items()}
    for preset, about in presets.items():
        kind = Annotated[bool, typer.Option(f"--{preset}", help=about.help)]
        parameters[preset] = inspect.Parameter(preset, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
    ordered = list(_in_groups(parameters, GROUPS[name]))

    @wraps(command)
    def run(**values: Any) -> None:
        wanted = [preset for preset in presets if values.pop(preset)]
        if len(wanted) > 1:
            raise typer.BadParameter(f"choose one of {' and '.join(f'--{preset}' for preset in wanted)}.")
        for preset in wanted:
            values |= _set_by(presets[preset], preset, values)
        command(**values)

    run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in ordered}
    return run


def _in_groups(parameters: dict[str, inspect.Parameter], groups: Groups) -> list[inspect.Parameter]:
    """The parameters in the order of the groups, each with its group; those in none come at the end, under "More"."""
    places = {name: title for title, names in groups.items() for name in names.split()}
    listed = [name for name in places if name in parameters]
    out = []
    for name in [*(name for name in parameters if name not in places), *listed]:
        parameter = parameters[name]
        option = next((arg for arg in get_args(parameter.annotation)[1:] if isinstance(arg, _OPTION)), None)
        if option is not None:
            option = copy(option)
            option.rich_help_panel = places.get(name, MORE) or None
            parameter = parameter.replace(annotation=Annotated[get_args(parameter.annotation)[0], option])
        out.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return sorted(out, key=lambda p: p.name in parameters and _is_more(p))


_OPTION = type(typer.Option())


def _is_more(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is a flag of no group."""
    return any(getattr(arg, "rich_help_panel", None) == MORE for arg in get_args(parameter.annotation)[1:])


def _set_by(preset: Preset, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a preset sets: flags that the user did not give, and that have something to say here. It is printed."""
    context: typer.Context = values["typer_context"]
    out = {}
    for flag, value in preset.values.items():
        needed = preset.with_flag.get(flag, "")
        missing = needed and (values[needed.lstrip("!")] is None) != needed.startswith("!")
        source = context.get_parameter_source(flag)
        given = source is not None and source.name == "COMMANDLINE"
        if not missing and not given and values[flag] != value:
            out[flag] = value
    names = {p.name: p.opts[0] for p in context.command.params}
    shown = [names[flag] if value is True else f"{names[flag]} {value}" for flag, value in out.items()]
    typer.echo(f"note: --{name} sets {' '.join(shown) if shown else 'nothing here'}", err=True)
    return out
