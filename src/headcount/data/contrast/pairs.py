"""Contrast data: which columns hold the clean and the corrupted prompt, the right and the wrong answers.

Two shapes are read: a row with `clean`, `corrupted`, `answer` and `wrong`, and a row with `prompt`, `choices` and `answerKey`
whose counterfactual is an object with the same fields (as in the data sets of MIB, Mueller et al. 2025).
"""

from __future__ import annotations

import json
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

CLEAN: tuple[str, ...] = ("clean", "clean_prompt", "clean_text", "prompt", "original", "text", "sentence", "input")
CORRUPTED: tuple[str, ...] = (
    *("corrupted", "corrupt", "counterfactual", "corrupted_prompt", "corrupt_prompt", "counterfactual_prompt"),
    *("corrupted_text", "counterfactual_text", "corr"),
)
ENDING = "_counterfactual"  # random_counterfactual, s2_io_flip_counterfactual, ...
RIGHT: tuple[str, ...] = (
    *("answer", "answers", "right", "right_answers", "right_answer", "correct", "correct_answers", "correct_answer"),
    *("clean_answer", "answerkey", "answer_key", "label", "target"),
)
WRONG: tuple[str, ...] = (
    *("wrong", "wrong_answers", "wrong_answer", "incorrect", "incorrect_answers", "incorrect_answer"),
    *("corrupted_answer", "corrupt_answer", "counterfactual_answer", "distractor", "distractors"),
)
CHOICES = ("choices", "options")
BETWEEN = "|"  # several answers in a cell of a text file


class Answers(NamedTuple):
    """The right and the wrong answers to a prompt, as they are written."""

    right: tuple[str, ...]
    wrong: tuple[str, ...]


def read_pairs(
    data: Any,
    *,
    text: Names = None,
    target: Any = None,
    label: str | int | None = None,
    choices: Names = None,
    split: str | None = None,
    group: str | int | Path | None = None,
    limit: int | None = None,
) -> Table:
    """Clean and corrupted prompts as the two columns of a table, and as its labels the `Answers` of each row.

    `text`, `target`, `label` and `choices` name the columns of the clean prompt, the corrupted prompt, the right answers and
    the wrong ones. Rows without an answer are skipped. What was guessed is in the notes.
    """
    named = [name for names in (text, target, label, choices, group) for name in listed_names(names)]
    usual = {*CLEAN, *CORRUPTED, *RIGHT, *WRONG, *CHOICES}
    sheet = read_sheet(data, split=split, expected={*usual, *map(str.lower, named)}, table=True, limit=limit)
    if sheet.plain:
        raise BadData(
            f"{sheet.name} is plain text; a contrast task needs a table with clean and corrupted prompts, right and wrong "
            "answers."
        )
    clean = _column(sheet, text, "text", CLEAN, "clean prompt")
    corrupted = _corrupted_column(sheet, target)
    right = _column(sheet, label, "label", RIGHT, "right answer")
    options = usual_column(sheet, CHOICES)
    wrong = usual_column(sheet, WRONG) if choices is None else named_column(sheet, listed_names(choices)[0], "choices")
    answers = _answers(sheet, {"right": right, "wrong": wrong, "options": options, "corrupted": corrupted})
    kept = [number for number, one in enumerate(answers) if one is not None]
    if not kept:
        raise BadData(f"No row of {sheet.name} has an answer; take a file or a split that has answers.")
    prompts = tuple(_prompts(sheet, column) for column in (clean, corrupted))
    source = wrong or options or f"the answer of {corrupted}"
    guesses = f"clean prompts are in {clean!r}, corrupted ones in {corrupted!r}, right answers in {right!r}, "
    guesses += f"wrong ones in {source!r}"
    return Table(
        sheet.name,
        prompts,
        answers,
        range(1, len(answers) + 1),
        skipped=len(answers) - len(kept),
        groups=column_groups(sheet, group),
        notes=(*sheet.notes, guesses),
    ).chosen(kept)


def _column(sheet: Sheet, name: Names, option: str, usual: Sequence[str], what: str) -> str:
    if name is not None:
        return named_column(sheet, listed_names(name)[0], option)
    column = usual_column(sheet, usual)
    if column is None:
        raise BadData(
            f"I do not know which column of {sheet.name} holds the {what}; its columns are {names_of(sheet)}: name it with "
            f"{option}= (--{option})."
        )
    return column


def _corrupted_column(sheet: Sheet, target: Any) -> str:
    if target is not None:
        return named_column(sheet, str(target), "target")
    column = usual_column(sheet, CORRUPTED)
    kinds = [name for name in sheet.names if name.lower().endswith(ENDING) and name not in sheet.nested]
    if column is None and len(kinds) > 1:
        raise BadData(
            f"{sheet.name} has several counterfactuals ({', '.join(kinds)}); choose one with target= (--target {kinds[0]})."
        )
    return column or (kinds[0] if kinds else _column(sheet, None, "target", (), "corrupted prompt"))


def _prompts(sheet: Sheet, column: str) -> list[str]:
    prompts = [_prompt_in(value) for value in values_of(sheet, column)]
    strange = next(
        (row for row, prompt in enumerate(prompts) if not isinstance(prompt, str) or not prompt.strip()), None
    )
    if strange is not None:
        raise BadData(
            f"Row {strange + 1} of {sheet.name} has {values_of(sheet, column)[strange]!r:.60} in column {column!r}, which is no "
            "prompt; mend it, or name another column with text= and target= (--text, --target)."
        )
    return prompts


def _prompt_in(value: Any) -> Any:
    if isinstance(value, Mapping):
        return next((value[name] for name in ("prompt", "clean", "text", "sentence") if name in value), None)
    return value


# --- answers --------------------------------------------------------------------------------------------------------


def _answers(sheet: Sheet, columns: Mapping[str, str | None]) -> list[Answers | None]:
    """The answers of every row; None for rows that have no right one."""
    cells = {what: None if column is None else values_of(sheet, column) for what, column in columns.items()}
    found: list[Answers | None] = []
    for row, value in enumerate(cells["right"] or ()):
        if unmarked(value):
            found.append(None)
            continue
        others = {what: None if column is None else column[row] for what, column in cells.items()}
        options = _listed(others["options"], names=True)
        right = _named(value, options)
        if not unmarked(others["wrong"]):
            wrong = _named(others["wrong"], options)
        elif options:
            wrong = tuple(option for option in options if option not in right)
        else:
            wrong = tuple(answer for answer in _answer_in(others["corrupted"]) if answer not in right)
        if not right or not wrong or not all(answer.strip() for answer in (*right, *wrong)):
            raise BadData(
                f"Row {row + 1} of {sheet.name} has the right answers {list(right)!r:.60} and the wrong ones "
                f"{list(wrong)!r:.60}; it needs at least one of each, none of them empty: name the column of wrong answers with "
                "choices= (--choices)."
            )
        found.append(Answers(right, wrong))
    return found


def _named(value: Any, options: Sequence[str]) -> tuple[str, ...]:
    """The answers that a cell holds, or the choices whose places or texts it names."""
    answers = _listed(value)
    places = [as_written(answer) for answer in answers]
    if options and all(place not in options and place.isdecimal() and int(place) < len(options) for place in places):
        return tuple(options[int(place)] for place in places)
    return answers


def _answer_in(value: Any) -> tuple[str, ...]:
    """The answer that goes with a counterfactual, where that is an object with one."""
    if not isinstance(value, Mapping):
        return ()
    lower = {str(name).lower(): cell for name, cell in value.items()}
    cell = next((lower[name] for name in RIGHT if name in lower), None)
    return () if unmarked(cell) else _named(cell, _listed(lower.get("choices"), names=True))


def _listed(value: Any, names: bool = False) -> tuple[str, ...]:
    """A list of texts, the same as JSON or with bars between; of an object of names and texts the `names`, if asked for."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except ValueError:
            return (value,)
    if isinstance(value, Mapping):
        value = value.get("label" if names else "text") or value.get("text") or value.get("label")
    if isinstance(value, str):
        return tuple(value.split(BETWEEN)) if value.strip(BETWEEN) else (value,)
    if isinstance(value, Sequence):
        return tuple(one if isinstance(one, str) else as_written(one) for one in value)
    return () if value is None else (as_written(value),)
