"""Plant small bugs at random places and see which of them the tests do not notice.

    python tools/mutants.py map               # run the suite once: which tests pass through which lines
    python tools/mutants.py run --count 320   # plant 320 bugs drawn by --seed, one at a time; goes on where it was stopped
    python tools/mutants.py show              # the table, and every bug that no test noticed

A mutant is the code with one operator, number, condition, argument or statement changed. It is killed if one of the tests that
pass through its line fails; it survives if none does. Survivors that change nothing anyone can see are listed with the reason in
tools/equivalent_mutants.toml and counted apart. Everything is kept in .mutants/, which git ignores.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "headcount"
KEPT = ROOT / ".mutants"
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.toml"
SECONDS = 240  # for the tests of one mutant; one that runs into it hangs, and that is noticed
# What is mutated: finding and cutting, statistics, importance, and the choice of what goes.
GROUPS = {
    "model": "model/anatomy model/cutting/per_head model/architectures model/discovery model/gates "
    "model/cutting/transaction model/cutting/layers model/matrices model/multihead model/cutting/effects "
    "model/equivalence model/cutting/rules model/cutting/kv_groups model/cutting/surgery",
    "statistics": "stats/agreement stats/guarantee stats/noninferiority stats/paired_shares stats/betting_bound "
    "stats/correlation_influence stats/metrics stats/results stats/paired_tests",
    "importance": "evaluation/ablation importance/criteria evaluation/evaluator importance/gradients "
    "importance/attention importance/lrp/rules importance/lrp/relevance evaluation/replay "
    "evaluation/call_order importance/layer_orders learned_gates/relaxations",
    "pruning": "pruning/budget pruning/selection efficiency/costs efficiency/flops pruning/curves pruning/knapsack "
    "plans pruning/pipeline pruning/tuning/mask_rearrangement documents/scores data/places data/splits pruning/plan_tests "
    "pruning/tuning/mask_tuning pruning/tuning/residual_targets pruning/ledger evaluation/residual_stream",
}

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.MatMult: ast.Add,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sum": "len", "sorted": "list", "argmax": "argmin"}
NAMES |= {"argmin": "argmax", "mean": "sum", "abs": "float", "ceil": "floor", "floor": "ceil", "cumsum": "cumprod"}


@dataclass(frozen=True)
class Mutant:
    """One change: in which module and function, on which line, from which text to which."""

    group: str
    module: str
    function: str
    line: int
    column: int
    code: str  # of the whole line
    before: str
    after: str

    @property
    def key(self) -> str:
        """What it is called in the list of equivalent mutants: its line may move, the text may not."""
        return f"{self.module}.{self.function}, {self.code}: {self.column}: {self.before} -> {self.after}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    mapping = commands.add_parser("map")
    mapping.add_argument("-n", "--processes", default="2")
    running = commands.add_parser("run")
    running.add_argument("--count", type=int, default=320)
    running.add_argument("--seed", type=int, default=1)
    running.add_argument("--workers", type=int, default=2)
    running.add_argument("--minutes", type=float, default=1e9, help="begin no mutant after so long")
    running.add_argument("--survivors", action="store_true", help="only those that survived so far, again")
    commands.add_parser("show")
    options = parser.parse_args()
    KEPT.mkdir(exist_ok=True)
    if options.command == "map":
        make_map(options.processes)
    elif options.command == "run":
        run(options)
    else:
        show()


# -- which tests pass through which lines --------------------------------------------------------------------------------


def make_map(processes: str) -> None:
    """Run the whole suite under coverage and keep, for every line, the tests that pass through it and pass."""
    data = KEPT / "coverage"
    environment = {**os.environ, "COVERAGE_FILE": str(data), "COVERAGE_CORE": "ctrace"}
    command = [sys.executable, "-m", "pytest", "-n", processes, f"--junitxml={KEPT / 'junit.xml'}"]
    command += [f"--cov={SOURCE}", "--cov-branch", "--cov-context=test", "--cov-report=term:skip-covered"]
    subprocess.run([*command, "-p", "no:cacheprovider"], cwd=ROOT, env=environment, check=False)
    seconds = {}
    for case in ElementTree.parse(KEPT / "junit.xml").iter("testcase"):
        if all(child.tag not in ("failure", "error", "skipped") for child in case):
            path = case.get("classname", "").replace(".", "/") + ".py"
            seconds[f"{path}::{case.get('name')}"] = float(case.get("time", 0))
    import coverage

    found = coverage.CoverageData(str(data))
    found.read()
    place = {name: number for number, name in enumerate(seconds)}  # a test is named once, lines have its number
    lines: dict[str, dict[int, list[int]]] = {}
    for path in found.measured_files():
        if Path(path).is_relative_to(SOURCE):
            module = str(Path(path).relative_to(SOURCE))
            lines[module] = {
                line: sorted({place[name] for context in contexts if (name := context.partition("|")[0]) in place})
                for line, contexts in found.contexts_by_lineno(path).items()
            }
    (KEPT / "map.json").write_text(json.dumps({"seconds": seconds, "lines": lines}), encoding="utf-8")
    print(f"{len(seconds)} tests that pass, {sum(len(some) for some in lines.values())} lines")


# -- mutants -------------------------------------------------------------------------------------------------------------


def mutants(group: str, module: str) -> Iterator[Mutant]:
    """Every mutant of a module: changes inside functions, none in docstrings, annotations or texts."""
    text = (SOURCE / f"{module}.py").read_text(encoding="utf-8")
    tree, rows = ast.parse(text), text.encode().splitlines(keepends=True)
    for path, function in _functions(tree):
        for node in _mutable(function):
            for changed in _changes(node):
                before, code = _segment(rows, node), rows[node.lineno - 1].decode().strip()
                after = changed if isinstance(changed, str) else ast.unparse(changed)
                if isinstance(node, ast.expr):
                    after = f"({after})" if not isinstance(node, ast.Constant) else after
                yield Mutant(group, module, path, node.lineno, node.col_offset, code, before, after)


def _segment(rows: list[bytes], node: Any) -> str:
    """The text of a node. What `ast` has for it takes the whole file apart each time."""
    lines = rows[node.lineno - 1 : node.end_lineno]
    lines[-1] = lines[-1][: node.end_col_offset]
    lines[0] = lines[0][node.col_offset :]
    return b"".join(lines).decode()


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if isinstance(node, ast.FunctionDef):
                yield prefix + node.name, node
            else:
                yield from _functions(node, f"{prefix}{node.name}.")


def _mutable(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The statements and expressions of a function, without its docstring, its annotations and what stands in texts.

    Nor the `strict` of a zip, which is there for what cannot happen.
    """
    body = function.body[1:] if ast.get_docstring(function) else function.body
    waiting: list[ast.AST] = [*body, *function.args.defaults, *(one for one in function.args.kw_defaults if one)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):  # what an error says is checked by reading it
            continue
        yield node
        if isinstance(node, ast.AnnAssign):
            waiting += [node.value] if node.value else []
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            continue
        else:
            waiting += ast.iter_child_nodes(node)


def _changes(node: ast.AST) -> Iterator[ast.AST | str]:
    """What a node may become."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        value = node.value
        yield (
            str(not value) if type(value) is bool else str(value + 1 if type(value) is int or value == 0 else value * 2)
        )
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) and node.generators[0].ifs:
        changed = copy.deepcopy(node)
        changed.generators[0].ifs = []
        yield changed
    elif isinstance(node, ast.stmt):
        yield from _statements(node)


def _statements(node: ast.stmt) -> Iterator[ast.AST | str]:
    if isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | None):  # a constant is changed itself
        yield "return None"
    elif isinstance(node, ast.Expr) or (isinstance(node, ast.AugAssign) and type(node.op) not in OPERATORS):
        yield "pass"
    elif isinstance(node, ast.AugAssign):
        yield ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
    elif isinstance(node, ast.Continue | ast.Break):
        yield "break" if isinstance(node, ast.Continue) else "continue"


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", None)
    if name in NAMES:
        changed = copy.deepcopy(node)
        if isinstance(changed.func, ast.Name):
            changed.func.id = NAMES[name]
        else:
            changed.func.attr = NAMES[name]
        yield changed
    for number, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, "strict") and not (
            isinstance(keyword.value, ast.Constant) and keyword.value.value is None
        ):
            yield ast.Call(node.func, node.args, node.keywords[:number] + node.keywords[number + 1 :])


def drawn(count: int, seed: int, lines: dict[str, dict[str, list[int]]]) -> list[Mutant]:
    """Mutants drawn by seed, each on a line that some test passes through, no two on the same place.

    A mutant's place in the draw is a hash of its text: where the code changes, all others stay in the sample.
    """
    every = _every()
    every.sort(key=lambda one: hashlib.sha256(f"{seed} {one.key}".encode()).digest())
    chosen: dict[tuple[str, int, int], Mutant] = {}
    for one in every:
        if len(chosen) < count and lines.get(f"{one.module}.py", {}).get(str(one.line)):
            chosen.setdefault((one.module, one.line, one.column), one)
    return list(chosen.values())


def _every() -> list[Mutant]:
    return [one for group, names in GROUPS.items() for name in names.split() for one in mutants(group, name)]


def planted(mutant: Mutant) -> str:
    """The source of the module with the change in it."""
    text = (SOURCE / f"{mutant.module}.py").read_text(encoding="utf-8")
    rows = text.splitlines(keepends=True)
    start = len("".join(rows[: mutant.line - 1])) + len(rows[mutant.line - 1].encode()[: mutant.column].decode())
    assert text[start:].startswith(mutant.before), mutant
    return text[:start] + mutant.after + text[start + len(mutant.before) :]


# -- running -------------------------------------------------------------------------------------------------------------


def tests_of(mutant: Mutant, known: dict) -> list[str]:
    """The tests that pass through the line: one case of each test first, the quick before the slow, then the others."""
    every = list(known["seconds"])
    names = [every[number] for number in known["lines"][f"{mutant.module}.py"][str(mutant.line)]]
    by_test: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names, key=lambda name: known["seconds"][name]):
        by_test[name.partition("[")[0]].append(name)
    order: list[str] = []
    for turn in range(12):  # of a test with a hundred families, a dozen
        order += [some[len(some) * turn // min(12, len(some))] for some in by_test.values() if turn < len(some)]
    taken, total = [], 0.0
    for name in dict.fromkeys(order):
        if total < SECONDS / 3:
            taken.append(name)
            total += known["seconds"][name]
    return taken


def run(options: argparse.Namespace) -> None:
    """Try the mutants that have no outcome yet, side by side, each in a copy of the source of its own."""
    known = json.loads((KEPT / "map.json").read_text(encoding="utf-8"))
    path = KEPT / "outcomes.jsonl"
    before = _outcomes()
    chosen = drawn(options.count, options.seed, known["lines"])
    if options.survivors:
        todo = [one for one in chosen if before.get(one.key) == "survived"]
    else:
        todo = [one for one in chosen if one.key not in before]
    end = time.monotonic() + 60 * options.minutes
    print(f"{len(chosen)} mutants, {len(todo)} to try")

    def try_one(numbered: tuple[int, Mutant]) -> None:
        number, mutant = numbered
        if time.monotonic() > end:
            return
        outcome = _try(mutant, tests_of(mutant, known), KEPT / f"copy-{number}")
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**asdict(mutant), "key": mutant.key, "outcome": outcome}) + "\n")
        if outcome == "survived":
            print(f"survived: {mutant.module}.py:{mutant.line} {mutant.key}", flush=True)

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(try_one, enumerate(todo)))
    show()


def _try(mutant: Mutant, tests: list[str], folder: Path) -> str:
    shutil.copytree(SOURCE, folder / "headcount", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "headcount" / f"{mutant.module}.py").write_text(planted(mutant), encoding="utf-8")
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    names = folder / "tests.txt"
    names.write_text("\n".join(tests) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "--no-header", "-p", "no:cacheprovider", f"@{names}"]
    child = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output = child.communicate(timeout=SECONDS)[0]
        if child.returncode == 0:
            return "survived"
        return "killed" if b" failed" in output or b" error" in output else "broken"
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return "hung"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _outcomes() -> dict[str, str]:
    """The last outcome of every mutant tried."""
    path = KEPT / "outcomes.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {(one := json.loads(line))["key"]: one["outcome"] for line in lines}


def show() -> None:
    """The numbers by group, and the survivors; of mutants of the code as it is now."""
    path = KEPT / "outcomes.jsonl"
    last = {(one := json.loads(line))["key"]: one for line in path.read_text(encoding="utf-8").splitlines()}
    reasons = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")) if EQUIVALENT.exists() else {}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    present = {one.key for one in _every()}
    for key, one in last.items():
        if key not in present:
            continue
        outcome = "equivalent" if one["outcome"] == "survived" and key in reasons else one["outcome"]
        counts[one["group"]][outcome] += 1
        counts["all"][outcome] += 1
        if outcome in ("survived", "broken"):
            print(f"{outcome}: {one['module']}.py:{one['line']} {key}")
    kinds = ["killed", "hung", "equivalent", "survived", "broken"]
    print("\n| | mutants |", " | ".join(kinds), "|\n|---|---|" + "---|" * len(kinds))
    for group, row in counts.items():
        print(f"| {group} | {sum(row.values())} |", " | ".join(str(row[kind]) for kind in kinds), "|")


if __name__ == "__main__":
    main()
