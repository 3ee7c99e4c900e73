"""The contrast task: a clean prompt, a corrupted one that aligns with it, and what a model prefers after either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ...errors import BadData
from ..checks.tokenizers import counted
from ..columns import Table, drawn_numbers
from ..encoding import IGNORED, loaded_tokenizer, longest_input, padded, padding_token, special_tokens
from ..kinds import metric_named
from ..language.request import Request, built
from ..losses import Batch
from ..tasks import Measure, Task
from .alignment import Contrast, Prompts, Reader, Unusable, columns_of, counts_of, spaced
from .measures import INPUTS, contrast_loss, measure_of

UNALIGNED = ("refuse", "drop")


def contrast_task(request: Request) -> Task:
    """The task on clean prompts; `corrupted` is the same task on the corrupted ones, example by example."""
    if request.unaligned not in UNALIGNED:
        raise BadData(f"unaligned (--unaligned) is {' or '.join(UNALIGNED)}; I got {request.unaligned!r:.40}.")
    tokenizer = loaded_tokenizer(request.tokenizer)
    table, examples, problems = _read(tokenizer, request)
    clean, corrupted = (_side(tokenizer, request, table, examples, side) for side in (False, True))
    dropped = counts_of(problems, len(problems) + len(table))
    longer = sum(one.longer for one in examples)
    first = (
        f"{longer} of {len(examples)} examples have answers of several tokens, of which the first is compared"
        * bool(longer)
    )
    return replace(
        clean, corrupted=corrupted, notes=tuple(filter(None, (dropped, first))), skipped=clean.skipped + len(problems)
    )


def _read(tokenizer: Any, request: Request) -> tuple[Table, list[Contrast], list[Unusable]]:
    """The examples as tokens, as many as are asked for, and what was wrong with those that were dropped."""
    table, examples, problems = request.table, list[Contrast](), list[Unusable]()
    reader = Reader(tokenizer, longest_input(tokenizer, request.max_length), spaced(table.labels or ()))
    drop, kept = request.unaligned == "drop", list[int]()
    if not drop:  # what is not drawn need not be right
        table = table.drawn(request.limit, request.seed)
    for number in range(len(table)):
        answers = (table.labels or ())[number]
        try:
            examples.append(
                reader.read(Prompts(table.texts[0][number], table.texts[1][number], answers, table.place(number)))
            )
            kept.append(number)
        except Unusable as problem:
            if not drop:
                raise BadData(str(problem)) from None
            problems.append(problem)
    if not kept:
        raise BadData(f"No example of {table.name} can be used; the first: {problems[0]}")
    if drop and request.limit is not None:
        drawn = drawn_numbers(len(kept), request.limit, request.seed)
        kept, examples = [kept[number] for number in drawn], [examples[number] for number in drawn]
    masked = [one.masked for one in examples]
    if any(masked) and not all(masked):
        raise BadData(
            f"{sum(masked)} of {len(masked)} prompts of {table.name} have a mask; write one in all of them, or in none."
        )
    return table.chosen(kept), examples, problems


def _side(tokenizer: Any, request: Request, table: Table, examples: Sequence[Contrast], corrupted: bool) -> Task:
    lists, pad = columns_of(examples, corrupted), padding_token(tokenizer)

    def collate(numbers: Sequence[int]) -> dict[str, Any]:
        ids, right, wrong = ([lists[name][number] for number in numbers] for name in ("input_ids", "right", "wrong"))
        return {
            "input_ids": padded(ids, pad),  # (examples, tokens), filled up on the right
            "attention_mask": padded([[1] * len(row) for row in ids], 0),
            "at": torch.tensor([examples[number].at for number in numbers]),
            "right": padded(right, IGNORED),  # (examples, most answers)
            "wrong": padded(wrong, IGNORED),
            "masked": torch.tensor([examples[number].masked for number in numbers]),
        }

    def measure(name: str) -> Measure:
        return measure_of(metric_named(request.kind, name))

    def inputs(batch: Batch) -> dict[str, Any]:
        return {name: batch[name] for name in INPUTS}

    return built(
        request,
        table,
        measure,
        contrast_loss,
        None,
        collate=collate,
        example=lambda number: [*map(list, examples[number][:2]), *examples[number][2:5]],
        lengths=[len(one.clean) for one in examples],
        settings={"prompts": "corrupted"} if corrupted else {},
        inputs=inputs,
        texts=lambda number: (table.texts[0][number], table.texts[1][number]),
        special=special_tokens(tokenizer),
        tokens=counted(tokenizer, [*lists["input_ids"]], table.name),
    )
