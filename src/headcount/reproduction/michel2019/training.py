"""Michel et al. 2019, Figure 5: when in a training heads become unimportant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...documents.curves import OverDocument
from ...formatting import counted, fixed, listed, signed
from ...stats.results import difference_text
from ..curves import (
    Line,
    chosen_on,
    curve_step,
    left,
    line_of,
    percents_text,
    score_text,
    share_left,
)
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
    over_seeds,
)
from ..inputs import Pairs
from ..models import seeds_of
from ..runner import named_once
from ..seeds import COVERS, ENOUGH, Estimate, mean_of

IWSLT = {1: 3.0, 2: 6.2, 3: 18.1, 5: 26.9, 10: 30.6, 20: 34.5, 30: 34.7, 40: 34.9}  # BLEU by epoch
LATE = 10  # the epoch from which on heads can go
KEPT = 85  # percent of the score without 40 % of the heads
GONE = (20, 40, 60, 80)  # percent of the heads


def _training_steps(setting: Setting) -> list[Step]:
    pairs, steps = setting.material.pairs, list[Step]()
    for seed in seeds_of(setting, None) if pairs is not None else ():
        model, before = setting.trained(pairs, seed)
        on = chosen_on(setting, pairs, "val", "train", 60, 1000)
        how = ("--by", "taylor", "--step", "20%", "--over", str(Path(setting.run(before[-1].name)) / "checkpoints"))
        steps += [*before, curve_step(setting, f"michel-epochs-{seed}", model, before, *on, *how, *_epochs(pairs))]
    return named_once(steps)


def _epochs(pairs: Pairs) -> tuple[str, ...]:
    """The epochs that the paper looked at, as far as they are trained, and the last; all where nothing says how many."""
    last_epoch = dict(zip(pairs.recipe, pairs.recipe[1:], strict=False)).get("--epochs", "")
    if not last_epoch.isdecimal():
        return ()
    return (
        "--checkpoints",
        ",".join(map(str, sorted({*(epoch for epoch in IWSLT if epoch <= int(last_epoch)), int(last_epoch)}))),
    )


def _trainings(results: RunDocuments) -> list[dict[int, Line]]:
    """For each training the curve of each epoch looked at."""
    seeds = seeds_of(results.setting, None) if results.setting.material.pairs is not None else ()
    trainings = [results.read(f"michel-epochs-{seed}", OverDocument, _stages) for seed in seeds]
    return [training for training in trainings if training]


def _stages(data: OverDocument) -> dict[int, Line]:
    return {int(checkpoint.name.rpartition("-")[2]): line_of(checkpoint.curves[0]) for checkpoint in data.checkpoints}


def _training_claims(results: RunDocuments) -> list[Claim]:
    trainings = _trainings(results)
    if not trainings:
        return []
    papers = (
        "Figure 5: from epoch 10 on up to 40 % of the heads can go with 85 to 90 % of the BLEU left.",
        "Figure 5: that is so from epoch 10 on, and not in the epochs before.",
    )
    rules = (
        f"Confirmed if of the epochs looked at from the tenth on the one that keeps least without 40 % of the heads keeps more "
        f"than {KEPT} % of its BLEU, by the 95 % interval {COVERS} ({ENOUGH} or more trainings); if it keeps less, it "
        "differs if the one that keeps most keeps more than that, or all do without 20 %, and is not confirmed if neither is "
        "so, by intervals.",
        "Confirmed if the epochs from the tenth on keep a larger share of their BLEU without 40 % of the heads than those before "
        f"(of at least {IWSLT[1]} BLEU, the least in the paper): the 95 % interval {COVERS} ({ENOUGH} or more trainings) is "
        "above 0; not confirmed if it is below.",
    )
    last = trainings[0][max(trainings[0])]
    pairs = results.setting.material.pairs
    where = f"{pairs.name if pairs else ''} ({counted(len(trainings), 'training')}, n = {last.whole.n})"
    why = _unclear(trainings)
    if why:
        return [Claim(paper, f"{where}: {why}.", UNTOLD, rule) for paper, rule in zip(papers, rules, strict=True)]
    late = [[line for epoch, line in training.items() if epoch >= LATE] for training in trainings]
    early = [
        [line for epoch, line in training.items() if epoch < LATE and line.whole.before >= IWSLT[1]]
        for training in trainings
    ]
    at20, at40 = ([100 * left([line], share) for late_lines in late for line in late_lines] for share in (20, 40))
    epochs = sorted({epoch for training in trainings for epoch in training if epoch >= LATE})
    finding = f"{where}: after {'epochs' if epochs[1:] else 'epoch'} {listed([str(epoch) for epoch in epochs], 9)} "
    finding += f"{percents_text(at40)} of the {last.whole.metric} are left without 40 % of the heads, "
    finding += f"{percents_text(at20)} without 20 %"
    parts = ((min, 40), (max, 40), (min, 20))
    least, most, fewer = (
        mean_of(pick(share_left(line, share) for line in late_lines) for late_lines in late) for pick, share in parts
    )
    finding += (
        f"; the epoch that keeps least keeps {least.text(lambda value: fixed(value, 1))} % without 40 % ({least.how})."
    )
    if least.above(KEPT):
        verdict = CONFIRMED
    elif least.below(KEPT) and (most.above(KEPT) or fewer.above(KEPT)):
        verdict = DIFFERS
    else:
        verdict = NOT_CONFIRMED if most.below(KEPT) and fewer.below(KEPT) else UNTOLD
    return [Claim(papers[0], finding, verdict, rules[0]), Claim(papers[1], *_grown(where, early, late), rules[1])]


def _unclear(trainings: Sequence[dict[int, Line]]) -> str:
    """Why nothing can be said about what is left of late epochs, or nothing."""
    stages = trainings[0]
    metric = stages[max(stages)].whole.metric
    if not stages[max(stages)].whole.higher_is_better:
        epoch_texts = [f"{difference_text(line.at(40))} after epoch {epoch}" for epoch, line in sorted(stages.items())]
        return (
            f"measured by {metric}, of which no share can be left; without 40 % of the heads {listed(epoch_texts, 9)}"
        )
    if any(max(training) < LATE for training in trainings):
        return f"trained for {counted(min(max(training) for training in trainings), 'epoch')} only"
    if any(line.whole.before <= 0 for training in trainings for epoch, line in training.items() if epoch >= LATE):
        return f"a training has not come above a {metric} of 0 by epoch {LATE}"
    return ""


def _grown(where: str, early: Sequence[Sequence[Line]], late: Sequence[Sequence[Line]]) -> tuple[str, str]:
    """How much more the later epochs keep without 40 % of the heads than the earlier ones, and the verdict."""
    complete_pairs = [pair for pair in zip(early, late, strict=True) if all(pair)]
    if not complete_pairs:
        return f"{where}: no epoch before the tenth came to {IWSLT[1]} BLEU.", UNTOLD
    kept_shares = [
        [Estimate.average(share_left(line, 40) for line in part) for part in pair] for pair in complete_pairs
    ]
    more = mean_of(after.minus(before) for before, after in kept_shares)
    values = [[after.value for after in estimates] for estimates in zip(*kept_shares, strict=True)]
    finding = f"{where}: without 40 % of the heads the epochs before the tenth keep {percents_text(values[0])} "
    finding += f"of their score, those from the tenth on {percents_text(values[1])}: {more.text(signed)} points "
    finding += f"({more.how})."
    return finding, CONFIRMED if more.above(0) else NOT_CONFIRMED if more.below(0) else UNTOLD


def _training_sheets(results: RunDocuments) -> list[Sheet]:
    trainings, rows = _trainings(results), list[tuple[str, ...]]()
    for epoch in sorted({epoch for training in trainings for epoch in training}):
        lines = [training[epoch] for training in trainings if epoch in training]
        published = fixed(IWSLT[epoch], 1) if epoch in IWSLT else "–"
        rows.append((str(epoch), published, score_text(lines, None), *(_kept(lines, share) for share in GONE)))
    if not rows:
        return []
    metric = next(iter(trainings[0].values())).whole.metric
    title = f"The model of an epoch, and how much of its {metric} is left (of a loss: added) without so many heads; "
    title += f"{counted(len(trainings), 'training')}, lowest to highest. Michel et al.: 85 to 90 % without 40 %, from epoch 10"
    columns = ("epoch", "Michel et al., BLEU (IWSLT)", metric, *(f"{share} % gone" for share in GONE))
    return [Sheet(title, columns, tuple(rows))]


def _kept(lines: Sequence[Line], share: int) -> str:
    if not lines[0].whole.higher_is_better:
        return over_seeds([line.at(share).difference for line in lines], lambda value: signed(value, 3))
    kept_shares = [100 * left([line], share) for line in lines if line.whole.before > 0]
    return percents_text(kept_shares) if kept_shares else "–"


TRAINING = Experiment(
    "michel-training",
    "Michel et al. 2019",
    "Figure 5",
    "When in a training do heads become unimportant?",
    _training_steps,
    _training_claims,
    _training_sheets,
)
