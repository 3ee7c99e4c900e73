"""The command `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import out


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that hold run folders.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")],
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="FOLDER", help="Also write every chart there, as SVG and PNG.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            "--markdown", metavar="FILE", help="Also write the statements of papers there, as a Markdown table."
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option("--title", help="Title of the page.", show_default="the names of the models, or of the paper"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Make one page of run folders: the answer, maps, curves, tables, and how to get each number again.

    Of folders that `reproduce` wrote, it shows what each paper says, what is seen here, and whether they agree.

    The page is one HTML file that opens offline; it needs neither torch nor the model.

    Examples:

        headcount report runs/curve-my-model-1a2b3c4d -o page.html

        headcount report runs -o page.html --figures figures --title "What the heads do"

        headcount report papers -o papers.html --markdown papers.md
    """
    from ..reporting import page

    written = page.report(runs, output, figures=figures, markdown=markdown, force=force, title=title)
    out.print(f"written to {written}", soft_wrap=True, markup=False)
    if figures is not None and figures.is_dir():
        out.print(f"charts as SVG and PNG in {figures}", soft_wrap=True, markup=False)
    if markdown is not None:
        out.print(f"statements of papers as Markdown in {markdown}", soft_wrap=True, markup=False)
