"""The kinds of tasks: which data each needs, how its examples become batches, and which metrics it has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import BadData
from ..stats.metrics import CLASSIFIED, TOKENS, generated_columns, metric
from .columns import Names, Table, drawn_numbers, read_table
from .encoding import (
    IGNORED,
    Encoded,
    blocks,
    encode,
    hidden_places,
    loaded_processor,
    loaded_tokenizer,
    longest_input,
    padded,
    padding_token,
    picture_reader,
    special_tokens,
)
from .labels import Labels
from .losses import (
    Batch,
    Guessed,
    LogitsAndTargets,
    class_goal,
    class_loss,
    class_rows,
    hidden_tokens,
    model_inputs,
    next_tokens,
    number_goal,
    number_loss,
    number_rows,
    target_tokens,
    token_loss,
    token_rows,
    translation_scores,
)
from .running_text import grouped_blocks, grouped_lines
from .tasks import Loss, Measure, Task, clustered

LIMIT = (2, 10)  # tokens of a translation per token of its source, and besides


def task(
    kind: str,
    data: Any,
    *,
    tokenizer: Any = None,
    text: Names = None,
    label: str | int | None = None,
    target: str | Path | None = None,
    labels: str | Sequence[str] | None = None,
    metric: str | None = None,
    limit: int | None = None,
    split: str | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    max_new_tokens: int | None = None,
    num_beams: int = 1,
    prefix: str = "",
    seed: int | None = 0,
    group: str | int | Path | None = None,
) -> Task:
    """A task of one of `KINDS` on data from a file, a folder, a table in memory, or a data set by name.

    Kinds and their metrics, the first of which is the default: classification (accuracy, f1, matthews, loss), of one
    text or of a pair; regression (pearson, spearman, loss); translation (bleu, chrf, loss), which is any text-to-text;
    language-modelling and masked-language-modelling (perplexity, loss); image-classification (as classification).

    `data` is a path (TSV, CSV, JSON, JSON Lines, Parquet, plain text; also .gz and .xz; a folder with a folder of
    pictures per class), a list of dicts, a dict of columns, a data frame, a `datasets.Dataset`, the name of a data set
    ("glue/sst2", with `split`), or for translation a pair of files; or a file, and the other as `target`. Columns are
    found by their usual names, or named by `text` ("a,b" for a pair), `label` and `target`. `labels` are the data's
    labels in the order of the model's outputs (a list, or "a,b"), where the model's config does not name them.

    `tokenizer` is the tokenizer or image processor, or the folder of the model. Texts are cut off after `max_length`
    tokens (else the tokenizer's limit, else 512); `Task.truncated` counts them. `limit` draws that many examples: the
    first after a shuffle by `seed`, or the first of the file when seed is None. Plain text is joined for language
    modelling and cut into blocks of `max_length` tokens (at most 1024 unless given), of which `limit` then draws; rows
    of a table are one example each; the first token is not guessed. Masked are 15 % of the tokens of every example,
    drawn by `seed` and the row, all of them replaced by the mask. Translations are greedy, or by beam search with
    `num_beams`; each ends after `max_new_tokens`, or where that is not given after 2 tokens per token of its own source
    and 10 more, whatever else is in the data. `prefix` is put before every source ("translate German to English: ").

    `group` is the column that says which examples belong together (phrases of one sentence, questions about one text); of
    plain text, a file that says it line by line. Splits, tests and intervals then keep them together. Blocks of a running
    text are grouped by the document that they begin in without being asked (see `running_text`).
    """
    if kind not in KINDS:
        raise BadData(f"There is no kind of task {kind!r:.60}; choose one of {', '.join(KINDS)}.")
    if batch_size < 1:
        raise BadData(f"The batch size is {batch_size}; it must be at least 1.")
    wants, build = _BUILD[kind]
    table = read_table(data, wants, text=text, label=label, target=target, split=split, group=group)
    asked = _Asked(
        kind, table, tokenizer, metric, labels, limit, batch_size, max_length, max_new_tokens, num_beams, prefix, seed
    )
    return build(asked)


class _Asked(NamedTuple):
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


def _built(
    asked: _Asked,
    table: Table,
    measure: Callable[[str], Measure],
    loss: Loss,
    goal: Callable[[nn.Module, Batch], LogitsAndTargets],
    *,
    collate: Callable[[Sequence[int]], dict[str, Any]],
    example: Callable[[int], Any],
    lengths: Sequence[int],
    settings: Mapping[str, Any],
    **rest: Any,
) -> Task:
    groups = {} if table.groups is None else clustered(table.groups)
    if table.texts and isinstance(table.texts[0][0], str):
        rest.setdefault("texts", lambda number: tuple(column[number] for column in table.texts))
    chosen = measure(asked.metric or KINDS[asked.kind][0])
    return Task(
        kind=asked.kind,
        name=table.name,
        size=len(lengths),
        measure=measure,
        metric=chosen.metric,
        rows=chosen.rows,
        generates=chosen.generates,
        loss=loss,
        goal=goal,
        collate=collate,
        digest=lambda number: hashlib.sha256(json.dumps(example(number)).encode()).digest(),
        lengths=lengths,
        batch_size=asked.batch_size,
        settings=json.dumps(settings, sort_keys=True),
        **{"inputs": model_inputs, "describe": table.place, "skipped": table.skipped, **groups, **rest},
    )


def _checked(kind: str, name: str) -> str:
    if name not in KINDS[kind]:
        raise BadData(f"{kind} has no metric {name!r:.60}; choose one of {', '.join(KINDS[kind])}.")
    return name


# --- classes and numbers --------------------------------------------------------------------------------------------


def _labels(asked: _Asked) -> Labels:
    given = asked.labels.split(",") if isinstance(asked.labels, str) else asked.labels
    names = None if given is None else tuple(str(name).strip() for name in given)
    return Labels(asked.table.name, asked.table.classes, names, asked.table.class_names)


def _class_measure(kind: str, labels: Labels, pad: int | None, name: str) -> Measure:
    counted = _checked(kind, name) in ("f1", "matthews")
    made = metric(name, labels=labels.size if counted else None, columns=CLASSIFIED)
    return Measure(made, partial(class_rows, labels, pad, made.labels))


def _number_measure(kind: str, pad: int | None, name: str) -> Measure:
    return Measure(metric(_checked(kind, name), columns=CLASSIFIED), partial(number_rows, pad))


def _texts(asked: _Asked) -> Task:
    """Classification and regression of texts."""
    tokenizer, labels, whole = loaded_tokenizer(asked.tokenizer), _labels(asked), asked.table
    table = whole.drawn(asked.limit, asked.seed)
    encoded, pad = encode(tokenizer, table.texts, longest_input(tokenizer, asked.max_length)), padding_token(tokenizer)
    empty = next((number for number, length in enumerate(encoded.lengths) if not length), None)
    if empty is not None:
        raise BadData(f"There is no token in {table.place(empty)}; delete rows without text.")
    regression = asked.kind == "regression"
    codes = {name: code for code, name in enumerate(labels.names)}
    values = torch.tensor(table.labels if regression else [codes[one] for one in table.labels or ()])
    return _built(
        asked,
        table,
        partial(_number_measure, asked.kind, pad) if regression else partial(_class_measure, asked.kind, labels, pad),
        partial(number_loss, pad) if regression else partial(class_loss, labels, pad),
        partial(number_goal, pad) if regression else partial(class_goal, labels, pad),
        collate=lambda numbers: {**encoded.padded(numbers), "labels": values[list(numbers)]},
        example=lambda number: [_tokens(encoded, number), [one[number] for one in table.texts], table.labels[number]],
        lengths=encoded.lengths,
        settings={"labels": labels.given, "names": labels.data_names, "pad": pad, "side": encoded.side},
        shortened=encoded.shortened,
        special=special_tokens(tokenizer),
    )


def _pictures(asked: _Asked) -> Task:
    """Classification of pictures, which are read when they are needed."""
    processor, labels = loaded_processor(asked.tokenizer), _labels(asked)
    table = asked.table.drawn(asked.limit, asked.seed)
    pictures = table.texts[0]
    read = picture_reader(processor, pictures, table.place)
    codes = {name: code for code, name in enumerate(labels.names)}
    values = torch.tensor([codes[one] for one in table.labels or ()])

    def example(number: int) -> list[Any]:
        picture = pictures[number]
        seen = picture.read_bytes() if isinstance(picture, Path) else read(number).numpy().tobytes()
        return [hashlib.sha256(seen).hexdigest(), table.labels[number]]

    return _built(
        asked,
        table,
        partial(_class_measure, asked.kind, labels, None),
        partial(class_loss, labels, None),
        partial(class_goal, labels, None),
        collate=lambda numbers: {
            "pixel_values": torch.stack([read(number) for number in numbers]),
            "labels": values[list(numbers)],
        },
        example=example,
        lengths=[1] * len(table),
        settings={"labels": labels.given, "names": labels.data_names, "processor": _described(processor)},
    )


def _described(processor: Any) -> str:
    """What a processor does, as far as it says so itself: its settings, or its name."""
    settings = processor.to_dict() if hasattr(processor, "to_dict") else {}
    name = getattr(processor, "__qualname__", type(processor).__qualname__)
    return f"{name} {json.dumps(settings, sort_keys=True, default=str)}"


def _tokens(encoded: Encoded, number: int) -> dict[str, list[int]]:
    return {name: list(lists[number]) for name, lists in encoded.columns.items() if name != "attention_mask"}


# --- tokens ---------------------------------------------------------------------------------------------------------


def _token_measure(kind: str, guessed: Guessed, name: str) -> Measure:
    return Measure(metric(_checked(kind, name), columns=TOKENS), partial(token_rows, guessed))


def _language(asked: _Asked) -> Task:
    """Language modelling. Batches are filled up on the right, where nothing before the end can see it."""
    tokenizer, table = loaded_tokenizer(asked.tokenizer), asked.table
    if table.plain:
        cut = blocks(tokenizer, "\n".join(table.texts[0]), asked.max_length)
        groups, note = grouped_blocks(table, [block.start for block in cut])
        drawn = range(len(cut)) if asked.limit is None else drawn_numbers(len(cut), asked.limit, asked.seed)
        ids = [cut[one].ids for one in drawn]
        table = replace(table, groups=None if groups is None else [groups[one] for one in drawn])
        rest: dict[str, Any] = {
            "describe": lambda one: f"block {one + 1} of {table.name}: '{_words(tokenizer, ids[one])}...'",
            "texts": None,  # a table of lines, which are not the examples
            "note": note,
        }
    else:
        table = table.drawn(asked.limit, asked.seed)
        encoded = encode(tokenizer, table.texts, longest_input(tokenizer, asked.max_length))
        kept = [number for number, length in enumerate(encoded.lengths) if length > 1]
        places = {number: place for place, number in enumerate(kept)}
        shortened = frozenset(places[number] for number in encoded.shortened)
        ids = [list(encoded.columns["input_ids"][number]) for number in kept]
        rest = {"skipped": len(table) - len(kept), "shortened": shortened}
        table = table.chosen(kept)
    if not ids:
        raise BadData(
            f"{table.name} has no text of two tokens or more; a language model guesses every token but the first."
        )
    lists = Encoded(
        {"input_ids": ids, "attention_mask": [[1] * len(one) for one in ids]}, {"input_ids": padding_token(tokenizer)}
    )
    return _built(
        asked,
        table,
        partial(_token_measure, asked.kind, next_tokens),
        partial(token_loss, next_tokens),
        next_tokens,
        collate=lists.padded,
        example=ids.__getitem__,
        lengths=lists.lengths,
        settings={},
        special=special_tokens(tokenizer),
        **rest,
    )


def _words(tokenizer: Any, ids: Sequence[int]) -> str:
    return " ".join(tokenizer.decode(ids[:12]).split())


def _masked(asked: _Asked) -> Task:
    """Masked language modelling: the loss is over the masked tokens."""
    tokenizer, table = loaded_tokenizer(asked.tokenizer), asked.table
    if tokenizer.mask_token_id is None:
        raise BadData(
            "The tokenizer has no mask token; masked-language-modelling needs a model that was trained with one."
        )
    if table.plain:
        table = replace(table, groups=grouped_lines(table))
        table = table.chosen([number for number, line in enumerate(table.texts[0]) if line.strip()])
    table = table.drawn(asked.limit, asked.seed)
    encoded = encode(tokenizer, table.texts, longest_input(tokenizer, asked.max_length))
    ids = encoded.columns["input_ids"]
    special = frozenset(tokenizer.all_special_ids)
    hidden = [hidden_places(one, special, f"{asked.seed}/{row}") for one, row in zip(ids, table.rows, strict=True)]
    kept = [number for number, places in enumerate(hidden) if places]
    if not kept:
        raise BadData(f"{table.name} has no text with a token that could be masked; give other data.")
    seen, goals = [], []
    for number in kept:
        chosen = set(hidden[number])
        seen.append([tokenizer.mask_token_id if place in chosen else token for place, token in enumerate(ids[number])])
        goals.append([token if place in chosen else IGNORED for place, token in enumerate(ids[number])])
    columns = {name: [lists[number] for number in kept] for name, lists in encoded.columns.items()}
    lists = Encoded({**columns, "input_ids": seen, "labels": goals}, {**encoded.fill, "labels": IGNORED}, encoded.side)
    skipped, places = len(table) - len(kept), {number: place for place, number in enumerate(kept)}
    return _built(
        asked,
        table.chosen(kept),
        partial(_token_measure, asked.kind, hidden_tokens),
        partial(token_loss, hidden_tokens),
        hidden_tokens,
        collate=lists.padded,
        example=lambda number: [seen[number], goals[number]],
        lengths=lists.lengths,
        settings={},
        skipped=skipped,
        shortened=frozenset(places[number] for number in encoded.shortened if number in places),
        special=special_tokens(tokenizer),
    )


def _translation(asked: _Asked) -> Task:
    """Translation, or any other text-to-text, by an encoder-decoder."""
    tokenizer, table = loaded_tokenizer(asked.tokenizer), asked.table.drawn(asked.limit, asked.seed)
    length, pad = longest_input(tokenizer, asked.max_length), padding_token(tokenizer)
    sources = encode(tokenizer, [[asked.prefix + one for one in table.texts[0]]], length)
    references = list(table.texts[1])
    targets = encode(tokenizer, [references], length, target=True)
    goals = targets.columns["input_ids"]
    beams, fixed, (each, more) = asked.num_beams, asked.max_new_tokens, LIMIT
    for option, given in (("num_beams", beams), ("max_new_tokens", fixed)):
        if given is not None and given < 1:
            raise BadData(f"{option} is {given}; it must be at least 1.")
    limits = torch.tensor([each * tokens + more if fixed is None else fixed for tokens in sources.lengths])
    decoding = {"beams": beams, "limit": f"{each}n+{more}" if fixed is None else str(fixed)}

    def collate(numbers: Sequence[int]) -> dict[str, Any]:
        chosen = list(numbers)
        labels = padded([goals[number] for number in chosen], IGNORED)
        texts = [references[number] for number in chosen]
        return {**sources.padded(chosen), "labels": labels, "references": texts, "limits": limits[chosen]}

    def measure(name: str) -> Measure:
        if _checked(asked.kind, name) == "loss":
            return _token_measure(asked.kind, target_tokens, name)
        made = metric(name, columns=generated_columns(name))
        return Measure(made, partial(translation_scores, name, tokenizer, beams), generates=True)

    def inputs(batch: Batch) -> dict[str, Any]:
        # without a model there is no telling how it shifts targets; any tokens will do to compare two models
        return {
            **model_inputs(batch),
            "decoder_input_ids": batch["labels"].masked_fill(batch["labels"] == IGNORED, pad),
        }

    return _built(
        asked,
        table,
        measure,
        partial(token_loss, target_tokens),
        target_tokens,
        collate=collate,
        example=lambda number: [_tokens(sources, number), goals[number], references[number]],
        lengths=sources.lengths,
        settings=decoding,
        decoding=decoding,
        inputs=inputs,
        shortened=sources.shortened | targets.shortened,
        special=special_tokens(tokenizer),
    )


KINDS: Mapping[str, tuple[str, ...]] = {
    "classification": ("accuracy", "f1", "matthews", "loss"),
    "regression": ("pearson", "spearman", "loss"),
    "translation": ("bleu", "chrf", "loss"),
    "language-modelling": ("perplexity", "loss"),
    "masked-language-modelling": ("perplexity", "loss"),
    "image-classification": ("accuracy", "f1", "matthews", "loss"),
}
_BUILD: Mapping[str, tuple[str, Callable[[_Asked], Task]]] = {
    "classification": ("label", _texts),
    "regression": ("number", _texts),
    "translation": ("target", _translation),
    "language-modelling": ("text", _language),
    "masked-language-modelling": ("text", _masked),
    "image-classification": ("image", _pictures),
}
