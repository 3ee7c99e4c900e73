"""How many passes a tuned promise takes for every pass of one that is not tuned: examples through all layers, not seconds.

    python benchmarks/passes.py                              # a random BERT of six layers, at the sizes of a usual prune
    python benchmarks/passes.py MODEL --data dev.tsv --score-data train.tsv --max-drop 2

An example that a gradient comes back from counts three times. The goal is at most 3.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.module import register_module_forward_hook

import headcount as hc
from headcount.model.tensor_trees import tensors

SCORE, SELECT, LENGTH = 2048, 640, 25


class Count:
    """Passes so far."""

    passes = 0.0


@contextmanager
def counted(model: nn.Module) -> Iterator[Count]:
    """Within the block, what goes through the layers of the model and of its copies is counted."""
    blocks = [block for stack in hc.find(model).stacks for block in stack.blocks]
    kinds, count = tuple({type(block) for block in blocks}), Count()

    def ran(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(module, kinds) and "forward" not in module.__dict__:  # else it answered from memory
            first = next(tensors(output))
            count.passes += first.shape[0] * (3 if first.requires_grad else 1) / len(blocks)

    handle = register_module_forward_hook(ran)
    try:
        yield count
    finally:
        handle.remove()


def random_model() -> nn.Module:
    """A BERT that says something else about every text."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 64}
    model = BertForSequenceClassification(BertConfig(**sizes, num_hidden_layers=6, num_labels=3)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.2)
    return model


def random_task(model: nn.Module, count: int, seed: int) -> hc.data.Task:
    """Texts with the labels that the model gives them."""
    ids = torch.randint(3, 63, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        labels = model(ids).logits.argmax(-1)

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(model(batch["input_ids"]).logits, batch["labels"], reduction="none")

    return hc.custom_task([{"input_ids": ids, "labels": labels}], loss=loss, batch_size=32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--data")
    parser.add_argument("--score-data")
    parser.add_argument("--max-drop", type=float, nargs="+")
    options = parser.parse_args()
    if options.model is None:
        model = random_model()
        tasks = {"score": random_task(model, SCORE, 1), "select": random_task(model, SELECT, 2)}
    else:
        model = hc.load(options.model, dtype=torch.float32)
        sizes = {"score": (options.score_data, SCORE), "select": (options.data, SELECT)}
        tasks = {
            role: hc.task("classification", file, tokenizer=options.model, limit=limit)
            for role, (file, limit) in sizes.items()
        }
    print(f"{'largest drop':>12}{'plain':>10}{'tuned':>10}   ratio   plans tested, without and with tuning")
    for drop in options.max_drop or ([0.2, 1.0, 5.0] if options.model is None else [2.0]):
        passes, plans = [], []
        for tune in (False, True):
            with counted(model) as count:
                choice = hc.pruning.choose(model, max_drop=drop, units="heads,neurons", tune=tune, **tasks)
            passes.append(count.passes)
            plans.append(0 if choice.guarantee is None else len(choice.guarantee.steps))
        print(f"{drop:>12g}{passes[0]:>10.0f}{passes[1]:>10.0f}{passes[1] / passes[0]:>8.2f}   {plans}", flush=True)


if __name__ == "__main__":
    main()
