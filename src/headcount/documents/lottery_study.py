"""`Lottery`: what came of a lottery study, and all that follows from its draws. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadRun
from ..stats.agreement import cochran_q, fleiss_kappa, in_all, mean_sd, overlap
from .lottery import (
    FORMAT,
    Draw,
    LotteryDocument,
    LotterySite,
    NetworkMean,
    Overlap,
    SeedAgreement,
    SiteSurvival,
    Size,
    TaskSettings,
)

KINDS = {"heads": "head", "mlps": "mlp"}  # kinds of units, and of the sites that hold them
WHATS, HOWS = ("good", "random", "bad"), ("pruned", "retrained")


@dataclass(frozen=True, eq=False)
class Lottery:
    """What came of a lottery study: a draw per task and seed; all statistics are derived from the draws.

    A draw says which units survived (`alive`: site -> indices, 0 for an MLP that stays), the steps of the search, and the
    values of the sub-networks.
    """

    model: str
    kind: str  # the model's class
    threshold: float
    step: float
    tasks: tuple[TaskSettings, ...]
    sites: tuple[LotterySite, ...]
    draws: tuple[Draw, ...]
    versions: dict[str, str]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, the same for every task."""
        return tuple(dict.fromkeys(draw.seed for draw in self.draws))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(task.name for task in self.tasks)

    def units(self, kind: str) -> tuple[tuple[str, int], ...]:
        """All "heads", or all "mlps", as (site, index)."""
        chosen = [site for site in self.sites if site.kind == KINDS[kind]]
        return tuple((site.name, index) for site in chosen for index in range(site.units))

    def survivors(self, task: str, seed: int, kind: str) -> frozenset[tuple[str, int]]:
        """The heads or MLPs that survived one draw."""
        draw = next(candidate for candidate in self.draws if (candidate.task, candidate.seed) == (task, seed))
        return frozenset(unit for unit in self.units(kind) if unit[1] in draw.alive[unit[0]])

    def marks(self, task: str, kind: str) -> np.ndarray:
        """(units, seeds): 1 where the unit survived under the seed."""
        seed_survivors = [self.survivors(task, seed, kind) for seed in self.seeds]
        return np.array(
            [[unit in survivors for survivors in seed_survivors] for unit in self.units(kind)], dtype=np.int64
        ).reshape(-1, len(seed_survivors))

    def document(self) -> LotteryDocument:
        """The draws, and what follows from them."""
        return LotteryDocument(
            model=self.model,
            class_name=self.kind,
            threshold=self.threshold,
            step=self.step,
            seeds=self.seeds,
            recipe=self._recipe(),
            tasks=self.tasks,
            sites=self.sites,
            draws=self.draws,
            survivors=self._counts(),
            overlap={kind: self._overlap(kind) for kind in KINDS},
            agreement=tuple(self._agreement(task, kind) for task in self.names for kind in KINDS if self.units(kind)),
            table=tuple(self.table()),
            sentence=self.sentence(),
            versions=self.versions,
        )

    def to_json(self) -> dict[str, Any]:
        """lottery.json."""
        return self.document().to_json()

    @classmethod
    def from_json(cls, data: Any, file: str = "") -> Lottery:
        """The study that `to_json` wrote, or an error with the first thing that is wrong with it."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            file_format = data.get("format") if isinstance(data, dict) else data
            raise BadRun(
                f"A lottery is an object of format {FORMAT}; I got {file_format!r:.40}: give one of this headcount."
            )
        return cls.of(LotteryDocument.from_json(data, file))

    @classmethod
    def of(cls, data: LotteryDocument) -> Lottery:
        """The study in a document; refused where its draws do not have all units of all tasks and seeds."""
        shares = data.threshold, data.step
        study = cls(data.model, data.class_name, *shares, data.tasks, data.sites, data.draws, data.versions)
        try:
            for task in study.names:
                for kind in KINDS:
                    study.marks(task, kind)
            study.table()
        except (KeyError, StopIteration) as error:
            problem = f"{type(error).__name__} {error}".strip()
            raise BadRun(f"The lottery's draws are damaged ({problem[:80]}); run the study again.") from None
        return study

    @classmethod
    def joined(cls, studies: Iterable[Lottery]) -> Lottery:
        """Studies of one model on several tasks, or with other seeds, as one; refused where they cannot be put side by side."""
        parts = list(studies)
        if not parts:
            raise BadRun("There is no study to join; give one or more.")
        first = parts[0]
        for study in parts[1:]:
            for name in ("model", "kind", "threshold", "step", "sites"):
                first_value, second_value = getattr(first, name), getattr(study, name)
                if first_value != second_value:
                    raise BadRun(
                        f"The {'class' if name == 'kind' else name} of {first.names[0]}'s study is {first_value!r:.60} and of "
                        f"{study.names[0]}'s {second_value!r:.60}; only studies of one model, made alike, can be joined."
                    )
        tasks: dict[str, TaskSettings] = {}
        for task in (task for study in parts for task in study.tasks):
            if tasks.setdefault(task.name, task) != task:
                raise BadRun(
                    f"Two of the studies are of {task.name!r:.60}, and not on the same data or by the same recipe; give "
                    "each task once, or other names (--name)."
                )
        draws = sorted((draw for study in parts for draw in study.draws), key=lambda draw: list(tasks).index(draw.task))
        seeds = {name: [draw.seed for draw in draws if draw.task == name] for name in tasks}
        for name, drawn in seeds.items():
            if len(set(drawn)) < len(drawn):
                raise BadRun(f"Two of the studies are of {name!r:.60} with the same seed; give each of them once.")
            if set(drawn) != set(seeds[first.names[0]]):
                raise BadRun(
                    f"{first.names[0]} was drawn with the seeds {_listed(seeds[first.names[0]])} and {name} with "
                    f"{_listed(drawn)}; to join them, run both with the same seeds."
                )
        return cls(
            first.model,
            first.kind,
            first.threshold,
            first.step,
            tuple(tasks.values()),
            first.sites,
            tuple(draws),
            first.versions,
        )

    def table(self) -> list[NetworkMean]:
        """The values of the full model and of all sub-networks, over seeds."""
        rows = []
        for task in self.names:
            draws = [draw for draw in self.draws if draw.task == task]
            rows.append(_row(task, "structured", "full", "whole", [draw.full.report for draw in draws]))
            by_weights = [network for draw in draws if draw.magnitude for network in draw.magnitude.networks]
            for kind, every in (
                ("structured", [network for draw in draws for network in draw.networks]),
                ("magnitude", by_weights),
            ):
                for choice in WHATS:
                    for how in HOWS:
                        values = [network.value for network in every if (network.what, network.how) == (choice, how)]
                        rows += [_row(task, kind, choice, how, values)] if values else []
        return rows

    def sentence(self) -> str:
        """One sentence: what came out."""
        kept_shares = ", ".join(f"{self._share(kind):.0%} of the {_word(kind)}" for kind in KINDS if self.units(kind))
        many = f"{len(self.names)} tasks" if len(self.names) > 1 else self.names[0]
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}"
        text = f"On {many}, with {seeds}, {kept_shares.replace(', ', ' and ')} keep {self.threshold:.0%} of the score"
        text += " on the examples that they were selected on"
        for how, words in (("retrained", "fine-tuned anew"), ("pruned", "as found")):
            shares = {choice: self._relative(choice, how) for choice in WHATS}
            if all(share is not None for share in shares.values()):
                listed = ", ".join(f"{choice} ones {share:.0%}" for choice, share in shares.items())
                return f"{text}; {words}, sub-networks of that size reach, of the full model's: {listed}."
        return f"{text}."

    # -- what is derived -------------------------------------------------------------------------------------------------

    def _recipe(self) -> dict[str, Any]:
        """What the recipes of all tasks have in common."""
        recipes = [task.recipe or {} for task in self.tasks]
        return {
            name: value for name, value in recipes[0].items() if all(recipe.get(name) == value for recipe in recipes)
        }

    def _counts(self) -> dict[str, SiteSurvival]:
        """Of every unit, in how many tasks it survives: mean and deviation over seeds."""
        out = {}
        total = {kind: np.sum([self.marks(task, kind) for task in self.names], axis=0) for kind in KINDS}
        for kind, counts in total.items():
            mean, sd = mean_sd(counts.T)
            place = {unit: number for number, unit in enumerate(self.units(kind))}
            for site in self.sites:
                if site.kind == KINDS[kind]:
                    mine = [place[(site.name, index)] for index in range(site.units)]
                    spread = None if sd is None else tuple(sd[mine].tolist())
                    out[site.name] = SiteSurvival(tuple(mean[mine].tolist()), spread)
        return {site.name: out[site.name] for site in self.sites}

    def _overlap(self, kind: str) -> Overlap:
        shared = [overlap([self.survivors(task, seed, kind) for task in self.names]) for seed in self.seeds]
        mean, sd = mean_sd(shared)
        spread = None if sd is None else tuple(map(tuple, sd.tolist()))
        return Overlap(tuple(map(tuple, mean.tolist())), spread)

    def _agreement(self, task: str, kind: str) -> SeedAgreement:
        marks = self.marks(task, kind)
        q, p = cochran_q(marks)
        mean, sd = mean_sd(marks.sum(0))
        seed_survivors = [self.survivors(task, seed, kind) for seed in self.seeds]
        size = Size(float(mean), None if sd is None else float(sd))
        return SeedAgreement(
            task=task, kind=kind, kappa=fleiss_kappa(marks), q=q, p=p, in_all=in_all(seed_survivors), size=size
        )

    def _share(self, kind: str) -> float:
        return float(np.mean([self.marks(task, kind).mean() for task in self.names]))

    def _relative(self, choice: str, how: str) -> float | None:
        """The mean over draws of a sub-network's value as a share of the full model's; None if there is none."""
        shares = [
            network.value / draw.full.report
            for draw in self.draws
            for network in draw.networks
            if (network.what, network.how) == (choice, how) and draw.full.report > 0
        ]
        return math.fsum(shares) / len(shares) if shares else None


def _row(task: str, kind: str, choice: str, how: str, values: Sequence[float]) -> NetworkMean:
    mean, sd = mean_sd(values)
    spread = None if sd is None else float(sd)
    return NetworkMean(task=task, kind=kind, what=choice, how=how, mean=float(mean), sd=spread, seeds=len(values))


def _word(kind: str) -> str:
    return "MLPs" if kind == "mlps" else kind


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))
