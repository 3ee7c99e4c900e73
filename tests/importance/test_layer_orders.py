"""Dropping layers by their place and by what they contribute: the papers' lists, shares of stacks, plain computations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import close, same_weights
from helpers.small_models import (
    class_loss,
    class_task,
    classifier,
    folder_and_data,
    padded_task,
    ragged_pairs,
    ragged_texts,
    ran,
    ran_json,
    texts,
    zoo_task,
)
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

import headcount as hc
from headcount.importance import criteria, layer_orders
from headcount.runs import Run, read

PLACES = list(layer_orders.ORDERS)
# Sajjad et al. 2020 number layers from 1
DOWN = [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
ODD, EVEN = [11, 9, 7, 5, 3, 1], [12, 10, 8, 6, 4, 2]
PAPER = {"top": DOWN, "bottom": DOWN[::-1], "alternate": ODD + EVEN, "alternate-top": EVEN + ODD}
MIDDLES = [{6, 7}, {5, 6, 7, 8}, {4, 5, 6, 7, 8, 9}, {3, 4, 5, 6, 7, 8, 9, 10}, {2, 3, 4, 5, 6, 7, 8, 9, 10, 11}]
EVERY_OTHER = {
    3: {4, 8, 12},
    4: {3, 6, 9, 12},
    6: {2, 4, 6, 8, 10, 12},
    8: {2, 3, 5, 6, 8, 9, 11, 12},
}  # Fan et al. 2020


def gone(plan: hc.Plan, site: str = "layers") -> set[int]:
    """The layers of a stack that a plan removes, numbered as in the papers."""
    return {index + 1 for index in plan.by_site().get(site, ())}


# -- the orders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", PAPER)
def test_twelve_layers_go_as_in_the_paper(by: str) -> None:
    scores = hc.score(classifier(12), by=by, units="layers")
    assert [unit.index + 1 for unit in scores.order()] == PAPER[by]
    for count in range(13):
        assert gone(hc.plan(scores, count)) == set(PAPER[by][:count])


def test_the_middle_of_twelve_goes_as_in_the_paper() -> None:
    scores = hc.score(classifier(12), by="symmetric", units="layers")
    assert [gone(hc.plan(scores, 2 * pairs)) for pairs in range(1, 6)] == MIDDLES


@pytest.mark.parametrize("layers", range(1, 26))
@pytest.mark.parametrize("by", PLACES)
def test_an_order_of_any_number_of_layers_has_each_once(by: str, layers: int) -> None:
    order = layer_orders.ORDERS[by](layers)
    assert sorted(order) == list(range(layers))
    ranks = layer_orders.ranks(by, layers)
    assert np.argsort(ranks).tolist() == order
    assert 0 < ranks.min() < 1
    first = sorted(order[: layers // 2])
    if by.startswith("alternate"):
        assert all(b - a == 2 for a, b in pairwise(first))
        assert layers - 1 in order[:1] if by == "alternate-top" else layers < 2 or order[0] == layers - 2
    for count in range(layers) if by == "symmetric" else ():
        left = [place for place in range(layers) if place not in order[:count]]
        below = sum(place < (layers - 1) / 2 for place in left)
        above = sum(place > (layers - 1) / 2 for place in left)
        assert 0 <= below - above <= 1
        assert sorted(order[:count]) == list(range(min(order[:count], default=0), max(order[:count], default=-1) + 1))


@pytest.mark.parametrize("by", PLACES)
def test_plans_are_nested_and_a_model_that_was_cut_goes_on_by_what_is_left(by: str) -> None:
    model = classifier(7)
    scores = hc.score(model, by=by, units="layers")
    plans = [hc.plan(scores, count) for count in range(8)]
    assert all(one.units < other.units for one, other in pairwise(plans))
    hc.cut(model, "layers:1,4")
    again = hc.score(model, by=by, units="layers")
    left = [0, 2, 3, 5, 6]
    assert [unit.index for unit in again.order()] == [left[place] for place in layer_orders.ORDERS[by](5)]


# -- shares of several stacks ----------------------------------------------------------------------------------------------


def shares(by: str, sizes: Sequence[int], count: int) -> list[int]:
    """How many of the first so many units each stack has."""
    stack = np.repeat(np.arange(len(sizes)), sizes)
    first = np.argsort(np.concatenate([layer_orders.ranks(by, size) for size in sizes]), kind="stable")[:count]
    return [int((stack[first] == place).sum()) for place in range(len(sizes))]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("by", PLACES)
def test_every_stack_loses_its_share(by: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    for sizes in (draw.integers(1, 25, 2), draw.integers(1, 25, 3), [6, 6], [12, 12, 12]):
        for count in range(sum(sizes) + 1):
            exact = np.array(sizes) * count / sum(sizes)
            assert np.abs(np.array(shares(by, sizes, count)) - exact).max() < 1


def bart(encoder: int, decoder: int) -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sides = {"encoder_layers": encoder, "decoder_layers": decoder}
        return BartForConditionalGeneration(BartConfig(**{**zoo.SEQ2SEQ, **sides})).eval()


def test_both_sides_of_a_translator_lose_their_upper_layers() -> None:
    model = bart(6, 3)
    scores = hc.score(model, by="top", units="layers")
    for count, encoder, decoder in ((3, {6, 5}, {3}), (6, {6, 5, 4, 3}, {3, 2}), (1, {6}, set())):
        plan = hc.plan(scores, count)
        assert (gone(plan, "encoder.layers"), gone(plan, "decoder.layers")) == (encoder, decoder)
    assert gone(hc.plan(scores, 2, only="decoder.layers"), "decoder.layers") == {3, 2}


@pytest.mark.parametrize("seed", range(6))
def test_shares_by_largest_remainders_are_the_nearest_whole_numbers(seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, 8, 2 + seed % 3).tolist()
    for count in range(sum(sizes) - len(sizes) + 1):
        exact = [count * size / sum(sizes) for size in sizes]
        every = [one for one in product(*(range(size) for size in sizes)) if sum(one) == count]
        best = min(sum(abs(a - b) for a, b in zip(one, exact, strict=True)) for one in every)
        got = layer_orders._shares(count, sizes)
        assert tuple(got) in every
        assert sum(abs(a - b) for a, b in zip(got, exact, strict=True)) == pytest.approx(best)


def test_evenly_spaced_layers_stay_as_in_the_paper() -> None:
    anatomy = hc.find(classifier(12))
    for count, want in EVERY_OTHER.items():
        assert gone(layer_orders.spaced(anatomy, count)) == want
    for count in range(12):
        plan = layer_orders.spaced(anatomy, count)
        left = [place for place in range(1, 13) if place not in gone(plan)]
        gaps = {b - a for a, b in zip(left, [*left[1:], 13], strict=True)}
        assert len(plan) == count
        assert left[0] == 1
        assert max(gaps) - min(gaps) <= 1


def test_evenly_spaced_layers_of_a_translator() -> None:
    model = bart(6, 3)
    anatomy = hc.find(model)
    plan = layer_orders.spaced(anatomy, 3)
    assert (gone(plan, "encoder.layers"), gone(plan, "decoder.layers")) == ({3, 6}, {3})
    assert layer_orders.spaced(anatomy, 2, "decoder") == layer_orders.spaced(anatomy, 2, only=["decoder.layers"])
    assert gone(layer_orders.spaced(anatomy, 2, "decoder"), "decoder.layers") == {2, 3}
    hc.cut(model, "encoder.layers:0")
    assert gone(layer_orders.spaced(hc.find(model), 4, "encoder"), "encoder.layers") == {3, 4, 5, 6}
    for count, only in ((8, ()), (3, "decoder"), (-1, ())):
        with says(hc.errors.BadPlan, about="must stay"):
            layer_orders.spaced(anatomy, count, only)
    with says(hc.errors.BadPlan, about="is vision"):
        layer_orders.spaced(anatomy, 1, "vision")


# -- cutting by them -------------------------------------------------------------------------------------------------------

DEEP = {
    "bert": zoo.hf("bert", "BertForMaskedLM", {**zoo.ENCODER, "num_hidden_layers": 5}, [], []),
    "gpt2": zoo.hf("gpt2", "GPT2LMHeadModel", {**zoo.GPT, "n_layer": 5}, [], []),
    "bart": zoo.seq2seq(
        "bart", "BartForConditionalGeneration", {**zoo.SEQ2SEQ, "encoder_layers": 5, "decoder_layers": 3}, [], []
    ),
    "t5": zoo.seq2seq("t5", "T5ForConditionalGeneration", {**zoo.T5, "num_layers": 5, "num_decoder_layers": 3}, [], []),
    "vit": zoo.image("vit", "ViTModel", {**zoo.VISION, "num_hidden_layers": 5}, [], []),
}


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return zoo.judged(model(**batch)).flatten(1).square().sum(1)


def plan_of(model: nn.Module, inputs: zoo.Inputs, by: str, share: float) -> hc.Plan:
    """The plan that removes this share of all layers by a strategy."""
    if by == "spaced":
        anatomy = hc.find(model)
        return layer_orders.spaced(anatomy, int(share * sum(map(len, anatomy.stacks))))
    return hc.plan(hc.score(model, hc.custom_task([inputs], loss=loss_of), by, units="layers"), share)


@pytest.mark.parametrize("by", [*PLACES, "contribution", "spaced"])
@pytest.mark.parametrize("name", DEEP)
def test_what_is_cut_computes_what_is_closed_and_is_saved_with_new_numbers(
    name: str, by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(zoo.ZOO, name, DEEP[name])
    model, inputs = zoo.build(name)
    plan = plan_of(model, inputs, by, 0.5)
    sizes = {stack.name: len(stack) for stack in hc.find(model).stacks}
    assert max(sizes.values()) == 5  # the deep one, whichever model of this name was built before
    assert len(plan) == sum(sizes.values()) // 2
    with hc.masked(model, plan):
        want = zoo.output(model, inputs)
    hc.cut(model, plan)
    got = zoo.output(model, inputs)
    assert close(got.numpy(), want.numpy())
    for stack in hc.find(model).stacks:
        lost = plan.by_site().get(stack.name, ())
        assert stack.ids == tuple(index for index in range(sizes[stack.name]) if index not in lost)
        assert list(stack.container._modules) == [str(number) for number in range(len(stack))]
        assert all(model.get_submodule(f"{stack.path}.{n}") is block for n, block in enumerate(stack.blocks))
    loaded = hc.load(hc.save(model, tmp_path / "smaller"))
    assert same_weights(loaded, model)
    assert close(zoo.output(loaded, inputs).numpy(), got.numpy())
    assert hc.removed(loaded).units == hc.removed(model).units == plan.units
    stock = type(model).from_pretrained(tmp_path / "smaller").eval()  # whole layers are all that is gone
    assert same_weights(stock, model)
    assert close(zoo.output(stock, inputs).numpy(), got.numpy())


# -- what layers contribute ------------------------------------------------------------------------------------------------


def contribution(model: nn.Module, task: hc.data.Task, **options: Any) -> np.ndarray:
    samples = hc.score(model, task, "contribution", units="layers", **options).samples
    assert samples is not None
    return samples


def plain(model: nn.Module, task: hc.data.Task) -> np.ndarray:
    """Each example alone and without padding, from the hidden states that the model hands out."""
    out = []
    for example in range(task.size):
        batch = {key: value for key, value in task.collate([example]).items() if key != "labels"}
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True).hidden_states
        pairs = pairwise(states)
        out.append([float(1 - cosine_similarity(a[0].double(), b[0].double(), -1).mean()) for a, b in pairs])
    return np.array(out)


def ragged_prose() -> hc.data.Task:
    """Texts of different lengths for a GPT-2, padded at their ends."""
    rows = [{"input_ids": row[: 3 + number], "attention_mask": [1] * (3 + number)} for number, row in enumerate(PROSE)]
    return padded_task(rows, loss_of, {"input_ids": 0, "attention_mask": 0}, 3)


PROSE = texts(6).tolist()


def test_contributions_of_bert_from_its_hidden_states() -> None:
    model, task = classifier(4), ragged_texts()
    scores = hc.score(model, task, "contribution", units="layers")
    want = plain(model, task)
    assert close(scores.samples, want)
    assert close(scores.raw, want.mean(0))
    assert np.diff(np.sort(want.mean(0))).min() > 1e-3
    assert [unit.index for unit in scores.order()] == np.argsort(want.mean(0)).tolist()
    assert "metric:layers" in scores.signature


def test_contributions_of_gpt2_from_its_hidden_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(zoo.ZOO, "gpt2", DEEP["gpt2"])
    model, _ = zoo.build("gpt2")
    model.transformer.ln_f = nn.Identity()  # the last hidden states that it hands out are those after this norm
    task = ragged_prose()
    assert close(contribution(model, task), plain(model, task))


@pytest.mark.parametrize(
    ("make", "name"), [(ragged_texts, None), (ragged_prose, "gpt2"), (ragged_pairs, "bart"), (ragged_pairs, "marian")]
)
def test_batch_size_padding_and_order_do_not_matter(make: Any, name: str | None) -> None:
    model = zoo.build(name)[0] if name else classifier()
    if name not in (None, "gpt2"):
        model.config.pad_token_id = 1
    task = make()
    alone = contribution(model, task, batch_size=1)
    assert len({tuple(v.shape) for b in task.batches(2) for v in task.collate(b).values()}) > 2  # lengths differ
    for size in (2, 4, task.size):
        assert close(alone, contribution(model, task, batch_size=size))
    turned = list(reversed(range(task.size)))
    assert close(alone[turned], contribution(model, task.subset(turned)))


@pytest.mark.parametrize("name", ["albert", "t5", "swin", "sam_vision", "torch-encoder-seq-first", "perceiver", "lfm2"])
def test_contributions_are_those_of_every_call(name: str) -> None:
    model, task = zoo_task(name)
    parts = {id(block): [] for stack in hc.find(model).stacks for block in stack.blocks}

    def see(block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        before = args[0] if args else kwargs["hidden_states"]
        after = output if isinstance(output, Tensor) else output[0]
        parts[id(block)].append(1 - cosine_similarity(before.double(), after.double(), -1))

    handles = [b.register_forward_hook(see, with_kwargs=True) for s in hc.find(model).stacks for b in s.blocks]
    with torch.no_grad():
        task.loss(model, task.collate(range(task.size)))
    for handle in handles:
        handle.remove()
    calls = [[part.reshape(task.size, -1) for part in seen] for seen in parts.values()]
    want = torch.stack([torch.cat(each, 1).mean(1) for each in calls], 1).numpy()
    assert close(contribution(model, task), want)


def test_a_model_whose_first_axis_is_the_time_is_asked_about_one_example_after_the_other() -> None:
    model, inputs = zoo.build("torch-encoder-seq-first")
    (name,) = inputs
    task = hc.custom_task(
        [{"x": torch.cat([inputs[name], 2 * inputs[name]], 1).transpose(0, 1)}],
        loss=lambda m, b: zoo.judged(m(**{name: b["x"].transpose(0, 1)})).sum((0, 2)),
    )
    assert task.size == 4
    each = [contribution(model, task.subset([example]))[0] for example in range(task.size)]
    assert close(contribution(model, task), np.stack(each))


def test_a_layer_that_does_nothing_contributes_nothing_and_goes_first() -> None:
    model, task = classifier(4), class_task(7)
    model.bert.encoder.layer[2].forward = lambda hidden_states, *_, **__: hidden_states
    scores = hc.score(model, task, "contribution", units="layers")
    assert scores["layers:2"] == pytest.approx(0, abs=1e-10)  # the cosine of a vector and itself, in float64
    assert scores.order()[0] == hc.Unit("layers", 2)
    model.bert.encoder.layer[2].forward = lambda hidden_states, *_, **__: -hidden_states
    assert hc.score(model, task, "contribution", units="layers")["layers:2"] == pytest.approx(2)


def test_the_model_is_left_as_it_was_also_after_an_error() -> None:
    model, task = zoo_task("bart")
    before = Fingerprint(model)
    contribution(model, task)
    assert before.changed() == []

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        model(**batch)
        raise KeyError("interrupted")

    with pytest.raises(KeyError):
        contribution(model, hc.custom_task([task.collate([0])], loss=loss))
    assert before.changed() == []


@pytest.mark.parametrize("most", [0, 1, 3])
def test_fewer_examples_where_memory_runs_out(most: int) -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        if len(batch["labels"]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return class_loss(model, batch)

    model = classifier()
    if not most:
        with says(hc.errors.OutOfMemory, about="layers of one example alone"):
            contribution(model, class_task(7, loss=loss))
        return
    assert close(contribution(model, class_task(7, loss=loss)), contribution(model, class_task(7)))


def test_a_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, task, done = classifier(), ragged_texts(), []
    really = layer_orders._batch

    def batch(*given: Any) -> dict[str, np.ndarray]:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(given[-1])
        return really(*given)

    monkeypatch.setattr(layer_orders, "_batch", batch)
    with pytest.raises(KeyboardInterrupt), Run.open(tmp_path / "run", {"command": "x"}) as run:
        contribution(model, task, run=run)
    monkeypatch.setattr(layer_orders, "_batch", lambda *given: done.append(given[-1]) or really(*given))
    with Run.open(tmp_path / "run", {"command": "x"}) as run:
        got = contribution(model, task, run=run)
    assert sorted(number for numbers in done for number in numbers) == list(range(task.size))
    assert close(got, contribution(model, task))


@pytest.mark.parametrize(("by", "units"), [("contribution", "layers"), ("confidence", "heads")])
def test_scores_of_two_models_in_one_run_do_not_meet(by: str, units: str, tmp_path: Path) -> None:
    models, task = [classifier(), classifier()], class_task(7, batch_size=2)
    for parameter in models[1].parameters():
        parameter.data = parameter.data * 1.5
    with Run.open(tmp_path / "run", {"command": "x"}) as run:
        pair = [hc.score(one, task, by, units=units, run=run, name=f"score-{n}") for n, one in enumerate(models)]
    for one, got in zip(models, pair, strict=True):
        assert close(got.samples, hc.score(one, task, by, units=units).samples, 1e-4)
    assert not close(pair[0].samples, pair[1].samples, 1e-2)


# -- wrong requests, and commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", ["heads", "neurons", "heads,layers"])
@pytest.mark.parametrize("by", [*PLACES, "contribution"])
def test_only_layers_have_such_an_order(by: str, units: str) -> None:
    with says(hc.errors.BadPlan, about=f"{by} is an order of layers"):
        hc.score(classifier(), class_task(7), by, units=units)


def test_what_cannot_be_said_is_said() -> None:
    with says(hc.errors.BadPlan, about="give a task"):
        hc.score(classifier(), by="contribution", units="layers")
    model, task = zoo_task("hiera")
    with says(hc.errors.Refused, about="does not hand on what it takes in"):
        contribution(model, task)
    model, inputs = zoo.build("clip")
    one_tower = hc.custom_task(
        [{"pixel_values": inputs["pixel_values"]}], loss=lambda m, b: m.vision_model(**b).pooler_output.sum(1)
    )
    with says(hc.errors.Refused, about="does not run on"):
        contribution(model, one_tower)
    model = classifier()
    model.bert.encoder.layer[1].output.LayerNorm.bias.data[3] = torch.inf
    with says(hc.errors.NotFinite, about="not finite"):
        contribution(model, class_task(7))


def test_the_criteria_are_there_for_every_verb() -> None:
    assert list(criteria.CRITERIA)[-6:] == [*PLACES, "contribution"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier of four layers and its data."""
    return folder_and_data(tmp_path_factory.mktemp("layers"), layers=4)


def test_the_commands_drop_layers_by_place(place: Path, tmp_path: Path) -> None:
    model, data = place / "model", ["--data", place / "data.tsv"]
    run = tmp_path / "run"
    made = ran_json("score", model, "--by", "top", "--units", "layers", "-o", run)
    assert made["by"] == "top"
    done = ran("cut", model, "--scores", run / "scores.json", "--remove", "2", "-o", tmp_path / "cut")
    assert done.exit_code == 0, done.output
    assert hc.removed(hc.load(tmp_path / "cut")) == hc.Plan.removing({"layers": [2, 3]})
    orders = "top,alternate,contribution,random"
    drawn = ran_json("curve", model, *data, "--by", orders, "--units", "layers", "--step", "1", "-o", tmp_path / "c")
    assert {one["by"] for one in drawn["curves"]} == set(orders.split(","))
    how = ["--method", "symmetric", "--units", "layers", "--keep", "2", "--epochs", "0", "--run", tmp_path / "l"]
    learnt = ran_json("learn", model, *data, *how, "-o", tmp_path / "learnt")
    assert learnt["plan"]["remove"] == {"layers": "1-2"}
    how = ["--units", "layers", "--by", "bottom", "--remove", "1", "-o", tmp_path / "pruned"]
    done = ran("prune", model, *data, *how, "--no-report", "--run", tmp_path / "p")
    assert done.exit_code == 0, done.output
    assert hc.removed(hc.load(tmp_path / "pruned")) == hc.Plan.removing({"layers": [0]})
    assert read(tmp_path / "p")
