"""Tracing a model as a graph: what cannot be, on what it is traced, and the exporter's words where it fails."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from logging import getLogger
from typing import Any

import torch
from torch import Tensor, nn

from ...efficiency.random_inputs import has_length, main_input, random_batch
from ...errors import BadCheckpoint, HeadcountError, Refused
from ...model.discovery import unwrap
from ...model.equivalence import evaluating
from ...model.matrices import has_int8_of_torch
from ..formats import Limit, Settings


def graph_limits(model: nn.Module, settings: Settings, dtypes: tuple[str, ...], name: str) -> list[Limit]:
    """What a graph cannot hold of this model and these settings; cuts of any kind are not among it."""
    root, found = unwrap(model), []
    if not hasattr(root, "config") or not hasattr(root, "save_pretrained"):
        found.append(Limit(f"{type(root).__name__} is no model of transformers", "export it with torch.onnx.export"))
    elif main_input(root) not in ("input_ids", "pixel_values", "input_features", "input_values"):
        found.append(
            Limit(f"{type(root).__name__} reads {main_input(root) or 'something unknown'}", "give it as torch")
        )
    elif main_input(root) == "input_ids" and any(name.startswith("image_token") for name in vars(root.config)):
        found.append(Limit("it reads pictures in its texts", "export its language model alone, without them"))
    if has_int8_of_torch(root) or getattr(root, "is_quantized", False):
        found.append(Limit("its weights are quantised", "load it without quantisation, and use int8 (--int8) here"))
    if settings.dtype not in (None, *dtypes):
        choices = " or ".join(dtypes)
        found.append(Limit(f"{name} has no weights in {settings.dtype} here", f"use {choices}, or int8 (--int8)"))
    for flag, asked in (
        ("multiple (--multiple)", settings.multiple not in (None, 1)),
        ("tensor_parallel (--tensor-parallel)", settings.tensor_parallel != 1),
    ):
        if asked:
            found.append(Limit(f"{flag} says nothing about a graph, which holds widths of any size", "leave it out"))
    return found


def missing(packages: Mapping[str, str], extra: str) -> None:
    """`BadCheckpoint` in one sentence if one of these modules is not there."""
    from importlib.util import find_spec

    for module, package in packages.items():
        try:
            there = find_spec(module) is not None
        except ModuleNotFoundError:
            there = False
        if not there and module.startswith("transformers."):
            import transformers

            raise BadCheckpoint(
                f"transformers {transformers.__version__} cannot export graphs ({module} is missing); install a newer one."
            )
        if not there:
            raise BadCheckpoint(f"{package} is not installed; run: pip install 'headcount[{extra}]'")


def in_float32(model: nn.Module) -> Any:
    """The model itself if it is in float32 on the CPU, else a copy that is: graphs are written and compared in float32."""
    root = unwrap(model)
    tensors = [*root.parameters(), *root.buffers()]
    if all(
        tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.long, torch.bool) for tensor in tensors
    ):
        return root
    return copy.deepcopy(root).to(device="cpu", dtype=torch.float32)


def traced_inputs(model: Any, tokenizer: Any = None) -> dict[str, Tensor]:
    """Two made-up examples, the second with padding, of what the model reads: these names become the inputs of the graph."""
    batch = random_batch(model, 2, 12 if has_length(model) else None)
    if "attention_mask" in batch:
        batch["attention_mask"][1, 9:] = 0
        if _reads_token_types(model, tokenizer):
            batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    return batch


def _reads_token_types(model: Any, tokenizer: Any) -> bool:
    read = "token_type_ids" in inspect.signature(model.forward).parameters
    return read and "token_type_ids" in getattr(tokenizer, "model_input_names", ())


@contextmanager
def results_alone(model: Any) -> Iterator[None]:
    """Within the block a pass gives the tensors that are the model's results: no cache, and nothing of the encoder's."""
    forward, before = model.forward, model.__dict__.get("forward")
    keywords = {"use_cache": False} if "use_cache" in inspect.signature(forward).parameters else {}

    def results(**inputs: Any) -> dict[str, Tensor]:
        return plain_results(forward(**inputs, **keywords))

    model.forward = results
    try:
        with torch.no_grad(), evaluating(model):
            yield
    finally:
        model.__dict__.pop("forward", None)  # the exporters leave one that is bound to this very object
        if before is not None:
            model.forward = before


def plain_results(output: Any) -> dict[str, Tensor]:
    """The tensors of a model's output by their names, without those that are means to an end."""
    named = dict(output.items()) if hasattr(output, "items") else {"output": output}
    kept = {
        name: value
        for name, value in named.items()
        if isinstance(value, Tensor) and not name.startswith(("encoder_", "past_", "loss"))
    }
    if not kept:
        raise Refused(f"{type(output).__name__} holds no tensor that a graph could give; export another model class.")
    return kept


@contextmanager
def exporting(model: Any, name: str) -> Iterator[None]:
    """The exporter at work: quiet, and what it cannot trace is `Refused` in one sentence with its reason."""
    loggers = [
        getLogger(one) for one in ("transformers", "torch.onnx", "torch.export", "onnxscript", "onnx_ir", "root")
    ]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel("ERROR")
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    except (HeadcountError, OSError, MemoryError):
        raise
    except Exception as error:  # tracing fails in as many ways as there are models
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
        raise Refused(
            f"{name} cannot hold {type(model).__name__}: its exporter fails with {type(error).__name__} ({reason:.200}); "
            "export it for transformers (--to transformers) instead."
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def moving_axes(model: Any, fixed: Mapping[str, list[int]], name: str) -> None:
    """`Refused` if the exporter has fixed the number of examples or of tokens; `fixed` has the fixed axes of each input."""
    for given, axes in fixed.items():
        wrong = [axis for axis in axes if axis == 0 or (axis == 1 and given in ("input_ids", "decoder_input_ids"))]
        if wrong:
            what = "number of examples" if wrong[0] == 0 else "length"
            raise Refused(
                f"{name} cannot hold {type(model).__name__}: its exporter fixes the {what} of {given}; export it for "
                "transformers (--to transformers) instead."
            )
