"""OpenVINO: a folder with a graph for Intel's runtime, whose examples and tokens may be of any number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .formats import Check, Limit, Settings, size_of
from .graphs import comparison, folder, tracing

GRAPH = "openvino_model.xml"
NEEDS = {"transformers.exporters": "transformers", "openvino": "openvino"}
SMALLEST = 256  # entries of a weight that is worth eight bits and scales


def limits(model: nn.Module, settings: Settings) -> Sequence[Limit]:
    """What an OpenVINO graph cannot hold: no cut is among it."""
    tracing.missing(NEEDS, "openvino")
    return tracing.graph_limits(model, settings, ("f32",), "openvino")


def write(model: nn.Module, target: Path, settings: Settings, *, source: str | None, tokenizer: Any) -> tuple[str, ...]:
    """Write openvino_model.xml and .bin, config.json with the labels, the tokenizer, and run.py."""
    import openvino

    root = tracing.in_float32(model)
    tokenizer = folder.tokenizer_for(root, source, tokenizer)
    inputs = tracing.traced_inputs(root, tokenizer)
    graph = _graph(root, inputs)
    fixed = {
        port.any_name: [axis for axis, size in enumerate(port.partial_shape) if size.is_static] for port in graph.inputs
    }
    tracing.moving_axes(root, fixed, "openvino")
    kept = {name: inputs[name] for name in fixed}
    notes: tuple[str, ...] = ()
    if settings.int8:
        comparison.proved(root, _compiled(graph, None), list(kept), "openvino")
        before = sum(constant.data.nbytes for constant in _constants(graph))
        _round_weights(graph)
    openvino.save_model(graph, str(target / GRAPH), compress_to_fp16=False)
    if settings.int8:
        notes = (comparison.size_note(before, size_of((target / GRAPH).with_suffix(".bin"))),)
    return notes + folder.write_beside(root, target, kept, source=source, tokenizer=tokenizer, int8=settings.int8)


def check(model: nn.Module, target: Path, settings: Settings, *, batch: dict[str, Any]) -> Check:
    """Run the graph in OpenVINO and compare it with the model, on the batch and on other sizes."""
    import openvino

    version = openvino.__version__.split("-")[0]
    return comparison.checked(model, target, runner(target / GRAPH), f"openvino {version}", batch)


def runner(path: Path, threads: int | None = None) -> comparison.Run:
    """A function from named inputs to named outputs, computed by OpenVINO on the CPU in float32."""
    import openvino

    return _compiled(openvino.Core().read_model(str(path)), threads)


def caller(folder: Path) -> Callable[..., object]:
    """What `bench` times: a call that takes a batch by name and computes it in OpenVINO with torch's number of threads."""
    run = runner(folder / GRAPH)
    return lambda **batch: run({name: value.numpy() for name, value in batch.items()})


def _compiled(graph: Any, threads: int | None) -> comparison.Run:
    import openvino

    count = torch.get_num_threads() if threads is None else threads
    # without the hint, a processor with AMX computes in bfloat16
    properties = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": count}
    compiled = openvino.Core().compile_model(graph, "CPU", properties)
    read, names = [port.any_name for port in compiled.inputs], [port.any_name for port in compiled.outputs]

    def run(batch: dict[str, Any]) -> dict[str, np.ndarray]:
        found = compiled({name: batch[name] for name in read})
        return {name: np.array(found[number]) for number, name in enumerate(names)}

    return run


def _graph(model: Any, inputs: dict[str, Any]) -> Any:
    from transformers.exporters.exporter_openvino import OpenVINOConfig, OpenVINOExporter

    settings = OpenVINOConfig(dynamic=True, stateful=False)
    with tracing.exporting(model, "openvino"), tracing.results_alone(model):
        return OpenVINOExporter().export(model, dict(inputs), config=settings)


def _constants(graph: Any) -> list[Any]:
    return [node for node in graph.get_ordered_ops() if node.get_type_name() == "Constant"]


def _round_weights(graph: Any) -> None:
    """Put eight bits and one scale per row in the place of each float32 matrix that is multiplied with or looked up in."""
    import openvino
    import openvino.opset13 as ops

    for constant in _constants(graph):
        weight = constant.data
        readers = {port.get_node().get_type_name() for port in constant.output(0).get_target_inputs()}
        if (
            weight.dtype != np.float32
            or weight.ndim != 2
            or weight.size < SMALLEST
            or not readers <= {"MatMul", "Gather"}
        ):
            continue
        scale = np.abs(weight).max(axis=1, keepdims=True) / 127  # (rows, 1)
        scale[scale == 0] = 1.0
        whole = np.round(weight / scale).astype(np.int8)
        integers = ops.convert(ops.constant(whole, openvino.Type.i8), "f32")
        rounded = ops.multiply(integers, ops.constant(scale, openvino.Type.f32))
        rounded.set_friendly_name(constant.get_friendly_name() + "/rounded")
        for port in constant.output(0).get_target_inputs():
            port.replace_source_output(rounded.output(0))
    graph.validate_nodes_and_infer_types()
