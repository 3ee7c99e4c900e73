"""Which heads of a tiny classifier matter? Trained on the spot, scored, ablated with tests, cut: offline, in seconds.

The task: does one word occur more often than another? Heads have to look for both and gather what they find.
"""

import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification

import headcount as hc

torch.manual_seed(0)
torch.set_num_threads(1)  # a tiny model gains nothing from more
config = BertConfig(
    vocab_size=12, hidden_size=32, num_hidden_layers=2, num_attention_heads=8, intermediate_size=64,
    max_position_embeddings=12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1,
)  # fmt: skip
model = BertForSequenceClassification(config)


def examples(count: int) -> dict[str, torch.Tensor]:
    """Rows of a start token and eleven of ten words; label 1 if word 2 occurs more often than word 3."""
    ids = torch.randint(2, 12, (count, 12))
    ids[:, 0] = 1
    return {"input_ids": ids, "labels": ((ids == 2).sum(1) > (ids == 3).sum(1)).long()}


optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _step in range(300):
    loss = model(**examples(64)).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def losses(model, batch):
    """One number per example, for gradients."""
    return cross_entropy(model(input_ids=batch["input_ids"]).logits, batch["labels"], reduction="none")


def right(model, batch):
    """One number per example, to be measured."""
    return (model(input_ids=batch["input_ids"]).logits.argmax(-1) == batch["labels"]).float()


calibrate = hc.custom_task([examples(64) for _ in range(8)], loss=losses, values=right, name="calibration")
report = hc.custom_task([examples(64) for _ in range(16)], loss=losses, values=right, name="report")

print("the whole model:", hc.evaluate(model, report), "\n")
scores = hc.score(model, calibrate, by="taylor")
print(scores, "\n")
found = hc.ablate(model, report)
for name, comparison in sorted(zip(found.names, found.comparisons(), strict=True), key=lambda pair: -pair[1].damage)[
    :3
]:
    print(f"without {name}: {comparison}")
print()
for order in (scores, hc.score(model, by="random", seed=0)):
    print(hc.curve(model, report, order, step=4), "\n")

plan = hc.plan(scores, remove="50%")
hc.cut(model, plan, check=report.batch())
print(f"cut {plan}: {hc.evaluate(model, report)}")
