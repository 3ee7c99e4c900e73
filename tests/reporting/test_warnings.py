"""A ruined model does not look like a good one: on the page, in the model card, and in what prune says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import run_folders

from headcount.cli.text import pruned_text
from headcount.documents.prune import PruneDocument
from headcount.documents.results import ResultDocument
from headcount.reporting import model_warnings
from headcount.reporting import page as report_page
from headcount.reporting.findings import gather
from headcount.reporting.model_card import card
from headcount.reporting.sections import role_survival
from headcount.stats.constant_answer import constant_answer, entropy, share_lost
from headcount.stats.metrics import metric
from headcount.stats.results import Result


def result(value: float, constant: float | None, reach: float = 0.03, name: str = "accuracy") -> ResultDocument:
    return ResultDocument(metric=name, value=value, low=value - reach, high=value + reach, n=585, constant=constant)


def pruned(before: ResultDocument, after: ResultDocument) -> PruneDocument:
    order = run_folders.scores().order()
    document = PruneDocument.from_json(run_folders.prune(order, 4))
    return replace(document, before=before, after=after)


RUINED, HALF_LOST, WELL = (result(value, 0.51) for value in (0.53, 0.68, 0.86))
WHOLE = result(0.89, 0.51)


@pytest.mark.parametrize(
    ("after", "begin"),
    [(RUINED, "At chance: accuracy 0.530 [0.500, 0.560]"), (HALF_LOST, "Most of it is lost"), (WELL, "")],
)
def test_the_page_the_card_and_the_command_warn_alike(after, begin, tmp_path) -> None:
    document = pruned(WHOLE, after)
    warnings = model_warnings.of_prune(document)
    assert [warning[: len(begin)] for warning in warnings] == [begin] * bool(begin)
    run_folders.folder(tmp_path / "run", "prune", {"prune": document.to_json()})
    page = report_page.report([tmp_path / "run"], tmp_path / "page.html").read_text(encoding="utf-8")
    text, readme = pruned_text(document), card(document)
    assert ('class="answer bad"' in page) == ('class="alert"' in page) == bool(begin)
    assert ("WARNING: " in text) == ("> **Warning.**" in readme) == bool(begin)
    for warning in warnings:
        assert warning in page
        assert f"WARNING: {warning}" in text
        assert warning.partition(":")[0] in readme
    assert text.index("WARNING") < text.index("before") if begin else True  # beside the headline, not below the table


def test_half_of_the_way_is_the_line_and_a_loss_runs_the_other_way() -> None:
    assert not model_warnings.of_results(WHOLE, result(0.71, 0.51))
    assert model_warnings.of_results(WHOLE, result(0.69, 0.51))
    whole = result(3.0, 7.0, name="loss")
    assert not model_warnings.of_results(whole, result(4.9, 7.0, name="loss"))
    assert "52" in model_warnings.of_results(whole, result(5.1, 7.0, name="loss"))[0]
    assert model_warnings.of_results(whole, result(7.0, 7.0, name="loss"))[0].startswith("At chance")
    assert model_warnings.of_results(whole, result(9.0, 7.0, name="loss"))[0].startswith("At chance")
    ways = share_lost("perplexity", 10, 100, 1000), share_lost("perplexity", 10, 10, 1000)
    assert ways == pytest.approx((0.5, 0.0))  # of a perplexity in its logarithm
    assert share_lost("accuracy", 0.5, 0.4, 0.51) is None


def test_a_model_that_knew_nothing_before_is_not_called_ruined() -> None:
    (text,) = model_warnings.of_results(result(0.52, 0.51), result(0.51, 0.51))
    assert text.startswith("At chance from the start: neither the whole model")


def test_a_document_that_does_not_know_a_constant_answer_says_nothing_but_of_metrics_where_it_is_zero() -> None:
    assert not model_warnings.of_results(result(0.89, None), result(0.5, None))
    assert model_warnings.of_results(result(0.6, None, name="matthews"), result(0.02, None, name="matthews"))


def test_a_learned_run_is_warned_of_too(tmp_path) -> None:
    document = run_folders.learned(lost=0.35)
    for name in ("full", "learned"):
        document[name]["constant"] = 0.52
    run_folders.folder(tmp_path / "run", "learn", {"learned": document})
    (part,) = gather([tmp_path])
    assert report_page._chapter(part, 1).warnings[0].startswith("At chance")


# -- what a constant answer is worth ----------------------------------------------------------------------------------------


def test_constant_answers_against_their_definitions() -> None:
    labels = np.array([0, 1, 1, 1, 0, 1, 1, 0, 1, 1], dtype=float)
    rows = np.stack([labels, 1 - labels, np.full(10, 0.4)], axis=1)
    assert constant_answer(metric("accuracy"), rows) == 0.7
    assert constant_answer(metric("f1", labels=2), rows) == pytest.approx(2 * 0.7 / 1.7)  # always yes
    assert constant_answer(metric("matthews", labels=2), rows) == 0.0
    numbers = np.array([1.0, 2.0, 4.0, 7.5])
    guesses = numbers + np.array([0.5, -0.25, 1.0, 0.0])
    squared = metric("loss", columns=("label", "prediction", "loss"))
    answer = constant_answer(squared, np.stack([numbers, guesses, (numbers - guesses) ** 2], axis=1))
    assert answer == pytest.approx(((numbers - numbers.mean()) ** 2).mean())
    assert constant_answer(squared, rows) is None  # cross entropy: one that is too sure may be right all the same
    assert constant_answer(metric("loss", columns=("loss", "tokens")), np.ones((3, 2))) is None
    assert entropy(np.array([2, 1, 1, 0])) == pytest.approx(1.5 * math.log(2))


def test_results_carry_it_into_their_documents_and_older_ones_are_read() -> None:
    rows = np.array([[0, 0, 0.1], [1, 0, 0.9], [1, 1, 0.2]])
    document = ResultDocument.of(Result(metric("accuracy"), rows))
    assert document.constant == pytest.approx(2 / 3)
    old: dict[str, Any] = {key: value for key, value in document.to_json().items() if key != "constant"}
    assert ResultDocument.from_json(old).constant is None


# -- roles --------------------------------------------------------------------------------------------------------------------

MAINS = {f"{n}:{k}": "none" for n in range(9) for k in range(8)} | {f"3:{k}": "induction" for k in range(8)}


def test_a_role_that_is_lost_is_told_by_counting() -> None:
    gone = frozenset([f"3:{k}" for k in range(5)] + [f"0:{k}" for k in range(8)] + ["1:0"])  # 14 of 72
    losses = model_warnings.role_losses(MAINS, gone)
    assert losses == [("induction", 8, 5)]
    assert model_warnings.of_roles(losses, 14, 72)[0].startswith(
        "5 of 8 induction heads are gone, of all heads 19\u00a0%:"
    )
    spread = frozenset(f"{n}:{k}" for n in range(9) for k in range(4))  # half of all, and half of them
    assert not model_warnings.role_losses(MAINS, spread)
    assert model_warnings.role_losses(MAINS, spread | {f"3:{k}" for k in range(8)}) == [("induction", 8, 8)]


def test_a_role_that_goes_first_is_said_even_where_a_test_of_the_last_third_shows_nothing() -> None:
    first = [f"3:{k}" for k in range(5)] + [f"0:{k}" for k in range(8)] + ["1:0"]
    rest = [unit for unit in MAINS if unit not in first]
    late = [unit for unit in rest if MAINS[unit] == "none"][:35]
    order = first + late + [unit for unit in rest if unit not in late]
    course = role_survival.Course("taylor", frozenset(order), tuple(frozenset(order[n:]) for n in (0, 14, 28, 48)))
    assert course.first == frozenset(first)
    early = [(course, role_survival.odds(MAINS, course.heads, course.first))]
    (sentence,) = role_survival.lost_early(early)
    assert sentence.startswith(
        "By taylor, the first 14 of 72 heads to go take along 5 of 8 induction heads (1.6 expected by chance"
    )
    tested = [(course, role_survival.odds(MAINS, course.heads, course.last))]
    (nothing,) = role_survival.told(tested)
    assert "no role could be shown to be left more or less often" in nothing


def test_the_page_warns_of_lost_roles(tmp_path: Path) -> None:
    sites = run_folders.MINILM
    roles = run_folders.roles(sites)
    induction = [head["unit"] for head in roles["heads"] if head["main"] == "induction"]
    others = [str(unit) for unit in run_folders.units(sites) if str(unit) not in induction]
    order = [unit for unit in run_folders.units(sites) if str(unit) in induction]
    order += [unit for unit in run_folders.units(sites) if str(unit) in others]
    document = run_folders.prune(order, len(induction) + 1, sites)
    run_folders.folder(tmp_path / "prune", "prune", {"prune": document})
    run_folders.folder(tmp_path / "roles", "roles", {"roles": roles})
    (part,) = gather([tmp_path])
    (warning,) = report_page._chapter(part, 1).warnings
    assert warning.startswith(f"{len(induction)} of {len(induction)} induction heads are gone")
