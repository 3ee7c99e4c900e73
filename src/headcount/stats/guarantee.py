"""How much may go: plans tested one after the other against a largest drop, so that a promise can be kept. No torch.

Each plan is tested against "it loses at least D points" on examples that had no part in making it. The order of the plans
is fixed before the first of these examples is looked at, and the first plan that cannot be shown ends the sequence. A
promise is broken only if some plan that does lose more is called safe, and before that the *first* such plan of the
sequence must have been: that is one test, with its own error rate, however many came before it (fixed-sequence testing:
Maurer, Hothorn and Lehmacher 1995; for tuning models, Angelopoulos et al. 2021). `docs/guarantee.md` explains it, and
`docs/trust.md` has how often each test was wrong in simulations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from ..errors import BadMeasure
from .metrics import Metric
from .noninferiority import AVERAGED, LEAST_ALPHA, NonInferiority, check_promise, noninferiority_test
from .paired_shares import fewest

__all__ = [
    "LEAST_ALPHA",
    "Guarantee",
    "NonInferiority",
    "Step",
    "check_promise",
    "fewest",
    "fixed_sequence_test",
    "noninferiority_test",
    "rehearsed_sequence",
    "required_sample_size",
]

POWER = 0.8  # with which the number of examples is foretold that would be needed
MANY_PLANS = 6  # of more, only some are tested where each costs much
NEAR = 3  # plans before the last one that a rehearsal shows, each of which is tested
DEARER = 1.4  # examples for a betting test per example for one that knows the distribution, found by trying
TEST_NAMES = {
    "exact": " by an exact paired test",
    "bounded": ", bounded by a betting test",
    "bootstrap": " by an approximate paired bootstrap",
}


@dataclass(frozen=True)
class Step:
    """One plan of a sequence: units gone, the metric without them, and whether it was shown to lose less than the drop."""

    removed: int
    value: float
    damage: float
    bound: float
    p: float
    shown: bool
    beyond: int = 0  # examples, or groups, that were worse or better by more than the cap


@dataclass(frozen=True)
class Guarantee:
    """What could be shown: plans from the mildest on, the last of them the first that could not be (or the end)."""

    metric: str
    drop: float  # points
    alpha: float
    test: str  # one of TEST_NAMES
    n: int
    base: float
    steps: tuple[Step, ...]
    needed: int | None = None  # examples to show the step that stopped it, if it costs what it cost here
    least: float | None = None  # the smallest drop that these examples could have shown, had nothing changed at all
    cap: float | None = None  # what one example (one group) counted for at most
    groups: int | None = None  # of examples that belong together; None: each is on its own
    tries: int = 1  # promises that share alpha: each plan was tested at alpha / tries

    @property
    def removed(self) -> int:
        """How many units can go under the guarantee; 0 if not even the mildest plan could be shown."""
        return 0 if self.kept is None else self.kept.removed

    @property
    def kept(self) -> Step | None:
        """The last plan that was shown."""
        return next((step for step in reversed(self.steps) if step.shown), None)

    @property
    def stopped(self) -> Step | None:
        """The plan that could not be shown; None if all of them were."""
        return next((step for step in self.steps if not step.shown), None)

    def __str__(self) -> str:
        allowed = f"{self.drop:g} {unit_of(self.metric, self.drop)}"
        if self.metric == "perplexity" and self.test == "bounded":  # the test is about the logarithm
            allowed += f" (a factor of {1 + self.drop / self.base:.4g})"
        allowed += cap_in_words(self.cap, self.metric, self.groups)
        percent = f"{100 * (1 - self.alpha):g} %"
        examples = f"{self.n} examples" + ("" if self.groups is None else f" in {self.groups} groups")
        if self.kept is None:
            return f"not shown for any plan that it loses less than {allowed} ({percent} sure, {examples})"
        shared = f", at level {self.alpha:g} / {self.tries}" if self.tries > 1 else ""
        return f"loses less than {allowed}, {percent} sure, shown on {examples}{TEST_NAMES[self.test]}{shared}"

    def to_json(self) -> dict[str, Any]:
        """All fields by name, with how many units can go and the sentence."""
        return {
            **asdict(self),
            "steps": [asdict(s) for s in self.steps],
            "removed": self.removed,
            "sentence": str(self),
        }


def in_words(needed: int | None) -> str:
    """A number of examples, as far as it means anything."""
    if needed is None:
        return "no number of examples"
    return "more than a million examples" if needed > 1_000_000 else f"about {needed:,} examples"


def cap_in_words(cap: float | None, metric: str, groups: int | None = None) -> str:
    """What a promise with a cap says more than one without: ", no example counted for more than 1"; "" without."""
    if cap is None:
        return ""
    unit = f" {'nat' if cap == 1 else 'nats'}" if metric in ("loss", "perplexity") else ""
    return f", no {'example' if groups is None else 'group'} counted for more than {cap:g}{unit}"


def least_in_words(n: int, least: float, metric: str) -> str:
    """What n examples cannot show, whatever the plan: "on 675 examples no drop below 0.99 points could be shown, ..."."""
    drop_text = f"{float(f'{least:.2g}'):g}"
    return f"on {n} examples no drop below {drop_text} {unit_of(metric)} could be shown, even if nothing changed"


def unit_of(metric: str, count: float = 2) -> str:
    """What a drop of this metric is counted in, for so many of them."""
    return f"in {metric}" if metric in AVERAGED else "point" if count == 1 else "points"


def fixed_sequence_test(
    measure: Metric,
    before: np.ndarray,
    plans: Iterable[tuple[int, np.ndarray]],
    drop: float,
    *,
    alpha: float = 0.05,
    resamples: int | None = None,
    seed: int = 12345,
    clusters: np.ndarray | None = None,
    cap: float | None = None,
    tries: int = 1,
) -> Guarantee:
    """Test plans, (units gone, rows per example) from the mildest on, and stop at the first that cannot be shown.

    `before` and the rows are of the same examples, none of which was used to make the plans or their order. Plans are
    taken from the iterable one by one, so that those behind the last are never measured. `clusters` and `cap` are those
    of `no_worse`. Promises tried on the same examples share alpha: where there are `tries` of them, each is tested at
    alpha / tries.
    """
    check_promise(drop, alpha)
    level = alpha / tries
    check_promise(drop, level)
    options: dict[str, Any] = {"alpha": level, "resamples": resamples, "seed": seed, "clusters": clusters, "cap": cap}
    base, steps, result = measure.value(before), list[Step](), None
    for removed, rows in plans:
        result = noninferiority_test(measure, before, rows, drop, **options)
        is_shown = result.p <= level
        steps.append(Step(removed, measure.value(rows), result.damage, result.bound, result.p, is_shown, result.beyond))
        if not is_shown:
            break
    if result is None:
        raise BadMeasure("There is no plan to test; give at least one that removes something.")
    more = (
        None
        if steps[-1].shown
        else required_sample_size(result, len(before), drop / measure.points, level, measure.points)
    )
    # the same test, with the same cap, where nothing has changed
    same = noninferiority_test(measure, before, before, drop, **options)
    groups = None if clusters is None else len(np.unique(clusters))
    n, last = len(before), tuple(steps)
    details = (n, base, last, more, same.bound, result.cap, groups, tries)
    return Guarantee(measure.name, float(drop), alpha, result.test, *details)


def rehearsed_sequence(of: int, holds: Callable[[int], bool]) -> list[int]:
    """Which of so many plans, from the mildest on, to test one after the other, where a test of each would cost too much.

    `holds` says whether a plan passes in a rehearsal. The last that does is found by bisection; tested are the mildest, one
    half way to it, the last few up to it, and all behind it. With `fixed_sequence_test` the promise holds as it does for
    all plans, *if the rehearsal knows nothing of the examples that are tested on*: it then only says which tests there
    will be, and in which order, before any of these examples is looked at. Bisection on those very examples would be
    several tests, of which one may pass by chance.
    """
    if of <= MANY_PLANS:
        return list(range(of))
    low, high = -1, of  # the last that is known to hold, the first that is known not to
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    near = range(max(0, low - NEAR), of)
    return sorted({0, max(0, low) // 2, *near})


def required_sample_size(result: NonInferiority, n: int, margin: float, alpha: float, points: float) -> int | None:
    """About how many examples would show it in four of five tries, if it costs what it cost here; None: no number would."""
    room = margin * points - result.damage
    if room <= 0:
        return None
    wanted = n * ((special.ndtri(1 - alpha) + special.ndtri(POWER)) * result.spread / room) ** 2
    if result.test == "exact":
        wanted = max(wanted + points / room, result.fewest)  # counts are whole numbers: a little more is needed
    elif result.test == "bounded":
        wanted = DEARER * wanted + result.fewest  # bets are small at first, while the spread is not known
    return _rounded_up(max(wanted, n + 1))


def _rounded_up(number: float) -> int:
    """The number with two digits, rounded up: more would pretend."""
    scale = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return math.ceil(number / scale) * scale
