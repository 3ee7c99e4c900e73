"""What can be done with a checkpoint whose weights are quantised: its units can be masked, not cut."""

from __future__ import annotations

from typing import Any

from torch import nn

ADVICE = "its weights are quantised: to cut, take the checkpoint that it was made from, and quantise the smaller one"


def quantisation(config: Any) -> str | None:
    """How the weights that a config describes are quantised ("gptq, 4 bits"); None where they are not."""
    for owner in (config, getattr(config, "text_config", None)):
        settings = getattr(owner, "quantization_config", None)
        if settings is None:
            continue
        values = settings if isinstance(settings, dict) else vars(settings)
        method = values.get("quant_method", "a method that is not named")
        bits = values.get("bits") or values.get("w_bit") or (values.get("load_in_4bit") and 4)
        return str(getattr(method, "value", method))[:40] + (f", {bits} bits" if bits else "")
    return None


def is_to_be_quantised(model: nn.Module) -> bool:
    """Whether a model without weights stands for a quantised checkpoint, whose matrices have other shapes than its own."""
    empty = any(parameter.is_meta for parameter in model.parameters())
    return empty and quantisation(getattr(model, "config", None)) is not None
