"""Tasks of the language model evaluation harness (lm-eval), by name: its documents are the examples, its metrics the values.

The harness builds the requests of a document, asks the model and says what each document is worth. Here it is asked about some
documents at a time, with any units masked, so that there is one value per document for paired tests and promises. Contexts are
built once for all documents, as the harness does it, so that examples in a context do not depend on the batch.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import BadData
from ...stats.strata import named_mean
from ..columns import drawn_numbers
from ..encoding import loaded_tokenizer, padded, padding_token, special_tokens
from ..losses import Batch
from ..tasks import Measure, Task

PREFIX = "lm-eval:"
KIND = "lm-eval"
SEED = 1234  # the harness's own, of the examples in a context
USUAL = ("acc", "exact_match", "acc_norm")  # metrics, in the order in which they are taken where none is named
SHARES = ("acc", "exact_match", "f1", "em", "mcc", "bleu", "rouge")  # beginnings of names of metrics from 0 to 1


class Document(NamedTuple):
    """A document of a task: which task, its number there, and what the harness asks about it."""

    task: int
    number: int
    content: Any
    requests: tuple[Any, ...]

    @property
    def texts(self) -> list[str]:
        """What the model reads for each request."""
        return ["".join(part for part in one.args if isinstance(part, str)) for one in self.requests]


def of_harness(kind: str | None) -> bool:
    """Whether a kind of task is written as one of the harness: lm-eval:NAME,NAME."""
    return kind is not None and kind.startswith(PREFIX)


def harness_task(
    spec: str,
    *,
    tokenizer: Any,
    metric: str | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    seed: int | None = 0,
) -> Task:
    """A task on the documents of one or several tasks of the harness: "lm-eval:arc_easy,piqa", or files of tasks (.yaml).

    The metric of several is the mean of the tasks' means. `limit` draws that many documents of each task.
    """
    names = [name.strip() for name in spec.removeprefix(PREFIX).split(",") if name.strip()]
    tokenizer = loaded_tokenizer(tokenizer)
    loaded = _loaded(names)
    tasks, called = list(loaded.values()), list(loaded)
    available = _metrics(loaded)
    documents = [one for number, name in enumerate(called) for one in _documents(number, name, loaded[name])]
    drawn = list(documents)
    if limit is not None:
        drawn = []
        for number in range(len(tasks)):
            own = [one for one in documents if one.task == number]
            drawn += [own[place] for place in drawn_numbers(len(own), limit, seed)]
    ids = [_longest(tokenizer, one) for one in drawn]
    pad, models = padding_token(tokenizer), _Models(tokenizer, batch_size, max_length)
    title = ",".join(called)

    def measure(name: str) -> Measure:
        if name not in available:
            raise BadData(
                f"{title} has no metric {name!r:.60} that is a mean over documents in every task; choose one of "
                f"{', '.join(available)}."
            )
        points = 100.0 if name.startswith(SHARES) else 1.0
        chosen = named_mean(name, higher_is_better=available[name], points=points, strata=len(tasks))
        return Measure(chosen, partial(_rows, tasks, drawn, models, name), generates)

    def inputs(batch: Batch) -> dict[str, Any]:
        chosen = [ids[number] for number in batch["documents"].tolist()]
        device = batch["documents"].device
        filled = {"input_ids": padded(chosen, pad), "attention_mask": padded([[1] * len(row) for row in chosen], 0)}
        return {name: value.to(device) for name, value in filled.items()}

    generates = any(str(task.OUTPUT_TYPE) == "generate_until" for task in tasks)
    chosen = measure(
        next((name for name in (metric, *USUAL) if name in available or (name == metric and name)), None) or ""
    )
    versions = {
        name: [str(getattr(task, "VERSION", "")), task.get_config("num_fewshot")] for name, task in loaded.items()
    }
    return Task(
        kind=KIND,
        name=title,
        size=len(drawn),
        measure=measure,
        metric=chosen.metric,
        rows=chosen.rows,
        generates=generates,
        loss=_no_loss,
        collate=lambda numbers: {"documents": torch.tensor(list(numbers))},
        inputs=inputs,
        digest=lambda number: hashlib.sha256(
            json.dumps([called[drawn[number].task], _asked(drawn[number])]).encode()
        ).digest(),
        describe=lambda number: f"document {drawn[number].number} of {called[drawn[number].task]}",
        lengths=[len(row) for row in ids],
        batch_size=batch_size,
        settings=json.dumps(versions, sort_keys=True),
        rowwise=False,
        shortened=frozenset(n for n, row in enumerate(ids) if max_length is not None and len(row) > max_length),
        special=special_tokens(tokenizer),
        texts=lambda number: (drawn[number].texts[0],),
        available=len(documents),
        notes=(f"{_version()} asks about the documents of {title}; its metrics here are {', '.join(available)}",),
    )


def _no_loss(model: nn.Module, batch: Batch) -> Tensor:
    raise BadData(
        "Tasks of lm-eval say what a document is worth and give no gradient: score on text (--score-data wiki.txt), or by a "
        "criterion that needs no gradient (--by ablation)."
    )


def _asked(document: Document) -> list[str]:
    """What tells a document from others: everything that is asked about it, and the right answer in it."""
    return [repr(one.args) for one in document.requests] + [json.dumps(document.content, sort_keys=True, default=str)]


def _longest(tokenizer: Any, document: Document) -> list[int]:
    """The tokens of the longest request, at least one."""
    read = tokenizer(document.texts, verbose=False)["input_ids"]
    return list(max(read, key=len)) or [padding_token(tokenizer)]


# --- the harness ----------------------------------------------------------------------------------------------------


def _version() -> str:
    from importlib.metadata import version

    return f"lm-eval {version('lm_eval')}"


@contextmanager
def _quietly() -> Iterator[None]:
    """Within the block the harness writes no bars and no advice."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)


def _loaded(names: Sequence[str]) -> dict[str, Any]:
    """The tasks of these names, of the groups among them all, ready to be asked."""
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise BadData("Tasks by name need lm-eval; install headcount[lm-eval].") from error
    if not names:
        raise BadData("Name at least one task of lm-eval: --task lm-eval:arc_easy,piqa.")
    with _quietly():
        files = all(Path(name).suffix in (".yaml", ".yml") for name in names)
        manager = TaskManager(include_defaults=not files)  # to look through all of its thousands of tasks takes seconds
        for name in names:
            path = Path(name)
            if path.suffix in (".yaml", ".yml") and not path.is_file():
                raise BadData(
                    f"There is no file {name!r}; give the file of a task, or the name of one that lm-eval has."
                )
            if not path.is_file() and name not in manager.all_tasks:
                close = get_close_matches(name, manager.all_tasks, n=3)
                hint = f"did you mean {' or '.join(close)}?" if close else "`lm-eval ls tasks` lists them."
                raise BadData(f"lm-eval has no task {name!r:.60}; {hint}")
        try:
            loaded: Mapping[str, Any] = manager.load(list(names))["tasks"]
        except Exception as error:  # a data set that cannot be fetched, a file that is no task: whatever is met first
            reason = " ".join(str(error).split()) or type(error).__name__
            raise BadData(
                f"lm-eval cannot load {', '.join(names)} ({reason:.200}); its data must be in the cache, or the network there, "
                "and a file must be a task of lm-eval."
            ) from error
        for task in loaded.values():
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=SEED)
    for name, task in loaded.items():
        if getattr(task, "UNSAFE_CODE", False) or getattr(task, "MULTIMODAL", False):
            raise BadData(f"{name} runs code or shows pictures, which is not done here; leave it out.")
    return dict(loaded)


def _metrics(loaded: Mapping[str, Any]) -> dict[str, bool]:
    """The metrics that are means over documents in every task, and whether more of each is better."""
    found: dict[str, bool] | None = None
    for task in loaded.values():
        better, aggregation = task.higher_is_better(), task.aggregation()
        own = {
            name: bool(better.get(name, True))
            for name, how in aggregation.items()
            if getattr(how, "__name__", "") == "mean"
        }
        found = own if found is None else {name: found[name] for name in found if own.get(name) == found[name]}
    if not found:
        raise BadData(
            f"{', '.join(loaded)} have no metric in common that is a mean over documents, such as acc; measure them one by one, "
            "or perplexities with --task language-modelling."
        )
    return found


def _documents(number: int, name: str, task: Any) -> list[Document]:
    """All documents of a task with their requests, in its order."""
    try:
        with _quietly():
            task.build_all_requests(rank=0, world_size=1)
            contents = dict(task.doc_iterator(rank=0, limit=None, world_size=1))
    except Exception as error:  # templates that do not fit the data raise what they like
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadData(
            f"lm-eval cannot build the requests of {name} ({reason:.200}); mend its templates or its data."
        ) from error
    requests: dict[int, list[Any]] = {}
    for one in task.instances:
        requests.setdefault(one.doc_id, []).append(one)
    return [
        Document(number, place, contents[place], tuple(sorted(some, key=lambda one: one.idx)))
        for place, some in requests.items()
    ]


class _Models:
    """The harness's wrapper of the model that was asked last: to make one takes longer than to ask about a document."""

    def __init__(self, tokenizer: Any, batch_size: int, max_length: int | None) -> None:
        self._options = {"batch_size": batch_size, "max_length": max_length}
        self._tokenizer = tokenizer
        self._last: tuple[Any, Any] | None = None

    def of(self, model: nn.Module) -> Any:
        """The wrapper of this model, whose weights stay as they are."""
        if self._last is None or self._last[0]() is not model:
            from lm_eval.models.huggingface import HFLM

            before = model.__dict__.get("tie_weights")
            model.__dict__["tie_weights"] = lambda *_, **__: None  # it ties what may have been cut apart
            try:
                made = HFLM(pretrained=model, tokenizer=copy.deepcopy(self._tokenizer), **self._options)
            finally:
                del model.__dict__["tie_weights"]
                if before is not None:
                    model.__dict__["tie_weights"] = before
            self._last = (weakref.ref(model), made)
        return self._last[1]


def _rows(
    tasks: Sequence[Any], documents: Sequence[Document], models: _Models, name: str, model: nn.Module, batch: Batch
) -> np.ndarray:
    """The value of every document of a batch, and of several tasks the number of its task."""
    chosen = [documents[number] for number in batch["documents"].tolist()]
    values = np.empty((len(chosen), 1 if len(tasks) == 1 else 2))
    with _quietly():
        wrapped = models.of(model)
        for number in sorted({one.task for one in chosen}):
            places = [place for place, one in enumerate(chosen) if one.task == number]
            own = [chosen[place] for place in places]
            for place, value in zip(places, _values(tasks[number], own, wrapped, name), strict=True):
                values[place] = value if len(tasks) == 1 else (value, number)
    return values


def _values(task: Any, documents: Sequence[Document], wrapped: Any, name: str) -> list[float]:
    """What some documents of one task are worth: the requests are answered, filtered and judged by the harness."""
    requests = [one for document in documents for one in document.requests]
    by_type: dict[str, list[Any]] = {}
    for one in requests:
        one.resps, one.filtered_resps = [], {}
        by_type.setdefault(one.request_type, []).extend([one] * (one.repeats or 1))
    for kind, some in by_type.items():
        for one, answer in zip(some, getattr(wrapped, kind)(some), strict=True):
            one.resps.append(answer)
    task._instances = requests
    task.apply_filters()
    values = []
    for document in documents:
        first = next(iter(document.requests[0].filtered_resps))  # of several filters the first, as it is listed
        answers = [one.filtered_resps[first] for one in document.requests]
        values.append(float(task.process_results(document.content, answers)[name]))
    return values
