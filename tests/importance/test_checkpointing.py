"""Gradient checkpointing: the same scores with less memory, and a model that is as it was."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import alike, close
from helpers.small_models import class_loss, class_task, classifier, closable, ragged_texts, zoo_task
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import headcount as hc
from headcount.importance.checkpointing import checkpointing
from headcount.importance.gradients import PARTS, contributions


@pytest.mark.parametrize("name", [name for name in zoo.ZOO if name != "fsmt"])
def test_contributions_are_the_same(name: str) -> None:
    model, task = zoo_task(name)
    anatomy = hc.find(model)
    if not anatomy.stacks:
        with says(hc.errors.Refused, about="none can be checkpointed"), checkpointing():
            contributions(model, anatomy, anatomy.sites, task)
        return
    parts = [*anatomy.sites, *closable(model, anatomy)]
    plain = contributions(model, anatomy, parts, task)
    before = Fingerprint(model)
    with checkpointing():
        twice = contributions(model, anatomy, parts, task)
    for kind in PARTS:
        for part in parts:
            one, other = getattr(plain, kind)[part.name], getattr(twice, kind)[part.name]
            assert close(np.nan_to_num(one), np.nan_to_num(other), 1e-4), (kind, part.name)  # sums of float32
    if name in ("bert", "gpt2", "bart"):  # others keep what they saw last
        assert before.changed() == []


@pytest.mark.parametrize("by", ["taylor", "fisher", "gradient-activation"])
def test_scores_are_the_same(by: str) -> None:
    model, task = classifier(), ragged_texts()
    task = hc.data.Task(**{**vars(task), "goal": lambda m, b: (m(b["input_ids"]).logits, b["labels"])})
    for units in ("heads,neurons", "layers") if by != "gradient-activation" else ("heads",):
        plain = hc.score(model, task, by, units=units)
        assert close(hc.score(model, task, by, units=units, checkpointing=True).raw, plain.raw)


def test_every_layer_runs_twice_and_nothing_is_held_from_the_first_time() -> None:
    """What writers are given is gone once the forward pass is over, and there again, layer by layer, on the way back."""
    model, task = classifier(3), class_task(3)
    runs: list[int] = []
    given: list[StorageWeakRef] = []
    alive: list[int] = []

    def see(_: nn.Module, args: Any) -> None:
        runs.append(1)
        given.append(StorageWeakRef(args[0].untyped_storage()))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        out = class_loss(model, batch)
        gc.collect()
        alive.append(sum(not one.expired() for one in given))
        return out

    task = class_task(3, loss=loss)
    handles = [site.writer.register_forward_pre_hook(see) for site in hc.find(model)]
    anatomy = hc.find(model)
    counts = {}
    for on in (False, True):
        with checkpointing(on):
            given.clear(), runs.clear(), alive.clear()
            contributions(model, anatomy, anatomy.sites, task)
            counts[on] = (len(runs), alive[-1])
    for handle in handles:
        handle.remove()
    forwards = {False: 3, True: 5}  # two tell whether examples see each other, two whether a cache matters
    assert counts[False][0] == 6 * forwards[False]
    runs_and_held = counts[True]
    assert runs_and_held[0] == 6 * (forwards[True] + 1)
    assert runs_and_held[1] <= 1  # the first of all, where the graph begins
    assert counts[False][1] == 6


def test_a_layer_that_keeps_a_state_is_refused() -> None:
    model, task = classifier(), class_task(3)
    layer, calls = model.bert.encoder.layer[1], []
    right = layer.forward

    def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return right(hidden_states * (1 + len(calls) % 7), *args, **kwargs)

    layer.forward = forward
    with says(hc.errors.Refused, about="when it runs a second time"):
        hc.score(model, task, checkpointing=True)
    assert layer.forward is forward


def test_a_model_that_computes_something_else_without_its_cache_is_refused() -> None:
    model, task = zoo_task("fsmt")
    with says(hc.errors.Refused, about="without its cache"):
        hc.score(model, task, checkpointing=True)
    assert model.config.use_cache


def test_wrong_requests() -> None:
    with says(hc.errors.BadPlan, about="have checkpointing; wanda has none"):
        hc.score(classifier(), class_task(3), "wanda", checkpointing=True)
    task = hc.data.Task(**{**vars(class_task(3)), "goal": lambda m, b: (m(b["input_ids"]).logits, b["labels"])})
    with says(hc.errors.Refused, about="leave checkpointing out"), checkpointing():
        hc.score(classifier(), task, "lrp-epsilon")


def test_the_commands_take_it(tmp_path: Path) -> None:
    from helpers.small_models import WORDS, ran, ran_json, word_tokenizer

    tokenizer = word_tokenizer(WORDS)
    classifier(2, vocab_size=len(tokenizer), num_labels=2).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [f"{WORDS[n % 16]} {WORDS[n * 7 % 15]} {WORDS[n * 3 % 13]}\t{n % 2}" for n in range(24)]
    (tmp_path / "data.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    start = ["score", tmp_path / "model", "--data", tmp_path / "data.tsv"]
    plain = ran_json(*start, "-o", tmp_path / "plain")
    twice = ran_json(*start, "--checkpointing", "-o", tmp_path / "twice")
    assert alike(plain["sites"], twice["sites"])
    for command in ("score", "curve", "prune"):
        with_random = [command, *start[1:], "--by", "random", "--checkpointing", "-o", tmp_path / f"{command}-random"]
        if command == "score":
            with says(hc.errors.BadPlan, about="random has none"):
                ran(*with_random)
        else:
            done = ran(*with_random)
            assert done.exit_code == 2, done.output
    assert ran("curve", *start[1:], "--checkpointing", "--step", "50%", "-o", tmp_path / "curve").exit_code == 0
    how = ["--remove", "1", "--dry-run", "--checkpointing", "--brake", "off", "--run", tmp_path / "prune"]
    assert ran("prune", *start[1:], *how).exit_code == 0
