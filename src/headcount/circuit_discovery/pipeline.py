"""`circuit`: the units that a behaviour needs, found on some examples, and how faithful they are on others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import nn

from ..data import splits
from ..documents.discovery.circuit import CircuitDocument, CircuitEdge, CircuitUnit, EdgeCircuit
from ..documents.discovery.patch_check import PatchCheck
from ..documents.results import ResultDocument
from ..errors import BadPlan, NotFound, Refused
from ..evaluation.evaluator import signature
from ..importance.attribution.exact import CHECKED, agreement, values_under
from ..importance.attribution.pairs import contrasted, sign_of
from ..importance.attribution.units import STEPS, Method, attributions
from ..model.anatomy import Anatomy
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..model.distributed.refusals import not_tensor_parallel
from ..plans import Plan
from ..stats.metrics import metric
from ..stats.results import Result
from .edge_circuits import values_of_circuits
from .edge_patching import patch_edges
from .edges import Edge, EdgeScores, score_edges
from .sizes import Halves, over, sizes_of

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)  # of all heads and MLPs
EDGE_SHARES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of all edges
RANKED = ("signed", "absolute", "edges")
CHECKED_EDGES = 10
REACH = 0.8


@dataclass(frozen=True)
class _Request:
    """One call of `circuit`."""

    model: nn.Module
    anatomy: Anatomy
    find_on: Task
    report_on: Task
    method: Method
    ranked: str
    shares: tuple[float, ...]
    edge_shares: tuple[float, ...]
    reach: float
    random_seeds: int
    seed: int
    batch_size: int | None
    run: Run | None
    specs: tuple[ModuleSpec, ...]

    @cached_property
    def units(self) -> dict[str, Plan]:
        """The heads and the MLPs, each with the units of a plan that it stands for, in the order of the model."""
        out = dict[str, Plan]()
        for site in self.anatomy:
            if site.kind == "head":
                out |= {str(unit): Plan(frozenset({unit})) for unit in site.units}
            else:
                out[site.name] = Plan(frozenset(site.units))
        return out

    @property
    def how(self) -> dict[str, Any]:
        """What all measurements are given."""
        return {"batch_size": self.batch_size, "run": self.run}

    def named(self, name: str, task: Task) -> str:
        """The name of results in the run folder: two circuits in one folder do not read each other's."""
        return f"{name}-{task.fingerprint[:8]}"

    @cached_property
    def sizes(self) -> list[int]:
        """How many units there are in the circuits, from none to all."""
        return sizes_of(self.shares, len(self.units))

    @property
    def halves(self) -> Halves:
        """Which examples are used for what."""
        return Halves(self.find_on, self.report_on, self.reach, self.random_seeds, self.seed)

    def without(self, kept: Iterable[str]) -> Plan:
        """All units but those of a circuit."""
        rest = set(self.units) - set(kept)
        return Plan(frozenset(unit for name in rest for unit in self.units[name].units))

    def values(self, task: Task, orders: Mapping[str, Sequence[str]], name: str) -> dict[str, np.ndarray]:
        """The metric of every example: clean, corrupted, and for each order of units (examples, sizes)."""
        name = self.named(f"circuit-{name}", task)
        plans = {f"{key}:{size}": self.without(order[:size]) for key, order in orders.items() for size in self.sizes}
        found = values_under(unwrap(self.model), self.anatomy, task, plans, name=name, **self.how)
        each = np.split(found["patched"], len(orders), axis=1)
        return {"clean": found["clean"], "corrupted": found["corrupted"], **dict(zip(orders, each, strict=True))}


def circuit(
    model: nn.Module,
    task: Task,
    by: str = "eap-ig",
    *,
    find_on: Task | None = None,
    ranked: str = "signed",
    steps: int | None = None,
    shares: Iterable[float] = SHARES,
    edge_shares: Iterable[float] = EDGE_SHARES,
    reach: float = REACH,
    edges: int | None = None,
    check: int = CHECKED,
    random_seeds: int = 3,
    seed: int = 0,
    batch_size: int | None = None,
    run: Run | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> CircuitDocument:
    """A circuit: the heads and MLPs that a behaviour needs, all others being as on the corrupted prompts; and its faithfulness.

    Units are ranked on one half of the examples, and the smallest circuit that is faithful there is taken; faithfulness is
    reported on the other half: (m(circuit) - m(nothing)) / (m(model) - m(nothing)) over sizes, with CPR, the area under that
    curve, and CMD, the area between it and 1 (Mueller et al. 2025). Embeddings belong to every circuit.

    Args:
        model: The model; it is as it was afterwards.
        task: A contrast task, measured by a metric that has a gradient; halves of it are used, or all where `find_on` is given.
        by: "eap-ig" or "attribution-patching".
        find_on: Other examples, to find the circuit on.
        ranked: "signed" (what helps comes first: for CPR), "absolute" (whatever has an effect: for CMD), or "edges" (by the
            strongest edge of each unit).
        steps: eap-ig: runs between corrupted and clean embeddings; by default 5.
        shares: Sizes of circuits, as shares of all heads and MLPs.
        edge_shares: Sizes of circuits of edges, as shares of all edges; () for none. They are measured where edges are scored.
        reach: The faithfulness that the circuit has where it was found.
        edges: How many edges are listed, the strongest first; by default 100, or none where the model has none that can be told.
        check: How many units are patched exactly, to see how good the estimates are; 0 for none.
        random_seeds: Random circuits of each size, to compare with.
        seed: Random seed of the halves, the random circuits and the sample of units.
        batch_size: Examples per forward pass; by default that of the task.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The document `circuit.json`: its `plan` masks what is not in the circuit, `kept` names what is.

    Examples:
        >>> model = hc.load("my-decoder")
        >>> task = hc.task("contrast:induction", tokenizer="my-decoder", limit=32)
        >>> found = hc.circuit(model, task, check=0)
        >>> [round(point.faithfulness.value, 3) for point in (found.points[0], found.points[-1])]
        [0.0, 1.0]
    """
    not_tensor_parallel(model, "circuits are not searched")
    task = contrasted(task, "A circuit")
    if ranked not in RANKED:
        raise BadPlan(f"Units are ranked {', '.join(RANKED)}; I got {ranked!r:.40}.")
    if steps is not None and by != "eap-ig":
        raise BadPlan(f"Only eap-ig takes steps between corrupted and clean prompts; {by} takes none: leave steps out.")
    wanted, of_edges = tuple(shares), tuple(edge_shares)
    if not wanted or not all(0 <= share <= 1 for share in (*wanted, *of_edges)):
        raise BadPlan(f"Sizes of circuits are shares from 0 to 1; I got {(*wanted, *of_edges)!r:.60}.")
    if not 0 < reach < float("inf") or random_seeds < 0:
        raise BadPlan(
            f"A circuit reaches a faithfulness above 0, such as 0.8, and random circuits are at least 0; I got {reach} and "
            f"{random_seeds}."
        )
    if find_on is None:
        uses = splits.share_out(task, {"select": 0.5, "report": 0.5}, seed)
    else:
        uses = splits.share_out(task, {"report": 1.0}, seed, {"select": contrasted(find_on, "A circuit")})
    method, rows = Method(by, STEPS if steps is None else steps), tuple(specs)
    parts = uses.tasks["select"], uses.tasks["report"]
    how = (wanted, of_edges, reach, random_seeds, seed, batch_size, run, rows)
    request = _Request(model, find(model, rows), *parts, method, ranked, *how)
    if not request.units:
        raise NotFound(
            f"{request.anatomy.model_name} has no heads and no MLPs; `headcount inspect` lists what is there."
        )
    samples = _samples(request)
    scored, no_edges = _edges(request, edges)
    order = _order(request, samples, scored)
    found = over(request.values, order, list(request.units), request.sizes, request.halves)
    chosen, kept_edges = found.size, _edge_circuit(request, scored)
    ranks = {name: rank for rank, name in enumerate(order, 1)}
    units = [_unit(name, values, ranks[name], chosen) for name, values in samples.items()]
    strongest = [] if scored is None else scored.strongest(100 if edges is None else edges)
    exact, edge_check = _checked_edges(request, strongest, scored, check)
    return CircuitDocument(
        by=str(method),
        ranked=ranked,
        sets=splits.in_words(uses, {"select": "found", "report": "reported"}),
        signature=signature(model, request.report_on, circuit=str(method), ranked=ranked),
        **{key: _result(request.report_on, column) for key, column in found.values.items()},
        points=found.points,
        cpr=found.cpr,
        cmd=found.cmd,
        random_cpr=found.random_cpr,
        reach=reach,
        size=chosen,
        plan=request.without(order[:chosen]),
        units=tuple(units),
        edges=tuple(_edge(edge, scored, exact.get(edge[:2]), edge[:2] in kept_edges.names) for edge in strongest),
        of_edges=0 if scored is None else len(scored),
        edge_circuit=kept_edges.document,
        check=_checked(request, samples, check) if check else None,
        edge_check=edge_check,
        no_edges=no_edges,
    )


# --- scores ---------------------------------------------------------------------------------------------------------


def _samples(request: _Request) -> dict[str, np.ndarray]:
    """For each head and MLP its score on each example."""
    root, sites = unwrap(request.model), request.anatomy.sites
    task, name = request.find_on, request.named("circuit", request.find_on)
    found = attributions(root, request.anatomy, sites, task, request.method, name=name, whole=True, **request.how)
    out = dict[str, np.ndarray]()
    for site in sites:
        names = [str(unit) for unit in site.units] if site.kind == "head" else [site.name]
        out |= dict(zip(names, found[site.name].T, strict=True))
    return out


def _edges(request: _Request, count: int | None) -> tuple[EdgeScores | None, str]:
    """Scores of edges where they are asked for, and why there are none."""
    if count == 0 and request.ranked != "edges":
        return None, ""
    name = request.named("edges", request.find_on)
    how = {"steps": request.method.steps, "specs": request.specs, "name": name, **request.how}
    try:
        return score_edges(request.model, request.find_on, request.method.by, **how), ""
    except Refused as error:
        if count is not None or request.ranked == "edges":
            raise
        return None, str(error)


def _order(request: _Request, samples: Mapping[str, np.ndarray], edges: EdgeScores | None) -> list[str]:
    """The units, the most important first."""
    if request.ranked == "edges":
        assert edges is not None
        worth = edges.unit_ranks()
    else:
        means = {name: float(values.mean()) for name, values in samples.items()}
        worth = {name: abs(mean) if request.ranked == "absolute" else mean for name, mean in means.items()}
    return sorted(request.units, key=lambda name: -worth[name])


def _unit(name: str, values: np.ndarray, rank: int, chosen: int) -> CircuitUnit:
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return CircuitUnit(unit=name, score=float(values.mean()), stderr=error, rank=rank, kept=rank <= chosen)


def _edge(edge: Edge, scored: EdgeScores | None, exact: float | None, kept: bool) -> CircuitEdge:
    assert scored is not None
    units = next(reader.units for reader in scored.readers if reader.name == edge.reader)
    return CircuitEdge(**edge._asdict(), units=units, exact=exact, kept=kept)


# --- faithfulness ---------------------------------------------------------------------------------------------------


class _KeptEdges(NamedTuple):
    """The circuit of edges, and the names of those in it; none where there is none."""

    document: EdgeCircuit | None
    names: frozenset[tuple[str, str]]


def _edge_circuit(request: _Request, scored: EdgeScores | None) -> _KeptEdges:
    """Faithfulness over sizes of circuits of edges, in which one reader may be corrupted and another one not."""
    if scored is None or not request.edge_shares:
        return _KeptEdges(None, frozenset())
    root, graph, there = unwrap(request.model), scored.graph, scored.there
    everything = [int(place) for place in np.flatnonzero(there)]
    sizes = sizes_of(request.edge_shares, len(everything))
    worth = scored.mean if request.ranked == "signed" else np.abs(scored.mean)
    order = sorted(everything, key=lambda place: -worth.flat[place])

    def values(task: Task, orders: Mapping[str, Sequence[int]], name: str) -> dict[str, np.ndarray]:
        circuits = []
        for one in orders.values():
            for size in sizes:
                kept = np.zeros(there.shape, bool)
                kept.flat[list(one[:size])] = True
                circuits.append(kept)
        name = request.named(f"edge-circuits-{name}", task)
        found = values_of_circuits(root, request.anatomy, graph, task, circuits, name=name, **request.how)
        each = np.split(found.pop("kept"), len(orders), axis=1)
        return {**found, **dict(zip(orders, each, strict=True))}

    found = over(values, order, everything, sizes, request.halves)
    document = EdgeCircuit(
        points=found.points,
        cpr=found.cpr,
        cmd=found.cmd,
        random_cpr=found.random_cpr,
        size=found.size,
        of=len(everything),
    )
    pairs = zip(*np.unravel_index(order[: found.size], there.shape), strict=True)
    return _KeptEdges(document, frozenset((scored.writers[one], scored.readers[other].name) for one, other in pairs))


def _result(task: Task, values: np.ndarray) -> ResultDocument:
    """The metric of some values of examples."""
    name = "logit-difference" if task.metric.name == "normalised" else task.metric.name
    measured = metric(name, columns=("loss",)) if name == "loss" else metric(name)
    clusters = None if task.clusters is None else np.array(task.clusters)
    return ResultDocument.of(Result(measured, values[:, None], "", clusters))


# --- checks ---------------------------------------------------------------------------------------------------------


def _checked(request: _Request, samples: Mapping[str, np.ndarray], count: int) -> PatchCheck:
    """The rank correlation of the scores with exact patches, of units drawn by seed."""
    if count < 2:
        raise BadPlan(f"A rank correlation takes at least 2 units (--check); I got {count}.")
    names = list(samples)
    if count < len(names):
        drawn = np.random.default_rng(request.seed).choice(len(names), count, replace=False)
        names = [names[place] for place in sorted(drawn)]
    plans = {name: request.units[name] for name in names}
    root, task = unwrap(request.model), request.find_on
    found = values_under(root, request.anatomy, task, plans, name=request.named("circuit-check", task), **request.how)
    drops = sign_of(task) * (found["clean"][:, None] - found["patched"])
    estimates = np.stack([samples[name] for name in names], axis=1)
    return agreement(tuple(names), estimates, drops, of=len(samples), seed=request.seed, clusters=task.clusters)


def _checked_edges(
    request: _Request, edges: Sequence[Edge], scored: EdgeScores | None, check: int
) -> tuple[dict[tuple[str, str], float], PatchCheck | None]:
    """Exact effects of the strongest edges, and how well the scores agree with them."""
    some = [(edge.writer, edge.reader) for edge in edges[:CHECKED_EDGES]]
    if not check or scored is None or len(some) < 2:
        return {}, None
    task = request.find_on
    name = request.named("edge-patches", task)
    drops = patch_edges(request.model, task, some, name=name, specs=request.specs, **request.how)
    names, estimates = (
        tuple(f"{one} -> {other}" for one, other in some),
        np.array([[e.score for e in edges[: len(some)]]]),
    )
    about = {"of": len(scored), "seed": request.seed, "clusters": task.clusters, "drawn": "the strongest"}
    exact = dict(zip(some, drops.mean(0).tolist(), strict=True))
    return exact, agreement(names, estimates, drops, **about)
