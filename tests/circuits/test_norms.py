"""Frozen norms: what a norm did at some positions is an affine map, also where it computes in half precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.same import close
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from headcount.circuits.norms import frozen_norm

NORMS = {"layer": nn.LayerNorm, "rms": LlamaRMSNorm, "one more": Gemma2RMSNorm}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_what_it_gave(name: str, dtype: torch.dtype) -> None:
    norm: Any = NORMS[name](32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.3, 1.7, 32))
        norm = norm.to(dtype)
        x = (1.5 * torch.randn(9, 32, generator=generator) + 0.5).to(dtype)
        y = norm(x)
    found = frozen_norm(norm, x.double(), y.double())
    assert found is not None
    assert found.centred == (name == "layer")
    assert close(found.weight, norm.weight.detach().double() + (name == "one more"))
