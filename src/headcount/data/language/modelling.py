"""Language modelling: the tokens of running text, of single texts, and of the answers in conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import BadData
from ...stats.metrics import TOKENS, metric
from ..checks.tokenizers import counted
from ..columns import drawn_numbers
from ..encoding import (
    Encoded,
    blocks,
    encode,
    loaded_tokenizer,
    longest_input,
    padding_token,
    special_tokens,
)
from ..kinds import metric_named
from ..losses import Guessed, next_tokens, token_loss, token_rows
from ..running_text import grouped_blocks
from ..tasks import Measure, Task
from .request import Request, built


def token_measure(kind: str, guessed: Guessed, name: str) -> Measure:
    """A metric of the tokens that are guessed: loss or perplexity."""
    return Measure(metric(metric_named(kind, name), columns=TOKENS), partial(token_rows, guessed))


def language(request: Request) -> Task:
    """Language modelling. Batches are filled up on the right, where nothing before the end can see it."""
    tokenizer, table = loaded_tokenizer(request.tokenizer), request.table
    if table.plain:
        cut = blocks(tokenizer, "\n".join(table.texts[0]), request.max_length)
        groups, note = grouped_blocks(table, [block.start for block in cut])
        drawn = range(len(cut)) if request.limit is None else drawn_numbers(len(cut), request.limit, request.seed)
        ids = [cut[number].ids for number in drawn]
        table = replace(table, groups=None if groups is None else [groups[number] for number in drawn])
        task_options: dict[str, Any] = {
            "describe": lambda number: f"block {number + 1} of {table.name}: '{words_of(tokenizer, ids[number])}...'",
            "texts": None,  # a table of lines, which are not the examples
            "notes": (note,) * bool(note),
            "available": len(cut),
        }
    else:
        table = table.drawn(request.limit, request.seed)
        encoded = encode(tokenizer, table.texts, longest_input(tokenizer, request.max_length))
        kept_numbers = [number for number, length in enumerate(encoded.lengths) if length > 1]
        places = {number: place for place, number in enumerate(kept_numbers)}
        shortened = frozenset(places[number] for number in encoded.shortened)
        ids = [list(encoded.columns["input_ids"][number]) for number in kept_numbers]
        task_options = {"skipped": len(table) - len(kept_numbers), "shortened": shortened}
        table = table.chosen(kept_numbers)
    if not ids:
        raise BadData(
            f"{table.name} has no text of two tokens or more; a language model guesses every token but the first."
        )
    lists = Encoded(
        {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}, {"input_ids": padding_token(tokenizer)}
    )
    return built(
        request,
        table,
        partial(token_measure, request.kind, next_tokens),
        partial(token_loss, next_tokens),
        next_tokens,
        collate=lists.padded,
        example=ids.__getitem__,
        lengths=lists.lengths,
        settings={},
        special=special_tokens(tokenizer),
        tokens=counted(tokenizer, ids, table.name),
        **task_options,
    )


def words_of(tokenizer: Any, ids: Sequence[int]) -> str:
    """The first words of some tokens, for messages."""
    return " ".join(tokenizer.decode(ids[:12]).split())
