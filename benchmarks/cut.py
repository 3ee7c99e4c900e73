"""What cutting half of the heads gains: the speed over the whole model, against what the multiply-adds allow.

    python benchmarks/cut.py                              # BERT-base shape, batch 16, length 128
    python benchmarks/cut.py --batch 1,4,16,64 --repeats 15 --compile
    python benchmarks/cut.py --dtype bfloat16 --batch 1,16,64,256

Half of the heads go evenly, six of twelve in every layer, and unevenly, 72 of all 144 drawn by lot. The models run in
turns, as `headcount bench` does it; weights are random. On a CPU all times are processor time, not time on the wall, so
that other work on the machine does not blur the ratios: examples per second are per second of one core. --wall is for
quiet machines.
"""

from __future__ import annotations

import argparse
import copy
import json
from random import Random

import torch
import transformers

import headcount as hc
from headcount.cli.text import bench_text
from headcount.efficiency.benchmark import bench, by_processor


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--batch", default="16")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--even", action="store_true", help="only the even half")
    parser.add_argument("--wall", action="store_true", help="by the clock on the wall; for a quiet machine")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    given = parser.parse_args()
    torch.manual_seed(0)
    sizes = {"hidden_size": 64 * given.heads, "intermediate_size": 256 * given.heads}
    config = transformers.BertConfig(num_hidden_layers=given.layers, num_attention_heads=given.heads, **sizes)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    whole = transformers.BertModel(config).eval().to(device, getattr(torch, given.dtype))
    every = [f"{layer}:{head}" for layer in range(given.layers) for head in range(given.heads)]
    plans = {
        "even half": [unit for unit in every if int(unit.split(":")[1]) >= given.heads // 2],
        "uneven half": Random(0).sample(every, len(every) // 2),
    }
    if given.even:
        del plans["uneven half"]
    models = {"whole": whole} | {name: copy.deepcopy(whole) for name in plans}
    for name, plan in plans.items():
        hc.cut(models[name], plan)
    batches = [int(part) for part in given.batch.split(",")]
    asked = {"batch_sizes": batches, "lengths": [given.length], "repeats": given.repeats, "compile": given.compile}
    found = bench(models, **asked, clock=None if given.wall else by_processor)
    print(json.dumps(found.to_json(), indent=2) if given.json else bench_text(found))
    for name in plans:
        print(f"heads left by layer, {name}: {[len(site) for site in hc.find(models[name]) if site.kind == 'head']}")
    print(f"transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
