"""Circuits: nothing has faithfulness 0 and all has 1, values are those of hand-made patches, halves share no example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import says
from helpers.contrasts import family, words_tokenizer
from helpers.hand_patching import contrast, difference, inputs_of, layers, projection, second
from helpers.language import saved
from helpers.same import alike, close
from helpers.small_models import ran, ran_json

import headcount as hc
from headcount.circuit_discovery.pipeline import circuit
from headcount.documents.discovery import CircuitDocument
from headcount.errors import BadPlan, Refused
from headcount.importance.attribution.exact import values_under
from headcount.runs import Run

NAMES = ("mary", "john", "anna")
PLACES = ("store", "park")


def prompts() -> list[dict[str, str]]:
    """Who gave a book to whom: 12 prompts of one length."""
    return [
        {
            "clean": f"when {one} and {other} went to the {place} {other} gave a book to",
            "corrupted": f"when {one} and {other} went to the {place} {one} gave a book to",
            "answer": one,
            "wrong": other,
        }
        for one in NAMES
        for other in NAMES
        for place in PLACES
        if one != other
    ]


@pytest.fixture(scope="module")
def found() -> tuple[Any, Any, CircuitDocument]:
    model, task = contrast("llama", rows=prompts())
    return (
        model,
        task,
        circuit(model, task, check=5, random_seeds=2, edges=20, shares=(0, 0.2, 0.5, 1), edge_shares=(0, 0.1, 0.5, 1)),
    )


def test_nothing_is_zero_and_the_whole_model_is_one(found: Any) -> None:
    _, _, document = found
    first, *_, last = document.points
    assert first.kept == 0
    assert close(np.array([first.faithfulness.value, first.found, first.random]), np.zeros(3), 1e-4)
    assert (last.kept, last.share) == (10, 1.0)
    assert close(np.array([last.faithfulness.value, last.found, last.random]), np.ones(3), 1e-4)
    assert close(np.array([first.value, last.value]), np.array([document.nothing.value, document.clean.value]))
    assert document.cmd.value >= 0
    assert document.check.of == 10
    assert document.edge_check.names[0] == f"{document.edges[0].writer} -> {document.edges[0].reader}"
    assert document.edges[0].exact is not None
    assert document.edges[-1].exact is None


def test_the_circuit_is_the_fewest_units_that_reach_it_where_they_were_found(found: Any) -> None:
    _, _, document = found
    assert document.size == min(point.kept for point in document.points if point.found >= document.reach)
    assert len(document.kept) == document.size
    scores = {unit.unit: unit.score for unit in document.units}
    assert list(document.kept) == sorted(scores, key=lambda unit: -scores[unit])[: document.size]
    masked = {str(unit) if "mlp" not in unit.site else unit.site for unit in document.plan}
    assert masked == set(scores) - set(document.kept)
    assert "found on" in document.sets
    assert "others of it" in document.sets


def test_its_value_is_a_hand_loop_with_the_rest_from_the_corrupted_prompts(found: Any) -> None:
    from headcount.data import splits

    model, task, document = found
    report = splits.share_out(task, {"select": 0.5, "report": 0.5}, 0).tasks["report"]
    assert document.point.value == pytest.approx(by_hand(model, report, set(document.kept)), abs=1e-4)
    assert document.nothing.value == pytest.approx(by_hand(model, report, set()), abs=1e-4)


def by_hand(model: Any, task: Any, kept: set[str]) -> float:
    """The mean logit difference with all heads and MLPs but some as they are on the corrupted prompts."""
    values = []
    for number in range(task.size):
        clean, corrupted = task.collate([number]), task.corrupted.collate([number])
        handles = []
        for place, layer in enumerate(layers(model)):
            heads = [f"{place}:{head}" in kept for head in range(4)]
            for module, keep in (
                (projection(layer), np.repeat(heads, 8)),
                (second(layer), np.array(f"{place}.mlp" in kept)),
            ):
                other = inputs_of(module, lambda corrupted=corrupted: difference(model, corrupted))

                def swap(_: Any, args: Any, keep: Any = keep, other: Any = other) -> Any:
                    mask = args[0].new_tensor(keep)
                    return (args[0] * mask + other * (1 - mask),)

                handles.append((module, swap))
        hooks = [module.register_forward_pre_hook(swap) for module, swap in handles]
        values.append(float(difference(model, clean)))
        for hook in hooks:
            hook.remove()
    return float(np.mean(values))


def test_patched_values_are_those_of_patch(found: Any) -> None:
    """Two programs that patch: this one, and `hc.patch` with replayed passes, noising."""
    model, task, document = found
    plans = {"circuit": document.plan, "head": hc.find(model).plan("1:2"), "layer": hc.find(model).plan("layers:1")}
    patching = hc.patch(model, task, plans, direction="noising")
    values = values_under(model, hc.find(model), task, plans)
    assert close(values["patched"].T, patching.values, 1e-4)
    assert close(values["clean"], patching.clean, 1e-4)
    assert close(values["corrupted"], patching.corrupted, 1e-4)


@pytest.mark.parametrize("ranked", ["absolute", "edges"])
def test_other_rankings(found: Any, ranked: str) -> None:
    model, task, _ = found
    document = circuit(
        model, task, "attribution-patching", ranked=ranked, check=0, random_seeds=0, shares=(0, 1), edge_shares=()
    )
    assert document.edge_circuit is None
    ranks = [unit.unit for unit in sorted(document.units, key=lambda unit: unit.rank)]
    if ranked == "absolute":
        sizes = {unit.unit: abs(unit.score) for unit in document.units}
        assert ranks == sorted(sizes, key=lambda unit: -sizes[unit])
    assert document.check is None
    assert document.random_cpr is None
    assert CircuitDocument.from_json(json.loads(json.dumps(document.to_json()))) == document


def test_the_graph_has_the_circuit_and_edges_between_its_nodes(found: Any) -> None:
    _, _, document = found
    graph = document.graph()
    assert set(graph["nodes"]) <= {"embeddings", "logits", *document.kept}
    ends = {end[:-2] if end[-2:] in (".q", ".k", ".v") else end for _, end, *_ in graph["edges"]}
    assert ends | {edge[0] for edge in graph["edges"]} == set(graph["nodes"])
    assert len({edge[:2] for edge in graph["edges"]}) == len(graph["edges"]) > 3
    drawn = hc.reporting.draw_circuit(**graph, title="A circuit")
    assert all(f"<title>{node}</title>" in drawn.svg for node in graph["nodes"])
    assert drawn.svg.count('<path class="edge') >= len(graph["edges"])
    few = document.graph(most=2)
    assert few["edges"] == graph["edges"][:2]
    assert len(few["nodes"]) <= 4


def test_circuits_of_edges_begin_as_on_corrupted_prompts_and_end_as_the_model(found: Any) -> None:
    _, _, document = found
    edges = document.edge_circuit
    first, *_, last = edges.points
    assert (first.kept, last.kept, edges.of) == (0, 82, document.of_edges)
    assert close(np.array([first.value, last.value]), np.array([document.corrupted.value, document.clean.value]))
    assert close(np.array([first.faithfulness.value, first.random]), np.zeros(2), 1e-4)
    assert close(np.array([last.faithfulness.value, last.found, last.random]), np.ones(3), 1e-4)
    assert edges.size == min(point.kept for point in edges.points if point.found >= document.reach)
    assert edges.point.kept == edges.size
    signed = sorted((edge.score for edge in document.edges if edge.kept), reverse=True)
    assert signed
    assert min(signed) >= max((edge.score for edge in document.edges if not edge.kept), default=-np.inf)


def test_a_model_without_edges_has_a_circuit_all_the_same() -> None:
    model, tokenizer, rows = family("bert")
    task = hc.task("contrast", rows[2:], tokenizer=tokenizer)
    document = circuit(
        model,
        task,
        find_on=hc.task("contrast", rows[:2], tokenizer=tokenizer),
        check=0,
        random_seeds=0,
        shares=(0, 0.5, 1),
    )
    assert document.edges == ()
    assert "has no edges" in document.no_edges
    with says(Refused, about="has no edges"):
        circuit(model, task, find_on=hc.task("contrast", rows[:2], tokenizer=tokenizer), edges=5, check=0)


def test_what_makes_no_sense_is_refused(found: Any) -> None:
    model, task, _ = found
    with says(BadPlan, about="Units are ranked"):
        circuit(model, task, ranked="best")
    with says(BadPlan, about="shares from 0 to 1"):
        circuit(model, task, shares=(0, 2))
    with says(BadPlan, about="shares from 0 to 1"):
        circuit(model, task, edge_shares=(0, 2))
    with says(BadPlan, about="reaches a faithfulness above 0"):
        circuit(model, task, reach=float("nan"))
    with says(BadPlan, about="takes none: leave steps out"):
        circuit(model, task, "attribution-patching", steps=3)


def test_the_command_finds_the_same_and_goes_on_where_it_stopped(found: Any, tmp_path: Path) -> None:
    _, _, document = found
    folder = saved(tmp_path / "model", words_tokenizer(), vocab_size=32)
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in prompts()), encoding="utf-8")
    words = [
        "circuit",
        folder,
        "--task",
        "contrast",
        "--data",
        data,
        "--check",
        "5",
        "--edges",
        "20",
        "--random-seeds",
        "2",
    ]
    words += ["--edge-sizes", "0,10%,0.5,1", "--sizes", "0,20%,0.5,1", "-o", tmp_path / "run"]
    told = ran_json(*map(str, words))
    assert alike(told["edge_circuit"]["points"], document.to_json()["edge_circuit"]["points"], 1e-3)
    assert alike(told["points"], document.to_json()["points"], 1e-3)
    assert json.loads((tmp_path / "run" / "plan.json").read_text("utf-8")) == document.plan.to_json()
    again = ran(*map(str, words))
    assert again.exit_code == 0
    assert again.stdout.count("CPR") == 2
    assert f"the circuit of edges: {document.edge_circuit.size} of 82" in again.stdout
    assert "strongest of 82 edges" in again.stdout
    wrong = ran(*map(str, [*words[:-4], "--sizes", "0,7"]))
    assert wrong.exit_code == 2


def test_a_run_keeps_what_is_done(found: Any, tmp_path: Path) -> None:
    model, task, document = found
    how: dict[str, Any] = {"check": 5, "random_seeds": 2, "edges": 20, "shares": (0, 0.2, 0.5, 1)}
    how["edge_shares"] = (0, 0.1, 0.5, 1)
    with Run.open(tmp_path / "run", {"a": 1}) as run:
        kept = circuit(model, task, run=run, **how)
        pieces = run.pieces
        again = circuit(model, task, run=run, **how)
        assert run.pieces == pieces
        turned = circuit(model, task, run=run, **{**how, "seed": 1})
        assert set(run.pieces) > set(pieces)
    alone = circuit(model, task, **{**how, "seed": 1})
    assert alike(turned.to_json()["points"], alone.to_json()["points"], 1e-4), "other halves are other pieces"
    assert again == kept
    assert alike(kept.to_json()["points"], document.to_json()["points"], 1e-4)
