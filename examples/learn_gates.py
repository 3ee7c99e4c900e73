"""Which 16 of 48 heads to keep, learned in a plain PyTorch loop (Li et al. 2021), then cut: offline, in seconds."""

from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import headcount as hc

torch.manual_seed(0)
torch.set_num_threads(1)  # a small model gains little from more
home = Path(hc.__file__).parent / "embedded"
model = AutoModelForSequenceClassification.from_pretrained(home / "classifier", dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(home / "classifier")
movies = hc.task("classification", data=home / "classifier-data/movies.tsv", tokenizer=tokenizer, max_length=24)
train, report = movies.split(0.7, 0.3)  # heads are chosen on one part and judged on another
before = hc.evaluate(model, report)

steps = 40
numbers = torch.randperm(len(train))[: 8 * steps].view(steps, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
model.train()
with hc.learned_gates.learning(model, "subset", keep=16, steps=steps) as gates:
    for chosen in numbers.tolist():
        train.loss(model, train.collate(chosen)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        gates.step()  # the gates have an optimiser of their own
        if gates.done % 20 == 0:
            print(f"step {gates.done}: {gates.expected():.1f} heads open")
model.eval()

plan = gates.plan()
hc.cut(model, plan, check=report.batch())  # as small as it says, and proved to compute the same
print(f"cut {len(plan)} of {len(gates.units)} heads: {plan}")
after = hc.evaluate(model, report)
print(f"before {before}\nafter  {after}\n{hc.compare(before, after)}")
