"""The exact test of two paired shares: that less than so much more was lost than won, at any number of examples. No torch.

Every example is right or wrong, before and after. Of n, some are lost (right, then wrong) and some won. The test is the
score test for the difference of two paired shares (Tango 1998), its p-value exact: the largest over all shares of
examples won that the data leave open (Berger and Boos 1994).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special

LEFT_OUT = 1e-4  # Berger and Boos (1994): how sure we are of the range searched for the share of examples gained
GRID = 48  # places searched in that range
TAIL = 1e-10  # probability of counts so far out that they are taken as speaking against us


@lru_cache(maxsize=4096)
def upper_bound(lost: int, won: int, n: int, alpha: float) -> float:
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
    observed = float(_statistic(np.array(lost), np.array(won), n, margin))
    low = special.betaincinv(won, n - won + 1, LEFT_OUT / 2) if won else 0.0
    high = special.betaincinv(won + 1, n - won, 1 - LEFT_OUT / 2) if won < n else 1.0
    gained = np.linspace(min(low, (1 - margin) / 2), min(high, (1 - margin) / 2), GRID)[:, None]
    first, last = _range(n, float(gained[0, 0]) + margin)[0], _range(n, float(gained[-1, 0]) + margin)[1]
    counts = np.arange(first, last + 1)
    least = _least_won(counts, n, margin, observed)
    # lost examples are binomial; those won, among the others, are too
    chance = np.exp(_log_binomial(counts, n, gained + margin))
    win_chance = np.clip(gained / np.maximum(1 - gained - margin, 1e-300), 0.0, 1.0)
    enough = np.where(least > 0, special.bdtrc(np.maximum(least - 1, 0), n - counts, win_chance), 1.0)
    enough = np.where(least > n - counts, 0.0, enough)
    return float(min(1.0, (chance * enough).sum(axis=1).max() + 2 * TAIL + LEFT_OUT))


def _statistic(lost: np.ndarray, won: np.ndarray, n: int, margin: float) -> np.ndarray:
    """How far below the margin the loss is, in standard errors under the margin (Tango 1998); negative is below."""
    b = -lost - won + (2 * n - lost + won) * margin
    gained = (np.sqrt(b * b + 8 * n * won * margin * (1 - margin)) - b) / (4 * n)
    spread = n * (2 * gained + margin * (1 - margin))
    above = lost - won - n * margin
    return np.divide(above, np.sqrt(spread), out=np.zeros(np.shape(above)), where=spread > 0)


def _least_won(lost: np.ndarray, n: int, margin: float, observed: float) -> np.ndarray:
    """With so many lost, how many at least must have been won for a statistic of at most the one seen; n + 1: no number."""
    low, high = np.zeros_like(lost), n - lost + 1
    while (low < high).any():
        middle = (low + high) // 2
        inside = np.minimum(middle, n - lost)
        small = (_statistic(lost, inside, n, margin) <= observed + 1e-9) & (middle <= n - lost)
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


def fewest(margin: float, alpha: float) -> int:
    """Examples below which no loss of less than the share `margin` can be shown, even if nothing at all changes."""
    return math.ceil(math.log(alpha - LEFT_OUT - 2 * TAIL) / math.log1p(-margin)) if 0 < margin < 1 else 1
