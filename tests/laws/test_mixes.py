"""Laws about mixes: heads, neurons and layers together, with numbers folded into those that stay, drawn by lot.

What is drawn depends on the seed alone. The planted bugs at the end show that the laws can fail.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import close
from torch import Tensor, nn

import headcount as hc
from headcount.model.cutting import layers, surgery
from headcount.model.cutting.rules import refusal
from laws.test_cut_equals_masked import cuttable

FAMILIES = list(zoo.ZOO)
SEVERAL = ["bert", "llama", "gpt2", "t5", "bart", "swin", "vit", "falcon-gqa", "deepseek_v3", "torch-encoder"]


class Mix(NamedTuple):
    """What goes, and the numbers that are folded into the units of each site."""

    plan: hc.Plan
    scale: dict[str, Tensor]


def mix(model: nn.Module, anatomy: hc.model.Anatomy, seed: int) -> Mix:
    """Any number of units of each site, from none to all; layers of each stack; a number from 0.5 to 1.5 on every unit."""
    draw = np.random.default_rng(seed)
    chosen: dict[str, list[int]] = {}
    for site in [*cuttable(model, anatomy, "head"), *cuttable(model, anatomy, "neuron")]:
        count = draw.choice([0, 1, len(site) // 2, len(site) - 1, len(site)], p=[0.2, 0.25, 0.25, 0.2, 0.1])
        chosen[site.name] = draw.choice(site.ids, count, replace=False).tolist()
    for stack in anatomy.stacks:
        holding = {s.layer for s in anatomy.heads if s.path.startswith(f"{stack.path}.")}
        if len(stack) > 1 and holding and refusal(stack, anatomy, model) is None:
            stays = draw.choice(sorted(layer for layer in holding if layer in stack.ids))  # one with attention
            others = [index for index in stack.ids if index != stays]
            chosen[stack.name] = draw.choice(others, draw.integers(0, len(others) + 1), replace=False).tolist()
    scaled = [site for site in anatomy if site.columns is not None and draw.random() < 0.8]
    scale = {site.name: torch.from_numpy(draw.uniform(0.5, 1.5, len(site))).float() for site in scaled}
    return Mix(hc.Plan.removing({name: which for name, which in chosen.items() if which}), scale)


def gates_of(anatomy: hc.model.Anatomy, mixed: Mix) -> dict[str, Tensor]:
    """The gates under which the whole model does what the cut one has to do: written here on its own."""
    out = {name: values.clone() for name, values in mixed.scale.items()}
    for name, indices in mixed.plan.by_site().items():
        out.setdefault(name, torch.ones(len(anatomy[name])))
        for index in indices:
            out[name][list(anatomy[name].ids).index(index)] = 0
    return out


def stored(folder: Path) -> int:
    """Bytes in a checkpoint without the headers of its files."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            header = int.from_bytes(opened.read(8), "little")
        total += file.stat().st_size - 8 - header
    return total


def bytes_of_buffers(model: nn.Module) -> int:
    """Of those that are saved: they are no parameters, and go with their layer."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return sum(t.numel() * t.element_size() for name, t in model.state_dict().items() if name not in parameters)


def law_a_cut_mix_is_the_gated_one(name: str, seed: int, folder: Path | None = None) -> None:
    model, inputs = zoo.build(name)
    anatomy = hc.find(model)
    mixed = mix(model, anatomy, seed)
    with hc.gated(model, gates_of(anatomy, mixed)):
        want = zoo.output(model, inputs)
    before, promised = sum(p.numel() for p in model.parameters()), hc.model.parameters_removed(model, mixed.plan)
    if folder is not None:
        disk = stored(hc.save(model, folder / "whole")) - bytes_of_buffers(model)
    hc.cut(model, mixed.plan, scale=mixed.scale)
    assert close(zoo.output(model, inputs), want)
    assert before - sum(p.numel() for p in model.parameters()) == promised
    if folder is not None:
        assert stored(hc.save(model, folder / "smaller")) - bytes_of_buffers(model) == disk - 4 * promised


@pytest.mark.parametrize("name", FAMILIES[::3])  # all of them pass; they take a minute
def test_a_cut_mix_is_the_gated_one_and_as_small_as_predicted(name: str, tmp_path: Path) -> None:
    law_a_cut_mix_is_the_gated_one(name, FAMILIES.index(name), tmp_path)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", SEVERAL)
def test_other_mixes_of_some_families(name: str, seed: int) -> None:
    law_a_cut_mix_is_the_gated_one(name, 1000 + seed)


# -- what is refused -------------------------------------------------------------------------------------------------------


def too_much(anatomy: hc.model.Anatomy, mixed: Mix) -> list[tuple[Any, dict[str, Tensor], str]]:
    """The same mix with one thing in it that cannot be, and a word of the sentence that says so."""
    site, units = anatomy.sites[-1], " ".join(map(str, mixed.plan))
    out = [
        (f"{units} {site.name}:{site.of}", mixed.scale, "does not exist"),
        (f"{units} nowhere:0", mixed.scale, "has no site"),
        (mixed.plan, {**mixed.scale, site.name: torch.ones(len(site) + 1)}, "one number for each"),
    ]
    for packed in [site for site in anatomy if site.columns is None][:1]:
        out.append((mixed.plan, {**mixed.scale, packed.name: torch.ones(len(packed))}, "cannot be folded"))
    for stack in anatomy.stacks[:1]:
        out.append((f"{units} {stack.name}:*", mixed.scale, "cannot be cut exactly"))
        out.append((mixed.plan, {**mixed.scale, stack.name: torch.ones(len(stack))}, "layers have none"))
    return out


def same_bits(model: nn.Module, before: dict[str, Tensor]) -> bool:
    now = model.state_dict()
    return list(now) == list(before) and all(torch.equal(now[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("name", [*FAMILIES[1::8], "olmo2", "hiera", "squeezebert"])
def test_a_refused_mix_leaves_the_model_bit_for_bit_as_it_was(name: str) -> None:
    model, inputs = zoo.build(name)
    anatomy = hc.find(model)
    mixed = mix(model, anatomy, FAMILIES.index(name))
    base, mark = zoo.output(model, inputs), Fingerprint(model)
    bits = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    wrong = too_much(anatomy, mixed)
    for part in (*anatomy.sites, *anatomy.stacks):
        if refusal(part, anatomy, model) is not None:
            wrong.append((f"{' '.join(map(str, mixed.plan))} {part.units[0]}", mixed.scale, "cannot be cut exactly"))
    for what, scale, about in wrong:
        with says(hc.errors.BadPlan, hc.errors.NotFound, hc.errors.Refused, about=about):
            hc.cut(model, what, scale=scale)
        assert mark.changed() == []
    assert same_bits(model, bits)
    assert close(zoo.output(model, inputs), base)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", SEVERAL)
def test_a_mix_that_breaks_off_or_fails_its_check_is_taken_back(name: str, seed: int, monkeypatch) -> None:
    model, inputs = zoo.build(name)
    mixed = mix(model, hc.find(model), seed)
    base, mark = zoo.output(model, inputs), Fingerprint(model)
    bits = {key: tensor.clone() for key, tensor in model.state_dict().items()}

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(surgery, "_write_record", interrupted)  # the last thing that a cut does
        with pytest.raises(KeyboardInterrupt):
            hc.cut(model, mixed.plan, scale=mixed.scale)
    assert mark.changed() == []
    with monkeypatch.context() as during:
        during.setattr(surgery, "differs", lambda *_: "everything")
        with says(hc.errors.CheckFailed, about="nothing was cut"):
            hc.cut(model, mixed.plan, scale=mixed.scale, check=inputs)
    assert mark.changed() == []
    assert same_bits(model, bits)
    assert close(zoo.output(model, inputs), base)


# -- planted bugs: the laws must see them ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "vit"])
def test_the_law_sees_numbers_that_are_folded_into_other_units(name: str, monkeypatch) -> None:
    right = surgery._cut_site

    def rolled(transaction, root, site, keep, changes, parents):
        scale = {name: values.roll(1) for name, values in changes.scale.items()}
        return right(transaction, root, site, keep, changes._replace(scale=scale), parents)

    monkeypatch.setattr(surgery, "_cut_site", rolled)
    with pytest.raises(AssertionError):
        law_a_cut_mix_is_the_gated_one(name, 0)


def found(name: str) -> tuple[nn.Module, hc.model.Anatomy]:
    model = zoo.build(name)[0]
    return model, hc.find(model)


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "vit"])
def test_the_law_sees_another_layer_deleted(name: str, monkeypatch) -> None:
    right = layers.delete

    def other(transaction, root, stack, drop):
        right(transaction, root, stack, {(place + 1) % len(stack) for place in drop})

    monkeypatch.setattr(layers, "delete", other)
    seed = next(n for n in range(20) if set(mix(*found(name), n).plan.by_site()) & {"layers", "encoder.layers"})
    with pytest.raises(AssertionError):
        law_a_cut_mix_is_the_gated_one(name, seed)
