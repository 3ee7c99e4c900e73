"""Attribution patching is a hand loop over prompts, a finite difference and, of a linear model, the exact patch."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers.contrasts import FAMILIES, ROWS, family
from helpers.hand_patching import MODELS, contrast, difference, inputs_of, layers, projection, second, with_input
from helpers.language import saved
from helpers.same import alike, close
from helpers.small_models import ran_json
from torch import Tensor, nn

import headcount as hc
from headcount.errors import BadPlan, Refused
from headcount.importance.attribution import patch_check
from headcount.runs import Run


def by_hand(model: nn.Module, task: Any, module: Any, shares: tuple[float, ...] = (1.0,)) -> Tensor:
    """(clean - corrupted) times the mean gradient at what each layer's module is given: (examples, columns of all layers)."""
    rows = []
    for number in range(task.size):
        ends = task.corrupted.collate([number]), task.collate([number])
        rows.append(torch.cat([of_writer(model, module(layer), ends, shares) for layer in layers(model)]))
    return torch.stack(rows)


def of_writer(model: nn.Module, writer: nn.Module, ends: tuple[Any, Any], shares: tuple[float, ...]) -> Tensor:
    first = layers(model)[0]
    corrupted, clean = (inputs_of(first, partial(difference, model, end)) for end in ends)
    other, own = (inputs_of(writer, partial(difference, model, end)) for end in ends)
    gradient = torch.zeros_like(own)
    for share in shares:
        added = torch.zeros_like(own, requires_grad=True)

        def begin(_: nn.Module, args: Any, share: float = share) -> Any:
            return (corrupted + share * (clean - corrupted), *args[1:])

        def add(x: Tensor, added: Tensor = added) -> Tensor:
            return x + added

        handle = first.register_forward_pre_hook(begin)
        with_input(writer, add, partial(difference, model, ends[1])).backward()
        handle.remove()
        assert added.grad is not None
        gradient += added.grad / len(shares)
    return ((own - other) * gradient).sum((0, 1))


def per_unit(columns: Tensor, width: int) -> np.ndarray:
    return columns.unflatten(-1, (-1, width)).sum(-1).detach().double().numpy()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("by", "shares"), [("attribution-patching", (1.0,)), ("eap-ig", (1 / 3, 2 / 3, 1.0))])
def test_heads_and_neurons_are_hand_loops(name: str, by: str, shares: tuple[float, ...]) -> None:
    model, task = contrast(name)
    how = {"steps": 3} if by == "eap-ig" else {}
    heads = hc.score(model, task, by=by, **how)
    assert close(heads.samples, per_unit(by_hand(model, task, projection, shares), 8), 1e-4)
    assert close(heads.raw, heads.samples.mean(0))
    neurons = hc.score(model, task, by=by, units="neurons", **how)
    assert close(neurons.raw, by_hand(model, task, second, shares).mean(0).detach().double().numpy(), 1e-4)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("units", ["heads", "neurons", "layers"])
def test_attribution_patching_is_the_derivative_of_the_patch(name: str, units: str) -> None:
    """Central differences of the exact patch, a hundredth of the way: float32 rounds them by about 1e-4."""
    from headcount.importance.attribution.exact import patched
    from headcount.importance.attribution.pairs import Pair, ready

    model, tokenizer, rows = family(name)
    task = hc.task("contrast", rows, tokenizer=tokenizer)
    scores = hc.score(model, task, by="attribution-patching", units=units)
    anatomy = hc.find(model)
    parts = [anatomy[site] for site in scores.kinds]
    pair, step = Pair(task, model, tuple(range(task.size))), 0.01
    with ready(model), torch.no_grad():
        ends = [pair.recorded(batch, parts) for batch in (pair.clean, pair.corrupted)]
        for place in (0, len(scores) // 2, len(scores) - 1):
            unit, sides = scores.units[place], []
            for way in (step, -step):
                moved = {spot: value + way * (ends[1][spot] - value) for spot, value in ends[0].items()}
                with patched(anatomy, hc.Plan(frozenset({unit})), moved):
                    sides.append(float(pair.values(pair.clean).double().mean()))
            assert close(np.array([scores.raw[place]]), np.array([(sides[1] - sides[0]) / (2 * step)]), 2e-3)


def linear_model() -> nn.Module:
    """A GPT-2 whose logits are a linear function of its embeddings."""
    model: Any = family("gpt2")[0]
    for layer in model.transformer.h:
        layer.ln_1, layer.ln_2, layer.mlp.act = nn.Identity(), nn.Identity(), nn.Identity()
        with torch.no_grad():
            layer.attn.c_attn.weight[:, :64] = 0  # all positions are attended to alike
    model.transformer.ln_f = nn.Identity()
    return model


@pytest.mark.parametrize("by", ["attribution-patching", "eap-ig"])
@pytest.mark.parametrize("units", ["heads", "layers"])
def test_of_a_linear_model_both_are_the_exact_patch(by: str, units: str) -> None:
    _, task = contrast("gpt2")
    model = linear_model()
    check = patch_check(model, task, hc.score(model, task, by=by, units=units))
    assert close(np.array(check.estimated), np.array(check.exact), 1e-4)
    assert close(np.array([check.spearman, check.high]), np.ones(2))


@pytest.mark.parametrize("name", MODELS)
def test_exact_patches_are_hand_loops(name: str) -> None:
    model, task = contrast(name)
    check = patch_check(model, task, hc.score(model, task, by="attribution-patching"))
    want = []
    for number in range(task.size):
        clean, corrupted = task.collate([number]), task.corrupted.collate([number])
        row = []
        for layer in layers(model):
            writer = projection(layer)
            other = inputs_of(writer, lambda c=corrupted: difference(model, c))
            for head in range(4):
                columns = slice(8 * head, 8 * head + 8)

                def change(x: Tensor, columns: slice = columns, other: Tensor = other) -> Tensor:
                    x = x.clone()
                    x[..., columns] = other[..., columns]
                    return x

                patched = with_input(writer, change, lambda c=clean: difference(model, c))
                row.append(float(difference(model, clean) - patched))
        want.append(row)
    assert close(np.array(check.exact), np.array(want).mean(0), 1e-4)
    assert check.low <= check.spearman <= check.high


def test_a_sample_is_drawn_by_seed_and_its_interval_is_over_units_too() -> None:
    model, task = contrast("gpt2")
    scores = hc.score(model, task, by="eap-ig", units="neurons")
    checks = [patch_check(model, task, scores, 5, seed=seed) for seed in (0, 0, 1)]
    assert checks[0].names == checks[1].names
    assert close(np.array(checks[0].exact), np.array(checks[1].exact), 1e-4)
    assert checks[0].names != checks[2].names
    assert len(checks[0].names) == 5
    assert checks[0].of == len(scores)
    assert "5 of" in checks[0].text


def test_kv_groups_add_up_their_heads_and_less_is_better_turns_the_sign() -> None:
    model, task = contrast("llama")
    heads = hc.score(model, task, by="eap-ig")
    groups = hc.score(model, task, by="eap-ig", units="kv-groups")
    assert close(groups.raw, heads.raw.reshape(-1, 2).sum(1))
    loss = task.with_metric("loss")
    check = patch_check(model, loss, hc.score(model, loss, by="eap-ig", steps=40))
    assert np.corrcoef(check.estimated, check.exact)[0, 1] > 0  # damage in both


def test_batches_make_no_difference_and_a_run_finds_its_pieces(tmp_path: Path) -> None:
    model, task = contrast("llama")
    one = hc.score(model, task, by="eap-ig", batch_size=1)
    with Run.open(tmp_path / "run", {"a": 1}) as run:
        kept = hc.score(model, task, by="eap-ig", run=run)
        assert close(one.raw, kept.raw, 1e-4)
        again = hc.score(model, task, by="eap-ig", run=run)
        assert np.array_equal(kept.raw, again.raw)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_what_cannot_be_attributed_is_refused_in_a_sentence() -> None:
    model, task = contrast("gpt2")
    with says(BadPlan, about="compares clean prompts with corrupted ones"):
        hc.score(model, hc.custom_task([{"x": torch.zeros(2)}], loss=lambda m, b: b["x"]), by="eap-ig")
    with says(BadPlan, about="accuracy has none"):
        hc.score(model, task.with_metric("accuracy"), by="attribution-patching")
    with says(BadPlan, about="takes none: leave steps out"):
        hc.score(model, task, by="taylor", steps=3)
    with says(BadPlan, about="at least 1 step"):
        hc.score(model, task, by="eap-ig", steps=0)
    with says(BadPlan, about="at least 2 units"):
        patch_check(model, task, hc.score(model, task, by="eap-ig"), 1)


def test_a_model_without_one_stack_has_attribution_patching_only() -> None:
    from dataclasses import replace

    from headcount.importance.attribution.pairs import first_layer

    model, _ = contrast("gpt2")
    with says(Refused, about="score by attribution-patching"):
        first_layer(replace(hc.find(model), stacks=()))


@pytest.mark.parametrize("name", MODELS)
def test_eap_ig_is_complete_at_the_embeddings(name: str) -> None:
    """All paths begin at the embeddings: what is attributed to them is the whole difference, but for O(1/steps)."""
    from headcount.importance.attribution.pairs import Pair, ready
    from headcount.importance.attribution.units import Method, along

    model, task = contrast(name)
    anatomy = hc.find(model)
    pair, total = Pair(task, model, tuple(range(task.size))), 0.0
    method = Method("eap-ig", 200)
    with ready(model):
        drop = pair.stream(pair.clean, anatomy) - pair.stream(pair.corrupted, anatomy)
        for start, values in along(pair, anatomy, method):
            values.sum().backward()
            assert start is not None
            total = total + (start.grad * drop).sum((1, 2)).double() / 200
        with torch.no_grad():
            want = (pair.values(pair.clean) - pair.values(pair.corrupted)).double()
    assert close(total, want, 0.1)
    assert float(want.abs().max()) > 0.5


def test_the_command_scores_checks_and_says_so(tmp_path: Path) -> None:
    _, tokenizer, _ = family("llama")
    folder = saved(tmp_path / "model", tokenizer, vocab_size=32)
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    common = [str(folder), "--task", "contrast", "--data", str(data), "--by", "eap-ig", "--steps", "3"]
    found = ran_json("score", *common, "--check", "5", "-o", str(tmp_path / "run"))
    assert len(found["patching"]["names"]) == 5
    model, task = contrast("llama")
    assert alike(found["sites"]["0"]["raw"], hc.score(model, task, by="eap-ig", steps=3).raw[:4].tolist(), 1e-3)
