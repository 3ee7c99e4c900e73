"""A bound on a mean by betting: it holds at any number of examples, whatever their distribution, if none is above a cap.

Somebody claims that the mean damage is at least `margin`. We hold one unit of money and stake some of it on every example,
one after the other: with a bet b the money is multiplied by 1 - b (damage - margin), never less than zero as long as b is
below 1 / cap. If the claim is true no way of betting wins on average, and the chance that the money ever grows to 1 / alpha
is at most alpha (Ville 1939). So the most that was ever held, turned upside down, is a p-value. A bet may depend on all
examples before it and on nothing after (Waudby-Smith and Ramdas 2024, *Estimating means of bounded random variables by
betting*). How well one bets decides how much is shown, never how often it is wrong. No torch.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from scipy import special

LARGEST = 0.9  # of the largest bet with which nothing can be lost but all: one example at the cap leaves a tenth
BLOCKS = 50  # bets are thought over so many times at most
PRIOR = 5  # examples' worth of the spread that is assumed before any is seen
PLACES = 33  # searched at a time for the bound
ROUNDS = 3  # of that search, each within one gap of the last


def most_held(damages: np.ndarray, weights: np.ndarray, margins: np.ndarray, cap: float, alpha: float) -> np.ndarray:
    """The logarithm of the most money ever held, (k,), betting against each of k margins, on examples in this order.

    Damages are (n,), or (k, n): some for each margin. The claim is that they are at least `margin` times the weights, on
    average. Damages are at most `cap`, weights (a number of tokens, or 1) not negative. The bet is the one that would
    turn the money into the final yes or no of a z-test at level alpha, were the examples normal: it hedges that test, as
    options are hedged, and so shows nearly as much on many examples. What is not normal costs power, and not validity.
    """
    damages = np.atleast_2d(damages)
    n = damages.shape[1]
    step = -math.log(alpha)
    money, most, total, squares = (np.zeros(len(margins)) for _ in range(4))
    # the widest spread with that mean and cap: a few at the cap, the others at zero
    assumed = PRIOR * margins * weights.mean() * cap
    edges = np.linspace(0, n, min(n, BLOCKS) + 1).astype(int)
    for first, last in pairwise(edges.tolist()):
        variance = (assumed + squares - total**2 / max(first, 1)) / (first + PRIOR)
        goal = step * (1 + np.floor(most / step))  # 1 / alpha, and once that is reached 1 / alpha squared, and so on
        chance = np.clip(np.exp(money - goal), 1e-6, 1 - 1e-12)  # of reaching it, were all fair
        slope = np.exp(-(special.ndtri(chance) ** 2) / 2) / math.sqrt(2 * math.pi) / chance
        bets = np.minimum(slope / np.sqrt((n - first) * np.maximum(variance, 1e-300)), LARGEST / cap)
        over = damages[:, first:last] - margins[:, None] * weights[None, first:last]  # (k, examples of the block)
        path = money[:, None] + np.log1p(-bets[:, None] * over).cumsum(axis=1)
        most = np.maximum(most, path.max(axis=1))
        money = path[:, -1]
        total += over.sum(axis=1)
        squares += (over**2).sum(axis=1)
    return most


def p_value(damages: np.ndarray, weights: np.ndarray, margin: float, cap: float, alpha: float) -> float:
    """The p-value of "the damages are at least `margin` times the weights, on average"; bets aim at level alpha."""
    most = most_held(damages, weights, np.array([margin]), cap, alpha)[0]
    return math.exp(-most)


def largest_open(damages: np.ndarray, weights: np.ndarray, cap: float, alpha: float) -> float:
    """The largest margin, 0 or more, that cannot be refuted at level alpha: the test, inverted."""
    low, high = max(0.0, float(damages.sum() / weights.sum())), cap * len(damages) / float(weights.sum())
    for _ in range(ROUNDS):
        margins = np.linspace(low, high, PLACES)
        still = np.flatnonzero(most_held(damages, weights, margins, cap, alpha) < -math.log(alpha))
        if not len(still):
            return low
        if still[-1] == PLACES - 1:
            return high
        low, high = float(margins[still[-1]]), float(margins[still[-1] + 1])
    return high


def fewest(margin: float, weight: float, cap: float, alpha: float) -> int:
    """Examples below which no damage of less than the margin is shown, even if there is none; weight: of an example."""
    return math.ceil(-math.log(alpha) / math.log1p(LARGEST * margin * weight / cap)) if margin > 0 else 1
