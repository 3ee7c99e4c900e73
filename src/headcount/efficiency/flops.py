"""What one pass of a model costs, counted and not timed: multiply-adds, and the memory at its peak."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ..evaluation.evaluator import device_of
from ..model.equivalence import frozen
from ..model.tensor_trees import memory_of, tensors

UNKNOWN = -1  # bytes that could not be measured


def counted(model: nn.Module, batch: dict[str, Any]) -> tuple[int, int]:
    """The floating-point operations of one pass, two per multiply-add, and the bytes at its peak."""
    if device_of(model).type == "cpu":
        live = LiveBytes(model, batch)
        with live, counting(model) as now:
            model(**batch)
            return sum(now().values()), live.most
    with gpu_peak(model, batch) as peak, counting(model) as now:
        model(**batch)
        total = sum(now().values())
    return total, peak[0]


@contextmanager
def counting(model: nn.Module) -> Iterator[Callable[[], dict[str, int]]]:
    """Within the block operations are counted; gives a function that says how many of each kind there were so far."""
    counter = FlopCounterMode(display=False, custom_mapping=_more_formulas())
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operation for a whole layer, which nobody counts

    def now() -> dict[str, int]:
        counts = counter.get_flop_counts().get("Global", {})
        return {str(operation).rpartition(".")[2]: count for operation, count in counts.items()}

    try:
        with (
            frozen(model),
            counter,
        ):  # torch's counter stumbles over modules that are handed a parameter with a gradient
            yield now
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _more_formulas() -> dict[Any, Callable[..., int]]:
    """Formulas for operations that torch's counter does not know, or not where key-value heads are shared."""

    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        *batch, positions, width = query  # scores for every pair of positions, then a sum of values
        return 2 * prod(batch) * positions * key[-2] * (width + value[-1])

    def grouped(input_shape: Any, _: Any, *__: Any, out_shape: Any = None, **___: Any) -> int:
        return 2 * prod(out_shape) * input_shape[-1]  # experts

    kernels = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
    formulas = {f"_scaled_dot_product_{name}": attention for name in kernels} | {"_grouped_mm": grouped}
    known = {getattr(torch.ops.aten, name): f for name, f in formulas.items() if hasattr(torch.ops.aten, name)}
    int8 = getattr(torch.ops.quantized, "linear_dynamic", None)  # as many multiply-adds as in float32, and cheaper ones
    return known if int8 is None else {**known, int8: grouped}


class LiveBytes(TorchDispatchMode):
    """Within the block, counts the bytes of all tensors that are alive: `now`, and at `most`.

    It begins with the weights, buffers and inputs given. Exact and repeatable, because tensors are counted and not pages;
    scratch memory inside a single operation is not seen.
    """

    def __init__(self, model: nn.Module, batch: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        initial_tensors = [*model.parameters(), *model.buffers(), *tensors(batch)]
        self.known = {t.untyped_storage()._cdata for t in initial_tensors}
        self.now = self.most = memory_of(initial_tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tensors(out):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        return out

    def _gone(self, number: int, size: int) -> None:
        self.known.discard(number)
        self.now -= size


@contextmanager
def gpu_peak(model: Any, batch: dict[str, Any]) -> Iterator[list[int]]:
    """After the block a list with the model's weights and inputs, and what was allocated within the block on top."""
    peak, device = [UNKNOWN], device_of(model)
    if device.type != "cuda":
        yield peak
        return
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    yield peak
    torch.cuda.synchronize(device)
    own = memory_of([*model.parameters(), *model.buffers(), *tensors(batch)])
    peak[0] = own + torch.cuda.max_memory_allocated(device) - before
