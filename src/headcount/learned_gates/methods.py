"""The methods that learn which units to keep: what each draws at a step, what it punishes, and what it keeps in the end.

All gates of a model lie in one vector of weights, part by part. A `Budget` is a stretch of it of which `keep` are to stay.
`progress` runs from 0 to 1 while the gates learn. Nothing here knows a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import BadPlan
from ..importance.layer_orders import every_other
from . import relaxations

BETA2 = 0.99  # of Adam, for gates: they see few steps
ROOM = 0.7  # share of the learning in which budgets shrink to what is kept; the rest is for the choice to settle


class Budget(NamedTuple):
    """Gates `first` to `last` (without it), of which `keep` are to stay; None where a penalty alone decides."""

    first: int
    last: int
    keep: int | None

    @property
    def size(self) -> int:
        """How many gates there are."""
        return self.last - self.first

    def now(self, progress: float) -> float:
        """How many gates are to be open by now, where a budget shrinks: all at first, `keep` after a while."""
        assert self.keep is not None
        return relaxations.cubic(self.size, self.keep, progress / ROOM)


@dataclass(frozen=True)
class L0:
    """Hard concrete gates under an L0 penalty (Louizos et al. 2018, Voita et al. 2019).

    `l0` is the price of one open gate, in units of the training loss: the loss is the mean per target plus `l0` times the
    expected number of open gates, so it means the same for any number of attentions. With `per="block"` the expected
    numbers are averaged over attentions first, as in Voita's code: its 0.1 is 0.1 / 6 a head for six attentions. Without
    `l0` the price is found: the number of open gates is steered along a line that ends at what is kept, by a price in
    proportion to how far it is off, now and so far, in units of the gates' own gradients: so it works at any scale of the
    loss. Gates start open, at the location `start`; "published" is Voita's start, uniform numbers around zero, where
    gates are half closed.
    """

    l0: float | None = None
    per: str = "unit"
    start: float | str = 3.0
    temperature: float = relaxations.TEMPERATURE
    lr: float = 0.1

    name: ClassVar[str] = "l0"
    needs_keep: ClassVar[bool] = False
    noisy: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.03  # share of the gates: so many too many cost one typical gradient
    reach: ClassVar[float] = 30.0  # how far the remembered part of the price can move in all of the learning

    def __post_init__(self) -> None:
        if self.per not in ("unit", "block"):
            raise BadPlan(f'per is "unit" or "block"; I got {self.per!r:.40}.')
        if self.l0 is not None and not self.l0 >= 0:
            raise BadPlan(f"l0 is the price of an open gate, 0 or more; I got {self.l0!r:.40}.")

    def begin(self, sizes: Sequence[int], generator: torch.Generator) -> Tensor:
        """The first locations."""
        if self.start != "published":
            return torch.full((sum(sizes),), float(self.start), dtype=torch.float64)
        draws = [torch.rand(size, dtype=torch.float64, generator=generator) * 2 - 1 for size in sizes]
        return torch.cat(
            [draw * math.sqrt(3 / size) for draw, size in zip(draws, sizes, strict=True)]
        )  # Glorot's bounds

    def gates(self, weights: Tensor, noise: Tensor, budgets: Sequence[Budget], progress: float) -> Tensor:
        """One sample of every gate."""
        return relaxations.sampled(weights, noise, self.temperature)

    def expected(self, weights: Tensor, budgets: Sequence[Budget], progress: float) -> Tensor:
        """The expected number of open gates of each budget."""
        chances = relaxations.chance_open(weights, self.temperature)
        return torch.stack([chances[b.first : b.last].sum() for b in budgets])

    def penalty(self, weights: Tensor, prices: Tensor, budgets: Sequence[Budget], blocks: int) -> Tensor:
        """What is added to the loss: the price of each budget's open gates."""
        count = self.expected(weights, budgets, 0.0)
        if self.l0 is not None:
            return self.l0 * count.sum() / (blocks if self.per == "block" else 1)
        return (prices * count).sum()

    def off(self, weights: Tensor, budgets: Sequence[Budget], progress: float) -> Tensor:
        """How many more gates of each budget are open than there should be by now, in units of what is tolerated."""
        now = [b.size + (b.keep - b.size) * min(1.0, progress / ROOM) for b in budgets if b.keep is not None]
        allowed = torch.tensor([b.size * self.tolerance for b in budgets], dtype=weights.dtype, device=weights.device)
        goal = torch.tensor(now, dtype=weights.dtype, device=weights.device)
        return (self.expected(weights, budgets, progress) - goal) / allowed

    def open(self, weights: Tensor) -> Tensor:
        """Which gates are rather 1 than 0."""
        return relaxations.is_open(weights)


@dataclass(frozen=True)
class Subset:
    """Differentiable subset pruning (Li et al. 2021): a random subset of exactly `keep` units, ever less soft.

    Weights plus Gumbel noise go through a relaxed choice of the largest, at a temperature that falls geometrically from
    `first` to `last`. `form="bounded"` keeps every gate at most 1 (see `relaxations.relaxed`) and begins with all units,
    shrinking to `keep` on the way, so that a trained model is not shocked; `form="published"` is the paper's: as many
    softmaxes as units are kept, `keep` of them from the first step on. `form="straight-through"` has hard gates and no
    noise; it shrinks to `keep` too, because units that are closed from the first step on may never get a chance.

    The last temperature is reached after the share `cooled` of the learning. `beta2` is Adam's, for the gates; with `decay`
    their learning rate falls along a line to zero at the last step of all.
    """

    form: str = "bounded"
    first: float = 1.0
    last: float = 0.05
    lr: float = 0.1
    beta2: float = BETA2
    decay: bool = False
    cooled: float = 1.0

    name: ClassVar[str] = "subset"
    needs_keep: ClassVar[bool] = True
    forms: ClassVar[tuple[str, ...]] = ("bounded", "published", "straight-through")

    def __post_init__(self) -> None:
        if self.form not in self.forms:
            raise BadPlan(f"form is {', '.join(self.forms)}; I got {self.form!r:.40}.")
        if not 0 < self.last <= self.first:
            raise BadPlan(f"Temperatures fall from first to last, above 0; I got {self.first} and {self.last}.")
        if not 0 < self.cooled <= 1:
            raise BadPlan(
                f"cooled is the share of the learning in which temperatures fall, up to 1; I got {self.cooled}."
            )
        if not 0 <= self.beta2 < 1:
            raise BadPlan(f"beta2 is Adam's, from 0 to below 1; I got {self.beta2}.")

    @property
    def noisy(self) -> bool:
        """Whether gates are drawn at random."""
        return self.form != "straight-through"

    def begin(self, sizes: Sequence[int], generator: torch.Generator) -> Tensor:
        """The first weights: almost alike; as published they are uniform between -1/2 and 1/2."""
        spread = 0.5 if self.form == "published" else 0.01
        return (torch.rand(sum(sizes), dtype=torch.float64, generator=generator) * 2 - 1) * spread

    def gates(self, weights: Tensor, noise: Tensor, budgets: Sequence[Budget], progress: float) -> Tensor:
        """Gates that sum to the budget, or as many hard ones."""
        temperature = relaxations.annealed(self.first, self.last, min(1.0, progress / self.cooled))
        if self.form == "straight-through":
            masks = [relaxations.straight_through(weights[b.first : b.last], round(b.now(progress))) for b in budgets]
            return torch.cat(masks)
        moved = weights + relaxations.gumbel(noise)
        parts = [moved[b.first : b.last] for b in budgets]
        if self.form == "published":
            chosen = [relaxations.published(x, b.keep or 0, temperature) for x, b in zip(parts, budgets, strict=True)]
        else:
            chosen = [relaxations.relaxed(x, b.now(progress), temperature) for x, b in zip(parts, budgets, strict=True)]
        return torch.cat(chosen)

    def expected(self, weights: Tensor, budgets: Sequence[Budget], progress: float) -> Tensor:
        """How many gates are open: what they sum to."""
        exact = {"bounded": float, "straight-through": round}.get(self.form)
        counts = [float(b.keep or 0) if exact is None else exact(b.now(progress)) for b in budgets]
        return torch.tensor(counts, dtype=weights.dtype)


@dataclass(frozen=True)
class Movement:
    """Movement pruning of whole units (Sanh et al. 2020): the largest scores stay, ever fewer by the cubic schedule.

    Gates are hard. The gradient of the loss by a gate, open or closed, moves the score of its unit: scores add up how far
    training has moved the unit away from zero. They are plain sums, as in the paper's formula (its code has Adam, which
    makes all steps alike and loses what tells units apart), so `lr` does not change which are kept.
    """

    lr: float = 1.0

    name: ClassVar[str] = "movement"
    needs_keep: ClassVar[bool] = True
    noisy: ClassVar[bool] = False

    def begin(self, sizes: Sequence[int], generator: torch.Generator) -> Tensor:
        """Scores of zero."""
        return torch.zeros(sum(sizes), dtype=torch.float64)

    def gates(self, weights: Tensor, noise: Tensor, budgets: Sequence[Budget], progress: float) -> Tensor:
        """1 for the largest scores, 0 for the rest."""
        masks = [relaxations.straight_through(weights[b.first : b.last], round(b.now(progress))) for b in budgets]
        return torch.cat(masks)

    def expected(self, weights: Tensor, budgets: Sequence[Budget], progress: float) -> Tensor:
        """How many gates are open."""
        return torch.tensor([round(b.now(progress)) for b in budgets], dtype=weights.dtype)


@dataclass(frozen=True)
class LayerDrop:
    """Structured dropout (Fan et al. 2020): at every step each unit is left out with probability `rate`. Nothing is learned.

    Nothing is rescaled, and a model in evaluation mode has all its units. Made for layers; heads, MLPs and attentions
    work alike. What goes in the end is evenly spaced, the first unit stays: every other layer where half of them go.
    """

    rate: float = 0.2
    lr: float = 0.0

    name: ClassVar[str] = "layerdrop"
    needs_keep: ClassVar[bool] = False
    noisy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise BadPlan(f"rate is the share of units that a step leaves out, from 0 to below 1; I got {self.rate}.")

    def begin(self, sizes: Sequence[int], generator: torch.Generator) -> Tensor:
        """Weights that stay as they are: the later a unit goes when evenly spaced ones go, the larger."""
        return torch.cat([_spaced(size) for size in sizes])

    def gates(self, weights: Tensor, noise: Tensor, budgets: Sequence[Budget], progress: float) -> Tensor:
        """0 with the probability `rate`, else 1."""
        return (noise >= self.rate).to(weights)

    def expected(self, weights: Tensor, budgets: Sequence[Budget], progress: float) -> Tensor:
        """How many units a step has, on average."""
        return torch.tensor([b.size * (1 - self.rate) for b in budgets], dtype=weights.dtype)


def _spaced(units: int) -> Tensor:
    """For each unit the share of the units that must go before it goes, when what stays is evenly spaced."""
    last = torch.zeros(units, dtype=torch.float64)
    for keep in range(1, units + 1):
        for place in every_other(units, keep):
            last[place] += 1.0 / units
    return last


Method = L0 | Subset | Movement | LayerDrop
METHODS: Mapping[str, type[Method]] = {
    "l0": L0,
    "subset": Subset,
    "movement": Movement,
    "layerdrop": LayerDrop,
}
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    # Li et al. 2021 on MNLI, cool after 25,000 of 36,816 steps; Voita et al. 2019
    "subset": {
        "form": "published",
        "first": 1000.0,
        "last": 1e-8,
        "lr": 0.5,
        "beta2": 0.999,
        "decay": True,
        "cooled": 0.679,
    },
    "l0": {"start": "published", "per": "block"},
}


def method_of(name: str, **settings: Any) -> Method:
    """The method of this name with these settings; those that are None are left as they are."""
    if name not in METHODS:
        raise BadPlan(f"I can learn by {', '.join(METHODS)}; I got {name!r:.40}.")
    setting_names = [setting.name for setting in fields(METHODS[name])]
    options = {key: value for key, value in settings.items() if value is not None}
    unknown = [key for key in options if key not in setting_names]
    if unknown:
        raise BadPlan(f"{name} has no setting {unknown[0]!r:.40}; it has {', '.join(setting_names)}.")
    if not options.get("lr", 0) >= 0:
        raise BadPlan(f"The learning rate of the gates is {options['lr']}; it must be 0 or more.")
    return METHODS[name](**options)
