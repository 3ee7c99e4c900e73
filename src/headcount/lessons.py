"""`learn`: a smaller model by training: gates that learn, or units chosen first and a model that recovers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from .building import reborn
from .choosing import cuttable
from .criteria import CRITERIA
from .criteria import score as score_units
from .dialects import Dialect
from .errors import BadPlan
from .evaluation import device_of, to_device
from .finding import find, unwrap
from .learners import WHOLE, learning
from .methods import METHODS
from .plans import Plan
from .recipes import Recipe
from .scores import Scores, how_many
from .scores import plan as plan_by
from .surgery import cut
from .training import Trained, train

if TYPE_CHECKING:
    from .runs import Run
    from .tasks import Task

SCORED_ON = 1024  # examples of the training data that a criterion looks at
PLAN = "plan"  # the method of a plan that was made elsewhere


@dataclass(frozen=True, eq=False)
class Learned:
    """A smaller model, what is gone from it, and how it came about.

    `model` is the one that was given, trained and cut; a new one where it was trained from scratch. `price` is what an
    open gate cost in the end, and `open` how many were open before their number was made exact, for "l0".
    """

    model: nn.Module
    plan: Plan
    of: int  # units that could have gone
    label: str  # what to call it beside others
    scores: Scores | None = None
    trained: Trained | None = None
    recovered: Trained | None = None
    price: float | None = None
    open: int | None = None
    left_alone: tuple[tuple[str, str], ...] = ()  # sites that cannot be cut, and the reason

    @property
    def kept(self) -> int:
        """How many units stay."""
        return self.of - len(self.plan)


def learn(
    model: nn.Module,
    task: Task,
    method: str = "subset",
    *,
    keep: int | float | str | None = None,
    recipe: Recipe | None = Recipe(),  # noqa: B008 (a frozen value)
    units: str = "heads",
    only: str | Iterable[str] = (),
    pipelined: bool = False,
    settle: float | None = None,
    plan: Plan | str | None = None,
    choose: str | None = None,
    scratch: bool = False,
    recover: Recipe | None = None,
    dev: Task | None = None,
    teacher: nn.Module | None = None,
    freeze: Iterable[str] = (),
    seed: int = 0,
    run: Run | None = None,
    save_every: int | None = None,
    dialects: Iterable[Dialect] = (),
    **settings: Any,
) -> Learned:
    """Train the model so that `keep` of its units are enough, and cut the others. The model is changed.

    `method` is one that learns gates while the model trains, or with `pipelined` while its weights stay ("l0", "subset",
    "movement", "layerdrop"; see `learning`, also for `units`, `only`, `settle` and `settings`). Or it is a criterion of
    `score` ("taylor", "random", ...) or "plan": then the units are chosen first and the model without them trains on,
    which is recovery, and the control that learned gates must beat (Budhraja et al. 2020). With `scratch` it trains from
    random weights instead: the same shape, nothing inherited (Voita et al. 2019). Without a `recipe` nothing is trained.
    `choose` is the criterion by which a model trained with layerdrop loses its units; else those that stay are evenly
    spaced. Without `keep` such a model stays whole, to be cut to any depth later.

    After all of that the smaller model may train once more, by the recipe `recover`. A `teacher`, a copy of the full
    model, adds distillation. Criteria look at 1024 of the training examples. With a run, it goes on where it was.
    """
    rows, names = tuple(dialects), [only] if isinstance(only, str) else list(only)
    gated = method in METHODS
    _sensible(method, keep, pipelined, plan, choose, scratch, recipe, settings)
    kinds = ",".join(WHOLE.get(word.strip(), word.strip()) for word in units.split(","))
    allowed, left_alone = cuttable(model, kinds, rows)
    common: dict[str, Any] = {"dev": dev, "teacher": teacher, "freeze": freeze, "run": run, "save_every": save_every}
    facts: dict[str, Any] = {"label": label(method, pipelined, scratch, recipe is not None, settings)}
    trained = None
    if gated:
        assert recipe is not None
        asked = {"keep": keep, "units": units, "only": names, "settle": settle, "pipelined": pipelined, "seed": seed}
        skip = [name for name, _ in left_alone]
        with learning(model, method, **asked, skip=skip, dialects=rows, **settings) as gates:
            trained = train(model, task, recipe, gates=gates, name="learn", **common)
            chosen, scores, of = gates.plan(), gates.scores(), len(gates.units)
            facts |= {"price": gates.price(), "open": gates.open()}
        if choose is not None:
            scores = _scored(model, task, choose, kinds, names, allowed, seed, run, rows)
            chosen = _fewest(scores, keep)
    elif plan is not None:
        anatomy = find(model, rows)
        chosen, scores = anatomy.plan(plan), None
        there = {anatomy[name].kind for name in chosen.by_site()}
        of = sum(len(part) for part in (*anatomy.sites, *anatomy.stacks) if part.kind in there)
    else:
        scores = _scored(model, task, method, kinds, names, allowed, seed, run, rows)
        chosen, of = _fewest(scores, keep), len(scores)
    if chosen:
        cut(model, chosen, check=to_device(task.batch(), device_of(unwrap(model))), dialects=rows)
    smaller = reborn(model, seed) if scratch else model
    if not gated and recipe is not None:
        trained = train(smaller, task, recipe, name="learn", **common)
    again = None if recover is None else train(smaller, task, recover, name="recover", **common)
    return Learned(smaller, chosen, of, scores=scores, trained=trained, recovered=again, left_alone=left_alone, **facts)


def label(method: str, pipelined: bool, scratch: bool, trains: bool, settings: dict[str, Any]) -> str:
    """What to call the result beside others: "subset, pipelined", "taylor, recovered"."""
    words = [method, *([str(settings["form"])] if settings.get("form") not in (None, "bounded") else [])]
    if method in METHODS:
        return ", ".join([*words, *["pipelined"] * pipelined])
    return ", ".join([*words, "from scratch" if scratch else "recovered" if trains else "not recovered"])


def _sensible(
    method: str,
    keep: Any,
    pipelined: bool,
    plan: Any,
    choose: str | None,
    scratch: bool,
    recipe: Recipe | None,
    settings: dict[str, Any],
) -> None:
    """Refuse what says nothing, or too much, together."""
    gated = method in METHODS
    if not gated and method not in CRITERIA and method != PLAN:
        raise BadPlan(f"Methods are {', '.join([*METHODS, *CRITERIA, PLAN])}; I got {method!r:.40}.")
    if (plan is not None) != (method == PLAN):
        raise BadPlan("A plan goes with the method plan, and the method plan with a plan.")
    if not gated and method != PLAN and keep is None:
        raise BadPlan("Say how many units stay with keep.")
    if method == PLAN and keep is not None:
        raise BadPlan("The plan says what goes; leave keep out.")
    if gated and recipe is None:
        raise BadPlan(f"{method} learns while the model trains; it needs a recipe with at least one step.")
    if gated and scratch:
        raise BadPlan(f"{method} begins with the model's weights; train its plan from scratch with the method plan.")
    if not gated and (pipelined or [one for one in settings.values() if one is not None]):
        raise BadPlan(f"Nothing is learned about units by {method}: leave pipelined and the settings of gates out.")
    if choose is not None and (method != "layerdrop" or choose not in CRITERIA):
        raise BadPlan(f"choose is a criterion for layerdrop: {', '.join(CRITERIA)}; I got {choose!r:.40} for {method}.")
    if choose is not None and keep is None:
        raise BadPlan("choose says which units go, and keep how many stay: say both.")


def _scored(
    model: nn.Module,
    task: Task,
    by: str,
    units: str,
    only: list[str],
    allowed: list[str],
    seed: int,
    run: Run | None,
    rows: tuple[Dialect, ...],
) -> Scores:
    """Scores of the units that may go, on some of the training examples."""
    some = task if task.size <= SCORED_ON else task.split(SCORED_ON / task.size, seed=seed)[0]
    found = score_units(model, some, by, units=units.split(","), seed=seed, run=run, dialects=rows)
    usable = found.only(*allowed)
    return usable.only(*only) if only else usable


def _fewest(scores: Scores, keep: int | float | str | None) -> Plan:
    """The plan after which `keep` units are left."""
    assert keep is not None
    stay = how_many(keep, len(scores))
    if not stay:
        raise BadPlan(f"keep is {keep!r:.20}, which is none of {len(scores)} units; at least one must stay.")
    return plan_by(scores, len(scores) - stay)
