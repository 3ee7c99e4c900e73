"""What units contribute to the loss, to first order: against gates, finite differences, and one example at a time."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import close
from helpers.small_models import (
    by_gates,
    class_loss,
    class_task,
    classifier,
    loss_of,
    naive,
    parts_of,
    ragged_pairs,
    ragged_texts,
    spread,
    texts,
    zoo_task,
)
from torch import Tensor, nn

import headcount as hc
from headcount.evaluation.ablation import plans_of
from headcount.importance import gradients
from headcount.importance.gradients import Contributions, contributions
from headcount.model.tensor_trees import tensors

FAMILIES = list(zoo.ZOO)


def gathered(model: nn.Module, task: hc.data.Task, **options: Any) -> Contributions:
    return contributions(model, hc.find(model), parts_of(model), task, **options)


# -- the law, family by family -----------------------------------------------------------------------------------------


def law_contributions_are_derivatives(name: str) -> None:
    model, task = zoo_task(name)
    found = gathered(model, task)
    apart = range(2) if task.rowwise else range(1)  # the other two are the same ones again
    want = [by_gates(model, task, example) for example in apart]
    for part in parts_of(model):
        each = np.stack([one[part.name] for one in want])
        # rounding on the way there and on the way back: a part that matters little has that of all the others in it
        allowed = 1e-4 * max(1e-2, float(np.abs(each).max()))
        if part.kind == "neuron":  # one row for all
            whole = each.sum(0, keepdims=True) * (task.size / len(each))
            assert np.abs(found.signed[part.name] - whole).max() <= 4 * allowed, part.name
        else:
            assert np.abs(found.signed[part.name][: len(each)] - each).max() <= allowed, part.name
            assert len(found.signed[part.name]) == task.size


@pytest.mark.parametrize("name", FAMILIES)
def test_contributions_are_the_derivatives_of_each_example(name: str) -> None:
    law_contributions_are_derivatives(name)


@pytest.mark.parametrize("name", ["bert", "llama", "bart", "swin"])
def test_the_law_sees_examples_mixed_up(name: str, monkeypatch) -> None:
    right = gradients._add

    def mixed(sums: Any, each: Tensor, size: int, columns: slice) -> None:
        right(sums, each.reshape(size, -1, each.shape[-1]).roll(1, 0), size, columns)

    monkeypatch.setattr(gradients, "_add", mixed)
    with pytest.raises(AssertionError):
        law_contributions_are_derivatives(name)


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "bart"])
def test_contributions_are_finite_differences(name: str) -> None:
    model, task = zoo_task(name, torch.float64)
    found = gathered(model, task)
    batch, step = task.collate(range(task.size)), 1e-4
    for part in parts_of(model):
        for place in {0, len(part) // 2, len(part) - 1}:
            sides = []
            for shift in (step, -step):
                gate = torch.ones(len(part), dtype=torch.float64)
                gate[place] += shift
                with hc.gated(model, {part.name: gate}), torch.no_grad():
                    sides.append(task.loss(model, batch).numpy())
            slope = (sides[0] - sides[1]) / (2 * step)
            got = found.signed[part.name][:, place]
            want = slope if part.kind != "neuron" else slope.sum(0, keepdims=True)
            assert np.abs(got - want).max() <= 1e-5 * max(1.0, np.abs(found.signed[part.name]).max()), part.name


def test_the_other_numbers_follow_from_the_derivatives() -> None:
    model, task = classifier(), class_task(7)
    found = gathered(model, task)
    each = np.stack([by_gates(model, task, example)["1.mlp"] for example in range(7)])
    assert close(found.signed["1.mlp"], each.sum(0, keepdims=True))
    assert close(found.absolute["1.mlp"], np.abs(each).sum(0, keepdims=True))  # of each example, then summed
    assert close(found.squared["1.mlp"], (each**2).sum(0, keepdims=True))
    assert found.examples["1.mlp"].tolist() == [[7.0]]
    for name in ("0", "2", "layers"):
        assert np.array_equal(found.absolute[name], np.abs(found.signed[name]))
        assert np.array_equal(found.squared[name], np.square(found.signed[name]))
        assert found.examples[name].tolist() == [[1.0]] * 7


def test_other_readers_of_the_same_tensor_do_not_count() -> None:
    model, task = classifier(), class_task(4)
    dense, outside = model.bert.encoder.layer[1].attention.output.dense, []
    model.bert.encoder.layer[1].attention.self.register_forward_hook(lambda _, __, output: outside.append(output[0]))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        del outside[:]
        return class_loss(model, batch) + outside[0].square().sum((1, 2))

    beside = replace(task, loss=loss)
    want = np.stack([by_gates(model, beside, example)["1"] for example in range(4)])
    assert dense is hc.find(model)["1"].writer
    assert close(gathered(model, beside).signed["1"], want)


def test_hooks_of_the_model_see_what_goes_on() -> None:
    """As those do by which transformers records hidden states: some models go on from these."""
    model, task, recorded = classifier(), class_task(4), []
    layers = hc.find(model)["layers"]
    layers.blocks[0].register_forward_hook(lambda _, __, output: recorded.append(next(tensors(output))))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        del recorded[:]
        return class_loss(model, batch) + spread(recorded[0])

    beside = replace(task, loss=loss)
    want = np.stack([by_gates(model, beside, example)["layers"] for example in range(4)])
    assert close(contributions(model, hc.find(model), [layers], beside).signed["layers"], want)


# -- independence ------------------------------------------------------------------------------------------------------


def same(one: Contributions, other: Contributions, rows: Any = slice(None)) -> bool:
    """Whether two gave the same, kind by kind, for the parts whose rows are examples."""
    for kind in gradients.PARTS:
        for name, value in getattr(one, kind).items():
            if not name.endswith("mlp") and not close(value[rows], getattr(other, kind)[name]):
                return False
            if name.endswith("mlp") and not close(value.sum(0), getattr(other, kind)[name].sum(0)):
                return False
    return True


@pytest.mark.parametrize(("make", "name"), [(ragged_texts, None), (ragged_pairs, "bart"), (ragged_pairs, "marian")])
def test_batch_size_padding_and_order_do_not_matter(make: Any, name: str | None) -> None:
    model = zoo.build(name)[0] if name else classifier()
    if name:
        model.config.pad_token_id = 1
    task = make()
    assert len({tuple(v.shape) for b in task.batches(2) for v in task.collate(b).values()}) > 3  # lengths differ
    alone = gathered(model, task, batch_size=1)
    for size in (2, 4, task.size):
        assert same(alone, gathered(model, task, batch_size=size))
    turned = list(reversed(range(task.size)))
    assert same(alone, gathered(model, task.subset(turned)), rows=turned)


def test_rows_are_the_examples_in_their_order() -> None:
    model, task = classifier(), ragged_texts()
    found = gathered(model, task)
    for example in range(task.size):
        assert close(found.signed["1"][example], by_gates(model, task, example)["1"])


def test_a_loss_over_the_whole_batch_is_taken_one_by_one() -> None:
    def against_all(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["input_ids"]).logits
        return logits[:, 0] * logits[:, 1].mean()

    model, task = classifier(), class_task(5, loss=against_all)
    found = gathered(model, task)
    each = np.stack([gathered(model, task.subset([n])).signed["0"][0] for n in range(5)])
    assert close(found.signed["0"], each)


def test_chunks_and_blocks_are_of_consecutive_examples(monkeypatch) -> None:
    model, task = classifier(), ragged_texts(7)
    whole = gathered(model, task)
    monkeypatch.setattr(gradients, "CHUNK", 4)
    monkeypatch.setattr(gradients, "BLOCK", 2)
    found = gathered(model, task)
    assert same(whole, found)
    assert found.examples["0.mlp"].tolist() == [[2.0], [2.0], [2.0], [1.0]]
    each = np.stack([by_gates(model, task, example)["0.mlp"] for example in range(7)])
    assert close(found.signed["0.mlp"], np.add.reduceat(each, [0, 2, 4, 6]))
    assert close(found.blocks("0"), np.add.reduceat(whole.signed["0"], [0, 2, 4, 6]))
    assert found.blocks("0.mlp") is found.signed["0.mlp"]


# -- positions ---------------------------------------------------------------------------------------------------------


def test_token_sums_and_positions_by_hand() -> None:
    model, task = classifier(), class_task(4)
    site, batch = hc.find(model)["1"], task.collate(range(4))
    kept: list[Tensor] = []

    def keep(_: nn.Module, args: Any) -> None:
        args[0].retain_grad()
        kept.append(args[0])

    with torch.enable_grad():
        handle = site.writer.register_forward_pre_hook(keep)
        class_loss(model, batch).sum().backward()
        handle.remove()
    context, gradient = kept[0].detach(), kept[0].grad
    inner = (context * gradient).unflatten(-1, (4, 8)).sum(-1)  # <what a head gives, gradient> at each position
    found = gathered(model, task)
    assert close(found.token["1"], inner.abs().sum(1).numpy())
    assert close(found.signed["1"], inner.sum(1).numpy())
    assert not close(found.token["1"], np.abs(found.signed["1"]))
    assert found.positions["1"].tolist() == [[9.0]] * 4
    assert found.positions["2"].tolist() == [[1.0]] * 4  # of the last layer one token is read
    assert found.positions["layers"].tolist() == [[9.0, 9.0, 1.0]] * 4


def test_padding_is_not_among_the_positions() -> None:
    """BERT's padding is masked, so no gradient comes back from it in the layer before the last."""
    task = ragged_texts()
    found = gathered(classifier(), task)
    assert found.positions["1"][:, 0].tolist() == [3 + number % 7 for number in range(7)]


# -- nothing is left behind --------------------------------------------------------------------------------------------


def test_the_model_is_as_it_was() -> None:
    model = classifier().train()
    model.bert.embeddings.requires_grad_(False)
    model.bert.encoder.layer[1].eval()
    before = Fingerprint(model)
    gathered(model, class_task(7))
    assert before.changed() == []
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("after", ["forward", "loss"])
def test_the_model_is_as_it_was_after_an_exception(after: str) -> None:
    model = classifier().train()
    model.bert.embeddings.requires_grad_(False)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        if after == "loss":
            class_loss(model, batch)
        raise KeyboardInterrupt

    before = Fingerprint(model)
    with pytest.raises(KeyboardInterrupt):
        gathered(model, class_task(7, loss=loss))
    assert before.changed() == []


def test_gradients_of_the_user_stay() -> None:
    model = classifier()
    class_loss(model, class_task(2).collate([0, 1])).sum().backward()
    kept = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    gathered(model, class_task(7))
    assert kept
    assert all(torch.equal(p.grad, kept[name]) for name, p in model.named_parameters() if name in kept)


def test_no_grad_and_inference_mode_around_it_do_not_matter() -> None:
    model, task = classifier(), class_task(7)
    want = gathered(model, task)
    with torch.no_grad():
        assert same(want, gathered(model, task))
    with torch.inference_mode():
        assert same(want, gathered(model, task))


# -- runs --------------------------------------------------------------------------------------------------------------


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(gradients, "CHUNK", 2)
    seen: list[int] = []

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        given = class_loss(model, batch)
        if given.requires_grad:  # asked for its gradient
            if len(seen) == stop:
                raise KeyboardInterrupt
            seen.append(len(batch["labels"]))
        return given

    model, task, stop = classifier(), class_task(7, loss=loss), 2
    model.requires_grad_(False)
    with pytest.raises(KeyboardInterrupt), hc.runs.Run.open(tmp_path / "run", {"what": "test"}) as run:
        gathered(model, task, run=run)
    assert seen == [2, 2]
    stop = 99
    with hc.runs.Run.open(tmp_path / "run", {"what": "test"}) as run:
        resumed = gathered(model, task, run=run)
    assert seen == [2, 2, 2, 1]  # only the third and the fourth chunk
    assert same(gathered(model, task), resumed)


# -- numbers that are none, memory -------------------------------------------------------------------------------------


def test_a_loss_that_is_not_a_number_names_the_example() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        bad = batch["input_ids"][:, 0] == texts(7)[4, 0]
        return class_loss(model, batch).masked_fill(bad, float("nan"))

    task = class_task(7, loss=loss, batch_size=3)
    with says(hc.errors.NotFinite, about="The loss of example 5 of batch 1 of own batches is nan"):
        gathered(classifier(), task)
    with says(hc.errors.NotFinite, about="The value of example 5 of batch 1 of own batches is nan"):
        hc.evaluate(classifier(), task)


def test_a_value_that_is_not_a_number_names_what_was_closed() -> None:
    model = classifier()

    def values(model: Any, batch: dict[str, Tensor]) -> Tensor:
        given = class_loss(model, batch)
        third = batch["input_ids"][:, 0] == texts(7)[2, 0]
        return torch.where(third & ((given - whole[2]).abs() > 1e-3), torch.inf, given)

    with torch.no_grad():
        whole = class_loss(model, class_task(7).collate(range(7)))
    with says(hc.errors.NotFinite, about="of example 3 of batch 1 of own batches is inf with 1:2 closed"):
        hc.evaluation.measure(model, class_task(7, values=values, loss=class_loss), [hc.Plan(), hc.Plan.of("1:2")])


class Steep(torch.autograd.Function):
    """Hands on what it is given, and infinite gradients for the examples named."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bad: Tensor) -> Tensor:
        ctx.save_for_backward(bad)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        bad = ctx.saved_tensors[0]
        return gradient.masked_fill(bad.reshape(-1, *[1] * (gradient.dim() - 1)), float("inf")), None


def test_a_gradient_that_is_not_a_number_names_the_example() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return Steep.apply(class_loss(model, batch), batch["input_ids"][:, 0] == texts(7)[4, 0])

    with says(
        hc.errors.NotFinite, about="The gradient of the loss of example 5 of batch 1 of own batches is not finite"
    ):
        gathered(classifier(), class_task(7, loss=loss, batch_size=3))


def test_a_gradient_that_is_not_a_number_in_the_first_layer_alone_names_the_example() -> None:
    """All other parts have finite gradients then."""
    model = classifier()
    now: list[Tensor] = []
    model.bert.encoder.layer[0].attention.register_forward_hook(
        lambda _, __, output: (Steep.apply(output[0], now[-1]), *output[1:])
    )

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        now.append(batch["input_ids"][:, 0] == texts(7)[4, 0])
        return class_loss(model, batch)

    with says(
        hc.errors.NotFinite, about="The gradient of the loss of example 5 of batch 1 of own batches is not finite"
    ):
        gathered(model, class_task(7, loss=loss, batch_size=3))


def test_a_loss_without_a_gradient_is_refused() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return class_loss(model, batch).detach()

    with says(hc.errors.Refused, about="has no gradient"):
        gathered(classifier(), class_task(7, loss=loss))


def test_one_loss_for_the_whole_batch_is_refused() -> None:
    task = replace(class_task(7), loss=lambda model, batch: class_loss(model, batch).mean(0, keepdim=True))
    with says(hc.errors.Refused, about="has shape (1,) for 2 examples"):
        gathered(classifier(), task)


def small_memory(most: int) -> tuple[Any, list[int]]:
    """A loss for which more examples than `most` are too many, and how many it was asked for."""
    asked: list[int] = []

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        asked.append(len(batch["labels"]))
        if asked[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return class_loss(model, batch)

    return loss, asked


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch) -> None:
    """Collecting garbage is what takes long here: everything that transformers has imported is looked at."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_gradients_of_fewer_examples_where_memory_runs_out(most: int) -> None:
    model = classifier()
    loss, asked = small_memory(most)
    assert same(gathered(model, class_task(7)), gathered(model, class_task(7, loss=loss)))
    assert max(asked) == (7 if most > 1 else 2)  # two together did not fit: one by one from then on


@pytest.mark.parametrize("most", [1, 2, 3, 10])
def test_values_of_fewer_examples_where_memory_runs_out(most: int) -> None:
    model = classifier()
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values()]
    loss, asked = small_memory(most)
    values = hc.evaluation.measure(model, class_task(7, loss=loss), plans)
    assert close(naive(model, class_task(7), plans), values)
    assert max(asked) > most


def test_half_as_many_plans_to_a_pass_where_memory_runs_out() -> None:
    model = classifier()
    loss, asked = small_memory(20)
    hc.evaluation.measure(model, class_task(7, loss=loss), [hc.Plan(), *plans_of(hc.find(model), "heads").values()])
    assert sorted(set(asked))[-2:] == [14, 28]  # of the four heads of a layer, two


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, RuntimeError])
def test_one_example_that_does_not_fit(error: type[Exception]) -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        if bool((batch["input_ids"][:, 0] == texts(7)[5, 0]).any()):
            raise error("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: 1 bytes")
        return class_loss(model, batch)

    task, model = class_task(7, loss=loss), classifier()
    before = Fingerprint(model)
    with says(hc.errors.OutOfMemory, about="example 6 of batch 1 of own batches"):
        gathered(model, task)
    with says(hc.errors.OutOfMemory, about="example 6 of batch 1 of own batches"):
        hc.evaluate(model, task)
    assert before.changed() == []


def test_another_error_is_not_taken_for_memory() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        raise RuntimeError("shapes do not fit")

    for asked in (gathered, hc.evaluate):
        with pytest.raises(RuntimeError, match="shapes do not fit"):
            asked(classifier(), class_task(7, loss=loss))


def test_layers_that_change_the_shape_cannot_be_scored() -> None:
    model, inputs = zoo.build("hiera")
    task = hc.custom_task([inputs], loss=loss_of)
    with says(hc.errors.Refused, about="cannot be scored as a whole"):
        contributions(model, hc.find(model), list(hc.find(model).stacks), task)
