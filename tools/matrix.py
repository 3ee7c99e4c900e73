"""Run the tests as other machines would: other kernels, thread counts, hash seeds, orders, time zones, and a busy machine.

    python tools/matrix.py                    # every row once
    python tools/matrix.py --times 3          # three rounds; each row has another quarter of the cases in each
    python tools/matrix.py avx2 busy -n 1     # some rows, one process

Every row runs a quarter of the cases (`pytest --quarter`: every law and every test of numbers with a quarter of its cases, and of
files that run whole commands every fourth), but for the slow repetitions, in an order and with a hash seed of its own; files that
compare texts and no computed numbers are in the row `busy` alone. The rows differ in what
decides how sums are rounded (torch's, oneDNN's, MKL's and OpenBLAS's kernels, the number of threads) and in what a test could
lean on without knowing it. `rounding` shakes the last digit of every sum, as no one processor does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


# Pages, documents and command lines: no kernel changes what they say.
TEXTS = "test_layering.py test_runs.py test_progress.py docs reporting reproduction stats/test_results.py data/test_files.py"
TEXTS += " cli/test_app.py cli/test_demo.py cli/test_reproduce.py"


@dataclass(frozen=True)
class Row:
    """One machine: what its environment says, what pytest is told, whether other processes keep every core of it busy."""

    name: str
    environment: dict[str, str]
    arguments: tuple[str, ...] = ()
    busy: bool = False
    needs: str = ""  # a flag of the processor
    texts: bool = False  # also what compares texts


ROWS = (
    Row("default", {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}),
    Row(
        "avx2",
        {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
        | {"OPENBLAS_CORETYPE": "Zen", "OMP_NUM_THREADS": "2"},
        # OpenVINO hears oneDNN's setting, too, and then finds no kernel for matrices of eight bits that it chose itself
        ("-k", "not openvino"),
        needs="avx2",
    ),
    Row("avx512", {"ATEN_CPU_CAPABILITY": "avx512", "OMP_NUM_THREADS": "4"}, needs="avx512f"),
    Row(
        "sse41",
        {
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "MKL_CBWR": "COMPATIBLE",
            "OPENBLAS_CORETYPE": "Nehalem",
            "OMP_NUM_THREADS": "1",
        },
        # OpenVINO hears this setting, too, and its graphs then give results without rows, which `export` refuses
        ("-k", "not openvino"),
    ),
    Row("busy", {"OMP_NUM_THREADS": "2", "TZ": "Asia/Kathmandu", "LC_ALL": "C", "LANG": "C"}, busy=True, texts=True),
    Row("rounding", {"OMP_NUM_THREADS": "1", "TZ": "America/St_Johns"}, ("-p", "helpers.rounding")),
)


def main() -> None:
    """Run the rows asked for, print a table, and exit with 1 if any of them was not green."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help=f"of {', '.join(row.name for row in ROWS)}; default: all"
    )
    parser.add_argument("--times", type=int, default=1, help="rounds (default 1)")
    parser.add_argument(
        "-n", "--processes", type=int, default=2, help="of pytest-xdist, each with as many threads as its row says"
    )
    parser.add_argument("--logs", type=Path, help="a folder for the whole output of every run")
    options = parser.parse_args()
    unknown = set(options.rows) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"there is no row {', '.join(sorted(unknown))}")
    chosen = [row for row in ROWS if not options.rows or row.name in options.rows]
    lines, green = [], True
    for turn in range(options.times):
        for number, row in enumerate(chosen):
            if row.needs and row.needs not in _flags():
                lines.append(f"| {turn + 1} | {row.name} | | this processor has no {row.needs} | |")
                continue
            seed, quarter = 1000 * turn + ROWS.index(row), (number + turn) % 4 + 1
            started = time.monotonic()
            code, output = _run(row, quarter, seed, options.processes)
            green = green and code == 0
            if options.logs:
                options.logs.mkdir(parents=True, exist_ok=True)
                (options.logs / f"{turn + 1}-{row.name}.log").write_text(output, encoding="utf-8")
            elif code:
                print(output[-20_000:])
            lines.append(
                f"| {turn + 1} | {row.name} | {quarter} | {_outcome(output)} | {time.monotonic() - started:.0f} s |"
            )
            print(lines[-1], flush=True)
    print("\n| round | row | quarter | outcome | time |\n|---|---|---|---|---|", *lines, sep="\n")
    sys.exit(0 if green else 1)


def _run(row: Row, quarter: int, seed: int, processes: int) -> tuple[int, str]:
    """The exit code and the output of one row's run."""
    # Threads that wait for work do not burn the time of those that have some: rows have more of them than there are cores.
    environment = {**os.environ, **row.environment, "PYTHONHASHSEED": str(seed + 1), "OMP_WAIT_POLICY": "PASSIVE"}
    order = ["-p", "randomly", "-p", "no:cacheprovider", f"--randomly-seed={seed}"]
    which = ["-m", "not slow", "--quarter", str(quarter)]
    command = [sys.executable, "-m", "pytest", "-n", str(processes), *which, *order, *row.arguments]
    if not row.texts:
        command += [f"--ignore=tests/{name}" for name in TEXTS.split()]
    with _others_at_work((os.cpu_count() or 2) if row.busy else 0):
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    return done.returncode, done.stdout


@contextmanager
def _others_at_work(count: int) -> Iterator[None]:
    """Processes beside this one that never rest."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _outcome(output: str) -> str:
    found = re.findall(r"^=*\s*((?:\d+ \w+,? ?)+) in [\d.]+s", output, re.MULTILINE)
    return found[-1] if found else "no summary"


def _flags() -> set[str]:
    """What the processor says it can do, where there is a file that says it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    return set(re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)[1].split()) if "flags" in text else set()


if __name__ == "__main__":
    main()
