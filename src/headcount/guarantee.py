"""How much may go: plans tested one after the other against a largest drop, so that a promise can be kept. No torch.

Each plan is tested against "it loses at least D points" on examples that had no part in making it. The order of the plans
is fixed before the first of these examples is looked at, and the first plan that cannot be shown ends the sequence. A
promise is broken only if some plan that does lose more is called safe, and before that the *first* such plan of the
sequence must have been: that is one test, with its own error rate, however many came before it (fixed-sequence testing:
Maurer, Hothorn and Lehmacher 1995; for tuning models, Angelopoulos et al. 2021). `docs/guarantee.md` explains it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from .errors import BadMeasure
from .metrics import Metric
from .stats import SAME_FOR_ALL, resampled_differences

POWER = 0.8  # with which the number of examples is foretold that would be needed
LEFT_OUT = 1e-4  # Berger and Boos (1994): how sure we are of the range searched for the share of examples gained
GRID = 48  # places searched in that range
TAIL = 1e-10  # probability of counts so far out that they are taken as speaking against us
LEAST_ALPHA = 0.001  # well above what is left out
RESAMPLES = 10_000
DRAWS = 200_000_000  # examples drawn for one plan at most: on very many, fewer resamples do


class Shown(NamedTuple):
    """One plan against a largest drop; `damage` and `bound` are in points, `spread` is the standard error of the damage."""

    damage: float
    bound: float  # with probability 1 - alpha, the true damage is less than this
    p: float  # of a damage this small, or smaller, if the true one were the largest allowed
    spread: float
    test: str


@dataclass(frozen=True)
class Step:
    """One plan of a sequence: units gone, the metric without them, and whether it was shown to lose at most the drop."""

    removed: int
    value: float
    damage: float
    bound: float
    p: float
    shown: bool


@dataclass(frozen=True)
class Guarantee:
    """What could be shown: plans from the mildest on, the last of them the first that could not be (or the end)."""

    metric: str
    drop: float  # points
    alpha: float
    test: str  # "exact" or "bootstrap"
    n: int
    base: float
    steps: tuple[Step, ...]
    needed: int | None = None  # examples to show the step that stopped it, if it costs what it cost here
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
        percent = f"{100 * (1 - self.alpha):g} %"
        if self.kept is None:
            return f"not shown for any plan that it loses less than {allowed} ({percent} sure, n={self.n})"
        shared = f" at level {self.alpha:g} / {self.tries}" if self.tries > 1 else ""
        return (
            f"loses less than {allowed}, {percent} sure, shown on {self.n} examples by {TEST_NAMES[self.test]}{shared}"
        )

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


TEST_NAMES = {"exact": "an exact paired test", "bootstrap": "a paired bootstrap"}


def unit_of(metric: str, count: float = 2) -> str:
    """What a drop of this metric is counted in, for so many of them."""
    return f"in {metric}" if metric in ("loss", "perplexity", "mean") else "point" if count == 1 else "points"


def sequence(
    measure: Metric,
    before: np.ndarray,
    plans: Iterable[tuple[int, np.ndarray]],
    drop: float,
    *,
    alpha: float = 0.05,
    resamples: int | None = None,
    seed: int = 12345,
    tries: int = 1,
) -> Guarantee:
    """Test plans, (units gone, rows per example) from the mildest on, and stop at the first that cannot be shown.

    `before` and the rows are of the same examples, none of which was used to make the plans or their order. Plans are
    taken from the iterable one by one, so that those behind the last are never measured. Promises tried on the same
    examples share alpha: where there are `tries` of them, each is tested at alpha / tries.
    """
    check_promise(drop, alpha)
    level = alpha / tries
    check_promise(drop, level)
    base, steps, found = measure.value(before), list[Step](), None
    for removed, rows in plans:
        found = no_worse(measure, before, rows, drop, alpha=level, resamples=resamples, seed=seed)
        shown = found.p <= level
        steps.append(Step(removed, measure.value(rows), found.damage, found.bound, found.p, shown))
        if not shown:
            break
    if found is None:
        raise BadMeasure("There is no plan to test; give at least one that removes something.")
    more = None if steps[-1].shown else needed(found, len(before), drop / measure.points, level, measure.points)
    return Guarantee(measure.name, float(drop), alpha, found.test, len(before), base, tuple(steps), more, tries)


def no_worse(
    measure: Metric,
    before: np.ndarray,
    after: np.ndarray,
    drop: float,
    *,
    alpha: float = 0.05,
    resamples: int | None = None,
    seed: int = 12345,
) -> Shown:
    """Test one plan against "it loses at least `drop` points", paired and one-sided, and bound what it loses.

    Where every example is right or wrong the test is exact at any number of examples: the score test for the difference
    of two paired shares (Tango 1998), with the largest p-value over all shares of examples gained that the data leave
    open (Berger and Boos 1994). For other metrics it is the percentile bootstrap (10,000 resamples, fewer of more than
    20,000 examples), with *one more example* that is as good before as the best one and as bad after as the worst: a
    resample can only draw what was seen, and this stands for what was not. With no example changed at all, n examples
    then show a loss of less than about three such examples, 3/n, as they should.
    """
    check_promise(drop, alpha)
    before, after = measure.checked(before, "The values before"), measure.checked(after, "The values after")
    if before.shape != after.shape:
        raise BadMeasure(f"There are {len(before)} examples before and {len(after)} after; measure both on the same.")
    right = _right_or_wrong(measure, before), _right_or_wrong(measure, after)
    if right[0] is not None and right[1] is not None:
        return _by_counts(measure, right[0], right[1], drop / measure.points, alpha)
    sign = -measure.points if measure.higher_is_better else measure.points
    damage = sign * (measure.value(after) - measure.value(before))
    more = _one_bad_example(measure, before, after)
    resamples = resamples or max(2000, min(RESAMPLES, DRAWS // len(before)))
    drawn = sign * resampled_differences(measure, more[0], more[1][None], resamples=resamples, seed=seed)[0]
    p = (1 + int((drawn >= drop).sum())) / (1 + resamples)
    return Shown(float(damage), float(np.quantile(drawn, 1 - alpha)), p, float(drawn.std()), "bootstrap")


def needed(found: Shown, n: int, margin: float, alpha: float, points: float) -> int | None:
    """About how many examples would show it in four of five tries, if it costs what it cost here; None: no number would."""
    room = margin * points - found.damage
    if room <= 0:
        return None
    wanted = n * ((special.ndtri(1 - alpha) + special.ndtri(POWER)) * found.spread / room) ** 2
    if found.test == "exact":
        wanted = max(wanted + points / room, fewest(margin, alpha))  # counts are whole numbers: a little more is needed
    return _rounded_up(max(wanted, n + 1))


def fewest(margin: float, alpha: float) -> int:
    """Examples below which no loss of less than the share `margin` can be shown, even if nothing at all changes."""
    return math.ceil(math.log(alpha - LEFT_OUT - 2 * TAIL) / math.log1p(-margin)) if 0 < margin < 1 else 1


def _rounded_up(number: float) -> int:
    """The number with two digits, rounded up: more would pretend."""
    scale = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return math.ceil(number / scale) * scale


# --- right or wrong -------------------------------------------------------------------------------------------------


def _right_or_wrong(measure: Metric, rows: np.ndarray) -> np.ndarray | None:
    """1 for each example that counts as good and 0 for the others; None if the metric is not a share of examples."""
    values = measure.per_example(rows)
    if values is None or not np.isin(values, (0.0, 1.0)).all() or (measure.statistics(rows)[:, 1] != 1).any():
        return None
    return values if measure.higher_is_better else 1 - values


def _by_counts(measure: Metric, was: np.ndarray, now: np.ndarray, margin: float, alpha: float) -> Shown:
    n, lost, won = len(was), int((was > now).sum()), int((now > was).sum())
    damage = (lost - won) / n
    # half an example more on each side, so that nothing seen is not taken for no spread
    share, gain = (lost + 0.5) / n, (won + 0.5) / n
    spread = math.sqrt(max(0.0, share + gain - (share - gain) ** 2) / n)
    p = exact_p(lost, won, n, margin)
    bound = least_shown(lost, won, n, alpha)
    return Shown(damage * measure.points, bound * measure.points, p, spread * measure.points, "exact")


@lru_cache(maxsize=4096)
def least_shown(lost: int, won: int, n: int, alpha: float) -> float:
    """The smallest share of which it can be shown that less is lost, to a hundredth of an example; the test, inverted."""
    low, high = max(0.0, (lost - won) / n), 1.0
    while high - low > 0.01 / n:
        middle = (low + high) / 2
        low, high = (low, middle) if exact_p(lost, won, n, middle) <= alpha else (middle, high)
    return high


def exact_p(lost: int, won: int, n: int, margin: float) -> float:
    """The p-value of "at least `margin` more of the examples are lost than won", with so many of n lost and won.

    The probability of a score statistic as small as this one, or smaller, over all counts that could have been, at the
    share of examples won that makes it largest. That share is searched where the count of those won leaves it open.
    """
    if margin < 0 or lost == n:
        return 1.0
    if margin >= 1:
        return LEFT_OUT  # not all of them were lost
    seen = float(_statistic(np.array(lost), np.array(won), n, margin))
    low = special.betaincinv(won, n - won + 1, LEFT_OUT / 2) if won else 0.0
    high = special.betaincinv(won + 1, n - won, 1 - LEFT_OUT / 2) if won < n else 1.0
    gained = np.linspace(min(low, (1 - margin) / 2), min(high, (1 - margin) / 2), GRID)[:, None]
    first, last = _range(n, float(gained[0, 0]) + margin)[0], _range(n, float(gained[-1, 0]) + margin)[1]
    counts = np.arange(first, last + 1)
    least = _least_won(counts, n, margin, seen)
    # lost examples are binomial; those won, among the others, are too
    chance = np.exp(_log_binomial(counts, n, gained + margin))
    others = np.clip(gained / np.maximum(1 - gained - margin, 1e-300), 0.0, 1.0)
    enough = np.where(least > 0, special.bdtrc(np.maximum(least - 1, 0), n - counts, others), 1.0)
    enough = np.where(least > n - counts, 0.0, enough)
    return float(min(1.0, (chance * enough).sum(axis=1).max() + 2 * TAIL + LEFT_OUT))


def _statistic(lost: np.ndarray, won: np.ndarray, n: int, margin: float) -> np.ndarray:
    """How far below the margin the loss is, in standard errors under the margin (Tango 1998); negative is below."""
    b = -lost - won + (2 * n - lost + won) * margin
    gained = (np.sqrt(b * b + 8 * n * won * margin * (1 - margin)) - b) / (4 * n)
    spread = n * (2 * gained + margin * (1 - margin))
    above = lost - won - n * margin
    return np.divide(above, np.sqrt(spread), out=np.zeros(np.shape(above)), where=spread > 0)


def _least_won(lost: np.ndarray, n: int, margin: float, seen: float) -> np.ndarray:
    """With so many lost, how many at least must have been won for a statistic of at most the one seen; n + 1: no number."""
    low, high = np.zeros_like(lost), n - lost + 1
    while (low < high).any():
        middle = (low + high) // 2
        inside = np.minimum(middle, n - lost)
        small = (_statistic(lost, inside, n, margin) <= seen + 1e-9) & (middle <= n - lost)
        going = low < high
        high = np.where(going & small, middle, high)
        low = np.where(going & ~small, middle + 1, low)
    return np.where(high > n - lost, n + 1, high)


def _range(n: int, share: float) -> tuple[int, int]:
    """Counts between which a binomial count lies but for the tails."""
    reach = math.sqrt(-2 * n * max(share * (1 - share), 1 / n) * math.log(TAIL)) - 2 * math.log(TAIL) / 3
    return max(0, math.floor(n * share - reach)), min(n, math.ceil(n * share + reach))


def _log_binomial(counts: np.ndarray, n: int, share: np.ndarray) -> np.ndarray:
    ways = special.gammaln(n + 1) - special.gammaln(counts + 1) - special.gammaln(n - counts + 1)
    return ways + special.xlogy(counts, share) + special.xlog1py(n - counts, -share)


# --- every other metric ---------------------------------------------------------------------------------------------


def _one_bad_example(measure: Metric, before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both with one example more: before it counts as the best one does, after as the worst one does.

    What belongs to the example and not to the model (its label, its number of tokens) is the same on both sides.
    """
    at = {name: measure.columns.index(name) for name in measure.columns}
    if measure.name in ("pearson", "spearman"):  # from one end of what is predicted to the other
        far = np.abs(before[:, at["label"]] - before[:, at["label"]].mean()).argmax()
        good, bad = before[far].copy(), after[far].copy()
        up = before[far, at["label"]] >= before[:, at["label"]].mean()
        good[at["prediction"]] = (np.max if up else np.min)(before[:, at["prediction"]])
        bad[at["prediction"]] = (np.min if up else np.max)(after[:, at["prediction"]])
    elif "tokens" in at:  # of ordinary length, at the lowest and the highest loss per token
        tokens = before[:, at["tokens"]]
        there, usual = tokens > 0, float(tokens.mean())
        good, bad = before[0].copy(), after[0].copy()
        good[at["tokens"]] = bad[at["tokens"]] = usual
        if there.any():
            good[at["loss"]] = usual * (before[there, at["loss"]] / tokens[there]).min()
            bad[at["loss"]] = usual * (after[there, at["loss"]] / tokens[there]).max()
    elif measure.name in ("f1", "matthews"):  # of the label for which that is worst
        best, worst = _worth(measure, before), _worth(measure, after)
        pairs = []
        for label in np.unique(before[:, at["label"]]):
            members = np.flatnonzero(before[:, at["label"]] == label)
            pairs.append((members[best[members].argmax()], members[worst[members].argmin()]))
        first, second = max(pairs, key=lambda pair: best[pair[0]] - worst[pair[1]])
        good, bad = before[first], after[second]
    else:
        good, bad = before[_worth(measure, before).argmax()], after[_worth(measure, after).argmin()].copy()
        for name in set(SAME_FOR_ALL) & set(at):
            bad[at[name]] = good[at[name]]
    return np.vstack([before, good]), np.vstack([after, bad])


def _worth(measure: Metric, rows: np.ndarray) -> np.ndarray:
    """By how much each example would improve the metric if it were there once more."""
    assert measure.statistics is not None
    assert measure.of_totals is not None
    each = measure.statistics(rows)
    totals = each.sum(axis=0)
    gain = measure.of_totals(totals + each) - measure.of_totals(totals)
    return gain if measure.higher_is_better else -gain


def check_promise(drop: float, alpha: float) -> None:
    """Refuse a drop or an alpha that no promise can be made about."""
    if not (isinstance(drop, int | float) and math.isfinite(drop) and drop >= 0):
        raise BadMeasure(f"A largest drop is a number of points, 0 or more, such as 1.0; I got {drop!r:.40}.")
    if not LEAST_ALPHA <= alpha <= 0.5:
        raise BadMeasure(f"alpha is how often a promise may be wrong, from {LEAST_ALPHA} to 0.5; I got {alpha!r:.40}.")
