"""Voita et al. 2019 again: its commands parse and belong together, and planted outcomes get the verdicts they must get."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import says
from helpers import run_folders

from headcount.cli.app import app
from headcount.documents.scores import how_many
from headcount.errors import BadRun
from headcount.plans import Plan
from headcount.reproduction import inputs, voita2019
from headcount.reproduction.experiment import (
    CONFIRMED,
    DIFFERS,
    NOT_CONFIRMED,
    SIZES,
    UNTOLD,
    Claim,
    RunDocuments,
    Setting,
)
from headcount.reproduction.inputs import Corpus, Material, Pairs
from headcount.reproduction.seeds import mean_over_seeds
from headcount.reproduction.voita2019 import all_types, encoder
from headcount.reproduction.voita2019 import roles as voita_roles
from headcount.stats.results import Comparison

PAIRS = Pairs(
    "captions en-de",
    *(f"{part}.en.gz,{part}.de.gz" for part in ("train", "val", "test")),
    recipe=("--width", "64", "--epochs", "30", "--layers", "6", "--lr", "1e-3", "--label-smoothing", "0.1"),
)
CORPUS = Corpus("SST-2", "classification", "train.tsv", "dev.tsv", ready="classifier")
MATERIAL = Material("planted", "", corpora=(CORPUS,), pairs=PAIRS, parses="en_ewt-ud-dev.conllu")


def setting(
    folder: Path, material: Material = MATERIAL, full: bool = True, seeds: Iterable[int] = (0, 1, 2)
) -> Setting:
    return Setting(material, folder, full, tuple(seeds), ("--quiet",))


def write(folder: Path, name: str, kind: str, data: Any) -> None:
    place = folder / "runs" / name
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{kind}.json").write_text(json.dumps(data), encoding="utf-8")


def compared(
    before: float, gain: float, *, reach: float = 0.02, p: float = 0.5, metric: str = "bleu"
) -> dict[str, Any]:
    """The whole model and a smaller one that is better by `gain`, whichever way the metric runs."""
    up = metric == "bleu"
    difference = gain if up else -gain
    ends = {"low": difference - reach, "high": difference + reach, "level": 0.95, "p": p, "test": "randomization"}
    numbers = {"metric": metric, "before": before, "after": before + difference, "difference": difference}
    return Comparison(**numbers, **ends, n=1000, higher_is_better=up, points=1.0).to_json()


def learned(kept: int, of: int, gain: float, gone: Iterable[str] = (), **how: Any) -> dict[str, Any]:
    plan = Plan.of(*gone).to_json()
    return {**run_folders.learned(), "keep": kept, "of": of, "plan": plan, "comparison": compared(38.0, gain, **how)}


def only(claims: Iterable[Claim], word: str) -> Claim:
    (found,) = [claim for claim in claims if word in claim.paper]
    return found


# -- the commands ----------------------------------------------------------------------------------------------------------


def _materials(folder: Path) -> list[Material]:
    return [inputs.embedded(folder), inputs.by_name(), MATERIAL]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("place", range(3))
def test_the_commands_parse_and_come_after_what_they_need(tmp_path, place, full) -> None:
    group = typer.main.get_command(app)
    for experiment in voita2019.EXPERIMENTS:
        steps = experiment.steps(setting(tmp_path, _materials(tmp_path)[place], full))
        assert steps
        before: set[str] = set()
        for step in steps:
            verb, *rest = step.words
            with group.commands[verb].make_context(verb, rest):  # type: ignore[attr-defined]
                pass
            assert step.name not in before
            assert set(step.after) <= before
            before.add(step.name)
            assert setting(tmp_path).run(step.name) in step.words
            assert step.words[-1] == "--quiet"


def test_without_pairs_there_is_nothing_but_the_classifier_to_look_at(tmp_path) -> None:
    bare = setting(tmp_path, replace(MATERIAL, pairs=None))
    assert [encoder.steps(bare), all_types.steps(bare)] == [[], []]
    assert [step.name for step in voita_roles.steps(bare)] == [voita_roles.CLASSIFIER]
    assert voita_roles.steps(setting(tmp_path, replace(MATERIAL, pairs=None, parses=None))) == []
    for experiment in voita2019.EXPERIMENTS:
        assert experiment.claims(RunDocuments(bare)) == []
        assert experiment.sheets(RunDocuments(bare)) == []


def test_the_shares_are_the_papers_counts() -> None:
    shares = (encoder.HALF, encoder.TENTH, encoder.FEW, encoder.ALL)
    assert [how_many(share, 48) for share in shares] == [24, 10, 4, 48]
    assert [how_many(share, 144) for share in all_types.SHARES] == [14 + 31 + 30, 8 + 13 + 15]


def test_every_control_is_trained_as_long_on_the_same_pairs(tmp_path) -> None:
    steps = [step for step in encoder.steps(setting(tmp_path)) if step.words[0] == "learn"]
    own = {"--method", "--keep", "--run", "--seed"}

    def shared(words: tuple[str, ...]) -> list[str]:
        skipped = {place + move for place, word in enumerate(words) if word in own for move in (0, 1)}
        return [word for place, word in enumerate(words) if place not in skipped and place != 1]

    assert len(steps) == 3 * 6
    assert all(shared(step.words) == shared(steps[0].words) for step in steps)


def test_from_scratch_is_the_plan_that_gates_found_trained_as_the_translator_was(tmp_path) -> None:
    steps = {step.name: step for step in all_types.steps(setting(tmp_path))}
    for seed in range(3):
        control, whole = steps[f"voita-all-scratch-25-{seed}"].words, steps[f"train-translator-{seed}"].words
        assert {"--scratch", f"{setting(tmp_path).run(f'voita-all-l0-25-{seed}')}/plan.json"} <= set(control)
        assert not set(SIZES) & set(control)
        for flag in ("--epochs", "--lr", "--label-smoothing", "--seed", "--data", "--target"):
            assert control[control.index(flag) + 1] == whole[whole.index(flag) + 1]
        assert "--limit" not in control


@pytest.mark.parametrize(
    ("train", "flags", "parses", "asked"),
    [
        ("train.en.gz,train.de.gz", (), "en_ewt-ud-dev.conllu", True),
        ("train.de,train.en", (), "en_ewt-ud-dev.conllu", False),
        ("wmt@train", ("--text", "en", "--target", "fr"), "trees/en_gum.conllu", True),
        ("pairs.tsv", ("--text", "source", "--target", "target"), "en_ewt-ud-dev.conllu", False),
    ],
)
def test_a_translator_is_asked_about_parses_of_its_own_language(tmp_path, train, flags, parses, asked) -> None:
    pairs = PAIRS._replace(train=train, flags=flags)
    names = [s.name for s in voita_roles.steps(setting(tmp_path, replace(MATERIAL, pairs=pairs, parses=parses)))]
    assert (voita_roles.PARSES in names) is asked
    assert voita_roles.PAIRS in names


def test_roles_and_gates_share_their_commands(tmp_path) -> None:
    gates = {step.name: step for step in encoder.steps(setting(tmp_path))}
    same = [step for step in voita_roles.steps(setting(tmp_path)) if step.name in gates]
    assert [step for step in same if step.words[0] == "learn"]
    assert all(gates[step.name] == step for step in same)


# -- encoder heads ---------------------------------------------------------------------------------------------------------


def _encoder(folder: Path, gains: Mapping[str, Iterable[float]], **how: Any) -> list[Claim]:
    for arm, values in gains.items():
        for seed, gain in enumerate(values):
            write(folder, f"voita-encoder-{arm}-{seed}", "learned", learned(10, 48, gain, **how))
    return encoder.claims(RunDocuments(setting(folder)))


LOST = [  # against all heads trained as long, which are half a point better than the whole translator
    ((-0.1, -0.11, -0.09), {}, CONFIRMED),
    ((-0.1, -0.11, -0.09), {"reach": 0.1}, UNTOLD),  # of other examples the root of 0.02 is 0.14
    ((-0.1, -0.11, -0.09), {"metric": "loss"}, UNTOLD),  # 0.15 is a number of BLEU
    ((-0.1, -0.11), {}, UNTOLD),  # two seeds
    ((-0.1, 0.1, -0.3), {}, UNTOLD),  # little is lost, but the interval reaches further
    ((-0.3, 0.0, -0.3), {}, UNTOLD),
    ((-0.6, -0.5, -0.7), {}, DIFFERS),
    ((-2.0, -2.1, -1.9), {}, NOT_CONFIRMED),
]


@pytest.mark.parametrize(("gains", "how", "verdict"), LOST)
def test_how_much_the_last_heads_lose_against_all_heads_trained_as_long(tmp_path, gains, how, verdict) -> None:
    arms = {"l0-21": [0.5 + gain for gain in gains], "taylor-100": [0.5] * len(gains)}
    assert only(_encoder(tmp_path, arms, **how), "10 of 48").verdict == verdict


def test_the_whole_translator_that_was_trained_less_long_decides_nothing(tmp_path) -> None:
    claim = only(_encoder(tmp_path, {"l0-21": (0.5, 0.5, 0.5)}), "10 of 48")
    assert claim.verdict == UNTOLD
    assert "no control" in claim.here
    claims = _encoder(tmp_path, {"l0-21": (0.5, 0.5, 0.5), "taylor-100": (1.2, 1.1, 1.3)})
    assert only(claims, "10 of 48").verdict == DIFFERS


@pytest.mark.parametrize("metric", ["bleu", "loss"])
@pytest.mark.parametrize(
    ("chance", "verdict"),
    [((-0.7, -0.6, -0.8), CONFIRMED), ((0.9, 0.8, 1.0), NOT_CONFIRMED), ((-0.7, 0.6, 0.1), UNTOLD)],
)
def test_gates_against_the_lot_whichever_way_the_metric_runs(tmp_path, metric, chance, verdict) -> None:
    claims = _encoder(tmp_path, {"l0-21": (0.0, 0.1, -0.1), "random-21": chance}, metric=metric)
    assert only(claims, "Title").verdict == verdict
    claims = _encoder(tmp_path, {"l0-21": (0.0, 0.1, -0.1), "random-21": chance}, metric=metric, reach=0.7)
    assert only(claims, "Title").verdict == UNTOLD, "on other examples it might be the other way round"


@pytest.mark.parametrize(("metric", "name"), [("bleu", "BLEU"), ("loss", "loss")])
def test_what_is_told_are_differences_to_the_whole_and_to_all_heads_trained_as_long(tmp_path, metric, name) -> None:
    claims = _encoder(tmp_path, {"l0-21": (-0.25,) * 3, "taylor-100": (0.5,) * 3}, metric=metric, reach=0.5)
    text = only(claims, "10 of 48").here
    assert f"trained less long: −0.25 (−0.25 to −0.25) {name}" in text
    assert "[−0.75, +0.25]" in text
    assert f"trained as long: −0.75 [−1.46, −0.04] {name} (mean over 3 seeds" in text  # the root of 0.5
    (sheet,) = encoder.sheets(RunDocuments(setting(tmp_path)))
    after = ("37.75", "38.50") if metric == "bleu" else ("38.25", "37.50")
    assert [row[4] for row in sheet.rows] == [f"{value} ({value} to {value})" for value in after]
    assert all(len(row) == len(sheet.columns) for row in sheet.rows)


# -- all types -------------------------------------------------------------------------------------------------------------

SITES = {
    "encoder": [f"encoder.{layer}" for layer in range(6)],
    "decoder": [f"decoder.{layer}.self" for layer in range(6)],
    "cross": [f"decoder.{layer}.cross" for layer in range(6)],
}


def _all(
    folder: Path, kept: Callable[[str, int], int], gains: Iterable[float] = (0, 0, 0), fresh: Any = ()
) -> list[Claim]:
    """Runs that keep the first `kept(type, layer)` of 8 heads."""
    left = [
        f"{site}:{n}"
        for type_, own in SITES.items()
        for layer, site in enumerate(own)
        for n in range(kept(type_, layer))
    ]
    heads = [f"{site}:{n}" for own in SITES.values() for site in own for n in range(8)]
    scored = {"kind": "head", "units": list(range(8)), "raw": [1.0] * 8, "score": [1.0] * 8}
    sites = {site: {**scored, "type": type_} for type_, own in SITES.items() for site in own}
    for share in ("52.1", "25"):
        for seed, gain in enumerate(gains):
            document = learned(len(left), 144, gain, [unit for unit in heads if unit not in left])
            write(folder, f"voita-all-l0-{share}-{seed}", "learned", document)
            write(folder, f"voita-all-l0-{share}-{seed}", "scores", {"by": "l0", "sites": sites})
        for seed, gain in enumerate(fresh):
            write(folder, f"voita-all-scratch-{share}-{seed}", "learned", learned(len(left), 144, gain))
    return all_types.claims(RunDocuments(setting(folder)))


@pytest.mark.parametrize(
    ("fresh", "verdict"),
    [
        ((-0.7, -0.6, -0.8), CONFIRMED),
        ((0.7, 0.6, 0.8), NOT_CONFIRMED),
        ((0.7, -0.6, 0.8), UNTOLD),
        ((-0.7, -0.7), UNTOLD),
    ],
)
def test_pruned_against_from_scratch(tmp_path, fresh, verdict) -> None:
    assert only(_all(tmp_path, lambda type_, layer: 2, fresh=fresh), "from scratch").verdict == verdict


def test_at_one_number_of_heads_only_is_different(tmp_path) -> None:
    _all(tmp_path, lambda type_, layer: 2, fresh=(-0.7, -0.6, -0.8))
    for seed, gain in enumerate((0.7, -0.6, 0.1)):
        write(tmp_path, f"voita-all-scratch-25-{seed}", "learned", learned(36, 144, gain))
    assert only(all_types.claims(RunDocuments(setting(tmp_path))), "from scratch").verdict == DIFFERS


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ({"encoder": 1, "decoder": 2, "cross": 3}, CONFIRMED),
        ({"encoder": 1, "decoder": 3, "cross": 2}, DIFFERS),
        ({"encoder": 3, "decoder": 2, "cross": 1}, NOT_CONFIRMED),
        ({"encoder": 2, "decoder": 2, "cross": 2}, UNTOLD),
    ],
)
def test_which_type_goes_first(tmp_path, counts, verdict) -> None:
    claims = _all(tmp_path, lambda type_, layer: counts[type_])
    claim = only(claims, "pruned first")
    assert claim.verdict == verdict
    shares = [f"{100 * count / 8:.0f}\u00a0%" for count in counts.values()]
    assert " / ".join(f"{share} ({share} to {share})" for share in shares) in claim.here
    (sheet,) = all_types.sheets(RunDocuments(setting(tmp_path)))
    assert sheet.rows[: len(all_types.PUBLISHED)] == all_types.PUBLISHED
    assert sheet.rows[-3][1] == "48 / 48 / 48"
    assert sheet.rows[-1][1] == " / ".join(f"{6 * n} ({6 * n} to {6 * n})" for n in counts.values())


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [((0, 1, 2), (3, 4, 5), CONFIRMED), ((0, 1, 2), (0, 1), DIFFERS), ((3, 4), (0, 1), NOT_CONFIRMED)],
)
def test_in_which_layers_survivors_are(tmp_path, low, high, verdict) -> None:
    layers = {"encoder": range(6), "decoder": low, "cross": high}
    claim = only(_all(tmp_path, lambda type_, layer: 2 if layer in layers[type_] else 0), "low layers")
    assert claim.verdict == verdict
    means = [sum(some) / len(some) - 2.5 for some in (low, high)]
    for mean in means:
        assert f"{mean:+.2f}".replace("-", "−") in claim.here


def test_what_holds_under_every_seed_may_still_be_chance() -> None:
    sure, unsure, opposite = (
        [mean_over_seeds(some)] for some in ((1.0, 1.1, 0.9), (0.1, 1.0, 2.0), (-1.0, -1.1, -0.9))
    )
    assert all_types.both_hold(sure, sure) == CONFIRMED
    assert all_types.both_hold(sure, unsure) == UNTOLD  # all three are above zero, and the interval is not
    assert all_types.both_hold(sure, [*sure, *unsure]) == UNTOLD
    assert all_types.both_hold(opposite, sure) == DIFFERS
    assert all_types.both_hold(opposite, opposite) == NOT_CONFIRMED
    assert all_types.both_hold([], sure) == UNTOLD


def test_one_seed_tells_nothing_about_trainings(tmp_path) -> None:
    claims = _all(tmp_path, lambda type_, layer: {"encoder": 1, "decoder": 2, "cross": 3}[type_], (0,), (-1,))
    assert [claim.verdict for claim in claims] == [UNTOLD] * 3


# -- roles -----------------------------------------------------------------------------------------------------------------

HEADS = [f"encoder.{layer}:{n}" for layer in range(6) for n in range(8)]


def _roles(mains: Mapping[str, str], rare: Mapping[str, float] = {}, relations: Any = ()) -> dict[str, Any]:
    def head(unit: str) -> dict[str, Any]:
        roles = [role | {"role": mains[unit], "text": f"is {mains[unit]}"}] if unit in mains else []
        two = rare.get(unit)
        seen = None if two is None else {"rarest": [two / 2] * 3, "two": [two, two - 0.05, two + 0.05], "chance": 0.2}
        about = {"unit": unit, "site": unit.partition(":")[0], "type": "encoder", "main": mains.get(unit, "none")}
        spans = {"confidence": [0.5, 0.4, 0.6], "entropy": [1.0, 0.9, 1.1], "offsets": {}, "mass": {}}
        return {**about, **spans, "roles": roles, "rare": seen}

    role = {"what": "", "value": 0.9, "low": 0.8, "high": 1.0, "baseline": None, "p": None, "sure": True}
    cross = {"type": "cross", "relation": "read", "direction": "target to source", "earned": ["x"], "heads": {}}
    told = [{"offset": 0, "baseline": 0.4, "pairs": 90, "sentences": 90, **one} for one in (cross, *relations)]
    return {"sentences": 90, "roles": {}, "heads": [head(unit) for unit in HEADS], "relations": told}


def _survivors(folder: Path, mains: Mapping[str, str], kept: Iterable[str]) -> Claim:
    write(folder, voita_roles.PAIRS, "roles", _roles(mains))
    stay = [*kept]
    write(folder, "voita-encoder-l0-21-0", "learned", learned(len(stay), 48, 0, [u for u in HEADS if u not in stay]))
    return only(voita_roles.claims(RunDocuments(setting(folder))), "last to be pruned")


FUNCTIONS = {**dict.fromkeys(HEADS[:4], "positional"), **dict.fromkeys(HEADS[4:8], "rare"), HEADS[8]: "local"}


def test_functions_survive_or_not(tmp_path) -> None:
    kept = [*HEADS[:6], *HEADS[40:44]]  # six of the eight, where 8 * 10 / 48 would be left by chance
    claim = _survivors(tmp_path, FUNCTIONS, kept)
    assert claim.verdict == CONFIRMED
    assert "about one translator" in claim.rule
    assert "6 of the 8 with one of these functions are left, 1.7 by chance" in claim.here
    assert "4 of 4 positional" in claim.here
    assert "2 of 4 rare" in claim.here
    assert "0 of 1 local" in claim.here
    assert _survivors(tmp_path, FUNCTIONS, [*HEADS[:2], *HEADS[20:28]]).verdict == UNTOLD
    many = dict.fromkeys(HEADS[:24], "positional")
    assert _survivors(tmp_path, many, HEADS[24:34]).verdict == NOT_CONFIRMED
    assert _survivors(tmp_path, {HEADS[0]: "local"}, HEADS[:10]).verdict == UNTOLD


def test_what_parses_show_counts_too(tmp_path) -> None:
    write(tmp_path, voita_roles.PARSES, "roles", _roles(dict.fromkeys(HEADS[:8], "syntactic")))
    claim = _survivors(tmp_path, {HEADS[0]: "local"}, HEADS[:10])
    assert claim.verdict == CONFIRMED
    assert "8 of 8 syntactic" in claim.here
    sheet = voita_roles.sheets(RunDocuments(setting(tmp_path)))[-1]
    assert ("syntactic", "8", "8") in sheet.rows
    assert sheet.columns[1:] == ("48 heads", "10 heads")


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ({"encoder.0:3": 0.7}, CONFIRMED),
        ({"encoder.0:3": 0.52}, UNTOLD),  # its interval reaches below half
        ({"encoder.0:3": 0.48, "encoder.2:3": 0.6}, UNTOLD),  # that of the first layer may
        ({"encoder.0:3": 0.3, "encoder.2:3": 0.52}, UNTOLD),
        ({"encoder.0:3": 0.3, "encoder.2:3": 0.6}, DIFFERS),
        ({"encoder.0:3": 0.3}, NOT_CONFIRMED),
        ({"encoder.0:3": 0.48}, UNTOLD),  # its interval reaches half
    ],
)
def test_a_head_for_rare_words_in_the_first_layer(tmp_path, shares, verdict) -> None:
    mains = {unit: "rare" for unit, share in shares.items() if share >= 0.5}
    write(tmp_path, voita_roles.PAIRS, "roles", _roles(mains, shares))
    assert only(voita_roles.claims(RunDocuments(setting(tmp_path))), "Rare words").verdict == verdict


def test_where_there_are_no_rare_words_nothing_is_said(tmp_path) -> None:
    write(tmp_path, voita_roles.PAIRS, "roles", _roles({}))
    assert voita_roles.claims(RunDocuments(setting(tmp_path))) == []


def _relation(name: str, direction: str, earned: bool, gain: float) -> dict[str, Any]:
    numbers = [0.4 + gain, gain, gain - 0.05, gain + 0.05]
    relation = {"type": "encoder", "relation": name, "direction": direction}
    relation |= {"heads": {"encoder.1:1": [*numbers, 0.001]}}
    return {**relation, "earned": ["encoder.1:1"] * earned, "best": {"unit": "encoder.1:1", "numbers": numbers}}


FOUND, MISSED, NEAR = 0.3, 0.04, 0.08  # gains: sure to be above 10 points, sure to be below, and perhaps above


@pytest.mark.parametrize(
    ("earned", "others", "verdict"),
    [
        ({"nsubj": FOUND, "dobj": FOUND}, MISSED, CONFIRMED),
        ({"nsubj": FOUND, "dobj": 0.12}, MISSED, UNTOLD),  # beyond chance, but perhaps by less than 10
        ({"nsubj": FOUND}, MISSED, DIFFERS),
        ({"nsubj": FOUND}, NEAR, UNTOLD),
        ({"case": FOUND}, MISSED, DIFFERS),
        ({}, MISSED, NOT_CONFIRMED),
        ({}, NEAR, UNTOLD),
    ],
)
def test_heads_that_find_dependencies(tmp_path, earned, others, verdict) -> None:
    ways = (voita_roles.UP, voita_roles.DOWN)
    relations = [
        _relation(name, way, name in earned, earned.get(name, others))
        for name in ("nsubj", "dobj", "case")
        for way in ways
    ]
    write(tmp_path, voita_roles.PARSES, "roles", _roles({}, relations=relations))
    claim = only(voita_roles.claims(RunDocuments(setting(tmp_path))), "Table 1")
    assert claim.verdict == verdict
    assert f"{2 * len(earned)} of all 6 relations" in claim.here
    sheet = voita_roles.sheets(RunDocuments(setting(tmp_path)))[0]
    assert [row[2:4] for row in sheet.rows] == [row[2:] for row in voita_roles.PUBLISHED]
    assert [bool(row[4]) for row in sheet.rows] == [True] * 4 + [False] * 4
    gain = round(100 * earned.get("nsubj", others))
    assert sheet.rows[0][4].startswith(f"{40 + gain} / 40, +{gain}")


# -- documents that are not what a command writes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "data"),
    [
        ("voita-encoder-l0-21-0", "learned", {"keep": 10}),
        ("voita-encoder-l0-21-0", "learned", {**learned(10, 48, 0.0), "comparison": {"metric": "bleu"}}),
        ("voita-all-l0-25-0", "scores", {"sites": {"encoder": {"units": [0]}}}),
        (voita_roles.PAIRS, "roles", {"heads": [{"type": "encoder"}]}),
        (
            voita_roles.PAIRS,
            "roles",
            {**_roles({}), "heads": [{"unit": "0:1", "type": "encoder", "roles": [{"role": "x"}]}]},
        ),
        (voita_roles.PAIRS, "roles", {**_roles({}), "sentences": None}),
    ],
)
def test_what_is_damaged_is_said_in_one_sentence(tmp_path, name, kind, data) -> None:
    write(tmp_path, name, kind, data)
    with says(BadRun, about=name):
        for experiment in voita2019.EXPERIMENTS:
            experiment.claims(RunDocuments(setting(tmp_path)))
