"""Side by side with TransformerLens, where it is installed: ablations and patches of the heads of a random GPT-2 are the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers.contrasts import ROWS, family
from helpers.same import close
from torch import Tensor, nn
from transformers import AutoTokenizer

import headcount as hc
from headcount.interventions import Fill

LENGTHS = 10  # tokens of a prompt: one length, so that positions need no padding


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Any, Any]:
    """A small GPT-2, a contrast task for it, and the same model in TransformerLens."""
    lens = pytest.importorskip("transformer_lens")
    model, tokenizer, _ = family("gpt2")
    rows = [row for row in ROWS if len(row["clean"].split()) == LENGTHS]
    assert len(rows) > 1
    task = hc.task("contrast", rows, tokenizer=tokenizer)
    folder = tmp_path_factory.mktemp("lens") / "small-gpt2"
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)  # type: ignore[operator]
    own = {"hf_model": copy.deepcopy(model), "tokenizer": AutoTokenizer.from_pretrained(folder), "device": "cpu"}
    return model, task, lens.TransformerBridge.boot_transformers(str(folder), **own).eval()


Change = Callable[[Tensor], Tensor]


def read(bridge: Any, batch: dict[str, Tensor], layer: int = 0, change: Change | None = None) -> np.ndarray:
    """The logit difference of every example in TransformerLens, with what the heads of a layer write from changed."""

    def hook(z: Tensor, hook: Any) -> Tensor:
        assert change is not None
        return change(z.clone())

    hooks = [(f"blocks.{layer}.attn.hook_z", hook)] if change else []
    with torch.no_grad():
        logits = bridge.run_with_hooks(batch["input_ids"], fwd_hooks=hooks)[range(len(batch["at"])), batch["at"]]
    right, wrong = (
        torch.stack([row[own[own >= 0]].mean() for row, own in zip(logits, batch[side], strict=True)])
        for side in ("right", "wrong")
    )
    return (right - wrong).double().numpy()


def heads() -> Iterator[tuple[int, int]]:
    return ((layer, head) for layer in range(2) for head in range(4))


def written(bridge: Any, batch: dict[str, Tensor], layer: int) -> Tensor:
    """What the heads of a layer write from: (examples, tokens, heads, width)."""
    with torch.no_grad():
        return bridge.run_with_cache(batch["input_ids"])[1][f"blocks.{layer}.attn.hook_z"].detach().clone()


def put(head: int, values: Tensor | float) -> Change:
    """A change that puts values into a head."""

    def change(z: Tensor) -> Tensor:
        z[:, :, head] = values
        return z

    return change


def test_the_whole_model_is_the_same(both: Any) -> None:
    model, task, bridge = both
    for side in (task, task.corrupted):
        assert close(hc.evaluate(model, side).rows[:, 0], read(bridge, side.collate(range(side.size))), 1e-4)


@pytest.mark.parametrize("kind", ["zero", "mean", "counterfactual", "resample"])
def test_ablations_are_those_of_hooks(both: Any, kind: str) -> None:
    model, task, bridge = both
    batch, other = (side.collate(range(task.size)) for side in (task, task.corrupted))
    # of a reference set of one example, that is the one that is drawn: the first prompts turned around
    turned = {"clean": ROWS[0]["corrupted"], "corrupted": ROWS[0]["clean"], "answer": "john", "wrong": "mary"}
    one = hc.task("contrast", [turned], tokenizer=family("gpt2")[1])
    reference = one if kind == "resample" else task.corrupted
    found = hc.ablate(model, task, fill=None if kind == "zero" else Fill(kind, reference))
    for (layer, head), rows in zip(heads(), found.rows, strict=True):
        z = written(bridge, other, layer)[:, :, head]
        values = {"zero": 0.0, "mean": z.mean((0, 1)), "counterfactual": z, "resample": z[:1]}[kind]
        assert close(rows[:, 0], read(bridge, batch, layer, put(head, values)), 1e-4)
    assert np.abs(found.damage).max() > 1e-2


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_patches_are_those_of_hooks(both: Any, direction: str) -> None:
    model, task, bridge = both
    sides = [task.collate(range(task.size)), task.corrupted.collate(range(task.size))]
    source, target = sides if direction == "denoising" else sides[::-1]
    found = hc.patch(model, task, "heads", direction=direction)
    for (layer, head), values in zip(heads(), found.values, strict=True):
        patched = put(head, written(bridge, source, layer)[:, :, head])
        assert close(values, read(bridge, {**task.collate(range(task.size)), **target}, layer, patched), 1e-4)
