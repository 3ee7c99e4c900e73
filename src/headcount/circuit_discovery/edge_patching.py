"""Exact patches of edges, a pass each: one reader reads what a node writes on the corrupted prompts, and nobody else does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..errors import NotFound
from ..evaluation.evaluator import in_parts
from ..hashing import fingerprint
from ..importance.attribution.pairs import Pair, contrasted, ready, sign_of
from ..importance.attribution.units import CHUNK
from ..model.anatomy import Anatomy
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..model.tensor_trees import tensors, with_first
from ..progress import Bar
from .edges import weight_of, written
from .graph import Graph, Place, Reader, graph_of

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

Named = tuple[str, str]  # the writer and the reader


def patch_edges(
    model: nn.Module,
    task: Task,
    edges: Iterable[Named],
    *,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "edge-patches",
    specs: Iterable[ModuleSpec] = (),
) -> np.ndarray:
    """How much worse the metric of each clean example gets when an edge carries what it carries on the corrupted prompt, exactly.

    Args:
        model: The model; it is as it was afterwards.
        task: A contrast task.
        edges: Pairs of writer and reader, by the names that `score_edges` has for them.
        batch_size: Examples per forward pass; by default that of the task.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        name: Name of the results in the run folder.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        A number per example and edge, (examples, edges).

    Examples:
        >>> model = hc.load("my-decoder")
        >>> task = hc.task("contrast:induction", tokenizer="my-decoder", limit=16)
        >>> hc.circuit_discovery.patch_edges(model, task, [("0:1", "logits")]).shape
        (16, 1)
    """
    task, named = contrasted(task, "Exact patching"), [(str(writer), str(reader)) for writer, reader in edges]
    root, anatomy = unwrap(model), find(model, specs)
    mark, pieces = fingerprint([list(edge) for edge in named])[:8], []
    with ready(root), torch.no_grad(), Bar("edges", total=task.size) as bar:
        graph = graph_of(root, anatomy, Pair(task, root, tuple(task.batches(1)[-1])))
        _check(graph, named)
        for start in range(0, task.size, CHUNK):
            some = task.subset(range(start, min(start + CHUNK, task.size)))
            compute = partial(_chunk, root, anatomy, graph, some, named, batch_size)
            pieces.append(runs.piece(run, f"{name}-{mark}-{start:06d}", compute)["drops"])
            bar.advance(some.size)
    return sign_of(task) * np.concatenate(pieces)


def _check(graph: Graph, edges: Sequence[Named]) -> None:
    readers = dict(zip((reader.name for reader in graph.readers), graph.before, strict=True))
    for writer, reader in edges:
        if reader not in readers or writer not in graph.nodes[: readers[reader]]:
            raise NotFound(
                f"{graph.name} has no edge from {writer[:60]} to {reader[:60]}; writers are such as {graph.nodes[0]}, "
                f"{graph.nodes[1]}, and readers behind them such as {graph.readers[0].name}, {graph.readers[-1].name}."
            )


def _chunk(
    root: nn.Module, anatomy: Anatomy, graph: Graph, task: Task, edges: Sequence[Named], batch_size: int | None
) -> dict[str, np.ndarray]:
    out = np.zeros((task.size, len(edges)))
    places = {reader.name: (place, reader) for place in graph.places for reader in place.readers}

    def drops(numbers: Sequence[int]) -> np.ndarray:
        pair = Pair(task, root, tuple(numbers))
        dropped, columns = written(pair, anatomy, graph), []
        with _streams(graph) as streams:
            clean = pair.values(pair.clean)
        for writer, reader in edges:
            with _patched(*places[reader], dropped[writer], streams):
                columns.append(clean - pair.values(pair.clean))
        return torch.stack(columns, dim=1).double().cpu().numpy()

    for numbers in task.batches(batch_size):
        for some, values in in_parts(drops, "edges", task, numbers):
            out[list(some)] = values
    return {"drops": out}


@contextmanager
def _streams(graph: Graph) -> Iterator[dict[nn.Module, Tensor]]:
    """Within the block, the stream that each module reads is kept by the module."""
    found: dict[nn.Module, Tensor] = {}

    def given(module: nn.Module, args: Any, kwargs: Any) -> None:
        found[module] = next(tensors((args, kwargs))).detach()

    with ExitStack() as stack:
        for module in {place.source: None for place in graph.places if not place.at_end}:
            stack.callback(module.register_forward_pre_hook(given, with_kwargs=True).remove)
        yield found


@contextmanager
def _patched(place: Place, reader: Reader, drop: Tensor, streams: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Within the block, one reader reads the stream less a drop."""
    with ExitStack() as stack:
        if place.at_end:
            stack.callback(place.source.register_forward_hook(adding(-drop, None)).remove)
            yield
            return
        stream = streams[place.source]
        norm: Callable[[Tensor], Tensor] = place.norm if place.norm is not None else (lambda x: x)
        change = norm(stream - drop) - norm(stream)  # (examples, tokens, features)
        for module, rows in reader.matrices:
            weight = weight_of(module).to(change)
            weight = weight if rows is None else weight[rows.to(weight.device)]
            stack.callback(module.register_forward_hook(adding(change @ weight.T, rows)).remove)
        yield


def adding(change: Tensor, rows: Tensor | None) -> Callable[..., Any]:
    """Forward hook of a module: some of what it gives, changed."""

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        result = next(tensors(output))
        if rows is None:
            return with_first(output, result + change.to(result))
        return with_first(output, result.index_add(-1, rows.to(result.device), change.to(result)))

    return hook
