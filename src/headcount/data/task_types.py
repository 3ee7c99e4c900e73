"""The kinds of tasks: which data each needs, how its examples become batches, and which metrics it has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..errors import BadData
from ..stats.metrics import CLASSIFIED, generated_columns, metric
from .checks.tokenizers import counted
from .columns import Names, read_table
from .contrast.contrasts import contrast_task
from .contrast.generation import generated_pairs, of_generator
from .contrast.pairs import read_pairs
from .encoding import (
    IGNORED,
    Encoded,
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
from .kinds import alias_notes, kind_named, metric_named
from .labels import Labels
from .language.choice_columns import read_choices
from .language.harness import harness_task, of_harness
from .language.last_words import last_words
from .language.modelling import language, token_measure
from .language.multiple_choice import multiple_choice
from .language.request import Request, built
from .losses import (
    Batch,
    class_goal,
    class_loss,
    class_rows,
    hidden_tokens,
    model_inputs,
    number_goal,
    number_loss,
    number_rows,
    target_tokens,
    token_loss,
    translation_scores,
)
from .running_text import grouped_lines
from .tasks import Measure, Task

LIMIT = (2, 10)  # tokens of a translation per token of its source, and besides


def task(
    kind: str,
    data: Any = None,
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
    choices: Names = None,
    prompt: str | None = None,
    stride: int | None = None,
    unaligned: str = "refuse",
) -> Task:
    """A task of one of `KINDS` on data from a file, a folder, a table in memory, or a data set by name.

    Kinds and their metrics, the first of which is the default: classification (accuracy, f1, matthews, loss), of one
    text or of a pair; regression (pearson, spearman, loss); translation (bleu, chrf, loss), which is any text-to-text;
    language-modelling and masked-language-modelling (perplexity, loss); multiple-choice (accuracy, accuracy-norm, loss);
    last-word (accuracy, loss); contrast (logit-difference, probability-difference, accuracy, kl, normalised, loss);
    image-classification (as classification).

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

    Args:
        kind: One of the kinds above.
        data: Where the examples are.
        tokenizer: The tokenizer or image processor, or the model folder.
        text: The column of the text; "a,b" for a pair.
        label: The column of the label.
        target: The other side of parallel text.
        labels: The data's labels in the order of the model's outputs.
        metric: The metric; by default the first of the kind.
        limit: Number of examples to sample.
        split: Split of a data set loaded by name.
        batch_size: Examples per forward pass.
        max_length: Truncate texts after this many tokens.
        max_new_tokens: Maximum length of a translation.
        num_beams: Beam size of translation.
        prefix: Prefix of every source text.
        seed: Random seed of the sample; None takes the first.
        group: The column of the groups (clusters) of examples.
        choices: The column of the choices of multiple choice, or "a,b,c": one for each.
        prompt: What is read before a choice, with columns in braces: "Question: {question}".
        stride: Tokens that a sliding window over running text or a long document moves on by.
        unaligned: What becomes of contrast examples that do not align token by token: "refuse" or "drop".

    Returns:
        A task that every verb takes.

    Examples:
        >>> task = hc.task("classification", "dev.tsv", tokenizer="my-model", limit=64)
        >>> len(task)
        64
    """
    if of_harness(kind):
        if data is not None:
            raise BadData(f"Tasks of lm-eval bring their own documents; leave the data ({data!r:.60}) out.")
        options = {"metric": metric, "limit": limit, "batch_size": batch_size, "max_length": max_length, "seed": seed}
        return harness_task(kind, tokenizer=tokenizer, **options)
    pairs = generated_pairs(kind, data, tokenizer, limit, seed) if of_generator(kind) else None
    kind, data = ("contrast", ()) if pairs is not None else (kind, data)
    if data is None:
        raise BadData("The task needs data: a file, a folder, a table in memory, or the name of a data set.")
    name, kind = kind, kind_named(kind)
    notes = alias_notes(name, metric, kind)
    if batch_size < 1:
        raise BadData(f"The batch size is {batch_size}; it must be at least 1.")
    if stride is not None and kind != "language-modelling":
        raise BadData(f"stride (--stride) belongs to language-modelling, and the kind is {kind}.")
    if unaligned != "refuse" and kind != "contrast":
        raise BadData(f"unaligned (--unaligned) belongs to contrast, and the kind is {kind}.")
    wants, build = _BUILD[kind]
    if pairs is not None:
        table = pairs
    elif wants == "pairs":
        table = read_pairs(
            data, text=text, target=target, label=label, choices=choices, split=split, group=group, limit=limit
        )
    elif wants == "choices":
        table = read_choices(
            data, text=text, choices=choices, label=label, prompt=prompt, split=split, group=group, limit=limit
        )
    elif choices is not None or prompt is not None:
        raise BadData(f"choices and prompt (--choices, --prompt) belong to multiple-choice, and the kind is {kind}.")
    else:
        table = read_table(data, wants, text=text, label=label, target=target, split=split, group=group, limit=limit)
    request = Request(
        kind,
        table,
        tokenizer,
        metric,
        labels,
        limit,
        batch_size,
        max_length,
        max_new_tokens,
        num_beams,
        prefix,
        seed,
        stride,
        unaligned,
    )
    made = build(request)
    tokens = "" if made.tokens is None else made.tokens.note(table.name)
    return replace(made, notes=(*notes, *table.notes, *made.notes, *[tokens] * bool(tokens)))


# --- classes and numbers --------------------------------------------------------------------------------------------


def _labels(request: Request) -> Labels:
    label_names = request.labels.split(",") if isinstance(request.labels, str) else request.labels
    names = None if label_names is None else tuple(str(name).strip() for name in label_names)
    return Labels(request.table.name, request.table.classes, names, request.table.class_names)


def _class_measure(kind: str, labels: Labels, pad: int | None, name: str) -> Measure:
    name = metric_named(kind, name)
    counts = labels.size if name in ("f1", "matthews") else None
    class_metric = metric(name, labels=counts, columns=CLASSIFIED)
    return Measure(class_metric, partial(class_rows, labels, pad, class_metric.labels))


def _number_measure(kind: str, pad: int | None, name: str) -> Measure:
    return Measure(metric(metric_named(kind, name), columns=CLASSIFIED), partial(number_rows, pad))


def _texts(request: Request) -> Task:
    """Classification and regression of texts."""
    tokenizer, labels, full_table = loaded_tokenizer(request.tokenizer), _labels(request), request.table
    table = full_table.drawn(request.limit, request.seed)
    encoded, pad = (
        encode(tokenizer, table.texts, longest_input(tokenizer, request.max_length)),
        padding_token(tokenizer),
    )
    empty = next((number for number, length in enumerate(encoded.lengths) if not length), None)
    if empty is not None:
        raise BadData(f"There is no token in {table.place(empty)}; delete rows without text.")
    regression = request.kind == "regression"
    codes = {name: code for code, name in enumerate(labels.names)}
    values = torch.tensor(table.labels if regression else [codes[label] for label in table.labels or ()])
    return built(
        request,
        table,
        partial(_number_measure, request.kind, pad)
        if regression
        else partial(_class_measure, request.kind, labels, pad),
        partial(number_loss, pad) if regression else partial(class_loss, labels, pad),
        partial(number_goal, pad) if regression else partial(class_goal, labels, pad),
        collate=lambda numbers: {**encoded.padded(numbers), "labels": values[list(numbers)]},
        example=lambda number: [
            _tokens(encoded, number),
            [column[number] for column in table.texts],
            (table.labels or ())[number],
        ],
        lengths=encoded.lengths,
        settings={"labels": labels.given, "names": labels.data_names, "pad": pad, "side": encoded.side},
        shortened=encoded.shortened,
        special=special_tokens(tokenizer),
        tokens=counted(tokenizer, encoded.columns["input_ids"], table.name),
        label_names=() if regression else labels.names,
    )


def _pictures(request: Request) -> Task:
    """Classification of pictures, which are read when they are needed."""
    processor, labels = loaded_processor(request.tokenizer), _labels(request)
    table = request.table.drawn(request.limit, request.seed)
    pictures = table.texts[0]
    read = picture_reader(processor, pictures, table.place)
    codes = {name: code for code, name in enumerate(labels.names)}
    values = torch.tensor([codes[label] for label in table.labels or ()])

    def example(number: int) -> list[Any]:
        picture = pictures[number]
        content = picture.read_bytes() if isinstance(picture, Path) else read(number).numpy().tobytes()
        return [hashlib.sha256(content).hexdigest(), (table.labels or ())[number]]

    return built(
        request,
        table,
        partial(_class_measure, request.kind, labels, None),
        partial(class_loss, labels, None),
        partial(class_goal, labels, None),
        collate=lambda numbers: {
            "pixel_values": torch.stack([read(number) for number in numbers]),
            "labels": values[list(numbers)],
        },
        example=example,
        lengths=[1] * len(table),
        settings={"labels": labels.given, "names": labels.data_names, "processor": _described(processor)},
        label_names=labels.names,
    )


def _described(processor: Any) -> str:
    """What a processor does, as far as it says so itself: its settings, or its name."""
    settings = processor.to_dict() if hasattr(processor, "to_dict") else {}
    name = getattr(processor, "__qualname__", type(processor).__qualname__)
    return f"{name} {json.dumps(settings, sort_keys=True, default=str)}"


def _tokens(encoded: Encoded, number: int) -> dict[str, list[int]]:
    return {name: list(lists[number]) for name, lists in encoded.columns.items() if name != "attention_mask"}


# --- tokens ---------------------------------------------------------------------------------------------------------


def _masked(request: Request) -> Task:
    """Masked language modelling: the loss is over the masked tokens."""
    tokenizer, table = loaded_tokenizer(request.tokenizer), request.table
    if tokenizer.mask_token_id is None:
        raise BadData(
            "The tokenizer has no mask token; masked-language-modelling needs a model that was trained with one."
        )
    if table.plain:
        table = replace(table, groups=grouped_lines(table))
        table = table.chosen([number for number, line in enumerate(table.texts[0]) if line.strip()])
    table = table.drawn(request.limit, request.seed)
    encoded = encode(tokenizer, table.texts, longest_input(tokenizer, request.max_length))
    ids = encoded.columns["input_ids"]
    tokens = counted(tokenizer, ids, table.name)
    special = frozenset(tokenizer.all_special_ids)
    hidden = [
        hidden_places(tokens, special, f"{request.seed}/{row}") for tokens, row in zip(ids, table.rows, strict=True)
    ]
    kept_numbers = [number for number, places in enumerate(hidden) if places]
    if not kept_numbers:
        raise BadData(f"{table.name} has no text with a token that could be masked; give other data.")
    masked_ids, goals = [], []
    for number in kept_numbers:
        chosen = set(hidden[number])
        masked_ids.append(
            [tokenizer.mask_token_id if place in chosen else token for place, token in enumerate(ids[number])]
        )
        goals.append([token if place in chosen else IGNORED for place, token in enumerate(ids[number])])
    columns = {name: [lists[number] for number in kept_numbers] for name, lists in encoded.columns.items()}
    lists = Encoded(
        {**columns, "input_ids": masked_ids, "labels": goals}, {**encoded.fill, "labels": IGNORED}, encoded.side
    )
    skipped, places = len(table) - len(kept_numbers), {number: place for place, number in enumerate(kept_numbers)}
    return built(
        request,
        table.chosen(kept_numbers),
        partial(token_measure, request.kind, hidden_tokens),
        partial(token_loss, hidden_tokens),
        hidden_tokens,
        collate=lists.padded,
        example=lambda number: [masked_ids[number], goals[number]],
        lengths=lists.lengths,
        settings={},
        skipped=skipped,
        shortened=frozenset(places[number] for number in encoded.shortened if number in places),
        special=special_tokens(tokenizer),
        tokens=tokens,
    )


def _translation(request: Request) -> Task:
    """Translation, or any other text-to-text, by an encoder-decoder."""
    tokenizer, table = loaded_tokenizer(request.tokenizer), request.table.drawn(request.limit, request.seed)
    length, pad = longest_input(tokenizer, request.max_length), padding_token(tokenizer)
    sources = encode(tokenizer, [[request.prefix + text for text in table.texts[0]]], length)
    references = list(table.texts[1])
    targets = encode(tokenizer, [references], length, target=True)
    goals = targets.columns["input_ids"]
    beams, fixed, (per_token, more) = request.num_beams, request.max_new_tokens, LIMIT
    for option, value in (("num_beams", beams), ("max_new_tokens", fixed)):
        if value is not None and value < 1:
            raise BadData(f"{option} is {value}; it must be at least 1.")
    limits = torch.tensor([per_token * tokens + more if fixed is None else fixed for tokens in sources.lengths])
    decoding = {"beams": beams, "limit": f"{per_token}n+{more}" if fixed is None else str(fixed)}

    def collate(numbers: Sequence[int]) -> dict[str, Any]:
        chosen = list(numbers)
        labels = padded([goals[number] for number in chosen], IGNORED)
        texts = [references[number] for number in chosen]
        return {**sources.padded(chosen), "labels": labels, "references": texts, "limits": limits[chosen]}

    def measure(name: str) -> Measure:
        name = metric_named(request.kind, name)
        if name == "loss":
            return token_measure(request.kind, target_tokens, name)
        text_metric = metric(name, columns=generated_columns(name))
        return Measure(text_metric, partial(translation_scores, name, tokenizer, beams), generates=True)

    def inputs(batch: Batch) -> dict[str, Any]:
        # without a model there is no telling how it shifts targets; any tokens will do to compare two models
        return {
            **model_inputs(batch),
            "decoder_input_ids": batch["labels"].masked_fill(batch["labels"] == IGNORED, pad),
        }

    return built(
        request,
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
        tokens=counted(tokenizer, sources.columns["input_ids"], table.name),
    )


_BUILD: Mapping[str, tuple[str, Callable[[Request], Task]]] = {
    "contrast": ("pairs", contrast_task),
    "multiple-choice": ("choices", multiple_choice),
    "last-word": ("text", last_words),
    "classification": ("label", _texts),
    "regression": ("number", _texts),
    "translation": ("target", _translation),
    "language-modelling": ("messages", language),
    "masked-language-modelling": ("text", _masked),
    "image-classification": ("image", _pictures),
}
