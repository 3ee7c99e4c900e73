"""Models that two processes hold together, tensor-parallel or fully sharded: every number is that of the model in one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.same import alike, close
from helpers.small_models import WORDS, word_tokenizer
from helpers.spread import doubled, kept, measured, refused, together

import headcount as hc
from headcount.cli import app
from headcount.training import Recipe

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None or not torch.distributed.is_available(),
    reason="with a GPU, transformers shares models out among GPUs",
)
KINDS = ("tensor-parallel", "fully sharded")
SCORE = ["score", "MODEL", "--data", "DATA", "--task", "language-modelling", "--max-length", "16", "--limit", "6"]


def _command(folder: Path, output: str, *more: str) -> list[str]:
    named = {"MODEL": str(folder / "model"), "DATA": str(folder / "text.txt")}
    return [*(named.get(word, word) for word in SCORE), *more, "-o", str(folder / output)]


def _fully_sharded(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _refusals(model: Any, folder: Path) -> dict[str, str]:
    inputs = zoo.build("llama")[1]
    task = doubled(inputs)
    return refused(
        {
            "cut": lambda: hc.cut(model, "0:1"),
            "save": lambda: hc.save(model, folder / "never"),
            "train": lambda: hc.train(model, task, Recipe(steps=1)),
            "prune": lambda: hc.prune(model, task, remove="20%"),
            "patch": lambda: hc.patch(model, task),
            "lrp": lambda: hc.score(model, task, by="lrp-epsilon"),
        }
    )


def _work(folder: Path, rank: int) -> None:
    """What each of the two processes does."""
    inputs = zoo.build("llama")[1]
    spread = hc.load(folder / "model", tp_plan="auto")
    assert spread.model.layers[0].mlp.down_proj.weight.to_local().shape[1] == 24
    kept(folder, KINDS[0], rank, measured(spread, inputs), _refusals(spread, folder))
    phi, tokens = hc.load(folder / "phi3", tp_plan="auto"), zoo.build("phi3")[1]
    kept(folder, "phi3", rank, measured(phi, tokens, criteria=False), {})
    loads = {
        "gpt2": lambda: hc.load(folder / "gpt2", tp_plan="auto"),
        "cut": lambda: hc.load(folder / "cut", tp_plan="auto"),
        "lazy": lambda: hc.load(folder / "model", tp_plan="auto", lazy=True),
    }
    kept(folder, "loads", rank, {}, refused(loads))
    sharded = _fully_sharded(hc.load(folder / "model"))
    for model in (spread, sharded):
        assert [(s.name, len(s), s.kv_heads) for s in hc.find(model)] == [
            (s.name, len(s), s.kv_heads) for s in hc.find(zoo.build("llama")[0])
        ]
    kept(folder, KINDS[1], rank, measured(sharded, inputs), _refusals(sharded, folder))
    for again in range(2):  # the second time it is all there
        sys.argv = ["headcount", *_command(folder, "together", "--tp-plan", "auto")]
        with pytest.raises(SystemExit) as end:
            app.main()
        assert not end.value.code, again


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have left what they found."""
    folder = tmp_path_factory.mktemp("processes")
    model, _ = zoo.build("llama")
    hc.save(model, folder / "model", tokenizer=word_tokenizer([" ".join(WORDS)]))
    hc.cut(model, "0:0-1")
    hc.save(model, folder / "cut")
    for name in ("phi3", "gpt2"):
        hc.save(zoo.build(name)[0], folder / name)
    lines = [" ".join(WORDS[(row * place) % len(WORDS)] for place in range(14)) for row in range(1, 12)]
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    together(lambda rank: _work(folder, rank), folder)
    return folder


@pytest.mark.parametrize("kind", [*KINDS, "phi3"])
def test_both_processes_find_the_numbers_of_the_model_in_one(kind: str, found: Path) -> None:
    """The projections of Phi 3 are given the heads of all processes, and split them themselves."""
    model, inputs = zoo.build("phi3" if kind == "phi3" else "llama")
    whole = measured(model, inputs, criteria=kind != "phi3")
    for rank in range(2):
        with np.load(found / f"{kind}-{rank}.npz") as numbers:
            assert set(numbers.files) == set(whole)
            # sums over two processes are added up in another order
            assert not [name for name in whole if not close(numbers[name], whole[name], 3e-5)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_such_models_cannot_do_is_refused_by_name(kind: str, found: Path) -> None:
    said = json.loads((found / f"{kind}-0.json").read_text())
    how = "tensor parallelism" if kind == "tensor-parallel" else "FSDP"
    about = {
        "cut": "headcount cut --shards",
        "save": "is its checkpoint",
        "train": "load it in one process",
        "prune": how,
    }
    for name, part in about.items():
        assert said[name].startswith("Refused: The weights of this")
        assert part in said[name]
        assert how in said[name]
    for name in ("patch", "lrp"):
        assert ("is tensor-parallel" in said[name]) == (kind == "tensor-parallel")
    loads = json.loads((found / "loads-0.json").read_text())
    assert "no tensor-parallel plan for GPT2LMHeadModel" in loads["gpt2"]
    assert "need not divide evenly" in loads["cut"]
    assert "leave out one of the two" in loads["lazy"]


def test_of_a_command_in_two_processes_the_first_one_writes_and_speaks(found: Path) -> None:
    sys_argv, sys.argv = sys.argv, ["headcount", *_command(found, "alone")]
    try:
        with pytest.raises(SystemExit) as end:
            app.main()
    finally:
        sys.argv = sys_argv
    assert not end.value.code
    one, two = (json.loads((found / name / "scores.json").read_text()) for name in ("alone", "together"))
    assert alike(one, two, 3e-5)
    assert sorted(p.name for p in (found / "alone").iterdir()) == sorted(p.name for p in (found / "together").iterdir())
    assert "run folder" in (found / "rank-0.out").read_text()
    assert (found / "rank-1.out").read_text() == ""
