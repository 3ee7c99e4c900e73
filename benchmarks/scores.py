"""What scores of all heads cost: the time of `taylor` over the time of the forward pass alone, run side by side.

    python benchmarks/scores.py                          # BERT-base shape, batch 16, length 128
    python benchmarks/scores.py --bertology V4/bin/python # also against run_bertology's way on transformers 4.57

On a CPU the time is processor time of all threads, which other work on the machine disturbs less than the clock on the
wall; on a GPU it is wall time between synchronisations.

With frozen parameters the backward pass goes through activations only and costs one forward pass, so the limit is 2.0.
`--bertology` names the Python of an environment with transformers 4; it works in a process of its own, in turns with ours:
one pass of `head_mask` gradients as run_bertology.py computed them (parameters not frozen), on the same shape and batch.
By default that script also computed the entropy of every attention in the same pass; `--entropy` includes it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time


def model_and_batches(arguments):
    import torch
    import transformers

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=arguments.layers, attn_implementation="eager" if is_v4() else None
    )
    model = transformers.BertForSequenceClassification(config).eval()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batches = [
        {
            "input_ids": torch.randint(1000, 20000, (arguments.batch, arguments.length), device=device),
            "labels": torch.randint(0, 2, (arguments.batch,), device=device),
        }
        for _ in range(arguments.batches)
    ]
    return model.to(device), batches


def is_v4() -> bool:
    import transformers

    return transformers.__version__.startswith("4.")


def bertology_worker(arguments) -> None:
    """Answer each line on stdin with the seconds that one pass took."""
    import torch

    model, batches = model_and_batches(arguments)
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads

    def run() -> None:
        mask = torch.ones(layers, heads, requires_grad=True)
        importance, entropies = torch.zeros(layers, heads), []
        for batch in batches:
            output = model(**batch, head_mask=mask, output_attentions=arguments.entropy)
            output.loss.backward()
            importance += mask.grad.abs().detach()
            for attention in output.attentions or ():
                weights = attention.detach()
                weighted = weights * torch.log(weights)
                weighted[weights == 0] = 0
                entropies.append(-weighted.sum(-1).sum((0, 2)))

    for _ in sys.stdin:
        start = time.process_time()
        run()
        print(time.process_time() - start, flush=True)


def worker(arguments) -> subprocess.Popen:
    options = [f"--{name}={getattr(arguments, name)}" for name in ("layers", "batch", "length", "batches", "threads")]
    command = [arguments.bertology, __file__, "--worker", *options, *(["--entropy"] if arguments.entropy else [])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--units", default="heads", help="heads, neurons, layers, or several with commas")
    parser.add_argument("--bertology", metavar="PYTHON", help="the Python of an environment with transformers 4")
    parser.add_argument("--entropy", action="store_true", help="run_bertology with the entropy it also computed")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        bertology_worker(arguments)
        return
    import torch
    import transformers
    from timing import seconds, summary
    from torch.nn.functional import cross_entropy

    import headcount as hc

    model, batches = model_and_batches(arguments)

    def loss(model, batch):
        return cross_entropy(model(input_ids=batch["input_ids"]).logits, batch["labels"], reduction="none")

    task = hc.custom_task(batches, loss=loss)

    @torch.no_grad()
    def forward() -> None:
        for numbers in task.batches():
            task.loss(model, task.collate(numbers))

    other = worker(arguments) if arguments.bertology else None

    def bertology() -> float:
        other.stdin.write("go\n")
        other.stdin.flush()
        return float(other.stdout.readline())

    def scores() -> None:
        hc.score(model, task, "taylor", units=arguments.units)

    forward(), scores()
    if other:
        bertology()
    ours, theirs = [], []
    for _ in range(arguments.repeats):
        before, mine, after = seconds(forward), seconds(scores), seconds(forward)
        ours.append(mine / ((before + after) / 2))
        if other:
            theirs.append(bertology() / mine)
    print(
        json.dumps(
            {
                "what": f"BERT shape, {arguments.layers} layers, {arguments.batches} x {arguments.batch} x {arguments.length}",
                "units": arguments.units,
                "scores / forward": summary(ours),
                **({"run_bertology / scores": summary(theirs)} if other else {}),
                "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
                "threads": arguments.threads,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            indent=2,
        )
    )
    if other:
        other.stdin.close()
        other.wait()


if __name__ == "__main__":
    main()
