"""Gates inside `transformers.Trainer`: in step with it, resumed with it, and nothing of theirs in what it writes."""

from __future__ import annotations

import copy
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Fingerprint, says
from helpers.planted_models import Planted, planted
from helpers.same import close, close_weights, same_weights
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainingArguments

import headcount as hc
from headcount.errors import BadCheckpoint, Refused
from headcount.learned_gates.callback import trainer_callback
from headcount.learned_gates.gates import Gates, learning

ROUNDING = 1e-6  # of gates, which are float32, and of what is trained through them; a step of a weight has 1e-4
EXAMPLES = Path(__file__).parents[2] / "examples"


class Rows(torch.utils.data.Dataset):
    def __init__(self, one: Planted, count: int) -> None:
        self.batch = one.draw(count, 7)

    def __len__(self) -> int:
        return len(self.batch["labels"])

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {name: value[row] for name, value in self.batch.items()}


def trainer(one: Planted, folder: Path, *callbacks: TrainerCallback, rows: int = 96, **settings: Any) -> Trainer:
    """Eight examples at a time: 12 steps in one epoch, without a single log unless asked for."""
    basics = {"per_device_train_batch_size": 8, "num_train_epochs": 1, "learning_rate": 1e-4, "report_to": []}
    basics |= {"save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no"}
    arguments = TrainingArguments(str(folder), **{**basics, **settings})
    data = Rows(one, rows)
    return Trainer(one.model, arguments, train_dataset=data, eval_dataset=data, callbacks=list(callbacks))


def trained(
    one: Planted, folder: Path, *others: TrainerCallback, resume: Any = None, **settings: Any
) -> tuple[Any, Gates]:
    method = settings.pop("method", "subset")
    asked = {name: settings.pop(name) for name in ("pipelined", "steps") if name in settings}
    with learning(one.model, method, keep=3, **asked) as gates:
        made = trainer(one, folder, trainer_callback(gates), *others, **settings)
        made.train(resume_from_checkpoint=resume)
    return made, gates


def twins(count: int) -> list[Planted]:
    """The same model so many times, in float64: in float32, Adam makes steps of what is rounded differently."""
    one = planted(0)
    one.model.double()
    return [one._replace(model=copy.deepcopy(one.model)) for _ in range(count)]


class Stop(TrainerCallback):
    """Ends the training after a step, as if it had been killed there."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop = control.should_training_stop or state.global_step == self.step


# --- in step ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 12), (2, 6), (5, 3)])
def test_gates_take_one_step_per_optimiser_step(accumulate: int, steps: int, tmp_path: Path) -> None:
    made, gates = trained(planted(0), tmp_path, gradient_accumulation_steps=accumulate)
    assert gates.done == gates.steps == made.state.global_step == steps
    assert len(gates.plan()) == 12 - 3


def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
        return cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    found = []
    for one, size, accumulate in zip(twins(2), (8, 4), (1, 2), strict=True):
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulate}
        with learning(one.model, "l0", l0=0.0, start="published") as gates:  # gates in between have gradients
            made = trainer(one, tmp_path, trainer_callback(gates), max_steps=1, **settings)
            made.compute_loss_func = loss
            made.train()
        found.append(gates.state()["adam.exp_avg"])  # after one step a tenth of the gradient
    assert close(*found, 1e-8)
    assert float(found[0].abs().max()) > 1e-3, "two times nothing would be equal too"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_activations_give_the_same_gates(reentrant: bool, tmp_path: Path) -> None:
    one, other = twins(2)
    _, plain = trained(one, tmp_path)
    kwargs = {"gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    _, checkpointed = trained(other, tmp_path, gradient_checkpointing=True, **kwargs)
    assert close(plain.weights, checkpointed.weights, ROUNDING)
    assert plain.plan() == checkpointed.plan()


def test_a_trainer_is_a_plain_loop(tmp_path: Path) -> None:
    one, other = twins(2)
    settings = {"lr_scheduler_type": "constant", "max_grad_norm": 0.0, "optim": "adamw_torch"}
    _, gates = trained(one, tmp_path, **settings)
    order = [batch["input_ids"] for batch in trainer(other, tmp_path).get_train_dataloader()]
    rows = {tuple(row.tolist()): label for row, label in zip(*Rows(one, 96).batch.values(), strict=True)}
    optimizer = torch.optim.AdamW(other.model.parameters(), lr=1e-4, weight_decay=0.0)
    with learning(other.model.train(), "subset", keep=3, steps=12) as plain:
        for ids in order:
            labels = torch.stack([rows[tuple(row.tolist())] for row in ids])
            other.model(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            plain.step()
    assert close(plain.weights, gates.weights, ROUNDING)
    for (name, mine), theirs in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
        assert close(mine, theirs, ROUNDING), name


@pytest.mark.parametrize("method", ["subset", "l0", "movement"])
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_trainer_finds_the_planted_heads(method: str, pipelined: bool, tmp_path: Path) -> None:
    one = planted(1)
    before = copy.deepcopy(one.model)
    rows = 1920 if method == "l0" else 640  # 120 steps, as its gates are drawn at random, and 40
    _, gates = trained(one, tmp_path, method=method, pipelined=pipelined, rows=rows, per_device_train_batch_size=16)
    assert frozenset(gates.units) - gates.plan().units == one.essential
    assert same_weights(one.model, before) == pipelined
    assert all(parameter.requires_grad for parameter in one.model.parameters())


def test_evaluation_during_training_is_that_of_the_plan(tmp_path: Path) -> None:
    one, seen = planted(0), []

    class Look(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, *, metrics: dict[str, float], **others: Any) -> None:
            other = planted(0)
            other.model.load_state_dict(one.model.state_dict())
            with hc.masked(other.model, gates.plan()):
                seen.append((metrics["eval_loss"], trainer(other, tmp_path / "other").evaluate()["eval_loss"]))

    with learning(one.model, "l0", keep=3) as gates:
        trainer(one, tmp_path, trainer_callback(gates), Look(), eval_strategy="steps", eval_steps=4).train()
    assert len(seen) == 3
    assert all(during == pytest.approx(closed, rel=1e-5) for during, closed in seen)
    assert len({round(during, 3) for during, _ in seen}) == 3


def test_logs_say_how_many_gates_are_open(tmp_path: Path) -> None:
    made, gates = trained(planted(0), tmp_path, logging_strategy="steps", logging_steps=4)
    opened = [entry["open_gates"] for entry in made.state.log_history if "loss" in entry]
    assert len(opened) == 3
    assert opened == sorted(opened, reverse=True)
    assert opened[-1] == gates.expected() == 3
    assert opened[0] < 12


# --- checkpoints --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["subset", "l0", "movement"])
def test_interrupted_and_resumed_is_uninterrupted(method: str, tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 5, "method": method}
    uninterrupted, interrupted, one = twins(3)
    whole, ended = trained(uninterrupted, tmp_path / "a", **saving)
    trained(interrupted, tmp_path / "b", Stop(7), **saving)
    (tmp_path / "b" / "checkpoint-5").rename(tmp_path / "moved")
    again, resumed = trained(one, tmp_path / "c", resume=str(tmp_path / "moved"), **saving)
    assert resumed.done == again.state.global_step == 12
    mine, theirs = resumed.state(), ended.state()
    assert close_weights(mine, theirs, ROUNDING)
    assert resumed.plan() == ended.plan()
    assert close_weights(one.model, whole.model, ROUNDING)


def test_the_best_model_comes_with_its_own_gates(tmp_path: Path) -> None:
    class Judge(TrainerCallback):
        """The second of three evaluations is the best."""

        def on_evaluate(self, args: Any, state: Any, control: Any, *, metrics: dict[str, float], **others: Any) -> None:
            metrics["eval_loss"] = abs(state.global_step - 8.0)

    saving = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4}
    made, gates = trained(planted(0), tmp_path, Judge(), load_best_model_at_end=True, **saving)
    assert Path(made.state.best_model_checkpoint).name == "checkpoint-8"
    assert gates.done == 8


def test_a_checkpoint_has_nothing_of_the_gates_but_an_entry_in_its_record(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 12}
    trained(planted(0), tmp_path / "with", **saving)
    trainer(planted(0), tmp_path / "without", **saving).train()
    names = [sorted(p.name for p in (tmp_path / place / "checkpoint-12").iterdir()) for place in ("with", "without")]
    assert names[0] == names[1]
    for file in ("optimizer.pt", "scheduler.pt"):
        one, two = (torch.load(tmp_path / place / "checkpoint-12" / file) for place in ("with", "without"))
        assert str(one.keys()) == str(two.keys())
        assert [len(g["params"]) for g in one.get("param_groups", [])] == [
            len(g["params"]) for g in two.get("param_groups", [])
        ]
    kept = [
        json.loads((tmp_path / place / "checkpoint-12/trainer_state.json").read_text()) for place in ("with", "without")
    ]
    assert kept[0]["stateful_callbacks"].keys() - kept[1]["stateful_callbacks"].keys() == {"HeadcountGates"}
    hc.find(type(planted(0).model).from_pretrained(tmp_path / "with" / "checkpoint-12"))  # an ordinary model


def test_a_training_without_gates_afterwards_is_as_if_they_had_never_been(tmp_path: Path) -> None:
    one, fresh = twins(2)
    untouched = Fingerprint(one.model)
    with learning(one.model, "subset", keep=3, pipelined=True) as gates:
        trainer(one, tmp_path, trainer_callback(gates)).train()
    one.model.eval()
    assert set(untouched.changed()) <= {"config"}  # in which Trainer switches caches off
    for model in (one, fresh):
        trainer(model, tmp_path).train()
    assert close_weights(one.model, fresh.model, ROUNDING)


def test_resuming_from_a_checkpoint_without_gates_is_refused(tmp_path: Path) -> None:
    trainer(planted(0), tmp_path, save_strategy="steps", save_steps=5).train()
    with says(BadCheckpoint, about="no gates"):
        trained(planted(0), tmp_path, resume=True)


@pytest.mark.parametrize("what", [{}, {"packed": 3}, {"packed": "!"}, {"packed": "AAAA"}])
def test_damaged_gates_are_refused(what: dict[str, Any], tmp_path: Path) -> None:
    trained(planted(0), tmp_path, save_strategy="steps", save_steps=10)
    file = tmp_path / "checkpoint-10" / "trainer_state.json"
    kept = json.loads(file.read_text())
    kept["stateful_callbacks"]["HeadcountGates"]["attributes"] = what
    file.write_text(json.dumps(kept))
    with says(BadCheckpoint, about="damaged"):
        trained(planted(0), tmp_path, resume=str(file.parent))


# --- what it refuses ----------------------------------------------------------------------------------------------------


def test_a_schedule_longer_than_the_training_is_refused(tmp_path: Path) -> None:
    with says(Refused, about="13 steps"):
        trained(planted(0), tmp_path, steps=13)
    _, gates = trained(planted(0), tmp_path, steps=8)
    assert (gates.steps, gates.done) == (8, 12)


def test_gates_that_have_learned_already_are_refused(tmp_path: Path) -> None:
    one = planted(0)
    with learning(one.model, "subset", keep=3) as gates:
        trainer(one, tmp_path, trainer_callback(gates)).train()
        with says(Refused, about="12 steps"):
            trainer(one, tmp_path, trainer_callback(gates)).train()


@pytest.mark.parametrize("setting", ["fp16", "auto_find_batch_size"])
def test_what_gates_cannot_follow_is_refused(setting: str, tmp_path: Path) -> None:
    one = planted(0)
    with learning(one.model, "subset", keep=3) as gates:
        made = trainer(one, tmp_path, trainer_callback(gates))
        setattr(made.args, setting, True)
        with says(Refused, about=setting):
            made.callback_handler.on_train_begin(made.args, made.state, made.control)


def test_reentrant_checkpoints_of_a_frozen_model_are_refused(tmp_path: Path) -> None:
    checkpointed = {"gradient_checkpointing": True, "pipelined": True}
    with says(Refused, about="use_reentrant"):
        trained(planted(0), tmp_path, gradient_checkpointing_kwargs={"use_reentrant": True}, **checkpointed)
    kwargs, (one, other) = {"use_reentrant": False}, twins(2)
    _, gates = trained(one, tmp_path, method="l0", gradient_checkpointing_kwargs=kwargs, **checkpointed)
    _, plain = trained(other, tmp_path, method="l0", pipelined=True)
    assert close(gates.weights, plain.weights, ROUNDING)


# --- examples -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["learn_gates.py", "learn_with_trainer.py"])
def test_examples_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert "32 of 48 heads" in capsys.readouterr().out
