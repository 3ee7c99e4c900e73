"""The command `bench`: models side by side, in a run folder of their own."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import HeadcountError
from .options import CommonFlags, command_line, load_model, out, quieten
from .run_folder import say_stopped, weights_of
from .text import bench_text

if TYPE_CHECKING:
    from ..documents.bench import Bench
    from ..runs import Run


def bench(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="Model folders or names on the hub. The first is what others are compared to."
        ),
    ],
    batch_size: Annotated[
        str, typer.Option("--batch-size", "--batch", help="Batch sizes, separated by commas.")
    ] = "1,4,16,64",
    length: Annotated[str, typer.Option("--length", help="Sequence lengths in tokens, separated by commas.")] = "128",
    repeats: Annotated[
        int | None, typer.Option("--repeats", help="Repetitions per model.", show_default="as --seconds allow")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Approximate duration in all, within 5 to 25 repetitions.")
    ] = 120.0,
    runtime: Annotated[
        str, typer.Option("--runtime", help="What runs the models: torch, onnxruntime, openvino, llama.cpp (CPU).")
    ] = "torch",
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantise the weights to 8 bits with the runtime's own method.")
    ] = False,
    generate: Annotated[
        int | None,
        typer.Option(
            "--generate",
            help="Also time the writing of so many tokens after each prompt, one at a time with the KV cache.",
            show_default="passes over prompts only",
        ),
    ] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Run through torch.compile.")] = False,
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Let a GPU run recorded passes instead of launching each operation.")
    ] = False,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16, float16.")] = "float32",
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, ...", show_default="a GPU if there is one, or the CPU")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads on a CPU.", show_default="as many as cores")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of the tokens and of the order of the models.")] = 0,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that ships with the models.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--run",
            "-o",
            "--output",
            metavar="FOLDER",
            help="The run folder: all that this command makes, so -o says the same.",
            show_default="a new folder in runs/",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Measure examples per second and memory of models, in turns, and compare them to the first one.

    Beside each ratio stands what the count of multiply-adds would allow. Where other programs use the processor, a ratio gets a
    question mark, and the processor time of one thread is compared as well. Asked again, it shows what was measured before.

    Examples:

        headcount bench my-model smaller

        headcount bench my-model smaller --batch-size 16 --length 64,128,256 --repeats 15

        headcount bench my-model smaller --threads 1

        headcount bench my-model smaller --generate 128 --batch 1,32

        headcount bench my-model smaller --device cuda --dtype bfloat16 --compile

        headcount bench my-model smaller --runtime onnxruntime --int8
    """
    _no_model_twice(models)
    options: dict[str, Any] = {
        "batch_sizes": _numbers("--batch-size", batch_size),
        "lengths": _numbers("--length", length),
        "repeats": repeats,
        "seconds": seconds,
        "compile": compile,
        "seed": seed,
    }
    if (repeats is not None and repeats < 1) or not seconds > 0:
        raise typer.BadParameter("--repeats is a whole number from 1 on, --seconds a number above 0.")
    # what was not asked for is not in the question, so that folders of earlier versions are found again
    options |= {"generate": generate} if generate is not None else {}
    options |= {"cuda_graphs": True} if cuda_graphs else {}
    if runtime != "torch" or int8:
        if generate is not None or cuda_graphs:
            raise typer.BadParameter("--generate and --cuda-graphs are for torch, without --runtime and --int8.")
        if compile or dtype != "float32" or device not in (None, "cpu"):
            raise typer.BadParameter("--runtime and --int8 are for the CPU, in float32 before, and without --compile.")
        options, device = {**options, "runtime": runtime, "int8": int8}, "cpu"
    quieten()
    from .. import progress
    from ..efficiency.benchmark import device_text
    from ..efficiency.contention import threads as computing_with
    from ..evaluation.evaluator import device_of
    from ..exports.speed import check_runtime
    from ..runs import Run, default_folder

    check_runtime(runtime)
    flags = CommonFlags(dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    loaded = {name: load_model(name, flags, fresh=True) for name in models}
    listed = [{"name": name, "weights": weights_of(name, model)} for name, model in loaded.items()]
    with computing_with(threads):
        where = device_text(device_of(loaded[models[0]]))
    question = {"command": "bench", "model": listed[0], "others": listed[1:], "run": {"dtype": dtype, "device": where}}
    question["options"] = options
    with ExitStack() as stack:
        if quiet or as_json:
            stack.enter_context(progress.quiet())
        stack.enter_context(computing_with(threads))
        run = stack.enter_context(Run.open(output or default_folder(question), question))
        before = run.finished
        data = _before(run) if before else _measured(run, loaded, options)
        if not before:
            run.write_json("command", {"command": command_line(context)}, replace=True)
            run.finish()
        if as_json:
            print(json.dumps({**data.to_json(), "run": str(run.folder)}, indent=2))
            return
        out.print(bench_text(data), soft_wrap=True, markup=False)
        note = f" (measured on {run.created[:10]}; to measure anew, give another folder with --run)" if before else ""
        out.print(f"run folder: {run.folder}{note}", soft_wrap=True, markup=False)


def _before(run: Run) -> Bench:
    """What was measured before."""
    from ..documents.bench import Bench

    return Bench.from_json(run.read_json(Bench.NAME), f"{run.folder / Bench.NAME}.json")


def _measured(run: Run, loaded: dict[str, Any], options: dict[str, Any]) -> Bench:
    """What is measured now, written into the run folder; a command that fails at once leaves none."""
    from ..efficiency.benchmark import bench
    from ..exports.speed import runtime_for

    options = dict(options)
    where, int8 = options.pop("runtime", "torch"), options.pop("int8", False)
    try:
        with runtime_for(loaded, where, int8=int8, sources={name: name for name in loaded}) as runtime:
            for note in () if runtime is None else runtime.notes:
                typer.echo(f"note: {note}", err=True)
            data = bench(loaded, **options, run=run, runtime=runtime)
    except HeadcountError:
        run.discard_if_empty()
        raise
    except KeyboardInterrupt:
        say_stopped(run.folder)
        raise
    run.write_json(data.NAME, data.to_json(), replace=True)
    return data


def _no_model_twice(names: list[str]) -> None:
    places = [os.path.realpath(name) if os.path.isdir(name) else name for name in names]
    twice = [name for name, place in zip(names, places, strict=True) if places.count(place) > 1]
    if twice:
        raise typer.BadParameter(f"{twice[-1]} is there twice; name each model once.")


def _numbers(flag: str, text: str) -> list[int]:
    """Whole numbers from 1 on, separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**9 for part in parts):
        raise typer.BadParameter(f"{flag} is whole numbers from 1 on with commas, such as 1,16; I got {text[:40]!r}.")
    return [int(part) for part in parts]
