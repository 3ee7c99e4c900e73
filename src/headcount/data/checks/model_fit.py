"""Whether a task fits the model that it is read for: its tokens, its length, what its texts begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import encoding
from .tokenizers import check_vocabulary

if TYPE_CHECKING:
    from ..tasks import Task


def check_tokens(task: Task, name: str, model: Any) -> None:
    """Refuse a tokenizer that is not the model's: tokens without a row in its embedding, or next to none of its rows."""
    try:
        rows = int(model.get_input_embeddings().weight.shape[0])
    except (AttributeError, NotImplementedError):
        return  # not a model of tokens
    if task.tokens is not None:
        check_vocabulary(task.tokens.vocabulary, task.tokens.largest, rows, name)


def longest_input(tokenizer: Any, model: Any) -> tuple[int | None, list[str]]:
    """The longest input where the model has fewer positions than the tokenizer believes (else nothing), and notes."""
    longest, positions = encoding.longest_input(tokenizer, None), positions_of(model)
    if positions is None or positions == longest:
        return None, []
    if positions < longest:
        return positions, []
    believed = getattr(tokenizer, "model_max_length", None)
    if longest < encoding.LONGEST or believed == longest:
        return None, []  # the tokenizer says so itself
    limit = f"the tokenizer names no longest input, so texts are cut off after {longest} tokens; the model has"
    return None, [f"{limit} {positions:,} positions: --max-length sets another limit"]


def positions_of(model: Any) -> int | None:
    """How many tokens a model has positions for, where its config says so."""
    config = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    number = getattr(config, "max_position_embeddings", None)
    if not isinstance(number, int) or number < 1:
        return None
    tables = [table for name, table in model.named_modules() if name.endswith("position_embeddings")]
    before = [table.padding_idx + 1 for table in tables if getattr(table, "padding_idx", None) is not None]
    return number - max(before, default=0)  # RoBERTa's positions begin after its padding token


def missing_prefix(model: Any, task: Task) -> list[str]:
    """A note where a model was trained with prefixes, such as T5's, and the first source begins with none of them."""
    settings = getattr(getattr(model, "config", None), "task_specific_params", None)
    options = settings.values() if isinstance(settings, dict) else []
    prefixes = [str(option["prefix"]) for option in options if isinstance(option, dict) and option.get("prefix")]
    if not prefixes or task.kind != "translation" or task.texts is None:
        return []
    if task.texts(0)[0].startswith(tuple(prefixes)):
        return []
    return [
        f"the model was trained on sources that begin with words such as {prefixes[0]!r:.60}; give them with --prefix"
    ]
