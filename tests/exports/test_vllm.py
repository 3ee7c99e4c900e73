"""Folders for vLLM: its rules, one by one. vLLM itself is too large for a test; docs/deploy-transformers.md has the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.same import close, same_weights
from torch import nn

import headcount as hc
from headcount.errors import Refused
from headcount.exports import vllm
from headcount.exports.formats import Settings
from headcount.exports.pipeline import Exported, export


def cut_model(name: str, units: str) -> nn.Module:
    model, _ = zoo.build(name)
    hc.cut(model, units)
    return model


def exported(model: nn.Module, folder: Path, **settings: Any) -> Exported:
    return export(model, "vllm", folder, batch=zoo.text(), **settings)


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "gemma", "phi", "gpt_neox", "gpt2"])
def test_what_has_no_units_left_gets_one_that_gives_zero(name: str, tmp_path: Path) -> None:
    model, inputs = zoo.build(name)
    hc.cut(model, "0.mlp:* 1:*")
    written = exported(model, tmp_path / "out")
    assert written.check.difference <= written.check.allowed
    assert any("1 head and 1 neuron that had been removed" in note for note in written.notes)
    back = hc.load(tmp_path / "out")
    anatomy = hc.find(back)
    assert [len(site) for site in anatomy] == [len(anatomy["0"]), 1, 1, 48]
    assert [site.kv_heads for site in anatomy.heads][1] == 1
    for site in (anatomy["1"], anatomy["0.mlp"]):
        weight = site.columns.columns(torch.arange(site.width))[site.columns.weight]
        assert not weight.any()
    assert close(zoo.output(back, inputs), zoo.output(model, inputs))
    layers = config_of(tmp_path / "out")["per_layer_config"]
    assert 1 in layers["0"].values()
    assert layers["1"]["num_attention_heads"] == 1
    assert layers["1"].get("num_key_value_heads", 1) == 1


def test_the_width_of_a_head_is_said(tmp_path: Path) -> None:
    exported(cut_model("phi", "0:0 1:1-2"), tmp_path / "out")
    config = config_of(tmp_path / "out")
    assert config["head_dim"] == 8
    assert config["per_layer_config"]["0"] == {"num_attention_heads": 3, "num_key_value_heads": 3}
    assert config["per_layer_config"]["1"] == {"num_attention_heads": 2, "num_key_value_heads": 2}
    assert config["auto_map"]["AutoModel"] == "modeling_headcount.PhiModel"
    assert "transformers_weights" not in config  # vLLM reads the weights by itself


def test_uneven_groups_are_refused_and_either_way_out_is_taken(tmp_path: Path) -> None:
    model = cut_model("llama", "0:0 0.mlp:0-3")
    with pytest.raises(
        Refused, match=r"layer 0 has groups of 2 and 1 query heads: use --groups pad .* or --groups repeat"
    ):
        exported(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for groups, heads in (("pad", {}), ("repeat", {"num_attention_heads": 7, "num_key_value_heads": 7})):
        exported(model, tmp_path / groups, groups=groups)
        sizes = config_of(tmp_path / groups)["per_layer_config"]["0"]
        assert {name: n for name, n in sizes.items() if "heads" in name} == heads


@pytest.mark.parametrize(
    ("name", "units", "devices", "reason"),
    [
        ("phi", "0:0", 2, "layer 0 has 3 heads and 3 key-value heads, which 2 devices cannot share"),
        ("llama", "0:0-1", 2, "layer 0 has 6 heads and 3 key-value heads, which 2 devices cannot share"),
        ("gemma", "0.mlp:0", 2, "layer 0 has 8 heads and 1 key-value head, which 2 devices cannot share"),
        ("mistral", "0:* 1.mlp:0", 4, "layer 1 has 8 heads and 2 key-value heads, which 4 devices cannot share"),
    ],
)
def test_heads_are_shared_evenly_among_devices_in_every_layer(
    name: str, units: str, devices: int, reason: str, tmp_path: Path
) -> None:
    model = cut_model(name, units)
    with pytest.raises(Refused, match=f"{reason}: prune with --for vllm --tensor-parallel {devices}"):
        exported(model, tmp_path / "out", tensor_parallel=devices)


def test_devices_that_share_a_layer_get_as_many_units_of_it(tmp_path: Path) -> None:
    model, inputs = zoo.build("llama")
    hc.cut(model, "0:0-3 0.mlp:0-2,9 1:* 1.mlp:7")
    written = exported(model, tmp_path / "out", tensor_parallel=2)
    assert any("--tensor-parallel-size 2" in note for note in written.notes)
    back = hc.load(tmp_path / "out")
    assert [len(site) for site in hc.find(back)] == [4, 44, 2, 48]
    assert [site.kv_heads for site in hc.find(back).heads] == [2, 2]
    assert close(zoo.output(back, inputs), zoo.output(model, inputs))


def test_widths_are_filled_up_to_a_multiple_with_zeros_in_their_places(tmp_path: Path) -> None:
    model, inputs = zoo.build("qwen2")
    hc.cut(model, "0.mlp:0,5,8-20 1.mlp:1")
    exported(model, tmp_path / "out", multiple=8)
    back = hc.load(tmp_path / "out")
    assert [len(site) for site in hc.find(back).neurons] == [40, 48]
    assert set(hc.find(back)["0.mlp"].ids) == {*range(48)} - {*range(13, 21)}
    assert close(zoo.output(back, inputs), zoo.output(model, inputs))


def test_more_units_than_there_ever_were_are_refused(tmp_path: Path) -> None:
    model = cut_model("llama", "1.mlp:0")
    with pytest.raises(Refused, match=r"0\.mlp would need 64 neurons and never had more than 48: choose a smaller"):
        exported(model, tmp_path / "out", multiple=32)
    wide = cut_model("gemma", "0:* 1:*")
    with pytest.raises(Refused, match="0 would need 2 key-value heads and never had more than 1"):
        exported(wide, tmp_path / "out", tensor_parallel=2)


def test_where_key_value_heads_were_repeated_there_is_no_going_back(tmp_path: Path) -> None:
    model = cut_model("llama", "0:0 1:*")
    with pytest.raises(
        Refused,
        match=r"1 needs heads of zeros, .* repeated: use --groups pad",
    ):
        exported(model, tmp_path / "out", groups="repeat")
    exported(model, tmp_path / "out", groups="pad")


@pytest.mark.parametrize(
    ("name", "units", "reason"),
    [
        ("bert", "0:0", "it is no decoder"),
        ("t5", "encoder.0:0", "it is no decoder"),
        ("gptj", "0:0", "GPTJAttention does not ask transformers for its attention kernel"),
        ("torch-encoder", "0:0", "not a class of transformers"),
    ],
)
def test_what_the_backend_cannot_run_is_refused(name: str, units: str, reason: str) -> None:
    limits = vllm.limits(cut_model(name, units), Settings())
    assert [limit for limit in limits if reason in limit.reason]


def test_weights_stay_tied_and_in_their_format(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model, _ = zoo.build("gemma")
    hc.save(model.to(torch.bfloat16), tmp_path / "whole")
    loaded = hc.load(tmp_path / "whole")  # in float32, and stored in bfloat16
    hc.cut(loaded, "0:* 1.mlp:3")
    before = {name: tensor.clone() for name, tensor in loaded.state_dict().items()}
    exported(loaded, tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert "lm_head.weight" not in weights
    assert same_weights(loaded.state_dict(), before)  # and the model is as it was


def test_the_check_says_what_was_not_tried(tmp_path: Path) -> None:
    written = exported(cut_model("llama", "0.mlp:0"), tmp_path / "out")
    assert any("its rules were checked" in note for note in written.check.notes)
