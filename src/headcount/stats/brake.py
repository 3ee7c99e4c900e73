"""The brake: how much of its worth a model may lose on scoring examples before nothing is written. No torch."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..errors import BadMeasure
from ..parsing import share_in
from .metrics import Metric

DEFAULT_BRAKE = "50%"  # of the way from the whole model to a constant answer


class Brake(NamedTuple):
    """How far a metric may fall on the scoring examples before nothing is written: `allowed`, in points.

    `constant` is what a constant answer is worth on the `n` examples, None where that is not known.
    """

    metric: str
    higher_is_better: bool
    points: float
    whole: float
    constant: float | None
    allowed: float
    n: int

    def fall(self, value: float) -> float:
        """How much worse a model of this value is than the whole one, in points."""
        return (self.whole - value if self.higher_is_better else value - self.whole) * self.points

    def holds(self, value: float) -> bool:
        """Whether a model of this value has lost too much."""
        return self.fall(value) > self.allowed


def brake_setting(text: str | float | None) -> float | str | None:
    """What a brake was set to: a share of the way to a constant answer ("50%"), points (5.0), or None where it is off."""
    if text is None or (isinstance(text, str) and text.strip().lower() == "off"):
        return None
    share = share_in(text) if isinstance(text, str) else None
    if share is not None and "%" in str(text) and 0 < share <= 1:
        return str(text).strip()
    try:
        points = float(text)
    except ValueError:
        points = -1.0
    if isinstance(text, bool) or not (math.isfinite(points) and points > 0):
        raise BadMeasure(
            "A brake is a share of the way from the whole model to a constant answer, such as 50%, a number of points, such as "
            f"5, or off; I got {text!r:.40}."
        )
    return points


def brake_at(setting: str | float | None, metric: Metric, whole: float, constant: float | None, n: int) -> Brake | None:
    """The brake at this setting; None where it is off, and where a share is asked for and there is nowhere to fall to."""
    setting = brake_setting(setting)
    if setting is None:
        return None
    if isinstance(setting, float):
        allowed = setting
    else:
        share = share_in(setting)
        if constant is None or share is None:
            return None
        if metric.name == "perplexity":  # distances between losses, of which it is the exponential
            allowed = math.exp(math.log(whole) + share * (math.log(constant) - math.log(whole))) - whole
        else:
            allowed = (whole - constant if metric.higher_is_better else constant - whole) * metric.points * share
        if allowed <= 0:
            return None
    return Brake(metric.name, metric.higher_is_better, metric.points, whole, constant, allowed, n)
