"""Models whose weights stay in their files: the same numbers, the same folders to the byte, one tensor in memory at a time."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.gguf_files import write_gguf
from helpers.same import close, same_weights
from helpers.small_models import ran
from torch import Tensor, nn

import headcount as hc
from headcount.errors import BadCheckpoint, Refused
from headcount.model.loading import lazy_files
from headcount.model.loading.lazy_tensors import Lazy, is_lazy, real

from .test_checkpoints import CUTS

SMALL = "20KB"  # of a file of weights, so that there are several


def stored(row: str, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A folder with the model of a family, in several files."""
    return hc.save(zoo.build(row.split()[0], dtype)[0], folder, max_shard_size=SMALL)


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def smaller(model: nn.Module, units: Any, folder: Path, **how: Any) -> dict[str, bytes]:
    """The files of what a model is once these units are cut."""
    hc.cut(model, units, **how)
    return files(hc.save(model, folder, max_shard_size=SMALL))


@pytest.mark.parametrize("row", list(CUTS))
def test_what_is_cut_tensor_by_tensor_is_the_same_folder_byte_for_byte(row: str, tmp_path: Path) -> None:
    folder = stored(row, tmp_path / "whole")
    want = smaller(hc.load(folder), CUTS[row], tmp_path / "want")
    model = hc.load(folder, lazy=True)
    got = smaller(model, CUTS[row], tmp_path / "got")
    assert list(got)
    assert got.keys() == want.keys()
    assert [name for name in want if got[name] != want[name]] == []
    # what makes positions or biases itself is not in the files
    assert all(isinstance(p, Lazy) for p in model.parameters() if p.requires_grad), "something was read for good"


@pytest.mark.parametrize("row", ["bert", "gpt2", "llama", "t5", "mixtral", "gemma3_text", "clip"])
def test_a_lazy_model_computes_what_the_ordinary_one_computes(row: str, tmp_path: Path) -> None:
    folder, inputs = stored(row, tmp_path / "m"), zoo.build(row)[1]
    model, ordinary = hc.load(folder, lazy=True), hc.load(folder)
    assert is_lazy(model)
    assert not is_lazy(ordinary)
    assert same_weights({name: real(t) for name, t in model.state_dict().items()}, ordinary)
    assert close(zoo.output(model, inputs), zoo.output(ordinary, inputs))
    assert is_lazy(model)


@pytest.mark.parametrize("row", ["llama", "mixtral"])
def test_half_precision_stays_what_it_is_in_the_files(row: str, tmp_path: Path) -> None:
    folder = stored(row, tmp_path / "m", torch.bfloat16)
    model = hc.load(folder, lazy=True)
    assert model.dtype == torch.float32  # as of every model that is loaded
    got = smaller(model, "0:1 1:0", tmp_path / "got")
    assert got == smaller(hc.load(folder), "0:1 1:0", tmp_path / "want")
    assert json.loads(got["config.json"])["dtype"] == "bfloat16"


def test_a_format_that_was_chosen_is_the_one_that_is_computed_in(tmp_path: Path) -> None:
    model = hc.load(stored("llama", tmp_path / "m"), lazy=True).to(torch.float64)
    inputs = zoo.build("llama")[1]
    assert model.dtype == torch.float64
    assert is_lazy(model)
    want = zoo.output(hc.load(tmp_path / "m").double(), inputs)
    assert close(zoo.output(model, inputs).float(), want.float())  # its positions are turned in float32


def test_a_folder_that_was_cut_is_cut_again(tmp_path: Path) -> None:
    first = hc.load(stored("minicpm3", tmp_path / "m"))
    hc.cut(first, "layers:1")  # whose weights get a name of their own
    folder = hc.save(first, tmp_path / "once", max_shard_size=SMALL)
    want = smaller(hc.load(folder), "0:1", tmp_path / "want")
    assert smaller(hc.load(folder, lazy=True), "0:1", tmp_path / "got") == want


def test_gates_and_means_are_folded_in(tmp_path: Path) -> None:
    folder = stored("opt", tmp_path / "m")
    site = hc.find(hc.load(folder))["0"]
    columns = len(site) * site.width
    how = {"scale": {"1": torch.linspace(0.5, 2, len(site))}, "fill": {"0": torch.linspace(-1, 1, columns)}}
    want = smaller(hc.load(folder), "0:1 1:0", tmp_path / "want", **how)
    assert smaller(hc.load(folder, lazy=True), "0:1 1:0", tmp_path / "got", **how) == want


class Watch:
    """Which tensors were read from files, and how many bytes of them were in memory at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.live, self.most, self.largest = 0, 0, 0
        read = lazy_files.read_tensor

        def watched(path: str, name: str) -> Tensor:
            array = read(path, name).numpy().copy()
            self.names.append(name)
            self.live, self.largest = self.live + array.nbytes, max(self.largest, array.nbytes)
            self.most = max(self.most, self.live)
            weakref.finalize(array, self._gone, array.nbytes)  # it lives as long as any tensor that shows it
            return torch.from_numpy(array)

        monkeypatch.setattr(lazy_files, "read_tensor", watched)

    def _gone(self, size: int) -> None:
        self.live -= size


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


@pytest.mark.parametrize("row", ["llama", "gpt2", "t5"])
def test_one_tensor_is_in_memory_at_a_time(row: str, watch: Watch, tmp_path: Path) -> None:
    folder = stored(row, tmp_path / "m")
    model = hc.load(folder, lazy=True)
    assert watch.names == [], "loading reads no weights"
    smaller(model, CUTS[row], tmp_path / "cut")
    assert 0 < watch.most == watch.largest
    assert len(watch.names) <= 2 * len(set(watch.names)), "a tensor was read again and again"


def test_experts_are_read_once_for_all_of_them(watch: Watch, tmp_path: Path) -> None:
    model = hc.load(stored("mixtral", tmp_path / "m"), lazy=True)
    folder = tmp_path / "cut"
    hc.cut(model, CUTS["mixtral"])
    hc.save(model, folder)
    assert len(watch.names) == len(set(watch.names))


def test_weights_in_files_are_not_written_to(tmp_path: Path) -> None:
    model = hc.load(stored("bert", tmp_path / "m"), lazy=True)
    with says(Refused, about="cannot be written to"), torch.no_grad():
        next(model.parameters()).mul_(2)


def test_what_is_not_in_safetensors_is_refused_before_it_is_read(tmp_path: Path) -> None:
    model = zoo.build("llama")[0]
    write_gguf(model, tmp_path / "model.gguf")
    with says(BadCheckpoint, about="packed in a GGUF file"):
        hc.load(tmp_path / "model.gguf", lazy=True)
    folder = stored("llama", tmp_path / "pickled")
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        path.unlink()
    with says(BadCheckpoint, about="are not in safetensors files"):
        hc.load(folder, lazy=True)
    packed = stored("llama", tmp_path / "packed")
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (packed / "config.json").write_text(json.dumps(config))
    with says(BadCheckpoint, about="are stored in gptq, 4 bits"):
        hc.load(packed, lazy=True)


def test_the_command_cuts_shards_to_what_it_cuts_without(tmp_path: Path) -> None:
    folder = stored("llama", tmp_path / "m")
    for name, more in (("want", []), ("got", ["--shards", "--shard-size", SMALL])):
        done = ran("cut", folder, "0:0,2,4,6", "1.mlp:3", "-o", tmp_path / name, *more)
        assert done.exit_code == 0, done.output
        assert "proved equal to the masked model" in done.output
    assert len(list((tmp_path / "got").glob("model-*.safetensors"))) > 2
    want, got = (hc.load(tmp_path / name) for name in ("want", "got"))
    assert same_weights(got, want)
    assert files(tmp_path / "got")["config.json"] == files(tmp_path / "want")["config.json"]
    assert hc.removed(got) == hc.removed(want)
