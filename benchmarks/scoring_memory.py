"""Peak memory of each criterion, as a multiple of the weights: a forward pass alone, criteria without and with gradients.

    python benchmarks/scoring_memory.py                              # a Llama of 12 layers, batch 8, length 512
    python benchmarks/scoring_memory.py --model MY-LLM --dtype bfloat16 --batch 8 --length 1024

Each criterion runs in a process of its own. On a GPU the peak is what its allocator gave out at most; on a CPU it is the
largest resident set, less what the process held before it had a model. The weights count among it: 1.0 is the model alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys

CRITERIA = ("forward", "wanda", "flap", "activation", "block-influence", "ablation")
CRITERIA += ("taylor", "taylor checkpointing", "fisher", "fisher checkpointing")


def made(arguments):
    import torch
    import transformers

    import headcount as hc

    dtype = getattr(torch, arguments.dtype)
    if arguments.model:
        return hc.load(arguments.model, dtype=dtype)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
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
    by, _, checkpointing = arguments.one.partition(" ")
    if by in ("forward", "ablation"):
        hc.evaluation.measure(model, task, [hc.Plan()] if by == "forward" else [hc.Plan(), hc.Plan.of("0:0")])
    else:
        hc.score(model, task, by, units="heads,neurons", checkpointing=bool(checkpointing))
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
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments)
        return
    for criterion in CRITERIA:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--one", criterion], check=True)


if __name__ == "__main__":
    main()
