"""The knapsack: never over the budget, and as good as trying everything."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

import headcount as hc
from headcount.pruning import knapsack
from headcount.pruning.knapsack import LayerGroup, Options, fill


def _shelf(rng: np.random.Generator, units: int, price: float, step: int = 1) -> Options:
    values = np.sort(rng.exponential(size=units))[::-1]
    counts = np.unique([*range(0, units, step), units])
    kept = np.concatenate([[0.0], values.cumsum()])[counts]
    return Options(counts, values.sum() - kept, price * counts)


def _totals(floors: list[LayerGroup]) -> list[tuple[float, float]]:
    """What every choice costs and loses, by trying everything."""
    choices = []
    for floor in floors:
        kept = [
            (floor.cost + sum(s.cost[o] for s, o in zip(floor.shelves, options, strict=True)),
             sum(s.lost[o] for s, o in zip(floor.shelves, options, strict=True)))
            for options in product(*(range(len(shelf.counts)) for shelf in floor.shelves))
        ]  # fmt: skip
        choices.append([*kept, *([(0.0, floor.lost)] if floor.lost is not None else [])])
    return [(sum(cost for cost, _ in some), sum(lost for _, lost in some)) for some in product(*choices)]


@pytest.mark.parametrize("seed", range(40))
def test_it_is_never_over_the_budget_and_loses_no_more_than_the_best_choice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    floors = []
    for _ in range(3):
        shelves = [_shelf(rng, int(rng.integers(1, 5)), float(rng.integers(1, 20))) for _ in range(rng.integers(0, 3))]
        lost = float(rng.exponential()) if rng.random() < 0.5 else None
        floors.append(LayerGroup(shelves, lost, float(rng.integers(0, 5)) if lost is not None else 0.0))
    whole = sum(floor.cost + sum(shelf.cost[-1] for shelf in floor.shelves) for floor in floors)
    budget = float(rng.random() * whole)
    within = [lost for cost, lost in _totals(floors) if cost <= budget]
    if not within:
        with pytest.raises(hc.errors.BadPlan, match="Nothing costs as little"):
            fill(floors, budget)
        return
    found = fill(floors, budget)
    assert found.cost <= budget
    assert found.lost == pytest.approx(min(within), abs=1e-9)  # whole costs: rounding to ten-thousandths loses nothing


@st.composite
def few_floors(draw: Any) -> list[LayerGroup]:
    """Up to three layers of up to two sites."""
    made = []
    for _ in range(draw(st.integers(1, 3))):
        shelves = []
        for _ in range(draw(st.integers(0, 2))):
            worth = sorted(draw(st.lists(st.integers(0, 20), min_size=1, max_size=4)), reverse=True)
            counts = np.arange(len(worth) + 1)
            kept = np.concatenate([[0], np.cumsum(worth)])
            shelves.append(
                Options(counts, sum(worth) - kept.astype(float), draw(st.integers(1, 9)) * counts.astype(float))
            )
        lost = draw(st.none() | st.integers(0, 30))
        made.append(LayerGroup(shelves, lost, 0.0 if lost is None else float(draw(st.integers(0, 5)))))
    return made


@given(few_floors(), st.integers(0, 150))
def test_no_budget_is_exceeded_and_nothing_better_fits(floors: list[LayerGroup], budget: int) -> None:
    """Costs are counted in ten-thousandths of the budget, rounded up: one of them may be lost for each site and layer."""
    totals, sites = _totals(floors), sum(1 + len(floor.shelves) for floor in floors)
    assume(any(cost <= budget for cost, _ in totals))
    found = fill(floors, float(budget))
    assert found.cost <= budget
    assert found.lost >= min(lost for cost, lost in totals if cost <= budget)
    well_within = [lost for cost, lost in totals if cost <= budget * (1 - sites / 10_000)]
    assert not well_within or found.lost <= min(well_within)  # whole numbers: no rounding


@pytest.mark.parametrize("seed", range(60))
def test_random_budgets_are_kept_at_the_size_of_bert(seed: int) -> None:
    rng = np.random.default_rng(seed)
    step = int(rng.choice([1, 16, 64]))
    floors = [LayerGroup([_shelf(rng, 12, 64.0), _shelf(rng, 3072, rng.random() + 0.5, step)]) for _ in range(4)]
    whole = sum(float(shelf.cost[-1]) for floor in floors for shelf in floor.shelves)
    budget = float(rng.random() * whole)
    found = fill(floors, budget)
    assert found.cost <= budget
    assert found.cost >= budget - max(64.0, 1.5 * step)  # and what could still be bought was bought
    for floor, counts in zip(floors, found.counts, strict=True):
        assert counts is not None
        assert all(count in shelf.counts for shelf, count in zip(floor.shelves, counts, strict=True))


def _least_lost(floors: list[LayerGroup], budget: float) -> float:
    """What is lost at least, by a solver of integer programs: a variable for every option of every site."""
    shelves = [shelf for floor in floors for shelf in floor.shelves]
    sizes = [len(shelf.counts) for shelf in shelves]
    chosen_once = np.repeat(np.eye(len(shelves)), sizes, axis=1)
    lost = np.concatenate([shelf.lost for shelf in shelves])
    cost = np.concatenate([shelf.cost for shelf in shelves])
    solved = milp(
        lost,
        integrality=np.ones(len(lost)),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(chosen_once, 1, 1), LinearConstraint(cost / budget, -np.inf, 1)],
        options={"mip_rel_gap": 1e-4},
    )
    assert solved.success
    return float(solved.fun)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_at_the_width_of_bert_it_loses_no_more_than_an_integer_program(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    floors = [LayerGroup([_shelf(rng, 12, 134.0), _shelf(rng, 3072, 1.0, 64)]) for _ in range(6)]
    budget = share * sum(float(shelf.cost[-1]) for floor in floors for shelf in floor.shelves)
    found = fill(floors, budget)
    exact = _least_lost(floors, budget)
    assert found.cost <= budget
    assert exact * (1 - 1e-4) <= found.lost <= exact * 1.001


def _kwon(heads: np.ndarray, neurons: np.ndarray, cut_effects: tuple[float, float], budget: float) -> float:
    """What is kept at most with two prices only: all numbers of heads that the budget can pay for (Kwon et al. 2022).

    Their code does not bound the number of heads, and goes over small budgets.
    """
    best = 0.0
    for count in range(len(heads) + 1):
        if count * cut_effects[0] <= budget:
            others = int((budget - count * cut_effects[0]) // cut_effects[1])
            best = max(best, heads[:count].sum() + neurons[:others].sum())
    return best


@pytest.mark.parametrize("share", [0.05, 0.2, 0.339, 0.5, 0.75, 0.95])
def test_with_two_prices_it_finds_what_the_published_search_finds_and_keeps_small_budgets(share: float) -> None:
    rng = np.random.default_rng(5)
    cut_effects = (4 * 768 * 64 + 2 * 39 * 64, 2 * 768)
    floors = [LayerGroup([_shelf(rng, 12, cut_effects[0]), _shelf(rng, 512, cut_effects[1])]) for _ in range(6)]
    heads, neurons = (
        np.sort(np.concatenate([-np.diff(floor.shelves[n].lost) for floor in floors]))[::-1] for n in (0, 1)
    )
    whole = sum(float(shelf.cost[-1]) for floor in floors for shelf in floor.shelves)
    found = fill(floors, share * whole)
    kept = heads.sum() + neurons.sum() - found.lost
    best = _kwon(heads, neurons, cut_effects, share * whole)
    assert found.cost <= share * whole
    assert best * 0.999 <= kept <= best * (1 + 1e-9)


def test_a_layer_goes_whole_where_it_is_worth_less_than_what_it_costs() -> None:
    dear = Options(np.array([0, 1]), np.array([1.0, 0.0]), np.array([0.0, 10.0]))
    floors = [LayerGroup([dear], lost=0.1, cost=50.0), LayerGroup([dear], lost=5.0, cost=50.0)]
    found = fill(floors, 70.0)
    assert found.counts == (None, (1,))
    assert found.cost == 60.0
    assert found.lost == pytest.approx(0.1)


def test_with_nothing_to_spend_only_what_is_free_stays() -> None:
    free = Options(np.array([0, 3]), np.array([1.0, 0.0]), np.array([0.0, 0.0]))
    dear = Options(np.array([0, 3]), np.array([1.0, 0.0]), np.array([0.0, 0.5]))
    found = fill([LayerGroup([free, dear])], 0.0)
    assert found.counts == ((3, 0),)
    assert found.cost == 0.0


def test_what_rounding_leaves_over_is_spent_on_what_is_worth_most_for_its_price() -> None:
    """Three sites that take all of the budget but for a millionth, which buys one dear unit or two cheap ones."""
    budget, rest = 1.0, 2.0**-20
    base = (budget - rest) / 3
    dear = Options(np.array([1, 2]), np.array([5.0, 0.0]), np.array([base, base + rest]))
    cheap = Options(np.array([1, 2]), np.array([3.0, 0.0]), np.array([base, base + rest / 4]))
    found = fill([LayerGroup([dear]), LayerGroup([cheap]), LayerGroup([cheap])], budget)
    assert found.counts == ((1,), (2,), (2,))
    assert found.lost == 5.0
    assert found.cost <= budget


def test_spending_what_is_left_over_looks_at_one_layer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[LayerGroup]()
    right = knapsack._cost
    monkeypatch.setattr(knapsack, "_cost", lambda floor, chosen: (calls.append(floor), right(floor, chosen))[1])
    counts = np.arange(41)
    for layers in (10, 40):
        shelf = Options(counts, 40.0 - counts, counts.astype(float))
        floors, selection = [LayerGroup([shelf])] * layers, [[0] for _ in range(layers)]
        calls.clear()
        knapsack._greedy_fill(floors, selection, 20.0 * layers)
        assert sum(chosen[0] for chosen in selection) == 20 * layers
        assert len(calls) <= layers + 21 * layers, "once each, and once more for every step and every step too dear"
