"""Pruning and int8 quantisation, alone and together: how fast each is against the whole model, and what it costs in accuracy.

    python benchmarks/stacking.py my-model --data dev.tsv --score-data train.tsv
    python benchmarks/stacking.py my-model --data dev.tsv --score-data train.tsv --flops 50% --batches 1,8 --length 128

Four models: whole, pruned (heads and neurons, chosen and tuned on --score-data, of which nothing is reported), int8 (dynamic
quantisation of all linear layers) and both. They are timed in turns on the same batches, each turn in another order; the
ratio of two times of one turn is what counts, and its quartiles say how far it can be trusted. On a CPU it is processor
time, which other work on the machine disturbs less. Accuracy is on --data, with a paired test against the whole model.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import warnings
from typing import Any

import torch
from timing import seconds, summary
from torch import nn

import headcount as hc
from headcount.efficiency.benchmark import device_text
from headcount.efficiency.random_inputs import random_batch
from headcount.pruning.selection import usual_length


def quantised(model: nn.Module) -> nn.Module:
    """A copy whose linear layers have int8 weights, and turn what they read into int8 as it comes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is moving these functions to a package of their own
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)


def four_models(args: argparse.Namespace) -> tuple[dict[str, nn.Module], hc.data.Task]:
    """The models by name, the whole one first, and the task that they are reported on."""
    whole = hc.load(args.model)
    scored = hc.task("classification", args.score_data, tokenizer=args.model, limit=args.score_limit, seed=args.seed)
    report = hc.task("classification", args.data, tokenizer=args.model)
    budget: dict[str, Any] = {"flops": args.flops, "units": "heads,neurons", "tune": True}
    choice = hc.pruning.choose(
        whole, **budget, score=scored, length=args.length or usual_length(report), seed=args.seed
    )
    pruned = copy.deepcopy(whole)
    hc.cut(pruned, choice.plan, scale=choice.scale)
    return {"whole": whole, "pruned": pruned, "int8": quantised(whole), "both": quantised(pruned)}, report


def ratios(models: dict[str, nn.Module], batch: int, length: int, turns: int, seed: int) -> dict[str, list[float]]:
    """For each model but the whole one: how many times as fast it is, in every turn."""
    inputs = random_batch(models["whole"], batch, length, seed=seed)
    order, times = random.Random(seed), {name: [] for name in models}
    per_turn = max(1, 64 // batch)  # single passes of a small batch are shorter than the clock is exact
    with torch.no_grad():
        for turn in range(-1, turns):
            for name in order.sample(list(models), len(models)):
                taken = seconds(lambda model=models[name]: [model(**inputs) for _ in range(per_turn)])
                if turn >= 0:  # the first turn warms up
                    times[name].append(taken)
    return {
        name: [a / b for a, b in zip(times["whole"], times[name], strict=True)] for name in models if name != "whole"
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a classifier: a folder or a name on the hub")
    parser.add_argument("--data", required=True, help="examples to report on")
    parser.add_argument("--score-data", required=True, help="examples to score units on")
    parser.add_argument("--score-limit", type=int, default=2048)
    parser.add_argument("--flops", default="60%", help="what is left of the operations")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--length", type=int, help="tokens; by default the usual length of --data")
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    models, report = four_models(args)
    results = {name: hc.evaluate(model, report) for name, model in models.items()}
    for name, result in results.items():
        print(f"{name:<8}{result}", flush=True)
        if name != "whole":
            print(f"        {hc.compare(results['whole'], result, seed=args.seed)}", flush=True)
    length = args.length or usual_length(report)
    speeds: dict[str, Any] = {}
    for batch in map(int, args.batches.split(",")):
        for name, some in ratios(models, batch, length, args.turns, args.seed).items():
            speeds[f"{name}, batch {batch}"] = summary(some)
    about = {"device": device_text(torch.device("cpu")), "threads": args.threads, "length": length, "turns": args.turns}
    print(json.dumps({**about, "torch": torch.__version__, "times as fast": speeds}, indent=2))


if __name__ == "__main__":
    main()
