"""Gates that learn: their distributions against Monte Carlo and finite differences, their budgets, and what they leave."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import small_models, zoo
from helpers.same import close
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import headcount as hc
from headcount.errors import BadPlan
from headcount.importance.layer_orders import every_other
from headcount.learned_gates import methods, relaxations
from headcount.learned_gates.methods import Budget
from headcount.model.gates import applied

WIDE = torch.float64


def draws(count: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand(count, *shape, dtype=WIDE, generator=torch.Generator().manual_seed(seed))


def numbers(size: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    return torch.randn(size, dtype=WIDE, generator=torch.Generator().manual_seed(seed)) * spread


# --- hard concrete --------------------------------------------------------------------------------------------------


def test_the_chance_of_an_open_gate_is_how_often_it_is_open() -> None:
    location = torch.tensor([-4.0, -1.0, 0.0, 0.5, 3.0], dtype=WIDE)
    gates = relaxations.sampled(location, draws(200_000, 5))
    seen, said = (gates > 0).double().mean(0), relaxations.chance_open(location)
    error = (said * (1 - said) / 200_000).sqrt()
    assert ((seen - said).abs() < 4 * error).all()
    assert gates.min() == 0
    assert gates.max() == 1


def test_a_gate_is_open_in_the_end_if_it_is_1_more_often_than_0() -> None:
    location = torch.tensor([-0.3, -0.05, 0.05, 0.3], dtype=WIDE)
    gates = relaxations.sampled(location, draws(400_000, 4))
    more = (gates == 1).double().mean(0) > (gates == 0).double().mean(0)
    assert more.tolist() == relaxations.is_open(location).tolist() == [False, False, True, True]


def test_published_constants_and_the_codes_own_test_time() -> None:
    # Voita et al.'s code: P(open) = sigmoid(a + 0.791), and a test-time gate of clip(1.2 sigmoid(a) - 0.1, 0, 1)
    a = torch.tensor([0.0, 1.0], dtype=WIDE)
    assert torch.allclose(relaxations.chance_open(a), torch.sigmoid(a + 0.33 * math.log(11)))
    assert torch.allclose(relaxations.clipped(a), 1.2 * torch.sigmoid(a) - 0.1)
    assert relaxations.clipped(torch.tensor([9.0, -9.0])).tolist() == [1, 0]


def test_the_gradient_of_the_penalty_is_that_of_finite_differences_also_where_it_is_saturated() -> None:
    budgets = (Budget(0, 4, None), Budget(4, 7, None))
    how = methods.L0(l0=0.3)

    def penalty(weights: Tensor) -> Tensor:
        return how.penalty(weights, torch.zeros(2, dtype=WIDE), budgets, blocks=3)

    weights = torch.tensor([-12.0, -2, 0, 1, 3, 8, 15], dtype=WIDE, requires_grad=True)
    # steps of 1e-3: with smaller ones the rounding of the sum is as large as the smallest slope, 4e-8
    assert torch.autograd.gradcheck(penalty, weights, eps=1e-3, atol=1e-11, rtol=1e-4, nondet_tol=1e-12)
    penalty(weights).backward()
    assert (weights.grad > 0).all()


def test_the_penalty_is_per_unit_and_the_published_one_per_block() -> None:
    weights = numbers(12)
    one, all_ = (Budget(0, 12, None),), methods.L0(l0=0.5)
    price = torch.zeros(1, dtype=WIDE)
    expected = 0.5 * relaxations.chance_open(weights).sum()
    assert torch.allclose(all_.penalty(weights, price, one, blocks=3), expected)
    assert torch.allclose(all_.penalty(weights, price, one, blocks=6), expected), "whatever the number of attentions"
    published = methods.L0(l0=0.5, per="block")
    assert torch.allclose(published.penalty(weights, price, one, blocks=3), expected / 3)


def test_gates_start_open_and_as_published_half_closed() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = methods.L0().begin((8, 8), generator)
    assert relaxations.chance_open(ours).min() > 0.97
    glorot = methods.L0(start="published").begin((8,) * 500, generator)
    assert float(glorot.abs().max()) <= math.sqrt(6 / 16)
    assert float(glorot.abs().max()) > 0.6
    assert abs(float(relaxations.chance_open(glorot).mean()) - 0.68) < 0.02


# --- subsets --------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 200), st.floats(0.001, 1), st.sampled_from([1e-4, 0.01, 0.3, 1.0, 30.0, 1000.0]), st.integers(0, 99)
)
def test_relaxed_subsets_sum_to_their_size_and_no_entry_exceeds_1(
    size: int, share: float, temperature: float, seed: int
) -> None:
    keep = max(1.0, share * size)
    chosen = relaxations.relaxed(numbers(size, seed), keep, temperature)
    assert abs(float(chosen.sum()) - keep) < 1e-6 * size
    assert float(chosen.min()) >= 0
    assert float(chosen.max()) <= 1


@pytest.mark.parametrize("temperature", [0.3, 1.0, 20.0])
@pytest.mark.parametrize("keep", [1, 3, 7, 2.5])
def test_the_gradient_of_a_relaxed_subset_is_that_of_finite_differences(keep: float, temperature: float) -> None:
    weights = numbers(8, spread=1.0).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda w: relaxations.relaxed(w, keep, temperature), weights, atol=1e-6, nondet_tol=1e-10
    )


def test_several_rows_at_once_and_halving_find_the_same_thresholds() -> None:
    rows = torch.stack([numbers(40, seed) for seed in range(3)])
    together = relaxations.relaxed(rows, 7.5, 0.4)
    assert torch.allclose(together, torch.stack([relaxations.relaxed(row, 7.5, 0.4) for row in rows]), atol=1e-9)


@pytest.mark.parametrize("scale", [2.0**-30, 2.0**30])
def test_weights_count_over_the_temperature_whatever_their_size(scale: float) -> None:
    weights = numbers(20)
    assert torch.allclose(
        relaxations.relaxed(scale * weights, 7.5, scale), relaxations.relaxed(weights, 7.5, 1.0), atol=1e-9
    )


def test_a_cold_subset_is_the_largest() -> None:
    weights = numbers(50)
    assert torch.allclose(relaxations.relaxed(weights, 12, 1e-4), relaxations.largest(weights, 12), atol=1e-6)


@pytest.mark.parametrize("keep", [1, 5, 12])
@pytest.mark.parametrize("temperature", [0.01, 1.0, 1000.0])
def test_the_published_form_sums_to_its_size_too(keep: int, temperature: float) -> None:
    chosen = relaxations.published(numbers(12), keep, temperature)
    assert abs(float(chosen.sum()) - keep) < 1e-9
    if keep == 12:
        assert torch.equal(chosen, torch.ones_like(chosen)), "all of them is all of them"
    elif temperature == 1000:
        assert torch.allclose(chosen, torch.full_like(chosen, keep / 12), atol=0.01)
    if temperature == 1 and keep == 5:
        assert chosen.max() > 1, "which is why it is not our default"


def test_the_published_form_turns_down_what_the_first_softmax_took() -> None:
    first = torch.tensor([0.5, 0.3, 0.2], dtype=WIDE)
    second = first * (1 - first)
    assert torch.allclose(relaxations.published(first.log(), 2, 1.0), first + second / second.sum(), atol=1e-12)


def test_gumbel_noise_makes_the_first_of_a_subset_a_draw_by_softmax() -> None:
    weights = torch.tensor([0.0, 1.0, 2.0], dtype=WIDE)
    drawn = (weights + relaxations.gumbel(draws(100_000, 3))).argmax(1)
    seen = torch.bincount(drawn, minlength=3) / 100_000
    assert torch.allclose(seen.double(), weights.softmax(0), atol=0.006)


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=20), st.data())
def test_the_largest_are_exactly_so_many_also_with_ties(values: list[float], data: Any) -> None:
    keep = data.draw(st.integers(0, len(values)))
    weights = torch.tensor(values)
    kept = relaxations.largest(weights, keep)
    assert int(kept.sum()) == keep
    assert set(kept.tolist()) <= {0.0, 1.0}
    if 0 < keep < len(values):
        assert weights[kept == 1].min() >= weights[kept == 0].max()


def test_of_equal_weights_the_first_go_as_they_do_by_scores() -> None:
    assert relaxations.largest(torch.zeros(500), 37).tolist() == [0] * 463 + [1] * 37
    units = tuple(hc.Unit("0", place) for place in range(500))
    scores = hc.documents.Scores(units, np.zeros(500), "x", {"0": "head"}, {"0": None})
    assert set(hc.plan(scores, 463)) == set(units[:463])


def test_straight_through_is_hard_and_hands_the_gradient_on() -> None:
    weights = numbers(9).requires_grad_()
    gates = relaxations.straight_through(weights, 4)
    assert torch.equal(gates.detach(), relaxations.largest(weights.detach(), 4))
    slope = numbers(9, seed=1)
    (gates * slope).sum().backward()
    assert torch.equal(weights.grad, slope)
    assert relaxations.straight_through(weights, 9).tolist() == [1] * 9


def test_schedules_have_their_ends() -> None:
    assert relaxations.annealed(1000, 1e-8, 0) == 1000
    assert relaxations.annealed(1000, 1e-8, 1) == pytest.approx(1e-8)
    assert relaxations.annealed(1000, 10, 0.5) == pytest.approx(100), "geometric"
    assert [relaxations.cubic(48, 8, p) for p in (0, 0.5, 1, 2)] == [48, 13, 8, 8]


@pytest.mark.parametrize(("units", "rate"), [(12, 1 / 2), (12, 1 / 3), (12, 1 / 4), (6, 1 / 2), (24, 1 / 3)])
def test_evenly_spaced_layers_are_those_of_the_paper(units: int, rate: float) -> None:
    # Fan et al.: drop the layers d, counted from 1, with d = 0 mod floor(1/p)
    gone = [d - 1 for d in range(1, units + 1) if d % math.floor(1 / rate + 1e-9) == 0]
    assert every_other(units, units - len(gone)) == [d for d in range(units) if d not in gone]


# --- on a model -----------------------------------------------------------------------------------------------------


def out(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    return zoo.judged(model(**{k: v.clone() for k, v in inputs.items()}))


def still(model: nn.Module) -> nn.Module:
    """The model in training mode without dropout, so that two passes are the same."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "dropout_prob", "hidden_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model.train()


@pytest.mark.parametrize("method", ["subset", "movement"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "bart", "vit"])
def test_keeping_all_changes_nothing(name: str, method: str) -> None:
    model, inputs = zoo.build(name)
    model = still(model)
    everything = sum(len(site) for site in hc.find(model).heads)
    before, taken = out(model, inputs), Fingerprint(model)
    with hc.learned_gates.learning(model, method, keep=everything, steps=4) as gates:
        for _ in range(4):
            now = out(model, inputs)
            assert close(now, before)
            now.square().sum().backward()
            gates.step()
        assert not gates.plan()
    model.zero_grad(set_to_none=True)
    assert not taken.changed()


@pytest.mark.parametrize("units", ["heads", "neurons", "layers", "mlps", "attentions", "heads,neurons"])
@pytest.mark.parametrize("method", ["l0", "subset", "movement", "layerdrop"])
def test_evaluation_is_that_of_the_plan_and_what_is_kept_is_counted(method: str, units: str) -> None:
    model = small_models.classifier(layers=4)
    batch = {"input_ids": small_models.texts(6)}
    keep = "50%"
    with hc.learned_gates.learning(model, method, keep=keep, units=units, steps=6, seed=3) as gates:
        model.train()
        for _ in range(6):
            model(**batch).logits.square().sum().backward()
            gates.step()
        model.eval()
        plan = gates.plan()
        first, second = model(**batch).logits, model(**batch).logits
        assert close(first, second)
    parts = hc.find(model)
    kinds = {"heads": "head", "neurons": "neuron", "layers": "layer", "mlps": "neuron", "attentions": "head"}
    for word in units.split(","):
        sites = [p for p in (*parts.sites, *parts.stacks) if p.kind == kinds[word]]
        of = sum(map(len, sites))
        here = [unit for unit in plan if unit.site in {p.name for p in sites}]
        assert len(here) == of // 2
        if word in ("mlps", "attentions"):
            assert {unit.site for unit in here} == {p.name for p in sites if count_of(here, p.name) == len(p)}
    with hc.masked(model, hc.Plan() if method == "layerdrop" else plan):
        assert close(model(**batch).logits, first)


def count_of(units: list[hc.Unit], site: str) -> int:
    return sum(unit.site == site for unit in units)


def test_gradients_reach_the_weights_through_what_was_drawn() -> None:
    """The gates' weights get the gradient of the loss by the gates, pulled back through the draw: checked by hand."""
    model, batch = still(small_models.classifier()), {"input_ids": small_models.texts(5)}
    with hc.learned_gates.learning(model, "subset", keep=5, steps=100, seed=1) as gates:
        for _ in range(30):  # until some gates are between 0 and 1
            gates.step()
        drawn = {name: one.float().clone().requires_grad_() for name, one in gates.drawn().items()}
        seen = []
        gates.weights.register_hook(lambda g: seen.append(g.clone()))
        model(**batch).logits.square().sum().backward()
        weights, budgets, progress = gates.weights.detach().clone(), gates.budgets, gates.progress
        noise = torch.rand(len(weights), dtype=WIDE, generator=gates._generator(gates.done + 1))
        gates.step()
    with hc.gated(model, drawn):
        model(**batch).logits.square().sum().backward()
    by_gate = torch.cat([gate.grad for gate in drawn.values()]).double()
    again = weights.requires_grad_()
    methods.Subset().gates(again, noise, budgets, progress).backward(by_gate)
    assert any(0.01 < float(g) < 0.99 for gate in drawn.values() for g in gate)
    assert close(seen[0], again.grad, 1e-5)  # float64, from gradients of a float32 model


@pytest.mark.parametrize("units", ["heads", "mlps", "attentions"])
def test_movement_adds_up_the_gradients_of_the_gates_of_whole_parts_as_one(units: str) -> None:
    model, batch = still(small_models.classifier()), {"input_ids": small_models.texts(5)}
    kind = "neuron" if units == "mlps" else "head"
    sites = [site for site in hc.find(model).sites if site.kind == kind]
    ones = {site.name: torch.ones(len(site), requires_grad=True) for site in sites}
    with hc.gated(model, ones):
        model(**batch).logits.square().sum().backward()
    given = [gate.grad if units == "heads" else gate.grad.sum().view(1) for gate in ones.values()]
    with hc.learned_gates.learning(model, "movement", keep=2, units=units, steps=100) as gates:
        model(**batch).logits.square().sum().backward()
        gates.step()
        assert close(gates.weights.detach(), -torch.cat(given).double(), 1e-5)  # sums of float32 gradients


def test_movement_closes_ever_more_gates_by_the_cubic_schedule() -> None:
    model = still(small_models.classifier())
    of = sum(len(site) for site in hc.find(model).heads)
    with hc.learned_gates.learning(model, "movement", keep=2, steps=100, settle=0.2) as gates:
        seen = []
        for _ in range(100):
            seen.append(int(sum(one.sum() for one in gates.drawn().values())))
            assert gates.expected() == seen[-1]
            gates.step()
    assert seen == [round(2 + (of - 2) * max(0.0, 1 - n / (0.7 * 80)) ** 3) for n in range(100)]


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("count", [1, 12])
def test_gates_on_weights_and_gates_on_activations_are_the_same(count: int, trains: bool) -> None:
    """Where a matrix trains and is smaller than what it reads, its columns are gated instead: the same numbers."""
    model, batch = (
        still(small_models.classifier()),
        {"input_ids": small_models.texts(count, length=4 if count == 1 else 9)},
    )
    for parameter in model.parameters():
        parameter.requires_grad_(trains)
    values = {site.name: torch.linspace(0.2, 1.4, len(site)) for site in hc.find(model).sites}

    def seen(gates: dict[str, Any], leaves: dict[str, Tensor]) -> list[Tensor]:
        model.zero_grad(set_to_none=True)
        with applied(model, hc.find(model), gates):
            logits = model(**batch).logits
            logits.square().sum().backward()
        assert "weight" not in next(iter(hc.find(model).sites)).writer.__dict__
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [logits.detach(), *(leaf.grad for leaf in leaves.values()), *grads]

    plain = {name: value.clone().requires_grad_() for name, value in values.items()}
    moving = {name: value.clone().requires_grad_() for name, value in values.items()}
    found = seen(plain, plain), seen({name: (lambda g=gate: g) for name, gate in moving.items()}, moving)
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        assert close(one, other)


def test_passes_between_two_steps_add_up() -> None:
    model, ids = still(small_models.classifier()), small_models.texts(6)

    def learned(parts: int) -> Tensor:
        with hc.learned_gates.learning(model, "l0", keep=4, steps=8) as gates:
            for _ in range(8):
                for some in ids.chunk(parts):
                    model(input_ids=some).logits.square().sum().backward()
                gates.step()
            return gates.weights.detach().clone()

    assert close(learned(1), learned(3), 1e-5)  # eight steps of Adam on float32 gradients


@pytest.mark.parametrize("method", ["l0", "subset", "movement", "layerdrop"])
def test_going_on_from_a_state_is_as_never_interrupted(method: str) -> None:
    model, batch = still(small_models.classifier()), {"input_ids": small_models.texts(5)}

    def steps(gates: hc.learned_gates.Gates, count: int) -> None:
        for _ in range(count):
            model(**batch).logits.square().sum().backward()
            gates.step()

    asked: dict[str, Any] = {"keep": 5, "steps": 12, "seed": 7}
    with hc.learned_gates.learning(model, method, **asked) as gates:
        steps(gates, 12)
        whole = gates.state()
    with hc.learned_gates.learning(model, method, **asked) as gates:
        steps(gates, 5)
        half = gates.state()
    with hc.learned_gates.learning(model, method, **asked) as gates:
        gates.load_state(half)
        assert gates.done == 5
        steps(gates, 7)
        again = gates.state()
    assert whole.keys() == again.keys()
    for name, value in whole.items():
        assert close(value, again[name], 1e-4), name  # twelve steps, each with float32 gradients of its own
    with (
        hc.learned_gates.learning(model, method, units="neurons", keep=10, steps=3) as gates,
        says(BadPlan, about="other gates"),
    ):
        gates.load_state(half)


def test_gates_stand_while_the_model_settles() -> None:
    model, batch = still(small_models.classifier()), {"input_ids": small_models.texts(5)}
    with hc.learned_gates.learning(model, "subset", keep=3, steps=10, settle=0.5) as gates:
        seen = []
        for _ in range(10):
            model(**batch).logits.square().sum().backward()
            seen.append(torch.cat([one.clone() for one in gates.drawn().values()]))
            gates.step()
        plan = gates.plan()
    for gate in seen[5:]:
        assert torch.equal(gate, seen[5])
        assert set(gate.tolist()) <= {0.0, 1.0}
        assert int(gate.sum()) == 3
    assert not close(seen[1], seen[2], 1e-3)
    assert len(plan) == sum(len(s) for s in hc.find(model).heads) - 3


def test_the_seed_decides_what_is_drawn() -> None:
    model = small_models.classifier()

    def first(seed: int) -> Tensor:
        with hc.learned_gates.learning(
            model.train(), "layerdrop", keep=2, units="layers", rate=0.5, steps=9, seed=seed
        ) as gates:
            drawn = []
            for _ in range(9):
                drawn.append(next(iter(gates.drawn().values())))
                gates.step()
            return torch.stack(drawn)

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


def test_layers_are_left_out_at_the_rate_and_the_rest_is_not_rescaled() -> None:
    model, batch = still(small_models.classifier(layers=3)), {"input_ids": small_models.texts(4)}
    closed_count, steps = 0, 300
    with hc.learned_gates.learning(model, "layerdrop", keep=3, units="layers", rate=0.3, steps=steps) as gates:
        for number in range(steps):
            now = next(iter(gates.drawn().values()))
            gone = [place for place, gate in enumerate(now.tolist()) if gate == 0]
            closed_count += len(gone)
            if number < 6:
                with torch.no_grad():
                    here = model(**batch).logits
                    live, gates._leaves = gates._leaves, [torch.ones(3)]
                    with hc.masked(model, [f"layers:{place}" for place in gone]):
                        assert close(model(**batch).logits, here)
                    gates._leaves = live
            gates.step()
    assert abs(closed_count / (3 * steps) - 0.3) < 0.06


def test_the_price_that_is_found_keeps_as_many_as_asked() -> None:
    """A loss that is a sum over gates: the price must come to lie between what the last kept and the next are worth."""
    worth = np.exp(np.random.default_rng(0).normal(0, 1.5, 12)) * 1e-3
    model = small_models.classifier()
    sites = [site.name for site in hc.find(model).heads]
    with hc.learned_gates.learning(model.train(), "l0", keep=4, steps=1500) as gates:
        for _ in range(1500):
            leaves = torch.cat([gates.live()[name]() for name in sites])
            if leaves.requires_grad:
                ((1 - leaves).view(12, -1).mean(1) * torch.tensor(worth)).sum().backward()
            gates.step()
        kept = gates.scores().order()[-4:]
        price, open_ = gates.price(), gates.open()
    order = np.argsort(worth)
    best = {gates.units[place] for place in order[-4:]}
    assert len(set(kept) & best) >= 3
    assert 0.2 * worth[order[-5]] < price < 5 * worth[order[-4]]
    assert abs(open_ - 4) <= 2


def test_as_published_gates_take_adams_steps_at_a_rate_that_falls_along_a_line() -> None:
    """The weights of subset gates against an AdamW of torch's own, with the betas, rate and decay of the paper's code."""
    model, steps = small_models.classifier(), 5
    sites = [site.name for site in hc.find(model).heads]
    settings = methods.PUBLISHED["subset"]
    with hc.learned_gates.learning(model.train(), "subset", keep=4, steps=steps, settle=0.0, **settings) as gates:
        mine = nn.Parameter(gates.weights.detach().clone())
        theirs = torch.optim.AdamW([mine], lr=0.5, betas=(0.9, 0.999), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(theirs, lambda done: 1 - done / steps)
        for _ in range(steps):
            leaves = torch.cat([gates.live()[name]() for name in sites])
            (leaves * torch.linspace(-1, 1, len(leaves))).sum().backward()
            gates.step()
            mine.grad = gates.weights.grad.clone()
            theirs.step()
            schedule.step()
            assert torch.allclose(gates.weights, mine)
        assert not gates.settled or gates.done == steps


def test_the_last_temperature_is_reached_after_its_share() -> None:
    how, budgets = methods.method_of("subset", first=10.0, last=0.1, cooled=0.5), [Budget(0, 6, 2)]
    weights, noise = numbers(6), torch.full((6,), 0.5, dtype=torch.float64)
    whole = methods.method_of("subset", first=10.0, last=0.1)
    published = [methods.method_of("subset", form="published", first=10.0, last=0.1, cooled=c) for c in (0.5, 1.0)]
    for one, other in ((how, whole), published):
        assert not torch.allclose(one.gates(weights, noise, budgets, 0.5), other.gates(weights, noise, budgets, 0.5))
        assert close(one.gates(weights, noise, budgets, 1.0), other.gates(weights, noise, budgets, 1.0))
    early, late = (published[0].gates(weights, noise, budgets, at) for at in (0.5, 1.0))
    assert close(early, late)


def test_settings_that_older_trainings_did_not_have_are_no_part_of_the_question_as_they_were() -> None:
    model = small_models.classifier()
    with hc.learned_gates.learning(model, "subset", keep=4, steps=3) as gates:
        usual = gates.question()
    assert {name for name in usual if name.startswith("gates'")} == {
        "gates' form", "gates' first", "gates' last", "gates' lr", "gates' settle", "gates' seed",
    }  # fmt: skip
    with hc.learned_gates.learning(model, "subset", keep=4, steps=3, decay=True, beta2=0.9) as gates:
        assert gates.question() == {**usual, "gates' decay": True, "gates' beta2": 0.9}


def test_scores_are_scores_like_any_other(tmp_path: Any) -> None:
    model = small_models.classifier()
    with hc.learned_gates.learning(model, "subset", keep=5, steps=3) as gates:
        scores, plan = gates.scores(), gates.plan()
    scores.write(tmp_path / "scores.json")
    again = hc.documents.Scores.read(tmp_path / "scores.json")
    assert again.by == "subset"
    assert np.allclose(again.values, scores.values)
    of = len(scores)
    assert hc.plan(again, of - 5) == plan or set(hc.plan(again, of - 5)) == set(plan)


@pytest.mark.parametrize(
    ("asked", "about"),
    [
        ({"method": "guess", "keep": 3}, "learn by"),
        ({}, "keep"),
        ({"method": "l0"}, "l0"),
        ({"method": "l0", "keep": 3, "l0": 0.1}, "one of them"),
        ({"keep": 0}, "at least one"),
        ({"keep": 999}, "999"),
        ({"keep": 3, "units": "thoughts"}, "thoughts"),
        ({"keep": 3, "units": "mlps,neurons"}, "contain each other"),
        ({"keep": 3, "units": "heads,neurons"}, "share of each"),
        ({"keep": 3, "only": "cross"}, "cross"),
        ({"keep": 3, "settle": 1.0}, "settle"),
        ({"keep": 3, "speed": 2}, "no setting"),
        ({"keep": 3, "form": "odd"}, "form"),
        ({"keep": 3, "first": 0.1, "last": 1.0}, "Temperatures"),
        ({"keep": 3, "cooled": 0.0}, "cooled"),
        ({"keep": 3, "beta2": 1.0}, "beta2"),
        ({"method": "layerdrop", "keep": 3, "rate": 1.0}, "rate"),
        ({"method": "l0", "l0": -1.0}, "price"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(asked: dict[str, Any], about: str) -> None:
    model = small_models.classifier()
    taken = Fingerprint(model)
    with says(BadPlan, about=about), hc.learned_gates.learning(model, **asked):
        pass
    assert not taken.changed()


def test_gates_that_count_steps_must_know_how_many() -> None:
    model = small_models.classifier()
    with hc.learned_gates.learning(model, "subset", keep=3) as gates, says(BadPlan, about="steps"):
        gates.step()


def test_nothing_is_left_behind_after_an_error() -> None:
    model = small_models.classifier()
    taken = Fingerprint(model)
    with pytest.raises(RuntimeError), hc.learned_gates.learning(model, "subset", keep=3, steps=4):
        raise RuntimeError
    assert not taken.changed()


# --- what stays -----------------------------------------------------------------------------------------------------


def marian(layers: int = 3) -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
             {"layers": layers, "attention_heads": 2, "ffn_dim": 8}.items()}  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MarianMTModel(MarianConfig(vocab_size=20, d_model=8, pad_token_id=0, decoder_start_token_id=0, **sides))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
@pytest.mark.parametrize("method", ["l0", "subset", "movement", "layerdrop"])
@pytest.mark.parametrize("keep", [2, 3, 5])
def test_no_stack_loses_all_of_its_layers(method: str, keep: int, seed: int) -> None:
    model = marian()
    with hc.learned_gates.learning(model, method, units="layers", keep=keep, steps=3, seed=seed) as gates:
        with torch.no_grad():
            gates.weights.copy_(numbers(6, seed) if method != "layerdrop" else gates.weights)
            if method != "layerdrop" and seed % 2:
                gates.weights[:3] -= 100  # nothing of the encoder would stay
        plan = gates.plan()
    assert len(plan) == 6 - keep
    left = {"encoder.layers": 3, "decoder.layers": 3}
    for unit in plan:
        left[unit.site] -= 1
    assert min(left.values()) >= 1
    hc.cut(model, plan)


def test_fewer_layers_than_stacks_are_refused_before_anything_is_trained() -> None:
    model = marian()
    with (
        says(BadPlan, about="encoder.layers, decoder.layers"),
        hc.learned_gates.learning(model, units="layers", keep=1, steps=3),
    ):
        pass


@pytest.mark.parametrize("units", ["layers", "mlps", "attentions"])
@pytest.mark.parametrize("keep", [1, 2, 3, 5, 6])
def test_structured_dropout_keeps_evenly_spaced_units_and_its_scores_agree(units: str, keep: int) -> None:
    model = small_models.classifier(layers=6)
    with hc.learned_gates.learning(model, "layerdrop", units=units, keep=keep, steps=3) as gates:
        plan, scores = gates.plan(), gates.scores()
    names = [f"{layer}{'.mlp' * (units == 'mlps')}" for layer in range(6)]
    stays = {names.index(unit.site) if units != "layers" else unit.index for unit in set(scores.units) - set(plan)}
    assert sorted(stays) == every_other(6, keep)
    assert set(hc.plan(scores, len(plan))) == set(plan)


def test_gates_that_are_steered_must_know_how_many_steps_too() -> None:
    model = small_models.classifier()
    with hc.learned_gates.learning(model, "l0", keep=3) as gates, says(BadPlan, about="steps"):
        gates.step()


def test_a_copy_of_a_writer_is_gated_like_the_writer() -> None:
    """DataParallel calls copies of the modules, hooks and all; their weight is their own."""
    model = still(small_models.classifier())
    site = hc.find(model).heads[0]
    gates = torch.zeros(len(site))
    copied = nn.Linear(*reversed(site.writer.weight.shape))
    with applied(model, hc.find(model), {site.name: lambda: gates}):
        copied._forward_pre_hooks = site.writer._forward_pre_hooks
        copied._forward_pre_hooks_with_kwargs = site.writer._forward_pre_hooks_with_kwargs
        x = torch.randn(400, copied.in_features)
        assert torch.allclose(copied(x), copied.bias.expand(400, -1))
        assert torch.allclose(site.writer(x), site.writer.bias.expand(400, -1))


def test_a_pipelined_block_gives_the_weights_back() -> None:
    model = small_models.classifier()
    with hc.learned_gates.learning(model, "subset", keep=3, steps=2, pipelined=True):
        model.requires_grad_(False)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_many_gates_are_drawn_in_no_time_and_sum_to_their_number() -> None:
    weights = numbers(40_000).requires_grad_()
    chosen = relaxations.relaxed(weights, 1234, 0.5)
    assert abs(float(chosen.detach().sum()) - 1234) < 1e-3
    slope = numbers(40_000, seed=1)
    (chosen * slope).sum().backward()
    near = chosen.detach() * (1 - chosen.detach())
    by_hand = near / 0.5 * (slope - (near * slope).sum() / near.sum())
    assert torch.allclose(weights.grad, by_hand, atol=1e-9)


def test_structured_dropout_of_heads_and_layers_keeps_a_share_of_each() -> None:
    model = small_models.classifier(layers=6)
    of = {"head": sum(len(site) for site in hc.find(model).heads), "layer": 6}
    with hc.learned_gates.learning(model, "layerdrop", units="heads,layers", keep="20%", steps=2) as gates:
        plan = gates.plan()
    layers = sum(unit.site == "layers" for unit in plan)
    assert (len(plan) - layers, layers) == (of["head"] - of["head"] // 5, 6 - 6 // 5)


def test_a_weight_that_somebody_else_computes_is_still_there_afterwards() -> None:
    from torch.nn.utils import prune

    model = still(small_models.classifier())
    writer = hc.find(model).heads[0].writer
    prune.random_unstructured(writer, "weight", 0.5)  # the weight is an attribute now, set anew in every pass
    batch = {"input_ids": small_models.texts(12)}
    before = model(**batch).logits
    with hc.learned_gates.learning(model, "subset", keep=12, steps=2) as gates:
        assert close(model(**batch).logits, before)
        gates.step()
    assert close(model(**batch).logits, before)
    assert "weight" in writer.__dict__
