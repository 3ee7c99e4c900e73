"""Flags that every command on data shares, and what they stand for: a model, a task, a run folder.

A command asks for them with one parameter `flags: CommonFlags`; `with_data` puts the flags in its place.
"""

from __future__ import annotations

import inspect
import os
import shlex
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from logging import ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console

from .. import progress
from ..errors import BadCheckpoint, BadData, BadPlan, LoadingNote
from ..formatting import listed
from ..model_files import model_files
from ..parsing import count_or_all

if TYPE_CHECKING:
    from ..data.tasks import Task

out = Console(highlight=False)
HOW_SHARED = (
    "part",
    "on",
    "actors",
)  # parameters that say which processes do a command, and nothing about what it does
NO_FLAGS = ("command", "do")  # fields of sets of flags that are filled in otherwise
WHAT, HOW, WHERE = "What to measure on", "How to run", "Where the results go"


# Flags that some commands share
Criterion = Annotated[
    str,
    typer.Option(
        "--by",
        help="taylor, fisher, attribution-patching, eap-ig, ablation, wanda, flap, activation, block-influence, "
        "gradient-activation, lrp-epsilon, lrp-alpha-beta, confidence, entropy, magnitude or random; of layers also "
        "contribution, top, bottom, alternate, alternate-top or symmetric.",
    ),
]
Checkpointing = Annotated[
    bool,
    typer.Option(
        "--checkpointing",
        help="Gradient checkpointing: run layers twice when scoring instead of keeping their activations.",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option("--steps", help="eap-ig: runs between corrupted and clean embeddings.", show_default="5"),
]
Check = Annotated[
    int | None,
    typer.Option(
        "--check",
        metavar="N",
        help="attribution-patching, eap-ig: units that are patched exactly to compare, drawn by --seed; 0 for none.",
        show_default="24",
    ),
]
ScoreData = Annotated[
    str | None, typer.Option("--score-data", metavar="FILE", help="Data to score on.", show_default="a part of --data")
]
SCORED_ON = 2048  # examples of --score-data, where no limit says otherwise: more move few units


ScoreLimit = Annotated[
    int | None,
    typer.Option(
        "--score-limit",
        parser=count_or_all,
        metavar="N",
        help="Examples of --score-data, or all.",
        show_default=f"a sample of {SCORED_ON}",
    ),
]
SelectLimit = Annotated[int | None, typer.Option("--select-limit", help="Examples of --select-data.")]
Only = Annotated[
    str, typer.Option("--only", help="Only units of this type: encoder, decoder or cross; several separated by commas.")
]


def flag(*names: str, help: str, panel: str = WHAT, metavar: str | None = None, show_default: bool | str = True) -> Any:
    """A flag in one of the panels of `--help`."""
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar, show_default=show_default)


@dataclass(frozen=True)
class Running:
    """Flags of every command that runs a model: how, and where the results go."""

    batch_size: Annotated[int, flag("--batch-size", panel=HOW, help="Batch size.")] = 16
    device: Annotated[
        str | None, flag("--device", panel=HOW, help="cpu, cuda, ...", show_default="a GPU if there is one, or the CPU")
    ] = None
    dtype: Annotated[
        str, flag("--dtype", panel=HOW, help="Number format of the weights: float32, bfloat16, float16.")
    ] = "float32"
    seed: Annotated[int, flag("--seed", panel=HOW, help="Random seed.")] = 0
    spec: Annotated[
        list[str] | None,
        flag(
            "--module-spec",
            panel=HOW,
            metavar="JSON",
            help="Names of the modules of an unknown architecture, as in `inspect`.",
        ),
    ] = None
    trust_remote_code: Annotated[
        bool, flag("--trust-remote-code", panel=HOW, help="Run code that ships with the model.")
    ] = False
    output: Annotated[
        Path | None,
        flag(
            "--run",
            "-o",
            "--output",
            panel=WHERE,
            metavar="FOLDER",
            help="The run folder: all that this command makes, so -o says the same.",
            show_default="a new folder in runs/",
        ),
    ] = None
    as_json: Annotated[bool, flag("--json", panel=WHERE, help="Print one JSON object and nothing else.")] = False
    quiet: Annotated[bool, flag("--quiet", "-q", panel=WHERE, help="No progress bars.")] = False
    command: str = ""  # not a flag: the whole command, to be kept with what it found


@dataclass(frozen=True)
class CommonFlags(Running):
    """The shared flags, as they were given. No flag without a library argument of the same name."""

    data: Annotated[
        str | None, flag("--data", metavar="FILE", help="TSV, CSV, JSON, Parquet, text, a picture folder, or a name.")
    ] = None
    task: Annotated[
        str | None,
        flag(
            "--task",
            metavar="KIND",
            help="classification, multiple-choice, language-modelling, contrast:ioi, lm-eval:arc_easy,piqa, ...",
            show_default="by the model's class",
        ),
    ] = None
    text: Annotated[str | None, flag("--text", help="The column of the text; a,b for a pair.")] = None
    label: Annotated[str | None, flag("--label", help="The column of the label.")] = None
    target: Annotated[str | None, flag("--target", help="The other side of parallel text: a file, or a column.")] = None
    labels: Annotated[
        str | None, flag("--labels", help="The data's labels in the order of the model's outputs, with commas.")
    ] = None
    split: Annotated[str | None, flag("--split", help="Split of a data set loaded by name: train, validation, ...")] = (
        None
    )
    limit: Annotated[int | None, flag("--limit", help="Use this many examples of each file, sampled by --seed.")] = None
    metric: Annotated[
        str | None, flag("--metric", help="accuracy, f1, matthews, bleu, chrf, perplexity, logit-difference, loss, ...")
    ] = None
    max_length: Annotated[int | None, flag("--max-length", help="Truncate texts after this many tokens.")] = None
    num_beams: Annotated[int, flag("--num-beams", help="Beam size of translation; 1 is greedy.")] = 1
    max_new_tokens: Annotated[
        int | None,
        flag(
            "--max-new-tokens",
            help="Maximum length of a translation, in tokens.",
            show_default="2 per source token, plus 10",
        ),
    ] = None
    prefix: Annotated[str, flag("--prefix", help="Prefix of every source text (T5).")] = ""
    choices: Annotated[
        str | None,
        flag("--choices", help="Multiple choice: the column with a list of choices; a,b,c for one column each."),
    ] = None
    prompt: Annotated[
        str | None,
        flag("--prompt", help="Multiple choice: what is read before a choice, with columns in braces."),
    ] = None
    stride: Annotated[
        int | None,
        flag("--stride", help="Running text: tokens that a window moves on by.", show_default="blocks side by side"),
    ] = None
    unaligned: Annotated[
        str,
        flag("--unaligned", help="Contrast examples that do not align token by token: refuse or drop."),
    ] = "refuse"
    group: Annotated[
        str | None,
        flag(
            "--group",
            metavar="COLUMN",
            help="Column of the groups (clusters) of examples that belong together; "
            "for plain text, a file with a group per line.",
        ),
    ] = None


def scoring_with(checkpointing: bool, *criteria: str | None) -> AbstractContextManager[None]:
    """Within the block, gradient criteria are checkpointed if that was asked for; refused where there is none of them."""
    from ..importance.checkpointing import checkpointing as checkpointed
    from ..importance.criteria import BACKWARD

    if checkpointing and not any(by is None or by in BACKWARD for by in criteria):
        raise typer.BadParameter(
            f"--checkpointing is for criteria with a backward pass ({', '.join(BACKWARD)}): leave it out."
        )
    return checkpointed(checkpointing)


def with_data(command: Callable[..., None]) -> Callable[..., None]:
    """The command with flags in the place of its parameter `flags`, and of others that are dataclasses of flags.

    A flag of the command's own comes first; of two sets with the same flag, the one that is not `CommonFlags`.
    """
    own = inspect.signature(command, eval_str=True).parameters
    sets = {name: p.annotation for name, p in own.items() if is_dataclass(p.annotation)}
    mine = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name not in sets]
    flags: dict[str, inspect.Parameter] = {}
    for kind in sorted(sets.values(), key=lambda kind: kind is CommonFlags):
        hints = get_type_hints(kind, include_extras=True)
        for f in sorted(fields(kind), key=lambda f: f.name not in inspect.get_annotations(kind)):  # inherited ones last
            if f.name not in (*own, *flags, *NO_FLAGS):
                keyword = inspect.Parameter.KEYWORD_ONLY
                flags[f.name] = inspect.Parameter(f.name, keyword, default=f.default, annotation=hints[f.name])
    context = inspect.Parameter("typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    @wraps(command)
    def run(**values: Any) -> None:
        context = values.pop("typer_context")
        shared = {name: values.pop(name) for name in flags} | {"command": command_line(context), "do": context.obj}
        filled = {
            name: kind(**{f.name: shared[f.name] for f in fields(kind) if f.name in shared})
            for name, kind in sets.items()
        }
        with ExitStack() as stack:
            if shared.get("quiet") or shared.get("as_json"):
                stack.enter_context(progress.quiet())
            if shared.get("tp_plan") and int(os.environ.get("RANK", "0")):  # the first process speaks for all
                stack.enter_context(progress.quiet())
                nothing = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(redirect_stdout(nothing))
                stack.enter_context(redirect_stderr(nothing))
            command(**filled, **values)

    run.__signature__ = inspect.Signature([context, *mine, *flags.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [context, *mine, *flags.values()]}
    return run


def command_line(context: typer.Context) -> str:
    """The command as it was given, ready to be given again."""
    words = ["headcount", str(context.info_name)]
    for parameter in context.command.params:
        value, source = context.params.get(parameter.name), context.get_parameter_source(parameter.name)
        if value is None or source is None or source.name != "COMMANDLINE" or parameter.name in HOW_SHARED:
            continue
        values = [str(argument) for argument in value] if isinstance(value, list | tuple) else [str(value)]
        if parameter.param_type_name == "argument":
            words += values
        elif isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            words += [word for text in values for word in (parameter.opts[0], text)]
    return shlex.join(words)


def quieten() -> None:
    """Keep transformers' progress bars and advice off the screen: our commands say what matters themselves."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    for talkative in ("huggingface_hub", "accelerate"):  # one announces each of its retries, one where weights are
        getLogger(talkative).setLevel(ERROR)
    warnings.simplefilter("ignore", LoadingNote)  # commands say it in a line of their own


def say_notes(name: str) -> None:
    """Say what is not plain from the name of a model: an adapter that is merged, a file that is unpacked."""
    for note in model_files(name).notes:
        typer.echo(f"note: {note}", err=True)


def specs_of(texts: list[str] | None) -> list[Any]:
    """The user's own module specs from JSON texts."""
    import json

    from ..model.architectures import ModuleSpec

    rows = []
    for text in texts or []:
        try:
            rows.append(ModuleSpec.from_json(json.loads(text)))
        except (ValueError, RecursionError):
            raise BadPlan(f"--module-spec wants a JSON object, and {text[:60]!r} is not JSON.") from None
    return rows


def load_model(
    name: str, flags: Running, *, fresh: bool = False, lazy: bool = False, spread: dict[str, Any] | None = None
) -> Any:
    """The model, in evaluation mode, on the device asked for and in the number format of --dtype.

    That is float32 unless said otherwise: as with `hc.load`, also where the file has half precision. A model with weights that no
    file holds is loaded only where `fresh` is right. With `lazy` the weights stay in their files; `spread` may say where they
    go instead, as `hc.load` takes it.
    """
    import torch

    from ..model.checkpoints import load, missing_weights

    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if flags.dtype not in kinds:
        raise BadData(f"--dtype is {', '.join(kinds)}; I got {flags.dtype!r:.40}.")
    say_notes(name)
    with progress.Bar("loading the model"):
        model = load(
            name, dtype=kinds[flags.dtype], lazy=lazy, trust_remote_code=flags.trust_remote_code, **spread or {}
        )
    untrained = missing_weights(model)
    if untrained and not fresh:
        raise BadCheckpoint(
            f"{name} has no weights for {listed(untrained)}, which would be random numbers, so nothing that is measured on this "
            f"{type(model).__name__} would mean anything; train it first (headcount train), or give the model that was trained."
        )
    return model if spread else placed(model, flags)


def placed(model: Any, flags: Running) -> Any:
    """The model on the device asked for."""
    import torch

    from ..cluster.serving import server

    device = flags.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if getattr(flags, "on", None) is not None and server() is None:
        device = "cpu"  # this process asks workers, who need the GPUs
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).strip().splitlines()[0][:120]
        raise BadData(f"The model cannot be moved to {device!r:.40} ({first}); choose another --device.") from None


def make_task(
    name: str, model: Any, flags: CommonFlags, data: Any = None, *, sample: int | None = None, **overrides: Any
) -> Task:
    """The task that the flags describe; `data` and keywords stand in for single flags.

    `sample` is how many examples are drawn where no limit is given.
    """
    from ..data.checks import model_fit
    from ..data.contrast.generation import of_generator
    from ..data.contrast.measures import REFERRING
    from ..data.contrast.reference import with_reference
    from ..data.encoding import loaded_tokenizer
    from ..data.language.harness import of_harness
    from ..data.task_types import task

    source = data if data is not None else flags.data
    by_name = of_harness(flags.task) and data is None  # other data, to score on, are text
    generated = of_generator(flags.task) and data is None
    if source is None and not by_name and not generated:
        raise typer.BadParameter("say which data to measure on with --data FILE.")
    options: dict[str, Any] = {
        "text": flags.text,
        "label": flags.label,
        "target": flags.target,
        "labels": None if flags.labels is None else [word.strip() for word in flags.labels.split(",")],
        "split": flags.split,
        "limit": flags.limit,
        "metric": flags.metric,
        "batch_size": flags.batch_size,
        "max_length": flags.max_length,
        "max_new_tokens": flags.max_new_tokens,
        "num_beams": flags.num_beams,
        "prefix": flags.prefix,
        "seed": flags.seed,
        "group": flags.group,
        "choices": flags.choices,
        "prompt": flags.prompt,
        "stride": flags.stride,
        "unaligned": flags.unaligned,
        "tokenizer": name,
        **overrides,
    }
    sample = sample if options["limit"] is None else None
    options["limit"] = options["limit"] if sample is None else sample
    kind, notes = flags.task or kind_of(model), list[str]()
    if of_harness(flags.task) and not by_name:
        kind, options["metric"] = kind_of(model), None
    if of_generator(flags.task) and not generated:
        kind = "contrast"
    if by_name:
        options["max_length"] = options["max_length"] or model_fit.positions_of(model)
    elif options["max_length"] is None and "image" not in kind:
        options["tokenizer"] = loaded_tokenizer(options["tokenizer"])
        options["max_length"], notes = model_fit.longest_input(options["tokenizer"], model)
    with progress.Bar("reading the data"):
        built_task = task(kind, source, **options)
    if sample is not None and built_task.available is not None and built_task.available > built_task.size:
        notes.append(
            f"{built_task.size:,} of the {built_task.available:,} examples of {built_task.name} are scored on, drawn by --seed "
            f"{flags.seed}; --score-limit all takes all"
        )
    notes += [] if flags.prefix else model_fit.missing_prefix(model, built_task)
    model_fit.check_tokens(built_task, name, model)
    if built_task.corrupted is not None and built_task.metric.name in REFERRING:
        built_task = with_reference(built_task, model)
    return replace(built_task, notes=(*built_task.notes, *notes))


def names_examples(flags: CommonFlags) -> bool:
    """Whether the flags say what to measure on: data, or tasks that bring their own documents."""
    return flags.data is not None or (flags.task or "").startswith(("lm-eval:", "contrast:"))


def other_task(
    name: str,
    model: Any,
    flags: CommonFlags,
    data: str,
    limit: int | None,
    *,
    sample: int | None = None,
    **overrides: Any,
) -> Task:
    """The same task on other data; of parallel text in two files, `data` names both: SOURCE,TARGET.

    Where groups are named in a file, other data bring theirs: FILE,GROUPS.
    """
    limit = flags.limit if limit is None else limit
    data, overrides["group"] = own_groups(flags, data)
    if flags.target is None or _is_column(flags):
        return make_task(name, model, flags, data, sample=sample, limit=limit, **overrides)
    if "," not in data:
        groups = ",GROUPS" if overrides["group"] != flags.group else ""
        raise BadPlan(f"Parallel text needs both sides; I got {data!r:.80}: write it as SOURCE,TARGET{groups}.")
    return make_task(name, model, flags, tuple(data.split(",")), sample=sample, limit=limit, target=None, **overrides)


def own_groups(flags: CommonFlags, data: str) -> tuple[str, str | None]:
    """Other data and what names its groups: the same column, or a file of its own that stands after a comma."""
    if flags.group is None or not Path(flags.group).is_file():
        return data, flags.group
    name, comma, group = data.rpartition(",")
    if not comma or not Path(group).is_file():
        raise BadPlan(
            f"The groups of --data are in a file, and {data!r:.80} has to bring its own: write the file of its groups after "
            "a comma, FILE,GROUPS."
        )
    return name, group


def _is_column(flags: CommonFlags) -> bool:
    """Whether --target is a column of the table: --text is named beside it, and no file is."""
    return flags.text is not None and not Path(str(flags.target)).exists()


def named_paths(*names: str | Path | None) -> list[Path]:
    """The files and folders that flags name, each of several with commas: what --force does not replace."""
    return [Path(part) for name in names if name is not None for part in (str(name), *str(name).split(","))]


def kind_of(model: Any) -> str:
    """The kind of task that a model's class was made for."""
    from ..data import tasks

    return tasks.kind_of(model)
