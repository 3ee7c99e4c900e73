"""Peak memory of each criterion, as a multiple of the weights: a forward pass alone, criteria without and with gradients.

    python benchmarks/scoring_memory.py                              # a Llama of 12 layers, batch 8, length 512
    python benchmarks/scoring_memory.py --layers 48 --batch 2 --length 128
    python benchmarks/scoring_memory.py --model MY-LLM --dtype bfloat16 --batch 8 --length 1024

Each criterion runs in a process of its own; `streamed` is that of a model whose weights stay in their files. On a
GPU the peak is what its allocator gave out at most; on a CPU it is the largest resident set, less what the process held before
it had a model. The weights count among it: 1.0 is the model alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

CRITERIA = ("forward", "wanda", "flap", "activation", "block-influence", "ablation")
CRITERIA += ("wanda streamed", "flap streamed", "activation streamed", "block-influence streamed")
CRITERIA += ("taylor", "taylor checkpointing", "fisher", "fisher checkpointing")


def made(arguments):
    import torch
    import transformers

    import headcount as hc

    dtype, streamed = getattr(torch, arguments.dtype), bool(arguments.one) and arguments.one.endswith("streamed")
    if streamed or arguments.model:
        return hc.load(arguments.stored if streamed else arguments.model, dtype=dtype, lazy=streamed)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=arguments.layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        vocab_size=8192,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def task_of(model, arguments):
    import torch

    import headcount as hc

    ids = torch.randint(0, model.config.vocab_size, (arguments.batch, arguments.length))

    def loss(model, batch):
        logits = model(input_ids=batch["input_ids"], use_cache=False).logits[:, :-1]
        goals = batch["input_ids"][:, 1:]
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), goals, reduction="none").mean(1)

    return hc.custom_task([{"input_ids": ids}], loss=loss, batch_size=arguments.batch)


def one(arguments) -> None:
    """Score by one criterion, and print its peak."""
    import torch

    import headcount as hc
    from headcount.importance import criteria

    del criteria  # imported before anything is counted
    cuda = torch.cuda.is_available()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    model = made(arguments).to("cuda" if cuda else "cpu")
    task, weights = task_of(model, arguments), sum(p.numel() * p.element_size() for p in model.parameters())
    by, _, how = arguments.one.partition(" ")
    if by in ("forward", "ablation"):
        hc.evaluation.measure(model, task, [hc.Plan()] if by == "forward" else [hc.Plan(), hc.Plan.of("0:0")])
    else:
        hc.score(model, task, by, units="heads,neurons", checkpointing=how == "checkpointing")
    peak = (
        torch.cuda.max_memory_allocated()
        if cuda
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    )
    print(
        json.dumps(
            {"criterion": arguments.one, "weights MiB": weights >> 20, "peak / weights": round(peak / weights, 2)}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--stored", help=argparse.SUPPRESS)  # a folder with the model
    arguments = parser.parse_args()
    if arguments.one == "store":
        import headcount as hc

        hc.save(made(arguments), arguments.stored)
        return
    if arguments.one:
        one(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        stored = str(Path(folder, "model")) if arguments.model is None else arguments.model
        for criterion in (*(["store"] if arguments.model is None else []), *CRITERIA):
            command = [sys.executable, __file__, *sys.argv[1:], "--one", criterion, "--stored", stored]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
