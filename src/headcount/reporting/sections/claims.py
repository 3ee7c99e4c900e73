"""Experiments of papers that were run again: what a paper says, what is seen here, and whether they agree. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...documents.claims import CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD, Claim, ClaimsDocument, Sheet
from ...formatting import Column, Table, listed, markdown_text
from ..findings import Part
from ..provenance import Provenance, how
from ..run_reader import Document, documents_of, is_of_a_paper, records_of

_NUMBER = re.compile(r"[−+-]?[\d.,]*\d ?%?( ?[×±] ?[\d.,]*)?( ?[\[(].*[\])])?|–|")  # with its interval; or nothing


class Verdict(NamedTuple):
    """A verdict: the shape and colour it has on the page, and how it is counted in a sentence."""

    kind: str
    one: str
    many: str


VERDICTS = {
    CONFIRMED: Verdict("yes", "is confirmed", "are confirmed"),
    DIFFERS: Verdict("other", "differs", "differ"),
    NOT_CONFIRMED: Verdict("no", "is not confirmed", "are not confirmed"),
    UNTOLD: Verdict("open", "cannot be told", "cannot be told"),
}


class ExperimentResult(NamedTuple):
    """A table or figure of a paper, run again."""

    anchor: str
    name: str  # michel-curves
    paper: str
    shows: str
    asks: str
    material: str
    about: str
    full: bool
    seeds: tuple[int, ...]
    claims: tuple[Claim, ...]
    tables: tuple[tuple[str, Table], ...]  # the published numbers and ours, with their names in the page
    commands: tuple[str, ...]
    left_out: tuple[str, ...]
    again: Provenance

    @property
    def source(self) -> str:
        """Where it stands in the literature."""
        return f"{self.paper}, {self.shows}" if self.shows else self.paper

    @property
    def size(self) -> str:
        """How much of the data and of training it saw."""
        return "full" if self.full else "laptop"

    @property
    def drawn(self) -> str:
        """The seeds, in words."""
        return f"{'seed' if len(self.seeds) == 1 else 'seeds'} {listed([str(seed) for seed in self.seeds], 12)}"

    @property
    def ran_on(self) -> str:
        """What it was run on: material, size, seeds."""
        sizes = {
            True: "Full size: all that was given is measured on, and trained on but where a command has a --limit",
            False: "Laptop size: few examples and short trainings",
        }
        return f"Run on {self.material}. {self.about} {sizes[self.full]}; {self.drawn}."

    @property
    def statements(self) -> Table:
        """The statements as a table that can be copied."""
        titles = ("the paper", "here", "verdict", "rule")
        rows = tuple((claim.paper, claim.here, claim.verdict, claim.rule) for claim in self.claims)
        return Table("claims", f"{self.source}, and here.", tuple(map(Column, titles)), rows)

    @property
    def copied(self) -> list[tuple[str, Table]]:
        """All tables with their names in the page, the statements first."""
        return [*([(f"{self.anchor}-claims", self.statements)] if self.claims else ()), *self.tables]


def retold(folders: Sequence[Path]) -> list[ExperimentResult]:
    """Every experiment in run folders, or in folders that hold run folders one level down; in their order."""
    documents = [
        document for record in records_of(folders) if is_of_a_paper(record) for document in documents_of(record)
    ]
    documents = [document for document in documents if isinstance(document.data, ClaimsDocument)]
    return [_told(document, f"p{n}") for n, document in enumerate(documents, 1)]


def _told(document: Document[ClaimsDocument], anchor: str) -> ExperimentResult:
    data = document.data
    return ExperimentResult(
        anchor,
        data.experiment,
        data.paper,
        data.shows,
        data.asks,
        data.material.name,
        data.material.about,
        data.full,
        data.seeds,
        data.claims,
        tuple((f"{anchor}-table-{n}", _table(sheet)) for n, sheet in enumerate(data.sheets, 1)),
        data.commands,
        data.left_out,
        how(Part("", (document.run,), (document,)), document.run),
    )


def _table(sheet: Sheet) -> Table:
    """A sheet as a table; columns of nothing but numbers stand to the right, unless they are the first."""
    cells = list(zip(*sheet.rows, strict=True)) or [()] * len(sheet.columns)
    numeric = [n > 0 and any(cells[n]) and all(map(_NUMBER.fullmatch, cells[n])) for n in range(len(cells))]
    columns = tuple(Column(title, str, right) for title, right in zip(sheet.columns, numeric, strict=True))
    return Table("sheet", sheet.title, columns, sheet.rows)


# -- in words --------------------------------------------------------------------------------------------------------------


def summary(experiments: Sequence[ExperimentResult]) -> str:
    """How many statements there are, and what became of them: "Of 9 statements 5 are confirmed, 2 differ and ..."."""
    verdicts = [claim.verdict for experiment in experiments for claim in experiment.claims]
    if not verdicts:
        return "Nothing can be said about the statements yet: no run that they could be read off has come to its end."
    counts = {word: verdicts.count(word) for word in VERDICTS if word in verdicts}
    subject = "the one statement" if len(verdicts) == 1 else f"the {len(verdicts)} statements"
    if list(counts) == [UNTOLD]:
        return f"Whether {subject} {'holds' if len(verdicts) == 1 else 'hold'} cannot be told."
    if len(verdicts) == 1:
        return f"The one statement {VERDICTS[verdicts[0]].one}."
    if len(counts) == 1:
        return f"{'Both' if len(verdicts) == 2 else f'All {len(verdicts)}'} statements {VERDICTS[verdicts[0]].many}."
    parts = [f"{n} {VERDICTS[word].one if n == 1 else VERDICTS[word].many}" for word, n in counts.items()]
    return f"Of {len(verdicts)} statements {listed(parts)}."


def title(experiments: Sequence[ExperimentResult]) -> str:
    """What a page about these experiments is called."""
    papers = {experiment.paper for experiment in experiments}
    if len(papers) > 1:
        return "The papers, again"
    shows = {experiment.shows for experiment in experiments}
    return f"{experiments[0].source if len(shows) == 1 else experiments[0].paper}, again"


def markdown(experiments: Sequence[ExperimentResult]) -> str:
    """The statements of all experiments as one table in Markdown, under the sentence that counts them and what it was run on."""
    rows = [
        (experiment.source, claim.paper, claim.here, claim.verdict)
        for experiment in experiments
        for claim in experiment.claims
    ]
    columns = tuple(map(Column, ("paper", "published", "here", "verdict")))
    ran: dict[str, list[str]] = {}
    for experiment in experiments:
        ran.setdefault(f"on {experiment.material}, {experiment.size} size, {experiment.drawn}", []).append(
            experiment.name
        )
    lines = [
        summary(experiments),
        "",
        *(f"- {markdown_text(listed(names, 99))}: {markdown_text(on)}" for on, names in ran.items()),
    ]
    return "\n".join([*lines, "", Table("claims", "", columns, tuple(rows)).markdown()])
