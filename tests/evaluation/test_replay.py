"""`measure`: with replay the values are those of ordinary passes, less is computed, and nothing is left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint
from helpers import zoo
from helpers.same import close
from helpers.small_models import (
    class_loss,
    class_task,
    classifier,
    closable,
    loss_of,
    naive,
    ragged_texts,
    spread,
    texts,
    zoo_task,
)
from torch import Tensor, nn

import headcount as hc
from headcount.evaluation import call_order, evaluator
from headcount.evaluation import replay as replaying
from headcount.evaluation.ablation import plans_of
from headcount.evaluation.call_order import LAYERS, NOTHING, READ_POSITIONS, SITES, CallOrder
from headcount.model.tensor_trees import memory_of

FAMILIES = list(zoo.ZOO)


def of_units(*texts: str) -> list[hc.Plan]:
    return [hc.Plan.of(*text.split()) for text in texts]


@pytest.fixture
def believed(monkeypatch) -> list[CallOrder]:
    """The scripts that were proved, in their order: how deep each is believed."""
    scripts: list[CallOrder] = []
    prove = evaluator._prove

    def watched(work: Any, script: CallOrder, *rest: Any) -> None:
        prove(work, script, *rest)
        scripts.append(script)

    monkeypatch.setattr(evaluator, "_prove", watched)
    return scripts


@pytest.fixture
def linears(monkeypatch) -> list[tuple[nn.Module, tuple[int, ...]]]:
    """Every matrix product that a `nn.Linear` really computes, with the shape of its input."""
    seen: list[tuple[nn.Module, tuple[int, ...]]] = []
    forward = nn.Linear.forward

    def counted(self: nn.Linear, x: Tensor) -> Tensor:
        seen.append((self, tuple(x.shape)))
        return forward(self, x)

    monkeypatch.setattr(nn.Linear, "forward", counted)
    return seen


def some_plans(model: nn.Module, anatomy: hc.model.Anatomy) -> list[hc.Plan]:
    """The whole model, heads of the first and last attention, two of one attention, MLPs, layers, and of all together."""
    sites = [s for s in anatomy.heads if len(s)]
    units = dict.fromkeys([sites[0].units[0], sites[0].units[-1], *sites[-1].units[:2]])
    plans = [hc.Plan(), *(hc.Plan(frozenset([unit])) for unit in units)]
    mlps = dict.fromkeys([*anatomy.neurons[:1], *anatomy.neurons[-1:]])
    plans += [hc.Plan(frozenset(site.units)) for site in mlps]
    plans += [hc.Plan(frozenset([stack.units[-1]])) for stack in closable(model, anatomy)]
    return [*plans, hc.Plan(frozenset([next(iter(units)), *(site.units[0] for site in mlps)]))]


# -- the law, family by family -----------------------------------------------------------------------------------------


def law_replay_equals_passes(name: str) -> None:
    model, task = zoo_task(name)
    plans = some_plans(model, hc.find(model))
    want = hc.evaluation.measure(model, task, plans, replay=False)
    assert close(
        want, hc.evaluation.measure(model, task, plans), 5e-5
    )  # a value is the sum of hundreds of rounded numbers
    assert len(np.unique(want.sum((1, 2)).round(3))) > len(plans) // 2  # most plans change something


@pytest.mark.parametrize("name", FAMILIES)
def test_replay_gives_what_ordinary_passes_give(name: str) -> None:
    law_replay_equals_passes(name)


@pytest.mark.parametrize("name", ["bert", "llama", "bart", "vit"])
def test_the_law_sees_a_start_that_is_too_late(name: str, monkeypatch) -> None:
    right = replaying._place
    monkeypatch.setattr(replaying, "_place", lambda *a: right(*a) + 1)
    monkeypatch.setattr(evaluator, "_prove", lambda *_: None)
    with pytest.raises(AssertionError):
        law_replay_equals_passes(name)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_the_law_sees_copies_with_the_wrong_gates(name: str, monkeypatch) -> None:
    right = replaying._tiled_gates

    def turned(anatomy: Any, plans: Any, size: int) -> dict[str, Tensor]:
        return {k: v.roll(1, 0) if v.dim() == 3 else v for k, v in right(anatomy, plans, size).items()}

    monkeypatch.setattr(replaying, "_tiled_gates", turned)
    monkeypatch.setattr(evaluator, "_prove", lambda *_: None)
    with pytest.raises(AssertionError):
        law_replay_equals_passes(name)


@pytest.mark.parametrize("name", ["bert", "gpt2", "albert", "bart"])
def test_it_is_what_a_loop_over_closed_gives(name: str) -> None:
    model, task = zoo_task(name)
    plans = some_plans(model, hc.find(model))
    assert close(naive(model, task, plans), hc.evaluation.measure(model, task, plans))


def test_padded_batches_of_different_lengths(believed: list[CallOrder]) -> None:
    model, task = classifier(), ragged_texts()
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values()]
    assert close(naive(model, task, plans, alone=True), hc.evaluation.measure(model, task, plans))
    assert [script.depth for script in believed] == [READ_POSITIONS]


def test_a_layer_that_runs_twice_is_not_remembered(believed: list[CallOrder]) -> None:
    model, task = zoo_task("albert")
    hc.evaluation.measure(model, task, [hc.Plan(), *plans_of(hc.find(model)).values()])
    assert believed[0].blocks == []
    model, task = zoo_task("bert")
    hc.evaluation.measure(model, task, [hc.Plan(), *plans_of(hc.find(model)).values()])
    assert len(believed[1].blocks) == 2


# -- work that is not done ---------------------------------------------------------------------------------------------


def rows_of(linears: list, module: nn.Module, examples: int = 7) -> list[tuple[int, ...]]:
    """Shapes that a part was really computed for, in passes over whole batches (proofs take three examples)."""
    inside = set(module.modules())
    return [shape for linear, shape in linears if linear in inside and shape[0] % examples == 0]


def test_layers_below_and_readers_do_not_run_again(linears: list) -> None:
    model, task = classifier(), class_task(7)
    layers = model.bert.encoder.layer
    hc.evaluation.measure(model, task, of_units(*(f"1:{head}" for head in range(4))))
    assert len(rows_of(linears, layers[0])) == 6  # one ordinary pass: q, k, v, out and the MLP
    assert len(rows_of(linears, layers[1].attention.self)) == 3
    assert rows_of(linears, layers[1].attention.output) == [(7, 9, 32), (28, 9, 32)]  # four heads in one pass
    assert len(rows_of(linears, layers[2])) == 12


def test_everything_below_the_mlp_stays(linears: list) -> None:
    model, task = classifier(), class_task(7)
    hc.evaluation.measure(model, task, [hc.Plan.removing({"1.mlp": range(48)}), hc.Plan.removing({"1.mlp": range(9)})])
    layer = model.bert.encoder.layer[1]
    assert len(rows_of(linears, layer.attention)) == 4
    assert len(rows_of(linears, layer.intermediate)) == 1
    assert rows_of(linears, layer.output) == [(7, 9, 48), (14, 9, 48)]


def test_an_attention_that_returns_its_writer_starts_from_it(linears: list) -> None:
    model, _ = zoo.build("llama")
    task = hc.custom_task([{"input_ids": texts(7)}], loss=loss_of)
    hc.evaluation.measure(model, task, of_units("1:0", "1:1"))
    attention = model.model.layers[1].self_attn
    assert len(rows_of(linears, attention.q_proj)) == len(rows_of(linears, attention.k_proj)) == 1
    assert rows_of(linears, attention.o_proj) == [(7, 9, 64), (14, 9, 64)]


def test_the_last_layer_computes_only_what_the_classifier_reads(linears: list) -> None:
    model, task = classifier(), class_task(7)
    last = model.bert.encoder.layer[2]
    hc.evaluation.measure(model, task, of_units("0:0", "0:1"))
    assert rows_of(linears, last.intermediate) == [(7, 9, 32), (14, 1, 32)]
    assert rows_of(linears, last.attention.self.key)[1:] == [(14, 9, 32)]  # all positions are looked at
    del linears[:]
    hc.evaluation.measure(model, task, of_units("2:0", "2:1"))
    assert rows_of(linears, last.intermediate) == [(7, 9, 32), (14, 1, 32)]
    assert rows_of(linears, last.attention.output) == [(7, 9, 32), (14, 1, 32)]
    assert len(rows_of(linears, last.attention.self)) == 3


def test_a_model_that_reads_everything_computes_everything(linears: list, believed: list[CallOrder]) -> None:
    model, _ = zoo.build("bert")
    task = hc.custom_task([{"input_ids": texts(7)}], loss=loss_of)
    hc.evaluation.measure(model, task, of_units("0:0", "0:1"))
    last = hc.find(model).stacks[0].blocks[-1]
    assert {shape[1] for shape in rows_of(linears, last)} == {9}
    assert believed[0].reader is None


def test_without_replay_every_plan_is_a_pass(linears: list) -> None:
    model, task = classifier(), class_task(7)
    hc.evaluation.measure(model, task, of_units("2:0", "2:1", "2:2"), replay=False)
    assert len(rows_of(linears, model.bert.encoder.layer[0])) == 18  # three passes, and none for the whole model
    assert {shape[0] for _, shape in linears} == {7}


def test_one_plan_alone_is_one_pass(linears: list) -> None:
    model, task = classifier(), class_task(7)
    hc.evaluation.measure(model, task, of_units("0:0 2:1"))
    assert len(linears) == 3 * 6 + 2
    del linears[:]
    hc.evaluate(model, task)
    assert len(linears) == 3 * 6 + 2


# -- several plans to a pass, memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "swin"])
def test_several_plans_in_a_pass_are_one_by_one(name: str, monkeypatch) -> None:
    model, task = zoo_task(name)
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values()]
    copies: list[int] = []
    again = evaluator._again

    def counted(*args: Any, **more: Any) -> np.ndarray:
        copies.append(len(args[4]))
        return again(*args, **more)

    monkeypatch.setattr(evaluator, "_again", counted)
    together = hc.evaluation.measure(model, task, plans)
    assert max(copies) > 1
    monkeypatch.setattr(evaluator, "TOKENS_AT_ONCE", {"cpu": 0})
    del copies[:]
    assert close(hc.evaluation.measure(model, task, plans), together)
    assert set(copies) == {1}


def test_a_batch_is_repeated_where_it_has_one_entry_per_example() -> None:
    batch = {"ids": torch.arange(6).view(2, 3), "names": ["a", "b"]}
    constants = {"scale": torch.tensor(0.5), "table": torch.zeros(5, 3), "words": ["a", "b", "c"], "beams": 4}
    again = evaluator.tiled({**batch, **constants}, 2, 3)
    assert (again["ids"].tolist(), again["names"]) == (batch["ids"].tolist() * 3, ["a", "b"] * 3)
    assert all(again[name] is value for name, value in constants.items())


def test_little_memory_gives_the_same_values(monkeypatch) -> None:
    model, task = classifier(), class_task(7)
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values()]
    kept: list[tuple[int, int]] = []
    right = replaying.remember

    def counted(*args: Any, **more: Any) -> Any:
        memory, result = right(*args, **more)
        kept.append((memory.size, memory_of([*memory.outputs.values(), *memory.inputs.values()])))
        return memory, result

    monkeypatch.setattr(replaying, "remember", counted)
    monkeypatch.setattr(gc, "collect", lambda *_: 0)  # looks at everything that transformers has imported
    want = hc.evaluation.measure(model, task, plans)
    assert [size for size, _ in kept] == [2, 7]  # two to prove it, then all
    whole = kept[-1][1]
    for limit, sizes in ((whole, [2, 7]), (whole - 1, [2, 4, 3]), (1, [2, *[1] * 7])):
        del kept[:]
        assert close(want, hc.evaluation.measure(model, task, plans, memory=limit))
        assert [size for size, _ in kept] == sizes


# -- text that is generated --------------------------------------------------------------------------------------------


def generating(model: nn.Module, count: int, **options: Any) -> hc.data.Task:
    """A task whose value tells any two generated texts apart."""

    def values(model: Any, batch: dict[str, Tensor]) -> Tensor:
        made = model.generate(**batch, max_new_tokens=5, do_sample=False, pad_token_id=0, **options).double()
        return (made * torch.arange(1, made.shape[1] + 1)).sum(1)

    return replace(hc.custom_task([{"input_ids": texts(count)}], values=values, loss=loss_of), generates=True)


@pytest.mark.parametrize(("name", "beams"), [("marian", 1), ("bart", 2), ("t5", 1), ("gpt2", 1)])
def test_generated_text_is_that_of_a_loop(name: str, beams: int, believed: list[CallOrder]) -> None:
    model, _ = zoo.build(name)
    task = generating(model, 3, num_beams=beams)
    heads = list(plans_of(hc.find(model), "heads").values())
    plans = [hc.Plan(), *heads[:2], *heads[-3:], *list(plans_of(hc.find(model), "mlps").values())[:1]]
    values = hc.evaluation.measure(model, task, plans)
    assert np.array_equal(values, naive(model, task, plans))
    assert len(np.unique(values)) > 3
    assert believed[0].depth == READ_POSITIONS


def test_the_encoder_is_replayed_for_heads_of_the_decoder(linears: list) -> None:
    model, _ = zoo.build("marian")
    task = generating(model, 7, num_beams=2)
    hc.evaluation.measure(model, task, of_units("decoder.1.cross:0", "decoder.1.cross:1", "decoder.0.self:2"))
    encoder, decoder = model.get_encoder(), model.get_decoder()
    assert len(rows_of(linears, encoder)) == 2 * 6  # once, for the whole model
    assert (
        len(rows_of(linears, decoder.layers[0].fc1)) == 2 * 5
    )  # five tokens of the whole model, five of all three plans


def test_heads_of_the_encoder_run_the_encoder_from_there(linears: list) -> None:
    model, _ = zoo.build("bart")
    hc.evaluation.measure(model, generating(model, 7), of_units("encoder.1:0", "encoder.1:1"))
    layers = model.get_encoder().layers
    assert [len(rows_of(linears, layer)) for layer in layers] == [6, 6 + 3]  # again: its writer and its MLP


# -- models that do unusual things -------------------------------------------------------------------------------------


class Wrapped(nn.Module):
    """A classifier whose input is given as vectors, with something done to them or to what comes out."""

    def __init__(self, head: Callable[[Tensor], Any], before: Callable[[Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        self.inner, self.head, self.before = classifier().bert, head, before

    def forward(self, x: Tensor) -> Any:
        self.before(x)
        return self.head(self.inner(inputs_embeds=x).last_hidden_state)


def vectors(count: int = 7) -> dict[str, Tensor]:
    return {"x": torch.randn(count, 9, 32, generator=torch.Generator().manual_seed(0))}


def value_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return spread(model(**batch))


def agrees_with_a_loop(model: nn.Module, task: hc.data.Task) -> bool:
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values(), *plans_of(hc.find(model), "layers").values()]
    before = [value.clone() for value in task.collate(range(task.size)).values()]
    values = hc.evaluation.measure(model, task, plans)
    assert len(np.unique(values.sum(1).round(4))) > len(plans) // 2  # most of them change something
    assert all(torch.equal(a, b) for a, b in zip(before, task.collate(range(task.size)).values(), strict=True))
    return close(naive(model, task, plans), values)


def test_a_model_that_writes_into_its_input() -> None:
    model = Wrapped(lambda hidden: hidden[:, 0], lambda x: x.mul_(1.5))
    assert agrees_with_a_loop(model, hc.custom_task([vectors()], loss=value_of))


def test_a_model_that_writes_into_what_its_last_layer_gives() -> None:
    model = Wrapped(lambda hidden: hidden.add_(1).tanh_()[:, 0])
    assert agrees_with_a_loop(model, hc.custom_task([vectors()], loss=value_of))


def test_layers_that_write_into_what_they_take(believed: list[CallOrder]) -> None:
    model = Wrapped(lambda hidden: hidden[:, 0])
    for layer in model.inner.encoder.layer:
        layer.register_forward_pre_hook(lambda _, args: (args[0].add_(0.5), *args[1:]))
    assert agrees_with_a_loop(model, hc.custom_task([vectors()], loss=value_of))
    assert believed[0].depth > NOTHING  # the last layer is written to by none


def test_a_model_that_writes_only_sometimes_is_measured_anew(monkeypatch) -> None:
    model, calls, last = Wrapped(lambda hidden: hidden[:, 0]), [0], [-1]

    def write(_: nn.Module, args: Any) -> None:
        calls[0] += 1
        if calls[0] == last[0]:
            args[0].add_(1.0)

    model.inner.encoder.layer[2].register_forward_pre_hook(write)
    monkeypatch.setattr(evaluator, "TOKENS_AT_ONCE", {"cpu": 0})
    task = hc.custom_task([vectors()], loss=value_of)
    plans = of_units(*(f"{layer}:{head}" for layer in (1, 2) for head in range(4)))
    want = hc.evaluation.measure(model, task, plans)
    calls[0], last[0], needed = 0, calls[0] - 2, calls[0]  # long after everything was seen and proved
    assert close(want, hc.evaluation.measure(model, task, plans))
    assert calls[0] > needed


def test_reading_the_largest_of_all_positions_is_reading_all(believed: list[CallOrder]) -> None:
    model = Wrapped(lambda hidden: hidden[..., :2].amax(1))
    task = hc.custom_task([vectors()], loss=value_of)
    for size in (1, 7):
        task = replace(task, batch_size=size)
        assert agrees_with_a_loop(model, task)
        assert believed[-1].reader is None


def test_values_that_come_from_hidden_states(believed: list[CallOrder]) -> None:
    def values(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["input_ids"], output_hidden_states=True).hidden_states[-1][..., 0].sum(1)

    assert agrees_with_a_loop(classifier(), class_task(7, values=values, loss=class_loss))
    assert believed[0].depth < READ_POSITIONS


def test_values_of_a_part_of_the_model() -> None:
    def values(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return model.bert(batch["input_ids"]).last_hidden_state[:, 0, 0]

    assert agrees_with_a_loop(classifier(), class_task(7, values=values, loss=values))


def test_a_task_without_a_loss_can_be_measured() -> None:
    def values(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["input_ids"]).logits[:, 1]

    assert agrees_with_a_loop(classifier(), class_task(7, values=values))


def test_a_sum_over_the_batch_next_to_the_output_does_not_stop_a_replay(believed: list[CallOrder]) -> None:
    """As a loss that a model adds to its answer: copies of a batch change it, and nobody reads it."""

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return spread(model(**batch)[0])

    model = Wrapped(lambda hidden: (hidden[:, 0], hidden.square().sum()))
    assert agrees_with_a_loop(model, hc.custom_task([vectors()], loss=loss))
    assert believed[0].depth == READ_POSITIONS
    assert believed[0].rows


def test_examples_that_see_each_other_are_never_copied(believed: list[CallOrder]) -> None:
    def against_all(model: Any, batch: dict[str, Tensor]) -> Tensor:
        first = model(batch["input_ids"]).logits[:, 0]
        return first - first.mean()

    model, task = classifier(), class_task(7, loss=against_all)
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values()]
    values = hc.evaluation.measure(model, task, plans)
    assert close(values, hc.evaluation.measure(model, task, plans, replay=False))
    assert believed[0].rows == {}
    assert believed[0].depth == READ_POSITIONS


def test_examples_that_see_those_before_them_are_never_copied(believed: list[CallOrder]) -> None:
    """The first copy of a batch is right then, and only the second is not: both are looked at."""
    model = Wrapped(lambda hidden: hidden[:, 0].cumsum(0))
    assert agrees_with_a_loop(model, hc.custom_task([vectors(4)], loss=value_of))
    assert believed[0].rows == {}


def test_a_model_that_is_never_the_same_twice_is_not_replayed(believed: list[CallOrder]) -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return class_loss(model, batch) + torch.rand(len(batch["labels"]))

    plans = [hc.Plan(), *plans_of(hc.find(classifier()), "heads").values()]
    assert hc.evaluation.measure(classifier(), class_task(7, loss=loss), plans).shape == (13, 7, 1)
    assert (believed[0].depth, believed[0].rows) == (NOTHING, {})


def test_inference_mode_around_it_changes_nothing() -> None:
    model, task = classifier(), class_task(7)
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values()]
    want = hc.evaluation.measure(model, task, plans)
    with torch.inference_mode():
        assert close(hc.evaluation.measure(model, task, plans), want)


def test_gates_around_it_stay_in_force() -> None:
    model, task = classifier(), class_task(7)
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values()]
    half = {"1": torch.full((4,), 0.5), "layers": torch.tensor([1.0, 0.25, 1.0])}
    with hc.gated(model, half), hc.masked(model, "0:2"):
        values = hc.evaluation.measure(model, task, plans)
        want = naive(model, task, plans)
    assert close(want, values)
    assert not close(hc.evaluation.measure(model, task, plans), values)


def test_no_plans_is_no_work(linears: list) -> None:
    assert hc.evaluation.measure(classifier(), class_task(7), []).shape == (0, 7, 1)
    assert not linears


# -- nothing is left behind --------------------------------------------------------------------------------------------


def test_nothing_is_left_behind() -> None:
    model, task = classifier().train(), class_task(7)
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values(), *plans_of(hc.find(model), "layers").values()]
    before = Fingerprint(model)
    hc.evaluation.measure(model, task, plans)
    assert before.changed() == []
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("after", [0, 1, 3, 8, 15])
def test_nothing_is_left_behind_after_an_exception(after: int) -> None:
    calls = [0]

    def values(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        given = class_loss(model, batch)
        calls[0] += 1
        if calls[0] > after:
            raise KeyboardInterrupt
        return given

    model = classifier().train()
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values(), *plans_of(hc.find(model), "layers").values()]
    before = Fingerprint(model)
    with pytest.raises(KeyboardInterrupt):
        hc.evaluation.measure(model, class_task(7, values=values, loss=class_loss), plans)
    assert calls[0] == after + 1
    assert before.changed() == []
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_forward_of_the_instance_is_kept() -> None:
    model, task = classifier(), class_task(7)
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values()]
    want = hc.evaluation.measure(model, task, plans)
    layer = model.bert.encoder.layer[1]
    plain = layer.forward
    layer.forward = mine = lambda *args, **kwargs: plain(*args, **kwargs)  # as accelerate does
    assert close(hc.evaluation.measure(model, task, plans), want)
    assert vars(layer)["forward"] is mine


# -- the proof ---------------------------------------------------------------------------------------------------------


def wrong_insides(monkeypatch) -> None:
    """Claims that the MLP behind an attention had finished before it."""
    right = call_order._finished

    def everything(block: nn.Module, before: int, seen: Any) -> Iterator[nn.Module]:
        yield from right(block, before, seen)
        if hasattr(block, "intermediate"):
            yield block.intermediate

    monkeypatch.setattr(call_order, "_finished", everything)


def wrong_order(monkeypatch) -> None:
    """Claims that layers run the other way round."""
    right = call_order.learn

    def turned(*args: Any) -> CallOrder:
        script = right(*args)
        script.blocks.reverse()
        return script

    monkeypatch.setattr(evaluator, "learn", turned)


def wrong_positions(monkeypatch) -> None:
    """Claims that the second token is read."""
    right = replaying.find_positions

    def second(root: nn.Module, script: CallOrder, memory: Any, *rest: Any) -> None:
        right(root, script, memory, *rest)
        if memory.positions is not None:
            memory.positions = torch.ones_like(memory.positions)

    monkeypatch.setattr(replaying, "find_positions", second)


@pytest.mark.parametrize(("plant", "left"), [(wrong_insides, LAYERS), (wrong_order, NOTHING), (wrong_positions, SITES)])
def test_what_was_seen_wrongly_is_not_believed(plant: Any, left: int, monkeypatch, believed: list[CallOrder]) -> None:
    model, task = classifier(), class_task(7)
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values()]
    want = hc.evaluation.measure(model, task, plans)
    assert believed[0].depth == READ_POSITIONS
    plant(monkeypatch)
    assert close(want, hc.evaluation.measure(model, task, plans))
    assert believed[1].depth == left


@pytest.mark.parametrize("plant", [wrong_insides, wrong_order, wrong_positions])
def test_without_the_proof_it_would_be_wrong(plant: Any, monkeypatch) -> None:
    model, task = classifier(), class_task(7)
    plans = [hc.Plan(), *plans_of(hc.find(model), "heads").values()]
    want = hc.evaluation.measure(model, task, plans)
    plant(monkeypatch)
    monkeypatch.setattr(evaluator, "_prove", lambda *_: None)
    assert not close(want, hc.evaluation.measure(model, task, plans))
