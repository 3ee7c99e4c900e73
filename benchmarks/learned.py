"""Learned gates beside their controls: every method, several numbers of units kept, several seeds, in parallel.

    python benchmarks/learned.py MODEL -o study --keep 6,12,24 --seeds 0,1,2 --workers 8 -- \\
        --data train.tsv --report-data dev.tsv --epochs 1 --batch-size 64 --lr 5e-5

What comes after `--` are flags of `headcount learn`, the same for all. Each job is one such command in a run folder of its
own, so the study goes on where it was when it is started again, and `headcount report study` puts everything on one
chart. Prints a table: mean over seeds, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from jobs import Job, run_all, split_words

ARMS = {
    "l0": "--method l0",
    "subset": "--method subset",
    "subset-published": "--method subset --published",
    "subset-pipelined": "--method subset --pipelined",
    "movement": "--method movement",
    "taylor": "--method taylor --epochs 0",
    "taylor-recovered": "--method taylor",
    "random-recovered": "--method random",
    "taylor-scratch": "--method taylor --scratch",
}


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """Names and words of all commands; what needs no seed runs once."""
    own = dict(text.split("=", 1) for text in args.arm)
    arms = {**{name: ARMS[name] for name in args.arms.split(",") if name}, **own}
    out = []
    for seed in args.seeds.split(","):
        for keep in args.keep.split(","):
            for name, words in arms.items():
                flags = shlex.split(words)
                folder = f"{name}-{int(keep):03d}-{seed}"
                # the arm's flags come last: of two, the last one counts
                words_of = ["learn", args.model, *args.rest, "--keep", keep, "--seed", seed, *flags]
                out.append((folder, [*words_of, "--run", str(Path(args.output) / folder), "--quiet"]))
    return out


def table(folder: Path) -> str:
    """All that was learned in the run folders, as Markdown: a row per method, a column per number of units kept."""
    cells: dict[tuple[str, int], list[float]] = {}
    full, metric = 0.0, ""
    for path in sorted(folder.glob("*/learned.json")):
        told = json.loads(path.read_text())
        name = path.parent.name.rsplit("-", 2)[0]
        cells.setdefault((name, told["keep"]), []).append(told["learned"]["value"])
        full, metric = (
            told["full"]["value"],
            told["full"]["metric"]["name"] if isinstance(told["full"]["metric"], dict) else told["full"]["metric"],
        )
    names, keeps = list(dict.fromkeys(n for n, _ in cells)), sorted({k for _, k in cells})
    lines = [f"full model: {metric} {full:.4f}", "", f"| kept | {' | '.join(map(str, keeps))} |"]
    lines.append("|---" * (len(keeps) + 1) + "|")
    for name in names:
        row = []
        for keep in keeps:
            found = cells.get((name, keep), [])
            spread = f" ({min(found):.4f} to {max(found):.4f})" if len(found) > 1 else ""
            row.append(f"{mean(found):.4f}{spread}" if found else "")
        lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", default="study")
    parser.add_argument("--keep", default="6,12,24")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--arms", default=",".join(ARMS), help="which of the arms above")
    parser.add_argument("--arm", action="append", default=[], help="another one: NAME=FLAGS")
    parser.add_argument("--workers", type=int, default=2)
    own, rest = split_words(words)
    args = parser.parse_args(own)
    args.rest = rest
    run_all(jobs_of(args), args.output, args.workers)
    print("\n" + table(Path(args.output)))


if __name__ == "__main__":
    main(sys.argv[1:])
