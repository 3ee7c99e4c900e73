"""What people name when they are asked for a model: each is loaded, or answered in one sentence with what to do."""

from __future__ import annotations

import copy
import json
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.gguf_files import write_gguf
from helpers.same import close, same_weights

import headcount as hc
from headcount.data.encoding import loaded_tokenizer
from headcount.errors import BadCheckpoint, LoadingNote
from headcount.model.loading import adapters, configs, signpost
from headcount.model_files import check_weights, model_files

Make = Callable[[Path], Any]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _saved(folder: Path, name: str = "bert", dtype: torch.dtype = torch.float32) -> tuple[Any, zoo.Inputs]:
    model, inputs = zoo.build(name, dtype)
    model.save_pretrained(folder)
    return model, inputs


def _touch(*names: str, content: bytes = b"x") -> Make:
    def make(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    return make


# -- number formats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config_says", [True, False])
def test_half_precision_is_loaded_as_float32_and_saved_as_it_was(
    dtype: torch.dtype, config_says: bool, tmp_path: Path
) -> None:
    _saved(tmp_path / "half", dtype=dtype)
    path = tmp_path / "half" / "config.json"
    config = json.loads(path.read_text())
    assert config.pop("dtype") == str(dtype).removeprefix("torch.")
    if not config_says:
        path.write_text(json.dumps(config))
    model, stored = hc.load(tmp_path / "half"), hc.load(tmp_path / "half", dtype="auto")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.dtype for p in stored.parameters()} == {dtype}
    assert same_weights(model, {name: value.float() for name, value in stored.state_dict().items()})
    for subject in (model, stored):
        hc.cut(subject, "0:1 1.mlp:0-9")
    folders = [hc.save(subject, tmp_path / str(n)) for n, subject in enumerate((model, stored))]
    assert {p.dtype for p in model.parameters()} == {torch.float32}, "saving changes nothing"
    first, second = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert first == second
    assert json.loads((folders[0] / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


def test_a_chosen_format_or_place_is_taken(tmp_path: Path) -> None:
    _saved(tmp_path / "half", dtype=torch.float16)
    assert hc.load(tmp_path / "half", dtype=torch.bfloat16).dtype == torch.bfloat16
    assert hc.load(tmp_path / "half", device_map="meta").dtype == torch.float16
    assert hc.load(tmp_path / "half", device_map="cpu").dtype == torch.float32
    double, _ = _saved(tmp_path / "double", dtype=torch.float64)
    assert hc.load(tmp_path / "double").dtype == torch.float64
    hc.cut(double, "0:1")
    assert hc.load(hc.save(double, tmp_path / "cut")).dtype == torch.float64


def test_what_was_trained_since_loses_no_digit(tmp_path: Path) -> None:
    _saved(tmp_path / "half", dtype=torch.float16)
    model = hc.load(tmp_path / "half")
    with torch.no_grad():
        next(model.parameters()).mul_(1 + 2**-20)
    again = hc.load(hc.save(model, tmp_path / "trained"), dtype="auto")
    assert again.dtype == torch.float32
    assert same_weights(again, model.state_dict())


# -- what a name stands for ----------------------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[Make, str, str]] = {
    "nothing": (lambda folder: None, "", "is an empty folder"),
    "weights alone": (_touch("model.safetensors"), "", "copy the config.json"),
    "tokenizer alone": (_touch("tokenizer.json"), "", "has a tokenizer and no config.json"),
    "onnx": (_touch("model.onnx"), "", "give the model that it was exported from"),
    "tensorflow": (_touch("tf_model.h5"), "", "from_tf"),
    "diffusers": (_touch("model_index.json", "unet/config.json"), "", "diffusers"),
    "a run folder": (_touch("run.json", "scores.json"), "", "is a run folder"),
    "a folder of folders": (_touch("epoch-1/config.json", "notes.txt"), "", "epoch-1"),
    "the hub's own cache": (_touch("snapshots/abc/config.json", "refs/main"), "", "snapshots"),
    "something else": (_touch("thesis.tex"), "", "it holds thesis.tex"),
    "a text": (_touch("notes.txt"), "notes.txt", "no model that I can read"),
    "pickled tensors": (_touch("best.pt"), "best.pt", "save_pretrained"),
    "weights by themselves": (_touch("x.safetensors"), "x.safetensors", "without a config.json"),
    "not gguf": (_touch("model.gguf", content=b"nothing"), "model.gguf", "does not begin as a GGUF file"),
    "a pointer": (_touch("model.gguf", content=b"version https://git-lfs.github.com"), "model.gguf", "git lfs pull"),
    "a part": (_touch("m-00001-of-00002.gguf", content=b"GGUF"), "m-00001-of-00002.gguf", "--merge"),
    "two gguf files": (_touch("a.Q4.gguf", "a.Q8.gguf", content=b"GGUF"), "", "a.Q4.gguf"),
    "no base": (_touch("adapter_config.json", content=b"{}"), "", "base_model_name_or_path"),
    "damaged adapter": (_touch("adapter_config.json", content=b"{"), "", "not valid JSON"),
    "a list as adapter": (_touch("adapter_config.json", content=b"[]"), "", "JSON object"),
    "no transformer": (_touch("modules.json", content=b"[]"), "", "without a transformer"),
    "modules outside": (_touch("modules.json", content=b'[{"path": "../.."}]'), "", "without a transformer"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "inside", "words"), ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_model_gets_a_useful_answer(make: Make, inside: str, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "subject"
    folder.mkdir()
    make(folder)
    for weights in (True, False):
        with says(BadCheckpoint, about=words):
            hc.load(folder / inside, weights=weights)


def test_a_base_that_is_not_here_is_named(tmp_path: Path) -> None:
    _touch("adapter_config.json", content=b'{"base_model_name_or_path": "./nowhere", "peft_type": "LORA"}')(tmp_path)
    with says(BadCheckpoint, about="is an adapter (LORA) for ./nowhere"):
        hc.load(tmp_path)


def test_a_typo_gets_the_nearest_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("minilm-sst2", "minilm-mnli", "thesis"):
        (tmp_path / name).mkdir()
    with says(BadCheckpoint, about="minilm-sst2") as caught:
        hc.load(tmp_path / "minilm-ss2")
    assert "thesis" not in str(caught.value)
    (tmp_path / "minilm-sst2" / "epoch-1").mkdir()
    with says(BadCheckpoint, about="minilm-sst2/epoch-1"):
        hc.load(tmp_path / "MiniLM-sst2x" / "epoch-1")
    with says(BadCheckpoint, about="give a model folder"):
        hc.load(tmp_path / "quite" / "another")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(configs, "_can_reach_hub", lambda: False)
    with says(BadCheckpoint, about="nearest here: minilm-sst2"):
        hc.load("minilm-sst22")


HUB = {
    "offline": ("LocalEntryNotFoundError", "cannot be asked for it from here"),
    "not found": ("RepositoryNotFoundError", "no public model of that name"),
    "gated": ("GatedRepoError", "accept its terms"),
    "no config": ("RemoteEntryNotFoundError", "has no config.json"),
}


@pytest.mark.parametrize(("kind", "words"), HUB.values(), ids=HUB)
def test_offline_is_told_from_not_found(kind: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers
    from huggingface_hub import errors

    cause_class = getattr(errors, kind)

    def fail(*_: Any, **__: Any) -> Any:
        cause = cause_class.__new__(cause_class)
        raise OSError("We couldn't do it") from cause

    monkeypatch.setattr(configs, "_can_reach_hub", lambda: True)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fail)
    with says(BadCheckpoint, about=words):
        hc.load("owner/name", weights=False)


def test_without_a_way_to_the_hub_it_is_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    for name in configs.PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    files = model_files("owner/name")
    assert configs.hub_keywords(files, {}) == {"local_files_only": True}
    assert configs.hub_keywords(files, {"local_files_only": False}) == {"local_files_only": False}
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    assert configs.hub_keywords(files, {"revision": "x"}) == {"revision": "x"}


def test_a_file_of_a_model_folder_stands_for_the_folder(tmp_path: Path) -> None:
    model, _ = _saved(tmp_path / "whole")
    for name in ("config.json", "model.safetensors"):
        assert same_weights(hc.load(tmp_path / "whole" / name), model.state_dict())


# -- weights -------------------------------------------------------------------------------------------------------------


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "code ran"))


def test_of_a_pickle_only_tensors_are_read(tmp_path: Path) -> None:
    model, inputs = _saved(tmp_path / "bin")
    (tmp_path / "bin" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    again = hc.load(tmp_path / "bin")
    assert close(zoo.output(again, inputs), zoo.output(model, inputs))
    assert "weights_only" in model_files(tmp_path / "bin").notes[0]
    hc.cut(again, "0:1")
    assert not list(hc.save(again, tmp_path / "cut", source=tmp_path / "bin").glob("*.bin"))
    torch.save({**model.state_dict(), "evil": _Evil(tmp_path / "ran")}, tmp_path / "bin" / "pytorch_model.bin")
    with says(BadCheckpoint, about="does not load"):
        hc.load(tmp_path / "bin")
    assert not (tmp_path / "ran").exists()


def test_missing_parts_and_pointers_are_named(tmp_path: Path) -> None:
    model, inputs = zoo.build("llama")
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert close(zoo.output(hc.load(tmp_path / "parts"), inputs), zoo.output(model, inputs))
    parts = sorted((tmp_path / "parts").glob("*.safetensors"))
    parts[1].unlink()
    with says(BadCheckpoint, about=parts[1].name):
        hc.load(tmp_path / "parts")
    assert len(hc.find(hc.load(tmp_path / "parts", weights=False))) == 4, "a look at it needs no weights"
    _saved(tmp_path / "pointer")
    _touch("model.safetensors", content=b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")(
        tmp_path / "pointer"
    )
    with says(BadCheckpoint, about="git lfs pull"):
        check_weights(model_files(tmp_path / "pointer"))


# -- GGUF ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf")
    return write_gguf(zoo.build("llama")[0], tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_gguf_file_and_its_folder_are_the_model(llama_gguf: Path, tmp_path: Path) -> None:
    model, inputs = zoo.build("llama")
    for name, keywords in ((llama_gguf, {}), (llama_gguf.parent, {}), (llama_gguf.parent, {"gguf_file": "tiny.gguf"})):
        again = hc.load(name, **keywords)
        assert type(again) is type(model)
        assert close(zoo.output(again, inputs), zoo.output(model, inputs))
    hc.cut(again, "0:0-1 1.mlp:0-9")
    folder = hc.save(again, tmp_path / "cut", source=llama_gguf)
    assert not list(folder.glob("*.gguf"))
    assert close(zoo.output(hc.load(folder), inputs), zoo.output(again, inputs))
    text = "a b ab"
    own, theirs = (loaded_tokenizer(name)(text)["input_ids"] for name in (folder, llama_gguf))
    assert own == theirs
    assert len(own) >= 3


def test_a_gguf_file_is_looked_at_without_its_weights(llama_gguf: Path) -> None:
    model, _ = zoo.build("llama")
    with pytest.warns(LoadingNote, match="unpacked"):
        empty = hc.load(llama_gguf, weights=False)
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    assert [(s.name, len(s)) for s in hc.find(empty)] == [(s.name, len(s)) for s in hc.find(model)]


def test_gguf_files_of_another_kind_or_without_the_package_are_answered(
    llama_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_gguf(zoo.build("llama")[0], tmp_path / "other.gguf", "no-such-architecture")
    with says(BadCheckpoint, about="no-such-architecture"):
        hc.load(other)
    cut_off = tmp_path / "cut-off.gguf"
    cut_off.write_bytes(llama_gguf.read_bytes()[:3000])
    with says(BadCheckpoint):
        hc.load(cut_off)
    monkeypatch.setattr(configs, "find_spec", lambda name: None)
    with says(BadCheckpoint, about="headcount[gguf]"):
        hc.load(llama_gguf, weights=False)


# -- adapters ------------------------------------------------------------------------------------------------------------


def _adapter(base: Any, folder: Path, base_name: str, **settings: Any) -> Any:
    """A LoRA adapter with weights that change something, saved; and the model with it on."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    adapted = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(r=2, **settings))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.normal_()
    adapted.peft_config["default"].base_model_name_or_path = base_name
    adapted.save_pretrained(folder)
    return adapted.eval()


def test_an_adapter_is_merged_into_the_model_that_it_names(tmp_path: Path) -> None:
    model, inputs = _saved(tmp_path / "base")
    adapted = _adapter(model, tmp_path / "adapter", str(tmp_path / "base"), target_modules=["query", "value", "dense"])
    with pytest.warns(LoadingNote, match="merged into"):
        merged = hc.load(tmp_path / "adapter")
    assert type(merged) is type(model)
    assert list(merged.state_dict()) == list(model.state_dict())
    assert close(zoo.output(merged, inputs), zoo.output(adapted, inputs))
    assert not close(zoo.output(merged, inputs), zoo.output(model, inputs))
    hc.cut(merged, "0:1")
    folder = hc.save(merged, tmp_path / "cut", source=tmp_path / "adapter")
    assert not list(folder.glob("adapter*")), "or a stock loader would look for the base"
    assert close(zoo.output(hc.load(folder), inputs), zoo.output(merged, inputs))


def test_the_base_may_be_cut_and_lie_beside_the_adapter(tmp_path: Path) -> None:
    model, inputs = zoo.build("bert")
    hc.cut(model, "0:1 1.mlp:0-9")
    hc.save(model, tmp_path / "home" / "base")
    adapted = _adapter(model, tmp_path / "home", "base", target_modules=["query", "value"])
    merged = hc.load(tmp_path / "home")
    assert hc.removed(merged) == hc.removed(model)
    assert close(zoo.output(merged, inputs), zoo.output(adapted, inputs))


def test_an_adapter_brings_its_head(tmp_path: Path) -> None:
    import transformers

    masked, inputs = _saved(tmp_path / "base")
    transformers.BertModel(masked.config).save_pretrained(tmp_path / "base")
    classifier = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    adapted = _adapter(
        classifier, tmp_path / "adapter", str(tmp_path / "base"), target_modules=["query"], task_type="SEQ_CLS"
    )
    empty, merged = hc.load(tmp_path / "adapter", weights=False), hc.load(tmp_path / "adapter")
    assert type(empty) is type(merged) is type(classifier)
    assert close(merged(**inputs).logits, adapted(**inputs).logits)
    assert merged.config.num_labels == 3
    masked.save_pretrained(tmp_path / "base")  # it has no pooler, and nor has the adapter
    with says(BadCheckpoint, about="drawn at random"):
        hc.load(tmp_path / "adapter")


def test_adapters_that_cannot_be_merged_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _saved(tmp_path / "base")
    for kind, words in (("PROMPT_TUNING", "cannot be merged"), ("LORA", "is that the model")):
        settings = {"base_model_name_or_path": str(tmp_path / "base"), "peft_type": kind}
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "adapter_config.json").write_text(json.dumps(settings))
        assert len(hc.find(hc.load(tmp_path / kind, weights=False))) == 4
        if kind == "LORA":
            pytest.importorskip("peft")
        with says(BadCheckpoint, about=words):
            hc.load(tmp_path / kind)
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    with says(BadCheckpoint, about="headcount[adapters]"):
        hc.load(tmp_path / "LORA")


# -- sentence-transformers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["0_Transformer", ""])
def test_of_a_sentence_transformers_folder_it_is_the_transformer(inner: str, tmp_path: Path) -> None:
    folder = tmp_path / "embedder"
    model, inputs = _saved(folder / inner)
    _touch("tokenizer.json", content=b"{}")(folder / inner)
    _touch("1_Pooling/config.json", content=b"{}")(folder)
    modules = [
        {"idx": 0, "name": "0", "path": inner, "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    again = hc.load(folder)
    assert close(zoo.output(again, inputs), zoo.output(model, inputs))
    assert len(hc.find(hc.load(folder, weights=False))) == 4
    hc.cut(again, "0:1")
    cut = hc.save(again, tmp_path / "cut", source=folder)
    assert {"modules.json", "tokenizer.json", "1_Pooling", "config.json"} <= {path.name for path in cut.iterdir()}
    assert not (cut / "0_Transformer").exists()
    assert [row["path"] for row in json.loads((cut / "modules.json").read_text())] == ["", "1_Pooling"]
    assert close(zoo.output(hc.load(cut), inputs), zoo.output(again, inputs))


# -- the sign on cut folders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "units"), [("bert", "0:1"), ("llama", "0:0-3"), ("minicpm3", "layers:1")])
def test_stock_loaders_name_headcount(name: str, units: str, tmp_path: Path) -> None:
    import transformers

    model, inputs = zoo.build(name)
    hc.cut(model, units)
    folder = hc.save(model, tmp_path / "cut")
    assert signpost.needs_headcount(folder)
    for kind in (type(model), transformers.AutoModel):
        with pytest.raises(ValueError, match=r"headcount\.load"):
            kind.from_pretrained(folder)
    again = hc.load(folder)
    assert close(zoo.output(again, inputs), zoo.output(model, inputs))
    again.save_pretrained(tmp_path / "by hand")
    assert close(zoo.output(hc.load(tmp_path / "by hand"), inputs), zoo.output(model, inputs))


def test_pipelines_name_headcount_and_take_what_it_loads(tmp_path: Path) -> None:
    import transformers

    model, _ = zoo.build("bert")
    hc.cut(model, "0:1")
    folder = hc.save(model, tmp_path / "cut")
    with pytest.raises(ValueError, match=r"headcount\.load"):
        transformers.pipeline("fill-mask", model=str(folder))


def test_folders_without_the_sign_and_with_a_stock_config_load_as_ever(tmp_path: Path) -> None:
    import transformers

    model, inputs = zoo.build("bert")
    hc.cut(model, "0:1")
    old = hc.save(model, tmp_path / "old")
    path = old / "config.json"
    config = json.loads(path.read_text())
    assert config.pop(signpost.KEY)
    path.write_text(json.dumps(config))  # as it was written before
    assert close(zoo.output(hc.load(old), inputs), zoo.output(model, inputs))
    model, inputs = zoo.build("bert")
    hc.cut(model, "layers:1")
    portable = hc.save(model, tmp_path / "portable", portable=True)
    assert not signpost.needs_headcount(portable)
    stock = transformers.BertForMaskedLM.from_pretrained(portable)
    assert close(zoo.output(stock.eval(), inputs), zoo.output(model, inputs))
