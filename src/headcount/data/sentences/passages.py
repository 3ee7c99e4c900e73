"""What a model reads, token by token and word by word: `passages`, the sentences on which one looks at what heads do."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ...errors import BadData
from ..columns import drawn_numbers
from ..encoding import encode, loaded_tokenizer, longest_input, padded, padding_token, special_tokens
from .conllu import Sentence, Span
from .words import Links, counted, ends, frequencies_of, is_fast, links_of, tokenized, worded

SPACES = " ▁Ġ"  # how tokenizers write a space


class Placed(NamedTuple):
    """Tensors (sentences, tokens): each token's word (-1: none), whether it is special, whether it is there, its id."""

    words: Tensor
    special: Tensor
    real: Tensor
    ids: Tensor


@dataclass(frozen=True, eq=False)
class Side:
    """What one end of an attention is made of: the sentences of one language as the model sees them.

    `words` are numbers in `sentences[n].words`, -1 for tokens that belong to none; `special` are tokens that a tokenizer
    puts around texts ([CLS], </s>) and `names` how they are written. `counts` says how often each word (casefolded) occurs
    in all of the data. `more` are further columns that the model takes, such as token_type_ids; `fill` is what fills
    up the tokens and those columns to the longest of a batch.
    """

    ids: Sequence[Sequence[int]]
    words: Sequence[Sequence[int]]
    special: Sequence[Sequence[bool]]
    sentences: Sequence[Sentence]
    names: Mapping[int, str]
    counts: Counter[str]
    padding: str = "right"
    fill: Mapping[str, int] = field(default_factory=dict)
    more: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    texts: Mapping[int, str] = field(default_factory=dict)  # how each token that occurs is written, for people

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of every sentence."""
        return [len(tokens) for tokens in self.ids]

    def placed(self, numbers: Sequence[int]) -> Placed:
        """What is known of the tokens of these sentences, filled up as the model's inputs are."""

        def tensor(lists: Sequence[Sequence[int]], fill: int) -> Tensor:
            return padded([lists[number] for number in numbers], fill, self.padding)

        ids = tensor(self.ids, self.fill.get("input_ids", 0))
        return Placed(tensor(self.words, -1), tensor(self.special, 0) == 1, self._real(numbers), ids)

    def inputs(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        """What a model takes for these sentences."""
        tensors = {"input_ids": self.placed(numbers).ids, "attention_mask": self._real(numbers).long()}
        for name, lists in self.more.items():
            tensors[name] = padded([lists[number] for number in numbers], self.fill.get(name, 0), self.padding)
        return tensors

    def _real(self, numbers: Sequence[int]) -> Tensor:
        return padded([[1] * len(self.ids[number]) for number in numbers], 0, self.padding) == 1

    def digest(self) -> bytes:
        """A hash of all that changes what the model reads or what is counted."""
        hasher = hashlib.sha256(
            json.dumps([self.padding, sorted(self.fill.items()), sorted(self.counts.items())]).encode()
        )
        for number, (text, words, _) in enumerate(self.sentences):
            more = [self.more[name][number] for name in sorted(self.more)]
            tokens = [list(column[number]) for column in (self.ids, self.words, self.special)]
            hasher.update(json.dumps([text, words, tokens, more]).encode())
        return hasher.digest()

    def chosen(self, numbers: Sequence[int]) -> Side:
        """The sentences of these numbers, in this order; counts are still those of all of the data."""

        def some(lists: Sequence[Any]) -> list[Any]:
            return [lists[number] for number in numbers]

        return replace(
            self,
            ids=some(self.ids),
            words=some(self.words),
            special=some(self.special),
            sentences=some(self.sentences),
            more={name: some(lists) for name, lists in self.more.items()},
        )


@dataclass(frozen=True, eq=False)
class Passages:
    """Sentences as a model reads them, and what is known of their words; nothing here belongs to one model.

    `source` is what an encoder or a decoder-only model reads. With translations, `read` is what the decoder reads (a
    start token, then the target but for its last token) and `written` what it writes at the same positions; `links` are
    pairs (word of the target, word of the source) per sentence. `parsed` and `aligned` say where parses and links come
    from, "" if nowhere.
    """

    name: str
    batch_size: int
    source: Side
    read: Side | None = None
    written: Side | None = None
    links: Sequence[Links] | None = None
    parsed: str = ""
    aligned: str = ""

    @property
    def size(self) -> int:
        """The number of sentences."""
        return len(self.source.ids)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        kind = "sentences" if self.read is None else "pairs of sentences"
        return f"Passages({', '.join([self.name, f'{self.size} {kind}', *[self.parsed] * bool(self.parsed)])})"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of tokens, words, parses, counts and alignments; the name and the batch size do not matter."""
        hasher = hashlib.sha256()
        for side in (self.source, self.read, self.written):
            hasher.update(b"side" if side is None else side.digest())
        for links in self.links or ():
            hasher.update(json.dumps(sorted(links)).encode())
        return hasher.hexdigest()

    def batches(self, batch_size: int | None = None) -> list[tuple[int, ...]]:
        """The numbers of all sentences in batches of like length, the longest first."""
        size = self.batch_size if batch_size is None else batch_size
        if size < 1:
            raise BadData(f"The batch size is {size}; it must be at least 1.")
        lengths = self.source.lengths
        order = sorted(range(self.size), key=lambda number: (-lengths[number], number))
        return [tuple(order[start : start + size]) for start in range(0, self.size, size)]

    def inputs(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        """What the model takes; with translations also what its decoder reads."""
        source_inputs = self.source.inputs(numbers)
        return (
            source_inputs
            if self.read is None
            else {**source_inputs, "decoder_input_ids": self.read.placed(numbers).ids}
        )

    def describe(self, number: int) -> str:
        """Which sentence that is, for error messages."""
        sentence = self.source.sentences[number]
        text = " ".join(sentence.text.split())
        return f"sentence {sentence.name}: '{text if len(text) <= 60 else text[:57] + '...'}'"

    def begun(self, start: int | None) -> Passages:
        """The same, with this token at the beginning of what a decoder reads; only a model knows it."""
        if start is None or self.read is None:
            return self
        name = {start: self.read.names.get(start) or f"token {start}"}
        ids = [[start, *tokens[1:]] for tokens in self.read.ids]
        read = replace(self.read, ids=ids, names={**self.read.names, **name}, texts={**name, **self.read.texts})
        return replace(self, read=read)

    def subset(self, numbers: Sequence[int]) -> Passages:
        """The sentences of these numbers only, in this order."""
        numbers = tuple(int(number) for number in numbers)
        if not numbers or len(set(numbers)) != len(numbers) or not all(0 <= number < self.size for number in numbers):
            raise BadData(
                f"A subset needs different numbers from 0 to {self.size - 1}, at least one; I got {numbers!r:.80}."
            )
        return replace(
            self,
            source=self.source.chosen(numbers),
            read=None if self.read is None else self.read.chosen(numbers),
            written=None if self.written is None else self.written.chosen(numbers),
            links=None if self.links is None else [self.links[number] for number in numbers],
        )


def passages(
    data: Any,
    tokenizer: Any,
    *,
    target: Any = None,
    text: str | int | None = None,
    parser: str | None = None,
    target_parser: str | None = None,
    alignments: str | Path | None = None,
    frequencies: str | Path | None = None,
    limit: int | None = None,
    seed: int | None = 0,
    max_length: int | None = None,
    prefix: str = "",
    batch_size: int = 16,
    split: str | None = None,
) -> Passages:
    """Sentences as a model reads them, with their words, and parses and alignments where there are any.

    `data` is a CoNLL-U file (.conllu; its parses are taken for true), whatever else `task` reads (a table with a column of
    texts, or plain text with one sentence a line), or a sequence of texts or of `Sentence`. `target` are translations:
    a file of them, a column of the data, or a sequence. `parser` and `target_parser` ("spacy:en_core_web_sm",
    "stanza:en") parse texts. Without a parse, words are those of the tokenizer, and punctuation at their ends is parted off.

    A token belongs to the word with which it shares most characters; prefixes and special tokens belong to none.
    `alignments` is a file of word alignments as fast_align writes them (source-target, from 0, words parted by spaces);
    without one they are found in the pairs themselves. How often words occur, and alignments, are taken from all of the
    data, or from `frequencies`, a file with a word and its number on every line (for the source). `limit` draws that many
    sentences by `seed`. `tokenizer`, `max_length`, `prefix` and `split` are as for `task`.
    """
    tokens = loaded_tokenizer(tokenizer)
    length = longest_input(tokens, max_length)
    if batch_size < 1:
        raise BadData(f"The batch size is {batch_size}; it must be at least 1.")
    source, goal = ends(data, target, text, split)
    if goal is None and (alignments or target_parser):
        raise BadData("Alignments and a target_parser need translations; give target= (--target), the file of them.")
    size = len(source.sentences)
    numbers = list(range(size)) if limit is None else drawn_numbers(size, limit, seed)
    source = worded(source, tokens, parser, numbers)
    counts = counted(source.sentences) if frequencies is None else frequencies_of(Path(frequencies))
    first = _side(tokens, [source.sentences[number] for number in numbers], counts, length, prefix=prefix)
    if goal is None:
        return Passages(source.name, batch_size, first, parsed=source.parsed)
    goal = worded(goal, tokens, target_parser, numbers, target=True)
    chosen = [goal.sentences[number] for number in numbers]
    written = _side(tokens, chosen, counted(goal.sentences), length, target=True)
    links = links_of(source.sentences, goal.sentences, None if alignments is None else Path(alignments))
    parsed = " and ".join(dict.fromkeys(origin for origin in (source.parsed, goal.parsed) if origin))
    linked = [links[number] for number in numbers]
    aligned = f"word alignments of {alignments}" if alignments else f"word alignments estimated from {size:,} pairs"
    return Passages(source.name, batch_size, first, _begun(tokens, written), written, linked, parsed, aligned)


# --- tokens ---------------------------------------------------------------------------------------------------------


def _side(
    tokenizer: Any,
    sentences: Sequence[Sentence],
    counts: Counter[str],
    length: int,
    *,
    prefix: str = "",
    target: bool = False,
) -> Side:
    texts = [prefix + sentence.text for sentence in sentences]
    encoded = encode(tokenizer, [texts], length, target=target)
    ids = [list(row) for row in encoded.columns["input_ids"]]
    special = _special(tokenizer, ids)
    if is_fast(tokenizer):
        options = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
        again = tokenized(tokenizer, texts, target, truncation=True, max_length=length, **options)
        if [list(row) for row in again["input_ids"]] != ids:
            raise BadData("The tokenizer gives other tokens when it is asked twice, so words cannot be found in them.")
        special = _either(special, again["special_tokens_mask"])
        outside = _either(special, _blank(tokenizer, ids))
        pairs = zip(sentences, again["offset_mapping"], outside, strict=True)
        words = [_by_characters(sentence, offsets, marks, len(prefix)) for sentence, offsets, marks in pairs]
    else:
        words = _by_number(tokenizer, sentences, texts, special, target)
    empty = next((number for number, marks in enumerate(special) if all(marks)), None)
    if empty is not None:
        raise BadData(
            f"There is no token in the text of {sentences[empty].name}; delete rows without text, or give a larger max_length "
            f"(--max-length) than {length}."
        )
    marked = {
        token for row_pair in zip(ids, special, strict=True) for token, mark in zip(*row_pair, strict=True) if mark
    }
    names = {token: str(tokenizer.convert_ids_to_tokens(token)) for token in sorted(marked)}
    more = {name: lists for name, lists in encoded.columns.items() if name not in ("input_ids", "attention_mask")}
    if target:  # what a decoder reads is filled up on the right, where nothing before it can see it
        more = {}
    side = "right" if target else encoded.side
    spelled = _spelled(tokenizer, ids)
    return Side(ids, words, special, sentences, names, counts, side, encoded.fill, more, spelled)


def _spelled(tokenizer: Any, ids: Sequence[Sequence[int]]) -> dict[int, str]:
    """How each token that occurs is written; pieces of a letter, which have no text of their own, as the tokenizer has them."""
    spellings = {}
    for token in sorted({token for row in ids for token in row}):
        text = str(tokenizer.decode([token])).strip()
        spellings[token] = text if text and "\ufffd" not in text else str(tokenizer.convert_ids_to_tokens(token))
    return spellings


def _special(tokenizer: Any, ids: Sequence[Sequence[int]]) -> list[list[bool]]:
    """Which tokens are special wherever they stand; one that stands for unknown words is a word."""
    special = special_tokens(tokenizer)
    return [[token in special for token in row] for row in ids]


def _either(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> list[list[bool]]:
    return [[bool(a or b) for a, b in zip(*row_pair, strict=True)] for row_pair in zip(first, second, strict=True)]


def _blank(tokenizer: Any, ids: Sequence[Sequence[int]]) -> list[list[bool]]:
    """Which tokens are nothing but a space; one that tokenizers put before a text is said to stand at its first letter."""
    tokens = sorted({token for row in ids for token in row})
    forms = dict(zip(tokens, tokenizer.convert_ids_to_tokens(tokens), strict=True))
    return [[not str(forms[token]).strip(SPACES) for token in row] for row in ids]


def _by_characters(sentence: Sentence, offsets: Sequence[Span], outside: Sequence[bool], shift: int) -> list[int]:
    """The word of each token: that with which it shares most characters, spaces aside, and the first of several."""
    if any(not 0 <= word.start <= word.end <= len(sentence.text) for word in sentence.words):
        raise BadData(f"A word of sentence {sentence.name} ends beyond its text; mend its start and end.")
    owners = [-1] * len(sentence.text)
    for number, word in reversed(list(enumerate(sentence.words))):
        for place in range(word.start, word.end):
            owners[place] = -1 if sentence.text[place].isspace() else number
    token_words = []
    for (start, end), mark in zip(offsets, outside, strict=True):
        shared = [owner for owner in owners[max(start - shift, 0) : max(end - shift, 0)] if owner >= 0]
        token_words.append(-1 if mark or not shared else max(dict.fromkeys(shared), key=shared.count))
    return token_words


def _by_number(
    tokenizer: Any, sentences: Sequence[Sentence], texts: Sequence[str], special: Sequence[Sequence[bool]], target: bool
) -> list[list[int]]:
    """The words of tokens where each token is a word; before them are those of a prefix, and some may be cut off."""
    token_ids = tokenized(tokenizer, texts, target, add_special_tokens=False)["input_ids"]
    cut_left = getattr(tokenizer, "truncation_side", "right") == "left"
    token_words = []
    for sentence, every, marks in zip(sentences, token_ids, special, strict=True):
        before = len(every) - len(sentence.words)
        at = (len(every) - marks.count(False) if cut_left else 0) - before
        row = []
        for mark in marks:
            row.append(-1 if mark or at < 0 else at)
            at += not mark
        token_words.append(row)
    return token_words


def _begun(tokenizer: Any, written: Side) -> Side:
    """What the decoder reads while it writes that: a start token (which one, the model knows), then all but the last."""
    candidates = (tokenizer.bos_token_id, tokenizer.eos_token_id, padding_token(tokenizer))
    start = next(token for token in candidates if token is not None)
    special = {token: str(tokenizer.convert_ids_to_tokens(token)) for token in {*special_tokens(tokenizer), start}}
    return replace(
        written,
        ids=[[start, *row[:-1]] for row in written.ids],
        words=[[-1, *row[:-1]] for row in written.words],
        special=[[True, *row[:-1]] for row in written.special],
        names={**written.names, **special},
        texts={**written.texts, **special},
    )
