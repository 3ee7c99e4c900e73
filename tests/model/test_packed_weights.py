"""8-bit and 4-bit matrices: masked and scored, a model is what it is with the same numbers unpacked; it is not cut or trained."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.same import close
from helpers.spread import doubled, refused
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

import headcount as hc
from headcount.errors import Refused
from headcount.model.loading.quantised import matrix_seen, must_give_gradients
from headcount.training import Recipe

SEEN = ("wanda", "flap", "activation", "magnitude", "ablation")
GRADIENTS = ("taylor", "fisher")


class Packed(nn.Module):
    """A matrix of int8, with a scale for each row: no weight that could be sliced."""

    def __init__(self, linear: nn.Linear, blind: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features, self.blind = linear.in_features, linear.out_features, blind
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("packed", (linear.weight.detach() / scale).round().to(torch.int8))
        self.bias = linear.bias

    def unpacked(self) -> Tensor:
        return self.packed.float() * self.scale

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.linear(x, self.unpacked(), self.bias)
        return y.detach() if self.blind else y


def _packed(model: nn.Module, blind: bool = False) -> nn.Module:
    return _with(model, lambda linear: Packed(linear, blind))


def _with(model: nn.Module, other: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """The model with another module for each matrix of its layers."""
    made = copy.deepcopy(model)
    for stack in hc.find(made).stacks:
        for block in stack.blocks:
            for path, module in list(block.named_modules()):
                if isinstance(module, nn.Linear):
                    above, _, name = path.rpartition(".")
                    setattr(block.get_submodule(above), name, other(module))
    return made


def _unpacked(model: nn.Module, packed: nn.Module) -> nn.Module:
    """The model with the numbers of the packed one in ordinary matrices."""
    made = copy.deepcopy(model)
    for path, module in packed.named_modules():
        linear = made.get_submodule(path)
        if isinstance(linear, nn.Linear) and hasattr(module, "in_features"):
            linear.weight.data = matrix_seen(module).clone()
    return made


def _far(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max() / np.abs(other).max())


def _scores(model: nn.Module, inputs: dict[str, Tensor], by: str, units: str) -> np.ndarray:
    return np.asarray(hc.score(model, doubled(inputs), by=by, units=units).values)


@pytest.mark.parametrize("name", ["llama", "bert", "bart"])
def test_packed_matrices_mask_and_score_as_the_same_numbers_unpacked(name: str) -> None:
    model, inputs = zoo.build(name)
    packed = _packed(model)
    plain = _unpacked(model, packed)
    assert [(s.name, len(s), s.kv_heads) for s in hc.find(packed)] == [
        (s.name, len(s), s.kv_heads) for s in hc.find(model)
    ]
    some = {site.name: [0, len(site) - 1] for site in hc.find(model)}
    with hc.masked(packed, some), hc.masked(plain, some):
        assert close(zoo.output(packed, inputs), zoo.output(plain, inputs))
        assert not close(zoo.output(packed, inputs), zoo.output(model, inputs))
    for by in (*SEEN, *GRADIENTS):
        units = "heads" if by == "ablation" else "heads,neurons"
        assert close(_scores(packed, inputs, by, units), _scores(plain, inputs, by, units)), by
    layers = [_scores(one, inputs, "magnitude", "layers") for one in (packed, plain, model)]
    assert close(*layers[:2])
    assert not close(*layers[1:])


def test_what_packed_matrices_multiply_with_is_seen_also_within_gates() -> None:
    model, _ = zoo.build("bert")
    packed = _packed(model)
    matrix = packed.bert.encoder.layer[0].output.dense
    with hc.masked(packed, "0.mlp:*"):
        assert close(matrix_seen(matrix), matrix.unpacked())
    assert close(matrix_seen(matrix, [3, 1]), matrix.unpacked()[:, [3, 1]])


def test_matrices_through_which_no_gradient_comes_are_refused_by_name() -> None:
    model, inputs = zoo.build("llama")
    for by in GRADIENTS:
        with says(Refused, about="(Packed) give no right gradient"):
            _scores(_packed(model, blind=True), inputs, by, "heads")
    assert close(*(_scores(_packed(model, blind), inputs, "wanda", "heads") for blind in (True, False)))
    must_give_gradients(_packed(model))


def test_a_packed_model_is_not_cut_and_does_not_train() -> None:
    model, inputs = zoo.build("llama")
    packed = _packed(model)
    for units in ("0:0-1", "1.mlp:3"):
        with says(Refused, about="take the checkpoint that it was made from, and quantise the smaller one"):
            hc.cut(packed, units)
    with says(Refused, about="quantised, and do not train"):
        hc.train(packed, doubled(inputs), Recipe(steps=1))


# -- packages that pack --------------------------------------------------------------------------------------------------


def _bitsandbytes(bits: int) -> Any:
    importlib.import_module("bitsandbytes")
    if bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)


def _torchao(_: int) -> Any:
    from transformers import TorchAoConfig

    return TorchAoConfig(importlib.import_module("torchao.quantization").Int8WeightOnlyConfig())


# Against the same numbers unpacked. bitsandbytes rounds what its int8 matrices are given to int8 and multiplies in float16, and
# its 4-bit kernels for CPUs multiply in bfloat16; torchao unpacks and multiplies in float32.
PACKAGES = {
    "bitsandbytes-8": (_bitsandbytes, 8, 0.06),
    "bitsandbytes-4": (_bitsandbytes, 4, 0.06),
    "torchao-8": (_torchao, 8, 1e-4),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_models_packed_by_packages_mask_and_score_as_the_same_numbers_unpacked(name: str, tmp_path: Path) -> None:
    config, bits, bound = PACKAGES[name]
    pytest.importorskip(name.partition("-")[0])
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    llama = LlamaConfig(**sizes, vocab_size=64, num_attention_heads=4, num_key_value_heads=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(llama).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.1)
    inputs = zoo.build("llama")[1]
    hc.save(model, tmp_path / "model")
    packed = hc.load(tmp_path / "model", quantization_config=config(bits), dtype=torch.float32, device_map="cpu")
    plain = _unpacked(model, packed)
    with hc.masked(packed, "0:1 1.mlp:3-99"), hc.masked(plain, "0:1 1.mlp:3-99"):
        assert _far(zoo.output(packed, inputs).numpy(), zoo.output(plain, inputs).numpy()) < bound
        assert _far(zoo.output(packed, inputs).numpy(), zoo.output(model, inputs).numpy()) > 1e-3
    for by in SEEN:
        units = "heads" if by == "ablation" else "heads,neurons"
        assert _far(_scores(packed, inputs, by, units), _scores(plain, inputs, by, units)) < 3 * bound, by
    said = refused({"gradients": lambda: _scores(packed, inputs, "taylor", "heads,neurons")})["gradients"]
    if said:  # on some processors, 4-bit matrices of bitsandbytes have kernels without a gradient
        assert name == "bitsandbytes-4"
        assert "give no right gradient" in said
    else:
        found, want = (_scores(one, inputs, "taylor", "heads,neurons") for one in (packed, plain))
        assert _far(found, want) < 3 * bound
    with says(Refused, about="quantise the smaller one"):
        hc.cut(packed, "0:1")
    with says(Refused, about="do not train"):
        hc.train(packed, doubled(inputs), Recipe(steps=1))
