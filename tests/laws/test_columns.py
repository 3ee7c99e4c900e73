"""The law with other numbers in the columns that stay: cut == masked with these columns swapped in, on every family."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.same import close, same_weights
from torch import Tensor, nn

import headcount as hc
from headcount.model.cutting import surgery
from headcount.model.matrices import Matrix
from laws.test_cut_equals_masked import PLANS, built, cuttable, state
from laws.test_fill import OWN_MATRICES

FAMILIES = list(zoo.ZOO)
BOTH = ["bert", "gpt2", "llama", "bart", "t5", "opt", "vit", "torch-encoder", "gemma2", "swin"]
Numbers = dict[str, Tensor]


def left_of(site: hc.model.Site, plan: hc.Plan) -> list[int]:
    """The columns of the units that stay."""
    gone = set(plan.by_site().get(site.name, ()))
    return [
        place * site.width + n for place, unit in enumerate(site.ids) if unit not in gone for n in range(site.width)
    ]


def drawn(model: nn.Module, anatomy: hc.model.Anatomy, plan: hc.Plan, biased: bool) -> tuple[Numbers, Numbers]:
    """Random columns and biases for everything that can be cut."""
    generator = torch.Generator().manual_seed(1)
    columns, bias = {}, {}
    for site in (*cuttable(model, anatomy, "head"), *cuttable(model, anatomy, "neuron")):
        rows = site.columns.shape[0]
        if site.writer.weight.dim() > 2 and site.writer.weight.numel() != rows * site.columns.shape[1]:
            continue  # a matrix for every expert
        columns[site.name] = 0.3 * torch.randn(rows, len(left_of(site, plan)), generator=generator)
        if biased:
            bias[site.name] = torch.randn(rows, generator=generator)
    return columns, bias


def swapped_in(model: nn.Module, plan: hc.Plan, columns: Numbers, bias: Numbers) -> nn.Module:
    """A copy of the model, whole, with these numbers in its weights, column by column."""
    model = copy.deepcopy(model)
    anatomy = hc.find(model)
    with torch.no_grad():
        for name, numbers in columns.items():
            site = anatomy[name]
            weight = getattr(site.columns.owner, site.columns.weight)
            for own, column in zip(numbers.T, left_of(site, plan), strict=True):
                if site.columns.row_axis == 1:
                    weight[column] = own
                else:
                    weight.view(site.columns.shape)[:, column] = own
        for name, numbers in bias.items():
            writer = anatomy[name].writer
            writer.bias = nn.Parameter(numbers + (0 if writer.bias is None else writer.bias))
    return model


def law_cut_equals_swapped(name: str, how: str) -> None:
    model, inputs, anatomy = built(name)
    plan = PLANS[how](model, anatomy)
    columns, bias = drawn(model, anatomy, plan, biased=name not in OWN_MATRICES)
    if not columns:
        pytest.skip("nothing of this kind can be cut here")
    with hc.masked(model, plan):
        plain = zoo.output(model, inputs)
    other = swapped_in(model, plan, columns, bias)
    with hc.masked(other, plan):
        want = zoo.output(other, inputs)
    assert not close(want, plain)
    hc.cut(model, plan, columns=columns, bias=bias, check=inputs)
    assert close(zoo.output(model, inputs), want)


@pytest.mark.parametrize("name", FAMILIES)
def test_cut_equals_masked_with_the_columns_swapped_in(name: str) -> None:
    law_cut_equals_swapped(name, "everything")


@pytest.mark.parametrize("name", BOTH)
def test_a_site_that_loses_everything_keeps_the_bias(name: str) -> None:
    law_cut_equals_swapped(name, "whole_sites")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_law_sees_columns_in_the_wrong_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Matrix.with_numbers
    monkeypatch.setattr(Matrix, "with_numbers", lambda self, held, numbers: right(self, held, numbers.flip(1)))
    with pytest.raises((AssertionError, hc.errors.CheckFailed)):
        law_cut_equals_swapped(name, "everything")


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "vit", "torch-encoder"])
def test_what_was_saved_loads_again(name: str, tmp_path: Path) -> None:
    model, inputs, anatomy = built(name)
    plan = PLANS["everything"](model, anatomy) | PLANS["whole_sites"](model, anatomy)
    whole = copy.deepcopy(model)
    columns, bias = drawn(model, anatomy, plan, biased=True)
    hc.cut(model, plan, columns=columns, bias=bias)
    want = zoo.output(model, inputs)
    hc.save(model, tmp_path / "smaller")
    again = hc.load(tmp_path / "smaller", into=None if hasattr(model, "config") else whole)
    assert same_weights(model, again)
    assert close(zoo.output(again, inputs), want)


def test_columns_go_with_a_fill_and_without_any_unit_that_goes() -> None:
    model, inputs, anatomy = built("llama")
    plan = anatomy.plan("0:1 1.mlp:0-9")
    columns, bias = drawn(model, anatomy, plan, biased=True)
    fill = {"0": torch.ones(64), "1.mlp": torch.ones(anatomy["1.mlp"].of)}
    other = swapped_in(model, plan, columns, bias)
    with hc.masked(other, plan, fill=fill):
        want = zoo.output(other, inputs)
    hc.cut(model, plan, columns=columns, bias=bias, fill=fill, check=inputs)
    assert close(zoo.output(model, inputs), want)
    model, inputs, anatomy = built("gpt2")
    columns, bias = drawn(model, anatomy, hc.Plan(), biased=True)
    other = swapped_in(model, hc.Plan(), columns, bias)
    hc.cut(model, hc.Plan(), columns=columns, bias=bias)
    assert close(zoo.output(model, inputs), zoo.output(other, inputs))
    assert "headcount" not in vars(model.config) or not hc.removed(model)


def test_numbers_of_another_shape_are_refused_and_a_wrong_cut_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, anatomy = built("llama")
    plan, before = anatomy.plan("0:1 1.mlp:0-9"), state(model)
    columns, bias = drawn(model, anatomy, plan, biased=True)
    for wrong, about in (
        ({"columns": {"0": torch.zeros(3, 3)}}, "shape (32, 56)"),
        ({"columns": {"0": torch.full((32, 56), torch.nan)}}, "finite numbers"),
        ({"columns": {"layers": torch.zeros(2)}}, "name attentions and MLPs"),
        ({"bias": {"0": torch.zeros(3)}}, "each of the 32 rows"),
        ({"columns": columns, "scale": {"0": torch.ones(8)}}, "multiply the columns by the scale"),
    ):
        with says(hc.errors.BadPlan, about=about):
            hc.cut(model, plan, **wrong)
    monkeypatch.setattr(surgery.Changes, "of_bias", lambda *_: None)
    with says(hc.errors.CheckFailed, about="differs from the masked one"):
        hc.cut(model, plan, columns=columns, bias=bias, check=inputs)
    assert same_weights(before, model)


def test_what_cannot_be_refitted_is_refused_by_name() -> None:
    model, _, anatomy = built("falcon")
    plan = anatomy.plan("0:1")
    columns, bias = drawn(model, anatomy, plan, biased=True)
    with says(hc.errors.Refused, about="no bias and cannot be given one"):
        hc.cut(model, plan, columns=columns, bias=bias)
    model, _, anatomy = built("wavlm")
    with says(hc.errors.Refused, about="cannot be refitted"):
        hc.cut(model, "0.mlp:1", columns={"0": torch.zeros(anatomy["0"].columns.shape)})
