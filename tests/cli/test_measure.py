"""The commands that measure, as a user runs them: on a tiny model and hand-made files, killed and resumed."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import processes
from helpers import run_folders as documents
from helpers.same import alike, close
from helpers.small_models import WORDS, word_tokenizer
from helpers.small_models import ran as _run
from helpers.small_models import ran_json as _json
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    MarianConfig,
    MarianMTModel,
)
from typer.testing import CliRunner

import headcount as hc
from headcount.cli.app import app, main
from headcount.data.seen_examples import marks as seen_marks
from headcount.data.seen_examples import read_seen
from headcount.documents.reading import write
from headcount.documents.results import FillDocument
from headcount.reporting import page
from headcount.runs import Run, read


def _sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier, a translator, and data for both."""
    folder = tmp_path_factory.mktemp("place")
    torch.manual_seed(0)
    sizes = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**sizes, intermediate_size=24, max_position_embeddings=16, pad_token_id=0)
    classifier = BertForSequenceClassification(config)
    sides = {
        f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads", "ffn_dim")
    }
    special = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": 2}
    small = MarianConfig(vocab_size=24, d_model=16, max_position_embeddings=64, **sides, **special)
    translator = MarianMTModel(small)
    for model, name in ((classifier, "classifier"), (translator, "translator")):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.4) if parameter.dim() > 1 else None
        model.save_pretrained(folder / name)
        word_tokenizer(WORDS).save_pretrained(folder / name)
    for name, count, seed in (("dev", 48, 0), ("train", 40, 1), ("other", 40, 2)):
        lines = [f"{text}\t{n % 2}" for n, text in enumerate(_sentences(count, seed))]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    for name, seed in (("val.de", 3), ("val.en", 4), ("train.de", 5), ("train.en", 6)):
        (folder / name).write_text("\n".join(_sentences(10, seed)) + "\n")
    return folder


def _task(place: Path, name: str, **options: Any) -> hc.data.Task:
    return hc.task("classification", place / f"{name}.tsv", tokenizer=str(place / "classifier"), **options)


def _model(place: Path) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(place / "classifier").eval()


def test_evaluate_says_what_a_loop_over_the_file_says(place: Path, tmp_path: Path) -> None:
    found = _json("evaluate", place / "classifier", "--data", place / "dev.tsv", "-o", tmp_path / "run")
    model, task = _model(place), _task(place, "dev")
    right = 0
    for number in range(task.size):
        with torch.no_grad():
            batch = task.collate([number])
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        right += int(logits.argmax()) == number % 2
    assert found["value"] == right / task.size
    assert 0.2 < found["value"] < 0.8
    assert found["n"] == 48
    assert "data:" in found["signature"]


def test_score_is_the_library_s_score(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = _json("score", place / "classifier", "--data", place / "train.tsv", "--limit", 30, "--seed", 3, "-o", out)
    want = hc.score(_model(place), _task(place, "train", limit=30, seed=3))
    got = hc.documents.Scores.from_json(found)
    assert got.units == want.units
    assert close(got.values, want.values)
    assert [row["n"] for row in found["stability"]] == [2, 3, 7, 15]
    assert read(out).finished
    samples = read(out).read("samples")["samples"]
    assert close(samples.mean(0) / want.raw.max(), want.raw / want.raw.max())


@pytest.mark.parametrize("by", ["magnitude", "random"])
def test_criteria_without_data_need_none(place: Path, tmp_path: Path, by: str) -> None:
    found = _json("score", place / "classifier", "--by", by, "-o", tmp_path / "run")
    assert sum(len(site["raw"]) for site in found["sites"].values()) == 8


def test_ablate_each_tests_every_head_and_marks_what_is_significant(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    asked = ("ablate", place / "classifier", "--data", place / "dev.tsv", "--each", "-o", out)
    found = _json(*asked)
    assert [row["closed"] for row in found["ablations"]] == [f"{layer}:{head}" for layer in (0, 1) for head in range(4)]
    model, task = _model(place), _task(place, "dev")
    for row in found["ablations"]:
        with hc.masked(model, row["closed"]):
            after = hc.evaluate(model, task)
        assert row["difference"] == pytest.approx(after.value - found["base"]["value"], abs=1e-12)
        assert row["p_holm"] >= row["p_bh"] >= row["p"] > 0
    shown = _run(*asked)
    assert shown.exit_code == 0
    assert "8 tested (randomization, n=48)" in shown.output
    again = _run(*asked, "--test", "mcnemar")  # other tests of the same values need no new run
    assert "mcnemar" in again.output


def test_all_but_one_reports_on_examples_it_did_not_choose_on(place: Path, tmp_path: Path) -> None:
    shared = ("ablate", place / "classifier", "--data", place / "dev.tsv", "--all-but-one")
    halves = _json(*shared, "-o", tmp_path / "halves")
    chosen, reported = _task(place, "dev").split(0.5, 0.5)
    assert f"chosen on {chosen.size} examples of" in halves["sets"]
    assert f"reported on {reported.size} others of it" in halves["sets"]
    assert halves["base"]["n"] == reported.size == 48 - chosen.size
    other = _json(*shared, "--select-data", place / "train.tsv", "-o", tmp_path / "other")
    assert other["base"]["n"] == 48
    model, select = _model(place), _task(place, "train")
    assert other["select"] == hc.evaluate(model, select).to_json()
    for row in other["attentions"]:
        values = []
        for head in range(4):
            with hc.masked(model, [f"{row['site']}:{n}" for n in range(4) if n != head]):
                values.append(hc.evaluate(model, select).value)
        assert row["head"] == int(np.argmax(values))
        assert row["chosen_on"] == max(values)


def test_transfer_correlates_two_ablations(place: Path, tmp_path: Path) -> None:
    found = _json(
        *("transfer", place / "classifier", "--data", place / "dev.tsv"),
        *("--other-data", place / "other.tsv", "--metric", "loss", "-o", tmp_path / "run"),
    )
    damage = found["damage"]
    assert found["pearson"]["value"] == pytest.approx(np.corrcoef(damage["one"], damage["other"])[0, 1])
    assert found["pearson"]["low"] < found["pearson"]["value"] < found["pearson"]["high"]
    tasks = (_task(place, "dev").with_metric("loss"), _task(place, "other").with_metric("loss"))
    # a correlation of damages, which are differences of losses: small numbers from larger ones, rounded in float32
    assert found["ceiling"] == pytest.approx(hc.evaluation.transfer(_model(place), tasks, seed=0).ceiling, abs=1e-4)
    assert 0 <= found["ceiling_low"] <= found["ceiling"] <= found["ceiling_high"] <= 1


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ({"ceiling": 0.5, "ceiling_low": 0.25, "ceiling_high": 0.75}, "a correlation of 0.50 [0.25, 0.75]."),
        ({"ceiling": 0.5}, "a correlation of 0.50."),  # as older versions wrote it
        ({}, ""),
    ],
)
def test_a_page_says_what_noise_leaves_room_for(ends: dict[str, float], told: str, tmp_path: Path) -> None:
    names = [str(unit) for unit in documents.units(documents.CLASSIFIER)]
    document = {**documents.transfer(names), **ends}
    folder = documents.folder(tmp_path / "run", "transfer", {"transfer": document})
    text = page.report([folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert ("noise would leave room" in text) == bool(ends)
    assert told in text


def test_curve_follows_several_orders_and_never_scores_on_what_it_reports(place: Path, tmp_path: Path) -> None:
    found = _json(
        *("curve", place / "classifier", "--data", place / "dev.tsv", "--score-data", place / "train.tsv"),
        *("--by", "taylor,ablation,random", "--random-seeds", 2, "--step", "25%", "-o", tmp_path / "run"),
    )
    assert [one["by"] for one in found["curves"]] == ["taylor", "ablation", "random", "random"]
    assert [point["removed"] for point in found["curves"][0]["points"]] == [0, 2, 4, 6, 8]
    model, report = _model(place), _task(place, "dev")
    scores = hc.score(model, _task(place, "train"))
    for point in found["curves"][0]["points"]:
        plan = hc.Plan.from_json(point["plan"])
        assert plan.units == hc.plan(scores, point["removed"]).units
        with hc.masked(model, plan):
            assert point["result"]["value"] == pytest.approx(hc.evaluate(model, report).value)
    assert "reported on 48 of" in found["sets"]


def test_curve_takes_scores_from_a_file_and_cuts_for_real(place: Path, tmp_path: Path) -> None:
    _run("score", place / "classifier", "--data", place / "train.tsv", "-o", tmp_path / "scores")
    file = tmp_path / "scores" / "scores.json"
    shared = ("curve", place / "classifier", "--data", place / "dev.tsv", "--scores", file, "--step", 3)
    closed = _json(*shared, "-o", tmp_path / "closed")
    cut = _json(*shared, "--really-cut", "-o", tmp_path / "cut")
    values = [[point["result"]["value"] for point in one["curves"][0]["points"]] for one in (closed, cut)]
    assert values[0] == pytest.approx(values[1])


def test_translation_is_ablated_by_decoding(place: Path, tmp_path: Path) -> None:
    shared = ("--data", place / "val.de", "--target", place / "val.en", "--max-new-tokens", 12)
    found = _json("ablate", place / "translator", *shared, "--metric", "chrf", "-o", tmp_path / "run")
    assert len(found["ablations"]) == 12  # two layers of two heads: encoder, decoder, cross
    model = hc.load(place / "translator")
    pair = (place / "val.de", place / "val.en")
    task = hc.task("translation", pair, tokenizer=str(place / "translator"), metric="chrf", max_new_tokens=12)
    for row in found["ablations"][::5]:
        with hc.masked(model, row["closed"]):
            assert row["after"] == pytest.approx(hc.evaluate(model, task).value)
            assert row["unfinished"] == hc.evaluate(model, task).unfinished
    select = f"{place / 'train.de'},{place / 'train.en'}"
    one = _json("ablate", place / "translator", *shared, "--all-but-one", "--select-data", select, "-o", tmp_path / "o")
    assert len(one["attentions"]) == 6


def test_translations_that_the_limit_ended_are_counted_and_said(place: Path, tmp_path: Path) -> None:
    shared = ("--data", place / "val.de", "--target", place / "val.en", "--max-new-tokens", 3)
    told = _run("evaluate", place / "translator", *shared, "-o", tmp_path / "whole").output
    found = read(tmp_path / "whole").read_json("result")
    model = hc.load(place / "translator")
    pair = (place / "val.de", place / "val.en")
    task = hc.task("translation", pair, tokenizer=str(place / "translator"), max_new_tokens=3)
    ended = 0
    for number in range(task.size):
        ids = task.collate([number])["input_ids"]
        made = model.generate(input_ids=ids, max_new_tokens=3, do_sample=False, forced_eos_token_id=None)[0, 1:]
        ended += model.generation_config.eos_token_id in made
    assert found["unfinished"] == 10 - ended > 0
    assert f"note: the length limit ended {10 - ended} of 10 translations\n" in told
    assert "|beams:1|limit:3|" in told
    by = ("--by", "magnitude", "--step", "50%", "--limit", 10, "-o", tmp_path / "curve")
    told = _run("curve", place / "translator", *shared, *by).output
    points = read(tmp_path / "curve").read_json("curves")["curves"][0]["points"]
    counts = [point["result"]["unfinished"] for point in points]
    half = task.split(0.5, 0.5, seed=0)[1]
    for point, count in zip(points, counts, strict=True):
        plan = hc.Plan.from_json(point["plan"])
        with hc.masked(model, plan):
            assert count == hc.evaluate(model, half).unfinished
    assert (f"ended {counts[0]} of {half.size} translations of the whole model\n" in told) == bool(counts[0])
    worst = max(counts)
    without = f"ended {worst} of {half.size} translations without {points[counts.index(worst)]['removed']} of 12 units"
    assert (without in told) == (counts.index(worst) > 0)


def test_another_question_in_the_same_folder_is_refused(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    _run("score", place / "classifier", "--data", place / "train.tsv", "-o", out)
    with pytest.raises(hc.errors.BadRun, match="by"):
        _run("score", place / "classifier", "--data", place / "train.tsv", "--by", "fisher", "-o", out)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("evaluate", "classifier", "--data", "nothing.tsv"), "nothing.tsv"),
        (("evaluate", "classifier", "--data", "dev.tsv", "--task", "sorting"), "kind of task"),
        (("evaluate", "classifier", "--data", "dev.tsv", "--dtype", "int8"), "dtype"),
        (("score", "classifier", "--data", "dev.tsv", "--by", "luck"), "score by"),
        (("score", "classifier", "--data", "dev.tsv", "--granularity", "word"), "Granularities"),
        (("curve", "classifier", "--data", "dev.tsv", "--step", "200%"), "step"),
        (("curve", "classifier", "--data", "dev.tsv", "--only", "cross"), "cross"),
        (("ablate", "classifier", "--data", "dev.tsv", "--units", "words"), "Units"),
    ],
)
def test_bad_input_gets_one_sentence_and_no_traceback(
    place: Path, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    command, model, *rest = arguments
    rest = [str(place / word) if word.endswith(".tsv") else word for word in rest]
    with pytest.raises(hc.HeadcountError, match=sentence) as caught:
        _run(command, place / model, *rest, "-o", tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [], "a command that failed at once leaves nothing behind"


def test_missing_data_is_a_usage_error(place: Path) -> None:
    done = CliRunner().invoke(app, ["score", str(place / "classifier")])
    assert done.exit_code == 2
    assert "--data" in done.output


def test_every_command_on_data_has_the_same_flags_and_examples() -> None:
    for command in ("evaluate", "score", "ablate", "transfer", "curve"):
        shown = CliRunner().invoke(app, [command, "--help"]).output
        for flag in ("--data", "--task", "--text", "--label", "--limit", "--seed", "--batch-size", "--quiet", "--json"):
            assert flag in shown, (command, flag)
        assert "Examples" in shown


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_comes_to_the_same_end_without_doing_work_twice(
    place: Path, tmp_path: Path, kills: int
) -> None:
    asked = ["ablate", place / "classifier", "--data", place / "dev.tsv", "--batch-size", 1, "--units", "heads"]
    _json(*asked, "-o", tmp_path / "calm")
    draw, kept = random.Random(0), dict[str, int]()
    folder = tmp_path / "killed"
    for _ in range(kills):
        already = len(list(folder.glob("*.npz")))
        some = already + draw.randint(1, 2)
        process = processes.command([*asked, "-o", folder, "--json"], tmp_path / "said")
        # kill it once it has done a little more than before, in the middle of whatever it is doing then
        processes.wait_until(lambda: len(list(folder.glob("*.npz"))) >= some, process)  # noqa: B023
        time.sleep(draw.random() * 0.01)
        process.kill()
        process.join()
        now = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
        assert {name: now[name] for name in kept} == kept, "a finished piece was written again"
        kept = now
        if (folder / "ablation.json").exists():
            break
    _json(*asked, "-o", folder)
    assert {name: (folder / name).stat().st_mtime_ns for name in kept} == kept, "a finished piece was written again"
    calm, killed = read(tmp_path / "calm"), read(folder)
    assert killed.finished
    assert calm.pieces == killed.pieces
    for name in calm.pieces:
        assert close(calm.read(name)["rows"], killed.read(name)["rows"])
    assert alike(calm.read_json("ablation"), killed.read_json("ablation"))


def test_a_measurement_that_is_told_to_end_says_where_its_work_is(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM is what `kill` and schedulers send; the same command then goes on with what was done."""
    asked = ["ablate", place / "classifier", "--data", place / "dev.tsv", "--units", "layers", "-o", tmp_path / "run"]
    monkeypatch.setattr(sys, "argv", ["headcount", *map(str, asked), "--batch-size", "1"])
    with monkeypatch.context() as patch:
        patch.setattr(Run, "piece", lambda run, name, compute: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit, match="143"):
            main()
    assert f"stopped; {tmp_path / 'run'} keeps what is done" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main()
    assert read(tmp_path / "run").finished


def test_scores_are_computed_again_after_every_step_if_asked(place: Path, tmp_path: Path) -> None:
    asked = (
        "curve",
        place / "classifier",
        "--data",
        place / "dev.tsv",
        "--score-data",
        place / "train.tsv",
        "--step",
        2,
    )
    found = _json(*asked, "--recompute", "-o", tmp_path / "again")["curves"][0]
    model, select = _model(place), _task(place, "train")
    plan = hc.Plan()
    for point in found["points"][1:]:
        with hc.masked(model, plan):
            scores = hc.score(model, select)
        left = [unit for unit in scores.order() if unit not in plan]
        plan = hc.Plan(plan.units | set(left[:2]))
        assert hc.Plan.from_json(point["plan"]).units == plan.units


def test_what_people_see_has_the_numbers_of_the_json(place: Path, tmp_path: Path) -> None:
    asked = ("curve", place / "classifier", "--data", place / "dev.tsv", "--by", "taylor,random", "--step", "50%")
    made, shown = _json(*asked, "-o", tmp_path / "run"), _run(*asked, "-o", tmp_path / "run").output
    drawn = [one["points"][1]["result"]["value"] for one in made["curves"] if one["by"] == "random"]
    row = next(line for line in shown.splitlines() if line.strip().startswith("4 (50%)"))
    assert row.split()[2] == f"{made['curves'][0]['points'][1]['result']['value']:.4f}"
    assert row.endswith(f"{np.mean(drawn):.4f} [{min(drawn):.4f}, {max(drawn):.4f}]")
    assert made["sets"] in shown
    kept = hc.documents.Scores.read(tmp_path / "run" / "scores-taylor.json")
    assert hc.plan(kept, 4).units == hc.Plan.from_json(made["curves"][0]["points"][1]["plan"]).units
    asked = ("score", place / "classifier", "--data", place / "train.tsv", "-o", tmp_path / "scores")
    made, shown = _json(*asked), _run(*asked).output
    row = next(line for line in shown.splitlines() if line.startswith("1 "))
    assert row.split()[1:] == [f"{value:.3f}" for value in made["sites"]["1"]["score"]]
    assert f"{made['stability'][0]['correlation']:.3f} [" in shown
    asked = ("score", place / "classifier", "--data", place / "train.tsv", "--by", "entropy", "-o", tmp_path / "signs")
    made, shown = _json(*asked), _run(*asked).output
    row = next(line for line in shown.splitlines() if line.startswith("1 "))
    assert row.split()[1:] == [f"{value:.3f}" for value in made["sites"]["1"]["score"]]
    assert all(cell.startswith("-") for cell in row.split()[1:]), "entropies are counted against a head"
    asked = ("transfer", place / "classifier", "--data", place / "dev.tsv", "--other-data", place / "other.tsv")
    shown = _run(*asked, "--metric", "loss", "-o", tmp_path / "transfer").output
    assert "damage over 8 units: pearson" in shown


def test_from_scores_and_from_a_curve_to_a_smaller_model(place: Path, tmp_path: Path) -> None:
    asked = ("--data", place / "train.tsv", "-o", tmp_path / "scores")
    _run("score", place / "classifier", *asked)
    scores = tmp_path / "scores" / "scores.json"
    _run("cut", place / "classifier", "--scores", scores, "--remove", "50%", "--least", 1, "-o", tmp_path / "smaller")
    want = hc.plan(hc.documents.Scores.read(scores), "50%", least=1)
    assert hc.removed(hc.load(tmp_path / "smaller")).units == want.units
    asked = ("--data", place / "dev.tsv", "--scores", scores, "--step", 2, "-o", tmp_path / "curve")
    _run("curve", place / "classifier", *asked)
    plan = tmp_path / "curve" / "plan-taylor-00004.json"
    _run("cut", place / "classifier", "--plan", plan, "-o", tmp_path / "fourth")
    assert hc.removed(hc.load(tmp_path / "fourth")).units == hc.plan(hc.documents.Scores.read(scores), 4).units
    done = CliRunner().invoke(
        app, ["cut", str(place / "classifier"), "--scores", str(scores), "-o", str(tmp_path / "x")]
    )
    assert done.exit_code == 2
    assert "go together" in done.output


def test_control_c_says_where_the_work_is_and_the_same_command_goes_on(place: Path, tmp_path: Path) -> None:
    asked = ["ablate", place / "classifier", "--data", place / "dev.tsv", "--batch-size", 1, "-o", tmp_path / "run"]
    child = processes.command(asked, tmp_path / "said")
    processes.wait_until(lambda: bool(list((tmp_path / "run").glob("*.npz"))), child)
    os.kill(child.pid, signal.SIGINT)
    child.join()
    assert child.exitcode == 130
    said = (tmp_path / "said.err").read_text()
    assert said.count("\n") == 1
    assert f"{tmp_path / 'run'} keeps what is done: the same command goes on" in said
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("*.npz")}
    _json(*asked)
    now = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("*.npz")}
    assert {name: now[name] for name in kept} == kept


def test_choosing_and_reporting_on_the_same_examples_is_refused(place: Path, tmp_path: Path) -> None:
    same = ("--data", place / "dev.tsv")
    for asked in (("ablate", "--all-but-one", "--select-data"), ("curve", "--score-data")):
        with pytest.raises(hc.errors.BadData, match=r"All 48 examples .* are also among those to report on"):
            _run(asked[0], place / "classifier", *same, *asked[1:], place / "dev.tsv", "-o", tmp_path / "run")
    _run("score", place / "classifier", *same, "-o", tmp_path / "scores")
    scores = tmp_path / "scores" / "scores.json"
    with pytest.raises(hc.errors.BadPlan, match="the very examples"):
        _run("curve", place / "classifier", *same, "--metric", "loss", "--scores", scores, "-o", tmp_path / "run")
    more = tmp_path / "more.tsv"
    lines = (place / "dev.tsv").read_text().splitlines()
    more.write_text("\n".join([*lines[:6], *(place / "other.tsv").read_text().splitlines()[1:]]) + "\n")
    found = _json("curve", place / "classifier", "--data", more, "--scores", scores, "-o", tmp_path / "more")
    assert "; 5 examples of" in found["sets"]
    assert "that they were computed on were left out" in found["sets"]
    assert found["curves"][0]["points"][0]["result"]["n"] == 40
    few = tmp_path / "few.tsv"
    few.write_text("\n".join(lines[:6]) + "\n")
    with pytest.raises(hc.errors.BadPlan, match="computed on all 5 examples"):
        _run("curve", place / "classifier", "--data", few, "--scores", scores, "-o", tmp_path / "few")
    mixed = tmp_path / "mixed.tsv"
    mixed.write_text("\n".join([*lines[:6], *(place / "train.tsv").read_text().splitlines()[1:]]) + "\n")
    found = _json("curve", place / "classifier", *same, "--score-data", mixed, "--step", 4, "-o", tmp_path / "run")
    assert "chosen on 40 examples of" in found["sets"]
    assert "5 examples of" in found["sets"]
    assert "to score on were left out, being among those to report on" in found["sets"]


# -- what stands in for masked units -----------------------------------------------------------------------------------


def test_ablate_with_a_fill_is_the_library_s(place: Path, tmp_path: Path) -> None:
    asked = ("ablate", place / "classifier", "--data", place / "dev.tsv", "--units", "attentions", "--metric", "loss")
    more = ("--fill", "mean", "--reference-data", place / "train.tsv")
    found = _json(*asked, *more, "-o", tmp_path / "run")
    reference = _task(place, "train", metric="loss")
    fill = hc.interventions.Fill("mean", reference)
    want = hc.ablate(_model(place), _task(place, "dev", metric="loss"), "attentions", fill=fill)
    assert close(np.array([row["after"] for row in found["ablations"]]), want.values)
    assert found["fill"] == {
        "kind": "mean",
        "reference": reference.name,
        "fingerprint": reference.fingerprint,
        "n": 40,
    }
    zero = _json(*asked, "-o", tmp_path / "zero")
    assert "fill" not in zero
    assert not alike(zero["ablations"], found["ablations"])
    assert read(tmp_path / "zero").question["options"] == {"units": "attentions"}  # as earlier versions asked it
    text = _run(*asked, *more, "-o", tmp_path / "run").output
    assert f"masked units are given their mean over 40 examples of {reference.name}" in " ".join(text.split())
    with pytest.raises(hc.errors.BadRun):  # another question belongs into another folder
        _run(*asked, "--fill", "noise", "-o", tmp_path / "run")


def test_score_by_ablation_takes_the_fills_of_ablate(place: Path, tmp_path: Path) -> None:
    asked = ("score", place / "classifier", "--data", place / "dev.tsv", "--metric", "loss", "--by", "ablation")
    more = ("--fill", "mean", "--reference-data", place / "train.tsv", "--at", "last")
    found = _json(*asked, *more, "-o", tmp_path / "run")
    fill = hc.interventions.Fill("mean", _task(place, "train", metric="loss"), at="last")
    want = hc.ablate(_model(place), _task(place, "dev", metric="loss"), fill=fill)
    assert close(np.concatenate([site["raw"] for site in found["sites"].values()]), want.damage)
    assert found["fill"] == write(fill.document)
    told = page.report([tmp_path / "run"], tmp_path / "page.html")
    assert f"{fill.document.words}." in " ".join(told.read_text().split())
    scored = read_seen(found["seen"], tmp_path)["score"]
    assert scored == seen_marks(_task(place, "dev")) | seen_marks(_task(place, "train"))
    wrong = CliRunner().invoke(
        app, ["score", str(place / "classifier"), "--data", str(place / "dev.tsv"), "--at", "last"], terminal_width=200
    )
    assert wrong.exit_code == 2
    assert "taylor masks nothing" in " ".join(wrong.output.replace("│", " ").split())


def test_without_reference_data_a_part_is_not_reported_on(place: Path, tmp_path: Path) -> None:
    data = ("--data", place / "dev.tsv")
    noise = ("--fill", "resample", "--draws", 2, "--at", "first")
    each = _json("ablate", place / "classifier", *data, "--units", "layers", *noise, "-o", tmp_path / "each")
    assert each["base"]["n"] + each["fill"]["n"] == 48
    assert (each["fill"]["draws"], each["fill"]["seed"], each["fill"]["at"]) == (2, 0, "first")
    one = _json("ablate", place / "classifier", *data, "--all-but-one", "--fill", "mean", "-o", tmp_path / "one")
    assert one["fill"]["n"] == one["select"]["n"]  # the examples that the head is chosen on
    curve = _json("curve", place / "classifier", *data, "--step", "50%", "--fill", "mean", "-o", tmp_path / "curve")
    assert curve["fill"]["n"] + curve["curves"][0]["points"][0]["result"]["n"] == 48
    signatures = [point["result"]["signature"] for point in curve["curves"][0]["points"]]
    assert ["|fill:mean(" in one for one in signatures] == [False, True, True]
    other = ("--other-data", place / "other.tsv", "--fill", "noise", "--reference-data", place / "train.tsv")
    both = _json("transfer", place / "classifier", *data, *other, "-o", tmp_path / "both")
    assert both["fill"]["kind"] == "noise"
    told = page.report(
        [tmp_path / "each", tmp_path / "one", tmp_path / "curve", tmp_path / "both"], tmp_path / "page.html"
    )
    words = " ".join(told.read_text().split())
    for document in (each, one, curve, both):
        assert f"{FillDocument(**document['fill']).words}." in words


def test_counterparts_are_read_line_by_line(place: Path, tmp_path: Path) -> None:
    lines = (place / "dev.tsv").read_text().splitlines()
    turned = [" ".join(reversed(line.split("\t")[0].split())) + "\t" + line.split("\t")[1] for line in lines[1:]]
    (tmp_path / "turned.tsv").write_text("\n".join([lines[0], *turned]) + "\n")
    asked = ("ablate", place / "classifier", "--data", place / "dev.tsv", "--units", "layers", "--metric", "loss")
    more = ("--fill", "counterfactual", "--limit", 30, "--reference-data")
    same = _json(*asked, *more, place / "dev.tsv", "-o", tmp_path / "same")
    assert all(abs(row["difference"]) < 1e-5 for row in same["ablations"])
    found = _json(*asked, *more, tmp_path / "turned.tsv", "-o", tmp_path / "run")
    assert found["base"]["n"] == 30
    assert all(abs(row["difference"]) > 1e-5 for row in found["ablations"])


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (("--fill", "median"), "What stands in is zero, mean"),
        (("--fill", "counterfactual"), "counterparts of --data"),
        (("--reference-data", "train.tsv"), "zero comes from no data"),
        (("--draws", "3"), "--draws says nothing about fill zero"),
        (("--fill", "mean", "--draws", "3"), "at least 1 of resample and noise"),
        (("--fill", "mean", "--at", "middle"), "a slice such as"),
    ],
)
def test_fills_that_make_no_sense_are_refused(place: Path, words: tuple[str, ...], about: str, tmp_path: Path) -> None:
    asked = [place / "classifier", "--data", place / "dev.tsv", *words, "-o", tmp_path / "run"]
    result = CliRunner().invoke(app, ["ablate", *map(str, asked)], terminal_width=200)
    said = " ".join(f"{result.output} {result.exception}".replace("│", " ").split())
    assert result.exit_code
    assert about in said
