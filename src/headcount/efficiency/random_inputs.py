"""Made-up batches, for measuring how fast a model is: of the right shape and kind, and about nothing."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadMeasure


def random_batch(model: nn.Module, batch: int, length: int | None, seed: int = 0) -> dict[str, Any]:
    """Inputs of the model's kind: tokens that are nothing special, pixels or sound; the same for the same seed."""
    config, kind = getattr(model, "config", None), main_input(model)
    draw = torch.Generator().manual_seed(seed)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    normal = partial(torch.randn, generator=draw)
    parameters = inspect.signature(model.forward).parameters
    if kind == "input_ids" and config is not None and length is not None:
        inputs = {"input_ids": _tokens(config, batch, length, draw), "attention_mask": torch.ones(batch, length).long()}
        if "pixel_values" in parameters and not any(name.startswith("image_token") for name in vars(config)):
            inputs["pixel_values"] = normal(batch, *_picture(config)).to(dtype)  # beside the text, not within it
    elif kind == "pixel_values" and config is not None:
        inputs = {kind: normal(batch, *_picture(config)).to(dtype)}
    elif kind == "input_features" and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        inputs = {kind: normal(batch, config.num_mel_bins, 2 * config.max_source_positions).to(dtype)}  # Whisper
    elif kind == "input_values" and hasattr(config, "conv_stride") and length is not None:
        samples = length  # of positions after the convolutions
        for stride, kernel in zip(config.conv_stride[::-1], config.conv_kernel[::-1], strict=True):
            samples = (samples - 1) * stride + kernel
        inputs = {kind: normal(batch, samples).to(dtype)}
    else:
        raise BadMeasure(
            f"I do not know what a batch for {type(model).__name__} looks like; give bench inputs=, "
            "a function of model, batch and length that makes one."
        )
    if getattr(config, "is_encoder_decoder", False) and length is not None:
        inputs["decoder_input_ids"] = _tokens(config, batch, length, draw)
    return {name: value for name, value in inputs.items() if name in parameters or name == kind}


def one_token(model: nn.Module) -> dict[str, Any]:
    """One token of one text, for what reads texts, perhaps beside something else."""
    return {"input_ids": _tokens(model.config, 1, 1, torch.Generator().manual_seed(0))}


def _picture(config: Any) -> tuple[int, ...]:
    """Channels, height and width, and the frames before them where it is a film."""
    vision = getattr(config, "vision_config", None) or getattr(config, "encoder", config)
    size = getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    frames = getattr(vision, "num_frames", None)
    return (*([frames] if frames else []), getattr(vision, "num_channels", 3), height, width)


def _tokens(config: Any, batch: int, length: int, draw: torch.Generator) -> Tensor:
    """Random tokens from the middle of the vocabulary: special ones lie at its ends, or are named in the config."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for limit in ("max_position_embeddings", "max_target_positions"):
        most = getattr(text, limit, None)
        if isinstance(most, int) and 0 < most < length:
            raise BadMeasure(f"Length {length} is beyond the {most} positions of the model; use at most {most}.")
    named = (value for name, value in text.to_dict().items() if name.endswith("token_id"))
    special = {number for value in named for number in (value if isinstance(value, list) else [value])}
    middle = range(text.vocab_size // 4, max(text.vocab_size * 3 // 4, text.vocab_size // 4 + 1))
    usable = torch.tensor([number for number in middle if number not in special] or [0])
    return usable[torch.randint(len(usable), (batch, length), generator=draw)]


def has_length(model: nn.Module) -> bool:
    """Whether examples of the model's kind can be longer and shorter: texts and sounds can, pictures cannot."""
    return main_input(model) != "pixel_values" or bool(getattr(model.config, "is_encoder_decoder", False))


def main_input(model: nn.Module) -> str:
    """What the model reads, as transformers names it; empty for other models."""
    return str(getattr(model, "main_input_name", ""))
