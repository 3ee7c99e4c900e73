"""What gates of one cost: the time of a forward pass inside `gated`, over the time outside, run side by side.

    python benchmarks/gates.py                 # BERT-base shape, batch 16, length 128
    python benchmarks/gates.py --layers 4 --repeats 21

The two are interleaved, because machines are shared and noisy; the median of the ratios is reported with its spread.
"""

from __future__ import annotations

import argparse
import json

import torch
import transformers
from timing import seconds, summary

import headcount as hc


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--kinds", default="head", help="head, neuron, or both separated by a comma")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=arguments.layers)
    model = transformers.BertModel(config).eval().to(device)
    ids = torch.randint(1000, 20000, (arguments.batch, arguments.length), device=device)
    gates = {s.name: torch.ones(len(s), device=device) for s in hc.find(model) if s.kind in arguments.kinds.split(",")}

    @torch.no_grad()
    def plain() -> None:
        model(input_ids=ids)

    @torch.no_grad()
    def gated() -> None:
        with hc.gated(model, gates):
            model(input_ids=ids)

    @torch.no_grad()
    def inside() -> None:
        model(input_ids=ids)

    for warm in (plain, gated):
        warm()
    whole, forward = [], []
    for _ in range(arguments.repeats):
        base = (seconds(plain) + seconds(plain)) / 2
        whole.append(seconds(gated) / base)
        with hc.gated(model, gates):
            forward.append(seconds(inside) / base)
    print(
        json.dumps(
            {
                "what": f"BERT shape, {arguments.layers} layers, batch {arguments.batch}, length {arguments.length}",
                "gates": f"{len(gates)} sites ({arguments.kinds})",
                "forward inside gated / plain": summary(forward),
                "entering, forward, leaving / plain": summary(whole),
                "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
