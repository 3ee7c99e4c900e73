"""Flags of `prune` about other programs: which a plan is for, and which the smaller model is exported to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ...exports.several import Exports

Groups = Annotated[
    str | None,
    typer.Option(
        "--groups",
        metavar="even|uneven",
        help="Groups of query heads that share a key-value head: even (of one size), or uneven.",
        show_default="even in models that write text",
    ),
]


@dataclass(frozen=True)
class Targets:
    """What the smaller model is for."""

    runtime: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="FORMAT",
            help="Choose only what this runtime can hold: gguf, vllm, ...; commas for several.",
        ),
    ] = None
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", help="With --for vllm: devices that share every layer.")
    ] = 1
    groups: Groups = None
    export: Annotated[
        str | None,
        typer.Option(
            "--export",
            metavar="FORMAT",
            help="Export the smaller model too, to OUTPUT.gguf, OUTPUT-onnx, ...; commas for several.",
        ),
    ] = None

    def places(self, output: Path | None, force: bool, needed: Iterable[Path]) -> dict[str, Path]:
        """Where the exports go; what is wrong with them is said before any work is done."""
        if self.export is None:
            return {}
        if output is None:
            raise typer.BadParameter("--export goes with -o: exports lie beside the smaller model.")
        from ...exports.several import formats_named, may_all_be_exported, places_beside

        places = places_beside(output, formats_named(self.export))
        may_all_be_exported(places, force, needed)
        return places

    def sane(self) -> None:
        """Refuse a runtime that is not there, and devices that nobody shares."""
        from ...pruning.legal_plans import rule_of

        rule_of(self.runtime or (), self.tensor_parallel, self.groups)

    def check_whole(self, model: Any) -> None:
        """Refuse before hours of work what not even the whole model could be exported to, or needs a package that is missing."""
        from ...exports.several import must_hold

        names = ",".join(name for name in (self.export, self.runtime) if name)
        if names:
            must_hold(model, names, tensor_parallel=self.tensor_parallel)

    def question(self) -> dict[str, Any]:
        """What the choice depends on; nothing where nothing was said, so that earlier run folders are found again."""
        devices = None if self.tensor_parallel == 1 else self.tensor_parallel
        return {"runtime": self.runtime, "tensor_parallel": devices}


def even_in_question(
    groups: str | None, model: Any, kinds: Iterable[str], specs: Iterable[Any], runtime: str | Iterable[str] = ()
) -> str | None:
    """What the question of a run says about groups of query heads: "even" where they stay so and no runtime says it already.

    Nothing where they may be uneven, as all earlier run folders have it.
    """
    from ...model.discovery import find
    from ...pruning.legal_plans import rule_of, stay_even

    if rule_of(runtime, groups=groups).even_groups or not stay_even(groups, [*kinds], model, find(model, tuple(specs))):
        return None
    return "even"


def exported(model: Any, places: dict[str, Path], **options: Any) -> Exports:
    """The exports of a smaller model that is on the disk already."""
    from ... import progress
    from ...exports.several import export_each

    with progress.Bar(f"exporting to {', '.join(places)}"):
        return export_each(model, places, **options)


def end(exports: Exports) -> None:
    """Say what could not be exported, and why: exit code 1."""
    for name, reason in exports.refused:
        again = "which `headcount export` can try again"
        typer.echo(
            f"headcount: the smaller model is written, but not its export to {name}, {again}: {reason}", err=True
        )
    if exports.refused:
        raise typer.Exit(1)
