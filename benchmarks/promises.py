"""How often a promise is wrong, and how often it can be made: every test of `guarantee` on examples whose truth is known.

    python benchmarks/promises.py --quick     # a look, about a minute
    python benchmarks/promises.py             # the table of docs/trust.md

Each row is a kind of examples and a test at level alpha, each cell two numbers in percent. The first is how often a loss
below the drop was "shown" where the true loss is exactly the drop, with its standard error; alpha is allowed. The second is
how often it was shown where the true loss is half of the drop. Where a test has a cap the true loss is that of capped
damages; "read without it" takes the true loss without a cap, which is not what the sentence says.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from headcount.stats.guarantee import no_worse
from headcount.stats.metrics import Metric, metric

Pair = tuple[np.ndarray, np.ndarray]
ACCURACY, MEAN, TOKENS = metric("accuracy"), metric("mean", higher_is_better=False), metric("loss")
PERPLEXITY, BLEU = metric("perplexity"), metric("bleu")
NS = (100, 200, 500, 1000, 2000)  # numbers of examples
TRIED_ON = 500  # examples on which plan after plan is tried
MANY = 1_000_000  # examples from which a truth is taken that has no formula


@dataclass(frozen=True)
class Case:
    """Examples of one kind, (rows before, rows after) from a generator and a number; `loss`: the true one, in points."""

    shape: str
    test: str
    measure: Metric
    draw: Callable[[np.random.Generator, int], Pair]
    loss: float
    ns: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()
    clusters: Callable[[int], np.ndarray] | None = None


# --- accuracy -------------------------------------------------------------------------------------------------------


def accuracies(rng: np.random.Generator, n: int, lost: float = 0.035, won: float = 0.015) -> Pair:
    """Two models that disagree on five examples in a hundred."""
    luck = rng.random(n)
    was, now = luck >= won, (luck < won) | (luck >= won + lost)
    return _rows(was), _rows(now)


def copies(rng: np.random.Generator, n: int, size: int = 5) -> Pair:
    """Each outcome there five times over."""
    was, now = accuracies(rng, -(-n // size))
    return was.repeat(size, axis=0)[:n], now.repeat(size, axis=0)[:n]


def groups_of(size: int, n: int) -> np.ndarray:
    """Groups of so many examples, one after the other."""
    return np.arange(n) // size


def _rows(right: np.ndarray) -> np.ndarray:
    return np.stack([np.ones(len(right)), right, np.zeros(len(right))], axis=1)


# --- losses ---------------------------------------------------------------------------------------------------------


def light(luck: np.ndarray) -> np.ndarray:
    """Light tails: normal damages, mean 0.05, deviation 0.3."""
    return 0.05 + 0.3 * special.ndtri(luck)


def exponential(luck: np.ndarray) -> np.ndarray:
    """5 % hurt, exponential."""
    hurt = np.clip((luck - 0.95) / 0.05, 0, 1 - 1e-12)
    return -np.log1p(-hurt)


def lognormal(luck: np.ndarray) -> np.ndarray:
    """2 % hurt, lognormal."""
    hurt = np.clip((luck - 0.98) / 0.02, 1e-300, 1 - 1e-12)
    return np.where(luck > 0.98, np.exp(1.5 * special.ndtri(hurt)), 0.0)


def twenty(luck: np.ndarray) -> np.ndarray:
    """1 % hurt by 20 nats."""
    return np.where(luck > 0.99, 20.0, 0.0)


def true_mean(damages: Callable[[np.ndarray], np.ndarray], cap: float = math.inf) -> float:
    """The mean of damages, capped, over evenly spaced luck, with more of it where damages are large."""
    edges = 1 - np.append(np.geomspace(1, 1e-13, 400_001), 0.0)
    middle = (edges[1:] + edges[:-1]) / 2
    return float((np.clip(damages(middle), -cap, cap) * np.diff(edges)).sum())


def hurt_by(damages: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator, n: int) -> Pair:
    """Losses before, and after with these damages."""
    was = rng.exponential(0.3, (n, 1))
    return was, was + damages(rng.random((n, 1)))


def tokens(rng: np.random.Generator, n: int) -> Pair:
    """Losses of texts of 5 to 199 tokens: 0.05 more per token on average, and for long texts more than for short ones."""
    lengths = rng.integers(5, 200, n).astype(float)
    was = lengths * rng.gamma(8.0, 3.0 / 8.0, n)
    more = lengths**2 * rng.exponential(1.0, n) * 0.05 / LENGTH_RATIO
    return np.stack([was, lengths], axis=1), np.stack([was + more, lengths], axis=1)


LENGTHS = np.arange(5, 200)
LENGTH_RATIO = (LENGTHS.astype(float) ** 2).mean() / LENGTHS.mean()
CAPS = {light: 1.0, exponential: 3.0, lognormal: 20.0, twenty: 20.0}


def losses(ns: tuple[int, ...]) -> list[Case]:
    """Each shape by the bootstrap, by betting at the limit of its cap, and by betting read without its cap."""
    cases = []
    for damages, cap in CAPS.items():
        name, draw = f"Loss, {str(damages.__doc__).rstrip('.').lower()}", _Hurt(damages)
        whole, capped = true_mean(damages), true_mean(damages, cap)
        cases.append(Case(name, "approximate: bootstrap alone", MEAN, draw, whole, ns, (("cap", math.inf),)))
        cases.append(Case(name, f"bounded, cap {cap:g}", MEAN, draw, capped, ns, (("cap", cap),)))
        cases.append(Case(name, "bounded, usual cap, read without it", MEAN, draw, whole, ns))
    long = "Loss per token, long texts hurt more"
    cases.append(Case(long, "bounded, usual cap", TOKENS, tokens, 0.05, ns))
    cases.append(Case(long, "bounded, as perplexity", PERPLEXITY, tokens, math.exp(3.05) - math.exp(3.0), ns))
    return cases


@dataclass(frozen=True)
class _Hurt:
    damages: Callable[[np.ndarray], np.ndarray]

    def __call__(self, rng: np.random.Generator, n: int) -> Pair:
        return hurt_by(self.damages, rng, n)


# --- correlations and translations ----------------------------------------------------------------------------------


def noisier(rng: np.random.Generator, n: int) -> Pair:
    """Normal noise."""
    labels, was = _predicted(rng, n)
    return _scored(labels, was), _scored(labels, was + 0.3 * rng.normal(size=n))


def flipped(rng: np.random.Generator, n: int) -> Pair:
    """3 % flipped far off."""
    labels, was = _predicted(rng, n)
    return _scored(labels, was), _scored(labels, np.where(rng.random(n) < 0.03, -1.5 * was, was))


def lost(rng: np.random.Generator, n: int) -> Pair:
    """1 % at either end, far out: rarer and worse than the test can stand."""
    labels, was = _predicted(rng, n)
    return _scored(labels, was), _scored(labels, np.where(rng.random(n) < 0.01, rng.choice([-5.0, 5.0], n), was))


def heavier(rng: np.random.Generator, n: int) -> Pair:
    """Heavy-tailed noise (t3)."""
    labels, was = _predicted(rng, n)
    return _scored(labels, was), _scored(labels, was + 0.25 * rng.standard_t(3, size=n))


def _predicted(rng: np.random.Generator, n: int) -> Pair:
    labels = rng.normal(size=n)
    return labels, labels + 0.5 * rng.normal(size=n)


def _scored(labels: np.ndarray, guesses: np.ndarray) -> np.ndarray:
    return np.stack([labels, guesses, np.zeros(len(labels))], axis=1)


def pearson_after(shape: Callable[..., Pair]) -> float:
    """Pearson's correlation after, by its formula: covariance with the labels over the root of both variances."""
    covariance, variance = {
        noisier: (1.0, 1.25 + 0.09),
        flipped: (0.97 - 0.03 * 1.5, 1.25 * (0.97 + 0.03 * 2.25)),
        lost: (0.99, 0.99 * 1.25 + 0.01 * 25),
        heavier: (1.0, 1.25 + 0.0625 * 3),
    }[shape]
    return covariance / math.sqrt(variance)


def correlations(ns: tuple[int, ...]) -> list[Case]:
    """Four shapes, Pearson's and Spearman's."""
    cases = []
    for shape in (noisier, flipped, heavier, lost):
        name = f"Correlation: {str(shape.__doc__).rstrip('.').partition(':')[0].lower()}"
        truth = 100 * (1 / math.sqrt(1.25) - pearson_after(shape))
        cases.append(Case(name, "approximate: Pearson", metric("pearson"), shape, truth, ns))
        spearman = metric("spearman")
        before, after = (spearman.value(rows) for rows in shape(np.random.default_rng(0), MANY))
        cases.append(Case(name, "approximate: Spearman", spearman, shape, 100 * (before - after), ns))
    return cases


def translations(rng: np.random.Generator, n: int) -> Pair:
    """Sentences of 8 to 30 words, of which one in fifty loses nearly all of its matches."""
    length = rng.integers(8, 31, n)
    share = rng.beta(8, 4, n)
    sides = []
    for hit in (np.ones(n), np.where(rng.random(n) < 0.02, 0.1, 1.0)):
        total = [length - order for order in range(4)]
        correct = [np.floor(one * (share * hit) ** (order + 1)) for order, one in enumerate(total)]
        sides.append(np.stack([length, length, *correct, *total], axis=1).astype(float))
    return sides[0], sides[1]


# --- the table ------------------------------------------------------------------------------------------------------


def all_cases() -> list[Case]:
    """Every row of the table but those of many tries."""
    some, few = (200, 500, 1000), (100, 200, 500, 2000)
    before, after = (BLEU.value(rows) for rows in translations(np.random.default_rng(0), MANY))
    five = "Accuracy, 5 copies of each outcome"
    return [
        Case("Accuracy, 5 % change sides", "exact", ACCURACY, accuracies, 2.0, (100, 500, 2000)),
        Case(five, "exact, groups not told", ACCURACY, copies, 2.0, (500, 1000, 2000)),
        Case(five, "bounded, by groups", ACCURACY, copies, 2.0, (500, 1000, 2000), (), _Groups(5)),
        *losses(few),
        *correlations(some),
        Case("BLEU, 2 % of sentences ruined", "approximate: bootstrap", BLEU, translations, before - after, some),
    ]


@dataclass(frozen=True)
class _Groups:
    size: int

    def __call__(self, n: int) -> np.ndarray:
        return groups_of(self.size, n)


def shares(case: Case, n: int, times: int, alpha: float, seed: int) -> tuple[float, float]:
    """How often it is shown where the true loss is the drop, and where it is half of the drop."""
    found = []
    for which, factor in enumerate((1.0, 2.0)):
        count = 0
        for number in range(times):
            rng = np.random.default_rng([seed, which, n, number])
            before, after = case.draw(rng, n)
            options: dict[str, Any] = {"resamples": 500, **dict(case.options)}
            if case.clusters is not None:
                options["clusters"] = case.clusters(n)
            shown = no_worse(case.measure, before, after, factor * case.loss, alpha=alpha, seed=number, **options)
            count += shown.p <= alpha
        found.append(count / times)
    return found[0], found[1]


def tries(times: int, alpha: float, seed: int, most: int = 20, n: int = TRIED_ON) -> tuple[float, float]:
    """How often one of up to 20 plans, all at the limit, is shown on the same examples: at alpha each, at alpha / 20 each."""
    wrong = np.zeros(2)
    for number in range(times):
        rng = np.random.default_rng([seed, number])
        was = rng.random(n) < 0.9
        p = []
        for _ in range(most):
            now = was & (rng.random(n) >= 0.03 / 0.9)
            p.append(no_worse(ACCURACY, _rows(was), _rows(now), 3.0, alpha=alpha / most).p)
        wrong += [min(p) <= alpha, min(p) <= alpha / most]
    return wrong[0] / times, wrong[1] / times


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions: a look")
    parser.add_argument("--times", type=int, help="repetitions of each number (400; 60 with --quick)")
    parser.add_argument("--alpha", type=float, default=0.05, help="how often a promise may be wrong")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    asked = parser.parse_args()
    times, alpha = asked.times or (60 if asked.quick else 400), asked.alpha
    cases = [case for case in all_cases() if asked.only in f"{case.shape}, {case.test}"]
    started = time.perf_counter()
    print(f"| examples | test | {' | '.join(f'n = {n:,}' for n in NS)} |\n|---|---{'|---' * len(NS)}|", flush=True)
    with ProcessPoolExecutor(asked.jobs) as pool:
        every = {(case, n): pool.submit(shares, case, n, times, alpha, asked.seed) for case in cases for n in case.ns}
        wanted = asked.only in "Accuracy, 20 tries on the same examples"
        last = pool.submit(tries, times, alpha, asked.seed) if wanted else None
        for case in cases:
            cells = [_cell(*every[case, n].result(), times) if n in case.ns else "" for n in NS]
            print(f"| {case.shape} | {case.test} | {' | '.join(cells)} |", flush=True)
        if last is not None:
            for name, wrong in zip(("alpha each", "alpha / 20 each"), last.result(), strict=True):
                cells = [_cell(wrong, None, times) if n == TRIED_ON else "" for n in NS]
                print(f"| Accuracy, 20 tries on the same examples | exact, {name} | {' | '.join(cells)} |")
    print(f"\n{times} repetitions, alpha {alpha:g}, seed {asked.seed}, {time.perf_counter() - started:.0f} seconds")


def _cell(wrong: float, shown: float | None, times: int) -> str:
    """How often it was wrong, with its standard error (at least that of one case), and how often it was shown; percent."""
    safe = min(max(wrong, 1 / times), 1 - 1 / times)
    error = f"{100 * wrong:.1f} ± {100 * math.sqrt(safe * (1 - safe) / times):.1f}"
    return error if shown is None else f"{error}, {100 * shown:.0f}"


if __name__ == "__main__":
    main()
