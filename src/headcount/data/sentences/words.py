"""Sentences of data and their words: from treebanks, from parsers or from the tokenizer; which words translate which."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import category

from ...errors import BadData
from ..columns import Table, read_table
from ..text_files import display_name, ending, located, read_lines
from . import parsers, word_alignment
from .conllu import Sentence, Span, Word, read_conllu

AT_ONCE = 1000  # texts that are split into words together
NEAR = 20  # characters of unknown tokens that may lie between two that are found in the text
Links = frozenset[tuple[int, int]]  # pairs (word of the target, word of the source)


class Texts(NamedTuple):
    """All sentences of one language. `worded`: their words are known; `parsed`: where their parses come from."""

    name: str
    sentences: Sequence[Sentence]
    worded: bool = False
    parsed: str = ""


def ends(data: Any, target: Any, text: str | int | None, split: str | None) -> tuple[Texts, Texts | None]:
    """The sentences that are read, and their translations or None."""
    source = _sentences_of(data)
    if target is None:
        return source or _of_table(read_table(data, "text", text=text, split=split), blanks=False), None
    goal = _sentences_of(target)
    if source is None and goal is None:
        table = read_table(data, "target", text=text, target=target, split=split)
        return _of_table(table), _of_table(table, 1)
    source = source or _of_table(read_table(data, "text", text=text, split=split))
    goal = goal or _of_table(read_table(target, "text"))
    if len(source.sentences) != len(goal.sentences):
        raise BadData(
            f"{source.name} has {len(source.sentences)} sentences and {goal.name} has {len(goal.sentences)}; every source "
            "needs its target at the same place."
        )
    return source, goal


def _sentences_of(data: Any) -> Texts | None:
    """The sentences of a CoNLL-U file or of a sequence; None for everything else, which is a table."""
    if isinstance(data, str | Path):
        path = located(data) or Path(data)
        if ending(path) != ".conllu":
            return None
        return Texts(display_name(path), read_conllu(path), True, f"gold parses of {display_name(path)}")
    if isinstance(data, list | tuple) and data and all(isinstance(sentence, Sentence) for sentence in data):
        has_parses = any(word.relation for sentence in data for word in sentence.words)
        return Texts("texts", data, True, "parses that were given" if has_parses else "")
    if isinstance(data, list | tuple) and data and all(isinstance(text, str) for text in data):
        return Texts("texts", [Sentence(text, (), f"text {number}") for number, text in enumerate(data, 1)])
    return None


def _of_table(table: Table, column: int = 0, blanks: bool = True) -> Texts:
    """The texts of a column; blank lines of plain text only part others, unless each goes with a line of another file."""
    named = zip(table.texts[column], table.rows, strict=True)
    sentences = [
        Sentence(text, (), f"{table.name}:{row}") for text, row in named if blanks or not table.plain or text.strip()
    ]
    return Texts(table.name, sentences)


def worded(texts: Texts, tokenizer: Any, parser: str | None, numbers: Sequence[int], target: bool = False) -> Texts:
    """All sentences with their words, those of `numbers` with parses by `parser`; its words, too, where it is given."""
    if (parser is not None or texts.worded) and not is_fast(tokenizer):
        raise BadData(
            f"{type(tokenizer).__name__} does not say where in the text its tokens stand, so words of a parse cannot be "
            "found in them; give the fast tokenizer of the model, or texts without a parse."
        )
    if parser is None and texts.worded:
        return texts
    source_sentences = texts.sentences
    plain = [sentence.text for sentence in source_sentences]
    if parser is None:
        return texts._replace(sentences=_own_words(tokenizer, source_sentences, target))
    chosen = set(numbers)
    unparsed_numbers = [number for number in range(len(source_sentences)) if number not in chosen]
    numbered_sentences = dict(zip(numbers, parsers.parse(parser, [plain[number] for number in numbers]), strict=True))
    numbered_sentences |= zip(
        unparsed_numbers,
        parsers.split(parser, [plain[number] for number in unparsed_numbers]) if unparsed_numbers else [],
        strict=True,
    )
    sentences = [
        numbered_sentences[number]._replace(name=sentence.name) for number, sentence in enumerate(source_sentences)
    ]
    return texts._replace(sentences=sentences, parsed=parsers.title(parser))


def counted(sentences: Sequence[Sentence]) -> Counter[str]:
    """How often each word occurs, in small letters."""
    return Counter(word.form.casefold() for sentence in sentences for word in sentence.words)


def frequencies_of(path: Path) -> Counter[str]:
    """How often words occur, from a file with a word and its number on every line."""
    counts: Counter[str] = Counter()
    for number, line in enumerate(read_lines(_file(path, "frequencies")), 1):
        word, _, count = line.strip().replace("\t", " ").rpartition(" ")
        if line.strip() and not (word.strip() and count.isdecimal()):
            raise BadData(f"Line {number} of {path} is {line!r:.60}; it must hold a word and how often it occurs.")
        if line.strip():
            counts[word.strip().casefold()] += int(count)
    if not counts:
        raise BadData(f"There is no word in {path}; give a file with a word and how often it occurs on every line.")
    return counts


def _file(path: Path, content: str) -> Path:
    file = located(path)
    if file is None or file.is_dir():
        raise BadData(f"There is no file {str(path)!r}; give the file of {content}.")
    return file


# --- words ----------------------------------------------------------------------------------------------------------


def is_fast(tokenizer: Any) -> bool:
    """Whether a tokenizer says where in the text each token stands."""
    return bool(getattr(tokenizer, "is_fast", False))


def tokenized(tokenizer: Any, texts: Sequence[str], target: bool, **options: Any) -> Any:
    """What the tokenizer makes of texts, or of targets of translation, one by one."""
    return tokenizer(**{"text_target" if target else "text": list(texts)}, padding=False, verbose=False, **options)


def _own_words(tokenizer: Any, sentences: Sequence[Sentence], target: bool) -> list[Sentence]:
    """The sentences with the words that the tokenizer finds before it splits them; its tokens where it does not tell."""
    worded_sentences: list[Sentence] = []
    fast = is_fast(tokenizer)
    for start in range(0, len(sentences), AT_ONCE):
        some = sentences[start : start + AT_ONCE]
        options = {"return_offsets_mapping": True} if fast else {}
        encoding = tokenized(
            tokenizer, [sentence.text for sentence in some], target, add_special_tokens=False, **options
        )
        for place, sentence in enumerate(some):
            if fast:
                spans = _parted(sentence.text, encoding.word_ids(place), encoding["offset_mapping"][place])
                words = tuple(Word(sentence.text[first:last], first, last) for first, last in spans)
            else:
                words = tuple(_each_token(tokenizer, sentence.text, encoding["input_ids"][place]))
            worded_sentences.append(sentence._replace(words=words))
    return worded_sentences


def _each_token(tokenizer: Any, text: str, ids: Sequence[int]) -> Iterator[Word]:
    """A word for every token, with a place of no width where the text does not go on with it soon."""
    end = 0
    for token in ids:
        form = str(tokenizer.decode([token])).strip() or str(tokenizer.convert_ids_to_tokens(token))
        start = text.find(form, end, end + len(form) + NEAR)
        yield Word(form, end, end) if start < 0 else Word(form, start, start + len(form))
        end = end if start < 0 else start + len(form)


def _parted(text: str, numbers: Sequence[int | None], offsets: Sequence[Span]) -> list[Span]:
    """Where words stand, from tokens' words; parted at spaces, which some tokenizers (LLaMA's) leave inside them."""
    spans: dict[int, Span] = {}
    for number, (start, end) in zip(numbers, offsets, strict=True):
        if number is not None and end > start:
            first, last = spans.get(number, (start, end))
            spans[number] = min(first, start), max(last, end)
    words: list[Span] = []
    past = 0
    for start, end in sorted(spans.values()):
        for piece in re.finditer(r"\S+", text[max(start, past) : end]):
            shift = max(start, past) + piece.start()
            words += [(shift + first, shift + last) for first, last in _without_marks(piece.group())]
        past = max(past, end)
    return words


def _without_marks(piece: str) -> list[Span]:
    """A word and the punctuation at its ends, which some tokenizers leave there; the apostrophe of 's stays where it is."""
    marks = [category(letter).startswith("P") for letter in piece]
    if all(marks) or not (marks[0] or marks[-1]):
        return [(0, len(piece))]
    first = 0 if piece[0] in "'’" else marks.index(False)
    last = len(piece) - marks[::-1].index(False)
    return [(start, end) for start, end in ((0, first), (first, last), (last, len(piece))) if end > start]


# --- alignments -----------------------------------------------------------------------------------------------------


def links_of(sources: Sequence[Sentence], targets: Sequence[Sentence], path: Path | None) -> Sequence[Links]:
    """For each pair, which words translate which: from a file of alignments, or found in all of the pairs."""
    if path is None:
        forms = [
            [[word.form.casefold() for word in sentence.words] for sentence in side] for side in (sources, targets)
        ]
        return word_alignment.align(*forms)
    lines = read_lines(_file(path, "alignments"))
    if len(lines) != len(sources):
        raise BadData(
            f"{path} has {len(lines)} lines and the data has {len(sources)} sentences; there must be a line for each."
        )
    links = []
    for number, (line, source, target) in enumerate(zip(lines, sources, targets, strict=True), 1):
        ours, theirs = _by_spaces(source), _by_spaces(target)
        pairs: set[tuple[int, int]] = set()
        for link in line.split():
            source_place, _, target_place = link.partition("-")
            if not (
                source_place.isdecimal()
                and target_place.isdecimal()
                and int(source_place) < len(ours)
                and int(target_place) < len(theirs)
            ):
                raise BadData(
                    f"Line {number} of {path} has {link!r:.40}; a link is two numbers such as 0-2, from 0 to {len(ours) - 1} "
                    f"(the source) and to {len(theirs) - 1} (the target)."
                )
            pairs |= {
                (target_word, source_word)
                for target_word in theirs[int(target_place)]
                for source_word in ours[int(source_place)]
            }
        links.append(frozenset(pairs))
    return links


def _by_spaces(sentence: Sentence) -> list[list[int]]:
    """Our words in each of those that are parted by spaces."""
    spans = [piece.span() for piece in re.finditer(r"\S+", sentence.text)]
    return [
        [number for number, word in enumerate(sentence.words) if word.start < end and start < word.end]
        for start, end in spans
    ]
