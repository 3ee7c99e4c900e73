"""Heads, neurons, both, layers: what each costs in accuracy at the same budget, as cut, tuned and recovered, and how fast it is.

    python benchmarks/structures.py MODEL -o study --budgets 75,60,50,40 --workers 8 -- \\
        --data dev.tsv --score-data train.tsv --score-limit 2048 --recover-data train.tsv --recover-limit 20000

What comes after `--` are flags of `headcount prune`, the same for all; those that begin with --recover are for the arms that
train. Each job is one such command in a run folder of its own, so the study goes on where it was when it is started again.
Afterwards all models run side by side in one process on a quiet machine, for their speed. Prints a table.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs import Job, run_all, split_words

ARMS = {
    "heads": "--units heads --by fisher",
    "neurons": "--units neurons --by fisher",
    "both": "--units heads,neurons",
    "both-tuned": "--units heads,neurons --tune",
    "all": "--units heads,neurons,layers",
    "all-tuned": "--units heads,neurons,layers --tune",
    "layers-top": "--units layers --by top",
    "layers-contribution": "--units layers --by contribution",
    "layers-fisher": "--units layers --by fisher",
}


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """Names and words of all commands."""
    plain, training = list[str](), list[str]()
    rest = iter(args.rest)
    for word in rest:
        if word.startswith("--recover"):
            training += [word, next(rest)]
        else:
            plain.append(word)
    out = []
    for budget in args.budgets.split(","):
        for name in args.arms.split(","):
            for epochs in args.recover.split(","):
                folder = f"{name}-{budget}-{epochs}"
                scored = plain if "--by top" not in ARMS[name] else _without(plain, "--score-data", "--score-limit")
                words = ["prune", args.model, *scored, *shlex.split(ARMS[name]), "--flops", f"{budget}%"]
                if float(epochs):
                    words += ["--recover", epochs, *training]
                where = [
                    "-o",
                    str(Path(args.output) / folder / "model"),
                    "--run",
                    str(Path(args.output) / folder / "run"),
                ]
                if not (Path(args.output) / folder / "model").exists():
                    out.append((folder, [*words, *where, "--no-report", "--quiet"]))
    return out


def _without(words: Sequence[str], *flags: str) -> list[str]:
    """The words without some flags and their values: an order by place has nothing to score."""
    pairs = zip(words, ["", *words], strict=False)
    return [word for word, before in pairs if word not in flags and before not in flags]


def speeds(args: argparse.Namespace, folders: Sequence[Path]) -> dict[str, Any]:
    """The speed of each model over the whole one, a pair at a time."""
    import torch

    import headcount as hc

    device = "cuda" if torch.cuda.is_available() else "cpu"
    whole = hc.load(args.model, dtype=torch.float32).to(device).eval()
    out = {}
    for folder in folders:
        smaller = hc.load(folder / "model", dtype=torch.float32).to(device).eval()
        found = hc.efficiency.bench(
            {"whole": whole, "smaller": smaller},
            batch_sizes=[int(size) for size in args.batch_sizes.split(",")],
            lengths=[args.length],
            repeats=args.repeats,
        )
        out[folder.name] = [row for row in found.to_json()["rows"] if row["model"] == "smaller"]
    return out


def table(folders: Sequence[Path], rows: dict[str, Any]) -> str:
    """All that came out, as Markdown."""
    sizes = sorted({row["batch"] for found in rows.values() for row in found})
    head = ["arm", "FLOPs allowed", "left", "parameters left", "as cut", "recovered"]
    lines = [
        "| " + " | ".join([*head, *(f"times as fast (of what FLOPs allow), batch {size}" for size in sizes)]) + " |"
    ]
    lines.append("|---" * (len(head) + len(sizes)) + "|")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for folder in folders:
        name, budget, epochs = folder.name.rsplit("-", 2)
        told = json.loads((folder / "run" / "prune.json").read_text())
        cell = found.setdefault((name, budget), {"folder": folder.name, "told": told})  # the first: as its speed
        pair = told["comparison"]
        cell["recovered" if float(epochs) else "cut"] = (
            f"{told['after']['value']:.4f} ({pair['difference']:+.4f} [{pair['low']:+.4f}, {pair['high']:+.4f}])"
        )
        cell["whole"] = told["before"]["value"]
    for (name, budget), cell in found.items():
        told = cell["told"]
        flops, weights = (told[key][1] / told[key][0] for key in ("flops", "parameters"))
        speed = [f"{row['ratio']:.2f} (of {row['limit']:.2f})" for row in rows.get(cell["folder"], [])]
        values = [name, f"{budget} %", f"{flops:.1%}", f"{weights:.1%}", cell.get("cut", ""), cell.get("recovered", "")]
        lines.append("| " + " | ".join([*values, *speed]) + " |")
    whole = next(iter(found.values()))["whole"] if found else float("nan")
    return "\n".join([f"whole model: {whole:.4f}", "", *lines])


def main(words: Sequence[str]) -> None:
    """Run what is missing, measure the speed, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", default="study")
    parser.add_argument("--budgets", default="75,60,50,40", help="FLOPs that may be left, in percent")
    parser.add_argument("--arms", default=",".join(ARMS), help="which of the arms above")
    parser.add_argument("--recover", default="0,1", help="epochs of training afterwards")
    parser.add_argument("--batch-sizes", default="1,32,256", help="at which the speed is measured")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--no-speed", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    own, rest = split_words(words)
    args = parser.parse_args(own)
    args.rest = rest
    run_all(jobs_of(args), args.output, args.workers)
    folders = sorted(path.parent.parent for path in Path(args.output).glob("*/run/prune.json"))
    shapes = {folder.name.rsplit("-", 1)[0]: folder for folder in reversed(folders)}  # training changes no shape
    rows = {} if args.no_speed else speeds(args, list(shapes.values()))
    (Path(args.output) / "speeds.json").write_text(json.dumps(rows))
    print("\n" + table(folders, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
