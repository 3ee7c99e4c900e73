"""Circuits, attributions and weights in a report: charts, tables and drawings have the numbers of the documents."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import run_folders

from headcount.documents.discovery.circuit import CircuitDocument
from headcount.reporting import page as report_page
from headcount.reporting import summary
from headcount.reporting.findings import Part, gather
from headcount.reporting.sections.circuits import attribution, circuit, weights
from headcount.runs import Run


def part_of(folder: Path, **documents: Any) -> Part:
    """A model with runs of these commands."""
    for name, data in documents.items():
        with Run.open(folder / name, {"command": name, "model": {"name": "tiny"}}) as run:
            run.write_json({"attribution": "logit-attribution", "weights": "circuits"}.get(name, name), data)
            run.finish()
    (part,) = gather([folder])
    return part


def drawn(section: Any) -> list[dict[str, Any]]:
    spec = json.loads(json.dumps(section.charts[0].spec))
    found: list[dict[str, Any]] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(row for row in value.get("values", ()) if isinstance(row, dict) and "text" in row)
            found.extend(row for rows in value.get("datasets", {}).values() for row in rows if "text" in row)
            for one in value.values():
                look(one)
        elif isinstance(value, list):
            for one in value:
                look(one)

    look(spec)
    return found


def test_a_circuit_has_its_curves_its_drawing_and_its_tables(tmp_path: Path) -> None:
    data = run_folders.circuit()
    document = CircuitDocument.from_json(data)
    assert document.edge_circuit is not None
    (section,) = circuit.circuits(part_of(tmp_path, circuit=data))
    points = {(row["order"], row["share"]): row["value"] for row in drawn(section)}
    for what, curve in (("heads and MLPs", document), ("edges", document.edge_circuit)):
        for point in curve.points:
            assert points[what, point.share] == point.faithfulness.value
            assert points[f"random {what}", point.share] == point.random
    chosen = {(row["order"], row["share"]) for row in drawn(section) if row["chosen"]}
    assert chosen == {("heads and MLPs", document.point.share), ("edges", document.edge_circuit.point.share)}
    (picture,) = section.pictures
    for node in document.graph()["nodes"]:
        assert f"<title>{node}" in picture.svg
    sizes, units, edges = section.tables
    assert len(sizes.rows) == len(document.points) + len(document.edge_circuit.points)
    assert [row[1] for row in units.rows] == [unit.unit for unit in document.units]
    assert edges.rows[0][:2] == (document.edges[0].writer, document.edges[0].reader)
    assert any("0.70 [0.60, 0.80]" in note and "random circuits 0.30" in note for note in section.notes)


def test_a_circuit_without_edges_has_no_drawing_and_says_why(tmp_path: Path) -> None:
    data = run_folders.circuit() | {"edges": [], "no_edges": "BertForMaskedLM has no edges that I can tell."}
    del data["edge_circuit"]
    (section,) = circuit.circuits(part_of(tmp_path, circuit=data))
    assert not section.pictures
    assert len(section.tables) == 2
    assert {row["order"] for row in drawn(section)} == {"heads and MLPs", "random heads and MLPs"}
    assert any("has no edges that I can tell" in note for note in section.notes)


def test_an_attribution_is_a_map_of_heads_with_the_mlp_beside_them(tmp_path: Path) -> None:
    data = run_folders.attribution()
    (section,) = attribution.attributions(part_of(tmp_path, attribution=data))
    cells = {(row["row"], row["column"]): row for row in drawn(section)}
    assert set(cells) == {(str(layer), column) for layer in range(2) for column in ("0", "1", "2", "MLP")}
    for unit in data["units"]:
        layer, column = unit["component"].split(":") if ":" in unit["component"] else (unit["component"][0], "MLP")
        cell = cells[layer, column]
        assert cell["size"] == abs(unit["difference"])
        assert cell["away"] == (unit["difference"] < 0)
        assert cell["star"] == ("*" if unit["p_holm"] < 0.05 else "")
    (table,) = section.tables
    assert {row[0] for row in table.rows} == {one["component"] for one in (*data["units"], *data["others"])}
    assert "The scale is frozen." in section.notes


def test_weights_are_a_map_of_copying_and_lists_of_tokens_that_stay_text(tmp_path: Path) -> None:
    (section,) = weights.weights(part_of(tmp_path, weights=run_folders.weights()))
    assert {row["text"].split(":")[0] for row in drawn(section)} == {"0", "1"}
    copying, promoted, composition = section.tables
    assert copying.rows[0][0] == "1:1"
    assert promoted.rows[0][2] == "' a', '<b>', #7"
    assert composition.rows[0][:3] == ("0:1", "1:1", "K")
    page = report_page.report([tmp_path], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&#39;&lt;b&gt;&#39;" in page


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ({"circuit": run_folders.circuit()}, r"4 of 8 heads and MLPs are the circuit: .* 0\.90 \[0\.80, 1\.00\]"),
        (
            {"circuit": run_folders.circuit() | {"cpr": {"value": 0.4, "low": None, "high": None}}},
            r"do not show that .* is another on clean prompts .* no circuit",
        ),
        (
            {"attribution": run_folders.attribution()},
            r"1 of 8 units add something to the logits \(right - wrong\).* 0:0 ",
        ),
        ({"weights": run_folders.weights()}, "By their weights, 1 of 6 heads copy more .*: 1:1"),
    ],
)
def test_the_answer_is_put_into_words(documents: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert re.search(said, summary.answer(part_of(tmp_path, **documents)))


def test_the_drawing_stands_in_the_page_and_is_a_figure(tmp_path: Path) -> None:
    part_of(tmp_path / "runs", circuit=run_folders.circuit())
    page = report_page.report([tmp_path / "runs"], tmp_path / "page.html", figures=tmp_path / "figures")
    assert page.read_text(encoding="utf-8").count('class="hc-circuit"') == 1
    assert (tmp_path / "figures" / "circuit-graph.svg").read_text(encoding="utf-8").startswith("<svg")
