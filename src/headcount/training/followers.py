"""Processes that train along: each makes the smaller model that the first one has cut, and all train it together.

Only the first process scores, chooses, measures and writes. The others wait for what it cut, cut the same from the model that
they have loaded, and get the weights when the training begins (`step.broadcast`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..evaluation.evaluator import device_of
from ..model.architectures import ModuleSpec
from ..model.cutting import biases
from ..model.cutting.surgery import cut, record, removed
from ..model.discovery import unwrap
from ..plans import Plan
from .step import processes


def hand_out(model: nn.Module, smaller: nn.Module) -> None:
    """Tell the other processes what was cut from the model; nothing where this is the only one."""
    plan = Plan(removed(smaller).units - removed(model).units)
    given = [name for name in biases.recorded(record(smaller)) if name not in biases.recorded(record(model))]
    _from_the_first({"plan": plan.to_json(), "biases": given}, device_of(unwrap(model)))


def handed_out(model: nn.Module, specs: Iterable[ModuleSpec] = ()) -> nn.Module:
    """The smaller model as the first process has cut it, but for its numbers; the model is as it was."""
    told = _from_the_first(None, device_of(unwrap(model)))
    smaller = copy.deepcopy(model)
    cut(smaller, Plan.from_json(told["plan"]), specs=specs)
    biases.give_biases(smaller, told["biases"], specs)
    return smaller


def _from_the_first(value: Any, device: torch.device) -> Any:
    """What the first process says, in all of them."""
    if processes(device).world == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]
