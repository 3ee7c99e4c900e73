"""What every test starts from: one thread, no network, no progress bars; and what several of them use."""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_VERBOSITY="error",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    TQDM_DISABLE="1",
    TOKENIZERS_PARALLELISM="false",
    COLUMNS="200",  # tables are not wrapped
    NO_COLOR="1",
)
# What another machine may have otherwise; `make matrix` tries other values.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # processes that tests fork cannot use a GPU
# (some virtual machines announce AMX and kill what uses it)
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
import typer.testing
from hypothesis import HealthCheck, settings
from torch import Tensor, nn
from transformers.utils import logging

from headcount.efficiency import benchmark

for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)  # with these, rich and typer write colours into what tests read
# A shell has what it starts in the background ignore Ctrl-C, and nohup a closed terminal, and so would every process that a
# test starts and stops.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
logging.set_verbosity_error()
logging.disable_progress_bar()
# Tests make far more objects than they leave: with the usual threshold of 700, a tenth of the time goes into looking for waste.
gc.set_threshold(50_000, 20, 100)

# Every file is flushed to the disk against power cuts, which no test makes: 4 ms each, for thousands of files. What a killed
# process wrote the system keeps anyway, and tests of the flushing put their own in.
os.fsync = lambda handle: None  # type: ignore[assignment]

# How long a small model takes is not what these tests are about: each pass once, not for 50 ms, and five times, not 25.
benchmark.SHORTEST, benchmark.MOST = 1e-9, 5

# Typer reads the signatures of all commands anew for each call: 40 ms, for hundreds of commands that tests run.
typer.testing._get_command = functools.cache(typer.testing._get_command)

# `make test` draws the same examples everywhere; `make fuzz` draws many, others each time.
slow = [HealthCheck.too_slow]  # a clock: on a busy machine it fails what is right
settings.register_profile(
    "fixed", max_examples=50, derandomize=True, database=None, deadline=None, suppress_health_check=slow
)
settings.register_profile(
    "fuzz", max_examples=10_000, database=None, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quarter",
        type=int,
        choices=range(1, 5),
        help="a quarter of the cases, the 1st, 2nd, 3rd or 4th: of every test, and of files of long commands of every file; "
        "all four are the whole suite",
    )


# Files that run whole commands, traced graphs and simulations, seconds each and one case a test. What they compute is compared
# by the tests of the packages below, each of which is in every quarter.
LONG = ("cli/", "data/", "exports/", "pruning/test_pipeline", "pruning/test_one_call", "pruning/test_ledger")
LONG += ("pruning/test_front", "pruning/test_plan_tests", "pruning/test_checkpoint_curves")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the cases of one quarter: each case is in one of the four, and every law and test of numbers is in each."""
    quarter = config.getoption("--quarter")
    if quarter is None:
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        path, _, test = item.nodeid.partition("::")
        together = path.removeprefix("tests/").startswith(LONG)
        cases.setdefault(path if together else f"{path}::{test.partition('[')[0]}", []).append(item)
    kept = {id(one) for some in cases.values() for one in some[(quarter - 1) % len(some) :: 4]}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


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


def bits(tensor: Tensor) -> int:
    """The bytes of a tensor as one number: what was not touched has the same, however sums are rounded."""
    return hash(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


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
            seen[name] = (id(tensor), tensor.requires_grad, tensor.dtype, bits(tensor))
        config = getattr(model, "config", None)
        return seen | {"config": config.to_dict() if hasattr(config, "to_dict") else None}
