"""What learned gates cost: the time of a training step with them over the time without, run side by side.

    python benchmarks/learning.py                                  # BERT-base shape, joint training, every method
    python benchmarks/learning.py --batch 32 --length 128 --precision bf16 --method subset

A step is forward, backward, AdamW, and the gates' own step. Two equal models take turns, one inside `learning` and one
outside, because machines are shared and noisy; the median of the ratios is reported with its spread. "no gates" is the
same without gates in either: how far that is from 1 is how far the others can be off.
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from typing import Any

import torch
import transformers
from timing import summary

import headcount as hc
from headcount.efficiency.benchmark import timed
from headcount.learned_gates.gates import Gates, learning

METHODS: dict[str, dict[str, Any] | None] = {
    "no gates": None,  # the same two models, to show what the clock cannot tell apart
    "l0": {"keep": 12},
    "subset": {"keep": 12},
    "subset, published": {"keep": 12, "form": "published", "first": 1000.0, "last": 1e-8, "lr": 0.5},
    "movement": {"keep": 12},
    "layerdrop": {"units": "layers"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=None, help="32 on a GPU, 4 on a CPU, unless told")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=None, help="51 on a GPU, 9 on a CPU, unless told")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="no", choices=["no", "bf16"])
    parser.add_argument("--method", default=None, choices=METHODS, help="all of them unless told")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    gpu = device.type == "cuda"
    batch, repeats = arguments.batch or (32 if gpu else 4), arguments.repeats or (51 if gpu else 9)
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=arguments.layers)
    inputs = {
        "input_ids": torch.randint(1000, 20000, (batch, arguments.length), device=device),
        "labels": torch.randint(2, (batch,), device=device),
    }

    def training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = transformers.BertForSequenceClassification(config).to(device).train()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, gates: Gates | None = None) -> None:
        with torch.autocast(device.type, torch.bfloat16) if arguments.precision == "bf16" else nullcontext():
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if gates is not None:
            gates.step()

    plain, gated = training(), training()
    found = {}
    for name in ["no gates", arguments.method] if arguments.method else METHODS:
        settings = METHODS[name]
        block: Any = nullcontext()
        if settings is not None:
            block = learning(gated[0], name.split(",")[0], steps=1000 * repeats, **settings)
        with block as gates:
            for _ in range(2):
                step(*plain)
                step(*gated, gates)
            ratios = []
            for _ in range(repeats):
                first, middle, last = (
                    timed(lambda: step(*plain), device).work,
                    timed(lambda: step(*gated, gates), device).work,
                    timed(lambda: step(*plain), device).work,
                )
                ratios.append(2 * middle / (first + last))
        found[name] = summary(ratios)
    print(
        json.dumps(
            {
                "what": f"BERT shape, {arguments.layers} layers, batch {batch}, length {arguments.length}",
                "precision": arguments.precision,
                "step with gates / step without": found,
                "device": torch.cuda.get_device_name() if gpu else "cpu",
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "headcount": hc.__version__,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
