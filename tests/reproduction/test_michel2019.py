"""Michel et al. 2019 again, single heads: planted documents in which the answer is known, and commands that parse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from conftest import says
from scipy.special import betaincinv

from headcount.cli.app import app
from headcount.errors import BadRun
from headcount.formatting import MINUS
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
from headcount.reproduction.michel2019 import heads as michel_heads
from headcount.reproduction.michel2019 import one_head
from headcount.reproduction.models import layer_of, together
from headcount.stats.results import Comparison

HEADS, ONE_HEAD, TRANSFER = michel_heads.EXPERIMENTS
MOVIES = Corpus(
    "SST-2", "classification", "sst/train.tsv", "sst/dev.tsv", (("tweets", "t.tsv"), ("hotel news", "n.tsv"))
)
GRAMMAR = Corpus("CoLA", "classification", "cola/train.tsv", "cola/dev.tsv", flags=("--metric", "matthews"))
FILES = Pairs("captions", "train.de,train.en", "val.de,val.en", "test.de,test.en", "coco.de,coco.en")
COLUMNS = ("--text", "source", "--target", "target", "--metric", "loss")
TABLE = Pairs("sentences", "train.tsv", "val.tsv", "test.tsv", "other.tsv", COLUMNS, ready="translator")
MATERIALS = {
    "trained": Material("trained", "Trained here.", "encoder", (MOVIES, GRAMMAR), FILES),
    "ready": Material("ready", "There already.", None, (MOVIES._replace(ready="classifier"),), TABLE),
    "classifiers": Material("classifiers", "No pairs.", "encoder", (GRAMMAR,)),
    "translators": Material("translators", "No corpora.", None, (), FILES._replace(other=None)),
    "nothing": Material("nothing", "Nothing.", None),
}


def _setting(folder: Path, material: str = "ready", full: bool = False) -> Setting:
    return Setting(MATERIALS[material], folder, full, (3, 4, 5), ("--device", "cpu", "--quiet"))


# -- commands ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("material", MATERIALS)
@pytest.mark.parametrize("experiment", michel_heads.EXPERIMENTS, ids=lambda one: one.name)
def test_every_step_is_a_command_and_comes_after_what_it_needs(
    experiment: Experiment, material: str, full: bool, tmp_path: Path
) -> None:
    group = typer.main.get_command(app)
    setting = _setting(tmp_path, material, full)
    done: list[str] = []
    for step in experiment.steps(setting):
        verb, *words = step.words
        with group.commands[verb].make_context(verb, list(words)) as context:  # type: ignore[attr-defined]
            given = context.params
        assert set(step.after) <= set(done)
        assert step.name not in done
        assert str(given["output" if verb != "train" else "run"]) == setting.run(step.name)
        assert max(map(words.count, ("--metric", "--limit", "--text", "--target"))) <= 1
        assert words[-3:] == ["--device", "cpu", "--quiet"]
        done.append(step.name)
    assert len(done) <= 40


def _names(experiment: Experiment, setting: Setting) -> list[str]:
    return [step.name for step in experiment.steps(setting)]


def test_the_models_of_each_experiment(tmp_path: Path) -> None:
    full, laptop = _setting(tmp_path, "trained", True), _setting(tmp_path, "trained")
    assert _names(HEADS, laptop) == [
        *("train-SST-2-3", "michel-heads-SST-2-3", "train-translator-3", "michel-heads-translator-3")
    ]
    assert [n for n in _names(HEADS, full) if "michel" in n] == [
        f"michel-heads-{model}" for model in ("SST-2-3", "CoLA-3", "translator-3")
    ]
    three = [f"SST-2-{seed}" for seed in (3, 4, 5)]
    assert [n for n in _names(ONE_HEAD, full) if "michel" in n] == [
        f"michel-one-head-{model}" for model in (*three, "CoLA-3", *(f"translator-{seed}" for seed in (3, 4, 5)))
    ]
    moved = [*(f"{model}-{data}" for model in three for data in ("tweets", "hotel-news")), "translator-3-elsewhere"]
    assert [n for n in _names(TRANSFER, full) if "michel" in n] == [
        f"michel-transfer-{name}{ending}" for name in moved for ending in ("", "-loss")
    ]
    assert all("CoLA" not in name for name in _names(TRANSFER, full)), "there is no other data of it"
    assert [n for n in _names(TRANSFER, _setting(tmp_path, "ready", True)) if "translator" in n] == [
        "michel-transfer-translator-elsewhere"  # measured by the loss anyway
    ]
    assert all(one.steps(_setting(tmp_path, "nothing", full=True)) == [] for one in michel_heads.EXPERIMENTS)


def test_steps_of_one_name_are_one_command_in_all_experiments(tmp_path: Path) -> None:
    seen: dict[str, tuple[str, ...]] = {}
    for experiment in michel_heads.EXPERIMENTS:
        for step in experiment.steps(_setting(tmp_path, "trained", True)):
            assert seen.setdefault(step.name, step.words) == step.words


def test_the_other_side_of_parallel_text_and_the_loss_are_asked_for(tmp_path: Path) -> None:
    words = {step.name: " ".join(step.words) for step in TRANSFER.steps(_setting(tmp_path, "trained", True))}
    both = words["michel-transfer-translator-3-elsewhere"]
    assert "--data test.de --target test.en --other-data coco.de --other-target coco.en" in both
    assert "--metric" not in both
    assert "--metric loss" in words["michel-transfer-translator-3-elsewhere-loss"]
    words = {step.name: " ".join(step.words) for step in ONE_HEAD.steps(_setting(tmp_path, "trained", True))}
    assert "--select-data val.de,val.en" in words["michel-one-head-translator-4"]
    assert "--select-data sst/train.tsv --all-but-one --select-limit 5000" in words["michel-one-head-SST-2-5"]


# -- documents -----------------------------------------------------------------------------------------------------------


def _compared(
    points: float, half: float = 0.5, p: float = 0.5, metric: str = "bleu", p_holm: float = 1.0
) -> dict[str, Any]:
    """A difference in points with an interval of so many on either side, as commands write it."""
    scale = {"accuracy": 100.0}.get(metric, 1.0)
    before, one, reach = 40 / scale, points / scale, half / scale
    numbers = {"before": before, "after": before + one, "difference": one, "low": one - reach, "high": one + reach}
    how = {"level": 0.95, "p": p, "test": "randomization", "n": 500, "higher_is_better": metric != "loss"}
    return Comparison(metric=metric, **numbers, **how, points=scale, p_holm=p_holm, p_bh=p_holm).to_json()


def _result(metric: str, value: float = 40.0) -> dict[str, Any]:
    return {
        "metric": metric,
        "value": value,
        "low": value - 1,
        "high": value + 1,
        "level": 0.95,
        "n": 500,
        "signature": "",
    }


def _plant(setting: Setting, name: str, kind: str, document: Mapping[str, Any]) -> None:
    folder = Path(setting.run(name))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{kind}.json").write_text(json.dumps(document))


def _one(experiment: Experiment, setting: Setting, beginning: str) -> Claim:
    (claim,) = [one for one in experiment.claims(RunDocuments(setting)) if one.paper.startswith(beginning)]
    return claim


def test_nothing_is_claimed_or_shown_before_anything_was_run(tmp_path: Path) -> None:
    for experiment in michel_heads.EXPERIMENTS:
        for material in MATERIALS:
            found = RunDocuments(_setting(tmp_path, material, full=True))
            assert experiment.claims(found) == []
            assert experiment.sheets(found) == []


# -- one head less -------------------------------------------------------------------------------------------------------

Rows = Sequence[tuple[float, float, float]]  # points, half the interval, p


def _ablation(sites: Mapping[str, Rows], metric: str = "bleu") -> dict[str, Any]:
    listed = [
        {"closed": f"{site}:{head}", **_compared(*row, metric=metric)}
        for site, rows in sites.items()
        for head, row in enumerate(rows)
    ]
    return {"base": _result(metric), "test": "randomization", "ablations": listed}


HARMLESS, WIDE, WORSE, BETTER = (0.0, 0.4, 0.8), (0.0, 1.5, 0.8), (-2.0, 0.4, 1e-5), (2.0, 0.4, 1e-5)


@pytest.mark.parametrize(
    ("heads", "metric", "verdict"),
    [
        ([HARMLESS] * 5 + [WORSE] * 3, "accuracy", CONFIRMED),
        ([HARMLESS] * 4 + [WORSE] * 4, "accuracy", NOT_CONFIRMED),
        ([HARMLESS] * 4 + [WIDE] * 4, "accuracy", UNTOLD),
        ([HARMLESS] * 5 + [WIDE] * 3, "accuracy", CONFIRMED),
        ([HARMLESS] * 8, "loss", UNTOLD),
    ],
)
def test_most_heads_can_go_if_intervals_say_so(heads: Rows, metric: str, verdict: str, tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    _plant(setting, "michel-heads-SST-2", "ablation", _ablation({"0": heads[:4], "1": heads[4:]}, metric))
    (claim,) = HEADS.claims(RunDocuments(setting))
    assert claim.verdict == verdict
    assert f"{sum(head[2] < 0.01 for head in heads)} of 8 heads at p < 0.01" in claim.here


def _translator(encoder: Rows, metric: str = "bleu") -> dict[str, Any]:
    """A translator whose decoder is worse without any of its heads, which no claim about the encoder may count."""
    return _ablation({"encoder.0": encoder, "decoder.0.self": [WORSE] * 30, "decoder.0.cross": [WORSE] * 30}, metric)


@pytest.mark.parametrize(
    ("better", "worse", "metric", "verdict"),
    [
        (10, 10, "bleu", CONFIRMED),  # 27 to 73 %
        (3, 3, "bleu", UNTOLD),  # 12 to 88 %: that nothing speaks against a half is not enough
        (12, 0, "bleu", UNTOLD),  # 1 - 0.025 ** (1 / 12) of 1 may be worse: 26 %
        (13, 0, "bleu", DIFFERS),  # 75.3 to 100 %
        (0, 13, "bleu", NOT_CONFIRMED),
        (0, 12, "bleu", UNTOLD),
        (0, 0, "bleu", UNTOLD),
        (10, 10, "loss", UNTOLD),
    ],
)
def test_half_of_the_significant_heads_are_better_gone(
    better: int, worse: int, metric: str, verdict: str, tmp_path: Path
) -> None:
    setting = _setting(tmp_path)
    heads = [BETTER] * better + [WORSE] * worse + [HARMLESS] * 20
    _plant(setting, "michel-heads-translator", "ablation", _translator(heads, metric))
    claim = _one(HEADS, setting, "Table 1: about half")
    assert claim.verdict == verdict
    counted = worse if metric == "loss" else better  # of a loss, less is better
    assert (
        f"of {len(heads)} heads of the encoder, {better + worse} at p < 0.01, {counted} of them better gone"
        in claim.here
    )


def test_a_better_head_that_no_correction_leaves_is_not_enough(tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    heads = [(2.0, 0.4, 0.009), (-2.0, 0.4, 0.009)] * 10 + [HARMLESS] * 100
    _plant(setting, "michel-heads-translator", "ablation", _translator(heads))
    claim = _one(HEADS, setting, "Table 1: about half")
    assert (claim.verdict, "after Benjamini-Hochberg 0 better" in claim.here) == (UNTOLD, True)


def test_the_sheets_count_the_heads_and_have_their_table_beside_ours(tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    heads = [(1.25, 0.4, 0.9), (-0.5, 0.4, 0.03), (-3.0, 0.4, 0.009), (0.25, 0.4, 0.035)]
    _plant(setting, "michel-heads-translator", "ablation", _translator(heads))
    counts, table = HEADS.sheets(RunDocuments(setting))
    assert {len(row) for row in counts.rows} == {len(counts.columns)}
    ours = dict(zip(counts.columns, counts.rows[1], strict=True))
    want = {"heads": "4, encoder", "p < 0.01": "1", "of these better gone": "0", "p ≤ 0.05": "3"}
    want |= {"Benjamini-Hochberg": "3", "Holm": "1"}  # 0.035 x 4 / 3 is below 0.05, and 0.03 x 3 is not
    assert want.items() <= ours.items()
    assert ours["largest loss"].startswith(f"{MINUS}3.0")
    assert counts.rows[2][2] == "64, all"
    assert table.rows[0][4:] == (f"{MINUS}3.00", f"{MINUS}0.12", "+1.25")  # the middle of -0.5 and 0.25
    assert [row[4:] for row in table.rows[1:]] == [("–",) * 3] * 5
    for row, theirs in zip(table.rows, michel_heads.TABLE_1, strict=True):
        numbers = [float(cell.replace(MINUS, "-")) for cell in row[1:4]]
        assert numbers == pytest.approx([min(theirs), np.median(theirs), max(theirs)], abs=0.0051)


# -- one head alone ------------------------------------------------------------------------------------------------------


def _all_but_one(rows: Mapping[str, dict[str, Any]], same: float | Sequence[float] = 0.0) -> dict[str, Any]:
    """Attentions with one head; `same` is the difference on the examples it was chosen on, in the metric's own unit."""
    metric = next(iter(rows.values()))["metric"]
    each = same if isinstance(same, Sequence) else [same] * len(rows)
    listed = [
        {"site": site, "head": 0, "chosen_on": 30 + gap, **row}
        for (site, row), gap in zip(rows.items(), each, strict=True)
    ]
    whole = {"base": _result(metric), "select": _result(metric, 30.0)}
    return {**whole, "test": "randomization", "sets": "chosen on val", "attentions": listed}


@pytest.mark.parametrize(
    ("layers", "verdict"),
    [
        ([(-0.9, 0.5, 1), (0.1, 1.9, 1)], CONFIRMED),
        ([(-1.0, 0.5, 1), (0.1, 1.9, 1)], UNTOLD),  # more than theirs, and maybe not
        ([(-0.9, 0.5, 1), (-0.5, 1.6, 1)], UNTOLD),  # it might be two points
        ([(-3.0, 0.5, 0.001), (0.0, 0.5, 1), (0.0, 0.5, 1)], DIFFERS),
        ([(-3.0, 0.5, 0.001), (-3.0, 0.5, 0.001), (0.0, 0.5, 1)], NOT_CONFIRMED),
        ([(-3.0, 0.5, 0.2), (0.0, 0.5, 1)], UNTOLD),  # Holm does not leave it
    ],
)
def test_one_head_is_enough_for_a_classifier(layers: Rows, verdict: str, tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    rows = {str(n): _compared(points, half, p_holm=p, metric="accuracy") for n, (points, half, p) in enumerate(layers)}
    _plant(setting, "michel-one-head-SST-2", "all-but-one", _all_but_one(rows))
    (claim,) = ONE_HEAD.claims(RunDocuments(setting))
    assert claim.verdict == verdict
    assert f"layer {1 + int(np.argmin([layer[0] for layer in layers]))}," in claim.here


def _attentions(
    metric: str = "bleu", default: tuple[float, float] = (0.0, 0.5), **special: tuple[float, float, float]
) -> Any:
    """Three layers of each type, all alike but for some: points, half the interval, Holm's p."""
    sites = [f"{name}{n}" for name in ("encoder", "decoder", "cross") for n in range(3)]
    names = {s: f"decoder.{s[-1]}.{'cross' if 'cross' in s else 'self'}" for s in sites} | {
        s: f"encoder.{s[-1]}" for s in sites if "encoder" in s
    }
    made = {}
    for site in sites:
        points, half, p = special.get(site, (*default, 1.0))
        made[names[site]] = _compared(points, half, metric=metric, p_holm=p)
    return made


@pytest.mark.parametrize(
    ("special", "verdict"),
    [
        ({"cross2": (-15.0, 1.0, 0.001)}, CONFIRMED),
        ({"cross2": (-8.0, 1.0, 0.001)}, DIFFERS),  # of 40, less than a quarter
        ({"cross1": (-15.0, 1.0, 0.001)}, DIFFERS),
        ({"cross2": (-15.0, 1.0, 0.001), "cross1": (-18.0, 1.0, 0.001)}, DIFFERS),
        ({"cross2": (-15.0, 1.0, 0.001), "cross1": (-16.0, 1.0, 0.001)}, UNTOLD),  # which loses most is not clear
        ({"cross2": (-16.0, 1.0, 0.001), "cross1": (-15.0, 1.0, 0.001)}, UNTOLD),
        ({"cross2": (-10.5, 1.0, 0.001)}, UNTOLD),  # a quarter, or not
        ({"encoder0": (-15.0, 1.0, 0.001)}, NOT_CONFIRMED),
        (
            {"encoder0": (-15.0, 1.0, 0.001), "cross2": (-9.0, 9.0, 0.2)},
            NOT_CONFIRMED,
        ),  # whatever the last one is worth
        ({}, NOT_CONFIRMED),
        ({"cross2": (-9.0, 9.0, 0.2)}, UNTOLD),
    ],
)
def test_the_last_cross_attention_collapses(special: dict[str, Any], verdict: str, tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    _plant(setting, "michel-one-head-translator", "all-but-one", _all_but_one(_attentions(**special)))
    assert _one(ONE_HEAD, setting, "Table 5: with one head").verdict == verdict


@pytest.mark.parametrize(
    ("default", "metric", "verdict"),
    [
        ((-0.4, 0.5), "bleu", CONFIRMED),
        ((-0.6, 0.5), "bleu", UNTOLD),
        ((-1.6, 0.5), "bleu", NOT_CONFIRMED),
        ((0.0, 0.1), "loss", UNTOLD),
    ],
)
def test_most_attentions_of_a_translator_need_one_head(
    default: tuple[float, float], metric: str, verdict: str, tmp_path: Path
) -> None:
    setting = _setting(tmp_path)
    _plant(setting, "michel-one-head-translator", "all-but-one", _all_but_one(_attentions(metric, default)))
    assert _one(ONE_HEAD, setting, "Table 5: 15 of the 18").verdict == verdict


@pytest.mark.parametrize(
    ("same", "metric", "verdict"),
    [
        ((0.5, 0.6, 0.4), "bleu", CONFIRMED),
        ((-0.5, -0.6, -0.4), "bleu", NOT_CONFIRMED),
        ((0.5, 0.5), "bleu", UNTOLD),  # two trainings, whatever their 18 attentions say
        ((0.9, 0.1, 0.2), "bleu", UNTOLD),  # all 27 attentions alike, and 0.4 with a reach of 1.1 over trainings
        ((-0.5, -0.6, -0.4), "loss", CONFIRMED),
    ],
)
def test_choosing_on_the_same_examples_flatters(
    same: tuple[float, ...], metric: str, verdict: str, tmp_path: Path
) -> None:
    setting = _setting(tmp_path, "trained", full=True)
    for seed, gap in zip((3, 4, 5), same, strict=False):
        document = _all_but_one(_attentions(metric, (0.0, 0.05)), [gap - 0.1, gap, gap + 0.1] * 3)
        _plant(setting, f"michel-one-head-translator-{seed}", "all-but-one", document)
    claim = _one(ONE_HEAD, setting, "Tables 2 and 5")
    assert claim.verdict == verdict
    for seed, gap in zip((3, 4, 5), same, strict=False):
        document = _all_but_one(_attentions(metric), [gap - 0.1, gap, gap + 0.1] * 3)
        document["select"] |= {"n": document["base"]["n"] // 4}  # on a quarter of the sentences twice as wide
        _plant(setting, f"michel-one-head-translator-{seed}", "all-but-one", document)
    wide = _one(ONE_HEAD, setting, "Tables 2 and 5")
    assert wide.verdict == UNTOLD, "the root of 0.5 and twice 0.5 squared is 1.1"
    assert f"of {9 * len(same)} attentions" in claim.here
    assert "in 16 of 18" in claim.paper


def test_the_tables_of_one_head_stand_side_by_side(tmp_path: Path) -> None:
    setting = _setting(tmp_path, "trained", full=True)
    for seed, points in ((3, -0.3), (5, 0.7)):  # the second of three is not there yet
        rows = {str(n): _compared(points, metric="accuracy") for n in range(14)}
        _plant(setting, f"michel-one-head-SST-2-{seed}", "all-but-one", _all_but_one(rows, 0.0125))
    _plant(
        setting, "michel-one-head-translator-4", "all-but-one", _all_but_one(_attentions(cross1=(-4.0, 0.5, 1.0)), 0.5)
    )
    ours, captions = ONE_HEAD.sheets(RunDocuments(setting))
    assert ours.columns[3:] == tuple(
        f"SST-2, seed {seed}: {which}" for seed in (3, 5) for which in ("same (train)", "other (dev)")
    )
    below, above = f"{MINUS}0.3 [{MINUS}0.8, +0.2]", "+0.7 [+0.2, +1.2]"
    assert ours.rows[8] == ("9", f"{MINUS}0.96", f"{MINUS}0.96", "+1.25", below, "+1.25", above)
    assert [row[0] for row in ours.rows] == [str(n + 1) for n in range(14)]
    assert {row[1:3] for row in ours.rows[12:]} == {("–", "–")}
    by_name = {row[0]: row[1:] for row in captions.rows}
    assert by_name["6, cross"] == (f"{MINUS}13.56", f"{MINUS}18.89", "–", "–")
    assert by_name["2, cross"] == ("+0.06", "+0.09", "+0.50", f"{MINUS}4.0 [{MINUS}4.5, {MINUS}3.5]")
    assert by_name["1, decoder self"][:2] == (f"{MINUS}0.03", "+0.03")
    assert len(by_name) == 18


def test_models_that_disagree_are_told_together(tmp_path: Path) -> None:
    setting = _setting(tmp_path, "trained", full=True)
    for seed, special in ((3, {"cross2": (-15.0, 1.0, 0.001)}), (4, {"encoder0": (-15.0, 1.0, 0.001)})):
        _plant(setting, f"michel-one-head-translator-{seed}", "all-but-one", _all_but_one(_attentions(**special)))
    claim = _one(ONE_HEAD, setting, "Table 5: with one head")
    assert claim.verdict == DIFFERS
    assert all(f"translator, seed {seed}" in claim.here for seed in (3, 4))


# -- other data ----------------------------------------------------------------------------------------------------------


def _transfer(
    value: float, reach: float = 0.2, ceiling: float = 0.9, metric: str = "accuracy", room: float = 0.05
) -> dict[str, Any]:
    one = {
        "name": "pearson",
        "value": value,
        "low": value - reach,
        "high": value + reach,
        "level": 0.95,
        "p": 0.1,
        "n": 72,
    }
    sides = {"one": _result(metric), "other": _result(metric)}
    ends = {"ceiling": ceiling, "ceiling_low": ceiling - room, "ceiling_high": ceiling + room}
    damage = {"units": ["0:0"], "damage": {"one": [0.1], "other": [0.2]}}
    return {**sides, "pearson": one, "spearman": {**one, "name": "spearman"}, **ends, **damage}


def _older(document: dict[str, Any]) -> dict[str, Any]:
    """As a version wrote it that had no interval of the ceiling."""
    return {name: value for name, value in document.items() if name not in ("ceiling_low", "ceiling_high")}


@pytest.mark.parametrize(
    ("document", "verdict"),
    [
        (_transfer(0.6), CONFIRMED),
        (_transfer(0.3, ceiling=0.6), CONFIRMED),  # no room for 0.68
        (_transfer(0.3), DIFFERS),  # there was
        (_transfer(0.1), NOT_CONFIRMED),  # there was room for more
        (_transfer(0.1, ceiling=0.3), UNTOLD),
        (_transfer(0.5, reach=0.6), UNTOLD),
        (_transfer(-0.3, ceiling=0.1), NOT_CONFIRMED),
        (_transfer(0.3, ceiling=0.8, room=0.15), UNTOLD),  # there may have been room for 0.68, or not
        (_transfer(0.3, ceiling=0.6, room=0.15), UNTOLD),
        (_transfer(0.1, ceiling=0.8, room=0.15), UNTOLD),
        (_transfer(0.6, ceiling=0.8, room=0.15), CONFIRMED),  # it is not below
        (_older(_transfer(0.3)), UNTOLD),
        (_older(_transfer(0.6)), CONFIRMED),
    ],
)
def test_the_same_heads_matter_elsewhere(document: dict[str, Any], verdict: str, tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    _plant(setting, "michel-transfer-SST-2-tweets", "transfer", document)
    (claim,) = TRANSFER.claims(RunDocuments(setting))
    assert claim.verdict == verdict
    assert "0.68" in claim.paper
    assert "the loss" not in claim.paper


def test_metrics_and_kinds_of_models_are_told_apart(tmp_path: Path) -> None:
    setting = _setting(tmp_path, "trained", full=True)
    for seed, value in ((3, 0.25), (4, 0.1), (5, 0.3)):
        _plant(setting, f"michel-transfer-SST-2-{seed}-tweets", "transfer", _transfer(value, ceiling=0.4))
    _plant(setting, "michel-transfer-SST-2-3-hotel-news-loss", "transfer", _transfer(0.05, ceiling=0.4, metric="loss"))
    _plant(setting, "michel-transfer-translator-3-elsewhere", "transfer", _transfer(0.3, metric="bleu"))
    accuracy, loss, bleu = TRANSFER.claims(RunDocuments(setting))
    assert (accuracy.verdict, loss.verdict, bleu.verdict) == (CONFIRMED, UNTOLD, DIFFERS)
    assert "0.10 to 0.30 in 3 models, the interval above 0 in 2" in accuracy.here
    assert "hotel news, loss" in loss.here
    assert "0.56" in bleu.paper
    assert "0.30 [0.10, 0.50]; noise leaves room for 0.90 [0.85, 0.95]" in bleu.here
    assert "noise leaves room for 0.40 to 0.40 (with intervals from 0.35 to 0.45)" in accuracy.here
    (sheet,) = TRANSFER.sheets(RunDocuments(setting))
    assert [row[4] for row in sheet.rows[:2]] == ["0.68", "0.56"]
    assert len(sheet.rows) == 2 + 5
    assert {len(row) for row in sheet.rows} == {len(sheet.columns)}


# -- small parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("some", range(5))
@pytest.mark.parametrize("others", range(5))
def test_the_interval_of_a_share_is_the_exact_one(some: int, others: int) -> None:
    """Clopper and Pearson's bounds are quantiles of beta distributions."""
    low = betaincinv(some, others + 1, 0.025) if some else 0.0
    high = betaincinv(some + 1, others, 0.975) if others else 1.0
    assert michel_heads.share_interval(some, some + others) == pytest.approx((low, high), rel=1e-9)


def test_data_sets_are_told_together_whatever_the_number_of_their_models(tmp_path: Path) -> None:
    setting = _setting(tmp_path, "trained", full=True)
    for seed in (3, 4, 5):
        _plant(setting, f"michel-transfer-SST-2-{seed}-tweets", "transfer", _transfer(0.3, ceiling=0.4))
    _plant(setting, "michel-transfer-SST-2-3-hotel-news", "transfer", _transfer(0.05, ceiling=0.4))
    (claim,) = TRANSFER.claims(RunDocuments(setting))
    assert claim.verdict == UNTOLD, "one of two data sets, though three of four runs"


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        ([CONFIRMED], CONFIRMED),
        ([CONFIRMED, CONFIRMED, UNTOLD], CONFIRMED),
        ([CONFIRMED, UNTOLD], UNTOLD),
        ([CONFIRMED, CONFIRMED, NOT_CONFIRMED], DIFFERS),
        ([NOT_CONFIRMED, NOT_CONFIRMED], NOT_CONFIRMED),
        ([DIFFERS, UNTOLD, UNTOLD], UNTOLD),
        ([UNTOLD, UNTOLD], UNTOLD),
    ],
)
def test_a_verdict_of_several_models_is_what_most_say_and_none_denies(verdicts: list[str], verdict: str) -> None:
    assert together(verdicts) == verdict


def test_layers_are_read_off_the_names_of_sites() -> None:
    assert [layer_of(site) for site in ("0", "encoder.11", "decoder.2.cross")] == [0, 11, 2]
    with pytest.raises(ValueError, match="no layer"):
        layer_of("encoder")


def test_the_published_tables_are_whole() -> None:
    assert [len(row) for row in michel_heads.TABLE_1] == [16] * 6
    for table in (one_head.TABLE_2, one_head.TABLE_5):
        assert {kind: len(row) for kind, row in table.items()} == dict.fromkeys(("encoder", "cross", "decoder"), 6)
    assert len(one_head.TABLE_3) == len(one_head.TABLE_6) == 12


@pytest.mark.parametrize(
    ("experiment", "name", "kind", "document", "missing"),
    [
        (HEADS, "michel-heads-SST-2", "ablation", _ablation({"0": [WORSE]}), ("base", "ablations")),
        (
            ONE_HEAD,
            "michel-one-head-translator",
            "all-but-one",
            _all_but_one(_attentions()),
            ("base", "select", "attentions"),
        ),
        (
            TRANSFER,
            "michel-transfer-SST-2-tweets",
            "transfer",
            _transfer(0.3),
            ("one", "pearson", "spearman", "ceiling"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_document_is_said_in_one_sentence(
    experiment: Experiment, name: str, kind: str, document: dict[str, Any], missing: tuple[str, ...], tmp_path: Path
) -> None:
    setting = _setting(tmp_path)
    for key in missing:
        for value in ({}, [], None, "x"):
            _plant(setting, name, kind, {**document, key: value})
            for read in (experiment.claims, experiment.sheets):
                with says(BadRun, about=f"{name}/{kind}.json"):
                    read(RunDocuments(setting))
        _plant(setting, name, kind, {k: v for k, v in document.items() if k != key})
        with says(BadRun, about=kind):
            experiment.claims(RunDocuments(setting))
