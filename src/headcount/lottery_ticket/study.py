"""`lottery`: which sub-networks a fine-tuned model can live on, and whether any other would do (Prasanna et al. 2020).

For every seed the model is fine-tuned, heads and MLPs go while enough of its score is left, and what remains, the good
sub-network, is set beside a bad one, made of what went first, and a random one, all of exactly the same size.
"""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from .. import runs
from ..data import splits
from ..documents.lottery import (
    Draw,
    FullModel,
    Network,
    SearchStep,
    TaskSettings,
    UnitCounts,
    WeightSearch,
)
from ..documents.lottery_study import WHATS, Lottery
from ..documents.reading import read, write
from ..errors import Refused
from ..evaluation.evaluator import device_of, measure, result_of, to_device
from ..hashing import versions
from ..importance.criteria import SCORED_ON
from ..model import checkpoints
from ..model.architectures import ModuleSpec
from ..model.cutting.effects import parameters_removed
from ..model.cutting.surgery import cut, removed
from ..model.discovery import find, unwrap
from ..model.distributed.refusals import in_one_place
from ..model.gates import masked
from ..plans import Plan, Unit
from ..progress import Bar
from ..pruning.candidates import cuttable
from ..stats.metrics import Metric
from ..stats.results import Result, compare
from ..training.loop import frozen_by, train
from ..training.recipe import Recipe
from . import magnitude as magnitudes
from .search import Field, count, importance, networks, search

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

CLASSES = ("accuracy", "f1", "matthews")  # metrics of which there is a majority class


class LotteryTask(NamedTuple):
    """A task to draw for: examples to train on, to select sub-networks on, and to report on.

    What they share is left out of the less important use (see `data.splits`), and `left_out` is a sentence about that.
    """

    name: str
    train: Task
    select: Task
    report: Task
    left_out: str = ""


def lottery(
    build: Callable[[int], nn.Module],
    lot: LotteryTask,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    recipe: Recipe = Recipe(),  # noqa: B008 (a frozen value)
    threshold: float = 0.9,
    step: float = 0.1,
    magnitude: bool = False,
    retrain: bool = True,
    freeze: Iterable[str] = (),
    run: Run | None = None,
    save_every: int | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> Lottery:
    """The lottery study of one task: a draw for every seed (Prasanna, Rogers and Rumshisky 2020).

    `build(seed)` gives a fresh pretrained model with a head for the task, drawn by the seed; it is called several times
    per seed, and has to give the same each time. A draw: the model is fine-tuned by the `recipe`; of its heads `step` of all,
    and one whole MLP, those of the least importance, are masked at a time while the score on `lot.select` is at least
    `threshold` of the full model's; then heads alone, in steps half as large; then MLPs alone. The sub-networks are measured
    on `lot.report`: as found, and, with `retrain`, really cut out of the pretrained model and fine-tuned by the same
    recipe. With `magnitude` the same is done with single weights instead of units. With a run, it goes on where it was.
    """
    chosen, rows = [int(seed) for seed in seeds], tuple(specs)
    _check_settings(lot, chosen, threshold, step)
    lot = _apart(lot)
    first = unwrap(build(chosen[0]))
    in_one_place(first, "it cannot be trained here")
    _must_fit(first, retrain, magnitude, rows)
    model, kind, sites = _name(first), type(first).__name__, Field.of(first, rows).sites
    frozen = [freeze] if isinstance(freeze, str) else list(freeze)
    frozen_by(first, frozen)
    del first
    many = len(chosen) * (3 + 3 * retrain + magnitude * (1 + 3 * retrain))
    with Bar(f"lottery, {lot.name}", many) as bar:
        study = _Study(build, lot, recipe, threshold, step, magnitude, retrain, frozen, run, save_every, rows, bar)
        jobs = [(study.piece(seed, "draw"), partial(_kept_draw, study, seed)) for seed in chosen]
        found = [runs.json_in(arrays) for arrays in runs.independent(run, jobs)]
    draws = tuple(read(Draw, one["draw"]) for one in found)
    settings = {name: value for name, value in recipe.facts().items() if name not in ("seed", "distill", "temperature")}
    about = TaskSettings(
        name=lot.name,
        metric=lot.report.metric.name,
        majority=found[0]["majority"],
        sets=_sets(lot),
        recipe={**settings, "betas": list(recipe.betas)},
    )
    return Lottery(model, kind, float(threshold), float(step), (about,), sites, draws, versions())


# -- before any work -----------------------------------------------------------------------------------------------------


def _check_settings(lot: LotteryTask, seeds: Sequence[int], threshold: float, step: float) -> None:
    if not seeds or len(set(seeds)) != len(seeds):
        raise Refused(f"A study needs different seeds, at least one; I got {list(seeds)!r:.60}.")
    for name, share in (("threshold", threshold), ("step", step)):
        if not 0 < share < 1:
            raise Refused(
                f"The {name} is {share:g}; it is a share between 0 and 1, such as {0.9 if name != 'step' else 0.1}."
            )
    metric = lot.select.metric
    if not metric.higher_is_better or lot.report.metric.name != metric.name:
        raise Refused(
            f"A sub-network keeps a share of a score, and {metric.name} is no score of which more is better; choose a "
            "metric such as accuracy for all examples (--metric)."
            if not metric.higher_is_better
            else f"Selected by {metric.name} and reported by {lot.report.metric.name}; use one metric for both."
        )


def _apart(lot: LotteryTask) -> LotteryTask:
    """The task to draw for, every example of it used for one thing."""
    tasks, left_out = splits.apart({"train": lot.train, "select": lot.select, "report": lot.report})
    return lot._replace(**tasks, left_out="; ".join(text for text in (lot.left_out, left_out) if text))


def scored_on(lot: LotteryTask) -> str | None:
    """What tells the training examples that importance is computed on from others; None where it is all of them."""
    task = _scored_on(lot)
    return None if task is lot.train else task.fingerprint


def _scored_on(lot: LotteryTask) -> Task:
    """The same examples for all seeds, so that draws differ by the fine-tuning alone."""
    return splits.drawn(lot.train, SCORED_ON, 0)


def _must_fit(root: nn.Module, retrain: bool, magnitude: bool, rows: tuple[ModuleSpec, ...]) -> None:
    removed_units = removed(root)
    if removed_units:
        raise Refused(
            f"{len(removed_units):,} units of the model are gone already; the study begins with a whole model."
        )
    if retrain:
        left_alone = cuttable(root, "heads,neurons", rows)[1]
        if left_alone:
            raise Refused(
                f"Sub-networks cannot be cut out and trained ({left_alone[0][1].rstrip('.')}); study them as found, without "
                "retraining (--no-retrain)."
            )
    if magnitude:
        magnitudes.weights(root, find(root, rows))


# -- a draw --------------------------------------------------------------------------------------------------------------


class _Study(NamedTuple):
    """One call of `lottery`."""

    build: Callable[[int], nn.Module]
    lot: LotteryTask
    recipe: Recipe
    threshold: float
    step: float
    magnitude: bool
    retrain: bool
    freeze: list[str]
    run: Run | None
    save_every: int | None
    rows: tuple[ModuleSpec, ...]
    bar: Bar

    def floor(self, full: float) -> float:
        """The least value that is enough; exactly the threshold is, whatever rounding makes of the product."""
        return self.threshold * full - 1e-12

    def piece(self, seed: int, *words: object) -> str:
        """The name of a piece in the run folder."""
        plain = re.sub(r"[^A-Za-z0-9_]+", "-", self.lot.name).strip("-")[:60]
        return "-".join([plain or "task", str(seed), *map(str, words)])

    def trained(self, model: nn.Module, seed: int, name: str) -> None:
        how = {"freeze": self.freeze, "run": self.run, "save_every": self.save_every}
        train(model, self.lot.train, replace(self.recipe, seed=seed), name=name, **how)

    def forget(self, name: str) -> None:
        """Delete the state of a training whose outcome is kept: it is as large as the model."""
        if self.run is not None:
            (Path(self.run.folder) / f"{name}-state.safetensors").unlink(missing_ok=True)

    def measured(self, model: nn.Module, task: Task, plans: list[Plan], name: str) -> np.ndarray:
        return measure(model, task, plans, replay=False, run=self.run, name=name, specs=self.rows)

    def say(self, seed: int, phase: str, steps: int = 1) -> None:
        self.bar.advance(steps)
        self.bar.label = f"lottery, {self.lot.name}, seed {seed}: {phase}"


def _kept_draw(study: _Study, seed: int) -> runs.Arrays:
    """A draw as a piece of the run: several processes can share out the seeds."""
    draw, constant = _draw(study, seed)
    gc.collect()  # modules and their hooks refer to each other
    return runs.json_as_arrays({"draw": write(draw), "majority": constant}, f"The draw of seed {seed}")


def _draw(study: _Study, seed: int) -> tuple[Draw, float | None]:
    """One seed: the fine-tuned model, the search, and all sub-networks; and what the majority class would reach."""
    lot, metric = study.lot, study.lot.report.metric
    study.say(seed, "fine-tuning", 0)
    root = _fine_tuned(study, seed)
    field = Field.of(root, study.rows)
    study.say(seed, "search")
    before = lot.select.metric.value(study.measured(root, lot.select, [Plan()], study.piece(seed, "select"))[0])
    if before <= 0:
        raise Refused(
            f"With seed {seed} the fine-tuned model has {metric.name} {before:g} on the selection examples, and a share of "
            "that means nothing; train longer, or leave the seed out."
        )
    removed_units, steps = _searched(study, root, field, seed, before)
    study.say(seed, "sub-networks")
    closings = networks(field.heads, field.mlps, removed_units, random.Random(f"{seed}/{lot.name}"))
    plans = {variant: field.plan(closings[variant]) for variant in WHATS}
    rows = study.measured(root, lot.report, [Plan(), *plans.values()], study.piece(seed, "report"))
    full = result_of(lot.report, rows[0])
    remaining = UnitCounts(
        len(field.heads) - count(removed_units, field.heads), len(field.mlps) - count(removed_units, field.mlps)
    )
    size = {"heads": remaining.heads, "mlps": remaining.mlps}
    sub_networks = [
        _network(full, network_rows, {"what": variant, "how": "pruned", **size})
        for variant, network_rows in zip(plans, rows[1:], strict=True)
    ]
    study.say(seed, "fine-tuning sub-networks")
    for variant in WHATS if study.retrain else ():
        sub_networks.append(
            _network(
                full, _retrained(study, seed, plans[variant], variant), {"what": variant, "how": "retrained", **size}
            )
        )
        study.bar.advance()
    parameters = sum(parameter.numel() for parameter in root.parameters())
    cost = _cost(root, plans["good"], study.rows)
    draw = Draw(
        task=lot.name,
        seed=seed,
        full=FullModel(before, full.value),
        left=remaining,
        of=UnitCounts(len(field.heads), len(field.mlps)),
        parameters=(parameters, None if cost is None else parameters - cost),
        alive=field.alive(removed_units),
        steps=tuple(steps),
        networks=tuple(sub_networks),
        magnitude=_by_magnitude(study, seed, root, field, full, before) if study.magnitude else None,
    )
    return draw, majority(metric, full.rows)


def _cost(root: nn.Module, plan: Plan, rows: tuple[ModuleSpec, ...]) -> int | None:
    """The parameters that a cut removes; None where it would be refused."""
    try:
        return parameters_removed(root, plan, specs=rows)
    except Refused:
        return None


def _fine_tuned(study: _Study, seed: int) -> nn.Module:
    """The fine-tuned model; with a run it is kept in the folder, and read back instead of trained the next time."""
    root, name = unwrap(study.build(seed)), study.piece(seed, "full")
    folder = None if study.run is None else Path(study.run.folder) / "models" / name
    if folder is None or not folder.is_dir():
        study.trained(root, seed, name)
        if folder is not None:
            checkpoints.save(root, folder)
    else:
        plain = {} if hasattr(root, "save_pretrained") else {"into": root}
        root.load_state_dict(checkpoints.load(folder, **plain).state_dict())
    study.forget(name)
    return root.eval()


def _searched(
    study: _Study, root: nn.Module, field: Field, seed: int, before: float
) -> tuple[list[Unit], list[SearchStep]]:
    lot, some = study.lot, _scored_on(study.lot)
    tried = 0

    def worth(removed_units: Sequence[Unit]) -> dict[Unit, float]:
        name = study.piece(seed, "importance", f"{len(removed_units):05d}")
        with masked(root, field.plan(removed_units), specs=study.rows):
            return importance(root, field.anatomy, some, run=study.run, name=name)

    def value(removed_units: Sequence[Unit]) -> float:
        nonlocal tried
        tried += 1
        name = study.piece(seed, "step", f"{tried:03d}")
        return lot.select.metric.value(study.measured(root, lot.select, [field.plan(removed_units)], name)[0])

    return search(field.heads, field.mlps, worth, value, study.floor(before), study.step)


def _fresh(
    study: _Study, seed: int, label: str, change: Callable[[nn.Module], AbstractContextManager[None]]
) -> np.ndarray:
    """Rows on the report examples of the pretrained model, changed, and fine-tuned by the same recipe.

    `change` does it, and gives the context that the change needs while the model trains.
    """
    name = study.piece(seed, label)

    def compute() -> dict[str, np.ndarray]:
        model = unwrap(study.build(seed))
        with change(model):
            study.trained(model, seed, name)
            return {"rows": measure(model, study.lot.report, [Plan()], specs=study.rows)[0]}

    rows = runs.piece(study.run, name, compute)["rows"]
    study.forget(name)
    return rows


def _retrained(study: _Study, seed: int, plan: Plan, variant: str) -> np.ndarray:
    def change(model: nn.Module) -> nullcontext[None]:
        cut(model, plan, check=to_device(study.lot.train.batch(), device_of(model)), specs=study.rows)
        return nullcontext()

    return _fresh(study, seed, f"{variant}-retrained", change)


def _by_magnitude(study: _Study, seed: int, root: nn.Module, field: Field, full: Result, before: float) -> WeightSearch:
    """The same with single weights, by their magnitude in the fine-tuned model."""
    lot, tensors = study.lot, magnitudes.weights(root, field.anatomy)
    order = magnitudes.by_magnitude(tensors)

    def measured(stay: torch.Tensor, task: Task, name: str) -> np.ndarray:
        with magnitudes.masked(root, magnitudes.masks(tensors, stay)):
            return study.measured(root, task, [Plan()], study.piece(seed, "magnitude", name))[0]

    def value(remaining: int) -> float:
        return lot.select.metric.value(measured(order[len(order) - remaining :], lot.select, f"step-{remaining}"))

    study.say(seed, "magnitude pruning", 0)
    remaining, steps = magnitudes.search(len(order), value, study.floor(before))
    share, sub_networks = remaining / len(order), list[Network]()
    stays = magnitudes.networks(order, remaining, seed)
    for variant, stay in stays.items():
        sub_networks.append(
            _network(full, measured(stay, lot.report, variant), {"what": variant, "how": "pruned", "left": share})
        )
    study.bar.advance()
    for variant, stay in stays.items() if study.retrain else ():
        chosen = magnitudes.masks(tensors, stay)
        rows = _fresh(study, seed, f"magnitude-{variant}-retrained", partial(magnitudes.held, chosen=chosen))
        sub_networks.append(_network(full, rows, {"what": variant, "how": "retrained", "left": share}))
        study.bar.advance()
    return WeightSearch(share, tuple(steps), tuple(sub_networks))


def _network(full: Result, rows: np.ndarray, about: dict[str, Any]) -> Network:
    """The value of a sub-network, and what it lost against the full model of the same seed."""
    after = Result(full.metric, rows, clusters=full.clusters)
    return Network(**about, value=after.value, n=after.n, comparison=compare(full, after))


# -- what is said about a study ------------------------------------------------------------------------------------------


def majority(metric: Metric, rows: np.ndarray) -> float | None:
    """The metric of one who always says the most frequent label; None where there are no labels."""
    if metric.name not in CLASSES:
        return None
    always = np.array(rows)
    labels, counts = np.unique(always[:, metric.columns.index("label")], return_counts=True)
    always[:, metric.columns.index("prediction")] = labels[counts.argmax()]
    return metric.value(always)


def _sets(lot: LotteryTask) -> str:
    """A sentence that says which examples were used for what."""
    uses = splits.Uses({"train": lot.train, "select": lot.select, "report": lot.report}, lot.left_out)
    return splits.in_words(uses, {"train": "trained", "select": "selected", "report": "reported"})


def _name(root: nn.Module) -> str:
    path = str(getattr(getattr(root, "config", None), "name_or_path", "") or type(root).__name__)
    return path.rstrip("/").rpartition("/")[2]
