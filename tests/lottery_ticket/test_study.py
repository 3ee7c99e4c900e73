"""The lottery study: essential heads win, sizes are equal, the threshold holds, and a killed study ends the same."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers import small_models
from helpers.planted_models import planted
from helpers.same import close
from torch import nn

import headcount as hc
from headcount.data.tasks import Task
from headcount.documents.lottery_study import Lottery
from headcount.lottery_ticket import study as lottery_study
from headcount.lottery_ticket.search import Field, importance, networks, search
from headcount.lottery_ticket.study import LotteryTask, lottery, majority
from headcount.model.cutting import surgery
from headcount.runs import Run
from headcount.stats.metrics import metric
from headcount.training.recipe import Recipe

GENTLE = Recipe(steps=1, batch_size=16, lr=1e-6)  # what was planted stays
PLANTED = planted(0, 2)
ESSENTIAL = PLANTED.essential


def build(seed: int) -> nn.Module:
    """The same planted body under every seed, and classifier biases of its own: pretrained weights and a fresh head."""
    model: Any = copy.deepcopy(PLANTED.model)
    with torch.no_grad():
        model.classifier.bias.copy_(torch.randn(8, generator=torch.Generator().manual_seed(seed)) * 0.01)
    return model


def part(first: int, count: int = 1, **other: Any) -> Task:
    """A task on batches of 48 texts that no other part has."""

    def values(model: nn.Module, batch: Any) -> Any:
        return PLANTED.task.rows(model, batch)[:, 0]

    texts = [PLANTED.draw(48, 500 + first + number) for number in range(count)]
    return hc.custom_task(texts, loss=PLANTED.task.loss, **{"values": values, "name": f"texts {first}", **other})


def a_lot(name: str = "planted") -> LotteryTask:
    return LotteryTask(name, part(0), part(10), part(20))


def sizes(draw: Any) -> list[tuple[int, int]]:
    """(heads, MLPs) of the sub-networks."""
    return [(one.heads, one.mlps) for one in draw.networks]


@pytest.fixture(scope="module")
def study() -> Lottery:
    return lottery(build, a_lot(), seeds=(0, 1), recipe=GENTLE, magnitude=True)


# --- the study ------------------------------------------------------------------------------------------------------


def test_the_good_network_holds_the_heads_that_the_task_cannot_do_without(study: Lottery) -> None:
    for seed in study.seeds:
        kept = study.survivors("planted", seed, "heads")
        assert kept >= {(unit.site, unit.index) for unit in ESSENTIAL}
        assert len(kept) < 8  # and not simply all
        assert not study.survivors("planted", seed, "mlps")  # they add nothing


def test_good_networks_are_good_and_bad_ones_are_not(study: Lottery) -> None:
    rows = {(row.kind, row.what, row.how): row.mean for row in study.table()}
    for how in ("pruned", "retrained"):
        assert rows["structured", "good", how] >= 0.9 * rows["structured", "full", "whole"]
        assert rows["structured", "bad", how] < 0.7
        assert rows["magnitude", "bad", how] < rows["magnitude", "good", how]


def test_the_search_never_stops_below_the_threshold(study: Lottery) -> None:
    for draw in study.draws:
        floor = 0.9 * draw.full.select
        assert draw.full.select > 0.9
        for step in (*draw.steps, *draw.magnitude.steps):
            assert step.kept == (step.value >= floor)
        last = [step for step in draw.steps if step.kept][-1]
        assert (last.heads, last.mlps) == (draw.left.heads, draw.left.mlps)
        phases = [[step.kept for step in draw.steps if step.phase == phase] for phase in (1, 2, 3)]
        assert all(all(kept[:-1]) for kept in phases)  # one that is not kept ends its phase


def test_all_sub_networks_say_their_size_and_are_compared_with_the_full_model_of_the_seed(study: Lottery) -> None:
    for draw in study.draws:
        assert sizes(draw) == [(draw.left.heads, draw.left.mlps)] * 6
        magnitude = draw.magnitude
        assert {one.left for one in magnitude.networks} == {magnitude.left}
        for one in (*draw.networks, *magnitude.networks):
            compared = one.comparison
            assert (compared.before, compared.after) == (draw.full.report, one.value)
            assert one.n == compared.n == 48


def test_what_is_left_is_what_a_cut_leaves(study: Lottery) -> None:
    draw = study.draws[0]
    model = build(0)
    field = Field.of(model)
    alive = {hc.Unit(name, index) for name, indices in draw.alive.items() for index in indices}
    assert field.alive(set(field.heads + field.mlps) - alive) == draw.alive
    hc.cut(model, field.plan([unit for unit in field.heads + field.mlps if unit not in alive]))
    assert sum(one.numel() for one in model.parameters()) == draw.parameters[1] < draw.parameters[0]


def test_the_document_has_what_was_agreed_and_comes_back(study: Lottery) -> None:
    told = json.loads(json.dumps(study.to_json(), allow_nan=False))
    assert Lottery.from_json(told).to_json() == told
    assert told["sites"][:2] == [
        {"name": "0", "kind": "head", "type": "encoder", "layer": 0, "units": 4},
        {"name": "0.mlp", "kind": "mlp", "type": None, "layer": 0, "units": 1},
    ]
    assert (told["class"], told["seeds"], told["threshold"]) == ("BertForSequenceClassification", [0, 1], 0.9)
    (task,) = told["tasks"]
    assert task["sets"] == ("trained on 48 examples of texts 0, selected on 48 of texts 10, reported on 48 of texts 20")
    assert (task["metric"], task["majority"], task["recipe"]["steps"]) == ("mean", None, 1)
    assert "seed" not in told["recipe"]


def test_without_retraining_there_are_networks_as_found_only(monkeypatch: pytest.MonkeyPatch) -> None:
    small_models.refuses(monkeypatch, "0")  # such a head can be masked, not cut
    found = lottery(build, a_lot(), seeds=(3,), recipe=GENTLE, retrain=False)
    (draw,) = found.draws
    assert [one.how for one in draw.networks] == ["pruned"] * 3
    assert draw.magnitude is None
    assert "as found" in found.sentence()


def test_sub_networks_are_trained_from_the_pretrained_model_by_the_same_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, tuple[dict[str, torch.Tensor], Recipe]] = {}

    def train(model: nn.Module, task: Task, recipe: Recipe, *, name: str, **how: Any) -> Any:
        seen[name] = ({key: value.clone() for key, value in model.state_dict().items()}, recipe)
        return _train(model, task, recipe, name=name, **how)

    monkeypatch.setattr(lottery_study, "train", train)
    recipe = Recipe(steps=2, batch_size=16, lr=1e-3)
    (draw,) = lottery(build, a_lot(), seeds=(7,), recipe=recipe, magnitude=True).draws
    kinds = [f"{kind}{what}-retrained" for kind in ("", "magnitude-") for what in ("good", "random", "bad")]
    assert list(seen) == ["planted-7-full", *(f"planted-7-{kind}" for kind in kinds)]
    assert {used for _, used in seen.values()} == {replace(recipe, seed=7)}
    field, whole = Field.of(build(7)), build(7).state_dict()
    alive = {hc.Unit(name, index) for name, indices in draw.alive.items() for index in indices}
    small_one = build(7)
    hc.cut(small_one, field.plan([unit for unit in field.heads + field.mlps if unit not in alive]))
    began = {name: state for name, (state, _) in seen.items()}
    good = small_one.state_dict()
    assert all(torch.equal(began["planted-7-good-retrained"][name], good[name]) for name in good)
    for what in ("good", "random", "bad"):
        blanked = began[f"planted-7-magnitude-{what}-retrained"]
        same = {name: blanked[name] == whole[name] for name in whole}
        assert all(bool((same[name] | (blanked[name] == 0)).all()) for name in whole)
        assert not all(bool(one.all()) for one in same.values())


# --- resuming -------------------------------------------------------------------------------------------------------


class Stop(Exception):
    """The process is killed here."""


LONGER: dict[str, Any] = {"seeds": (4,), "recipe": Recipe(steps=3, batch_size=16, lr=1e-3), "step": 0.3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a study says that nobody disturbed."""
    with Run.open(tmp_path_factory.mktemp("runs") / "whole", {"x": 1}) as run:
        return lottery(build, a_lot(), run=run, magnitude=True, **LONGER).to_json()


SLOW = [pytest.param(after, marks=pytest.mark.slow) for after in ("train 3", "train 6")]


@pytest.mark.parametrize("after", ["train 1", "measure 3", *SLOW])
def test_a_killed_study_ends_with_the_same_answer(
    after: str, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {**LONGER, "magnitude": True}
    name, times = after.split()
    really, calls = getattr(lottery_study, name), [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        found = really(*args, **kwargs)
        if calls[0] == int(times):
            raise Stop
        return found

    with monkeypatch.context() as patch:
        patch.setattr(lottery_study, name, counted)
        with pytest.raises(Stop), Run.open(tmp_path / "killed", {"x": 1}) as run:
            lottery(build, a_lot(), run=run, **how)
    trained = []
    monkeypatch.setattr(lottery_study, "train", lambda *a, **k: (trained.append(k["name"]), _train(*a, **k))[1])
    with Run.open(tmp_path / "killed", {"x": 1}) as run:
        assert lottery(build, a_lot(), run=run, **how).to_json() == whole
        count = len(trained)
        assert count == (6 if after.startswith("measure") else 8 - int(times))  # what was finished is not done again
        assert lottery(build, a_lot(), run=run, **how).to_json() == whole
        assert len(trained) == count
    assert not list((tmp_path / "killed").glob("*-state.safetensors"))  # as large as the model, each
    assert len(list((tmp_path / "killed" / "models").iterdir())) == 1


_train = lottery_study.train


def test_a_run_folder_changes_nothing(whole: dict[str, Any]) -> None:
    assert lottery(build, a_lot(), magnitude=True, **LONGER).to_json() == whole


def test_a_plain_torch_model_is_kept_and_read_back(tmp_path: Path) -> None:
    def plain(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)

    def values(model: nn.Module, batch: Any) -> Any:
        return torch.sigmoid(model(batch["src"]).mean((1, 2)) * 50)

    def loss(model: nn.Module, batch: Any) -> Any:
        return -torch.nn.functional.logsigmoid(model(batch["src"]).mean((1, 2)) * 50)

    draw = torch.Generator().manual_seed(0)
    parts = [
        hc.custom_task([{"src": torch.randn(4, 3, 8, generator=draw)}], loss=loss, values=values) for _ in range(3)
    ]
    how = {"seeds": (0,), "recipe": Recipe(steps=2, batch_size=4, lr=1e-2)}
    with Run.open(tmp_path / "run", {"x": 1}) as run:
        first = lottery(plain, LotteryTask("own", *parts), run=run, **how)
        assert lottery(plain, LotteryTask("own", *parts), run=run, **how).to_json() == first.to_json()


# --- importance -----------------------------------------------------------------------------------------------------


def test_importance_is_the_mean_absolute_derivative_of_the_gates_heads_and_mlps_from_one_pass() -> None:
    model, task = small_models.classifier(2), small_models.ragged_texts()
    found = importance(model, hc.find(model), task)
    each = [small_models.by_gates(model, task, number) for number in range(task.size)]
    for site in hc.find(model):
        if site.kind == "head":
            mean = np.mean([np.abs(one[site.name]) for one in each], axis=0)
            want = mean / np.linalg.norm(mean)
        else:  # the gate of a whole MLP moves all of its neurons
            want = np.mean([np.abs(one[site.name].sum(keepdims=True)) for one in each], axis=0)
        got = [found[hc.Unit(site.name, index)] for index in range(len(want))]
        assert close(np.array(got), want, 1e-4)


def test_the_importance_of_an_mlp_is_that_of_a_finite_difference() -> None:
    model, task = small_models.classifier(2).double(), small_models.class_task(5)
    found = importance(model, hc.find(model), task)
    batch, width = task.collate(range(5)), len(hc.find(model)["1.mlp"])
    ends = []
    for gate in (1 - 1e-5, 1 + 1e-5):
        with hc.gated(model, {"1.mlp": torch.full((width,), gate, dtype=torch.float64)}), torch.no_grad():
            ends.append(task.loss(model, batch))
    slope = (ends[1] - ends[0]) / 2e-5
    assert found[hc.Unit("1.mlp", 0)] == pytest.approx(float(slope.abs().mean()), rel=1e-4)


def test_what_is_closed_is_worth_nothing_and_the_rest_is_ranked_without_it() -> None:
    model, task = small_models.classifier(2), small_models.class_task(5)
    field = Field.of(model)
    gone = [hc.Unit("0", 1), hc.Unit("1.mlp", 0)]
    whole = importance(model, field.anatomy, task)
    with hc.masked(model, field.plan(gone)):
        found = importance(model, field.anatomy, task)
    assert [found[unit] for unit in gone] == [0, 0]
    assert found[hc.Unit("0.mlp", 0)] != pytest.approx(whole[hc.Unit("0.mlp", 0)])


@pytest.mark.parametrize("family", ["gpt2", "t5", "mistral", "torch-encoder"])
def test_other_families_have_importance_too(family: str) -> None:
    model, task = small_models.zoo_task(family)
    field = Field.of(model)
    found = importance(model, field.anatomy, task)
    assert set(found) == {*field.heads, *field.mlps}
    assert all(np.isfinite(value) for value in found.values())
    assert max(found[unit] for unit in field.mlps) > 0


# --- the search, on numbers of our own ------------------------------------------------------------------------------

HEADS = [hc.Unit(str(layer), index) for layer in range(5) for index in range(4)]
MLPS = [hc.Unit(f"{layer}.mlp", 0) for layer in range(5)]


def searched(needed: set[hc.Unit], step: float = 0.2) -> tuple[list[hc.Unit], list[dict[str, Any]], list[int]]:
    """A search in which each needed unit is worth 1 and the value is the share of them that is there."""
    asked: list[int] = []

    def worth(gone: Sequence[hc.Unit]) -> dict[hc.Unit, float]:
        asked.append(len(gone))
        return {unit: float(unit in needed) for unit in (*HEADS, *MLPS)}

    def value(gone: Sequence[hc.Unit]) -> float:
        return 1 - len(needed & set(gone)) / len(needed)

    gone, steps = search(HEADS, MLPS, worth, value, 1.0, step)
    return gone, steps, asked


def test_phases_take_heads_and_mlps_then_half_as_many_heads_then_mlps() -> None:
    needed = {HEADS[3], HEADS[7], MLPS[2], MLPS[4]}
    gone, steps, asked = searched(needed)
    # 20 heads: 4 a step with one MLP, until MLPs run out after 3; then 2 heads a step; then MLPs, of which none can go
    want = [(1, 16, 4), (1, 12, 3), (1, 8, 2), (1, 4, 1), (2, 6, 2), (2, 4, 2), (2, 2, 2), (2, 0, 2), (3, 2, 1)]
    assert [(step.phase, step.heads, step.mlps) for step in steps] == want
    assert [step.kept for step in steps] == [True, True, True, False, True, True, True, False, False]
    assert set(gone) == {*HEADS, *MLPS} - needed
    # importance only of what was kept, once each; phases begin with that of the last kept one
    assert asked == [0, 5, 10, 15, 17, 19, 21]


def test_a_step_is_rounded_down_and_at_least_one() -> None:
    assert searched({HEADS[0]}, step=0.19)[1][0].heads == 17
    assert searched({HEADS[0]}, step=0.01)[1][0].heads == 19
    assert searched({HEADS[0]}, step=0.15)[1][0].heads == 17  # 0.15 * 20 is 3 in float, too


def test_all_that_is_not_needed_can_go() -> None:
    gone, steps, _ = searched({MLPS[0]})
    assert set(gone) == {*HEADS, *MLPS} - {MLPS[0]}
    assert steps[-1].heads == 0


@pytest.mark.parametrize("seed", range(5))
def test_sub_networks_have_exactly_the_size_of_the_good_one(seed: int) -> None:
    draw = random.Random(seed)
    gone = draw.sample([*HEADS, *MLPS], draw.randrange(26))
    made = networks(HEADS, MLPS, gone, draw)
    for kind in (HEADS, MLPS):
        went = [unit for unit in gone if unit in kind]
        kept = {what: {unit for unit in kind if unit not in closed} for what, closed in made.items()}
        assert {len(one) for one in kept.values()} == {len(kind) - len(went)}
        assert kept["good"] == set(kind) - set(went)
        if 2 * len(went) >= len(
            kind
        ):  # enough went: nothing of the good one is in the bad one, which has what went first
            assert kept["bad"] == set(went[: len(kind) - len(went)])
        else:
            assert kept["bad"] > set(went)


# --- what is refused ------------------------------------------------------------------------------------------------


def less_is_better() -> LotteryTask:
    parts = [part(first, values=None) for first in (0, 10, 20)]
    return LotteryTask("loss", *parts)


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"threshold": 1.0}, "threshold is 1; it is a share between 0 and 1"),
        ({"threshold": 0.0}, "threshold is 0"),
        ({"step": 1.5}, "step is 1.5"),
        ({"seeds": ()}, "at least one"),
        ({"seeds": (1, 1)}, "different seeds"),
        (
            {"lot": LotteryTask("a", part(0), part(0), part(20))},
            "to train on are also among those to report or select on",
        ),
        ({"lot": LotteryTask("a", part(0), part(10), part(10))}, "to select on are also among those to report on"),
        ({"lot": less_is_better()}, "more is better"),
        ({"freeze": ["nowhere"]}, "nowhere"),
    ],
)
def test_what_makes_no_study_is_refused_before_any_work(change: dict[str, Any], about: str) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("worked")

    how: dict[str, Any] = {"lot": a_lot(), "recipe": GENTLE, **change}
    with (
        pytest.MonkeyPatch.context() as patch,
        says(hc.errors.Refused, hc.errors.NotFound, hc.errors.BadData, about=about),
    ):
        patch.setattr(lottery_study, "train", never)
        lottery(build, how.pop("lot"), **how)


def test_a_model_that_is_cut_or_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def smaller(seed: int) -> nn.Module:
        model = build(seed)
        surgery.cut(model, "0:1")
        return model

    with says(hc.errors.Refused, about="gone already"):
        lottery(smaller, a_lot(), recipe=GENTLE)
    small_models.refuses(monkeypatch, "1")
    with says(hc.errors.Refused, about="--no-retrain"):
        lottery(build, a_lot(), recipe=GENTLE)


def test_a_share_of_nothing_is_refused() -> None:
    def nothing(model: nn.Module, batch: Any) -> Any:
        return torch.zeros(len(batch["labels"]))

    parts = [part(first, values=nothing) for first in (0, 10, 20)]
    with says(hc.errors.Refused, about="a share of that means nothing"):
        lottery(build, LotteryTask("zero", *parts), recipe=GENTLE, seeds=(0,))


def test_the_majority_class_is_measured_by_the_same_metric() -> None:
    rows = np.array([[0, 1, 0.5], [1, 1, 0.5], [1, 0, 0.5], [2, 1, 0.1]], dtype=float)
    assert majority(metric("accuracy"), rows) == 0.5
    assert majority(metric("matthews", labels=3), rows) == 0.0
    assert majority(metric("pearson"), rows) is None
    assert rows[0].tolist() == [0, 1, 0.5]  # the rows are as they were
