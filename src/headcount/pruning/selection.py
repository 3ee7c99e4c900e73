"""`choose`: what to remove, by a count, by a budget, by a promise about the metric, or by how much faster it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import notebook
from ..data import splits
from ..documents.prune import Steps
from ..documents.scores import Scores, how_many
from ..documents.scores import plan as plan_by
from ..errors import BadPlan, Refused
from ..hashing import fingerprint
from ..importance import layer_orders
from ..importance.criteria import score as score_units
from ..model.anatomy import Anatomy
from ..model.architectures import ModuleSpec
from ..model.cutting import rules
from ..model.discovery import find, unwrap
from ..plans import Plan, Unit
from ..runs import InMemory, document
from ..stats.guarantee import Guarantee
from ..stats.results import Result
from . import budget as budgets
from .budget import Budget
from .curves import counts
from .mask_tuning import MaskTuning
from .plan_tests import PlanTester, PreparedPlan

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run


@dataclass(frozen=True, eq=False)
class Choice:
    """What to remove and why: the plan, the order it was taken from, and what could be shown about it."""

    how: tuple[
        str, Any
    ]  # ("max-drop", 1.0), ("remove", "40%"), ("flops", "50%"), ("speedup", 1.3), ("plan", its reason)
    plan: Plan
    of: int  # units of this kind in the model
    units: str  # their kind: "heads", or several with commas
    scores: Scores | None = None
    order: tuple[Unit, ...] = ()
    guarantee: Guarantee | None = None
    left_alone: tuple[tuple[str, str], ...] = ()  # sites that cannot be cut, and the reason
    used: frozenset[bytes] = frozenset()  # the examples that had a part in it, which nothing is to be reported on
    budget: Budget | None = None
    tuned: MaskTuning | None = None
    exchanged: int | None = None  # units that changed places when they were rearranged
    note: str = ""  # why what stays was not tuned after all
    selected: Result | None = None  # the whole model on the examples that the guarantee was shown on
    dtype: torch.dtype | None = None  # the number format that it was tested for, where what stays was tuned
    tried: str = ""  # which promise on these examples it is, where it is not the only one
    left_out: str = ""  # which examples had no part in it because they were given for two things, or twice

    @property
    def scale(self) -> Mapping[str, Tensor]:
        """Numbers for the units that stay, by site, to be folded into the weights; empty where nothing was tuned."""
        return {} if self.tuned is None else self.tuned.scale

    def __str__(self) -> str:
        kind, value = self.how
        asked = f"{kind} {value}" if value else kind
        lines = [f"{len(self.plan)} of {self.of} {self.units.replace(',', ' and ')} are to go ({asked}): {self.plan!r}"]
        lines += [str(fact) for fact in (self.guarantee, self.budget, self.tried, self.note, self.left_out) if fact]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return notebook.block(*map(notebook.line, str(self).splitlines()), self.plan._repr_html_())

    def told(self) -> Steps:
        """The budget, and what rearranging and tuning did, as prune.json has them."""
        return Steps(
            budget=self.budget,
            tuned=None if self.tuned is None else self.tuned.document(),
            rearranged=self.exchanged,
            not_tuned=self.note or None,
            tried=self.tried or None,
        )


class _Order(NamedTuple):
    scores: Scores
    units: tuple[Unit, ...]

    def plan(self, count: int) -> Plan:
        why = f"the {count} of {len(self.scores)} units with the lowest scores by {self.scores.by}"
        return Plan(frozenset(self.units[:count]), why)

    def plans(self, step: float | int | str) -> Iterator[Plan]:
        """Plans along the order, the mildest first and everything last."""
        steps = [n for n in counts(step, len(self.scores)) if 0 < n <= len(self.units)]
        steps += [len(self.units)] * (not steps or steps[-1] < len(self.units))
        return (self.plan(count) for count in steps)


def choose(
    model: nn.Module,
    *,
    remove: float | int | str | None = None,
    max_drop: float | None = None,
    flops: float | str | None = None,
    params: float | str | None = None,
    speedup: float | None = None,
    plan: Plan | str | None = None,
    score: Task | None = None,
    select: Task | None = None,
    by: str | None = None,
    units: str = "heads",
    tune: bool = False,
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
    run: Run | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> Choice:
    """What to remove: so many units, what a budget cannot keep, or so many that at most `max_drop` points are lost.

    `remove` units go in the order of their scores on `score`. `flops` and `params` are the shares that may be left
    ("50%"), and `speedup` is how many times as fast the model must run here, at this batch size and length: units of
    all kinds are weighed against each other by what is lost without them for what they cost, and the cut model is never
    over the budget. Neurons stay in multiples of `multiple`. With `max_drop`, plans from the mildest on (every `step`,
    of the units or, for several kinds, of the FLOPs) are tested on the examples of `select` (those of `score` that are
    among them are left out of the scores: `Choice.left_out`), and the last one shown to lose less is chosen: a wrong
    promise comes out with probability `alpha` at most (see `guarantee`); where not even the mildest can be shown,
    `NotShown` says how many examples would be needed. Of so many promises tried on the same examples (`tries`, a number,
    or a function that is asked before the first of them is looked at), each is tested at alpha / tries. Of losses and
    other means no example counts for more than `cap`, else 20 times the drop. A `plan` of your own is taken as it is;
    with `max_drop` it is tested too.

    With `tune`, units of a site change places where together they matter less than by themselves, and those that stay
    are scaled so that each site writes what it wrote before, as nearly as they can (Kwon et al. 2022): no training,
    and `Choice.scale` is folded into the weights by the cut. Both look at the examples of `score`, and are left out
    where the model is worse with them on 512 of those (`Choice.note` says so). What is tested is rounded to `dtype`, the
    number format of the checkpoint to come, which is else the model's own. `by` is `fisher`
    for several kinds of units or with `tune`, else `taylor`. The model is as it was afterwards.
    """
    rows = tuple(specs)
    request = exactly_one_of(plan, remove=remove, max_drop=max_drop, flops=flops, params=params, speedup=speedup)
    kinds = list(dict.fromkeys(word.strip() for word in units.split(",") if word.strip()))
    score, select, left_out = _kept_apart(score, select)
    used = frozenset[bytes]().union(*(splits.marks(task) for task in (score, select) if task is not None))
    notes: Any = run or InMemory()  # gradients are looked at twice where units are rearranged
    shop = PlanTester(model, score, select, tune, max_drop, alpha, resamples, seed, notes, rows, dtype=dtype, cap=cap)
    shop = replace(shop, tries=tries if callable(tries) else lambda: tries)
    shop.check()
    anatomy = find(model, rows)
    if plan is not None:
        parsed_plan = anatomy.plan(plan)
        rules.refuse(unwrap(model), anatomy, parsed_plan, {})
        if not parsed_plan:
            raise BadPlan("The plan removes nothing; name at least one unit.")
        held, best, full_result = shop.test([parsed_plan])
        of = dict.fromkeys(anatomy[name].kind for name in parsed_plan.by_site())
        choice = Choice(
            request, parsed_plan, _total(anatomy, of), ",".join(f"{k}s" for k in of), guarantee=held, used=used
        )
        choice = replace(choice, selected=full_result, dtype=dtype, left_out=left_out)
        return _as_tried(choice, best or shop.prepare(parsed_plan))
    allowed, left_alone = cuttable(model, units, rows)
    by = by or ("fisher" if tune or len(kinds) > 1 else "taylor")
    names = [only] if isinstance(only, str) else list(only)
    if by == layer_orders.EVERY_OTHER:
        choice = replace(_evenly(anatomy, request, units, names, allowed, left_alone), used=used, left_out=left_out)
        return _as_tried(choice, shop.prepare(choice.plan))
    length = length or (usual_length(score) if score is not None else 128)
    settings: dict[str, Any] = {"least": least, "multiple": multiple, "length": length, "batch_size": batch_size}
    settings |= {"seed": seed, "specs": rows}
    resource = {"flops": "flops", "params": "params", "speedup": "time"}.get(request[0], "")
    if resource in ("flops", "params"):  # what cannot be reached whatever the scores is said before they are computed
        any_order = score_units(model, None, "random", units=kinds, specs=rows)
        budgets.must_reach(
            budgets.purse(model, _usable(any_order, kinds, names, allowed), resource, **settings), request[1]
        )
    all_scores = score_units(model, score, by, units=kinds, seed=seed, run=notes, specs=rows)
    usable = _usable(all_scores, kinds, names, allowed)
    if not len(usable):
        raise Refused(f"No {units} of {' or '.join(names)} can be cut: {left_alone[0][1]}")
    order = _Order(usable, tuple(usable.order(least)))
    if not order.units:
        raise BadPlan(f"With at least {least} left per site none of the {len(usable)} units can go; keep fewer.")
    common: dict[str, Any] = {"scores": all_scores, "order": order.units, "left_alone": left_alone, "used": used}
    common |= {"left_out": left_out}
    common |= {"of": len(all_scores), "units": ",".join(kinds), "dtype": dtype}
    shop = replace(shop, scores=usable)
    if remove is not None:
        wanted = plan_by(usable, remove, least=least)
        if not wanted:
            raise BadPlan(f"{remove} of {len(usable)} units is none of them; remove at least one.")
        return _as_tried(Choice(request, wanted, **common), shop.prepare(wanted))
    if max_drop is None:
        # one run may hold several choices: what was asked is in the name
        name = f"budget-{fingerprint([request, by, kinds, names, least, multiple, length, batch_size])[:8]}"
        bought = document(notes, name, lambda: _bought(budgets.purse(model, usable, resource, **settings), request[1]))
        chosen, budget = Plan.from_json(bought["plan"]), Budget(**bought["budget"])
        return _as_tried(Choice(request, chosen, **{**common, "order": ()}, budget=budget), shop.prepare(chosen))
    plans: Iterable[Plan] = order.plans(step)
    if len(kinds) > 1:
        common["order"] = ()  # of several kinds, plans are not nested
        plans = budgets.courses(budgets.purse(model, usable, "flops", **settings), _share_of(step))
    held, best, full_result = shop.test(plans, len(usable))
    assert best is not None
    return _as_tried(Choice(request, best.plan, **common, guarantee=held, selected=full_result), best)


def _as_tried(choice: Choice, tried: PreparedPlan) -> Choice:
    """The choice of the plan as it will be cut; an order that it no longer follows is left out."""
    order = () if tried.exchanged else choice.order
    return replace(choice, plan=tried.plan, tuned=tried.tuned, exchanged=tried.exchanged, order=order, note=tried.note)


def _share_of(step: float | int | str) -> float:
    """A step between budgets, as a share of the FLOPs."""
    try:
        return budgets.share_of(step)
    except BadPlan:
        raise BadPlan(
            f"With several kinds of units, plans are a share of the FLOPs apart, such as 5%; I got step {step!r:.40}."
        ) from None


def _bought(purse: budgets.BudgetProblem, target: str | float) -> dict[str, Any]:
    plan, budget = budgets.within(purse, target)
    return {"plan": plan.to_json(), "budget": budget.to_json()}


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
    return sum(len(part) for part in (*anatomy.sites, *anatomy.stacks) if part.kind in kinds)


def exactly_one_of(plan: Any, **wishes: Any) -> tuple[str, Any]:
    """Which way of saying how much was used, and its value."""
    requests = [(name.replace("_", "-"), value) for name, value in wishes.items() if value is not None]
    if plan is not None and all(kind == "max-drop" for kind, _ in requests):
        return requests[0] if requests else ("plan", str(getattr(plan, "why", "")))
    if plan is not None or len(requests) != 1:
        named = " and ".join([kind for kind, _ in requests] + ["plan"] * (plan is not None)) or "none"
        raise BadPlan(
            "Say how much in one way: how many to remove, the largest drop, the share of FLOPs or parameters (params) that "
            f"may be left, a speed-up, or a plan; I got {named}."
        )
    kind, value = requests[0]
    if kind == "speedup":
        budgets.speedup_of(value)
    if kind in ("flops", "params"):
        budgets.share_of(value)
    return kind, value


def cuttable(
    model: nn.Module, units: str, rows: tuple[ModuleSpec, ...]
) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Names of the sites that can be cut, and of those that cannot with the reason; none at all is `Refused`."""
    anatomy, root = find(model, rows), unwrap(model)
    kinds = {word.strip().rstrip("s") for word in units.split(",")}
    good, bad = [], []
    for part in (*anatomy.sites, *anatomy.stacks):
        if part.kind in kinds and len(part):
            try:
                rules.refuse(root, anatomy, Plan(frozenset({part.units[0]})), {})
                good.append(part.name)
            except Refused as reason:
                bad.append((part.name, str(reason)))
    if not good and bad:
        raise Refused(f"No {units} of {type(root).__name__} can be cut: {bad[0][1]}")
    return good, tuple(bad)


def usual_length(task: Task) -> int:
    """The median length of the examples: what speed is measured at where nothing else is said."""
    return sorted(task.lengths)[task.size // 2]
