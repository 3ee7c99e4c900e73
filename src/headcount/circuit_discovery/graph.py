"""The graph of a decoder: who writes into the residual stream, and who reads it. Found by running it, and proved by sums.

Nodes that write are the embeddings, every head and every MLP. Readers are the queries of each head, the keys and values of each
key-value head, every MLP and the logits; each reads a norm of the stream, which is the sum of what was written before. That
holds for pre-norm decoders (GPT-2, Llama, Qwen, GPT-NeoX, ...), also those whose MLP runs beside the attention; it is checked on
a batch, and models for which it does not hold are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Refused
from ..importance.attribution.pairs import Batch, Pair, check_parts, first_layer
from ..importance.kv_group_scores import group_unit
from ..model.anatomy import Anatomy, Site
from ..model.cutting.kv_groups import kv_groups_of
from ..model.matrices import matrix
from ..model.tensor_trees import tensors

EMBEDDINGS, LOGITS = "embeddings", "logits"
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}  # of the stream's norm; coarser formats 0.05
LETTERS = {"sharded": "qvk"}  # the order of a layout's tables, where it is another one than query, key, value


@dataclass(frozen=True, eq=False)
class Reader:
    """What reads the stream: rows of matrices behind a norm."""

    name: str  # "5:2.q", "5.kv:1.k", "5.mlp", "logits"
    matrices: tuple[tuple[nn.Module, Tensor | None], ...] = ()  # each with its rows; None: all of them
    units: tuple[str, ...] = ()  # the nodes that it enters: heads, an MLP, the logits


@dataclass(frozen=True, eq=False)
class Place:
    """A norm that reads the stream, the readers behind it, and how many of the nodes have written before."""

    norm: nn.Module | None  # None: the stream is read as it is
    source: nn.Module  # the module whose input (or, of the logits, output) is the stream there
    readers: tuple[Reader, ...]
    before: int
    at_end: bool = False


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in the order in which they write, and places at which the stream is read, in the order of layers."""

    nodes: tuple[str, ...]
    sites: tuple[Site, ...]  # in the order in which they write
    places: tuple[Place, ...]
    name: str = ""

    @property
    def readers(self) -> tuple[Reader, ...]:
        """All readers, in order; the logits are the last one."""
        return tuple(reader for place in self.places for reader in place.readers)

    @property
    def before(self) -> tuple[int, ...]:
        """For each reader how many nodes it reads: the first ones."""
        return tuple(place.before for place in self.places for _ in place.readers)

    @property
    def edges(self) -> int:
        """How many edges there are."""
        return sum(self.before)

    def units(self) -> tuple[str, ...]:
        """The nodes that can be masked: all but the embeddings."""
        return self.nodes[1:]


@dataclass
class _Seen:
    """What came by in one pass."""

    streams: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)  # (given, gave) of modules
    read: dict[nn.Module, Tensor] = field(default_factory=dict)
    wrote: list[tuple[Site, Tensor]] = field(default_factory=list)


def graph_of(root: nn.Module, anatomy: Anatomy, pair: Pair) -> Graph:
    """The graph of a model, from one pass over a batch; `Refused` with the reason where its stream is no plain sum."""
    first_layer(anatomy)
    check_parts(root, anatomy.sites)
    if any(site.attention == "cross" for site in anatomy.heads) or not anatomy.heads:
        raise _refused(anatomy, "edges are those of decoders, or encoders, with one stack of layers")
    stack = anatomy.stacks[0]
    seen = _pass(pair, pair.clean, anatomy)
    start = seen.streams[stack.blocks[0]][0]
    end = seen.streams[stack.blocks[-1]][1]
    total, nodes, places = start, [EMBEDDINGS], list[Place]()
    earlier, counted = start, 1  # the stream before the layer that we are in, and its nodes
    layer: int | None = None
    for site, written in seen.wrote:
        if site.layer != layer:
            earlier, counted, layer = total, len(nodes), site.layer
        norm, source, stream = _behind(site, anatomy, seen, stack.blocks)
        if _same(stream, total):
            before = len(nodes)
        elif _same(stream, earlier):
            before = counted
        else:
            raise _refused(
                anatomy,
                f"what {site.name} reads is not the sum of the embeddings and of what heads and MLPs wrote before",
            )
        places.append(Place(norm, source, tuple(_readers(site, anatomy)), before))
        total = total + written
        nodes += [str(unit) for unit in site.units] if site.kind == "head" else [site.name]
    if not _same(end, total):
        raise _refused(
            anatomy, "what leaves the last layer is not the sum of the embeddings and of what heads and MLPs wrote"
        )
    places.append(Place(None, stack.blocks[-1], (Reader(LOGITS, (), (LOGITS,)),), len(nodes), at_end=True))
    return Graph(tuple(nodes), tuple(site for site, _ in seen.wrote), tuple(places), anatomy.model_name)


def _refused(anatomy: Anatomy, why: str) -> Refused:
    return Refused(
        f"{anatomy.model_name} has no edges that I can tell: {why}; leave edges out (--edges 0), its units can still be scored."
    )


def _same(stream: Tensor, total: Tensor) -> bool:
    """Whether two streams are equal but for rounding."""
    allowed = ROUNDING.get(stream.dtype, 0.05)
    return stream.shape == total.shape and float((stream - total).norm()) <= allowed * float(total.norm())


def _pass(pair: Pair, batch: Batch, anatomy: Anatomy) -> _Seen:
    """One pass: what all modules of the layers are given and give, and what writers write."""
    seen, readers = _Seen(), {reader for site in anatomy for reader in site.readers}

    def passed(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given, gave = next(tensors((args, kwargs)), None), next(tensors(output), None)
        if module in readers and given is not None:
            seen.read[module] = given
        elif given is not None and gave is not None and given.shape == gave.shape:
            seen.streams[module] = given, gave

    def wrote(site: Site) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if any(other is site for other, _ in seen.wrote):
                raise _refused(anatomy, f"{site.name} runs more than once in a pass")
            seen.wrote.append((site, next(tensors(output)).detach()))

        return hook

    with ExitStack() as stack, torch.no_grad():
        for block in anatomy.stacks[0].blocks:
            for module in block.modules():
                stack.callback(module.register_forward_hook(passed, with_kwargs=True).remove)
        for site in anatomy:
            stack.callback(site.writer.register_forward_hook(wrote(site)).remove)
        pair.values(batch)
    return seen


def _behind(
    site: Site, anatomy: Anatomy, seen: _Seen, blocks: Sequence[nn.Module]
) -> tuple[nn.Module | None, nn.Module, Tensor]:
    """The norm that a site reads through, the module whose input is the stream, and the stream there."""
    reads = [seen.read.get(reader) for reader in site.readers]
    if any(x is None or x is not reads[0] for x in reads):
        raise _refused(anatomy, f"the matrices that {site.name} reads with are not given one and the same thing")
    x = reads[0]
    for module, (given, gave) in seen.streams.items():
        if gave is x and module not in blocks:
            return module, module, given
    for block in blocks:
        if seen.streams[block][0] is x:
            return None, block, seen.streams[block][0]
    raise _refused(anatomy, f"{site.name} reads something else than a norm of the residual stream")


def _readers(site: Site, anatomy: Anatomy) -> list[Reader]:
    """The readers of a site: an MLP as a whole; of an attention the queries of each head, keys and values of each kv head."""
    if any(matrix(reader) is None for reader in site.readers):
        raise _refused(anatomy, f"the matrices that {site.name} reads with are packed or quantised")
    if site.kind == "neuron":
        return [Reader(site.name, tuple((reader, None) for reader in site.readers), (site.name,))]
    tables = [(reader, table) for reader, part in zip(site.readers, site.tables(), strict=True) for table in part]
    letters = LETTERS.get(site.spec.layout, "qkv")
    if len(tables) != len(letters) or site.spec.layout == "per_head":
        raise _refused(anatomy, f"queries, keys and values of {site.name} cannot be told apart")
    groups = kv_groups_of(site)
    shared = any(len(heads) > 1 for heads in groups.values())
    out = []
    for letter, (reader, table) in sorted(zip(letters, tables, strict=True), key=lambda pair: "qkv".index(pair[0])):
        if letter == "q":
            out += [
                Reader(f"{unit}.q", ((reader, table[place]),), (str(unit),)) for place, unit in enumerate(site.units)
            ]
            continue
        for kv, heads in groups.items():
            name = str(group_unit(site, kv)) if shared else str(site.units[heads[0]])
            units = tuple(str(site.units[place]) for place in heads)
            out.append(Reader(f"{name}.{letter}", ((reader, table[heads[0]]),), units))
    return out
