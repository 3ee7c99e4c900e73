"""bfloat16 and float16: what masking and scoring say differs from float32 by rounding, within bounds that docs state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.spread import by_gradients, in_passes

# As shares of the largest value, in docs/large-models.md too. A number is rounded by at most 1/2048 in float16 and 1/256 in
# bfloat16; these models round some dozen numbers in a row, and a loss or a gradient is what is left of larger ones that cancel.
BOUNDS = {torch.float16: (0.01, 0.03), torch.bfloat16: (0.06, 0.15)}
LOSSES = ("ablated one by one", "ablated, means instead")


def _far(one: dict[str, np.ndarray], other: dict[str, np.ndarray], bound: float) -> dict[str, float]:
    """What differs by more than the bound, and by how much."""
    apart = {name: float(np.abs(one[name] - other[name]).max() / np.abs(other[name]).max()) for name in other}
    return {name: share for name, share in apart.items() if not share <= bound}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", ["llama", "bert", "gpt2", "vit", "gpt_neox"])
def test_in_half_precision_numbers_are_those_of_float32_within_the_stated_bounds(name: str, dtype: torch.dtype) -> None:
    model, inputs = zoo.build(name, torch.float32)
    half, half_inputs = zoo.build(name, dtype)
    outputs, losses = BOUNDS[dtype]
    whole, rounded = in_passes(model, inputs), in_passes(half, half_inputs)
    assert not _far(*({k: v for k, v in one.items() if k not in LOSSES} for one in (rounded, whole)), outputs)
    assert not _far(*({k: one[k] for k in LOSSES} for one in (rounded, whole)), losses)
    assert not _far(
        by_gradients(half, half_inputs, criteria=False), by_gradients(model, inputs, criteria=False), losses
    )
    assert _far(rounded, whole, 1e-6), "it was computed in half precision"


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_of_t5_the_outputs_stay_within_the_bounds_too(dtype: torch.dtype) -> None:
    """Its gradients do not in bfloat16: its attention does not divide by the square root of the width."""
    both = [in_passes(*zoo.build("t5", one), criteria=False) for one in (dtype, torch.float32)]
    rounded, whole = ({name: values for name, values in one.items() if name not in LOSSES} for one in both)
    assert not _far(rounded, whole, BOUNDS[dtype][0])
