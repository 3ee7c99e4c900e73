"""Whether draws agree: what survives under several seeds and on several tasks, counted, and how much of it is chance.

The statistics and figures of Prasanna, Rogers and Rumshisky 2020, as functions of which units survived where.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import chdtrc

from ..errors import BadRun

FORMAT = 1
KINDS = {"heads": "head", "mlps": "mlp"}  # kinds of units, and of the sites that hold them
WHATS, HOWS = ("good", "random", "bad"), ("pruned", "retrained")
Json = Mapping[str, Any]


# -- statistics ----------------------------------------------------------------------------------------------------------


def fleiss_kappa(marks: Any) -> float | None:
    """How far raters agree beyond chance (Fleiss 1971): `marks` (subjects, raters) holds a category each.

    1 is perfect agreement, 0 what raters with the same habits would reach by chance. None where it is not defined: fewer
    than two raters, no subject, or only one category.
    """
    marks = _table(marks)
    subjects, raters = marks.shape
    categories = np.unique(marks)
    if raters < 2 or not subjects or len(categories) < 2:
        return None
    counts = (marks[:, :, None] == categories).sum(1).astype(np.float64)
    agreed = ((counts**2).sum(1) - raters) / (raters * (raters - 1))
    by_chance = ((counts.sum(0) / marks.size) ** 2).sum()
    return float((agreed.mean() - by_chance) / (1 - by_chance))


def cochran_q(marks: Any) -> tuple[float, float] | tuple[None, None]:
    """Cochran's Q and its p-value: whether raters mark equally many; `marks` (subjects, raters) holds 0 or 1.

    A small p says that some of them mark more than others. (None, None) where it is not defined: fewer than two raters, or
    no subject on which they differ.
    """
    marks = _table(marks).astype(bool).astype(np.float64)
    raters = marks.shape[1]
    by_subject, by_rater = marks.sum(1), marks.sum(0)
    below = raters * by_subject.sum() - (by_subject**2).sum()
    if raters < 2 or below == 0:
        return None, None
    q = (raters - 1) * (raters * (by_rater**2).sum() - by_rater.sum() ** 2) / below
    return float(q), float(chdtrc(raters - 1, q))


def overlap(sets: Sequence[Collection[Any]]) -> np.ndarray:
    """How many elements each two of the sets share: (sets, sets), with their sizes on the diagonal."""
    plain = [frozenset(one) for one in sets]
    return np.array([[len(one & other) for other in plain] for one in plain], dtype=np.int64).reshape(len(plain), -1)


def mean_sd(samples: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """The mean over the first axis, and the sample standard deviation, which a single sample does not have."""
    values = np.asarray(samples, dtype=np.float64)
    return values.mean(0), values.std(0, ddof=1) if len(values) > 1 else None


def in_all(sets: Sequence[Collection[Any]]) -> int:
    """How many elements are in every one of the sets."""
    return len(frozenset.intersection(*map(frozenset, sets))) if sets else 0


def _table(marks: Any) -> np.ndarray:
    table = np.asarray(marks)
    if table.ndim != 2:
        raise BadRun(f"Marks are a table (subjects, raters); I got an array of shape {table.shape}.")
    return table


# -- the outcome of a study ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Lottery:
    """What came of a lottery study: a draw per task and seed; all statistics are derived from the draws.

    `tasks`, `sites` and `draws` are plain JSON as in lottery.json: a draw says which units survived ("alive": site ->
    indices, [0] for an MLP that stays), the steps of the search, and the values of the sub-networks.
    """

    model: str
    kind: str  # the model's class
    threshold: float
    step: float
    tasks: tuple[Json, ...]
    sites: tuple[Json, ...]
    draws: tuple[Json, ...]
    versions: Mapping[str, str]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, the same for every task."""
        return tuple(dict.fromkeys(draw["seed"] for draw in self.draws))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(task["name"] for task in self.tasks)

    def units(self, kind: str) -> tuple[tuple[str, int], ...]:
        """All "heads", or all "mlps", as (site, index)."""
        chosen = [site for site in self.sites if site["kind"] == KINDS[kind]]
        return tuple((site["name"], index) for site in chosen for index in range(site["units"]))

    def survivors(self, task: str, seed: int, kind: str) -> frozenset[tuple[str, int]]:
        """The heads or MLPs that survived one draw."""
        draw = next(one for one in self.draws if (one["task"], one["seed"]) == (task, seed))
        return frozenset(unit for unit in self.units(kind) if unit[1] in draw["alive"][unit[0]])

    def marks(self, task: str, kind: str) -> np.ndarray:
        """(units, seeds): 1 where the unit survived under the seed."""
        kept = [self.survivors(task, seed, kind) for seed in self.seeds]
        return np.array([[unit in one for one in kept] for unit in self.units(kind)], dtype=np.int64).reshape(
            -1, len(kept)
        )

    def to_json(self) -> dict[str, Any]:
        """lottery.json: the draws, and what follows from them."""
        return {
            "format": FORMAT,
            "model": self.model,
            "class": self.kind,
            "threshold": self.threshold,
            "step": self.step,
            "seeds": list(self.seeds),
            "recipe": self._recipe(),
            "tasks": [dict(task) for task in self.tasks],
            "sites": [dict(site) for site in self.sites],
            "draws": [dict(draw) for draw in self.draws],
            "survivors": self._counts(),
            "overlap": {kind: self._overlap(kind) for kind in KINDS},
            "agreement": [self._agreement(task, kind) for task in self.names for kind in KINDS if self.units(kind)],
            "table": self.table(),
            "sentence": self.sentence(),
            "versions": dict(self.versions),
        }

    @classmethod
    def from_json(cls, data: Any) -> Lottery:
        """The study that `to_json` wrote, or an error with the first thing that is wrong with it."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            seen = data.get("format") if isinstance(data, dict) else data
            raise BadRun(f"A lottery is an object of format {FORMAT}; I got {seen!r:.40}: give one of this headcount.")
        kinds = {"model": str, "class": str, "threshold": float, "step": float, "tasks": list, "sites": list}
        for name, kind in {**kinds, "draws": list, "versions": dict}.items():
            if not isinstance(data.get(name), kind):
                raise BadRun(f"The lottery's {name} is {data.get(name)!r:.40}; it should be a {kind.__name__}.")
        tasks, sites, draws = (tuple(data[name]) for name in ("tasks", "sites", "draws"))
        shares = data["threshold"], data["step"]
        made = cls(data["model"], data["class"], *shares, tasks, sites, draws, data["versions"])
        try:
            for task in made.names:
                for which in KINDS:
                    made.marks(task, which)
            made.table()
        except (KeyError, TypeError, StopIteration, AttributeError) as error:
            what = f"{type(error).__name__} {error}".strip()
            raise BadRun(f"The lottery's draws are damaged ({what[:80]}); run the study again.") from None
        return made

    @classmethod
    def joined(cls, studies: Iterable[Lottery]) -> Lottery:
        """Studies of one model on several tasks, or with other seeds, as one; refused where they cannot be put side by side."""
        parts = list(studies)
        if not parts:
            raise BadRun("There is no study to join; give one or more.")
        first = parts[0]
        for other in parts[1:]:
            for name in ("model", "kind", "threshold", "step", "sites"):
                one, two = getattr(first, name), getattr(other, name)
                if one != two:
                    raise BadRun(
                        f"The {'class' if name == 'kind' else name} of {first.names[0]}'s study is {one!r:.60} and of "
                        f"{other.names[0]}'s {two!r:.60}; only studies of one model, made alike, can be joined."
                    )
        tasks: dict[str, Json] = {}
        for task in (task for one in parts for task in one.tasks):
            if tasks.setdefault(task["name"], task) != task:
                raise BadRun(
                    f"Two of the studies are of {task['name']!r:.60}, and not on the same data or by the same recipe; give "
                    "each task once, or other names (--name)."
                )
        draws = sorted((draw for one in parts for draw in one.draws), key=lambda d: list(tasks).index(d["task"]))
        seeds = {name: [draw["seed"] for draw in draws if draw["task"] == name] for name in tasks}
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

    def table(self) -> list[dict[str, Any]]:
        """The values of the full model and of all sub-networks, over seeds."""
        rows = []
        for task in self.names:
            draws = [draw for draw in self.draws if draw["task"] == task]
            rows.append(_row(task, "structured", "full", "whole", [draw["full"]["report"] for draw in draws]))
            for kind in ("structured", "magnitude"):
                owners = draws if kind == "structured" else [draw["magnitude"] for draw in draws if draw["magnitude"]]
                for what in WHATS:
                    for how in HOWS:
                        chosen = (one for owner in owners for one in owner["networks"])
                        values = [one["value"] for one in chosen if (one["what"], one["how"]) == (what, how)]
                        rows += [_row(task, kind, what, how, values)] if values else []
        return rows

    def sentence(self) -> str:
        """One sentence: what came out."""
        kept = ", ".join(f"{self._share(kind):.0%} of the {_word(kind)}" for kind in KINDS if self.units(kind))
        many = f"{len(self.names)} tasks" if len(self.names) > 1 else self.names[0]
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}"
        said = f"On {many}, with {seeds}, {kept.replace(', ', ' and ')} keep {self.threshold:.0%} of the score"
        said += " on the examples that they were selected on"
        for how, words in (("retrained", "fine-tuned anew"), ("pruned", "as found")):
            shares = {what: self._relative(what, how) for what in WHATS}
            if all(share is not None for share in shares.values()):
                listed = ", ".join(f"{what} ones {share:.0%}" for what, share in shares.items())
                return f"{said}; {words}, sub-networks of that size reach, of the full model's: {listed}."
        return f"{said}."

    # -- what is derived -------------------------------------------------------------------------------------------------

    def _recipe(self) -> dict[str, Any]:
        """What the recipes of all tasks have in common."""
        recipes = [task.get("recipe", {}) for task in self.tasks]
        return {name: value for name, value in recipes[0].items() if all(one.get(name) == value for one in recipes)}

    def _counts(self) -> dict[str, dict[str, Any]]:
        """Of every unit, in how many tasks it survives: mean and deviation over seeds."""
        out = {}
        total = {kind: np.sum([self.marks(task, kind) for task in self.names], axis=0) for kind in KINDS}
        for kind, counts in total.items():
            mean, sd = mean_sd(counts.T)
            place = {unit: number for number, unit in enumerate(self.units(kind))}
            for site in self.sites:
                if site["kind"] == KINDS[kind]:
                    mine = [place[(site["name"], index)] for index in range(site["units"])]
                    out[site["name"]] = {"mean": mean[mine].tolist(), "sd": _plain(None if sd is None else sd[mine])}
        return {site["name"]: out[site["name"]] for site in self.sites}

    def _overlap(self, kind: str) -> dict[str, Any]:
        shared = [overlap([self.survivors(task, seed, kind) for task in self.names]) for seed in self.seeds]
        mean, sd = mean_sd(shared)
        return {"mean": mean.tolist(), "sd": _plain(sd)}

    def _agreement(self, task: str, kind: str) -> dict[str, Any]:
        marks = self.marks(task, kind)
        q, p = cochran_q(marks)
        mean, sd = mean_sd(marks.sum(0))
        kept = [self.survivors(task, seed, kind) for seed in self.seeds]
        found = {"task": task, "kind": kind, "kappa": fleiss_kappa(marks), "q": q, "p": p, "in_all": in_all(kept)}
        return {**found, "size": {"mean": float(mean), "sd": None if sd is None else float(sd)}}

    def _share(self, kind: str) -> float:
        return float(np.mean([self.marks(task, kind).mean() for task in self.names]))

    def _relative(self, what: str, how: str) -> float | None:
        """The mean over draws of a sub-network's value as a share of the full model's; None if there is none."""
        shares = [
            one["value"] / draw["full"]["report"]
            for draw in self.draws
            for one in draw["networks"]
            if (one["what"], one["how"]) == (what, how) and draw["full"]["report"] > 0
        ]
        return math.fsum(shares) / len(shares) if shares else None


def in_words(kappa: float) -> str:
    """What people call an agreement of that size (Landis and Koch 1977)."""
    names = {0.0: "none beyond chance", 0.2: "slight", 0.4: "fair", 0.6: "moderate", 0.8: "substantial"}
    return next((name for end, name in names.items() if kappa <= end), "almost perfect")


def _row(task: str, kind: str, what: str, how: str, values: Sequence[float]) -> dict[str, Any]:
    mean, sd = mean_sd(values)
    numbers = {"mean": float(mean), "sd": None if sd is None else float(sd), "seeds": len(values)}
    return {"task": task, "kind": kind, "what": what, "how": how, **numbers}


def _plain(values: np.ndarray | None) -> Any:
    return None if values is None else values.tolist()


def _word(kind: str) -> str:
    return "MLPs" if kind == "mlps" else kind


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))
