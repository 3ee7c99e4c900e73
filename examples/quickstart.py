"""A walk through headcount on a tiny model made on the spot: no network, no data, a few seconds."""

import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import headcount as hc

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=512, hidden_size=64, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=8,
    intermediate_size=160, max_position_embeddings=64, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
model = LlamaForCausalLM(config).eval()
batch = {"input_ids": torch.randint(3, 512, (2, 12))}

print(hc.find(model), "\n")

with torch.no_grad(), hc.masked(model, "1:3"):  # ask, without changing anything
    without = model(**batch).logits
with torch.no_grad():
    print(f"without head 3 of layer 1, the logits move by up to {(model(**batch).logits - without).abs().max():.3f}\n")

plan = hc.find(model).plan(
    "0:0-1 1:3 2:* 3.mlp:0-79"
)  # a kv group, one head of another, a whole attention, half an MLP
for price in hc.model.cut_effects(model, plan):
    cache = f", {price.kv_heads} -> {price.kv_left} kv heads in the cache" if price.kv_heads else ""
    print(
        f"{price.name:<6} {price.units} -> {price.left} units ({price.manner}), -{price.parameters:,} parameters{cache}"
    )

before = sum(p.numel() for p in model.parameters())
hc.cut(model, plan, check=batch)  # in place; proves on this batch that cutting equals masking
after = sum(p.numel() for p in model.parameters())
print(f"\ncut: {before:,} -> {after:,} parameters, proved equal to the masked model\n")

with tempfile.TemporaryDirectory() as folder:
    hc.save(model, Path(folder) / "smaller")
    again = hc.load(Path(folder) / "smaller")
    with torch.no_grad():
        same = torch.equal(again(**batch).logits, model(**batch).logits)
    print(f"saved and loaded: {'the same, bit for bit' if same else 'different'}; removed: {hc.removed(again)}")
    print("generates:", again.generate(**batch, max_new_tokens=5, do_sample=False)[0, -5:].tolist())
