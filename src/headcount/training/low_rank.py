"""LoRA (Hu et al. 2021): training low-rank additions to the matrices of a model, which are merged into them in the end.

The additions are peft's own. Within `low_rank` every linear layer but those of the outputs has one, W + (alpha / rank) B A with
B (outputs x rank) at zero and A (rank x inputs) at random, and only these are trained: the optimiser keeps moments of a few per
cent of the parameters, and the weights themselves may be in half precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from ..errors import NotFound, Refused

ALPHA = 2  # times the rank: the usual scale of the additions


@contextmanager
def low_rank(root: nn.Module, rank: int | None, seed: int) -> Iterator[None]:
    """Within the block only low-rank additions need a gradient; after it they are in the weights, and the modules as before.

    Where the block fails, nothing is added. None as the rank does nothing.
    """
    if rank is None:
        yield
        return
    if find_spec("peft") is None:
        raise Refused("LoRA needs the package peft, which is not installed: pip install 'headcount[adapters]'.")
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    names = adapted_matrices(root)
    needed = {parameter: parameter.requires_grad for parameter in root.parameters()}
    config = LoraConfig(r=rank, lora_alpha=ALPHA * rank, lora_dropout=0.0, target_modules=names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, root)
    for parameter in root.parameters():
        if parameter.requires_grad:  # the additions, also to weights in half precision, in which small steps are lost
            parameter.data = parameter.data.float()
    try:
        yield
        for module in root.modules():
            if isinstance(module, LoraLayer):
                module.merge()
    finally:
        for path, module in list(root.named_modules()):
            if isinstance(module, LoraLayer):
                parent, _, name = path.rpartition(".")
                setattr(root.get_submodule(parent), name, module.get_base_layer())
        vars(root).pop("peft_config", None)
        for parameter, need in needed.items():
            parameter.requires_grad_(need)


def adapted_matrices(root: Any) -> list[str]:
    """The paths of the linear layers that get an addition: all of plain classes, but for those that give the outputs."""
    output = root.get_output_embeddings() if hasattr(root, "get_output_embeddings") else None
    plain = (nn.Linear, *_transposed())
    names = [
        name
        for name, module in root.named_modules()
        if type(module) in plain and module is not output and min(module.weight.shape) > 0
    ]
    if not names:
        raise NotFound(f"{type(root).__name__} has no linear layer that LoRA could add to; train it without --lora.")
    return names


def _transposed() -> tuple[type[nn.Module], ...]:
    """transformers' linear layer of GPT-2, whose weight is (inputs, outputs)."""
    from transformers.pytorch_utils import Conv1D

    return (Conv1D,)
