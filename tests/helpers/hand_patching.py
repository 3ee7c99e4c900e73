"""Patching by hand on small GPT-2 and Llama models: one prompt at a time, with hooks written out here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import headcount as hc

from .contrasts import ROWS, family

MODELS = ("gpt2", "llama")


def contrast(name: str, metric: str = "logit-difference", rows: Any = ROWS) -> tuple[nn.Module, Any]:
    """A small model and a contrast task for it."""
    model, tokenizer, _ = family(name)
    return model, hc.task("contrast", rows, tokenizer=tokenizer, batch_size=3, metric=metric)


def layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a small GPT-2 or Llama."""
    return list(model.transformer.h) if hasattr(model, "transformer") else list(model.model.layers)  # type: ignore


def projection(layer: Any) -> nn.Module:
    """What the heads of a layer write with."""
    return layer.attn.c_proj if hasattr(layer, "attn") else layer.self_attn.o_proj  # type: ignore[no-any-return]


def second(layer: Any) -> nn.Module:
    """What the MLP of a layer writes with."""
    return layer.mlp.c_proj if hasattr(layer.mlp, "c_proj") else layer.mlp.down_proj  # type: ignore[no-any-return]


def difference(model: nn.Module, one: dict[str, Any]) -> Tensor:
    """Logit difference of an example alone: mean right less mean wrong at the position that is asked."""
    logits = model(input_ids=one["input_ids"], attention_mask=one["attention_mask"]).logits[0, int(one["at"][0])]
    right, wrong = (one[side][0][one[side][0] >= 0] for side in ("right", "wrong"))
    return logits[right].mean() - logits[wrong].mean()  # type: ignore[no-any-return]


def inputs_of(module: nn.Module, run: Callable[[], Any]) -> Tensor:
    """What a module is given in a run."""
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().clone()))
    with torch.no_grad():
        run()
    handle.remove()
    return seen[0]


def with_input(module: nn.Module, change: Callable[[Tensor], Tensor], run: Callable[[], Any]) -> Any:
    """A run in which a module is given something else."""
    handle = module.register_forward_pre_hook(lambda _, args: (change(args[0]),))
    try:
        return run()
    finally:
        handle.remove()
