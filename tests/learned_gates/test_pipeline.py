"""`learn`, in the library and as a command: what is cut is what was chosen, and the numbers are those of what comes out."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.planted_models import HEADS, Planted, planted, planted_translator
from helpers.same import TRAINED, alike, close, close_weights, felt, same_weights
from helpers.small_models import WEATHER, ran, ran_json, refuses, weather, word_tokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import headcount as hc
from headcount.cli.app import main
from headcount.cli.training import learn
from headcount.cli.training import options as training_options
from headcount.data.losses import LogitsAndTargets
from headcount.errors import BadPlan, HeadcountError
from headcount.learned_gates import gates, pipeline
from headcount.learned_gates.methods import PUBLISHED
from headcount.reporting import page as report_page
from headcount.training import loop, new_models

SHORT = hc.training.Recipe(steps=6, batch_size=32, lr=1e-3)
QUICK = hc.training.Recipe(steps=1, batch_size=4, lr=1e-3)
GATED = ("l0", "subset", "movement", "layerdrop")
CHOSEN = ("taylor", "fisher", "random")


def size(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


def logits(model: nn.Module, one: Planted) -> Tensor:
    with torch.no_grad():
        return model(**one.draw(32, 7)).logits


def heads(model: nn.Module) -> frozenset[hc.Unit]:
    return frozenset(unit for site in hc.find(model).sites if site.kind == "head" for unit in site.units)


def without(model: nn.Module, plan: hc.Plan | str) -> nn.Module:
    """A copy of the model, cut by hand."""
    smaller = copy.deepcopy(model)
    hc.cut(smaller, plan)
    return smaller


class Spy:
    """What `learn` cuts, as it was before, and what it trains, as it was before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whole: list[nn.Module] = []
        self.trained: list[nn.Module] = []
        cut, train = pipeline.cut, pipeline.train

        def watched_cut(model: nn.Module, *rest: Any, **more: Any) -> Any:
            self.whole.append(copy.deepcopy(model))
            return cut(model, *rest, **more)

        def watched_train(model: nn.Module, *rest: Any, **more: Any) -> Any:
            if more.get("gates") is None:
                self.trained.append(copy.deepcopy(model))
            return train(model, *rest, **more)

        monkeypatch.setattr(pipeline, "cut", watched_cut)
        monkeypatch.setattr(pipeline, "train", watched_train)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


# --- what comes out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*GATED, *CHOSEN])
def test_so_many_units_stay_and_the_others_are_gone_for_real(method: str, spy: Spy) -> None:
    one = planted(1)
    original, before = copy.deepcopy(one.model), size(one.model)
    priced = {
        count: sum(price.parameters for price in hc.model.cut_effects(one.model, f"0:0-{count - 1}"))
        for count in (1, 2)
    }
    found = hc.learn(one.model, one.task, method, keep=5, recipe=SHORT)
    (whole,) = spy.whole
    assert found.model is one.model
    assert (found.kept, found.of, len(found.plan)) == (5, 12, 7)
    assert hc.removed(one.model).units == found.plan.units
    assert before - size(one.model) == sum(price.parameters for price in hc.model.cut_effects(whole, found.plan))
    assert before - size(one.model) >= 7 * (priced[2] - priced[1])
    assert found.trained is not None
    assert found.trained.steps == 6
    assert found.recovered is None
    if method in GATED:  # trained before the cut, and no more afterwards
        assert not same_weights(whole, original)
        with hc.masked(whole, found.plan):
            assert close(logits(whole, one), logits(one.model, one))
    else:
        assert same_weights(whole, original)
        assert not same_weights(without(whole, found.plan), one.model)


def test_learned_gates_keep_what_matters_and_the_model_works() -> None:
    one = planted(1)
    found = hc.learn(one.model, one.task, keep="25%", recipe=hc.training.Recipe(steps=80, lr=1e-4), seed=1)
    assert found.plan.units == heads(planted(1).model) - one.essential
    assert hc.evaluate(found.model, one.task).value > 0.99
    assert found.scores is not None
    assert hc.plan(found.scores, 9).units == found.plan.units
    assert (found.price, found.open) == (None, None)


def test_the_price_and_the_open_gates_of_l0_are_told() -> None:
    one = planted(1)
    found = hc.learn(one.model, one.task, "l0", recipe=SHORT, l0=0.25)
    assert (found.price, found.open) == (0.25, found.kept)  # nothing is made exact where a price decides


def test_what_is_chosen_first_is_the_plan_of_the_scores_and_the_cut_by_hand() -> None:
    one = planted(2)
    by_hand = copy.deepcopy(one.model)
    found = hc.learn(one.model, one.task, "taylor", keep=4, recipe=None)
    scores = hc.score(by_hand, one.task, "taylor")
    plan = hc.plan(scores, remove=8)
    with hc.masked(by_hand, plan):
        closed = logits(by_hand, one)
    assert found.plan.units == plan.units
    assert found.scores is not None
    assert close(found.scores.values, scores.values, 1e-4)  # derivatives that nearly cancel, summed in float32
    assert close(logits(found.model, one), closed)
    assert same_weights(found.model, without(by_hand, plan))
    assert (found.trained, found.recovered) == (None, None)


def test_a_criterion_looks_at_so_many_training_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    one, looked = planted(2), list[hc.data.Task]()
    score = pipeline.score_units
    monkeypatch.setattr(
        pipeline, "score_units", lambda model, task, *a, **b: looked.append(task) or score(model, task, *a, **b)
    )
    monkeypatch.setattr(pipeline, "SCORED_ON", 40)
    hc.learn(one.model, one.task, "taylor", keep=4, recipe=None)
    (some,) = looked
    everything = {one.task.digest(number) for number in range(one.task.size)}
    assert {some.digest(number) for number in range(some.size)} < everything
    assert some.size == 40


def test_recovery_trains_the_smaller_model_and_nothing_else(spy: Spy) -> None:
    one = planted(2)
    original = copy.deepcopy(one.model.double())
    found = hc.learn(one.model, one.task, "random", keep=4, recipe=SHORT, seed=3)
    by_hand = without(original, found.plan)
    (trained,) = spy.trained
    assert same_weights(trained, by_hand)
    hc.train(by_hand, one.task, SHORT)
    assert close_weights(found.model, by_hand, TRAINED)
    other = hc.learn(planted(2).model, one.task, "random", keep=4, recipe=None, seed=4)
    assert other.plan.units != found.plan.units, "the seed draws the units"


@pytest.mark.parametrize("plan", ["0:1 1:0,2", "layers:1 0.mlp:3-9"])
def test_a_plan_of_ones_own_is_carried_out(plan: str) -> None:
    one = planted(2)
    original = copy.deepcopy(one.model)
    found = hc.learn(one.model, one.task, "plan", plan=plan, recipe=None)
    assert same_weights(found.model, without(original, plan))
    assert found.plan.units == hc.removed(found.model).units
    assert found.of == (12 if "layers" not in plan else 3 + 3 * 32)
    assert found.kept == found.of - len(found.plan)
    assert found.scores is None


@pytest.mark.parametrize("method", GATED[:3])
def test_pipelined_every_weight_that_stays_is_as_it_was(method: str, spy: Spy) -> None:
    one = planted(1)
    original = copy.deepcopy(one.model)
    found = hc.learn(one.model, one.task, method, keep=5, recipe=SHORT, pipelined=True)
    assert same_weights(spy.whole[0], original)
    assert same_weights(found.model, without(original, found.plan))
    assert all(parameter.requires_grad for parameter in found.model.parameters())
    joint = hc.learn(copy.deepcopy(original), one.task, method, keep=5, recipe=SHORT)
    assert not same_weights(joint.model, without(original, joint.plan))


def test_settle_reaches_the_gates() -> None:
    histories = []
    for settle in (0.0, 0.5):
        one = planted(1)
        found = hc.learn(
            one.model, one.task, "subset", keep=5, recipe=hc.training.Recipe(steps=8, lr=1e-4), settle=settle
        )
        assert found.trained is not None
        histories.append([row["open"] for row in found.trained.history])
    assert histories[1].count(5) > histories[0].count(5)


# --- parts of a translator ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["subset", "taylor"])
def test_what_is_frozen_stays_and_only_the_encoders_heads_go(method: str) -> None:
    one = planted_translator(1)
    original = copy.deepcopy(one.model)
    found = hc.learn(one.model, one.task, method, keep=3, only="encoder", freeze=["decoder"], recipe=SHORT)
    assert found.of == 2 * HEADS
    assert found.kept == 3
    assert {unit.site for unit in found.plan.units} <= {"encoder.0", "encoder.1"}
    left = {site.name: len(site) for site in hc.find(one.model) if site.kind == "head"}
    assert {count for name, count in left.items() if not name.startswith("encoder")} == {HEADS}
    assert same_weights(one.model.model.decoder, original.model.decoder)
    assert not same_weights(one.model.model.encoder, without(original, found.plan).model.encoder)
    free = copy.deepcopy(original)
    hc.learn(free, one.task, method, keep=3, only=["encoder"], recipe=SHORT)
    assert not same_weights(free.model.decoder, original.model.decoder)


# --- from scratch, once more, with a teacher ------------------------------------------------------------------------


def test_from_scratch_it_has_the_same_shape_and_other_weights(spy: Spy) -> None:
    one = planted(2)
    original = copy.deepcopy(one.model.double())
    found = hc.learn(one.model, one.task, "taylor", keep=4, recipe=SHORT, scratch=True, seed=5)
    smaller = without(original, found.plan)
    assert found.model is not one.model
    assert hc.removed(found.model).units == found.plan.units
    assert {n: p.shape for n, p in found.model.named_parameters()} == {
        n: p.shape for n, p in smaller.named_parameters()
    }
    (born,) = spy.trained
    assert same_weights(born, new_models.reinitialized(smaller, 5))
    assert not torch.equal(born.bert.embeddings.word_embeddings.weight, smaller.bert.embeddings.word_embeddings.weight)
    hc.train(born, one.task, SHORT)
    assert close_weights(found.model, born, TRAINED)


@pytest.mark.parametrize("method", ["subset", "taylor"])
def test_the_smaller_model_may_train_once_more(method: str) -> None:
    more = hc.training.Recipe(steps=3, lr=1e-3, batch_size=16)
    once = planted(2)
    twice = copy.deepcopy(once.model.double())
    first = hc.learn(once.model, once.task, method, keep=4, recipe=SHORT)
    found = hc.learn(twice, once.task, method, keep=4, recipe=SHORT, recover=more)
    assert found.plan.units == first.plan.units
    assert found.recovered is not None
    assert (found.trained.steps, found.recovered.steps) == (6, 3)
    assert not close_weights(found.model, first.model, 100 * TRAINED)
    hc.train(first.model, once.task, more)
    assert close_weights(found.model, first.model, TRAINED)


def test_a_teacher_is_learned_from() -> None:
    def goal(model: nn.Module, batch: dict[str, Tensor]) -> LogitsAndTargets:
        return LogitsAndTargets(model(input_ids=batch["input_ids"]).logits, batch["labels"])

    teacher = planted(2).model
    with torch.no_grad():
        teacher.classifier.weight[:, 0] *= -1  # takes one form for the other, so it never says the right label

    def agreement(method: str, **more: Any) -> float:
        one = planted(2)
        recipe = hc.training.Recipe(steps=30, lr=3e-3, distill=1.0)
        found = hc.learn(one.model, replace(one.task, goal=goal), method, recipe=recipe, **more)
        return float((logits(found.model, one).argmax(-1) == logits(teacher, one).argmax(-1)).float().mean())

    noise = hc.Plan(heads(teacher) - planted(2).essential)
    ways: list[tuple[str, dict[str, Any]]] = [("plan", {"plan": noise}), ("subset", {"keep": 11})]
    for method, how in ways:
        assert agreement(method, **how) < 0.05
        assert agreement(method, **how, teacher=teacher) > 0.3


# --- other units ----------------------------------------------------------------------------------------------------


def test_after_layerdrop_every_other_layer_is_gone(spy: Spy) -> None:
    one = planted(0, layers=4)
    found = hc.learn(one.model, one.task, "layerdrop", units="layers", keep=2, recipe=SHORT)
    assert found.plan.units == hc.Plan.of("layers:1,3").units
    assert len(one.model.bert.encoder.layer) == 2
    assert (found.kept, found.of) == (2, 4)
    whole = spy.whole[0].bert.encoder.layer
    assert all(same_weights(a, b) for a, b in zip(one.model.bert.encoder.layer, (whole[0], whole[2]), strict=True))


def test_after_layerdrop_without_a_number_the_model_is_whole() -> None:
    one = planted(0)
    found = hc.learn(one.model, one.task, "layerdrop", units="layers", recipe=SHORT)
    assert (found.kept, found.of, len(found.plan), len(hc.removed(one.model))) == (3, 3, 0, 0)
    assert not same_weights(one.model, planted(0).model), "it was trained"


def test_after_layerdrop_a_criterion_may_choose(spy: Spy) -> None:
    one = planted(0, layers=4)
    how: dict[str, Any] = {"units": "layers", "recipe": SHORT, "choose": "taylor"}
    found = hc.learn(one.model, one.task, "layerdrop", keep=2, **how)
    scores = hc.score(spy.whole[0], one.task, "taylor", units="layers")
    assert found.scores is not None
    assert found.scores.by == "taylor"
    assert found.plan.units == hc.plan(scores, 2).units != hc.Plan.of("layers:1,3").units
    assert hc.removed(one.model).units == found.plan.units


@pytest.mark.parametrize("method", ["subset", "taylor"])
@pytest.mark.parametrize(("units", "keep", "of"), [("layers", 2, 3), ("neurons", 40, 96), ("neurons", "25%", 96)])
def test_layers_and_neurons_go_too(units: str, keep: Any, of: int, method: str) -> None:
    one = planted(1)
    before, count = size(one.model), keep if isinstance(keep, int) else of // 4
    price = hc.model.cut_effects(one.model, "layers:1" if units == "layers" else "1.mlp:0")[0].parameters
    found = hc.learn(one.model, one.task, method, units=units, keep=keep, recipe=SHORT)
    assert (found.kept, found.of) == (count, of)
    assert before - size(one.model) == (of - count) * price
    assert hc.removed(one.model).units == found.plan.units


@pytest.mark.parametrize("units", ["mlps", "attentions"])
@pytest.mark.parametrize("method", ["subset", "movement", "taylor", "random", "layerdrop"])
def test_mlps_and_attentions_go_whole(units: str, method: str) -> None:
    one = planted(1)
    found = hc.learn(one.model, one.task, method, units=units, keep=1, recipe=SHORT)
    assert (found.units, found.of, found.kept) == (units, 3, 1)
    kind = {"mlps": "neuron", "attentions": "head"}[units]
    left = sorted(len(site) for site in hc.find(one.model) if site.kind == kind)
    assert left == [0, 0, {"mlps": 32, "attentions": HEADS}[units]]
    assert hc.removed(one.model).units == found.plan.units


def test_a_criterion_takes_whole_mlps_by_what_all_their_neurons_are_worth() -> None:
    one = planted(2)
    with torch.no_grad():  # so that the MLPs do something, each another amount
        for layer, scale in zip(one.model.bert.encoder.layer, (0.3, 0.01, 0.1), strict=True):
            layer.output.dense.weight.normal_(std=scale)
    scores = hc.score(one.model, one.task, "taylor", units="neurons").normalized(None)
    worth = {site: sum(scores[u] for u in scores.units if u.site == site) for site in ("0.mlp", "1.mlp", "2.mlp")}
    found = hc.learn(one.model, one.task, "taylor", units="mlps", keep=1, recipe=None)
    assert {*worth} - {*found.plan.by_site()} == {max(worth, key=worth.__getitem__)}


@pytest.mark.parametrize("method", ["subset", "taylor", "random"])
def test_of_several_kinds_of_units_each_keeps_its_share(method: str) -> None:
    one = planted(1)
    found = hc.learn(one.model, one.task, method, units="heads,neurons", keep=0.5, recipe=QUICK)
    anatomy = hc.find(planted(1).model)
    gone = [anatomy[unit.site].kind for unit in found.plan]
    assert (gone.count("head"), gone.count("neuron")) == (6, 48)
    assert (found.of, found.kept) == (108, 54)


@pytest.mark.parametrize("units", ["heads", "layers"])
@pytest.mark.parametrize("only", ["encoder", "decoder"])
def test_gates_and_their_controls_choose_among_the_same_units(only: str, units: str) -> None:
    counts = {}
    for method in ("subset", "taylor", "random"):
        one = planted_translator(0)
        found = hc.learn(one.model, one.task, method, units=units, only=only, keep=1, recipe=QUICK)
        counts[method] = found.of, found.kept
        assert all(unit.site.startswith(only) for unit in found.plan)
    assert len({*counts.values()}) == 1


@pytest.mark.parametrize("method", ["subset", "taylor"])
def test_what_cannot_be_cut_is_left_alone_and_said(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(monkeypatch, "1")
    one = planted(1)
    found = hc.learn(one.model, one.task, method, keep=1, recipe=QUICK)
    assert set(found.plan.by_site()) == {"0", "2"}
    assert (found.of, found.kept) == (8, 1)
    assert [site for site, _ in found.left_alone] == ["1"]


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "how"),
    [
        ("subset", {}),
        ("subset, pipelined", {"pipelined": True}),
        ("subset, straight-through", {"form": "straight-through"}),
        ("subset, form published, pipelined", {"form": "published", "pipelined": True}),
        ("subset", {"form": "bounded"}),
        ("l0", {"method": "l0"}),
        ("movement, pipelined", {"method": "movement", "pipelined": True}),
        ("layerdrop", {"method": "layerdrop"}),
        ("taylor, recovered", {"method": "taylor"}),
        ("fisher, from scratch", {"method": "fisher", "scratch": True}),
        ("random, not recovered", {"method": "random", "recipe": None}),
        ("random, recovered", {"method": "random", "recipe": None, "recover": QUICK}),
        ("subset, recovered", {"recover": QUICK}),
        ("subset, published", {**PUBLISHED["subset"]}),
        ("subset, form published", {"form": "published", "first": 1000.0, "last": 1e-8, "lr": 0.5}),  # a part of it
        ("layerdrop, chosen by taylor", {"method": "layerdrop", "choose": "taylor"}),
        ("plan, recovered", {"method": "plan", "plan": "0:1", "keep": None}),
        ("plan, from scratch", {"method": "plan", "plan": "0:1", "keep": None, "scratch": True}),
    ],
)
def test_what_it_is_called_beside_others(label: str, how: dict[str, Any]) -> None:
    one = planted(0, layers=1)
    assert hc.learn(one.model, one.task, **{"keep": 2, "recipe": QUICK, **how}).label == label


@pytest.mark.parametrize(
    ("how", "about"),
    [
        ({"method": "guess"}, "'guess'"),
        ({"keep": None}, "keep"),
        ({"method": "taylor", "keep": None}, "keep"),
        ({"method": "layerdrop", "choose": "taylor", "keep": None}, "say both"),
        ({"method": "l0", "keep": None}, "keep"),
        ({"method": "l0", "l0": 0.1}, "l0"),
        ({"method": "plan"}, "plan"),
        ({"method": "plan", "plan": "0:1"}, "keep"),
        ({"method": "taylor", "plan": "0:1"}, "plan"),
        ({"plan": "0:1"}, "plan"),
        ({"scratch": True}, "from scratch"),
        ({"method": "random", "scratch": True, "recipe": None}, "nothing would be trained"),
        ({"method": "taylor", "settle": 0.5}, "settle"),
        ({"method": "layerdrop", "pipelined": True}, "pipelined"),
        ({"lr": -1.0}, "learning rate"),
        ({"method": "plan", "plan": "0:1", "keep": None, "only": "cross"}, "cross"),
        ({"method": "taylor", "pipelined": True}, "pipelined"),
        ({"method": "taylor", "rate": 0.1}, "settings"),
        ({"method": "taylor", "first": 2.0}, "settings"),
        ({"first": 2.0, "rate": 0.1}, "rate"),
        ({"choose": "taylor"}, "layerdrop"),
        ({"method": "layerdrop", "choose": "subset"}, "subset"),
        ({"recipe": None}, "recipe"),
        ({"keep": 0}, "at least one"),
        ({"method": "taylor", "keep": 0}, "at least one"),
        ({"method": "taylor", "keep": "1%"}, "at least one"),
        ({"keep": 13}, "13"),
        ({"method": "random", "keep": 13}, "13"),
        ({"settle": 1.0}, "settle"),
        ({"units": "noses"}, "noses"),
        ({"only": "cross"}, "cross"),
        ({"method": "taylor", "only": "cross"}, "cross"),
    ],
)
def test_what_cannot_be_meant_is_said_in_a_sentence_and_nothing_is_changed(how: dict[str, Any], about: str) -> None:
    one = planted(0)
    before = Fingerprint(one.model)
    with says(BadPlan, about=about):
        hc.learn(one.model, one.task, **{"keep": 3, "recipe": QUICK, **how})
    assert not before.changed()


# --- the command ----------------------------------------------------------------------------------------------------


def table(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("\n".join("\t".join(row) for row in [("sentence", "label"), *rows]) + "\n", encoding="utf-8")
    return path


TRAIN, DEV = weather(200, 0, more=3), weather(60, 1, more=3)
STEPS = ("--steps", 12, "--batch-size", 16, "--lr", 1e-3, "--quiet")


class Place(NamedTuple):
    model: Path
    train: Path
    dev: Path

    def asked(self, *more: object) -> tuple[object, ...]:
        return ("learn", self.model, "--data", self.train, "--report-data", self.dev, *STEPS, *more)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder with a classifier that has learnt its task well enough, in float64, which does not add rounding up; and data."""
    folder, tokenizer = tmp_path_factory.mktemp("place"), word_tokenizer(WEATHER)
    names = {"id2label": {0: "cold", 1: "warm"}, "label2id": {"cold": 0, "warm": 1}}
    sizes = {**zoo.ENCODER, "num_hidden_layers": 2, "vocab_size": len(tokenizer)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertForSequenceClassification(BertConfig(**sizes, **names)).double()
        rows = weather(512, 5, more=3)
        batch = tokenizer([text for text, _ in rows], return_tensors="pt")
        labels = torch.tensor([names["label2id"][kind] for _, kind in rows])
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for step in range(48):
            some = slice(64 * (step % 8), 64 * (step % 8) + 64)
            model(input_ids=batch["input_ids"][some], labels=labels[some]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    hc.save(model.float(), folder / "model", tokenizer=tokenizer)
    return Place(folder / "model", table(folder / "train.tsv", TRAIN), table(folder / "dev.tsv", DEV))


class Done(NamedTuple):
    out: str
    run: Path
    smaller: Path

    def read(self, name: str) -> Any:
        return json.loads((self.run / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def done(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A finished run of l0 and the smaller model that it wrote."""
    folder = tmp_path_factory.mktemp("done")
    where = ("--run", folder / "run", "-o", folder / "smaller")
    found = ran(*place.asked("--method", "l0", "--keep", 3, "--metric", "loss", *where))
    assert found.exit_code == 0, found.output
    return Done(found.stdout, folder / "run", folder / "smaller")


def test_the_documents_are_what_is_printed_and_what_was_cut(done: Done) -> None:
    told = done.read("learned")
    assert (told["label"], told["method"], told["units"], told["seed"]) == ("l0", "l0", "heads", 0)
    assert (told["keep"], told["of"], told["trained"]["steps"], told["trained"]["lr"]) == (3, 8, 12, 1e-3)
    plan, scores = hc.Plan.from_json(done.read("plan")), hc.documents.Scores.from_json(done.read("scores"))
    assert told["plan"] == done.read("plan")
    assert hc.plan(scores, 5).units == plan.units
    assert told["history"][-1]["step"] == 12
    assert told["history"][-1]["open"] == 3
    assert (told["comparison"]["before"], told["comparison"]["after"]) == (
        told["full"]["value"],
        told["learned"]["value"],
    )
    assert told["full"]["n"] == told["learned"]["n"] == told["comparison"]["n"] == len(DEV)
    lines = done.out.splitlines()
    assert told["sets"] in lines
    assert "l0: 3 of 8 heads stay" in lines
    assert f"an open gate cost {told['penalty']:.3g} in the end; {told['open']} were open by themselves" in lines
    assert f"gone: {plan}" in lines
    assert f"smaller model: {done.smaller}" in lines
    assert f"in Python: import headcount; model = headcount.load({str(done.smaller)!r})" in done.out
    assert f"run folder: {done.run}" in lines
    assert any(line.startswith("12 steps in ") for line in lines)
    for start, key in (("full:    ", "full"), ("smaller: ", "learned")):
        (line,) = [line for line in lines if line.startswith(start)]
        name, value = line.removeprefix(start).split()[:2]
        assert name == "loss"
        assert float(value) == pytest.approx(told[key]["value"], abs=0.6 * 10.0 ** -len(value.partition(".")[2]))
        assert line.endswith(f"(n={len(DEV)})")
    assert f"         {hc.stats.Comparison.from_json(told['comparison'])}" in lines


def test_what_was_written_is_cut_and_as_good_as_told(done: Done, place: Place, tmp_path: Path) -> None:
    told, model = done.read("learned"), hc.load(done.smaller)
    assert hc.removed(model).units == hc.Plan.from_json(told["plan"]).units
    assert len(hc.removed(model)) == 5
    assert size(model) < size(hc.load(place.model))
    for folder, key in ((done.smaller, "learned"), (place.model, "full")):
        found = ran_json("evaluate", folder, "--data", place.dev, "-o", tmp_path / key, "--metric", "loss")
        assert found["value"] == pytest.approx(told[key]["value"], rel=1e-5)
    assert told["full"]["value"] != told["learned"]["value"]


def test_a_report_shows_what_was_learned(done: Done, place: Place, tmp_path: Path) -> None:
    other = ran_json(
        *place.asked("--method", "random", "--keep", "50%", "--metric", "loss", "--run", tmp_path / "other")
    )
    page = report_page.report([done.run, tmp_path / "other"], tmp_path / "page.html").read_text(encoding="utf-8")
    for words in (
        "Learned gates",
        "How the gates closed",
        "random, recovered",
        "l0",
        f"{other['learned']['value']:.2f}",
    ):
        assert words in page


def test_json_is_the_document_and_where_things_are(place: Place, tmp_path: Path) -> None:
    where = ("--run", tmp_path / "run", "-o", tmp_path / "smaller")
    told = ran_json(*place.asked("--method", "taylor", "--keep", "50%", "--epochs", 0.5, "--seed", 3, *where))
    kept = json.loads((tmp_path / "run" / "learned.json").read_text())
    assert told == {**kept, "output": str(tmp_path / "smaller"), "run": str(tmp_path / "run")}
    assert (told["label"], told["keep"], told["seed"], told["penalty"]) == ("taylor, recovered", 4, 3, None)
    assert hc.removed(hc.load(tmp_path / "smaller")).units == hc.Plan.from_json(told["plan"]).units


def test_without_epochs_nothing_is_trained(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "safe_step", lambda work: pytest.fail("trained"))
    asked = ("learn", place.model, "--data", place.train, "--report-data", place.dev, "--epochs", 0)
    told = ran_json(*asked, "--method", "plan", "--plan", _plan(tmp_path, "0:0-2"), "--run", tmp_path / "run")
    assert (told["label"], told["trained"], told["history"], told["of"]) == ("plan, not recovered", None, [], 8)
    assert not (tmp_path / "run" / "scores.json").exists()
    model = without(hc.load(place.model), "0:0-2")
    hc.save(model, tmp_path / "cut", source=place.model)
    found = ran_json("evaluate", tmp_path / "cut", "--data", place.dev, "-o", tmp_path / "again")
    assert found["value"] == told["learned"]["value"]


def _plan(folder: Path, text: str) -> Path:
    hc.Plan.of(text).write(folder / "wanted.json")
    return folder / "wanted.json"


# --- what is learned from -------------------------------------------------------------------------------------------


@pytest.fixture
def learned_from(place: Place, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The texts that classifiers were trained on, or that something was derived from, as they come."""
    from transformers import AutoTokenizer

    tokenizer, seen = AutoTokenizer.from_pretrained(place.model), set[str]()
    forward = BertForSequenceClassification.forward

    @wraps(forward)
    def watched(model: Any, input_ids: Any = None, **rest: Any) -> Any:
        if model.training or torch.is_grad_enabled():
            seen.update(tokenizer.batch_decode(input_ids, skip_special_tokens=True))
        return forward(model, input_ids=input_ids, **rest)

    monkeypatch.setattr(BertForSequenceClassification, "forward", watched)
    return seen


METHODS = (("--method", "subset", "--recover-epochs", 1), ("--method", "taylor", "--teacher"))


@pytest.mark.parametrize("method", METHODS, ids=["gates", "criterion"])
def test_what_is_reported_on_is_never_learned_from(
    method: tuple[object, ...], place: Place, learned_from: set[str], tmp_path: Path
) -> None:
    method = (*method, place.model) if method[-1] == "--teacher" else method
    where, epoch = ("--run", tmp_path / "run"), ("--keep", 3, "--epochs", 1, "--batch-size", 16)
    both = table(tmp_path / "both.tsv", TRAIN + DEV[:20])  # some are in both files
    told = ran_json("learn", place.model, "--data", both, "--report-data", place.dev, *epoch, *method, *where)
    assert learned_from == {text for text, _ in TRAIN} - {text for text, _ in DEV}
    assert "to train on were left out, being among those to report on" in told["sets"]
    assert told["learned"]["n"] == len(DEV)


@pytest.mark.parametrize("method", METHODS[:1], ids=["gates"])
def test_the_tenth_that_is_reported_on_is_never_learned_from(
    method: tuple[object, ...], place: Place, learned_from: set[str], tmp_path: Path
) -> None:
    rows = TRAIN + TRAIN[:40]  # some are there twice
    data = table(tmp_path / "all.tsv", rows)
    epoch = ("--keep", 3, "--epochs", 1, "--batch-size", 16)
    told = ran_json("learn", place.model, "--data", data, *epoch, *method, "--run", tmp_path / "run")
    aside = [text for text, _ in rows if text not in learned_from]
    assert told["full"]["n"] == told["learned"]["n"] == len(aside)
    assert 8 <= len(aside) <= 60  # a tenth, by chance
    assert f"reported on {len(aside)} others of it" in told["sets"]


# --- killed, and again ----------------------------------------------------------------------------------------------


class Killer:
    """Kills a training before a step, counted over all trainings; `steps` are those that were begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[int] = []
        self.at: int | None = None
        step = loop.safe_step

        def watched(work: Any) -> None:
            self.steps.append(work.done)
            if len(self.steps) == self.at:
                raise RuntimeError("killed")
            step(work)

        monkeypatch.setattr(loop, "safe_step", watched)


@pytest.mark.parametrize(
    ("method", "at", "again_from"),
    [
        (("--method", "l0"), 9, 6),
        (("--method", "subset", "--recover-epochs", 0.5), 17, 3),  # in the second training
        (("--method", "taylor", "--scratch"), 9, 6),
        # gates as in the first and a criterion as in the third
        pytest.param(("--method", "layerdrop", "--choose", "taylor"), 9, 6, marks=pytest.mark.slow),
    ],
)
def test_killed_and_given_again_it_ends_the_same_and_a_third_time_trains_nothing(
    method: tuple[object, ...], at: int, again_from: int, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a model that has everything to learn yet: where there is next to no gradient, Adam makes steps of rounding
    hc.save(new_models.reinitialized(hc.load(place.model), 0), tmp_path / "fresh", source=place.model)
    command = place._replace(model=tmp_path / "fresh").asked("--keep", 3, "--save-every", 3, *method)
    whole = ran_json(*command, "-o", tmp_path / "whole", "--run", tmp_path / "one")
    killer = Killer(monkeypatch)
    killer.at = at
    again = (*command, "-o", tmp_path / "resumed", "--run", tmp_path / "two")
    with pytest.raises(RuntimeError, match="killed"):
        ran(*again)
    assert not (tmp_path / "resumed").exists()
    told = ran_json(*again)
    assert killer.steps[at] == again_from  # it went on from the last state
    resumed = hc.load(tmp_path / "resumed")
    assert close_weights(felt(resumed), felt(hc.load(tmp_path / "whole")), 4e-5)  # less than half of the smallest step
    first, second = (json.loads((tmp_path / run / "learned.json").read_text()) for run in ("one", "two"))
    assert alike(first, second)
    assert alike({**whole, "output": 0, "run": 0}, {**told, "output": 0, "run": 0})
    steps = len(killer.steps)
    monkeypatch.setattr(pipeline, "score_units", _without_passes(pipeline.score_units, place.model))
    assert alike(ran_json(*again, "--force"), told)
    assert len(killer.steps) == steps, "a third time it is read from the run folder"
    assert same_weights(hc.load(tmp_path / "resumed"), resumed)


def _without_passes(score: Callable[..., Any], model: Path) -> Callable[..., Any]:
    """The same function; a backward pass within it fails."""

    @wraps(score)
    def watched(*args: Any, **more: Any) -> Any:
        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("scored again")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.autograd, "grad", refuse)
            patch.setattr(torch.Tensor, "backward", refuse)
            return score(*args, **more)

    return watched


def test_another_question_is_not_answered_from_the_same_folder(done: Done, place: Place) -> None:
    before = done.read("learned")
    for other in (("--keep", 2), ("--keep", 3, "--settle", 0.5), ("--keep", 3, "--setting", "start=2")):
        with pytest.raises(HeadcountError, match="question") as caught:
            ran(*place.asked("--method", "l0", "--metric", "loss", *other, "--run", done.run))
        assert "\n" not in str(caught.value)
    assert done.read("learned") == before


def test_of_several_processes_only_the_first_writes_and_speaks(
    place: Place, tmp_path: Path, learned_from: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")  # as a launcher sets it in the second one
    monkeypatch.chdir(tmp_path)
    found = ran(*place.asked("--keep", 3, "-o", tmp_path / "out", "--run", tmp_path / "run", "--device", "cpu"))
    assert (found.exit_code, found.output) == (0, "")
    assert learned_from
    assert not list(tmp_path.iterdir())


# --- flags ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (["--setting", "first=2", "--setting", "last=0.5"], {"first": 2.0, "last": 0.5, "form": "bounded"}),
        (["--form", "straight-through", "--gate-lr", 0.3], {"form": "straight-through", "lr": 0.3}),
        (
            ["--published"],
            {"form": "published", "first": 1000.0, "last": 1e-8, "lr": 0.5, "beta2": 0.999, "decay": True},
        ),
        (["--published", "--gate-lr", 0.3], {"form": "published", "lr": 0.3}),
        (["--method", "l0", "--setting", "start=1.5"], {"start": 1.5, "l0": None}),
        (["--method", "layerdrop", "--rate", 0.4], {"rate": 0.4}),
    ],
)
def test_settings_reach_the_method(
    flags: list[object], settings: dict[str, Any], place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, method_of = list[Any](), gates.method_of
    monkeypatch.setattr(gates, "method_of", lambda *a, **b: made.append(method_of(*a, **b)) or made[-1])
    ran_json(*place.asked("--keep", 3, *flags, "--steps", 1, "--run", tmp_path / "run"))
    (found,) = made
    assert {name: getattr(found, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("flags", "settle"), [([], None), (["--published"], 0.0), (["--published", "--settle", 0.5], 0.5)]
)
def test_as_published_the_choice_never_stands_unless_it_is_asked_for(
    flags: list[object], settle: float | None, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, prepared = list[Any](), pipeline.prepared
    monkeypatch.setattr(pipeline, "prepared", lambda model, wish, *a: asked.append(wish) or prepared(model, wish, *a))
    ran_json(*place.asked("--keep", 3, *flags, "--steps", 1, "--run", tmp_path / "run"))
    assert asked[0].settle == settle


def test_flags_are_arguments_of_the_library_with_the_same_defaults() -> None:
    flags, library = (signature(one).parameters for one in (learn.learn, pipeline.learn))
    for name in ("method", "keep", "units", "pipelined", "settle", "plan", "choose", "scratch"):
        assert flags[name].default == library[name].default
    recipe = training_options.TrainingOptions().recipe(0, hc.training.Recipe.lr)
    assert recipe == library["recipe"].default
    helped = " ".join(ran("learn", "--help").output.split())
    assert "headcount learn" in helped


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--data"),
        (["--data", "x.tsv", "--report-limit", 5], "--report-data"),
        (["--data", "x.tsv", "--distill", 0.5], "--teacher"),
        (["--data", "x.tsv", "--dtype", "bfloat16"], "--precision"),
        (["--data", "x.tsv", "-o", "y", "--run", "y/z"], "neither inside the other"),
        (["--data", "TRAIN", "--keep", 3, "--setting", "first"], "NAME=NUMBER"),
        (["--data", "TRAIN", "--keep", 3, "--setting", "first=much"], "first=much"),
        (["--data", "x.tsv", "--keeps", 3], "--keeps"),
    ],
)
def test_wrong_usage_is_said_at_once(words: list[Any], says: str, place: Place) -> None:
    found = ran("learn", place.model, *[place.train if word == "TRAIN" else word for word in words])
    assert found.exit_code == 2
    assert says in " ".join(found.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--method", "guess", "--keep", 3], "guess"),
        ([], "keep"),
        (["--keep", "many"], "many"),
        (["--keep", 3, "--setting", "nose=1"], "nose"),
        (["--keep", 3, "--setting", "keep=1"], "no setting 'keep'"),
        (["--keep", 3, "--setting", "pipelined=1"], "no setting 'pipelined'"),
        (["--keep", 3, "--gate-lr", "-1"], "learning rate"),
        (["--keep", 1000], "1000"),
        (["--keep", 3, "--units", "noses"], "noses"),
        (["--keep", 3, "--scratch"], "from scratch"),
        (["--keep", 3, "--method", "taylor", "--pipelined"], "pipelined"),
        (["--keep", 3, "--choose", "taylor"], "layerdrop"),
        (["--keep", 3, "--epochs", 0], "recipe"),
        (["--keep", 3, "--freeze", "nothing"], "nothing"),
        (["--keep", 3, "--report-data", "TRAIN"], "are also among those to report on"),
        (["--method", "plan", "--plan", "none.json"], "none.json"),
        (["--keep", 3, "-o", "MODEL", "--force"], "model"),
    ],
)
def test_what_is_wrong_ends_with_1_and_a_sentence(
    words: list[Any], says: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    names = {"TRAIN": place.train, "MODEL": place.model}
    common = [
        "learn",
        place.model,
        "--data",
        place.train,
        "--report-data",
        place.dev,
        "--quiet",
        "--run",
        tmp_path / "r",
    ]
    if "--report-data" in words:
        common[4:6] = []
    given = [str(names.get(word, word)) for word in [*common, *words]]
    monkeypatch.setattr(sys, "argv", ["headcount", *given])
    weights = (place.model / "model.safetensors").read_bytes()
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (1, "")
    assert err.startswith("headcount: ")
    assert err.count("\n") == 1
    assert says in err
    assert "Error: " not in err, "an error that is not ours"
    assert not (tmp_path / "r").exists(), "what is wrong is said before any work is done"
    assert (place.model / "model.safetensors").read_bytes() == weights
