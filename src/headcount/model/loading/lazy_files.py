"""Models whose weights stay in their safetensors files: loading them so, and writing them tensor by tensor.

Both go through transformers' own loader and writer, which rename, tie, split and shard; only the two functions that read and
write a file are others while they run.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import BadCheckpoint
from ...model_files import ModelFiles
from .lazy_tensors import Lazy, is_lazy, lazy, real, wholes_kept
from .quantised import quantisation

ONCE = (
    "load it whole (without lazy, --stream or --shards), or save it as safetensors once, where there is memory for it"
)

# as safetensors writes them: larger numbers first, then by name
DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


# -- reading -------------------------------------------------------------------------------------------------------------


def read_tensor(path: str, name: str) -> Tensor:
    """One tensor of a file, and nothing else of it."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)


class _LazySlice:
    """A tensor in a file as transformers asks for it: `[...]` gives it, unread."""

    def __init__(self, path: str, name: str, shape: list[int], dtype: str) -> None:
        self._path, self._name, self._shape, self._dtype = path, name, shape, dtype

    def get_shape(self) -> list[int]:
        return self._shape

    def get_dtype(self) -> str:
        return self._dtype

    def __getitem__(self, _: Any) -> Lazy:
        # by the module, so that who counts what is read can put another function in its place
        return lazy(lambda: read_tensor(self._path, self._name), self._shape, DTYPES[self._dtype])


class _LazyFile:
    """A safetensors file as transformers opens it, of which only the head is read."""

    def __init__(self, path: str | os.PathLike[str], *_: Any, **__: Any) -> None:
        from safetensors import safe_open

        self._path = os.path.abspath(os.fspath(path))
        with safe_open(self._path, framework="pt") as file:
            self._metadata = file.metadata()
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
            self._slices = {
                name: _LazySlice(self._path, name, list(one.get_shape()), str(one.get_dtype()))
                for name, one in slices.items()
            }

    def keys(self) -> list[str]:
        return list(self._slices)

    def metadata(self) -> Any:
        return self._metadata

    def get_slice(self, name: str) -> _LazySlice:
        return self._slices[name]

    def get_tensor(self, name: str) -> Tensor:
        return read_tensor(self._path, name)

    def __enter__(self) -> _LazyFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def left_in_files() -> Iterator[None]:
    """Within the block, `from_pretrained` leaves the weights in their safetensors files."""
    with _replaced("safe_open", _LazyFile):
        yield


def may_be_left_in_files(files: ModelFiles, config: Any) -> None:
    """`BadCheckpoint` for weights that cannot be read tensor by tensor, before anything of them is read."""
    folder = Path(files.folder)
    method, held = quantisation(config), None
    if files.gguf is not None:
        held = "are packed in a GGUF file"
    elif files.adapter is not None:
        held = "are those of another model with an adapter that is merged into them"
    elif method is not None:
        held = f"are stored in {method}"
    elif files.is_local and not any(folder.glob("*.safetensors")):
        held = "are not in safetensors files"
    if held is not None:
        raise BadCheckpoint(f"The weights of {files.name} {held}, so they cannot be read tensor by tensor; {ONCE}.")


def check_left_in_files(model: Any, name: str) -> Any:
    """The model, if its weights are in their files; `BadCheckpoint` where the loader has read them."""
    if not is_lazy(model):
        raise BadCheckpoint(f"The weights of {name} were read as a whole, and not left in safetensors files; {ONCE}.")
    return model


@contextmanager
def _replaced(name: str, value: Any) -> Iterator[None]:
    """Within the block, transformers' models are read or written by another function of safetensors."""
    from transformers import modeling_utils

    before = getattr(modeling_utils, name)
    try:
        setattr(modeling_utils, name, value)
        yield
    finally:
        setattr(modeling_utils, name, before)


# -- writing -------------------------------------------------------------------------------------------------------------


@contextmanager
def written_one_by_one(model: nn.Module) -> Iterator[None]:
    """Within the block, `save_pretrained` reads and writes the weights of a model that are in files one by one."""
    if not is_lazy(model):
        yield
        return
    with _replaced("safe_save_file", write_file), wholes_kept():
        yield


def write_file(tensors: Mapping[str, Tensor], path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file of tensors that may be lazy, with one of them in memory at a time."""
    order = list(NAMES)
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), order.index(tensors[name].dtype), name))
    head: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    start = 0
    for name in names:
        tensor = tensors[name]
        end = start + tensor.numel() * tensor.element_size()
        head[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in names:
            tensor = real(tensors[name]).detach().cpu().contiguous()
            if tensor.numel():
                file.write(memoryview(tensor.flatten().view(torch.uint8).numpy()))
            del tensor  # before the next is read
