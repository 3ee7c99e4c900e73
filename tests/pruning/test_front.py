"""The front: every row is what it says, smaller rows are never better, and a row carried out is the row."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from conftest import Fingerprint, says

import headcount as hc
from headcount.data import splits
from headcount.documents.bench import Ratio
from headcount.documents.curves import TradeoffDocument
from headcount.efficiency import costs
from headcount.errors import BadPlan
from headcount.pruning import budget as budgets
from headcount.pruning import front
from pruning.test_budget import speed_row
from pruning.test_pipeline import _model, _task, place, quick  # noqa: F401 (fixtures)


def _front(place: Path, **options: Any) -> tuple[Any, hc.data.Task, TradeoffDocument]:  # noqa: F811
    model, score = _model(place), _task(place, "train", limit=60, metric="loss")  # no two plans have the same
    options = {"step": "10%", "length": 8, "multiple": 1, "speeds": False, **options}
    return model, score, hc.pruning.tradeoff(model, score, **options)


def test_every_row_is_what_it_says_and_a_smaller_one_is_never_better(place: Path) -> None:  # noqa: F811
    model, score, found = _front(place)
    kept, examples = Fingerprint(model), splits.distinct(score)
    assert found.n == examples.size
    assert found.base.value == pytest.approx(hc.evaluate(model, examples).value)
    assert [row.number for row in found.rows] == list(range(1, len(found.rows) + 1))
    assert len(found.rows) > 1
    whole = costs.operations_of(model, costs.one_example(model, 8))
    for row in found.rows:
        smaller = copy.deepcopy(model)
        hc.cut(smaller, row.plan)
        assert row.removed == len(row.plan)
        assert row.result.value == pytest.approx(hc.evaluate(smaller, examples).value)
        assert row.flops == pytest.approx(costs.operations_of(smaller, costs.one_example(model, 8)) / whole)
        had, has = (sum(p.numel() for p in one.parameters()) for one in (model, smaller))
        assert row.parameters == pytest.approx(has / had)
        assert row.comparison.difference == pytest.approx(row.result.value - found.base.value)
        assert row.result.low <= row.result.value <= row.result.high
        assert row.speed is None
    values, sizes = [row.result.value for row in found.rows], [row.flops for row in found.rows]
    assert values == sorted(values)
    assert len(set(values)) == len(values)
    assert sizes == sorted(sizes, reverse=True)
    assert not kept.changed()
    assert TradeoffDocument.from_json(found.to_json()) == found


def test_ruined_rows_are_marked_by_the_brake(place: Path) -> None:  # noqa: F811
    _, _, found = _front(place)
    assert found.constant is not None
    limit = (found.base.value + found.constant) / 2
    assert [row.ruined for row in found.rows] == [row.result.value > limit for row in found.rows]
    _, _, never = _front(place, brake=None)
    assert not any(row.ruined for row in never.rows)


def test_one_scoring_is_enough_for_all_rows(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    from headcount.importance import gradients

    really, passes = gradients._batch, list[int]()
    monkeypatch.setattr(gradients, "_batch", lambda *given: (passes.append(1), really(*given))[1])
    model, score = _model(place), _task(place, "train", limit=60)
    options: dict[str, Any] = {"length": 8, "multiple": 1, "speeds": False}
    with hc.runs.Run.open(tmp_path / "run", {"command": "test"}) as run:
        hc.pruning.tradeoff(model, score, step="40%", run=run, **options)
        once = len(passes)
        hc.pruning.tradeoff(model, score, step="20%", run=run, **options)
    assert len(passes) == once > 0


@pytest.mark.parametrize(
    ("least", "step", "expected"),
    [
        (0.02, None, [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
        (0.75, None, [0.95, 0.9, 0.85, 0.8, 0.75]),
        (0.9, None, [0.98, 0.96, 0.94, 0.92, 0.9]),
        (0.3, 0.25, [0.75, 0.5]),
    ],
)
def test_sizes_are_round_shares_down_to_what_can_be_reached(
    least: float, step: float | None, expected: list[float]
) -> None:
    assert front.shares(least, step) == pytest.approx(expected)


def test_once_others_disturb_the_clock_every_row_is_timed_by_the_work_of_one_thread(
    place: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[str]()

    def bench(models: dict[str, Any], **options: Any) -> Any:
        by_work = options.get("clock") is budgets.by_processor
        asked.append("processor" if by_work else "wall")
        noise: dict[str, Any] = (
            {} if by_work else {"disturbed": True, "waited": 0.5, "work": Ratio(1.4, 1.4, 1.4, True)}
        )
        row = speed_row(1.5 if by_work else 1.03, **noise)
        return type("Found", (), {"rows": [row, row]})

    monkeypatch.setattr(budgets, "bench", bench)
    _, _, found = _front(place, speeds=True)
    assert asked == ["wall", *["processor"] * (len(found.rows) - 1)]
    assert [row.speed.value for row in found.rows if row.speed] == [1.4, *[1.5] * (len(found.rows) - 1)]
    assert "processor time of one thread" in found.speed_note


def test_a_row_that_is_not_there_is_refused(place: Path) -> None:  # noqa: F811
    _, _, found = _front(place, step="40%")
    with says(BadPlan, about=f"rows 1 to {len(found.rows)}"):
        found.row(99)
    assert found.row(1) is found.rows[0]
