"""The command `lottery`: from files to a table, stopped and given again, several tasks joined, errors in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import says
from helpers.small_models import WEATHER, ran, ran_json, weather, word_tokenizer
from transformers import BertConfig, BertModel

import headcount as hc
from headcount.cli import lottery
from headcount.documents.lottery_study import Lottery
from headcount.errors import BadData, BadRun, Refused
from headcount.lottery_ticket import study as lottery_study
from headcount.runs import read

TRAINS = ["--task", "classification", "--steps", "6", "--lr", "1e-2", "--batch-size", "16", "--seeds", "0,1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare encoder of words, and texts of two tasks."""
    folder = tmp_path_factory.mktemp("lottery")
    tokenizer = word_tokenizer(WEATHER)
    tokenizer.save_pretrained(folder / "encoder")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
        config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **sizes)
        BertModel(config).save_pretrained(folder / "encoder")
    for number, task in enumerate(("days", "weeks")):
        (folder / task).mkdir()
        for name, count, seed in (("train", 120, 1 + 2 * number), ("dev", 40, 2 + 2 * number)):
            rows = [f"{text}\t{label}" for text, label in weather(count, seed)]
            (folder / task / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


def study(place: Path, task: str, *more: object) -> list[object]:
    data = ["--data", place / task / "train.tsv", "--dev-data", place / task / "dev.tsv"]
    return ["lottery", place / "encoder", *data, *TRAINS, *more]


@pytest.fixture(scope="module")
def days(place: Path) -> Path:
    """A finished study."""
    done = ran(*study(place, "days", "-o", place / "runs-days", "--quiet"))
    assert done.exit_code == 0, done.output
    (place / "shown.txt").write_text(done.stdout)
    return place / "runs-days"


def test_a_study_from_files_says_what_came_out(place: Path, days: Path) -> None:
    shown = (place / "shown.txt").read_text()
    told = json.loads((days / "lottery.json").read_text())
    assert shown.startswith("days: accuracy, mean ± deviation over 2 seeds")  # named after the folder of train.tsv
    assert told["sentence"] in shown
    assert f"run folder: {days}" in shown
    rows = {(row["kind"], row["what"], row["how"]): row for row in told["table"]}
    lines = {line[:18].strip(): line[18:].split("±") for line in shown.splitlines()}
    for what in ("good", "random", "bad"):
        cells = lines[what]
        assert float(cells[0]) == pytest.approx(rows["structured", what, "pruned"]["mean"], abs=6e-4)
        assert float(cells[1].split()[1]) == pytest.approx(rows["structured", what, "retrained"]["mean"], abs=6e-4)
    assert float(lines["majority class"][0]) == pytest.approx(told["tasks"][0]["majority"], abs=6e-4)
    assert (told["model"], told["class"]) == ("encoder", "BertForSequenceClassification")
    assert read(days).finished
    assert Lottery.from_json(told).to_json() == told


def test_seeds_are_shared_out(place: Path, days: Path) -> None:
    shared = place / "runs-shared"
    for part, pieces in (("2/2", {"days-1-draw"}), ("1/2", {"days-0-draw", "days-1-draw"})):
        assert ran(*study(place, "days", "-o", shared, "--quiet", "--part", part)).exit_code == 0
        assert {name for name in read(shared).pieces if name.endswith("draw")} == pieces
    assert set(read(shared).pieces) == set(read(days).pieces)
    assert ran("gather", shared).exit_code == 0
    whole, joined = (Lottery.from_json(read(folder).read_json("lottery")) for folder in (days, shared))
    assert [(draw.seed, draw.left, draw.alive) for draw in joined.draws] == [
        (draw.seed, draw.left, draw.alive) for draw in whole.draws
    ]


def test_no_example_is_used_twice_and_a_tenth_selects(place: Path, days: Path) -> None:
    (task,) = json.loads((days / "lottery.json").read_text())["tasks"]
    asked = read(days).question["tasks"]
    sizes = {role: asked[role]["n"] for role in ("train", "select", "report")}
    assert sizes["report"] == 40
    assert 0 < sizes["select"] < 0.25 * sizes["train"]
    assert f"trained on {sizes['train']} examples" in task["sets"]
    assert f"selected on {sizes['select']} others of it, reported on 40 of" in task["sets"]


def test_the_seeds_draw_different_heads_on_the_same_body(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def look(build: Any, lot: Any, **how: Any) -> None:
        seen.update(one=build(1), same=build(1), other=build(2), lot=lot, how=how)
        raise Refused("enough")

    monkeypatch.setattr(lottery_study, "lottery", look)
    with pytest.raises(Refused, match="enough"):
        ran(*study(place, "days", "--step", "20%", "--name", "another", "--freeze", "embeddings", "--no-retrain"))
    heads = [seen[name].classifier.weight for name in ("one", "same", "other")]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    bodies = [seen[name].bert.state_dict() for name in ("one", "other")]
    assert all(torch.equal(bodies[0][name], bodies[1][name]) for name in bodies[0])
    assert seen["lot"].name == "another"
    how = seen["how"]
    assert (how["step"], how["seeds"], how["retrain"], how["freeze"]) == (0.2, [0, 1], False, ["embeddings"])
    assert (how["recipe"].steps, how["recipe"].lr) == (6, 1e-2)


def test_a_stopped_command_goes_on_and_prints_the_same(
    place: Path, days: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    really, calls = lottery_study.train, []

    def train(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs["name"])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return really(*args, **kwargs)

    monkeypatch.setattr(lottery_study, "train", train)
    stopped = ran(*study(place, "days", "-o", tmp_path / "run", "--quiet"))
    assert stopped.exit_code != 0
    told = ran_json(*study(place, "days", "-o", tmp_path / "run"))
    assert len(calls) == len(set(calls)) + 1  # only the one that was stopped is trained again
    assert told.pop("run") == str(tmp_path / "run")
    assert told == json.loads((days / "lottery.json").read_text())


def test_studies_of_several_tasks_are_joined(place: Path, days: Path, tmp_path: Path) -> None:
    weeks = tmp_path / "weeks"
    done = ran(*study(place, "weeks", "--no-retrain", "-o", weeks))
    assert done.exit_code == 0, done.output
    told = ran_json("lottery", "--join", days, weeks, "-o", tmp_path / "both")
    parts = [json.loads((folder / "lottery.json").read_text()) for folder in (days, weeks)]
    assert [task["name"] for task in told["tasks"]] == ["days", "weeks"]
    assert told["draws"] == parts[0]["draws"] + parts[1]["draws"]
    alive = {(draw["task"], draw["seed"]): draw["alive"] for draw in told["draws"]}
    shared = [
        sum(len({*alive["days", seed][site]} & {*alive["weeks", seed][site]}) for site in ("0", "1")) for seed in (0, 1)
    ]
    assert told["overlap"]["heads"]["mean"][0][1] == sum(shared) / 2
    assert json.loads((tmp_path / "both" / "lottery.json").read_text())["sentence"] == told["sentence"]
    assert read(tmp_path / "both").finished
    again = ran("lottery", "--join", days, weeks, "-o", tmp_path / "both")
    assert "days: accuracy" in again.stdout
    assert "weeks: accuracy" in again.stdout


def test_what_cannot_be_joined_is_refused_in_a_sentence(place: Path, days: Path, tmp_path: Path) -> None:
    with says(BadRun, about="not a run folder"):
        ran("lottery", "--join", days, place / "encoder")
    with says(BadRun, about="are of 'days'"):
        ran("lottery", "--join", days, days)
    with hc_run(tmp_path / "other", "curve"), says(BadRun, about="no lottery study but 'curve'"):
        ran("lottery", "--join", days, tmp_path / "other")
    with hc_run(tmp_path / "half", "lottery"), says(BadRun, about="not finished"):
        ran("lottery", "--join", days, tmp_path / "half")
    assert "two or more" in ran("lottery", "--join", days).output


def hc_run(folder: Path, command: str) -> Any:
    from headcount.runs import Run

    return Run.open(folder, {"command": command})


@pytest.mark.parametrize(
    ("words", "says_so"),
    [
        (["m"], "--data FILE"),
        (["m", "--data", "x"], "--dev-data FILE"),
        (["m", "n", "--data", "x", "--dev-data", "y"], "a study is of one MODEL, and I got 2"),
        (["m", "--data", "x", "--dev-data", "y", "--seeds", "a"], "--seeds wants whole numbers"),
        (["m", "--data", "x", "--dev-data", "y", "--step", "few"], "--step wants a share"),
        (["m", "--data", "x", "--dev-data", "y", "--teacher", "t"], "on labels alone"),
        (["m", "--join", "--data", "x"], "--join reads finished studies"),
        (["m", "--data", "x", "--dev-data", "y", "--dtype", "bfloat16"], "trained in float32"),
    ],
)
def test_wrong_usage_is_said_before_any_work(words: list[str], says_so: str) -> None:
    done = ran("lottery", *words)
    assert done.exit_code == 2
    assert says_so in " ".join(done.output.replace("│", " ").split())


def test_shares_outside_of_0_to_1_and_metrics_of_which_less_is_better_are_refused(place: Path, tmp_path: Path) -> None:
    for more, about in (
        (["--threshold", "90"], "threshold is 90"),
        (["--step", "1000%"], "step is 10"),
        (["--metric", "loss"], "more is better"),
    ):
        with says(Refused, about=about):
            ran(*study(place, "days", *more, "-o", tmp_path / "run"))
        assert not (tmp_path / "run").exists()  # a command that failed at once leaves nothing
    with says(BadData, about="also among those to report on"):
        data = place / "days" / "dev.tsv"
        ran("lottery", place / "encoder", "--data", data, "--dev-data", data, *TRAINS, "-o", tmp_path / "run")


@pytest.mark.parametrize(
    ("data", "name"),
    [("SST-2/train.tsv", "SST-2"), ("reviews.csv", "reviews"), ("train.tsv", "train"), ("glue/sst2", "sst2")],
)
def test_a_task_is_called_after_its_data(data: str, name: str) -> None:
    assert lottery._called(data) == name


def test_one_seed_has_no_deviation_and_weights_are_shown_below_units(place: Path) -> None:
    done = ran(*study(place, "days", "--no-retrain", "--magnitude", "--seeds", "5", "-o", place / "one"))
    told = json.loads((place / "one" / "lottery.json").read_text())
    row = next(row for row in told["table"] if (row["kind"], row["what"]) == ("magnitude", "bad"))
    assert ["weights,", "bad", f"{row['mean']:.3f}"] in [line.split() for line in done.stdout.splitlines()]
    assert f"weights: {told['draws'][0]['magnitude']['left']:.0%} stay, by magnitude" in done.stdout
    assert "days: accuracy, seed 5" in done.stdout
    assert "±" not in done.stdout
    assert "kappa" not in done.stdout
    assert hc.load(place / "one" / "models" / "days-5-full").config.num_labels == 2
