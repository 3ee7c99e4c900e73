"""Michel et al. 2019, Figure 2: do the same heads matter on other data?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...documents.ablation import TransferDocument
from ...formatting import fixed
from ..experiment import CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD, Claim, RunDocuments, Setting, Sheet
from ..inputs import Corpus, Pairs
from ..models import DASH, PAPER, Question, asked, classifiers, read, together, translators

CORRELATIONS = {"classifier": 0.68, "translator": 0.56}  # Figure 2


def transfer_steps(setting: Setting) -> list[Question]:
    """`transfer` to each other data set, on a laptop to the first; in the metric of the task, and in the loss."""
    out = []
    elsewhere = [corpus for corpus in setting.material.corpora if corpus.others]
    for subject in (*classifiers(setting, elsewhere, None), *translators(setting)):
        for title, other_flags in _others(subject.source) if setting.full else _others(subject.source)[:1]:
            data = subject.source.on("dev" if isinstance(subject.source, Corpus) else "test")
            limit = setting.limit(250 if isinstance(subject.source, Corpus) else 100)
            words = ("transfer", subject.folder, *data, *other_flags, *limit)
            name = f"michel-transfer-{subject.name}-{re.sub(r'[^A-Za-z0-9_.]+', '-', title)}"
            out.append(asked(setting, subject, name, words, title))
            if _in_loss(words) != words:  # else the task is measured by its loss anyway
                out.append(asked(setting, subject, f"{name}-loss", _in_loss(words), title))
    return out


def _others(source: Corpus | Pairs) -> list[tuple[str, tuple[str, ...]]]:
    """The same task elsewhere: names, and flags that say where."""
    if isinstance(source, Corpus):
        return [(name, ("--other-data", file)) for name, file in source.others]
    if source.other is None:
        return []
    if "--target" in source.flags:  # a column of a table
        return [("elsewhere", ("--other-data", source.other))]
    source_file, _, target = source.other.partition(",")
    return [("elsewhere", ("--other-data", source_file, "--other-target", target))]


def _in_loss(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a command, measuring the loss."""
    if "--metric" not in words:
        return (*words, "--metric", "loss")
    place = words.index("--metric")
    return (*words[: place + 1], "loss", *words[place + 2 :])


class Compared(NamedTuple):
    """The damage of every head on two data sets: Pearson's correlation, and what noise leaves room for."""

    asked: Question
    metric: str
    heads: int
    value: float
    low: float
    high: float
    spearman: float
    ceiling: float
    room_low: float  # the interval of the ceiling: from 0 to 1 where the document has none
    room_high: float

    @property
    def text(self) -> str:
        """The correlation with its interval."""
        return f"{fixed(self.value, 2)} [{fixed(self.low, 2)}, {fixed(self.high, 2)}]"

    @property
    def room(self) -> str:
        """What noise leaves room for, with its interval."""
        return f"{fixed(self.ceiling, 2)} [{fixed(self.room_low, 2)}, {fixed(self.room_high, 2)}]"


def _compared(question: Question, data: TransferDocument) -> Compared:
    r = data.pearson
    if data.ceiling is None:
        raise ValueError("ceiling is missing")
    low = 0.0 if data.ceiling_low is None else data.ceiling_low
    high = 1.0 if data.ceiling_high is None else data.ceiling_high
    fields = (data.one.metric, r.n, r.value, r.low, r.high, data.spearman.value)
    return Compared(question, *fields, data.ceiling, low, high)


def _transfers(correlation: Compared) -> str:
    theirs = CORRELATIONS[correlation.asked.kind]
    less = correlation.high < theirs
    if less and theirs <= correlation.room_low:  # there was room for more
        return DIFFERS if correlation.low > 0 else NOT_CONFIRMED
    if correlation.high < 0:
        return NOT_CONFIRMED
    if less and theirs <= correlation.room_high:  # there may have been
        return UNTOLD
    return CONFIRMED if correlation.low > 0 else UNTOLD


def _told_of_transfer(correlations: Sequence[Compared]) -> str:
    first = correlations[0]
    name = first.asked.subject.source.name
    text = f"{name} against {first.asked.other}, {first.metric}, {first.heads} heads: "
    if len(correlations) == 1:
        return text + f"{first.text}; noise leaves room for {first.room}"
    values = sorted(correlation.value for correlation in correlations)
    rooms = sorted(correlation.ceiling for correlation in correlations)
    ends = (
        min(correlation.room_low for correlation in correlations),
        max(correlation.room_high for correlation in correlations),
    )
    text += f"{fixed(values[0], 2)} to {fixed(values[-1], 2)} in {len(correlations)} models, the interval above 0 in "
    above = sum(correlation.low > 0 for correlation in correlations)
    text += f"{above}; noise leaves room for {fixed(rooms[0], 2)} to {fixed(rooms[-1], 2)}"
    return text + f" (with intervals from {fixed(ends[0], 2)} to {fixed(ends[1], 2)})"


def transfer_claims(results: RunDocuments) -> list[Claim]:
    """Whether the same heads matter on other data: in the metric of the task, and in the loss."""
    every = read(results, transfer_steps, TransferDocument, _compared)
    out = []
    sets = {"classifier": "BERT on MNLI matched and mismatched", "translator": "a translator on newstest2013 and MTNT"}
    for kind, theirs in CORRELATIONS.items():
        for by_loss in (False, True):
            correlations = [
                correlation
                for correlation in every
                if correlation.asked.kind == kind and (correlation.metric == "loss") == by_loss
            ]
            if not correlations:
                continue
            paper = (
                f"Figure 2: what removing a head does to {sets[kind]} correlates with {theirs} over heads (p < 0.01)"
            )
            paper += "; asked here of the loss." if by_loss else "."
            groups: dict[tuple[str, str], list[Compared]] = {}
            for correlation in correlations:
                groups.setdefault((correlation.asked.subject.source.name, correlation.asked.other), []).append(
                    correlation
                )
            rule = "Confirmed if the 95 % interval of Pearson's correlation over heads lies above 0; differs if it also lies "
            rule += f"below {theirs} although noise leaves room for that, by its own interval; not confirmed if it lies below "
            rule += f"0, or includes 0 and lies below {theirs} although noise leaves room for that. Where it lies below {theirs} "
            rule += "and noise may leave room for that or not, it cannot be told. This has to hold in more than half of the "
            rule += "models on a data set, then of the data sets, and the opposite in none."
            finding = ". ".join(map(_told_of_transfer, groups.values())) + "."
            out.append(
                Claim(paper, finding, together([together([*map(_transfers, some)]) for some in groups.values()]), rule)
            )
    return out


def transfer_sheets(results: RunDocuments) -> list[Sheet]:
    """Every correlation beside the paper's two."""
    every = read(results, transfer_steps, TransferDocument, _compared)
    bert, wmt = (fixed(CORRELATIONS[kind], 2) for kind in ("classifier", "translator"))
    rows = [
        (f"{PAPER}, BERT", "MNLI matched, mismatched", "accuracy", DASH, bert, DASH, DASH),
        (f"{PAPER}, WMT", "newstest2013, MTNT", "bleu", DASH, wmt, DASH, DASH),
    ]
    for correlation in every:
        data = f"{correlation.asked.subject.source.name}, {correlation.asked.other}"
        more = (fixed(correlation.spearman, 2), correlation.room)
        rows.append(
            (correlation.asked.subject.title, data, correlation.metric, str(correlation.heads), correlation.text, *more)
        )
    columns = ("model", "data", "metric", "heads", "Pearson", "Spearman", "noise leaves room for")
    return [Sheet("Figure 2: effects of heads on two data sets", columns, tuple(rows))] if every else []
