"""The notebooks run, from top to bottom, offline; their outputs are kept in them, and their pages show those."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import notebooks
import pytest
import torch

NAMES = sorted(path.stem for path in notebooks.FOLDER.glob("*.ipynb"))


def _kept(name: str) -> dict[str, Any]:
    return notebooks.read(notebooks.FOLDER / f"{name}.ipynb")


def _words(notebook: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """What each cell gave: of what kind, and the words that it printed, without numbers and what stands between them."""
    out = []
    for cell in notebook["cells"]:
        outputs = cell.get("outputs", [])
        texts = ["".join(one.get("text", "")) for one in outputs]
        kinds = [" ".join(sorted(one.get("data", {"stream": ""}))) for one in outputs]
        out.append([(kind, re.sub(r"[^a-zA-Z]+", " ", text)) for kind, text in zip(kinds, texts, strict=True)])
    return out


def test_there_are_notebooks() -> None:
    assert {"induction", "from_head_mask"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_says_what_it_said(name: str) -> None:
    kept = _kept(name)
    with torch.random.fork_rng(devices=[]):
        again = notebooks.run(kept, name)
    assert _words(again) == _words(kept)
    assert len(again["cells"]) == len(kept["cells"]) > 8


@pytest.mark.parametrize("name", NAMES)
def test_its_page_shows_the_outputs_that_are_kept(name: str) -> None:
    page = (notebooks.PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert page == notebooks.page(_kept(name), name)
    assert len(page) < 300_000
    kept = _kept(name)
    assert all(cell["execution_count"] for cell in kept["cells"] if cell["cell_type"] == "code")
    assert [cell["id"] for cell in kept["cells"]] == [f"cell-{n}" for n in range(len(kept["cells"]))]


def test_a_page_within_a_page_is_shown_letter_by_letter() -> None:
    """The policy of such a page knows its script by a hash."""
    inner = "<script>\n\n  let a;\n</script>"
    framed = f'<iframe srcdoc="{html.escape(inner)}"></iframe>'
    cell = {
        "cell_type": "code",
        "source": ["view"],
        "outputs": [{"output_type": "execute_result", "data": {"text/html": [framed]}}],
    }
    page = notebooks.page({"cells": [{"cell_type": "markdown", "source": ["# A"]}, cell]}, "name")
    (line,) = (line for line in page.splitlines() if line.startswith("<iframe"))
    assert html.unescape(line.split('"')[1]) == inner


def test_a_cell_gives_what_it_prints_and_what_its_last_line_is_worth() -> None:
    cells = [
        "class Shown:\n    def _repr_html_(self): return '<b>\\n\\nx</b>'\n    def __repr__(self): return 'x'",
        "a = 1\nprint(a)\na + 1",
        "Shown()",
        "import pathlib\n_ = pathlib.Path('left').write_text('x')\nNone",
    ]
    code = [{"cell_type": "code", "source": [text], "outputs": []} for text in cells]
    done = notebooks.run({"cells": [{"cell_type": "markdown", "source": ["# Title"]}, *code]})
    _, none, first, second, last = done["cells"]
    assert none["outputs"] == last["outputs"] == []
    assert first["outputs"][0]["text"] == ["1\n"]
    assert first["outputs"][1]["data"] == {"text/plain": ["2"]}
    assert second["outputs"][0]["data"] == {"text/html": ["<b>\n", "\n", "x</b>"], "text/plain": ["x"]}
    assert not Path("left").exists()
    page = notebooks.page(done, "name")
    assert page.startswith("# Title\n\n*This page is the notebook")
    assert "```text\n1\n```\n\n```text\n2\n```" in page
    assert "<b>\nx</b>" in page
