"""Training: the gradient is that of the mean over targets however the batch is split, and a kill changes nothing."""

from __future__ import annotations

import copy
import math
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers.processes import spawned
from helpers.reader_model import Reader, lesson, reader, words_task
from helpers.same import alike, close, close_weights
from helpers.small_models import word_tokenizer
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

import headcount as hc
from headcount.data.losses import LogitsAndTargets, count_targets
from headcount.data.task_types import task
from headcount.errors import BadCheckpoint, BadData, BadRun, NotFinite, NotFound, OutOfMemory, Refused
from headcount.learned_gates.gates import learning
from headcount.runs import Run
from headcount.training.loop import Recipe, train
from headcount.training.loss import batch_loss
from headcount.training.recipe import batches

TESTS = Path(__file__).parents[1]
QUICK = Recipe(epochs=2, batch_size=4, lr=0.01)
ROUNDING = 1e-9  # what Adam makes of it in some steps, in float64; a step has 1e-2
THROUGH_GATES = 1e-6  # and where gates are in between, which are float32
SENTENCES = [
    "a good film",
    "dull",
    "it is long and it is dull and nobody laughs",
    "good and long",
    "nobody laughs at it",
]
SIZES: dict[str, Any] = {"vocab_size": 30, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def _seeded(make: Any, config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(config).eval()


def _bart(**options: Any) -> Any:
    sides = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    sizes = {**SIZES, **sides, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "d_model": 16, "decoder_start_token_id": 2}
    return _seeded(BartForConditionalGeneration, BartConfig(**sizes, max_position_embeddings=40, **options))


def _asked(kind: str) -> tuple[Any, hc.data.Task]:
    """A model and a task of each kind, on sentences of different lengths."""
    tokenizer = word_tokenizer(SENTENCES)
    bert = BertConfig(**SIZES, **TINY, max_position_embeddings=40, num_labels=1 if kind == "regression" else 2)
    if kind == "translation":
        rows = [{"source": one, "target": two} for one, two in zip(SENTENCES, reversed(SENTENCES), strict=True)]
        return _bart(), task(kind, rows, text="source", target="target", tokenizer=tokenizer)
    if kind == "language-modelling":
        config = GPT2Config(**SIZES, n_embd=16, n_layer=2, n_head=2, n_positions=40)
        return _seeded(GPT2LMHeadModel, config), task(kind, [{"text": one} for one in SENTENCES], tokenizer=tokenizer)
    if kind == "masked-language-modelling":
        tokenizer.add_special_tokens({"mask_token": "[MASK]"})
        model = _seeded(BertForMaskedLM, bert)
        return model, task(kind, [{"text": one} for one in SENTENCES], tokenizer=tokenizer)
    labels = [0.5, -1.0, 2.0, 0.0, 1.5] if kind == "regression" else [1, 0, 0, 1, 0]
    rows = [{"text": one, "label": label} for one, label in zip(SENTENCES, labels, strict=True)]
    return _seeded(BertForSequenceClassification, bert), task(kind, rows, tokenizer=tokenizer)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in model.state_dict().items()}


def _equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def _apart(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


# --- what is trained towards ----------------------------------------------------------------------------------------


KINDS = ["classification", "regression", "translation", "language-modelling", "masked-language-modelling"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_sum_over_targets_of_each_example_alone(kind: str) -> None:
    model, asked = _asked(kind)
    total, targets = 0.0, 0
    for number in range(asked.size):  # one at a time there is no padding, and the task's own loss is by another way
        total += float(asked.loss(model, asked.collate([number])).sum())
        columns = asked.with_metric("loss").rows(model, asked.collate([number]))
        targets += int(columns[0, 1]) if "language" in kind or kind == "translation" else 1
    batch = asked.collate(range(asked.size))
    loss, count = batch_loss(model, asked, batch)
    assert float(loss) == pytest.approx(total, rel=1e-5)
    assert int(count) == targets == count_targets(batch)
    assert targets > asked.size or kind in ("classification", "regression")


def test_the_first_loss_of_a_training_is_the_mean_over_targets_by_hand() -> None:
    model, asked = reader(), words_task()
    chosen = batches(asked, 4, 0, 0)[0]
    batch = asked.collate(chosen)
    said = torch.softmax(model(batch["input_ids"], batch["attention_mask"]), -1).detach().numpy()
    wanted = batch["labels"].numpy()
    by_hand = [-math.log(said[row, at, wanted[row, at]]) for row, at in np.argwhere(wanted != -100)]
    assert 0 < len(by_hand) < wanted.size, "some words are filled up or not to be guessed"
    history = train(model, asked, replace(QUICK, steps=1)).history
    assert history[0]["loss"] == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_smoothing_is_that_of_torch(smoothing: float) -> None:
    model, asked = reader(), words_task()
    batch = asked.collate(range(6))
    logits = model(batch["input_ids"], batch["attention_mask"])
    mean = cross_entropy(logits.transpose(1, 2), batch["labels"], label_smoothing=smoothing)
    loss, count = batch_loss(model, asked, batch, smoothing)
    assert float(loss / count) == pytest.approx(float(mean), rel=1e-9)


@pytest.mark.parametrize("kind", ["words", "regression"])
def test_the_gradient_of_distillation_is_that_of_finite_differences(kind: str) -> None:
    if kind == "words":
        model, asked, teacher = reader(), words_task(), reader(seed=1)
        weight = model.out.bias
    else:
        (model, asked), teacher = _asked(kind), _asked(kind)[0]
        model, teacher = model.double(), teacher.double()
        weight = model.classifier.bias
        with torch.no_grad():
            teacher.classifier.bias.fill_(1.0)
    batch = asked.collate(range(5))

    def loss(moved: float = 0.0) -> Tensor:
        with torch.no_grad():
            weight[0] += moved
        try:
            return batch_loss(model, asked, batch, 0.1 * (kind == "words"), teacher, 0.6, 2.0)[0]
        finally:
            with torch.no_grad():
                weight[0] -= moved

    (gradient,) = torch.autograd.grad(loss(), weight)
    step = 1e-5 if kind == "words" else 1e-2  # numbers are compared in float32, and their error is a parabola
    assert float(gradient[0]) == pytest.approx(float(loss(step) - loss(-step)) / (2 * step), rel=1e-3)


def test_distillation_is_that_of_hinton_and_nothing_at_weight_0() -> None:
    model, teacher, asked = reader(), reader(seed=1), words_task()
    batch = asked.collate(range(5))
    here = batch["labels"] != -100
    said, told = (one(batch["input_ids"], batch["attention_mask"])[here].detach().numpy() for one in (model, teacher))

    def softened(logits: np.ndarray) -> np.ndarray:
        return np.exp(logits / 3) / np.exp(logits / 3).sum(-1, keepdims=True)

    divergence = (softened(told) * np.log(softened(told) / softened(said))).sum()
    hard = float(batch_loss(model, asked, batch)[0])
    got = float(batch_loss(model, asked, batch, teacher=teacher, distill=0.25, temperature=3.0)[0])
    assert got == pytest.approx(0.75 * hard + 0.25 * 9 * divergence, rel=1e-9)
    plain, taught = reader(0.2), reader(0.2)
    train(plain, asked, QUICK)
    train(taught, asked, replace(QUICK, distill=0.0), teacher=teacher)
    assert close_weights(plain, taught, ROUNDING)


def test_a_teacher_is_not_changed_and_must_say_the_same_things() -> None:
    teacher = reader(0.5, seed=1).train()
    before = Fingerprint(teacher)
    model = reader()
    train(model, words_task(), QUICK, teacher=teacher)
    assert before.changed() == []
    assert all(one.grad is None for one in teacher.parameters())
    other = reader()
    other.out = nn.Linear(8, 5).double()
    with says(Refused, about="(4, "):
        train(model, words_task(), QUICK, teacher=other)
    with says(Refused, about="itself"):
        train(model, words_task(), QUICK, teacher=model)
    with says(Refused, about="only a loss"):
        train(model, replace(words_task(), goal=None), QUICK, teacher=teacher)
    turned, asked = _asked("classification")
    turned.config.id2label, turned.config.label2id = {0: "1", 1: "0"}, {"1": 0, "0": 1}
    with says(BadData, about="order"):
        train(_asked("classification")[0], asked, QUICK, teacher=turned)


# --- how it is split, and what it depends on ------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 4, 9])
def test_a_batch_in_parts_trains_as_the_whole_batch(parts: int) -> None:
    whole, split = reader(), reader()
    one = train(whole, words_task(), QUICK)
    two = train(split, words_task(), replace(QUICK, accumulate=parts))
    assert close_weights(whole, split, ROUNDING)
    assert [entry["loss"] for entry in one.history] == pytest.approx([entry["loss"] for entry in two.history], rel=1e-5)


def test_the_same_training_gives_the_same_weights_and_another_seed_does_not() -> None:
    first, again, other = reader(0.2), reader(0.2), reader(0.2)
    one = train(first, words_task(), QUICK)
    torch.manual_seed(123)  # whatever the caller did before
    two = train(again, words_task(), QUICK)
    train(other, words_task(), replace(QUICK, seed=1))
    assert close_weights(first, again, ROUNDING)
    assert alike(one.history, two.history)
    assert _apart(_weights(first), _weights(other)) > 1e-3


def test_dropout_drops_something_else_in_every_step() -> None:
    seen = []
    model, asked = reader(0.5), words_task(4)
    model.encoder.layers[0].dropout1.register_forward_hook(
        lambda _, given, out: seen.append((out == 0) & (given[0] != 0))
    )
    train(model, asked, replace(QUICK, epochs=3, lr=0.0))
    assert len(seen) == 3
    assert all(one.any() for one in seen)
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_every_example_is_seen_once_in_an_epoch_with_others_of_its_length() -> None:
    asked = words_task(701)
    order = batches(asked, 8, 0, 0)
    assert sorted(number for batch in order for number in batch) == list(range(701))
    assert sorted(map(len, order)) == [5] + [8] * 87
    spans = [max(lengths) - min(lengths) for lengths in ([asked.lengths[n] for n in batch] for batch in order)]
    assert sum(spans) / len(spans) < 1
    assert batches(asked, 8, 0, 0) == order
    assert batches(asked, 8, 0, 1) != order != batches(asked, 8, 1, 0)
    firsts = [asked.lengths[batch[0]] for batch in batches(words_task(300), 8, 0, 0)]
    assert firsts != sorted(firsts), "short batches do not all come first"


def test_own_batches_are_not_mixed_and_may_be_one_example() -> None:
    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return model(batch["x"]).pow(2).sum(1)

    def of_all(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return model(batch["x"]).pow(2).sum()

    ragged = [{"x": torch.randn(3, 4)}, {"x": torch.randn(2, 4)}]
    whole = [{"x": torch.randn(3, 4), "other": torch.zeros(2)}]
    for asked in (hc.custom_task(ragged, loss=loss), hc.custom_task(whole, loss=of_all)):
        model = nn.Linear(4, 2)
        history = train(model, asked, Recipe(epochs=30, batch_size=8, lr=0.05)).history
        assert history[-1]["loss"] < history[0]["loss"] / 2


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """13 examples in batches of 4: the last batch is one example, and the second process has none of it."""
    spawned([str(TESTS / "helpers" / "reader_model.py"), "split", str(tmp_path)], 2)
    assert [(tmp_path / f"connected-{rank}").read_text() for rank in range(2)] == ["False"] * 2
    for method in (None, "layerdrop", "subset"):
        model, trained, _, seen = lesson(None, recipe=QUICK, method=method)
        history = torch.tensor([[entry["loss"], entry["dev"] or 0.0] for entry in trained.history])
        found = [load_file(tmp_path / f"{method}-{rank}.safetensors") for rank in range(2)]
        shares = [one.pop("seen").tolist() for one in found]
        assert sorted(shares[0] + shares[1]) == sorted(seen), "each example is computed by one of the two"
        assert len(shares[0]) > len(shares[1]) > 0
        for one in found:
            assert torch.allclose(one.pop("history"), history, rtol=1e-5)
            assert close_weights(one, model, THROUGH_GATES if method == "subset" else ROUNDING)


# --- killed and resumed ---------------------------------------------------------------------------------------------


def _times(folder: Path) -> dict[str, int]:
    return {str(one): one.stat().st_mtime_ns for one in folder.glob("checkpoints/*/model.safetensors")}


def test_killed_and_resumed_is_as_never_killed(tmp_path: Path) -> None:
    """With dropout, gates and their optimiser, in the middle of an epoch, one step after the last state."""
    done = subprocess.run(
        [sys.executable, str(TESTS / "helpers" / "reader_model.py"), "killed", str(tmp_path / "run")],
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    assert [one.name for one in sorted((tmp_path / "run" / "checkpoints").glob("*"))] == ["epoch-01"]
    written = _times(tmp_path / "run")
    recipe = Recipe(epochs=3, batch_size=4, lr=0.01)
    resumed, trained, gates, _ = lesson(tmp_path / "run", recipe=recipe, dropout=0.2, method="subset")
    whole, expected, expected_gates, _ = lesson(tmp_path / "other", recipe=recipe, dropout=0.2, method="subset")
    assert close_weights(resumed, whole, THROUGH_GATES)
    assert close_weights(gates, expected_gates, THROUGH_GATES)
    assert alike(trained.history, expected.history)
    assert trained.steps == expected.steps == 12
    assert written.items() <= _times(tmp_path / "run").items(), "finished checkpoints are kept"
    for epoch in ("epoch-01", "epoch-02", "epoch-03"):
        saved = [load_file(tmp_path / run / "checkpoints" / epoch / "model.safetensors") for run in ("run", "other")]
        assert close_weights(*saved, THROUGH_GATES)
    # and once more at its end: nothing is computed or written, and all is there
    written = _times(tmp_path / "run")
    again, repeated, _, _ = lesson(tmp_path / "run", recipe=recipe, kill=1, dropout=0.2, method="subset")
    assert _equal(_weights(again), _weights(resumed))
    assert repeated.history == trained.history
    assert _times(tmp_path / "run") == written


def _stopped(folder: Path, recipe: Recipe, model: nn.Module | None = None, task: Any = None, **options: Any) -> None:
    """A training in a run folder whose seventh batch fails."""
    model, asked, calls = reader() if model is None else model, words_task() if task is None else task, []

    def collate(numbers: Sequence[int]) -> dict[str, Any]:
        calls.append(numbers)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return asked.collate(numbers)

    with Run.open(folder, {}) as run, pytest.raises(KeyboardInterrupt):
        train(model, replace(asked, collate=collate), recipe, run=run, save_every=1, **options)


def test_what_was_lost_between_two_entries_of_the_history_is_not_forgotten(tmp_path: Path) -> None:
    """400 steps have an entry every four; the state is that after the sixth."""

    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return model(batch["x"]).pow(2).sum(1)

    rows = torch.arange(1600.0, dtype=torch.float64).reshape(800, 2) / 1000
    asked, recipe = hc.custom_task([{"x": rows}], loss=loss), Recipe(steps=400, batch_size=2, lr=0.01)
    start = nn.Linear(2, 2).double()
    resumed, whole = copy.deepcopy(start), copy.deepcopy(start)
    _stopped(tmp_path, recipe, copy.deepcopy(start), asked)
    with Run.open(tmp_path, {}) as run:
        history = train(resumed, asked, recipe, run=run, save_every=1000).history
    assert [entry["step"] for entry in history[:3]] == [4, 8, 12]
    assert alike(history, train(whole, asked, recipe).history)


@pytest.mark.parametrize("change", [{"lr": 0.02}, {"seed": 5}, {"batch_size": 5}, {"epochs": 3.0}])
def test_the_state_of_another_recipe_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    _stopped(tmp_path, QUICK)
    model = reader()
    before = Fingerprint(model)
    with Run.open(tmp_path, {}) as run:
        with says(BadRun, about=f"{next(iter(change))} is"):
            train(model, words_task(), replace(QUICK, **change), run=run)
        assert before.changed() == []
        train(model, words_task(), QUICK, run=run)


def test_the_state_of_another_model_or_other_data_is_refused(tmp_path: Path) -> None:
    _stopped(tmp_path, QUICK, freeze=["encoder"])
    wider, moved, other = reader(), reader(), reader()
    wider.out = nn.Linear(8, 12).double()
    with torch.no_grad():
        moved.encoder.layers[0].linear1.weight[0, 0] += 1
        other.out.weight[0, 0] += 1
    with Run.open(tmp_path, {}) as run:
        for model, asked, freeze, about in (
            (wider, words_task(), ["encoder"], "shape is"),
            (moved, words_task(), ["encoder"], "what is frozen is"),
            (other, words_task(), ["encoder"], "what it began with is"),
            (reader(), words_task(), [], "shape is"),
            (reader(), words_task(12), ["encoder"], "data is"),
        ):
            with says(BadRun, about=about):
                train(model, asked, QUICK, run=run, freeze=freeze)
        train(reader(), words_task(), QUICK, run=run, freeze=["encoder"])


@pytest.mark.parametrize("change", [{"seed": 1}, {"settle": 0.5}, {"keep": 3}, {"lr": 0.3}, {"pipelined": True}])
def test_the_state_of_other_gates_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    asked = {"method": "subset", "keep": 2}
    with Run.open(tmp_path, {}) as run:
        model = reader()
        with learning(model, **asked) as gates:
            train(model, words_task(), replace(QUICK, epochs=1), gates=gates, run=run)
        model = reader()
        with learning(model, **{**asked, **change}) as gates, says(BadRun, about="another training"):
            train(model, words_task(), replace(QUICK, epochs=1), gates=gates, run=run)


def test_gates_with_another_number_of_steps_are_refused() -> None:
    model = reader()
    with learning(model, keep=2, steps=1000) as gates, says(Refused, about="1000 steps"):
        train(model, words_task(), QUICK, gates=gates)


def test_a_teacher_that_cannot_be_asked_is_refused_before_anything_is_trained() -> None:
    model, asked = _asked("classification")
    translator, _ = _asked("translation")
    before = Fingerprint(model)
    with says(Refused, about="The teacher"):
        train(model, asked, QUICK, teacher=translator)
    assert not before.changed()


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    _stopped(tmp_path, QUICK)
    path = tmp_path / "train-state.safetensors"
    content = path.read_bytes()
    with Run.open(tmp_path, {}) as run:
        for wrong in (content[: len(content) // 2], content[:4], b"", b"x" * 200):
            path.write_bytes(wrong)
            with says(BadRun, about="delete it"):
                train(reader(), words_task(), QUICK, run=run)
        path.write_bytes(content)
        train(reader(), words_task(), QUICK, run=run)
    assert not list(tmp_path.glob("*.draft"))


def test_tied_weights_are_in_the_state_once_and_come_back_tied(tmp_path: Path) -> None:
    model, asked = _asked("translation")
    with Run.open(tmp_path, {}) as run:
        train(model, asked, replace(QUICK, epochs=1), run=run)
        names = load_file(tmp_path / "train-state.safetensors").keys()
        assert sum("shared" in name or "embed_tokens" in name or "lm_head" in name for name in names) == 1
        again = _asked("translation")[0]
        train(again, asked, replace(QUICK, epochs=1), run=run)
    assert again.lm_head.weight is again.model.shared.weight
    assert _equal(_weights(again), _weights(model))


def test_checkpoints_are_ordinary_folders_and_those_of_others_are_not_taken_for_ours(tmp_path: Path) -> None:
    model, asked = _asked("classification")
    tokenizer = word_tokenizer(SENTENCES)
    train(model, asked, replace(QUICK, epochs=1.5), checkpoints=tmp_path, tokenizer=tokenizer)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["epoch-01", "epoch-02"]
    assert _equal(_weights(hc.load(tmp_path / "epoch-02")), _weights(model))
    assert (tmp_path / "epoch-01" / "tokenizer.json").is_file()
    with says(BadCheckpoint, about="epoch-01"):
        train(model, asked, QUICK, checkpoints=tmp_path)


# --- what trains, and what is left as it was ------------------------------------------------------------------------


def _moved(model: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, one in model.state_dict().items() if not torch.equal(one, before[name])}


def test_what_is_frozen_stays_and_what_is_shared_with_it() -> None:
    model, asked = _asked("translation")
    before = _weights(model)
    train(model, asked, QUICK, freeze=["decoder"])
    moved = _moved(model, before)
    assert moved
    assert all(name.startswith("model.encoder.") for name in moved)
    assert "model.encoder.embed_tokens.weight" not in moved, "it is the decoder's, too"
    assert "model.encoder.layers.1.fc1.weight" in moved
    assert all(one.requires_grad for one in model.parameters())


def test_frozen_parts_are_named_by_their_path() -> None:
    model, asked = _asked("classification")
    before = _weights(model)
    train(model, asked, QUICK, freeze=["encoder.layer.0", "embeddings", "bert.pooler"])
    moved = _moved(model, before)
    assert {name.split(".")[3] for name in moved if "layer." in name} == {"1"}
    assert not any("embeddings" in name or "pooler" in name for name in moved)
    assert "classifier.weight" in moved
    with says(NotFound, about="'decoder'"):
        train(model, asked, QUICK, freeze=["decoder"])
    with says(NotFound, about="'encod'"):
        train(model, asked, QUICK, freeze=["encod"])
    with says(Refused, about="nothing to train"):
        train(model, asked, QUICK, freeze=["bert", "classifier"])


def test_modes_gradients_and_random_states_are_as_they_were_also_after_an_error() -> None:
    model = reader(0.1)
    model.encoder.layers[0].train()
    model.out.bias.requires_grad_(False)
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    expected = (torch.rand(1), random.random(), np.random.rand())
    modes = {name: one.training for name, one in model.named_modules()}
    needs = {name: one.requires_grad for name, one in model.named_parameters()}

    def fails(_: Sequence[int]) -> dict[str, Any]:
        raise ValueError("no")

    for asked in (words_task(), replace(words_task(), collate=fails)):
        torch.manual_seed(7), random.seed(7), np.random.seed(7)
        before = model.out.bias.clone()
        try:
            train(model, asked, QUICK, freeze=["embed"])
        except ValueError:
            assert asked.collate is fails
        assert (torch.rand(1), random.random(), np.random.rand()) == expected
        assert {name: one.training for name, one in model.named_modules()} == modes
        assert {name: one.requires_grad for name, one in model.named_parameters()} == needs
        assert all(one.grad is None for one in model.parameters())
        assert torch.equal(before, model.out.bias), "a parameter that needed no gradient is not trained"


def test_precision_and_the_callers_own_accelerator() -> None:
    from accelerate import Accelerator

    mine = Accelerator(cpu=True, mixed_precision="no")
    model = reader().float()
    train(model, words_task(), replace(QUICK, precision="bf16"))
    assert mine.mixed_precision == "no"
    assert mine.device.type == "cpu"
    seen = []
    model.out.register_forward_hook(lambda _, given, out: seen.append(out.dtype))
    train(model, words_task(), replace(QUICK, steps=1))
    train(model, words_task(), replace(QUICK, steps=1, precision="bf16"))
    assert seen == [torch.float32, torch.bfloat16]
    with says(Refused, about="fp16"):
        train(model, words_task(), replace(QUICK, precision="fp16"))
    with says(Refused, about="bfloat16"):
        train(reader().bfloat16(), words_task(), QUICK)


def test_in_bf16_what_teacher_and_model_say_is_compared_in_float32() -> None:
    model, teacher, asked = reader().float(), reader(seed=1).float(), words_task()
    batch, said = asked.collate(range(5)), list[Tensor]()
    for one in (model, teacher):
        one.out.register_forward_hook(lambda _, given, out: said.append(out.detach()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, targets = batch_loss(model, asked, batch, 0.0, teacher, 1.0, 2.0)
    assert [logits.dtype for logits in said] == [torch.bfloat16] * 2
    student, tutor = ((logits.float() / 2.0).log_softmax(-1) for logits in said)
    counted = batch["labels"] != -100
    want = 4.0 * (tutor.exp() * (tutor - student)).sum(-1)[counted].sum()
    assert loss.dtype == torch.float32
    assert int(targets) == int(counted.sum())
    assert close(loss.detach(), want, 1e-5)
    assert float(want) > 1e-3
    train(model, asked, replace(QUICK, precision="bf16"), teacher=teacher)


def test_one_process_needs_no_accelerate_and_what_would_split_the_model_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)  # whoever imports it fails
    train(reader(), words_task(), replace(QUICK, steps=1))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with says(Refused, about="Training under FSDP would split the model"):
        train(reader(), words_task(), QUICK)


# --- gates ----------------------------------------------------------------------------------------------------------


class Watched:
    """Stands for gates: notes when it was asked for a step, and what the model's weights were then."""

    method, units, keep, weights_frozen = "watched", (), None, False

    def __init__(self, model: Reader) -> None:
        self.model, self.steps, self.seen = model, None, list[Tensor]()

    def step(self) -> None:
        assert self.model.out.weight.grad is None, "the optimiser had its step before"
        self.seen.append(self.model.out.weight.detach().clone())

    def expected(self) -> float:
        return 4.5

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        assert not state


def test_the_gates_step_once_after_each_step_of_the_optimiser() -> None:
    model = reader()
    gates = Watched(model)
    start = model.out.weight.detach().clone()
    trained = train(model, words_task(), replace(QUICK, accumulate=2), gates=gates)
    assert gates.steps == trained.steps == len(gates.seen) == 8
    for one, two in zip([start, *gates.seen], gates.seen, strict=False):
        assert not torch.equal(one, two)
    assert torch.equal(gates.seen[-1], model.out.weight)
    assert {entry["open"] for entry in trained.history} == {4.5}
    with says(Refused, about="bf16"):
        train(model, words_task(), replace(QUICK, precision="fp16"), gates=gates)


def test_gates_alone_learn_where_the_weights_are_frozen() -> None:
    model = reader()
    before = _weights(model)
    with learning(model, "subset", keep=2, pipelined=True) as gates:
        start = gates.state()["weights"]
        trained = train(model, words_task(), QUICK, gates=gates)
        assert gates.done == trained.steps == 8
        assert not torch.equal(gates.state()["weights"], start)
        assert len(gates.plan()) == 2
    assert _equal(_weights(model), before)
    assert all(one.requires_grad and one.grad is None for one in model.parameters())


# --- when it goes wrong, and when it goes well ----------------------------------------------------------------------


def test_a_loss_that_is_not_a_number_stops_before_it_does_damage() -> None:
    model, asked = reader(), words_task()
    good, calls = asked.goal, []

    def goal(given: nn.Module, batch: Any) -> LogitsAndTargets:
        calls.append(_weights(given))
        logits, targets = good(given, batch)
        return LogitsAndTargets(logits * float("nan") if len(calls) == 3 else logits, targets)

    with says(NotFinite, about="step 3"):
        train(model, replace(asked, goal=goal), QUICK)
    assert _equal(_weights(model), calls[2])
    with says(NotFinite, about="lower learning rate"):
        train(reader().float(), words_task(40), Recipe(lr=1e30, warmup=0.0, batch_size=4))


def test_running_out_of_memory_is_said_in_a_sentence() -> None:
    def goal(*_: Any) -> LogitsAndTargets:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with says(OutOfMemory, about="--accumulate 4"):
        train(reader(), replace(words_task(), goal=goal), replace(QUICK, accumulate=2))


NONSENSE = [("batch_size", 0), ("steps", 0), ("accumulate", 1.5), ("lr", -1.0), ("lr", math.nan), ("epochs", 0.0)]
NONSENSE += [("temperature", 0.0), ("warmup", 1.5), ("distill", -0.1), ("schedule", "cosine"), ("precision", "fp8")]


@pytest.mark.parametrize(("name", "value"), NONSENSE)
def test_recipes_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with says(Refused, about=name):
        Recipe(**{name: value})


def test_smoothing_without_labels_is_refused() -> None:
    with says(Refused, about="smoothed"):
        train(*_asked("regression"), replace(QUICK, label_smoothing=0.1))


def test_the_learning_rate_rises_and_falls_as_asked() -> None:
    linear, root, constant = (
        Recipe(lr=2.0, warmup=0.2, schedule=name) for name in ("linear", "inverse-sqrt", "constant")
    )
    assert [linear.lr_at(step, 10) for step in (0, 1, 2, 6, 9)] == pytest.approx([1.0, 2.0, 2.0, 1.0, 0.25])
    assert [root.lr_at(step, 10) for step in (0, 1, 7)] == pytest.approx([1.0, 2.0, 1.0])
    assert [constant.lr_at(step, 10) for step in (0, 1, 9)] == pytest.approx([1.0, 2.0, 2.0])
    assert Recipe(lr=2.0, warmup=0.0).lr_at(0, 10) == 2.0
    history = train(reader(), words_task(), Recipe(epochs=2, batch_size=4, lr=0.1, warmup=0.5)).history
    assert [entry["lr"] for entry in history] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.075, 0.05, 0.025])


def test_weights_decay_and_biases_do_not() -> None:
    def nothing(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return model(batch["x"]).sum(1) * 0

    model = nn.Linear(4, 2)
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    asked = hc.custom_task([{"x": torch.randn(3, 4)}], loss=nothing)
    train(model, asked, Recipe(steps=1, lr=0.1, warmup=0.0, weight_decay=0.5))
    assert torch.allclose(model.weight, weight * (1 - 0.1 * 0.5))
    assert torch.equal(model.bias, bias)


def test_gradients_are_clipped() -> None:
    """Adam's second step remembers how long the first gradient was, so clipping shows."""
    free, clipped = reader(), reader()
    train(free, words_task(), replace(QUICK, max_grad_norm=0.0))
    train(clipped, words_task(), replace(QUICK, max_grad_norm=1e9))
    assert close_weights(free, clipped, ROUNDING)
    tight = reader()
    train(tight, words_task(), replace(QUICK, max_grad_norm=1e-9))
    assert _apart(_weights(free), _weights(tight)) > 1e-4


def test_a_small_bert_learns_a_small_task() -> None:
    words = ["film", "war", "long", "nobody", "laughs", "it"]
    drawn = random.Random(0)
    rows = []
    for number in range(96):
        text = [drawn.choice(words) for _ in range(2 + number % 5)]
        text.insert(drawn.randrange(len(text)), ["dull", "good"][number % 2])
        rows.append({"text": " ".join(text), "label": number % 2})
    tokenizer = word_tokenizer([row["text"] for row in rows])
    model = _seeded(
        BertForSequenceClassification, BertConfig(**SIZES, **TINY, max_position_embeddings=40, num_labels=2)
    )
    learn, dev = (task("classification", some, tokenizer=tokenizer) for some in (rows[:64], rows[64:]))
    assert hc.evaluate(model, dev).value < 0.8
    trained = train(model, learn, Recipe(epochs=12, batch_size=16, lr=5e-3), dev=dev)
    measured = [entry["dev"] for entry in trained.history if entry["dev"] is not None]
    assert len(measured) == 12
    assert measured[-1] == hc.evaluate(model, dev).value == 1.0
    assert trained.history[-1]["epoch"] == 12
    assert trained.history[-1]["loss"] < trained.history[0]["loss"] / 2
