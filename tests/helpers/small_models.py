"""Small tasks for the tests that measure: a few examples, and a loss that every part of a model moves."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast

import headcount as hc
from headcount.data.tasks import Task
from headcount.model.cutting import rules
from helpers import zoo

WORDS = ["the", "film", "is", "good", "bad", "dull", "long", "short", "war", "love", "song"]
WORDS += ["and", "not", "very", "about", "nobody"]
CONTRASTIVE = ("clip", "siglip")  # every picture against every text: only the diagonal belongs to one example


def spread(output: Tensor) -> Tensor:
    """One number per example from all numbers of an output, each with a weight of its own."""
    weights = torch.linspace(-1, 1, output[0].numel(), dtype=output.dtype, device=output.device).view(output[0].shape)
    return (torch.tanh(output) * weights).flatten(1).sum(1)


def loss_of(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return spread(zoo.judged(model(**batch)))


def diagonal(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return zoo.judged(model(**batch)).diagonal()


def of_all(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """One number for a batch that cannot be taken apart."""
    return spread(zoo.judged(model(**{k: v for k, v in batch.items() if k != "whole"}))).sum()


def zoo_task(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Task]:
    """A family's model, and a task on four examples: its two, and the same two turned around."""
    model, inputs = zoo.build(name, dtype)
    if name == "torch-encoder-seq-first":  # axis 0 is the time: the batch is one example
        return model, hc.custom_task([{**inputs, "whole": torch.zeros(1)}], loss=of_all)
    if any(len(value) != 2 for value in inputs.values()):
        return model, hc.custom_task([inputs], loss=of_all)
    grown = {key: torch.cat([value, value.flip(0)]) for key, value in inputs.items()}
    return model, hc.custom_task([grown], loss=diagonal if name in CONTRASTIVE else loss_of)


def closable(model: nn.Module, anatomy: hc.model.Anatomy) -> list[hc.model.Stack]:
    """The stacks whose layers hand on what they take in: those of the zoo do, but for Hiera's second stage."""
    return [s for s in anatomy.stacks if not (type(model).__name__.startswith("Hiera") and s.name == "1.layers")]


def parts_of(model: nn.Module) -> list[hc.model.Site | hc.model.Stack]:
    anatomy = hc.find(model)
    return [*anatomy.sites, *closable(model, anatomy)]


def by_gates(model: nn.Module, task: hc.data.Task, example: int) -> dict[str, np.ndarray]:
    """The derivative of one example's loss by every gate, from `gated` and a backward pass of its own.

    The example stands twice in the batch, because batch normalisation of a batch of one has wrong gradients in torch.
    """
    parts = parts_of(model)
    gates = {part.name: torch.ones(len(part), requires_grad=True) for part in parts}
    batch = task.collate([example, example] if task.rowwise else [example])
    with hc.gated(model, gates):
        loss = task.loss(model, batch)[0]
        loss.backward()
    zeros = {part.name: torch.zeros(len(part)) for part in parts}
    found = {name: zeros[name] if gate.grad is None else gate.grad for name, gate in gates.items()}
    model.zero_grad(set_to_none=True)
    return {name: value.numpy() for name, value in found.items()}


def classifier(layers: int = 3, **config: Any) -> nn.Module:
    """A BERT that reads the first token of a text."""
    from transformers import BertConfig, BertForSequenceClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        settings = {**zoo.ENCODER, "num_hidden_layers": layers, "num_labels": 3, **config}
        model = BertForSequenceClassification(BertConfig(**settings)).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.2)
    return model


def texts(count: int, length: int = 9, seed: int = 0) -> Tensor:
    return torch.randint(3, zoo.VOCAB - 1, (count, length), generator=torch.Generator().manual_seed(seed))


def class_loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return cross_entropy(model(**inputs).logits, batch["labels"], reduction="none")


def class_task(count: int = 7, *, batch_size: int | None = None, **functions: Any) -> Task:
    """Texts of one length with labels, for `classifier`."""
    labels = torch.arange(count) % 3
    functions = functions or {"loss": class_loss}
    return hc.custom_task([{"input_ids": texts(count), "labels": labels}], batch_size=batch_size, **functions)


def padded_task(
    rows: Sequence[dict[str, list[int]]], loss: Callable[[nn.Module, Any], Tensor], pad: dict[str, int], batch_size: int
) -> Task:
    """A task on examples of different lengths, filled up to the longest of a batch."""

    def collate(numbers: Sequence[int]) -> dict[str, Tensor]:
        chosen = [rows[number] for number in numbers]
        longest = {key: max(len(row[key]) for row in chosen) for key in pad}
        return {
            key: torch.tensor([row[key] + [fill] * (longest[key] - len(row[key])) for row in chosen])
            for key, fill in pad.items()
        }

    task = hc.custom_task([{"x": torch.zeros(len(rows))}], loss=loss, batch_size=batch_size)
    lengths = [len(next(iter(row.values()))) for row in rows]
    return replace(task, collate=collate, lengths=lengths, groups=None, digest=lambda n: repr(rows[n]).encode())


def ragged_texts(count: int = 7) -> Task:
    """Texts of 3 to 9 tokens for `classifier`, padded; batches of four."""
    ids = texts(count).tolist()
    rows = [{"input_ids": row[: 3 + number % 7], "labels": [number % 3]} for number, row in enumerate(ids)]
    rows = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return class_loss(model, {**batch, "labels": batch["labels"][:, 0]})

    return padded_task(rows, loss, {"input_ids": 0, "attention_mask": 0, "labels": 0}, 4)


def ragged_pairs(count: int = 6) -> Task:
    """Texts and their translations, both of different lengths, for an encoder-decoder that pads with 1."""
    source, target = texts(count).tolist(), texts(count, seed=1).tolist()
    rows = [
        {"input_ids": source[n][: 4 + n % 5], "attention_mask": [1] * (4 + n % 5), "labels": target[n][: 2 + n % 4]}
        for n in range(count)
    ]

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(**batch).logits
        return cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none").sum(1)

    return padded_task(rows, loss, {"input_ids": 1, "attention_mask": 0, "labels": -100}, 3)


def naive(model: nn.Module, task: Task, plans: Sequence[hc.Plan], *, alone: bool = False) -> np.ndarray:
    """What `measure` has to give: each plan masked in turn, from the task's own functions; each example `alone` or not."""
    out = np.empty((len(plans), task.size, len(task.metric.columns)))
    for number, plan in enumerate(plans):
        for some in task.batches(1 if alone else None):
            with hc.masked(model, plan), torch.no_grad():
                out[number, list(some)] = task.rows(model, {k: v.clone() for k, v in task.collate(some).items()})
    return out


def word_tokenizer(words: Sequence[str]) -> Any:
    """A tokenizer of whole words, in the manner of BERT: [CLS] text [SEP]."""
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    made.train_from_iterator(words, trainers.WordLevelTrainer(special_tokens=special))
    marks = [("[CLS]", 1), ("[SEP]", 2)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    names = dict(zip(("pad_token", "cls_token", "sep_token", "unk_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=16, eos_token="[SEP]", **names)


def folder_and_data(folder: Path, layers: int) -> Path:
    """The folder, with a classifier (`model`) and 60 sentences with labels (`data.tsv`) in it."""
    tokenizer = word_tokenizer(WORDS)
    classifier(layers, vocab_size=len(tokenizer), num_labels=2).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [f"{WORDS[n % 16]} {WORDS[n * 7 % 15]} {WORDS[n * 3 % 13]}\t{n % 2}" for n in range(60)]
    (folder / "data.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


def ran(*arguments: object) -> Any:
    """A command, run as a user would, in this process; errors that are not exits come out as they are."""
    from typer.testing import CliRunner

    from headcount.cli.app import app

    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def ran_json(*arguments: object) -> dict[str, Any]:
    """What a command prints with --json."""
    done = ran(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def weather(count: int, seed: int, more: int = 4) -> list[tuple[str, str]]:
    """Texts of five words, `more` of them of one kind, warm or cold, which is the label."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        kind, other = draw.sample(["warm", "cold"], 2)
        words = [f"{one}{draw.randrange(6)}" for one in [kind] * more + [other] * (5 - more)]
        draw.shuffle(words)
        rows.append((" ".join(words), kind))
    return rows


WEATHER = [f"{kind}{number}" for kind in ("warm", "cold") for number in range(6)]


def refuses(monkeypatch: pytest.MonkeyPatch, site: str) -> None:
    """Let a site be one that cannot be cut."""
    really = rules.refuse

    def refuse(root: Any, anatomy: Any, plan: hc.Plan, scales: Any) -> None:
        if site in plan.by_site():
            raise hc.errors.Refused(f"{site} cannot be cut exactly: it mixes heads; it can still be masked.")
        really(root, anatomy, plan, scales)

    monkeypatch.setattr(rules, "refuse", refuse)
