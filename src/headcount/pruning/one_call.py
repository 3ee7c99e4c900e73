"""`prune`: a model and data in, a smaller model and what it costs out. The steps of the command of the same name."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..data import task_types
from ..data.example_sets import USES, Sets, sets_of, used_text
from ..data.splits import drawn
from ..data.tasks import Task, kind_of
from ..documents.prune import ExampleSet
from ..errors import BadCheckpoint, BadData
from ..exports import several
from ..importance.checkpointing import checkpointing as gradient_checkpointing
from ..importance.criteria import NEED_NO_DATA
from ..model.architectures import ModuleSpec
from ..model.checkpoints import load
from ..model.discovery import unwrap
from ..model.distributed.refusals import in_one_place
from ..model.model_folders import may_be_written
from ..stats.brake import DEFAULT_BRAKE
from . import legal_plans, pipeline, selection
from .pipeline import Pruned
from .tuning.compensation import ways_of

if TYPE_CHECKING:
    from ..runs import Run


def prune(
    model: nn.Module | str | Path,
    data: Any,
    output: str | Path | None = None,
    *,
    max_drop: float | None = None,
    remove: float | int | str | None = None,
    flops: float | str | None = None,
    params: float | str | None = None,
    kv_cache: float | str | None = None,
    memory: float | str | None = None,
    context: int | None = None,
    batch: int = 1,
    speedup: float | None = None,
    plan: Any = None,
    units: str = "heads",
    by: str | None = None,
    tune: bool = False,
    compensate: str | None = None,
    multiple: int | None = None,
    least: int = 0,
    only: str | Iterable[str] = (),
    brake: str | float | None = DEFAULT_BRAKE,
    step: float | int | str = "5%",
    alpha: float = 0.05,
    cap: float | None = None,
    tries: int = 1,
    score_data: Any = None,
    score_limit: int | None = None,
    select_data: Any = None,
    select_limit: int | None = None,
    task: str | None = None,
    tokenizer: Any = None,
    limit: int | None = None,
    batch_size: int = 16,
    checkpointing: bool = False,
    length: int | None = None,
    device: str | None = None,
    seed: int = 0,
    runtime: str | Iterable[str] = (),
    tensor_parallel: int = 1,
    groups: str | None = None,
    export: str | Iterable[str] = (),
    force: bool = False,
    run: Run | None = None,
    specs: Iterable[ModuleSpec] = (),
    trust_remote_code: bool = False,
    **reading: Any,
) -> Pruned:
    """Make a smaller model and measure what it costs: score, choose, cut, save, load again, measure again.

    What `headcount prune` does, with arguments called like its flags. Say how much in one way: `max_drop` is a guarantee in
    points of the metric, shown on examples that had no part in the scores; `flops`, `params`, `kv_cache` and `speedup` are
    budgets; `remove` is a number or a share of the units; `plan` is your own.
    A size may stand beside `max_drop`: both must hold. The final numbers come from examples that had no part in the choice:
    with `data` alone, it is split. The model that was given stays as it was.

    Args:
        model: The model, or its folder or name on the hub.
        data: A file, a folder, a table in memory, a data set by name, or a task: what to measure on.
        output: The folder to write; without one the smaller model is only in the result.
        max_drop: Guarantee: the largest drop of the metric, in points.
        remove: How many units go: a count, or a share such as "40%".
        flops: Share of the FLOPs that may be left, such as "50%".
        params: Share of the parameters that may be left, such as "60%".
        kv_cache: The share of the KV cache's bytes per token that may be left, such as "50%", in whole kv groups.
        memory: Bytes that the weights and the cache may take, such as "6GiB".
        context: With `memory`: tokens of every text in the cache.
        batch: With `memory`: texts in the cache.
        speedup: How many times as fast the model must be on this machine, such as 1.3.
        plan: Units of your own choice, as in `masked`; with `max_drop` they are tested.
        units: "heads", "neurons", "layers", "kv-groups"; several with commas.
        by: Importance criterion of `score`: by default "taylor", or "fisher" where several kinds of units are weighed.
        tune: Rearrange and rescale the units that stay by least squares, without training.
        compensate: "mean" puts what removed units write on average into biases; "lstsq" fits all columns that stay anew by
            least squares; "mean,lstsq" with a bias.
        multiple: Round the neurons of an MLP to multiples of this.
        least: Units that every site keeps.
        only: Restricts the units to a type ("encoder", "decoder", "cross").
        brake: Refuse a plan that loses more on scoring examples: a share of the way to a constant answer, points, or None.
        step: Step between the plans that a guarantee tests, in units (or FLOPs).
        alpha: Significance level of the guarantee.
        cap: Of losses: no example counts for more than this, by default 20 times `max_drop`.
        tries: Guarantees to be tested on these examples, each at alpha / tries.
        score_data: Data to score on, by default a part of `data`.
        score_limit: Examples of `score_data`.
        select_data: Data to show the guarantee on, by default a part of `data`.
        select_limit: Examples of `select_data`.
        task: The kind of task ("classification", ...), by default what the model's class was made for.
        tokenizer: The tokenizer or its folder, by default that of the model.
        limit: Use so many examples of each file, sampled by `seed`.
        batch_size: Examples per forward pass, also when speed is measured.
        checkpointing: Gradient checkpointing when units are scored: layers run twice and keep no activations.
        length: Sequence length at which speed is measured, by default the median.
        device: "cpu", "cuda", ...; of a model by name, by default a GPU if there is one.
        seed: Random seed.
        runtime: Choose only what exports to these formats can hold: "gguf", "vllm", ... (--for).
        tensor_parallel: With the runtime "vllm", devices that share every layer.
        groups: Groups of query heads: "even" or "uneven"; by default even in models that write text.
        export: Formats to export the smaller model to as well, beside the output: "gguf", "onnx", ...
        force: Replace the output folder, and exports, if they exist.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).
        trust_remote_code: Whether code that comes with the model may run.
        reading: How to read the data, as in `hc.task`: text, label, target, labels, split, metric, max_length, ...

    Returns:
        The smaller model (`.model`), results before and after, their comparison, and what was saved. Prints as a summary.

    Examples:
        >>> pruned = hc.prune("my-model", "dev.tsv", remove="25%", limit=64)
        >>> pruned.parameters[1] < pruned.parameters[0]
        True
        >>> len(hc.removed(pruned.model))
        12
    """
    how_much: dict[str, Any] = {"remove": remove, "max_drop": max_drop, "flops": flops, "params": params}
    how_much |= {"kv_cache": kv_cache, "memory": memory, "speedup": speedup}
    selection.size_of(plan, **how_much)
    if isinstance(model, nn.Module):
        in_one_place(model, "it cannot be pruned here")
    rows, source = tuple(specs), None if isinstance(model, nn.Module) else model
    protected = [Path(path) for path in (source, data) if isinstance(path, str | Path)]
    if output is not None:  # before any work is done
        may_be_written(Path(output), force, protected, None if source is None else Path(source))
    places = _places_of_exports(export, output, force, protected)
    rule = legal_plans.rule_of(runtime, tensor_parallel, groups)
    subject = _placed(model, device, trust_remote_code)
    for formats, devices in ((places, 1), (rule.names, tensor_parallel)):  # before hours of work
        several.must_hold(subject, formats, tensor_parallel=devices)
    reader = _Reader(subject, task, tokenizer or source, {"batch_size": batch_size, "seed": seed, **reading})
    ways = ways_of(compensate, tune)
    needs = (any(ways) or (plan is None and by not in NEED_NO_DATA), max_drop is not None)
    tasks = [
        None if some is None else reader.task(some, limit if own is None else own)
        for some, own in ((data, limit), (score_data, score_limit), (select_data, select_limit))
    ]
    assert tasks[0] is not None
    sets = sets_of((tasks[0], tasks[1] if needs[0] else None, tasks[2] if needs[1] else None), needs, seed)
    length = length or selection.usual_length(sets.report)
    in_format = source is not None and (any(ways) or memory is not None)
    tuned_in = pipeline.number_format(source, trust_remote_code=trust_remote_code) if source and in_format else None
    with gradient_checkpointing(checkpointing):
        choice = selection.choose(
            subject,
            **how_much,
            context=context,
            batch=batch,
            plan=plan,
            score=sets.score,
            select=sets.select,
            by=by,
            units=units,
            tune=ways.tune,
            compensate=ways.compensate,
            multiple=multiple,
            step=step,
            least=least,
            only=only,
            brake=brake,
            alpha=alpha,
            cap=cap,
            tries=tries,
            dtype=tuned_in,
            batch_size=batch_size,
            length=length,
            seed=seed,
            runtime=runtime,
            tensor_parallel=tensor_parallel,
            groups=groups,
            run=run,
            specs=rows,
        )
    if select_data is None:  # a part of the data, drawn like the one to report on: there is nothing to compare
        choice = replace(choice, selected=None)
    options: dict[str, Any] = {"source": source, "force": force, "trust_remote_code": trust_remote_code, "run": run}
    options |= {"batch_size": batch_size, "length": length, "seed": seed, "specs": rows, "about": _about(sets, source)}
    if output is not None:
        pruned = pipeline.save_pruned(subject, output, sets.report, choice, **options)
    else:
        with tempfile.TemporaryDirectory() as place:
            pruned = pipeline.save_pruned(subject, Path(place) / "model", sets.report, choice, **options)
        pruned = replace(pruned, output=None)
    if places:
        exporting: dict[str, Any] = {"source": output, "force": force, "trust_remote_code": trust_remote_code}
        pruned = replace(pruned, exports=several.export_each(pruned.model, places, **exporting))
    return replace(pruned, examples=tuple(text.strip() for text in used_text(sets)))


def _places_of_exports(
    export: str | Iterable[str], output: str | Path | None, force: bool, protected: list[Path]
) -> dict[str, Path]:
    """Where the exports go, if they may be written there."""
    if not export:
        return {}
    if output is None:
        raise BadCheckpoint("Exports lie beside the smaller model: say where that goes with output.")
    places = several.places_beside(output, several.formats_named(export))
    several.may_all_be_exported(places, force, protected)
    return places


class _Reader:
    """Data as tasks for one model."""

    def __init__(self, model: nn.Module, kind: str | None, tokenizer: Any, options: dict[str, Any]) -> None:
        self.model, self.kind, self.options = model, kind, options
        self.tokenizer = tokenizer or getattr(getattr(unwrap(model), "config", None), "name_or_path", None) or None

    def task(self, data: Any, limit: int | None) -> Task:
        """The task on some data; a task as it is, or so many of its examples."""
        if isinstance(data, Task):
            return data if limit is None else drawn(data, limit, self.options["seed"])
        if self.tokenizer is None:
            raise BadData(
                "The model does not say where its tokenizer is: name it with tokenizer=, or give a task (`hc.task`) as data."
            )
        kind = self.kind or kind_of(unwrap(self.model))
        return task_types.task(kind, data, tokenizer=self.tokenizer, limit=limit, **self.options)


def _placed(model: nn.Module | str | Path, device: str | None, trust: bool) -> Any:
    """The model in evaluation mode; one by name in float32, on a GPU if there is one."""
    if isinstance(model, nn.Module):
        return model if device is None else model.to(device)
    loaded = load(model, dtype=torch.float32, trust_remote_code=trust)
    return loaded.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _about(sets: Sets, source: str | Path | None) -> dict[str, Any]:
    """What a model card says beside the numbers: the model's name, and which examples were used for what."""
    tasks = sets.tasks()
    used = [
        ExampleSet(role=role, data=tasks[role].name, n=tasks[role].size, what=USES[role])
        for role in USES
        if role in tasks
    ]
    about: dict[str, Any] = {"sets": tuple(used), "sets_note": sets.how or None}
    return about if source is None else {**about, "model": str(source)}
