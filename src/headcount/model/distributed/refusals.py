"""What cannot be done with a model that does not lie in one piece in one process, said before any work is done."""

from __future__ import annotations

from torch import nn

from ...errors import Refused
from ..discovery import unwrap
from .device_maps import is_offloaded
from .tensor_parallel import is_fully_sharded, is_tensor_parallel

FROM_FILES = "cut it from the files: headcount cut --shards, or hc.load(lazy=True), hc.cut and hc.save"
SEEN = "mask, measure and ablate its units, and score them by taylor, fisher, ablation, activations or weights"


def shared_out(model: nn.Module) -> str | None:
    """How the weights of a model are shared out among processes; None where they are not."""
    root = unwrap(model)
    if is_tensor_parallel(root):
        return "shared out among processes (tensor parallelism)"
    return "sharded over processes (FSDP)" if is_fully_sharded(root) else None


def in_one_process(model: nn.Module, what: str, advice: str = "load it in one process") -> None:
    """`Refused` for a model whose weights are shared out among processes: `what` ("it cannot be trained here"), and advice."""
    how = shared_out(model)
    if how is not None:
        raise Refused(f"The weights of this {type(unwrap(model)).__name__} are {how}, so {what}: {advice}.")


def in_one_place(model: nn.Module, what: str) -> None:
    """`Refused` for weights that are shared out among processes, or offloaded by a device map."""
    in_one_process(model, what)
    if is_offloaded(model):
        raise Refused(
            f"Weights of this {type(unwrap(model)).__name__} are offloaded to the CPU or to disk, so {what}: load it without "
            "a device map, or on devices that hold all of it."
        )


def not_tensor_parallel(model: nn.Module, what: str) -> None:
    """`Refused` for a tensor-parallel model, of whose heads a process sees its own: `what` ("roles cannot be seen")."""
    if is_tensor_parallel(unwrap(model)):
        raise Refused(
            f"This {type(unwrap(model)).__name__} is tensor-parallel, so every process sees some of its heads, and {what}: "
            f"{SEEN}; for this, load it without tp_plan (device_map spreads it over devices, too)."
        )
