"""Columns fitted anew: against numpy on positions written out, units that others can stand in for, and family by family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import close, same_weights
from helpers.small_models import class_task, classifier, ragged_pairs, ragged_texts
from torch import Tensor, nn

import headcount as hc
from headcount.model.cutting.refits import kept_columns
from headcount.pruning.tuning import column_refit, least_squares
from headcount.pruning.tuning.column_refit import observe, refit_columns
from headcount.pruning.tuning.least_squares import CrossSums, best_ridge, ridge_columns
from pruning.test_mask_tuning import half_of, long_task

# -- the equations -----------------------------------------------------------------------------------------------------


def written_out(seed: int, positions: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What five columns are given, what is missing in four rows, and what positions weigh."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(positions, 5)) + random.normal(size=5)
    return x, random.normal(size=(positions, 4)) + random.normal(size=4), random.uniform(0.5, 2, size=positions)


def sums_of(x: np.ndarray, e: np.ndarray, weights: np.ndarray, at_once: int) -> CrossSums:
    sums = CrossSums.zeros(x.shape[1], e.shape[1], torch.device("cpu"))
    for start in range(0, len(x), at_once):
        some = slice(start, start + at_once)
        sums.add(*(torch.from_numpy(values[some]) for values in (x, e, e, weights)))
    return sums


@pytest.mark.parametrize("at_once", [7, 60])
@pytest.mark.parametrize("strength", [0.0, 0.1, 10.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_the_sums_give_the_least_squares_of_positions_written_out(
    intercept: bool, strength: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(least_squares, "ROWS", 5)
    x, e, weights = written_out(0)
    root = np.sqrt(weights)[:, None]
    centre = (weights @ x / weights.sum(), weights @ e / weights.sum()) if intercept else (0, 0)
    own, missing = root * (x - centre[0]), root * (e - centre[1])
    below = np.sqrt(strength * np.square(own).sum(0).mean()) * np.eye(5)
    want = np.linalg.lstsq(np.vstack([own, below]), np.vstack([missing, np.zeros((5, 4))]), rcond=None)[0]
    bias = centre[1] - centre[0] @ want if intercept else np.zeros(4)
    sums = sums_of(x, e, weights, at_once)
    found = ridge_columns(sums, strength, intercept)
    assert found is not None
    assert np.allclose(found.change, want)
    assert np.allclose(found.bias, bias)
    assert np.isclose(sums.left(found), (weights[:, None] * np.square(e - x @ want - bias)).sum())
    assert sums.positions == 60


def test_the_strength_is_chosen_on_held_out_positions_and_all_are_used_then() -> None:
    x, e, weights = written_out(1, 400)
    truth = np.random.default_rng(2).normal(size=(5, 4))
    noisy = x @ truth + 0.1 * e
    fitted, held = sums_of(x[:300], noisy[:300], weights[:300], 50), sums_of(x[300:], noisy[300:], weights[300:], 50)
    best = best_ridge(fitted, held, intercept=True, strengths=(1e-4, 100.0))
    assert best is not None
    assert best.strength == 1e-4
    both = ridge_columns(fitted + held, 1e-4, intercept=True)
    alone = ridge_columns(fitted, 1e-4, intercept=True)
    assert both is not None
    assert alone is not None
    assert np.allclose(best.solution.change, both.change)
    assert best.left == pytest.approx(held.left(alone))
    opposite = sums_of(x[300:], -noisy[300:], weights[300:], 50)
    assert best_ridge(fitted, opposite, intercept=False, strengths=(0.1,)) is None  # does harm there


def test_without_columns_there_is_a_bias_and_without_anything_nothing() -> None:
    x, e, weights = written_out(3)
    sums = sums_of(x[:, :0], e, weights, 60)
    found = ridge_columns(sums, 0.1, intercept=True)
    assert found is not None
    assert np.allclose(found.bias, weights @ e / weights.sum())
    assert ridge_columns(sums_of(0 * x, e, weights, 60), 0.1, intercept=False) is None


# -- a model in which others can stand in --------------------------------------------------------------------------------


def combined(model: nn.Module, name: str) -> nn.Module:
    """Let the last unit read what the first two read, with a linear reading: it is the sum of twins of theirs."""
    site = hc.find(model)[name]
    assert isinstance(site, hc.model.Site)
    width, last = site.width, len(site) - 1
    with torch.no_grad():
        for reader in site.readers:
            own = slice(last * width, (last + 1) * width)
            reader.weight[own], reader.bias[own] = reader.weight[:width], reader.bias[:width]
        # the same columns in another order, and as large again: one number per unit cannot make it good, its columns can
        site.writer.weight[:, last * width :] = 3 * site.writer.weight[:, width : 2 * width].flip(0)
    return model


@pytest.mark.parametrize("name", ["0", "1", "0.mlp", "1.mlp"])
def test_what_others_can_write_is_written_by_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_refit, "STRENGTHS", (1e-10,))
    model, task = combined(classifier().double(), name), class_task(40)
    site = hc.find(model)[name]
    plan = hc.Plan.of(f"{name}:{len(site) - 1}")
    found = refit_columns(model, plan, task)
    want = site.writer.weight.detach().clone()
    want[:, : site.width] += want[:, -site.width :]
    assert close(found.columns[name], want[:, : -site.width], 1e-5)
    assert close(found.bias[name], torch.zeros_like(found.bias[name]), 1e-5)
    inputs = task.batch(40)
    with torch.no_grad():
        whole = model(**inputs).logits
        hc.cut(model, plan, columns=found.columns, bias=found.bias, check=inputs)
        assert close(model(**inputs).logits, whole, 1e-5)


# -- family by family ----------------------------------------------------------------------------------------------------

FAMILIES = ["bert", "gpt2", "llama", "gemma2", "bart", "t5", "swin", "whisper", "torch-transformer"]


def swapped_in(model: nn.Module, plan: hc.Plan, found: Any) -> None:
    """Write the columns and biases into the weights of the model, unit by unit, with nothing cut."""
    for site in hc.find(model):
        if site.name in found.columns:
            matrix = site.columns
            weight = getattr(matrix.owner, matrix.weight)
            with torch.no_grad():
                rows = weight.view(matrix.shape) if matrix.row_axis == 0 else weight.T
                rows[:, kept_columns(site, plan)] = found.columns[site.name].to(weight)
                if site.name in found.bias and site.writer.bias is not None:
                    site.writer.bias += found.bias[site.name].to(weight)
                elif site.name in found.bias:
                    site.writer.bias = nn.Parameter(found.bias[site.name].to(weight))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_refitted_model_is_nearer_and_is_cut_as_it_was_fitted(name: str, intercept: bool) -> None:
    model, task = long_task(name)
    plan, print_of = half_of(model), Fingerprint(model)
    found = refit_columns(model, plan, task, intercept=intercept)
    assert not [one for one in print_of.changed() if "swin.encoder" not in one]  # Swin writes its window size down
    assert not found.skipped
    assert {fit.name for fit in found.sites} == set(plan.by_site())
    for fit in found.sites:
        assert fit.refitted < fit.error if fit.used else fit.refitted == fit.error
        assert (fit.name in found.columns) == fit.used
    had = {site.name for site in hc.find(model) if site.columns.bias_name is not None}
    assert set(found.bias) == (set(found.columns) if intercept else set(found.columns) & had)
    batch = task.batch(24)
    whole = zoo.output(model, batch)
    with hc.masked(model, plan):
        far = float((zoo.output(model, batch) - whole).square().sum())
    cut_model, _ = long_task(name)
    swapped_in(model, plan, found)
    with hc.masked(model, plan):
        want = zoo.output(model, batch)
    assert float((want - whole).square().sum()) < far
    hc.cut(cut_model, plan, columns=found.columns, bias=found.bias, check=batch)
    assert close(zoo.output(cut_model, batch), want, 1e-4)


@pytest.mark.parametrize("replayed", [True, False])
def test_layers_that_answer_from_memory_answer_what_they_gave(replayed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `at` of a stream gives what an ordinary pass of the masked and refitted model gives there."""
    model, task = long_task("bart")
    plan = half_of(model)
    basis = observe(model, task)
    assert basis.replayed
    right, seen = column_refit.Stream.at, []

    def at(self: Any, site: Any, number: int, batch: Any, matter: Any) -> Any:
        found = right(self, site, number, batch, matter)
        plain = column_refit.Stream(column_refit.replace(self.basis, replayed=False), self.gates, self.changes)
        seen.append((found, right(plain, site, number, batch, matter)))
        assert len(self.done[number]) <= 2  # of each stack the last layer alone
        return found

    monkeypatch.setattr(column_refit.Stream, "at", at)
    refit_columns(model, plan, task, basis=column_refit.replace(basis, replayed=replayed))
    assert len(seen) > 20
    assert all(close(a, b) for one, other in seen for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("padded", [ragged_texts, ragged_pairs])
def test_padding_and_the_batch_size_do_not_matter(padded: Any) -> None:
    model = classifier() if padded is ragged_texts else zoo.build("bart")[0]
    task, plan = padded(16), half_of(model)
    found = [refit_columns(model, plan, task, batch_size=size) for size in (1, 16)]
    assert found[0].positions == found[1].positions
    for one, other in zip(*(each.sites for each in found), strict=True):
        assert one.error == pytest.approx(other.error, rel=1e-2, abs=1e-6)


def test_examples_are_drawn_by_the_seed_and_held_out_ones_are_not_fitted() -> None:
    model, task = classifier(), class_task(30)
    fitted, held = (
        {
            tuple(row)
            for p in observe(model, task, batch_size=4).pieces
            if p.held == side
            for row in p.batch["input_ids"].tolist()
        }
        for side in (False, True)
    )
    assert (len(fitted), len(held)) == (22, 8)
    assert not fitted & held
    assert refit_columns(model, "0:1", task, positions=90).examples == 10
    with says(hc.errors.BadData, about="at least two examples"):
        refit_columns(model, "0:1", class_task(1))


def test_a_run_goes_on_with_the_sites_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headcount.runs import Run

    model, task = classifier(), class_task(24)
    plan = half_of(model)
    want = refit_columns(model, plan, task)
    right, calls = column_refit._sums, list[str]()

    def stopped(basis: Any, whole: Any, smaller: Any, site: Any, *more: Any) -> Any:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(site.name)
        return right(basis, whole, smaller, site, *more)

    monkeypatch.setattr(column_refit, "_sums", stopped)
    with Run.open(tmp_path / "run", {"command": "x"}) as run:
        with pytest.raises(KeyboardInterrupt):
            refit_columns(model, plan, task, run=run)
        calls.clear()
        calls += ["", "", ""]
        monkeypatch.setattr(column_refit, "_sums", lambda *given: (calls.append(given[3].name), right(*given))[1])
        found = refit_columns(model, plan, task, run=run)
        assert calls[3:] == ["1.mlp", "2", "2.mlp"]
    assert found.columns.keys() == want.columns.keys()
    for name, values in want.columns.items():
        assert close(found.columns[name], values, 1e-3)


# -- in `choose` and in the checkpoint -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lesson() -> tuple[nn.Module, hc.data.Task]:
    return classifier(2), class_task(60)


def test_a_choice_has_the_columns_and_says_where_they_do_no_good(
    lesson: tuple[nn.Module, hc.data.Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, task = lesson
    how = {"plan": half_of(model), "score": task, "brake": None}
    plain, alone, both = (hc.pruning.choose(model, compensate=way, **how) for way in ("mean", "lstsq", "mean,lstsq"))
    assert plain.fill
    assert not plain.columns
    for choice in (alone, both):
        assert choice.columns
        assert not choice.fill
        assert not choice.note
        assert set(choice.changes) == {"columns", "bias"}
        assert choice.told().refitted.examples == choice.refit.examples < task.size
    refit = column_refit.refit_columns

    def spoilt(*given: Any, **more: Any) -> Any:
        found = refit(*given, **more)
        return column_refit.replace(found, columns={name: 50 * torch.ones_like(v) for name, v in found.columns.items()})

    monkeypatch.setattr("headcount.pruning.plan_tests.refit_columns", spoilt)
    left_out = hc.pruning.choose(model, compensate="mean,lstsq", **how)
    assert left_out.note.startswith("Not refitted: on ")
    assert not left_out.columns
    assert left_out.fill.keys() == plain.fill.keys()


def test_columns_are_judged_on_examples_that_they_were_not_fitted_on(
    lesson: tuple[nn.Module, hc.data.Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headcount.data.splits import digests
    from headcount.pruning.plan_tests import PlanTester

    seen: dict[str, frozenset[bytes]] = {}
    refit, rows = column_refit.refit_columns, PlanTester._rows

    def fitted(model: Any, plan: Any, task: Any, **more: Any) -> Any:
        seen["fitted"] = digests(task)
        return refit(model, plan, task, **more)

    def measured(self: Any, task: Any, candidate: Any, name: str) -> Any:
        seen[name] = digests(task)
        return rows(self, task, candidate, name)

    monkeypatch.setattr("headcount.pruning.plan_tests.refit_columns", fitted)
    monkeypatch.setattr(PlanTester, "_rows", measured)
    model, task = lesson
    hc.pruning.choose(model, plan="0:1", score=task, compensate="lstsq", brake=None)
    judged = next(marks for name, marks in seen.items() if name.startswith("refit-judged"))
    assert len(judged) + len(seen["fitted"]) == len(digests(task))
    assert not judged & seen["fitted"]


def test_a_checkpoint_has_the_columns_and_biases_and_its_card_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a family without biases: what is saved, loaded again and measured is the masked model with these columns swapped in."""
    monkeypatch.setattr("headcount.pruning.pipeline.bench", lambda *_, **__: None)  # takes ten seconds
    monkeypatch.setattr("headcount.pruning.plan_tests._is_no_worse", lambda *_: True)  # on either side of a near tie
    model = zoo.build("llama")[0]
    ids = torch.randint(3, zoo.VOCAB - 1, (60, 7), generator=torch.Generator().manual_seed(0))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(**batch).logits.tanh().flatten(1).sum(1)

    score, report = (hc.custom_task([{"input_ids": some}], loss=loss) for some in (ids[:44], ids[44:]))
    how = {"remove": "30%", "units": "heads,neurons", "score": score, "brake": None}
    choice = hc.pruning.choose(model, compensate="mean,lstsq", **how)
    assert choice.columns.keys() == choice.bias.keys() != set()
    pruned = hc.pruning.save_pruned(model, tmp_path / "smaller", report, choice)
    plain = hc.evaluate(model, report)
    swapped_in(model, choice.plan, choice)
    with hc.masked(model, choice.plan):
        want = hc.evaluate(model, report)
    assert close(pruned.after.rows, want.rows, 1e-4)
    assert not close(pruned.after.rows, plain.rows, 1e-4)
    again = hc.load(tmp_path / "smaller", dtype=torch.float32)
    assert same_weights(again, pruned.model)
    assert set(again.config.headcount["biases"]) == set(choice.bias)
    card = (tmp_path / "smaller" / "README.md").read_text()
    assert "Compensated: columns and biases of output matrices were fitted anew by least squares on" in card
    assert "the refitted columns in place" in card
