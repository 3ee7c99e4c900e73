"""`prune` under a budget: several kinds of units, tuned and trained once more, as a command and as a verb."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import small_models, zoo
from helpers.processes import spawned
from helpers.same import alike, felt
from helpers.small_models import loss_of, ran, ran_json, zoo_task
from pruning.test_budget import speed_row
from pruning.test_pipeline import _asked, _leftovers, _model, _task, place, quick  # noqa: F401 (fixtures)
from safetensors.torch import load_file
from torch import nn

import headcount as hc
from headcount.data import splits
from headcount.data.places import place as place_of
from headcount.efficiency import costs, latency
from headcount.pruning import budget as budgets
from headcount.pruning import candidates, pipeline, plan_tests, time_budget
from headcount.pruning.selection import usual_length
from headcount.pruning.tuning.mask_tuning import tune_mask


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "run" / "cache"))


# Tuning is kept where it does good. Here that is a matter of the third digit, so these tests take it as done.
TUNED = ("--units", "heads,neurons", "--flops", "60%", "--tune", "--metric", "loss", "--no-report")


def _by_fisher_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan for every budget: the best of several leaves nothing to tune in so small a model."""
    really = candidates.weighings
    monkeypatch.setattr(candidates, "weighings", lambda *given, **how: really(*given, **how)[:1])
    monkeypatch.setattr(candidates, "FLOORS", (0.0,))


def _tuned_whatever_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning is kept, on whichever side of a near tie this processor comes out."""
    monkeypatch.setattr(plan_tests, "_is_no_worse", lambda *_: True)


def _json(*words: object) -> Any:
    return ran_json(*map(str, words))


class Tuned(NamedTuple):
    folder: Path
    found: dict[str, Any]


@pytest.fixture(scope="module")
def once_tuned(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Tuned:  # noqa: F811
    """A classifier that was cut and tuned, to be looked at, and what was said about it."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "bench", lambda *_, **__: None)
        _by_fisher_alone(patch)
        _tuned_whatever_it_does(patch)
        found = _json(*_asked(place, folder, *TUNED, "--score-data", place / "train.tsv"))
    return Tuned(folder / "smaller", found)


def test_a_budget_of_flops_is_kept_by_the_checkpoint(place: Path, tmp_path: Path) -> None:  # noqa: F811
    found = _json(*_asked(place, tmp_path, "--units", "heads,neurons", "--flops", "60%", "--multiple", 1))
    whole, smaller = _model(place), hc.load(tmp_path / "smaller", dtype=torch.float32)
    length = usual_length(_report(place))
    batch = costs.one_example(whole, length)
    flops = [costs.operations_of(model, batch) for model in (whole, smaller)]
    assert found["flops"] == flops
    assert flops[1] <= 0.6 * flops[0]
    budget = found["budget"]
    assert (budget["whole"], budget["measured"]) == tuple(flops)
    assert budget["predicted"] == pytest.approx(flops[1])
    assert found["parameters"] == [whole.num_parameters(), smaller.num_parameters()]
    anatomy = hc.find(smaller)
    assert {site["name"]: site["left"] for site in found["structure"]} == {site.name: len(site) for site in anatomy}
    assert {site["kind"] for site in found["structure"] if site["left"] < site["units"]} <= {"head", "neuron"}
    assert "of the FLOPs are left" in found["sentence"]


def _report(place: Path) -> hc.data.Task:  # noqa: F811
    task = splits.distinct(_task(place, "dev"))
    return task.subset([n for n in range(task.size) if place_of(task.digest(n), 0) >= 0.7])


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch, quick: None) -> None:  # noqa: F811
    """A machine that takes as long as a model has parameters: the real one may be busy with something else."""

    def bench(models: dict[str, Any], **_: Any) -> Any:
        whole, smaller = (sum(one.numel() for one in models[name].parameters()) for name in ("whole", "smaller"))
        first = SimpleNamespace(examples_per_second=16 / whole)
        return SimpleNamespace(rows=[first, speed_row(whole / smaller)])

    for module in (budgets, latency):
        monkeypatch.setattr(module, "bench", bench)


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("wish", [("--params", "70%"), ("--speedup", "1.01")])
def test_layers_go_too_and_the_folder_says_which(wish: tuple[str, str], place: Path, tmp_path: Path) -> None:  # noqa: F811
    asked = _asked(place, tmp_path, "--units", "layers", "--by", "top", *wish, "--no-report")
    found = _json(*asked)
    (stack,) = found["layers"]
    assert stack["gone"] == list(range(3 - len(stack["gone"]), 3)), "from the top"
    assert stack["gone"]
    smaller = hc.load(tmp_path / "smaller")
    assert smaller.config.num_hidden_layers == 3 - len(stack["gone"])
    gone = {site["layer"] for site in found["structure"] if site["left"] == 0}
    assert gone == set(stack["gone"])


def test_what_was_tuned_is_in_the_weights_of_an_ordinary_checkpoint(place: Path, once_tuned: Tuned) -> None:  # noqa: F811
    found, weights = once_tuned.found, load_file(once_tuned.folder / "model.safetensors")
    assert {t.dtype for t in weights.values()} == {torch.float16}
    plain = _model(place)
    hc.cut(plain, hc.Plan.from_json(found["plan"]))
    state = plain.state_dict()
    assert all(weights[name].shape == state[name].shape for name in weights)
    differing = {name for name in weights if not torch.equal(weights[name].float(), state[name])}
    used = [site for site in found["tuned"]["sites"] if site["used"]]
    assert used
    assert len(differing) == len(used), "one writer each, and nothing else"
    assert all("output.dense.weight" in name for name in differing)
    assert found["tuned"]["examples"] <= 300
    assert found["rearranged"] is not None


def test_a_smaller_model_is_trained_once_more_and_both_numbers_are_told(place: Path, tmp_path: Path) -> None:  # noqa: F811
    words = ("--units", "heads,neurons", "--flops", "30%", "--score-data", place / "train.tsv", "--no-report")
    recover = ("--recover", 6, "--recover-data", place / "train.tsv", "--recover-lr", 1e-3)
    found = _json(*_asked(place, tmp_path, *words, *recover))
    facts = found["recovered"]
    shared = _task(place, "train").size - facts["examples"]
    assert facts["distilled"]
    assert facts["epochs"] == 6
    assert shared > 0, "examples that are reported on are not trained on"
    smaller = hc.load(tmp_path / "smaller", dtype=torch.float32)
    assert hc.removed(smaller).units == hc.Plan.from_json(found["plan"]).units
    plain = _model(place)
    hc.cut(plain, hc.Plan.from_json(found["plan"]))
    assert not torch.equal(smaller.classifier.weight, plain.classifier.weight)


def test_two_processes_recover_as_one(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The first chooses, cuts, with means in the biases, and writes; both train, on the same batches."""
    shutil.copytree(place, tmp_path / "place")  # without dropout, which every process draws for its own examples
    config = tmp_path / "place" / "classifier" / "config.json"
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config.write_text(json.dumps(json.loads(config.read_text()) | dropouts))
    words = (
        "--remove",
        2,
        "--compensate",
        "mean",
        "--score-data",
        place / "train.tsv",
        "--no-report",
        "--brake",
        "off",
    )
    words += ("--recover", "3steps", "--recover-data", place / "train.tsv", "--recover-lr", 1e-2, "--device", "cpu")
    asked = {name: _asked(tmp_path / "place", tmp_path / name, *words) for name in ("one", "two")}
    monkeypatch.setattr(pipeline, "bench", lambda *_, **__: None)
    want = _json(*asked["one"])
    script = str(Path(small_models.__file__).with_name("untimed.py"))
    spawned([script, *map(str, asked["two"])], 2)
    assert _leftovers(tmp_path / "two") == ["smaller"]
    alone, together = (hc.load(tmp_path / name / "smaller", dtype=torch.float32) for name in asked)
    assert hc.removed(alone) == hc.removed(together)
    plain = _model(place)
    hc.cut(plain, hc.removed(alone))
    before = felt(plain)
    moved = torch.cat([(weight - before[name]).flatten() for name, weight in felt(alone).items()])
    apart = torch.cat([(weight - felt(together)[name]).flatten() for name, weight in felt(alone).items()])
    assert moved.norm() > 0.1
    assert apart.norm() < 0.05 * moved.norm()  # Adam turns rounding into steps where there is no gradient; and float16
    said = json.loads((tmp_path / "two" / "run" / "prune.json").read_text())
    assert said["recovered"]["steps"] == want["recovered"]["steps"] == 3


def test_several_processes_have_nothing_to_do_without_a_training(
    place: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = ran(*map(str, _asked(place, tmp_path, "--remove", 2)))
    assert done.exit_code == 2
    assert "start it without a launcher" in " ".join(done.stderr.replace("│", " ").split())


def test_it_recovers_by_additions_of_low_rank_for_so_many_steps(place: Path, tmp_path: Path) -> None:  # noqa: F811
    pytest.importorskip("peft")
    words = ("--remove", 2, "--score-data", place / "train.tsv", "--no-report")
    recover = ("--recover", "3steps", "--lora", 2, "--recover-data", place / "train.tsv", "--recover-precision", "bf16")
    facts = _json(*_asked(place, tmp_path, *words, *recover))["recovered"]
    assert (facts["steps"], facts["recipe"]["lora"], facts["recipe"]["lr"]) == (3, 2, 2e-4)
    assert facts["recipe"]["precision"] == "bf16"
    assert facts["epochs"] == pytest.approx(3 * 32 / facts["examples"])
    smaller = hc.load(tmp_path / "smaller")
    assert len(hc.removed(smaller)) == 2
    assert not any("lora" in name for name in smaller.state_dict())


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (("--flops", "50%", "--recover", "1"), "--recover-data"),
        (("--flops", "50%", "--recover-data", "x.tsv"), "goes with --recover"),
        (("--max-drop", "1", "--recover", "1", "--recover-data", "x.tsv"), "as it is cut"),
        (("--flops", "50%", "--recover", "0", "--recover-data", "x.tsv"), "above 0"),
        (("--flops", "50%", "--recover", "0steps", "--recover-data", "x.tsv"), "above 0"),
        (("--flops", "50%", "--recover", "soon", "--recover-data", "x.tsv"), "200steps"),
        (("--flops", "50%", "--recover", "1", "--recover-data", "x.tsv", "--lora", "0"), "a rank"),
        (("--flops", "50%", "--lora", "4"), "goes with --recover"),
        (("--flops", "50%", "--recover-precision", "bf16"), "goes with --recover"),
        (("--flops", "50%", "--recover", "1", "--recover-data", "x.tsv", "--recover-precision", "f8"), "bf16 or fp16"),
        (("--flops", "50"), "such as"),
        (("--flops", "50%", "--params", "50%"), "in one way"),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_any_work(
    words: tuple[str, ...],
    about: str,
    place: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    try:
        said = ran(*map(str, _asked(place, tmp_path, *words))).output
    except hc.errors.BadPlan as error:
        said = str(error)
    assert about in " ".join(said.replace("│", " ").split())
    assert "Traceback" not in said
    assert _leftovers(tmp_path) == []


def test_a_promise_over_several_kinds_is_shown_step_by_step_also_when_tuned(
    place: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here tuning is kept at every step, as the judge finds both equally good; else it is where it does good."""

    def equal(_: Any, batch: Any) -> torch.Tensor:
        return batch["input_ids"][:, 0] * 0.0

    monkeypatch.setattr(plan_tests, "_judge", lambda task: hc.custom_task([task.batch()], values=equal))
    model, score = _model(place), _task(place, "train", limit=150)
    select = splits.distinct(_task(place, "dev", limit=400))
    select = splits.without(select, splits.digests(score)) or select
    kept = Fingerprint(model)
    for tune in (False, True):
        choice = hc.pruning.choose(
            model, max_drop=5.0, units="heads,neurons", score=score, select=select, step="20%", tune=tune, multiple=1
        )
        held = choice.guarantee
        assert held is not None
        assert held.removed == len(choice.plan) > 0
        last = held.kept
        assert last is not None
        gates = {site.name: torch.ones(len(site)) for site in hc.find(model)}
        for name, numbers in choice.scale.items():
            gates[name] = numbers
        with hc.masked(model, choice.plan), hc.gated(model, gates):
            assert hc.evaluate(model, select).value == pytest.approx(last.value)
        assert (choice.tuned is not None) == tune
    assert not kept.changed()


def test_where_a_plan_runs_slower_than_reckoned_a_cheaper_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_models.classifier(layers=3)
    units = tuple(hc.Unit("layers", number) for number in range(3))
    scores = hc.documents.Scores(units, np.array([3.0, 2.0, 1.0]), "mine", {"layers": "layer"}, {"layers": None})
    purse = budgets.BudgetProblem(model, scores, replace(costs.parameters(model), what="time"))
    tried = list[int]()

    def real(purse: budgets.BudgetProblem, plan: hc.Plan) -> float:
        tried.append(len(plan))
        return purse.costs.whole if len(plan) == 1 else purse.costs.of(plan)

    monkeypatch.setattr(budgets, "_real", real)
    plan, budget = budgets.within(purse, 1.01)
    assert plan.units == {*units[1:]}
    assert budget.measured <= budget.allowed
    assert tried == [1, 2]


def test_where_all_plans_run_slower_by_as_much_the_second_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_models.classifier(layers=3)
    units = tuple(unit for site in hc.find(model).neurons for unit in site.units)
    sites = {site.name for site in hc.find(model).neurons}
    scores = hc.documents.Scores(
        units, np.linspace(1.0, 2.0, len(units)), "mine", dict.fromkeys(sites, "neuron"), dict.fromkeys(sites)
    )
    purse = budgets.BudgetProblem(model, scores, replace(costs.parameters(model), what="time"), multiple=1)
    allowed, tried = 0.8 * purse.costs.whole, list[float]()

    def real(purse: budgets.BudgetProblem, plan: hc.Plan) -> float:
        tried.append(purse.costs.of(plan) + 0.1 * allowed)
        return tried[-1]

    monkeypatch.setattr(budgets, "_real", real)
    _, budget = budgets.within(purse, 1.25)
    assert [round(one / allowed, 2) for one in tried] == [1.1, 0.99]
    assert budget.measured == tried[1]


def _timed_neurons() -> budgets.BudgetProblem:
    """What neurons of a small model cost, as if parameters were seconds."""
    model = small_models.classifier(layers=3)
    sites = hc.find(model).neurons
    units = tuple(unit for site in sites for unit in site.units)
    kinds, types = {site.name: "neuron" for site in sites}, {site.name: None for site in sites}
    scores = hc.documents.Scores(units, np.linspace(1.0, 2.0, len(units)), "mine", kinds, types)
    return budgets.BudgetProblem(model, scores, replace(costs.parameters(model), what="time"), multiple=1)


def test_between_a_plan_that_fits_and_one_that_does_not_another_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    purse = _timed_neurons()
    allowed, tried = budgets.must_reach(purse, 1.25), list[float]()

    def real(purse: budgets.BudgetProblem, plan: hc.Plan) -> float:
        """Up to 3 % over what is allowed it runs faster than reckoned, from 9 % on slower, and between them as it should."""
        tried.append(purse.costs.of(plan) / allowed)
        return allowed * (0.8 if tried[-1] < 1.03 else 0.97 if tried[-1] < 1.09 else 1.2)

    monkeypatch.setattr(budgets, "_real", real)
    _, budget = budgets.within(purse, 1.25)
    assert len(tried) == 3
    assert tried[0] < tried[2] < tried[1]
    assert budget.measured == 0.97 * allowed
    assert budget.predicted == pytest.approx(tried[2] * allowed)


def test_as_much_as_may_be_left_over_of_a_budget_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    purse = _timed_neurons()
    allowed = budgets.must_reach(purse, 1.25)
    for left_over, tries in ((0.05, 1), (0.06, 2)):
        tried = list[hc.Plan]()

        def real(
            _: budgets.BudgetProblem, plan: hc.Plan, tried: list[hc.Plan] = tried, spent: float = 1 - left_over
        ) -> float:
            tried.append(plan)
            return spent * allowed if len(tried) == 1 else allowed

        monkeypatch.setattr(budgets, "_real", real)
        budgets.within(purse, 1.25)
        assert len(tried) == tries


def test_every_other_layer_is_a_plan_for_a_number_of_them(place: Path) -> None:  # noqa: F811
    model = _model(place)
    choice = hc.pruning.choose(model, remove=2, units="layers", by="every-other")
    assert choice.plan.units == {hc.Unit("layers", 1), hc.Unit("layers", 2)}, "the first one stays"
    with says(hc.errors.BadPlan, about="say units layers and remove"):
        hc.pruning.choose(model, flops="50%", units="layers", by="every-other")


def test_resuming_comes_to_the_same_end(
    place: Path,  # noqa: F811
    once_tuned: Tuned,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = (*TUNED, "--score-data", place / "train.tsv")
    _by_fisher_alone(monkeypatch)
    _tuned_whatever_it_does(monkeypatch)

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_into", stop)
        assert ran(*map(str, _asked(place, tmp_path, *words))).exit_code != 0
    assert _leftovers(tmp_path) == []
    first, again = _json(*_asked(place, tmp_path, *words)), once_tuned.found
    assert first["plan"] == again["plan"]
    assert first["tuned"] is not None
    assert alike(first["tuned"], again["tuned"], 1e-4)  # least squares make more of rounding
    assert alike(first["after"]["value"], again["after"]["value"], 1e-4)


def test_what_stays_after_whole_layers_went_is_tuned_too(place: Path) -> None:  # noqa: F811
    model, score = _model(place), _task(place, "train", limit=100)
    fit = tune_mask(model, "layers:0", score)
    assert {site.name for site in fit.sites} == {"1", "1.mlp", "2", "2.mlp"}
    assert set(fit.scale) == {site.name for site in fit.sites if site.used} != set()
    hc.cut(model, "layers:0", scale=fit.scale, check=score.batch())
    choice = hc.pruning.choose(_model(place), remove=1, units="layers", by="bottom", tune=True, score=score)
    assert choice.plan.units == {hc.Unit("layers", 0)}
    assert bool(choice.note) == (choice.tuned is None)


def test_tables_that_a_model_makes_anew_are_not_taken_for_weights(tmp_path: Path) -> None:
    """Marian's sinusoids are parameters that no checkpoint holds: what is written is rounded, they are not."""
    model, task = zoo_task("marian")
    turned = {name: values.flip(1) for name, values in zoo.build("marian")[1].items()}
    score, report = task.subset([0, 1]), hc.custom_task([turned], loss=loss_of)
    model.half().save_pretrained(tmp_path / "whole")
    model = hc.load(tmp_path / "whole", dtype=torch.float32).eval()
    choice = hc.pruning.choose(model, flops=0.8, units="heads,neurons", tune=True, score=score, length=8, multiple=1)
    found = hc.pruning.save_pruned(model, tmp_path / "smaller", report, choice, source=tmp_path / "whole", length=8)
    assert found.choice.tuned is not None
    written = load_file(tmp_path / "smaller" / "model.safetensors")
    assert {written[name].dtype for name, _ in model.named_parameters() if name in written} == {torch.float16}


def test_units_that_only_a_row_of_the_user_knows_are_pruned_and_trained_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    monkeypatch.setattr(pipeline, "bench", lambda *_, **__: None)
    sizes = {**zoo.ENCODER, "num_hidden_layers": 1, "num_labels": 3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**sizes)).eval()
    rows = [hc.model.ModuleSpec(("dense",), ("out_proj",), "neurons", "neuron")]  # of the part that classifies
    choice = hc.pruning.choose(model, plan="classifier:1-9", specs=rows)
    output, report = tmp_path / "smaller", small_models.class_task()
    found = hc.pruning.save_pruned(model, output, report, choice, length=8, specs=rows, recover=lambda _: {})
    assert found.parameters[0] - found.parameters[1] == 9 * (32 + 1 + 3)
    assert hc.removed(hc.load(output)) == hc.Plan.of("classifier:1-9")


def test_numbers_that_changed_are_written_in_the_format_of_those_they_come_from(tmp_path: Path) -> None:
    """Whole numbers that a model counts with say nothing about the format of its weights, and stay whole."""
    model = small_models.classifier(layers=1)
    model.register_parameter("seen", nn.Parameter(torch.tensor(70_001), requires_grad=False))
    changed = copy.deepcopy(model)
    hc.cut(changed, "0:1")
    pipeline._write(model.half(), hc.Plan.of("0:1"), tmp_path, None, False, (), changed, False)
    written = load_file(tmp_path / "model.safetensors")
    assert written.pop("seen") == 70_001
    assert {tensor.dtype for tensor in written.values()} == {torch.float16}


def test_two_plans_in_one_run_are_told_apart(place: Path, tmp_path: Path) -> None:  # noqa: F811
    model, report = _model(place), _task(place, "few")
    with hc.runs.Run.open(tmp_path / "run", {"command": "test"}) as run:
        before = []
        for number, text in enumerate(("0:0", "0:* 1:* 2:* 0.mlp:* 1.mlp:* 2.mlp:*")):
            choice = hc.pruning.choose(model, plan=text, run=run)
            found = hc.pruning.save_pruned(
                model, tmp_path / f"m{number}", report, choice, run=run, recover=lambda _: {}
            )
            assert found.recovered is not None
            before.append(found.recovered["before"])
    with hc.masked(model, "0:* 1:* 2:* 0.mlp:* 1.mlp:* 2.mlp:*"):
        assert before[1] == pytest.approx(hc.evaluate(model, report).value)
    assert before[0] != before[1]


def test_a_plan_that_was_rearranged_follows_no_order(place: Path) -> None:  # noqa: F811
    model, score = _model(place), _task(place, "train", limit=150)
    choice = hc.pruning.choose(model, remove="50%", units="neurons", tune=True, score=score)
    assert choice.exchanged
    assert choice.order == ()
    assert choice.plan.why.endswith("rearranged")
    plain = hc.pruning.choose(model, remove="50%", units="neurons", by="fisher", score=score)
    assert set(plain.plan) == set(plain.order[: len(plain.plan)])


def test_tuning_that_does_harm_is_left_out_and_said(
    place: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really = plan_tests.tune_mask

    def spoilt(model: Any, plan: Any, task: Any, **how: Any) -> Any:
        found = really(model, plan, task, **how)
        return replace(found, scale={site.name: -torch.ones(len(site)) for site in hc.find(model)})

    monkeypatch.setattr(plan_tests, "tune_mask", spoilt)
    words = ("--units", "heads,neurons", "--flops", "70%", "--tune", "--score-data", place / "train.tsv", "--no-report")
    found = _json(*_asked(place, tmp_path, *words))
    assert found["tuned"] is None
    assert found["rearranged"] is None
    assert "Not tuned: on " in found["not_tuned"]
    plain = _model(place)
    hc.cut(plain, hc.Plan.from_json(found["plan"]))
    written = load_file(tmp_path / "smaller" / "model.safetensors")
    assert all(
        torch.equal(written[name].float(), value) for name, value in plain.state_dict().items() if name in written
    )


def test_in_little_time_less_is_done_the_same_when_it_goes_on_and_what_is_left_out_is_said(
    place: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = (
        "--score-data",
        place / "train.tsv",
        "--score-limit",
        200,
        "--remove",
        "25%",
        "--tune",
        "--units",
        "neurons",
    )
    words += ("--no-report", "--budget-minutes", 2, "--run", tmp_path / "run-folder")
    monkeypatch.setattr(time_budget, "seconds_per_example", lambda *_: 1.0)  # a slow machine
    found = _json(*_asked(place, tmp_path, *words))
    assert [one["n"] for one in found["sets"] if one["role"] == "score"] == [128]
    assert found["tuned"] is None
    assert "128 of 199 examples to score on were used; what stays was not tuned" in found["sets_note"]
    assert "128 of 199 examples" in (tmp_path / "smaller" / "README.md").read_text(encoding="utf-8")
    monkeypatch.setattr(time_budget, "seconds_per_example", lambda *_: 1e-6)  # and a fast one, for the same folder
    again = _json(*_asked(place, tmp_path, *words, "--force"))
    assert (again["plan"], again["sets_note"]) == (found["plan"], found["sets_note"])
    other = ("--remove", "25%", "--budget-minutes", 0)
    assert ran(*_asked(place, tmp_path / "other", *other)).exit_code == 2
