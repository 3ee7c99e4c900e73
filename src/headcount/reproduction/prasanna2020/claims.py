"""Prasanna, Rogers and Rumshisky 2020: good, random and bad sub-networks, as found and fine-tuned anew, and who survives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import fmean

import numpy as np

from ...documents.lottery_study import Lottery
from ...formatting import counted, fixed, listed, percent, signed
from ...stats.agreement import fleiss_kappa
from ..experiment import CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD, Claim, Experiment, Found, Setting, Step
from ..seeds import COVERS, ENOUGH, SEEDS_ALONE, Mean, mean_of, mean_over_seeds
from .tables import (
    EXAMPLES,
    IN_ALL,
    KAPPA,
    PUBLISHED,
    Task,
    corpora_drawn,
    in_one_study,
    kept_by_all,
    run_of,
    sheets,
    tasks_of,
    trained_on,
    two,
)

SELDOM, OF = 7, 9  # "in fewer than seven of nine tasks", in whole numbers: seven itself is not fewer
NEARLY = 0.84  # of the full model's score: the lowest published share of good sub-networks, fine-tuned anew
FAR = 0.10  # what is behind by less is close: between the published means over tasks, of heads and MLPs and of single weights
LITTLE, MUCH = 0.40, 0.60  # agreement: up to "fair", and from "substantial" on (Landis and Koch 1977)
RESAMPLES = 1000
OTHERS = ("random", "bad")
FEWEST = 3  # tasks, to say something about tasks
ALL = "lottery-all"


def steps(setting: Setting) -> list[Step]:
    """A study for every task and seed, so that they can run side by side, and all of them joined."""
    made = []
    short = ("--steps", "40", "--batch-size", "16", "--lr", "1e-4", "--step", "25%")
    for corpus in corpora_drawn(setting):
        long = ("--epochs", corpus.epochs, "--batch-size", "32", "--lr", "5e-5", "--magnitude")
        for seed in setting.seeds:
            words: tuple[str, ...] = ("lottery", str(setting.material.encoder), "--new-head", "--task", corpus.kind)
            words += ("--name", corpus.name, *corpus.on("train"), *setting.limit(*EXAMPLES))
            words += (*corpus.beside("--dev-data", "dev"), *setting.limit(300, flag="--dev-limit"))
            words += ("--seeds", str(seed), *setting.by_size(short, long), "-o", setting.run(run_of(corpus, seed)))
            made.append(Step(run_of(corpus, seed), (*words, *setting.flags)))
    if len(made) > 1:
        names = tuple(step.name for step in made)
        words = ("lottery", "--join", *map(setting.run, names), "-o", setting.run(ALL), *setting.flags)
        made.append(Step(ALL, words, names))
    return made


def claims(found: Found) -> list[Claim]:
    """Good sub-networks; all of them; single weights; other seeds; other tasks."""
    tasks = tasks_of(found)
    made = [_good(found, [task for task in tasks if task.shares()])]
    made += [_all_win(found, [task for task in tasks if task.behind("structured", "bad")])]
    made += [_weights(found, [task for task in tasks if task.behind("magnitude", "bad")])]
    made += [_seeds(found, tasks), _survive(found, tasks)]
    return [claim for claim in made if claim is not None]


def _where(found: Found, tasks: Sequence[Task]) -> str:
    sizes = listed([f"{task.name} ({task.metric}, n = {task.n})" for task in tasks], 9)
    return f"{sizes}; {trained_on(found.setting)}"


def _how(means: Sequence[Mean]) -> str:
    """What the numbers are, also where tasks have different numbers of seeds."""
    fewest, most = (way(means, key=lambda mean: mean.seeds) for way in (min, max))
    if fewest.seeds == most.seeds:
        return most.how
    return f"mean over {fewest.seeds} to {most.seeds} seeds, with its 95 % interval {COVERS} from {ENOUGH} on"


def _everywhere(holds: Sequence[bool], fails: Sequence[bool]) -> str:
    """One verdict where something holds for sure, fails for sure, or is not known, here and there."""
    if holds and all(holds):
        return CONFIRMED
    if fails and all(fails):
        return NOT_CONFIRMED
    return DIFFERS if any(holds) and any(fails) else UNTOLD


def _left_out(tasks: Sequence[Task], told: Sequence[Task]) -> str:
    names = [task.name for task in tasks if task not in told]
    return (
        f" The verdict is not about {listed(names, 9)}: one answer to everything comes as near there." if names else ""
    )


# -- what sub-networks are worth -----------------------------------------------------------------------------------------


def _good(found: Found, tasks: Sequence[Task]) -> Claim | None:
    if not tasks:
        return None
    shares = {task.name: mean_of(task.shares()) for task in tasks}
    full = {task.name: fmean(task.values("structured", "full", "whole").values()) for task in tasks}
    told = [task for task in tasks if task.majority < NEARLY * full[task.name]]
    own = [shares[task.name] for task in told]
    verdict = _everywhere([share.above(NEARLY) for share in own], [share.below(NEARLY) for share in own])
    here = f"{_where(found, tasks)}. Of the full model's score ({_how([*shares.values()])}): "
    here += "; ".join(f"{shares[task.name].text(percent)} on {task.name}" for task in tasks)
    paper = "Good sub-networks of heads and MLPs, fine-tuned anew, come near the full model: SST-2 .87 of .93, STS-B .75 of "
    paper += f".89, and from {percent(NEARLY)} to 98 % of its score on eight tasks."
    rule = f"Confirmed if they reach more than {percent(NEARLY)} of it, the lowest published share, on every task where one "
    rule += f"answer to everything does not (95 % interval {COVERS}, at least {ENOUGH} seeds); not confirmed if they surely "
    rule += "reach less on every one, and it differs if they surely do on some and surely do not on others."
    return Claim(paper, f"{here}.{_left_out(tasks, told)}", verdict, rule)


def _telling(tasks: Sequence[Task], kind: str) -> list[Task]:
    """The tasks on which a sub-network that learned nothing would be far behind the good one."""
    good = {task.name: fmean(task.values(kind, "good", "retrained").values()) for task in tasks}
    return [task for task in tasks if good[task.name] - task.majority > FAR]


def _behind(tasks: Sequence[Task], kind: str) -> list[Mean]:
    """How far random and bad sub-networks are behind the good one, on each task that tells; metrics are not mixed."""
    return [mean_of(task.behind(kind, what).values()) for task in _telling(tasks, kind) for what in OTHERS]


def _all_win(found: Found, tasks: Sequence[Task]) -> Claim | None:
    if not tasks:
        return None
    means = _behind(tasks, "structured")
    verdict = _everywhere([mean.below(FAR) for mean in means], [mean.above(FAR) for mean in means])
    paper = "All tickets win: fine-tuned anew, random and bad sub-networks of heads and MLPs come close to good ones (SST-2 "
    paper += f".89 and .86 to .87, STS-B .79 and .61 to .75; mean over eight tasks {_published('structured')} behind)."
    paper += " Their script reads the scores of random ones from the folder of the good ones, so those are uncertain."
    rule = f"Confirmed if random and bad ones are both less than {two(FAR)} behind good ones on every task where one answer to "
    rule += f"everything is not (95 % intervals {COVERS}, at least {ENOUGH} seeds); not confirmed if both are further "
    rule += "behind on every one, and it differs if some of them surely are close and others surely are not."
    return Claim(paper, _told(found, tasks, "structured"), verdict, rule)


def _weights(found: Found, tasks: Sequence[Task]) -> Claim | None:
    if not tasks:
        return None
    means = _behind(tasks, "magnitude")
    verdict = _everywhere([mean.above(FAR) for mean in means], [mean.below(FAR) for mean in means])
    if verdict == NOT_CONFIRMED and all(mean.above(0) for mean in means):
        verdict = DIFFERS  # behind they are
    paper = "Of single weights, chosen by magnitude, only good sub-networks win: fine-tuned anew, random and bad ones are far "
    paper += f"behind (STS-B .24 and .08 to .88; mean over eight tasks {_published('magnitude')} behind)."
    rule = f"Confirmed if random and bad ones are both more than {two(FAR)} behind good ones on every task where one answer to "
    rule += f"everything is (95 % intervals {COVERS}, at least {ENOUGH} seeds); it differs if some of them surely are and others "
    rule += (
        "surely are not, or all are behind by less; not confirmed if none is so far behind, and one perhaps not at all."
    )
    return Claim(paper, _told(found, tasks, "magnitude"), verdict, rule)


def _published(kind: str) -> str:
    """How far random and bad sub-networks of the paper are behind good ones, mean over tasks."""
    good, *others = (PUBLISHED[kind, what, "retrained"] for what in ("good", *OTHERS))
    return " and ".join(two((sum(good) - sum(one)) / len(good)) for one in others)


def _told(found: Found, tasks: Sequence[Task], kind: str) -> str:
    """Random and bad sub-networks against good ones, fine-tuned anew, on each task."""
    by_task = {task.name: [mean_of(task.behind(kind, what).values()) for what in OTHERS] for task in tasks}
    told = [f"{name} {' and '.join(map(_against, pair))}" for name, pair in by_task.items()]
    how = _how([mean for pair in by_task.values() for mean in pair])
    here = f"{_where(found, tasks)}. Random and bad ones against good ones, fine-tuned anew ({how}): {'; '.join(told)}."
    return here + _left_out(tasks, _telling(tasks, kind))


def _against(behind: Mean) -> str:
    """How far behind, as a difference."""
    return behind._replace(value=-behind.value, low=-behind.high, high=-behind.low).text(partial(signed, digits=2))


# -- who survives --------------------------------------------------------------------------------------------------------


def _kappa(marks: Sequence[np.ndarray]) -> tuple[float, float, float] | None:
    """The mean over tasks of Fleiss' kappa of the seeds, with its 95 % interval over draws of the heads."""
    mean = _mean_kappa(marks)
    if mean is None:
        return None
    heads = len(marks[0])
    drawn = np.random.default_rng(0).integers(heads, size=(RESAMPLES, heads))
    found = [_mean_kappa([one[chosen] for one in marks]) for chosen in drawn]
    low, high = np.percentile([one for one in (mean, *found) if one is not None], [2.5, 97.5])
    return mean, float(low), float(high)


def _mean_kappa(marks: Iterable[np.ndarray]) -> float | None:
    known = [one for one in map(fleiss_kappa, marks) if one is not None]
    return math.fsum(known) / len(known) if known else None


def _seeds(found: Found, tasks: Sequence[Task]) -> Claim | None:
    marks = [task.study.marks(task.name, "heads") for task in tasks]
    over = _kappa(marks)
    if over is None:
        return None
    told = []
    for task, one in zip(tasks, marks, strict=True):
        kappa, by_chance = fleiss_kappa(one), fixed(len(one) * math.prod(one.mean(0)), 1)
        stay = f"{kept_by_all(task)} of {len(one)} heads under every seed (by chance {by_chance})"
        told.append(f"{task.name} kappa {'–' if kappa is None else two(kappa)}, {stay}")
    seeds = min(one.shape[1] for one in marks)
    here = f"{_where(found, tasks)}; {counted(seeds, 'seed')}: {'; '.join(told)}. Mean kappa {two(over[0])} "
    here += f"[{two(over[1])}, {two(over[2])}] (95 %, heads drawn again)."
    verdict = UNTOLD
    if seeds >= ENOUGH and over[2] <= LITTLE:
        verdict = CONFIRMED
    elif seeds >= ENOUGH and over[1] > LITTLE:
        verdict = NOT_CONFIRMED if over[1] > MUCH else DIFFERS
    paper = f"Seeds agree little on which heads survive: Fleiss' kappa {two(KAPPA[0])} to {two(KAPPA[1])} over five seeds, and "
    paper += f"{min(IN_ALL)} to {max(IN_ALL)} of 144 heads survive under all of them."
    rule = f"Confirmed if the mean kappa over tasks is at most {two(LITTLE)} (fair) by its 95 % interval, with at least {ENOUGH} "
    rule += f"seeds; it differs if it is above that, and is not confirmed if it is above {two(MUCH)} (substantial)."
    return Claim(paper, here, verdict, rule)


def _seldom(study: Lottery, kind: str) -> list[float]:
    """For each seed, the share of the units that survive on fewer than seven ninths of the tasks."""
    counts = np.sum([study.marks(task, kind) for task in study.names], axis=0)
    return (OF * counts < SELDOM * len(study.names)).mean(0).tolist()


def _survive(found: Found, tasks: Sequence[Task]) -> Claim | None:
    study = in_one_study(tasks)
    if study is None or len(study.names) < 2 or not study.units("heads") or not study.units("mlps"):
        return None
    heads, mlps = (mean_over_seeds(_seldom(study, kind)) for kind in ("heads", "mlps"))
    here = f"{_where(found, tasks)}: {heads.text(percent)} of the heads and {mlps.text(percent)} of the MLPs survive on fewer "
    here += f"than {math.ceil(SELDOM * len(study.names) / OF)} of {len(study.names)} tasks ({heads.how})."
    shares = (heads, mlps)
    verdict = _everywhere([one.above(0.5) for one in shares], [one.below(0.5) for one in shares])
    verdict = verdict if len(study.names) >= FEWEST else UNTOLD
    paper = "86 % of the heads and 57 % of the MLPs survive on fewer than seven of nine tasks."
    rule = f"Confirmed if more than half of the heads and of the MLPs survive on fewer than seven ninths of at least {FEWEST} "
    rule += (
        f"tasks (95 % intervals {SEEDS_ALONE}, at least {ENOUGH}: all chose on the same examples); it differs if that "
    )
    rule += "holds for one kind, and the opposite for the other."
    return Claim(paper, here, verdict, rule)


EXPERIMENTS = (
    Experiment(
        "prasanna-lottery",
        "Prasanna et al. 2020",
        "the tables of sub-networks, and the maps of survivors",
        "Do good sub-networks win, or does any of their size, and do other seeds and tasks keep the same heads?",
        steps,
        claims,
        sheets,
    ),
)
