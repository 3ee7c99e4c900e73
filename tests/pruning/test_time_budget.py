"""Less work in less time: decided from counts and one timed pass, the same however often it is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import says
from helpers.small_models import class_task, classifier
from hypothesis import given
from hypothesis import strategies as st

import headcount as hc
from headcount.data.example_sets import Sets
from headcount.pruning import time_budget
from headcount.pruning.time_budget import STAGES, Work, limits, sample, step_share, within_minutes, work_of
from headcount.runs import Run

PROMISE = Work(2048, select=610, report=262, tune=True)
WORKS = st.builds(
    Work,
    score=st.integers(0, 20_000),
    select=st.sampled_from([0, 100, 5000]),
    report=st.integers(1, 5000),
    step=st.sampled_from([0.01, 0.05, 0.25, 0.5]),
    tune=st.booleans(),
)


@given(WORKS, st.floats(0.1, 1000), st.floats(1e-4, 10))
def test_it_fits_or_all_that_can_be_left_out_is(work: Work, minutes: float, per_pass: float) -> None:
    left = limits(work, minutes, per_pass)
    assert left == limits(work, minutes, per_pass)
    rest = replace(work, score=left.score, step=left.step, tune=left.tune)
    assert rest.takes(per_pass) == left.expected <= max(60 * minutes, work.takes(per_pass))
    if left.expected > 60 * minutes:
        assert left.score <= 128 or not work.score
        assert not left.tune or replace(rest, tune=False).passes >= rest.passes
        assert not work.select or left.step >= min(0.25, 2 * work.step)
        assert "too few even so" in str(left)
    assert left.step >= work.step
    assert left.score <= work.score


@given(WORKS, st.floats(0.1, 500), st.floats(1.01, 10), st.floats(1e-4, 10))
def test_more_time_never_leaves_out_more(work: Work, minutes: float, times: float, per_pass: float) -> None:
    little, much = (limits(work, minutes * factor, per_pass) for factor in (1, times))
    assert much.score >= little.score
    assert much.step <= little.step
    assert much.tune >= little.tune


def test_what_costs_least_quality_goes_first_and_is_said() -> None:
    plenty = limits(PROMISE, 1000, 0.01)
    assert (plenty.score, plenty.step, plenty.tune, plenty.left_out) == (2048, 0.05, True, ())
    assert str(plenty).startswith("nothing had to be left out (about ")
    fewer = limits(PROMISE, PROMISE.takes(0.1) / 60 - 0.1, 0.1)
    assert (fewer.score, fewer.step, fewer.tune) == (1024, 0.05, True)
    assert fewer.left_out == ("1,024 of 2,048 examples to score on were used",)
    least = limits(PROMISE, 0.01, 0.1)
    assert (least.score, least.step, least.tune) == (128, 0.2, False)
    assert least.left_out == (
        "128 of 2,048 examples to score on were used",
        "plans were 20 % apart instead of 5 %",
        "what stays was not tuned",
        "0.01 minutes are too few even so",
    )
    assert [part for part, _ in STAGES][-2:] == ["tune", "score"]


def test_a_tested_plan_costs_its_examples_and_a_tuned_one_much_more() -> None:
    plain = replace(PROMISE, tune=False)
    assert plain.passes == 3 * 2048 + 20 * 610 + 610 + 2 * 262
    assert PROMISE.plans < plain.plans == 20
    assert PROMISE.passes <= 3 * plain.passes
    assert replace(plain, select=0).passes == 3 * 2048 + 2 * 262


def test_a_stopped_run_goes_on_with_what_was_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = classifier(), class_task(300)
    monkeypatch.setattr(time_budget, "OVERHEAD", 0.0)
    work = Work(300, report=20, seconds=0.0)
    with Run.open(tmp_path / "run", {"command": "prune"}) as run:
        monkeypatch.setattr(time_budget, "seconds_per_example", lambda *_: 60.0)
        first = within_minutes(model, 850.0, work, task, run)
        assert first.score == 256
        monkeypatch.setattr(time_budget, "seconds_per_example", lambda *_: 1e-6)  # the machine is calm now
        assert within_minutes(model, 850.0, work, task, run) == first
    assert within_minutes(model, 850.0, work, task).score == 300


def test_a_pass_is_timed_and_the_model_is_as_it_was() -> None:
    model, task = classifier().train(), class_task(40)
    assert 0 < time_budget.seconds_per_example(model, task) < 60
    assert model.training


def test_what_is_counted_is_what_was_asked() -> None:
    task = class_task(40)
    scored, bare = Sets(task, None, task, ""), Sets(None, None, task, "")
    assert work_of(scored, {"by": None, "tune": False}, 72).passes == 3 * 40 + 80
    assert work_of(scored, {"by": "ablation"}, 72).passes == 72 * 40 + 80
    assert work_of(bare, {"by": "magnitude"}, 72).passes == 80
    assert work_of(scored, {"speedup": 1.5}, 72).seconds > work_of(scored, {"speedup": None}, 72).seconds
    assert [step_share(step, 72) for step in ("5%", "0.1", 0.2, 18, "18")] == [0.05, 0.1, 0.2, 0.25, 0.25]


def test_settings_are_those_of_the_limits_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_budget, "seconds_per_example", lambda *_: 1.0)
    task = class_task(300)
    settings = {"by": "fisher", "units": "heads,neurons", "step": "5%", "tune": True, "speedup": None, "least": 1}
    sets = Sets(task, task, task, "split")
    few, changed = time_budget.limited(classifier(), sets, settings, 1.0)
    assert few.score is not None
    assert few.score.size == 128
    assert (few.select, few.report) == (task, task), "what is promised and reported needs all of them"
    assert changed == {"by": "fisher", "units": "heads,neurons", "step": "20%", "tune": False, "least": 1}
    assert few.how.startswith(
        "split; to be done in 1 minutes: 128 of 300 examples to score on were used; plans were 20 %"
    )
    same, unchanged = time_budget.limited(classifier(), sets, settings, 10_000.0)
    assert same.score is task
    assert unchanged == {name: value for name, value in settings.items() if name != "speedup"}


def test_some_examples_are_drawn_by_the_seed() -> None:
    task = class_task(40)
    assert sample(task, 40, 0) is task
    one, again, other = (sample(task, 10, seed) for seed in (0, 0, 1))
    assert one.size == 10
    assert one.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf")])
def test_no_time_at_all_is_refused(minutes: float) -> None:
    with says(hc.errors.BadPlan, about="minutes above 0"):
        limits(PROMISE, minutes, 0.1)
