"""The law with something in the place of what is gone: cut == masked, whatever stands in for the units, on every family."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.same import close, same_weights
from torch import nn

import headcount as hc
from headcount.model.cutting import biases
from laws.test_cut_equals_masked import PLANS, built, state

FAMILIES = list(zoo.ZOO)
OWN_MATRICES = {"falcon", "falcon-mqa", "falcon-gqa", "jetmoe"}  # with matrices of their own code, that have no bias


def filled(anatomy: hc.model.Anatomy, plan: hc.Plan) -> dict[str, torch.Tensor]:
    """Random numbers for each column of the attentions and MLPs of a plan."""
    generator = torch.Generator().manual_seed(1)
    sites = [anatomy[name] for name in plan.by_site()]
    return {s.name: torch.randn(len(s) * s.width, generator=generator) for s in sites if isinstance(s, hc.model.Site)}


@pytest.mark.parametrize("how", ["whole_sites", "everything"])
@pytest.mark.parametrize("name", FAMILIES)
def test_cut_equals_masked_to_the_fill(name: str, how: str) -> None:
    model, inputs, anatomy = built(name)
    plan = PLANS[how](model, anatomy)
    fill = filled(anatomy, plan)
    if not fill:
        pytest.skip("nothing of this kind can be cut here")
    with hc.masked(model, plan):
        zeros = zoo.output(model, inputs)
    with hc.masked(model, plan, fill=fill):
        want = zoo.output(model, inputs)
    assert not close(want, zeros)
    before = state(model)
    if name in OWN_MATRICES:
        with says(hc.errors.Refused, about="no bias and cannot be given one"):
            hc.cut(model, plan, fill=fill)
        assert same_weights(before, model)
        return
    hc.cut(model, plan, fill=fill)
    assert close(zoo.output(model, inputs), want)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart", "t5", "opt", "torch-encoder", "vit"])
def test_what_was_saved_loads_again(name: str, tmp_path: Path) -> None:
    model, inputs, anatomy = built(name)
    plan = PLANS["everything"](model, anatomy) | PLANS["whole_sites"](model, anatomy)
    whole = copy.deepcopy(model)
    hc.cut(model, plan, fill=filled(anatomy, plan))
    want = zoo.output(model, inputs)
    hc.save(model, tmp_path / "smaller")
    again = hc.load(tmp_path / "smaller", into=None if hasattr(model, "config") else whole)
    assert same_weights(model, again)
    assert close(zoo.output(again, inputs), want)
    hc.save(again, tmp_path / "twice")
    once_more = hc.load(tmp_path / "twice", into=None if hasattr(model, "config") else whole)
    assert same_weights(model, once_more)
    assert hc.removed(once_more) == hc.removed(model)


def test_a_second_cut_adds_to_what_the_first_put_there(tmp_path: Path) -> None:
    model, inputs, anatomy = built("llama")
    first, second = hc.Plan.of("0:1 1.mlp:0-9"), hc.Plan.of("0:0 1.mlp:10-19 0.mlp:3")
    fill = filled(anatomy, first | second)
    with hc.masked(model, first | second, fill=fill):
        want = zoo.output(model, inputs)
    hc.cut(model, first, fill=fill)
    kept = hc.find(model)
    left = {}
    for name, values in fill.items():
        site = anatomy[name]
        columns = [site.positions([i])[0] * site.width + c for i in kept[name].ids for c in range(site.width)]
        left[name] = values[columns]
    hc.cut(model, second, fill=left)
    assert close(zoo.output(model, inputs), want)
    assert model.config.headcount["biases"] == ["0", "1.mlp", "0.mlp"]
    hc.save(model, tmp_path / "smaller")
    assert same_weights(hc.load(tmp_path / "smaller"), model)
    hc.cut(model, "layers:0")  # what is gone has no bias to be given
    assert model.config.headcount["biases"] == ["1.mlp"]
    hc.save(model, tmp_path / "smallest")
    assert same_weights(hc.load(tmp_path / "smallest"), model)


def test_stock_folders_are_for_families_that_have_the_bias(tmp_path: Path) -> None:
    plan = {"0.mlp": range(8), "1.mlp": range(8)}
    model, _, anatomy = built("gpt2")
    hc.cut(model, plan, fill=filled(anatomy, anatomy.plan(plan)))
    assert "biases" not in model.config.headcount
    hc.save(model, tmp_path / "gpt2", portable=True)
    model, _, anatomy = built("llama")
    hc.cut(model, plan, fill=filled(anatomy, anatomy.plan(plan)))
    with says(hc.errors.Refused, about="down_proj.bias has shape (32,) and the stock model's None"):
        hc.save(model, tmp_path / "llama", portable=True)
    assert not (tmp_path / "llama").exists()


def test_a_record_that_was_tampered_with_is_refused(tmp_path: Path) -> None:
    model, _, anatomy = built("llama")
    plan = anatomy.plan("0:1")
    hc.cut(model, plan, fill=filled(anatomy, plan))
    hc.save(model, tmp_path / "smaller")
    path = tmp_path / "smaller" / "config.json"
    config = json.loads(path.read_text())
    for names, about in (
        (["7"], "no site '7'"),
        ("0", "must be a list"),
        (["layers"], "cannot have got"),
        ([3], "must be a list"),
    ):
        config["headcount"]["biases"] = names
        path.write_text(json.dumps(config))
        with says(hc.errors.BadPlan, about=about):
            hc.load(tmp_path / "smaller")


def test_undone_where_it_differs_and_refused_where_it_cannot_be() -> None:
    model, inputs, anatomy = built("llama")
    plan, before = anatomy.plan("0:1 1.mlp:0-9"), state(model)
    fill = filled(anatomy, plan)
    for wrong, about in (
        ({"0": torch.zeros(3)}, "one finite number for each of the 64 columns"),
        ({"0": torch.full((64,), torch.nan)}, "one finite number"),
        ({"layers": torch.zeros(2)}, "have no fill"),
    ):
        with says(hc.errors.BadPlan, about=about):
            hc.cut(model, plan, fill=wrong)
        with says(hc.errors.BadPlan, about=about), hc.masked(model, plan, fill=wrong):
            pass

    class Own(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.T

    model.model.layers[0].self_attn.o_proj.__class__ = Own
    with says(hc.errors.Refused, about="cannot be given one"):
        hc.cut(model, plan, fill=fill)
    assert same_weights(before, model)
    model.model.layers[0].self_attn.o_proj.__class__ = nn.Linear
    hc.cut(model, plan, fill=fill, check=inputs)  # proved on the spot
    with pytest.MonkeyPatch.context() as patch:
        model, inputs, anatomy = built("llama")
        before = state(model)
        patch.setattr(biases, "written", lambda site, *_: torch.ones(site.columns.shape[0]))
        with says(hc.errors.CheckFailed, about="differs from the masked one"):
            hc.cut(model, plan, fill=fill, check=inputs)
        assert same_weights(before, model)
        assert model.model.layers[0].self_attn.o_proj.bias is None


def test_units_that_stay_are_left_alone_by_the_fill() -> None:
    model, inputs, _ = built("bert")
    base = zoo.output(model, inputs)
    with hc.masked(model, "", fill={"0": torch.ones(32)}):
        assert close(zoo.output(model, inputs), base)
