"""Plans under a budget: as much of a model as so many multiply-adds, parameters or seconds can pay for.

Units of all kinds are weighed against each other by what is lost without them per unit of cost. What comes out is counted,
or measured, on a model that is really cut, and not over the budget then (times vary from one measurement to the next).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, lcm
from typing import Any

import numpy as np
from torch import nn

from ..documents.bench import Ratio
from ..documents.prune import BUDGETS
from ..documents.prune import Budget as Budget
from ..documents.scores import Scores
from ..efficiency.benchmark import bench, by_processor
from ..efficiency.contention import threads
from ..efficiency.costs import Costs, one_example, operations, operations_of, parameters
from ..efficiency.kv_cache import Serving, bytes_per_token, cache_costs, memory_costs, memory_of
from ..efficiency.latency import seconds
from ..errors import BadPlan, NotShown
from ..evaluation.evaluator import device_of
from ..formatting import bytes_text
from ..model.anatomy import Anatomy
from ..model.architectures import ModuleSpec
from ..model.cutting.effects import parameters_removed
from ..model.cutting.surgery import cut
from ..model.discovery import find, unwrap
from ..parsing import bytes_in, share_in
from ..plans import Plan, Unit
from .knapsack import LayerGroup, Options, fill
from .legal_plans import ANY, RuntimeRule, legal, legal_order, worth_of
from .legal_plans import SiteOrder as SiteOrder
from .legal_plans import order_of as order_of

MULTIPLES = {"cpu": 16, "cuda": 64}  # neurons that a width is rounded to: see docs/results/structures.md
PARTS = 16  # a site is never rounded more coarsely than to so many parts of it
TRIES = 6  # plans that are cut and measured at most
CLOSE = {
    "flops": 0.01,
    "params": 0.01,
    "kv-cache": 0.01,
    "memory": 0.01,
    "time": 0.05,
}  # what may be left over of a budget without another try


@dataclass(frozen=True, eq=False)
class BudgetProblem:
    """What a budget is reckoned with: the model, the scores that units have, and what they cost.

    Units are weighed by `weighed`, else by their scores: sites with an order of their own, in which what is lost is not a sum
    over units. Every site keeps at least the share `floor` of its units, and as many as `rule` can hold.
    """

    model: nn.Module
    scores: Scores
    costs: Costs
    least: int = 0
    multiple: int | None = None
    length: int | None = None
    batch_size: int = 16
    seed: int = 0
    specs: tuple[ModuleSpec, ...] = ()
    floor: float = 0.0
    by: str = ""  # what units are weighed by, where it is not the criterion of the scores
    weighed: Mapping[str, SiteOrder] = field(default_factory=dict)
    rule: RuntimeRule = ANY
    serving: Serving | None = None  # of memory: the cache beside the weights
    notes: list[str] = field(default_factory=list)  # why the last seconds are no time on the clock

    @cached_property
    def anatomy(self) -> Anatomy:
        """Where the units of the model are."""
        return find(self.model, self.specs)

    @cached_property
    def worth(self) -> dict[Unit, float]:
        """What is lost without each unit by itself."""
        return worth_of(self.scores)

    @cached_property
    def orders(self) -> dict[str, SiteOrder]:
        """The units of every scored site in the order in which they go, and what is lost then."""
        scored = {unit.site for unit in self.scores}
        sites = [site for site in self.anatomy if site.name in scored]
        plain = {site.name: self.weighed.get(site.name) or order_of(site.units, self.worth) for site in sites}
        return {site.name: legal_order(site, plain[site.name], self.rule) for site in sites}

    def buy(self, allowed: float) -> Plan:
        """The plan that loses least and is reckoned to cost at most `allowed`."""
        return keeping(self, allowed)

    @cached_property
    def multiples(self) -> dict[str, int]:
        """What numbers of units are rounded to, by their kind: as asked, or what the device likes and the MLPs are wide for."""
        device = device_of(unwrap(self.model)).type
        most = MULTIPLES.get(device, MULTIPLES["cuda"])
        sizes = Counter(unit.site for unit in self.scores if self.scores.kinds[unit.site] == "neuron").values()
        fits = 2 ** int(np.log2(max(1, min(sizes, default=most) // PARTS)))
        return {"head": 1, "neuron": lcm(self.multiple or min(most, fits), self.rule.parallel)}

    def cheapest(self) -> float:
        """What is left when everything goes that may go."""
        floors, fixed = _floors(self)
        return fixed + _least(floors)


def purse(model: nn.Module, scores: Scores, resource: str, **settings: Any) -> BudgetProblem:
    """All that is needed to reckon with a resource; time is measured here, once per machine and shape."""
    rows, length = settings.get("specs", ()), settings.get("length")
    if resource == "params":
        costs = parameters(model, rows)
    elif resource == "kv-cache":
        costs = cache_costs(model, rows)
    elif resource == "memory":
        costs = memory_costs(model, settings["serving"], rows)
    elif resource == "flops":
        costs = operations(model, length, specs=rows)
    else:
        kinds = {scores.kinds[unit.site] for unit in scores}
        sizes = {"batch_size": settings.get("batch_size", 16), "length": length or 128, "seed": settings.get("seed", 0)}
        costs = seconds(model, kinds, **sizes, specs=rows)
    return BudgetProblem(model, scores, costs, **settings)


def within(purse: BudgetProblem, target: str | float) -> tuple[Plan, Budget]:
    """The plan that loses least of those that keep the budget, and the budget with what the cut model really costs.

    `target` is the share that may be left ("50%", 0.5), or for time how many times as fast it must run. Where the
    reckoning was too hopeful, as it can be for time, less is kept until the real cost is within the budget.
    """
    costs = purse.costs
    allowed = must_reach(purse, target)
    purse.notes.clear()
    result = search(purse, allowed, lambda plan: _real(purse, plan))
    if result is None:
        raise NotShown(_not_reached(purse, target))
    plan, real = result
    note = costs.note or (purse.notes[-1] if purse.notes else "")
    return plan, Budget(costs.what, target, costs.whole, allowed, costs.of(plan), real, dict(purse.multiples), note)


def reckoned(purse: BudgetProblem, allowed: float, costs: Costs) -> Plan | None:
    """The plan that loses least by the purse's own costs, of those that cost at most `allowed` by others; None if none does."""
    result = search(purse, allowed, costs.of)
    return None if result is None else result[0]


def must_reach(purse: BudgetProblem, target: str | float) -> float:
    """What may be spent; `BadPlan` if more is left even without all units. What they score does not matter here.

    Seconds are a matter of measuring, and never refused here.
    """
    costs = purse.costs
    share = _share_of(costs, target)
    least = purse.cheapest()
    if least > share * costs.whole and costs.what != "time":
        raise BadPlan(
            f"{_percent(share)} of the {BUDGETS[costs.what]} cannot be reached: without all {len(purse.scores)} units "
            f"{_percent(least / costs.whole)} are left; ask for more, or for more kinds of units."
        )
    return share * costs.whole


def _share_of(costs: Costs, target: str | float) -> float:
    """The share of the costs that may be left."""
    if costs.what == "time":
        return 1 / speedup_of(target)
    if costs.what != "memory":
        return share_of(target)
    share = memory_in(target) / costs.whole
    if share >= 1:
        raise BadPlan(
            f"The whole model and its cache take {bytes_text(costs.whole)}, which is within {target} already: nothing has to go."
        )
    return share


def search(purse: BudgetProblem, allowed: float, real_cost: Callable[[Plan], float]) -> tuple[Plan, float] | None:
    """The mildest plan found whose real cost is within what is allowed, and that cost; None if there is none.

    Reckoned and real cost agree but for noise in measured times, and for heads that share keys and values, where the
    reckoning is a bound: so the first plan is mostly the last one, and otherwise what is aimed at is moved by the error.
    """
    least = purse.cheapest()
    room, low, high = max(allowed, least), least, purse.costs.whole
    best: tuple[Plan, float] | None = None
    tried_plans: set[Plan] = set()
    for _ in range(TRIES):
        plan = purse.buy(room)
        if not plan or plan in tried_plans:
            break
        tried_plans.add(plan)
        real = real_cost(plan)
        if real <= allowed:
            if best is None or real > best[1]:
                best = plan, real
            low = max(low, room)
            if real >= (1 - CLOSE[purse.costs.what]) * allowed:
                break
            room = min(room + 0.95 * (allowed - real), (room + high) / 2)
        else:
            high = min(high, room)
            below = min(room, purse.costs.of(plan)) - 1.05 * (real - allowed)  # less than this plan, or it comes again
            room = max(below, (low + room) / 2 if best is not None else least)
    return best


def courses(purse: BudgetProblem, step: float) -> Iterator[Plan]:
    """Plans for smaller and smaller budgets, the mildest first, each cheaper than the one before."""
    least, share, spent = purse.cheapest(), 1.0, purse.costs.whole
    while share > 0:
        share = round(share - step, 9)
        room = max(share * purse.costs.whole, least)
        plan = purse.buy(room)
        if plan and purse.costs.of(plan) < spent:
            spent = purse.costs.of(plan)
            yield plan
        if room <= least:
            return


def keeping(purse: BudgetProblem, allowed: float) -> Plan:
    """The units to remove so that what is left costs at most `allowed` and what is lost adds up to as little as can be."""
    floors, fixed = _floors(purse)
    room = allowed - fixed
    if room < _least(floors) <= room + 1e-9 * purse.costs.whole:
        room = _least(floors)  # the least that can be kept, but for rounding
    solution = fill(floors, room)
    removed_units: set[Unit] = set()
    for (layer, sites), counts in zip(_named(purse), solution.counts, strict=True):
        if counts is None:
            assert layer is not None
            removed_units.add(layer)
            continue
        for name, count in zip(sites, counts, strict=True):
            removed_units |= {*purse.orders[name].without(count)}
    share_text = _percent(purse.costs.of(Plan(frozenset(removed_units))) / purse.costs.whole)
    why = f"what {share_text} of the {BUDGETS[purse.costs.what]} cannot keep, by {purse.by or purse.scores.by}"
    return Plan(frozenset(removed_units), why)


Named = list[tuple[Unit | None, list[str]]]


def _named(purse: BudgetProblem) -> Named:
    """Layers with the sites of theirs that are scored; sites outside any layer by themselves."""
    scores, anatomy = purse.scores, purse.anatomy
    scored = set(scores.kinds) & {unit.site for unit in scores}
    inside: dict[Unit, list[str]] = {unit: [] for stack in anatomy.stacks for unit in stack.units}
    alone: Named = []
    for site in anatomy:
        if site.name in scored and len(site):
            home = purse.costs.homes.get(site.name)
            if home is None:
                alone.append((None, [site.name]))
            else:
                inside[home].append(site.name)
    layers = [(unit, sites) for unit, sites in inside.items() if sites or unit.site in scored]
    return [*layers, *alone]


def _floors(purse: BudgetProblem) -> tuple[list[LayerGroup], float]:
    """What can be kept, for the knapsack; and what is spent whatever is chosen."""
    worth, anatomy, costs = purse.worth, purse.anatomy, purse.costs
    staying = _layers_that_stay(anatomy, worth, purse.least, costs)
    floors, open_costs = list[LayerGroup](), 0.0
    for layer, sites in _named(purse):
        shelves = []
        for name in sites:
            part, table, (_, lost, gone) = anatomy[name], costs.sites[name], purse.orders[name]
            least = max(purse.least, ceil(purse.floor * len(part) - 1e-9))
            counts = _numbers(len(part), purse.multiples.get(part.kind, 1), least)
            if gone is not None:
                counts = np.array([count for count in gone if count >= least] or [max(gone)])
            shelves.append(Options(counts, lost[len(part) - counts], table[counts]))
            open_costs += float(table[-1])
        if layer is None or layer not in worth:
            floors.append(LayerGroup(shelves))
            continue
        other_sites = [name for name, home in costs.homes.items() if home == layer and name not in sites]
        besides = costs.layers.get(layer, 0.0) + sum(float(costs.sites[name][-1]) for name in other_sites)
        open_costs += besides
        floors.append(LayerGroup(shelves, None if layer in staying else worth[layer], besides))
    return floors, costs.whole - open_costs


def _least(floors: Sequence[LayerGroup]) -> float:
    """What is spent when as little is kept as can be."""
    return sum(
        0.0 if floor.lost is not None else floor.cost + sum(float(shelf.cost.min()) for shelf in floor.shelves)
        for floor in floors
    )


def _layers_that_stay(anatomy: Anatomy, worth: Mapping[Unit, float], least: int, costs: Costs) -> set[Unit]:
    """The best layers of every stack: at least one, and one with attention where some have none."""
    attends = {costs.homes[site.name] for site in anatomy.heads if site.name in costs.homes}
    out: set[Unit] = set()
    for stack in anatomy.stacks:
        ranked = sorted((unit for unit in stack.units if unit in worth), key=lambda unit: -worth[unit])
        out |= {*ranked[: max(1, least)], *[unit for unit in ranked if unit in attends][:1]}
    return out


def _numbers(units: int, multiple: int, least: int) -> np.ndarray:
    """How many units may stay: multiples, all of them, and where a floor is given at least so many."""
    return np.unique([*(count for count in range(0, units, multiple) if count >= least), units])


def _real(purse: BudgetProblem, plan: Plan) -> float:
    """What the model costs once the plan is carried out: on a copy that is cut, or for parameters counted.

    What has to be said about a time is added to the purse's notes.
    """
    if purse.costs.what == "params":
        return purse.costs.whole - parameters_removed(purse.model, plan, specs=purse.specs)
    if purse.costs.clock == "counts":  # seconds that could not be measured
        return purse.costs.of(plan)
    smaller = copy.deepcopy(purse.model)
    cut(smaller, plan, specs=purse.specs)
    if purse.costs.what == "flops":
        return float(operations_of(smaller, one_example(unwrap(purse.model), purse.length)))
    if purse.costs.what == "kv-cache":
        return float(bytes_per_token(smaller) or 0)
    if purse.serving is not None:
        return memory_of(smaller, purse.serving)
    ratio = times_as_fast(purse, smaller)
    if ratio is None:
        purse.notes.append("reckoned from tables and not timed, because repetitions differed too much")
        return purse.costs.of(plan)
    if ratio.by_processor:
        purse.notes.append("in processor time of one thread, because other programs kept the processor busy")
    # three of four repetitions were at least so much faster, so that noise does not decide
    return purse.costs.whole / ratio.low


def times_as_fast(purse: BudgetProblem, smaller: nn.Module, seconds: float = 10.0) -> Ratio | None:
    """How many times as fast a smaller model is, by the clock that the costs were measured with; None where noise decides."""
    by_work = purse.costs.clock == "processor"
    sizes: dict[str, Any] = {"batch_sizes": (purse.batch_size,), "lengths": (purse.length or 128,), "seed": purse.seed}
    with threads(1 if by_work else None):
        result = bench(
            {"whole": purse.model, "smaller": smaller},
            **sizes,
            seconds=seconds / 2 if by_work else seconds,  # which scatters less
            clock=by_processor if by_work else None,
        )
    ratio = result.rows[-1].measured
    return None if ratio is None else ratio._replace(by_processor=by_work or ratio.by_processor)


def share_of(share: str | float) -> float:
    """A share such as "50%" or 0.5, above 0 and below 1."""
    value: float | None = None
    if isinstance(share, str):
        value = share_in(share)
    elif isinstance(share, float):
        value = share
    if value is None or not 0 < value < 1:
        raise BadPlan(f'How much may be left? I got {share!r:.40}; write a share above 0 and below 1, such as "50%".')
    return value


def memory_in(size: str | float) -> float:
    """Bytes, from a number or a text such as "6GiB"."""
    value = bytes_in(size) if isinstance(size, str) else None if isinstance(size, bool) else size
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise BadPlan(f'How much memory? I got {size!r:.40}; write a size such as "6GiB", or a number of bytes.')
    return float(value)


def speedup_of(speedup: str | float) -> float:
    """A factor above 1."""
    if isinstance(speedup, bool) or not isinstance(speedup, int | float) or not 1 < speedup < 100:
        raise BadPlan(f"A speed-up is a factor above 1, such as 1.3; I got {speedup!r:.40}.")
    return float(speedup)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _not_reached(purse: BudgetProblem, target: str | float) -> str:
    if purse.costs.what == "time" and purse.costs.clock != "counts":
        everything = Plan(frozenset(purse.scores.order(purse.least)) - _kept_layers(purse))
        everything = legal(everything, purse.anatomy, purse.rule)
        real = _real(purse, everything)
        where = f"batch {purse.batch_size}, length {purse.length or 128}"
        return (
            f"Without all {len(everything)} units that may go it ran {purse.costs.whole / real:.2f} times as fast here "
            f"({where}), not {target:g}; ask for less, or try a larger batch, another length or more kinds of units."
        )
    return f"I found no plan that leaves {target} of the {BUDGETS[purse.costs.what]}; ask for more, or for more kinds of units."


def _kept_layers(purse: BudgetProblem) -> frozenset[Unit]:
    return frozenset(_layers_that_stay(purse.anatomy, purse.worth, purse.least, purse.costs))
