"""Another processor's rounding, on this one: sums and products come out a unit in the last place off, at random.

How a sum is rounded depends on the order of its terms, and that depends on the kernel, the number of threads and where the
memory lies. `pytest -p helpers.rounding` runs the tests as if every product, every norm and every exponential were taken on a
processor of its own: a test that compares computed numbers by bits, or that hangs on a near tie, fails here at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# What is rounded in another way elsewhere; sums, products and quotients of two numbers are the same everywhere (IEEE 754).
INEXACT = re.compile(
    r"_*((add)?[bm]m|baddbmm|(add)?mv|dot|(mkldnn_)?linear|(mkldnn_)?convolution|scaled_dot_product|native_multi_head"
    r"|transformer_encoder|(native|fused)_(layer|batch|group|rms)_norm|(log_)?softmax|logsumexp|sum|mean|var|std|cumsum|prod"
    r"|linalg_vector_norm|norm|exp|exp2|expm1|log|log1p|log2|tanh|sigmoid|log_sigmoid|gelu|silu|erf|sin|cos|rsqrt|nll_loss)"
    r"(_|$)"
)


class Rounding(TorchDispatchMode):
    """A mode in which what is rounded comes out one unit in the last place higher, lower, or as it was."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if INEXACT.match(func.overloadpacket.__name__) and not func._schema.is_mutable:
            inputs = {id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
            for leaf in tree_leaves(result):
                if id(leaf) not in inputs and isinstance(leaf, Tensor):
                    self._shake(leaf)
        return result

    def _shake(self, value: Tensor) -> None:
        if (
            type(value) is not Tensor
            or value.device.type != "cpu"
            or not value.is_floating_point()
            or not value.numel()
        ):
            return
        step = (
            torch.randint(-1, 2, value.shape, generator=self.generator).to(value.dtype) * torch.finfo(value.dtype).eps
        )
        # A sum of whole numbers is exact everywhere, so it stays what it is.
        value.add_((value * step).where(value != value.round(), torch.zeros_like(value)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fixtures, the test and what is taken down after it: all in the mode, unless the test is marked `exact`.

    That mark is for tools that step aside in a dispatch mode, as `torch.compile` does: nothing would be tested.
    """
    with nullcontext() if item.get_closest_marker("exact") else Rounding():
        return (yield)
