"""Exact patches, a pass each: the metric of clean prompts with some units as they are on the corrupted ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import runs
from ...documents.discovery.patch_check import PatchCheck
from ...errors import BadPlan
from ...evaluation.evaluator import in_parts
from ...hashing import fingerprint
from ...model.anatomy import Anatomy, Site, Stack
from ...model.discovery import find, unwrap
from ...model.tensor_trees import tensors, with_first
from ...plans import Plan
from ...progress import Bar
from ...stats.paired_tests import resample_counts
from .pairs import Pair, Spot, check_parts, contrasted, ends_of, ready, seen_at, sign_of
from .units import CHUNK

if TYPE_CHECKING:
    from ...data.tasks import Task
    from ...documents.scores import Scores
    from ...runs import Run

CHECKED = 24  # units, where nothing else is said


def patch_check(
    model: nn.Module,
    task: Task,
    scores: Scores,
    count: int | None = None,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "check",
    specs: Any = (),
) -> PatchCheck:
    """The rank correlation (Spearman) of scores and exact patches: a pass for each of `count` units, drawn by `seed`.

    The exact value of a unit is how much worse the metric of the clean prompts gets when the unit's activations at all positions
    are those of the corrupted prompts.

    Args:
        model: The model; it is as it was afterwards.
        task: The contrast task that the scores were computed on.
        scores: Scores by attribution-patching, eap-ig or anything else.
        count: How many units are patched; by default 24, or all where there are fewer.
        seed: Random seed of the sample and of the bootstrap.
        batch_size: Examples per forward pass; by default that of the task.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        name: Name of the results in the run folder.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        Both values of every unit, and the correlation with its interval.

    Examples:
        >>> model = hc.load("my-decoder")
        >>> task = hc.task("contrast:induction", tokenizer="my-decoder", limit=16)
        >>> scores = hc.score(model, task, by="eap-ig")
        >>> check = hc.importance.attribution.patch_check(model, task, scores)
        >>> len(check.names) == len(scores)
        True
    """
    task = contrasted(task, "Exact patching")
    count = CHECKED if count is None else count
    if count < 2:
        raise BadPlan(f"A rank correlation takes at least 2 units (--check); I got {count}.")
    places = np.arange(len(scores))
    if count < len(places):
        places = np.sort(np.random.default_rng(seed).choice(len(places), count, replace=False))
    units = [scores.units[place] for place in places]
    plans = {str(unit): Plan(frozenset(scores.members.get(unit, (unit,)))) for unit in units}
    anatomy = find(model, specs)
    how: dict[str, Any] = {"batch_size": batch_size, "run": run, "name": name}
    found = values_under(unwrap(model), anatomy, task, plans, **how)
    drops = sign_of(task) * (found["clean"][:, None] - found["patched"])  # (examples, units)
    samples = scores.samples if scores.samples is not None and len(scores.samples) == task.size else None
    estimates = scores.raw[None, places] if samples is None else samples[:, places]
    return agreement(tuple(plans), estimates, drops, of=len(scores), seed=seed, clusters=task.clusters)


def agreement(
    names: tuple[str, ...],
    estimates: np.ndarray,
    exact: np.ndarray,
    *,
    of: int,
    seed: int,
    clusters: Sequence[int] | None = None,
    drawn: str = "drawn at random",
    resamples: int = 1000,
) -> PatchCheck:
    """The rank correlation of estimated and exact effects, (examples, units) each; estimates may be one row of means.

    The interval: the percentile bootstrap over examples, the same ones for both, and over units where they are a sample of all.
    """
    rng, n = np.random.default_rng(seed), len(exact)
    groups = None if clusters is None else np.asarray(clusters)
    sampled = len(names) < of and drawn == "drawn at random"
    correlations = []
    for counts in resample_counts(resamples, n, seed, groups):
        weights = counts / counts.sum(1, keepdims=True)  # (resamples, examples)
        means = weights @ exact
        own = weights @ estimates if len(estimates) == n else np.repeat(estimates, len(weights), 0)
        if sampled:
            chosen = rng.integers(0, len(names), means.shape)
            means, own = (np.take_along_axis(values, chosen, 1) for values in (means, own))
        correlations.append(_spearman(own, means))
    low, high = np.quantile(np.concatenate(correlations), [0.025, 0.975])
    estimated, measured = estimates.mean(0), exact.mean(0)
    return PatchCheck(
        names=names,
        estimated=tuple(estimated.tolist()),
        exact=tuple(measured.tolist()),
        spearman=float(_spearman(estimated[None], measured[None])[0]),
        low=float(low),
        high=float(high),
        n=n,
        of=of,
        drawn=drawn,
    )


def _spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of each row with the same row of the other; 0 where one side is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(values, axis=1) for values in (one, other)]
    centred = [rank - rank.mean(1, keepdims=True) for rank in ranks]
    size = np.sqrt((centred[0] ** 2).sum(1) * (centred[1] ** 2).sum(1))
    return np.where(size > 0, (centred[0] * centred[1]).sum(1) / np.where(size > 0, size, 1), 0.0)


# --- values ---------------------------------------------------------------------------------------------------------


def values_under(
    root: nn.Module,
    anatomy: Anatomy,
    task: Task,
    plans: Mapping[str, Plan],
    *,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "patched",
) -> dict[str, np.ndarray]:
    """The metric of every example: "clean" and "corrupted" of those prompts, (examples,) each, and "patched" (examples, plans).

    That is of the clean prompts, with the units of each plan as they are on the corrupted ones.
    """
    parts = parts_in(anatomy, plans.values())
    check_parts(root, parts)
    mark = fingerprint({key: plan.to_json()["remove"] for key, plan in plans.items()})[:8]
    with ready(root), torch.no_grad(), Bar("patches", total=task.size) as bar:
        jobs = []
        for start in range(0, task.size, CHUNK):
            some = task.subset(range(start, min(start + CHUNK, task.size)))
            compute = partial(_chunk, root, anatomy, parts, some, list(plans.values()), batch_size, bar)
            jobs.append((f"{name}-{mark}-{start:06d}", compute))
        pieces = list(runs.independent(run, jobs))
    return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}


def parts_in(anatomy: Anatomy, plans: Any) -> list[Site | Stack]:
    """The parts that the units of plans belong to, in the order of the model."""
    names = {name for plan in plans for name in plan.by_site()}
    return [part for part in anatomy.parts if part.name in names]


def _chunk(
    root: nn.Module,
    anatomy: Anatomy,
    parts: Sequence[Site | Stack],
    task: Task,
    plans: Sequence[Plan],
    batch_size: int | None,
    bar: Bar,
) -> dict[str, np.ndarray]:
    out = {key: np.zeros(task.size) for key in ("clean", "corrupted")}
    out["patched"] = np.zeros((task.size, len(plans)))

    def values(numbers: Sequence[int]) -> dict[str, np.ndarray]:
        pair = Pair(task, root, tuple(numbers))
        found = {"clean": _numbers(pair.values(pair.clean)), "corrupted": _numbers(pair.values(pair.corrupted))}
        source = pair.recorded(pair.corrupted, parts)
        columns = []
        for plan in plans:
            with patched(anatomy, plan, source):
                columns.append(_numbers(pair.values(pair.clean)))
        return {**found, "patched": np.stack(columns, axis=1) if columns else np.zeros((len(numbers), 0))}

    for numbers in task.batches(batch_size):
        for some, found in in_parts(values, "patches", task, numbers):
            for key, array in found.items():
                out[key][list(some)] = array
        bar.advance(len(numbers))
    return out


def _numbers(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()


@contextmanager
def patched(anatomy: Anatomy, plan: Plan, source: Mapping[Spot, Tensor]) -> Iterator[None]:
    """Within the block, the units of a plan are as recorded in `source` (`Pair.recorded`), at every position."""
    with ExitStack() as stack:
        for name, indices in plan.by_site().items():
            part = anatomy[name]
            if isinstance(part, Stack):
                for place in part.positions(indices):
                    hook = _adding(part.name, source[part.name, place])
                    stack.callback(
                        part.blocks[place].register_forward_hook(hook, with_kwargs=True, prepend=True).remove
                    )
            else:
                units = torch.zeros(len(part), dtype=torch.bool)
                units[part.positions(indices)] = True
                giving = _giving(part, source[name, 0], units.repeat_interleave(part.width))
                stack.callback(part.writer.register_forward_pre_hook(giving, with_kwargs=True).remove)
        yield


def _giving(site: Site, source: Tensor, columns: Tensor) -> Callable[..., Any]:
    def hook(_: nn.Module, args: Any, kwargs: Any) -> Any:
        x = seen_at(site, next(tensors((args, kwargs))), len(source))
        return with_first((args, kwargs), torch.where(columns.to(x.device), source.to(x), x))

    return hook


def _adding(name: str, contribution: Tensor) -> Callable[..., Any]:
    def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        before, after = ends_of(name, args, kwargs, output)
        return with_first(output, before + contribution.to(after))

    return hook
