"""The shape of the source: modules depend one way, stay small, and importing the package does nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headcount as hc

SOURCE = Path(hc.__file__).parent
# Lower modules never import higher ones. A new module gets its place here.
ORDER = [
    "errors",
    "plans",
    "metrics",
    "stats",
    "agreement",
    "results",
    "shares",
    "betting",
    "influence",
    "noninferiority",
    "guarantee",
    "scores",
    "knapsack",
    "progress",
    "fingerprints",
    "functions",
    "earning",
    "runs",
    "demo",
    "tables",
    "cards",
    "page.units",
    "page.telling",
    "page.documents",
    "page.findings",
    "page.again",
    "page.look",
    "page.charts",
    "page.courses",
    "page.drawing",
    "page.heads",
    "page.maps",
    "page.answers",
    "page.sections",
    "page.outcomes",
    "page.lessons",
    "page.structure",
    "page.lottery",
    "page.roles",
    "page.survival",
    "page.predictions",
    "page.claims",
    "reports",
    "jobs",
    "datafiles",
    "papers.materials",
    "papers.experiments",
    "papers.trainings",
    "papers.subjects",
    "papers.lines",
    "papers.michel_one_head",
    "papers.michel_transfer",
    "papers.michel_training",
    "papers.michel_speed",
    "papers.michel_curves",
    "papers.michel",
    "papers.voita_encoder",
    "papers.voita_all",
    "papers.voita_roles",
    "papers.voita",
    "papers.li",
    "papers.fan",
    "papers.draws",
    "papers.prasanna",
    "papers.shelf",
    "papers.judging",
    "columns",
    "running_text",
    "labels",
    "treebanks",
    "aligning",
    "parsers",
    "wording",
    "linear",
    "source",
    "dialects",
    "anatomy",
    "finding",
    "multihead",
    "gates",
    "journal",
    "companions",
    "sharing",
    "layers",
    "rules",
    "pricing",
    "proof",
    "surgery",
    "portable",
    "checkpoints",
    "encoding",
    "asking",
    "tasks",
    "kinds",
    "near_copies",
    "reading",
    "splits",
    "seen",
    "ledger",
    "nests",
    "tracing",
    "replay",
    "evaluation",
    "dummies",
    "counting",
    "speed",
    "costs",
    "latencies",
    "gradients",
    "propagation",
    "rerouting",
    "relevance",
    "rearranging",
    "patterns",
    "glances",
    "probing",
    "looking",
    "ablation",
    "subsets",
    "strategies",
    "criteria",
    "landings",
    "tuning",
    "budgeting",
    "curves",
    "studies",
    "trying",
    "choosing",
    "pruning",
    "concrete",
    "methods",
    "candidates",
    "learners",
    "goals",
    "recipes",
    "stepping",
    "resuming",
    "training",
    "callbacks",
    "building",
    "lessons",
    "sparsity",
    "tickets",
    "lotteries",
    "printing",
    "options",
    "portions",
    "recovering",
    "measuring",
    "casting",
    "benching",
    "reporting",
    "shipping",
    "regimen",
    "teaching",
    "lecturing",
    "raffling",
    "reproducing",
    "cli",
]
NO_TORCH = [
    "errors",
    "plans",
    "metrics",
    "stats",
    "results",
    "agreement",
    "shares",
    "betting",
    "influence",
    "noninferiority",
    "guarantee",
    "scores",
    "knapsack",
    "progress",
    "fingerprints",
    "functions",
    "earning",
    "treebanks",
    "aligning",
    "runs",
]
FOLDERS = ("page", "papers")
NO_TORCH += [
    "tables",
    "cards",
    "demo",
    "reports",
    "printing",
    *(name for name in ORDER if name.split(".")[0] in FOLDERS),
]
NUMBERS = {
    "numpy",
    "scipy",
    "sacrebleu",
    "rich",
    "filelock",
    "altair",
    "vl_convert",
    "jinja2",
    "markupsafe",
}  # what modules without torch may use
LONGEST = 450  # lines
FILES = {path.stem: path for path in SOURCE.glob("*.py")}
FILES |= {
    f"{one}.{path.stem}": path for one in FOLDERS for path in SOURCE.glob(f"{one}/*.py") if path.stem != "__init__"
}


def _imports(tree: ast.AST, inside: str = "") -> tuple[set[str], set[str]]:
    """The modules of the package, and the packages of others, that a piece of source imports anywhere.

    `inside` is "page." for the source of a part of a page, where one dot stands for that folder and two for the package,
    and "papers." likewise.
    """
    own, others = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            others |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            here = inside if node.level == 1 else ""
            names = {alias.name for alias in node.names}
            if node.module in FOLDERS:
                own |= {f"{node.module}.{name}" for name in names}
            else:
                own |= {here + node.module} if node.module else {here + name for name in names}
        elif isinstance(node, ast.ImportFrom):
            others.add(str(node.module).split(".")[0])
    return own - {"__version__"}, others


def test_every_module_has_a_place_in_the_order() -> None:
    assert sorted(FILES) == sorted([*ORDER, "__init__"])


@pytest.mark.parametrize("name", ORDER)
def test_modules_import_only_what_is_below_them(name: str) -> None:
    inside = name.split(".")[0] + "." if "." in name else ""
    own, others = _imports(ast.parse(FILES[name].read_text(encoding="utf-8")), inside)
    assert own <= set(ORDER[: ORDER.index(name)])
    assert "headcount" not in others, "the package imports itself by relative names, which this test can follow"
    if name in NO_TORCH:
        assert others - NUMBERS <= sys.stdlib_module_names


@pytest.mark.parametrize("name", sorted(FILES))
def test_transformers_is_imported_only_by_functions_that_need_it(name: str) -> None:
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    top = ast.Module([node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)], [])
    assert not _imports(top)[1] & {"transformers", "safetensors", "accelerate", "altair", "vl_convert", "jinja2"}


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_file_is_long(name: str) -> None:
    assert len(FILES[name].read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("module", ["headcount", "headcount.plans", "headcount.cli"])
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
    assert dir(hc) == sorted(hc.__all__)
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
