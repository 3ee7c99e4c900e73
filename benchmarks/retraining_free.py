"""What pruning without training costs: the whole of it over one pass of the model over the same calibration data.

    python benchmarks/retraining_free.py                  # BERT-base shape with 2 layers, 512 examples of length 64
    python benchmarks/retraining_free.py --layers 12 --examples 2048 --length 128 --batch 32

The pipeline is that of Kwon et al. 2022 as `headcount prune --units heads,neurons --flops 50% --tune` runs it: Fisher scores
of all heads and neurons, the search, rearranging, tuning, the cut. Both take turns, and the ratio of their times is what
counts; on a CPU it is processor time, which other work on the machine disturbs less. The goal is less than 10.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from timing import seconds, summary

import headcount as hc
from headcount.efficiency.benchmark import device_text
from headcount.importance.gradients import contributions
from headcount.pruning import budget, selection
from headcount.pruning.tuning.mask_rearrangement import rearrange_mask
from headcount.pruning.tuning.mask_tuning import tune_mask
from headcount.runs import InMemory


def model_and_task(args: argparse.Namespace) -> tuple[Any, hc.data.Task]:
    """A model of BERT-base's shape, and examples of different lengths for it."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = transformers.BertForSequenceClassification(transformers.BertConfig(num_hidden_layers=args.layers)).eval()
    ids = torch.randint(1000, 20000, (args.examples, args.length))
    labels = torch.randint(0, 2, (args.examples,))

    def loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
        logits = model(input_ids=batch["input_ids"]).logits
        return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")

    task = hc.custom_task([{"input_ids": ids, "labels": labels}], loss=loss, batch_size=args.batch)
    return model.to(device), task


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--examples", type=int, default=512)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, task = model_and_task(args)
    names = ("all", "scores", "search", "rearranging", "tuning", "cut")
    steps: dict[str, list[float]] = {name: [] for name in names}

    def one_pass() -> None:
        hc.evaluate(model, task)

    def pipeline() -> None:
        choice = selection.choose(model, flops="50%", units="heads,neurons", tune=True, score=task, length=args.length)
        hc.cut(copy.deepcopy(model), choice.plan, scale=choice.scale)

    def in_parts() -> dict[str, float]:
        """Seconds of each part, by the functions that `choose` calls."""
        notes: Any = InMemory()
        anatomy, took, found = hc.find(model), {}, {}

        def part(name: str, run: Callable[[], Any]) -> None:
            took[name] = seconds(lambda: found.__setitem__(name, run()))

        part("scores", lambda: hc.score(model, task, "fisher", units="heads,neurons", run=notes))
        part(
            "search",
            lambda: budget.within(budget.purse(model, found["scores"], "flops", length=args.length), "50%")[0],
        )
        gathered = contributions(model, anatomy, anatomy.sites, task, run=notes)
        part("rearranging", lambda: rearrange_mask(found["search"], anatomy.sites, gathered))
        part("tuning", lambda: tune_mask(model, found["rearranging"], task))
        part("cut", lambda: hc.cut(copy.deepcopy(model), found["rearranging"], scale=found["tuning"].scale))
        return took

    one_pass()
    pipeline()
    start = time.perf_counter()
    for _ in range(args.repeats):
        before = seconds(one_pass)
        whole, parts = seconds(pipeline), in_parts()
        base = (before + seconds(one_pass)) / 2
        for name, took in {"all": whole, **parts}.items():
            steps[name].append(took / base)
    told = {
        "what": "times as long as one pass over the calibration data",
        "shape": f"{args.layers} layers of BERT-base, {args.examples} examples of length {args.length}, batch {args.batch}",
        **{name: summary(values) for name, values in steps.items()},
        "device": device_text(next(model.parameters()).device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "wall seconds": round(time.perf_counter() - start),
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
