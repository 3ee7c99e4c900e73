"""Every fill on every family: what is replayed is what ordinary passes give, and a fill that changes nothing changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.same import close
from helpers.small_models import closable, zoo_task

import headcount as hc
from headcount.data.tasks import Task
from headcount.evaluation import evaluator
from headcount.evaluation import replay as replaying
from headcount.evaluation.evaluator import filled
from headcount.interventions import Fill
from headcount.model.stand_ins import StandIn

FAMILIES = list(zoo.ZOO)
POSITIONAL = ("mean-per-position", "resample", "noise", "zero")  # zero at the last position
# parts that do not see examples one by one: routed experts, time before examples, pictures of many sizes in a row
MIXED = {
    "deepseek_v2",
    "deepseek_v3",
    "jetmoe",
    "switch_transformers",
    "fsmt",
    "qwen2_vl",
    "torch-encoder-seq-first",
}
UNCALLED = {"wavlm", "torchvision-swin"}  # the code takes the weight of the output projection, and never calls it


def few_plans(model: Any) -> list[hc.Plan]:
    """The whole model, a head of the first and the last attention, the last MLP, the last layer, and all of these."""
    anatomy = hc.find(model)
    heads = [site for site in anatomy.heads if len(site)]
    each = [heads[0].units[:1], heads[-1].units[-1:], *(site.units for site in anatomy.neurons[-1:])]
    each += [stack.units[-1:] for stack in closable(model, anatomy)[-1:]]
    return [hc.Plan(), *(hc.Plan(frozenset(units)) for units in each), hc.Plan(frozenset(u for us in each for u in us))]


def fill_of(kind: str, task: Task) -> Fill:
    return Fill("zero", at="last") if kind == "zero" else Fill(kind, task, seed=3)


def both(name: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Values with ordinary passes, and with replay."""
    model, task = zoo_task(name)
    plans = few_plans(model)
    measured, fill = filled(model, task, plans, fill_of(kind, task))
    return tuple(hc.evaluation.measure(model, measured, plans, replay=on, fill=fill) for on in (False, True))  # type: ignore[return-value]


def no_two_are_alike(values: list[np.ndarray]) -> bool:
    return not any(close(one, other, 1e-6) for n, one in enumerate(values) for other in values[:n])


def positional(name: str) -> tuple[str, ...]:
    return POSITIONAL if zoo_task(name)[1].size > 1 else ("mean-per-position", "noise", "zero")


@pytest.mark.parametrize(("number", "name"), list(enumerate(FAMILIES)))
def test_replay_gives_what_ordinary_passes_give(number: int, name: str) -> None:
    """The mean in every family, and one of the fills that look at positions, another one in the next family."""
    if name in UNCALLED:
        with says(hc.errors.Refused, about="without calling it"):
            both(name, "mean")
        return
    ordinary, replayed = both(name, "mean")
    assert close(ordinary, replayed, 5e-5)  # a value is the sum of hundreds of rounded numbers
    if name in MIXED:
        for kind in (*POSITIONAL, "counterfactual"):
            with says(hc.errors.Refused, about="does not see examples one by one"):
                both(name, kind)
        return
    kinds = (*positional(name), "counterfactual")
    kind = kinds[number % len(kinds)]
    other, replayed = both(name, kind)
    assert close(other, replayed, 5e-5), kind
    assert close(ordinary[0], other[0])
    assert no_two_are_alike([ordinary, other])


OFTEN = ("bert", "llama", "t5", "vit")


@pytest.mark.parametrize(
    "name",
    [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow)
        for name in FAMILIES
        if name not in MIXED | UNCALLED
    ],
)
def test_every_fill_is_something_else_and_its_own_examples_change_nothing(name: str) -> None:
    values = []
    for kind in ("mean", *positional(name)):
        ordinary, replayed = both(name, kind)
        assert close(ordinary, replayed, 5e-5), kind
        values.append(ordinary)
    assert no_two_are_alike(values)
    ordinary, replayed = both(name, "counterfactual")  # its own examples: what a unit is given is what it had
    for whole in (ordinary, replayed):
        assert close(whole, np.repeat(ordinary[:1], len(ordinary), axis=0), 5e-5)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_the_law_sees_copies_that_are_given_what_is_another_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = StandIn.of

    def rolled(self: StandIn, x: torch.Tensor, call: int) -> Any:
        values, where = right(self, x, call)
        return (values.roll(1, 0) if inside else values), where

    monkeypatch.setattr(StandIn, "of", rolled)
    monkeypatch.setattr(evaluator, "_prove", lambda *_: None)
    inside: list[int] = []
    replayed = replaying.replayed

    def counted(*args: Any, **more: Any) -> Any:
        inside[:] = [1] * (len(args[4]) > 1)
        return replayed(*args, **more)

    monkeypatch.setattr(replaying, "replayed", counted)
    model, task = zoo_task(name)
    plans = [hc.Plan(), *(hc.Plan(frozenset([unit])) for unit in hc.find(model).heads[0].units)]
    measured, fill = filled(model, task, plans, Fill("noise", task))
    ordinary = hc.evaluation.measure(model, measured, plans, replay=False, fill=fill)
    assert not close(ordinary, hc.evaluation.measure(model, measured, plans, fill=fill), 5e-5)
