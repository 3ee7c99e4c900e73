"""What replay saves: the time of masking each head in turn by ordinary passes, over the time with replay, side by side.

    python benchmarks/ablation.py                     # BERT-base shape, batch 16, length 128, two heads per layer
    python benchmarks/ablation.py --layers 6 --heads 12

Beside the measurement stands what the multiply-add count allows: with head h of layer l masked, replay has to compute the
output projection and the MLP of layer l, the layers above it, and of the last layer the keys and values of all positions
but everything else for one position only. Values of both ways are compared as well: they must be the same. On a CPU the
time is processor time of all threads, on a GPU wall time.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch
import transformers
from timing import seconds, summary
from torch.nn.functional import cross_entropy

import headcount as hc


def allowed(layers: int, heads: int, width: int, inner: int, length: int) -> float:
    """The ratio of multiply-adds per token: ordinary passes over replayed ones, the pass over the full model in both."""
    layer = 4 * width**2 + 2 * width * inner + 2 * length * width
    from_writer = width**2 + 2 * width * inner
    last = 2 * width**2  # keys and values; the rest for one position of `length`
    last += (layer - last) / length
    naive = layers * layer * (1 + layers * heads)
    replayed = layers * layer
    for closed in range(layers):
        above = layers - 1 - closed
        one = from_writer + (above - 1) * layer + last if above else from_writer / length
        replayed += heads * one
    return naive / replayed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=2, help="heads masked per layer (of 12)")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = transformers.BertConfig(num_hidden_layers=arguments.layers)
    model = transformers.BertForSequenceClassification(config).eval().to(device)
    batches = [
        {
            "input_ids": torch.randint(1000, 20000, (arguments.batch, arguments.length)),
            "labels": torch.randint(0, 2, (arguments.batch,)),
        }
        for _ in range(arguments.batches)
    ]
    # three short sentences, as data sets have them: what replay learns about a model, it learns from the shortest examples
    batches.append({"input_ids": torch.randint(1000, 20000, (3, 8)), "labels": torch.randint(0, 2, (3,))})

    def loss(model, batch):
        return cross_entropy(model(input_ids=batch["input_ids"]).logits, batch["labels"], reduction="none")

    task = hc.custom_task(batches, loss=loss)
    plans = [hc.Plan()] + [
        hc.Plan.of(f"{layer}:{head}") for layer in range(arguments.layers) for head in range(arguments.heads)
    ]

    def run(replay: bool) -> tuple[float, np.ndarray]:
        values = []
        took = seconds(lambda: values.append(hc.evaluation.measure(model, task, plans, replay=replay)))
        return took, values[0]

    run(True)
    ratios, gap = [], 0.0
    for _ in range(arguments.repeats):
        (before, naive), (fast, replayed), (after, _) = run(False), run(True), run(False)
        ratios.append((before + after) / 2 / fast)
        gap = max(gap, float(np.abs(naive - replayed).max()))
    count = allowed(arguments.layers, arguments.heads, config.hidden_size, config.intermediate_size, arguments.length)
    print(
        json.dumps(
            {
                "what": f"BERT shape, {arguments.layers} layers, {arguments.heads} heads masked in each, "
                f"{arguments.batches} x {arguments.batch} x {arguments.length}",
                "naive / replay, measured": summary(ratios),
                "naive / replay, multiply-adds": round(count, 3),
                "share of the possible": round(summary(ratios)["median"] / count, 3),
                "largest difference of a loss": gap,
                "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
                "threads": arguments.threads,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
