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
    "Anatomy": "model.anatomy",
    "Site": "model.anatomy",
    "Stack": "model.anatomy",
    "find": "model.discovery",
    "Dialect": "model.architectures",
    "closed": "model.gates",
    "gated": "model.gates",
    "Plan": "plans",
    "Unit": "plans",
    "legalize": "plans",
    "Price": "model.cutting.effects",
    "cut": "model.cutting.surgery",
    "parameters_removed": "model.cutting.effects",
    "prices": "model.cutting.effects",
    "removed": "model.cutting.surgery",
    "load": "model.checkpoints",
    "save": "model.checkpoints",
    "skeleton": "model.checkpoints",
    "BadCheckpoint": "errors",
    "BadPlan": "errors",
    "CheckFailed": "errors",
    "HeadcountError": "errors",
    "NotFound": "errors",
    "Refused": "errors",
    "Result": "stats.results",
    "Comparison": "stats.results",
    "compare": "stats.results",
    "compare_all": "stats.results",
    "Metric": "stats.metrics",
    "Scores": "documents.scores",
    "plan": "documents.scores",
    "Task": "data.tasks",
    "own_task": "data.tasks",
    "task": "data.task_types",
    "evaluate": "evaluation.evaluator",
    "measure": "evaluation.evaluator",
    "score": "importance.criteria",
    "ablate": "evaluation.ablation",
    "ablate_all_but_one": "evaluation.ablation",
    "transfer": "evaluation.ablation",
    "Ablation": "evaluation.ablation",
    "OneHead": "evaluation.ablation",
    "Transfer": "evaluation.ablation",
    "curve": "pruning.curves",
    "Curve": "pruning.curves",
    "Point": "pruning.curves",
    "Budget": "pruning.budget",
    "Choice": "pruning.selection",
    "choose": "pruning.selection",
    "Guarantee": "stats.guarantee",
    "Pruned": "pruning.pipeline",
    "prune": "pruning.pipeline",
    "Bench": "efficiency.benchmark",
    "Speed": "efficiency.benchmark",
    "bench": "efficiency.benchmark",
    "report": "reporting.page",
    "Gates": "learned_gates.gates",
    "learning": "learned_gates.gates",
    "Recipe": "training.recipe",
    "Trained": "training.loop",
    "train": "training.loop",
    "Lot": "lottery_ticket.study",
    "Lottery": "stats.agreement",
    "lottery": "lottery_ticket.study",
    "Passages": "data.sentences.passages",
    "Roles": "documents.roles",
    "passages": "data.sentences.passages",
    "roles": "head_roles.analysis",
    "Learned": "learned_gates.pipeline",
    "learn": "learned_gates.pipeline",
    "trainer_callback": "learned_gates.trainer_callback",
    "new_translator": "training.new_models",
    "reborn": "training.new_models",
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
    from .data.sentences.passages import Passages, passages
    from .data.task_types import task
    from .data.tasks import Task, own_task
    from .documents.roles import Roles
    from .documents.scores import Scores, plan
    from .efficiency.benchmark import Bench, Speed, bench
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
    from .evaluation.ablation import Ablation, OneHead, Transfer, ablate, ablate_all_but_one, transfer
    from .evaluation.evaluator import evaluate, measure
    from .head_roles.analysis import roles
    from .importance.criteria import score
    from .learned_gates.gates import Gates, learning
    from .learned_gates.pipeline import Learned, learn
    from .learned_gates.trainer_callback import trainer_callback
    from .lottery_ticket.study import Lot, lottery
    from .model.anatomy import Anatomy, Site, Stack
    from .model.architectures import Dialect
    from .model.checkpoints import load, save, skeleton
    from .model.cutting.effects import Price, parameters_removed, prices
    from .model.cutting.surgery import cut, removed
    from .model.discovery import find
    from .model.gates import closed, gated
    from .plans import Plan, Unit, legalize
    from .pruning.budget import Budget
    from .pruning.curves import Curve, Point, curve
    from .pruning.pipeline import Pruned, prune
    from .pruning.selection import Choice, choose
    from .reporting.page import report
    from .runs import Run
    from .stats.agreement import Lottery
    from .stats.guarantee import Guarantee
    from .stats.metrics import Metric
    from .stats.results import Comparison, Result, compare, compare_all
    from .training.loop import Trained, train
    from .training.new_models import new_translator, reborn
    from .training.recipe import Recipe


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headcount' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
