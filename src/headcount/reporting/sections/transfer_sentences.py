"""What a transfer shows, in sentences: whether the same units matter on two data sets, and how sure that is. No torch."""

from __future__ import annotations

import numpy as np

from ...documents.ablation import TransferDocument
from ...formatting import fixed, probability
from ...stats.correlation_influence import influences
from ...stats.paired_tests import Correlation, pearson
from ..run_reader import ALPHA

FEWEST_UNITS = 5  # of which one can be left out


def related(data: TransferDocument, first_data: str = "one", second_data: str = "the other") -> str:
    """Whether the same units matter on two data sets, as far as both correlations of damages can show it.

    A correlation of sizes may rest on one unit with a large effect, so that of ranks stands beside it.
    """
    sizes, ranks = data.pearson, data.spearman
    numbers = f"(r = {_with_p(sizes)}; rank correlation {_with_p(ranks)})"
    if sizes.p > ALPHA and ranks.p > ALPHA:
        return f"No relation could be shown between what matters on {first_data} and on {second_data} {numbers}."
    if sizes.p > ALPHA:
        how = "alike" if ranks.value > 0 else "the other way round"
        return (
            f"Units stand in order {how} by what they matter on {first_data} and on {second_data}, but how much they matter "
            f"could not be shown to agree {numbers}."
        )
    lever = _lever(data)
    if lever:
        unit, without = lever
        return (
            f"Whether units that matter on {first_data} matter on {second_data} rests on one of them, {unit}: r = "
            f"{_with_p(sizes)} with it and {_with_p(without)} without it; rank correlation {_with_p(ranks)}."
        )
    if ranks.p > ALPHA or (ranks.value > 0) != (sizes.value > 0):
        return (
            f"The units with the largest effects matter {'alike' if sizes.value > 0 else 'in opposite ways'} on {first_data} and "
            f"on {second_data}; that the order of all agrees could not be shown {numbers}."
        )
    if sizes.value < 0:
        return f"Units that matter more on {first_data} matter less on {second_data} {numbers}."
    return f"Units that matter on {first_data} matter on {second_data} {numbers}."


def _with_p(correlation: Correlation) -> str:
    p = correlation.p
    return f"{fixed(correlation.value, 2)}, p {'' if p < 0.0001 else '= '}{probability(p)}"


def _lever(data: TransferDocument) -> tuple[str, Correlation] | None:
    """The one unit without which the correlation is not shown any more, or less than half as large; and what it is then."""
    one, other = np.array(data.damage.one), np.array(data.damage.other)
    if len(one) < FEWEST_UNITS:
        return None
    most = int((influences(one, other) * np.sign(data.pearson.value)).argmax())
    without = pearson(np.delete(one, most), np.delete(other, most))
    rests = without.p > ALPHA or without.value / data.pearson.value < 0.5
    return (data.units[most], without) if rests else None


def room(data: TransferDocument) -> str:
    """How high the correlation of damages could be for the noise of the examples; nothing where a document does not say."""
    if data.ceiling is None:
        return ""
    ceiling_text = fixed(data.ceiling, 2)
    if data.ceiling_low is not None and data.ceiling_high is not None:
        ceiling_text += f" [{fixed(data.ceiling_low, 2)}, {fixed(data.ceiling_high, 2)}]"
    return f"If units mattered alike on both, noise would leave room for a correlation of {ceiling_text}."
