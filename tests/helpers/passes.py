"""Counting passes: how many examples go through the layers of a model and of its copies, whatever time that takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import headcount as hc
from headcount.model.tensor_trees import tensors


class Passes:
    """Examples that went through all layers; one that a gradient comes back from counts three times."""

    def __init__(self, layers: int) -> None:
        self.layers, self.through = layers, 0.0

    @property
    def number(self) -> float:
        return self.through / self.layers


@contextmanager
def counted_passes(model: nn.Module) -> Iterator[Passes]:
    """Within the block, passes are counted; layers that answer from memory do not count."""
    blocks = [block for stack in hc.find(model).stacks for block in stack.blocks]
    kinds, passes = tuple({type(block) for block in blocks}), Passes(len(blocks))

    def ran(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, kinds) and "forward" not in module.__dict__:
            first = next(tensors(output))
            passes.through += first.shape[0] * (3 if first.requires_grad else 1)

    handle = register_module_forward_hook(ran)
    try:
        yield passes
    finally:
        handle.remove()
