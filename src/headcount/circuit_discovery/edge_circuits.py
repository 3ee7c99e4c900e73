"""Circuits of edges: every reader reads the edges that are kept as they are in this pass, and all others as on corrupted prompts.

A circuit is a matrix of writers by readers. What a reader reads is the stream less, for each edge that is not kept, what its
writer writes now less what it writes on the corrupted prompt. With no edge kept that is the corrupted run, with all of them the
clean one, and a pass measures one circuit, however many edges it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..evaluation.evaluator import in_parts
from ..evaluation.residual_stream import matrix_of
from ..hashing import fingerprint
from ..importance.attribution.pairs import Pair, first_layer, ready
from ..importance.attribution.units import CHUNK
from ..model.anatomy import Anatomy, Site
from ..model.tensor_trees import tensors
from ..progress import Bar
from .edge_patching import adding
from .edges import weight_of
from .graph import Graph, Place, Reader

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run


def values_of_circuits(
    root: nn.Module,
    anatomy: Anatomy,
    graph: Graph,
    task: Task,
    circuits: Sequence[np.ndarray],
    *,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "edge-circuits",
) -> dict[str, np.ndarray]:
    """The metric of every example: "clean" and "corrupted" (examples,), and "kept" (examples, circuits).

    A circuit is a matrix of which edges are kept, (writers, readers), bool.
    """
    marks = fingerprint([np.packbits(circuit).tobytes().hex() for circuit in circuits])[:8]
    kept, pieces = torch.from_numpy(np.stack(circuits)), []
    with ready(root), torch.no_grad(), Bar("circuits of edges", total=task.size) as bar:
        for start in range(0, task.size, CHUNK):
            some = task.subset(range(start, min(start + CHUNK, task.size)))
            compute = partial(_chunk, root, anatomy, graph, some, kept, batch_size)
            pieces.append(runs.piece(run, f"{name}-{marks}-{start:06d}", compute))
            bar.advance(some.size)
    return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}


def _chunk(
    root: nn.Module, anatomy: Anatomy, graph: Graph, task: Task, circuits: Tensor, batch_size: int | None
) -> dict[str, np.ndarray]:
    out = {key: np.zeros(task.size) for key in ("clean", "corrupted")}
    out["kept"] = np.zeros((task.size, len(circuits)))

    def values(numbers: Sequence[int]) -> dict[str, np.ndarray]:
        pair = Pair(task, root, tuple(numbers))
        found = {"clean": pair.values(pair.clean), "corrupted": pair.values(pair.corrupted)}
        written = _Written.on_corrupted(pair, anatomy, graph)
        columns = []
        for circuit in circuits:
            with _Kept(circuit, graph, written).hooked(anatomy):
                columns.append(pair.values(pair.clean))
        found["kept"] = torch.stack(columns, dim=1)
        return {key: value.detach().double().cpu().numpy() for key, value in found.items()}

    for numbers in task.batches(batch_size):
        for some, found in in_parts(values, "circuits of edges", task, numbers):
            for key, array in found.items():
                out[key][list(some)] = array
    return out


@dataclass(eq=False)
class _Written:
    """What nodes write in a pass less what they write on the corrupted prompts: `moved` (writers, examples, tokens, features)."""

    start: Tensor  # the stream that the first layer reads on the corrupted prompts
    given: Mapping[str, Tensor]  # what writers are given there, by site
    moved: Tensor

    @classmethod
    def on_corrupted(cls, pair: Pair, anatomy: Anatomy, graph: Graph) -> _Written:
        """With what is written on the corrupted prompts of a batch."""
        start = pair.stream(pair.corrupted, anatomy)
        recorded = pair.recorded(pair.corrupted, list(graph.sites))
        return cls(
            start, {name: x for (name, _), x in recorded.items()}, start.new_zeros(len(graph.nodes), *start.shape)
        )

    def note(self, site: Site, first: int, x: Tensor) -> None:
        """A site writes: what its nodes, from the `first` one on, write more than on the corrupted prompts."""
        change, weight = (
            x - self.given[site.name],
            matrix_of(site).to(x),
        )  # (examples, tokens, columns), (features, columns)
        if site.kind == "neuron":
            self.moved[first] = change @ weight.T
            return
        heads = change.unflatten(-1, (len(site), site.width)), weight.unflatten(-1, (len(site), site.width))
        self.moved[first : first + len(site)] = torch.einsum("bthw,dhw->hbtd", *heads)


@dataclass(eq=False)
class _Kept:
    """The edges of a circuit in a pass over clean prompts: only they carry what is written there."""

    circuit: Tensor  # (writers, readers), bool
    graph: Graph
    written: _Written
    # of what comes out of the norm, for each matrix that reads it: (examples, tokens, features)
    changes: dict[tuple[nn.Module, Reader], Tensor] = field(default_factory=dict)

    @contextmanager
    def hooked(self, anatomy: Anatomy) -> Iterator[None]:
        """Within the block, passes keep these edges alone."""
        with ExitStack() as stack:
            stack.callback(first_layer(anatomy).register_forward_pre_hook(self._begins, with_kwargs=True).remove)
            first, start = 1, 0
            for site in self.graph.sites:
                hook = self._writes(site, first)
                stack.callback(site.writer.register_forward_pre_hook(hook, with_kwargs=True).remove)
                first += len(site) if site.kind == "head" else 1
            matrices: dict[nn.Module, dict[Reader, Tensor | None]] = {}
            for place in self.graph.places:
                columns, start = slice(start, start + len(place.readers)), start + len(place.readers)
                if place.at_end:
                    stack.callback(place.source.register_forward_hook(self._ends(place, columns)).remove)
                    continue
                streams = self._streams(place, columns)
                stack.callback(place.source.register_forward_pre_hook(streams, with_kwargs=True).remove)
                for reader in place.readers:
                    for module, rows in reader.matrices:
                        matrices.setdefault(module, {})[reader] = rows
            for module, rows_of in matrices.items():
                stack.callback(module.register_forward_hook(self._reads(module, rows_of)).remove)
            yield

    def _begins(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        """Pre-hook of the first layer: what the embeddings write."""
        self.written.moved[0] = next(tensors((args, kwargs))) - self.written.start

    def _writes(self, site: Site, first: int) -> Callable[..., None]:
        """Pre-hook of a writer."""

        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.written.note(site, first, next(tensors((args, kwargs))))

        return hook

    def _drops(self, place: Place, columns: slice) -> Tensor:
        """For each reader of a place what it does not read: (readers, examples, tokens, features)."""
        moved = self.written.moved[: place.before]
        dropped = (~self.circuit[: place.before, columns]).to(moved)  # (writers, readers)
        return (dropped.T @ moved.flatten(1)).unflatten(1, moved.shape[1:])

    def _streams(self, place: Place, columns: slice) -> Callable[..., None]:
        """Pre-hook of what is given the stream: how much else each reader is given behind the norm."""
        # past the hooks of the norm, of which this is one
        norm: Callable[[Tensor], Tensor] = (lambda x: x) if place.norm is None else place.norm.forward

        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            stream = next(tensors((args, kwargs)))
            changes = norm(stream - self._drops(place, columns)) - norm(stream)
            for reader, change in zip(place.readers, changes, strict=True):
                self.changes |= {(module, reader): change for module, _ in reader.matrices}

        return hook

    def _reads(self, module: nn.Module, rows_of: Mapping[Reader, Tensor | None]) -> Callable[..., Any]:
        """Forward hook of a matrix: each of its readers gives what it would give with another stream."""
        weight = weight_of(module)

        def hook(own: nn.Module, args: Any, output: Any) -> Any:
            for reader, rows in rows_of.items():
                change, some = self.changes.pop((module, reader)), weight
                if rows is not None:
                    some = weight[rows.to(weight.device)]
                output = adding(change @ some.to(change).T, rows)(own, args, output)
            return output

        return hook

    def _ends(self, place: Place, columns: slice) -> Callable[..., Any]:
        """Forward hook of the last layer: the stream that the logits read."""

        def hook(own: nn.Module, args: Any, output: Any) -> Any:
            return adding(-self._drops(place, columns)[0], None)(own, args, output)

        return hook
