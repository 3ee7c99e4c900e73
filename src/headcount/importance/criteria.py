"""`score`: which units matter. One function per criterion; all give `Scores` in which bigger means that it matters more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from ..documents.scores import NORMS, Scores
from ..errors import BadPlan, NotFound, Refused
from ..evaluation.ablation import ablate
from ..evaluation.evaluator import signature
from ..model.anatomy import Anatomy, Site, Stack
from ..model.architectures import ModuleSpec
from ..model.cutting.kv_groups import kv_groups_of
from ..model.discovery import find, unwrap
from ..model.distributed.refusals import not_tensor_parallel
from ..model.loading.lazy_tensors import is_lazy
from ..model.stand_ins import Fill, data_fill
from ..plans import Plan, Unit
from . import activations, layer_orders
from .attention import confidence_and_entropy
from .attribution.pairs import contrasted
from .attribution.units import METHODS, STEPS, Method, attributions
from .block_influence import block_influence
from .checkpointing import checkpointing as gradient_checkpointing
from .gradients import Contributions, contributions
from .kv_group_scores import group_members, group_unit, summed, together
from .lrp.relevance import RULES, relevances
from .magnitudes import squares_of_layer, squares_of_units

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

SCORED_ON = 1024  # examples of the training data that a criterion looks at
GRANULARITIES = ("example", "token", "batch", "signed")
KV_GROUPS = "kv-groups"  # a key-value head with all its query heads
KINDS = {"heads": "head", "neurons": "neuron", "layers": "layer"}
LOOKED_AT = {
    "taylor": "loss",
    "fisher": "loss",
    "gradient-activation": "logit",
    "lrp-epsilon": "logit",
    "lrp-alpha-beta": "logit",
    "confidence": "attention",
    "entropy": "attention",
    "wanda": "activations",
    "flap": "activations",
    "activation": "activations",
    "block-influence": "activations",
    "contribution": "layers",
}  # instead of the metric
LAYER_BY_LAYER = (
    "wanda",
    "flap",
    "activation",
    "block-influence",
)  # a layer can be forgotten when the next one is read
BACKWARD = ("taylor", "fisher", "gradient-activation")  # those whose layers may be run twice
BY_PAPER = "by paper"  # the normalisation that the criterion was published with
PER_LAYER = ("taylor", "gradient-activation", "lrp-epsilon", "lrp-alpha-beta")


@dataclass(frozen=True)
class _Request:
    """One call of `score`."""

    model: nn.Module
    anatomy: Anatomy
    parts: tuple[Site | Stack, ...]
    task: Task | None
    granularity: str
    seed: int
    batch_size: int | None
    run: Run | None
    name: str
    specs: tuple[ModuleSpec, ...]
    grouped: bool = False  # heads that share keys and values are one unit
    steps: int = STEPS  # of integrated gradients
    fill: Fill | str | None = None  # what stands in for units

    @property
    def data(self) -> Task:
        if self.task is None:
            raise BadPlan("This criterion looks at data; give a task.")
        return self.task

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(unit for part in self.parts for unit in (self.members(part) or part.units))

    def members(self, part: Site | Stack) -> dict[Unit, tuple[Unit, ...]]:
        """The kv groups of an attention with their heads; nothing where heads are units by themselves."""
        return group_members(part) if self.grouped and isinstance(part, Site) and part.kind == "head" else {}


def _must_hold(model: nn.Module, by: str) -> None:
    """Refuse criteria that need more of the model than there is in this process."""
    if by in (*METHODS, *RULES):
        not_tensor_parallel(model, f"{by} is not computed")
    if by not in (*LAYER_BY_LAYER, *NEED_NO_DATA) and is_lazy(unwrap(model)):
        why = (
            "a gradient comes back through all of them"
            if by in BACKWARD
            else "it looks at more than one pass through them"
        )
        raise Refused(
            f"The weights of this model stay in their files, and {by} needs all layers at once ({why}); score it by "
            f"{', '.join(LAYER_BY_LAYER)}, or load it whole (without lazy, or without --stream)."
        )


def score(
    model: nn.Module,
    task: Task | None = None,
    by: str = "taylor",
    *,
    units: str | Iterable[str] = "heads",
    granularity: str = "example",
    normalize: str | None = BY_PAPER,
    seed: int = 0,
    batch_size: int | None = None,
    checkpointing: bool = False,
    steps: int | None = None,
    fill: Fill | str | None = None,
    run: Run | None = None,
    name: str = "score",
    specs: Iterable[ModuleSpec] = (),
) -> Scores:
    """A number for every unit: bigger = matters more. `units` are "heads", "neurons" and "layers", or several of them.

    "kv-groups" are key-value heads with all their query heads: one gate, closed as one. What has no derivative is summed over
    the heads (confidence and entropy: their mean). Where heads share no keys and values, every group is one head.

    - `taylor`: the mean over examples of |dL/dgate| (Michel et al. 2019). `granularity="token"` takes the absolute value
      at every position, as their code does; "batch" sums blocks of 32 examples first; "signed" is the first-order
      estimate of the loss when the unit is masked, sign and all.
    - `fisher`: half the mean of (dL/dgate)^2 (Theis et al. 2018, Kwon et al. 2022).
    - `gradient-activation`: as taylor, of the top-1 logit (the mean over the steps of an example) in the place of the
      loss.
    - `lrp-epsilon`, `lrp-alpha-beta`: the mean over examples of the relevance of the unit for the top-1 logit, by
      layer-wise relevance propagation (Bach et al. 2015, Voita et al. 2019); it has a sign. For heads and neurons.
    - `attribution-patching`: of a contrast task, the estimated drop of its metric when the unit's activations are those of the
      corrupted prompts: (clean - corrupted) times the gradient in the clean run (Nanda 2023, Syed et al. 2023). Has a sign.
    - `eap-ig`: the same with the mean gradient of `steps` runs between corrupted and clean embeddings (Hanna et al. 2024).
    - `ablation`: how much worse the metric gets without the unit; one pass per unit, replayed. `fill` stands in for it.
    - `confidence`, `entropy`: the mean over all tokens of the largest attention weight (Voita et al. 2019), and of minus
      the entropy.
    - `wanda`: the absolute weights that a unit writes with times the norm of what they multiply, summed (Sun et al. 2024);
      `flap`: the variance of what it writes from times the squared norm of those weights, standardised over its site (An et
      al. 2024); `activation`: the mean l2 norm of a head's output, or absolute value of a neuron (Muralidharan et al. 2024).
      For heads and neurons; one forward pass for all three.
    - `block-influence`: 1 - the mean cosine of what goes into a layer and what comes out (Men et al. 2024). Heads and neurons
      share, in equal parts, what their whole attention or MLP does to the residual stream (He et al. 2024). One forward pass.
    - `magnitude`: the l2 norm of all weights that belong to the unit. Needs no task.
    - `random`: uniform numbers from `seed`. Needs no task.
    - `top`, `bottom`, `alternate`, `alternate-top`, `symmetric`: which layers go first by their place alone (Sajjad et
      al. 2020). For layers, and without a task.
    - `contribution`: 1 - the mean cosine of what goes into a layer and what comes out (ibid.). For layers.

    `normalize` divides by the l2 norm of each "layer" (each attention, each MLP), each "type", or "global"; by default
    as the criterion was published: per layer for `taylor`, relevance (Voita et al. normalise over the heads of a layer)
    and `gradient-activation`, not at all for the others. With a run, what is computed is
    kept in it under `name`.

    Args:
        model: The model; it is as it was afterwards.
        task: The data to score on; some criteria need none.
        by: The criterion.
        units: "heads", "neurons", "layers", "kv-groups", or several of them.
        granularity: taylor: where absolute values are taken.
        normalize: L2 normalization per "layer", "type", "global", or None; by default as published.
        seed: Random seed.
        batch_size: Examples per forward pass; by default that of the task.
        checkpointing: Gradient checkpointing: run layers twice instead of keeping their activations, for the same values.
        steps: eap-ig: runs between corrupted and clean embeddings; by default 5.
        fill: ablation: what stands in for units: zero, or an `hc.interventions.Fill` (as in `hc.ablate`).
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        name: Name of the results in the run folder.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        A score per unit, with standard errors where the criterion has per-example values.

    Examples:
        >>> model = hc.load("my-model")
        >>> task = hc.task("classification", "dev.tsv", tokenizer="my-model", limit=64)
        >>> scores = hc.score(model, task, by="taylor")
        >>> len(scores.units)
        48
    """
    if by not in CRITERIA:
        raise BadPlan(f"I can score by {', '.join(CRITERIA)}; I got {by!r:.40}.")
    if granularity not in GRANULARITIES:
        raise BadPlan(f"Granularities are {', '.join(GRANULARITIES)}; I got {granularity!r:.40}.")
    if granularity != "example" and by != "taylor":
        raise BadPlan(f"Only taylor has granularities; {by} has one way of being computed: leave granularity out.")
    if normalize not in (BY_PAPER, *NORMS):
        raise BadPlan(f'normalize is "layer", "type", "global" or None; I got {normalize!r:.40}.')
    if checkpointing and by not in BACKWARD:
        raise BadPlan(
            f"Only criteria with a backward pass ({', '.join(BACKWARD)}) have checkpointing; {by} has none: leave it out."
        )
    if steps is not None and by != "eap-ig":
        raise BadPlan(f"Only eap-ig takes steps between corrupted and clean prompts; {by} takes none: leave steps out.")
    if fill is not None and by != "ablation":
        raise BadPlan(f"Only ablation puts something in the place of units; {by} masks none: leave fill (--fill) out.")
    if by in METHODS:
        contrasted(task, by)
    _must_hold(model, by)
    steps = STEPS if steps is None else steps
    rows = tuple(specs)
    anatomy = find(model, rows)
    words = [units] if isinstance(units, str) else list(units)
    parts, grouped = parts_of(anatomy, words), KV_GROUPS in ",".join(words)
    if grouped and granularity == "token":
        raise BadPlan(
            "The heads of a kv group are not seen token by token as one: use granularity example, batch or signed."
        )
    request = _Request(
        model, anatomy, parts, task, granularity, seed, batch_size, run, name, rows, grouped, steps, fill
    )
    with gradient_checkpointing(checkpointing):
        raw, samples = CRITERIA[by](request)
    how = ("layer" if by in PER_LAYER else None) if normalize == BY_PAPER else normalize
    members = {unit: heads for part in parts for unit, heads in request.members(part).items()}
    named = [(group_unit(part, 0).site if request.members(part) else part.name, part) for part in parts]
    kinds = {site: part.kind if site == part.name else "kv-group" for site, part in named}
    types = {site: getattr(part, "attention", None) for site, part in named}
    settings = {
        "by": by,
        "granularity": granularity if by == "taylor" else None,
        "norm": how,
        "seed": seed if by == "random" else None,
        "steps": steps if by == "eap-ig" else None,
        "fill": getattr(data_fill(fill), "signature", None),
    }
    line = "|".join(f"{key}:{value}" for key, value in settings.items() if value is not None)
    looked_at = LOOKED_AT.get(by)
    about = type(unwrap(model)).__name__
    if task is not None:
        about = signature(model, task, **({"metric": looked_at} if looked_at else {}))
    return Scores(request.units, raw, by, kinds, types, how, f"{line}|{about}", samples, members)


def parts_of(anatomy: Anatomy, units: list[str]) -> tuple[Site | Stack, ...]:
    """The attentions, MLPs or stacks of layers whose units these words name."""
    wanted = [word.strip() for text in units for word in text.split(",")]
    unknown = [word for word in wanted if word not in (*KINDS, KV_GROUPS)]
    if unknown or not wanted:
        raise BadPlan(
            f"Units to score are {', '.join([*KINDS, KV_GROUPS])}, or several of them; I got {', '.join(unknown) or 'none'}."
        )
    if {"heads", KV_GROUPS} <= set(wanted):
        raise BadPlan(
            "A kv group contains its heads, so that one of them is a unit and not both: leave heads or kv-groups out."
        )
    wanted = ["heads" if word == KV_GROUPS else word for word in wanted]
    everything = anatomy.parts
    parts = tuple(p for word in dict.fromkeys(wanted) for p in everything if p.kind == KINDS[word] and len(p))
    for word in wanted:
        if not any(part.kind == KINDS[word] for part in parts):
            raise NotFound(f"{anatomy.model_name} has no {word}; `headcount inspect` lists what is there.")
    return parts


Scored = tuple[np.ndarray, np.ndarray | None]  # a number per unit, and the samples whose mean it is


def _gradients(request: _Request) -> Contributions:
    root = unwrap(request.model)
    how = {"batch_size": request.batch_size, "run": request.run, "name": request.name}
    return _as_units(request, contributions(root, request.anatomy, request.parts, request.data, **how))


def _as_units(request: _Request, gathered: Contributions) -> Contributions:
    """The contributions with those of the heads of a kv group added up, as those of one gate."""
    return together(gathered, request.parts) if request.grouped else gathered


def _taylor(request: _Request) -> Scored:
    return _joined(request, taylor(_gradients(request), request.granularity))


def taylor(gathered: Contributions, granularity: str = "example") -> dict[str, np.ndarray]:
    """Samples (rows, units) of each part whose mean is the score at this granularity; all come from one pass."""
    out = {}
    for name in gathered.signed:
        examples = gathered.examples[name].sum()
        if granularity == "token":
            values, over = gathered.token[name], gathered.positions[name].sum(0)
            if np.isnan(values).any():
                raise Refused(f"{name} never shows its positions one by one: use granularity example, batch or signed.")
        elif granularity == "batch":
            values, over = np.abs(gathered.blocks(name)), examples
        else:
            values, over = gathered.absolute[name] if granularity == "example" else -gathered.signed[name], examples
        # a row may stand for several examples: scaled so that the mean over rows is the mean over examples
        out[name] = values.astype(np.float64) * (len(values) / np.maximum(over, 1))
    return out


def _fisher(request: _Request) -> Scored:
    gathered = _gradients(request)
    halves = {
        name: square.astype(np.float64) * (0.5 * len(square) / gathered.examples[name].sum())
        for name, square in gathered.squared.items()
    }
    return _joined(request, halves)


def _relevance(by: str) -> Callable[[_Request], Scored]:
    def propagated(request: _Request) -> Scored:
        how = {"batch_size": request.batch_size, "run": request.run, "name": request.name}
        relevance = relevances(unwrap(request.model), request.anatomy, request.parts, request.data, by, **how)
        relevance = _as_units(request, relevance)
        # minus: masking a unit takes its relevance away, and "signed" of taylor is what masking does to the loss
        signed = {name: -value for name, value in taylor(relevance, "signed").items()}
        return _joined(request, signed if RULES[by] else taylor(relevance))

    return propagated


def _attribution(by: str) -> Callable[[_Request], Scored]:
    def estimated(request: _Request) -> Scored:
        how = {"batch_size": request.batch_size, "run": request.run, "name": request.name}
        method = Method(by, request.steps)
        root = unwrap(request.model)
        values = attributions(root, request.anatomy, request.parts, request.data, method, **how)
        return _joined(request, summed(values, request.parts) if request.grouped else values)

    return estimated


def _joined(request: _Request, samples: dict[str, np.ndarray]) -> Scored:
    """One array of all units; samples are kept where all parts have as many of them."""
    ordered = [samples[part.name] for part in request.parts]
    raw = np.concatenate([sample.mean(0) for sample in ordered])
    alike = len({len(sample) for sample in ordered}) == 1
    return raw, np.concatenate(ordered, axis=1) if alike else None


def _ablation(request: _Request) -> Scored:
    members = {unit: heads for part in request.parts for unit, heads in request.members(part).items()}
    plans = {str(unit): Plan(frozenset(members.get(unit, (unit,)))) for unit in request.units}
    how = {"batch_size": request.batch_size, "run": request.run, "name": request.name, "specs": request.specs}
    ablation = ablate(request.model, request.data, plans, fill=request.fill, **how)
    base_values = ablation.base.metric.per_example(ablation.base.rows)
    if base_values is None:
        return ablation.damage, None
    sign = 1 if ablation.base.metric.higher_is_better else -1
    masked_values = []
    for rows in ablation.rows:
        values = ablation.base.metric.per_example(rows)
        assert values is not None  # the base has values of its examples, and it is the same metric
        masked_values.append(values)
    without = np.stack(masked_values, axis=1)  # (examples, units)
    # scaled so that their mean is the damage also where examples have weights (a loss per token)
    statistics = ablation.base.metric.statistics
    assert statistics is not None
    weight = statistics(ablation.base.rows)[:, 1].mean()
    return ablation.damage, sign * (base_values[:, None] - without) / weight


def _attention(kind: str, sign: int) -> Callable[[_Request], Scored]:
    def looked_at(request: _Request) -> Scored:
        if any(part.kind != "head" for part in request.parts):
            raise BadPlan(f"Only heads have {kind}; leave out --units, or score others by taylor.")
        root = unwrap(request.model)
        how = {"batch_size": request.batch_size, "run": request.run, "name": request.name}
        statistics = confidence_and_entropy(root, request.anatomy, request.data, **how)
        values = {name: sign * numbers for name, numbers in statistics[kind].items()}
        return _joined(request, summed(values, request.parts, mean=True) if request.grouped else values)

    return looked_at


def _activations(by: str, samples: Callable[..., dict[str, np.ndarray]]) -> Callable[[_Request], Scored]:
    def gathered(request: _Request) -> Scored:
        sites = [part for part in request.parts if isinstance(part, Site)]
        if len(sites) < len(request.parts):
            raise BadPlan(f"{by} is of heads and neurons; score layers by block-influence, or by taylor.")
        how = {"batch_size": request.batch_size, "run": request.run, "name": request.name}
        sums = activations.activation_sums(unwrap(request.model), request.anatomy, sites, request.data, **how)
        values = samples(sums, sites)
        return _joined(request, summed(values, sites) if request.grouped else values)

    return gathered


def _block_influence(request: _Request) -> Scored:
    how = {"batch_size": request.batch_size, "run": request.run, "name": request.name}
    blocks = block_influence(unwrap(request.model), request.anatomy, request.parts, request.data, **how)
    for part in request.parts:
        if isinstance(part, Site):  # its units share what the whole of it does
            blocks[part.name] = np.repeat(blocks[part.name] / len(part), len(part), axis=1)
    return _joined(request, summed(blocks, request.parts) if request.grouped else blocks)


def _magnitude(request: _Request) -> Scored:
    values = []
    for part in request.parts:
        if isinstance(part, Stack):
            values.append(np.array([squares_of_layer(block) for block in part.blocks]))
        else:
            values.append(squares_of_units(part, kv_groups_of(part) if request.members(part) else None))
    return np.sqrt(np.concatenate(values)), None


def _random(request: _Request) -> Scored:
    return np.random.default_rng(request.seed).random(len(request.units)), None


def _by_place(name: str) -> Callable[[_Request], Scored]:
    def ranked(request: _Request) -> Scored:
        return np.concatenate([layer_orders.ranks(name, len(stack)) for stack in _stacks(request, name)]), None

    return ranked


def _contribution(request: _Request) -> Scored:
    how = {"batch_size": request.batch_size, "run": request.run, "name": request.name}
    stacks = _stacks(request, "contribution")
    return _joined(
        request, layer_orders.contributions(unwrap(request.model), request.anatomy, stacks, request.data, **how)
    )


def _stacks(request: _Request, by: str) -> list[Stack]:
    """The stacks that were asked about, or a sentence if other units were."""
    if any(not isinstance(part, Stack) for part in request.parts):
        raise BadPlan(f"{by} is an order of layers; say units layers (--units layers), or score others by taylor.")
    return [part for part in request.parts if isinstance(part, Stack)]


CRITERIA: dict[str, Callable[[_Request], Scored]] = {
    "taylor": _taylor,
    "fisher": _fisher,
    **{name: _relevance(name) for name in RULES},
    **{name: _attribution(name) for name in METHODS},
    "ablation": _ablation,
    "confidence": _attention("confidence", 1),
    "entropy": _attention("entropy", -1),
    "wanda": _activations("wanda", activations.wanda),
    "flap": _activations("flap", activations.flap),
    "activation": _activations("activation", activations.magnitudes),
    "block-influence": _block_influence,
    "magnitude": _magnitude,
    "random": _random,
    **{name: _by_place(name) for name in layer_orders.ORDERS},
    "contribution": _contribution,
}
NEED_NO_DATA = ("magnitude", "random", *layer_orders.ORDERS, layer_orders.EVERY_OTHER)
