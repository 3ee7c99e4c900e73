"""The files beside a graph: config.json with labels, tokenizer or processor, and run.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...data.encoding import loaded_processor, loaded_tokenizer, longest_input
from ...efficiency.random_inputs import main_input
from ...errors import HeadcountError
from ..check_batch import TEXTS

SCRIPT = Path(__file__).parent.with_name("templates") / "run.py"
NOTES = "headcount_export"  # the key of config.json that run.py reads
READ = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids")  # what run.py can make of a text


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
    found = [getattr(text, name, None) for name in ("max_position_embeddings", "n_positions")]
    positions = min((count for count in found if isinstance(count, int) and count > 0), default=10**9)
    if any(name in str(config.model_type) for name in ("roberta", "camembert", "mpnet")):
        positions -= 2  # they begin after that of the padding
    most = max(1, min(longest_input(tokenizer, None), positions))
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
        how["positions"] = positions if how["task"] == "generate" else 10**9
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
