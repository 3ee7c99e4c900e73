"""The front in the report: a point and a row for every size, ruined ones in another colour, and what the numbers are."""

from __future__ import annotations

from pathlib import Path

from helpers import run_folders

from headcount.documents.curves import TradeoffDocument
from headcount.reporting import summary
from headcount.reporting.findings import gather
from headcount.reporting.sections import tradeoff
from headcount.runs import Run


def test_the_front_is_drawn_and_listed(tmp_path: Path) -> None:
    data = run_folders.tradeoff((0.895, 0.88, 0.52))
    with Run.open(tmp_path / "run", {"command": "tradeoff", "model": "tiny"}) as run:
        run.write_json("tradeoff", data)
        run.finish()
    (part,) = gather([tmp_path / "run"])
    (section,) = tradeoff.tradeoffs(part)
    (table,) = section.tables
    document = TradeoffDocument.from_json(data)
    assert [row[:3] for row in table.rows] == [(row.number, row.removed, row.flops) for row in document.rows]
    assert [row[5] for row in table.rows] == [0.895, 0.88, 0.52]
    text = str(section.charts[0].spec)
    assert text.count("'kind': 'kept'") == 2 * text.count("'kind': 'ruined'") > 0
    assert "the whole model" in text
    assert "a constant answer" in text
    assert "a little too good" in section.about
    assert any("in processor time" in note for note in section.notes)
    assert any("ruined models" in note for note in section.notes)
    assert "3 sizes to pick from" in summary.answer(part)
