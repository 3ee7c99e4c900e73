"""Less work where there is little time: what a command leaves out to be done in so many minutes, by counting passes.

One batch is timed, and everything else is counted: a pass is one example that goes forward through the model, and an example
that gradients come back from is three. What to leave out follows from those numbers alone, in a fixed order from what costs
least quality to what costs most. The answer is noted in the run, so that a command that was stopped goes on with it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import runs
from ..errors import BadPlan
from ..evaluation.evaluator import device_of, to_device
from ..importance.criteria import NEED_NO_DATA
from ..model.discovery import find, unwrap
from ..model.equivalence import evaluating
from ..parsing import share_in
from ..stats.guarantee import MANY_PLANS, NEAR

if TYPE_CHECKING:
    from ..data.example_sets import Sets
    from ..data.tasks import Task
    from ..model.architectures import ModuleSpec

BACKWARD = 3  # passes that an example with gradients costs
TUNING = 4  # passes of each example that a plan is tuned on: its share of the whole model, and three of the cut one
TUNED_ON = 330  # examples that 8192 positions make, about
JUDGED = 2 * 512  # examples on which a plan is looked at as cut and as tuned
OVERHEAD = 45.0  # seconds for what no example passes through: loading, saving, comparing speeds, drawing the report
WIDTHS = 90.0  # seconds to time the widths of a model, for a speed-up
LARGEST_STEP = 0.25
TIMED = 3  # batches that are timed, after one that warms up
STAGES: tuple[tuple[str, float], ...] = (
    ("score", 1024),
    ("score", 512),
    ("step", 2),
    ("score", 256),
    ("step", 4),
    ("tune", 0),
    ("score", 128),
)  # what is left out, in this order, until the rest fits: quality suffers least first


@dataclass(frozen=True)
class Work:
    """What a command is going to do, in examples, and by which steps."""

    score: int  # examples to score units on; 0: none
    per_score: float = BACKWARD  # passes of each
    select: int = 0  # examples that every plan is tested on; 0: no plan is tested
    report: int = 0
    step: float = 0.05  # between plans, as a share
    tune: bool = False
    seconds: float = OVERHEAD

    @property
    def plans(self) -> int:
        """How many plans are tested at most, or for a budget made ready."""
        if not self.select:
            return 1
        plans = max(1, round(1 / self.step))
        return min(plans, plans.bit_length() + NEAR + 3) if self.tune and plans > MANY_PLANS else plans

    @property
    def passes(self) -> float:
        """Examples that go forward through the model, at most."""
        judged = min(JUDGED, 2 * self.score)
        each = self.select + (TUNING * min(TUNED_ON, self.score) + judged) * self.tune
        return self.per_score * self.score + self.plans * each + self.select + 2 * self.report

    def takes(self, per_pass: float) -> float:
        """Seconds, at most, where one pass takes so many."""
        return self.seconds + per_pass * self.passes


@dataclass(frozen=True)
class Limits:
    """What is left of the work, the seconds that it should take at most, and what was left out, in sentences."""

    score: int
    step: float
    tune: bool
    expected: float
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        minutes = f"about {max(1, round(self.expected / 60))} min at most"
        return f"{'; '.join(self.left_out) or 'nothing had to be left out'} ({minutes})"


def limits(work: Work, minutes: float, per_pass: float) -> Limits:
    """How much of the work fits into so many minutes, where one pass takes so many seconds."""
    if not 0 < minutes < float("inf"):
        raise BadPlan(f"A time budget is a number of minutes above 0; I got {minutes:g}.")
    left = work
    for part, value in STAGES:
        if left.takes(per_pass) <= 60 * minutes:
            break
        less = left
        if part == "score" and left.score > value:
            less = replace(left, score=int(value))
        elif part == "step" and left.select:
            less = replace(left, step=max(left.step, min(LARGEST_STEP, value * work.step)))
        elif part == "tune":
            less = replace(left, tune=False)
        if less.passes < left.passes:  # without tuning more plans may be tested
            left = less
    return Limits(left.score, left.step, left.tune, left.takes(per_pass), _left_out(work, left, minutes, per_pass))


def _left_out(work: Work, left: Work, minutes: float, per_pass: float) -> tuple[str, ...]:
    out = []
    if left.score < work.score:
        out.append(f"{left.score:,} of {work.score:,} examples to score on were used")
    if left.step > work.step:
        out.append(f"plans were {100 * left.step:g} % apart instead of {100 * work.step:g} %")
    if work.tune and not left.tune:
        out.append("what stays was not tuned")
    if left.takes(per_pass) > 60 * minutes:
        out.append(f"{minutes:g} minutes are too few even so")
    return tuple(out)


def within_minutes(model: nn.Module, minutes: float, work: Work, task: Task, run: Any = None) -> Limits:
    """`limits` with a pass timed on this model and some of these examples; noted in the run, and read back from it."""

    def decided() -> dict[str, Any]:
        per_pass = seconds_per_example(model, task)
        return {**asdict(limits(work, minutes, per_pass)), "per_pass": per_pass, "work": asdict(work)}

    noted: Mapping[str, Any] = runs.document(run, "time-budget", decided)
    parts = {name: noted[name] for name in ("score", "step", "tune", "expected")}
    return Limits(**parts, left_out=tuple(noted["left_out"]))


def seconds_per_example(model: nn.Module, task: Task) -> float:
    """Seconds that one example takes to go forward through the model: the median of a few batches of usual length."""
    root, batches = unwrap(model), task.batches()
    numbers = batches[len(batches) // 2]
    batch, times = to_device(task.collate(numbers), device_of(root)), list[float]()
    with evaluating(root), torch.no_grad():
        for _ in range(1 + TIMED):
            start = time.perf_counter()
            float(task.loss(root, batch).sum())  # waits for a GPU
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:]) / len(numbers)


def limited(
    model: nn.Module,
    sets: Sets,
    settings: Mapping[str, Any],
    minutes: float,
    run: Any = None,
    seed: int = 0,
    specs: Iterable[ModuleSpec] = (),
) -> tuple[Sets, dict[str, Any]]:
    """The sets with a note about what was left out for so many minutes, and the settings of `choose` that fit into them.

    `settings` are `by`, `units`, `step` and `tune`, and `speedup` where one is to be reached, which is not given back.
    """
    kinds = [word.strip().replace("kv-groups", "heads").removesuffix("s") for word in settings["units"].split(",")]
    anatomy = find(model, tuple(specs))
    units = sum(len(part) for part in anatomy.parts if part.kind in kinds)
    work = work_of(sets, settings, units)
    limits = within_minutes(model, minutes, work, sets.report, run)
    changed = {name: value for name, value in settings.items() if name != "speedup"} | {"tune": limits.tune}
    changed |= {"step": f"{100 * limits.step:g}%"} if limits.step > work.step else {}
    if sets.score is not None and limits.score < work.score:
        sets = sets._replace(score=sample(sets.score, limits.score, seed))
    return sets.noting(f"to be done in {minutes:g} minutes: {limits}"), changed


def work_of(sets: Sets, settings: Mapping[str, Any], units: int) -> Work:
    """The work of `prune` with these sets and settings, on a model of so many units."""
    by, tune = settings.get("by"), bool(settings.get("tune"))
    scored = sets.score is not None and (by not in NEED_NO_DATA or tune)
    return Work(
        sets.score.size if sets.score is not None and scored else 0,
        units if by == "ablation" else BACKWARD,
        0 if sets.select is None else sets.select.size,
        sets.report.size,
        step_share(settings.get("step", "5%"), units),
        tune,
        OVERHEAD + (WIDTHS if settings.get("speedup") is not None else 0.0),
    )


def step_share(step: float | int | str, units: int) -> float:
    """A step between plans, a count or a share, as a share of the units."""
    if isinstance(step, str):
        share = share_in(step)
        step = int(step) if share is None and step.strip().isdecimal() else share or 0.05
    return min(1.0, step / max(1, units)) if isinstance(step, int) else float(step)


def sample(task: Task, size: int, seed: int) -> Task:
    """So many examples of a task, drawn by the seed, in their own order; all of them where there are no more."""
    if size >= task.size:
        return task
    return task.subset(sorted(random.Random(seed).sample(range(task.size), size)))
