"""A cut model survives its folder bit for bit; damaged folders and interrupted saves are answered in one sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import ROUNDING, close, same_weights
from torch import nn

import headcount as hc
from headcount.errors import BadCheckpoint, BadPlan, Refused
from headcount.model import checkpoints

# Family -> what is cut from it: slices of every layout, whole layers, emptied attentions and MLPs, uneven groups.
CUTS = {
    "bert": "0:1,3 1.mlp:0-9",
    "bert emptied": "0:* 1:0-2 1.mlp:*",
    "albert": "0:1 0.mlp:3-7",
    "distilbert": "0:0-1 layers:1",
    "deberta-v2": "0:1-2 1:3",
    "modernbert": "0:2 1.mlp:5 layers:0",
    "longformer": "0:1 1:0,3 layers:0",
    "gpt2": "0:0 1.mlp:0-5 1:3",
    "gpt2 layer": "layers:0 1:2",
    "codegen": "0:1 1.mlp:4",
    "bloom": "0:3 1:0-1",
    "falcon-gqa": "0:0-1 1:1 0.mlp:0",
    "llama": "0:0,2,4,6 1:2-3 0.mlp:7",
    "llama uneven": "0:0 1:2-4,7",
    "llama emptied": "0:* 0.mlp:* 1:0-6",
    "phi3": "0:0-2 1:4-7 1.mlp:1",
    "gemma3_text": "0:1 layers:1",
    "smollm3": "1:3 layers:0",
    "mixtral": "0:5-6 1:0",
    "deepseek_v3": "0:1 1:2-3 1.mlp:0",
    "gpt_oss": "0:0-1 1:5",
    "lfm2": "1:2-3 0.mlp:1",
    "t5": "encoder.0:1 decoder.0.self:0 decoder.1.cross:2-3 decoder.0.mlp:5 encoder.layers:1",
    "t5 first layer": "encoder.layers:0 decoder.layers:0 decoder.1.self:1 encoder.1:3",
    "bart": "encoder.0:1 decoder.1.cross:* decoder.0.mlp:0-3 decoder.layers:0",
    "fsmt": "encoder.0:1 decoder.1.self:0,2 decoder.0.cross:3",
    "bert2bert": "encoder.encoder.layer.0.attention.self:1 decoder.1.cross:2 encoder.encoder.layer:1",
    "vit": "0:1 layers:1",
    "beit": "0:1 1:2-3 0.mlp:4",
    "swin": "0.0:1 1.1:3-5 0.layers:1",
    "clip": "text.0:1 vision.1:0 vision.0.mlp:* text.layers:1",
    "blip": "vision.0:1 text_decoder.1.cross:2",
    "llava": "vision.0:1 language.1:0 language.layers:0",
    "wav2vec2": "0:1 1.mlp:2-5 layers:0",
    "whisper": "encoder.0:1 decoder.1.cross:0-1 decoder.layers:0",
}


def _cut(row: str) -> tuple[Any, zoo.Inputs]:
    model, inputs = zoo.build(row.split()[0])
    hc.cut(model, CUTS[row])
    return model, inputs


def _same(got: nn.Module, want: nn.Module, inputs: zoo.Inputs) -> None:
    """Same class, same tensors by name, dtype and bit, same record, and the same output but for rounding."""
    assert type(got) is type(want)
    mine, yours = got.state_dict(), want.state_dict()
    assert list(mine) == list(yours)
    for name, tensor in yours.items():
        assert mine[name].dtype == tensor.dtype, name
        assert torch.equal(mine[name], tensor), name
    assert [n for n, _ in got.named_parameters()] == [n for n, _ in want.named_parameters()]
    assert sum(p.numel() for p in got.parameters()) == sum(p.numel() for p in want.parameters())
    assert hc.removed(got) == hc.removed(want)
    assert not got.training
    output = zoo.output(want, inputs)
    # many families normalise in float32 whatever their weights are
    assert close(zoo.output(got, inputs), output, ROUNDING[torch.float32] if output.dtype == torch.float64 else None)


def _stock_or_none(kind: Any, folder: Path) -> Any:
    """What a stock loader makes of a folder, or None if it refuses."""
    try:
        return kind.from_pretrained(folder).eval()
    except (RuntimeError, OSError, ValueError, IndexError, AssertionError):
        return None


@pytest.mark.parametrize("row", CUTS)
def test_a_loaded_model_equals_the_saved_one_and_stock_loaders_never_half_load_it(row: str, tmp_path: Path) -> None:
    model, inputs = _cut(row)
    want, before = zoo.output(model, inputs), {name: value.clone() for name, value in model.state_dict().items()}
    folder = hc.save(model, tmp_path / "cut")
    assert same_weights(model, before), "saving changes nothing"
    assert close(zoo.output(model, inputs), want)
    _same(hc.load(folder), model, inputs)
    assert not [path.name for path in folder.rglob("*") if path.suffix not in (".json", ".safetensors")]
    stock = _stock_or_none(type(model), folder)
    assert stock is None or close(zoo.output(stock, inputs), want)
    if any(site.kind == "head" for site in hc.find(model) if len(site) < site.of):
        assert stock is None, "no stock config says that single heads are missing"


@pytest.mark.parametrize(
    ("name", "what"),
    [("modernbert", "layers:0"), ("deepseek_v3", "layers:0"), ("switch_transformers", "encoder.layers:0"),
     ("swin", "0.layers:0"), ("minicpm3", "layers:1"), ("gpt_neo", "layers:0"), ("olmo3", "layers:0"),
     ("bert", "0:*"), ("llama", "0:* 1:*"), ("llama", "0.mlp:0 1.mlp:1")],
)  # fmt: skip
def test_where_layers_behave_by_their_number_stock_loaders_refuse_or_are_right(
    name: str, what: str, tmp_path: Path
) -> None:
    model, inputs = zoo.build(name)
    hc.cut(model, what)
    folder = hc.save(model, tmp_path / "cut")
    _same(hc.load(folder), model, inputs)
    stock = _stock_or_none(type(model), folder)
    assert stock is None or close(zoo.output(stock, inputs), zoo.output(model, inputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("row", ["bert emptied", "llama uneven", "t5", "beit"])
def test_dtypes_are_kept(row: str, dtype: torch.dtype, tmp_path: Path) -> None:
    whole, inputs = zoo.build(row.split()[0], dtype)
    whole.save_pretrained(tmp_path / "whole")
    model = hc.load(tmp_path / "whole", dtype=dtype)  # some keep a few matrices in float32, as a stock loader does
    hc.cut(model, CUTS[row])
    again = hc.load(hc.save(model, tmp_path / "cut"), dtype="auto")
    assert dtype in {p.dtype for p in again.parameters()}
    _same(again, model, inputs)


def test_keywords_go_to_the_stock_loader(tmp_path: Path) -> None:
    model, inputs = _cut("llama uneven")
    folder = hc.save(model, tmp_path / "cut")
    half = hc.load(folder, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert hc.removed(half) == hc.removed(model)
    mapped = hc.load(folder, device_map="cpu", attn_implementation="eager")
    assert close(zoo.output(mapped, inputs), zoo.output(model, inputs))


@pytest.mark.parametrize("row", ["llama", "t5", "gpt2 layer", "minicpm3"])
def test_a_sharded_folder_loads_like_a_whole_one(row: str, tmp_path: Path) -> None:
    if row == "minicpm3":  # its layers scale by their number, which only the name of the weights can say
        model, inputs = zoo.build(row)
        hc.cut(model, "layers:1")
    else:
        model, inputs = _cut(row)
    folder = hc.save(model, tmp_path / "cut", max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    _same(hc.load(folder), model, inputs)
    assert row != "minicpm3" or _stock_or_none(type(model), folder) is None
    sorted(folder.glob("*.safetensors"))[1].unlink()
    with says(BadCheckpoint):
        hc.load(folder)


def test_tied_and_untied_embeddings_stay_so(tmp_path: Path) -> None:
    import transformers

    for tied in (True, False):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**zoo.GQA, tie_word_embeddings=tied)).eval()
        hc.cut(model, "0:0-1 layers:1")
        again = hc.load(hc.save(model, tmp_path / str(tied)))
        assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
        _same(again, model, zoo.text())


def test_several_cuts_leave_the_same_folder_as_one(tmp_path: Path) -> None:
    whole, inputs = zoo.build("llama")
    hc.cut(whole, "0:0,3,5 1:2 1.mlp:0-9 0.mlp:*")
    steps, _ = zoo.build("llama")
    for part in ("1.mlp:3-9", "0:5 1:2", "0:0,3", "0.mlp:5", "0.mlp:0-4,6-47 1.mlp:0-2"):
        hc.cut(steps, part)
    one, many = hc.save(whole, tmp_path / "one"), hc.save(steps, tmp_path / "many")
    assert json.loads((one / "config.json").read_text()) == json.loads((many / "config.json").read_text())
    _same(hc.load(many), whole, inputs)
    again = hc.load(one)
    hc.cut(again, "1:0")
    hc.cut(whole, "1:0")
    _same(hc.load(hc.save(again, tmp_path / "again")), whole, inputs)


def test_a_layer_cut_in_two_steps_equals_one(tmp_path: Path) -> None:
    whole, inputs = zoo.build("blenderbot")
    hc.cut(whole, "decoder.layers:0-1 decoder.2.cross:1")
    steps, _ = zoo.build("blenderbot")
    hc.cut(steps, "decoder.layers:1")
    steps = hc.load(hc.save(steps, tmp_path / "first"))
    hc.cut(steps, "decoder.2.cross:1")
    hc.cut(steps, "decoder.layers:0")
    _same(hc.load(hc.save(steps, tmp_path / "second")), whole, inputs)


def test_what_the_user_saves_himself_can_be_loaded(tmp_path: Path) -> None:
    for row in ("bert", "llama uneven", "t5 first layer", "clip"):
        model, inputs = _cut(row)
        model.save_pretrained(tmp_path / row)
        _same(hc.load(tmp_path / row), model, inputs)


def test_a_folder_that_was_never_cut_loads_as_usual(tmp_path: Path) -> None:
    model, inputs = zoo.build("bert")
    model.save_pretrained(tmp_path / "whole")
    _same(hc.load(tmp_path / "whole"), model, inputs)
    _same(hc.load(str(tmp_path / "whole")), model, inputs)
    _same(hc.load(hc.save(model, tmp_path / "saved")), model, inputs)


def test_an_empty_model_has_the_sizes_and_no_weights(tmp_path: Path) -> None:
    for row in ("llama uneven", "t5 first layer", "beit"):
        model, _ = _cut(row)
        empty = hc.load(hc.save(model, tmp_path / row), weights=False)
        assert all(p.is_meta for p in empty.parameters())
        assert {n: p.shape for n, p in empty.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}
        assert hc.removed(empty) == hc.removed(model)


# -- what goes along with the weights --------------------------------------------------------------------------------


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "heads", "may", "go", "others", "stay"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")


def test_tokenizer_and_generation_settings_are_kept(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    model, _ = _cut("llama")
    model.generation_config = GenerationConfig(max_new_tokens=3, repetition_penalty=1.3, pad_token_id=0)
    folder = hc.save(model, tmp_path / "cut", tokenizer=_tokenizer())
    again = hc.load(folder)
    assert again.generation_config.max_new_tokens == 3
    assert again.generation_config.repetition_penalty == 1.3
    text = ["heads may go", "others stay unknown"]
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == [[2, 3, 4], [5, 6, 1]]


def test_source_brings_everything_but_the_old_model(tmp_path: Path) -> None:
    source = tmp_path / "source"
    model, inputs = zoo.build("bert")
    model.save_pretrained(source)
    _tokenizer().save_pretrained(source)
    extra = {
        "1_Pooling/config.json": '{"pooling_mode_mean_tokens": true}',
        "modules.json": "[]",
        "vocab.txt": "a",
    }
    old = {
        "pytorch_model.bin": "weights",
        "model.safetensors.index.json": "{}",
        "onnx/model.onnx": "weights",
        "flax_model.msgpack": "weights",
        ".cache/x.json": "{}",
        "README.md": "an accuracy that is no longer true",
    }
    for name, content in {**extra, **old}.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(content)
    hc.cut(model, "0:1")
    folder = hc.save(model, tmp_path / "cut", source=source)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {*extra, "tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors"} <= files
    assert not files & {*old}
    assert (folder / "1_Pooling/config.json").read_text() == extra["1_Pooling/config.json"]
    _same(hc.load(folder), model, inputs)


# -- portable --------------------------------------------------------------------------------------------------------

STOCK = """
import sys
sys.modules["headcount"] = None  # importing it fails
import torch, transformers
torch.set_num_threads(1)

def close(a, b):
    return a.shape == b.shape and (a - b).abs().max() <= 1e-5 * max(1, b.abs().max())

for folder in sys.argv[1:]:
    kind, inputs, want, weights = torch.load(folder + "/../" + folder.rsplit("/")[-1] + ".pt")
    inner = transformers.AutoModel.from_pretrained(folder)
    model, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    own = model.state_dict()
    assert own.keys() == weights.keys() and all(torch.equal(own[name], weights[name]) for name in own), folder
    with torch.no_grad():
        assert close(model.eval()(**inputs).logits, want), folder
        base = getattr(model, model.base_model_prefix, None)
        assert base is None or close(inner.eval()(**inputs)[0], base(**inputs)[0]), folder
    print("same")
"""


def test_a_portable_folder_needs_no_headcount(tmp_path: Path) -> None:
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = transformers.LlamaConfig(**{**zoo.GQA, "num_hidden_layers": 3})
        llama = transformers.LlamaForCausalLM(config).eval()
    bert, _ = zoo.build("bert")
    t5, pair = zoo.build("t5")
    cuts = [
        (llama, "0:0,2,4,6 1:* 2:1,3,5,7 layers:1 0.mlp:0-9 2.mlp:20-29", zoo.text()),
        (bert, "0.mlp:0-7 1.mlp:40-47", zoo.text()),
        (t5, "encoder.0.mlp:0 encoder.1.mlp:1 decoder.0.mlp:2 decoder.1.mlp:3", pair),
    ]
    folders, refused = [], []
    for model, what, inputs in cuts:
        hc.cut(model, what)
        folder = tmp_path / type(model).__name__
        own = model.config
        try:
            hc.save(model, folder, portable=True)
        except Refused as error:
            refused.append(str(error))
            continue
        assert model.config is own
        assert "headcount" not in json.loads((folder / "config.json").read_text())
        want = zoo.output(model, inputs)
        torch.save((type(model).__name__, inputs, want, model.state_dict()), f"{folder}.pt")
        folders.append(str(folder))
        again = hc.load(folder)
        assert same_weights(again, model)
        assert close(zoo.output(again, inputs), want)
    done = subprocess.run([sys.executable, "-c", STOCK, *folders], capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["same"] * len(folders), done.stderr[-2000:]
    assert not refused


@pytest.mark.parametrize("name", ["falcon-gqa", "gemma3_text", "deepseek_v2", "t5gemma", "gpt_neox", "mistral", "clip"])
@pytest.mark.parametrize("kind", ["head", "neuron", "layer"])
def test_portable_is_a_promise_that_is_kept_or_refused(name: str, kind: str, tmp_path: Path) -> None:
    """The first head of every group, ten neurons of every MLP, the last layer of every stack."""
    model, inputs = zoo.build(name)
    anatomy = hc.find(model)
    plan = {
        "head": {
            p.name: [0] if p.kv_heads == len(p) else range(0, len(p), len(p) // p.kv_heads) for p in anatomy.heads
        },
        "neuron": {p.name: range(10) for p in anatomy.neurons},
        "layer": {p.name: [1] for p in anatomy.stacks},
    }[kind]
    hc.cut(model, hc.Plan.removing(plan))
    try:
        folder = hc.save(model, tmp_path / "cut", portable=True)
    except Refused:
        assert list(tmp_path.iterdir()) == []
        return
    stock = type(model).from_pretrained(folder).eval()
    assert close(zoo.output(stock, inputs), zoo.output(model, inputs))


@pytest.mark.parametrize(
    ("name", "what"),
    [("bert", "0:1 1:1"), ("bert", "0.mlp:0"), ("llama", "0:0 1:0"), ("llama", "0:0,2,4,6"), ("llama", "0:* 1:*"),
     ("gpt2", "0:0 1:0"), ("beit", "0:0 1:0"), ("t5", "encoder.0:0 encoder.1:0"), ("torch-encoder", "0:1")],
)  # fmt: skip
def test_what_no_stock_config_can_say_is_refused_as_portable(name: str, what: str, tmp_path: Path) -> None:
    model, inputs = zoo.build(name)
    hc.cut(model, what)
    want, before = zoo.output(model, inputs), Fingerprint(model)
    with says(Refused, about="without portable"):
        hc.save(model, tmp_path / "cut", portable=True)
    assert list(tmp_path.iterdir()) == []
    assert not before.changed()
    assert close(zoo.output(model, inputs), want)


# -- damaged folders -------------------------------------------------------------------------------------------------


def _edit(**changes: Any) -> Callable[[Path], None]:
    """Change entries of the record in the config."""

    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["headcount"].update(changes)
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def _config(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return damage


def _truncate(name: str, part: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * part)])

    return damage


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def _other_weights(folder: Path) -> None:
    zoo.build("bert")[0].save_pretrained(folder.parent / "other")
    shutil.copy(folder.parent / "other" / "model.safetensors", folder / "model.safetensors")


def _fewer_tensors(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors.pop(next(name for name in tensors if name.endswith("layer.1.output.dense.weight")))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "weights cut off": _truncate("model.safetensors", 0.6),
    "weights cut off in the header": _truncate("model.safetensors", 0.01),
    "empty weights": _truncate("model.safetensors", 0),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "weights of the whole model": _other_weights,
    "a tensor missing": _fewer_tensors,
    "config cut off": _truncate("config.json", 0.6),
    "empty config": _truncate("config.json", 0),
    "config is not text": _write("config.json", b"\xff\xfe\x00" * 100),
    "config is a list": _write("config.json", b"[1, 2]"),
    "config is a number": _write("config.json", b"3"),
    "config is too deep": _write("config.json", b'{"a":' * 50_000),
    "no config": lambda folder: (folder / "config.json").unlink(),
    "unknown model type": _config(model_type="no-such-model"),
    "no model type": _config(model_type=None),
    "unknown class": _config(architectures=["NoSuchModel"]),
    "a function as class": _config(architectures=["pipeline"]),
    "a config as class": _config(architectures=["BertConfig"]),
    "a number as class": _config(architectures=[3]),
    "a text as classes": _config(architectures="BertForMaskedLM"),
    "another class": _config(architectures=["BertModel"]),
    "another family": _config(architectures=["LlamaForCausalLM"]),
    "an object as classes": _config(architectures={"a": 1}),
    "a list as code": _config(architectures=["NoSuchModel"], auto_map=["x"]),
    "numbers as code": _config(architectures=["NoSuchModel"], auto_map={"a": 3}),
    "no width": _config(hidden_size=0),
    "less than no words": _config(vocab_size=-5),
    "record is text": _config(headcount="0:1"),
    "record is a list": _config(headcount=[1]),
    "record is empty": _config(headcount={}),
    "record of the future": _edit(format=2),
    "plan is a list": _edit(remove=["0:1"]),
    "unknown site": _edit(remove={"7": [1]}),
    "site is a path out": _edit(remove={"../x": [1]}),
    "head out of range": _edit(remove={"0": [4]}),
    "layer out of range": _edit(remove={"layers": [2]}),
    "all layers": _edit(remove={"layers": [0, 1]}),
    "head named twice": _edit(remove={"0": [1, 1]}),
    "head by name and by path": _edit(remove={"0": [1], "bert.encoder.layer.0.attention.self": [1, 2]}),
    "index of the wrong type": _edit(remove={"0": [1.0]}),
    "indices of the wrong type": _edit(remove={"0": {"1": 1}}),
    "huge index": _edit(remove={"0": [10**30]}),
    "wide range": _edit(remove={"0": "0-99999999"}),
    "more heads than were cut": _edit(remove={"0": [1, 2]}),
    "fewer heads than were cut": _edit(remove={}),
    "another head than was cut, in another layer": _edit(remove={"1": [1]}),
    "specs are text": _edit(dialects="wq"),
    "spec is a number": _edit(dialects=[3]),
    "spec without reads": _edit(dialects=[{"writes": ["wo"]}]),
    "spec with numbers": _edit(dialects=[{"reads": [1], "writes": ["wo"]}]),
    "spec of an unknown layout": _edit(dialects=[{"reads": ["q"], "writes": ["o"], "layout": "x"}]),
    "spec with a list as layout": _edit(dialects=[{"reads": ["q"], "writes": ["o"], "layout": ["split"]}]),
    "spec with a list as kind": _edit(dialects=[{"reads": ["q"], "writes": ["o"], "kind": ["head"]}]),
    "spec with a number as condition": _edit(dialects=[{"reads": ["query"], "writes": ["../output.dense"], "when": 3}]),
    "spec with a list as width": _edit(dialects=[{"reads": ["query"], "writes": ["../output.dense"], "width": [8]}]),
    "config values are a list": _edit(config=["num_hidden_layers"]),
    "config values of another name": _edit(config={"vocab_size": 7}),
    "config values that change the heads": _edit(config={"num_attention_heads": 2}),
    "config values that hide": _edit(config={"_attn_implementation": 2}),
    "config values that replace a method": _edit(config={"to_dict": 2}),
    "config values that replace the class": _edit(config={"__class__": 2}),
    "config values of a part that is not there": _edit(config={"text_config.num_hidden_layers": 2}),
    "config values of the wrong type": _edit(config={"num_hidden_layers": "2"}),
    "config values that are true": _edit(config={"num_hidden_layers": True}),
    "config values below zero": _edit(config={"num_hidden_layers": -2}),
    "config values without bound": _edit(config={"num_hidden_layers": 10**9}),
    "config values that make other layers": _edit(config={"num_hidden_layers": 3}),
    "config values of a class": _edit(config={"__class__.num_hidden_layers": 2}),
    "config values of a class of a class": _edit(config={"__class__.__base__.num_hidden_layers": 2}),
    "config values of a method": _edit(config={"to_dict.num_hidden_layers": 2}),
    "config values of a dictionary": _edit(config={"__dict__.num_hidden_layers": 2}),
    "config values of no name": _edit(config={"": 2}),
    "config values that its plan does not explain": _edit(config={"num_hidden_layers": 10_000}),
    "config values that are not a number": _edit(config={"num_hidden_layers": float("nan")}),
    "config values that are endless": _edit(config={"num_hidden_layers": float("inf")}),
    "config values that are a list": _edit(config={"num_hidden_layers": [2, 2]}),
    "ten thousand layers": _edit(config={"num_hidden_layers": 10_000}, remove={"0": [1], "layers": "2-9999"}),
    "a thousand rows of specs": _edit(dialects=[{"reads": ["q"], "writes": ["o"]}] * 1000),
    "spec of a class": _edit(dialects=[{"reads": ["__class__"], "writes": ["o"]}]),
    "spec of a path out of the parent": _edit(dialects=[{"reads": ["q"], "writes": ["../__dict__.x"]}]),
    "spec with a class as width": _edit(dialects=[{"reads": ["q"], "writes": ["o"], "width": "__class__"}]),
    "spec with a huge width": _edit(dialects=[{"reads": ["q"], "writes": ["o"], "width": 10**30}]),
    "spec with a thousand names": _edit(dialects=[{"reads": ["q"] * 1000, "writes": ["o"]}]),
    "record is deep": _edit(why=json.loads("[" * 500 + "]" * 500)),
}  # fmt: skip


# What a model without weights does not show: it is built as the config says.
SEEN_IN_THE_WEIGHTS = {name for name in DAMAGE if "weights" in name or "heads than were" in name}
SEEN_IN_THE_WEIGHTS |= {"a tensor missing", "another class", "head by name and by path"}
SEEN_IN_THE_WEIGHTS |= {"another head than was cut, in another layer"}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a bert without its head 0:1."""
    model, _ = zoo.build("bert")
    hc.cut(model, "0:1")
    return hc.save(model, tmp_path_factory.mktemp("good") / "cut")


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_one_sentence_and_leaves_nothing_behind(name: str, good: Path, tmp_path: Path) -> None:
    from transformers import BertForMaskedLM

    folder = tmp_path / "cut"
    shutil.copytree(good, folder)
    DAMAGE[name](folder)
    init = BertForMaskedLM.__init__
    with says(BadCheckpoint, BadPlan) as caught:
        hc.load(folder)
    if name not in SEEN_IN_THE_WEIGHTS:
        with says(BadCheckpoint, BadPlan):
            hc.load(folder, weights=False)
    assert "above report" not in str(caught.value), "a sentence that stands alone"
    assert BertForMaskedLM.__init__ is init
    hc.load(good)
    assert BertForMaskedLM.__init__ is init


HARMFUL = {
    "__class__.num_hidden_layers": 1,  # in both, the first value is good and must not be set either
    "__class__.__init__.num_hidden_layers": 1,
    "to_dict.num_hidden_layers": 1,
    "num_hidden_layers": 10_000,
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_record_is_refused_before_anything_is_changed_or_built(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertConfig, BertForMaskedLM

    model, _ = zoo.build("bert")
    hc.cut(model, "layers:1")
    folder = hc.save(model, tmp_path / "cut")
    record = json.loads((folder / "config.json").read_text())["headcount"]["config"]
    assert record == {"num_hidden_layers": 2}
    _edit(config={**record, name: HARMFUL[name]})(folder)

    def built(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was built by a record that is no good")

    before, config = {kind: dict(vars(kind)) for kind in BertConfig.__mro__[:-1]}, BertConfig.from_pretrained(folder)
    monkeypatch.setattr(BertForMaskedLM, "__init__", built)
    with says(BadPlan, about=f"wants to set '{name}'"):
        hc.load(folder)
    with says(BadPlan):
        checkpoints.restore_config(config, config.headcount)
    assert config.num_hidden_layers == 1
    assert {kind: dict(vars(kind)) for kind in before} == before


def test_a_record_of_ten_thousand_layers_is_refused_before_they_are_built() -> None:
    model, _ = zoo.build("bert")
    record = {**hc.Plan.of("layers:2-9999").to_json(), "config": {"num_hidden_layers": 10_000}}
    with says(BadPlan, about="more than any model has"):
        checkpoints.restore_config(model.config, record)
    assert model.config.num_hidden_layers == 2


@pytest.mark.parametrize("name", ["num_attention_heads", "pad_token_id", "type_vocab_size"])
def test_a_record_changes_nothing_in_the_config_but_layers(name: str, tmp_path: Path) -> None:
    model, _ = zoo.build("bert")
    hc.cut(model, "0.mlp:1")
    folder = hc.save(model, tmp_path / "cut")
    _edit(config={name: 2})(folder)
    with says(BadPlan, about=name):
        hc.load(folder)


@pytest.mark.parametrize(
    "damage", ["weights cut off", "empty weights", "no weights", "unknown class", "a config as class"]
)
def test_a_damaged_folder_that_was_never_cut_is_one_sentence_too(damage: str, tmp_path: Path) -> None:
    model, _ = zoo.build("bert")
    model.save_pretrained(tmp_path / "whole")
    DAMAGE[damage](tmp_path / "whole")
    with says(BadCheckpoint):
        hc.load(tmp_path / "whole")


@pytest.mark.parametrize("reader", [hc.load, partial(hc.load, weights=False)])
def test_what_is_no_model_folder_is_one_sentence(reader: Callable[[Any], Any], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name in (tmp_path / "empty", tmp_path / "none", tmp_path / "file", "./none", "no/such-model-here", ""):
        with says(BadCheckpoint):
            reader(name)


@pytest.mark.parametrize("row", ["bert", "t5 first layer", "clip"])
def test_the_constructor_is_the_classes_own_after_loading(row: str, tmp_path: Path) -> None:
    model, _ = _cut(row)
    kind = type(model)
    before = vars(kind).get("__init__"), kind.__init__
    folder = hc.save(model, tmp_path / "cut")
    hc.load(folder)
    hc.load(folder, weights=False)
    assert (vars(kind).get("__init__"), kind.__init__) == before
    fresh, _ = zoo.build(row.split()[0])
    assert not hc.removed(fresh)


# -- models without a config -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torch-encoder", "torch-transformer", "timm-vit", "torchvision-vit"])
def test_a_model_without_a_config_is_filled_into_a_fresh_one(name: str, tmp_path: Path) -> None:
    model, inputs = zoo.build(name)
    first = hc.find(model)
    hc.cut(model, f"{first.heads[0].name}:1 {first.heads[1].name}:* {first.neurons[0].name}:3 {first.stacks[0].name}:1")
    folder = hc.save(model, tmp_path / "cut")
    fresh = zoo.ZOO[name].make()
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    _same(hc.load(folder, into=fresh), model, inputs)
    assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items()), "into is not touched"
    with says(BadCheckpoint, about="into"):
        hc.load(folder)


def _drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


PLAIN_DAMAGE: dict[str, Callable[[Path], Any]] = {
    "weights cut off": _truncate("model.safetensors", 0.6),
    "empty weights": _truncate("model.safetensors", 0),
    "no weights": _drop("model.safetensors"),
    "record cut off": _truncate("headcount.json", 0.6),
    "record is a list": _write("headcount.json", b"[]"),
    "no record": _drop("headcount.json"),
    "another plan": _write("headcount.json", b'{"format": 1, "remove": {"1": [1]}}'),
    "unknown site": _write("headcount.json", b'{"format": 1, "remove": {"9": [1]}}'),
    "out of range": _write("headcount.json", b'{"format": 1, "remove": {"0": [9]}}'),
}


@pytest.mark.parametrize("damage", PLAIN_DAMAGE.values(), ids=PLAIN_DAMAGE)
def test_a_damaged_folder_without_a_config_is_one_sentence(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    model, _ = zoo.build("torch-encoder")
    hc.cut(model, "0:1")
    folder = hc.save(model, tmp_path / "cut")
    damage(folder)
    with says(BadCheckpoint, BadPlan):
        hc.load(folder, into=zoo.ZOO["torch-encoder"].make())


def test_a_fresh_model_of_another_kind_is_one_sentence(tmp_path: Path) -> None:
    model, _ = zoo.build("torch-encoder")
    hc.cut(model, "0:1")
    folder = hc.save(model, tmp_path / "cut")
    for other in ("torch-decoder", "torch-transformer", "timm-vit"):
        with says(BadCheckpoint, BadPlan):
            hc.load(folder, into=zoo.ZOO[other].make())
    with says(BadCheckpoint, BadPlan):
        hc.load(folder, into=nn.Linear(3, 3))
