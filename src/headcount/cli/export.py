"""The command `export`: a model in the formats of other programs."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from .options import named_paths, out, quieten, say_notes


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, cut or not, or a name on the hub.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="transformers, vllm, gguf, onnx, openvino or sentence-transformers; commas for several.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="The folder to write, a file for gguf; for several formats the folder of all."
        ),
    ],
    groups: Annotated[
        str | None,
        typer.Option(
            "--groups",
            help="Query heads in uneven groups: pad (zero heads) or repeat (key-value heads); both exact.",
            show_default="refused where a format cannot hold them",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", help="Number format of the weights: f32, f16, bf16, q8_0, ...", show_default="the format's own"
        ),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Dynamic quantisation to 8 bits (onnx, openvino).")] = False,
    multiple: Annotated[
        int | None,
        typer.Option("--multiple", help="Pad the MLPs with zero neurons to multiples of this: 256 for K-quants."),
    ] = None,
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", help="Devices that share every layer (vllm).")
    ] = 1,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an export that is there, if there is nothing else in it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that ships with the model.")
    ] = False,
) -> None:
    """Write a model in a format that other programs load, compared with the model before it gets its name.

    What was written is loaded again, in the program itself where that is installed, and run on a few texts. A format that cannot
    hold the model is refused with the reason and what can be done. With several formats, each is written where it can be, and the
    exit code is 1 if any was refused. See docs/deploy.md.

    Examples:

        headcount export smaller --to transformers -o portable

        headcount export smaller --to gguf -o smaller.gguf --groups pad --dtype f16

        headcount export smaller --to onnx -o graph --int8

        headcount export smaller --to vllm -o served --tensor-parallel 2

        headcount export smaller --to transformers,gguf,onnx -o everywhere
    """
    quieten()
    from .. import progress
    from ..exports.pipeline import checked_settings
    from ..exports.several import export_each, formats_named, may_all_be_exported, places_in
    from ..model.checkpoints import load

    formats = formats_named(to)
    places = {formats[0].name: output} if len(formats) == 1 else places_in(output, formats)
    settings = checked_settings(groups, dtype, int8, multiple, tensor_parallel)
    may_all_be_exported(places, force, named_paths(model))
    say_notes(model)
    with progress.quiet() if quiet or as_json else nullcontext():
        with progress.Bar("loading the model"):
            subject = load(model, trust_remote_code=trust_remote_code)
        with progress.Bar(f"exporting to {', '.join(places)}"):
            done = export_each(subject, places, source=model, force=force, **vars(settings))
    if as_json:
        print(json.dumps({"model": model, **done.to_json()}, indent=2))
    elif done.written:
        out.print("\n".join(str(one) for one in done.written), soft_wrap=True, markup=False)
    for _, reason in done.refused:
        typer.echo(f"headcount: {reason}", err=True)
    if done.refused:
        raise typer.Exit(1)
