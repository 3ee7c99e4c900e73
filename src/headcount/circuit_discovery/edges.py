"""Edge attribution patching: what it would do to the metric if one part read what another writes on the corrupted prompts.

The score of an edge from u to v is (what u writes on the clean prompt, less that on the corrupted one) times the gradient of the
metric with respect to the stream as v alone reads it, before v's norm, summed over positions and features (Syed et al. 2023;
with the mean gradient between corrupted and clean embeddings it is EAP-IG, Hanna et al. 2024). Nothing is repeated for an edge:
gradients come from one backward pass, and all edges into a place are one product of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..errors import BadPlan, Refused
from ..evaluation.evaluator import in_parts
from ..evaluation.residual_stream import matrix_of
from ..importance.attribution.pairs import Pair, contrasted, ready, sign_of
from ..importance.attribution.units import CHUNK, STEPS, Method, along
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..model.matrices import matrix
from ..model.tensor_trees import tensors
from ..progress import Bar
from .graph import LOGITS, Graph, Place, Reader, graph_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..data.tasks import Task
    from ..runs import Run

MISSED = 0.01  # of the gradient at the embeddings: as much may be lost between readers before that is refused


class Edge(NamedTuple):
    """An edge and its estimated effect: the drop of the metric if the reader read what is written on corrupted prompts."""

    writer: str
    reader: str
    score: float
    stderr: float | None


@dataclass(frozen=True, eq=False)
class EdgeScores:
    """The score of every edge: (writers, readers), zero where there is none; bigger = matters more, with a sign.

    `before` says for each reader how many of the writers it reads: the first ones. `n` is how many examples there were.
    """

    graph: Graph
    mean: np.ndarray
    stderr: np.ndarray | None
    n: int
    by: str

    @property
    def writers(self) -> tuple[str, ...]:
        """The nodes that write: the embeddings, heads and MLPs."""
        return self.graph.nodes

    @property
    def readers(self) -> tuple[Reader, ...]:
        """What reads."""
        return self.graph.readers

    def __len__(self) -> int:
        return self.graph.edges

    @property
    def there(self) -> np.ndarray:
        """Which of the pairs are edges: (writers, readers)."""
        return np.arange(len(self.writers))[:, None] < np.array(self.graph.before)[None]

    def node_scores(self) -> dict[str, float]:
        """For each writer the sum over its edges, which is its own score by the same method."""
        return dict(zip(self.writers, self.mean.sum(1).tolist(), strict=True))

    def strongest(self, count: int) -> list[Edge]:
        """The edges with the largest absolute scores, the largest first."""
        sizes = np.where(self.there, np.abs(self.mean), -1.0)
        order = np.argsort(-sizes, axis=None, kind="stable")[: min(count, len(self))]
        places = zip(*np.unravel_index(order, sizes.shape), strict=True)
        return [self._edge(int(writer), int(reader)) for writer, reader in places]

    def _edge(self, writer: int, reader: int) -> Edge:
        error = None if self.stderr is None else float(self.stderr[writer, reader])
        return Edge(self.writers[writer], self.readers[reader].name, float(self.mean[writer, reader]), error)

    def unit_ranks(self) -> dict[str, float]:
        """For each head and MLP the largest absolute score of an edge that it is at either end of."""
        sizes = np.where(self.there, np.abs(self.mean), 0.0)
        ranks = dict(zip(self.writers, sizes.max(1, initial=0.0).tolist(), strict=True))
        for reader, column in zip(self.readers, sizes.T, strict=True):
            for unit in reader.units:
                if unit != LOGITS:
                    ranks[unit] = max(ranks[unit], float(column.max(initial=0.0)))
        return {unit: ranks[unit] for unit in self.graph.units()}


def score_edges(
    model: nn.Module,
    task: Task,
    by: str = "eap-ig",
    *,
    steps: int = STEPS,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "edges",
    specs: Iterable[ModuleSpec] = (),
) -> EdgeScores:
    """The score of every edge between embeddings, heads, MLPs and logits, by attribution: bigger = matters more, with a sign.

    For pre-norm decoders, whose residual stream is a sum; others are refused. The readers of a head are its query, key and value;
    where heads share keys and values, these are readers of the group.

    Args:
        model: The model; it is as it was afterwards.
        task: A contrast task, measured by a metric that has a gradient.
        by: "eap-ig", or "attribution-patching": the gradient of the clean run alone (EAP).
        steps: eap-ig: runs between corrupted and clean embeddings.
        batch_size: Examples per forward pass; by default that of the task.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        name: Name of the results in the run folder.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        Scores with standard errors; `strongest(20)` lists edges.

    Examples:
        >>> model = hc.load("my-decoder")
        >>> task = hc.task("contrast:induction", tokenizer="my-decoder", limit=16)
        >>> edges = hc.circuit_discovery.score_edges(model, task)
        >>> edges.strongest(1)[0].reader
        'logits'
    """
    task, method = contrasted(task, "Edge attribution"), Method(by, steps)
    root, anatomy = unwrap(model), find(model, specs)
    sums: dict[str, np.ndarray] = {}
    with ready(root), Bar("edges", total=task.size) as bar:
        graph = graph_of(root, anatomy, Pair(task, root, tuple(task.batches(1)[-1])))
        for start in range(0, task.size, CHUNK):
            some = task.subset(range(start, min(start + CHUNK, task.size)))
            compute = partial(_chunk, root, anatomy, graph, some, method, batch_size)
            piece = runs.piece(run, f"{name}-{by}-{len(method.shares)}-{start:06d}", compute)
            sums = {key: sums.get(key, 0.0) + values for key, values in piece.items()}
            bar.advance(some.size)
    n, mean = task.size, sums["sum"] / task.size
    stderr = np.sqrt(np.maximum(0.0, sums["square"] / n - mean**2) / (n - 1)) if n > 1 else None
    return EdgeScores(graph, sign_of(task) * mean, stderr, n, str(method))


def _chunk(
    root: nn.Module, anatomy: Any, graph: Graph, task: Task, method: Method, batch_size: int | None
) -> dict[str, np.ndarray]:
    shape = len(graph.nodes), len(graph.readers)
    out = {"sum": np.zeros(shape), "square": np.zeros(shape)}
    for numbers in task.batches(batch_size):
        for _, values in in_parts(partial(_batch, root, anatomy, graph, task, method), "edges", task, numbers):
            out["sum"] += values.sum(0)
            out["square"] += np.square(values).sum(0)
    return out


def _batch(
    root: nn.Module, anatomy: Any, graph: Graph, task: Task, method: Method, numbers: Sequence[int]
) -> np.ndarray:
    """Scores of all edges for each example of a batch: (examples, writers, readers)."""
    pair = Pair(task, root, tuple(numbers))
    drops = dropped(pair, anatomy, graph)  # (examples, writers, tokens * features)
    scores = torch.zeros(len(numbers), len(graph.nodes), len(graph.readers), device=drops.device)
    with _noting(graph) as notes:
        for start, values in _started(pair, anatomy, method):
            values.sum().backward()
            total, first = torch.zeros_like(start), 0
            assert start.grad is not None
            for place in graph.places:
                gradients = _at_readers(place, notes)  # (readers, examples, tokens, features)
                total += gradients.sum(0)
                last = first + len(place.readers)
                product = drops[:, : place.before] @ gradients.flatten(2).permute(1, 2, 0)
                scores[:, : place.before, first:last] += product.to(scores) / len(method.shares)
                first = last
            _nothing_lost(graph, total, start.grad)
            notes.clear()
    return scores.double().cpu().numpy()


def _started(pair: Pair, anatomy: Any, method: Method) -> Iterator[tuple[Tensor, Tensor]]:
    """As `along`, always from embeddings that have a gradient: by attribution patching, from the clean ones."""
    method = Method("eap-ig", 1) if method.by == "attribution-patching" else method
    for start, values in along(pair, anatomy, method):
        assert start is not None
        yield start, values


def _nothing_lost(graph: Graph, total: Tensor, at_start: Tensor) -> None:
    """`Refused` where something else than the readers reads the stream: their gradients are all of that at the embeddings."""
    if float((total - at_start).norm()) > MISSED * float(at_start.norm()):
        raise Refused(
            f"{graph.name} has no edges that I can tell: something else than heads, MLPs and logits reads its residual stream; "
            "leave edges out (--edges 0), its units can still be scored."
        )


# --- what is written ------------------------------------------------------------------------------------------------


def written(pair: Pair, anatomy: Any, graph: Graph) -> dict[str, Tensor]:
    """What each node writes on the clean prompts less what it writes on the corrupted ones: (examples, tokens, features)."""
    parts = list(graph.sites)
    ends = [pair.recorded(batch, parts) for batch in (pair.clean, pair.corrupted)]
    streams = [pair.stream(batch, anatomy) for batch in (pair.clean, pair.corrupted)]
    out = {graph.nodes[0]: streams[0] - streams[1]}
    for site in parts:
        x = ends[0][site.name, 0] - ends[1][site.name, 0]  # (examples, tokens, columns)
        weight = matrix_of(site).to(x)  # (features, columns)
        if site.kind == "neuron":
            out[site.name] = x @ weight.T
            continue
        columns = x.unflatten(-1, (len(site), site.width)), weight.unflatten(-1, (len(site), site.width))
        each = torch.einsum("bthw,dhw->hbtd", *columns)
        out |= {str(unit): each[place] for place, unit in enumerate(site.units)}
    return out


def dropped(pair: Pair, anatomy: Any, graph: Graph) -> Tensor:
    """The same for all nodes side by side: (examples, writers, tokens * features)."""
    drops = written(pair, anatomy, graph)
    return torch.stack([drops[node] for node in graph.nodes], dim=1).flatten(2)


# --- gradients at readers -------------------------------------------------------------------------------------------


@contextmanager
def _noting(graph: Graph) -> Iterator[dict[tuple[str, nn.Module], Tensor]]:
    """Within the block: what norms are given ("stream", norm), and gradients of what matrices give ("gradient", matrix).

    Of the logits it is the gradient of what leaves the last layer.
    """
    notes: dict[tuple[str, nn.Module], Tensor] = {}

    def given(module: nn.Module, args: Any, kwargs: Any) -> None:
        stream = next(tensors((args, kwargs)))
        if stream.requires_grad:
            notes.setdefault(("stream", module), stream.detach())  # and not those that we give it ourselves

    def gave(module: nn.Module, _: Any, output: Any) -> None:
        def back(gradient: Tensor) -> None:
            notes["gradient", module] = gradient.detach()

        result = next(tensors(output))
        if result.requires_grad:
            result.register_hook(back)

    with ExitStack() as stack:
        for place in graph.places:
            if place.norm is not None:
                stack.callback(place.norm.register_forward_pre_hook(given, with_kwargs=True).remove)
        modules = {module: None for reader in graph.readers for module, _ in reader.matrices}
        for module in [*modules, graph.places[-1].source]:
            stack.callback(module.register_forward_hook(gave).remove)
        yield notes


def _at_readers(place: Place, notes: Mapping[tuple[str, nn.Module], Tensor]) -> Tensor:
    """The gradient at the stream as each reader of a place reads it: (readers, examples, tokens, features)."""
    if place.at_end:
        return notes["gradient", place.source][None]
    normed = torch.stack([_behind_norm(reader, notes) for reader in place.readers])
    if place.norm is None:
        return normed
    stream = notes["stream", place.norm].expand(len(normed), -1, -1, -1).clone().requires_grad_()
    return torch.autograd.grad(place.norm(stream), stream, normed)[0]


def _behind_norm(reader: Reader, notes: Mapping[tuple[str, nn.Module], Tensor]) -> Tensor:
    """The gradient at what comes out of the norm, by one reader alone: (examples, tokens, features)."""
    total: Tensor | None = None
    for module, rows in reader.matrices:
        gradient, weight = notes["gradient", module], weight_of(module).to(notes["gradient", module])
        if rows is not None:
            rows = rows.to(gradient.device)
            gradient, weight = gradient[..., rows], weight[rows]
        product = gradient @ weight
        total = product if total is None else total + product
    assert total is not None
    return total


def weight_of(module: nn.Module) -> Tensor:
    """The weight of a reading matrix as (out, in)."""
    seen = matrix(module)
    if seen is None:
        raise BadPlan("A matrix that reads cannot be seen as one.")
    weight: Tensor = getattr(seen.owner, seen.weight).detach()
    return weight.movedim(seen.row_axis, 0)
