"""`cached`: what heads, neurons and layers compute on a batch, kept by the names of units; only what is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor, nn

from ..errors import BadPlan, NotFound, Refused
from ..model.anatomy import Anatomy, Site, Stack, Units
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..spelling import short
from .recording import SHARED, Chosen, groups_of, recorded

# what can be kept -> the kind of the units that have it
KINDS = {
    "patterns": "head",
    "value_weighted_patterns": "head",
    "queries": "head",
    "keys": "head",
    "values": "head",
    "projected_queries": "head",
    "projected_keys": "head",
    "head_outputs": "head",
    "attention_outputs": "head",
    "neurons": "neuron",
    "mlp_outputs": "neuron",
    "residual_before": "layer",
    "residual_after": "layer",
}
WHOLE = ("attention_outputs", "mlp_outputs")  # of a site, and not of its units
PLURALS = {"head": "heads", "neuron": "neurons", "layer": "layers"}


@dataclass(frozen=True, eq=False)
class _Part:
    """What was kept of one site: its units side by side on an axis, and the place of each by its original index."""

    tensor: Tensor
    axis: int | None  # None: of the whole site
    places: Mapping[int, int]


class ByUnit(Mapping[str, Tensor]):
    """Tensors of one kind by the names of units: `["3:7"]` is that of one head, `["3"]` has those of a site side by side."""

    def __init__(self, kind: str, parts: Mapping[str, _Part]) -> None:
        self.kind, self._parts = kind, dict(parts)

    def __getitem__(self, name: str) -> Tensor:
        site, _, index = str(name).rpartition(":")
        if str(name) in self._parts:
            return self._parts[str(name)].tensor
        part = self._parts.get(site)
        if part is None or part.axis is None or not index.isdecimal() or int(index) not in part.places:
            some = ", ".join(islice(self, 4))
            raise NotFound(f"No {self.kind} of {short(name)} were kept; there are {len(self)}: {some}, ...")
        return part.tensor.select(part.axis, part.places[int(index)])

    def __iter__(self) -> Iterator[str]:
        for site, part in self._parts.items():
            yield from [site] if part.axis is None else (f"{site}:{index}" for index in part.places)

    def __len__(self) -> int:
        return sum(1 if part.axis is None else len(part.places) for part in self._parts.values())

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that something was kept of."""
        return tuple(self._parts)

    def __repr__(self) -> str:
        lines = [f"  {site}: {tuple(part.tensor.shape)}" for site, part in self._parts.items()]
        return "\n".join([f"{self.kind} of {len(self)} units", *lines])


class Cache(Mapping[str, ByUnit]):
    """What `cached` kept: `cache["patterns"]["3:7"]`."""

    def __init__(self, kept: Mapping[str, ByUnit]) -> None:
        self._kept = dict(kept)

    def __getitem__(self, kind: str) -> ByUnit:
        if kind not in self._kept:
            raise NotFound(f"{kind!r:.60} was not asked for; the cache has {', '.join(self._kept)}.")
        return self._kept[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._kept.values()))


def cached(
    model: nn.Module,
    batch: Any,
    kinds: str | Sequence[str],
    *,
    units: Units | None = None,
    call: int | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> Cache:
    """What heads, neurons and layers compute on a batch: one pass, and only what is asked for is kept.

    `patterns` are the attention probabilities (batch, queries, keys); `value_weighted_patterns` are those times the norm of
    what the head would write from each key alone (Kobayashi et al. 2020). `queries`, `keys` and `values` (batch, length, width)
    are those that the attention multiplies: after norms and rotary embeddings, before scaling by the kernel;
    `projected_queries` and `projected_keys` are what the matrices give, before both. Keys and values are kept once for each
    key-value head. `head_outputs` (batch, length, hidden) are what each head writes to the residual stream: its columns of the
    output matrix times its part of what that is given. Added up, with the matrix's bias, they are `attention_outputs`.
    `neurons` (batch, length) are what neurons hand to the output matrix of their MLP, which gives `mlp_outputs`.
    `residual_before` and `residual_after` are what layers take and give.

    Any attention kernel will do: patterns are read where they are computed, or computed from queries and keys as the fused
    kernel of torch does; for other fused kernels the model is switched to its eager attention for the pass. Inside `masked` or
    `gated` it is the model under those gates. Of a cut model, heads have their original numbers.

    Args:
        model: The model; it runs in evaluation mode, without gradients, and is as it was afterwards.
        batch: What the model takes: a dictionary, a tuple, or one tensor.
        kinds: What to keep, one or several of the words above.
        units: Whose: units such as `"3:*"`, `"*.mlp:0-9"` or `"layers:3"`, or a plan; by default everybody's.
        call: Which of its runs, from 0 on, where a layer runs several times in one pass (ALBERT).
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        Tensors by kind and name of the unit: `cache["patterns"]["3:7"]`; `cache["patterns"]["3"]` has all heads of a site.

    Examples:
        >>> model = hc.load("my-model")
        >>> import torch
        >>> tokens = torch.tensor([[2, 9, 8, 3]])
        >>> cache = hc.cached(model, tokens, ["patterns", "head_outputs"], units="3:*")
        >>> cache["patterns"]["3:7"].shape
        torch.Size([1, 4, 4])
        >>> cache["head_outputs"]["3:7"].shape == cache["head_outputs"]["3:0"].shape
        True
    """
    wanted = [kinds] if isinstance(kinds, str) else list(kinds)
    unknown = next((kind for kind in wanted if kind not in KINDS), None)
    if unknown is not None or not wanted:
        raise BadPlan(f"{unknown!r:.60} cannot be kept; choose from {', '.join(KINDS)}.")
    root, anatomy = unwrap(model), find(model, specs)
    chosen = _chosen(anatomy, wanted, units)
    recording = recorded(root, anatomy, batch, wanted, chosen)
    kept = {}
    for kind in wanted:
        parts = {}
        for name, part, indices in _places(anatomy, chosen[KINDS[kind]]):
            seen = recording.get((kind, name))
            if seen is not None:
                parts[name] = _part(part, kind, indices, _one(name, seen, call))
            elif units is not None:
                raise Refused(f"{name} does not run on this batch, so there are no {kind} of it; give another batch.")
        kept[kind] = ByUnit(kind, parts)
    return Cache(kept)


def _chosen(anatomy: Anatomy, kinds: Sequence[str], units: Units | None) -> Chosen:
    """For each kind of unit, the sites or stacks that are asked for, with the original indices of their units."""
    if units is None:
        of_parts = {part.name: tuple(part.ids) for part in anatomy.parts}
    else:
        of_parts = {name: tuple(sorted(indices)) for name, indices in anatomy.plan(units).by_site().items()}
    chosen: Chosen = {sort: {} for sort in PLURALS}
    for part in anatomy.parts:
        if of_parts.get(part.name):
            chosen[part.kind][part.name] = of_parts[part.name]
    for kind in kinds:
        if not chosen[KINDS[kind]]:
            whose = f"units={short(units)} names" if units is not None else f"{anatomy.model_name} has"
            raise BadPlan(f"{whose} no {PLURALS[KINDS[kind]]}, and {kind} are theirs; name some, or leave {kind} out.")
    return chosen


def _places(
    anatomy: Anatomy, of_parts: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, Site | Stack, Sequence[int]]]:
    """The names under which things are kept: sites, and each layer by itself."""
    for name, indices in of_parts.items():
        part = anatomy[name]
        if isinstance(part, Stack):
            yield from ((f"{name}:{index}", part, [index]) for index in indices)
        else:
            yield name, part, indices


def _one(name: str, seen: Sequence[Tensor], call: int | None) -> Tensor:
    """The tensor of the run that is asked for."""
    if call is None and len(seen) > 1:
        raise Refused(f"{name} runs {len(seen)} times in this pass: say which run with call=0 to {len(seen) - 1}.")
    if not -len(seen) <= (call or 0) < len(seen):
        raise BadPlan(f"{name} runs {len(seen)} times in this pass; there is no call={call}.")
    return seen[call or 0]


def _part(part: Site | Stack, kind: str, indices: Sequence[int], tensor: Tensor) -> _Part:
    """A kept tensor with the places of its units."""
    if kind in WHOLE or isinstance(part, Stack):
        return _Part(tensor, None, {})
    axis = -1 if kind == "neurons" else -3
    if kind not in SHARED:
        return _Part(tensor, axis, {index: place for place, index in enumerate(indices)})
    groups = groups_of(part, indices)
    own = [part.kv_of[position] for position in part.positions(indices)]
    return _Part(tensor, axis, {index: groups.index(kv) for index, kv in zip(indices, own, strict=True)})
