"""How fast models are that a study of criteria has cut, against the whole one: reading prompts, and writing tokens.

    python benchmarks/pruned_speed.py MODEL study -o speed.json                # one GPU, after `language_models.py run`
    python benchmarks/pruned_speed.py --table speed.json study                 # perplexity beside speed

Plans are read from the study, by one kind of unit at a time, so that kinds can be compared at equal measured speed. All run in
turns, and a ratio is the median over repetitions of pairs that ran next to each other. Writing replays a recorded step
(CUDA graphs) over a static cache on a GPU; on a CPU all is eager.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from decode import LAUNCHED, reading, writing
from language_models import Study, perplexity

import headcount as hc
from headcount.efficiency.benchmark import device_text
from headcount.efficiency.in_turns import compared, in_turns, orders_of
from headcount.plans import Plan

ARMS = "heads,kv-groups,neurons,fisher,layers,block-influence"
CELLS = (("prefill", 1), ("prefill", 8), ("decode", 1), ("decode", 32))  # what is timed, and the batch size


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("study", type=Path)
    parser.add_argument("--arms", default=ARMS)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("-o", "--output", type=Path, default=Path("speed.json"))
    parser.add_argument("--table", type=Path, help="print the table of a file that was written before")
    given = parser.parse_args(words)
    if given.table:
        print(table(json.loads(given.table.read_text(encoding="utf-8")), given.study))
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models, about = cut_models(given, device)
    found: dict[str, Any] = {
        "device": device_text(device),
        "dtype": given.dtype,
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}",
        "command": " ".join(["python benchmarks/pruned_speed.py", *(sys.argv[1:] if words is None else words)]),
        "models": about,
        "rows": [],
    }
    launching = LAUNCHED["CUDA graphs" if device.type == "cuda" else "eager"]
    for what, batch in CELLS:
        timing = reading if what == "prefill" else writing
        with torch.no_grad(), timing(models, launching, batch, given, given.tokens) as (take, amount, _):
            rows = list(compared(in_turns(take, orders_of(len(models), given.repeats)), amount))
        for name, row in zip(models, rows, strict=True):
            found["rows"].append({"what": what, "batch": batch, "model": name, **row._asdict()})
        given.output.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"{what}, batch {batch}: done", file=sys.stderr, flush=True)
    print(table(found, given.study))


def cut_models(given: argparse.Namespace, device: torch.device) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The whole model and those that the plans of the study leave, and what is known of each."""
    whole: Any = hc.load(given.model, dtype=getattr(torch, given.dtype)).to(device).eval()
    models, about = {"whole": whole}, [{"name": "whole", "parameters": sum(p.numel() for p in whole.parameters())}]
    for arm in given.arms.split(","):
        for path in sorted((given.study / arm).glob("*-cut.json"), key=lambda path: int(path.stem.split("-")[0])):
            row = json.loads(path.read_text(encoding="utf-8"))
            smaller = copy.deepcopy(whole)
            hc.cut(smaller, Plan.from_json(row["plan"]))
            name = f"{arm}, {row['share']} %"
            models[name] = smaller
            count = sum(p.numel() for p in smaller.parameters())
            about.append({"name": name, "arm": arm, "share": row["share"], "parameters": count})
    return models, about


def table(found: dict[str, Any], folder: Path) -> str:
    """A line per model: perplexity as cut, and each speed as a ratio to the whole model's."""
    study = Study.read(folder)
    cells = list(dict.fromkeys((row["what"], row["batch"]) for row in found["rows"]))
    speeds = {(row["model"], row["what"], row["batch"]): row for row in found["rows"]}
    lines = ["| | parameters | perplexity | " + " | ".join(f"{what}, batch {batch}" for what, batch in cells) + " |"]
    lines.append("|---" * (len(cells) + 3) + "|")
    for model in found["models"]:
        whole = model["name"] == "whole"
        rows = study.whole if whole else study.rows[model["arm"], "cut", model["share"]]
        values = []
        for what, batch in cells:
            row = speeds[model["name"], what, batch]
            doubt = "?" if row["disturbed"] else ""
            values.append(f"{row['speed']:,.0f} tokens/s" if whole else f"{row['ratio']:.2f}{doubt}")
        lines.append(
            f"| {model['name']} | {model['parameters']:,} | {perplexity(rows['1024']):.1f} | "
            + " | ".join(values)
            + " |"
        )
    return "\n".join([*lines, "", f"{found['device']}, {found['dtype']}, {found['versions']}; {found['command']}"])


if __name__ == "__main__":
    main()
