"""Which column of the data is what: the texts, the label, the target, found by their usual names or by the user's."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import BadData
from .files import TABLES, Sheet, read_sheet
from .text_files import PACKINGS, display_name, ending, located, read_lines

PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("#1 string", "#2 string"),
    ("question", "sentence"),
    ("question", "passage"),
    ("sentence_a", "sentence_b"),
    ("text_a", "text_b"),
    ("text1", "text2"),
)
SINGLES = ("sentence", "text", "content", "review", "document", "article", "input")
LABELS = ("gold_label", "label", "labels", "is_duplicate", "quality", "class", "category", "sentiment", "score")
NUMBERS = ("score", "label", "labels", "similarity_score", "similarity", "rating", "quality")
TARGETS = (
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("document", "summary"),
    ("article", "highlights"),
    ("input", "output"),
)
MESSAGES = ("messages", "conversations", "conversation")  # lists of what was said, of language modelling
IMAGES = ("image", "img", "picture", "pixel_values")
USUAL = frozenset(name for names in (*PAIRS, SINGLES, LABELS, NUMBERS, *TARGETS, IMAGES) for name in names)
UNMARKED = ("", "-")  # SNLI and MNLI write - where the annotators did not agree

Names = str | int | Sequence[str | int] | None


@dataclass(frozen=True, eq=False)
class Table:
    """Examples: one or two columns of texts (or one of pictures), labels or none, and where each came from.

    `rows` counts from 1 in the data; `skipped` rows had no label. `classes` counts each label of all the data, also
    after `drawn`; `class_names` are names that the data itself gives to the labels 0, 1, 2, ... `groups` has for every
    example the name of what it belongs to, None where the data says nothing; it is None itself where nobody asked.
    """

    name: str
    texts: tuple[Sequence[Any], ...]
    labels: Sequence[Any] | None = None
    rows: Sequence[int] = ()
    skipped: int = 0
    classes: Mapping[str, int] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    plain: bool = False
    groups: Sequence[str | None] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def chosen(self, numbers: Sequence[int]) -> Table:
        """The examples of these numbers, in this order."""
        texts = tuple([column[number] for number in numbers] for column in self.texts)
        labels = None if self.labels is None else [self.labels[number] for number in numbers]
        groups = None if self.groups is None else [self.groups[number] for number in numbers]
        return replace(self, texts=texts, labels=labels, rows=[self.rows[number] for number in numbers], groups=groups)

    def drawn(self, limit: int | None, seed: int | None) -> Table:
        """At most `limit` examples, drawn by `drawn_numbers`."""
        return self if limit is None else self.chosen(drawn_numbers(len(self), limit, seed))

    def place(self, number: int) -> str:
        """Where example `number` came from and what it says, in a few words, for error messages."""
        first = self.texts[0][number]
        text = first if isinstance(first, str) else Path(first).name if isinstance(first, Path) else ""
        text = " ".join(text.split())
        words = text if len(text) <= 60 else text[:57] + "..."
        return f"row {self.rows[number]} of {self.name.rpartition('/')[2]}" + (f": '{words}'" if words else "")


def drawn_numbers(size: int, limit: int, seed: int | None) -> list[int]:
    """The first `limit` of `size` numbers after a shuffle by `seed` (unshuffled when seed is None), sorted.

    A larger limit with the same seed contains the smaller one.
    """
    if limit < 1:
        raise BadData(f"limit is {limit}; it is a number of examples, at least 1.")
    numbers = list(range(size))
    if seed is not None:
        random.Random(seed).shuffle(numbers)
    return sorted(numbers[:limit])


def read_table(
    data: Any,
    wants: str,
    *,
    text: Names = None,
    label: Names = None,
    target: Any = None,
    split: str | None = None,
    group: str | int | Path | None = None,
    limit: int | None = None,
) -> Table:
    """The examples in `data`; `wants` is "label", "number", "target", "image", "text" (a text alone) or "messages" (a text
    alone, or a list of messages).

    `text` and `label` name columns, by name or by number from 1; two texts are "a,b" or a pair. `target` is the column
    of the target texts or the file that holds them, one to every line of the source. `group` is the column that names
    what each row belongs to; of plain text, a file with one name to every line. `limit` is how many examples will be drawn.
    """
    pair = _pair_of_files(data, text, target) if wants == "target" else None
    if pair is not None:
        return _parallel(*pair, group)
    column_names = [name.lower() for names in (text, label, target, group) for name in listed_names(names)]
    sheet = read_sheet(
        _columns_of_tuples(data, wants),
        split=split,
        expected={*USUAL, *column_names},
        table=wants in ("label", "number", "target"),
        limit=limit,
    )
    if sheet.plain and wants in ("label", "number", "target"):
        raise BadData(
            f"{sheet.name} is plain text, one column without "
            f"{'targets; give the file of targets as target= (--target)' if wants == 'target' else 'labels; give a table'}."
        )
    if wants == "target":
        columns = _target_columns(sheet, text, target)
        missing = tuple(value is None for value in values_of(sheet, columns[1]))
        return _table(sheet, columns, None, missing, group)
    chats = wants == "messages" and _holds_messages(sheet, text)
    if wants == "image":
        columns = _image_column(sheet, text)
    elif chats:
        columns = [
            usual_column(sheet, MESSAGES) or "" if text is None else named_column(sheet, listed_names(text)[0], "text")
        ]
    else:
        columns = _text_columns(sheet, text, single=wants in ("text", "messages"))
    if wants in ("text", "messages"):
        return _table(sheet, columns, None, (), group, objects=chats)
    named = _label_column(sheet, label, NUMBERS if wants == "number" else LABELS)
    values = values_of(sheet, named)
    missing = tuple(unmarked(value) for value in values)
    if wants == "number":
        values = [_number(sheet, named, row, value) for row, value in enumerate(values, 1)]
    table = _table(sheet, columns, values, missing, group, objects=wants == "image")
    if wants == "number":
        return table
    written = [as_written(value) for value in table.labels or ()]
    if set(written) == {"-1"}:
        raise BadData(f"Every label of {sheet.name} is -1, which stands for no label; take a split that has labels.")
    return replace(table, labels=written, classes=Counter(written), class_names=sheet.classes.get(named))


def _table(
    sheet: Sheet,
    columns: Sequence[str],
    labels: list[Any] | None,
    missing: Sequence[bool],
    group: str | int | Path | None,
    objects: bool = False,
) -> Table:
    """The rows that are not missing, with their texts checked."""
    texts = [values_of(sheet, column) for column in columns]
    kept_rows = [number for number in range(len(texts[0])) if not (missing and missing[number])]
    if not kept_rows:
        raise BadData(f"No row of {sheet.name} has a label; take a file or a split that has labels.")
    for column, values in zip(columns, texts, strict=True):
        strange = next((number for number in kept_rows if not objects and not isinstance(values[number], str)), None)
        if strange is not None:
            raise BadData(
                f"Row {strange + 1} of {sheet.name} has {values[strange]!r:.60} in column {column!r}, which is not text; "
                "name a column of texts with text= (--text), or mend that row."
            )
    groups = _line_groups(group, sheet.name, len(texts[0])) if sheet.plain else column_groups(sheet, group)
    rows = range(1, len(texts[0]) + 1)
    table = Table(sheet.name, tuple(texts), labels, rows, plain=sheet.plain, groups=groups, notes=sheet.notes)
    return replace(
        table.chosen(kept_rows) if len(kept_rows) < len(table) else table, skipped=len(table) - len(kept_rows)
    )


def _columns_of_tuples(data: Any, wants: str) -> Any:
    """Rows (text, label), (text, text, label) or (source, target) as named columns; anything else as it is."""
    if not isinstance(data, list | tuple) or not data or not all(isinstance(row, tuple | list) for row in data):
        return data
    widths, first = {len(row) for row in data}, data[0]
    last = "target" if wants == "target" else "label"
    names = {2: ("text", last), 3: ("sentence1", "sentence2", last)}.get(widths.pop() if len(widths) == 1 else 0)
    if wants not in ("label", "number", "target") or names is None or not isinstance(first[0], str):
        raise BadData(
            f"The data are {type(first).__name__}s, and I do not know what stands where in them; give rows (text, label), "
            "(text, text, label) or (source, target), or dicts that name their cells."
        )
    names = ("source", "target") if wants == "target" else names
    return {name: [row[place] for row in data] for place, name in enumerate(names)}


# --- columns --------------------------------------------------------------------------------------------------------


def listed_names(names: Any) -> list[str]:
    """The names a user gave: one, several, or several in one text with commas between."""
    if names is None or isinstance(names, Path):
        return []
    if isinstance(names, str):
        return [names, *(part.strip() for part in names.split(","))] if "," in names else [names]
    return [str(names)] if isinstance(names, int) else [str(name) for name in names]


def named_column(sheet: Sheet, name: str, option: str) -> str:
    """The column of that name, in whatever case, or of that number."""
    lower = {column.lower(): column for column in reversed(sheet.names)}
    if name in sheet.names or name.lower() in lower:
        return name if name in sheet.names else lower[name.lower()]
    if name.isdecimal() and 1 <= int(name) <= len(sheet.names):
        return sheet.names[int(name) - 1]
    raise BadData(
        f"{sheet.name} has no column {name!r}; its columns are {names_of(sheet)}: choose with {option}= (--{option})."
    )


def names_of(sheet: Sheet) -> str:
    """The names of the columns, for messages."""
    return ", ".join(repr(name[:40]) for name in sheet.names[:40])


def usual_column(sheet: Sheet, names: Sequence[str]) -> str | None:
    """The first of these names, in small letters, that a column has."""
    lower = {column.lower(): column for column in reversed(sheet.names) if column not in sheet.nested}
    return next((lower[name] for name in names if name in lower), None)


def _text_columns(sheet: Sheet, text: Names, single: bool) -> list[str]:
    if text is not None:
        names = listed_names(text)
        if isinstance(text, str) and len(names) > 1:
            names = names[:1] if text in sheet.names else names[1:]
        if not 1 <= len(names) <= (1 if single else 2):
            raise BadData(f"text= names {len(names)} columns; {'one is' if single else 'one or two are'} needed.")
        return [named_column(sheet, name, "text") for name in names]
    if not single:
        for first, second in PAIRS:
            pair = (usual_column(sheet, [first]), usual_column(sheet, [second]))
            if pair[0] and pair[1]:
                return [pair[0], pair[1]]
    column = usual_column(sheet, SINGLES)
    if column is None:
        raise BadData(
            f"I do not know which column of {sheet.name} holds the text; its columns are {names_of(sheet)}: name one "
            "with text= (--text), or by its number (from 1) where the file has no header."
        )
    return [column]


def _holds_messages(sheet: Sheet, text: Names) -> bool:
    """Whether the column that is named, or the only one that can be meant, holds conversations."""
    names = listed_names(text)
    column = named_column(sheet, names[0], "text") if len(names) == 1 else None
    if text is None and usual_column(sheet, SINGLES) is None:
        column = usual_column(sheet, MESSAGES)
    return column is not None and any(isinstance(value, list | tuple) for value in values_of(sheet, column)[:10])


def _label_column(sheet: Sheet, label: Names, usual: Sequence[str]) -> str:
    if label is not None:
        return named_column(sheet, str(label), "label")
    column = usual_column(sheet, usual)
    if column is None:
        raise BadData(
            f"{sheet.name} has no column of labels that I know; its columns are {names_of(sheet)}: name one with "
            "label= (--label), or give the labelled file (GLUE's test files have no labels, its dev files do)."
        )
    return column


def _image_column(sheet: Sheet, text: Names) -> list[str]:
    names = listed_names(text)
    column = named_column(sheet, names[0], "text") if names else usual_column(sheet, IMAGES)
    if column is None:
        raise BadData(
            f"{sheet.name} has no column of pictures; its columns are {names_of(sheet)}: choose with text= (--text)."
        )
    return [column]


def _target_columns(sheet: Sheet, text: Names, target: Any) -> list[str]:
    if text is None and target is None:
        for source, goal in TARGETS:
            pair = (usual_column(sheet, [source]), usual_column(sheet, [goal]))
            if pair[0] and pair[1]:
                return [pair[0], pair[1]]
    if text is None or target is None:
        raise BadData(
            f"I do not know which columns of {sheet.name} hold source and target; its columns are {names_of(sheet)}: "
            "name them with text= and target= (--text, --target)."
        )
    return [named_column(sheet, str(text), "text"), named_column(sheet, str(target), "target")]


# --- values ---------------------------------------------------------------------------------------------------------


def values_of(sheet: Sheet, column: str) -> list[Any]:
    """The cells of a column, None where a table in memory has a NaN."""
    return [None if isinstance(value, float) and math.isnan(value) else value for value in sheet.column(column)]


def unmarked(value: Any) -> bool:
    """Whether a cell says nothing."""
    return value is None or (isinstance(value, str) and value.strip() in UNMARKED)


def as_written(value: Any) -> str:
    """A label as it would stand in a text file: True, 1, 1.0 and "1" are the same."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | int) or (hasattr(value, "__index__")):
        return str(int(value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _number(sheet: Sheet, column: str, row: int, value: Any) -> float | None:
    if unmarked(value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BadData(
            f"Row {row} of {sheet.name} has {value!r:.60} in column {column!r}, which is not a finite number; "
            "name the column of scores with label= (--label), or use the kind classification."
        )
    return number


# --- groups ---------------------------------------------------------------------------------------------------------


def column_groups(sheet: Sheet, group: str | int | Path | None) -> list[str | None] | None:
    """What the rows of a table belong to, by the column of that name; None where a cell is empty."""
    if group is None:
        return None
    values = values_of(sheet, named_column(sheet, str(group), "group"))
    return [None if value is None else as_written(value) or None for value in values]


def _line_groups(group: str | int | Path | None, name: str, lines: int) -> list[str | None] | None:
    """What the lines of a plain text belong to, by a file that names it line by line; None where a line is blank."""
    if group is None:
        return None
    path = located(str(group))
    if path is None or path.is_dir():
        raise BadData(
            f"{name} is plain text without columns, and there is no file {str(group)!r:.80}; give as group= (--group) a "
            "file with the name of a group for every line."
        )
    names = read_lines(path)
    if len(names) != lines:
        raise BadData(
            f"{name} has {lines} lines and {display_name(path)} has {len(names)}; every line needs its group."
        )
    return [line.strip() or None for line in names]


# --- parallel files -------------------------------------------------------------------------------------------------


def _pair_of_files(data: Any, text: Names, target: Any) -> tuple[Path, Path] | None:
    """Source and target file, from a pair of paths, a path and `target`, or a stem and two endings; else None."""
    if isinstance(data, list | tuple) and len(data) == 2 and all(isinstance(path, str | Path) for path in data):
        first, second = (located(path) for path in data)
        if first is None or second is None:
            missing = data[0] if first is None else data[1]
            raise BadData(f"There is no file {str(missing)!r}; give the files of source and target.")
        return first, second
    if not isinstance(data, str | Path) or not isinstance(target, str | Path):
        return None
    source = located(data) or (located(f"{data}.{text}") if isinstance(text, str) else None)
    if source is None:
        return None
    stem = source.with_suffix("") if source.suffix in PACKINGS else source
    beside = located(stem.with_suffix(f".{target}")) if "/" not in str(target) else None
    goal = located(target) or beside
    if goal is None and ending(source) not in TABLES:
        raise BadData(
            f"There is no file {str(target)!r} that goes with {source}; give the file of targets as target= (--target)."
        )
    return None if goal is None or goal.is_dir() or source.is_dir() else (source, goal)


def _parallel(source: Path, target: Path, group: str | int | Path | None) -> Table:
    columns = []
    for path in (source, target):
        sheet = read_sheet(path)
        if not sheet.plain:
            raise BadData(f"{sheet.name} is a table; of two files, each must be plain text with one sentence a line.")
        columns.append(sheet.column("text"))
    if len(columns[0]) != len(columns[1]):
        raise BadData(
            f"{display_name(source)} has {len(columns[0])} lines and {display_name(target)} has {len(columns[1])}; "
            "every source needs its target on the same line."
        )
    lines = len(columns[0])
    groups = _line_groups(group, display_name(source), lines)
    return Table(display_name(source), tuple(columns), rows=range(1, lines + 1), groups=groups)
