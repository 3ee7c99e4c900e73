"""A task: examples, how to make batches of them, and what to ask a model about each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import BadData
from ..stats.metrics import Metric, metric
from . import places
from .checks.tokenizers import TokenCounts
from .losses import Batch, LogitsAndTargets

Loss = Callable[[nn.Module, Batch], Tensor]
Rows = Callable[[nn.Module, Batch], np.ndarray]


class Measure(NamedTuple):
    """A metric, the function that makes its rows, and whether that generates text."""

    metric: Metric
    rows: Rows
    generates: bool = False


def device_of(model: nn.Module) -> torch.device:
    """Where a model wants its inputs: where its first parameter lies, or is brought to if it is offloaded."""
    for module in model.modules():
        parameter = next((p for p in module._parameters.values() if p is not None), None)
        if parameter is not None:
            place = getattr(getattr(module, "_hf_hook", None), "execution_device", None) if parameter.is_meta else None
            return parameter.device if place is None else torch.device(place)
    return torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Task:
    """Examples and what is asked of a model about them; nothing here belongs to one model.

    `collate(numbers)` makes a batch on the CPU; `loss(model, batch)` gives one differentiable number per example and
    `rows(model, batch)` the values that `metric` is made of; `goal(model, batch)` gives logits and targets, from which
    a model is trained (None: by the mean of `loss`). `shortened` are the examples that were cut off after the longest
    input, `skipped` counts rows of the data without a label or without anything to guess. `special` are tokens that
    stand for no piece of a text. `rowwise` is False where a batch cannot be split or repeated example by example.
    `decoding` says how text is generated, where the metric is one of generated text.

    `clusters` has the number of the cluster (the group) that each example belongs to, from 0 on in the order in which they
    come; `cluster_names` says for every cluster what it is called in the data (None: an example that names no group).
    `texts` gives what an example says, where that is text; `notes` are sentences that ought to be said about the examples,
    `tokens` what the tokenizer made of them, `available` how many there were before some were drawn,
    `label_names` the data's labels in the order of the numbers that stand for them in batches. `corrupted` is the same task on
    the corrupted prompts of a contrast task, example by example and token by token.
    """

    kind: str
    name: str
    size: int
    measure: Callable[[str], Measure]
    metric: Metric
    rows: Rows
    loss: Loss
    collate: Callable[[Sequence[int]], dict[str, Any]]
    inputs: Callable[[Batch], dict[str, Any]]
    digest: Callable[[int], bytes]
    describe: Callable[[int], str]
    lengths: Sequence[int]
    batch_size: int
    generates: bool = False
    settings: str = ""
    groups: tuple[tuple[int, ...], ...] | None = None
    rowwise: bool = True
    shortened: frozenset[int] = frozenset()
    skipped: int = 0
    special: frozenset[int] = frozenset()
    goal: Callable[[nn.Module, Batch], LogitsAndTargets] | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)
    clusters: tuple[int, ...] | None = None
    cluster_names: tuple[str | None, ...] = ()
    texts: Callable[[int], tuple[str, ...]] | None = None
    notes: tuple[str, ...] = ()
    tokens: TokenCounts | None = None
    available: int | None = None
    corrupted: Task | None = None
    label_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.clusters is not None and not self.cluster_names:  # numbers alone were given: they are the names
            object.__setattr__(self, "cluster_names", tuple(map(str, range(max(self.clusters) + 1))))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the examples and of all that changes inputs or metric; the batch size does not."""
        hasher = hashlib.sha256(json.dumps([self.kind, self.metric.name, self.settings]).encode())
        for number in range(self.size):
            hasher.update(self.digest(number))
        if self.clusters is not None:  # intervals and splits depend on them; without them nothing is added
            hasher.update(json.dumps([self.clusters, self.cluster_names]).encode())
        return hasher.hexdigest()

    def split_key(self, number: int) -> bytes:
        """What decides where an example goes when examples are split: the name of its group, or the example itself."""
        name = None if self.clusters is None else self.cluster_names[self.clusters[number]]
        return self.digest(number) if name is None else places.group_key(name)

    @property
    def truncated(self) -> int:
        """How many examples were longer than the longest input and cut off."""
        return len(self.shortened)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        notes = [f"in {len(self.cluster_names)} groups"] * (self.clusters is not None)
        notes += [f"{self.truncated} cut off"] * bool(self.truncated) + [f"{self.skipped} skipped"] * bool(self.skipped)
        first = f"Task({', '.join([self.kind, self.name, f'{self.size} examples', self.metric.name, *notes])})"
        return "\n".join([first, *(f"note: {note}" for note in self.notes)])

    def batches(self, batch_size: int | None = None) -> list[tuple[int, ...]]:
        """The numbers of all examples in batches of examples of like length, the longest first."""
        size = self.batch_size if batch_size is None else batch_size
        if size < 1:
            raise BadData(f"The batch size is {size}; it must be at least 1.")
        everything = tuple(sorted(range(self.size), key=lambda number: (-self.lengths[number], number)))
        groups = (everything,) if self.groups is None else self.groups
        return [group[start : start + size] for group in groups for start in range(0, len(group), size)]

    def batch(self, size: int = 8) -> dict[str, Any]:
        """What the model takes for the first examples, without labels: for `cut(model, plan, check=task.batch())`."""
        first = tuple(range(self.size)) if self.groups is None else self.groups[0]
        return self.inputs(self.collate(first[:size]))

    def subset(self, numbers: Sequence[int]) -> Task:
        """The task on the examples of these numbers only, in this order."""
        numbers = tuple(int(number) for number in numbers)
        if not numbers or len(set(numbers)) != len(numbers) or not all(0 <= number < self.size for number in numbers):
            raise BadData(
                f"A subset needs different numbers from 0 to {self.size - 1}, at least one; I got {numbers!r:.80}."
            )
        new_places = {number: place for place, number in enumerate(numbers)}
        kept_groups = [
            tuple(new_places[number] for number in group if number in new_places) for group in self.groups or ()
        ]
        texts, clusters = self.texts, self.clusters
        kept_clusters = None if clusters is None else tuple(dict.fromkeys(clusters[number] for number in numbers))
        again = {} if kept_clusters is None else {cluster: place for place, cluster in enumerate(kept_clusters)}
        return replace(
            self,
            size=len(numbers),
            collate=lambda chosen: self.collate([numbers[number] for number in chosen]),
            digest=lambda number: self.digest(numbers[number]),
            describe=lambda number: self.describe(numbers[number]),
            lengths=tuple(self.lengths[number] for number in numbers),
            groups=None if self.groups is None else tuple(group for group in kept_groups if group),
            shortened=frozenset(new_places[number] for number in self.shortened if number in new_places),
            clusters=None if clusters is None else tuple(again[clusters[number]] for number in numbers),
            cluster_names=()
            if kept_clusters is None
            else tuple(self.cluster_names[cluster] for cluster in kept_clusters),
            texts=None if texts is None else lambda number: texts(numbers[number]),
            corrupted=None if self.corrupted is None else self.corrupted.subset(numbers),
        )

    def split(self, *fractions: float, seed: int = 0) -> tuple[Task, ...]:
        """Tasks on parts of the examples that share none: `select, report = task.split(0.5, 0.5)`.

        Which part an example is in depends on the example and the seed alone (`places`), so copies of an example are in one
        part, parts are only about as large as asked for, and an example that is added moves no other. Examples of one group
        are in one part as well; what is in two groups stays in the last of its parts.
        """
        if not fractions or min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
            raise BadData(f"The fractions of a split are above 0 and add up to at most 1; I got {fractions}.")
        shares = {str(part): fraction for part, fraction in enumerate(fractions)}
        keys = [self.split_key(number) for number in range(self.size)]
        parts = list(places.parts(keys, shares, seed).values())
        if self.clusters is not None:
            later = set[bytes]()
            for part in reversed(parts):
                part[:] = [number for number in part if self.digest(number) not in later]
                later |= {self.digest(number) for number in part}
        if not all(parts):
            groups = "" if self.clusters is None else f" in {len(self.cluster_names)} groups"
            raise BadData(
                f"{self.size} examples{groups} of {self.name} are too few to be split by {fractions}: a part would be empty; "
                "give more examples, or larger fractions."
            )
        return tuple(self.subset(part) for part in parts)

    def with_metric(self, name: str) -> Task:
        """The same examples, measured by another metric that this kind of task has."""
        measure = self.measure(name)
        corrupted = None if self.corrupted is None else self.corrupted.with_metric(name)
        chosen = {"metric": measure.metric, "rows": measure.rows, "generates": measure.generates}
        return replace(self, **chosen, corrupted=corrupted)


def clustered(names: Sequence[Hashable | None]) -> dict[str, Any]:
    """`clusters` and `cluster_names` of a task from the name of each example's group; None is a group of its own."""
    numbers: dict[str, int] = {}
    clusters, called = list[int](), list[str | None]()
    for name in names:
        number = len(called) if name is None else numbers.setdefault(str(name), len(called))
        clusters.append(number)
        if number == len(called):
            called.append(None if name is None else str(name))
    return {"clusters": tuple(clusters), "cluster_names": tuple(called)}


# --- the user's own batches -----------------------------------------------------------------------------------------

PART = "part "  # of the names that the parts of a tuple get


def custom_task(
    batches: Iterable[Any],
    *,
    loss: Callable[[nn.Module, Any], Any] | None = None,
    values: Callable[[nn.Module, Any], Any] | None = None,
    higher_is_better: bool | None = None,
    name: str = "own batches",
    batch_size: int | None = None,
    group: Sequence[Hashable | None] | None = None,
) -> Task:
    """A task on the user's own batches and functions: `custom_task(batches, loss=fn, values=fn)`; its metric is the mean.

    `loss(model, batch)` and `values(model, batch)` give one number per example; the first must be differentiable.
    Without `values` the loss is measured, where less is better. A batch whose tensors all have the same first dimension
    can be taken apart and repeated (lists of that length go along, all else is handed on as it is); any other batch
    counts as one example. A batch is a dict, or a tuple such as (inputs, labels), as a `DataLoader` gives it: the functions get
    what it is. `group` names for every example, in the order of the batches, what it belongs to.

    Args:
        batches: The batches, as the functions below take them: dicts or tuples, in a list or a `DataLoader`.
        loss: `loss(model, batch)`: a differentiable number per example.
        values: `values(model, batch)`: the metric, a number per example; by default the loss.
        higher_is_better: Whether larger values are better.
        name: Name of the task in texts.
        batch_size: Examples per batch; by default as the batches are.
        group: The cluster that each example belongs to.

    Returns:
        A task that every verb takes.

    Examples:
        >>> model = hc.load("my-model")
        >>> import torch
        >>> batches = [{"input_ids": torch.tensor([[2, 9, 8, 3], [2, 7, 6, 3]]), "labels": torch.tensor([0, 1])}]
        >>> def loss(model, batch):
        ...     return torch.nn.functional.cross_entropy(model(batch["input_ids"]).logits, batch["labels"], reduction="none")
        >>> task = hc.custom_task(batches, loss=loss)
        >>> len(hc.evaluate(model, task).rows)
        2
    """
    notes = _drawn_once(batches)
    batch_dicts = [_named_parts(batch) for batch in ([batches] if isinstance(batches, Mapping) else batches)]
    if not batch_dicts or (loss is None and values is None):
        raise BadData("A task of one's own needs at least one batch, and loss= or values= or both.")
    sizes = [_rows_in(batch) for batch in batch_dicts]
    places = [(number, row) for number, size in enumerate(sizes) for row in range(size or 1)]
    ends = [sum(size or 1 for size in sizes[:number]) for number in range(len(sizes) + 1)]
    rowwise = all(size is not None for size in sizes)
    if group is not None and len(group) != len(places):
        raise BadData(f"group= names {len(group)} groups for {len(places)} examples; it must name one for each.")
    better = values is not None if higher_is_better is None else higher_is_better
    mean = metric("mean", higher_is_better=better)

    def collate(numbers: Sequence[int]) -> dict[str, Any]:
        chosen = {places[number][0] for number in numbers}
        if len(chosen) != 1:
            raise BadData(
                "Examples of different batches cannot be put together; take the numbers that Task.batches gives."
            )
        batch = batch_dicts[next(iter(chosen))]
        size = _rows_in(batch)
        return batch if size is None else _picked(batch, size, [places[number][1] for number in numbers])

    def measured(model: nn.Module, batch: Batch) -> np.ndarray:
        example_values = _one_each(values or loss, "values" if values else "loss", model, batch)
        return example_values.detach().double().cpu().numpy()[:, None]

    def lost(model: nn.Module, batch: Batch) -> Tensor:
        if loss is None:
            raise BadData(
                "This needs gradients, and the task was made without loss=; give custom_task a loss function."
            )
        return _one_each(loss, "loss", model, batch)

    def measure(metric_name: str) -> Measure:
        if metric_name != "mean":
            raise BadData(
                f"A task of one's own is measured by the mean of its values; there is no {metric_name!r:.60} of them."
            )
        return Measure(mean, measured)

    return Task(
        kind="own",
        name=name,
        size=len(places),
        measure=measure,
        metric=mean,
        rows=measured,
        loss=lost,
        collate=collate,
        inputs=_model_arguments,
        digest=lambda number: hashlib.sha256(_bytes(collate([number]))).digest(),
        describe=lambda number: f"example {places[number][1] + 1} of batch {places[number][0] + 1} of {name}",
        lengths=[1] * len(places),
        batch_size=batch_size or max(size or 1 for size in sizes),
        settings=json.dumps([_code(loss), _code(values), better]),
        groups=tuple(tuple(range(start, end)) for start, end in pairwise(ends)),
        rowwise=rowwise,
        notes=notes,
        **({} if group is None else clustered(group)),
    )


def _drawn_once(batches: Any) -> tuple[str, ...]:
    """A note where a `DataLoader` shuffles."""
    if "Random" not in type(getattr(batches, "sampler", None)).__name__:
        return ()
    return ("the DataLoader shuffles: its batches were drawn once, and a task made of it again has others",)


def _named_parts(batch: Any) -> dict[str, Any]:
    """A batch as a dict of tensors: itself, or the parts of a tuple by their places."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if not isinstance(batch, tuple | list) or any(isinstance(part, str | int | float) for part in batch):
        of = f" of ({', '.join(type(part).__name__ for part in batch)})" if isinstance(batch, tuple | list) else ""
        raise BadData(
            f"A batch is a {type(batch).__name__}{of}; give dicts of tensors or tuples such as (inputs, labels), as a DataLoader "
            "does; of texts and labels hc.task makes a task: hc.task('classification', rows, tokenizer=...)."
        )
    parts: dict[str, Any] = {}
    for place, part in enumerate(batch):
        inner = part.items() if isinstance(part, Mapping) else [("", part)]
        parts |= {f"{PART}{place}.{name}": value for name, value in inner}
    return parts


def _as_it_was(batch: Batch) -> Any:
    """A batch as the user gave it: what `_named_parts` took apart is a tuple again."""
    if not batch or not all(name.startswith(PART) for name in batch):
        return batch
    parts: dict[int, Any] = {}
    for name, value in batch.items():
        place, _, inner = name.removeprefix(PART).partition(".")
        if inner:
            parts.setdefault(int(place), {})[inner] = value
        else:
            parts[int(place)] = value
    return tuple(parts[place] for place in sorted(parts))


def _model_arguments(batch: Batch) -> dict[str, Any]:
    """What the model takes: the batch, or the dict that a tuple begins with."""
    whole = _as_it_was(batch)
    first = whole[0] if isinstance(whole, tuple) else whole
    if not isinstance(first, Mapping):
        raise BadData(
            "The batches do not name the arguments of the model, so it cannot be run on them alone; give dicts, or tuples "
            "(inputs, labels) in which inputs is a dict of the model's arguments."
        )
    return dict(first)


def _rows_in(batch: Batch) -> int | None:
    """The first dimension that all tensors of a batch share; None where they do not."""
    sizes = {value.shape[0] for value in batch.values() if isinstance(value, Tensor) and value.dim()}
    return sizes.pop() if len(sizes) == 1 and min(sizes) > 0 else None


def _picked(batch: Batch, size: int, rows: list[int]) -> dict[str, Any]:
    def one(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[rows] if value.dim() else value
        return [value[row] for row in rows] if isinstance(value, list) and len(value) == size else value

    return {key: one(value) for key, value in batch.items()}


def _one_each(function: Any, option: str, model: nn.Module, batch: Batch) -> Tensor:
    numbers, size = torch.as_tensor(function(model, _as_it_was(batch))), _rows_in(batch)
    if size is None:
        size, numbers = 1, numbers.reshape(1) if numbers.numel() == 1 else numbers
    if numbers.shape != (size,):
        raise BadData(
            f"{option}= gave numbers of shape {tuple(numbers.shape)} for a batch of {size}; it must give one per "
            f"example, ({size},): reduce over everything but the first dimension (reduction='none')."
        )
    return numbers


def _bytes(value: Any) -> bytes:
    """The content of a batch, for hashing: tensors by shape, type and numbers, the rest as it is written."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        return repr((str(plain.dtype), tuple(plain.shape), plain.tolist())).encode()
    if isinstance(value, Mapping):
        return b"".join(str(key).encode() + b"=" + _bytes(entry) + b";" for key, entry in value.items())
    return b",".join(map(_bytes, value)) if isinstance(value, list | tuple) else repr(value).encode()


def _code(function: Any) -> str:
    """What tells a function from others: its name and its instructions, where it has them."""
    code = getattr(function, "__code__", None)
    constants = [repr(constant) for constant in code.co_consts if not hasattr(constant, "co_code")] if code else []
    body = code.co_code.hex() + repr((code.co_names, constants)) if code else ""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name} {hashlib.sha256(body.encode()).hexdigest()[:16]}"


def kind_of(model: Any) -> str:
    """The kind of task that a model's class was made for."""
    name = type(model).__name__
    if "ForSequenceClassification" in name:
        single = getattr(model.config, "num_labels", 2) == 1 or model.config.problem_type == "regression"
        return "regression" if single else "classification"
    for ending, kind in (
        ("ForImageClassification", "image-classification"),
        ("ForMaskedLM", "masked-language-modelling"),
        ("ForCausalLM", "language-modelling"),
        ("LMHeadModel", "language-modelling"),
        ("ForConditionalGeneration", "translation"),
        ("MTModel", "translation"),
    ):
        if name.endswith(ending):
            return kind
    raise BadData(f"I cannot tell from {name} what it is for; say it with --task, for example --task classification.")
