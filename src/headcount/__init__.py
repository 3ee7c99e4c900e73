"""headcount: which heads, neurons and layers of a transformer earn their keep, and removing the rest for real.

    import headcount as hc

    print(hc.find(model))                    # where the heads, MLPs and layers are
    with hc.closed(model, "3:7"): ...        # ask what happens without head 7 of layer 3
    hc.cut(model, "3:7 5:0-3", check=batch)  # remove them; checked on this batch: nothing else changed
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
    "Result": "results",
    "Comparison": "results",
    "compare": "results",
    "compare_all": "results",
    "Metric": "metrics",
    "Scores": "scores",
    "plan": "scores",
    "Task": "tasks",
    "own_task": "tasks",
    "task": "kinds",
    "evaluate": "evaluation",
    "measure": "evaluation",
    "score": "criteria",
    "ablate": "ablation",
    "ablate_all_but_one": "ablation",
    "transfer": "ablation",
    "Ablation": "ablation",
    "OneHead": "ablation",
    "Transfer": "ablation",
    "curve": "curves",
    "Curve": "curves",
    "Point": "curves",
    "Budget": "budgeting",
    "Choice": "choosing",
    "choose": "choosing",
    "Guarantee": "guarantee",
    "Pruned": "pruning",
    "prune": "pruning",
    "Bench": "speed",
    "Speed": "speed",
    "bench": "speed",
    "report": "reports",
    "Gates": "learners",
    "learning": "learners",
    "Recipe": "recipes",
    "Trained": "training",
    "train": "training",
    "Lot": "lotteries",
    "Lottery": "agreement",
    "lottery": "lotteries",
    "Passages": "reading",
    "Roles": "functions",
    "passages": "reading",
    "roles": "looking",
    "Learned": "lessons",
    "learn": "lessons",
    "trainer_callback": "callbacks",
    "new_translator": "building",
    "reborn": "building",
    "Run": "runs",
    "BadData": "errors",
    "BadMeasure": "errors",
    "BadRun": "errors",
    "NotFinite": "errors",
    "NotShown": "errors",
    "OutOfMemory": "errors",
}
__all__ = [
    "Ablation",
    "Anatomy",
    "BadCheckpoint",
    "BadData",
    "BadMeasure",
    "BadPlan",
    "BadRun",
    "Bench",
    "Budget",
    "CheckFailed",
    "Choice",
    "Comparison",
    "Curve",
    "Dialect",
    "Gates",
    "Guarantee",
    "HeadcountError",
    "Learned",
    "Lot",
    "Lottery",
    "Metric",
    "NotFinite",
    "NotFound",
    "NotShown",
    "OneHead",
    "OutOfMemory",
    "Passages",
    "Plan",
    "Point",
    "Price",
    "Pruned",
    "Recipe",
    "Refused",
    "Result",
    "Roles",
    "Run",
    "Scores",
    "Site",
    "Speed",
    "Stack",
    "Task",
    "Trained",
    "Transfer",
    "Unit",
    "__version__",
    "ablate",
    "ablate_all_but_one",
    "bench",
    "choose",
    "closed",
    "compare",
    "compare_all",
    "curve",
    "cut",
    "evaluate",
    "find",
    "gated",
    "learn",
    "learning",
    "legalize",
    "load",
    "lottery",
    "measure",
    "new_translator",
    "own_task",
    "parameters_removed",
    "passages",
    "plan",
    "prices",
    "prune",
    "reborn",
    "removed",
    "report",
    "roles",
    "save",
    "score",
    "skeleton",
    "task",
    "train",
    "trainer_callback",
    "transfer",
]

if TYPE_CHECKING:
    from .ablation import Ablation, OneHead, Transfer, ablate, ablate_all_but_one, transfer
    from .agreement import Lottery
    from .anatomy import Anatomy, Site, Stack
    from .budgeting import Budget
    from .building import new_translator, reborn
    from .callbacks import trainer_callback
    from .checkpoints import load, save, skeleton
    from .choosing import Choice, choose
    from .criteria import score
    from .curves import Curve, Point, curve
    from .dialects import Dialect
    from .errors import (
        BadCheckpoint,
        BadData,
        BadMeasure,
        BadPlan,
        BadRun,
        CheckFailed,
        HeadcountError,
        NotFinite,
        NotFound,
        NotShown,
        OutOfMemory,
        Refused,
    )
    from .evaluation import evaluate, measure
    from .finding import find
    from .functions import Roles
    from .gates import closed, gated
    from .guarantee import Guarantee
    from .kinds import task
    from .learners import Gates, learning
    from .lessons import Learned, learn
    from .looking import roles
    from .lotteries import Lot, lottery
    from .metrics import Metric
    from .plans import Plan, Unit, legalize
    from .pricing import Price, parameters_removed, prices
    from .pruning import Pruned, prune
    from .reading import Passages, passages
    from .recipes import Recipe
    from .reports import report
    from .results import Comparison, Result, compare, compare_all
    from .runs import Run
    from .scores import Scores, plan
    from .speed import Bench, Speed, bench
    from .surgery import cut, removed
    from .tasks import Task, own_task
    from .training import Trained, train


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headcount' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
