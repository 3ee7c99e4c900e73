"""Which word of a sentence each word of its translation stands for, learned from the sentence pairs alone. No torch.

IBM Model 1 (Brown et al. 1993) with the prior of Dyer, Chahuneau and Smith 2013, *A Simple, Fast, and Effective
Reparameterization of IBM Model 2*: a word prefers partners at about its own place in the sentence, or has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from ...errors import BadData

TENSION = 4.0  # how strongly words keep to the diagonal: a partner at the other end of the sentence is exp(4) times less likely
NULL = 0.08  # how likely a word is to have no partner, before anything is known about it
Sentences = Sequence[Sequence[str]]
Links = frozenset[tuple[int, int]]


class OneWay(NamedTuple):
    """What was learned about one direction: how each target word comes about from the words of the source."""

    best: list[np.ndarray]  # per sentence pair: for each target word its most probable source word, -1 for none
    log_likelihoods: list[float]  # of the targets given the sources, before each round and after the last
    words: tuple[list[str], list[str]]  # source words and, as the last of them, "" for no word; target words
    pairs: np.ndarray  # (pairs, 2): source word and target word that occur together
    probability: np.ndarray  # (pairs,): of the target word given the source word


class _Cells(NamedTuple):
    """Every target word beside every word of its source sentence, and beside no word, as flat arrays."""

    starts: np.ndarray  # (target words,): its first cell
    row: np.ndarray  # (cells,): the target word
    column: np.ndarray  # (cells,): the place of the source word; the length of the sentence for no word
    pair: np.ndarray  # (cells,): which pair of words
    prior: np.ndarray  # (cells,): how likely this source word is, by its place; sums to one over a row


def align(sources: Sentences, targets: Sentences, *, rounds: int = 5) -> list[Links]:
    """Links (target word, source word) of parallel sentences: precise rather than many, the same ones each time.

    Both directions are learned, and only the links that both find stay: at most one per word. Upper and lower case do not matter.
    """
    forward = one_way(sources, targets, rounds=rounds).best
    back = one_way(targets, sources, rounds=rounds).best
    return [
        frozenset((t, s) for t, s in enumerate(chosen.tolist()) if s >= 0 and mirrored[s] == t)
        for chosen, mirrored in zip(forward, back, strict=True)
    ]


def one_way(
    sources: Sentences, targets: Sentences, *, rounds: int = 5, tension: float = TENSION, null: float = NULL
) -> OneWay:
    """EM for how target words come about from source words; without `tension` all places are alike (IBM Model 1)."""
    if len(sources) != len(targets):
        raise BadData(
            f"There are {len(sources)} source sentences and {len(targets)} translations; "
            "word alignments need one translation for each sentence, in the same order."
        )
    source_words, source_ids, source_lengths = _numbered(sources)
    target_words, target_ids, target_lengths = _numbered(targets)
    source_words.append("")
    cells, pairs = _cells(source_ids, source_lengths, target_ids, target_lengths, len(source_words) - 1, tension, null)
    pair_sources = pairs[:, 0]
    probability = np.full(len(pairs), 1.0 / max(1, len(target_words)))
    log_likelihoods = []
    for _ in range(rounds):
        posterior, log_likelihood = _expected(cells, probability)
        log_likelihoods.append(log_likelihood)
        counts = np.bincount(cells.pair, posterior, len(pairs))
        total = np.bincount(pair_sources, counts, len(source_words))
        # a source word that explains nothing at all (its counts underflow) keeps what it had
        probability = np.where(total[pair_sources] > 0, counts / np.maximum(total[pair_sources], 1e-300), probability)
    posterior, log_likelihood = _expected(cells, probability)
    log_likelihoods.append(log_likelihood)
    best = _best(cells, posterior, np.repeat(source_lengths, target_lengths))
    split = np.split(best, np.cumsum(target_lengths)[:-1]) if len(targets) else []
    return OneWay(split, log_likelihoods, (source_words, target_words), pairs, probability)


def _numbered(sentences: Sentences) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The different words in the order of their first occurrence, the number of each word, and the sentences' lengths."""
    numbers: dict[str, int] = {}
    flat = (numbers.setdefault(word.casefold(), len(numbers)) for word in chain.from_iterable(sentences))
    ids = np.fromiter(flat, np.int64)
    lengths = np.fromiter((len(sentence) for sentence in sentences), np.int64, len(sentences))
    return list(numbers), ids, lengths


def _cells(
    source_ids: np.ndarray,
    source_lengths: np.ndarray,
    target_ids: np.ndarray,
    target_lengths: np.ndarray,
    no_word: int,
    tension: float,
    null: float,
) -> tuple[_Cells, np.ndarray]:
    """All co-occurrences, and the different pairs of words (source, target) among them."""
    with_null = np.insert(source_ids, np.cumsum(source_lengths), no_word)  # each sentence ends with no word
    begins = np.cumsum(source_lengths + 1) - (source_lengths + 1)
    sentence = np.repeat(np.arange(len(target_lengths)), target_lengths)  # of each target word
    width = source_lengths[sentence] + 1
    starts = np.cumsum(width) - width
    row = np.repeat(np.arange(len(target_ids), dtype=np.int32), width)
    column = (np.arange(width.sum()) - starts[row]).astype(np.int32)
    keys = with_null[begins[sentence][row] + column] * (target_ids.max(initial=0) + 1) + target_ids[row]
    unique_keys, pair = np.unique(keys, return_inverse=True)
    pairs = np.stack(np.divmod(unique_keys, target_ids.max(initial=0) + 1), 1)
    place = np.arange(len(target_ids)) - (np.cumsum(target_lengths) - target_lengths)[sentence]
    target_place = (place + 1) / target_lengths[sentence]
    source_place = (column + 1) / np.maximum(width - 1, 1)[row]
    weight = np.exp(-tension * np.abs(source_place - target_place[row]))
    is_null = column == width[row] - 1
    weight[is_null] = 0.0
    sums = np.add.reduceat(weight, starts) if len(starts) else weight
    prior = (1 - null) * weight / np.maximum(sums, 1e-300)[row]
    prior[is_null] = np.where(width > 1, null, 1.0)  # one cell per row, in the order of the rows
    return _Cells(starts, row, column, pair.astype(np.int32), prior), pairs


def _expected(cells: _Cells, probability: np.ndarray) -> tuple[np.ndarray, float]:
    """How probable each cell is as the origin of its target word, and the log-likelihood of all target words."""
    joint = cells.prior * probability[cells.pair]
    sums = np.add.reduceat(joint, cells.starts) if len(cells.starts) else joint
    sums = np.maximum(sums, 1e-300)
    return joint / sums[cells.row], float(np.log(sums).sum())


def _best(cells: _Cells, posterior: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """For each target word the first place of the highest posterior, -1 if that is no word."""
    if not len(cells.starts):
        return np.zeros(0, np.int64)
    highest = np.maximum.reduceat(posterior, cells.starts)
    at = np.flatnonzero(posterior == highest[cells.row])
    first = at[np.unique(cells.row[at], return_index=True)[1]]
    column = cells.column[first].astype(np.int64)
    return np.where(column == lengths, -1, column)
