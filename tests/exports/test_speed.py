"""`bench --runtime`: what is timed is the export in its runtime, and what is counted is the model. Nothing here is timed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import says
from helpers.small_decoders import byte_tokenizer, decoder
from helpers.small_models import classifier, ran, ran_json
from torch import nn

import headcount as hc
from headcount.cli.text import bench_text
from headcount.efficiency import contention
from headcount.efficiency.benchmark import Bench, Runtime, Time, bench
from headcount.efficiency.random_inputs import random_batch
from headcount.errors import BadMeasure
from headcount.exports import speed

HERE = Path(__file__).parent


def pair() -> dict[str, nn.Module]:
    whole = classifier(layers=1)
    smaller = copy.deepcopy(whole)
    hc.cut(smaller, "0:0-1 0.mlp:0-23")
    return {"whole": whole, "smaller": smaller}


class Diary:
    """A clock that says 4 seconds for calls of the first model and 2 for those of others, and what they were called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.made = 0

    def runtime(self, *names: str) -> Runtime:
        def calls() -> dict[str, Any]:
            self.made += 1
            return {name: lambda _name=name, **batch: self.calls.append((_name, batch)) for name in names}

        return Runtime("a runtime 1.0", "int8", dict.fromkeys(names, 1234), calls)

    def clock(self, call: Any, device: torch.device) -> Time:
        call()
        seconds = 4.0 if self.calls[-1][0] == "whole" else 2.0
        return Time(seconds, seconds)


def test_the_runtime_is_timed_and_the_model_is_counted() -> None:
    models, diary = pair(), Diary()
    in_torch = bench(models, batch_sizes=[2], lengths=[6], repeats=3)
    found = bench(
        models, batch_sizes=[2], lengths=[6], repeats=3, clock=diary.clock, runtime=diary.runtime("whole", "smaller")
    )
    assert [row.flops for row in found.rows] == [row.flops for row in in_torch.rows]
    assert [row.limit for row in found.rows] == [row.limit for row in in_torch.rows]
    assert found.rows[1].ratio == 2.0
    assert [row.peak_memory for row in found.rows] == [None, None], "what a runtime holds is not known"
    assert [subject.bytes for subject in found.models] == [1234, 1234]
    assert (found.runtime, found.dtype, diary.made) == ("a runtime 1.0", "int8", 1)
    names = [name for name, _ in diary.calls]
    assert names.count("whole") == names.count("smaller") == 3 + 2 + 1, "in turns, after two looks and one to warm up"
    wanted = random_batch(models["whole"], 2, 6)
    assert all(torch.equal(batch["input_ids"], wanted["input_ids"]) for _, batch in diary.calls)
    assert "a runtime 1.0" in bench_text(found)
    assert "a runtime 1.0" in str(found)


def test_a_runtime_is_remade_with_one_thread_where_others_disturb(monkeypatch) -> None:
    """The processor time of one thread is compared in sessions that have one thread."""
    seen = []
    models, diary = pair(), Diary()
    runtime = diary.runtime("whole", "smaller")

    def calls() -> Any:
        seen.append(torch.get_num_threads())
        return runtime.calls()

    monkeypatch.setattr("headcount.efficiency.in_turns.is_busy", lambda share: True)
    monkeypatch.setattr("headcount.efficiency.benchmark.SHORTEST", 1e-6)
    with contention.threads(2):
        found = bench(models, batch_sizes=[1], lengths=[4], repeats=2, runtime=runtime._replace(calls=calls))
    assert seen == [2, 1]
    assert all(row.disturbed and row.work is not None for row in found.rows)


def test_the_runtime_is_a_field_that_older_files_do_not_have() -> None:
    old = json.loads((HERE.parent / "documents" / "old" / "bench.json").read_text(encoding="utf-8"))
    read = Bench.from_json(old, "bench.json")
    assert read.runtime == "torch"
    assert "runtime" not in read.to_json()
    changed = Bench.from_json({**old, "runtime": "openvino 2026.4"}, "bench.json")
    assert Bench.from_json(changed.to_json(), "bench.json").runtime == "openvino 2026.4"


def test_eight_bits_of_torch_are_copies_that_compute_alike() -> None:
    models = pair()
    with speed.runtime_for(models, "torch", int8=True) as runtime:
        assert runtime is not None
        batch = random_batch(models["whole"], 3, 7)
        for name, call in runtime.calls().items():
            with torch.no_grad():
                got, wanted = call(**batch).logits, models[name](**batch).logits
            assert not torch.equal(got, wanted)
            assert (got - wanted).abs().max() < 0.2 * wanted.abs().max()
        linear = sum(m.weight.numel() for m in models["whole"].modules() if isinstance(m, nn.Linear))
        every = sum(p.numel() for p in models["whole"].parameters())
        # one byte for each weight of a linear layer, four for the others, and their biases, which lie with them
        biases = sum(m.bias.numel() for m in models["whole"].modules() if isinstance(m, nn.Linear))
        rest = every - linear - biases
        assert runtime.sizes["whole"] in range(linear + 4 * rest, linear + 4 * rest + 2000)
    assert all(parameter.dtype == torch.float32 for model in models.values() for parameter in model.parameters())
    with speed.runtime_for(models) as runtime:
        assert runtime is None


@pytest.mark.parametrize("name", ["onnxruntime", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_call_of_a_runtime_gives_what_the_model_gives(name) -> None:
    pytest.importorskip("transformers.exporters")
    pytest.importorskip(name)
    models = {"smaller": pair()["smaller"]}
    with speed.runtime_for(models, name) as runtime:
        assert runtime is not None
        assert name in runtime.name
        assert runtime.sizes["smaller"] > 4 * sum(p.numel() for p in models["smaller"].parameters())
        batch = random_batch(models["smaller"], 3, 7)
        got = torch.from_numpy(runtime.calls()["smaller"](**batch)["logits"])
        with torch.no_grad():
            wanted = models["smaller"](**batch).logits
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize(
    ("name", "words"), [("vllm", "vllm bench throughput --model"), ("onnx", "torch, onnxruntime, openvino, llama.cpp")]
)
def test_what_cannot_be_measured_is_said_in_one_sentence(name, words) -> None:
    with says(BadMeasure, about=words), speed.runtime_for(pair(), name):
        pass


def test_a_model_on_another_device_is_not_measured_elsewhere() -> None:
    with (
        says(BadMeasure, about="--device cpu"),
        speed.runtime_for({"empty": classifier(layers=1).to("meta")}, "openvino"),
    ):
        pass


def test_the_command_measures_in_the_runtime_and_shows_it_again(tmp_path) -> None:
    pytest.importorskip("transformers.exporters")
    pytest.importorskip("onnxruntime")
    names = [str(hc.save(model, tmp_path / name)) for name, model in pair().items()]
    words = ["bench", *names, "--runtime", "onnxruntime", "--batch-size", "2", "--length", "6", "--repeats", "2"]
    said = ran_json(*words, "-o", tmp_path / "run")
    assert said["runtime"].startswith("onnxruntime")
    assert [row["model"] for row in said["rows"]] == names
    assert all(row["examples_per_second"] > 0 for row in said["rows"])
    again = ran(*words, "-o", tmp_path / "run")
    assert "onnxruntime" in again.output
    assert "measured on" in again.output


@pytest.mark.parametrize("more", [["--compile"], ["--dtype", "bfloat16"], ["--device", "cuda"]])
def test_flags_that_are_torchs_do_not_go_with_a_runtime(more) -> None:
    done = ran("bench", "a", "b", "--runtime", "openvino", *more)
    assert done.exit_code == 2
    assert "--runtime" in done.output


def test_a_runtime_that_is_not_there_leaves_no_run(tmp_path) -> None:
    with says(BadMeasure, about="vllm bench throughput"):
        ran("bench", "a", "b", "--runtime", "vllm", "-o", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("int8", [False, True])
def test_llama_cpp_measures_a_model_with_uneven_groups_and_widths_and_says_what_was_added(int8, tmp_path) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("xllamacpp")
    model = decoder("llama", hidden_size=64, intermediate_size=96)
    hc.cut(model, "1:0 2.mlp:0-2")
    hc.save(model, tmp_path / "smaller", tokenizer=byte_tokenizer())
    sources = {"smaller": str(tmp_path / "smaller")}
    with speed.runtime_for({"smaller": model}, "llama.cpp", int8=int8, sources=sources) as runtime:
        assert runtime is not None
        assert any("smaller as gguf: the groups of 1 attention were made even" in note for note in runtime.notes)
        assert any("3 neurons of zeros are added" in note for note in runtime.notes) == int8
        assert len(runtime.calls()["smaller"](torch.arange(5, 12)[None])) == 1


def test_llama_cpp_that_is_not_installed_is_asked_for_before_anything_is_exported(monkeypatch) -> None:
    monkeypatch.setattr("headcount.exports.llama_cpp.runtime.is_installed", lambda: False)
    with says(BadMeasure, about="pip install xllamacpp"), speed.runtime_for(pair(), "llama.cpp"):
        pass
