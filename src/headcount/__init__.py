"""headcount: which heads, neurons and layers of a transformer earn their keep, and removing the rest for real.

    import headcount as hc

    print(hc.find(model))                    # where the heads, MLPs and layers are
    with hc.masked(model, "3:7"): ...        # ask what happens without head 7 of layer 3
    hc.cut(model, "3:7 5:0-3", check=batch)  # remove them; checked on this batch: nothing else changed
    hc.save(model, "smaller"); model = hc.load("smaller")
    hc.prune("my-model", "dev.tsv", max_drop=1)  # or all of it in one call, with a guarantee

The verbs are here; what they take and give, and what is rarer, is in the namespaces: `hc.stats`, `hc.pruning` and so on.
Names are looked up on first use, so importing the package does nothing and is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .lazy import lazy_attributes

__version__ = "0.1.0"

_HOMES = {
    "Plan": ".plans",
    "Unit": ".plans",
    "HeadcountError": ".errors",
    "find": ".model.discovery",
    "masked": ".model.gates",
    "cached": ".circuits.activations",
    "gated": ".model.gates",
    "cut": ".model.cutting.surgery",
    "removed": ".model.cutting.surgery",
    "save": ".model.checkpoints",
    "load": ".model.checkpoints",
    "task": ".data.task_types",
    "custom_task": ".data.tasks",
    "evaluate": ".evaluation.evaluator",
    "circuit": ".circuit_discovery.pipeline",
    "compare": ".stats.results",
    "score": ".importance.criteria",
    "plan": ".documents.scores",
    "ablate": ".evaluation.ablation",
    "curve": ".pruning.curves",
    "patch": ".interventions.patching",
    "export": ".exports.pipeline",
    "prune": ".pruning.one_call",
    "learn": ".learned_gates.pipeline",
    "train": ".training.loop",
    "roles": ".head_roles.analysis",
    "heads": ".head_roles.by_name.pipeline",
    "look": ".head_roles.attention_view",
    "report": ".reporting.page",
}
_NAMESPACES = [
    "circuit_discovery",
    "circuits",
    "data",
    "documents",
    "efficiency",
    "errors",
    "evaluation",
    "exports",
    "head_roles",
    "importance",
    "interventions",
    "learned_gates",
    "lottery_ticket",
    "model",
    "plans",
    "pruning",
    "reporting",
    "runs",
    "stats",
    "training",
]
__all__ = [
    "HeadcountError",
    "Plan",
    "Unit",
    "__version__",
    "ablate",
    "cached",
    "circuit",
    "compare",
    "curve",
    "custom_task",
    "cut",
    "evaluate",
    "export",
    "find",
    "gated",
    "heads",
    "learn",
    "load",
    "look",
    "masked",
    "patch",
    "plan",
    "prune",
    "removed",
    "report",
    "roles",
    "save",
    "score",
    "task",
    "train",
]

if TYPE_CHECKING:
    from . import circuit_discovery as circuit_discovery
    from . import circuits as circuits
    from . import data as data
    from . import documents as documents
    from . import efficiency as efficiency
    from . import errors as errors
    from . import evaluation as evaluation
    from . import exports as exports
    from . import head_roles as head_roles
    from . import importance as importance
    from . import interventions as interventions
    from . import learned_gates as learned_gates
    from . import lottery_ticket as lottery_ticket
    from . import model as model
    from . import plans as plans
    from . import pruning as pruning
    from . import reporting as reporting
    from . import runs as runs
    from . import stats as stats
    from . import training as training
    from .circuit_discovery.pipeline import circuit
    from .circuits.activations import cached
    from .data.task_types import task
    from .data.tasks import custom_task
    from .documents.scores import plan
    from .errors import HeadcountError
    from .evaluation.ablation import ablate
    from .evaluation.evaluator import evaluate
    from .exports.pipeline import export
    from .head_roles.analysis import roles
    from .head_roles.attention_view import look
    from .head_roles.by_name.pipeline import heads
    from .importance.criteria import score
    from .interventions.patching import patch
    from .learned_gates.pipeline import learn
    from .model.checkpoints import load, save
    from .model.cutting.surgery import cut, removed
    from .model.discovery import find
    from .model.gates import gated, masked
    from .plans import Plan, Unit
    from .pruning.curves import curve
    from .pruning.one_call import prune
    from .reporting.page import report
    from .stats.results import compare
    from .training.loop import train

_verb = lazy_attributes(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return import_module(f".{name}", __name__)
    return _verb(name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_NAMESPACES])
