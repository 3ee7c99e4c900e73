"""What one batch of attention weights says about its heads: sums per sentence, made where the weights are.

Queries are tokens that are there and not special. Attention to a word is the sum over its tokens (special tokens belong to
none); attention from a word is that of its first token, or the mean over its tokens (Clark et al. 2019). What is right, and
what the best fixed offset gets right, comes from parses and alignments alone and is known before a model runs.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..data.losses import fitting_inputs
from ..data.sentences.passages import Placed, Side
from ..documents.roles import DIRECTIONS, FIRST, FURTHEST, PUNCTUATION, RULES, Name, Tested, signed
from ..errors import BadData, Refused
from ..evaluation.evaluator import in_parts
from ..model.anatomy import Site

UNTESTED = "punct"  # which words of punctuation hang on is a convention, and any head that likes full stops finds them
TO_SOURCE = "target to source"  # the direction of alignments
REACH = int(RULES["local: tokens"])
WORDS = ("first", "mean")


class Target(NamedTuple):
    """A word that should look at one of some others, and the statistic that counts whether it does."""

    name: tuple[str, str]
    word: int
    right: tuple[int, ...]


class WordView(NamedTuple):
    """Words of queries and of keys, and which of them should look where: sentence, word, right word, statistic."""

    rows: Tensor  # (sentences, words) places of first tokens, or (sentences, 1, words, tokens) shares of each token
    words: Tensor  # (sentences, 1, tokens of keys, words)
    absent: Tensor  # (sentences, 1, 1, words): minus one for numbers that are no word
    aims: Tensor  # (4, aims)


class BatchIndex(NamedTuple):
    """What is known about one batch before the model runs, on the model's device."""

    queries: Tensor  # (sentences, 1, queries)
    ordinary: Tensor  # (sentences, 1, 1, keys): not special, not padding
    marks: Tensor  # (sentences, 1, keys, masses)
    near: Tensor | None  # (sentences, 1, queries, keys)
    views: tuple[WordView, ...]
    n: Tensor  # (sentences, statistics): what each is a share of
    base: Tensor  # (sentences, statistics): what does not depend on the head


@dataclass(frozen=True, eq=False)
class AttentionSides:
    """Where the heads of one type look from and at. In cross-attention `written` is what is written at the queries."""

    type: str | None
    query: Side
    key: Side
    written: Side | None = None
    links: Sequence[frozenset[tuple[int, int]]] | None = None
    words: str = "first"

    def __post_init__(self) -> None:
        if self.words not in WORDS:
            raise BadData(
                f'Attention from a word is that of its "first" token or the "mean"; I got {self.words!r:.40}.'
            )

    @property
    def own(self) -> bool:
        """Whether this is self-attention."""
        return self.query is self.key

    @cached_property
    def tested(self) -> tuple[Tested, ...]:
        """The relations that occur in enough sentences, with the best fixed offset of each."""
        offsets: dict[tuple[str, str], Counter[int]] = {}
        pairs: Counter[tuple[str, str]] = Counter()
        sentences: Counter[tuple[str, str]] = Counter()
        for number in range(len(self.query.ids)):
            aims = list(self._aims(number))
            for name, word, right in aims:
                offsets.setdefault(name, Counter()).update(target - word for target in right)
                pairs[name] += 1
            sentences.update({aim.name for aim in aims})
        out = []
        for name in sorted(offsets):
            if sentences[name] >= RULES["syntactic and alignment: sentences"]:
                offset, hits = min(
                    offsets[name].items(), key=lambda candidate: (-candidate[1], abs(candidate[0]), candidate[0])
                )
                out.append(Tested(*name, offset, hits / pairs[name], pairs[name], sentences[name]))
        return tuple(out)

    @cached_property
    def masses(self) -> tuple[str, ...]:
        """What else than words may be looked at: special tokens by name, the first token if it is none of them, punctuation."""
        key = self.key
        special_ids = {
            t for ids, marks in zip(key.ids, key.special, strict=True) for t, s in zip(ids, marks, strict=True) if s
        }
        first = any(not marks[0] for marks in key.special if len(marks))
        return (*dict.fromkeys(key.names[token] for token in sorted(special_ids)), *[FIRST] * first, PUNCTUATION)

    @cached_property
    def names(self) -> tuple[Name, ...]:
        """The statistics, in the order in which they are counted."""
        offsets = range(-FURTHEST, FURTHEST + 1) if self.own else ()
        pointing = [(kind, *relation[:2]) for kind in ("accuracy", "gain") for relation in self.tested]
        out: list[Name] = [("confidence",), ("entropy",), ("sink",), ("sink, uniform",), ("punctuation, uniform",)]
        out += [("mass", name) for name in self.masses] + [("offset", signed(offset)) for offset in offsets]
        out += [("local",), ("uniform",)] if self.own else []
        return (*out, *pointing, ("rarest",), ("two",), ("two gain",), ("chance",))

    @cached_property
    def places(self) -> dict[Name, int]:
        """Where each statistic is among the names."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def _best(self) -> dict[tuple[str, str], int]:
        return {(relation.relation, relation.direction): relation.offset for relation in self.tested}

    @cached_property
    def _frequent(self) -> float:
        """How often a word must occur to be among the most frequent ones."""
        most = int(RULES["rare: most frequent words that are not rare"])
        counts = sorted(self.key.counts.values(), reverse=True)
        return counts[most - 1] if len(counts) >= most else 0

    def _aims(self, number: int) -> Iterator[Target]:
        """What should be looked at from the words of a sentence; only words that have tokens count."""
        query_words = set(self.query.words[number]) - {-1}
        if self.own:
            for word, parsed_word in enumerate(self.query.sentences[number].words):
                if (
                    parsed_word.relation in ("", UNTESTED)
                    or parsed_word.head < 0
                    or not {word, parsed_word.head} <= query_words
                ):
                    continue
                for direction, (at, target) in zip(
                    DIRECTIONS, ((word, parsed_word.head), (parsed_word.head, word)), strict=True
                ):
                    if self.type != "decoder" or target < at:  # a decoder has not read what comes later
                        yield Target((parsed_word.relation, direction), at, (target,))
        elif self.links is not None:
            key_words = set(self.key.words[number])
            sides = {"read": query_words, "written": set(self.written.words[number]) if self.written else set()}
            for name, words in sides.items():
                for word in sorted(words - {-1}):
                    right = tuple(sorted(s for t, s in self.links[number] if t == word and s in key_words))
                    if right:
                        yield Target((name, TO_SOURCE), word, right)

    def _rare(self, number: int) -> tuple[set[int], set[int]] | None:
        """The rarest word or words and the two rarest, ties included; None where no word of the sentence is rare."""
        words = self.key.sentences[number].words
        counts = {w: self.key.counts[words[w].form.casefold()] for w in sorted(set(self.key.words[number]) - {-1})}
        least = sorted(counts.values())[:2]
        if len(counts) < RULES["rare: words in a sentence"] or least[0] >= self._frequent:
            return None
        return {w for w, c in counts.items() if c == least[0]}, {w for w, c in counts.items() if c <= least[1]}

    def laid(self, numbers: Sequence[int], device: torch.device | str = "cpu") -> BatchIndex:
        """All that is needed to count these sentences."""
        query, key = self.query.placed(numbers), self.key.placed(numbers)
        asks, real, ordinary = (query.real & ~query.special), key.real, key.real & ~key.special
        n, base = np.zeros((2, len(numbers), len(self.names)))
        of_tokens = (
            "confidence",
            "entropy",
            "sink",
            "sink, uniform",
            "punctuation, uniform",
            "mass",
            "local",
            "uniform",
        )
        n[:, [place for name, place in self.places.items() if name[0] in of_tokens]] = asks.sum(1, keepdim=True)
        near, marks = None, self._marks(numbers, key)
        place = torch.arange(asks.shape[1])
        visible = real[:, None] & ((place[:, None] >= place) if self.type == "decoder" else torch.tensor(True))
        for name, some in (("sink, uniform", marks[:, :, :-1].sum(-1)), ("punctuation, uniform", marks[:, :, -1])):
            base[:, self.places[name,]] = _uniform(asks, visible, some[:, None].bool())
        if self.own:
            for offset in range(-FURTHEST, FURTHEST + 1):
                n[:, self.places["offset", signed(offset)]] = (asks & _moved(real, offset)).sum(1)
            near = ((place[:, None] - place).abs() <= REACH) & ordinary[:, None]
            base[:, self.places["uniform",]] = _uniform(asks, visible, near)
        sides = {"read": query} | ({"written": self.written.placed(numbers)} if self.written and self.links else {})
        aims: dict[str, list[tuple[int, int, int, int]]] = {name: [] for name in sides}
        for row, number in enumerate(numbers):
            self._aim(row, number, aims, n[row], base[row])
        views = tuple(self._view(side, key, aims[name]) for name, side in sides.items() if aims[name])

        def there(tensor: Tensor) -> Tensor:
            return tensor.to(device)

        return BatchIndex(
            there(asks[:, None].double()),
            there(ordinary[:, None, None]),
            there(marks[:, None]),
            None if near is None else there(near[:, None]),
            tuple(WordView(*map(there, view)) for view in views),
            there(torch.from_numpy(n)),
            there(torch.from_numpy(base)),
        )

    def _aim(
        self, row: int, number: int, aims: dict[str, list[tuple[int, int, int, int]]], n: np.ndarray, base: np.ndarray
    ) -> None:
        """Add the aims of one sentence, how many there are, and how many of them the baselines get right."""
        for name, word, right in self._aims(number):
            if name in self._best:
                side = "written" if name == ("written", TO_SOURCE) else "read"
                for place in (self.places["accuracy", *name], self.places["gain", *name]):
                    aims[side] += [(row, word, target, place) for target in right]
                    n[place] += 1
                base[place] -= word + self._best[name] in right
        rare = self._rare(number)
        if rare is not None:
            words, key_words = (sorted(set(side.words[number]) - {-1}) for side in (self.query, self.key))
            causal = self.own and self.type == "decoder"
            if causal:  # a decoder is asked once it has read the rare words
                words = [word for word in words if word >= max(rare[1])]
            for kind, chosen in (("rarest", rare[0]), ("two", rare[1]), ("two gain", rare[1])):
                aims["read"] += [(row, word, target, self.places[kind,]) for word in words for target in chosen]
            n[[self.places[kind,] for kind in ("rarest", "two", "two gain", "chance")]] = len(words)
            chance = sum(
                len(rare[1]) / (sum(key_word <= word for key_word in key_words) if causal else len(key_words))
                for word in words
            )
            base[self.places["two gain",]] = -chance
            base[self.places["chance",]] = chance

    def _marks(self, numbers: Sequence[int], key: Placed) -> Tensor:
        """Which keys are which special token, the first one, or punctuation: (sentences, keys, masses)."""
        out = torch.zeros(*key.ids.shape, len(self.masses))
        by_name: dict[str, list[int]] = {}
        for token, name in self.key.names.items():
            by_name.setdefault(name, []).append(token)
        for place, name in enumerate(self.masses):
            if name == FIRST:
                out[:, :, place] = (key.real.cumsum(1) == 1) & key.real & ~key.special
            elif name != PUNCTUATION:
                out[:, :, place] = key.special & torch.isin(key.ids, torch.tensor(by_name[name]))
        for row, number in enumerate(numbers):
            words = self.key.sentences[number].words
            marks = [w for w in set(self.key.words[number]) - {-1} if is_punctuation(words[w].form)]
            out[row, :, -1] = torch.isin(key.words[row], torch.tensor(marks, dtype=torch.long))
        return out

    def _view(self, query: Placed, key: Placed, aims: list[tuple[int, int, int, int]]) -> WordView:
        from_words, to_words = _tokens_of(query.words), _tokens_of(key.words)
        rows = from_words.argmax(1)
        if self.words == "mean":
            rows = (from_words / from_words.sum(1, keepdim=True).clamp(min=1)).transpose(1, 2)[:, None]
        absent = (to_words.sum(1) > 0).to(to_words.dtype) - 1
        return WordView(rows, to_words[:, None], absent[:, None, None], torch.tensor(aims, dtype=torch.long).T)

    def counted(self, laid: BatchIndex, weights: Tensor) -> Tensor:
        """The sums of each sentence for weights (sentences, heads, queries, keys): (sentences, statistics, heads)."""
        weights = weights.detach()
        weights = weights if weights.dtype == torch.float64 else weights.float()
        size, heads = weights.shape[:2]
        out = laid.base[:, :, None].repeat(1, 1, heads)

        def total(rows: Tensor) -> Tensor:
            return (rows.double() * laid.queries).sum(-1)

        out[:, self.places["confidence",]] = total((weights * laid.ordinary).amax(-1))
        out[:, self.places["entropy",]] = total(torch.special.entr(weights).sum(-1))
        masses = total((weights @ laid.marks.to(weights.dtype)).movedim(-1, 0)).movedim(0, 1)
        first = self.places["mass", self.masses[0]]
        out[:, first : first + len(self.masses)] = masses
        out[:, self.places["sink",]] = masses[:, :-1].sum(1)
        if laid.near is not None:
            out[:, self.places["local",]] = total((weights * laid.near).sum(-1))
            apart = weights.argmax(-1) - torch.arange(weights.shape[2], device=weights.device) + FURTHEST
            beyond = 2 * FURTHEST + 1
            apart = torch.where((apart < 0) | (apart > beyond), beyond, apart)
            counts = torch.zeros(size, heads, beyond + 1, dtype=torch.float64, device=weights.device)
            counts.scatter_add_(2, apart, laid.queries.expand(apart.shape))
            start = self.places["offset", signed(-FURTHEST)]
            out[:, start : start + beyond] = counts[:, :, :beyond].transpose(1, 2)
        for view in laid.views:
            self._pointed(out, view, weights)
        return out

    def _pointed(self, out: Tensor, view: WordView, weights: Tensor) -> None:
        """Add how often the word with most attention is the right one."""
        if self.words == "mean":
            rows = view.rows.to(weights.dtype) @ weights
        else:
            places = view.rows[:, None, :, None].expand(-1, weights.shape[1], -1, weights.shape[3])
            rows = weights.gather(2, places)
        best = (rows @ view.words.to(weights.dtype) + view.absent).argmax(-1)
        sentence, word, right, place = view.aims
        hits = (best.transpose(1, 2)[sentence, word] == right[:, None]).double()
        out.view(-1, out.shape[-1]).index_add_(0, sentence * out.shape[1] + place, hits)


def tallied(e: Tensor, n: Tensor) -> np.ndarray:
    """What a `Tally` keeps of the sums e (sentences, statistics, heads) and n (sentences, statistics) of each sentence."""
    n = n[:, :, None].expand(e.shape)
    return torch.stack([part.sum(0) for part in (e, n, e * e, e * n, n * n, (n > 0).double())]).cpu().numpy()


def summed(
    compute: Callable[[Sequence[int]], dict[str, np.ndarray]], passages: Any, numbers: Sequence[int]
) -> dict[str, np.ndarray]:
    """What `compute` gives for a batch, or the sum of what it gives for parts of it where memory runs out."""
    sums: dict[str, np.ndarray] = {}
    for _, arrays in in_parts(compute, "attention", passages, numbers):
        sums = {name: sums[name] + array if name in sums else array for name, array in arrays.items()}
    return sums


def run_on(model: nn.Module, inputs: dict[str, Tensor], passages: Any) -> None:
    """Run a model on texts, padding on either side, or say that it reads none."""
    try:
        model(**fitting_inputs(model, inputs))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.100}"
        raise Refused(
            f"{type(model).__name__} does not run on {passages.name} ({why}); give a model that reads texts, and "
            "translations only to one that translates."
        ) from error


def must_fit(site: Site, weights: Tensor, rows: int, queries: int, keys: int) -> None:
    """Refuse attention that is not from every token of a sentence to every other: windows, pictures, compressed keys."""
    want, got = (rows, len(site), queries, keys), tuple(weights.shape)
    if want != got:
        raise Refused(
            f"{site.name} ({type(site.module).__name__}) has attention of shape {got} where sentences, heads, tokens and "
            f"tokens are {want}, so it cannot be said at which tokens it looks; leave this model to other criteria."
        )


def is_punctuation(form: str) -> bool:
    """Whether a word is made of punctuation alone."""
    return bool(form) and all(unicodedata.category(letter).startswith("P") for letter in form)


def _uniform(asks: Tensor, visible: Tensor, some: Tensor) -> np.ndarray:
    """How much of uniform attention over the keys that are seen falls on some of them, summed over each row's queries."""
    share = (some & visible).sum(-1).double() / visible.sum(-1).clamp(min=1)
    return (share * asks).sum(1).numpy()


def _moved(real: Tensor, offset: int) -> Tensor:
    """For each place whether there is a token `offset` places further on."""
    places = torch.arange(real.shape[1]) + offset
    inside = (places >= 0) & (places < real.shape[1])
    return real[:, places.clamp(0, real.shape[1] - 1)] & inside


def _tokens_of(words: Tensor) -> Tensor:
    """Which tokens each word has: (sentences, tokens, words), ones and zeros."""
    return (words[:, :, None] == torch.arange(max(1, int(words.max()) + 1))).float()
