"""`prune`, as a user runs it: the numbers are the checkpoint's, sets never meet, and bad days end well."""

from __future__ import annotations

import errno
import json
import random
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import Fingerprint, says
from helpers import processes
from helpers.same import alike
from helpers.small_models import classifier, refuses, word_tokenizer
from helpers.small_models import ran as _run
from helpers.small_models import ran_json as _json
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification
from typer.testing import CliRunner

import headcount as hc
from headcount.cli.app import app
from headcount.cli.options import CommonFlags
from headcount.cli.pruning.front import sets_from
from headcount.data import example_sets, splits
from headcount.data.places import place as place_of
from headcount.documents.prune import PruneDocument
from headcount.efficiency import latency
from headcount.pruning import budget, pipeline, selection
from headcount.pruning.pipeline import sentence
from headcount.reporting import model_card, model_warnings
from headcount.runs import read
from headcount.stats.metrics import metric

GOOD, BAD = ("good", "lovely", "bright", "warm"), ("bad", "dull", "dark", "cold")
OTHER = ("the", "film", "is", "about", "a", "war", "song", "and", "was", "nobody")


def _sentences(count: int, seed: int) -> list[tuple[str, int]]:
    """Sentences with one word that tells their label, and some with a second that says the opposite."""
    draw, out = random.Random(seed), []
    for number in range(count):
        words = [*draw.choices(OTHER, k=draw.randint(3, 8)), draw.choice((BAD, GOOD)[number % 2])]
        if draw.random() < 0.1:
            words.append(draw.choice((GOOD, BAD)[number % 2]))
        draw.shuffle(words)
        out.append((" ".join(words), number % 2))
    return out


def _write(path: Path, rows: list[tuple[str, Any]], head: str = "sentence\tlabel") -> None:
    path.write_text(head + "\n" + "".join(f"{text}\t{label}\n" for text, label in rows))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier that has learnt its task, in half precision, and data.

    It learns in float64, where rounding adds up to nothing: so it is the same model on every machine.
    """
    folder, tokenizer = tmp_path_factory.mktemp("place"), word_tokenizer([*GOOD, *BAD, *OTHER])
    torch.manual_seed(0)
    sizes = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = BertForSequenceClassification(
        BertConfig(**sizes, intermediate_size=32, max_position_embeddings=16, pad_token_id=0)
    ).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    examples = _sentences(512, 100)
    batch = tokenizer([text for text, _ in examples], padding=True, return_tensors="pt")
    labels = torch.tensor([label for _, label in examples])
    for step in range(60):
        some = slice(64 * (step % 8), 64 * (step % 8) + 64)
        optimiser.zero_grad()
        inputs = {name: batch[name][some] for name in ("input_ids", "attention_mask")}
        model(**inputs, labels=labels[some]).loss.backward()
        optimiser.step()
    model.half().save_pretrained(folder / "classifier")
    tokenizer.save_pretrained(folder / "classifier")
    (folder / "classifier" / "README.md").write_text(
        "---\nlicense: mit\nlanguage:\n- en\n---\nthe card of the whole model"
    )
    for name, count, seed in (("dev", 900, 0), ("train", 300, 1), ("few", 40, 2)):
        _write(folder / f"{name}.tsv", _sentences(count, seed))
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed is measured in tests/efficiency/test_benchmark.py; here twice is enough, by a clock that nobody disturbs."""
    from headcount.efficiency import benchmark

    def clock(run: Any, device: torch.device) -> benchmark.Time:
        run()
        return benchmark.Time(0.1, 0.1)

    monkeypatch.setattr(benchmark, "timed", clock)
    for module in (pipeline, budget, latency):
        monkeypatch.setattr(
            module, "bench", lambda *models, **asked: benchmark.bench(*models, **{**asked, "repeats": 2})
        )


def _task(place: Path, name: str, **options: Any) -> hc.data.Task:
    return hc.task("classification", place / f"{name}.tsv", tokenizer=str(place / "classifier"), **options)


def _model(place: Path) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(place / "classifier", dtype=torch.float32).eval()


def _asked(place: Path, tmp_path: Path, *more: object) -> tuple[object, ...]:
    return (
        *("prune", place / "classifier", "--data", place / "dev.tsv"),
        *("-o", tmp_path / "smaller", "--run", tmp_path / "run", *more),
    )


def _leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "run")


# -- what comes out ------------------------------------------------------------------------------------------------------


def test_a_promise_is_shown_on_one_part_and_reported_on_another_by_the_checkpoint(place: Path, tmp_path: Path) -> None:
    found = _json(*_asked(place, tmp_path, "--max-drop", 3, "--step", 2, "--seed", 5))
    model, task = _model(place), _task(place, "dev")
    first = {task.digest(n): n for n in reversed(range(task.size))}  # an example that is there twice counts once
    places = {n: place_of(example, 5) for example, n in first.items()}
    bounds = [(0, 0.25), (0.25, 0.7), (0.7, 1)]
    score, select, report = (task.subset(sorted(n for n, at in places.items() if a <= at < b)) for a, b in bounds)
    assert [(s["role"], s["n"]) for s in found["sets"]] == [
        ("score", score.size),
        ("select", select.size),
        ("report", report.size),
    ]
    plan, held = hc.Plan.from_json(found["plan"]), found["guarantee"]
    assert plan.units == set(hc.score(model, score).order()[: len(plan)])
    assert held["n"] == select.size
    assert held["removed"] == len(plan) == found["removed"] > 0
    whole = hc.evaluate(model, select)
    for step in held["steps"]:
        order = hc.score(model, score).order()[: step["removed"]]
        with hc.masked(model, hc.Plan(frozenset(order))):
            there = hc.evaluate(model, select)
        assert step["value"] == pytest.approx(there.value)
        assert step["damage"] == pytest.approx(100 * (whole.value - there.value))
        assert step["shown"] == (step["p"] <= 0.05)
    smaller = hc.load(tmp_path / "smaller", dtype=torch.float32)
    assert hc.removed(smaller).units == plan.units
    right = []
    for number in range(report.size):  # the loaded checkpoint, asked one example at a time
        batch = report.collate([number])
        with torch.no_grad():
            logits = smaller(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        right.append(int(logits.argmax()) == int(batch["labels"]))
    assert found["after"]["value"] == pytest.approx(np.mean(right))
    assert found["before"]["value"] == pytest.approx(hc.evaluate(model, report).value)
    assert found["parameters"] == [model.num_parameters(), smaller.num_parameters()]
    assert found["parameters"][0] - found["parameters"][1] == sum(site["parameters"] for site in found["sites"])
    sizes = [path.stat().st_size for path in (place / "classifier").glob("*.safetensors")]
    assert found["bytes"][0] == sum(sizes) > found["bytes"][1]


def test_the_folder_has_all_that_a_person_needs_and_nothing_of_the_old_card(place: Path, tmp_path: Path) -> None:
    found = _json(*_asked(place, tmp_path, "--remove", "50%", "--no-report"))
    folder = tmp_path / "smaller"
    assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors", "README.md", "plan.json"}
    assert (folder / "tokenizer.json").is_file()
    assert hc.Plan.read(folder / "plan.json") == hc.Plan.from_json(found["plan"])
    assert {t.dtype for t in load_file(folder / "model.safetensors").values()} == {torch.float16}, "as it was"
    text = (folder / "README.md").read_text()
    assert "the card of the whole model" not in text
    front = yaml.safe_load(text.split("---")[1])
    assert (front["library_name"], front["pipeline_tag"]) == ("headcount", "text-classification")
    assert (front["license"], front["language"]) == ("mit", ["en"]), "what the old card said of them"
    for part in (found["sentence"], found["signature"].split("|")[1], "headcount.load", "dev.tsv"):
        assert part.replace("_", "\\_") in text or part in text
    assert found["command"] in text
    assert _leftovers(tmp_path) == ["smaller"]


def test_a_count_a_plan_by_hand_and_a_dry_run(place: Path, tmp_path: Path) -> None:
    shared = ("prune", place / "classifier", "--data", place / "dev.tsv", "--no-report")
    dry = _run(*shared, "--remove", 5, "--score-data", place / "train.tsv", "--dry-run", "--run", tmp_path / "dry")
    assert "nothing was cut" in dry.output
    assert _leftovers(tmp_path) == ["dry"]
    plan = hc.Plan.read(tmp_path / "dry" / "plan.json")
    train = _task(place, "train")
    assert plan.units == set(hc.score(_model(place), train).order()[:5])
    less = hc.Plan(frozenset(list(plan)[:3]), "three of them")  # edited by hand
    less.write(tmp_path / "mine.json")
    out = ("-o", tmp_path / "mine", "--run", tmp_path / "run")
    found = _json(*shared, "--plan", tmp_path / "mine.json", *out)
    assert found["removed"] == 3
    assert found["before"]["n"] == len({text for text, _ in _sentences(900, 0)}), "it was chosen on other data"
    assert hc.removed(hc.load(tmp_path / "mine")).units == less.units
    with says(hc.errors.BadPlan, about="one way"):
        _run(*shared, "--plan", tmp_path / "mine.json", "--remove", 5, "-o", tmp_path / "x")
    tested = _json(
        *shared,
        "--plan",
        tmp_path / "mine.json",
        "--max-drop",
        50,
        "-o",
        tmp_path / "tested",
        "--run",
        tmp_path / "run2",
    )
    assert [step["removed"] for step in tested["guarantee"]["steps"]] == [3]
    assert tested["guarantee"]["n"] + tested["before"]["n"] <= 900


def test_people_see_the_numbers_of_the_json(place: Path, tmp_path: Path) -> None:
    asked = _asked(place, tmp_path, "--max-drop", 3, "--step", 3)
    shown = _run(*asked).output
    found = read(tmp_path / "run").read_json("prune")
    assert found["sentence"] in shown
    for words in (
        "to score the units",
        "to show the guarantee",
        "never to choose",
        "split in 3",
        "on disk",
        "examples/s",
    ):
        assert words in shown
    assert f"{found['parameters'][1]:,}" in shown
    assert f"{found['after']['value']:.3f}" in shown
    assert f"[{found['after']['low']:.3f}, {found['after']['high']:.3f}]" in shown
    assert str(tmp_path / "smaller" / "report.html") in shown
    assert f"in Python: import headcount; model = headcount.load({str(tmp_path / 'smaller')!r})" in shown
    page = (tmp_path / "smaller" / "report.html").read_text()
    assert found["sentence"].split("(")[0] in page


def test_a_page_that_cannot_be_made_costs_no_model_and_a_ruined_one_is_named(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise hc.errors.BadRun("The page would have 11.7 MB.")

    monkeypatch.setattr("headcount.reporting.page.report", refuse)
    shown = _run(*_asked(place, tmp_path, "--remove", "100%", "--brake", "off")).output
    found = PruneDocument.from_json(read(tmp_path / "run").read_json("prune"))
    assert found.after.constant is not None
    assert not (tmp_path / "smaller" / "report.html").exists()
    assert "no report: The page would have 11.7 MB." in shown
    (warning,) = model_warnings.of_prune(found)
    assert f"WARNING: {warning}" in shown
    assert "> **Warning.**" in (tmp_path / "smaller" / "README.md").read_text()
    assert set(hc.removed(hc.load(tmp_path / "smaller"))) == set(found.plan)


def test_an_adapter_is_merged_and_pruned_with_all_its_digits(place: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = AutoModelForSequenceClassification.from_pretrained(place / "classifier")  # in half precision
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["query", "value"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            parameter += 0.01 * ("lora_B" in name)
    adapted.peft_config["default"].base_model_name_or_path = str(place / "classifier")
    adapted.save_pretrained(tmp_path / "adapter")
    words = _asked(place, tmp_path, "--limit", 100, "--by", "random", "--remove", 3, "--no-report")
    done = _run(words[0], tmp_path / "adapter", *words[2:])
    assert done.exit_code == 0, done.output
    weights = [tmp_path / "adapter" / "adapter_model.safetensors", place / "classifier" / "model.safetensors"]
    assert read(tmp_path / "run").read_json("prune")["bytes"][0] == sum(path.stat().st_size for path in weights)
    assert hc.load(tmp_path / "smaller", dtype="auto").dtype == torch.float32
    assert not list((tmp_path / "smaller").glob("adapter*"))


def test_the_model_in_memory_is_pruned_too_and_left_as_it_was(place: Path, tmp_path: Path) -> None:
    model = _model(place)
    score, select, report = splits.distinct(_task(place, "dev")).split(0.25, 0.45, 0.3)
    kept = Fingerprint(model)
    choice = hc.pruning.choose(model, max_drop=4.0, score=score, select=select, step=3)
    found = hc.pruning.save_pruned(model, tmp_path / "smaller", report, choice)
    assert not kept.changed()
    with hc.masked(model, choice.plan):
        assert found.after.value == hc.evaluate(model, report).value
    assert "falls by less than 4 points, 95 % sure" in str(found)
    assert hc.load(tmp_path / "smaller").dtype == torch.float32


# -- three sets that never meet ------------------------------------------------------------------------------------------


def _sets(place: Path, given: CommonFlags, needs: tuple[bool, bool], *others: Any) -> example_sets.Sets:
    return sets_from(str(place / "classifier"), _model(place), given, needs, others)


def test_sets_share_no_example_whatever_files_are_given(place: Path, tmp_path: Path) -> None:
    dev, train, few = (str(place / f"{name}.tsv") for name in ("dev", "train", "few"))
    both = tmp_path / "both.tsv"  # half of it is in dev
    _write(both, [*_sentences(900, 0)[:150], *_sentences(150, 9)])
    given = CommonFlags(data=dev)
    for others in [
        (None, None, None, None),
        (train, None, None, None),
        (None, None, train, 100),
        (train, 50, few, None),
        (str(both), None, train, None),
        (train, None, str(both), None),
    ]:
        sets = _sets(place, given, (True, True), *others)
        digests = [[task.digest(n) for n in range(task.size)] for task in sets.tasks().values()]
        assert len(digests) == 3
        assert min(map(len, digests)) > 10
        assert not set(digests[0]) & set(digests[1])
        assert not (set(digests[0]) | set(digests[1])) & set(digests[2])
    mixed = _sets(place, given, (True, True), str(both), None, train, None)
    assert "to score on were left out, being among those to report or select on" in mixed.how
    whole = _sets(place, given, (True, True), train, None, str(place / "few.tsv"), None)
    assert splits.digests(mixed.report) == splits.digests(whole.report), "what is reported on loses nothing"
    with says(hc.errors.BadData, about="never choose and report"):
        _sets(place, given, (True, True), dev, None, train, None)
    alone = _sets(place, given, (False, False), None, None, None, None)
    different = len({text for text, _ in _sentences(900, 0)})
    assert (alone.score, alone.select, alone.report.size) == (None, None, different)


def test_an_example_has_its_place_whatever_else_is_in_the_file(place: Path) -> None:
    """So a later command on the same data never reports on what an earlier one chose on."""
    dev, given = str(place / "dev.tsv"), CommonFlags(data=str(place / "dev.tsv"))
    whole = _sets(place, given, (True, True), None, None, None, None)
    part = _sets(place, replace(given, limit=300), (True, True), None, None, None, None)
    only = _sets(place, given, (True, False), None, None, None, None)
    for role, task in part.tasks().items():
        assert splits.digests(task) <= splits.digests(whole.tasks()[role])
    assert splits.digests(only.report) == splits.digests(whole.report)
    other = _sets(place, replace(given, seed=1), (True, True), None, None, None, None)
    assert splits.digests(other.report) != splits.digests(whole.report)
    shares = [task.size for task in whole.tasks().values()]
    assert np.allclose(np.array(shares) / sum(shares), [0.25, 0.45, 0.3], atol=0.06)
    assert dev == whole.report.name or whole.report.name.endswith("dev.tsv")


def test_a_plan_from_a_dry_run_is_not_reported_on_what_it_was_chosen_on(place: Path, tmp_path: Path) -> None:
    shared = ("prune", place / "classifier", "--data", place / "dev.tsv", "--no-report")
    _run(*shared, "--max-drop", 5, "--step", 4, "--dry-run", "--run", tmp_path / "dry")
    file = tmp_path / "dry" / "plan.json"
    first = _sets(place, CommonFlags(data=str(place / "dev.tsv")), (True, True), None, None, None, None)
    for more, number in (((), 0), (("--max-drop", 50), 1)):
        found = _json(*shared, "--plan", file, *more, "-o", tmp_path / f"{number}", "--run", tmp_path / f"run{number}")
        used = {role["role"]: role["n"] for role in found["sets"]}
        assert sum(used.values()) == first.report.size, "only what had no part in it is left"
    _run(*shared, "--remove", 4, "--dry-run", "--run", tmp_path / "again")
    found = _json(
        *(*shared, "--plan", tmp_path / "again" / "plan.json"), "-o", tmp_path / "2", "--run", tmp_path / "run2"
    )
    assert found["before"]["n"] == first.report.size
    damaged = json.loads(file.read_text()) | {"chosen_on": "everything"}
    file.write_text(json.dumps(damaged))
    with says(hc.errors.BadPlan, about="chosen on"):
        _run(*shared, "--plan", file, "-o", tmp_path / "3")


def test_copies_of_an_example_count_once(place: Path, tmp_path: Path) -> None:
    rows = _sentences(120, 3)
    _write(tmp_path / "four.tsv", rows * 4)
    sets = _sets(place, CommonFlags(data=str(tmp_path / "four.tsv")), (True, True), None, None, None, None)
    assert sum(task.size for task in sets.tasks().values()) == len({text for text, _ in rows})
    assert "count once" in sets.how


def test_in_python_too_nothing_is_chosen_and_reported_on_the_same_examples(place: Path, tmp_path: Path) -> None:
    model, task = _model(place), splits.distinct(_task(place, "dev", limit=200))
    score, select, report = task.split(0.3, 0.4, 0.3)
    with says(hc.errors.BadData, about="to score on are also among those to select on"):
        hc.pruning.choose(model, max_drop=30, score=task, select=task)
    assert score.size > 10
    both = task.subset([n for n in range(task.size) if task.digest(n) in splits.digests(select)][:7])
    numbers = [n for n in range(task.size) if task.digest(n) in splits.digests(score) | splits.digests(both)]
    mixed = hc.pruning.choose(model, max_drop=60, score=task.subset(numbers), select=select)
    choice = hc.pruning.choose(model, max_drop=60, score=score, select=select)
    assert "7 examples of" in mixed.left_out
    assert "to score on were left out, being among those to select on" in mixed.left_out
    assert mixed.scores is not None
    assert alike(mixed.scores.to_json(), hc.score(model, score).to_json())
    assert (choice.left_out, choice.used) == ("", mixed.used)
    again = hc.custom_task([{"x": torch.tensor([1, 1, 2])}], loss=lambda model, batch: batch["x"])
    _, select_once, left_out = selection._kept_apart(None, again)
    assert select_once is not None
    assert select_once.size == 2
    assert "1 of 3 examples of own batches were there before and count once" in left_out
    for wrong in (score, select):
        with says(hc.errors.BadData, about="had a part in choosing"):
            hc.pruning.save_pruned(model, tmp_path / "smaller", wrong, choice)
    more = hc.pruning.save_pruned(model, tmp_path / "more", task, choice)
    assert more.before.n == report.size
    assert f"{task.size - report.size} examples of" in (tmp_path / "more" / "README.md").read_text()
    assert hc.pruning.save_pruned(model, tmp_path / "smaller", report, choice).before.n == report.size


def test_flags_that_would_say_nothing_are_refused(place: Path, tmp_path: Path) -> None:
    hc.Plan.of("0:1").write(tmp_path / "plan.json")
    shared = ["prune", place / "classifier", "--data", place / "dev.tsv", "-o", tmp_path / "smaller"]
    for words in (
        ["--remove", 3, "--select-data", place / "train.tsv"],
        ["--remove", 3, "--score-limit", 5],
        ["--plan", tmp_path / "plan.json", "--score-data", place / "train.tsv"],
        ["--remove", 3, "--by", "random", "--score-data", place / "train.tsv"],
        ["--remove", 3, "--run", tmp_path / "smaller"],
        ["--remove", 3, "--run", tmp_path / "smaller" / "run"],
    ):
        done = CliRunner().invoke(app, list(map(str, [*shared, *words])))
        assert done.exit_code == 2, words


def test_units_are_counted_and_named_as_they_are(place: Path, tmp_path: Path) -> None:
    model, report = _model(place), _task(place, "train")
    one = hc.pruning.choose(model, plan="0:1 2:0-1")
    assert (one.of, one.units) == (12, "heads")
    neurons = hc.pruning.choose(model, plan="0.mlp:0-7")
    assert (neurons.of, neurons.units) == (96, "neurons")
    both = hc.pruning.choose(model, plan="0:1 layers:2")
    assert (both.of, both.units) == (15, "heads,layers")
    found = hc.pruning.save_pruned(model, tmp_path / "x", report.with_metric("loss"), both)
    assert str(found).startswith("2 of 15 heads and layers (13 %) are gone: loss went from")
    with says(hc.errors.BadPlan, about="none of the 12 units can go"):
        hc.pruning.choose(model, max_drop=1.0, score=report, select=_task(place, "few"), least=4)
    with says(hc.errors.BadPlan, about="at least one"):
        hc.pruning.choose(model, remove=0, score=report)


def test_the_sentence_says_which_way_a_metric_goes_and_when_more_was_lost_than_promised(place: Path) -> None:
    score, select, report = (task.with_metric("loss") for task in _task(place, "dev", limit=240).split(0.3, 0.4, 0.3))
    model = _model(place)
    choice = hc.pruning.choose(model, max_drop=5.0, score=score, select=splits.distinct(select), step="50%")
    before = hc.evaluate(model, report)
    for more, words in ((0.5, "that had no part in it."), (6.0, "that had no part in it, more than promised.")):
        rows = before.rows.copy()
        rows[:, before.metric.columns.index("loss")] += more
        after = hc.stats.Result(before.metric, rows)
        pruned = hc.pruning.Pruned(
            choice, before, after, hc.compare(before, after), (2, 1), (2, 1), None, (), Path("x")
        )
        assert "loss rises by less than 5, no example counted for more than 100 nats, 95 % sure" in sentence(pruned)
        assert sentence(pruned).endswith(words)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (5 / 6, 0.5, "from 0.833 to 0.500"),
        (9.96, 10.04, "from 9.960 to 10.040"),
        (10.04, 9.96, "from 10.0 to 10.0"),
        (31.26, 30.94, "from 31.3 to 30.9"),
        (-0.25, -0.5, "from -0.250 to -0.500"),
        (-31.26, 3.0, "from -31.3 to 3.0"),
    ],
)
def test_accuracies_and_losses_are_said_with_three_digits_and_what_counts_to_a_hundred_with_one(
    before: float, after: float, said: str
) -> None:
    choice = hc.pruning.choose(classifier(), plan="0:1")
    was, now = (hc.stats.Result(metric("mean"), np.full((3, 1), value)) for value in (before, after))
    pruned = hc.pruning.Pruned(choice, was, now, hc.compare(was, now), (2, 1), (2, 1), None, (), Path("x"))
    assert sentence(pruned) == f"1 of 12 heads (8 %) are gone: mean went {said} on 3 examples."


# -- how much ------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_cut_is_left_alone_and_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(monkeypatch, "1")
    choice = hc.pruning.choose(_model(place), remove="100%", score=_task(place, "train"), brake=None)
    assert set(choice.plan.by_site()) == {"0", "2"}
    assert [site for site, _ in choice.left_alone] == ["1"]
    assert (len(choice.plan), choice.of) == (8, 12)
    monkeypatch.setattr(
        selection.rules,
        "refuse",
        lambda *_: (_ for _ in ()).throw(hc.errors.Refused("0 cannot be cut exactly: no reason.")),
    )
    with says(hc.errors.Refused, about="No heads of BertForSequenceClassification can be cut"):
        hc.pruning.choose(_model(place), remove=1, score=_task(place, "train"))


def test_too_few_examples_say_how_many_would_be_needed(place: Path, tmp_path: Path) -> None:
    asked = ("prune", place / "classifier", "--data", place / "few.tsv", "--max-drop", 1.0, "-o", tmp_path / "smaller")
    with says(hc.errors.NotShown, about="examples to select on would be needed"):
        _run(*asked, "--run", tmp_path / "run")
    assert _leftovers(tmp_path) == []


def test_how_much_is_said_in_one_way(place: Path, tmp_path: Path) -> None:
    for wishes in (("--flops", "50%", "--max-drop", "1", "--remove", "3"), ("--speedup", "1.2", "--remove", "3")):
        with says(hc.errors.BadPlan, about="one way"):
            _run(*_asked(place, tmp_path, *wishes))
    done = CliRunner().invoke(
        app, list(map(str, ["prune", place / "classifier", "--data", place / "dev.tsv", "--remove", "3"]))
    )
    assert done.exit_code == 2
    assert "-o FOLDER" in " ".join(done.output.replace("│", " ").split())
    with pytest.raises(hc.errors.BadPlan):
        hc.pruning.choose(_model(place), score=_task(place, "train"))


# -- bad days ------------------------------------------------------------------------------------------------------------


CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "label column": (("--data", "dev.tsv", "--label", "verdict"), "verdict"),
    "no such file": (("--data", "nowhere.tsv"), "nowhere"),
    "empty": (("--data", "empty.tsv"), "empty"),
    "no rows": (("--data", "head.tsv"), "head.tsv"),
    "one class": (("--data", "one.tsv"), "same label"),
    "other labels": (("--data", "words.tsv"), "maybe"),
    "too much": (("--data", "dev.tsv", "--remove", "500"), "500"),
    "not a drop": (("--data", "dev.tsv", "--max-drop", "-1"), "number of points"),
    "not alpha": (("--data", "dev.tsv", "--max-drop", "1", "--alpha", "2"), "alpha"),
    "no such type": (("--data", "dev.tsv", "--only", "cross"), "cross"),
    "no such kind": (("--data", "dev.tsv", "--units", "words"), "words"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_ends_in_one_sentence_with_nothing_written(place: Path, tmp_path: Path, case: str) -> None:
    files = tmp_path / "in"
    shutil.copytree(place, files, ignore=lambda _, names: [name for name in names if not name.endswith(".tsv")])
    _write(files / "one.tsv", [(text, 1) for text, _ in _sentences(120, 0)])
    _write(files / "words.tsv", [(text, "maybe") for text, _ in _sentences(50, 0)])
    (files / "empty.tsv").write_text("")
    (files / "head.tsv").write_text("sentence\tlabel\n")
    arguments, about = CASES[case]
    words = [files / word if word.endswith(".tsv") else word for word in arguments]
    wish = () if {"--remove", "--max-drop"} & set(arguments) else ("--remove", "25%")
    with says(hc.errors.BadData, hc.errors.BadPlan, hc.errors.BadMeasure, hc.errors.NotFound, about=about):
        _run("prune", place / "classifier", *words, *wish, "-o", tmp_path / "smaller", "--run", tmp_path / "run")
    assert _leftovers(tmp_path) == ["in"]


def test_a_metric_that_is_not_defined_is_refused(place: Path, tmp_path: Path) -> None:
    model = _model(place)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 5.0]))
    model.save_pretrained(tmp_path / "constant")
    word_tokenizer([*GOOD, *BAD, *OTHER]).save_pretrained(tmp_path / "constant")
    with says(hc.errors.BadData, about="matthews is not defined"):
        _run(
            *("prune", tmp_path / "constant", "--data", place / "dev.tsv", "--metric", "matthews", "--remove", 2),
            *("-o", tmp_path / "smaller", "--run", tmp_path / "run"),
        )
    assert not (tmp_path / "smaller").exists()


def test_a_tokenizer_of_another_model_is_refused(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "classifier", tmp_path / "wrong")
    word_tokenizer([f"word{n}" for n in range(50)] + list(OTHER) * 2).save_pretrained(tmp_path / "wrong")
    _write(tmp_path / "data.tsv", [(" ".join(f"word{n}" for n in range(k % 40, k % 40 + 9)), k % 2) for k in range(60)])
    with says(hc.errors.BadData, about="tokenizer does not belong to the model"):
        _run("prune", tmp_path / "wrong", "--data", tmp_path / "data.tsv", "--remove", 2, "-o", tmp_path / "smaller")
    assert not (tmp_path / "smaller").exists()


def test_a_full_disk_leaves_nothing_that_looks_finished_and_the_same_command_goes_on(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _asked(place, tmp_path, "--max-drop", 3, "--step", 3, "--no-report")

    def full(model: Any, folder: Path, **_: Any) -> None:
        (Path(folder) / "config.json").write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_into", full)
        with says(hc.errors.BadCheckpoint, about="No space left on device"):
            _run(*asked)
    assert _leftovers(tmp_path) == []
    assert not read(tmp_path / "run").finished
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("*.npz")}
    found = _json(*asked)
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("*.npz")}
    assert before == after, "what was measured before is not measured again"
    calm = _json(*_asked(place, tmp_path / "calm", "--max-drop", 3, "--step", 3, "--no-report"))
    for name in ("plan", "guarantee", "before", "after", "comparison", "parameters"):
        assert alike(found[name], calm[name])


@pytest.mark.parametrize("when", ["load", "card"])
def test_stopped_in_the_middle_no_folder_is_left(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    real = pipeline.load
    patched = (
        stop if when == "card" else (lambda name, **k: real(name, **k) if "unfinished" not in str(name) else stop())
    )
    monkeypatch.setattr(pipeline, when, patched)
    done = CliRunner().invoke(app, list(map(str, _asked(place, tmp_path, "--remove", 3, "--no-report"))))
    assert done.exit_code != 0
    assert _leftovers(tmp_path) == []


def test_a_checkpoint_that_came_back_different_is_not_kept(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pipeline.load

    def other(name: Any, **options: Any) -> Any:
        model = real(name, **options)
        if "unfinished" in str(name):
            with torch.no_grad():
                model.classifier.bias.add_(0.5)
        return model

    monkeypatch.setattr(pipeline, "load", other)
    with says(hc.errors.CheckFailed, about="differs from the masked model"):
        _run(*_asked(place, tmp_path, "--remove", 3, "--no-report"))
    assert _leftovers(tmp_path) == []


def test_an_existing_folder_is_replaced_only_if_asked(place: Path, tmp_path: Path) -> None:
    (tmp_path / "smaller").mkdir()
    (tmp_path / "smaller" / "mine.txt").write_text("keep me")
    with says(hc.errors.BadCheckpoint, about="exists and is not empty"):
        _run(*_asked(place, tmp_path, "--remove", 3, "--no-report"))
    assert (tmp_path / "smaller" / "mine.txt").read_text() == "keep me"
    with says(hc.errors.BadCheckpoint, about="is not a model folder"):
        _run(*_asked(place, tmp_path, "--remove", 3, "--no-report", "--force"))
    assert (tmp_path / "smaller" / "mine.txt").read_text() == "keep me"
    shutil.rmtree(tmp_path / "smaller")
    for count in (3, 4):
        _run(
            *_asked(
                place, tmp_path / f"{count}", "--remove", count, "--no-report", "--force", "-o", tmp_path / "smaller"
            )
        )
        assert len(hc.removed(hc.load(tmp_path / "smaller"))) == count


SHARES = [{"seed": 0, "share": share} for share in ("abc", None, [0.5], 1.5, float("nan"), True)]


@pytest.mark.parametrize(
    "chosen_on",
    ["abc", [], {"seed": 0}, {"seed": True, "share": 0.5}, {"seed": "0", "share": 0.5}, *SHARES],
    ids=str,
)
def test_a_plan_that_says_nonsense_about_its_examples_is_one_sentence(
    chosen_on: object, place: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({**hc.Plan.of("0:1").to_json(), "chosen_on": chosen_on}))
    with says(hc.errors.BadPlan, about="what it was chosen on"):
        _run(*_asked(place, tmp_path, "--plan", plan))
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_force_never_takes_the_model_the_data_or_what_holds_them(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    shutil.copytree(place / "classifier", home / "model")
    shutil.copyfile(place / "dev.tsv", home / "dev.tsv")
    shutil.copyfile(home / "model" / "config.json", home / "config.json")  # even if it looks like a model
    before = sorted(path.name for path in home.rglob("*"))
    monkeypatch.chdir(tmp_path)
    shared = ("prune", "home/model", "--data", "home/dev.tsv", "--remove", 3, "--no-report", "--force", "-q")
    for target in ("home/model", "home", "home/../home", ".", tmp_path / "home"):
        with says(hc.errors.BadCheckpoint, about="choose another folder"):
            _run(*shared, "-o", target)
    with says(hc.errors.BadCheckpoint, about="choose another"):
        _run(*shared, "-o", "home/dev.tsv")
    with says(hc.errors.BadCheckpoint, about="choose another"):
        _run(*shared, "-o", "home/dev.tsv/smaller")
    assert sorted(path.name for path in home.rglob("*")) == before
    _run(*shared, "-o", "home/model/smaller")
    _run(*shared, "-o", "home/model/second")
    assert not (home / "model" / "second" / "smaller").exists(), "an earlier output does not come along"


def test_killed_at_any_moment_it_leaves_no_finished_folder_and_comes_to_the_same_end(
    place: Path, tmp_path: Path
) -> None:
    more = ("--max-drop", 60, "--step", 2, "--limit", 150, "--batch-size", 2, "--no-report")
    asked = _asked(place, tmp_path, *more)
    process = processes.command([*asked, "--json"], tmp_path / "said")
    processes.wait_until(lambda: len(list((tmp_path / "run").glob("*.npz"))) >= 5, process)
    process.kill()
    process.join()
    assert not (tmp_path / "smaller").exists()
    found = _json(*asked)
    calm = _json(*_asked(place, tmp_path / "calm", *more))
    for name in ("plan", "guarantee", "before", "after"):
        assert alike(found[name], calm[name])


def test_the_cap_of_a_promise_about_a_loss_is_the_one_asked_for_or_twenty_drops(place: Path, tmp_path: Path) -> None:
    asked = (
        "prune",
        place / "classifier",
        "--data",
        place / "dev.tsv",
        "--metric",
        "loss",
        "--max-drop",
        3,
        "--dry-run",
    )
    for number, (more, cap) in enumerate([((), 60.0), (("--cap", 5), 5.0)]):
        held = _json(*asked, "--step", 4, *more, "--run", tmp_path / f"run-{number}" / "x")["guarantee"]
        assert (held["cap"], held["test"]) == (cap, "bounded")
        assert f"no example counted for more than {cap:g} nats" in held["sentence"]
    with says(hc.errors.BadMeasure, about="a promise about accuracy has none"):
        _run(*asked[:4], "--max-drop", 3, "--dry-run", "--cap", 5, "--run", tmp_path / "accuracy")
    done = CliRunner().invoke(app, [*map(str, asked[:4]), "--remove", "2", "--cap", "5", "--dry-run"])
    assert done.exit_code == 2
    assert "--cap goes with --max-drop" in done.output


# -- the card ------------------------------------------------------------------------------------------------------------


def test_no_name_breaks_out_of_the_card(place: Path, tmp_path: Path) -> None:
    _json(*_asked(place, tmp_path, "--max-drop", 5, "--step", 4, "--no-report"))
    told = read(tmp_path / "run").read_json("prune")
    nasty = "<script>alert(1)</script> | **x** `y` [z](http://e) \n\n# title\n---\na: b"
    told |= {"model": nasty, "output": nasty, "command": nasty, "signature": nasty, "class": nasty, "sentence": nasty}
    told["sets"] = [{"role": "score", "data": nasty, "n": 3, "what": nasty}]
    told["left_alone"] = [{"site": "1", "reason": nasty}]
    text = model_card.card(PruneDocument.from_json(told))
    front, body = text.split("\n---\n", 1)
    known = yaml.safe_load(front.removeprefix("---\n"))
    assert set(known) == {"library_name", "tags", "pipeline_tag", "license", "language"}
    assert known["tags"] == ["headcount", "pruned"]
    outside = re.sub(r"`[^`\n]*`", "", "".join(body.split("```")[::2]))
    assert "<script>" not in outside
    assert "**x**" not in outside.replace("\\*", "")
    assert len([line for line in body.splitlines() if line.startswith("# ")]) == 1
    rows = [line for line in body.splitlines() if line.startswith("|")]
    for line in rows:
        assert line.endswith("|")
    hub = model_card.card(PruneDocument.from_json({**told, "model": "google-bert/bert-base-uncased"}))
    assert yaml.safe_load(hub.split("---")[1])["base_model"] == "google-bert/bert-base-uncased"


ODD = [
    "a: b",
    "'quoted'",
    '"double"',
    "two\nlines",
    "a\n---\nb: c",
    "ü → 漢字 🙂",
    "yes",
    "no",
    "1.0",
    "# x",
    "- x",
    "",
    " x ",
    "\t",
]


@pytest.mark.parametrize("name", ODD)
def test_the_front_matter_of_the_card_is_read_back_whatever_the_names_are(name: str) -> None:
    old = {"license": name, "language": [name, "en"], "datasets": [name]}
    document = PruneDocument.__new__(PruneDocument)  # of the document the front matter reads these four fields
    vars(document).update(model="google-bert/bert", task="classification", stock=True, base_card=old)
    front = model_card._front(document)
    text = f"{front}\n\n# title\n\n---\n\nbody\n"
    known = {
        "library_name": "transformers",
        "tags": ["headcount", "pruned"],
        "base_model": "google-bert/bert",
        "pipeline_tag": "text-classification",
        **old,
    }
    assert yaml.safe_load(front.removeprefix("---\n").removesuffix("\n---")) == known
    card = ModelCard(text)  # the hub's own reader
    assert card.data.to_dict() == known
    assert card.text.strip() == "# title\n\n---\n\nbody"


def test_the_command_in_the_card_is_the_command(place: Path, tmp_path: Path) -> None:
    spaced = tmp_path / "a folder"
    asked = [*_asked(place, spaced, "--remove", "25%", "--no-report", "--force", "--limit", "200", "--quiet")]
    _run(*asked)
    told = read(spaced / "run").read_json("prune")
    words = shlex.split(told["command"])
    assert sorted(words) == sorted(["headcount", *map(str, asked)])
    assert _run(*words[1:]).exit_code == 0
