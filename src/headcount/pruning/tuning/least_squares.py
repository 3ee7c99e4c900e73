"""Least squares for all columns of a matrix at once, from sums over positions: X^T X and X^T E, and no position itself.

X is what the columns that stay are given and E what is missing of the target, so the change D of the columns minimises
|E - X D - 1 b|^2 + strength * mean(diag X^T X) * |D|^2. The penalty draws towards the columns as they are, not towards zero;
its share of the mean diagonal is the damping of SparseGPT (Frantar & Alistarh 2023). A bias b is not penalised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

STRENGTHS = (
    1e-4,
    1e-3,
    1e-2,
    1e-1,
    1.0,
    10.0,
)  # of the ridge, as shares of the mean diagonal; SparseGPT has one per cent
ROWS = 4096  # positions whose products are summed in float32 before they are added up in float64


class Solution(NamedTuple):
    """What is added to the columns (columns, out), and to the bias (out,)."""

    change: Tensor
    bias: Tensor


@dataclass
class CrossSums:
    """All that a fit needs to know about some positions, each of which counts by its weight."""

    gram: Tensor  # (columns, columns): X^T X
    cross: Tensor  # (columns, out): X^T E
    x: Tensor  # (columns,)
    e: Tensor  # (out,)
    weight: float = 0.0
    error: float = 0.0  # squares of E
    size: float = 0.0  # squares of what the whole model's site writes
    positions: int = 0

    @classmethod
    def zeros(cls, columns: int, out: int, device: torch.device) -> CrossSums:
        """Of no position."""
        shapes = ((columns, columns), (columns, out), (columns,), (out,))
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes))

    def add(self, x: Tensor, e: Tensor, y: Tensor, weights: Tensor) -> None:
        """Count some positions: what the columns are given, what is missing, what the whole site writes; and their weights.

        Products of a few thousand positions are made in float32 (float64 for such models) and added up in float64: what
        float32 rounds off is a thousandth of the weakest ridge, and eight times as fast on most GPUs.
        """
        with full_products():
            for start in range(0, len(x), ROWS):
                some = slice(start, start + ROWS)
                root = weights[some].sqrt()[:, None]
                own, missing = x[some] * root, e[some] * root
                self.gram += (own.T @ own).to(self.gram)
                self.cross += (own.T @ missing).to(self.cross)
                self.x += (own * root).sum(0).to(self.x)
                self.e += (missing * root).sum(0).to(self.e)
                self.error += float(
                    missing.double().square().sum() if x.device.type != "mps" else missing.square().sum()
                )
                self.size += float((y[some] * root).square().sum())
        self.weight += float(weights.sum())
        self.positions += len(x)

    def __add__(self, other: CrossSums) -> CrossSums:
        return CrossSums(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    @property
    def finite(self) -> bool:
        """Whether every sum is a number."""
        return bool(self.gram.isfinite().all() and self.cross.isfinite().all()) and self.error < float("inf")

    def centred(self, intercept: bool) -> tuple[Tensor, Tensor]:
        """X^T X and X^T E; of differences from the mean where there is a bias, which takes the mean up."""
        if not intercept or not self.weight:
            return self.gram, self.cross
        return (
            self.gram - self.x[:, None] * self.x / self.weight,
            self.cross - self.x[:, None] * self.e / self.weight,
        )

    def left(self, solution: Solution) -> float:
        """The squares of E - X D - 1 b."""
        change, bias = solution
        explained = 2 * float((change * self.cross).sum()) - float((change * (self.gram @ change)).sum())
        shifted = self.e - self.x @ change  # the sum of what is left without the bias
        return self.error - explained - 2 * float(bias @ shifted) + self.weight * float(bias @ bias)


def ridge_columns(sums: CrossSums, strength: float, intercept: bool) -> Solution | None:
    """The change of all columns with this strength of the ridge, solved directly; None where it cannot be."""
    gram, cross = sums.centred(intercept)
    change = torch.zeros_like(cross)
    if len(gram):
        diagonal = gram.diagonal().mean()
        shifted = gram.clone()
        shifted.diagonal().add_(strength * diagonal)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if failed or not diagonal > 0:
            return None
        change = torch.cholesky_solve(cross, factor)
    bias = (sums.e - sums.x @ change) / sums.weight if intercept and sums.weight else torch.zeros_like(sums.e)
    return Solution(change, bias)


class Best(NamedTuple):
    """The solution with the strength that is best on held-out positions, and the squares left there with it."""

    solution: Solution
    strength: float
    left: float


def best_ridge(fitted: CrossSums, held: CrossSums, intercept: bool, strengths: Sequence[float]) -> Best | None:
    """The best strength on held-out positions, solved again over all of them; None where none does any good there."""
    errors = dict[float, float]()
    for strength in strengths:
        found = ridge_columns(fitted, strength, intercept)
        if found is not None:
            errors[strength] = held.left(found)
    strength = min(errors, key=errors.__getitem__, default=0.0)
    if not errors or not errors[strength] < held.error:
        return None
    solution = ridge_columns(fitted + held, strength, intercept)
    return None if solution is None else Best(solution, strength, errors[strength])


@contextmanager
def full_products() -> Iterator[None]:
    """Within the block, products of float32 matrices have all of its digits, whatever the user allows (TF32, bfloat16)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
