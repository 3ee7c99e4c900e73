"""Exchanging units within a site: never dearer, as good as trying all sets where that can be done, and counts kept."""

from __future__ import annotations

import tracemalloc
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from helpers import zoo
from helpers.small_models import class_task, classifier, parts_of

import headcount as hc
from headcount.importance.gradients import Contributions, contributions
from headcount.pruning.tuning import mask_rearrangement
from headcount.pruning.tuning.mask_rearrangement import cost, exchanged, rearrange_mask


def drawn(seed: int, rows: int, units: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(size=(rows, units)) * random.gamma(0.5, 1, units)


def lowest(signed: np.ndarray, count: int) -> np.ndarray:
    """The set that a search by single scores takes."""
    gone = np.zeros(signed.shape[1], bool)
    gone[np.argsort(np.square(signed).sum(0))[:count]] = True
    return gone


def contributions_of(signed: dict[str, np.ndarray]) -> Contributions:
    return Contributions(signed, *({name: np.ones_like(value) for name, value in signed.items()} for _ in range(5)))


# -- one site ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shrinkage", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_no_exchange_costs_more_and_as_many_go(seed: int, shrinkage: float) -> None:
    signed = drawn(seed, 3 + 4 * seed, 20)
    for count in range(21):
        for gone in (lowest(signed, count), np.arange(20) < count):
            new = exchanged(signed, gone, shrinkage)
            assert new.sum() == count
            assert cost(signed, new) <= cost(signed, gone) * (1 + 1e-12)


def test_it_comes_near_the_best_of_all_sets() -> None:
    best, found, alone = [], [], []
    for seed in range(30):
        signed, count = drawn(seed, 6, 9), 2 + seed % 5
        sets = [np.isin(np.arange(9), chosen) for chosen in combinations(range(9), count)]
        best.append(min(cost(signed, each) for each in sets))
        alone.append(cost(signed, lowest(signed, count)))
        found.append(cost(signed, exchanged(signed, lowest(signed, count), 0.0)))
    best, found, alone = (np.array(values) for values in (best, found, alone))
    assert (found >= best * (1 - 1e-9)).all()
    assert (found <= best * (1 + 1e-9)).mean() > 0.5
    assert (found <= best * (1 + 1e-9)).sum() > (alone <= best * (1 + 1e-9)).sum()


@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_two_units_that_cancel_go_together(shrinkage: float) -> None:
    random = np.random.default_rng(0)
    signed = random.normal(size=(40, 8))
    signed /= np.linalg.norm(signed, axis=0)
    signed[:, 2], signed[:, 6] = signed[:, 2] * 0.8, signed[:, 6] * 0.85
    signed[:, 5] = -1.1 * signed[:, 2]  # matters more than unit 6, alone
    assert np.flatnonzero(lowest(signed, 2)).tolist() == [2, 6]
    new = exchanged(signed, lowest(signed, 2), shrinkage)
    assert np.flatnonzero(new).tolist() == [2, 5]
    assert cost(signed, new) < 0.02 * cost(signed, lowest(signed, 2))


def test_what_seems_to_cancel_in_a_few_rows_is_not_all_believed() -> None:
    """Of random units, none cancel: fewer are exchanged, and on fresh rows the set costs less than the greedy one's."""
    moved, fresh = {0.0: 0, 0.5: 0}, {0.0: 0.0, 0.5: 0.0}
    for seed in range(10):
        random = np.random.default_rng(seed)
        sizes = random.gamma(1.0, 1.0, 60)
        here = random.normal(size=(12, 60)) * sizes
        gone = lowest(here, 30)
        for shrinkage in moved:
            new = exchanged(here, gone, shrinkage)
            moved[shrinkage] += int((new & ~gone).sum())
            fresh[shrinkage] += float(np.square(sizes[new]).sum())  # the mean over all rows that there could be
    assert moved[0.5] < moved[0.0]
    assert fresh[0.5] < fresh[0.0]


def test_the_order_of_rows_does_not_matter() -> None:
    signed = drawn(3, 30, 50)
    other = signed[np.random.default_rng(1).permutation(30)]
    assert np.array_equal(exchanged(signed, lowest(signed, 20)), exchanged(other, lowest(signed, 20)))


@pytest.mark.parametrize(("gone", "shrinkage"), [([], 0.0), (range(7), 0.0), ([], 0.5), (range(7), 0.5)])
def test_none_gone_and_all_gone_stay_so(gone: Any, shrinkage: float) -> None:
    mask = np.isin(np.arange(7), list(gone))
    assert np.array_equal(exchanged(drawn(0, 5, 7), mask, shrinkage), mask)


def test_a_single_unit_stays_or_goes_by_what_is_cheapest() -> None:
    signed = drawn(1, 9, 6)
    left = [cost(signed, np.arange(6) != unit) for unit in range(6)]
    assert exchanged(signed, np.arange(6) != 0, 0.0).tolist() == [unit != int(np.argmin(left)) for unit in range(6)]
    gone = [cost(signed, np.arange(6) == unit) for unit in range(6)]
    assert exchanged(signed, np.arange(6) == 0, 0.0).tolist() == [unit == int(np.argmin(gone)) for unit in range(6)]


def test_equal_units_are_not_exchanged_for_ever() -> None:
    signed = np.ones((4, 6))
    assert np.array_equal(exchanged(signed, np.arange(6) < 3), np.arange(6) < 3)
    assert np.array_equal(exchanged(np.zeros((4, 6)), np.arange(6) < 3), np.arange(6) < 3)


def test_products_of_all_units_are_kept_only_where_they_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand units they take eight million bytes; without them the same units are exchanged."""
    signed, gone = drawn(3, 4, 1000), np.arange(1000) < 3
    found, peaks = [], []
    for memory in (2**23, 2**20):
        monkeypatch.setattr(mask_rearrangement, "MEMORY", memory)
        tracemalloc.start()
        try:
            found.append(exchanged(signed, gone))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[0] > 8_000_000 > 2**20 > peaks[1]
    assert np.array_equal(*found)
    assert not np.array_equal(found[0], gone)


# -- plans -------------------------------------------------------------------------------------------------------------


def test_a_plan_keeps_its_counts_and_costs_no_more() -> None:
    model = classifier()
    parts = parts_of(model)
    gathered = contributions(model, hc.find(model), parts, class_task(40))
    plan = hc.Plan.of("0:0,1", "1:3", "1.mlp:0-20", "2.mlp:5", "layers:2", why="asked")
    new = rearrange_mask(plan, parts, gathered)
    assert {name: len(units) for name, units in new.by_site().items()} == {
        name: len(units) for name, units in plan.by_site().items()
    }
    assert new.by_site()["layers"] == (2,)
    assert new.why == "asked"
    assert len(new - plan) == len(plan - new) > 0
    for name, units in plan.by_site().items():
        signed = gathered.signed[name]
        every = np.arange(signed.shape[1])
        assert cost(signed, np.isin(every, new.by_site()[name])) <= cost(signed, np.isin(every, units)) * (1 + 1e-9)


def test_it_counts_by_original_indices_after_a_cut() -> None:
    model = classifier()
    hc.cut(model, "0.mlp:0-9")
    site = next(part for part in parts_of(model) if part.name == "0.mlp")
    signed = np.full((4, len(site)), 3.0)
    signed[:, -1] = 0.0  # the last neuron of those that are left does nothing
    new = rearrange_mask(hc.Plan.of("0.mlp:10"), [site], contributions_of({"0.mlp": signed}))
    assert new == hc.Plan.of(f"0.mlp:{site.of - 1}")


def test_heads_that_share_keys_and_values_and_unknown_parts_stay_as_planned() -> None:
    model, _ = zoo.build("llama")
    parts = parts_of(model)
    shares = next(part for part in parts if part.kind == "head")
    assert len(shares) != shares.kv_heads  # type: ignore[union-attr]
    signed = {part.name: np.full((4, len(part)), 3.0) for part in parts if part.name != "1.mlp"}
    for values in signed.values():
        values[:, -1] = 0.0
    plan = hc.Plan.of("0:0", "0.mlp:0", "1.mlp:0")
    mlp = next(part for part in parts if part.name == "0.mlp")
    assert rearrange_mask(plan, parts, contributions_of(signed)) == hc.Plan.of(
        "0:0", f"0.mlp:{len(mlp) - 1}", "1.mlp:0"
    )
