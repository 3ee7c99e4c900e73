"""What tuned plans cost, counted in passes, and which of them are tested."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.passes import counted_passes
from helpers.small_models import class_loss, classifier, texts
from torch import nn

import headcount as hc
from headcount.pruning import plan_tests
from headcount.pruning.tuning import mask_tuning

SIZES = {"score": 200, "select": 64}  # about a tenth of 2048 examples to score on and 640 to test on
ASKED: dict[str, Any] = {"units": "heads,neurons", "multiple": 1, "alpha": 0.2}


def labelled(model: nn.Module, count: int, seed: int) -> hc.data.Task:
    """Texts with the labels that the model gives them, measured by the loss."""
    ids = texts(count, seed=seed)
    with torch.no_grad():
        labels = model(ids).logits.argmax(-1)
    return hc.custom_task([{"input_ids": ids, "labels": labels}], loss=class_loss, batch_size=8)


def asked(model: nn.Module, **more: Any) -> hc.pruning.Choice:
    tasks = {role: labelled(model, count, seed) for seed, (role, count) in enumerate(SIZES.items(), 5)}
    return hc.pruning.choose(model, **ASKED, **tasks, **more)


@pytest.fixture
def in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many examples to judge and to tune on, beside those to score on, as there are in practice."""
    monkeypatch.setattr(plan_tests, "JUDGED", 50)
    monkeypatch.setattr(plan_tests, "calibrate", partial(mask_tuning.calibrate, positions=9 * 33))


def passes_of(model: nn.Module, work: Callable[[], Any]) -> float:
    with counted_passes(model) as passes:
        work()
    return passes.number


@pytest.mark.usefixtures("in_proportion")
@pytest.mark.parametrize("drop", [pytest.param(0.3, marks=pytest.mark.slow), 3.0])
def test_a_promise_about_tuned_plans_takes_at_most_three_times_the_passes(drop: float) -> None:
    model = classifier(4)
    plain = passes_of(model, lambda: asked(model, max_drop=drop, step="5%"))
    tuned = passes_of(model, lambda: asked(model, max_drop=drop, step="5%", tune=True))
    assert tuned <= 3 * plain, (tuned, plain)


@pytest.mark.usefixtures("in_proportion")
def test_finer_steps_cost_a_tuned_promise_little(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier(4)
    coarse, fine = (
        passes_of(model, lambda step=step: asked(model, max_drop=3.0, step=step, tune=True)) for step in ("5%", "1.25%")
    )
    assert fine <= 3 * coarse, (fine, coarse)


def test_no_plan_is_made_ready_twice_and_none_is_chosen_by_the_examples_of_the_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, tuned, measured = classifier(4), [], []
    really, right_measure = plan_tests.tune_mask, plan_tests.measure
    monkeypatch.setattr(
        plan_tests, "tune_mask", lambda m, plan, *a, **how: (tuned.append(plan), really(m, plan, *a, **how))[1]
    )

    def watched(m: nn.Module, task: Any, plans: Any, *, name: str, **how: Any) -> Any:
        measured.append(name)
        return right_measure(m, task, plans, name=name, **how)

    monkeypatch.setattr(plan_tests, "measure", watched)
    choice = asked(model, max_drop=3.0, step="5%", tune=True)
    assert choice.guarantee is not None
    assert len(tuned) == len(set(tuned))
    tests = [name for name in measured if name.startswith("select-") and name != "select-whole"]
    assert len(tests) == len(choice.guarantee.steps), "each plan is tested once, and in the sequence"
    assert len(tests) < 19, "not all plans are"
    counts = [step.removed for step in choice.guarantee.steps]
    assert counts == sorted(counts)
    before_the_first_test = measured[: measured.index(tests[0])]
    rehearsed = {name for name in before_the_first_test if name.startswith("judged")}
    assert rehearsed, "the rehearsal is over before the first test"
    assert [name for name in before_the_first_test if name.startswith("select")] == ["select-whole"]


def test_few_plans_are_all_tested() -> None:
    model = classifier()
    choice = asked(model, max_drop=30.0, step="20%", tune=True)
    plain = asked(model, max_drop=30.0, step="20%")
    assert choice.guarantee is not None
    assert plain.guarantee is not None
    assert [s.removed for s in choice.guarantee.steps] == [s.removed for s in plain.guarantee.steps]
