"""ONNX: a folder with a graph for onnxruntime, whose examples and tokens may be of any number."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import BadCheckpoint
from ..model.tensor_trees import memory_of
from .formats import Check, Limit, Settings, size_of
from .graphs import comparison, folder, tracing

GRAPH = "model.onnx"
LARGEST = 1_900_000_000  # bytes of weights inside model.onnx: protobuf ends at 2 GB; more lie beside it
NEEDS = {
    "transformers.exporters": "transformers",
    "onnx": "onnx",
    "onnxscript": "onnxscript",
    "onnxruntime": "onnxruntime",
}


def limits(model: nn.Module, settings: Settings) -> Sequence[Limit]:
    """What an ONNX graph cannot hold: no cut is among it."""
    tracing.missing(NEEDS, "onnx")
    return tracing.graph_limits(model, settings, ("f32",), "onnx")


def write(model: nn.Module, target: Path, settings: Settings, *, source: str | None, tokenizer: Any) -> tuple[str, ...]:
    """Write model.onnx, config.json with the labels, the tokenizer, and run.py."""
    root = tracing.in_float32(model)
    tokenizer = folder.tokenizer_for(root, source, tokenizer)
    inputs = tracing.traced_inputs(root, tokenizer)
    notes: tuple[str, ...] = ()
    if settings.int8:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.float32.") as place:
            whole = Path(place) / GRAPH
            used = _write_graph(root, inputs, whole)
            comparison.proved(root, runner(whole), used, "onnx")
            _quantise(root, whole, target / GRAPH)
            notes = (comparison.size_note(size_of(Path(place)), size_of(target)),)
    else:
        used = _write_graph(root, inputs, target / GRAPH)
    kept = {name: inputs[name] for name in used}
    return notes + folder.write_beside(root, target, kept, source=source, tokenizer=tokenizer, int8=settings.int8)


def check(model: nn.Module, target: Path, settings: Settings, *, batch: dict[str, Any]) -> Check:
    """Run the graph in onnxruntime and compare it with the model, on the batch and on other sizes."""
    import onnxruntime

    runtime = f"onnxruntime {onnxruntime.__version__}"
    return comparison.checked(model, target, runner(target / GRAPH), runtime, batch)


def runner(path: Path, threads: int | None = None) -> comparison.Run:
    """A function from named inputs to named outputs, computed by onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads() if threads is None else threads
    # threads that spin after a pass would take the processor from what is timed next
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no base of their own
        raise BadCheckpoint(
            f"onnxruntime cannot load {path.name} ({_first_line(error)}): it has no kernel for something in the model, or "
            "the file is damaged; export it for transformers (--to transformers) instead, or again."
        ) from error
    names = [output.name for output in session.get_outputs()]
    read = [one.name for one in session.get_inputs()]
    return lambda batch: dict(zip(names, session.run(None, {name: batch[name] for name in read}), strict=True))


def caller(folder: Path) -> Callable[..., object]:
    """What `bench` times: a call that takes a batch by name and computes it in onnxruntime with torch's number of threads."""
    run = runner(folder / GRAPH)
    return lambda **batch: run({name: value.numpy() for name, value in batch.items()})


def _write_graph(model: Any, inputs: dict[str, Any], path: Path) -> list[str]:
    """The graph of a model with its weights; returns the names of its inputs."""
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    beside = memory_of([*model.parameters(), *model.buffers()]) > LARGEST
    with tracing.exporting(model, "onnx"), tracing.results_alone(model):
        program = OnnxExporter().export(model, dict(inputs), config=OnnxConfig(dynamic=True))
        for node in program.model.graph.all_nodes():  # with the lines of code, and the folders, that it was traced from
            node.metadata_props.clear()
        program.save(str(path), external_data=beside)
    graph = program.model.graph
    fixed = {
        str(value.name): [axis for axis, size in enumerate(value.shape) if isinstance(size, int)]
        for value in graph.inputs
    }
    tracing.moving_axes(model, fixed, "onnx")
    return list(fixed)


def _quantise(model: Any, whole: Path, path: Path) -> None:
    """Weights in eight bits, one scale per column, and activations as they come.

    Seven bits of the eight are used: processors without VNNI add two products of eight bits in sixteen, which overflows without a
    word, and the file is for any processor.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tracing.exporting(model, "onnx"):
        graph = onnx.load(whole, load_external_data=False)
        del graph.graph.value_info[:]  # shapes of weights, some of which the quantiser transposes
        onnx.save(graph, whole)
        quantize_dynamic(
            whole,
            path,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            use_external_data_format=size_of(whole.parent) > 3 * LARGEST,
        )


def _first_line(error: Exception) -> str:
    return next((line.strip()[:160] for line in str(error).splitlines() if line.strip()), type(error).__name__)
