"""The formats that a cut model can be exported to, as a table; and what every writer of one is asked."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from torch import nn

from ..errors import BadCheckpoint

GROUPS = ("pad", "repeat")


class Format(NamedTuple):
    """A format: what it is, who runs it, the module that writes it, and the extra of headcount that it needs."""

    name: str
    what: str
    module: str
    extra: str = ""
    suffix: str = ""  # of the one file that it is; empty for a folder
    even_groups: bool = False  # whether all key-value heads of an attention must serve equally many query heads
    shared: bool = (
        False  # whether devices share each layer: it needs an attention, and counts that divide by their number
    )


FORMATS = {
    row.name: row
    for row in (
        Format("transformers", "a folder for from_pretrained(..., trust_remote_code=True)", ".transformers_folder"),
        Format(
            "vllm",
            "the same folder, within what vLLM's Transformers backend can hold",
            ".vllm",
            even_groups=True,
            shared=True,
        ),
        Format("gguf", "a file for llama.cpp, Ollama and LM Studio", ".gguf_file", "gguf", ".gguf", even_groups=True),
        Format("onnx", "a graph for onnxruntime, with its tokenizer and a script that runs it", ".onnx_graph", "onnx"),
        Format("openvino", "a graph for OpenVINO, with its tokenizer", ".openvino_graph", "openvino"),
        Format("sentence-transformers", "a folder for SentenceTransformer(...)", ".sentence_transformers"),
    )
}


@dataclass(frozen=True)
class Settings:
    """What a user may say about an export, whatever the format; each writer refuses what it cannot do.

    Args:
        groups: How query heads in groups of different sizes are made even: "pad", "repeat", or None: they are refused.
        dtype: The number format of the weights ("f32", "f16", "q8_0"); None is the format's own choice.
        int8: Whether weights are quantised to eight bits.
        multiple: Widths are padded with zeros to multiples of this.
        tensor_parallel: By how many devices the heads of every layer must be divisible.
    """

    groups: str | None = None
    dtype: str | None = None
    int8: bool = False
    multiple: int | None = None
    tensor_parallel: int = 1


class Limit(NamedTuple):
    """Something about a model that a format cannot hold, and the nearest thing that it can."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.remedy}"


class Check(NamedTuple):
    """What an exported model gave on a batch, beside the model itself."""

    runtime: str  # "onnxruntime 1.31.1"
    difference: float  # the largest, of what was compared
    allowed: float
    compared: str  # "logits of 2 texts"
    notes: tuple[str, ...] = ()


class Writer(Protocol):
    """The module of a format."""

    def limits(self, model: nn.Module, settings: Settings) -> Sequence[Limit]:
        """What of this model the format cannot hold; nothing is written and no weight is read."""

    def write(
        self, model: nn.Module, target: Path, settings: Settings, *, source: str | None, tokenizer: Any
    ) -> tuple[str, ...]:
        """Write the model into an empty folder, or to a file that is not there; returns notes for the user."""

    def check(self, model: nn.Module, target: Path, settings: Settings, *, batch: dict[str, Any]) -> Check:
        """Load what was written, in the runtime itself where it is installed, and compare it with the model on a batch."""


def format_named(name: str) -> Format:
    """The format of this name; `BadCheckpoint` lists them."""
    if name in FORMATS:
        return FORMATS[name]
    near = difflib.get_close_matches(name.lower(), FORMATS, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise BadCheckpoint(f"There is no export format {name[:40]!r}; there are {', '.join(FORMATS)}{hint}")


def writer_of(form: Format) -> Writer:
    """The module that writes a format."""
    return cast(Writer, import_module(form.module, __package__))


def size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
