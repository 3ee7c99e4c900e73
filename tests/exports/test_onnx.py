"""Graphs: any cut exports, gives what the model gives at any size, and runs where neither torch nor transformers is."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.same import close, same_weights
from helpers.small_models import WEATHER, classifier, word_tokenizer
from torch import Tensor, nn

import headcount as hc
from headcount.efficiency.random_inputs import has_length, random_batch
from headcount.errors import BadCheckpoint, CheckFailed, Refused
from headcount.exports import export
from headcount.exports.formats import Settings
from headcount.exports.graphs import comparison, folder, tracing
from headcount.model.model_folders import may_be_written

pytest.importorskip("transformers.exporters")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
onnx_graph = importlib.import_module("headcount.exports.onnx_graph")
pytestmark = pytest.mark.exact  # graphs are traced, and the mode of shaken digits would be traced with them
ROUNDING = 1e-5  # of the largest output: float32, two kernels, two layers

UNEVEN = "0:0-2 1:* 0.mlp:3"
CUTS = [
    ("onnx", "bert", "0:0-1 1:* 0.mlp:0-20 1.mlp:*"),
    pytest.param("onnx", "distilbert", "layers:0 1:1 1.mlp:5-40", marks=pytest.mark.slow),
    pytest.param("onnx", "mpnet", "0:0,3 1:* 1.mlp:*", marks=pytest.mark.slow),
    pytest.param("onnx", "deberta-v2", "0:0-1 1.mlp:*", marks=pytest.mark.slow),
    ("onnx", "llama", UNEVEN),
    pytest.param("onnx", "gpt2", "0:0 1:0-2 0.mlp:*", marks=pytest.mark.slow),
    ("onnx", "vit", "0:0-1 1:* 1.mlp:0-9"),
    ("onnx", "marian", "encoder.0:1 decoder.0.self:* decoder.1.cross:0-4 encoder.1.mlp:*"),
    ("openvino", "llama", UNEVEN),
]


def cut_model(name: str, plan: str) -> nn.Module:
    model, _ = zoo.build(name)
    hc.cut(model, plan)
    return model


def batches(model: nn.Module) -> list[dict[str, Tensor]]:
    """Sizes that the export has not seen; the second example of each is padded."""
    made = []
    for size, length in ((1, 4), (3, 9), (5, 20), (4, 13)):
        batch = random_batch(model, size, length if has_length(model) else None, seed=length)
        if size > 1 and "attention_mask" in batch:
            batch["attention_mask"][1, length // 3 :] = 0
        made.append(batch)
    return made


def in_runtime(folder: Path, batch: dict[str, Tensor]) -> np.ndarray:
    """The first output of an exported graph, by the runtime's own interface."""
    if (folder / "model.onnx").is_file():
        session = ort.InferenceSession(str(folder / "model.onnx"))
        return session.run(None, {one.name: batch[one.name].numpy() for one in session.get_inputs()})[0]
    openvino = pytest.importorskip("openvino")
    graph = openvino.Core().compile_model(
        str(folder / "openvino_model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return graph({one.any_name: batch[one.any_name].numpy() for one in graph.inputs})[0]


def apart(got: np.ndarray, wanted: Tensor, batch: dict[str, Tensor]) -> float:
    """The largest difference over the largest output, where nothing is padding."""
    assert got.shape == tuple(wanted.shape)
    there = wanted.numpy()
    mask = batch.get("attention_mask")
    if mask is not None and "decoder_input_ids" not in batch and got.shape[:2] == tuple(mask.shape):
        got, there = got[mask.numpy() == 1], there[mask.numpy() == 1]
    return float(np.abs(got - there).max() / np.abs(there).max())


@pytest.mark.parametrize(("to", "name", "plan"), CUTS)
def test_any_cut_gives_what_the_model_gives_at_any_size(to, name, plan, tmp_path) -> None:
    if to == "openvino":
        pytest.importorskip("openvino")
    model = cut_model(name, plan)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    first = zoo.output(model, batches(model)[1])
    exported = export(model, to, tmp_path / "graph")
    assert exported.check.difference <= ROUNDING
    assert to in exported.check.runtime or "onnxruntime" in exported.check.runtime
    for batch in batches(model):
        assert apart(in_runtime(tmp_path / "graph", batch), zoo.output(model, batch), batch) <= ROUNDING
    # and the model is as it was: its weights, its code, what it computes
    assert same_weights(before, model)
    assert not any("forward" in vars(module) for module in model.modules())
    assert close(zoo.output(model, batches(model)[1]), first)


def test_cutting_more_changes_the_graph_and_what_is_wrong_is_seen() -> None:
    """The comparison sees a graph of another cut: one head less."""
    model, other = cut_model("bert", "0:0"), cut_model("bert", "0:0-1")

    def run(batch: dict[str, Any]) -> dict[str, np.ndarray]:
        return {"logits": zoo.output(other, {k: torch.from_numpy(v) for k, v in batch.items()}).numpy()}

    found = comparison.compared(model, run, ["input_ids", "attention_mask"], batches(model))
    assert found.largest > 100 * comparison.ALLOWED
    assert found.root_mean_square > 0.01


def test_a_graph_that_is_wrong_gets_no_name(tmp_path, monkeypatch) -> None:
    really = onnx_graph._write_graph

    def wrong(model: nn.Module, inputs: Any, path: Path) -> list[str]:
        other, _ = zoo.build("bert")
        hc.cut(other, "1:*")
        return really(other, inputs, path)

    monkeypatch.setattr(onnx_graph, "_write_graph", wrong)
    model, _ = zoo.build("bert")
    with pytest.raises(CheckFailed, match="differ from the model's"):
        export(model, "onnx", tmp_path / "graph")
    with pytest.raises(Refused, match="before anything is rounded"):
        export(model, "onnx", tmp_path / "graph", int8=True)
    assert list(tmp_path.iterdir()) == []


# -- eight bits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [pytest.param("onnx", marks=pytest.mark.slow), "openvino"])
def test_eight_bits_are_smaller_and_say_what_they_change(to, tmp_path) -> None:
    if to == "openvino":
        pytest.importorskip("openvino")
    model = cut_model("llama", UNEVEN)
    exported = export(model, to, tmp_path / "graph", int8=True)
    check = exported.check
    assert 1e-4 < check.difference < check.allowed == comparison.ALLOWED_INT8
    assert any("largest entry is the same one" in note for note in check.notes)
    assert any("instead of" in note for note in exported.notes)
    batch = batches(model)[2]
    assert 1e-4 < apart(in_runtime(tmp_path / "graph", batch), zoo.output(model, batch), batch) < 0.3
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    if to == "onnx":
        assert int8_values(tmp_path / "graph" / "model.onnx") >= 0.9 * weights
    else:
        assert (tmp_path / "graph" / "openvino_model.bin").stat().st_size < 2 * weights  # four bytes each before
    assert json.loads((tmp_path / "graph" / "config.json").read_text())["headcount_export"]["int8"] is True


def int8_values(path: Path) -> int:
    import onnx

    tensors = onnx.load(path).graph.initializer
    return sum(int(np.prod(one.dims)) for one in tensors if one.data_type == onnx.TensorProto.INT8)


def test_a_model_that_eight_bits_ruin_is_not_written(tmp_path) -> None:
    """A column of weights a thousand times larger than the rest takes all steps of its scale."""
    model = classifier(layers=1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight[:, 0] *= 300
                module.weight[0] *= 300
    with pytest.raises(CheckFailed, match="root mean squares"):
        export(model, "onnx", tmp_path / "graph", int8=True)
    assert list(tmp_path.iterdir()) == []


# -- run.py --------------------------------------------------------------------------------------------------------------

ALONE = """
import runpy, sys
for name in ("torch", "transformers", "headcount"):
    sys.modules[name] = None  # importing it fails
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def ran_alone(folder: Path, *texts: str) -> list[Any]:
    """What run.py prints where torch, transformers and headcount cannot be imported."""
    code = ALONE.replace(
        "runpy.run_path", f"sys.argv[1:] = [{str(folder / 'run.py')!r}, *sys.argv[1:]]\nrunpy.run_path"
    )
    code = code.replace("sys.argv[1],", "sys.argv.pop(1),")
    done = subprocess.run([sys.executable, "-I", "-c", code, *texts], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


TEXTS = ("warm1 cold2 warm5 warm3 unheard", "cold0")


def tokens(tokenizer: Any, text: str) -> dict[str, Tensor]:
    return dict(tokenizer(text, return_tensors="pt", return_token_type_ids=False))


@pytest.mark.parametrize("to", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_run_py_gives_labels_and_probabilities(to, tmp_path) -> None:
    if to == "openvino":
        pytest.importorskip("openvino")
    tokenizer = word_tokenizer(WEATHER)
    model = classifier(layers=1, id2label={0: "cold", 1: "mild", 2: "warm"}, label2id={"cold": 0, "mild": 1, "warm": 2})
    hc.cut(model, "0:1-2")
    export(model, to, tmp_path / "graph", tokenizer=tokenizer)
    found = ran_alone(tmp_path / "graph", *TEXTS)
    for text, said in zip(TEXTS, found, strict=True):
        shares = zoo.output(model, tokens(tokenizer, text)).softmax(-1)[0].tolist()
        assert list(said) == ["cold", "mild", "warm"]
        assert np.allclose(list(said.values()), shares, atol=2e-6)  # six digits are printed


def test_run_py_gives_the_mean_of_an_encoder(tmp_path) -> None:
    from transformers import BertConfig, BertModel

    tokenizer = word_tokenizer(WEATHER)
    model = BertModel(BertConfig(**zoo.ENCODER)).eval()
    hc.cut(model, "0:1-2 1:*")
    export(model, "onnx", tmp_path / "graph", tokenizer=tokenizer)
    for text, said in zip(TEXTS, ran_alone(tmp_path / "graph", *TEXTS), strict=True):
        with torch.no_grad():
            wanted = model(**tokens(tokenizer, text)).last_hidden_state[0].mean(0)
        assert np.allclose(said, wanted.numpy(), atol=1e-5)


def test_run_py_goes_on_with_a_text_as_generate_does(tmp_path) -> None:
    tokenizer = word_tokenizer(WEATHER)
    model = cut_model("llama", UNEVEN)
    export(model, "onnx", tmp_path / "graph", tokenizer=tokenizer)
    said = ran_alone(tmp_path / "graph", *TEXTS)
    for text, found in zip(TEXTS, said, strict=True):
        given = tokens(tokenizer, text)
        room = 40 - given["input_ids"].shape[1] + 1  # of the model's positions; the last token needs none
        made = model.generate(**given, max_new_tokens=room, do_sample=False)[0, given["input_ids"].shape[1] :]
        assert found == tokenizer.decode(made, skip_special_tokens=True)


def test_a_tokenizer_that_tokenizers_alone_reads_otherwise_leaves_no_script(tmp_path) -> None:
    class Shouting:
        """A tokenizer that does more than its file says."""

        model_input_names = ("input_ids",)
        model_max_length = 16

        def save_pretrained(self, folder: Path) -> None:
            word_tokenizer(WEATHER).save_pretrained(folder)

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [1, *word_tokenizer(WEATHER)(text)["input_ids"]]}

    model, _ = zoo.build("bert")
    notes = folder.write_beside(model, tmp_path, {"input_ids": None}, source=None, tokenizer=Shouting(), int8=False)
    assert "no run.py" in notes[0]
    assert not (tmp_path / "run.py").exists()


def test_the_script_is_fixed_text(tmp_path) -> None:
    model, _ = zoo.build("bert")
    folder.write_beside(
        model, tmp_path, {"input_ids": None}, source=None, tokenizer=word_tokenizer(WEATHER), int8=False
    )
    assert (tmp_path / "run.py").read_bytes() == folder.SCRIPT.read_bytes()


# -- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "f16"}, "use f32, or int8"),
        ({"multiple": 32}, "leave it out"),
        ({"tensor_parallel": 2}, "leave it out"),
    ],
)
def test_what_says_nothing_about_a_graph_is_refused(options, words, tmp_path) -> None:
    model, _ = zoo.build("bert")
    with says(Refused, about=words):
        export(model, "onnx", tmp_path / "graph", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_plain_module_is_refused(tmp_path) -> None:
    model, _ = zoo.build("torch-encoder")
    with pytest.raises(Refused, match="no model of transformers"):
        export(model, "onnx", tmp_path / "graph", batch={"src": torch.ones(1, 2)})


def test_what_cannot_be_traced_is_refused_with_the_exporters_reason(tmp_path) -> None:
    model, _ = zoo.build("bert")
    model.bert.encoder.register_forward_hook(lambda module, given, out: float(out[0].sum()) and None)
    with says(Refused, about="its exporter fails with") as caught:
        export(model, "onnx", tmp_path / "graph")
    assert "export it for transformers" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_size_that_the_exporter_fixed_is_refused() -> None:
    model, _ = zoo.build("bert")
    tracing.moving_axes(model, {"input_ids": [], "pixel_values": [1, 2, 3]}, "onnx")
    with pytest.raises(Refused, match="fixes the number of examples of attention_mask"):
        tracing.moving_axes(model, {"input_ids": [], "attention_mask": [0]}, "onnx")
    with pytest.raises(Refused, match="fixes the length of input_ids"):
        tracing.moving_axes(model, {"input_ids": [1]}, "onnx")


@pytest.mark.parametrize("module", ["transformers.exporters", "onnxscript", "onnxruntime"])
def test_what_is_not_installed_is_named(module, tmp_path, monkeypatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == module else there(name, *a))
    model, _ = zoo.build("bert")
    with says(BadCheckpoint, about="install"):
        export(model, "onnx", tmp_path / "graph")


def test_a_batch_that_the_graph_does_not_read_is_said() -> None:
    model, _ = zoo.build("bert")
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(BadCheckpoint, match="The batch has position_ids"):
        comparison._complete(model, ["input_ids"], {"input_ids": ids, "position_ids": ids})
    with pytest.raises(BadCheckpoint, match="has no decoder_input_ids"):
        comparison._complete(model, ["input_ids", "decoder_input_ids"], {"input_ids": ids})
    whole = comparison._complete(model, ["input_ids", "attention_mask", "token_type_ids"], {"input_ids": ids})
    assert whole["attention_mask"].tolist() == [[1, 1, 1]]
    assert whole["token_type_ids"].tolist() == [[0, 0, 0]]


# -- small things --------------------------------------------------------------------------------------------------------


def test_half_precision_is_exported_in_float32_and_the_file_does_not_tell_where_it_was_made(tmp_path) -> None:
    model = classifier(layers=1).to(torch.bfloat16)
    exported = export(model, "onnx", tmp_path / "graph")
    assert exported.check.difference <= ROUNDING
    assert model.dtype == torch.bfloat16
    written = (tmp_path / "graph" / "model.onnx").read_bytes()
    assert b".py" not in written
    assert str(Path(inspect.getfile(hc)).parent.parent).encode() not in written


def test_weights_beyond_two_gigabytes_lie_beside_the_graph(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(onnx_graph, "LARGEST", 1000)
    model = classifier(layers=1)
    export(model, "onnx", tmp_path / "graph")
    names = {path.name for path in (tmp_path / "graph").iterdir()}
    assert names == {"model.onnx", "model.onnx.data", "config.json", "export.json"}
    batch = batches(model)[1]
    assert apart(in_runtime(tmp_path / "graph", batch), zoo.output(model, batch), batch) <= ROUNDING
    for weights in (True, False):
        with says(BadCheckpoint, about="give the model that it was exported from"):
            hc.load(tmp_path / "graph", weights=weights)
    may_be_written(tmp_path / "graph", force=True)  # such a folder is ours to replace


@pytest.mark.parametrize(
    ("settings", "probabilities"),
    [
        ({"num_labels": 3}, "softmax"),
        ({"num_labels": 1}, "none"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, "sigmoid"),
    ],
)
def test_how_scores_become_probabilities_is_read_off_the_config(settings, probabilities) -> None:
    how = folder._how_to_run(classifier(layers=1, **settings), None, word_tokenizer(WEATHER))
    assert (how["task"], how["probabilities"], how["max_length"]) == ("classify", probabilities, 16)


def test_a_model_for_generating_says_where_texts_end() -> None:
    model, _ = zoo.build("llama")
    how = folder._how_to_run(model, None, None)
    assert (how["task"], how["end"], how["max_length"], how["positions"]) == ("generate", [2], 40, 40)


def test_limits_name_nothing_for_any_cut() -> None:
    assert onnx_graph.limits(cut_model("llama", UNEVEN), Settings()) == []


def test_a_damaged_graph_is_one_sentence(tmp_path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with says(BadCheckpoint, about="onnxruntime cannot load model.onnx"):
        onnx_graph.runner(tmp_path / "model.onnx")
