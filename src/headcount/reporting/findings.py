"""What run folders found, put side by side: documents by model, checked, and every unit they speak of. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..documents.ablation import AblationDocument
from ..documents.bench import Bench
from ..documents.curves import CurvesDocument
from ..documents.learned import LearnedDocument
from ..documents.prune import PruneDocument
from ..documents.results import ResultDocument
from ..documents.roles import RolesDocument
from ..documents.scores import ScoresDocument
from ..errors import BadRun
from ..plans import by_place, in_order, kind_of, site_of, type_of
from ..runs import Record
from ..stats.results import Comparison
from .run_labels import GATES, Place, differences, place_names, training_of
from .run_reader import Data, Document, documents_of, is_of_a_paper, plain, records_of

MOST_CELLS = 6_000  # of a map that a person can read and a browser can draw; beyond it, units are summed up
MOST_IN_A_ROW = 128
TOGETHER = 20  # runs of learned gates that take as much room as one other run: they share their charts


class Measured(NamedTuple):
    """A score of every unit, as a document has it; `errors` where the criterion is a mean over examples."""

    by: str
    values: dict[str, float]
    errors: dict[str, float]
    document: Document[ScoresDocument]


class Effect(NamedTuple):
    """The model without one unit."""

    unit: str
    comparison: Comparison


class Lesson(NamedTuple):
    """What one run of learned gates came to: the units that are gone, and the model without them beside the whole one."""

    label: str  # the method, and what tells it from another training of it
    place: Place  # what it can be compared with
    seed: str
    kept: int
    gone: tuple[str, ...]
    full: ResultDocument
    result: ResultDocument
    comparison: Comparison
    document: Document[LearnedDocument]

    @property
    def units(self) -> str:
        """What is kept and goes: heads, layers, ..."""
        return self.place.units

    @property
    def of(self) -> int:
        """How many units there were."""
        return self.place.of

    @property
    def gated(self) -> bool:
        """Whether gates learned what to keep; all other methods choose first."""
        return self.document.data.method in GATES


class Grid(NamedTuple):
    """Units that belong on one map: a row per site, in the model's order. `large`: too many to draw one by one."""

    kind: str  # head, neuron, block, layer, whole
    type: str | None  # encoder, decoder, cross
    rows: dict[str, list[str]]  # site -> units

    @property
    def units(self) -> list[str]:
        """All units, row by row."""
        return [unit for row in self.rows.values() for unit in row]

    @property
    def large(self) -> bool:
        """Whether there are more units than a map can show."""
        return len(self.units) > MOST_CELLS or max(map(len, self.rows.values())) > MOST_IN_A_ROW


@dataclass(frozen=True, eq=False)
class Part:
    """All that was found about one model."""

    model: str
    runs: tuple[Record, ...]
    documents: tuple[Document[Any], ...]
    whole: Part | None = None  # with all runs, where this one has those alone that are shown in detail

    def of(self, kind: type[Data]) -> list[Document[Data]]:
        """The documents of a kind, in the order of the runs."""
        return [document for document in self.documents if isinstance(document.data, kind)]

    @cached_property
    def prunes(self) -> list[Document[PruneDocument]]:
        """What `prune` answered, the run made last first."""
        return sorted(self.of(PruneDocument), key=lambda document: document.run.created)[::-1]

    @cached_property
    def prune(self) -> PruneDocument | None:
        """What the last `prune` answered, if it was run."""
        return self.prunes[0].data if self.prunes else None

    @cached_property
    def scores(self) -> list[Measured]:
        """Scores of units, one per document; random ones only where there is nothing else."""
        acted_on = {id(document.run): 1 for document in self.of(CurvesDocument)}
        acted_on |= {id(document.run): 2 for document in self.prunes}
        documents = sorted(
            self.of(ScoresDocument), key=lambda document: -acted_on.get(id(document.run), 0)
        )  # used ones first
        all_scores = [_measured(document) for document in documents]
        once: dict[Any, Measured] = {}
        for (
            scores
        ) in all_scores:  # several runs may keep the same scores; the first run of a method that trains stands for all
            run = self.lesson_of(scores.document)
            of = (
                (scores.by, tuple(scores.values.items()))
                if run is None
                else (run.label if run.gated else scores.by, run.place)
            )
            if scores.by != "random":
                once.setdefault(of, scores)
        return list(once.values()) or all_scores[:1]

    @cached_property
    def lessons(self) -> list[Lesson]:
        """What every run of learned gates came to; runs of one method that differ in more than the seed are told apart."""
        return _told_apart([_lesson(document) for document in self.of(LearnedDocument)])

    @cached_property
    def places(self) -> dict[Place, list[Lesson]]:
        """Learned runs that can be compared, in groups: the same units, reported on the same examples; most runs first."""
        groups: dict[Place, list[Lesson]] = {}
        for lesson in self.lessons:
            groups.setdefault(lesson.place, []).append(lesson)
        return dict(sorted(groups.items(), key=lambda group: -len(group[1])))

    @cached_property
    def place_names(self) -> dict[Place, str]:
        """What to call each of them: its units, and what else tells it from the others."""
        return place_names({place: _report_name(runs[0].document) for place, runs in self.places.items()})

    def lesson_of(self, document: Document[Any]) -> Lesson | None:
        """What the run of a document learned, if it did."""
        return next((lesson for lesson in self.lessons if lesson.document.run is document.run), None)

    def scored_by(self, lesson: Lesson) -> frozenset[str]:
        """The units that a learned run scored, which are those that it had gates for; none where it kept no scores."""
        documents = [document for document in self.of(ScoresDocument) if document.run is lesson.document.run]
        return frozenset(unit for document in documents for unit in _measured(document).values)

    @cached_property
    def effects(self) -> list[tuple[Document[AblationDocument], list[Effect]]]:
        """Every ablation of single units: the document, and its comparisons by unit."""
        return [
            (document, [Effect(row.closed, row.comparison) for row in document.data.ablations])
            for document in self.of(AblationDocument)
        ]

    @cached_property
    def removed(self) -> frozenset[str]:
        """The units that the last `prune` removed, and those that went with their layers."""
        if self.prune is None:
            return frozenset()
        return frozenset([*self.prune.gone, *_emptied(self.prune)])

    @cached_property
    def roles(self) -> dict[str, str]:
        """What is known about what a unit does."""
        out: dict[str, str] = {}
        for document in self.of(RolesDocument):
            out |= document.data.roles
        return out

    @cached_property
    def grids(self) -> list[Grid]:
        """The maps: one per kind of unit and attention type, of all units that any document speaks of."""
        sites = self._sites()
        grids: dict[tuple[str, str | None], dict[str, list[str]]] = {}
        for unit in self._units():
            site, kind = site_of(unit), kind_of(unit)
            kind, type_ = (
                (sites[site][0], sites[site][1]) if site in sites and kind == "head" else (kind, type_of(site))
            )
            grids.setdefault((kind, type_), {}).setdefault(site, []).append(unit)
        ordered = sorted(grids, key=lambda key: (_RANK.get(key[0], 9), _RANK.get(str(key[1]), 9)))
        return [Grid(*key, {site: in_order(grids[key][site]) for site in by_place(grids[key])}) for key in ordered]

    def _sites(self) -> dict[str, tuple[str, str | None]]:
        out: dict[str, tuple[str, str | None]] = {}
        for roles in self.of(RolesDocument):
            out |= {head.site: ("head", head.type) for head in roles.data.heads}
        for scores in self.of(ScoresDocument):
            out |= {name: (site.kind, site.type) for name, site in scores.data.sites.items()}
        return out

    def _units(self) -> Iterator[str]:
        """Every unit that is spoken of, each once."""
        units = dict.fromkeys(unit for scores in self.scores for unit in scores.values)
        units |= dict.fromkeys(effect.unit for _, effects in self.effects for effect in effects)
        for curves in self.of(CurvesDocument):
            for curve in curves.data.curves:
                units |= dict.fromkeys(curve.points[-1].units)
        for prune in self.prunes:
            units |= dict.fromkeys(prune.data.order)
        units |= dict.fromkeys(unit for lesson in self.lessons for unit in lesson.gone)
        for roles in self.of(RolesDocument):
            units |= dict.fromkeys(head.unit for head in roles.data.heads)
        if self.prune is not None:
            units |= dict.fromkeys([*sorted(self.prune.gone), *_stacked(self.prune)])
        return iter(units)


_RANK = {"head": 0, "whole": 1, "layer": 2, "block": 3, "neuron": 4, "encoder": 0, "decoder": 1, "cross": 2}


def gather(folders: Sequence[Path]) -> list[Part]:
    """The parts of a report, one per model: of run folders, and of folders that hold run folders one level down.

    Experiments of papers belong to no model: `claims` has them.
    """
    records = records_of(folders)
    groups: dict[str, list[Record]] = {}
    names: dict[str, str] = {}
    for record in (run for run in records if not is_of_a_paper(run)):
        name, weights = _model_of(record)
        key = weights or name
        names.setdefault(key, plain(name))
        groups.setdefault(key, []).append(record)
    parts = [
        Part(names[key], tuple(group), tuple(document for record in group for document in documents_of(record)))
        for key, group in groups.items()
    ]
    parts = _with_benches(parts)
    if not any(part.documents for part in parts) and not any((run.folder / "claims.json").is_file() for run in records):
        where = ", ".join(str(folder) for folder in list(folders)[:3])
        raise BadRun(f"There is nothing to show in {where}: no command has come to an answer there; let one finish.")
    return parts


def in_detail(part: Part, most: int) -> Part:
    """The part with the runs that were made last, at most so many of each kind; `whole` has all of them."""
    kinds: dict[Any, list[Record]] = {}
    for run in part.runs:
        kinds.setdefault(_kind_of(part, run), []).append(run)
    shown = set[int]()
    for kind, runs in kinds.items():
        room = TOGETHER * most if kind is LearnedDocument else most
        shown |= {id(run) for run in sorted(runs, key=lambda run: (run.created, str(run.folder)))[-room:]}
    if len(shown) == len(part.runs):
        return part
    kept = tuple(run for run in part.runs if id(run) in shown)
    return Part(part.model, kept, tuple(document for document in part.documents if id(document.run) in shown), part)


def sections_of(part: Part) -> float:
    """How many runs have sections of their own; those that learn gates share theirs."""
    learned = sum(_kind_of(part, run) is LearnedDocument for run in part.runs)
    return len(part.runs) - learned + learned / TOGETHER


def _kind_of(part: Part, run: Record) -> Any:
    """What a run answered; most commands keep scores beside it."""
    kinds = [type(document.data) for document in part.documents if document.run is run]
    return next((kind for kind in kinds if kind is not ScoresDocument), kinds[0] if kinds else None)


def _with_benches(parts: list[Part]) -> list[Part]:
    """Runs of `bench` alone, moved to the part of the model that it measures against, or of another one that it measures.

    Models are told by their weights; by their name only where one side does not say which weights it has.
    """
    out: list[Part] = []
    waiting: list[Part] = []
    for part in parts:
        benches = part.of(Bench)
        (waiting if benches and len(benches) == len(part.documents) else out).append(part)
    for part in waiting:
        first = part.of(Bench)[0].data.reference
        named = _benched(part.runs[0]) or [(first, "")]
        homes = (n for model in named for n, candidate in enumerate(out) if _is_about(candidate, *model))
        place = next(homes, None)
        if place is None:
            out.append(Part(part.model or first, part.runs, part.documents))
        else:
            to = out[place]
            out[place] = Part(to.model, (*to.runs, *part.runs), (*to.documents, *part.documents))
    return out


def _model_of(record: Record) -> tuple[str, str]:
    """The name of the model that a run asked about, and the hash of its weights; empty where it does not say."""
    return _named(record.question.get("model"))


def _named(model: Any) -> tuple[str, str]:
    name, weights = (model.get("name"), model.get("weights")) if isinstance(model, dict) else (model, None)
    return str(name or ""), str(weights or "")


def _benched(record: Record) -> list[tuple[str, str]]:
    """The models of a run of `bench`, the reference first."""
    other_models = record.question.get("others")
    models = [_model_of(record), *map(_named, other_models if isinstance(other_models, list) else ())]
    return [model for model in models if any(model)]


def _is_about(part: Part, name: str, weights: str) -> bool:
    part_weights = [_model_of(record)[1] for record in part.runs]
    if weights and any(part_weights):
        return weights in part_weights
    return bool(name) and _last(part.model) == _last(name)


def _last(name: str) -> str:
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1]


def _measured(document: Document[ScoresDocument]) -> Measured:
    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    for name, site in document.data.sites.items():
        units = [f"{name}:{index}" for index in site.units]
        values |= dict(zip(units, site.score, strict=True))
        if site.stderr:
            errors |= dict(zip(units, site.stderr, strict=True))
    return Measured(document.data.by, values, errors, document)


def _emptied(prune: PruneDocument) -> list[str]:
    """The units of the sites of which nothing is left."""
    empty = [site for site in prune.structure if not site.left]
    return [f"{site.name}:{n}" for site in empty for n in range(site.units)]


def _stacked(prune: PruneDocument) -> list[str]:
    """All layers of the stacks that lost some."""
    return [f"{stack.name}:{n}" for stack in prune.layers if stack.gone for n in range(stack.units)]


def _lesson(document: Document[LearnedDocument]) -> Lesson:
    data = document.data
    only = _dict(document.run.question.get("options")).get("only")
    within = tuple(map(str, plain(only))) if isinstance(only, list) else ()
    place = Place(report_set(document), data.full.metric, data.learned.n, data.units, data.of, within)
    seed = "" if data.seed is None else str(data.seed)
    removed_units = tuple(str(unit) for unit in data.plan)
    return Lesson(data.label, place, seed, data.kept, removed_units, data.full, data.learned, data.comparison, document)


def _told_apart(lessons: list[Lesson]) -> list[Lesson]:
    """Runs of one label and place are told apart by how they were trained; where that is the same too, by their folders."""
    same: dict[Any, list[int]] = {}
    for n, lesson in enumerate(lessons):
        same.setdefault((lesson.place, lesson.label), []).append(n)
    out, used_keys = list(lessons), set[Any]()
    for numbers in same.values():
        documents = [lessons[n].document for n in numbers]
        descriptions = differences([training_of(document.data, document.run.question) for document in documents])
        for n, words in zip(numbers, descriptions, strict=True):
            label = f"{lessons[n].label} ({words})" if words else lessons[n].label
            key = (lessons[n].place, label, lessons[n].seed, lessons[n].kept)
            again = f"{label} ({plain(lessons[n].document.run.folder.name)})"
            out[n] = lessons[n]._replace(label=again if key in used_keys else label)
            used_keys.add(key)
    return out


def report_set(document: Document[Any]) -> str:
    """What tells the examples that a run reports on from others."""
    return str(_reported(document).get("fingerprint", ""))


def _report_name(document: Document[Any]) -> str:
    return str(plain(str(_reported(document).get("data", "other examples"))))


def _reported(document: Document[Any]) -> dict[str, Any]:
    tasks = _dict(document.run.question.get("tasks"))
    return _dict(tasks.get("report", tasks.get("data")))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
