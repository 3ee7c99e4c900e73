"""Sentences and their words: where each word stands in the text, what governs it and how. From CoNLL-U files. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import BadData
from ..text_files import display_name, located, read_lines

COLUMNS = 10  # ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC
Span = tuple[int, int]


class Word(NamedTuple):
    """A word: `text[start:end]` of its sentence, the index of its governor (-1: the root, or unknown), its relation.

    The relation is that of the treebank in full ("nmod:poss"), "root" for the root and "" where there is no parse.
    """

    form: str
    start: int
    end: int
    head: int = -1
    relation: str = ""


class Sentence(NamedTuple):
    """A text, its words, and a name by which it is found again: its sent_id, or file and line."""

    text: str
    words: tuple[Word, ...]
    name: str


def read_conllu(path: str | Path) -> list[Sentence]:
    """The sentences of a CoNLL-U file, which may be packed (.gz, .xz).

    A sentence's text is that of its comment `# text`, or its words joined by spaces (but for SpaceAfter=No) where there is
    none or the words do not follow each other in it. The words of a multiword token stand where their forms are found
    in it; where they are not (au = à le), each stands for the whole token. Empty nodes are passed over.
    """
    file = located(path)
    if file is None or file.is_dir():
        raise BadData(f"There is no file {str(path)!r}; give the path of a CoNLL-U file.")
    block_sentences = [_sentence(file, start, lines) for start, lines in _blocks(read_lines(file))]
    sentences = [sentence for sentence in block_sentences if sentence is not None]
    if not sentences:
        raise BadData(f"There is no sentence in {file}; a CoNLL-U file has a line of {COLUMNS} columns for every word.")
    return sentences


def spans_in(text: str, forms: Sequence[str]) -> list[Span] | None:
    """Where these forms stand in a text, one after the other with anything in between; None where one is not found."""
    spans, end = [], 0
    for form in forms:
        start = text.find(form, end)
        if start < 0:
            return None
        end = start + len(form)
        spans.append((start, end))
    return spans


def spread(surface: str, start: int, forms: Sequence[str]) -> list[Span]:
    """Where the words of a multiword token stand, which begins at `start`: inside it, or else each all over it."""
    inside = spans_in(surface, forms) or [(0, len(surface))] * len(forms)
    return [(start + first, start + last) for first, last in inside]


# --- CoNLL-U --------------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """A word, or a multiword token: its numbers (the same one twice for a word), form, governor, relation, space after."""

    number: int
    first: int
    last: int
    form: str
    head: str
    relation: str
    space: bool


def _blocks(lines: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """The lines between blank ones, each lot with the number of its first line."""
    start = 0
    for number, line in enumerate([*lines, ""]):
        if not line.strip():
            if number > start:
                yield start + 1, list(lines[start:number])
            start = number + 1


def _sentence(file: Path, start: int, lines: Sequence[str]) -> Sentence | None:
    """The sentence on these lines; None if there are only comments."""
    comments: dict[str, str] = {}
    rows: list[_Line] = []
    for number, line in enumerate(lines, start):
        if line.startswith("#"):
            name, _, value = line[1:].partition("=")
            comments.setdefault(name.strip(), value.strip())
        else:
            row = _row(file, number, line)
            rows += [] if row is None else [row]
    words = [row for row in rows if row.first == row.last]
    if not words:
        return None
    tokens = _tokens(file, rows)
    surfaces = [token.form for token, _ in tokens]
    text = comments.get("text", "")
    spans = _following(text, surfaces)
    if spans is None:
        text = "".join(token.form + " " * token.space for token, _ in tokens).rstrip(" ")
        spans = _following(text, surfaces) or []
    places = [
        span
        for (token, inside), token_span in zip(tokens, spans, strict=True)
        for span in (
            [token_span] if token is inside[0] else spread(token.form, token_span[0], [word.form for word in inside])
        )
    ]
    governed = [_governor(file, word, len(words)) for word in words]
    sentence_words = (Word(word.form, *place, *how) for word, place, how in zip(words, places, governed, strict=True))
    return Sentence(text, tuple(sentence_words), comments.get("sent_id") or f"{display_name(file)}:{start}")


def _broken(file: Path, number: int, problem: str, needed: str) -> BadData:
    return BadData(f"Line {number} of {file} {problem}; {needed}.")


def _row(file: Path, number: int, line: str) -> _Line | None:
    """What a line says; None for an empty node (8.1), which stands for nothing in the text."""
    cells = line.split("\t")
    if len(cells) != COLUMNS:
        problem = f"has {len(cells)} column{'s' * (len(cells) != 1)}"
        raise _broken(file, number, problem, f"CoNLL-U has {COLUMNS}, parted by tabs: mend that line")
    name, form, head, relation, more = cells[0], cells[1].strip(), cells[6], cells[7], cells[9]
    if not form:
        raise _broken(file, number, "has no form", "its second column must hold the word")
    first, dash, last = name.partition("-")
    if first.isdecimal() and (not dash or last.isdecimal()):
        space = more == "_" or "SpaceAfter=No" not in more.split("|")
        return _Line(number, int(first), int(last if dash else first), form, head, relation, space)
    word_number, dot, part = name.partition(".")
    if dot and word_number.isdecimal() and part.isdecimal():
        return None
    raise _broken(file, number, f"begins with {name!r:.40}", "a line begins with the number of a word: 1, 1-2 or 1.1")


def _tokens(file: Path, rows: Sequence[_Line]) -> list[tuple[_Line, list[_Line]]]:
    """What stands in the text, each with its words: a word with itself, a multiword token with those it is made of."""
    tokens: list[tuple[_Line, list[_Line]]] = []
    count, end = 0, 0
    for row in rows:
        if row.first != count + 1 or row.last < row.first or (row.last > row.first and row.first <= end):
            problem = f"has the number {row.first if row.first == row.last else f'{row.first}-{row.last}'}"
            raise _broken(
                file, row.number, problem, f"the words of a sentence count from 1, and here {count + 1} comes next"
            )
        if row.last > row.first:
            end = row.last
            tokens.append((row, []))
            continue
        count += 1
        if count <= end:
            tokens[-1][1].append(row)
        else:
            tokens.append((row, [row]))
    if count < end:
        row = tokens[-1][0]
        raise _broken(file, row.number, f"joins the words {row.first} to {row.last}", f"the sentence has only {count}")
    return tokens


def _following(text: str, forms: Sequence[str]) -> list[Span] | None:
    """Where these forms stand in a text that is made of nothing but them and spaces; None where it is not."""
    spans, end = [], 0
    for form in forms:
        while text[end : end + 1].isspace():
            end += 1
        if not text.startswith(form, end):
            return None
        spans.append((end, end + len(form)))
        end += len(form)
    return None if text[end:].strip() else spans


def _governor(file: Path, word: _Line, size: int) -> tuple[int, str]:
    """The index of a word's governor and its relation: -1 and "root" for the root, -1 and "" where they are not given."""
    if word.head == "_":
        return -1, ""
    head = int(word.head) if word.head.isdecimal() else -1
    if not 0 <= head <= size or head == word.first:
        problem = f"says that the head of word {word.first} is {word.head!r:.40}"
        raise _broken(file, word.number, problem, f"a head is another word of the {size}, or 0 for the root")
    if head == 0:
        return -1, "root"
    return head - 1, "" if word.relation == "_" else word.relation
