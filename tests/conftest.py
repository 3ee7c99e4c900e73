"""What every test starts from: one thread, no network, no progress bars; and what several of them use."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_VERBOSITY="error",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    TQDM_DISABLE="1",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",
    COLUMNS="200",  # tables are not wrapped
    ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16",  # some virtual machines announce AMX and kill what uses it
)

import pytest
import torch
from torch import nn
from transformers.utils import logging

torch.set_num_threads(1)
logging.set_verbosity_error()
logging.disable_progress_bar()


@pytest.fixture(autouse=True, scope="module")
def _out_of_sight() -> None:
    """What earlier files have left alive is not looked through again: with a million objects, a collection takes a second."""
    gc.collect()
    gc.freeze()


@contextmanager
def says(*kinds: type[BaseException], about: str = "") -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Within the block, exactly one of these errors is raised (no subclass), and it says one sentence."""
    with pytest.raises(kinds) as caught:
        yield caught
    text = str(caught.value)
    assert type(caught.value) in kinds
    assert about in text
    assert "\n" not in text
    assert 20 < len(text) < 700


class Fingerprint:
    """Everything about a model that a context or a failed request must leave as it was."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.before = model, self._take(model)

    def changed(self) -> list[str]:
        """The names of the modules, tensors and settings that are not what they were."""
        now = self._take(self.model)
        return [name for name in {**self.before, **now} if self.before.get(name) != now.get(name)]

    @staticmethod
    def _take(model: nn.Module) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for path, module in model.named_modules():
            own = {name: id(value) for name, value in vars(module).items() if not name.startswith("_")}
            hooks = {name: len(value) for name, value in vars(module).items() if name.endswith("_hooks")}
            seen[f"module {path}"] = (type(module), id(module), own, hooks, module.training)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            seen[name] = (id(tensor), tensor.requires_grad, tensor.detach().nan_to_num().sum().item())
        config = getattr(model, "config", None)
        return seen | {"config": config.to_dict() if hasattr(config, "to_dict") else None}
