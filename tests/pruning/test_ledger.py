"""What a plan has seen and which promises were tried before, as the command and the run folders know it."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers.small_models import ran as _run
from helpers.small_models import ran_json as _json
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

import headcount as hc
from headcount.cli.options import CommonFlags
from headcount.cli.pruning.front import sets_from
from headcount.data import example_sets, seen_examples, splits
from headcount.pruning import ledger, pipeline, plan_tests
from headcount.runs import read
from headcount.stats.metrics import metric
from headcount.stats.paired_shares import exact_p
from pruning.test_pipeline import _model, _sentences, _task, _write, place, quick  # noqa: F401 (fixtures)

ALPHA = 0.05


@pytest.fixture
def files(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """A folder to work in, with examples to select on in e.tsv, others in other.tsv, and some of both in both.tsv."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "bench", lambda *_, **__: None)
    rows, others = (_different(number) for number in (7, 8))
    for name, some in {"e": rows, "other": others, "both": rows[:60] + others[:80]}.items():
        _write(tmp_path / f"{name}.tsv", some)
    return tmp_path


def _different(seed: int) -> list[tuple[str, int]]:
    """120 sentences that are in no other file."""
    return [(f"{text} {('war', 'song')[seed % 2]}", label) for text, label in _sentences(120, seed)]


def _asked(place: Path, *words: object, data: str = "dev") -> tuple[object, ...]:  # noqa: F811
    return ("prune", place / "classifier", "--data", place / f"{data}.tsv", *words)


def _dry(place: Path, run: str, *words: object, select: str = "e.tsv") -> Any:  # noqa: F811
    """What a dry run on e.tsv finds; the plan is tested in one step, which is quick, and loses less."""
    more = ("--select-data", select, "--max-drop", 60, "--dry-run", "--run", run)
    return _json(*_asked(place, *more, *words, data="few"))


def _plan(folder: Path, text: str = "0:1") -> Path:
    path = folder / "mine.json"
    hc.Plan.of(text).write(path)
    return path


def _marks(place: Path, *paths: Path) -> frozenset[bytes]:  # noqa: F811
    tokenizer = str(place / "classifier")
    return frozenset().union(
        *(seen_examples.marks(hc.task("classification", path, tokenizer=tokenizer)) for path in paths)
    )


# -- what a plan has seen --------------------------------------------------------------------------------------------------


def test_an_edited_plan_is_never_tested_on_examples_that_it_was_chosen_on(place: Path, files: Path) -> None:  # noqa: F811
    shared = (*_asked(place), "--max-drop", 20, "--dry-run")
    _run(*shared, "--score-data", place / "train.tsv", "--select-data", "e.tsv", "--step", 6, "--run", "a")
    again = (*shared, "--plan", "a/plan.json", "--select-data")
    with says(hc.errors.BadData, about="The plan has seen all"):
        _run(*again, "e.tsv", "--run", "b")
    scored = _marks(place, place / "train.tsv") - _marks(place, place / "dev.tsv")  # the others are to report on
    with says(hc.errors.BadData, about="are also among those to report on"):  # scored on: no examples to test on either
        _run(*again, place / "train.tsv", "--run", "b")
    shown = _run(*again, "both.tsv", "--run", "b").output
    first = _marks(place, files / "e.tsv") | scored
    known = sum(len(_marks(place, path) & first) for path in (files / "both.tsv", place / "dev.tsv"))
    assert len(_marks(place, files / "both.tsv") & first) == 60
    assert f"{known} examples that the plan has seen were left out" in shown
    second = seen_examples.read_seen(json.loads((files / "b" / "plan.json").read_text())["seen"], Path())
    assert second["select"] == _marks(place, files / "e.tsv", files / "both.tsv"), "those of both generations"
    assert second["score"] == scored
    third = (*shared, "--plan", "b/plan.json", "--run", "c", "--select-data")
    for name in ("e.tsv", "both.tsv"):
        with says(hc.errors.BadData, about="The plan has seen all"):
            _run(*third, name)
    assert _json(*third, "other.tsv")["guarantee"]["n"] == len(
        _marks(place, files / "other.tsv") - _marks(place, files / "both.tsv")
    )


def test_both_folders_say_what_was_seen_also_what_was_reported_on(place: Path, files: Path) -> None:  # noqa: F811
    asked = _asked(place, "--remove", 3, "--no-report", "--run", "a")
    _run(*asked, "--dry-run")
    dry = json.loads((files / "a" / "plan.json").read_text())
    assert set(dry["seen"]) == {"score"}
    _run(*asked, "-o", "smaller")
    inside, beside = ((files / name / "plan.json").read_text() for name in ("smaller", "a"))
    assert json.loads(inside) == json.loads(beside)
    whole = seen_examples.read_seen(json.loads(inside)["seen"], Path())
    assert set(whole) == {"score", "report"}
    assert whole["score"] | whole["report"] == _marks(place, place / "dev.tsv")
    with says(hc.errors.BadData, about="its numbers were reported on"):
        _run(*_asked(place, "--plan", "smaller/plan.json", "--no-report", "-o", "again"))
    _run(*asked, "--dry-run")
    assert json.loads((files / "a" / "plan.json").read_text()) == json.loads(beside), "what was told is not forgotten"
    assert hc.Plan.read(files / "a" / "plan.json") == hc.Plan.read(files / "smaller" / "plan.json")


def test_a_plan_written_by_the_verb_says_it_too(place: Path, tmp_path: Path) -> None:  # noqa: F811
    model = _model(place)
    score, report = splits.distinct(_task(place, "few")).split(0.5, 0.5)
    hc.pruning.save_pruned(model, tmp_path / "smaller", report, hc.pruning.choose(model, remove=2, score=score))
    note = seen_examples.read_seen(json.loads((tmp_path / "smaller" / "plan.json").read_text())["seen"], Path())
    assert note == {"choose": seen_examples.marks(score), "report": seen_examples.marks(report)}


def test_what_was_scored_on_may_be_tuned_on_again_and_what_was_selected_on_may_not(place: Path, files: Path) -> None:  # noqa: F811
    _dry(place, "a", "--score-data", place / "train.tsv", "--by", "taylor", "--step", 12)
    words = ("--plan", "a/plan.json", "--tune")
    given, old = CommonFlags(data=str(place / "dev.tsv")), _seen_in(files / "a")
    sets = _sets(place, given, (True, False), (str(place / "train.tsv"), None, None, None), old)
    assert sets.score is not None
    assert seen_examples.marks(sets.score) == _marks(place, place / "train.tsv")
    sets = _sets(place, given, (True, False), (str(files / "both.tsv"), None, None, None), old)
    assert sets.score is not None
    assert seen_examples.marks(sets.score) == _marks(place, files / "both.tsv") - _marks(place, files / "e.tsv")
    with says(hc.errors.BadData, about="give others with --score-data"):
        _run(*_asked(place, *words, "--score-data", "e.tsv", "--dry-run", "--run", "b"))


def _seen_in(folder: Path) -> seen_examples.Seen:
    return seen_examples.read_seen(json.loads((folder / "plan.json").read_text())["seen"], folder)


def _sets(
    place: Path,  # noqa: F811
    given: CommonFlags,
    needs: tuple[bool, bool],
    others: tuple[Any, Any, Any, Any],
    old: seen_examples.Seen | None = None,
) -> example_sets.Sets:
    more = {} if old is None else {"seen_examples": old}
    return sets_from(str(place / "classifier"), _model(place), given, needs, others, **more)


def test_every_generation_has_another_part_of_one_file(place: Path, files: Path) -> None:  # noqa: F811
    """Examples that are left are shared out anew: else the part to select on would be empty from the second time on."""
    shared = ("--max-drop", 60, "--dry-run", "--no-report")
    _run(*_asked(place, *shared, "--step", 6, "--run", "0"))
    for number in range(3):
        file = files / f"{number}" / "plan.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"remove": {"0": f"{number}"}}))  # edited
        _run(*_asked(place, *shared, "--plan", f"{number}/plan.json", "--run", f"{number + 1}"))
        old, new = _seen_in(files / f"{number}"), _seen_in(files / f"{number + 1}")
        assert len(new["select"]) > len(old["select"]) + 5
    everything = len(_marks(place, place / "dev.tsv"))
    assert 0.9 * everything < len(seen_examples.everything(_seen_in(files / "3"))) < everything


def test_what_was_seen_comes_back_from_a_few_bytes(place: Path) -> None:  # noqa: F811
    task = _task(place, "few")
    note = seen_examples.to_note({"score": seen_examples.marks(task), "select": frozenset()})
    assert set(note) == {"score"}
    assert len(base64.b64decode(note["score"])) == 8 * len(splits.digests(task))
    assert seen_examples.read_seen(note, Path()) == {"score": seen_examples.marks(task)}
    assert seen_examples.unseen(task, seen_examples.marks(task)) is None
    assert seen_examples.unseen(task, frozenset()) is task
    some = seen_examples.marks(task.subset([0, 5]))
    left = seen_examples.unseen(task, some)
    assert left is not None
    assert seen_examples.marks(left) == seen_examples.marks(task) - some
    assert len(seen_examples.short(b"ab")) == 8


@pytest.mark.parametrize("note", ["everything", ["x"], {"score": 3}, {"score": "AAAA"}, {"score": "no base64!"}, None])
def test_a_damaged_note_of_what_was_seen_is_refused(place: Path, files: Path, note: Any) -> None:  # noqa: F811
    (files / "plan.json").write_text(json.dumps({**hc.Plan.of("0:1").to_json(), "seen": note}))
    with says(hc.errors.BadPlan, about='has "seen" is damaged'):
        _run(*_asked(place, "--plan", "plan.json", "--dry-run", "--run", "a"))


# -- promises tried before ---------------------------------------------------------------------------------------------------


def test_every_further_promise_on_the_same_examples_has_a_smaller_level(place: Path, files: Path) -> None:  # noqa: F811
    plans = [*(f"{layer}:0" for layer in range(3)), *(f"0.mlp:{n}" for n in range(5))]
    bounds = []
    for number, text in enumerate(plans, 1):
        found = _dry(place, f"tries/{number}", "--plan", _plan(files, text))
        assert found["tries"]["number"] == found["guarantee"]["tries"] == number
        assert found["tries"]["level"] == ALPHA / number
        sums = ALPHA * sum(1 / n for n in range(1, number + 1))
        assert found["tries"]["together"] == pytest.approx(sums)
        (step,) = found["guarantee"]["steps"]
        assert step["shown"] == (step["p"] <= ALPHA / number)
        bounds.append(step["bound"])
    assert found["tried"].startswith("the 8th promise tried on these examples: alpha is shared, 0.05 / 8 (the 8 ")
    assert found["tried"].endswith("(the 8 of them together: 0.136)"), sums
    assert bounds[-1] > bounds[0], "a bound at a smaller level is wider"


def test_what_was_counted_is_said_and_stays_whatever_is_tried_later(place: Path, files: Path) -> None:  # noqa: F811
    def asked(seed: int) -> tuple[object, ...]:
        more = ("--seed", seed, "--no-report", "--force", "-o", f"m{seed}", "--run", f"tries/{seed}")
        words = ("--max-drop", 60, "--step", 6, "--by", "random", "--select-data", "e.tsv", *more)
        return _asked(place, *words, data="few")

    first = _run(*asked(0)).output
    assert "alpha is shared" not in first
    _dry(place, "tries/x", "--plan", _plan(files))
    words = "the 3rd promise tried on these examples: alpha is shared, 0.05 / 3"
    for _ in range(2):  # the second time it goes on where it was
        shown = _run(*asked(2)).output
        found = read(files / "tries" / "2").read_json("prune")
        assert words in found["sentence"]
        assert "95 % sure" in found["sentence"]
        assert shown.count(words) == 2, "by the plans, and in the sentence"
        assert words in (files / "m2" / "README.md").read_text().replace("\\", "")
        assert "each at level 0.0166667" in (files / "m2" / "README.md").read_text().replace("\\", "")
        assert found["tries"]["number"] == 3
    assert "alpha is shared" not in _run(*asked(0), "--dry-run").output, "it was the first, and stays it"


def test_what_ended_without_a_promise_or_was_stopped_counts_too(
    place: Path,  # noqa: F811
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strict = _asked(place, "--select-data", "e.tsv", "--max-drop", 0.1, "--dry-run", "--plan", _plan(files), data="few")
    with says(hc.errors.NotShown):
        _run(*strict, "--run", "tries/1")
    with says(hc.errors.NotShown, about="at level 0.05 / 2"):
        _run(*strict, "--run", "tries/2", "--seed", 1)

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(plan_tests, "measure", stop)
        assert _stopped(*strict, "--run", "tries/3", "--seed", 2)
    assert not list((files / "tries" / "3").glob("select-*"))
    assert _dry(place, "tries/4", "--plan", _plan(files))["tries"]["number"] == 4


def _stopped(*words: object) -> bool:
    from typer.testing import CliRunner

    from headcount.cli.app import app

    return CliRunner().invoke(app, list(map(str, words))).exit_code != 0


def test_only_other_promises_about_this_model_on_these_examples_count(place: Path, files: Path) -> None:  # noqa: F811
    one = ("--plan", _plan(files))
    assert _dry(place, "tries/1", *one)["tries"]["number"] == 1
    assert _dry(place, "tries/2", *one)["tries"]["number"] == 1, "the very same"
    assert _dry(place, "tries/3", *one, select="other.tsv")["tries"]["number"] == 1
    assert _dry(place, "tries/4", *one, select="both.tsv")["tries"]["number"] == 3, "some of either"
    assert _dry(place, "runs/5", *one, "--seed", 1)["tries"]["number"] == 1, "in another folder"
    assert _dry(place, "tries/6", *one, "--seed", 2)["tries"]["number"] == 4, "both.tsv, and one in runs/"
    (files / "tries" / "7").mkdir()
    (files / "tries" / "7" / "run.json").write_text("{")
    assert _dry(place, "tries/8", *one, "--seed", 3)["tries"]["number"] == 5, "what cannot be read is passed over"
    other = _model(place)
    with torch.no_grad():
        other.classifier.bias.add_(0.01)
    shutil.copytree(place / "classifier", files / "classifier")
    other.half().save_pretrained(files / "classifier")
    more = ("--select-data", "e.tsv", "--max-drop", 60, "--dry-run", "--run", "tries/9", *one)
    assert _json("prune", "classifier", "--data", place / "few.tsv", *more)["tries"]["number"] == 1


def test_a_run_of_an_older_headcount_counts_by_the_fingerprint_of_its_examples(place: Path, files: Path) -> None:  # noqa: F811
    _dry(place, "tries/1", "--plan", _plan(files))
    for name in ("promise", "tries"):
        (files / "tries" / "1" / f"{name}.npz").unlink()
    found = _dry(place, "tries/2", "--plan", _plan(files), "--seed", 1)
    assert (found["tries"]["number"], found["tries"]["before"]) == (2, ALPHA)
    assert _dry(place, "tries/3", "--plan", _plan(files), select="both.tsv")["tries"]["number"] == 2


def test_fresh_examples_begin_at_one_and_a_stopped_run_keeps_its_own(place: Path, files: Path) -> None:  # noqa: F811
    one = ("--plan", _plan(files))
    _dry(place, "tries/1", *one)
    found = _dry(place, "tries/2", *one, "--fresh", select="both.tsv")
    new = len(_marks(place, files / "both.tsv") - _marks(place, files / "e.tsv"))
    assert (found["tries"]["number"], found["guarantee"]["n"]) == (1, new)
    assert "tested on before were left out" in _run(*_fresh(place, "both.tsv", "tries/2", *one)).output
    assert _dry(place, "tries/2", *one, "--fresh", select="both.tsv") == found, "the same folder, the same examples"
    with says(hc.errors.BadData, about="were used for a promise before"):
        _run(*_fresh(place, "e.tsv", "tries/3", *one))
    with says(hc.errors.BadData, about="were used for a promise before"):
        _run(*_fresh(place, "both.tsv", "tries/3", *one, "--seed", 4))
    assert _dry(place, "tries/3", *one, "--fresh", select="other.tsv")["guarantee"]["n"] == len(
        _marks(place, files / "other.tsv") - _marks(place, files / "both.tsv")
    )


def _fresh(place: Path, select: str, run: str, *words: object) -> tuple[object, ...]:  # noqa: F811
    more = ("--select-data", select, "--max-drop", 60, "--dry-run", "--fresh", "--run", run)
    return _asked(place, *more, *words, data="few")


def test_tries_that_are_announced_share_alpha_from_the_first_on(place: Path, files: Path) -> None:  # noqa: F811
    one = ("--plan", _plan(files), "--tries", 3)
    said = []
    for number in range(1, 5):
        found = _dry(place, f"tries/{number}", *one, "--seed", number)
        assert found["guarantee"]["tries"] == max(3, number)
        said.append(found["tried"])
    assert said[0] == "the 1st of 3 promises to be tried on these examples: alpha is shared, 0.05 / 3"
    assert said[1] == "the 2nd of 3 promises to be tried on these examples: alpha is shared, 0.05 / 3"
    assert said[2] == "the 3rd promise tried on these examples: alpha is shared, 0.05 / 3"
    assert said[3].endswith(" (the 4 of them together: 0.063)")
    for words in (("--tries", 3), ("--fresh",)):
        assert _stopped(*_asked(place, "--remove", 2, "--dry-run", *words))
    assert _stopped(*_asked(place, "--max-drop", 2, "--dry-run", "--tries", 0))


def test_where_hardly_any_level_is_left_nothing_is_tested(place: Path, tmp_path: Path) -> None:  # noqa: F811
    task = splits.distinct(_task(place, "few"))
    for number in range(1, 7):
        question = {"command": "prune", "options": {"max_drop": 1.0, "seed": number}}
        with hc.runs.Run.open(tmp_path / "tries" / str(number), question) as run:
            if number < 5:
                assert ledger.tries(run, task, alpha=0.004).number == number
            else:
                with says(hc.errors.BadData, about=f"the {number}th promise tried on these"):
                    ledger.tries(run, task, alpha=0.004)
    assert [ledger._ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "101st", "111th")
    ]


def test_twenty_tries_break_a_promise_no_oftener_than_said() -> None:
    """Twenty plans that each lose what is allowed, and one example in a thousand more, tested on the same examples."""
    rng, n, drop, repeats = np.random.default_rng(0), 300, 0.05, 400
    plain = [ledger.Tries(number, 1, ALPHA, 0.0) for number in range(1, 21)]
    known: dict[tuple[int, int], float] = {}
    broken = {"each at alpha": 0, "counted": 0, "announced": 0}
    for _ in range(repeats):
        best = {"each at alpha": False, "counted": False, "announced": False}
        for tries in plain:
            lost, won, _ = map(int, rng.multinomial(n, (0.071, 0.02, 0.909)))
            p = known.setdefault((lost, won), -1.0)
            if p < 0:
                p = known[lost, won] = exact_p(lost, won, n, drop)
            best["each at alpha"] |= p <= ALPHA
            best["counted"] |= p <= tries.level
            best["announced"] |= p <= ledger.Tries(tries.number, 20, ALPHA).level
        for name, wrong in best.items():
            broken[name] += wrong
    together = ALPHA * sum(1 / k for k in range(1, 21))

    def most(level: float) -> float:
        return repeats * (level + 3 * (level * (1 - level) / repeats) ** 0.5)

    assert broken["each at alpha"] > 0.4 * repeats
    assert broken["counted"] <= most(together)
    assert broken["announced"] <= most(ALPHA)


# -- where the examples come from ------------------------------------------------------------------------------------------


def test_without_select_data_the_guarantee_is_shown_on_a_part_of_the_data(place: Path) -> None:  # noqa: F811
    dev, train, few = (str(place / f"{name}.tsv") for name in ("dev", "train", "few"))
    given, whole = CommonFlags(data=dev), _marks(place, place / "dev.tsv")
    three = _sets(place, given, (True, True), (None, None, None, None))
    scored = _sets(place, given, (True, True), (train, None, None, None))
    assert scored.score is not None
    assert scored.select is not None
    assert seen_examples.marks(scored.score) == _marks(place, place / "train.tsv") - whole, "all that has no other use"
    assert seen_examples.marks(scored.select) | seen_examples.marks(scored.report) == whole
    assert seen_examples.marks(scored.select) < whole
    selected = _sets(place, given, (True, True), (None, None, few, None))
    assert selected.score is not None
    assert selected.select is not None
    assert seen_examples.marks(selected.score) < whole
    assert seen_examples.marks(selected.select) == _marks(place, place / "few.tsv") - seen_examples.marks(
        selected.report
    )
    for sets in (three, scored, selected):
        assert seen_examples.marks(sets.report) == seen_examples.marks(three.report), (
            "what is reported on is the same 30 % of the file"
        )
    alone = _sets(place, given, (True, False), (train, None, None, None))
    assert seen_examples.marks(alone.report) == whole, "no promise: all of --data"


def _easy(place: Path, path: Path) -> None:  # noqa: F811
    """Examples that the model is right about, as if it had been trained on them: labelled with what it says."""
    task = _task(place, "train")
    rows = plan_tests.measure(_model(place), task, [hc.Plan()])[0]
    said = rows[:, task.metric.columns.index("prediction")].astype(int)
    _write(path, [(text, int(label)) for (text, _), label in zip(_sentences(300, 1), said, strict=True)])


def test_it_is_said_first_that_the_model_has_probably_seen_the_selection_examples(place: Path, files: Path) -> None:  # noqa: F811
    _easy(place, files / "easy.tsv")
    shared = (*_asked(place), "--plan", _plan(files), "--max-drop", 60, "--no-report", "--force", "-o", "smaller")
    shown = _run(*shared, "--select-data", "easy.tsv", "--run", "r/1").stdout
    words = (
        "The model has probably been trained on the examples that the promise was shown on: accuracy is 1.000 on those"
    )
    assert shown.startswith(f"warning: {words}")
    found = read(files / "r" / "1").read_json("prune")
    assert found["suspicion"].startswith(words)
    assert found["suspicion"] in found["sentence"]
    assert words in (files / "smaller" / "README.md").read_text().replace("\\", "")
    dry = (*shared[:-2], "--dry-run", "--run")
    assert _run(*dry, "r/2", "--select-data", "easy.tsv").stdout.startswith(f"warning: {words}")
    assert _json(*dry, "r/2", "--select-data", "easy.tsv")["suspicion"] == found["suspicion"]
    told = _json(*shared, "--select-data", place / "train.tsv", "--run", "r/plain")
    assert told["suspicion"] is None
    assert "probably" not in told["sentence"]
    assert _json(*dry, "r/split")["suspicion"] is None


def test_the_suspicion_is_seldom_wrong_and_knows_which_way_is_better() -> None:
    accuracy, loss, rng = (
        metric("accuracy"),
        metric("loss", columns=("label", "prediction", "loss")),
        np.random.default_rng(0),
    )

    def drawn(count: int, right: float) -> np.ndarray:
        wrong = rng.random(count) >= right
        return np.stack([np.zeros(count), wrong, 1.0 * wrong + rng.random(count)], axis=1)

    alarms = 0
    for seed in range(200):
        one, other = hc.stats.Result(accuracy, drawn(80, 0.9)), hc.stats.Result(accuracy, drawn(50, 0.9))
        alarms += bool(plan_tests.known_before(one, other, seed))
    assert alarms <= 200 * (0.01 + 3 * (0.01 * 0.99 / 200) ** 0.5)
    good, bad = drawn(400, 0.99), drawn(300, 0.88)
    for measure in (accuracy, loss):
        assert "probably" in plan_tests.known_before(hc.stats.Result(measure, good), hc.stats.Result(measure, bad))
        assert plan_tests.known_before(hc.stats.Result(measure, bad), hc.stats.Result(measure, good)) == ""


# -- what is shipped is what was tested ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16])
def test_a_tuned_model_is_tested_and_saved_in_the_number_format_of_its_source(
    dtype: torch.dtype,
    place: Path,  # noqa: F811
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def equal(_: Any, batch: Any) -> torch.Tensor:
        return batch["input_ids"][:, 0] * 0.0

    # tuning is kept at every step, as the judge finds both equally good
    monkeypatch.setattr(plan_tests, "_judge", lambda task: hc.custom_task([task.batch()], values=equal))
    shutil.copytree(place / "classifier", files / "source")
    _model(place).to(dtype).save_pretrained(files / "source")
    tested, really = dict[str, Any](), plan_tests.measure

    def watched(model: Any, task: hc.data.Task, plans: Any, *, name: str, **how: Any) -> np.ndarray:
        rows = really(model, task, plans, name=name, **how)
        state = {key: value.cpu().clone() for key, value in model.state_dict().items()}
        tested[name] = (state, rows[0], len(plans[0]))
        return rows

    monkeypatch.setattr(plan_tests, "measure", watched)
    words = ("--units", "heads,neurons", "--multiple", 1, "--step", "40%", "--tune", "--metric", "loss", "--no-report")
    more = ("--select-data", "e.tsv", "--max-drop", 0.3, "-o", "smaller", "--run", "a")
    found = _json("prune", "source", "--data", place / "dev.tsv", *words, *more)
    assert found["tuned"] is not None
    assert any(site["used"] for site in found["tuned"]["sites"])
    source, written = ((files / name / "model.safetensors") for name in ("source", "smaller"))
    assert {tensor.dtype for tensor in load_file(written).values()} == {dtype}
    assert written.stat().st_size < source.stat().st_size
    last = [step for step in found["guarantee"]["steps"] if step["shown"]][-1]
    (name,) = [one for one in tested if one.startswith(f"select-{last['removed']:05d}") and "-tuned" in one]
    state, rows, closed = tested[name]
    smaller = hc.load(files / "smaller", dtype=torch.float32)
    now = smaller.state_dict()
    assert closed == 0, "what was tested was cut"
    assert set(now) == set(state)
    assert all(torch.equal(now[key], state[key]) for key in now), "weights tested and weights loaded, bit for bit"
    task = splits.distinct(hc.task("classification", files / "e.tsv", tokenizer=str(files / "source"), metric="loss"))
    again = really(smaller, task, [hc.Plan()], name="x")[0]
    assert np.allclose(again[:, :2], rows[: len(again), :2])
    assert task.metric.value(again) == pytest.approx(last["value"], rel=1e-4)


def test_in_python_the_number_format_is_the_models_own_unless_another_is_named(
    place: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def equal(_: Any, batch: Any) -> torch.Tensor:
        return batch["input_ids"][:, 0] * 0.0

    monkeypatch.setattr(plan_tests, "_judge", lambda task: hc.custom_task([task.batch()], values=equal))
    model = AutoModelForSequenceClassification.from_pretrained(place / "classifier", dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0001)  # digits that half precision has no room for
    monkeypatch.setattr(pipeline, "bench", lambda *_, **__: None)
    score, select, report = splits.distinct(_task(place, "dev", limit=300)).split(0.3, 0.4, 0.3)
    asked = {"max_drop": 30.0, "units": "heads,neurons", "tune": True, "step": "30%", "multiple": 1}
    for dtype in (None, torch.float16):
        choice = hc.pruning.choose(model, **asked, score=score, select=select, dtype=dtype)
        assert choice.tuned is not None
        output = tmp_path / str(dtype)
        hc.pruning.save_pruned(model, output, report, choice)
        kept = {tensor.dtype for tensor in load_file(output / "model.safetensors").values()}
        assert kept == {dtype or torch.float32}
        smaller = hc.load(output, dtype=torch.float32)
        last = choice.guarantee.kept if choice.guarantee is not None else None
        assert last is not None
        rows = plan_tests.measure(smaller, select, [hc.Plan()])[0]
        assert select.metric.value(rows) == pytest.approx(last.value)
        if dtype is not None:
            same = plan_tests.as_saved(model, choice.plan, choice.changes, dtype).state_dict()
            assert all(torch.equal(same[key], value) for key, value in smaller.state_dict().items())
    assert pipeline.number_format(place / "classifier") == torch.float16
