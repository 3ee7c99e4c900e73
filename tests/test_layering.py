"""The shape of the source: packages depend one way, stay small, and importing the package does nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import headcount as hc

SOURCE = Path(hc.__file__).parent
# Who may import whom: what stands here, and what those may. `root` are the modules beside the packages; `cli` may import all.
BELOW = {
    "root": "",
    "stats": "root",
    "documents": "stats",
    "embedded": "root",
    "reporting": "documents",
    "reproduction": "reporting embedded",
    "model": "root",
    "data": "stats",
    "evaluation": "model data documents",
    "importance": "evaluation",
    "efficiency": "evaluation",
    "exports": "efficiency",
    "training": "evaluation",
    "head_roles": "circuits reporting",
    "interventions": "evaluation",
    "circuit_discovery": "importance",
    "circuits": "importance",
    "pruning": "importance exports reporting",
    "learned_gates": "pruning training",
    "lottery_ticket": "pruning training",
}
BELOW["cli"] = " ".join(BELOW)
ALSO = {("reproduction.inputs", "data.text_files")}  # reads files, and needs no torch for it
ALSO |= {("__main__", "cli")}  # `python -m headcount`
NO_TORCH = {"root", "stats", "documents", "embedded", "reporting", "reproduction"}
NO_TORCH |= {
    "data.files",
    "data.text_files",
    "data.sentences.conllu",
    "data.sentences.word_alignment",
    "head_roles.rules",
    "head_roles.by_name.kinds",
    "head_roles.by_name.naming",
    "head_roles.by_name.results",
}
NO_TORCH |= {"pruning.knapsack", "cli.text", "cli.tables", "cli.help.demo"}
# what modules without torch may use
NUMBERS = {"numpy", "scipy", "sacrebleu", "rich", "filelock", "altair", "vl_convert", "jinja2", "markupsafe"}
NUMBERS |= {"huggingface_hub"}
READERS = {"datasets", "pyarrow", "PIL"}  # of files, where the user has them
LATE = {
    "transformers",
    "safetensors",
    "accelerate",
    "altair",
    "vl_convert",
    "jinja2",
    "huggingface_hub",
}  # imported where they are used
LONGEST = 480  # lines of a module, with the docstrings of verbs
MOST = 14  # modules of a package


def _name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


# what is copied into exported folders is text to headcount, and no module of it
FILES = {_name(path): path for path in sorted(SOURCE.rglob("*.py")) if path.parent.name != "templates"}
PACKAGES = sorted(name for name, path in FILES.items() if path.name == "__init__.py" and name)
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def _room(name: str) -> str:
    """The package on top that a module is in; `root` for those that are in none."""
    top = name.split(".")[0]
    return top if top in PACKAGES else "root"


def _allowed(room: str) -> set[str]:
    return {room}.union(*(_allowed(one) for one in BELOW[room].split()))


def _imports(name: str, tree: ast.AST) -> tuple[set[str], set[str]]:
    """The modules of the package, and the packages of others, that a piece of a module imports anywhere."""
    here = name.split(".") if FILES[name].name == "__init__.py" else name.split(".")[:-1]
    own, others = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            others |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            start = ".".join(part for part in [*here[: len(here) - node.level + 1], node.module or ""] if part)
            both = {alias.name: f"{start}.{alias.name}".lstrip(".") for alias in node.names}
            own |= {full if full in FILES else start for full in both.values()}
        elif isinstance(node, ast.ImportFrom):
            others.add(str(node.module).split(".")[0])
    return own - {""}, others  # of the package itself only the version is imported


MODULES = sorted(name for name in FILES if name)


@pytest.mark.parametrize("name", MODULES)
def test_packages_import_only_what_is_below_them(name: str) -> None:
    own, others = _imports(name, TREES[name])
    wrong = {one for one in own if _room(one) not in _allowed(_room(name)) and (name, one) not in ALSO}
    assert not wrong
    assert "headcount" not in others, "the package imports itself by relative names, which this test can follow"
    if {_room(name), name} & NO_TORCH:
        assert others - NUMBERS - (READERS if name == "data.files" else set()) <= sys.stdlib_module_names


def test_every_package_has_a_place_and_modules_do_not_import_each_other_in_a_circle() -> None:
    assert {_room(name) for name in MODULES} == set(BELOW)
    order = TopologicalSorter({name: _imports(name, TREES[name])[0] - {name} for name in MODULES})
    assert list(order.static_order())


def test_packages_are_small_and_none_is_called_like_a_public_name() -> None:
    for package in ["", *PACKAGES]:
        inside = [name for name in MODULES if name.rpartition(".")[0] == package and name not in PACKAGES]
        assert len([name for name in inside if not name.endswith("__main__")]) <= MOST, package
    assert not {name for name in MODULES if "." not in name} & set(hc.__all__)


@pytest.mark.parametrize("name", sorted(FILES))
def test_transformers_is_imported_only_by_functions_that_need_it(name: str) -> None:
    top = ast.Module([node for node in TREES[name].body if not isinstance(node, ast.FunctionDef | ast.ClassDef)], [])
    assert not _imports(name, top)[1] & LATE


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_file_is_long(name: str) -> None:
    assert len(FILES[name].read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("module", ["headcount", "headcount.plans", "headcount.cli", "headcount.cli.app"])
def test_importing_it_imports_neither_torch_nor_transformers(module: str) -> None:
    code = f"import sys, {module}; print(*{{'torch', 'transformers', 'numpy'}} & sys.modules.keys(), 'done')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["done"]


@pytest.mark.parametrize("name", hc.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(hc, name)
    if name == "__version__":
        assert value.count(".") == 2
        return
    assert value.__doc__
    assert value.__doc__.strip()
    assert "dataclass" not in value.__doc__
    assert not value.__doc__.startswith(f"{name}("), "a sentence, not the signature that dataclasses make up"
    assert value.__module__.startswith("headcount.")


def test_the_package_lists_its_names_and_no_others() -> None:
    assert set(hc.__all__) < set(dir(hc))
    assert len(set(hc.__all__)) == len(hc.__all__)
    with pytest.raises(AttributeError, match="no attribute 'pruned'"):
        _ = hc.pruned


def test_a_planted_bug_meets_every_case_of_a_short_test_and_a_dozen_of_a_long_one() -> None:
    import mutants

    names = [f"short[{n}]" for n in range(6)] + [f"long[{n}]" for n in range(100)]
    known = {"seconds": dict.fromkeys(names, 0.01), "lines": {"gates.py": {"1": list(range(len(names)))}}}
    bug = mutants.Mutant(**dict.fromkeys(mutants.Mutant.__dataclass_fields__, "") | {"module": "gates", "line": 1})
    chosen = mutants.tests_of(bug, known)
    assert chosen[:2] == ["short[0]", "long[0]"]
    assert sorted(name for name in chosen if name.startswith("short")) == names[:6]
    assert len(chosen) == len(set(chosen)) == 18


def test_the_tools_name_files_that_are_there() -> None:
    """What is moved is moved there too: pytest passes over a file to leave out that is not there."""
    import matrix
    import mutants

    assert [name for name in matrix.TEXTS.split() if not (matrix.ROOT / "tests" / name).exists()] == []
    mutated = {name: group for group, names in mutants.GROUPS.items() for name in names.split()}
    assert [name for name in mutated if not (mutants.SOURCE / f"{name}.py").is_file()] == []
    reasons = tomllib.loads(mutants.EQUIVALENT.read_text(encoding="utf-8"))
    modules = {key.partition(".")[0] for key in reasons}
    assert modules <= mutated.keys()
    known = {bug.key for name in modules for bug in mutants.mutants(mutated[name], name)}
    assert [key for key in reasons if key not in known] == [], "these are equivalent no more, or moved"
