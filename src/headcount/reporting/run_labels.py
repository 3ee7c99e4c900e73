"""What to call runs that train, so that those that differ are told apart by what differs. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from ..documents.learned import LearnedDocument

GATES = ("l0", "subset", "movement", "layerdrop")  # methods that learn gates; all others choose first
MOST_TOLD = 2  # differences in a name; beyond it, as few as tell everything apart

_FIRST = ("steps", "lr", "batch_size", "examples", "recovered")  # the differences to name first
_NOT_TRAINING = {
    "seed",
    "keep",
    "units",
    "only",
    "method",
    "plan",
    "recipe",
    "penalty",
    "l0",
}  # l0: another way to say keep
_NOT_NOTED = object()


class Place(NamedTuple):
    """What runs must have in common to stand in one chart: the units, and the examples that they report on."""

    examples: str  # the fingerprint
    metric: str
    n: int
    units: str
    of: int
    only: tuple[str, ...]


def training_of(data: LearnedDocument, question: Mapping[str, Any]) -> dict[str, Any]:
    """How a run was trained, in flat facts: its recipe but for the seed, its data, and the settings of its method.

    Documents that do not have the settings are known by what their command was asked.
    """
    recipe, settings = data.trained or {}, data.settings
    options = _dict(question.get("options")) if settings is None else settings
    data_set = _dict(_dict(question.get("tasks")).get("train"))
    facts = {"recovered": None if data.recovered is None else data.recovered.steps, **recipe}
    facts |= {"examples": data_set.get("n"), "data": data_set.get("data")}
    for key, value in options.items():
        if key not in _NOT_TRAINING:
            facts |= _flat("gates lr" if key == "lr" else str(key), value)
    facts.pop("seed", None)
    noted = {key: None if value in (False, [], {}, "") and value != 0 else value for key, value in facts.items()}
    return noted | {"settings": _NOT_NOTED} if settings is None else noted


def differences(trainings: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each of some trainings, in a few words, what tells it from the others; nothing where they are equal."""
    marks = {id(training): "settings" in training for training in trainings}
    mixed = len(set(marks.values())) > 1  # what an older document does not say, it may have had all the same

    def fact(training: Mapping[str, Any], key: str) -> Any:
        return training.get(key, _NOT_NOTED if mixed and marks[id(training)] else None)

    names = dict.fromkeys([*_FIRST, *(key for training in trainings for key in training if key != "settings")])
    unequal = [
        key
        for key in names
        if len({repr(fact(training, key)) for training in trainings if fact(training, key) is not _NOT_NOTED}) > 1
    ]
    if "steps" in unequal and "epochs" in unequal:
        unequal.remove("epochs")  # they are why the steps differ

    def told(training: Mapping[str, Any], keys: Iterable[str]) -> str:
        return ", ".join(
            _words(key, fact(training, key)) for key in keys if fact(training, key) not in (None, _NOT_NOTED)
        )

    if len(unequal) > MOST_TOLD:
        wanted = len({told(training, unequal) for training in trainings})
        for size in range(1, 4):
            for few in combinations(unequal, size):
                if len({told(training, few) for training in trainings}) == wanted:
                    return [told(training, few) for training in trainings]
    return [told(training, unequal) for training in trainings]


def place_names(places: Mapping[Place, str]) -> dict[Place, str]:
    """What to call every place, whose examples have the name given: "heads", or "heads, 50 examples" where it needs more."""
    names = {place: _units(place) for place in places}
    for describe in (
        lambda place: f"of {place.of}",
        lambda place: f"on {places[place]}",
        lambda place: f"{place.n:,} examples",
        lambda place: place.metric,
    ):
        for name in {name for name in names.values() if list(names.values()).count(name) > 1}:
            same = [place for place in places if names[place] == name]
            if len({describe(place) for place in same}) > 1:
                names |= {place: f"{name}, {describe(place)}" for place in same}
    counts: dict[str, int] = {}
    for place, name in names.items():
        counts[name] = counts.get(name, 0) + 1
        names[place] = name if counts[name] == 1 else f"{name} ({counts[name]})"
    return names


def _units(place: Place) -> str:
    return place.units.replace(",", " and ") + (f" ({', '.join(place.only)})" if place.only else "")


def _flat(key: str, value: Any) -> dict[str, Any]:
    """A setting as facts; a model is known by its name, and how long a recovery took is known already."""
    if not isinstance(value, dict):
        return {key: value}
    if "name" in value:
        return {key: str(value["name"]).rstrip("/").rpartition("/")[2]}
    ignored_keys = ("seed", "steps", "epochs")
    return {f"{key} {inner}": setting for inner, setting in value.items() if inner not in ignored_keys}


def _words(key: str, value: Any) -> str:
    text = _text(value)
    phrases = {
        "steps": f"{text} steps",
        "epochs": f"{text} epochs",
        "examples": f"{text} examples",
        "data": f"on {text}",
    }
    phrases["recovered"] = f"{text} steps of recovery"
    name = key.replace("_", " ")
    return phrases.get(key) or (name if value is True else f"{name} {text}")


def _text(value: Any) -> str:
    """A value as people write it: 12, 0.01, 1e-4."""
    if isinstance(value, list | tuple):
        return " and ".join(map(_text, value))
    if not isinstance(value, float):
        return str(value)
    if value and abs(value) < 1e-3:
        digits, _, power = f"{value:.5e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:g}"


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
