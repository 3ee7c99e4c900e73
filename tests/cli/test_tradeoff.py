"""`tradeoff` and what it gives `prune`: a table to pick from, from one scoring, and no ruined model without being told to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import says
from helpers.small_models import ran
from pruning.test_pipeline import _leftovers, _model, place, quick  # noqa: F401 (fixtures)

import headcount as hc
from headcount.errors import BadRun
from headcount.importance import gradients
from headcount.plans import Plan
from headcount.runs import read


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run folders go into runs/, of a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The passes that gradients took."""
    out, really = list[int](), gradients._batch
    monkeypatch.setattr(gradients, "_batch", lambda *given: (out.append(1), really(*given))[1])
    return out


def _words(place: Path, *more: object) -> tuple[object, ...]:  # noqa: F811
    data = ("--data", place / "dev.tsv", "--score-data", place / "train.tsv", "--score-limit", 80)
    return (place / "classifier", *data, "--metric", "loss", "--multiple", 1, *more)


def _printed(*words: object, code: int = 0) -> dict[str, Any]:
    done = ran(*words, "--json")
    assert done.exit_code == code, done.output
    out: dict[str, Any] = json.loads(done.stdout)
    return out


def test_a_row_is_carried_out_from_the_same_scoring(place: Path, passes: list[int]) -> None:  # noqa: F811
    found = _printed("tradeoff", *_words(place))
    once = len(passes)
    assert once > 0
    row = found["rows"][1]
    pruned = _printed("prune", *_words(place), "--row", 2, "-o", "smaller", "--no-report")
    assert len(passes) == once, "nothing is scored again"
    assert Plan.from_json(pruned["plan"]).units == Plan.from_json(row["plan"]).units
    assert hc.removed(hc.load("smaller")).units == Plan.from_json(row["plan"]).units
    assert "row 2 of the trade-off" in pruned["plan"]["why"]
    by_folder = _printed("prune", *_words(place), "--tradeoff", found["run"], "--row", 2, "--dry-run")
    assert Plan.from_json(by_folder["plan"]).units == Plan.from_json(row["plan"]).units
    _printed("prune", *_words(place), "--units", "heads,neurons", "--flops", "70%", "-o", "other", "--no-report")
    assert len(passes) == once, "and one budget more costs no new scoring"


def test_without_a_size_prune_shows_the_front_and_writes_nothing(place: Path, tmp_path: Path) -> None:  # noqa: F811
    done = ran("prune", *_words(place), "-o", "smaller")
    assert done.exit_code == 0, done.output
    assert "what can be had" in done.output
    assert "--row N -o FOLDER" in done.output
    assert "a little too good" in done.output
    assert _leftovers(tmp_path) == ["runs"]
    shown = _printed("tradeoff", *_words(place))
    assert f"--tradeoff {Path(shown['run'])}" in done.output, "one front, whoever asks"
    lines = [line for line in done.output.splitlines() if line.lstrip()[:1].isdigit() and "[" in line]
    assert len(lines) == len(shown["rows"]) + 1


def test_instead_of_a_ruined_model_there_is_a_sentence_and_the_front(
    place: Path,  # noqa: F811
    tmp_path: Path,
    passes: list[int],
) -> None:
    words = ("prune", *_words(place), "--units", "heads,neurons", "-o", "smaller", "--no-report")
    done = ran(*words, "--remove", "100%")
    assert done.exit_code == 1
    assert "the model would be ruined" in done.output
    assert "Nothing was written" in done.output
    assert "what can be had" in done.output
    assert not (tmp_path / "smaller").exists()
    refused = _printed(*words, "--remove", "100%", code=1)
    assert "ruined" in refused["refused"]
    assert refused["tradeoff"]["rows"]
    told = _printed(*words, "--remove", "100%", "--brake", "off")
    assert told["removed"] == told["of"]
    assert (tmp_path / "smaller").is_dir()


def test_a_front_of_other_examples_or_another_model_is_refused(place: Path, tmp_path: Path) -> None:  # noqa: F811
    found = _printed("tradeoff", *_words(place))
    words = ("--multiple", 1, "--tradeoff", found["run"], "--row", 1, "--dry-run")
    with says(BadRun, about="of other scoring examples"):
        ran("prune", place / "classifier", "--data", place / "dev.tsv", *words)
    other = _model(place)
    other.classifier.weight.data.mul_(2)
    hc.save(other, tmp_path / "other", source=place / "classifier")
    data = ("--data", place / "dev.tsv", "--score-data", place / "train.tsv", "--score-limit", 80)
    with says(BadRun, about="of another model"):
        ran("prune", tmp_path / "other", *data, *words)


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (("--row", 1, "--flops", "50%", "-o", "x"), "a size of its own"),
        (("--tradeoff", "runs", "--flops", "50%", "-o", "x"), "goes with --row"),
        (("--brake", "much", "--flops", "50%", "--units", "neurons", "-o", "x"), "A brake is a share"),
        (("--threads", 0, "--flops", "50%", "-o", "x"), "--threads"),
        (("--row", 1), "-o FOLDER"),
    ],
)
def test_flags_that_do_not_fit_are_refused(words: tuple[object, ...], about: str, place: Path, tmp_path: Path) -> None:  # noqa: F811
    try:
        said = ran("prune", *_words(place, *words)).output
    except hc.HeadcountError as error:
        said = str(error)
    assert about in " ".join(said.replace("│", " ").split())
    assert _leftovers(tmp_path) == []


def test_both_a_size_and_a_largest_drop(place: Path) -> None:  # noqa: F811
    words = (
        "prune",
        *_words(place),
        "--units",
        "heads,neurons",
        "--flops",
        "70%",
        "--step",
        "10%",
        "-o",
        "smaller",
        "--no-report",
    )
    found = _printed(*words, "--max-drop", 60)
    assert found["guarantee"]["removed"] == found["removed"]
    assert found["flops"][1] <= 0.7 * found["flops"][0]
    assert found["candidates"]
    assert sum(candidate["chosen"] for candidate in found["candidates"]) == 1


def test_the_page_draws_the_front(place: Path, tmp_path: Path) -> None:  # noqa: F811
    found = _printed("tradeoff", *_words(place, "-o", "front"))
    page = hc.report(["front"], tmp_path / "page.html").read_text()
    assert "What can be had for what" in page
    assert "scoring examples" in page
    assert read("front").finished
    assert len(found["rows"]) >= 2


def test_what_is_chosen_is_said_in_the_output_and_the_card(place: Path, tmp_path: Path) -> None:  # noqa: F811
    done = ran("prune", *_words(place), "--units", "heads,neurons", "--flops", "70%", "-o", "smaller", "--no-report")
    assert done.exit_code == 0, done.output
    card = (tmp_path / "smaller" / "README.md").read_text()
    for text in (done.output, card):
        assert "Chosen of" in text
        assert "Brake: on" in text
