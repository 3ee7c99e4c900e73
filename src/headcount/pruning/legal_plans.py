"""Plans that a runtime can hold: groups of one size, attentions that stay, counts that several devices can share.

Two ways to them. `legal` makes a plan one that can be held by giving units back, and `legal_order` says for every number of heads
of an attention which ones should go, so that a budget weighs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from torch import nn

from ..documents.scores import Scores
from ..errors import BadPlan, Refused
from ..exports.several import formats_named
from ..formatting import counted
from ..importance.criteria import KV_GROUPS
from ..model.anatomy import Anatomy, Site
from ..model.cutting.kv_groups import kv_groups_of
from ..model.cutting.layers import deleted_blocks
from ..model.discovery import unwrap
from ..plans import Plan, Unit
from .knapsack import LayerGroup, Options, fill

GROUPS = ("even", "uneven")
STAY_EVEN = (
    "Groups of query heads stay of one size, because a decoder whose groups are uneven writes slower; "
    "--groups uneven allows them."
)


class SiteOrder(NamedTuple):
    """The units of a site, those that go first before others, and what is lost with the first 0, 1, 2, ... of them.

    Where only some numbers of units can stay, `gone` has them with the units that go then, which need not be the first ones.
    """

    units: tuple[Unit, ...]
    lost: np.ndarray
    gone: dict[int, frozenset[Unit]] | None = None

    def without(self, staying: int) -> Collection[Unit]:
        """The units that go where so many stay."""
        return self.units[: len(self.units) - staying] if self.gone is None else self.gone[staying]


def order_of(units: Sequence[Unit], worth: Mapping[Unit, float]) -> SiteOrder:
    """Units from the least worth on; what is lost adds up. Ties: as they come."""
    ordered = tuple(sorted(units, key=lambda unit: worth[unit]))
    return SiteOrder(ordered, np.concatenate([[0.0], np.cumsum([worth[unit] for unit in ordered])]))


def worth_of(scores: Scores) -> dict[Unit, float]:
    """What is lost without each unit, 0 or more: scores below 0 (entropies, gains of an ablation) say which, not how much."""
    values = scores.values - scores.values.min(initial=0.0)
    return {unit: float(value) for unit, value in zip(scores.units, values, strict=True)}


class RuntimeRule(NamedTuple):
    """What the layers of a model have to be like: for some runtimes, whose groups have one size, or for plans of whole groups."""

    names: tuple[str, ...] = ()  # the formats that it is for
    even_groups: bool = False  # key-value heads of an attention serve equally many query heads
    attention: bool = False  # no attention may lose all its heads
    parallel: int = 1  # heads, key-value heads and neurons of every layer are multiples of this
    whole_groups: bool = False  # a key-value head goes with all its query heads, or stays with all of them

    @property
    def binds(self) -> bool:
        """Whether there is anything that cannot be held."""
        return self.even_groups or self.attention or self.parallel > 1 or self.whole_groups

    @property
    def even_for_speed(self) -> bool:
        """Whether groups stay even although all the formats could hold uneven ones."""
        return self.even_groups and not (self.names and any(form.even_groups for form in formats_named(self.names)))

    def __str__(self) -> str:
        devices = f" on {self.parallel} devices" if self.parallel > 1 else ""
        words = [*self.names, *["even groups"] * self.even_for_speed]
        return f"{' and '.join(words) or 'whole kv groups'}{devices}"


ANY = RuntimeRule()  # of headcount itself: everything can be held


def rule_of(runtime: str | Iterable[str] = (), tensor_parallel: int = 1, groups: str | None = None) -> RuntimeRule:
    """The rule of one or several formats, with commas; no rule without any. Refused where `groups` says otherwise."""
    if type(tensor_parallel) is not int or tensor_parallel < 1:
        raise BadPlan(
            f"tensor_parallel (--tensor-parallel) is {tensor_parallel!r:.40}; it must be a whole number from 1 on."
        )
    formats = formats_named(runtime) if runtime else []
    if tensor_parallel > 1 and not any(form.shared for form in formats):
        raise BadPlan("tensor_parallel (--tensor-parallel) is for vllm: say runtime (--for) vllm, or leave it out.")
    rule = RuntimeRule(
        tuple(form.name for form in formats),
        any(form.even_groups for form in formats),
        any(form.shared for form in formats),
        tensor_parallel,
    )
    if groups is not None and groups not in GROUPS:
        raise BadPlan(f'groups (--groups) is {groups!r:.40}; it must be "even" or "uneven", or be left out.')
    if groups == "uneven" and rule.even_groups:
        raise BadPlan(
            f"{rule} holds even groups of query heads alone: leave groups (--groups uneven) or runtime (--for) out."
        )
    return rule


def stay_even(groups: str | None, kinds: Collection[str], model: nn.Module, anatomy: Anatomy) -> bool:
    """Whether the key-value heads of every attention have to go on serving equally many query heads.

    By default they do in models that write text and whose groups are even now: there every step of one token takes longer with
    uneven ones. Where single heads are no units, or no query heads share anything, there is nothing to keep even.
    """
    if groups == "uneven" or "heads" not in kinds or KV_GROUPS in kinds:
        return False
    sites = [site for site in anatomy.heads if groups == "even" or site.attention != "encoder"]
    every = [[len(group) for group in kv_groups_of(site).values()] for site in sites]
    shared = [sizes for sizes in every if len(sizes) > 1 and max(sizes) > 1]
    if groups is None and (not _writes(model) or any(len({*sizes}) > 1 for sizes in shared)):
        return False
    return bool(shared)


def uneven_left(plan: Plan, model: nn.Module, anatomy: Anatomy) -> str:
    """A sentence about the uneven groups that a plan of one's own leaves in a model that writes text; else nothing."""
    if not stay_even(None, ("heads",), model, anatomy):
        return ""
    sites = (plan - legal(plan, anatomy, RuntimeRule(even_groups=True))).by_site()
    where = counted(len(sites), "attention")
    return (
        f"The plan leaves groups of query heads of different sizes in {where}, with which a decoder writes slower: "
        "headcount export --groups pad fills them up with zero heads, with the same outputs."
    ) * bool(sites)


def _writes(model: nn.Module) -> bool:
    """Whether a model generates text."""
    return bool(getattr(unwrap(model), "can_generate", lambda: False)())


def legal(plan: Plan, anatomy: Anatomy, rule: RuntimeRule, worth: Callable[[Unit], float] | None = None) -> Plan:
    """The plan without some of its units, so that what is left can be held; those that are worth most come back.

    Units of layers that go as a whole are left as they are.
    """
    if not rule.binds:
        return plan
    value = worth or (lambda unit: -unit.index)
    units = set(plan.units)
    whole_layers = {id(module) for block in deleted_blocks(anatomy, plan) for module in block.modules()}
    for name, indices in plan.by_site().items():
        site = anatomy[name]
        if not isinstance(site, Site) or id(site.writer) in whole_layers:
            continue
        removed = {Unit(name, index) for index in indices}
        back = _heads_back if site.kind == "head" else _neurons_back
        units -= {*back(site, removed, rule, value)}
    return Plan(frozenset(units), plan.why)


def must_be_legal(plan: Plan, anatomy: Anatomy, rule: RuntimeRule) -> None:
    """`Refused` for a plan that leaves something which cannot be held."""
    back = plan - legal(plan, anatomy, rule)
    if back:
        name = next(iter(back)).site
        what = "groups of one size, " * rule.even_groups + "an attention in every layer, " * rule.attention
        what += (
            f"numbers that divide by {rule.parallel}, " * (rule.parallel > 1) + "whole kv groups, " * rule.whole_groups
        )
        raise Refused(
            f"{rule} cannot hold what this plan leaves of {name}: it needs {what}so {back} would have to stay; change the plan, "
            + (
                "or leave groups (--groups even) out."
                if rule.even_for_speed
                else "or leave runtime (--for) out and export with groups (--groups)."
            )
        )


def legal_order(site: Site, order: SiteOrder, rule: RuntimeRule) -> SiteOrder:
    """The numbers of heads of an attention that can stay, and for each of them which ones lose least by going."""
    if not rule.binds or site.kind != "head" or order.gone is not None:
        return order
    worth = dict(zip(order.units, np.diff(order.lost), strict=True))
    best = {n: (loss, gone) for n, loss, gone in _choices(site, worth, rule)}  # every number once
    best = best or {len(site): (0.0, frozenset())}
    for n, loss, gone in _choices(site, worth, rule):
        if loss < best[n][0]:
            best[n] = loss, gone
    lost = np.full(len(order.lost), np.inf)
    for n, (loss, _) in best.items():
        lost[len(order.units) - n] = loss
    return SiteOrder(order.units, lost, {n: gone for n, (_, gone) in sorted(best.items())})


def removing(count: int, scores: Scores, anatomy: Anatomy, rule: RuntimeRule, least: int = 0) -> Plan:
    """The heads and neurons that lose least by going, so many at least or as many as can go, so that the rest can be held."""
    worth, scored = worth_of(scores), {unit.site for unit in scores}
    sites = [site for site in anatomy if site.name in scored]
    orders = [legal_order(site, order_of(site.units, worth), rule) for site in sites]
    shelves = []
    for order in orders:
        numbers = [n for n in range(len(order.units) + 1) if n >= least or n == len(order.units)]
        if order.gone is not None:
            numbers = [n for n in order.gone if n >= least] or [max(order.gone)]
        elif rule.parallel > 1:
            numbers = [n for n in numbers if n % rule.parallel == 0] or numbers[-1:]
        staying = np.array(numbers)
        shelves.append(Options(staying, order.lost[len(order.units) - staying], staying.astype(float)))
    most = sum(len(order.units) for order in orders) - count
    solution = fill([LayerGroup([shelf]) for shelf in shelves], max(most, sum(int(s.counts.min()) for s in shelves)))
    chosen = [counts[0] for counts in solution.counts if counts is not None]
    sets = [order.without(n) for order, n in zip(orders, chosen, strict=True)]
    return Plan(frozenset(unit for gone in sets for unit in gone))


def _choices(site: Site, worth: dict[Unit, float], rule: RuntimeRule) -> Iterator[tuple[int, float, frozenset[Unit]]]:
    """How many heads stay, what is lost, and which go: for so many groups of so many heads, those that are worth most."""
    groups = [sorted(group, key=lambda unit: -worth[unit]) for group in _groups(site).values()]
    everything = frozenset(site.units)
    most = max(map(len, groups), default=0)
    for size in [most] if rule.whole_groups else range(1, most + 1):
        tops = sorted(
            (group[:size] for group in groups if len(group) >= size or rule.whole_groups),
            key=lambda top: -sum(worth[unit] for unit in top),
        )
        for count in range(rule.parallel, len(tops) + 1, rule.parallel):
            gone = everything - {unit for top in tops[:count] for unit in top}
            yield len(everything) - len(gone), sum(worth[unit] for unit in gone), gone
    if not rule.attention:
        yield 0, sum(worth.values()), everything


def _groups(site: Site) -> dict[int, list[Unit]]:
    """The units of an attention by the key-value head that they use."""
    groups: dict[int, list[Unit]] = {}
    for unit, kv in zip(site.units, site.kv_of, strict=True):
        groups.setdefault(kv, []).append(unit)
    return groups


def _heads_back(site: Site, removed: set[Unit], rule: RuntimeRule, worth: Callable[[Unit], float]) -> Iterator[Unit]:
    """The heads that have to stay after all."""
    groups = {
        kv: sorted(group, key=lambda unit: (unit in removed, -worth(unit))) for kv, group in _groups(site).items()
    }
    staying = {kv: sum(unit not in removed for unit in group) for kv, group in groups.items()}
    wanted = ceil(sum(map(bool, staying.values())) / rule.parallel) * rule.parallel
    wanted = max(wanted, rule.parallel if rule.attention else 0)
    size = max(map(len, groups.values()), default=1) if rule.whole_groups else max(1, *staying.values())
    by_worth = sorted(groups, key=lambda kv: (not staying[kv], -sum(worth(unit) for unit in groups[kv][:size])))
    for kv in by_worth[:wanted]:
        yield from (unit for unit in groups[kv][:size] if unit in removed)


def _neurons_back(site: Site, removed: set[Unit], rule: RuntimeRule, worth: Callable[[Unit], float]) -> Iterator[Unit]:
    """The neurons that have to stay after all."""
    missing = -(len(site) - len(removed)) % rule.parallel
    yield from sorted(removed, key=lambda unit: (-worth(unit), unit.index))[:missing]
