"""A small torch.nn model and tasks for it that need no transformers: for tests of training that start other processes."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.data.losses import LogitsAndTargets
from headcount.data.tasks import Task, custom_task
from headcount.learned_gates.gates import learning
from headcount.runs import Run
from headcount.training.loop import Recipe, Trained, train

WORDS = 11


class Reader(nn.Module):
    """Says a word for every word it reads."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(8, WORDS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.out(self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0))


def reader(dropout: float = 0.0, seed: int = 0) -> Reader:
    """The same for the same seed, in float64: with it, two ways to the same gradient differ by nothing that Adam sees."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Reader(dropout).double().eval()


def words_task(count: int = 13) -> Task:
    """Each word's successor is to be said, but for every fourth word; texts of 2 to 8 words, filled up."""
    drawn = torch.Generator().manual_seed(1)
    texts = [torch.randint(1, WORDS, (2 + number % 7,), generator=drawn).tolist() for number in range(count)]

    def collate(numbers: Sequence[int]) -> dict[str, Tensor]:
        longest = max(len(texts[number]) for number in numbers)
        rows = [texts[number] + [0] * (longest - len(texts[number])) for number in numbers]
        ids = torch.tensor(rows)
        labels = ((ids + 1) % WORDS).masked_fill((ids == 0) | (ids % 4 == 3), -100)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}

    def goal(model: nn.Module, batch: Any) -> LogitsAndTargets:
        return LogitsAndTargets(model(batch["input_ids"], batch["attention_mask"]), batch["labels"])

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits, targets = goal(model, batch)
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").sum(1)

    made = custom_task([{"x": torch.zeros(count)}], loss=loss)
    lengths = [len(text) for text in texts]
    return replace(
        made,
        goal=goal,
        collate=collate,
        lengths=lengths,
        groups=None,
        digest=lambda number: repr(texts[number]).encode(),
        inputs=lambda batch: {name: value for name, value in batch.items() if name != "labels"},
    )


def watched(task: Task, seen: list[int], kill: int | None) -> Task:
    """The same task; notes which examples were asked for, and is gone with its process when batch `kill` is."""
    calls = 0

    def collate(numbers: Sequence[int]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.extend(numbers)
        return task.collate(numbers)

    return replace(task, collate=collate)


def lesson(
    folder: Path | None, *, recipe: Recipe, kill: int | None = None, dropout: float = 0.0, method: str | None = None
) -> tuple[Reader, Trained, dict[str, Tensor], list[int]]:
    """A training of the reader, with gates or without, in a run folder or in none, killed or not.

    Gives the model, the training, the state of the gates, and the examples that this process took.
    """
    model, seen = reader(dropout), list[int]()
    with ExitStack() as stack:
        run = None if folder is None else stack.enter_context(Run.open(folder, {"command": "lesson"}))
        gates = None if method is None else stack.enter_context(learning(model, method, keep=2, seed=3))
        trained = train(
            model,
            watched(words_task(), seen, kill),
            recipe,
            dev=words_task(5),
            gates=gates,
            run=run,
            checkpoints=None if folder is None else folder / "checkpoints",
            save_every=None if folder is None else 2,
        )
        return model, trained, {} if gates is None else gates.state(), seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, where = sys.argv[1], Path(sys.argv[2])
    if what == "killed":
        lesson(where, recipe=Recipe(epochs=3, batch_size=4, lr=0.01), kill=8, dropout=0.2, method="subset")
    else:
        from safetensors.torch import save_file

        parts, rank = Recipe(epochs=2, batch_size=4, lr=0.01, accumulate=2), os.environ["RANK"]
        connected = torch.distributed.is_initialized  # at the very end: what is registered first is called last
        atexit.register(lambda: (where / f"connected-{rank}").write_text(str(connected())))
        for method in (None, "layerdrop", "subset"):
            model, trained, _, seen = lesson(None, recipe=parts, method=method)
            numbers = torch.tensor([[entry["loss"], entry["dev"] or 0.0] for entry in trained.history])
            found = {**model.state_dict(), "history": numbers, "seen": torch.tensor(seen)}
            save_file(found, where / f"{method}-{rank}.safetensors")
