"""The pages about a lottery say what its document says: for several tasks and seeds, and for one of each."""

from __future__ import annotations

import copy
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import says
from helpers import run_folders

from headcount.documents.lottery_study import Lottery
from headcount.errors import BadRun
from headcount.reporting import page as report_page
from headcount.reporting import summary
from headcount.reporting.findings import gather
from headcount.reporting.sections import lottery
from headcount.reporting.sections.measurements import Section
from headcount.reporting.theme import PALETTES, painted
from reporting.test_page import HOSTILE, Page, _contrast, drawn, poisoned

KEYS = ["lottery", "survivors", "overlap", "agreement", "search", "networks"]
TRANSLATOR: run_folders.Sites = {
    "encoder.0": ("head", "encoder", 4),
    "encoder.0.mlp": ("mlp", None, 1),
    "decoder.0": ("head", "decoder", 4),
    "decoder.0.cross": ("head", "cross", 3),
    "decoder.0.mlp": ("mlp", None, 1),
}


def sections(document: dict[str, Any], folder: Path) -> dict[str, Section]:
    run_folders.folder(folder, "lottery", {"lottery": document})
    (part,) = gather([folder])
    return {one.key: one for one in lottery.lottery(part)}


def rows(section: Section, number: int = 0) -> list[dict[str, str]]:
    """The rows of a table as its CSV has them; columns of the same name are numbered."""
    head, *lines = csv.reader(io.StringIO(section.tables[number].csv()))
    names = [name + "'" * head[:n].count(name) for n, name in enumerate(head)]
    return [dict(zip(names, line, strict=True)) for line in lines]


@pytest.fixture
def document() -> dict[str, Any]:
    """A small document of its own for tests that change it."""
    return run_folders.lottery(
        sites={"0": ("head", "encoder", 3), "0.mlp": ("mlp", None, 1), "1": ("head", "encoder", 3)}
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Section], Path]:
    """A document, its sections and its folder, for tests that only read."""
    document, folder = run_folders.lottery(), tmp_path_factory.mktemp("lottery") / "run"
    return document, sections(document, folder), folder


def test_the_document_is_what_the_study_writes(document) -> None:
    written = Lottery.from_json(document).to_json()
    for key in ("seeds", "overlap", "survivors"):
        for one, other in zip(*(np.array(_leaves(d[key])) for d in (written, document)), strict=True):
            assert one == pytest.approx(other)
    order = ("task", "kind", "what", "how")
    assert sorted([tuple(row[k] for k in order) for row in written["table"]]) == sorted(
        [tuple(row[k] for k in order) for row in document["table"]]
    )


def _leaves(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        return [leaf for one in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(one)]
    return [value]


def test_the_sentence_is_the_answer_and_all_sections_are_there(made, tmp_path) -> None:
    document, pages, folder = made
    assert list(pages) == KEYS
    (part,) = gather([folder])
    assert summary.answer(part) == document["sentence"]
    tiles = {tile.label: tile.value for tile in summary.tiles(part)}
    left, of = (sum(draw[key]["heads"] for draw in document["draws"]) for key in ("left", "of"))
    assert tiles["heads that survive"] == f"{100 * left / of:.0f}\u00a0%"
    by = {(r["task"], r["kind"], r["what"], r["how"]): r["mean"] for r in document["table"]}
    full, good = by["QNLI", "structured", "full", "whole"], by["QNLI", "structured", "good", "pruned"]
    assert tiles["QNLI, accuracy"] == f"{full:.3f} → {good:.3f}"
    page = Page(report_page.report([folder], tmp_path / "page.html").read_text(encoding="utf-8"))
    assert {f"m1-{key}" for key in KEYS} <= page.ids()
    assert document["sentence"] in page.texts


def test_the_table_has_every_mean_and_deviation(made) -> None:
    document, pages, _ = made
    section = pages["lottery"]
    shown = {(row["task"], row["what goes"], row["sub-network"]): row for row in rows(section)}
    kinds = {"structured": "heads and MLPs", "magnitude": "single weights"}
    for row in document["table"]:
        if row["how"] == "whole":
            line, (mean, sd) = shown[row["task"], "", "full"], ("as found", "sd")
        else:
            line = shown[row["task"], kinds[row["kind"]], row["what"]]
            mean, sd = ("as found", "sd") if row["how"] == "pruned" else ("retrained", "sd'")
        assert (float(line[mean]), float(line[sd]), line["seeds"]) == (row["mean"], row["sd"], "3")
    for task in document["tasks"]:
        assert float(shown[task["name"], "", "most frequent label"]["as found"]) == task["majority"]
    assert [row["used"] for row in rows(section, 1)] == [task["sets"] for task in document["tasks"]]


def test_the_chart_has_points_with_deviations_for_each_kind_of_removal(made) -> None:
    document, pages, _ = made
    charts = pages["lottery"].charts
    for chart, kind in zip(charts, ("structured", "magnitude"), strict=True):
        points = {(r["task"], r["what"], r["again"]): r for r in drawn(chart.spec) if "again" in r}
        told = [r for r in document["table"] if r["kind"] == kind and r["how"] != "whole"]
        assert len(points) == len(told) == 18
        for row in told:
            one = points[row["task"], row["what"], row["how"] == "retrained"]
            assert one["mean"] == row["mean"]
            assert (one["high"] - one["low"]) / 2 == pytest.approx(row["sd"])
        lines = {
            (r["task"], r["text"].split(", ")[1].split(":")[0]): r["mean"] for r in drawn(chart.spec) if "what" not in r
        }
        for task in document["tasks"]:
            assert lines[task["name"], "most frequent label"] == task["majority"]
            full = [d["full"]["report"] for d in document["draws"] if d["task"] == task["name"]]
            assert lines[task["name"], "full model"] == pytest.approx(np.mean(full))


def test_tasks_of_different_metrics_do_not_share_an_axis(document, tmp_path) -> None:
    document["tasks"][2]["metric"] = "matthews"
    section = sections(document, tmp_path / "run")["lottery"]
    assert [{r["task"] for r in drawn(chart.spec)} for chart in section.charts] == [{"SST-2", "QNLI"}, {"RTE"}] * 2
    assert {row["metric"] for row in rows(section)} == {"accuracy", "matthews"}


def test_the_map_counts_survivors_from_the_draws(made) -> None:
    document, pages, _ = made
    (chart,) = pages["survivors"].charts
    cells = {row["unit"]: row for row in drawn(chart.spec)}
    assert len(cells) == 6 * 12 + 6
    for unit, row in cells.items():
        site, _, index = unit.partition(":")
        counts = [
            sum(int(index or 0) in draw["alive"][site] for draw in document["draws"] if draw["seed"] == seed)
            for seed in (0, 1, 2)
        ]
        assert row["value"] == pytest.approx(np.mean(counts))
        assert (row["row"], row["column"]) == (site.split(".")[0], index or "MLP")
        assert row["shown"] == (f"{np.mean(counts):.0f}" if sum(counts) % 3 == 0 else f"{np.mean(counts):.1f}")
        spread = np.std(counts, ddof=1)
        assert row["spread"] == (f"±{spread:.0f}" if spread == round(spread) else f"±{spread:.1f}")
        assert f"± {spread:.2f} over seeds" in row["text"]
    x = chart.spec["layer"][0]["encoding"]["x"]
    assert x["scale"]["domain"] == [*map(str, range(12)), "", "MLP"]


def test_a_translator_has_a_map_per_attention_type_with_the_mlps_beside(tmp_path) -> None:
    charts = sections(run_folders.lottery(("a", "b"), sites=TRANSLATOR), tmp_path / "run")["survivors"].charts
    units = [{row["unit"].split(":")[0] for row in drawn(chart.spec)} for chart in charts]
    assert units == [{"encoder.0", "encoder.0.mlp"}, {"decoder.0", "decoder.0.mlp"}, {"decoder.0.cross"}]
    titles = [chart.spec["layer"][0]["encoding"]["x"]["title"] for chart in charts]
    assert titles == ["Encoder self-attention", "Decoder self-attention", "Cross-attention"]


def test_numbers_can_be_read_on_every_colour_they_stand_on(made) -> None:
    (chart,) = made[1]["survivors"].charts
    for palette in PALETTES.values():
        colours = painted(chart.spec, palette)["layer"][0]["encoding"]["color"]["scale"]["range"]
        for share in np.linspace(0, 3, 100):
            step = colours[min(int(share / 3 * len(colours)), len(colours) - 1)]
            strong = share >= 3 * 6 / 11
            assert _contrast(palette["surface" if strong else "ink"], step) > 4.2
    strong = {row["value"]: row["strong"] for row in drawn(chart.spec)}
    assert {value >= 3 * 6 / 11 for value, one in strong.items() if one} == {True}


def test_overlaps_stand_beside_what_chance_would_give(made) -> None:
    document, pages, _ = made
    section = pages["overlap"]
    alive = {
        (d["task"], d["seed"]): {(s, n) for s, ids in d["alive"].items() if "mlp" not in s for n in ids}
        for d in document["draws"]
    }
    matrix = {(row["row"], row["column"]): row["value"] for row in drawn(section.charts[0].spec)}
    for (one, other), value in matrix.items():
        assert value == pytest.approx(np.mean([len(alive[one, s] & alive[other, s]) for s in (0, 1, 2)]))
    for row in (row for row in rows(section) if row["units"] == "heads"):
        sizes = [[len(alive[row[key], seed]) for seed in (0, 1, 2)] for key in ("task", "other task")]
        chance = np.mean([a * b / 72 for a, b in zip(*sizes, strict=True)])
        assert float(row["by chance"]) == pytest.approx(chance)
        assert float(row["in both"]) == matrix[row["task"], row["other task"]]
    assert len(rows(section)) == 6  # three pairs, heads and MLPs


def test_agreement_is_told_as_it_is_and_what_cannot_be_told_is_a_dash(document, tmp_path) -> None:
    document["agreement"][1] |= {"kappa": None, "q": None, "p": None}
    section = sections(document, tmp_path / "run")["agreement"]
    for line, one in zip(rows(section), document["agreement"], strict=True):
        known = [line["Fleiss' kappa"], line["Cochran's Q"], line["p"]]
        assert known == ["" if one[key] is None else str(one[key]) for key in ("kappa", "q", "p")]
        assert (float(line["survive, mean"]), int(line["in all 3 seeds"])) == (one["size"]["mean"], one["in_all"])
    assert section.tables[0].shown[1][-1] == "–"
    assert "dash" in section.notes[-1]


def test_the_search_is_drawn_as_a_share_of_each_full_model(made) -> None:
    document, pages, _ = made
    section = pages["search"]
    steps, weights = ([row for row in drawn(chart.spec) if "run" in row] for chart in section.charts)
    assert {"share": 0.9, "text": "threshold: 90%"} in drawn(section.charts[0].spec)
    lines = [layer for layer in section.charts[0].spec["layer"] if layer["mark"]["type"] == "line"]
    assert {row["kept"] for row in drawn(lines)} == {True}  # no line goes to where a search did not go
    for draw in document["draws"]:
        own = {row["n"]: row for row in steps if row["run"] == f"{draw['task']}, seed {draw['seed']}"}
        assert (own[0]["left"], own[0]["share"]) == (72, 1.0)
        for n, step in enumerate(draw["steps"], 1):
            assert (own[n]["left"], own[n]["kept"]) == (step["heads"], step["kept"])
            assert own[n]["share"] == pytest.approx(step["value"] / draw["full"]["select"])
        left = {row["left"] for row in weights if row["run"] == f"{draw['task']}, seed {draw['seed']}"}
        assert left == {1.0, *(step["left"] for step in draw["magnitude"]["steps"])}
    for line, draw in zip(rows(section), document["draws"], strict=True):
        assert (int(float(line["heads"])), int(float(line["MLPs"]))) == (draw["left"]["heads"], draw["left"]["mlps"])
        assert float(line["parameters"]) == draw["parameters"][1] / draw["parameters"][0]


def test_every_network_of_every_seed_is_in_a_folded_table(made) -> None:
    document, pages, _ = made
    section = pages["networks"]
    assert section.folded
    values = [float(row["value"]) for row in rows(section)]
    both = [[*d["networks"], *d["magnitude"]["networks"]] for d in document["draws"]]
    assert values == [one["value"] for found_ones in both for one in found_ones]
    first = rows(section)[0]
    assert float(first["difference, points"]) == 100 * document["draws"][0]["networks"][0]["comparison"]["difference"]
    assert [row["unit"] for row in rows(section, 1)][:2] == ["0:0", "0:1"]
    assert len(rows(section, 1)) == 78


@pytest.mark.parametrize("magnitude", [True, False])
def test_one_task_and_one_seed_have_no_deviations_overlaps_or_agreement(magnitude, tmp_path) -> None:
    made = sections(run_folders.lottery(("SST-2",), (7,), magnitude=magnitude), tmp_path / "run")
    assert list(made) == ["lottery", "survivors", "search", "networks"]
    assert len(made["lottery"].charts) == len(made["search"].charts) == 1 + magnitude
    titles = [column.title for one in made.values() for table in one.tables for column in table.columns]
    assert "sd" not in titles
    assert {row["spread"] for row in drawn(made["survivors"].charts[0].spec)} == {""}
    words = " ".join(one.about for one in made.values())
    assert "deviation" not in words
    assert "mean over" not in words


def test_what_may_be_missing_is_not_shown(document, tmp_path) -> None:
    for draw in document["draws"]:
        draw |= {"magnitude": None, "parameters": [22_000_000, None]}
        draw["networks"] = [one | {"comparison": None} for one in draw["networks"] if one["how"] == "pruned"]
    document["table"] = [row for row in document["table"] if row["how"] != "retrained" and row["kind"] != "magnitude"]
    document["tasks"] = [{**task, "majority": None} for task in document["tasks"]]
    for key in ("recipe", "sentence", "agreement", "versions"):
        document.pop(key)
    made = sections(document, tmp_path / "run")
    assert set(KEYS) - set(made) == {"agreement"}
    assert "retrained" not in rows(made["lottery"])[0]
    assert "parameters" not in rows(made["search"])[0]
    assert "filled" not in made["lottery"].about
    report_page.report([tmp_path / "run"], tmp_path / "page.html", figures=tmp_path / "figures")


def test_a_model_without_mlps_among_the_units_has_none_in_its_pages(tmp_path) -> None:
    sites: run_folders.Sites = {"0": ("head", "encoder", 4), "1": ("head", "encoder", 2)}
    document = run_folders.lottery(("a", "b"), sites=sites)
    document["overlap"]["mlps"] = {"mean": [[0.0, 0.0]] * 2, "sd": [[0.0, 0.0]] * 2}
    made = sections(document, tmp_path / "run")
    (chart,) = made["survivors"].charts
    assert chart.spec["layer"][0]["encoding"]["x"]["scale"]["domain"] == ["0", "1", "2", "3"]
    assert {row["units"] for row in rows(made["overlap"])} == {"heads"}


def test_two_lotteries_of_one_model_are_told_apart(document, tmp_path) -> None:
    for name in ("one", "other"):
        run_folders.folder(tmp_path / "runs" / name, "lottery", {"lottery": document})
    (part,) = gather([tmp_path / "runs"])
    titles = [one.title for one in lottery.lottery(part)]
    assert titles[0] == "Good, bad and random (one)"
    assert len(set(titles)) == len(titles) == 12


def test_hostile_names_stay_text(document, tmp_path) -> None:
    bad = poisoned(copy.deepcopy(document))
    for one in bad["draws"]:
        for network in [*one["networks"], *one["magnitude"]["networks"]]:
            network |= {key: network[key].removesuffix(HOSTILE) for key in ("what", "how")}
        one["alive"] = {f"{name}{HOSTILE}": ids for name, ids in one["alive"].items()}
    for row in bad["table"]:
        row |= {key: row[key].removesuffix(HOSTILE) for key in ("what", "how")}
    bad["survivors"] = {f"{name}{HOSTILE}": one for name, one in bad["survivors"].items()}
    run_folders.folder(tmp_path / "run", "lottery", {"lottery": bad}, model=f"tiny{HOSTILE}")
    written = report_page.report([tmp_path / "run"], tmp_path / "page.html")
    page = Page(written.read_text(encoding="utf-8"))
    assert sum(tag == "script" for tag, _ in page.elements) == 3
    assert not [tag for tag, _ in page.elements if tag in ("img", "iframe")]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "alert(1)" in "".join(page.texts)
    assert {f"m1-{key}" for key in KEYS} <= page.ids()


@pytest.mark.parametrize("damage", ["survivors", "table", "not a number", "a list"])
def test_a_damaged_document_is_one_sentence(damage, document, tmp_path) -> None:
    run = run_folders.folder(tmp_path / "run", "lottery", {})
    if damage in document:
        del document[damage]
    elif damage == "not a number":
        document["table"][1]["mean"] = "much"
    (run / "lottery.json").write_text("[]" if damage == "a list" else json.dumps(document))
    with says(BadRun, about="lottery.json"):
        report_page.report([run], tmp_path / "page.html")
