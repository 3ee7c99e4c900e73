"""Language modelling: the tokens of running text, of single texts, and of the answers in conversations."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ...errors import BadData
from ...stats.metrics import TOKENS, metric
from ..checks.tokenizers import counted
from ..columns import Table, drawn_numbers
from ..encoding import (
    IGNORED,
    Encoded,
    beginning,
    blocks,
    encode,
    loaded_tokenizer,
    longest_block,
    longest_input,
    padding_token,
    running_tokens,
    special_tokens,
)
from ..kinds import metric_named
from ..losses import Guessed, labelled_tokens, next_tokens, token_loss, token_rows
from ..running_text import FEWEST, grouped_blocks
from ..tasks import Measure, Task
from .chats import encoded_chats
from .request import Request, built
from .windows import windows


def token_measure(kind: str, guessed: Guessed, name: str) -> Measure:
    """A metric of the tokens that are guessed: loss or perplexity."""
    return Measure(metric(metric_named(kind, name), columns=TOKENS), partial(token_rows, guessed))


class _Read(NamedTuple):
    """Examples as tokens: all tokens but the first of each are guessed, or those that `labels` has."""

    table: Table
    ids: list[list[int]]
    labels: list[list[int]] | None
    options: dict[str, Any]


def language(request: Request) -> Task:
    """Language modelling. Batches are filled up on the right, where nothing before the end can see it."""
    tokenizer, table = loaded_tokenizer(request.tokenizer), request.table
    chats = not table.plain and not isinstance(table.texts[0][0], str)
    if chats and request.stride is not None:
        raise BadData(
            "stride (--stride) is for running text and long documents, and these are conversations: leave it out."
        )
    read = (_conversations if chats else _running_text if table.plain else _documents)(request, tokenizer)
    table, ids, labels, task_options = read
    if not ids:
        raise BadData(
            f"{table.name} has no conversation with an answer of the assistant (within {request.max_length or 'the'} tokens that "
            "are read); nothing else is guessed."
            if chats
            else f"{table.name} has no text of two tokens or more; a language model guesses every token but the first."
        )
    columns = {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}
    columns |= {} if labels is None else {"labels": labels}
    lists = Encoded(columns, {"input_ids": padding_token(tokenizer), "labels": IGNORED})
    guessed = next_tokens if labels is None else labelled_tokens
    return built(
        request,
        table,
        partial(token_measure, request.kind, guessed),
        partial(token_loss, guessed),
        guessed,
        collate=lists.padded,
        example=ids.__getitem__ if labels is None else lambda number: [ids[number], labels[number]],
        lengths=lists.lengths,
        settings={},
        special=special_tokens(tokenizer),
        tokens=counted(tokenizer, ids, table.name),
        **task_options,
    )


def _running_text(request: Request, tokenizer: Any) -> _Read:
    """The lines of a plain text, joined and cut into blocks, or into windows where a stride is given."""
    table, text = request.table, "\n".join(request.table.texts[0])
    if request.stride is None:
        cut = blocks(tokenizer, text, request.max_length)
        every, every_label, starts = [block.ids for block in cut], None, [block.start for block in cut]
        noun = "block"
    else:
        every_id, offsets = running_tokens(tokenizer, text)
        length = longest_block(tokenizer, request.max_length)
        slid = windows(every_id, beginning(tokenizer), length, request.stride)
        every, every_label = [window.ids for window in slid], [window.labels for window in slid]
        starts = [None if offsets is None else offsets[window.first] for window in slid]
        noun = "window"
    groups, note = grouped_blocks(table, starts)
    limit = request.limit
    drawn = range(len(every)) if limit is None else drawn_numbers(len(every), limit, request.seed)
    ids = [every[number] for number in drawn]
    options = {
        "describe": lambda number: (
            f"{noun} {drawn[number] + 1} of {table.name}: '{words_of(tokenizer, ids[number])}...'"
        ),
        "texts": None,  # a table of lines, which are not the examples
        "notes": (note,) * bool(note),
        "available": len(every),
    }
    table = replace(table, groups=None if groups is None else [groups[number] for number in drawn])
    return _Read(table, ids, None if every_label is None else [every_label[number] for number in drawn], options)


def _documents(request: Request, tokenizer: Any) -> _Read:
    """The rows of a table, each a text: cut off after the longest input, or in windows where a stride is given."""
    table = request.table.drawn(request.limit, request.seed)
    length = longest_input(tokenizer, request.max_length)
    if request.stride is not None:
        return _slid(table, tokenizer, length, request.stride)
    encoded = encode(tokenizer, table.texts, length)
    kept_numbers = [number for number, tokens in enumerate(encoded.lengths) if tokens > 1]
    places = {number: place for place, number in enumerate(kept_numbers)}
    shortened = frozenset(places[number] for number in encoded.shortened)
    ids = [list(encoded.columns["input_ids"][number]) for number in kept_numbers]
    options = {"skipped": len(table) - len(kept_numbers), "shortened": shortened}
    return _Read(table.chosen(kept_numbers), ids, None, options)


def _slid(table: Table, tokenizer: Any, length: int, stride: int) -> _Read:
    """Windows over every document; those of one document belong together."""
    begin = beginning(tokenizer)
    slid = [windows(running_tokens(tokenizer, text)[0], begin, length, stride) for text in table.texts[0]]
    owners = [number for number, some in enumerate(slid) for _ in some]
    together = [window for some in slid for window in some]
    groups, note = table.groups, ""
    parted = len(set(owners)) < len(owners)
    if groups is None and parted and len(set(owners)) < FEWEST:
        note = (
            f"the {len(owners)} windows of {table.name} are from {len(set(owners))} documents, too few to draw them whole: "
            "intervals take windows for independent"
        )
    elif groups is None and parted:
        groups = [hashlib.sha256(text.strip().encode()).hexdigest()[:32] for text in table.texts[0]]
    table = replace(table, groups=groups)
    options = {"skipped": sum(not some for some in slid), "texts": None, "notes": (note,) * bool(note)}
    options["available"] = len(owners)
    return _Read(
        table.chosen(owners), [window.ids for window in together], [window.labels for window in together], options
    )


def _conversations(request: Request, tokenizer: Any) -> _Read:
    """Conversations, of which the assistant's answers are guessed."""
    table = request.table.drawn(request.limit, request.seed)
    where = [table.place(number) for number in range(len(table))]
    chats = encoded_chats(tokenizer, table.texts[0], longest_input(tokenizer, request.max_length), where)
    kept = [number for number, chat in enumerate(chats) if chat.asks]
    some = [chats[number] for number in kept]
    texts = [tokenizer.decode(chat.ids) for chat in some]
    options = {
        "skipped": len(chats) - len(kept),
        "shortened": frozenset(place for place, chat in enumerate(some) if chat.shortened),
        "texts": lambda number: (texts[number],),
        "notes": ("the loss counts the answers of the assistant, written out by the tokenizer's chat template",),
    }
    return _Read(table.chosen(kept), [chat.ids for chat in some], [chat.labels for chat in some], options)


def words_of(tokenizer: Any, ids: Sequence[int]) -> str:
    """The first words of some tokens, for messages."""
    return " ".join(tokenizer.decode(ids[:12]).split())
