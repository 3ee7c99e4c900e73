"""Quantised weights: their units are found and masked as in the whole model, and a cut is refused with what to do instead."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.same import close
from helpers.small_models import zoo_task
from torch import nn

import headcount as hc
from headcount.efficiency import flops
from headcount.errors import BadCheckpoint, Refused
from headcount.model.matrices import matrix


def _int8(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)


def _edited(linear: Any, edit: Callable[[torch.Tensor, torch.Tensor | None], None]) -> None:
    """Change the integers of an int8 matrix and its bias in place; its scale stays."""
    weight, bias = linear._weight_bias()
    integers, bias = weight.int_repr(), None if bias is None else bias.detach().clone()
    edit(integers, bias)
    same_scale = torch._make_per_tensor_quantized_tensor(integers, weight.q_scale(), weight.q_zero_point())
    linear.set_weight_bias(same_scale, bias)


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "distilbert", "gpt_neo", "modernbert"])
def test_int8_models_have_the_units_of_the_whole_model(name: str) -> None:
    model, _ = zoo.build(name)
    whole, quantised = hc.find(model), hc.find(_int8(model))
    assert [(s.name, len(s), s.width, s.kv_heads) for s in quantised] == [
        (s.name, len(s), s.width, s.kv_heads) for s in whole
    ]
    assert [(s.name, len(s)) for s in quantised.stacks] == [(s.name, len(s)) for s in whole.stacks]


def test_a_masked_head_is_one_whose_values_are_zero() -> None:
    model, inputs = zoo.build("bert")
    quantised = _int8(model)
    zeroed = copy.deepcopy(quantised)
    rows = slice(1 * 8, 2 * 8)  # head 1 of width 8

    def without_head(integers: torch.Tensor, bias: torch.Tensor) -> None:
        integers[rows], bias[rows] = 0, 0

    _edited(zeroed.bert.encoder.layer[0].attention.self.value, without_head)
    with hc.masked(quantised, "0:1"):
        masked = zoo.output(quantised, inputs)
    assert close(masked, zoo.output(zeroed, inputs))
    assert not close(masked, zoo.output(quantised, inputs))


@pytest.mark.parametrize(("units", "columns"), [("0:1", slice(8, 16)), ("1.mlp:3-7", slice(3, 8))])
def test_masking_is_zeroing_columns_up_to_a_step_of_int8(units: str, columns: slice) -> None:
    model, inputs = zoo.build("bert")
    quantised = _int8(model)
    whole, zeroed = zoo.output(quantised, inputs), copy.deepcopy(quantised)
    layer = zeroed.bert.encoder.layer[int(units[0])]
    writer = layer.output.dense if "mlp" in units else layer.attention.output.dense

    def without_columns(integers: torch.Tensor, bias: torch.Tensor) -> None:
        integers[:, columns] = 0

    _edited(writer, without_columns)
    with hc.masked(quantised, units):
        masked = zoo.output(quantised, inputs)
    # what the writer reads is rounded to 1/255 of its range, and without the unit that range may be smaller
    assert (masked - zoo.output(zeroed, inputs)).abs().max() < 0.25 * (masked - whole).abs().max()


def test_int8_models_are_measured_and_neither_scored_by_gradients_nor_cut_nor_saved(tmp_path: Path) -> None:
    model, task = zoo_task("bert")
    quantised = _int8(model)
    assert len(hc.ablate(quantised, task, {"0:1": "0:1", "1:0": "1:0"}).names) == 2
    with says(Refused, about="before it is quantised"):
        hc.score(quantised, task)
    for units in ("0:1", "1.mlp:0-3"):
        with says(Refused, about="quantise the smaller one"):
            hc.cut(quantised, units)
    with says(Refused, about="quantise what is loaded"):
        hc.save(quantised, tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


def test_int8_multiply_adds_are_counted_like_others() -> None:
    model, inputs = zoo.build("bert")
    assert flops.counted(_int8(model), inputs)[0] == flops.counted(model, inputs)[0] > 0


def test_whole_layers_of_an_int8_model_can_go() -> None:
    model, inputs = zoo.build("bert")
    quantised = _int8(model)
    with hc.masked(quantised, "layers:1"):
        masked = zoo.output(quantised, inputs)
    hc.cut(quantised, "layers:1")
    assert close(zoo.output(quantised, inputs), masked)


@pytest.mark.parametrize(
    ("name", "units", "other"),
    [("bert", "0:1 1.mlp:0-9", "0:2"), ("llama", "0:0-3 1.mlp:7", "0:4"), ("llama", "0:0 1:2-4,7", "0:5"),
     ("gpt2", "0:*", "1:1")],
)  # fmt: skip
def test_pruned_and_then_quantised_the_units_keep_their_names(name: str, units: str, other: str) -> None:
    model, inputs = zoo.build(name)
    hc.cut(model, units)
    quantised = _int8(model)
    assert [(s.name, list(s.ids), s.of, list(s.kv_of)) for s in hc.find(quantised)] == [
        (s.name, list(s.ids), s.of, list(s.kv_of)) for s in hc.find(model)
    ]
    assert hc.removed(quantised) == hc.removed(model)
    with hc.masked(quantised, other):
        assert zoo.output(quantised, inputs).isfinite().all()


def test_eight_bit_floats_are_not_sliced() -> None:
    linear = nn.Linear(4, 4)
    linear.weight = nn.Parameter(linear.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    assert matrix(linear) is None
    assert matrix(nn.Linear(4, 4)) is not None


@pytest.fixture
def gptq(tmp_path: Path) -> Path:
    """A folder whose config says that its weights are quantised."""
    model, _ = zoo.build("llama")
    model.save_pretrained(tmp_path / "gptq")
    path = tmp_path / "gptq" / "config.json"
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 8}
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": settings}))
    return path.parent


def test_a_quantised_checkpoint_is_looked_at_and_says_what_can_be_done(gptq: Path) -> None:
    empty = hc.load(gptq, weights=False)
    assert len(hc.find(empty)) == 4
    with says(Refused, about="take the checkpoint that it was made from"):
        hc.cut(empty, "0:0-3")


def test_a_quantised_checkpoint_that_cannot_be_read_here_says_why(gptq: Path) -> None:
    with says(BadCheckpoint, about="quantise the smaller one"):
        hc.load(gptq)
