"""The command `generate`: contrast data from templates, in words that a model's tokenizer has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import out, quieten


def generate(
    kind: Annotated[str, typer.Argument(metavar="NAME", help="ioi, greater-than, induction, agreement or colour.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model whose tokenizer decides about words.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write, JSON Lines.")],
    size: Annotated[int, typer.Option("--size", help="Number of examples.")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of the examples.")] = 0,
) -> None:
    """Write clean and corrupted prompts with right and wrong answers, for --task contrast.

    The two prompts of an example differ in one word and are the same number of tokens. `--task contrast:NAME` makes the same
    examples without a file.

    Examples:

        headcount generate ioi my-model -o ioi.jsonl

        headcount generate agreement my-model -o agreement.jsonl --size 500 --seed 1

        headcount evaluate my-model --task contrast --data ioi.jsonl
    """
    quieten()
    from ...data.contrast.generation import generated, write

    rows, notes = generated(kind, model, size, seed)
    write(rows, output)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    first = rows[0]
    out.print(f"{len(rows)} examples of {kind} written to {output}; the first:", soft_wrap=True, markup=False)
    for name, text in (("clean", first.clean), ("corrupted", first.corrupted)):
        out.print(f"  {name:<10} {text}", soft_wrap=True, markup=False)
    for name, texts in (("answer", first.answer), ("wrong", first.wrong)):
        out.print(f"  {name:<10} {', '.join(texts)}", soft_wrap=True, markup=False)
