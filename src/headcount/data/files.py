"""Reading data: files, folders, tables in memory and data sets by name become one `Sheet` of named columns.

What a file is, is told by its first bytes and its ending: gzip, xz and Parquet announce themselves, .tsv, .csv, .json
and .jsonl are tables, everything else is plain text with one sentence a line. Nothing is guessed silently: another
delimiter than the comma and a missing header are in the notes of the sheet; a row with a wrong number of cells, bytes that
are not UTF-8, an empty or a binary file are errors with the place.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import BadData
from .text_files import PACKINGS, Content, decoded, display_name, ending, lines_of, located, unpacked

TABLES = (".tsv", ".tab", ".csv", ".jsonl", ".ndjson", ".json", ".parquet")
PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
VALIDATION = ("validation", "dev", "valid")  # splits that are taken when none is named
COLA = ("source", "label", "star", "sentence")
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
FIRST_ROWS = 50  # rows from which the delimiter and the header are told
MOST_LABELS = 0.1  # share of different values up to which the cells of a column may be labels


@dataclass(frozen=True, eq=False)
class Sheet:
    """Named columns of equal length. `column(name)` gives the values; `classes` the names that go with whole numbers.

    `plain` says that the rows are the lines of a plain text, blank ones among them. `nested` are those of the names that
    stand inside the objects of another column: they count where they are asked for, and are never taken for what they
    happen to be called. `notes` are sentences about how the data was read.
    """

    name: str
    names: tuple[str, ...]
    column: Callable[[str], list[Any]]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    plain: bool = False
    nested: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def read_sheet(
    data: Any,
    *,
    split: str | None = None,
    expected: Collection[str] = (),
    table: bool = False,
    limit: int | None = None,
) -> Sheet:
    """The columns of a file, of a table in memory, of a folder of pictures, or of a data set by name.

    `split` goes with a data set, and a name may bring its own: glue/sst2@train.

    `expected` are names by which a header row is recognised, in small letters; numbers among them say that columns are
    asked for by place. `table` says that plain text will not do, so that a text file with tabs is read as a table. `limit`
    is how many rows are needed: of a compressed file that is large, no more is read than they need.
    """
    if not isinstance(data, str | Path):
        return _in_memory(data, split)
    path = located(data)
    if path is None:
        return _by_name(*_name_and_split(str(data), split), str(data))
    if path.is_dir():
        return _pictures(path, split)
    if split is not None:
        raise BadData(
            f"{path.name} is a file and has no split {split!r}; leave split out, or give the file of that split."
        )
    return _file(path, expected, table, limit)


# --- files ----------------------------------------------------------------------------------------------------------


def _file(path: Path, expected: Collection[str], table: bool, limit: int | None) -> Sheet:
    kind = ending(path)
    content = unpacked(path, None if kind == ".json" else limit)
    if not content.data.strip():
        raise BadData(f"{path} is empty; give a file with at least one row.")
    if content.data[:4] == b"PAR1" or kind == ".parquet":
        return _parquet(path, content.data)
    sheet = _text(path, decoded(path, content.data), content, expected, table)
    if not content.more:
        return sheet
    size = f"the first {len(content.data) / 2**20:,.0f} MiB of what is in {display_name(path)} were read"
    return replace(sheet, notes=(*sheet.notes, f"{size}, and the examples are drawn from these"))


def _text(path: Path, text: str, content: Content, expected: Collection[str], table: bool) -> Sheet:
    kind = ending(path)
    if kind not in TABLES and table and "\t" in text.split("\n", 1)[0]:
        kind = ".tsv"
    if kind in (".tsv", ".tab"):
        # no quoting: quotation marks in GLUE's files are part of the sentences, and not balanced
        rows = [(number, line.split("\t")) for number, line in enumerate(lines_of(text), 1) if line.strip()]
        return _rows(path, rows, expected, table)
    if kind == ".csv":
        delimiter = _delimiter(text)
        sheet = _rows(path, _csv(path, text, delimiter, whole=not content.more), expected, table)
        parted = f"the cells of {sheet.name} are parted by {DELIMITERS[delimiter]}"
        return sheet if delimiter == "," else replace(sheet, notes=(parted, *sheet.notes))
    if kind in (".jsonl", ".ndjson"):
        return _records(display_name(path), _json_lines(path, text))
    if kind == ".json":
        return _json(path, text)
    lines = lines_of(text)
    return Sheet(display_name(path), ("text",), lambda _: list(lines), plain=True)


def _delimiter(text: str) -> str:
    """What parts the cells of a CSV file: commas, unless they do not part its first rows evenly and something else does."""
    start = "".join(line + "\n" for line in text.split("\n", FIRST_ROWS)[:FIRST_ROWS])
    for delimiter in DELIMITERS:
        widths = set()
        try:
            widths = {len(row) for row in csv.reader(io.StringIO(start, newline=""), delimiter=delimiter) if row}
        except csv.Error:
            continue  # a cell of enormous size; what is wrong with it is said where the file is read
        if len(widths) == 1 and widths != {1}:
            return delimiter
    return ","


def _csv(path: Path, text: str, delimiter: str, whole: bool) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file with their lines; the last row of a file that is not there as a `whole` may be broken off."""
    largest = csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    rows, start = [], 1
    try:
        for row in reader:
            if row:
                rows.append((start, row))
            start = reader.line_num + 1
    except csv.Error as error:
        if not whole and reader.line_num >= text.count("\n"):
            return rows
        raise BadData(
            f"Line {start} of {path} is not CSV ({error}); quote cells that hold commas or quotation marks, "
            "or name the file .tsv if its cells are parted by tabs."
        ) from error
    finally:
        csv.field_size_limit(largest)
    return rows


def _rows(path: Path, rows: list[tuple[int, list[str]]], expected: Collection[str], table: bool) -> Sheet:
    names, first = _header([row for _, row in rows[:FIRST_ROWS]], expected)
    notes: tuple[str, ...] = ()
    labels = _label_place([row for _, row in rows], expected) if table and first == 1 else None
    if labels is not None:
        names, first = (("label", "text") if labels == 0 else ("text", "label")), 0
        places = f"column {2 - labels} is taken for the text and column {labels + 1} for the label"
        notes = (f"{display_name(path)} has no header: {places}",)
    body = rows[first:]
    if not body:
        raise BadData(f"{path} has a header and no rows; give a file with at least one row.")
    for number, row in body:
        if len(row) != len(names):
            raise BadData(
                f"Line {number} of {path} has {len(row)} columns and the others have {len(names)} "
                f"({', '.join(names):.200}); mend or delete that line."
            )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadData(f"{path} has two columns called {twice!r}; rename one of them.")
    columns = {name: place for place, name in enumerate(names)}
    return Sheet(display_name(path), names, lambda name: [row[columns[name]] for _, row in body], notes=notes)


def _label_place(rows: Sequence[Sequence[str]], expected: Collection[str]) -> int | None:
    """Which of two columns without a header holds the labels, 0 or 1; None where that is not plain to see.

    That the first row is no header is seen by its label, which others have as well (or is a number, as all of them are).
    """
    first = rows[0]
    if any(cell.strip().lower() in expected for cell in first) or any(len(row) != 2 for row in rows):
        return None
    places = []
    for place in (0, 1):
        cells, others = [row[place].strip() for row in rows], [row[1 - place] for row in rows]
        few = 2 <= len(set(cells)) <= max(2, MOST_LABELS * len(cells)) and cells[0] in cells[1:]
        texts = any(" " in text.strip() for text in others)
        if texts and (few or all(_is_number(cell) for cell in cells)):
            places.append(place)
    return places[0] if len(places) == 1 else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _header(rows: list[list[str]], expected: Collection[str]) -> tuple[tuple[str, ...], int]:
    """The names of the columns, and how many rows they take up: 1, or 0 where a file has no header."""
    first = rows[0]
    if any(cell.strip().lower() in expected and not cell.strip().isdecimal() for cell in first):
        return tuple(cell.strip() for cell in first), 1
    if all(len(row) == 4 and row[1] in ("0", "1") and row[2] in ("", "*") for row in rows):
        return COLA, 0
    if any(name.isdecimal() for name in expected):
        return tuple(str(place) for place in range(1, len(first) + 1)), 0
    return tuple(cell.strip() for cell in first), 1


def _json_lines(path: Path, text: str) -> list[Any]:
    records = []
    for number, line in enumerate(lines_of(text), 1):
        if line.strip():
            try:
                records.append(json.loads(line))
            except RecursionError:
                raise BadData(f"Line {number} of {path} is nested too deeply for a table; delete that line.") from None
            except ValueError as error:
                raise BadData(f"Line {number} of {path} is not JSON ({error}); mend or delete that line.") from error
            if not isinstance(records[-1], dict):
                raise BadData(f"Line {number} of {path} is {line.strip()!r:.60}; every line must be an object {{...}}.")
    return records


def _json(path: Path, text: str) -> Sheet:
    try:
        data = json.loads(text)
    except RecursionError:
        raise BadData(
            f"{path} is nested too deeply for a table; I read a list of objects, an object of lists, or one object a line."
        ) from None
    except ValueError as error:
        if "Extra data" in str(error):  # one object a line, whatever the file is called
            return _records(display_name(path), _json_lines(path, text))
        raise BadData(f"{path} is not JSON ({error}); mend it.") from error
    if isinstance(data, dict):
        tables = [value for value in data.values() if isinstance(value, list)]
        if len(tables) == 1 and all(isinstance(row, dict) for row in tables[0]):
            data = tables[0]  # {"version": ..., "data": [...]}
    if isinstance(data, dict) and data and all(isinstance(value, list) for value in data.values()):
        return _columns(display_name(path), data)
    if isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
        return _records(display_name(path), data)
    raise BadData(f"{path} holds no table; I read a list of objects, an object of lists, or one object a line.")


def _parquet(path: Path, content: bytes) -> Sheet:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BadData(f"{path} is Parquet, which needs pyarrow; install headcount[data].") from error
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(content))
    except (pyarrow.ArrowException, OSError) as error:
        raise BadData(
            f"{path} is not a whole Parquet file ({str(error).splitlines()[0]:.120}); fetch it again."
        ) from error
    if not table.num_rows:
        raise BadData(f"{path} has no rows; give a file with at least one row.")
    metadata = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    features = metadata.get("info", {}).get("features") or {}
    classes = {
        name: tuple(feature["names"])
        for name, feature in features.items()
        if isinstance(feature, dict) and feature.get("names")
    }
    inner = {column.name: _texts_in(column.type) for column in table.schema if pyarrow.types.is_struct(column.type)}
    return _flat(display_name(path), table.column_names, lambda name: table.column(name).to_pylist(), inner, classes)


def _texts_in(struct: Any) -> list[str]:
    """The fields of a column of objects in Parquet that hold text."""
    return [subfield.name for subfield in struct if str(subfield.type) in ("string", "large_string", "string_view")]


# --- tables in memory -----------------------------------------------------------------------------------------------


def _in_memory(data: Any, split: str | None) -> Sheet:
    if isinstance(data, Mapping) and data and all(hasattr(table, "column_names") for table in data.values()):
        return _in_memory(_chosen_split(data, split, "the data set"), None)
    if split is not None:
        raise BadData(
            f"The data is one table and has no split {split!r}; leave split out, or give the table of that split."
        )
    name = "the data"
    if isinstance(data, Mapping):
        return _columns(name, data)
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return _data_set(data, name)
    if hasattr(data, "columns") and hasattr(data, "dtypes"):  # pandas, polars
        return _columns(name, {str(column): _listed(data[column]) for column in data.columns})
    if isinstance(data, Iterable):
        rows = list(data)
        if rows and all(isinstance(row, str) for row in rows):
            return _columns(name, {"text": rows})
        if rows and all(isinstance(row, Mapping) for row in rows):
            return _records(name, rows)
        if not rows:
            raise BadData("The data is empty; give at least one row.")
    raise BadData(
        f"The data is a {type(data).__name__}; I read a path, a list of dicts, a dict of columns, a data frame or a data set."
    )


def _listed(column: Any) -> list[Any]:
    own = getattr(column, "to_list", None) or getattr(column, "tolist", None)  # pandas and polars; numpy
    return own() if own is not None else list(column)


def _columns(name: str, columns: Mapping[str, Any]) -> Sheet:
    lists = {str(key): _listed(values) for key, values in columns.items()}
    sizes = {key: len(values) for key, values in lists.items()}
    if not sizes or not max(sizes.values()):
        raise BadData(f"There are no rows in {name}; give at least one.")
    if len(set(sizes.values())) > 1:
        raise BadData(f"The columns of {name} differ in length ({sizes}); give as many values in each.")
    return _flat(name, list(lists), lists.__getitem__, {key: _keys(values) for key, values in lists.items()})


def _records(name: str, records: Sequence[Mapping[str, Any]]) -> Sheet:
    keys = list(dict.fromkeys(str(key) for record in records for key in record))
    inner = {key: _keys(record.get(key) for record in records) for key in keys}
    return _flat(name, keys, lambda key: [record.get(key) for record in records], inner)


def _keys(values: Iterable[Any]) -> list[str]:
    """The keys under which a column of objects holds text; a column of anything else is left after its first value."""
    nonnull_values = (value for value in values if value is not None)
    first = next(nonnull_values, None)
    if not isinstance(first, Mapping):
        return []
    pairs = (pair for record in (first, *nonnull_values) if isinstance(record, Mapping) for pair in record.items())
    return list(dict.fromkeys(key for key, value in pairs if isinstance(key, str) and isinstance(value, str)))


def _flat(
    name: str,
    names: Sequence[str],
    column: Callable[[str], Iterable[Any]],
    inner: Mapping[str, Sequence[str]],
    classes: Mapping[str, tuple[str, ...]] | None = None,
) -> Sheet:
    """A sheet in which each key of a column of objects, `{"de": ..., "en": ...}`, is a column too, if no other has its name.

    `inner` has the keys of the columns of objects. What is in a column is read when it is asked for.
    """
    owners = {key: outer for outer in reversed(names) for key in inner.get(outer, ()) if key not in names}
    # the two sides of a column that is called "translation" are what its rows are about, so they may be guessed
    plain = [key for key in inner.get("translation", ()) if owners.get(key) == "translation"]

    def chosen(key: str) -> list[Any]:
        if key not in owners:
            return list(column(key))
        return [record.get(key) if isinstance(record, Mapping) else None for record in column(owners[key])]

    nested_keys = [key for key in owners if key not in plain]
    return Sheet(name, (*plain, *names, *nested_keys), chosen, classes or {}, nested=frozenset(nested_keys))


# --- data sets and folders ------------------------------------------------------------------------------------------


def _data_set(data: Any, name: str) -> Sheet:
    if not hasattr(data, "__len__"):
        raise BadData(
            "The data set is streamed; load it whole (streaming=False), because examples are drawn from all of it."
        )
    if not len(data):
        raise BadData(f"There are no rows in {name}; give at least one.")
    classes = {key: tuple(feature.names) for key, feature in data.features.items() if getattr(feature, "names", None)}
    inner = {key: _texts_of(feature) for key, feature in data.features.items()}
    return _flat(name, list(data.column_names), lambda key: data[key], inner, classes)


def _texts_of(feature: Any) -> list[str]:
    """The keys under which a column of a data set holds text, as its features say, without a look at the rows."""
    if hasattr(feature, "languages") and hasattr(feature, "flatten"):  # a Translation
        feature = feature.flatten()
    if not isinstance(feature, Mapping):
        return []
    return [
        key for key, subfeature in feature.items() if getattr(subfeature, "dtype", None) in ("string", "large_string")
    ]


def _name_and_split(data: str, split: str | None) -> tuple[str, str | None]:
    """glue/sst2@train is the split train of glue/sst2, and must be the one that is asked for beside it, if any is."""
    name, sign, own = data.rpartition("@")
    if not sign or "/" in own:  # not ours: an @ in the name of a folder
        return data, split
    path = located(name) if name else None
    if path is not None:
        raise BadData(
            f"{path} is a {'folder' if path.is_dir() else 'file'}, and only a data set by name takes a split after @; "
            f"leave @{own} out."
        )
    if not name or not own:
        raise BadData(f"{data!r} is not a data set and a split; write them as NAME@SPLIT, such as glue/sst2@train.")
    if split is not None and split != own:
        raise BadData(f"{data} names the split {own!r} and split= (--split) is {split!r}; leave one of them out.")
    return name, own


def _by_name(name: str, split: str | None, title: str) -> Sheet:
    looks_like_a_file = {Path(candidate).suffix.lower() for candidate in (name, title)} & {*TABLES, *PACKINGS, ".txt"}
    if looks_like_a_file or name.startswith((".", "/", "~")) or Path(name.split("/")[0]).exists() or not name:
        raise BadData(
            f"There is no file {title!r}; give the path of the data, or the name of a data set such as glue/sst2."
        )
    try:
        import datasets
    except ImportError as error:
        raise BadData(
            f"There is no file {title!r}, and data sets by name need datasets; install headcount[data]."
        ) from error
    *folder, last = name.split("/")
    # "glue/sst2" is a data set and one of its parts, "stanfordnlp/sst2" a data set: both are tried
    tries = [("/".join(folder), last), (name, None)] if folder else [(name, None)]
    problem = ""
    for path, part in tries:
        try:
            dataset = datasets.load_dataset(path, part, split=split)
        except Exception as error:  # whatever the hub, the network or the files of others raise
            problem = problem or f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            continue
        return _data_set(_chosen_split(dataset, split, name) if isinstance(dataset, Mapping) else dataset, title)
    raise BadData(f"There is neither a file nor a data set {title!r} ({problem:.200}); check the name and the split.")


def _chosen_split(splits: Mapping[str, Any], split: str | None, name: str) -> Any:
    if split:
        split_name = split
    elif len(splits) == 1:
        split_name = next(iter(splits))
    else:
        split_name = next((candidate for candidate in VALIDATION if candidate in splits), "validation")
    if split_name not in splits:
        raise BadData(
            f"There is no split {split or 'validation'!r} in {name}; choose with split= among {', '.join(splits)}."
        )
    return splits[split_name]


def _pictures(folder: Path, split: str | None) -> Sheet:
    """The files of a folder that has one folder of pictures for every class, in the order of their names."""
    if split is not None:
        folder = folder / split
    places = sorted(entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    pictures = [
        (file, place.name) for place in places for file in sorted(place.rglob("*")) if file.suffix.lower() in PICTURES
    ]
    if not pictures:
        inside = sorted(entry.name for entry in folder.iterdir())[:12] if folder.is_dir() else []
        raise BadData(
            f"{folder} is a folder without pictures in folders named after their classes; give a file"
            f"{' (there are: ' + ', '.join(inside) + ')' if inside else ''}."
        )
    names = tuple(dict.fromkeys(name for _, name in pictures))
    columns = {"image": [file for file, _ in pictures], "label": [names.index(name) for _, name in pictures]}
    return Sheet(display_name(folder), ("image", "label"), columns.__getitem__, {"label": names})
