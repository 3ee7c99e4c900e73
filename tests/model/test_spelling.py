"""What people write for units and gates, each read as the one thing it can mean; and one sentence where it has no such."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.same import close

import headcount as hc
from headcount import Plan, Unit
from headcount.errors import BadPlan, NotFound

BERT = hc.find(zoo.build("bert")[0])  # two layers of four heads, each with an MLP
T5 = hc.find(zoo.build("t5")[0])
MASK = [[1, 1, 0, 1], [0, 1, 1, 1]]

FORMS = [
    ((1, 2), "1:2"),
    (("1", 2), "1:2"),
    (("1", "2"), "1:2"),
    ((1, -1), "1:3"),
    ((1, [0, 2]), "1:0,2"),
    ((1, range(3)), "1:0-2"),
    ((np.int64(1), np.int64(2)), "1:2"),
    ((torch.tensor(1), torch.tensor(2)), "1:2"),
    ((1, np.array([0, 2])), "1:0,2"),
    (("layers", 0), "layers:0"),
    ([(1, 2), (0, 3)], "1:2 0:3"),
    (((1, 2), (0, 3)), "1:2 0:3"),
    ({(1, 2), (0, 3)}, "1:2 0:3"),
    ({1: [2]}, "1:2"),
    ({1: 2, "0": "1-2"}, "1:2 0:1-2"),
    ({1: {2}, 0: torch.tensor([3])}, "1:2 0:3"),
    ({"1.mlp": range(5)}, "1.mlp:0-4"),
    ({1: "*"}, "1:0-3"),
    ({}, ""),
    ([], ""),
    ("1:2,0:3", "1:2 0:3"),
    ("1:2, 0:3", "1:2 0:3"),
    ("1:0-1,3,0:3", "1:0-1,3 0:3"),
    ("1:2 ,0:3", "1:2 0:3"),
    ("*:2", "0:2 1:2"),
    ("*:-1", "0:3 1:3"),
    ("*:*", "0:0-3 1:0-3"),
    ("*.mlp:0-1", "0.mlp:0-1 1.mlp:0-1"),
    ("1:-1", "1:3"),
    ("1:-2,-1", "1:2-3"),
    ("1:-4", "1:0"),
    ("layers:-1", "layers:1"),
    ("L1H2", "1:2"),
    ("l1h2 L0H3", "1:2 0:3"),
    ("L1H2,L0H3", "1:2 0:3"),
    (["L1H2", (0, 3), {1: [0]}, Unit("0", 1)], "1:0,2 0:1,3"),
    (MASK, "0:2 1:0"),
    (np.array(MASK), "0:2 1:0"),
    (np.array(MASK, dtype=bool), "0:2 1:0"),
    (torch.tensor(MASK), "0:2 1:0"),
    (torch.tensor(MASK, dtype=torch.bfloat16, requires_grad=True), "0:2 1:0"),
    ([torch.tensor(row) for row in MASK], "0:2 1:0"),
    ([np.array(row) for row in MASK], "0:2 1:0"),
    (Plan.of((1, 2)), "1:2"),
    (Plan("1:2 0:3"), "1:2 0:3"),
    (Plan([(1, 2)]), "1:2"),
    (Plan({1: [2]}), "1:2"),
    (Plan.removing({1: [2]}), "1:2"),
    (Unit(1, 2), "1:2"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("units", "text"), FORMS, ids=[repr(form) for form, _ in FORMS])
def test_what_people_write_means_these_units(units: Any, text: str) -> None:
    assert BERT.plan(units) == Plan.of(*text.split())


@pytest.mark.parametrize(
    "units",
    ["*:9", "1:9", "1:-5", "1:--1", "1:-1-2", "1:1,1", "*:", "**", "L1", "1.2", "L1H9", "x*:0",
     [3, 7], 3, 3.5, True, None, (1, 2, 3), (1, 2.0), (1, True), (True, 2), (1, None), (1.0, 2), {1: 2.5}, {1: None},
     {1: [True, False, True, True]}, {1: torch.tensor([1.0, 0.0, 1.0, 1.0])}, {None: [1]}, {(1, 2): 3}, [[1, 2], [0, 3]],
     np.array([1, 2]), torch.ones(4), torch.ones(3, 4), torch.ones(2, 3), torch.full((2, 4), 0.5), torch.ones(2, 4, 1),
     [[1, 1, 0, 1], [0, 1, float("nan"), 1]], [MASK[0], MASK[1][:3]], "x:0", {9: [0]}, b"1:2", 1j, [[]]],
    ids=repr,
)  # fmt: skip
def test_what_has_no_one_meaning_is_one_sentence(units: Any) -> None:
    with says(BadPlan, NotFound):
        BERT.plan(units)


def test_a_pattern_is_what_is_there_and_of_one_kind() -> None:
    model, _ = zoo.build("bert")
    hc.cut(model, "1:3")
    anatomy = hc.find(model)
    assert anatomy.plan("*:3") == Plan("0:3")
    assert anatomy.plan("0:-1") == Plan("0:3")
    with says(BadPlan, about="has been cut already"):
        anatomy.plan("1:-1")
    with says(BadPlan, about="several kinds"):
        anatomy.plan("1*:0")
    assert len(T5.plan("*.cross:0")) == 2
    assert len(T5.plan("*:0")) == len(T5.heads)


def test_a_mask_of_a_cut_model_may_have_a_column_for_each_head_that_was() -> None:
    model, _ = zoo.build("bert")
    hc.cut(model, "0:0 1:3")
    anatomy = hc.find(model)
    assert anatomy.plan(MASK) == Plan("0:2 1:0")
    assert anatomy.plan([[0, 1, 1], [1, 1, 0]]) == Plan("0:1 1:2")
    assert anatomy.plan([[0, 1, 1, 1], [1, 1, 1, 0]]) == Plan(), "those are gone already"


@pytest.mark.parametrize("units", [(0, 1), {0: [1]}, "L0H1", torch.ones(6, 4)], ids=repr)
def test_a_layer_of_several_attentions_has_to_be_named(units: Any) -> None:
    with says(BadPlan, NotFound, about="encoder.0"):
        T5.plan(units)


@pytest.mark.parametrize("units", ["3:*", "*:7", "3:-1", (3, -1), {"*": [1]}, [[0, 1], [1, 1]]], ids=repr)
def test_a_plan_without_a_model_says_that_it_needs_one(units: Any) -> None:
    with says(BadPlan, about="model"):
        Plan.of(units)


@pytest.mark.parametrize("units", [(0, 1), {0: [1]}, "L0H1", "0:1,1:2", [[1, 0, 1, 1], [1, 1, 1, 1]]], ids=repr)
def test_every_verb_reads_them(units: Any) -> None:
    model, inputs = zoo.build("bert")
    plan = BERT.plan(units)
    with hc.masked(model, plan):
        want = zoo.output(model, inputs)
    with hc.masked(model, units) as got:
        assert got == plan
        assert close(zoo.output(model, inputs), want)
    assert hc.model.parameters_removed(model, units) == hc.model.parameters_removed(model, plan)
    assert hc.cut(model, units) == plan
    assert hc.removed(model) == plan
    assert close(zoo.output(model, inputs), want)


# -- gates -----------------------------------------------------------------------------------------------------------

NUMBERS = [[1.0, 0.5, 0.0, 1.0], [1.0, 1.0, 0.25, 1.0]]
GATES: list[Any] = [
    {0: torch.tensor(NUMBERS[0]), 1: torch.tensor(NUMBERS[1])},
    {"0": NUMBERS[0], 1: tuple(NUMBERS[1])},
    {0: np.array(NUMBERS[0]), np.int64(1): np.array(NUMBERS[1], dtype=np.float16)},
    NUMBERS,
    np.array(NUMBERS),
    torch.tensor(NUMBERS),
    [torch.tensor(row) for row in NUMBERS],
]


@pytest.mark.parametrize("gates", GATES, ids=repr)
def test_gates_as_people_write_them(gates: Any) -> None:
    model, inputs = zoo.build("bert")
    with hc.gated(model, {str(n): torch.tensor(row) for n, row in enumerate(NUMBERS)}):
        want = zoo.output(model, inputs)
    with hc.gated(model, gates) as given:
        assert list(given) == ["0", "1"]
        assert close(zoo.output(model, inputs), want)
    assert not close(zoo.output(model, inputs), want, 1e-3)


def test_the_gradient_of_a_table_of_gates_is_that_of_its_rows() -> None:
    model, inputs = zoo.build("bert")
    table = torch.ones(2, 4, requires_grad=True)
    with hc.gated(model, table):
        zoo.judged(model(**inputs)).square().sum().backward()
    rows = {str(n): torch.ones(4, requires_grad=True) for n in range(2)}
    with hc.gated(model, rows):
        zoo.judged(model(**inputs)).square().sum().backward()
    assert table.grad is not None
    assert close(table.grad, torch.stack([row.grad for row in rows.values()]))  # type: ignore[misc]
    assert table.grad.abs().min() > 0


@pytest.mark.parametrize(
    "gates",
    ["0:1", [1.0, 0.0], torch.ones(4), torch.ones(2, 3), None, 3, {0: [1, 1, 1]}, {0: "1"},
     {0: torch.ones(4), "0": torch.ones(4)}, {9: torch.ones(4)}, {None: torch.ones(4)}],
    ids=repr,
)  # fmt: skip
def test_gates_of_no_meaning_are_one_sentence(gates: Any) -> None:
    model, _ = zoo.build("bert")
    with says(BadPlan, NotFound), hc.gated(model, gates):
        pytest.fail("entered")
