"""PEFT adapters: the class of the model that one was trained on, and merging it, so that what is loaded is an ordinary model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import BadCheckpoint
from ...model_files import ADAPTER, read_json_or_refuse
from ..distributed.refusals import in_one_place

CLASSES = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
}
HEADS = ("classifier", "score", "classifier.out_proj", "qa_outputs")
ADDS_TOKENS = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT", "ADAPTION_PROMPT")


def adapted_class(kind: Any, config: Any, adapter: str) -> Any:
    """The class of the base model that an adapter was trained on, by its task; the config gets the labels it has.

    An encoder becomes a classifier, say, whose head is in the adapter.
    """
    import transformers

    task = read_json_or_refuse(Path(adapter) / ADAPTER).get("task_type")
    if task not in CLASSES:
        return kind
    auto = getattr(transformers, CLASSES[task])
    wanted = auto._model_mapping.get(type(config), None)
    wanted = wanted if isinstance(wanted, tuple | list) else (wanted,)
    if wanted[0] is None or kind in wanted or kind is auto:
        return kind
    labels = _labels(Path(adapter))
    if labels is not None:
        config.num_labels = labels
    return wanted[0]


def merged(model: Any, adapter: str, missing: Iterable[str] = ()) -> Any:
    """The model with the adapter's changes added to its weights; `missing` are those that its own files do not have."""
    kind = str(read_json_or_refuse(Path(adapter) / ADAPTER).get("peft_type", "PEFT"))[:40]
    if kind in ADDS_TOKENS:
        raise BadCheckpoint(
            f"{adapter} is an adapter of type {kind}, which adds to what the model reads and not to its weights: it cannot be "
            "merged; give the model that it belongs to."
        )
    if find_spec("peft") is None:
        raise BadCheckpoint(
            f"{adapter} is an adapter ({kind}), and the package that merges them is not installed: "
            "pip install 'headcount[adapters]'."
        )
    from peft import PeftModel

    in_one_place(model, "its adapter cannot be merged into them")
    names = _tensor_names(Path(adapter))
    fresh = [name for name in missing if not any(held.endswith(f".{name}") for held in names)] if names else []
    if fresh:
        raise BadCheckpoint(
            f"{sorted(fresh)[0]} of {type(model).__name__} is neither in the adapter {adapter} nor in its base: it would be "
            "drawn at random; save the trained model whole, or its head with the adapter (modules_to_save)."
        )
    try:
        return PeftModel.from_pretrained(model, adapter).merge_and_unload()
    except Exception as error:  # whatever peft raises on a file that was not written for this model
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadCheckpoint(
            f"The adapter {adapter} cannot be merged into {type(model).__name__} ({type(error).__name__}: {first[:200]}); "
            "is that the model that it was trained on?"
        ) from error


def _labels(adapter: Path) -> int | None:
    """How many outputs the head in an adapter has, or None where it brings none."""
    heads = tuple(f".{head}.weight" for head in HEADS)
    with _tensors(adapter) as tensors:
        names = [name for name in _names(tensors) if name.endswith(heads)]
        return int(tensors.get_slice(names[-1]).get_shape()[0]) if names else None


def _tensor_names(adapter: Path) -> list[str]:
    """The names of the tensors in an adapter; none where it is a pickle, which is left to peft."""
    with _tensors(adapter) as tensors:
        return _names(tensors)


def _names(tensors: Any) -> list[str]:
    return [] if tensors is None else list(tensors.keys())


@contextmanager
def _tensors(adapter: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    path = adapter / "adapter_model.safetensors"
    if not path.is_file():
        yield None
        return
    try:
        with safe_open(path, "pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise BadCheckpoint(f"{path} is damaged ({str(error)[:80]}); copy it again.") from None
