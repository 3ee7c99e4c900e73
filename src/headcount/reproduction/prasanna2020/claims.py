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
from ..experiment import CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD, Claim, Experiment, RunDocuments, Setting, Step
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
    all_steps = []
    short = ("--steps", "40", "--batch-size", "16", "--lr", "1e-4", "--step", "25%")
    for corpus in corpora_drawn(setting):
        long = ("--epochs", corpus.epochs, "--batch-size", "32", "--lr", "5e-5", "--magnitude")
        for seed in setting.seeds:
            words: tuple[str, ...] = ("lottery", str(setting.material.encoder), "--new-head", "--task", corpus.kind)
            words += ("--name", corpus.name, *corpus.on("train"), *setting.limit(*EXAMPLES))
            words += (*corpus.beside("--dev-data", "dev"), *setting.limit(300, flag="--dev-limit"))
            words += ("--seeds", str(seed), *setting.by_size(short, long), "-o", setting.run(run_of(corpus, seed)))
            all_steps.append(Step(run_of(corpus, seed), (*words, *setting.flags)))
    if len(all_steps) > 1:
        names = tuple(step.name for step in all_steps)
        words = ("lottery", "--join", *map(setting.run, names), "-o", setting.run(ALL), *setting.flags)
        all_steps.append(Step(ALL, words, names))
    return all_steps


def claims(results: RunDocuments) -> list[Claim]:
    """Good sub-networks; all of them; single weights; other seeds; other tasks."""
    tasks = tasks_of(results)
    possible_claims = [_good(results, [task for task in tasks if task.shares()])]
    possible_claims += [_all_win(results, [task for task in tasks if task.behind("structured", "bad")])]
    possible_claims += [_weights(results, [task for task in tasks if task.behind("magnitude", "bad")])]
    possible_claims += [_seeds(results, tasks), _survive(results, tasks)]
    return [claim for claim in possible_claims if claim is not None]


def _where(results: RunDocuments, tasks: Sequence[Task]) -> str:
    sizes = listed([f"{task.name} ({task.metric}, n = {task.n})" for task in tasks], 9)
    return f"{sizes}; {trained_on(results.setting)}"


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


def _left_out(tasks: Sequence[Task], judged_tasks: Sequence[Task]) -> str:
    names = [task.name for task in tasks if task not in judged_tasks]
    return (
        f" The verdict is not about {listed(names, 9)}: one answer to everything comes as near there." if names else ""
    )


# -- what sub-networks are worth -----------------------------------------------------------------------------------------


def _good(results: RunDocuments, tasks: Sequence[Task]) -> Claim | None:
    if not tasks:
        return None
    shares = {task.name: mean_of(task.shares()) for task in tasks}
    full = {task.name: fmean(task.values("structured", "full", "whole").values()) for task in tasks}
    judged_tasks = [task for task in tasks if task.majority < NEARLY * full[task.name]]
    own = [shares[task.name] for task in judged_tasks]
    verdict = _everywhere([share.above(NEARLY) for share in own], [share.below(NEARLY) for share in own])
    finding = f"{_where(results, tasks)}. Of the full model's score ({_how([*shares.values()])}): "
    finding += "; ".join(f"{shares[task.name].text(percent)} on {task.name}" for task in tasks)
    paper = "Good sub-networks of heads and MLPs, fine-tuned anew, come near the full model: SST-2 .87 of .93, STS-B .75 of "
    paper += f".89, and from {percent(NEARLY)} to 98 % of its score on eight tasks."
    rule = f"Confirmed if they reach more than {percent(NEARLY)} of it, the lowest published share, on every task where one "
    rule += f"answer to everything does not (95 % interval {COVERS}, at least {ENOUGH} seeds); not confirmed if they surely "
    rule += "reach less on every one, and it differs if they surely do on some and surely do not on others."
    return Claim(paper, f"{finding}.{_left_out(tasks, judged_tasks)}", verdict, rule)


def _telling(tasks: Sequence[Task], kind: str) -> list[Task]:
    """The tasks on which a sub-network that learned nothing would be far behind the good one."""
    good = {task.name: fmean(task.values(kind, "good", "retrained").values()) for task in tasks}
    return [task for task in tasks if good[task.name] - task.majority > FAR]


def _behind(tasks: Sequence[Task], kind: str) -> list[Mean]:
    """How far random and bad sub-networks are behind the good one, on each task that tells; metrics are not mixed."""
    return [mean_of(task.behind(kind, subnetwork).values()) for task in _telling(tasks, kind) for subnetwork in OTHERS]


def _all_win(results: RunDocuments, tasks: Sequence[Task]) -> Claim | None:
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
    return Claim(paper, _retraining_text(results, tasks, "structured"), verdict, rule)


def _weights(results: RunDocuments, tasks: Sequence[Task]) -> Claim | None:
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
    return Claim(paper, _retraining_text(results, tasks, "magnitude"), verdict, rule)


def _published(kind: str) -> str:
    """How far random and bad sub-networks of the paper are behind good ones, mean over tasks."""
    good, *other_scores = (PUBLISHED[kind, subnetwork, "retrained"] for subnetwork in ("good", *OTHERS))
    return " and ".join(two((sum(good) - sum(scores)) / len(good)) for scores in other_scores)


def _retraining_text(results: RunDocuments, tasks: Sequence[Task], kind: str) -> str:
    """Random and bad sub-networks against good ones, fine-tuned anew, on each task."""
    by_task = {task.name: [mean_of(task.behind(kind, subnetwork).values()) for subnetwork in OTHERS] for task in tasks}
    task_texts = [f"{name} {' and '.join(map(_against, pair))}" for name, pair in by_task.items()]
    how = _how([mean for pair in by_task.values() for mean in pair])
    finding = f"{_where(results, tasks)}. Random and bad ones against good ones, fine-tuned anew ({how}): "
    finding += f"{'; '.join(task_texts)}."
    return finding + _left_out(tasks, _telling(tasks, kind))


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
    resampled_means = [_mean_kappa([task_marks[chosen] for task_marks in marks]) for chosen in drawn]
    low, high = np.percentile([kappa for kappa in (mean, *resampled_means) if kappa is not None], [2.5, 97.5])
    return mean, float(low), float(high)


def _mean_kappa(marks: Iterable[np.ndarray]) -> float | None:
    kappas = [kappa for kappa in map(fleiss_kappa, marks) if kappa is not None]
    return math.fsum(kappas) / len(kappas) if kappas else None


def _seeds(results: RunDocuments, tasks: Sequence[Task]) -> Claim | None:
    marks = [task.study.marks(task.name, "heads") for task in tasks]
    over = _kappa(marks)
    if over is None:
        return None
    task_texts = []
    for task, task_marks in zip(tasks, marks, strict=True):
        kappa, by_chance = fleiss_kappa(task_marks), fixed(len(task_marks) * math.prod(task_marks.mean(0)), 1)
        stay = f"{kept_by_all(task)} of {len(task_marks)} heads under every seed (by chance {by_chance})"
        task_texts.append(f"{task.name} kappa {'–' if kappa is None else two(kappa)}, {stay}")
    seeds = min(task_marks.shape[1] for task_marks in marks)
    finding = f"{_where(results, tasks)}; {counted(seeds, 'seed')}: {'; '.join(task_texts)}. Mean kappa {two(over[0])} "
    finding += f"[{two(over[1])}, {two(over[2])}] (95 %, heads drawn again)."
    verdict = UNTOLD
    if seeds >= ENOUGH and over[2] <= LITTLE:
        verdict = CONFIRMED
    elif seeds >= ENOUGH and over[1] > LITTLE:
        verdict = NOT_CONFIRMED if over[1] > MUCH else DIFFERS
    paper = f"Seeds agree little on which heads survive: Fleiss' kappa {two(KAPPA[0])} to {two(KAPPA[1])} over five seeds, and "
    paper += f"{min(IN_ALL)} to {max(IN_ALL)} of 144 heads survive under all of them."
    rule = f"Confirmed if the mean kappa over tasks is at most {two(LITTLE)} (fair) by its 95 % interval, with at least {ENOUGH} "
    rule += f"seeds; it differs if it is above that, and is not confirmed if it is above {two(MUCH)} (substantial)."
    return Claim(paper, finding, verdict, rule)


def _seldom(study: Lottery, kind: str) -> list[float]:
    """For each seed, the share of the units that survive on fewer than seven ninths of the tasks."""
    counts = np.sum([study.marks(task, kind) for task in study.names], axis=0)
    return (OF * counts < SELDOM * len(study.names)).mean(0).tolist()


def _survive(results: RunDocuments, tasks: Sequence[Task]) -> Claim | None:
    study = in_one_study(tasks)
    if study is None or len(study.names) < 2 or not study.units("heads") or not study.units("mlps"):
        return None
    heads, mlps = (mean_over_seeds(_seldom(study, kind)) for kind in ("heads", "mlps"))
    finding = (
        f"{_where(results, tasks)}: {heads.text(percent)} of the heads and {mlps.text(percent)} of the MLPs survive on "
    )
    finding += f"fewer than {math.ceil(SELDOM * len(study.names) / OF)} of {len(study.names)} tasks ({heads.how})."
    shares = (heads, mlps)
    verdict = _everywhere([share.above(0.5) for share in shares], [share.below(0.5) for share in shares])
    verdict = verdict if len(study.names) >= FEWEST else UNTOLD
    paper = "86 % of the heads and 57 % of the MLPs survive on fewer than seven of nine tasks."
    rule = f"Confirmed if more than half of the heads and of the MLPs survive on fewer than seven ninths of at least {FEWEST} "
    rule += (
        f"tasks (95 % intervals {SEEDS_ALONE}, at least {ENOUGH}: all chose on the same examples); it differs if that "
    )
    rule += "holds for one kind, and the opposite for the other."
    return Claim(paper, finding, verdict, rule)


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
