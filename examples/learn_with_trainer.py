"""Which 16 of 48 heads to keep, learned inside `transformers.Trainer` by one callback, then cut: offline, in seconds."""

import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

import headcount as hc

torch.set_num_threads(1)  # a small model gains little from more
home = Path(hc.__file__).parent / "embedded"
model = AutoModelForSequenceClassification.from_pretrained(home / "classifier", dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(home / "classifier")
movies = hc.task("classification", data=home / "classifier-data/movies.tsv", tokenizer=tokenizer, max_length=24)
train, report = movies.split(0.7, 0.3)  # heads are chosen on one part and judged on another
before = hc.evaluate(model, report)

with tempfile.TemporaryDirectory() as folder, hc.learned_gates.learning(model, "l0", keep=16) as gates:
    arguments = TrainingArguments(
        folder, max_steps=40, per_device_train_batch_size=8, learning_rate=5e-5, logging_steps=20, report_to=[],
        use_cpu=True, save_strategy="no", seed=0, remove_unused_columns=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        model,
        arguments,
        train_dataset=range(len(train)),  # the numbers of the examples: a task makes batches of them
        data_collator=train.collate,
        callbacks=[hc.learned_gates.trainer_callback(gates)],
    )
    trainer.train()
model.eval()

plan = gates.plan()
hc.cut(model, plan, check=report.batch())  # as small as it says, and proved to compute the same
print(f"cut {len(plan)} of {len(gates.units)} heads: {plan}")
after = hc.evaluate(model, report)
print(f"before {before}\nafter  {after}\n{hc.compare(before, after)}")
