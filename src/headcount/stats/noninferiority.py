"""Non-inferiority test: whether a plan loses less than so many points, for every metric. No torch.

One plan, before and after, on the same examples: is it shown to lose less than the largest drop that is allowed? What is
exact, what is bounded and what is approximate is said with every answer; `docs/trust.md` has how often each was wrong.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadMeasure
from . import betting_bound
from .correlation_influence import fall
from .metrics import DIFFERENCES, Metric
from .paired_shares import exact_p, fewest, upper_bound
from .paired_tests import SAME_FOR_ALL, grouped, resampled_differences

LEAST_ALPHA = 0.001  # well above what is left out
AVERAGED = ("loss", "perplexity", "mean", *DIFFERENCES)  # metrics of which one example may count for any amount
CAP = 20  # allowed drops that one example may count for, where no cap is given
RESAMPLES = 10_000
DRAWS = 200_000_000  # examples drawn for one plan at most: on very many, fewer resamples do


class NonInferiority(NamedTuple):
    """One plan against a largest drop; `damage` and `bound` are in points, `spread` is the standard error of the damage.

    With a `cap`, what was shown is about damages of which no example (no group) counts for more than that. A cap is in the
    unit of the sum that is averaged: for a loss per token, nats.
    """

    damage: float
    bound: float  # with probability 1 - alpha, the true damage is less than this
    p: float  # of a damage this small, or smaller, if the true one were the largest allowed
    spread: float
    test: str
    cap: float | None = None
    beyond: int = 0  # examples, or groups, that were worse or better by more than the cap
    fewest: int = 1  # examples below which nothing is shown, even if nothing changes


def noninferiority_test(
    measure: Metric,
    before: np.ndarray,
    after: np.ndarray,
    drop: float,
    *,
    alpha: float = 0.05,
    resamples: int | None = None,
    seed: int = 12345,
    clusters: np.ndarray | None = None,
    cap: float | None = None,
) -> NonInferiority:
    """The non-inferiority test: one plan against "it loses at least `drop` points", paired, one-sided.

    - "exact", where every example is right or wrong: the score test for the difference of two paired shares (Tango 1998),
      with the largest p-value over all shares of examples gained that the data leave open (Berger and Boos 1994).
    - "bounded", for losses, perplexities and other means: a betting test (see `betting_bound`), which holds at any number of
      examples for any distribution, as no example counts for more than a cap, either way. The cap is fixed before
      anything is looked at: `cap`, or 20 times the drop (times the usual number of tokens). The bootstrap must agree
      without a cap, so that a cap never makes a promise easier. `cap=math.inf` asks for the bootstrap alone.
    - "bootstrap", for all others: approximate. The percentile bootstrap (10,000 resamples, fewer of more than 20,000
      examples), with *one more example* that is as good before as the best one and as bad after as the worst: a resample
      can only draw what was seen, and this stands for what was not. For correlations it is the bootstrap of Student's t
      with more examples added (see `correlation_influence`).

    `clusters` (n,) has the number of every example's group where examples belong together. Groups are then what is drawn,
    bet on and capped, and shares of right examples are bounded by betting, as the exact test knows no groups.
    """
    check_promise(drop, alpha)
    check_cap(measure, cap)
    before, after = measure.checked(before, "The values before"), measure.checked(after, "The values after")
    if before.shape != after.shape:
        raise BadMeasure(f"There are {len(before)} examples before and {len(after)} after; measure both on the same.")
    groups = grouped(clusters, len(before))
    if groups is not None and groups.max() + 1 == len(groups):
        groups = None  # each is on its own
    right = _right_or_wrong(measure, before), _right_or_wrong(measure, after)
    if right[0] is not None and right[1] is not None:
        if groups is None:
            return _by_counts(measure, right[0], right[1], drop / measure.points, alpha)
        return _by_betting(measure, before, after, drop, alpha, groups, seed, cap=None)
    averaged = measure.name in AVERAGED
    resamples = resamples or max(2000, min(RESAMPLES, DRAWS // len(before)))
    if measure.name in ("pearson", "spearman"):
        return _by_influence(measure, before, after, drop, alpha, groups, seed, resamples)
    bootstrap = _by_bootstrap(measure, before, after, drop, alpha, groups, seed, resamples)
    if not averaged or cap == math.inf or measure.statistics is None:
        return bootstrap
    if not measure.statistics(before)[:, 1].any():
        return bootstrap
    capped = _by_betting(
        measure, before, after, drop, alpha, groups, seed, cap or _usual_cap(measure, before, drop, groups)
    )
    return capped._replace(
        bound=max(capped.bound, bootstrap.bound), p=max(capped.p, bootstrap.p), spread=bootstrap.spread
    )


# --- right or wrong -------------------------------------------------------------------------------------------------


def _right_or_wrong(measure: Metric, rows: np.ndarray) -> np.ndarray | None:
    """1 for each example that counts as good and 0 for the others; None if the metric is not a share of examples."""
    values = measure.per_example(rows)
    if values is None or measure.statistics is None:
        return None
    if not np.isin(values, (0.0, 1.0)).all() or (measure.statistics(rows)[:, 1] != 1).any():
        return None
    return values if measure.higher_is_better else 1 - values


def _by_counts(measure: Metric, was: np.ndarray, now: np.ndarray, margin: float, alpha: float) -> NonInferiority:
    n, lost, won = len(was), int((was > now).sum()), int((now > was).sum())
    damage = (lost - won) / n
    # half an example more on each side, so that nothing seen is not taken for no spread
    share, gain = (lost + 0.5) / n, (won + 0.5) / n
    spread = math.sqrt(max(0.0, share + gain - (share - gain) ** 2) / n)
    p = exact_p(lost, won, n, margin)
    bound = upper_bound(lost, won, n, alpha)
    estimates = damage * measure.points, bound * measure.points, p, spread * measure.points
    return NonInferiority(*estimates, "exact", fewest=fewest(margin, alpha))


# --- means ----------------------------------------------------------------------------------------------------------


def _by_betting(
    measure: Metric,
    before: np.ndarray,
    after: np.ndarray,
    drop: float,
    alpha: float,
    groups: np.ndarray | None,
    seed: int,
    cap: float | None,
) -> NonInferiority:
    """Damages that are less than the drop, on average and none counted for more than the cap: see `betting_bound`.

    Without a cap every example must be right or wrong: then none counts for more than one, and no group for more than it
    has examples.
    """
    worse, weights = _sums(measure, before, after, groups)
    n, value = len(worse), measure.value(before)
    logs = measure.name == "perplexity"  # the exponential of a mean
    margin = math.log1p(drop / value) if logs else drop / measure.points
    most = float(weights.max()) if cap is None else cap
    counted = np.clip(worse, -most, most)
    order = np.random.default_rng(seed).permutation(n)  # of bets: examples may lie sorted, and bets learn as they go
    counted, weights = counted[order], weights[order]
    p = betting_bound.p_value(counted, weights, margin, most, alpha)
    bound = betting_bound.largest_open(counted, weights, most, alpha)
    # the largest margin that is open and the test at this one are to agree, though the money is not quite monotone
    bound = min(bound, margin) if p <= alpha else max(bound, margin)
    spread = float((counted - counted.sum() / weights.sum() * weights).std() / weights.mean() / math.sqrt(n))
    if logs:
        bound, spread = value * math.expm1(bound), value * spread
    damage = (measure.value(after) - value) * (-measure.points if measure.higher_is_better else measure.points)
    return NonInferiority(
        damage=float(damage),
        bound=bound if logs else bound * measure.points,
        p=p,
        spread=spread if logs else spread * measure.points,
        test="bounded",
        cap=cap,
        beyond=int((np.abs(worse) > most).sum()),
        fewest=math.ceil(betting_bound.fewest(margin, float(weights.mean()), most, alpha) * len(before) / n),
    )


def _sums(
    measure: Metric, before: np.ndarray, after: np.ndarray, groups: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """By how much each example, or group, is worse in the sum that is averaged, and its weight in it (1, or tokens)."""
    assert measure.statistics is not None
    was, now = measure.statistics(before), measure.statistics(after)
    worse, weights = (was - now if measure.higher_is_better else now - was)[:, 0], was[:, 1]
    if groups is None:
        return worse, weights
    return np.bincount(groups, weights=worse), np.bincount(groups, weights=weights)


def _usual_cap(measure: Metric, before: np.ndarray, drop: float, groups: np.ndarray | None) -> float:
    """What one example, or group, may count for where nothing is said: so many times the drop, at its usual weight.

    How long examples are is known before any model is run. It is taken to one digit, which is the same for nearly every
    sample of the same kind, so that the cap does not move with the examples that happened to be drawn.
    """
    if drop == 0:
        raise BadMeasure(
            f"A largest drop of 0 in {measure.name} leaves nothing that one example may count for; allow a drop above 0, "
            "or give cap=."
        )
    margin = math.log1p(drop / measure.value(before)) if measure.name == "perplexity" else drop / measure.points
    usual = float(f"{_sums(measure, before, before, groups)[1].mean():.0e}")
    return float(f"{CAP * margin * usual:.2g}")  # as it is printed


# --- every other metric ---------------------------------------------------------------------------------------------


def _by_influence(
    measure: Metric,
    before: np.ndarray,
    after: np.ndarray,
    drop: float,
    alpha: float,
    groups: np.ndarray | None,
    seed: int,
    resamples: int,
) -> NonInferiority:
    """A correlation that falls by less than the drop: see `correlation_influence`; approximate."""
    label, guess = measure.columns.index("label"), measure.columns.index("prediction")
    options: dict[str, Any] = {"alpha": alpha, "groups": groups, "resamples": resamples, "seed": seed}
    rows, points = (before[:, label], before[:, guess], after[:, guess]), measure.points
    p, bound, spread = fall(*rows, drop / points, ranked=measure.name == "spearman", **options)
    damage = measure.value(before) - measure.value(after)
    return NonInferiority(damage * points, bound * points, p, spread * points, "bootstrap")


def _by_bootstrap(
    measure: Metric,
    before: np.ndarray,
    after: np.ndarray,
    drop: float,
    alpha: float,
    groups: np.ndarray | None,
    seed: int,
    resamples: int,
) -> NonInferiority:
    """Damages of resamples that are less than the drop, with one bad example more, or a group of them; approximate."""
    sign = -measure.points if measure.higher_is_better else measure.points
    damage = sign * (measure.value(after) - measure.value(before))
    good, bad = _one_bad_example(measure, before, after)
    extra_group = _one_more_group(groups, len(before))
    before, after = np.vstack([before, *[good] * extra_group.size]), np.vstack([after, *[bad] * extra_group.size])
    options: dict[str, Any] = {"resamples": resamples, "seed": seed, "clusters": extra_group.groups}
    drawn = sign * resampled_differences(measure, before, after[None], **options)[0]
    p = (1 + int((drawn >= drop).sum())) / (1 + resamples)
    return NonInferiority(float(damage), float(np.quantile(drawn, 1 - alpha)), p, float(drawn.std()), "bootstrap")


class _OneMore(NamedTuple):
    """What is added to stand for what was not seen: so many examples, and the groups of all with them."""

    size: int
    groups: np.ndarray | None


def _one_more_group(groups: np.ndarray | None, n: int) -> _OneMore:
    """One more example, or where examples are in groups, one more group of ordinary size."""
    if groups is None:
        return _OneMore(1, None)
    many = int(groups.max()) + 1
    size = round(n / many)
    return _OneMore(size, np.append(groups, [many] * size))


def _one_bad_example(measure: Metric, before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An example to add, before and after: before it counts as the best one does, after as the worst one does.

    What belongs to the example and not to the model (its label, its number of tokens) is the same on both sides.
    """
    at = {name: measure.columns.index(name) for name in measure.columns}
    if "tokens" in at:  # of ordinary length, at the lowest and the highest loss per token
        tokens = before[:, at["tokens"]]
        has_tokens, usual = tokens > 0, float(tokens.mean())
        good, bad = before[0].copy(), after[0].copy()
        good[at["tokens"]] = bad[at["tokens"]] = usual
        if has_tokens.any():
            good[at["loss"]] = usual * (before[has_tokens, at["loss"]] / tokens[has_tokens]).min()
            bad[at["loss"]] = usual * (after[has_tokens, at["loss"]] / tokens[has_tokens]).max()
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
    return good, bad


def _worth(measure: Metric, rows: np.ndarray) -> np.ndarray:
    """By how much each example would improve the metric if it were there once more."""
    assert measure.statistics is not None
    assert measure.of_totals is not None
    statistics = measure.statistics(rows)
    totals = statistics.sum(axis=0)
    gain = measure.of_totals(totals + statistics) - measure.of_totals(totals)
    return gain if measure.higher_is_better else -gain


def check_cap(measure: Metric, cap: float | None) -> None:
    """Refuse a cap that is no amount, or of a metric in which no example can count for more than another."""
    if cap is None:
        return
    if not cap > 0:
        raise BadMeasure(f"A cap is what one example may count for at most, a number above 0; I got {cap!r:.40}.")
    if measure.name not in AVERAGED:
        raise BadMeasure(
            f"A cap is for {', '.join(AVERAGED)}; a promise about {measure.name} has none: leave it out, or take another metric."
        )


def check_promise(drop: float, alpha: float) -> None:
    """Refuse a drop or an alpha that no promise can be made about."""
    if not (isinstance(drop, int | float) and math.isfinite(drop) and drop >= 0):
        raise BadMeasure(f"A largest drop is a number of points, 0 or more, such as 1.0; I got {drop!r:.40}.")
    if not LEAST_ALPHA <= alpha <= 0.5:
        raise BadMeasure(f"alpha is how often a promise may be wrong, from {LEAST_ALPHA} to 0.5; I got {alpha!r:.40}.")
