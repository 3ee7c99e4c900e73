"""`choose`: what to remove, by a count, by a budget, by a promise about the metric, or by how much faster it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ..data import splits
from ..documents.prune import BUDGETS, BrakeDocument, Candidate
from ..documents.reading import read, write
from ..documents.scores import Scores, how_many
from ..documents.scores import plan as plan_by
from ..errors import BadPlan, NotShown, TooMuchLost
from ..hashing import fingerprint
from ..importance import layer_orders
from ..model.anatomy import Anatomy
from ..model.architectures import ModuleSpec
from ..model.cutting import rules
from ..model.discovery import find, unwrap
from ..plans import Plan, Unit
from ..runs import InMemory, document
from ..stats.brake import DEFAULT_BRAKE, Brake, brake_setting
from ..stats.guarantee import unit_of
from . import budget as budgets
from .budget import Budget
from .candidates import Rule, Search, best_within, documents_of, ranked
from .choices import Choice
from .curves import counts
from .legal_plans import STAY_EVEN, RuntimeRule, legal, must_be_legal, removing, rule_of, uneven_left
from .plan_tests import PlanTester, PreparedPlan
from .tuning.compensation import ways_of
from .weighing import SEVERAL, by_activations

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

RESOURCES = {"flops": "flops", "params": "params", "kv-cache": "kv-cache", "memory": "memory", "speedup": "time"}
BUDGET_SETTINGS = ("least", "multiple", "length", "batch_size")


class _Order(NamedTuple):
    scores: Scores
    units: tuple[Unit, ...]
    anatomy: Anatomy
    rule: RuntimeRule
    least: int

    def plan(self, count: int) -> Plan:
        """The first units that go; under a rule those that lose least, so many at least, or as many as can go."""
        by = self.scores.by
        plan = Plan(
            frozenset(self.units[:count]), f"the {count} of {len(self.scores)} units with the lowest scores by {by}"
        )
        if not self.rule.binds:
            return plan
        if "layer" in {self.scores.kinds[unit.site] for unit in self.scores}:
            plan = legal(plan, self.anatomy, self.rule, self.scores.__getitem__)
        else:
            plan = removing(count, self.scores, self.anatomy, self.rule, self.least)
        return Plan(plan.units, f"{len(plan)} of {len(self.scores)} units by {by}, as {self.rule} can hold it")

    def plans(self, step: float | int | str) -> Iterator[Plan]:
        """Plans along the order, the mildest first and everything last."""
        steps = [n for n in counts(step, len(self.scores)) if 0 < n <= len(self.units)]
        steps += [len(self.units)] * (not steps or steps[-1] < len(self.units))
        size = 0
        for plan in map(self.plan, steps):
            if len(plan) > size:
                size = len(plan)
                yield plan


def choose(
    model: nn.Module,
    *,
    remove: float | int | str | None = None,
    max_drop: float | None = None,
    flops: float | str | None = None,
    params: float | str | None = None,
    kv_cache: float | str | None = None,
    memory: float | str | None = None,
    context: int | None = None,
    batch: int = 1,
    speedup: float | None = None,
    plan: Plan | str | None = None,
    score: Task | None = None,
    select: Task | None = None,
    by: str | None = None,
    units: str = "heads",
    tune: bool = False,
    compensate: str | None = None,
    brake: str | float | None = DEFAULT_BRAKE,
    multiple: int | None = None,
    step: float | int | str = "5%",
    least: int = 0,
    only: str | Iterable[str] = (),
    alpha: float = 0.05,
    cap: float | None = None,
    tries: int | Callable[[], int] = 1,
    dtype: torch.dtype | None = None,
    batch_size: int = 16,
    length: int | None = None,
    resamples: int | None = None,
    seed: int = 0,
    runtime: str | Iterable[str] = (),
    tensor_parallel: int = 1,
    groups: str | None = None,
    run: Run | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> Choice:
    """What to remove: so many units, what a budget cannot keep, or so many that at most `max_drop` points are lost.

    `remove` units go in the order of their scores on `score`. `flops` and `params` are the shares that may be left
    ("50%"). `kv_cache` is that of the cache's bytes per token of a decoder, and `memory` the bytes of all weights and of the
    cache of `batch` texts of `context` tokens ("6GiB"), in the number format of the checkpoint to come; with both, heads that
    share keys and values go or stay together. `speedup` is how many times as fast the model must run here, at this batch
    size and length. Units of all kinds are weighed against each other by what is lost without them for what they cost, in
    several ways where no criterion is asked for; the plans are measured on some of the examples of `score`, and the best is taken
    (`Choice.candidates`). The cut model is never over the budget. Neurons stay in multiples of `multiple`. In models that write
    text, groups of query heads stay of one size, with which they write faster, unless `groups` is "uneven"
    (`Choice.groups` says so); at least as many heads go then as `remove` says. A plan that
    loses more than `brake` on examples of `score` is refused (`TooMuchLost`): a share of the way from the whole model to a
    constant answer, a number of points, or None.

    With `max_drop`, plans from the mildest on (every `step`,
    of the units or, for several kinds, of the FLOPs) are tested on the examples of `select` (those of `score` that are
    among them are left out of the scores: `Choice.left_out`), and the last one shown to lose less is chosen: a wrong
    promise comes out with probability `alpha` at most (see `guarantee`); where not even the mildest can be shown,
    `NotShown` says how many examples would be needed. A size and `max_drop` together must both hold: plans up to that size
    are tested, and where the last of them cannot be shown, `NotShown` says what can. Of so many promises tried on the same
    examples (`tries`, a number,
    or a function that is asked before the first of them is looked at), each is tested at alpha / tries. Of losses and
    other means no example counts for more than `cap`, else 20 times the drop. A `plan` of your own is taken as it is;
    with `max_drop` it is tested too.

    With `tune`, units of a site change places where together they matter less than by themselves, and those that stay
    are scaled so that each site writes what it wrote before, as nearly as they can (Kwon et al. 2022): no training,
    and `Choice.scale` is folded into the weights by the cut. Both look at the examples of `score`, and are left out
    where the model is worse with them on 512 of those (`Choice.note` says so). With `compensate="mean"`, what a removed unit
    writes on average over the examples of `score` goes into the bias of the matrix that it wrote with (`Choice.fill`). With
    "lstsq" all columns that stay are fitted anew by least squares (`Choice.columns`), on three quarters of the examples of
    `score`, and left out where the model is worse with them on the rest; with "mean,lstsq" they get a bias as well
    (`Choice.bias`). What is tested is rounded to `dtype`, the
    number format of the checkpoint to come, which is else the model's own. `by` is `fisher`
    for several kinds of units or with `tune`, else `taylor`. The model is as it was afterwards.
    """
    rows = tuple(specs)
    sizes = {"remove": remove, "flops": flops, "params": params, "kv_cache": kv_cache, "memory": memory}
    sizes["speedup"] = speedup
    request, drop = size_of(plan, max_drop=max_drop, **sizes)
    ways = ways_of(compensate, tune)
    brake_setting(brake)
    score, select, left_out = _kept_apart(score, select)
    used = frozenset[bytes]().union(*(splits.marks(task) for task in (score, select) if task is not None))
    notes: Any = run or InMemory()  # gradients are looked at twice where units are rearranged
    shop = PlanTester(model, score, select, ways.tune, drop, alpha, resamples, seed, notes, rows, dtype=dtype, cap=cap)
    shop = replace(shop, tries=tries if callable(tries) else lambda: tries)
    shop = replace(shop, mean=ways.mean, lstsq=ways.lstsq)
    shop.check()
    if score is not None and length is None:
        length = usual_length(score)
    settings: dict[str, Any] = {"least": least, "multiple": multiple, "length": length or 128, "batch_size": batch_size}
    settings |= {"seed": seed, "specs": rows}
    search = Search(model, score, by, units, only, step, brake, notes, settings, ways.mean)
    own = None if plan is None else "uneven"  # a plan is taken as it is
    rule, cache = rule_of(runtime, tensor_parallel, groups), request[0] in ("kv-cache", "memory")
    settings["rule"] = search.rule_with(rule, groups or own, cache)
    if request[0] == "memory":
        settings["serving"] = search.serving(context, batch, dtype)
    chosen = _chosen(search, shop, request, plan)
    if chosen.fill and score is not None:
        chosen = replace(chosen, compensated=score.size)
    if plan is not None and groups is None and not chosen.groups:
        chosen = replace(chosen, groups=uneven_left(chosen.plan, model, find(model, rows)))
    return replace(chosen, used=used, left_out=left_out, dtype=dtype)


def _chosen(search: Search, shop: PlanTester, request: tuple[str, Any], plan: Plan | str | None) -> Choice:
    """The choice, as it was asked for."""
    kind, amount = request
    resource = RESOURCES.get(kind, "")
    if plan is not None:
        return _given(search, shop, request, plan)
    allowed, left_alone = search.cuttable
    if search.by == layer_orders.EVERY_OTHER:
        if shop.max_drop is not None and kind == "remove":
            raise BadPlan(f"{layer_orders.EVERY_OTHER} has no milder plans to test on the way; leave max_drop out.")
        choice = _evenly(find(search.model, search.specs), request, search.units, search.names, allowed, left_alone)
        return _braked(search, _as_tried(choice, shop.prepare(choice.plan)))
    if resource in ("flops", "params", "kv-cache", "memory"):
        search.must_reach(resource, amount)
    if resource:
        return _within_budget(search, shop, request, resource)
    if kind == "remove" and shop.max_drop is None and search.by is None and by_activations(search.score, search.kinds):
        return _best_of_several(search, shop, request)
    return _by_criterion(search, shop, request, search.by or _usual(search, shop))


def _usual(search: Search, shop: PlanTester) -> str:
    """The criterion where none is asked for."""
    return "fisher" if shop.tune or len(search.kinds) > 1 else "taylor"


def _best_of_several(search: Search, shop: PlanTester, request: tuple[str, Any]) -> Choice:
    """So many units of a language model by each of several criteria, and the best of these plans on scoring examples.

    Criteria that look at single units can name units that are the model only together: which does so here is measured.
    """
    judge = search.judge
    assert judge is not None
    plain = replace(search, brake=None)  # the best alone is braked
    bare = replace(shop, tune=False, mean=False, lstsq=False, prepared={})
    usual = _usual(search, shop)
    names = [usual, *(name for name in (*SEVERAL, *by_activations(search.score, search.kinds)) if name != usual)]
    choices = {name: _by_criterion(plain, bare, request, name) for name in names}
    rules = {choice.plan: Rule(name, 0.0, "counts") for name, choice in reversed(choices.items())}
    order = ranked(judge, rules)
    best = choices[order[0].rule.by]
    tried = documents_of(order, order[0].rule, lambda plan: 1 - len(plan) / best.of)
    return _braked(search, _as_tried(replace(best, candidates=tried), shop.prepare(best.plan)))


def _by_criterion(search: Search, shop: PlanTester, request: tuple[str, Any], by: str) -> Choice:
    """Units in the order of one criterion: so many of them, or as many as a promise lets go."""
    kind, amount = request
    all_scores = search.scores(by, search.score)
    usable = search.usable(all_scores)
    anatomy, least = find(search.model, search.specs), search.settings["least"]
    order = _Order(usable, search.check_order(usable), anatomy, search.rule, least)
    common = {**_about(search, all_scores), "order": () if search.rule.binds else order.units}
    shop = replace(shop, scores=usable)
    if kind == "remove":
        wanted = plan_by(usable, search.asked(amount, usable), least=least)
        if not wanted:
            raise BadPlan(f"{amount} of {len(usable)} units is none of them; remove at least one.")
        asked = len(wanted)
        if search.rule.binds:
            wanted = order.plan(asked)
        if not wanted:
            uneven = ", or allow uneven groups (--groups uneven)" * search.rule.even_for_speed
            raise BadPlan(
                f"There is no plan of {amount} of {len(usable)} units that {search.rule} can hold; remove more{uneven}."
            )
        if shop.max_drop is None:
            common["groups"] += f" {len(wanted):,} units go instead of {asked:,}." * (
                bool(common["groups"]) and len(wanted) != asked
            )
            return _braked(search, _as_tried(Choice(request, wanted, **common), shop.prepare(wanted)))
        milder = [plan for plan in order.plans(search.step) if len(plan) < len(wanted)]
        return _both(
            shop, Choice(request, wanted, **common), milder, lambda plan: f"{len(plan)} of {len(usable)} units"
        )
    plans: Iterable[Plan] = order.plans(search.step)
    if len(search.kinds) > 1:
        common["order"] = ()  # of several kinds, plans are not nested
        plans = budgets.courses(budgets.purse(search.model, usable, "flops", **search.settings), _share_of(search.step))
    held, best, full_result = shop.test(plans, len(usable))
    assert best is not None
    return _as_tried(Choice(request, best.plan, **common, guarantee=held, selected=full_result), best)


def _about(search: Search, all_scores: Scores) -> dict[str, Any]:
    """What every choice says about the units and their scores."""
    about = {"scores": all_scores, "left_alone": search.cuttable[1], "of": len(all_scores)}
    return {**about, "units": ",".join(search.counted), "groups": STAY_EVEN * search.rule.even_for_speed}


def _given(search: Search, shop: PlanTester, request: tuple[str, Any], plan: Plan | str) -> Choice:
    """A plan that somebody made, tested where there is a largest drop, and braked where it can be measured."""
    anatomy = find(search.model, search.specs)
    parsed_plan = anatomy.plan(plan)
    rules.refuse(unwrap(search.model), anatomy, parsed_plan, {})
    must_be_legal(parsed_plan, anatomy, search.rule)
    if not parsed_plan:
        raise BadPlan("The plan removes nothing; name at least one unit.")
    held, best, full_result = shop.test([parsed_plan])
    of = dict.fromkeys(anatomy[name].kind for name in parsed_plan.by_site())
    units = ",".join(f"{kind}s" for kind in of)
    choice = Choice(request, parsed_plan, _total(anatomy, of), units, guarantee=held, selected=full_result)
    choice = _as_tried(choice, best or shop.prepare(parsed_plan))
    return choice if held is not None else _braked(search, choice)


def _within_budget(search: Search, shop: PlanTester, request: tuple[str, Any], resource: str) -> Choice:
    """The best candidate within a budget, braked; or where there is a largest drop, tested after milder ones by its rule."""
    _, target = request
    candidates, scores = search.candidates(resource)
    # one run may hold several choices: what was asked is in the name
    question = [
        "candidates",
        request,
        search.by,
        search.kinds,
        search.names,
        *(search.settings[key] for key in BUDGET_SETTINGS),
        *[[*search.rule][: None if search.rule.whole_groups else -1]] * search.rule.binds,
        *search.settings.get("serving", ()),
    ]

    def bought() -> dict[str, Any]:
        winner = best_within(candidates, search.judge, target)
        document = {"plan": winner.plan.to_json(), "budget": winner.budget.to_json(), "rule": list(winner.rule)}
        return {**document, "candidates": write(winner.candidates)}

    bought_document = document(search.notes, f"budget-{fingerprint(question)[:8]}", bought)
    chosen, budget = Plan.from_json(bought_document["plan"]), Budget(**bought_document["budget"])
    rule = Rule(*bought_document["rule"])
    tried = tuple(read(Candidate, entry, "candidates") for entry in bought_document["candidates"])
    choice = Choice(request, chosen, **_about(search, scores[rule.by]), budget=budget, candidates=tried)
    problem = candidates.problem(rule)
    shop = replace(shop, scores=problem.scores)
    if shop.max_drop is None:
        return _braked(search, _as_tried(choice, shop.prepare(chosen)))
    spent = problem.costs.of(chosen)
    milder = []
    for plan in budgets.courses(problem, _share_of(search.step)):
        if problem.costs.of(plan) <= spent:
            break
        milder.append(plan)
    what = BUDGETS[resource]
    return _both(shop, choice, milder, lambda plan: f"{problem.costs.of(plan) / problem.costs.whole:.0%} of the {what}")


def _both(shop: PlanTester, choice: Choice, milder: list[Plan], in_words: Callable[[Plan], str]) -> Choice:
    """A size and a largest drop, both of which must hold: milder plans are tested on the way to that size."""
    held, best, full_result = shop.test([*milder, choice.plan], choice.of)
    assert held is not None
    assert best is not None
    if held.stopped is not None:
        failed, plans = held.stopped, [*milder, choice.plan]
        place = sum(step.shown for step in held.steps)
        kind, amount = choice.how
        asked = {"speedup": f"{amount} times as fast", "remove": f"without {amount}"}.get(
            kind, f"{amount} of the {kind}"
        )
        unit = unit_of(held.metric, held.drop)
        raise NotShown(
            f"Both cannot be had: {asked}, and less than {held.drop:g} {unit} lost. Down to {in_words(plans[place - 1])} "
            f"({len(best.plan)} units gone) it is shown to lose less; at {in_words(plans[place])} it measured "
            f"{failed.damage:+.2f} and could be {failed.bound:.2f} on {held.n} examples: ask for the largest drop alone, or "
            "allow a larger one."
        )
    return _as_tried(replace(choice, plan=best.plan, guarantee=held, selected=full_result), best)


def _braked(search: Search, choice: Choice) -> Choice:
    """The choice, unless it loses more on scoring examples than anybody can want: then `TooMuchLost`."""
    judge = search.judge
    brake = None if judge is None else judge.brake(search.brake)
    if judge is None or brake is None:
        return choice
    value = judge.result(choice.plan, changes=choice.changes).value
    fell = brake.fall(value)
    if brake.holds(value):
        raise TooMuchLost(_ruined(choice, brake, value))
    known = {"constant": brake.constant, "allowed": brake.allowed, "fell": fell, "n": brake.n}
    return replace(choice, brake=BrakeDocument(metric=brake.metric, whole=brake.whole, value=value, **known))


def _ruined(choice: Choice, brake: Brake, value: float) -> str:
    """Why a plan is not carried out."""
    unit = unit_of(brake.metric, brake.allowed)
    constant = "" if brake.constant is None else f" (a constant answer has {brake.constant:.3f})"
    return (
        f"Without {len(choice.plan)} of {choice.of} {choice.units.replace(',', ' and ')} the model would be ruined: "
        f"{brake.metric} falls from {brake.whole:.3f} to {value:.3f}{constant} on {brake.n} scoring examples, by more than "
        f"{brake.allowed:.3g} {unit}; ask for less, train it afterwards (recover), or move the brake (brake)."
    )


def _as_tried(choice: Choice, tried: PreparedPlan) -> Choice:
    """The choice of the plan as it will be cut; an order that it no longer follows is left out."""
    order = () if tried.exchanged else choice.order
    done: dict[str, Any] = {"tuned": tried.tuned, "exchanged": tried.exchanged, "note": tried.note, "fill": tried.fill}
    done["refit"] = tried.refit
    return replace(choice, plan=tried.plan, order=order, **done)


def _share_of(step: float | int | str) -> float:
    """A step between budgets, as a share of the FLOPs."""
    try:
        return budgets.share_of(step)
    except BadPlan:
        raise BadPlan(
            f"With several kinds of units, plans are a share of the FLOPs apart, such as 5%; I got step {step!r:.40}."
        ) from None


def _evenly(
    anatomy: Anatomy,
    request: tuple[str, Any],
    units: str,
    only: list[str],
    allowed: list[str],
    left_alone: tuple[tuple[str, str], ...],
) -> Choice:
    """Every other layer (Fan et al. 2020): the plan depends on how many go, so that there is no order to test along."""
    kind, remove = request
    if units.strip() != "layers" or kind != "remove":
        raise BadPlan(f"{layer_orders.EVERY_OTHER} is for layers and a number of them: say units layers and remove.")
    stacks = [
        s for s in anatomy.stacks if s.name in allowed and (not only or {s.name, s.name.split(".")[0]} & set(only))
    ]
    of = sum(len(stack) for stack in stacks)
    plan = layer_orders.spaced(anatomy, how_many(remove, of), only=[stack.name for stack in stacks])
    if not plan:
        raise BadPlan(f"{remove} of {of} layers is none of them; remove at least one.")
    return Choice(request, plan, of, "layers", left_alone=left_alone)


def _kept_apart(score: Task | None, select: Task | None) -> tuple[Task | None, Task | None, str]:
    """The examples of both without what they share and without copies to test on, and a sentence about what was left out."""
    notes = list[str]()
    if select is not None:  # a test would take copies for new examples
        once = splits.distinct(select)
        notes.append(splits.copies_left_out(select, once))
        select = once
    sets = {use: task for use, task in (("score", score), ("select", select)) if task is not None}
    tasks, left_out = splits.apart(sets)
    return tasks.get("score"), tasks.get("select"), "; ".join(note for note in [*notes, left_out] if note)


def _total(anatomy: Anatomy, kinds: Iterable[str]) -> int:
    return sum(len(part) for part in anatomy.parts if part.kind in kinds)


def size_of(plan: Any, *, max_drop: float | None = None, **sizes: Any) -> tuple[tuple[str, Any], float | None]:
    """Which way of saying how much was used and its value, and the largest drop, which may stand beside it."""
    if max_drop is not None and any(value is not None for value in sizes.values()):
        return exactly_one_of(plan, **sizes), max_drop
    return exactly_one_of(plan, max_drop=max_drop, **sizes), max_drop


def exactly_one_of(plan: Any, **wishes: Any) -> tuple[str, Any]:
    """Which way of saying how much was used, and its value."""
    requests = [(name.replace("_", "-"), value) for name, value in wishes.items() if value is not None]
    if plan is not None and all(kind == "max-drop" for kind, _ in requests):
        return requests[0] if requests else ("plan", str(getattr(plan, "why", "")))
    if plan is not None or len(requests) != 1:
        named = " and ".join([kind for kind, _ in requests] + ["plan"] * (plan is not None)) or "none"
        raise BadPlan(
            "Say how much in one way: how many to remove, the largest drop, the share of FLOPs, parameters (params) or "
            f"KV cache (kv_cache) that may be left, a speed-up, or a plan; I got {named}."
        )
    kind, value = requests[0]
    if kind == "speedup":
        budgets.speedup_of(value)
    if kind == "memory":
        budgets.memory_in(value)
    if kind in ("flops", "params", "kv-cache"):
        budgets.share_of(value)
    return kind, value


def usual_length(task: Task) -> int:
    """The median length of the examples: what speed is measured at where nothing else is said."""
    return sorted(task.lengths)[task.size // 2]
