"""Michel et al. 2019 again, many heads: planted curves and speeds in which the answer is known, and commands that parse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from conftest import says

from headcount.cli.app import app
from headcount.documents.curves import CurvesDocument
from headcount.efficiency.benchmark import Bench, Speed, Subject
from headcount.errors import BadRun
from headcount.plans import Plan
from headcount.pruning import curves
from headcount.reproduction import inputs
from headcount.reproduction.curves import line_of
from headcount.reproduction.experiment import (
    CONFIRMED,
    DIFFERS,
    NOT_CONFIRMED,
    UNTOLD,
    Claim,
    Experiment,
    RunDocuments,
    Setting,
)
from headcount.reproduction.inputs import Corpus, Material, Pairs
from headcount.reproduction.michel2019 import curves as michel_curves
from headcount.reproduction.michel2019.training import IWSLT
from headcount.stats.metrics import metric
from headcount.stats.results import Comparison, Result, compare

CURVES, TYPES, TRAINING, SPEED = michel_curves.EXPERIMENTS
SENTIMENT = Corpus("SST-2", "classification", "sst/train.tsv", "sst/dev.tsv")
GRAMMAR = Corpus("CoLA", "classification", "cola/train.tsv", "cola/dev.tsv", flags=("--metric", "matthews"))
FILES = Pairs("captions", "train.de,train.en", "val.de,val.en", "test.de,test.en", recipe=("--epochs", "12"))
ONE_FILE = Pairs("sentences", *["all.tsv"] * 3, flags=("--text", "a", "--target", "b"), ready="translator")
MATERIALS = {
    "trained": Material("trained", "Trained here.", "encoder", (SENTIMENT, GRAMMAR), FILES),
    "ready": Material("ready", "There already.", None, (SENTIMENT._replace(ready="classifier"), GRAMMAR), ONE_FILE),
    "by name": inputs.by_name(),
    "translators": Material("translators", "No corpora.", None, (GRAMMAR,), FILES),
    "nothing": Material("nothing", "Nothing.", None, (GRAMMAR,)),
}
SEEDS = (3, 4, 5)
OF = 200  # heads, so that shares are whole percents
ACCURACY = Comparison("accuracy", 0.8, 0.8, 0.0, -0.01, 0.01, 0.95, 1.0, "randomization", 500, True, 100.0)
BLEU = replace(ACCURACY, metric="bleu", before=36.0, points=1.0)
LOSS = replace(ACCURACY, metric="loss", before=2.0, higher_is_better=False, points=1.0)
Shape = Callable[[int], float]  # what is left of the score without so many percent


def _setting(folder: Path, material: str = "trained", full: bool = True) -> Setting:
    return Setting(MATERIALS[material], folder, full, SEEDS, ("--device", "cpu", "--quiet"))


# -- commands --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("material", [*MATERIALS, "embedded"])
@pytest.mark.parametrize("experiment", michel_curves.EXPERIMENTS, ids=lambda one: one.name)
def test_every_step_is_a_command_and_comes_after_what_it_needs(
    experiment: Experiment, material: str, full: bool, tmp_path: Path
) -> None:
    group = typer.main.get_command(app)
    setting = _setting(tmp_path, full=full)
    here = MATERIALS.get(material) or inputs.embedded(tmp_path)
    setting = replace(setting, material=here)
    done: list[str] = []
    for step in experiment.steps(setting):
        verb, *words = step.words
        with group.commands[verb].make_context(verb, list(words)) as context:  # type: ignore[attr-defined]
            given = context.params
        assert set(step.after) <= set(done)
        assert step.name not in done
        assert re.fullmatch(r"[\w.-]+", step.name)
        place = setting.model(step.name) if verb == "cut" else setting.run(step.name)
        assert str(given["run" if verb == "train" else "output"]) == place
        assert step.alone == (verb == "bench")
        assert verb == "cut" or words[-3:] == ["--device", "cpu", "--quiet"]
        done.append(step.name)
    assert len(done) <= 40
    assert (done == []) == (material == "nothing" or (material == "translators" and experiment is SPEED))


def _words(experiment: Experiment, setting: Setting) -> dict[str, str]:
    return {step.name: " ".join(step.words) for step in experiment.steps(setting)}


def test_what_is_measured_for_which_models(tmp_path: Path) -> None:
    full = _words(CURVES, _setting(tmp_path))
    assert [name for name in full if "michel" in name] == [
        *(f"michel-curve-{corpus}-{seed}" for corpus in ("SST-2", "CoLA") for seed in SEEDS),
        *("michel-curve-translator-3", "michel-oracle-translator-3"),
        *("michel-curve-translator-4", "michel-curve-translator-5"),
    ]
    assert "--score-data cola/train.tsv --score-limit 2000" in full["michel-curve-CoLA-4"]
    assert "--data cola/dev.tsv --metric matthews" in full["michel-curve-CoLA-4"]
    assert "--score-data val.de,val.en" in full["michel-curve-translator-4"]
    laptop = _words(CURVES, _setting(tmp_path, full=False))
    assert [name for name in laptop if "michel" in name] == ["michel-curve-SST-2-3", "michel-curve-translator-3"]
    ready = _words(CURVES, _setting(tmp_path, "ready"))
    assert [*ready] == ["michel-curve-SST-2-3", "michel-curve-translator-3", "michel-oracle-translator-3"]
    assert "--score-data" not in ready["michel-curve-translator-3"], "one file is split in two"
    types = _words(TYPES, _setting(tmp_path, full=False))
    assert [*types] == ["train-translator-3", *(f"michel-{kind}-translator-3" for kind in michel_curves.TYPES)]
    assert all(f"--only {kind} " in types[f"michel-{kind}-translator-3"] for kind in michel_curves.TYPES)
    epochs = _words(TRAINING, _setting(tmp_path))["michel-epochs-5"]
    assert "--checkpoints 1,2,3,5,10,12 " in epochs
    assert f"--over {tmp_path}/runs/train-translator-5/checkpoints" in epochs
    assert "--checkpoints 1" not in _words(TRAINING, _setting(tmp_path, "ready"))["michel-epochs-3"]
    assert (
        "--scores " + str(tmp_path / "runs/michel-score-SST-2-3/scores.json")
        in _words(SPEED, _setting(tmp_path))["michel-half-SST-2-3"]
    )


# -- planted curves --------------------------------------------------------------------------------------------------------


def _plant(setting: Setting, name: str, kind: str, data: Mapping[str, Any]) -> None:
    folder = Path(setting.run(name))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{kind}.json").write_text(json.dumps(data))


def _curve(
    by: str, shape: Shape, model: Comparison = ACCURACY, p: float = 0.0001, step: int = 5, reach: float = 0.0001
) -> dict[str, Any]:
    """A curve; where less than all is left, the test says p. `reach` is that of the intervals, of the whole model's score."""
    points = []
    for share in range(0, 101, step):
        after = model.before * shape(share)
        difference = after - model.before
        ends = (difference - reach * model.before, difference + reach * model.before)
        one = replace(model, after=after, difference=difference, low=ends[0], high=ends[1])
        one = replace(one, p=p if one.worse else 1.0)
        result = {"metric": model.metric, "value": after, "low": after + ends[0], "high": after + ends[1], "n": model.n}
        place = {"removed": share * OF // 100, "plan": Plan().to_json()}
        points.append({**place, "result": result, "comparison": one.to_json()})
    return {"by": by, "of": OF, "signature": "", "points": points}


def _until(share: int, then: float = 0.5) -> Shape:
    """Nothing is lost up to a share; without any head there is never much left."""
    return lambda removed: 1.0 if removed <= share else then if removed < 100 else 0.1


def _curves(folder: Path, name: str, *models: Sequence[dict[str, Any]], material: str = "trained") -> list[Claim]:
    setting = _setting(folder, material)
    for seed, model in zip(SEEDS, models, strict=False):
        _plant(setting, f"michel-curve-{name}-{seed}", "curves", {"sets": "", "curves": list(model)})
    return CURVES.claims(RunDocuments(setting))


@pytest.mark.parametrize(
    ("shape", "p", "verdict", "share"),
    [
        (_until(60), 0.0001, CONFIRMED, 60),
        (_until(55), 0.0001, DIFFERS, 55),  # the share that the paper names, and nothing below it
        (_until(40), 0.0001, DIFFERS, 40),
        (_until(40), 0.04, UNTOLD, 40),  # twelve points at 0.04 are nothing by Holm
        (_until(0), 0.0001, NOT_CONFIRMED, 0),
        (_until(45, 0.985), 0.0001, CONFIRMED, 95),  # a loss that a test finds and nobody sees
        (
            lambda share: 0.9 if share == 10 else 1.0 - (share == 100),
            0.0001,
            UNTOLD,
            5,
        ),  # a dip ends it, and is over by 60 %
    ],
)
def test_the_share_that_goes_without_visible_loss(
    tmp_path: Path, shape: Shape, p: float, verdict: str, share: int
) -> None:
    claim = _curves(tmp_path, "SST-2", [_curve("taylor", shape, p=p), _curve("random", _until(15))])[0]
    assert claim.verdict == verdict
    assert claim.paper.startswith("Figure 6")
    assert "60 % of its heads on SST-2" in claim.paper
    assert "up to 60 %" in claim.rule
    assert f"more is left up to {share} % of the heads" in claim.here
    assert "accuracy 0.800" in claim.here
    assert "15 % by random" in claim.here


def test_it_is_the_mean_of_the_models_that_counts(tmp_path: Path) -> None:
    up, down = _curve("taylor", lambda share: 1.1 - share / 1000), _curve("taylor", _until(0, 0.95))
    (claim,) = _curves(tmp_path, "SST-2", [down])
    assert claim.verdict == NOT_CONFIRMED
    (claim,) = _curves(tmp_path, "SST-2", [down], [up])
    assert claim.verdict == UNTOLD, "two models have no interval"
    assert "2 models" in claim.here
    (sheet,) = CURVES.sheets(RunDocuments(_setting(tmp_path)))
    assert sheet.columns == ("heads removed", "taylor")
    assert sheet.rows[0] == ("0 %", "0.800 (0.800 to 0.800)")
    assert sheet.rows[3] == ("30 %", "0.808 (0.760 to 0.856)")
    assert [row[0] for row in sheet.rows] == [f"{share} %" for share in range(0, 100, 10)]


def test_a_share_is_free_only_if_the_interval_over_models_says_so(tmp_path: Path) -> None:
    def model(rest: float, reach: float = 0.0001) -> list[dict[str, Any]]:
        return [_curve("taylor", _until(0, rest), p=0.9, reach=reach)]

    (claim,) = _curves(tmp_path, "SST-2", model(0.99), model(0.985), model(0.995))
    assert claim.verdict == UNTOLD, "0.99 with a reach of 4.303 x 0.005 / sqrt(3) is not above 0.98"
    assert "99.0 [97.8, 100.2] % without 60 %" in claim.here
    (claim,) = _curves(tmp_path, "SST-2", model(0.99), model(0.991), model(0.989))
    assert claim.verdict == CONFIRMED
    (claim,) = _curves(tmp_path, "SST-2", *(model(rest, 0.02) for rest in (0.99, 0.991, 0.989)))
    assert claim.verdict == UNTOLD, "all models agree, and on other examples all might lose 2 % more"
    assert "99.0 [97.0, 101.0] % without 60 %" in claim.here
    (claim,) = _curves(tmp_path / "one", "SST-2", model(0.99, 0.02))
    assert claim.verdict == UNTOLD, "2 % more may be lost"


def test_each_model_counts_by_its_own_score_and_one_without_a_score_not_at_all(tmp_path: Path) -> None:
    strong, weak = (replace(ACCURACY, before=before) for before in (0.9, 0.1))
    shapes = (_until(60), _until(60, 0.9), _until(0, 0.7))
    models = [[_curve("taylor", shape, one)] for shape, one in zip(shapes, (strong, strong, weak), strict=True)]
    (claim,) = _curves(tmp_path, "SST-2", *models)
    assert "up to 0 % of the heads, and 90.0 [" in claim.here  # (100 + 100 + 70) / 3
    for none in (0.0, -0.1):
        models = [[_curve("taylor", _until(60), one)] for one in (strong, replace(ACCURACY, before=none), strong)]
        (claim,) = _curves(tmp_path, "SST-2", *models)
        assert "up to 60 % of the heads, and 100.0 % without 60 %" in claim.here
        (claim,) = _curves(tmp_path, "SST-2", *[models[1]] * 3)
        assert (claim.verdict, "do nothing" in claim.here) == (UNTOLD, True)


def test_most_models_have_to_show_the_loss(tmp_path: Path) -> None:
    sure, unsure = (_curve("taylor", _until(20), p=p) for p in (0.0001, 0.9))
    assert _curves(tmp_path, "SST-2", [sure], [unsure])[0].verdict == UNTOLD
    assert _curves(tmp_path, "SST-2", [sure], [unsure], [sure])[0].verdict == DIFFERS


def test_a_loss_is_beyond_chance_if_it_is_one_and_after_holm() -> None:
    made = _curve("taylor", lambda share: 1.1 if share == 20 else 0.9, step=20)
    for point, p in zip(made["points"][1:], (0.0001, 0.02, 0.012, 0.03, 0.9), strict=True):
        point["comparison"]["p"] = p
    line = line_of(CurvesDocument.from_json({"curves": [made]}).curves[0])
    # in order 0.0001, 0.012, 0.02, 0.03, 0.9: times 5, 4, 3, 2, 1 the first two are below 0.05, and the first is a gain
    assert line.lost == {60}
    assert line.shown == 40


def test_what_no_share_can_be_taken_of_is_not_told(tmp_path: Path) -> None:
    def about(shape: Shape, model: Comparison) -> Claim:
        made = _curve("taylor", shape, model, reach=0.005)
        return _curves(tmp_path, "translator", [made], material="translators")[0]

    assert about(_until(20), BLEU).verdict == CONFIRMED
    assert about(_until(15), BLEU).verdict == about(_until(10), BLEU).verdict == DIFFERS
    by_loss = about(lambda share: 1 + share / 100, LOSS)
    assert by_loss.verdict == UNTOLD
    assert "+0.400 [+0.390, +0.410] loss without 20 %" in by_loss.here
    assert about(lambda share: 1.0, BLEU).verdict == UNTOLD, "heads that do nothing at all"
    assert about(lambda share: 1.0, replace(BLEU, before=0.0)).verdict == UNTOLD


def test_other_tasks_are_held_against_the_least_of_the_four(tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    other = Material("m", "", "encoder", (Corpus("hotels", "classification", "a.tsv", "b.tsv"),))
    for share, verdict in ((40, CONFIRMED), (30, DIFFERS)):
        _plant(setting, "michel-curve-hotels-3", "curves", {"curves": [_curve("taylor", _until(share))]})
        (claim,) = CURVES.claims(RunDocuments(replace(setting, material=other)))
        assert (claim.verdict, claim.paper[:15]) == (verdict, "Figures 3 and 6")


@pytest.mark.parametrize(
    ("tasks", "verdict"),
    [
        (((0.05, 0.06, 0.05), (0.05,), (0.06,)), CONFIRMED),
        (((0.001, -0.001, 0.0), (0.0,), (0.001,)), UNTOLD),  # as good is not better
        (((-0.05, -0.06, -0.05), (-0.05,), (-0.06, -0.06)), NOT_CONFIRMED),
        (((-0.05, -0.06, -0.05), (0.05, 0.06, 0.07)), DIFFERS),
        (((0.2, -0.2, 0.0), (0.2,), (-0.2,)), UNTOLD),
        (((0.05, 0.05, 0.05), (0.05, 0.05, 0.05)), UNTOLD),  # six models, and two tasks
        (
            ((0.1, 0.1, 0.1), (0.0,), (0.0,)),
            UNTOLD,
        ),  # a task counts once, whatever its models: 3.3 with a reach of 14.3
    ],
)
def test_whether_the_order_of_importance_keeps_more_than_that_of_single_ablations(
    tmp_path: Path, tasks: Sequence[Sequence[float]], verdict: str
) -> None:
    """`tasks` is how much more the order of importance keeps, by task and model."""

    def slope(more: float) -> Shape:
        return lambda share: 1 - share / 200 + (more if share < 100 else 0.0)

    for name, gains in zip(("SST-2", "CoLA", "translator"), tasks, strict=False):
        models = [[_curve("taylor", slope(gain)), _curve("ablation", slope(0))] for gain in gains]
        claims = _curves(tmp_path, name, *models)
    assert claims[-1].verdict == verdict
    mean = 100 * float(np.mean([np.mean(gains) for gains in tasks]))
    assert f"{mean:+.1f}".replace("-", "−").replace("+0.0", "0.0") in claims[-1].here


def test_a_real_curve_is_read_as_it_is_written() -> None:
    right = ((1, 0, 1, 1), (1, 0, 0, 1), (0, 0, 0, 0))  # of four examples: label, prediction, loss
    rows = [np.array([[1.0, one, 0.5] for one in every]) for every in right]
    results = [Result(metric("accuracy"), every) for every in rows]
    plans = [Plan(), Plan.of("0:0"), Plan.of("0:0-2")]
    points = [curves.Point(plan, one, compare(results[0], one)) for plan, one in zip(plans, results, strict=True)]
    written = CurvesDocument(curves=(curves.curve_of(curves.Curve("taylor", 3, tuple(points))),)).to_json()
    line = line_of(CurvesDocument.from_json(json.loads(json.dumps(written))).curves[0])
    assert [*line.points] == [33, 100]
    assert (line.at(40).after, line.at(99).after, line.whole.before) == (0.5, 0.0, 0.75)


# -- Figure 4 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoder", "cross", "decoder", "verdicts"),
    [
        (_until(80), _until(60, 0.1), _until(80), (CONFIRMED, CONFIRMED)),
        (_until(80), _until(50, 0.1), _until(70), (DIFFERS, DIFFERS)),  # it falls before; one of the two keeps enough
        (_until(70, 0.7), _until(60, 0.6), _until(70, 0.7), (DIFFERS, NOT_CONFIRMED)),  # lowest, but not below half
        (_until(60, 0.1), _until(90), _until(80), (NOT_CONFIRMED, DIFFERS)),
    ],
)
def test_which_attention_collapses(
    tmp_path: Path, encoder: Shape, cross: Shape, decoder: Shape, verdicts: tuple[str, str]
) -> None:
    setting = _setting(tmp_path)
    for several, seed in enumerate(SEEDS, 1):
        for kind, shape in zip(michel_curves.TYPES, (encoder, cross, decoder), strict=True):
            assert several > 1 or TYPES.claims(RunDocuments(setting)) == [], "a type is missing"
            made = _curve("taylor", shape, BLEU, step=10)
            _plant(setting, f"michel-{kind}-translator-{seed}", "curves", {"curves": [made]})
        claims = TYPES.claims(RunDocuments(setting))
        assert tuple(claim.verdict for claim in claims) == (verdicts if several == 3 else (UNTOLD, UNTOLD))
        ours = "1 translator, n = 500): bleu 36.0" if several == 1 else f"{several} translators, n = 500): bleu 36.0"
        assert all(f"captions ({ours}" in claim.here for claim in claims)
    (sheet,) = TYPES.sheets(RunDocuments(setting))
    assert sheet.rows[8][0] == "80 %"
    left = [f"{36 * shape(80):.1f}" for shape in (encoder, cross, decoder)]
    assert sheet.rows[8][1:] == tuple(f"{one} ({one} to {one})" for one in left)
    assert sheet.rows[-1][1:] == ("about 30", "collapsed", "about 30")


def test_translators_that_agree_on_few_sentences_say_nothing_about_others(tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    for reach, verdicts in ((0.0001, [CONFIRMED, CONFIRMED]), (0.7, [UNTOLD, UNTOLD])):
        for seed in SEEDS:
            for kind in michel_curves.TYPES:
                made = _curve("taylor", _until(60, 0.1 if kind == "cross" else 1.0), BLEU, step=10, reach=reach)
                _plant(setting, f"michel-{kind}-translator-{seed}", "curves", {"curves": [made]})
        claims = TYPES.claims(RunDocuments(setting))
        assert [claim.verdict for claim in claims] == verdicts
        assert all("for other seeds and other examples" in claim.rule for claim in claims)


@pytest.mark.parametrize(
    ("rests", "others"),
    [((0.3, 0.45, 0.6), 1.0), ((0.1, 0.15, 0.2), 0.22)],  # below half on average, and lower: neither by an interval
)
def test_a_collapse_on_average_is_not_enough(tmp_path: Path, rests: Sequence[float], others: float) -> None:
    setting = _setting(tmp_path)
    for seed, rest in zip(SEEDS, rests, strict=True):
        for kind in michel_curves.TYPES:
            made = _curve("taylor", _until(60, rest if kind == "cross" else others), BLEU)
            _plant(setting, f"michel-{kind}-translator-{seed}", "curves", {"curves": [made]})
    assert TYPES.claims(RunDocuments(setting))[0].verdict == UNTOLD


def test_translators_that_disagree_or_are_measured_by_loss_say_nothing(tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    for seed, shape in zip(SEEDS, (_until(80), _until(70), _until(80)), strict=True):
        for kind in michel_curves.TYPES:
            made = _curve("taylor", _until(60, 0.1) if kind == "cross" else shape, BLEU)
            _plant(setting, f"michel-{kind}-translator-{seed}", "curves", {"curves": [made]})
    assert [claim.verdict for claim in TYPES.claims(RunDocuments(setting))] == [CONFIRMED, UNTOLD]
    for seed in SEEDS:
        for kind in michel_curves.TYPES:
            made = _curve("taylor", lambda share: 1 + share / 100, LOSS, reach=0.005)
            _plant(setting, f"michel-{kind}-translator-{seed}", "curves", {"curves": [made]})
    claims = TYPES.claims(RunDocuments(setting))
    assert [claim.verdict for claim in claims] == [UNTOLD, UNTOLD]
    assert claims[0].here.count("+1.60") == 3


# -- Figure 5 --------------------------------------------------------------------------------------------------------------


def _trainings(
    folder: Path, *kept: Mapping[int, float], model: Comparison = BLEU, reach: float = 0.0001
) -> list[Claim]:
    """Trainings by what each epoch keeps without 40 % of the heads; without 20 %, all of it but for a tenth of what goes."""
    setting = _setting(folder)
    for seed, epochs in zip(SEEDS, kept, strict=False):
        stages = []
        for place, (epoch, left) in enumerate(epochs.items(), 1):
            whole = replace(model, before=IWSLT[epoch]) if model is BLEU else model
            shape: Shape = lambda share, left=left: {0: 1.0, 20: 0.9 + 0.1 * left}.get(share, left)  # noqa: E731
            made = _curve("taylor", shape, whole, step=20, reach=reach)
            stages.append({"name": f"epoch-{epoch:02d}", "place": place, "curves": [made]})
        _plant(setting, f"michel-epochs-{seed}", "over", {"sets": "", "checkpoints": stages, "skipped": []})
    return TRAINING.claims(RunDocuments(setting))


@pytest.mark.parametrize(
    ("early", "late", "verdicts"),
    [
        ((0.5, 0.55, 0.6), (0.9, 0.9, 0.92), (CONFIRMED, CONFIRMED)),
        ((0.9, 0.9, 0.9), (0.80, 0.82, 0.81), (DIFFERS, NOT_CONFIRMED)),
        ((0.5, 0.5, 0.5), (0.84, 0.88, 0.89), (UNTOLD, CONFIRMED)),  # 87 with a reach of 6.6 may be less than 85
        ((0.5, 0.5, 0.5), (0.83, 0.87, 0.83), (UNTOLD, CONFIRMED)),  # 84.3 with a reach of 5.7 may be more
        ((0.1, 0.1, 0.1), (-0.7, -0.6, -0.65), (NOT_CONFIRMED, NOT_CONFIRMED)),  # without 20 %: 83 to 84 %
        ((0.5, 0.8, 0.6), (0.6, 0.7, 0.65), (DIFFERS, UNTOLD)),  # without 20 %: 96 %, enough
        ((0.5, 0.5), (0.9, 0.9), (UNTOLD, UNTOLD)),  # two trainings
    ],
)
def test_when_heads_become_unimportant(
    tmp_path: Path, early: Sequence[float], late: Sequence[float], verdicts: tuple[str, str]
) -> None:
    trainings = [{1: one, 3: one, 10: other, 20: other} for one, other in zip(early, late, strict=True)]
    claims = _trainings(tmp_path, *trainings)
    assert tuple(claim.verdict for claim in claims) == verdicts
    assert f"{100 * np.mean(late):.0f} ({100 * min(late):.0f} to {100 * max(late):.0f}) % of the bleu" in claims[0].here
    assert "after epochs 10 and 20" in claims[0].here
    (sheet,) = TRAINING.sheets(RunDocuments(_setting(tmp_path)))
    assert [row[:2] for row in sheet.rows] == [(str(epoch), f"{IWSLT[epoch]:.1f}") for epoch in (1, 3, 10, 20)]
    assert sheet.rows[0][4] == f"{100 * np.mean(early):.0f} ({100 * min(early):.0f} to {100 * max(early):.0f}) %"


def test_trainings_that_agree_on_few_sentences_say_nothing_about_others(tmp_path: Path) -> None:
    trainings = [{1: 0.5, 10: 0.9}] * 3
    assert [claim.verdict for claim in _trainings(tmp_path, *trainings)] == [CONFIRMED, CONFIRMED]
    wide = _trainings(tmp_path, *trainings, reach=0.3)  # 0.4 more, and the root of 0.3 is 0.42
    assert [claim.verdict for claim in wide] == [UNTOLD, UNTOLD]
    assert "for other seeds and other examples" in wide[0].here
    assert "for other seeds and other examples" in wide[1].here


def test_the_tenth_epoch_is_among_the_later_ones(tmp_path: Path) -> None:
    assert _trainings(tmp_path, *[{1: 0.5, 10: 0.6, 20: 0.9}] * 3)[0].verdict == DIFFERS
    assert _trainings(tmp_path, *[{1: 0.5, 5: 0.6, 10: 0.9, 20: 0.9}] * 3)[0].verdict == CONFIRMED


def test_trainings_of_which_nothing_can_be_said(tmp_path: Path) -> None:
    short = _trainings(tmp_path, {1: 0.5, 5: 0.9})
    assert [claim.verdict for claim in short] == [UNTOLD, UNTOLD]
    assert "5 epochs only" in short[0].here
    by_loss = _trainings(tmp_path, {1: 1.1, 10: 1.5}, model=LOSS, reach=0.005)
    assert [claim.verdict for claim in by_loss] == [UNTOLD, UNTOLD]
    assert re.search(r"\+0\.200 \[.*\] loss after epoch 1 and \+1\.000 \[.*\] loss after epoch 10", by_loss[0].here)
    (sheet,) = TRAINING.sheets(RunDocuments(_setting(tmp_path)))
    assert sheet.rows[1][2:5] == ("2.000", "+0.100", "+1.000")


# -- Table 4 ---------------------------------------------------------------------------------------------------------------


def _speeds(folder: Path, ratios: Mapping[int, tuple[float, float, float]]) -> list[Claim]:
    setting = _setting(folder)
    rows = []
    for batch, (low, ratio, high) in ratios.items():
        for model, speed, ends in (
            ("whole", 10.0 * batch, (1.0, 1.0, 1.0)),
            ("half", 12.0 * batch, (ratio, low, high)),
        ):
            rows.append(
                Speed(model, batch, 128, speed, speed, speed, *ends, 100, 1.0 if model == "whole" else 1.21, None, None)
            )
    models = tuple(Subject(name, "BertModel", 1, 4) for name in ("whole", "half"))
    made = Bench("a GPU", "float32", False, "2.0", 9, models, tuple(rows))
    _plant(setting, "michel-bench-SST-2-3", "bench", made.to_json())
    return SPEED.claims(RunDocuments(setting))


SMALL, LARGE = {1: (0.98, 1.0, 1.05), 4: (1.0, 1.02, 1.05)}, {16: (1.1, 1.15, 1.2), 64: (1.19, 1.2, 1.21)}


@pytest.mark.parametrize(
    ("changed", "verdicts"),
    [
        ({}, (CONFIRMED, CONFIRMED)),
        ({1: (1.12, 1.2, 1.3), 64: (1.3, 1.4, 1.5)}, (DIFFERS, DIFFERS)),
        ({1: (1.0, 1.2, 1.3), 16: (0.9, 1.0, 1.1)}, (UNTOLD, DIFFERS)),
        ({4: (0.7, 0.8, 0.85), 16: (0.9, 1.0, 1.1), 64: (0.8, 0.9, 1.0)}, (NOT_CONFIRMED, NOT_CONFIRMED)),
        ({16: (0.9, 1.1, 1.2), 64: (0.9, 1.2, 1.3)}, (CONFIRMED, UNTOLD)),
        ({1: (0.85, 1.0, 1.05)}, (UNTOLD, CONFIRMED)),  # a median alone confirms nothing
    ],
)
def test_how_much_faster_half_of_the_heads_are(
    tmp_path: Path, changed: Mapping[int, tuple[float, float, float]], verdicts: tuple[str, str]
) -> None:
    claims = _speeds(tmp_path, {**SMALL, **LARGE, **changed})
    assert tuple(claim.verdict for claim in claims) == verdicts
    assert claims[0].here.startswith("SST-2, on a GPU, float32, length 128")


def test_speeds_beside_the_published_ones(tmp_path: Path) -> None:
    assert len(_speeds(tmp_path, {**SMALL, 16: LARGE[16]})) == 1, "batch 64 did not fit"
    (sheet,) = SPEED.sheets(RunDocuments(_setting(tmp_path)))
    assert [row[0] for row in sheet.rows] == ["1", "4", "16"]
    assert sheet.rows[2] == ("16", "114.0", "134.0", "+17.5 %", "160", "192", "+15.0 % (+10.0 to +20.0)", "1.21×")


# -- all of them -----------------------------------------------------------------------------------------------------------


def test_nothing_is_said_of_runs_that_are_not_there_and_broken_ones_are_named(tmp_path: Path) -> None:
    found = RunDocuments(_setting(tmp_path))
    for experiment in michel_curves.EXPERIMENTS:
        assert experiment.claims(found) == experiment.sheets(found) == []
    curve = {"by": "taylor", "of": OF, "points": [{"removed": 0}]}
    for experiment, name, kind, wrong in (
        (CURVES, "michel-curve-SST-2-3", "curves", {}),
        (CURVES, "michel-curve-SST-2-3", "curves", {"curves": [curve]}),
        (TYPES, "michel-cross-translator-3", "curves", {"curves": [{**curve, "of": None}]}),
        (TRAINING, "michel-epochs-3", "over", {"checkpoints": [{"name": "final", "curves": [curve]}]}),
        (SPEED, "michel-bench-SST-2-3", "bench", {"models": [{"name": "whole"}], "rows": []}),
    ):
        _plant(found.setting, name, kind, wrong)
        with says(BadRun, about=f"{name}/{kind}.json"):
            experiment.claims(found)
