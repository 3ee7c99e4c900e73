"""Models exported and timed in the runtimes themselves: what `bench` needs to run them there, in turns, as it does in torch."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ..efficiency.benchmark import Runtime
from ..errors import BadMeasure
from ..evaluation.evaluator import device_of
from ..model.tensor_trees import memory_of
from ..progress import Bar
from .pipeline import export

Call = Callable[..., object]


class Exporting(NamedTuple):
    """A runtime that reads an export: the format, the file or folder that is loaded, and the module with its `caller`."""

    form: str
    module: str
    name: str
    int8: str  # what eight bits are in it


EXPORTED = {
    "onnxruntime": Exporting("onnx", ".onnx_graph", "", "int8"),
    "openvino": Exporting("openvino", ".openvino_graph", "", "int8 weights"),
    "llama.cpp": Exporting("gguf", ".gguf_speed", "model.gguf", "q8_0"),
}
RUNTIMES = ("torch", *EXPORTED)


def check_runtime(name: str) -> None:
    """`BadMeasure` unless models can be timed in a runtime of this name."""
    if name == "vllm":
        raise BadMeasure(
            "bench does not start vLLM, which is a server of its own; export both models for it (headcount export MODEL --to "
            "vllm -o FOLDER) and time each with: vllm bench throughput --model FOLDER --trust-remote-code."
        )
    if name not in RUNTIMES:
        raise BadMeasure(f"There is no runtime {name!r:.40} to measure in; there are {', '.join(RUNTIMES)}.")


@contextmanager
def runtime_for(
    models: Mapping[str, nn.Module],
    name: str = "torch",
    *,
    int8: bool = False,
    sources: Mapping[str, str] | None = None,
) -> Iterator[Runtime | None]:
    """Within the block the models as a runtime has them, to be given to `bench`; None is torch as it is.

    Each model is exported into a temporary folder and compared there with itself before it is timed. For llama.cpp uneven groups
    are padded with zero heads, and for eight bits the MLPs with zero neurons; the notes of the runtime say so.

    Args:
        models: The models by name, on the CPU.
        name: "torch", "onnxruntime", "openvino" or "llama.cpp".
        int8: Whether weights are quantised to eight bits there.
        sources: The folders of the models, for their tokenizers, which GGUF files contain.

    Returns:
        What `bench(models, runtime=...)` takes.

    Examples:
        >>> with speed.runtime_for(models, "onnxruntime", int8=True) as runtime:
        ...     print(benchmark.bench(models, runtime=runtime))
    """
    check_runtime(name)
    if name == "torch":
        with nullcontext():
            yield _torch_int8(models) if int8 else None
        return
    elsewhere = [model for model in models.values() if device_of(model).type != "cpu"]
    if elsewhere:
        raise BadMeasure(f"{name} is measured on the CPU; load the models there (--device cpu).")
    row = EXPORTED[name]
    try:
        module = import_module(row.module, __package__)
    except ModuleNotFoundError as error:
        raise BadMeasure(f"bench cannot time models in {name} here ({error.name} is missing); use another.") from error
    with tempfile.TemporaryDirectory(prefix="headcount-bench-") as folder, Bar("exporting", len(models)) as bar:
        paths, sizes, versions, notes = {}, {}, [], list[str]()
        for number, (label, model) in enumerate(models.items()):
            place = Path(folder) / str(number)
            how: dict[str, Any] = {"int8": int8}
            if row.form == "gguf":
                # uneven groups and widths are measured as they can be deployed: with zeros, which the notes count
                how = {"dtype": "q8_0" if int8 else "f32", "groups": "pad", "multiple": 32 if int8 else None}
                how["source"] = (sources or {}).get(label)
            exported = export(model, row.form, place / row.name if row.name else place, **how)
            paths[label], sizes[label] = exported.path, exported.size
            versions.append(exported.check.runtime)
            notes += [f"{label} as {row.form}: {note}" for note in exported.notes]
            bar.advance()
        calls = partial(_calls, module.caller, paths)
        yield Runtime(versions[0], row.int8 if int8 else "float32", sizes, calls, tuple(notes))


def _calls(caller: Callable[[Path], Call], paths: Mapping[str, Path]) -> dict[str, Call]:
    return {label: caller(path) for label, path in paths.items()}


def _torch_int8(models: Mapping[str, nn.Module]) -> Runtime:
    """Copies whose linear layers torch computes in eight bits: weights rounded once, inputs as they come."""
    quantise = getattr(getattr(torch, "ao", None), "quantization", None)
    if not hasattr(quantise, "quantize_dynamic"):
        raise BadMeasure(f"torch {torch.__version__} has no dynamic quantisation; use another runtime (--runtime).")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = {
            name: quantise.quantize_dynamic(copy.deepcopy(model).eval(), {nn.Linear}, dtype=torch.qint8)
            for name, model in models.items()
        }
    sizes = {name: _bytes(model) for name, model in made.items()}
    return Runtime(f"torch {torch.__version__}", "int8", sizes, lambda: made)


def _bytes(model: nn.Module) -> int:
    """The bytes of weights, also of those that torch packs away."""
    packed = [module.weight() for module in model.modules() if callable(getattr(module, "weight", None))]
    return memory_of([*model.parameters(), *model.buffers(), *packed])
