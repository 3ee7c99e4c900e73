"""The draws of a lottery over tasks and seeds, read from its runs, and the tables of Prasanna et al. 2020 beside them. No torch.

Published numbers are those of BERT-base, means over five seeds, from the stored output of the authors' notebook, without WNLI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import NamedTuple

import numpy as np

from ...documents.lottery import Draw, LotteryDocument, Network
from ...documents.lottery_study import Lottery
from ...formatting import fixed, percent
from ...plans import by_place
from ...stats.agreement import fleiss_kappa, in_all
from ..experiment import RunDocuments, Setting, Sheet
from ..inputs import Corpus
from ..seeds import Estimate

TASKS = ("CoLA", "MNLI", "MRPC", "QNLI", "QQP", "RTE", "SST-2", "STS-B")
PUBLISHED: dict[tuple[str, str, str], tuple[float, ...]] = {  # by kind, sub-network, and how; in the order of TASKS
    ("structured", "full", "whole"): (0.56, 0.84, 0.84, 0.92, 0.91, 0.63, 0.93, 0.89),
    ("structured", "good", "pruned"): (0.51, 0.76, 0.77, 0.83, 0.83, 0.57, 0.84, 0.80),
    ("structured", "good", "retrained"): (0.50, 0.80, 0.77, 0.89, 0.89, 0.58, 0.87, 0.75),
    ("structured", "random", "pruned"): (0.43, 0.64, 0.48, 0.69, 0.74, 0.51, 0.69, 0.53),
    ("structured", "random", "retrained"): (0.42, 0.79, 0.68, 0.84, 0.88, 0.56, 0.89, 0.79),
    ("structured", "bad", "pruned"): (0.34, 0.60, 0.43, 0.63, 0.68, 0.49, 0.62, 0.32),
    ("structured", "bad", "retrained"): (0.41, 0.80, 0.68, 0.77, 0.82, 0.59, 0.86, 0.61),
    ("magnitude", "good", "pruned"): (0.52, 0.78, 0.78, 0.84, 0.83, 0.61, 0.85, 0.82),
    ("magnitude", "good", "retrained"): (0.54, 0.84, 0.84, 0.91, 0.91, 0.61, 0.92, 0.88),
    ("magnitude", "random", "retrained"): (0.16, 0.76, 0.70, 0.81, 0.86, 0.56, 0.83, 0.24),
    ("magnitude", "bad", "retrained"): (0.02, 0.62, 0.68, 0.61, 0.78, 0.49, 0.82, 0.08),
}
MAJORITY = (0.00, 0.35, 0.68, 0.51, 0.63, 0.53, 0.51, 0.02)
HEADS = (0.64, 0.66, 0.62, 0.59, 0.54, 0.51, 0.47, 0.53)  # the share that survives, mean over seeds
MLPS = (0.90, 0.70, 0.77, 0.73, 0.72, 0.77, 0.65, 0.62)
IN_ALL = (34, 40, 28, 31, 23, 11, 19, 24)  # of 144 heads, under all five seeds
KAPPA = (0.18, 0.32)  # Fleiss' kappa of heads: the lowest and the highest of the tasks
NAMES = {"structured": "", "magnitude": "weights, "}
LAPTOP_TASKS = 2
EXAMPLES = (600, 12000)  # to train on, at most: on a laptop and at full size, where a draw trains a dozen times
two: Callable[[float], str] = partial(fixed, digits=2)
three: Callable[[float], str] = partial(fixed, digits=3)


def corpora_drawn(setting: Setting) -> tuple[Corpus, ...]:
    """The tasks that are drawn for; none where there is no pretrained model."""
    material = setting.material
    return () if material.encoder is None else material.corpora[: None if setting.full else LAPTOP_TASKS]


def trained_on(setting: Setting) -> str:
    """How many examples a draw trains on, in words."""
    return f"at most {setting.by_size(*EXAMPLES):,} training examples a task"


def run_of(corpus: Corpus, seed: int) -> str:
    """The name of the run of a task and a seed."""
    return f"lottery-{corpus.name}-{seed}"


class Task(NamedTuple):
    """The draws of one task that are there."""

    name: str
    metric: str
    majority: float  # of one who always says the same; 0 for a correlation
    n: int
    study: Lottery

    def values(self, kind: str, subnetwork: str, how: str) -> dict[int, float]:
        """What a sub-network, or the full model, is worth under each seed."""
        return {draw.seed: value for draw in self.study.draws for value in _values(draw, kind, subnetwork, how)}

    def gains(self, kind: str, subnetwork: str) -> dict[int, Estimate]:
        """How much better a sub-network, fine-tuned anew, is than the full model under each seed, on the same examples."""
        every = {draw.seed: _networks(draw, kind, subnetwork, "retrained") for draw in self.study.draws}
        compared = {
            seed: network.comparison
            for seed, some in every.items()
            for network in some
            if network.comparison is not None
        }
        return {
            seed: Estimate(comparison.difference, comparison.low, comparison.high)
            for seed, comparison in compared.items()
        }

    def shares(self) -> list[Estimate]:
        """Of the full model's score, what good sub-networks reach fine-tuned anew, for each seed."""
        full, good = self.values("structured", "full", "whole"), self.gains("structured", "good")
        return [Estimate(*(1 + end / full[seed] for end in good[seed])) for seed in good if full[seed] > 0]

    def behind(self, kind: str, subnetwork: str) -> dict[int, Estimate]:
        """How far a sub-network is behind the good one, both fine-tuned anew, under each seed."""
        good, other_gains = (self.gains(kind, name) for name in ("good", subnetwork))
        return {seed: good[seed].minus(other_gains[seed]) for seed in good if seed in other_gains}


def _networks(draw: Draw, kind: str, subnetwork: str, how: str) -> list[Network]:
    by_weights = () if draw.magnitude is None else draw.magnitude.networks
    every = draw.networks if kind == "structured" else by_weights
    return [network for network in every if (network.what, network.how) == (subnetwork, how)]


def _values(draw: Draw, kind: str, subnetwork: str, how: str) -> list[float]:
    if subnetwork == "full":
        return [draw.full.report] if how == "whole" else []
    return [network.value for network in _networks(draw, kind, subnetwork, how)]


def _task(studies: Sequence[Lottery]) -> Task:
    """The studies of one task as one."""
    study = Lottery.joined(studies)
    about, draw = study.tasks[0], study.draws[0]
    majority = 0.0 if about.majority is None else about.majority
    return Task(about.name, about.metric, majority, draw.networks[0].n, study)


def _study(data: LotteryDocument) -> Lottery:
    """A study that was found to be one of a task, with all its numbers."""
    return _task([Lottery.of(data)]).study


def tasks_of(results: RunDocuments) -> list[Task]:
    """The tasks of which there are draws."""
    tasks = []
    for corpus in corpora_drawn(results.setting):
        parts = [results.read(run_of(corpus, seed), LotteryDocument, _study) for seed in results.setting.seeds]
        studies = [part for part in parts if part is not None]
        tasks += [_task(studies)] if studies else []
    return tasks


def in_one_study(tasks: Sequence[Task]) -> Lottery | None:
    """All tasks in one study, with the seeds that all of them have."""
    common = set.intersection(*(set(task.study.seeds) for task in tasks)) if tasks else set()
    if not common:
        return None
    common_draws = [[draw for draw in task.study.draws if draw.seed in common] for task in tasks]
    return Lottery.joined(
        replace(task.study, draws=tuple(draws)) for task, draws in zip(tasks, common_draws, strict=True)
    )


def kept_by_all(task: Task) -> int:
    """How many heads survive under every seed."""
    return in_all([task.study.survivors(task.name, seed, "heads") for seed in task.study.seeds])


# -- tables --------------------------------------------------------------------------------------------------------------


def sheets(results: RunDocuments) -> list[Sheet]:
    """What sub-networks are worth, who survives, and in how many tasks each unit does; theirs beside ours."""
    tasks = tasks_of(results)
    if not tasks:
        return []
    study = in_one_study(tasks)
    maps = [_map(study)] if study is not None and len(study.names) > 1 else []
    return [_worth(results, tasks), _survivors(tasks), *maps]


def _worth(results: RunDocuments, tasks: Sequence[Task]) -> Sheet:
    rows = []
    for task in tasks:
        for kind, subnetwork in dict.fromkeys((kind, subnetwork) for kind, subnetwork, _ in PUBLISHED):
            hows = ("whole", "") if subnetwork == "full" else ("pruned", "retrained")
            ours = [list(task.values(kind, subnetwork, how).values()) for how in hows]
            if any(ours):
                name = "full model" if subnetwork == "full" else NAMES[kind] + subnetwork
                theirs = [_theirs(task.name, PUBLISHED.get((kind, subnetwork, how))) for how in hows]
                rows.append((task.name, name, *theirs, *map(_cell, ours)))
        rows.append((task.name, "always the same", _theirs(task.name, MAJORITY), "–", two(task.majority), "–"))
    title = "Sub-networks, theirs (BERT-base, five seeds) and ours (mean ± deviation over seeds; "
    title += f"{trained_on(results.setting)})"
    columns = ("task", "what", "theirs, as found", "theirs, anew", "ours, as found", "ours, anew")
    return Sheet(title, columns, tuple(rows))


def _theirs(task: str, row: Sequence[float] | None, format_value: Callable[[float], str] = two) -> str:
    return "–" if row is None or task not in TASKS else format_value(row[TASKS.index(task)])


def _cell(values: Sequence[float], format_value: Callable[[float], str] = three) -> str:
    if not values:
        return "–"
    deviation = f" ± {format_value(float(np.std(values, ddof=1)))}" if len(values) > 1 else ""
    return format_value(fmean(values)) + deviation


def _survivors(tasks: Sequence[Task]) -> Sheet:
    rows = []
    for task in tasks:
        heads, mlps = (task.study.marks(task.name, kind) for kind in ("heads", "mlps"))
        kappa = fleiss_kappa(heads)
        rows.append(
            (
                task.name,
                _theirs(task.name, HEADS, percent),
                _cell(heads.mean(0).tolist(), percent),
                _theirs(task.name, MLPS, percent),
                _cell(mlps.mean(0).tolist(), percent) if len(mlps) else "–",
                _theirs(task.name, [count / 144 for count in IN_ALL], percent),
                percent(kept_by_all(task) / len(heads)) if len(task.study.seeds) > 1 else "–",
                "–" if kappa is None else two(kappa),
            )
        )
    title = f"Who survives, theirs (BERT-base, five seeds; kappa {two(KAPPA[0])} to {two(KAPPA[1])}) and ours"
    pairs = ("heads", "MLPs", "heads under every seed")
    columns = (
        "task",
        *(f"{quantity}, {whose}" for quantity in pairs for whose in ("theirs", "ours")),
        "kappa of heads, ours",
    )
    return Sheet(title, columns, tuple(rows))


def _map(study: Lottery) -> Sheet:
    """In how many tasks each head, and the MLP of its layer, survives: the heat maps of the paper in numbers."""
    counts = study.document().survivors
    heads = by_place(site.name for site in study.sites if site.kind == "head")
    widest = max((len(counts[name].mean) for name in heads), default=0)
    rows = []
    for name in heads:
        cells = [fixed(value, 1) for value in counts[name].mean]
        beside = counts.get(f"{name}.mlp")
        mlp = "–" if beside is None else fixed(beside.mean[0], 1)
        rows.append((name, *cells, *["–"] * (widest - len(cells)), mlp))
    seeds = f", mean over {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""
    title = f"In how many of {len(study.names)} tasks each head and MLP survives{seeds}"
    return Sheet(title, ("site", *map(str, range(widest)), "MLP"), tuple(rows))
