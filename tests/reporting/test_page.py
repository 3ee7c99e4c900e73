"""Reports say what the documents say, escape what comes from outside, and write one file that needs nothing else."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import says
from helpers import run_folders
from typer.testing import CliRunner

from headcount import formatting
from headcount.cli.app import app
from headcount.documents.ablation import TransferDocument
from headcount.documents.bench import Ratio, Speed
from headcount.documents.learned import LearnedDocument
from headcount.errors import BadRun
from headcount.formatting import Column, Table
from headcount.plans import Plan, kind_of, type_of
from headcount.reporting import charts, head_map, run_labels, summary, theme
from headcount.reporting import page as report_page
from headcount.reporting.findings import gather
from headcount.reporting.pictures import in_html
from headcount.reporting.provenance import how
from headcount.reporting.sections import measurements, training_charts
from headcount.reporting.sections.transfer_sentences import related
from headcount.runs import Run
from headcount.stats.paired_tests import pearson, spearman

HOSTILE = '</script><script>alert(1)</script>"><img src=x onerror=alert(2)> & \u2028 {{ 7*7 }} theme:ink'
SECTIONS = {
    "score": {"ranking", "units"},
    "ablate": {"effects", "units"},
    "one": {"one-head"},
    "curve": {"curve", "ranking", "units"},
    "transfer": {"transfer"},
    "prune": {"ranking", "guarantee", "speed", "removed", "units"},
    "bench": {"speed"},
}


class Page(HTMLParser):
    """What a browser would make of a page: its elements with their attributes, and its text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.data: dict[str, Any] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag not in ("script", "style") else f"{tag} {dict(attrs).get('id', '')}"

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script data":
            self.data = json.loads(data)
        elif not self._inside.startswith(("script ", "style ")):
            self.texts.append(data)

    def ids(self) -> set[str]:
        return {str(attributes["id"]) for _, attributes in self.elements if "id" in attributes}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("runs")
    return root, run_folders.everything(root)


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> Page:
    written = report_page.report([runs[0]], tmp_path_factory.mktemp("page") / "page.html")
    return Page(written.read_text(encoding="utf-8"))


# -- what it says -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_appears_only_when_the_run_has_it(name, runs) -> None:
    (part,) = gather([runs[0] / name])
    made = report_page._chapter(part, 1)
    assert {placed.section.key for placed in made.sections} == SECTIONS[name]
    assert (made.main is not None) == (name in ("curve", "prune"))
    assert (made.map is not None) == (name not in ("one", "transfer", "bench"))
    assert made.answer.endswith((".", "%"))


def test_what_to_do_next_names_the_smaller_model_and_how_other_programs_get_it(runs) -> None:
    (part,) = gather([runs[0] / "prune"])
    commands = [step.command for step in report_page._chapter(part, 1).steps]
    assert "headcount export smaller --to transformers -o exported" in commands
    assert "import headcount; model = headcount.load('smaller')" in commands
    assert "headcount train smaller --data TRAIN -o better" in commands


def test_all_sections_stand_on_one_page_with_the_sentence_of_prune_on_top(runs, page) -> None:
    keys = set().union(*SECTIONS.values())
    assert {f"m1-{key}" for key in keys} | {"m1-map", "m1-again"} <= page.ids()
    assert runs[1]["prune"]["sentence"] in page.texts
    assert "0.900 → 0.894" in page.texts
    assert "11 → 7" in page.texts
    assert "8.0 → 6.0 MB" in page.texts


def test_the_panel_has_the_numbers_of_the_documents(runs) -> None:
    root, documents = runs
    (part,) = gather([root])
    made = head_map.build(part)
    facts = {fact.label: dict(zip(made.units, fact.texts, strict=True)) for fact in made.facts}
    flat = {
        f"{name}:{index}": (score, error)
        for name, site in documents["scores"]["sites"].items()
        for index, score, error in zip(site["units"], site["score"], site["stderr"], strict=True)
    }
    assert set(made.units) == set(flat)
    best_first = sorted(flat, key=lambda unit: -flat[unit][0])
    for unit, (score, error) in flat.items():
        assert facts["Score by taylor, ± s.e."][unit] == f"{score:.3f} ± {error:.3f}"
        assert facts["Rank by taylor, 1 = top"][unit] == f"{best_first.index(unit) + 1} of 11"
        assert facts["Place in the order of removal"][unit] == f"{documents['prune']['order'].index(unit) + 1} of 11"
        assert facts["Removed"][unit] == ("yes" if unit in map(str, documents["order"][:4]) else "no")
    for row in documents["ablation"]["ablations"]:
        texts = [f"{100 * row[key]:+.1f}".replace("-", "−") for key in ("difference", "low", "high")]
        number, low, high = (text if float(text[1:]) else "0.0" for text in texts)
        assert facts["Without it"][row["closed"]] == f"{number} [{low}, {high}] points"
        assert facts["p, and corrected by Holm"][row["closed"]] == f"{row['p']:.2g} → {row['p_holm']:.2g}"
    assert made.units[made.first] == best_first[0]


def test_the_slider_stops_at_the_points_of_the_curve_and_at_what_was_chosen(runs) -> None:
    root, documents = runs
    (part,) = gather([root])
    made = head_map.build(part)
    (track,) = made.tracks
    assert [(stop.removed, stop.chosen) for stop in track.stops] == [
        (0, False),
        (3, False),
        (4, True),
        (6, False),
        (11, False),
    ]
    for stop in track.stops:
        assert {made.units[n] for n in stop.gone} == {str(unit) for unit in documents["order"][: stop.removed]}
    assert track.stops[2].value == "0.894 [0.854, 0.934]"
    assert track.stops[3].value == f"{0.9 - 0.08 * (6 / 11) ** 2:.3f} [0.836, 0.916]"


def test_without_a_curve_the_slider_follows_the_tested_sequence(runs) -> None:
    (part,) = gather([runs[0] / "prune"])
    (track,) = head_map.build(part).tracks
    assert [stop.removed for stop in track.stops] == [0, 1, 2, 3, 4, 5]
    assert [len(stop.gone) for stop in track.stops] == [0, 1, 2, 3, 4, 5]
    assert [stop.chosen for stop in track.stops] == [False, False, False, False, True, False]
    assert track.stops[-1].detail == "−1.0 points, at most 1.3 lost: not shown"


def test_the_map_marks_what_survives_the_correction_and_scales_colours(runs) -> None:
    (part,) = gather([runs[0] / "ablate"])
    made = head_map.build(part)
    (view,) = made.views
    assert [made.units[n] for n in view.marked] == ["0:1", "0:2"]
    assert view.diverging
    assert view.places[made.units.index("0:1")] == 1.0  # it loses most
    assert view.places[made.units.index("0:2")] == pytest.approx(-0.034 / 0.123)


def test_a_ragged_model_has_holes_and_a_translator_three_maps(tmp_path) -> None:
    run_folders.folder(
        tmp_path / "a", "score", {"scores": run_folders.scores_document(run_folders.scores(run_folders.TRANSLATOR))}
    )
    part = gather([tmp_path / "a"])[0]
    drawn = head_map.build(part).grids
    assert [grid.title for grid in drawn] == ["Encoder self-attention", "Decoder self-attention", "Cross-attention"]
    assert [text for text, _ in drawn[0].labels] == ["0", "1"]
    sites: run_folders.Sites = {"0": ("head", "encoder", 4), "1": ("head", "encoder", 2)}
    made = run_folders.scores(sites).to_json()
    made["sites"]["1"]["units"] = [1, 3]  # heads 0 and 2 were cut before
    run_folders.folder(tmp_path / "b", "score", {"scores": made}, weights="other")
    (grid,) = head_map.build(gather([tmp_path / "b"])[0]).grids
    assert [cell.unit for cell in grid.rows[1]] == ["1:1", "1:3"]
    assert [cell.x for cell in grid.rows[1]] == [grid.rows[0][1].x, grid.rows[0][3].x]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        # 8 (k / 11)^2 points: 0.6 at 3, 2.4 at 6
        ("curve", r"3 of 11 heads \(27\u00a0%\) can go before more than 1 point of accuracy is lost: 0.900 → 0.894"),
        (
            "ablate",
            r"^2 of 11 heads could be shown to matter on their own \(0:1 and 0:2; n\u00a0=\u00a0200, Holm's correction\); "
            r"for the others no difference could be shown\.$",
        ),
        ("one", r"^In 2 of 3 attentions no loss could be shown with one head alone\.$"),
        ("score", r"Of 11 heads, .* matter most by taylor"),
        (
            "transfer",
            r"nits that matter on dev.tsv matter on dev.tsv again .*r = 0.31, p = 0.04.*rank correlation 0.27, p = 0.04",
        ),
        ("bench", r"smaller is 1.17× as fast as tiny at batch size 16"),
    ],
)
def test_the_answer_is_put_into_words_where_prune_was_not_run(name, sentence, runs) -> None:
    (part,) = gather([runs[0] / name])
    assert re.search(sentence, summary.answer(part))


def column(table: Table, title: str) -> list[Any]:
    """The values under a title, the first such one."""
    return [row[[one.title for one in table.columns].index(title)] for row in table.rows]


def test_what_could_not_be_shown_is_not_called_absent(tmp_path) -> None:
    document = run_folders.ablation([str(unit) for unit in run_folders.units(run_folders.CLASSIFIER)])
    for row in document["ablations"]:
        row |= {"p_holm": 1.0, "p_bh": 1.0}
    run_folders.folder(tmp_path / "none", "ablate", {"ablation": document}, weights="1")
    one = {"ablations": document["ablations"][:1], "base": document["base"]}
    run_folders.folder(tmp_path / "one", "ablate", {"ablation": one}, weights="2")
    heads = run_folders.one_head({"0": ("head", "encoder", 4)})
    run_folders.folder(tmp_path / "heads", "ablate-all-but-one", {"all-but-one": heads}, weights="3")
    first, second, third = (gather([tmp_path / name])[0] for name in ("none", "one", "heads"))
    how = "(n\u00a0=\u00a0200, Holm's correction)."
    assert summary.answer(first) == f"No difference could be shown for any single one of the 11 heads {how}"
    assert summary.answer(second) == f"No difference could be shown for the only one of the heads {how}"
    assert summary.answer(third) == "In 0 of 1 attention no loss could be shown with one head alone."
    assert [(tile.label, tile.value, tile.note) for tile in summary.tiles(second)[1:]] == [
        ("heads", "1", "in 1 attention"),
        ("shown to matter", "0", "of 1 alone, after Holm's correction"),
    ]


def test_a_difference_that_was_never_corrected_is_not_beyond_chance_anywhere(tmp_path) -> None:
    document = run_folders.ablation([str(unit) for unit in run_folders.units(run_folders.CLASSIFIER)])
    for row in document["ablations"]:
        row |= {"p": 0.00001, "p_holm": None, "p_bh": None}
    heads = run_folders.one_head()
    for row in heads["attentions"]:
        row |= {"p": 0.00001, "p_holm": None}
    run_folders.folder(tmp_path / "a", "ablate", {"ablation": document, "all-but-one": heads})
    (part,) = gather([tmp_path / "a"])
    assert summary.answer(part).startswith("No difference could be shown for any single one of the 11 heads")
    assert summary._told_by_one(part) == "In 3 of 3 attentions no loss could be shown with one head alone."
    assert {tile.label: tile.value for tile in summary.tiles(part)}["shown to matter"] == "0"
    assert head_map.build(part).views[0].marked == []
    (section,) = measurements.effects(part)
    assert {row["kind"] for row in drawn(section.charts[0].spec) if "unit" in row} == {"chance"}
    wrong = sum(row["difference"] < 0 for row in document["ablations"])
    assert section.notes == (
        f"Significant at 0.05 (randomization, n = 200): one by one 11 ({wrong} worse, {11 - wrong} better).",
    )
    document["ablations"][0] |= {"p_holm": 1.0, "p_bh": 1.0}  # as a run put together from two might have it
    run_folders.folder(tmp_path / "b", "ablate", {"ablation": document})
    (section,) = measurements.effects(gather([tmp_path / "b"])[0])
    assert section.notes[0].endswith("; Benjamini-Hochberg 0 (0 worse, 0 better); Holm 0 (0 worse, 0 better).")


def test_whether_the_same_units_matter_elsewhere_is_said_from_r_and_p() -> None:
    def told(r: float, p: float, rank: float = 0.27, rank_p: float = 0.04) -> str:
        made = TransferDocument.from_json(run_folders.transfer(["0:0", "0:1"]))
        ranks = replace(made.spearman, value=rank, p=rank_p)
        return related(replace(made, pearson=replace(made.pearson, value=r, p=p), spearman=ranks))

    rank = "rank correlation 0.27, p = 0.04"
    assert told(0.684, 0.00002) == f"Units that matter on one matter on the other (r = 0.68, p < 0.0001; {rank})."
    assert told(-0.5, 0.04, -0.27) == (
        "Units that matter more on one matter less on the other (r = −0.50, p = 0.04; rank correlation −0.27, p = 0.04)."
    )
    absent = "No relation could be shown between what matters on one and on the other (r = 0.02, p = 0.91; "
    assert told(0.02, 0.91, rank_p=0.7) == absent + "rank correlation 0.27, p = 0.7)."
    only_ranks = told(0.02, 0.91)
    assert only_ranks.startswith("Units stand in order alike")
    assert "could not be shown to agree" in only_ranks
    assert told(0.684, 0.00002, rank_p=0.7).startswith("The units with the largest effects matter alike on one")


def test_a_correlation_that_rests_on_one_unit_is_said_to(tmp_path) -> None:
    drawn = np.random.default_rng(0)
    names = [f"{n // 12}:{n % 12}" for n in range(48)]

    def told(one: np.ndarray, other: np.ndarray) -> str:
        made = TransferDocument.from_json(run_folders.transfer(names))
        damage = replace(made.damage, one=tuple(one.tolist()), other=tuple(other.tolist()))
        return related(replace(made, damage=damage, pearson=pearson(one, other), spearman=spearman(one, other)))

    one, other = drawn.normal(0, 1, (2, 48))
    one[17], other[17] = 6.0, 7.0  # one head that matters on both, and 47 of which nothing is known
    assert pearson(one, other).p < 0.001
    text = told(one, other)
    assert "rests on one of them, 1:5: r = " in text
    assert f"{pearson(np.delete(one, 17), np.delete(other, 17)).value:.2f}".replace("-", "−") in text
    alike = one + drawn.normal(0, 0.3, 48)
    assert told(one, alike).startswith("Units that matter on one matter on the other (r = 0.9")


def test_pictures_have_no_length(tmp_path) -> None:
    run_folders.folder(tmp_path / "b", "bench", {"bench": run_folders.bench(length=None)})
    (part,) = gather([tmp_path / "b"])
    (section,) = report_page.pruning.speeds(part)
    titles = [one.title for one in section.tables[0].columns]
    assert "tokens" not in titles
    assert column(section.tables[0], "batch") == [1, 1, 16, 16]
    assert [row[-1] for row in section.tables[0].shown] == ["20.0\u00a0MiB"] * 4
    assert [tile.note for tile in summary.tiles(part)] == ["batch 16; limit 1.20×"]
    run_folders.folder(tmp_path / "t", "bench", {"bench": run_folders.bench()})
    (part,) = gather([tmp_path / "t"])
    assert [tile.note for tile in summary.tiles(part)] == ["batch 16, 32 tokens; limit 1.20×"]
    assert column(report_page.pruning.speeds(part)[0].tables[0], "tokens") == [32] * 4


def test_of_several_prunings_the_last_gives_the_answer_and_none_is_lost(tmp_path) -> None:
    order = run_folders.scores().order()
    for name, gone in (("a-late", 5), ("b-early", 2), ("c-middle", 3)):  # by name and by time in another order
        run_folders.folder(tmp_path / name, "prune", {"prune": run_folders.prune(order, gone)})
    for name, day in (("a-late", 3), ("b-early", 1), ("c-middle", 2)):
        path = tmp_path / name / "run.json"
        told = json.loads(path.read_text()) | {"created": f"2026-01-0{day}T00:00:00+00:00"}
        path.write_text(json.dumps(told))
    (part,) = gather([tmp_path])
    made = report_page._chapter(part, 1)
    assert made.answer.startswith("5 of 11 heads")
    assert part.removed == set(map(str, order[:5]))
    assert made.map is not None
    assert {made.map.units[n] for n in made.map.removed} == part.removed
    (note,) = made.notes
    assert note.startswith("There are 3 prune runs of this model.")
    assert "a-late, made last; what c-middle and b-early came to" in note
    titles = [placed.section.title for placed in made.sections]
    for title in ("The guarantee", "What was removed", "Speed and size"):
        assert [one for one in titles if one.startswith(title)] == [
            f"{title} ({name})" for name in ("a-late", "c-middle", "b-early")
        ]
    counts = [len(placed.section.tables[0].rows) for placed in made.sections if placed.section.key == "guarantee"]
    assert counts == [6, 4, 3]


def test_bench_and_prune_are_both_shown_when_both_measured_speed(runs) -> None:
    (part,) = gather([runs[0]])
    titles = [section.title for section in report_page.pruning.speeds(part)]
    assert titles == ["Speed and size", "Speed and size, as prune measured them"]


def test_a_loss_has_as_many_digits_as_it_needs_and_its_own_unit(tmp_path) -> None:
    names = [str(unit) for unit in run_folders.units(run_folders.CLASSIFIER)]
    document = run_folders.ablation(names, metric="loss")
    run_folders.folder(tmp_path / "a", "ablate", {"ablation": document})
    (part,) = gather([tmp_path / "a"])
    (section,) = measurements.every_unit(part)
    titles = [one.title for one in section.tables[0].columns]
    place = titles.index("difference, loss")
    by_unit = {row[0]: row for row in section.tables[0].shown}
    assert by_unit["0:1"][place : place + 3] == ["−0.12300", "−0.12510", "−0.12090"]  # the interval is 0.0042 wide
    (view,) = head_map.build(part).views
    assert (view.low, view.high) == ("better by 0.12", "worse by 0.12 in loss")
    run_folders.folder(tmp_path / "b", "ablate", {"ablation": run_folders.ablation(names)})
    (part,) = gather([tmp_path / "b"])
    (section,) = measurements.every_unit(part)
    assert "difference, points" in [one.title for one in section.tables[0].columns]
    assert head_map.build(part).views[0].high == "worse by 12.3 points"


@pytest.mark.parametrize(("n", "closed"), [(400, 48), (872, 144), (37, 12), (2000, 72)])
def test_the_whole_model_is_the_middle_of_a_bin_and_no_value_lies_on_an_edge(n, closed) -> None:
    base = round(0.9 * n) / n
    steps = np.random.default_rng(n).integers(-40, 25, closed).tolist()
    rows = [{"unit": f"0:{k}", "value": base + s / n, "kind": "chance", "text": ""} for k, s in enumerate(steps)]
    chart = charts.effects("effects", rows, metric="accuracy", noun="heads", base=base)
    bricks = {row["unit"]: row for row in drawn(chart.spec) if "unit" in row}
    width = bricks["0:0"]["x1"] - bricks["0:0"]["x0"]
    assert width * n == pytest.approx(round(width * n))  # whole steps
    assert round(width * n) % 2 == 1
    for row, step in zip(rows, steps, strict=True):
        brick = bricks[row["unit"]]
        middle = (brick["x0"] + brick["x1"]) / 2
        assert (middle - base) / width == pytest.approx(round((middle - base) / width), abs=1e-6)
        assert brick["x0"] + 0.4 / n < base + step / n < brick["x1"] - 0.4 / n
    top = max(brick["y1"] for brick in bricks.values())
    (scale,) = {json.dumps(one["encoding"]["y"]["scale"]) for one in chart.spec["layer"] if "y" in one["encoding"]}
    assert json.loads(scale)["domain"][1] >= 1.1 * top  # where the words stand


def test_the_tables_have_the_numbers_of_the_documents(runs) -> None:
    root, documents = runs
    (part,) = gather([root])
    made = {placed.section.key: placed for placed in report_page._chapter(part, 1).sections}
    (one,) = made["one-head"].section.tables
    for row, document in zip(one.rows, documents["all-but-one"]["attentions"], strict=True):
        expected = [document["site"], document["head"], document["chosen_on"]]
        expected += [100 * document[key] for key in ("difference", "low", "high")]
        assert row == pytest.approx((*expected, document["p"], document["p_holm"]))
    (steps,) = made["guarantee"].section.tables
    assert [row[-1] for row in steps.rows] == ["shown"] * 4 + ["not shown"]
    said = made["guarantee"].section.notes
    assert said[0].startswith("Loses less than 1 points, ")
    assert said[0].endswith(" by an exact paired test.")
    assert said[1] == "It stopped at 5 because a loss of 1 point could not be ruled out there."
    assert said[3].startswith(
        "The interval of the difference on the 150 examples of the report is a separate, two-sided"
    )
    speeds, sizes = made["speed"].section.tables
    assert column(speeds, "times as fast") == [1.0, 1.04, 1.0, 1.17]
    assert column(speeds, "examples/s") == pytest.approx([100, 104, 100, 117])
    assert column(speeds, "lower quartile") == pytest.approx([90, 93.6, 90, 105.3])
    assert [row[2] for row in sizes.rows] == [2_000_000, 1_500_000]
    gone, sets = made["removed"].section.tables
    assert [row[2] for row in sets.rows] == [100, 101, 102]
    plan = Plan(frozenset(documents["order"][:4]))
    assert {row[0]: row[1] for row in gone.rows} == plan.to_json()["remove"]
    (random,) = {row[0] for row in made["curve"].section.tables[0].rows} - {"taylor"}
    assert random == "random, mean of 2"
    last = [row for row in made["curve"].section.tables[0].rows if row[0] == random][-1]
    assert last[3:6] == pytest.approx((0.9 - 0.225, 0.9 - 0.25, 0.9 - 0.2))


def drawn(spec: Any) -> list[dict[str, Any]]:
    """All rows of data in a chart."""
    if isinstance(spec, list):
        return [row for one in spec for row in drawn(one)]
    if not isinstance(spec, dict):
        return []
    own = [row for row in spec.get("values", []) if isinstance(row, dict)]  # not the ticks of an axis
    return own + [row for key, one in spec.items() if key != "values" for row in drawn(one)]


def test_the_charts_have_the_numbers_of_the_documents(runs, page) -> None:
    documents, specs = runs[1], page.data["charts"]
    line, *randoms = documents["curves"]["curves"]
    rows = {row["removed"]: row for row in drawn(specs["m1-main"]) if row.get("order") == "taylor"}
    for point in line["points"]:
        assert rows[point["removed"]]["value"] == point["result"]["value"]
        assert rows[point["removed"]]["high"] == point["result"]["high"]
    band = {row["removed"]: row for row in drawn(specs["m1-main"]) if "mean" in row}
    for place in range(4):
        values = [one["points"][place]["result"]["value"] for one in randoms]
        row = band[line["points"][place]["removed"]]
        assert (row["low"], row["mean"], row["high"]) == pytest.approx((min(values), np.mean(values), max(values)))
    assert {"removed": 4, "text": "chosen: 4"} in drawn(specs["m1-main"])
    bricks = {row["unit"]: row for row in drawn(specs["m1-effects-chart"]) if "unit" in row}
    assert len(bricks) == 11
    assert {row["kind"] for row in bricks.values()} == {"worse", "better", "chance"}
    for ablated in documents["ablation"]["ablations"]:
        row = bricks[ablated["closed"]]
        assert row["x0"] - 1e-9 <= ablated["after"] <= row["x1"] + 1e-9
        assert (row["kind"] == "chance") == (ablated["p_holm"] > 0.05)
    assert {"x0": 0.9, "text": "whole model"} in drawn(specs["m1-effects-chart"])
    steps = [row for row in drawn(specs["m1-guarantee-chart"]) if "damage" in row]
    for row, step in zip(steps[:5], documents["prune"]["guarantee"]["steps"], strict=True):
        assert (row["removed"], row["damage"], row["bound"]) == (step["removed"], step["damage"], step["bound"])
    points = {row["unit"]: (row["x"], row["y"]) for row in drawn(specs["m1-transfer-chart"]) if "unit" in row}
    sides = documents["transfer"]["damage"]
    assert points == dict(
        zip(documents["transfer"]["units"], zip(sides["one"], sides["other"], strict=True), strict=True)
    )
    bars = {row["place"]: row for row in drawn(specs["m1-speed-chart"]) if "place" in row}
    assert {place: (row["ratio"], row["limit"]) for place, row in bars.items()} == {
        "batch 1": (1.04, 1.2),
        "batch 16": (1.17, 1.2),
    }
    ranked = {row["unit"]: row for row in drawn(specs["m1-ranking-chart"]) if "unit" in row}
    site = documents["scores"]["sites"]["2"]
    assert ranked["2:3"]["high"] == pytest.approx(site["score"][3] + 2 * site["stderr"][3])
    assert {unit for unit, row in ranked.items() if row["gone"]} == {str(unit) for unit in documents["order"][:4]}


def test_how_to_get_it_again_names_command_data_signature_and_versions(runs) -> None:
    (part,) = gather([runs[0]])
    again = {one.folder: one for one in (how(part, run) for run in part.runs)}
    assert again["prune"].command == "headcount prune tiny --data dev.tsv --max-drop 1.0 -o smaller"
    assert not again["prune"].rebuilt
    assert again["score"].command.startswith("headcount score models/tiny --data dev.tsv")
    assert again["score"].rebuilt
    asked = {name: dict(again[name].facts) for name in again}
    assert asked["transfer"]["Signature (transfer, one)"] == "model:tiny|n:200"
    assert asked["transfer"]["Signature (transfer, other)"] == "model:tiny|n:190"
    assert asked["ablate"]["Signature (ablation, base)"] == "model:tiny|n:200"
    pruned = {key: text for key, text in again["prune"].facts if key.startswith("Signature (prune")}
    assert pruned == {
        "Signature (prune)": "prune|tiny",
        "Signature (prune, before)": "model:tiny|n:150",
        "Signature (prune, after)": "model:tiny|n:150|cut",
    }
    assert [pair for pair in again["curve"].facts if pair[0].startswith("Signature (curves")] == [
        ("Signature (curves, taylor)", "by:taylor|slope:0.08|without:11"),
        ("Signature (curves, random)", "by:random|slope:0.2|without:11"),
        ("Signature (curves, random)", "by:random|slope:0.25|without:11"),
    ]
    facts = dict(again["score"].facts)
    assert facts["Data (data)"] == "dev.tsv, n = 200, #ffffffff"
    assert facts["Signature (scores)"] == run_folders.scores().signature
    assert facts["Versions"].startswith("python 3.")
    assert "Note" not in facts
    said = "headcount score models/tiny --data dev.tsv --limit 20"
    (runs[0] / "score" / "command.json").write_text(json.dumps({"command": said}))  # as commands leave it at their end
    (runs[0] / "score" / "notes.json").write_text(json.dumps({"notes": ["3 were cut off", 4], "first_batch": []}))
    again = {one.folder: one for one in (how(part, run) for run in part.runs)}
    assert (again["score"].command, again["score"].rebuilt) == (said, False)
    (runs[0] / "score" / "command.json").unlink()
    assert [text for label, text in again["score"].facts if label == "Note"] == ["3 were cut off"]
    for damaged in ("[1]", "3", '{"notes": 1}', "{"):
        (runs[0] / "score" / "notes.json").write_text(damaged)
        assert "Note" not in dict(how(part, next(run for run in part.runs if run.folder.name == "score")).facts)


# -- which runs ---------------------------------------------------------------------------------------------------------------


def test_runs_are_put_together_by_their_weights(tmp_path, runs) -> None:
    names = [str(unit) for unit in run_folders.units(run_folders.CLASSIFIER)]
    run_folders.folder(
        tmp_path / "a", "score", {"scores": run_folders.scores().to_json()}, model="tiny", weights="same"
    )
    run_folders.folder(
        tmp_path / "b", "ablate", {"ablation": run_folders.ablation(names)}, model="./tiny", weights="same"
    )
    run_folders.folder(
        tmp_path / "c", "ablate", {"ablation": run_folders.ablation(names)}, model="tiny", weights="other"
    )
    run_folders.folder(tmp_path / "d", "bench", {"bench": run_folders.bench()}, model="tiny", weights="same")
    parts = gather([tmp_path, tmp_path / "a"])  # given twice, used once
    assert [[run.folder.name for run in part.runs] for part in parts] == [["a", "b", "d"], ["c"]]
    assert [[document.name for document in part.documents] for part in parts] == [
        ["scores", "ablation", "bench"],
        ["ablation"],
    ]
    assert gather([tmp_path / "d"])[0].model == "tiny"


@pytest.mark.parametrize(
    ("first", "other", "home"),
    [
        (("new", "aa"), ("x", "99"), ["a", "bench"]),  # by the weights, whatever its name
        (("new", "88"), ("x", "bb"), ["b", "bench"]),  # of another model that it measures
        (("tiny", "88"), ("x", "99"), ["bench"]),  # a name alone says nothing where weights are known
        (("models/tiny", ""), ("x", ""), ["a", "bench"]),  # where they are not, it does
    ],
)
def test_a_bench_goes_to_the_model_with_its_weights(first, other, home, tmp_path) -> None:
    for name, model, weights in (("a", "tiny", "aa"), ("b", "smaller", "bb")):
        run_folders.folder(
            tmp_path / name, "score", {"scores": run_folders.scores().to_json()}, model=model, weights=weights
        )
    about = {"model": first[0], "weights": first[1], "others": [other]}
    run_folders.folder(tmp_path / "bench", "bench", {"bench": run_folders.bench(first[0], other[0])}, **about)
    parts = [[run.folder.name for run in part.runs] for part in gather([tmp_path])]
    assert home in parts
    assert sum("bench" in names for names in parts) == 1


def test_equal_scores_of_two_runs_are_shown_once_and_different_ones_are_told_apart(tmp_path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 5)):
        run_folders.folder(tmp_path / name, "score", {"scores": run_folders.scores(seed=seed).to_json()})
    (part,) = gather([tmp_path])
    assert head_map.score_names(part) == ["taylor (a)", "taylor (c)"]


def test_an_unfinished_run_is_shown_as_far_as_it_is_and_named(tmp_path) -> None:
    run_folders.folder(tmp_path / "curve", "curve", {"scores-taylor": run_folders.scores().to_json()}, finished=False)
    text = report_page.report([tmp_path / "curve"], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "The run curve is not finished: 0 pieces are done, what is shown of it comes from scores-taylor." in text
    assert 'id="m1-ranking"' in text


def test_what_cannot_be_shown_is_said_in_one_sentence(tmp_path, runs) -> None:
    (tmp_path / "empty").mkdir()
    with says(BadRun, about="holds none"):
        report_page.report([tmp_path / "empty"], tmp_path / "page.html")
    with says(BadRun, about="cannot read"):
        report_page.report([tmp_path / "nowhere"], tmp_path / "page.html")
    with Run.open(tmp_path / "begun", {"command": "score", "model": "tiny"}):
        pass
    with says(BadRun, about="nothing to show"):
        report_page.report([tmp_path / "begun"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", ["scores", "ablation", "all-but-one", "transfer", "curves", "prune", "bench"])
@pytest.mark.parametrize("damage", ["a key is gone", "not a number", "a list"])
def test_a_damaged_document_is_one_sentence_with_its_path(name, damage, runs, tmp_path) -> None:
    document = json.loads(json.dumps(runs[1][name]))
    if damage == "a key is gone":
        victim = {"scores": "sites", "ablation": "ablations", "all-but-one": "base", "transfer": "damage"}
        del document[victim.get(name, {"curves": "curves", "prune": "comparison", "bench": "models"}.get(name, ""))]
    elif damage == "not a number":
        document = json.loads(re.sub(r"-?0\.\d\d+", "NaN", json.dumps(document)))
    made = run_folders.folder(tmp_path / "run", "x", {})
    text = "[]" if damage == "a list" else json.dumps(document)
    (made / f"{name}.json").write_text(text)
    with says(BadRun, about=f"{name}.json"):
        report_page.report([made], tmp_path / "page.html")


# -- units of other kinds, and many of them ---------------------------------------------------------------------------------


def test_kinds_and_types_are_read_off_names() -> None:
    assert [kind_of(unit) for unit in ("3:7", "3.mlp:7", "3.mlp:0-127", "layers:4", "3:*", "decoder.layers:1")] == [
        "head",
        "neuron",
        "block",
        "layer",
        "whole",
        "layer",
    ]
    assert [type_of(site) for site in ("3", "encoder.0", "decoder.0", "decoder.0.cross")] == [
        None,
        "encoder",
        "decoder",
        "cross",
    ]


def test_layers_blocks_and_whole_parts_are_drawn(tmp_path) -> None:
    sites: run_folders.Sites = {"layers": ("layer", None, 6), **run_folders.CLASSIFIER}
    blocks = [f"{n}.mlp:{k * 8}-{k * 8 + 7}" for n in range(3) for k in range(4)]
    run_folders.folder(tmp_path / "s", "score", {"scores": run_folders.scores_document(run_folders.scores(sites))})
    run_folders.folder(tmp_path / "b", "ablate", {"ablation": run_folders.ablation(blocks)})
    run_folders.folder(tmp_path / "w", "ablate", {"ablation": run_folders.ablation(["0:*", "1:*", "2:*"])})
    (part,) = gather([tmp_path])
    assert [(grid.kind, len(grid.units)) for grid in part.grids] == [
        ("head", 11),
        ("whole", 3),
        ("layer", 6),
        ("block", 12),
    ]
    page = Page(report_page.report([tmp_path], tmp_path / "page.html").read_text(encoding="utf-8"))
    assert sum(attributes.get("role") == "gridcell" for _, attributes in page.elements) == 32


def test_a_hundred_thousand_neurons_are_summed_up(tmp_path) -> None:
    made = run_folders.scores({f"{n}.mlp": ("neuron", None, 5_000) for n in range(20)}, samples=2).to_json()
    run_folders.folder(tmp_path / "run", "score", {"scores": made})
    written = report_page.report([tmp_path / "run"], tmp_path / "page.html", figures=tmp_path / "figures")
    page = Page(written.read_text(encoding="utf-8"))
    assert written.stat().st_size < 1_500_000
    assert len(page.elements) < 1_000
    (table,) = page.data["tables"].values()
    rows = list(csv.reader(io.StringIO(table["csv"])))
    values = np.sort(made["sites"]["7.mlp"]["score"])
    assert rows[8][:2] == ["7.mlp", "5000"]
    assert [float(cell) for cell in rows[8][2:]] == pytest.approx(values[[0, 1250, 2500, 3749, 4999]].tolist())


# -- copying ------------------------------------------------------------------------------------------------------------------

NASTY = ["a_b & 50% #1 {x} $y$ ~ ^ \\cmd", "pipe | `code` *bold* <b>\nnext [l](u)", '=1+1,"q"', "@SUM(A1)", "\ttab", ""]


def table() -> Table:
    columns = (Column("na|me_"), Column("value", lambda value: formatting.signed(value, 2), True))
    rows = tuple((name, None if n == 2 else (n - 1) / 3) for n, name in enumerate(NASTY))
    return Table("t", "50% of | things_", columns, rows)


def test_csv_reads_back_with_full_numbers_and_runs_no_formula() -> None:
    head, *rows = csv.reader(io.StringIO(table().csv(), newline=""))
    assert head == ["na|me_", "value"]
    assert [row[0] for row in rows] == [*NASTY[:2], "'" + NASTY[2], "'" + NASTY[3], "'" + NASTY[4], ""]
    assert [row[1] for row in rows] == ["" if n == 2 else repr((n - 1) / 3) for n in range(6)]


def test_markdown_keeps_its_cells_and_shows_every_character() -> None:
    lines = table().markdown().splitlines()
    assert len(lines) == 2 + len(NASTY)
    cells = [re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1] for line in lines]
    assert {len(row) for row in cells} == {2}
    plain = [re.sub(r"\\([\\`*_{}\[\]<>#|&~$!])", r"\1", row[0].strip()) for row in cells]
    assert plain == ["na|me_", "---", *(" ".join(name.split()) for name in NASTY)]
    assert not re.search(r"(?<!\\)[<`*\[]", "".join(row[0] for row in cells))
    assert [row[1].strip() for row in cells[2:5]] == ["−0.33", "0.00", "–"]


def test_latex_escapes_every_special_character() -> None:
    text = table().latex()
    body = re.search(r"\\midrule\n(.*)\n\\bottomrule", text, re.DOTALL).group(1).splitlines()  # type: ignore[union-attr]
    assert (
        body[0] == r"a\_b \& 50\% \#1 \{x\} \$y\$ \textasciitilde{} \textasciicircum{} \textbackslash{}cmd & $-$0.33 \\"
    )
    assert body[1].startswith(r"pipe \textbar{} `code` *bold* \textless{}b\textgreater{} next [l](u) & 0.00")
    for line in body:
        assert len(re.findall(r"(?<!\\)&", line)) == 1
    assert r"\caption{50\% of \textbar{} things\_}" in text


def test_a_latex_row_is_no_option_of_the_line_before() -> None:
    made = Table("t", "", (Column("a"), Column("b")), (("[1, 2]", "x"), ("* all", "y"), ("a", "[z]")))
    body = made.latex().split("\\midrule\n")[1].splitlines()[:3]
    assert body == [r"{[}1, 2] & x \\", r"{*} all & y \\", r"a & [z] \\"]


def test_the_page_carries_each_table_in_three_forms(page) -> None:
    shown = [attributes for tag, attributes in page.elements if tag == "button" and "data-copy" in attributes]
    assert {(a["data-table"], a["data-copy"]) for a in shown} == {
        (name, kind) for name in page.data["tables"] for kind in ("latex", "csv", "markdown")
    }
    assert all(forms["latex"].startswith("\\begin{table}") for forms in page.data["tables"].values())


# -- what comes from outside ---------------------------------------------------------------------------------------------------


def poisoned(value: Any, key: str = "") -> Any:
    """A document in which every free text is hostile; words that programs look at stay."""
    kept = ("test", "alternative", "kind", "type", "normalize")
    if isinstance(value, dict):
        if key == "remove":
            return value
        named = key == "sites" and all(isinstance(one, dict) for one in value.values())  # of scores, by name
        return {(f"{name}{HOSTILE}" if named else name): poisoned(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [poisoned(one, key) for one in value]
    if isinstance(value, str) and key == "closed":
        site, _, index = value.rpartition(":")
        return f"{site}{HOSTILE}:{index}"
    if isinstance(value, str) and key not in kept and value != "random":
        return value + HOSTILE
    return value


def hostile(root: Path) -> Path:
    documents = run_folders.everything(root / "kind")
    for n, name in enumerate(("scores", "ablation", "all-but-one", "transfer", "curves", "prune", "bench")):
        made = poisoned(documents[name])
        run = {"model": f"{n}/tiny{HOSTILE}".replace("/script", "script"), "data": f"dev{HOSTILE}"}
        run_folders.folder(root / "bad" / f"run-{n}<b>", "transfer" if name == "transfer" else "x", {name: made}, **run)
    roles = {"roles": {f"0{HOSTILE}:0": HOSTILE}}
    run_folders.folder(root / "bad" / "roles", "x", {"roles": roles}, model=f"0/tiny{HOSTILE}")
    return root / "bad"


def test_hostile_names_stay_text(tmp_path, page) -> None:
    written = report_page.report(
        [hostile(tmp_path)], tmp_path / "page.html", title=HOSTILE, figures=tmp_path / "figures"
    )
    text = written.read_text(encoding="utf-8")
    bad = Page(text)
    count = {tag: sum(one == tag for one, _ in bad.elements) for tag in ("script", "img", "b", "style", "iframe", "a")}
    assert count["script"] == sum(tag == "script" for tag, _ in page.elements) == 3
    assert count["img"] == count["iframe"] == 0
    assert all("data-removed" in attributes for tag, attributes in bad.elements if tag == "b")
    assert not [name for _, attributes in bad.elements for name in attributes if name.startswith("on")]
    assert all(str(a["href"]).startswith("#") for _, a in bad.elements if "href" in a)
    assert "alert(1)" in "".join(bad.texts)  # it is there, as text
    assert "49" not in "".join(one for one in bad.texts if "7*7" in one)
    whole = text.partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&\u2028") & set(whole)
    for path in (tmp_path / "figures").glob("*.svg"):
        assert not re.search(r"<(script|img|b)\b", path.read_text(encoding="utf-8")), path.name


def test_embedded_json_reads_back() -> None:
    data = {"a": HOSTILE, "b": ["\u2029", "\ud800", 1.5, None, "é"]}
    text = in_html.embedded(data)
    assert json.loads(text) == data
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert "</script" not in in_html.as_script("x = '</script>'")
    assert "<!--" not in in_html.as_script("x = '<!--'")


def test_the_page_needs_nothing_else(page, runs, tmp_path) -> None:
    for tag, attributes in page.elements:
        assert "src" not in attributes, tag
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert "href" not in attributes or (tag == "a" and str(attributes["href"]).startswith("#"))
    style = (report_page.TEMPLATES / "page.css").read_text(encoding="utf-8")
    assert "url(" not in style
    assert "@import" not in style
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none'")
    assert "http" not in str(policy)
    links = {a["href"][1:] for tag, a in page.elements if tag == "a"}  # type: ignore[index]
    assert links <= page.ids()


# -- files ---------------------------------------------------------------------------------------------------------------------


def test_nothing_is_overwritten_without_force_and_nothing_is_half_written(runs, tmp_path, monkeypatch) -> None:
    output = tmp_path / "page.html"
    output.write_text("mine")
    run = runs[0] / "bench"
    with says(BadRun, about="--force"):
        report_page.report([run], output)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "speed.svg").write_text("mine")
    with says(BadRun, about="speed.svg"):
        report_page.report([run], tmp_path / "new.html", figures=tmp_path / "figures")
    assert not (tmp_path / "new.html").exists()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with says(BadRun, about="No space left"):
            report_page.report([run], output, force=True)
    assert output.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures", "page.html"]
    assert report_page.report([run], output, force=True).read_text(encoding="utf-8").startswith("<!doctype html>")
    with says(BadRun, about="is a folder"):
        report_page.report([run], tmp_path, force=True)


def test_every_chart_of_the_page_is_a_figure_too(runs, page, tmp_path) -> None:
    result = CliRunner().invoke(
        app,
        ["report", str(runs[0]), "-o", str(tmp_path / "p.html"), "--figures", str(tmp_path / "f"), "--title", "T & U"],
    )
    assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / "f").iterdir()}
    stems = {"curve", "ranking", "effects", "guarantee", "transfer", "speed", "map-encoder"}
    stems |= {"speed-2"}  # prune's own
    assert names == {f"{stem}.{ending}" for stem in stems for ending in ("svg", "png")}
    assert len(page.data["charts"]) == len(stems) - 1  # the map is no Vega chart in the page
    for name in names:
        content = (tmp_path / "f" / name).read_bytes()
        assert content.startswith(b"<svg" if name.endswith("svg") else b"\x89PNG")
        assert b"theme:" not in content
    assert "<title>T &amp; U</title>" in (tmp_path / "p.html").read_text(encoding="utf-8")
    with says(BadRun, about="p.html is there already"):
        CliRunner().invoke(
            app, ["report", str(runs[0]), "-o", str(tmp_path / "p.html")], catch_exceptions=False, standalone_mode=False
        )


def test_colours_are_painted_everywhere_but_in_data() -> None:
    spec = {"a": "theme:ink", "b": [{"c": "theme:warn"}], "data": {"values": [{"x": "theme:ink"}]}, "d": "theme:none"}
    assert theme.painted(spec, {"ink": "#000", "warn": "#f00"}) == {
        "a": "#000",
        "b": [{"c": "#f00"}],
        "data": {"values": [{"x": "theme:ink"}]},
        "d": "theme:none",
    }
    assert theme.PALETTES["light"].keys() == theme.PALETTES["dark"].keys()


def _luminance(colour: str) -> float:
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    bright, dim = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("name", ["light", "dark"])
@pytest.mark.parametrize("text", ["ink", "muted", "accent", "warn"])
def test_text_can_be_read_in_both_palettes(name, text) -> None:
    palette = theme.PALETTES[name]
    for ground in ("paper", "surface"):
        assert _contrast(palette[text], palette[ground]) >= 4.5


@pytest.mark.parametrize("name", ["light", "dark"])
def test_lost_and_gained_differ_in_grey_too_and_stand_out(name) -> None:
    palette = theme.PALETTES[name]
    assert _contrast(palette["warn"], palette["accent2"]) >= 1.5
    for ground in ("paper", "surface", "faint"):
        assert _contrast(palette["warn"], palette[ground]) > _contrast(palette["accent2"], palette[ground]) >= 3


def test_the_command_works_where_there_is_no_torch(runs, tmp_path) -> None:
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Blocked())
from headcount.cli.app import main
main()
"""
    command = [sys.executable, "-c", code, "report", str(runs[0]), "-o", "page.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "written to page.html\n"
    assert (tmp_path / "page.html").stat().st_size > 500_000


def test_numbers_are_written_as_people_read_them() -> None:
    assert [formatting.bytes_text(n) for n in (12, 999, 45_439_980, 999_600, 7.2e9)] == [
        "12 B",
        "999 B",
        "45.4 MB",
        "1.0 MB",
        "7.2 GB",
    ]
    assert [formatting.signed(n, 1) for n in (-0.04, 0.06, -1.25)] == ["0.0", "+0.1", "−1.2"]
    assert formatting.three(0.00012) == "1.20e−04"
    assert formatting.listed(["a"]) == "a"
    assert formatting.listed(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"
    assert measurements._thinned([{"n": n} for n in range(4_001)])[1]["n"] == 3


# -- what training came to ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Learned gates, checkpoints and a training, beside a curve of the same model on the same examples."""
    root = tmp_path_factory.mktemp("taught")
    made = run_folders.taught(root)
    order = run_folders.scores().order()
    made["curves"] = run_folders.curves(order, [0, 3, 6, 11])
    run_folders.folder(root / "curve", "curve", {"curves": made["curves"]})
    return root, made


@pytest.fixture(scope="module")
def taught_page(taught, tmp_path_factory) -> Page:
    folder = tmp_path_factory.mktemp("taught-page")
    written = report_page.report([taught[0]], folder / "page.html", figures=folder / "figures")
    endings = {ending: {path.stem for path in (folder / "figures").glob(f"*.{ending}")} for ending in ("svg", "png")}
    assert endings["svg"] == endings["png"] >= {"learned", "gates", "over", "training", "training-2", "curve"}
    assert all(b"theme:" not in path.read_bytes() for path in (folder / "figures").glob("*.svg"))
    return Page(written.read_text(encoding="utf-8"))


def test_what_was_learned_stands_with_the_curve_of_the_whole_model(taught, taught_page) -> None:
    assert {
        f"m1-{key}" for key in ("learned", "gates", "over", "over-2", "training", "curve", "map")
    } <= taught_page.ids()
    for name, keys in (
        ("learn-l0-4-0", {"learned", "gates", "ranking", "units"}),
        ("over", {"over"}),
        ("train", {"training"}),
    ):
        (part,) = gather([taught[0] / name])
        assert {placed.section.key for placed in report_page._chapter(part, 1).sections} == keys


def lines(rows: list[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], float]:
    """Rows of a chart by some of their values; a row may stand in it several times, always the same."""
    out: dict[tuple[Any, ...], float] = {}
    for row in rows:
        if {*keys, "value"} <= row.keys():
            assert out.setdefault(tuple(row[key] for key in keys), row["value"]) == row["value"]
    return out


def test_the_chart_of_learned_gates_has_every_run_their_mean_and_the_curves(taught, taught_page) -> None:
    documents, rows = taught[1], drawn(taught_page.data["charts"]["m1-learned-chart"])
    runs = {name: one for name, one in documents.items() if name.startswith("learn-")}
    shown = lines([row for row in rows if "track" in row], "line", "kept", "track")
    expected = {}
    for one in runs.values():
        track = f"{one['label']}, seed {one['seed']}" if one["label"] == "subset, joint" else one["label"]
        expected[one["label"], one["keep"], track] = one["learned"]["value"]
    assert shown == expected
    assert not [row for row in rows if row.get("alone")]  # there are seeds, and they show the spread
    (part,) = gather([taught[0] / f"learn-l0-{keep}-0" for keep in (4, 7)])
    alone = [
        row for row in drawn(report_page.training.learned(part)[0].charts[0].spec) if row.get("alone") and "low" in row
    ]
    spans = {row["kept"]: (row["low"], row["high"]) for row in alone}
    assert spans == {keep: (v - 0.04, v + 0.04) for keep, v in ((4, 0.9 - 0.03), (7, 0.9 - 0.008))}
    means = lines([row for row in rows if "alone" in row and "track" not in row], "line", "kept")
    # seeds lose 0, 0.001 and 0.004 more than 0.004 (12 - kept): 5 / 3 thousandths on average
    by_hand = {("subset, joint", keep): 0.9 - 0.004 * (12 - keep) - 0.005 / 3 for keep in (4, 8)}
    assert means == pytest.approx({**by_hand, ("l0", 4): 0.87, ("l0", 7): 0.892})
    thin = lines([row for row in rows if "alone" not in row], "line", "kept")
    taylor, *randoms = documents["curves"]["curves"]
    wanted = {("taylor", 11 - point["removed"]): point["result"]["value"] for point in taylor["points"]}
    for place, point in enumerate(randoms[0]["points"]):
        both = [one["points"][place]["result"]["value"] for one in randoms]
        wanted["random, mean of 2", 11 - point["removed"]] = sum(both) / 2
    assert thin == pytest.approx(wanted)
    assert {"value": 0.9, "text": "whole model"} in rows


def test_the_table_of_learned_gates_tells_one_seed_from_several(taught) -> None:
    (part,) = gather([taught[0]])
    (section,) = report_page.training.learned(part)
    (table,) = section.tables
    rows = {(row[0], row[1]): row[2:] for row in table.rows}
    assert list(rows) == [("l0", 4), ("l0", 7), ("subset, joint", 4), ("subset, joint", 8)]
    one = taught[1]["learn-l0-4-0"]
    change = one["comparison"]
    difference = [100 * change[key] for key in ("difference", "low", "high")]
    assert rows["l0", 4] == pytest.approx((4 / 11, 1, 0.87, 0.83, 0.91, *difference, change["p"]))
    values = [taught[1][f"learn-subset-8-{seed}"]["learned"]["value"] for seed in range(3)]
    several = rows["subset, joint", 8]
    assert several[:5] == pytest.approx((8 / 11, 3, sum(values) / 3, min(values), max(values)))
    assert several[5:8] == pytest.approx([100 * (v - 0.9) for v in (sum(values) / 3, min(values), max(values))])
    assert several[8] is None
    (gates,) = report_page.training.gates(part)
    assert column(gates.tables[0], "open before the end") == [4.5, 7.5, *[4.5] * 3, *[8.5] * 3]
    assert column(gates.tables[0], "seed") == ["0", "0", *"012", *"012"]
    assert column(gates.tables[0], "steps") == [40] * 8


def test_gates_close_in_the_chart_as_in_the_history(taught, taught_page) -> None:
    rows = drawn(taught_page.data["charts"]["m1-gates-chart"])
    for name, one in taught[1].items():
        if name.startswith("learn-"):
            shown = [(row["step"], row["open"]) for row in rows if row["run"] == name]
            assert shown == [(row["step"], row["open"]) for row in one["history"]]
    assert report_page.training._thinned(list(range(1000)), 10) == [*range(0, 1000, 100), 999]
    assert report_page.training._thinned([], 10) == []


def test_only_what_was_measured_on_the_same_examples_shares_a_chart(tmp_path) -> None:
    order = run_folders.scores().order()
    run_folders.folder(tmp_path / "a", "learn", {"learned": run_folders.learned(label="subset")})
    run_folders.folder(tmp_path / "b", "learn", {"learned": run_folders.learned(label="l0")}, fingerprint="e")
    run_folders.folder(tmp_path / "c", "curve", {"curves": run_folders.curves(order, [0, 11], 0)}, fingerprint="e")
    half = run_folders.curves(order[:5], [0, 5], 0, by="half")  # of other units, as --only gives them
    half["curves"][0]["of"] = 11
    run_folders.folder(tmp_path / "d", "curve", {"curves": half})
    (part,) = gather([tmp_path])
    first, second = report_page.training.learned(part)
    assert {row["line"] for row in drawn(first.charts[0].spec) if "line" in row} == {"subset", "half (d)"}
    assert {row["line"] for row in drawn(second.charts[0].spec) if "line" in row} == {"l0", "taylor (c)"}
    half["curves"][0]["points"][-1]["removed"] = 11  # to its end, and yet not all that was learned to go
    run_folders.folder(tmp_path / "e", "curve", {"curves": half})
    (part,) = gather([tmp_path / "a", tmp_path / "e"])
    (section,) = report_page.training.learned(part)
    assert {row["line"] for row in drawn(section.charts[0].spec) if "line" in row} == {"subset"}


def labels(root: Path) -> list[str]:
    (part,) = gather([root])
    return [one.label for one in part.lessons]


def test_runs_of_one_method_that_differ_in_more_than_the_seed_are_no_seeds(tmp_path) -> None:
    for name, seed, lr in (("a", 0, 0.0001), ("b", 0, 0.02), ("c", 1, 0.0001)):
        trained = {"epochs": 3.0, "lr": lr, "steps": 40, "seed": seed}
        run_folders.folder(tmp_path / name, "learn", {"learned": run_folders.learned(seed=seed, trained=trained)})
    assert labels(tmp_path) == ["subset (lr 1e-4)", "subset (lr 0.02)", "subset (lr 1e-4)"]
    again = {"epochs": 3.0, "lr": 0.0001, "steps": 40, "seed": 0}
    run_folders.folder(tmp_path / "d", "learn", {"learned": run_folders.learned(trained=again)})
    assert labels(tmp_path)[2:] == ["subset (lr 1e-4)", "subset (lr 1e-4) (d)"]  # nothing but the folder differs


def test_a_line_joins_only_runs_of_the_same_training(tmp_path) -> None:
    for name, keep, steps in (("a", 4, 6), ("b", 8, 12), ("c", 6, 12)):
        trained = {"epochs": steps / 2, "lr": 3e-5, "steps": steps, "seed": 0}
        run_folders.folder(tmp_path / name, "learn", {"learned": run_folders.learned(keep=keep, trained=trained)})
    (part,) = gather([tmp_path])
    (section,) = report_page.training.learned(part)
    shown = lines([row for row in drawn(section.charts[0].spec) if "track" in row], "line", "kept")
    assert set(shown) == {("subset (6 steps)", 4), ("subset (12 steps)", 8), ("subset (12 steps)", 6)}
    # what is not in the recipe counts as well: settings, and of older documents what the command was asked
    for name, settings in (("d", {"settle": 0.2, "choose": None}), ("e", {"settle": 0.2, "choose": "taylor"})):
        learned = run_folders.learned(label="layerdrop", settings=settings)
        run_folders.folder(tmp_path / "new" / name, "learn", {"learned": learned})
    assert labels(tmp_path / "new") == ["layerdrop", "layerdrop (choose taylor)"]
    for name, options in (("f", {}), ("g", {"teacher": {"name": "models/large", "weights": "x"}})):
        run_folders.folder(tmp_path / "old" / name, "learn", {"learned": run_folders.learned()}, **options)
    assert labels(tmp_path / "old") == ["subset", "subset (teacher large)"]
    for name, n in (("h", 3), ("i", 5)):  # a penalty is another way to say how many are kept
        run_folders.folder(
            tmp_path / "l0" / name, "learn", {"learned": run_folders.learned(label="l0", keep=n)}, l0=n / 10
        )
    assert labels(tmp_path / "l0") == ["l0", "l0"]


def test_trainings_are_told_apart_in_few_words() -> None:
    many = [{"steps": n, "lr": 0.1 * n, "warmup": n, "settle": n > 1, "distill": 0.5} for n in (1, 2)]
    assert run_labels.differences(many) == ["1 steps", "2 steps"]
    square = [{"lr": lr, "batch_size": size} for lr in (0.1, 0.2) for size in (8, 16)]
    assert run_labels.differences(square)[:2] == ["lr 0.1, batch size 8", "lr 0.1, batch size 16"]
    assert run_labels.differences([{"lr": 0.1}, {"lr": 0.1}]) == ["", ""]
    # a document from before settings were noted is not said to have had none
    document = LearnedDocument.from_json(run_folders.learned(trained={"steps": 4}))
    old = run_labels.training_of(document, {})
    new = run_labels.training_of(replace(document, settings={"settle": 0.2}), {})
    assert run_labels.differences([old, new]) == ["", ""]


def test_places_are_named_by_what_differs() -> None:
    heads = run_labels.Place("f", "accuracy", 50, "heads", 12, ())
    layers = heads._replace(units="layers", of=3)
    assert list(run_labels.place_names({heads: "a", layers: "a"}).values()) == ["heads", "layers"]
    fewer, cross = heads._replace(examples="g", n=40), heads._replace(only=("cross",))
    names = run_labels.place_names({heads: "a", fewer: "a", cross: "a", layers: "a"})
    assert list(names.values()) == ["heads, 50 examples", "heads, 40 examples", "heads (cross)", "layers"]
    other = heads._replace(examples="g")
    assert list(run_labels.place_names({heads: "a", other: "b"}).values()) == ["heads, on a", "heads, on b"]
    assert list(run_labels.place_names({heads: "a", other: "a"}).values()) == ["heads", "heads (2)"]


def control(**other: Any) -> dict[str, Any]:
    return run_folders.learned(
        label="random, not recovered", trained=None, penalty=None, open=None, history=[], **other
    )


def test_what_was_chosen_first_is_not_called_learned(tmp_path) -> None:
    run_folders.folder(tmp_path / "a", "learn", {"learned": control()})
    (part,) = gather([tmp_path])
    chapter = report_page._chapter(part, 1)
    said = [chapter.answer, chapter.main.title, chapter.main.about]
    said += [text for placed in chapter.sections for text in (placed.section.title, placed.section.about[:80])]
    assert chapter.answer.startswith(
        "With 4 of 11 heads kept (“random, not recovered”), accuracy is 0.890, where the whole"
    )
    assert [placed.section.title for placed in chapter.sections[:2]] == ["Chosen first: heads", "Every run: heads"]
    assert not [text for text in said if "gate" in text or "learned" in text]
    assert "Kept by gates that learned" not in [fact.label for fact in chapter.map.facts]


def test_only_runs_with_a_gate_for_it_count_for_a_unit(tmp_path) -> None:
    stack = {"layers": ("layer", None, 3)}
    layers = run_folders.learned(stack, "layerdrop", 2, units="layers")
    plans = {seed: run_folders.learned(keep=4, seed=seed) for seed in range(2)}
    for seed, document in plans.items():
        run_folders.folder(tmp_path / f"gates-{seed}", "learn", {"learned": document})
    run_folders.folder(tmp_path / "control", "learn", {"learned": control(keep=4, seed=5)})
    run_folders.folder(tmp_path / "layers", "learn", {"learned": layers})
    whole = run_folders.learned(
        keep=2, units="attentions", of=3
    )  # a whole attention is a unit here, and its heads are no units
    run_folders.folder(tmp_path / "whole", "learn", {"learned": whole})
    part_of = {"0": run_folders.CLASSIFIER["0"]}  # gates for the heads of one layer alone
    learned = run_folders.learned(part_of, keep=1)
    kept = {"learned": learned, "scores": run_folders.scores(part_of, "subset").to_json()}
    run_folders.folder(tmp_path / "only", "learn", kept, only=["0"])
    (part,) = gather([tmp_path])
    made = head_map.build(part)
    (fact,) = [fact for fact in made.facts if fact.label == "Kept by gates that learned"]
    for unit, text in zip(made.units, fact.texts, strict=True):
        runs = [layers] if unit.startswith("layers") else list(plans.values())
        runs += [learned] if unit.startswith("0:") else []
        count = sum(unit not in set(map(str, Plan.from_json(one["plan"]))) for one in runs)
        assert text == f"in {count} of {len(runs)} run" + "s" * (len(runs) > 1)
    titles = [section.title for section in [*report_page.training.learned(part), *report_page.training.gates(part)]]
    assert len(set(titles)) == len(titles)
    assert {"Learned gates: heads", "Learned gates: layers", "How the gates closed: heads (0)"} <= set(titles)
    (stop,) = [track.stops[-1] for track in made.tracks if track.name == "subset [attentions]"]
    assert stop.removed == 1


def test_points_differ_in_more_than_colour_and_intervals_are_in_sight(tmp_path) -> None:
    for n in range(12):
        run_folders.folder(
            tmp_path / str(n), "learn", {"learned": run_folders.learned(label=f"method {n}", keep=n % 3 + 1)}
        )
    (part,) = gather([tmp_path])
    (section,) = report_page.training.learned(part)
    assert "stretched at small numbers" in section.about
    layers = section.charts[0].spec["layer"]
    points = [one["encoding"] for one in layers if "shape" in one["encoding"]]
    looks = [list(zip(*(one[key]["scale"]["range"] for key in ("color", "shape")), strict=True)) for one in points]
    assert all(len(set(look)) == 12 for look in looks)
    assert {one["encoding"]["shape"].get("legend", {}) is None for one in layers if "shape" in one["encoding"]} == {
        False
    }
    row = {"line": "a", "value": 0.8, "low": 0.7, "high": 0.9, "alone": True}
    low, high = training_charts._window([row], 0.85)
    assert low < 0.7
    assert high > 0.9
    near = [
        {**row, "value": 0.8 + n / 1000} for n in range(9)
    ]  # the intervals are as wide as all of them many times over
    low, high = training_charts._window(near, 0.808)
    assert 0.008 < high - low < 0.05
    low, high = training_charts._window([{**one, "alone": False} for one in near], 0.808)
    assert high - low == pytest.approx(0.008 * 1.16)


def test_the_map_shows_what_learned_gates_keep(taught) -> None:
    (part,) = gather([taught[0]])
    made = head_map.build(part)
    names = [f"subset, joint, seed {seed}" for seed in range(3)]
    assert [track.name for track in made.tracks] == ["taylor", "l0", *names]
    for track in made.tracks[1:]:
        seed = int(track.name[-1]) if track.name in names else 0
        keeps = (8, 4) if track.name in names else (7, 4)
        method = "subset" if track.name in names else "l0"
        assert [stop.removed for stop in track.stops] == [0, *(11 - keep for keep in keeps)]
        for keep, stop in zip(keeps, track.stops[1:], strict=True):
            plan = Plan.from_json(taught[1][f"learn-{method}-{keep}-{seed}"]["plan"])
            assert {made.units[n] for n in stop.gone} == set(map(str, plan))
    assert [view.name for view in made.views] == ["Score: l0, 4 kept", "Score: subset, joint, 4 kept"]
    facts = {fact.label: dict(zip(made.units, fact.texts, strict=True)) for fact in made.facts}
    runs = [Plan.from_json(one["plan"]) for name, one in taught[1].items() if name.startswith("learn-")]
    for unit, text in facts["Kept by gates that learned"].items():
        assert text == f"in {sum(unit not in set(map(str, plan)) for plan in runs)} of 8 runs"


def test_learned_gates_are_put_into_a_sentence(taught, tmp_path) -> None:
    (part,) = gather([taught[0] / "learn-l0-7-0"])
    assert summary.answer(part) == (
        "With 7 of 11 heads kept (“l0”), accuracy is 0.892, where the whole model has 0.900: "
        "−0.8 [−2.9, +1.3] points on 200 examples. This describes what was run; it is not a guarantee."
    )
    made = report_page._chapter(part, 1)
    assert (made.main.title, made.main.chart.name) == ("What learned gates keep", "learned")
    assert ("heads kept", "7 of 11") in [(tile.label, tile.value) for tile in made.tiles]
    (part,) = gather([taught[0] / f"learn-subset-8-{seed}" for seed in range(3)])
    assert summary.answer(part).startswith(
        "With 8 of 11 heads kept (“subset, joint”), accuracy is 0.882 on average over 3 seeds, where the whole model has "
        "0.900: −1.8 points, from −2.0 to −1.6, on 200 examples. This describes what was run; it is not a guarantee."
    )
    (part,) = gather([taught[0]])  # 7 heads lose less than a point; 4 would be fewer, and lose more
    assert summary.answer(part).startswith("With 7 of 11 heads kept")
    assert summary.answer(part).endswith(
        "Of 8 runs, this keeps fewest heads for at most 1 point lost; it was chosen on these very examples, and is not a "
        "guarantee."
    )
    assert "can go without training" in [tile.label for tile in summary.tiles(part)]
    (part,) = gather([taught[0] / name for name in ("learn-l0-4-0", "learn-subset-4-0")])
    assert "Of 2 runs, this loses least; it was chosen on these very examples" in summary.answer(part)
    (part,) = gather([taught[0] / "over"])
    assert summary.answer(part) == (
        "Of the heads of each checkpoint, 0\u00a0% at epoch-01 (accuracy 0.700) and 27\u00a0% at epoch-10 (accuracy 0.900) can "
        "go before more than 1 point of accuracy is lost."  # 30 and 10 points times (3 / 11) squared: 2.2, and 0.7
    )
    (part,) = gather([taught[0] / "train"])
    told = "After training, accuracy is 0.720 [0.680, 0.760] on 200 examples, and was 0.510 [0.470, 0.550] before."
    assert summary.answer(part) == told


def test_the_curves_of_checkpoints_are_relative_to_their_own_whole_models(taught, taught_page) -> None:
    specs, stages = taught_page.data["charts"], taught[1]["over"]["checkpoints"]
    for name in ("m1-over-chart", "m1-over-chart-1"):
        rows = [row for row in drawn(specs[name]) if "checkpoint" in row]
        shown = {(row["checkpoint"], row["removed"]): (row["value"], row["relative"], row["share"]) for row in rows}
        assert len(shown) == 12
        for stage in stages:
            points = stage["curves"][0]["points"]
            base = points[0]["result"]["value"]
            for point in points:
                value, gone = point["result"]["value"], point["removed"]
                assert shown[stage["name"], gone] == pytest.approx((value, value / base, gone / 11))
    fields = [str(specs[name]["layer"][0]["encoding"]["y"]["field"]) for name in ("m1-over-chart", "m1-over-chart-1")]
    assert fields == ["relative", "value"]
    colours = specs["m1-over-chart"]["layer"][0]["encoding"]["color"]["scale"]
    assert colours == {
        "domain": ["epoch-01", "epoch-02", "epoch-10"],
        "range": ["theme:seq:25", "theme:seq:62", "theme:seq:100"],
    }
    (part,) = gather([taught[0] / "over"])
    by_taylor, by_chance = report_page.training.over(part)
    first = stages[0]["curves"]
    base = first[0]["points"][0]["result"]["value"]
    assert by_taylor.tables[0].rows[0] == pytest.approx(
        ("epoch-01", base, *(point["result"]["value"] / base for point in first[0]["points"][1:]))
    )
    last = [one["points"][-1]["result"]["value"] for one in first[1:]]
    assert by_chance.tables[1].rows[3][:7] == pytest.approx(
        ("epoch-01", 11, 1.0, np.mean(last), min(last), max(last), np.mean(last) / base)
    )


def test_a_metric_of_zero_has_no_share(tmp_path) -> None:
    document = run_folders.over(run_folders.scores().order(), [0, 6, 11])
    document["checkpoints"][0]["curves"][0]["points"][0]["result"]["value"] = 0.0
    run_folders.folder(tmp_path / "a", "over", {"over": document})
    (section, _) = report_page.training.over(gather([tmp_path / "a"])[0])
    assert section.tables[0].rows[0][1:] == (0.0, None, None)
    assert section.tables[0].rows[1][2] > 0.9


def test_a_training_shows_its_losses_and_what_it_came_to(taught, taught_page) -> None:
    document, specs = taught[1]["training"], taught_page.data["charts"]
    for name, place, field in (("m1-training-chart", "step", "loss"), ("m1-training-chart-1", "epoch", "dev")):
        shown = lines(drawn(specs[name]), "place")
        assert shown == {(row[place],): row[field] for row in document["history"] if row[field] is not None}
    (part,) = gather([taught[0] / "train"])
    (section,) = report_page.training.training(part)
    before, after = section.tables[0].rows
    assert before[:5] == ("before training", *(document["before"][key] for key in ("value", "low", "high", "n")))
    change = [100 * document["comparison"][key] for key in ("difference", "low", "high")]
    assert after[5:] == pytest.approx((*change, 0.001))
    assert ("lr", "3e-05") in section.tables[1].rows
    new = {**document, "before": None, "comparison": None, "history": document["history"][:1]}
    run_folders.folder(tmp := taught[0].parent / "from-scratch", "train", {"training": new}, weights="none")
    (section,) = report_page.training.training(gather([tmp])[0])
    assert section.charts == ()
    assert [row[0] for row in section.tables[0].rows] == ["after training"]


@pytest.mark.parametrize("name", ["learned", "over", "training"])
@pytest.mark.parametrize("damage", ["a key is gone", "not a number", "a list"])
def test_a_damaged_document_of_a_training_is_one_sentence_too(name, damage, taught, tmp_path) -> None:
    document = json.loads(json.dumps(taught[1]["learn-l0-4-0" if name == "learned" else name]))
    if damage == "a key is gone":
        del document[{"learned": "plan", "over": "checkpoints", "training": "history"}[name]]
    elif damage == "not a number":
        document = json.loads(re.sub(r"(?<=[ \[])-?0\.\d\d+(?=[,}])", "NaN", json.dumps(document)))
    made = run_folders.folder(tmp_path / "run", "x", {})
    (made / f"{name}.json").write_text("[]" if damage == "a list" else json.dumps(document))
    with says(BadRun, about=f"{name}.json"):
        report_page.report([made], tmp_path / "page.html")


def test_hostile_labels_of_a_training_stay_text(taught, page, tmp_path) -> None:
    learned = poisoned(taught[1]["learn-l0-4-0"])
    for n, (name, document) in enumerate(
        (("learned", learned), ("over", poisoned(taught[1]["over"])), ("training", poisoned(taught[1]["training"])))
    ):
        run_folders.folder(tmp_path / f"run-{n}<b>", "learn", {name: document}, data=HOSTILE)
    run_folders.folder(tmp_path / "curve", "curve", {"curves": poisoned(taught[1]["curves"])}, data=HOSTILE)
    text = report_page.report([tmp_path], tmp_path / "page.html", figures=tmp_path / "f").read_text(encoding="utf-8")
    bad = Page(text)
    assert sum(tag == "script" for tag, _ in bad.elements) == sum(tag == "script" for tag, _ in page.elements)
    assert not [tag for tag, _ in bad.elements if tag in ("img", "iframe")]
    assert not [name for _, attributes in bad.elements for name in attributes if name.startswith("on")]
    assert "alert(1)" in "".join(bad.texts)
    assert not set("<>&\u2028") & set(text.partition('id="data">')[2].partition("</script>")[0])
    for path in (tmp_path / "f").glob("*.svg"):
        assert not re.search(r"<(script|img|b)\b", path.read_text(encoding="utf-8")), path.name


def test_steps_of_a_colour_run_from_low_to_high() -> None:
    palette = {"seq-low": "#000010", "seq-high": "#c80010"}
    assert theme.painted(["theme:seq:0", "theme:seq:50", "theme:seq:100"], palette) == ["#000010", "#640010", "#c80010"]


def test_how_to_get_a_training_again_has_its_signatures(taught) -> None:
    (part,) = gather([taught[0]])
    again = {run.folder.name: [pair for pair in how(part, run).facts if pair[0].startswith("Sig")] for run in part.runs}
    assert again["learn-l0-4-0"][:2] == [
        ("Signature (learned, full)", "model:tiny|n:200"),
        ("Signature (learned, learned)", "model:tiny|learned:l0"),
    ]
    assert ("Signature (training, after)", "model:tiny|trained") in again["train"]
    assert again["over"][0] == ("Signature (over, epoch-01, taylor)", "by:taylor|slope:0.3|without:11")
    assert len(again["over"]) == 9


def test_the_tile_of_speed_says_what_could_be_measured() -> None:
    """Beside other programs the processor time of one thread, as the command prints it; noise never."""
    timed = Speed("smaller", 16, 25, 5.0, 5.0, 5.0, 1.5, 1.4, 1.6, 1.0, 1.7)
    busy = replace(timed, ratio=1.2, ratio_low=0.7, waited=0.6, disturbed=True)
    tiles = [
        summary._speed_tile(row)
        for row in (timed, replace(busy, work=Ratio(1.54, 1.48, 1.69, True)), replace(busy, work=None))
    ]
    assert [tile.value for tile in tiles] == ["1.50×", "1.54×", "not timed"]
    assert ["processor time" in tile.label for tile in tiles] == [False, True, False]
