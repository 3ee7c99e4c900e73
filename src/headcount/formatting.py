"""Numbers as people read them, and tables that can be copied as LaTeX, CSV and Markdown. No torch."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

MINUS = "−"
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    MINUS: "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\to$",
}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|&~$!])")
_CSV_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Column(NamedTuple):
    """A column: its title, how its values are shown, and whether they are numbers (then they stand to the right)."""

    title: str
    shown: Callable[[Any], str] = str
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of values under columns. What is shown is rounded; CSV has the values as they are."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def shown(self) -> list[list[str]]:
        """The cells as texts; a missing value is a dash."""
        pairs = [zip(self.columns, row, strict=True) for row in self.rows]
        return [["–" if value is None else column.shown(value) for column, value in row] for row in pairs]

    def latex(self) -> str:
        """A booktabs tabular in which every special character is an ordinary one."""
        layout = "".join("r" if column.numeric else "l" for column in self.columns)
        head = " & ".join(latex_text(column.title) for column in self.columns)
        body = [_guarded(" & ".join(latex_text(cell) for cell in row)) + r" \\" for row in self.shown]
        caption = latex_text(self.caption).replace("\n", " ")
        lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{layout}}}", r"\toprule", head + r" \\"]
        lines += [r"\midrule", *body, r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", r"\end{table}"]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """RFC 4180; a text that a spreadsheet would run as a formula gets an apostrophe before it."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\r\n")
        writer.writerow([_plain(column.title) for column in self.columns])
        writer.writerows([[_plain(value) for value in row] for row in self.rows])
        return stream.getvalue()

    def markdown(self) -> str:
        """A pipe table; texts are escaped, so that none of them becomes markup or ends a cell."""
        head = [markdown_text(column.title) for column in self.columns]
        rules = ["---:" if column.numeric else "---" for column in self.columns]
        rows = [
            [text if isinstance(value, int | float) else markdown_text(text) for text, value in zip(*pair, strict=True)]
            for pair in zip(self.shown, self.rows, strict=True)
        ]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rules, *rows]) + "\n"


def latex_text(text: str) -> str:
    """A text as LaTeX prints it, on one line."""
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(text))


def _guarded(row: str) -> str:
    """A row that LaTeX cannot take for the option of the line break before it: "[" and "*" have a meaning there."""
    return f"{{{row[0]}}}{row[1:]}" if row.startswith(("[", "*")) else row


def markdown_text(text: str) -> str:
    """A text as Markdown prints it, on one line."""
    return _MARKDOWN.sub(r"\\\1", _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(str(text).split())


def _plain(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_CSV_FORMULA):
        return "'" + value
    return value


# -- numbers --------------------------------------------------------------------------------------------------------------


def digits_for(sizes: Iterable[float], more: int = 0, default: int = 2) -> int:
    """Decimals for a whole column: two digits, and `more`, of a middling one among these widths or values."""
    nonzero = sorted(abs(size) for size in sizes if size)
    return min(6, digits_of(nonzero[len(nonzero) // 2], 1) + more) if nonzero else default


def fixed(value: float, digits: int) -> str:
    """A number with so many decimals and a real minus sign; never minus zero."""
    text = f"{value:.{digits}f}"
    return (text if float(text) else text.lstrip("-")).replace("-", MINUS)


def signed(value: float, digits: int = 1) -> str:
    """A difference: with its sign, except for zero."""
    text = f"{value:+.{digits}f}"
    return (text if float(text) else text[1:]).replace("-", MINUS)


def three(value: float) -> str:
    """A number with three decimals, or three digits where that would show nothing."""
    return fixed(value, 3) if value == 0 or 0.001 <= abs(value) < 1e6 else f"{value:.2e}".replace("-", MINUS)


def with_commas(value: float) -> str:
    """A count with commas."""
    return f"{round(value):,}".replace("-", MINUS)


def short_count(count: float) -> str:
    """A count with three digits: "513", "263k", "1.05M"."""
    unit = 0
    while count >= (999.5 if unit else 9_999.5) and unit < 4:
        count, unit = count / 1000, unit + 1
    digits = 0 if not unit or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:,.{digits}f}{('', 'k', 'M', 'B', 'T')[unit]}"


def percent(value: float) -> str:
    """A share as a percentage, without decimals."""
    return f"{100 * value:.0f}\u00a0%".replace("-", MINUS)


def probability(p: float) -> str:
    """A p-value with two digits."""
    return f"{p:.2g}" if p >= 0.0001 else "< 0.0001"


def bytes_text(size: float) -> str:
    """A size on disk."""
    unit = 0
    while size >= 999.5 and unit < 4:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.{0 if size >= 100 else 1}f} {('kB', 'MB', 'GB', 'TB')[unit - 1]}"


def flops_text(count: float, digits: int = 2) -> str:
    """Floating-point operations: "11.16 GFLOPs"."""
    unit = 0
    while count >= 999.5 and unit < 5:
        count, unit = count / 1000, unit + 1
    return f"{count:.{digits if unit else 0}f} {('', 'k', 'M', 'G', 'T', 'P')[unit]}FLOPs"


def seconds_text(seconds: float) -> str:
    """A duration: "12.3 ms"."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.{1 if seconds >= 0.01 else 2}f} ms"


def memory_text(size: float) -> str:
    """Bytes in memory, as `bench` prints them."""
    return f"{size / 2**20:,.1f}\u00a0MiB"


def speed_text(value: float) -> str:
    """Examples per second."""
    return with_commas(value) if value >= 100 else f"{value:.{1 if value >= 10 else 2}f}"


def counted(count: float, singular: str, plural: str = "") -> str:
    """A count with its noun: "1 point", "2 points"."""
    return f"{count:g} {singular if count == 1 else plural or singular + 's'}"


def times(ratio: float) -> str:
    """A ratio of speeds."""
    return f"{ratio:.2f}×"


class Interval(Protocol):
    """A value with its interval."""

    @property
    def value(self) -> float:
        """The value."""

    @property
    def low(self) -> float:
        """The lower end."""

    @property
    def high(self) -> float:
        """The upper end."""


def result_text(result: Interval, interval: bool = True) -> str:
    """A result's value with its interval: "0.887 [0.850, 0.923]"."""
    digits = digits_of(result.high - result.low, 3)
    span = f" [{fixed(result.low, digits)}, {fixed(result.high, digits)}]" if interval else ""
    return f"{fixed(result.value, digits)}{span}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Names in a sentence: "a, b and c"."""
    parts = [*names[:most], f"{len(names) - most} more"] if len(names) > most else list(names)
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + f" and {parts[-1]}"


def digits_of(width: float, default: int) -> int:
    """Decimals that show two digits of an interval's width: more would pretend, fewer would hide it."""
    return default if width <= 0 else min(6, max(1, 1 - math.floor(math.log10(width))))
