"""Word alignments: those of Model 1 written as loops, of a dictionary that is known, and never less likely."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from conftest import says

import headcount as hc
from headcount.data.sentences.word_alignment import NULL, OneWay, align, one_way
from headcount.errors import BadData

Corpus = tuple[list[list[str]], list[list[str]]]


def translated(count: int, seed: int, *, words: int = 40, extra: int = 0) -> tuple[Corpus, list[set[tuple[int, int]]]]:
    """Sentences of 2 to 9 different words, word for word translated in any order, and the links (target, source).

    With `extra`, each target holds so many words besides that stand for nothing, each one of three.
    """
    rng = np.random.default_rng(seed)
    sources, targets, links = [], [], []
    for _ in range(count):
        chosen = rng.choice(words, rng.integers(2, 10), replace=False)
        origin = [*range(len(chosen)), *[-1] * extra]
        order = rng.permutation(len(origin))
        sources.append([f"s{word}" for word in chosen])
        targets.append([f"t{chosen[o]}" if (o := origin[n]) >= 0 else f"x{rng.integers(3)}" for n in order])
        links.append({(place, origin[n]) for place, n in enumerate(order) if origin[n] >= 0})
    return (sources, targets), links


def looped(
    sources: list[list[str]], targets: list[list[str]], rounds: int, null: float
) -> dict[tuple[str, str], float]:
    """IBM Model 1 with a null word, as it is written down: t(target word | source word) after so many rounds."""
    size = len({word for target in targets for word in target})
    t: dict[tuple[str, str], float] = defaultdict(lambda: 1 / size)
    for _ in range(rounds):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        totals: dict[str, float] = defaultdict(float)
        for source, target in zip(sources, targets, strict=True):
            for f in target:
                weights = [(e, (1 - null) / len(source) * t[f, e]) for e in source] + [("", null * t[f, ""])]
                whole = sum(weight for _, weight in weights)
                for e, weight in weights:
                    counts[f, e] += weight / whole
                    totals[e] += weight / whole
        t = defaultdict(float, {(f, e): count / totals[e] for (f, e), count in counts.items()})
    return t


def table(way: OneWay) -> dict[tuple[str, str], float]:
    source_words, target_words = way.words
    return {
        (target_words[f], source_words[e]): p
        for (e, f), p in zip(way.pairs.tolist(), way.probability.tolist(), strict=True)
    }


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("null", [NULL, 0.3])
def test_without_the_diagonal_it_is_model_1(rounds: int, null: float) -> None:
    (sources, targets), _ = translated(30, 0, words=12, extra=1)
    sources[3] = [*sources[3], sources[3][0]]  # a word twice in a sentence
    way = one_way(sources, targets, rounds=rounds, tension=0.0, null=null)
    expected = looped(sources, targets, rounds, null)
    assert table(way).keys() == {
        (f, e) for pair in zip(sources, targets, strict=True) for e in [*pair[0], ""] for f in pair[1]
    }
    assert all(p == pytest.approx(expected[key], rel=1e-9, abs=1e-12) for key, p in table(way).items())
    for source, target, best in zip(sources, targets, way.best, strict=True):
        for f, place in zip(target, best.tolist(), strict=True):
            weights = [(1 - null) / len(source) * expected[f, e] for e in source] + [null * expected[f, ""]]
            assert weights[place] == pytest.approx(max(weights), rel=1e-9)  # -1 is the last: none


def test_its_log_likelihood_is_that_of_the_model() -> None:
    (sources, targets), _ = translated(12, 1)
    way = one_way(sources, targets, rounds=3, tension=2.0, null=0.1)
    t, expected = table(way), 0.0
    for source, target in zip(sources, targets, strict=True):
        for j, f in enumerate(target, 1):
            near = [math.exp(-2.0 * abs(i / len(source) - j / len(target))) for i in range(1, len(source) + 1)]
            parts = [0.9 * w / sum(near) * t[f, e] for w, e in zip(near, source, strict=True)]
            expected += math.log(sum(parts) + 0.1 * t[f, ""])
    assert way.log_likelihoods[-1] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("tension", [0.0, 4.0])
def test_no_round_makes_the_sentences_less_likely(tension: float) -> None:
    (sources, targets), _ = translated(200, 2, extra=1)
    found = one_way(sources, targets, rounds=12, tension=tension).log_likelihoods
    assert len(found) == 13
    assert all(after >= before - 1e-9 * abs(before) for before, after in pairwise(found))


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_a_dictionary_in_any_word_order(seed: int) -> None:
    (sources, targets), gold = translated(400, seed)
    found = align(sources, targets)
    right = sum(len(one & links) for one, links in zip(found, gold, strict=True))
    assert right >= 0.95 * sum(map(len, gold))
    assert right >= 0.98 * sum(map(len, found))


def test_words_that_stand_for_nothing_get_no_link() -> None:
    (sources, targets), gold = translated(400, 5, extra=1)
    found = align(sources, targets)
    linked = [target[t][0] for target, links in zip(targets, found, strict=True) for t, _ in links]
    assert linked.count("x") <= 0.05 * len(targets)
    assert sum(len(one & links) for one, links in zip(found, gold, strict=True)) >= 0.95 * sum(map(len, gold))


def test_both_directions_have_to_agree() -> None:
    (sources, targets), _ = translated(60, 6, words=25, extra=2)
    there, back = one_way(sources, targets).best, one_way(targets, sources).best
    for links, forth, home in zip(align(sources, targets), there, back, strict=True):
        assert links == {(t, s) for t, s in enumerate(forth) if s >= 0} & {(t, s) for s, t in enumerate(home) if t >= 0}
        assert len({t for t, _ in links}) == len({s for _, s in links}) == len(links)


def test_place_decides_where_words_do_not() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 8, 50)
    same = [["a"] * n for n in lengths]
    assert align(same, [["b"] * n for n in lengths]) == [frozenset((i, i) for i in range(n)) for n in lengths]


def test_it_is_the_same_each_time_whatever_the_case() -> None:
    (sources, targets), _ = translated(80, 7)
    found = align(sources, targets)
    assert found == align(sources, targets)
    loud = [[word.upper() for word in source] if n % 2 else source for n, source in enumerate(sources)]
    assert found == align(loud, targets)


def test_sentences_without_words_have_no_links() -> None:
    assert align([], []) == []
    assert align([[], ["a"], ["a", "b"]], [["x"], [], ["x", "y"]])[:2] == [frozenset(), frozenset()]
    assert align([[]], [[]]) == [frozenset()]


def test_sentences_need_their_translations() -> None:
    with says(BadData, about="2 source sentences and 1 translations"):
        align([["a"], ["b"]], [["x"]])
    assert issubclass(BadData, hc.HeadcountError)
