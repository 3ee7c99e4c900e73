"""Multiple choice data: which columns hold the context, the choices and the answer, and which choice the answer is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import BadData
from ..columns import (
    Names,
    Table,
    as_written,
    column_groups,
    listed_names,
    named_column,
    names_of,
    unmarked,
    usual_column,
    values_of,
)
from ..files import Sheet, read_sheet
from ..text_files import display_name, located, read_lines

CHOICES = ("choices", "endings", "options", "candidates")  # a list in every row
NUMBERED = re.compile(r"(sol|ending|choice|option|answer|candidate|op)[ _-]?([0-9]|[a-e])")  # a column for every choice
LETTERED = "abcdefgh"
QUESTIONS = ("question", "goal", "query", "stem")  # are asked: "Question: ...", "Answer:"
CONTEXTS = ("ctx", "context", "premise", "sentence", "prompt", "text", "input")  # are continued
ANSWERS = (
    "answerkey",
    "answer_key",
    "answer",
    "label",
    "gold",
    "gold_label",
    "correct",
    "correct_answer",
    "answer_idx",
)
FIELD = re.compile(r"\{([^{}]+)\}")
LABEL_FILES = ("{}-labels.lst", "{}_labels.lst", "{}-labels.txt", "{}_labels.txt")


class _Options(NamedTuple):
    """The choices of one row, and the names that the data gives them (A, B, ...), if any."""

    texts: tuple[str, ...]
    names: tuple[str, ...] = ()


def read_choices(
    data: Any,
    *,
    text: Names = None,
    choices: Names = None,
    label: str | int | None = None,
    prompt: str | None = None,
    split: str | None = None,
    group: str | int | Path | None = None,
    limit: int | None = None,
) -> Table:
    """Contexts and choices as the two columns of a table, and as its labels the places of the right choices, from 0 on.

    `prompt` is the context with the names of columns in braces; without it a question gets "Question:" and "Answer:" around
    it, and any other context is taken as it is. Rows without an answer are skipped. What was guessed is in the notes.
    """
    named = [
        *listed_names(text),
        *listed_names(choices),
        *listed_names(label),
        *listed_names(group),
        *FIELD.findall(prompt or ""),
    ]
    usual = {*CHOICES, *QUESTIONS, *CONTEXTS, *ANSWERS, "activity_label"}
    usual |= {f"{word}{n}" for word in ("sol", "ending", "choice", "option") for n in range(5)}
    sheet = read_sheet(data, split=split, expected={*usual, *map(str.lower, named)}, table=True, limit=limit)
    if sheet.plain:
        raise BadData(
            f"{sheet.name} is plain text; multiple choice needs a table with a context, choices and an answer."
        )
    columns = _choice_columns(sheet, choices)
    options = _options(sheet, columns)
    template = _template(sheet, text) if prompt is None else prompt
    contexts = _contexts(sheet, template)
    answers, where = _answer_values(sheet, data, label, len(options))
    kept = [number for number, value in enumerate(answers) if not unmarked(value)]
    if not kept:
        raise BadData(f"No row of {sheet.name} has an answer; take a file or a split that has answers.")
    right, counting = _places(sheet.name, options, answers, kept)
    groups = column_groups(sheet, group)
    guesses = f"the choices are in {', '.join(map(repr, columns))}, the answer in {where}, and each choice follows {template!r}"
    return Table(
        sheet.name,
        (contexts, [option.texts for option in options]),
        right,
        range(1, len(options) + 1),
        skipped=len(options) - len(kept),
        groups=groups,
        notes=(*sheet.notes, guesses, *[counting] * bool(counting)),
    ).chosen(kept)


# --- the choices ----------------------------------------------------------------------------------------------------


def _choice_columns(sheet: Sheet, choices: Names) -> list[str]:
    if choices is not None:
        names = listed_names(choices)
        if isinstance(choices, str) and len(names) > 1:
            names = names[:1] if choices in sheet.names else names[1:]
        return [named_column(sheet, name, "choices") for name in names]
    column = usual_column(sheet, CHOICES)
    if column is not None:
        return [column]
    families: dict[str, list[str]] = {}
    for name in sheet.names:
        match = NUMBERED.fullmatch(name.lower())
        if match:
            families.setdefault(match[1], []).append(name)
    for names in families.values():
        if len(names) > 1:
            return sorted(names, key=str.lower)
    lower = {name.lower(): name for name in sheet.names}
    letters = [lower[letter] for letter in LETTERED if letter in lower]
    if len(letters) > 1:
        return letters
    raise BadData(
        f"I do not know which columns of {sheet.name} hold the choices; its columns are {names_of(sheet)}: name the one with "
        "a list of them, or one for each, with choices= (--choices a,b)."
    )


def _options(sheet: Sheet, columns: Sequence[str]) -> list[_Options]:
    if len(columns) > 1:
        rows = [_Options(texts) for texts in zip(*(values_of(sheet, column) for column in columns), strict=True)]
    else:
        rows = [_of_cell(value) for value in values_of(sheet, columns[0])]
    for row, option in enumerate(rows, 1):
        texts = option.texts
        if len(texts) < 2 or not all(isinstance(text, str) and text.strip() for text in texts):
            raise BadData(
                f"Row {row} of {sheet.name} has {list(texts)!r:.80} as its choices; it must have two or more, none of them empty."
            )
    return rows


def _of_cell(value: Any) -> _Options:
    """A list of texts, the same as JSON, or ARC's object of texts and their names."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except ValueError:
            return _Options(())
    names: Sequence[Any] = ()
    if isinstance(value, Mapping):
        names, value = value.get("label") or (), value.get("text")
    if isinstance(value, list | tuple) and value and all(isinstance(one, Mapping) for one in value):
        names, value = [one.get("label") for one in value], [one.get("text") for one in value]
    texts = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return _Options(texts, tuple(map(as_written, names)) if len(names) == len(texts) else ())


# --- the context ----------------------------------------------------------------------------------------------------


def _template(sheet: Sheet, text: Names) -> str:
    if text is not None:
        return f"{{{named_column(sheet, listed_names(text)[0], 'text')}}}"
    question = usual_column(sheet, QUESTIONS)
    if question is not None:
        return f"Question: {{{question}}}\nAnswer:"
    context, activity = usual_column(sheet, CONTEXTS), usual_column(sheet, ["activity_label"])
    if context is None:
        raise BadData(
            f"I do not know which column of {sheet.name} holds the question; its columns are {names_of(sheet)}: name one "
            "with text= (--text), or write the context as prompt= (--prompt 'Question: {question} Answer:')."
        )
    return f"{{{context}}}" if activity is None else f"{{{activity}}}: {{{context}}}"


def _contexts(sheet: Sheet, template: str) -> list[str]:
    """The template of every row, with the cells of its columns in the place of their names."""
    columns = {name: named_column(sheet, name, "prompt") for name in FIELD.findall(template)}
    if not columns:
        raise BadData(
            f"The prompt {template!r:.80} names no column, so that all contexts were the same; write columns in braces, such as "
            "{question}."
        )
    cells = {name: values_of(sheet, column) for name, column in columns.items()}
    contexts = []
    for row in range(len(next(iter(cells.values())))):
        strange = next((name for name in columns if not isinstance(cells[name][row], str)), None)
        if strange is not None:
            raise BadData(
                f"Row {row + 1} of {sheet.name} has {cells[strange][row]!r:.60} in column {strange!r}, which is not text; mend "
                "it, or name another column with text= (--text)."
            )
        parts = FIELD.split(template)  # text, name, text, name, ..., text
        parts[1::2] = [cells[name][row] for name in parts[1::2]]
        contexts.append("".join(parts))
    return contexts


# --- the answer -----------------------------------------------------------------------------------------------------


def _answer_values(sheet: Sheet, data: Any, label: str | int | None, rows: int) -> tuple[list[Any], str]:
    """The answers as they are written, and where they are: in a column, or in a file with one to every row."""
    lower = {name.lower() for name in sheet.names}
    if label is not None and (str(label).lower() in lower or located(str(label)) is None):
        column = named_column(sheet, str(label), "label")
        return values_of(sheet, column), repr(column)
    guessed = usual_column(sheet, ANSWERS) if label is None else None
    if guessed is not None:
        return values_of(sheet, guessed), repr(guessed)
    path = _beside(data) if label is None else located(str(label))
    if path is None or path.is_dir():
        raise BadData(
            f"{sheet.name} has no column of answers that I know; its columns are {names_of(sheet)}: name one, or a file with "
            "an answer on every line, with label= (--label)."
        )
    lines = [line.strip() for line in read_lines(path)]
    if len(lines) != rows:
        raise BadData(
            f"{sheet.name} has {rows} rows and {display_name(path)} has {len(lines)}; every row needs its answer."
        )
    return list(lines), display_name(path)


def _beside(data: Any) -> Path | None:
    """A file of answers beside the data, as PIQA has it: valid.jsonl and valid-labels.lst."""
    path = located(data) if isinstance(data, str | Path) else None
    if path is None:
        return None
    found = (path.with_name(name.format(path.name.split(".")[0])) for name in LABEL_FILES)
    return next((one for one in found if one.is_file()), None)


def _places(
    name: str, options: Sequence[_Options], answers: Sequence[Any], kept: Sequence[int]
) -> tuple[list[Any], str]:
    """Which choice every answer is (None for rows that are not kept), and a note where numbers count from 1."""
    written = {row: as_written(answers[row]) for row in kept}
    loose = {row for row in kept if written[row] not in options[row].names and written[row].isdecimal()}
    numbers = {int(written[row]) for row in loose}
    beyond = any(int(written[row]) >= len(options[row].texts) for row in loose)
    first = 1 if beyond and 0 not in numbers else 0
    places: list[Any] = [None] * len(options)
    for row in kept:
        option, answer = options[row], written[row]
        if answer in option.names:
            place = option.names.index(answer)
        elif row in loose:
            place = int(answer) - first
        elif answer in option.texts:
            place = option.texts.index(answer)
        elif len(answer) == 1 and not option.names and answer.lower() in LETTERED:
            place = LETTERED.index(answer.lower())
        else:
            place = -1
        if not 0 <= place < len(option.texts):
            raise BadData(
                f"Row {row + 1} of {name} names {answer!r:.40} as the answer, and it has {len(option.texts)} choices "
                f"({', '.join(option.names) or 'numbered from 0, or lettered from A'}); mend that row, or name the column of "
                "answers with label= (--label)."
            )
        places[row] = place
    return places, f"the answers of {name} are numbered from 1" if first else ""
