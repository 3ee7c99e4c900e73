"""Relaxed choices that gradients can move: hard concrete gates, and subsets of exactly K units."""

from __future__ import annotations

import math

import torch
from scipy.optimize import brentq
from scipy.special import expit
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


HALVINGS = 50


def gumbel(noise: Tensor) -> Tensor:
    """Gumbel noise from uniform noise: the K largest of weights plus such noise are a random subset of size K."""
    return -torch.log(-torch.log(noise.clamp(1e-30, 1 - 1e-9)))


def relaxed(weights: Tensor, keep: float, temperature: float) -> Tensor:
    """Numbers between 0 and 1 that sum to `keep`: sigmoids of the weights over a threshold that makes the sum right.

    As the temperature falls they become 1 for the largest and 0 for the rest. Of all such vectors it is the one that is
    nearest to the weights under an entropy of each number, so unlike the published form no entry exceeds 1; and it costs
    the same whatever `keep` is. Gradients go through the threshold too.
    """
    size = weights.shape[-1]
    if keep >= size:
        return torch.ones_like(weights)
    with torch.no_grad():
        threshold = _threshold(weights, keep, temperature)
        near = torch.sigmoid((weights - threshold) / temperature)
        slope = (near * (1 - near)).sum(-1, keepdim=True).clamp(min=1e-30)
    # one step of Newton's method with a graph: it moves the threshold by nothing, and its gradient is that of the root
    now = torch.sigmoid((weights - threshold) / temperature).sum(-1, keepdim=True)
    step = temperature * (now - keep) / slope
    settled = torch.where(slope > 1e-12, threshold + step.clamp(-temperature, temperature), threshold)
    return torch.sigmoid((weights - settled) / temperature)


def _threshold(weights: Tensor, keep: float, temperature: float) -> Tensor:
    """Where sigmoids over it sum to `keep`: found by Brent's method, or on a GPU, which is not to be waited for, by halving."""
    far = temperature * (math.log(weights.shape[-1]) + 40)
    if weights.device.type == "cpu" and weights.dim() == 1:
        plain = weights.double().numpy()

        def over(place: float) -> float:
            return float(expit((plain - place) / temperature).sum()) - keep

        threshold = brentq(over, plain.min() - far, plain.max() + far, xtol=1e-9 * temperature)
        return torch.tensor([threshold], dtype=weights.dtype)
    low, high = weights.min(-1, keepdim=True).values - far, weights.max(-1, keepdim=True).values + far
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = torch.sigmoid((weights - middle) / temperature).sum(-1, keepdim=True) >= keep
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def published(weights: Tensor, keep: int, temperature: float) -> Tensor:
    """The relaxation as published: a sum of `keep` softmaxes, each with what the ones before took turned down.

    The sum is `keep`; single entries may exceed 1, and at a high temperature all are keep / units.
    """
    if keep >= weights.shape[-1]:
        return torch.ones_like(weights)  # the sum would be right and single entries not
    tiny = torch.finfo(weights.dtype).tiny
    logits, total = weights, torch.zeros_like(weights)
    for _ in range(keep):
        part = torch.softmax(logits / temperature, -1)
        total = total + part
        logits = logits + torch.log((1 - part).clamp(min=tiny))
    return total


def largest(weights: Tensor, keep: int) -> Tensor:
    """1 for the `keep` largest, 0 for the rest: exactly so many; of equal ones the first go, as in `Scores.order`."""
    order = weights.argsort(dim=-1, stable=True)
    return torch.zeros_like(weights).scatter(-1, order[..., weights.shape[-1] - keep :], 1.0)


def straight_through(weights: Tensor, keep: int) -> Tensor:
    """`largest`, with the gradient of the gates handed to the weights as it is (Bengio et al. 2013)."""
    hard = largest(weights.detach(), keep)
    return hard + (weights - weights.detach())


def annealed(first: float, last: float, progress: float) -> float:
    """A temperature between the two, falling geometrically with progress from 0 to 1."""
    return first * (last / first) ** min(max(progress, 0.0), 1.0)


def cubic(first: float, last: float, progress: float) -> float:
    """A number that falls from first to last, fast in the beginning (Zhu and Gupta 2017)."""
    return last + (first - last) * (1 - min(max(progress, 0.0), 1.0)) ** 3
