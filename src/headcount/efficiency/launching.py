"""How passes are launched: one operation after the other, as compiled code, or recorded once as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import BadMeasure
from ..evaluation.evaluator import is_out_of_memory

WARM_UPS = 3  # passes before a graph is recorded, as torch asks for: libraries set themselves up in them


class Launching(NamedTuple):
    """Whether code is compiled, and whether the GPU runs a recorded graph instead of being told each operation."""

    compile: bool = False
    cuda_graphs: bool = False

    @property
    def plain(self) -> bool:
        """Whether models run as they are."""
        return not self.compile and not self.cuda_graphs

    @property
    def recorded(self) -> bool:
        """Whether passes are recorded as they are; compiled code records its own graphs."""
        return self.cuda_graphs and not self.compile

    def check(self, device: torch.device) -> None:
        """`BadMeasure` where there are no such graphs."""
        if self.cuda_graphs and device.type != "cuda":
            raise BadMeasure(
                f"CUDA graphs (--cuda-graphs) are recordings of a GPU, and the models are on the {device.type}; measure on a GPU "
                "(--device cuda), or without them."
            )


@contextmanager
def compiled(models: Mapping[str, nn.Module], launching: Launching) -> Iterator[list[Callable[..., Any]]]:
    """Within the block the models as `torch.compile` gives them, to be run on one shape.

    Models of one class share their code, and torch falls back to uncompiled code without a word when one code has been
    compiled for too many models and shapes: so each shape starts afresh, with room for uneven layers of all models.
    """
    how: dict[str, Any] = {"mode": "reduce-overhead"} if launching.cuda_graphs else {}
    torch.compiler.reset()
    try:
        with torch._dynamo.config.patch(recompile_limit=64 * len(models)):
            yield [torch.compile(model, dynamic=False, **how) for model in models.values()]
    finally:
        torch.compiler.reset()


def warm(run: Callable[[], object]) -> None:
    """Two passes, which compile; `BadMeasure` where that fails."""
    try:
        for _ in range(2):
            run()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        first = (str(error).strip().splitlines() or [""])[0][:120]
        if "compiler" in first.lower() or "Compiler" in type(error).__name__:
            raise BadMeasure(f"torch.compile finds no working compiler ({first}); install one (g++).") from error
        raise BadMeasure(f"torch.compile fails ({type(error).__name__}: {first}); measure uncompiled.") from error


def recorded(run: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """A pass recorded on a GPU, after a few to warm up; called, it does the same with the same tensors."""
    try:
        with torch.cuda.device(device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    run()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        first = (str(error).strip().splitlines() or [""])[0][:120]
        raise BadMeasure(
            f"A pass cannot be recorded as a CUDA graph ({type(error).__name__}: {first}); measure without --cuda-graphs."
        ) from error
    return graph.replay


def recorded_pass(model: Callable[..., Any], batch: Mapping[str, Any], device: torch.device) -> Callable[..., None]:
    """The forward pass of a batch, recorded; a mask that masks nothing is left out, as kernels without one are faster."""
    kept = {name: value for name, value in batch.items() if name != "attention_mask" or not bool(value.all())}
    replay = recorded(partial(model, **kept), device)
    return lambda **_: replay()
