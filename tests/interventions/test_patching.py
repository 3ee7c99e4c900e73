"""Patching is what plain hooks do one example at a time; everything patched is the other prompt, nothing is the own one."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers.contrasts import FAMILIES, ROWS, family, small_gpt2, words_tokenizer
from helpers.processes import forked
from helpers.same import alike, close
from helpers.small_models import ran, ran_json
from torch import nn

import headcount as hc
from headcount.documents.interventions.patch import PatchDocument
from headcount.errors import BadData, BadPlan
from headcount.interventions import patching as patching_module
from headcount.interventions.patches import At, residual_patches
from headcount.runs import Run

WRITERS = {"gpt2": "transformer.h.{}.attn.c_proj", "llama": "model.layers.{}.self_attn.o_proj",
           "bert": "bert.encoder.layer.{}.attention.output.dense"}  # fmt: skip
MLPS = {"gpt2": "transformer.h.{}.mlp.c_proj", "llama": "model.layers.{}.mlp.down_proj",
        "bert": "bert.encoder.layer.{}.output.dense"}  # fmt: skip
LAYERS = {"gpt2": "transformer.h.{}", "llama": "model.layers.{}", "bert": "bert.encoder.layer.{}"}


def first(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else value[0]


def seen(model: nn.Module, module: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """What a module is given first in a pass over some tokens."""
    found: list[torch.Tensor] = []

    def hook(_: Any, args: Any, kwargs: Any) -> None:
        found.append((args or tuple(kwargs.values()))[0].clone())

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    with torch.no_grad():
        model(input_ids=ids)
    handle.remove()
    return found[0]


def by_hooks(
    model: nn.Module, task: Any, module: nn.Module, columns: slice, positions: Any = None, noising: bool = False
) -> np.ndarray:
    """The logit difference of every example, alone and unpadded, with some columns of what a module is given replaced."""
    out = []
    for number in range(task.size):
        sides = task.collate([number]), task.corrupted.collate([number])
        source, into = sides[::-1] if noising else sides
        length = int(into["attention_mask"].sum())
        where = slice(None) if positions is None else positions(into, source, length)
        given = seen(model, module, source["input_ids"][:, :length])

        def hook(_: Any, args: Any, kwargs: Any, given: torch.Tensor = given, where: Any = where) -> Any:
            name = None if args else next(iter(kwargs))
            x = (args[0] if args else kwargs[name]).clone()
            x[:, where, columns] = given[:, where, columns]
            return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, name: x})

        handle = module.register_forward_pre_hook(hook, with_kwargs=True)
        with torch.no_grad():
            logits = model(input_ids=into["input_ids"][:, :length]).logits[0, int(into["at"])]
        handle.remove()
        right, wrong = ([int(one) for one in into[side][0] if one >= 0] for side in ("right", "wrong"))
        out.append(float(logits[right].mean() - logits[wrong].mean()))
    return np.array(out)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest) -> tuple[str, nn.Module, Any]:
    model, tokenizer, rows = family(request.param)
    return request.param, model, hc.task("contrast", rows, tokenizer=tokenizer, batch_size=3)


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_heads_are_patched_as_by_plain_hooks(case: Any, direction: str) -> None:
    name, model, task = case
    found = hc.patch(model, task, direction=direction)
    assert len(found.names) == 8
    for number in range(8):
        layer, head = divmod(number, 4)
        writer = model.get_submodule(WRITERS[name].format(layer))
        want = by_hooks(model, task, writer, slice(8 * head, 8 * head + 8), noising=direction == "noising")
        assert close(found.values[number], want, 1e-4), found.names[number]
    assert not close(found.values[0], found.values[1], 1e-3)


POSITIONS = {
    "last": lambda into, source, length: slice(int(into["at"]), int(into["at"]) + 1),
    "differing": lambda into, source, length: (into["input_ids"] != source["input_ids"])[0, :length],
    "2": lambda into, source, length: slice(2, 3),
    "-2:": lambda into, source, length: slice(length - 2, length),
    "1:-1": lambda into, source, length: slice(1, length - 1),
}


@pytest.mark.parametrize("at", POSITIONS)
def test_positions_are_counted_without_padding(case: Any, at: str) -> None:
    name, model, task = case
    found = hc.patch(model, task, "mlps", at=at)
    for layer in (0, 1):
        writer = model.get_submodule(MLPS[name].format(layer))
        assert close(found.values[layer], by_hooks(model, task, writer, slice(None), POSITIONS[at]), 1e-4)


def test_the_residual_stream_is_patched_as_by_plain_hooks(case: Any) -> None:
    name, model, task = case
    found = hc.patch(model, task, "residual")
    shortest = min(task.lengths)
    assert len(found.names) == 2 * (shortest + 1)
    for patch, values in zip(found.patches, found.values, strict=True):
        block = model.get_submodule(LAYERS[name].format(patch.layer))

        def where(into: Any, source: Any, length: int, spot: str = patch.at.name) -> slice:
            if spot == "earlier":
                return slice(0, length - shortest)
            return slice(length + int(spot), length + int(spot) + 1)

        assert close(values, by_hooks(model, task, block, slice(None), where), 1e-4), patch.name


def added(model: nn.Module, block: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """What a layer adds to the stream in a pass over some tokens."""
    found: list[torch.Tensor] = []

    def hook(_: Any, args: Any, kwargs: Any, output: Any) -> None:
        found.append(first(output) - (args or tuple(kwargs.values()))[0])

    handle = block.register_forward_hook(hook, with_kwargs=True)
    with torch.no_grad():
        model(input_ids=ids)
    handle.remove()
    return found[0]


def test_a_layer_is_patched_by_what_it_adds(case: Any) -> None:
    name, model, task = case
    found = hc.patch(model, task, "layers")
    for layer in (0, 1):
        block, want = model.get_submodule(LAYERS[name].format(layer)), []
        for number in range(task.size):
            clean, corrupted = (side.collate([number]) for side in (task, task.corrupted))
            length = int(clean["attention_mask"].sum())
            more = added(model, block, clean["input_ids"][:, :length])

            def hook(_: Any, args: Any, kwargs: Any, output: Any, more: torch.Tensor = more) -> Any:
                value = (args or tuple(kwargs.values()))[0] + more
                return value if isinstance(output, torch.Tensor) else (value, *output[1:])

            handle = block.register_forward_hook(hook, with_kwargs=True)
            with torch.no_grad():
                logits = model(input_ids=corrupted["input_ids"][:, :length]).logits[0, int(corrupted["at"])]
            handle.remove()
            right, wrong = ([int(one) for one in clean[side][0] if one >= 0] for side in ("right", "wrong"))
            want.append(float(logits[right].mean() - logits[wrong].mean()))
        assert close(found.values[layer], np.array(want), 1e-4)


METRICS = ["logit-difference", "probability-difference", "kl", "accuracy", "loss"]


@pytest.mark.parametrize("metric", METRICS)
def test_everything_patched_is_clean_and_nothing_is_corrupted(case: Any, metric: str) -> None:
    """Everything is the whole stream before the first layer; nothing is a plan without units."""
    _, model, task = case
    task = task.with_metric(metric)
    task = hc.data.contrast.with_reference(task, model) if metric == "kl" else task
    clean, corrupted = (
        np.asarray(one.metric.per_example(one.rows))
        for one in (hc.evaluate(model, task), hc.evaluate(model, task.corrupted))
    )
    found = hc.patch(model, task, {"nothing": hc.Plan()})
    assert close(found.clean, clean, 1e-4)
    assert close(found.corrupted, corrupted, 1e-4)
    assert close(found.values[0], corrupted, 1e-4)
    (row,) = found.rows(resamples=50)
    # what rounding leaves, over a difference of a thousandth or more
    assert row.normalised == pytest.approx(0, abs=0.02)
    assert row.comparison.metric == metric
    assert row.comparison.difference == pytest.approx(0, abs=1e-4)
    assert not close(clean, corrupted, 1e-3) or metric == "accuracy"
    anatomy = hc.find(model)
    (lowest, *_) = residual_patches(anatomy, task.lengths)
    everything = [replace(lowest, at=At("all"), name="everything")]
    for direction, want in (("denoising", clean), ("noising", corrupted)):
        sweep = patching_module._Sweep(model, anatomy, task, everything, direction, True, 2**30)
        with torch.no_grad():
            assert close(patching_module._measured(sweep, None, None)["patched"][0], want, 1e-4)


def test_replayed_and_ordinary_passes_give_the_same(case: Any) -> None:
    _, model, task = case
    for units in ("heads", "neurons", "attentions", "layers", "kv-groups", "residual"):
        fast, slow = (hc.patch(model, task, units, replay=replay) for replay in (True, False))
        assert close(fast.values, slow.values, 1e-4), units
        assert close(fast.values, hc.patch(model, task, units, batch_size=1, memory=1).values, 1e-4), units
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_normalised_values_intervals_and_tests_are_those_of_loops(case: Any) -> None:
    _, model, task = case
    found = hc.patch(model, task, "attentions")
    gap = found.clean.mean() - found.corrupted.mean()
    assert np.allclose(found.normalised, (found.values.mean(1) - found.corrupted.mean()) / gap)
    draws = np.random.default_rng(12345).integers(0, task.size, size=(1000, task.size))
    gaps = (found.clean - found.corrupted)[draws].mean(1)
    ends = found.intervals()
    if np.quantile(gaps, 0.025) <= 0 <= np.quantile(gaps, 0.975):
        assert ends is None
    else:
        want = [np.quantile((v - found.corrupted)[draws].mean(1) / gaps, [0.025, 0.975]) for v in found.values]
        assert ends is not None
        assert np.allclose(ends, want)
    for row, values in zip(found.rows(), found.values, strict=True):
        assert row.comparison.after == pytest.approx(values.mean())
        assert row.comparison.before == pytest.approx(found.corrupted.mean())
        assert row.comparison.p_holm is not None


def test_what_cannot_be_patched_is_refused() -> None:
    model, tokenizer = small_gpt2(), words_tokenizer()
    task = hc.task("contrast", ROWS, tokenizer=tokenizer)
    with says(BadData, about="needs clean and corrupted prompts"):
        hc.patch(model, hc.task("language-modelling", [{"text": "when mary"}], tokenizer=tokenizer))
    with says(BadPlan, about="denoising or noising"):
        hc.patch(model, task, direction="sideways")
    with says(BadPlan, about="leave at="):
        hc.patch(model, task, "residual", at="last")
    with says(BadPlan, about="2:7 or -3:"):
        hc.patch(model, task, at="middle")
    with says(BadPlan, about="Units to close"):
        hc.patch(model, task, "words")


# --- documents and commands -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("patching")
    small_gpt2().save_pretrained(place / "model")
    words_tokenizer().save_pretrained(place / "model")
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return place


def test_the_document_is_read_as_it_was_written(case: Any) -> None:
    _, model, task = case
    for units in ("heads", "residual"):
        document = hc.patch(model, task, units).document(resamples=100)
        again = PatchDocument.from_json(json.loads(json.dumps(document.to_json())))
        assert again == document
    older = document.to_json()
    for key in ("at", "test"):
        older.pop(key)
    for entry in older["patches"]:
        for key in ("site", "layer", "position", "normalised_low", "normalised_high"):
            entry.pop(key, None)
    assert PatchDocument.from_json(older).patches[0].position is None


def test_the_command_and_its_page(folder: Path, tmp_path: Path) -> None:
    asked = [folder / "model", "--task", "contrast", "--data", folder / "rows.jsonl"]
    done = ran("patch", *asked, "--run", tmp_path / "heads", "--resamples", 100)
    assert "from corrupted (0) to clean (1)" in done.stdout
    task = hc.task("contrast", folder / "rows.jsonl", tokenizer=folder / "model")
    want = hc.patch(small_gpt2(), task)
    heads = json.loads((tmp_path / "heads" / "patch.json").read_text())
    assert alike([one["normalised"] for one in heads["patches"]], want.normalised.tolist(), 1e-3)
    again = ran_json("patch", *asked, "--units", "residual", "--run", tmp_path / "stream", "--resamples", 100)
    assert again["patches"][0]["position"] == "earlier"
    page = hc.report([tmp_path / "heads", tmp_path / "stream"], tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert "Activation patching" in text
    assert "before layer" in text


def test_a_killed_patching_goes_on(folder: Path, tmp_path: Path) -> None:
    """Batches that are done are read back: only the rest is computed, and the answer is the same."""
    model, task = small_gpt2(), hc.task("contrast", folder / "rows.jsonl", tokenizer=folder / "model", batch_size=2)
    want, really, done = hc.patch(model, task), patching_module._batch, list[int]()

    def dying(sweep: Any, numbers: Any) -> Any:
        done.append(len(numbers))
        if len(done) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return really(sweep, numbers)

    def work() -> None:
        patching_module._batch = dying  # type: ignore[assignment]
        with Run.open(tmp_path / "run", {"command": "patch"}) as run:
            hc.patch(model, task, run=run)

    forked(work, tmp_path / "printed").join()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(patching_module, "_batch", lambda *a: (done.append(len(a[1])), really(*a))[1])
        with Run.open(tmp_path / "run", {"command": "patch"}) as run:
            found = hc.patch(model, task, run=run)
    assert done == [2, 1]
    assert close(found.values, want.values)


def test_several_calls_in_one_run_folder_do_not_read_each_other_s_pieces(tmp_path: Path) -> None:
    model, tokenizer, rows = family("gpt2")
    task = hc.task("contrast", rows, tokenizer=tokenizer, batch_size=3)
    calls: list[dict[str, Any]] = [
        {"units": "layers"},
        {"units": "mlps"},
        {"units": "layers", "at": "last"},
        {"units": "layers", "direction": "noising"},
        {"units": "layers", "batch_size": 2},
    ]
    want = [hc.patch(model, task, **call).values for call in calls]
    with Run.open(tmp_path / "run", {"command": "patch"}) as run:
        found = [hc.patch(model, task, run=run, **call).values for call in calls]
        other = hc.patch(model, task.subset([0, 2]), run=run, units="layers")
        again = [hc.patch(model, task, run=run, **call).values for call in calls]
    assert all(close(one, two) for one, two in zip(found, want, strict=True))
    assert other.values.shape[1] == 2
    assert all((one == two).all() for one, two in zip(found, again, strict=True))


def test_in_a_notebook_the_stream_is_a_map_of_layers_by_positions() -> None:
    model, tokenizer, rows = family("gpt2")
    found = hc.patch(model, hc.task("contrast", rows[:3], tokenizer=tokenizer), "residual")
    page = found._repr_html_()
    titles = re.findall(r"<title>(\S+) \S+</title>", page)
    assert titles == [
        f"layers:{layer}:{patch.at.name}" for layer in range(2) for patch in found.patches[: len(titles) // 2]
    ]
    columns = [text for text in re.findall(r'text-anchor="middle" opacity="[^"]*">([^<]+)</text>', page)]
    assert columns == ["earlier", *(str(place) for place in range(-7, 0))]
    assert "columns positions" in page
    assert "columns positions" not in hc.patch(model, hc.task("contrast", rows[:3], tokenizer=tokenizer))._repr_html_()
