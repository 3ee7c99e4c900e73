"""Notebooks in `examples/notebooks`: run, with their outputs kept in them, and shown as pages of the documentation.

`tools/notebooks.py` runs all of them and writes their outputs and pages; `tools/notebooks.py --pages` writes the pages alone. No
Jupyter is needed: a notebook is JSON, its code cells run one after the other in one namespace, and what a cell prints and
what its last line is worth are its outputs, as in Jupyter.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "notebooks"
PAGES = ROOT / "docs" / "notebooks"
ON_PAGE = 200_000  # characters of an output that a page shows


def read(path: Path) -> dict[str, Any]:
    """The notebook in a file."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def write(path: Path, notebook: dict[str, Any]) -> None:
    """Write a notebook as Jupyter does: indented by one, a line at the end."""
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def source(cell: dict[str, Any]) -> str:
    """The text of a cell."""
    return "".join(cell["source"])


def run(notebook: dict[str, Any], name: str = "notebook") -> dict[str, Any]:
    """The notebook with the outputs that its code cells have now, run in a folder that is thrown away afterwards."""
    space: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    with _elsewhere():
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                cell = {
                    **cell,
                    "execution_count": count,
                    "outputs": _outputs(source(cell), space, f"{name}:{count}", count),
                }
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(code: str, space: dict[str, Any], name: str, count: int) -> list[dict[str, Any]]:
    """What a cell prints, and what its last line is worth."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), space)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": _lines(value._repr_html_()), **data}
        outputs.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_VERBOSITY")}
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def page(notebook: dict[str, Any], name: str) -> str:
    """The notebook as a page in Markdown: its texts, its code, and its outputs as they were kept."""
    parts = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(source(cell).strip())
            continue
        parts.append(f"```python\n{source(cell).strip()}\n```")
        for output in cell["outputs"]:
            parts.append(_shown(output))
    first, *rest = parts
    told = (
        f"*This page is the notebook `examples/notebooks/{name}.ipynb` with the outputs that it had when it was run.*"
    )
    return "\n\n".join([first, told, *rest]) + "\n"


def _shown(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    html = "".join(output["data"].get("text/html", []))
    if (
        html.startswith("<iframe") and len(html) <= ON_PAGE
    ):  # a page by itself, whose script runs only letter by letter as it is
        return html.replace("\n", "&#10;")
    if html and len(html) <= ON_PAGE:  # Markdown ends a piece of HTML at an empty line
        return re.sub(r"\n\s*\n", "\n", html)
    return f"```text\n{''.join(output['data']['text/plain'])}\n```"


def main() -> None:
    """Run the notebooks, and write their pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks, without .ipynb; all of them if none is named")
    parser.add_argument("--pages", action="store_true", help="write the pages of what is kept; run nothing")
    given = parser.parse_args()
    PAGES.mkdir(exist_ok=True)
    for path in sorted(FOLDER.glob("*.ipynb")):
        if given.names and path.stem not in given.names:
            continue
        notebook = read(path)
        if not given.pages:
            notebook = run(notebook, path.stem)
            write(path, notebook)
        (PAGES / f"{path.stem}.md").write_text(page(notebook, path.stem), encoding="utf-8")


if __name__ == "__main__":
    main()
