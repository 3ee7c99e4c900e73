"""Tuning what is left of a site: against least squares on the explicit matrix, planted twins, and family by family."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.small_models import class_loss, class_task, classifier, ragged_pairs, ragged_texts, texts, zoo_task
from scipy.sparse.linalg import lsmr
from torch import Tensor, nn

import headcount as hc
from headcount.evaluation.residual_stream import Passes, ResidualTarget, landing
from headcount.model.gates import gates_of
from headcount.model.tensor_trees import tensors
from headcount.pruning.tuning import mask_tuning, residual_targets
from headcount.pruning.tuning.mask_tuning import MaskTuning, Sums, normal_equations, ridge, tune_mask


def gates_with(model: nn.Module, plan: hc.Plan, found: MaskTuning) -> dict[str, Tensor]:
    gates = gates_of(hc.find(model), plan)
    return gates | {name: numbers * gates.get(name, torch.ones(1)) for name, numbers in found.scale.items()}


def half_of(model: nn.Module, kinds: tuple[str, ...] = ("head", "neuron")) -> hc.Plan:
    return hc.Plan(frozenset(u for site in hc.find(model) if site.kind in kinds for u in site.units[1::2]))


def text_task(count: int, *, batch_size: int | None = None) -> hc.data.Task:
    return class_task(count, batch_size=batch_size)


# -- the equations -----------------------------------------------------------------------------------------------------


def explicit(width: int, seed: int, alike: float = 1.0) -> tuple[np.ndarray, np.ndarray, Tensor, Sums]:
    """A fit written out: its matrix A (positions * out, units) and its right side, beside the sums made from the same."""
    random = np.random.default_rng(seed)
    units, out, positions = 5, 7, 40
    x = random.normal(size=(positions, units * width))
    weight, b = random.normal(size=(out, units * width)), random.normal(size=(positions, out))
    x[:, width : 2 * width] = x[:, :width] + alike * x[:, width : 2 * width]  # the second unit like the first
    weight[:, width : 2 * width] = weight[:, :width] + alike * weight[:, width : 2 * width]
    parts = [x[:, k * width : (k + 1) * width] @ weight[:, k * width : (k + 1) * width].T for k in range(units)]
    matrix = np.stack([part.ravel() for part in parts], axis=1)
    given = torch.from_numpy(x), torch.from_numpy(weight), torch.from_numpy(b)
    sums = Sums(given[0].T @ given[0], (given[0] * (given[2] @ given[1])).sum(0), float((b**2).sum()), 1.0, positions)
    return matrix, b.ravel(), given[1], sums


def stacked(matrix: np.ndarray, right: np.ndarray, strength: float) -> np.ndarray:
    """Least squares with a ridge as least squares without: more rows."""
    shift = np.sqrt(strength * np.square(matrix).sum(0).mean())
    below = shift * np.eye(matrix.shape[1])
    return np.linalg.lstsq(np.vstack([matrix, below]), np.append(right, np.zeros(len(below))), rcond=None)[0]


@pytest.mark.parametrize("strength", [1e-4, 0.1, 10.0])
@pytest.mark.parametrize("width", [1, 3])
def test_the_sums_give_the_least_squares_of_the_matrix_written_out(width: int, strength: float) -> None:
    matrix, right, weight, sums = explicit(width, 0)
    square, side = normal_equations(weight, sums, width)
    assert np.allclose(square, matrix.T @ matrix)
    assert np.allclose(side, matrix.T @ right)
    found = ridge(square, side, strength)
    assert found is not None
    assert np.allclose(found, stacked(matrix, right, strength), rtol=1e-9)
    left = np.square(right - matrix @ found.numpy()).sum()
    assert np.isclose(sums.error + float(found @ square @ found - 2 * found @ side), left)


@pytest.mark.parametrize("width", [1, 3])
def test_nearly_equal_units_are_solved_where_an_iterative_solver_is_far_off(width: int) -> None:
    matrix, right, weight, sums = explicit(width, 1, alike=1e-3)
    square, side = normal_equations(weight, sums, width)
    want = stacked(matrix, right, 1e-8)
    found = ridge(square, side, 1e-8)
    assert found is not None
    assert np.allclose(found, want, rtol=1e-3)
    # as the reference does it: damping of 1 on the normal equations, which regularises another problem
    usual = lsmr(square.numpy(), side.numpy(), damp=1.0)[0]
    assert np.linalg.norm(usual - want) > 100 * np.linalg.norm(found.numpy() - want)


def test_a_unit_that_is_never_active_is_left_alone_and_nothing_at_all_has_no_answer() -> None:
    square, side = torch.diag(torch.tensor([2.0, 0.0], dtype=torch.float64)), torch.tensor([1.0, 0.0]).double()
    found = ridge(square, side, 1e-4)
    assert found is not None
    assert found[1] == 0
    assert ridge(square * 0, side * 0, 1e-4) is None


# -- twins -------------------------------------------------------------------------------------------------------------


def twins(model: nn.Module, name: str, one: int, other: int, times: float) -> nn.Module:
    """Let a unit read what another reads, and write `times` what that one writes."""
    site = hc.find(model)[name]
    assert isinstance(site, hc.model.Site)
    width = site.width
    rows = [slice(unit * width, (unit + 1) * width) for unit in (one, other)]
    with torch.no_grad():
        for reader in site.readers:
            reader.weight[rows[1]] = reader.weight[rows[0]]
            if reader.bias is not None:
                reader.bias[rows[1]] = reader.bias[rows[0]]
        site.writer.weight[:, rows[1]] = times * site.writer.weight[:, rows[0]]
    return model


@pytest.mark.parametrize(("name", "times"), [("0", 1.0), ("1", -0.5), ("0.mlp", 1.0), ("2.mlp", 0.25), ("1.mlp", 2.0)])
def test_the_twin_of_a_unit_that_goes_takes_its_part(name: str, times: float) -> None:
    model, task = twins(classifier(), name, 1, 3, times), text_task(24)
    plan = hc.Plan.of(f"{name}:3")
    found = tune_mask(model, plan, task, positions=100_000)
    numbers = found.scale[name]
    assert float(numbers[1]) == pytest.approx(1 + times, abs=0.01)
    assert float((numbers - 1).abs().sum() - (numbers[1] - 1).abs()) < 0.02
    batch = task.batch(24)
    with torch.no_grad():
        whole = model(**batch).logits
        with hc.gated(model, gates_with(model, plan, found)):
            near = model(**batch).logits
        with hc.masked(model, plan):
            far = model(**batch).logits
    assert (near - whole).abs().max() < 0.02 * (far - whole).abs().max()


def test_what_is_found_without_a_ridge_is_exact(monkeypatch) -> None:
    monkeypatch.setattr(mask_tuning, "STRENGTHS", (1e-10,))
    model, task = twins(twins(classifier(), "1", 0, 2, 0.5), "1.mlp", 4, 7, 1.0), text_task(24)
    plan = hc.Plan.of("1:2", "1.mlp:7")
    found = tune_mask(model, plan, task, positions=100_000)
    assert float(found.scale["1"][0]) == pytest.approx(1.5, abs=1e-4)
    assert float(found.scale["1.mlp"][4]) == pytest.approx(2.0, abs=1e-4)
    first = found.sites[0]
    assert first.name == "1"
    assert first.error > 1e-3
    assert first.tuned == pytest.approx(0, abs=1e-4 * first.error), "nothing is missing after the first site"
    with torch.no_grad():
        whole = model(**task.batch(24)).logits
        with hc.gated(model, gates_with(model, plan, found)):
            assert (model(**task.batch(24)).logits - whole).abs().max() < 1e-4


# -- landings ----------------------------------------------------------------------------------------------------------


def landings_of(name: str) -> dict[str, tuple[nn.Module, ResidualTarget | None]]:
    """Each site's layer, and where what it writes was found to land."""
    model, task = zoo_task(name)
    anatomy, blocks = hc.find(model), [b for stack in hc.find(model).stacks for b in stack.blocks]
    work = Passes(model, anatomy, task)
    batch, found = task.collate([0, 1]), {}
    for site in anatomy:
        block = next(b for b in blocks if site.writer in set(b.modules()))
        with torch.no_grad():
            found[site.name] = (block, landing(lambda gates, hooks: work.run(batch, gates, hooks), anatomy, site))
    return found


@pytest.mark.parametrize("name", ["bert", "distilbert", "bart"])
def test_in_a_post_norm_layer_the_sum_is_what_the_norm_is_given(name: str) -> None:
    for _, found in landings_of(name).values():
        assert found is not None
        assert isinstance(found.module, nn.LayerNorm)
        assert found.given == 0


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "vit", "t5"])
def test_in_a_pre_norm_layer_it_is_what_the_next_norm_is_given_or_the_layer_gives(name: str) -> None:
    for site, (block, found) in landings_of(name).items():
        assert found is not None
        if site.endswith("mlp"):
            assert (found.module, found.given) == (block, None)
        else:
            assert found.given is not None
            assert found.module is not block
            assert found.module in set(block.modules())


@pytest.mark.parametrize("name", ["gemma2", "olmo2", "dinov2"])
def test_with_norms_or_factors_in_between_the_output_itself_is_compared(name: str) -> None:
    for block, found in landings_of(name).values():
        assert found is not None
        assert found.given is None
        assert found.module is not block


def test_a_writer_that_does_more_than_multiply_is_not_tuned() -> None:
    model, task = classifier(), text_task(8)
    dense = model.bert.encoder.layer[1].output.dense
    dense.register_forward_hook(lambda _, args, y: y + 0.1 * args[0].sum(-1, keepdim=True))
    found = tune_mask(model, "1.mlp:0-7", task)
    assert [name for name, _ in found.skipped] == ["1.mlp"]
    assert "1.mlp" not in found.scale


# -- family by family --------------------------------------------------------------------------------------------------

FAMILIES = ["bert", "gpt2", "llama", "falcon", "gemma2", "bart", "marian", "t5", "vit_msn", "swin", "cvt", "whisper"]
FAMILIES += ["torch-transformer"]


def long_task(name: str) -> tuple[nn.Module, hc.data.Task]:
    """A family's model, and a task on more examples than the two that it comes with."""
    model, task = zoo_task(name)
    random = torch.Generator().manual_seed(1)
    inputs = task.collate([0, 1])
    grown = {
        key: torch.randint(3, zoo.VOCAB - 1, (24, *value.shape[1:]), generator=random)
        if not value.is_floating_point()
        else torch.randn(24, *value.shape[1:], generator=random)
        for key, value in inputs.items()
    }
    return model, replace(hc.custom_task([grown], loss=task.loss, batch_size=5), loss=task.loss)


def law_tuned_is_nearer(name: str) -> None:
    """What a tuned model computes is nearer to the whole one, and its cut is the gated model."""
    model, task = long_task(name)
    plan, print_of = half_of(model), Fingerprint(model)
    found = tune_mask(model, plan, task)
    changed = [one for one in print_of.changed() if "swin.encoder" not in one]  # Swin writes its window size down
    assert not changed
    assert not found.skipped
    assert {fit.name for fit in found.sites} == set(plan.by_site())
    for fit in found.sites:
        assert fit.tuned < fit.error if fit.used else fit.tuned == fit.error
        assert (fit.name in found.scale) == fit.used
        assert fit.low <= 1 <= fit.high or fit.used
    gates = gates_with(model, plan, found)
    batch = task.batch(24)
    whole = zoo.output(model, batch)
    with hc.masked(model, plan):
        far = float((zoo.output(model, batch) - whole).square().sum())
    with hc.gated(model, gates):
        want = zoo.output(model, batch)
    assert float((want - whole).square().sum()) < far
    hc.cut(model, plan, scale=found.scale, check=batch)
    assert torch.allclose(zoo.output(model, batch), want, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tuned_model_is_nearer_to_the_whole_one(name: str) -> None:
    law_tuned_is_nearer(name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model, task = twins(classifier(), "1.mlp", 1, 3, 1.0).to(dtype), text_task(24)
    found = tune_mask(model, "1.mlp:3", task)
    assert float(found.scale["1.mlp"][1]) == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_the_law_sees_numbers_of_the_wrong_sign(name: str, monkeypatch) -> None:
    right = mask_tuning._fitted

    def turned(spot: Any, *sums: Sums) -> Any:
        fit, numbers = right(spot, *sums)
        return fit, 2 - numbers

    monkeypatch.setattr(mask_tuning, "_fitted", turned)
    with pytest.raises(AssertionError):
        law_tuned_is_nearer(name)


# -- what counts, and edges --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [ragged_texts, ragged_pairs])
def test_padding_and_the_batch_size_do_not_matter(padded: Any) -> None:
    model = classifier() if padded is ragged_texts else zoo.build("bart")[0]
    task, plan = padded(16), half_of(model)
    found = [tune_mask(model, plan, task, batch_size=size) for size in (1, 4, 16)]
    assert len({one.positions for one in found}) == 1
    for other in found[1:]:
        assert found[0].scale.keys() == other.scale.keys()
        for name, numbers in found[0].scale.items():
            assert torch.allclose(numbers, other.scale[name], atol=1e-3 * float(numbers.abs().max())), name


def test_only_positions_that_the_loss_reads_count(monkeypatch) -> None:
    seen = {}
    right = mask_tuning._fitted

    def kept(spot: Any, fitted: Sums, held: Sums) -> Any:
        seen[spot.site.name] = fitted.positions + held.positions
        return right(spot, fitted, held)

    monkeypatch.setattr(mask_tuning, "_fitted", kept)
    model = classifier()
    found = tune_mask(model, half_of(model), text_task(12))
    assert seen == {
        "0": 108,
        "0.mlp": 108,
        "1": 108,
        "1.mlp": 108,
        "2": 12,
        "2.mlp": 12,
    }  # nine tokens, and [CLS] alone
    assert (found.examples, found.positions) == (12, 108)


def test_what_is_held_out_is_not_fitted() -> None:
    model = classifier()
    pieces = mask_tuning.calibrate(model, text_task(30), [half_of(model)], positions=10_000, batch_size=4).pieces
    fitted, held = (
        {tuple(row) for p in pieces if p.held == side for row in p.batch["input_ids"].tolist()} for side in (0, 1)
    )
    assert (len(fitted), len(held)) == (22, 8)
    assert not fitted & held


def test_it_looks_at_no_more_positions_than_it_may_and_draws_by_the_seed(monkeypatch) -> None:
    model, task, plan = classifier(), text_task(60), hc.Plan.of("0.mlp:0-9")
    one, again, other = (tune_mask(model, plan, task, positions=90, seed=seed) for seed in (0, 0, 1))
    assert (one.examples, one.positions) == (10, 90)
    # the fit amplifies rounding, but by far less than other examples change it
    assert torch.allclose(one.scale["0.mlp"], again.scale["0.mlp"], atol=1e-3)
    assert (one.scale["0.mlp"] - other.scale["0.mlp"]).abs().max() > 0.1
    assert tune_mask(model, plan, task, positions=1).examples == 2
    d_model, sites = model.config.hidden_size, 6
    monkeypatch.setattr(residual_targets, "MEMORY", 27 * d_model * 4 * sites)
    assert 2 <= tune_mask(model, plan, task).examples <= 4
    with says(hc.errors.BadData, about="two examples"):
        tune_mask(model, plan, task.subset([0]))


def test_one_unit_left_none_left_layers_gone_and_nothing_to_do() -> None:
    model, task = classifier(), text_task(24)
    neurons = len(hc.find(model)["0.mlp"])
    plan = hc.find(model).plan(f"0:0-2 0.mlp:1-{neurons - 1} 1:* 2.mlp:0-3 layers:1")
    found = tune_mask(model, plan, task)
    names = [fit.name for fit in found.sites]
    assert names == ["0", "0.mlp", "2", "2.mlp"]  # as they run, without those of the layer that goes
    assert not found.skipped
    for name, gone in (("0", slice(0, 3)), ("0.mlp", slice(1, None))):
        if name in found.scale:
            assert (found.scale[name][gone] == 1).all()
    assert "0.mlp" in found.scale
    hc.cut(model, plan, scale=found.scale, check=task.batch())
    assert tune_mask(classifier(), hc.Plan(), task).to_json() == {
        "examples": 0,
        "positions": 0,
        "sites": [],
        "skipped": [],
    }


def test_layers_that_go_are_made_up_for_by_those_that_follow() -> None:
    model, task = classifier(4), text_task(40)
    plan = hc.Plan.of("layers:1")
    found = tune_mask(model, plan, task)
    assert {fit.name for fit in found.sites} == {"2", "2.mlp", "3", "3.mlp"}
    batch = task.batch(40)
    with torch.no_grad():
        whole = model(**batch, output_hidden_states=True).hidden_states[-1]
        with hc.masked(model, plan):
            far = model(**batch, output_hidden_states=True).hidden_states[-1]
        with hc.gated(model, gates_with(model, plan, found)):
            near = model(**batch, output_hidden_states=True).hidden_states[-1]
    assert (near - whole)[:, 0].square().sum() < (far - whole)[:, 0].square().sum()


def test_sites_that_cannot_be_tuned_are_named_with_the_reason() -> None:
    for name, reason in (("albert", "runs 2 times"), ("wavlm", "without calling"), ("deepseek_v3", "expert")):
        model, task = zoo_task(name)
        found = tune_mask(model, half_of(model), task)
        assert any(reason in why for _, why in found.skipped), name
        assert not {site for site, _ in found.skipped} & found.scale.keys()


def test_the_document_is_json_and_says_what_was_found() -> None:
    model = classifier()
    found = tune_mask(model, "1.mlp:0-7", text_task(16))
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["sites"][0].keys() == {"name", "error", "tuned", "low", "high", "used"}
    first = found.scale["1.mlp"]
    assert document["sites"][0]["low"] == float(first[8:].min())
    assert document["sites"][0]["high"] == float(first[8:].max())


def test_a_loss_without_gradients_is_said() -> None:
    def detached(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return class_loss(model, batch).detach()

    with says(hc.errors.Refused, about="no gradient"):
        tune_mask(
            classifier(), "0:1", hc.custom_task([{"input_ids": texts(4), "labels": torch.arange(4) % 3}], loss=detached)
        )


def test_memory_that_runs_out_halves_the_batch(monkeypatch) -> None:
    right = residual_targets._full_model_pass

    def small(work: Any, spots: Any, batch: dict[str, Tensor]) -> Any:
        if len(batch["labels"]) > 2:
            raise torch.OutOfMemoryError("no more")
        return right(work, spots, batch)

    model, task = classifier(), text_task(16)
    want = tune_mask(model, "1.mlp:0-7", task)
    monkeypatch.setattr(residual_targets, "_full_model_pass", small)
    found = tune_mask(model, "1.mlp:0-7", task)
    assert torch.allclose(found.scale["1.mlp"], want.scale["1.mlp"], atol=1e-3)
    monkeypatch.setattr(
        residual_targets, "_full_model_pass", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("none"))
    )
    with says(hc.errors.OutOfMemory, about="one example"):
        tune_mask(model, "1.mlp:0-7", task)


# -- nothing is computed twice -------------------------------------------------------------------------------------------


def layer_calls(model: nn.Module, work: Any) -> int:
    """How often layers run while `work` does."""
    calls = []
    blocks = {block for stack in hc.find(model).stacks for block in stack.blocks}

    def counting(module: nn.Module, *_: Any) -> None:
        if "forward" not in module.__dict__:  # what answers from memory stands there
            calls.append(module)

    handles = [block.register_forward_pre_hook(counting) for block in blocks]
    work()
    for handle in handles:
        handle.remove()
    return len(calls)


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_that_answer_from_memory_change_nothing(name: str) -> None:
    model, task = zoo_task(name)
    plan = half_of(model)
    basis = mask_tuning.calibrate(model, task)
    again = tune_mask(model, plan, task, calibration=basis)
    plain = tune_mask(model, plan, task, calibration=replace(basis, replayed=False))
    assert basis.replayed
    assert again.scale.keys() == plain.scale.keys()
    for site, numbers in plain.scale.items():
        assert torch.allclose(again.scale[site], numbers, atol=1e-3 * float(numbers.abs().max())), site


def test_a_layer_runs_at_most_three_times_however_many_layers_there_are() -> None:
    calls = {}
    for layers in (4, 8):
        model, task = classifier(layers), text_task(8)
        basis = mask_tuning.calibrate(model, task, batch_size=8)
        for replayed in (True, False):
            work = partial(tune_mask, model, half_of(model), task, calibration=replace(basis, replayed=replayed))
            calls[layers, replayed] = layer_calls(model, work) / len(basis.pieces)
    # its attention is fitted, its neurons are, and its output is made for the next one
    assert calls[4, True] <= 3 * 4
    assert calls[8, True] <= 3 * 8
    assert calls[8, False] > 6 * 8, "without memory, each site would run all layers before it"


def test_plans_share_what_the_whole_model_computes(monkeypatch) -> None:
    model, task = classifier(), text_task(24)
    passes = []
    right = residual_targets._full_model_pass
    monkeypatch.setattr(residual_targets, "_full_model_pass", lambda *args: (passes.append(1), right(*args))[1])
    basis = mask_tuning.calibrate(model, task)
    once = len(passes)
    for plan in ("0:1 0.mlp:0-9", "1.mlp:0-7 2:0", "layers:1"):
        shared, alone = tune_mask(model, plan, task, calibration=basis), tune_mask(model, plan, task)
        assert shared.scale.keys() == alone.scale.keys()
        assert [fit.name for fit in shared.sites] == [fit.name for fit in alone.sites]
        for name, numbers in alone.scale.items():
            assert torch.allclose(shared.scale[name], numbers, atol=1e-3 * float(numbers.abs().max())), name
    assert len(passes) == once + 3 * once, "alone, every plan has passes of its own; with a calibration none"


def test_a_model_whose_layers_cannot_answer_from_memory_is_run_in_full(monkeypatch) -> None:
    model, task = classifier(), text_task(12)
    want = tune_mask(model, half_of(model), task)
    monkeypatch.setattr(mask_tuning, "_again", lambda output, *_, **__: tuple(2 * t for t in tensors(output)))
    basis = mask_tuning.calibrate(model, task)
    assert not basis.replayed
    found = tune_mask(model, half_of(model), task, calibration=basis)
    for name, numbers in want.scale.items():
        assert torch.allclose(found.scale[name], numbers, atol=1e-3 * float(numbers.abs().max())), name
