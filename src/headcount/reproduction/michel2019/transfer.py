"""Michel et al. 2019, Figure 2: do the same heads matter on other data?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...documents.ablation import TransferDocument
from ...formatting import fixed
from ..experiment import CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD, Claim, Found, Setting, Sheet
from ..inputs import Corpus, Pairs
from ..models import DASH, PAPER, Asked, asked, classifiers, read, together, translators

CORRELATIONS = {"classifier": 0.68, "translator": 0.56}  # Figure 2


def transfer_asked(setting: Setting) -> list[Asked]:
    """`transfer` to each other data set, on a laptop to the first; in the metric of the task, and in the loss."""
    out = []
    elsewhere = [corpus for corpus in setting.material.corpora if corpus.others]
    for one in (*classifiers(setting, elsewhere, None), *translators(setting)):
        for title, other in _others(one.source) if setting.full else _others(one.source)[:1]:
            data = one.source.on("dev" if isinstance(one.source, Corpus) else "test")
            limit = setting.limit(250 if isinstance(one.source, Corpus) else 100)
            words = ("transfer", one.folder, *data, *other, *limit)
            name = f"michel-transfer-{one.name}-{re.sub(r'[^A-Za-z0-9_.]+', '-', title)}"
            out.append(asked(setting, one, name, words, title))
            if _in_loss(words) != words:  # else the task is measured by its loss anyway
                out.append(asked(setting, one, f"{name}-loss", _in_loss(words), title))
    return out


def _others(source: Corpus | Pairs) -> list[tuple[str, tuple[str, ...]]]:
    """The same task elsewhere: names, and flags that say where."""
    if isinstance(source, Corpus):
        return [(name, ("--other-data", file)) for name, file in source.others]
    if source.other is None:
        return []
    if "--target" in source.flags:  # a column of a table
        return [("elsewhere", ("--other-data", source.other))]
    there, _, target = source.other.partition(",")
    return [("elsewhere", ("--other-data", there, "--other-target", target))]


def _in_loss(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a command, measuring the loss."""
    if "--metric" not in words:
        return (*words, "--metric", "loss")
    place = words.index("--metric")
    return (*words[: place + 1], "loss", *words[place + 2 :])


class Compared(NamedTuple):
    """The damage of every head on two data sets: Pearson's correlation, and what noise leaves room for."""

    asked: Asked
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


def _compared(asked: Asked, data: TransferDocument) -> Compared:
    r = data.pearson
    if data.ceiling is None:
        raise ValueError("ceiling is missing")
    low = 0.0 if data.ceiling_low is None else data.ceiling_low
    high = 1.0 if data.ceiling_high is None else data.ceiling_high
    told = (data.one.metric, r.n, r.value, r.low, r.high, data.spearman.value)
    return Compared(asked, *told, data.ceiling, low, high)


def _transfers(one: Compared) -> str:
    theirs = CORRELATIONS[one.asked.kind]
    less = one.high < theirs
    if less and theirs <= one.room_low:  # there was room for more
        return DIFFERS if one.low > 0 else NOT_CONFIRMED
    if one.high < 0:
        return NOT_CONFIRMED
    if less and theirs <= one.room_high:  # there may have been
        return UNTOLD
    return CONFIRMED if one.low > 0 else UNTOLD


def _told_of_transfer(ones: Sequence[Compared]) -> str:
    first = ones[0]
    name = first.asked.subject.source.name
    text = f"{name} against {first.asked.other}, {first.metric}, {first.heads} heads: "
    if len(ones) == 1:
        return text + f"{first.text}; noise leaves room for {first.room}"
    values, rooms = sorted(one.value for one in ones), sorted(one.ceiling for one in ones)
    ends = min(one.room_low for one in ones), max(one.room_high for one in ones)
    text += f"{fixed(values[0], 2)} to {fixed(values[-1], 2)} in {len(ones)} models, the interval above 0 in "
    above = sum(one.low > 0 for one in ones)
    text += f"{above}; noise leaves room for {fixed(rooms[0], 2)} to {fixed(rooms[-1], 2)}"
    return text + f" (with intervals from {fixed(ends[0], 2)} to {fixed(ends[1], 2)})"


def transfer_claims(found: Found) -> list[Claim]:
    """Whether the same heads matter on other data: in the metric of the task, and in the loss."""
    every = read(found, transfer_asked, TransferDocument, _compared)
    out = []
    sets = {"classifier": "BERT on MNLI matched and mismatched", "translator": "a translator on newstest2013 and MTNT"}
    for kind, theirs in CORRELATIONS.items():
        for by_loss in (False, True):
            ones = [one for one in every if one.asked.kind == kind and (one.metric == "loss") == by_loss]
            if not ones:
                continue
            paper = (
                f"Figure 2: what removing a head does to {sets[kind]} correlates with {theirs} over heads (p < 0.01)"
            )
            paper += "; asked here of the loss." if by_loss else "."
            groups: dict[tuple[str, str], list[Compared]] = {}
            for one in ones:
                groups.setdefault((one.asked.subject.source.name, one.asked.other), []).append(one)
            rule = "Confirmed if the 95 % interval of Pearson's correlation over heads lies above 0; differs if it also lies "
            rule += f"below {theirs} although noise leaves room for that, by its own interval; not confirmed if it lies below "
            rule += f"0, or includes 0 and lies below {theirs} although noise leaves room for that. Where it lies below {theirs} "
            rule += "and noise may leave room for that or not, it cannot be told. This has to hold in more than half of the "
            rule += "models on a data set, then of the data sets, and the opposite in none."
            here = ". ".join(map(_told_of_transfer, groups.values())) + "."
            out.append(
                Claim(paper, here, together([together([*map(_transfers, some)]) for some in groups.values()]), rule)
            )
    return out


def transfer_sheets(found: Found) -> list[Sheet]:
    """Every correlation beside the paper's two."""
    every = read(found, transfer_asked, TransferDocument, _compared)
    bert, wmt = (fixed(CORRELATIONS[kind], 2) for kind in ("classifier", "translator"))
    rows = [
        (f"{PAPER}, BERT", "MNLI matched, mismatched", "accuracy", DASH, bert, DASH, DASH),
        (f"{PAPER}, WMT", "newstest2013, MTNT", "bleu", DASH, wmt, DASH, DASH),
    ]
    for one in every:
        data = f"{one.asked.subject.source.name}, {one.asked.other}"
        more = (fixed(one.spearman, 2), one.room)
        rows.append((one.asked.subject.title, data, one.metric, str(one.heads), one.text, *more))
    columns = ("model", "data", "metric", "heads", "Pearson", "Spearman", "noise leaves room for")
    return [Sheet("Figure 2: effects of heads on two data sets", columns, tuple(rows))] if every else []
