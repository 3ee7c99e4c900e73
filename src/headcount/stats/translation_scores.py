"""BLEU and chrF as functions of sums over translations: what is counted of each, by sacreBLEU, and the scores of the sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import BadMeasure

BLEU_ORDER = 4
BLEU_COLUMNS = (
    "hypothesis_length",
    "reference_length",
    *(f"correct{order}" for order in range(1, BLEU_ORDER + 1)),
    *(f"total{order}" for order in range(1, BLEU_ORDER + 1)),
)


def chrf_columns(char_order: int = 6, word_order: int = 0) -> tuple[str, ...]:
    """The columns of chrF rows: n-grams of the hypothesis, of the reference, and in both, for every order."""
    orders = [f"char{n}" for n in range(1, char_order + 1)] + [f"word{n}" for n in range(1, word_order + 1)]
    return tuple(f"{source}_{order}" for order in orders for source in ("hypothesis", "reference", "matching"))


def translation_rows(
    name: str, hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]], **options: Any
) -> np.ndarray:
    """Rows of `bleu` or `chrf` for translations and their references, one or several per example; float64.

    Counted by sacreBLEU (Post, 2018), so that `metric(name).value(rows)` is its corpus score. Options are those of
    sacreBLEU that change what is counted: tokenize, lowercase, trg_lang, force for bleu; char_order, word_order (2 is
    chrF++), lowercase, whitespace for chrf.
    """
    if len(hypotheses) != len(references):
        raise BadMeasure(
            f"There are {len(hypotheses)} translations and {len(references)} references; give one or several "
            "references for every translation."
        )
    scorer = _scorer(name, tuple(sorted(options.items())))
    lists = [[reference] if isinstance(reference, str) else list(reference) for reference in references]
    if not all(lists):
        raise BadMeasure(
            f"Example {[not texts for texts in lists].index(True)} has no reference; give it at least one."
        )
    # sacreBLEU wants the first reference of every example, then the second, with None where there is none
    most = max(map(len, lists), default=1)
    streams = [[texts[number] if number < len(texts) else None for texts in lists] for number in range(most)]
    width = len(BLEU_COLUMNS) if name == "bleu" else 3 * scorer.order
    return np.array(scorer._extract_corpus_statistics(list(hypotheses), streams), np.float64).reshape(-1, width)


def translation_signature(name: str, references: int = 1, **options: Any) -> str:
    """sacreBLEU's own signature of the score, to be printed next to it."""
    scorer = _scorer(name, tuple(sorted(options.items())))
    scorer.num_refs = references
    return str(scorer.get_signature())


_COUNTING = {
    "bleu": ("tokenize", "lowercase", "trg_lang", "force"),
    "chrf": ("char_order", "word_order", "lowercase", "whitespace"),
}


@lru_cache(maxsize=32)
def _scorer(name: str, options: tuple[tuple[str, Any], ...]) -> Any:
    if name not in _COUNTING:
        raise BadMeasure(f"Translations are measured by bleu or chrf; I got {name!r:.60}.")
    strange = [option for option, _ in options if option not in _COUNTING[name]]
    if strange:
        raise BadMeasure(f"{name} takes no option {strange[0]!r:.60}; choose among {', '.join(_COUNTING[name])}.")
    from sacrebleu.metrics import BLEU, CHRF

    tokenize = dict(options).get("tokenize")
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise BadMeasure(f"bleu has no tokenizer {tokenize!r:.60}; choose among {', '.join(BLEU.TOKENIZERS)}.")
    return (BLEU if name == "bleu" else CHRF)(**dict(options))


def bleu(totals: np.ndarray) -> np.ndarray:
    """sacreBLEU's corpus BLEU with its default smoothing ("exp"), to the last bit."""
    length, wanted = totals[..., 0], totals[..., 1]
    correct, total = totals[..., 2 : 2 + BLEU_ORDER], totals[..., 2 + BLEU_ORDER :]
    missed = (correct == 0) & (total > 0)
    smoothed = divided(np.asarray(100.0), 2.0 ** missed.cumsum(axis=-1) * total)
    precisions = np.where(missed, smoothed, divided(100.0 * correct, total))
    # math, not numpy: the two differ in the last bit on some processors, and sacreBLEU uses math
    logs = _by_math(lambda p: math.log(p) if p else -math.inf, precisions).reshape(-1, BLEU_ORDER).tolist()
    means = np.array([sum(four) / BLEU_ORDER for four in logs]).reshape(length.shape)
    brevity = np.where(length < wanted, np.where(length > 0, 1 - divided(wanted, length), -math.inf), 0.0)
    return np.where(correct.any(axis=-1), _by_math(math.exp, brevity) * _by_math(math.exp, means), 0.0)


def _by_math(function: Callable[[float], float], values: np.ndarray) -> np.ndarray:
    return np.fromiter(map(function, values.ravel().tolist()), np.float64, values.size).reshape(values.shape)


def chrf(totals: np.ndarray) -> np.ndarray:
    """sacreBLEU's corpus chrF with beta 2, averaged over the orders that occur on both sides."""
    factor = 4
    precision, recall, orders = (np.zeros(totals.shape[:-1]) for _ in range(3))
    for order in range(0, totals.shape[-1], 3):
        hypothesis, reference, matching = np.moveaxis(totals[..., order : order + 3], -1, 0)
        in_both = (hypothesis > 0) & (reference > 0)
        precision += np.where(in_both, divided(matching, hypothesis), 0.0)
        recall += np.where(in_both, divided(matching, reference), 0.0)
        orders += in_both
    precision, recall = divided(precision, orders), divided(recall, orders)
    return 100 * divided((1 + factor) * precision * recall, factor * precision + recall)


def divided(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Quotients, 0.0 where the divisor is zero."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below != 0)
