"""Every method finds the heads that are known to matter, in seconds; and they do matter, alone and while weights learn."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers.planted_models import Planted, planted, planted_translator
from helpers.same import same_weights

import headcount as hc
from headcount.learned_gates.gates import Gates, learning
from headcount.learned_gates.methods import PUBLISHED

KEEP = {"keep": 3}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "l0": ("l0", KEEP),
    "l0, published start": ("l0", {**KEEP, **PUBLISHED["l0"], "steps": 120}),  # its gates begin wide open
    "subset": ("subset", KEEP),
    "subset, published": ("subset", {**KEEP, **PUBLISHED["subset"]}),
    "movement": ("movement", KEEP),
}


def learned(one: Planted, method: str, *, joint: bool, steps: int = 60, **settings: Any) -> Gates:
    """Gates after so many steps of 32 fresh examples, with the weights learning along or frozen."""
    model = one.model.train()
    model.requires_grad_(joint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with learning(model, method, steps=steps, pipelined=not joint, **settings) as gates:
        for step in range(steps):
            model(**one.draw(32, step)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            gates.step()
    model.eval().requires_grad_(True)
    return gates


def kept(gates: Gates) -> frozenset[hc.Unit]:
    return frozenset(gates.units) - gates.plan().units


def only_these_matter(one: Planted) -> bool:
    """Whether half of the answers are wrong without any of the essential heads, and none without any other or all others."""
    found = hc.ablate(one.model, one.task)
    for name, comparison in zip(found.names, found.comparisons(), strict=True):
        if hc.Plan.of(name).units <= one.essential:
            if comparison.damage < 0.4:
                return False
        elif comparison.damage > 0.01:
            return False
    others = " ".join(name for name in found.names if not hc.Plan.of(name).units <= one.essential)
    with hc.masked(one.model, others):
        return hc.evaluate(one.model, one.task).value > 0.99


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [planted, planted_translator])
def test_the_planted_heads_matter_and_no_others(make: Any, seed: int) -> None:
    one = make(seed)
    assert len(one.essential) == 3
    assert hc.evaluate(one.model, one.task).value > 0.99
    assert only_these_matter(one)


def test_planted_heads_differ_from_seed_to_seed() -> None:
    assert len({planted(seed).essential for seed in range(4)}) > 1


@pytest.mark.parametrize("joint", [False, True], ids=["pipelined", "joint"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_the_planted_heads(name: str, joint: bool) -> None:
    method, settings = METHODS[name]
    one = planted(1)
    before = copy.deepcopy(one.model)
    gates = learned(one, method, joint=joint, seed=1, **settings)
    assert kept(gates) == one.essential
    assert gates.plan().units == hc.plan(gates.scores(), remove=9).units
    if joint:
        assert only_these_matter(one), "the weights learned a way around"
    else:
        assert same_weights(one.model, before), "as they were set, where only these matter"


def test_a_price_finds_them_without_being_told_how_many() -> None:
    one = planted(2)
    gates = learned(one, "l0", joint=False, steps=250, l0=0.01)
    assert kept(gates) == one.essential


def test_hard_gates_find_them_too() -> None:
    one = planted(0)
    gates = learned(one, "subset", joint=True, form="straight-through", keep=3)
    assert kept(gates) == one.essential


@pytest.mark.parametrize("method", ["l0", "subset", "movement"])
@pytest.mark.parametrize("only", [(), "cross"])
def test_they_are_found_in_the_cross_attentions_of_a_translator(method: str, only: Any) -> None:
    one = planted_translator(1)
    gates = learned(one, method, joint=False, keep=3, only=only)
    assert len(gates.units) == (8 if only else 24)
    assert kept(gates) == one.essential


@pytest.mark.parametrize("keep", [1, 2, 5, 12])
def test_a_budget_that_does_not_fit_keeps_some_of_them_or_all(keep: int) -> None:
    one = planted(3)
    found = kept(learned(one, "subset", joint=False, keep=keep))
    assert len(found) == keep
    assert found <= one.essential or found >= one.essential


def test_what_was_learned_can_be_cut() -> None:
    one = planted(0)
    plan = learned(one, "subset", joint=False, keep=3).plan()
    hc.cut(one.model, plan, check={"input_ids": one.draw(8, 0)["input_ids"]})
    assert hc.evaluate(one.model, one.task).value > 0.99
