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
    assert {"induction", "from_head_mask", "ioi"} <= set(NAMES)


TRAINS = [pytest.param(name, marks=pytest.mark.slow) if name == "ioi" else name for name in NAMES]


@pytest.mark.parametrize("name", TRAINS)
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


def test_the_texts_about_the_circuit_say_what_its_outputs_say() -> None:
    """Of the notebook that trains its model, whose running takes long: numbers that it speaks of."""
    outputs = [one for cell in _kept("ioi")["cells"] for one in cell.get("outputs", [])]
    said = "\n".join("".join(one.get("text", ()) or one["data"]["text/plain"]) for one in outputs)

    def number(pattern: str) -> float:
        (found,) = re.findall(pattern, said)
        return float(found)

    assert number(r"accuracy ([\d.]+)") == 1.0
    assert number(r"clean +logit-difference (\S+)") > 5
    assert number(r"corrupted logit-difference (\S+)") < -5
    words = next(line for line in said.splitlines() if line.startswith("0 When"))
    giver = re.findall(r"(\d+) Peter", words)[-1]  # where the prompts differ
    last = re.findall(r"(\d+) to$", words)[0]
    assert number(rf"layers:0@{giver} (\S+),") > 0.9
    assert number(rf"layers:2@{last} (\S+),") > 0.9
    assert number(rf"layers:2@{giver} (\S+),") < 0.1
    assert number(r"eap-ig: rank correlation with exact patching (\S+)") > 0.9
    for what in ("heads and MLPs", "edges"):
        assert number(rf"\n?{what}: CPR (\S+)") > number(rf"\n{what}: CPR .* random circuits (\S+);")
    whole, inside = (
        number(r"whole model: logit-difference (\S+)"),
        number(r"heads of the circuit.*: logit-difference (\S+)"),
    )
    assert number(r"without all other heads.*: logit-difference (\S+)") > whole - 1 > inside + 3


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
