"""`ablate`: how good is the model without one unit, or with one head alone per attention (Michel et al. 2019, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from .. import notebook
from ..documents.results import FillDocument
from ..documents.scores import GROUPS, Scores
from ..errors import BadPlan
from ..model.anatomy import Anatomy
from ..model.architectures import ModuleSpec
from ..model.cutting.kv_groups import kv_groups_of
from ..model.discovery import find
from ..model.stand_ins import Fill
from ..plans import Plan, Unit, ranges
from ..stats.metrics import UNFINISHED
from ..stats.paired_tests import Correlation, pearson, resampled_differences, spearman
from ..stats.results import Comparison, Result, compare_all
from .evaluator import MEMORY, filled, measure, result_of, signature

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

KINDS = ("heads", "neurons", "mlps", "attentions", "layers", "kv-groups")


@dataclass(frozen=True, eq=False)
class Ablation:
    """A model measured whole and without each of some plans, on the same examples: `rows` is (plans, examples, columns).

    `fill` says what stood in for masked units; None: zero.
    """

    names: tuple[str, ...]
    plans: tuple[Plan, ...]
    base: Result
    rows: np.ndarray
    anatomy: Mapping[str, tuple[str, str | None]]  # site -> (kind, attention type)
    fill: FillDocument | None = None

    @cached_property
    def values(self) -> np.ndarray:
        """The metric without each plan."""
        return np.array([self.base.metric.value(rows) for rows in self.rows])

    @cached_property
    def damage(self) -> np.ndarray:
        """How much worse the model is without each plan, in the metric's own unit; negative where it is better."""
        sign = 1 if self.base.metric.higher_is_better else -1
        return sign * (self.base.value - self.values)

    @property
    def unfinished(self) -> list[int]:
        """How many translations the length limit ended without each plan; empty where nothing was generated."""
        if UNFINISHED not in self.base.metric.columns:
            return []
        return self.rows[:, :, self.base.metric.columns.index(UNFINISHED)].sum(axis=1).astype(int).tolist()

    def comparisons(
        self, test: str = "randomization", *, resamples: int | None = None, **options: Any
    ) -> tuple[Comparison, ...]:
        """Each plan against the whole model: difference, interval, p; p also corrected over all of them together.

        A p from draws is at least 1 / (1 + draws), and Holm multiplies it by the number of tests: with 1000 draws no
        head of 144 could ever be called significant. So there are 100 draws per test, at least 1000, unless said.
        """
        if resamples is None:
            ranks = self.base.metric.statistics is None  # ranking anew in every draw is slow
            resamples = 1000 if ranks else max(1000, 100 * len(self.plans))
        return compare_all(self.base, self.rows, test=test, resamples=resamples, **options)

    def reliability(self, *, resamples: int | None = None, seed: int = 12345) -> float:
        """The share of the spread of damages over plans that is not the noise of these examples, from 0 to 1.

        On other examples of the same kind the damages would correlate with these about so much.
        """
        return self.reliabilities(resamples=resamples, seed=seed)[0]

    def reliabilities(self, *, resamples: int | None = None, seed: int = 12345) -> tuple[float, np.ndarray]:
        """The reliability, and what it is on resamples of the examples, (resamples,): how far it is known."""
        if resamples is None:
            resamples = 100 if self.base.metric.statistics is None else 1000  # ranking anew in every draw is slow
        spread = float(np.var(self.damage))
        if spread == 0:
            return 0.0, np.zeros(resamples)
        base, draws = self.base, {"resamples": resamples, "seed": seed}
        drawn = resampled_differences(base.metric, base.rows, self.rows, clusters=base.clusters, **draws)
        # what moves all damages together, such as an easier draw, does not spread them
        noise = float(np.var(drawn - drawn.mean(axis=1, keepdims=True), axis=0).mean())
        # a resample has the noise of the examples, and its own on top of it
        real = np.maximum(0.0, np.var(drawn, axis=0) - 2 * noise)
        total = real + noise
        return max(0.0, 1 - noise / spread), np.divide(real, total, out=np.zeros_like(real), where=total > 0)

    def scores(self) -> Scores:
        """The damage as scores of units, the order of single ablations; only where every plan is one unit."""
        if any(len(plan) != 1 for plan in self.plans):
            raise BadPlan("Only the ablation of single units gives scores of units; these plans close several at once.")
        units = tuple(next(iter(plan)) for plan in self.plans)
        kinds = {unit.site: self.anatomy[unit.site][0] for unit in units}
        types = {unit.site: self.anatomy[unit.site][1] for unit in units}
        return Scores(units, self.damage, "ablation", kinds, types, None, f"by:ablation|{self.signature}")

    @property
    def signature(self) -> str:
        """How it was measured: the signature of the whole model's result, and what stood in for units."""
        return self.base.signature if self.fill is None else f"fill:{self.fill.signature}|{self.base.signature}"

    def __str__(self) -> str:
        points, metric = self.base.metric.points, self.base.metric.name
        order = np.argsort(-self.damage, kind="stable")
        worst = [f"{self.names[n]} {self.damage[n] * points:+.2f}" for n in order[:5]]
        least = [f"{self.names[n]} {self.damage[n] * points:+.2f}" for n in order[::-1][:5]]
        unit = "points" if points != 1 else metric
        lines = [f"{len(self.plans)} ablations of {self.base}"]
        if self.fill is not None:
            lines.append(self.fill.sentence)
        lines += [f"cost most ({unit}): {', '.join(worst)}"]
        return "\n".join([*lines, f"cost least: {', '.join(least)}", "`.comparisons()` tests each difference"])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        points = self.base.metric.points
        title = f"{self.base}; below, what it loses without each{' (points)' if points != 1 else ''}"
        sites = notebook.by_site(self.names, self.damage * points)
        drawn = notebook.shades(sites, digits=2 if points != 1 else 4, colours=notebook.LOSSES)
        return notebook.block(notebook.line(title, bold=True), drawn)


def plans_of(anatomy: Anatomy, units: str = "heads", *, block: int | None = None) -> dict[str, Plan]:
    """One plan per thing to close: each head, kv group, layer, whole MLP or attention, or blocks of neurons."""
    if units not in KINDS:
        raise BadPlan(f"Units to close are {', '.join(KINDS)}; I got {units!r:.40}.")
    if units == "layers":
        return {str(unit): Plan(frozenset([unit])) for stack in anatomy.stacks for unit in stack.units}
    sites = [s for s in (anatomy.neurons if units in ("neurons", "mlps") else anatomy.heads) if len(s)]
    if units in ("mlps", "attentions"):
        return {f"{site.name}:*": Plan(frozenset(site.units)) for site in sites}
    if units == "kv-groups":  # each is a plan over all its heads
        return {
            f"{site.name}{GROUPS}:{kv}": Plan(frozenset(site.units[position] for position in group))
            for site in sites
            for kv, group in kv_groups_of(site).items()
        }
    if units == "heads":
        return {str(unit): Plan(frozenset([unit])) for site in sites for unit in site.units}
    out = {}
    for site in sites:
        size = block or max(1, -(-len(site) // 12))
        for start in range(0, len(site), size):
            ids = tuple(site.ids)[start : start + size]
            out[f"{site.name}:{ranges(ids)}"] = Plan.removing({site.name: ids})
    return out


def plans_but_one(anatomy: Anatomy) -> dict[str, Plan]:
    """For each head, the plan that masks all the other heads of its attention; named by the head that stays."""
    return {
        str(unit): Plan(frozenset(site.units) - {unit})
        for site in anatomy.heads
        if len(site) > 1
        for unit in site.units
    }


def ablate(
    model: nn.Module,
    task: Task,
    units: str | Mapping[str, Plan] = "heads",
    *,
    block: int | None = None,
    batch_size: int | None = None,
    replay: bool = True,
    memory: int = MEMORY,
    run: Run | None = None,
    name: str = "ablation",
    fill: Fill | str | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> Ablation:
    """The model without each unit in turn: heads, blocks of neurons, MLPs, attentions or layers, or plans of your own.

    Every other thing about the model stays; values are kept for every example, so each difference can be tested.
    `block` is the number of neurons masked together (a twelfth of the MLP if not given).

    Args:
        model: The model; it is as it was afterwards.
        task: The data and metric to measure with.
        units: "heads", "neurons", "mlps", "attentions", "layers", "kv-groups", or plans of your own by name.
        block: Neurons that are masked together; by default a twelfth of the MLP.
        batch_size: Examples per forward pass; by default that of the task.
        replay: Whether layers below a masked unit are computed once only; the values are the same.
        memory: Bytes of activations that may be cached.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        name: Name of the results in the run folder.
        fill: What stands in for masked units: zero, or an `hc.interventions.Fill` (means, other examples, counterparts, noise).
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The full model's result, and the per-example values without each unit; `comparisons()` tests them, with
        Holm's correction.

    Examples:
        >>> model = hc.load("my-model")
        >>> task = hc.task("classification", "dev.tsv", tokenizer="my-model", limit=64)
        >>> ablation = hc.ablate(model, task, units="layers")
        >>> ablation.names[:2]
        ('layers:0', 'layers:1')
        >>> len(ablation.comparisons())
        6
    """
    rows = tuple(specs)
    anatomy = find(model, rows)
    plans = plans_of(anatomy, units, block=block) if isinstance(units, str) else dict(units)
    if not plans:
        raise BadPlan(f"{anatomy.model_name} has no {units} to close; `headcount inspect` lists what is there.")
    all_plans = [Plan(), *(anatomy.plan(plan) for plan in plans.values())]
    measured, stands_in = filled(model, task, all_plans, fill, run=run, name=f"{name}-fill", specs=rows)
    values = measure(
        model,
        measured,
        all_plans,
        batch_size=batch_size,
        replay=replay,
        memory=memory,
        run=run,
        name=name,
        fill=stands_in,
        specs=rows,
    )
    base = result_of(measured, values[0], signature(model, task))
    sites = {part.name: (part.kind, getattr(part, "attention", None)) for part in anatomy.parts}
    document = None if stands_in is None else stands_in.document
    return Ablation(tuple(plans), tuple(all_plans[1:]), base, values[1:], sites, document)


@dataclass(frozen=True, eq=False)
class OneHead:
    """An attention with only its best head left: chosen on one set of examples, measured on another."""

    site: str
    head: Unit
    chosen_on: float  # the metric on the examples it was chosen by
    comparison: Comparison  # on other examples


def ablate_all_but_one(
    model: nn.Module,
    task: Task,
    select: Task,
    *,
    test: str = "randomization",
    resamples: int | None = None,
    seed: int = 12345,
    run: Run | None = None,
    **options: Any,
) -> tuple[Result, list[OneHead], Ablation]:
    """Each attention in turn reduced to the one head that does best on `select`; its cost is measured on `task`.

    Gives the full model's result on `task`, a row per attention, and the whole ablation on `select`. Choosing and
    reporting on the same examples (Michel et al. 2019, Tables 2 and 3) flatters the choice; this is their Tables 5, 6.
    """
    anatomy = find(model, options.get("specs", ()))
    plans = plans_but_one(anatomy)
    if not plans:
        raise BadPlan(f"{anatomy.model_name} has no attention with more than one head; there is nothing to choose.")
    chosen = ablate(model, select, plans, run=run, name="select", **options)
    best: dict[str, int] = {}
    for number, name in enumerate(chosen.names):
        site = name.rpartition(":")[0]
        if site not in best or chosen.damage[number] < chosen.damage[best[site]]:
            best[site] = number
    winners = {chosen.names[number]: chosen.plans[number] for number in best.values()}
    report = ablate(model, task, winners, run=run, name="report", **options)
    rows = [
        OneHead(site, _unit(chosen.names[number]), float(chosen.values[number]), comparison)
        for (site, number), comparison in zip(
            best.items(), report.comparisons(test, resamples=resamples, seed=seed), strict=True
        )
    ]
    return report.base, rows, chosen


def _unit(name: str) -> Unit:
    site, _, index = name.rpartition(":")
    return Unit(site, int(index))


@dataclass(frozen=True, eq=False)
class Transfer:
    """The same ablation on two data sets, and how well the damage per unit agrees (Michel et al. 2019, Figure 2).

    `ceiling` is about the highest correlation that the noise of the damages leaves room for, from 0 to 1: units that
    matter alike on both sets would show that much on so many examples, and no more. It comes from these examples too,
    and on others it would lie between `ceiling_low` and `ceiling_high` (95 %, bootstrap over the examples of both).
    """

    one: Ablation
    other: Ablation
    pearson: Correlation
    spearman: Correlation
    ceiling: float
    ceiling_low: float
    ceiling_high: float


def transfer(
    model: nn.Module,
    tasks: Sequence[Task],
    units: str = "heads",
    *,
    run: Run | None = None,
    seed: int = 12345,
    **options: Any,
) -> Transfer:
    """Ablate on two data sets and correlate the damage over units: do the same heads matter there?"""
    first, second = tasks
    first_ablation = ablate(model, first, units, run=run, name="one", **options)
    second_ablation = ablate(model, second, units, run=run, name="other", **options)
    if run is not None:
        run.conclude()
    (first_share, first_drawn), (second_share, second_drawn) = (
        side.reliabilities(seed=seed) for side in (first_ablation, second_ablation)
    )
    ceiling = float(np.sqrt(first_share * second_share))
    few = min(len(first_drawn), len(second_drawn))
    low, high = np.percentile(np.sqrt(first_drawn[:few] * second_drawn[:few]), [2.5, 97.5])
    correlations = (
        pearson(first_ablation.damage, second_ablation.damage),
        spearman(first_ablation.damage, second_ablation.damage, seed=seed),
    )
    return Transfer(
        first_ablation, second_ablation, *correlations, ceiling, min(ceiling, float(low)), max(ceiling, float(high))
    )
