"""Single weights set to zero: which ones, exactly how many, through training too, and the model as it was afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Fingerprint, says
from helpers.small_models import class_task, classifier
from torch import Tensor, nn

import headcount as hc
from headcount.documents.lottery import WeightStep
from headcount.lottery_ticket import magnitude
from headcount.training.recipe import Recipe


def tiny() -> nn.Module:
    return classifier(layers=2)


def tensors_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return magnitude.weights(model, hc.find(model))


def left_in(masks: dict[str, Tensor]) -> int:
    return sum(int(mask.sum()) for mask in masks.values())


def test_the_weights_of_attentions_and_mlps_may_go_and_nothing_else() -> None:
    model = tiny()
    found = tensors_of(model)
    parts = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
    want = [f"{part}.{name}" for part in (*parts, "intermediate.dense") for name in ("weight", "bias")]
    want.append("output.dense.weight")  # and not its bias
    assert sorted(found) == sorted(f"bert.encoder.layer.{layer}.{name}" for layer in (0, 1) for name in want)
    named = dict(model.named_parameters())
    assert all(named[name] is tensor for name, tensor in found.items())


def test_packed_projections_of_torch_count_too() -> None:
    model = nn.TransformerEncoderLayer(16, 4, 8, batch_first=True).eval()
    found = tensors_of(model)
    want = {f"self_attn.{name}" for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")}
    assert set(found) == want | {"linear1.weight", "linear1.bias", "linear2.weight"}


def test_the_good_keep_the_largest_and_the_bad_the_smallest_of_all_layers_together() -> None:
    tensors = {"a": torch.tensor([[3.0, -1.0], [0.5, -9.0]]), "b": torch.tensor([2.0, -0.1])}
    order = magnitude.by_magnitude(tensors)
    stays = magnitude.networks(order, 3, seed=0)
    kept = {what: magnitude.masks(tensors, stay) for what, stay in stays.items()}
    assert kept["good"]["a"].tolist() == [[True, False], [False, True]]
    assert kept["good"]["b"].tolist() == [True, False]
    assert kept["bad"]["a"].tolist() == [[False, True], [True, False]]
    assert kept["bad"]["b"].tolist() == [False, True]


@pytest.mark.parametrize("left", [1, 500, 1777])
def test_all_three_have_exactly_as_many_weights_also_where_magnitudes_are_equal(left: int) -> None:
    model = tiny()
    tensors = tensors_of(model)
    order = magnitude.by_magnitude(tensors)  # biases are all zero: ties
    total = sum(one.numel() for one in tensors.values())
    assert sorted(order.tolist()) == list(range(total))
    for stay in magnitude.networks(order, left, seed=3).values():
        assert left_in(magnitude.masks(tensors, stay)) == left
    drawn = [magnitude.networks(order, left, seed=seed)["random"].tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_tenth_of_what_is_left_goes_until_it_is_too_much() -> None:
    seen = []

    def value(left: int) -> float:
        seen.append(left)
        return left / 1000

    left, steps = magnitude.search(1000, value, 0.7)
    assert seen == [900, 810, 729, 657]  # 72.9 go from 729: 72
    assert left == 729
    assert [step.kept for step in steps] == [True, True, True, False]
    assert steps[-1] == WeightStep(0.657, 0.657, False)


def test_ten_steps_are_the_most_and_nothing_goes_where_a_tenth_is_nothing() -> None:
    assert len(magnitude.search(10**6, lambda left: 1.0, 0.5)[1]) == 10
    assert magnitude.search(9, lambda left: 1.0, 0.5) == (9, [])


def half(model: nn.Module) -> dict[str, Tensor]:
    tensors = tensors_of(model)
    order = magnitude.by_magnitude(tensors)
    return magnitude.masks(tensors, magnitude.networks(order, len(order) // 2, seed=0)["random"])


def test_within_the_block_they_are_zero_and_afterwards_what_they_were() -> None:
    model = tiny()
    masks, before = half(model), Fingerprint(model)
    exact = {name: one.detach().clone() for name, one in model.named_parameters()}

    def look() -> None:
        with magnitude.masked(model, masks):
            for name, one in model.named_parameters():
                want = exact[name] * masks[name] if name in masks else exact[name]
                assert torch.equal(one, want)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        look()
    assert not before.changed()
    assert all(torch.equal(one, exact[name]) for name, one in model.named_parameters())


@pytest.mark.parametrize("recipe", [{"weight_decay": 0.5}, {"accumulate": 2, "max_grad_norm": 0.1}])
def test_zeros_stay_zeros_through_training_and_the_rest_learns(recipe: dict[str, Any]) -> None:
    model = tiny()
    masks = half(model)
    exact = {name: one.detach().clone() for name, one in model.named_parameters()}
    with magnitude.held(model, masks):
        hc.train(model, class_task(8, batch_size=4), Recipe(steps=6, batch_size=4, lr=1e-2, **recipe))
        for name, mask in masks.items():  # inside: nothing was put right afterwards
            assert not model.get_parameter(name)[~mask].any()
    for name, mask in masks.items():
        assert not model.get_parameter(name)[~mask].any()
    weights = [name for name in masks if name.endswith("weight")]
    assert all((model.get_parameter(name)[masks[name]] != exact[name][masks[name]]).any() for name in weights)
    assert not any(one._backward_hooks for one in model.parameters())


def test_an_overflow_where_nothing_stays_is_no_gradient() -> None:
    layer = nn.Linear(2, 1, bias=False)
    with magnitude.held(layer, {"weight": torch.tensor([[True, False]])}):
        (layer.weight * torch.tensor([[1.0, torch.inf]])).sum().backward()
    assert layer.weight.grad.tolist() == [[1.0, 0.0]]  # type: ignore[union-attr]


def test_weights_that_are_computed_from_others_are_refused() -> None:
    model = tiny()
    nn.utils.parametrizations.weight_norm(model.bert.encoder.layer[1].intermediate.dense)  # type: ignore[union-attr,operator]
    with says(hc.errors.Refused, about="1.mlp"):
        tensors_of(model)
