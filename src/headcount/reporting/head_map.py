"""The map of a report: what units can be coloured by, what is known of each, when it goes. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..documents.ablation import TransferDocument
from ..documents.curves import Curve, CurvesDocument
from ..documents.prune import PruneDocument
from ..documents.scores import ScoresDocument
from ..formatting import counted, digits_for, digits_of, fixed, probability, result_text, signed, three
from ..plans import kind_of
from ..stats.results import difference_text, unit_of
from .findings import Effect, Lesson, Measured, Part
from .head_roles import card, role_facts, role_views
from .map_cells import Drawn, View, draw
from .run_reader import Document, beyond_chance, plain

NOUNS = {"head": "heads", "neuron": "neurons", "block": "blocks of neurons", "layer": "layers", "whole": "parts"}
MOST_NAMED = 10_000  # units of an order that a document has
SCORED = (
    "A higher score is stronger in colour. Scores are estimates; “Without it” is measured, and the two may disagree."
)


class Fact(NamedTuple):
    """Something known about units: a text for each, empty where nothing is."""

    label: str
    texts: list[str]


class Stop(NamedTuple):
    """A place of the slider: what is gone there, and what the model is worth."""

    removed: int
    gone: list[int]
    value: str
    detail: str
    chosen: bool = False


class Track(NamedTuple):
    """Stops along one order of removal."""

    name: str
    of: int
    stops: list[Stop]


class Map(NamedTuple):
    """All maps of a part, and what links them to the rest of the page."""

    units: list[str]
    grids: list[Drawn]
    views: list[View]
    facts: list[Fact]
    tracks: list[Track]
    removed: list[int]
    first: int  # the unit shown at the start: the most important one
    card: dict[str, Any]  # what heads do, as the script needs it

    @property
    def widest(self) -> int:
        """The width of the widest map; cells are equally large in all of them."""
        return max(grid.width for grid in self.grids)

    @property
    def tall(self) -> bool:
        """Whether the maps are so high that other things fit beside them."""
        if self.broad:
            return False
        if not self.paired:
            return sum(grid.height for grid in self.grids) > 420
        pairs = zip(self.grids[::2], [*self.grids[1::2], self.grids[-1]], strict=False)
        return sum(max(first.height, second.height) for first, second in pairs) * 0.65 > 420

    @property
    def broad(self) -> bool:
        """Whether the maps need the whole width of the page."""
        return max(grid.least for grid in self.grids) > 538  # pixels of a card beside another

    @property
    def paired(self) -> bool:
        """Whether two maps fit side by side."""
        return len(self.grids) > 1 and max(grid.least for grid in self.grids) <= 256  # pixels of half a card

    def to_json(self) -> dict[str, Any]:
        """What the page's script needs."""
        views = [view.to_json() for view in self.views]
        tracks = [{**track._asdict(), "stops": [stop._asdict() for stop in track.stops]} for track in self.tracks]
        facts = [fact._asdict() for fact in self.facts]
        return {
            "units": self.units,
            "views": views,
            "facts": facts,
            "tracks": tracks,
            "first": self.first,
            "card": self.card,
        }


def build(part: Part) -> Map | None:
    """The map of a part, or None where no unit can be drawn."""
    grids = [grid for grid in part.grids if not grid.large]
    units = [unit for grid in grids for unit in grid.units]
    if not units:
        return None
    numbers = {unit: n for n, unit in enumerate(units)}
    views = [*_score_views(part, units), *_effect_views(part, units)]
    views.sort(key=lambda view: view.places.count(None))  # the one that says most comes first
    views += role_views(part, units)
    first = next((_largest(view.places) for view in views[:1] if not view.keys), _first_role(views))
    removed = sorted(numbers[unit] for unit in part.removed if unit in numbers)
    drawn = [draw(grid, numbers) for grid in grids]
    return Map(units, drawn, views, _facts(part, units), tracks(part, numbers), removed, first, card(part, units))


def noun(units: Iterable[str], part: Part) -> str:
    """What some units are called together: "heads", "layers", or "units" where they are of several kinds."""
    wanted = set(units)
    kinds = {grid.kind for grid in part.grids if not wanted.isdisjoint(grid.units)}
    return NOUNS.get(kinds.pop(), "units") if len(kinds) == 1 else "units"


def names_of(documents: Sequence[Document[Any]], plain_names: Sequence[str]) -> list[str]:
    """Names that tell documents apart: the plain ones if they do, else with the command, the data, the folder or a number."""
    out = list(plain_names)
    for name in {name for name in plain_names if plain_names.count(name) > 1}:
        alike = [n for n, plain_name in enumerate(plain_names) if plain_name == name]
        for describe in (_command, _data, _folder):
            longer = [name + describe(documents[n]) for n in alike]
            if len(set(longer)) == len(longer):
                break
        else:
            longer = [f"{name} #{n}" for n in range(1, len(alike) + 1)]
        for n, longer_name in zip(alike, longer, strict=True):
            out[n] = longer_name
    return out


def _command(document: Document[Any]) -> str:
    command = plain(str(document.run.question.get("command", "")))
    return f", as {command} scored it" if isinstance(document.data, ScoresDocument) else f" ({command})"


def _data(document: Document[Any]) -> str:
    tasks = document.run.question.get("tasks")
    first: Any = next(iter(tasks.values()), {}) if isinstance(tasks, dict) else {}
    return f" ({plain(str(first.get('data')))}, n = {first.get('n')})" if isinstance(first, dict) else ""


def _folder(document: Document[Any]) -> str:
    return f" ({plain(document.run.folder.name)})"


def score_names(part: Part) -> list[str]:
    """The names of the part's scores."""
    learned = [part.lesson_of(scores.document) for scores in part.scores]
    names = [
        (f"{lesson.label}, {lesson.kept} kept" if lesson and lesson.gated else scores.by)
        + (_among(lesson, part) if lesson else "")
        for scores, lesson in zip(part.scores, learned, strict=True)
    ]
    return names_of([scores.document for scores in part.scores], names)


def ablation_names(part: Part) -> list[str]:
    """The names of the part's ablations."""
    return names_of([document for document, _ in part.effects], ["ablation"] * len(part.effects))


def ranks(scores: Measured) -> dict[str, int]:
    """The rank of every unit by its score, 1 for the most important."""
    order = sorted(scores.values, key=lambda unit: -scores.values[unit])
    return {unit: n for n, unit in enumerate(order, 1)}


def tracks(part: Part, numbers: Mapping[str, int]) -> list[Track]:
    """All that the slider can follow: orders of removal, and what learned gates took away at each number of units.

    Where there is one stop alone there is nothing to follow.
    """
    return [track for track in (*orders(part, numbers), *learned_tracks(part, numbers)) if len(track.stops) > 1]


def learned_tracks(part: Part, numbers: Mapping[str, int]) -> list[Track]:
    """A track for each trained method and seed; unlike along an order, what is gone at one stop may be back at the next."""
    track_stops: dict[tuple[str, int], list[Stop]] = {}
    for lesson in (lesson for runs in part.places.values() for lesson in runs):
        detail = f"{difference_text(lesson.comparison)}, p = {probability(lesson.comparison.p)}"
        removed = sorted(numbers[unit] for unit in lesson.gone if unit in numbers)
        start = Stop(0, [], result_text(lesson.full), "the whole model")
        stops = track_stops.setdefault((track_name(lesson, part), lesson.of), [start])
        stops.append(Stop(lesson.of - lesson.kept, removed, result_text(lesson.result), detail))
    return [Track(name, of, sorted(stops, key=lambda stop: stop.removed)) for (name, of), stops in track_stops.items()]


def track_name(lesson: Lesson, part: Part) -> str:
    """The name of a trained method, with the seed where it has several, and its units where there are others."""
    among = {run.seed for run in part.places[lesson.place] if run.label == lesson.label}
    called = f", seed {lesson.seed}" if len(among) > 1 else ""
    return lesson.label + called + _among(lesson, part)


def _among(lesson: Lesson, part: Part) -> str:
    return f" [{part.place_names[lesson.place]}]" if len(part.places) > 1 else ""


def orders(part: Part, numbers: Mapping[str, int]) -> list[Track]:
    """The orders that the slider can follow, with what `prune` chose among its stops."""
    chosen = _chosen(part, numbers)
    out = []
    for document in part.of(CurvesDocument):
        curves = document.data.scored or list(document.data.curves[:1])
        out += [_track(curve, numbers) for curve in curves]
    if part.prune is None or chosen is None:
        return out
    out = out or _tested(part.prune, numbers)
    for n, track in enumerate(out):
        if track.name == str(part.prune.by) or len(out) == 1:
            stops = [stop for stop in track.stops if stop.removed != chosen.removed]
            out[n] = track._replace(stops=sorted([*stops, chosen], key=lambda stop: stop.removed))
            return [out[n], *out[:n], *out[n + 1 :]]
    if out:
        return out
    start = Stop(0, [], result_text(part.prune.before), "the whole model")
    return [Track("prune", part.prune.of, [start, chosen])]


def _chosen(part: Part, numbers: Mapping[str, int]) -> Stop | None:
    if part.prune is None:
        return None
    removed = sorted(numbers[unit] for unit in part.removed if unit in numbers)
    detail = difference_text(part.prune.comparison) + " on the examples of the report"
    return Stop(part.prune.removed, removed, result_text(part.prune.after), detail, chosen=True)


def _track(curve: Curve, numbers: Mapping[str, int]) -> Track:
    stops = []
    for point in curve.points:
        removed = sorted(numbers[unit] for unit in point.units if unit in numbers)
        p = probability(point.comparison.p)
        detail = f"{difference_text(point.comparison)}, p = {p}" if point.removed else "the whole model"
        stops.append(Stop(point.removed, removed, result_text(point.result), detail))
    return Track(curve.by, curve.of, stops)


def _tested(prune: PruneDocument, numbers: Mapping[str, int]) -> list[Track]:
    """The sequence that a guarantee tested, as stops."""
    if prune.guarantee is None or not prune.guarantee.steps:
        return []
    stops = [Stop(0, [], result_text(prune.before), "the whole model")]
    for step in (step for step in prune.guarantee.steps if step.removed <= len(prune.order)):
        removed = sorted(numbers[unit] for unit in prune.order[: step.removed] if unit in numbers)
        word = "shown" if step.shown else "not shown"
        bound = f"{signed(-step.damage)} points, at most {fixed(step.bound, 1)} lost: {word}"
        stops.append(Stop(step.removed, removed, fixed(step.value, 3), bound))
    return [Track(f"{prune.by}, as tested", ordered(prune), stops)]


def ordered(prune: PruneDocument) -> int:
    """How many units `prune` put into an order; documents name the first of very many."""
    return prune.of if len(prune.order) >= MOST_NAMED else len(prune.order)


# -- colours ---------------------------------------------------------------------------------------------------------------


def _score_views(part: Part, units: Sequence[str]) -> list[View]:
    out = []
    for name, scores in zip(score_names(part), part.scores, strict=True):
        values = [scores.values.get(unit) for unit in units]
        if any(value is not None for value in values):
            out.append(_view(f"Score: {name}", SCORED, values, part, units))
    return out


def _effect_views(part: Part, units: Sequence[str]) -> list[View]:
    out = []
    for name, (_, effects) in zip(ablation_names(part), part.effects, strict=True):
        comparisons = {effect.unit: effect.comparison for effect in effects}
        values = [comparisons[unit].damage if unit in comparisons else None for unit in units]
        marked = [n for n, unit in enumerate(units) if unit in comparisons and beyond_chance(comparisons[unit])]
        if any(value is not None for value in values):
            about = (
                "How much worse (orange) or better (green) the model is without the unit, as measured; a dot marks what Holm's "
                "correction lets stand."
            )
            unit = unit_of(effects[0].comparison)
            out.append(_view(f"Difference: {name}", about, values, part, units, unit)._replace(marked=marked))
    return out


def _view(name: str, about: str, values: list[float | None], part: Part, units: Sequence[str], lost: str = "") -> View:
    """Values scaled within each kind of unit, because scores of heads and of layers do not compare.

    `lost` is what differences are counted in, where the values are such.
    """
    places: list[float | None] = [None] * len(units)
    kinds = {unit: grid.kind for grid in part.grids for unit in grid.units}
    known_values = [value for value in values if value is not None]
    diverging = bool(lost) or min(known_values) < 0
    for kind in dict.fromkeys(kinds.values()):
        own = {n: value for n, value in enumerate(values) if value is not None and kinds[units[n]] == kind}
        reach = max((abs(value) for value in own.values()), default=0.0) or 1.0
        for n, value in own.items():
            places[n] = value / reach
    reach = max(map(abs, known_values)) or 1.0
    far = fixed(reach, digits_of(reach, 2))
    low, high = (f"−{far}", f"+{far}") if diverging else ("0", three(reach))
    if len({kinds[unit] for unit, value in zip(units, values, strict=True) if value is not None}) > 1:
        low, high = ("better", "worse") if lost else ("least", "most")
    elif lost:
        low, high = f"better by {far}", f"worse by {far} {lost if lost == 'points' else f'in {lost}'}"
    return View(name, about, diverging, places, [], low, high)


def _first_role(views: Sequence[View]) -> int:
    """The first unit that has a role, of the kind that comes first."""
    return min(
        ((place, n) for view in views for n, place in enumerate(view.places) if place is not None), default=(0, 0)
    )[1]


def _largest(places: Sequence[float | None]) -> int:
    return max(range(len(places)), key=lambda n: -2.0 if places[n] is None else float(places[n] or 0.0))


# -- facts -----------------------------------------------------------------------------------------------------------------


def _facts(part: Part, units: Sequence[str]) -> list[Fact]:
    facts = [_texts("Role", units, part.roles), *(_texts(label, units, own) for label, own in role_facts(part).items())]
    criteria: set[str] = set()
    for name, scores in zip(score_names(part), part.scores, strict=True):
        if scores.by in criteria and not set(scores.values).isdisjoint(part.scores[0].values):
            continue  # the same criterion on other examples: on the map and in the table, not here
        if part.lesson_of(scores.document) and len({lesson.label for lesson in part.lessons}) > 2:
            continue  # of many methods, in how many runs it was kept says more
        criteria.add(scores.by)
        rank = ranks(scores)
        score_texts = {
            unit: three(value) + (f" ± {three(scores.errors[unit])}" if unit in scores.errors else "")
            for unit, value in scores.values.items()
        }
        places = {unit: f"{n} of {len(rank)}" for unit, n in rank.items()}
        facts += [
            _texts(f"Score by {name}, ± s.e." if scores.errors else f"Score by {name}", units, score_texts),
            _texts(f"Rank by {name}, 1 = top", units, places),
        ]
    for name, (_, effects) in zip(ablation_names(part), part.effects, strict=True):
        called = "" if name == "ablation" else name.removeprefix("ablation")
        facts.append(_texts(f"Without it{called}", units, {e.unit: difference_text(e.comparison) for e in effects}))
        facts.append(_texts(f"p, and corrected by Holm{called}", units, {e.unit: _ps(e) for e in effects}))
    facts += _transfer_facts(part, units)
    if part.prune is not None and part.prune.order:
        places = {unit: f"{n} of {ordered(part.prune)}" for n, unit in enumerate(part.prune.order, 1)}
        facts.append(_texts("Place in the order of removal", units, places))
    for track in [] if part.prune else orders(part, {unit: n for n, unit in enumerate(units)}):
        facts.append(Fact(f"Goes, by {track.name}", _leaving(track, len(units))))
    facts.append(_kept(part, units))
    if part.prune is not None:
        facts.append(Fact("Removed", ["yes" if unit in part.removed else "no" for unit in units]))
    return [fact for fact in facts if any(fact.texts)]


def _kept(part: Part, units: Sequence[str]) -> Fact:
    """In how many runs of learned gates each unit stayed, of those in which it had a gate of its own."""
    runs = [(lesson, part.scored_by(lesson)) for lesson in part.lessons if lesson.gated]
    texts = {}
    for unit in units:
        noun = NOUNS.get(kind_of(unit), "")
        had = [lesson for lesson, gates in runs if noun in lesson.units.split(",") and (not gates or unit in gates)]
        if had:
            texts[unit] = f"in {sum(unit not in lesson.gone for lesson in had)} of {counted(len(had), 'run')}"
    return _texts("Kept by gates that learned", units, texts)


def _transfer_facts(part: Part, units: Sequence[str]) -> list[Fact]:
    facts = []
    for document in part.of(TransferDocument):
        data = document.data
        for side, result, damage in (("one", data.one, data.damage.one), ("other", data.other, data.damage.other)):
            digits = digits_for(damage)
            lost = zip(data.units, damage, strict=True)
            texts = {unit: f"{fixed(value, digits)} {result.metric}" for unit, value in lost}
            facts.append(_texts(f"Lost on {data_name(document, side)}", units, texts))
    return facts


def data_name(document: Document[Any], role: str) -> str:
    """The data that a run had in some role, by name."""
    task = document.run.question.get("tasks", {}).get(role, {})
    return str(plain(str(task.get("data", role)))) if isinstance(task, dict) else role


def _ps(effect: Effect) -> str:
    comparison = effect.comparison
    return probability(comparison.p) + ("" if comparison.p_holm is None else f" → {probability(comparison.p_holm)}")


def _leaving(track: Track, count: int) -> list[str]:
    at: dict[int, int] = {}
    for stop in track.stops:
        if not stop.chosen:
            for unit in stop.gone:
                at.setdefault(unit, stop.removed)
    return [f"among the first {at[n]} of {track.of}" if n in at else "" for n in range(count)]


def _texts(label: str, units: Sequence[str], texts: Mapping[str, str]) -> Fact:
    return Fact(label, [texts.get(unit, "") for unit in units])
