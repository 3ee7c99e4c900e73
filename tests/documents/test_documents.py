"""Every kind of document comes back as it was written, is read as earlier versions wrote it, and says what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import says
from helpers import run_folders

from headcount.documents.claims import CONFIRMED
from headcount.documents.kinds import KINDS
from headcount.errors import BadRun
from headcount.reporting import page as report_page
from headcount.runs import Run

OLD = Path(__file__).parent / "old"  # a small document of each kind as a version wrote it that had no class for it
SMALL = {"0": ("head", "encoder", 2), "1": ("head", "encoder", 2)}
FREE = ("recipe", "settings", "trained", "rules", "base_card", "tries", "how", "asked")  # whose values may be anything


def documents() -> dict[str, dict[str, Any]]:
    """A document of each kind."""
    scores = run_folders.scores(SMALL)
    order, names = scores.order(), [str(unit) for unit in run_folders.units(SMALL)]
    claim = {"paper": "It is so.", "here": "It is.", "verdict": CONFIRMED, "rule": "If it is."}
    material = {"material": {"name": "small", "about": "Small."}, "full": False, "seeds": [0]}
    sheet = {"title": "Both", "columns": ["task", "value"], "rows": [["RTE", "0.5"]]}
    about = {"format": 1, "experiment": "x", "paper": "X 2020", "shows": "Table 1", "asks": "Is it so?", **material}
    return {
        "prune": run_folders.structured({"0.mlp": 16}, [1]),
        "learned": run_folders.learned(SMALL, keep=2, settings={"settle": 0.2}, recovered={"steps": 3}),
        "curves": run_folders.curves(order, [0, 2], 1),
        "over": run_folders.over(order, [0, 2], ("epoch-1",)),
        "training": run_folders.training(),
        "scores": run_folders.scores_document(scores),
        "ablation": run_folders.ablation(names),
        "all-but-one": run_folders.one_head(SMALL),
        "transfer": run_folders.transfer(names),
        "bench": run_folders.bench(),
        "lottery": run_folders.lottery(["RTE", "QNLI"], (0, 1), SMALL),
        "result": run_folders.result(0.9),
        "tradeoff": run_folders.tradeoff(),
        "patch": run_folders.patching(),
        "circuit": run_folders.circuit(),
        "logit-attribution": run_folders.attribution(),
        "circuits": run_folders.weights(),
        "roles": run_folders.roles(SMALL, sentences=1),
        "heads": run_folders.named_heads(),
        "claims": {**about, "claims": [claim], "sheets": [sheet], "commands": ["headcount demo"], "left_out": []},
    }


WHOLE = documents()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values within a JSON value; of lists, those of the first entry."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield (*path, name)
            if name not in FREE:
                yield from places(one, (*path, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def changed(data: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The data with another value at a place; without it where the new one is `...`."""
    made = json.loads(json.dumps(data))
    holder = made
    for name in path[:-1]:
        holder = holder[name]
    if new is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = new
    return made


def test_there_is_a_document_of_every_kind() -> None:
    assert WHOLE.keys() == KINDS.keys() == {path.stem for path in OLD.glob("*.json")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_comes_back_as_it_was_written(kind) -> None:
    data = json.loads(json.dumps(WHOLE[kind]))
    made = KINDS[kind].from_json(data)
    assert json.loads(json.dumps(made.to_json())) == data
    assert KINDS[kind].from_json(made.to_json()) == made


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_later_versions_are_passed_over(kind) -> None:
    made = KINDS[kind].from_json(WHOLE[kind])
    assert KINDS[kind].from_json({**WHOLE[kind], "a_later_key": [1]}) == made


def holds(new: Any, old: Any) -> bool:
    """Whether all that the old value says stands in the new one."""
    if isinstance(old, dict):
        return all(name in new and holds(new[name], one) for name, one in old.items())
    if isinstance(old, list):
        return len(new) == len(old) and all(map(holds, new, old))
    return bool(new == old)


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_document_is_read_and_shown(kind, tmp_path) -> None:
    old = json.loads((OLD / f"{kind}.json").read_text(encoding="utf-8"))
    assert holds(json.loads(json.dumps(KINDS[kind].from_json(old).to_json())), old)
    command = "reproduce" if kind == "claims" else kind
    with Run.open(tmp_path / "run", {"command": command, "model": "tiny"}) as run:
        run.write_json(kind, old)
        run.finish()
    assert report_page.report([tmp_path / "run"], tmp_path / "page.html").is_file()


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_is_missing_is_named_or_has_a_default(kind) -> None:
    refused = set()
    for path in places(WHOLE[kind]):
        damaged = changed(WHOLE[kind], path, ...)
        try:
            KINDS[kind].from_json(damaged, f"run/{kind}.json")
        except BadRun:
            refused.add(path[0])
            with says(BadRun, about=f"run/{kind}.json") as caught:
                KINDS[kind].from_json(damaged, f"run/{kind}.json")
            assert str(path[-1]) in str(caught.value)
    assert refused, "some keys have to be there"


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_another_type_is_refused_with_its_key(kind) -> None:
    for path in places(WHOLE[kind]):
        if path[-1] in FREE:
            continue
        value = WHOLE[kind]
        for name in path:
            value = value[name]
        wrong = 3 if isinstance(value, dict) else {"not": "this"}
        with says(BadRun, about=str(path[-1])):
            KINDS[kind].from_json(changed(WHOLE[kind], path, wrong), f"run/{kind}.json")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [None, [], "text", 3, {}])
def test_what_is_no_document_is_one_sentence(kind, data) -> None:
    with says(BadRun, about=f"run/{kind}.json is not what headcount writes"):
        KINDS[kind].from_json(data, f"run/{kind}.json")


def test_a_number_that_is_not_finite_is_no_number() -> None:
    for number in (float("nan"), float("inf"), True):
        with says(BadRun, about="value is"):
            KINDS["result"].from_json({**WHOLE["result"], "value": number})
