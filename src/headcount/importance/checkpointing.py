"""Gradient checkpointing for scores: layers forget their activations, and run a second time when the gradient comes back.

The models' own switch works in training mode only, and scores are computed in evaluation mode. What writers were given is
handed over from the second run, so that it is not held from the first one on either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from ..errors import Refused
from ..model.anatomy import Anatomy

_asked: ContextVar[bool] = ContextVar("headcount_checkpointing", default=False)


@contextmanager
def checkpointing(on: bool = True) -> Iterator[None]:
    """Within the block, gradient criteria run layers twice instead of keeping their activations: same values, less memory."""
    token = _asked.set(on or _asked.get())
    try:
        yield
    finally:
        _asked.reset(token)


def is_asked() -> bool:
    """Whether this is inside of `checkpointing()`."""
    return _asked.get()


@dataclass
class LayerCall:
    """One call of a layer: what its writers were given the second time, by site and number of the writer's call.

    Of the first time only a sum is kept, to see that both were the same.
    """

    sums: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    seen: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    again: bool = False  # whether the layer runs for the second time

    def key(self, site: str) -> tuple[str, int]:
        """The name of the writer's call that is being made."""
        self.counts[site] += 1
        return site, self.counts[site]

    def note(self, key: tuple[str, int], x: Tensor) -> None:
        """Keep what a writer was given if this is the second time, else its sum."""
        if self.again:
            self.seen[key] = x
        else:
            self.sums[key] = x.float().abs().sum()

    def taken(self, key: tuple[str, int]) -> Tensor:
        """What a writer was given the second time, which is forgotten here; `Refused` if that is not what it was at first."""
        x = self.seen.pop(key, None)
        rough = 2e-2 if x is not None and x.element_size() == 2 else 1e-3  # half precision is rounded on the way
        if x is None or not torch.allclose(x.float().abs().sum(), self.sums[key], rtol=rough, equal_nan=True):
            raise Refused(
                f"The layer around {key[0]} computes something else when it runs a second time, as layers that keep a state "
                "do, so it cannot be checkpointed: leave checkpointing out."
            )
        return x


@dataclass
class Checkpoints:
    """The call of a layer that is running now; None outside of layers.

    An attribute and no context variable: on a GPU, the second run is in a thread of the backward pass.
    """

    current: LayerCall | None = None


@contextmanager
def checkpointed(root: nn.Module, anatomy: Anatomy) -> Iterator[Checkpoints]:
    """Within the block, every layer that runs with gradients is checkpointed, and nothing is cached for later tokens."""
    blocks = [block for stack in anatomy.stacks for block in stack.blocks]
    if not blocks:
        raise Refused(
            f"{anatomy.model_name} has no layers that are modules of a list, so none can be checkpointed: leave "
            "checkpointing out."
        )
    state = Checkpoints()
    with ExitStack() as stack:
        # a cache would be written to a second time
        for config in {id(m.config): m.config for m in root.modules() if hasattr(m, "config")}.values():
            if getattr(config, "use_cache", None) is True:
                config.use_cache = False
                stack.callback(setattr, config, "use_cache", True)
        for block in blocks:
            own = block.__dict__.get("forward")
            setattr(block, "forward", partial(_checkpointed, state, block.forward))  # noqa: B010
            stack.callback(_give_back, block, own)
        # the whole layer each time, so that every writer in it is seen
        stack.enter_context(set_checkpoint_early_stop(False))
        yield state


def _give_back(block: nn.Module, own: Any) -> None:
    if own is None:
        del block.__dict__["forward"]
    else:
        setattr(block, "forward", own)  # noqa: B010


def _checkpointed(state: Checkpoints, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    call = LayerCall()

    def run() -> Any:
        before, state.current = state.current, call
        try:
            return forward(*args, **kwargs)
        finally:
            state.current = before
            call.again = True
            call.counts.clear()

    return checkpoint(run, use_reentrant=False, preserve_rng_state=False)
