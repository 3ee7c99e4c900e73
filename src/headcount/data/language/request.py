"""What was asked of `task`, and how a task is built from it: the same for every kind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import nn

from ..columns import Table
from ..kinds import KINDS
from ..losses import Batch, LogitsAndTargets, model_inputs
from ..tasks import Loss, Measure, Task, clustered


class Request(NamedTuple):
    """What the user asked for, together with the data."""

    kind: str
    table: Table
    tokenizer: Any
    metric: str | None
    labels: str | Sequence[str] | None
    limit: int | None
    batch_size: int
    max_length: int | None
    max_new_tokens: int | None
    num_beams: int
    prefix: str
    seed: int | None
    stride: int | None = None
    unaligned: str = "refuse"


def built(
    request: Request,
    table: Table,
    measure: Callable[[str], Measure],
    loss: Loss,
    goal: Callable[[nn.Module, Batch], LogitsAndTargets] | None,
    *,
    collate: Callable[[Sequence[int]], dict[str, Any]],
    example: Callable[[int], Any],
    lengths: Sequence[int],
    settings: Mapping[str, Any],
    **task_options: Any,
) -> Task:
    """The task of a request: its metric, and examples that are collated, told apart and described by the table."""
    groups = {} if table.groups is None else clustered(table.groups)
    if table.texts and isinstance(table.texts[0][0], str):
        task_options.setdefault("texts", lambda number: tuple(column[number] for column in table.texts))
    chosen = measure(request.metric or KINDS[request.kind][0])
    return Task(
        kind=request.kind,
        name=table.name,
        size=len(lengths),
        measure=measure,
        metric=chosen.metric,
        rows=chosen.rows,
        generates=chosen.generates,
        loss=loss,
        goal=goal,
        collate=collate,
        digest=cache(
            lambda number: hashlib.sha256(json.dumps(example(number)).encode()).digest()
        ),  # asked for many times
        lengths=lengths,
        batch_size=request.batch_size,
        settings=json.dumps(settings, sort_keys=True),
        **{
            "available": len(request.table),
            "inputs": model_inputs,
            "describe": table.place,
            "skipped": table.skipped,
            **groups,
            **task_options,
        },
    )
