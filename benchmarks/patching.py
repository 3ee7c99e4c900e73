"""Exact patches of all heads, and of the residual stream at all layers and positions: headcount against a loop over hooks.

    pip install transformer-lens
    python benchmarks/patching.py                 # a random GPT-2 of 12 layers, 12 heads, on a CPU

The values of both are compared before they are timed. They run in turns, and a ratio is the median over repetitions of pairs that
ran next to each other, of processor times. headcount computes the layers below a patch once; the loop runs each patch from the
beginning, as the tutorials of TransformerLens do.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformer_lens
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import headcount as hc
from headcount.efficiency.in_turns import by_processor, compared, in_turns, orders_of


def words(count: int = 400) -> Any:
    """A tokenizer with so many whole words."""
    vocabulary = {word: number for number, word in enumerate(["<s>", "<unk>", *(f"w{n}" for n in range(count))])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="<s>", unk_token="<unk>", pad_token="<s>"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = words()
    sizes = {"n_embd": given.width, "n_layer": given.layers, "n_head": given.heads}
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, bos_token_id=0, eos_token_id=0, **sizes)
    model = GPT2LMHeadModel(config).eval()
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(given.prompts):
        clean = draw.choice(400, given.tokens, replace=False)
        corrupted = clean.copy()
        corrupted[2] = 399 - clean[2]
        texts = {name: " ".join(f"w{n}" for n in some) for name, some in (("clean", clean), ("corrupted", corrupted))}
        rows.append({**texts, "answer": "w3", "wrong": "w5"})
    task = hc.task("contrast", rows, tokenizer=tokenizer, batch_size=given.prompts)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(Path(folder) / "small-gpt2")
        model.save_pretrained(Path(folder) / "small-gpt2")
        own = {
            "hf_model": copy.deepcopy(model),
            "tokenizer": AutoTokenizer.from_pretrained(Path(folder) / "small-gpt2"),
        }
        bridge = transformer_lens.TransformerBridge.boot_transformers(
            str(Path(folder) / "small-gpt2"), device="cpu", **own
        )
    sides = [side.collate(range(task.size)) for side in (task, task.corrupted)]
    print(
        f"GPT-2, {given.layers} layers, {given.heads} heads, width {given.width}, random weights; {given.prompts} prompts of"
    )
    print(f"{given.tokens} tokens; torch {torch.__version__}, transformer-lens {version()}, one thread of a CPU\n")
    for name, loop in (("heads", looped_heads), ("residual", looped_stream)):
        ways = [partial(looped, loop, bridge.eval(), given, *sides), partial(patched, model, task, name)]
        theirs, ours = (way() for way in ways)
        apart = np.abs(theirs - ours).max()
        assert apart < 1e-3, apart
        timings = in_turns(
            lambda place, ways=ways: by_processor(ways[place], torch.device("cpu")), orders_of(2, given.repeats)
        )
        loop_row, own_row = compared(timings, float(len(theirs)))
        print(
            f"{name}: {len(theirs)} patches, at most {apart:.0e} apart; a loop over hooks makes {loop_row.speed:.1f} a second,"
        )
        low, high = own_row.ratio_low, own_row.ratio_high  # quartiles
        print(f"    headcount {own_row.ratio:.1f} times as many ({low:.1f} to {high:.1f})")


def version() -> str:
    """That of TransformerLens."""
    from importlib.metadata import version as of

    return of("transformer-lens")


def patched(model: Any, task: Any, units: str) -> np.ndarray:
    """Ours: (patches, examples)."""
    return np.asarray(hc.patch(model, task, units).values)


def looped(
    loop: Any, bridge: Any, given: argparse.Namespace, clean: dict[str, Tensor], corrupted: dict[str, Tensor]
) -> np.ndarray:
    """Theirs: (patches, examples)."""
    with torch.no_grad():
        return np.stack(list(loop(bridge, given, clean, corrupted)))


def looped_heads(bridge: Any, given: argparse.Namespace, clean: dict[str, Tensor], corrupted: dict[str, Tensor]) -> Any:
    """What each head writes from, of the clean prompts, at all positions."""
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(given.layers)]
    cache = bridge.run_with_cache(clean["input_ids"])[1]
    for name in names:
        for head in range(given.heads):

            def put(z: Tensor, hook: Any, name: str = name, head: int = head) -> Tensor:
                z[:, :, head] = cache[name][:, :, head]
                return z

            yield difference(bridge.run_with_hooks(corrupted["input_ids"], fwd_hooks=[(name, put)]), clean)


def looped_stream(
    bridge: Any, given: argparse.Namespace, clean: dict[str, Tensor], corrupted: dict[str, Tensor]
) -> Any:
    """The stream of the clean prompts before each layer, at each position."""
    cache = bridge.run_with_cache(clean["input_ids"])[1]
    for layer in range(given.layers):
        name = f"blocks.{layer}.hook_resid_pre"
        for place in range(clean["input_ids"].shape[1]):

            def put(x: Tensor, hook: Any, name: str = name, place: int = place) -> Tensor:
                x[:, place] = cache[name][:, place]
                return x

            yield difference(bridge.run_with_hooks(corrupted["input_ids"], fwd_hooks=[(name, put)]), clean)


def difference(logits: Tensor, batch: dict[str, Tensor]) -> np.ndarray:
    """The logit of the right answer less that of the wrong one, where the answer is asked."""
    rows = logits[range(len(batch["at"])), batch["at"]]
    gap = rows.gather(1, batch["right"][:, :1]) - rows.gather(1, batch["wrong"][:, :1])
    return gap[:, 0].double().numpy()


if __name__ == "__main__":
    main()
