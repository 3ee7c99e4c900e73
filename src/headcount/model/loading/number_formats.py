"""The number format that weights are loaded in, and the one that they are saved in again.

Half precision is a format for files and for GPUs: on a CPU it is many times slower. So weights of float16 and bfloat16 are
loaded in float32, which holds every one of them exactly, and go back into their format when they are saved unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .lazy_tensors import real
from .quantised import quantisation

STORED = "headcount_stored_format"
HALVES = (torch.float16, torch.bfloat16)


def is_widened(keywords: dict[str, Any]) -> bool:
    """Whether half precision becomes float32: nobody chose a format, a place or a quantisation for the weights."""
    on_cpu = str(keywords.get("device_map") or "cpu") == "cpu"
    if any(keywords.get(name) is not None for name in ("tp_plan", "distributed_config")):
        on_cpu = not torch.cuda.is_available()
    chosen = any(keywords.get(name) is not None for name in ("dtype", "torch_dtype", "quantization_config"))
    return on_cpu and not chosen


def stored_format(model: nn.Module) -> torch.dtype | None:
    """The half precision that weights were stored in and have been widened from, or None."""
    return getattr(model, STORED, None)


def remember_format(model: nn.Module, folder: Path) -> None:
    """Have a model that was loaded in float32 from a folder in half precision written in the format of the folder again."""
    config = folder / "config.json"
    name = json.loads(config.read_text(encoding="utf-8")).get("dtype") if config.is_file() else None
    dtype = next((half for half in HALVES if str(half) == f"torch.{name}"), None)
    if dtype is not None and all(p.dtype == torch.float32 for p in model.parameters()):
        setattr(model, STORED, dtype)


def widen(loaded: Callable[[Any], tuple[Any, Any]], config: Any) -> tuple[Any, Any]:
    """What `loaded` gives for a number format, which is float32 where weights are stored in half precision.

    It gives the model and something about it. Where the config does not say in which format the weights are stored, they
    are read once to see.
    """
    dtype, pair = getattr(config, "dtype", None), None
    if dtype is None:
        pair = loaded("auto")
        dtype = pair[0].dtype
    if dtype not in HALVES:
        return loaded("auto") if pair is None else pair
    pair = loaded(torch.float32)
    setattr(pair[0], STORED, dtype)
    return pair


def format_in_words(config: Any) -> str:
    """What is to be said about the number format of a model's weights, after its size."""
    method = quantisation(config)
    if method is not None:
        return f", stored in {method}"
    dtype = getattr(config, "dtype", None)
    if dtype is None:
        return ""
    name = str(dtype).removeprefix("torch.")
    return f", stored in {name}"


@contextmanager
def in_stored_format(model: nn.Module) -> Iterator[None]:
    """Within the block, widened weights are in the format of their file, if that holds every one of them exactly.

    So what was only cut is saved as it was stored, and what was trained or merged since loses no digit.
    """
    dtype = stored_format(model)
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    if dtype is None or not all(p.dtype == torch.float32 and _holds(dtype, p.data) for p in parameters):
        yield
        return
    full = [p.data for p in parameters]
    try:
        for parameter in parameters:
            parameter.data = parameter.data.to(dtype)
        yield
    finally:
        for parameter, data in zip(parameters, full, strict=True):
            parameter.data = data


def _holds(dtype: torch.dtype, weights: torch.Tensor) -> bool:
    weights = real(weights)  # once, of one in a file
    return not weights.is_meta and torch.equal(weights.to(dtype).to(weights.dtype), weights)
