"""Several plans for every budget, measured on scoring examples: the best of them is taken, and none that ruins the model.

No criterion is best at every size. So plans are made by each, with and without a floor for every site, and for time by measured
seconds and by counts; they are cut and measured, on a few scoring examples all of them and on more the best. Selection examples
and those to report on have no part in this.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..documents.prune import Budget, Candidate
from ..documents.scores import Scores, how_many
from ..efficiency.costs import Costs, operations, shared_out
from ..efficiency.kv_cache import Serving
from ..errors import BadPlan, NotShown, Refused
from ..evaluation.evaluator import measure, result_of
from ..importance.criteria import KV_GROUPS
from ..importance.criteria import score as score_units
from ..model.architectures import ModuleSpec
from ..model.cutting import rules
from ..model.cutting.kv_groups import kv_groups_of
from ..model.cutting.surgery import cut
from ..model.discovery import find, unwrap
from ..model.loading.number_formats import stored_format
from ..plans import Plan, Unit
from ..progress import Bar
from ..stats.brake import Brake, brake_at
from ..stats.constant_answer import constant_value
from ..stats.results import Result
from .budget import BudgetProblem, must_reach, purse, reckoned, within
from .legal_plans import ANY, RuntimeRule, stay_even
from .plan_tests import format_of, mark
from .tuning.compensation import unit_means
from .weighing import Weighing, weighings

if TYPE_CHECKING:
    from ..data.tasks import Task

FIRST, LAST = 128, 512  # scoring examples that all candidates, and the best of them, are measured on
BEST = 3  # candidates of the first round that are measured on more
FLOORS = (0.0, 1 / 3, 2 / 3)  # units that every site keeps at least, as shares of the share that may be left
IGNORED = -100  # a target that counts for nothing


@dataclass(frozen=True, eq=False)
class Judge:
    """Measures plans on scoring examples, spread evenly over them. What is measured is kept in the run."""

    model: nn.Module
    task: Task
    notes: Any  # a Run, or pieces in memory
    specs: tuple[ModuleSpec, ...] = ()
    mean: bool = False  # whether plans are measured with the means of what is gone put back, as they will be cut

    @cached_property
    def _means(self) -> dict[str, Tensor]:
        anatomy = find(self.model, self.specs)
        everything = Plan(frozenset(site.units[0] for site in anatomy if len(site) and site.calls_writer))
        return unit_means(self.model, anatomy, everything, self.task, self.notes)

    def _changes(self, plan: Plan) -> dict[str, Mapping[str, Tensor]]:
        """What a plan is measured with where nothing is said."""
        fill = {name: self._means[name] for name in plan.by_site() if name in self._means} if self.mean else {}
        return {"fill": fill} if fill else {}

    def examples(self, count: int) -> Task:
        """So many of the examples, or all; by their loss where the metric means to write text."""
        size = self.task.size
        some = self.task if size <= count else self.task.subset([place * size // count for place in range(count)])
        return some.with_metric("loss") if some.generates else some

    def result(
        self,
        plan: Plan,
        count: int = LAST,
        changes: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> Result:
        """What the model is worth on so many examples once the plan is cut, with all that the cut changes beside that."""
        task = self.examples(count)
        changes = self._changes(plan) if changes is None else changes

        def compute() -> dict[str, Any]:
            smaller = self.model
            if plan:
                smaller = copy.deepcopy(self.model)
                cut(smaller, plan, specs=self.specs, **changes)
            return {"rows": measure(smaller, task, [Plan()], name="candidates", specs=self.specs)[0]}

        words = {"scale": "-tuned", "fill": "-mean", "columns": "-refit", "bias": "-bias"}
        tuned = "".join(word for name, word in words.items() if name in changes)
        rows = runs.piece(self.notes, f"candidate-{len(plan):05d}-{mark(plan)}-{task.size}{tuned}", compute)["rows"]
        return result_of(task, rows)

    @cached_property
    def whole(self) -> Result:
        """The whole model on as many examples as the best candidates."""
        return self.result(Plan())

    @cached_property
    def constant(self) -> float | None:
        """What the best constant answer is worth on these examples; None where that is not known."""
        result, task = self.whole, self.examples(LAST)
        targets = _target_counts(task).values() if "tokens" in result.metric.columns else ()
        return constant_value(result.metric, result.rows, targets, numbers=task.kind == "regression")

    def brake(self, setting: str | float | None) -> Brake | None:
        """How far the metric may fall at this setting."""
        if setting is None:
            return None
        return brake_at(setting, self.whole.metric, self.whole.value, self.constant, self.whole.n)


def _target_counts(task: Task) -> Counter[int]:
    """How often each token is a target."""
    counts = Counter[int]()
    for numbers in task.batches():
        batch = task.collate(numbers)
        if "labels" in batch:
            targets = batch["labels"]
        else:  # of a language model: every token but the first
            targets = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)[:, 1:]
        tokens, often = np.unique(targets[targets != IGNORED].cpu().numpy(), return_counts=True)
        counts.update(dict(zip(tokens.tolist(), often.tolist(), strict=True)))
    return counts


class Rule(NamedTuple):
    """How a plan is made for any budget: by which weighing, with which floor, and by which costs."""

    by: str
    floor: float
    costs: str


@dataclass(frozen=True, eq=False)
class Candidates:
    """Plans for any budget by several rules."""

    base: BudgetProblem
    weighings: Sequence[Weighing]

    @cached_property
    def prices(self) -> dict[str, Costs]:
        """The costs by which units are weighed: those of the budget, and for seconds counts and a mixture of both as well."""
        costs = self.base.costs
        if costs.what != "time":
            return {"counts": costs}
        counts = operations(self.base.model, self.base.length, specs=self.base.specs)
        if costs.clock == "counts":
            return {"counts": costs}
        return {"time": costs, "counts": shared_out(counts, costs), "mixture": shared_out(counts, costs, 0.5)}

    def rules(self, share: float) -> list[Rule]:
        """Every rule for a budget of which so much may be left; other costs than the budget's own with one floor."""
        floors = [round(floor * share, 4) for floor in FLOORS]
        first, *others = self.prices
        out = [
            Rule(weighing.name, floor, first)
            for weighing in self.weighings
            for floor in (floors if weighing.floors else floors[1:2])
        ]
        return out + [Rule(weighing.name, floors[1], costs) for weighing in self.weighings for costs in others]

    @cached_property
    def problems(self) -> dict[str, BudgetProblem]:
        """What plans by each weighing are reckoned with, the orders of all sites among it, which take a while to sort."""
        out = {}
        for weighing in self.weighings:
            problem = replace(self.base, scores=weighing.scores, weighed=weighing.orders, by=weighing.name)
            out[weighing.name] = replace(problem, weighed=problem.orders)
        return out

    def problem(self, rule: Rule) -> BudgetProblem:
        """What a plan by this rule is reckoned with."""
        return replace(self.problems[rule.by], floor=rule.floor, costs=self.prices[rule.costs])

    def plans(self, allowed: float) -> dict[Plan, Rule]:
        """Different plans that are reckoned to cost at most so much, and the first rule that makes each."""
        out, known = dict[Plan, Rule](), set[frozenset[Unit]]()
        for rule in self.rules(allowed / self.base.costs.whole):
            try:
                plan = reckoned(self.problem(rule), allowed, self.base.costs)
            except BadPlan:  # not with this floor
                continue
            if plan and plan.units not in known:
                known.add(plan.units)
                out[plan] = rule
        return out


class Ranked(NamedTuple):
    """A candidate, and what it was worth on scoring examples."""

    rule: Rule
    plan: Plan
    result: Result


def ranked(judge: Judge, plans: Mapping[Plan, Rule]) -> list[Ranked]:
    """The plans from the best on: all measured on a few examples, and the best of these on more.

    Equal metrics are told apart by the loss, where it is measured with them.
    """
    with Bar("candidate plans", len(plans)) as bar:
        first = list[Ranked]()
        for plan, rule in plans.items():
            result = judge.result(plan, FIRST if len(plans) > BEST else LAST)
            first.append(Ranked(rule, plan, result))
            bar.advance()
    first.sort(key=_badness)
    if len(plans) <= BEST:
        return first
    again = [member._replace(result=judge.result(member.plan)) for member in first[:BEST]]
    return sorted(again, key=_badness) + first[BEST:]


def _badness(candidate: Ranked) -> tuple[float, float]:
    metric, rows = candidate.result.metric, candidate.result.rows
    loss = float(rows[:, metric.columns.index("loss")].mean()) if "loss" in metric.columns else 0.0
    return (-candidate.result.value if metric.higher_is_better else candidate.result.value), loss


class Winner(NamedTuple):
    """The plan that keeps the budget and lost least on scoring examples, the rule that made it, and all that were measured."""

    plan: Plan
    budget: Budget
    rule: Rule
    candidates: tuple[Candidate, ...]


def best_within(candidates: Candidates, judge: Judge | None, target: str | float) -> Winner:
    """The best candidate whose real cost is within the budget, as it was measured on scoring examples.

    A plan that was reckoned to keep the budget and is measured to be over it gets smaller, and is worth what the smaller plan
    is worth: where that is less than the next best promises, the next best has its turn.
    """
    allowed = must_reach(candidates.base, target)
    plans = candidates.plans(allowed) if judge is not None else {}
    if judge is None or not plans:
        rule = candidates.rules(1.0)[0]
        return Winner(*within(candidates.problem(rule), target), rule, ())
    order = ranked(judge, plans)
    kept = dict[Rule, tuple[Ranked, Budget]]()
    refusal: NotShown | None = None
    for member in order[: BEST + 1]:
        if kept and min(_badness(other) for other, _ in kept.values()) <= _badness(member):
            break
        try:
            plan, budget = within(candidates.problem(member.rule), target)
        except NotShown as error:
            refusal = refusal or error
            continue
        result = member.result if plan.units == member.plan.units else judge.result(plan)
        kept[member.rule] = Ranked(member.rule, plan, result), budget
    if not kept:
        assert refusal is not None
        raise refusal
    winner, budget = min(kept.values(), key=lambda pair: _badness(pair[0]))
    final = [kept[member.rule][0] if member.rule in kept else member for member in order]
    final.sort(key=lambda member: (-len(member.result.rows), _badness(member)))
    costs = candidates.base.costs

    def share(plan: Plan) -> float:
        return costs.of(plan) / costs.whole

    return Winner(winner.plan, budget, winner.rule, documents_of(final, winner.rule, share))


def documents_of(order: Sequence[Ranked], winner: Rule, share: Callable[[Plan], float]) -> tuple[Candidate, ...]:
    """What is written down of the candidates: how each was made, the share that it leaves, and what it was worth."""
    return tuple(
        Candidate(
            by=rule.by,
            floor=rule.floor,
            costs=rule.costs,
            removed=len(plan),
            left=share(plan),
            value=result.value,
            n=result.n,
            chosen=rule == winner,
        )
        for rule, plan, result in order
    )


# -- where plans are looked for ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Search:
    """Where plans are looked for: the model, the examples to score on, the units, and the criterion."""

    model: nn.Module
    score: Task | None
    by: str | None
    units: str
    only: str | Iterable[str]
    step: float | int | str
    brake: str | float | None
    notes: Any  # a Run, or pieces in memory
    settings: dict[str, Any]  # of budgets: least, multiple, length, batch_size, seed, specs, and perhaps a rule
    mean: bool = False  # whether the means of what is gone will be put back

    @property
    def kinds(self) -> list[str]:
        """The kinds of units, each once."""
        return list(dict.fromkeys(word.strip() for word in self.units.split(",") if word.strip()))

    @property
    def names(self) -> list[str]:
        """What the choice is restricted to."""
        return [self.only] if isinstance(self.only, str) and self.only else list(self.only)

    @property
    def specs(self) -> tuple[ModuleSpec, ...]:
        """Names of the modules of an unknown architecture."""
        return tuple(self.settings["specs"])

    @property
    def rule(self) -> RuntimeRule:
        """What the runtimes that the plan is for can hold, and whether kv groups stay whole."""
        return self.settings.get("rule", ANY)

    def rule_with(self, rule: RuntimeRule, groups: str | None, cache: bool = False) -> RuntimeRule:
        """The rule of runtimes, and what besides has to stay as it is.

        kv groups go as wholes where they are the units, or a `cache` is to shrink; else groups stay even as `groups` says.
        """
        whole = cache or KV_GROUPS in self.kinds
        even = not whole and stay_even(groups, self.kinds, self.model, find(self.model, self.specs))
        return rule._replace(whole_groups=whole, even_groups=rule.even_groups or even)

    @property
    def counted(self) -> list[str]:
        """The kinds of units that a plan is made of: those of a kv group are heads."""
        return list(dict.fromkeys("heads" if word == KV_GROUPS else word for word in self.kinds))

    @cached_property
    def cuttable(self) -> tuple[list[str], tuple[tuple[str, str], ...]]:
        """Names of the sites that can be cut, and of those that cannot, with the reason."""
        return cuttable(self.model, ",".join(self.counted), self.specs)

    @cached_property
    def judge(self) -> Judge | None:
        """What measures plans on scoring examples; None where there are none."""
        return None if self.score is None else Judge(self.model, self.score, self.notes, self.specs, self.mean)

    def usable(self, scores: Scores) -> Scores:
        """The scores of what may go."""
        return _usable(scores, self.counted, self.names, self.cuttable[0])

    def scores(self, by: str, task: Task | None = None) -> Scores:
        """The scores of all units of these kinds; the heads of a kv group share its score."""
        options: dict[str, Any] = {"units": self.kinds, "seed": self.settings["seed"], "specs": self.specs}
        return score_units(self.model, task, by, run=self.notes, **options).by_heads()

    def candidates(self, resource: str) -> tuple[Candidates, dict[str, Scores]]:
        """Plans for budgets of a resource by every way of weighing, and the scores of all units by the name of the way."""
        by = self.by if self.by is not None or self.score is not None else "fisher"
        ways = weighings(
            self.model, self.score, by, self.kinds, seed=self.settings["seed"], notes=self.notes, specs=self.specs
        )
        scores = {way.name: way.scores for way in ways}
        ways = [replace(way, scores=self.usable(way.scores)) for way in ways]
        self.check_order(ways[0].scores)
        return Candidates(purse(self.model, ways[0].scores, resource, **self.settings), ways), scores

    def check_order(self, usable: Scores) -> tuple[Unit, ...]:
        """The order in which units go; refused where none of them may."""
        least, left_alone = self.settings["least"], self.cuttable[1]
        if not len(usable):
            raise Refused(f"No {self.units} of {' or '.join(self.names)} can be cut: {left_alone[0][1]}")
        order = tuple(usable.order(least))
        if not order:
            raise BadPlan(f"With at least {least} left per site none of the {len(usable)} units can go; keep fewer.")
        return order

    def serving(self, context: int | None, batch: int, dtype: torch.dtype | None) -> Serving:
        """What memory has to hold beside the weights, in the number format of the checkpoint to come."""
        for name, value in (("context", context), ("batch", batch)):
            if type(value) is not int or value < 1:
                raise BadPlan(
                    f"memory (--memory) is weights and the cache of batch texts of context tokens: {name} (--{name}) must be a "
                    f"whole number from 1 on; I got {value!r:.40}."
                )
        assert context is not None
        return Serving(context, batch, (dtype or stored_format(self.model) or format_of(self.model)).itemsize)

    def asked(self, amount: float | int | str, usable: Scores) -> float | int | str:
        """How many units were asked for; of kv groups alone as heads, because plans are made of these."""
        if self.kinds != [KV_GROUPS]:
            return amount
        sites = {unit.site for unit in usable}
        sizes = [
            len(group)
            for site in find(self.model, self.specs)
            if site.name in sites
            for group in kv_groups_of(site).values()
        ]
        return how_many(amount, len(sizes)) * min(sizes)

    def must_reach(self, resource: str, target: Any) -> None:
        """Say what cannot be reached whatever the scores before they are computed."""
        any_order = self.usable(self.scores("random"))
        must_reach(purse(self.model, any_order, resource, **self.settings), target)


def _usable(scores: Scores, kinds: list[str], only: list[str], allowed: list[str]) -> Scores:
    """The scores of what may go; refused where `only` leaves nothing of a kind of unit that was asked for."""
    some = scores.only(*only) if only else scores
    missing = [word for word in kinds if word[:-1] not in {some.kinds[unit.site] for unit in some}]
    if missing:
        raise BadPlan(
            f"Only {' and '.join(only)} leaves no {missing[0]} to choose from; leave them out of units, or leave only out."
        )
    some = some.at(allowed)
    return some if len(kinds) == 1 else some.normalized(None)  # norms per site hide what a site is worth


def cuttable(
    model: nn.Module, units: str, rows: tuple[ModuleSpec, ...]
) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Names of the sites that can be cut, and of those that cannot with the reason; none at all is `Refused`."""
    anatomy, root = find(model, rows), unwrap(model)
    kinds = {word.strip().rstrip("s") for word in units.split(",")}
    good, bad = [], []
    for part in anatomy.parts:
        if part.kind in kinds and len(part):
            try:
                rules.refuse(root, anatomy, Plan(frozenset({part.units[0]})), {})
                good.append(part.name)
            except Refused as reason:
                bad.append((part.name, str(reason)))
    if not good and bad:
        raise Refused(f"No {units} of {type(root).__name__} can be cut: {bad[0][1]}")
    return good, tuple(bad)
