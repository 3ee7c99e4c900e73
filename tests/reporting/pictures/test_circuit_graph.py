"""A circuit as a graph: inputs below, logits above, edges by weight and sign, nothing run through, all of it escaped."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import says

from headcount.errors import BadPlan, BadRun
from headcount.reporting.pictures import circuit_graph
from headcount.reporting.pictures.circuit_graph import draw_circuit

NODES = ["logits", "embeddings", "3:7", "5.mlp", "0:1", "5:2"]
EDGES: list[Any] = [
    ("embeddings", "0:1", 0.5, (0.3, 0.7)),
    ("0:1", "3:7", -1.0, (-1.4, -0.6)),
    ("3:7", "5:2", 0.25, (-0.1, 0.6)),
    ("5:2", "5.mlp", 0.2),
    ("5.mlp", "logits", 0.1),
    ("embeddings", "logits", 0.75),
]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(nodes: Any = NODES, edges: Any = EDGES, **options: Any) -> ElementTree.Element:
    return ElementTree.fromstring(draw_circuit(nodes, edges, **options).svg)


def boxes(root: ElementTree.Element) -> dict[str, tuple[float, float, float, float]]:
    out = {}
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        out[str(group.findtext(f"{SVG}title"))] = tuple(float(rect.attrib[k]) for k in ("x", "y", "width", "height"))
    return out  # type: ignore[return-value]


def edges_of(root: ElementTree.Element) -> dict[str, dict[str, str]]:
    paths = [path for path in root.iter(f"{SVG}path") if path.find(f"{SVG}title") is not None]
    return {str(path.findtext(f"{SVG}title")): path.attrib for path in paths}


def test_units_stand_above_what_they_read_from() -> None:
    found = boxes(drawn())
    assert sorted(found, key=lambda name: -found[name][1]) == ["embeddings", "0:1", "3:7", "5:2", "5.mlp", "logits"]
    assert len({y for _, y, _, _ in found.values()}) == 6


def test_everything_is_inside_and_no_two_nodes_touch() -> None:
    nodes = ["embeddings", *(f"{layer}:{head}" for layer in range(4) for head in range(5)), "logits"]
    edges = [(a, b, 0.1) for a in nodes for b in nodes if circuit_graph.height_of(a) < circuit_graph.height_of(b)]
    root = drawn(nodes, edges)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    found = list(boxes(root).values())
    assert len(found) == len(nodes)
    for n, (x, y, w, h) in enumerate(found):
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
        assert all(x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y for x2, y2, w2, h2 in found[:n])


def test_an_edge_runs_from_the_top_of_its_source_to_the_bottom_of_its_target_and_through_no_other_node() -> None:
    layout = circuit_graph.arranged(NODES, [circuit_graph._edge(edge, NODES) for edge in EDGES], {})
    for (start, end, *_), points in layout.edges:
        assert points[0] == layout.nodes[start]
        assert points[-1] == layout.nodes[end]
        for x, y in points[1:-1]:
            for name, node in layout.nodes.items():
                assert node.y != y or abs(node.x - x) >= circuit_graph._wide(name) / 2, (start, end, name)
    root = drawn()
    box = boxes(root)
    numbers = [
        float(one) for one in re.findall(r"-?[\d.]+", edges_of(root)["embeddings → 0:1: +0.5 [+0.3, +0.7]"]["d"])
    ]
    assert numbers[1] == pytest.approx(box["embeddings"][1], abs=0.06)
    assert numbers[-1] == pytest.approx(box["0:1"][1] + box["0:1"][3], abs=0.06)


def test_width_is_weight_colour_is_sign_and_an_interval_with_zero_is_faint() -> None:
    found = edges_of(drawn())
    widths = {told: float(one["stroke-width"]) for told, one in found.items()}
    assert sorted(widths, key=lambda told: widths[told])[-1].startswith("0:1 → 3:7: −1")
    assert max(widths.values()) == circuit_graph.THICK
    assert found["0:1 → 3:7: −1 [−1.4, −0.6]"]["class"] == "edge minus"
    assert found["3:7 → 5:2: +0.25 [−0.1, +0.6]"]["class"] == "edge plus unsure"
    assert found["embeddings → logits: +0.75"]["class"] == "edge plus"
    texts = [
        one.text for one in drawn().iter(f"{SVG}text") if one.attrib["class" if "class" in one.attrib else "x"] == "key"
    ]
    assert texts == ["positive", "negative", "interval includes 0", "width: up to 1.000"]
    assert "negative" not in draw_circuit(NODES, EDGES[:1]).svg


def test_edges_to_queries_keys_and_values_of_a_head_end_side_by_side() -> None:
    root = drawn(["embeddings", "0:1"], [("embeddings", f"0:1.{part}", 1.0) for part in "vqk"])
    x, _, width, _ = boxes(root)["0:1"]
    ends = {told: float(re.findall(r"-?[\d.]+", one["d"])[-2]) for told, one in edges_of(root).items()}
    by_place = sorted(ends, key=lambda told: ends[told])
    assert by_place == [f"embeddings → 0:1.{part}: +1" for part in "qkv"]
    assert all(x < place < x + width for place in ends.values())
    assert ends[by_place[1]] == pytest.approx(x + width / 2, abs=0.1)


def test_an_encoder_decoder_has_its_encoder_below() -> None:
    names = ["decoder.0.self:1", "decoder.0.cross:0", "decoder.0.mlp", "encoder.1:0", "encoder.embeddings", "logits"]
    found = boxes(drawn([*names, "decoder.embeddings"], []))
    assert sorted(found, key=lambda name: -found[name][1]) == [
        *("encoder.embeddings", "encoder.1:0", "decoder.embeddings"),
        *("decoder.0.self:1", "decoder.0.cross:0", "decoder.0.mlp", "logits"),
    ]


def test_names_and_titles_are_escaped() -> None:
    evil = "</title><script>alert(1)</script>\x00&\"'"
    picture = draw_circuit(["0:1", evil], [("0:1", evil, 1.0)], title=evil, layers={evil: 4}, about={"0:1": evil})
    root = ElementTree.fromstring(picture.svg)
    assert not list(root.iter(f"{SVG}script"))
    assert "<script" not in picture._repr_html_()
    assert root.attrib["aria-label"].startswith("</title><script>")


def test_of_very_many_edges_the_strongest_are_drawn(monkeypatch) -> None:
    monkeypatch.setattr(circuit_graph, "MOST", 3)
    root = drawn()
    assert [told.partition(":")[0] for told in edges_of(root)] != []
    assert {abs(float(told.rpartition(": ")[2].split(" ")[0].replace("−", "-"))) for told in edges_of(root)} == {
        1,
        0.75,
        0.5,
    }
    assert any("3 weaker edges are left out" in (one.text or "") for one in root.iter(f"{SVG}text"))


@pytest.mark.parametrize(
    ("nodes", "edges", "about"),
    [
        (NODES, [("3:7", "0:1", 1.0)], "does not lead to a later layer"),
        (NODES, [("3:7", "9:9", 1.0)], "none of the nodes"),
        (NODES, [("0:1", "3:7", float("nan"))], "finite"),
        (NODES, [("0:1", "3:7", 1.0, (0.0,))], "finite"),
        (NODES, [("0:1", "3:7")], "An edge is"),
        (["norm"], [], "in which layer"),
    ],
)
def test_what_cannot_be_drawn_is_said(nodes: Any, edges: Any, about: str) -> None:
    with says(BadPlan, about=about):
        draw_circuit(nodes, edges)


def test_it_is_saved_and_nothing_is_overwritten(tmp_path) -> None:
    picture = draw_circuit(NODES, EDGES, title="A circuit")
    path = picture.save(tmp_path / "circuit.svg")
    assert path.read_text(encoding="utf-8") == picture.svg
    with says(BadRun, about="there already"):
        picture.save(path)
    picture.save(path, force=True)
    with says(BadRun, about=".svg"):
        picture.save(tmp_path / "circuit.png")
    assert draw_circuit([], []).width == 360


def test_heads_say_what_of_them_is_read_and_the_title_has_room() -> None:
    edges = [("embeddings", "0:1.q", 1.0), ("embeddings", "0:1.v", 1.0), ("0:1", "logits", 1.0)]
    title = "A title that is much longer than the drawing of three nodes is wide"
    picture = draw_circuit(["embeddings", "0:1", "logits"], edges, title=title)
    assert re.findall(r'class="read"[^>]*>(.)<', picture.svg) == ["q", "v"]
    assert picture.width >= 20 + 8 * len(title)
    assert "what of a head reads" in picture.svg
    assert "what of a head reads" not in draw_circuit(["0:1", "logits"], edges[2:]).svg
