"""`learn`: a smaller model by training: gates that learn, or units chosen first and a model that recovers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ..data import splits
from ..documents.scores import Scores
from ..errors import BadPlan, Refused
from ..evaluation.evaluator import device_of, to_device
from ..importance.criteria import CRITERIA, KINDS, NEED_NO_DATA, SCORED_ON
from ..importance.criteria import score as score_units
from ..model.anatomy import Anatomy
from ..model.architectures import ModuleSpec
from ..model.cutting import rules
from ..model.cutting.surgery import cut
from ..model.discovery import find, unwrap
from ..model.distributed.refusals import in_one_place
from ..plans import Plan, Unit
from ..pruning.candidates import cuttable
from ..training.loop import Trained, train
from ..training.new_models import reinitialized
from ..training.recipe import Recipe
from .candidates import WHOLE, Chosen, budgets, exactly_one_of, one_of_each, parts_with_gates
from .gates import learning
from .methods import METHODS, PUBLISHED, method_of
from .relaxations import largest

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

PLAN = "plan"  # the method of a plan that was made elsewhere


@dataclass(frozen=True, eq=False)
class Learned:
    """A smaller model, what is gone from it, and how it came about.

    `model` is the one that was given, trained and cut; a new one where it was trained from scratch. `price` is what an
    open gate cost in the end, and `open` how many were open before their number was made exact, for "l0".
    """

    model: nn.Module
    plan: Plan
    units: str  # "heads", or what else could have gone
    of: int  # units that could have gone; of mlps and attentions, a whole one is a unit
    kept: int  # how many of them stay
    label: str  # what to call it beside others
    scores: Scores | None = None
    trained: Trained | None = None
    recovered: Trained | None = None
    price: float | None = None
    open: int | None = None
    left_alone: tuple[tuple[str, str], ...] = ()  # sites that cannot be cut, and the reason


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
    specs: Iterable[ModuleSpec] = (),
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

    Args:
        model: The model, which is trained and cut in place.
        task: The training data.
        method: "l0", "subset", "movement" or "layerdrop"; a criterion of `score`; or "plan".
        keep: Units that stay: a count or a share such as "25%".
        recipe: How to train; None trains nothing.
        units: "heads", "neurons", "layers", "mlps" or "attentions".
        only: Restricts the units to a type ("encoder", "cross").
        pipelined: Train the gates only.
        settle: Fraction of the steps at the end with gates fixed at 0 or 1.
        plan: The units to remove, for the method "plan".
        choose: Criterion that selects what stays after layerdrop.
        scratch: Train from random weights, as a control.
        recover: How to train once more after the cut.
        dev: Data to evaluate on after every epoch.
        teacher: A copy of the full model, for distillation.
        freeze: Names of modules that are not trained.
        seed: Random seed.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        save_every: Steps between saves to resume from.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).
        settings: Settings of the method; see `hc.learned_gates.learning`.

    Returns:
        The plan that was learned, and how training went.

    Examples:
        >>> model = hc.load("my-model", dtype="float32")
        >>> task = hc.task("classification", "train.tsv", tokenizer="my-model", limit=32)
        >>> learned = hc.learn(model, task, "subset", keep=12, recipe=hc.training.Recipe(steps=2, batch_size=8))
        >>> len(learned.plan)
        36
    """
    in_one_place(model, "gates cannot learn on it here")
    rows = tuple(specs)
    request = LearnRequest(method, keep, units, only, pipelined, settle, plan, choose, scratch)
    anatomy, chosen, left_alone = prepared(model, request, recipe, recover, rows, settings)
    gated, kinds = method in METHODS, _kinds(units)
    if plan is not None:
        units = units_of(anatomy, anatomy.plan(plan))
    common: dict[str, Any] = {"dev": dev, "teacher": teacher, "freeze": freeze, "run": run, "save_every": save_every}
    look: dict[str, Any] = {"task": task, "seed": seed, "run": run, "rows": rows}
    facts: dict[str, Any] = {"label": label(request, settings, recipe or recover, recover, teacher is not None)}
    trained = scores = None
    if gated:
        assert recipe is not None
        how = {"keep": keep, "units": units, "only": only, "settle": settle, "pipelined": pipelined, "seed": seed}
        skip = [name for name, _ in left_alone]
        with learning(model, method, **how, skip=skip, specs=rows, **settings) as gates:
            trained = train(model, task, recipe, gates=gates, name="learn", **common)
            cut_plan, scores = gates.plan(), gates.scores()
            facts |= {"price": gates.price(), "open": gates.open()}
        if choose is not None:
            scores = _scored(model, choose, kinds, chosen, **look)
            cut_plan = _fewest(scores, chosen, keep)
    elif plan is not None:
        cut_plan = anatomy.plan(plan)
        rules.refuse(unwrap(model), anatomy, cut_plan, {})
        outside = [name for name in cut_plan.by_site() if name not in {part.name for part, _ in chosen}]
        if outside:
            raise BadPlan(
                f"The plan removes {outside[0]}, which is not among the {units} asked about: say units and only."
            )
    else:
        budgets(chosen, keep)
        scores = _scored(model, method, kinds, chosen, **look)
        cut_plan = _fewest(scores, chosen, keep)
    of, kept_count = _counted(chosen, cut_plan)
    if cut_plan:
        cut(model, cut_plan, check=to_device(task.batch(), device_of(unwrap(model))), specs=rows)
    smaller = reinitialized(model, seed) if scratch else model
    if not gated and recipe is not None:
        trained = train(smaller, task, recipe, name="learn", **common)
    again = None if recover is None else train(smaller, task, recover, name="recover", **common)
    return Learned(
        smaller,
        cut_plan,
        units,
        of,
        kept_count,
        scores=scores,
        trained=trained,
        recovered=again,
        left_alone=left_alone,
        **facts,
    )


class LearnRequest(NamedTuple):
    """What `learn` was asked; see there."""

    method: str
    keep: int | float | str | None
    units: str
    only: str | Iterable[str]
    pipelined: bool
    settle: float | None
    plan: Plan | str | None
    choose: str | None
    scratch: bool


def prepared(
    model: nn.Module,
    request: LearnRequest,
    recipe: Recipe | None,
    recover: Recipe | None,
    rows: tuple[ModuleSpec, ...],
    settings: Mapping[str, Any],
) -> tuple[Anatomy, Chosen, tuple[tuple[str, str], ...]]:
    """The parts whose units may go, and those that cannot be cut; all that can be refused is refused here, before any work."""
    _check_request(request, recipe, recover, settings)
    names = [request.only] if isinstance(request.only, str) else list(request.only)
    anatomy = find(model, rows)
    units = request.units if request.plan is None else units_of(anatomy, anatomy.plan(request.plan))
    allowed, left_alone = cuttable(model, _kinds(units), rows)
    every = parts_with_gates(anatomy, [units], [name for name in names if name])
    chosen = [candidate for candidate in every if candidate[0].name in allowed]
    if not chosen:
        raise Refused(f"No {units} of {' or '.join(names) or 'the model'} can be cut: {left_alone[0][1]}")
    if request.plan is None:
        budgets(chosen, request.keep)
        return anatomy, chosen, left_alone
    cut_plan = anatomy.plan(request.plan)
    rules.refuse(unwrap(model), anatomy, cut_plan, {})
    outside = [name for name in cut_plan.by_site() if name not in {part.name for part, _ in every}]
    if outside:
        raise BadPlan(f"The plan removes units of {outside[0]}, which is not {' or '.join(names)}: leave only out.")
    return anatomy, chosen, left_alone


def units_of(anatomy: Anatomy, plan: Plan) -> str:
    """The kinds of units that a plan removes, as words."""
    if not plan:
        raise BadPlan("The plan removes nothing; name at least one unit.")
    kinds = {anatomy[name].kind for name in plan.by_site()}
    return ",".join(word for word, kind in KINDS.items() if kind in kinds)


def _kinds(units: str) -> str:
    """The kinds of units by which others are scored and cut: whole MLPs are neurons."""
    return ",".join(WHOLE.get(word.strip(), word.strip()) for word in units.split(","))


def label(
    request: LearnRequest, settings: Mapping[str, Any], trains: Recipe | None, recover: Recipe | None, distilled: bool
) -> str:
    """What to call the result beside others: "subset, pipelined", "taylor, recovered"."""
    options = {name: value for name, value in settings.items() if value is not None}
    published = PUBLISHED.get(request.method)
    words = [request.method]
    if published and published.items() <= options.items():
        words.append("published")
    elif options.get("form") not in (None, "bounded"):
        words.append(f"form {options['form']}" if options["form"] == "published" else str(options["form"]))
    if request.method in METHODS:
        words += ["pipelined"] * request.pipelined + [f"chosen by {request.choose}"] * (request.choose is not None)
        words += ["recovered"] * (recover is not None)
    else:
        words.append("not recovered" if trains is None else "from scratch" if request.scratch else "recovered")
    return ", ".join([*words, *["distilled"] * distilled])


def _check_request(
    request: LearnRequest, recipe: Recipe | None, recover: Recipe | None, settings: Mapping[str, Any]
) -> None:
    """Refuse what says nothing, or too much, together."""
    method, gated = request.method, request.method in METHODS
    options = {name: value for name, value in settings.items() if value is not None}
    if not gated and method not in CRITERIA and method != PLAN:
        raise BadPlan(f"Methods are {', '.join([*METHODS, *CRITERIA, PLAN])}; I got {method!r:.40}.")
    if (request.plan is not None) != (method == PLAN):
        raise BadPlan("A plan (--plan) goes with the method plan, and the method plan with a plan.")
    if method == PLAN and request.keep is not None:
        raise BadPlan("The plan says what goes; leave keep out.")
    if not gated and method != PLAN and request.keep is None:
        raise BadPlan("Say how many units stay: keep (--keep), such as 12 or 25%.")
    if not gated and (request.pipelined or request.settle is not None or options):
        raise BadPlan(
            f"Nothing is learned about units by {method}: leave pipelined, settle and the settings of gates out."
        )
    if request.choose is not None and (method != "layerdrop" or request.choose not in CRITERIA):
        raise BadPlan(
            f"choose is a criterion for layerdrop: {', '.join(CRITERIA)}; I got {request.choose!r:.40} for {method}."
        )
    if request.choose is not None and request.keep is None:
        raise BadPlan("choose says which units go, and keep how many stay: say both.")
    if request.scratch and (gated or (recipe is None and recover is None)):
        why = f"{method} begins with the model's weights" if gated else f"by {method} nothing would be trained"
        raise BadPlan(f"Scratch is for a criterion or a plan (--method plan) that is trained from scratch, and {why}.")
    if gated:
        _sensible_gates(request, recipe, options)


def _sensible_gates(request: LearnRequest, recipe: Recipe | None, options: Mapping[str, Any]) -> None:
    if recipe is None:
        raise BadPlan(
            f"{request.method} learns while the model trains; give it a recipe (--epochs above 0, or --steps)."
        )
    if request.method == "layerdrop" and request.pipelined:
        raise BadPlan("With layerdrop the weights are all that learns; leave pipelined out.")
    exactly_one_of(request.keep, method_of(request.method, **options))


def _scored(
    model: nn.Module,
    by: str,
    units: str,
    chosen: Chosen,
    *,
    task: Task,
    seed: int,
    run: Run | None,
    rows: tuple[ModuleSpec, ...],
) -> Scores:
    """Scores of the units that may go, on some of the training examples."""
    scores = score_units(
        model, splits.drawn(task, SCORED_ON, seed), by, units=units.split(","), seed=seed, run=run, specs=rows
    )
    return scores.at({part.name for part, _ in chosen})


def scored_on(request: LearnRequest, task: Task, seed: int) -> str | None:
    """What tells the training examples that a criterion looks at from others; None where it looks at all of them or at none."""
    by = request.choose if request.method in METHODS else request.method
    if by is None or by == PLAN or by in NEED_NO_DATA or task.size <= SCORED_ON:
        return None
    return splits.drawn(task, SCORED_ON, seed).fingerprint


def _fewest(scores: Scores, chosen: Chosen, keep: int | float | str | None) -> Plan:
    """The plan after which so many stay, of each kind of units as many as gates would keep."""
    sizes = [1 if goes_whole else len(part) for part, goes_whole in chosen]
    values = (
        scores.values if not any(goes_whole for _, goes_whole in chosen) else scores.raw
    )  # norms per site hide what a site is
    worth = {unit: float(value) for unit, value in zip(scores.units, values, strict=True)}
    part_values = [
        [sum(worth[u] for u in part.units)] if goes_whole else [worth[u] for u in part.units]
        for part, goes_whole in chosen
    ]
    weights = torch.tensor([value for values in part_values for value in values], dtype=torch.float64)
    mask = torch.cat([largest(weights[first:last], stay or 0) for first, last, stay in budgets(chosen, keep)])
    mask = one_of_each(mask, weights, sizes, [part.kind == "layer" for part, _ in chosen])
    removed_units = set[Unit]()
    for (part, goes_whole), stays in zip(chosen, mask.split(sizes), strict=True):
        units = [part.units] if goes_whole else [(unit,) for unit in part.units]
        removed_units |= {unit for some, stay in zip(units, stays.tolist(), strict=True) if not stay for unit in some}
    return Plan(frozenset(removed_units), f"{len(removed_units)} of {len(scores)} units, the least {scores.by} first")


def _counted(chosen: Chosen, plan: Plan) -> tuple[int, int]:
    """How many units there are, and how many stay; a part that goes as a whole counts once."""
    of = sum(1 if goes_whole else len(part) for part, goes_whole in chosen)
    lost = sum(
        all(unit in plan for unit in part.units) if goes_whole else sum(unit in plan for unit in part.units)
        for part, goes_whole in chosen
    )
    return of, of - lost
