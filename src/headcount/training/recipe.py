"""How to train, as a value: the numbers that people set, the learning rate of every step, and the order of the data."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..errors import Refused

if TYPE_CHECKING:
    from ..data.tasks import Task

PRECISIONS = ("no", "bf16", "fp16")
WINDOW = 50  # batches among which examples of like length are put together

SCHEDULES: dict[str, Callable[[int, int, int], float]] = {  # of the step, the steps to warm up, and all steps
    "linear": lambda step, warm, steps: (steps - step) / max(1, steps - warm),
    "inverse-sqrt": lambda step, warm, steps: math.sqrt(max(1, warm) / (step + 1)),
    "constant": lambda step, warm, steps: 1.0,
}


@dataclass(frozen=True)
class Recipe:
    """How to train. `batch_size` is that of a step, over all processes and the `accumulate` parts of each one's share.

    The learning rate rises for the share `warmup` of all steps, and then falls as `schedule` says (linear, inverse-sqrt,
    constant). `steps`, where given, wins over `epochs`. `precision` is no, bf16 or fp16. `distill` is the weight of the
    teacher's part of the loss, and `temperature` softens it, where there is a teacher. `lora` is the rank of additions to the
    linear layers (Hu et al. 2021), which alone are trained, and merged in the end.
    """

    epochs: float = 3.0
    steps: int | None = None
    batch_size: int = 32
    lr: float = 3e-5
    schedule: str = "linear"
    warmup: float = 0.1
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    label_smoothing: float = 0.0
    accumulate: int = 1
    precision: str = "no"
    distill: float = 0.9
    temperature: float = 2.0
    seed: int = 0
    lora: int | None = None

    def __post_init__(self) -> None:
        counts = {"batch_size": self.batch_size, "accumulate": self.accumulate, "steps": self.steps}
        counts["lora"] = self.lora
        for name, count in counts.items():
            if count is not None and (type(count) is not int or count < 1):
                raise Refused(f"{name} is {count!r:.40}; it must be a whole number, at least 1.")
        for name in ("epochs", "temperature", "lr", "weight_decay", "max_grad_norm"):
            value, zero = getattr(self, name), name not in ("epochs", "temperature")
            if not (0 < value < math.inf or (zero and value == 0)):
                raise Refused(f"{name} is {value!r:.40}; it must be a number above 0{', or 0' * zero}.")
        shares = [name for name in ("warmup", "label_smoothing", "distill") if not 0 <= getattr(self, name) <= 1]
        if shares:
            raise Refused(f"{shares[0]} is {getattr(self, shares[0])}; it must be from 0 to 1.")
        for name, choices in (("schedule", tuple(SCHEDULES)), ("precision", PRECISIONS)):
            if getattr(self, name) not in choices:
                raise Refused(f"There is no {name} {getattr(self, name)!r:.40}; choose one of {', '.join(choices)}.")

    def facts(self) -> dict[str, Any]:
        """The recipe as plain data; without `lora` where there is none, as run folders of earlier versions have it."""
        values = asdict(self)
        if self.lora is None:
            del values["lora"]
        return values

    def lr_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0, of so many."""
        warm = round(self.warmup * steps)
        return self.lr * ((step + 1) / warm if step < warm else SCHEDULES[self.schedule](step, warm, steps))


def batches(task: Task, size: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
    """The numbers of all examples in batches of examples of like length, in an order of the seed and the epoch."""
    drawn = random.Random(f"{seed}/{epoch}")
    out = []
    for group in (range(task.size),) if task.groups is None else task.groups:
        numbers = list(group)
        drawn.shuffle(numbers)
        for start in range(0, len(numbers), WINDOW * size):
            window = sorted(numbers[start : start + WINDOW * size], key=task.lengths.__getitem__)
            out += [tuple(window[place : place + size]) for place in range(0, len(window), size)]
    drawn.shuffle(out)
    return out
