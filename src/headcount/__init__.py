"""headcount: which heads, neurons and layers of a transformer earn their keep, and removing the rest for real.

    import headcount as hc

    print(hc.find(model))                    # where the heads, MLPs and layers are
    with hc.closed(model, "3:7"): ...        # ask what happens without head 7 of layer 3
    hc.cut(model, "3:7 5:0-3", check=batch)  # remove them; proves that nothing else changed
    hc.save(model, "smaller"); model = hc.load("smaller")

Names are looked up on first use, so importing the package does nothing and is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Anatomy": "anatomy",
    "Site": "anatomy",
    "Stack": "anatomy",
    "find": "finding",
    "Dialect": "dialects",
    "closed": "gates",
    "gated": "gates",
    "Plan": "plans",
    "Unit": "plans",
    "legalize": "plans",
    "Price": "pricing",
    "cut": "surgery",
    "parameters_removed": "pricing",
    "prices": "pricing",
    "removed": "surgery",
    "load": "checkpoints",
    "save": "checkpoints",
    "skeleton": "checkpoints",
    "BadCheckpoint": "errors",
    "BadPlan": "errors",
    "CheckFailed": "errors",
    "HeadcountError": "errors",
    "NotFound": "errors",
    "Refused": "errors",
}
__all__ = [
    "Anatomy",
    "BadCheckpoint",
    "BadPlan",
    "CheckFailed",
    "Dialect",
    "HeadcountError",
    "NotFound",
    "Plan",
    "Price",
    "Refused",
    "Site",
    "Stack",
    "Unit",
    "__version__",
    "closed",
    "cut",
    "find",
    "gated",
    "legalize",
    "load",
    "parameters_removed",
    "prices",
    "removed",
    "save",
    "skeleton",
]

if TYPE_CHECKING:
    from .anatomy import Anatomy, Site, Stack
    from .checkpoints import load, save, skeleton
    from .dialects import Dialect
    from .errors import BadCheckpoint, BadPlan, CheckFailed, HeadcountError, NotFound, Refused
    from .finding import find
    from .gates import closed, gated
    from .plans import Plan, Unit, legalize
    from .pricing import Price, parameters_removed, prices
    from .surgery import cut, removed


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headcount' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
