"""Heads by name in a report: what is drawn and listed is what the document says."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import run_folders

import headcount as hc
from headcount.documents.circuits.named_heads import HeadsDocument
from headcount.reporting import summary
from headcount.reporting.findings import gather
from headcount.reporting.sections.heads import by_name

FOUND = run_folders.named_heads()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    run_folders.folder(root / "heads", "heads", {"heads": FOUND})
    return root


def test_the_section_has_the_numbers_of_the_document(runs: Path) -> None:
    (part,) = gather([runs])
    (section,) = by_name.named_heads(part)
    assert "1 induction (0:0 first)" in summary.answer(part)
    kinds, heads, examples = section.tables
    assert [row[:3] for row in kinds.rows] == [("induction", 1, "0:0"), ("sink", 1, "0:1")]
    assert [row[-2:] for row in kinds.rows] == [(64, 16)] * 2
    document = HeadsDocument.from_json(FOUND)
    expected = [
        (kind.kind, head.unit, head.mean, head.low, head.high, head.p_holm, "yes" if head.named else "no")
        for kind in document.kinds
        for head in kind.ranking
    ]
    assert list(heads.rows) == expected
    assert list(examples.rows) == [(kind.kind, *step) for kind in document.kinds for step in kind.steps]
    assert section.notes[:2] == (
        "Of 6 heads, by name: 1 induction (0:0 first) and 1 sink (0:1 first).",
        "retrieval was left out",
    )
    points = section.charts[0].spec["layer"][1]["data"]["values"]
    assert {(row["kind"], row["unit"], row["score"]) for row in points} == {row[:3] for row in expected}


def test_a_page_of_it_alone(runs: Path, tmp_path: Path) -> None:
    text = hc.report([runs], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Heads by name" in text
    assert "1 induction (0:0 first)" in text


def test_where_no_head_is_named_it_is_said() -> None:
    document = HeadsDocument.from_json(FOUND)
    none = [kind.__class__(**{**vars(kind), "heads": kind.heads[2:]}) for kind in document.kinds]
    assert HeadsDocument(model="m", kinds=tuple(none)).sentence == "None of 4 heads has one of the names looked for."
