"""Models that accelerate spreads over devices, the CPU and disk: every number is that of the model in one piece."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers import fake_device, zoo
from helpers.same import close, same_weights
from helpers.spread import doubled, in_halves, in_passes, measured
from torch import nn

import headcount as hc
from headcount.errors import BadCheckpoint, Refused
from headcount.model.distributed.device_maps import is_offloaded, weights_present
from headcount.training import Recipe

TESTS = Path(__file__).parents[1]


def _spread(model: nn.Module, folder: Path, **how: Any) -> Any:
    hc.save(model, folder)
    return hc.load(folder, device_map=in_halves(model), offload_folder=str(folder / "offloaded"), **how)


def _alike(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    """The names of what differs."""
    return [
        name for name in {**one, **other} if name not in one or name not in other or not close(one[name], other[name])
    ]


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "gpt2", "vit"])
def test_spread_over_the_cpu_and_disk_a_model_has_the_numbers_that_it_has_in_one_piece(
    name: str, tmp_path: Path
) -> None:
    model, inputs = zoo.build(name)
    spread = _spread(model, tmp_path / "model")
    assert is_offloaded(spread)
    assert not is_offloaded(model)
    assert {p.device.type for p in spread.parameters()} == {"cpu", "meta"}
    whole = measured(model, inputs, criteria=name == "llama")
    assert not _alike(whole, measured(spread, inputs, criteria=name == "llama"))
    assert not close(whole["whole"], whole["masked"])
    assert all(p.requires_grad for p in spread.parameters()), "also of weights that are other tensors after every pass"


def test_a_cut_model_is_spread_too(tmp_path: Path) -> None:
    model, inputs = zoo.build("llama")
    hc.cut(model, "0:0-1 1.mlp:3-9")
    spread = _spread(model, tmp_path / "cut")
    assert close(zoo.output(spread, inputs), zoo.output(model, inputs))
    with hc.masked(spread, "1:5"), hc.masked(model, "1:5"):
        assert close(zoo.output(spread, inputs), zoo.output(model, inputs))


def test_what_lies_on_the_device_is_cut_and_saved_and_what_does_not_is_refused(tmp_path: Path) -> None:
    model, inputs = zoo.build("llama")
    spread = _spread(model, tmp_path / "model")
    with says(Refused, about="headcount cut --shards"):
        hc.cut(spread, "1:0-1")
    for one in (spread, model):
        hc.cut(one, "0:0-1 layers:1")
    assert close(zoo.output(spread, inputs), zoo.output(model, inputs))
    hc.save(spread, tmp_path / "smaller")
    assert same_weights(hc.load(tmp_path / "smaller"), model)


def test_an_offloaded_model_is_saved_whole(tmp_path: Path) -> None:
    model, _ = zoo.build("llama")
    hc.save(_spread(model, tmp_path / "model"), tmp_path / "again")
    assert same_weights(hc.load(tmp_path / "again"), model)


def test_what_would_change_offloaded_weights_is_refused_before_any_work(tmp_path: Path) -> None:
    model, inputs = zoo.build("llama")
    spread, task = _spread(model, tmp_path / "model"), doubled(inputs)
    with says(Refused, about="it cannot be trained here"):
        hc.train(spread, task, Recipe(steps=1))
    with says(Refused, about="gates cannot learn on it here"):
        hc.learn(spread, task, "vib", keep="50%")
    with says(Refused, about="it cannot be pruned here"):
        hc.prune(spread, task, remove="20%")
    with says(Refused, about="it cannot be exported from here"):
        hc.export(spread, "gguf", tmp_path / "model.gguf")
    with says(Refused, about="circuits are not read off them"):
        hc.circuits.token_circuits(spread)
    with says(BadCheckpoint, about="leave out one of the two"):
        hc.load(tmp_path / "model", device_map="auto", lazy=True)


def test_weights_are_there_within_the_block_and_gone_after_it(tmp_path: Path) -> None:
    model, _ = zoo.build("llama")
    spread = _spread(model, tmp_path / "model")
    there, writer = (one.model.layers[1].self_attn.o_proj for one in (model, spread))
    assert writer.weight.is_meta
    with weights_present(writer, model):
        assert torch.equal(writer.weight, there.weight)
    assert writer.weight.is_meta


@pytest.mark.skipif(fake_device.REGISTER is None, reason="this torch lets no device be made in Python")
def test_over_two_devices_a_model_has_the_numbers_that_it_has_on_one(tmp_path: Path) -> None:
    """The second device is made up, and complains where tensors of both are mixed."""
    families = ["llama", "bert"]
    script = TESTS / "helpers" / "fake_device.py"
    done = subprocess.run([sys.executable, str(script), str(tmp_path), *families], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-3000:]
    for name in families:
        with np.load(tmp_path / f"{name}.npz") as found:
            assert not _alike(in_passes(*zoo.build(name)), dict(found))
