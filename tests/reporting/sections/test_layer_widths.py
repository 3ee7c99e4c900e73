"""The pages about what pruning left say what prune.json says, in the page, in print and on the card; older documents do too."""

from __future__ import annotations

import copy
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import says
from helpers import run_folders

from headcount.cli.text import pruned_text
from headcount.documents.prune import PruneDocument
from headcount.errors import BadRun
from headcount.formatting import flops_text, seconds_text
from headcount.plans import Plan
from headcount.reporting import head_map, model_card, summary
from headcount.reporting import page as report_page
from headcount.reporting.findings import Part, gather
from headcount.reporting.sections import layer_widths
from headcount.reporting.sections.measurements import Section
from reporting.test_page import HOSTILE, Page, drawn, poisoned

NEW = ("structure", "layers", "budget", "flops", "tuned", "rearranged", "recovered", "candidates", "brake")
DELETED = (3, 4)
drawn_by = np.random.default_rng(1)
WIDTHS = {str(n): int(drawn_by.integers(1, 12)) for n in range(12)}
WIDTHS |= {f"{n}.mlp": 16 * int(drawn_by.integers(1, 4)) for n in range(12)}
SMALL: run_folders.Sites = {
    name: (*site[:2], 12 if site[0] == "head" else 64) for name, site in run_folders.BERT.items()
}
TRANSLATOR = [
    {"name": "encoder.0", "kind": "head", "type": "encoder", "layer": 0, "units": 8, "left": 5},
    {"name": "encoder.0.mlp", "kind": "neuron", "type": None, "layer": 0, "units": 64, "left": 32},
    {"name": "decoder.0", "kind": "head", "type": "decoder", "layer": 0, "units": 8, "left": 8},
    {"name": "decoder.0.cross", "kind": "head", "type": "cross", "layer": 0, "units": 8, "left": 2},
    {"name": "decoder.0.mlp", "kind": "neuron", "type": None, "layer": 0, "units": 64, "left": 16},
    {"name": "decoder.1", "kind": "head", "type": "decoder", "layer": 1, "units": 8, "left": 0},
    {"name": "decoder.1.cross", "kind": "head", "type": "cross", "layer": 1, "units": 8, "left": 0},
    {"name": "decoder.1.mlp", "kind": "neuron", "type": None, "layer": 1, "units": 64, "left": 0},
]


@pytest.fixture
def document() -> dict[str, Any]:
    return run_folders.structured(WIDTHS, DELETED, SMALL)


def part_of(document: dict[str, Any], folder: Path, **more: Any) -> Part:
    (part,) = gather([run_folders.folder(folder, "prune", {"prune": document, **more})])
    return part


def sections(part: Part) -> dict[str, Section]:
    kinds = (layer_widths.layers, layer_widths.budgets, layer_widths.tuned, layer_widths.recovered)
    return {one.key: one for kind in kinds for one in kind(part)}


def rows(section: Section) -> list[list[str]]:
    return list(csv.reader(io.StringIO(section.tables[0].csv())))[1:]


# -- what is left of each layer ---------------------------------------------------------------------------------------------


def test_widths_are_those_of_the_document_and_deleted_layers_are_marked(document, tmp_path) -> None:
    section = sections(part_of(document, tmp_path / "run"))["structure"]
    (chart,) = section.charts
    bars = {(row["layer"], row["series"]): row for row in drawn(chart.spec) if "series" in row}
    assert len(bars) == 24
    for one in document["structure"]:
        bar = bars[one["layer"], "heads" if one["kind"] == "head" else "neurons"]
        assert bar["share"] == one["left"] / one["units"]
        assert ("deleted" in bar["text"]) == (one["layer"] in DELETED)
    assert {row["layer"] for row in drawn(chart.spec) if "series" not in row} == set(DELETED)
    for layer, line in enumerate(rows(section)):
        left = [0, 0] if layer in DELETED else [WIDTHS[str(layer)], WIDTHS[f"{layer}.mlp"]]
        name = f"{layer}, deleted" if layer in DELETED else str(layer)
        assert line == [name, str(left[0]), "12", str(left[1]), "64"]
    kept = sum(one["left"] for one in document["structure"] if one["kind"] == "head")
    assert f"Heads: {kept} of 144 stay" in section.notes[0]


def test_what_is_whole_is_said_and_not_drawn(tmp_path) -> None:
    made = run_folders.structured({name: n for name, n in WIDTHS.items() if "mlp" in name}, sites=SMALL)
    section = sections(part_of(made, tmp_path / "run"))["structure"]
    assert {row["series"] for row in drawn(section.charts[0].spec)} == {"neurons"}
    assert "all 144 stay" in section.notes[0]
    assert "×" not in section.about


def test_a_translator_has_a_chart_per_stack_and_cross_attention_apart(document, tmp_path) -> None:
    document |= {"structure": TRANSLATOR, "layers": [{"name": "decoder.layers", "units": 2, "gone": [1]}]}
    section = sections(part_of(document, tmp_path / "run"))["structure"]
    assert [chart.spec["layer"][0]["encoding"]["y"]["title"] for chart in section.charts] == [
        "units left, encoder",
        "units left, decoder",
    ]
    assert [line[0] for line in rows(section)] == ["encoder 0", "decoder 0", "decoder 1, deleted"]
    heads, cross, neurons = (rows(section)[1][n] for n in (1, 3, 5))
    assert (heads, cross, neurons) == ("8", "2", "16")
    assert rows(section)[0][3:5] == ["", ""]  # an encoder has no cross-attention


def test_places_are_read_off_names() -> None:
    assert layer_widths.place_of("3") == ("", 3, "heads")
    assert layer_widths.place_of("3.mlp") == ("", 3, "neurons")
    assert layer_widths.place_of("decoder.11.cross") == ("decoder", 11, "cross-attention heads")
    assert layer_widths.place_of("vision.tower.2.mlp", 7) == ("vision.tower", 7, "neurons")
    assert layer_widths.place_of("pooler") == ("pooler", 0, "heads")


def test_heads_of_deleted_layers_are_crossed_out_on_the_map_and_all_layers_are_on_it(document, tmp_path) -> None:
    scores = run_folders.scores({n: s for n, s in run_folders.BERT.items() if s[0] == "head"}).to_json()
    made = head_map.build(part_of(document, tmp_path / "run", scores=scores))
    gone = {made.units[n] for n in made.removed}
    assert {f"{layer}:{n}" for layer in DELETED for n in range(12)} <= gone
    assert {unit for unit in gone if unit.startswith("0:")} == {f"0:{n}" for n in range(WIDTHS["0"], 12)}
    assert [grid.title for grid in made.grids][:2] == ["Encoder self-attention", "Layers"]
    assert len(made.grids[1].rows[0]) == 12


def test_the_chart_stands_beside_the_map_where_nothing_was_tested(document, tmp_path) -> None:
    chapter = report_page._chapter(part_of(document, tmp_path / "run"), 1)
    assert chapter.main.chart.name == "structure"
    document["guarantee"] = run_folders.prune(run_folders.scores().order(), 4)["guarantee"]
    chapter = report_page._chapter(part_of(document, tmp_path / "tested"), 1)
    assert chapter.main.chart.name == "guarantee"
    assert [chart.name for placed in chapter.sections for _, chart in placed.charts][:1] == ["structure"]


# -- budget, tuning, recovery -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "asked", "told"),
    [
        ("flops", "50%", "50% of the FLOPs"),
        ("params", "60%", "60% of the parameters"),
        ("time", 2.0, "2 times as fast"),
    ],
)
def test_the_budget_has_what_was_asked_allowed_predicted_and_measured(what, asked, told, document, tmp_path) -> None:
    numbers = {"whole": 0.04, "allowed": 0.02, "predicted": 0.0195, "measured": 0.0191}
    if what != "time":
        numbers = {key: round(value * 1e9) for key, value in numbers.items()}
    document["budget"] |= {"what": what, "asked": asked, **numbers}
    section = sections(part_of(document, tmp_path / "run"))["budget"]
    assert told in section.about
    assert [float(line[1]) for line in rows(section)] == list(numbers.values())
    assert [float(line[2]) for line in rows(section)] == pytest.approx([1, 0.5, 0.4875, 0.4775])
    assert "neurons by 16" in section.notes[0]
    assert "heads by" not in section.notes[0]
    for text in (
        pruned_text(PruneDocument.from_json(document)),
        model_card.card(PruneDocument.from_json(document)).replace("\\", ""),
    ):
        assert f"Budget: {told}" in text
        assert model_card.amount_text(what, numbers["predicted"]) + " predicted" in text
    document["budget"]["measured"] = None
    assert len(rows(sections(part_of(document, tmp_path / "unmeasured"))["budget"])) == 3


def test_translations_that_the_limit_ended_are_said_of_the_model_before_and_after(document) -> None:
    assert "length limit" not in pruned_text(PruneDocument.from_json(document))
    document["before"]["unfinished"], document["after"]["unfinished"] = 0, 12
    n = document["after"]["n"]
    assert pruned_text(PruneDocument.from_json(document)).endswith(
        f"\nnote: the length limit ended 12 of {n:,} translations, after"
    )


def test_tuning_has_the_errors_of_every_site_and_their_mean_over_those_tuned(document, tmp_path) -> None:
    section = sections(part_of(document, tmp_path / "run"))["tuned"]
    sites = document["tuned"]["sites"]
    assert [(line[0], float(line[2]), float(line[3])) for line in rows(section)] == [
        (one["name"], one["error"], one["tuned"]) for one in sites
    ]
    used = [one for one in sites if one["used"]]
    fell = 1 - np.mean([one["tuned"] / one["error"] for one in used])
    assert f"{len(used)} of {len(sites)} sites" in section.notes[0]
    assert f"fell by {100 * fell:.0f}\u00a0%" in section.notes[0]
    assert f"fell by {fell:.0%} on average" in pruned_text(PruneDocument.from_json(document))
    points = {(row["layer"], row["series"]): row for row in drawn(section.charts[0].spec)}
    for one in sites:
        row = points[int(one["name"].split(".")[0]), "neurons" if "mlp" in one["name"] else "heads"]
        assert (row["error"], row["fit"], row["used"]) == (one["error"], one["tuned"], one["used"])


def test_where_tuning_helped_nowhere_it_is_said(document, tmp_path) -> None:
    document["tuned"]["sites"] = [one | {"used": False} for one in document["tuned"]["sites"]]
    document["tuned"]["skipped"] = [{"name": "7", "why": "nothing is left of it"}]
    section = sections(part_of(document, tmp_path / "run"))["tuned"]
    assert "helped nowhere" in section.notes[0]
    assert "7: nothing is left of it" in section.notes[-1]
    assert "0 of 20 sites." in pruned_text(PruneDocument.from_json(document))


def test_recovery_stands_between_the_whole_model_and_the_end(document, tmp_path) -> None:
    section = sections(part_of(document, tmp_path / "run"))["recovered"]
    values = [float(line[1]) for line in rows(section)]
    assert values == [document["before"]["value"], 0.871, document["after"]["value"]]
    assert "5,000 examples, 156 steps" in section.about
    assert "distillation" in section.about
    document["recovered"]["distilled"] = False
    assert "distillation" not in sections(part_of(document, tmp_path / "labels"))["recovered"].about
    assert "accuracy was 0.8710 as cut, and is 0.8940" in pruned_text(PruneDocument.from_json(document))


# -- the whole page, print and card -------------------------------------------------------------------------------------------


def test_tiles_print_and_card_count_each_kind_of_units(document, tmp_path) -> None:
    tiles = {tile.label: tile.value for tile in summary.tiles(part_of(document, tmp_path / "run"))}
    left = {
        kind: sum(one["left"] for one in document["structure"] if one["kind"] == kind) for kind in ("head", "neuron")
    }
    assert tiles["heads"] == f"144 → {left['head']}"
    assert tiles["neurons"] == f"768 → {left['neuron']}"
    assert tiles["layers"] == "12 → 10"
    assert tiles["FLOPs of one example"] == "22.4 → 11.1 G"
    printed, card = pruned_text(PruneDocument.from_json(document)), model_card.card(PruneDocument.from_json(document))
    lines = [line.split() for line in printed.splitlines()]
    assert ["neurons", "768", str(left["neuron"]), f"{left['neuron'] / 768 - 1:+.0%}"] in lines
    assert ["FLOPs", "of", "one", "example", "22.40", "GFLOPs", "11.12", "GFLOPs", "-50.4%"] in lines
    assert f"| neurons | 768 | {left['neuron']} |" in card
    assert "| FLOPs of one example | 22.40 GFLOPs | 11.12 GFLOPs |" in card
    for word in ("Budget:", "Rearranged: 31 units", "Tuned by least squares on 300 examples", "Recovered in 1 epoch"):
        assert word in printed
        assert word in card
    document["plan"] = Plan.removing({"0.mlp": range(0, 3072, 2)}).to_json()
    long = [
        line for line in model_card.card(PruneDocument.from_json(document)).splitlines() if line.startswith("| 0.mlp")
    ]
    assert [len(line) < 250 and "0,2,4," in line and "…" in line for line in long] == [
        True
    ]  # plan.json has all of them


@pytest.mark.parametrize("missing", [NEW, *((key,) for key in NEW)])
def test_documents_without_the_new_keys_read_as_before(missing, document, tmp_path) -> None:
    old = {key: value for key, value in document.items() if key not in missing}
    empty = document | dict.fromkeys(missing)
    for n, one in enumerate((old, empty)):
        part = part_of(one, tmp_path / str(n))
        gone = {"structure", "budget", "tuned", "recovered"} & set(missing)
        assert set(sections(part)) == {"structure", "budget", "tuned", "recovered"} - gone
        assert summary.tiles(part)
        assert pruned_text(PruneDocument.from_json(one))
        assert model_card.card(PruneDocument.from_json(one))
    if missing == NEW:
        rows = [line for line in pruned_text(PruneDocument.from_json(old)).splitlines()[1:] if re.match(r"\S", line)]
        labels = [re.split(" {2,}", line)[0] for line in rows]  # lines that begin with spaces go on with the row above
        assert labels == ["accuracy", "heads,neurons,layers", "parameters", "on disk", "examples/s"]
        report_page.report([tmp_path / "0"], tmp_path / "page.html")


def test_thousands_of_neurons_make_no_large_page(tmp_path) -> None:
    document = run_folders.structured({name: n if "mlp" not in name else 16 * n for name, n in WIDTHS.items()}, DELETED)
    scores = run_folders.scores(run_folders.BERT, "fisher", samples=2).to_json()
    part = part_of(document, tmp_path / "run", scores=scores)
    written = report_page.report([tmp_path / "run"], tmp_path / "page.html")
    page = Page(written.read_text(encoding="utf-8"))
    assert written.stat().st_size < 1_500_000
    assert sum(attributes.get("role") == "gridcell" for _, attributes in page.elements) == 144 + 12
    assert {"m1-structure", "m1-budget", "m1-tuned", "m1-recovered", "m1-spread", "m1-removed"} <= page.ids()
    names = {name for name, _ in report_page._figures(report_page._chapter(part, 1), several=False)}
    assert {"structure", "tuned", "map-encoder", "map-layer"} <= names
    assert (
        "neurons"
        in next(s for s in report_page._chapter(part, 1).sections if s.section.key == "removed").tables[0][1].caption
    )


def test_a_long_order_names_its_first_units_and_counts_all(document, tmp_path) -> None:
    order = [f"0.mlp:{n}" for n in range(3072)] + [f"{n}.mlp:{k}" for n in (1, 2) for k in range(3072)]
    order = [*(f"0:{n}" for n in range(12)), *order, *(f"3.mlp:{k}" for k in range(3072))][:10_000]
    held = run_folders.prune(run_folders.scores().order(), 4)["guarantee"]
    held["steps"] = [held["steps"][0] | {"removed": count} for count in (5, 9_000, 20_000)]
    document |= {"order": order, "guarantee": held}
    made = head_map.build(part_of(document, tmp_path / "run"))
    (track,) = made.tracks
    assert track.of == document["of"]
    assert [stop.removed for stop in track.stops if not stop.chosen] == [0, 5, 9_000]  # which 20,000 it is, is not told
    facts = {fact.label: dict(zip(made.units, fact.texts, strict=True)) for fact in made.facts}
    assert facts["Place in the order of removal"]["0:4"] == f"5 of {document['of']}"


def test_hostile_names_stay_text(document, tmp_path) -> None:
    document["tuned"]["skipped"] = [{"name": "7", "why": "left"}]
    bad = poisoned(copy.deepcopy(document))
    bad["budget"]["multiples"] = {f"neuron{HOSTILE}": 16}
    bad["units"] = document["units"]
    run_folders.folder(tmp_path / "run", "prune", {"prune": bad}, model=f"tiny{HOSTILE}")
    page = Page(report_page.report([tmp_path / "run"], tmp_path / "page.html").read_text(encoding="utf-8"))
    assert sum(tag == "script" for tag, _ in page.elements) == 3
    assert not [tag for tag, _ in page.elements if tag in ("img", "iframe")]
    assert {"m1-structure", "m1-budget", "m1-tuned", "m1-recovered"} <= page.ids()
    assert "alert(1)" in "".join(page.texts)


@pytest.mark.parametrize(
    "damage", [("structure", 0, "left"), ("budget", "whole"), ("tuned", "sites"), ("recovered", "before")]
)
def test_a_damaged_document_is_one_sentence(damage, document, tmp_path) -> None:
    broken = json.loads(json.dumps(document))
    *path, last = damage
    inner = broken
    for key in path:
        inner = inner[key]
    inner[last] = "many"
    run = run_folders.folder(tmp_path / "run", "prune", {"prune": broken})
    with says(BadRun, about="prune.json"):
        report_page.report([run], tmp_path / "page.html")


def test_amounts_are_written_as_people_read_them() -> None:
    assert [flops_text(n) for n in (12, 999_400, 11_155_000_000, 2.5e17)] == [
        "12 FLOPs",
        "999.40 kFLOPs",
        "11.15 GFLOPs",
        "250.00 PFLOPs",
    ]
    assert [seconds_text(n) for n in (1.5, 0.0234, 0.00123)] == ["1.50 s", "23.4 ms", "1.23 ms"]
