"""Michel et al. 2019, Table 4: how much faster a classifier is without half of its heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...documents.bench import Bench
from ...formatting import fixed, listed, signed, speed_text, times
from ..curves import corpora_of
from ..experiment import CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD, Claim, Experiment, Found, Setting, Sheet, Step

# batch: examples per second whole and without half of the heads, and the gain in percent
TABLE_4 = {1: (17.0, 17.3, 1.9), 4: (67.3, 69.1, 2.7), 16: (114.0, 134.0, 17.5), 64: (124.7, 146.6, 17.5)}


def _speed_steps(setting: Setting) -> list[Step]:
    if not corpora_of(setting):
        return []
    corpus, seed = corpora_of(setting)[0], setting.seeds[0]
    whole, before = setting.classifier(corpus, seed)
    score, half, bench = (f"michel-{what}-{corpus.name}-{seed}" for what in ("score", "half", "bench"))
    on = (*corpus.on("train"), *setting.limit(300, 2000))
    wanted = ("score", whole, *on, "--by", "taylor", "-o", setting.run(score))
    scores = str(Path(setting.run(score)) / "scores.json")
    cut = ("cut", whole, "--scores", scores, "--remove", "50%", "-o", setting.model(half), "--force")
    long = ("--length", setting.by_size("32", "128"), "--seconds", setting.by_size("30", "120"))
    timed = ("bench", whole, setting.model(half), "--batch-size", ",".join(map(str, TABLE_4)), *long)
    return [
        *before,
        Step(score, (*wanted, *setting.flags), tuple(step.name for step in before)),
        Step(half, cut, (*(step.name for step in before), score)),
        Step(bench, (*timed, "-o", setting.run(bench), *setting.flags), (half,), alone=True),
    ]


class Gain(NamedTuple):
    """What half of the heads gain at a batch size: speeds, their ratio with its quartiles, what multiply-adds allow."""

    whole: float
    half: float
    ratio: float
    low: float
    high: float
    limit: float

    @property
    def text(self) -> str:
        """The gain in percent, with quartiles."""
        low, value, high = (signed(100 * (one - 1)) for one in (self.low, self.ratio, self.high))
        return f"{value} % ({low} to {high})"


def _gains(found: Found) -> tuple[str, dict[int, Gain]]:
    """Where it was measured, and the gain at each batch size."""
    name = next((step.name for step in _speed_steps(found.setting) if step.alone), "")
    timed = found.read(name, Bench, _timed) if name else None
    return timed or ("", {})


def _timed(data: Bench) -> tuple[str, dict[int, Gain]]:
    whole, half = (model.name for model in data.models)
    speeds = {(row.model, row.batch): row for row in data.rows}
    gains = {}
    for (model, batch), row in speeds.items():
        if model == half and (whole, batch) in speeds:
            before = speeds[whole, batch].examples_per_second
            gains[batch] = Gain(before, row.examples_per_second, row.ratio, row.ratio_low, row.ratio_high, row.limit)
    return f"{data.device}, {data.dtype}, length {data.rows[0].length}", gains


def _speed_claims(found: Found) -> list[Claim]:
    device, gains = _gains(found)
    claims = []
    for batches, verdict, paper, rule in (
        (
            (1, 4),
            _hardly,
            "Table 4: without half of its heads BERT is 1.9 % faster at batch 1 and 2.7 % at batch 4, hardly at all.",
            "Confirmed if at both the quartiles of the gain are less than 10 % either way; differs if at one of them the lower "
            "one is a gain of 10 % or more, not confirmed if the upper one is a loss of 10 % or more; else it cannot be told.",
        ),
        (
            (16, 64),
            _faster,
            "Table 4: without half of its heads BERT is 17.5 % faster at batch 16 and at batch 64.",
            "Confirmed if at both the quartiles of the gain lie between 5 and 30 %; differs if they do at one of them, or lie "
            "above that at one; not confirmed if the median is not above 0 at either; else it cannot be told.",
        ),
    ):
        if not all(batch in gains for batch in batches):
            continue
        told = [
            f"{gains[one].text} at batch {one}, where multiply-adds allow {times(gains[one].limit)}" for one in batches
        ]
        where = f"{corpora_of(found.setting)[0].name}, on {device}"
        here = f"{where}: {listed(told)} (medians and quartiles)."
        claims.append(Claim(paper, here, verdict([gains[batch] for batch in batches]), rule))
    return claims


def _hardly(gains: Sequence[Gain]) -> str:
    if all(one.low > 0.9 and one.high < 1.1 for one in gains):
        return CONFIRMED
    if any(one.high <= 0.9 for one in gains):
        return NOT_CONFIRMED
    return DIFFERS if any(one.low >= 1.1 for one in gains) else UNTOLD


def _faster(gains: Sequence[Gain]) -> str:
    as_published = [one.low >= 1.05 and one.high <= 1.3 for one in gains]
    if all(as_published):
        return CONFIRMED
    if any(as_published) or any(one.low > 1.3 for one in gains):
        return DIFFERS
    return NOT_CONFIRMED if all(one.ratio <= 1 for one in gains) else UNTOLD


def _speed_sheets(found: Found) -> list[Sheet]:
    device, gains = _gains(found)
    rows = []
    for batch, (whole, half, gain) in TABLE_4.items():
        if batch in gains:
            ours = gains[batch]
            theirs = (fixed(whole, 1), fixed(half, 1), f"{signed(gain)} %")
            rows.append(
                (str(batch), *theirs, speed_text(ours.whole), speed_text(ours.half), ours.text, times(ours.limit))
            )
    columns = (
        "batch",
        "Table 4: whole",
        "half of the heads",
        "gain",
        "here: whole",
        "half of the heads",
        "gain (quartiles)",
    )
    title = f"Examples per second; theirs of BERT on a GTX 1080 Ti, ours on {device}"
    return [Sheet(title, (*columns, "multiply-adds allow"), tuple(rows))] if rows else []


SPEED = Experiment(
    "michel-speed",
    "Michel et al. 2019",
    "Table 4",
    "How much faster is a classifier without half of its heads?",
    _speed_steps,
    _speed_claims,
    _speed_sheets,
)
