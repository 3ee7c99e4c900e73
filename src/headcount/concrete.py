"""Hard concrete gates (Louizos et al. 2018; on heads, Voita et al. 2019): random numbers that are exactly 0 or 1 now and then.

A gate is a stretched and clipped sigmoid of its location plus logistic noise, so it is 0 with a probability that has a
gradient: the number of open gates can be penalised. Every function takes locations of any shape.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TEMPERATURE = 0.33  # as published by both
STRETCH = (-0.1, 1.1)
TINY = 1e-6  # noise stays so far away from 0 and 1


def sampled(location: Tensor, noise: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Gates from uniform noise: 0, 1, or in between."""
    uniform = noise.clamp(TINY, 1 - TINY)
    return _stretched(torch.sigmoid((uniform.logit() + location) / temperature))


def chance_open(location: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """The probability that a gate is not 0. It is not clipped: a clipped one has no gradient where it is saturated."""
    low, high = STRETCH
    return torch.sigmoid(location - temperature * math.log(-low / high))


def is_open(location: Tensor) -> Tensor:
    """Whether a gate is 1 rather than 0, whichever is more likely: how gates end (Voita et al. 2019, section 5.2).

    The stretch is the same at both ends, so that is the sign of the location.
    """
    return location > 0


def clipped(location: Tensor) -> Tensor:
    """Gates without noise and without temperature, which may end between 0 and 1: what Voita's code uses at test time."""
    return _stretched(torch.sigmoid(location))


def _stretched(x: Tensor) -> Tensor:
    low, high = STRETCH
    return (x * (high - low) + low).clamp(0, 1)
