"""Prompts with the right token after each and a wrong one: what logits are attributed to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.columns import as_written, drawn_numbers, named_column, usual_column, values_of
from ..data.encoding import IGNORED, loaded_tokenizer, longest_input
from ..data.files import read_sheet
from ..data.language.continuations import continuations
from ..data.losses import LogitsAndTargets, logits_of, summed_losses
from ..data.tasks import Task, custom_task
from ..errors import BadData, BadPlan, Refused

PROMPTS = ("prompt", "text", "sentence", "clean")


def prompt_pairs(
    pairs: Sequence[tuple[Sequence[int], int, int | None]], *, name: str = "prompts", batch_size: int = 8
) -> Task:
    """A task of prompts, each with the right token after it and a wrong one (or None), as tokens.

    Args:
        pairs: (tokens of the prompt, right token, wrong token or None), all of them with a wrong token or none.
        name: Name of the task in texts.
        batch_size: Examples per pass, of one length each.

    Returns:
        A task for `direct_logit_attribution`.

    Examples:
        >>> task = hc.circuits.prompt_pairs([([5, 9, 8], 7, 6), ([4, 4, 3], 2, 1)])
        >>> task.size
        2
    """
    if not pairs or any(not len(ids) for ids, _, _ in pairs) or len({wrong is None for _, _, wrong in pairs}) != 1:
        raise BadPlan(
            "Prompts are triples (tokens, right token, wrong token); all of them have a wrong token, or none has."
        )

    several = next((one for _, *both in pairs for one in both if not isinstance(one, int | np.integer | None)), None)
    if several is not None:
        raise BadPlan(f"A right or wrong answer is one token, a number; I got {several!r:.40}: take its first token.")

    def batch(ids: Sequence[int], right: int, wrong: int | None) -> dict[str, Tensor]:
        ahead = [IGNORED] * (len(ids) - 1)
        made = {"input_ids": [list(ids)], "attention_mask": [[1] * len(ids)], "labels": [[*ahead, right]]}
        made |= {} if wrong is None else {"wrong": [[*ahead, wrong]]}
        return {key: torch.tensor(value) for key, value in made.items()}

    def goal(model: nn.Module, batch: Any) -> LogitsAndTargets:
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            raise Refused(
                f"{type(model).__name__} is an encoder-decoder, which does not go on with a prompt: attribute the tokens of "
                "translations (task translation)."
            )
        logits = logits_of(model, {key: batch[key] for key in ("input_ids", "attention_mask")})
        return LogitsAndTargets(logits, batch["labels"].to(logits.device))

    by_length: dict[int, list[int]] = {}
    for number, (ids, _, _) in enumerate(pairs):
        by_length.setdefault(len(ids), []).append(number)
    batches = []
    for numbers in by_length.values():
        rows = [batch(*pairs[number]) for number in numbers]
        batches.append({key: torch.cat([row[key] for row in rows]) for key in rows[0]})
    task = custom_task(
        batches, loss=lambda model, batch: summed_losses(*goal(model, batch)), name=name, batch_size=batch_size
    )
    order = [number for numbers in by_length.values() for number in numbers]  # as the batches have them
    places = {number: place for place, number in enumerate(order)}
    return replace(task, goal=goal, kind="prompts").subset([places[number] for number in range(len(pairs))])


def of_contrasts(task: Task) -> Task:
    """The clean prompts of a contrast task with their right and wrong tokens; `Refused` where there are several of either."""
    rows = []
    for number in range(task.size):
        one = task.collate([number])
        if bool(one["masked"][0]):
            raise Refused(
                f"The answer to {task.describe(number)} stands at a mask, and logits are attributed behind a prompt: give "
                "prompts that end where the answer begins."
            )
        right, wrong = ([int(token) for token in one[side][0] if token != IGNORED] for side in ("right", "wrong"))
        if len(right) != 1 or len(wrong) != 1:
            raise Refused(
                f"{task.describe(number)} has {len(right)} right and {len(wrong)} wrong answers, and logits are attributed to "
                "one token of each: give prompts with one (--right, --wrong)."
            )
        ids = one["input_ids"][0, : int(one["at"][0]) + 1].tolist()
        rows.append((ids, right[0], wrong[0]))
    return replace(prompt_pairs(rows, name=task.name), clusters=task.clusters, cluster_names=task.cluster_names)


def read_prompts(
    data: Any,
    tokenizer: Any,
    *,
    right: str,
    wrong: str | None = None,
    text: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    max_length: int | None = None,
    split: str | None = None,
) -> Task:
    """Prompts of a table with a column of right words and, perhaps, one of wrong words; of each, its first token counts.

    Words are read as they follow the prompt: after a space, unless they bring one. A row whose right and wrong words begin with
    the same token, or whose prompts differ by the word behind them, is an error with its place.
    """
    asked = [name for name in (text, right, wrong) if name]
    sheet = read_sheet(data, split=split, expected=[name.lower() for name in (*asked, *PROMPTS)], table=True)
    column = named_column(sheet, text, "text") if text else usual_column(sheet, PROMPTS)
    if column is None:
        raise BadData(f"{sheet.name} has no column of prompts ({', '.join(PROMPTS)}); name it with text= (--text).")
    prompts = [as_written(value) if not isinstance(value, str) else value for value in values_of(sheet, column)]
    words = [
        values_of(sheet, named_column(sheet, name, option))
        for option, name in (("right", right), ("wrong", wrong))
        if name
    ]
    numbers = list(range(len(prompts))) if limit is None else drawn_numbers(len(prompts), limit, seed)
    loaded = loaded_tokenizer(tokenizer)
    places = [f"row {number + 1} of {sheet.name}" for number in numbers]
    length = longest_input(loaded, max_length)
    read = [
        continuations(loaded, [(prompts[n], _behind(prompts[n], as_written(some[n]))) for n in numbers], length, places)
        for some in words
    ]
    rows = []
    for place, *both in zip(places, *read, strict=True):
        first = both[0]
        if any(other.ids[: other.start] != first.ids[: first.start] for other in both):
            raise BadData(
                f"In {place} the tokens of the prompt depend on the word behind it; end the prompt at the end of a word."
            )
        tokens = [one.ids[one.start] for one in both]
        if len(set(tokens)) < len(tokens):
            raise BadData(
                f"In {place} the right and the wrong word begin with the same token; give words that begin differently."
            )
        rows.append((first.ids[: first.start], tokens[0], tokens[1] if wrong else None))
    return prompt_pairs(rows, name=sheet.name)


def _behind(prompt: str, word: str) -> str:
    return word if prompt != prompt.rstrip() or not prompt else f" {word}"
