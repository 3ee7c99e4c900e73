"""Michel et al. 2019, Table 4: how much faster a classifier is without half of its heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...documents.bench import Bench
from ...formatting import fixed, listed, signed, speed_text, times
from ..curves import corpora_of
from ..experiment import (
    CONFIRMED,
    DIFFERS,
    NOT_CONFIRMED,
    UNTOLD,
    Claim,
    Experiment,
    RunDocuments,
    Setting,
    Sheet,
    Step,
)

# batch: examples per second whole and without half of the heads, and the gain in percent
TABLE_4 = {1: (17.0, 17.3, 1.9), 4: (67.3, 69.1, 2.7), 16: (114.0, 134.0, 17.5), 64: (124.7, 146.6, 17.5)}


def _speed_steps(setting: Setting) -> list[Step]:
    if not corpora_of(setting):
        return []
    corpus, seed = corpora_of(setting)[0], setting.seeds[0]
    full_model, before = setting.classifier(corpus, seed)
    score, half, bench = (f"michel-{stage}-{corpus.name}-{seed}" for stage in ("score", "half", "bench"))
    on = (*corpus.on("train"), *setting.limit(300, 2000))
    wanted = ("score", full_model, *on, "--by", "taylor", "-o", setting.run(score))
    scores = str(Path(setting.run(score)) / "scores.json")
    cut = ("cut", full_model, "--scores", scores, "--remove", "50%", "-o", setting.model(half), "--force")
    long = ("--length", setting.by_size("32", "128"), "--seconds", setting.by_size("30", "120"))
    timed = ("bench", full_model, setting.model(half), "--batch-size", ",".join(map(str, TABLE_4)), *long)
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
        low, value, high = (signed(100 * (ratio - 1)) for ratio in (self.low, self.ratio, self.high))
        return f"{value} % ({low} to {high})"


def _gains(results: RunDocuments) -> tuple[str, dict[int, Gain]]:
    """Where it was measured, and the gain at each batch size."""
    name = next((step.name for step in _speed_steps(results.setting) if step.alone), "")
    timed = results.read(name, Bench, _timed) if name else None
    return timed or ("", {})


def _timed(data: Bench) -> tuple[str, dict[int, Gain]]:
    full_model, half = (model.name for model in data.models)
    speeds = {(row.model, row.batch): row for row in data.rows}
    gains = {}
    for (model, batch), row in speeds.items():
        if model == half and (full_model, batch) in speeds:
            before = speeds[full_model, batch].examples_per_second
            gains[batch] = Gain(before, row.examples_per_second, row.ratio, row.ratio_low, row.ratio_high, row.limit)
    return f"{data.device}, {data.dtype}, length {data.rows[0].length}", gains


def _speed_claims(results: RunDocuments) -> list[Claim]:
    device, gains = _gains(results)
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
        gain_texts = [
            f"{gains[batch_size].text} at batch {batch_size}, where multiply-adds allow {times(gains[batch_size].limit)}"
            for batch_size in batches
        ]
        where = f"{corpora_of(results.setting)[0].name}, on {device}"
        finding = f"{where}: {listed(gain_texts)} (medians and quartiles)."
        claims.append(Claim(paper, finding, verdict([gains[batch] for batch in batches]), rule))
    return claims


def _hardly(gains: Sequence[Gain]) -> str:
    if all(gain.low > 0.9 and gain.high < 1.1 for gain in gains):
        return CONFIRMED
    if any(gain.high <= 0.9 for gain in gains):
        return NOT_CONFIRMED
    return DIFFERS if any(gain.low >= 1.1 for gain in gains) else UNTOLD


def _faster(gains: Sequence[Gain]) -> str:
    as_published = [gain.low >= 1.05 and gain.high <= 1.3 for gain in gains]
    if all(as_published):
        return CONFIRMED
    if any(as_published) or any(gain.low > 1.3 for gain in gains):
        return DIFFERS
    return NOT_CONFIRMED if all(gain.ratio <= 1 for gain in gains) else UNTOLD


def _speed_sheets(results: RunDocuments) -> list[Sheet]:
    device, gains = _gains(results)
    rows = []
    for batch, (full_speed, half, gain) in TABLE_4.items():
        if batch in gains:
            ours = gains[batch]
            theirs = (fixed(full_speed, 1), fixed(half, 1), f"{signed(gain)} %")
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
