"""Where the documents of a plain text begin, and which of them its lines and blocks belong to."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from ..errors import BadData
from .columns import Table

FEWEST = 10  # documents: of fewer, no interval can be made by drawing whole ones
TITLE = re.compile(r" ?= [^\n]*[^=\s] = ?")  # WikiText: " = Title = "; parts of an article end in "= = "


def documents(lines: Sequence[str]) -> list[str | None]:
    """For every line of a plain text a name of its document, made from what the document says; None for blank lines.

    A document begins at a title of WikiText, ` = Title = `, if the text has such (those after a blank line, unless there are
    blank lines before none of them); else after a blank line.
    """
    blank = [not line.strip() for line in lines]
    titles = [number for number, line in enumerate(lines) if TITLE.fullmatch(line)]
    parted = [number for number in titles if number and blank[number - 1]]
    begins = [number for number in range(1, len(lines)) if not blank[number] and blank[number - 1]]
    starts = sorted({0, *(parted or titles or begins)})
    names: list[str | None] = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        name = hashlib.sha256("\n".join(lines[start:end]).strip().encode()).hexdigest()[:32]
        names += [None if blank[number] else name for number in range(start, end)]
    return names


def grouped_lines(table: Table) -> Sequence[str | None] | None:
    """The groups of a plain text's lines: those that were given, else documents; None where every line is on its own."""
    if table.groups is not None:
        return table.groups
    names = documents(table.texts[0])
    document_names = [name for name in names if name is not None]
    return names if FEWEST <= len(set(document_names)) < len(document_names) else None


def grouped_blocks(table: Table, starts: Sequence[int | None]) -> tuple[Sequence[str | None] | None, str]:
    """The groups of blocks that begin with these characters of a plain text, by the line they begin in; and a note.

    None where no two blocks belong together, and where there are too few documents, which the note says.
    """
    lines, user_groups = table.texts[0], table.groups
    if any(start is None for start in starts):
        if user_groups is not None:
            raise BadData(
                "The tokenizer does not tell where a token stands in the text, so that blocks have no group; take a fast "
                "tokenizer, or give a table with a text and a group in every row."
            )
        note = "the tokenizer does not tell which document a block of text is from" if len(starts) > 1 else ""
        return None, f"{note}: intervals take blocks for independent" if note else ""
    ends = list(accumulate(len(line) + 1 for line in lines))  # the newline is the line's
    names = documents(lines) if user_groups is None else user_groups
    filled = [number for number, line in enumerate(lines) if line.strip()]
    block_groups = []
    for start in starts:
        assert start is not None
        line = bisect_right(ends, start)
        spaces = not lines[line][start - (ends[line] - len(lines[line]) - 1) :].strip()
        later = bisect_right(filled, line) if spaces else 0  # what begins with the end of a line begins with the next
        block_groups.append(names[filled[later]] if spaces and later < len(filled) else names[line])
    if user_groups is not None:
        return block_groups, ""
    number = len(set(block_groups))
    if number == len(block_groups):
        return None, ""
    if number < FEWEST:
        origin = f"the {len(block_groups)} blocks of {table.name} are from {number} document{'s' * (number != 1)}"
        return None, f"{origin}, too few to draw them whole: intervals take blocks for independent"
    return block_groups, ""
