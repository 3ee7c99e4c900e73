"""Candidate plans: units are weighed together where they act together, the best on scoring examples wins, a ruined one stops."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers.language import byte_tokenizer, small_llama
from helpers.same import close
from helpers.small_models import zoo_task

import headcount as hc
from headcount.data import splits
from headcount.documents.prune import Candidate
from headcount.errors import BadPlan, NotShown, TooMuchLost
from headcount.pruning import budget as budgets
from headcount.pruning import candidates
from headcount.pruning.candidates import LAST, Candidates, Judge, ranked
from headcount.pruning.plan_tests import PlanTester
from headcount.pruning.tuning.compensation import unit_means
from headcount.pruning.tuning.mask_rearrangement import cost
from headcount.pruning.weighing import Weighing, removal_order
from pruning.test_budget import clock, noisy_clock, speed_row  # noqa: F401 (a fixture)
from pruning.test_pipeline import _model, _task, place, quick  # noqa: F401 (fixtures)

UNITS = "heads,neurons"


# -- units that act together ---------------------------------------------------------------------------------------------


def test_by_themselves_units_go_in_the_order_of_their_squares() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 7))
    order, lost = removal_order(rows, shrinkage=1.0)
    squares = (rows**2).sum(0)
    assert order == np.argsort(squares).tolist()
    assert lost == pytest.approx(np.concatenate([[0.0], np.cumsum(np.sort(squares))]))


def test_what_is_lost_with_a_set_is_its_block_fisher_and_never_falls() -> None:
    rows = np.abs(np.random.default_rng(1).normal(size=(40, 6)))  # all point the same way: nothing cancels
    order, lost = removal_order(rows, shrinkage=0.0)
    for count in range(7):
        mask = np.zeros(6, bool)
        mask[order[:count]] = True
        assert lost[count] == pytest.approx(cost(rows, mask))
    pairs = [cost(rows, np.isin(range(6), pair)) for pair in combinations(range(6), 2) if order[0] in pair]
    assert lost[2] == pytest.approx(min(pairs))
    cancelling = np.column_stack([rows[:, 0], -rows[:, 0], 3 * rows[:, 1]])
    order, lost = removal_order(cancelling, shrinkage=0.0)
    assert set(order[:2]) == {0, 1}
    assert (np.diff(lost) >= 0).all()


def test_all_heads_of_an_attention_go_by_single_units_and_stay_by_units_together() -> None:
    """Every head of one attention says the same: each alone matters little, and all of them together a great deal."""
    model, _ = zoo_task("bert")
    anatomy, rng = hc.find(model), np.random.default_rng(0)
    same = rng.normal(size=(200, 1))
    rows = {site.name: 2.2 * rng.normal(size=(200, len(site))) for site in anatomy.heads}
    first, *others = [site.name for site in anatomy.heads]
    rows[first] = np.repeat(same, len(anatomy[first]), axis=1) * 1.5
    units = tuple(unit for site in anatomy.heads for unit in site.units)
    raw = np.concatenate([0.5 * (rows[site.name] ** 2).mean(0) for site in anatomy.heads])
    kinds = {site.name: "head" for site in anatomy.heads}
    scores = hc.documents.Scores(units, raw, "fisher", kinds, dict.fromkeys(kinds))
    orders = {}
    for site in anatomy.heads:
        order, lost = removal_order(rows[site.name])
        orders[site.name] = budgets.SiteOrder(tuple(site.units[n] for n in order), 0.5 * lost / 200)
    base = budgets.purse(model, scores, "params")
    allowed = base.costs.whole - (base.costs.whole - base.cheapest()) / len(anatomy.heads)
    alone, together = base.buy(allowed), replace(base, weighed=orders).buy(allowed)
    assert {unit.site for unit in alone} == {first}, "a sum of single terms takes the whole attention"
    assert first not in {unit.site for unit in together} or len(together.by_site()[first]) < len(anatomy[first])
    assert others


def test_a_floor_keeps_its_share_of_every_site() -> None:
    model, task = zoo_task("bert")
    base = budgets.purse(model, hc.score(model, task, "fisher", units=UNITS), "params", multiple=1)
    for floor in (0.25, 0.5):
        problem = replace(base, floor=floor)
        plan = problem.buy(problem.cheapest())
        for site in hc.find(model):
            assert len(site) - len(plan.by_site().get(site.name, ())) == np.ceil(floor * len(site))


# -- the best is taken ---------------------------------------------------------------------------------------------------


def _candidates(model: Any, task: Any, resource: str = "params") -> Candidates:
    names = ("fisher", "taylor")
    ways = [Weighing(by, hc.score(model, task, by, units=UNITS).normalized(None)) for by in names]
    return Candidates(budgets.purse(model, ways[0].scores, resource, length=8), ways)


@pytest.mark.parametrize("seed", range(4))
def test_the_plan_that_measures_best_on_scoring_examples_wins(
    seed: int,
    place: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, score = _model(place), _task(place, "train", limit=40)
    found, rng = _candidates(model, score), np.random.default_rng(seed)
    plans = found.plans(0.8 * found.base.costs.whole)
    assert len({plan.units for plan in plans}) == len(plans) >= 3  # (by taylor and by fisher may be one plan)
    worth = {plan.units: place for plan, place in zip(plans, rng.permutation(len(plans)).tolist(), strict=True)}

    def planted(smaller: Any, task: Any, *_: Any, **__: Any) -> np.ndarray:
        """So many examples right as the plan is worth."""
        right = 0.5 + worth[hc.removed(smaller).units] / len(plans) / 2
        labels = np.zeros(task.size)
        guesses = (np.arange(task.size) >= right * task.size).astype(float)
        return np.column_stack([labels, guesses, np.ones(task.size)])[None]

    monkeypatch.setattr(candidates, "measure", planted)
    judge = Judge(model, score, hc.runs.InMemory())
    order = ranked(judge, plans)
    best = max(plans, key=lambda plan: worth[plan.units])
    assert order[0].plan.units == best.units
    winner = candidates.best_within(found, judge, 0.8)
    assert winner.rule == plans[best]
    assert winner.plan.units == best.units
    (taken,) = [candidate for candidate in winner.candidates if candidate.chosen]
    assert (taken.by, taken.removed) == (plans[best].by, len(best))
    assert len(winner.candidates) == len(plans)


def test_a_plan_that_had_to_shrink_is_worth_what_is_left_of_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The three best are all slower than was reckoned: what they are once they keep the budget is weighed and written down."""
    model, score = _model(place), _task(place, "train", limit=40)
    found = _candidates(model, score)
    plans = found.plans(0.8 * found.base.costs.whole)
    first, second, third, *others = plans
    less = {
        plan: hc.Plan(sorted(plan.units)[: len(plan) - 1 - number])
        for number, plan in enumerate((first, second, third))
    }
    worth = {first.units: 1.0, second.units: 0.9, third.units: 0.8} | {plan.units: 0.5 for plan in others}
    worth |= {less[first].units: 0.6, less[second].units: 0.85, less[third].units: 0.95}

    def planted(smaller: Any, task: Any, *_: Any, **__: Any) -> np.ndarray:
        labels = np.zeros(task.size)
        guesses = (np.arange(task.size) >= worth[hc.removed(smaller).units] * task.size).astype(float)
        return np.column_stack([labels, guesses, np.ones(task.size)])[None]

    shrunk = list[hc.Plan]()

    def within(problem: Any, target: Any) -> tuple[hc.Plan, Any]:
        plan = next(plan for plan, rule in plans.items() if (rule.by, rule.floor) == (problem.by, problem.floor))
        shrunk.append(plan)
        return less[plan], None

    monkeypatch.setattr(candidates, "measure", planted)
    monkeypatch.setattr(candidates, "within", within)
    winner = candidates.best_within(found, Judge(model, score, hc.runs.InMemory()), 0.8)
    assert winner.plan == less[second]
    assert shrunk == [first, second], "the third promises less than the second is worth"
    (taken,) = [candidate for candidate in winner.candidates if candidate.chosen]
    assert (taken.removed, taken.value) == (len(less[second]), pytest.approx(0.85))
    finalists = [candidate.value for candidate in winner.candidates if candidate.n == taken.n]
    assert finalists == sorted(finalists, reverse=True)


def test_only_scoring_examples_are_looked_at(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    model, score = _model(place), _task(place, "train", limit=60)
    select = splits.without(splits.distinct(_task(place, "dev", limit=300)), splits.digests(score))
    really, looked_at = candidates.measure, set[bytes]()

    def watched(smaller: Any, task: Any, *more: Any, **options: Any) -> Any:
        looked_at.update(splits.digests(task))
        return really(smaller, task, *more, **options)

    monkeypatch.setattr(candidates, "measure", watched)
    kept = Fingerprint(model)
    options: dict[str, Any] = {"units": UNITS, "score": score, "length": 8}
    plain = hc.pruning.choose(model, params="80%", **options)
    tested = hc.pruning.choose(model, params="80%", max_drop=60, select=select, **options)
    assert looked_at
    assert looked_at <= splits.digests(score)
    assert plain.brake is not None
    assert plain.plan == tested.plan
    assert tested.guarantee is not None
    assert tested.guarantee.kept is not None
    assert tested.guarantee.stopped is None
    assert tested.brake is None, "a largest drop is a brake of its own"
    assert not kept.changed()


def test_what_was_measured_of_the_winner_is_what_it_is_worth(place: Path) -> None:  # noqa: F811
    model, score = _model(place), _task(place, "train", limit=60)
    choice = hc.pruning.choose(model, params="75%", units=UNITS, score=score, length=8)
    (taken,) = [candidate for candidate in choice.candidates if candidate.chosen]
    with hc.masked(model, choice.plan):
        value = hc.evaluate(model, splits.distinct(score)).value
    assert taken.value == pytest.approx(value)
    assert choice.brake is not None
    assert choice.brake.value == pytest.approx(value)
    assert choice.brake.whole == pytest.approx(hc.evaluate(model, splits.distinct(score)).value)
    assert max(candidate.value for candidate in choice.candidates if candidate.n == taken.n) == taken.value
    told = choice.told()
    assert told.candidates == choice.candidates


def test_a_criterion_that_is_asked_for_is_the_only_one(place: Path) -> None:  # noqa: F811
    model, score = _model(place), _task(place, "train", limit=60)
    choice = hc.pruning.choose(model, params="75%", units=UNITS, by="taylor", score=score, length=8)
    assert {candidate.by for candidate in choice.candidates} == {"taylor"}
    assert choice.scores is not None
    assert choice.scores.by == "taylor"


def test_seconds_are_weighed_by_time_by_counts_and_by_both(clock: list[hc.Plan]) -> None:  # noqa: F811
    model, task = zoo_task("bert")
    found = _candidates(model, task, "time")
    assert set(found.prices) == {"time", "counts", "mixture"}
    assert {rule.costs for rule in found.rules(0.5)} == {"time", "counts", "mixture"}
    time, counts, mixture = (found.prices[name] for name in ("time", "counts", "mixture"))
    flops = candidates.operations(model, 8)
    for name, table in counts.sites.items():
        assert table / counts.whole == pytest.approx(flops.sites[name] / flops.whole)
        assert mixture.sites[name] == pytest.approx((table + time.sites[name]) / 2)
    for plan in found.plans(0.8 * time.whole):
        assert time.of(plan) <= 0.8 * time.whole


def test_where_time_cannot_be_measured_counts_decide_and_it_is_said(
    clock: list[hc.Plan],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, task = zoo_task("bert")
    noisy_clock(monkeypatch, "both", "busy")
    choice = hc.pruning.choose(model, speedup=1.3, units=UNITS, score=task, length=8, multiple=1)
    assert choice.budget is not None
    assert "reckoned by multiply-adds" in choice.budget.note
    assert "reckoned by multiply-adds" in str(choice.budget)
    flops = candidates.operations(model, 8)
    assert flops.of(choice.plan) <= flops.whole / 1.3 * (1 + 1e-6)


# -- the brake -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wish",
    [{"remove": "50%"}, pytest.param({"flops": "50%"}, marks=pytest.mark.slow), {"params": "80%", "by": "taylor"}],
)
def test_a_ruined_model_is_not_chosen(
    wish: dict[str, Any],
    place: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, score = _model(place), _task(place, "train", limit=80)

    def planted(smaller: Any, task: Any, *_: Any, **__: Any) -> np.ndarray:
        """The whole model is right about 90 % of half zeros and half ones, and any smaller one about 68 %."""
        labels = np.arange(task.size) % 2.0
        wrong = np.arange(task.size) >= (0.68 if hc.removed(smaller) else 0.9) * task.size
        return np.column_stack([labels, np.where(wrong, 1 - labels, labels), np.ones(task.size)])[None]

    monkeypatch.setattr(candidates, "measure", planted)
    options: dict[str, Any] = {"units": UNITS, "score": score, "length": 8, "multiple": 1, **wish}
    kept = Fingerprint(model)
    with says(TooMuchLost, about="by more than 20 points"):
        hc.pruning.choose(model, **options)
    with says(TooMuchLost, about="the model would be ruined"):
        hc.pruning.choose(model, brake=21.0, **options)
    assert not kept.changed()
    choice = hc.pruning.choose(model, brake=None, **options)
    assert choice.brake is None
    generous = hc.pruning.choose(model, brake="60%", **options)
    assert generous.plan == choice.plan
    assert generous.brake is not None
    assert 20 < generous.brake.fell < 24
    assert generous.brake.constant == 0.5


def test_the_default_brake_stops_a_model_that_answers_always_alike(place: Path) -> None:  # noqa: F811
    model, score = _model(place), _task(place, "train", limit=80)
    everything = hc.pruning.choose(model, remove="100%", units=UNITS, score=score, brake=None).plan
    with hc.masked(model, everything):
        ruined = hc.evaluate(model, score).value
    assert ruined < 0.6, "the model is at chance"
    with says(TooMuchLost, about="a constant answer has"):
        hc.pruning.choose(model, remove="100%", units=UNITS, score=score)
    with says(TooMuchLost, about="the model would be ruined"):
        hc.pruning.choose(model, plan=everything, score=score)
    assert hc.pruning.choose(model, plan=everything).brake is None, "without scoring examples nothing is measured"
    task = hc.custom_task([score.batch(4)], loss=lambda m, b: m(**b).logits.sum(1))
    assert hc.pruning.choose(model, plan="0:1", score=task).brake is None, "nothing is known about the bottom of a mean"


# -- a size and a largest drop -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wish",
    [{"flops": "70%"}, pytest.param({"params": "80%"}, marks=pytest.mark.slow), {"speedup": 1.2}, {"remove": "30%"}],
)
def test_both_hold_or_it_is_said_what_can_be_had(
    wish: dict[str, Any],
    place: Path,  # noqa: F811
    clock: list[hc.Plan],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, score = _model(place), _task(place, "train", limit=60)
    select = splits.without(splits.distinct(_task(place, "dev")), splits.digests(score))
    options: dict[str, Any] = {"score": score, "select": select, "length": 8, "multiple": 1, "step": "10%"}
    options["units"] = "heads" if "remove" in wish else UNITS
    choice = hc.pruning.choose(model, max_drop=60, **wish, **options)
    assert choice.guarantee is not None
    assert choice.guarantee.stopped is None
    assert choice.guarantee.removed == len(choice.plan)
    counts = [step.removed for step in choice.guarantee.steps]
    assert counts[-1] == len(choice.plan)
    if choice.budget is not None:
        assert choice.budget.measured is not None
        assert choice.budget.measured <= choice.budget.allowed
    really, size = PlanTester._rows, len(choice.plan)

    def planted(self: PlanTester, task: Any, candidate: Any, name: str) -> np.ndarray:
        """Plans as large as the one asked for are wrong about a third of the examples, milder ones are as measured."""
        rows = np.array(really(self, task, candidate, name))
        if len(candidate.plan) >= size:
            rows[::3, 1] = 1 - rows[::3, 0]
        return rows

    monkeypatch.setattr(PlanTester, "_rows", planted)
    with says(NotShown, about="Both cannot be had") as caught:
        hc.pruning.choose(model, max_drop=25, **wish, **options)
    assert "less than 25 points lost" in str(caught.value)
    assert "it is shown to lose less" in str(caught.value)


def test_two_sizes_are_still_one_too_many(place: Path) -> None:  # noqa: F811
    with says(BadPlan, about="in one way"):
        hc.pruning.choose(_model(place), max_drop=1, flops="50%", params="50%", score=_task(place, "few"))


def test_candidates_say_how_they_were_made() -> None:
    text = str(Candidate(by="taylor", floor=0.25, costs="mixture", removed=3, left=0.5, value=0.9, n=128))
    assert text == "taylor, at least 25% of every site, by time and counts"


def test_targets_are_counted_as_the_loss_counts_them() -> None:
    """Of a language model every token but the first and the padding; of others the labels that are not left out."""
    ids = torch.tensor([[5, 6, 6, 0], [7, 5, 6, 6]])
    read = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])}
    masked = {"input_ids": ids, "labels": torch.tensor([[-100, 6, -100, -100], [7, -100, -100, 6]])}
    for batch, expected in ((read, {5: 1, 6: 4}), (masked, {6: 2, 7: 1})):
        task: Any = SimpleNamespace(batches=lambda: [(0, 1)], collate=lambda _, batch=batch: batch)
        assert candidates._target_counts(task) == expected


# -- language models -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A small language model and a task on lines of text."""
    folder = tmp_path_factory.mktemp("lines")
    words = [
        "a",
        "long",
        "way",
        "from",
        "home",
        "we",
        "sat",
        "and",
        "told",
        "each",
        "other",
        "what",
        "we",
        "had",
        "seen",
        "there",
    ]
    text = [" ".join(words[(n * k) % len(words)] for k in range(3, 12)) for n in range(1, 40)]
    (folder / "lines.txt").write_text("\n".join(text) + "\n")
    return small_llama(), hc.task("lm", folder / "lines.txt", tokenizer=byte_tokenizer(), max_length=32)


def _planted_worth(monkeypatch: pytest.MonkeyPatch, model: Any, task: Any, plan: hc.Plan) -> None:
    """One plan is worth much, and all others little."""
    right = candidates.measure

    def measured(smaller: Any, task: Any, *given: Any, **how: Any) -> np.ndarray:
        rows = right(smaller, task, *given, **how).copy()
        rows[..., 0] += 100.0 * rows[..., 1] * (hc.removed(smaller).units not in ({*plan.units}, set()))
        return rows

    monkeypatch.setattr(candidates, "measure", measured)


@pytest.mark.parametrize("by", ["fisher", "taylor", "wanda", "flap"])
@pytest.mark.parametrize("units", ["heads,neurons", "neurons"])
def test_units_of_a_language_model_go_by_the_criterion_that_measures_best(
    by: str,
    units: str,
    lines: tuple[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, task = lines
    how: dict[str, Any] = {"remove": "20%", "units": units, "score": task, "brake": None}
    want = hc.pruning.choose(model, by=by, **how)
    _planted_worth(monkeypatch, model, task, want.plan)
    choice = hc.pruning.choose(model, **how)
    assert choice.plan.units == want.plan.units
    (taken,) = [one for one in choice.candidates if one.chosen]
    # two criteria may name the same units
    assert hc.pruning.choose(model, by=taken.by, **how).plan.units == want.plan.units
    assert len({one.by for one in choice.candidates}) == len(choice.candidates) >= 3
    assert len(choice.plan) == len(want.plan)


@pytest.mark.parametrize("units", ["heads,neurons", "layers"])
def test_a_budget_of_a_language_model_is_looked_for_by_activations_as_well(units: str, lines: tuple[Any, Any]) -> None:
    model, task = lines
    names = {
        way.name
        for way in candidates.weighings(model, task, None, units.split(","), seed=0, notes=hc.runs.InMemory(), specs=())
    }
    assert ({"wanda", "flap"} <= names) == (units != "layers")
    assert {"fisher", "taylor"} <= names


def test_plans_are_measured_with_the_means_that_will_be_put_back(lines: tuple[Any, Any]) -> None:
    model, task = lines
    plan = hc.Plan.of("0:1 1.mlp:0-9")
    judges = [Judge(model, task, hc.runs.InMemory(), mean=mean) for mean in (False, True)]
    plain, filled = (judge.result(plan) for judge in judges)
    anatomy = hc.find(model)
    with hc.masked(model, plan, fill=unit_means(model, anatomy, plan, task)):
        assert close(filled.rows, hc.evaluate(model, judges[0].examples(LAST)).rows, 1e-4)
    assert not close(filled.rows, plain.rows, 1e-4)
    choice = hc.pruning.choose(model, score=task, params="85%", units="heads,neurons", compensate="mean", brake=None)
    (taken,) = [one for one in choice.candidates if one.chosen]
    with hc.masked(model, choice.plan, fill=choice.fill):
        assert hc.evaluate(model, judges[0].examples(LAST)).value == pytest.approx(taken.value, rel=1e-4)
