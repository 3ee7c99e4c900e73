"""The pages about roles say what roles.json says: the layer of the map, the cards, what survives, what predicts."""

from __future__ import annotations

import csv
import io
import json
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import says
from helpers import run_folders
from scipy import stats as scipy_stats

import headcount as hc
from headcount.documents.curves import CurvesDocument
from headcount.errors import BadRun
from headcount.reporting import head_map, head_roles, summary, theme
from headcount.reporting import page as report_page
from headcount.reporting.findings import Part, gather
from headcount.reporting.sections import criteria, role_survival, roles
from headcount.reporting.sections.measurements import Section
from reporting.test_page import HOSTILE, Page, _contrast, drawn

STRANGE = (
    "[CLS]",
    "</script><img src=x onerror=alert(1)>",
    "שלום עולם",
    "antidisestablishmentarianism",
    "🙂",
    " ",
    "[SEP]",
)


def part_of(root: Path, document: dict[str, Any], **others: dict[str, Any]) -> Part:
    """The part of a folder with this roles.json, and with other runs by their commands."""
    run_folders.folder(root / "roles", "roles", {"roles": document})
    for command, documents in others.items():
        run_folders.folder(root / command, command.partition("_")[0], documents)
    (part,) = gather([root])
    return part


def rows(section: Section, number: int = 0) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(section.tables[number].csv())))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return run_folders.roles()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, document) -> Part:
    """Roles with a curve, an ablation, scores by two other criteria and learned gates, all of 6 x 12 heads."""
    sites, root = run_folders.MINILM, tmp_path_factory.mktemp("roles")
    order = run_folders.scores(sites).order()
    for keep in (12, 24):
        learned = run_folders.learned(sites, "subset", keep, 3) | {"label": "subset"}
        run_folders.folder(root / f"learn-{keep}", "learn", {"learned": learned})
    return part_of(
        root,
        document,
        curve={
            "curves": run_folders.curves(order, [0, 14, 28, 48, 72]),
            "scores-taylor": run_folders.scores(sites).to_json(),
        },
        ablate={"ablation": run_folders.ablation([head["unit"] for head in document["heads"]])},
        score_1={"scores": run_folders.scores(sites, "confidence", 8).to_json()},
        score_2={"scores": run_folders.scores(sites, "relevance", 9).to_json()},
    )


# -- the map and the cards ----------------------------------------------------------------------------------------------------


def test_the_layer_of_roles_has_the_main_role_of_every_head(made, document) -> None:
    view = head_map.build(made).views[-1]
    assert view.name.startswith("Role")
    units = head_map.build(made).units
    mains = {head["unit"]: head["main"] for head in document["heads"]}
    seen = {unit: view.keys[int(place)].name for unit, place in zip(units, view.places, strict=True)}
    assert seen == {unit: head_roles.NAMES[main] for unit, main in mains.items()}
    assert {key.name: key.many for key in view.keys} == {
        head_roles.NAMES[main]: list(mains.values()).count(main) for main in set(mains.values())
    }
    assert len({key.mark for key in view.keys}) == len({key.colour for key in view.keys}) == len(run_folders.MAIN)


def test_roles_alone_make_a_map_and_a_sentence(tmp_path, document) -> None:
    part = part_of(tmp_path, document)
    map_ = head_map.build(part)
    assert map_.units == [head["unit"] for head in document["heads"]]
    assert [grid.title for grid in map_.grids] == ["Encoder self-attention"]
    assert map_.units[map_.first] == next(h["unit"] for h in document["heads"] if h["main"] == "positional")
    mains = [head["main"] for head in document["heads"]]
    sentence = summary.answer(part)
    assert sentence.startswith(f"72 heads: {mains.count('positional')} positional, ")
    assert f"and {mains.count('none')} without" in sentence
    named = next(tile for tile in summary.tiles(part) if tile.label == "heads with a role")
    assert named.value == str(72 - mains.count("none"))
    keys = [placed.section.key for placed in report_page._chapter(part, 1).sections]
    assert keys == ["roles", "relations"]  # nothing goes, and nothing is predicted


def test_types_come_from_the_roles_where_no_score_says_them(tmp_path) -> None:
    sites: run_folders.Sites = {"0": ("head", "decoder", 3), "0.cross": ("head", "cross", 3), "e": ("head", None, 2)}
    part = part_of(tmp_path, run_folders.roles(sites))
    assert [(grid.type, len(grid.units)) for grid in part.grids] == [("decoder", 3), ("cross", 3), (None, 2)]


def test_facts_are_the_numbers_of_the_document(made, document) -> None:
    found_map = head_map.build(made)
    facts = {fact.label: dict(zip(found_map.units, fact.texts, strict=True)) for fact in found_map.facts}
    for head in document["heads"]:
        value, low, high = head["confidence"]
        assert facts["Confidence"][head["unit"]] == f"{value:.2f} [{low:.2f}, {high:.2f}]"
        assert facts["Entropy"][head["unit"]].startswith(f"{head['entropy'][0]:.2f} [")
        assert facts["Attention given to"][head["unit"]] == "[CLS] 2\u00a0%, [SEP] 30\u00a0%, punctuation 11\u00a0%"
        assert facts["Looks most often"][head["unit"]].startswith(f"1 token back ({100 * head['offsets']['-1']:.0f}")


def test_the_card_has_every_sentence_and_every_weight(made, document) -> None:
    card = head_map.build(made).to_json()["card"]
    units = head_map.build(made).units
    for head in document["heads"]:
        n = str(units.index(head["unit"]))
        assert [role["text"] for role in card["heads"][n]] == [role["text"] for role in head["roles"]]
    for example, shown in zip(document["examples"], card["examples"], strict=True):
        assert list(shown["queries"]) == list(shown["keys"]) == example["queries"]
        assert [key for key, special in zip(shown["keys"], shown["special"], strict=True) if special] == [
            "[CLS]",
            "[SEP]",
        ]
        assert {units[int(n)]: text for n, text in shown["attention"].items()} == example["attention"]


def test_letters_can_be_read_on_the_colours_of_roles() -> None:
    for palette in theme.PALETTES.values():
        for role, colour in head_roles.COLOURS.items():
            if head_roles.KINDS[role][0]:
                assert _contrast(palette[colour], palette["on-role"]) >= 4.5, (role, colour)
        assert len({palette[colour] for colour in head_roles.COLOURS.values()}) == len(head_roles.KINDS)


# -- sections -----------------------------------------------------------------------------------------------------------------


def test_the_tables_of_roles_have_the_numbers_of_the_document(made, document) -> None:
    (section,) = roles.roles(made)
    mains = [head["main"] for head in document["heads"]]
    assert {row["main role"]: int(row["heads"]) for row in rows(section)} == {
        head_roles.NAMES[main]: mains.count(main) for main in set(mains)
    }
    listed = {row["head"]: row for row in rows(section, 1)}
    assert len(listed) == 72
    for head in document["heads"]:
        row = listed[head["unit"]]
        assert row["what it does"] == "; ".join(role["text"] for role in head["roles"])
        assert float(row["confidence"]) == head["confidence"][0]
    points = {row["unit"]: row["value"] for row in drawn(section.charts[0].spec) if "spot" in row}
    assert points == {head["unit"]: head["confidence"][0] for head in document["heads"]}
    assert "2,001 sentences of dev.conllu" in section.about


def test_the_table_of_relations_has_the_best_head_beside_the_best_offset(made, document) -> None:
    (section,) = roles.relations(made)
    told = {(row["relation"], row["direction"]): row for row in rows(section)}
    for one in document["relations"]:
        row = told[one["relation"], one["direction"]]
        best = one["best"]["unit"] if one["best"] else max(one["heads"], key=lambda unit: one["heads"][unit][1])
        assert row["best head"] == best
        numbers = [float(row[title]) for title in ("accuracy", "gain, points", "low", "high", "p (Holm)")]
        told_on = one["best"]["numbers"] if one["best"] else one["heads"][best][:4]
        assert numbers == [*told_on, one["heads"][best][4]]
        beside = told_on[0] - told_on[1]  # on the same sentences as the accuracy, so that the two and the gain agree
        assert (int(row["best offset"]), float(row["baseline"])) == (one["offset"], pytest.approx(beside))
        assert int(row["heads that earn it"]) == len(one["earned"])
    points = [row for row in drawn(section.charts[0].spec) if "baseline" in row]
    by_name = {f"{one['relation']}, {one['direction']}": one for one in document["relations"]}
    gains = [(point["unit"] in by_name[point["name"]]["earned"], point["best"] - point["baseline"]) for point in points]
    assert gains == sorted(gains, reverse=True)
    assert all(0 <= point["low"] <= point["best"] <= point["high"] <= 1 for point in points)
    assert any("8 of 10 relations" in note for note in section.notes)


@pytest.mark.parametrize("seed", range(5))
def test_chance_is_that_of_the_hypergeometric_distribution(seed) -> None:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(5, 200))
    units = [str(k) for k in range(n)]
    mains = {unit: str(draw.choice(run_folders.MAIN)) for unit in units}
    left = frozenset(str(unit) for unit in draw.choice(units, int(draw.integers(1, n)), replace=False))
    tested = role_survival.odds(mains, frozenset(units), left)
    assert {one.role for one in tested} == set(mains.values())
    for one in tested:
        own = [unit for unit in units if mains[unit] == one.role]
        seen = sum(unit in left for unit in own)
        ways = [comb(len(own), i) * comb(n - len(own), len(left) - i) for i in range(min(len(own), len(left)) + 1)]
        tails = sum(ways[: seen + 1]), sum(ways[seen:])  # whole numbers: no rounding
        assert (one.heads, one.left) == (len(own), seen)
        assert one.expected == pytest.approx(len(own) * len(left) / n)
        assert one.p == pytest.approx(float(min(Fraction(1), 2 * Fraction(min(tails), comb(n, len(left))))), rel=1e-9)
    corrected = {one.role: one.p_holm for one in tested}
    ordered = sorted(tested, key=lambda one: one.p)
    for place, one in enumerate(ordered):  # by its definition
        steps = [other.p * (len(ordered) - k) for k, other in enumerate(ordered[: place + 1])]
        assert corrected[one.role] == pytest.approx(min(1.0, max(steps)))


def test_what_is_left_is_counted_along_every_order(made, document) -> None:
    mains = {head["unit"]: head["main"] for head in document["heads"]}
    by_name = {one.name: one for one in role_survival.courses(made, mains)}
    assert set(by_name) == {"taylor", "subset", "ablation", "confidence", "relevance"}
    (section,) = role_survival.survival(made)
    counts = rows(section, 1)
    curve = made.of(CurvesDocument)[0].data.curves[0].points
    for point in curve[:-1]:
        gone = {str(unit) for unit in run_folders.scores(run_folders.MINILM).order()[: point.removed]}
        row = next(r for r in counts if r["order"] == "taylor" and r["heads kept"] == str(72 - point.removed))
        for main in set(mains.values()):
            assert int(row[main]) == sum(mains[unit] == main for unit in mains if unit not in gone)
    values = {measured.by: measured.values for measured in made.scores}["confidence"]
    strongest = sorted(values, key=lambda unit: -values[unit])
    stops = {len(stop): stop for stop in by_name["confidence"].stops}
    assert sorted(stops) == [6 * n for n in range(1, 13)]
    assert all(stop == frozenset(strongest[:kept]) for kept, stop in stops.items())
    assert {len(stop) for stop in by_name["subset"].stops} == {12, 24, 72}
    bars = [row for row in drawn(section.charts[0].spec) if "middle" in row]
    assert {row["kept"]: row["high"] for row in bars} == {72: 72, 58: 58, 44: 44, 24: 24}  # the top of each pile
    assert len(section.charts) == len(by_name)


def test_heads_that_a_curve_could_not_remove_do_not_survive_it(tmp_path) -> None:
    sites: run_folders.Sites = {"encoder.0": ("head", "encoder", 4), "encoder.1": ("head", "encoder", 4)}
    sites["decoder.0.cross"] = ("head", "cross", 4)
    encoder = [f"encoder.{layer}:{head}" for layer in range(2) for head in range(4)]
    every = {*encoder, *(f"decoder.0.cross:{head}" for head in range(4))}
    plans = {
        "to the end": {*encoder},
        "half of the way": {*encoder[:4]},
        "of all": {"encoder.0:1", "decoder.0.cross:2"},
    }
    known = {name: role_survival._in_play(plan, every, 12 if name == "of all" else 8) for name, plan in plans.items()}
    assert known == {"to the end": {*encoder}, "half of the way": {*encoder}, "of all": every}
    assert role_survival._in_play({"encoder.0:1"}, every, 7) == set()  # whatever that was, it cannot be told
    order = [hc.Unit("encoder.0", n) for n in range(4)] + [hc.Unit("encoder.1", n) for n in range(4)]
    part = part_of(
        tmp_path,
        run_folders.roles(sites),
        curve={"curves": run_folders.curves(order, [0, 4, 8]), "scores-taylor": run_folders.scores(sites).to_json()},
    )
    mains = {
        head["unit"]: head["main"] for cast in head_roles.casts(part) for head in run_folders.roles(sites)["heads"]
    }
    taylor = next(one for one in role_survival.courses(part, mains) if one.name == "taylor")
    assert taylor.heads == {*encoder}


def test_a_role_that_goes_last_is_named_and_chance_is_not(tmp_path, document) -> None:
    mains = {head["unit"]: head["main"] for head in document["heads"]}
    own = [unit for unit, main in mains.items() if main == "syntactic"]
    scores = {unit: 1.0 + (unit in own) + n / 1000 for n, unit in enumerate(mains)}
    sites = {
        str(site): {"kind": "head", "type": "encoder", "units": list(range(12))}
        | {"score": [scores[f"{site}:{n}"] for n in range(12)]}
        for site in range(6)
    }
    part = part_of(
        tmp_path, document, score={"scores": run_folders.scores(run_folders.MINILM).to_json() | {"sites": sites}}
    )
    (section,) = role_survival.survival(part)
    p = min(1.0, 2 * scipy_stats.hypergeom(72, len(own), 24).sf(len(own) - 1))
    row = next(one for one in rows(section) if one["role"] == "syntactic")
    assert float(row["p"]) == pytest.approx(p)
    late = f"syntactic heads go late: of {len(own)}, {len(own)} are among the last 24 of 72"
    (note,) = (note for note in section.notes if late in note)
    assert "sinks go" not in note


def test_a_criterion_is_judged_by_the_ranks_of_the_damage(made) -> None:
    (section,) = criteria.predictions(made)
    damage = {effect.unit: effect.comparison.damage for effect in made.effects[0][1]}
    told = rows(section)
    assert {row["criterion"] for row in told} == {"taylor", "confidence", "relevance"}
    for row in told:
        values = next(one.values for one in made.scores if one.by == row["criterion"])
        expected = scipy_stats.spearmanr([values[unit] for unit in damage], list(damage.values()))
        assert float(row["Spearman"]) == pytest.approx(expected.statistic)
        assert float(row["p"]) == pytest.approx(expected.pvalue)
        assert float(row["low"]) < float(row["Spearman"]) < float(row["high"])
        assert int(row["heads"]) == 72
    correlations = [float(row["Spearman"]) for row in told]
    assert correlations == sorted(correlations, reverse=True)
    assert any("flatters" in note for note in section.notes)  # all folders have the same fingerprint


def test_what_was_scored_elsewhere_does_not_flatter_and_ablation_predicts_nothing(tmp_path) -> None:
    names = [str(unit) for unit in run_folders.units(run_folders.CLASSIFIER)]
    run_folders.folder(tmp_path / "a", "ablate", {"ablation": run_folders.ablation(names)}, fingerprint="1")
    for n, by in enumerate(("taylor", "ablation", "confidence")):
        scores = run_folders.scores(by=by, seed=n).to_json()
        run_folders.folder(tmp_path / by, "score", {"scores": scores}, fingerprint="2", data="train.tsv")
    (part,) = gather([tmp_path])
    (section,) = criteria.predictions(part)
    assert {row["criterion"]: row["scored on"] for row in rows(section)} == dict.fromkeys(
        ("taylor", "confidence"), "train.tsv, n = 200"
    )
    assert not any("flatters" in note for note in section.notes)


# -- strange and broken documents -----------------------------------------------------------------------------------------------


def test_the_same_examples_are_known_by_another_metric() -> None:
    scored = {"data": "val.en", "n": 1014, "fingerprint": "a"}
    assert criteria._same(scored, {"data": "val.en", "n": 1014, "fingerprint": "b"})  # the metric is in a fingerprint
    assert criteria._same(scored, {"data": "copy.en", "n": 1014, "fingerprint": "a"})
    assert not criteria._same(scored, {"data": "val.en", "n": 500, "fingerprint": "c"})
    assert not criteria._same({}, {})


def test_hostile_texts_stay_text_and_figures_are_written(tmp_path) -> None:
    sites: run_folders.Sites = {str(n): ("head", "encoder", 6) for n in range(2)}
    document = run_folders.roles(sites, tokens=STRANGE)
    for head in document["heads"]:
        for role in head["roles"]:
            role["text"] = role["what"] = HOSTILE
        head["mass"] = {HOSTILE: 0.2}
    document["roles"] = dict.fromkeys(document["roles"], HOSTILE)
    document |= {"sets": HOSTILE, "rules": {HOSTILE: HOSTILE}}
    for one in document["relations"]:
        one["relation"] = one["direction"] = one["type"] = HOSTILE
    for one in document["examples"]:
        one["name"] = HOSTILE
    run_folders.folder(tmp_path / "run", "roles", {"roles": document})
    scores = run_folders.scores_document(run_folders.scores(sites))
    run_folders.folder(tmp_path / "scores", "score", {"scores": scores | {"by": HOSTILE}})
    runs = [tmp_path / "run", tmp_path / "scores"]
    written = report_page.report(runs, tmp_path / "page.html", figures=tmp_path / "figures")
    text = written.read_text(encoding="utf-8")
    page = Page(text)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert not set("<>&\u2028") & set(text.partition('id="data">')[2].partition("</script>")[0])
    assert "alert(1)" in "".join(page.texts)
    assert list(page.data["maps"]["m1"]["card"]["examples"][0]["queries"]) == list(STRANGE)
    names = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    assert {"roles", "relations", "survival", "map-encoder", "map-encoder-roles"} <= names
    assert names == {path.stem for path in (tmp_path / "figures").glob("*.png")}
    for path in (tmp_path / "figures").glob("*.svg"):
        assert "<script" not in path.read_text(encoding="utf-8")
        assert "theme:" not in path.read_text(encoding="utf-8").replace("theme:ink", "")  # which is in the hostile text


def test_a_thousand_heads_make_no_large_page(tmp_path) -> None:
    sites: run_folders.Sites = {str(n): ("head", "decoder", 32) for n in range(32)}
    tokens = [f"token{n}" for n in range(14)]
    run_folders.folder(tmp_path / "run", "roles", {"roles": run_folders.roles(sites, tokens=tokens, sentences=1)})
    written = report_page.report([tmp_path / "run"], tmp_path / "page.html")
    assert written.stat().st_size < 3_000_000  # of 5 that are allowed: there may be scores, too


def test_two_runs_are_told_apart(tmp_path, document) -> None:
    run_folders.folder(tmp_path / "one", "roles", {"roles": document})
    run_folders.folder(tmp_path / "two", "roles", {"roles": run_folders.roles(seed=7)})
    (part,) = gather([tmp_path])
    assert [one.title for one in roles.roles(part)] == ["What heads look at (one)", "What heads look at (two)"]
    names = [view.name for view in head_map.build(part).views]
    assert len(set(names)) == 2


def test_what_was_not_found_is_a_gap_and_not_an_error(tmp_path, document) -> None:
    bare = json.loads(json.dumps(document)) | {"relations": [], "examples": []}
    for head in bare["heads"]:
        head |= {"confidence": [None, None, None], "entropy": [1.0, None, None], "offsets": {}, "mass": {}}
    bare["heads"][0]["type"] = None
    part = part_of(tmp_path, bare)
    (section,) = roles.roles(part)
    assert section.charts == ()
    assert roles.relations(part) == []
    assert report_page.report([tmp_path], tmp_path / "page.html").is_file()


DAMAGES: dict[str, Any] = {
    "no main role": lambda data: data["heads"][3].pop("main"),
    "a role that there is not": lambda data: data["heads"][3].update(main="boring"),
    "heads that are no list": lambda data: data.update(heads={"0:1": 1}),
    "a head twice": lambda data: data["heads"].append(data["heads"][0]),
    "no number": lambda data: data["heads"][0].update(confidence=["high", 0, 1]),
    "half an interval": lambda data: data["heads"][0].update(confidence=[0.5]),
    "weights are missing": lambda data: data["examples"][0]["attention"].update({"0:1": "00ff"}),
    "weights that are none": lambda data: data["examples"][0].update(queries=["a"], attention={"0:1": "zz"}),
    "a relation without a baseline": lambda data: data["relations"][0].pop("baseline"),
    "a best head that is none of them": lambda data: data["relations"][0]["best"].update(unit="9:99"),
    "a relation of two numbers": lambda data: data["relations"][0]["heads"].update({"0:1": [0.5, 0.1]}),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_document_is_one_sentence_with_its_path(name, tmp_path, document) -> None:
    damaged = json.loads(json.dumps(document))
    DAMAGES[name](damaged)
    run_folders.folder(tmp_path / "run", "roles", {"roles": damaged})
    with says(BadRun, about="roles.json"):
        report_page.report([tmp_path / "run"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
