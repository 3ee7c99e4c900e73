"""When two models or two results are the same: stored numbers by bits, computed ones within rounding.

How a sum is rounded depends on the processor, the number of threads and where the memory lies, so that even the same model
asked twice may answer with other last digits. What was stored, copied, loaded or drawn by seed is the same to the bit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# What a few hundred rounded operations in a row can add up to: some hundred units in the last place (1.2e-7 in float32).
# A wrong head, a shifted row or a forgotten bias is off by more than a thousand times that in the models of the tests.
ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}

# What some steps of Adam make of rounding in the weights of a float64 model, and less than a thousandth of one step. Adam
# divides each gradient by its size: where there is none, float32 moves a weight by rounding alone, as far as by a gradient.
TRAINED = 1e-7


def close(a: Tensor | np.ndarray, b: Tensor | np.ndarray, tolerance: float | None = None) -> bool:
    """Whether computed tensors are equal but for rounding, which counts against the largest entry (or 1).

    Arrays hold what models in float32 computed, whatever their own dtype.
    """
    if isinstance(a, np.ndarray):
        one, other = (torch.from_numpy(np.asarray(array, dtype=np.float64)) for array in (a, b))
        return close(one, other, tolerance or ROUNDING[torch.float32])
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point() or not a.numel():
        return torch.equal(a, b)
    allowed = (tolerance or ROUNDING[a.dtype]) * max(1.0, float(b.abs().max()))
    return bool((a - b).abs().max() <= allowed)


def same_weights(a: nn.Module | Mapping[str, Tensor], b: nn.Module | Mapping[str, Tensor]) -> bool:
    """Whether two models, or two state dicts, hold tensors of the same names, dtypes and bits."""
    one, other = (x.state_dict() if isinstance(x, nn.Module) else x for x in (a, b))
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype and torch.equal(value, other[name]) for name, value in one.items()
    )


def close_weights(a: nn.Module | Mapping[str, Tensor], b: nn.Module | Mapping[str, Tensor], tolerance: float) -> bool:
    """Whether two models that were computed, as trained ones are, have weights that are equal within `tolerance`."""
    one, other = (x.state_dict() if isinstance(x, nn.Module) else x for x in (a, b))
    return one.keys() == other.keys() and all(close(value, other[name], tolerance) for name, value in one.items())


def felt(model: nn.Module) -> dict[str, Tensor]:
    """The weights that the output depends on: not the biases of keys, which training moves by rounding alone."""
    return {name: one for name, one in model.state_dict().items() if not re.search(r"\bk(ey|_proj|_lin)\.bias$", name)}


def alike(a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    """Whether two documents say the same: names, texts, counts and their order exactly, fractions within `tolerance`."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(alike(value, b[name], tolerance) for name, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(alike(one, other, tolerance) for one, other in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    return type(a) is type(b) and bool(a == b)
