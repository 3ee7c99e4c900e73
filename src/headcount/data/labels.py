"""From the labels of the data to the outputs of the model: by name where both have names, by number else, or not at all.

A model that was trained with another order of labels, or with other labels, would be measured without an error and
come out as nonsense. So names are matched wherever the model's config has them, and what does not fit is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BadData

ENOUGH = 50  # examples, after which a class that never occurs says that the data is not the model's
_GENERIC = re.compile(r"label[ _-]?\d+", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of the data: how often each occurs, and the names that the user or the data gave.

    Examples carry codes, which count the labels in the order of their names; a model's outputs are looked up when one
    is met, because only its config says what they are called.
    """

    source: str
    counts: Mapping[str, int]
    given: tuple[str, ...] | None = None
    data_names: tuple[str, ...] | None = None
    _known: dict[Any, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels in the order of their codes."""
        return tuple(sorted(self.counts))

    @property
    def size(self) -> int:
        """How many labels there are, as far as the data or the user says."""
        numbers = [int(label) + 1 for label in self.counts if _NUMBER.fullmatch(label)]
        return len(self.given or self.data_names or ()) or max(len(self.counts), *numbers, 0)

    def outputs_for(self, config: Any, outputs: int) -> tuple[int, ...]:
        """The model's output for every code, or an error that says how labels and model do not fit together."""
        names = model_labels(config, outputs)
        if (names, outputs) not in self._known:
            places = outputs_of(
                self.counts,
                outputs,
                source=self.source,
                user_names=self.given,
                data_names=self.data_names,
                model_names=names,
            )
            self._known[names, outputs] = tuple(places[label] for label in self.names)
        return self._known[names, outputs]


def model_labels(config: Any, outputs: int) -> tuple[str, ...] | None:
    """The names that a model's config gives to its outputs, in order; None where they are missing or made up."""
    names = getattr(config, "id2label", None)
    if not isinstance(names, Mapping) or len(names) != outputs:
        return None
    ordered = {int(key): str(value) for key, value in names.items() if _NUMBER.fullmatch(str(key))}
    if sorted(ordered) != list(range(outputs)) or all(_GENERIC.fullmatch(name) for name in ordered.values()):
        return None
    return tuple(ordered[number] for number in range(outputs))


def outputs_of(
    classes: Mapping[str, int],
    outputs: int,
    *,
    source: str,
    user_names: Sequence[str] | None = None,
    data_names: Sequence[str] | None = None,
    model_names: Sequence[str] | None = None,
) -> dict[str, int]:
    """Label of the data -> number of the model's output.

    `classes` counts the labels; `user_names` are the user's names in the order of the outputs, `data_names` those that
    the data gives to its numbers, `model_names` those of the model's config. The first that fit decide.
    """
    names = {label: _name(label, data_names) for label in classes}
    if user_names is not None:
        return _by_given(names, user_names, outputs, source)
    if model_names is not None:
        places = _matched(names, model_names)
        if places is not None:
            return places
    elif data_names is not None and len(data_names) == outputs:
        return {label: _number_of(label, data_names) for label in classes}
    numbers = all(_NUMBER.fullmatch(label) for label in classes) and (data_names is None or model_names is None)
    if not numbers:
        raise BadData(
            f"The labels of {source} are {_listed(names.values())} and the model's are "
            f"{_listed(model_names) if model_names else f'{outputs} outputs without names'}; pass labels=[...] (--labels), "
            "the data's labels in the order of the model's outputs."
        )
    return _by_number(classes, outputs, source)


def _by_given(names: Mapping[str, str], user_names: Sequence[str], outputs: int, source: str) -> dict[str, int]:
    user_names = [str(name) for name in user_names]
    if len(user_names) != outputs or len(set(map(_folded, user_names))) != len(user_names):
        raise BadData(
            f"labels= has {len(set(user_names))} different names and the model has {outputs} outputs; "
            "give one name for each output."
        )
    places = _matched(names, user_names) or _matched({label: label for label in names}, user_names)
    if places is not None:
        return places
    if all(_NUMBER.fullmatch(label) and 0 <= int(label) < outputs for label in names):
        return {label: int(label) for label in names}
    raise BadData(
        f"The labels of {source} are {_listed(names.values())}; labels= has only {_listed(user_names)}: name them all."
    )


def _by_number(classes: Mapping[str, int], outputs: int, source: str) -> dict[str, int]:
    numbers = sorted({int(label) for label in classes})
    if numbers[0] >= 1 and numbers[-1] == outputs:
        raise BadData(
            f"The labels of {source} count from 1 to {outputs} and the model's outputs from 0 to {outputs - 1}; "
            f"pass labels={[str(number + 1) for number in range(min(outputs, 12))]} if they are in this order."
        )
    if numbers[0] < 0 or numbers[-1] >= outputs:
        strange = numbers[0] if numbers[0] < 0 else numbers[-1]
        raise BadData(
            f"{source} has the label {strange} and the model has the outputs 0 to {outputs - 1}; take the model that was "
            "trained on these labels, or pass labels=[...] (--labels), the data's labels in the order of the model's outputs."
        )
    if len(numbers) == 1 < outputs and sum(classes.values()) >= ENOUGH:
        raise BadData(
            f"All {sum(classes.values())} examples of {source} have the same label, {numbers[0]}, and the model tells "
            f"{outputs} apart; give data with more than one, or check which column the labels are in (--label)."
        )
    if len(numbers) < outputs and sum(classes.values()) >= ENOUGH:
        raise BadData(
            f"{source} has {len(numbers)} different labels ({_listed(map(str, numbers))}) and the model has {outputs} outputs: "
            "it was trained on other labels; pass labels=[...] (--labels) for all outputs, in their order, if it was not."
        )
    return {label: int(label) for label in classes}


def _name(label: str, data_names: Sequence[str] | None) -> str:
    number = int(label) if data_names and _NUMBER.fullmatch(label) else -1
    return data_names[number] if data_names and 0 <= number < len(data_names) else label


def _number_of(label: str, data_names: Sequence[str]) -> int:
    return int(label) if _NUMBER.fullmatch(label) and 0 <= int(label) < len(data_names) else data_names.index(label)


def _matched(names: Mapping[str, str], output_names: Sequence[str]) -> dict[str, int] | None:
    """Every label's place among the known names, whatever the case and the dashes; None unless all have one of their own."""
    places = {_folded(name): number for number, name in enumerate(output_names)}
    outputs = {label: places.get(_folded(name), -1) for label, name in names.items()}
    return (
        outputs
        if len(places) == len(output_names)
        and min(outputs.values()) >= 0
        and len(set(outputs.values())) == len(outputs)
        else None
    )


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _listed(names: Any) -> str:
    names = list(names)
    return ", ".join(repr(name[:40]) for name in names[:12]) + (
        f" and {len(names) - 12} more" if len(names) > 12 else ""
    )
