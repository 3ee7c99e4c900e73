"""What the folders of ONNX and OpenVINO share: what a graph is traced on, the files beside it, and what it is compared on."""

from __future__ import annotations

import copy
import inspect
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..data.encoding import loaded_processor, loaded_tokenizer, longest_input
from ..efficiency.random_inputs import has_length, main_input, random_batch
from ..errors import BadCheckpoint, BadMeasure, CheckFailed, HeadcountError, Refused
from ..evaluation.evaluator import to_device
from ..formatting import bytes_text
from ..model.discovery import unwrap
from ..model.equivalence import evaluating
from ..model.matrices import has_int8_of_torch
from .check_batch import TEXTS
from .formats import Check, Limit, Settings

SCRIPT = Path(__file__).with_name("templates") / "run.py"
NOTES = "headcount_export"  # the key of config.json that run.py reads
READ = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids")  # what run.py can make of a text
SHAPES = ((1, 4), (3, 9), (5, 20))  # examples and tokens of made-up batches; the graph is traced on another shape
# The largest difference, relative to the largest output. Kernels of two runtimes sum in different orders: 4e-7 for two layers and
# 1e-5 for thirty. A graph that is wrong is off by far more: one tiny layer left out changes the largest output by some per cent.
ALLOWED = 1e-4
# The same for int8, root mean squares: weights rounded to one of 127 steps, and inputs to one of 255, move outputs by 1 to 10 %.
# That the graph is right has been shown before it was quantised; this refuses a model that eight bits ruin.
ALLOWED_INT8 = 0.2

Run = Callable[[dict[str, Any]], dict[str, np.ndarray]]


# -- what can be exported ------------------------------------------------------------------------------------------------


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


# -- the graph -----------------------------------------------------------------------------------------------------------


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


# -- the files beside it -------------------------------------------------------------------------------------------------


def write_beside(
    model: Any, folder: Path, inputs: Mapping[str, Any], *, source: str | None, tokenizer: Any, int8: bool
) -> tuple[str, ...]:
    """config.json with the labels, the tokenizer or processor, and run.py where tokenizers alone can read the texts."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    config[NOTES] = {"inputs": list(inputs), "int8": int8, **_how_to_run(model, source, tokenizer)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if main_input(model) != "input_ids":
        return _write_processor(folder, source, tokenizer)
    if tokenizer is None:
        return ("there is no tokenizer, so there is no run.py either",)
    tokenizer.save_pretrained(folder)
    more = [name for name in inputs if name not in READ]
    if more:
        return (f"there is no run.py: the graph reads {more[0]} beside its texts",)
    if not _tokenizers_alone(folder, tokenizer):
        return ("there is no run.py: the tokenizers package alone does not read texts as this tokenizer does",)
    shutil.copyfile(SCRIPT, folder / SCRIPT.name)
    return ()


def tokenizer_for(model: Any, source: str | None, tokenizer: Any) -> Any:
    """The tokenizer that goes with the model, or None."""
    if tokenizer is not None or source is None or main_input(model) != "input_ids":
        return tokenizer
    try:
        return loaded_tokenizer(source)
    except (HeadcountError, OSError, ValueError, KeyError, TypeError):
        return None


def _write_processor(folder: Path, source: str | None, processor: Any) -> tuple[str, ...]:
    """The processor of pictures or sounds, which prepares the arrays that the graph reads."""
    try:
        (loaded_processor(source) if processor is None else processor).save_pretrained(folder)
    except (HeadcountError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return ("there is no processor, so the graph needs arrays that are prepared elsewhere",)
    return ()


def _tokenizers_alone(folder: Path, tokenizer: Any) -> bool:
    """Whether tokenizer.json, read by the tokenizers package, gives the ids that the whole tokenizer gives."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        return False
    alone = Tokenizer.from_file(str(path))
    alone.no_padding()
    alone.no_truncation()
    return all(alone.encode(text).ids == list(tokenizer(text)["input_ids"]) for text in TEXTS)


def _how_to_run(model: Any, source: str | None, tokenizer: Any) -> dict[str, Any]:
    """What run.py has to know: what the first output means, and where texts end."""
    config, kind = model.config, type(model).__name__
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = [getattr(text, name, None) for name in ("max_position_embeddings", "n_positions")]
    most = min(
        [longest_input(tokenizer, None), *(count for count in positions if isinstance(count, int) and count > 0)]
    )
    if "roberta" in str(getattr(config, "model_type", "")) or getattr(config, "model_type", "") in (
        "camembert",
        "mpnet",
    ):
        most = min(most, max(1, text.max_position_embeddings - 2))  # whose positions begin after that of the padding
    end = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    end = getattr(text, "eos_token_id", None) if end is None else end
    how: dict[str, Any] = {"task": _task(model, kind), "max_length": most}
    if how["task"] == "classify":
        problem = getattr(config, "problem_type", None)
        one = config.num_labels == 1 or problem == "regression"
        how["probabilities"] = "none" if one else "sigmoid" if problem == "multi_label_classification" else "softmax"
    elif how["task"] == "embed":
        how["pooling"] = _pooling(source)
    elif how["task"] in ("generate", "translate"):
        how |= {"start": config.decoder_start_token_id} if how["task"] == "translate" else {}
        how["end"] = [] if end is None else end if isinstance(end, list) else [end]
    return how


def _task(model: Any, kind: str) -> str:
    if main_input(model) != "input_ids":
        return "arrays"
    if getattr(model.config, "is_encoder_decoder", False):
        return "translate" if kind.endswith(("ConditionalGeneration", "MTModel", "LMHeadModel")) else "numbers"
    endings = {"ForSequenceClassification": "classify", "ForTokenClassification": "tag"}
    named = next((task for ending, task in endings.items() if kind.endswith(ending)), None)
    if named is not None or "For" in kind or "LMHead" in kind:
        generates = hasattr(model, "can_generate") and model.can_generate()
        return named or ("generate" if generates else "numbers")
    return "embed"


def _pooling(source: str | None) -> str:
    """How a sentence-transformers folder makes one vector of those of the tokens: "mean", or "cls" for the first."""
    path = Path(source or "") / "1_Pooling" / "config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "mean"
    return "cls" if settings.get("pooling_mode_cls_token") or settings.get("pooling_mode") == "cls" else "mean"


# -- comparing -----------------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """How far a graph is from its model: the largest difference over the largest output, the same of root mean squares, and how
    often the largest entry of the first output is the same one."""

    largest: float
    root_mean_square: float
    agreement: float


def compared(model: Any, run: Run, inputs: list[str], batches: list[dict[str, Any]]) -> Difference:
    """The outputs of a graph beside those of its model on batches, where nothing is padding."""
    apart, outputs, same = [], [], []
    for batch in batches:
        complete = _complete(model, inputs, to_device(batch, torch.device("cpu")))
        with torch.no_grad(), evaluating(model):
            keywords = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
            wanted = plain_results(model(**complete, **keywords))
        got = run({name: complete[name].numpy() for name in inputs})
        for number, (name, value) in enumerate(wanted.items()):
            if got[name].shape != tuple(value.shape):
                raise CheckFailed(
                    f"The graph gives {name} as {got[name].shape}, and the model as {tuple(value.shape)}."
                )
            here, there = (_unpadded(array.astype(np.float64), complete) for array in (got[name], value.numpy()))
            apart.append((here - there).ravel())
            outputs.append(there.ravel())
            if number == 0:
                same.append((here.argmax(-1) == there.argmax(-1)).ravel())
    difference, output = np.concatenate(apart), np.concatenate(outputs)
    if not np.isfinite(difference).all():
        return Difference(float("inf"), float("inf"), 0.0)
    largest = np.abs(difference).max(initial=0.0) / max(np.abs(output).max(initial=0.0), 1e-12)
    mean = np.sqrt((difference**2).mean()) / max(np.sqrt((output**2).mean()), 1e-12)
    return Difference(float(largest), float(mean), float(np.concatenate(same).mean()))


def _complete(model: Any, inputs: list[str], batch: dict[str, Any]) -> dict[str, Any]:
    """A batch with everything that the graph reads: nothing is padding and all is one sentence where it does not say."""
    unread = [name for name in batch if name not in inputs and name != "token_type_ids"]
    if unread:
        raise BadCheckpoint(
            f"The batch has {unread[0]}, and the graph reads {', '.join(inputs)}; compare on a batch of these (batch=)."
        )
    fills = {"attention_mask": torch.ones_like, "token_type_ids": torch.zeros_like}
    complete = {}
    for name in inputs:
        if name not in batch and (name not in fills or "input_ids" not in batch):
            raise BadCheckpoint(f"The batch has no {name}, which {type(model).__name__} reads; give batch= with it.")
        value = batch[name] if name in batch else fills[name](batch["input_ids"])
        complete[name] = value.float() if value.is_floating_point() else value
    return complete


def _unpadded(array: np.ndarray, batch: dict[str, Any]) -> np.ndarray:
    """The entries of an output for tokens that are no padding: what a model computes at the others means nothing."""
    mask = batch.get("attention_mask")
    if mask is None or "decoder_input_ids" in batch or array.shape[:2] != tuple(mask.shape):
        return array
    return array[mask.numpy().astype(bool)]


def other_batches(model: Any) -> list[dict[str, Any]]:
    """Made-up batches of several sizes, of which the larger ones have padding: a graph may be right on one size alone."""
    made = []
    for size, length in SHAPES:
        try:
            batch = random_batch(model, size, length if has_length(model) else None, seed=size)
        except BadMeasure:  # longer than the model's positions
            continue
        if size > 1 and "attention_mask" in batch:
            batch["attention_mask"][1, length // 2 :] = 0
        made.append(batch)
    return made


def checked(model: nn.Module, folder: Path, run: Run, runtime: str, batch: dict[str, Any]) -> Check:
    """What a graph gives beside its model: on a batch, and on made-up ones of other sizes."""
    root = in_float32(model)
    how = json.loads((folder / "config.json").read_text(encoding="utf-8"))[NOTES]
    found = compared(root, run, how["inputs"], [batch, *other_batches(root)])
    count = len(next(iter(batch.values())))
    words = f"outputs for {count} examples, and for 1, 3 and 5 made-up ones, over the largest output,"
    if not how["int8"]:
        return Check(runtime, found.largest, ALLOWED, words)
    notes = (
        f"int8: the largest difference is {found.largest:.1%} of the largest output, and the largest entry is the same one in "
        f"{found.agreement:.1%} of the cases; measure the quality on your data before you use it",
    )
    return Check(
        runtime,
        found.root_mean_square,
        ALLOWED_INT8,
        words.replace("largest output", "mean output (root mean squares)"),
        notes,
    )


def proved(model: Any, run: Run, inputs: list[str], name: str) -> None:
    """`Refused` unless a graph gives what the model gives on made-up batches, before its weights are rounded."""
    found = compared(model, run, inputs, other_batches(model))
    if not found.largest <= ALLOWED:
        raise Refused(
            f"{name} cannot hold {type(model).__name__}: its graph differs from the model by {found.largest:.1e} of the largest "
            "output, before anything is rounded; export it for transformers (--to transformers) instead."
        )


def size_note(before: int, after: int) -> str:
    """How much smaller eight bits made the weights."""
    return f"int8: {bytes_text(after)} instead of {bytes_text(before)} in float32"
