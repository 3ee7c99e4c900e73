"""The site: every public name has a place in the API reference, and the site builds without a warning."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import api_pages
import pytest

import headcount as hc

ROOT = Path(__file__).parents[2]
NAMES = api_pages.public_names()
PAGES = api_pages.pages()
PACKAGES = sorted(path.parent.name for path in api_pages.SOURCE.glob("*/__init__.py"))


def _given_out(package: str) -> set[str]:
    """What a package lists in `__all__`, without numbers and modules."""
    module = import_module(package)
    values = {name: getattr(module, name) for name in getattr(module, "__all__", ()) if not name.startswith("__")}
    return {name for name, value in values.items() if not isinstance(value, ModuleType)}


@pytest.mark.parametrize("package", ["headcount", *(f"headcount.{name}" for name in PACKAGES)])
def test_every_public_name_has_a_place_in_the_reference(package: str) -> None:
    on_pages = {(name.module, name.own) for name in NAMES}
    module = import_module(package)
    for name in _given_out(package):
        value = getattr(module, name)
        assert (value.__module__, value.__name__) in on_pages, name


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.shown)
def test_a_name_of_the_reference_is_what_a_program_gets(name: api_pages.Name) -> None:
    package, _, called = name.shown.replace("hc", "headcount", 1).rpartition(".")
    assert getattr(import_module(package), called) is getattr(import_module(name.module), name.own)
    text = PAGES[f"api/{name.page}.md"]
    assert f"::: {name.module}\n" in text
    assert f"\n        - {name.own}\n" in text


def test_the_first_page_of_the_reference_lists_all_names() -> None:
    assert (ROOT / "docs" / api_pages.INDEX).read_text(encoding="utf-8").count(api_pages.TABLES) == 1
    rows = api_pages.tables().splitlines()
    for name in NAMES:
        assert any(
            row.startswith(f"| [`{name.shown}`][{name.path}] | ") and len(row.split(" | ")[1]) > 9 for row in rows
        )


def test_there_are_names_to_test() -> None:
    assert {"headcount.model.cutting.surgery.cut", "headcount.plans.Plan"} <= {name.path for name in NAMES}
    assert len(NAMES) >= len(_given_out(hc.__name__)) > 20


@pytest.mark.skipif(not importlib.util.find_spec("mkdocstrings"), reason="mkdocs is not installed")
def test_the_site_builds_without_a_warning_and_has_an_anchor_for_every_name(tmp_path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in NAMES:
        assert f'id="{name.path}"' in (tmp_path / "api" / f"{name.page}.html").read_text(encoding="utf-8"), name
    for page in (tmp_path / "index.html", tmp_path / "api" / "model.html"):
        assert not [part for part in page.read_text(encoding="utf-8").split('src="')[1:] if part.startswith("http")]
